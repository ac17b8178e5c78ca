"""
Who works on the objects, and how many at a time.

An object has a worker only while there is work, and a worker is a task only if it waits for something. So an operator
of many thousands of objects at rest has no tasks for them, and the limit of workers is a limit of what happens, not
of what exists.

Those who wait for a place go in two lanes: what has just happened is served before what was there already when the
operator has started, both here and among the requests to the API. Of the latter, there can be very many at once, and a
worker that waits for the API takes ten times as much memory as an object that waits for its worker. So they do not
begin while enough of them wait there. What the others do besides requests holds nobody back.
"""

import asyncio
import functools
import logging
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Protocol

from kopf._cogs.aiokits.eager import create_eager_task
from kopf._cogs.aiokits.loops import abandon
from kopf._cogs.aiokits.priority_queues import FairPriorityQueue
from kopf._cogs.clients.pacing import Pressure
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._core.engines.spawning import OperatorDaemons
from kopf._core.reactor.indexing_gate import IndexingGate
from kopf._core.reactor.object_records import ObjectRecord

logger = logging.getLogger(__name__)


MAX_WAITING = 32
"""How many requests about objects of the initial lists may wait for the API before no more of these objects begin."""

MAX_AT_ONCE = 16
"""How many of them begin in one turn of the loop: only in the next one it is known whether they make requests."""

DRAINING_INTERVAL = 0.05
"""How often to look whether the daemons have ended (in seconds)."""


class ObjectProcessor(Protocol):
    """Who knows what is to be done about the objects of a resource."""

    @property
    def requesting(self) -> bool:
        """Whether this usually comes to requests to the API."""

    @property
    def arguments(self) -> frozenset[str] | None:
        """The arguments that the handlers can look at, indices among them; ``None`` if that can be any."""

    def work(self, record: ObjectRecord) -> Coroutine[Any, Any, None]:
        """Do all there is to do about the object now."""


