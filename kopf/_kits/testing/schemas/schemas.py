"""
Structural schemas of CRDs: pruning, defaulting, and validation of objects.

As on a real server, unknown fields are pruned first. Then, defaults are applied, and nulls of fields that are not
nullable are dropped. Finally, the object is validated. The steps before the validation change the object in place, as
it has just been decoded. Rules in CEL are evaluated afterwards: see `kopf._kits.testing.schemas.rules`.
"""

import copy
import functools
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import orjson

from kopf._kits.definitions.schema_extensions import EMBEDDED, INT_OR_STRING, LIST_KEYS, LIST_TYPE, PRESERVE
from kopf._kits.testing.kinds import metadata
from kopf._kits.testing.schemas import formats
from kopf._kits.testing.wire import gotext, statuses
from kopf._kits.testing.wire.statuses import Cause

Schema = Mapping[str, Any]

ABSENT: Any = object()
_INT32, _INT64, _SAFE = 2**31, 2**63, 2**53


def prune(value: Any, schema: Schema, path: str = '', *, root: bool = True) -> Iterator[str]:
    """Remove all fields that are not in the schema, and yield their paths."""
    if isinstance(value, list):
        if isinstance(items := schema.get('items'), Mapping):
            for index, item in enumerate(value):
                yield from prune(item, items, f'{path}[{index}]', root=False)
    elif isinstance(value, dict):
        properties, others = schema.get('properties') or {}, schema.get('additionalProperties')
        kept = ('apiVersion', 'kind', 'metadata') if root or schema.get(EMBEDDED) else ()
        for key in list(value):
            place = f'{path}.{key}' if path else key
            if key in kept:
                if key == 'metadata' and not root:
                    yield from prune(
                        value[key], {'properties': dict.fromkeys(META_FIELDS, {PRESERVE: True})}, place, root=False
                    )
            elif key in properties:
                yield from prune(value[key], properties[key], place, root=False)
            elif isinstance(others, Mapping):
                yield from prune(value[key], others, place, root=False)
            elif not others and not schema.get(PRESERVE):
                del value[key]
                yield place


META_FIELDS = (
    'name',
    'generateName',
    'namespace',
    'selfLink',
    'uid',
    'resourceVersion',
    'generation',
    'creationTimestamp',
    'deletionTimestamp',
    'deletionGracePeriodSeconds',
    'labels',
    'annotations',
    'ownerReferences',
    'finalizers',
    'managedFields',
)
"""The known fields of metadata; all others are pruned."""


def fill(value: Any, schema: Schema, *, nulls: bool = False) -> None:
    """
    Apply the defaults, and drop the nulls of fields that are neither nullable nor have a default.

    With ``nulls``, these nulls are kept, as in the result of server-side apply.
    """
    if isinstance(value, list):
        if isinstance(items := schema.get('items'), Mapping):
            for item in value:
                fill(item, items, nulls=nulls)
    elif isinstance(value, dict):
        properties = schema.get('properties') or {}
        for key, sub in properties.items():
            if key not in value or (value[key] is None and not sub.get('nullable')):
                if 'default' in sub:
                    value[key] = copy.deepcopy(sub['default'])
                elif not nulls:
                    value.pop(key, None)
            if key in value:
                fill(value[key], sub, nulls=nulls)
        if isinstance(others := schema.get('additionalProperties'), Mapping):
            for key in [key for key in value if key not in properties]:
                if value[key] is None and not others.get('nullable'):
                    if not nulls:
                        del value[key]
                else:
                    fill(value[key], others, nulls=nulls)


def validate(value: Any, schema: Schema, path: str = '', old: Any = ABSENT) -> list[Cause]:
    """Return all errors of the value, except for errors in parts that are the same in the ``old`` value."""
    causes = list(_validate(value, schema, path))
    return list(_validate(value, schema, path, old)) if causes and old is not ABSENT else causes


def _validate(value: Any, schema: Schema, path: str, old: Any = ABSENT) -> Iterator[Cause]:
    if old is not ABSENT and is_same(value, old):
        return
    if value is None and schema.get('nullable'):
        if 'enum' in schema:  # a real server refuses null even if the enum has it
            yield _refuse_value(value, schema, path)
        return
    if isinstance(value, int) and not -_INT64 <= value < _INT64:
        value = float(value)  # Go decodes integers beyond 64 bits as floats
    yield from _validate_type(value, schema, path)
    if isinstance(value, dict):
        yield from _validate_object(value, schema, path, old)
    elif isinstance(value, list):
        yield from _validate_list(value, schema, path, old)
    elif isinstance(value, str):
        yield from _validate_string(value, schema, path)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield from _validate_number(value, schema, path)
    if 'enum' in schema and not _is_listed(value, schema['enum']):
        yield _refuse_value(value, schema, path)
    yield from _validate_junctors(value, schema, path)


