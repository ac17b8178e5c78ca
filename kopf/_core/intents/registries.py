"""
Registries of the declared handlers, and tables of the handlers of one resource.

The decorators fill a registry while the user's files are imported. When a resource is discovered, its `HandlerTable` is
created: everything that is needed for each event of the resource, and depends only on the handlers, is computed once.
"""

import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

from kopf._cogs.structs.dicts import FieldPath
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.labelselectors import LabelSelector
from kopf._cogs.structs.references import Resource, Selector
from kopf._core.actions.execution import Handler
from kopf._core.intents import filters
from kopf._core.intents.causes import Activity, ChangingCause
from kopf._core.intents.dependencies import find_arguments
from kopf._core.intents.handlers import (
    KINDS,
    ActivityHandler,
    ChangingHandler,
    ConversionHandler,
    DeclaredHandler,
    IndexingHandler,
    ReconcilingHandler,
    ResourceHandler,
    ScheduleHandler,
    Source,
    SpawningHandler,
    WatchingHandler,
    WebhookHandler,
)

if TYPE_CHECKING:
    from kopf._core.intents.declared_kinds import Kind  # imported only by operators with models

HandlerT = TypeVar('HandlerT', bound=DeclaredHandler)
ResourceHandlerT = TypeVar('ResourceHandlerT', bound=ResourceHandler)


class HandlersRegistry(Generic[HandlerT]):
    """
    Handlers of one kind, in the order of their declaration.

    Args:
        changed: called when a handler is added.
    """

    def __init__(self, changed: Callable[[], None] | None = None) -> None:
        self._handlers: list[HandlerT] = []
        self._changed = changed

    def append(self, handler: HandlerT) -> None:
        """Add the handler."""
        self._handlers.append(handler)
        if self._changed is not None:
            self._changed()

    def get_all_handlers(self) -> list[HandlerT]:
        """Return the handlers in the order of their declaration."""
        return list(self._handlers)

    def __iter__(self) -> Iterator[HandlerT]:
        return iter(self._handlers)

    def __len__(self) -> int:
        return len(self._handlers)


class ActivitiesRegistry(HandlersRegistry[ActivityHandler]):
    """The handlers of activities, which are selected by the activity."""

    def get_handlers(self, activity: Activity) -> list[ActivityHandler]:
        """Return the handlers of the activity, in the order of their declaration."""
        return [handler for handler in self if handler.activity is activity]

    def get_schedules(self) -> list[ScheduleHandler]:
        """Return the handlers that are run on a schedule, in the order of their declaration."""
        return [handler for handler in self if isinstance(handler, ScheduleHandler)]


class ChangingRegistry(HandlersRegistry[ChangingHandler]):
    """The handlers of changes, which are selected by the cause."""

    def get_handlers(self, cause: ChangingCause) -> list[ChangingHandler]:
        """Return the handlers that match the cause; used for sub-handlers, which have no selectors."""
        return list(filters.deduplicate(handler for handler in self if filters.match(handler, cause)))


