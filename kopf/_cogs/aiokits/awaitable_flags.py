"""
Flags that are raised with reasons, and can be awaited both in coroutines and in threads.

There can be tens of thousands of flags, so an unawaited flag costs almost nothing. A future of asyncio or an event of
threads is created only when a coroutine or a thread starts to wait. The code that raises a flag holds the flag itself;
the code that waits for it, e.g. a daemon, gets one of its waiters, which cannot raise it.
"""

import asyncio
import enum
import math
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kopf._cogs.aiokits.coalesced_timers import CoalescedTimers
from kopf._cogs.aiokits.loop_monitors import rouse

ReasonT = TypeVar('ReasonT', bound=enum.Flag)

_lock = threading.Lock()  # shared by all flags to save memory: it is held for a few instructions only


class ReasonedFlag(Generic[ReasonT]):
    """
    A flag that is raised in the event loop, and is never lowered. Further reasons are added to the first one.

    Args:
        timers: the timers for the time-outs of coroutines.
    """

    __slots__ = ('_timers', '_event', '_futures', 'reason')

    def __init__(self, timers: CoalescedTimers) -> None:
        self.reason: ReasonT | None = None
        self._timers = timers
        self._event: threading.Event | None = None
        self._futures: tuple[asyncio.Future[None], ...] = ()

    def set(self, reason: ReasonT) -> None:
        """Raise the flag, or add one more reason to a raised one."""
        with _lock:
            self.reason = reason if self.reason is None else self.reason | reason
            event = self._event
        if event is not None:
            event.set()
        # Why no lock? Futures are used only in the event loop, which also calls this method.
        for future in self._futures:
            _release(future)

    def is_set(self) -> bool:
        """Check whether the flag is raised."""
        return self.reason is not None

    def wait_in_thread(self, timeout: float | None) -> None:
        """Block the thread until the flag is raised, at most for the time-out (in seconds)."""
        with _lock:
            if self.reason is not None:
                return
            event = self._event = self._event or threading.Event()
        # Wait without the lock: otherwise, no flag could be raised meanwhile.
        event.wait(timeout)


class FlagWaiter(Generic[ReasonT]):
    """
    A read-only flag, as handlers get it: true when it is raised.

    See `SyncFlagWaiter` and `AsyncFlagWaiter` for waiting.
    """

    __slots__ = ('_flag',)

    def __init__(self, flag: ReasonedFlag[ReasonT], /) -> None:
        self._flag = flag

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.is_set()}, reason={self.reason}>"

    def __bool__(self) -> bool:
        return self._flag.is_set()

    def is_set(self) -> bool:
        """Check whether the flag is raised; the same as the truth value of this object."""
        return self._flag.is_set()

    @property
    def reason(self) -> ReasonT | None:
        """All the reasons for which it was raised so far; ``None`` if it is not raised."""
        return self._flag.reason

    if TYPE_CHECKING:  # for handlers that annotate the base class; each subclass has its own method

        def wait(self, timeout: float | None = None) -> Any: ...


class SyncFlagWaiter(FlagWaiter[ReasonT], Generic[ReasonT]):
    """A flag for functions that run in threads."""

    __slots__ = ()

    def wait(self, timeout: float | None = None) -> 'SyncFlagWaiter[ReasonT]':
        """
        Wait until the flag is raised, but not longer than the ``timeout`` (in seconds; ``None`` is forever).

        Returns:
            This same object, to be checked at once: ``while not stopped.wait(10): …``.
        """
        self._flag.wait_in_thread(timeout)
        return self


class AsyncFlagWaiter(FlagWaiter[ReasonT], Generic[ReasonT]):
    """A flag for coroutines."""

    __slots__ = ()

    async def wait(self, timeout: float | None = None) -> 'AsyncFlagWaiter[ReasonT]':
        """
        Wait until the flag is raised, but not longer than the ``timeout`` (in seconds; ``None`` is forever).

        Returns:
            This same object, to be checked at once: ``while not await stopped.wait(10): …``.
        """
        flag = self._flag
        if flag.reason is not None:
            await asyncio.sleep(0)  # a daemon that ignores the raised flag in a loop must not block the event loop
            return self
        loop = asyncio.get_running_loop()
        # Why not `asyncio.timeout`? It needs a timer of the loop, and cancels the task; thousands of daemons wait
        # like this.
        future: asyncio.Future[None] = loop.create_future()
        timer = None
        if timeout is not None and timeout != math.inf:
            timer = flag._timers.set(loop.time() + timeout, partial(_release, future))
        # Why a tuple? Most flags have at most one waiter, and `set` can iterate over it while it is replaced.
        flag._futures += (future,)
        try:
            await future
        finally:
            flag._futures = tuple(other for other in flag._futures if other is not future)
            if timer is not None:
                timer.cancel()
            rouse()  # from here on, the code of the handler runs, and can block the event loop
        return self


def _release(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
