"""
The filter of events in sharded operators: the processor of a resource gets only the objects that this member handles.

All members watch all objects, as indices and relations need them. The processor of a member does not get the objects of
other members. When the member begins to handle an object, its processor gets only states from lists that are requested
afterwards: older states can precede the last writes of the former member.
"""

import time
from collections.abc import Callable, Collection
from typing import Any

from kopf._cogs.clients.errors import APIError
from kopf._cogs.structs.bodies import RawEvent
from kopf._core.intents.registries import HandlerTable
from kopf._core.reactor.object_records import ObjectRecord
from kopf._core.reactor.sinks import ObjectSink
from kopf._core.reactor.watches import ResourceWatch


class ShardSink(ObjectSink):
    """
    Passes on the events of the objects that this member handles.

    Args:
        sink: the processor of the resource.
        owns: checks whether this member handles the object.
    """

    def __init__(self, sink: ObjectSink, owns: Callable[[ObjectRecord], bool]) -> None:
        self._sink = sink
        self._owns = owns
        self._stale: set[ObjectRecord] = set()
        """The objects that this member handles, but whose known states can be older than the last writes for them."""
        self._listed_at = 0.0  # stale objects need a list that is requested after this time

    def receive(self, record: ObjectRecord, event: RawEvent, *, listed_since: float | None) -> None:
        if not self._owns(record):
            record.mark_initial()  # for its first event after this member begins to handle it
            return
        if self._stale and record in self._stale:
            if listed_since is None or listed_since < self._listed_at:
                return
            self._stale.discard(record)
            if event['type'] == 'DELETED':
                return  # it was never handled here
        self._sink.receive(record, event, listed_since=listed_since)

    def relisting(self, watch: ResourceWatch, taken: Callable[[ObjectRecord], bool]) -> None:
        self._listed_at = time.monotonic()
        self._stale.update(record for record in watch.get_known() if taken(record))
        self._sink.relisting(watch, taken)

    def resumed(self, watch: ResourceWatch) -> None:
        self._listed_at = time.monotonic()
        self._stale = set(watch.get_known())
        self._sink.resumed(watch)

    def surrendered(self, records: Collection[ObjectRecord]) -> None:
        self._stale.difference_update(records)
        self._sink.surrendered(records)

    def disowned(self, records: Collection[ObjectRecord]) -> None:
        self._sink.disowned(records)

    def outdated(self, record: ObjectRecord) -> None:
        self._sink.outdated(record)

    def missed(self, uid: str) -> None:
        self._sink.missed(uid)

    def listed(self, watch: ResourceWatch) -> None:
        self._sink.listed(watch)

    def refused(self, watch: ResourceWatch, error: APIError) -> bool:
        return self._sink.refused(watch, error)

    def failed(self, watch: ResourceWatch, error: Exception) -> None:
        self._sink.failed(watch, error)

    def paused(self, watch: ResourceWatch) -> None:
        self._sink.paused(watch)

    def revise(self, table: HandlerTable) -> None:
        self._sink.revise(table)

    def dropped(self, watch: ResourceWatch) -> None:
        self._sink.dropped(watch)

    def vanished(self, watch: ResourceWatch) -> None:
        self._sink.vanished(watch)

    def released(self, watch: ResourceWatch) -> None:
        self._sink.released(watch)

    async def save(self, record: ObjectRecord) -> None:
        await self._sink.save(record)

    @property
    def processor(self) -> Any:
        return self._sink.processor

    def retire(self, successor: ObjectSink, records: Collection[ObjectRecord]) -> None:
        self._sink.retire(successor, records)
