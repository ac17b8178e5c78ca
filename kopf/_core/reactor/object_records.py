"""
The records of the objects that an operator has seen.

Each object has one slotted record. For an object at rest, the record holds only its identity and a few flags.
All other attributes (the body, the progress of a change, the timer, the memo) are only set while they are needed.
"""

import asyncio
import contextlib
import datetime
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import orjson

from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.helpers.jsontexts import dump_tightly
from kopf._cogs.structs.bodies import Body, RawBody, RawEvent
from kopf._cogs.structs.dicts import FieldPath
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.instruments import ObjectKey
from kopf._cogs.structs.patches import Patch
from kopf._cogs.structs.references import Resource
from kopf._core.actions.loggers import LocalObjectLogger, ObjectLogger
from kopf._core.intents.decisions import NO_FIELDS

if TYPE_CHECKING:
    from kopf._core.intents.cycles import Cycle
    from kopf._core.reactor.echoes import Expectation
    from kopf._core.reactor.informer import IndexingState
    from kopf._core.reactor.selftriggers import SelfTriggeredChain
    from kopf._core.reactor.throttling import Throttle

_UNSET: Any = object()

NO_HANDLERS: Final[frozenset[HandlerId]] = frozenset()


class _ObservedEvent(RawEvent):
    """An event for which the handlers of raw events were called, but whose step has failed afterwards."""

    observed: bool


