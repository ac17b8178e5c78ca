"""
Processing the events of one resource: from an event received to the object at rest.

An event costs nothing but a look if there is nothing to be done about it. Otherwise the object gets a worker: a task
that exists only while there is work, and that takes the newest state each time it goes on. After our own patch, it
goes on with the state that the patch has returned; the echo of the patch in the stream is recognised by its version.
A delayed retry holds no worker: it is a timer, and the record of the object.
"""

import asyncio
import copy
import functools
from collections.abc import Collection, Mapping, Set
from typing import Any, cast

from kopf._cogs.aiokits.waiters import ReasonedFlag
from kopf._cogs.clients.api import ApiClient
from kopf._cogs.clients.pacing import background
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.bodies import Body, BodyEssence, RawBody, RawEvent
from kopf._cogs.structs.credentials import LoginError
from kopf._cogs.structs.diffs import EMPTY, Diff
from kopf._cogs.structs.finalizers import append_finalizer, remove_finalizer
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.patches import Patch
from kopf._cogs.structs.seals import Seal
from kopf._core.actions.execution import ErrorsMode, Execution, run_handler, utcnow
from kopf._core.actions.lifecycles import LifeCycleFn
from kopf._core.actions.loggers import LocalObjectLogger, ObjectLogger
from kopf._core.actions.progression import HandlerState
from kopf._core.engines.handling import Step
from kopf._core.engines.spawning import Spawner
from kopf._core.engines.stoppers import DaemonStoppingReason
from kopf._core.intents import filters
from kopf._core.intents.causes import ChangingCause, Reason, WatchingCause
from kopf._core.intents.decisions import NO_FIELDS, TITLES, Decider, Decision, deliver_results, is_delivered
from kopf._core.intents.registries import HandlerTable
from kopf._core.intents.storing import StorageError
from kopf._core.reactor import echoes
from kopf._core.reactor.applying import Applier, complete
from kopf._core.reactor.intake import ObjectSink
from kopf._core.reactor.inventory import ObjectRecord, get_api_version, is_deleted, make_logger
from kopf._core.reactor.selftriggers import SelfTriggering
from kopf._core.reactor.throttling import Throttling
from kopf._core.reactor.watches import ResourceWatch
from kopf._core.reactor.workforce import Workforce

DAEMONS_GRACE = 1.0
"""For how long the progress of a deletion is only remembered, not stored, as the daemons end soon (in seconds)."""

MAX_STEPS = 1000
"""After so many steps without a pause, something must be wrong: the object is throttled."""


