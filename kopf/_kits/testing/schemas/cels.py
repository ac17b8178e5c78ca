"""
CEL by the library ``cel-expr-python``: the compilation and the evaluation of rules.

A rule is compiled twice: when it is declared, with the types of its schema, to check it; and without types, for its
evaluation. The costs of rules are not estimated.
"""

import base64
import datetime
import functools
import re
from collections.abc import Mapping
from typing import Any

import orjson
from cel_expr_python import cel
from cel_expr_python.ext import ext_bindings, ext_optional, ext_strings
from google.protobuf import duration_pb2, timestamp_pb2

from kopf._kits.testing.schemas import celfunctions, celtypes
from kopf._kits.testing.schemas.schemas import Schema

_UNITS = {'ns': 1e-9, 'us': 1e-6, 'µs': 1e-6, 'ms': 1e-3, 's': 1, 'm': 60, 'h': 3600, 'd': 86400, 'w': 604800}
_MISSING = re.compile(
    r'\b(transformList|transformMap|transformMapEntry|lists\.range|format\.\w+)\(|'
    r'\b(all|exists|existsOne)\(\s*\w+\s*,\s*\w+\s*,'
)
"""The functions of Kubernetes that the library does not have."""
NO_OVERLOAD = 'no such overload'
_ON_LISTS = re.compile(r'\.(last)?[iI]ndexOf\(')
_FINE = re.compile(
    r"no matching overload for '_[<>]=?_' applied to '\((int|uint|double), (int|uint|double)\)'|"
    r"no matching overload for '(lastIndexOf|indexOf)' applied to '\(list"
)
"""The library's errors about types that a real server accepts, such as comparisons of numbers of any type."""
_WORDS = (
    (r" not found in struct '[^']*'", ''),
    (r'\bnull_type\b', 'null'),
    (r'\boptional_type<([^<>]*)>(\([^()]*\))?', r'optional_type(\1)'),
)


class CelError(Exception):
    """Raised when an expression cannot be compiled or evaluated; the message is that of a real server."""


class NotEmulatedError(CelError):
    """Raised when an expression uses a function that only a real server has; the message is its name."""


class Program:
    """One compiled expression."""

    def __init__(self, text: str, optional: bool) -> None:
        environment = _environment()
        try:
            self._plain = environment.compile(text)
            self.uses_old = re.search(r'\boldSelf\b', text) is not None
            """Whether it refers to the old value."""
            self._on_lists = _ON_LISTS.search(text) is not None
            self._present = self._absent = self._plain
            if optional and self.uses_old:
                self._present = environment.compile(f'cel.bind(oldSelf, optional.of(oldSelf), (\n{text}\n))')
                self._absent = environment.compile(f'cel.bind(oldSelf, optional.none(), (\n{text}\n))')
        except RuntimeError as error:
            raise _compilation_error(text, str(error)) from error

    def _failure(self, complaint: str) -> CelError:
        found = _evaluation_error(complaint)
        return NotEmulatedError('indexOf for lists') if found == NO_OVERLOAD and self._on_lists else CelError(found)

    def run(self, variables: Mapping[str, Any]) -> Any:
        """
        Return the value for these variables.

        Raises:
            CelError: The evaluation has failed.
        """
        program = self._present if 'oldSelf' in variables else self._absent
        try:
            value = program.eval(data=dict(variables))
        except RuntimeError as error:
            raise self._failure(str(error)) from error
        if value.type().name().upper() == 'ERROR':
            raise self._failure(str(value.plain_value()))
        return value.plain_value()


@functools.lru_cache(maxsize=5000)
def compiled(text: str, optional: bool) -> Program:
    """Return the program of an expression; ``optional`` says whether the old value is of an optional type."""
    return Program(text, optional)


