"""
Packed objects: states that are kept for long but used rarely, stored as JSON, which is five times smaller than dicts.

Live views read their values through a packed object (see `dicts`): the first access parses the JSON. A fixed number of
recently used states stay parsed, regardless of the number of objects. Changes made in place are kept.
"""

import copy
import json
import threading
from collections.abc import Mapping
from typing import Any

import orjson

from kopf._cogs.helpers.jsontexts import dump_tightly

MAX_PARSED = 100
"""The number of states that stay parsed: enough for a small operator whose daemons use them all the time."""


class ParsedCache:
    """The packed objects of an operator that are parsed now. They can be used from any thread."""

    __slots__ = ('_lock', '_parsed')

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: the garbage collector can call finalizers that use states
        self._parsed: dict[PackedObject, None] = {}  # in the order of parsing

    def _add(self, packed: 'PackedObject') -> None:
        # Move an object that was replaced and parsed again to the end: at its old position, it would be dropped too
        # early.
        self._parsed.pop(packed, None)
        self._parsed[packed] = None
        # Why in the order of parsing, not of use? The order of use would have to be changed, under the lock, with each
        # read of a field.
        if len(self._parsed) > MAX_PARSED:
            oldest = next(iter(self._parsed))
            del self._parsed[oldest]
            oldest._drop_parsed()


class PackedObject:
    """One packed state of an object, replaceable by others; it can be the root of views."""

    __slots__ = ('_data', '_cache', '_text')

    def __init__(self, cache: ParsedCache, data: Mapping[str, Any], /) -> None:
        self._cache = cache
        self._text = _pack(data)
        self._data = data if self._text is None else None

    def __getitem__(self, index: int, /) -> Mapping[str, Any]:
        # Read without the lock first: nearly all reads find a parsed state, and reading one attribute is atomic.
        data = self._data
        if data is not None:
            return data
        with self._cache._lock:
            data = self._data
            # Another thread can have parsed it since the first look.
            if data is None:
                assert self._text is not None
                data = self._data = _unpack(self._text)
                self._cache._add(self)
        return data

    def __setitem__(self, index: int, data: Mapping[str, Any], /) -> None:
        # Pack it outside of the lock: this takes long, and needs only the new state.
        text = _pack(data)
        with self._cache._lock:
            self._text, self._data = text, data if text is None else None

    @property
    def text(self) -> str | bytes | None:
        """The current state as JSON; ``None`` if it has values that JSON cannot express."""
        with self._cache._lock:
            return self._text if self._data is None else _pack(self._data)

    @text.setter
    def text(self, text: str | bytes) -> None:
        with self._cache._lock:
            self._text, self._data = text, None

    def copy(self) -> dict[str, Any]:
        """Return the current state as a new dict that shares no values with others."""
        text = self.text
        return copy.deepcopy(dict(self[0])) if text is None else _unpack(text)

    def _drop_parsed(self) -> None:
        if self._data is not None:
            # Packed again, because the user's daemons can have changed the parsed state in place.
            text = _pack(self._data)
            if text is not None:
                self._text, self._data = text, None


def _pack(data: Mapping[str, Any]) -> str | bytes | None:
    try:
        return dump_tightly(data)
    except TypeError:
        try:  # some numbers in JSON are too large for the fast library
            return json.dumps(data)
        except (TypeError, ValueError):
            return None


def _unpack(text: str | bytes) -> dict[str, Any]:
    data: dict[str, Any] = orjson.loads(text) if isinstance(text, bytes) else json.loads(text)
    return data
