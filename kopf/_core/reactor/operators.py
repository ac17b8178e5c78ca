"""
An operator: the owner of all that lives while it runs, from its startup handlers to its cleanup handlers.

It opens the API client, the poster of events, the watches and the workers, and closes all of them, in reverse order.
Every task has a parent that waits for it: a failure of any ends the operator, with the cause, after the cleanup.
"""
import asyncio
import contextlib
import copy
import dataclasses
import itertools
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kopf._cogs.aiokits.flags import Flag, raise_flag, wait_flag
from kopf._cogs.aiokits.loops import end
from kopf._cogs.clients import errors, logins
from kopf._cogs.clients.api import ApiClient
from kopf._cogs.clients.discovery import discover
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.helpers.versions import version
from kopf._cogs.structs.bodies import RawEvent
from kopf._cogs.structs.credentials import LoginError, Vault
from kopf._cogs.structs.ephemera import Memo
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.references import (
    CRDS,
    NAMESPACES,
    PEERING_GROUPS,
    Namespace,
    NamespacePattern,
    Resource,
    match_namespace,
    select_specific_namespaces,
)
from kopf._core.actions.execution import ErrorsMode
from kopf._core.actions.lifecycles import LifeCycleFn, get_default_lifecycle
from kopf._core.engines import activities
from kopf._core.engines.indexing import OperatorIndexers
from kopf._core.engines.posting import Poster
from kopf._core.intents.causes import Activity
from kopf._core.intents.handlers import ActivityHandler
from kopf._core.intents.registries import HandlerTable, OperatorRegistry, get_default_registry
from kopf._core.reactor.intake import Indexation, Intake
from kopf._core.reactor.inventory import ObjectRecord
from kopf._core.reactor.observation import Complaints, Definitions, get_groups, resolve_tables
from kopf._core.reactor.peerings import Peerings
from kopf._core.reactor.processing import Processor
from kopf._core.reactor.watches import EventSink, ResourceWatch
from kopf._core.reactor.workforce import Workforce

if TYPE_CHECKING:
    from kopf._core.engines import probing
    from kopf._core.reactor.admissions import Admission

logger = logging.getLogger(__name__)

Scope = tuple[Resource, Namespace]
Command = Callable[
    [ApiClient, OperatorSettings, Collection[Resource], Collection[NamespacePattern]], Awaitable[None]]
"""What to do once instead of serving: with the resources that there are, in the namespaces that are asked for."""


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class OperatorOptions:
    """What an operator is started with; see `kopf.operator`."""
    lifecycle: LifeCycleFn | None = None
    registry: OperatorRegistry | None = None
    settings: OperatorSettings | None = None
    memo: Any = None
    indexers: OperatorIndexers | None = None
    vault: Vault | None = None
    clusterwide: bool = False
    namespaces: Collection[str | re.Pattern[str]] = ()
    stop_flag: Flag | None = None
    ready_flag: Flag | None = None
    identity: str | None = None
    standalone: bool | None = None
    priority: int | None = None
    peering_name: str | None = None
    liveness_endpoint: str | None = None
    command: Command | None = None


STARTUP_PATIENCE = 2.0
"""For how long startup handlers may take to end when the operator is stopped (in seconds)."""

SETTLING_DELAYS = (0.2, 0.5, 1, 2, 5, 10, 20, 30)
"""How soon to look again while the API server is known to serve something else than it tells (in seconds)."""


