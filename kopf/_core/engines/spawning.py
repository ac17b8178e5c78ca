"""
Spawning of daemons and timers: decide which of them must run for an object, start them, and stop them.

A `Spawner` serves the objects of one resource: it starts daemons for objects that match the filters, and stops the
daemons of objects that no longer match. It checks an object only when the object has changed. `ObjectDaemons` are the
daemons of one object. They share a live body, which is replaced by each newer state, from the watch or from the
response to a patch. `OperatorDaemons` are the daemons of all resources: they stop when the operator pauses or exits.
"""

import asyncio
import contextlib
import contextvars
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from kopf._cogs.aiokits.awaitable_flags import ReasonedFlag
from kopf._cogs.aiokits.coalesced_timers import CoalescedTimers
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.bodies import Body, BodyEssence, RawBody, is_older_version
from kopf._cogs.structs.body_guards import explain_changes
from kopf._cogs.structs.diffs import is_same
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.packed_objects import PackedObject, ParsedCache
from kopf._cogs.structs.patches import Patch
from kopf._core.actions.loggers import ObjectLogger
from kopf._core.engines.daemon_threads import DaemonThreads
from kopf._core.engines.daemons import EXIT_TIMEOUT, Daemon
from kopf._core.engines.stoppers import DaemonStoppingReason, DeletionFlags
from kopf._core.intents import filters
from kopf._core.intents.causes import Identity, SpawningCause
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.decisions import Decider
from kopf._core.intents.edits import find_written, is_edited
from kopf._core.intents.handlers import ResourceHandler, SpawningHandler, TimerHandler
from kopf._core.intents.registries import HandlerTable
from kopf._core.intents.storage_errors import StorageError

_RESPAWNABLE = DaemonStoppingReason.FILTERS_MISMATCH | DaemonStoppingReason.OPERATOR_PAUSING


class Record(Protocol):
    """The part of an object's record in memory that daemons need."""

    uid: str
    namespace: str | None
    name: str

    @property
    def daemons(self) -> 'ObjectDaemons | None':
        """The daemons and timers of the object, if there are any."""

    def attach_daemons(self, daemons: 'ObjectDaemons', /) -> None:
        """Called when the object has daemons or timers."""

    def detach_daemons(self) -> None:
        """Called when all daemons and timers of the object have ended."""


class Host(Protocol):
    """The part of the reactor that handles the objects of the resource and sends their patches."""

    def get_memo(self, record: Any, /) -> Any:
        """Return the memo of the object."""

    async def send(self, record: Any, patch: Patch, /) -> None:
        """Apply a daemon's patch to the object, and update the object's daemons with the response."""

    def report_mutation(self, record: Any, explanation: str, keys: Collection[HandlerId], /) -> None:
        """Log a warning that these handlers have mutated the object; the mutations are undone."""

    def get_deletion(self, record: Any, /) -> ReasonedFlag[DaemonStoppingReason]:
        """Return the flag that is set when the object is being deleted."""

    def wake(self, record: Any, /) -> None:
        """Process the object again, as its daemons have ended."""

    def fail(self, error: Exception, /) -> None:
        """Stop the operator with this error, because it cannot work without the API."""


