import copy
import json
import logging
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from kopf._cogs.configs.diffbase import (
    AnnotationsDiffBaseStorage,
    DiffBaseStorage,
    MultiDiffBaseStorage,
    StatusDiffBaseStorage,
)
from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.patches import Patch

LAST_HANDLED = 'kopf.zalando.org/last-handled-configuration'

BODY: Any = {
    'apiVersion': 'v1',
    'kind': 'K',
    'metadata': {
        'name': 'n',
        'namespace': 'ns',
        'uid': 'u',
        'generation': 1,
        'finalizers': ['x'],
        'managedFields': [{}],
        'labels': {'l': '1'},
        'annotations': {
            LAST_HANDLED: '{}',
            'kopf.zalando.org/fn': '{}',
            'kopf.zalando.org/a/b': 'inessential',
            'sub.kopf.zalando.org/x': 'inessential',
            'notkopf.zalando.org/x': 'essential',
            'kopf.zalando.org.uk/x': 'essential',
            'my.op/kopf-managed': 'yes',
            'my.op/z': 'inessential',
            'x.my.op/z': 'essential',
            'kopf.dev/kopf-managed': 'no',
            'kopf.dev/z': 'inessential',
            'kopf.io/z': 'essential',
            'kubectl.kubernetes.io/last-applied-configuration': '{}',
            'kubectl.kubernetes.io/restartedAt': 'essential',
            'kopf-managed': 'essential',
            'a/b/kopf-managed': 'essential',
            'a/z': 'essential',
            'plain': 'é',
        },
    },
    'spec': {'a': {'b': [1, {'c': None}]}, 'n': None},
    'status': {'phase': 'x', 'kopf': {'progress': {'fn': {}}, 'last-handled-configuration': '{}', 'dummy': '1'}},
    'data': {'k': 'v'},
    'empty': {},
    'none': None,
    'immutable': True,
}
META = {
    'labels': {'l': '1'},
    'annotations': {
        'notkopf.zalando.org/x': 'essential',
        'kopf.zalando.org.uk/x': 'essential',
        'x.my.op/z': 'essential',
        'kopf.io/z': 'essential',
        'kubectl.kubernetes.io/restartedAt': 'essential',
        'kopf-managed': 'essential',
        'a/b/kopf-managed': 'essential',
        'a/z': 'essential',
        'plain': 'é',
    },
}
ESSENCE = {
    'spec': {'a': {'b': [1, {'c': None}]}, 'n': None},
    'data': {'k': 'v'},
    'empty': {},
    'none': None,
    'immutable': True,
    'metadata': META,
}


class Dummy(DiffBaseStorage):
    def fetch(self, *, body):
        return None

    def store(self, *, body, patch, essence):
        pass


def make_storages(**kwargs: Any) -> list[DiffBaseStorage]:
    return [
        Dummy(**kwargs),
        AnnotationsDiffBaseStorage(**kwargs),
        AnnotationsDiffBaseStorage(prefix='my.op', key='lh', **kwargs),
        StatusDiffBaseStorage(**kwargs),
        StatusDiffBaseStorage(field='status.{name}.lh', name='my', **kwargs),
        MultiDiffBaseStorage([StatusDiffBaseStorage(**kwargs), AnnotationsDiffBaseStorage()]),
    ]


@pytest.fixture(params=make_storages(), ids=lambda storage: type(storage).__name__)
def storage(request):
    return request.param


def store(storage: DiffBaseStorage, essence: Any, body: Body | None = None) -> dict[str, Any]:
    patch = Patch()
    storage.store(body=body or Body({}), patch=patch, essence=essence)
    return dict(patch)


# The essence


def test_the_essence_has_what_users_configure(storage):
    body = copy.deepcopy(BODY)
    essence = storage.build(body=Body(body))
    assert essence == ESSENCE
    assert json.dumps(essence) == json.dumps(ESSENCE), "The order of keys is as in the body, then goes the metadata."
    assert body == BODY


