"""
Cycles: the memory of a change of an object while it is handled, from the first step to the last one.

A cycle knows which states its finished handlers have seen. Two promises depend on that: no update is lost, and no
handler runs twice. If another client edits the object during a cycle, the effect depends on the kind of the cycle:

- An update: the finished handlers that match the edit are run again; the other handlers see the edit anyway. If the
  edit reverts the whole update, or the field of a handler, this includes the handlers that have failed temporarily.
- A creation: an update follows, from the state that the first finished handler has seen. If all remaining handlers are
  delayed for long, this state is stored with their records. Otherwise, only the digests of the states are stored:
  if the operator is killed then, the next one knows that there were edits, but not what they have changed.

Why not simply store the state in all cases? It can be as large as the object, and most creations take one step. All
handlers count as having seen the changes made by the operator's own patches.
"""

import dataclasses
import datetime
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kopf._cogs.structs.bodies import Body, BodyEssence
from kopf._cogs.structs.dicts import FieldPath, resolve
from kopf._cogs.structs.diffs import diff, is_same
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.patches import Patch
from kopf._core.actions.handler_states import State, digest_essence
from kopf._core.intents import filters, missed_edits
from kopf._core.intents.causes import ChangingCause, Reason
from kopf._core.intents.edits import digest_field, find_outdated, is_edited
from kopf._core.intents.essences import Essences
from kopf._core.intents.handlers import ChangingHandler
from kopf._core.intents.progress_records import ProgressRecords
from kopf._core.intents.registries import HandlerTable

LONG_DELAY = 1.0
"""If all remaining creation handlers are delayed for at least this time (in seconds), the first state is stored."""

UNCHANGED = (Reason.NOOP, Reason.RESUME)
"""The reasons that exclude a change since the last handled state."""


class Expected(NamedTuple):
    """The essences that are expected after the operator's own patch."""

    known: BodyEssence
    base: BodyEssence
    missed: dict[HandlerId, BodyEssence | None]


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Cycle:
    """The memory of one change of an object, from its first step to its last one. Objects at rest have no cycle."""

    state: State
    known: BodyEssence
    """The essence as of the last step, with the changes by the operator's own patch."""
    base: BodyEssence
    """The essence that is stored as the last handled one at the end of a creation."""
    missed: dict[HandlerId, BodyEssence | None] = dataclasses.field(default_factory=dict)
    """The essences that finished handlers have seen before an edit; ``None`` if unknown."""
    revived: dict[HandlerId, BodyEssence | None] = dataclasses.field(default_factory=dict)
    """The entries of `missed` whose handlers are being run again because of the edit, until they finish."""
    unconfirmed: tuple[BodyEssence, BodyEssence] | None = None
    """The essence and the base that are valid if the last patch was stored although its request has failed."""
    skipping: bool = False
    """Whether some filters have failed: as their handlers may be due, the cycle must not end before the next change."""
    patched: tuple[Patch, Collection[FieldPath]] | None = None
    """The last patch, and the fields that its functions write, if its effect could not be determined yet."""
    edited: bool = False
    """
    Whether the base must be stored before the end of the cycle, because the object was edited since.
    """
    assumed: BodyEssence | None = None
    """The last handled essence if it is only in memory: it is stored with the first step of an update."""
    external: Any = None
    """
    The data that custom storages kept outside of the object when its progress was last saved; see `Decider.look_up`.
    """

    def recall(self, essence: BodyEssence, *, creating: bool) -> None:
        """Begin with the state that was remembered when no handler matched the object; see `find_missing_fields`."""
        if creating:
            self.edited = not is_same(essence, self.base)
            self.base = essence
        else:
            self.assumed = essence

    def note_external(self, external: Any) -> None:
        """Remember the data of custom storages at the beginning of a pause; ``None`` when the pause is over."""
        self.external = external

    def skip(self, skipping: bool) -> None:
        """Note whether filters have failed in this step."""
        self.skipping = skipping

    def postpone_check(self, patch: Patch, written: Collection[FieldPath]) -> None:
        """Keep the patch, so that the next step determines its effect on the object; see `adjust`."""
        self.patched = patch, written

    def revert(self, changed: BodyEssence, original: BodyEssence) -> None:
        """Replace the essence that handlers have changed in place with the original one."""
        self.known = original if self.known is changed else self.known
        self.base = original if self.base is changed else self.base

    @property
    def expected(self) -> Expected:
        """The essences that are expected now; see `retract`."""
        return Expected(self.known, self.base, dict(self.missed))

    def retract(self, before: Expected, *, lost: bool) -> None:
        """Undo the expected effect of a patch that was refused, or, with ``lost``, whose response was lost."""
        unconfirmed = self.known, self.base
        self.known, self.base, self.missed = before
        if lost:
            unchanged = is_same(unconfirmed[0], before.known) and is_same(unconfirmed[1], before.base)
            self.unconfirmed = None if unchanged else unconfirmed

    def begin_refused(self, now: datetime.datetime) -> Collection[HandlerId]:
        """Begin the handlers anew whose changes of the object were refused; return their ids."""
        keys = self.state.begin_refused(now)
        for key in keys:
            seen = self.missed.pop(key, self.known)
            if self.state.purpose in (Reason.CREATE, Reason.UPDATE):
                # They run also if the edit reverts what they have seen: a part of it may be applied already.
                self.revived.setdefault(key, seen)
        return keys

    def adjust(self, actual: BodyEssence, patch: Mapping[str, Any], written: Collection[FieldPath]) -> None:
        """
        Accept the essence that the API server has made of the patch, unless there are edits by other clients.

        Args:
            actual: the essence after the patch.
            patch: the patch.
            written: the fields that the functions of the patch write.
        """
        if not is_same(actual, self.known) and not is_edited(self.known, actual, patch, written):
            if is_same(self.base, self.known):
                self.base = actual
            self.known = actual


