"""
The screening of events: it keeps events for a worker, or drops those that require no action.

Most events require no action: objects at rest are listed again, and other clients change fields that no handler uses.
Such an event is only compared with the known state, without creating a task. This module also decides which events of a
pause are remembered.
"""

import asyncio
from collections.abc import Collection, Mapping, Set

from kopf._cogs.structs.bodies import RawEvent
from kopf._core.engines.stoppers import DaemonStoppingReason
from kopf._core.intents.registries import HandlerTable
from kopf._core.reactor.former_finalizers import FormerFinalizer
from kopf._core.reactor.object_records import ObjectRecord, is_deleted
from kopf._core.reactor.reconciling import Reconciler
from kopf._core.reactor.stale_events import Receiver, StaleEventFilter
from kopf._core.reactor.watches import ResourceWatch
from kopf._core.reactor.workers import WorkerPool

MAX_RECENT = 256
"""The number of objects changed in a pause that are handled first after it, in operators that elect a leader."""


class EventScreen:
    """
    Screens the events of all objects of one resource.

    Args:
        table: the handlers of the resource.
        reconciler: compares the states of objects with the handled ones.
        stale_events: the filter of stale events.
        workers: the workers of the operator.
        former_finalizer: the finalizer to be removed; ``None`` if handlers decide on it.
    """

    def __init__(
        self,
        table: HandlerTable,
        *,
        reconciler: Reconciler,
        stale_events: StaleEventFilter,
        workers: WorkerPool,
        former_finalizer: FormerFinalizer | None = None,
    ) -> None:
        self._observing, self._managing = bool(table.watching), table.managing
        self._reconciler = reconciler
        self._stale_events = stale_events
        self._workers = workers
        self._former_finalizer = former_finalizer
        self._known: Set[str] = frozenset()
        """The uids of the objects that existed when the operator paused."""
        self._recent: dict[ObjectRecord, RawEvent] = {}
        """The last changes of a pause. A new leader begins with them, as the list of all objects can take seconds."""

    def keep(self, record: ObjectRecord, event: RawEvent, *, listed_since: float | None) -> bool:
        """Keep the event for the worker, or drop it if it requires no action; return whether it is kept."""
        # This comes first, because it can end an expectation that the checks below use.
        if record.expected is not None:
            self._stale_events.note(record, event, listed_since=listed_since)
        if record.daemons is not None:
            record.daemons.update(event['object'], asked_at=listed_since)
            if record.daemons.gone and event['type'] != 'DELETED':
                record.daemons.reappear()
            if is_deleted(event):
                self._workers.background.deletions.announce(record.uid)
                # Why not let the worker do this? It can be busy with a handler for a long time, or be queued.
                record.daemons.stop(DaemonStoppingReason.RESOURCE_DELETED)
        # Without a worker, no running handler can have the flag `deleting`.
        elif record.has_worker and is_deleted(event):
            self._workers.background.deletions.announce(record.uid)
        # Why not check for a pause first? Daemons that are still stopping must see the newest state, and the deletion.
        if self._workers.paused and not self._keep_in_pause(record, event):
            return False
        # Why not screen the event if the object has a worker? The current step can change the state for the comparison.
        # So the worker compares the event when it takes it.
        if not record.has_worker and not record.throttled and not self._screen(record, event):
            return False
        # Why not a queue of events? As documented, handlers get only the newest state of a busy object, and so the
        # memory is bounded, however often the object changes.
        record.put_pending(event)
        return True

    def _screen(self, record: ObjectRecord, event: RawEvent) -> bool:
        """Return whether the event of an object at rest needs a worker. A stale event does not; see `echoes`."""
        if not self._observing and not self._managing and record.body is None:
            return self._former_finalizer is not None and self._former_finalizer.is_on(record, event['object'])
        # Handlers of raw events get all events, including stale ones. A known body means that a timer or a cycle is in
        # progress.
        if self._observing or record.body is not None or record.cycle is not None or event['type'] == 'DELETED':
            return True
        # A stale event must not reach `is_settled`: it would look as if another client had undone the operator's last
        # patch.
        if not self._managing or self._stale_events.drop_stale(record, event):
            return False
        return not self._reconciler.is_settled(record, event['object'])

    # Pauses.

    def begin_pause(self, watch: ResourceWatch) -> None:
        """Remember the objects that exist when the pause begins: deletions during the pause are handled after it."""
        self._known = {record.uid for record in watch.get_known()}

    def _keep_in_pause(self, record: ObjectRecord, event: RawEvent) -> bool:
        """
        Take an event that comes while the operator is paused.

        After the pause, all objects are listed again, so only the deletions of the objects that the handlers know are
        kept. New objects are resumed after the pause, as other operators can have handled them meanwhile.

        Returns:
            Whether to keep the event until the pause is over.
        """
        if self._workers.keeps_warm:
            self._keep_recent(record, event)
        if record.uid in self._known:
            return event['type'] == 'DELETED'
        record.mark_initial()
        return False

    def _keep_recent(self, record: ObjectRecord, event: RawEvent) -> None:
        self._recent.pop(record, None)
        if event['type'] in ('ADDED', 'MODIFIED'):
            self._recent[record] = event
            if len(self._recent) > MAX_RECENT:
                del self._recent[next(iter(self._recent))]

    def end_pause(self, watch: ResourceWatch, receive: Receiver) -> None:
        """Forget the objects of the pause; receive its last changes once more, before the list of all objects comes."""
        self._known = frozenset()
        if self._recent:
            # Why not now? The workers are resumed after all watches.
            asyncio.get_running_loop().call_soon(self._replay, watch, self._recent, receive)
            self._recent = {}

    def _replay(self, watch: ResourceWatch, recent: Mapping[ObjectRecord, RawEvent], receive: Receiver) -> None:
        for record, event in recent.items():
            # Unverified progress of a former leadership waits for the list of all objects.
            if self._workers.paused or watch.records.get(record.uid) is not record or record.unverified:
                continue
            # The former leader can have handled the object, but if the stream lags behind, its last patches have not
            # come yet, and its handlers would be called again. So the newest state is requested before any handlers are
            # called.
            if record.body is None and self._managing and not self._reconciler.is_settled(record, event['object']):
                record.mark_outdated()
            receive(record, event, listed_since=None)

    def disown(self, records: Collection[ObjectRecord]) -> None:
        """Forget the last changes of objects that another operator handles from now on."""
        for record in records:
            self._recent.pop(record, None)
