"""
CEL, by ``cel-expr-python``: the environment that rules are compiled in, and the values that they see.

Fields have no types here: that a rule names a field which the schema does not have, is noticed when it is evaluated,
not when it is declared as on a real server. Nor are the costs of rules estimated.
"""
import datetime
import functools
import re
from collections.abc import Mapping
from typing import Any

from cel_expr_python import cel
from cel_expr_python.ext import ext_bindings, ext_optional, ext_strings
from google.protobuf import duration_pb2, timestamp_pb2

from kopf._kits.testing.schemas import celfunctions
from kopf._kits.testing.schemas.schemas import Schema

_RESERVED = frozenset((
    'true', 'false', 'null', 'in', 'as', 'break', 'const', 'continue', 'else', 'for', 'function', 'if', 'import', 'let',
    'loop', 'package', 'namespace', 'return'))
_ESCAPES = (('__', '__underscores__'), ('.', '__dot__'), ('-', '__dash__'), ('/', '__slash__'))
_UNITS = {'ns': 1e-9, 'us': 1e-6, 'µs': 1e-6, 'ms': 1e-3, 's': 1, 'm': 60, 'h': 3600, 'd': 86400, 'w': 604800}


class CelError(Exception):
    """An expression cannot be compiled, or its evaluation has failed; the message is that of a real server."""


class Program:
    """One compiled expression."""

    def __init__(self, text: str, optional: bool) -> None:
        environment = _environment()
        try:
            self._plain = environment.compile(text)
            #: The type that it evaluates to, as far as it is known.
            self.result: str = self._plain.return_type().name().upper()
            #: Whether it compares with what was before.
            self.uses_old = re.search(r'\boldSelf\b', text) is not None
            self._present = self._absent = self._plain
            if optional and self.uses_old:
                self._present = environment.compile(f'cel.bind(oldSelf, optional.of(oldSelf), (\n{text}\n))')
                self._absent = environment.compile(f'cel.bind(oldSelf, optional.none(), (\n{text}\n))')
        except RuntimeError as error:
            raise CelError(_compilation_error(str(error))) from error

    def run(self, variables: Mapping[str, Any]) -> Any:
        """The value for these variables; `CelError` if there is none."""
        program = self._present if 'oldSelf' in variables else self._absent
        try:
            value = program.eval(data=dict(variables))
        except RuntimeError as error:
            raise CelError(_evaluation_error(str(error))) from error
        if value.type().name().upper() == 'ERROR':
            raise CelError(_evaluation_error(str(value.plain_value())))
        return value.plain_value()


@functools.lru_cache(maxsize=5000)
def compiled(text: str, optional: bool) -> Program:
    """The program for an expression; ``optional``: what was before may be absent, and is asked for that."""
    return Program(text, optional)


def seen(value: Any, schema: Schema) -> Any:
    """A value as rules see it: with times, durations, and names of fields that they can write."""
    if isinstance(value, dict):
        properties, others = schema.get('properties') or {}, schema.get('additionalProperties')
        other = others if isinstance(others, Mapping) else {}
        return {_escaped(key) if key in properties else key: seen(item, properties.get(key, other))
                for key, item in value.items()}
    if isinstance(value, list):
        items = schema.get('items')
        return [seen(item, items if isinstance(items, Mapping) else {}) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and schema.get('type') == 'number':
        return float(value)
    if isinstance(value, str) and schema.get('type') == 'string':
        return _formatted(value, schema.get('format', ''))
    return value


def _formatted(text: str, format: str) -> Any:
    match format:
        case 'date-time' | 'date':
            moment = datetime.datetime.fromisoformat(text.upper())
            timestamp = timestamp_pb2.Timestamp()
            timestamp.FromDatetime(moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC))
            return timestamp
        case 'duration':
            duration = duration_pb2.Duration()
            parts = re.findall(r'([\d.]+)\s*([a-zµ]+)', text)
            seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
            duration.FromTimedelta(datetime.timedelta(seconds=-seconds if text.startswith('-') else seconds))
            return duration
    return text


def _escaped(name: str) -> str:
    if name in _RESERVED:
        return f'__{name}__'
    for text, escape in _ESCAPES:
        name = name.replace(text, escape)
    return name


@functools.cache
def _environment() -> Any:
    functions: dict[str, list[Any]] = {}
    for form in celfunctions.forms():
        overloads = functions.setdefault(form.name, [])
        overloads.append(cel.Overload(
            id='_'.join([form.name.replace('.', '_'), *form.parameters]), is_member=form.is_member, impl=form.function,
            return_type=getattr(cel.Type, form.result),
            parameters=[getattr(cel.Type, type) for type in form.parameters]))
    return cel.NewEnv(
        variables={'self': cel.Type.DYN, 'oldSelf': cel.Type.DYN},
        extensions=[ext_bindings.ExtBindings(), ext_optional.ExtOptional(), ext_strings.ExtStrings()],
        functions=[cel.FunctionDecl(name, overloads) for name, overloads in functions.items()])


def _compilation_error(text: str) -> str:
    return re.sub(r'\s*\[INVALID_ARGUMENT\]$', '', text.removeprefix('INVALID_ARGUMENT: ')).strip()


def _evaluation_error(text: str) -> str:
    if (match := re.search(r'Key not found in map : "?(.*?)"?$', text)) is not None:
        return f'no such key: {match[1]}'
    if 'divide by zero' in text:
        return 'division by zero'
    if (match := re.search(r'Index error: index=(-?\d+)', text)) is not None:
        return f'index out of bounds: {match[1]}'
    if 'No matching overloads found' in text:
        return 'no such overload'
    return re.sub(r'^[A-Z_]+: ', '', text)
