"""
Indexing in front of everything else: an event of an object comes to its handlers only when the object is indexed.

Between a watch and the `Processor` of its resource there is an `Intake`, if the resource is indexed at all. A slow
handler of the object does not delay its indexing, only the other way round. An object that is indexed leaves nothing
behind but its values in the indices; the exclusions by errors are remembered while they last.

The `Indexation` keeps handlers waiting until what they can look up is indexed; at the start, all of them.
"""

import asyncio
import collections
import functools
import logging
from collections.abc import Callable, Collection, Coroutine, Hashable, Iterable
from typing import Any

from kopf._cogs.aiokits.loops import end
from kopf._cogs.clients.errors import APIError
from kopf._cogs.structs.bodies import Body, RawEvent
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.patches import Patch
from kopf._core.actions.loggers import LocalObjectLogger
from kopf._core.actions.progression import HandlerState
from kopf._core.engines.indexing import OperatorIndexers, ResourceIndexing, get_retry_delay, make_rules
from kopf._core.intents.causes import IndexingCause
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.registries import HandlerTable
from kopf._core.reactor.inventory import ObjectRecord
from kopf._core.reactor.watches import EventSink, ResourceWatch

logger = logging.getLogger(__name__)

REMINDER_INTERVAL = 30.0
"""How often the logs tell what the handlers wait for (in seconds)."""

EXIT_TIMEOUT = 2.0
"""For how long the indexing functions may take to end when they are cancelled (in seconds)."""

MAX_REFUSALS = 2
"""How many times the API can refuse to list a resource before no handlers wait for it any more."""

MAX_FAILURES = 2
"""How many times a list can fail otherwise before only those handlers wait for it that can use its indices."""


class ObjectSink(EventSink):
    """Who handles the objects of a resource, and can go on when the resource is defined differently."""

    def revise(self, table: HandlerTable) -> None:
        """Know that something else is possible with the resource now; the handlers are the same."""
        raise NotImplementedError

    def released(self, watch: ResourceWatch) -> None:
        """Know that nobody works on the objects any more, after they were dropped: let go of everything."""
        raise NotImplementedError

    def vanished(self, watch: ResourceWatch) -> None:
        """Called when all the objects are gone with their namespace or kind, and have been reported as deleted."""

    async def save(self, record: ObjectRecord) -> None:
        """Store what is only remembered of the object."""
        raise NotImplementedError

    @property
    def processor(self) -> Any:
        """What processes the events in the end."""
        raise NotImplementedError

    def retire(self, successor: 'ObjectSink', records: Collection[ObjectRecord]) -> None:
        """Called when another sink handles these objects from now on, which can also be worked on at the moment."""
        raise NotImplementedError


class Awaited:
    """A list that is to come, and the objects of it that are being indexed."""

    __slots__ = ('indices', 'initial', 'listing', 'objects', 'title')

    def __init__(self, title: str, indices: Collection[str]) -> None:
        self.title = title
        self.indices = indices
        self.initial = True
        """Whether all handlers wait for it, not only those that can use its indices."""
        self.listing = False
        self.objects = 0