def _is_listed(value: Any, values: Collection[Any]) -> bool:
    if not isinstance(value, bool):
        return value in values
    return any(each is value for each in values)  # in Python, true equals 1


def _refuse_value(value: Any, schema: Schema, path: str) -> Cause:
    texts = (_text(item) for item in schema['enum'])
    return statuses.value_unsupported(path, _text(value), [each if each[0] == '"' else f'"{each}"' for each in texts])


def _validate_type(value: Any, schema: Schema, path: str) -> Iterator[Cause]:
    types = ('integer', 'string') if schema.get(INT_OR_STRING) else (schema.get('type'),)
    if types == (None,):
        return
    got, format = _type_name(value), schema.get('format')
    fits = (
        got in types
        or (got == 'integer' and 'number' in types)
        or (got == 'number' and 'integer' in types and value.is_integer() and abs(value) < _SAFE)
    )
    if format and got not in ('string', 'array') and not fits:
        own = {'integer': 'int64', 'number': 'float64'}.get(got, '')
        if own != format:
            yield statuses.value_mistyped(path, f'"{own}"', f'{path} in body must be of type {format}: "{own}"')
    elif not fits and not (format and got in ('string', 'array') and not {'number', 'integer'} & {*types}):
        yield statuses.value_mistyped(
            path, f'"{got}"', f'{path} in body must be of type {",".join(map(str, types))}: "{got}"'
        )
    if types == ('integer',) and got in ('integer', 'number'):
        limit = _INT32 if format == 'int32' else _INT64
        if not fits or not -limit <= value < limit:
            kind = f'with format {format}' if format else '(default format)'
            yield statuses.value_invalid('<nil>', '""', f'Checked value must be of type integer {kind} in {path}')


def _validate_object(value: dict[str, Any], schema: Schema, path: str, old: Any) -> Iterator[Cause]:
    for key in schema.get('required') or ():
        if key not in value:
            yield statuses.value_required(_join(path, key))
    if len(value) > schema.get('maxProperties', len(value)):
        yield _too_many(path, len(value), schema['maxProperties'])
    if len(value) < schema.get('minProperties', 0):
        wanted = f'{path} in body should have at least {schema["minProperties"]} properties'
        yield statuses.value_invalid(path, str(len(value)), wanted)
    if schema.get(EMBEDDED):
        for key in ('apiVersion', 'kind'):
            if key not in value:
                yield statuses.value_required(_join(path, key))
            elif not value[key]:
                yield statuses.value_required(_join(path, key), 'must not be empty')
        if isinstance(meta := value.get('metadata'), dict):
            for cause in metadata.problems(meta, custom=True):
                yield cause._replace(field=_join(path, cause.field))
    properties, others = schema.get('properties') or {}, schema.get('additionalProperties')
    before = old if isinstance(old, dict) else {}
    for key, item in value.items():
        if key in properties:
            if path or key not in ('apiVersion', 'kind', 'metadata'):
                yield from _validate(item, properties[key], _join(path, key), before.get(key, ABSENT))
        elif isinstance(others, Mapping):
            yield from _validate(item, others, _join(path, key), before.get(key, ABSENT))


def _validate_list(value: list[Any], schema: Schema, path: str, old: Any) -> Iterator[Cause]:
    if isinstance(items := schema.get('items'), Mapping):
        before = by_keys(old, schema) if isinstance(old, list) else {}
        for index, item in enumerate(value):
            yield from _validate(item, items, f'{path}[{index}]', before.get(keys_of(item, schema), ABSENT))
    if len(value) > schema.get('maxItems', len(value)):
        yield _too_many(path, len(value), schema['maxItems'])
    if len(value) < schema.get('minItems', 0):
        wanted = f'{path} in body should have at least {schema["minItems"]} items'
        yield statuses.value_invalid(path, str(len(value)), wanted)
    seen: dict[str, bool] = {}
    for index, item in enumerate(value):
        match schema.get(LIST_TYPE):
            case 'set':
                identity = item
            case 'map' if isinstance(item, dict):
                identity = {key: item[key] for key in schema.get(LIST_KEYS, ()) if key in item}
            case 'map':
                if item is not None:
                    yield statuses.value_invalid(
                        f'{path}[{index}]', _text(item), 'must be an object for an array of list-type map'
                    )
                continue
            case _:
                return
        text = orjson.dumps(identity, option=orjson.OPT_SORT_KEYS).decode()
        if seen.get(text) is False:
            yield Cause(f'{path}[{index}]', 'FieldValueDuplicate', f'Duplicate value: {text}')
        seen[text] = text in seen


