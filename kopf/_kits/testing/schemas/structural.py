"""
The check that schemas in CRDs are structural: required types, and keywords that are forbidden in some places.

Messages and paths are those of a real server.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from kopf._kits.definitions import schema_extensions as extensions
from kopf._kits.testing.schemas import rule_compilation, rules, schemas
from kopf._kits.testing.schemas.rule_compilation import Place
from kopf._kits.testing.wire.statuses import (
    Cause,
    text,
    value_forbidden,
    value_invalid,
    value_required,
    value_unsupported,
)

Schema = Mapping[str, Any]

TYPES = ('array', 'boolean', 'integer', 'number', 'object', 'string')
LIST_TYPES, MAP_TYPES = ('atomic', 'set', 'map'), ('atomic', 'granular')
_UNSUPPORTED = ('$ref', 'id', 'dependencies', 'patternProperties', 'definitions')
_JUNCTORS = ('allOf', 'anyOf', 'oneOf')


def problems(schema: Schema, place: str) -> Iterator[Cause]:
    """Yield all errors of the schema of a version."""
    if schema.get('nullable'):
        yield value_forbidden(f'{place}.nullable', 'nullable cannot be true at the root')
    if schema.get('additionalProperties') is not None:
        yield value_forbidden(f'{place}.additionalProperties', 'must not be used at the root')
    yield from _node(schema, Place(place, root=True), 'must not be empty at the root')
    if (type := schema.get('type')) and type != 'object':
        yield value_invalid(f'{place}.type', text(type), 'must be object at the root')


def _node(schema: Any, place: Place, why: str) -> list[Cause]:
    if not isinstance(schema, Mapping):
        return []
    path = place.path
    causes = [*_unsupported(schema, path), *_type(schema, path, why), *_lists(schema, path), *_extensions(schema, path)]
    if schema.get('default') is not None:
        causes += _defaults(schema, path)
    for sub, where in _junctors(schema, path):
        causes += _junctor(sub, schema, where, path, complete=place.root)
    empty = 'must not be empty for specified object fields'
    for key, sub in (schema.get('properties') or {}).items():
        causes += _node(sub, dataclasses.replace(place, path=f'{path}.properties[{key}]', root=False), empty)
    unmatched = place.unmatched or ('' if schema.get(extensions.LIST_TYPE) == 'map' else path)
    causes += _node(
        schema.get('items'), Place(f'{path}.items', unmatched=unmatched), 'must not be empty for specified array items'
    )
    causes += _node(
        schema.get('additionalProperties'), Place(f'{path}.additionalProperties', unmatched=place.unmatched), empty
    )
    is_valid = all(f'.{extensions.RULES}[' in cause.field for cause in causes)
    return [*causes, *rule_compilation.problems(schema, place, is_valid=is_valid)]


def _defaults(schema: Schema, place: str) -> Iterator[Cause]:
    wrong = schemas.validate(schema['default'], schema, '')
    for cause in wrong or rules.default_problems(schema):
        path = f'.{cause.field}' if cause.field not in ('', '<nil>') else ''
        yield cause._replace(field=f'{place}.default{path}')


def _unsupported(schema: Schema, place: str) -> Iterator[Cause]:
    for key in _UNSUPPORTED:
        if schema.get(key):
            yield value_forbidden(f'{place}.{key}', f'{key} is not supported')
    if schema.get('uniqueItems'):
        yield value_forbidden(
            f'{place}.uniqueItems', 'uniqueItems cannot be set to true since the runtime complexity becomes quadratic'
        )
    if schema.get('properties') and schema.get('additionalProperties') is not None:
        yield value_forbidden(
            f'{place}.additionalProperties', 'additionalProperties and properties are mutual exclusive'
        )
    if isinstance(schema.get('items'), list):
        yield value_forbidden(f'{place}.items', 'items must be a schema object and not an array')
    if isinstance(pattern := schema.get('pattern'), str):
        try:
            re.compile(pattern)
        except re.error as error:
            if error.msg.startswith('missing )'):
                yield value_invalid(
                    f'{place}.pattern',
                    text(pattern),
                    'must be a valid regular expression, but isn\'t: '
                    f'error parsing regexp: missing closing ): `{pattern}`',
                )


def _type(schema: Schema, place: str, why: str) -> Iterator[Cause]:
    type = schema.get('type')
    if type and type not in TYPES:
        yield value_unsupported(f'{place}.type', text(type), [text(known) for known in TYPES])
    elif not type and not schema.get(extensions.INT_OR_STRING) and not schema.get(extensions.PRESERVE):
        yield value_required(f'{place}.type', why)
    if type == 'array' and not schema.get('items'):
        yield value_required(f'{place}.items', 'must be specified')


def _lists(schema: Schema, place: str) -> Iterator[Cause]:
    type, kind, keys = schema.get('type'), schema.get(extensions.LIST_TYPE), schema.get(extensions.LIST_KEYS)
    if kind is not None:
        if type != 'array':
            yield value_invalid(
                f'{place}.type', text(type or ''), f'must be array if {extensions.LIST_TYPE} is specified'
            )
        if kind not in LIST_TYPES:
            yield value_unsupported(f'{place}.{extensions.LIST_TYPE}', text(kind), [text(one) for one in LIST_TYPES])
    if keys and kind != 'map':
        yield value_required(f'{place}.{extensions.LIST_TYPE}', f'must be map if {extensions.LIST_KEYS} is non-empty')
    if kind != 'map':
        return
    if not keys:
        yield value_required(f'{place}.{extensions.LIST_KEYS}', f'must not be empty if {extensions.LIST_TYPE} is map')
    items = schema.get('items')
    if not isinstance(items, Mapping):
        yield value_required(f'{place}.items', f'must have a schema if {extensions.LIST_TYPE} is map')
    elif items.get('type') != 'object':
        yield value_invalid(
            f'{place}.items.type',
            text(items.get('type') or ''),
            f'must be object if parent array\'s {extensions.LIST_TYPE} is map',
        )


def _extensions(schema: Schema, place: str) -> Iterator[Cause]:
    type = schema.get('type')
    if schema.get(extensions.PRESERVE) is False:
        yield value_invalid(f'{place}.{extensions.PRESERVE}', 'false', 'must be true or undefined')
    if (kind := schema.get(extensions.MAP_TYPE)) is not None:
        if type != 'object':
            yield value_invalid(
                f'{place}.type', text(type or ''), f'must be object if {extensions.MAP_TYPE} is specified'
            )
        if kind not in MAP_TYPES:
            yield value_unsupported(f'{place}.{extensions.MAP_TYPE}', text(kind), [text(one) for one in MAP_TYPES])
    if schema.get(extensions.EMBEDDED):
        if not schema.get('properties') and not schema.get(extensions.PRESERVE):
            yield value_required(
                f'{place}.properties',
                f'must not be empty if {extensions.EMBEDDED} is true without {extensions.PRESERVE}',
            )
        if type != 'object':
            yield value_invalid(f'{place}.type', text(type or ''), f'must be object if {extensions.EMBEDDED} is true')


def _junctors(schema: Schema, place: str) -> Iterator[tuple[Any, str]]:
    for name in _JUNCTORS:
        for index, sub in enumerate(schema.get(name) or ()):
            yield sub, f'{place}.{name}[{index}]'
    if 'not' in schema:
        yield schema['not'], f'{place}.not'


def _junctor(sub: Any, outer: Any, place: str, base: str, *, complete: bool) -> Iterator[Cause]:
    """Yield the errors of a branch of ``allOf``, ``anyOf``, ``oneOf`` or ``not``; ``outer`` is the enclosing schema."""
    if not isinstance(sub, Mapping):
        return
    if sub.get('type') and not outer.get(extensions.INT_OR_STRING):
        yield value_forbidden(f'{place}.type', 'must be empty to be structural')
    if sub.get('default') is not None:
        yield value_forbidden(f'{place}.default', 'must be undefined to be structural')
    for key in ('title', 'description'):
        if sub.get(key):
            yield value_forbidden(f'{place}.{key}', 'must be empty to be structural')
    if sub.get('nullable'):
        yield value_forbidden(f'{place}.nullable', 'must be false to be structural')
    if sub.get(extensions.RULES):
        yield value_forbidden(f'{place}.{extensions.RULES}', 'must be empty to be structural')
    properties = outer.get('properties') or {} if isinstance(outer, Mapping) else {}
    for key, inner in (sub.get('properties') or {}).items():
        where = f'{place}.properties[{key}]'
        if key not in properties and complete:
            yield value_required(f'{base}.properties[{key}]', f'because it is defined in {where}')
        else:
            yield from _junctor(inner, properties.get(key, {}), where, f'{base}.properties[{key}]', complete=complete)
