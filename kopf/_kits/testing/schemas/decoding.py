"""
Decoding and encoding of built-in objects as a real API server does it, with the messages of Go.

A real server decodes built-in objects into Go structures. It drops unknown fields, or refuses the object if the client
requests that (`fieldValidation`). It refuses fields of wrong types. When it encodes the object, it drops empty fields,
except where the structure distinguishes empty from absent fields. It also adds some fields that every object of the
kind has. The structures were recorded from a real server, see `kopf._kits.testing.kinds.recordings`.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kopf._kits.testing.kinds import recordings
from kopf._kits.testing.kinds.shapes import ZEROS, Shape
from kopf._kits.testing.wire import gotext, quantities
from kopf._kits.testing.wire.json_patches import json_type


class Spot(NamedTuple):
    """A field in Go's terms: the structure with the field, the path to the field, the type of its value."""

    struct: str
    path: str
    type: str


Complain = Callable[[Any, Shape, Spot], str]
"""Returns the error message about a wrong value."""

_BITS = {'int32': 31, 'int64': 63}
_TIME = (
    ('2006', r'\d{4}'),
    ('-', '-'),
    ('01', r'\d\d'),
    ('-', '-'),
    ('02', r'\d\d'),
    ('T', 'T'),
    ('15', r'\d\d'),
    (':', ':'),
    ('04', r'\d\d'),
    (':', ':'),
    ('05', r'\d\d'),
)
_USUAL = re.compile(r'\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|30)T([01]\d|2[0-3]):[0-5]\d:[0-5]\dZ')
_ZONE = ('Z07:00', r'Z|[+-]\d\d:\d\d')


class Decoder:
    """A decoder of one object; ``unknown`` collects the paths of unknown fields, ``count`` the number of all fields."""

    def __init__(self, complain: Complain) -> None:
        self.unknown: list[str] = []
        self.count = 0
        self._complain = complain
        self._go = recordings.newest().go
        self._kept = recordings.newest().kept

    def decode(self, body: Mapping[str, Any], shape: Shape) -> dict[str, Any]:
        """
        Return the object as the server sends it back.

        Raises:
            TypeError: The object cannot be decoded; the message is Go's.
        """
        return self._struct(body, shape, '', '')

    def _struct(self, value: Mapping[str, Any], shape: Shape, path: str, place: str) -> dict[str, Any]:
        go, kept, fields = self._go.get(shape.name, {}), self._kept.get(shape.name), shape.fields
        result = shape.new()
        self.count += len(value)
        for name, item in value.items():
            field = fields.get(name)
            if item and field is not None and type(item) is field.plain:  # Most values are decoded here.
                result[name] = item
                continue
            # Why not decode managed fields? The server ignores invalid ones instead of refusing the object.
            if name == 'managedFields' and isinstance(item, list):
                self.count += count(item)
                result[name] = item
                continue
            where = f'{place}.{name}' if place else name
            if field is None:
                self.unknown.append(where)
            elif item is not None:
                called, segment, struct = go.get(name) or (go_type(field), name, shape.name.rpartition('.')[2])
                spot = Spot(struct, f'{path}.{segment}' if path else segment, called)
                decoded = self._value(item, field, spot, where)
                present = kept is None or name in kept or name in shape.blank or not _may_be_dropped(decoded, field)
                if decoded or present:
                    result[name] = decoded
                else:
                    result.pop(name, None)
        return result

    def _value(self, value: Any, shape: Shape, spot: Spot, place: str) -> Any:
        match shape.type:
            case 'object' if not _is_free(shape):
                if not isinstance(value, dict):
                    raise TypeError(self._complain(value, shape, spot))
                if shape.fields:
                    return self._struct(value, shape, spot.path, place)
                return self._map(value, shape, spot._replace(type=_inner(spot.type)), place)
            case 'array':
                if not isinstance(value, list):
                    raise TypeError(self._complain(value, shape, spot))
                inner = spot._replace(type=_inner(spot.type))
                return [
                    _zero(shape.items) if item is None else self._value(item, shape.items, inner, f'{place}[{index}]')
                    for index, item in enumerate(value)
                ]
        if complaint := _scalar_complaint(value, shape):
            raise TypeError(self._complain(value, shape, spot) if complaint is WRONG else complaint)
        return _encoded(value, shape)

    def _map(self, value: dict[str, Any], shape: Shape, spot: Spot, place: str) -> dict[str, Any]:
        inner = shape.others
        if inner is None:
            return value
        self.count += len(value)
        if inner.plain is str and all(type(item) is str for item in value.values()):
            return value
        return {
            name: _zero(inner) if item is None else self._value(item, inner, spot, f'{place}.{name}')
            for name, item in value.items()
        }


