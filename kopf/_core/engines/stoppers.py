"""
Flags for running functions: ``stopped`` for daemons, and ``deleting`` for handlers whose object is being deleted.

A daemon can check its flag and wait for it, sync or async. There is one flag for all reasons, since a daemon must stop
whatever the reason is. Specified in the documentation's "Run something for each object".
"""

import enum
import weakref

from kopf._cogs.aiokits.awaitable_flags import AsyncFlagWaiter, FlagWaiter, ReasonedFlag, SyncFlagWaiter
from kopf._cogs.aiokits.coalesced_timers import CoalescedTimers


class DaemonStoppingReason(enum.Flag):
    """
    The reasons why a daemon must stop, and the stages of its stopping.

    Several of them can be set at once: for example, if an object is deleted while the operator exits.
    """

    DONE = enum.auto()
    """The function has returned by itself."""
    FILTERS_MISMATCH = enum.auto()
    """The object does not match the filters of the daemon any more."""
    RESOURCE_DELETED = enum.auto()
    """The object is being deleted or was deleted, or its resource is not served any more."""
    OPERATOR_PAUSING = enum.auto()
    """The operator pauses in favour of another one."""
    OPERATOR_EXITING = enum.auto()
    """The operator exits."""
    DAEMON_SIGNALLED = enum.auto()
    """The daemon was signalled to stop, and has the time of its ``cancellation_backoff`` for that."""
    DAEMON_CANCELLED = enum.auto()
    """The daemon was cancelled, and has the time of its ``cancellation_timeout`` to end."""
    DAEMON_ABANDONED = enum.auto()
    """The daemon has not stopped in time, and the operator does not wait for it any more."""


DaemonStopped = FlagWaiter[DaemonStoppingReason]
SyncDaemonStopperChecker = SyncFlagWaiter[DaemonStoppingReason]
AsyncDaemonStopperChecker = AsyncFlagWaiter[DaemonStoppingReason]

DeletionFlag = FlagWaiter[DaemonStoppingReason]
SyncDeletionFlag = SyncFlagWaiter[DaemonStoppingReason]
AsyncDeletionFlag = AsyncFlagWaiter[DaemonStoppingReason]


# A subclass for weak references: the many flags of daemons do not need that slot.
class _Flag(ReasonedFlag[DaemonStoppingReason]):
    __slots__ = ('__weakref__',)


class DeletionFlags:
    """The ``deleting`` flags: one flag for each object that has a running function with this kwarg."""

    def __init__(self, timers: CoalescedTimers) -> None:
        self._timers = timers
        # The references are weak: the running functions hold the flags, and without a function the flag is not needed.
        self._flags: weakref.WeakValueDictionary[str, _Flag] = weakref.WeakValueDictionary()

    def get_flag(self, uid: str, *, raised: bool) -> ReasonedFlag[DaemonStoppingReason]:
        """Return the flag of the object, the same for all its functions; set it if the deletion is known already."""
        flag = self._flags.get(uid)
        if flag is None:
            flag = self._flags[uid] = _Flag(self._timers)
        if raised:
            flag.set(DaemonStoppingReason.RESOURCE_DELETED)
        return flag

    def announce(self, uid: str) -> None:
        """Set the flag of the object, if any function has it."""
        flag = self._flags.get(uid)
        if flag is not None:
            flag.set(DaemonStoppingReason.RESOURCE_DELETED)