class Operator:
    """One operator in one event loop."""

    def __init__(self, options: OperatorOptions) -> None:
        self.options = options
        self.registry = options.registry if options.registry is not None else get_default_registry()
        self.settings = options.settings if options.settings is not None else OperatorSettings()
        self.memo = options.memo if options.memo is not None else Memo()
        self.lifecycle = options.lifecycle if options.lifecycle is not None else get_default_lifecycle()
        self.vault = options.vault if options.vault is not None else Vault()
        self.indexers = options.indexers if options.indexers is not None else OperatorIndexers()
        self.indexers.ensure(self.registry.indexing)  # empty ones are there for the startup handlers too
        self._stopping = asyncio.Event()
        self._logged_in = False
        self._adopt_options()

    def _adopt_options(self) -> None:
        """Let the startup handlers see what the operator is told from outside, and change it."""
        options, settings = self.options, self.settings.peering
        settings.clusterwide = not options.namespaces
        if options.standalone is not None:
            settings.standalone = options.standalone
        if options.priority is not None:
            settings.priority = options.priority
        if options.peering_name is not None:
            settings.name, settings.mandatory = options.peering_name, True

    def stop(self) -> None:
        """Let the operator end, with its cleanup."""
        self._stopping.set()

    async def run(self) -> None:
        """Run until stopped; raise what makes it impossible to go on."""
        logger.debug("Starting Kopf %s.", version)
        flag = asyncio.create_task(self._wait_for_flag(), name='stop-flag')
        try:
            if await self._unless_stopped(self._start_up(), flag, patience=STARTUP_PATIENCE):
                try:
                    await self._unless_stopped(self._serve(), flag)
                finally:
                    await self._clean_up()
        finally:
            flag.cancel()
            await asyncio.wait({flag})

    async def _wait_for_flag(self) -> None:
        if self.options.stop_flag is None:
            await asyncio.Event().wait()
        else:
            await wait_flag(self.options.stop_flag)
            logger.info("Stop-flag is raised. Operator is stopping.")
            self.stop()

    async def _unless_stopped(
            self, coro: Coroutine[None, None, None], flag: asyncio.Task[None], *, patience: float | None = None,
    ) -> bool:
        """
        Run the coroutine until it ends or the operator is stopped; tell if it has ended by itself.

        When it is stopped, it has as much time as it takes, or only so many seconds as there is ``patience``.
        """
        task = asyncio.create_task(coro)
        stopping = asyncio.create_task(self._stopping.wait(), name='stopping')
        try:
            await asyncio.wait({task, stopping, flag}, return_when=asyncio.FIRST_COMPLETED)
            finished = task.done()
        finally:
            await end({task, stopping}, timeout=patience, what="The startup handlers")
        for ended in (task, flag):
            if ended.done() and not ended.cancelled() and (error := ended.exception()) is not None:
                raise unwrap_error(error)
        return finished

    # Activities.

    async def _start_up(self) -> None:
        outcomes = await self._run_activity(Activity.STARTUP)
        activities.check_outcomes(Activity.STARTUP, outcomes)

    async def _clean_up(self) -> None:
        outcomes = await self._run_activity(Activity.CLEANUP)
        activities.check_outcomes(Activity.CLEANUP, outcomes)

    async def _log_in(self) -> Mapping[HandlerId, activities.Credentials]:
        title = "Re-authentication" if self._logged_in else "Initial authentication"
        log = logging.getLogger('kopf.activities.authentication')
        log.info("%s has been initiated.", title)
        handlers = self.registry.activities.get_handlers(Activity.AUTHENTICATION) or get_fallback_logins()
        found = activities.get_credentials(await self._run_activity(Activity.AUTHENTICATION, handlers))
        if found:
            log.info("%s has finished.", title)
            self._logged_in = True
        return found

    async def _run_activity(self, activity: Activity, handlers: list[ActivityHandler] | None = None) -> Any:
        return await activities.run_activity(
            activity, self.registry.activities.get_handlers(activity) if handlers is None else handlers,
            settings=self.settings, memo=self.memo, indices=self.indexers.indices)

    # Serving.

    async def _serve(self) -> None:
        """Serve the resources until cancelled."""
        if self.vault.authenticate is None:
            self.vault.authenticate = self._log_in
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self.vault.close)
            client = await stack.enter_async_context(ApiClient(self.vault, self.settings))
            await stack.enter_async_context(Poster(client, self.settings))
            indexation = Indexation()
            workforce = Workforce(self.settings, indexation)
            if self.options.command is not None:
                found = await discover(client, PEERING_GROUPS)
                await self.options.command(client, self.settings, found.resources, self.options.namespaces)
                return
            tasks = asyncio.TaskGroup()
            orchestrator = Orchestrator(self, client, workforce, indexation, tasks)
            stack.push_async_callback(orchestrator.peerings.leave)
            stack.push_async_callback(workforce.close)
            stack.push_async_callback(indexation.close)
            async with tasks:
                if self.options.liveness_endpoint is not None:
                    await stack.enter_async_context(self._make_probe_server(orchestrator))
                tasks.create_task(self._watch_failures(workforce.failure), name='workers')
                tasks.create_task(self._watch_failures(indexation.failure), name='indexing')
                if orchestrator.admission is not None:
                    tasks.create_task(orchestrator.admission.run(), name='admission')
                await orchestrator.start()
                if self.options.ready_flag is not None:
                    await raise_flag(self.options.ready_flag)

    def _make_probe_server(self, condition: 'probing.Condition') -> 'probing.ProbeServer':
        from kopf._core.engines import probing
        probes = probing.Probes(
            self.registry.activities.get_handlers(Activity.PROBE),
            settings=self.settings, memo=self.memo, indices=self.indexers.indices)
        endpoint = probing.Endpoint.parse(self.options.liveness_endpoint or '')
        return probing.ProbeServer(endpoint, probes=probes, condition=condition, settings=self.settings)

    async def _watch_failures(self, failure: asyncio.Future[None]) -> None:
        await failure

    def make_processor(self, client: ApiClient, table: HandlerTable, workforce: Workforce) -> Processor:
        return Processor(
            client=client, settings=self.settings, table=table, workforce=workforce,
            lifecycle=self.lifecycle, memo=self.memo, indices=self.indexers.indices)

    def make_intake(self, processor: Processor, indexation: Indexation) -> Intake:
        return Intake(processor, table=processor.table, indexers=self.indexers, settings=self.settings,
                      memo=self.memo, indexation=indexation)