def in_json(value: Any, shape: Shape, spot: Spot) -> str:
    """Return the message about a wrong value in JSON."""
    what, type = json_type(value), 'int32' if _is(shape, 'IntOrString') else spot.type
    if what == 'number' and type in _BITS:
        what = f'number {gotext.plain(value)}'
    return f'json: cannot unmarshal {what} into Go struct field {spot.struct}.{spot.path} of type {type}'


def in_patch(value: Any, shape: Shape, spot: Spot) -> str:
    """Return the message about a wrong value in a strategic merge patch."""
    kind = {dict: 'map', list: 'slice', str: 'string', bool: 'bool', float: 'float64'}.get(type(value), 'int64')
    match shape.type:
        case 'array':
            return f'cannot restore slice from {kind}'
        case 'object':
            return f'cannot restore struct from: {kind}' if shape.fields else f'cannot restore map from {kind}'
        case 'string' if _is(shape, 'Time', 'MicroTime'):
            return f'json: cannot unmarshal {json_type(value)} into Go value of type string'
        case 'string':
            return f'cannot convert int64 to {spot.type}' if kind == 'int64' else 'unrecognized type: string'
        case 'integer':
            return f'cannot convert float64 to {spot.type}' if kind == 'float64' else f'unrecognized type: {spot.type}'
        case 'boolean':
            return 'unrecognized type: bool'
    return f'json: cannot unmarshal {json_type(value)} into Go value of type int32'


def count(value: Any) -> int:
    """Return the number of all fields of a value, nested ones included."""
    if isinstance(value, dict):
        return len(value) + sum(map(count, value.values()))
    return sum(map(count, value)) if isinstance(value, list) else 0


def duplicates(text: bytes, count: int) -> list[str]:
    """
    Return the paths of repeated fields in a JSON text.

    Args:
        text: the JSON text.
        count: the number of decoded fields. A text with as many fields has no repeated ones, and is not parsed again.
    """
    if text.count(b'":') == count:
        return []
    import json

    found: list[str] = []

    class Fields(dict[str, Any]):
        repeated: list[str]

    def collect(pairs: list[tuple[str, Any]]) -> Fields:
        fields, names = Fields(pairs), [name for name, _ in pairs]
        fields.repeated = [name for index, name in enumerate(names) if name in names[:index]]
        return fields

    def walk(value: Any, place: str) -> None:
        if isinstance(value, Fields):
            for name in value.repeated:
                found.append(f'{place}.{name}' if place else name)
            for name, item in value.items():
                walk(item, f'{place}.{name}' if place else name)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                walk(item, f'{place}[{index}]')

    walk(json.loads(text, object_pairs_hook=collect), '')
    return found


def merged(text: bytes) -> Any:
    """Return the value of a JSON text; the structures in repeated fields are merged."""
    import json

    def complete(earlier: Any, later: Any) -> Any:
        if not isinstance(earlier, dict) or not isinstance(later, dict):
            return later
        return {**earlier, **{name: complete(earlier.get(name), item) for name, item in later.items()}}

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for name, item in pairs:
            fields[name] = complete(fields.get(name), item)
        return fields

    return json.loads(text, object_pairs_hook=collect)


def go_type(shape: Shape) -> str:
    """Return the name of a field's type in Go, derived from the schema; all other names are recorded."""
    if shape.name:
        return '.'.join(shape.name.split('.')[-2:])
    match shape.type:
        case 'array':
            return f'[]{go_type(shape.items)}'
        case 'object':
            return f'map[string]{go_type(shape.others)}' if shape.others is not None else 'object'
        case 'boolean':
            return 'bool'
        case 'string':
            return '[]uint8' if shape.schema.get('format') == 'byte' else 'string'
    return str(shape.schema.get('format') or shape.type)


WRONG = '?'


def _is(shape: Shape, *names: str) -> bool:
    """Check whether the shape is that of one of these schemas."""
    return shape.name.rpartition('.')[2] in names


def _is_free(shape: Shape) -> bool:
    """Check whether the value may have any content."""
    return not shape.fields and 'additionalProperties' not in shape.schema


