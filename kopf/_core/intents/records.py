"""
The records of handlers on objects, read once for each state of an object: a state is looked at several times in a row.

Storages of developers' own are always asked, as they can keep the records elsewhere.
"""
from collections.abc import Collection, Mapping
from typing import Any

from kopf._cogs.configs import conventions
from kopf._cogs.configs.progress import ProgressRecord, ProgressStorage
from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.ids import HandlerId


class Records:
    """The records on all the objects of one resource; only those on the latest object are remembered."""

    __slots__ = ('_known', '_raw', '_remembering', '_storage')

    def __init__(self, storage: ProgressStorage) -> None:
        self._storage = storage
        self._remembering = not conventions.is_overridden(storage, 'fetch')
        self._raw: Mapping[str, Any] | None = None
        self._known: dict[HandlerId, ProgressRecord | None] = {}

    def fetch(self, *, key: HandlerId, body: Body) -> ProgressRecord | None:
        """Give the record of a handler; `None` if there is none."""
        if not self._remembering:
            return self._storage.fetch(key=key, body=body)
        known = self._get_known(body)
        if key not in known:
            known[key] = self._storage.fetch(key=key, body=body)
        return known[key]

    def fetch_all(self, keys: Collection[HandlerId], body: Body) -> list[ProgressRecord]:
        """Give the records of those handlers that have one."""
        known = self._get_known(body) if self._remembering else {}
        records = [known[key] if key in known else self.fetch(key=key, body=body) for key in keys]
        return [record for record in records if record is not None]

    def forget(self) -> None:
        """Keep no object in memory."""
        self._raw, self._known = None, {}

    def _get_known(self, body: Body) -> dict[HandlerId, ProgressRecord | None]:
        raw = body._data()
        if raw is not self._raw:
            self._raw, self._known = raw, {}
        return self._known
