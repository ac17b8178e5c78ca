"""
The objects of one member of a sharded operator, as its watches request them and recognise them.

The API server sends only these objects if it has the feature ``ShardedListAndWatch`` of Kubernetes (KEP-5866): each
list and stream has a ``shardSelector`` with the ranges of hashes of the member's buckets. Servers without the feature
ignore the parameter, so a member can never rely on it: it checks each object by itself, from the bytes of its line if
possible.
"""

import bisect
import heapq
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from kopf._core.engines.assignments import NOTHING, Division
from kopf._core.engines.buckets import digest, find_bucket

MAX_RANGES = 32
"""
The maximal number of ranges in a selector.

With 32 ranges, an encoded URL has 4 KB; some proxies refuse more than 8 KB. If there are more ranges, those with the
least gaps between them are joined: the member gets some foreign objects, and ignores them.
"""

FIELDS = {'uid': b'"uid":"', 'namespace': b'"namespace":"'}
"""
What precedes the uids or the namespaces in a line of a stream: those of the object, and of whatever it refers to.
"""

_EVENTS = tuple(f'{{"type":"{type_}"'.encode() for type_ in ('ADDED', 'MODIFIED', 'DELETED'))
"""The beginnings of the lines about objects. API servers always write the type first."""

_END = 1 << 64


MIN_RATE = 200
"""The rate of foreign lines (per second) from which they are gathered."""
GATHERED = 48
"""How many foreign lines are to be gathered. Each of them takes a third to a fifth of the time of a single one."""
MAX_REST = 0.05
"""The maximal time (in seconds) for which lines are gathered: own events can wait for so long, too."""


class Selection(NamedTuple):
    """Ranges of hashes, as requested from the API server."""

    key: str
    """The hashed field: ``uid`` or ``namespace``."""
    bounds: tuple[int, ...]
    """The beginning and the end of the first range, of the second one, and so on."""

    def __str__(self) -> str:
        pairs = zip(self.bounds[::2], self.bounds[1::2], strict=True)
        field = f'object.metadata.{self.key}'
        return ' || '.join(f"shardRange({field}, '{start:#018x}', '{end:#018x}')" for start, end in pairs)

    def covers(self, text: str) -> bool:
        """Check whether an object with this uid or namespace is in the ranges."""
        return bisect.bisect_right(self.bounds, digest(text)) % 2 == 1

    def covers_object(self, meta: Mapping[str, Any]) -> bool:
        """Check whether the object with this metadata is in the ranges."""
        return self.covers(meta.get(self.key) or '')


def make_selection(division: Division, buckets: Iterable[int], most: int = MAX_RANGES) -> Selection:
    """Return the ranges of the buckets; they include further buckets if there were more than so many ranges."""
    bounds: list[int] = []
    for bucket in sorted(buckets):
        # The least hash of the bucket, and that of the next one.
        start, end = (-(-(number << 64) // division.buckets) for number in (bucket, bucket + 1))
        if bounds and bounds[-1] == start:
            bounds[-1] = end
        else:
            bounds += start, end
    if len(bounds) > 2 * most:
        gaps = heapq.nlargest(most - 1, range(1, len(bounds) - 1, 2), key=lambda at: bounds[at + 1] - bounds[at])
        bounds = [bounds[0], *(bound for at in sorted(gaps) for bound in bounds[at : at + 2]), bounds[-1]]
    # A selector without any range would select all objects.
    return Selection(division.key, tuple(bounds or (0, 1)))


class ShardFilter:
    """
    The filter of the objects of one member.

    Args:
        division: the division of the objects into buckets.
        get_active: returns the buckets whose objects this member handles.
    """

    def __init__(self, division: Division, get_active: Callable[[], frozenset[int]]) -> None:
        self._division = division
        self._get_active = get_active
        self._active = NOTHING
        self._selection = make_selection(division, NOTHING)
        self._is_by_uid = division.key == 'uid'
        self._prefix = FIELDS[division.key]
        self._verdicts: dict[bytes, bool] = {}

    @property
    def selection(self) -> Selection:
        """The selection of the current objects."""
        self._refresh()
        return self._selection

    def _refresh(self) -> None:
        active = self._get_active()
        if active is not self._active:
            self._active, self._selection = active, make_selection(self._division, active)
            self._verdicts.clear()

    @staticmethod
    def make_pace() -> 'ReadingPace':
        """Return the pace of a new stream."""
        return ReadingPace()

    def excludes(self, uid: str, namespace: str | None) -> bool:
        """Check whether this member does not handle the object."""
        text = uid if self._is_by_uid else namespace or ''
        return find_bucket(text, self._division.buckets) not in self._get_active()

    def excludes_line(self, line: bytes, *, namespaced: bool) -> bool:
        """Check whether the line mentions uids (or namespaces), that of its object among them, but none of the own."""
        # An object without a namespace can mention the namespaces of others; so can errors and bookmarks.
        if not (namespaced or self._is_by_uid) or not line.startswith(_EVENTS):
            return False
        if self._get_active() is not self._active:
            self._refresh()
        prefix, verdicts = self._prefix, self._verdicts
        # Why not a regular expression? It takes as long as decoding the line.
        at = line.find(prefix)
        if at < 0:
            return False
        while at >= 0:
            start = at + len(prefix)
            end = line.find(b'"', start)
            text = line[start:end]
            is_own = verdicts.get(text)
            if is_own is None:
                is_own = self._judge(text)
            if is_own:
                return False
            at = line.find(prefix, end)
        return True

    def _judge(self, text: bytes) -> bool:
        if len(self._verdicts) >= 65536:
            self._verdicts.clear()
        bucket = find_bucket(text.decode(errors='replace'), self._division.buckets)
        verdict = self._verdicts[text] = bucket in self._active
        return verdict


class ReadingPace:
    """
    Decides how long to wait before the next lines of a stream are read, if most of them are foreign.

    Most of the time for a foreign line is for waking up the event loop. If there are many, it is cheaper to read
    several of them at once.
    """

    def __init__(self) -> None:
        self._read_at = -math.inf

    def find_rest(self, lines: int, foreign: int, now: float) -> float:
        """
        Return for how long to wait (in seconds).

        Args:
            lines: the number of lines that were just read.
            foreign: how many of them are of other members.
            now: the current time of a monotonic clock.
        """
        elapsed, self._read_at = now - self._read_at, now
        if foreign * 2 < lines or foreign < elapsed * MIN_RATE:
            return 0
        return min(MAX_REST, GATHERED * elapsed / foreign)
