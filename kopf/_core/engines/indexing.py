"""
Indices: the results of the indexing functions for all objects, kept in memory and passed to all handlers by name.

Only the event loop writes an index; the event loop and threads read it. So readers iterate over snapshots, and need no
locks. Objects are identified by their records, not by their names: so values of a deleted object are never mixed up
with those of a new object with the same name, even if their events are out of order. Every operation takes O(1) per
object and key.
"""

import asyncio
import collections
import copy
import datetime
from collections.abc import (
    Callable,
    Collection,
    Hashable,
    ItemsView,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    ValuesView,
)
from typing import Any, Generic, Protocol, TypeVar

from kopf._cogs.structs import ephemera
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.references import Namespace
from kopf._core.actions import execution
from kopf._core.actions.execution import ErrorsMode, Execution, Outcome, TemporaryError, utcnow
from kopf._core.actions.handler_states import HandlerState
from kopf._core.intents import filters
from kopf._core.intents.causes import IndexingCause
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.handlers import IndexingHandler

MAX_ATTEMPTS_AT_ONCE = 5
"""How many attempts of a function are made without pauses, if its errors have no delay."""

MIN_PAUSE, MAX_PAUSE = 0.1, 10.0
"""The pauses before the further attempts: they double each time (in seconds). An event of the object ends a pause."""

_K = TypeVar('_K')
_V = TypeVar('_V')


class IndexBarrier(Protocol):
    """What handlers wait for that need complete indices: see `indexing_gate.IndexingGate`."""

    @property
    def is_complete(self) -> bool:
        """Return whether all indices are complete."""

    def is_filled(self, arguments: frozenset[str] | None, namespace: Namespace = None) -> bool:
        """
        Check whether the indices among these arguments are complete for handlers of objects in the namespace.

        ``None`` means all arguments, and no namespace.
        """

    async def wait_filled(self, arguments: frozenset[str] | None, namespace: Namespace = None) -> None:
        """Wait until `is_filled` is true."""


class Store(ephemera.Store[_V], Generic[_V]):
    """The values of one key of an index: one value for each object with this key."""

    __slots__ = ('_values',)

    def __init__(self) -> None:
        self._values: dict[Hashable, _V] = {}

    def __repr__(self) -> str:
        return repr(list(self))

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[_V]:
        # Copied by one call in C: a loop in Python could be interrupted by the event loop's thread, which changes the
        # dict.
        return iter(list(self._values.values()))

    def __contains__(self, value: object) -> bool:
        return value in list(self._values.values())

    def __getstate__(self) -> Any:
        # The keys are omitted: they are internal records, which refer to many other objects.
        return None, {'_values': dict(enumerate(self))}


class Index(ephemera.Index[_K, _V], Generic[_K, _V]):
    """A read-only mapping of keys to stores of values."""

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
    """The writer of one index, with the keys of each object."""

    __slots__ = ('_keys', 'index')

    def __init__(self) -> None:
        self.index: Index[Any, Any] = Index()
        self._keys: dict[Hashable, tuple[Any, ...]] = {}

    def replace(self, obj: Hashable, result: object) -> None:
        """
        Replace the values of the object by the result of its indexing function.

        Only a plain dict is split by its keys; anything else is one value under the key ``None``. Keys that the object
        keeps are never absent in between, as threads can read the index at any time.
        """
        values = result if type(result) is dict else {None: result}
        previous = self._keys.get(obj, ())
        stores = self.index._stores
        for key, value in values.items():
            store = stores.get(key)
            if store is None:
                store = Store()
                store._values[obj] = value
                stores[key] = store  # added after its first value, so that readers in threads never see an empty store
            else:
                store._values[obj] = value
        if values:
            self._keys[obj] = tuple(values)
        else:
            self._keys.pop(obj, None)
        self._remove(obj, [key for key in previous if key not in values])

    def discard(self, obj: Hashable) -> None:
        """Remove the values of the object, if there are any."""
        self._remove(obj, self._keys.pop(obj, ()))

    def _remove(self, obj: Hashable, keys: Iterable[Any]) -> None:
        stores = self.index._stores
        for key in keys:
            store = stores[key]
            if len(store) == 1:
                del stores[key]  # removed before its last value, so that readers in threads never see an empty store
            del store._values[obj]


class OperatorIndexers(dict[HandlerId, OperatorIndexer]):
    """
    All the indexers of an operator, by the names of the indices.

    Programs with embedded operators can create one, pass it to ``kopf.operator(indexers=…)``, and read its ``indices``
    from outside of the operator.
    """

    def __init__(self) -> None:
        super().__init__()
        self.indices: dict[str, Index[Any, Any]] = {}
        """The indices by their names, as they are passed to the handlers: live and read-only."""

    def ensure(self, handlers: Iterable[IndexingHandler], /) -> None:
        """Create empty indices for these handlers, unless they exist."""
        for handler in handlers:
            if handler.id not in self:
                indexer = self[handler.id] = OperatorIndexer()
                self.indices[handler.id] = indexer.index


