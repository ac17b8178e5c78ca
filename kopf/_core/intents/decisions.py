"""
What is to be done about an object: decided from its body and from what is remembered of it. No I/O, no clock, no sleep.

`decide` finds the reason of the change and the handlers that are due; the caller runs them; `conclude` puts what came
of them into one patch. From one step of a change to the next, the `Cycle` remembers what its handlers have seen: this
is what makes "no update is lost" and "nothing runs twice" true.

Edits by others in the middle of a cycle:

- of an update: handlers that had finished and would match the edit are due again; those that run later see it anyway;
- of a creation: an update follows, from the state that the first finished handler has seen. If the creation is put off,
  that state is in the records. While handlers follow each other soon, there are only digests of what they have seen; if
  the operator is killed then, edits are known, but not from what.

What our own patches change counts as seen by all.

An object that no handler matches is not written to. If a handler of updates would match if only the object had its
field, then the absence is remembered in memory: once the field is added, this is an update from the state without it.
If the object also matches handlers of creations then, it is created first, and the update follows.
"""

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, cast

from kopf._cogs.configs import storage_formats
from kopf._cogs.configs.configuration import PersistenceSettings
from kopf._cogs.structs.bodies import Body, BodyEssence, RawBody
from kopf._cogs.structs.dicts import FieldPath, resolve
from kopf._cogs.structs.diffs import EMPTY, Diff, diff, is_same
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.patches import Patch, combine_values
from kopf._core.actions.execution import Outcome
from kopf._core.actions.handler_states import State, digest_essence
from kopf._core.intents import filters, missed_edits
from kopf._core.intents.causes import ChangingCause, Reason
from kopf._core.intents.essences import Essences
from kopf._core.intents.handlers import ChangingHandler
from kopf._core.intents.progress_records import Records
from kopf._core.intents.registries import HandlerTable
from kopf._core.intents.storage_errors import StorageError

TITLES = {
    Reason.CREATE: 'Creation',
    Reason.UPDATE: 'Updating',
    Reason.DELETE: 'Deletion',
    Reason.RESUME: 'Resuming',
}

LONG_DELAY = 1.0
"""How far from each other creation handlers must be for the state to be stored between them (in seconds)."""

_STORING = (Reason.CREATE, Reason.UPDATE, Reason.DELETE)
_UNCHANGED = (Reason.NOOP, Reason.RESUME)

_KEPT_BY_API: Final = {('metadata', key) for key in ('resourceVersion', 'generation', 'managedFields', 'finalizers')}
"""What differs after each patch, or is changed by our own functions."""

NO_FIELDS: Final[frozenset[FieldPath]] = frozenset()


class MakeCause(Protocol):
    """Makes a cause of these facts and of all that is known of the object anyway."""

    def __call__(
        self,
        *,
        reason: Reason,
        initial: bool,
        old: BodyEssence | None,
        new: BodyEssence | None,
        diff: Diff,
    ) -> ChangingCause: ...


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Cycle:
    """What is remembered of a change from its first step to its last one. Objects at rest have none."""

    state: State
    known: BodyEssence
    """The essence as of the last step, our own patch included."""
    base: BodyEssence
    """The essence that is to be stored as the last handled one if this is a creation."""
    missed: dict[HandlerId, BodyEssence | None] = dataclasses.field(default_factory=dict)
    """The essences that finished handlers have seen before somebody's edit; ``None`` if that is not known."""
    revived: dict[HandlerId, BodyEssence | None] = dataclasses.field(default_factory=dict)
    """The same for handlers that are due again because of it, until they are finished."""
    unconfirmed: tuple[BodyEssence, BodyEssence] | None = None
    """The essence, and the base, if the last patch was stored after all, though only an error came back."""
    skipping: bool = False
    """Whether filters have failed, so that it is unknown if all is done: the cycle waits for a change."""
    patched: Patch | None = None
    """The last patch, if it could not be told yet what it has made of the object."""
    edited: bool = False
    """Whether the base must be stored before the end of the cycle, as it can't be found in the object any more."""
    assumed: BodyEssence | None = None
    """The last handled essence if it is known only from memory: it is stored with the first step of an update."""


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Decision:
    """What is to be done now, and why."""

    cause: ChangingCause
    cycle: Cycle
    essence: BodyEssence
    last: BodyEssence | None
    matching: Sequence[ChangingHandler] = ()
    due: Sequence[ChangingHandler] = ()
    incomplete: bool = False
    """Whether there are handlers whose filters have failed, and for which the cycle must wait."""
    add_finalizer: bool = False
    remove_finalizer: bool = False
    relevant: bool = False
    """Whether there are change-detecting handlers for the object at all."""
    before: tuple[BodyEssence, BodyEssence] | None = None
    """The known essence, and the base, without what the patch changes."""
    stored: BodyEssence | None = None
    """What is stored as the last handled essence, or was already; ``None`` if the cycle is not done."""
    followup: Cycle | None = None
    """The cycle that goes on when this one is done, once that is known."""

    @property
    def reason(self) -> Reason:
        """Why the handlers are run, or why none are."""
        return self.cause.reason

    def hold_back(self) -> None:
        """Run no handlers now: only what has come of them before is stored."""
        self.due = ()

    @property
    def is_outdated(self) -> bool:
        """Whether the object was something else already when this was done."""
        return self.stored is not None and self.reason is Reason.CREATE and not is_same(self.stored, self.essence)


