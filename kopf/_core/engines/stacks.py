"""
Stacks of tasks and threads: they show the current line of a handler without stopping it.

Stacks are read from any thread while the code continues. So a stack can be slightly outdated, but no handler is slowed
down.
"""

import asyncio
import linecache
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NamedTuple

from kopf._core.actions import execution, invocation
from kopf._core.engines.blocking import is_own_code

MAX_DEPTH = 100
"""The maximum number of calls in a stack; the innermost ones are left out."""


class Call(NamedTuple):
    """One call in a stack."""

    file: str
    line: int
    function: str

    @property
    def text(self) -> str:
        """The line of the code; empty if the file cannot be read."""
        return linecache.getline(self.file, self.line).strip()

    @classmethod
    def of(cls, frame: FrameType) -> 'Call':
        """Return the current call of the frame."""
        return cls(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


class Stack(NamedTuple):
    """The calls of a handler, from the outermost to the innermost one, and the thread that it runs in, if any."""

    calls: Sequence[Call]
    thread: str | None = None

    def find_place(self, fn: Callable[..., Any]) -> Call | None:
        """
        Return the innermost call in the user's code; without any, the innermost one.

        Args:
            fn: the function of the handler: its file is the user's code, wherever it is installed.
        """
        file = getattr(getattr(fn, '__code__', None), 'co_filename', None)
        own = [call for call in self.calls if is_own_code(call.file) or call.file == file]
        return own[-1] if own else self.calls[-1] if self.calls else None


def read_stack(task: asyncio.Task[Any], loop_thread: int | None) -> Stack:
    """
    Return the stack of the task, together with that of the thread that it waits for.

    Args:
        task: the task of the handler.
        loop_thread: the thread of the event loop, if it is blocked by this task.
    """
    frames = _find_frames(task)
    threads = sys._current_frames()
    if loop_thread is not None:
        blocked = _get_inner_frames(threads.get(loop_thread), {id(frame) for frame in frames})
        return Stack(_describe([*frames, *blocked]))
    for frame in frames:
        if frame.f_code is invocation.invoke.__code__:
            thread, inner = _find_thread(frame.f_locals.get('kwargs'), threads)
            if thread is not None:
                return Stack(_describe(inner), thread)
    return Stack(_describe(frames))


def find_handler(task: asyncio.Task[Any]) -> str | None:
    """Return the name of the innermost handler that the task runs; ``None`` between the handlers."""
    code = execution.run_handler.__code__
    names = [str(frame.f_locals['handler']) for frame in _find_frames(task) if frame.f_code is code]
    return names[-1] if names else None


def _describe(frames: Sequence[FrameType]) -> list[Call]:
    """Return the calls from the handler's function inwards, without the calls of the framework around it."""
    starts = [number for number, frame in enumerate(frames, 1) if frame.f_code is invocation.invoke.__code__]
    start = starts[-1] if starts else 0
    return [Call.of(frame) for frame in frames[start : start + MAX_DEPTH]]


def _find_frames(task: asyncio.Task[Any]) -> list[FrameType]:
    """Return the frames of the coroutines of a task, and of the tasks that it waits for."""
    frames: list[FrameType] = []
    awaited: Any = task
    while awaited is not None and len(frames) < MAX_DEPTH:
        if isinstance(awaited, asyncio.Task):
            task, awaited = awaited, awaited.get_coro()
        frame, inner = _look_into(awaited)
        if frame is not None:
            frames.append(frame)
        if inner is None or not any(_look_into(inner)):
            # The innermost coroutine waits for a future, which can be another task.
            waiter = getattr(task, '_fut_waiter', None)
            inner = waiter if isinstance(waiter, asyncio.Task) else None
        awaited = inner
    return frames


def _look_into(awaited: Any) -> tuple[FrameType | None, Any]:
    """Return the frame of a coroutine or generator, and the object that it awaits."""
    for prefix, attribute in (('cr', 'cr_await'), ('gi', 'gi_yieldfrom'), ('ag', 'ag_await')):
        if hasattr(awaited, f'{prefix}_frame'):
            return getattr(awaited, f'{prefix}_frame'), getattr(awaited, attribute)
    return None, None


def _iter_outwards(frame: FrameType | None) -> list[FrameType]:
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def _get_inner_frames(frame: FrameType | None, known: set[int]) -> list[FrameType]:
    """Return the frames of the sync calls inside of these coroutines, the innermost one last."""
    found = []
    for each in _iter_outwards(frame):
        if id(each) in known:
            break
        found.append(each)
    return found[::-1]


def _find_thread(kwargs: Any, threads: dict[int, FrameType]) -> tuple[str | None, list[FrameType]]:
    """Return the name of the thread that runs a function with these kwargs, and the frames of the function."""
    import threading

    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, top in threads.items():
        inner: list[FrameType] = []
        for frame in _iter_outwards(top):
            # Compare identities: a function can run for many objects at once, with equal arguments.
            if frame.f_code is invocation._call.__code__ and frame.f_locals.get('kwargs') is kwargs:
                return names.get(ident, str(ident)), inner[::-1]
            inner.append(frame)
    return None, []
