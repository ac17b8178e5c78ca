"""
Timers for thousands of objects: those that are due at nearly the same time expire together, in one round.

Why not simply `loop.call_at` for each of them? A wake-up of the event loop costs more than the short function it calls,
and a heap of thousands of timers costs even more. So a timer that is not due soon joins a round, and each round needs
only one timer of the event loop.
"""

import asyncio
import contextvars
import math
from collections.abc import Callable

RATE = 50
"""The number of rounds in a second. A timer can be late by at most the time between two rounds."""

SOON = 0.5
"""The limit (in seconds): timers that are due earlier join no round, but use the event loop directly, to be exact."""

TOLERANCE = 0.001
"""The time (in seconds) by which a timer may be early, so that a rounding error does not delay it by a round."""


class CoalescedTimer:
    """A function that is called in a round, unless the timer is cancelled before."""

    __slots__ = ('_number', '_timers', 'fn')

    def __init__(self, timers: 'CoalescedTimers', number: int, fn: Callable[[], None]) -> None:
        self._timers = timers
        self._number = number
        self.fn: Callable[[], None] | None = fn

    def cancel(self) -> None:
        """Cancel the timer: its function is not called."""
        self.fn = None
        self._timers._discard(self._number, self)


class CoalescedTimers:
    """
    A set of timers in the running event loop.

    Args:
        context: the context in which the functions are called.
    """

    def __init__(self, context: contextvars.Context) -> None:
        self._context = context
        self._rounds: dict[int, _Round] = {}

    def set(self, at: float, fn: Callable[[], None]) -> CoalescedTimer | asyncio.TimerHandle:
        """Schedule the function: at this time of the loop if that is soon, otherwise in the next round after it."""
        loop = asyncio.get_running_loop()
        if at < loop.time() + SOON:
            return loop.call_at(at, fn, context=self._context)
        # Round up: a timer may be late by a round, but not early.
        number = math.ceil((at - TOLERANCE) * RATE)
        turn = self._rounds.get(number)
        if turn is None:
            turn = self._rounds[number] = _Round(
                loop.call_at(number / RATE, self._expire, number, context=self._context)
            )
        timer = CoalescedTimer(self, number, fn)
        turn.timers[timer] = None
        return timer

    def _expire(self, number: int) -> None:
        for timer in self._rounds.pop(number).timers:
            if timer.fn is not None:  # an earlier timer of the same round can have cancelled it
                try:
                    timer.fn()
                except Exception as error:  # the other timers of the round must expire nevertheless
                    asyncio.get_running_loop().call_exception_handler(
                        {'message': f"Exception in the timer {timer.fn!r}", 'exception': error}
                    )

    def _discard(self, number: int, timer: CoalescedTimer) -> None:
        turn = self._rounds.get(number)
        if turn is not None:
            turn.timers.pop(timer, None)
            if not turn.timers:
                # Cancel an empty round: otherwise, it would wake up an operator without timers.
                turn.handle.cancel()
                del self._rounds[number]


class _Round:
    """The timers that expire together, in the order in which they were set."""

    __slots__ = ('handle', 'timers')

    def __init__(self, handle: asyncio.TimerHandle) -> None:
        self.handle = handle
        self.timers: dict[CoalescedTimer, None] = {}
