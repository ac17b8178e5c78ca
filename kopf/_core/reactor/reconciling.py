"""
The steps that bring an object to rest: decide, run the handlers that are due, apply the results in one patch.

A step begins with the newest known state, and ends with the state from the response to its patch, so that the next
step needs no event. A step waits only for the API and the handlers. It never sleeps until a retry: it returns the
delay until the next step instead.
"""

import asyncio
import functools
import math
from collections.abc import Mapping
from typing import cast

from kopf._cogs.clients.api import AnyLogger
from kopf._cogs.clients.errors import APIConflictError, APIForbiddenError, APIUnservedError
from kopf._cogs.clients.pacing import background
from kopf._cogs.structs.bodies import Body, BodyEssence, RawBody, RawEvent
from kopf._cogs.structs.body_guards import BodyGuard
from kopf._cogs.structs.diffs import EMPTY, Diff
from kopf._cogs.structs.finalizers import append_finalizer, remove_finalizer
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.instruments import Instruments, ObjectStep, Unsampled, get_current_activity
from kopf._cogs.structs.patches import Patch, is_merged
from kopf._cogs.structs.references import Resource
from kopf._core.actions.execution import ErrorsMode, Outcome, outlive, run_handler, utcnow
from kopf._core.actions.handler_states import HandlerState
from kopf._core.actions.loggers import LocalObjectLogger, ObjectLogger
from kopf._core.engines.changing import Step
from kopf._core.intents import filters
from kopf._core.intents.causes import ChangingCause, Reason, WatchingCause
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.cycles import Cycle
from kopf._core.intents.decisions import NO_FIELDS, TITLES, Decider, Decision
from kopf._core.intents.results import deliver_results
from kopf._core.intents.storage_errors import StorageError
from kopf._core.reactor.applying import CONFLICT_DELAYS, Applier, complete
from kopf._core.reactor.former_finalizers import FormerFinalizer
from kopf._core.reactor.hosting import ObjectHost
from kopf._core.reactor.object_records import ObjectRecord, get_key, make_logger
from kopf._core.reactor.selftriggers import SelfTriggerDetector
from kopf._core.reactor.throttling import FinalizerIgnoredError, is_in_patch, is_refusal
from kopf._core.reactor.workers import WorkerPool

DAEMONS_GRACE = 1.0
"""
How long the progress of a deletion is only kept in memory while daemons are stopping (in seconds).

Daemons usually end soon, so that one patch with the final state is sufficient.
"""


