"""
A pool of threads for sync handlers that never holds up the end of the process.

The interpreter waits for the threads of the standard pool when it exits, however long they take: a handler that hangs
in a socket would keep a stopped operator alive for as long. These threads are daemonic: what has not ended in the time
that the operator gives to its handlers, is left.
"""

import itertools
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec('P')
T = TypeVar('T')

_Job = tuple[Future[Any], Callable[[], Any]]
_Jobs = queue.SimpleQueue['_Job | None']

_numbers = itertools.count()


class DaemonicThreadPool(ThreadPoolExecutor):
    """
    The same as the standard pool from outside; threads are made as they are needed, and stay until the shutdown.

    When a function has to wait for a thread for the first time, ``on_full`` is called with the number of threads.
    """

    def __init__(self, max_workers: int | None = None, *, on_full: Callable[[int], None] | None = None) -> None:
        super().__init__(max_workers)
        self._on_full = on_full
        self._jobs: _Jobs = queue.SimpleQueue()
        self._places = _Places()
        self._workers: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False
        # The threads know only the queue, so that a forgotten pool ends them too.
        weakref.finalize(self, self._jobs.put, None).atexit = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run the function in a thread, now or when there is a free one; `RuntimeError` after the shutdown."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("Cannot run anything in a pool of threads that is shut down.")
            on_full = None
            if self._places.change(-1) < 0:
                if len(self._workers) < self._max_workers:
                    self._start_worker()
                else:
                    on_full, self._on_full = self._on_full, None
            self._jobs.put((future, lambda: fn(*args, **kwargs)))
        if on_full is not None:
            on_full(len(self._workers))
        return future

    def _start_worker(self) -> None:
        thread = threading.Thread(
            target=_work, args=(self._jobs, self._places), name=f'kopf-handlers-{next(_numbers)}', daemon=True
        )
        self._workers.append(thread)
        self._places.change(+1)
        thread.start()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more functions; wait for those that are taken, unless told otherwise."""
        with self._lock:
            self._closed = True
            while cancel_futures and not self._jobs.empty():
                if (job := self._jobs.get()) is not None:
                    job[0].cancel()
            self._jobs.put(None)
        for thread in self._workers if wait else ():
            thread.join()


class _Places:
    """How many threads are free; less than zero if functions wait for some."""

    __slots__ = ('_free', '_lock')

    def __init__(self) -> None:
        self._free = 0
        self._lock = threading.Lock()

    def change(self, by: int) -> int:
        with self._lock:
            self._free += by
            return self._free


def _work(jobs: _Jobs, places: _Places) -> None:
    while (job := jobs.get()) is not None:
        _do(*job, places)
        del job
    jobs.put(None)  # for the other threads


def _do(future: Future[Any], fn: Callable[[], Any], places: _Places) -> None:
    if not future.set_running_or_notify_cancel():
        places.change(+1)
        return
    try:
        result = fn()
    except BaseException as error:
        places.change(+1)  # before anybody is told: who calls again at once finds the thread free
        future.set_exception(error)
        del future  # this frame is in the traceback of what the future has: a cycle for the garbage collector
    else:
        places.change(+1)
        future.set_result(result)