class ObjectRecord:
    """
    The identity, state, and plans of one object, from its first event until its deletion is handled.

    Only this class assigns its attributes. Other modules call its transitions, which are named methods.
    """

    __slots__ = (
        '__weakref__',
        'body',
        'cycle',
        'daemons',
        'deletion_handled',
        'expected',
        'handled_digest',
        'has_worker',
        'indexing',
        'initial',
        'lapses',
        'level',
        'memo',
        'missing_fields',
        'name',
        'namespace',
        'outdated',
        'pending',
        'pending_patch',
        'requeued',
        'resumed',
        'selfpatching',
        'selftriggering',
        'throttle',
        'throttled',
        'uid',
        'unverified',
        'wakeup',
    )

    def __init__(self, uid: str, namespace: str | None, name: str, *, initial: bool) -> None:
        self.uid = uid
        self.namespace = sys.intern(namespace) if type(namespace) is str else namespace  # namespaces are shared
        self.name = name
        self.initial = initial
        """Whether the object existed before this process started to watch, and is not resumed yet."""

        self.expected: Expectation | None = None
        """The state after the operator's last patch, until the stream brings it or a newer one."""

        self.pending: RawEvent | bytes | list[RawEvent] | None = None
        """
        The newest event that is not processed yet; serialized if it has to wait. Read it by `take_pending`.

        It is a list of two events if the object was deleted and exists again, e.g. because it matches the label
        selector again.
        """
        self.body: RawBody | None = None
        """The newest known state, while the object has work, a timer, or a cycle."""
        self.outdated = False
        """
        Whether that state is known to be outdated, because the API server has refused a patch made for it.

        If no state is known: whether the next one must be verified, because the API server has reported the object
        as missing.
        """
        self.requeued = False
        """Whether the object must be processed even without an event."""
        self.has_worker = False
        """Whether the object is queued for a worker, or has one."""
        self.wakeup: asyncio.TimerHandle | None = None
        """The timer that requeues the object."""
        self.throttle: Throttle | None = None
        """The consecutive failures to process the object, if the last attempt has failed."""
        self.throttled = False
        """Whether events are kept until the next attempt after a failure."""

        self.cycle: Cycle | None = None
        """The change that is being handled."""
        self.unverified = False
        """Whether other operators can have handled that change in a pause, before its progress could be stored."""
        self.lapses = 0
        """The value of `WorkerPool.lapses` when the last step has begun."""
        self.resumed: frozenset[HandlerId] = NO_HANDLERS
        """The resuming handlers that have finished in this process, until all of them have."""
        self.deletion_handled = False
        """Whether the deletion is handled, so that only the finalizer must be removed."""
        self.handled_digest: str | None = None
        """The digest of the last handled state, if that state cannot be stored on the object."""
        self.missing_fields: frozenset[FieldPath] = NO_FIELDS
        """The fields whose absence keeps some handlers from matching: adding such a field counts as an update."""
        self.selftriggering: SelfTriggeredChain | None = None
        """The consecutive updates that the handlers have triggered by their own patches, if there are any."""
        self.selfpatching: SelfTriggeredChain | None = None
        """The consecutive patches that handlers of raw events have triggered by their own patches, if there are any."""
        self.pending_patch: Patch | None = None
        """The changes that handlers have requested, but that could not be applied to the object yet."""
        self.indexing: IndexingState | None = None
        """The state of indexing while the object is being indexed, or excluded from an index."""
        self.memo: Any = _UNSET
        """The memo that all handlers of the object share. Read it by `get_memo`."""
        self.daemons: Any = None
        """The daemons and timers (`spawning.ObjectDaemons`), if there are any."""
        self.level: Any = None
        """The state for level-triggered handlers (`levels.ObjectLevel`); ``None`` if there are no such handlers."""

    def __repr__(self) -> str:
        return f"<{self.namespace}/{self.name}>" if self.namespace else f"<{self.name}>"

    # Questions.

    @property
    def in_use(self) -> bool:
        """Return whether a worker, a timer, a daemon, an index function, or an expected echo refers to this record."""
        return (
            self.has_worker
            or self.throttled
            or self.daemons is not None
            or self.indexing is not None
            or self.expected is not None
        )

    @property
    def is_vanishing(self) -> bool:
        """Return whether the pending event is the final DELETED event."""
        pending = self._get_pending()
        return bool(pending) and pending[-1]['type'] == 'DELETED'

    @property
    def in_memory_only(self) -> bool:
        """Return whether the progress or the patches of handlers are not stored on the object yet."""
        return self.pending_patch is not None or (self.cycle is not None and self.cycle.state.in_memory_only)

    @property
    def is_being_deleted(self) -> bool:
        """Return whether the newest known state of the object is deleted, or marked for deletion."""
        if pending := self._get_pending():
            return is_deleted(pending[-1])
        if self.body is not None:
            return is_deleted({'type': None, 'object': self.body})
        return self.daemons is not None and (
            self.daemons.gone or self.daemons.body.metadata.get('deletionTimestamp') is not None
        )

    @property
    def has_work(self) -> bool:
        """Return whether the object has a pending event, or is requeued."""
        return self.pending is not None or self.requeued

    # The memo.

    def get_memo(self, factory: Callable[[], Any]) -> Any:
        """Return the memo; create it by the factory at the first call."""
        if self.memo is _UNSET:
            self.memo = factory()
        return self.memo

    # Events.

    def put_pending(self, event: RawEvent) -> None:
        """Keep the event for the worker. It replaces an older event, except for a deletion, which handlers must see."""
        if self.pending is not None and event['type'] != 'DELETED' and (departure := self._get_departure()) is not None:
            self.pending = [departure, event]
        else:
            self.pending = event

    def _get_pending(self) -> list[RawEvent]:
        pending = orjson.loads(self.pending) if isinstance(self.pending, bytes) else self.pending
        return pending if isinstance(pending, list) else [] if pending is None else [pending]

    def _get_departure(self) -> RawEvent | None:
        """Return the pending deletion, even if the object exists again and its next event is pending, too."""
        # Why not parse it first? This is called for each event of a queued object, and pending events are seldom
        # deletions.
        if isinstance(self.pending, bytes) and b'"DELETED"' not in self.pending:
            return None
        pending = self._get_pending()
        return pending[0] if pending and pending[0]['type'] == 'DELETED' else None

    def fold_pending(self) -> None:
        """Serialize the pending event, as thousands can be queued: the text takes a fifth of the memory."""
        if self.pending is not None and not isinstance(self.pending, bytes):
            with contextlib.suppress(TypeError):  # for integers beyond 64 bits and for lone surrogates
                self.pending = dump_tightly(self.pending)

    def begin_step(self, lapses: int) -> None:
        """Called before a step, with the number of lapses of the operator: see `WorkerPool.lapses`."""
        if lapses != self.lapses:
            self.lapses = lapses
            self.unverified = self.unverified or self.in_memory_only

    def take_pending(self) -> RawEvent | None:
        """Return the next pending event, if there is one, and remove it."""
        event, self.pending = self.pending, None
        if isinstance(event, bytes):
            event = orjson.loads(event)
        if isinstance(event, list):
            event, self.pending = event
        return event

    def peek_pending(self) -> RawEvent | None:
        """Return the newest pending event, if there is one, and keep it."""
        pending = self._get_pending()
        return pending[-1] if pending else None

    def put_back(self, event: RawEvent, *, observed: bool = False) -> None:
        """
        Keep the event for another attempt, unless a newer one replaces it.

        Args:
            event: the event.
            observed: whether the handlers of raw events were called for it; see `was_observed`.
        """
        if observed:
            # Why not in a copy? An event that is kept is no reason for another attempt, as a new one is.
            cast(_ObservedEvent, event)['observed'] = True
        newer, self.pending = self._get_pending(), event
        for each in newer:
            self.put_pending(each)

    def expect(self, expectation: 'Expectation | None') -> None:
        """Expect the stream to bring this state; ``None`` to expect nothing."""
        self.expected = expectation

    def stop_expecting(self, expectation: 'Expectation') -> None:
        """Stop expecting this state; do nothing if another state is expected by now."""
        if self.expected is expectation:
            self.expected = None

    def mark_initial(self) -> None:
        """Treat the object as if it existed before this process, so that its resuming handlers run."""
        self.initial = True

    # The queue of workers.

    def requeue(self) -> None:
        """Request processing without an event."""
        self.requeued = True

    def cancel_requeue(self) -> None:
        """Withdraw `requeue`: only an event or a timer starts the next step."""
        self.requeued = False

    def take_requeue(self) -> bool:
        """Return whether the object is requeued, and clear that."""
        requeued, self.requeued = self.requeued, False
        return requeued

    def assign_worker(self) -> None:
        """Called when the object is queued for a worker, or gets one at once."""
        self.has_worker = True

    def free_worker(self) -> None:
        """Called when the worker has ended, or the object is removed from the queue."""
        self.has_worker = False

    def wake_by(self, timer: asyncio.TimerHandle) -> None:
        """Remember the timer that requeues the object; cancel the former one."""
        self.cancel_wakeup()
        self.wakeup = timer

    def cancel_wakeup(self) -> None:
        """Cancel the timer that requeues the object."""
        if self.wakeup is not None:
            self.wakeup.cancel()
            self.wakeup = None

    def wake(self) -> None:
        """Called when the timer fires, which also ends a delay after a failure."""
        self.wakeup, self.throttled = None, False

    # Failures of the framework.

    def hold_off(self, throttle: 'Throttle') -> None:
        """Keep further events until the next attempt."""
        self.throttle, self.throttled = throttle, True

    def end_throttling(self) -> None:
        """Called when the object is processed without a failure."""
        self.throttle = None

    def watch_selftriggering(self, chain: 'SelfTriggeredChain | None') -> None:
        """Set the updates that the handlers trigger by their own patches; ``None`` when they have ended."""
        self.selftriggering = chain

    def watch_selfpatching(self, chain: 'SelfTriggeredChain | None') -> None:
        """Set the patches that handlers of raw events trigger themselves; ``None`` when they have ended."""
        self.selfpatching = chain

    # The state, and the cycle that handles it.

    def accept(self, raw: RawBody) -> None:
        """Set the newest known state."""
        self.body, self.outdated = raw, False
        if self.deletion_handled and raw['metadata'].get('deletionTimestamp') is None:
            self.deletion_handled = False  # the cluster was restored from a back-up: its next deletion is another one

    def adopt(self, raw: RawBody) -> None:
        """Set the known state if there is none."""
        if self.body is None:
            self.body = raw

    def restore(self, original: RawBody) -> None:
        """Replace the state that handlers have modified in place by the original one."""
        self.body = original

    def mark_outdated(self) -> None:
        """Called when the known state turns out to be outdated, or the object does not exist any more."""
        self.outdated = True

    def clear_outdated(self) -> None:
        """Called when the newest state is requested from the API server."""
        self.outdated = False

    def drop_body(self) -> None:
        """Called when the object comes to rest: drop the body, because bodies take most of the memory."""
        self.body = None

    def begin_cycle(self, cycle: 'Cycle') -> None:
        """Begin this cycle, or continue it."""
        self.cycle = cycle

    def end_cycle(self, followup: 'Cycle | None') -> None:
        """Called when a change (or the resuming of the object) is handled. A follow-up change can begin at once."""
        self.cycle, self.initial, self.resumed = followup, False, NO_HANDLERS

    def leave_cycle(self) -> None:
        """Called when no handlers match. If handlers match again later, the progress is read from the object."""
        self.cycle = None

    def note_missing_fields(self, fields: frozenset[FieldPath]) -> None:
        """Remember the fields whose absence keeps some handlers from matching."""
        self.missing_fields = fields

    def note_handled(self, digest: str | None) -> None:
        """Remember the digest of the handled state, if the state cannot be stored on the object."""
        self.handled_digest = digest

    def note_resumed(self, ids: frozenset[HandlerId]) -> None:
        """Remember that these resuming handlers have finished; not needed when all of them have."""
        if self.initial:
            self.resumed |= ids

    def note_deletion_handled(self) -> None:
        """Called when all deletion handlers have finished, and only the finalizer must be removed."""
        self.deletion_handled = True

    def keep_patch(self, patch: Patch | None) -> None:
        """Remember the changes that could not be applied; ``None`` or an empty patch if there are none."""
        self.pending_patch = patch if patch else None
        if self.pending_patch is None and self.cycle is not None:
            self.cycle.state.forget_contributions()

    def give_up(self, now: datetime.datetime) -> None:
        """Forget the refused patch, so that the handlers that have requested it run again."""
        self.pending_patch = None
        # Without the cycle, it is unknown which handlers these are.
        self.resumed = NO_HANDLERS if self.cycle is None else self.resumed.difference(self.cycle.begin_refused(now))

    # Indexing and daemons.

    def begin_indexing(self, state: 'IndexingState') -> None:
        """Called when indexing starts."""
        self.indexing = state

    def end_indexing(self) -> None:
        """Called when indexing has ended, and the object is excluded from no index."""
        self.indexing = None

    def attach_daemons(self, daemons: Any) -> None:
        """Called when the first daemon or timer is started."""
        self.daemons = daemons

    def detach_daemons(self) -> None:
        """Called when no daemon or timer is left."""
        self.daemons = None

    def attach_level(self, level: Any) -> None:
        """Called when level-triggered handlers begin to handle the object."""
        self.level = level

    def detach_level(self) -> None:
        """Called when level-triggered handlers do not handle the object any more."""
        self.level = None

    # The end.

    def forget_state(self) -> None:
        """Called when the object is deleted: drop its state and the progress."""
        self.body = self.cycle = self.pending_patch = None
        self.unverified = False

    def forget_plans(self, *, working: bool) -> None:
        """
        Keep only the identity: other operators could have handled the object, so only its next state counts.

        Progress that could not be stored before the pause is kept until the next state shows whether it is still valid.

        Args:
            working: whether a worker still handles the object; then, the progress and the patch are kept for it.
        """
        self.cancel_wakeup()
        self.throttled = self.requeued = False
        self.pending = None
        self._reset_expectation(working=working)
        if not working:
            self.unverified = self.cycle is not None and self.body is not None and self.in_memory_only
        if not working and not self.unverified:
            self.body = self.cycle = self.pending_patch = None
        elif working and self.cycle is not None:
            self.cycle.note_external(None)

    def doubt(self) -> None:
        """Called when others could have handled the object during its step: the list after the pause shows it."""
        self.unverified = True

    def verify(self, *, untouched: bool) -> None:
        """Use the kept progress after a pause if no other operator has changed the object; otherwise, drop it."""
        self.unverified = False
        if not untouched:
            self.cycle = self.pending_patch = None
            self.resumed = NO_HANDLERS
        elif self.cycle is not None:
            self.cycle.note_external(None)

    def abandon(self) -> None:
        """Called when the object is not served any more: a running step may end, but no further step begins."""
        self.cancel_wakeup()
        self.requeued = self.throttled = False
        self.pending = None
        self._reset_expectation(working=self.has_worker)

    def _reset_expectation(self, *, working: bool) -> None:
        # The worker can still have an event that is older than the last patch of this operator: for handlers of raw
        # events, for example, which can run for long.
        if working and self.expected is not None:
            self.expected.reset()
        else:
            self.expected = None

    def disown(self) -> None:
        """Called when another operator handles the object from now on: only the identity, memo and indices are kept."""
        self.abandon()
        self.forget_state()
        self.outdated = self.deletion_handled = False
        self.throttle = self.handled_digest = self.selftriggering = self.selfpatching = None
        self.missing_fields = NO_FIELDS
        self.daemons, self.initial, self.resumed = None, True, NO_HANDLERS

    def discard_work(self) -> None:
        """Called when a worker ends after its processor was dropped."""
        self.cancel_wakeup()
        self.pending, self.expected, self.requeued = None, None, False

    def change_hands(self, *, redefined: bool) -> None:
        """
        Called when another processor serves the object from now on. The state and the plans stay valid.

        Args:
            redefined: whether the resource has another version now. Then a pending event is dropped, as its object is
                of the former version; the new watch lists the object anyway.
        """
        if self.throttled:
            # The next attempt is made at once: other handlers, or those of another version, can succeed.
            self.throttle, self.throttled = None, False
            self.cancel_wakeup()
        if redefined:
            self.pending = self._get_departure()


