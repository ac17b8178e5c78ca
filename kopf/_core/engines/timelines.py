"""
Timelines: the recent events of each object, kept in bounded memory for the inspector.

A timeline has a few entries of each type, so that frequent ones, such as the runs of a timer, do not displace the rare
ones that explain them. All timelines together are bounded, too: the timeline that was changed longest ago is dropped
first. Entries are written by the event loop and by the threads of handlers, and are read by the thread of the server.
"""

import collections
import itertools
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

LIMITS: Mapping[str, int] = {
    'cause': 30,
    'handler': 60,
    'frequent': 30,
    'patch': 40,
    'event': 30,
    'log': 60,
    'wait': 20,
}
"""
How many entries of each type are kept for one object.

The types: a decision with its reason; an attempt of a handler; the same of a handler that is called very often; a
request that changes an object; a posted Kubernetes Event; a line of the log; a delay after an unexpected error.
"""

CHARACTERS = 500
"""The length of texts in one entry (in characters): a longer entry counts as several ones."""

MAX_CHANGED = 100_000
"""How many changed objects are remembered until the next `Timelines.take_changed`."""


class Entry:
    """One entry of a timeline. Only `Timelines` changes it."""

    __slots__ = ('at', 'facts', 'id', 'number', 'type', 'weight')

    def __init__(self, type_: str, number: int, facts: Mapping[str, Any]) -> None:
        self.type = type_
        self.id = number
        """The number of the entry, which never changes."""
        self.number = number
        """The number of the last change: readers request entries with greater numbers than the known ones."""
        self.at = time.time()
        """The Unix time of the beginning (in seconds)."""
        self.facts = facts
        self.weight = weigh(facts)
        """The number of entries that it counts for in the limit of all timelines."""

    def update(self, number: int, facts: Mapping[str, Any]) -> None:
        """Add further facts."""
        self.number, self.facts = number, {**self.facts, **facts}

    def describe(self) -> dict[str, Any]:
        """Return the entry for readers."""
        return {'id': self.id, 'type': self.type, 'at': round(self.at, 3), **self.facts}


def weigh(facts: Mapping[str, Any]) -> int:
    """Return the number of entries that the texts count for."""
    weight = 1
    for value in facts.values():
        if type(value) is str and len(value) >= CHARACTERS:
            weight += len(value) // CHARACTERS
    return weight


class Story(NamedTuple):
    """A part of a timeline, for readers."""

    number: int
    """The number of the last change; zero without a timeline."""
    entries: Sequence[Mapping[str, Any]]
    """The entries, the oldest first."""
    diff: Mapping[str, Any] | None
    """The last diff that handlers have got."""


class _Timeline:
    """The entries of one object."""

    __slots__ = ('_diff_weight', 'diff', 'entries', 'failures', 'number', 'weight')

    def __init__(self) -> None:
        self.entries: dict[str, collections.deque[Entry]] = {}
        self.failures: dict[str, str] = {}
        """The errors of handlers that have not succeeded since, by their ids."""
        self.diff: Mapping[str, Any] | None = None
        self._diff_weight = 0
        self.number = 0
        """The number of the last change."""
        self.weight = 0
        """The number of entries that it counts for."""

    def append(self, entry: Entry, limit: int) -> None:
        """Add the entry; drop the oldest one of its type if there are too many."""
        entries = self.entries.get(entry.type)
        if entries is None:
            entries = self.entries[entry.type] = collections.deque()
        if len(entries) >= limit:
            self.weight -= entries.popleft().weight
        entries.append(entry)
        self.weight += entry.weight
        self.number = entry.number

    def set_diff(self, diff: Mapping[str, Any], weight: int, number: int) -> None:
        """Replace the last diff."""
        self.weight += weight - self._diff_weight
        self.diff, self._diff_weight, self.number = diff, weight, number

    def set_failure(self, handler: str, message: str | None) -> None:
        """Remember the error of a handler until its next success."""
        if message is None:
            self.failures.pop(handler, None)
        else:
            self.failures[handler] = message

    def touch(self, number: int) -> None:
        """Called when an entry has changed."""
        self.number = number


