"""
Shapes: the rules of a schema for merging and ownership of fields, in a form that is fast to traverse.

There are two dialects of schemas: OpenAPI for built-in kinds, and structural schemas for CRDs. The modules of patches
and managed fields use only shapes. A shape is created when it is needed first, because schemas can be recursive, and
most parts of them are never needed.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from kopf._kits.definitions.schema_extensions import (
    EMBEDDED,
    INT_OR_STRING,
    LIST_KEYS,
    LIST_TYPE,
    MAP_TYPE,
    MERGE_KEY,
    PATCH_STRATEGY,
    PRESERVE,
)
from kopf._kits.testing.kinds import recordings
from kopf._kits.testing.kinds.recordings import Schema

ATOMIC, GRANULAR, SET, MAP = 'atomic', 'granular', 'set', 'map'

ZEROS: Mapping[str, Any] = {'string': '', 'integer': 0, 'number': 0, 'boolean': False}
"""The empty values of types, which Go does not distinguish from absent ones."""


class Shape:
    """
    The rules for one place of an object: for the whole object, a field, or an item.

    ``type`` is that of JSON Schema, empty if any value is allowed. ``relation`` says how values are merged: `ATOMIC`,
    `GRANULAR` (only maps), `SET`, or `MAP` (only lists). With `MAP`, the ``keys`` identify the items of a list.
    ``strategies`` and ``merge_key`` are for strategic merge patches. ``name`` is the schema's name in OpenAPI, if any.
    """

    def __init__(self, schema: Schema, *, name: str = '', free: bool = False, meta: bool = False) -> None:
        self.schema = schema
        self.name = name
        self.type: str = schema.get('type') or ''
        if schema.get(INT_OR_STRING) or schema.get('oneOf') and not self.type and name:
            self.type = 'scalar'
        self.list_relation: str = schema.get(LIST_TYPE) or ATOMIC
        self.map_relation: str = schema.get(MAP_TYPE) or GRANULAR
        self.keys: tuple[str, ...] = tuple(schema.get(LIST_KEYS) or ())
        self.strategies = frozenset(filter(None, schema.get(PATCH_STRATEGY, '').split(',')))
        self.merge_key: str = schema.get(MERGE_KEY) or ''
        self._meta = meta or bool(schema.get(EMBEDDED))
        self._free = free or bool(schema.get(PRESERVE))

    @functools.cached_property
    def fields(self) -> Mapping[str, 'Shape']:
        """The declared fields by their names."""
        declared = {name: self._below(schema) for name, schema in (self.schema.get('properties') or {}).items()}
        return {**declared, **_identity()} if self._meta else declared

    @functools.cached_property
    def others(self) -> 'Shape | None':
        """The shape of undeclared fields; None if they are not allowed."""
        values = self.schema.get('additionalProperties')
        if isinstance(values, Mapping):
            return self._below(values)
        if values or (values is None and (self._free or not self.schema.get('properties'))):
            return DEDUCED
        return None

    @functools.cached_property
    def items(self) -> 'Shape':
        """The shape of the items of a list."""
        items = self.schema.get('items')
        return self._below(items) if isinstance(items, Mapping) else UNTYPED

    @functools.cached_property
    def plain(self) -> type | None:
        """The type of values in Python, if the type is the only rule; None otherwise."""
        if self.name or self.schema.get('format') == 'byte':
            return None
        return {'string': str, 'boolean': bool}.get(self.type)

    @functools.cached_property
    def key_defaults(self) -> Mapping[str, Any]:
        """The defaults of keys that may be omitted."""
        fields = self.items.fields
        return {
            key: fields[key].schema['default'] for key in self.keys if key in fields and 'default' in fields[key].schema
        }

    @functools.cached_property
    def blank(self) -> Mapping[str, Any]:
        """The fields that are present in every object, even in new ones, and never have a manager."""
        return self.new()

    def new(self) -> dict[str, Any]:
        """Return a new copy of `blank`, which the caller may change."""
        found: dict[str, Any] = {}
        for name, shape in self._always:
            found[name] = shape.new() if shape.type == 'object' else None if shape.is_time else ZEROS.get(shape.type)
        return found

    @functools.cached_property
    def _always(self) -> Sequence[tuple[str, 'Shape']]:
        required = self.schema.get('required') or ()
        return [
            (name, shape)
            for name, shape in self.fields.items()
            if not self._meta
            and (
                shape.schema.get('default') == ({} if shape.type == 'object' else ZEROS.get(shape.type, 0))
                or shape.type == 'array'
                and name in required
                or shape.is_time
                and self.name.endswith('Condition')
            )
        ]

    @property
    def is_time(self) -> bool:
        """True for timestamps; in conditions, their fields are always present, even if null."""
        return self.name.endswith('.meta.v1.Time')

    def field(self, name: str) -> 'Shape | None':
        """Return the shape of the field of this name; None if it is not allowed."""
        return self.fields.get(name) or self.others

    def _below(self, schema: Schema) -> 'Shape':
        target = recordings.target_of(schema)
        if target is None:
            return Shape(schema, free=self._free)
        extras = {key: value for key, value in schema.items() if key not in ('$ref', 'allOf')}
        if not extras or extras == {'default': {}}:
            return _named(target, bool(extras))
        return Shape({**recordings.newest().schemas[target], **extras}, name=target)


class _Untyped(Shape):
    """The rules for a place without a schema: lists are replaced as a whole, and maps, too, unless they are deduced."""

    def __init__(self, relation: str) -> None:
        super().__init__({})
        self.map_relation = relation

    @functools.cached_property
    def others(self) -> Shape:
        """The shape of all fields, which is this shape itself."""
        return self


DEDUCED: Shape = _Untyped(GRANULAR)
UNTYPED: Shape = _Untyped(ATOMIC)

_STRING = {'type': 'string'}
METADATA: Schema = {
    'type': 'object',
    'properties': {
        **dict.fromkeys(
            (
                'name',
                'generateName',
                'namespace',
                'selfLink',
                'uid',
                'resourceVersion',
                'creationTimestamp',
                'deletionTimestamp',
            ),
            _STRING,
        ),
        **dict.fromkeys(('generation', 'deletionGracePeriodSeconds'), {'type': 'integer'}),
        **dict.fromkeys(('labels', 'annotations'), {'type': 'object', 'additionalProperties': _STRING}),
        'finalizers': {'type': 'array', 'items': _STRING, LIST_TYPE: SET, PATCH_STRATEGY: 'merge'},
        'ownerReferences': {
            'type': 'array',
            LIST_TYPE: MAP,
            LIST_KEYS: ['uid'],
            PATCH_STRATEGY: 'merge',
            MERGE_KEY: 'uid',
            'items': {
                'type': 'object',
                MAP_TYPE: ATOMIC,
                'required': ['apiVersion', 'kind', 'name', 'uid'],
                'properties': {
                    **dict.fromkeys(('apiVersion', 'kind', 'name', 'uid'), _STRING),
                    **dict.fromkeys(('controller', 'blockOwnerDeletion'), {'type': 'boolean'}),
                },
            },
        },
        'managedFields': {'type': 'array', 'items': {'type': 'object', PRESERVE: True}},
    },
}
"""The metadata of custom resources; the recorded metadata of built-in kinds are the same."""


def custom(schema: Schema) -> Shape:
    """Return the shape of custom resources with this structural schema."""
    return Shape(schema, meta=True)


def builtin(group: str, version: str, kind: str) -> Shape:
    """Return the shape of a built-in kind."""
    name = recordings.newest().name_of(group, version, kind)
    return DEDUCED if name is None else _named(name, False)


@functools.cache
def _named(name: str, present: bool) -> Shape:
    """Return the shape of a recorded schema; ``present`` if every object has this field."""
    schema = recordings.newest().schemas[name]
    return Shape({**schema, 'default': {}} if present else schema, name=name)


@functools.cache
def _identity() -> Mapping[str, Shape]:
    return {'apiVersion': Shape(_STRING), 'kind': Shape(_STRING), 'metadata': Shape(METADATA)}