class Orchestrator:
    """Starts and stops the watches, as resources and namespaces come and go."""

    def __init__(
            self, operator: Operator, client: ApiClient, workforce: Workforce, indexation: Indexation,
            tasks: asyncio.TaskGroup,
    ) -> None:
        self._operator = operator
        self._client = client
        self._workforce = workforce
        self._indexation = indexation
        self._tasks = tasks
        self.peerings = Peerings(
            client, operator.settings, identity=operator.options.identity, tasks=tasks, changed=self._adjust)
        self.admission = self._make_admission() if operator.registry.webhooks else None
        self._paused = False
        self._tables: dict[Resource, HandlerTable] = {}
        self._namespaces: set[Namespace] = set()
        self._watches: dict[Scope, tuple[ResourceWatch, EventSink, asyncio.Task[None]]] = {}
        self._complaints = Complaints()
        self._resources: Collection[Resource] | None = None
        self._served: dict[Scope, HandlerTable] = {}
        self._definitions = Definitions()
        self._changed = asyncio.Event()

    def _make_admission(self) -> 'Admission':
        from kopf._core.reactor.admissions import Admission
        operator = self._operator
        return Admission(
            client=self._client, settings=operator.settings, registry=operator.registry, vault=operator.vault,
            memo=operator.memo, indices=operator.indexers.indices, memos=self.get_memo)

    async def start(self) -> None:
        """Begin to serve what is there, and to observe what changes."""
        options, settings = self._operator.options, self._operator.settings
        patterns = options.namespaces
        self._namespaces = {None} if not patterns else set(select_specific_namespaces(patterns))
        settled = await self._discover()
        resources = self._resources or ()
        if settings.scanning.disabled:
            return
        if not settled:
            self._changed.set()
        if self._dynamic:
            if namespaces := NAMESPACES.select(resources):
                self._observe(namespaces, NamespaceSink(self, patterns, self._indexation))
        self._observe(CRDS.select(resources), DefinitionsSink(self, self._definitions))
        self._tasks.create_task(self._rediscover(), name='discovery')

    @property
    def _dynamic(self) -> bool:
        """Whether there are patterns, so that the namespaces have to be observed."""
        return any(not select_specific_namespaces([pattern]) for pattern in self._operator.options.namespaces)

    def _observe(self, resources: Collection[Resource], sink: EventSink) -> None:
        for resource in resources:
            watch = ResourceWatch(self._client, self._operator.settings, resource, None, sink)
            self._tasks.create_task(watch.run(), name=f'observer of {watch}')

    async def _discover(self) -> bool:
        """Find out what is to be served, and serve it; tell if it is certain that nothing is missing."""
        registry = self._operator.registry
        groups = get_groups(registry)
        if groups is not None:
            groups |= {'apiextensions.k8s.io', *(PEERING_GROUPS if self.peerings.enabled else ())}
            if self._dynamic:
                groups.add('')  # that of namespaces
        discovery = await discover(self._client, groups)
        hidden = {resource for resource in self._resources or () if resource.group in discovery.failed_groups}
        self._resources = discovery.resources | hidden  # the group is down, but what it serves is still there
        self._tables, complaints = resolve_tables(registry, self._resources)
        complaints.log(self._complaints)
        self._complaints = complaints
        self.peerings.rediscover(self._resources)
        unresolved = complaints.unresolved
        if self.admission is not None:
            unresolved |= self.admission.rediscover(self._resources)
        self._adjust()
        if discovery.failed_groups and (hidden or unresolved):
            return False
        return self._definitions.are_reflected(self._resources, groups)

    def get_memo(self, resource: Resource, metadata: Mapping[str, Any]) -> Any:
        """Give the memo of the object, or ``None`` if it is not seen in any watch."""
        for namespace in {metadata.get('namespace'), None}:
            watch, _, _ = self._watches.get((resource, namespace), (None, None, None))
            record = None if watch is None else watch.records.get(metadata.get('uid') or '')
            if record is not None:
                return record.get_memo(lambda: copy.copy(self._operator.memo))
        return None

    def find_failures(self) -> Iterator[str]:
        """Tell what has been failing for long."""
        limit = self._operator.settings.probing.failing_watch_limit
        for watch, _, _ in list(self._watches.values()):
            if limit is not None and watch.failing_for > limit:
                yield f"The watch-stream for {watch} has been failing for {watch.failing_for:.0f} s: {watch.failure}"

    def find_delays(self) -> Iterator[str]:
        """Tell what has not begun yet. Those who are paused are ready to take over."""
        if self._resources is None:
            yield "The resources are not discovered yet."
        if not self._paused:
            for watch, _, _ in list(self._watches.values()):
                if not watch.complete:
                    yield f"The list of {watch} is not complete yet{f': {watch.failure}' if watch.failure else '.'}"
            if not self._indexation.is_complete:
                yield "The indices are not complete yet."

    async def _rediscover(self) -> None:
        """Find out anew what is served, each time when something has changed, and until it is certain."""
        delays: Iterator[float] | None = None
        while True:
            try:
                async with asyncio.timeout(None if delays is None else next(delays)):
                    await self._changed.wait()
            except TimeoutError:
                pass
            else:
                delays = itertools.chain(SETTLING_DELAYS, itertools.repeat(SETTLING_DELAYS[-1]))
                await asyncio.sleep(0.1)  # changes come in bunches
            self._changed.clear()
            try:
                if await self._discover():
                    delays = None
            except errors.APIError as error:
                logger.warning("The resources could not be discovered; trying again: %s", error)

    def note_definition(self) -> None:
        """Know that a definition of a resource has changed."""
        self._changed.set()

    def compare_definitions(self) -> None:
        """Know that all definitions are listed: some can be newer than what was discovered before."""
        if not self._definitions.are_reflected(self._resources or (), None):
            self._changed.set()

    def add_namespace(self, name: str) -> None:
        self._namespaces.add(name)
        self._adjust()

    def remove_namespace(self, name: str) -> None:
        self._namespaces.discard(name)
        self._adjust()

    def _adjust(self) -> None:
        """Start the watches that are missing, stop those that are not needed; or pause and resume them all."""
        self.peerings.adjust(self._namespaces)
        wanted: dict[Scope, HandlerTable] = {}
        for resource, table in self._tables.items():
            if resource.namespaced:
                wanted.update({(resource, namespace): table for namespace in self._namespaces})
            else:
                wanted[resource, None] = table
        for scope in [scope for scope in self._watches if not self._is_served_as(scope, wanted.get(scope))]:
            watch, sink, task = self._watches.pop(scope)
            task.cancel()
            sink.dropped(watch)
        if self.peerings.paused != self._paused:
            self._paused = self.peerings.paused
            if self._paused:
                self._pause()
            else:
                self._resume()
        for scope, table in wanted.items():
            if scope not in self._watches and not self._paused and self.peerings.is_open(scope[1]):
                self._watches[scope] = self._start_watch(scope, table)
                self._served[scope] = table

    def _is_served_as(self, scope: Scope, table: HandlerTable | None) -> bool:
        served = self._served[scope]
        return table is not None and table == served and table.resource.is_same(served.resource)

    def _pause(self) -> None:
        """Let others handle the objects: stop seeing them and doing anything about them."""
        self._workforce.pause()
        for watch, sink, task in self._watches.values():
            task.cancel()
            watch.pause()
            sink.paused(watch)

    def _resume(self) -> None:
        """Go on where the others have stopped."""
        for scope, (watch, sink, _) in self._watches.items():
            sink.resumed(watch)
            self._watches[scope] = watch, sink, self._run_watch(watch)
        self._workforce.resume()

    def _run_watch(self, watch: ResourceWatch) -> asyncio.Task[None]:
        return self._tasks.create_task(watch.run(), name=f'watch of {watch}')

    def _start_watch(self, scope: Scope, table: HandlerTable) -> tuple[ResourceWatch, EventSink, asyncio.Task[None]]:
        processor = self._operator.make_processor(self._client, table, self._workforce)
        intake = self._operator.make_intake(processor, self._indexation) if table.indexing else None
        sink: EventSink = processor if intake is None else intake
        watch = ResourceWatch(self._client, self._operator.settings, *scope, sink)
        if intake is not None:
            intake.expect(str(watch))
        return watch, sink, self._run_watch(watch)


