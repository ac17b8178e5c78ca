"""
Threads of sync daemons: each running daemon has its own thread.

Why not use the thread pool of the handlers? A daemon would occupy a thread for as long as its object exists, and a few
daemons would block all handlers. The number of threads is limited; daemons above the limit wait, with a warning.
They are also daemon threads in the sense of `threading`: the interpreter does not join them at exit, so a daemon that
ignores its ``stopped`` flag does not delay the end of the process. `ThreadPoolExecutor` would join its threads.
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
    An executor that starts a thread for every call, with a limit of running threads.

    Callers reserve a thread by `reserve` before they submit a call, and release it by `release` afterwards. Both are
    called only in the event loop, so no locks are needed.
    """

    def __init__(self, settings: BackgroundSettings) -> None:
        self._settings = settings
        self._taken = 0
        self._queue: deque[Callable[[], bool]] = deque()
        self._numbers = itertools.count(1)
        self._warned = False

    def reserve(self, enter: Callable[[], bool], who: object) -> None:
        """
        Call the function now, or as soon as a thread is free.

        Args:
            enter: the function, which returns whether it uses the thread. If so, the caller must call `release` later.
            who: the daemon, for the log.
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
        """Release a thread, and pass it to the next daemon that waits for one."""
        self._taken -= 1
        # Why a loop? Daemons that were stopped while they waited do not use the thread.
        while self._queue and self._taken < self._settings.max_threads:
            self._enter(self._queue.popleft())

    def _enter(self, enter: Callable[[], bool]) -> None:
        self._taken += 1
        if not enter():
            self._taken -= 1

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call the function in a new thread."""
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
        del future  # otherwise, the error's traceback, this frame, and the future would be a reference cycle
    else:
        future.set_result(result)
