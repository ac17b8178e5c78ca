"""
The runs of level-triggered handlers of one resource: calling the handler, applying its patch, writing the conditions.

The patch of a run is separate from the patches of other handlers, and is never kept for later: after a refusal, the
handler runs again, and makes a better patch from the newest state.
"""

import asyncio
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from kopf._cogs.aiokits.cancellations import StrayCancellationError, withdraw_cancellation
from kopf._cogs.clients.errors import APIConflictError
from kopf._cogs.clients.pacing import background
from kopf._cogs.clients.patching import discard_unstorable
from kopf._cogs.structs.bodies import RawBody
from kopf._cogs.structs.credentials import LoginError
from kopf._cogs.structs.patches import Patch, is_merged
from kopf._core.actions.execution import Outcome
from kopf._core.actions.invocation import CallNotBegun
from kopf._core.engines.levels import Leveler, Run
from kopf._core.reactor.applying import CONFLICT_DELAYS, Applier
from kopf._core.reactor.object_records import ObjectRecord
from kopf._core.reactor.throttling import can_be_users_fault, is_refusal, log_refusal
from kopf._core.reactor.workers import WorkerPool

if TYPE_CHECKING:
    from kopf._cogs.structs.conditions import ConditionEdits
    from kopf._cogs.structs.meters import ResourceMeter
    from kopf._core.reactor.condition_writer import ConditionWriter


class LevelRunner:
    """
    Runs the level-triggered handlers of the objects of one resource.

    Args:
        leveler: plans the runs, and calls the handlers.
        applier: applies patches to objects.
        workers: the workers of the operator.
        meter: measures the runs, if there are metrics.
    """

    def __init__(
        self, leveler: Leveler, applier: Applier, workers: WorkerPool, meter: 'ResourceMeter | None' = None
    ) -> None:
        self._leveler = leveler
        self._applier = applier
        self._workers = workers
        self._meter = meter
        self._writer = _make_writer(leveler, applier) if leveler.uses_conditions else None

    async def run(self, record: ObjectRecord, run: Run, is_due: Callable[[ObjectRecord], bool]) -> None:
        """
        Run the handler, apply its patch, and write the conditions.

        Args:
            record: the record of the object.
            run: the run, which has begun.
            is_due: checks whether other handlers of the object wait for the end of the run.
        """
        outcome: Outcome | None = None
        began = 0.0 if self._meter is None else time.monotonic()
        try:
            outcome = await self._execute(record, run, is_due)
        except LoginError:
            raise
        except asyncio.CancelledError as error:
            if self._workers.is_cancelled():
                raise
            await withdraw_cancellation(self._workers.is_cancelled)
            outcome = self._leveler.fail(run, StrayCancellationError.of(error), "The run of %s has failed")
        # `_execute` handles the errors of the function. Any other error must affect neither other objects nor the
        # operator.
        except Exception as error:
            run.logger.exception("%s could not be run.", run.plan.controller.handler)
            outcome = self._leveler.fail(run, error, "The run of %s has failed")
        finally:
            self._leveler.end(run, outcome)
            if self._meter is not None and outcome is not None and outcome.has_begun:
                self._measure(record, self._meter, began, outcome)
            del outcome  # see `Outcome.without_exception`

    def _measure(self, record: ObjectRecord, meter: 'ResourceMeter', began: float, outcome: Outcome) -> None:
        if outcome.delay is not None:
            meter.retry()
        result = 'success' if outcome.delay is None else 'requeue_after'
        meter.note_reconciliation(began, 'error' if outcome.is_error else result, record.uid)

    async def _execute(self, record: ObjectRecord, run: Run, is_due: Callable[[ObjectRecord], bool]) -> Outcome:
        """Run the handler, apply its patch, and then write the conditions, also those of a failed run."""
        writer = self._writer
        if writer is not None and self._leveler.keeps_conditions(run):
            await writer.begin(record, run)
            if self._workers.must_stop(record):  # since then, the operator has paused, or is ending
                return Outcome(final=False, exception=CallNotBegun())
        outcome = await self._call(record, run)
        edits = [] if writer is None else writer.take(run)
        if not outcome.has_begun:
            return outcome  # the operator is paused, and nothing has changed
        try:
            if outcome.verdict != 'succeeded':  # successful runs do it before they prune children
                await self._leveler.restore_marks(run)
            try:
                await self._apply(record, run, edits, is_due)
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

    async def _apply(
        self,
        record: ObjectRecord,
        run: Run,
        edits: 'Collection[ConditionEdits]',
        is_due: Callable[[ObjectRecord], bool],
    ) -> None:
        """
        Apply the patch of the handler to the state that the run has seen, or to newer ones if it conflicts.

        Changes are not exchanged with the patches of other handlers: the API server could refuse one because of the
        other.
        """
        patch = run.patch
        discard_unstorable(patch, run.logger)
        # A handler that sets the same status in every run must not cause a request each time.
        newest = run.plan.level.packed[0] if record.level is run.plan.level else run.raw
        if is_merged(dict(patch), newest):
            patch = Patch(fns=patch.fns)
        # Functions get the state that the handler has seen. Values are merged into any state: with the older version,
        # they would conflict with what the framework itself has written during the run, such as the marks of children.
        known: RawBody | None = run.raw if patch.fns else newest
        for delay in (*CONFLICT_DELAYS, None):
            if not patch or await self._apply_once(record, run, patch, known, edits):
                return
            # Other handlers wait for this worker. So the second attempt is made at once, and nearly always succeeds.
            if delay is None or (delay and is_due(record)):
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
        return not result.remaining_fns

    def _fail(self, run: Run, error: Exception) -> Outcome:
        """
        Treat an error of the patch as an error of the handler, which is run again.

        Why not keep the patch and send it again, as for other handlers? The next run makes a better patch from the
        newest state. And as long as a kept patch is refused, no trigger would have an effect.
        """
        if is_refusal(error):
            is_users_fault = can_be_users_fault(run.patch, error)
            log_refusal(run.logger, error, is_users_fault=is_users_fault, settings=self._leveler.settings)
        return self._leveler.fail(run, error)


def _make_writer(leveler: Leveler, applier: Applier) -> 'ConditionWriter':
    from kopf._core.reactor.condition_writer import ConditionWriter  # only for operators that use them

    return ConditionWriter(leveler, applier)
