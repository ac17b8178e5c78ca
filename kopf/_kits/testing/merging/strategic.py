"""
Strategic merge patches: merge patches that merge lists by the keys of their items.

The merge keys of lists come from the schemas of built-in kinds. Custom resources have none, so these patches are
refused for them. Directives (``$patch``, ``$retainKeys``, ``$setElementOrder/...``, ``$deleteFromPrimitiveList/...``)
control the merge, and never become a part of the object.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from kopf._kits.testing.kinds.shapes import UNTYPED, Shape
from kopf._kits.testing.wire import gotext, statuses

PATCH, RETAIN = '$patch', '$retainKeys'
ORDER, DELETE = '$setElementOrder/', '$deleteFromPrimitiveList/'
BAD_KEYS = 'invalid patch format of retainKeys'


def merge(document: Mapping[str, Any], patch: Mapping[str, Any], shape: Shape) -> dict[str, Any]:
    """
    Return the document with the patch applied; unchanged parts are shared with it.

    Raises:
        Refusal: The directives of the patch are invalid.
    """
    match patch.get(PATCH):
        case None if PATCH not in patch:
            pass
        case 'replace':
            return {key: value for key, value in patch.items() if key != PATCH}
        case 'delete':
            return {}
        case other:
            name = other if isinstance(other, str) else f'%!s({gotext.type_name(other)}={gotext.plain(other)})'
            raise statuses.internal(f'unknown patch type: {name} in map: {gotext.plain(patch)}')
    result = _retained(dict(document), patch)
    for key, value in patch.items():
        if key.startswith(DELETE):
            name = key.removeprefix(DELETE)
            if isinstance(value, list) and isinstance(present := result.get(name), list):
                result[name] = [item for item in present if item not in value]
    for key, value in patch.items():
        if key not in (PATCH, RETAIN) and not key.startswith((ORDER, DELETE)):
            order = patch.get(f'{ORDER}{key}')
            _merge_field(result, key, value, shape.field(key) or UNTYPED, order)
        elif key.startswith(ORDER) and (name := key.removeprefix(ORDER)) not in patch:
            _check_order(value, (), shape.field(name) or UNTYPED)
            if isinstance(present := result.get(name), list):
                result[name] = _ordered(present, value, present, shape.field(name) or UNTYPED)
    return result


def _retained(document: dict[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    keys = patch.get(RETAIN)
    if keys is None:
        return document
    if not isinstance(keys, list):
        raise statuses.bad_request(BAD_KEYS)
    for key, value in patch.items():
        if value is not None and not key.startswith('$') and key not in keys:
            raise statuses.bad_request(BAD_KEYS)
    return {key: value for key, value in document.items() if key in keys}


def _merge_field(document: dict[str, Any], key: str, value: Any, shape: Shape, order: Any) -> None:
    present = document.get(key)
    if value is None:
        document.pop(key, None)
    elif key not in document or present is None:
        document.pop(key, None)
        if not _is_directive(value):
            document[key] = _plain(value)
    elif isinstance(value, Mapping) and isinstance(present, Mapping) and 'replace' not in shape.strategies:
        document[key] = merge(present, value, shape)
    elif isinstance(value, list) and isinstance(present, list) and 'merge' in shape.strategies:
        if order is not None:
            _check_order(order, value, shape)
        merged = _merge_lists(present, value, shape)
        document[key] = merged if order is None else _ordered(merged, order, present, shape)
    else:
        document[key] = _plain(value)


def _check_order(order: Any, patch: Iterable[Any], shape: Shape) -> None:
    if not isinstance(order, list):
        raise statuses.internal(f'expected a []interface {{}}, but received a {gotext.type_name(order)}')
    if shape.type != 'array':
        raise statuses.internal('expected slice or array type, but got: struct')
    wanted = iter(_identities(order, shape))
    plain = [item for item in patch if not isinstance(item, Mapping) or PATCH not in item]
    if not all(identity in wanted for identity in _identities(plain, shape)):
        raise statuses.internal(
            f'The order in patch list:\n{gotext.plain(plain)}\n doesn\'t match '
            f'$setElementOrder list:\n{gotext.plain(order)}\n'
        )


def _merge_lists(present: list[Any], patch: list[Any], shape: Shape) -> list[Any]:
    if not present and not patch:
        return present
    if len({isinstance(item, Mapping) for item in (*present, *patch)}) > 1:
        raise statuses.internal(
            f'list element types are not identical: [{gotext.plain(present)} {gotext.plain(patch)}]'
        )
    if not shape.merge_key:
        return _ordered(list(dict.fromkeys((*present, *patch))), patch, present, shape)
    key = shape.merge_key
    for item in (*present, *patch):
        if key not in item and item.get(PATCH) != 'replace':
            raise statuses.internal(f'map: {gotext.plain(item)} does not contain declared merge key: {key}')
    plain = [item for item in patch if PATCH not in item]
    if any(item.get(PATCH) == 'replace' for item in patch):
        return [_plain(item) for item in plain]
    gone = [item[key] for item in patch if item.get(PATCH) == 'delete']
    kept = [item for item in present if item[key] not in gone]
    merged = list(kept)
    for item in plain:
        for place, other in enumerate(merged):
            if other[key] == item[key]:
                merged[place] = merge(other, item, shape.items)
                break
        else:
            merged.append(_plain(item))
    return _ordered(merged, plain, kept, shape)


def _ordered(items: list[Any], order: Any, before: list[Any], shape: Shape) -> list[Any]:
    """Return the items that ``order`` names in that order, and between them all other items in their previous order."""
    wanted = _identities(order if isinstance(order, list) else (), shape)
    live = _identities(before, shape)
    named = sorted(
        (item for item in items if _identity(item, shape) in wanted),
        key=lambda item: wanted.index(_identity(item, shape)),
    )
    others = sorted(
        (item for item in items if _identity(item, shape) not in wanted),
        key=lambda item: live.index(_identity(item, shape)) if _identity(item, shape) in live else 0,
    )
    result = []
    while named and others:
        one, another = _identity(others[0], shape), _identity(named[0], shape)
        first = one in live and another in live and live.index(one) < live.index(another)
        result.append((others if first else named).pop(0))
    return result + named + others


def _identities(items: Iterable[Any], shape: Shape) -> list[Any]:
    return [_identity(item, shape) for item in items]


def _identity(item: Any, shape: Shape) -> Any:
    return item.get(shape.merge_key) if isinstance(item, Mapping) else item


def _plain(value: Any) -> Any:
    """Return a value without directives for lists, and without nulls that would remove a field."""
    if isinstance(value, Mapping):
        return {
            key: _plain(item)
            for key, item in value.items()
            if item is not None and not key.startswith((ORDER, DELETE)) and not _is_directive(item)
        }
    if isinstance(value, list):
        return [_plain(item) for item in value if not _is_directive(item)]
    return value


def _is_directive(value: Any) -> bool:
    return isinstance(value, Mapping) and PATCH in value
