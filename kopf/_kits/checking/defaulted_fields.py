"""
Fields of objects whose values are defaults of the API server: no client has set them.

Some defaults are derived from other fields when the object is created, and do not change when those fields change: for
example, the pull policy of an image is derived from its tag. So an edited object and a new one can have different
defaults. This is not a mistake of the operator.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

_OTHERS = frozenset({'apiVersion', 'kind', 'metadata', 'status'})
_NAMING = frozenset({'name', 'type', 'uid'})
"""The fields by which the items of lists are compared."""


class Defaulted(NamedTuple):
    """The value of a field that no client has set."""

    value: Any


def unwrap(value: Any) -> Any:
    """Return the value of a field, whether or not a client has set it."""
    return value.value if isinstance(value, Defaulted) else value


def mark(body: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return the object with its defaulted values wrapped as `Defaulted`.

    Only nested fields are wrapped, and only if clients own other fields of the same parent.
    """
    entries = body.get('metadata', {}).get('managedFields') or ()
    owned = [entry.get('fieldsV1') or {} for entry in entries]
    return {key: value if key in _OTHERS else _mark(value, _descend(owned, f'f:{key}')) for key, value in body.items()}


def _mark(value: Any, owned: Sequence[Mapping[str, Any]]) -> Any:
    """Wrap the parts of a value that are in none of the sets of owned fields."""
    if not owned or not all(owned):  # an empty set of fields means that the client owns the whole value
        return value
    if isinstance(value, Mapping):
        marked = {}
        for key, item in value.items():
            below = _descend(owned, f'f:{key}')
            marked[key] = _mark(item, below) if below or key in _NAMING else Defaulted(item)
        return marked
    if isinstance(value, list):
        return [_mark(item, _find(owned, item)) for item in value]
    return value


def _descend(owned: Sequence[Mapping[str, Any]], key: str) -> list[Mapping[str, Any]]:
    return [fields[key] for fields in owned if key in fields]


def _find(owned: Sequence[Mapping[str, Any]], item: Any) -> list[Mapping[str, Any]]:
    """Return the sets of owned fields of an item of a list; some of the item's fields identify it."""
    found = []
    for fields in owned:
        for key, below in fields.items():
            if key.startswith('k:') and isinstance(item, Mapping):
                if all(item.get(name) == value for name, value in orjson.loads(key[2:]).items()):
                    found.append(below)
    return found
