"""
What an operator remembers of the objects it has seen.

There is one slotted record an object, and it is all that is kept of an object at rest: who it is, and a few flags.
Everything else (the body, the progress of a change, a worker, a timer, a memo) is only there while it is needed.
"""

import asyncio
import contextlib
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import orjson

from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.helpers.jsontexts import dump_tightly
from kopf._cogs.structs.bodies import Body, RawBody, RawEvent
from kopf._cogs.structs.dicts import FieldPath
from kopf._cogs.structs.patches import Patch
from kopf._cogs.structs.references import Resource
from kopf._core.actions.loggers import LocalObjectLogger, ObjectLogger
from kopf._core.intents.decisions import NO_FIELDS

if TYPE_CHECKING:
    from kopf._core.intents.decisions import Cycle
    from kopf._core.reactor.echoes import Expectation
    from kopf._core.reactor.informer import IndexingState
    from kopf._core.reactor.selftriggers import SelfTriggering
    from kopf._core.reactor.throttling import Throttle

_UNSET: Any = object()


class ObjectRecord:
    """
    One object, as long as it is there: its identity, what is known and planned while there is work, and a few flags.

    Only this class assigns its attributes; the other modules call the transitions, each of which has a name.
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
        'memo',
        'missing_fields',
        'name',
        'namespace',
        'outdated',
        'pending',
        'pending_patch',
        'requeued',
        'selfpatching',
        'selftriggering',
        'throttle',
        'throttled',
        'uid',
        'wakeup',
    )

    def __init__(self, uid: str, namespace: str | None, name: str, *, initial: bool) -> None:
        self.uid = uid
        self.namespace = sys.intern(namespace) if type(namespace) is str else namespace  # there are few of them
        self.name = name
        self.initial = initial
        """The object was there before this process has begun to watch, and is not resumed yet."""

        self.expected: Expectation | None = None
        """The state that our own last patch has made, until something newer is seen in the stream."""

        self.pending: RawEvent | bytes | None = None
        """The newest event that is not looked at yet; as a text if it has to wait for long. See `take_pending`."""
        self.body: RawBody | None = None
        """The newest state known, while there is something to be done about the object."""
        self.outdated = False
        """That state is known to be not the newest, as our patch did not fit to it."""
        self.requeued = False
        """There is something to be done now, event or not."""
        self.has_worker = False
        """A worker has the object, or the object waits for one."""
        self.wakeup: asyncio.TimerHandle | None = None
        self.throttle: Throttle | None = None
        """What is known of the failures while the framework fails to handle the object."""
        self.throttled = False
        """The object is left alone until its next attempt."""

        self.cycle: Cycle | None = None
        """The change that is being handled."""
        self.deletion_handled = False
        """The deletion is handled: only our finalizer is to be removed."""
        self.handled_digest: str | None = None
        """The digest of the state that was handled last, if that state cannot be stored on the object."""
        self.missing_fields: frozenset[FieldPath] = NO_FIELDS
        """The fields without which the object matches no handlers: their addition is an update."""
        self.selftriggering: SelfTriggering | None = None
        """What is known of updates that the object's handlers cause themselves, while they do."""
        self.selfpatching: SelfTriggering | None = None
        """The same of raw events."""
        self.pending_patch: Patch | None = None
        """What handlers have wanted of the object, and could not be applied to it yet."""
        self.indexing: IndexingState | None = None
        """What goes on with the indexing of the object, if anything does."""
        self.memo: Any = _UNSET
        self.daemons: Any = None

    def __repr__(self) -> str:
        return f"<{self.namespace}/{self.name}>" if self.namespace else f"<{self.name}>"

    # Questions.

    @property
    def in_use(self) -> bool:
        """Whether a worker (also one of later), a daemon, an index function, or a patch can still have this record."""
        return (
            self.has_worker
            or self.throttled
            or self.daemons is not None
            or self.indexing is not None
            or self.expected is not None
        )

    @property
    def is_vanishing(self) -> bool:
        """Whether the object is known to be deleted, but that is not handled yet."""
        pending: RawEvent | None = orjson.loads(self.pending) if isinstance(self.pending, bytes) else self.pending
        return pending is not None and pending['type'] == 'DELETED'

    @property
    def in_memory_only(self) -> bool:
        """Whether something has come of the object's handlers that is not stored on the object yet."""
        return self.pending_patch is not None or (self.cycle is not None and self.cycle.state.in_memory_only)

    @property
    def is_being_deleted(self) -> bool:
        """Whether the newest that is known of the object is its deletion."""
        if self.pending is not None:
            return is_deleted(orjson.loads(self.pending) if isinstance(self.pending, bytes) else self.pending)
        if self.body is not None:
            return is_deleted({'type': None, 'object': self.body})
        return self.daemons is not None and (
            self.daemons.gone or self.daemons.body.metadata.get('deletionTimestamp') is not None
        )

    @property
    def has_work(self) -> bool:
        """Whether there is something to be done about the object now."""
        return self.pending is not None or self.requeued

    # What is shared by all handlers of the object.

    def get_memo(self, factory: Callable[[], Any]) -> Any:
        """Return the memo; the first time, it is made by the factory."""
        if self.memo is _UNSET:
            self.memo = factory()
        return self.memo

    # Events.

    def put_pending(self, event: RawEvent) -> None:
        """Keep the event for the worker, in place of an older one."""
        self.pending = event

    def fold_pending(self) -> None:
        """Keep the event as a text, a fifth as large: it has to wait, as thousands of others do."""
        if self.pending is not None and not isinstance(self.pending, bytes):
            with contextlib.suppress(TypeError):  # of huge numbers, or of halves of characters
                self.pending = dump_tightly(self.pending)

    def take_pending(self) -> RawEvent | None:
        """Return the event, if there is any: it is looked at now."""
        event, self.pending = self.pending, None
        return orjson.loads(event) if isinstance(event, bytes) else event

    def expect(self, expectation: 'Expectation | None') -> None:
        """Expect this state in the stream; ``None`` if there is nothing to wait for any more."""
        self.expected = expectation

    def mark_initial(self) -> None:
        """Count the object among those that were there before this process."""
        self.initial = True

    # The queue of workers.

    def requeue(self) -> None:
        """Have the object looked at again, event or not."""
        self.requeued = True

    def cancel_requeue(self) -> None:
        """Look at the object only when something happens."""
        self.requeued = False

    def take_requeue(self) -> bool:
        """Return whether the object was requeued: it is looked at now."""
        requeued, self.requeued = self.requeued, False
        return requeued

    def assign_worker(self) -> None:
        """Called when the object gets a worker, or a place in the queue for one."""
        self.has_worker = True

    def free_worker(self) -> None:
        """Called when the worker has ended, or is not needed any more."""
        self.has_worker = False

    def wake_by(self, timer: asyncio.TimerHandle) -> None:
        """Be woken up by this timer, and by no other."""
        self.cancel_wakeup()
        self.wakeup = timer

    def cancel_wakeup(self) -> None:
        """Be woken up by events only."""
        if self.wakeup is not None:
            self.wakeup.cancel()
            self.wakeup = None

    def wake(self) -> None:
        """Called when the time has come: the object is not left alone any more."""
        self.wakeup, self.throttled = None, False

    # Failures of the framework.

    def hold_off(self, throttle: 'Throttle') -> None:
        """Leave the object alone until the next attempt."""
        self.throttle, self.throttled = throttle, True

    def end_throttling(self) -> None:
        """Called when the object could be handled after all."""
        self.throttle = None

    def watch_selftriggering(self, triggering: 'SelfTriggering | None') -> None:
        """Remember the updates that the handlers cause themselves; ``None`` when they do not any more."""
        self.selftriggering = triggering

    def watch_selfpatching(self, triggering: 'SelfTriggering | None') -> None:
        """Remember the raw events that their handlers cause themselves; ``None`` when they do not any more."""
        self.selfpatching = triggering

    # The state, and what is done about it.

    def accept(self, raw: RawBody) -> None:
        """Go on with this state, which is the newest one."""
        self.body, self.outdated = raw, False

    def adopt(self, raw: RawBody) -> None:
        """Go on with this state if no other one is known."""
        if self.body is None:
            self.body = raw

    def restore(self, original: RawBody) -> None:
        """Go on with the state as it was before handlers have changed it in place."""
        self.body = original

    def mark_outdated(self) -> None:
        """Called when the state is known to be not the newest."""
        self.outdated = True

    def clear_outdated(self) -> None:
        """Called when the newest state is asked for."""
        self.outdated = False

    def drop_body(self) -> None:
        """Called when the object comes to rest: its state is not kept."""
        self.body = None

    def begin_cycle(self, cycle: 'Cycle') -> None:
        """Go on with this cycle: a new one, or the same as before."""
        self.cycle = cycle

    def end_cycle(self, followup: 'Cycle | None') -> None:
        """Called when the change is handled, so that the object is resumed too; another change can follow it."""
        self.cycle, self.initial = followup, False

    def leave_cycle(self) -> None:
        """Called when the object is none of our business; if it is ever again, the progress is on the object."""
        self.cycle = None

    def note_missing_fields(self, fields: frozenset[FieldPath]) -> None:
        """Remember the fields without which the object matches no handlers."""
        self.missing_fields = fields

    def note_handled(self, digest: str | None) -> None:
        """Remember the state that was handled, if it cannot be stored on the object."""
        self.handled_digest = digest

    def note_deletion_handled(self) -> None:
        """Called when there is nothing to do about the deletion but to remove our finalizer."""
        self.deletion_handled = True

    def keep_patch(self, patch: Patch | None) -> None:
        """Remember what could not be applied; ``None`` or an empty patch if nothing is left."""
        self.pending_patch = patch if patch else None

    def give_up(self) -> None:
        """Forget what was refused, and run the handlers again."""
        self.pending_patch = self.cycle = None

    # Indexing and daemons.

    def begin_indexing(self, state: 'IndexingState') -> None:
        """Called when the object is to be indexed, or is excluded from an index."""
        self.indexing = state

    def end_indexing(self) -> None:
        """Called when nothing goes on with the indexing."""
        self.indexing = None

    def attach_daemons(self, daemons: Any) -> None:
        """Called when the object has daemons or timers."""
        self.daemons = daemons

    def detach_daemons(self) -> None:
        """Called when none of them is left."""
        self.daemons = None

    # The end.

    def forget_state(self) -> None:
        """Called when the object is gone: nothing is to be done about its last state."""
        self.body = self.cycle = self.pending_patch = None

    def forget_plans(self) -> None:
        """Forget what is known and planned: others could have handled the object, only the object itself tells."""
        self.cancel_wakeup()
        self.throttled = self.requeued = False
        self.cycle = self.pending_patch = self.expected = self.pending = None

    def abandon(self) -> None:
        """Called when the object is not served any more: a step that has begun may end, no other one begins."""
        self.cancel_wakeup()
        self.requeued = self.throttled = False
        self.pending = self.expected = None

    def discard_work(self) -> None:
        """Called when the worker ends in a processor that has been dropped."""
        self.cancel_wakeup()
        self.pending, self.requeued = None, False

    def change_hands(self, *, redefined: bool) -> None:
        """
        Called when another processor serves the object from now on; what is known and planned stays valid.

        It is tried again at once if it was throttled. An event in another version of the resource, if the resource
        is ``redefined``, is not needed: the object is listed anew.
        """
        if self.throttled:
            self.throttle, self.throttled = None, False
            self.cancel_wakeup()
        if redefined and not self.is_vanishing:
            self.pending = None


def make_logger(
    record: ObjectRecord,
    resource: Resource,
    settings: OperatorSettings,
    cls: type[ObjectLogger] = LocalObjectLogger,
) -> ObjectLogger:
    """Make a logger of the object, by what is known of it."""
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


def get_api_version(resource: Resource) -> str:
    """Return the ``apiVersion`` of the objects of the resource."""
    return f'{resource.group}/{resource.version}'.lstrip('/')


def is_deleted(event: RawEvent) -> bool:
    """Tell if the object is deleted, or is going to be."""
    return event['type'] == 'DELETED' or event['object']['metadata'].get('deletionTimestamp') is not None


def identify(raw: Mapping[str, Any]) -> str:
    """Give what tells an object from all others of its resource, predecessors of the same name included."""
    metadata = raw['metadata']
    uid = metadata.get('uid')
    return str(uid) if uid else f"{metadata.get('namespace') or ''}/{metadata.get('name')}"
