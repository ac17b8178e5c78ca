"""
Indexing the objects of a watch before their events are processed.

If a resource is indexed, there is an `Informer` between its watch and its `Processor`. It passes an event on when the
object is indexed. So, slow index functions delay the handlers of the object, but slow handlers do not delay indexing.
For an indexed object, the memory holds only its values in the indices, and the indices that it is excluded from.

The `IndexingGate` delays all handlers until the indices that they can use are complete.
"""

import asyncio
import logging
from collections.abc import Callable, Collection

from kopf._cogs.aiokits.cancellations import withdraw_cancellation
from kopf._cogs.aiokits.delays import Delays
from kopf._cogs.clients.errors import APIError, APIForbiddenError
from kopf._cogs.structs.bodies import Body, RawEvent
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.patches import Patch
from kopf._cogs.structs.references import Namespace
from kopf._core.actions.execution import outlive
from kopf._core.actions.handler_states import HandlerState
from kopf._core.actions.loggers import LocalObjectLogger
from kopf._core.engines.indexing import OperatorIndexers, ResourceIndexing, get_retry_delay, make_rules
from kopf._core.intents.causes import IndexingCause
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.registries import HandlerTable
from kopf._core.reactor.indexing_gate import IndexingGate, join_names
from kopf._core.reactor.object_records import ObjectRecord
from kopf._core.reactor.sinks import ForwardingSink, ObjectSink
from kopf._core.reactor.watches import QUICK_REFUSALS, ResourceWatch

logger = logging.getLogger(__name__)

MAX_REFUSALS = 2
"""The number of refused lists of a resource after which handlers do not wait for its objects any more."""

MAX_FORBIDDEN = QUICK_REFUSALS + 2
"""The same number for HTTP 403: it includes one attempt after the long delay."""

MAX_FAILURES = 2
"""
The number of lists failed for other reasons, after which only handlers that can use the indices wait for it.

If the list of one namespace fails or is refused so often after the start, only the handlers of its objects wait for it.
"""


ListedEvent = tuple[RawEvent, float | None]
"""An event, and the time when its list was requested, if it is from a list."""


