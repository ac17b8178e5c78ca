"""
Meters: the counters and durations of metrics, by resources and handlers.

Meters are a faster alternative to instruments, because they need no facts about single objects. Their numbers are plain
integers and floats. Only the event loop changes them; metrics read them in another thread. Each change and each read of
a number is atomic in Python. An operator without metrics has no meters.
"""

from bisect import bisect_left
from collections.abc import Hashable
from time import monotonic
from typing import Any

from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.references import Resource

BOUNDS = (0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0)
"""
The upper bounds of the buckets of durations (in seconds).

Why so few? Each bucket is a series for each resource in each of three histograms.
"""


class Durations:
    """A histogram of durations."""

    __slots__ = ('counts', 'total')

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        """How many durations are in each bucket; the last one has no upper bound."""
        self.total = 0.0
        """The sum of all durations (in seconds)."""

    def add(self, seconds: float) -> None:
        """Add one duration."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds


class HandlerMeter:
    """The number and the time of the attempts of one handler with one outcome."""

    __slots__ = ('count', 'total')

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        """In seconds."""

    def add(self, seconds: float) -> None:
        """Add one attempt."""
        self.count += 1
        self.total += seconds


class ResourceMeter:
    """The work on the objects of one resource. Objects are identified by any hashable, such as their records."""

    __slots__ = (
        'adds',
        'errors',
        'handling',
        'queueing',
        'results',
        'retries',
        'running',
        'waiting',
        'working',
        '_failed',
    )

    def __init__(self) -> None:
        self.adds = 0
        """How often objects needed a worker, with or without a wait in the queue."""
        self.retries = 0
        """How often objects were queued again, because of delayed handlers or failures."""
        self.results = {'success': 0, 'error': 0, 'requeue': 0, 'requeue_after': 0}
        """The number of reconciliations by their results."""
        self.queueing = Durations()
        """How long the objects were queued."""
        self.working = Durations()
        """How long the workers worked on an object, in one reconciliation or several."""
        self.handling = Durations()
        """How long the reconciliations took."""
        self.waiting: dict[Hashable, float] = {}
        """The queued objects, and when they were queued (on the monotonic clock)."""
        self.running: dict[Hashable, float] = {}
        """The objects with running workers, and when these began (on the monotonic clock)."""
        self._failed: set[Hashable] = set()

    # The queue.

    def queue(self, item: Hashable) -> None:
        """Called when the object must wait for a worker."""
        self.adds += 1
        self.waiting[item] = monotonic()

    def take(self, item: Hashable) -> None:
        """Called when a worker begins to handle the object, whether it was queued before or not."""
        self.running[item] = now = monotonic()
        # This is called for each event, and nearly all events need no wait. So this case is handled without calls.
        if item not in self.waiting:
            self.adds += 1
            self.queueing.counts[0] += 1
        else:
            self.queueing.add(now - self.waiting.pop(item))

    def leave(self, item: Hashable) -> None:
        """Called when the worker of the object has ended, or is not needed any more."""
        began = self.running.pop(item, None)
        if began is None:
            self.waiting.pop(item, None)
        else:
            self.working.add(monotonic() - began)

    def retry(self) -> None:
        """Called when an object is scheduled to be queued again."""
        self.retries += 1

    # Reconciliations.

    def note_error(self, uid: Hashable) -> None:
        """Called when a handler of the object has failed: the reconciliation fails, even if it is delayed as usual."""
        self._failed.add(uid)

    def note_reconciliation(self, began: float, result: str, uid: Hashable) -> None:
        """
        Called when a reconciliation has ended.

        Args:
            began: when it has begun (on the monotonic clock).
            result: the key of `results`, if none of its handlers has failed.
            uid: the uid of the object.
        """
        self.handling.add(monotonic() - began)
        if self._failed and uid in self._failed:
            self._failed.discard(uid)
            result = 'error'
        self.results[result] += 1


class Meters:
    """All meters of one operator."""

    def __init__(self) -> None:
        self.resources: dict[str, ResourceMeter] = {}
        """The meters by the names of the resources: see `name_resource`."""
        self.handlers: dict[tuple[str, str], HandlerMeter] = {}
        """The meters of handlers by their labels and outcomes."""

    def get(self, resource: Resource) -> ResourceMeter:
        """Return the meter of the resource, which all its versions and namespaces share."""
        return self.resources.setdefault(name_resource(resource), ResourceMeter())

    def note_attempt(self, id: HandlerId, parent: HandlerId | None, outcome: str, seconds: float) -> None:
        """
        Called when an attempt of a handler has ended.

        Args:
            id: the id of the handler.
            parent: the id of the handler during which it was run, if any: of its parent if it is a sub-handler.
            outcome: as in `HandlerCall`.
            seconds: the duration.
        """
        meter = self.handlers.get((id, outcome))
        if meter is None:
            label = name_handler(id, parent)
            meter = self.handlers.setdefault((label, outcome), HandlerMeter())
        meter.add(seconds)

    def note_failure(self, key: Any) -> None:
        """Called when a handler has failed in a reconciliation of the object with this key; ``None`` for no object."""
        if key is not None:
            self.get(key.resource).note_error(key.uid)


def name_resource(resource: Resource) -> str:
    """Return the name of the resource in metrics, such as ``kopfexamples.kopf.dev``: the same for all versions."""
    return f'{resource.plural}.{resource.group}'.rstrip('.')


def name_handler(id: HandlerId, parent: HandlerId | None) -> str:
    """
    Return the name of the handler in metrics.

    Sub-handlers share one name (``create/*``), as there can be one for each item of a list in an object.
    """
    is_child = parent is not None and id.startswith(f'{parent}/')
    return f'{id.partition("/")[0]}/*' if is_child else id