class Processor(ObjectSink):
    """Processes the events of all the objects of one resource."""

    def __init__(
        self,
        *,
        client: ApiClient,
        settings: OperatorSettings,
        table: HandlerTable,
        workforce: Workforce,
        lifecycle: LifeCycleFn,
        memo: Any,
        indices: Mapping[str, Any],
    ) -> None:
        self.table = table
        self._settings = settings
        self._workforce = workforce
        self._lifecycle = lifecycle
        self._memo = memo
        self._indices = indices
        self._decider = Decider(table, settings.persistence)
        self._applier = Applier(client, settings, self._decider)
        self._throttling = Throttling(settings, self._decider)
        self._rules = Execution(
            executor=settings.execution.executor, default_backoff=settings.execution.default_backoff
        )
        self._lenient_rules = Execution(executor=settings.execution.executor, default_errors=ErrorsMode.IGNORED)
        self._observing, self._managing = bool(table.watching), table.managing
        self._told: set[HandlerId] = set()
        self._looping: set[frozenset[HandlerId]] = set()
        self._reports = filters.FailureReports()
        self._dropped = False
        self._known: Set[str] = frozenset()  # the uids of the objects that were there before the operator has paused
        self._successor: Processor | None = None
        self._api_version = get_api_version(table.resource)
        self._spawner: Spawner | None = None
        if table.spawning:
            self._spawner = Spawner(self, table, self._decider, workforce.background, indices)

    @property
    def requesting(self) -> bool:
        return self.table.managing

    @property
    def arguments(self) -> frozenset[str] | None:
        return self.table.arguments

    # Receiving: in the watch, without waiting.

    def receive(self, record: ObjectRecord, event: RawEvent, *, listed_since: float | None) -> None:
        """Take the next event of an object: remember it for the worker, or see that there is no work."""
        if self._successor is not None:
            self._successor.receive(record, event, listed_since=listed_since)
            return
        if listed_since is not None:
            echoes.notice_list(record, since=listed_since)
        if record.daemons is not None:
            record.daemons.renew(event['object'], asked_at=listed_since)
            if record.daemons.gone and event['type'] != 'DELETED':
                record.daemons.return_()
            if is_deleted(event):
                self._workforce.background.deletions.announce(record)
                record.daemons.stop(DaemonStoppingReason.RESOURCE_DELETED)  # the worker can be busy for long
        elif record.has_worker and is_deleted(event):
            self._workforce.background.deletions.announce(record)
        if self._workforce.paused and not self._is_kept_for_later(record, event):
            return
        if not record.has_worker and not record.throttled and not self._needs_work(record, event):
            return
        record.put_pending(event)
        if not record.throttled:
            self._workforce.start(self, record, urgent=listed_since is None)
        else:
            delay = self._throttling.hasten(record, event, is_stale=lambda: self._sift(record, event))
            if delay is not None:
                self._wake_later(record, delay)

    def _is_kept_for_later(self, record: ObjectRecord, event: RawEvent) -> bool:
        """
        Check whether an event that comes while the operator is paused is to be handled after that.

        All objects are listed again then, so only the deletions of those that the handlers know are to be remembered.
        Those that come meanwhile are as if they were there before the operator, also if others have handled them.
        """
        if record.uid in self._known:
            return event['type'] == 'DELETED'
        record.mark_initial()
        return False

    def paused(self, watch: ResourceWatch) -> None:
        """Remember which objects the handlers know, so as to report their deletions."""
        self._known = {record.uid for record in watch.get_known()}

    def resumed(self, watch: ResourceWatch) -> None:
        """Forget what has been known and planned: others could have handled it, only the objects themselves tell."""
        for record in watch.records.values():  # not those that are gone: that is still to be reported
            record.forget_plans()
        self._known = frozenset()

    def revise(self, table: HandlerTable) -> None:
        """Go on with the resource as it is defined now: with other subresources, for example, but the same handlers."""
        self.table = table
        self._decider.revise(table)
        if self._spawner is not None:
            self._spawner.table = table

    def dropped(self, watch: ResourceWatch) -> None:
        """There are no objects to process any more; or others do that. What has begun may finish its step."""
        self._dropped = True
        for record in watch.get_known():
            record.abandon()
            if record.daemons is not None:
                record.daemons.forget()

    def released(self, watch: ResourceWatch) -> None:
        """Break what refers to each other: kinds and namespaces come and go, and nobody else would free it soon."""
        self._spawner = None
        for record in watch.get_known():
            if record.daemons is not None and not record.daemons.alive:
                record.detach_daemons()

    @property
    def processor(self) -> 'Processor':
        return self

    def retire(self, successor: ObjectSink, records: Collection[ObjectRecord]) -> None:
        """Let another processor go on with the objects: with those that are worked on, when their step has ended."""
        self._dropped, self._successor = True, successor.processor
        self._successor.take_over(self, records)

    def take_over(self, predecessor: 'Processor', records: Collection[ObjectRecord]) -> None:
        redefined = predecessor.table.resource != self.table.resource
        for record in records:
            record.change_hands(redefined=redefined)
            if record.daemons is not None:
                if self._spawner is None:
                    record.daemons.forget()
                else:
                    record.daemons.move(self._spawner, redefined=redefined)

    def _needs_work(self, record: ObjectRecord, event: RawEvent) -> bool:
        if not self._observing and not self._managing:
            return False
        if self._observing or record.body is not None or record.cycle is not None or event['type'] == 'DELETED':
            return True
        if not self._managing or self._sift(record, event):
            return False
        return not self._is_settled(record, event['object'])

    def _is_settled(self, record: ObjectRecord, raw: RawBody) -> bool:
        if record.initial and self.table.resuming_ids:
            return False
        holding = False
        try:
            if self._spawner is not None:
                survey = self._spawner.survey(record, raw)
                if survey.missing or survey.excess or survey.failures:
                    return False
                holding = survey.holding
            return self._decider.is_settled(Body(raw), holding=holding, handled_digest=record.handled_digest)
        except Exception:  # of filters or storages; it is reported, and retried, where the object is handled
            return False

    def _sift(self, record: ObjectRecord, event: RawEvent) -> bool:
        return echoes.sift(record, event, self._receive_again)

    def _receive_again(self, record: ObjectRecord, event: RawEvent) -> None:
        self.receive(record, event, listed_since=None)

    # Working: one task an object.

    async def work(self, record: ObjectRecord) -> None:
        """Do all there is to do about the object now."""
        if self._successor is not None:
            await self._successor.work(record)
            return
        steps = 0
        while record.has_work and not self._workforce.halted and not self._dropped:
            if steps and record.pending is not None and self._workforce.is_crowded:
                return  # whatever changes all the time must not keep the place for ever
            event = record.take_pending()
            steps = 1 if event is not None else steps + 1
            try:
                if steps > MAX_STEPS:
                    raise RuntimeError(f"The object does not come to rest in {MAX_STEPS} steps.")
                await self._process(record, event)
            except LoginError:
                raise
            except Exception as error:
                self._wake_later(record, self._throttling.fail(record, error))
                return
            self._throttling.succeed(record)
        if self._has_successor():
            return  # the record goes there as it is
        if self._dropped:
            record.discard_work()
        if record.wakeup is None and record.cycle is None and record.pending_patch is None:
            record.drop_body()

    async def _process(self, record: ObjectRecord, event: RawEvent | None) -> None:
        requeued = record.take_requeue()
        if event is None:
            if record.body is not None and (record.outdated or self._is_foreign(record.body)):
                await self._applier.reload(record, record.body)
            if record.body is not None:
                await self._step(record, Patch(body=Body(record.body)), deciding=True)
            return
        body = Body(event['object'])
        patch = Patch(body=body)
        if self._observing:
            seal = Seal(event['object']) if self._managing else None
            await self._observe(record, event, body, patch)
            if seal is not None and seal.is_broken:
                self.restore(record, seal, [handler.id for handler in self.table.watching])
                event = {**event, 'object': seal.original}
                body._replace_with(event['object'])
        if event['type'] == 'DELETED':
            await self._save_before_forgetting(record, event)
            self._forget(record, event, body)
            return
        if not self._managing and not patch and record.body is None:
            return
        stale = self._sift(record, event)
        if not stale:
            record.accept(event['object'])
        elif record.body is not None and self._is_foreign(record.body):
            await self._applier.reload(record, record.body)
        if patch or requeued or not stale:
            deciding = record.body is not None
            record.adopt(event['object'])
            await self._step(record, patch, deciding=deciding)

    def _has_successor(self) -> bool:
        return self._successor is not None

    def _is_foreign(self, raw: RawBody) -> bool:
        """Check whether the object is in another version of the resource: from a patch of the former processor."""
        return raw.get('apiVersion', self._api_version) != self._api_version

    async def _observe(self, record: ObjectRecord, event: RawEvent, body: Body, patch: Patch) -> None:
        """Run the handlers of raw events."""
        local = LocalObjectLogger(body=body, settings=self._settings)
        cause = WatchingCause(
            logger=local,
            memo=record.get_memo(self._copy_memo),
            indices=self._indices,
            resource=self.table.resource,
            body=body,
            patch=patch,
            event=event,
            selected=self.table.label_selector is not None,
        )
        for handler in self.table.watching:
            try:
                matching = filters.prematch(handler, cause)
            except filters.FilterError as error:
                self._reports.report({handler: error}, cause)
                continue
            if matching:
                state = HandlerState(started=utcnow())
                outcome = (await run_handler(handler, cause, state, self._lenient_rules)).without_exception()
                # Usually, the same is returned for each event: it is stored once.
                if outcome.result is not None and not is_delivered(outcome.result, body.status.get(handler.id)):
                    deliver_results({handler.id: outcome}, patch)

    def _forget(self, record: ObjectRecord, event: RawEvent, body: Body) -> None:
        if self._managing:
            ObjectLogger(body=body, settings=self._settings).debug("Deleted, really deleted, and we are notified.")
        record.cancel_wakeup()
        record.forget_state()
        echoes.outlive(record, event)
        if record.daemons is not None:
            record.daemons.forget()

    async def _step(self, record: ObjectRecord, patch: Patch, *, deciding: bool) -> None:
        """Do one step about the newest state of the object, and apply what comes of it in one patch."""
        record.cancel_wakeup()
        holding = False
        if deciding and self._spawner is not None:
            holding = await self._spawner.adjust(record, cast(RawBody, record.body))
            record.cancel_requeue()  # those that have just ended are taken into account
        body = Body(cast(RawBody, record.body))
        pause = self._get_pause(record, body) if deciding else 0
        deciding_now = deciding and self._managing and not pause
        decision = self._decide(record, body, patch, holding=holding) if deciding_now else None
        conclusion = Patch()
        done = True
        if decision is not None:
            done = await self._handle(record, decision, patch, conclusion)
        else:
            complete(record, patch, make_logger(record, self.table.resource, self._settings, ObjectLogger))
        if patch or conclusion:
            with background(not self._workforce.is_urgent(record), self._workforce.crowd):
                applied, delay = await self._applier.apply(record, decision, patch, conclusion)
            if delay is not None and record.wakeup is None:
                self._wake_later(record, delay)
            if not applied:
                return
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
                    pause = self._notice_trigger(record, decision, patch)
            elif not record.requeued and record.body is not None:
                self._sleep(record, decision)
        if pause:
            record.cancel_requeue()
            self._wake_later(record, pause)
        elif record.requeued and record.cycle is None and self._is_settled(record, cast(RawBody, record.body)):
            record.cancel_requeue()

    def _get_pause(self, record: ObjectRecord, body: Body) -> float:
        """Return for how long (in seconds) the object is not to be updated, as its handlers cause that themselves."""
        triggering = record.selftriggering
        if triggering is None or record.cycle is not None:
            return 0
        if body['metadata'].get('deletionTimestamp') is not None or triggering.is_over(self._decider.essences.of(body)):
            record.watch_selftriggering(None)
            return 0
        return triggering.get_pause()

    def _notice_trigger(self, record: ObjectRecord, decision: Decision, patch: Patch) -> float:
        """Notice updates that follow the handlers' own patches; return the pause before the next one (in seconds)."""
        changes = self._decider.find_own_changes(decision, patch, record.body) if record.cycle is None else EMPTY
        if not changes:
            record.watch_selftriggering(None)
            return 0
        triggering = record.selftriggering or SelfTriggering()
        record.watch_selftriggering(triggering)
        pause = triggering.note(self._decider.essences.of(Body(cast(RawBody, record.body))))
        keys = frozenset(handler.id for handler in decision.matching)
        if pause and keys not in self._looping:
            self._looping.add(keys)
            fields = ', '.join(dict.fromkeys('.'.join(item.field) for item in changes))
            make_logger(record, self.table.resource, self._settings, ObjectLogger).warning(
                "%s changes the object by its own patch (%s), and is called for this change again: by now, %d times "
                "in a row. From now on, there are growing pauses between the calls, until another client edits the "
                "object. Store results in the status, or change a field only if it is not as wanted yet.",
                ", ".join(f"Handler {key!r}" for key in sorted(keys)),
                fields,
                triggering.count,
            )
        return pause

    def _find_handled_digest(self, record: ObjectRecord, decision: Decision) -> str | None:
        # It is gone, or another cycle goes on with what is stored of this one.
        if record.body is None or record.cycle is not None:
            return None
        return self._decider.find_handled_digest(decision, Body(record.body))

    def _decide(self, record: ObjectRecord, body: Body, patch: Patch, *, holding: bool) -> Decision | None:
        if not self.table.changing and self._decider.is_settled(body, holding=holding):
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
                resource=self.table.resource,
                body=body,
                patch=patch,
                reason=reason,
                initial=initial,
                old=old,
                new=new,
                diff=diff,
                selected=self.table.label_selector is not None,
                deletion=functools.partial(self.get_deletion, record),
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

    async def _handle(self, record: ObjectRecord, decision: Decision, patch: Patch, conclusion: Patch) -> bool:
        """Run what is due; put its effects into the patch, and its success into the conclusion; tell if all is done."""
        cause, log, state = decision.cause, decision.cause.logger, decision.cycle.state
        title = TITLES.get(decision.reason)
        if decision.add_finalizer:
            log.debug("Adding the finalizer, thus preventing the actual deletion.")
            complete(record, patch, log)
            conclusion.fns.append(append_finalizer(self._decider.finalizer))
            return False
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
            seal = Seal(cast(RawBody, record.body))
            try:
                await step.run(decision.due)
            except asyncio.CancelledError:
                self._keep_outcomes(record, step, patch)
                raise
            if seal.is_broken:
                self.restore(record, seal, step.outcomes)
                self._decider.revert(decision, seal.original)
        deliver_results(step.outcomes, patch)
        complete(record, patch, log)
        done = state.done(decision.matching) and not decision.incomplete
        if done and decision.reason is Reason.DELETE and record.daemons is not None and record.daemons.holding:
            done = False  # what is done must not be forgotten while the object waits for its daemons
            if step.outcomes and not patch and not self._workforce.paused:
                # They usually end soon, and then one patch is enough.
                self._wake_later(record, DAEMONS_GRACE)
                return False
        if done and title is not None and (step.outcomes or not state.unsaved):
            counts = state.counts(self.table.changing_ids)  # those that match no more by now have been run, too
            if decision.matching or any(counts):
                log.info("%s is processed: %d succeeded; %d failed.", title, *counts)
        try:
            self._decider.conclude(decision, patch, conclusion, done=done)
            self._decider.records.flush()
        except StorageError:
            self._applier.keep_unsaved(record, decision, patch, Patch())
            raise
        self._release(record, decision, conclusion, done=done)
        return done

    def _keep_outcomes(self, record: ObjectRecord, step: Step, patch: Patch) -> None:
        """Remember what those have wanted that have ended before the step was cancelled: it is stored in the end."""
        if step.outcomes:
            deliver_results(step.outcomes, patch)
            complete(record, patch, step.cause.logger)
            record.keep_patch(patch)

    async def save(self, record: ObjectRecord) -> None:
        """Store what is only remembered of the object, without running any handlers."""
        if self._successor is not None:
            await self._successor.save(record)
            return
        if record.body is None or not record.in_memory_only:
            return
        record.cancel_wakeup()
        body = Body(record.body)
        patch, conclusion = Patch(body=body), Patch()
        holding = self._spawner is not None and self._spawner.survey(record, record.body).holding
        decision = self._decide(record, body, patch, holding=holding) if self._managing else None
        if decision is not None and decision.cycle is record.cycle:
            decision.hold_back()
            await self._handle(record, decision, patch, conclusion)
        else:
            decision = None
            complete(record, patch, make_logger(record, self.table.resource, self._settings, ObjectLogger))
        if patch or conclusion:
            await self._applier.apply(record, decision, patch, conclusion)

    async def _save_before_forgetting(self, record: ObjectRecord, event: RawEvent) -> None:
        """The object can have left the selection of the watch only: then it is still there, and can come back."""
        if record.in_memory_only and event['object']['metadata'].get('deletionTimestamp') is None:
            try:
                await self.save(record)
            except LoginError:
                raise
            except Exception as error:
                make_logger(record, self.table.resource, self._settings).error(
                    "The object is gone, and what its handlers have come to can't be stored: %r", error
                )

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

    def _sleep(self, record: ObjectRecord, decision: Decision) -> None:
        """Wake up when the next handler is due; nothing is held meanwhile."""
        delay = decision.cycle.state.delay(decision.matching, utcnow())
        if delay is None:
            return
        if delay <= 0:
            record.requeue()
            return
        decision.cause.logger.debug("Sleeping for %s seconds for the delayed handlers.", delay)
        self._wake_later(record, delay)

    def _wake_later(self, record: ObjectRecord, delay: float) -> None:
        record.wake_by(asyncio.get_running_loop().call_later(delay, self._wake, record))

    def _wake(self, record: ObjectRecord) -> None:
        if self._successor is not None:
            self._successor._wake(record)
            return
        record.wake()
        if record.body is not None or record.pending is not None:
            record.requeue()
            self._workforce.start(self, record)

    # Hosting the daemons.

    def get_memo(self, record: ObjectRecord) -> Any:
        return record.get_memo(self._copy_memo)

    def get_deletion(self, record: ObjectRecord) -> ReasonedFlag[DaemonStoppingReason]:
        """Return the flag that is raised when the object is to be deleted, for those who run meanwhile."""
        return self._workforce.background.deletions.get_flag(record, raised=record.is_being_deleted)

    async def send(self, record: ObjectRecord, patch: Patch) -> None:
        """Apply a patch of a daemon to the freshest state of the object."""
        await self._applier.apply_of_daemon(record, patch, is_settled=self._is_settled, resume=self.wake)

    def restore(self, record: ObjectRecord, seal: Seal, keys: Collection[HandlerId]) -> None:
        """Forget what these handlers have changed in place, and tell of it: nobody else must see it."""
        self.tell_of_changes(record, seal.explain(), keys)
        if record.body is seal.raw:
            record.restore(seal.original)

    def tell_of_changes(self, record: ObjectRecord, explanation: str, keys: Collection[HandlerId]) -> None:
        """Warn once that these handlers have changed the object in place, which is undone."""
        if not self._told.issuperset(keys):
            self._told.update(keys)
            log = make_logger(record, self.table.resource, self._settings)
            log.warning("%s: %s", ", ".join(f"Handler {key!r}" for key in keys), explanation)

    def wake(self, record: ObjectRecord) -> None:
        """Look at the object again, event or not."""
        if self._successor is not None:
            self._successor.wake(record)
            return
        if self._dropped:
            return
        if record.body is None:
            record.accept(record.daemons.stash.copy())
        record.requeue()
        if not record.throttled:
            self._workforce.start(self, record, at_once=False)  # whoever has ended, can be in the middle of receiving

    def fail(self, error: Exception) -> None:
        self._workforce.fail(error)

    def _copy_memo(self) -> Any:
        return copy.copy(self._memo)
