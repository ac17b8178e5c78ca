"""
Threads of sync daemons: one a daemon, for as long as it runs.

They are not those of the handlers' pool: a daemon would never give its thread back, and some daemons would be enough
for all handlers to stop. There is a limit, as an operating system has one too; those above it wait, which is logged.

The interpreter does not wait for these threads at its end: a daemon that ignores its flag does not hold up the process.
"""

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

from kopf._cogs.configs.configuration import BackgroundSettings

logger = logging.getLogger(__name__)

P = ParamSpec('P')
T = TypeVar('T')


class DaemonThreads(Executor):
    """
    Starts a thread for every call. Those who call ask for a place before, and give it back after.

    The places are counted in the event loop; so nothing is locked.
    """

    def __init__(self, settings: BackgroundSettings) -> None:
        self._settings = settings
        self._taken = 0
        self._queue: deque[Callable[[], bool]] = deque()
        self._numbers = itertools.count(1)
        self._warned = False

    def admit(self, enter: Callable[[], bool], who: object) -> None:
        """
        Call the function now, or when there is a place.

        It returns whether it has taken the place; then, the place is to be given back by `release`.
        """
        if self._taken < self._settings.max_threads:
            self._enter(enter)
            return
        self._queue.append(enter)
        if not self._warned:
            self._warned = True
            logger.warning(
                "All the %d threads of sync daemons are in use; %s and others after it wait until some of them end. "
                "Raise settings.background.max_threads, or make the daemons async.",
                self._settings.max_threads,
                who,
            )

    def release(self) -> None:
        self._taken -= 1
        while self._queue and self._taken < self._settings.max_threads:
            self._enter(self._queue.popleft())

    def _enter(self, enter: Callable[[], bool]) -> None:
        self._taken += 1
        if not enter():
            self._taken -= 1

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Start a thread with the function."""
        future: Future[T] = Future()
        threading.Thread(
            target=_run,
            args=(future, fn, args, kwargs),
            name=f'kopf-daemon-{next(self._numbers)}',
            daemon=True,
        ).start()
        return future


def _run(future: Future[Any], fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = fn(*args, **kwargs)
    except BaseException as error:
        future.set_exception(error)
        del future  # this frame is in the traceback of what the future has: a cycle for the garbage collector
    else:
        future.set_result(result)
