"""
Causes: the reasons for running handlers, and the keyword arguments that the handlers get.

A function that names its arguments gets only these, each by its getter. For functions with ``**kwargs``, all arguments
are collected once for a cause (`base_kwargs`), and completed for each handler: with its ``param``, and with ``old``,
``new``, ``diff`` reduced to its field. Filters get the changes of the whole object, because they can compare several
fields. Specified in the documentation's "Arguments".
"""

import dataclasses
import enum
from collections.abc import Callable, Mapping
from contextvars import ContextVar
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
from kopf._core.actions.execution import Logger, PermanentError, utcnow

if TYPE_CHECKING:
    from kopf._cogs.structs.conditions import Conditions
    from kopf._core.actions.execution import Handler
    from kopf._core.actions.handler_states import HandlerState
    from kopf._core.intents.declared_kinds import Kind
    from kopf._core.intents.handlers import ResourceHandler

Getters = Mapping[str, Callable[[Any], Any]]
Collect = Callable[[Any], dict[str, Any]]
DeletionFlagFactory = Callable[[], ReasonedFlag[Any]]

LISTED = 'LISTED'
"""The occasion of events without a type: those of listed objects."""

_CHANGES = frozenset({'old', 'new', 'diff'})
_NO_INDICES: Mapping[str, Any] = {}

ATTEMPT_GETTERS: Getters = {
    'retry': attrgetter('retries'),
    'started': attrgetter('started'),
    'runtime': lambda state: utcnow() - state.started,
}
"""The getters of the arguments about the attempts of a handler, by its state. Filters do not get these arguments."""


class Activity(enum.StrEnum):
    """The activities of an operator as a whole."""

    STARTUP = 'startup'
    CLEANUP = 'cleanup'
    AUTHENTICATION = 'authentication'
    PROBE = 'probe'
    SCHEDULE = 'schedule'
    LEADING = 'leading'
    YIELDING = 'yielding'