def test_only_the_framework_shares_values_with_the_body(storage):
    shared = storage.build_shared(Body(BODY), ['status.kopf'])
    assert shared['spec'] is BODY['spec']
    assert shared['data'] is BODY['data']
    assert shared['metadata']['labels'] is BODY['metadata']['labels']
    essence = storage.build(body=Body(BODY), extra_fields=['status.kopf'])
    assert essence == shared
    assert essence['spec'] is not BODY['spec'] and essence['spec']['a'] is not BODY['spec']['a']
    assert essence['metadata']['labels'] is not BODY['metadata']['labels']


@pytest.mark.parametrize(
    'raw, essence',
    [
        ({}, {}),
        ({'metadata': None, 'status': None}, {}),
        ({'metadata': {'name': 'n'}}, {}),
        ({'metadata': {'labels': {}, 'annotations': {}}, 'status': {}}, {}),
        ({'metadata': {'labels': None, 'annotations': None}, 'spec': None}, {'spec': None}),
        ({'metadata': {'annotations': {LAST_HANDLED: '{}'}}, 'spec': {}}, {'spec': {}}),
        (
            {'metadata': {'labels': {'a': 'b'}}, 'spec': {'a': {}}},
            {'metadata': {'labels': {'a': 'b'}}, 'spec': {'a': {}}},
        ),
    ],
)
def test_empty_stanzas_are_no_part_of_the_essence(storage, raw, essence):
    assert storage.build(body=Body(raw)) == essence
    if 'status' not in raw:
        assert storage.build(body=Body(raw), extra_fields=['status.x', 'metadata.labels', 'spec.x']) == essence


@pytest.mark.parametrize(
    'fields, added, meta',
    [
        ([], {}, {}),
        (['spec', 'spec.a', 'data.unknown', 'unknown.field'], {}, {}),
        (['status.phase'], {'status': {'phase': 'x'}}, {}),
        ([('status', 'phase'), ['status', 'kopf', 'dummy']], {'status': {'phase': 'x', 'kopf': {'dummy': '1'}}}, {}),
        (['status.unknown', 'status.phase.deeper'], {}, {}),
        (['metadata.name', 'kind'], {'kind': 'K'}, {'name': 'n'}),
        (['metadata.finalizers'], {}, {'finalizers': ['x']}),
        (['metadata.labels.l'], {}, {}),
    ],
)
def test_extra_fields_are_added_to_the_essence(storage, fields, added, meta):
    body = copy.deepcopy(BODY)
    expected = ESSENCE | added | {'metadata': META | meta}
    assert storage.build(body=Body(body), extra_fields=fields) == expected
    assert storage.build(body=Body(body), extra_fields=iter(fields)) == expected
    assert body == BODY


def test_extra_fields_do_not_bring_own_state_back():
    status = BODY['status'] | {'kopf': {'progress': {'fn': {}}, 'dummy': '1'}}
    assert StatusDiffBaseStorage().build(body=Body(BODY), extra_fields=['status'])['status'] == status
    assert AnnotationsDiffBaseStorage().build(body=Body(BODY), extra_fields=['status'])['status'] == BODY['status']

    annotations = {key: value for key, value in BODY['metadata']['annotations'].items() if key != LAST_HANDLED}
    essence = AnnotationsDiffBaseStorage().build(body=Body(BODY), extra_fields=['metadata.annotations'])
    assert essence['metadata']['annotations'] == annotations


def test_extra_fields_can_be_empty_but_not_the_usual_stanzas():
    raw = {'status': {'a': None, 'b': {}}, 'metadata': {'name': 'n', 'labels': {}, 'annotations': {}}}
    storage = AnnotationsDiffBaseStorage()
    assert storage.build(body=Body(raw), extra_fields=['status.a', 'status.b']) == {'status': {'a': None, 'b': {}}}
    assert storage.build(body=Body(raw), extra_fields=['metadata']) == {'metadata': {'name': 'n'}}
    assert storage.build(body=Body({'status': {}}), extra_fields=['status']) == {}


