"""
Threads that take turns: only one of them runs at a time.

The event loop gives a turn to a thread, and waits until this turn ends. The turn ends when the thread ends, or when it
waits by `time.sleep` or by the locks and events of `threading`. When the time is over or the event has come, the thread
gets its next turn. So threads of handlers behave like coroutines: no other code runs between two waits, and the order
of the threads is repeatable.

Why real threads at all? Handlers use thread-local variables, and must be able to wait in the middle of any function.
"""

import _thread
import asyncio
import contextlib
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from kopf._kits.testing.virtual.outputs import output_var

PATIENCE = 10.0
"""How long a turn may take (in seconds of real time)."""

_STDLIB = sysconfig.get_path('stdlib')


class ThreadEnded(SystemExit):
    """Raised in a waiting thread at the end of virtual time, when no event will wake it up any more."""


class Strand:
    """One thread that takes turns."""

    def __init__(self, thread: threading.Thread) -> None:
        self.thread = thread
        self.owner = output_var.get()
        """The output of the operator that has started the thread."""
        self.is_over = False
        self.is_ending = False
        self.on_end: list[Waiter] = []
        self._begins = _thread.allocate_lock()
        self._ends = _thread.allocate_lock()
        self._begins.acquire()
        self._ends.acquire()

    def take_turn(self) -> bool:
        """Let the thread run until it waits or ends; return whether this happens in time."""
        self._begins.release()
        return self._ends.acquire(timeout=PATIENCE)

    def await_turn(self) -> None:
        """Wait until the thread may run; called in the thread."""
        self._begins.acquire()
        if self.is_ending:
            raise ThreadEnded

    def yield_turn(self) -> None:
        """Let the event loop run until the next turn; called in the thread."""
        self._ends.release()
        self.await_turn()

    def finish(self) -> None:
        """End the last turn, and let the event loop run; called at the end of the thread."""
        self.is_over = True
        for waiter in self.on_end:
            if not waiter.is_awake:
                waiter.release()
        self._ends.release()


class TurnTaking:
    """
    All threads that share one virtual time.

    Args:
        loop: the event loop, which gives the turns.
        pick_delay: returns the time before a new thread gets its first turn (in seconds).
        on_hang: called with an explanation when a thread does not end its turn.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pick_delay: Callable[[], float],
        on_hang: Callable[[str], object],
    ) -> None:
        self._loop = loop
        self._pick_delay = pick_delay
        self._on_hang = on_hang
        self._local = threading.local()
        self._strands: dict[Strand, None] = {}
        self._frozen: dict[int, tuple[object, list[Strand]]] = {}

    @property
    def current(self) -> Strand | None:
        """The calling thread, if it takes turns."""
        strand: Strand | None = getattr(self._local, 'strand', None)
        return strand

    @property
    def is_starting(self) -> bool:
        """
        True if the calling thread is inside of `start`.

        In `start`, a thread waits until the new thread exists. This wait needs a real lock, because no turn would end
        it.
        """
        return getattr(self._local, 'is_starting', False)

    def start(self, thread: threading.Thread, start: Callable[[threading.Thread], None]) -> None:
        """Start a thread that takes turns; it begins to run with its first turn."""
        strand = Strand(thread)
        run = thread.run

        def run_in_turns() -> None:
            self._local.strand = strand
            try:
                strand.await_turn()
                run()
            except ThreadEnded:
                pass
            finally:
                self._strands.pop(strand, None)
                strand.finish()

        thread.run = run_in_turns  # type: ignore[method-assign]
        with self._starting():
            start(thread)
        self._strands[strand] = None
        self._loop.call_later(self._pick_delay(), self._give_turn, strand)

    def sleep(self, strand: Strand, seconds: float) -> None:
        """Let the thread wait for a time."""
        self._loop.call_later(seconds, self._give_turn, strand)
        strand.yield_turn()

    def wait(self, strand: Strand, waiter: 'Waiter', timeout: float | None) -> None:
        """Let the thread wait until the waiter is released or the time (in seconds) is over."""
        timer = None if timeout is None else self._loop.call_later(timeout, waiter.expire)
        waiter.on_wake = lambda: self._loop.call_soon_threadsafe(self._give_turn, strand)
        if not waiter.is_awake:
            strand.yield_turn()
        if timer is not None:
            timer.cancel()

    def has(self, thread: threading.Thread) -> bool:
        """Check whether the thread takes turns and has not ended."""
        return any(strand.thread is thread for strand in self._strands)

    def join(self, thread: threading.Thread, wait: Callable[['Waiter'], None]) -> None:
        """Wait until the thread has ended; `wait` is the function that blocks the caller."""
        for strand in self._strands:
            if strand.thread is thread:
                waiter = Waiter()
                strand.on_end.append(waiter)
                wait(waiter)
                return

    def end_all(self, owner: object = None) -> None:
        """End all threads, or those that an operator has started, wherever they wait."""
        self._frozen.pop(id(owner), None)
        for strand in list(self._strands):
            if owner is None or strand.owner is owner:
                strand.is_ending = True
                self._give_turn(strand)

    def freeze(self, owner: object) -> None:
        """Postpone the turns of the threads that an operator has started."""
        self._frozen[id(owner)] = owner, []

    def thaw(self, owner: object) -> None:
        """Let the threads take the postponed turns."""
        _, strands = self._frozen.pop(id(owner), (None, []))
        for strand in strands:
            self._give_turn(strand)

    def _give_turn(self, strand: Strand) -> None:
        if id(strand.owner) in self._frozen and not strand.is_ending:
            self._frozen[id(strand.owner)][1].append(strand)
            return
        if not strand.is_over and not strand.take_turn():
            self._strands.pop(strand, None)
            self._on_hang(
                f'The thread {strand.thread.name!r} has not come to an end or to a wait within {PATIENCE:g} s of real '
                f'time{_locate(strand.thread)}. In virtual time, threads run one at a time: let it wait by '
                'time.sleep() or by events and queues of the standard library, but not for sockets, processes, or '
                'locks that a waiting thread holds; or run this test without virtual_time=True.'
            )

    @contextlib.contextmanager
    def _starting(self) -> Iterator[None]:
        self._local.is_starting = True
        try:
            yield
        finally:
            self._local.is_starting = False


class Waiter:
    """Wakes up a waiting thread. `threading.Condition` gets it instead of the lock that it would create for a wait."""

    def __init__(self) -> None:
        self.is_released = False
        self.is_awake = False
        self.on_wake: Callable[[], object] = lambda: None

    def release(self) -> None:
        """Wake up the thread because it was notified; called by `threading.Condition`."""
        if self.is_awake:
            raise RuntimeError("The wait has expired before.")  # locks raise the same error if they are not held
        self.is_released = True
        self._wake()

    def expire(self) -> None:
        """Wake up the thread because the time is over."""
        if not self.is_awake:
            self._wake()

    def _wake(self) -> None:
        self.is_awake = True
        self.on_wake()


def _locate(thread: threading.Thread) -> str:
    """Return the place where the thread is, for a message."""
    frame: FrameType | None = sys._current_frames().get(thread.ident or 0)
    innermost: Any = frame
    while frame is not None and frame.f_code.co_filename.startswith((_STDLIB, '<frozen')):
        frame = frame.f_back
    frame = frame or innermost
    return '' if frame is None else f' ({frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name})'
