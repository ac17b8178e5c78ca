"""
A census: the present states of an operator's objects and watches, for metrics.

The numbers are computed only when metrics are requested, so the event loop of the operator does no work for them.
Another thread computes them while the event loop changes the collections. Therefore, each collection is copied in one
atomic step, and the copy is iterated.
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
        """Return the numbers of known objects. Each key is a pair: the name of the resource, and the state."""
        counts: Counter[tuple[str, str]] = Counter()
        working = self._workers.find_working()
        for watch in self._orchestrator.get_watches():
            name = name_resource(watch.resource)
            counts.update({(name, state): 0 for state in STATES})
            for record in list(watch.records.values()):
                counts[name, find_state(record, is_working=record in working)] += 1
        return counts

    def measure_silences(self) -> Mapping[str, float]:
        """Return the time since the last event or bookmark (in seconds), by resource: that of its most silent watch."""
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
        ``handling`` if its worker is running; ``throttled`` after an unexpected error of the framework or the API;
        ``queued`` if it waits for a worker; ``waiting`` if it waits until delayed handlers or retries are due, or until
        another object is ready; otherwise, ``resting``.
    """
    if is_working:
        return 'handling'
    if record.throttled:
        return 'throttled'
    level = record.level
    if record.has_worker or (level is not None and level.is_queued):
        return 'queued'
    is_waiting = record.wakeup is not None or (level is not None and level.is_held_up) or _has_retries(record)
    return 'waiting' if is_waiting else 'resting'


def _has_retries(record: ObjectRecord) -> bool:
    """Check whether a daemon or a timer of the object has failed, and waits for its next attempt."""
    daemons = record.daemons
    for daemon in () if daemons is None else list(daemons.known.values()):
        state = None if daemon is None or daemon.task is not None else daemon.state
        if state is not None and state.message is not None:
            return True
    return False
