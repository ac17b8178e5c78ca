"""
Distinction of new states of an object from stale ones, which are older than the operator's last patch.

Stale states must not be handled as if they were new. A watch stream lags behind: after a patch, it brings older states,
then the echo of the patch, then newer states. Numeric resource versions show the order of states. Other versions only
show which event is the echo: an event before the echo is held back until the echo comes, or until
``settings.persistence.consistency_timeout`` is over. After that, the event counts as new. Specified in the
documentation's "Consistency".

Resource versions go back when the cluster's storage is restored from a backup. A list that was requested after the
patch reveals this. But the caches of API servers can lag behind, too. So older versions in a list, and in the events
after it, are also held back until the timeout.
"""

import enum
import time
from typing import Final

from kopf._cogs.structs.bodies import RawBody, RawEvent

_NEVER: Final = str(2**128)
"""A version that no object ever gets."""


class Verdict(enum.Enum):
    """The relation of the state in an event to the state after the operator's last patch."""

    ECHO = enum.auto()
    """The event has that state."""
    OLDER = enum.auto()
    """The event is older than that patch."""
    NEWER = enum.auto()
    """The event is newer, or counts as newer because the timeout is over."""
    UNSURE = enum.auto()
    """The version cannot be compared or trusted: the event is held back."""


class Expectation:
    """The state after the operator's last patch, until the stream brings it or a newer one."""

    __slots__ = ('_absent', '_deadline', '_doubted', '_made_at', '_reset', '_unsure', '_version')

    def __init__(self, version: str, *, made_at: float, deadline: float, unsure: RawEvent | None = None) -> None:
        self._version = version
        self._made_at = made_at  # the time of the response to the patch (by the monotonic clock)
        self._deadline = deadline  # until when events that cannot be compared are held back (by the monotonic clock)
        self._doubted = False  # whether lower versions can be new, because a list was requested after the patch
        self._unsure = unsure
        self._reset = False  # whether the record has been reset since the patch, so that the echo counts as new
        self._absent = False  # whether the last report of the watch was that the object is deleted

    @classmethod
    def after_patch(cls, raw: RawBody, former: 'Expectation | None', *, timeout: float) -> 'Expectation | None':
        """
        Return the expectation after the response to a patch; ``None`` if there is nothing to expect.

        Args:
            raw: the state from the response.
            former: the previous expectation. Its held-back event stays held back.
            timeout: how long to hold back events that cannot be compared (in seconds); if zero, nothing is expected.
        """
        version = raw['metadata'].get('resourceVersion')
        if version is None or timeout <= 0:
            return None
        now = time.monotonic()
        return cls(version, made_at=now, deadline=now + timeout, unsure=former.unsure if former is not None else None)

    @classmethod
    def of_deletion(cls, *, timeout: float) -> 'Expectation | None':
        """
        Return the expectation of a deletion for some time (in seconds): the API server has reported a missing object.

        The stream can still bring older events, which would be handled as if the object were new. After the timeout,
        they are handled nevertheless: the response of a proxy or of a failing server could have been wrong.
        """
        if timeout <= 0:
            return None
        now = time.monotonic()
        expected = cls(_NEVER, made_at=now, deadline=now + timeout)
        # Every version is lower than `_NEVER`. Without the doubt, events of an object that still exists would be
        # dropped for ever, not only until the deadline.
        expected._doubted = True
        return expected

    @property
    def unsure(self) -> RawEvent | None:
        """The newest event that is held back, because it can be stale."""
        return self._unsure

    @property
    def remaining(self) -> float:
        """The time until held-back events count as new (in seconds); zero if it is over."""
        return max(0.0, self._deadline - time.monotonic())

    @property
    def is_ending(self) -> bool:
        """Return whether only the deletion of the object is expected; see `of_deletion`."""
        return self._version == _NEVER and time.monotonic() < self._deadline

    @property
    def is_absent(self) -> bool:
        """Return whether the watch does not have the object any more, so that the expectation ends at the deadline."""
        return self._absent

    @property
    def version(self) -> str:
        """The resource version of the expected state."""
        return self._version

    @property
    def is_ordered(self) -> bool:
        """Return whether older events can be recognized even after the echo, by their versions."""
        return self._version.isdecimal()

    def compare(self, event: RawEvent) -> Verdict:
        """Return how the event relates to the expected state."""
        version = event['object']['metadata'].get('resourceVersion')
        if version == self._version:
            return Verdict.NEWER if self._reset else Verdict.ECHO
        if version is not None and version.isdecimal() and self._version.isdecimal():
            if int(version) >= int(self._version):
                return Verdict.NEWER
            if not self._doubted:
                return Verdict.OLDER
        return Verdict.UNSURE if time.monotonic() < self._deadline else Verdict.NEWER

    def hold_back(self, event: RawEvent) -> None:
        """Keep the event, instead of an older one, until it is known whether it is stale."""
        self._unsure = event

    def take_unsure(self) -> RawEvent | None:
        """Return the event that is held back, if there is one, and forget it."""
        event, self._unsure = self._unsure, None
        return event

    def reset(self) -> None:
        """Called when the record is reset: the echo counts as new from now on, older events are still stale."""
        self._reset, self._unsure = True, None

    def note_return(self) -> None:
        """Called when the object is watched again: older events are stale from now on, even after the deadline."""
        self._absent = False

    def after_deletion(self, event: RawEvent, *, timeout: float) -> 'Expectation | None':
        """
        Return the expectation after a DELETED event; ``None`` unless the event is older than the last patch.

        If the event is older, the object has existed after it: it has only stopped matching the selectors of the watch.
        When it matches again, events from before the patch are stale. The echo of the patch is not stale, because the
        record was reset by then.

        Args:
            event: the DELETED event. Without a version, it is from a list that does not have the object; `after_list`
                has told whether that list is older.
            timeout: how long to wait for the object to come back (in seconds), or for the stream to reach the patch.
        """
        version = event['object']['metadata'].get('resourceVersion')
        if self._version == _NEVER or not self._version.isdecimal():
            return None
        if self._doubted if version is None else (not version.isdecimal() or int(version) >= int(self._version)):
            return None
        # Why not the deadline of the patch? It can be over, because the stream lags behind, and the next events come
        # even later.
        deadline = time.monotonic() + timeout
        expected = Expectation(self._version, made_at=self._made_at, deadline=deadline)
        expected._reset = expected._absent = True
        return expected

    def after_list(self, *, since: float) -> 'Expectation | None':
        """Return the expectation after a list; doubt the order of versions if it was requested after the patch."""
        # After the timeout, the caches should be up to date, so a lower version means that a backup was restored.
        if since > self._deadline:
            return None
        if since > self._made_at:
            self._doubted = True
        return self
