"""
Limits of how long something may be silent.

Unlike `asyncio.timeout`, which has to be made anew for each sign of life, with a timer each time, one limit is for
all of them: a sign of life is a number written down, and the only timer looks at it when it is time to.
"""

import asyncio
from types import TracebackType
from typing import Self


class SilenceLimit:
    """
    Raises `TimeoutError` in its block when there was no sign of life for too long; an async context manager.

    :param limit: how long the silence may last (in seconds); ``None`` is for ever.
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
        del self._timeout  # it refers to the task, whose error refers to the frames that refer to this limit
        await timeout.__aexit__(type_, error, traceback)

    def renew(self) -> None:
        """Know that there is a sign of life: the time begins anew."""
        self._heard_at = self._loop.time()

    def relax(self, limit: float | None) -> None:
        """Allow longer silences from now on: of this length (in seconds), or any if it is ``None``."""
        self._limit = limit
        self.renew()

    def _look(self) -> None:
        if self._limit is None:
            return
        deadline = self._heard_at + self._limit
        if deadline > self._loop.time():
            self._timer = self._loop.call_at(deadline, self._look)
        else:
            self._timeout.reschedule(self._loop.time())