class Indexation:
    """
    All the indexing that goes on in an operator, and the gate that is closed until the indices are complete.

    It counts: there are lists to come, and objects of them to be indexed. When the operator starts, all handlers wait
    for all of them, as the documentation promises. For resources and namespaces that come later, and for lists that
    fail, only those handlers wait that can use the indices: they name them, or read their kwargs. Handlers of the same
    resource wait together.
    """

    def __init__(self) -> None:
        self.listeners: list[Callable[[], None]] = []
        """Are called each time when the gate opens for some of the handlers, or for all."""
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._awaited: dict[Hashable, Awaited] = {}
        self._initial = 0  # how many of them keep all handlers waiting
        self._filling: collections.Counter[str] = collections.Counter()  # how many of them each index waits for
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._reminder: asyncio.TimerHandle | None = None

    @property
    def is_complete(self) -> bool:
        return not self._awaited

    def is_open(self, arguments: frozenset[str] | None) -> bool:
        """Check whether those handlers may run that can look at these arguments; ``None`` is for any arguments."""
        if not self._awaited:
            return True
        if self._initial or arguments is None:
            return False
        return arguments.isdisjoint(self._filling)

    def expect(self, key: Hashable, title: str, indices: Collection[str] = (), *, initial: bool = True) -> None:
        """
        Let handlers wait for a list, and for the objects of it.

        Args:
            key: by what the list is known.
            title: what it is called in the logs.
            indices: the names of the indices that are filled from it.
            initial: whether all handlers wait for it, or only those that can use these indices.
        """
        awaited = self._awaited.get(key)
        if awaited is None:
            awaited = self._awaited[key] = Awaited(title, indices)
            self._filling.update(awaited.indices)
        else:
            self._initial -= awaited.initial
        awaited.listing, awaited.initial = True, initial
        self._initial += initial
        if self._reminder is None:
            self._remind_later()

    def dismiss(self, key: Hashable) -> None:
        """Do not wait for the list any more: it is complete, or never will be."""
        if (awaited := self._awaited.get(key)) is not None and awaited.listing:
            awaited.listing = False
            self._check(key, awaited)

    def excuse(self, key: Hashable) -> bool:
        """Let only those handlers wait for the list that can use its indices; return whether others have waited."""
        awaited = self._awaited.get(key)
        if awaited is None or not awaited.initial:
            return False
        awaited.initial = False
        self._initial -= 1
        self._notify(not self._initial)
        return True

    def start(self, work: Coroutine[None, None, None], key: Hashable = None) -> None:
        """Let an object be indexed in the background; wait for that, too, if the list of this key is waited for."""
        if self._closed:
            work.close()
            return
        task = asyncio.create_task(work)
        self._tasks.add(task)
        if (awaited := self._awaited.get(key)) is None:
            task.add_done_callback(self._end)
        else:
            awaited.objects += 1
            task.add_done_callback(functools.partial(self._end_counted, key, awaited))

    def _end_counted(self, key: Hashable, awaited: Awaited, task: asyncio.Task[None]) -> None:
        self._end(task)
        awaited.objects -= 1
        self._check(key, awaited)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self.failure.done():
            self.failure.set_exception(error)

    def _check(self, key: Hashable, awaited: Awaited) -> None:
        """Open the gate for those who have waited for this, unless they wait for something else."""
        if awaited.listing or awaited.objects:
            return
        del self._awaited[key]
        self._initial -= awaited.initial
        self._filling.subtract(awaited.indices)
        filled = [index for index in awaited.indices if not self._filling[index]]
        for index in filled:
            del self._filling[index]
        self._notify(bool(filled) or not self._awaited or (awaited.initial and not self._initial))

    def _notify(self, is_opening: bool) -> None:
        if not self._awaited:
            self._cancel_reminder()
        if is_opening and not self._closed:
            for listener in self.listeners:
                listener()

    async def close(self) -> None:
        """Stop all indexing; the indices stay as they are. Functions that do not stop in time are named and left."""
        self._closed = True
        self._cancel_reminder()
        self.failure.cancel()
        await end(list(self._tasks), timeout=EXIT_TIMEOUT, what="The functions of indices")

    def _remind_later(self) -> None:
        self._reminder = asyncio.get_running_loop().call_later(REMINDER_INTERVAL, self._remind)

    def _remind(self) -> None:
        titles = sorted(awaited.title for awaited in self._awaited.values() if awaited.listing)
        count = sum(awaited.objects for awaited in self._awaited.values())
        lists = f"the lists of {', '.join(titles)}" if titles else ''
        objects = f"{count} objects being indexed" if count else ''
        waiting = ' and '.join(filter(None, [lists, objects]))
        if self._initial:
            logger.warning("No handlers are run until all indices are complete; still waiting for: %s.", waiting)
        else:
            logger.warning(
                "The handlers that can use the indices %s are not run until these are complete; still waiting for: %s.",
                join_names(self._filling),
                waiting,
            )
        self._remind_later()

    def _cancel_reminder(self) -> None:
        if self._reminder is not None:
            self._reminder.cancel()
            self._reminder = None


