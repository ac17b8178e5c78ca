"""
Processing the events of one resource, from the received event until the object is at rest.

An event that requires no action is only compared with the known state, without a task. Otherwise, the object gets
a worker: a task that exists only while there is work, and takes the newest state for each step. After a patch of the
operator, the worker continues with the state from the response; the echo of the patch in the stream is recognized by
its resource version. A delayed retry holds no worker: it is a timer and the record of the object.
"""

import asyncio
import time
import weakref
from collections.abc import Collection, Iterator, Mapping, Set
from typing import TYPE_CHECKING

from kopf._cogs.clients.api import ApiClient
from kopf._cogs.structs.bodies import Body, RawBody, RawEvent
from kopf._cogs.structs.credentials import LoginError
from kopf._cogs.structs.instruments import ObjectStep
from kopf._cogs.structs.patches import Patch
from kopf._cogs.structs.references import Resource
from kopf._core.actions.loggers import ObjectLogger
from kopf._core.engines.stoppers import DaemonStoppingReason
from kopf._core.intents.causes import LISTED
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.decisions import Decider
from kopf._core.intents.registries import HandlerTable
from kopf._core.reactor.applying import Applier
from kopf._core.reactor.echoes import Expectation, Verdict
from kopf._core.reactor.hosting import ObjectHost
from kopf._core.reactor.object_records import ObjectRecord, get_api_version, get_key, is_deleted, make_logger
from kopf._core.reactor.reconciling import Reconciler
from kopf._core.reactor.sinks import ObjectSink
from kopf._core.reactor.throttling import Throttling
from kopf._core.reactor.watches import ResourceWatch
from kopf._core.reactor.workers import WorkerPool

if TYPE_CHECKING:
    from kopf._cogs.structs.meters import ResourceMeter

MAX_RECENT = 256
"""The number of objects changed in a pause that are handled first after it, in operators that elect a leader."""

MAX_STEPS = 1000
"""The number of consecutive steps without an event, after which the object is throttled: there must be a bug."""


