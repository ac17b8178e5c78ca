"""
A census: the present states of an operator's objects and watches, for metrics.

The numbers are computed from the records and the watches on request, so that they cost the operator nothing. Another
thread computes them, so it copies each collection at once, and iterates over the copy.
"""

import time
from collections import Counter
from collections.abc import Mapping

from kopf._cogs.structs.meters import name_resource
from kopf._core.reactor.object_records import ObjectRecord
from kopf._core.reactor.orchestration import Orchestrator
from kopf._core.reactor.workers import WorkerPool

STATES = ('resting', 'queued', 'handling', 'waiting', 'throttled')
"""The states of objects: see `find_state`."""


class Census:
    """Looks up the facts about the objects and the watches of an operator; callable from any thread."""

    def __init__(self, orchestrator: Orchestrator, workers: WorkerPool) -> None:
        self._orchestrator = orchestrator
        self._workers = workers

    def count_objects(self) -> Mapping[tuple[str, str], int]:
        """Return the number of known objects by the names of their resources, and by their states."""
        counts: Counter[tuple[str, str]] = Counter()
        working = self._workers.find_working()
        for watch in self._orchestrator.get_watches():
            name = name_resource(watch.resource)
            counts.update({(name, state): 0 for state in STATES})
            for record in list(watch.records.values()):
                counts[name, find_state(record, is_working=record in working)] += 1
        return counts

    def measure_silences(self) -> Mapping[str, float]:
        """Return the time since the last event of the watches of each resource, bookmarks included (in seconds)."""
        silences: dict[str, float] = {}
        now = time.monotonic()
        for watch in self._orchestrator.get_watches():
            name = name_resource(watch.resource)
            silences[name] = max(silences.get(name, 0.0), now - watch.last_event_at)
        return silences

    def get_leases(self) -> Mapping[str, bool]:
        """Return whether this operator leads, by the name of the Lease; empty without an election."""
        return self._orchestrator.get_leases()

    def count_unowned(self) -> int | None:
        """Return the number of buckets that no member holds; ``None`` without shards."""
        return self._orchestrator.coordinator.unowned


def find_state(record: ObjectRecord, *, is_working: bool) -> str:
    """
    Return the state of the object in one word.

    Args:
        record: the record of the object.
        is_working: whether its worker is running.

    Returns:
        ``handling`` with a running worker; ``throttled`` after an unexpected error of the framework or the API;
        ``queued`` for a worker; ``waiting`` until its delayed handlers are due; otherwise, ``resting``.
    """
    if is_working:
        return 'handling'
    if record.throttled:
        return 'throttled'
    if record.has_worker:
        return 'queued'
    return 'resting' if record.wakeup is None else 'waiting'
