"""
Sets of fields, as ``fieldsV1`` of managed fields writes them: ``{"f:spec": {".": {}, "f:size": {}}}``.

Sets are kept in exactly this form, so they need no decoding and encoding. Keys are elements of paths: ``f:`` is a
field, ``k:`` an item by its keys, ``v:`` an item by its value. A place is a member of the set if its value is empty or
has the key ``"."``. The root is never a member: ``{}`` is the empty set. Sets are immutable, so that they can share
their parts.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

FieldSet = Mapping[str, Any]
EMPTY: FieldSet = {}
_LEAF: FieldSet = {}


def union(one: FieldSet, another: FieldSet) -> FieldSet:
    """Return the members of either set."""
    if not one or not another or one == another:
        return one or another
    result = dict(one)
    for key, below in another.items():
        if key not in result:
            result[key] = below
        elif key != '.' and (ours := result[key]) != below:
            if not ours or not below:
                result[key] = {'.': _LEAF, **(ours or below)}
            else:
                result[key] = union(ours, below)
    return result


def difference(one: FieldSet, another: FieldSet) -> FieldSet:
    """Return the members of the first set that are not in the second one."""
    return one if not one or not another else _combine(one, another, False)


def intersection(one: FieldSet, another: FieldSet) -> FieldSet:
    """Return the members of both sets."""
    return EMPTY if not one or not another else _combine(one, another, True)


def _combine(one: FieldSet, another: FieldSet, common: bool) -> FieldSet:
    result = {}
    for key, below in one.items():
        if key == '.':
            continue
        theirs = another.get(key)
        if theirs is None:
            if not common:
                result[key] = below
            continue
        inside = _combine(below, theirs, common)
        if is_member(below) and is_member(theirs) is common:
            result[key] = {'.': _LEAF, **inside} if inside else inside
        elif inside:
            result[key] = inside
    return result


def without(one: FieldSet, another: FieldSet) -> FieldSet:
    """Return the members of the first set that are neither in the second one nor below any of its members."""
    result = {}
    for key, below in one.items():
        theirs = another.get(key)
        if theirs is None or key == '.':
            result[key] = below
        elif not is_member(theirs):
            inside = without(below, theirs)
            if inside or not below:
                result[key] = inside
    return result


def is_member(below: FieldSet) -> bool:
    """Check whether a place is a member of the set; ``below`` is the part of the set below the place."""
    return not below or '.' in below


def members(fields: FieldSet, path: str = '') -> Iterator[str]:
    """Yield the paths as messages contain them: ``.spec.ports[port=80,protocol="TCP"].name``."""
    for key, below in sorted(fields.items(), key=lambda item: _order(item[0])):
        if key != '.' and is_member(below):
            yield path + _text(key)
    for key, below in sorted(fields.items(), key=lambda item: _order(item[0])):
        if key != '.' and below:
            yield from members(below, path + _text(key))


def field(name: str) -> str:
    """Return the element of a field."""
    return f'f:{name}'


def keyed(keys: Mapping[str, Any]) -> str:
    """Return the element of an item of a list with keys."""
    return 'k:' + orjson.dumps(keys, option=orjson.OPT_SORT_KEYS).decode()


def valued(value: Any) -> str:
    """Return the element of an item of a set."""
    return 'v:' + orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _order(key: str) -> tuple[int, str]:
    return 'fkvi'.find(key[0]), key


def _text(key: str) -> str:
    kind, _, rest = key.partition(':')
    match kind:
        case 'f':
            return f'.{rest}'
        case 'k':
            pairs = [f'{name}={orjson.dumps(value).decode()}' for name, value in orjson.loads(rest).items()]
            return f'[{",".join(pairs)}]'
        case 'v':
            return f'[={rest}]'
    return f'[{rest}]'