class IndexingState:
    """The state of one object while it is being indexed, or is excluded from some indices."""

    __slots__ = ('current', 'delays', 'ended', 'events', 'excluded', 'retried', 'running', 'timer')

    def __init__(self) -> None:
        self.events: list[ListedEvent] = []
        """
        The newest event that is not indexed yet. If the object was deleted and exists again, the deletion precedes the
        event.
        """
        self.current: ListedEvent | None = None
        """The event that is being indexed; ``None`` if it must not be passed on, because it is outdated meanwhile."""
        self.running = False
        """Whether a task is indexing the object."""
        self.ended: asyncio.Future[None] | None = None
        """Done when the task that indexes the object has ended; ``None`` if no code waits for it."""
        self.excluded: dict[HandlerId, HandlerState] = {}
        """The states of the index functions that have excluded the object by their errors."""
        self.retried: RawEvent | None = None
        """The last indexed event, if it must be indexed again."""
        self.timer: asyncio.TimerHandle | None = None
        """The timer of the next attempt."""
        self.delays: Delays | None = None
        """The delays between the attempts to pass an event on, after a failure."""

    def put(self, event: RawEvent, listed_since: float | None) -> None:
        """Keep the event instead of an older one, but keep a pending deletion, too: the handlers must not miss it."""
        deletions = [each for each in self.events[:1] if is_deletion(each[0]) and not is_deletion(event)]
        self.events = [*deletions, (event, listed_since)]

    def put_back(self, event: RawEvent, listed_since: float | None) -> None:
        """Keep the event for another attempt, unless a newer one replaces it."""
        newer = self.events
        self.events = [(event, listed_since)]
        for each in newer:
            self.put(*each)

    def take(self) -> ListedEvent | None:
        """Return the next event, if there is one, and remove it."""
        self.current = self.events.pop(0) if self.events else None
        return self.current

    def keep_deletion(self) -> None:
        """Drop all events except for the deletion: the next watch lists the other states again."""
        self.events = [each for each in self.events if is_deletion(each[0])]

    def take_outdated(self) -> list[ListedEvent]:
        """Return the events that are not passed on yet, and remove them, except for the deletion."""
        outdated = [each for each in (self.current, *self.events) if each is not None and not is_deletion(each[0])]
        self.current = None
        self.keep_deletion()
        return outdated

    def end(self) -> None:
        """Called when the task has ended."""
        self.running = False
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(None)
        self.ended = None

    async def wait(self) -> None:
        """Wait until no task is indexing the object."""
        while self.running:
            if self.ended is None:
                self.ended = asyncio.get_running_loop().create_future()
            await asyncio.shield(self.ended)

    def cancel_timer(self) -> None:
        """Cancel the next attempt."""
        self.retried = None
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Informer(ForwardingSink):
    """Indexes the objects of one watch, and passes their events on to the next sink."""

    def __init__(
        self,
        sink: ObjectSink,
        *,
        context: OperatorContext,
        table: HandlerTable,
        indexers: OperatorIndexers,
        indexing_gate: IndexingGate,
    ) -> None:
        super().__init__(sink)
        self._resource = table.resource
        self._selected = table.label_selector is not None
        self._names = frozenset(handler.id for handler in table.indexing)
        self._rules = make_rules(context, indexing_gate.is_cancelled)
        self._indexing = ResourceIndexing(table.indexing, indexers, self._rules)
        self._indices = indexers.indices
        self._settings = context.settings
        self._copy_memo = context.copy_memo
        self._indexing_gate = indexing_gate
        self._counting = True  # whether the gate waits for the objects, not only for the list
        self._refusals = self._failures = 0
        self._namespace: Namespace = None  # see `IndexingGate.expect`
        self._dropped = False
        self._successor: ObjectSink | None = None

    def expect(self, title: str, *, initial: bool = True, namespace: Namespace = None, refilling: bool = False) -> None:
        """Delay handlers until all objects of the watch are listed and indexed; see `IndexingGate.expect`."""
        self._counting, self._refusals, self._failures = True, 0, 0
        self._namespace = namespace
        self._indexing_gate.expect(self, title, self._names, initial=initial, namespace=namespace, refilling=refilling)

    def receive(self, record: ObjectRecord, event: RawEvent, *, listed_since: float | None) -> None:
        state = record.indexing
        if state is None:
            state = IndexingState()
            record.begin_indexing(state)
        state.put(event, listed_since)
        if state.running:
            return  # the event must not overtake the event that is being indexed
        # If no index function runs, pass it on at once: deletions are not indexed.
        if is_deletion(event):
            self._pass_deletion_on(record, state)
        else:
            self._start(record, state, counted=self._counting)

    def listed(self, watch: ResourceWatch) -> None:
        self._stop_waiting()
        self._sink.listed(watch)

    def refused(self, watch: ResourceWatch, error: APIError) -> bool:
        self._refusals += 1
        # Why not at the first refusal? An API server that has just started refuses requests until it has loaded the
        # RBAC rules.
        limit = MAX_FORBIDDEN if isinstance(error, APIForbiddenError) else MAX_REFUSALS
        if self._refusals >= limit and self._counting:
            logger.error(
                "The handlers do not wait for %s any more, as its objects cannot be listed. "
                "Until they can be, the indices do not contain them: %s",
                watch,
                error,
            )
            self._stop_waiting()
        elif self._refusals == MAX_REFUSALS:
            self._stop_delaying_others(watch, error)
        return self._sink.refused(watch, error)

    def failed(self, watch: ResourceWatch, error: Exception) -> None:
        self._failures += 1
        if self._failures == MAX_FAILURES:
            self._stop_delaying_others(watch, error)
        if self._failures == MAX_FAILURES and self._indexing_gate.stop_delaying_all(self):
            logger.error(
                "Only the handlers that can use the indices %s wait for %s from now on, as it cannot be listed: %s",
                join_names(self._names),
                watch,
                error,
            )
        self._sink.failed(watch, error)

    def _stop_delaying_others(self, watch: ResourceWatch, error: Exception) -> None:
        if self._indexing_gate.stop_delaying_others(self):
            logger.warning(
                "Only the handlers of objects in the namespace %r wait for %s from now on, as it cannot be listed: %s",
                self._namespace,
                watch,
                error,
            )

    def resumed(self, watch: ResourceWatch) -> None:
        # Why now, before they are indexed? Another operator could handle these objects in the pause: their handlers can
        # have succeeded since these states. The sink is still paused: it only notes which objects are new. The list
        # after the pause brings the newer states.
        for record in watch.get_known():
            if record.indexing is not None:
                for event, listed_since in record.indexing.take_outdated():
                    self._sink.receive(record, event, listed_since=listed_since)
        # Why does the list not delay all handlers? The indices were complete before, unless it still delays them.
        initial, refilling = self._indexing_gate.is_delaying_all(self), not self._counting
        namespace = watch.namespace if refilling else self._namespace
        self.expect(str(watch), initial=initial, namespace=namespace, refilling=refilling)
        self._sink.resumed(watch)

    def relisting(self, watch: ResourceWatch, taken: Callable[[ObjectRecord], bool]) -> None:
        for record in watch.get_known():
            if record.indexing is not None and taken(record) and record.indexing.take_outdated():
                record.mark_initial()  # as if the sink had received these events before
        self._sink.relisting(watch, taken)

    def revise(self, table: HandlerTable) -> None:
        self._resource = table.resource
        self._sink.revise(table)

    def dropped(self, watch: ResourceWatch) -> None:
        self._remove(watch.get_known())
        self._sink.dropped(watch)

    def vanished(self, watch: ResourceWatch) -> None:
        self._stop_waiting()
        self._sink.vanished(watch)

    def retire(self, successor: ObjectSink, records: Collection[ObjectRecord]) -> None:
        self._successor = successor
        states = [(record, record.indexing) for record in records]
        self._remove(records)
        self._sink.retire(successor, records)
        for record, state in states:
            if state is not None and not state.running:
                self._hand_over(record, state)

    def _remove(self, records: Collection[ObjectRecord]) -> None:
        """Remove the objects from the indices. An object that is being indexed is removed when its functions end."""
        self._dropped = True
        for record in records:
            state = record.indexing
            if state is not None:
                state.keep_deletion()
            if state is None or not state.running:
                self._discard(record)
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        self._counting = False
        self._indexing_gate.dismiss(self)

    def _discard(self, record: ObjectRecord) -> None:
        self._indexing.discard(record)
        if record.indexing is not None:
            record.indexing.cancel_timer()
            record.indexing.excluded.clear()
            record.end_indexing()

    def _start(self, record: ObjectRecord, state: IndexingState, *, counted: bool) -> None:
        state.running = True
        self._indexing_gate.start(self._work(record, state), self if counted else None)

    async def _work(self, record: ObjectRecord, state: IndexingState) -> None:
        """Index the object, and pass its events on, until there are no more events."""
        try:
            if not state.events and state.retried is not None:
                await self._index(record, state, state.retried, retrying=True)
            while not self._is_over() and (listed_event := state.take()) is not None:
                event, listed_since = listed_event
                if is_deletion(event):
                    self._discard(record)
                else:
                    if record.indexing is not state:  # the previous event was a deletion, and the object exists again
                        record.begin_indexing(state)
                    await self._index(record, state, event)
                    if self._is_over():
                        break
                    if state.current is None:
                        continue  # the watch was resumed meanwhile
                if not self._pass_on(record, state, event, listed_since=listed_since):
                    break
        finally:
            state.end()
            # Why remove it once more? A function that was running during `_remove` has stored its values afterwards.
            if self._dropped:
                self._discard(record)
                self._hand_over(record, state)
            elif not state.excluded and not state.events and record.indexing is state:
                record.end_indexing()

    def _pass_deletion_on(self, record: ObjectRecord, state: IndexingState) -> None:
        """Remove the object from the indices, and pass on its pending events; the last of them is the deletion."""
        while (listed_event := state.take()) is not None:
            self._discard(record)
            if not self._pass_on(record, state, listed_event[0], listed_since=listed_event[1]):
                break

    def _pass_on(
        self, record: ObjectRecord, state: IndexingState, event: RawEvent, *, listed_since: float | None
    ) -> bool:
        """
        Pass the event on; if that fails, retry later.

        Returns:
            Whether the event was passed on.
        """
        try:
            self._sink.receive(record, event, listed_since=listed_since)
        except Exception:
            if state.delays is None:
                state.delays = Delays(self._settings.queueing.error_delays)
            delay = state.delays.next()
            logger.exception(
                "An event of %r of %s could not be processed; trying again in %g seconds.",
                record,
                self._resource,
                delay,
            )
            state.cancel_timer()
            state.put_back(event, listed_since)
            # A deletion has detached the state from the record. Without the state, the next event could not cancel the
            # timer.
            record.begin_indexing(state)
            state.timer = asyncio.get_running_loop().call_later(delay, self._retry, record, state)
            return False
        state.delays = None
        return True

    # Why not the attribute itself? Type checkers assume that it does not change during an `await`.
    def _is_over(self) -> bool:
        return self._dropped

    def _hand_over(self, record: ObjectRecord, state: IndexingState) -> None:
        """Let the successor pass on the deletion, if it is still pending, and the later event."""
        if self._successor is None or not state.events:
            return
        if isinstance(self._successor, Informer):
            self._successor.resume_indexing(record, state)
            return
        while (listed_event := state.take()) is not None:
            try:
                self._successor.receive(record, listed_event[0], listed_since=listed_event[1])
            except Exception:  # not raised, because the other objects must still be handed over
                logger.exception("An event of %r of %s could not be processed.", record, self._resource)

    def resume_indexing(self, record: ObjectRecord, state: IndexingState) -> None:
        """Called when the index functions of the former informer have ended, and the object has pending events."""
        record.begin_indexing(state)
        self._start(record, state, counted=self._counting)

    async def _index(
        self,
        record: ObjectRecord,
        state: IndexingState,
        event: RawEvent,
        *,
        retrying: bool = False,
    ) -> None:
        """
        Index the object; retry at once or later if a function requests that by its error.

        Retries without a delay are made before the event is passed on, so that the handlers see their results.
        """
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
        await self._update(record, cause, state, retrying=retrying)
        while state.excluded and not self._dropped:
            delay = get_retry_delay(state.excluded)
            if delay is None:
                return
            # A newer event ends the retries, because its values would replace those of this state anyway.
            if delay or state.events:
                state.retried = event
                state.timer = asyncio.get_running_loop().call_later(delay, self._retry, record, state)
                return
            # A function that retries without a delay and never waits would block the event loop. Why not simply sleep?
            # The function can have cancelled the task.
            await withdraw_cancellation(self._indexing_gate.is_cancelled)
            await self._update(record, cause, state, retrying=True)

    async def _update(
        self, record: ObjectRecord, cause: IndexingCause, state: IndexingState, *, retrying: bool
    ) -> None:
        """Update the object in the indices; log an error if the results cannot be stored."""
        try:
            await self._indexing.index(record, cause, state.excluded, retrying=retrying)
        # `index` handles the errors of functions. But other user code can still fail, e.g. the comparison of keys.
        except Exception:
            logger.exception("%r of %s could not be indexed.", record, self._resource)
        if state.events:  # other functions follow in this task
            await outlive(self._rules)

    def _retry(self, record: ObjectRecord, state: IndexingState) -> None:
        state.timer = None
        if not state.running:
            # This attempt is not counted: handlers wait only for the first attempt of each object, not for its retries.
            self._start(record, state, counted=False)


def is_deletion(event: RawEvent) -> bool:
    """Check whether the object was really deleted, and not only marked for deletion."""
    return event['type'] == 'DELETED'
