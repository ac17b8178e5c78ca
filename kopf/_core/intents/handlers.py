"""
Declared handlers: a function, the events that it handles, and its options.

They are only data: `filters` matches them, `registries` keeps them. The attributes of each class describe the kind of
its handlers: see "A new kind of handlers, step by step" in the documentation.
"""

import dataclasses
import enum
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from kopf._cogs.structs.dicts import FieldPath
from kopf._cogs.structs.labelselectors import LabelSelector
from kopf._cogs.structs.references import Selector
from kopf._core.actions.execution import ErrorsMode, Handler
from kopf._core.actions.invocation import read_arguments
from kopf._core.intents import causes
from kopf._core.intents.callbacks import DelayFn, MetaFilter, ValueFilter, WhenFilterFn, read_names
from kopf._core.intents.causes import Activity, Reason
from kopf._core.intents.options import (
    ErrorsOptions,
    FilterOptions,
    IdentityOptions,
    MetaOptions,
    ObjectOptions,
    RetriedOptions,
    SelectorOptions,
    WatchOptions,
)
from kopf._core.intents.status_writers import watching_status

if TYPE_CHECKING:
    from kopf._core.intents.declared_kinds import Kind  # imported only by operators with models

OperationName = Literal['CREATE', 'UPDATE', 'DELETE', 'CONNECT']


def find_typed(fn: Callable[..., Any]) -> tuple[str, ...]:
    """Return the arguments of the function that it gets as objects of a class, if the resource is named by one."""
    return tuple(name for name in read_arguments(fn).explicit if name in causes.TYPED_GETTERS)


class DeclaredHandler(Handler):
    """A handler that a decorator creates. The attributes of the class describe its kind completely."""

    slot: ClassVar[str]
    """The attribute of the registry where the handlers of this kind are kept."""
    decorators: ClassVar[str]
    """The names of the decorators in messages."""
    options: ClassVar[type[Any]]
    """The typed dict of the options of the decorators; a decorator can have another one."""
    cause: ClassVar[type[causes.Cause]]
    """The class of the causes; it provides the arguments of the functions."""

    @property
    def is_periodic(self) -> bool:
        """Return whether the function can act again and again, although nothing changes."""
        return False


class ActivityOptions(IdentityOptions, ErrorsOptions, total=False):
    """Options of handlers of activities."""


class ScheduleOptions(ActivityOptions, total=False):
    """Options of schedules, except for the interval."""

    initial_delay: float | None
    sharp: bool | None


