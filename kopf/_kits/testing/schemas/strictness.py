"""
Strict decoding of objects of custom kinds: repeated and unknown fields.

By default, clients get warnings. By the parameter ``fieldValidation``, they can request a refusal or no checks instead.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

PARTS: Mapping[str, frozenset[str]] = {
    'ownerReferences': frozenset({'apiVersion', 'kind', 'name', 'uid', 'controller', 'blockOwnerDeletion'}),
    'managedFields': frozenset({'manager', 'operation', 'apiVersion', 'time', 'fieldsType', 'fieldsV1', 'subresource'}),
}
"""The fields of the structures in metadata."""
OPERATION = frozenset({'op', 'path', 'from', 'value'})


def duplicates(text: bytes) -> list[str]:
    """Return the messages about repeated fields in a JSON text, in their order."""
    if not text.lstrip().startswith((b'{', b'[')):
        return []  # The YAML parser reports repeated fields.
    try:
        # Every field has a colon, so equal numbers exclude repeated fields.
        if text.count(b'":') == _count(orjson.loads(text)):
            return []
        found = _repeated(json.loads(text, object_pairs_hook=_Pairs), '')
        return [f'duplicate field "{path}"' for path in dict.fromkeys(found)]
    except ValueError:  # The caller refuses the text.
        return []


def in_operations(operations: Any, text: bytes) -> list[str]:
    """Return the messages about repeated and unknown fields in the operations of a JSON patch."""
    found = [f'json patch {mistake}' for mistake in duplicates(text)]
    for index, operation in enumerate(operations if isinstance(operations, list) else ()):
        if isinstance(operation, Mapping):
            found += [f'json patch unknown field "[{index}].{key}"' for key in operation if key not in OPERATION]
    return found


def prune_metadata(meta: Mapping[str, Any]) -> Iterator[str]:
    """Remove the unknown fields from the structures in metadata, and yield their paths."""
    for name, known in PARTS.items():
        for index, part in enumerate(meta.get(name) or ()):
            for key in [key for key in part if key not in known] if isinstance(part, dict) else ():
                del part[key]
                yield f'metadata.{name}[{index}].{key}'


class _Pairs(list[tuple[str, Any]]):
    """An object as a list of all its fields, including repeated ones."""


def _repeated(value: Any, place: str) -> Iterator[str]:
    if isinstance(value, _Pairs):
        seen = set()
        for name, item in value:
            path = f'{place}.{name}' if place else name
            if name in seen:
                yield path
            seen.add(name)
            yield from _repeated(item, path)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _repeated(item, f'{place}[{index}]')


def _count(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(_count, value.values()))
    return sum(map(_count, value)) if isinstance(value, list) else 0
