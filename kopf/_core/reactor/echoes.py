"""
Telling states from before the operator's last patch, which must not be handled as if they were new, from new ones.

A watch stream lags behind: after a patch, it brings older states, then the echo of the patch, then newer states.
Numeric resource versions are compared. Other versions are only compared for equality with that of the echo: an event
before it is held back until the echo comes, or until ``settings.persistence.consistency_timeout`` is over. Then, it
counts as new. Specified in the documentation's "Consistency".

Resource versions go back when the cluster's storage is restored from a backup. A list that was requested after the
patch shows that. But the caches of API servers can lag behind, too, so older versions from a list, and those that
follow it, are also held back until the timeout.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final, TypeAlias

from kopf._cogs.structs.bodies import RawBody, RawEvent
from kopf._core.reactor.object_records import ObjectRecord

Receive: TypeAlias = Callable[[ObjectRecord, RawEvent], None]

_NEVER: Final = str(2**128)
"""A version that no object ever gets."""


class Expectation:
    """The state after the operator's last patch, until the stream brings it or a newer one."""

    __slots__ = ('deadline', 'doubted', 'made_at', 'unsure', 'version')

    def __init__(self, version: str, *, made_at: float, deadline: float, unsure: RawEvent | None) -> None:
        self.version = version
        self.made_at = made_at
        """The time of the response to the patch (by the monotonic clock)."""
        self.deadline = deadline
        """The time until which events that cannot be compared are held back (by the monotonic clock)."""
        self.doubted = False
        """Whether lower versions can be new nevertheless, as a list was requested after the patch."""
        self.unsure = unsure
        """The newest event that is held back, as it is unknown whether it is stale."""


def expect(record: ObjectRecord, raw: RawBody, *, timeout: float) -> None:
    """Expect the state from the response to a patch, with a timeout (in seconds); if zero, nothing is expected."""
    version = raw['metadata'].get('resourceVersion')
    if version is None or timeout <= 0:
        record.expect(None)
        return
    unsure = record.expected.unsure if record.expected is not None else None
    now = time.monotonic()
    record.expect(Expectation(version, made_at=now, deadline=now + timeout, unsure=unsure))


def expect_end(record: ObjectRecord, *, timeout: float) -> None:
    """
    Expect nothing but the deletion, for some time (in seconds): the API says that the object is not there any more.

    What the stream still brings of it is from before that, and would be handled as if the object was new. But after
    that time it is handled: a proxy or a failing server could have said so, too.
    """
    record.expect(None)
    if timeout > 0:
        now = time.monotonic()
        expected = Expectation(_NEVER, made_at=now, deadline=now + timeout, unsure=None)
        expected.doubted = True
        record.expect(expected)


def is_ending(record: ObjectRecord) -> bool:
    """Check whether nothing but the deletion of the object is expected; see `expect_end`."""
    expected = record.expected
    return expected is not None and expected.version == _NEVER and time.monotonic() < expected.deadline


def note_deletion(record: ObjectRecord, event: RawEvent) -> None:
    """
    Called for a DELETED event; keeps the expectation if the event is older than the operator's last patch.

    Then, the object still existed after the event: it has only stopped matching the selectors of the watch. It can
    match again, and events before the patch are stale. The echo of the patch is not, as the record is reset by then.
    """
    expected = record.expected
    record.expect(None)
    version = event['object']['metadata'].get('resourceVersion')
    if expected is None or version is None or expected.version == _NEVER:
        return
    if not (version.isdecimal() and expected.version.isdecimal()):
        return
    if int(version) < int(expected.version):
        expected = Expectation(
            str(int(expected.version) - 1), made_at=expected.made_at, deadline=expected.deadline, unsure=None
        )
        record.expect(expected)
        delay = max(0.0, expected.deadline - time.monotonic())
        asyncio.get_running_loop().call_later(delay, _expire, record, expected)


def _expire(record: ObjectRecord, expected: Expectation) -> None:
    if record.expected is expected:
        record.expect(None)


def note_list(record: ObjectRecord, *, since: float) -> None:
    """Called for an object of a list: doubt the expectation if the list was requested after the patch."""
    expected = record.expected
    if expected is None:
        return
    if since > expected.deadline:
        record.expect(None)
    elif since > expected.made_at:
        expected.doubted = True


def sift(record: ObjectRecord, event: RawEvent, receive: Receive, *, dropping_echo: bool = True) -> bool:
    """
    Return whether the event is stale: from before the operator's last patch, or the echo of it.

    An event that cannot be compared is held back as if it were stale. A new event ends the expectation.

    Args:
        record: the record of the object.
        event: the event to compare with the expectation.
        receive: is called with an event that was held back, when it turns out to be new.
        dropping_echo: whether the echo counts as stale; otherwise, it counts as new.
    """
    expected = record.expected
    if expected is None:
        return False
    version = event['object']['metadata'].get('resourceVersion')
    comparable = version is not None and version.isdecimal() and expected.version.isdecimal()
    if version == expected.version:
        expected.unsure = None
        if not dropping_echo:
            record.expect(None)
            return False
        if not comparable:
            record.expect(None)  # all events after the echo are new
        return True
    older = not comparable or int(version or '') < int(expected.version)
    certain = comparable and not expected.doubted
    stale = older and (certain or time.monotonic() < expected.deadline)
    if not stale:
        record.expect(None)
    elif not certain:
        waiting, expected.unsure = expected.unsure is not None, event
        if not waiting:
            _wait(record, expected, receive)
    return stale


def _wait(record: ObjectRecord, expected: Expectation, receive: Receive) -> None:
    delay = expected.deadline - time.monotonic()
    asyncio.get_running_loop().call_later(delay, _reconsider, record, receive)


def _reconsider(record: ObjectRecord, receive: Receive) -> None:
    expected = record.expected
    if expected is None or expected.unsure is None:
        return
    if time.monotonic() < expected.deadline:  # another patch was made meanwhile
        _wait(record, expected, receive)
        return
    event, expected.unsure = expected.unsure, None
    if record.pending is None:
        receive(record, event)