class RepeatedOptions(ScheduleOptions, total=False):
    """Options of schedules."""

    interval: float


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ActivityHandler(DeclaredHandler):
    """A handler of an activity of the operator as a whole: starting, ending, logging in, probing."""

    activity: Activity

    slot = 'activities'
    kind = 'Activity'
    decorators = '@kopf.on.startup and others of the operator itself'
    options = ActivityOptions
    cause = causes.ActivityCause
    concurrent = True


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ScheduleHandler(ActivityHandler):
    """``@kopf.on.schedule``: a function that is run periodically, independently of objects."""

    interval: float
    initial_delay: float | None = None
    sharp: bool | None = None

    kind = 'Schedule'
    options = RepeatedOptions

    @property
    def is_periodic(self) -> bool:
        return True


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ResourceHandler(DeclaredHandler):
    """A handler of objects, which are selected by the resource and by filters."""

    selector: Selector | None = None
    labels: MetaFilter | None = None
    annotations: MetaFilter | None = None
    when: WhenFilterFn | None = None
    field: FieldPath | None = None
    value: ValueFilter = None
    label_selector: LabelSelector | None = None
    model: 'Kind | None' = None
    """The declared kind whose class selects the resource; the function gets objects of this class."""
    callback_names: Mapping[tuple[int, int], tuple[str, ...]] = dataclasses.field(init=False)
    """
    The names of the arguments of callbacks, except for callbacks that take any arguments.

    The keys are the identity of the callback and the number of its positional arguments: the same function can be used
    with and without a value.
    """

    cause: ClassVar[type[causes.Cause]] = causes.ResourceCause
    modifies: ClassVar[bool] = False
    """Whether the framework patches the objects for this kind of handlers, in order to store its state."""
    watches: ClassVar[bool] = True
    """Whether the objects are watched for this kind of handlers; otherwise, the API server sends them by webhooks."""
    configures: ClassVar[Mapping[str, Sequence[str]]] = {}
    """
    The resources (``plural.group``) of the objects by which the framework makes the API server call this kind of
    handlers, and the verbs that it needs for them.
    """
    named_by_field: ClassVar[bool] = True
    """Whether the field is a part of the id."""
    exclusive: ClassVar[bool] = True
    """Whether only one of several functions with the same id is called for an object."""
    extends_essence: ClassVar[bool] = True
    """Whether the field belongs to the essence, so that its changes are handled, even in the status."""
    reads_indices: ClassVar[bool] = True
    """Whether the functions can take indices, and so must wait until the indices are complete."""
    callback_options: ClassVar[Sequence[str]] = ('value',)
    """The options that can be callbacks with a value, besides labels and annotations."""
    sources: Sequence['Source'] = ()
    """The other resources that are watched, because the objects of the handler depend on their objects."""

    @property
    def uses_conditions(self) -> bool:
        """Return whether the function can set conditions of the object."""
        return 'conditions' in self.extras

    @property
    def may_patch(self) -> bool:
        """Return whether the framework can patch the objects: to store its state, or what the function has changed."""
        return self.modifies

    @property
    def handles_updates(self) -> bool:
        """Return whether the function is called after changes of an object that is handled already."""
        return False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model is not None:
            object.__setattr__(self, 'extras', (*self.extras, *find_typed(self.fn)))
            if not self.concurrent:
                object.__setattr__(self, 'context', watching_status)
        # The ids of the functions stay unique, because the handler keeps the functions.
        names = {(id(fn), positional): read_names(fn, positional) for _, fn, positional in self.iter_callbacks()}
        object.__setattr__(self, 'callback_names', {key: each for key, each in names.items() if each is not None})

    def iter_callbacks(self) -> Iterator[tuple[str, Callable[..., Any], int]]:
        """Yield the option, the callback, and the number of its positional arguments, for each callback."""
        for option in ('labels', 'annotations'):
            for value in (getattr(self, option) or {}).values():
                if callable(value):
                    yield option, value, 1
        for option in self.callback_options:
            if callable(value := getattr(self, option)):
                yield option, value, 1
        if self.when is not None:
            yield 'when', self.when, 0


class IndexingHandler(ResourceHandler):
    """A function that indexes objects: ``@kopf.index``."""

    slot = 'indexing'
    decorators = '@kopf.index'
    options = RetriedOptions
    cause = causes.IndexingCause

    kind = 'Indexer'
    quiet = True
    frequent = True
    concurrent = True
    exclusive = False
    extends_essence = False
    reads_indices = False
    named_by_field = False  # the id is the name of a kwarg


class EventOptions(ObjectOptions, WatchOptions, total=False):
    """Options of handlers of raw events."""


class WatchingHandler(ResourceHandler):
    """A handler of raw events: ``@kopf.on.event``."""

    slot = 'watching'
    decorators = '@kopf.on.event'
    options = EventOptions
    cause = causes.WatchingCause

    reconciles = True
    exclusive = False

    @property
    def may_patch(self) -> bool:
        """Return whether the function names an argument by which it writes; all others only read."""
        return self.uses_conditions or 'patch' in read_arguments(self.fn).explicit


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SpawningHandler(ResourceHandler):
    """A handler that runs as long as the object exists: a daemon or a timer."""

    requires_finalizer: bool = True
    initial_delay: float | DelayFn | None = None

    slot = 'spawning'
    decorators = '@kopf.daemon, @kopf.timer'
    cause = causes.DaemonCause
    modifies = True

    @property
    def is_periodic(self) -> bool:
        return True

    def iter_callbacks(self) -> Iterator[tuple[str, Callable[..., Any], int]]:
        """Yield the same as for other handlers, and the function for the initial delay."""
        yield from super().iter_callbacks()
        if callable(self.initial_delay):
            yield 'initial_delay', self.initial_delay, 0


