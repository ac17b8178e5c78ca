"""
A memory of the owned objects of one handler: as JSON, without the managed fields, and parsed when they are used.

The memory also prevents handlers from being triggered by their own writes. The response to a write is stored at once,
so that the handler sees it. The watch brings the same version after the response, or even before it. In the latter
case, it is unknown whether the version results from the write, so the decision to trigger the handler waits for the
response. Older versions, which the watch brings after the response, are edits by other clients. They do not replace the
newer state, but they trigger the handler.
"""

import sys
import time
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any, Final

from kopf._cogs.structs.bodies import is_older_version
from kopf._cogs.structs.packed_objects import PackedObject, ParsedCache
from kopf._core.engines.field_ownership import digest_entry, is_changed_by_others

MAX_VERSIONS: Final = 1000
"""The number of own writes whose versions are remembered: more writes are hardly in flight at once."""

Place = tuple[str | None, str]
"""The namespace and the name of an object."""

_NO_OWNERS: Final[frozenset[str]] = frozenset()


class OwnedObject:
    """The newest state of one owned object."""

    __slots__ = ('_packed', 'entry', 'managers', 'name', 'namespace', 'owners', 'uid', 'version')

    def __init__(self, cache: ParsedCache, raw: Mapping[str, Any], owners: frozenset[str], manager: str) -> None:
        metadata = raw['metadata']
        self.uid: str = metadata.get('uid') or ''
        self.namespace: str | None = sys.intern(metadata['namespace']) if metadata.get('namespace') else None
        self.name: str = metadata.get('name') or ''
        self._packed = PackedObject(cache, {})
        self.managers: PackedObject | None = None
        """The managed fields, if the entry of the operator was changed by another client."""
        self.entry: bytes | None = None
        """The digest of the entry of the operator in the managed fields; ``None`` if it owns no field."""
        self._accept(raw, owners, manager)

    def _accept(self, raw: Mapping[str, Any], owners: frozenset[str], manager: str) -> None:
        self.owners = owners
        self.version: str | None = raw['metadata'].get('resourceVersion')
        self.entry = digest_entry(raw, manager)
        # The managed fields are often a third of the object, and handlers do not use them.
        metadata = {key: value for key, value in raw['metadata'].items() if key != 'managedFields'}
        self._packed[0] = {**raw, 'metadata': metadata}

    def update(self, cache: ParsedCache, raw: Mapping[str, Any], owners: frozenset[str], manager: str) -> None:
        """Replace the state with one from the watch."""
        former = self.entry
        self._accept(raw, owners, manager)
        if self.entry != former:
            # The managed fields show which manager has taken which fields. To save memory, they are kept only in this
            # case.
            self.managers = PackedObject(cache, {'metadata': {'managedFields': raw['metadata'].get('managedFields')}})

    def accept_written(self, raw: Mapping[str, Any], owners: frozenset[str], manager: str) -> None:
        """Replace the state with that of the response to an own write."""
        self.managers = None
        self._accept(raw, owners, manager)

    def copy(self) -> dict[str, Any]:
        """Return the state, as a new dict that shares no values with others."""
        return self._packed.copy()


