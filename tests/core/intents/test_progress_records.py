"""Progress records: they are read once for each state of an object, unless the storage is the user's own."""

import pytest

import kopf
from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.patches import Patch
from kopf._core.intents.progress_records import ProgressRecords
from kopf._core.intents.storage_errors import StorageError

RECORD = {'started': '2020-01-01T00:00:00', 'retries': 1}


def body_with(storage, *keys):
    patch = Patch()
    empty = Body({'metadata': {'name': 'obj'}})
    for key in keys:
        storage.store(key=key, record=RECORD, body=empty, patch=patch)
    return Body({**patch, 'metadata': {'name': 'obj', **patch.get('metadata', {})}})


class OwnStorage(kopf.AnnotationsProgressStorage):
    fetched = 0

    def fetch(self, *, key, body):
        self.fetched += 1
        return super().fetch(key=key, body=body)


class BrokenStorage(kopf.AnnotationsProgressStorage):
    def fail(self, **_):
        raise OSError("The disk is full.")

    fetch = store = purge = flush = fail


def test_only_existing_records_are_returned():
    storage = kopf.AnnotationsProgressStorage()
    records, body = ProgressRecords(storage), body_with(storage, 'a', 'b')
    assert records.fetch(key='none', body=body) is None
    assert [record['retries'] for record in records.fetch_all(['a', 'none', 'b'], body)] == [1, 1]


def test_records_are_read_once_for_a_state():
    storage = kopf.AnnotationsProgressStorage()
    records, body = ProgressRecords(storage), body_with(storage, 'a')
    assert records.fetch(key='a', body=body) is records.fetch(key='a', body=body)


def test_records_are_read_anew_from_another_state():
    storage = kopf.AnnotationsProgressStorage()
    records = ProgressRecords(storage)
    assert records.fetch(key='a', body=body_with(storage, 'a'))
    assert records.fetch(key='a', body=body_with(storage)) is None


def test_storages_of_users_are_read_each_time():
    storage = OwnStorage()
    records, body = ProgressRecords(storage), body_with(storage, 'a')
    records.fetch(key='a', body=body)
    records.fetch_all(['a'], body)
    assert storage.fetched == 2


@pytest.mark.parametrize(
    'verb, call',
    [
        ('fetch', lambda records, body: records.fetch(key='a', body=body)),
        ('store', lambda records, body: records.store(key='a', record=RECORD, body=body, patch=Patch())),
        ('purge', lambda records, body: records.purge(key='a', body=body, patch=Patch())),
        ('flush', lambda records, body: records.flush()),
    ],
    ids=['fetch', 'store', 'purge', 'flush'],
)
def test_errors_of_storages_name_the_storage_and_the_method(verb, call):
    with pytest.raises(StorageError, match="The disk is full") as caught:
        call(ProgressRecords(BrokenStorage()), Body({'metadata': {}}))
    assert 'BrokenStorage' in str(caught.value) and verb in str(caught.value)
