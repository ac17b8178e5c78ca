"""
The handlers as they are declared: a function, what it is for, and its options.

They are data: how they are matched is in `filters`, how they are kept is in `registries`. Each kind of handlers
describes itself by the attributes of its class: see "A new kind of handlers, step by step" in the documentation.
"""

import dataclasses
import enum
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from kopf._cogs.structs.dicts import FieldPath
from kopf._cogs.structs.labelselectors import LabelSelector
from kopf._cogs.structs.references import Selector
from kopf._core.actions.execution import Handler
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

OperationName = Literal['CREATE', 'UPDATE', 'DELETE', 'CONNECT']


class DeclaredHandler(Handler):
    """A handler that a decorator makes. The attributes of its class say all that there is to know about its kind."""

    slot: ClassVar[str]
    """The attribute of the registry where the handlers of this kind are kept."""
    decorators: ClassVar[str]
    """How messages name the decorators of this kind."""
    options: ClassVar[type[Any]]
    """The typed dict of the options that the decorators take; a decorator can have one of its own."""
    cause: ClassVar[type[causes.Cause]]
    """The class of the causes that the handlers are run for: the functions can take its arguments."""


class ActivityOptions(IdentityOptions, ErrorsOptions, total=False):
    """Options of the operator's activities."""


class ScheduleOptions(ActivityOptions, total=False):
    """Options of the operator's schedules, besides their intervals."""

    initial_delay: float | None
    sharp: bool | None


class RepeatedOptions(ScheduleOptions, total=False):
    """Options of the operator's schedules."""

    interval: float


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ActivityHandler(DeclaredHandler):
    """A handler of what the operator does as a whole: starting, ending, logging in, probing."""

    activity: Activity

    slot = 'activities'
    kind = 'Activity'
    decorators = '@kopf.on.startup and others of the operator itself'
    options = ActivityOptions
    cause = causes.ActivityCause


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ScheduleHandler(ActivityHandler):
    """``@kopf.on.schedule``: a function of the operator that is run again and again."""

    interval: float
    initial_delay: float | None = None
    sharp: bool | None = None

    kind = 'Schedule'
    options = RepeatedOptions


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ResourceHandler(DeclaredHandler):
    """A handler of objects: of which resources, and which of their objects."""

    selector: Selector | None = None
    labels: MetaFilter | None = None
    annotations: MetaFilter | None = None
    when: WhenFilterFn | None = None
    field: FieldPath | None = None
    value: ValueFilter = None
    label_selector: LabelSelector | None = None
    callback_names: Mapping[tuple[int, int], tuple[str, ...]] = dataclasses.field(init=False)
    """
    The arguments that the callbacks take, except for callbacks that take any.

    The keys are the identity of the callback and the number of its positional arguments: it can be used for both.
    """

    cause: ClassVar[type[causes.Cause]] = causes.ResourceCause
    modifies: ClassVar[bool] = False
    """Whether the framework itself patches the objects for this kind of handlers."""
    watches: ClassVar[bool] = True
    """Whether the objects are watched for this kind of handlers; otherwise, the API brings them on its own."""
    named_by_field: ClassVar[bool] = True
    """Whether the field is a part of the id."""
    exclusive: ClassVar[bool] = True
    """Whether of several functions with the same id only one is called for an object."""
    extends_essence: ClassVar[bool] = True
    """Whether a change of the field counts as a change of the object, wherever the field is."""
    reads_indices: ClassVar[bool] = True
    """Whether the functions can take indices, so that they wait until the indices are complete."""
    callback_options: ClassVar[Sequence[str]] = ('value',)
    """The options that can be callbacks of a value, besides those of labels and annotations."""

    def __post_init__(self) -> None:
        super().__post_init__()
        names = {(id(fn), positional): read_names(fn, positional) for _, fn, positional in self.iter_callbacks()}
        object.__setattr__(self, 'callback_names', {key: each for key, each in names.items() if each is not None})

    def iter_callbacks(self) -> Iterator[tuple[str, Callable[..., Any], int]]:
        """Yield the option, the callback, and how many arguments it gets by their positions, before the kwargs."""
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

    exclusive = False


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SpawningHandler(ResourceHandler):
    """A handler that accompanies an object as long as the object is there."""

    requires_finalizer: bool = True
    initial_delay: float | DelayFn | None = None

    slot = 'spawning'
    decorators = '@kopf.daemon, @kopf.timer'
    cause = causes.DaemonCause
    modifies = True

    def iter_callbacks(self) -> Iterator[tuple[str, Callable[..., Any], int]]:
        yield from super().iter_callbacks()
        if callable(self.initial_delay):
            yield 'initial_delay', self.initial_delay, 0