class OperatorDaemons:
    """All the daemons and timers of an operator."""

    def __init__(self, settings: OperatorSettings) -> None:
        self.settings = settings
        self.threads = DaemonThreads(settings.background)
        self.context = contextvars.copy_context()
        """The context that each run gets a copy of, so that runs do not see each other's context variables."""
        self.coalesced_timers = CoalescedTimers(self.context)
        self.deletions = DeletionFlags(self.coalesced_timers)
        self.parsed_cache = ParsedCache()
        """The cache of parsed states of objects whose daemons or timers use them now."""
        self.paused = False
        self.closing = False
        self._is_overdue: Callable[[], bool] | None = None
        # Why not a set? The dict keeps the order of the starts, so the daemons are stopped in the same order in each
        # run.
        self._active: dict[Daemon, None] = {}
        self._abandoned: dict[Daemon, None] = {}
        self._cancelled: weakref.WeakSet[asyncio.Task[None]] = weakref.WeakSet()
        self._ended: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._active)

    def set_overdue_check(self, is_overdue: Callable[[], bool]) -> None:
        """Set the function that checks before each run whether the operator must pause but has not paused yet."""
        self._is_overdue = is_overdue

    def is_overdue(self) -> bool:
        """Check whether the operator must pause but has not paused yet; callable from any thread."""
        return self._is_overdue is not None and self._is_overdue()

    def is_halted(self) -> bool:
        """Check whether no daemon and no run of one may begin now; callable from any thread."""
        return self.closing or self.paused or self.is_overdue()

    def cancel(self, task: asyncio.Task[None]) -> None:
        """Cancel the task of a daemon."""
        self._cancelled.add(task)
        task.cancel()

    def is_cancelled(self) -> bool:
        """Check whether the current task of a daemon is cancelled by the operator, or can be, as it is ending."""
        return self.closing or asyncio.current_task() in self._cancelled

    def add(self, daemon: Daemon) -> None:
        """Called when the daemon has started."""
        self._active[daemon] = None

    def discard(self, daemon: Daemon) -> None:
        """Called when the daemon has ended or is abandoned."""
        self._active.pop(daemon, None)
        if daemon.abandoned and daemon.task is not None:
            self._abandoned[daemon] = None
        else:
            self._abandoned.pop(daemon, None)
        # Why not `asyncio.wait()` for the tasks? Timers have no tasks between their runs, and the tasks of abandoned
        # daemons go on.
        if not self._active and self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def pause(self) -> None:
        """Stop all daemons, and start none until `resume` is called."""
        self.paused = True
        for daemon in list(self._active):
            daemon.stop(DaemonStoppingReason.OPERATOR_PAUSING)

    def abort(self) -> None:
        """Stop all daemons as `pause` does, and cancel the async ones at once."""
        self.paused = True
        for daemon in list(self._active):
            daemon.abort()

    def find_running(self, concerns: Callable[[Any], bool] | None = None) -> list[str]:
        """Return the names of the running daemons, including abandoned ones; with a check, only of its objects."""
        daemons = [daemon for daemon in [*self._active, *self._abandoned] if daemon.is_running]
        return [str(daemon) for daemon in daemons if concerns is None or concerns(daemon.owner.record)]

    def resume(self) -> None:
        """Permit daemons to start. Each daemon starts when its object is processed the next time."""
        self.paused = False

    def end(self) -> None:
        """Begin nothing any more. What is running goes on until `close` is called."""
        self.closing = True

    async def close(self) -> None:
        """
        Stop all daemons, and wait until they have ended.

        The wait is bounded by the back-offs and timeouts of the daemons, or by `EXIT_TIMEOUT` if they have none.
        Abandoned daemons are cancelled at the end of that timeout.
        """
        self.end()
        # The timeout of abandoned daemons begins now, because they have exceeded their own limits already.
        deadline = asyncio.get_running_loop().time() + EXIT_TIMEOUT
        for daemon in list(self._active):
            daemon.stop(DaemonStoppingReason.OPERATOR_EXITING)
        if self._active:
            self._ended = asyncio.get_running_loop().create_future()
            await self._ended
        tasks = [daemon.task for daemon in self._abandoned if daemon.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=max(0, deadline - asyncio.get_running_loop().time()))
        for task in tasks:
            task.cancel()


class _BeforeEdit(NamedTuple):
    """What was known before an edit; it is needed to undo the edit if it turns out to be the operator's own patch."""

    body: Mapping[str, Any]
    essence: BodyEssence | None
    changed_at: float
    last_edit: int
    number: int
    """The number of this edit."""
    result: BodyEssence | None
    """The essence after it."""
    waiting: Sequence[Daemon]
    """The timers that have waited for an edit."""


