"""
Detection of handlers that trigger themselves, such as an update handler that patches its own fields.

Such a loop often ends after some steps. An endless loop would take all of the CPU and flood the API. So the framework
logs it once, and slows it down with growing pauses until another client edits the object. If a handler sends a request
itself, instead of using the argument ``patch``, this counts as an edit by another client. Custom storages can also
cause loops: if their own data, or data that changes with each patch, belong to the essence. So can mutating webhooks
and policies that write something new into the object at each update, such as the current time: the operator's own
patches are updates, too.

Handlers of raw events (``@kopf.on.event``) must be called for each event, including those of status changes. So their
calls are not paused; instead, their patches are held back.
"""

import time
from collections.abc import Collection
from typing import cast

from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.bodies import Body, BodyEssence, RawBody
from kopf._cogs.structs.dicts import FieldPath
from kopf._cogs.structs.diffs import Diff, DiffOperation, diff, is_same
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.patches import Patch
from kopf._core.actions.loggers import ObjectLogger
from kopf._core.intents.decisions import Decider, Decision
from kopf._core.intents.edits import Writes, find_writes, is_explained, is_written_since

MAX_UPDATES = 20
"""The number of consecutive updates, each triggered by the patch of the former one, that run without pauses."""

MAX_GAP = 0.5
"""The longest time between two updates of one chain (in seconds). Less frequent updates need no pauses."""

MIN_PAUSE, MAX_PAUSE = 0.1, 60.0

_CAUSED_BY_HANDLERS = (
    "%s changes the object by its own patch (%s), and is called for this change again: by now, %d times "
    "in a row. From now on, there are growing pauses between the calls, until another client edits the "
    "object. Store results in the status, or change a field only if its value differs."
)
_CAUSED_BY_STORAGES = (
    "%s is called again because a storage in settings.persistence writes to the object, or counts its own data as a "
    "change (%s): by now, %d times in a row. From now on, there are growing pauses between the calls, until another "
    "client edits the object. Let build() of the diff-base storage omit the data that change with each patch."
)
_CAUSED_BY_MUTATIONS = (
    "%s is called again because the object has other changes (%s) each time that the operator has patched it: by now, "
    "%d times in a row. From now on, there are growing pauses between the calls, until another client edits the object."
    " Probably, a mutating webhook or a policy writes a new value at each update: let it do so only if something else "
    "has changed, or omit these fields by build() of the diff-base storage."
)
_CAUSED_BY_EVENTS = (
    "%s of raw events changes the object by its patch (%s), and is called for the event of this change again: by now, "
    "%d times in a row. From now on, its patches are sent after growing pauses, until another client edits the object. "
    "Change a field only if its value differs."
)


class SelfTriggeredChain:
    """Consecutive changes of one object, each triggered by the patch of the former one."""

    __slots__ = ('_count', '_essence', '_is_within', '_noticed_at', '_resumes_at', '_writes')

    def __init__(self) -> None:
        self._count = 0
        self._essence: BodyEssence | None = None
        self._writes: Writes | None = None
        self._is_within = False
        self._noticed_at = self._resumes_at = 0.0

    @property
    def is_within(self) -> bool:
        """Return whether the last change was a step within an update, so that the pause is for the next step."""
        return self._is_within

    @property
    def count(self) -> int:
        """The number of changes in the chain."""
        return self._count

    def note(self, essence: BodyEssence, *, within: bool = False) -> float:
        """Count a change with the resulting essence; return the pause before the next one (in seconds)."""
        now = time.monotonic()
        # The time is counted from the end of the pause: otherwise, the first long pause would end the chain.
        since = now - max(self._noticed_at, self._resumes_at)
        self._count = self._count + 1 if since <= MAX_GAP else 1
        self._essence, self._noticed_at, self._is_within = essence, now, within
        excess = self._count - MAX_UPDATES
        # Limit the exponent: the power would overflow after a thousand changes.
        pause = 0.0 if excess < 0 else min(MAX_PAUSE, MIN_PAUSE * 2.0 ** min(excess, 16))
        self._resumes_at = now + pause
        return pause

    def is_over(self, essence: BodyEssence) -> bool:
        """Check whether another client has edited the object since the last change."""
        return not is_same(essence, self._essence)

    def follow(self, essence: BodyEssence) -> None:
        """Called when the operator has patched the object for its daemons, or for level-triggered handlers."""
        self._essence = essence

    def note_writes(self, writes: Writes | None) -> None:
        """Note when others had last written to the object at the last change."""
        self._writes = writes

    def is_edited(self, essence: BodyEssence, fields: Collection[FieldPath], writes: Writes | None) -> bool:
        """Check whether another client has changed other fields than these since the last change of the chain."""
        changes = diff(self._essence, essence) if self._essence is not None else ()
        # Compare in both directions: a patch can replace a whole mapping when one key has changed, or set one key in a
        # new mapping.
        others = [
            item
            for item in changes
            if not any(item.field[: len(field)] == field or field[: len(item.field)] == item.field for field in fields)
        ]
        return any(item.operation is DiffOperation.REMOVE for item in others) or (
            bool(others) and is_written_since(self._writes, writes)
        )

    def get_pause(self) -> float:
        """Return the remaining time until the next change may be made (in seconds)."""
        return max(0.0, self._resumes_at - time.monotonic())


