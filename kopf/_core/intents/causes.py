"""
Why handlers are run, with all that they are told: each cause knows the kwargs of its handlers.

A function that names its arguments gets only those, one by one (`GETTERS`). For functions that take any, all are built
once a cause (`base_kwargs`), and extended for each handler: with its ``param``, and for its function with ``old``,
``new``, ``diff`` reduced to its field; its filters see the whole object. Specified in the documentation's "Arguments".
"""

import dataclasses
import enum
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from kopf._cogs.aiokits.awaitable_flags import AsyncFlagWaiter, FlagWaiter, ReasonedFlag, SyncFlagWaiter
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.bodies import Body, BodyEssence, RawEvent
from kopf._cogs.structs.dicts import FieldPath, resolve
from kopf._cogs.structs.diffs import EMPTY, Diff, reduce
from kopf._cogs.structs.instruments import ObjectKey
from kopf._cogs.structs.patches import Patch
from kopf._cogs.structs.references import Resource
from kopf._core.actions.execution import Logger, utcnow

if TYPE_CHECKING:
    from kopf._core.actions.execution import Handler
    from kopf._core.actions.handler_states import HandlerState
    from kopf._core.intents.handlers import ResourceHandler

Getters = Mapping[str, Callable[[Any], Any]]
DeletionFlagFactory = Callable[[], ReasonedFlag[Any]]

LISTED = 'LISTED'
"""What instruments are told instead of the type of an event if the object is from a list."""

_CHANGES = frozenset({'old', 'new', 'diff'})
_NO_INDICES: Mapping[str, Any] = {}

ATTEMPT_GETTERS: Getters = {
    'retry': attrgetter('retries'),
    'started': attrgetter('started'),
    'runtime': lambda state: utcnow() - state.started,
}
"""The arguments about the attempts of a handler, by its state; filters have none."""


class Activity(enum.StrEnum):
    """What an operator does as a whole."""

    STARTUP = 'startup'
    CLEANUP = 'cleanup'
    AUTHENTICATION = 'authentication'
    PROBE = 'probe'
    SCHEDULE = 'schedule'


