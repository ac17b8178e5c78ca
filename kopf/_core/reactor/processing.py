"""
Processing the events of one resource, from the received event until the object is at rest.

An event that requires no action is dropped by the screen (`screening`, `stale_events`). Otherwise, the object gets a
worker: a task that exists only while there is work, and takes the newest state for each step (`stepping`). A delayed
retry holds no worker: it is a timer and the record of the object. When the definition of the resource changes, another
processor continues with the objects, and this one passes its remaining events on to that processor.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING

from kopf._cogs.aiokits.cancellations import StrayCancellationError, withdraw_cancellation
from kopf._cogs.clients.api import ApiClient
from kopf._cogs.structs.bodies import RawBody, RawEvent
from kopf._cogs.structs.credentials import LoginError
from kopf._cogs.structs.references import Resource
from kopf._core.engines.child_marks import has_finalizer
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.decisions import Decider
from kopf._core.intents.handlers import ReconcilingHandler
from kopf._core.intents.registries import HandlerTable
from kopf._core.reactor.applying import Applier
from kopf._core.reactor.former_finalizers import FormerFinalizer
from kopf._core.reactor.hosting import ObjectHost
from kopf._core.reactor.object_records import ObjectRecord
from kopf._core.reactor.reconciling import Reconciler
from kopf._core.reactor.screening import EventScreen
from kopf._core.reactor.sinks import ObjectSink
from kopf._core.reactor.stale_events import StaleEventFilter
from kopf._core.reactor.stepping import ObjectStepper
from kopf._core.reactor.throttling import RestlessError, Throttling
from kopf._core.reactor.watches import ResourceWatch
from kopf._core.reactor.workers import WorkerPool

if TYPE_CHECKING:
    from kopf._cogs.structs.meters import ResourceMeter
    from kopf._core.reactor.child_release import ChildRelease

MAX_STEPS = 1000
"""The number of consecutive steps without an event, after which the object is throttled: there must be a bug."""


class Processor(ObjectSink):
    """
    Processes the events of all the objects of one resource.

    Args:
        context: what the operator shares.
        client: the client of the API.
        table: the handlers of the resource.
        workers: the workers of the operator.
        find_namespaces: returns the served namespaces; none if the whole cluster is served.
        former_finalizer: the finalizer to be removed; ``None`` if handlers decide on it.
    """

    def __init__(
        self,
        context: OperatorContext,
        *,
        client: ApiClient,
        table: HandlerTable,
        workers: WorkerPool,
        find_namespaces: Callable[[], Collection[str]] = tuple,
        former_finalizer: FormerFinalizer | None = None,
    ) -> None:
        settings = context.settings
        self._settings = settings
        self._client = client
        self._workers = workers
        self._find_namespaces = find_namespaces
        self._instruments = context.instruments
        meters = context.instruments.meters
        self.meter: ResourceMeter | None = None if meters is None else meters.get(table.resource)
        """The meter of the resource, if there are metrics."""
        self.is_observer = bool(table.watching) and not table.managing
        """Whether it calls only handlers of raw events in its steps: then, each run of a worker is a reconciliation."""
        self._decider = Decider(table, settings.persistence)
        self._applier = Applier(client, settings, self._decider, workers)
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
            former_finalizer=former_finalizer,
        )
        self._stale_events = StaleEventFilter(settings, self.receive)
        self._screen = EventScreen(
            table,
            reconciler=self._reconciler,
            stale_events=self._stale_events,
            workers=workers,
            former_finalizer=former_finalizer,
        )
        self._stepper = ObjectStepper(
            context,
            decider=self._decider,
            applier=self._applier,
            reconciler=self._reconciler,
            stale_events=self._stale_events,
            meter=self.meter,
            former_finalizer=former_finalizer,
        )
        self._release: ChildRelease | None = None
        """The release of owners of remote children, once one of them is being deleted."""
        self._dropped = False
        self._successor: Processor | None = None

    @property
    def table(self) -> HandlerTable:
        """The handlers of the resource."""
        return self._decider.table

    @property
    def requesting(self) -> bool:
        """Return whether handling usually sends requests to the API."""
        return self._decider.table.managing

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
        self._stale_events.attach_watch(watch)

    # Receiving: called by the watch, synchronous.

    def receive(self, record: ObjectRecord, event: RawEvent, *, listed_since: float | None) -> None:
        """Receive the next event of an object: keep it for the worker, or drop it if it requires no action."""
        # The informer, or the replay after a pause, can still call this method after `retire`.
        if self._successor is not None:
            self._successor.receive(record, event, listed_since=listed_since)
            return
        # Why not `is_deleted`? For raw events, a call costs a noticeable part of the whole step. An object that was
        # deleted at once has no children to be released.
        if event['object']['metadata'].get('deletionTimestamp') is not None:
            self._receive_end(record, event)
        if not self._screen.keep(record, event, listed_since=listed_since):
            return
        if not record.throttled:
            self._workers.start(self, record, urgent=listed_since is None)
        elif (delay := self._hasten(record, event)) is not None:
            self._wake_later(record, delay, reason='failed')

    def _receive_end(self, record: ObjectRecord, event: RawEvent) -> None:
        """Receive the event of an object that is being deleted: it can have remote children."""
        if self._release is None:
            if event['type'] == 'DELETED' or not has_finalizer(event['object'], self._settings.applying.operator):
                return
            if self.table.is_reconciled_elsewhere:
                return  # a handler of that version can still run for the object, and apply children
            self._release = self._make_release()
        if self._release.note(record, event, paused=self._workers.paused):
            self._workers.start(self, record, urgent=True, at_once=False)  # the event is received before it is handled

    def _make_release(self) -> 'ChildRelease':
        # Why not at the top? Few operators have remote children, and all others would start more slowly.
        from kopf._core.reactor.child_release import FORMER_PAUSE, ChildRelease

        # Why also without such handlers? A former version of the operator can have had them: without the release, the
        # object could never be deleted.
        pause = 0.0 if self.table.of(ReconcilingHandler) else FORMER_PAUSE
        return ChildRelease(
            self,
            client=self._client,
            applier=self._applier,
            settings=self._settings,
            find_namespaces=self._find_namespaces,
            pause=pause,
        )

    def _hasten(self, record: ObjectRecord, event: RawEvent) -> float | None:
        return self._throttling.hasten(record, event, check_stale=lambda: self._stale_events.drop_stale(record, event))

    def paused(self, watch: ResourceWatch) -> None:
        self._screen.begin_pause(watch)

    def resumed(self, watch: ResourceWatch) -> None:
        """Forget the states and the plans of all objects: other operators could have handled them in the pause."""
        working = self._workers.find_working()
        # without deleted objects, as their deletions must still be handled
        for record in watch.records.values():
            # Other operators wait for handlers that began before the pause: keep their outcomes, which are not stored
            # yet.
            record.forget_plans(working=record in working)
        self._stale_events.reset()
        self._screen.end_pause(watch, self.receive)

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
            if self._release is not None:
                self._release.forget(record)
            if record.daemons is not None:
                record.daemons.forget()

    def surrendered(self, records: Collection[ObjectRecord]) -> None:
        """Start no more steps for these objects, and stop their daemons: another operator handles them soon."""
        for record in records:
            record.abandon()
            if self._release is not None:
                self._release.forget(record)
            if record.daemons is not None:
                record.daemons.surrender()

    def disowned(self, records: Collection[ObjectRecord]) -> None:
        """Forget these objects, as nothing runs for them any more, and all is stored."""
        self._stale_events.disown(records)
        self._screen.disown(records)
        for record in records:
            record.disown()

    def released(self, watch: ResourceWatch) -> None:
        """
        Break the reference cycles.

        Resources and namespaces come and go, and the garbage collector would free these objects only much later.
        """
        self._host.release(self._successor)
        self._stale_events.release()
        self._stepper.release()
        for record in watch.get_known():
            if record.daemons is not None and not record.daemons.alive:
                record.detach_daemons()

    @property
    def processor(self) -> 'Processor':
        """The processor itself, because it is the last sink of the chain."""
        return self

    def retire(self, successor: ObjectSink, records: Collection[ObjectRecord]) -> None:
        """Hand the objects over to another processor; objects with running workers follow at the end of their step."""
        processor: Processor = successor.processor
        self._dropped, self._successor = True, processor
        self._stale_events.retire(processor._stale_events)
        self._stepper.retire(processor._stepper)
        self._host.retire()
        processor.take_over(self, records)

    def take_over(self, predecessor: 'Processor', records: Collection[ObjectRecord]) -> None:
        """Handle these objects from now on, continuing with the state in their records."""
        redefined = predecessor.table.resource != self.table.resource
        for record in records:
            record.change_hands(redefined=redefined)
            if record.expected is not None or record.has_worker:
                self._stale_events.inherit(record)
            self._host.take_over(record, redefined=redefined)
            # The object is throttled and has a pending deletion, which no list of the new watch would bring.
            if record.has_work and not record.has_worker:
                self._workers.start(self, record, at_once=False)

    # Working: one task for each object.

    def is_due(self, record: ObjectRecord) -> bool:
        """Check whether the object requires a worker now."""
        if self._successor is not None:
            return self._successor.is_due(record)
        if record.has_work and not record.throttled:
            return True
        return self._release is not None and not self._dropped and self._release.is_due(record)

    async def work(self, record: ObjectRecord) -> None:
        """Process the object, step by step, until it has no work that is due now."""
        if self._successor is not None:
            await self._successor.work(record)
            return
        steps = 0
        while record.has_work and not record.throttled and not self._dropped:
            if self._workers.must_stop(record, has_event=record.pending is not None):
                break
            if steps and record.pending is not None and self._workers.must_yield(record):
                return  # let queued objects run: an object that changes all the time must not keep its worker forever
            record.begin_step(self._workers.lapses)
            event = record.take_pending()
            # Why count only steps without events? Other clients can change the object all the time, which is no bug.
            steps = 1 if event is not None else steps + 1
            try:
                if steps > MAX_STEPS:
                    raise RestlessError(MAX_STEPS)
                delay = await self._step(record, event, number=steps)
            # Why not throttle the object? Without credentials, no object can be handled, so the operator ends.
            except LoginError:
                raise
            except asyncio.CancelledError as error:
                if self._workers.is_cancelled():
                    raise
                await withdraw_cancellation(self._workers.is_cancelled)
                # Other events need not be kept: their state is in the record since their handlers have ended.
                if event is not None and event['type'] == 'DELETED':
                    record.put_back(event, observed=True)
                self._fail(record, event, StrayCancellationError.of(error))
                return
            except Exception as error:
                self._fail(record, event, error)
                return
            # Why not return here? An event that came during the step must be processed now, not after the delay.
            if delay is not None:
                self._wake_later(record, delay)
            self._throttling.succeed(record)
        if self._has_successor():
            self._pass_on(record)
            return
        if self._dropped:
            record.discard_work()
        # Planned steps need the body, because they have no event.
        if record.wakeup is None and record.cycle is None and record.pending_patch is None:
            record.drop_body()
        if self._release is not None and self._release.is_due(record):
            if not self._dropped and not self._workers.must_stop(record):
                await self._release.release(record)

    def _fail(self, record: ObjectRecord, event: RawEvent | None, error: Exception) -> None:
        """Throttle the object after the error of a step with this event."""
        if self.meter is not None and self.is_observer:
            self.meter.note_error(record.uid)
        delay = self._throttling.fail(record, error)
        # The object can have changed while the step ran, e.g. because a user has corrected what made it fail. Without
        # this check, the refused patch would be sent for that state, too, and would be refused again.
        newer = record.peek_pending()
        hastened = None if newer is None or newer is event else self._hasten(record, newer)
        self._wake_later(record, delay if hastened is None else min(delay, hastened), reason='failed')

    def release_later(self, record: ObjectRecord) -> None:
        """Request a worker for another attempt to delete the remote children of the object."""
        if not self._dropped and not self._workers.paused:
            self._workers.start(self, record, at_once=False)

    def _step(self, record: ObjectRecord, event: RawEvent | None, *, number: int) -> Awaitable[float | None]:
        return self._stepper.step(record, event, number=number)

    def _has_successor(self) -> bool:
        # Why not the attribute itself? Type checkers assume that it has not changed since the beginning of `work`.
        return self._successor is not None

    def _pass_on(self, record: ObjectRecord) -> None:
        """Let the successor do the next step if one is needed: the last step here has started no daemons."""
        if self._successor is not None and record.body is not None:
            if not self._successor.is_settled(record, record.body):
                record.requeue()

    async def save(self, record: ObjectRecord) -> None:
        """Store progress and patches that are only in memory yet on the object, without running any handlers."""
        await self._stepper.save(record)

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
        # If the API server has reported the object as missing, the daemons' state is doubtful: the step requests it.
        if record.body is None and not record.outdated:
            # Copy it: handlers can change the state in place, but the daemons still use the original.
            record.accept(record.daemons.packed.copy())
        record.requeue()
        if not record.throttled:
            # Why not at once? A daemon can end inside of `receive`, and the worker must not re-enter it.
            self._workers.start(self, record, at_once=False)

    def is_settled(self, record: ObjectRecord, raw: RawBody) -> bool:
        """Check whether the object in this state requires no action."""
        return self._reconciler.is_settled(record, raw)