class OperatorRegistry:
    """
    All handlers of an operator. Each kind has its attribute: the ``slot`` of its class.

    The decorators fill the default registry, unless another one is given by ``registry=``. Several operators in one
    process need separate registries: see the documentation's "Run an operator from Python".
    """

    activities: ActivitiesRegistry
    indexing: HandlersRegistry[IndexingHandler]
    watching: HandlersRegistry[WatchingHandler]
    spawning: HandlersRegistry[SpawningHandler]
    changing: ChangingRegistry
    reconciling: HandlersRegistry[ReconcilingHandler]
    webhooks: HandlersRegistry[WebhookHandler]
    conversions: HandlersRegistry[ConversionHandler]

    def __init__(self) -> None:
        self.kinds: list[Kind] = []
        """The kinds that are declared as classes, in the order of their declaration."""
        self.listeners: list[Callable[[], object]] = []
        """The functions that are called when a handler of objects is added, in the thread that adds it."""
        self.activity_listeners: list[Callable[[], object]] = []
        """The same for handlers of activities."""
        for kind in KINDS:
            make = _REGISTRIES.get(kind, HandlersRegistry)
            listeners = self.listeners if issubclass(kind, ResourceHandler) else self.activity_listeners
            handlers = make(functools.partial(_notify, listeners))
            setattr(self, kind.slot, handlers)
            # Some operators find or wrap their own handlers by the private names that the slots have in upstream.
            setattr(self, f'_{kind.slot}', handlers)

    def of(self, kind: type[HandlerT]) -> HandlersRegistry[HandlerT]:
        """Return the registry of the kind; it contains the handlers of all kinds with the same slot."""
        return cast(HandlersRegistry[HandlerT], getattr(self, kind.slot))

    def add_kind(self, kind: 'Kind') -> None:
        """
        Add the declaration of a kind; it replaces that of the same class if its file is imported again.

        Raises:
            TypeError: if another class has declared the same version of the kind.
        """
        others = [other for other in self.kinds if not kind.replaces(other)]
        for other in others:
            kind.check_beside(other)
        self.kinds = [*others, kind]

    def extend(self, other: 'OperatorRegistry', chosen: Callable[[Handler], bool] = lambda _: True) -> None:
        """Add the chosen handlers of another registry, except for those that this registry contains already."""
        for kind in KINDS:
            own = self.of(kind)
            # Compare the identity: handlers with equal options are still different declarations.
            known = set(own)
            for handler in other.of(kind).get_all_handlers():
                if handler not in known and chosen(handler):
                    own.append(handler)
        for declared in other.kinds:
            if declared not in self.kinds:
                self.add_kind(declared)

    def iter_handlers(self) -> Iterator[DeclaredHandler]:
        """Yield the handlers of all kinds."""
        for kind in KINDS:
            yield from self.of(kind)

    def iter_resource_handlers(self) -> Iterator[ResourceHandler]:
        """Yield the handlers of all kinds that are for objects."""
        for kind in KINDS:
            if issubclass(kind, ResourceHandler):
                yield from self.of(kind)

    def iter_selectors(self, *, watched: bool = True, patched: bool = False) -> Iterator[Selector]:
        """
        Yield the selectors of handlers.

        Args:
            watched: whether to include the handlers whose objects are watched, or instead the other ones.
            patched: whether to include only the handlers whose objects the framework patches.
        """
        for handler in self.iter_resource_handlers():
            if handler.watches is not watched or handler.selector is None:
                continue
            if not patched or handler.modifies:
                yield handler.selector
            if not patched:
                yield from (source.selector for source in handler.sources)


def _notify(listeners: Collection[Callable[[], object]]) -> None:
    # A copy, since a listener can remove itself.
    for listener in list(listeners):
        listener()


_REGISTRIES: Mapping[type[DeclaredHandler], type[HandlersRegistry[Any]]] = {
    ActivityHandler: ActivitiesRegistry,
    ChangingHandler: ChangingRegistry,
}
"""The classes of registries for kinds that need special selections; `HandlersRegistry` for other kinds."""


class SmartOperatorRegistry(OperatorRegistry):
    """The registry that is used by default."""


_process_registry = SmartOperatorRegistry()
_default_registry_var: ContextVar[OperatorRegistry] = ContextVar('default_registry_var', default=_process_registry)


registry_var: ContextVar[OperatorRegistry] = ContextVar('registry_var')
"""The registry of the operator that runs the current code."""


def get_default_registry() -> OperatorRegistry:
    """Return the registry that decorators and operators use if they get no other one."""
    return _default_registry_var.get()


def set_default_registry(registry: OperatorRegistry | None) -> None:
    """
    Replace the default registry in this thread, or in this task and the tasks started by it.

    Args:
        registry: the registry; ``None`` is for a new, empty one.
    """
    _default_registry_var.set(SmartOperatorRegistry() if registry is None else registry)


_NO_HANDLERS: Mapping[type[ResourceHandler], tuple[Any, ...]] = {}


