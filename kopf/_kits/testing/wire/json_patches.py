"""
JSON patches (RFC 6902) and merge patches (RFC 7386), as the API server applies them.

Why not a library? A patch must never change the object that it is applied to, and the server deviates from the standard
in small ways (``replace`` of an absent key adds it).
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from kopf._kits.testing.wire import statuses


class PatchError(Exception):
    """Raised when the patch does not fit the document, or one of its tests fails."""


def merge(document: Any, patch: Any) -> Any:
    """
    Return the document with the merge patch applied; nulls remove keys.

    Unchanged parts are shared with the document.
    """
    # By the standard, nulls in lists stay; the API server drops keys with nulls there, too.
    if isinstance(patch, list):
        return [merge({}, item) for item in patch]
    if not isinstance(patch, Mapping):
        return patch
    result = dict(document) if isinstance(document, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def apply(document: Any, operations: Sequence[Mapping[str, Any]]) -> Any:
    """
    Return a copy of the document with all operations applied.

    Raises:
        PatchError: One of the operations cannot be applied.
    """
    root = {'': copy.deepcopy(document)}
    for operation in operations:
        try:
            _apply_one(root, operation)
        except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
            raise PatchError(f'{operation}: {error}') from error
    return root['']


def unread(why: str | None) -> statuses.Refusal:
    """Return a 400 in the words of the lenient decoder, which ignores unknown fields in the patch."""
    return statuses.bad_request('Invalid JSON Patch' if why is None else why)


def check_operations(value: Any, *, lenient: bool = False) -> list[Mapping[str, Any]]:
    """
    Return the operations of a decoded JSON patch; refuse anything else (400).

    Args:
        value: The decoded body.
        lenient: The client has requested to ignore unknown fields. Then, a real server decodes the patch only once, and
            has another message.
    """
    if value is None:
        return []
    if lenient:
        if not isinstance(value, list):
            raise unread(f'json: cannot unmarshal {json_type(value)} into Go value of type jsonpatch.Patch')
        for item in value:
            if not isinstance(item, Mapping | None):
                raise unread(f'json: cannot unmarshal {json_type(item)} into Go value of type jsonpatch.Operation')
        return value
    if not isinstance(value, list):
        raise statuses.bad_request(
            'error decoding patch: json: cannot unmarshal '
            f'{json_type(value)} into Go value of type []handlers.jsonPatchOp'
        )
    for item in value:
        if item is not None and not isinstance(item, Mapping):
            raise statuses.bad_request(
                'error decoding patch: json: cannot unmarshal '
                f'{json_type(item)} into Go value of type handlers.jsonPatchOp'
            )
        for key in ('op', 'path', 'from'):
            if not isinstance(part := (item or {}).get(key), (str, type(None))):
                raise statuses.bad_request(
                    'error decoding patch: json: cannot unmarshal '
                    f'{json_type(part)} into Go struct field jsonPatchOp.{key} of type string'
                )
    return value


def json_type(value: Any) -> str:
    """Return the name of the type of a JSON value in messages."""
    match value:
        case None:
            return 'null'
        case bool():
            return 'bool'
        case int() | float():
            return 'number'
        case str():
            return 'string'
        case list():
            return 'array'
    return 'object'


def _apply_one(root: dict[str, Any], operation: Mapping[str, Any]) -> None:
    path = operation['path']
    match operation['op']:
        case 'add':
            _add(root, path, copy.deepcopy(operation.get('value')))
        case 'replace':
            parent, key = _locate(root, path)
            if isinstance(parent, list):
                parent[_index(parent, key)] = copy.deepcopy(operation.get('value'))
            else:
                parent[key] = copy.deepcopy(operation.get('value'))
        case 'remove':
            _remove(root, path)
        case 'test':
            if not _is_same(found := _get(root, path, None), wanted := operation.get('value')):
                raise ValueError(f'{found!r} is not {wanted!r}')
        case 'copy':
            _add(root, path, copy.deepcopy(_get(root, operation['from'], None)))
        case 'move':
            _add(root, path, _remove(root, operation['from']))
        case other:
            raise ValueError(f'unknown operation {other!r}')


def _is_same(one: Any, another: Any) -> bool:
    """Check whether both values are the same JSON: 2 and 2.0 are not, and neither are 1 and true."""
    return bool(one == another) and orjson.dumps(one, option=orjson.OPT_SORT_KEYS) == orjson.dumps(
        another, option=orjson.OPT_SORT_KEYS
    )


_ABSENT = object()


def _get(root: dict[str, Any], path: str, default: Any = _ABSENT) -> Any:
    parent, key = _locate(root, path)
    if isinstance(parent, list):
        return parent[_index(parent, key)]
    return parent[key] if default is _ABSENT else parent.get(key, default)


def _add(root: dict[str, Any], path: str, value: Any) -> None:
    parent, key = _locate(root, path)
    if not isinstance(parent, list):
        parent[key] = value
    elif key == '-':
        parent.append(value)
    elif -len(parent) - 1 <= (index := int(key)) <= len(parent):
        parent.insert(index if index >= 0 else index + len(parent) + 1, value)
    else:
        raise IndexError(f'no place {key} in a list of {len(parent)}')


def _remove(root: dict[str, Any], path: str) -> Any:
    parent, key = _locate(root, path)
    return parent.pop(_index(parent, key)) if isinstance(parent, list) else parent.pop(key)


def _locate(root: dict[str, Any], path: str) -> tuple[Any, str]:
    if path and not path.startswith('/'):
        raise ValueError('a path begins with a slash')
    *parents, last = ['', *(part.replace('~1', '/').replace('~0', '~') for part in path.split('/')[1:])]
    node: Any = root
    for part in parents:
        node = node[_index(node, part)] if isinstance(node, list) else node[part]
    if not isinstance(node, (dict, list)):
        raise TypeError(f'{json_type(node)} has no members')
    return node, last


def _index(items: list[Any], key: str) -> int:
    index = int(key)
    if not -len(items) <= index < len(items):
        raise IndexError(f'no item {key} in a list of {len(items)}')
    return index
