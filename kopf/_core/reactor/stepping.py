"""
One step of an object: what a worker does with the newest event, or with a request to continue without an event.

This module finds out from which state the step begins, and whether handlers are called at all. `reconciling` does the
rest of the step. After a patch of the operator, the next step continues with the state from the response.
"""

import contextlib
from collections.abc import Coroutine
from time import monotonic
from typing import TYPE_CHECKING, Any

from kopf._cogs.structs.bodies import Body, RawBody, RawEvent
from kopf._cogs.structs.instruments import ObjectStep
from kopf._cogs.structs.patches import Patch
from kopf._core.actions.loggers import ObjectLogger
from kopf._core.intents.causes import LISTED
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.decisions import Decider
from kopf._core.reactor.applying import Applier
from kopf._core.reactor.former_finalizers import FormerFinalizer
from kopf._core.reactor.object_records import ObjectRecord, get_api_version, get_key, was_observed
from kopf._core.reactor.reconciling import Reconciler
from kopf._core.reactor.stale_events import StaleEventFilter

if TYPE_CHECKING:
    from kopf._cogs.structs.meters import ResourceMeter


class ObjectStepper:
    """
    Does the steps of all objects of one resource.

    Args:
        context: what the operator shares.
        decider: decides what to do with an object.
        applier: requests the newest states of objects.
        reconciler: does the rest of each step.
        stale_events: the filter of stale events.
        meter: measures the steps, if there are metrics.
        former_finalizer: the finalizer to be removed; ``None`` if handlers decide on it.
    """

    def __init__(
        self,
        context: OperatorContext,
        *,
        decider: Decider,
        applier: Applier,
        reconciler: Reconciler,
        stale_events: StaleEventFilter,
        meter: 'ResourceMeter | None',
        former_finalizer: FormerFinalizer | None = None,
    ) -> None:
        self._settings = context.settings
        self._instruments = context.instruments
        self._decider = decider
        self._applier = applier
        self._reconciler = reconciler
        self._stale_events = stale_events
        self._former_finalizer = former_finalizer
        self._observing, self._managing = bool(decider.table.watching), decider.table.managing
        self._single = len(decider.table.watching) == 1 and not self._managing
        # Without such handlers, a step calls handlers of raw events, or plans the runs of level-triggered handlers. The
        # former is measured with the worker, and the latter are measured themselves.
        self._meter = meter if self._managing else None
        self._api_version = get_api_version(decider.table.resource)
        self._successor: ObjectStepper | None = None
        self._released = False

    def retire(self, successor: 'ObjectStepper') -> None:
        """Called when another processor takes over the objects; this is its stepper."""
        self._successor = successor

    def release(self) -> None:
        """Called when the objects are not served here any more, e.g. because their kind was deleted."""
        self._released = True

    def step(self, record: ObjectRecord, event: RawEvent | None, *, number: int) -> Coroutine[Any, Any, float | None]:
        """
        Do one step for the object, with the event if there is one.

        Args:
            record: the record of the object.
            event: the newest event; ``None`` if the object is requeued without an event.
            number: the number of steps since the last event.

        Returns:
            The delay until the next step (in seconds); ``None`` if no step is planned.
        """
        if self._instruments.is_lazy and not self._managing:
            if self._instruments.ignore_step():
                return self._step(record, event, False)
            return self._step_told(record, event, None if event is None else event['type'] or LISTED, number=number)
        # Why not a coroutine that awaits one of these? It would cost time in each step, also without instruments.
        if self._meter is not None or self._instruments.steps:
            return self._step_observed(record, event, number=number)
        return self._step(record, event)

    async def _step_observed(self, record: ObjectRecord, event: RawEvent | None, *, number: int) -> float | None:
        """Do the step, and measure it; report it to the instruments if it is in a sampled trace, or any of them ask."""
        meter, type_ = self._meter, None if event is None else event['type'] or LISTED
        began = 0.0 if meter is None else monotonic()
        unsampled = self._instruments.skip_step(type_, number)
        try:
            # Why not nest several functions around the step? Each coroutine costs about as much as the metrics.
            if unsampled is not None or not self._instruments.steps:
                delay = await self._step(record, event)
            else:
                delay = await self._step_told(record, event, type_, number=number)
        except BaseException as error:
            if unsampled is not None:
                unsampled.end_step(error)
            if meter is not None and isinstance(error, Exception):
                meter.note_reconciliation(began, 'error', record.uid)
            raise
        if unsampled is not None:
            if unsampled.step is not None:
                unsampled.step.set_outcome(delay, requeued=record.has_work)
            unsampled.end_step()
        if meter is not None:
            result = 'requeue' if record.has_work else 'success' if delay is None else 'requeue_after'
            meter.note_reconciliation(began, result, record.uid)
        return delay

    async def _step_told(
        self, record: ObjectRecord, event: RawEvent | None, type_: str | None, *, number: int
    ) -> float | None:
        # If the sampler is the only listener, it has decided already.
        unsampled = None if self._instruments.skips_steps else self._instruments.skip(None)
        key = get_key(record, self._decider.table.resource)
        with ObjectStep(
            self._instruments, key, event=type_, number=number, single=self._single, unsampled=unsampled
        ) as step:
            delay = await self._step(record, event)
            step.set_outcome(delay, requeued=record.has_work)
        return delay

    # Why no keyword argument? It would cost time in each step.
    async def _step(self, record: ObjectRecord, event: RawEvent | None, observed: bool = True) -> float | None:
        # Clear it before the step: a requeue during the step, by the response or by the end of a daemon, requests the
        # next step.
        requeued = record.take_requeue()
        if event is None:
            return await self._step_without_event(record)
        body = Body(event['object'])
        patch, stale, is_deletion = Patch(body=body), False, event['type'] == 'DELETED'
        releasing = self._former_finalizer is not None and self._former_finalizer.is_on(record, event['object'])
        try:
            if is_deletion:
                self._stale_events.supersede(record)
            elif record.unverified:
                record.verify(untouched=self._is_untouched(record, body))
            if self._observing and not (is_deletion and was_observed(event)):
                # Handlers of raw events get all events, also deletions and stale states. But the staleness is checked
                # first, because a list can end the expectation while these handlers are running.
                stale = not is_deletion and self._stale_events.drop_stale(record, event)
                guarded = self._managing or releasing
                event = await self._reconciler.observe(record, event, body, patch, observed, guarded)
        except Exception:
            record.put_back(event)  # the event is the only place that has the state
            raise
        if is_deletion:
            if await self._save_before_forgetting(record, event):
                self._forget(record, event, body)
            else:
                record.requeue()  # its newer event can be that of the known state
            self._release_daemons(record)
            return None
        # Without change-detecting handlers or daemons, no state is kept that the event could be compared with.
        if not self._managing and not patch and not releasing and record.body is None:
            record.watch_selfpatching(None)
            return None
        stale = self._stale_events.drop_stale(record, event) or stale
        try:
            await self._take_state(record, event['object'], stale=stale)
        except BaseException:
            self._reconciler.keep(record, patch)
            raise
        # To apply the patch of handlers of raw events, a stale state is sufficient. But for a decision, it would look
        # as if another client had undone the operator's last patch.
        deciding = record.body is not None
        try:
            if patch or record.selfpatching is not None:
                pause = self._reconciler.hold_back(record, patch, body, own=stale, requeued=requeued)
                if pause:
                    return pause
            if patch or requeued or not stale:
                record.adopt(event['object'])
                return await self._reconciler.reconcile(record, patch, deciding=deciding)
        finally:
            if not deciding and record.body is event['object']:
                self._release_stale_state(record)
        return None

    async def _step_without_event(self, record: ObjectRecord) -> float | None:
        """Continue with the known state: the object is requeued, or a timer has fired."""
        if record.unverified:
            return None  # all objects will be listed again after the pause
        if record.body is not None and (record.outdated or self._is_foreign(record.body)):
            await self._applier.reload(record, record.body)
        elif record.body is None and record.outdated and record.daemons is not None:
            await self._applier.reload(record, record.daemons.packed.copy())
        if record.body is not None:
            return await self._reconciler.reconcile(record, Patch(body=Body(record.body)), deciding=True)
        return None

    async def _take_state(self, record: ObjectRecord, raw: RawBody, *, stale: bool) -> None:
        """Set the state of an event as the newest one, unless it is stale; request the newest one if in doubt."""
        if not stale:
            doubtful = record.outdated and record.body is None  # the API server has reported the object as missing
            record.accept(raw)
            if doubtful:
                record.mark_outdated()  # until the request succeeds
                await self._applier.reload(record, raw)
        elif record.body is not None and (record.outdated or self._is_foreign(record.body)):
            await self._applier.reload(record, record.body)

    @staticmethod
    def _release_stale_state(record: ObjectRecord) -> None:
        """Called after a step from a stale state, which has only sent a patch: no later one may decide by it."""
        if record.pending_patch is None:
            record.drop_body()
        else:
            record.mark_outdated()  # the patch has failed, or must wait; the next step requests the newest state first

    def _is_untouched(self, record: ObjectRecord, body: Body) -> bool:
        """Check whether no other operator has handled the object during the pause."""
        earlier, cycle = record.body, record.cycle
        return earlier is not None and cycle is not None and self._decider.is_untouched(Body(earlier), body, cycle)

    def _is_foreign(self, raw: RawBody) -> bool:
        """Check whether the state has another API version, because it is the response to the predecessor's patch."""
        return raw.get('apiVersion', self._api_version) != self._api_version

    # Deleted objects.

    def _forget(self, record: ObjectRecord, event: RawEvent, body: Body) -> None:
        if self._managing:
            ObjectLogger(body=body, settings=self._settings).debug("Deleted, really deleted, and we are notified.")
        record.cancel_wakeup()
        record.forget_state()
        self._stale_events.forget(record, event)
        if record.expected is not None and _has_returned(record):
            record.expected.note_return()

    def _release_daemons(self, record: ObjectRecord) -> None:
        if record.daemons is not None:
            record.daemons.forget()  # this detaches them if none of them runs
        if record.daemons is not None and _has_returned(record):
            record.daemons.reappear()

    async def _save_before_forgetting(self, record: ObjectRecord, event: RawEvent) -> bool:
        """
        Store progress and patches that are only in memory yet, before the record is forgotten.

        A DELETED event also comes when an object stops matching the selectors of the watch: such an object still
        exists, and can match again. Then, its handlers would run again. Deleted objects usually have nothing left to
        store.

        Returns:
            False if the record must be kept: nothing can be stored, and the object is back already.

        Raises:
            Exception: if nothing can be stored, although the object can still exist. The event is kept for the next
                attempt.
        """
        if not record.in_memory_only:
            return True
        try:
            await self.save(record)
        except Exception:
            # Why not try it again in any case? The refusal can be the same for a deleted object, e.g. if the operator
            # is not permitted to patch, so there would be attempts for ever.
            if await self._can_exist(record):
                if _has_returned(record):
                    return False
                record.put_back(event, observed=True)
                raise
        return True

    async def _can_exist(self, record: ObjectRecord) -> bool:
        """Ask the API server whether the object exists; if there is no answer now, it can."""
        if self._successor is not None:
            return await self._successor._can_exist(record)
        if self._released:
            return False
        if record.body is not None:
            with contextlib.suppress(Exception):  # the failure to store is reported, and it has the same cause
                await self._applier.reload(record, record.body)
        return record.body is not None

    async def save(self, record: ObjectRecord) -> None:
        """Store progress and patches that are only in memory yet on the object, without running any handlers."""
        # A step that began before another processor took over can save only now: then, use the API version of that
        # processor.
        await (self._reconciler if self._successor is None else self._successor).save(record)


def _has_returned(record: ObjectRecord) -> bool:
    """Check whether the object exists again: its next event has come while its deletion was waiting for the worker."""
    return record.pending is not None and not record.is_vanishing
