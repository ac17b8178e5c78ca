"""
A pool of threads for sync handlers that never delays the exit of the process.

Why not simply `ThreadPoolExecutor`? The interpreter waits for its threads on exit without a limit, so a handler that
hangs in a socket would keep a stopped operator alive. These threads are daemonic. The operator gives its handlers
a limited time to end, and abandons the threads that still run after that.
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
    A pool with the interface of the standard one; threads are started on demand, and stay until the shutdown.

    Args:
        max_workers: the largest number of threads.
        on_full: called with the number of threads when a function has to wait for a thread for the first time.
    """

    def __init__(self, max_workers: int | None = None, *, on_full: Callable[[int], None] | None = None) -> None:
        super().__init__(max_workers)
        self._on_full = on_full
        self._jobs: _Jobs = queue.SimpleQueue()
        self._free_threads = _FreeThreads()
        self._workers: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False
        # The threads refer only to the queue, not to the pool: a pool that is garbage-collected ends them too.
        weakref.finalize(self, self._jobs.put, None).atexit = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """
        Run the function in a thread as soon as one is free.

        Raises:
            RuntimeError: if the pool is shut down; or if the system permits no threads, and the pool has none.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("Cannot run anything in a pool of threads that is shut down.")
            on_full = None
            if self._free_threads.change(-1) < 0:
                if len(self._workers) >= self._max_workers or not self._start_worker():
                    on_full, self._on_full = self._on_full, None
            self._jobs.put((future, lambda: fn(*args, **kwargs)))
        # Call it outside of the lock: it logs, and a log handler of the user can submit to this pool.
        if on_full is not None:
            on_full(len(self._workers))
        return future

    def _start_worker(self) -> bool:
        """Start one more thread, if the system permits it; return whether it is started."""
        thread = threading.Thread(
            target=_work, args=(self._jobs, self._free_threads), name=f'kopf-handlers-{next(_numbers)}', daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # the system permits no more threads now; the function waits for a running one
            if not self._workers:
                self._free_threads.change(+1)  # the function will not run
                raise
            return False
        self._workers.append(thread)
        self._free_threads.change(+1)
        return True

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stop accepting functions; wait until the accepted ones end, if ``wait`` is true."""
        with self._lock:
            self._closed = True
            while cancel_futures and not self._jobs.empty():
                if (job := self._jobs.get()) is not None:
                    job[0].cancel()
            # One item is sufficient: each thread passes it on to the next one.
            self._jobs.put(None)
        for thread in self._workers if wait else ():
            thread.join()


class _FreeThreads:
    """The number of free threads; negative if functions are queued."""

    __slots__ = ('_free', '_lock')

    def __init__(self) -> None:
        self._free = 0
        self._lock = threading.Lock()

    def change(self, by: int) -> int:
        with self._lock:
            self._free += by
            return self._free


def _work(jobs: _Jobs, free_threads: _FreeThreads) -> None:
    while (job := jobs.get()) is not None:
        _do(*job, free_threads)
        # Otherwise, an idle thread would keep the arguments of its last function in memory.
        del job
    jobs.put(None)  # for the other threads


def _do(future: Future[Any], fn: Callable[[], Any], free_threads: _FreeThreads) -> None:
    if not future.set_running_or_notify_cancel():
        free_threads.change(+1)
        return
    try:
        result = fn()
    except BaseException as error:
        # This comes before the result: a caller that submits again at once must find the thread free.
        free_threads.change(+1)
        future.set_exception(error)
        del future  # otherwise, the error's traceback, this frame, and the future would be a reference cycle
    else:
        free_threads.change(+1)
        future.set_result(result)
