"""
Meters: the counters and durations of metrics, by resources, handlers and servers.

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

SHORTEST = BOUNDS[0]
"""The bound of the bucket that most durations are in, which is tested first."""


Durations = list[float]
"""
A histogram of durations: the counts of the buckets of `BOUNDS`, of the one above them, and the sum (in seconds).

Why no class? Its owners add durations on the hot path, where a call of a method would take longer than all the rest.
"""

Attempts = list[float]
"""How many attempts one handler has had with one outcome, and their time (in seconds): a list for the same reason."""


_SUM = len(BOUNDS) + 1
"""The place of the sum in `Durations`. Why not -1? Python is faster with places from the beginning."""


def make_durations() -> Durations:
    """Return an empty histogram."""
    return [0] * (_SUM + 1)


def get_counts(durations: Durations) -> list[int]:
    """Return how many durations are in each bucket; the last one has no upper bound."""
    return [int(count) for count in durations[:-1]]


class ResourceMeter:
    """The work on the objects of one resource. Objects are identified by any hashable, such as their records."""

    __slots__ = (
        'at_once',
        'failures',
        'handling',
        'observing',
        'queued',
        'queueing',
        'results',
        'retries',
        'running',
        'waiting',
        'working',
        '_failed',
    )

    def __init__(self) -> None:
        self.at_once = 0
        """How often objects got a worker at once."""
        self.queued = 0
        """How often objects were queued for a worker."""
        self.retries = 0
        """How often objects were queued again, because of delayed handlers or failures."""
        self.results = {'success': 0, 'error': 0, 'requeue': 0, 'requeue_after': 0}
        """The number of reconciliations by their results; see `get_results` for all of them."""
        self.failures = 0
        """How many of the times of `observing` have failed."""
        self.queueing = make_durations()
        """How long the objects were queued."""
        self.working = make_durations()
        """How long the workers worked on an object, in one reconciliation or several."""
        self.observing = make_durations()
        """The same for objects with no other handlers than those of raw events: each time is one reconciliation."""
        self.handling = make_durations()
        """How long the other reconciliations took."""
        self.waiting: dict[Hashable, float] = {}
        """The queued objects, and when they were queued (on the monotonic clock)."""
        self.running: dict[Hashable, float] = {}
        """The objects with running workers, and when these began (on the monotonic clock)."""
        self._failed: set[Hashable] = set()

    # The queue.

    def queue(self, item: Hashable) -> None:
        """Called when the object must wait for a worker."""
        self.queued += 1
        self.waiting[item] = monotonic()

    def take(self, item: Hashable) -> None:
        """Called when a worker begins to handle the object, whether it was queued before or not."""
        self.running[item] = monotonic()
        # This is called for each event, and nearly all events need no wait. So this case is handled without calls.
        if not self.waiting or item not in self.waiting:
            self.at_once += 1
        else:
            _add(self.queueing, self.running[item] - self.waiting.pop(item))

    def leave(self, item: Hashable, uid: Hashable = None) -> None:
        """
        Called when the worker of the object has ended, or is not needed any more.

        Args:
            item: the object.
            uid: the uid of the object, if it has no other handlers than those of raw events.
        """
        began = self.running.pop(item, None)
        if began is None:
            self.waiting.pop(item, None)
            return
        seconds, durations = monotonic() - began, self.working if uid is None else self.observing
        durations[0 if seconds <= SHORTEST else bisect_left(BOUNDS, seconds)] += 1
        durations[_SUM] += seconds
        if self._failed and uid in self._failed:
            self._failed.discard(uid)
            self.failures += 1

    def count_adds(self) -> int:
        """Return how often objects needed a worker, with or without a wait in the queue."""
        return self.queued + self.at_once

    def get_queueing(self) -> Durations:
        """Return how long the objects were queued; those that got a worker at once, for no time."""
        first, *others = self.queueing
        return [first + self.at_once, *others]

    def get_working(self) -> Durations:
        """Return how long the workers worked on an object, in one reconciliation or several."""
        return [sum(pair) for pair in zip(self.working, self.observing, strict=True)]

    def get_handling(self) -> Durations:
        """Return how long the reconciliations took."""
        return [sum(pair) for pair in zip(self.handling, self.observing, strict=True)]

    def get_results(self) -> dict[str, int]:
        """Return the number of reconciliations by their results."""
        failures, observed = self.failures, sum(get_counts(self.observing))
        return {
            **self.results,
            'success': self.results['success'] + observed - failures,
            'error': self.results['error'] + failures,
        }

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
        seconds, durations = monotonic() - began, self.handling
        durations[0 if seconds <= SHORTEST else bisect_left(BOUNDS, seconds)] += 1
        durations[_SUM] += seconds
        if self._failed and uid in self._failed:
            self._failed.discard(uid)
            result = 'error'
        self.results[result] += 1


class Meters:
    """All meters of one operator."""

    def __init__(self) -> None:
        self.resources: dict[str, ResourceMeter] = {}
        """The meters by the names of the resources: see `name_resource`."""
        self.handlers: dict[tuple[str, str], Attempts] = {}
        """The attempts of handlers by their labels and outcomes."""
        self.successes: dict[HandlerId, Attempts] = {}
        """The succeeded ones of these attempts, by the ids of the handlers; sub-handlers are not here."""
        self.requests: dict[tuple[str, str, int], int] = {}
        """The number of requests by the URLs of their servers, their methods, and their statuses, zero if none."""

    def get(self, resource: Resource) -> ResourceMeter:
        """Return the meter of the resource, which all its versions and namespaces share."""
        return self.resources.setdefault(name_resource(resource), ResourceMeter())

    def note_attempt(self, id: HandlerId, parent: HandlerId | None, outcome: str, began: float) -> None:
        """
        Called when an attempt of a handler has ended.

        Why do usual attempts not need this call? Their owner finds them in `successes`, and adds to them itself.

        Args:
            id: the id of the handler.
            parent: the id of the handler during which it was run, if any: of its parent if it is a sub-handler.
            outcome: as in `HandlerCall`.
            began: when it has begun (on the monotonic clock).
        """
        label = name_handler(id, parent)
        attempts = self.handlers.setdefault((label, outcome), [0, 0.0])
        attempts[0] += 1
        attempts[1] += monotonic() - began
        # Names that several handlers share are not kept: there can be a sub-handler for each item in an object.
        if label == id and outcome == 'succeeded':
            self.successes[id] = attempts

    def note_request(self, server: str, method: str, status: int) -> None:
        """Called for each attempt of a request: with the response, or at the end if there is none (zero)."""
        key = server, method, status
        try:
            self.requests[key] += 1
        except KeyError:
            self.requests[key] = 1

    def note_failure(self, key: Any) -> None:
        """Called when a handler has failed in a reconciliation of the object with this key; ``None`` for no object."""
        if key is not None:
            self.get(key.resource).note_error(key.uid)


def _add(durations: Durations, seconds: float) -> None:
    durations[bisect_left(BOUNDS, seconds)] += 1
    durations[_SUM] += seconds


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