@pytest.mark.parametrize(
    'fields, expected',
    [
        (['spec.a'], {**ESSENCE, 'spec': {'n': None}}),
        (['spec.a.b', 'spec.n'], {key: value for key, value in ESSENCE.items() if key != 'spec'}),
        (
            [('spec', 'n'), ['data'], 'empty', 'immutable'],
            {'spec': {'a': {'b': [1, {'c': None}]}}, 'none': None, 'metadata': META},
        ),
        (['data.k'], {key: value for key, value in ESSENCE.items() if key != 'data'}),
        (['metadata'], {key: value for key, value in ESSENCE.items() if key != 'metadata'}),
        (['metadata.annotations'], {**ESSENCE, 'metadata': {'labels': {'l': '1'}}}),
        (['metadata.labels.l'], {**ESSENCE, 'metadata': {'annotations': META['annotations']}}),
        (['empty.x'], {key: value for key, value in ESSENCE.items() if key != 'empty'}),
        (['unknown', 'unknown.x', 'spec.unknown', 'spec.n.x', 'spec.a.b.c', 'immutable.x', 'none.x'], ESSENCE),
        (['status'], ESSENCE),
    ],
)
def test_ignored_fields_are_no_part_of_the_essence(fields, expected):
    body = copy.deepcopy(BODY)
    for storage in make_storages(ignored_fields=fields):
        essence = storage.build(body=Body(body))
        assert list(essence.items()) == list(expected.items())
    assert body == BODY


def test_ignored_fields_are_ignored_even_if_handled():
    storage = AnnotationsDiffBaseStorage(ignored_fields=['status.phase'])
    assert storage.build(body=Body(BODY), extra_fields=['status.phase']) == ESSENCE


@pytest.mark.parametrize(
    'fields, reason',
    [
        ('spec.a', 'list of fields'),
        ([None], 'root'),
        ([()], 'root'),
        ([123], '123'),
    ],
)
def test_wrong_ignored_fields_are_refused(fields, reason):
    with pytest.raises(ValueError, match=reason):
        AnnotationsDiffBaseStorage(ignored_fields=fields)


def test_own_annotation_is_inessential_even_when_the_prefix_is_not_marked():
    raw = {'metadata': {'annotations': {'my.op/lh': '{}', 'my.op/x': 'y'}}}
    storage = AnnotationsDiffBaseStorage(prefix='my.op', key='lh')
    assert storage.build(body=Body(raw)) == {'metadata': {'annotations': {'my.op/x': 'y'}}}


def test_own_field_is_inessential_wherever_it_is():
    raw = {'spec': {'lh': '{}', 'x': 'y'}, 'metadata': {'annotations': {'a.b/c': '{}'}}}
    storage = MultiDiffBaseStorage(
        [StatusDiffBaseStorage(field='spec.lh'), StatusDiffBaseStorage(field=['metadata', 'annotations', 'a.b/c'])],
    )
    assert storage.build(body=Body(raw)) == {'spec': {'x': 'y'}}
    assert raw['spec'] == {'lh': '{}', 'x': 'y'}


def test_several_storages_ignore_all_their_fields():
    storage = MultiDiffBaseStorage([Dummy(ignored_fields=['spec']), Dummy(ignored_fields=['data', 'metadata'])])
    assert storage.build(body=Body(BODY)) == {'empty': {}, 'none': None, 'immutable': True}


def test_essences_can_be_redefined_by_developers():
    class Custom(AnnotationsDiffBaseStorage):
        def build(self, *, body, extra_fields=None):
            essence = super().build(body=body, extra_fields=extra_fields)
            return {'spec': essence.get('spec', {})}

    assert Custom().build(body=Body(BODY)) == {'spec': BODY['spec']}
    assert MultiDiffBaseStorage([Custom(), Dummy()]).build(body=Body(BODY)) == {'spec': BODY['spec']}


