"""
Timers for thousands of objects: alarms that are due at nearly the same time go off together, in one round.

Why not simply `loop.call_at` for each alarm? A wake-up of the event loop costs more than the short function it calls,
and a heap of thousands of timers costs even more. So an alarm that is not due soon waits for the next round.
Only the rounds have timers of the event loop.
"""

import asyncio
import contextvars
import math
from collections.abc import Callable

RATE = 50
"""The number of rounds in a second. An alarm can be late by the time between two rounds."""

SOON = 0.5
"""The time (in seconds) within which alarms get timers of their own, and so are not late."""

TOLERANCE = 0.001
"""The time (in seconds) by which an alarm may be early, so that a rounding error does not delay it by a round."""


class Alarm:
    """A function to be called at a time, unless it is cancelled before."""

    __slots__ = ('_alarms', '_number', 'fn')

    def __init__(self, alarms: 'Alarms', number: int, fn: Callable[[], None]) -> None:
        self._alarms = alarms
        self._number = number
        self.fn: Callable[[], None] | None = fn

    def cancel(self) -> None:
        """Cancel the alarm: its function is not called."""
        self.fn = None
        self._alarms._discard(self._number, self)


class Alarms:
    """
    A set of alarms in the running event loop.

    Args:
        context: the context in which the functions are called.
    """

    def __init__(self, context: contextvars.Context) -> None:
        self._context = context
        self._rounds: dict[int, _Round] = {}

    def set(self, at: float, fn: Callable[[], None]) -> Alarm | asyncio.TimerHandle:
        """Call the function at this time on the clock of the loop, or in the next round after it."""
        loop = asyncio.get_running_loop()
        if at < loop.time() + SOON:
            return loop.call_at(at, fn, context=self._context)
        number = math.ceil((at - TOLERANCE) * RATE)
        turn = self._rounds.get(number)
        if turn is None:
            turn = self._rounds[number] = _Round(loop.call_at(number / RATE, self._ring, number, context=self._context))
        alarm = Alarm(self, number, fn)
        turn.alarms[alarm] = None
        return alarm

    def _ring(self, number: int) -> None:
        for alarm in self._rounds.pop(number).alarms:
            if alarm.fn is not None:  # an earlier alarm of the same round can have cancelled it
                try:
                    alarm.fn()
                except Exception as error:  # the other alarms of the round must go off nevertheless
                    asyncio.get_running_loop().call_exception_handler(
                        {'message': f"Exception in the alarm {alarm.fn!r}", 'exception': error}
                    )

    def _discard(self, number: int, alarm: Alarm) -> None:
        turn = self._rounds.get(number)
        if turn is not None:
            turn.alarms.pop(alarm, None)
            if not turn.alarms:
                turn.timer.cancel()
                del self._rounds[number]


class _Round:
    """The alarms that go off together, in the order in which they were set."""

    __slots__ = ('alarms', 'timer')

    def __init__(self, timer: asyncio.TimerHandle) -> None:
        self.timer = timer
        self.alarms: dict[Alarm, None] = {}
