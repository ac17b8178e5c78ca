import copy
import dataclasses
import json

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonpatches import apply_ops

from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.patches import Patch, combine, express_merge, is_merged

KEYS = st.sampled_from(['a', 'b', 'x/y', 'x~y', '~1', '', '0'])
LEAVES = st.none() | st.booleans() | st.integers(-1, 2) | st.text('xy', max_size=2)
VALUES = st.recursive(
    LEAVES,
    lambda children: st.dictionaries(KEYS, children, max_size=3) | st.lists(children, max_size=4),
    max_leaves=12,
)
BODIES = st.dictionaries(KEYS, VALUES, max_size=4)


def merge(old, changes):
    if not isinstance(changes, dict):
        return changes
    new = dict(old) if isinstance(old, dict) else {}
    for key, val in changes.items():
        if val is None:
            new.pop(key, None)
        else:
            new[key] = merge(new.get(key), val)
    return new


def without_empties(value):
    if not isinstance(value, dict):
        return value
    pairs = {key: without_empties(val) for key, val in value.items()}
    return {key: val for key, val in pairs.items() if val != {}}


def exactly(value):
    return json.dumps(value, sort_keys=True)  # unlike in Python, true is not 1


@given(raw=BODIES, changes=BODIES)
def test_json_patches_are_merges(raw, changes):
    original = copy.deepcopy(raw)
    ops = Patch(changes).as_json_patch(raw)
    patched = jsonpatch.apply_patch(raw, ops)
    assert exactly(without_empties(patched)) == exactly(without_empties(merge(raw, changes)))
    assert exactly(raw) == exactly(original)


@given(raw=BODIES, changes=BODIES)
def test_merges_as_json_patches(raw, changes):
    patched = apply_ops(raw, express_merge(changes, raw))
    assert exactly(without_empties(patched)) == exactly(without_empties(merge(raw, changes)))


@given(raw=BODIES, other=BODIES, changes=BODIES)
def test_merges_as_json_patches_of_other_versions(raw, other, changes):
    raw, other = merge({}, raw), merge({}, other)  # the API keeps no nulls
    try:
        patched = apply_ops(other, express_merge(changes, raw))
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException):
        return
    assert exactly(without_empties(patched)) == exactly(without_empties(merge(other, changes)))


@given(raw=BODIES, target=BODIES)
def test_json_patches_of_functions(raw, target):
    def fn(body):
        body.clear()
        body.update(target)

    original = copy.deepcopy(raw)
    ops = Patch(fns=[fn]).as_json_patch(raw)
    assert exactly(jsonpatch.apply_patch(raw, ops)) == exactly(target)
    assert exactly(raw) == exactly(original)


@given(raw=BODIES)
def test_json_patches_of_what_is_already_so(raw):
    def fn(body):
        body.update(copy.deepcopy(body))

    dense = merge({}, raw)  # nulls would be removals
    assert Patch(dense).as_json_patch(copy.deepcopy(dense)) == []
    assert Patch(fns=[fn]).as_json_patch(raw) == []


RAW = {
    'metadata': {'name': 'n', 'labels': {'l': '1'}},
    'spec': {'x': 1, 'd': {'a': 1, 'b': 2}, 'l': [{'n': 1}, {'n': 2}, {'n': 3}]},
}


