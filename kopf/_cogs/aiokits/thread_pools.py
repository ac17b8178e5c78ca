"""
A pool of threads for sync handlers that never delays the exit of the process.

Why not simply `ThreadPoolExecutor`? The interpreter waits for its threads on exit without a limit, so a handler that
hangs in a socket would keep a stopped operator alive. These threads are daemonic. The operator gives its handlers
a limited time to end, and abandons the threads that still run after that.
"""

import contextlib
import itertools
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec('P')
T = TypeVar('T')

_Job = tuple[Future[Any], Callable[[], Any]]


class _Leave:
    """An item of the queue instead of a job: the thread that takes it ends."""


_Jobs = queue.SimpleQueue[_Job | _Leave | None]

_numbers = itertools.count()

_own = threading.local()
"""The pool of the current thread: a weak reference in the attribute ``pool``."""


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Note that the current thread waits in the block of code, maybe for functions in other threads of its pool."""
    reference: weakref.ref[DaemonicThreadPool] | None = getattr(_own, 'pool', None)
    pool = None if reference is None else reference()
    if pool is None or not pool.is_elastic:
        yield
        return
    pool.begin_waiting()
    try:
        yield
    finally:
        pool.end_waiting()


class DaemonicThreadPool(ThreadPoolExecutor):
    """
    A pool with the interface of the standard one; threads are started on demand, and stay until the shutdown.

    Args:
        max_workers: the largest number of threads.
        on_full: called with the number of threads when a function has to wait for a thread for the first time.
        is_elastic: whether threads do not count while they are `waiting`. Otherwise, they could wait for ever, each for
            a function that waits for one of them.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        on_full: Callable[[int], None] | None = None,
        is_elastic: bool = False,
    ) -> None:
        super().__init__(max_workers)
        self.is_elastic = is_elastic
        self._on_full = on_full
        self._jobs: _Jobs = queue.SimpleQueue()
        self._free_threads = _FreeThreads()
        self._workers: list[threading.Thread] = []
        self._count = 0  # the number of threads without those that are about to leave
        self._waiting = 0  # the number of threads that do not count, as they are waiting
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
                if self._is_full() or not self._start_worker():
                    on_full, self._on_full = self._on_full, None
            self._jobs.put((future, lambda: fn(*args, **kwargs)))
        # Call it outside of the lock: it logs, and a log handler of the user can submit to this pool.
        if on_full is not None:
            on_full(len(self._workers))
        return future

    def begin_waiting(self) -> None:
        """Called when one of the threads begins to wait: another one is started if a function needs it."""
        with self._lock:
            self._waiting += 1
            if not self._closed and self._free_threads.change(0) < 0 and not self._is_full():
                self._start_worker()

    def end_waiting(self) -> None:
        """Called when one of the threads goes on: if there are too many now, the next one that is free ends."""
        with self._lock:
            self._waiting -= 1
            if self._count > self._max_workers + self._waiting:
                self._count -= 1
                self._free_threads.change(-1)
                self._jobs.put(_Leave())

    def _is_full(self) -> bool:
        return self._count >= self._max_workers + self._waiting

    def _start_worker(self) -> bool:
        """Start one more thread, if the system permits it; return whether it is started."""
        thread = threading.Thread(
            target=_work,
            args=(self._jobs, self._free_threads, weakref.ref(self)),
            name=f'kopf-handlers-{next(_numbers)}',
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError:  # the system permits no more threads now; the function waits for a running one
            if not self._workers:
                self._free_threads.change(+1)  # the function will not run
                raise
            return False
        if self.is_elastic:
            self._workers = [each for each in self._workers if each.is_alive()]  # without those that have left
        self._workers.append(thread)
        self._count += 1
        self._free_threads.change(+1)
        return True

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stop accepting functions; wait until the accepted ones end, if ``wait`` is true."""
        with self._lock:
            self._closed = True
            while cancel_futures and not self._jobs.empty():
                if isinstance(job := self._jobs.get(), tuple):
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


def _work(jobs: _Jobs, free_threads: _FreeThreads, pool: weakref.ref[DaemonicThreadPool]) -> None:
    _own.pool = pool
    while (job := jobs.get()) is not None:
        if isinstance(job, _Leave):
            return
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
