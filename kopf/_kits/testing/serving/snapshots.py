"""
Snapshots: all objects as they were at one moment, to be restored any number of times.

`restore` deletes added objects, creates deleted objects again, and reverts modified objects, all by ordinary changes
with new resource versions. So the watches of clients receive these changes, and clients need not list again.
Finalizers, webhooks, and the garbage collector are bypassed.

`restore` skips objects that have not changed. To find them quickly, it first compares them by identity: the storage
never changes a stored object in place.
"""

import dataclasses
from collections.abc import Iterator, Mapping

from kopf._kits.testing.kinds.kinds import Body
from kopf._kits.testing.kinds.storage import ChangeType, Record, Storage, TableName
from kopf._kits.testing.resources import crds

_CRDS = TableName(crds.GROUP, crds.PLURAL)


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """All objects at one moment; see `Sandbox.snapshot`."""

    tables: Mapping[TableName, Mapping[str, Record]]

    def __len__(self) -> int:
        return sum(map(len, self.tables.values()))

    def __repr__(self) -> str:
        return f'<Snapshot of {len(self)} objects>'


def take(storage: Storage) -> Snapshot:
    """Return a snapshot of all objects as they are now."""
    return Snapshot({table.name: table.contents() for table in storage})


def restore(storage: Storage, snapshot: Snapshot) -> None:
    """Restore the objects; remove CRDs last, and add them first."""
    # Custom resources need their CRD when they are removed, and when they are added.
    names = [name for name in _names(storage, snapshot) if name != _CRDS]
    for name in [*names, _CRDS]:
        _remove(storage, name, snapshot.tables.get(name, {}))
    for name in [_CRDS, *names]:
        _put(storage, name, snapshot.tables.get(name, {}))


def _names(storage: Storage, snapshot: Snapshot) -> Iterator[TableName]:
    present = [table.name for table in storage]
    yield from present
    yield from (name for name in snapshot.tables if name not in present)


def _remove(storage: Storage, name: TableName, wanted: Mapping[str, Record]) -> None:
    """Delete objects that the snapshot lacks. An object with the same name, but another uid, is another object."""
    try:
        table = storage.table(*name)
    except KeyError:
        return  # the CRD of the resource was deleted meanwhile, with all objects
    for key, record in table.contents().items():
        if key not in wanted or wanted[key].uid != record.uid:
            storage.bring_back(table, 'DELETED', record)


def _put(storage: Storage, name: TableName, wanted: Mapping[str, Record]) -> None:
    if not wanted:
        return
    table = storage.table(*name)
    present = table.contents()
    for key, record in wanted.items():
        found = present.get(key)
        if found is record or (found is not None and _content(found) == _content(record)):
            continue
        type: ChangeType = 'ADDED' if found is None else 'MODIFIED'
        storage.bring_back(table, type, record)


def _content(record: Record) -> tuple[Body, str]:
    """Return the content of a record without the resource version: a restored object has a new version."""
    body = record.body()
    body['metadata']['resourceVersion'] = ''
    return body, record.stored