class SelfTriggerDetector:
    """Detects self-triggered changes of the objects of one resource."""

    def __init__(self, settings: OperatorSettings, decider: Decider) -> None:
        self._settings = settings
        self._decider = decider
        self._told: set[frozenset[HandlerId]] = set()
        self._told_of_events = False

    def check(self, chain: SelfTriggeredChain, body: Body) -> float | None:
        """
        Return the remaining pause (in seconds) before the object may be updated.

        Args:
            chain: the chain of updates of the object.
            body: the newest known state of the object.

        Returns:
            The pause; ``None`` if another client has edited or deleted the object, which ends the chain.
        """
        # A deletion is never paused: it is no update, and users wait for it.
        if body['metadata'].get('deletionTimestamp') is not None or chain.is_over(self._decider.essences.of(body)):
            return None
        return chain.get_pause()

    def note(
        self,
        chain: SelfTriggeredChain | None,
        decision: Decision,
        patch: Patch,
        bookkeeping: Patch,
        raw: RawBody | None,
        *,
        comparable: bool,
    ) -> tuple[SelfTriggeredChain | None, float]:
        """
        Called after an update: count it if the operator's own patch triggers the next one.

        Args:
            chain: the chain of updates of the object, if there is one.
            decision: the decision of the update.
            patch: the changes that its handlers have requested.
            bookkeeping: the data of the framework that were stored with them.
            raw: the state of the object after the patch, if it still exists.
            comparable: whether that state can be compared with what the patch must have made of the object.

        Returns:
            The chain, if the update belongs to one; and the pause before the next update (in seconds).
        """
        changes = self._decider.find_own_changes(decision, patch, bookkeeping, raw)
        if not changes:
            return self._note_mutation(chain, decision, patch, raw) if comparable else (None, 0)
        chain, body = chain or SelfTriggeredChain(), Body(cast(RawBody, raw))
        pause = chain.note(self._decider.essences.of(body))
        if pause and self._tell_once(decision):
            ObjectLogger(body=body, settings=self._settings).warning(
                _CAUSED_BY_HANDLERS if patch.fns or is_explained(changes, patch) else _CAUSED_BY_STORAGES,
                _name_handlers(decision),
                _name_fields(changes),
                chain.count,
            )
        return chain, pause

    def note_step(
        self, chain: SelfTriggeredChain | None, decision: Decision, patch: Patch, raw: RawBody | None
    ) -> tuple[SelfTriggeredChain | None, float]:
        """
        Called after the patch of a step that has not ended its update: count it if the object has been mutated.

        Handlers that have finished before are called again for mutations, and so the update could never end.
        """
        noted, pause = self._note_mutation(chain, decision, patch, raw, within=True)
        return noted or chain, pause

    def _note_mutation(
        self,
        chain: SelfTriggeredChain | None,
        decision: Decision,
        patch: Patch,
        raw: RawBody | None,
        *,
        within: bool = False,
    ) -> tuple[SelfTriggeredChain | None, float]:
        changes = self._decider.find_mutations(decision, patch, raw)
        if not changes:
            return None, 0
        chain, body = chain or SelfTriggeredChain(), Body(cast(RawBody, raw))
        pause = chain.note(self._decider.essences.of(body), within=within)
        if pause and self._tell_once(decision):
            ObjectLogger(body=body, settings=self._settings).warning(
                _CAUSED_BY_MUTATIONS, _name_handlers(decision), _name_fields(changes), chain.count
            )
        return chain, pause

    def _tell_once(self, decision: Decision) -> bool:
        """Note that these handlers are logged; return whether they were not logged yet."""
        keys = frozenset(handler.id for handler in decision.matching)
        is_first = keys not in self._told
        self._told.add(keys)
        return is_first

    def note_event(
        self, chain: SelfTriggeredChain | None, patch: Patch, body: Body, *, own: bool
    ) -> tuple[SelfTriggeredChain | None, float]:
        """
        Called after handlers of raw events: count their patch if their previous patch has caused this event.

        Patches that change nothing are not counted, as they bring no events. Patches of events in a pause are not
        counted either: one patch with the newest values is sent for all of them.

        Args:
            chain: the chain of patches of the object, if there is one.
            patch: the changes that the handlers request.
            body: the object in the event.
            own: whether the event shows the result of the operator's last patch, or an earlier state.

        Returns:
            The chain, if the patch belongs to one; and how long to hold back the patch (in seconds).
        """
        fields = _find_changed_fields(patch, body) if own else ()
        chain = chain or SelfTriggeredChain()
        if not fields:
            return None, 0
        essence, writes = self._decider.essences.of(body), find_writes(body._data())
        if chain.is_edited(essence, fields, writes):
            return None, 0
        pause = chain.get_pause() or chain.note(essence)
        chain.note_writes(writes)
        if pause and not self._told_of_events:
            self._told_of_events = True
            ObjectLogger(body=body, settings=self._settings).warning(
                _CAUSED_BY_EVENTS,
                ", ".join(f"Handler {handler.id!r}" for handler in self._decider.table.watching),
                ', '.join('.'.join(field) for field in fields),
                chain.count,
            )
        return chain, pause


def _name_handlers(decision: Decision) -> str:
    return ", ".join(f"Handler {key!r}" for key in sorted({handler.id for handler in decision.matching}))


def _name_fields(changes: Diff) -> str:
    return ', '.join(dict.fromkeys('.'.join(item.field) for item in changes))


def _find_changed_fields(patch: Patch, body: Body) -> Collection[FieldPath]:
    try:
        return list(dict.fromkeys(item.field for item in diff(body._data(), patch.applied_to(body))))
    except Exception:  # the functions of the patch have failed: they raise the error again when the patch is applied
        return ()
