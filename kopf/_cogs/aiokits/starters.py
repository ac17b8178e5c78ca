"""
Coroutines that begin at once, and become tasks only if they wait for something.

Most of what begins ends at once, and a task for that would cost more than what is done in it. But what waits needs a
task, and must see the same one all the time: time-outs and groups cancel the task that was there when they began. So
there is a spare task, at rest. The beginning of a coroutine is run as if it was this task, and if it comes to waiting,
the task takes it over, and there is another spare one.
"""
import asyncio
import contextvars
import types
from collections.abc import Coroutine, Generator
from typing import Any

Work = Coroutine[Any, Any, None]

MAX_BEGINNINGS = 100
"""How many coroutines begin as one task at most: what others remember of a task must not grow without end."""


class Starter:
    """Starts coroutines in the running event loop. Its spare task does not end by itself, but when it is closed."""

    def __init__(self) -> None:
        self._spare: _Host | None = None
        self._busy = False
        self._closed = False

    def start(self, work: Work) -> asyncio.Task[None] | None:
        """
        Begin the work, in a context of its own; give the task that goes on with it, or ``None`` if it is done already.

        It begins at once, or later if that is not possible: inside of another beginning, and at first. What it raises
        before it waits for the first time, is raised here.
        """
        host = self._spare
        if self._busy or host is None or not host.is_free():
            if host is None or host.task.done():
                self._renew()
            return asyncio.create_task(work)
        self._busy = True
        try:
            done = host.begin(work)
        finally:
            self._busy = False
            host.wear()
            if not host.is_free():
                self._renew()
        return None if done else host.task

    async def close(self) -> None:
        """End the spare task; later, there are only usual ones."""
        self._closed = True
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.task.cancel()
            await asyncio.wait([spare.task])

    def _renew(self) -> None:
        self._spare = None if self._closed else _Host()


class _Host:
    """A task that can take over one coroutine."""

    __slots__ = ('_beginnings', '_context', '_loop', '_rest', '_waited', '_work', 'task')

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._beginnings = 0
        self._rest: asyncio.Future[None] | None = None
        self._work: Work | None = None
        self._waited: asyncio.Future[Any] | None = None
        # What is there now in the context of whoever has come first, is nothing to be kept.
        self._context = contextvars.Context()
        self.task = self._loop.create_task(self._live(), context=self._context)

    def is_free(self) -> bool:
        """Whether the task is at rest: neither just made, nor cancelled, nor with a coroutine."""
        return self._rest is not None and self._work is None and not self._rest.done()

    def wear(self) -> None:
        """Count one more beginning; after too many of them, the task ends if it is still at rest."""
        self._beginnings += 1
        if self._beginnings >= MAX_BEGINNINGS and self.is_free() and self._rest is not None:
            self._rest.set_result(None)

    def begin(self, work: Work) -> bool:
        """Run the coroutine until it waits; tell if it is done, as otherwise it is taken over."""
        context, loop, current = contextvars.copy_context(), self._loop, asyncio.current_task()
        if current is not None:
            asyncio._leave_task(loop, current)
        asyncio._enter_task(loop, self.task)
        try:
            waited = context.run(work.send, None)
        except StopIteration:
            return True
        finally:
            asyncio._leave_task(loop, self.task)
            if current is not None:
                asyncio._enter_task(loop, current)
        self._context, self._work, self._waited = context, work, waited
        if self._rest is not None and not self._rest.done():
            self._rest.set_result(None)
        return False

    async def _live(self) -> None:
        self._rest = self._loop.create_future()
        cancelled = False
        try:
            await self._rest
        except asyncio.CancelledError:
            if self._work is None:
                raise
            cancelled = True
        work, self._work = self._work, None
        if work is not None:
            await self._go_on(work, cancelled=cancelled)

    @types.coroutine
    def _go_on(self, work: Work, *, cancelled: bool) -> Generator[Any, None, None]:
        """Do what a task does with its coroutine, from where it waits for the first time."""
        waited, self._waited = self._waited, None
        error: BaseException | None = None
        if waited is not None:
            waited._asyncio_future_blocking = True  # somebody else could have awaited it since then
        if cancelled and (waited is None or not waited.cancel()):
            error = asyncio.CancelledError()
        while True:
            if error is None:
                try:
                    yield waited
                except BaseException as e:
                    error = e
            try:
                if error is None:
                    waited = self._context.run(work.send, None)
                else:
                    waited = self._context.run(work.throw, error)
            except StopIteration:
                return
            finally:
                error = None
