"""What is stored when values must not be stored, or do not fit: and what changes are seen then."""

import base64
import json
import logging
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.configs import diffbase, digests, storage_formats
from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.diffs import diff
from kopf._cogs.structs.patches import Patch

KEY = 'kopf.zalando.org/last-handled-configuration'
PACKED = 'kopf.zalando.org/last-handled-configuration-packed'
BODY = Body({'kind': 'KopfExample', 'metadata': {'namespace': 'ns', 'name': 'obj', 'uid': '123'}})

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
essences = st.dictionaries(st.text(max_size=5), values, max_size=4)


def noise(size, seed=0):
    return base64.b64encode(random.Random(seed).randbytes(size * 3 // 4)).decode()


def make_body(spec, **metadata):
    return Body({'kind': 'KopfExample', 'metadata': {'namespace': 'ns', 'name': 'obj', **metadata}, 'spec': spec})


@pytest.fixture(autouse=True)
def forget_warnings():
    diffbase._warn_of_size.cache_clear()
    storage_formats._warn_of_broken.cache_clear()


def store(storage, body):
    """Store the essence of the object in the object; tell what is there then."""
    patch = Patch()
    essence = storage.build(body=body)
    storage.store(body=body, patch=patch, essence=essence)
    return essence, Body(patch.applied_to(body))


# Secrets.


def test_concealed_values_are_not_there():
    essence = {'data': {'password': 'cGFzcw==', 'user': 'bWU='}, 'type': 'Opaque'}
    concealed = digests.conceal(essence, ['data', 'stringData'], BODY)
    assert concealed['type'] == 'Opaque' and list(concealed) == ['data', 'type']
    assert all(value.startswith('digest:') and len(value) == 31 for value in concealed['data'].values())
    assert essence['data']['password'] == 'cGFzcw=='
    assert digests.conceal(concealed, ['data'], BODY) == concealed


def test_an_essence_without_secrets_stays_as_it_is():
    essence = {'data': None, 'spec': {'data': {'x': 'y'}}}
    assert digests.conceal(essence, ['data'], BODY) is essence


def test_what_has_not_changed_is_revealed():
    concealed = digests.conceal({'data': {'a': 'QQ==', 'b': 'Qg==', 'c': 'Qw=='}}, ['data'], BODY)
    revealed = digests.reveal(concealed, {'data': {'a': 'QQ==', 'b': 'WFg=', 'd': 'QQ=='}}, BODY)
    assert revealed == {'data': {'a': 'QQ==', 'b': concealed['data']['b'], 'c': concealed['data']['c']}}


def test_digests_of_equal_values_of_different_objects_are_different():
    other = Body({'metadata': {'namespace': 'ns', 'name': 'other'}})
    restored = Body({'metadata': {'namespace': 'ns', 'name': 'obj', 'uid': '456'}})
    of = [digests.conceal({'data': {'a': 'QQ=='}}, ['data'], body)['data']['a'] for body in (BODY, other, restored)]
    assert of[0] != of[1] and of[0] == of[2]


@given(
    old=st.dictionaries(st.text(max_size=3), st.text(), max_size=5),
    new=st.dictionaries(st.text(max_size=3), st.text(), max_size=5),
)
def test_the_same_keys_are_seen_as_changed(old, new):
    concealed = json.loads(json.dumps(digests.conceal({'data': old}, ['data'], BODY)))
    revealed = digests.reveal(concealed, {'data': new}, BODY)
    assert {(op, field) for op, field, _, _ in diff(revealed, {'data': new})} == {
        (op, field) for op, field, _, _ in diff({'data': old}, {'data': new})
    }


# Sizes.


@given(essences, st.integers(0, 300))
def test_shortened_essences_are_revealed_in_full_if_nothing_has_changed(essence, room):
    text = digests.shorten(essence, room, BODY)
    assert digests.reveal(json.loads(text), essence, BODY) == essence


@given(essences, essences, st.integers(0, 300))
def test_changes_of_shortened_essences_are_noticed(old, new, room):
    revealed = digests.reveal(json.loads(digests.shorten(old, room, BODY)), new, BODY)
    assert (revealed == new) is (old == new)


@given(st.text())
def test_packed_texts_can_be_unpacked(text):
    assert digests.unpack(digests.pack(text)) == text


@pytest.mark.parametrize('text', ['', 'x', '{', 'AAAA', 'привет', digests.pack('{}')[:-8], digests.pack('[]'), 5])
def test_what_can_not_be_unpacked(text, caplog):
    body = make_body({}, annotations={PACKED: text})
    assert diffbase.AnnotationsDiffBaseStorage().fetch(body=body) is None
    assert 'last-handled-configuration-packed' in caplog.text


def test_bombs_do_not_explode():
    import zlib

    bomb = base64.b64encode(zlib.compress(b' ' * 64 * 1024 * 1024)).decode()
    with pytest.raises(ValueError, match="too big"):
        digests.unpack(bomb)


def test_ordinary_essences_are_stored_as_ever(caplog):
    essence, stored = store(diffbase.AnnotationsDiffBaseStorage(), make_body({'field': 'x' * 1000}))
    assert json.loads(stored['metadata']['annotations'][KEY]) == essence
    assert list(stored['metadata']['annotations']) == [KEY]
    assert not caplog.records


def test_what_does_not_fit_is_compressed(caplog):
    storage = diffbase.AnnotationsDiffBaseStorage()
    essence, stored = store(storage, make_body({'field': 'x' * 300_000}, annotations={KEY: '{"old":1}'}))
    assert set(stored['metadata']['annotations']) == {PACKED}
    assert len(stored['metadata']['annotations'][PACKED]) < 1000
    assert storage.fetch(body=stored) == essence == storage.build(body=stored)
    store(storage, stored)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert 'KopfExample ns/obj' in caplog.text and 'ignored_fields' in caplog.text


def test_what_does_not_fit_even_when_compressed_has_digests(caplog):
    storage = diffbase.AnnotationsDiffBaseStorage()
    essence, stored = store(storage, make_body({'small': 'x', 'big': {'data': noise(300_000), 'more': [1, 2]}}))
    last = storage.fetch(body=stored)
    assert last['spec']['small'] == 'x' and last['spec']['big']['more'] == [1, 2]
    assert last['spec']['big']['data'].startswith('digest:')
    assert isinstance(last, digests.DigestedEssence)
    assert digests.reveal(last, essence, stored) == essence
    assert len(caplog.records) == 1


@pytest.mark.long
def test_many_small_values_are_digested_together():
    storage = diffbase.AnnotationsDiffBaseStorage()
    essence, stored = store(storage, make_body({'items': {str(i): noise(60, i) for i in range(9000)}, 'x': 1}))
    last = storage.fetch(body=stored)
    assert last['spec']['items'].startswith('digest:') and last['spec']['x'] == 1
    assert digests.reveal(last, essence, stored) == essence


@pytest.mark.parametrize('others, packed', [(100_000, False), (150_000, True), (245_000, True), (262_000, True)])
def test_annotations_of_others_count(others, packed):
    annotations = {'example.com/a': 'я' * (others // 2)}
    body = make_body({'field': noise(100_000)}, annotations=annotations)
    storage = diffbase.AnnotationsDiffBaseStorage(ignored_fields=['metadata.annotations'])
    _, stored = store(storage, body)
    assert (PACKED in stored['metadata']['annotations']) is packed
    total = storage_formats.measure_annotations(stored['metadata']['annotations'])
    assert total <= storage_formats.MAX_ANNOTATIONS_SIZE or others > 261_900


def test_what_the_patch_changes_counts():
    storage, patch = diffbase.AnnotationsDiffBaseStorage(), Patch()
    body = make_body({'field': noise(100_000)}, annotations={'kopf.zalando.org/a': noise(200_000)})
    patch.metadata.annotations['kopf.zalando.org/a'] = None
    storage.store(body=body, patch=patch, essence=storage.build(body=body))
    assert KEY in patch['metadata']['annotations']


def test_an_essence_that_has_shrunk_is_stored_as_it_is_again():
    storage = diffbase.AnnotationsDiffBaseStorage()
    _, stored = store(storage, make_body({'field': 'x' * 300_000}))
    body = make_body({'field': 'x'}, annotations=stored['metadata']['annotations'])
    essence, stored = store(storage, body)
    assert set(stored['metadata']['annotations']) == {KEY}
    assert storage.fetch(body=stored) == essence


def test_the_usual_annotation_has_precedence():
    storage = diffbase.AnnotationsDiffBaseStorage()
    body = make_body({}, annotations={KEY: '{"spec":1}', PACKED: digests.pack('{"spec":2}')})
    assert storage.fetch(body=body) == {'spec': 1}


def test_own_annotations_are_inessential_with_any_prefix():
    storage = diffbase.AnnotationsDiffBaseStorage(prefix='example.com', key='last')
    essence, stored = store(storage, make_body({'field': 'x' * 300_000}))
    stored['metadata']['annotations'].pop('example.com/kopf-managed')
    assert list(stored['metadata']['annotations']) == ['example.com/last-packed']
    assert storage.build(body=stored) == essence
