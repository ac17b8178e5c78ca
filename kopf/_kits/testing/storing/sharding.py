"""
Sharded lists and watches (``shardSelector``): a shard consists of the objects whose hashes are in its ranges.

The hash is that of the uid or the namespace. This is an alpha feature of Kubernetes 1.36, off by default there and
here. The syntax is a tiny part of CEL: ``shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')``,
joined by ``||``.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from kopf._kits.testing.kinds.storage import Record
from kopf._kits.testing.storing.selectors import Selector
from kopf._kits.testing.wire import statuses

UID, NAMESPACE = 'object.metadata.uid', 'object.metadata.namespace'
_CALL = re.compile(r'\s*([A-Za-z_]\w*)\s*\(([^()]*)\)\s*')
_TEXT = re.compile(r"""'([^'\\]*)'|"([^"\\]*)\"""")


class Range(NamedTuple):
    """A range of hashes of one field, the end excluded."""

    key: str
    start: str
    end: str

    def __str__(self) -> str:
        return f"shardRange({self.key}, '{self.start}', '{self.end}')"


class Sharded(Selector):
    """A selector of labels and fields with a restriction to some ranges of hashes."""

    def __init__(self, selector: Selector, text: str) -> None:
        self._selector = selector
        self._ranges = parse(text)

    def __bool__(self) -> bool:
        return True

    @property
    def whole(self) -> Selector:
        """The selector of labels and fields alone."""
        return self._selector

    @property
    def name(self) -> str | None:
        """See `Selector`."""
        return self._selector.name

    @property
    def shards(self) -> str:
        """The ranges in the form of the response."""
        return ' || '.join(str(each) for each in self._ranges)

    def matches(self, record: Record) -> bool:
        """Check whether the object is selected and in one of the ranges."""
        # All ranges are about the same field: `parse` refuses others.
        value = int(digest(record.uid if self._ranges[0].key == UID else record.namespace), 16)
        return any(
            int(each.start, 16) <= value < int(each.end, 16) for each in self._ranges
        ) and self._selector.matches(record)


def digest(text: str) -> str:
    """Return the hash of a value (FNV-1a, 64 bits) in 16 hexadecimal digits."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f'{value:016x}'


def parse(text: str) -> list[Range]:
    """Return the ranges of a selector; raise a 500 if it is invalid, as a real server does."""
    try:
        ranges = list(_ranges(text.strip()))
    except ValueError as error:
        raise statuses.internal(f'invalid shard selector: {error}') from None
    for each in ranges[1:]:
        if each.key != ranges[0].key:
            raise statuses.internal(
                'invalid shard selector: all shard ranges must use the same field, got '
                f'"{ranges[0].key}" and "{each.key}"'
            )
    return ranges


def _ranges(text: str) -> Iterator[Range]:
    if not text:
        raise ValueError('empty shard selector is not allowed; omit the parameter for unfiltered lists')
    for part in text.split('||'):
        if (match := _CALL.fullmatch(part)) is None:
            raise ValueError(_complaint(part.strip()))
        if match[1] != 'shardRange':
            raise ValueError(f'unsupported function "{match[1]}"; only shardRange() and || are allowed')
        arguments = [argument.strip() for argument in match[2].split(',')] if match[2].strip() else []
        if len(arguments) != 3:
            raise ValueError(f'shardRange() requires exactly 3 arguments, got {len(arguments)}')
        if (key := arguments[0]) not in (UID, NAMESPACE):
            raise ValueError(f'unsupported field path "{key}"; supported: {UID}, {NAMESPACE}')
        start, end = _bound(arguments[1], 'hexStart'), _bound(arguments[2], 'hexEnd')
        if int(start, 16) >= int(end, 16):
            raise ValueError(f'shard range start {start} must be less than end {end}')
        yield Range(key, start, end)


def _complaint(text: str) -> str:
    """Return the error message for an invalid call; the kinds of expressions have the same numbers as in cel-go."""
    if '&&' in text:
        return 'unsupported function "_&&_"; only shardRange() and || are allowed'
    for kind, pattern in ((3, r'[A-Za-z_]\w*'), (5, r"""\d+|'[^']*'|"[^"]*\""""), (7, r'\w+(\.\w+)+')):
        if re.fullmatch(pattern, text):
            return f'unexpected expression kind {kind}; expected shardRange() call or || operator'
    return f'CEL parse error: Syntax error in {text!r}'


def _bound(argument: str, name: str) -> str:
    if (match := _TEXT.fullmatch(argument)) is None:
        raise ValueError(f"{name} must be a string literal (e.g. '0xff')")
    text = match[1] if match[1] is not None else match[2]
    digits = text.removeprefix('0x')
    if digits == text:
        raise ValueError(f'{name} must have \'0x\' prefix, got "{text}"')
    if not digits:
        raise ValueError(f"{name}: hex value is required after '0x'")
    if len(digits) > 17:
        raise ValueError(f'{name}: hex value too long ({len(digits)} chars, max 17): "{digits}"')
    if (wrong := re.search('[^0-9a-f]', digits)) is not None:
        raise ValueError(f'{name}: invalid hex character "{wrong[0]}" in "{text}"')
    # The end of the last range, which is excluded, has one digit more than any hash.
    if len(digits) == 17 and text != '0x10000000000000000':
        raise ValueError(f"{name}: 17-digit hex value must be '0x10000000000000000' (2^64), got \"{text}\"")
    if len(digits) < 16:
        raise ValueError(
            f'{name} must be a 0x-prefixed 16-digit hex value, got "{text}" (did you mean "0x{digits:0>16}"?)'
        )
    return text
