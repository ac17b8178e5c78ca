"""Values in the format in which Go prints them, for messages of real servers that quote values."""

from collections.abc import Mapping
from typing import Any

import orjson


def plain(value: Any) -> str:
    """Return the value as ``%v`` prints it: ``map[a:1 b:[x y]]``."""
    match value:
        case None:
            return '<nil>'
        case bool():
            return str(value).lower()
        case float():
            return _shortest(value)
        case Mapping():
            return f'map[{" ".join(f"{key}:{plain(value[key])}" for key in sorted(value))}]'
        case list():
            return f'[{" ".join(map(plain, value))}]'
    return str(value)


def _shortest(value: float) -> str:
    """Return the shortest text that parses back to this number, with an exponent if it is very large or small."""
    import decimal

    digits, _, exponent = f'{decimal.Decimal(repr(value)).normalize():e}'.partition('e')
    if -4 <= int(exponent) < 6 or not value:
        return repr(value).removesuffix('.0')
    return f'{digits}e{int(exponent):+03d}'


def literal(value: Any) -> str:
    """Return the value as ``%#v`` prints it: ``map[string]interface {}{"a":1}``."""
    match value:
        case None:
            return 'interface {}(nil)'
        case str():
            return orjson.dumps(value).decode()
        case Mapping():
            inside = ', '.join(f'{literal(key)}:{literal(value[key])}' for key in sorted(value))
            return f'map[string]interface {{}}{{{inside}}}'
        case list():
            return f'[]interface {{}}{{{", ".join(map(literal, value))}}}'
    return plain(value)


def type_name(value: Any) -> str:
    """Return the type as ``%T`` prints it, for values decoded from JSON."""
    match value:
        case None:
            return '<nil>'
        case bool():
            return 'bool'
        case int():
            return 'int64'
        case float():
            return 'float64'
        case str():
            return 'string'
        case list():
            return '[]interface {}'
    return 'map[string]interface {}'
