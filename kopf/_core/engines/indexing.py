"""
Indices: what the indexing functions make of all the objects, kept in memory and given to all handlers by name.

Each index has one writer, the event loop, and any number of readers, in the loop and in threads. So readers iterate
over snapshots: nothing that happens meanwhile breaks them. An object is known by its record, not by its name: what a
removed object has left is never mixed up with a successor, whichever comes first. All is O(1) an object and a key.
"""

import collections
import copy
import datetime
from collections.abc import Collection, Hashable, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from typing import Any, Generic, TypeVar

from kopf._cogs.configs.configuration import ExecutionSettings
from kopf._cogs.structs import ephemera
from kopf._cogs.structs.ids import HandlerId
from kopf._core.actions import execution
from kopf._core.actions.execution import ErrorsMode, Execution, Outcome, utcnow
from kopf._core.actions.handler_states import HandlerState
from kopf._core.intents import filters
from kopf._core.intents.causes import IndexingCause
from kopf._core.intents.handlers import IndexingHandler

MAX_ATTEMPTS_AT_ONCE = 5
"""How many attempts of functions that ask for no delay follow each other at once."""

MIN_PAUSE, MAX_PAUSE = 0.1, 10.0
"""The pauses between the next ones: they grow twofold (in seconds). An event of the object ends a pause."""

_K = TypeVar('_K')
_V = TypeVar('_V')


class Store(ephemera.Store[_V], Generic[_V]):
    """The values of one key: one of each object that has brought the key."""

    __slots__ = ('_values',)

    def __init__(self) -> None:
        self._values: dict[Hashable, _V] = {}

    def __repr__(self) -> str:
        return repr(list(self))

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[_V]:
        return iter(list(self._values.values()))

    def __contains__(self, value: object) -> bool:
        return value in list(self._values.values())

    def __getstate__(self) -> Any:
        # Copies of all kinds are of the values only, not of the objects that have brought them.
        return None, {'_values': dict(enumerate(self))}


class Index(ephemera.Index[_K, _V], Generic[_K, _V]):
    """The stores by their keys, as readers see them."""

    __slots__ = ('_stores',)

    def __init__(self) -> None:
        self._stores: dict[_K, Store[_V]] = {}

    def __repr__(self) -> str:
        return repr(self._stores.copy())

    def __len__(self) -> int:
        return len(self._stores)

    def __iter__(self) -> Iterator[_K]:
        return iter(list(self._stores))

    def __contains__(self, key: object) -> bool:
        return key in self._stores

    def __getitem__(self, key: _K) -> Store[_V]:
        return self._stores[key]

    def items(self) -> ItemsView[_K, ephemera.Store[_V]]:
        return dict[_K, ephemera.Store[_V]](self._stores).items()

    def values(self) -> ValuesView[ephemera.Store[_V]]:
        return dict[_K, ephemera.Store[_V]](self._stores).values()

    def __getstate__(self) -> Any:
        return None, {'_stores': {key: copy.copy(store) for key, store in self.items()}}


class OperatorIndexer:
    """The writer of one index; it knows which keys an object has brought."""

    __slots__ = ('_keys', 'index')

    def __init__(self) -> None:
        self.index: Index[Any, Any] = Index()
        self._keys: dict[Hashable, tuple[Any, ...]] = {}

    def replace(self, obj: Hashable, result: object) -> None:
        """
        Put the result for the object instead of its previous one.

        Only a plain dict is split by its keys, anything else is one value under the key ``None``. A key that stays is
        never absent in between.
        """
        values = result if type(result) is dict else {None: result}
        previous = self._keys.get(obj, ())
        stores = self.index._stores
        for key, value in values.items():
            store = stores.get(key)
            if store is None:
                store = Store()
                store._values[obj] = value
                stores[key] = store  # only when it is filled: readers never see an empty one
            else:
                store._values[obj] = value
        if values:
            self._keys[obj] = tuple(values)
        else:
            self._keys.pop(obj, None)
        self._remove(obj, [key for key in previous if key not in values])

    def discard(self, obj: Hashable) -> None:
        """Remove all that the object has brought; nothing happens if it has not."""
        self._remove(obj, self._keys.pop(obj, ()))

    def _remove(self, obj: Hashable, keys: Iterable[Any]) -> None:
        stores = self.index._stores
        for key in keys:
            store = stores[key]
            if len(store) == 1:
                del stores[key]  # before it is emptied
            del store._values[obj]


