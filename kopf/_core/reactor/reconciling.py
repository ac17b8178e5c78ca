"""
The steps of an object towards its rest: look, decide, run what is due, apply what comes of it in one patch.

A step begins with the newest state known, and ends with the state that its patch has returned, so that the next step
needs no event. A step waits for nothing but the API and the handlers: it says when the next one is due, and ends.
"""

import asyncio
import functools
from typing import cast

from kopf._cogs.clients.pacing import background
from kopf._cogs.structs.bodies import Body, BodyEssence, RawBody, RawEvent
from kopf._cogs.structs.body_guards import BodyGuard
from kopf._cogs.structs.diffs import EMPTY, Diff
from kopf._cogs.structs.finalizers import append_finalizer, remove_finalizer
from kopf._cogs.structs.patches import Patch
from kopf._core.actions.execution import ErrorsMode, Execution, run_handler, utcnow
from kopf._core.actions.handler_states import HandlerState
from kopf._core.actions.loggers import LocalObjectLogger, ObjectLogger
from kopf._core.engines.changing import Step
from kopf._core.intents import filters
from kopf._core.intents.causes import ChangingCause, Reason, WatchingCause
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.decisions import NO_FIELDS, TITLES, Decider, Decision, deliver_results, is_delivered
from kopf._core.intents.storage_errors import StorageError
from kopf._core.reactor.applying import Applier, complete
from kopf._core.reactor.hosting import ObjectHost
from kopf._core.reactor.object_records import ObjectRecord, make_logger
from kopf._core.reactor.selftriggers import SelfTriggers
from kopf._core.reactor.workers import WorkerPool

DAEMONS_GRACE = 1.0
"""For how long the progress of a deletion is only remembered, not stored, as the daemons end soon (in seconds)."""


