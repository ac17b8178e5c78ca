"""
Correlation of Events: equal ones become one Event with a count, similar ones are combined, floods are dropped.

The rules and their numbers are those of client-go's ``EventCorrelator``, so an operator in Python puts no more load on
the cluster than one in Go. After 10 different messages for one object, type and reason in ten minutes, the next ones
are combined into one Event. The limit of requests for each object is a burst of 25, and then one in five minutes.
Events above this limit are dropped: they are included only in the counts of later Events. The memory is bounded: the
least recently used entries are forgotten.
"""

import collections
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

MAX_ENTRIES = 4096
"""The limit of each cache: of objects, of groups of similar Events, and of series."""

BURST = 25
"""The size of the token bucket of an object: how many requests it can make at once."""

REFILL_INTERVAL = 300.0
"""The time after which the token bucket gets one more token (in seconds)."""

MAX_SIMILAR = 10
"""The number of different messages of similar Events that are posted before further ones are combined."""

SIMILARITY_INTERVAL = 600.0
"""The time without similar Events (in seconds) after which the next one is not combined with earlier ones."""

COMBINED_PREFIX = '(combined from similar events): '
"""The prefix of the messages of combined Events, the same as that of client-go."""

EventT = TypeVar('EventT')
_V = TypeVar('_V')


class EventSeries(Generic[EventT]):
    """A series of equal Events of one object: one Event in the cluster, with a count."""

    __slots__ = ('count', 'first', 'latest', 'name', 'waiting')

    def __init__(self) -> None:
        self.count = 0
        """The number of Events in the series, including the dropped ones."""
        self.latest: EventT | None = None
        """The newest Event, until it is posted."""
        self.waiting = False
        """Whether the series waits in a queue to be posted: until then, new Events are only counted."""
        self.name: str | None = None
        """The name of the Event in the cluster, once it is posted."""
        self.first: str | None = None
        """The time of the first post."""

    def wait(self) -> None:
        """Mark the series as queued."""
        self.waiting = True

    def take(self) -> EventT:
        """Return the newest Event, which is posted now; the series is not queued any more."""
        assert self.latest is not None
        event, self.latest, self.waiting = self.latest, None, False
        return event

    def keep(self, name: str | None, first: str | None) -> None:
        """Keep the posted Event, which the next post updates; if the name is ``None``, the next post creates one."""
        self.name, self.first = name, first


class Correlator(Generic[EventT]):
    """Decides which Events of one operator are posted."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self.dropped = 0
        """The number of Events that exceeded the limit of requests."""
        self._clock = time.monotonic if clock is None else clock
        self._budgets: _Cache[tuple[float, float]] = _Cache()  # the number of tokens left, and the time of that count
        self._groups: _Cache[tuple[float, tuple[int, ...]]] = _Cache()  # the last time, and hashes of the messages
        self._series: _Cache[EventSeries[EventT]] = _Cache()

    def combine(self, key: Hashable, message: str) -> str:
        """
        Return the message to post: with the prefix of combined Events if there were too many similar ones.

        Args:
            key: the values that similar Events have in common: the object, the type, the reason.
            message: the message, in which similar Events differ.
        """
        now, number = self._clock(), hash(message)
        seen_at, numbers = self._groups.get(hash(key)) or (now, ())
        if now - seen_at > SIMILARITY_INTERVAL:
            numbers = ()
        # Store one message above the limit, which shows that the limit is exceeded. Why not all of them? A flood of
        # different messages would fill the memory.
        if number not in numbers and len(numbers) <= MAX_SIMILAR:
            numbers = (*numbers, number)
        self._groups.put(hash(key), (now, numbers))
        return message if len(numbers) <= MAX_SIMILAR else f'{COMBINED_PREFIX}{message}'

    def observe(self, source: Hashable, key: Hashable, event: EventT) -> EventSeries[EventT] | None:
        """
        Count the Event, and return its series to post; ``None`` if the Event is dropped.

        The returned series can already be in the queue because of an earlier Event.

        Args:
            source: the object, which has a limit of requests.
            key: the values that equal Events have in common.
            event: the Event itself.
        """
        series = self._series.get(hash(key)) or EventSeries()
        self._series.put(hash(key), series)
        series.count += 1
        if not series.waiting:
            # A waiting series needs no token: it makes one request, however many Events it counts meanwhile.
            if not self._spend(source):
                self.dropped += 1
                return None
        series.latest = event
        return series

    def _spend(self, source: Hashable) -> bool:
        """Take a token from the bucket of the object; return whether there was one."""
        now = self._clock()
        left, at = self._budgets.get(hash(source)) or (float(BURST), now)
        left = min(float(BURST), left + (now - at) / REFILL_INTERVAL)
        permitted = left >= 1
        self._budgets.put(hash(source), (left - 1 if permitted else left, now))
        return permitted


class _Cache(Generic[_V]):
    """
    An LRU cache of values by the hashes of their keys.

    The keys themselves are not kept, as they contain the texts of messages and would take much more memory. The price
    is that two keys with equal hashes share a value. This is improbable and does little harm: a count gets too high.
    """

    __slots__ = ('_values',)

    def __init__(self) -> None:
        self._values: collections.OrderedDict[int, _V] = collections.OrderedDict()

    def get(self, key: int) -> _V | None:
        return self._values.get(key)

    def put(self, key: int, value: _V) -> None:
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > MAX_ENTRIES:
            self._values.popitem(last=False)
