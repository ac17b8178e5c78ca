"""
Where the declared handlers are kept, and what of them concerns one resource.

A registry is filled by the decorators while the user's files are imported. When a resource is discovered, its
`HandlerTable` is made once: everything that is asked for at each event of the resource is decided there.
"""

import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Generic, NamedTuple, TypeVar, cast

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
    ResourceHandler,
    ScheduleHandler,
    SpawningHandler,
    WatchingHandler,
    WebhookHandler,
)

HandlerT = TypeVar('HandlerT', bound=DeclaredHandler)
ResourceHandlerT = TypeVar('ResourceHandlerT', bound=ResourceHandler)


class HandlersRegistry(Generic[HandlerT]):
    """Handlers of one kind, in the order of their declaration; the owner can be told when there is another one."""

    def __init__(self, changed: Callable[[], None] | None = None) -> None:
        self._handlers: list[HandlerT] = []
        self._changed = changed

    def append(self, handler: HandlerT) -> None:
        self._handlers.append(handler)
        if self._changed is not None:
            self._changed()

    def get_all_handlers(self) -> list[HandlerT]:
        """Give the handlers in the order of their declaration."""
        return list(self._handlers)

    def __iter__(self) -> Iterator[HandlerT]:
        return iter(self._handlers)

    def __len__(self) -> int:
        return len(self._handlers)


class ActivitiesRegistry(HandlersRegistry[ActivityHandler]):
    def get_handlers(self, activity: Activity) -> list[ActivityHandler]:
        """Give the handlers of the activity, in the order of their declaration."""
        return [handler for handler in self if handler.activity is activity]

    def get_schedules(self) -> list[ScheduleHandler]:
        """Return the handlers that are run on a schedule, in the order of their declaration."""
        return [handler for handler in self if isinstance(handler, ScheduleHandler)]


class ChangingRegistry(HandlersRegistry[ChangingHandler]):
    def get_handlers(self, cause: ChangingCause) -> list[ChangingHandler]:
        """Give the handlers that match the cause; used for sub-handlers, which have no selectors."""
        return list(filters.deduplicate(handler for handler in self if filters.match(handler, cause)))


class OperatorRegistry:
    """
    All the handlers of an operator, of all kinds. Each kind has an attribute: the ``slot`` of its class.

    The decorators fill the default one unless told otherwise by ``registry=``. Several operators in one process
    have a registry each: see the documentation's "Embedding".
    """

    activities: ActivitiesRegistry
    indexing: HandlersRegistry[IndexingHandler]
    watching: HandlersRegistry[WatchingHandler]
    spawning: HandlersRegistry[SpawningHandler]
    changing: ChangingRegistry
    webhooks: HandlersRegistry[WebhookHandler]
    conversions: HandlersRegistry[ConversionHandler]

    def __init__(self) -> None:
        self.listeners: list[Callable[[], object]] = []
        """Are called when a handler of objects is added: in that very thread."""
        self.activity_listeners: list[Callable[[], object]] = []
        """The same for handlers of activities."""
        for kind in KINDS:
            make = _REGISTRIES.get(kind, HandlersRegistry)
            listeners = self.listeners if issubclass(kind, ResourceHandler) else self.activity_listeners
            handlers = make(functools.partial(_notify, listeners))
            setattr(self, kind.slot, handlers)
            # Operators that look for their own handlers, or wrap them, know the slots by their private names.
            setattr(self, f'_{kind.slot}', handlers)

    def of(self, kind: type[HandlerT]) -> HandlersRegistry[HandlerT]:
        """Return where the handlers of the kind are kept, together with all others of the same slot."""
        return cast(HandlersRegistry[HandlerT], getattr(self, kind.slot))

    def extend(self, other: 'OperatorRegistry', chosen: Callable[[Handler], bool] = lambda _: True) -> None:
        """Add those of the handlers of another registry that are chosen, and are not here yet."""
        for kind in KINDS:
            own = self.of(kind)
            known = set(own)
            for handler in other.of(kind).get_all_handlers():
                if handler not in known and chosen(handler):
                    own.append(handler)

    def iter_handlers(self) -> Iterator[DeclaredHandler]:
        """Yield the handlers of all kinds."""
        for kind in KINDS:
            yield from self.of(kind)

    def iter_resource_handlers(self) -> Iterator[ResourceHandler]:
        """Yield the handlers of objects, of all kinds."""
        for kind in KINDS:
            if issubclass(kind, ResourceHandler):
                yield from self.of(kind)

    def iter_selectors(self, *, watched: bool = True, patched: bool = False) -> Iterator[Selector]:
        """Give the selectors of the handlers that need the objects to be watched, or also to be patched."""
        for handler in self.iter_resource_handlers():
            if handler.watches is not watched or handler.selector is None:
                continue
            if not patched or handler.modifies:
                yield handler.selector