class ObjectDaemons:
    """The daemons and timers of one object, with the body that they share."""

    __slots__ = (
        '_before_edit',
        '_in_flight',
        'body',
        'changed_at',
        'edits',
        'essence',
        'gone',
        'identity',
        'known',
        'last_edit',
        'logger',
        'record',
        'seen_at',
        'spawner',
        'packed',
        'patches',
        'version',
    )

    def __init__(self, spawner: 'Spawner', record: Any, raw: RawBody) -> None:
        self.spawner = spawner
        self.record = record
        self.packed = PackedObject(spawner.background.parsed_cache, raw)
        """The newest known state of the object."""
        self.body = Body.living_in(self.packed)
        metadata = raw['metadata']
        # Why the strings of the record? Sharing them, instead of equal strings from the body, saves memory.
        self.identity = Identity(metadata.get('uid') and record.uid, record.name, record.namespace)
        self.version = metadata.get('resourceVersion')
        self.seen_at = time.monotonic()
        """When that version was received. The response to any later request is newer, even if its version is lower."""
        self.logger = ObjectLogger(body=self.body, settings=spawner.settings)
        self.known: dict[SpawningHandler, Daemon | None] = {}
        """The daemons that run or wait for their next run; ``None`` for those that have ended and never run again."""
        self.gone = False
        """Whether the object does not exist in the cluster any more, so that its daemons need no further requests."""
        self.changed_at = asyncio.get_running_loop().time()
        """When another client has changed the object, or when it was first seen; by the clock of the loop."""
        self.edits = self.last_edit = 0
        """
        How many edits by other clients were seen, and the number of the last one that has not turned out to be a patch
        of the operator.
        """
        self.patches = 0
        """How many patches of the daemons themselves were applied to the object."""
        # Built only for timers with `idle`, as it is built again for each event.
        self.essence: BodyEssence | None = spawner.essence_of(self.body) if spawner.idling else None
        self._in_flight = 0  # how many patches of the operator have no response yet
        # What was known before the first edit while a patch was in flight: the edit can be the patch.
        self._before_edit: _BeforeEdit | None = None

    def __iter__(self) -> Iterator[Daemon]:
        # Iterate over a copy: a daemon that does not run right now is removed at once when it is signalled to stop.
        return iter([daemon for daemon in self.known.values() if daemon is not None])

    @property
    def alive(self) -> bool:
        """True if any of the daemons runs or waits for its next run."""
        return any(daemon is not None for daemon in self.known.values())

    @property
    def holding(self) -> bool:
        """True if the finalizer must stay on the object because of its daemons."""
        return any(not daemon.abandoned for daemon in self)

    @property
    def stopping(self) -> list[Daemon]:
        """The daemons that are signalled to stop, but have not ended yet."""
        return [daemon for daemon in self if daemon.stopper.is_set() and not daemon.abandoned]

    def spawn(self, handler: SpawningHandler) -> None:
        """Start a daemon for the handler."""
        daemon = self.known[self.spawner.keys[handler]] = Daemon(handler, self)
        daemon.start()

    def stop(self, reason: DaemonStoppingReason) -> None:
        """Signal all daemons to stop."""
        for daemon in self:
            daemon.stop(reason)

    def forget(self) -> None:
        """Stop all daemons: the object does not exist any more, even if daemons have requested a finalizer."""
        self.gone = True
        self.known = {handler: daemon for handler, daemon in self.known.items() if daemon is not None}
        self.stop(DaemonStoppingReason.RESOURCE_DELETED)
        self._detach_if_ended()

    def surrender(self) -> None:
        """Stop all daemons: another operator handles the object soon, and starts them there."""
        self.gone = True  # so daemons that end do not requeue the object
        self.known = {handler: daemon for handler, daemon in self.known.items() if daemon is not None}
        self.stop(DaemonStoppingReason.OPERATOR_PAUSING)
        self._detach_if_ended()

    def reappear(self) -> None:
        """Called when the object exists again while its daemons are still stopping: they will be started anew."""
        self.gone = False

    def move(self, spawner: 'Spawner', *, redefined: bool) -> None:
        """
        Called when another spawner takes over the object.

        A daemon continues if the new spawner has its handler, too. Other daemons are stopped; their replacements start
        when they have ended.

        Args:
            spawner: the new spawner.
            redefined: whether the resource has changed. If so, all daemons are stopped, as they know the old one.
        """
        self.spawner = spawner
        known, self.known = self.known, {}
        for handler, daemon in known.items():
            key = spawner.find_key(handler)
            if key is not None or daemon is not None:
                self.known[key or handler] = daemon
        if spawner.idling and self.essence is None:
            # The error is not raised, because it must not stop the takeover of other objects. Without the essence, the
            # next state counts as a change, so idle timers only wait longer.
            with contextlib.suppress(StorageError):
                self.essence = spawner.essence_of(self.body)
        gone, self.gone = self.gone, True  # the object is listed again, so ending daemons need not requeue it
        for daemon in self:
            if redefined or daemon.handler not in spawner.keys:
                daemon.stop(DaemonStoppingReason.RESOURCE_DELETED)
        self.gone = gone
        if self.known:
            self.record.attach_daemons(self)
        else:
            self.record.detach_daemons()

    def update(self, raw: RawBody, patch: Patch | None = None, *, asked_at: float | None = None) -> bool:
        """
        Replace the body that the daemons see with this state, unless a newer state is known.

        Args:
            raw: the state.
            patch: the operator's own patch, if this is the response to it. Only changes that are not made by the patch
                count as changes by other clients.
            asked_at: when the state was requested from the API, by the monotonic clock. If that was after the known
                state was received, this one is newer even with a lower version: versions go back when the storage of
                a cluster is restored from a backup.

        Returns:
            Whether the body is replaced.
        """
        version = raw['metadata'].get('resourceVersion')
        if not version:
            return False  # it is not a full body, but the identity of a deleted object
        if is_older_version(version, self.version) and (asked_at is None or asked_at <= self.seen_at):
            if patch is not None and self._before_edit is not None:
                self._reconsider(self._before_edit, raw, patch)
            return False
        # Called before the body is replaced, as the effect of the patch is predicted from the former body.
        edited = self.spawner.idling and self._detect_edit(raw, patch)
        self.packed[0], self.version, self.seen_at = raw, version, time.monotonic()
        if edited or self.spawner.typed:
            for daemon in self:
                daemon.resume(edited=edited)
        return True

    def _detect_edit(self, raw: RawBody, patch: Patch | None) -> bool:
        """Return whether another client has changed the object; note the essence of the new state."""
        former, before = self.essence, self._before_edit
        if not self._in_flight:
            self._before_edit = None
        try:
            essence = self.essence = self.spawner.essence_of(Body(raw))
            # The event of a patch can precede its response, and then it looks as if it was of another client.
            if patch is not None and before is not None and self._undo_if_own(before, essence, patch):
                return False
            edited = self._is_edited(self.body, former, essence, patch)
        except StorageError:  # the processing of the object reports it; a false change only delays idle timers
            edited = True
        if edited:
            if patch is None and before is None and self._in_flight:
                waiting = [daemon for daemon in self if daemon.waits_for_edit]
                self._before_edit = _BeforeEdit(
                    self.packed[0], former, self.changed_at, self.last_edit, self.edits + 1, self.essence, waiting
                )
            self.changed_at = asyncio.get_running_loop().time()
            self.edits += 1
            self.last_edit = self.edits
        return edited

    def _reconsider(self, before: _BeforeEdit, raw: RawBody, patch: Patch) -> None:
        """Undo the edit if it was the patch, although newer states came before its response, but no newer edits."""
        if self.last_edit == before.number:
            with contextlib.suppress(StorageError):
                essence = self.spawner.essence_of(Body(raw))
                if is_same(essence, before.result):
                    self._undo_if_own(before, essence, patch)

    def _undo_if_own(self, before: _BeforeEdit, essence: BodyEssence, patch: Patch) -> bool:
        """Undo the edit if the patch explains all that has changed; return whether it does. Raises StorageError."""
        if self._is_edited(Body(before.body), before.essence, essence, patch):
            return False
        # If another client has edited the same fields in that moment, that edit is undone, too: it looks the same.
        self._before_edit = None
        self.changed_at, self.last_edit = before.changed_at, before.last_edit
        for daemon in before.waiting:
            daemon.suspend()
        return True

    def _is_edited(self, body: Body, former: BodyEssence | None, essence: BodyEssence, patch: Patch | None) -> bool:
        """Check whether the object was changed by more than the patch. Raises StorageError."""
        expected = former if patch is None else self.spawner.predict(body, patch)
        if is_same(essence, expected):
            return False
        if patch is None or former is None or expected is None:
            return True
        # What the API server makes of the patch is no edit, e.g. if it adds defaults or drops unknown fields.
        return is_edited(expected, essence, patch, find_written(former, expected, patch))

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        """Note that a patch of the operator is in flight: the edit of an event in this time can be that patch."""
        if not self._in_flight:
            self._before_edit = None
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            if self._before_edit is not None:
                asyncio.get_running_loop().call_soon(self._forget_edit)  # when the response is taken, if there is one

    def _forget_edit(self) -> None:
        if not self._in_flight:
            self._before_edit = None

    @property
    def is_patching(self) -> bool:
        """Return whether a patch of the operator is in flight."""
        return self._in_flight > 0

    def note_patch(self) -> None:
        """Called when a patch of one of the daemons was applied."""
        self.patches += 1

    def restore(self, text: str | bytes, version: str | None) -> str | None:
        """
        Undo the mutations of the object by its handlers.

        Args:
            text: the serialized object before the run of the handler.
            version: the version of the object before the run. If the object has another one now, a newer state has
                replaced the mutated one.

        Returns:
            An explanation of the mutations for the log; ``None`` if there were none.
        """
        # The texts are compared first: the objects are parsed and compared only if a handler has changed something.
        if version != self.version or self.packed.text == text:
            return None
        changed = self.packed[0]
        self.packed.text = text
        original = self.packed[0]
        return None if is_same(original, changed) else explain_changes(original, changed)

    def remove(self, daemon: Daemon, *, for_good: bool) -> None:
        """Called when the daemon has ended; ``for_good`` if it must never be started again for this object."""
        key = next(key for key, known in self.known.items() if known is daemon)
        if for_good:
            self.known[key] = None
        else:
            del self.known[key]
        self.notify(daemon)
        self._detach_if_ended()

    def _detach_if_ended(self) -> None:
        """Break the reference cycle with the record when all daemons have ended, to free the memory without the GC."""
        if self.gone and not self.alive:
            self.record.detach_daemons()

    def notify(self, daemon: Daemon) -> None:
        """Request a worker after a daemon has ended: to remove the finalizer, or to start another daemon."""
        background = self.spawner.background
        if self.gone or background.closing or background.paused:
            return
        if not self.holding or self._is_replaceable(daemon):
            self.spawner.host.wake(self.record)

    def _is_replaceable(self, daemon: Daemon) -> bool:
        reason = daemon.stopper.reason
        if reason is None or DaemonStoppingReason.DONE in reason:
            return False
        # A DELETED event can also mean that the object did not match the selector of the watch; now it matches again.
        return bool(reason & _RESPAWNABLE) or self.body.metadata.get('deletionTimestamp') is None


