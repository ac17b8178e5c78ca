"""
Detection of handlers that change an object in place, and restoration of its original state.

Handlers get the object itself. Why not a deep copy? For many events, it would cost more than all other processing.
The views reject changes of the object, but handlers can change the lists and dicts in it, which the JSON parser made.
Serializing the object costs a fraction of a copy, and is sufficient to detect and undo such changes.
"""

import copy
from collections.abc import Mapping
from typing import Any, cast

import orjson

from kopf._cogs.helpers.jsontexts import dump_tightly
from kopf._cogs.structs import diffs
from kopf._cogs.structs.bodies import RawBody


class BodyGuard:
    """A detector of changes made in place to one state of an object after its creation."""

    __slots__ = ('_copy', '_text', 'raw')

    def __init__(self, raw: RawBody, /) -> None:
        self.raw = raw
        self._copy: RawBody | None = None
        try:
            self._text = dump_tightly(raw)
        except TypeError:  # some numbers in JSON are too large for this library
            self._copy = copy.deepcopy(raw)

    @property
    def is_changed(self) -> bool:
        """True if the state was changed since the guard was created."""
        if self._copy is not None:
            return not diffs.is_same(self._copy, self.raw)
        try:
            # Why not `dump_tightly`? It saves memory, but this text is dropped at once.
            return orjson.dumps(self.raw) != self._text
        # The handler has added a value that JSON cannot express.
        except TypeError:
            return True

    @property
    def original(self) -> RawBody:
        """The original state, as a new object that shares no values with others."""
        return cast(RawBody, orjson.loads(self._text)) if self._copy is None else copy.deepcopy(self._copy)

    def explain(self) -> str:
        """Return a message on the changed fields, with the remedy."""
        return explain_changes(self.original, self.raw)


def explain_changes(original: Mapping[str, Any], changed: Mapping[str, Any]) -> str:
    """Return a message on the fields changed in place, with the remedy."""
    fields = ['.'.join(map(str, item.field)) for item in diffs.diff(original, changed)]
    return (
        f"The object was changed in place: {', '.join(fields)}. By itself, that changes nothing in the cluster, "
        f"and it is undone. Use the argument patch; or change a copy (copy.deepcopy) if it is for something else."
    )