class Reconciler:
    """Brings the objects of one resource to rest, step by step."""

    def __init__(
        self,
        *,
        context: OperatorContext,
        decider: Decider,
        applier: Applier,
        host: ObjectHost,
        workers: WorkerPool,
    ) -> None:
        self._settings = settings = context.settings
        self._decider = decider
        self._applier = applier
        self._host = host
        self._workers = workers
        self._lifecycle = context.lifecycle
        self._indices = context.indices
        self._managing = decider.table.managing
        self._rules = Execution(
            executor=settings.execution.executor, default_backoff=settings.execution.default_backoff
        )
        self._lenient_rules = Execution(executor=settings.execution.executor, default_errors=ErrorsMode.IGNORED)
        self._selftriggers = SelfTriggers(settings, decider)
        self._watching_is_distinct = filters.are_distinct(decider.table.watching)  # the same after a revision
        self._reports = filters.FailureReports()

    def is_settled(self, record: ObjectRecord, raw: RawBody) -> bool:
        """Check whether there is nothing to be done about the object in this state."""
        if record.initial and self._decider.table.resuming_ids:
            return False
        holding = False
        try:
            if self._host.spawner is not None:
                survey = self._host.spawner.survey(record, raw)
                if survey.missing or survey.excess or survey.failures:
                    return False
                holding = survey.holding
            return self._decider.is_settled(Body(raw), holding=holding, handled_digest=record.handled_digest)
        except Exception:  # of filters or storages; it is reported, and retried, where the object is handled
            return False

    async def observe(self, record: ObjectRecord, event: RawEvent, body: Body, patch: Patch) -> RawEvent:
        """Run the handlers of raw events; return the event as it was before they could change it in place."""
        guard = BodyGuard(event['object']) if self._managing else None
        local = LocalObjectLogger(body=body, settings=self._settings)
        cause = WatchingCause(
            logger=local,
            memo=self._host.get_memo(record),
            indices=self._indices,
            resource=self._decider.table.resource,
            body=body,
            patch=patch,
            event=event,
            selected=self._decider.table.label_selector is not None,
        )
        called: set[tuple[int, str]] = set()
        for handler in self._decider.table.watching:
            try:
                matching = filters.prematch(handler, cause)
            except filters.FilterError as error:
                self._reports.report({handler: error}, cause)
                continue
            if matching and not self._watching_is_distinct:
                key = (id(handler.fn), handler.id)
                matching = key not in called  # a function that is declared with several filters is called once
                called.add(key)
            if matching:
                state = HandlerState(started=utcnow())
                outcome = (await run_handler(handler, cause, state, self._lenient_rules)).without_exception()
                # Usually, the same is returned for each event: it is stored once.
                if outcome.result is not None and not is_delivered(outcome.result, body.status.get(handler.id)):
                    deliver_results({handler.id: outcome}, patch)
        if guard is not None and guard.is_changed:
            self._host.restore(record, guard, [handler.id for handler in self._decider.table.watching])
            event = {**event, 'object': guard.original}
            body._replace_with(event['object'])
        return event

    def hold_back(self, record: ObjectRecord, patch: Patch, body: Body, *, own: bool, requeued: bool) -> float:
        """
        Remember the patch of the handlers of raw events for later if they trigger themselves.

        Args:
            record: the object.
            patch: what the handlers want to be changed.
            body: the object as it is in the event.
            own: whether the event is of our own patch, or was before it.
            requeued: whether the object is to be looked at, whatever the event is.

        Returns:
            The delay until the patch is to be sent (in seconds); zero if it is not held back.
        """
        pause = self._selftriggers.note_event(record, patch, body, own=own)
        if not pause:
            return 0
        record.adopt(cast(RawBody, body._data()))
        if requeued and not (record.cycle is None and self.is_settled(record, cast(RawBody, record.body))):
            return 0  # there is other work, which must not wait
        complete(record, patch, make_logger(record, self._decider.table.resource, self._settings, ObjectLogger))
        record.keep_patch(patch)
        return pause

    async def step(self, record: ObjectRecord, patch: Patch, *, deciding: bool) -> float | None:
        """
        Do one step about the newest state of the object, and apply what comes of it in one patch.

        Returns:
            The delay until the next step (in seconds); ``None`` if only an event, or the requeued object, needs one.
        """
        record.cancel_wakeup()
        holding = False
        if deciding and self._host.spawner is not None:
            holding = await self._host.spawner.adjust(record, cast(RawBody, record.body))
            record.cancel_requeue()  # those that have just ended are taken into account
        body = Body(cast(RawBody, record.body))
        pause = self._selftriggers.check(record, body) if deciding else 0
        deciding_now = deciding and self._managing and not pause
        decision = self._decide(record, body, patch, holding=holding) if deciding_now else None
        conclusion = Patch()
        done, delay = True, None
        if decision is not None:
            done, delay = await self._handle(record, decision, patch, conclusion)
        else:
            complete(record, patch, make_logger(record, self._decider.table.resource, self._settings, ObjectLogger))
        if patch or conclusion:
            with background(not self._workers.is_urgent(record), self._workers.pressure):
                applied, retry_delay = await self._applier.apply(record, decision, patch, conclusion)
            if not applied:
                return retry_delay
        record.keep_patch(None)
        if decision is None and deciding:
            record.leave_cycle()
        elif decision is not None and not decision.add_finalizer:
            if done:
                record.end_cycle(decision.followup)
                # An update follows an edited creation, also if there was nothing to be stored, and so no event comes.
                if decision.is_outdated:
                    record.requeue()
                if decision.reason in (Reason.CREATE, Reason.UPDATE):
                    if decision.relevant:
                        record.note_missing_fields(NO_FIELDS)
                    record.note_handled(self._find_handled_digest(record, decision))
                    pause = self._selftriggers.note(record, decision, patch, conclusion)
            elif not record.requeued and record.body is not None:
                delay = self._find_delay(record, decision) or delay
        if pause:
            record.cancel_requeue()
            return pause
        if record.requeued and record.cycle is None and self.is_settled(record, cast(RawBody, record.body)):
            record.cancel_requeue()
        return delay

    def _find_handled_digest(self, record: ObjectRecord, decision: Decision) -> str | None:
        # It is gone, or another cycle goes on with what is stored of this one.
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
                memo=self._host.get_memo(record),
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
                deletion=functools.partial(self._host.get_deletion, record),
            )

        failures: filters.Failures = {}
        decision = self._decider.decide(
            body,
            record.cycle,
            make_cause,
            initial=record.initial,
            deletion_handled=record.deletion_handled,
            holding=holding,
            now=utcnow(),
            handled_digest=record.handled_digest,
            missing_fields=record.missing_fields,
            failures=failures,
        )
        if failures:
            self._reports.report(
                failures, make_cause(reason=Reason.NOOP, initial=False, old=None, new=None, diff=EMPTY)
            )
        if not failures and (decision is None or not decision.relevant):
            record.note_missing_fields(self._decider.find_missing_fields(body, make_cause))
        return decision

    async def _handle(
        self, record: ObjectRecord, decision: Decision, patch: Patch, conclusion: Patch
    ) -> tuple[bool, float | None]:
        """
        Run what is due; put its effects into the patch, and its success into the conclusion.

        Returns:
            Whether all is done; and the delay until the next step (in seconds), if there is no other reason for one.
        """
        cause, log, state = decision.cause, decision.cause.logger, decision.cycle.state
        title = TITLES.get(decision.reason)
        if decision.add_finalizer:
            log.debug("Adding the finalizer, thus preventing the actual deletion.")
            complete(record, patch, log)
            conclusion.fns.append(append_finalizer(self._decider.finalizer))
            return False, None
        if record.cycle is not None and record.cycle is not decision.cycle and title is not None:
            old_title = TITLES.get(Reason(record.cycle.state.purpose or Reason.NOOP))
            succeeded, failed = (
                sum(getattr(old, name) for old in record.cycle.state.values()) for name in ('success', 'failure')
            )
            log.info(
                "%s is superseded by %s: %d succeeded; %d failed; %d left to the moment.",
                old_title,
                title.lower(),
                succeeded,
                failed,
                len(record.cycle.state) - succeeded - failed,
            )
        record.begin_cycle(decision.cycle)
        step = Step(cause, state, self._rules, self._lifecycle)
        if decision.reason is Reason.FREE:
            log.debug("It is being deleted, and is not held by this operator any more: there is nothing to do.")
        elif title is None:
            log.debug("Something has changed, but we are not interested (the essence is the same).")
        else:
            log.debug("%s is in progress: %r", title, cause.body)
            if cause.old is not None and cause.diff:
                log.debug("%s diff: %r", title, cause.diff)
        if decision.due:
            guard = BodyGuard(cast(RawBody, record.body))
            try:
                await step.run(decision.due)
            except asyncio.CancelledError:
                self._keep_outcomes(record, step, patch)
                raise
            if guard.is_changed:
                self._host.restore(record, guard, step.outcomes)
                self._decider.revert(decision, guard.original)
        deliver_results(step.outcomes, patch)
        complete(record, patch, log)
        done = state.done(decision.matching) and not decision.incomplete
        if done and decision.reason is Reason.DELETE and record.daemons is not None and record.daemons.holding:
            done = False  # what is done must not be forgotten while the object waits for its daemons
            if step.outcomes and not patch and not self._workers.paused:
                # They usually end soon, and then one patch is enough.
                return False, DAEMONS_GRACE
        if done and title is not None and (step.outcomes or not state.unsaved):
            counts = state.counts(
                self._decider.table.changing_ids
            )  # those that match no more by now have been run, too
            if decision.matching or any(counts):
                log.info("%s is processed: %d succeeded; %d failed.", title, *counts)
        try:
            self._decider.conclude(decision, patch, conclusion, done=done)
            self._decider.records.flush()
        except StorageError:
            self._applier.keep_unsaved(record, decision, patch, Patch())
            raise
        self._release(record, decision, conclusion, done=done)
        return done, None

    def _keep_outcomes(self, record: ObjectRecord, step: Step, patch: Patch) -> None:
        """Remember what those have wanted that have ended before the step was cancelled: it is stored in the end."""
        if step.outcomes:
            deliver_results(step.outcomes, patch)
            complete(record, patch, step.cause.logger)
            record.keep_patch(patch)

    def _release(self, record: ObjectRecord, decision: Decision, conclusion: Patch, *, done: bool) -> None:
        """Take the finalizer away if it is not needed any more."""
        if decision.reason is Reason.DELETE:
            if not done:
                return
            record.note_deletion_handled()
            decision.cause.logger.debug("Removing the finalizer, thus allowing the actual deletion.")
        elif decision.remove_finalizer:
            decision.cause.logger.debug("Removing the finalizer, as there are no handlers requiring it.")
        else:
            return
        conclusion.fns.append(remove_finalizer(self._decider.finalizer))

    def _find_delay(self, record: ObjectRecord, decision: Decision) -> float | None:
        """Return the delay until the next handler is due (in seconds); requeue the object if that is now."""
        delay = decision.cycle.state.delay(decision.matching, utcnow())
        if delay is None:
            return None
        if delay <= 0:
            record.requeue()
            return None
        decision.cause.logger.debug("Sleeping for %s seconds for the delayed handlers.", delay)
        return delay

    async def save(self, record: ObjectRecord) -> None:
        """Store what is only remembered of the object, without running any handlers."""
        if record.body is None or not record.in_memory_only:
            return
        record.cancel_wakeup()
        body = Body(record.body)
        patch, conclusion = Patch(body=body), Patch()
        holding = self._host.spawner is not None and self._host.spawner.survey(record, record.body).holding
        decision = self._decide(record, body, patch, holding=holding) if self._managing else None
        if decision is not None and decision.cycle is record.cycle:
            decision.hold_back()
            await self._handle(record, decision, patch, conclusion)
        else:
            decision = None
            complete(record, patch, make_logger(record, self._decider.table.resource, self._settings, ObjectLogger))
        if patch or conclusion:
            await self._applier.apply(record, decision, patch, conclusion)