class SpawningPlan(NamedTuple):
    """The daemons to be started and stopped for an object."""

    missing: Sequence[SpawningHandler]
    """The handlers whose daemons must be started."""
    excess: Sequence[Daemon]
    """The daemons that must be stopped."""
    holding: bool
    """Whether the finalizer must be on the object, because of daemons that run or must be started."""
    failures: Mapping[ResourceHandler, filters.FilterError] = {}
    """The handlers whose filters have failed: their running daemons continue, and no new ones are started."""


class Spawner:
    """Starts and stops the daemons and timers of the objects of one resource."""

    def __init__(
        self,
        host: Host,
        decider: Decider,
        background: OperatorDaemons,
        context: OperatorContext,
    ) -> None:
        self.host = host
        self.table = table = decider.table
        self.background = background
        self.indices = context.indices
        self.settings = context.settings
        self.essence_of = decider.essences.of
        self.predict = decider.essences.predict
        self.idling = any(isinstance(handler, TimerHandler) and handler.idle is not None for handler in table.spawning)
        self.typed = any(handler.model is not None for handler in table.spawning)
        self.rules = context.make_rules(background.is_halted, is_cancelled=background.is_cancelled)
        self.rules_of_threads = self.rules._replace(find_executor=lambda: background.threads)
        self._reports = filters.FailureReports()
        self.keys: dict[SpawningHandler, SpawningHandler] = {}
        """For each handler, the first one with the same function and id: one daemon runs for all of them."""
        self._firsts: dict[tuple[str, int], SpawningHandler] = {}
        for handler in table.spawning:
            self.keys[handler] = self._firsts.setdefault((handler.id, id(handler.fn)), handler)
        self._finalizer = decider.finalizer
        self._retired = False
        # Most daemons have no filters. Then it is unnecessary to create a cause for each event.
        self._always: Sequence[SpawningHandler] | None = None  # the handlers without filters, if none has any
        if all(filters.is_unconditional(handler) for handler in table.spawning):
            self._always = list(filters.deduplicate(table.spawning))

    def revise(self, table: HandlerTable) -> None:
        """Replace the table of the resource by one with the same handlers."""
        self.table = table

    def retire(self) -> None:
        """Start and stop no more daemons: another spawner takes over the objects."""
        self._retired = True

    def find_key(self, handler: SpawningHandler) -> SpawningHandler | None:
        """Return the handler of this spawner with the same function and id, if there is one."""
        return self._firsts.get((handler.id, id(handler.fn)))

    def plan(self, record: Record, raw: RawBody) -> SpawningPlan:
        """Return which daemons must be started and stopped for the object in this state."""
        daemons = record.daemons
        if raw['metadata'].get('deletionTimestamp') is not None:
            # No daemon starts for an object that is being deleted, even if the finalizer of another controller holds it
            # long.
            excess = [] if daemons is None else [daemon for daemon in daemons if not daemon.stopper.is_set()]
            return SpawningPlan((), excess, holding=daemons is not None and daemons.holding)
        failures: filters.Failures = {}
        matching = self._match(record, raw, failures)
        if daemons is None:
            # With failed filters, it is unknown whether the finalizer is needed, so it is neither added nor removed.
            held = bool(failures) and self._finalizer in (raw['metadata'].get('finalizers') or ())
            return SpawningPlan(matching, (), holding=bool(matching) or held, failures=failures)
        keys = {self.keys[handler] for handler in (*matching, *failures) if isinstance(handler, SpawningHandler)}
        # `known` includes daemons that have ended by themselves: as documented, they are not started again for this
        # object.
        missing = [handler for handler in matching if self.keys[handler] not in daemons.known]
        excess = [
            daemon
            for key, daemon in daemons.known.items()
            if daemon is not None and key not in keys and not daemon.stopper.is_set()
        ]
        return SpawningPlan(missing, excess, holding=bool(missing) or daemons.holding, failures=failures)

    def _match(self, record: Record, raw: RawBody, failures: filters.Failures) -> Sequence[SpawningHandler]:
        if self._always is not None:
            return self._always
        cause = self._make_cause(record, raw)
        return list(filters.deduplicate(filters.sift(self.table.spawning, cause, filters.prematch, failures)))

    def _make_cause(self, record: Record, raw: RawBody) -> SpawningCause:
        body = Body(raw)
        return SpawningCause(
            logger=ObjectLogger(body=body, settings=self.settings),
            memo=self.host.get_memo(record),
            indices=self.indices,
            resource=self.table.resource,
            body=body,
            patch=Patch(body=body),
            selected=self.table.label_selector is not None,
        )

    async def adjust(self, record: Record, raw: RawBody) -> bool:
        """Start and stop the daemons of the object; return whether the finalizer must be on it."""
        plan = self.plan(record, raw)
        # This step has begun before the takeover. Daemons that it starts would belong to this spawner, which knows
        # neither the new handlers nor the new resource. So the next step of the object starts them.
        if self._retired:
            return plan.holding
        if plan.failures:
            self._reports.report(plan.failures, self._make_cause(record, raw))
        deleted = raw['metadata'].get('deletionTimestamp') is not None
        reason = DaemonStoppingReason.RESOURCE_DELETED if deleted else DaemonStoppingReason.FILTERS_MISMATCH
        for daemon in plan.excess:
            daemon.stop(reason)
        self._spawn(record, raw, plan.missing)
        daemons = record.daemons
        if daemons is None:
            return plan.holding
        if plan.missing:
            await asyncio.sleep(0)  # the functions of daemons begin before the handlers of the same event
        if deleted and daemons.stopping:
            await self._wait_instantly(daemons)
        if not daemons.known:
            record.detach_daemons()
            return bool(plan.missing)
        known = daemons.known  # including daemons that have ended at once
        return any(self.keys[handler] not in known for handler in plan.missing) or daemons.holding

    def _spawn(self, record: Record, raw: RawBody, missing: Sequence[SpawningHandler]) -> None:
        # When the operator resumes, it lists all objects, and the next plan will start these daemons.
        if self.background.is_halted():
            return
        held = self._finalizer in (raw['metadata'].get('finalizers') or ())
        for handler in missing:
            # Without the finalizer, the object could vanish before the daemon is stopped and has cleaned up.
            if held or not handler.requires_finalizer:
                daemons = record.daemons
                if daemons is None:
                    daemons = ObjectDaemons(self, record, raw)
                    record.attach_daemons(daemons)
                daemons.spawn(handler)

    async def _wait_instantly(self, daemons: ObjectDaemons) -> None:
        """Wait briefly for daemons that stop at once, so that the finalizer is removed in the same step."""
        settings = self.settings.background
        # Why iterations of the loop, not seconds? A function that only has to return ends within a few iterations,
        # without a delay.
        for _ in range(settings.instant_exit_zero_time_cycles or 0):
            if not daemons.stopping:
                return
            await asyncio.sleep(0)
        tasks = [daemon.task for daemon in daemons.stopping if daemon.task is not None]
        if settings.instant_exit_timeout is not None and tasks:
            await asyncio.wait(tasks, timeout=settings.instant_exit_timeout)
