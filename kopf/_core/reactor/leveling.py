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
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, cast

from kopf._cogs.clients.api import ApiClient
from kopf._cogs.clients.errors import APIConflictError, APIError, APINotFoundError
from kopf._cogs.clients.pacing import background
from kopf._cogs.clients.patching import PatchResult, discard_unstorable, patch_obj
from kopf._cogs.structs.bodies import Body, RawBody, RawEvent
from kopf._cogs.structs.credentials import LoginError
from kopf._cogs.structs.patches import Patch, is_merged
from kopf._core.actions.execution import NotReadyError, Outcome, TemporaryError
from kopf._core.actions.loggers import LocalObjectLogger, ObjectLogger
from kopf._core.engines.child_marks import has_finalizer, make_release, read_kinds
from kopf._core.engines.levels import HandlerPlan, Leveler, Levels, Run
from kopf._core.engines.planning import NONE, Trigger
from kopf._core.engines.pruning import delete_remote
from kopf._core.engines.relations import Key
from kopf._core.intents.causes import ResourceCause
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.handlers import Source
from kopf._core.intents.registries import HandlerTable
from kopf._core.reactor.applying import CONFLICT_DELAYS, Applier
from kopf._core.reactor.object_records import ObjectRecord
from kopf._core.reactor.processing import Processor
from kopf._core.reactor.sinks import ForwardingSink, ObjectSink
from kopf._core.reactor.throttling import can_be_users_fault, explain_refusal, is_refusal
from kopf._core.reactor.watches import ResourceWatch
from kopf._core.reactor.workers import WorkerPool

if TYPE_CHECKING:
    from kopf._cogs.structs.conditions import ConditionEdits
    from kopf._cogs.structs.meters import ResourceMeter
    from kopf._core.reactor.condition_writer import ConditionWriter

logger = logging.getLogger(__name__)

LIST_PATIENCE = 30.0
"""The time limit for a list that brings no objects; after it, handlers are run without the list (in seconds)."""

RELEASE_DELAY = 2.0
"""
The delay of the second attempt if the remote children of a deleted object can't be deleted (in seconds).

Each further delay is twice as long.
"""

MAX_RELEASE_DELAY = 300.0
"""The longest of these delays (in seconds)."""


