"""
Seals: whether somebody has changed the state of an object in place, and what it was before.

Handlers get the object as it is, not a copy of it: for many events, a copy would cost more than everything else. Views
let nobody change the object itself, but the lists and dicts inside of it are those of the JSON parser. A text of the
object is made at a fraction of the cost, and tells as much.
"""

import copy
from collections.abc import Mapping
from typing import Any, cast

import orjson

from kopf._cogs.helpers.jsontexts import dump_tightly
from kopf._cogs.structs import diffs
from kopf._cogs.structs.bodies import RawBody


class Seal:
    """A state of an object as it was when it was sealed."""

    __slots__ = ('_copy', '_text', 'raw')

    def __init__(self, raw: RawBody, /) -> None:
        self.raw = raw
        self._copy: RawBody | None = None
        try:
            self._text = dump_tightly(raw)
        except TypeError:  # there are numbers in JSON that are too large for this library
            self._copy = copy.deepcopy(raw)

    @property
    def is_broken(self) -> bool:
        """Whether the state was changed since then."""
        if self._copy is not None:
            return not diffs.is_same(self._copy, self.raw)
        try:
            return orjson.dumps(self.raw) != self._text
        except TypeError:
            return True

    @property
    def original(self) -> RawBody:
        """The state as it was, with nothing in it that anybody else has."""
        return cast(RawBody, orjson.loads(self._text)) if self._copy is None else copy.deepcopy(self._copy)

    def explain(self) -> str:
        """Tell what was changed, and what to do instead."""
        return explain_changes(self.original, self.raw)


def explain_changes(original: Mapping[str, Any], changed: Mapping[str, Any]) -> str:
    """Tell what was changed in place, and what to do instead."""
    fields = ['.'.join(map(str, item.field)) for item in diffs.diff(original, changed)]
    return (
        f"The object was changed in place: {', '.join(fields)}. By itself, that changes nothing in the cluster, "
        f"and it is undone. Use the argument patch; or change a copy (copy.deepcopy) if it is for something else."
    )
