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
    """The same as the standard pool from outside; threads are made as they are needed, and stay until the shutdown."""

    def __init__(self, max_workers: int | None = None) -> None:
        super().__init__(max_workers)
        self._jobs: _Jobs = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
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
            self._jobs.put((future, lambda: fn(*args, **kwargs)))
            if not self._idle.acquire(blocking=False) and len(self._workers) < self._max_workers:
                thread = threading.Thread(
                    target=_work, args=(self._jobs, self._idle), name=f'kopf-handlers-{next(_numbers)}', daemon=True)
                self._workers.append(thread)
                thread.start()
        return future

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


def _work(jobs: _Jobs, idle: threading.Semaphore) -> None:
    while (job := jobs.get()) is not None:
        _do(*job)
        del job
        idle.release()
    jobs.put(None)  # for the other threads


def _do(future: Future[Any], fn: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = fn()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