def _notify(listeners: Collection[Callable[[], object]]) -> None:
    for listener in list(listeners):
        listener()


_REGISTRIES: Mapping[type[DeclaredHandler], type[HandlersRegistry[Any]]] = {
    ActivityHandler: ActivitiesRegistry,
    ChangingHandler: ChangingRegistry,
}
"""The registries of the kinds that are asked for some of their handlers, not only for all of them."""


class SmartOperatorRegistry(OperatorRegistry):
    """The registry that is used by default."""


_process_registry = SmartOperatorRegistry()
_default_registry_var: ContextVar[OperatorRegistry] = ContextVar('default_registry_var', default=_process_registry)


def get_default_registry() -> OperatorRegistry:
    """Give the registry that the decorators fill, and that operators use, if none is given to them."""
    return _default_registry_var.get()


def set_default_registry(registry: OperatorRegistry | None) -> None:
    """
    Use another registry by default: in this thread, or in this task and those started by it.

    :param registry: the registry; ``None`` is for a new one, which is empty.
    """
    _default_registry_var.set(SmartOperatorRegistry() if registry is None else registry)


_NO_HANDLERS: Mapping[type[ResourceHandler], tuple[Any, ...]] = {}


class HandlerTable(NamedTuple):
    """
    What an operator has declared for one resource.

    What is asked for at each event has an attribute of its own, as a look into a mapping takes longer.
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
    """Those that no handlers of other reasons have."""
    extra_fields: frozenset[FieldPath] = frozenset()
    """Fields that count as changes only because a handler names them, of whatever kind it is."""
    finalizing: tuple[ResourceHandler, ...] = ()
    """The change-detecting handlers for which the object must not vanish unnoticed. For daemons, see `Spawner`."""
    managing: bool = False
    """Whether the framework keeps anything on the objects themselves."""
    arguments: frozenset[str] | None = frozenset()
    """The arguments that the handlers can look at, besides those of indices; ``None`` if that can be any."""
    label_selector: LabelSelector | None = None
    """The selector for the server: it has to be that of all the handlers, as they share one watch."""

    @property
    def has_different_selectors(self) -> bool:
        """Whether all objects are watched, though handlers have label selectors: each handler has its own filter."""
        return self.label_selector is None and any(
            handler.label_selector is not None for handlers in self.handlers.values() for handler in handlers
        )

    def of(self, kind: type[ResourceHandlerT]) -> tuple[ResourceHandlerT, ...]:
        """Return the handlers of the kind. An engine keeps them until there is another table."""
        return self.handlers.get(kind, ())

    @classmethod
    def build(cls, registry: OperatorRegistry, resource: Resource, served: Collection[Selector]) -> 'HandlerTable':
        """Pick the handlers of the resource; of those with selectors that are served by it."""

        handlers: dict[type[ResourceHandler], tuple[Any, ...]] = {
            kind: tuple(handler for handler in registry.of(kind) if handler.selector in served)
            for kind in KINDS
            if issubclass(kind, ResourceHandler) and kind.watches
        }
        changing: tuple[ChangingHandler, ...] = handlers[ChangingHandler]
        every = [handler for some in handlers.values() for handler in some]
        selectors = {handler.label_selector for handler in every}
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
            managing=any(handler.modifies for handler in every),
            label_selector=selectors.pop() if len(selectors) == 1 else None,
            arguments=find_arguments(handler for handler in every if handler.reads_indices),
        )


def get_callable_id(fn: Any) -> str:
    """
    Give the id of a handler that has none of its own: the name of its function, as qualified in its module.

    :raises ValueError: if the object has no name.
    """
    while isinstance(fn, functools.partial):  # not whatever has a `func`: mocks have everything, endlessly
        fn = fn.func
    name = getattr(fn, '__qualname__', None)
    if name is None:
        raise ValueError(f"Cannot get id of {fn!r}. Give one by the option id=.")
    if name == '<lambda>' or name.endswith('.<lambda>'):
        return f"lambda:{fn.__code__.co_filename}:{fn.__code__.co_firstlineno}"
    return str(name)


def make_handler_id(
    fn: Any,
    id: str | None,
    *,
    field: FieldPath | None = None,
    parent: HandlerId | None = None,
) -> HandlerId:
    """Combine the id of a handler: of its own, of its parent, of its field."""
    own = id if id is not None else get_callable_id(fn)
    suffix = f"/{'.'.join(field)}" if field else ''
    return HandlerId(f"{parent}/{own}{suffix}" if parent else f"{own}{suffix}")