class Decider:
    """Decides for all the objects of one resource."""

    __slots__ = ('_awaiting_fields', '_held_if_settled', '_updating', 'essences', 'finalizer', 'records', 'table')

    def __init__(self, table: HandlerTable, persistence: PersistenceSettings) -> None:
        self.table = table
        self.finalizer = persistence.finalizer
        self.records = Records(persistence.progress_storage)
        self.essences = Essences(table, persistence)
        # Who is to be told of an edit in the middle of a creation.
        self._updating = frozenset(handler.id for handler in table.changing if _is_for_updates(handler))
        # Whether objects at rest have our finalizer; None if it depends on the object.
        self._held_if_settled: bool | None = False if not table.finalizing else None
        if any(filters.is_unconditional(handler) for handler in table.finalizing):
            self._held_if_settled = True
        # For whom the addition of a field is an update, though they do not match objects without it.
        self._awaiting_fields = tuple(
            handler for handler in table.changing if handler.reason is Reason.UPDATE and handler.field
        )

    def revise(self, table: HandlerTable) -> None:
        """Go on with the resource as it is defined now, with the same handlers."""
        self.table = table
        self.essences.forget()
        self.records.forget()

    def decide(
        self,
        body: Body,
        cycle: Cycle | None,
        make_cause: MakeCause,
        *,
        initial: bool,
        deletion_handled: bool,
        holding: bool,
        now: datetime.datetime,
        handled_digest: str | None = None,
        failures: filters.Failures | None = None,
        missing_fields: frozenset[FieldPath] = NO_FIELDS,
    ) -> Decision | None:
        """
        Decide what is to be done about the object now; ``None`` if it is none of our business.

        Args:
            body: the newest state of the object.
            cycle: what is remembered of the change that is being handled, if there is one.
            make_cause: makes the cause of what is found out.
            initial: whether this process has not resumed the object yet.
            deletion_handled: whether its deletion is handled, and only the finalizer is to be removed.
            holding: whether something else needs the object to stay, such as a running daemon.
            now: the time.
            handled_digest: what was handled, but could not be stored: see `find_handled_digest`.
            failures: where the handlers are added that would be due if their filters did not fail.
            missing_fields: the fields that the object did not have when no handler matched it: see
                `find_missing_fields`.
        """
        metadata = body['metadata']
        deleting = metadata.get('deletionTimestamp') is not None
        held = self.finalizer in (metadata.get('finalizers') or ())
        essence = self.essences.of(body)
        last = self.essences.fetch_last(body, essence, handled_digest)
        recalled: BodyEssence | None = None
        if last is None and cycle is not None:
            last = cycle.assumed
        elif last is None and missing_fields and not deleting:
            recalled, is_update = self._recall(essence, missing_fields, make_cause)
            last = recalled if is_update else None

        reason, changes = self._detect(body, cycle, essence, last, deleting=deleting, held=held, initial=initial)
        creating = reason is Reason.CREATE  # also if the state that an update is to be from is stored already
        cause = make_cause(
            reason=reason, initial=initial and not creating, old=None if creating else last, new=essence, diff=changes
        )
        failed: filters.Failures = {}
        relevant = filters.sift(self.table.changing, cause, filters.prematch, failed)
        needed = holding or any(handler.requires_finalizer for handler in relevant)
        unsure = bool(failed) and any(handler in failed for handler in self.table.finalizing)
        if not relevant and not needed and not held:
            self._skip(cause, failed, failures)
            return None

        cycle = self._continue_cycle(cycle, cause, essence, last, now)
        if recalled is not None and creating:
            cycle.base, cycle.edited = recalled, not is_same(recalled, essence)
        elif recalled is not None:
            cycle.assumed = recalled
        if reason in _UNCHANGED and relevant and (cycle.missed or cycle.revived):
            # The edits have reverted each other, but some have seen only one of them.
            reason = Reason.UPDATE
            cause = dataclasses.replace(cause, reason=reason)
        decision = Decision(
            cause=cause,
            cycle=cycle,
            essence=essence,
            last=last,
            relevant=bool(relevant),
            add_finalizer=needed and not held and not deleting,
            remove_finalizer=not needed and not unsure and held and not deleting,
        )
        if decision.add_finalizer or reason is Reason.FREE or (deletion_handled and deleting):
            return decision  # the object must not vanish unnoticed once its handlers have begun

        matching = filters.sift(relevant, cause, filters.match_change, failed)
        # Handlers of updates must not wait for the end of a creation longer than until the next change.
        cycle.skipping = self._skip(cause, failed, failures) and not (reason is Reason.CREATE and cycle.edited)
        decision.incomplete = cycle.skipping
        matching = self._revive(decision, matching, relevant, now)
        decision.matching = list(filters.deduplicate(matching))
        cycle.state.begin([handler.id for handler in decision.matching], now)
        decision.due = cycle.state.due(decision.matching, now)
        return decision

    def _skip(self, cause: ChangingCause, failed: filters.Failures, skipped: filters.Failures | None) -> bool:
        """Add those of the failed handlers that would be due to the skipped ones; check whether there are any."""
        due: filters.Failures = {
            handler: error
            for handler, error in failed.items()
            if isinstance(handler, ChangingHandler) and filters.may_match_change(handler, cause)
        }
        if skipped is not None:
            skipped.update(due)
            if cause.body['metadata'].get('deletionTimestamp') is None:
                # They are not due yet, but what is unknown of them is whether the object needs the finalizer.
                skipped.update((handler, failed[handler]) for handler in self.table.finalizing if handler in failed)
        return bool(due)

    def find_missing_fields(self, body: Body, make_cause: MakeCause) -> frozenset[FieldPath]:
        """Return the fields which would make the object match handlers of updates, if it had them."""
        if not self._awaiting_fields or body['metadata'].get('deletionTimestamp') is not None:
            return NO_FIELDS
        cause = make_cause(reason=Reason.NOOP, initial=False, old=None, new=self.essences.of(body), diff=EMPTY)
        missing_fields = filters.sift(self._awaiting_fields, cause, filters.lacks_field, {})
        return frozenset(handler.field for handler in missing_fields if handler.field)

    def find_handled_digest(self, decision: Decision, body: Body) -> str | None:
        """
        Give the digest of the state that was handled if the object is in it, but does not say so after our patch.

        Some storages store nothing, and the API drops what the schema of a kind does not name, such as most fields
        of the status. Without the digest, the same state would be handled again and again.
        """
        if not decision.relevant or decision.stored is None:
            return None
        try:
            essence = self.essences.of(body)
            if not is_same(essence, decision.stored) or self.essences.is_last(body, essence):
                return None
            is_kept = is_same(self.essences.fetch_last(body, essence), essence)
        except StorageError:
            is_kept = False  # it is right to know it twice
        return None if is_kept else digest_essence(decision.stored)

    def find_own_changes(self, decision: Decision, patch: Patch, conclusion: Patch, raw: RawBody | None) -> Diff:
        """Return by what the object differs from what was handled, if that is the effect of our own last patch."""
        if raw is None or decision.stored is None:
            return EMPTY
        try:
            essence = self.essences.of(Body(raw))
            if is_same(essence, decision.stored):
                return EMPTY
            if not patch or is_edited(decision.stored, essence, patch):  # functions of the patch are called to know
                predicted = bool(patch.fns) and is_same(self.essences.predict(decision.cause.body, patch), essence)
                if not predicted and not _is_caused_by_storing(decision, patch, conclusion, raw):
                    return EMPTY
        except StorageError:
            return EMPTY
        return diff(decision.stored, essence)

    def is_settled(self, body: Body, *, holding: bool = False, handled_digest: str | None = None) -> bool:
        """Tell at a glance that there is nothing to do about the object; in doubt, do not."""
        metadata = body['metadata']
        needed = holding or self._held_if_settled
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
        return not self.records.fetch_all(self.table.changing_ids, body)

    def _detect(
        self,
        body: Body,
        cycle: Cycle | None,
        essence: BodyEssence,
        last: BodyEssence | None,
        *,
        deleting: bool,
        held: bool,
        initial: bool,
    ) -> tuple[Reason, Diff]:
        if deleting:
            changes = EMPTY if last is None else diff(last, essence)
            return (Reason.DELETE if held else Reason.FREE), changes
        if last is None or self._is_creation_going_on(body, cycle):
            return Reason.CREATE, diff(None, essence)
        changes = diff(last, essence)
        if changes:
            return Reason.UPDATE, changes
        return (Reason.RESUME if initial and self.table.resuming_ids else Reason.NOOP), EMPTY

    def _recall(
        self,
        essence: BodyEssence,
        missing_fields: frozenset[FieldPath],
        make_cause: MakeCause,
    ) -> tuple[BodyEssence | None, bool]:
        """
        Return the essence without those of the fields that were added, if any were; and whether that is an update now.

        If it is a creation, the update follows; but not of the fields that handlers of the creation are for, too.
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
        """Tell whether the stored last handled state is of an edit in the middle of the creation."""
        if cycle is not None:
            return cycle.state.purpose == Reason.CREATE
        records = self.records.fetch_all(self.table.changing_ids, body)
        return bool(records) and any(record.get('purpose') == Reason.CREATE for record in records)

    def _continue_cycle(
        self,
        cycle: Cycle | None,
        cause: ChangingCause,
        essence: BodyEssence,
        last: BodyEssence | None,
        now: datetime.datetime,
    ) -> Cycle:
        if cycle is None or (
            cycle.state.purpose != cause.reason
            and not (cause.reason in _UNCHANGED and cycle.state.purpose == Reason.UPDATE)
        ):
            return self._load_cycle(cause, essence, last, now)
        if cycle.patched is not None:
            self._adjust(cycle, essence, cycle.patched)
            cycle.patched = None
        if cycle.unconfirmed is not None:
            unconfirmed, base = cycle.unconfirmed
            # If the patch was stored, and there are edits too, there are fewer differences to what it has made.
            if is_same(essence, unconfirmed) or (
                not is_same(essence, cycle.known) and len(diff(unconfirmed, essence)) < len(diff(cycle.known, essence))
            ):
                cycle.known, cycle.base = unconfirmed, base
                cycle.unconfirmed = None
        if not is_same(essence, cycle.known):
            self._notice_edit(cycle, essence)
        return cycle

    def _load_cycle(
        self,
        cause: ChangingCause,
        essence: BodyEssence,
        last: BodyEssence | None,
        now: datetime.datetime,
    ) -> Cycle:
        """Begin a new cycle, or go on with the one that the object has the records of."""
        if cause.reason in _UNCHANGED:
            # Nothing has changed since the last update, but some handlers can have seen what was in between.
            cycle = self._load_cycle_of(Reason.UPDATE, cause, essence, last, now)
            if cause.reason is Reason.NOOP or cycle.missed or cycle.revived:
                return cycle
        return self._load_cycle_of(cause.reason, cause, essence, last, now)

    def _load_cycle_of(
        self,
        purpose: Reason,
        cause: ChangingCause,
        essence: BodyEssence,
        last: BodyEssence | None,
        now: datetime.datetime,
    ) -> Cycle:
        state = State(purpose=purpose)
        state.load(
            self.table.changing_ids, storage=self.records, body=cause.body, now=now, keep=self.table.only_resuming_ids
        )
        base = last if last is not None and cause.reason is Reason.CREATE else essence
        cycle = Cycle(state=state, known=essence, base=base)
        outdated = find_outdated(state, essence)
        if purpose is Reason.UPDATE:
            for key in outdated:
                (cycle.missed if state[key].finished else cycle.revived)[key] = None
        elif purpose is Reason.CREATE:
            digested = any(record.digest is not None for record in state.values())
            if (
                not digested
                and last is None
                and missed_edits.is_changed_since_created(
                    cause.body, has_status='status' in self.table.resource.subresources
                )
            ):
                outdated = [key for key, record in state.items() if record.finished]
            cycle.missed = {key: None for key in outdated if key in self._updating}
            if outdated and last is None:
                # It was edited while nobody was there. If it is not known what it was before, all counts as changed.
                cycle.base, cycle.edited = self.essences.unpack(state.base, essence, cause.body), True
        return cycle

    def _notice_edit(self, cycle: Cycle, essence: BodyEssence) -> None:
        """Somebody has edited the object since the last step."""
        finished = [key for key, record in cycle.state.items() if record.finished]
        if cycle.state.purpose == Reason.CREATE:
            if finished or cycle.skipping or cycle.edited:
                cycle.edited = True
            else:
                cycle.base = essence
            finished = [key for key in finished if key in self._updating]
        if cycle.state.purpose in (Reason.CREATE, Reason.UPDATE):
            for key in finished:
                cycle.missed.setdefault(key, cycle.known)
            for key in [key for key, seen in cycle.missed.items() if is_same(seen, essence)]:
                del cycle.missed[key]  # the edit was reverted
        if cycle.state.purpose == Reason.UPDATE:
            # Those that are due again anyway need not be by the last edit any more, but have missed it, too.
            cycle.revived.update(
                {
                    key: None
                    for key in find_outdated(cycle.state, essence)
                    if key not in cycle.revived and not cycle.state[key].finished
                }
            )
        cycle.known = essence

    def _revive(
        self,
        decision: Decision,
        matching: list[ChangingHandler],
        relevant: Sequence[ChangingHandler],
        now: datetime.datetime,
    ) -> list[ChangingHandler]:
        """Make the finished handlers due again that have missed an edit; return all that match."""
        cycle, cause = decision.cycle, decision.cause
        if cause.reason is not Reason.UPDATE or not (cycle.missed or cycle.revived):
            return matching
        for key in [key for key in cycle.revived if key in cycle.state and cycle.state[key].finished]:
            del cycle.revived[key]
        for handler in relevant:
            if handler.id in cycle.missed and _is_for_updates(handler):
                seen = cycle.missed.pop(handler.id)
                if seen is None or filters.may_match(
                    handler, dataclasses.replace(cause, old=seen, diff=diff(seen, decision.essence))
                ):
                    if handler.id in cycle.state:
                        cycle.state.restart(handler.id, now)
                    cycle.revived[handler.id] = seen
        for key in [key for key in cycle.missed if key not in self.table.changing_ids]:
            del cycle.missed[key]  # a sub-handler of an unfinished parent
            cycle.state.restart(key, now)
        chosen = set(matching)
        chosen.update(handler for handler in relevant if handler.id in cycle.revived and _is_for_updates(handler))
        return [handler for handler in relevant if handler in chosen]

    def revert(self, decision: Decision, original: RawBody) -> None:
        """Go on with the decision about the object as it was before its handlers have changed it in place."""
        body, cycle, changed = decision.cause.body, decision.cycle, decision.essence
        body._replace_with(original)
        decision.essence = self.essences.of(body)
        cycle.known = decision.essence if cycle.known is changed else cycle.known
        cycle.base = decision.essence if cycle.base is changed else cycle.base

    def conclude(self, decision: Decision, patch: Patch, conclusion: Patch, *, done: bool) -> None:
        """Put into the conclusion what is to be stored with the patch: the progress, or the end of the cycle."""
        cycle, body, reason = decision.cycle, decision.cause.body, decision.reason
        if reason is Reason.FREE:
            return
        if done:
            cycle.state.purge(storage=self.records, body=body, patch=conclusion)
            decision.followup = self._follow(decision)
            if decision.followup is not None:
                decision.followup.state.store(storage=self.records, body=body, patch=conclusion)
            decision.stored = cycle.base if reason is Reason.CREATE else decision.essence
            if decision.relevant and reason in _STORING and not is_same(decision.stored, decision.last):
                self.essences.store_last(body, decision.stored, conclusion)
        else:
            self._move_along(decision, patch)
            cycle.state.store(storage=self.records, body=body, patch=conclusion)
            if cycle.edited and not is_same(cycle.base, decision.last):
                self.essences.store_last(body, cycle.base, conclusion)
            elif cycle.assumed is not None and cycle.assumed is decision.last:
                # Otherwise, a restarted operator would take the update for a creation.
                self.essences.store_last(body, cycle.assumed, conclusion)

    def _follow(self, decision: Decision) -> Cycle | None:
        """
        Give the cycle that goes on when this one is done, if any does; it is stored together with the end of this one.

        Of an edited creation, some handlers have seen other states than the first one did, from which the update is.
        They are due in it, also if the object becomes again what the first one has seen.
        """
        cycle, cause, essence = decision.cycle, decision.cause, decision.essence
        if cycle.state.purpose != Reason.CREATE or (is_same(cycle.base, essence) and not cycle.missed):
            return None
        followup = Cycle(State(Reason.UPDATE), known=essence, base=essence)
        for handler in self.table.changing:
            record = cycle.state.get(handler.id)
            if record is None or not record.finished or not _is_for_updates(handler):
                continue
            seen = cycle.missed.get(handler.id, essence)
            if seen is None or filters.may_match(
                handler,
                dataclasses.replace(cause, reason=Reason.UPDATE, old=cycle.base, new=seen, diff=diff(cycle.base, seen)),
            ):
                followup.revived[handler.id] = seen
                followup.state.inherit(handler.id, record, '' if seen is None else digest_essence(seen))
        return followup if followup.revived else None

    def _move_along(self, decision: Decision, patch: Patch) -> None:
        """Let all the handlers count as having seen what the patch changes."""
        cycle = decision.cycle
        decision.before, cycle.unconfirmed = (cycle.known, cycle.base), None
        self._move(decision, patch)
        creating = cycle.state.purpose == Reason.CREATE and bool(self._updating)
        if creating and not cycle.edited and self._is_put_off(cycle, decision.cause.body):
            cycle.state.keep_base(self.essences.pack(cycle.base, decision.cause.body))
        if cycle.state.purpose == Reason.UPDATE or creating:
            finished = [key for key, record in cycle.state.items() if record.finished and key not in cycle.missed]
            if finished:
                cycle.state.see(finished, digest_essence(cycle.known))

    def _move(self, decision: Decision, patch: Patch) -> None:
        cycle, essence = decision.cycle, decision.essence
        moved = self.essences.predict(decision.cause.body, patch)
        if not is_same(moved, essence) and cycle.state.purpose == Reason.CREATE:
            same = is_same(cycle.base, essence)
            cycle.base = moved if same else self.essences.predict_change(cycle.base, patch)
        cycle.known = moved

    def retract(self, decision: Decision, stored: Patch | None) -> None:
        """
        Undo what the patch was supposed to change: it is not stored, or only this of it, or nobody knows (``None``).

        Otherwise, what is as it was before would be taken for an edit by others.
        """
        cycle = decision.cycle
        if decision.before is None:
            return
        unconfirmed = cycle.known, cycle.base
        cycle.known, cycle.base = decision.before
        if stored is None:
            cycle.unconfirmed = None if all(map(is_same, unconfirmed, decision.before)) else unconfirmed
        elif stored:
            self._move(decision, stored)

    def _is_put_off(self, cycle: Cycle, body: Body) -> bool:
        """Tell if another operator can well go on with the creation later, with no idea of the edits until then."""
        if cycle.state.base is not None:
            return True
        if not isinstance(body.metadata.get('generation'), int):  # many built-in kinds have none
            return True
        stopped = max((record.stopped for record in cycle.state.values() if record.stopped is not None), default=None)
        return stopped is not None and all(
            record.delayed is not None and (record.delayed - stopped).total_seconds() >= LONG_DELAY
            for record in cycle.state.values()
            if not record.finished
        )

    def notice_patched(self, decision: Decision, patch: Patch, body: Body) -> None:
        """
        Compare what our patch has made of the object with what was expected of it.

        Values that the API has adjusted where we patched count as seen by the handlers. Other differences are edits
        of others, and are noticed by the next decision.
        """
        try:
            self._adjust(decision.cycle, self.essences.of(body), patch)
        except StorageError:
            decision.cycle.patched = patch  # the next decision can tell

    def _adjust(self, cycle: Cycle, actual: BodyEssence, patch: Mapping[str, Any]) -> None:
        if is_same(actual, cycle.known):
            return
        if not is_edited(cycle.known, actual, patch):
            if is_same(cycle.base, cycle.known):
                cycle.base = actual
            cycle.known = actual


def _is_for_updates(handler: ChangingHandler) -> bool:
    return not handler.initial and handler.reason in (None, Reason.UPDATE)


def find_outdated(state: State, essence: BodyEssence) -> list[HandlerId]:
    """Find the handlers that have seen something else than this essence, as far as their records tell."""
    seen = {key: record.digest for key, record in state.items() if record.digest is not None}
    digest = digest_essence(essence) if seen else None
    return [key for key in seen if seen[key] != digest]


def is_edited(old: BodyEssence, new: BodyEssence, patch: Mapping[str, Any]) -> bool:
    """Tell whether there are differences that the patch does not explain."""
    return not is_explained(diff(old, new), patch)


def is_explained(changes: Diff, patch: Mapping[str, Any]) -> bool:
    """Check whether the patch writes to all the fields that have changed."""
    return all(_is_touched(item.field, patch) for item in changes)


def _is_caused_by_storing(decision: Decision, patch: Patch, conclusion: Patch, raw: RawBody) -> bool:
    """Check whether only our patch has changed the object: then, the storages take what it writes for the essence."""
    if patch.fns or not is_same(decision.stored, decision.essence):
        return False
    written = combine_values(patch, conclusion)
    return all(
        item.field[:2] in _KEPT_BY_API or _is_touched(item.field, written)
        for item in diff(decision.cause.body._data(), raw)
    )


def _is_touched(field: tuple[str, ...], patch: Mapping[str, Any]) -> bool:
    """Tell whether the patch writes to the field, or above it, or below it."""
    value: Any = patch
    for key in field:
        if not isinstance(value, Mapping):
            return True
        if key not in value:
            return False
        value = value[key]
    return True


def deliver_results(outcomes: Mapping[HandlerId, Outcome], patch: Patch) -> None:
    """Put the results of handlers into the status: mappings are merged, everything else replaces."""
    for key, outcome in outcomes.items():
        if outcome.result is None:
            continue
        if isinstance(outcome.result, Mapping):
            known = patch.status.get(key)
            patch.status[key] = {**(known if isinstance(known, Mapping) else {}), **outcome.result}
        else:
            patch.status[key] = outcome.result


def is_delivered(result: Any, known: Any) -> bool:
    """Tell whether the status has the result already, so that delivering it would change nothing."""
    if isinstance(result, Mapping) and isinstance(known, Mapping):
        return is_same({**known, **result}, known, exact=False)
    return is_same(result, known, exact=False)
