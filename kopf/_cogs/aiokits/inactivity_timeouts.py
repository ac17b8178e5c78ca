"""
Limits on silence, i.e. on the time between two signs of life of a connection.

Why not simply `asyncio.timeout`? It would need a new timer for each sign of life, e.g. for each chunk of a watch.
Here, a sign of life only stores the time. The single timer checks it when the limit could be exceeded.
"""

import asyncio
from types import TracebackType
from typing import Self


class InactivityTimeout:
    """
    Raises `TimeoutError` in its block when there were no signs of life for too long; an async context manager.

    Args:
        limit: the longest permitted silence (in seconds); ``None`` is unlimited.
    """

    __slots__ = ('_heard_at', '_limit', '_loop', '_timeout', '_timer')

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._timeout = asyncio.timeout(None)

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._heard_at = self._loop.time()
        self._timer = None if self._limit is None else self._loop.call_later(self._limit, self._look)
        return self

    async def __aexit__(
        self,
        type_: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        timeout = self._timeout
        del self._timeout  # avoids a reference cycle: limit, task, error, frames, limit
        await timeout.__aexit__(type_, error, traceback)

    def renew(self) -> None:
        """Restart the time. Called at each sign of life."""
        self._heard_at = self._loop.time()

    def relax(self, limit: float | None) -> None:
        """Change the limit (in seconds; ``None`` is unlimited) and restart the time."""
        self._limit = limit
        self.renew()
        # Set the timer again: there is none after a time without a limit, and a shorter limit must end earlier.
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if limit is None else self._loop.call_later(limit, self._look)

    def _look(self) -> None:
        if self._limit is None:
            return
        deadline = self._heard_at + self._limit
        if deadline > self._loop.time():
            self._timer = self._loop.call_at(deadline, self._look)
        else:
            self._timeout.reschedule(self._loop.time())
