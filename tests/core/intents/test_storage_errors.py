"""Failures of storages, which can be the users' own: the message names the setting, the storage and the error."""

import kopf
from kopf._core.intents.storage_errors import StorageError


def test_messages_name_the_setting_and_all_storages_in_it():
    storage = kopf.MultiProgressStorage([kopf.StatusProgressStorage(), kopf.AnnotationsProgressStorage()])
    error = StorageError(storage, 'fetch', ConnectionError("no route"))
    assert str(error) == repr(error)
    assert str(error) == (
        "settings.persistence.progress_storage (MultiProgressStorage(StatusProgressStorage, "
        "AnnotationsProgressStorage)) has failed to fetch: ConnectionError: no route"
    )


def test_messages_tell_the_storages_of_progress_from_those_of_states():
    error = StorageError(kopf.StatusDiffBaseStorage(), 'store', KeyError('x'))
    assert str(error).startswith("settings.persistence.diffbase_storage (StatusDiffBaseStorage) has failed to store: ")
