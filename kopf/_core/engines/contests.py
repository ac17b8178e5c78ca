"""
Contests: fields of children that another field manager takes again and again, as an autoscaler takes the replicas.

If both sides insisted, they would change the field for ever. So, if the operator loses the field several times in
a short time, it leaves the field to the other manager for a while. After that, it tries once more. Each further loss
doubles the time for which it leaves the field.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from kopf._core.engines.field_ownership import Path

MAX_LOSSES: Final = 3
"""The number of losses of one field to one manager within `PERIOD`, after which the field is left to it."""

PERIOD: Final = 60.0
"""The time in which losses count together (in seconds)."""

TRUCE: Final = 60.0
"""How long a field is left to the other manager at first (in seconds)."""

LONGEST_TRUCE: Final = 3600.0
"""How long a field is left to the other manager at most (in seconds)."""


class Truce(NamedTuple):
    """A field that is left to another manager."""

    manager: str
    until: float
    duration: float
    """How long the field is left to it (in seconds)."""


class Contest:
    """The contested fields of one child. All times are arguments."""

    __slots__ = ('_losses', '_truces')

    def __init__(self) -> None:
        self._losses: dict[tuple[Path, str], tuple[float, ...]] = {}
        self._truces: dict[Path, Truce] = {}

    def note(self, lost: Mapping[Path, str], now: float) -> Mapping[Path, Truce]:
        """Receive the fields that other managers have taken; return those that are left to them from now on."""
        begun: dict[Path, Truce] = {}
        for path, manager in lost.items():
            former = self._truces.get(path)
            if former is not None and former.manager == manager and now < former.until + PERIOD:
                duration = min(former.duration * 2, LONGEST_TRUCE)
            else:
                times = [time for time in self._losses.get((path, manager), ()) if time > now - PERIOD]
                self._losses[path, manager] = (*times, now)
                if len(times) + 1 < MAX_LOSSES:
                    continue
                del self._losses[path, manager]
                duration = TRUCE
            begun[path] = self._truces[path] = Truce(manager, now + duration, duration)
        return begun

    def find_truces(self, now: float) -> Mapping[Path, Truce]:
        """Return the fields that are left to other managers now."""
        return {path: truce for path, truce in self._truces.items() if now < truce.until}
