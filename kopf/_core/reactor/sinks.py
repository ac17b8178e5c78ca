"""
The interfaces between a watch and the code that handles its events.

A watch calls the methods of an `EventSink`. A watch for handlers has an `ObjectSink`: the orchestrator can also
replace it, when the definition of the resource changes, or stop it. Sinks form a chain: a `ForwardingSink` adds its
own step, and passes the events on to the next sink.
"""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from kopf._cogs.clients.errors import APIError
from kopf._cogs.structs.bodies import RawEvent
from kopf._core.intents.registries import HandlerTable
from kopf._core.reactor.object_records import ObjectRecord

if TYPE_CHECKING:
    from kopf._core.reactor.watches import ResourceWatch


class EventSink:
    """
    Receives the events of a watch. Only `receive` is required; all methods are synchronous.

    The deletion of an object always comes before the first event of another object with the same name.
    """

    def receive(self, record: ObjectRecord, event: RawEvent, *, listed_since: float | None) -> None:
        """
        Receive the next event of an object.

        Args:
            record: the record of the object.
            event: the event; its type is ``None`` if the object was listed.
            listed_since: the time when the list was requested, if the event is from a list; ``None`` otherwise.
        """
        raise NotImplementedError

    def outdated(self, record: ObjectRecord) -> None:
        """
        Called instead of `receive` when the stream brings a state that is older than the response to a write.

        The object itself needs no processing, as its newer state is known. But another client has made this change, and
        other objects can depend on it.
        """

    def missed(self, uid: str) -> None:
        """
        Called when an object was written during a list, but the list is newer, and does not have the object any more.

        The sink has never received this object.
        """

    def listed(self, watch: 'ResourceWatch') -> None:
        """Called when all objects of the first list, or of the list after `resumed` or `relisting`, were received."""

    def refused(self, watch: 'ResourceWatch', error: APIError) -> bool:
        """
        Called when the API server refuses the first list.

        Returns:
            Whether the sink accepts the refusal: if so, the watch ends without logging it.
        """
        return False

    def failed(self, watch: 'ResourceWatch', error: Exception) -> None:
        """Called when the first list fails for another reason. The watch tries again."""

    def paused(self, watch: 'ResourceWatch') -> None:
        """Called when the operator pauses, or starts paused. From now on, other operators can handle the objects."""

    def resumed(self, watch: 'ResourceWatch') -> None:
        """Called after a pause. The watch lists all objects again, as their known state can be outdated."""

    def dropped(self, watch: 'ResourceWatch') -> None:
        """Called when the watch is stopped while the operator continues."""


class ObjectSink(EventSink):
    """Handles the objects of a resource; can be revised or replaced when the definition of the resource changes."""

    def revise(self, table: HandlerTable) -> None:
        """Use this table from now on: the resource has other verbs or subresources, but the same handlers."""
        raise NotImplementedError

    def released(self, watch: 'ResourceWatch') -> None:
        """Called after `dropped`, when the last worker and daemon have ended. The sink releases its references."""
        raise NotImplementedError

    def relisting(self, watch: 'ResourceWatch', taken: Callable[[ObjectRecord], bool]) -> None:
        """
        Called when the watch begins to list all objects again, as the operator handles more of them from now on.

        Args:
            watch: the watch.
            taken: checks whether an object is one of these.
        """

    def surrendered(self, records: Collection[ObjectRecord]) -> None:
        """Called when another operator is to handle these objects: start no more steps, and stop their daemons."""
        raise NotImplementedError

    def disowned(self, records: Collection[ObjectRecord]) -> None:
        """Called after `surrendered`, when nothing runs for these objects any more."""
        raise NotImplementedError

    def vanished(self, watch: 'ResourceWatch') -> None:
        """Called when the namespace or the resource is deleted, and all objects have been reported as deleted."""

    async def save(self, record: ObjectRecord) -> None:
        """Store progress and patches that are only in memory yet on the object."""
        raise NotImplementedError

    @property
    def processor(self) -> Any:
        """The `Processor` at the end of the chain of sinks."""
        raise NotImplementedError

    def retire(self, successor: 'ObjectSink', records: Collection[ObjectRecord]) -> None:
        """Called when another sink takes over these objects, which can have running workers."""
        raise NotImplementedError


class ForwardingSink(ObjectSink):
    """
    Passes everything on to the next sink of the chain; subclasses override the methods to which they add something.

    Args:
        sink: the next sink.
    """

    def __init__(self, sink: ObjectSink) -> None:
        self._sink = sink

    def receive(self, record: ObjectRecord, event: RawEvent, *, listed_since: float | None) -> None:
        self._sink.receive(record, event, listed_since=listed_since)

    def outdated(self, record: ObjectRecord) -> None:
        self._sink.outdated(record)

    def missed(self, uid: str) -> None:
        self._sink.missed(uid)

    def listed(self, watch: 'ResourceWatch') -> None:
        self._sink.listed(watch)

    def refused(self, watch: 'ResourceWatch', error: APIError) -> bool:
        return self._sink.refused(watch, error)

    def failed(self, watch: 'ResourceWatch', error: Exception) -> None:
        self._sink.failed(watch, error)

    def paused(self, watch: 'ResourceWatch') -> None:
        self._sink.paused(watch)

    def resumed(self, watch: 'ResourceWatch') -> None:
        self._sink.resumed(watch)

    def dropped(self, watch: 'ResourceWatch') -> None:
        self._sink.dropped(watch)

    def revise(self, table: HandlerTable) -> None:
        self._sink.revise(table)

    def released(self, watch: 'ResourceWatch') -> None:
        self._sink.released(watch)

    def relisting(self, watch: 'ResourceWatch', taken: Callable[[ObjectRecord], bool]) -> None:
        self._sink.relisting(watch, taken)

    def surrendered(self, records: Collection[ObjectRecord]) -> None:
        self._sink.surrendered(records)

    def disowned(self, records: Collection[ObjectRecord]) -> None:
        self._sink.disowned(records)

    def vanished(self, watch: 'ResourceWatch') -> None:
        self._sink.vanished(watch)

    async def save(self, record: ObjectRecord) -> None:
        await self._sink.save(record)

    @property
    def processor(self) -> Any:
        return self._sink.processor

    def retire(self, successor: ObjectSink, records: Collection[ObjectRecord]) -> None:
        self._sink.retire(successor, records)