class Reason(enum.StrEnum):
    """Why the change-detecting handlers of an object are run, or why none are."""

    CREATE = 'create'
    UPDATE = 'update'
    DELETE = 'delete'
    RESUME = 'resume'
    NOOP = 'noop'
    """Nothing essential has changed."""
    FREE = 'free'
    """It is being deleted, and is not held by this operator any more."""
    GONE = 'gone'
    """It is deleted."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}.{self.name}: {self.value!r}>"


class Identity(NamedTuple):
    """Which object it is."""

    uid: str | None
    name: str | None
    namespace: str | None


@dataclasses.dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Cause:
    """What all causes have in common."""

    logger: Logger
    memo: Any
    indices: Mapping[str, Any] = dataclasses.field(default_factory=lambda: _NO_INDICES)

    GETTERS: ClassVar[Getters] = {'logger': attrgetter('logger'), 'memo': attrgetter('memo')}
    """How each of `base_kwargs` is made alone."""
    EXTRA_GETTERS: ClassVar[Mapping[str, Callable[[Any, Any], Any]]] = {}
    """How those are made, for a handler, that only functions get that name them."""

    @property
    def key(self) -> ObjectKey | None:
        """The object that it is about, for instruments."""
        return None

    @property
    def occasion(self) -> str | None:
        """What has happened, in one word, for instruments."""
        return None

    def base_kwargs(self) -> dict[str, Any]:
        return {'logger': self.logger, 'memo': self.memo}

    def kwargs_for(self, handler: 'Handler', state: 'HandlerState | None' = None) -> dict[str, Any]:
        """Return the kwargs of the handler's next attempt: those that its function takes."""
        names = handler.names
        kwargs = self.all_kwargs(handler, state) if names is None else self.pick_kwargs(names, handler, state)
        if handler.extras and state is not None:
            for name in handler.extras:
                if name in self.EXTRA_GETTERS and name not in self.indices:
                    kwargs[name] = self.EXTRA_GETTERS[name](self, handler)
        return kwargs

    def kwargs_of_callback(
        self,
        fn: Callable[..., Any],
        handler: 'ResourceHandler',
        positional: int = 0,
    ) -> dict[str, Any]:
        """Return the kwargs that a callback of the handler takes, such as ``when=``, after the positional arguments."""
        names = handler.callback_names.get((id(fn), positional))
        return self.all_kwargs(handler) if names is None else self.pick_kwargs(names, handler)

    def pick_kwargs(
        self,
        names: tuple[str, ...],
        handler: 'Handler',
        state: 'HandlerState | None' = None,
    ) -> dict[str, Any]:
        """Return the kwargs of these names, as far as there are any. Without a state, they are for a filter."""
        kwargs: dict[str, Any] = {}
        indices, getters = self.indices, self.GETTERS
        for name in names:
            if name in indices:
                kwargs[name] = indices[name]
            elif name in getters:
                kwargs[name] = getters[name](self)
            elif name == 'param':
                kwargs[name] = handler.param
            elif state is not None and name in ATTEMPT_GETTERS:
                kwargs[name] = ATTEMPT_GETTERS[name](state)
        return kwargs

    def all_kwargs(self, handler: 'Handler', state: 'HandlerState | None' = None) -> dict[str, Any]:
        """Return all kwargs that there are for the handler. Without a state, they are for a filter."""
        kwargs = self.base_kwargs()
        kwargs['param'] = handler.param
        if state is not None:
            kwargs['retry'] = state.retries
            kwargs['started'] = state.started
            kwargs['runtime'] = utcnow() - state.started
        kwargs.update(self.indices)
        return kwargs


@dataclasses.dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ActivityCause(Cause):
    activity: Activity
    settings: OperatorSettings

    GETTERS = {**Cause.GETTERS, 'settings': attrgetter('settings'), 'activity': attrgetter('activity')}

    @property
    def occasion(self) -> str | None:
        return self.activity.value

    def base_kwargs(self) -> dict[str, Any]:
        return {'logger': self.logger, 'memo': self.memo, 'settings': self.settings, 'activity': self.activity}


@dataclasses.dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ResourceCause(Cause):
    resource: Resource
    body: Body
    patch: Patch
    selected: bool = False
    """Whether the object is known to match the label selectors of the handlers: the server has selected it by them."""
    _shared: dict[str, Any] | None = dataclasses.field(default=None, init=False)

    GETTERS = {
        **Cause.GETTERS,
        'resource': attrgetter('resource'),
        'patch': attrgetter('patch'),
        'body': attrgetter('body'),
        'spec': attrgetter('body.spec'),
        'meta': attrgetter('body.metadata'),
        'status': attrgetter('body.status'),
        'uid': attrgetter('body.metadata.uid'),
        'name': attrgetter('body.metadata.name'),
        'namespace': attrgetter('body.metadata.namespace'),
        'labels': attrgetter('body.metadata.labels'),
        'annotations': attrgetter('body.metadata.annotations'),
    }

    @property
    def key(self) -> ObjectKey | None:
        meta = self.body.metadata
        return ObjectKey(self.resource, meta.get('namespace'), meta.get('name'), meta.get('uid'))

    def base_kwargs(self) -> dict[str, Any]:
        if self._shared is None:
            self._shared = self._build()
        return self._shared.copy()

    def _build(self) -> dict[str, Any]:
        data = self.body.metadata._data()
        return self._assemble(data.get('uid'), data.get('name'), data.get('namespace'))

    def _assemble(self, uid: str | None, name: str | None, namespace: str | None) -> dict[str, Any]:
        body, meta = self.body, self.body.metadata
        return {
            'logger': self.logger,
            'memo': self.memo,
            'resource': self.resource,
            'patch': self.patch,
            'body': body,
            'spec': body.spec,
            'meta': meta,
            'status': body.status,
            'uid': uid,
            'name': name,
            'namespace': namespace,
            'labels': meta.labels,
            'annotations': meta.annotations,
        }