class ResourceIndexing:
    """Runs the indexing functions of one resource, and stores their results in the indices."""

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
        retrying: bool = False,
    ) -> None:
        """
        Update the object in all the indices, except for those where its previous errors exclude it.

        Args:
            obj: the record of the object.
            cause: the object and the kwargs of the indexing functions.
            excluded: the indices from which errors exclude the object, with the progress of their retries. The caller
                keeps them as long as the object exists; this method changes them.
            retrying: whether this state of the object was indexed before. If so, only the excluded indices are updated.
        """
        for id, indexer, group in self._groups:
            state = excluded.get(id)
            if retrying and state is None:
                continue
            # Why not run it now? The error has requested a delay, and the retry will see the newest state anyway.
            if state is not None and not state.is_due(utcnow()) and not isinstance(state, Nonconformity):
                continue
            failures: filters.Failures = {}
            handler = _pick(group, cause, failures)
            if failures:  # unknown whether the object belongs to the index; its old values are better than none
                self._reports.report(failures, cause)
                continue
            if handler is None:
                indexer.discard(obj)
                excluded.pop(id, None)
                continue
            if isinstance(state, Nonconformity):
                # The same error is not logged again for each version, as other clients can write the status often.
                if handler.model is not None and handler.model.find_nonconformity(cause.body) == state.message:
                    continue
                state = None
            if state is None:
                state = HandlerState(started=utcnow())
            outcome = await self._run(handler, cause, state)
            if len(self._groups) > 1:
                await execution.outlive(self._rules)
            if len(cause.patch):
                self._drop_patch(handler, cause)
            if outcome.exception is not None:
                # Remove the values: they are from a former state, and the function has failed for the present one.
                indexer.discard(obj)
                excluded[id] = _exclude(state, outcome, handler, cause)
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


INDEXING_PATIENCE = 10.0
"""The time limit of waits for index functions, as they can hang (in seconds)."""


class Indexing(Protocol):
    """The processing of one object by the index functions."""

    async def wait(self) -> None:
        """Wait until the index functions have processed the newest state of the object."""


class Indexed(Protocol):
    """An object that index functions may be processing."""

    @property
    def indexing(self) -> Indexing | None:
        """The processing, if there is any."""


async def wait_for_indexing(objects: Collection[Indexed]) -> None:
    """Wait until the indices have the newest states of the objects."""
    for item in objects:
        if item.indexing is not None:
            try:
                async with asyncio.timeout(INDEXING_PATIENCE):
                    await item.indexing.wait()
            except TimeoutError:
                pass  # the indices get the object later, as after events of the watch


def make_rules(context: OperatorContext, is_cancelled: Callable[[], bool]) -> Execution:
    """
    Return the rules for running indexing functions: by default, their errors are ignored.

    Args:
        context: what the operator shares.
        is_cancelled: checks whether the indexing tasks are cancelled, as the operator is ending.
    """
    rules = context.make_rules(executor=context.index_threads, is_cancelled=is_cancelled)
    return rules._replace(default_errors=ErrorsMode.IGNORED)


def get_retry_delay(excluded: Mapping[HandlerId, HandlerState]) -> float | None:
    """Return the time until the first retry is due (in seconds); ``None`` if there is nothing to retry."""
    now = utcnow()
    return min((_get_delay(state, now) for state in excluded.values() if not state.finished), default=None)


def _get_delay(state: HandlerState, now: datetime.datetime) -> float:
    if state.delayed is not None:
        return max(0.0, (state.delayed - now).total_seconds())
    # An error without a delay means an immediate retry, but endless failures must not occupy the whole event loop.
    excess = state.retries - MAX_ATTEMPTS_AT_ONCE
    return 0.0 if excess < 0 else min(MAX_PAUSE, MIN_PAUSE * 2 ** min(excess, 99))


class Nonconformity(HandlerState):
    """The failure of a function for an object that does not conform to the class of its kind, until it does."""

    __slots__ = ()


def _exclude(state: HandlerState, outcome: Outcome, handler: IndexingHandler, cause: IndexingCause) -> HandlerState:
    error = outcome.exception
    if handler.model is not None and handler.model.is_nonconformity(error, cause.body):
        return Nonconformity(*state.with_outcome(outcome, utcnow()))
    wanted = error.delay if isinstance(error, TemporaryError) else outcome.delay  # not slowed down: see `_get_delay`
    return state.with_outcome(outcome._replace(delay=wanted if wanted is not None and wanted > 0 else None), utcnow())


def _pick(
    group: Sequence[IndexingHandler],
    cause: IndexingCause,
    failures: filters.Failures,
) -> IndexingHandler | None:
    """Return the handler to run for an index: of several with the same id, the last one that matches the object."""
    for handler in reversed(group):
        if filters.sift([handler], cause, filters.prematch, failures):
            return handler
        if failures:
            # If the filter of a handler has failed, do not fall back to an earlier one: the failed one could have
            # matched.
            break
    return None
