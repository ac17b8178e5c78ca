"""
The operator: the lifecycle from the startup handlers to the cleanup handlers.

An operator owns the API client, the poster of events, the watches, and the workers. It opens them, and closes them in
reverse order. Each task has a parent that waits for it: if any fails, the operator cleans up and exits with the error.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from typing import Any, TypedDict, TypeVar

from kopf._cogs.aiokits.flags import Flag, ServingFlag, raise_flag, wait_flag
from kopf._cogs.aiokits.loop_monitors import LoopMonitor
from kopf._cogs.aiokits.loops import end
from kopf._cogs.clients import logins
from kopf._cogs.clients.api import ApiClient, client_var
from kopf._cogs.clients.discovery import discover, explaining_discovery_errors
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.helpers.versions import version
from kopf._cogs.structs.credentials import Vault
from kopf._cogs.structs.ephemera import Memo
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.instruments import Instrument, Instruments
from kopf._cogs.structs.references import PEERING_GROUPS, NamespacePattern, Resource
from kopf._core.actions.execution import ErrorsMode, Handler
from kopf._core.actions.invocation import context
from kopf._core.actions.lifecycles import LifeCycleFn, get_default_lifecycle
from kopf._core.engines import activities
from kopf._core.engines.blocking import BlockingReporter
from kopf._core.engines.deferred_work import DeferredWork, deferred_work_var
from kopf._core.engines.indexing import OperatorIndexers
from kopf._core.engines.posting import Poster
from kopf._core.engines.schedules import Schedules
from kopf._core.intents import mistakes, record_places
from kopf._core.intents.causes import Activity, ResourceCause, children_var
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.handlers import ActivityHandler
from kopf._core.intents.registries import OperatorRegistry, get_default_registry, registry_var
from kopf._core.reactor.indexing_gate import IndexingGate
from kopf._core.reactor.orchestration import Orchestrator, Tools, WriteThrough, write_through_var
from kopf._core.reactor.workers import WorkerPool

logger = logging.getLogger(__name__)

T = TypeVar('T')

Command = Callable[[ApiClient, OperatorSettings, Collection[Resource], Collection[NamespacePattern]], Awaitable[None]]
"""A coroutine function that runs instead of serving; it gets the discovered resources and requested namespaces."""


class OperatorOptions(TypedDict, total=False):
    """
    The options of an operator: the keyword arguments of `kopf.operator`, which documents them.

    This is the only declaration for `kopf.run`, `kopf.operator`, `kopf.spawn_tasks`, and ``kopf run``.
    """

    lifecycle: LifeCycleFn | None
    indexers: OperatorIndexers | None
    registry: OperatorRegistry | None
    settings: OperatorSettings | None
    memories: Any
    insights: Any
    identity: str | None
    standalone: bool | None
    priority: int | None
    peering_name: str | None
    leader_election: bool | None
    shards: str | None
    lease_name: str | None
    liveness_endpoint: str | None
    metrics_endpoint: str | None
    tracing: bool
    inspect: bool
    scanning: bool | None
    clusterwide: bool
    namespaces: Collection[NamespacePattern]
    namespace: NamespacePattern | None
    stop_flag: Flag | None
    ready_flag: Flag | None
    vault: Vault | None
    instruments: Collection[Instrument] | None
    memo: object | None
    _command: Command | None


STARTUP_PATIENCE = 2.0
"""How long startup handlers may take to end when the operator is stopped (in seconds)."""


class Operator:
    """One operator in one event loop."""

    def __init__(self, options: OperatorOptions) -> None:
        self._options = options
        self._namespaces = options.get('namespaces', ())
        self.registry = make_unless_given(options.get('registry'), get_default_registry)
        self.settings = make_unless_given(options.get('settings'), OperatorSettings)
        self.vault = make_unless_given(options.get('vault'), Vault)
        self.indexers = make_unless_given(options.get('indexers'), OperatorIndexers)
        self.instruments = Instruments(options.get('instruments') or ())
        self._context = OperatorContext(
            settings=self.settings,
            registry=self.registry,
            lifecycle=make_unless_given(options.get('lifecycle'), get_default_lifecycle),
            memo=make_unless_given(options.get('memo'), Memo),
            indices=self.indexers.indices,
            instruments=self.instruments,
        )
        self.indexers.ensure(self.registry.indexing)  # startup handlers get the indices, too, even if empty
        self._write_through = WriteThrough(self.settings)
        self._deferred_work = DeferredWork()
        self._stopping = asyncio.Event()
        self._logged_in = False
        self._adopt_options()

    def _adopt_options(self) -> None:
        """Copy the options into the settings, so that startup handlers can read and change them."""
        options, settings = self._options, self.settings.peering
        if (elected := options.get('leader_election')) is not None:
            self.settings.leadership.enabled = elected
        if (shards := options.get('shards')) is not None:
            self.settings.sharding.enabled = check_shards(shards)
        if (lease := options.get('lease_name')) is not None:
            self.settings.leadership.name = self.settings.sharding.name = lease
        settings.clusterwide = not self._namespaces
        if (standalone := options.get('standalone')) is not None:
            settings.standalone = standalone
        if (priority := options.get('priority')) is not None:
            settings.priority = priority
        if (name := options.get('peering_name')) is not None:
            # As documented, an operator waits until an explicitly named peering exists, but works without the default
            # one.
            settings.name, settings.mandatory = name, True
        if (endpoint := options.get('metrics_endpoint')) is not None:
            self.settings.metrics.endpoint = endpoint
        if options.get('tracing'):
            self.settings.tracing.enabled = True
        if options.get('inspect'):
            self.settings.inspecting.enabled = True
        if (scanning := options.get('scanning')) is not None:
            self.settings.scanning.disabled = not scanning

    def _make_children(self, cause: ResourceCause, handler: Handler) -> Any:
        """Create the argument ``children`` of a handler that is not level-triggered."""
        from kopf._core.engines.applied_objects import make_applying  # few handlers of changes need it

        return make_applying(cause, handler, self.settings.applying.operator)

    def stop(self) -> None:
        """Request the operator to clean up and exit."""
        self._stopping.set()

    async def run(self) -> None:
        """Run until stopped; raise the error if the operator cannot continue."""
        logger.debug("Starting Kopf %s.", version)
        flag = asyncio.create_task(self._wait_for_flag(), name='stop-flag')
        client = ApiClient(self.vault, self.settings, self.instruments)  # the client logs in with the first request
        if self.vault.authenticate is None:
            self.vault.authenticate = self._log_in
        try:
            with context(
                [
                    (client_var, client),
                    (registry_var, self.registry),
                    (children_var, self._make_children),
                    (write_through_var, self._write_through),
                    (deferred_work_var, self._deferred_work),
                ]
            ):
                if await self._unless_stopped(self._start_up(), flag, patience=STARTUP_PATIENCE):
                    await self._tell_readiness(serving=False)
                    try:
                        await self._unless_stopped(self._serve(client), flag)
                    finally:
                        await self._clean_up()
        finally:
            flag.cancel()
            await self._tell_readiness(serving=False)  # threads that wait for the flag must not wait for ever
            await asyncio.wait({flag})
            await client.close()
            await self.vault.close()

    async def _tell_readiness(self, *, serving: bool) -> None:
        flag = self._options.get('ready_flag')
        if flag is not None and (serving or not isinstance(flag, ServingFlag)):
            await raise_flag(flag)

    async def _wait_for_flag(self) -> None:
        flag = self._options.get('stop_flag')
        if flag is None:
            await asyncio.Event().wait()
        else:
            await wait_flag(flag)
            logger.info("Stop-flag is raised. Operator is stopping.")
            self.stop()

    async def _unless_stopped(
        self,
        coro: Coroutine[None, None, None],
        flag: asyncio.Task[None],
        *,
        patience: float | None = None,
    ) -> bool:
        """
        Run the coroutine until it ends or the operator is stopped.

        Args:
            coro: the coroutine to run.
            flag: the task that waits for the stop-flag; its errors are raised, too.
            patience: how long to wait for the cancelled coroutine (in seconds); by default, until it ends.

        Returns:
            Whether the coroutine has ended by itself.
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
        mistakes.check_registry(self.registry)
        outcomes = await self._run_activity(Activity.STARTUP)
        activities.check_outcomes(Activity.STARTUP, outcomes)
        mistakes.check_registry(self.registry)  # startup handlers can declare further handlers
        lease, settings = self._options.get('lease_name'), self.settings
        record_places.check_places(self.registry, settings.persistence)  # startup handlers can set other storages
        for doubt in record_places.find_shared_places(self.registry, settings.persistence):
            logger.warning("%s", doubt, extra={'message_code': 'progress-shared'})
        # Why not refuse the option at once? Startup handlers can enable the leader election.
        if lease is not None and not (settings.leadership.enabled or settings.sharding.enabled):
            logger.warning(
                "The Lease %s is not used: this operator is no replica of others. Add --leader-election or --shards, "
                "or remove --lease.",
                lease,
            )
        if self.registry.kinds:
            from kopf._core.intents.field_checks import find_doubts_of_kinds

            for doubt in find_doubts_of_kinds(self.registry):
                logger.warning("%s", doubt, extra={'message_code': 'field-not-in-schema'})

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
            activity,
            self.registry.activities.get_handlers(activity) if handlers is None else handlers,
            self._context,
        )

    # Serving.

    async def _serve(self, client: ApiClient) -> None:
        """Serve the resources until cancelled."""
        async with contextlib.AsyncExitStack() as stack:
            monitor = await stack.enter_async_context(LoopMonitor(BlockingReporter(self.settings)))
            await stack.enter_async_context(Poster(client, self.settings))
            if (command := self._options.get('_command')) is not None:
                with explaining_discovery_errors():
                    found = await discover(client, PEERING_GROUPS)
                await command(client, self.settings, found.resources, self._namespaces)
                return
            # This precedes everything that creates tasks, because they inherit the current context.
            if self.settings.tracing.enabled:
                await self._trace(stack)
            indexing_gate = IndexingGate()
            workers = WorkerPool(self.settings, indexing_gate, self.instruments, clusterwide=not self._namespaces)
            schedules = Schedules(self.registry, self._context, barrier=indexing_gate)
            tasks = asyncio.TaskGroup()
            orchestrator = Orchestrator(
                Tools(
                    context=self._context,
                    client=client,
                    indexers=self.indexers,
                    vault=self.vault,
                    workers=workers,
                    indexing_gate=indexing_gate,
                    schedules=schedules,
                    run_activity=self._run_activity,
                ),
                patterns=self._namespaces,
                identity=self._options.get('identity'),
                tasks=tasks,
            )
            stack.enter_context(self._write_through.connected(orchestrator))
            # The stack calls these functions in reverse order: no further work begins; indexing and workers end;
            # progress that is only in memory is stored. Then, the webhooks end: the API server can need them for these
            # patches. The record in the peering is removed last, because then the peers take over immediately.
            # The client stays open for the cleanup handlers.
            stack.callback(orchestrator.close)
            stack.push_async_callback(orchestrator.coordinator.leave)
            if orchestrator.webhooks is not None:
                stack.push_async_callback(orchestrator.webhooks.close)
            stack.push_async_callback(orchestrator.save)
            stack.push_async_callback(workers.close)
            stack.push_async_callback(indexing_gate.close)
            stack.callback(orchestrator.end)
            async with tasks:
                self._deferred_work.start(tasks)
                await self._serve_status(stack, orchestrator, workers, monitor)
                tasks.create_task(workers.run(), name='workers')
                tasks.create_task(self._watch_failures(indexing_gate.failure), name='indexing')
                if orchestrator.webhooks is not None:
                    tasks.create_task(orchestrator.webhooks.serve(), name='webhooks')
                # The probes respond before the start is complete: they report why it is not complete yet.
                await orchestrator.start()
                tasks.create_task(schedules.run(), name='schedules')
                if orchestrator.webhooks is not None:
                    await orchestrator.webhooks.settle()
                await self._tell_readiness(serving=True)

    async def _serve_status(
        self,
        stack: contextlib.AsyncExitStack,
        orchestrator: Orchestrator,
        workers: WorkerPool,
        monitor: LoopMonitor[Any],
    ) -> None:
        """Start the servers of the probes, the metrics, and the inspection if they are requested."""
        liveness, metrics = self._options.get('liveness_endpoint'), self.settings.metrics.endpoint
        if liveness is None and metrics is None and not self.settings.inspecting.enabled:
            return
        from kopf._core.reactor.status_runtime import StatusSources, serve_status

        status = StatusSources(context=self._context, orchestrator=orchestrator, workers=workers, monitor=monitor)
        await serve_status(stack, status, liveness=liveness, metrics=metrics)

    async def _trace(self, stack: contextlib.AsyncExitStack) -> None:
        """Make traces from now on; export the last ones when the stack is closed."""
        from kopf._core.engines.trace_exports import flush, load_provider, logging_ids
        from kopf._core.engines.tracing import Tracing

        provider, exporter = self.settings.tracing.provider, None
        if provider is None:
            provider, exporter = load_provider()
        tracing = Tracing(provider, version)
        stack.push_async_callback(flush, provider, exporter)
        stack.enter_context(logging_ids(tracing))
        self.instruments.add(tracing)
        tracing.attach()

    async def _watch_failures(self, failure: asyncio.Future[None]) -> None:
        await failure