def test_developers_may_modify_what_they_redefine():
    class Custom(AnnotationsDiffBaseStorage):
        def build(self, *, body, extra_fields=None):
            essence = super().build(body=body, extra_fields=extra_fields)
            essence['spec']['a'].clear()
            del essence['metadata']['labels']['l']
            return essence

    for storage in (Custom(), MultiDiffBaseStorage([Dummy(), Custom()])):
        raw = copy.deepcopy(BODY)
        essence = storage.build(body=Body(raw))
        assert essence['spec'] == {'a': {}, 'n': None} and essence['metadata']['labels'] == {}
        assert raw == BODY


def test_constructors_of_developers_may_ignore_ours():
    class Custom(Dummy):
        def __init__(self):
            pass

    assert Custom().build(body=Body(BODY)) == ESSENCE


# The storing


def test_essences_are_stored_in_annotations():
    essence = {'spec': {'x': 'é\n"\x7f\u2028<>&', 'f': 1e16, 'g': 0.1}, 'metadata': {'labels': {'a': 'b'}}}
    text = '{"spec":{"x":"\\u00e9\\n\\"\\u007f\\u2028<>&","f":1e+16,"g":0.1},"metadata":{"labels":{"a":"b"}}}\n'
    assert store(AnnotationsDiffBaseStorage(), essence) == {'metadata': {'annotations': {LAST_HANDLED: text}}}


def test_storing_to_annotations_with_a_prefix():
    storage = AnnotationsDiffBaseStorage(prefix='my.op', key='lh')
    assert store(storage, {}) == {'metadata': {'annotations': {'my.op/lh': '{}\n', 'my.op/kopf-managed': 'yes'}}}
    assert store(storage, {}, body=Body(BODY)) == {'metadata': {'annotations': {'my.op/lh': '{}\n'}}}


def test_storing_to_annotations_under_both_keys():
    storage = AnnotationsDiffBaseStorage(key='x' * 60)
    v2, v1 = 'kopf.zalando.org/' + 'x' * 60, 'kopf.zalando.org/' + 'x' * 39 + '-cZCdkw'
    assert store(storage, {}) == {'metadata': {'annotations': {v2: '{}\n', v1: '{}\n'}}}
    both = Body({'metadata': {'annotations': {v1: '{"z":1}', v2: '{"z":2}', 'a': 'b'}}})
    assert storage.fetch(body=both) == {'z': 2}
    assert storage.fetch(body=Body({'metadata': {'annotations': {v1: '{"z":1}'}}})) == {'z': 1}
    assert storage.fetch(body=Body({'metadata': {'annotations': {v1: '{"z":1}', v2: '{'}}})) == {'z': 1}
    assert storage.build(body=both) == {'metadata': {'annotations': {'a': 'b'}}}


def test_storing_to_annotations_of_replicasets_of_deployments():
    raw: Any = {'kind': 'ReplicaSet', 'metadata': {'ownerReferences': [{'kind': 'Deployment'}]}}
    raw['metadata']['annotations'] = {LAST_HANDLED: '{"p":1}'}
    storage = AnnotationsDiffBaseStorage()
    assert storage.fetch(body=Body(raw)) is None
    assert storage.build(body=Body(raw)) == {}
    assert store(storage, {}, body=Body(raw)) == {'metadata': {'annotations': {f'{LAST_HANDLED}-ofDRS': '{}\n'}}}


@pytest.mark.parametrize(
    'kwargs, path',
    [
        ({}, ['status', 'kopf', 'last-handled-configuration']),
        ({'name': 'my.op'}, ['status', 'my', 'op', 'last-handled-configuration']),
        ({'field': 'spec.{name}', 'name': 'x'}, ['spec', 'x']),
        ({'field': ['a', '{name}']}, ['a', '{name}']),
    ],
)
def test_essences_are_stored_in_fields(kwargs, path):
    storage = StatusDiffBaseStorage(**kwargs)
    assert storage.field == tuple(path)
    stored: Any = store(storage, {'spec': {'x': 'é'}})
    assert storage.fetch(body=Body(stored)) == {'spec': {'x': 'é'}}
    for key in path:
        stored = stored[key]
    assert stored == '{"spec":{"x":"\\u00e9"}}'