class DaemonOptions(RetriedOptions, total=False):
    """Options of daemons; the times are in seconds."""

    initial_delay: float | DelayFn | None
    cancellation_backoff: float | None
    cancellation_timeout: float | None
    cancellation_polling: float | None


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class DaemonHandler(SpawningHandler):
    """``@kopf.daemon``: a function that runs as long as the object exists."""

    cancellation_backoff: float | None = None
    cancellation_timeout: float | None = None
    cancellation_polling: float | None = None

    kind = 'Daemon'
    options = DaemonOptions


class TimerOptions(RetriedOptions, total=False):
    """Options of timers; the times are in seconds."""

    interval: float | None
    initial_delay: float | DelayFn | None
    sharp: bool | None
    idle: float | None


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TimerHandler(SpawningHandler):
    """``@kopf.timer``: a function that is run periodically as long as the object exists."""

    sharp: bool | None = None
    idle: float | None = None
    interval: float | None = None

    kind = 'Timer'
    options = TimerOptions
    routine = True
    frequent = True


SourceName = str | tuple[str, ...] | type[Any]
"""The name of a resource that a handler of another resource depends on."""

MappingFn = Callable[..., Any]
"""A function that returns the namespaces and names of the objects that depend on an object."""


class Source(NamedTuple):
    """A resource that a handler of another resource depends on."""

    selector: Selector
    fn: MappingFn | None = None
    """Finds the dependents of an object of this resource; if ``None``, its owner references name them."""
    model: 'Kind | None' = None
    """The kind of the class that names the resource: the function gets objects of this class."""


class ReconcileOptions(ObjectOptions, WatchOptions, total=False):
    """Options of level-triggered handlers; times are in seconds."""

    errors: ErrorsMode | None
    retries: int | None
    timeout: float | None
    interval: float | None
    concurrency: int | None
    owns: Iterable[SourceName]
    # Why not `SourceName`? The keys of mappings are invariant: type checkers would refuse dicts with classes only.
    watches: Mapping[Any, MappingFn] | None
    backoff: tuple[float, float]
    conditions: bool
    prune: bool


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ReconcilingHandler(ResourceHandler):
    """``@kopf.on.reconcile``: a function that brings an object to its desired state after any change."""

    sources: Sequence[Source] = ()
    interval: float | None = None
    concurrency: int | None = None
    run_timeout: float | None = None
    """The time limit of one run (in seconds); several attempts have no common limit."""
    backoffs: tuple[float, float] = (1, 600)
    """The first delay after an error, and the longest one."""
    conditions: bool = False
    """Whether the framework sets the conditions of the objects."""
    prune: bool = True
    """Whether the framework deletes the children that a successful run has not applied."""

    slot = 'reconciling'
    kind = 'Reconciler'
    decorators = '@kopf.on.reconcile'
    options = ReconcileOptions
    cause = causes.ReconcilingCause
    routine = True
    reconciles = True

    @property
    def uses_conditions(self) -> bool:
        return self.conditions or super().uses_conditions

    @property
    def may_patch(self) -> bool:
        return True  # for conditions, and for the ``patch`` of the function

    @property
    def handles_updates(self) -> bool:
        return True

    @property
    def is_periodic(self) -> bool:
        return bool(self.interval)

    def iter_callbacks(self) -> Iterator[tuple[str, Callable[..., Any], int]]:
        yield from super().iter_callbacks()
        for source in self.sources:
            if source.fn is not None:
                yield 'watches', source.fn, 0


class ResumeOptions(RetriedOptions, total=False):
    """Options of ``@kopf.on.resume``."""

    deleted: bool | None


class DeleteOptions(RetriedOptions, total=False):
    """Options of ``@kopf.on.delete``."""

    optional: bool | None


class UpdateOptions(RetriedOptions, total=False):
    """Options of ``@kopf.on.update``."""

    old: Any
    new: Any


class FieldOptions(IdentityOptions, SelectorOptions, MetaOptions, WatchOptions, ErrorsOptions, total=False):
    """Options of ``@kopf.on.field``, except for the field."""

    old: Any
    new: Any


