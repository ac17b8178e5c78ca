"""The ``selectableFields`` of CRDs: the fields of custom resources in field selectors."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kopf._kits.testing.wire import statuses
from kopf._kits.testing.wire.statuses import Cause

LIMIT = 8
FieldsOf = Callable[[Mapping[str, Any]], Mapping[str, str]]


def paths(version: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the selectable fields of one version of a CRD, without the leading dot, as field selectors name them."""
    return tuple(item['jsonPath'].lstrip('.') for item in version.get('selectableFields') or ())


def picker(names: Sequence[str]) -> FieldsOf | None:
    """Return a function that picks these fields of an object as strings; None if there are none."""
    if not names:
        return None
    places = [(name, name.split('.')) for name in names]
    return lambda body: {name: _text(_dig(body, place)) for name, place in places}


def _dig(body: Any, place: Sequence[str]) -> Any:
    for key in place:
        body = body.get(key) if isinstance(body, Mapping) else None
    return body


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return '' if value is None or isinstance(value, (dict, list)) else str(value)


def problems(version: Mapping[str, Any], place: str) -> Iterator[Cause]:
    """Yield the errors of the selectable fields of one version of a CRD."""
    fields = version.get('selectableFields') or ()
    schema = (version.get('schema') or {}).get('openAPIV3Schema') or {}
    if len(fields) > LIMIT:
        yield Cause(place, 'FieldValueTooMany', f'Too many: {len(fields)}: must have at most {LIMIT} items')
    seen = set()
    for index, item in enumerate(fields):
        path, own = item.get('jsonPath') or '', f'{place}[{index}].jsonPath'
        if not path:
            yield statuses.value_required(own)
            continue
        if (problem := _path_problem(path, schema)) is not None:
            yield statuses.value_invalid(own, f'"{path}"', problem)
        if path in seen:
            yield Cause(own, 'FieldValueDuplicate', f'Duplicate value: "{path}"')
        seen.add(path)


def _path_problem(path: str, schema: Mapping[str, Any]) -> str | None:
    if path[0] not in '.[':
        return f'is an invalid path: expected [ or . but got: {re.split("[.[]", path)[0]}'
    if '[' in path:
        return 'is an invalid path: array notation is not allowed'
    node: Any = schema
    for key in path.lstrip('.').split('.'):
        node = (node.get('properties') or {}).get(key) if isinstance(node, Mapping) else None
    if node is None or path.startswith('.metadata'):
        return 'is an invalid path: does not refer to a valid field'
    if node.get('type') not in ('string', 'boolean', 'integer'):
        return (
            'must point to a field of type string, boolean or integer. Enum string fields and strings with formats '
            'are allowed.'
        )
    return None
