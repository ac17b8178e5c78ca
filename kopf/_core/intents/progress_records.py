"""
The progress records of handlers, as the storages in the settings keep them on objects.

Why not simply call the storages? A state of an object is processed in several steps, so its records are cached. Only
custom storages of users are called each time, since they can keep the records elsewhere.
"""

from collections.abc import Collection, Mapping
from typing import Any

from kopf._cogs.configs import storage_formats
from kopf._cogs.configs.progress import ProgressRecord, ProgressStorage
from kopf._cogs.helpers.explanations import INTERRUPTIONS
from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.patches import Patch
from kopf._core.intents.storage_errors import StorageError


class ProgressRecords:
    """Loads and stores the records of all objects of one resource; only those of the latest object are cached."""

    __slots__ = ('_known', '_raw', '_remembering', '_storage')

    def __init__(self, storage: ProgressStorage) -> None:
        self._storage = storage
        self._remembering = not storage_formats.is_overridden(storage, 'fetch')
        self._raw: Mapping[str, Any] | None = None
        self._known: dict[HandlerId, ProgressRecord | None] = {}

    @property
    def is_external(self) -> bool:
        """Return whether the records can be stored elsewhere than on the objects."""
        return not self._remembering

    def fetch(self, *, key: HandlerId, body: Body) -> ProgressRecord | None:
        """Return the record of a handler; ``None`` if there is none."""
        known = self._get_known(body) if self._remembering else {}
        # Absent records are cached, too: as ``None``.
        if key not in known:
            try:
                known[key] = self._storage.fetch(key=key, body=body)
            except INTERRUPTIONS:
                raise
            except BaseException as error:
                raise StorageError(self._storage, 'fetch', error) from error
        return known[key]

    def fetch_all(self, keys: Collection[HandlerId], body: Body) -> list[ProgressRecord]:
        """Return the existing records of the handlers."""
        known = self._get_known(body) if self._remembering else {}
        records = [known[key] if key in known else self.fetch(key=key, body=body) for key in keys]
        return [record for record in records if record is not None]

    def store(self, *, key: HandlerId, record: ProgressRecord, body: Body, patch: Patch) -> None:
        """Add the record of a handler to the patch, or write it to the place of the storage."""
        try:
            self._storage.store(key=key, record=record, body=body, patch=patch)
        except INTERRUPTIONS:
            raise
        except BaseException as error:
            raise StorageError(self._storage, 'store', error) from error

    def purge(self, *, key: HandlerId, body: Body, patch: Patch) -> None:
        """Remove the record of a handler: by the patch, or from the place of the storage."""
        try:
            self._storage.purge(key=key, body=body, patch=patch)
        except INTERRUPTIONS:
            raise
        except BaseException as error:
            raise StorageError(self._storage, 'purge', error) from error

    def purge_unfinished_creations(self, *, body: Body, patch: Patch) -> None:
        """Remove the records of former handlers that tell that the creation goes on, if the storage can find them."""
        try:
            self._storage.purge_unfinished_creations(body=body, patch=patch)
        except INTERRUPTIONS:
            raise
        except BaseException as error:
            raise StorageError(self._storage, 'purge_unfinished_creations', error) from error

    def flush(self) -> None:
        """Complete the postponed writes of the storage."""
        try:
            self._storage.flush()
        except INTERRUPTIONS:
            raise
        except BaseException as error:
            raise StorageError(self._storage, 'flush', error) from error

    def forget(self) -> None:
        """Release the cached object."""
        self._raw, self._known = None, {}

    def _get_known(self, body: Body) -> dict[HandlerId, ProgressRecord | None]:
        raw = body._data()
        if raw is not self._raw:
            self._raw, self._known = raw, {}
        return self._known
