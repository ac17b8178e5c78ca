"""
The limit of the workers: `settings.queueing.worker_limit` for each kind and each watched namespace.

Why not one limit for the operator? The handlers of one kind can wait for what the handlers of another kind do: with a
common limit, they could take all slots and wait forever. The same holds for namespaces that are watched one by one. A
watch of the whole cluster has one limit for each kind.
"""

from collections.abc import Hashable
from typing import TYPE_CHECKING, TypeAlias

from kopf._cogs.aiokits.priority_queues import FairPriorityQueue
from kopf._cogs.configs.configuration import QueueingSettings
from kopf._core.reactor.object_records import ObjectRecord

if TYPE_CHECKING:
    from kopf._core.reactor.workers import ObjectProcessor

_Waiting: TypeAlias = 'FairPriorityQueue[ObjectRecord, ObjectProcessor]'


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
        """The running workers, and whose slots they have."""
        self._counts: dict[Hashable, int] = {}
        self._waiting: dict[Hashable, _Waiting] = {}

    def __len__(self) -> int:
        """Return how many objects wait."""
        return sum(map(len, self._waiting.values())) if self._waiting else 0

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

    def free(self, record: ObjectRecord) -> None:
        """Called when the worker of the object has ended."""
        if self._taken and (key := self._taken.pop(record, None)) is not None:
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]

    def take_startable(self) -> 'list[tuple[ObjectRecord, ObjectProcessor]]':
        """Return the objects for which there are slots by now, in their turn; they do not wait any more."""
        found, limit = [], self._settings.worker_limit
        for key, queue in list(self._waiting.items()):
            free = len(queue) if limit is None else limit - self._counts.get(key, 0)
            found += [queue.pop() for _ in range(min(free, len(queue)))]
            if not queue:
                del self._waiting[key]
        return found

    def wait(self, processor: 'ObjectProcessor', record: ObjectRecord, *, urgent: bool) -> None:
        """Let the object wait for a slot: `take_startable` returns it in its turn."""
        queue = self._waiting.setdefault(self._find_key(processor, record), FairPriorityQueue())
        queue.push(record, processor, urgent=urgent)

    def prioritize(self, record: ObjectRecord) -> None:
        """Put the object before those that are not urgent, if it waits."""
        for queue in self._waiting.values():
            queue.prioritize(record)

    def remove(self, record: ObjectRecord) -> 'ObjectProcessor | None':
        """Let the object not wait any more; return its processor if it did."""
        for key, queue in list(self._waiting.items()):
            if (processor := queue.take(record)) is not None:
                if not queue:
                    del self._waiting[key]
                return processor
        return None

    def is_wanted(self, record: ObjectRecord) -> bool:
        """Check whether other objects wait for the slot of the running worker of this object."""
        return bool(self._waiting) and self._taken.get(record) in self._waiting
