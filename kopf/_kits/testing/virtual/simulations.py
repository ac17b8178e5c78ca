"""
A simulation: the event loop, the clock, the threads, and the random numbers of one test with virtual time.

The event loop runs in the thread of the test, but only while the test waits: in the calls of the sandbox, in
`time.sleep`, and so on. When the awaited result is available, the loop stops until the next wait. So a test is a plain
sequence of steps, and the same sequence leads to the same events in the same order.
"""

import asyncio
import contextlib
import contextvars
import gc
import random
import threading
from collections.abc import Coroutine
from typing import Any, ClassVar, NoReturn, TypeVar

from kopf._cogs.aiokits import loops
from kopf._cogs.aiokits.thread_pools import DaemonicThreadPool
from kopf._cogs.helpers import clocks
from kopf._kits.testing.virtual import seams
from kopf._kits.testing.virtual.blocking_sockets import BlockingSockets
from kopf._kits.testing.virtual.outputs import routed
from kopf._kits.testing.virtual.turns import TurnTaking, Waiter
from kopf._kits.testing.virtual.virtual_clocks import VirtualClock, VirtualTimeError
from kopf._kits.testing.virtual.virtual_loops import VirtualLoop

T = TypeVar('T')

__tracebackhide__ = True  # pytest omits the frames of this module from tracebacks

ENDING_TIMEOUT = 5.0
"""How long the remaining tasks may take to end when the simulation ends (in seconds of virtual time)."""


NO_COROUTINES = (
    "Virtual time has an event loop of its own, so a test with virtual_time=True is a plain function: write def "
    "instead of async def, and call the sandbox without .aio; or run a coroutine in that loop by sandbox.run()."
)