class Processor(ObjectSink):
    """Processes the events of all the objects of one resource."""

    def __init__(
        self,
        context: OperatorContext,
        *,
        client: ApiClient,
        table: HandlerTable,
        workers: WorkerPool,
    ) -> None:
        self._settings = settings = context.settings
        self._workers = workers
        self._instruments = context.instruments
        meters = context.instruments.meters
        self.meter: ResourceMeter | None = None if meters is None else meters.get(table.resource)
        """The meter of the resource, if there are metrics."""
        self._step_meter = self.meter
        self._decider = Decider(table, settings.persistence)
        self._applier = Applier(client, settings, self._decider)
        self._throttling = Throttling(settings, self._decider)
        self._host = ObjectHost(
            self,
            context=context,
            decider=self._decider,
            applier=self._applier,
            workers=workers,
        )
        self._reconciler = Reconciler(
            context=context,
            decider=self._decider,
            applier=self._applier,
            host=self._host,
            workers=workers,
        )
        self._observing, self._managing = bool(table.watching), table.managing
        self._dropped = False
        self._known: Set[str] = frozenset()  # the uids of the objects that existed when the operator paused
        self._inherited: set[ObjectRecord] = set()  # the records from a predecessor, whose echoes must be handled, too
        self._successor: Processor | None = None
        # The last changes of a pause. A new leader begins with them, as the list of all objects can take seconds.
        self._recent: dict[ObjectRecord, RawEvent] = {}
        self._watch: weakref.ref[ResourceWatch] | None = None
        self._api_version = get_api_version(table.resource)

    @property
    def table(self) -> HandlerTable:
        """The handlers of the resource."""
        return self._decider.table

    @property
    def requesting(self) -> bool:
        """Return whether handling usually sends requests to the API."""
        return self._managing

    @property
    def arguments(self) -> frozenset[str] | None:
        """The arguments that the handlers can use, including indices; ``None`` if they can use any."""
        return self._decider.table.arguments

    @property
    def resource(self) -> Resource:
        """The resource."""
        return self._decider.table.resource

    def attach_watch(self, watch: ResourceWatch) -> None:
        """Set the watch that the events come from."""
        self._watch = weakref.ref(watch)  # no reference cycle, as watches come and go

    # Receiving: called by the watch, synchronous.

    def receive(self, record: ObjectRecord, event: RawEvent, *, listed_since: float | None) -> None:
        """Receive the next event of an object: keep it for the worker, or drop it if it requires no action."""
        # After `retire`, two sources still call this method: timers, and events that `echoes` has held back.
        if self._successor is not None:
            self._successor.receive(record, event, listed_since=listed_since)
            return
        # This comes first, because it can end the expectation that the checks below use.
        if record.expected is not None:
            self._adjust_expectation(record, event, listed_since=listed_since)
        if record.daemons is not None:
            record.daemons.update(event['object'], asked_at=listed_since)
            if record.daemons.gone and event['type'] != 'DELETED':
                record.daemons.reappear()
            if is_deleted(event):
                self._workers.background.deletions.announce(record.uid)
                # Why not in the worker? It can be busy with a handler for a long time, or be queued.
                record.daemons.stop(DaemonStoppingReason.RESOURCE_DELETED)
        # Without a worker, no running handler can have the flag `deleting`.
        elif record.has_worker and is_deleted(event):
            self._workers.background.deletions.announce(record.uid)
        # Why not check for a pause first? Daemons that are still stopping must see the newest state, and the deletion.
        if self._workers.paused and not self._receive_in_pause(record, event):
            return
        # Why not screen an object with a worker? The step in progress can change the state that the event would be
        # compared with. The worker compares the event when it takes it.
        if not record.has_worker and not record.throttled and not self._screen(record, event):
            return
        # Why not a queue of events? As documented, handlers get only the newest state of a busy object, and so the
        # memory is bounded, however often the object changes.
        record.put_pending(event)
        if not record.throttled:
            self._workers.start(self, record, urgent=listed_since is None)
        else:
            delay = self._throttling.hasten(record, event, check_stale=lambda: self._check_stale(record, event))
            if delay is not None:
                self._wake_later(record, delay, reason='failed')

    def _adjust_expectation(self, record: ObjectRecord, event: RawEvent, *, listed_since: float | None) -> None:
        if listed_since is not None and record.expected is not None:
            record.expect(record.expected.after_list(since=listed_since))
        if event['type'] != 'DELETED' and record.expected is not None:
            record.expected.note_return()

    def _receive_in_pause(self, record: ObjectRecord, event: RawEvent) -> bool:
        """
        Take an event that comes while the operator is paused.

        After the pause, all objects are listed again, so only the deletions of the objects that the handlers know are
        kept. New objects are resumed after the pause, as other operators can have handled them meanwhile.

        Returns:
            Whether to keep the event until the pause is over.
        """
        if self._workers.keeps_warm:
            self._keep_recent(record, event)
        if record.uid in self._known:
            return event['type'] == 'DELETED'
        record.mark_initial()
        return False

    def _keep_recent(self, record: ObjectRecord, event: RawEvent) -> None:
        self._recent.pop(record, None)
        if event['type'] in ('ADDED', 'MODIFIED'):
            self._recent[record] = event
            if len(self._recent) > MAX_RECENT:
                del self._recent[next(iter(self._recent))]

    def _replay(self, watch: ResourceWatch, recent: Mapping[ObjectRecord, RawEvent]) -> None:
        for record, event in recent.items():
            # Unverified progress of a former leadership waits for the list of all objects.
            if self._workers.paused or watch.records.get(record.uid) is not record or record.unverified:
                continue
            # The former leader can have handled the object, and its last patches come late if the stream lags behind:
            # its handlers would be called again. So the newest state is requested before any handlers are called.
            if record.body is None and self._managing and not self._reconciler.is_settled(record, event['object']):
                record.mark_outdated()
            self.receive(record, event, listed_since=None)

    def paused(self, watch: ResourceWatch) -> None:
        """Remember the objects that exist when the pause begins: deletions during the pause are handled after it."""
        self._known = {record.uid for record in watch.get_known()}

    def resumed(self, watch: ResourceWatch) -> None:
        """Forget the states and the plans of all objects: other operators could have handled them in the pause."""
        working = self._workers.find_working()
        # without deleted objects, as their deletions must still be handled
        for record in watch.records.values():
            # Other operators wait for handlers that began before the pause: keep their outcomes, which are not stored
            # yet.
            record.forget_plans(working=record in working)
        self._known = frozenset()
        self._inherited.clear()
        if self._recent:
            # Why not now? The workers are resumed after all watches.
            asyncio.get_running_loop().call_soon(self._replay, watch, self._recent)
            self._recent = {}

    def revise(self, table: HandlerTable) -> None:
        """Use this table from now on: the resource has other verbs or subresources, but the same handlers."""
        self._decider.revise(table)
        self._host.revise(table)

    def dropped(self, watch: ResourceWatch) -> None:
        """Start no more steps: the watch is stopped. A running step may finish."""
        self._dropped = True
        # This includes deleted objects that still have workers or daemons, which must not start further steps either.
        for record in watch.get_known():
            record.abandon()
            if record.daemons is not None:
                record.daemons.forget()

    def surrendered(self, records: Collection[ObjectRecord]) -> None:
        """Start no more steps for these objects, and stop their daemons: another operator handles them soon."""
        for record in records:
            record.abandon()
            if record.daemons is not None:
                record.daemons.surrender()

    def disowned(self, records: Collection[ObjectRecord]) -> None:
        """Forget these objects, as nothing runs for them any more, and all is stored."""
        for record in records:
            self._inherited.discard(record)
            self._recent.pop(record, None)
            record.disown()

    def released(self, watch: ResourceWatch) -> None:
        """
        Break the reference cycles.

        Resources and namespaces come and go, and the garbage collector would free these objects only much later.
        """
        self._host.release(self._successor)
        for record in watch.get_known():
            if record.daemons is not None and not record.daemons.alive:
                record.detach_daemons()

    @property
    def processor(self) -> 'Processor':
        """The processor itself, as the last in the chain of sinks."""
        return self

    def retire(self, successor: ObjectSink, records: Collection[ObjectRecord]) -> None:
        """Hand the objects over to another processor; those with running workers, when their step has ended."""
        self._dropped, self._successor = True, successor.processor
        self._successor.take_over(self, records)

    def take_over(self, predecessor: 'Processor', records: Collection[ObjectRecord]) -> None:
        """Handle these objects from now on, continuing with the state in their records."""
        redefined = predecessor.table.resource != self.table.resource
        for record in records:
            record.change_hands(redefined=redefined)
            if record.expected is not None or record.has_worker:
                # The echo of the predecessor's patch must be handled, because this processor can have other handlers.
                self._inherited.add(record)
            self._host.take_over(record, redefined=redefined)
            # The object is throttled and has a pending deletion, which no list of the new watch would bring.
            if record.has_work and not record.has_worker:
                self._workers.start(self, record, at_once=False)

    def _screen(self, record: ObjectRecord, event: RawEvent) -> bool:
        """Return whether the event of an object at rest needs a worker. A stale event does not; see `echoes`."""
        if not self._observing and not self._managing:
            return False
        # Handlers of raw events get all events, including stale ones. A known body means that a timer or a cycle is in
        # progress.
        if self._observing or record.body is not None or record.cycle is not None or event['type'] == 'DELETED':
            return True
        # A stale event must not reach `is_settled`: it would look as if another client had undone the operator's last
        # patch.
        if not self._managing or self._check_stale(record, event):
            return False
        return not self._reconciler.is_settled(record, event['object'])

    def _check_stale(self, record: ObjectRecord, event: RawEvent) -> bool:
        """
        Return whether the event is stale: older than the operator's last patch, or the echo of that patch.

        An event that cannot be compared is held back as if it were stale. A new event ends the expectation.
        """
        expected = record.expected
        if expected is not None:
            verdict = expected.compare(event)
            if verdict is Verdict.OLDER:
                return True
            if verdict is Verdict.UNSURE:
                if expected.unsure is None:
                    self._reconsider_later(record, expected)
                expected.hold_back(event)
                return True
            if verdict is Verdict.ECHO and record not in self._inherited:
                expected.take_unsure()
                if not expected.is_ordered:
                    record.expect(None)  # all events after the echo are new
                return True
            record.expect(None)
        self._inherited.discard(record)
        return False

    def _reconsider_later(self, record: ObjectRecord, expected: Expectation) -> None:
        asyncio.get_running_loop().call_later(expected.remaining, self._reconsider, record)

    def _reconsider(self, record: ObjectRecord) -> None:
        """Handle the event that was held back, because the echo has not come in time."""
        expected = record.expected
        if expected is None or expected.unsure is None:
            return
        if expected.remaining:  # another patch was made meanwhile
            self._reconsider_later(record, expected)
            return
        event = expected.take_unsure()
        if event is not None and record.pending is None:
            self.receive(record, event, listed_since=None)

    # Working: one task for each object.

    def is_due(self, record: ObjectRecord) -> bool:
        """Check whether the object requires a worker now."""
        if self._successor is not None:
            return self._successor.is_due(record)
        return record.has_work and not record.throttled

    async def work(self, record: ObjectRecord) -> None:
        """Process the object, step by step, until it has no work that is due now."""
        if self._successor is not None:
            await self._successor.work(record)
            return
        steps = 0
        while record.has_work and not self._dropped and not self._workers.must_stop(record):
            if steps and record.pending is not None and self._workers.is_overloaded:
                return  # let queued objects run: an object that changes all the time must not keep its worker forever
            event = record.take_pending()
            # Why count only steps without events? Other clients can change the object all the time, which is no bug.
            steps = 1 if event is not None else steps + 1
            try:
                if steps > MAX_STEPS:
                    raise RuntimeError(f"The object does not come to rest in {MAX_STEPS} steps.")
                if self._step_meter is not None:
                    delay = await self._process_measured(record, event, self._step_meter, number=steps)
                elif self._instruments.steps:
                    delay = await self._process_told(record, event, number=steps)
                else:
                    delay = await self._process(record, event)
            # Why not throttle the object? Without credentials, no object can be handled, so the operator ends.
            except LoginError:
                raise
            except Exception as error:
                self._wake_later(record, self._throttling.fail(record, error), reason='failed')
                return
            # Why not return here? An event that came during the step must be processed now, not after the delay.
            if delay is not None:
                self._wake_later(record, delay)
            self._throttling.succeed(record)
        if self._has_successor():
            return  # the successor continues with this record
        if self._dropped:
            record.discard_work()
        # Planned steps need the body, because they have no event.
        if record.wakeup is None and record.cycle is None and record.pending_patch is None:
            record.drop_body()

    async def _process_measured(
        self, record: ObjectRecord, event: RawEvent | None, meter: 'ResourceMeter', *, number: int
    ) -> float | None:
        began = time.monotonic()
        try:
            if self._instruments.steps:
                delay = await self._process_told(record, event, number=number)
            else:
                delay = await self._process(record, event)
        except Exception:
            meter.conclude(began, 'error', record.uid)
            raise
        result = 'requeue' if record.has_work else 'success' if delay is None else 'requeue_after'
        meter.conclude(began, result, record.uid)
        return delay

    async def _process_told(self, record: ObjectRecord, event: RawEvent | None, *, number: int) -> float | None:
        key = get_key(record, self.resource)
        type_ = None if event is None else event['type'] or LISTED
        with ObjectStep(self._instruments, key, event=type_, number=number) as step:
            delay = await self._process(record, event)
            step.conclude(delay, requeued=record.has_work)
        return delay

    async def _process(self, record: ObjectRecord, event: RawEvent | None) -> float | None:
        """
        Do one step for the object, with the event if there is one.

        Returns:
            The delay until the next step (in seconds); ``None`` if no step is planned.
        """
        # Clear it before the step: a requeue during the step, by the response or by the end of a daemon, requests the
        # next step.
        requeued = record.take_requeue()
        if event is None:
            if record.unverified:
                return None  # all objects will be listed again after the pause
            if record.body is not None and (record.outdated or self._is_foreign(record.body)):
                await self._applier.reload(record, record.body)
            if record.body is not None:
                return await self._reconciler.reconcile(record, Patch(body=Body(record.body)), deciding=True)
            return None
        body = Body(event['object'])
        patch = Patch(body=body)
        try:
            if record.unverified and event['type'] != 'DELETED':
                record.verify(untouched=self._is_untouched(record, body))
            if self._observing:
                # These come before the checks for deletion and staleness: handlers of raw events get all events.
                event = await self._reconciler.observe(record, event, body, patch)
        except Exception:
            record.put_back(event)  # the event is the only place that has the state
            raise
        if event['type'] == 'DELETED':
            await self._save_before_forgetting(record)
            self._forget(record, event, body)
            return None
        # Without change-detecting handlers or daemons, no state is kept that the event could be compared with.
        if not self._managing and not patch and record.body is None:
            record.watch_selfpatching(None)
            return None
        stale = self._check_stale(record, event)
        if not stale:
            doubtful = record.outdated and record.body is None  # the API server has reported the object as missing
            record.accept(event['object'])
            if doubtful:
                record.mark_outdated()  # until the request succeeds
                await self._applier.reload(record, event['object'])
        elif record.body is not None and self._is_foreign(record.body):
            await self._applier.reload(record, record.body)
        if patch or record.selfpatching is not None:
            pause = self._reconciler.hold_back(record, patch, body, own=stale, requeued=requeued)
            if pause:
                return pause
        if patch or requeued or not stale:
            # A stale state is sufficient to apply the patch of handlers of raw events. But a decision would treat the
            # operator's last patch as undone by another client.
            deciding = record.body is not None
            record.adopt(event['object'])
            return await self._reconciler.reconcile(record, patch, deciding=deciding)
        return None

    def _has_successor(self) -> bool:
        # Why not the attribute itself? Type checkers assume that it has not changed since the beginning of `work`.
        return self._successor is not None

    def _is_untouched(self, record: ObjectRecord, body: Body) -> bool:
        """Check whether no other operator has handled the object during the pause."""
        earlier, cycle = record.body, record.cycle
        return earlier is not None and cycle is not None and self._decider.is_untouched(Body(earlier), body, cycle)

    def _is_foreign(self, raw: RawBody) -> bool:
        """Check whether the state has another API version, because it is the response to the predecessor's patch."""
        return raw.get('apiVersion', self._api_version) != self._api_version

    def _forget(self, record: ObjectRecord, event: RawEvent, body: Body) -> None:
        if self._managing:
            ObjectLogger(body=body, settings=self._settings).debug("Deleted, really deleted, and we are notified.")
        self._disinherit(record)
        record.cancel_wakeup()
        record.forget_state()
        if record.expected is not None:
            self._expect_after_deletion(record, record.expected, event)
        if record.daemons is not None:
            record.daemons.forget()
        # The object exists again: its next event has come while this deletion was waiting for the worker.
        if record.pending is not None and not record.is_vanishing:
            if record.expected is not None:
                record.expected.note_return()
            if record.daemons is not None:
                record.daemons.reappear()

    def _expect_after_deletion(self, record: ObjectRecord, expected: Expectation, event: RawEvent) -> None:
        rest = expected.after_deletion(event, timeout=self._settings.persistence.consistency_timeout)
        record.expect(rest)
        if rest is not None:
            asyncio.get_running_loop().call_later(rest.remaining, self._stop_expecting, record, rest)

    def _stop_expecting(self, record: ObjectRecord, expected: Expectation) -> None:
        # If the object is being indexed, it exists again, and the informer will pass its event on.
        if not expected.is_absent or record.indexing is not None:
            return
        if record.expected is expected:
            # If the stream lags behind for longer than the timeout, it can still bring older states of the object.
            if self._is_lagging(expected):
                timeout = self._settings.persistence.consistency_timeout
                asyncio.get_running_loop().call_later(timeout, self._stop_expecting, record, expected)
                return
            self._disinherit(record)  # the object has not appeared again, so it needs no record
        record.stop_expecting(expected)

    def _is_lagging(self, expected: Expectation) -> bool:
        """Check whether the stream is known to bring the expected state only later."""
        *_, last = self._iter_chain()
        watch = None if last._watch is None else last._watch()
        return watch is not None and not watch.has_reached(expected.version)

    def _disinherit(self, record: ObjectRecord) -> None:
        """Release the record of a deleted object, also in successors that have inherited it since the deletion."""
        for processor in self._iter_chain():
            processor._inherited.discard(record)

    def _iter_chain(self) -> Iterator['Processor']:
        """Yield this processor, its successor, the successor of that one, and so on."""
        processor: Processor | None = self
        while processor is not None:
            yield processor
            processor = processor._successor

    async def save(self, record: ObjectRecord) -> None:
        """Store progress and patches that are only in memory yet on the object, without running any handlers."""
        await (self._reconciler if self._successor is None else self._successor).save(record)

    async def _save_before_forgetting(self, record: ObjectRecord) -> None:
        """
        Store progress and patches that are only in memory yet, before the record is forgotten.

        A DELETED event also comes when an object stops matching the selectors of the watch: such an object still
        exists, and can match again. Deleted objects usually have nothing left to store.
        """
        if record.in_memory_only:
            try:
                await self.save(record)
            except LoginError:
                raise
            except Exception as error:
                make_logger(record, self.table.resource, self._settings).error(
                    "The object is gone, and the results of its handlers can't be stored: %r", error
                )

    def _wake_later(self, record: ObjectRecord, delay: float, *, reason: str = 'delayed') -> None:
        if self.meter is not None:
            self.meter.retry()
        if self._instruments.queue:
            self._workers.tell('object_requeued', self, record, delay, reason)
        record.wake_by(asyncio.get_running_loop().call_later(delay, self._wake, record))

    def _wake(self, record: ObjectRecord) -> None:
        if self._successor is not None:
            self._successor._wake(record)
            return
        record.wake()
        # Without any of these, the deletion was handled in the meantime.
        if record.body is not None or record.pending is not None:
            record.requeue()
            self._workers.start(self, record)

    def wake(self, record: ObjectRecord) -> None:
        """Requeue the object without an event."""
        if self._successor is not None:
            self._successor.wake(record)
            return
        # The daemon of a deleted object has ended: there is no state to process, and the object must not be treated
        # as a new one.
        if self._dropped or (record.expected is not None and record.expected.is_ending):
            return
        if record.body is None:
            # Copy it: handlers can change the state in place, but the daemons still use the original.
            record.accept(record.daemons.packed.copy())
        record.requeue()
        if not record.throttled:
            # Why not at once? A daemon can end inside of `receive`, and the worker must not re-enter it.
            self._workers.start(self, record, at_once=False)

    def is_settled(self, record: ObjectRecord, raw: RawBody) -> bool:
        """Check whether the object in this state requires no action."""
        return self._reconciler.is_settled(record, raw)