class DefinitionsSink:
    """Notices which resources are defined, and tells the orchestrator what has changed since the first list."""

    def __init__(self, orchestrator: Orchestrator, definitions: Definitions) -> None:
        self._orchestrator = orchestrator
        self._definitions = definitions
        self._listed = False

    def receive(self, record: ObjectRecord, event: RawEvent, *, listed_since: float | None) -> None:
        self._definitions.note(record.name, {} if event['type'] == 'DELETED' else event['object'])
        if self._listed:
            self._orchestrator.note_definition()

    def listed(self, watch: ResourceWatch) -> None:
        self._listed = True
        self._orchestrator.compare_definitions()

    def refused(self, watch: ResourceWatch, error: errors.APIError) -> None:
        pass

    def paused(self, watch: ResourceWatch) -> None:
        pass

    def resumed(self, watch: ResourceWatch) -> None:
        pass

    def dropped(self, watch: ResourceWatch) -> None:
        pass


class NamespaceSink:
    """Tells the orchestrator which namespaces are there, of those that match."""

    def __init__(
            self, orchestrator: Orchestrator, patterns: Collection[str | re.Pattern[str]], indexation: Indexation,
    ) -> None:
        self._orchestrator = orchestrator
        self._patterns = patterns
        self._indexation = indexation
        indexation.expect(self, 'namespaces')  # each of them can bring more objects to be indexed

    def receive(self, record: ObjectRecord, event: RawEvent, *, listed_since: float | None) -> None:
        if not any(match_namespace(record.name, pattern) for pattern in self._patterns):
            return
        if event['type'] == 'DELETED':
            self._orchestrator.remove_namespace(record.name)
        else:
            self._orchestrator.add_namespace(record.name)

    def listed(self, watch: ResourceWatch) -> None:
        self._indexation.dismiss(self)

    def refused(self, watch: ResourceWatch, error: errors.APIError) -> None:
        self._indexation.dismiss(self)

    def paused(self, watch: ResourceWatch) -> None:
        pass

    def resumed(self, watch: ResourceWatch) -> None:
        pass

    def dropped(self, watch: ResourceWatch) -> None:
        self._indexation.dismiss(self)


