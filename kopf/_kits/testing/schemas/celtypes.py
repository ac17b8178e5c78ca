"""
The types of schemas for CEL: the references of a rule are checked when it is declared.

The library has lists, maps, and messages of protocol buffers, so each object of a schema becomes a message. Types
without a counterpart are not checked: the items of lists of lists, and of maps of lists or maps. The types are used for
checks only: rules are evaluated on plain dicts and lists.
"""

import re
from collections.abc import Mapping
from typing import Any

from cel_expr_python import cel
from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, duration_pb2, struct_pb2, timestamp_pb2
from google.protobuf import wrappers_pb2 as wrappers

from kopf._kits.definitions import schema_extensions as extensions
from kopf._kits.testing.schemas.schemas import Schema

Pool = Any  # These are types of `google.protobuf.descriptor_pool`, which is not typed.
_Field = descriptor_pb2.FieldDescriptorProto

_PACKAGE = 'selfType'
_FILES = tuple(module.DESCRIPTOR for module in (any_pb2, duration_pb2, struct_pb2, timestamp_pb2, wrappers))
_RESERVED = frozenset(
    (
        'true',
        'false',
        'null',
        'in',
        'as',
        'break',
        'const',
        'continue',
        'else',
        'for',
        'function',
        'if',
        'import',
        'let',
        'loop',
        'package',
        'namespace',
        'return',
    )
)
_ESCAPES = (('__', '__underscores__'), ('.', '__dot__'), ('-', '__dash__'), ('/', '__slash__'))
_STRING = {'type': 'string'}
_IDENTITY: Mapping[str, Schema] = {
    'apiVersion': _STRING,
    'kind': _STRING,
    'metadata': {'type': 'object', 'properties': {'name': _STRING, 'generateName': _STRING}},
}
"""The fields that rules can use at the root of each object even if the schema does not have them."""
_SCALARS = {
    'boolean': (_Field.TYPE_BOOL, cel.Type.BOOL),
    'integer': (_Field.TYPE_INT64, cel.Type.INT),
    'number': (_Field.TYPE_DOUBLE, cel.Type.DOUBLE),
    'string': (_Field.TYPE_STRING, cel.Type.STRING),
    'byte': (_Field.TYPE_BYTES, cel.Type.BYTES),
}
_MESSAGES = {
    'date': ('Timestamp', cel.Type.TIMESTAMP),
    'date-time': ('Timestamp', cel.Type.TIMESTAMP),
    'duration': ('Duration', cel.Type.DURATION),
    'dynamic': ('Value', cel.Type.DYN),
    'list': ('ListValue', None),
    'map': ('Struct', None),
}


def escaped(name: str) -> str:
    """Return the name of a field as rules write it."""
    if name in _RESERVED:
        return f'__{name}__'
    for text, escape in _ESCAPES:
        name = name.replace(text, escape)
    return name


def declared(schema: Schema, root: bool) -> tuple[Pool, Any] | None:
    """Return the type of values with this schema, and the pool of its messages; None if it has too few types."""
    messages = _Messages()
    type = messages.type_of(schema, root=root)
    return None if type is None else (messages.pool(), type)


class _Messages:
    """The messages of one schema."""

    def __init__(self) -> None:
        self._file = descriptor_pb2.FileDescriptorProto(
            name='schema.proto', package=_PACKAGE, syntax='proto2', dependency=[file.name for file in _FILES]
        )

    def pool(self) -> Pool:
        """Return the pool of all messages and their dependencies."""
        pool = descriptor_pool.DescriptorPool()
        for file in _FILES:
            pool.AddSerializedFile(file.serialized_pb)
        pool.AddSerializedFile(self._file.SerializeToString())
        return pool

    def type_of(self, schema: Schema, *, root: bool = False) -> Any:
        """Return the library's type; None if there is none."""
        match kind := _kind(schema):
            case 'list' | 'map':
                inner = self.type_of(schema['items' if kind == 'list' else 'additionalProperties'])
                if inner is None:
                    return None
                return cel.Type.List(inner) if kind == 'list' else cel.Type.Map(cel.Type.STRING, inner)
            case 'object':
                return cel.Type(self._message(schema, root).removeprefix('.'))
            case '':
                return None
        return _SCALARS[kind][1] if kind in _SCALARS else _MESSAGES[kind][1]

    def _message(self, schema: Schema, root: bool = False) -> str:
        properties: Mapping[str, Schema] = schema.get('properties') or {}
        if root or schema.get(extensions.EMBEDDED):
            properties = {**properties, **_IDENTITY}
        message = self._file.message_type.add(name=f'Object{len(self._file.message_type)}')
        for name, sub in properties.items():
            if re.fullmatch(r'[A-Za-z_.\-/][\w.\-/]*', name, re.ASCII) and _kind(sub):
                self._add(message, escaped(name), sub)
        return f'.{_PACKAGE}.{message.name}'

    def _add(self, message: Any, name: str, schema: Schema) -> None:
        number = len(message.field) + 1
        field = message.field.add(name=name, number=number, json_name=f'f{number}', label=_Field.LABEL_OPTIONAL)
        entry = f'{"".join(part[:1].upper() + part[1:] for part in name.split("_"))}Entry'
        match _kind(schema):
            case 'list':
                field.label = _Field.LABEL_REPEATED
                self._define(field, schema['items'])
            case 'map' if all(nested.name != entry for nested in message.nested_type):
                nested = message.nested_type.add(name=entry)
                nested.options.map_entry = True
                nested.field.add(name='key', number=1, type=_Field.TYPE_STRING, label=_Field.LABEL_OPTIONAL)
                value = nested.field.add(name='value', number=2, label=_Field.LABEL_OPTIONAL)
                self._define(value, schema['additionalProperties'])
                field.label, field.type = _Field.LABEL_REPEATED, _Field.TYPE_MESSAGE
                field.type_name = f'.{_PACKAGE}.{message.name}.{entry}'
            case _:
                self._define(field, schema)

    def _define(self, field: Any, schema: Schema) -> None:
        kind = _kind(schema)
        if kind in _SCALARS:
            field.type = _SCALARS[kind][0]
            return
        field.type = _Field.TYPE_MESSAGE
        field.type_name = self._message(schema) if kind == 'object' else f'.google.protobuf.{_MESSAGES[kind][0]}'


def _kind(schema: Any) -> str:
    """Return the kind of type of a schema for rules; empty if rules cannot refer to it."""
    if not isinstance(schema, Mapping):
        return ''
    if schema.get(extensions.INT_OR_STRING):
        return 'dynamic'
    match schema.get('type'):
        case 'array':
            return 'list' if _kind(schema.get('items')) else ''
        case 'object' if isinstance(values := schema.get('additionalProperties'), Mapping):
            return 'map' if _kind(values) else ''
        case 'string' if (format := schema.get('format')) in ('byte', 'date', 'date-time', 'duration'):
            return str(format)
        case 'object' | 'string' | 'boolean' | 'integer' | 'number' as type:
            return str(type)
    return ''
