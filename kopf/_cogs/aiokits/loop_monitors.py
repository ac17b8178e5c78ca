"""
The monitor of an event loop: a thread that detects when a task blocks the loop.

Twice a second, the thread checks whether a task runs in the loop. If so, it schedules a function in the loop. As long
as the loop calls the function in time, the monitor costs the loop nothing else.

If the loop does not call the function in time, the thread samples the running task several times. Only if all samples
show the same task (or callback), the loop is blocked; a loop with many short tasks is merely busy.

When no tasks run, the thread sleeps until `rouse` is called: before code that can block is started, and when the state
of the loop is requested. This is cheaper than waking up the thread twice a second in an idle operator.
"""

import asyncio
import concurrent.futures
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

INTERVAL = 0.5
"""The interval (in seconds) between two checks whether the loop is busy."""

MAX_IDLE_LOOKS = 5
"""The number of checks that find the loop idle, after which the thread dozes."""

DOZE = 60.0
"""The longest doze (in seconds). Then the loop is checked even if no task runs, because callbacks can block it, too."""

STEPS = 8
"""The number of samples of the running task within the limit."""

PATIENCE = 10.0
"""After this multiple of the limit, a block is reported even though it is not over yet."""

Task = asyncio.Task[Any]

T = TypeVar('T')


class Inspector(Protocol[T]):
    """Finds and reports the culprit that blocks the loop. It is called in the monitoring thread."""

    def get_limit(self) -> float | None:
        """Return the time (in seconds) after which a block is to be reported; ``None`` disables the reports."""

    def find(self, frame: FrameType, task: Task | None) -> T | None:
        """Return the culprit that blocks the loop with this stack; ``None`` if it must not be reported."""

    def report(self, culprit: T, seconds: float, *, is_over: bool) -> None:
        """Called with the time (in seconds) for which the culprit has blocked the loop: so far, or in total."""


_dozing: 'set[LoopMonitor[Any]]' = set()


def rouse() -> None:
    """Wake up the dozing monitors, because code that can block is going to run; callable from any thread."""
    # This is called for each handler, so it must be fast while the monitors are awake.
    if _dozing:
        for monitor in list(_dozing):
            monitor._roused.set()


class LoopMonitor(Generic[T]):
    """
    Monitors the running event loop; an async context manager.

    Args:
        inspector: finds and reports the culprit that blocks the loop.
    """

    def __init__(self, inspector: Inspector[T]) -> None:
        self._inspector = inspector
        self._closed = threading.Event()
        self._roused = threading.Event()
        self._asked_at: float | None = None
        self.culprit: T | None = None
        """The object that blocks the loop now, as found by the inspector; ``None`` if it is not blocked."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread_id = 0

    async def __aenter__(self) -> Self:
        self._loop, self._thread_id = asyncio.get_running_loop(), threading.get_ident()
        # In virtual time, the clock stands still while a task runs: there is nothing to measure.
        if not getattr(self._loop, 'is_virtual', False):
            threading.Thread(target=self._run, name='kopf-monitor', daemon=True).start()
        return self

    async def __aexit__(
        self,
        type_: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closed.set()
        self._roused.set()  # the thread ends soon by itself; joining it here would block the loop

    @property
    def silence(self) -> float:
        """The time (in seconds) for which the loop has not answered."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None else time.monotonic() - asked_at

    @property
    def thread_id(self) -> int:
        """The thread of the loop."""
        return self._thread_id

    def find_current_task(self) -> Task | None:
        """Return the task that runs in the loop at this moment, as seen from another thread."""
        return asyncio.current_task(self._get_loop())

    def look(self) -> T | None:
        """Return the present activity of the loop, as found by the inspector; callable from any thread."""
        return self._look(self.find_current_task())

    async def measure_lag(self, limit: float) -> tuple[float, bool]:
        """
        Return how long the loop takes to respond (in seconds), and whether it has responded in this time at all.

        Called in another event loop, of another thread. If the loop does not respond, the first value is the time for
        which it has not responded so far.
        """
        answer: concurrent.futures.Future[float] = concurrent.futures.Future()

        def respond() -> None:
            if answer.set_running_or_notify_cancel():
                answer.set_result(time.monotonic())

        rouse()  # the monitor sleeps when there is nothing to watch; its measurements are needed below
        asked = time.monotonic()
        try:
            self._get_loop().call_soon_threadsafe(respond)
            async with asyncio.timeout(limit):
                return await asyncio.wrap_future(answer) - asked, True
        except TimeoutError:
            return max(self.silence, time.monotonic() - asked), False
        except RuntimeError:  # the loop is closed
            return 0.0, True

    # The methods below are called in the thread.

    def _run(self) -> None:
        idle_looks = 0
        while not self._closed.is_set():
            if idle_looks >= MAX_IDLE_LOOKS:
                if self._doze():
                    idle_looks = 0
            elif self._closed.wait(INTERVAL):
                return
            elif asyncio.current_task(self._get_loop()) is None:
                idle_looks += 1
                continue
            else:
                idle_looks = 0
            if not self._check_loop():
                return

    def _check_loop(self) -> bool:
        """Ask the loop and wait for its answer; return false if the monitoring is to end."""
        if self._closed.is_set():
            return False
        answered = threading.Event()
        self._asked_at = time.monotonic()
        try:
            # Why ask only if a task runs? Each call wakes up the loop, which costs CPU in idle operators.
            self._get_loop().call_soon_threadsafe(answered.set)
        except RuntimeError:  # the loop is closed
            return False
        try:
            self._wait(answered)
        finally:
            self._asked_at = None  # even if the inspector fails and the monitoring ends, the loop must not seem blocked
        return True

    def _doze(self) -> bool:
        """Sleep until roused or for a long time; return true if it was roused."""
        self._roused.clear()
        _dozing.add(self)
        try:
            # A task that started before this monitor was added to the set did not rouse it.
            begun = asyncio.current_task(self._get_loop()) is not None
            return begun or self._closed.is_set() or self._roused.wait(DOZE)
        finally:
            _dozing.discard(self)

    def _wait(self, answered: threading.Event) -> None:
        """Wait for the answer, and sample the running task meanwhile."""
        limit = self._inspector.get_limit()
        step = INTERVAL if limit is None else limit / STEPS
        suspect: Task | None = None
        blocked, reported, at = 0.0, False, time.monotonic()
        while not answered.wait(step) and not self._closed.is_set():
            previous, at = at, time.monotonic()
            # Without a limit, no task is reported. The answer is still awaited, because probes use `silence`.
            if limit is None:
                continue
            task = asyncio.current_task(self._get_loop())
            if task is not suspect:
                if self.culprit is not None and not reported:  # it has just ended, before the loop could respond
                    self._inspector.report(self.culprit, blocked, is_over=True)
                suspect, blocked, reported, self.culprit = task, 0.0, False, None
            # If this thread did not run in time either, the machine is slow or was suspended, not the task.
            blocked += min(at - previous, 2 * step)
            if self.culprit is None and blocked >= limit:
                self.culprit = self._look(suspect)
            elif self.culprit is not None and not reported and blocked >= limit * PATIENCE:
                self._inspector.report(self.culprit, blocked, is_over=False)
                reported = True
        if self.culprit is not None and not reported:
            self._inspector.report(self.culprit, blocked + time.monotonic() - at, is_over=True)
        self.culprit = None

    def _look(self, task: Task | None) -> T | None:
        frame = sys._current_frames().get(self._thread_id)
        return None if frame is None else self._inspector.find(frame, task)

    def _get_loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None
        return self._loop
