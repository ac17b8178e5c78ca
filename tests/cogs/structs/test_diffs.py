import json
from collections.abc import Mapping
from types import MappingProxyType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.dicts import resolve
from kopf._cogs.structs.diffs import EMPTY, Diff, DiffItem, DiffOperation, diff, is_same, reduce

KEYS = st.sampled_from('abc')
LEAVES = st.none() | st.booleans() | st.integers(-1, 3) | st.sampled_from([0.0, 0.5, 1.0]) | st.text('xy', max_size=2)
VALUES = st.recursive(
    LEAVES,
    lambda children: st.dictionaries(KEYS, children, max_size=3) | st.lists(children, max_size=2),
    max_leaves=12,
)
PATHS = st.lists(KEYS, max_size=3).map(tuple)


def without_nulls(value):
    if isinstance(value, Mapping):
        return {key: without_nulls(val) for key, val in value.items() if val is not None}
    return value


def to_text(value):
    return json.dumps(value, sort_keys=True)


def apply(value, changes):
    root = {'': without_nulls(value)}
    for op, field, _, new in changes:
        *parents, key = '', *field
        target = resolve(root, tuple(parents))
        if op == 'remove' and field:
            del target[key]
        else:
            target[key] = without_nulls(new)
    return root['']


@given(a=VALUES, b=VALUES)
def test_old_plus_diff_makes_new(a, b):
    assert to_text(apply(a, diff(a, b))) == to_text(without_nulls(b))


@given(a=VALUES, b=VALUES)
def test_items_say_what_is_there(a, b):
    for op, field, old, new in diff(a, b):
        assert resolve(a, field, None) == old
        assert resolve(b, field, None) == new
        assert to_text(old) != to_text(new)
        assert op == ('add' if old is None else 'remove' if new is None else 'change')
        assert not (isinstance(old, dict) and isinstance(new, dict))


@given(a=VALUES, b=VALUES)
@example(a=1, b=True)
@example(a={'a': [{'b': 0}]}, b={'a': [{'b': False}]})
@example(a={'a': 1, 'b': 1}, b={'b': 1.0, 'a': 1})
def test_values_are_the_same_if_their_json_is(a, b):
    assert is_same(a, b) is (to_text(a) == to_text(b))
    assert is_same(a, b, exact=False) is (to_text(floated(a)) == to_text(floated(b)))


def floated(value):
    if isinstance(value, dict):
        return {key: floated(val) for key, val in value.items()}
    if isinstance(value, list):
        return [floated(val) for val in value]
    return float(value) if type(value) is int else value


@given(a=VALUES, b=VALUES)
def test_fields_are_unique_and_not_nested(a, b):
    fields = [item.field for item in diff(a, b)]
    for one in fields:
        assert [other for other in fields if other[: len(one)] == one] == [one]


@given(a=VALUES)
def test_equal_values_have_no_diff(a):
    assert diff(a, json.loads(json.dumps(a))) is EMPTY
    assert not EMPTY


@given(a=VALUES, b=VALUES)
def test_the_reverse_is_mirrored(a, b):
    mirrored = {'add': 'remove', 'remove': 'add', 'change': 'change'}
    forth = {(mirrored[op], field): (new, old) for op, field, old, new in diff(a, b)}
    back = {(op, field): (old, new) for op, field, old, new in diff(b, a)}
    assert back == forth


@given(a=VALUES, b=VALUES, path=PATHS)
@example(a={'a': {'b': 1}}, b={'a': 2}, path=('a', 'b'))
@example(a=None, b={'a': {'b': 1}}, path=('a', 'b'))
def test_reduced_diff_is_the_diff_of_the_field(a, b, path):
    reduced = reduce(diff(a, b), path)
    assert sorted(map(repr, reduced)) == sorted(map(repr, diff(resolve(a, path, None), resolve(b, path, None))))


@pytest.mark.parametrize(
    'a, b, expected',
    [
        (None, None, ()),
        (1, 1, ()),
        (1, 2, (('change', (), 1, 2),)),
        (None, 1, (('add', (), None, 1),)),
        (1, None, (('remove', (), 1, None),)),
        (None, {'x': 1}, (('add', (), None, {'x': 1}),)),
        ({'x': 1}, None, (('remove', (), {'x': 1}, None),)),
        (None, {}, (('add', (), None, {}),)),
        ([1], [1, 2], (('change', (), [1], [1, 2]),)),
        ({}, {'x': {}}, (('add', ('x',), None, {}),)),
        ({}, {'x': {'y': 1}}, (('add', ('x',), None, {'y': 1}),)),
        ({'x': {'y': 1}}, {}, (('remove', ('x',), {'y': 1}, None),)),
        ({'x': {'y': 1}}, {'x': {'y': 2}}, (('change', ('x', 'y'), 1, 2),)),
        ({'x': {'y': 1}}, {'x': 1}, (('change', ('x',), {'y': 1}, 1),)),
        ({'x': {'y': 1}}, {'x': [1]}, (('change', ('x',), {'y': 1}, [1]),)),
        ({'x': 1}, {'x': '1'}, (('change', ('x',), 1, '1'),)),
        ({'x': 0}, {'x': ''}, (('change', ('x',), 0, ''),)),
    ],
)
def test_diffs_are_as_in_the_examples(a, b, expected):
    assert diff(a, b) == expected


@pytest.mark.parametrize(
    'a, b, expected',
    [
        ({'x': None}, {}, ()),
        ({}, {'x': None}, ()),
        ({'y': 1}, {'y': 1, 'x': None}, ()),
        ({'x': None}, {'x': 1}, (('add', ('x',), None, 1),)),
        ({'x': 1}, {'x': None}, (('remove', ('x',), 1, None),)),
    ],
)
def test_nulls_are_absent(a, b, expected):
    assert diff(a, b) == expected


