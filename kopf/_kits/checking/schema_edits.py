"""
Edits that a user can make in the spec of an object, derived from its schema and its present values.

The edits use extreme values: limits, zero, empty values, other members of enums. For fields that the schema does not
describe, they use variations of the present values. If the API refuses a value, its plan is skipped.
"""

import contextlib
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from kopf._kits.checking.plans import Edit, Target
from kopf._kits.definitions.schema_extensions import INT_OR_STRING

MAX_DEPTH = 4
MAX_STEP = 3
"""The largest change of a number without limits: larger numbers could result in thousands of children."""

_EMPTY: Mapping[str, Any] = {}


def iter_edits(target: Target, body: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[Edit]:
    """Yield the edits of one object: each changes one field of its spec."""
    properties = schema.get('properties') or _EMPTY
    spec = body.get('spec')
    if isinstance(spec, Mapping):
        described = properties.get('spec') or _EMPTY
        for path, value in _iter_changes(spec, described, ()):
            yield Edit(target, {'spec': _nest(path, value)})


def revert(edit: Edit, body: Mapping[str, Any]) -> Edit:
    """Return the edit that restores the fields to their values in the object."""
    return Edit(edit.target, _revert(edit.patch, body))


def _revert(patch: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in patch.items():
        present = body.get(key)
        if isinstance(value, Mapping) and isinstance(present, Mapping):
            found[key] = _revert(value, present)
        else:
            found[key] = present
    return found


def _iter_changes(
    values: Mapping[str, Any],
    schema: Mapping[str, Any],
    path: tuple[str, ...],
) -> Iterator[tuple[tuple[str, ...], Any]]:
    properties: Mapping[str, Any] = schema.get('properties') or _EMPTY
    required = frozenset(schema.get('required') or ())
    for name in [*values, *(name for name in properties if name not in values)]:
        here, present, described = (*path, name), values.get(name), properties.get(name) or _EMPTY
        if isinstance(present, Mapping) and len(here) < MAX_DEPTH:
            yield from _iter_changes(present, described, here)
        else:
            for value in _iter_values(present, described):
                if value != present or isinstance(value, bool) is not isinstance(present, bool):
                    yield here, value
        if name in values and name not in required:
            yield here, None


def _iter_values(present: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
    """Yield other values for a field; first, the values that operators most often handle wrongly."""
    if schema.get('enum'):
        yield from schema['enum']
        return
    if schema.get(INT_OR_STRING) and present is None:
        return
    match schema.get('type') or _name_type(present):
        case 'boolean':
            yield from (True, False)
        case 'integer':
            yield from _iter_numbers(present, schema, 1)
        case 'number':
            yield from _iter_numbers(present, schema, 0.5)
        case 'string':
            yield from _iter_texts(present, schema)
        case 'array':
            yield from _iter_lists(present, schema)
        case 'object':
            yield from _iter_objects(present, schema)


def _name_type(value: Any) -> str:
    for kind, name in ((bool, 'boolean'), (int, 'integer'), (float, 'number'), (str, 'string'), (list, 'array')):
        if isinstance(value, kind):
            return name
    return ''


def _iter_numbers(present: Any, schema: Mapping[str, Any], step: float) -> Iterator[Any]:
    base = present if isinstance(present, (int, float)) else schema.get('default', 1)
    lowest, highest = schema.get('minimum'), schema.get('maximum')
    yield 0 if lowest is None else lowest
    yield base + step
    yield base - step if lowest is None or base - step >= lowest else base + 2 * step
    if highest is not None and highest <= base + 10 * step:
        yield highest
    yield base + MAX_STEP * step


def _iter_texts(present: Any, schema: Mapping[str, Any]) -> Iterator[str]:
    if not schema.get('minLength'):
        yield ''
    if not schema.get('format') and not schema.get('pattern'):
        yield f'{present}x' if isinstance(present, str) and present else 'x'
    elif isinstance(present, str) and present:
        yield from itertools.islice(_iter_similar(present, schema.get('pattern') or ''), 1)


def _iter_similar(present: str, pattern: str) -> Iterator[str]:
    """Yield similar texts that the API probably accepts; if it refuses one, the plan is skipped."""
    last = present[-1]
    candidates = [present[:-1] + ('2' if last != '2' else '3')] if last.isdigit() else []
    for text in [*candidates, *([f'{present}{last}', present[:-1]] if pattern else [])]:
        with contextlib.suppress(re.error):  # patterns are of ECMA 262, so some of them are invalid in Python
            if re.search(pattern, text):
                yield text


def _iter_lists(present: Any, schema: Mapping[str, Any]) -> Iterator[list[Any]]:
    items = list(present) if isinstance(present, list) else []
    described = schema.get('items') or _EMPTY
    if not schema.get('minItems'):
        yield []
    if len(items) > 1:
        yield items[1:]
        yield items[::-1]
    sample = items[-1] if items else None
    for value in _iter_values(sample, described):
        if value not in items:
            yield [*items, value]
            if items:
                yield [value, *items[1:]]
            return


def _iter_objects(present: Any, schema: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield an object with all required properties for a field that is unset."""
    if not isinstance(present, Mapping):
        properties: Mapping[str, Any] = schema.get('properties') or _EMPTY
        filled = {name: _get_sample(properties.get(name) or _EMPTY) for name in schema.get('required') or properties}
        yield {name: value for name, value in filled.items() if value is not None}


def _get_sample(schema: Mapping[str, Any]) -> Any:
    return schema['default'] if 'default' in schema else next(_iter_values(None, schema), None)


def _nest(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    nested: Any = value
    for name in reversed(path):
        nested = {name: nested}
    return dict(nested)