def result_type(text: str, optional: bool, schema: Schema, root: bool) -> str:
    """
    Return the type of an expression about values with this schema.

    Args:
        text: The expression.
        optional: The old value is of an optional type, as it can be absent.
        schema: The schema of the values.
        root: The values are whole objects, not parts of objects.

    Raises:
        CelError: The expression does not compile.
        TypeError: The schema does not say what the values are.
    """
    environment = _checker(orjson.dumps(schema), root)
    if environment is None:
        raise TypeError('unable to convert structural schema to CEL declarations')
    head = 'cel.bind(oldSelf, optional.of(oldSelf), (\n'
    try:
        program = environment.compile(f'{head}{text}\n))' if optional else text)
        return str(program.return_type().name()).upper()
    except RuntimeError as error:
        problem = _compilation_error(text, str(error), int(optional))
        if isinstance(problem, NotEmulatedError) or str(problem):
            raise problem from error
        return 'DYN'


@functools.lru_cache(maxsize=100)
def _checker(schema: bytes, root: bool) -> Any:
    found = celtypes.declared(orjson.loads(schema), root)
    if found is None:
        return None
    pool, type = found
    return cel.NewEnv(descriptor_pool=pool, variables={'self': type, 'oldSelf': type}, **_language())


def seen(value: Any, schema: Schema) -> Any:
    """Return the value for the evaluation of rules: with times, durations, and escaped names of fields."""
    if isinstance(value, dict):
        properties, others = schema.get('properties') or {}, schema.get('additionalProperties')
        other = others if isinstance(others, Mapping) else {}
        return {
            celtypes.escaped(key) if key in properties else key: seen(item, properties.get(key, other))
            for key, item in value.items()
        }
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
        case 'byte':
            return base64.b64decode(text)
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


@functools.cache
def _environment() -> Any:
    return cel.NewEnv(variables={'self': cel.Type.DYN, 'oldSelf': cel.Type.DYN}, **_language())


def _language() -> dict[str, Any]:
    functions: dict[str, list[Any]] = {}
    for form in celfunctions.forms():
        overloads = functions.setdefault(form.name, [])
        overloads.append(
            cel.Overload(
                id='_'.join([form.name.replace('.', '_'), *form.parameters]),
                is_member=form.is_member,
                impl=form.function,
                return_type=getattr(cel.Type, form.result),
                parameters=[getattr(cel.Type, type) for type in form.parameters],
            )
        )
    return {
        'extensions': [ext_bindings.ExtBindings(), ext_optional.ExtOptional(), ext_strings.ExtStrings()],
        'functions': [cel.FunctionDecl(name, overloads) for name, overloads in functions.items()],
    }


def _compilation_error(text: str, complaint: str, shift: int = 0) -> CelError:
    """Return the library's error in the words of a real server; empty if a real server accepts the expression."""
    if 'undeclared reference to' in complaint and (match := _MISSING.search(text)) is not None:
        return NotEmulatedError(match[1] or f'{match[2]} with two variables')
    complaint = re.sub(r'\s*\[INVALID_ARGUMENT\]$', '', complaint.removeprefix('INVALID_ARGUMENT: ')).strip()
    for pattern, replacement in _WORDS:
        complaint = re.sub(pattern, replacement, complaint)
    complaint = re.sub(r'<input>:(\d+)', lambda match: f'<input>:{int(match[1]) - shift}', complaint)
    parts = re.split(r'\n(?=ERROR: )', complaint)
    left = [part for part in parts if not _FINE.search(part)]
    if not left and _ON_LISTS.search(text):
        return NotEmulatedError('indexOf for lists')
    return CelError('\n'.join(left))


def _evaluation_error(text: str) -> str:
    if (match := re.search(r'Key not found in map : "?(.*?)"?$', text)) is not None:
        return f'no such key: {match[1]}'
    if 'divide by zero' in text:
        return 'division by zero'
    if (match := re.search(r'Index error: index=(-?\d+)', text)) is not None:
        return f'index out of bounds: {match[1]}'
    if 'No matching overloads found' in text:
        return NO_OVERLOAD
    return re.sub(r'^[A-Z_]+: ', '', text)