def join_names(names: Iterable[str]) -> str:
    """Name the indices in a log."""
    return ', '.join(map(repr, sorted(names))) or 'there'


class IndexingState:
    """What is remembered of an object while it is being indexed, or is excluded from some indices."""

    __slots__ = ('event', 'excluded', 'listed_since', 'retried', 'running', 'timer')

    def __init__(self) -> None:
        self.event: RawEvent | None = None
        """The newest event that is not indexed yet."""
        self.listed_since: float | None = None
        self.running = False
        self.excluded: dict[HandlerId, HandlerState] = {}
        self.retried: RawEvent | None = None
        """The last event indexed, if it is to be indexed again."""
        self.timer: asyncio.TimerHandle | None = None

    def cancel_timer(self) -> None:
        self.retried = None
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Intake(ObjectSink):
    """Indexes the objects of one watch, and passes their events on."""

    def __init__(
        self,
        sink: ObjectSink,
        *,
        context: OperatorContext,
        table: HandlerTable,
        indexers: OperatorIndexers,
        indexation: Indexation,
    ) -> None:
        self._sink = sink
        self._resource = table.resource
        self._selected = table.label_selector is not None
        self._names = frozenset(handler.id for handler in table.indexing)
        self._indexing = ResourceIndexing(table.indexing, indexers, make_rules(context.settings.execution))
        self._indices = indexers.indices
        self._settings = context.settings
        self._copy_memo = context.copy_memo
        self._indexation = indexation
        self._counting = True  # whether the gate waits for the objects too
        self._refusals = self._failures = 0
        self._dropped = False
        self._successor: Intake | None = None

    def expect(self, title: str, *, initial: bool = True) -> None:
        """Let handlers wait until all the objects of the watch are listed and indexed; see `Indexation.expect`."""
        self._counting, self._refusals, self._failures = True, 0, 0
        self._indexation.expect(self, title, self._names, initial=initial)

    def receive(self, record: ObjectRecord, event: RawEvent, *, listed_since: float | None) -> None:
        state = record.indexing
        if event['type'] == 'DELETED' and (state is None or not state.running):
            self._discard(record)
            self._sink.receive(record, event, listed_since=listed_since)
            return
        if state is None:
            state = IndexingState()
            record.begin_indexing(state)
        state.event, state.listed_since = event, listed_since
        if not state.running:
            self._start(record, state, counted=self._counting)

    def listed(self, watch: ResourceWatch) -> None:
        self._stop_waiting()
        self._sink.listed(watch)

    def refused(self, watch: ResourceWatch, error: APIError) -> bool:
        self._refusals += 1
        if self._refusals == MAX_REFUSALS and self._counting:
            logger.error(
                "The handlers do not wait for %s any more, as it cannot be listed. "
                "Its objects are absent from the indices until it can be: %s",
                watch,
                error,
            )
            self._stop_waiting()
        return self._sink.refused(watch, error)

    def failed(self, watch: ResourceWatch, error: Exception) -> None:
        self._failures += 1
        if self._failures == MAX_FAILURES and self._indexation.excuse(self):
            logger.error(
                "Only the handlers that can use the indices %s wait for %s from now on, as it cannot be listed: %s",
                join_names(self._names),
                watch,
                error,
            )
        self._sink.failed(watch, error)

    def paused(self, watch: ResourceWatch) -> None:
        self._sink.paused(watch)

    def resumed(self, watch: ResourceWatch) -> None:
        self.expect(str(watch))
        self._sink.resumed(watch)

    def revise(self, table: HandlerTable) -> None:
        self._resource = table.resource
        self._sink.revise(table)

    def dropped(self, watch: ResourceWatch) -> None:
        self._let_go(watch.get_known())
        self._sink.dropped(watch)

    def vanished(self, watch: ResourceWatch) -> None:
        self._stop_waiting()
        self._sink.vanished(watch)

    @property
    def processor(self) -> Any:
        return self._sink.processor

    async def save(self, record: ObjectRecord) -> None:
        await self._sink.save(record)

    def retire(self, successor: ObjectSink, records: Collection[ObjectRecord]) -> None:
        if isinstance(successor, Intake):
            self._successor = successor
        self._let_go(records)
        self._sink.retire(successor, records)

    def _let_go(self, records: Collection[ObjectRecord]) -> None:
        """Remove the objects from the indices: those for which functions run, when these have ended."""
        self._dropped = True
        for record in records:
            state = record.indexing
            if state is None or not state.running:
                self._discard(record)
            elif state.event is not None and state.event['type'] != 'DELETED':
                state.event = None
        self._stop_waiting()

    def released(self, watch: ResourceWatch) -> None:
        self._sink.released(watch)

    def _stop_waiting(self) -> None:
        self._counting = False
        self._indexation.dismiss(self)

    def _discard(self, record: ObjectRecord) -> None:
        self._indexing.discard(record)
        if record.indexing is not None:
            record.indexing.cancel_timer()
            record.end_indexing()

    def _start(self, record: ObjectRecord, state: IndexingState, *, counted: bool) -> None:
        state.running = True
        self._indexation.start(self._work(record, state), self if counted else None)

    async def _work(self, record: ObjectRecord, state: IndexingState) -> None:
        """Index the object until there is nothing new about it."""
        try:
            if state.event is None and state.retried is not None:
                await self._index(record, state, state.retried, again=True)
            while (event := state.event) is not None and not self._is_over():
                state.event, listed_since = None, state.listed_since
                if event['type'] == 'DELETED':
                    self._discard(record)
                else:
                    await self._index(record, state, event)
                    if self._is_over():
                        break
                self._sink.receive(record, event, listed_since=listed_since)
        finally:
            state.running = False
            if self._dropped:
                self._discard(record)
                if self._successor is not None and state.event is not None:
                    self._successor.resume_indexing(record, state)
            elif not state.excluded and record.indexing is state:
                record.end_indexing()

    def _is_over(self) -> bool:
        return self._dropped

    def resume_indexing(self, record: ObjectRecord, state: IndexingState) -> None:
        """Called when a function of the former sink has ended, and there is a newer event of the object."""
        record.begin_indexing(state)
        self._start(record, state, counted=self._counting)

    async def _index(
        self,
        record: ObjectRecord,
        state: IndexingState,
        event: RawEvent,
        *,
        again: bool = False,
    ) -> None:
        """Index the object; again at once if a function asks for that, as the handlers of the object are to see it."""
        state.cancel_timer()
        body = Body(event['object'])
        cause = IndexingCause(
            logger=LocalObjectLogger(body=body, settings=self._settings),
            memo=record.get_memo(self._copy_memo),
            indices=self._indices,
            resource=self._resource,
            body=body,
            patch=Patch(),
            selected=self._selected,
        )
        await self._indexing.index(record, cause, state.excluded, again=again)
        while state.excluded and not self._dropped:
            delay = get_retry_delay(state.excluded)
            if delay is None:
                return
            if delay or state.event is not None:
                state.retried = event
                state.timer = asyncio.get_running_loop().call_later(delay, self._retry, record, state)
                return
            await asyncio.sleep(0)
            await self._indexing.index(record, cause, state.excluded, again=True)

    def _retry(self, record: ObjectRecord, state: IndexingState) -> None:
        state.timer = None
        if not state.running:
            self._start(record, state, counted=False)
