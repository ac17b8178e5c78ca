"""
States of objects that writers have reported before the stream of the watch brings them.

The response to a write has the state of the object before the stream brings it. The watch passes such a *seen* state on
as an event. Then, the stream brings older states of that object, which are outdated, and the same state, which is
an echo. Both are recognized by their resource versions, which can be compared since all the events of a stream come
in the order of their versions. Versions that are not numbers cannot be compared, so states with such versions are taken
only from the stream.

This module only decides: it is pure. The class `ResourceWatch` owns the records of the objects, and acts.
"""

import enum
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from kopf._cogs.structs.bodies import RawBody

_MOST: Final = 100
"""How many versions of one object are remembered at most: more own writes are hardly on their way at once."""

Place = tuple[str | None, str]
"""The namespace and the name of an object."""

_FOREVER: Final = 2**128
"""A version that no object ever gets. It is noted for a deleted object, as no state of it can be newer."""


class Verdict(enum.Enum):
    """How an event of the stream relates to the states that were seen ahead of it."""

    NEWS = enum.auto()
    """It is newer than what was seen, or it is about another object."""
    ECHO = enum.auto()
    """It is a state that was seen."""
    OUTDATED = enum.auto()
    """It is older than a state that was seen, and was not seen itself: a change by another client."""

    @property
    def is_news(self) -> bool:
        """Return whether the event is to be passed on."""
        return self is Verdict.NEWS

    @property
    def is_outdated(self) -> bool:
        """Return whether the event is a change by another client that is known only from a later state."""
        return self is Verdict.OUTDATED


class Sighting(NamedTuple):
    """What was seen of one object ahead of the stream."""

    place: 'Place'
    versions: tuple[int, ...]
    """The versions of the states, in their order."""
    is_absent: bool
    """Whether the watch does not have the object: it is deleted, or does not match the selectors any more."""
    has_left: bool = False
    """Whether the stream has brought an earlier deletion, so that it brings the newest state only after a return."""

    @property
    def newest(self) -> int:
        """The version of the newest state."""
        return self.versions[-1]

    @property
    def last_stored(self) -> int:
        """The newest version that was seen, without the mark of a deletion; zero if none was seen."""
        return max((version for version in self.versions if version != _FOREVER), default=0)


class Parked(NamedTuple):
    """A state that was seen while the objects were being listed."""

    raw: RawBody
    is_deleted: bool