def _validate_string(value: str, schema: Schema, path: str) -> Iterator[Cause]:
    if len(value) > schema.get('maxLength', len(value)):
        yield Cause(path, 'FieldValueTooLong', f'Too long: may not be more than {schema["maxLength"]} bytes')
    elif len(value) < schema.get('minLength', 0):
        wanted = f'{path} in body should be at least {schema["minLength"]} chars long'
        yield statuses.value_invalid(path, _text(value), wanted)
    elif 'pattern' in schema and not _pattern(schema['pattern']).search(value):
        yield statuses.value_invalid(path, _text(value), f"{path} in body should match '{schema['pattern']}'")
    format = schema.get('format', '')
    if format and not formats.is_formatted(value, format):
        yield statuses.value_mistyped(path, _text(value), f'{path} in body must be of type {format}: {_text(value)}')


def _validate_number(value: float, schema: Schema, path: str) -> Iterator[Cause]:
    if 'minimum' in schema:
        minimum, strict = schema['minimum'], schema.get('exclusiveMinimum')
        if value < minimum or (strict and value == minimum):
            wanted = f'{path} in body should be greater than {"" if strict else "or equal to "}{minimum}'
            yield statuses.value_invalid(path, _text(value), wanted)
    if 'maximum' in schema:
        maximum, strict = schema['maximum'], schema.get('exclusiveMaximum')
        if value > maximum or (strict and value == maximum):
            wanted = f'{path} in body should be less than {"" if strict else "or equal to "}{maximum}'
            yield statuses.value_invalid(path, _text(value), wanted)
    if 'multipleOf' in schema and value % schema['multipleOf']:
        yield statuses.value_invalid(
            path, _text(value), f'{path} in body should be a multiple of {schema["multipleOf"]}'
        )


def _validate_junctors(value: Any, schema: Schema, path: str) -> Iterator[Cause]:
    def complain(text: str) -> Cause:
        return statuses.value_invalid('<nil>', '""', f'"{path}" must {text}')

    for sub in schema.get('allOf') or ():
        yield from _validate(value, sub, path)
    if alternatives := schema.get('oneOf'):
        results = [validate(value, sub, path) for sub in alternatives]
        if (count := results.count([])) != 1:
            found = 'Found none valid' if not count else f'Found {count} valid alternatives'
            yield complain(f'validate one and only one schema (oneOf). {found}')
            yield from min(results, key=len) if not count else ()
    if alternatives := schema.get('anyOf'):
        results = [validate(value, sub, path) for sub in alternatives]
        if [] not in results:
            yield complain('validate at least one schema (anyOf)')
            yield from min(results, key=len)
    if 'not' in schema and not validate(value, schema['not'], path):
        yield complain('not validate the schema (not)')


def is_same(one: Any, another: Any) -> bool:
    """Check whether both values are the same; true and 1 are not, unlike in Python."""
    return bool(one == another) and orjson.dumps(one, option=orjson.OPT_SORT_KEYS) == orjson.dumps(
        another, option=orjson.OPT_SORT_KEYS
    )


def keys_of(item: Any, schema: Schema) -> Any:
    """Return the key of an item of a list with this schema; None if it has none."""
    if schema.get(LIST_TYPE) != 'map' or not isinstance(item, dict):
        return None
    return orjson.dumps([item.get(key) for key in schema.get(LIST_KEYS, ())])


def by_keys(items: list[Any], schema: Schema) -> dict[Any, Any]:
    """Return the items of a list by their keys."""
    known = {keys_of(item, schema): item for item in items}
    known.pop(None, None)
    return known


def validate_status(body: Mapping[str, Any], schema: Schema, old: Any = ABSENT) -> list[Cause]:
    """Return all errors of the status of an object, with the messages of the ``/status`` subresource."""
    sub = (schema.get('properties') or {}).get('status')
    if 'status' not in body or not isinstance(sub, Mapping):
        return []
    before = old.get('status', ABSENT) if old is not ABSENT else ABSENT
    return [_as_of_status(cause) for cause in validate(body['status'], sub, 'status', before)]


def _as_of_status(cause: Cause) -> Cause:
    field, message = cause.field, cause.message
    if field == '<nil>':
        return Cause('status', cause.reason, message.replace(' in status.', ' in '))
    return cause._replace(
        message=message.replace(f'{field} in body', f'{field.removeprefix("status").removeprefix(".")} in body')
    )


def _type_name(value: Any) -> str:
    match value:
        case None:
            return 'null'
        case bool():
            return 'boolean'
        case int():
            return 'integer'
        case float():
            return 'number'
        case str():
            return 'string'
        case list():
            return 'array'
    return 'object'


def _too_many(path: str, count: int, limit: int) -> Cause:
    return Cause(path, 'FieldValueTooMany', f'Too many: {count}: must have at most {limit} items')


def _text(value: Any) -> str:
    if isinstance(value, float):
        return gotext.plain(value)
    return orjson.dumps(value).decode()


def _join(path: str, key: str) -> str:
    return f'{path}.{key}' if path else key


@functools.lru_cache(maxsize=1000)
def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error:  # The syntax is Go's: patterns that Python cannot compile are accepted.
        return re.compile('')
