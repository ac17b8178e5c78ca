"""
Decisions about the next actions for an object, from its body and the memory about it: without I/O and clocks.

`Decider.decide` finds the reason of the change and the handlers to run; the caller runs them; then
`Decider.store_progress` makes the patch with the framework's own data. The progress in between is remembered in
a cycle (see `cycles`).

The operator does not write to an object without matching handlers. But an update handler of a field would match such
an object if it had the field. So the operator remembers the absence of the field: when the field is added, this is an
update from the state without the field. If creation handlers match the object then, they run first, and the update
follows.
"""

import copy
import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, cast

from kopf._cogs.configs import storage_formats
from kopf._cogs.configs.configuration import PersistenceSettings
from kopf._cogs.configs.progress import is_of_edited
from kopf._cogs.structs.bodies import Body, BodyEssence, RawBody
from kopf._cogs.structs.dicts import FieldPath, resolve
from kopf._cogs.structs.diffs import EMPTY, Diff, diff, is_same
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.patches import Patch, combine_values, subtract_values
from kopf._core.actions.handler_states import digest_essence
from kopf._core.intents import filters
from kopf._core.intents.causes import ChangingCause, Reason
from kopf._core.intents.cycles import UNCHANGED, Cycle, Cycles, Expected, is_for_updates
from kopf._core.intents.edits import find_leaves, find_written, is_edited, is_edited_by_others, is_touched
from kopf._core.intents.essences import Essences
from kopf._core.intents.handlers import ChangingHandler
from kopf._core.intents.progress_records import ProgressRecords
from kopf._core.intents.registries import HandlerTable
from kopf._core.intents.storage_errors import StorageError

TITLES = {
    Reason.CREATE: 'Creation',
    Reason.UPDATE: 'Updating',
    Reason.DELETE: 'Deletion',
    Reason.RESUME: 'Resuming',
}
"""The names of the reasons in logs. The other reasons run no handlers."""

_STORING = (Reason.CREATE, Reason.UPDATE, Reason.DELETE)

_CHANGED_BY_API: Final = {('metadata', key) for key in ('resourceVersion', 'generation', 'managedFields', 'finalizers')}
"""The fields that differ after each patch, or are changed by the framework's own patch functions."""

NO_FIELDS: Final[frozenset[FieldPath]] = frozenset()


class MakeCause(Protocol):
    """Creates a cause from these facts, and from facts that only the caller knows (memo, logger, indices)."""

    def __call__(
        self,
        *,
        reason: Reason,
        initial: bool,
        old: BodyEssence | None,
        new: BodyEssence | None,
        diff: Diff,
    ) -> ChangingCause: ...


