"""
Indexing in front of everything else: an event of an object comes to its handlers only when the object is indexed.

Between a watch and the `Processor` of its resource there is an `Informer`, if the resource is indexed at all. A slow
handler of the object does not delay its indexing, only the other way round. An object that is indexed leaves nothing
behind but its values in the indices; the exclusions by errors are remembered while they last.

The `IndexingGate` keeps handlers waiting until what they can look up is indexed; at the start, all of them.
"""

import asyncio
import logging
from collections.abc import Collection
from typing import Any

from kopf._cogs.aiokits.delays import Delays
from kopf._cogs.clients.errors import APIError
from kopf._cogs.structs.bodies import Body, RawEvent
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.patches import Patch
from kopf._core.actions.handler_states import HandlerState
from kopf._core.actions.loggers import LocalObjectLogger
from kopf._core.engines.indexing import OperatorIndexers, ResourceIndexing, get_retry_delay, make_rules
from kopf._core.intents.causes import IndexingCause
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.registries import HandlerTable
from kopf._core.reactor.indexing_gate import IndexingGate, join_names
from kopf._core.reactor.object_records import ObjectRecord
from kopf._core.reactor.sinks import ObjectSink
from kopf._core.reactor.watches import ResourceWatch

logger = logging.getLogger(__name__)

MAX_REFUSALS = 2
"""How many times the API can refuse to list a resource before no handlers wait for it any more."""

MAX_FAILURES = 2
"""How many times a list can fail otherwise before only those handlers wait for it that can use its indices."""


class IndexingState:
    """What is remembered of an object while it is being indexed, or is excluded from some indices."""

    __slots__ = ('delays', 'event', 'excluded', 'listed_since', 'retried', 'running', 'timer')

    def __init__(self) -> None:
        self.event: RawEvent | None = None
        """The newest event that is not indexed yet."""
        self.listed_since: float | None = None
        self.running = False
        self.excluded: dict[HandlerId, HandlerState] = {}
        self.retried: RawEvent | None = None
        """The last event indexed, if it is to be indexed again."""
        self.timer: asyncio.TimerHandle | None = None
        self.delays: Delays | None = None
        """The pauses between the attempts to pass an event on, if that has failed."""

    def cancel_timer(self) -> None:
        self.retried = None
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Informer(ObjectSink):
    """Indexes the objects of one watch, and passes their events on."""

    def __init__(
        self,
        sink: ObjectSink,
        *,
        context: OperatorContext,
        table: HandlerTable,
        indexers: OperatorIndexers,
        indexing_gate: IndexingGate,
    ) -> None:
        self._sink = sink
        self._resource = table.resource
        self._selected = table.label_selector is not None
        self._names = frozenset(handler.id for handler in table.indexing)
        self._indexing = ResourceIndexing(table.indexing, indexers, make_rules(context.settings.execution))
        self._indices = indexers.indices
        self._settings = context.settings
        self._copy_memo = context.copy_memo
        self._indexing_gate = indexing_gate
        self._counting = True  # whether the gate waits for the objects too
        self._refusals = self._failures = 0
        self._dropped = False
        self._successor: Informer | None = None

    def expect(self, title: str, *, initial: bool = True) -> None:
        """Let handlers wait until all the objects of the watch are listed and indexed; see `IndexingGate.expect`."""
        self._counting, self._refusals, self._failures = True, 0, 0
        self._indexing_gate.expect(self, title, self._names, initial=initial)

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
        if self._failures == MAX_FAILURES and self._indexing_gate.excuse(self):
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
        if isinstance(successor, Informer):
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
        self._indexing_gate.dismiss(self)

    def _discard(self, record: ObjectRecord) -> None:
        self._indexing.discard(record)
        if record.indexing is not None:
            record.indexing.cancel_timer()
            record.end_indexing()

    def _start(self, record: ObjectRecord, state: IndexingState, *, counted: bool) -> None:
        state.running = True
        self._indexing_gate.start(self._work(record, state), self if counted else None)

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
                if not self._pass_on(record, state, event, listed_since=listed_since):
                    break
        finally:
            state.running = False
            if self._dropped:
                self._discard(record)
                if self._successor is not None and state.event is not None:
                    self._successor.resume_indexing(record, state)
            elif not state.excluded and state.event is None and record.indexing is state:
                record.end_indexing()

    def _pass_on(
        self, record: ObjectRecord, state: IndexingState, event: RawEvent, *, listed_since: float | None
    ) -> bool:
        """Pass the event on; if that fails, do it again later, as watches do without indices."""
        try:
            self._sink.receive(record, event, listed_since=listed_since)
        except Exception:
            if state.delays is None:
                state.delays = Delays(self._settings.queueing.error_delays)
            delay = state.delays.next()
            logger.exception(
                "An event of %r of %s could not be taken; it is tried again in %g seconds.",
                record,
                self._resource,
                delay,
            )
            state.cancel_timer()
            if state.event is None:
                state.event = event
            state.timer = asyncio.get_running_loop().call_later(delay, self._retry, record, state)
            return False
        state.delays = None
        return True

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