class SeenStates:
    """What was seen of the objects of one watch ahead of its stream; empty again when the stream has caught up."""

    def __init__(self, records: Iterable[Any] = ()) -> None:
        self._sightings: dict[str, Sighting] = {}
        self._parked: dict[str, Parked] = {}
        self._uids: dict[Place, str] = {(record.namespace, record.name): record.uid for record in records}

    def __len__(self) -> int:
        return len(self._sightings)

    # The names of the objects. A new object can be seen before the deletion of its predecessor.

    def note_name(self, uid: str, place: Place) -> None:
        """Called when the watch has an object of this name."""
        self._uids[place] = uid

    def forget_name(self, uid: str, place: Place) -> None:
        """Called when the watch does not have the object any more."""
        # If the deletion was seen ahead, the name is kept until the stream brings the deletion: until then, the stream
        # can still bring former objects of this name.
        if self._uids.get(place) == uid and uid not in self._sightings:
            del self._uids[place]

    def find(self, place: Place) -> str | None:
        """Return the uid of the last known object of this name."""
        return self._uids.get(place)

    # Lists.

    def park(self, uid: str, raw: RawBody, *, is_deleted: bool) -> None:
        """Keep the state until the list is complete: it is unknown whether the list is from before or after it."""
        known = self._parked.get(uid)
        if known is None or is_deleted or not (known.is_deleted or _is_newer(known.raw, raw)):
            self._parked[uid] = Parked(raw, is_deleted)

    def end_list(self) -> list[Parked]:
        """Called when all objects are listed: the list is newer than all sightings. Return the states kept aside."""
        parked = [*self._parked.values()]
        self.clear()
        return parked

    def clear(self) -> None:
        """Called before a new list is requested: it will include everything that was seen until now."""
        self._parked.clear()
        for uid in [*self._sightings]:
            self._forget(uid)

    def _forget(self, uid: str) -> None:
        sighting = self._sightings.pop(uid)
        if sighting.is_absent:
            self.forget_name(uid, sighting.place)

    # Writes.

    def admit(self, uid: str, place: Place, version: str | None, position: str, *, is_absent: bool) -> bool:
        """
        Note a state that was seen; return true if it is news, i.e. neither this state nor a newer one is known.

        Args:
            uid: the uid of the object.
            place: the namespace and the name of the object.
            version: the version of the state.
            position: the version that the stream has reached.
            is_absent: whether the object does not match the selectors of the watch any more.
        """
        if version is None or not version.isdecimal() or not position.isdecimal():
            return False
        number, known = int(version), self._sightings.get(uid)
        # What the stream has brought includes this state, or a newer one of the object, or its deletion.
        if number <= int(position) or (known is not None and number <= known.newest):
            return False
        successor = self._sightings.get(self._uids.get(place, uid))
        if successor is not None and number < successor.newest != _FOREVER:
            return False
        former = () if known is None else known.versions[1 - _MOST :]
        self._sightings[uid] = Sighting(place, (*former, number), is_absent)
        return True

    def admit_deletion(self, uid: str, place: Place, version: str | None = None) -> None:
        """Note that the object is deleted: all that the stream still brings of it is known, up to this version."""
        known = self._sightings.get(uid)
        former = 0 if known is None else known.last_stored
        number = int(version) if version is not None and version.isdecimal() else 0
        self._sightings[uid] = Sighting(place, (max(former, number), _FOREVER), True)

    # The stream.

    def judge(self, uid: str, place: Place, type_: str, version: str | None) -> Verdict:
        """Return how an event of the stream relates to what was seen, and forget what is over."""
        if version is None or not version.isdecimal():
            return Verdict.NEWS
        number, known = int(version), self._sightings.get(uid)
        if known is None:
            # Otherwise, events of a former object could come after those of its successor, and seem to replace it.
            successor = self._sightings.get(self._uids.get(place, uid))
            return Verdict.NEWS if successor is None or number > successor.newest else Verdict.ECHO
        if type_ == 'DELETED' and known.is_absent:
            # At an earlier deletion, the object has left the selectors. It can come back before it leaves for good.
            if number >= known.last_stored:
                self._forget(uid)
            else:
                self._sightings[uid] = known._replace(has_left=True)
            return Verdict.ECHO
        # The version of a deletion is that of the last state if the object was deleted by that very write.
        if number > known.newest or (number == known.newest and type_ == 'DELETED'):
            self._forget(uid)
            return Verdict.NEWS
        if number == known.newest and not known.is_absent:
            self._forget(uid)
            return Verdict.ECHO
        is_known = number in known.versions or known.newest == _FOREVER
        return Verdict.ECHO if is_known else Verdict.OUTDATED

    def reach(self, position: str) -> bool:
        """
        Called when the stream has reached this version; forget what is over.

        Returns:
            Whether the stream has passed the version of a seen state without bringing it. Then it was no state of an
            object of this watch: for example, it was of an object in another cluster.
        """
        if not position.isdecimal():
            return False
        passed = [uid for uid, each in self._sightings.items() if each.newest <= int(position)]
        for uid in passed:
            if self._sightings[uid].has_left:
                self._forget(uid)
        return any(uid in self._sightings for uid in passed)


def _is_newer(one: RawBody, another: RawBody) -> bool:
    versions = [str(raw['metadata'].get('resourceVersion')) for raw in (one, another)]
    return all(version.isdecimal() for version in versions) and int(versions[0]) > int(versions[1])
