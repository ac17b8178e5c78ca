"""
JSON texts that are kept for a while, and texts with lone surrogates.

The results of `orjson` occupy more memory than necessary: 4 KB even for a few bytes. This does not matter for requests
that are sent at once. But thousands of patches can be queued, and thousands of objects can be stored as JSON.
"""

from collections.abc import Callable
from typing import Any

import orjson


def dump_tightly(data: Any, default: Callable[[Any], Any] | None = None) -> bytes:
    """Return the same as `orjson.dumps`, but in no more memory than the text needs."""
    # Why a view? `bytes` of bytes would return the same object with its unused memory.
    return bytes(memoryview(orjson.dumps(data, default=default)))


def replace_halves(text: str) -> str:
    """Return the text with U+FFFD instead of lone surrogates (halves of characters), which UTF-8 cannot express."""
    return text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')
