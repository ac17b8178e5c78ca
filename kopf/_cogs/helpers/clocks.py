"""
The time as handlers and their records see it: it goes on evenly while the process lives, whatever is done to the clock.

The wall clock of a machine can be set at any time, also by hours. Delays and time-outs must not become longer or
shorter by that. So it is read once, when the process starts, and from then on the seconds are counted. What is stored
is for other processes, which have other clocks: it is shifted to the wall clock as it is when it is stored, and back.
"""

import datetime
import time
from typing import Final

NO_SHIFT: Final = datetime.timedelta(0)
MIN_SHIFT: Final = datetime.timedelta(seconds=1)
"""Smaller shifts are the usual corrections, and are not worth to be looked at."""


def read_wall_clock() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


_started_at: Final = read_wall_clock()
_origin: Final = time.monotonic()


# On Linux, and elsewhere: the clocks that go on while the machine is suspended. Python's monotonic one does not.
_CLOCK: Final[int | None] = getattr(time, 'CLOCK_BOOTTIME', getattr(time, 'CLOCK_MONOTONIC', None))


def _measure_suspensions() -> float:
    return 0.0 if _CLOCK is None else time.clock_gettime(_CLOCK) - time.monotonic()


_suspensions: Final = _measure_suspensions()


def get_suspended_time() -> float:
    """
    Return for how long (in seconds) the machine was suspended since the process has started.

    Event loops do not know of it: their clocks do not go on meanwhile.
    """
    return max(0.0, round(_measure_suspensions() - _suspensions, 1))  # the two clocks are not read at the same moment


def utcnow() -> datetime.datetime:
    """The current time, as it would be if nobody had set the clock since the process has started."""
    return _started_at + datetime.timedelta(seconds=time.monotonic() - _origin)


def get_shift() -> datetime.timedelta:
    """By how much the wall clock is ahead of `utcnow`, as it was set meanwhile, or as the machine was suspended."""
    shift = read_wall_clock() - utcnow()
    return shift if abs(shift) >= MIN_SHIFT else NO_SHIFT
