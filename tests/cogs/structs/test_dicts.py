import copy
import json
import pickle
from collections.abc import Mapping, MutableMapping
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.structs.dicts import (
    MappingView,
    MutableMappingView,
    ReplaceableMappingView,
    cherrypick,
    ensure,
    parse_field,
    remove,
    resolve,
)

KEYS = st.sampled_from('abc')
TREES = st.dictionaries(
    KEYS,
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda children: st.dictionaries(KEYS, children, max_size=3) | st.lists(children, max_size=3),
    ),
    max_size=3,
)
PATHS = st.lists(KEYS, min_size=1, max_size=4).map(tuple)


@pytest.mark.parametrize(
    'spec, path',
    [
        (None, ()),
        ('', ('',)),
        ('a', ('a',)),
        ('a.b', ('a', 'b')),
        (('a', 'b.c/d'), ('a', 'b.c/d')),
        (['a', 'b.c/d'], ('a', 'b.c/d')),
        ((), ()),
        ([], ()),
    ],
)
def test_fields_are_parsed_in_all_notations(spec, path):
    assert parse_field(spec) == path


@pytest.mark.parametrize('spec', [1, b'a.b', {'a': 'b'}, {'a'}, ('a', 1), ['a', None], object()])
def test_wrong_field_notations_are_refused(spec):
    with pytest.raises(ValueError, match="must be a string with dots, or a list or a tuple of strings; got"):
        parse_field(spec)


@pytest.mark.parametrize('field', ['a.b.c', ('a', 'b', 'c'), ['a', 'b', 'c']])
def test_resolving_of_present_fields(field):
    assert resolve({'a': {'b': {'c': 1}}}, field) == 1
    assert resolve({'a': {'b': {'c': 1}}}, field, 'default') == 1


@pytest.mark.parametrize('field', [None, (), []])
def test_resolving_of_the_root(field):
    d = {'a': 1}
    assert resolve(d, field) is d
    assert resolve(None, field) is None
    assert resolve(None, field, 'default') is None


def test_resolving_of_a_present_null():
    assert resolve({'a': {'b': None}}, 'a.b') is None
    assert resolve({'a': {'b': None}}, 'a.b', 'default') is None


@pytest.mark.parametrize('field', ['x', 'a.x', 'a.b.x', 'x.y.z'])
def test_resolving_of_absent_keys(field):
    d = {'a': {'b': {'c': 1}}}
    assert resolve(d, field, 'default') == 'default'
    assert resolve(d, field, None) is None
    with pytest.raises(KeyError):
        resolve(d, field)


@pytest.mark.parametrize('value', [None, 1, 'str', ['x'], True])
def test_resolving_inside_of_non_mappings(value):
    assert resolve({'a': value}, 'a.x', 'default') == 'default'
    assert resolve(value, 'x', 'default') == 'default'
    with pytest.raises(TypeError, match="what is not a mapping"):
        resolve({'a': value}, 'a.x')


def test_resolving_in_custom_mappings():
    d = MappingProxyType({'a': MappingProxyType({'b': 1})})
    assert resolve(d, 'a.b') == 1


def test_ensuring_creates_parents_and_keeps_siblings():
    d = {'a': {'x': 1}}
    ensure(d, 'a.b.c', 2)
    assert d == {'a': {'x': 1, 'b': {'c': 2}}}


def test_ensuring_over_nulls():
    d = {'a': None}
    ensure(d, 'a.b', 1)
    assert d == {'a': {'b': 1}}


@pytest.mark.parametrize('value', [1, 'str', ['b'], False, 0])
def test_ensuring_over_non_mappings(value):
    d = {'a': value}
    with pytest.raises(TypeError, match="inside of 'a'"):
        ensure(d, 'a.b', 1)
    assert d == {'a': value}


@pytest.mark.parametrize('field', [None, (), []])
def test_the_root_can_be_neither_ensured_nor_removed(field):
    with pytest.raises(ValueError, match="root"):
        ensure({}, field, {})
    with pytest.raises(ValueError, match="root"):
        remove({}, field)


