"""
The check that schemas in CRDs are structural: required types, and keywords that are forbidden in some places.

Messages and paths are those of a real server.
"""

import copy
import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import orjson

from kopf._kits.definitions import schema_extensions as extensions
from kopf._kits.testing.schemas import gopatterns, rule_compilation, rules, schemas
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
    causes = [
        *_unsupported(schema, path),
        *_meta(schema, place),
        *_type(schema, path, why),
        *_lists(schema, path),
        *_extensions(schema, path),
    ]
    if schema.get('default') is not None:
        causes += _defaults(schema, place)
    for sub, where in _junctors(schema, path):
        causes += _junctor(sub, schema, where, path, complete=place.root)
    empty = 'must not be empty for specified object fields'
    for key, sub in (schema.get('properties') or {}).items():
        inside = place.inside_metadata or (key == 'metadata' and (place.root or bool(schema.get(extensions.EMBEDDED))))
        where = f'{path}.properties[{key}]'
        causes += _node(sub, dataclasses.replace(place, path=where, root=False, inside_metadata=inside), empty)
    unmatched = place.unmatched or ('' if schema.get(extensions.LIST_TYPE) == 'map' else path)
    causes += _node(
        schema.get('items'), Place(f'{path}.items', unmatched=unmatched), 'must not be empty for specified array items'
    )
    causes += _node(
        schema.get('additionalProperties'), Place(f'{path}.additionalProperties', unmatched=place.unmatched), empty
    )
    is_valid = all(f'.{extensions.RULES}[' in cause.field for cause in causes)
    return [*causes, *rule_compilation.problems(schema, place, is_valid=is_valid)]


def _meta(schema: Schema, place: Place) -> Iterator[Cause]:
    """Yield the errors of the fields that all objects have."""
    if not place.root and not schema.get(extensions.EMBEDDED):
        return
    properties = schema.get('properties') or {}
    for key, type in (('metadata', 'object'), ('apiVersion', 'string'), ('kind', 'string')):
        if isinstance(sub := properties.get(key), Mapping) and (given := sub.get('type') or '') != type:
            yield value_invalid(f'{place.path}.properties[{key}].type', text(given), f'must be {type}')
    metadata = properties.get('metadata')
    if not place.root or not isinstance(metadata, Mapping) or metadata.get('type') != 'object':
        return
    path, names = f'{place.path}.properties[metadata]', metadata.get('properties') or {}
    if names.keys() - {'name', 'generateName'} or any(metadata[key] for key in metadata.keys() - _NAMED):
        yield value_forbidden(
            path, 'must not specify anything other than name and generateName, but metadata is implicitly specified'
        )
    for where, sub in ((path, metadata), *((f'{path}.properties[{key}]', sub) for key, sub in names.items())):
        if sub.get('default') is not None:
            yield value_forbidden(f'{where}.default', 'must not be set in top-level metadata')


_NAMED = {'type', 'properties', 'default'}
"""The keywords of the schema of the metadata that are not refused, or are refused in another way."""


def _defaults(schema: Schema, place: Place) -> Iterator[Cause]:
    if not place.inside_metadata and any(schemas.prune(copy.deepcopy(schema['default']), schema, root=False)):
        quoted = orjson.dumps(schema['default'], option=orjson.OPT_SORT_KEYS).decode()
        yield value_invalid(f'{place.path}.default', quoted, 'must not have unknown fields')
    wrong = schemas.validate(schema['default'], _without_unions(schema), '')
    for cause in wrong or rules.default_problems(schema):
        path = f'.{cause.field}' if cause.field not in ('', '<nil>') else ''
        yield cause._replace(field=f'{place.path}.default{path}')


def _without_unions(schema: Schema) -> Schema:
    """Return the schema without the types of integers or strings, which a real server does not check in defaults."""
    result = {key: value for key, value in schema.items() if key != extensions.INT_OR_STRING}
    if isinstance(properties := schema.get('properties'), Mapping):
        result['properties'] = {key: _without_unions(sub) for key, sub in properties.items()}
    for key in ('items', 'additionalProperties'):
        if isinstance(sub := schema.get(key), Mapping):
            result[key] = _without_unions(sub)
    return result


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
    if isinstance(pattern := schema.get('pattern'), str) and (problem := gopatterns.complaint(pattern)):
        why = f'must be a valid regular expression, but isn\'t: error parsing regexp: {problem}'
        yield value_invalid(f'{place}.pattern', text(pattern), why)


