"""
Forked copies of this process: each of them runs one plan, and sends the result back.

A copy has all modules imported already, and its changes of any state, including that of the user's modules, are lost at
its end. So plans do not influence each other, and no plan has to start a Python interpreter.
"""

import contextlib
import gc
import math
import os
import pickle
import selectors
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar('T')


class ForkFailed(Exception):
    """The result of a copy that has failed; the message has the reason."""


class _Copy(NamedTuple):
    pid: int
    tag: Any
    deadline: float


class ForkPool(Generic[T]):
    """
    Runs functions in copies of this process, several at the same time.

    Args:
        jobs: the maximal number of copies that run at the same time.
        timeout: the maximal duration of one copy (in seconds).
    """

    _is_frozen = False
    """Whether the objects of this process are frozen: by the program, or by a pool. To count them takes long."""

    def __init__(self, jobs: int, timeout: float) -> None:
        self._jobs = jobs
        self._timeout = timeout

    def run(
        self,
        tasks: Iterator[tuple[T, Callable[[], Any]]],
        deadline: float | Callable[[], float],
    ) -> Iterator[tuple[T, Any]]:
        """
        Call the functions in copies; yield their tags and results in the order in which they finish.

        The result is a `ForkFailed` if the copy has failed. The next task is taken from the iterator when a copy has
        ended. At the deadline (on the monotonic clock), the running copies are killed, and have no results. The
        deadline is a function if it depends on the results.
        """
        find_deadline = deadline if callable(deadline) else lambda: deadline
        copies: dict[int, _Copy] = {}
        is_frozen = ForkPool._is_frozen or gc.get_freeze_count() > 0  # by the caller: keep it so
        ForkPool._is_frozen = True
        gc.freeze()
        try:
            with selectors.DefaultSelector() as selector:
                exhausted = False
                while True:
                    while not exhausted and len(copies) < self._jobs and time.monotonic() < find_deadline():
                        task = next(tasks, None)
                        if task is None:
                            exhausted = True
                        else:
                            self._start(task, copies, selector)
                    if not copies or time.monotonic() >= find_deadline():
                        return
                    until = min(find_deadline(), *(copy.deadline for copy in copies.values()))
                    ready = selector.select(max(0.0, until - time.monotonic()))
                    for key, _ in ready:
                        copy = copies.pop(key.fd)
                        yield copy.tag, _finish(key.fd, copy, selector)
                    exhausted = exhausted and not ready
                    for fd, copy in list(copies.items()):
                        if time.monotonic() >= copy.deadline:
                            del copies[fd]
                            os.kill(copy.pid, signal.SIGKILL)
                            _finish(fd, copy, selector)
                            yield copy.tag, ForkFailed(f'it did not end within {self._timeout:g} s of real time')
        finally:
            for fd, copy in copies.items():
                os.kill(copy.pid, signal.SIGKILL)
                os.close(fd)
                os.waitpid(copy.pid, 0)
            if not is_frozen:
                ForkPool._is_frozen = False
                gc.unfreeze()

    def call(self, function: Callable[[], Any], tag: T, *, deadline: float = math.inf) -> Any:
        """Call one function in a copy, and return its result; end it at the deadline (on the monotonic clock)."""
        for _, result in self.run(iter([(tag, function)]), min(deadline, time.monotonic() + self._timeout + 1)):
            return result
        return ForkFailed('it was interrupted')

    def _start(
        self,
        task: tuple[T, Callable[[], Any]],
        copies: dict[int, _Copy],
        selector: selectors.BaseSelector,
    ) -> None:
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            # Ignore Python's warning about forks in processes with threads: the copy does not use its parent's threads.
            warnings.simplefilter('ignore', DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            _serve(task[1], writer)
        os.close(writer)
        copies[reader] = _Copy(pid, task[0], time.monotonic() + self._timeout)
        selector.register(reader, selectors.EVENT_READ)


def _serve(function: Callable[[], Any], writer: int) -> None:
    """Called in the copy: send the result, and exit without the exit handlers of the original process."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        try:
            data = pickle.dumps((True, function()))
        except BaseException:
            data = pickle.dumps((False, traceback.format_exc()))
        with os.fdopen(writer, 'wb') as file:
            file.write(data)
    finally:
        os._exit(0)


def _finish(fd: int, copy: _Copy, selector: selectors.BaseSelector) -> Any:
    selector.unregister(fd)
    with os.fdopen(fd, 'rb') as file:
        data = file.read()
    _, status = os.waitpid(copy.pid, 0)
    with contextlib.suppress(EOFError, pickle.UnpicklingError):
        is_done, result = pickle.loads(data)
        return result if is_done else ForkFailed(result)
    return ForkFailed(f'its process has ended unexpectedly (status {status})')