def make_logger(
    record: ObjectRecord,
    resource: Resource,
    settings: OperatorSettings,
    cls: type[ObjectLogger] = LocalObjectLogger,
) -> ObjectLogger:
    """Create a logger for the object, with its body if known, otherwise with its identity."""
    raw: Mapping[str, Any] = (
        record.body
        if record.body is not None
        else {
            'apiVersion': get_api_version(resource),
            'kind': resource.kind,
            'metadata': {'name': record.name, 'namespace': record.namespace, 'uid': record.uid},
        }
    )
    return cls(body=Body(raw), settings=settings)


def get_key(record: ObjectRecord, resource: Resource) -> ObjectKey:
    """Return the key of the object for instruments."""
    return ObjectKey(resource, record.namespace, record.name, record.uid)


def get_api_version(resource: Resource) -> str:
    """Return the ``apiVersion`` of the objects of the resource."""
    return f'{resource.group}/{resource.version}'.lstrip('/')


def is_deleted(event: RawEvent) -> bool:
    """Check whether the object is deleted, or marked for deletion."""
    return event['type'] == 'DELETED' or event['object']['metadata'].get('deletionTimestamp') is not None


def was_observed(event: RawEvent) -> bool:
    """Check whether the handlers of raw events were called for the event in a former attempt."""
    return 'observed' in event


def identify(raw: Mapping[str, Any]) -> str:
    """Return the key that identifies an object: its uid, which differs from the uid of a deleted namesake."""
    metadata = raw['metadata']
    uid = metadata.get('uid')
    return str(uid) if uid else f"{metadata.get('namespace') or ''}/{metadata.get('name')}"