class Reconciler:
    """Does the steps of all objects of one resource."""

    def __init__(
        self,
        *,
        context: OperatorContext,
        decider: Decider,
        applier: Applier,
        host: ObjectHost,
        workers: WorkerPool,
        former_finalizer: FormerFinalizer | None = None,
    ) -> None:
        self._settings = settings = context.settings
        self._decider = decider
        self._applier = applier
        self._host = host
        self._workers = workers
        self._former_finalizer = former_finalizer
        self._lifecycle = context.lifecycle
        self._indices = context.indices
        self._copy_memo = context.copy_memo
        self._managing = decider.table.managing
        self._instruments = context.instruments
        self._rules = context.make_rules(workers.is_halted, is_cancelled=workers.is_cancelled)
        self._lenient_rules = self._rules._replace(is_halted=workers.is_pausing, default_errors=ErrorsMode.IGNORED)
        self._unobserved_rules = self._lenient_rules._replace(observed=False)
        self._selftriggers = SelfTriggerDetector(settings, decider)
        self._watching_is_single = len(decider.table.watching) == 1 and not self._managing
        self._watching_is_distinct = filters.are_distinct(decider.table.watching)  # the same after `revise`
        self._reports = filters.FailureReports()

    def is_settled(self, record: ObjectRecord, raw: RawBody) -> bool:
        """Check whether the object in this state requires no action."""
        # This is checked first: an object must be resumed even if it has not changed since the last run of the
        # operator.
        if record.initial and self._decider.table.resuming_ids:
            return False
        holding = False
        try:
            if self._host.spawner is not None:
                plan = self._host.spawner.plan(record, raw)
                if plan.missing or plan.excess or plan.failures:
                    return False
                holding = plan.holding
            return self._decider.is_settled(Body(raw), holding=holding, handled_digest=record.handled_digest)
        except Exception:  # from filters or storages of users: the step will raise it again, and report it
            return False

    async def observe(
        self, record: ObjectRecord, event: RawEvent, body: Body, patch: Patch, observed: bool, guarded: bool
    ) -> RawEvent:
        """
        Run the handlers of raw events (``@kopf.on.event``).

        Args:
            record: the record of the object.
            event: the event.
            body: the object in the event.
            patch: the patch that the handlers can change.
            observed: whether to tell the instruments of the handlers, if there are any.
            guarded: whether to undo their in-place changes of the object, because the step goes on with it.

        Returns:
            The event as it was before the handlers, which can have modified its object in place.
        """
        guard = BodyGuard(event['object']) if guarded else None
        local = LocalObjectLogger(body=body, settings=self._settings)
        cause = WatchingCause(
            logger=local,
            memo=record.get_memo(self._copy_memo),
            indices=self._indices,
            resource=self._decider.table.resource,
            body=body,
            patch=patch,
            event=event,
            selected=self._decider.table.label_selector is not None,
        )
        rules, called = self._lenient_rules if observed else self._unobserved_rules, set[tuple[int, str]]()
        if event['type'] == 'DELETED':
            rules = rules._replace(is_halted=None)  # in a pause, too: no list after it brings this event again
        for handler in self._decider.table.watching:
            try:
                matching = filters.prematch(handler, cause)
            except filters.FilterError as error:
                self._reports.report({handler: error}, cause)
                continue
            if matching and not self._watching_is_distinct:
                # Why not deduplicate the handlers before matching? One function can have several declarations, and only
                # the filters of the first declaration would be used.
                key = filters.get_key(handler)  # once for each function, even if several declarations match
                matching = key not in called
                called.add(key)
            if matching:
                state = HandlerState(started=utcnow())
                outcome = (await run_handler(handler, cause, state, rules)).without_exception()
                if not self._watching_is_single:
                    await outlive(rules)
                # A result that equals the stored one is not patched: handlers of raw events usually return the same
                # result for each event.
                deliver_results({handler.id: outcome}, patch, local, stored=body)
        if guard is not None and guard.is_changed:
            self._host.restore(record, guard, [handler.id for handler in self._decider.table.watching])
            event = {**event, 'object': guard.original}
            # Restore it in place: the patch refers to this body, and its functions must be applied to the state in the
            # API.
            body._replace_with(event['object'])
        return event

    def hold_back(self, record: ObjectRecord, patch: Patch, body: Body, *, own: bool, requeued: bool) -> float:
        """
        Delay the patch of the handlers of raw events if these trigger themselves.

        Args:
            record: the record of the object.
            patch: the changes that the handlers request.
            body: the object in the event.
            own: whether the event shows the result of the operator's last patch, or an earlier state.
            requeued: whether the object was requeued for other work.

        Returns:
            The delay until the patch is to be sent (in seconds); zero if it is not held back.
        """
        try:
            triggering, pause = self._selftriggers.note_event(record.selfpatching, patch, body, own=own)
        except StorageError:
            self.keep(record, patch)
            raise
        record.watch_selfpatching(triggering)
        if not pause:
            return 0
        record.adopt(cast(RawBody, body._data()))
        if requeued and not (record.cycle is None and self.is_settled(record, cast(RawBody, record.body))):
            return 0  # there is other work, which must not wait
        self.keep(record, patch)
        return pause

    async def reconcile(self, record: ObjectRecord, patch: Patch, *, deciding: bool) -> float | None:
        """
        Do one step from the newest known state of the object, and apply its results in one patch.

        Args:
            record: the record of the object.
            patch: the changes that handlers of raw events request.
            deciding: whether to run handlers and daemons; otherwise, the step only applies the patch.

        Returns:
            The delay until the next step (in seconds); ``None`` if an event, or a requeue, starts it.
        """
        # This step replaces the step that the timer would start. If handlers are still delayed, it sets a new timer.
        record.cancel_wakeup()
        deciding = deciding and not self._workers.ending
        try:
            decision, pause = await self._prepare(record, patch, deciding=deciding)
        except BaseException:
            self.keep(record, patch)
            raise
        if self._instruments.steps and decision is not None:
            _tell_decision(decision, self._instruments, record, self._decider.table.resource)
        elif self._instruments.is_lazy and patch:
            self._instruments.begin_trace()
        bookkeeping, patches = Patch(), _count_patches(record)
        done, delay = True, None
        if decision is not None:
            done, delay = await self._handle(record, decision, patch, bookkeeping)
        else:
            complete(record, patch, make_logger(record, self._decider.table.resource, self._settings, ObjectLogger))
        if bookkeeping or (patch and not (decision is None and _is_vain(record, patch))):
            # Why check the urgency only now? While the handlers ran, an edit can have made the object urgent.
            try:
                with background(not self._workers.is_urgent(record), self._workers.pressure):
                    applied, retry_delay = await self._applier.apply(record, decision, patch, bookkeeping)
            except Exception as error:
                # What handlers request can be refused for as long as the object exists, which must not be for ever.
                if decision is None and deciding and (is_refusal(error) or is_in_patch(error)):
                    await self._remove_former_finalizer(record)
                    record.keep_patch(patch)  # it is tried again, although the other one has succeeded
                raise
            if not applied:
                # The patch has failed, so the cycle is not finished: its results are stored together with the next
                # state.
                return retry_delay
        record.keep_patch(None)
        if decision is None and deciding and not pause:
            record.leave_cycle()
            delay = await self._remove_former_finalizer(record)
        # A step that only adds the finalizer begins no cycle. The response to its patch requeues the object.
        elif decision is not None and not decision.add_finalizer:
            # Something was sent, and no daemon has patched the object meanwhile.
            comparable = bool(bookkeeping or patch) and _count_patches(record) == patches
            if done:
                pause = self._end_cycle(record, decision, patch, bookkeeping, comparable=comparable)
            # If the object is requeued, the next step determines the delay from the newer state. Otherwise, a timer
            # with the returned delay starts the retries. Upstream kopf sends a dummy patch instead, to get an event.
            else:
                if comparable:
                    pause = self._note_step(record, decision, patch)
                if not record.requeued and record.body is not None:
                    delay = self._find_delay(record, decision) or delay
        if bookkeeping.fns:
            self._check_finalizer(record, expected=decision is not None and decision.add_finalizer)
        # The response to the patch has requeued the object, but a step during the pause would do nothing.
        if pause:
            record.cancel_requeue()
            return pause
        # The response to the last patch of a cycle usually requires no action. This check is cheaper than another step,
        # and logs nothing.
        if record.requeued and record.cycle is None and self.is_settled(record, cast(RawBody, record.body)):
            record.cancel_requeue()
        return delay

    async def _prepare(self, record: ObjectRecord, patch: Patch, *, deciding: bool) -> tuple[Decision | None, float]:
        """
        Start and stop daemons as the newest known state requires, and decide what to do.

        Returns:
            The decision, if there is one; and the pause before the handlers may be run (in seconds).
        """
        holding = False
        if deciding and self._host.spawner is not None:
            holding = await self._host.spawner.adjust(record, cast(RawBody, record.body))
            record.cancel_requeue()  # this step also handles daemons that have just ended
        body = Body(cast(RawBody, record.body))
        pause = self._check_selftriggering(record, body) if deciding else 0
        # Only handlers of updates are paused: the patch of the handlers of raw events is sent in any case.
        deciding_now = deciding and self._managing and not pause
        return self._decide(record, body, patch, holding=holding) if deciding_now else None, pause

    def keep(self, record: ObjectRecord, patch: Patch) -> None:
        """Keep the patch of a step that ends early, because its handlers will not be called again for these changes."""
        if patch:
            complete(record, patch, make_logger(record, self._decider.table.resource, self._settings, ObjectLogger))
            record.keep_patch(patch)

    def _check_selftriggering(self, record: ObjectRecord, body: Body) -> float:
        """Return the remaining pause before an update that the handlers have triggered themselves (in seconds)."""
        chain = record.selftriggering
        # Do not pause a cycle that has begun, unless it cannot end: its retries have their own delays.
        if chain is None or (record.cycle is not None and not chain.is_within):
            return 0
        pause = self._selftriggers.check(chain, body)
        if pause is None:
            record.watch_selftriggering(None)
        return pause or 0

    def _note_step(self, record: ObjectRecord, decision: Decision, patch: Patch) -> float:
        """Return the pause before the next step of a change that goes on (in seconds)."""
        if decision.reason is not Reason.UPDATE:
            return 0
        triggering, pause = self._selftriggers.note_step(record.selftriggering, decision, patch, record.body)
        record.watch_selftriggering(triggering)
        return pause

    def _end_cycle(
        self, record: ObjectRecord, decision: Decision, patch: Patch, bookkeeping: Patch, *, comparable: bool
    ) -> float:
        """End the cycle of a handled change; return the pause before the next one (in seconds)."""
        # Check this first: if another cycle follows, neither the digest nor the pause is needed.
        record.end_cycle(decision.followup)
        # If the object was edited during its creation, also if that was taken back, the update starts here: after an
        # empty patch, as with storages outside of the object, no event would start it.
        if decision.is_outdated or decision.followup is not None:
            record.requeue()
        if decision.reason not in (Reason.CREATE, Reason.UPDATE):
            return 0
        # Remember missing fields only for objects that no handlers match. For other objects, the stored state reveals
        # which fields were added.
        if decision.relevant:
            record.note_missing_fields(NO_FIELDS)
        record.note_handled(self._find_handled_digest(record, decision))
        triggering, pause = None, 0.0
        if record.cycle is None:
            triggering, pause = self._selftriggers.note(
                record.selftriggering, decision, patch, bookkeeping, record.body, comparable=comparable
            )
        record.watch_selftriggering(triggering)
        return pause

    def _find_handled_digest(self, record: ObjectRecord, decision: Decision) -> str | None:
        # A deleted object needs no digest. Neither does an object with another cycle, which begins with the stored
        # state.
        if record.body is None or record.cycle is not None:
            return None
        return self._decider.find_handled_digest(decision, Body(record.body))

    def _decide(self, record: ObjectRecord, body: Body, patch: Patch, *, holding: bool) -> Decision | None:
        if not self._decider.table.changing and self._decider.is_settled(body, holding=holding):
            return None

        def make_cause(
            *,
            reason: Reason,
            initial: bool,
            old: BodyEssence | None,
            new: BodyEssence | None,
            diff: Diff,
        ) -> ChangingCause:
            return ChangingCause(
                logger=ObjectLogger(body=body, settings=self._settings),
                memo=record.get_memo(self._copy_memo),
                indices=self._indices,
                resource=self._decider.table.resource,
                body=body,
                patch=patch,
                reason=reason,
                initial=initial,
                old=old,
                new=new,
                diff=diff,
                selected=self._decider.table.label_selector is not None,
                # Why a function instead of the flag? Few handlers use the flag, and each flag takes memory.
                deletion=functools.partial(self._host.get_deletion, record),
            )

        failures: filters.Failures = {}
        decision = self._decider.decide(body, record, make_cause, holding=holding, now=utcnow(), failures=failures)
        if failures:
            self._reports.report(
                failures, make_cause(reason=Reason.NOOP, initial=False, old=None, new=None, diff=EMPTY)
            )
        # If a filter has failed, it is unknown whether the object matches, so the fields known from before are kept.
        if not failures and (decision is None or not decision.relevant):
            record.note_missing_fields(self._decider.find_missing_fields(body, make_cause))
        return decision

    async def _handle(
        self, record: ObjectRecord, decision: Decision, patch: Patch, bookkeeping: Patch
    ) -> tuple[bool, float | None]:
        """
        Run the handlers that are due; put their effects into the patch, and their progress into the bookkeeping.

        Returns:
            Whether the cycle is done; and the delay until the next step (in seconds), if only the delay starts it.
        """
        # Why before the handlers? If the object were deleted after its creation handlers but before it has the
        # finalizer, its deletion handlers would not be called to remove the results of the creation handlers.
        if decision.add_finalizer:
            self._add_finalizer(record, decision, patch, bookkeeping)
            return False, None
        if decision.is_interrupted:
            # The records stay: the handlers that have succeeded must not run again when the object matches again.
            complete(record, patch, decision.cause.logger)
            self._release(record, decision, bookkeeping, done=False)
            record.leave_cycle()
            return False, None
        self._begin_cycle(record, decision)
        outcomes = await self._run_due(record, decision, patch)
        deliver_results(outcomes, patch, decision.cause.logger)
        # A handler whose filter has failed may match. If the cycle ended now, that handler would never get the change,
        # even after the filter is fixed.
        done = decision.cycle.state.done(decision.matching) and not decision.incomplete
        if done and decision.reason is Reason.DELETE and not outcomes:
            self._drop_refused_patch(record, decision.cause.logger)
        # This comes after the handlers: their values must override older ones that could not be applied before.
        complete(record, patch, decision.cause.logger)
        if done and _is_held_by_daemons(record, decision):
            # The handlers have finished, but daemons still need the finalizer: the progress must not be purged yet.
            done = False
            # During a pause, it is stored at once: otherwise, the operator that takes over would call the handlers
            # again.
            if outcomes and not patch and not self._workers.paused:
                # Daemons usually end soon. Then one patch is enough, so the progress is not stored now.
                return False, DAEMONS_GRACE
        if done:
            self._log_result(decision, outcomes)
        self._store_progress(record, decision, patch, bookkeeping, done=done)
        return done, None

    def _add_finalizer(self, record: ObjectRecord, decision: Decision, patch: Patch, bookkeeping: Patch) -> None:
        decision.cause.logger.debug("Adding the finalizer, thus preventing the actual deletion.")
        complete(record, patch, decision.cause.logger)
        bookkeeping.fns.append(append_finalizer(self._decider.finalizer))

    def _check_finalizer(self, record: ObjectRecord, *, expected: bool) -> None:
        """
        Check that the API has stored the change of the finalizer. Otherwise, the next step would repeat it at once.

        Raises:
            FinalizerIgnoredError: if it has not.
        """
        raw, finalizer = record.body, self._decider.finalizer
        if raw is None or (expected and raw['metadata'].get('deletionTimestamp') is not None):
            return
        if (finalizer in (raw['metadata'].get('finalizers') or ())) is not expected:
            raise FinalizerIgnoredError(finalizer, added=expected)

    def _begin_cycle(self, record: ObjectRecord, decision: Decision) -> None:
        """Begin the cycle of the decision, or continue it; log the handled change."""
        cause, log, title = decision.cause, decision.cause.logger, TITLES.get(decision.reason)
        if record.cycle is not None and record.cycle is not decision.cycle and title is not None:
            _log_superseded(record.cycle, title, log)
        record.begin_cycle(decision.cycle)
        if decision.reason is Reason.FREE:
            log.debug("It is being deleted, and is not held by this operator any more: there is nothing to do.")
        elif title is None:
            log.debug("Something has changed, but we are not interested (the essence is the same).")
        else:
            log.debug("%s is in progress: %r", title, cause.body)
            if cause.old is not None and cause.diff:
                log.debug("%s diff: %r", title, cause.diff)

    @staticmethod
    def _drop_refused_patch(record: ObjectRecord, log: AnyLogger) -> None:
        """
        Called when the deletion is handled: drop what handlers have requested if it is refused again and again.

        Otherwise, these changes would be sent before the finalizer is removed, and the object could not be deleted
        until they are accepted: a status, for example, that the operator is not permitted to patch.
        """
        is_refused = record.throttle is not None and record.throttle.refusals_of_deletion > 1
        if is_refused and record.pending_patch is not None:
            log.warning("The object is being deleted, so the refused patch is dropped: %r", record.pending_patch)
            record.keep_patch(None)

    async def _run_due(self, record: ObjectRecord, decision: Decision, patch: Patch) -> Mapping[HandlerId, Outcome]:
        """Run the due handlers, and undo their in-place changes of the body."""
        if not decision.due:
            return {}
        step = Step(
            decision.cause,
            decision.cycle.state,
            self._rules,
            self._lifecycle,
            functools.partial(self._workers.must_stop, record),
        )
        # Why one guard for all handlers of the step? The object is serialized only once, and one warning names all
        # handlers.
        guard = BodyGuard(cast(RawBody, record.body))
        try:
            await step.run(decision.due)
        except BaseException as error:  # a cancellation, or an error of the lifecycle
            # `save`, or the next step, stores the results of the handlers that have ended. A cancelled handler can have
            # put only a part of its changes into the patch.
            if step.outcomes or not isinstance(error, asyncio.CancelledError):
                deliver_results(step.outcomes, patch, decision.cause.logger)
                self.keep(record, patch)
            raise
        finally:
            finished = {key for key, outcome in step.outcomes.items() if outcome.final}
            record.note_resumed(self._decider.table.resuming_ids & finished)
        if guard.is_changed:
            self._host.restore(record, guard, step.outcomes)
            self._decider.revert(decision, guard.original)
        return step.outcomes

    def _log_result(self, decision: Decision, outcomes: Mapping[HandlerId, Outcome]) -> None:
        """Log the result of a finished cycle, unless a former step has logged it, and only its patch has failed."""
        title, state = TITLES.get(decision.reason), decision.cycle.state
        if title is None or not (outcomes or not state.unsaved):
            return
        # Also count handlers that ran earlier in the cycle, but do not match any more.
        counts = state.counts(self._decider.table.changing_ids)
        if decision.matching or any(counts):
            decision.cause.logger.info("%s is processed: %d succeeded; %d failed.", title, *counts)

    def _store_progress(
        self, record: ObjectRecord, decision: Decision, patch: Patch, bookkeeping: Patch, *, done: bool
    ) -> None:
        """Put the progress, or the handled state, into the bookkeeping; remove the finalizer if it can be removed."""
        try:
            self._decider.store_progress(decision, patch, bookkeeping, done=done)
            self._decider.records.flush()
        except StorageError:
            # All handlers have finished, and will not request their changes again. So the record must keep the changes
            # that are not applied yet.
            self._applier.keep_unsaved(record, decision, patch, Patch())
            raise
        self._release(record, decision, bookkeeping, done=done)

    def _release(self, record: ObjectRecord, decision: Decision, bookkeeping: Patch, *, done: bool) -> None:
        """Remove the finalizer if it is not needed any more."""
        if decision.reason is Reason.DELETE:
            if not done:
                return
            record.note_deletion_handled()
            decision.cause.logger.debug("Removing the finalizer, thus allowing the actual deletion.")
        elif decision.remove_finalizer:
            decision.cause.logger.debug("Removing the finalizer, as there are no handlers requiring it.")
        else:
            return
        # Why a function? It becomes a JSON patch with a test of the resource version. A merge patch would replace the
        # whole list, and remove finalizers that other controllers have added in the meantime.
        bookkeeping.fns.append(remove_finalizer(self._decider.finalizer))

    async def _remove_former_finalizer(self, record: ObjectRecord) -> float | None:
        """
        Remove the finalizer of a former version of the operator from the object, if it is there.

        Why not together with the patch of the handlers? Each of them can be refused while the other one is permitted.

        Returns:
            The delay until the next attempt (in seconds); ``None`` if there is nothing more to do.
        """
        former, raw, resource = self._former_finalizer, record.body, self._decider.table.resource
        if former is None or raw is None or not former.is_on(record, raw) or self._workers.must_stop(record):
            return None
        logger = make_logger(record, resource, self._settings)
        if not former.begin(record, raw, resource, logger):
            return None
        if pause := former.get_pause(raw):
            return pause
        logger.debug("Removing the finalizer, as there are no handlers requiring it.")
        try:
            with background(not self._workers.is_urgent(record), self._workers.pressure):
                removal = Patch(fns=[remove_finalizer(former.finalizer)])
                is_done, delay = await self._applier.apply(record, None, Patch(), removal)
        except APIForbiddenError as error:
            if error.is_by_admission:
                raise
            former.note_forbidden(record, resource, logger)
            return None
        if is_done and record.body is not None:
            former.note_removed(record, record.body)
        return delay

    def _find_delay(self, record: ObjectRecord, decision: Decision) -> float | None:
        """Return the delay until the next handler is due (in seconds); requeue the object if a handler is due now."""
        delay = decision.cycle.state.delay(decision.matching, utcnow())
        if delay is None:
            return None
        # Why not a timer with a zero delay? The worker would end, and the object would be queued once more.
        if delay <= 0:
            record.requeue()
            return None
        decision.cause.logger.debug("Sleeping for %s seconds for the delayed handlers.", delay)
        return delay

    async def save(self, record: ObjectRecord) -> None:
        """
        Store progress and patches that are only in memory yet on the object, without running any handlers.

        Raises:
            APIUnservedError: if the API does not serve the resource now.
            APIConflictError: if other clients change the object faster than it can be patched.
        """
        for delay in CONFLICT_DELAYS:
            if record.body is None or not record.in_memory_only or record.unverified:
                return
            record.cancel_wakeup()
            record.cancel_requeue()  # otherwise, a refused patch would be kept for the next step, but no step follows
            await self._save(record, record.body)
            if not record.outdated or record.body is None:
                return
            # Other clients keep changing the object. Try it until it succeeds, because no event will start another
            # attempt.
            await asyncio.sleep(delay)
            await self._applier.reload(record, record.body)
        raise APIConflictError("the object changes faster than it can be patched", status=409)

    async def _save(self, record: ObjectRecord, raw: RawBody) -> None:
        body = Body(raw)
        patch, bookkeeping = Patch(body=body), Patch()
        holding = self._host.spawner is not None and self._host.spawner.plan(record, raw).holding
        decision = self._decide(record, body, patch, holding=holding) if self._managing else None
        # Only the cycle whose handlers have run is stored. Newer changes are not: the next operator detects them, or
        # this one after the pause.
        if decision is not None and decision.cycle is record.cycle:
            decision.hold_back()
            try:
                await self._handle(record, decision, patch, bookkeeping)
            finally:
                # This is set before the request, so that it is sent only once in a pause: later, another operator can
                # handle the object.
                if self._decider.is_external and decision.cycle.external is None:
                    decision.cycle.note_external(self._decider.look_up(body, decision.cycle))
        else:
            decision = None
            complete(record, patch, make_logger(record, self._decider.table.resource, self._settings, ObjectLogger))
        if patch or bookkeeping:
            is_done, _ = await self._applier.apply(record, decision, patch, bookkeeping)
            if not is_done and not record.outdated and not record.unverified:
                if record.requeued:
                    raise APIConflictError("the object has changed meanwhile", status=409)
                raise APIUnservedError("the resource is not served", status=404)


