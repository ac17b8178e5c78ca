"""
The handlers as they are declared: a function, what it is for, and its options.

They are data: how they are matched is in `filters`, how they are kept is in `registries`.
"""

import dataclasses
import enum
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from kopf._cogs.structs.dicts import FieldPath
from kopf._cogs.structs.labelselectors import LabelSelector
from kopf._cogs.structs.references import Selector
from kopf._core.actions.execution import Handler
from kopf._core.intents.callbacks import DelayFn, MetaFilter, ValueFilter, WhenFilterFn, read_names
from kopf._core.intents.causes import Activity, Reason


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ActivityHandler(Handler):
    """A handler of what the operator does as a whole: starting, ending, logging in, probing."""

    activity: Activity

    kind = 'Activity'


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ScheduleHandler(ActivityHandler):
    """``@kopf.on.schedule``: a function of the operator that is run again and again."""

    interval: float
    initial_delay: float | None = None
    sharp: bool | None = None

    kind = 'Schedule'


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ResourceHandler(Handler):
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

    modifies: ClassVar[bool] = False
    """Whether the framework itself patches the objects for this kind of handlers."""
    watches: ClassVar[bool] = True
    """Whether the objects are watched for this kind of handlers; otherwise, the API brings them on its own."""
    named_by_field: ClassVar[bool] = True
    """Whether the field is a part of the id."""
    exclusive: ClassVar[bool] = True
    """Whether of several functions with the same id only one is called for an object."""
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


class WatchingHandler(ResourceHandler):
    """A handler of raw events: ``@kopf.on.event``."""

    exclusive = False


class IndexingHandler(ResourceHandler):
    """A function that indexes objects: ``@kopf.index``."""

    kind = 'Indexer'
    quiet = True
    exclusive = False
    named_by_field = False  # the id is the name of a kwarg


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

    modifies = True
    callback_options = ('value', 'old', 'new')


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SpawningHandler(ResourceHandler):
    """A handler that accompanies an object as long as the object is there."""

    requires_finalizer: bool = True
    initial_delay: float | DelayFn | None = None

    modifies = True

    def iter_callbacks(self) -> Iterator[tuple[str, Callable[..., Any], int]]:
        yield from super().iter_callbacks()
        if callable(self.initial_delay):
            yield 'initial_delay', self.initial_delay, 0


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class DaemonHandler(SpawningHandler):
    """``@kopf.daemon``: a function that runs as long as the object is there."""

    cancellation_backoff: float | None = None
    cancellation_timeout: float | None = None
    cancellation_polling: float | None = None

    kind = 'Daemon'


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TimerHandler(SpawningHandler):
    """``@kopf.timer``: a function that runs on a schedule as long as the object is there."""

    sharp: bool | None = None
    idle: float | None = None
    interval: float | None = None

    kind = 'Timer'
    routine = True


class WebhookType(enum.StrEnum):
    VALIDATING = 'validating'
    MUTATING = 'mutating'


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class WebhookHandler(ResourceHandler):
    """A handler of admission reviews: ``@kopf.on.validate``, ``@kopf.on.mutate``."""

    type: WebhookType
    operations: Collection[str] | None = None
    subresource: str | None = None
    persistent: bool | None = None
    side_effects: bool | None = None
    ignore_failures: bool | None = None

    kind = 'Webhook'
    watches = False


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ConversionHandler(ResourceHandler):
    """A handler that converts objects between versions: ``@kopf.on.convert``."""

    from_versions: frozenset[str] | None = None
    """The versions that it can convert from; any if ``None``."""
    to_versions: frozenset[str] | None = None
    """The versions that it can convert to; any if ``None``."""
    persistent: bool = True

    kind = 'Conversion'
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
