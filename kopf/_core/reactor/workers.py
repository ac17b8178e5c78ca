"""
The pool of workers: it processes a limited number of objects at a time, and queues the others.

An object has a worker only while there is work, and a worker becomes a task only if it has to wait. So, objects at rest
have no tasks, and the limit of workers limits concurrent work, not the number of objects.

The queue has two priorities. Live changes are urgent. Objects of the initial list are not urgent: their workers start
after the urgent ones, and the API client sends their requests after urgent ones, too. There can be thousands of them at
once, and a worker that waits for the API takes ten times the memory of a queued object. So, the pool starts no more of
them while enough of their requests are queued in the API client. Workers that wait for anything else do not count here.
"""

import asyncio
import functools
import logging
import weakref
from collections.abc import Callable, Collection, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from kopf._cogs.aiokits.eager import create_eager_task
from kopf._cogs.aiokits.loops import abandon
from kopf._cogs.aiokits.priority_queues import FairPriorityQueue
from kopf._cogs.clients.pacing import Pressure
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.instruments import NO_INSTRUMENTS, Instruments, QueueEntry
from kopf._cogs.structs.references import Resource
from kopf._core.engines.spawning import OperatorDaemons
from kopf._core.reactor.indexing_gate import IndexingGate
from kopf._core.reactor.object_records import ObjectRecord, get_key
from kopf._core.reactor.worker_slots import WorkerSlots

if TYPE_CHECKING:
    from kopf._cogs.structs.meters import ResourceMeter

logger = logging.getLogger(__name__)


MAX_WAITING = 32
"""The number of queued requests of non-urgent workers, above which no further non-urgent workers are started."""

MAX_AT_ONCE = 16
"""
The maximal number of non-urgent workers that are started in one iteration of the event loop.

Only in the next iteration, their queued requests can be counted.
"""

DRAINING_INTERVAL = 0.05
"""How often to check whether the daemons have ended (in seconds)."""


class ObjectProcessor(Protocol):
    """Processes the objects of one resource."""

    @property
    def resource(self) -> Resource:
        """The resource."""

    @property
    def requesting(self) -> bool:
        """Return whether processing usually sends requests to the API."""

    @property
    def arguments(self) -> frozenset[str] | None:
        """The arguments that the handlers can use, including indices; ``None`` if they can use any."""

    @property
    def meter(self) -> 'ResourceMeter | None':
        """The meter of the resource, if there are metrics."""

    @property
    def is_observer(self) -> bool:
        """Return whether it calls only handlers of raw events in its steps."""

    def is_due(self, record: ObjectRecord) -> bool:
        """Check whether the object requires a worker now."""

    def work(self, record: ObjectRecord) -> Coroutine[Any, Any, None]:
        """Process the object until it has no work that is due now."""