@pytest.mark.parametrize(
    'changes, expected',
    [
        ({'spec': {'x': 1}}, []),
        ({'spec': {'x': 2}}, [{'op': 'replace', 'path': '/spec/x', 'value': 2}]),
        ({'spec': {'x': True}}, [{'op': 'replace', 'path': '/spec/x', 'value': True}]),
        ({'spec': {'x': {'y': 1, 'z': None}}}, [{'op': 'replace', 'path': '/spec/x', 'value': {'y': 1}}]),
        ({'spec': {'x': None}}, [{'op': 'remove', 'path': '/spec/x'}]),
        ({'spec': None}, [{'op': 'remove', 'path': '/spec'}]),
        ({'spec': {'d': 1}}, [{'op': 'replace', 'path': '/spec/d', 'value': 1}]),
        ({'spec': {'d': {}}}, []),
        ({'spec': {'d': {'a': 3}}}, [{'op': 'replace', 'path': '/spec/d/a', 'value': 3}]),
        ({'spec': {'y': 3}}, [{'op': 'add', 'path': '/spec/y', 'value': 3}]),
        ({'spec': {'y': {}}}, [{'op': 'add', 'path': '/spec/y', 'value': {}}]),
        ({'spec': {'y': {'z': {'w': 1}}}}, [{'op': 'add', 'path': '/spec/y', 'value': {'z': {'w': 1}}}]),
        ({'spec': {'absent': None}}, []),
        ({'spec': {'absent': {'absent': None}}}, []),
        ({'status': {'absent': {'absent': None}}}, []),
        ({'status': {'a': 1, 'absent': None}}, [{'op': 'add', 'path': '/status', 'value': {'a': 1}}]),
        ({'metadata': {'labels': {'a/b~c': 'd'}}}, [{'op': 'add', 'path': '/metadata/labels/a~1b~0c', 'value': 'd'}]),
        ({'metadata': {'labels': {'l': None}}}, [{'op': 'remove', 'path': '/metadata/labels/l'}]),
        (
            {'metadata': {'annotations': {'a/b': 'c'}}},
            [
                {'op': 'add', 'path': '/metadata/annotations', 'value': {'a/b': 'c'}},
            ],
        ),
    ],
)
def test_json_patches_of_dicts(changes, expected):
    assert Patch(changes).as_json_patch(RAW) == expected


@pytest.mark.parametrize(
    'fn, expected',
    [
        (lambda items: items.append({'n': 4}), [{'op': 'add', 'path': '/spec/l/3', 'value': {'n': 4}}]),
        (lambda items: items.insert(0, {'n': 0}), [{'op': 'add', 'path': '/spec/l/0', 'value': {'n': 0}}]),
        (lambda items: items.pop(1), [{'op': 'remove', 'path': '/spec/l/1'}]),
        (lambda items: items[1].update(n=5), [{'op': 'replace', 'path': '/spec/l/1/n', 'value': 5}]),
        (lambda items: items[1].update(m=5), [{'op': 'add', 'path': '/spec/l/1/m', 'value': 5}]),
        (
            lambda items: items.reverse(),
            [
                {'op': 'replace', 'path': '/spec/l/0/n', 'value': 3},
                {'op': 'replace', 'path': '/spec/l/2/n', 'value': 1},
            ],
        ),
    ],
)
def test_json_patches_of_lists(fn, expected):
    original = copy.deepcopy(RAW)
    patch = Patch(fns=[lambda body: fn(body['spec']['l'])])
    assert patch.as_json_patch(RAW) == expected
    assert RAW == original


@pytest.mark.parametrize(
    'old, new, expected',
    [
        ([1, 1], [1], [{'op': 'remove', 'path': '/l/0'}]),
        ([1], [1, 1], [{'op': 'add', 'path': '/l/0', 'value': 1}]),
        ([1, 2, 1], [1], [{'op': 'remove', 'path': '/l/1'}, {'op': 'remove', 'path': '/l/0'}]),
        ([1, 2], [], [{'op': 'remove', 'path': '/l/1'}, {'op': 'remove', 'path': '/l/0'}]),
        ([], [1, 2], [{'op': 'add', 'path': '/l/0', 'value': 1}, {'op': 'add', 'path': '/l/1', 'value': 2}]),
    ],
)
def test_json_patches_of_repeated_items(old, new, expected):
    ops = Patch({'l': new}).as_json_patch({'l': old})
    assert ops == expected
    assert jsonpatch.apply_patch({'l': old}, ops) == {'l': new}


def test_functions_see_the_changes_of_the_dict_and_of_each_other():
    patch = Patch({'spec': {'l': [1]}})
    patch.fns.append(lambda body: body['spec']['l'].append(2))
    patch.fns.append(lambda body: body['spec']['l'].append(3))
    ops = patch.as_json_patch(RAW)
    assert jsonpatch.apply_patch(RAW, ops)['spec']['l'] == [1, 2, 3]
    assert patch == {'spec': {'l': [1]}}


def test_results_of_functions_are_ignored():
    assert Patch(fns=[lambda body: {'spec': {'x': 5}}]).as_json_patch(RAW) == []


def test_errors_of_functions_are_escalated():
    with pytest.raises(ZeroDivisionError):
        Patch(fns=[lambda body: 1 / 0]).as_json_patch(RAW)