@given(d=TREES, path=PATHS, value=st.integers())
def test_ensured_fields_are_resolved(d, path, value):
    try:
        ensure(d, path, value)
    except TypeError:
        pass
    else:
        assert resolve(d, path) == value


@pytest.mark.parametrize(
    'field, expected',
    [
        ('a.b.c', {'a': {'x': 1}}),
        ('a.b', {'a': {'x': 1}}),
        ('a.x', {'a': {'b': {'c': None}}}),
        ('a', {}),
    ],
)
def test_removing_drops_emptied_parents(field, expected):
    d = {'a': {'b': {'c': None}, 'x': 1}}
    remove(d, field)
    assert d == expected


@pytest.mark.parametrize('field', ['x', 'a.x', 'a.b.x', 'n.x', 's.x', 'l.x', 'x.y.z'])
def test_removing_of_absent_fields_changes_nothing(field):
    d = {'a': {'b': {'c': 1}}, 'n': None, 's': 'str', 'l': [1]}
    original = copy.deepcopy(d)
    remove(d, field)
    assert d == original


@given(d=TREES, path=PATHS)
def test_removed_fields_are_not_resolved(d, path):
    remove(d, path)
    assert resolve(d, path, 'absent') == 'absent'


def test_only_named_keys_are_copied():
    src = {'a': {'b': {'c': 1}, 'n': None, 'x': 2}, 'y': 3}
    dst = {'a': {'z': 4}}
    cherrypick(src, dst, ['a.b.c', ('a', 'n'), 'q.w', 'y.y'])
    assert dst == {'a': {'z': 4, 'b': {'c': 1}, 'n': None}}


def test_nothing_is_picked_without_fields():
    dst = {}
    cherrypick({'a': 1}, dst, None)
    assert dst == {}


@given(data=TREES)
def test_views_equal_to_their_dicts(data):
    view = MappingView({'f': data}, 'f')
    assert isinstance(view, Mapping)
    assert view == data
    assert data == view
    assert view == MappingView(data)
    assert view != data | {'other': 1}
    assert dict(view) == data
    assert {**view} == data
    assert len(view) == len(data)
    assert bool(view) == bool(data)
    assert list(view) == list(data)
    assert list(view.keys()) == list(data.keys())
    assert list(view.values()) == list(data.values())
    assert list(view.items()) == list(data.items())
    assert repr(view) == str(view) == repr(data)
    assert json.dumps(dict(view)) == json.dumps(data)
    for key in 'abcd':
        assert (key in view) == (key in data)
        assert view.get(key) == data.get(key)
        assert view.get(key, 'default') == view.get(key=key, default='default') == data.get(key, 'default')


@pytest.mark.parametrize('other', [None, 1, 'a', (), []])
def test_views_do_not_equal_to_non_mappings(other):
    assert MappingView({}) != other


def test_views_equal_to_custom_mappings():
    view = MappingView({'a': 1})
    assert view == MappingProxyType({'a': 1})
    assert view != MappingProxyType({'a': 2})
    assert MappingView(MappingProxyType({'a': 1})) == {'a': 1}


def test_views_are_not_hashable():
    with pytest.raises(TypeError):
        hash(MappingView({}))


@pytest.mark.parametrize(
    'src',
    [
        {},
        {'a': None},
        {'a': {}},
        {'a': {'b': None}},
        {'a': {'b': [1]}},
        {'a': 'b'},
        {'a': 1},
    ],
)
def test_views_of_absent_or_wrong_fields_are_empty(src):
    view = MappingView(src, 'a.b')
    assert view == {}
    assert len(view) == 0
    assert not view
    assert list(view) == []
    assert view.get('x') is None
    assert view.get('x', 'default') == 'default'
    assert 'x' not in view
    assert repr(view) == '{}'
    with pytest.raises(KeyError, match=r"^'x'$"):
        view['x']


