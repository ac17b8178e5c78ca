"""
Updates that handlers cause themselves: they patch what they are called for, and are called for their own patches.

This can well end by itself, after some steps. If it does not, it would take all of the CPU and flood the API: it is
told of once, and slowed down with growing pauses, until another client edits the object. Patches that handlers send on
their own, by other means than the argument ``patch``, are edits of other clients here. The same is done if the storages
of the user cause updates: they write more than the essence, or take for the essence what changes with each patch.
"""

import time
from typing import cast

from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.bodies import Body, BodyEssence, RawBody
from kopf._cogs.structs.diffs import EMPTY, is_same
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.patches import Patch
from kopf._core.actions.loggers import ObjectLogger
from kopf._core.intents.decisions import Decider, Decision, is_explained
from kopf._core.reactor.object_records import ObjectRecord, make_logger

MAX_UPDATES = 20
"""After so many updates in a row, each caused by the former one, there are pauses between them."""

MAX_GAP = 0.5
"""Updates that follow each other less often do not need any pauses (in seconds)."""

MIN_PAUSE, MAX_PAUSE = 0.1, 60.0

_CAUSED_BY_HANDLERS = (
    "%s changes the object by its own patch (%s), and is called for this change again: by now, %d times "
    "in a row. From now on, there are growing pauses between the calls, until another client edits the "
    "object. Store results in the status, or change a field only if it is not as wanted yet."
)
_CAUSED_BY_STORAGES = (
    "%s is called again because of what the storages in settings.persistence write to the object, or take for its "
    "essence (%s): by now, %d times in a row. From now on, there are growing pauses between the calls, until another "
    "client edits the object. Let build() of the diff-base storage leave out what changes with each patch."
)


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


class SelfTriggers:
    """The updates of all the objects of one resource that their handlers cause themselves."""

    def __init__(self, settings: OperatorSettings, decider: Decider) -> None:
        self._settings = settings
        self._decider = decider
        self._told: set[frozenset[HandlerId]] = set()

    def check(self, record: ObjectRecord, body: Body) -> float:
        """
        Return for how long (in seconds) the object is not to be updated, as its handlers cause that themselves.

        That is over when another client has edited the object, and then it is forgotten.
        """
        triggering = record.selftriggering
        if triggering is None or record.cycle is not None:
            return 0
        if body['metadata'].get('deletionTimestamp') is not None or triggering.is_over(self._decider.essences.of(body)):
            record.watch_selftriggering(None)
            return 0
        return triggering.get_pause()

    def note(self, record: ObjectRecord, decision: Decision, patch: Patch, conclusion: Patch) -> float:
        """Notice updates that follow our own patches; return the pause before the next one (in seconds)."""
        changes = EMPTY
        if record.cycle is None:
            changes = self._decider.find_own_changes(decision, patch, conclusion, record.body)
        if not changes:
            record.watch_selftriggering(None)
            return 0
        triggering = record.selftriggering or SelfTriggering()
        record.watch_selftriggering(triggering)
        pause = triggering.note(self._decider.essences.of(Body(cast(RawBody, record.body))))
        keys = frozenset(handler.id for handler in decision.matching)
        if pause and keys not in self._told:
            self._told.add(keys)
            make_logger(record, self._decider.table.resource, self._settings, ObjectLogger).warning(
                _CAUSED_BY_HANDLERS if patch.fns or is_explained(changes, patch) else _CAUSED_BY_STORAGES,
                ", ".join(f"Handler {key!r}" for key in sorted(keys)),
                ', '.join(dict.fromkeys('.'.join(item.field) for item in changes)),
                triggering.count,
            )
        return pause
