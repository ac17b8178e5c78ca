"""
Virtual time: an event loop whose clock jumps to the next timer, and the clocks of the process that follow it.

This module knows nothing of operators, so another loop of virtual time can replace it: the rest of the simulation uses
only `Clock`, `VirtualLoop` and `take_over`. Looptime is not used here: what decides on the order of things must be in
sight, as the same seed has to give the same run. So tasks and futures have hashes by their numbers, not by their
addresses: these decide on the order of sets of tasks.
"""

import asyncio
import datetime
import heapq
import itertools
import os
import random
import selectors
import sys
import time

MONOTONIC_START = 1000.0
WALL_START = 1900000000.0
TICK = 2e-6
"""How much time an iteration of the loop takes (in seconds): so that busy loops come to an end."""


class Spinning(Exception):
    """Raised when the loop goes round and round, and the time does not go on."""


class Clock:
    """The time of a simulation (in seconds): all clocks of the process follow it."""

    def __init__(self):
        self.now = 0.0
        self.shift = 0.0
        """By how much the wall clock was changed, or the machine was suspended."""
        self.suspended = 0.0
        """For how long the machine was suspended: loops and monotonic clocks stop meanwhile."""

    def read_monotonic(self):
        return MONOTONIC_START + self.now

    def read_wall(self):
        return WALL_START + self.now + self.shift

    def read_wall_clock(self):
        return datetime.datetime.fromtimestamp(self.read_wall(), datetime.UTC)

    def change(self, seconds):
        """Change the wall clock, as administrators do."""
        self.shift += seconds

    def suspend(self, seconds):
        """Suspend the machine: only the wall clock goes on."""
        self.shift += seconds
        self.suspended += seconds


class Numbered:
    """What has a place in sets that does not depend on its address."""

    _numbers = itertools.count(1)

    def __init__(self, *args, **kwargs):
        self._number = next(Numbered._numbers)  # before the rest, which puts tasks into sets
        super().__init__(*args, **kwargs)

    def __hash__(self):
        return self._number


class NumberedTask(Numbered, asyncio.Task):
    pass


class NumberedFuture(Numbered, asyncio.Future):
    pass


class _Selector:
    """Instead of waiting, it moves the clock."""

    def __init__(self, clock, limit):
        self._clock, self._limit = clock, limit
        self._real = selectors.DefaultSelector()
        self._count, self._since = 0, 0.0

    def select(self, timeout=None):
        events = self._real.select(0)
        self._clock.now += TICK
        self._count += 1
        if self._clock.now - self._since >= 1.0:
            self._count, self._since = 0, self._clock.now
        elif self._count > self._limit:
            self._count = 0
            raise Spinning(f'{self._limit} iterations of the loop in less than a second, at {self._clock.now:.3f}')
        if not events and timeout is None:
            raise RuntimeError('deadlock: nothing is scheduled')
        if not events and timeout > 0:
            self._clock.now += timeout
        return events

    def __getattr__(self, name):
        return getattr(self._real, name)


class VirtualLoop(asyncio.SelectorEventLoop):
    """
    A loop of virtual time.

    Args:
        clock: the clock to read and to move.
        limit: how many iterations there may be in a second; more are an endless loop.
    """

    is_virtual = True

    def __init__(self, clock, *, limit=60_000):
        self._clock = clock
        super().__init__(_Selector(clock, limit))
        self._clock_resolution = 1e-9
        self.set_task_factory(lambda loop, work, **options: NumberedTask(work, loop=loop, **options))

    def time(self):
        return self._clock.read_monotonic()

    def create_future(self):
        return NumberedFuture(loop=self)

    def forget_cancelled(self):
        """Drop the cancelled timers at once: asyncio keeps them, with their contexts, until they would be due."""
        for handle in self._scheduled:
            handle._scheduled = not handle.cancelled()
        self._scheduled[:] = [handle for handle in self._scheduled if not handle.cancelled()]
        heapq.heapify(self._scheduled)
        self._timer_cancelled_count = 0


class _SeededRandom(random.Random):
    """A generator that is seeded by the common one, not by the system."""

    def __init__(self, seed=None):
        super().__init__(random.getrandbits(64) if seed is None else seed)


def begin_eagerly(work):
    """Begin the coroutine at once, as usual loops do it: the framework does not if the loop has a factory of tasks."""
    return NumberedTask(work, loop=asyncio.get_running_loop(), eager_start=True)


def take_over(clock, seed):
    """Let all clocks of the process follow this one, and all its random numbers follow from the seed, for ever."""
    time.monotonic, time.time = clock.read_monotonic, clock.read_wall
    time.gmtime, real = (lambda seconds=None: real(clock.read_wall() if seconds is None else seconds)), time.gmtime
    random.seed(seed)
    os.urandom = random._urandom = random.Random(f'entropy {seed}').randbytes  # for uuid and secrets, too
    random.Random = _SeededRandom
    from kopf._cogs.helpers import clocks
    from kopf._core.reactor import workers

    if sys.version_info >= (3, 12):
        workers.create_eager_task = begin_eagerly
    clocks.read_wall_clock = clock.read_wall_clock
    clocks._CLOCK, clocks._suspensions, clocks._measure_suspensions = None, 0.0, lambda: clock.suspended
    clocks._origin = MONOTONIC_START