class Reason(enum.StrEnum):
    """The reason to run the change-detecting handlers of an object, or to run none."""

    CREATE = 'create'
    UPDATE = 'update'
    DELETE = 'delete'
    RESUME = 'resume'
    NOOP = 'noop'
    """The essence has not changed."""
    FREE = 'free'
    """The object is being deleted, and does not have the finalizer of this operator any more."""
    GONE = 'gone'
    """The object is deleted."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}.{self.name}: {self.value!r}>"


class Identity(NamedTuple):
    """The identity of an object."""

    uid: str | None
    name: str | None
    namespace: str | None


_SHORTCUTS = {
    'body.metadata': 'meta',
    'body.metadata.uid': "raw.get('uid')",
    'body.metadata.name': "raw.get('name')",
    'body.metadata.namespace': "raw.get('namespace')",
    'body.metadata.labels': 'meta.labels',
    'body.metadata.annotations': 'meta.annotations',
}
"""The expressions for shared attributes, so that the properties that need them do not look them up repeatedly."""


def _compile_collector(arguments: Mapping[str, str]) -> Collect:
    """
    Return a function that collects all arguments of a cause in a new dict.

    Why not simply call all the getters? That takes twice as long, and it is done for each event: most handlers take
    ``**kwargs``. So the function is generated, in the same way as `dataclasses` generates its methods.
    """
    values = {name: _SHORTCUTS.get(path, f'cause.{path}') for name, path in arguments.items()}
    pairs = ', '.join(f'{name!r}: {value}' for name, value in values.items())
    variables = '(meta := cause.body.metadata) is None or ' if 'meta' in values else ''
    # Why not always read `raw`? The bodies of daemons and timers are packed: each read parses the text again.
    if any('raw.' in value for value in values.values()):
        variables += '(raw := meta._data()) is None or '
    collect: Collect = eval(f'lambda cause: {variables}{{{pairs}}}')
    return collect


@dataclasses.dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Cause:
    """The base class of causes."""

    logger: Logger
    memo: Any
    indices: Mapping[str, Any] = dataclasses.field(default_factory=lambda: _NO_INDICES)

    ARGUMENTS: ClassVar[Mapping[str, str]] = {'logger': 'logger', 'memo': 'memo'}
    """The arguments of handlers, with the attributes of the cause where their values are."""
    EXTRA_GETTERS: ClassVar[Mapping[str, Callable[[Any, Any], Any]]] = {}
    """The getters of arguments that a function gets only if it names them; called with the cause and the handler."""
    GETTERS: ClassVar[Getters] = {}
    """The getters of `ARGUMENTS`, one for each; derived."""
    _collect: ClassVar[Collect | None] = None
    """The function that collects all `ARGUMENTS` at once; compiled when it is used for the first time."""

    def __init_subclass__(cls) -> None:
        cls.GETTERS = {name: attrgetter(path) for name, path in cls.ARGUMENTS.items()}
        cls._collect = None

    @property
    def key(self) -> ObjectKey | None:
        """The key of the object that the cause is about, for instruments; ``None`` if it is about no object."""
        return None

    @property
    def occasion(self) -> str | None:
        """The event or the change in one word, for instruments."""
        return None

    def base_kwargs(self) -> dict[str, Any]:
        """Return the arguments that are the same for all handlers, as a new dict."""
        cls = type(self)
        if cls._collect is None:
            cls._collect = _compile_collector(cls.ARGUMENTS)
        return cls._collect(self)

    def kwargs_for(self, handler: 'Handler', state: 'HandlerState | None' = None) -> dict[str, Any]:
        """Return the arguments for the next attempt of the handler: those that its function takes."""
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
        """Return the keyword arguments that a callback of the handler takes, such as ``when=``."""
        names = handler.callback_names.get((id(fn), positional))
        return self.all_kwargs(handler) if names is None else self.pick_kwargs(names, handler)

    def pick_kwargs(
        self,
        names: tuple[str, ...],
        handler: 'Handler',
        state: 'HandlerState | None' = None,
    ) -> dict[str, Any]:
        """Return the named arguments that exist. Without a state, they are for a filter."""
        kwargs: dict[str, Any] = {}
        indices, getters = self.indices, self.GETTERS
        for name in names:
            # Look into the indices first: an index hides an argument of the same name, as in `all_kwargs`.
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
        """Return all arguments for the handler. Without a state, they are for a filter."""
        kwargs = self.base_kwargs()
        kwargs['param'] = handler.param
        if state is not None:
            kwargs['retry'] = state.retries
            kwargs['started'] = state.started
            kwargs['runtime'] = utcnow() - state.started
        # Indices win over arguments of the same name: otherwise, a new argument of the framework could break
        # an operator.
        kwargs.update(self.indices)
        return kwargs


@dataclasses.dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ActivityCause(Cause):
    """The operator starts, ends, logs in, is probed, or runs a schedule."""

    activity: Activity
    settings: OperatorSettings

    ARGUMENTS = {**Cause.ARGUMENTS, 'settings': 'settings', 'activity': 'activity'}

    @property
    def occasion(self) -> str | None:
        """The activity, for instruments."""
        return self.activity.value


TYPED_GETTERS: Mapping[str, Callable[[Any, Any], Any]] = {
    'obj': lambda cause, handler: cause.load(handler.model),
    'spec': lambda cause, handler: handler.model.pick(cause.load(handler.model), 'spec'),
    'status': lambda cause, handler: handler.model.pick(cause.load(handler.model), 'status'),
}
"""The getters of the arguments that handlers get as objects of a class, if their resource is named by the class."""


@dataclasses.dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ResourceCause(Cause):
    """The base class of causes about objects."""

    resource: Resource
    body: Body
    patch: Patch
    selected: bool = False
    """Whether the API server has already applied the label selectors of the handlers to the object."""
    _shared: dict[str, Any] | None = dataclasses.field(default=None, init=False)

    IS_STORED = True  # whether equal resource versions of an object mean equal contents
    EXTRA_GETTERS = TYPED_GETTERS
    ARGUMENTS = {
        **Cause.ARGUMENTS,
        'resource': 'resource',
        'patch': 'patch',
        'body': 'body',
        'spec': 'body.spec',
        'meta': 'body.metadata',
        'status': 'body.status',
        'uid': 'body.metadata.uid',
        'name': 'body.metadata.name',
        'namespace': 'body.metadata.namespace',
        'labels': 'body.metadata.labels',
        'annotations': 'body.metadata.annotations',
    }

    @property
    def key(self) -> ObjectKey | None:
        """The key of the object, for instruments."""
        meta = self.body.metadata._data()
        return ObjectKey(self.resource, meta.get('namespace'), meta.get('name'), meta.get('uid'))

    def load(self, model: 'Kind') -> Any:
        """Return the object as an instance of the class; raise `InvalidObjectError` if it does not conform to it."""
        return model.load(self.body, stored=self.IS_STORED)

    def base_kwargs(self) -> dict[str, Any]:
        """Return the arguments that are the same for all handlers, as a new dict; they are collected once."""
        if self._shared is None:
            self._shared = Cause.base_kwargs(self)
        # Return a copy: each handler adds its own arguments, and functions may modify their ``**kwargs``.
        return self._shared.copy()


class IndexingCause(ResourceCause):
    """The indexed values of an object must be computed again."""

    __slots__ = ()


@dataclasses.dataclass(slots=True, kw_only=True, eq=False, repr=False)
class WatchingCause(ResourceCause):
    """The API has sent an event."""

    event: RawEvent

    ARGUMENTS = {**ResourceCause.ARGUMENTS, 'event': 'event', 'type': 'type'}

    @property
    def type(self) -> str | None:
        """The type of the event; ``None`` for objects of a list."""
        return self.event['type']

    @property
    def occasion(self) -> str | None:
        """The type of the event, for instruments."""
        return self.event['type'] or LISTED


class SpawningCause(ResourceCause):
    """Daemons and timers must be started or stopped."""

    __slots__ = ()


_ACTING_GETTERS: Mapping[str, Callable[[Any, 'Handler'], Any]] = {
    **TYPED_GETTERS,
    'children': lambda cause, handler: make_children(cause, handler),
    'conditions': lambda cause, handler: make_conditions(cause),
    'deleting': lambda cause, handler: make_deletion_waiter(cause.deletion, handler),
}
"""The getters of the additional arguments of handlers of changes, daemons, and timers."""


@dataclasses.dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DaemonCause(ResourceCause):
    """A daemon or a timer runs."""

    stopped: Any
    identity: Identity
    """The identity of the object. It is kept here, because the body is often packed."""
    deletion: DeletionFlagFactory | None = None

    EXTRA_GETTERS = _ACTING_GETTERS
    ARGUMENTS = {
        **ResourceCause.ARGUMENTS,
        'stopped': 'stopped',
        'uid': 'identity.uid',
        'name': 'identity.name',
        'namespace': 'identity.namespace',
    }

    @property
    def key(self) -> ObjectKey | None:
        """The key of the object, for instruments."""
        uid, name, namespace = self.identity
        return ObjectKey(self.resource, namespace, name, uid)

    def base_kwargs(self) -> dict[str, Any]:
        """Return the arguments of the daemon, as a new dict. There is only one handler, so nothing is shared."""
        return Cause.base_kwargs(self)


@dataclasses.dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ChangingCause(ResourceCause):
    """The object was created, changed, deleted, or is seen by this process for the first time."""

    reason: Reason
    initial: bool = False
    old: BodyEssence | None = None
    new: BodyEssence | None = None
    diff: Diff = EMPTY
    within: FieldPath = ()
    """The field to which ``old``, ``new``, ``diff`` are reduced; empty for the whole object."""
    deletion: DeletionFlagFactory | None = None

    EXTRA_GETTERS = _ACTING_GETTERS
    ARGUMENTS = {**ResourceCause.ARGUMENTS, 'reason': 'reason', 'old': 'old', 'new': 'new', 'diff': 'diff'}

    @property
    def occasion(self) -> str | None:
        """The reason, for instruments."""
        return self.reason.value

    @property
    def deleted(self) -> bool:
        """True if the object is being deleted."""
        return self.body.metadata.get('deletionTimestamp') is not None

    def all_kwargs(self, handler: 'Handler', state: 'HandlerState | None' = None) -> dict[str, Any]:
        """Return all arguments for the handler, with the changes reduced to its field if they are for its function."""
        kwargs = ResourceCause.all_kwargs(self, handler, state)
        field = getattr(handler, 'field', None)
        if field and state is not None:  # filters get the whole object
            kwargs.update(self._reduce_to(field))
            # Add the indices once more, because an index can have the name of one of these arguments.
            kwargs.update(self.indices)
        return kwargs

    def pick_kwargs(
        self,
        names: tuple[str, ...],
        handler: 'Handler',
        state: 'HandlerState | None' = None,
    ) -> dict[str, Any]:
        """Return the arguments with these names, with the changes reduced as in `all_kwargs`."""
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
        """Return the same cause reduced to the field, for the sub-handlers of a handler of this field."""
        return dataclasses.replace(self, within=self.within + field, **self._reduce_to(field))

    def reduced_diff(self, handler: 'ResourceHandler') -> Diff:
        """Return the differences in the field of the handler; all differences if it has no field."""
        return reduce(self.diff, handler.field) if handler.field else self.diff


@dataclasses.dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ReconcilingCause(ResourceCause):
    """An object, or another object that it depends on, has possibly changed since the handler's last run."""

    reasons: frozenset[str]
    children: Callable[[], Any] | None = None
    """Creates the argument for the children of the object; ``None`` if the handler does not name it."""

    EXTRA_GETTERS = {
        **TYPED_GETTERS,
        'children': lambda cause, handler: None if cause.children is None else cause.children(),
        'conditions': lambda cause, handler: make_conditions(cause),
    }
    ARGUMENTS = {**ResourceCause.ARGUMENTS, 'reasons': 'reasons'}


