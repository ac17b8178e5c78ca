"""
The clock for handlers and their progress records: it runs evenly, even when the wall clock of the machine is changed.

The wall clock can be changed at any time, even by hours, and this must not affect delays and time-outs. So the wall
clock is read once, when the process starts; then the seconds of a monotonic clock are added. Timestamps in the cluster
are also read by other processes, which started with other wall clocks. So the framework converts timestamps to the
current wall clock when it stores them, and back when it loads them.
"""

import datetime
import time
from typing import Final

NO_SHIFT: Final = datetime.timedelta(0)
MIN_SHIFT: Final = datetime.timedelta(seconds=1)
"""The smallest shift that matters. Smaller shifts are usual corrections by NTP, and are ignored."""


def read_wall_clock() -> datetime.datetime:
    """Return the current time of the machine."""
    return datetime.datetime.now(datetime.UTC)


_CLOCK: Final[int | None] = getattr(time, 'CLOCK_BOOTTIME', getattr(time, 'CLOCK_MONOTONIC', None))
"""The clock that also runs while the machine is suspended, unlike Python's monotonic clock."""


def _measure_suspensions() -> float:
    return 0.0 if _CLOCK is None else time.clock_gettime(_CLOCK) - time.monotonic()


def restart() -> None:
    """Read all clocks again, as at the start of the process; for virtual time, which replaces the clocks."""
    global _started_at, _origin, _suspensions
    _started_at, _origin, _suspensions = read_wall_clock(), time.monotonic(), _measure_suspensions()


_started_at: datetime.datetime
_origin: float
_suspensions: float
restart()


def get_suspended_time() -> float:
    """
    Return the time (in seconds) for which the machine was suspended since the process started.

    The clocks of event loops stop meanwhile.
    """
    # Rounded: the two clocks are not read at the same moment.
    return max(0.0, round(_measure_suspensions() - _suspensions, 1))


def read_time() -> float:
    """
    Return the monotonic time (in seconds), including the time when the machine was suspended; callable in any thread.

    Why not the time of the event loop? Some loops read it once in an iteration. That is too old after a suspension, and
    in other threads.
    """
    return time.monotonic() + get_suspended_time()


def utcnow() -> datetime.datetime:
    """Return the current time, as if the wall clock had not been changed since the process started."""
    return _started_at + datetime.timedelta(seconds=time.monotonic() - _origin)


def get_shift() -> datetime.timedelta:
    """Return the time by which the wall clock is ahead of `utcnow`, e.g. after a suspension of the machine."""
    shift = read_wall_clock() - utcnow()
    return shift if abs(shift) >= MIN_SHIFT else NO_SHIFT
