"""
Distinguishing new states of an object from stale ones, which are from before the operator's last patch.

Stale states must not be handled as if they were new. A watch stream lags behind: after a patch, it brings older states,
then the echo of the patch, then newer states. Numeric resource versions are compared. Other versions are only compared
for equality with that of the echo: an event before it is held back until the echo comes, or until
``settings.persistence.consistency_timeout`` is over. After that, the event counts as new. Specified in the
documentation's "Consistency".

Resource versions go back when the cluster's storage is restored from a backup. A list that was requested after the
patch reveals this. But the caches of API servers can lag behind, too, so older versions from a list, and those that
follow it, are also held back until the timeout.
"""

import enum
import time
from typing import Final

from kopf._cogs.structs.bodies import RawBody, RawEvent

_NEVER: Final = str(2**128)
"""A version that no object ever gets."""


class Verdict(enum.Enum):
    """How the state in an event relates to the state after the operator's last patch."""

    ECHO = enum.auto()
    """It is that state."""
    OLDER = enum.auto()
    """It is from before that patch."""
    NEWER = enum.auto()
    """It is newer, or counts as newer because the timeout is over."""
    UNSURE = enum.auto()
    """Its version cannot be compared or trusted: the event is held back."""


class Expectation:
    """The state after the operator's last patch, until the stream brings it or a newer one."""

    __slots__ = ('_absent', '_deadline', '_doubted', '_made_at', '_reset', '_unsure', '_version')

    def __init__(self, version: str, *, made_at: float, deadline: float, unsure: RawEvent | None = None) -> None:
        self._version = version
        self._made_at = made_at  # the time of the response to the patch (by the monotonic clock)
        self._deadline = deadline  # until when events that cannot be compared are held back (by the monotonic clock)
        self._doubted = False  # whether lower versions can be new nevertheless, as a list was requested after the patch
        self._unsure = unsure
        self._reset = False  # whether the record has been reset since the patch, so that the echo counts as new
        self._absent = False  # whether the watch has reported the object as deleted, and not again since then

    @classmethod
    def after_patch(cls, raw: RawBody, former: 'Expectation | None', *, timeout: float) -> 'Expectation | None':
        """
        Return the expectation after the response to a patch, if anything is to be expected.

        Args:
            raw: the state from the response.
            former: what was expected until now. The event that it holds back stays held back.
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

        The events that the stream still brings are from before that, and would be handled as if the object were new.
        After the timeout, they are handled nevertheless: a proxy or a failing server could have given a wrong answer.
        """
        if timeout <= 0:
            return None
        now = time.monotonic()
        expected = cls(_NEVER, made_at=now, deadline=now + timeout)
        # Every version is lower than this one. Without the doubt, an object that still exists would be ignored for
        # ever, not only until the deadline.
        expected._doubted = True
        return expected

    @property
    def unsure(self) -> RawEvent | None:
        """The newest event that is held back, as it is unknown whether it is stale."""
        return self._unsure

    @property
    def remaining(self) -> float:
        """The time until events that are held back count as new (in seconds); zero if it is over."""
        return max(0.0, self._deadline - time.monotonic())

    @property
    def is_ending(self) -> bool:
        """Return whether nothing but the deletion of the object is expected; see `of_deletion`."""
        return self._version == _NEVER and time.monotonic() < self._deadline

    @property
    def is_absent(self) -> bool:
        """Return whether the object is not watched any more, so that nothing is expected after the deadline."""
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

    def note_return(self) -> None:
        """Called when the object is watched again: older events are stale from now on, even after the deadline."""
        self._absent = False

    def after_deletion(self, event: RawEvent, *, timeout: float) -> 'Expectation | None':
        """
        Return what is expected after a DELETED event: nothing, unless the event is older than the last patch.

        If the event is older, the object existed after it: it has only stopped matching the selectors of the watch.
        When it matches again, events from before the patch are stale. The echo of the patch is not stale, because the
        record has been reset by then.

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
        # Why not the deadline of the patch? It can be over, as the stream lags behind: this event comes after the patch
        # was made. The events that follow it come even later.
        deadline = time.monotonic() + timeout
        expected = Expectation(self._version, made_at=self._made_at, deadline=deadline)
        expected._reset = expected._absent = True
        return expected

    def after_list(self, *, since: float) -> 'Expectation | None':
        """Return what is expected after a list; doubt the order of versions if it was requested after the patch."""
        # By then, caches are assumed to have caught up: a lower version means that a backup was restored.
        if since > self._deadline:
            return None
        if since > self._made_at:
            self._doubted = True
        return self