class IndexingCause(ResourceCause):
    """An object is to be indexed anew."""

    __slots__ = ()


@dataclasses.dataclass(slots=True, kw_only=True, eq=False, repr=False)
class WatchingCause(ResourceCause):
    """An event has come from the API."""

    event: RawEvent

    GETTERS = {**ResourceCause.GETTERS, 'event': attrgetter('event'), 'type': lambda cause: cause.event['type']}

    @property
    def occasion(self) -> str | None:
        return self.event['type'] or LISTED

    def _build(self) -> dict[str, Any]:
        kwargs = ResourceCause._build(self)
        kwargs['event'] = self.event
        kwargs['type'] = self.event['type']
        return kwargs


class SpawningCause(ResourceCause):
    """Daemons and timers are to be started or stopped."""

    __slots__ = ()


@dataclasses.dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DaemonCause(ResourceCause):
    """A daemon or a timer runs."""

    stopped: Any
    identity: Identity
    """What does not change; so that nobody has to look into the body for it."""
    deletion: DeletionFlagFactory | None = None

    EXTRA_GETTERS = {'deleting': lambda cause, handler: make_deletion_waiter(cause.deletion, handler)}
    GETTERS = {
        **ResourceCause.GETTERS,
        'stopped': attrgetter('stopped'),
        'uid': attrgetter('identity.uid'),
        'name': attrgetter('identity.name'),
        'namespace': attrgetter('identity.namespace'),
    }

    @property
    def key(self) -> ObjectKey | None:
        uid, name, namespace = self.identity
        return ObjectKey(self.resource, namespace, name, uid)

    def base_kwargs(self) -> dict[str, Any]:
        return self._build()  # there is only one handler, so there is nothing to share

    def _build(self) -> dict[str, Any]:
        kwargs = self._assemble(*self.identity)
        kwargs['stopped'] = self.stopped
        return kwargs


@dataclasses.dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ChangingCause(ResourceCause):
    """The object has been created, changed, deleted, or is seen for the first time by this process."""

    reason: Reason
    initial: bool = False
    old: BodyEssence | None = None
    new: BodyEssence | None = None
    diff: Diff = EMPTY
    within: FieldPath = ()
    """The field that the old and new states and the differences are of, if they are not of the whole object."""
    deletion: DeletionFlagFactory | None = None

    EXTRA_GETTERS = {'deleting': lambda cause, handler: make_deletion_waiter(cause.deletion, handler)}
    GETTERS = {**ResourceCause.GETTERS, **{name: attrgetter(name) for name in ('reason', 'old', 'new', 'diff')}}

    @property
    def occasion(self) -> str | None:
        return self.reason.value

    @property
    def deleted(self) -> bool:
        return self.body.metadata.get('deletionTimestamp') is not None

    def _build(self) -> dict[str, Any]:
        kwargs = ResourceCause._build(self)
        kwargs.update(reason=self.reason, old=self.old, new=self.new, diff=self.diff)
        return kwargs

    def all_kwargs(self, handler: 'Handler', state: 'HandlerState | None' = None) -> dict[str, Any]:
        kwargs = ResourceCause.all_kwargs(self, handler, state)
        field = getattr(handler, 'field', None)
        if field and state is not None:  # filters compare the field with others, so they see all of them
            kwargs.update(self._reduce_to(field))
            kwargs.update(self.indices)
        return kwargs

    def pick_kwargs(
        self,
        names: tuple[str, ...],
        handler: 'Handler',
        state: 'HandlerState | None' = None,
    ) -> dict[str, Any]:
        kwargs = ResourceCause.pick_kwargs(self, names, handler, state)
        field = getattr(handler, 'field', None)
        if field and state is not None and not _CHANGES.isdisjoint(names):
            reduced = self._reduce_to(field)
            kwargs.update({name: reduced[name] for name in names if name in reduced and name not in self.indices})
        return kwargs

    def _reduce_to(self, field: FieldPath) -> dict[str, Any]:
        return {
            'old': resolve(self.old, field, None),
            'new': resolve(self.new, field, None),
            'diff': reduce(self.diff, field),
        }

    def narrowed(self, field: FieldPath) -> 'ChangingCause':
        """Give the same for those who are to see this field only: the sub-handlers of a handler of the field."""
        return dataclasses.replace(self, within=self.within + field, **self._reduce_to(field))

    def reduced_diff(self, handler: 'ResourceHandler') -> Diff:
        return reduce(self.diff, handler.field) if handler.field else self.diff