def test_order_is_stable():
    old = {'c': 1, 'b': {'x': 1, 'y': 2}, 'd': 1, 'a': 1}
    new = {'n': 1, 'a': 2, 'm': 1, 'b': {'y': 3, 'w': 4}}
    assert [(op, '.'.join(field)) for op, field, _, _ in diff(old, new)] == [
        ('add', 'n'),
        ('add', 'm'),
        ('remove', 'c'),
        ('remove', 'd'),
        ('change', 'a'),
        ('add', 'b.w'),
        ('remove', 'b.x'),
        ('change', 'b.y'),
    ]


def test_views_are_compared_as_their_dicts():
    body = Body({'spec': {'x': {'y': 1}}})
    assert diff(body.spec, {'x': {'y': 1}}) == ()
    assert diff(body.spec, {'x': {'y': 2}}) == (('change', ('x', 'y'), 1, 2),)
    assert diff({'x': {'y': 0}}, body.spec) == (('change', ('x', 'y'), 0, 1),)
    assert diff(MappingProxyType({'x': MappingProxyType({'y': 0})}), body.spec) == (('change', ('x', 'y'), 0, 1),)


def test_reducing_to_the_root_changes_nothing():
    d = diff({'a': 1}, {'a': 2})
    assert reduce(d, ()) is d


def test_reducing_drops_other_fields():
    d = diff({'spec': {'a': 1, 'ab': 1}}, {'spec': {'a': {'x': 1}, 'ab': 2}})
    assert reduce(d, ('spec', 'a')) == (('change', (), 1, {'x': 1}),)
    assert reduce(d, ('spec', 'b')) == ()
    assert reduce(d, ('status',)) == ()


@pytest.mark.parametrize(
    'a, b, expected',
    [
        (None, {'spec': {'a': {'b': 1}}}, (('add', (), None, {'b': 1}),)),
        ({'spec': {'a': {'b': 1}}}, None, (('remove', (), {'b': 1}, None),)),
        ({}, {'spec': {'a': {'b': 1}}}, (('add', (), None, {'b': 1}),)),
        ({'spec': 'str'}, {'spec': {'a': {'b': 1}}}, (('add', (), None, {'b': 1}),)),
        ({'spec': {'a': {'b': 1}}}, {'spec': [{'a': {'b': 2}}]}, (('remove', (), {'b': 1}, None),)),
        ({'spec': {'x': 1}}, {'spec': [{'a': 1}]}, ()),
    ],
)
def test_reducing_of_changed_parents(a, b, expected):
    assert reduce(diff(a, b), ('spec', 'a')) == expected


def test_diffs_are_immutable_sequences():
    d = diff({'a': 1, 'b': 1}, {'a': 2})
    assert len(d) == 2
    assert bool(d)
    assert list(d) == [('remove', ('b',), 1, None), ('change', ('a',), 1, 2)]
    assert d[0] == ('remove', ('b',), 1, None)
    assert d[-1].field == ('a',)
    assert d[1:] == (('change', ('a',), 1, 2),)
    assert ('change', ('a',), 1, 2) in d
    assert [field for op, field, old, new in d] == [('b',), ('a',)]
    with pytest.raises(TypeError):
        d[0] = d[1]


def test_diffs_are_equal_to_sequences_of_tuples():
    d = diff({'a': 1}, {'a': 2})
    assert d == (('change', ('a',), 1, 2),)
    assert d == [('change', ('a',), 1, 2)]
    assert (('change', ('a',), 1, 2),) == d
    assert d == diff({'a': 1}, {'a': 2})
    assert d == Diff([('change', ['a'], 1, 2)])
    assert d != diff({'a': 1}, {'a': 3})
    assert d != ()
    assert d != 'change'
    assert d != None  # noqa: E711
    assert hash(d) == hash(Diff(d))


def test_items_are_equal_to_lists():
    item = DiffItem(DiffOperation.ADD, ('a',), 'x', 'y')
    assert item == ['add', ('a',), 'x', 'y'] and ['add', ('a',), 'x', 'y'] == item
    assert not item != ['add', ('a',), 'x', 'y']
    assert item != ['add', ['a'], 'x', 'y'] and item != ['add', ('a',), 'x'] and item != 'add' and item != 5
    assert item == ('add', ('a',), 'x', 'y') == item
    assert hash(item) == hash(DiffItem('add', ('a',), 'x', 'y')) == hash(('add', ('a',), 'x', 'y'))
    diffs = [['add', ('a',), 'x', 'y'], ['remove', ('b',), 1, None]]
    assert Diff([item, ('remove', ('b',), 1, None)]) == diffs and diffs == Diff(map(tuple, diffs))
    assert Diff([item]) == (diffs[0],) and Diff([item]) != [diffs[1]]
    assert diffs[0] in Diff([item]) and Diff([item]).count(diffs[0]) == 1


def test_diffs_are_shown_as_tuples():
    d = diff({'a': 1}, {'a': 2})
    assert repr(d) == str(d) == "(('change', ('a',), 1, 2),)"
    assert repr(d[0]) == "('change', ('a',), 1, 2)"
    assert f'{d[0].op}' == 'change'
    assert json.dumps(list(d)) == '[["change", ["a"], 1, 2]]'


def test_diffs_made_of_plain_tuples():
    d = Diff([('add', ['x', 'y'], None, 1)])
    assert isinstance(d[0], DiffItem)
    assert d[0].op is d[0].operation is DiffOperation.ADD
    assert d[0].field == ('x', 'y')
    assert d[0].old is None
    assert d[0].new == 1


def test_diffs_of_unknown_operations():
    with pytest.raises(ValueError, match="unknown"):
        Diff([('unknown', (), None, 1)])
