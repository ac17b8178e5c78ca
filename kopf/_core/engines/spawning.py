"""
Which daemons and timers must run for an object, and the owner of all that run.

A `Spawner` looks at the objects of one resource: those that match get their daemons, those that do not match any more
lose them. It looks only when something has changed. The daemons of one object share one live body, which is replaced by
each newer state, wherever it comes from: the stream, or an answer to a patch. `OperatorDaemons` owns all daemons of an
operator, whatever their resource is: it stops them when the operator pauses or ends.
"""

import asyncio
import contextvars
import time
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
from kopf._core.actions.execution import Execution
from kopf._core.actions.loggers import ObjectLogger
from kopf._core.engines.daemon_threads import DaemonThreads
from kopf._core.engines.daemons import EXIT_TIMEOUT, Daemon
from kopf._core.engines.stoppers import DaemonStoppingReason, DeletionFlags
from kopf._core.intents import filters
from kopf._core.intents.causes import Identity, SpawningCause
from kopf._core.intents.decisions import Decider
from kopf._core.intents.handlers import ResourceHandler, SpawningHandler, TimerHandler
from kopf._core.intents.registries import HandlerTable
from kopf._core.intents.storage_errors import StorageError

_RESPAWNABLE = DaemonStoppingReason.FILTERS_MISMATCH | DaemonStoppingReason.OPERATOR_PAUSING


class Record(Protocol):
    """An object, as its host remembers it."""

    uid: str
    namespace: str | None
    name: str

    @property
    def daemons(self) -> 'ObjectDaemons | None':
        """The daemons and timers of the object, if there are any."""

    def attach_daemons(self, daemons: 'ObjectDaemons', /) -> None:
        """Called when the object has daemons or timers."""

    def detach_daemons(self) -> None:
        """Called when none of them is left."""


class Host(Protocol):
    """Who handles the objects of the resource otherwise, and talks to the API."""

    def get_memo(self, record: Any, /) -> Any:
        """Give the memo of the object."""

    async def send(self, record: Any, patch: Patch, /) -> None:
        """Apply a daemon's patch to the object, and show the daemons what has come of it."""

    def tell_of_changes(self, record: Any, explanation: str, keys: Collection[HandlerId], /) -> None:
        """Warn that these handlers have changed the object in place, which is undone."""

    def get_deletion(self, record: Any, /) -> ReasonedFlag[DaemonStoppingReason]:
        """Return the flag that is raised when the object is to be deleted."""

    def wake(self, record: Any, /) -> None:
        """Look at the object again: its daemons have ended."""

    def fail(self, error: Exception, /) -> None:
        """End the operator: nothing can be done without the API."""


class OperatorDaemons:
    """All the daemons and timers of an operator."""

    def __init__(self, settings: OperatorSettings) -> None:
        self.settings = settings
        self.threads = DaemonThreads(settings.background)
        self.context = contextvars.copy_context()
        """The context that all runs begin with: none of them sees what others have left."""
        self.coalesced_timers = CoalescedTimers(self.context)
        self.deletions = DeletionFlags(self.coalesced_timers)
        self.parsed_cache = ParsedCache()
        """The states of objects with daemons or timers that are in use now, and so are parsed."""
        self.paused = False
        self.closing = False
        self._is_overdue: Callable[[], bool] | None = None
        self._active: set[Daemon] = set()
        self._orphans: set[Daemon] = set()
        self._ended: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._active)

    def guard(self, is_overdue: Callable[[], bool]) -> None:
        """Ask this before any of them begins to run: whether the operator must pause, and has not been told so yet."""
        self._is_overdue = is_overdue

    @property
    def halted(self) -> bool:
        """Whether none of them is to begin now."""
        return self.paused or (self._is_overdue is not None and self._is_overdue())

    def add(self, daemon: Daemon) -> None:
        self._active.add(daemon)

    def discard(self, daemon: Daemon) -> None:
        """Know that it has ended, or is abandoned."""
        self._active.discard(daemon)
        (self._orphans.add if daemon.abandoned and daemon.task is not None else self._orphans.discard)(daemon)
        if not self._active and self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def pause(self) -> None:
        """Stop all of them, and start none, until resumed."""
        self.paused = True
        for daemon in list(self._active):
            daemon.stop(DaemonStoppingReason.OPERATOR_PAUSING)

    def resume(self) -> None:
        """Let them start again: each as soon as its object is looked at."""
        self.paused = False

    async def close(self) -> None:
        """
        Stop all of them; return when they have ended.

        It is bounded by their own back-offs and timeouts, and by those of the operator where there are none. Those that
        are abandoned by then, or have been before, are waited for only if there is time left.
        """
        self.closing = True
        deadline = asyncio.get_running_loop().time() + EXIT_TIMEOUT
        for daemon in list(self._active):
            daemon.stop(DaemonStoppingReason.OPERATOR_EXITING)
        if self._active:
            self._ended = asyncio.get_running_loop().create_future()
            await self._ended
        tasks = [daemon.task for daemon in self._orphans if daemon.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=max(0, deadline - asyncio.get_running_loop().time()))
        for task in tasks:
            task.cancel()


