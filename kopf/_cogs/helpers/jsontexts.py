"""
JSON texts: those that are kept for a while, and those with halves of characters.

What `orjson` gives has room for much more: 4 KB even for a text of some bytes. That does not matter for what is sent at
once. But there can be thousands of patches that wait for their turn, and of objects that are kept as texts.
"""

from collections.abc import Callable
from typing import Any

import orjson


def dump_tightly(data: Any, default: Callable[[Any], Any] | None = None) -> bytes:
    """Give the text in no more memory than it needs; the same as `orjson.dumps` otherwise."""
    return bytes(memoryview(orjson.dumps(data, default=default)))


def replace_halves(text: str) -> str:
    """Give the text with U+FFFD for halves of characters (lone surrogates), which UTF-8 cannot express."""
    return text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')
