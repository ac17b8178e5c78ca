"""
Writing the conditions of objects with level-triggered handlers: those set by handlers, and those set by the framework.

Why are they not a part of the handler's patch? The conditions depend on the success of the patch and on the generation
that it makes. And if the API server refuses the patch, the conditions must contain the reason.
"""

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, cast

from kopf._cogs.clients.errors import APIConflictError, APIForbiddenError
from kopf._cogs.structs.bodies import RawBody
from kopf._cogs.structs.conditions import ConditionEdits, find_edits, list_entries
from kopf._cogs.structs.credentials import LoginError
from kopf._cogs.structs.patches import Patch, Replacing
from kopf._core.actions.execution import Outcome
from kopf._core.engines import verdicts
from kopf._core.engines.levels import Leveler, Run
from kopf._core.reactor.applying import CONFLICT_DELAYS, Applier
from kopf._core.reactor.object_records import ObjectRecord
from kopf._core.reactor.throttling import explain_refusal, is_refusal


class ConditionWriter:
    """Writes the conditions of the objects of one resource."""

    def __init__(self, leveler: Leveler, applier: Applier) -> None:
        self._leveler = leveler
        self._applier = applier
        self._is_warned = False

    async def begin(self, record: ObjectRecord, run: Run) -> None:
        """Write that the object is being reconciled, if its generation is new; the handler sees the result."""
        generation = self._leveler.get_generation(run.raw)
        try:
            changes = verdicts.begin(list_entries(run.raw.get('status')), generation)
        except TypeError:
            return  # status.conditions is not a list, which is reported at the end of the run
        if not changes:
            return
        edits = self._make_edits(run, Patch())
        edits.summarize()
        for type_, condition in changes.items():
            edits.change(type_, condition)
        try:
            # Why no retries? They are needed only if another client changes the object meanwhile, and its change
            # triggers another run.
            await self._write(record, run, [edits], delays=())
        except LoginError:
            raise
        except Exception as error:
            run.logger.debug("The condition that a run has begun can't be written: %r", error)
            return
        if record.level is run.plan.level:
            self._leveler.refresh(run)

    def take(self, run: Run) -> list[ConditionEdits]:
        """Remove the changes of conditions from the handler's patch, and return them."""
        edits = find_edits(run.patch)
        run.patch.fns[:] = [fn for fn in run.patch.fns if fn not in edits]
        # If only the framework sets conditions, the edits are created here, before the handler's patch is sent:
        # `ConditionEdits.follow` then updates them with the state after the patch.
        return edits or ([self._make_edits(run, run.patch)] if self._leveler.keeps_conditions(run) else [])

    async def end(self, record: ObjectRecord, run: Run, outcome: Outcome, edits: Sequence[ConditionEdits]) -> Outcome:
        """Write the conditions after a run; return the outcome, which is a failure if they cannot be written."""
        if self._leveler.keeps_conditions(run):
            for own in edits:
                own.summarize()
                # After an own patch of the spec, it is the new generation: the handler is not run again for it.
                judged = self._leveler.judge_run(run, outcome, own.generation, dict(own.changes))
                for type_, condition in judged.items():
                    own.change(type_, condition)
        edits = self._join(run.plan.carried, edits)
        if not edits:
            return outcome
        try:
            list_entries(run.raw.get('status'))  # raises an error if there is something else in their place
            done = await self._write(record, run, edits, delays=CONFLICT_DELAYS)
        except LoginError:
            raise
        except Exception as error:
            reason = repr(error)
            if is_refusal(error):
                reason = explain_refusal(error, is_users_fault=not isinstance(error, APIForbiddenError))
            run.logger.error("The conditions of the object can't be written: %s", reason)
            # The handler runs again even after a permanent failure: otherwise, clients would wait in vain for the
            # conditions that report the failure.
            return self._leveler.fail(run, error) if outcome.final else outcome
        self._leveler.carry(run, () if done else edits)
        return outcome

    @staticmethod
    def _join(carried: Sequence[ConditionEdits], edits: Sequence[ConditionEdits]) -> Sequence[ConditionEdits]:
        """Return all changes; of two changes of the same condition type, only the newer one."""
        for older in carried:
            older.withdraw({type_ for each in edits for type_ in each.changes})
        return [each for each in (*carried, *edits) if each.changes]

    def _make_edits(self, run: Run, patch: Patch) -> ConditionEdits:
        return ConditionEdits(patch, run.raw, counted=self._leveler.is_counted)

    async def _write(
        self,
        record: ObjectRecord,
        run: Run,
        edits: Sequence[ConditionEdits],
        *,
        delays: Collection[float],
    ) -> bool:
        """Write the conditions; return false if the next run must write them, true if they are written or obsolete."""
        level = run.plan.level
        if record.level is not level:
            return True  # it is being deleted, or does not exist any more
        known = cast(RawBody | None, level.packed.copy())
        # This marker is checked first, because the writing would copy the whole object even without any changes.
        patch = Patch(fns=[Replacing(each) for each in edits])
        for delay in (*delays, None):
            with self._leveler.patching(run):
                result = await self._applier.send_once(record, run.raw["metadata"].get("uid"), patch, known, run.logger)
                if result.body is not None:
                    self._warn_if_pruned(run, edits, result.body)
                    observed = max((each.observed for each in edits if each.observed is not None), default=None)
                    self._leveler.receive_response(run, result.body, patch, observed=observed)
            if not result.remaining_fns:
                return True
            # If another run is due, it writes its newer conditions together with these. Retries would delay that run.
            if delay is None or run.plan.reasons:
                break
            known = None  # the newest state is requested
            await asyncio.sleep(delay)
        if delays and not run.plan.reasons:
            raise APIConflictError("other clients change the object all the time", status=409)
        return False

    def _warn_if_pruned(self, run: Run, edits: Sequence[ConditionEdits], raw: Any) -> None:
        written = {type_ for each in edits for type_, change in each.changes.items() if change is not None}
        kept = {each.get('type') for each in list_entries(raw.get('status')) if isinstance(each, dict)}
        if written - kept and not self._is_warned:
            self._is_warned = True
            run.logger.warning(
                "The API has dropped the conditions %s of %s: its schema does not have status.conditions, or the "
                "conversion between its versions drops them.",
                ', '.join(sorted(written - kept)),
                raw.get('kind'),
            )