class ObjectDaemons:
    """The daemons and timers of one object, and the object as they see it."""

    __slots__ = (
        'body',
        'changed_at',
        'changes',
        'essence',
        'gone',
        'identity',
        'known',
        'logger',
        'record',
        'seen_at',
        'spawner',
        'packed',
        'version',
    )

    def __init__(self, spawner: 'Spawner', record: Any, raw: RawBody) -> None:
        self.spawner = spawner
        self.record = record
        self.packed = PackedObject(spawner.background.parsed_cache, raw)
        """The newest state known."""
        self.body = Body.living_in(self.packed)
        metadata = raw['metadata']
        # The same strings as in the record: there can be many of them.
        self.identity = Identity(metadata.get('uid') and record.uid, record.name, record.namespace)
        self.version = metadata.get('resourceVersion')
        self.seen_at = time.monotonic()
        """When that version was received: what the API is asked for later, is newer whatever its version is."""
        self.logger = ObjectLogger(body=self.body, settings=spawner.settings)
        self.known: dict[SpawningHandler, Daemon | None] = {}
        """Those that run, or wait for their time; ``None`` for those that have ended by themselves, for good."""
        self.gone = False
        """Nothing is to be done about the object any more."""
        self.changed_at = asyncio.get_running_loop().time()
        """When the object was changed by others, or was seen for the first time: on the clock of the loop."""
        self.changes = 0
        """How many times it was changed by others since then."""
        self.essence: BodyEssence | None = spawner.essence_of(self.body) if spawner.idling else None

    def __iter__(self) -> Iterator[Daemon]:
        return iter([daemon for daemon in self.known.values() if daemon is not None])

    @property
    def alive(self) -> bool:
        """Whether there are any that run, or wait for their time."""
        return any(daemon is not None for daemon in self.known.values())

    @property
    def holding(self) -> bool:
        """Whether the object must stay because of those that run."""
        return any(not daemon.abandoned for daemon in self)

    @property
    def stopping(self) -> list[Daemon]:
        """Those that are asked to stop, and have not ended yet."""
        return [daemon for daemon in self if daemon.stopper.is_set() and not daemon.abandoned]

    def spawn(self, handler: SpawningHandler) -> None:
        daemon = self.known[self.spawner.keys[handler]] = Daemon(handler, self)
        daemon.start()

    def stop(self, reason: DaemonStoppingReason) -> None:
        for daemon in self:
            daemon.stop(reason)

    def forget(self) -> None:
        """Know that the object is gone: whatever has been holding it."""
        self.gone = True
        self.known = {handler: daemon for handler, daemon in self.known.items() if daemon is not None}
        self.stop(DaemonStoppingReason.RESOURCE_DELETED)
        self._let_go()

    def return_(self) -> None:
        """Called when the object is there again while its daemons are still ending: they will be started anew."""
        self.gone = False

    def move(self, spawner: 'Spawner', *, redefined: bool) -> None:
        """
        Called when another spawner serves the object from now on.

        The daemons that it would start in the same way go on. The others are stopped, and what replaces them starts
        when they have ended. All of them are stopped if the resource is ``redefined``: they know it as it was.
        """
        self.spawner = spawner
        known, self.known = self.known, {}
        for handler, daemon in known.items():
            key = spawner.find_key(handler)
            if key is not None or daemon is not None:
                self.known[key or handler] = daemon
        if spawner.idling and self.essence is None:
            self.essence = spawner.essence_of(self.body)
        gone, self.gone = self.gone, True  # those that end at once wake nobody up: the object is listed anew
        for daemon in self:
            if redefined or daemon.handler not in spawner.keys:
                daemon.stop(DaemonStoppingReason.RESOURCE_DELETED)
        self.gone = gone
        if self.known:
            self.record.attach_daemons(self)
        else:
            self.record.detach_daemons()

    def renew(self, raw: RawBody, patch: Patch | None = None, *, asked_at: float | None = None) -> bool:
        """
        Show the object in this state, unless a newer one is known; tell if it is shown.

        A state that has come of our own ``patch`` is no change by others, except for what the patch does not explain.
        A state that the API was asked for after the known one was received is newer, even if its version is lower: the
        versions of a cluster go back when its storage is restored from a backup.
        """
        version = raw['metadata'].get('resourceVersion')
        if not version or (is_older_version(version, self.version) and (asked_at is None or asked_at <= self.seen_at)):
            return False  # without a version, nothing but the identity of a deleted object is known
        changed = self.spawner.idling and self._notice_edit(raw, patch)
        self.packed[0], self.version, self.seen_at = raw, version, time.monotonic()
        if changed:
            self.changed_at = asyncio.get_running_loop().time()
            self.changes += 1
            for daemon in self:
                daemon.resume()
        return True

    def _notice_edit(self, raw: RawBody, patch: Patch | None) -> bool:
        try:
            expected = self.essence if patch is None else self.spawner.predict(self.body, patch)
            essence = self.spawner.essence_of(Body(raw))
        except StorageError:  # it is reported where the object is handled; until then, timers wait rather longer
            return True
        changed, self.essence = not is_same(essence, expected), essence
        return changed

    def undo(self, text: str | bytes, version: str | None) -> str | None:
        """
        Show the state as it was with this text, if it is still that version; explain what was changed in place, if so.
        """
        if version != self.version or self.packed.text == text:
            return None
        changed = self.packed[0]
        self.packed.text = text
        original = self.packed[0]
        return None if is_same(original, changed) else explain_changes(original, changed)

    def remove(self, daemon: Daemon, *, for_good: bool) -> None:
        key = next(key for key, known in self.known.items() if known is daemon)
        if for_good:
            self.known[key] = None
        else:
            del self.known[key]
        self.notify(daemon)
        self._let_go()

    def _let_go(self) -> None:
        """Break what refers to each other when it is over: objects come and go, and nobody else would free it soon."""
        if self.gone and not self.alive:
            self.record.detach_daemons()

    def notify(self, daemon: Daemon) -> None:
        """Let the object be looked at, as a daemon does not hold it any more: it can be freed, or get a new daemon."""
        background = self.spawner.background
        if self.gone or background.closing or background.paused:
            return
        if not self.holding or self._is_replaceable(daemon):
            self.spawner.host.wake(self.record)

    def _is_replaceable(self, daemon: Daemon) -> bool:
        reason = daemon.stopper.reason
        if reason is None or DaemonStoppingReason.DONE in reason:
            return False
        # What was deleted can be there again: it had only left the selection of its watch.
        return bool(reason & _RESPAWNABLE) or self.body.metadata.get('deletionTimestamp') is None


