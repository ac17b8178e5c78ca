"""
The endpoints of an operator: makes the routes that the options and settings request, and starts their servers.

It is imported only by operators that have such endpoints. Endpoints with the same address share one server.
"""

import contextlib
import dataclasses
import logging
import os
from typing import TYPE_CHECKING, Any

from kopf._cogs.aiokits.loop_monitors import LoopMonitor
from kopf._core.engines.status_server import Endpoint, Respond, StatusServer, StatusServerError, is_socket_path
from kopf._core.intents.causes import Activity
from kopf._core.intents.contexts import OperatorContext
from kopf._core.reactor.orchestration import Orchestrator
from kopf._core.reactor.workers import WorkerPool

if TYPE_CHECKING:
    from kopf._core.engines.timelines import Timelines

logger = logging.getLogger(__name__)

METRICS_PATH = '/metrics'
"""The path of the metrics if their URL has none."""


def parse_liveness_endpoint(url: str) -> Endpoint:
    """Return the endpoint of the probes; raise `EndpointError` if the URL is invalid."""
    return Endpoint.parse(url)


def parse_metrics_endpoint(url: str) -> Endpoint:
    """Return the endpoint of the metrics; raise `EndpointError` if the URL is invalid."""
    endpoint = Endpoint.parse(url, purpose='metrics', example='http://0.0.0.0:9090/metrics')
    return endpoint if endpoint.path != '/' else dataclasses.replace(endpoint, path=METRICS_PATH)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StatusSources:
    """The parts of an operator from which the endpoints make their responses."""

    context: OperatorContext
    orchestrator: Orchestrator
    workers: WorkerPool
    monitor: LoopMonitor[Any]


class ServerPlan:
    """The servers to start: for each address, the routes and the purposes."""

    def __init__(self) -> None:
        self._servers: list[tuple[Endpoint, dict[str, Respond], list[str]]] = []
        self._quiet: set[str] = set()

    def add(self, endpoint: Endpoint, routes: dict[str, Respond], purpose: str, *, quiet: bool = False) -> None:
        """
        Add the routes to the server at the address of the endpoint.

        Args:
            endpoint: the endpoint.
            routes: the responses by their paths.
            purpose: the purpose of the routes, for messages.
            quiet: whether their requests are logged only as debug messages.

        Raises:
            StatusServerError: if another endpoint has the same address and the same path.
        """
        if quiet:
            self._quiet.update(routes)
        for other, known, purposes in self._servers:
            if endpoint.shares_server(other):
                if clashes := sorted(known.keys() & routes.keys()):
                    raise StatusServerError(
                        f"The endpoints of {purposes[-1]} and of {purpose} are the same: port {endpoint.port}, path "
                        f"{clashes[0]}. Choose another path for one of them."
                    )
                known.update(routes)
                purposes.append(purpose)
                return
        self._servers.append((endpoint, routes, [purpose]))

    async def start(self, stack: contextlib.AsyncExitStack) -> None:
        """Start the servers; stop them with the stack."""
        for endpoint, routes, purposes in self._servers:
            purpose = ' and of '.join(purposes)
            quiet = self._quiet & routes.keys()
            server = StatusServer(endpoint.host, endpoint.port, routes, purpose=purpose, quiet=quiet)
            await stack.enter_async_context(server)
            if not endpoint.port and not is_socket_path(endpoint.host):
                logger.info("The server of %s listens at port %d.", purpose, server.port)


async def serve_status(
    stack: contextlib.AsyncExitStack, status: StatusSources, *, liveness: str | None, metrics: str | None
) -> None:
    """
    Start the servers for the endpoints with these URLs, and stop them with the stack.

    Raises:
        EndpointError: if a URL is invalid.
        StatusServerError: if a server cannot be started.
        MetricsError: if metrics cannot be provided.
    """
    plan = ServerPlan()
    if liveness is not None:
        _add_probes(plan, status, liveness, stack)
    if metrics is not None:
        _add_metrics(plan, status, metrics, stack)
    if status.context.settings.inspecting.enabled:
        await _serve_inspection(status, stack)
    await plan.start(stack)