def test_views_are_live():
    src = {}
    view = MappingView(src, 'a.b')
    src['a'] = {'b': {'c': 1}}
    assert view == {'c': 1}
    src['a'] = {'b': {'c': 2}}
    assert view['c'] == 2
    del src['a']
    assert view == {}


def test_views_of_views_are_live():
    src = {'a': {'b': {'c': 1}}}
    view = MappingView(MappingView(src, 'a'), 'b')
    assert view == {'c': 1}
    src['a'] = {'b': {'c': 2}}
    assert view == {'c': 2}


def test_views_are_readonly():
    view = MappingView({'a': 1})
    assert not isinstance(view, MutableMapping)
    with pytest.raises(TypeError):
        view['a'] = 2
    with pytest.raises(TypeError):
        del view['a']


@pytest.mark.parametrize('copier', [copy.copy, copy.deepcopy, lambda view: pickle.loads(pickle.dumps(view))])
@pytest.mark.parametrize(
    'make',
    [
        lambda src: MappingView(src, 'a.b'),
        lambda src: MappingView(MappingView(src, 'a'), 'b'),
        lambda src: ReplaceableMappingView(src['a']['b']),
        lambda src: MutableMappingView(src, 'a.b'),
    ],
)
def test_copies_are_detached_from_the_root(copier, make):
    src = {'a': {'b': {'c': [1]}}}
    view = make(src)
    clone = copier(view)
    assert clone == {'c': [1]}
    src['a'] = None
    assert clone == {'c': [1]}


def test_deep_copies_are_independent():
    src = {'a': {'b': {'c': [1]}}}
    clone = copy.deepcopy(MappingView(src, 'a.b'))
    src['a']['b']['c'].append(2)
    assert isinstance(clone, MappingView)
    assert clone == {'c': [1]}


def test_replacing_the_root_is_seen_by_all_its_views():
    root = ReplaceableMappingView({'a': {'b': {'c': 1}}})
    view = MappingView(root, 'a')
    subview = MappingView(view, 'b')
    root._replace_with({'a': {'b': {'c': 2}}})
    assert root == {'a': {'b': {'c': 2}}}
    assert view == {'b': {'c': 2}}
    assert subview == {'c': 2}
    root._replace_from(ReplaceableMappingView({}))
    assert root == view == subview == {}


def test_replacing_the_root_is_not_seen_in_the_other_roots():
    root1 = ReplaceableMappingView({'a': 1})
    root2 = ReplaceableMappingView(root1)
    root3 = ReplaceableMappingView({})
    root3._replace_from(root1)
    root2._replace_with({'a': 2})
    root3._replace_with({'a': 3})
    assert root1 == {'a': 1}
    assert root2 == {'a': 2}
    assert root3 == {'a': 3}


def test_mutable_views_create_parents_only_on_writes():
    src = {}
    view = MutableMappingView(src, 'a.b')
    assert view.get('c') is None
    assert 'c' not in view
    assert view.pop('c', None) is None
    assert src == {}
    view['c'] = 1
    assert src == {'a': {'b': {'c': 1}}}
    view.setdefault('d', {})['e'] = 2
    assert src == {'a': {'b': {'c': 1, 'd': {'e': 2}}}}
    view.update({'c': 3}, f=4)
    assert view == {'c': 3, 'd': {'e': 2}, 'f': 4}
    del view['d']
    assert view.pop('c') == 3
    assert src == {'a': {'b': {'f': 4}}}
    view.clear()
    assert src == {'a': {'b': {}}}


def test_mutable_views_cannot_remove_what_is_absent():
    src = {}
    view = MutableMappingView(src, 'a.b')
    with pytest.raises(KeyError, match=r"^'c'$"):
        del view['c']
    assert src == {}


def test_mutable_views_cannot_write_inside_of_non_mappings():
    view = MutableMappingView({'a': 'scalar'}, 'a.b')
    with pytest.raises(TypeError, match="inside of 'a'"):
        view['c'] = 1
