"""
Alarms of thousands: those that are due at nearly the same time go off together.

To wake up costs an event loop more than a short function that is called then; so do timers of one's own, one an alarm.
So alarms that are not soon are put off until the next of the rounds, and only the rounds have timers.
"""

import asyncio
import contextvars
import math
from collections.abc import Callable

RATE = 50
"""How many rounds there are in a second: alarms can be late by the time between two of them."""

SOON = 0.5
"""Alarms of the nearest time (in seconds) have timers of their own, and are not late."""

TOLERANCE = 0.001
"""How much too early an alarm may be (in seconds), so that errors of rounding do not put it off for a whole round."""


class Alarm:
    """A function to be called at a time, unless it is cancelled before."""

    __slots__ = ('_alarms', '_number', 'fn')

    def __init__(self, alarms: 'Alarms', number: int, fn: Callable[[], None]) -> None:
        self._alarms = alarms
        self._number = number
        self.fn: Callable[[], None] | None = fn

    def cancel(self) -> None:
        self.fn = None
        self._alarms._discard(self._number, self)


class Alarms:
    """
    All the alarms of somebody, in the running event loop.

    :param context: what the functions are called in.
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
            if alarm.fn is not None:  # it can be cancelled by those before it
                try:
                    alarm.fn()
                except Exception as error:  # the others do not have to suffer from it
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
