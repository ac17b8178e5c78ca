"""Edits by other clients, as distinguished from what the operator's own patches change."""

import datetime

import pytest

from kopf._core.actions.execution import Outcome
from kopf._core.actions.handler_states import State, digest_essence
from kopf._core.intents.causes import Reason
from kopf._core.intents.edits import digest_field, find_outdated, is_edited, is_touched


@pytest.mark.parametrize(
    'field, patch, touched',
    [
        (('spec', 'a'), {'spec': {'a': 1}}, True),
        (('spec', 'a'), {'spec': {'a': None}}, True),
        (('spec', 'a'), {'spec': {'b': 1}}, False),
        (('spec', 'a', 'deep'), {'spec': {'a': 'shallow'}}, True),
        (('spec',), {'spec': {'a': 1}}, True),
        (('spec', 'a'), {'status': {'a': 1}}, False),
        (('spec', 'a'), {}, False),
    ],
    ids=['field', 'removal', 'neighbour', 'above', 'below', 'elsewhere', 'empty'],
)
def test_patches_touch_their_fields_and_those_above_and_below(field, patch, touched):
    assert is_touched(field, patch) is touched


def test_values_that_the_api_server_adjusts_are_no_edits():
    assert not is_edited({'spec': {'cpu': '500m'}}, {'spec': {'cpu': '0.5'}}, {'spec': {'cpu': '0.50'}})


def test_one_foreign_field_is_enough_for_an_edit():
    old, new = {'spec': {'a': 1, 'b': 1}}, {'spec': {'a': 2, 'b': 2}}
    assert is_edited(old, new, {'spec': {'a': 2}})
    assert not is_edited(old, new, {'spec': {'a': 2, 'b': 2}})


@pytest.mark.parametrize('old', [{}, {'metadata': {'labels': {'a': 'b'}}}])
def test_foreign_fields_are_edits_even_if_they_come_or_go_with_a_whole_dict(old):
    new, patch = {'metadata': {'annotations': {'x': 'y'}}}, {'metadata': {'annotations': {'own': 'z'}}}
    assert is_edited(old, new, patch) and is_edited(new, old, patch)
    assert is_edited(old, {'metadata': {'annotations': {'own': 'z', 'x': 'y'}}}, patch)


def test_dicts_that_the_patch_brings_are_no_edits():
    assert not is_edited({}, {'spec': {'a': {'b': 1}}}, {'spec': {'a': {'b': 1}}})
    assert not is_edited({'spec': {'a': {'b': 1}}}, {}, {'spec': {'a': None}})
    assert not is_edited({}, {'spec': {'a': {}}}, {'spec': {'a': {}}})


def test_records_without_digests_say_nothing_of_edits():
    assert find_outdated(State(purpose=Reason.UPDATE), {'spec': {'a': 1}}) == []


def test_handlers_for_one_field_are_outdated_only_by_changes_of_that_field():
    old, new = {'spec': {'a': 1, 'b': 1}}, {'spec': {'a': 1, 'b': 2}}
    state, fields = State(purpose=Reason.UPDATE), {'a': ('spec', 'a'), 'b': ('spec', 'b'), 'former': ('spec', 'a')}
    now = datetime.datetime.now(datetime.UTC)
    state.begin(['a', 'b', 'former', 'whole'], now)
    for id in state:
        state.note_outcome(id, Outcome(final=True), now)
    state.see(['former', 'whole'], digest_essence(old))
    for id in 'a', 'b':
        state.see([id], digest_field(old, fields[id]))
    assert find_outdated(state, old, fields) == []
    # Records of former releases have only the digest of the whole essence.
    assert find_outdated(state, new, fields) == ['b', 'former', 'whole']