class ObjectMemory(Protocol):
    """The memory of the operator about one object, besides its body."""

    @property
    def cycle(self) -> Cycle | None:
        """The cycle of the change that is being handled, if any."""

    @property
    def initial(self) -> bool:
        """True if this process has not run the resuming handlers yet."""

    @property
    def resumed(self) -> frozenset[HandlerId]:
        """The resuming handlers that have finished in this process, while others of them have not."""

    @property
    def deletion_handled(self) -> bool:
        """True if the deletion handlers are finished, and only the finalizer must be removed."""

    @property
    def handled_digest(self) -> str | None:
        """The digest of a handled state that could not be stored: see `Decider.find_handled_digest`."""

    @property
    def missing_fields(self) -> frozenset[FieldPath]:
        """The fields that the object lacked when no handler matched it: see `Decider.find_missing_fields`."""


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Decision:
    """The next actions for an object: the handlers to run, and the changes of the finalizer and of the stored state."""

    cause: ChangingCause
    cycle: Cycle
    essence: BodyEssence
    last: BodyEssence | None
    matching: Sequence[ChangingHandler] = ()
    due: Sequence[ChangingHandler] = ()
    incomplete: bool = False
    """Whether the filters of some handlers have failed, and the cycle must wait for these handlers."""
    add_finalizer: bool = False
    remove_finalizer: bool = False
    relevant: bool = False
    """
    Whether any change-detecting handler is for the object at all, regardless of the change; see `filters.prematch`.
    """
    before: Expected | None = None
    """The essences of the cycle before the patch of this step."""
    stored: BodyEssence | None = None
    """The essence that is (or already was) stored as the last handled one; ``None`` if the cycle continues."""
    followup: Cycle | None = None
    """The cycle that follows this one; determined at the end of this one."""
    first: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The part of the bookkeeping that must be stored first, if the API server needs several requests for all of it."""

    @property
    def reason(self) -> Reason:
        """The reason to run the handlers, or to run none."""
        return self.cause.reason

    def hold_back(self) -> None:
        """Run no handlers in this step, which only stores the effects of former steps."""
        self.due = ()

    @property
    def is_interrupted(self) -> bool:
        """True if some handlers were called for the change, but the object matches none of them any more."""
        if self.relevant or self.incomplete or self.reason not in (Reason.CREATE, Reason.UPDATE, Reason.RESUME):
            return False
        return len(self.cycle.state) > 0

    @property
    def is_outdated(self) -> bool:
        """True if the object was edited during its creation, so that an update must follow."""
        return self.stored is not None and self.reason is Reason.CREATE and not is_same(self.stored, self.essence)


class Decider:
    """Decides about all objects of one resource."""

    __slots__ = (
        '_awaiting_fields',
        '_with_fields',
        '_cycles',
        '_held_if_settled',
        'essences',
        'finalizer',
        'records',
        'table',
    )

    def __init__(self, table: HandlerTable, persistence: PersistenceSettings) -> None:
        self.table = table
        self.finalizer = persistence.finalizer
        self.records = ProgressRecords(persistence.progress_storage)
        self.essences = Essences(table, persistence)
        self._cycles = Cycles(table, self.essences, self.records)
        # Whether objects at rest have the operator's finalizer; `None` if that differs between objects.
        self._held_if_settled: bool | None = False if not table.finalizing else None
        if any(filters.is_unconditional(handler) for handler in table.finalizing):
            self._held_if_settled = True
        self._with_fields = tuple(handler for handler in table.changing if handler.field and is_for_updates(handler))
        # The update handlers that do not match objects without their field, but must run when the field is added.
        self._awaiting_fields = tuple(
            handler for handler in table.changing if handler.reason is Reason.UPDATE and handler.field
        )

    def revise(self, table: HandlerTable) -> None:
        """Continue with a new definition of the resource, with the same handlers."""
        self.table = table
        self._cycles.revise(table)
        self.essences.forget()
        self.records.forget()

    def decide(
        self,
        body: Body,
        memory: ObjectMemory,
        make_cause: MakeCause,
        *,
        holding: bool,
        now: datetime.datetime,
        failures: filters.Failures | None = None,
    ) -> Decision | None:
        """
        Decide what to do for the object now; return ``None`` if the operator ignores the object.

        Args:
            body: the newest state of the object.
            memory: the memory about the object.
            make_cause: creates the cause of the change.
            holding: whether the object must stay for another reason, such as a running daemon.
            now: the current time.
            failures: the method adds the handlers whose filters have failed to this mapping, if they could be run now.
        """
        deleting = body['metadata'].get('deletionTimestamp') is not None
        held = self._is_held(body)
        essence = self.essences.of(body)
        last, recalled = self._find_last(body, essence, memory, make_cause, deleting=deleting)
        cause = self._find_cause(body, essence, last, memory, make_cause, deleting=deleting)
        failed: filters.Failures = {}
        relevant = filters.sift(self.table.changing, cause, filters.prematch, failed)
        needed = holding or any(handler.requires_finalizer for handler in relevant)
        # Some handlers can have been called for a field that an edit has removed since.
        absent = [handler for handler in self._with_fields if handler not in relevant]
        resuming = bool(absent) and not deleting and self._is_begun(body, memory)
        # Not even the last handled state is written to such an object: users exclude objects of other operators by
        # filters.
        if not relevant and not needed and not held and not resuming:
            self._skip(cause, failed, failures)
            return None
        cycle = self._cycles.continue_(memory.cycle, cause, essence, last, now)
        if cause.initial and cycle is not memory.cycle:
            self._cycles.resume_again(cycle, memory.resumed, now)
        if resuming:
            relevant = self._add_called(relevant, absent, cause, cycle, failed)
            if not relevant and not needed and not held:
                self._skip(cause, failed, failures)
                return None
        if recalled is not None:
            cycle.recall(recalled, creating=cause.reason is Reason.CREATE)
        if cause.reason in UNCHANGED and relevant and (cycle.missed or cycle.revived):
            # One edit has reverted another one, so the object is unchanged, but some handlers have seen the state in
            # between.
            cause = dataclasses.replace(cause, reason=Reason.UPDATE)
        decision = Decision(cause=cause, cycle=cycle, essence=essence, last=last, relevant=bool(relevant))
        # The API server refuses new finalizers on an object that is being deleted.
        decision.add_finalizer = needed and not held and not deleting
        decision.remove_finalizer = held and not needed and not deleting and not self._may_need_finalizer(failed)
        # The handlers wait until the finalizer is stored: otherwise, a deletion while they run would not be handled.
        if not (decision.add_finalizer or cause.reason is Reason.FREE or (deleting and memory.deletion_handled)):
            self._choose_handlers(decision, relevant, failed, failures, now)
        return decision

    def _is_begun(self, body: Body, memory: ObjectMemory) -> bool:
        """Check whether some handlers of a change were called, but not all of them have finished."""
        return memory.cycle is not None or bool(self.records.fetch_all(self.table.changing_ids, body))

    def _add_called(
        self,
        relevant: list[ChangingHandler],
        absent: Sequence[ChangingHandler],
        cause: ChangingCause,
        cycle: Cycle,
        failed: filters.Failures,
    ) -> list[ChangingHandler]:
        """
        Add the handlers that were called for a state in between, and must learn of the state after it.

        They match neither the last handled state nor the present one: both lack the field, or have another value in it.
        """
        called = self._cycles.find_called(cycle, absent)
        added = filters.sift(called, cause, filters.matches_besides_field, failed)
        if not added:
            return relevant
        chosen = {*relevant, *added}
        return [handler for handler in self.table.changing if handler in chosen]

    def _find_last(
        self,
        body: Body,
        essence: BodyEssence,
        memory: ObjectMemory,
        make_cause: MakeCause,
        *,
        deleting: bool,
    ) -> tuple[BodyEssence | None, BodyEssence | None]:
        """
        Return the last handled essence and the recalled one.

        The recalled one exists only if fields were added that were missing before: it is the present essence without
        these fields.
        """
        last = self.essences.fetch_last(body, essence, memory.handled_digest)
        if last is not None:
            return last, None
        # The cycle has recalled the missing fields at its beginning, if there were any.
        if memory.cycle is not None:
            return memory.cycle.assumed, None
        if not memory.missing_fields or deleting:
            return None, None
        recalled, is_update = self._recall(essence, memory.missing_fields, make_cause)
        return recalled if is_update else None, recalled

    def _find_cause(
        self,
        body: Body,
        essence: BodyEssence,
        last: BodyEssence | None,
        memory: ObjectMemory,
        make_cause: MakeCause,
        *,
        deleting: bool,
    ) -> ChangingCause:
        """Create the cause of the change since the last handled essence."""
        if deleting:
            reason = Reason.DELETE if self._is_held(body) else Reason.FREE
            changes = EMPTY if last is None else diff(last, essence)
        # An object that was never handled is created, not resumed, even if it is older than this process.
        elif last is None or self._is_creation_going_on(body, memory.cycle):
            # If the object was edited during its creation, a last handled state is already stored, for the update that
            # follows. But the creation must end first, and a creation has no old state.
            return make_cause(reason=Reason.CREATE, initial=False, old=None, new=essence, diff=diff(None, essence))
        elif changes := diff(last, essence):
            reason = Reason.UPDATE
        else:
            reason, changes = Reason.RESUME if memory.initial and self.table.resuming_ids else Reason.NOOP, EMPTY
        return make_cause(reason=reason, initial=memory.initial, old=last, new=essence, diff=changes)

    def _choose_handlers(
        self,
        decision: Decision,
        relevant: Sequence[ChangingHandler],
        failed: filters.Failures,
        skipped: filters.Failures | None,
        now: datetime.datetime,
    ) -> None:
        """Put the matching handlers and those to be run now into the decision; begin their records."""
        cause, cycle = decision.cause, decision.cycle
        matching = filters.sift(relevant, cause, filters.match_change, failed)
        # If filters have failed, the cycle waits for the next change. Exception: if the object was edited during its
        # creation, the following update is that next change, so the creation ends.
        skipping = self._skip(cause, failed, skipped) and not (cause.reason is Reason.CREATE and cycle.edited)
        cycle.skip(skipping)
        decision.incomplete = skipping
        matching = self._cycles.revive(cycle, cause, matching, relevant, now)
        decision.matching = list(filters.deduplicate(matching))
        # The records of all matching handlers begin now, not only of those that are run now: the time-out of a handler
        # begins when it is selected.
        cycle.state.begin([handler.id for handler in decision.matching], now)
        decision.due = cycle.state.due(decision.matching, now)

    def _is_held(self, body: Body) -> bool:
        return self.finalizer in (body['metadata'].get('finalizers') or ())

    def _may_need_finalizer(self, failed: filters.Failures) -> bool:
        """Check whether the object may need the finalizer for handlers whose filters have failed."""
        return bool(failed) and any(handler in failed for handler in self.table.finalizing)

    def _skip(self, cause: ChangingCause, failed: filters.Failures, skipped: filters.Failures | None) -> bool:
        """Add the failed handlers that would be run otherwise to the skipped ones; return whether there are any."""
        due: filters.Failures = {
            handler: error
            for handler, error in failed.items()
            # Consider only handlers that could run for this reason.
            if isinstance(handler, ChangingHandler) and filters.may_match_change(handler, cause)
        }
        if skipped is not None:
            skipped.update(due)
            if cause.body['metadata'].get('deletionTimestamp') is None:
                # It is unknown whether the object needs the finalizer for these handlers. Without the finalizer, no
                # handlers run yet.
                skipped.update((handler, failed[handler]) for handler in self.table.finalizing if handler in failed)
        return bool(due)

    def find_missing_fields(self, body: Body, make_cause: MakeCause) -> frozenset[FieldPath]:
        """Return the fields that the object lacks, and with which it would match update handlers."""
        if not self._awaiting_fields or body['metadata'].get('deletionTimestamp') is not None:
            return NO_FIELDS
        # The cause has no change, because the missing fields depend only on the object.
        cause = make_cause(reason=Reason.NOOP, initial=False, old=None, new=self.essences.of(body), diff=EMPTY)
        missing_fields = filters.sift(self._awaiting_fields, cause, filters.lacks_field, {})
        return frozenset(handler.field for handler in missing_fields if handler.field)

    def find_handled_digest(self, decision: Decision, body: Body) -> str | None:
        """
        Return the digest of the handled state if the object is still in that state, but the storage has lost it.

        Some storages store nothing, and the API server drops the fields that are not in the schema of the kind, e.g. in
        the status. Without the digest, the same state would be handled again and again.
        """
        if not decision.relevant or decision.stored is None:
            return None
        try:
            essence = self.essences.of(body)
            # Another client has edited the object: its new state must be handled in any case, so no digest is needed.
            if not is_same(essence, decision.stored) or self.essences.is_last(body, essence):
                return None
            is_kept = is_same(self.essences.fetch_last(body, essence), essence)
        except StorageError:
            # it cannot be verified whether the storage has kept the state, so the digest is remembered to be safe
            is_kept = False
        return None if is_kept else digest_essence(decision.stored)

    def find_own_changes(self, decision: Decision, patch: Patch, bookkeeping: Patch, raw: RawBody | None) -> Diff:
        """Return the differences from the handled state if they can only come from the operator's own last patch."""
        if raw is None or decision.stored is None:
            return EMPTY
        try:
            essence = self.essences.of(Body(raw))
            if is_same(essence, decision.stored):
                return EMPTY
            if not patch or is_edited(decision.stored, essence, patch):
                # The effects of patch functions are known only when they are called.
                if not self._is_caused_by_functions(decision, patch, essence):
                    if not _is_caused_by_storing(decision, patch, bookkeeping, raw):
                        return EMPTY
        except StorageError:
            return EMPTY
        return diff(decision.stored, essence)

    def find_mutations(self, decision: Decision, patch: Patch, raw: RawBody | None) -> Diff:
        """
        Return the differences from the expected state after the operator's own patch, unless others have edited it.

        They are made by a webhook or a policy of the API server.
        """
        if raw is None:
            return EMPTY
        expected = decision.cycle.known if decision.stored is None else decision.stored
        try:
            essence = self.essences.of(Body(raw))
        except StorageError:
            return EMPTY
        if is_same(expected, essence):
            return EMPTY
        changes = diff(expected, essence)
        return EMPTY if is_edited_by_others(changes, patch, decision.cause.body._data(), raw) else changes

    def is_mutated(self, before: RawBody, raw: RawBody, patch: Patch) -> bool:
        """
        Check whether a patch that is no change for handlers has led to one, and not by other clients.

        Raises:
            StorageError: if a storage fails.
        """
        former = self.essences.of(Body(before))
        if not is_same(self.essences.predict(Body(before), patch), former):
            return False
        essence = self.essences.of(Body(raw))
        return not is_same(former, essence) and not is_edited_by_others(diff(former, essence), patch, before, raw)

    def _is_caused_by_functions(self, decision: Decision, patch: Patch, essence: BodyEssence) -> bool:
        if not patch.fns:
            return False
        predicted = self.essences.predict(decision.cause.body, patch)
        written = find_written(decision.essence, predicted, patch)
        return is_same(predicted, essence) or not is_edited(decision.essence, essence, patch, written)

    def is_settled(self, body: Body, *, holding: bool = False, handled_digest: str | None = None) -> bool:
        """
        Check quickly whether the object certainly requires no action; return false if it may require one.

        Why not simply `decide`? It costs many times more, and most events need no action.
        """
        metadata = body['metadata']
        needed = holding or self._held_if_settled
        # Deletions are rare, and need no fast path. If the finalizer depends on filters, only `decide` can call them.
        if metadata.get('deletionTimestamp') is not None or needed is None:
            return False
        if (self.finalizer in (metadata.get('finalizers') or ())) is not needed:
            return False
        if not self.table.changing:
            return True
        essence = self.essences.of(body)
        if not self.essences.is_last(body, essence):
            last = self.essences.fetch_last(body, essence, handled_digest, again=True)
            if last is None or not is_same(last, essence):
                return False
        # Records of an interrupted cycle must be continued or purged, although the object has not changed since then.
        return not self.records.fetch_all(self.table.changing_ids, body)

    @property
    def is_external(self) -> bool:
        """Return whether custom storages can keep progress or handled states outside of the objects."""
        return self.records.is_external or self.essences.is_external

    def look_up(self, body: Body, cycle: Cycle) -> tuple[Any, BodyEssence | None] | None:
        """Return the progress and the last handled state as they are stored now; ``None`` if a storage fails."""
        try:
            return self._look_up(body, cycle)
        except StorageError:
            return None

    def _look_up(self, body: Body, cycle: Cycle) -> tuple[Any, BodyEssence | None]:
        keys = {**dict.fromkeys(self.table.changing_ids), **dict.fromkeys(cycle.state)}
        records = {key: self.records.fetch(key=key, body=body) for key in keys}
        # Copied, as storages can return their own mutable data.
        return copy.deepcopy((records, self.essences.fetch_last(body, self.essences.of(body))))

    def is_untouched(self, earlier: Body, body: Body, cycle: Cycle) -> bool:
        """
        Check whether no other operator has stored progress or a handled state since the earlier state of the object.

        Custom storages can keep data outside of the object: these are compared with the data noted before the pause.

        Raises:
            StorageError: if a storage fails. A guess could repeat handlers that have succeeded.
        """
        before = cycle.external if self.is_external else self._look_up(earlier, cycle)
        if before is None:
            return False
        after = self._look_up(body, cycle)
        return bool(before[0] == after[0]) and is_same(before[1], after[1])

    def _recall(
        self,
        essence: BodyEssence,
        missing_fields: frozenset[FieldPath],
        make_cause: MakeCause,
    ) -> tuple[BodyEssence | None, bool]:
        """
        Return the essence without the newly added fields, and whether their addition is handled as an update.

        The essence is ``None`` if no missing field was added. If creation handlers match the object now, it is created
        first, and the update follows. The returned essence then contains the fields of these creation handlers, as the
        creation handles them.
        """
        added = {field for field in missing_fields if resolve(essence, field, None) is not None}
        if not added:
            return None, False
        cause = make_cause(reason=Reason.CREATE, initial=False, old=None, new=essence, diff=diff(None, essence))
        creating = [
            handler
            for handler in self.table.changing
            if handler.reason in (None, Reason.CREATE) and not handler.initial and filters.may_match(handler, cause)
        ]
        earlier = cast(dict[str, Any], essence)
        for field in added - {handler.field for handler in creating}:
            earlier = storage_formats.without(earlier, field)
        return cast(BodyEssence, earlier), not creating

    def _is_creation_going_on(self, body: Body, cycle: Cycle | None) -> bool:
        """Check whether the last handled state was stored because of an edit in the middle of the creation."""
        if cycle is not None:
            return cycle.state.purpose == Reason.CREATE
        # Without the mark, the records were stored by a late patch: the API server has executed it after the end of the
        # creation. Custom storages may keep only the usual fields of records, but not on the object.
        return any(
            is_of_edited(record) or (self.records.is_external and record.get('purpose') == Reason.CREATE)
            for record in self.records.fetch_all(self.table.changing_ids, body)
        )

    def revert(self, decision: Decision, original: RawBody) -> None:
        """Undo the changes that handlers have made to the object in place, and adjust the decision to that."""
        body, cycle, changed = decision.cause.body, decision.cycle, decision.essence
        body._replace_with(original)
        decision.essence = self.essences.of(body)
        cycle.revert(changed, decision.essence)

    def store_progress(self, decision: Decision, patch: Patch, bookkeeping: Patch, *, done: bool) -> None:
        """
        Put the progress, or the end of the cycle, into the patch with the bookkeeping.

        Args:
            decision: the decision whose handlers were run.
            patch: the effects of the handlers.
            bookkeeping: the patch with the framework's own data, which is stored together with the other one.
            done: whether all handlers are finished.
        """
        cycle, body, reason = decision.cycle, decision.cause.body, decision.reason
        if reason is Reason.FREE:
            return
        if done:
            # Why in one patch with the last handled state? If the operator were killed between two patches, the
            # handlers would run again, or the remaining records would look like an interrupted cycle.
            cycle.state.purge(storage=self.records, body=body, patch=bookkeeping)
            if reason is not Reason.DELETE:
                self.records.purge_unfinished_creations(body=body, patch=bookkeeping)
            decision.followup = self._cycles.follow(cycle, decision.cause, decision.essence)
            if decision.followup is not None:
                decision.followup.state.store(storage=self.records, body=body, patch=bookkeeping)
            # A creation ends with the state that its handlers have seen, not with a newer one, so that an edit becomes
            # an update.
            decision.stored = cycle.base if reason is Reason.CREATE else decision.essence
            # An object without room for this state would keep its last finalizer, which is removed by the same patch.
            is_disappearing = reason is Reason.DELETE and len(body['metadata']['finalizers']) == 1
            is_storing = decision.relevant and reason in _STORING and not is_disappearing
            if is_storing and not is_same(decision.stored, decision.last):
                # If the records were purged before this state is stored, an operator that is killed in between would
                # leave a change that looks as if it was never handled.
                decision.first = self._store_last(body, decision.stored, bookkeeping)
        else:
            # Keep them until the patch is stored: `retract` restores them if the patch fails.
            decision.before = cycle.expected
            self._cycles.advance(cycle, body, decision.essence, patch)
            cycle.state.store(storage=self.records, body=body, patch=bookkeeping)
            if cycle.edited and not is_same(cycle.base, decision.last):
                # If this state was stored before the records, which say that the creation goes on, an operator that is
                # killed in between would leave a created object whose other creation handlers are never called.
                decision.first = self._copy_if_split(bookkeeping)
                self.essences.store_last(body, cycle.base, bookkeeping)
            elif cycle.assumed is not None and cycle.assumed is decision.last:
                # Without the last handled essence on the object, a restarted operator would handle the update as a
                # creation.
                decision.first = self._store_last(body, cycle.assumed, bookkeeping)

    def _store_last(self, body: Body, essence: BodyEssence, bookkeeping: Patch) -> Mapping[str, Any]:
        """Add the last handled essence to the bookkeeping; return the added values if they may need requests apart."""
        before = self._copy_if_split(bookkeeping)
        self.essences.store_last(body, essence, bookkeeping)
        return subtract_values(bookkeeping, before) if self._is_split() else {}

    def _copy_if_split(self, bookkeeping: Patch) -> Mapping[str, Any]:
        return copy.deepcopy(dict(bookkeeping)) if self._is_split() else {}

    def _is_split(self) -> bool:
        """Check whether the status of the objects is changed by requests of its own."""
        return 'status' in self.table.resource.subresources

    def retract(self, decision: Decision, stored: Patch | None) -> None:
        """
        Undo the expected effects of a patch that was refused; otherwise, the old values would look like edits.

        Args:
            decision: the decision whose progress is in the patch.
            stored: the part of the patch that was stored nevertheless; ``None`` if it is unknown what was stored.
        """
        if decision.before is None:
            return
        decision.cycle.retract(decision.before, lost=stored is None)
        if stored:
            self._cycles.predict(decision.cycle, decision.cause.body, decision.essence, stored)

    def compare_with_response(self, decision: Decision, patch: Patch, body: Body) -> None:
        """
        Compare the object after the operator's own patch with the expectation.

        Values that the API server has adjusted in the patched fields count as seen by the handlers. Other differences
        are edits by other clients; the next decision handles them.
        """
        written = find_written(decision.essence, decision.cycle.known, patch)
        try:
            decision.cycle.adjust(self.essences.of(body), patch, written)
        except StorageError:
            decision.cycle.postpone_check(patch, written)


def _is_caused_by_storing(decision: Decision, patch: Patch, bookkeeping: Patch, raw: RawBody) -> bool:
    """
    Check whether only the operator's own patch has changed the object.

    If so, a difference of the essences means that the storages include their own annotations or fields in the essence.
    """
    if patch.fns or not is_same(decision.stored, decision.essence):
        return False
    written = combine_values(patch, bookkeeping)
    return all(
        field[:2] in _CHANGED_BY_API or is_touched(field, written)
        for field in find_leaves(diff(decision.cause.body._data(), raw))
    )
