"""
Flags that are raised with reasons, and that are waited for both in coroutines and in threads.

One flag costs almost nothing while nobody waits for it: neither an event of asyncio nor one of threads is made before
somebody does, as there can be tens of thousands of flags. Those who raise a flag have the flag; those who wait for it
have one of its waiters, which can do nothing else.
"""

import asyncio
import enum
import math
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kopf._cogs.aiokits.alarms import Alarms
from kopf._cogs.aiokits.pulses import rouse

ReasonT = TypeVar('ReasonT', bound=enum.Flag)

_lock = threading.Lock()  # one for all flags: it is held for some instructions only


class ReasonedFlag(Generic[ReasonT]):
    """
    A flag that is raised in the event loop, and is never lowered. Further reasons are added to the first one.

    :param alarms: what measures the time of those who wait in coroutines.
    """

    __slots__ = ('_alarms', '_event', '_futures', 'reason')

    def __init__(self, alarms: Alarms) -> None:
        self.reason: ReasonT | None = None
        self._alarms = alarms
        self._event: threading.Event | None = None
        self._futures: tuple[asyncio.Future[None], ...] = ()

    def set(self, reason: ReasonT) -> None:
        with _lock:
            self.reason = reason if self.reason is None else self.reason | reason
            event = self._event
        if event is not None:
            event.set()
        for future in self._futures:
            _release(future)

    def is_set(self) -> bool:
        return self.reason is not None

    def wait_in_thread(self, timeout: float | None) -> None:
        with _lock:
            if self.reason is not None:
                return
            event = self._event = self._event or threading.Event()
        event.wait(timeout)


class FlagWaiter(Generic[ReasonT]):
    """
    A flag as it is seen by those who are told something by it: true when it is raised.

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
        """Tell whether the flag is raised; the same as the truth of the object."""
        return self._flag.is_set()

    @property
    def reason(self) -> ReasonT | None:
        """Why it is raised: all the reasons so far. ``None`` if it is not."""
        return self._flag.reason

    if TYPE_CHECKING:  # there is one in each kind, for handlers that do not say in which of them they wait

        def wait(self, timeout: float | None = None) -> Any: ...


class SyncFlagWaiter(FlagWaiter[ReasonT], Generic[ReasonT]):
    """A flag for functions that run in threads."""

    __slots__ = ()

    def wait(self, timeout: float | None = None) -> 'SyncFlagWaiter[ReasonT]':
        """
        Wait until the flag is raised, but not longer than the ``timeout`` (in seconds; ``None`` is for ever).

        It returns itself: to be checked at once, as in ``while not stopped.wait(10): …``.
        """
        self._flag.wait_in_thread(timeout)
        return self


class AsyncFlagWaiter(FlagWaiter[ReasonT], Generic[ReasonT]):
    """A flag for coroutines."""

    __slots__ = ()

    async def wait(self, timeout: float | None = None) -> 'AsyncFlagWaiter[ReasonT]':
        """
        Wait until the flag is raised, but not longer than the ``timeout`` (in seconds; ``None`` is for ever).

        It returns itself: to be checked at once, as in ``while not await stopped.wait(10): …``.
        """
        flag = self._flag
        if flag.reason is not None:
            await asyncio.sleep(0)  # a cycle that ignores the flag must not block the others
            return self
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        alarm = None
        if timeout is not None and timeout != math.inf:
            alarm = flag._alarms.set(loop.time() + timeout, partial(_release, future))
        flag._futures += (future,)
        try:
            await future
        finally:
            flag._futures = tuple(other for other in flag._futures if other is not future)
            if alarm is not None:
                alarm.cancel()
            rouse()  # what follows can block
        return self


def _release(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
