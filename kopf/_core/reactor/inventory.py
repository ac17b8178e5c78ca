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
    from kopf._core.reactor.intake import IndexingState
    from kopf._core.reactor.selftriggers import SelfTriggering
    from kopf._core.reactor.throttling import Throttle

_UNSET: Any = object()


class ObjectRecord:
    """One object, as long as it is there."""

    __slots__ = (
        '__weakref__',
        'again',
        'body',
        'cycle',
        'daemons',
        'employed',
        'expected',
        'indexing',
        'initial',
        'lacking',
        'memo',
        'name',
        'namespace',
        'outdated',
        'pending',
        'released',
        'selftriggering',
        'throttle',
        'throttled',
        'uid',
        'unkept',
        'unsent',
        'wakeup',
    )

    def __init__(self, uid: str, namespace: str | None, name: str, *, initial: bool) -> None:
        self.uid = uid
        self.namespace = sys.intern(namespace) if type(namespace) is str else namespace  # there are few of them
        self.name = name
        self.initial = initial
        """It was there before this process has begun to watch, and is not resumed yet."""

        self.expected: Expectation | None = None
        """The state that our own last patch has made, until something newer is seen in the stream."""

        self.pending: RawEvent | bytes | None = None
        """The newest event that is not looked at yet; as a text if it has to wait for long. See `take_pending`."""
        self.body: RawBody | None = None
        """The newest state known, while there is something to be done about it."""
        self.outdated = False
        """That state is known to be not the newest, as our patch did not fit to it."""
        self.again = False
        """There is something to be done now, event or not."""
        self.employed = False
        """It has a worker, or waits for one."""
        self.wakeup: asyncio.TimerHandle | None = None
        self.throttle: Throttle | None = None
        """What is known of the failures while the framework fails to handle the object."""
        self.throttled = False
        """It is left alone until its next attempt."""

        self.cycle: Cycle | None = None
        """The change that is being handled."""
        self.released = False
        """Its deletion is handled: only our finalizer is to be removed."""
        self.unkept: str | None = None
        """The digest of the state that was handled last, if it cannot be stored on the object."""
        self.lacking: frozenset[FieldPath] = NO_FIELDS
        """The fields without which it matches no handlers: their addition is an update."""
        self.selftriggering: SelfTriggering | None = None
        """What is known of updates that its handlers cause themselves, while they do."""
        self.unsent: Patch | None = None
        """What handlers have wanted of the object, and could not be applied to it yet."""
        self.indexing: IndexingState | None = None
        """What goes on with its indexing, if anything does."""
        self.memo: Any = _UNSET
        self.daemons: Any = None

    def __repr__(self) -> str:
        return f"<{self.namespace}/{self.name}>" if self.namespace else f"<{self.name}>"

    def get_memo(self, factory: Callable[[], Any]) -> Any:
        if self.memo is _UNSET:
            self.memo = factory()
        return self.memo

    def fold_pending(self) -> None:
        """Keep the event as a text, a fifth as large: it has to wait, as thousands of others do."""
        if self.pending is not None and not isinstance(self.pending, bytes):
            with contextlib.suppress(TypeError):  # of huge numbers, or of halves of characters
                self.pending = dump_tightly(self.pending)

    def take_pending(self) -> RawEvent | None:
        """Give the event, if there is any: it is looked at now."""
        event, self.pending = self.pending, None
        return orjson.loads(event) if isinstance(event, bytes) else event

    @property
    def in_use(self) -> bool:
        """Whether a worker (also one of later), a daemon, an index function, or a patch can still have this record."""
        return (
            self.employed
            or self.throttled
            or self.daemons is not None
            or self.indexing is not None
            or self.expected is not None
        )

    @property
    def is_vanishing(self) -> bool:
        """Whether it is known to be deleted, but that is not handled yet."""
        pending: RawEvent | None = orjson.loads(self.pending) if isinstance(self.pending, bytes) else self.pending
        return pending is not None and pending['type'] == 'DELETED'

    @property
    def in_memory_only(self) -> bool:
        """Whether something has come of its handlers that is not stored on the object yet."""
        return self.unsent is not None or (self.cycle is not None and self.cycle.state.in_memory_only)

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

    def cancel_wakeup(self) -> None:
        if self.wakeup is not None:
            self.wakeup.cancel()
            self.wakeup = None


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
