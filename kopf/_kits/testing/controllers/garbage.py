"""
The garbage collector: by the policy, it deletes dependents after or before their last owner, or makes them orphans.

Like the real one, it visits the dependents of an object after every change of the object. Its decision about a
dependent depends only on the present state of the owners.
"""

import dataclasses
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

from kopf._kits.testing.kinds.kinds import Catalog, Kind
from kopf._kits.testing.kinds.storage import Change, Record, Storage, Table
from kopf._kits.testing.objects import deletion
from kopf._kits.testing.objects.rest import Objects

Schedule = Callable[[Callable[..., object], Hashable], None]
"""Schedules a call for a little later; repeated requests for the same call are merged."""


class Place(NamedTuple):
    """The location of an object."""

    table: Table
    namespace: str
    name: str


class GarbageCollector:
    """The garbage collector; ``later`` schedules its work."""

    def __init__(self, storage: Storage, catalog: Catalog, rest: Objects, later: Schedule) -> None:
        self._storage = storage
        self._catalog = catalog
        self._rest = rest
        self._later = later

    def observe(self, table: Table, change: Change) -> None:
        """Schedule the visits that follow from a change."""
        record = change.record
        if change.type == 'DELETED':
            self._later(self._visit_dependents, record.uid)
            for uid in record.owners:
                self._later(self._visit_owner, uid)
            return
        if record.owners and (change.previous is None or change.previous.owners != record.owners):
            self._later(self._visit, Place(table, record.namespace, record.name))
        for uid in change.previous.owners if change.previous is not None else ():
            if (owner := self._storage.owner(uid)) is not None and owner.deleting:
                self._later(self._visit_owner, uid)
        if record.deleting:
            self._later(self._visit_waiting, record.uid)

    def kind_of(self, table: Table) -> Kind | None:
        """Return a kind of the objects in the table, in any version; None if none is served."""
        kind = next((kind for kind in self._catalog if kind.table is table), None)
        # Any version will do: the controllers do not read the content, so no conversion webhook is called.
        return kind if kind is None or kind.conversion is None else dataclasses.replace(kind, conversion=None)

    def release(self, table: Table, record: Record, finalizer: str) -> None:
        """Remove a finalizer; if it was the last one, delete the object."""
        body = record.body()
        left = [item for item in body['metadata'].get('finalizers', ()) if item != finalizer]
        if not left:
            self._storage.commit(table, 'DELETED', body)
            return
        body['metadata']['finalizers'] = left
        self._storage.commit(table, 'MODIFIED', body)

    def _visit_waiting(self, uid: str) -> None:
        """Visit the dependents of an object that is being deleted, and then the object, which may wait for them."""
        self._visit_dependents(uid)
        self._visit_owner(uid)

    def _visit_dependents(self, uid: str) -> None:
        owner = self._storage.owner(uid)
        if owner is None or _waits(owner):
            for table, record in self._storage.dependents(uid):
                self._visit(Place(table, record.namespace, record.name))

    def _visit_owner(self, uid: str) -> None:
        """Remove the finalizer of a deleted object when its dependents are deleted or made orphans."""
        owner, table = self._storage.owner(uid), self._storage.place(uid)
        if owner is None or table is None or not owner.deleting:
            return
        finalizers = owner.body()['metadata'].get('finalizers', ())
        if deletion.ORPHAN in finalizers:
            for other, record in self._storage.dependents(uid):
                self._keep_owners(other, record, [item for item in record.owners if item != uid])
            self.release(table, owner, deletion.ORPHAN)
        elif deletion.FOREGROUND in finalizers:
            for _, record in self._storage.dependents(uid):
                reference = next(item for item in _references(record) if item['uid'] == uid)
                if reference.get('blockOwnerDeletion'):
                    return
            self.release(table, owner, deletion.FOREGROUND)

    def _visit(self, place: Place) -> None:
        """Delete the object if none of its owners exists, or if all existing owners wait for its deletion."""
        record = place.table.get(place.namespace, place.name)
        if record is None or record.deleting or not record.owners or (kind := self.kind_of(place.table)) is None:
            return
        owners = {item['uid']: self._owner(record, item) for item in _references(record)}
        solid = [uid for uid, owner in owners.items() if owner is not None and not _waits(owner)]
        if solid:
            if len(solid) < len(owners):
                self._keep_owners(place.table, record, solid)
            return
        waiting = any(owner is not None for owner in owners.values())
        finalizers = record.body()['metadata'].get('finalizers', ())
        policy = 'Background'
        if waiting and self._storage.dependents(record.uid):
            policy = 'Foreground'
        elif deletion.ORPHAN in finalizers:
            policy = 'Orphan'
        elif deletion.FOREGROUND in finalizers:
            policy = 'Foreground'
        self._rest.remove(kind, record, policy)

    def _owner(self, record: Record, reference: Mapping[str, Any]) -> Record | None:
        """Return the existing object of an owner reference: in the same namespace, or cluster-scoped."""
        owner = self._storage.owner(reference['uid'])
        if owner is None or owner.name != reference.get('name') or owner.namespace not in ('', record.namespace):
            return None
        return owner

    def _keep_owners(self, table: Table, record: Record, uids: list[str]) -> None:
        body = record.body()
        owners = [item for item in body['metadata']['ownerReferences'] if item['uid'] in uids]
        del body['metadata']['ownerReferences']
        if owners:
            body['metadata']['ownerReferences'] = owners
        self._storage.commit(table, 'MODIFIED', body)


def _references(record: Record) -> list[dict[str, Any]]:
    references: list[dict[str, Any]] = record.body()['metadata'].get('ownerReferences') or []
    return references


def _waits(owner: Record) -> bool:
    """Check whether the object is being deleted, and waits for its dependents to be deleted first."""
    return owner.deleting and deletion.FOREGROUND in owner.body()['metadata'].get('finalizers', ())