class LevelProcessor(Processor):
    """Processes the events of all the objects of one resource, and runs their level-triggered handlers."""

    def __init__(
        self,
        context: OperatorContext,
        *,
        client: ApiClient,
        table: HandlerTable,
        workers: WorkerPool,
        levels: Levels,
    ) -> None:
        super().__init__(context, client=client, table=table, workers=workers)
        self._client = client
        self._settings = context.settings
        self._leveler = Leveler(self, self._decider, levels)
        self._operator = context.settings.applying.operator
        self._ending: dict[ObjectRecord, RawBody] = {}
        """The objects that are being deleted, and wait for the deletion of their remote children."""
        self._release_delays: dict[ObjectRecord, float] = {}
        """The delays of the next attempts for objects whose children could not be deleted."""
        self._unreleased: set[ObjectRecord] = set()  # the objects that wait for another attempt
        self._writer: ConditionWriter | None = None
        if self._leveler.uses_conditions:
            self._writer = make_writer(self._leveler, self._applier)

    @property
    def requesting(self) -> bool:
        return True

    # Receiving.

    def receive(self, record: ObjectRecord, event: RawEvent, *, listed_since: float | None) -> None:
        if self._successor is None:
            self._note_ending(record, event)
            if event['type'] == 'DELETED':
                self._leveler.forget(record)
            elif not self._workers.paused:  # events of a pause are skipped: all objects are listed again after it
                self._leveler.receive(record, event['object'], asked_at=listed_since)
        super().receive(record, event, listed_since=listed_since)

    def _note_ending(self, record: ObjectRecord, event: RawEvent) -> None:
        """Request a worker for an object that is being deleted and has remote children."""
        raw = event['object']
        if raw['metadata'].get('deletionTimestamp') is None:
            return
        if event['type'] == 'DELETED' or not has_finalizer(raw, self._operator):
            self._forget_release(record)
        elif not self._workers.paused:
            self._ending[record] = raw
            self._unreleased.discard(record)
            self.call(record, urgent=True)

    def _forget_release(self, record: ObjectRecord) -> None:
        self._ending.pop(record, None)
        self._release_delays.pop(record, None)
        self._unreleased.discard(record)

    async def _release(self, record: ObjectRecord) -> None:
        """Delete the remote children of the object, and then remove the finalizer."""
        raw = self._ending.pop(record, None)
        if raw is None:
            return
        logger = ObjectLogger(body=Body(raw), settings=self._settings)
        try:
            await delete_remote(self._client, raw, read_kinds(raw, self._operator), logger)
            await self._remove_finalizer(record, raw, logger)
            self._release_delays.pop(record, None)
        except LoginError:
            raise
        except Exception as error:
            delay = self._release_delays.get(record, RELEASE_DELAY)
            self._release_delays[record] = min(delay * 2, MAX_RELEASE_DELAY)
            logger.error(
                "The children in other namespaces can't be deleted; trying again in %g seconds: %r", delay, error
            )
            self._ending[record] = raw
            self._unreleased.add(record)
            asyncio.get_running_loop().call_later(delay, self._release_later, record)

    def _release_later(self, record: ObjectRecord) -> None:
        self._unreleased.discard(record)
        if record in self._ending and not self._dropped and not self._workers.paused:
            self.call(record, urgent=False)

    async def _remove_finalizer(self, record: ObjectRecord, raw: RawBody, logger: ObjectLogger) -> None:
        known: RawBody | None = raw
        for delay in CONFLICT_DELAYS:
            result = await self._patch(record, Body(raw), make_release(self._operator), known, logger)
            if not result.remaining_fns:
                return
            known = None
            await asyncio.sleep(delay)
        raise APIConflictError("The finalizer can't be removed, as the object changes all the time.")

    def resumed(self, watch: ResourceWatch) -> None:
        for record in watch.records.values():
            self._leveler.reset(record)
        super().resumed(watch)

    def dropped(self, watch: ResourceWatch) -> None:
        for record in watch.get_known():
            self._leveler.forget(record)
        super().dropped(watch)

    def surrendered(self, records: Collection[ObjectRecord]) -> None:
        for record in records:
            self._forget_release(record)
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
        super().retire(successor, records)

    def take_over(self, predecessor: Processor, records: Collection[ObjectRecord]) -> None:
        super().take_over(predecessor, records)
        redefined = predecessor.table.resource != self.table.resource
        for record in records:
            self._leveler.take_over(record, redefined=redefined)

    # Working.

    def is_due(self, record: ObjectRecord) -> bool:
        if super().is_due(record) or self._dropped:
            return super().is_due(record)
        return self._leveler.is_pending(record) or (record in self._ending and record not in self._unreleased)

    async def work(self, record: ObjectRecord) -> None:
        # This comes first: the parent class would also hand the work over, but it is not called for throttled objects.
        if self._successor is not None:
            await self._successor.work(record)
            return
        # Why not also for a requeued object without an event? Two such objects could yield to each other for ever.
        if not record.throttled and record.pending is not None:
            self._leveler.yield_slots(record)
        has_run = False
        while True:
            # The other handlers run first, so that level-triggered handlers see the state after these. While they are
            # throttled, their events and patches are kept for their next attempt.
            if not record.throttled:
                await super().work(record)
            # This is checked after each `await`, as another processor can have taken over the objects meanwhile.
            if self._has_successor() or self._dropped:
                return
            if super().is_due(record) or self._workers.must_stop(record) or (has_run and self._workers.is_overloaded):
                self._leveler.yield_slots(record)
                return
            if record in self._ending:
                await self._release(record)
                return
            run = self._leveler.begin(record)
            if run is None:
                return
            await self._run(record, run)
            has_run = True  # an object that is triggered all the time must not keep its worker for ever

    async def _step(self, record: ObjectRecord, event: RawEvent | None, *, number: int) -> float | None:
        delay = await super()._step(record, event, number=number)
        if record.body is not None and not record.is_vanishing:  # the object can have been deleted while a handler ran
            # The body is the response to the patch of the other handlers: the watch can bring this state much later.
            self._leveler.receive(record, record.body)
        return delay

    async def _run(self, record: ObjectRecord, run: Run) -> None:
        """Run the handler, and apply its patch."""
        outcome: Outcome | None = None
        began = 0.0 if self.meter is None else time.monotonic()
        try:
            outcome = await self._execute(record, run)
        except LoginError:
            raise
        # `_execute` handles the errors of the function. Any other error must affect neither other objects nor the
        # operator.
        except Exception as error:
            run.logger.exception("%s could not be run.", run.plan.controller.handler)
            outcome = self._leveler.fail(run, error, "The run of %s has failed")
        finally:
            self._leveler.end(run, outcome)
            if self.meter is not None and outcome is not None:
                self._measure(record, self.meter, began, outcome)
            del outcome  # see `Outcome.without_exception`

    def _measure(self, record: ObjectRecord, meter: 'ResourceMeter', began: float, outcome: Outcome) -> None:
        if outcome.delay is not None:
            meter.retry()
        result = 'success' if outcome.delay is None else 'requeue_after'
        meter.note_reconciliation(began, 'error' if outcome.is_error else result, record.uid)

    async def _execute(self, record: ObjectRecord, run: Run) -> Outcome:
        """Run the handler, apply its patch, and then write the conditions, also those of a failed run."""
        writer = self._writer
        if writer is not None and self._leveler.keeps_conditions(run):
            await writer.begin(record, run)
        outcome = await self._call(record, run)
        edits = [] if writer is None else writer.take(run)
        try:
            try:
                await self._apply(record, run, edits)
                outcome = await self._leveler.prune(run, outcome)
            except LoginError:
                raise
            except Exception as error:  # the patch could not be applied
                outcome = self._fail(run, error)
            return outcome if writer is None else await writer.end(record, run, outcome, edits)
        finally:
            del outcome  # see `Outcome.without_exception`

    async def _call(self, record: ObjectRecord, run: Run) -> Outcome:
        if run.children is None:
            return await self._leveler.execute(run)
        # After a restart, all children of all objects are applied: live changes of other objects take precedence.
        with background(not self._workers.is_urgent(record), self._workers.pressure):
            return await self._leveler.execute(run)

    async def _apply(self, record: ObjectRecord, run: Run, edits: 'Collection[ConditionEdits]') -> None:
        """
        Apply the patch of the handler to the state that the run has seen, or to newer ones if it conflicts.

        Changes are not exchanged with the patches of other handlers: the API server could refuse one because of the
        other.
        """
        patch, known = run.patch, cast(RawBody | None, run.raw)
        discard_unstorable(patch, run.logger)
        # A handler that sets the same status in every run must not cause a request each time.
        newest = run.plan.level.packed[0] if record.level is run.plan.level else run.raw
        if is_merged(dict(patch), newest):
            patch = Patch(fns=patch.fns)
        for delay in (*CONFLICT_DELAYS, None):
            if not patch or await self._apply_once(record, run, patch, known, edits):
                return
            # Other handlers wait for this worker. So the second attempt is made at once, and nearly always succeeds.
            if delay is None or (delay and super().is_due(record)):
                break
            patch, known = Patch(fns=patch.fns), None  # the values are stored by now
            await asyncio.sleep(delay)
        raise APIConflictError("other clients change the object all the time", status=409)

    async def _apply_once(
        self,
        record: ObjectRecord,
        run: Run,
        patch: Patch,
        known: RawBody | None,
        edits: 'Collection[ConditionEdits]',
    ) -> bool:
        """Apply the patch to this state, or to the newest one if it is not given; return whether it was applied."""
        with self._leveler.patching(run):
            with background(not self._workers.is_urgent(record), self._workers.pressure):
                result = await self._applier.apply_of_level(record, run.raw, patch, known, run.logger)
            if result.body is not None:
                is_ours = self._leveler.receive_response(run, result.body, patch)
                # If another run is due, the state also has changes by other clients, which this run has not seen.
                if is_ours and not run.plan.reasons:
                    for each in edits:
                        each.follow(run.plan.level.packed.copy())
        if result.unserved:
            raise APINotFoundError("the resource is not served", status=404)
        return not result.remaining_fns

    def _fail(self, run: Run, error: Exception) -> Outcome:
        """
        Treat an error of the patch as an error of the handler, which is run again.

        Why not keep the patch and send it again, as for other handlers? The next run makes a better patch from the
        newest state. And as long as a kept patch is refused, no trigger would have an effect.
        """
        if is_refusal(error):
            is_users_fault = can_be_users_fault(run.patch, error)
            run.logger.error("%s", explain_refusal(error, is_users_fault=is_users_fault))
        return self._leveler.fail(run, error)

    # The host of the leveler.

    def call(self, record: ObjectRecord, *, urgent: bool) -> bool:
        """Request a worker for the object; return false if it must wait for a busy worker."""
        if self._successor is not None:
            return cast(LevelProcessor, self._successor).call(record, urgent=urgent)
        is_busy = record.has_worker
        self._workers.start(self, record, urgent=urgent, at_once=False)  # the caller can be in the middle of receiving
        return not is_busy

    def get_memo(self, record: ObjectRecord) -> Any:
        return self._host.get_memo(record)

    async def patch_owner(self, plan: HandlerPlan, body: Body, patch: Patch, logger: ObjectLogger) -> None:
        """Apply the patch to the object of the plan, without triggering the handler of the plan."""
        level = plan.level
        known: RawBody | None = cast(RawBody, level.packed.copy())
        run = Run(plan, NONE, cast(RawBody, known), patch, logger)
        with self._leveler.patching(run):
            for delay in (*CONFLICT_DELAYS, None):
                result = await self._patch(level.record, body, patch, known, logger)
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

    async def _patch(
        self,
        record: ObjectRecord,
        body: Body,
        patch: Patch,
        known: RawBody | None,
        logger: ObjectLogger,
    ) -> PatchResult:
        return await patch_obj(
            self._client,
            resource=self.table.resource,
            namespace=record.namespace,
            name=record.name,
            uid=body.metadata.uid,
            patch=patch,
            body=known,
            logger=logger,
        )

    def report_mutation(self, record: ObjectRecord, explanation: str, keys: Collection[Any]) -> None:
        self._host.report_mutation(record, explanation, keys)


def make_writer(leveler: Leveler, applier: Applier) -> 'ConditionWriter':
    """Return the writer of the objects' conditions."""
    from kopf._core.reactor.condition_writer import ConditionWriter  # only for operators that use them

    return ConditionWriter(leveler, applier)


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
        # Trigger the handler that has written the object: it would not notice the deletion, and never write it again.
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
        # Why stop waiting at the first failure, unlike the gate of indices? A run that is too early is not wrong: it
        # only causes another run later.
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