class WorkerPool:
    """
    The workers of all the objects of an operator: at most ``settings.queueing.worker_limit`` at a time.

    Those who come when there is no place wait in a queue, without a task. Those whose handlers need indices that are
    not complete wait before it.
    """

    def __init__(self, settings: OperatorSettings, indexing_gate: IndexingGate) -> None:
        self._settings = settings
        self._indexing_gate = indexing_gate
        indexing_gate.listeners.append(self._admit)
        self._tasks: dict[asyncio.Task[None], ObjectRecord] = {}
        self._beginning = 0  # how many run right now up to where they wait, and are no tasks until then
        self._calm: set[ObjectRecord] = set()  # those employed, but not urgent
        self._queue: FairPriorityQueue[ObjectRecord, ObjectProcessor] = FairPriorityQueue()
        # Those who wait for indices, by the arguments of their handlers.
        self._outside: dict[frozenset[str] | None, dict[ObjectRecord, ObjectProcessor]] = {}
        self._begun = 0  # how many of those have begun in this turn of the loop
        self._look: asyncio.Handle | None = None
        self._closed = False
        self._is_overdue: Callable[[], bool] | None = None
        self.pressure = Pressure(self._notice_relief)
        """Those who are not urgent, and wait for the API."""
        self.paused = False
        """Whether the workers finish what they do, and begin nothing."""
        self.background = OperatorDaemons(settings)
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def guard(self, is_overdue: Callable[[], bool]) -> None:
        """Ask this before any work begins: whether the operator must pause, and has not been told so yet."""
        self._is_overdue = is_overdue
        self.background.guard(is_overdue)

    @property
    def halted(self) -> bool:
        """Whether nothing is to be begun now: neither objects, nor their next steps."""
        return self.paused or (self._is_overdue is not None and self._is_overdue())

    def start(
        self,
        processor: ObjectProcessor,
        record: ObjectRecord,
        *,
        urgent: bool = True,
        at_once: bool = True,
    ) -> None:
        """
        Give the object a worker, now or when there is a place for it; who is not urgent lets others go first.

        It begins before this returns, if there is a place, unless it is not to begin ``at_once``.
        """
        if record.has_worker:
            if urgent and record in self._calm:
                self._calm.discard(record)
                self._queue.hurry(record)
                self._begin_all()
            return
        if self._closed:
            return
        record.assign_worker()
        if not urgent:
            self._calm.add(record)
        if not self._may_begin(processor):
            self._put_outside(processor, record)
        elif not self._can_begin(processor, urgent=urgent):
            record.fold_pending()
            self._queue.push(record, processor, urgent=urgent)
        elif at_once:
            self._begin(processor, record)
        else:
            self._begin_later(processor, record)

    @property
    def is_overloaded(self) -> bool:
        """Whether others wait for a place."""
        return bool(self._queue) and not self._has_place()

    def is_at_work(self, record: ObjectRecord) -> bool:
        """Check whether the object is worked on at the moment, and does not only wait for a place."""
        return record in self._tasks.values()

    def is_urgent(self, record: ObjectRecord) -> bool:
        """Tell whether the object is worked on because of something that has just happened."""
        return record not in self._calm

    def _has_place(self) -> bool:
        limit = self._settings.queueing.worker_limit
        if self.paused or (limit is not None and len(self._tasks) + self._beginning >= limit):
            return False
        if self._is_overdue is not None and self._is_overdue():
            self._look_soon()  # if there is no pause after all
            return False
        return True

    def _can_begin(self, processor: ObjectProcessor, *, urgent: bool) -> bool:
        if self._queue.is_urgent or not self._has_place():
            return False
        return urgent or not processor.requesting or (not self._queue and self._is_relieved())

    def _is_relieved(self) -> bool:
        return self.pressure.size < MAX_WAITING and self._begun < MAX_AT_ONCE

    def pause(self) -> None:
        """Begin nothing until resumed: neither objects, nor the next steps of those that are being processed."""
        self.paused = True
        self.background.pause()

    async def drain(self) -> None:
        """Return when nobody works any more, after a pause."""
        while self._tasks or len(self.background):
            if self._tasks:
                await asyncio.wait(self._tasks)
            else:
                await asyncio.sleep(DRAINING_INTERVAL)

    def resume(self) -> None:
        """Go on."""
        self.paused = False
        self.background.resume()
        self._begin_all()

    def _begin_all(self) -> None:
        while self._queue and self._has_place() and not self._closed:
            relieved = self._is_relieved()
            if not relieved and not self._queue.is_urgent:
                break
            record, processor = self._queue.pop(urgent_only=not relieved)
            if self._may_begin(processor):
                self._begin_later(processor, record)  # there can be thousands
            else:
                self._put_outside(processor, record)

    def _may_begin(self, processor: ObjectProcessor) -> bool:
        return self._indexing_gate.is_complete or self._indexing_gate.is_open(processor.arguments)

    def _put_outside(self, processor: ObjectProcessor, record: ObjectRecord) -> None:
        """Let the object wait until the indices are complete that its handlers can use."""
        record.fold_pending()
        self._outside.setdefault(processor.arguments, {})[record] = processor

    def _admit(self) -> None:
        """Let those into the queue whose indices are complete now."""
        for arguments in [arguments for arguments in self._outside if self._indexing_gate.is_open(arguments)]:
            for record, processor in self._outside.pop(arguments).items():
                self._queue.push(record, processor, urgent=record not in self._calm)
        self._begin_all()

    def _remove_waiting(self, record: ObjectRecord) -> bool:
        """Let the object wait no more; return whether it has waited for its worker."""
        if self._queue.discard(record):
            return True
        return any(records.pop(record, None) is not None for records in self._outside.values())

    def _notice_relief(self) -> None:
        if self._queue and self._is_relieved():
            self._look_soon()

    def _look_soon(self) -> None:
        """Let more of them begin in the next turn of the loop, and not in the context of whoever is here."""
        if self._look is None:
            self._look = asyncio.get_running_loop().call_soon(self._look_again, context=self.background.context)

    def _look_again(self) -> None:
        self._look, self._begun = None, 0
        self._begin_all()

    def _begin_later(self, processor: ObjectProcessor, record: ObjectRecord) -> None:
        self._follow(processor, record, asyncio.create_task(processor.work(record)))

    def _begin(self, processor: ObjectProcessor, record: ObjectRecord) -> None:
        self._beginning += 1
        try:
            task = create_eager_task(processor.work(record))
        finally:
            self._beginning -= 1
        if task.done():
            self._end(processor, record, task)
        else:
            self._follow(processor, record, task)

    def _follow(self, processor: ObjectProcessor, record: ObjectRecord, task: asyncio.Task[None]) -> None:
        self._tasks[task] = record
        if record in self._calm and processor.requesting:
            self._begun += 1
            self._look_soon()
        task.add_done_callback(functools.partial(self._end, processor, record))

    def _end(self, processor: ObjectProcessor, record: ObjectRecord, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)
        self._conclude(processor, record)

    def _conclude(self, processor: ObjectProcessor, record: ObjectRecord) -> None:
        """Give the place to others, or to the object itself for what has come just now."""
        record.free_worker()
        self._calm.discard(record)
        if self._queue:
            self._begin_all()
        if record.has_work and not record.throttled:
            self.start(processor, record)

    async def release(self, records: Collection[ObjectRecord]) -> None:
        """
        Return when nobody works on these objects any more, and their daemons have ended, however long that takes.

        Those that only wait for a place do not begin. Nothing is cancelled: a thread would run on nevertheless, and
        the objects can be served again meanwhile.
        """
        for record in records:
            if record.has_worker and self._remove_waiting(record):
                record.free_worker()
                self._calm.discard(record)
        mine = {id(record) for record in records}
        while True:
            daemons = {
                daemon.task
                for record in records
                if record.daemons is not None
                for daemon in record.daemons
                if daemon.task is not None
            }
            working = daemons.union(task for task, record in self._tasks.items() if id(record) in mine)
            if not working:
                return
            await asyncio.wait(working)

    async def wait_for(self, records: Collection[ObjectRecord]) -> None:
        """Return when those who work on these objects now have come to an end; others can have begun meanwhile."""
        mine = {id(record) for record in records}
        workers = {task for task, record in self._tasks.items() if id(record) in mine}
        if workers:
            await asyncio.wait(workers)

    def fail(self, error: BaseException) -> None:
        """End the operator because of the error."""
        if not self.failure.done():
            self.failure.set_exception(error)

    async def close(self) -> None:
        """Let the workers and the daemons finish for a while; cancel those that do not, and name them."""
        self._closed = True
        self.failure.cancel()
        await asyncio.gather(self.background.close(), self._end_all())

    async def _end_all(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._settings.queueing.exit_timeout)
        if self._tasks:
            logger.warning(
                "Unprocessed streams left for %d objects; cancelling them: %s",
                len(self._tasks),
                ', '.join(sorted(map(repr, self._tasks.values()))),
            )
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=self._settings.queueing.exit_timeout)
        if self._tasks:
            logger.warning(
                "The handlers of these objects ignore their cancellation, and are left: %s",
                ', '.join(sorted(map(repr, self._tasks.values()))),
            )
            abandon(self._tasks)