@pytest.mark.parametrize('wrap', [dict, Body])
def test_functions_get_plain_dicts(wrap):
    bodies = []
    Patch(fns=[bodies.append]).as_json_patch(wrap(RAW))
    assert bodies == [RAW]
    assert type(bodies[0]) is dict
    assert type(bodies[0]['spec']) is dict


def test_json_patches_of_views():
    body = Body({'spec': {'a': {'b': 1}}})
    ops = Patch({'status': {'spec': body.spec}}).as_json_patch(body)
    assert json.loads(json.dumps(ops)) == [{'op': 'add', 'path': '/status', 'value': {'spec': {'a': {'b': 1}}}}]


def test_json_patch_against_the_body_of_the_patch():
    patch = Patch({'spec': {'x': 2}}, body=Body(RAW))
    assert patch.as_json_patch() == [{'op': 'replace', 'path': '/spec/x', 'value': 2}]
    assert patch.as_json_patch({'spec': {'x': 2}}) == []
    assert patch.as_json_patch(Body({'spec': {}})) == [{'op': 'add', 'path': '/spec/x', 'value': 2}]
    assert patch.as_json_patch({}) == [{'op': 'add', 'path': '/spec', 'value': {'x': 2}}]


@pytest.mark.parametrize('patch', [Patch({'spec': {'x': 1}}), Patch({'spec': None}), Patch(fns=[lambda body: None])])
def test_json_patch_with_nothing_to_compare_with(patch):
    with pytest.raises(ValueError, match="without the body"):
        patch.as_json_patch()


def test_an_empty_patch_is_false():
    patch = Patch()
    assert patch == {}
    assert not patch
    assert patch.fns == []
    assert patch.as_json_patch() == []
    assert repr(patch) == 'Patch()'


def test_a_patch_with_fields_or_functions_is_true():
    def fn(body):
        pass

    assert Patch({'spec': {}})
    assert Patch(fns=[fn])
    assert repr(Patch({'a': 1})) == "Patch({'a': 1})"
    assert repr(Patch(fns=[fn])) == f"Patch(fns=[{fn!r}])"
    assert repr(Patch({'a': 1}, fns=[fn])) == f"Patch({{'a': 1}}, fns=[{fn!r}])"
    assert json.dumps(Patch({'a': 1}, fns=[fn])) == '{"a": 1}'


def test_reading_changes_nothing():
    patch = Patch()
    assert patch.spec.get('x') is None
    assert patch.meta.labels.get('x') is None
    assert 'x' not in patch.status
    assert dict(patch.metadata.annotations) == {}
    assert patch.status.pop('x', None) is None
    assert patch == {}
    assert not patch


def test_writing_through_views():
    patch = Patch()
    patch.spec['x'] = None
    patch.status.setdefault('a', {})['b'] = 1
    patch.setdefault('status', {})['more'] = True
    patch.meta.labels['label'] = 'value'
    patch.metadata.annotations['annotation'] = None
    patch.metadata['finalizers'] = []
    assert patch == {
        'spec': {'x': None},
        'status': {'a': {'b': 1}, 'more': True},
        'metadata': {'labels': {'label': 'value'}, 'annotations': {'annotation': None}, 'finalizers': []},
    }
    assert patch.spec == {'x': None}
    assert patch.meta.labels == {'label': 'value'}
    assert repr(patch.status) == "{'a': {'b': 1}, 'more': True}"


def test_views_follow_the_dict():
    patch = Patch()
    spec = patch.spec
    patch.update({'spec': {'x': 1}})
    assert spec == {'x': 1}
    patch['spec'] = None
    assert spec == {}
    spec['y'] = 2
    assert patch == {'spec': {'y': 2}}


def test_cleared_patches_are_empty():
    fns = [lambda body: None]
    patch = Patch({'a': 1}, fns=fns)
    patch.clear()
    assert patch == {}
    assert patch.fns == []
    assert not patch
    assert len(fns) == 1


def test_a_patch_copies_another_patch():
    def fn1(body):
        pass

    def fn2(body):
        pass

    patch1 = Patch({'a': 1}, fns=[fn1])
    patch2 = Patch(patch1, fns=[fn2])
    patch2['b'] = 2
    assert patch2 == {'a': 1, 'b': 2}
    assert patch2.fns == [fn1, fn2]
    assert patch1 == {'a': 1}
    assert patch1.fns == [fn1]


