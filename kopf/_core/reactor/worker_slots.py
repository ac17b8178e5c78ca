"""
The limit of the workers: `settings.queueing.worker_limit` for each kind and each watched namespace.

Why not one limit for the operator? The handlers of one kind can wait for what the handlers of another kind do: with a
common limit, they could take all slots and wait forever. The same holds for namespaces that are watched one by one. A
watch of the whole cluster has one limit for each kind.
"""

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from kopf._cogs.aiokits.priority_queues import FairPriorityQueue
from kopf._cogs.configs.configuration import QueueingSettings
from kopf._core.reactor.object_records import ObjectRecord

if TYPE_CHECKING:
    from kopf._core.reactor.workers import ObjectProcessor

_Waiting: TypeAlias = 'FairPriorityQueue[ObjectRecord, ObjectProcessor]'
_Startable: TypeAlias = 'Sequence[tuple[ObjectRecord, ObjectProcessor]]'


class WorkerSlots:
    """
    The slots that workers take, and the objects that wait for a slot of their kind and namespace.

    Without a limit, nothing is counted, and nothing waits.

    Args:
        settings: the limit; it can be changed at any time.
        clusterwide: whether the operator serves all namespaces by one watch.
    """

    def __init__(self, settings: QueueingSettings, *, clusterwide: bool) -> None:
        self._settings = settings
        self._clusterwide = clusterwide
        self._taken: dict[ObjectRecord, Hashable] = {}
        """The objects with running workers, and whose slots they have."""
        self._wanted: dict[ObjectRecord, Hashable] = {}
        """The objects that wait, and for whose slots."""
        self._counts: dict[Hashable, int] = {}
        self._waiting: dict[Hashable, _Waiting] = {}

    def __len__(self) -> int:
        """Return how many objects wait."""
        return len(self._wanted)

    def _find_key(self, processor: 'ObjectProcessor', record: ObjectRecord) -> Hashable:
        return processor.resource, None if self._clusterwide else record.namespace

    def are_taken(self, processor: 'ObjectProcessor', record: ObjectRecord) -> bool:
        """Check whether the object must wait for a slot."""
        limit = self._settings.worker_limit
        return limit is not None and self._counts.get(self._find_key(processor, record), 0) >= limit

    def take(self, processor: 'ObjectProcessor', record: ObjectRecord) -> None:
        """Called when a worker of the object starts."""
        if self._settings.worker_limit is not None:
            key = self._taken[record] = self._find_key(processor, record)
            self._counts[key] = self._counts.get(key, 0) + 1

    def free(self, record: ObjectRecord) -> '_Startable':
        """Called when the worker of the object has ended; return what has waited for its slot, as `take_startable`."""
        if not self._taken or (key := self._taken.pop(record, None)) is None:
            return ()
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]
        return self._take_startable(key)

    def take_startable(self) -> '_Startable':
        """Return the objects for which there are slots by now, in their turn; they do not wait any more."""
        return [found for key in list(self._waiting) for found in self._take_startable(key)]

    def _take_startable(self, key: Hashable) -> '_Startable':
        if (queue := self._waiting.get(key)) is None:
            return ()
        limit = self._settings.worker_limit
        free = len(queue) if limit is None else limit - self._counts.get(key, 0)
        found = [queue.pop() for _ in range(min(free, len(queue)))]
        for record, _ in found:
            del self._wanted[record]
        self._forget_empty(key, queue)
        return found

    def _forget_empty(self, key: Hashable, queue: '_Waiting') -> None:
        if not queue:
            del self._waiting[key]

    def wait(self, processor: 'ObjectProcessor', record: ObjectRecord, *, urgent: bool) -> None:
        """Let the object wait for a slot: `free` or `take_startable` return it in its turn."""
        key = self._wanted[record] = self._find_key(processor, record)
        self._waiting.setdefault(key, FairPriorityQueue()).push(record, processor, urgent=urgent)

    def prioritize(self, record: ObjectRecord) -> None:
        """Put the object before those that are not urgent, if it waits."""
        if record in self._wanted:
            self._waiting[self._wanted[record]].prioritize(record)

    def remove(self, record: ObjectRecord) -> 'ObjectProcessor | None':
        """Let the object not wait any more; return its processor if it did."""
        if record not in self._wanted:
            return None
        key = self._wanted.pop(record)
        queue = self._waiting[key]
        processor = queue.take(record)
        self._forget_empty(key, queue)
        return processor

    def is_wanted(self, record: ObjectRecord) -> bool:
        """Check whether other objects wait for the slot of the running worker of this object."""
        return bool(self._waiting) and self._taken.get(record) in self._waiting
