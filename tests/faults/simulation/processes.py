"""
Processes of operators: all of them live in one loop, and each of them can die without a goodbye.

What runs in the context of a process belongs to it. Of a dead process, nothing goes on: its requests never come back,
its handlers never continue. All that handlers and requests do passes through `Process.alive`.
"""

import asyncio
import contextvars
import datetime
import itertools

from kopf._cogs.helpers import clocks

current = contextvars.ContextVar('current')
"""The process that the code runs in."""


class Process:
    """
    One process.

    Args:
        clock: the clock of the machine.
        died: called with the process when it dies.
    """

    numbers = itertools.count(1)

    def __init__(self, clock, *, died):
        self.id = next(Process.numbers)
        self.dead = False
        self.clean = False
        """Whether the process has ended in order, without faults that could have hindered it."""
        self.patched = []
        """Called with the requests and responses of all patches that have reached the process."""
        self.started = clock.now
        self.started_wall = datetime.datetime.fromtimestamp(clock.read_wall() - clock.now, datetime.UTC)
        self.started_suspended = clock.suspended
        self.coordinator = None
        """The coordinator by Leases, if there is one."""
        self.ledger = None
        self.lost_at = -1.0
        """When the process has lost its Lease for the last time: its work was cancelled, as if it had died."""
        self.stopped_at = 0.0
        """When the process was told to end."""
        self.surrenders = []
        """When the process has released buckets to other members, and which."""
        self._died = died
        self._patches_left = None
        self._dies_before = False

    def __repr__(self):
        return f'op{self.id}'

    def make_context(self):
        context = contextvars.copy_context()
        context.run(current.set, self)
        return context

    async def alive(self):
        """Wait for ever if the process is dead."""
        if self.dead:
            await asyncio.get_running_loop().create_future()

    def die(self):
        if not self.dead:
            self.dead = True
            self._died(self)

    def die_at_patch(self, number, *, before):
        """Die at the patch of this number: before it is sent, or when it is executed, but not answered yet."""
        self._patches_left, self._dies_before = number, before

    async def send(self, request):
        """Called before a request is sent."""
        if _is_patch(request) and self._patches_left is not None:
            self._patches_left -= 1
            if self._patches_left <= 0 and self._dies_before:
                self.die()
        await self.alive()

    async def take(self, request, response):
        """Called when a request is answered."""
        if _is_patch(request) and self._patches_left is not None and self._patches_left <= 0:
            self.die()
        await self.alive()
        if _is_patch(request) and response.status < 300:
            for call in self.patched:
                call(request, response)


def _is_patch(request):
    return request.method == 'PATCH' and 'peering' not in request.query


class _Start:
    """The wall clock at the start of the process that asks, as if the loop's clock had been at zero."""

    def __init__(self, clock):
        self._clock = clock

    def __add__(self, delta):
        process = current.get(None)
        start = datetime.datetime.fromtimestamp(self._clock.read_wall() - self._clock.now, datetime.UTC)
        return (start if process is None else process.started_wall) + delta


def separate_clocks(clock):
    """Let each process have the wall clock and the suspensions from its own start on."""

    def measure():
        process = current.get(None)
        return 0.0 if process is None else clock.suspended - process.started_suspended

    clocks._started_at, clocks._measure_suspensions = _Start(clock), measure