@pytest.mark.parametrize('copier', [copy.copy, copy.deepcopy])
def test_copies_of_patches_are_patches(copier):
    patch = Patch({'spec': {'x': 1}}, fns=[lambda body: None], body=Body(RAW))
    clone = copier(patch)
    assert isinstance(clone, Patch)
    assert clone == patch
    assert clone.fns == patch.fns
    assert clone.as_json_patch({}) == patch.as_json_patch({})
    assert copier(patch.spec) == {'x': 1}


def test_missing_parts_are_errors_that_name_the_remedy():
    with pytest.raises(KeyError, match=r"patch\.spec\[\.\.\.\] = "):
        Patch()['spec']['field'] = 'x'
    with pytest.raises(KeyError, match=r"^'other'$"):
        Patch()['other']
    assert Patch().get('spec') is None and 'spec' not in Patch()


def test_combined_patches_are_applied_in_their_order():
    def append(letter):
        return lambda body: body['spec'].update(text=body['spec']['text'] + letter)

    older, newer = Patch({'spec': {'x': 1, 'y': 1}}, fns=[append('a')]), Patch({'spec': {'x': 2}}, fns=[append('b')])
    both = combine(older, newer)
    assert both.applied_to({'spec': {'text': ''}}) == {'spec': {'text': 'ab', 'x': 2, 'y': 1}}
    assert (len(older.fns), len(newer.fns), dict(older)) == (1, 1, {'spec': {'x': 1, 'y': 1}})
    assert combine(older, Patch()) is older and combine(Patch(), newer) is newer


@dataclasses.dataclass
class Counts:
    ready: int | None = None
    total: int | None = None


@pytest.mark.parametrize('name', ['spec', 'status'])
@pytest.mark.parametrize('value', [{'ready': 1, 'total': None}, Counts(ready=1)])
def test_mappings_and_objects_of_models_replace_the_changes_of_a_part(name, value):
    patch = Patch({name: {'old': 1}})
    setattr(patch, name, value)
    assert patch == {name: {'ready': 1, 'total': None}}


def test_none_removes_the_status_but_no_kind_has_no_spec():
    patch = Patch({'status': {'old': 1}})
    patch.status = None
    assert patch == {'status': None}
    with pytest.raises(TypeError, match=r'patch.spec must be a mapping'):
        patch.spec = None


@pytest.mark.parametrize('value', [1, 'x', [1]])
def test_other_values_cannot_be_assigned(value):
    patch = Patch()
    with pytest.raises(TypeError, match=r'patch.status must be a mapping or an object of a model, not .* write patch'):
        patch.status = value
    assert not patch


def test_the_class_of_the_object_can_be_named_in_annotations():
    annotation = Patch[Counts]
    assert annotation.__origin__ is Patch


@pytest.mark.parametrize(
    'changes, target, expected',
    [
        ({}, {}, True),
        ({'a': None}, {}, True),
        ({'a': None}, {'a': 1}, False),
        ({'a': None}, {'a': None}, False),
        ({'a': 1}, {'a': 1, 'b': 2}, True),
        ({'a': 1}, {'a': 1.0}, True),
        ({'a': 1}, {'a': True}, False),
        ({'a': 0}, {'a': False}, False),
        ({'a': ''}, {}, False),
        ({'a': {}}, {}, False),
        ({'a': {}}, {'a': {'b': 1}}, True),
        ({'a': {'b': 1}}, {'a': {'b': 1, 'c': 2}}, True),
        ({'a': {'b': None}}, {'a': {'c': 2}}, True),
        ({'a': {'b': 1}}, {'a': [1]}, False),
        ({'a': [1]}, {'a': [1, 2]}, False),
        ({'a': [{'b': 1}]}, {'a': [{'b': 1, 'c': 2}]}, False),
    ],
)
def test_merges_without_effect_are_recognized(changes, target, expected):
    assert is_merged(changes, target) is expected


@given(BODIES, st.dictionaries(KEYS, VALUES, max_size=3))
def test_merges_without_effect_are_those_that_return_the_same(target, changes):
    text = json.dumps(merge(target, changes), sort_keys=True)
    assert is_merged(changes, target) == (text == json.dumps(target, sort_keys=True))