def _type(schema: Schema, place: str, why: str) -> Iterator[Cause]:
    type = schema.get('type')
    if type and type not in TYPES:
        yield value_unsupported(f'{place}.type', text(type), [text(known) for known in TYPES])
    elif not type and not schema.get(extensions.INT_OR_STRING) and not schema.get(extensions.PRESERVE):
        yield value_required(f'{place}.type', why)
    if type == 'array' and schema.get('items') is None:
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
        path, why = f'{place}.{extensions.LIST_TYPE}', f'must be map if {extensions.LIST_KEYS} is non-empty'
        yield value_required(path, why) if kind is None else value_invalid(path, text(kind), why)
    items = schema.get('items')
    if kind == 'map':
        yield from _map_problems(items, keys, place)
    if kind == 'set' and isinstance(items, Mapping):
        yield from _set_problems(items, place)
    if kind in ('map', 'set') and isinstance(items, Mapping):
        yield from _item_problems(items, kind, keys or (), place)


def _map_problems(items: Any, keys: Any, place: str) -> Iterator[Cause]:
    if not keys:
        yield value_required(f'{place}.{extensions.LIST_KEYS}', f'must not be empty if {extensions.LIST_TYPE} is map')
    if not isinstance(items, Mapping):
        yield value_required(f'{place}.items', f'must have a schema if {extensions.LIST_TYPE} is map')
        return
    if items.get('type') != 'object':
        yield value_invalid(
            f'{place}.items.type',
            text(items.get('type') or ''),
            f'must be object if parent array\'s {extensions.LIST_TYPE} is map',
        )
        return
    properties, seen = items.get('properties') or {}, set[str]()
    for key in keys or ():
        if key not in properties:
            why = 'entries must all be names of item properties'
            yield value_invalid(f'{place}.{extensions.LIST_KEYS}', text(keys), why)
        elif properties[key].get('type') in ('array', 'object'):
            yield value_invalid(
                f'{place}.items.properties[{key}].type',
                text('object'),  # a real server names the type of the items
                f'must be a scalar type if parent array\'s {extensions.LIST_TYPE} is map',
            )
        if key in seen:
            yield value_invalid(f'{place}.{extensions.LIST_KEYS}', text(keys), 'must not contain duplicate entries')
        seen.add(key)


def _set_problems(items: Schema, place: str) -> Iterator[Cause]:
    why = f'must be atomic as item of a list with {extensions.LIST_TYPE}=set'
    if items.get('type') == 'object' and items.get(extensions.MAP_TYPE) != 'atomic':
        yield value_invalid(f'{place}.items.{extensions.MAP_TYPE}', 'null', why)
    elif items.get('type') == 'array' and (kind := items.get(extensions.LIST_TYPE)) not in (None, 'atomic'):
        yield value_invalid(f'{place}.items.{extensions.LIST_TYPE}', text(kind), why)


def _item_problems(items: Schema, kind: str, keys: Collection[str], place: str) -> Iterator[Cause]:
    if items.get('nullable'):
        yield value_forbidden(f'{place}.items.nullable', f'cannot be nullable when {extensions.LIST_TYPE} is {kind}')
    properties, required = items.get('properties') or {}, items.get('required') or ()
    for key in keys if kind == 'map' else ():
        if (sub := properties.get(key)) is None:
            continue
        path, why = f'{place}.items.properties[{key}]', f'this property is in {extensions.LIST_KEYS}, so it'
        if key not in required and sub.get('default') is None:
            yield value_required(f'{path}.default', f'{why} must have a default or be a required property')
        if sub.get('nullable'):
            yield value_forbidden(f'{path}.nullable', f'{why} cannot be nullable')


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