def make_deletion_waiter(factory: DeletionFlagFactory | None, handler: 'Handler') -> FlagWaiter[Any] | None:
    """Return what the handler can wait for until its object is to be deleted; ``None`` without an operator."""
    if factory is None:
        return None
    return AsyncFlagWaiter(factory()) if handler.asynchronous else SyncFlagWaiter(factory())


@dataclasses.dataclass(slots=True, kw_only=True, eq=False, repr=False)
class WebhookCause(ResourceCause):
    """The API server asks whether an object may be stored."""

    dryrun: bool
    reason: str | None
    webhook: str | None
    headers: Mapping[str, str]
    sslpeer: Mapping[str, Any]
    userinfo: Mapping[str, Any]
    warnings: list[str]
    operation: str | None
    subresource: str | None
    name: str | None = None
    namespace: str | None = None
    old: Body | None = None
    new: Body | None = None
    diff: Diff | None = None

    GETTERS = {
        **ResourceCause.GETTERS,
        **{
            name: attrgetter(name)
            for name in (
                'dryrun',
                'headers',
                'sslpeer',
                'userinfo',
                'warnings',
                'operation',
                'subresource',
                'old',
                'new',
                'diff',
            )
        },
        # Subresources often come as objects without names: e.g. the options of `kubectl exec` into a pod.
        'name': lambda cause: cause.body.metadata.name or cause.name,
        'namespace': lambda cause: cause.body.metadata.namespace or cause.namespace,
    }

    @property
    def key(self) -> ObjectKey | None:
        meta = self.body.metadata
        return ObjectKey(self.resource, meta.namespace or self.namespace, meta.name or self.name, meta.uid)

    @property
    def occasion(self) -> str | None:
        return None if self.operation is None else self.operation.lower()

    def _build(self) -> dict[str, Any]:
        kwargs = ResourceCause._build(self)
        kwargs.update(
            dryrun=self.dryrun,
            headers=self.headers,
            sslpeer=self.sslpeer,
            userinfo=self.userinfo,
            warnings=self.warnings,
            operation=self.operation,
            subresource=self.subresource,
            old=self.old,
            new=self.new,
            diff=self.diff,
        )
        kwargs['name'] = kwargs['name'] or self.name
        kwargs['namespace'] = kwargs['namespace'] or self.namespace
        return kwargs


@dataclasses.dataclass(slots=True, kw_only=True)
class ConversionCause(ResourceCause):
    """The API server needs an object in another version."""

    from_version: str
    to_version: str
    headers: Mapping[str, str]
    sslpeer: Mapping[str, Any]

    GETTERS = {
        **ResourceCause.GETTERS,
        **{name: attrgetter(name) for name in ('from_version', 'to_version', 'headers', 'sslpeer')},
    }

    def _build(self) -> dict[str, Any]:
        kwargs = ResourceCause._build(self)
        kwargs.update(
            from_version=self.from_version, to_version=self.to_version, headers=self.headers, sslpeer=self.sslpeer
        )
        return kwargs
