"""
An operator: the owner of all that lives while it runs, from its startup handlers to its cleanup handlers.

It opens the API client, the poster of events, the watches and the workers, and closes all of them, in reverse order.
Every task has a parent that waits for it: a failure of any ends the operator, with the cause, after the cleanup.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from kopf._cogs.aiokits.flags import Flag, ServingFlag, raise_flag, wait_flag
from kopf._cogs.aiokits.loop_monitors import LoopMonitor
from kopf._cogs.aiokits.loops import end
from kopf._cogs.clients import logins
from kopf._cogs.clients.api import ApiClient, client_var
from kopf._cogs.clients.discovery import discover, explaining
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.helpers.versions import version
from kopf._cogs.structs.credentials import Vault
from kopf._cogs.structs.ephemera import Memo
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.references import PEERING_GROUPS, NamespacePattern, Resource
from kopf._core.actions.execution import ErrorsMode
from kopf._core.actions.invocation import context
from kopf._core.actions.lifecycles import LifeCycleFn, get_default_lifecycle
from kopf._core.engines import activities
from kopf._core.engines.blocking import BlockingReporter
from kopf._core.engines.indexing import OperatorIndexers
from kopf._core.engines.posting import Poster
from kopf._core.engines.schedules import Schedules
from kopf._core.intents import mistakes
from kopf._core.intents.causes import Activity
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.handlers import ActivityHandler
from kopf._core.intents.registries import OperatorRegistry, get_default_registry
from kopf._core.reactor.indexing_gate import IndexingGate
from kopf._core.reactor.orchestration import Orchestrator, Tools
from kopf._core.reactor.workers import WorkerPool

if TYPE_CHECKING:
    from kopf._core.engines import probing

logger = logging.getLogger(__name__)

T = TypeVar('T')

Command = Callable[[ApiClient, OperatorSettings, Collection[Resource], Collection[NamespacePattern]], Awaitable[None]]
"""What to do once instead of serving: with the resources that there are, in the namespaces that are asked for."""


class OperatorOptions(TypedDict, total=False):
    """
    What an operator can be started with: the keyword arguments of `kopf.operator`, which describes them.

    This is the only declaration: `kopf.run`, `kopf.operator`, `kopf.spawn_tasks` and ``kopf run`` take these.
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
    liveness_endpoint: str | None
    clusterwide: bool
    namespaces: Collection[NamespacePattern]
    namespace: NamespacePattern | None
    stop_flag: Flag | None
    ready_flag: Flag | None
    vault: Vault | None
    memo: object | None
    _command: Command | None


STARTUP_PATIENCE = 2.0
"""For how long startup handlers may take to end when the operator is stopped (in seconds)."""


class Operator:
    """One operator in one event loop."""

    def __init__(self, options: OperatorOptions) -> None:
        self._options = options
        self._namespaces = options.get('namespaces', ())
        self.registry = make_unless_given(options.get('registry'), get_default_registry)
        self.settings = make_unless_given(options.get('settings'), OperatorSettings)
        self.vault = make_unless_given(options.get('vault'), Vault)
        self.indexers = make_unless_given(options.get('indexers'), OperatorIndexers)
        self._context = OperatorContext(
            settings=self.settings,
            registry=self.registry,
            lifecycle=make_unless_given(options.get('lifecycle'), get_default_lifecycle),
            memo=make_unless_given(options.get('memo'), Memo),
            indices=self.indexers.indices,
        )
        self.indexers.ensure(self.registry.indexing)  # empty ones are there for the startup handlers too
        self._stopping = asyncio.Event()
        self._logged_in = False
        self._adopt_options()

    def _adopt_options(self) -> None:
        """Let the startup handlers see what the operator is told from outside, and change it."""
        options, settings = self._options, self.settings.peering
        settings.clusterwide = not self._namespaces
        if (standalone := options.get('standalone')) is not None:
            settings.standalone = standalone
        if (priority := options.get('priority')) is not None:
            settings.priority = priority
        if (name := options.get('peering_name')) is not None:
            settings.name, settings.mandatory = name, True

    def stop(self) -> None:
        """Let the operator end, with its cleanup."""
        self._stopping.set()

    async def run(self) -> None:
        """Run until stopped; raise what makes it impossible to go on."""
        logger.debug("Starting Kopf %s.", version)
        flag = asyncio.create_task(self._wait_for_flag(), name='stop-flag')
        client = ApiClient(self.vault, self.settings)  # it logs in with the first request
        if self.vault.authenticate is None:
            self.vault.authenticate = self._log_in
        try:
            with context([(client_var, client)]):
                if await self._unless_stopped(self._start_up(), flag, patience=STARTUP_PATIENCE):
                    await self._tell_readiness(serving=False)
                    try:
                        await self._unless_stopped(self._serve(client), flag)
                    finally:
                        await self._clean_up()
        finally:
            flag.cancel()
            await self._tell_readiness(serving=False)  # those who wait for it must not wait for ever
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
        mistakes.check_registry(self.registry)
        outcomes = await self._run_activity(Activity.STARTUP)
        activities.check_outcomes(Activity.STARTUP, outcomes)
        mistakes.check_registry(self.registry)  # startup handlers can declare others

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
        """Serve the resources until cancelled; then close the client."""
        async with contextlib.AsyncExitStack() as stack:
            monitor = await stack.enter_async_context(LoopMonitor(BlockingReporter(self.settings)))
            stack.push_async_callback(self.vault.close)
            stack.push_async_callback(client.close)
            await stack.enter_async_context(Poster(client, self.settings))
            indexing_gate = IndexingGate()
            workers = WorkerPool(self.settings, indexing_gate)
            schedules = Schedules(self.registry, self._context)
            if (command := self._options.get('_command')) is not None:
                with explaining():
                    found = await discover(client, PEERING_GROUPS)
                await command(client, self.settings, found.resources, self._namespaces)
                return
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
                ),
                patterns=self._namespaces,
                identity=self._options.get('identity'),
                tasks=tasks,
            )
            stack.callback(orchestrator.close)
            stack.push_async_callback(orchestrator.coordinator.leave)
            stack.push_async_callback(orchestrator.save)
            stack.push_async_callback(workers.close)
            stack.push_async_callback(indexing_gate.close)
            async with tasks:
                if self._options.get('liveness_endpoint') is not None:
                    await stack.enter_async_context(self._make_probe_server(orchestrator, monitor))
                tasks.create_task(self._watch_failures(workers.failure), name='workers')
                tasks.create_task(self._watch_failures(indexing_gate.failure), name='indexing')
                if orchestrator.webhooks is not None:
                    tasks.create_task(orchestrator.webhooks.run(), name='webhooks')
                await orchestrator.start()
                tasks.create_task(schedules.run(), name='schedules')
                await self._tell_readiness(serving=True)

    def _make_probe_server(self, condition: 'probing.Condition', monitor: LoopMonitor[Any]) -> 'probing.ProbeServer':
        from kopf._core.engines import probing

        probes = probing.Probes(
            self.registry.activities.get_handlers(Activity.PROBE),
            self._context,
        )
        endpoint = probing.Endpoint.parse(self._options.get('liveness_endpoint') or '')
        return probing.ProbeServer(
            endpoint, probes=probes, condition=condition, monitor=monitor, settings=self.settings
        )

    async def _watch_failures(self, failure: asyncio.Future[None]) -> None:
        await failure


def make_unless_given(given: T | None, make: Callable[[], T]) -> T:
    """Return what is given, even if it is empty; otherwise, make it."""
    return make() if given is None else given


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
    Raises `LoginError` if there is nothing to log in with.
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