def _inner(type: str) -> str:
    """Return the type of the items of a list or a map."""
    if type.startswith('map['):
        return type.partition(']')[2]
    return (
        type.removeprefix('[]')
        if type.startswith('[]')
        else {'v1.ResourceList': 'resource.Quantity'}.get(type, 'string')
    )


def _may_be_dropped(value: Any, shape: Shape) -> bool:
    """Check whether the server drops the field if it is empty. It keeps structures, and fields of any type."""
    if _is(shape, 'JSON', 'RawExtension', 'IntOrString'):
        return False
    return not isinstance(value, dict) or not shape.fields and not _is_free(shape)


def _zero(shape: Shape) -> Any:
    if shape.type == 'object':
        return shape.new()
    return [] if shape.type == 'array' else ZEROS.get(shape.type)


def _scalar_complaint(value: Any, shape: Shape) -> str:
    """Return the error message about a scalar value; `WRONG` for a wrong type; an empty text for a valid value."""
    if _is(shape, 'Time', 'MicroTime'):
        return time_complaint(value, micro=_is(shape, 'MicroTime')) if isinstance(value, str) else WRONG
    if _is(shape, 'Quantity'):
        try:
            quantities.canonical(value)
        except ValueError as error:
            return str(error)
        return ''
    if _is(shape, 'IntOrString'):
        return '' if isinstance(value, str) or _is_integer(value, 'int32') else WRONG
    if shape.type == 'string' and shape.schema.get('format') == 'byte' and isinstance(value, str):
        return base64_complaint(value)
    fits = {
        'string': isinstance(value, str),
        'boolean': isinstance(value, bool),
        'integer': _is_integer(value, shape.schema.get('format') or 'int64'),
        'number': isinstance(value, (int, float)) and not isinstance(value, bool),
    }
    return '' if fits.get(shape.type, True) else WRONG


def _is_integer(value: Any, type: str) -> bool:
    limit = 1 << _BITS.get(type, 63)
    return isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit


def _encoded(value: Any, shape: Shape) -> Any:
    match shape.name.rpartition('.')[2]:
        case 'Quantity':
            return quantities.canonical(value)
        case 'Time':
            return _in_utc(value)
        case 'MicroTime':
            return _in_utc(value, '.%f')
    return value


def time_complaint(text: str, *, micro: bool = False) -> str:
    """Return Go's error message about a text that is not a timestamp; an empty text for a timestamp."""
    if not micro and _USUAL.fullmatch(text):
        return ''
    layout = f'2006-01-02T15:04:05{".000000" if micro else ""}Z07:00'
    rest = text
    for part, pattern in (*_TIME, *([('.000000', r'\.\d{6}')] if micro else []), _ZONE):
        if part == '.000000':
            match = re.match(r'[.,]\d{6}(?!\d)', rest)
        elif part == 'Z07:00' and not micro:
            match = re.match(rf'([.,]\d+)?({pattern})', rest)
        else:
            match = re.match(pattern, rest)
        if match is None:
            return f'parsing time "{text}" as "{layout}": cannot parse "{rest}" as "{part}"'
        rest = rest[match.end() :]
    if rest:
        return f'parsing time "{text}": extra text: "{rest}"'
    limits = (
        ('month', text[5:7], 1, 12),
        ('day', text[8:10], 1, 31),
        ('hour', text[11:13], 0, 23),
        ('minute', text[14:16], 0, 59),
        ('second', text[17:19], 0, 59),
    )
    for name, digits, least, most in limits:
        if not least <= int(digits) <= most:
            return f'parsing time "{text}": {name} out of range'
    return ''


def base64_complaint(text: str) -> str:
    """Return Go's error message about a text that is not base64; an empty text for valid base64."""
    clean = text.replace('\n', '').replace('\r', '')
    stripped = clean.rstrip('=')
    if (wrong := re.search(r'[^A-Za-z0-9+/]', stripped)) is not None:
        return f'illegal base64 data at input byte {wrong.start()}'
    if len(clean) % 4 or len(clean) - len(stripped) > 2:
        return f'illegal base64 data at input byte {len(stripped) // 4 * 4 if len(stripped) % 4 else len(stripped)}'
    return ''


def _in_utc(text: str, fraction: str = '') -> str:
    import datetime

    if _USUAL.fullmatch(text):
        return text
    then = datetime.datetime.fromisoformat(text.replace(',', '.')).astimezone(datetime.UTC)
    return then.strftime(f'%Y-%m-%dT%H:%M:%S{fraction}Z')
