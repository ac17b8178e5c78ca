"""
Buckets: the parts into which all objects are divided, for distribution among the members of a sharded operator.

The hash of its uid, or of its namespace, determines the bucket of an object. The hash function is that of the sharded
lists and watches of Kubernetes (``shardSelector``, KEP-5866): FNV-1a with 64 bits. A bucket is a contiguous range of
hashes, so that the API server can select the same objects.
"""

import functools
import re
from collections.abc import Collection, Iterable

MAX_BUCKETS = 65536
"""The greatest number of buckets: the annotations that name them must stay small."""

_RANGE = re.compile(r'(\d+)(?:-(\d+))?')


def digest(text: str) -> int:
    """Return the hash of a uid or of a namespace."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


# Why a cache? The bucket is needed for each event. For the events of other members, this would take half of the time.
@functools.lru_cache(maxsize=65536)
def find_bucket(text: str, buckets: int) -> int:
    """Return the bucket of a uid or of a namespace."""
    return digest(text) * buckets >> 64


def format_ranges(buckets: Iterable[int]) -> str:
    """Return the buckets as text, such as ``0-63,70``."""
    ranges: list[list[int]] = []
    for bucket in sorted(buckets):
        if ranges and bucket == ranges[-1][1] + 1:
            ranges[-1][1] = bucket
        else:
            ranges.append([bucket, bucket])
    return ','.join(f'{first}-{last}' if last > first else f'{first}' for first, last in ranges)


def parse_ranges(text: object, buckets: int) -> Collection[int]:
    """
    Return the buckets of a text that `format_ranges` has made.

    Raises:
        ValueError: if the text is malformed, or if it names buckets that do not exist.
    """
    if not isinstance(text, str):
        raise ValueError(f"{text!r} is no text")
    found: set[int] = set()
    for part in text.split(',') if text else ():
        match = _RANGE.fullmatch(part)
        first, last = (0, -1) if match is None else (int(match[1]), int(match[2] or match[1]))
        if not first <= last < buckets:
            raise ValueError(f"{part!r} is no range of {buckets} buckets")
        found.update(range(first, last + 1))
    return frozenset(found)
