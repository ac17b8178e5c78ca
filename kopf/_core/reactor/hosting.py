"""
The host of daemons: the connection between the daemons of an object and its processing.

Daemons and timers run in parallel to the processing of their object. The host applies their patches to the newest
state of the object, and requeues the object when they have ended. It also provides the memo and the deletion flag,
which daemons and handlers share.
"""

from collections.abc import Collection
from typing import Any, Protocol

from kopf._cogs.aiokits.awaitable_flags import ReasonedFlag
from kopf._cogs.structs.bodies import RawBody
from kopf._cogs.structs.body_guards import BodyGuard
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.patches import Patch
from kopf._core.engines.spawning import Spawner
from kopf._core.engines.stoppers import DaemonStoppingReason
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.decisions import Decider
from kopf._core.intents.registries import HandlerTable
from kopf._core.reactor.applying import Applier
from kopf._core.reactor.object_records import ObjectRecord, make_logger
from kopf._core.reactor.workers import WorkerPool


class Owner(Protocol):
    """The processor of the objects."""

    def wake(self, record: ObjectRecord, /) -> None:
        """Requeue the object without an event."""

    def is_settled(self, record: ObjectRecord, raw: RawBody, /) -> bool:
        """Check whether the object in this state requires no action."""


class ObjectHost:
    """Hosts the daemons and timers of all objects of one resource."""

    def __init__(
        self,
        owner: Owner,
        *,
        context: OperatorContext,
        decider: Decider,
        applier: Applier,
        workers: WorkerPool,
    ) -> None:
        self._owner: Owner | None = owner
        self._settings = context.settings
        self._decider = decider
        self._applier = applier
        self._workers = workers
        self._copy_memo = context.copy_memo
        self._told: set[HandlerId] = set()
        self.spawner: Spawner | None = None
        """Starts and stops the daemons; ``None`` if no daemons or timers are declared."""
        if decider.table.spawning:
            self.spawner = Spawner(self, decider, workers.background, context)

    def revise(self, table: HandlerTable) -> None:
        """Use this table from now on: the resource has other verbs or subresources, but the same handlers."""
        if self.spawner is not None:
            self.spawner.revise(table)

    def take_over(self, record: ObjectRecord, *, redefined: bool) -> None:
        """Take over the daemons of an object from another processor; stop them if none are declared here."""
        if record.daemons is None:
            return
        if self.spawner is None:
            # Why not only stop them? A daemon that ends requeues its object to be started again, but this processor
            # starts no daemons.
            record.daemons.forget()
        else:
            record.daemons.move(self.spawner, redefined=redefined)

    def retire(self) -> None:
        """Called when another processor takes over the objects, before it does."""
        if self.spawner is not None:
            self.spawner.retire()

    def release(self, successor: Owner | None) -> None:
        """
        Called when the objects are not served here any more: break the reference cycles.

        Daemons that ignore their cancellation still call the host. It forwards their calls to the successor, if any.
        """
        self.spawner, self._owner = None, successor

    def get_memo(self, record: ObjectRecord) -> Any:
        """Return the memo of the object."""
        return record.get_memo(self._copy_memo)

    def get_deletion(self, record: ObjectRecord) -> ReasonedFlag[DaemonStoppingReason]:
        """Return the flag that is raised when the object is marked for deletion, for handlers that run meanwhile."""
        return self._workers.background.deletions.get_flag(record.uid, raised=record.is_being_deleted)

    async def send(self, record: ObjectRecord, patch: Patch) -> None:
        """Apply a patch of a daemon to the newest state of the object."""
        await self._applier.apply_of_daemon(record, patch, is_settled=self._is_settled, resume=self.wake)

    def _is_settled(self, record: ObjectRecord, raw: RawBody) -> bool:
        return self._owner is None or self._owner.is_settled(record, raw)

    def wake(self, record: ObjectRecord) -> None:
        """Requeue the object, as its daemons have ended or have patched it."""
        if self._owner is not None:
            self._owner.wake(record)

    def restore(self, record: ObjectRecord, guard: BodyGuard, keys: Collection[HandlerId]) -> None:
        """Undo the in-place changes of these handlers, so that others do not see them; warn about the changes."""
        self.report_mutation(record, guard.explain(), keys)
        # While the handlers ran, a newer state can have replaced theirs: it must not be undone.
        if record.body is guard.raw:
            record.restore(guard.original)

    def report_mutation(self, record: ObjectRecord, explanation: str, keys: Collection[HandlerId]) -> None:
        """Warn, once for each handler, that its in-place changes of the object are undone."""
        # Why not warn for each object? The remedy is the same, and there can be thousands of objects.
        if not self._told.issuperset(keys):
            self._told.update(keys)
            log = make_logger(record, self._decider.table.resource, self._settings)
            titles = ", ".join(f"Handler {key!r}" for key in keys)
            log.warning("%s: %s", titles, explanation, extra={'message_code': 'changed-in-place'})

    def fail(self, error: Exception) -> None:
        """End the operator with this error."""
        self._workers.fail(error)