async def _serve_inspection(status: StatusSources, stack: contextlib.AsyncExitStack) -> None:
    """Start a separate server for ``kopf top`` and the inspector: it must listen only on the loopback interface."""
    from kopf._cogs.helpers.runfiles import RunFile, get_address, written
    from kopf._core.engines.inspecting import InspectionResponder
    from kopf._core.engines.running_calls import RunningCalls
    from kopf._core.reactor.inspection import OperatorInspection

    settings, calls = status.context.settings.inspecting, RunningCalls()
    timelines = _record(status, stack) if settings.entries else None
    inspection = OperatorInspection(status.orchestrator, status.workers, status.monitor, calls, timelines)
    port, token = get_address()
    port, token = settings.port or port, settings.token or token
    responder = InspectionResponder(inspection, token)
    routes = responder.get_routes()
    server = StatusServer(
        '127.0.0.1',
        port,
        routes,
        purpose="the inspector",
        ending=responder.close,
        quiet=routes.keys(),  # a page sends a request a second
    )
    await stack.enter_async_context(server)
    file = RunFile(os.getpid(), f'http://127.0.0.1:{server.port}', token)
    path = stack.enter_context(written(file, settings.folder))
    status.context.instruments.add(calls)
    logger.info("The operator can be inspected: kopf top --pid %d; the token is in %s.", file.pid, path)
    # A random token gives access only to this process, so the link can contain it. A token from the settings is not
    # logged, because other operators can use the same one.
    link = f'{file.url}/' if settings.token else file.link
    logger.info("The inspector is at %s%s", link, " and asks for the token." if settings.token else "")


def _record(status: StatusSources, stack: contextlib.AsyncExitStack) -> 'Timelines':
    """Record what happens to the objects from now on, until the stack is closed."""
    from kopf._core.engines.recorders import LogRecorder, Recorder
    from kopf._core.engines.timelines import Timelines

    timelines = Timelines(status.context.settings.inspecting.entries)
    stack.enter_context(LogRecorder(timelines, status.context.settings))
    recorder = Recorder(timelines)
    status.context.instruments.add(recorder)
    stack.callback(status.context.instruments.remove, recorder)
    return timelines


def _add_probes(plan: ServerPlan, status: StatusSources, url: str, stack: contextlib.AsyncExitStack) -> None:
    from kopf._core.engines.probing import ProbeResponder, Probes

    endpoint = parse_liveness_endpoint(url)
    handlers = status.context.registry.activities.get_handlers(Activity.PROBE)
    probes = Probes(handlers, status.context)
    stack.push_async_callback(probes.close)
    responder = ProbeResponder(
        probes=probes,
        condition=status.orchestrator,
        monitor=status.monitor,
        settings=status.context.settings,
    )
    plan.add(endpoint, responder.get_routes(endpoint.path), "the probes")


def _add_metrics(plan: ServerPlan, status: StatusSources, url: str, stack: contextlib.AsyncExitStack) -> None:
    from kopf._cogs.structs.meters import Meters
    from kopf._core.engines.metrics import MetricsCollector, MetricsResponder, RestartMeter, load_prometheus
    from kopf._core.reactor.census import Census

    endpoint = parse_metrics_endpoint(url)
    prometheus = load_prometheus()
    meters, watches = Meters(), RestartMeter()
    census = Census(status.orchestrator, status.workers)
    collector = MetricsCollector(meters, watches, census, prometheus)
    responder = MetricsResponder(collector, status.monitor, status.context.settings.metrics, prometheus)
    stack.callback(responder.close)
    # Quiet, unlike the probes, which upstream logs: a message for each scrape says nothing about the operator.
    plan.add(endpoint, responder.get_routes(endpoint.path), "the metrics", quiet=True)
    status.context.instruments.measure(meters)
    status.context.instruments.add(watches)
