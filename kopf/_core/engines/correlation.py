"""
Which Events are posted: equal ones become one with a count, similar ones are combined, floods are cut off.

The rules and their numbers are those of client-go's recorder, so that an operator in Python is as good a neighbour as
one in Go: after 10 different messages of one object, type and reason in ten minutes, the next ones are combined into
one Event; an object has a burst of 25 requests, and then one in five minutes. What is cut off is counted, and the
counts of later Events include it. The memory is bounded: what was not used for longest is forgotten.
"""

import collections
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

MAX_ENTRIES = 4096
"""How many objects, groups of similar Events, and Events are remembered."""

BURST = 25
"""How many requests for the Events of an object are permitted at once."""

REFILL_INTERVAL = 300.0
"""After which time (in seconds) one more request is permitted."""

MAX_SIMILAR = 10
"""How many Events that differ only in their messages are posted one by one."""

SIMILARITY_INTERVAL = 600.0
"""How long after the last one (in seconds) Events do not count as similar any more."""

COMBINED_PREFIX = '(combined from similar events): '

EventT = TypeVar('EventT')
_V = TypeVar('_V')


class EventSeries(Generic[EventT]):
    """Equal Events of one object, which are one Event in the cluster."""

    __slots__ = ('count', 'first', 'latest', 'name', 'waiting')

    def __init__(self) -> None:
        self.count = 0
        """How many there were, those that were cut off included."""
        self.latest: EventT | None = None
        """The newest of them, while it is to be posted."""
        self.waiting = False
        """Whether it waits to be posted: those that come meanwhile are only counted."""
        self.name: str | None = None
        """The name of the Event in the cluster, once it is there."""
        self.first: str | None = None
        """When it was posted first."""

    def wait(self) -> None:
        """Begin to wait."""
        self.waiting = True

    def take(self) -> EventT:
        """Return the newest Event: it is posted now."""
        assert self.latest is not None
        event, self.latest, self.waiting = self.latest, None, False
        return event

    def keep(self, name: str | None, first: str | None) -> None:
        """Remember what the Event is called in the cluster; without a name, the next one is posted as a new one."""
        self.name, self.first = name, first


class Correlator(Generic[EventT]):
    """Decides about the Events of one operator, in their order."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.dropped = 0
        """How many Events were not posted, not even as a change of a count."""
        self._clock = clock
        self._budgets: _Cache[tuple[float, float]] = _Cache()  # how many requests there were left, and when
        self._groups: _Cache[tuple[float, tuple[int, ...]]] = _Cache()  # the last one, and the different messages
        self._series: _Cache[EventSeries[EventT]] = _Cache()

    def combine(self, key: Hashable, message: str) -> str:
        """
        Return the message to be posted: another one if there were too many similar ones.

        Args:
            key: what similar Events have in common: the object, the type, the reason.
            message: what they differ in.
        """
        now, number = self._clock(), hash(message)
        seen_at, numbers = self._groups.get(hash(key)) or (now, ())
        if now - seen_at > SIMILARITY_INTERVAL:
            numbers = ()
        if number not in numbers and len(numbers) <= MAX_SIMILAR:
            numbers = (*numbers, number)
        self._groups.put(hash(key), (now, numbers))
        return message if len(numbers) <= MAX_SIMILAR else f'{COMBINED_PREFIX}{message}'

    def observe(self, source: Hashable, key: Hashable, event: EventT) -> EventSeries[EventT] | None:
        """
        Count the Event, and return its series if it is to be posted; it can be waiting already.

        Args:
            source: the object, which has a limit of requests.
            key: what equal Events have in common.
            event: the Event itself.
        """
        series = self._series.get(hash(key)) or EventSeries()
        self._series.put(hash(key), series)
        series.count += 1
        if not series.waiting:
            if not self._spend(source):
                self.dropped += 1
                return None
        series.latest = event
        return series

    def _spend(self, source: Hashable) -> bool:
        now = self._clock()
        left, at = self._budgets.get(hash(source)) or (float(BURST), now)
        left = min(float(BURST), left + (now - at) / REFILL_INTERVAL)
        permitted = left >= 1
        self._budgets.put(hash(source), (left - 1 if permitted else left, now))
        return permitted


class _Cache(Generic[_V]):
    """Values by hashes of their keys: the keys themselves, with the texts of messages, would be much larger."""

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