class SubHandlerOptions(ErrorsOptions, FilterOptions, total=False):
    """Options of sub-handlers."""

    id: str | None
    param: Any
    old: Any
    new: Any


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ChangingHandler(ResourceHandler):
    """A handler of changes: ``@kopf.on.create/update/delete/resume/field``, and sub-handlers."""

    reason: Reason | None = None
    """The reason for which it is run; ``None`` for any reason."""
    initial: bool = False
    """Whether it is run when this process sees the object for the first time: ``@kopf.on.resume``."""
    deleted: bool = False
    """If ``initial``: whether it is also run for objects that are being deleted."""
    requires_finalizer: bool = False
    """Whether the deletion of the object must wait until the handler has finished."""
    needs_change: bool = False
    """Whether it is run only if its field has changed: ``@kopf.on.update``, ``@kopf.on.field``."""
    old: ValueFilter = None
    new: ValueFilter = None

    slot = 'changing'
    decorators = '@kopf.on.create, update, delete, resume, field'
    options = RetriedOptions
    cause = causes.ChangingCause
    modifies = True
    reconciles = True
    callback_options = ('value', 'old', 'new')

    @property
    def handles_updates(self) -> bool:
        return self.reason is Reason.UPDATE or (self.reason is None and self.needs_change)


class WebhookType(enum.StrEnum):
    """The types of admission webhooks."""

    VALIDATING = 'validating'
    MUTATING = 'mutating'


class WebhookOptions(ObjectOptions, total=False):
    """Options of ``@kopf.on.validate`` and ``@kopf.on.mutate``."""

    operation: OperationName | None
    operations: Collection[OperationName] | None
    subresource: str | None
    persistent: bool | None
    side_effects: bool | None
    ignore_failures: bool | None


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class WebhookHandler(ResourceHandler):
    """A handler of admission reviews: ``@kopf.on.validate``, ``@kopf.on.mutate``."""

    type: WebhookType
    operations: Collection[str] | None = None
    subresource: str | None = None
    persistent: bool | None = None
    side_effects: bool | None = None
    ignore_failures: bool | None = None

    slot = 'webhooks'
    kind = 'Webhook'
    decorators = '@kopf.on.validate, mutate'
    options = WebhookOptions
    cause = causes.WebhookCause
    concurrent = True
    refuses = True
    watches = False
    configures = {
        'validatingwebhookconfigurations.admissionregistration.k8s.io': ('create', 'get', 'patch'),
        'mutatingwebhookconfigurations.admissionregistration.k8s.io': ('create', 'get', 'patch'),
    }


class ConversionOptions(IdentityOptions, total=False):
    """Options of ``@kopf.on.convert``."""

    group: str | None
    kind: str | None
    plural: str | None
    singular: str | None
    shortcut: str | None
    category: str | None
    from_version: str | Collection[str] | None
    to_version: str | Collection[str] | None
    persistent: bool | None


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ConversionHandler(ResourceHandler):
    """A handler that converts objects between versions: ``@kopf.on.convert``."""

    from_versions: frozenset[str] | None = None
    """The versions that it can convert from; ``None`` for any version."""
    to_versions: frozenset[str] | None = None
    """The versions that it can convert to; ``None`` for any version."""
    target: 'Kind | None' = None
    """The declared kind whose class is the version that it converts to."""
    persistent: bool = True

    slot = 'conversions'
    kind = 'Conversion'
    decorators = '@kopf.on.convert'
    options = ConversionOptions
    cause = causes.ConversionCause
    quiet = True
    concurrent = True
    watches = False
    configures = {'customresourcedefinitions.apiextensions.k8s.io': ('get', 'patch')}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.selector is not None and self.selector.version is not None:
            raise TypeError(
                f"@kopf.on.convert: the resource must be named without a version: {self.selector!r}. "
                f"The versions go to from_version= and to_version=."
            )

    def converts(self, start: str, end: str) -> bool:
        """Check whether it converts objects from one version to the other."""
        return (self.from_versions is None or start in self.from_versions) and (
            self.to_versions is None or end in self.to_versions
        )


KINDS: list[type[DeclaredHandler]] = [
    ActivityHandler,
    IndexingHandler,
    WatchingHandler,
    SpawningHandler,
    ChangingHandler,
    ReconcilingHandler,
    WebhookHandler,
    ConversionHandler,
]
"""The kinds of handlers, in the order of `OperatorRegistry.iter_handlers`. Subclasses of a kind share its slot."""
