"""
Tables: the columns of ``kubectl get``, defined by CRDs as printer columns, or recorded for built-in kinds.

The recorded part is made by ``scripts/record_tables.py``; the cells of built-in kinds are computed in `cells`.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import orjson

from kopf._kits.testing.data import unpack
from kopf._kits.testing.kinds import cells
from kopf._kits.testing.kinds.jsonpaths import find
from kopf._kits.testing.kinds.kinds import Kind
from kopf._kits.testing.wire import timestamps

Body = Mapping[str, Any]

NAME_TEXT = (
    'Name must be unique within a namespace. Is required when creating resources, although some resources may '
    'allow a client to request the generation of an appropriate name automatically. Name is primarily '
    'intended for creation idempotence and configuration definition. Cannot be updated. More info: '
    'https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names'
)
AGE_TEXT = (
    'CreationTimestamp is a timestamp representing the server time when this object was created. It is not '
    'guaranteed to be set in happens-before order across separate operations. Clients may not set this value. '
    'It is represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. '
    'More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata'
)


class Column(NamedTuple):
    """One column: its definition as it is sent, and the function that computes the cell of an object."""

    definition: Mapping[str, Any]
    cell: Callable[[Body], Any]


@functools.lru_cache(maxsize=1000)
def columns(kind: Kind) -> tuple[Column, ...]:
    """Return the columns of a kind."""
    first = _column('Name', 'string', lambda body: body['metadata'].get('name', ''), text=NAME_TEXT, format='name')
    if kind.custom:
        age = {'name': 'Age', 'type': 'date', 'jsonPath': '.metadata.creationTimestamp', 'description': AGE_TEXT}
        return first, *(_declared(column) for column in kind.columns or [age])
    name = f'{kind.plural}.{kind.group}/{kind.version}'
    return tuple(
        Column(definition, cells.of(kind.plural, definition['name']))
        for definition in kind.columns or _recorded()[name]
    )


@functools.cache
def _recorded() -> dict[str, list[dict[str, Any]]]:
    result: dict[str, list[dict[str, Any]]] = unpack('tables.json.gz')
    return result


def _declared(column: Mapping[str, Any]) -> Column:
    path, type = column.get('jsonPath', ''), column.get('type', 'string')

    def cell(body: Body) -> Any:
        values = list(find(body, path))
        if not values or values[0] is None:
            return None
        return _printable(values, type)

    text = column.get('description') or f'Custom resource definition column (in JSONPath format): {path}'
    return _column(
        column['name'], type, cell, priority=column.get('priority', 0), text=text, format=column.get('format', '')
    )


def _printable(values: list[Any], type: str) -> Any:
    value = values[0]
    match type:
        case 'integer':
            return int(value) if isinstance(value, (int, float)) else None
        case 'number':
            return float(value) if isinstance(value, (int, float)) else None
        case 'boolean':
            return value if isinstance(value, bool) else None
        case 'date':
            return timestamps.age(str(value))
    if isinstance(value, (dict, list)):
        return orjson.dumps(value).decode()
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _column(
    name: str,
    type: str,
    cell: Callable[[Body], Any],
    *,
    priority: int = 0,
    text: str = '',
    format: str = '',
) -> Column:
    return Column(
        {'name': name, 'type': type, 'format': format, 'description': text or name, 'priority': priority}, cell
    )
