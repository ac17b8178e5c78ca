"""
How daemons are told to stop, and why.

A daemon gets ``stopped``: a flag that it can check and wait for, in its own manner, sync or async. There is one flag
for all reasons, since a daemon must end whatever the reason is. Specified in the documentation's "Daemons".
"""

import enum

from kopf._cogs.aiokits.waiters import AsyncFlagWaiter, FlagWaiter, SyncFlagWaiter


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
