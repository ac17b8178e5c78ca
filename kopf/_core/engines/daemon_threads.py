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
from collections import OrderedDict
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
        # Why not a deque? A daemon that is stopped while it waits could not be removed quickly. Why not a dict? To find
        # its first item, all removed ones before it are skipped each time.
        self._queue: OrderedDict[Callable[[], bool], None] = OrderedDict()
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
        self._queue[enter] = None
        if not self._warned:
            self._warned = True
            logger.warning(
                "All the %d threads of sync daemons are in use; %s and others after it wait until some of them end. "
                "Raise settings.background.max_threads, or make the daemons async.",
                self._settings.max_threads,
                who,
            )

    def cancel(self, enter: Callable[[], bool]) -> None:
        """Do not call the function any more, if it still waits for a thread: its daemon and its object can be freed."""
        self._queue.pop(enter, None)

    def release(self) -> None:
        """Release a thread, and pass it to the next daemon that waits for one."""
        self._taken -= 1
        # Why a loop? The operator can be about to pause, so that a daemon does not use the thread.
        while self._queue and self._taken < self._settings.max_threads:
            enter, _ = self._queue.popitem(last=False)
            self._enter(enter)

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
