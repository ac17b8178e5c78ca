"""
Updates that handlers cause themselves: they patch what they are called for, and are called for their own patches.

This can well end by itself, after some steps. If it does not, it would take all of the CPU and flood the API: it is
told of once, and slowed down with growing pauses, until another client edits the object. Patches that handlers send on
their own, by other means than the argument ``patch``, are edits of other clients here.
"""

import time

from kopf._cogs.structs.bodies import BodyEssence
from kopf._cogs.structs.diffs import is_same

MAX_UPDATES = 20
"""After so many updates in a row, each caused by the former one, there are pauses between them."""

MAX_GAP = 0.5
"""Updates that follow each other less often do not need any pauses (in seconds)."""

MIN_PAUSE, MAX_PAUSE = 0.1, 60.0


class SelfTriggering:
    """A row of updates of one object, each caused by the patch of the former one."""

    __slots__ = ('_count', '_essence', '_noticed_at', '_resumes_at')

    def __init__(self) -> None:
        self._count = 0
        self._essence: BodyEssence | None = None
        self._noticed_at = self._resumes_at = 0.0

    @property
    def count(self) -> int:
        """How many updates there were."""
        return self._count

    def note(self, essence: BodyEssence) -> float:
        """Take one more update, which has made this of the object; return the pause before the next (in seconds)."""
        now = time.monotonic()
        since = now - max(self._noticed_at, self._resumes_at)
        self._count = self._count + 1 if since <= MAX_GAP else 1
        self._essence, self._noticed_at = essence, now
        excess = self._count - MAX_UPDATES
        pause = 0.0 if excess < 0 else min(MAX_PAUSE, MIN_PAUSE * 2.0 ** min(excess, 16))
        self._resumes_at = now + pause
        return pause

    def is_over(self, essence: BodyEssence) -> bool:
        """Check whether another client has edited the object since the last update."""
        return not is_same(essence, self._essence)

    def get_pause(self) -> float:
        """Return how long there is to wait for the next update (in seconds)."""
        return max(0.0, self._resumes_at - time.monotonic())
