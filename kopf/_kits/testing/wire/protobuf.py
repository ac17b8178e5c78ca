"""
Decoding of bodies in protobuf, as kubectl and other clients in Go send them.

Such a body begins with a magic number, and an envelope with the API version and the kind. Why not a library? The wire
format is simple: there are two encodings of numbers, and all other values are preceded by their length. The names and
types of the fields are recorded from Kubernetes' sources (``scripts/record_protobuf.py``), and loaded when the first
such body comes.
"""

import base64
import functools
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from kopf._kits.testing.data import unpack
from kopf._kits.testing.wire import timestamps

MEDIA = 'application/vnd.kubernetes.protobuf'
MAGIC = b'k8s\x00'

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
WIRES = {'bool': VARINT, 'int32': VARINT, 'int64': VARINT, 'double': FIXED64}


class ProtobufError(ValueError):
    """Raised when the body cannot be decoded; the message says why."""


class Field(NamedTuple):
    """
    The description of one field: its name in JSON, type and shape.

    If the name is empty, the field is inlined into its parent.
    """

    name: str
    type: str
    shape: str


def loads(data: bytes) -> dict[str, Any]:
    """
    Return the object in a body, with its API version and kind if the envelope has them.

    Raises:
        ProtobufError: The body cannot be decoded.
    """
    if not data.startswith(MAGIC):
        raise ProtobufError('provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]')
    if data == MAGIC:
        raise ProtobufError('empty body')
    try:
        envelope = _message(data[len(MAGIC) :], 'runtime.Unknown')
        head = {key: value for key in ('apiVersion', 'kind') if (value := envelope.get(key))}
        type = _type_of(head)
        body = _message(base64.b64decode(envelope.get('raw', '')), type) if type else {}
    except (IndexError, struct.error, UnicodeDecodeError):
        raise ProtobufError('unexpected EOF') from None
    return {**head, **body}


@functools.cache
def _schema() -> Mapping[str, Mapping[int, Field]]:
    return {
        name: {int(number): Field(*(text.split(' ') + [''])[:3]) for number, text in fields.items()}
        for name, fields in unpack('protobuf.json.gz').items()
    }


def _type_of(head: Mapping[str, str]) -> str:
    """Return the name of the message of that API version and kind; empty if it is not known."""
    group, _, version = head.get('apiVersion', '').rpartition('/')
    kind = head.get('kind', '')
    for name in (f'{group.partition(".")[0] or "core"}.{version}.{kind}', f'meta.v1.{kind}'):
        if name in _schema():
            return name
    return ''


def _message(data: bytes, type: str) -> dict[str, Any]:
    fields, result = _schema()[type], dict[str, Any]()
    for number, wire, value in _wire(data):
        if (field := fields.get(number)) is None:
            continue
        if field.shape == '{}':
            key, item = _entry(value, field.type)
            result.setdefault(field.name, {})[key] = item
            continue
        decoded = _value(field.type, wire, value)
        if field.shape == '[]':
            result.setdefault(field.name, []).append(decoded)
        elif not field.name:
            result.update(decoded)
        elif decoded is not None and (field.shape or decoded or isinstance(decoded, dict)):
            result[field.name] = decoded
    return result


def _entry(data: bytes, type: str) -> tuple[str, Any]:
    """Return one entry of a map. It is a message of a key and a value; an empty key or value is omitted on the wire."""
    key, value = '', None
    for number, wire, part in _wire(data):
        if number == 1:
            key = part.decode()
        else:
            value = _value(type, wire, part)
    return key, value if value is not None else _value(type, BYTES, b'')


def _value(type: str, wire: int, value: Any) -> Any:
    if wire != WIRES.get(type, BYTES):
        raise ProtobufError(f'proto: wrong wireType = {wire} for a field of type {type}')
    match type:
        case 'string':
            return value.decode()
        case 'bytes':
            return base64.b64encode(value).decode()
        case 'bool':
            return bool(value)
        case 'int32' | 'int64':
            return value - (1 << 64) if value >> 63 else value
        case 'double':
            number: float = struct.unpack('<d', value)[0]
            return int(number) if number.is_integer() else number
    if (special := SPECIAL.get(type)) is not None:
        return special(_message(value, type))
    decoded = _message(value, type)
    if set(_schema()[type].values()) == {Field('items', 'string', '[]')}:
        return decoded.get('items', [])
    return decoded


def _wire(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """Yield the fields of a message: number, wire type, and an integer or bytes."""
    position, end = 0, len(data)
    while position < end:
        tag, position = _varint(data, position)
        wire = tag & 7
        if wire == VARINT:
            value, position = _varint(data, position)
            yield tag >> 3, wire, value
            continue
        if wire not in (FIXED64, BYTES, FIXED32):
            raise ProtobufError(f'proto: illegal wireType {wire}')
        length = {FIXED64: 8, FIXED32: 4}.get(wire, 0)
        if wire == BYTES:
            length, position = _varint(data, position)
        if position + length > end:
            raise ProtobufError('unexpected EOF')
        yield tag >> 3, wire, data[position : position + length]
        position += length


def _varint(data: bytes, position: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result & (1 << 64) - 1, position
        shift += 7


# The types whose form in JSON differs from the fields of their message.


def _raw(fields: Mapping[str, Any]) -> Any:
    text = base64.b64decode(next(iter(fields.values()), ''))
    try:
        return orjson.loads(text) if text else None
    except ValueError as error:
        raise ProtobufError(str(error)) from None


def _time(fields: Mapping[str, Any]) -> str | None:
    return timestamps.at(fields.get('seconds', 0)) if fields else None


def _micro_time(fields: Mapping[str, Any]) -> str | None:
    if not fields:
        return None
    return f'{timestamps.at(fields.get("seconds", 0))[:-1]}.{fields.get("nanos", 0) // 1000:06}Z'


def _int_or_string(fields: Mapping[str, Any]) -> int | str:
    value: int | str = fields.get('strVal', '') if fields.get('type') else fields.get('intVal', 0)
    return value


def _duration(fields: Mapping[str, Any]) -> str:
    """
    Return nanoseconds as Go writes durations: ``1h0m30s``.

    Unlike Go, units below a second are not used, as they are rare: parts of a second are written as fractions.
    """
    seconds, nanos = divmod(abs(fields.get('duration', 0)), 10**9)
    fraction = f'.{nanos:09}'.rstrip('0') if nanos else ''
    text = f'{seconds % 60}{fraction}s'
    if seconds >= 60:
        text = f'{seconds // 60 % 60}m{text}'
    if seconds >= 3600:
        text = f'{seconds // 3600}h{text}'
    return f'-{text}' if fields.get('duration', 0) < 0 else text


def _schema_or(other: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda fields: fields['schema'] if 'schema' in fields else fields.get(other)


SPECIAL: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    'api.resource.Quantity': lambda fields: fields.get('string', '0'),
    'util.intstr.IntOrString': _int_or_string,
    'runtime.RawExtension': _raw,
    'meta.v1.FieldsV1': _raw,
    'meta.v1.Time': _time,
    'meta.v1.MicroTime': _micro_time,
    'meta.v1.Duration': _duration,
    'apiextensions.v1.JSON': _raw,
    'apiextensions.v1.JSONSchemaPropsOrBool': lambda fields: fields.get('schema', bool(fields.get('allows'))),
    'apiextensions.v1.JSONSchemaPropsOrArray': _schema_or('jSONSchemas'),
    'apiextensions.v1.JSONSchemaPropsOrStringArray': _schema_or('property'),
}