class Simulation:
    """
    One event loop of virtual time with its clock, its threads, and its source of random numbers.

    Args:
        seed: the seed of all random numbers, and so of the order of concurrent events.
    """

    _open: ClassVar['Simulation | None'] = None

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.clock = VirtualClock()
        self.rng = random.Random(seed)
        self._epochs = 0
        self._thread = 0
        self._error: VirtualTimeError | None = None
        self._thaws: dict[int, asyncio.TimerHandle] = {}  # the ends of freezes, by the identities of the owners
        self.is_broken = False
        """Whether `refuse` was called: then, the failed stop of an operator is not reported additionally."""
        self._stack = contextlib.ExitStack()

    def open(self) -> None:
        """
        Enter virtual time in this thread.

        Raises:
            VirtualTimeError: if this thread has a running event loop, or there is another simulation.
        """
        self._check_thread()
        if Simulation._open is not None:
            raise VirtualTimeError(
                "Virtual time has begun already: there can be only one sandbox with virtual_time=True at a time in a "
                "process. Let the tests run one after another."
            )
        Simulation._open = self
        self._thread = threading.get_ident()
        self.loop = VirtualLoop(self.clock, random.Random(self.rng.getrandbits(64)), self.refuse)
        self.turns = TurnTaking(self.loop, self.loop.network.pick_delay, self._fail)
        self.sockets = BlockingSockets(self, self.loop.network)
        self._stack.callback(self._forget)
        if gc.isenabled():
            # Instead, the loop collects the garbage, always at the same moments.
            gc.disable()
            self._stack.callback(gc.enable)
        self._stack.callback(clocks.restart)  # called last, when the real clocks are back
        self._stack.enter_context(seams.replaced(self))
        clocks.restart()
        self.loop.set_default_executor(DaemonicThreadPool())

    def close(self) -> None:
        """End all tasks and threads, and return to real time."""
        with self._stack:
            try:
                self._error = None
                self.turns.end_all()
                self.loop.run_until_complete(loops.finish(timeout=ENDING_TIMEOUT))
            finally:
                self.turns.end_all()
                self.sockets.close()
                self.loop.close()

    def _forget(self) -> None:
        Simulation._open = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """
        Run the coroutine, and everything else in the loop, until it is done.

        Raises:
            VirtualTimeError: if an action of the operator or the test is impossible in virtual time.
        """
        try:
            self._check_thread()
            self._raise_error()
        except BaseException:
            coroutine.close()
            raise
        task = self.loop.create_task(coroutine)
        try:
            with routed():
                return self.loop.run_until_complete(task)
        except BaseException:
            self._abandon(task)
            self._raise_error()
            raise

    def advance(self, seconds: float) -> None:
        """Let the time pass (in seconds)."""
        if seconds > 0:
            self.run(asyncio.sleep(seconds))

    def kill(self, owner: object) -> None:
        """
        Stop the tasks, threads, and connections of one operator at once, as if its process was killed.

        Args:
            owner: the output of the operator, which identifies it.
        """
        self._cancel_thaw(owner)
        self.loop.kill(owner)
        self.turns.end_all(owner)

    def freeze(self, owner: object, seconds: float) -> None:
        """
        Freeze the tasks and threads of one operator, as if a signal stopped its process.

        If it is frozen already, it stays so until the later of both ends.

        Args:
            owner: the output of the operator, which identifies it.
            seconds: how long it waits.
        """
        thaw = self._thaws.get(id(owner))
        if thaw is not None and thaw.when() >= self.loop.time() + seconds:
            return
        self._cancel_thaw(owner)
        if thaw is None:
            self.loop.freeze(owner)
            self.turns.freeze(owner)
        # Use an empty context: the caller can run in the context of the frozen operator.
        self._thaws[id(owner)] = self.loop.call_later(seconds, self.thaw, owner, context=contextvars.Context())

    def thaw(self, owner: object) -> None:
        """Let the operator continue: overdue callbacks run at once."""
        self._cancel_thaw(owner)
        self.loop.thaw(owner)
        self.turns.thaw(owner)

    def _cancel_thaw(self, owner: object) -> None:
        if (thaw := self._thaws.pop(id(owner), None)) is not None:
            thaw.cancel()

    def reseed(self) -> None:
        """
        Begin new sequences of random numbers.

        Modules can draw random numbers when they are imported, which happens only once in a process. With new sequences
        after the imports, the first test in a process gets the same numbers as later ones.
        """
        self._epochs += 1
        self.rng.seed(f'{self.seed}/{self._epochs}')
        random.seed(self.rng.getrandbits(128))

    def refuse(self, message: str) -> NoReturn:
        """Raise an error in the caller and, in case that suppresses it, also in the test."""
        self._fail(message)
        raise VirtualTimeError(message)

    def _fail(self, message: str) -> None:
        if self._error is None:
            self._error = VirtualTimeError(message)
        if self.loop.is_running():
            self.loop.stop()

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            self.is_broken = True
            raise error from None

    def _abandon(self, task: asyncio.Task[Any]) -> None:
        if not task.done():
            task.cancel()

    def _check_thread(self) -> None:
        if asyncio._get_running_loop() is not None:
            raise VirtualTimeError(NO_COROUTINES)

    def bind(self, address: tuple[str, int]) -> Any:
        """Return a socket in memory that a server of this loop can listen on."""
        return self.loop.network.bind(address)

    # The replaced functions of the standard library call these methods; see `seams`.

    def has_current_thread(self) -> bool:
        """Check whether the calling thread belongs to the simulation."""
        return threading.get_ident() == self._thread or self.turns.current is not None

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass for the calling thread."""
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        strand = self.turns.current
        if strand is not None:
            self.turns.sleep(strand, seconds)
        elif self.loop.is_running():
            self.clock.move_to(self.clock.now + seconds)  # this blocks the event loop
        else:
            self.advance(seconds)

    def wait(self, waiter: Waiter, timeout: float | None) -> None:
        """Block the calling thread until the waiter is awake, or for the time (in seconds)."""
        strand = self.turns.current
        if strand is not None:
            self.turns.wait(strand, waiter, timeout)
        elif not self.loop.is_running():
            self.run(self._wait(waiter, timeout))
        elif timeout is not None:
            self.sleep(timeout)  # this blocks the event loop, so no other code can release the waiter
        else:
            self.refuse("A coroutine waits for a thread, and so blocks the event loop forever: it must await instead.")

    async def _wait(self, waiter: Waiter, timeout: float | None) -> None:
        if waiter.is_awake:
            return
        awake = asyncio.Event()
        waiter.on_wake = lambda: self.loop.call_soon_threadsafe(awake.set)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await awake.wait()
