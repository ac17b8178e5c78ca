"""CRDs made from the kinds that an operator has declared: `make_crds`."""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kopf._cogs.structs.model_adapters import ModelError
from kopf._cogs.structs.references import rank_version
from kopf._core.intents.declared_kinds import Column, Kind, Rule
from kopf._kits.definitions.schema_conversion import Schema, convert_schema
from kopf._kits.definitions.schema_extensions import INT_OR_STRING, LIST_KEYS, LIST_TYPE, RULES

COLUMN_TYPES = ('integer', 'number', 'string', 'boolean', 'date')
_PROTECTED = ('.k8s.io', '.kubernetes.io')
AGE: Mapping[str, Any] = {'name': 'Age', 'type': 'date', 'jsonPath': '.metadata.creationTimestamp'}


def make_crds(kinds: Iterable[Kind], *, warn: Callable[[str], None]) -> list[dict[str, Any]]:
    """
    Return the CRDs of the kinds, in the order of their names; all versions of a kind are in one CRD.

    Args:
        kinds: the declarations.
        warn: called with the message for each constraint that the API server will not check.

    Raises:
        ModelError: if the schema of a class cannot be expressed in a CRD, or a declaration contradicts its class.
    """
    named = sorted(kinds, key=lambda kind: (kind.group, kind.plural))
    groups = itertools.groupby(named, key=lambda kind: (kind.group, kind.plural))
    return [_make_crd(list(versions), warn) for _, versions in groups]


def _make_crd(versions: list[Kind], warn: Callable[[str], None]) -> dict[str, Any]:
    versions.sort(key=lambda kind: rank_version(kind.version), reverse=True)
    stored = next((kind for kind in versions if kind.storage), None)
    if stored is None:
        stored = next((kind for kind in versions if kind.served and kind.storage is None), None)
    if stored is None:
        raise ModelError(f"No version of {versions[0].plural}.{versions[0].group} is stored: one needs storage=True.")
    first = versions[0]
    if first.group.endswith(_PROTECTED):
        warn(
            f"{first.plural}.{first.group}: Kubernetes reserves this group: the API server refuses the CRD without the "
            f"annotation api-approved.kubernetes.io. Use a group in a domain of yours."
        )
    names: dict[str, Any] = {
        'kind': first.kind,
        'listKind': f'{first.kind}List',
        'plural': first.plural,
        'singular': first.singular,
    }
    for key, values in (
        ('shortNames', dict.fromkeys(name for kind in versions for name in kind.short_names)),
        ('categories', dict.fromkeys(name for kind in versions for name in kind.categories)),
    ):
        if values:
            names[key] = list(values)
    return {
        'apiVersion': 'apiextensions.k8s.io/v1',
        'kind': 'CustomResourceDefinition',
        'metadata': {'name': f'{first.plural}.{first.group}'},
        'spec': {
            'group': first.group,
            'names': names,
            'scope': first.scope,
            'versions': [_make_version(kind, stored=kind is stored, warn=warn) for kind in versions],
        },
    }


def _make_version(kind: Kind, *, stored: bool, warn: Callable[[str], None]) -> dict[str, Any]:
    schema = convert_schema(kind.adapter.make_schema(), model=kind.cls.__qualname__, warn=warn)
    if kind.rules:
        schema[RULES] = [_make_rule(rule) for rule in kind.rules]
    if kind.conditions:
        _add_conditions(schema)
    version: dict[str, Any] = {'name': kind.version, 'served': kind.served, 'storage': stored}
    if kind.deprecated:
        version['deprecated'] = True
        if isinstance(kind.deprecated, str):
            version['deprecationWarning'] = kind.deprecated
    version['schema'] = {'openAPIV3Schema': _order(schema)}
    subresources: dict[str, Any] = {'status': {}} if 'status' in schema['properties'] else {}
    if kind.scale:
        subresources['scale'] = dict(kind.scale)
        for name, path in kind.scale.items():
            if name != 'labelSelectorPath':
                _find_field(schema, path, f"scale[{name!r}]", kind)
    if subresources:
        version['subresources'] = subresources
    if kind.columns:
        columns = [_make_column(name, column, schema, kind) for name, column in kind.columns.items()]
        age = [] if any(each['name'] == AGE['name'] for each in columns) else [dict(AGE)]
        version['additionalPrinterColumns'] = [*columns, *age]
    return version


