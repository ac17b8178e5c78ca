"""
Quantities of resources in canonical form: ``1024Mi`` is stored and sent as ``1Gi``, ``0.5`` as ``500m``.

A quantity keeps its notation (decimal, binary, exponent) and gets the largest unit that leaves it an integer.
"""

import re
from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Any

_SYNTAX = re.compile(r'([+-]?(?:\d+\.?\d*|\.\d+))(|[KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)')
_DECIMAL = {'n': -9, 'u': -6, 'm': -3, '': 0, 'k': 3, 'M': 6, 'G': 9, 'T': 12, 'P': 15, 'E': 18}
_BINARY = {'Ki': 1, 'Mi': 2, 'Gi': 3, 'Ti': 4, 'Pi': 5, 'Ei': 6}
PROBLEM = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"


def canonical(value: Any) -> str:
    """
    Return the quantity as it is stored.

    Raises:
        ValueError: It is not a quantity; the message is the server's.
    """
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(PROBLEM)
    text = value if isinstance(value, str) else repr(value)
    match = _SYNTAX.fullmatch(text.strip())
    if match is None:
        raise ValueError(PROBLEM)
    number, suffix = Decimal(match[1]), match[2]
    if suffix in _BINARY:
        return _binary(number * 1024 ** _BINARY[suffix])
    if suffix in _DECIMAL:
        return _decimal(number.scaleb(_DECIMAL[suffix]))
    return _exponential(number.scaleb(int(suffix[1:])))


def amount(value: Any) -> Decimal:
    """
    Return the number that a quantity stands for.

    Raises:
        ValueError: It is not a quantity.
    """
    text = canonical(value)
    match = _SYNTAX.fullmatch(text)
    assert match is not None
    number, suffix = Decimal(match[1]), match[2]
    if suffix in _BINARY:
        return number * Decimal(1024 ** _BINARY[suffix])
    return number.scaleb(_DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:]))


def canonize(values: Any) -> None:
    """Convert all quantities of a mapping to their canonical form; the validation reports invalid ones later."""
    if isinstance(values, dict):
        for key, value in values.items():
            try:
                values[key] = canonical(value)
            except ValueError:
                continue


def is_same(one: Mapping[str, Any], other: Mapping[str, Any], key: str) -> bool:
    """Check whether both mappings have the same quantity of that resource."""
    try:
        return key in one and key in other and amount(one[key]) == amount(other[key])
    except ValueError:
        return False


def _decimal(number: Decimal) -> str:
    nanos = int((number.scaleb(9)).to_integral_value(rounding=ROUND_CEILING if number > 0 else 'ROUND_FLOOR'))
    if nanos == 0:
        return '0'
    exponent = -9
    while nanos % 1000 == 0 and exponent < 18:
        nanos, exponent = nanos // 1000, exponent + 3
    suffix = next(name for name, power in _DECIMAL.items() if power == exponent)
    return f'{nanos}{suffix}'


def _binary(number: Decimal) -> str:
    if abs(number) < 1024:  # Quantities below the smallest binary unit are written as decimal numbers.
        return _decimal(number)
    whole, power = int(number.to_integral_value(rounding=ROUND_CEILING)), 0
    while whole % 1024 == 0 and power < 6:
        whole, power = whole // 1024, power + 1
    return f'{whole}{next((name for name, known in _BINARY.items() if known == power), "")}'


def _exponential(number: Decimal) -> str:
    text = _decimal(number)
    match = _SYNTAX.fullmatch(text)
    assert match is not None
    power = _DECIMAL[match[2]]
    return f'{match[1]}e{power}' if power else match[1]
