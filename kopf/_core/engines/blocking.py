"""
Detection of blocking calls: report the handler and the line that block the event loop, and the remedy.

A blocking call in an async handler is the most frequent mistake with asyncio. It is hard to find, because all handlers
become slow, not only that one. A monitor in another thread notices that the loop is stuck; this module reads the stack
of the loop's thread to find the line. Why not the debug mode of asyncio? It measures every callback, whereas the
monitor costs nothing until the loop is stuck. Specified in the documentation's "Async".
"""

import asyncio
import dataclasses
import functools
import linecache
import logging
import os
from collections.abc import Iterator
from types import FrameType
from typing import Any

from kopf._cogs.configs.configuration import OperatorSettings
from kopf._core.actions import invocation
from kopf._core.actions.execution import Handler, handler_var

logger = logging.getLogger(__name__)

_FRAMEWORK = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), '')

_REMEDY = (
    "Make it a function with 'def' instead of 'async def', so that it gets a thread; or run the slow call "
    "in a thread by 'await asyncio.to_thread(...)'; or use an async library for it."
)
_REMEDY_OF_CALLBACKS = (
    "Functions that are not handlers themselves, such as filters, never get a thread: "
    "let them only check their arguments."
)


@dataclasses.dataclass(frozen=True)
class BlockingCall:
    """A call in the user's code that blocks the event loop."""

    handler: str | None
    place: str
    """The line of the user's code."""
    remedy: str

    def __str__(self) -> str:
        return f"{self.handler or 'a task outside of handlers'} in {self.place}"


class BlockingReporter:
    """Finds and logs the blocking calls in an operator, once for each handler."""

    def __init__(self, settings: OperatorSettings) -> None:
        self._settings = settings
        self._reported: set[str] = set()

    def get_limit(self) -> float | None:
        """Return how long the loop may be blocked until that is reported (in seconds); ``None`` to never report it."""
        limit = self._settings.execution.blocking_limit
        return limit if limit is None or limit > 0 else None

    def find(self, frame: FrameType, task: asyncio.Task[Any] | None) -> BlockingCall | None:
        """Return the blocking call in this stack, if the user's code blocks the loop."""
        return find_blocking_call(frame, task)

    def report(self, culprit: BlockingCall, seconds: float, *, is_over: bool) -> None:
        """Log a warning about the call, unless its handler was reported before."""
        key = culprit.handler or culprit.place
        if key in self._reported:
            return
        self._reported.add(key)
        who = culprit.handler or "Something outside of handlers"
        logger.warning(
            "%s %s the event loop for %.1f seconds; nothing else could go on. It was in %s. %s This is reported once "
            "for each handler; see settings.execution.blocking_limit.",
            who,
            "has blocked" if is_over else "has been blocking",
            seconds,
            culprit.place,
            culprit.remedy,
        )


def find_blocking_call(frame: FrameType, task: asyncio.Task[Any] | None) -> BlockingCall | None:
    """Return the user's call in the stack of the event loop's thread; ``None`` if only the framework is there."""
    inner: list[FrameType] = []  # from the innermost call outwards, until the first frame of the framework
    outer: list[FrameType] = []
    for each in _iter_stack(frame):
        (outer if outer or each.f_code.co_filename.startswith(_FRAMEWORK) else inner).append(each)
    own = [each for each in inner if is_own_code(each.f_code.co_filename)]
    is_in_function = bool(inner and outer) and outer[0].f_code is invocation.invoke.__code__
    if not own and not is_in_function:
        return None
    running = _find_handler(outer)
    handler = running or _get_handler_of(task)
    # The framework calls filters directly, not by `invoke`.
    is_callback = running is not None and not is_in_function
    return BlockingCall(
        handler=str(handler) if handler is not None else None,
        place=_describe(own[0] if own else inner[-1]),
        remedy=_REMEDY_OF_CALLBACKS if is_callback else _REMEDY,
    )


def is_own_code(file: str) -> bool:
    """Check whether the file is code of the user: neither of the framework, nor of a library."""
    return not file.startswith((_FRAMEWORK, *_get_libraries(), '<'))


@functools.cache
def _get_libraries() -> tuple[str, ...]:
    import sysconfig

    paths = sysconfig.get_paths()
    return tuple(os.path.join(paths[name], '') for name in ('stdlib', 'platstdlib', 'purelib', 'platlib'))


def _iter_stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _find_handler(frames: list[FrameType]) -> Handler | None:
    for frame in frames:
        if frame.f_code.co_filename.startswith(_FRAMEWORK):
            handler = frame.f_locals.get('handler')
            if isinstance(handler, Handler):
                return handler
    return None


def _get_handler_of(task: asyncio.Task[Any] | None) -> Handler | None:
    """Return the handler that has started the task; ``None`` before Python 3.12, which has no ``get_context``."""
    get_context = getattr(task, 'get_context', None)
    return None if get_context is None else get_context().get(handler_var)


def _describe(frame: FrameType) -> str:
    path, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(path, line).strip()
    return f"{path}, line {line}, in {frame.f_code.co_name}" + (f": {text}" if text else "")