def _add_conditions(schema: Schema) -> None:
    """Add the conditions to the status, as Kubernetes' own kinds have them, unless the class has such a field."""
    status = schema['properties'].setdefault('status', {'type': 'object'})
    texts: Schema = {name: {'type': 'string'} for name in ('type', 'status', 'reason', 'message')}
    texts['status'] = {'type': 'string', 'enum': ['True', 'False', 'Unknown']}
    times = {
        'lastTransitionTime': {'type': 'string', 'format': 'date-time'},
        'observedGeneration': {'type': 'integer', 'format': 'int64'},
    }
    item = {'type': 'object', 'required': ['type', 'status'], 'properties': {**texts, **times}}
    keys: Schema = {LIST_TYPE: 'map', LIST_KEYS: ['type']}
    status.setdefault('properties', {}).setdefault('conditions', {'type': 'array', **keys, 'items': item})


def _order(schema: Schema) -> Schema:
    """Return the schema with the keys of all nodes in a readable order: the description and the type first."""
    nested: Schema = {}
    if 'properties' in schema:
        nested['properties'] = {name: _order(each) for name, each in schema['properties'].items()}
    for key in ('items', 'additionalProperties'):
        if isinstance(schema.get(key), Mapping):
            nested[key] = _order(schema[key])
    leading = ('description', 'type', 'nullable', 'default', 'enum')
    first: Schema = {key: schema[key] for key in leading if key in schema}
    last: Schema = {key: nested.pop(key) for key in ('properties', 'items', 'additionalProperties') if key in nested}
    return {**first, **{key: value for key, value in schema.items() if key not in first and key not in last}, **last}


def _make_rule(rule: Rule) -> dict[str, Any]:
    match rule:
        case str():
            return {'rule': rule}
        case tuple():
            return {'rule': rule[0], 'message': rule[1]}
        case _:
            return dict(rule)


def _make_column(name: str, column: Column, schema: Schema, kind: Kind) -> dict[str, Any]:
    given = {'path': column} if isinstance(column, str) else dict(column)
    path = given.pop('path', None) or given.pop('jsonPath')
    type = given.pop('type', None)
    if type is None:
        type = _find_type(_find_field(schema, path, f"columns[{name!r}]", kind))
    elif type not in COLUMN_TYPES:
        raise ModelError(f"{kind}: columns[{name!r}] has the type {type!r}; the API knows: {', '.join(COLUMN_TYPES)}.")
    return {'name': name, 'type': type, 'jsonPath': path, **given}


def _find_type(schema: Schema | None) -> str:
    if schema is None or schema.get(INT_OR_STRING):
        return 'string'
    if schema.get('format') in ('date-time', 'date'):
        return 'date'
    return str(schema['type']) if schema.get('type') in COLUMN_TYPES else 'string'


def _find_field(schema: Schema, path: str, what: str, kind: Kind) -> Schema | None:
    """
    Return the schema of the field with this path.

    The result is ``None`` if the schema cannot tell whether the field exists: the path has indices or filters, or it
    leads into a value without known properties.

    Raises:
        ModelError: if the schema has no such field.
    """
    names = path.removeprefix('.').split('.')
    if names[0] == 'metadata' or not all(re.fullmatch(r'\w+', name) for name in names):
        return None
    for index, name in enumerate(names):
        properties: Mapping[str, Any] | None = schema.get('properties')
        if properties is None:
            return None
        if name not in properties:
            raise ModelError(
                f"{kind}: {what} is {path!r}, but the class has no such field. {_suggest(name, list(properties))}"
                f"{'.'.join(['', *names[:index]]) or 'It'} has: {', '.join(properties)}."
            )
        schema = properties[name]
    return schema


def _suggest(name: str, known: Sequence[str]) -> str:
    import difflib

    found = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {found[0]!r}? " if found else ''