class DaemonOptions(RetriedOptions, total=False):
    initial_delay: float | DelayFn | None
    cancellation_backoff: float | None
    cancellation_timeout: float | None
    cancellation_polling: float | None


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class DaemonHandler(SpawningHandler):
    """``@kopf.daemon``: a function that runs as long as the object is there."""

    cancellation_backoff: float | None = None
    cancellation_timeout: float | None = None
    cancellation_polling: float | None = None

    kind = 'Daemon'
    options = DaemonOptions


class TimerOptions(RetriedOptions, total=False):
    interval: float | None
    initial_delay: float | DelayFn | None
    sharp: bool | None
    idle: float | None


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TimerHandler(SpawningHandler):
    """``@kopf.timer``: a function that runs on a schedule as long as the object is there."""

    sharp: bool | None = None
    idle: float | None = None
    interval: float | None = None

    kind = 'Timer'
    options = TimerOptions
    routine = True


class ResumeOptions(RetriedOptions, total=False):
    deleted: bool | None


class DeleteOptions(RetriedOptions, total=False):
    optional: bool | None


class UpdateOptions(RetriedOptions, total=False):
    old: Any
    new: Any


class FieldOptions(IdentityOptions, SelectorOptions, MetaOptions, WatchOptions, ErrorsOptions, total=False):
    old: Any
    new: Any


class SubHandlerOptions(ErrorsOptions, FilterOptions, total=False):
    id: str | None
    param: Any
    old: Any
    new: Any


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ChangingHandler(ResourceHandler):
    """A handler of changes: ``@kopf.on.create/update/delete/resume/field``, and sub-handlers."""

    reason: Reason | None = None
    """The only reason it is for; any if ``None``."""
    initial: bool = False
    """Is also due at the first sight of an object: ``@kopf.on.resume``."""
    deleted: bool = False
    """If ``initial``: also for objects that are being deleted."""
    requires_finalizer: bool = False
    """Must not be missed when the object is deleted."""
    needs_change: bool = False
    """Is due only if its field is affected by the change: ``@kopf.on.update``, ``@kopf.on.field``."""
    old: ValueFilter = None
    new: ValueFilter = None

    slot = 'changing'
    decorators = '@kopf.on.create, update, delete, resume, field'
    options = RetriedOptions
    cause = causes.ChangingCause
    modifies = True
    callback_options = ('value', 'old', 'new')


class WebhookType(enum.StrEnum):
    VALIDATING = 'validating'
    MUTATING = 'mutating'


class WebhookOptions(ObjectOptions, total=False):
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
    watches = False


class ConversionOptions(IdentityOptions, total=False):
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
    """The versions that it can convert from; any if ``None``."""
    to_versions: frozenset[str] | None = None
    """The versions that it can convert to; any if ``None``."""
    persistent: bool = True

    slot = 'conversions'
    kind = 'Conversion'
    decorators = '@kopf.on.convert'
    options = ConversionOptions
    cause = causes.ConversionCause
    quiet = True
    watches = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.selector is not None and self.selector.version is not None:
            raise TypeError(
                f"@kopf.on.convert: the resource must be named without a version: {self.selector!r}. "
                f"The versions go to from_version= and to_version=."
            )

    def converts(self, start: str, end: str) -> bool:
        """Tell whether it converts from the one version to the other."""
        return (self.from_versions is None or start in self.from_versions) and (
            self.to_versions is None or end in self.to_versions
        )


KINDS: list[type[DeclaredHandler]] = [
    ActivityHandler,
    IndexingHandler,
    WatchingHandler,
    SpawningHandler,
    ChangingHandler,
    WebhookHandler,
    ConversionHandler,
]
"""The kinds of handlers, in the order in which their handlers are listed. Subclasses of a kind share its slot."""