def test_storing_to_several_storages():
    storage = MultiDiffBaseStorage([StatusDiffBaseStorage(field='status.lh'), AnnotationsDiffBaseStorage()])
    patch = store(storage, {'spec': {}})
    assert patch == {'status': {'lh': '{"spec":{}}'}, 'metadata': {'annotations': {LAST_HANDLED: '{"spec":{}}\n'}}}
    assert storage.fetch(body=Body({'metadata': {'annotations': {LAST_HANDLED: '{"spec":{}}\n'}}})) == {'spec': {}}
    assert storage.fetch(body=Body({**patch, 'status': {'lh': '{}'}})) == {}
    assert MultiDiffBaseStorage([]).fetch(body=Body(BODY)) is None


@pytest.mark.parametrize(
    'raw',
    [
        {},
        {'metadata': None},
        {'metadata': {'annotations': None}},
        {'metadata': {'annotations': {'a': 'b'}}},
        {'status': None},
        {'status': 'x'},
        {'status': {'kopf': None}},
        {'status': {'kopf': 'x'}},
        {
            'metadata': {'annotations': {LAST_HANDLED: 'null\n'}},
            'status': {'kopf': {'last-handled-configuration': 'null'}},
        },
    ],
)
def test_absence_of_the_last_handled_configuration(storage, raw, caplog):
    assert storage.fetch(body=Body(raw)) is None
    assert not caplog.messages


@pytest.mark.parametrize('text', ['', '{', '[]', '1', '"x"', 5, {}])
def test_broken_last_handled_configurations_are_absent_with_a_warning(text, caplog):
    meta = {'name': f'a{text}', 'annotations': {LAST_HANDLED: text}}
    body = Body({'kind': 'Pod', 'metadata': meta, 'status': {'kopf': {'last-handled-configuration': text}}})
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert AnnotationsDiffBaseStorage().fetch(body=body) is None
            assert StatusDiffBaseStorage().fetch(body=body) is None
    annotation, status = caplog.messages
    assert f'Pod a{text}' in annotation
    assert LAST_HANDLED in annotation
    assert 'status.kopf.last-handled-configuration' in status


# The quick check


def test_only_the_stored_essence_matches():
    storage = AnnotationsDiffBaseStorage()
    essence: Any = {'spec': {'a': [1, 'x', None]}, 'metadata': {'labels': {'a': 'b'}}}
    body = Body(store(storage, essence))
    assert storage.matches(body=body, essence=essence)
    assert not storage.matches(body=body, essence={**essence, 'spec': {'a': [2, 'x', None]}})
    assert not storage.matches(body=body, essence={})
    assert not storage.matches(body=Body({}), essence=essence)
    assert not storage.matches(body=Body({'metadata': {'annotations': {LAST_HANDLED: 5}}}), essence=essence)


def test_other_storages_are_never_sure():
    body = Body({'status': {'kopf': {'last-handled-configuration': '{}'}}})
    assert not StatusDiffBaseStorage().matches(body=body, essence={})


numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
essences = st.dictionaries(st.sampled_from(['spec', 'data', 'other']), values)


@hypothesis.given(essence=essences, other=essences)
def test_matching_means_equality(essence, other):
    storage = AnnotationsDiffBaseStorage()
    body = Body(store(storage, essence))
    if storage.matches(body=body, essence=other):
        assert storage.fetch(body=body) == other


@hypothesis.given(essence=essences)
def test_what_is_stored_is_fetched(essence):
    for storage in make_storages()[1:]:
        assert storage.fetch(body=Body(store(storage, essence))) == essence


