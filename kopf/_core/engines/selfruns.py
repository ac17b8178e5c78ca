"""
Detection of level-triggered handlers that endlessly trigger each other, or themselves, by their patches.

A handler is not triggered by its own patch. But two handlers can overwrite each other, and a handler can watch the
objects that it patches. So each run has a depth. If a patch has triggered the run, its depth is one more than that of
the run that has made the patch. If another client, the start, or a timer has triggered it, its depth is zero. Bursts
of changes stay shallow; only loops become deep. The framework logs a loop once, and slows it down with growing pauses
until another client changes the object. If a handler sends a request itself, instead of using the argument ``patch``,
this counts as a change by another client.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from kopf._cogs.structs.patches import Patch

MAX_DEPTH = 20
"""The number of runs, each triggered by the patch of the former one, that begin without pauses."""

MAX_DURATION = 0.5
"""If a run with its patch takes longer (in seconds), the depth begins at zero again: the loop is slow enough."""

MIN_PAUSE, MAX_PAUSE = 0.1, 60.0

LOOP_WARNING = (
    "%s is run again and again because of patches by %s (%s): by now, %d times in a chain. From now on, there are "
    "growing pauses between the runs, until another client changes the object. Let only one handler set each field, "
    "and patch a field only if its value differs."
)


class OwnPatch(NamedTuple):
    """The last patch of a level-triggered handler."""

    depth: int
    """The depth of the run that has made the patch."""
    began_at: float
    """When that run has begun."""
    handler: object
    fields: str

    @classmethod
    def of(cls, chain: 'RunChain | None', handler: object, patch: Patch, now: float) -> 'OwnPatch':
        """Return the description of a patch; ``chain`` is absent if no patch has triggered the run that has made it."""
        fields = list(dict.fromkeys(_iter_fields(patch)))
        depth, began_at = (0, now) if chain is None else (chain.depth, chain.began_at)
        return cls(depth, began_at, handler, ', '.join(fields or ['a function']))


class RunChain:
    """The runs of one handler for one object that follow each other because of patches: their depth and pauses."""

    __slots__ = ('_next', 'began_at', 'depth')

    def __init__(self) -> None:
        self.depth = 0
        """The depth of the current or the last run."""
        self.began_at = 0.0
        self._next = 0

    def note(self, cause: OwnPatch, now: float) -> float:
        """Called when the patch has triggered the handler; return the pause before the run (in seconds)."""
        # The time is measured from the beginning of that run, not from its trigger: otherwise, a long pause would
        # reset the depth.
        self._next = 1 if now - cause.began_at > MAX_DURATION else cause.depth + 1
        excess = self._next - MAX_DEPTH
        # The exponent is limited, as the power would overflow after a thousand runs.
        return 0.0 if excess < 0 else min(MAX_PAUSE, MIN_PAUSE * 2.0 ** min(excess, 16))

    def begin(self, now: float) -> None:
        """Called when a run begins."""
        self.depth, self._next, self.began_at = self._next, 0, now


def _iter_fields(patch: Mapping[str, Any]) -> Any:
    for key, value in patch.items():
        if isinstance(value, Mapping) and value:
            yield from (f'{key}.{name}' for name in value)
        else:
            yield key