class Timelines:
    """
    The timelines of all objects of an operator, by their uids; callable from any thread.

    Args:
        limit: the number of entries of all timelines together.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._weight = 0
        self._timelines: collections.OrderedDict[str, _Timeline] = collections.OrderedDict()
        self._numbers = itertools.count(1)
        self._changed: set[str] | None = None
        # It is held for microseconds only, so even the threads of a stuck operator do not wait for it. Why reentrant?
        # A signal handler can log a line while its thread writes an entry.
        self._lock = threading.RLock()

    @property
    def weight(self) -> int:
        """The number of entries; long ones count as several."""
        return self._weight

    # Writers.

    def add(self, uid: str, type_: str, **facts: Any) -> Entry:
        """Add an entry to the timeline of the object."""
        with self._lock:
            timeline = self._open(uid)
            before = timeline.weight
            entry = Entry(type_, next(self._numbers), facts)
            timeline.append(entry, LIMITS[type_])
            self._grow(timeline.weight - before)
        return entry

    def change(self, uid: str, entry: Entry, **facts: Any) -> None:
        """Add facts to the entry, even if it is dropped already."""
        with self._lock:
            entry.update(next(self._numbers), facts)
            self._note(uid)
            if (timeline := self._timelines.get(uid)) is not None:
                timeline.touch(entry.number)

    def set_diff(self, uid: str, diff: Mapping[str, Any], size: int) -> None:
        """Keep the last diff of the object; ``size`` is its length in characters."""
        with self._lock:
            timeline = self._open(uid)
            before = timeline.weight
            timeline.set_diff(diff, 1 + size // CHARACTERS, next(self._numbers))
            self._grow(timeline.weight - before)

    def set_failure(self, uid: str, handler: str, message: str | None) -> None:
        """Remember the error of the handler; ``None`` after a success."""
        with self._lock:
            if (timeline := self._timelines.get(uid)) is not None:
                timeline.set_failure(handler, message)
                self._note(uid)

    def mark(self, uid: str) -> None:
        """Called when the state of the object changes, without an entry."""
        if self._changed is not None:
            with self._lock:
                self._note(uid)

    def _open(self, uid: str) -> _Timeline:
        """Return the timeline of the object, and move it to the end: it is dropped last."""
        self._note(uid)
        timeline = self._timelines.get(uid)
        if timeline is None:
            timeline = self._timelines[uid] = _Timeline()
        else:
            self._timelines.move_to_end(uid)
        return timeline

    def _grow(self, weight: int) -> None:
        """Called when a timeline has grown; drop the oldest ones if all together are too large."""
        self._weight += weight
        while self._weight > self._limit and self._timelines:
            _, oldest = self._timelines.popitem(last=False)
            self._weight -= oldest.weight

    def _note(self, uid: str) -> None:
        if self._changed is not None and len(self._changed) < MAX_CHANGED:
            self._changed.add(uid)

    # Readers.

    def read(self, uid: str, after: int = 0) -> Story:
        """Return the entries of the object that have changed after this number; the diff, if it is known."""
        with self._lock:
            timeline = self._timelines.get(uid)
            if timeline is None:
                return Story(0, [], None)
            found = [entry for entries in timeline.entries.values() for entry in entries if entry.number > after]
            found.sort(key=lambda entry: entry.id)
            return Story(timeline.number, [entry.describe() for entry in found], timeline.diff)

    def get_number(self, uid: str) -> int:
        """Return the number of the last change of the object; zero without a timeline."""
        timeline = self._timelines.get(uid)
        return 0 if timeline is None else timeline.number

    def find_failure(self, uid: str) -> tuple[str, str] | None:
        """Return the first handler that has failed and has not succeeded since, with its error."""
        timeline = self._timelines.get(uid)
        return None if timeline is None else next(iter(list(timeline.failures.items())), None)

    def follow(self) -> None:
        """Begin to record which objects change."""
        with self._lock:
            self._changed = set()

    def unfollow(self) -> None:
        """Stop recording which objects change, because no reader needs them."""
        with self._lock:
            self._changed = None

    def take_changed(self, limit: int) -> Collection[str]:
        """Return some of the objects that have changed since the last call; the others are left for the next one."""
        with self._lock:
            changed = self._changed
            if not changed:
                return ()
            if len(changed) <= limit:
                self._changed = set()
                return changed
            return [changed.pop() for _ in range(limit)]
