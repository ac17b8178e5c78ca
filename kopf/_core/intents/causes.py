"""
Why handlers are run, with all that they are told: each cause knows the kwargs of its handlers.

The kwargs are built once a cause, and extended for each handler by `kwargs_for`: with its ``param``, and with ``old``,
``new``, ``diff`` reduced to its field. Specified in the documentation's "Arguments".
"""
import dataclasses
import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.bodies import Body, BodyEssence, RawEvent
from kopf._cogs.structs.dicts import FieldPath, resolve
from kopf._cogs.structs.diffs import EMPTY, Diff, reduce
from kopf._cogs.structs.patches import Patch
from kopf._cogs.structs.references import Resource
from kopf._core.actions.execution import Logger, utcnow

if TYPE_CHECKING:
    from kopf._core.actions.execution import Handler
    from kopf._core.actions.progression import HandlerState
    from kopf._core.intents.handlers import ResourceHandler

_NO_INDICES: Mapping[str, Any] = {}


class Activity(enum.StrEnum):
    """What an operator does as a whole."""
    STARTUP = 'startup'
    CLEANUP = 'cleanup'
    AUTHENTICATION = 'authentication'
    PROBE = 'probe'


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

    def base_kwargs(self) -> dict[str, Any]:
        return {'logger': self.logger, 'memo': self.memo}

    def kwargs_for(self, handler: 'Handler', state: 'HandlerState | None' = None) -> dict[str, Any]:
        """Give the kwargs of the handler's next attempt, or of its filters if there is no state."""
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

    def base_kwargs(self) -> dict[str, Any]:
        return {'logger': self.logger, 'memo': self.memo, 'settings': self.settings, 'activity': self.activity}


@dataclasses.dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ResourceCause(Cause):
    resource: Resource
    body: Body
    patch: Patch
    _shared: dict[str, Any] | None = dataclasses.field(default=None, init=False)

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

    @property
    def deleted(self) -> bool:
        return self.body.metadata.get('deletionTimestamp') is not None

    def _build(self) -> dict[str, Any]:
        kwargs = ResourceCause._build(self)
        kwargs.update(reason=self.reason, old=self.old, new=self.new, diff=self.diff)
        return kwargs

    def kwargs_for(self, handler: 'Handler', state: 'HandlerState | None' = None) -> dict[str, Any]:
        kwargs = ResourceCause.kwargs_for(self, handler, state)
        field = getattr(handler, 'field', None)
        if field:
            kwargs.update(
                old=resolve(self.old, field, None),
                new=resolve(self.new, field, None),
                diff=reduce(self.diff, field),
            )
            kwargs.update(self.indices)
        return kwargs

    def narrowed(self, field: FieldPath) -> 'ChangingCause':
        """Give the same for those who are to see this field only: the sub-handlers of a handler of the field."""
        return dataclasses.replace(
            self, within=self.within + field,
            old=resolve(self.old, field, None), new=resolve(self.new, field, None), diff=reduce(self.diff, field))

    def reduced_diff(self, handler: 'ResourceHandler') -> Diff:
        return reduce(self.diff, handler.field) if handler.field else self.diff


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

    def _build(self) -> dict[str, Any]:
        kwargs = ResourceCause._build(self)
        kwargs.update(dryrun=self.dryrun, headers=self.headers, sslpeer=self.sslpeer, userinfo=self.userinfo,
                      warnings=self.warnings, operation=self.operation, subresource=self.subresource,
                      old=self.old, new=self.new, diff=self.diff)
        # Subresources often come as objects without names: e.g. the options of `kubectl exec` into a pod.
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

    def _build(self) -> dict[str, Any]:
        kwargs = ResourceCause._build(self)
        kwargs.update(from_version=self.from_version, to_version=self.to_version,
                      headers=self.headers, sslpeer=self.sslpeer)
        return kwargs