keys = st.sampled_from([LAST_HANDLED, 'kopf.zalando.org/x', 'my.op/kopf-managed', 'my.op/a', 'my.op/lh', 'plain'])
fields = st.lists(st.sampled_from(['spec.a', 'status', 'status.a.b', 'metadata', 'metadata.labels', 'data.b', 'kind']))
structs = st.dictionaries(st.sampled_from('ab'), values | st.dictionaries(st.sampled_from('ab'), values))
bodies = st.fixed_dictionaries(
    {'apiVersion': st.just('v1'), 'kind': st.just('K')},
    optional={
        'metadata': st.fixed_dictionaries(
            {'name': st.just('n')},
            optional={
                'labels': st.dictionaries(st.sampled_from('ab'), st.just('1')),
                'annotations': st.dictionaries(keys, st.just('{}')),
            },
        ),
        'spec': structs,
        'data': structs,
        'status': structs,
    },
)


@hypothesis.given(body=bodies, extra=fields, ignored=fields)
def test_building_modifies_nothing_and_is_repeatable(body, extra, ignored):
    for storage in make_storages(ignored_fields=ignored):
        before = copy.deepcopy(body)
        essence = storage.build(body=Body(body), extra_fields=extra)
        assert body == before
        assert storage.build(body=Body(body), extra_fields=extra) == essence
        assert storage.build(body=Body(essence), extra_fields=extra) == essence


@hypothesis.given(body=bodies)
def test_storing_changes_nothing_essential(body):
    for storage in make_storages():
        essence = storage.build(body=Body(body))
        patch = store(storage, essence, body=Body(body))
        patched = {**body}
        if 'metadata' in patch:
            meta = body.get('metadata', {})
            annotations = {**meta.get('annotations', {}), **patch['metadata']['annotations']}
            patched['metadata'] = {**meta, 'annotations': annotations}
        rebuilt = storage.build(body=Body(patched))
        # The marker of the prefix, when it appears, hides other annotations with the same prefix.
        hidden = {'my.op/a', 'my.op/lh'}
        assert without(rebuilt, hidden) == without(essence, hidden)


def without(essence: Any, keys: set[str]) -> Any:
    cleaned = copy.deepcopy(essence)
    AnnotationsDiffBaseStorage.remove_annotations(cleaned, keys)
    return cleaned


class Wrapper(DiffBaseStorage):
    """A storage that wraps another one, and changes what that has built."""

    def __init__(self, storage):
        super().__init__()
        self.storage = storage

    def build(self, *, body, extra_fields=None):
        essence = self.storage.build(body=body, extra_fields=extra_fields)
        essence['spec'].pop('secret', None)
        essence['metadata']['labels']['built'] = 'yes'
        body['spec']['items'].append('mine')
        return essence

    def fetch(self, *, body):
        return self.storage.fetch(body=body)

    def store(self, *, body, patch, essence):
        self.storage.store(body=body, patch=patch, essence=essence)


@pytest.mark.parametrize(
    'wrap',
    [
        Wrapper,
        lambda storage: Wrapper(Wrapper(storage)),
        lambda storage: MultiDiffBaseStorage([Wrapper(storage), storage]),
        lambda storage: Wrapper(MultiDiffBaseStorage([storage, StatusDiffBaseStorage()])),
    ],
)
@pytest.mark.parametrize('extra', [(), ['status.phase']])
def test_storages_that_change_what_others_have_built_leave_the_object_alone(wrap, extra):
    raw = {'metadata': {'labels': {'a': 'b'}}, 'spec': {'secret': 1, 'items': []}, 'status': {'phase': 'p'}}
    original = copy.deepcopy(raw)
    essence = wrap(AnnotationsDiffBaseStorage()).build_shared(Body(raw), extra)
    assert 'secret' not in essence['spec'] and essence['metadata']['labels']['built'] == 'yes'
    assert raw == original
