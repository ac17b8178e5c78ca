import re
import warnings

import hypothesis
import pytest
from hypothesis import strategies as st

from kopf._cogs.configs.diffbase import AnnotationsDiffBaseStorage
from kopf._cogs.configs.progress import AnnotationsProgressStorage, SmartProgressStorage
from kopf._cogs.structs.bodies import Body

REPLICASET = Body({'kind': 'ReplicaSet', 'metadata': {'ownerReferences': [{'kind': 'X'}, {'kind': 'Deployment'}]}})

# These keys are in existing objects: they are facts, not decisions.
KEYS = [
    ('kopf.zalando.org', 'fn', 'fn', 'fn'),
    ('kopf.zalando.org', 'fn/sub', 'fn.sub', 'fn.sub'),
    ('kopf.zalando.org', 'fn/spec.field', 'fn.spec.field', 'fn.spec.field'),
    ('kopf.zalando.org', 'outer.<locals>.fn', 'outer._locals_.fn', 'outer._locals_.fn'),
    (
        'kopf.zalando.org',
        'fn/xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx',
        'fn.xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx',
        'fn.xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-.4o1VA',
    ),
    ('kopf.zalando.org', 'a' * 46, 'a' * 46, 'a' * 46),
    ('kopf.zalando.org', 'a' * 63, 'a' * 63, 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-LcrRHA'),
    (
        'kopf.zalando.org',
        'a' * 64,
        'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-5Keq3A',
        'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-5Keq3A',
    ),
    (
        'kopf.zalando.org',
        'handle_everything/spec.some.very.long.path/to_sub_handler_with_a_long_name',
        'handle_everything.spec.some.very.long.path.to_sub_handle-ED8nBA',
        'handle_everything.spec.some.very.long.p-hXzEWg',
    ),
    (
        'kopf.zalando.org',
        'x/<y>/' * 15,
        'x._y_.x._y_.x._y_.x._y_.x._y_.x._y_.x._y_.x._y_.x._y_.x.-2nwvWQ',
        'x._y_.x._y_.x._y_.x._y_.x._y_.x._y_.x._-sbUANg',
    ),
    ('my-operator.example.com', 'fn/sub', 'fn.sub', 'fn.sub'),
    (
        'my-operator.example.com',
        'a' * 64,
        'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-5Keq3A',
        'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-5Keq3A',
    ),
    (
        'kopf.dev',
        'x/<y>/' * 15,
        'x._y_.x._y_.x._y_.x._y_.x._y_.x._y_.x._y_.x._y_.x._y_.x.-2nwvWQ',
        'x._y_.x._y_.x._y_.x._y_.x._y_.x._y_.x._y_.x._y_-sbUANg',
    ),
    ('p' * 62, 'n' * 40, 'n' * 40, 'nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn-.WkweA'),
    ('p' * 100, 'n' * 62, 'n' * 62, 'nnnnnnnnnnnnnnnnn-AAkHcg'),
    (
        'p' * 100,
        'n' * 100,
        'nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn-66Hl-Q',
        'nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn-66Hl-Q',
    ),
]


@pytest.fixture(params=[AnnotationsProgressStorage, AnnotationsDiffBaseStorage])
def cls(request):
    return request.param


@pytest.mark.parametrize('prefix, key, v2, v1', KEYS)
def test_keys_as_they_are_in_existing_objects(cls, prefix, key, v2, v1):
    storage = cls(prefix=prefix)
    assert storage.make_v1_key(key) == f'{prefix}/{v1}'
    assert storage.make_v2_key(key) == f'{prefix}/{v2}'
    assert list(storage.make_keys(key)) == ([f'{prefix}/{v2}', f'{prefix}/{v1}'] if v1 != v2 else [f'{prefix}/{v2}'])
    assert list(cls(prefix=prefix, v1=False).make_keys(key)) == [f'{prefix}/{v2}']


@pytest.mark.parametrize(
    'key, suffix',
    [
        ('', '-EnHPJQ'),
        ('fn/sub', '-hjjcRw'),
        ('é', '-lUVEwg'),
        ('..', '-5vxbuQ'),
        ('x' * 100, '-AqgtMg'),
    ],
)
def test_suffixes_as_they_are_in_existing_objects(cls, key, suffix):
    assert cls().make_suffix(key) == suffix


def test_limits_of_length_can_be_changed(cls):
    assert cls().make_v1_key('abcdefghijklmnop', 40) == 'kopf.zalando.org/abcdefghijklmnop'
    assert cls().make_v1_key('abcdefghijklmnop', max_length=30) == 'kopf.zalando.org/abcdef-hYIadw'
    assert cls().make_v2_key('abcdefghijklmnop', max_length=8) == 'kopf.zalando.org/a-hYIadw'
    assert cls().make_v2_key('abcdefghijklmnop', 5) == 'kopf.zalando.org/-hYIadw'


def test_older_keys_are_not_used_when_the_prefix_leaves_no_room_for_them(cls):
    storage = cls(prefix='p' * 63)
    assert storage.make_v1_key('fn') == 'p' * 63 + '/-wkLEjw'  # the API accepts no such names
    assert list(storage.make_keys('fn')) == ['p' * 63 + '/fn']
    storage = cls(prefix='p' * 60)
    assert len(storage.make_v1_key('n' * 80)) > 60 + 1 + 63  # as cut from the end
    assert list(storage.make_keys('n' * 80)) == [storage.make_v2_key('n' * 80)]


def test_keys_can_be_redefined_by_developers(cls):
    class Custom(cls):
        def make_v1_key(self, key, max_length=63):
            return f'older/{key}'

    assert list(Custom(prefix='p' * 63).make_keys('fn')) == ['p' * 63 + '/fn', 'older/fn']


@pytest.mark.parametrize('cls', [AnnotationsProgressStorage, AnnotationsDiffBaseStorage])
def test_replicasets_of_deployments_have_keys_of_their_own(cls):
    storage = cls()
    assert storage.mark_key('fn', body=REPLICASET) == 'fn-ofDRS'
    assert list(storage.make_keys('fn', body=REPLICASET)) == ['kopf.zalando.org/fn-ofDRS']
    assert list(storage.make_keys('a' * 63, body=REPLICASET)) == list(storage.make_keys('a' * 63 + '-ofDRS'))


@pytest.mark.parametrize(
    'raw',
    [
        {},
        {'kind': 'ReplicaSet'},
        {'kind': 'ReplicaSet', 'metadata': None},
        {'kind': 'ReplicaSet', 'metadata': {'ownerReferences': None}},
        {'kind': 'ReplicaSet', 'metadata': {'ownerReferences': [{}, {'kind': 'X'}]}},
        {'kind': 'Pod', 'metadata': {'ownerReferences': [{'kind': 'Deployment'}]}},
    ],
)
def test_other_objects_have_common_keys(cls, raw):
    assert cls().mark_key('fn', body=Body(raw)) == 'fn'
    assert list(cls().make_keys('fn', body=Body(raw))) == ['kopf.zalando.org/fn']


@pytest.mark.parametrize('prefix', ['', None])
def test_prefixes_are_mandatory(cls, prefix):
    with pytest.raises(ValueError, match='prefix'):
        cls(prefix=prefix)


@pytest.mark.parametrize('cls', [AnnotationsProgressStorage, AnnotationsDiffBaseStorage, SmartProgressStorage])
def test_too_long_prefixes_are_warned_of(cls):
    with pytest.warns(UserWarning, match='longer than 189'):
        cls(prefix='p' * 190)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        cls(prefix='p' * 189)


ids = st.text(st.sampled_from('abcXYZ019_-./<>'), min_size=1, max_size=150).filter(lambda key: key[0].isalnum())
prefixes = st.from_regex(r'[a-z]{1,30}(\.[a-z]{1,30}){0,3}', fullmatch=True)


@hypothesis.given(prefix=prefixes, key=ids)
def test_keys_are_valid_for_kubernetes(prefix, key):
    storage = AnnotationsProgressStorage(prefix=prefix)
    for full_key in storage.make_keys(key):
        actual_prefix, name = full_key.split('/')
        assert actual_prefix == prefix
        assert len(name) <= 63
        assert re.fullmatch(r'[A-Za-z0-9][A-Za-z0-9_.-]*', name)
        assert name[-1] == storage.make_safe_key(key)[-1] or name[-1].isalnum()


@hypothesis.given(prefix=prefixes, key=ids)
def test_the_newer_keys_do_not_depend_on_prefixes(prefix, key):
    _, name = AnnotationsProgressStorage(prefix=prefix).make_v2_key(key).split('/')
    assert AnnotationsProgressStorage().make_v2_key(key) == f'kopf.zalando.org/{name}'


@hypothesis.given(key=ids.filter(lambda key: len(key) > 63), other=ids)
def test_long_ids_remain_different(key, other):
    storage = AnnotationsProgressStorage()
    hypothesis.assume(storage.make_safe_key(key + other) != storage.make_safe_key(key))
    assert storage.make_v2_key(key + other) != storage.make_v2_key(key)
    assert storage.make_v1_key(key + other) != storage.make_v1_key(key)


@hypothesis.given(key=st.from_regex(r'[A-Za-z0-9]([-A-Za-z0-9_./<>]{0,61}[A-Za-z0-9])?', fullmatch=True))
def test_short_ids_are_readable(key):
    name = re.sub('[<>]', '_', key).replace('/', '.')
    assert AnnotationsProgressStorage().make_v2_key(key) == f'kopf.zalando.org/{name}'


@hypothesis.given(key=st.text(min_size=1, max_size=200))
def test_keys_are_legal_whatever_the_ids_are(key):
    for full_key in AnnotationsProgressStorage().make_keys(key):
        assert re.fullmatch(r'kopf\.zalando\.org/([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]', full_key)


@pytest.mark.parametrize(
    'one, another', [('_fn', 'fn'), ('fn_', 'fn'), ('é', 'è'), ('lambda:a', 'lambda.a'), ('x' * 70, 'x' * 71)]
)
def test_keys_of_different_ids_differ(one, another):
    storage = AnnotationsProgressStorage()
    assert not set(storage.make_keys(one)) & set(storage.make_keys(another))


def test_cleaning_of_essences_in_place(cls):
    essence = {'spec': {}, 'status': {}, 'metadata': {'labels': {}, 'annotations': {'a': '1', 'b': '2'}}}
    cls.remove_annotations(essence, {'a', 'absent'})
    assert essence == {'spec': {}, 'status': {}, 'metadata': {'labels': {}, 'annotations': {'b': '2'}}}
    cls.remove_empty_stanzas(essence)
    assert essence == {'spec': {}, 'metadata': {'annotations': {'b': '2'}}}
    cls.remove_annotations(essence, ['b'])
    cls.remove_empty_stanzas(essence)
    assert essence == {'spec': {}}
