"""Threads of virtual time: a function runs at once, but its result comes as late as it says."""

import asyncio
import collections
import concurrent.futures
import functools
import inspect

from kopf._cogs.aiokits.loops import get_context
from kopf._core.engines.daemon_threads import DaemonThreads
from tests.faults.simulation import processes

_tasks = set()
"""The tasks that play threads; those of dead processes never end."""


class VirtualThreads(concurrent.futures.Executor):
    """
    An executor for functions that return coroutines: these play what the threads do over time.

    Args:
        size: the number of threads.
    """

    def __init__(self, size):
        self._free = size
        self._queue = collections.deque()

    def submit(self, fn, /, *args, **kwargs):
        future = concurrent.futures.Future()
        self._queue.append((future, fn, args, kwargs))
        self._start()
        return future

    def _start(self):
        while self._queue and self._free:
            future, fn, args, kwargs = self._queue.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            self._free -= 1
            try:
                value = fn(*args, **kwargs)
            except BaseException as error:
                self._end(future, None, error)
                continue
            if inspect.iscoroutine(value):
                task = asyncio.get_running_loop().create_task(value)
                _tasks.add(task)
                task.add_done_callback(functools.partial(self._note_end, future))
            else:
                self._end(future, value, None)

    def _note_end(self, future, task):
        _tasks.discard(task)
        self._end(future, *_get_outcome(task))

    def _end(self, future, value, error):
        self._free += 1
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
        self._start()


def _get_outcome(task):
    error = asyncio.CancelledError() if task.cancelled() else task.exception()
    return (None if error is not None else task.result()), error


def find_running(process):
    """Return the names of the functions that are running in threads of the process."""
    return [repr(task) for task in _tasks if get_context(task).get(processes.current) is process]


def take_over():
    """Let sync daemons have such threads, too."""
    DaemonThreads.submit = lambda self, fn, /, *args, **kwargs: VirtualThreads(1).submit(fn, *args, **kwargs)