children_var: ContextVar[Callable[[ResourceCause, 'Handler'], Any]] = ContextVar('children_var')
"""Creates the argument ``children`` of handlers that are not level-triggered; the operator sets it."""


def make_children(cause: ResourceCause, handler: 'Handler') -> Any:
    """Return the argument for applying children; ``None`` without an operator."""
    make = children_var.get(None)
    return None if make is None else make(cause, handler)


def make_conditions(cause: ResourceCause) -> 'Conditions':
    """Return the conditions of the object; changes of them are added to the patch."""
    from kopf._cogs.structs.conditions import Conditions  # imported only by operators that use conditions

    return Conditions(cause.body, cause.patch, counted='status' in cause.resource.subresources)


def make_deletion_waiter(factory: DeletionFlagFactory | None, handler: 'Handler') -> FlagWaiter[Any] | None:
    """Return the flag that is raised when the object is marked for deletion; ``None`` without an operator."""
    if factory is None:
        return None
    return AsyncFlagWaiter(factory()) if handler.asynchronous else SyncFlagWaiter(factory())


@dataclasses.dataclass(slots=True, kw_only=True, eq=False, repr=False)
class WebhookCause(ResourceCause):
    """The API server requests the admission of an object."""

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
    _loaded: dict['Kind', Any] = dataclasses.field(default_factory=dict, init=False)

    IS_STORED = False  # until it is stored, a changed object has the resource version of the former state
    ARGUMENTS = {
        **ResourceCause.ARGUMENTS,
        'dryrun': 'dryrun',
        'headers': 'headers',
        'sslpeer': 'sslpeer',
        'userinfo': 'userinfo',
        'warnings': 'warnings',
        'operation': 'operation',
        'subresource': 'subresource',
        'old': 'old',
        'new': 'new',
        'diff': 'diff',
        'name': 'object_name',
        'namespace': 'object_namespace',
    }

    def load(self, model: 'Kind') -> Any:
        # All handlers of a review get the same object. It is in no cache, as it has no version of its own yet.
        if model not in self._loaded:
            try:
                self._loaded[model] = ResourceCause.load(self, model)
            except PermanentError as error:
                self._loaded[model] = error
        loaded = self._loaded[model]
        if isinstance(loaded, PermanentError):
            raise type(loaded)(*loaded.args)  # a new error each time, as tracebacks refer to frames
        return loaded

    @property
    def object_name(self) -> str | None:
        """The name in the body, or else in the request: the body of ``kubectl exec``, for example, has no name."""
        return self.body.metadata.name or self.name

    @property
    def object_namespace(self) -> str | None:
        """The namespace in the body, or in the request."""
        return self.body.metadata.namespace or self.namespace

    @property
    def key(self) -> ObjectKey | None:
        """The key of the object, for instruments."""
        return ObjectKey(self.resource, self.object_namespace, self.object_name, self.body.metadata.uid)

    @property
    def occasion(self) -> str | None:
        """The operation, for instruments."""
        return None if self.operation is None else self.operation.lower()


@dataclasses.dataclass(slots=True, kw_only=True)
class ConversionCause(ResourceCause):
    """The API server requests the conversion of an object to another version."""

    from_version: str
    to_version: str
    headers: Mapping[str, str]
    sslpeer: Mapping[str, Any]

    IS_STORED = False  # the API server converts the objects in requests, too
    ARGUMENTS = {
        **ResourceCause.ARGUMENTS,
        'from_version': 'from_version',
        'to_version': 'to_version',
        'headers': 'headers',
        'sslpeer': 'sslpeer',
    }
