"""
An operator: the owner of all that lives while it runs, from its startup handlers to its cleanup handlers.

It opens the API client, the poster of events, the watches and the workers, and closes all of them, in reverse order.
Every task has a parent that waits for it: a failure of any ends the operator, with the cause, after the cleanup.
"""

import asyncio
import contextlib
import dataclasses
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from kopf._cogs.aiokits.flags import Flag, ServingFlag, raise_flag, wait_flag
from kopf._cogs.aiokits.loops import end
from kopf._cogs.aiokits.pulses import Pulse
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
from kopf._core.engines.blocking import Blockages
from kopf._core.engines.indexing import OperatorIndexers
from kopf._core.engines.posting import Poster
from kopf._core.engines.schedules import Schedules
from kopf._core.intents import mistakes
from kopf._core.intents.causes import Activity
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.handlers import ActivityHandler
from kopf._core.intents.registries import OperatorRegistry, get_default_registry
from kopf._core.reactor.intake import Indexation
from kopf._core.reactor.orchestration import Orchestrator, Tools
from kopf._core.reactor.workforce import Workforce

if TYPE_CHECKING:
    from kopf._core.engines import probing

logger = logging.getLogger(__name__)

Command = Callable[[ApiClient, OperatorSettings, Collection[Resource], Collection[NamespacePattern]], Awaitable[None]]
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


class Operator:
    """One operator in one event loop."""

    def __init__(self, options: OperatorOptions) -> None:
        self.options = options
        self.registry = options.registry if options.registry is not None else get_default_registry()
        self.settings = options.settings if options.settings is not None else OperatorSettings()
        self.vault = options.vault if options.vault is not None else Vault()
        self.indexers = options.indexers if options.indexers is not None else OperatorIndexers()
        self._context = OperatorContext(
            settings=self.settings,
            registry=self.registry,
            lifecycle=options.lifecycle if options.lifecycle is not None else get_default_lifecycle(),
            memo=options.memo if options.memo is not None else Memo(),
            indices=self.indexers.indices,
        )
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
        flag = self.options.ready_flag
        if flag is not None and (serving or not isinstance(flag, ServingFlag)):
            await raise_flag(flag)

    async def _wait_for_flag(self) -> None:
        if self.options.stop_flag is None:
            await asyncio.Event().wait()
        else:
            await wait_flag(self.options.stop_flag)
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
            pulse = await stack.enter_async_context(Pulse(Blockages(self.settings)))
            stack.push_async_callback(self.vault.close)
            stack.push_async_callback(client.close)
            await stack.enter_async_context(Poster(client, self.settings))
            indexation = Indexation()
            workforce = Workforce(self.settings, indexation)
            schedules = Schedules(
                self.registry.activities.get_schedules(),
                self._context,
            )
            if self.options.command is not None:
                with explaining():
                    found = await discover(client, PEERING_GROUPS)
                await self.options.command(client, self.settings, found.resources, self.options.namespaces)
                return
            tasks = asyncio.TaskGroup()
            orchestrator = Orchestrator(
                Tools(
                    context=self._context,
                    client=client,
                    indexers=self.indexers,
                    vault=self.vault,
                    workforce=workforce,
                    indexation=indexation,
                    schedules=schedules,
                ),
                patterns=self.options.namespaces,
                identity=self.options.identity,
                tasks=tasks,
            )
            stack.callback(orchestrator.close)
            stack.push_async_callback(orchestrator.coordinator.leave)
            stack.push_async_callback(orchestrator.save)
            stack.push_async_callback(workforce.close)
            stack.push_async_callback(indexation.close)
            async with tasks:
                if self.options.liveness_endpoint is not None:
                    await stack.enter_async_context(self._make_probe_server(orchestrator, pulse))
                tasks.create_task(self._watch_failures(workforce.failure), name='workers')
                tasks.create_task(self._watch_failures(indexation.failure), name='indexing')
                if orchestrator.admission is not None:
                    tasks.create_task(orchestrator.admission.run(), name='admission')
                await orchestrator.start()
                tasks.create_task(schedules.run(), name='schedules')
                await self._tell_readiness(serving=True)

    def _make_probe_server(self, condition: 'probing.Condition', pulse: Pulse[Any]) -> 'probing.ProbeServer':
        from kopf._core.engines import probing

        probes = probing.Probes(
            self.registry.activities.get_handlers(Activity.PROBE),
            self._context,
        )
        endpoint = probing.Endpoint.parse(self.options.liveness_endpoint or '')
        return probing.ProbeServer(endpoint, probes=probes, condition=condition, pulse=pulse, settings=self.settings)

    async def _watch_failures(self, failure: asyncio.Future[None]) -> None:
        await failure


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
