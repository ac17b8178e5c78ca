"""Edits during a creation while no operator ran: what the object itself says about them."""

import pytest

import kopf
from kopf._cogs.configs.storage_formats import MAX_ANNOTATIONS_SIZE
from kopf._cogs.helpers.versions import user_agent
from kopf._core.intents.missed_edits import RESERVE, is_changed_since_created, pack, unpack

OURS = user_agent.partition('/')[0]
EARLY, LATE = '2030-01-01T00:00:00Z', '2030-01-01T00:00:01Z'
LABELS = {'f:metadata': {'f:labels': {'f:a': {}}}}


def make_body(entries=(), **metadata):
    return kopf.Body({'metadata': {'managedFields': list(entries), **metadata}})


def entry(manager, time, fields=LABELS, **more):
    return {'manager': manager, 'time': time, 'fieldsV1': fields, **more}


def test_essences_survive_their_packing():
    essence = {'spec': {'a': [1, 'é']}, 'metadata': {'labels': {'a': 'b'}}}
    text = pack(essence, make_body())
    assert text is not None and text.isascii()
    assert unpack(text) == essence


def test_essences_are_not_packed_into_objects_without_room():
    annotations = {'example.com/all': 'x' * (MAX_ANNOTATIONS_SIZE - RESERVE)}
    assert pack({'spec': {}}, make_body(annotations=annotations)) is None


@pytest.mark.parametrize('text', [None, '', 'not base64', 'eJw='])
def test_malformed_texts_contain_no_essence(text):
    assert unpack(text) is None


@pytest.mark.parametrize('generation, changed', [(1, False), (2, True), (None, False), ('2', False)])
def test_the_generation_counts_changes_of_the_spec(generation, changed):
    assert is_changed_since_created(make_body(generation=generation), has_status=True) is changed


@pytest.mark.parametrize(
    'entries, changed',
    [
        ([entry(OURS, EARLY), entry('kubectl', LATE)], True),
        ([entry(OURS, LATE), entry('kubectl', EARLY)], False),
        ([entry('kubectl', LATE)], False),
        ([entry(OURS, EARLY), entry('kubectl', LATE, {'f:spec': {}})], False),
        ([entry(OURS, EARLY), entry('kubectl', LATE, subresource='status')], False),
    ],
    ids=['later', 'earlier', 'never ours', 'other fields', 'status'],
)
def test_labels_changed_after_the_own_patch_are_edits(entries, changed):
    assert is_changed_since_created(make_body(entries, generation=1), has_status=True) is changed
