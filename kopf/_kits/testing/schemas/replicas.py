"""
Validation of the numbers of replicas that the ``scale`` subresource of a custom kind refers to.

A real server checks this after the schema, which may allow other values there.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from kopf._kits.testing.wire import gotext, statuses
from kopf._kits.testing.wire.statuses import Cause

MOST = 2**31 - 1


class Misplaced(Exception):
    """Raised when the value at the path, or one on the way to it, has a wrong type."""


def problems(body: Mapping[str, Any], scale: Mapping[str, str], *, status: bool) -> Iterator[Cause]:
    """Yield the errors of the numbers in the specification, or of those in the status."""
    yield from _number_problems(body, scale['status' if status else 'spec'])
    if status and (path := scale['selector']):
        try:
            _find(body, path, str)
        except Misplaced as error:
            yield statuses.value_invalid(path, '""', str(error))


def _number_problems(body: Mapping[str, Any], path: str) -> Iterator[Cause]:
    try:
        number = _find(body, path, int) or 0
    except Misplaced as error:
        yield statuses.value_invalid(path, '0', str(error))
        return
    if number < 0:
        yield statuses.value_invalid(path, str(number), 'should be a non-negative integer')
    if number > MOST:
        yield statuses.value_invalid(path, str(number), f'should be less than or equal to {MOST}')


def _find(body: Mapping[str, Any], path: str, type: type) -> Any:
    """
    Return the value at the path, or None if it is absent.

    Raises:
        Misplaced: A value has a wrong type; the message is Go's.
    """
    value: Any = body
    names = path.strip('.').split('.')
    for index, name in enumerate(names):
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise _misplaced(names[: index + 1], value, 'map[string]interface{}')
        if name not in value:
            return None
        value = value[name]
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        value = float(value)  # Go decodes integers that do not fit as floats.
    if not isinstance(value, type) or type is int and isinstance(value, bool):
        raise _misplaced(names, value, {int: 'int64', str: 'string'}[type])
    return value


def _misplaced(names: list[str], value: Any, wanted: str) -> Misplaced:
    return Misplaced(
        f'.{".".join(names)} accessor error: {gotext.plain(value)} is of the type '
        f'{gotext.type_name(value)}, expected {wanted}'
    )