class Survey(NamedTuple):
    """What there is to do about the daemons of an object."""

    missing: Sequence[SpawningHandler]
    excess: Sequence[Daemon]
    holding: bool
    """Whether the object must stay: because of those that run, or of those that must run."""
    failures: Mapping[ResourceHandler, filters.FilterError] = {}
    """Those of which it is unknown, as their filters fail: what runs goes on, and what does not is not started."""


class Spawner:
    """Starts and stops the daemons and timers of the objects of one resource."""

    def __init__(
        self,
        host: Host,
        table: HandlerTable,
        decider: Decider,
        background: OperatorDaemons,
        indices: Mapping[str, Any],
    ) -> None:
        self.host = host
        self.table = table
        self.background = background
        self.indices = indices
        self.settings = settings = background.settings
        self.essence_of = decider.essences.of
        self.predict = decider.essences.predict
        self.idling = any(isinstance(handler, TimerHandler) and handler.idle is not None for handler in table.spawning)
        self.rules = Execution(executor=settings.execution.executor, default_backoff=settings.execution.default_backoff)
        self.rules_of_threads = self.rules._replace(executor=background.threads)
        self._reports = filters.FailureReports()
        self.keys: dict[SpawningHandler, SpawningHandler] = {}
        """For each handler, the first one of the same function and id: they are one, whichever of them matches."""
        self._firsts: dict[tuple[str, int], SpawningHandler] = {}
        for handler in table.spawning:
            self.keys[handler] = self._firsts.setdefault((handler.id, id(handler.fn)), handler)
        self._finalizer = decider.finalizer
        self._always: Sequence[SpawningHandler] | None = None  # those for all objects, if all are
        if all(filters.is_unconditional(handler) for handler in table.spawning):
            self._always = list(filters.deduplicate(table.spawning))

    def revise(self, table: HandlerTable) -> None:
        """Go on with the resource as it is defined now, with the same handlers."""
        self.table = table

    def find_key(self, handler: SpawningHandler) -> SpawningHandler | None:
        """Return the handler that is the same function under the same id as one of another spawner, if there is any."""
        return self._firsts.get((handler.id, id(handler.fn)))

    def survey(self, record: Record, raw: RawBody) -> Survey:
        """Look what there is to do, and do nothing."""
        daemons = record.daemons
        if raw['metadata'].get('deletionTimestamp') is not None:
            excess = [] if daemons is None else [daemon for daemon in daemons if not daemon.stopper.is_set()]
            return Survey((), excess, holding=daemons is not None and daemons.holding)
        failures: filters.Failures = {}
        matching = self._match(record, raw, failures)
        if daemons is None:
            # Whether the finalizer is needed is unknown, so it stays as it is.
            held = bool(failures) and self._finalizer in (raw['metadata'].get('finalizers') or ())
            return Survey(matching, (), holding=bool(matching) or held, failures=failures)
        keys = {self.keys[handler] for handler in (*matching, *failures) if isinstance(handler, SpawningHandler)}
        missing = [handler for handler in matching if self.keys[handler] not in daemons.known]
        excess = [
            daemon
            for key, daemon in daemons.known.items()
            if daemon is not None and key not in keys and not daemon.stopper.is_set()
        ]
        return Survey(missing, excess, holding=bool(missing) or daemons.holding, failures=failures)

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
        """Start what is missing, and stop what is in excess; tell if the object must stay."""
        survey = self.survey(record, raw)
        if survey.failures:
            self._reports.report(survey.failures, self._make_cause(record, raw))
        deleted = raw['metadata'].get('deletionTimestamp') is not None
        reason = DaemonStoppingReason.RESOURCE_DELETED if deleted else DaemonStoppingReason.FILTERS_MISMATCH
        for daemon in survey.excess:
            daemon.stop(reason)
        self._spawn(record, raw, survey.missing)
        daemons = record.daemons
        if daemons is None:
            return survey.holding
        if survey.missing:
            await asyncio.sleep(0)  # the daemons begin before the handlers of the same state
        if deleted and daemons.stopping:
            await self._wait_instantly(daemons)
        if not daemons.known:
            record.detach_daemons()
            return bool(survey.missing)
        known = daemons.known  # also those that have ended at once
        return any(self.keys[handler] not in known for handler in survey.missing) or daemons.holding

    def _spawn(self, record: Record, raw: RawBody, missing: Sequence[SpawningHandler]) -> None:
        if self.background.halted or self.background.closing:
            return
        held = self._finalizer in (raw['metadata'].get('finalizers') or ())
        for handler in missing:
            if held or not handler.requires_finalizer:
                daemons = record.daemons
                if daemons is None:
                    daemons = ObjectDaemons(self, record, raw)
                    record.attach_daemons(daemons)
                daemons.spawn(handler)

    async def _wait_instantly(self, daemons: ObjectDaemons) -> None:
        """Give a chance to those that end at once: then, the object is freed in one step."""
        settings = self.settings.background
        for _ in range(settings.instant_exit_zero_time_cycles or 0):
            if not daemons.stopping:
                return
            await asyncio.sleep(0)
        tasks = [daemon.task for daemon in daemons.stopping if daemon.task is not None]
        if settings.instant_exit_timeout is not None and tasks:
            await asyncio.wait(tasks, timeout=settings.instant_exit_timeout)
