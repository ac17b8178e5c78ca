"""
Watching from a thread whether an event loop goes on, and who keeps it from that.

It is looked twice a second whether a task runs in the loop. If so, the loop is asked to answer, and as long as it
does, that is all there is: nothing is counted or remembered in the loop itself. If it does not answer, it is looked
at several times what runs there. Only one task (or callback) that is there all the time is blocking it; a loop with
very many short tasks is only busy. When nothing runs, the thread dozes: who begins something that can block, or who
wants to know whether the loop is blocked, says so by `rouse`, and that costs next to nothing for all the others.
"""

import asyncio
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

INTERVAL = 0.5
"""How often it is looked whether the loop is busy (in seconds)."""

MAX_IDLE_LOOKS = 5
"""After so many looks at an idle loop, the thread dozes."""

DOZE = 60.0
"""For how long (in seconds), unless it is roused; then the loop is asked all the same, as callbacks are no tasks."""

STEPS = 8
"""How many times the stack is looked at within the limit."""

PATIENCE = 10.0
"""When to report what is not over yet (in limits)."""

Task = asyncio.Task[Any]

T = TypeVar('T')


class Inspector(Protocol[T]):
    """Who knows what to make of blocks. It is called in the watching thread."""

    def get_limit(self) -> float | None:
        """Give the time (in seconds) after which a block is of interest; ``None`` if none are."""

    def find(self, frame: FrameType, task: Task | None) -> T | None:
        """Tell what blocks the loop: this task, if any, with this stack; ``None`` if that is of no interest."""

    def report(self, culprit: T, seconds: float, *, is_over: bool) -> None:
        """Know for how long it has blocked the loop by now, or in all."""


_dozing: 'set[Pulse[Any]]' = set()


def rouse() -> None:
    """Let the loops be looked at again, as something begins there; from any thread."""
    if _dozing:
        for pulse in list(_dozing):
            pulse._roused.set()


class Pulse(Generic[T]):
    """
    Watches the running event loop; an async context manager.

    :param inspector: who is told of what blocks the loop.
    """

    def __init__(self, inspector: Inspector[T]) -> None:
        self._inspector = inspector
        self._closed = threading.Event()
        self._roused = threading.Event()
        self._asked_at: float | None = None
        self.culprit: T | None = None
        """What blocks the loop now, if that is known."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread_id = 0

    async def __aenter__(self) -> Self:
        self._loop, self._thread_id = asyncio.get_running_loop(), threading.get_ident()
        threading.Thread(target=self._run, name='kopf-pulse', daemon=True).start()
        return self

    async def __aexit__(
        self,
        type_: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closed.set()
        self._roused.set()  # the thread ends soon; nobody needs to wait for it

    @property
    def silence(self) -> float:
        """For how long (in seconds) the loop has not answered."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None else time.monotonic() - asked_at

    # In the thread.

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
            if not self._ask():
                return

    def _ask(self) -> bool:
        """Let the loop answer; tell if it is still to be watched."""
        if self._closed.is_set():
            return False
        answered = threading.Event()
        self._asked_at = time.monotonic()
        try:
            self._get_loop().call_soon_threadsafe(answered.set)
        except RuntimeError:  # the loop is closed
            return False
        try:
            self._wait(answered)
        finally:
            self._asked_at = None  # if the inspector fails, nobody watches any more, but nobody is blamed either
        return True

    def _doze(self) -> bool:
        """Sleep for long; tell if it was roused from that."""
        self._roused.clear()
        _dozing.add(self)
        try:
            # What has begun before it was added, has roused nobody.
            begun = asyncio.current_task(self._get_loop()) is not None
            return begun or self._closed.is_set() or self._roused.wait(DOZE)
        finally:
            _dozing.discard(self)

    def _wait(self, answered: threading.Event) -> None:
        """Wait for the answer, and look at what goes on meanwhile."""
        limit = self._inspector.get_limit()
        step = INTERVAL if limit is None else limit / STEPS
        suspect: Task | None = None
        blocked, reported, at = 0.0, False, time.monotonic()
        while not answered.wait(step) and not self._closed.is_set():
            previous, at = at, time.monotonic()
            if limit is None:
                continue
            task = asyncio.current_task(self._get_loop())
            if task is not suspect:
                if self.culprit is not None and not reported:  # it has ended just now, before the loop could answer
                    self._inspector.report(self.culprit, blocked, is_over=True)
                suspect, blocked, reported, self.culprit = task, 0.0, False, None
            # If this thread was not run in time either, it is the machine that is slow, or was asleep.
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