class Cycles:
    """Begins and continues the cycles of all objects of one resource."""

    __slots__ = ('_changed_ids', '_concerned', '_essences', '_fields', '_records', '_table', '_updating')

    def __init__(self, table: HandlerTable, essences: Essences, records: ProgressRecords) -> None:
        self._table = table
        self._essences = essences
        self._records = records
        # The handlers that run for an edit during a creation.
        self._updating = frozenset(handler.id for handler in table.changing if is_for_updates(handler))
        # The handlers whose work is outdated by an edit during a creation.
        self._concerned = self._updating.union(
            handler.id for handler in table.changing if handler.reason is Reason.CREATE and not handler.initial
        )
        self._fields = find_fields(table)
        # The handlers that run for changes of fields, whatever the reason is. If they have succeeded in an update, and
        # its object is deleted before the update ends, the deletion does not call them again for the same change.
        self._changed_ids = frozenset(
            handler.id for handler in table.changing if handler.reason is None and not handler.initial
        ) - {handler.id for handler in table.changing if handler.reason is Reason.DELETE}

    def revise(self, table: HandlerTable) -> None:
        """Continue with a new definition of the resource, with the same handlers."""
        self._table = table

    def continue_(
        self,
        cycle: Cycle | None,
        cause: ChangingCause,
        essence: BodyEssence,
        last: BodyEssence | None,
        now: datetime.datetime,
    ) -> Cycle:
        """Return the cycle for this cause: the current one with the edits noted, the stored one, or a new one."""
        if cycle is None or (
            # If an update is reverted to the last handled state, its cycle continues, so that its handlers see the
            # reversal.
            cycle.state.purpose != cause.reason
            and not (cause.reason in UNCHANGED and cycle.state.purpose == Reason.UPDATE)
        ):
            loaded = self._load(cause, essence, last, now)
            if cycle is not None:
                # A resuming handler must run only once in a process, even if another cycle supersedes the one in which
                # it ran. Handlers with the same id that are declared for this cycle must run nevertheless.
                loaded.state.carry_over(cycle.state, self._table.resuming_ids - self._find_own(cause.reason))
                if cause.reason is Reason.DELETE:
                    loaded.state.carry_over(cycle.state, self._find_satisfied(cycle, essence))
            return loaded
        if cycle.patched is not None:
            cycle.adjust(essence, *cycle.patched)
            cycle.patched = None
        if cycle.unconfirmed is not None:
            unconfirmed, base = cycle.unconfirmed
            # It is unknown whether the patch was stored. Another client can have edited the object, too, so both
            # essences can differ from the present one. The essence with fewer differences is assumed to be right.
            if is_same(essence, unconfirmed) or (
                not is_same(essence, cycle.known) and len(diff(unconfirmed, essence)) < len(diff(cycle.known, essence))
            ):
                cycle.known, cycle.base = unconfirmed, base
                cycle.unconfirmed = None
        if not is_same(essence, cycle.known):
            seen = cycle.known
            self._note_edit(cycle, essence)
            if cycle.state.purpose == Reason.UPDATE:
                for key in self._find_reverted(cycle.state, cause, essence):
                    cycle.revived.setdefault(key, seen)
        return cycle

    def resume_again(self, cycle: Cycle, resumed: Collection[HandlerId], now: datetime.datetime) -> None:
        """
        Ignore the successes of resuming handlers in former processes, in a cycle that was just loaded.

        They restore the memory of their process, so each process calls them once. Those of handlers that are for this
        change, too, are kept: the change must be handled once.

        Args:
            cycle: the cycle.
            resumed: the handlers that have finished in this process.
            now: the current time.
        """
        for key in self._table.resuming_ids - self._find_own(cycle.state.purpose) - set(resumed):
            for each in cycle.state.begin_again(key, now):
                cycle.missed.pop(each, None)

    def _find_own(self, purpose: str | None) -> set[HandlerId]:
        """Return the handlers of changes with this purpose, also if they are resuming handlers, too."""
        return {each.id for each in self._table.changing if not each.initial and each.reason in (None, purpose)}

    def _load(
        self,
        cause: ChangingCause,
        essence: BodyEssence,
        last: BodyEssence | None,
        now: datetime.datetime,
    ) -> Cycle:
        """Return a new cycle, or the one whose records are stored in the object."""
        if cause.reason in UNCHANGED:
            # The object is as it was after the last update, but some handlers can have seen another state in the
            # meantime.
            cycle = self._load_for(Reason.UPDATE, cause, essence, last, now)
            if cause.reason is Reason.NOOP or cycle.missed or cycle.revived:
                return cycle
        return self._load_for(cause.reason, cause, essence, last, now)

    def _load_for(
        self,
        purpose: Reason,
        cause: ChangingCause,
        essence: BodyEssence,
        last: BodyEssence | None,
        now: datetime.datetime,
    ) -> Cycle:
        state = State(purpose=purpose)
        ids, kept = self._table.changing_ids, self._table.only_resuming_ids
        if purpose is Reason.DELETE:
            kept = kept | self._changed_ids
        state.load(ids, storage=self._records, body=cause.body, now=now, keep=kept)
        # If a state is stored while a creation is in progress, it is the state that the first handlers have seen.
        base = last if last is not None and cause.reason is Reason.CREATE else essence
        cycle = Cycle(state=state, known=essence, base=base, edited=purpose is Reason.CREATE and last is not None)
        outdated = find_outdated(state, essence, self._fields)
        if purpose is Reason.DELETE:
            for key in outdated:
                if key in self._changed_ids and state[key].purpose != purpose:
                    state.restart(key, now)
        if purpose is Reason.UPDATE:
            for key in outdated:
                (cycle.missed if state[key].finished else cycle.revived)[key] = None
            cycle.revived.update(dict.fromkeys(self._find_reverted(state, cause, essence)))
        elif purpose is Reason.CREATE:
            if last is None and self._is_edited_without_digests(state, cause.body):
                outdated = [key for key, record in state.items() if record.finished]
            if outdated and last is None:
                # The object was edited while no operator was running. If its former state is unknown, all fields count
                # as changed.
                cycle.base, cycle.edited = self._essences.unpack(state.base, essence, cause.body), True
            for key in outdated:
                if key in self._concerned:
                    is_first = key not in self._updating and state[key].digest == self._digest(key, cycle.base)
                    cycle.missed[key] = cycle.base if is_first else None
        return cycle

    def _is_edited_without_digests(self, state: State, body: Body) -> bool:
        # Upstream's records contain no digests.
        if any(record.digest is not None for record in state.values()):
            return False
        has_status = 'status' in self._table.resource.subresources
        return missed_edits.is_changed_since_created(body, has_status=has_status)

    def _find_satisfied(self, cycle: Cycle, essence: BodyEssence) -> set[HandlerId]:
        """Return those of the handlers for changes of any reason that have seen this essence, if they are finished."""
        outdated = {*cycle.missed, *find_outdated(cycle.state, essence, self._fields)}
        unchanged = is_same(cycle.known, essence)
        # Without a digest, nothing was stored since the handler has finished: it has seen the known essence.
        found = (key for key in self._changed_ids - outdated if key in cycle.state)
        return {key for key in found if unchanged or cycle.state[key].digest is not None}

    def _find_reverted(self, state: State, cause: ChangingCause, essence: BodyEssence) -> list[HandlerId]:
        """
        Return the handlers that have failed temporarily for an edit that was reverted.

        They are tried again with the former state: a part of the edit may be applied already. If only some fields are
        back in the former state, these are the handlers of these fields.
        """
        tried = [key for key, record in state.items() if not record.finished and record.retries]
        if cause.reason in UNCHANGED:
            return tried
        fields = ((key, self._fields[key]) for key in tried if key in self._fields)
        return [key for key, field in fields if is_same(resolve(cause.old, field, None), resolve(essence, field, None))]

    def _note_edit(self, cycle: Cycle, essence: BodyEssence) -> None:
        """Called when another client has edited the object since the last step."""
        finished = [key for key, record in cycle.state.items() if record.finished]
        if cycle.state.purpose == Reason.CREATE:
            if finished or cycle.skipping or cycle.edited:
                cycle.edited = True
            else:
                cycle.base = essence
            finished = [key for key in finished if key in self._concerned]
        if cycle.state.purpose in (Reason.CREATE, Reason.UPDATE):
            for key in finished:
                # After several edits, keep the state before the first edit, because the handler has seen that one.
                cycle.missed.setdefault(key, cycle.known)
            for key in [key for key, seen in cycle.missed.items() if is_same(seen, essence)]:
                del cycle.missed[key]  # the edit was reverted
        if cycle.state.purpose == Reason.UPDATE:
            # Handlers that are already being run again have missed this edit, too, even if their filters do not match
            # it.
            cycle.revived.update(
                {
                    key: None
                    for key in find_outdated(cycle.state, essence, self._fields)
                    if key not in cycle.revived and not cycle.state[key].finished
                }
            )
        cycle.known = essence

    def revive(
        self,
        cycle: Cycle,
        cause: ChangingCause,
        matching: list[ChangingHandler],
        relevant: Sequence[ChangingHandler],
        now: datetime.datetime,
    ) -> list[ChangingHandler]:
        """Restart the finished handlers that have missed an edit; return all matching ones, with the restarted ones."""
        # In a creation, the update that follows handles the edit, except for handlers that had failed, or whose changes
        # were refused, when their field was removed; in a deletion, the edit does not matter any more.
        if cause.reason is Reason.CREATE and cycle.revived:
            revived = [each for each in relevant if each.id in cycle.revived and _is_for_fields(each)]
            return [handler for handler in relevant if handler in matching or handler in revived]
        if cause.reason is not Reason.UPDATE or not (cycle.missed or cycle.revived):
            return matching
        for key in [key for key in cycle.revived if key in cycle.state and cycle.state[key].finished]:
            del cycle.revived[key]
        for handler in relevant:
            if handler.id in cycle.missed and is_for_updates(handler):
                seen = cycle.missed.pop(handler.id)
                # Match the change since the state that the handler has seen, which can differ from the change of the
                # cycle. If that state is unknown, run the handler: a needless run is better than a lost update.
                if seen is None or filters.may_match(
                    handler, dataclasses.replace(cause, old=seen, diff=diff(seen, cause.new))
                ):
                    if handler.id in cycle.state:
                        # With the digest, another operator that continues the cycle knows that the handler must run,
                        # even if the edit has reverted what the handler has seen.
                        digest = '' if seen is None else self._digest(handler.id, seen)
                        cycle.state.restart(handler.id, now, digest)
                    cycle.revived[handler.id] = seen
        for key in [key for key in cycle.missed if key not in self._table.changing_ids]:
            del cycle.missed[key]  # a sub-handler of an unfinished parent
            cycle.state.restart(key, now)
        chosen = set(matching)
        chosen.update(handler for handler in relevant if handler.id in cycle.revived and is_for_updates(handler))
        # Keep the order of declaration, because lifecycles depend on it.
        return [handler for handler in relevant if handler in chosen]

    def find_called(self, cycle: Cycle, handlers: Iterable[ChangingHandler]) -> list[ChangingHandler]:
        """
        Return those of the handlers that were called for a state in between, and must learn of the state after it.

        Those that have failed temporarily are tried again: a part of the change may be applied already.
        """
        called = []
        for handler in handlers:
            record = cycle.state.get(handler.id)
            # Creation handlers need not learn that a field is gone: nothing is created for it any more.
            is_concerned = cycle.state.purpose == Reason.UPDATE or handler.reason is None
            if is_concerned and record is not None and record.retries and not record.finished:
                cycle.revived.setdefault(handler.id, None)
            if handler.id in cycle.missed or handler.id in cycle.revived:
                called.append(handler)
        return called

    def follow(self, cycle: Cycle, cause: ChangingCause, essence: BodyEssence) -> Cycle | None:
        """
        Return the update that follows an edited creation, if any; it is stored together with the end of the creation.

        The update starts from the state that the first creation handler has seen. Handlers that have seen another state
        are run in the update even if the object is back in that first state. If handlers of the creation alone have
        seen another state, the update handlers are run that match the change since then.
        """
        if cycle.state.purpose != Reason.CREATE or (is_same(cycle.base, essence) and not cycle.missed):
            return None
        followup = Cycle(State(Reason.UPDATE), known=essence, base=essence)
        # What has changed since the base is an update in any case. If a state is unknown, a needless run is better than
        # a lost update.
        outdated = [
            key
            for key, seen in cycle.missed.items()
            if key not in self._updating and (seen is None or not is_same(seen, cycle.base))
        ]
        # If it is taken back before the update begins, those creation handlers that have seen it are not up to date.
        current = [] if is_same(cycle.base, essence) else self._find_current(cycle)
        for handler in self._table.changing:
            record = cycle.state.get(handler.id)
            if not is_for_updates(handler) or (record is not None and not record.finished):
                continue
            for key in [*outdated, *current] if record is None else [handler.id]:
                seen = cycle.missed.get(key, essence)
                old, new = (seen, essence) if key in outdated else (cycle.base, seen)
                if old is None or new is None or self._matches_update(handler, cause, old, new):
                    followup.revived[handler.id] = seen
                    # The digest in the record shows which state was seen, so another operator can tell that it is
                    # outdated.
                    digest = '' if seen is None else self._digest(handler.id, seen)
                    followup.state.inherit(handler.id, cycle.state[key], digest)
                    break
        return followup if followup.revived else None

    def _find_current(self, cycle: Cycle) -> list[HandlerId]:
        """Return the finished handlers of the creation alone that have seen the present state."""
        keys = self._concerned - self._updating - cycle.missed.keys()
        return [key for key, record in cycle.state.items() if record.finished and key in keys]

    @staticmethod
    def _matches_update(handler: ChangingHandler, cause: ChangingCause, old: BodyEssence, new: BodyEssence) -> bool:
        """Check whether the handler matches the update from one state to the other."""
        update = dataclasses.replace(cause, reason=Reason.UPDATE, old=old, new=new, diff=diff(old, new))
        return filters.may_match(handler, update)

    def advance(self, cycle: Cycle, body: Body, essence: BodyEssence, patch: Patch) -> None:
        """Treat the changes of the patch as seen by all handlers."""
        cycle.unconfirmed = None
        self.predict(cycle, body, essence, patch)
        creating = cycle.state.purpose == Reason.CREATE and bool(self._updating)
        # The base is as large as the object, so it is stored only if another operator is likely to need it.
        if creating and not cycle.edited and _is_put_off(cycle, body):
            cycle.state.keep_base(self._essences.pack(cycle.base, body))
        if cycle.edited and cycle.state.purpose == Reason.CREATE:
            cycle.state.mark_edited()
        if cycle.state.purpose == Reason.UPDATE or creating:
            finished = [key for key, record in cycle.state.items() if record.finished and key not in cycle.missed]
            fields = {} if creating else self._fields
            if others := [key for key in finished if key not in fields]:
                cycle.state.see(others, digest_essence(cycle.known))
            for key in finished:
                if key in fields:
                    cycle.state.see([key], digest_field(cycle.known, fields[key]))
        if creating:
            # With the digest of the base, the next operator knows that these handlers have seen nothing else.
            for key, seen in cycle.missed.items():
                if key not in self._updating and seen is not None and is_same(seen, cycle.base):
                    cycle.state.see([key], self._digest(key, cycle.base))

    def _digest(self, key: HandlerId, essence: BodyEssence) -> str:
        """Return the digest of the essence for an update handler; for a handler of one field, only of this field."""
        field = self._fields.get(key)
        return digest_essence(essence) if field is None else digest_field(essence, field)

    def predict(self, cycle: Cycle, body: Body, essence: BodyEssence, patch: Patch) -> None:
        """Replace the known essence and the base with those that are expected after the patch."""
        predicted = self._essences.predict(body, patch)
        if not is_same(predicted, essence) and cycle.state.purpose == Reason.CREATE:
            same = is_same(cycle.base, essence)
            cycle.base = predicted if same else self._essences.predict_change(cycle.base, patch)
            for key, seen in cycle.missed.items():
                if key not in self._updating and seen is not None:
                    cycle.missed[key] = self._essences.predict_change(seen, patch)
        cycle.known = predicted


def find_fields(table: HandlerTable) -> Mapping[HandlerId, FieldPath]:
    """Return the fields of the handlers that are for one field. Other changes do not concern them."""
    fields: dict[HandlerId, set[FieldPath | None]] = {}
    for handler in table.changing:
        fields.setdefault(handler.id, set()).add(handler.field)
    return {key: field for key, found in fields.items() if len(found) == 1 for field in found if field}


def _is_put_off(cycle: Cycle, body: Body) -> bool:
    """Check whether another operator that continues the creation could not detect the edits made so far."""
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


def _is_for_fields(handler: ChangingHandler) -> bool:
    """Check whether the handler is for the changes of a field, whatever their reason is."""
    return not handler.initial and handler.reason is None


def is_for_updates(handler: ChangingHandler) -> bool:
    """Check whether the handler can be run for updates, whatever its filters are."""
    return not handler.initial and handler.reason in (None, Reason.UPDATE)
