"""
Contests: fields of children that another client repeatedly takes or removes, e.g. the replicas for an autoscaler.

Two such clients would change the field for ever. So, if the operator loses the field several times in a short time, it
does not apply the field for a while, and leaves it to the other client. Then it tries once more. Each further loss
doubles the time.

The same holds for whole children that another client repeatedly deletes or applies: the operator does not apply them
for a while.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from kopf._core.engines.adoption import HANDLER_ANNOTATION, OWNER_ANNOTATION, OWNER_LABEL, PRUNED_LABEL
from kopf._core.engines.field_ownership import Ownership, Path, has_field

WHOLE: Final[Path] = ()
"""The path of the child as a whole."""

UNKNOWN: Final = ''
"""The name of the manager that has removed a field or a child: the API server does not record it."""

MAX_LOSSES: Final = 3
"""The number of losses of one field to one manager within `PERIOD`, after which the field is left to it."""

MAX_LOSSES_OF_WHOLE: Final = 10
"""The same number for whole children. It is higher, because users also delete children to have them recreated."""

PERIOD: Final = 60.0
"""The time in which losses count together (in seconds)."""

TRUCE: Final = 60.0
"""The first duration of a truce (in seconds)."""

LONGEST_TRUCE: Final = 3600.0
"""The longest duration of a truce (in seconds)."""


_MARKS: Final = frozenset(
    [
        *(('f:metadata', 'f:labels', f'f:{name}') for name in (OWNER_LABEL, PRUNED_LABEL)),
        *(('f:metadata', 'f:annotations', f'f:{name}') for name in (OWNER_ANNOTATION, HANDLER_ANNOTATION)),
    ]
)
"""The fields that make an object a child: the operator always applies them."""


class Truce(NamedTuple):
    """A field that the operator leaves to another manager for a while."""

    manager: str
    """The name of that manager; `UNKNOWN` if another client removes the field."""
    until: float
    duration: float
    """The duration of the truce (in seconds)."""


class Contest:
    """The contested fields of one child. It has no clock: all times are arguments."""

    __slots__ = ('_counted', '_losses', '_removed', '_truces')

    def __init__(self) -> None:
        self._losses: dict[tuple[Path, str], tuple[float, ...]] = {}
        self._counted: set[tuple[Path, str]] = set()  # the losses that are counted, and not restored yet
        self._removed: set[Path] = set()  # the fields that another client has removed at least once
        self._truces: dict[Path, Truce] = {}

    def find_losses(self, desired: Mapping[str, Any], ownership: Ownership, now: float) -> dict[Path, str]:
        """Return the desired fields that other clients have taken, and those that are known to be removed by others."""
        lost = ownership.find_lost(desired)
        for path in self._removed:
            if ownership.is_missing(path) and has_field(desired, path):
                lost[path] = UNKNOWN
        truces = self.find_truces(now)
        lost = {path: manager for path, manager in lost.items() if path not in truces}
        marks = [path for path in lost if path in _MARKS or path[:2] == ('f:metadata', 'f:ownerReferences')]
        if marks:
            lost[WHOLE] = lost[marks[0]]
        return {path: manager for path, manager in lost.items() if path not in marks and self.is_new(path, manager)}

    def is_new(self, path: Path, manager: str) -> bool:
        """
        Check whether the loss is not counted yet.

        If the API server refuses to restore the field, or is unavailable, each further attempt finds the same loss.
        """
        return (path, manager) not in self._counted

    def note_applied(self, now: float) -> None:
        """Called when the child is applied: all its fields are restored, except for those that are left to others."""
        truces = self.find_truces(now)
        self._counted = {(path, manager) for path, manager in self._counted if path in truces}

    def note_restored(self, before: Ownership, after: Ownership, manager: str, now: float) -> Mapping[Path, Truce]:
        """
        Find the fields that were absent before an unchanged child was applied again; return those to leave from now on.

        Why only after the apply? Before, nothing reveals the removal: neither the field nor its manager is in the
        state.
        """
        restored = {path for path in after.own if before.is_missing(path)}
        if not restored and before.own == after.own:
            # Only the time of the entry has changed: another client with this name has applied other values.
            begun = self.note({WHOLE: manager}, now)
        else:
            found = restored - self._removed
            self._removed |= found
            begun = self.note(dict.fromkeys(found, UNKNOWN), now)
        self.note_applied(now)
        return begun

    def note(self, lost: Mapping[Path, str], now: float) -> Mapping[Path, Truce]:
        """Receive the fields that other managers have taken; return those that are left to them from now on."""
        begun: dict[Path, Truce] = {}
        self._counted.update(lost.items())
        for path, manager in lost.items():
            former = self._truces.get(path)
            if former is not None and former.manager == manager and now < former.until + PERIOD:
                duration = min(former.duration * 2, LONGEST_TRUCE)
            else:
                times = [time for time in self._losses.get((path, manager), ()) if time > now - PERIOD]
                self._losses[path, manager] = (*times, now)
                if len(times) + 1 < (MAX_LOSSES if path else MAX_LOSSES_OF_WHOLE):
                    continue
                del self._losses[path, manager]
                duration = TRUCE
            begun[path] = self._truces[path] = Truce(manager, now + duration, duration)
        return begun

    def find_end(self, now: float) -> float | None:
        """Return when the first of the fields is to be applied again; ``None`` if none is left to others."""
        return min((truce.until for truce in self.find_truces(now).values()), default=None)

    def find_truces(self, now: float) -> Mapping[Path, Truce]:
        """Return the fields that are left to other managers now."""
        return {path: truce for path, truce in self._truces.items() if now < truce.until}
