"""
The finalizer that a former version of the operator has left on objects.

If the operator has no handlers any more that require its finalizer, it removes the finalizer: otherwise, the objects
could never be deleted. The state of handling decides on that for most resources (`decisions`). This module is about the
resources for which the operator stores no state, because it only observes them, or has only level-triggered handlers.

Another operator can use the same finalizer, as all operators have the same one by default. That cannot be known before
its finalizer is removed: then it adds the finalizer again. From then on, the finalizer stays.
"""

import time
import weakref

from kopf._cogs.structs.bodies import RawBody, is_older_version
from kopf._cogs.structs.references import Namespace, Resource
from kopf._core.actions.loggers import ObjectLogger
from kopf._core.reactor.object_records import ObjectRecord

DELETION_PAUSE = 3.0
"""
How long the first objects that are being deleted keep the finalizer (in seconds).

No operator can add it to them again. In this time, another operator can add it to objects that are not being deleted.
"""


class FormerFinalizer:
    """
    The finalizer on the objects of one resource, in all its versions and namespaces.

    Args:
        finalizer: the finalizer of the operator.
    """

    def __init__(self, finalizer: str) -> None:
        self.finalizer = finalizer
        """The finalizer of the operator."""
        # Why not a flag in each record? Hardly any objects have the finalizer, so the flag would be a waste of memory.
        self._released: weakref.WeakKeyDictionary[ObjectRecord, str | None] = weakref.WeakKeyDictionary()
        """The objects from which the finalizer was removed, with their resource versions after that."""
        self._found_at: float | None = None
        self._shared = False
        self._forbidden: set[Namespace] = set()
        """The namespaces in which the operator is not permitted to patch the objects."""

    def is_on(self, record: ObjectRecord, raw: RawBody) -> bool:
        """Check whether the object has the finalizer, and the finalizer is not to be left there."""
        # Why the emptiness first? This is checked for each event, and most objects have no finalizers. Why the type?
        # Servers of aggregated APIs can have bugs, and events must reach their handlers nevertheless.
        finalizers = raw['metadata'].get('finalizers')
        return (
            bool(finalizers)
            and isinstance(finalizers, list)
            and self.finalizer in finalizers
            and not self._shared
            and record.namespace not in self._forbidden
        )

    def begin(self, record: ObjectRecord, raw: RawBody, resource: Resource, logger: ObjectLogger) -> bool:
        """Called for an object with the finalizer; return whether the finalizer is to be removed."""
        if self._found_at is None:
            self._found_at = time.monotonic()
        if record not in self._released:
            return True
        # After a pause, the list can come from a cache of the API server that lags behind the removal.
        if is_older_version(raw['metadata'].get('resourceVersion') or '', self._released[record]):
            return False
        # Why for all objects, not only for this one? Otherwise, the other operator would lose the finalizer of each of
        # them once, and could miss their deletions meanwhile.
        self._shared = True
        self._released.clear()
        logger.warning(
            "The finalizer %r has come back after this operator has removed it: another operator uses it for %s. So it "
            "is left on all objects of this kind from now on. Give each operator a finalizer of its own: "
            "settings.persistence.finalizer. If that is a former version of this operator, restart this one after it.",
            self.finalizer,
            resource,
        )
        return False

    def get_pause(self, raw: RawBody) -> float:
        """Return the time until the finalizer can be removed from the object (in seconds); zero if it can be now."""
        if self._found_at is None or raw['metadata'].get('deletionTimestamp') is None:
            return 0
        return max(0.0, self._found_at + DELETION_PAUSE - time.monotonic())

    def note_removed(self, record: ObjectRecord, raw: RawBody) -> None:
        """Called when the finalizer was removed from the object, with the state after that."""
        self._released[record] = raw['metadata'].get('resourceVersion')

    def note_forbidden(self, record: ObjectRecord, resource: Resource, logger: ObjectLogger) -> None:
        """Called when the operator is not permitted to patch the object: leave the finalizer in its namespace."""
        if not self._forbidden:
            logger.warning(
                "The finalizer %r of a former version cannot be removed, as the operator is not permitted to patch %s. "
                "Objects with the finalizer cannot be deleted. Grant the verb patch for the resource to the operator's "
                "account until no object has the finalizer any more, and restart the operator.",
                self.finalizer,
                resource,
            )
        self._forbidden.add(record.namespace)