def make_unless_given(given: T | None, make: Callable[[], T]) -> T:
    """Return the given value, even if it is falsy; if it is ``None``, create one."""
    return make() if given is None else given


def check_shards(shards: str) -> bool:
    """
    Return whether the operator is sharded.

    Raises:
        ValueError: if the value is unknown.
    """
    if shards != 'auto':
        raise ValueError(f"The option shards must be 'auto', not {shards!r}: the members share the objects themselves.")
    return True


def unwrap_error(error: BaseException) -> BaseException:
    """Return the error of a task group without the group, if all its errors are the same."""
    while isinstance(error, BaseExceptionGroup):
        first, *others = error.exceptions
        if any(type(other) is not type(first) or str(other) != str(first) for other in others):
            break
        error = first  # many tasks can fail with the same error at once, such as a failed login
    return error


def get_fallback_logins() -> list[ActivityHandler]:
    """
    Return the login handlers to use if none are declared.

    Installed client libraries are preferred, as they support the most ways to log in.

    Raises:
        LoginError: if there are no credentials to log in with.
    """
    logins.check_sources()
    candidates: list[Any] = []
    if logins.has_pykube():
        candidates.append(logins.login_via_pykube)
    if logins.has_client():
        candidates.append(logins.login_via_client)
    elif logins.has_async_client():
        candidates.append(logins.login_via_async_client)
    if not candidates and logins.has_kubeconfig():
        candidates.append(logins.login_with_kubeconfig)
    if not candidates:
        candidates.append(logins.login_with_service_account)
    return [
        ActivityHandler(
            id=HandlerId(fn.__name__), fn=fn, activity=Activity.AUTHENTICATION, retries=1, errors=ErrorsMode.PERMANENT
        )
        for fn in candidates
    ]