class WorkerPool:
    """
    The workers of all objects of an operator.

    When all slots of a kind are taken (see `WorkerSlots`), its further objects wait, without tasks. Objects whose
    handlers can use incomplete indices are held at the indexing gate, and are queued when it opens.
    """

    def __init__(
        self,
        settings: OperatorSettings,
        indexing_gate: IndexingGate,
        instruments: Instruments = NO_INSTRUMENTS,
        *,
        clusterwide: bool = True,
    ) -> None:
        self._settings = settings
        self._instruments = instruments
        self._indexing_gate = indexing_gate
        self._slots = WorkerSlots(settings.queueing, clusterwide=clusterwide)
        indexing_gate.listeners.append(self._queue_held)
        # Why not a task group? It would cancel all workers at the first failure and at the end of the operator. But the
        # threads of sync handlers cannot be cancelled, and `close` gives other handlers time to finish.
        self._tasks: dict[asyncio.Task[None], ObjectRecord] = {}
        # The tasks that the pool has cancelled. Why weak references? To remove each task at its end would take time.
        self._cancelled: weakref.WeakSet[asyncio.Task[None]] = weakref.WeakSet()
        self._not_urgent: set[ObjectRecord] = set()  # running or queued, but not urgent
        self._queue: FairPriorityQueue[ObjectRecord, ObjectProcessor] = FairPriorityQueue()
        # Objects held at the indexing gate, by the arguments of their handlers.
        self._held: dict[frozenset[str] | None, dict[ObjectRecord, ObjectProcessor]] = {}
        self._started = 0  # the number of non-urgent workers started in this iteration of the loop
        self._start_handle: asyncio.Handle | None = None
        self._is_overdue: Callable[[], bool] | None = None
        self._owns: Callable[[ObjectRecord], bool] | None = None
        self.pressure = Pressure(self._note_relief)
        """The number of queued requests of workers that are not urgent."""
        self.paused = False
        """Whether the pool is paused: running workers finish their steps, but no steps or workers are started."""
        self.lapses = 0
        """How often other operators could have begun while handlers were running here, see `is_outdated`."""
        self.ending = False
        """Whether the operator is ending: only handlers of raw events may begin, for objects with running workers."""
        self.keeps_warm = False
        """Whether the last changes during a pause are kept, so that they are handled first after it."""
        self.background = OperatorDaemons(settings)
        """The daemons and timers of the operator."""
        # fails with the error of a worker that must end the operator
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def set_overdue_check(self, is_overdue: Callable[[], bool]) -> None:
        """Set the function that checks whether the operator must pause, even if its timers have not fired yet."""
        self._is_overdue = is_overdue
        self.background.set_overdue_check(is_overdue)

    def set_owner_check(self, owns: Callable[[ObjectRecord], bool]) -> None:
        """Set the function that checks whether this operator handles an object: no steps begin for the others."""
        self._owns = owns

    def keep_warm(self) -> None:
        """Called when the operator must be able to begin its work at once after a pause."""
        self.keeps_warm = True

    def is_overdue(self) -> bool:
        """Check whether the operator must pause but has not paused yet; callable from any thread."""
        return self._is_overdue is not None and self._is_overdue()

    @property
    def can_lapse(self) -> bool:
        """Return whether other operators can ever begin while handlers are running here."""
        return self._is_overdue is not None

    def note_lapse(self) -> None:
        """Called when other operators could have begun without waiting for the running handlers. A pause follows."""
        self.lapses += 1

    def is_outdated(self, record: ObjectRecord) -> bool:
        """Check whether other operators could have handled the object since its last step has begun."""
        return record.lapses != self.lapses or self.is_overdue()

    def is_pausing(self) -> bool:
        """Check whether the operator is paused or must pause, so that nothing may begin; callable from any thread."""
        return self.paused or self.is_overdue()

    def is_halted(self) -> bool:
        """Check whether no workers, steps and handlers of changes may begin now; callable from any thread."""
        return self.ending or self.is_pausing()

    def must_stop(self, record: ObjectRecord, *, has_event: bool = False) -> bool:
        """
        Check whether no further step of the object, and no further handler of a step, may begin now.

        At the end of the operator, a step with an event may begin, for its handlers of raw events: no list after it
        brings, for example, a deletion again.
        """
        is_foreign = self._owns is not None and not self._owns(record)
        return is_foreign or self.is_pausing() or (self.ending and not has_event)

    def start(
        self,
        processor: ObjectProcessor,
        record: ObjectRecord,
        *,
        urgent: bool = True,
        at_once: bool = True,
    ) -> None:
        """
        Start a worker for the object, or queue the object for one; do nothing if it has one already.

        Args:
            processor: the processor that the worker calls.
            record: the record of the object.
            urgent: whether the object is started before those that are not urgent.
            at_once: whether the worker runs up to its first real await before this method returns, if a slot is free;
                otherwise, it begins in the next iteration of the event loop.
        """
        if record.has_worker:
            # The object is from the initial list and has changed meanwhile: it must not wait for thousands of other
            # objects.
            if urgent and record in self._not_urgent:
                self._not_urgent.discard(record)
                self._queue.prioritize(record)
                self._slots.prioritize(record)
                self._start_queued()
            return
        # The operator is ending, and `close` would not wait for this task. The next operator will list the object.
        if self.ending or (self._owns is not None and not self._owns(record)):
            return
        record.assign_worker()
        if not urgent:
            self._not_urgent.add(record)
        if self._instruments.queue:
            self.tell('object_queued', processor, record)
        if not self._is_gate_open(processor, record):
            self._note_waiting(processor, record)
            self._hold(processor, record)
        elif self._slots.are_taken(processor, record):
            self._note_waiting(processor, record)
            self._wait_for_slot(processor, record)
        elif not self._can_start(processor, urgent=urgent):
            self._note_waiting(processor, record)
            record.fold_pending()
            self._queue.push(record, processor, urgent=urgent)
        elif at_once:
            self._start_eagerly(processor, record)
        else:
            self._start_task(processor, record)

    def _note_waiting(self, processor: ObjectProcessor, record: ObjectRecord) -> None:
        if processor.meter is not None:
            processor.meter.queue(record)

    def _note_taken(self, processor: ObjectProcessor, record: ObjectRecord) -> None:
        if processor.meter is not None:
            processor.meter.take(record)
        if self._instruments.queue:
            self.tell('object_taken', processor, record)

    def _note_done(self, processor: ObjectProcessor, record: ObjectRecord) -> None:
        if processor.meter is not None:
            processor.meter.leave(record, record.uid if processor.is_observer else None)
        if self._instruments.queue:
            self.tell('object_done', processor, record)

    def tell(
        self,
        hook: str,
        processor: ObjectProcessor,
        record: ObjectRecord,
        delay: float | None = None,
        reason: str | None = None,
    ) -> None:
        """Report a change of the object's place in the queue to the instruments."""
        depth = len(self._queue) + len(self._slots) + sum(map(len, self._held.values()))
        entry = QueueEntry(get_key(record, processor.resource), self.is_urgent(record), depth, delay, reason)
        self._instruments.tell(self._instruments.queue, hook, entry)

    def must_yield(self, record: ObjectRecord) -> bool:
        """Check whether the worker of this object must end soon, because others cannot begin before."""
        return self._slots.is_wanted(record) or (bool(self._queue) and not self._can_begin())

    def find_working(self) -> Collection[ObjectRecord]:
        """Return the objects whose workers are running, not only queued."""
        return set(self._tasks.values())

    def is_urgent(self, record: ObjectRecord) -> bool:
        """Check whether the object is processed because of a live change, not because of the initial list."""
        return record not in self._not_urgent

    def _can_begin(self) -> bool:
        if self.paused:
            return False
        if self.is_overdue():
            self._start_soon()  # if the operator does not pause in the end, no event would start the queued objects
            return False
        return True

    def _can_start(self, processor: ObjectProcessor, *, urgent: bool) -> bool:
        # New objects do not overtake urgent ones in the queue, even if a slot has just become free.
        if self._queue.is_urgent or not self._can_begin():
            return False
        # Workers that make no requests do not fill the queue of the API client, so they are not limited by it.
        return urgent or not processor.requesting or (not self._queue and self._is_pressure_low())

    def _is_pressure_low(self) -> bool:
        return self.pressure.size < MAX_WAITING and self._started < MAX_AT_ONCE

    def pause(self) -> None:
        """Start no workers until resumed, and no further steps of running workers; stop the daemons."""
        self.paused = True
        self.background.pause()

    def abort(self) -> None:
        """Pause, and cancel the running workers and daemons: other operators can handle the objects soon."""
        self.paused = True
        self.background.abort()
        for task in list(self._tasks):
            self._cancelled.add(task)
            task.cancel()

    def is_cancelled(self) -> bool:
        """Check whether the pool has cancelled the current worker, or can do so, as the operator is ending."""
        return self.ending or asyncio.current_task() in self._cancelled

    def find_running(self) -> list[str]:
        """Return the names of the running workers and daemons, including those that ignore their cancellation."""
        return [f'handlers of {record!r}' for record in self._tasks.values()] + self.background.find_running()

    def find_running_for(self, concerns: Callable[[ObjectRecord], bool]) -> list[str]:
        """Return the names of the handlers and daemons that are running for the objects that the check selects."""
        # Why not at the top? It is needed by very few operators.
        from kopf._core.engines.stacks import find_handler

        found = [(find_handler(task), record) for task, record in self._tasks.items() if concerns(record)]
        names = [f'{name or "the worker"} of {record!r}' for name, record in found]
        return names + self.background.find_running(concerns)

    async def drain(self) -> None:
        """Wait until all workers and daemons have ended, after `pause`."""
        while self._tasks or len(self.background):
            if self._tasks:
                await asyncio.wait(self._tasks)
            else:
                # Why not `asyncio.wait()` for the tasks of the daemons? An abandoned daemon does not count, but its
                # task still runs.
                await asyncio.sleep(DRAINING_INTERVAL)

    def resume(self) -> None:
        """Start workers again, beginning with those that were queued in the pause."""
        self.paused = False
        self.background.resume()
        self._queue_startable(self._slots.take_startable())  # the limit can have been raised meanwhile
        self._start_queued()

    def _start_queued(self) -> None:
        while self._queue and self._can_begin() and not self.ending:
            is_low = self._is_pressure_low()
            if not is_low and not self._queue.is_urgent:
                break
            record, processor = self._queue.pop(urgent_only=not is_low)
            # The gate is checked once more: a new resource can have closed it since the object was queued.
            if not self._is_gate_open(processor, record):
                self._hold(processor, record)
            elif self._slots.are_taken(processor, record):
                self._wait_for_slot(processor, record)
            else:
                self._start_task(processor, record)  # not eagerly: thousands at once would block the loop

    def _queue_startable(self, found: Collection[tuple[ObjectRecord, ObjectProcessor]]) -> None:
        for record, processor in found:
            self._queue.push(record, processor, urgent=record not in self._not_urgent)

    def _wait_for_slot(self, processor: ObjectProcessor, record: ObjectRecord) -> None:
        record.fold_pending()
        self._slots.wait(processor, record, urgent=record not in self._not_urgent)

    def _is_gate_open(self, processor: ObjectProcessor, record: ObjectRecord) -> bool:
        gate = self._indexing_gate
        return gate.is_complete or gate.is_open(processor.arguments, record.namespace)

    def _hold(self, processor: ObjectProcessor, record: ObjectRecord) -> None:
        """Hold the object until the indices that its handlers can use are complete."""
        record.fold_pending()
        self._held.setdefault(processor.arguments, {})[record] = processor

    def _queue_held(self) -> None:
        """Queue the objects for whose handlers the indexing gate is open now."""
        # Without a namespace, only the lists are considered that handlers of all namespaces wait for.
        for arguments in [arguments for arguments in self._held if self._indexing_gate.is_open(arguments)]:
            for record, processor in self._held.pop(arguments).items():
                if self._is_gate_open(processor, record):
                    self._queue.push(record, processor, urgent=record not in self._not_urgent)
                else:
                    self._held.setdefault(arguments, {})[record] = processor
        self._start_queued()

    def _unqueue(self, record: ObjectRecord) -> ObjectProcessor | None:
        """Remove the object from the queue, or from the gate; return its processor if it was there."""
        held = [records.pop(record, None) for records in self._held.values()]
        found = [self._queue.take(record), self._slots.remove(record), *held]
        return next((processor for processor in found if processor is not None), None)

    def _note_relief(self) -> None:
        if self._queue and self._is_pressure_low():
            self._start_soon()

    def _start_soon(self) -> None:
        """
        Start queued objects in the next iteration of the loop.

        Why not now? The current context has the variables of another worker or of a request.
        """
        if self._start_handle is None:
            self._start_handle = asyncio.get_running_loop().call_soon(
                self._start_again, context=self.background.context
            )

    def _start_again(self) -> None:
        self._start_handle, self._started = None, 0
        self._start_queued()

    def _start_task(self, processor: ObjectProcessor, record: ObjectRecord) -> None:
        self._note_taken(processor, record)
        self._slots.take(processor, record)
        self._follow(processor, record, asyncio.create_task(processor.work(record)))

    def _start_eagerly(self, processor: ObjectProcessor, record: ObjectRecord) -> None:
        self._note_taken(processor, record)
        self._slots.take(processor, record)
        task = create_eager_task(processor.work(record))
        if task.done():
            self._end(processor, record, task)
        else:
            self._follow(processor, record, task)

    def _follow(self, processor: ObjectProcessor, record: ObjectRecord, task: asyncio.Task[None]) -> None:
        self._tasks[task] = record
        if record in self._not_urgent and processor.requesting:
            self._started += 1
            self._start_soon()
        task.add_done_callback(functools.partial(self._end, processor, record))

    def _end(self, processor: ObjectProcessor, record: ObjectRecord, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        # Workers handle errors about their objects themselves. Any error that they raise, such as a failed login, ends
        # the operator.
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)
        self._free_slot(processor, record)

    def _free_slot(self, processor: ObjectProcessor, record: ObjectRecord) -> None:
        """Start the queued objects; queue this one again if an event has arrived meanwhile."""
        self._note_done(processor, record)
        record.free_worker()
        self._not_urgent.discard(record)
        # Start the others first: otherwise, an object that keeps changing would always get the free slot again.
        self._queue_startable(self._slots.free(record))
        if self._queue:
            self._start_queued()
        if processor.is_due(record):
            self.start(processor, record)

    async def release(self, records: Collection[ObjectRecord]) -> None:
        """
        Remove these objects from the queue; wait until their workers and daemons have ended, however long that takes.

        Why not cancel them? The threads of sync handlers cannot be cancelled, and other workers can serve the objects
        again meanwhile.
        """
        for record in records:
            if record.has_worker and (processor := self._unqueue(record)) is not None:
                self._note_done(processor, record)
                record.free_worker()
                self._not_urgent.discard(record)
        # Others can have waited for the slot that one of these objects would have taken, and left again.
        if found := self._slots.take_startable():
            self._queue_startable(found)
            self._start_soon()
        await self.outwait(records)

    async def outwait(self, records: Collection[ObjectRecord]) -> None:
        """Wait until no worker and no daemon runs for these objects, however long that takes."""
        mine = {id(record) for record in records}
        while True:
            daemons = {
                daemon.task
                for record in records
                if record.daemons is not None
                for daemon in record.daemons
                if daemon.task is not None
            }
            # They are looked up in each round: the last step of a worker can still start a daemon.
            working = daemons.union(task for task, record in self._tasks.items() if id(record) in mine)
            if not working:
                return
            await asyncio.wait(working)

    async def wait_for(self, records: Collection[ObjectRecord]) -> None:
        """Wait until the workers that are running for these objects now have ended."""
        mine = {id(record) for record in records}
        workers = {task for task, record in self._tasks.items() if id(record) in mine}
        if workers:
            await asyncio.wait(workers)

    def fail(self, error: BaseException) -> None:
        """End the operator with this error."""
        if not self._failure.done():
            self._failure.set_exception(error)

    async def run(self) -> None:
        """
        Permit that work begins, until this is cancelled: the operator is ending then.

        Raises:
            BaseException: the error of a worker that must end the operator.
        """
        try:
            await self._failure
        finally:
            self._begin_nothing_more()

    async def close(self) -> None:
        """Wait for the workers and the daemons for a limited time; then cancel the remaining ones and log them."""
        self._begin_nothing_more()
        # The operator is ending already, so further errors are dropped: asyncio would log them as never retrieved.
        self._failure.cancel()
        await asyncio.gather(self.background.close(), self._end_all())

    def _begin_nothing_more(self) -> None:
        self.ending = True
        self.background.end()

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
