"""
States of objects that are kept for long, but looked at rarely: as texts, a fifth as large as what is parsed of them.

A stash stands in for the root of live views (see `dicts`): the first look parses the text. The states that were looked
at last stay parsed, but only so many of them, whatever the number of objects is. What is changed in place stays so.
"""

import copy
import json
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

import orjson

from kopf._cogs.helpers.jsontexts import dump_tightly

MAX_PARSED = 100
"""How many states stay parsed: those of a small operator, with daemons that look at them all the time."""


class Stashes:
    """All the stashes of an operator. They can be looked at from any thread."""

    __slots__ = ('_lock', '_parsed')

    def __init__(self) -> None:
        self._lock = threading.RLock()  # what is collected as garbage meanwhile can look at states, too
        self._parsed: deque[Stash] = deque()

    def _note_parsed(self, stash: 'Stash') -> None:
        self._parsed.append(stash)
        if len(self._parsed) > MAX_PARSED:
            self._parsed.popleft()._fold()


class Stash:
    """One state of an object, replaceable by others; it can be what views look into."""

    __slots__ = ('_data', '_stashes', '_text')

    def __init__(self, stashes: Stashes, data: Mapping[str, Any], /) -> None:
        self._stashes = stashes
        self._text = _pack(data)
        self._data = data if self._text is None else None

    def __getitem__(self, index: int, /) -> Mapping[str, Any]:
        data = self._data
        if data is not None:
            return data
        with self._stashes._lock:
            data = self._data
            if data is None:
                assert self._text is not None
                data = self._data = _unpack(self._text)
                self._stashes._note_parsed(self)
        return data

    def __setitem__(self, index: int, data: Mapping[str, Any], /) -> None:
        text = _pack(data)
        with self._stashes._lock:
            self._text, self._data = text, data if text is None else None

    @property
    def text(self) -> str | bytes | None:
        """The state as it is now; ``None`` if something was put into it that JSON cannot express."""
        with self._stashes._lock:
            return self._text if self._data is None else _pack(self._data)

    @text.setter
    def text(self, text: str | bytes) -> None:
        with self._stashes._lock:
            self._text, self._data = text, None

    def copy(self) -> dict[str, Any]:
        """Give the state as it is now, with nothing in it that anybody else has."""
        text = self.text
        return copy.deepcopy(dict(self[0])) if text is None else _unpack(text)

    def _fold(self) -> None:
        if self._data is not None:
            text = _pack(self._data)
            if text is not None:
                self._text, self._data = text, None


def _pack(data: Mapping[str, Any]) -> str | bytes | None:
    try:
        return dump_tightly(data)
    except TypeError:
        try:  # there are numbers in JSON that are too large for the fast library
            return json.dumps(data)
        except (TypeError, ValueError):
            return None


def _unpack(text: str | bytes) -> dict[str, Any]:
    data: dict[str, Any] = orjson.loads(text) if isinstance(text, bytes) else json.loads(text)
    return data
