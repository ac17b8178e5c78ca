"""
The records of handlers on objects, read once for each state of an object: a state is looked at several times in a row.

Storages of developers' own are always asked, as they can keep the records elsewhere.
"""

from collections.abc import Collection, Mapping
from typing import Any

from kopf._cogs.configs import storage_formats
from kopf._cogs.configs.progress import ProgressRecord, ProgressStorage
from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.patches import Patch
from kopf._core.intents.storage_errors import StorageError


class ProgressRecords:
    """The records on all the objects of one resource; only those on the latest object are remembered."""

    __slots__ = ('_known', '_raw', '_remembering', '_storage')

    def __init__(self, storage: ProgressStorage) -> None:
        self._storage = storage
        self._remembering = not storage_formats.is_overridden(storage, 'fetch')
        self._raw: Mapping[str, Any] | None = None
        self._known: dict[HandlerId, ProgressRecord | None] = {}

    def fetch(self, *, key: HandlerId, body: Body) -> ProgressRecord | None:
        """Give the record of a handler; `None` if there is none."""
        known = self._get_known(body) if self._remembering else {}
        if key not in known:
            try:
                known[key] = self._storage.fetch(key=key, body=body)
            except Exception as error:
                raise StorageError(self._storage, 'fetch', error) from error
        return known[key]

    def fetch_all(self, keys: Collection[HandlerId], body: Body) -> list[ProgressRecord]:
        """Give the records of those handlers that have one."""
        known = self._get_known(body) if self._remembering else {}
        records = [known[key] if key in known else self.fetch(key=key, body=body) for key in keys]
        return [record for record in records if record is not None]

    def store(self, *, key: HandlerId, record: ProgressRecord, body: Body, patch: Patch) -> None:
        """Put the record of a handler into the patch, or to where the storage has it."""
        try:
            self._storage.store(key=key, record=record, body=body, patch=patch)
        except Exception as error:
            raise StorageError(self._storage, 'store', error) from error

    def purge(self, *, key: HandlerId, body: Body, patch: Patch) -> None:
        """Let the patch remove the record of a handler, or remove it from where the storage has it."""
        try:
            self._storage.purge(key=key, body=body, patch=patch)
        except Exception as error:
            raise StorageError(self._storage, 'purge', error) from error

    def flush(self) -> None:
        """Complete the writes that the storage has postponed."""
        try:
            self._storage.flush()
        except Exception as error:
            raise StorageError(self._storage, 'flush', error) from error

    def forget(self) -> None:
        """Keep no object in memory."""
        self._raw, self._known = None, {}

    def _get_known(self, body: Body) -> dict[HandlerId, ProgressRecord | None]:
        raw = body._data()
        if raw is not self._raw:
            self._raw, self._known = raw, {}
        return self._known
