"""
Failures of the storages in the settings. Users can replace these storages, e.g. with storages in a database.

The errors name the failed storage. They are retried in the same way as the failures of the API.
"""

from kopf._cogs.configs.diffbase import DiffBaseStorage
from kopf._cogs.configs.progress import ProgressStorage
from kopf._cogs.helpers.explanations import name_error


class StorageError(Exception):
    """Raised when a storage has failed; the original error is the ``__cause__``."""

    def __init__(self, storage: DiffBaseStorage | ProgressStorage, method: str, error: BaseException) -> None:
        option = 'diffbase_storage' if isinstance(storage, DiffBaseStorage) else 'progress_storage'
        super().__init__(
            f"settings.persistence.{option} ({_describe(storage)}) has failed to {method}: {name_error(error)}"
        )

    def __repr__(self) -> str:
        return str(self)


def _describe(storage: object) -> str:
    parts = ', '.join(map(_describe, getattr(storage, 'storages', ())))
    return f'{type(storage).__name__}({parts})' if parts else type(storage).__name__