class OperatorIndexers(dict[HandlerId, OperatorIndexer]):
    """
    All the indexers of an operator, by the names of the indices.

    Those who embed an operator can make one, give it to ``kopf.operator(indexers=…)``, and read its ``indices``
    from outside of the operator.
    """

    def __init__(self) -> None:
        super().__init__()
        self.indices: dict[str, Index[Any, Any]] = {}
        """The indices by their names, as they are passed to the handlers: live, and to be read only."""

    def ensure(self, handlers: Iterable[IndexingHandler], /) -> None:
        """Make the indices of these handlers, empty, if they are not there yet."""
        for handler in handlers:
            if handler.id not in self:
                indexer = self[handler.id] = OperatorIndexer()
                self.indices[handler.id] = indexer.index


class ResourceIndexing:
    """Runs the indexing functions of one resource, and puts their results into the indices."""

    def __init__(
        self,
        handlers: Collection[IndexingHandler],
        indexers: OperatorIndexers,
        rules: Execution,
    ) -> None:
        groups: dict[HandlerId, list[IndexingHandler]] = collections.defaultdict(list)
        for handler in handlers:
            groups[handler.id].append(handler)
        indexers.ensure(handlers)
        self._groups = [(id, indexers[id], group) for id, group in groups.items()]
        self._rules = rules
        self._reports = filters.FailureReports()
        self._warned: set[IndexingHandler] = set()

    def discard(self, obj: Hashable) -> None:
        """Remove the object from all the indices."""
        for _, indexer, _ in self._groups:
            indexer.discard(obj)

    async def index(
        self,
        obj: Hashable,
        cause: IndexingCause,
        excluded: dict[HandlerId, HandlerState],
        *,
        again: bool = False,
    ) -> None:
        """
        Index the object anew in all the indices, except for those from which it is ``excluded`` by errors.

        The exclusions are kept by the caller for as long as the object is there; they are changed here. If the same
        state of the object is indexed ``again``, only those indices are looked at where it was excluded.
        """
        for id, indexer, group in self._groups:
            state = excluded.get(id)
            if again and state is None:
                continue
            if state is not None and not state.is_due(utcnow()):
                continue
            failures: filters.Failures = {}
            handler = _pick(group, cause, failures)
            if failures:  # the old values are better than none
                self._reports.report(failures, cause)
                continue
            if handler is None:
                indexer.discard(obj)
                excluded.pop(id, None)
                continue
            if state is None:
                state = HandlerState(started=utcnow())
            outcome = await self._run(handler, cause, state)
            if len(cause.patch):
                self._drop_patch(handler, cause)
            if outcome.exception is not None:
                indexer.discard(obj)
                excluded[id] = _exclude(state, outcome)
                del outcome  # see `Outcome.without_exception`
                continue
            if excluded:
                excluded.pop(id, None)
            if outcome.result is not None:
                indexer.replace(obj, outcome.result)

    def _drop_patch(self, handler: IndexingHandler, cause: IndexingCause) -> None:
        cause.patch.clear()
        if handler not in self._warned:
            self._warned.add(handler)
            cause.logger.warning(
                "%s has changed its patch, which has no effect: indexing functions cannot change objects.", handler
            )

    async def _run(self, handler: IndexingHandler, cause: IndexingCause, state: HandlerState) -> Outcome:
        return await execution.run_handler(handler, cause, state, self._rules)


def make_rules(settings: ExecutionSettings) -> Execution:
    """Give the rules for indexing functions: by default, their errors change nothing."""
    return Execution(
        executor=settings.executor, default_errors=ErrorsMode.IGNORED, default_backoff=settings.default_backoff
    )


def get_retry_delay(excluded: Mapping[HandlerId, HandlerState]) -> float | None:
    """Return in how many seconds the first of the exclusions is over; ``None`` if there is nothing to wait for."""
    now = utcnow()
    return min((_get_delay(state, now) for state in excluded.values() if not state.finished), default=None)


def _get_delay(state: HandlerState, now: datetime.datetime) -> float:
    if state.delayed is not None:
        return max(0.0, (state.delayed - now).total_seconds())
    # Without a delay, it is tried again at once; but what fails again and again must not keep the operator busy.
    excess = state.retries - MAX_ATTEMPTS_AT_ONCE
    return 0.0 if excess < 0 else min(MAX_PAUSE, MIN_PAUSE * 2 ** min(excess, 99))


def _exclude(state: HandlerState, outcome: Outcome) -> HandlerState:
    delay = outcome.delay if outcome.delay is not None and outcome.delay > 0 else None
    return state.with_outcome(outcome._replace(delay=delay), utcnow())


def _pick(
    group: Sequence[IndexingHandler],
    cause: IndexingCause,
    failures: filters.Failures,
) -> IndexingHandler | None:
    """Give the handler that decides on the index: of several under one name, the last one that matches the object."""
    for handler in reversed(group):
        if filters.sift([handler], cause, filters.prematch, failures):
            return handler
        if failures:
            break
    return None
