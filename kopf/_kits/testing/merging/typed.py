"""
Fields, comparison and merging of values with shapes (see `shapes`).

This is the core of managed fields. The rules are those of server-side apply: maps are merged field by field, and an
atomic value counts as one field with all its content. Lists are replaced as a whole unless their schema identifies the
items.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from kopf._kits.testing.kinds.shapes import ATOMIC, MAP, UNTYPED, Shape
from kopf._kits.testing.merging import fieldsets
from kopf._kits.testing.merging.fieldsets import EMPTY, FieldSet
from kopf._kits.testing.wire import gotext

SORTED = orjson.OPT_SORT_KEYS
_ABSENT: Any = object()


def problems(value: Any, shape: Shape, path: str = '') -> Iterator[str]:
    """Yield the mismatches of the value with its shape, as a real server words them."""
    if value is None:
        return
    if shape.type == 'object' or not shape.type and isinstance(value, dict):
        if not isinstance(value, dict):
            yield f'{path}: expected map, got &{{{gotext.plain(value)}}}'
            return
        for name, item in value.items():
            inner = shape.field(name)
            if inner is None:
                yield f'{path}.{name}: field not declared in schema'
            else:
                yield from problems(item, inner, f'{path}.{name}')
    elif shape.type == 'array' or not shape.type and isinstance(value, list):
        if not isinstance(value, list):
            yield f'{path}: expected list, got &{{{gotext.plain(value)}}}'
            return
        yield from _list_problems(value, shape, path)
    elif (complaint := _scalar_problem(value, shape.type)) is not None:
        yield f'{path}: {complaint}'


def _list_problems(values: list[Any], shape: Shape, path: str) -> Iterator[str]:
    seen = set()
    for index, item in enumerate(values):
        place = f'[{index}]'
        if shape.list_relation != ATOMIC:
            try:
                key = element(item, shape)
            except ValueError as error:
                yield f'{path}: element {index}: {error}'
                continue
            place = next(fieldsets.members({key: EMPTY}))
            if key in seen:
                yield f'{path}: duplicate entries for key {place}'
            seen.add(key)
        yield from problems(item, shape.items, path + place)


def _scalar_problem(value: Any, type: str) -> str | None:
    numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
    match type:
        case 'integer' | 'number' if not numeric:
            return f'expected numeric (int or float), got {gotext.type_name(value)}'
        case 'string' if not isinstance(value, str):
            return f'expected string, got &value.valueUnstructured{{Value:{gotext.literal(value)}}}'
        case 'boolean' if not isinstance(value, bool):
            return f'expected boolean, got &{{{gotext.plain(value)}}}'
        case 'scalar' if isinstance(value, (dict, list)):
            return f'expected any scalar, got &{{{gotext.plain(value)}}}'
    return None


def element(item: Any, shape: Shape) -> str:
    """
    Return the element of an item of a list that is a set or a map.

    Raises:
        ValueError: The item has no keys.
    """
    if shape.list_relation != MAP:
        if item is None:
            raise ValueError('associative list without keys has an element that\'s an explicit null')
        return fieldsets.valued(item)
    if not isinstance(item, Mapping):
        raise ValueError('associative list with keys may not have non-map elements')
    keys = {key: item[key] for key in shape.keys if item.get(key) is not None}
    if len(keys) < len(shape.keys):
        keys = {**shape.key_defaults, **keys}
    if not keys:
        names = ' '.join(f'"{key}"' for key in shape.keys)
        raise ValueError(
            f'associative list with keys has an element that omits all keys [{names}] (and doesn\'t have '
            'default values for any of them)'
        )
    return fieldsets.keyed(keys)


def items(values: list[Any], shape: Shape) -> dict[str, Any]:
    """Return the items of a list by their elements; items without an element are omitted."""
    found = {}
    for value in values:
        try:
            found[element(value, shape)] = value
        except ValueError:
            continue
    return found


def fields_of(value: Any, shape: Shape) -> FieldSet:
    """Return the fields that the value sets, and those fields around them that the schema does not declare."""
    if isinstance(value, Mapping) and shape.map_relation != ATOMIC:
        result: dict[str, Any] = {}
        for name, item in value.items():
            below = fields_of(item, shape.field(name) or UNTYPED)
            empty = item is None or item == {}
            if empty or name not in shape.fields:
                below = {'.': EMPTY, **below} if below and not _is_leaf(item, shape.field(name)) else EMPTY
            elif not below and not _is_leaf(item, shape.fields[name]):
                continue
            result[fieldsets.field(name)] = below
        return result
    if isinstance(value, list) and shape.list_relation != ATOMIC:
        return {
            key: {'.': EMPTY, **below} if (below := fields_of(item, shape.items)) else EMPTY
            for key, item in items(value, shape).items()
        }
    return EMPTY


def _is_leaf(value: Any, shape: Shape | None) -> bool:
    """Check whether a value is one field as a whole."""
    if shape is None:
        return True
    if isinstance(value, Mapping):
        return shape.map_relation == ATOMIC
    return not isinstance(value, list) or shape.list_relation == ATOMIC


def everything(value: Any, shape: Shape) -> FieldSet:
    """Return all fields of the value, and all fields that contain them, as the creator of an object owns them."""
    if isinstance(value, dict) and value and shape.map_relation != ATOMIC:
        declared, others = shape.fields, shape.others or UNTYPED
        result = {f'f:{name}': everything(item, declared.get(name) or others) for name, item in value.items()}
        result['.'] = EMPTY
        return result
    if isinstance(value, list) and value and shape.list_relation != ATOMIC:
        inner = shape.items
        result = {key: everything(item, inner) for key, item in items(value, shape).items()}
        result['.'] = EMPTY
        return result
    return EMPTY


class Comparison:
    """The difference of two values: changed or added fields in the new one, and removed fields of the old one."""

    def __init__(self, old: Mapping[str, Any], new: Mapping[str, Any], shape: Shape) -> None:
        changed: dict[str, Any] = {}
        removed: dict[str, Any] = {}
        _compare_maps(old, new, shape, changed, removed)
        self.changed: FieldSet = changed
        self.removed: FieldSet = removed

    def ignore(self, fields: FieldSet) -> None:
        """Exclude these fields, and all fields inside of them."""
        if fields:
            self.changed = fieldsets.without(self.changed, fields)
            self.removed = fieldsets.without(self.removed, fields)


def _compare_maps(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    shape: Shape,
    changed: dict[str, Any],
    removed: dict[str, Any],
) -> None:
    for name, item in new.items():
        before = old.get(name, _ABSENT)
        if before is _ABSENT:
            changed[f'f:{name}'] = everything(item, shape.field(name) or UNTYPED)
        elif not _equal(before, item):
            _compare_below(f'f:{name}', before, item, shape.field(name) or UNTYPED, changed, removed)
    for name, item in old.items():
        if name not in new:
            removed[f'f:{name}'] = everything(item, shape.field(name) or UNTYPED)


def _equal(one: Any, another: Any) -> bool:
    """Check whether both values are the same; true and 1 are not, unlike in Python."""
    # First compare without sorting the keys, which is faster, and mostly sufficient: usually, both values have the same
    # writer.
    return one == another and (
        isinstance(one, str)
        or orjson.dumps(one) == orjson.dumps(another)
        or orjson.dumps(one, option=SORTED) == orjson.dumps(another, option=SORTED)
    )


def _compare_lists(
    old: list[Any],
    new: list[Any],
    shape: Shape,
    changed: dict[str, Any],
    removed: dict[str, Any],
) -> None:
    before, after = items(old, shape), items(new, shape)
    for key, item in after.items():
        if key not in before:
            changed[key] = everything(item, shape.items)
        elif not _equal(before[key], item):
            _compare_below(key, before[key], item, shape.items, changed, removed)
    for key, item in before.items():
        if key not in after:
            removed[key] = everything(item, shape.items)


def _compare_below(
    key: str,
    old: Any,
    new: Any,
    shape: Shape,
    changed: dict[str, Any],
    removed: dict[str, Any],
) -> None:
    more: dict[str, Any] = {}
    less: dict[str, Any] = {}
    whole = True
    if not (old or new) or _is_leaf(old if old is not None else new, shape) and _is_leaf(new, shape):
        pass
    elif isinstance(old, (dict, type(None))) and isinstance(new, (dict, type(None))):
        _compare_maps(old or {}, new or {}, shape, more, less)
        whole = False
    elif isinstance(old, (list, type(None))) and isinstance(new, (list, type(None))):
        _compare_lists(old or [], new or [], shape, more, less)
        whole = False
    else:
        less = {name: below for name, below in everything(old, shape).items() if name != '.'}
        more = {name: below for name, below in everything(new, shape).items() if name != '.'}
    if whole:
        changed[key] = {'.': EMPTY, **more} if more else EMPTY
    elif more:
        changed[key] = more
    if less:
        removed[key] = less


def merge(live: Any, config: Any, shape: Shape) -> Any:
    """Return the live value merged with the configuration; both stay unchanged, the result shares their parts."""
    if not (live or config) or _is_leaf(live if config is None else config, shape):
        return config
    if isinstance(config, (dict, type(None))) and isinstance(live, (dict, type(None))):
        result = dict(live or {})
        for name, item in (config or {}).items():
            result[name] = merge(result[name], item, shape.field(name) or UNTYPED) if name in result else item
        return result
    if isinstance(config, (list, type(None))) and isinstance(live, (list, type(None))):
        return _merge_lists(live or [], config or [], shape)
    return config


def _merge_lists(live: list[Any], config: list[Any], shape: Shape) -> list[Any]:
    """Return the items of the configuration in its order; every other live item stays before its former successor."""
    # Why not the live order, as in maps? The order of a list has a meaning, which the applying client decides.
    ours, theirs = items(config, shape), items(live, shape)
    order = [(key, item) for item in live for key in _elements(item, shape)]
    shared = [key for key in ours if key in theirs]
    result, place = [], 0
    for key, item in ours.items():
        while place < len(order):
            there, old = order[place]
            # Skip items of the configuration here, because they are added in the order of the configuration.
            if there in ours:
                if not shared or there == shared[0]:
                    place += not shared
                    break
            else:
                result.append(old)
            place += 1
        if shared and key == shared[0]:
            shared.pop(0)
            place += place < len(order) and order[place][0] == key
        result.append(merge(theirs[key], item, shape.items) if key in theirs else item)
    return result + [old for there, old in order[place:] if there not in ours]


def _elements(item: Any, shape: Shape) -> Iterator[str]:
    try:
        yield element(item, shape)
    except ValueError:
        return


def remove(value: Any, fields: FieldSet, shape: Shape) -> Any:
    """Return the value without these fields; null if it becomes empty."""
    if not fields:
        return value
    if isinstance(value, dict) and value:
        if shape.map_relation == ATOMIC:
            return None
        left = {}
        for name, item in value.items():
            below = fields.get(f'f:{name}')
            if below is None:
                left[name] = item
            elif not fieldsets.is_member(below):
                left[name] = remove(item, below, shape.field(name) or UNTYPED)
        return left or None
    if isinstance(value, list) and value:
        if shape.list_relation == ATOMIC:
            return None
        kept = []
        for item in value:
            below = next((fields.get(key) for key in _elements(item, shape)), None)
            if below is None:
                kept.append(item)
            elif not fieldsets.is_member(below):
                kept.append(remove(item, below, shape.items))
        return kept or None
    return value


def with_parents(fields: FieldSet, shape: Shape) -> FieldSet:
    """Return the set together with the declared fields that contain one of its members."""
    result = {}
    for key, below in fields.items():
        if key == '.' or not below:
            result[key] = below
            continue
        name = key[2:] if key.startswith('f:') else ''
        inner = (shape.field(name) or UNTYPED) if name else shape.items
        extended = with_parents(below, inner)
        result[key] = {'.': EMPTY, **extended} if name and name in shape.fields else extended
    return result