class HandlerTable(NamedTuple):
    """
    The handlers of one resource, with all facts that depend only on them.

    Values that are needed for each event are attributes, because a look-up in a mapping takes longer.
    """

    resource: Resource
    handlers: Mapping[type[ResourceHandler], tuple[Any, ...]] = _NO_HANDLERS
    """The handlers of each kind whose objects are watched."""
    indexing: tuple[IndexingHandler, ...] = ()
    watching: tuple[WatchingHandler, ...] = ()
    spawning: tuple[SpawningHandler, ...] = ()
    changing: tuple[ChangingHandler, ...] = ()
    changing_ids: tuple[HandlerId, ...] = ()
    resuming_ids: frozenset[HandlerId] = frozenset()
    only_resuming_ids: frozenset[HandlerId] = frozenset()
    """The ids of resuming handlers that no other handlers have."""
    extra_fields: frozenset[FieldPath] = frozenset()
    """The fields that belong to the essence only because a handler of any kind names them."""
    finalizing: tuple[ResourceHandler, ...] = ()
    """The change-detecting handlers that require the finalizer. Daemons can require it, too: see `Spawner`."""
    managing: bool = False
    """Whether the framework stores its state on the objects."""
    releasing: bool = False
    """Whether no handler requires the finalizer, so that it is removed if a former version of the operator left it."""
    is_reconciled_elsewhere: bool = False
    """Whether only other versions of the resource have level-triggered handlers, which delete the remote children."""
    dependents: tuple[tuple[ResourceHandler, Source], ...] = ()
    """The handlers of other resources that depend on the objects of this one, each with its source."""
    arguments: frozenset[str] | None = frozenset()
    """The arguments that handlers can access, not counting indexing handlers; ``None`` if they can access any."""
    label_selector: LabelSelector | None = None
    """The label selector of the watch, if it is the same for all handlers: they share the watch."""

    @property
    def has_different_selectors(self) -> bool:
        """True if label selectors of handlers are not applied by the server, because they differ."""
        return self.label_selector is None and any(
            handler.label_selector is not None for handlers in self.handlers.values() for handler in handlers
        )

    def of(self, kind: type[ResourceHandlerT]) -> tuple[ResourceHandlerT, ...]:
        """Return the handlers of the kind. Engines keep the result as long as they use the table."""
        return self.handlers.get(kind, ())

    @classmethod
    def build(cls, registry: OperatorRegistry, resource: Resource, served: Collection[Selector]) -> 'HandlerTable':
        """Create the table of the resource from the handlers whose selectors have been resolved to it (``served``)."""
        handlers: dict[type[ResourceHandler], tuple[Any, ...]] = {
            kind: tuple(handler for handler in registry.of(kind) if handler.selector in served)
            for kind in KINDS
            if issubclass(kind, ResourceHandler) and kind.watches
        }
        changing: tuple[ChangingHandler, ...] = handlers[ChangingHandler]
        every = [handler for some in handlers.values() for handler in some]
        dependents = tuple(
            (handler, source)
            for handler in registry.iter_resource_handlers()
            for source in handler.sources
            if source.selector in served
        )
        # Handlers of other resources depend on all objects of this one, so the server must not filter them by labels.
        selectors = {handler.label_selector for handler in every} | {None for _ in dependents}
        managing = any(handler.modifies for handler in every)
        return cls(
            resource=resource,
            handlers=handlers,
            indexing=handlers[IndexingHandler],
            watching=handlers[WatchingHandler],
            spawning=handlers[SpawningHandler],
            changing=changing,
            changing_ids=tuple(dict.fromkeys(handler.id for handler in changing)),
            resuming_ids=frozenset(handler.id for handler in changing if handler.initial),
            only_resuming_ids=frozenset(handler.id for handler in changing if handler.initial)
            - {handler.id for handler in changing if not handler.initial},
            extra_fields=frozenset(handler.field for handler in every if handler.field and handler.extends_essence),
            finalizing=tuple(handler for handler in changing if handler.requires_finalizer),
            managing=managing,
            # Kinds on which handlers of other kinds depend are not the operator's own: it has no handlers for them.
            releasing=bool(every) and not managing,
            label_selector=selectors.pop() if len(selectors) == 1 else None,
            dependents=dependents,
            arguments=find_arguments(handler for handler in every if handler.reads_indices),
        )


def get_callable_id(fn: Any) -> str:
    """
    Return the default id of a handler: the qualified name of its function.

    Raises:
        ValueError: if the object has no name.
    """
    while isinstance(fn, functools.partial):  # why not any object with a `func`? mocks have all attributes, endlessly
        fn = fn.func
    name = getattr(fn, '__qualname__', None)
    if name is None:
        raise ValueError(f"Cannot get id of {fn!r}. Give one by the option id=.")
    if name == '<lambda>' or name.endswith('.<lambda>'):
        # All lambdas have the same name, so all lambdas of a module would have the same id.
        return f"lambda:{fn.__code__.co_filename}:{fn.__code__.co_firstlineno}"
    return str(name)


def make_handler_id(
    fn: Any,
    id: str | None,
    *,
    field: FieldPath | None = None,
    parent: HandlerId | None = None,
) -> HandlerId:
    """Return the full id of a handler: the id of its parent, its own id, and its field."""
    # Ids are keys of stored records. If this rule changed, an upgraded operator would run handlers again; so would
    # an operator that switches from upstream kopf, where the rule is the same.
    own = id if id is not None else get_callable_id(fn)
    suffix = f"/{'.'.join(field)}" if field else ''
    return HandlerId(f"{parent}/{own}{suffix}" if parent else f"{own}{suffix}")
