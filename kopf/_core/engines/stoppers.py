"""
How daemons are told to stop, and why; and how handlers are told that their object is to be deleted meanwhile.

A daemon gets ``stopped``: a flag that it can check and wait for, in its own manner, sync or async. There is one flag
for all reasons, since a daemon must end whatever the reason is. Specified in the documentation's "Daemons".
"""

import enum
import weakref
from typing import Any

from kopf._cogs.aiokits.awaitable_flags import AsyncFlagWaiter, FlagWaiter, ReasonedFlag, SyncFlagWaiter
from kopf._cogs.aiokits.coalesced_timers import CoalescedTimers


class DaemonStoppingReason(enum.Flag):
    """
    Why a daemon is to stop, and how far that has gone.

    Several of them can be there at once, as when an object is deleted while the operator exits.
    """

    DONE = enum.auto()
    """It has ended by itself."""
    FILTERS_MISMATCH = enum.auto()
    """Its object is not of those that it is for any more."""
    RESOURCE_DELETED = enum.auto()
    """Its object is being deleted, or is gone, or its resource is not served any more."""
    OPERATOR_PAUSING = enum.auto()
    """The operator pauses in favour of another one."""
    OPERATOR_EXITING = enum.auto()
    """The operator ends."""
    DAEMON_SIGNALLED = enum.auto()
    """It was asked to end, and has its ``cancellation_backoff`` for it."""
    DAEMON_CANCELLED = enum.auto()
    """It was cancelled, and has its ``cancellation_timeout`` to end."""
    DAEMON_ABANDONED = enum.auto()
    """It did not end in time, and is not waited for any more."""


DaemonStopped = FlagWaiter[DaemonStoppingReason]
SyncDaemonStopperChecker = SyncFlagWaiter[DaemonStoppingReason]
AsyncDaemonStopperChecker = AsyncFlagWaiter[DaemonStoppingReason]

DeletionFlag = FlagWaiter[DaemonStoppingReason]
SyncDeletionFlag = SyncFlagWaiter[DaemonStoppingReason]
AsyncDeletionFlag = AsyncFlagWaiter[DaemonStoppingReason]


class _Flag(ReasonedFlag[DaemonStoppingReason]):
    __slots__ = ('__weakref__',)


class DeletionFlags:
    """The flags of the objects whose functions want to know of the deletion while they run: one an object."""

    def __init__(self, timers: CoalescedTimers) -> None:
        self._timers = timers
        # They live as long as some function has them.
        self._flags: weakref.WeakValueDictionary[Any, _Flag] = weakref.WeakValueDictionary()

    def get_flag(self, record: Any, *, raised: bool) -> ReasonedFlag[DaemonStoppingReason]:
        """Return the flag of the object; raise it if the deletion is known already."""
        flag = self._flags.get(record)
        if flag is None:
            flag = self._flags[record] = _Flag(self._timers)
        if raised:
            flag.set(DaemonStoppingReason.RESOURCE_DELETED)
        return flag

    def announce(self, record: Any) -> None:
        """Raise the flag of the object, if there is any."""
        flag = self._flags.get(record)
        if flag is not None:
            flag.set(DaemonStoppingReason.RESOURCE_DELETED)
