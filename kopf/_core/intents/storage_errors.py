"""
Failures of the storages that the settings name: they can be the user's own, and ask a database, for example.

Such a failure is said to be of the storage, and is retried as those of the framework and of the API are.
"""

from kopf._cogs.configs.diffbase import DiffBaseStorage
from kopf._cogs.configs.progress import ProgressStorage
from kopf._cogs.helpers.explanations import name_error


class StorageError(Exception):
    """A storage has failed. Its own error is the cause of this one."""

    def __init__(self, storage: DiffBaseStorage | ProgressStorage, method: str, error: Exception) -> None:
        option = 'diffbase_storage' if isinstance(storage, DiffBaseStorage) else 'progress_storage'
        super().__init__(
            f"settings.persistence.{option} ({_describe(storage)}) has failed to {method}: {name_error(error)}"
        )

    def __repr__(self) -> str:
        return str(self)


def _describe(storage: object) -> str:
    parts = ', '.join(map(_describe, getattr(storage, 'storages', ())))
    return f'{type(storage).__name__}({parts})' if parts else type(storage).__name__
