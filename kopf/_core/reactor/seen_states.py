"""
States of objects from responses to writes, before the stream of the watch brings them.

The operator gets the new state of an object from the response to a write, earlier than from the stream. The watch
passes such a *seen* state on as an event. Later, the stream brings older states of that object, which are outdated, and
the same state, which is an echo. Resource versions reveal both, because the events of a stream come in the order of
their versions. Versions that are not numbers cannot be compared, so states with such versions are only taken from the
stream.

This module is pure: it only decides. The class `ResourceWatch` owns the records of the objects, and acts.
"""

import enum
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from kopf._cogs.structs.bodies import RawBody

_MOST: Final = 100
"""The maximal number of remembered versions of one object: more writes of one object are rarely in flight."""

Place = tuple[str | None, str]
"""The namespace and the name of an object."""

_FOREVER: Final = 2**128
"""A version that no object ever gets. It marks a deleted object, as no state can be newer than its deletion."""


class Verdict(enum.Enum):
    """The relation of an event of the stream to the seen states."""

    NEWS = enum.auto()
    """The event is newer than the seen states, or is about another object."""
    ECHO = enum.auto()
    """The event has a seen state."""
    OUTDATED = enum.auto()
    """The event is older than a seen state, and was not seen itself: it is a change by another client."""

    @property
    def is_news(self) -> bool:
        """Return whether the watch must pass the event on."""
        return self is Verdict.NEWS

    @property
    def is_outdated(self) -> bool:
        """Return whether the event is a change by another client that a seen state already includes."""
        return self is Verdict.OUTDATED


class Sighting(NamedTuple):
    """The seen states of one object."""

    place: 'Place'
    versions: tuple[int, ...]
    """The versions of the states, in their order."""
    is_absent: bool
    """Whether the object is deleted, or does not match the selectors any more, so that the watch does not have it."""
    has_left: bool = False
    """Whether the stream has brought an earlier deletion: it brings the newest state only if the object returns."""

    @property
    def newest(self) -> int:
        """The version of the newest state."""
        return self.versions[-1]

    @property
    def last_stored(self) -> int:
        """The newest seen version, without the mark of a deletion; zero if there is none."""
        return max((version for version in self.versions if version != _FOREVER), default=0)


class Parked(NamedTuple):
    """A state that was seen while the objects were being listed."""

    raw: RawBody
    is_deleted: bool


class SeenStates:
    """The seen states of the objects of one watch. It is empty when the stream has caught up with all writes."""

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
        # If the deletion was seen, keep the name until the stream brings the deletion: until then, the stream can still
        # bring former objects of this name.
        if self._uids.get(place) == uid and uid not in self._sightings:
            del self._uids[place]

    def find(self, place: Place) -> str | None:
        """Return the uid of the last known object of this name."""
        return self._uids.get(place)

    # Lists.

    def park(self, uid: str, raw: RawBody, *, is_deleted: bool) -> None:
        """Keep the state until the list is complete, because the list can be older or newer than the state."""
        known = self._parked.get(uid)
        if known is None or is_deleted or not (known.is_deleted or _is_newer(known.raw, raw)):
            self._parked[uid] = Parked(raw, is_deleted)

    def end_list(self) -> list[Parked]:
        """Called when all objects are listed: the list is newer than all seen states. Return the parked states."""
        parked = [*self._parked.values()]
        self.clear()
        return parked

    def clear(self) -> None:
        """Called before a new list is requested, which will include all seen states."""
        self._parked.clear()
        for uid in [*self._sightings]:
            self._forget(uid)

    def forget_foreign(self, excludes: Callable[[str, str | None], bool]) -> None:
        """Forget the states of objects that other members handle now, by a check of the uid and the namespace."""
        for uid in [uid for uid, each in self._sightings.items() if excludes(uid, each.place[0])]:
            self._forget(uid)

    def _forget(self, uid: str) -> None:
        sighting = self._sightings.pop(uid)
        if sighting.is_absent:
            self.forget_name(uid, sighting.place)

    # Writes.

    def admit(self, uid: str, place: Place, version: str | None, position: str, *, is_absent: bool) -> bool:
        """
        Record a seen state; return whether it is new, i.e. neither this state nor a newer one is known.

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
        # The stream has already brought this state, a newer one, or the deletion of the object.
        if number <= int(position) or (known is not None and number <= known.newest):
            return False
        successor = self._sightings.get(self._uids.get(place, uid))
        if successor is not None and number < successor.newest != _FOREVER:
            return False
        former = () if known is None else known.versions[1 - _MOST :]
        self._sightings[uid] = Sighting(place, (*former, number), is_absent)
        return True

    def admit_deletion(self, uid: str, place: Place, version: str | None = None) -> None:
        """Record that the object is deleted: all its events in the stream up to this version are known."""
        known = self._sightings.get(uid)
        former = 0 if known is None else known.last_stored
        number = int(version) if version is not None and version.isdecimal() else 0
        self._sightings[uid] = Sighting(place, (max(former, number), _FOREVER), True)

    # The stream.

    def judge(self, uid: str, place: Place, type_: str, version: str | None) -> Verdict:
        """Return the relation of an event of the stream to the seen states; forget the states that it has reached."""
        if version is None or not version.isdecimal():
            return Verdict.NEWS
        number, known = int(version), self._sightings.get(uid)
        if known is None:
            # Otherwise, late events of a deleted object would seem to be about a new object that replaces its
            # successor.
            successor = self._sightings.get(self._uids.get(place, uid))
            return Verdict.NEWS if successor is None or number > successor.newest else Verdict.ECHO
        if type_ == 'DELETED' and known.is_absent:
            # At an earlier deletion, the object has only stopped matching the selectors. It can match again before it
            # is really deleted.
            if number >= known.last_stored:
                self._forget(uid)
            else:
                self._sightings[uid] = known._replace(has_left=True)
            return Verdict.ECHO
        # The version of a deletion equals that of the last state if the write itself has deleted the object.
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
        Called when the stream has reached this version; forget the seen states up to it.

        Returns:
            Whether the stream has passed the version of a seen state without bringing it. If so, the state was not of
            an object of this watch, but e.g. of an object in another cluster.
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
