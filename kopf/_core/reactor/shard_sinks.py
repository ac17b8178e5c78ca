"""
The filter of events in sharded operators: the processor of a resource gets only the objects that this member handles.

Where indices or relations need all objects, all members watch them. The processor of a member does not get those of
other members. When the member begins to handle an object, its processor gets only states from lists that are requested
afterwards: older states can precede the last writes of the former member.
"""

import time
from collections.abc import Callable, Collection

from kopf._cogs.structs.bodies import RawEvent
from kopf._core.reactor.object_records import ObjectRecord
from kopf._core.reactor.sinks import ForwardingSink, ObjectSink
from kopf._core.reactor.watches import ResourceWatch


class ShardSink(ForwardingSink):
    """
    Passes on the events of the objects that this member handles.

    Args:
        sink: the processor of the resource.
        owns: checks whether this member handles the object.
    """

    def __init__(self, sink: ObjectSink, owns: Callable[[ObjectRecord], bool]) -> None:
        super().__init__(sink)
        self._owns = owns
        self._stale: set[ObjectRecord] = set()
        """The objects that this member handles, but whose known states can be older than the last writes for them."""
        self._listed_at = 0.0  # stale objects need a list that is requested after this time

    def receive(self, record: ObjectRecord, event: RawEvent, *, listed_since: float | None) -> None:
        if not self._owns(record):
            record.mark_initial()  # for its first event after this member begins to handle it
            self._forget_deleted(record, event)
            return
        if self._stale and record in self._stale:
            if listed_since is None or listed_since < self._listed_at:
                return
            self._stale.discard(record)
            if event['type'] == 'DELETED':
                self._forget_deleted(record, event)  # handlers are not called, as it was never handled in this term
                return
        self._sink.receive(record, event, listed_since=listed_since)

    def _forget_deleted(self, record: ObjectRecord, event: RawEvent) -> None:
        """Let the processor release what it knows of a deleted object from a term before this member lost its Lease."""
        # What still runs is drained: the object is disowned when it has ended.
        if event['type'] == 'DELETED' and not record.has_worker and record.daemons is None:
            self._sink.disowned([record])

    def relisting(self, watch: ResourceWatch, taken: Callable[[ObjectRecord], bool]) -> None:
        self._listed_at = time.monotonic()
        self._stale.update(record for record in watch.get_known() if taken(record))
        self._sink.relisting(watch, taken)

    def resumed(self, watch: ResourceWatch) -> None:
        self._listed_at = time.monotonic()
        self._stale = set(watch.get_known())
        self._sink.resumed(watch)

    def listed(self, watch: ResourceWatch) -> None:
        # From now on, all states are new. Objects that the list lacks, because they do not match the selectors, can
        # return without being listed.
        self._stale.clear()
        self._sink.listed(watch)

    def surrendered(self, records: Collection[ObjectRecord]) -> None:
        self._stale.difference_update(records)
        self._sink.surrendered(records)