def _tell_decision(decision: Decision, instruments: Instruments, record: ObjectRecord, resource: Resource) -> None:
    """Report the decision to the instruments that follow the step, or that join it now."""
    activity, carried = get_current_activity(), None
    for state in decision.cycle.state.values():
        if state.carried is not None:
            carried = state.carried
            break
    if type(activity) is Unsampled:  # the usual case in production, for each decision
        if carried is None:
            return
        activity = activity.rejoin(carried, instruments, get_key(record, resource))
    if isinstance(activity, ObjectStep):
        activity.decide(decision.reason.value, [handler.id for handler in decision.due], carried)


def _count_patches(record: ObjectRecord) -> float:
    """Return how many patches of daemons the object has got; NaN, which equals nothing, if one is in flight."""
    if record.daemons is None:
        return 0
    return math.nan if record.daemons.is_patching else record.daemons.patches


def _is_vain(record: ObjectRecord, patch: Patch) -> bool:
    """
    Check whether the patch would change nothing in the newest known state.

    Handlers of raw events often set the same values for each event. Where a webhook or a policy writes something new at
    each update, even such patches would bring the next event.
    """
    known = record.body
    return known is not None and not record.outdated and not patch.fns and is_merged(dict(patch), known)


def _is_held_by_daemons(record: ObjectRecord, decision: Decision) -> bool:
    return decision.reason is Reason.DELETE and record.daemons is not None and record.daemons.holding


def _log_superseded(cycle: Cycle, title: str, log: AnyLogger) -> None:
    """Log that another change has ended the cycle early."""
    former_title = TITLES.get(Reason(cycle.state.purpose or Reason.NOOP))
    succeeded, failed = (sum(getattr(old, name) for old in cycle.state.values()) for name in ('success', 'failure'))
    log.info(
        "%s is superseded by %s: %d succeeded; %d failed; %d left to the moment.",
        former_title,
        title.lower(),
        succeeded,
        failed,
        len(cycle.state) - succeeded - failed,
    )