def unwrap_error(error: BaseException) -> BaseException:
    """Give the only error of a group of tasks: usually, one has failed, and the others were stopped because of it."""
    while isinstance(error, BaseExceptionGroup):
        first, *others = error.exceptions
        if any(type(other) is not type(first) or str(other) != str(first) for other in others):
            break
        error = first  # many can fail of the same at once, such as of a lost login
    return error


def get_fallback_logins() -> list[ActivityHandler]:
    """
    Give the login handlers to use where none are declared.

    Those of the client libraries that are installed, as they know the most ways to log in; otherwise, our own.
    """
    candidates: list[Any] = []
    if logins.has_pykube():
        candidates.append(logins.login_via_pykube)
    if logins.has_client():
        candidates.append(logins.login_via_client)
    elif logins.has_async_client():
        candidates.append(logins.login_via_async_client)
    if not candidates and logins.has_kubeconfig():
        candidates.append(logins.login_with_kubeconfig)
    if not candidates and logins.has_service_account():
        candidates.append(logins.login_with_service_account)
    if not candidates:
        raise LoginError(logins.explain_absence())
    return [ActivityHandler(id=HandlerId(fn.__name__), fn=fn, activity=Activity.AUTHENTICATION, retries=1,
                            errors=ErrorsMode.PERMANENT) for fn in candidates]
