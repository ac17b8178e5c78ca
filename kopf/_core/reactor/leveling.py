"""
Level-triggered handlers in the reactor: the workers that run them, and the watches that trigger them.

A resource with such handlers has a `LevelProcessor`, whose workers run these handlers when the other work on the object
is done, delayed or throttled. So they never run at the same time as other handlers of the object, and delayed retries
and refused patches of other handlers do not delay them. They have separate patches, so that the API server does not
refuse the changes of one handler because of another. Resources without such handlers have a plain `Processor`, so that
these features cost them nothing.

A `RelationSink` is put between the watch and the processor of a resource that such handlers depend on.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Any, cast

from kopf._cogs.clients.api import ApiClient
from kopf._cogs.clients.errors import APIError
from kopf._cogs.structs.bodies import Body, RawBody, RawEvent
from kopf._cogs.structs.patches import Patch
from kopf._core.actions.execution import NotReadyError, TemporaryError
from kopf._core.actions.loggers import LocalObjectLogger, ObjectLogger
from kopf._core.engines.levels import HandlerPlan, Leveler, Levels, ObjectLevel, Run
from kopf._core.engines.planning import NONE, Trigger
from kopf._core.engines.relations import Key
from kopf._core.intents.causes import ResourceCause
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.handlers import Source
from kopf._core.intents.registries import HandlerTable
from kopf._core.reactor.applying import CONFLICT_DELAYS
from kopf._core.reactor.former_finalizers import FormerFinalizer
from kopf._core.reactor.level_runs import LevelRunner
from kopf._core.reactor.object_records import ObjectRecord
from kopf._core.reactor.processing import Processor
from kopf._core.reactor.sinks import ForwardingSink, ObjectSink
from kopf._core.reactor.watches import ResourceWatch
from kopf._core.reactor.workers import WorkerPool

logger = logging.getLogger(__name__)

LIST_PATIENCE = 30.0
"""The time limit for a list that brings no objects; after it, handlers are run without the list (in seconds)."""


class LevelProcessor(Processor):
    """
    Processes the events of all the objects of one resource, and runs their level-triggered handlers.

    Args:
        context: what the operator shares.
        client: the client of the API.
        table: the handlers of the resource.
        workers: the workers of the operator.
        levels: the level-triggered handlers of the operator.
        former_finalizer: the finalizer to be removed; ``None`` if other handlers decide on it.
    """

    def __init__(
        self,
        context: OperatorContext,
        *,
        client: ApiClient,
        table: HandlerTable,
        workers: WorkerPool,
        levels: Levels,
        former_finalizer: FormerFinalizer | None = None,
    ) -> None:
        super().__init__(
            context,
            client=client,
            table=table,
            workers=workers,
            find_namespaces=levels.watches.find_namespaces,
            former_finalizer=former_finalizer,
        )
        self._leveler = Leveler(self, self._decider, levels)
        self._runner = LevelRunner(self._leveler, self._applier, workers, self.meter)
        self._watch: ResourceWatch | None = None

    @property
    def requesting(self) -> bool:
        return True

    # Receiving.

    def attach_watch(self, watch: ResourceWatch) -> None:
        super().attach_watch(watch)
        self._watch = watch
        self._leveler.open(watch.namespace)

    def receive(self, record: ObjectRecord, event: RawEvent, *, listed_since: float | None) -> None:
        if self._successor is None:
            if event['type'] == 'DELETED':
                self._leveler.forget(record)
            elif not self._workers.paused:  # events of a pause are skipped: all objects are listed again after it
                self._leveler.receive(record, event['object'], asked_at=listed_since)
        super().receive(record, event, listed_since=listed_since)

    def resumed(self, watch: ResourceWatch) -> None:
        for record in watch.records.values():
            self._leveler.reset(record)
        super().resumed(watch)

    def dropped(self, watch: ResourceWatch) -> None:
        for record in watch.get_known():
            self._leveler.forget(record)
        self._leveler.close()
        super().dropped(watch)

    def vanished(self, watch: ResourceWatch) -> None:
        self._leveler.close()
        super().vanished(watch)

    def released(self, watch: ResourceWatch) -> None:
        self._watch = None
        super().released(watch)

    def surrendered(self, records: Collection[ObjectRecord]) -> None:
        for record in records:
            self._leveler.forget(record)
        super().surrendered(records)

    def disowned(self, records: Collection[ObjectRecord]) -> None:
        for record in records:
            self._leveler.forget(record)  # again: after the first call, the last step has stored a state in the leveler
        super().disowned(records)

    def retire(self, successor: ObjectSink, records: Collection[ObjectRecord]) -> None:
        if not isinstance(successor.processor, LevelProcessor):
            for record in records:
                self._leveler.forget(record)
        self._leveler.close()
        super().retire(successor, records)

    def take_over(self, predecessor: Processor, records: Collection[ObjectRecord]) -> None:
        super().take_over(predecessor, records)
        redefined = predecessor.table.resource != self.table.resource
        for record in records:
            self._leveler.take_over(record, redefined=redefined)

    # Working.

    def is_due(self, record: ObjectRecord) -> bool:
        return super().is_due(record) or (not self._dropped and self._leveler.is_pending(record))

    @staticmethod
    def _has_step(record: ObjectRecord) -> bool:
        """Check whether the next step of the object can begin now."""
        return record.has_work and not record.throttled

    async def work(self, record: ObjectRecord) -> None:
        # This comes first: the parent class would also hand the work over, but it is not called for throttled objects.
        if self._successor is not None:
            await self._successor.work(record)
            return
        # Why only with an event? Two requeued objects could yield their slots to each other for ever.
        if not record.throttled and record.pending is not None:
            self._leveler.yield_slots(record)
        has_run = False
        while True:
            # The other handlers run first, so that level-triggered handlers see the state after these. While they are
            # throttled, their events and patches are kept for their next attempt.
            await super().work(record)
            # This is checked after each `await`, as another processor can have taken over the objects meanwhile.
            if self._has_successor() or self._dropped:
                return
            if (
                self._has_step(record)
                or self._workers.must_stop(record)
                or (has_run and self._workers.must_yield(record))
            ):
                self._leveler.yield_slots(record)
                return
            if self._release is not None and self._release.is_wanted(record):
                return  # this attempt has failed
            run = self._leveler.begin(record)
            if run is None:
                return
            await self._runner.run(record, run, self._has_step)
            has_run = True  # an object that is triggered all the time must not keep its worker for ever

    async def _step(self, record: ObjectRecord, event: RawEvent | None, *, number: int) -> float | None:
        delay = await super()._step(record, event, number=number)
        if record.body is not None and not record.is_vanishing:  # the object can have been deleted while a handler ran
            # The body is the response to the patch of the other handlers: the watch can bring this state much later.
            self._leveler.receive(record, record.body)
        return delay

    # The host of the leveler.

    def call(self, record: ObjectRecord, *, urgent: bool) -> bool:
        """Request a worker for the object; return false if it must wait for a busy worker."""
        if self._successor is not None:
            return cast(LevelProcessor, self._successor).call(record, urgent=urgent)
        is_busy = record.has_worker
        self._workers.start(self, record, urgent=urgent, at_once=False)  # the caller can be in the middle of receiving
        return not is_busy

    def is_cancelled(self) -> bool:
        return self._workers.is_cancelled()

    def get_memo(self, record: ObjectRecord) -> Any:
        return self._host.get_memo(record)

    def find_level(self, uid: str) -> ObjectLevel | None:
        """Return the state of the object with this uid; ``None`` if it is not handled, or not known yet."""
        record = None if self._watch is None else self._watch.records.get(uid)
        return None if record is None else record.level

    @property
    def is_listed(self) -> bool:
        return self._watch is not None and self._watch.complete

    async def patch_owner(self, plan: HandlerPlan, body: Body, patch: Patch, logger: ObjectLogger) -> None:
        """Apply the patch to the object of the plan, without triggering the handler of the plan."""
        level = plan.level
        known: RawBody | None = cast(RawBody, level.packed.copy())
        run = Run(plan, NONE, cast(RawBody, known), patch, logger)
        with self._leveler.patching(run):
            for delay in (*CONFLICT_DELAYS, None):
                result = await self._applier.send_once(level.record, body.metadata.uid, patch, known, logger)
                if result.body is not None:
                    self._leveler.receive_response(run, result.body, patch)
                is_ending = result.body is not None and result.body['metadata'].get('deletionTimestamp') is not None
                if result.gone or is_ending:
                    raise NotReadyError("The object is being deleted, so nothing is applied for it any more")
                if not result.remaining_fns:
                    return
                if delay is not None:
                    known = None
                    await asyncio.sleep(delay)
        raise TemporaryError("The object changes faster than it can be patched.", delay=CONFLICT_DELAYS[-1])

    def report_mutation(self, record: ObjectRecord, explanation: str, keys: Collection[Any]) -> None:
        self._host.report_mutation(record, explanation, keys)


class RelationSink(ForwardingSink):
    """
    Triggers the handlers of objects that depend on the objects of one watch, and passes events on to the next sink.

    The handlers wait for the first list, because they would be run twice otherwise. They stop waiting if the list
    fails, or takes too long.
    """

    def __init__(
        self,
        sink: ObjectSink,
        *,
        table: HandlerTable,
        levels: Levels,
    ) -> None:
        super().__init__(sink)
        self._table = table
        self._levels = levels
        self._dependents = levels.find_dependents(table.dependents, table.resource)
        self._timer: asyncio.TimerHandle | None = None  # the timeout of the first list
        self._is_listed_now = False  # whether the list has brought objects since the timer was set

    def expect(self) -> None:
        """Make the handlers wait for the first list."""
        for controller, _ in self._dependents:
            controller.planner.expect(self)
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(LIST_PATIENCE, self._lose_patience)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _lose_patience(self) -> None:
        """Stop waiting for a list that brings nothing: the API server can hold the request for minutes."""
        self._timer = None
        if self._levels.is_closed:
            return
        if self._is_listed_now:
            self._is_listed_now = False  # the list is long, but it keeps bringing objects
            self._timer = asyncio.get_running_loop().call_later(LIST_PATIENCE, self._lose_patience)
            return
        logger.warning(
            "%s do not wait for the list of %s any more, as it has brought nothing for %g seconds. They can miss "
            "objects of this kind until the list comes; then they are run again.",
            ', '.join(str(controller.handler) for controller, _ in self._dependents),
            self._table.resource,
            LIST_PATIENCE,
        )
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        self._stop_timer()
        for controller, _ in self._dependents:
            controller.planner.dismiss(self)

    def receive(self, record: ObjectRecord, event: RawEvent, *, listed_since: float | None) -> None:
        raw = event['object']
        if listed_since is not None:
            self._is_listed_now = True
        cause = None if record.level is None else record.level.get_cause(raw)
        for (_, source), (controller, relations) in zip(self._table.dependents, self._dependents, strict=True):
            is_initial = listed_since is not None and not relations.is_known(record.uid)
            keys: Collection[Key]
            if event['type'] == 'DELETED':
                keys = relations.remove(record.uid, raw, lambda: self._make_cause(record, raw))
            else:
                keys = relations.note(record.uid, raw, lambda: self._make_cause(record, raw), asked_at=listed_since)
            if keys:
                controller.trigger_all(keys, Trigger.START if is_initial else self._get_reason(source), cause)
        self._sink.receive(record, event, listed_since=listed_since)

    def outdated(self, record: ObjectRecord) -> None:
        for (_, source), (controller, relations) in zip(self._table.dependents, self._dependents, strict=True):
            controller.trigger_all(relations.get_keys(record.uid), self._get_reason(source), None)
        self._sink.outdated(record)

    def missed(self, uid: str) -> None:
        # Trigger the handler that has written the object: otherwise, it would not notice the deletion, and never write
        # the object again.
        for (_, source), (controller, relations) in zip(self._table.dependents, self._dependents, strict=True):
            controller.trigger_all(relations.forget(uid), self._get_reason(source), None)
        self._sink.missed(uid)

    @staticmethod
    def _get_reason(source: Source) -> Trigger:
        return Trigger.OWNED if source.fn is None else Trigger.WATCHED

    def _make_cause(self, record: ObjectRecord, raw: RawBody) -> ResourceCause:
        body = Body(raw)
        context = self._levels.context
        return ResourceCause(
            logger=LocalObjectLogger(body=body, settings=context.settings),
            memo=record.get_memo(context.copy_memo),
            indices=context.indices,
            resource=self._table.resource,
            body=body,
            patch=Patch(),
        )

    def listed(self, watch: ResourceWatch) -> None:
        self._stop_waiting()
        self._sink.listed(watch)

    def refused(self, watch: ResourceWatch, error: APIError) -> bool:
        # Why stop waiting at the first failure, unlike the gate of indices? A premature run does no harm: another run
        # follows when the objects are listed.
        self._stop_waiting()
        return self._sink.refused(watch, error)

    def failed(self, watch: ResourceWatch, error: Exception) -> None:
        self._stop_waiting()
        self._sink.failed(watch, error)

    def resumed(self, watch: ResourceWatch) -> None:
        self.expect()
        self._sink.resumed(watch)

    def relisting(self, watch: ResourceWatch, taken: Callable[[ObjectRecord], bool]) -> None:
        # The children that the former operator has applied must be known before handlers run for their owners.
        self.expect()
        self._sink.relisting(watch, taken)

    def revise(self, table: HandlerTable) -> None:
        self._table = table
        self._sink.revise(table)

    def dropped(self, watch: ResourceWatch) -> None:
        self._stop_waiting()
        for record in watch.get_known():
            for _, relations in self._dependents:
                relations.forget(record.uid)
        self._sink.dropped(watch)

    def vanished(self, watch: ResourceWatch) -> None:
        self._stop_waiting()
        self._sink.vanished(watch)

    def retire(self, successor: ObjectSink, records: Collection[ObjectRecord]) -> None:
        self._stop_waiting()
        self._sink.retire(successor, records)