class OwnedObjects:
    """
    The owned objects of one resource, for one handler.

    Args:
        manager: the name of the field manager of the operator.
        cache: the cache of parsed objects.
    """

    __slots__ = (
        '_by_owner',
        '_by_place',
        '_cache',
        '_deferred',
        '_forgotten',
        '_manager',
        '_objects',
        '_versions',
        '_written_at',
    )

    def __init__(self, manager: str, cache: ParsedCache) -> None:
        self._manager = manager
        self._cache = cache
        self._objects: dict[str, OwnedObject] = {}
        self._by_place: dict[Place, OwnedObject] = {}
        self._by_owner: dict[str, dict[str, OwnedObject]] = {}
        self._deferred: dict[Place, dict[str | None, frozenset[str]]] = {}
        """The versions that the watch has brought during a write, with the owners that each of them triggers."""
        self._forgotten: set[str] = set()
        """The uids of the objects that were deleted while any write was in progress."""
        self._versions: deque[str] = deque(maxlen=MAX_VERSIONS)
        self._written_at = 0.0

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, uid: object) -> bool:
        return uid in self._objects

    # Reading. It can be done in any thread.

    def of(self, owner: str) -> list[OwnedObject]:
        """Return the objects of the owner with this uid."""
        found = self._by_owner.get(owner)
        return [] if found is None else list(found.values())

    def get_owners(self, uid: str) -> frozenset[str]:
        """Return the uids of the owners of the object."""
        known = self._objects.get(uid)
        return _NO_OWNERS if known is None else known.owners

    def find(self, namespace: str | None, name: str) -> OwnedObject | None:
        """Return the object, if it has any owner."""
        return self._by_place.get((namespace, name))

    # Events of the watch.

    def note(self, raw: Mapping[str, Any], owners: frozenset[str], asked_at: float | None) -> frozenset[str]:
        """
        Receive a state; return the uids of the owners that it triggers: the former and the present ones.

        Args:
            raw: the object.
            owners: the uids of its owners.
            asked_at: the time when the list was requested, if the state is from a list.
        """
        metadata = raw['metadata']
        uid, version = metadata.get('uid') or '', metadata.get('resourceVersion')
        known = self._objects.get(uid)
        former = _NO_OWNERS if known is None else known.owners
        if known is not None and version is not None:
            if version == known.version:
                # Listed again, as a kind of owners is found late: the former state was without these.
                added = owners - former
                if added:
                    self._put(uid, raw, owners)
                return added
            if is_older_version(version, known.version) and (asked_at is None or asked_at <= self._written_at):
                return _NO_OWNERS if version in self._versions else former
        self._forgotten.discard(uid)
        self._put(uid, raw, owners)
        place = metadata.get('namespace'), metadata.get('name') or ''
        if place in self._deferred:
            self._deferred[place][version] = former | owners
            return _NO_OWNERS
        return former | owners

    def forget(self, uid: str) -> frozenset[str]:
        """Called when the object is deleted; return the uids of the owners that this triggers."""
        known = self._objects.get(uid)
        owners = _NO_OWNERS if known is None else known.owners
        self._discard(uid)
        if self._deferred:
            self._forgotten.add(uid)
        return owners

    def _put(self, uid: str, raw: Mapping[str, Any], owners: frozenset[str], *, is_written: bool = False) -> None:
        known = self._objects.get(uid)
        if not owners:
            self._discard(uid)
            return
        owners = self._share(owners)
        if known is None:
            known = self._objects[uid] = OwnedObject(self._cache, raw, owners, self._manager)
            self._by_place[known.namespace, known.name] = known
        else:
            self._unlink(known, known.owners - owners)
            (
                known.accept_written(raw, owners, self._manager)
                if is_written
                else known.update(self._cache, raw, owners, self._manager)
            )
        for owner in owners:
            self._by_owner.setdefault(owner, {})[uid] = known

    def _share(self, owners: frozenset[str]) -> frozenset[str]:
        """Return the equal set of another child, if there is one: many equal sets would take much memory."""
        siblings = self._by_owner.get(next(iter(owners)))
        sibling = None if not siblings else next(iter(siblings.values()))
        return sibling.owners if sibling is not None and sibling.owners == owners else owners

    def _discard(self, uid: str) -> None:
        known = self._objects.pop(uid, None)
        if known is not None:
            self._unlink(known, known.owners)
            if self._by_place.get((known.namespace, known.name)) is known:  # it can have a successor of this name
                del self._by_place[known.namespace, known.name]

    def _unlink(self, known: OwnedObject, owners: Collection[str]) -> None:
        for owner in owners:
            siblings = self._by_owner.get(owner)
            if siblings is not None:
                siblings.pop(known.uid, None)
                if not siblings:
                    del self._by_owner[owner]

    # Own writes.

    def begin_write(self, place: Place) -> None:
        """Called before a write: states that the watch brings meanwhile trigger no owner until the write ends."""
        self._deferred[place] = {}

    def end_write(self, place: Place, raw: Mapping[str, Any] | None, owners: frozenset[str]) -> Collection[str]:
        """
        Called after a write, with the response if there is one.

        Returns:
            The uids of the owners that are triggered: because other clients have changed the object meanwhile, or
            because the write has taken the object away from them.
        """
        deferred = self._deferred.pop(place, {})
        triggered: set[str] = set()
        self._written_at = time.monotonic()
        version = None
        if raw is not None:
            uid, version = raw['metadata'].get('uid') or '', raw['metadata'].get('resourceVersion')
            known = self._objects.get(uid)
            is_newest = known is None or version is None or not is_older_version(version, known.version)
            is_disowned = known is None and any(
                other is not None and version is not None and is_older_version(version, other) for other in deferred
            )
            if uid in self._forgotten or is_disowned:
                # The watch has brought the deletion, or a state without owners, before the response. If the response
                # were stored, no event would ever remove the object from memory, and the handler would consider it as
                # it was.
                triggered |= owners
            elif is_newest:
                # The watch has brought nothing during the write, so only the response can reveal an earlier edit.
                if known is not None and not deferred and known.version != version:
                    if is_changed_by_others(known.copy(), raw, self._manager):
                        triggered |= owners
                if known is not None:
                    triggered |= known.owners - owners
                self._put(uid, raw, owners, is_written=True)
            if version is not None:
                self._versions.append(version)
        for other, keys in deferred.items():
            if other != version:
                triggered |= keys
        if not self._deferred:
            self._forgotten.clear()
        return triggered
