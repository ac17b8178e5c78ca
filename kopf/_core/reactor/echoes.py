"""
Which states of an object are from before our own last patch: they must not be handled as if they were new.

A stream is always behind: after a patch, it brings what was before it, then the echo of the patch, then what is new.
Versions that are numbers tell them apart at once. With others, only the echo does, or time: what comes before either
of them is kept until it is known to be new. Specified in the documentation's "Consistency".

Versions can go back: when the cluster's storage is restored from a backup. A list tells so if it was asked for after
our patch; but as caches of servers can be behind, too, it is believed only when the time for consistency is over.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TypeAlias

from kopf._cogs.structs.bodies import RawBody, RawEvent
from kopf._core.reactor.object_records import ObjectRecord

Receive: TypeAlias = Callable[[ObjectRecord, RawEvent], None]


class Expectation:
    """The state that our last patch has made, until something newer is seen."""

    __slots__ = ('deadline', 'doubted', 'made_at', 'unsure', 'version')

    def __init__(self, version: str, *, made_at: float, deadline: float, unsure: RawEvent | None) -> None:
        self.version = version
        self.made_at = made_at
        """When the patch was answered."""
        self.deadline = deadline
        """Until when to wait for that version, if it can't be compared with others (by the monotonic clock)."""
        self.doubted = False
        """Older versions are not certainly outdated: a list was asked for after the patch."""
        self.unsure = unsure
        """The newest event that may be from before that version, or not."""


def expect(record: ObjectRecord, raw: RawBody, *, timeout: float) -> None:
    """Expect the state that has come of our patch, for some time (in seconds; zero is not to expect anything)."""
    version = raw['metadata'].get('resourceVersion')
    if version is None or timeout <= 0:
        record.expect(None)
        return
    unsure = record.expected.unsure if record.expected is not None else None
    now = time.monotonic()
    record.expect(Expectation(version, made_at=now, deadline=now + timeout, unsure=unsure))


def outlive(record: ObjectRecord, event: RawEvent) -> None:
    """
    Called when the object is gone from the stream, and forgotten; it can come back as it was before our last patch.

    This is so if the patch was made after the object had left: then it has only left the selection of the watch, and
    what comes next in the stream can be older than the patch. The echo of the patch is news, as nothing is known else.
    """
    expected = record.expected
    record.expect(None)
    version = event['object']['metadata'].get('resourceVersion')
    if expected is None or version is None or not (version.isdecimal() and expected.version.isdecimal()):
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


def notice_list(record: ObjectRecord, *, since: float) -> None:
    """Trust a list that was asked for after our patch: it knows better, at the latest when the deadline is over."""
    expected = record.expected
    if expected is None:
        return
    if since > expected.deadline:
        record.expect(None)
    elif since > expected.made_at:
        expected.doubted = True


def sift(record: ObjectRecord, event: RawEvent, receive: Receive, *, dropping_echo: bool = True) -> bool:
    """
    Compare the event with what is expected, and return whether it is to be dropped.

    It is if it is from before our own last patch, or is the echo of it. What can be either is held back as if it
    were stale, and given to the function when it turns out to be new. What is new ends the expectation; so does the
    echo if it is not to be dropped.
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
            record.expect(None)  # all that follows is newer
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
    if time.monotonic() < expected.deadline:  # there was one more patch meanwhile
        _wait(record, expected, receive)
        return
    event, expected.unsure = expected.unsure, None
    if record.pending is None:
        receive(record, event)
