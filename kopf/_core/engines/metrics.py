"""
The metrics of an operator for Prometheus, by the library ``prometheus_client``.

The values are stored in meters and in other parts of the operator. They are collected for each scrape in the thread of
the status server, so that a stuck operator has metrics, too. Metrics that also exist in controller-runtime have the
same names and labels, so that existing dashboards and alerts work. No label contains the name of an object, as each
value of a label would be a series that Prometheus keeps for weeks.

Specified in the documentation's "Expose metrics".
"""

import asyncio
import collections
import concurrent.futures
import logging
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from kopf._cogs.aiokits.loop_monitors import LoopMonitor
from kopf._cogs.aiokits.thread_pools import DaemonicThreadPool
from kopf._cogs.configs.configuration import MetricsSettings
from kopf._cogs.helpers.explanations import ExplainedError, name_error
from kopf._cogs.structs.instruments import Instrument, WatchChange
from kopf._cogs.structs.meters import BOUNDS, Durations, Meters, ResourceMeter, get_counts, name_resource
from kopf._core.engines.status_server import Respond

if TYPE_CHECKING:
    from aiohttp import web

logger = logging.getLogger(__name__)

LAG_LIMIT = 1.0
"""How long a scrape waits for the event loop of the operator in order to measure its lag (in seconds)."""

HISTOGRAMS = (
    (
        'controller_runtime_reconcile_time_seconds',
        "Length of time per reconciliation per controller",
        ResourceMeter.get_handling,
    ),
    (
        'workqueue_queue_duration_seconds',
        "How long an object stays in the queue before it gets a worker",
        ResourceMeter.get_queueing,
    ),
    ('workqueue_work_duration_seconds', "How long a worker handles an object", ResourceMeter.get_working),
)
"""The names of the histograms, their texts, and the functions that return their values."""


def _get_ages(meter: ResourceMeter) -> list[float]:
    """Return how long the running workers of the resource have been running (in seconds)."""
    now = time.monotonic()
    return [now - began for began in list(meter.running.values())]


QUEUE_METRICS: tuple[tuple[str, str, str, Callable[[ResourceMeter], float]], ...] = (
    ('Gauge', 'depth', "Number of objects that wait for a worker", lambda meter: len(meter.waiting)),
    ('Counter', 'adds', "Total number of objects that needed a worker", ResourceMeter.count_adds),
    ('Counter', 'retries', "Total number of retries", lambda meter: meter.retries),
    (
        'Gauge',
        'unfinished_work_seconds',
        "The time of all workers that are running now; large values indicate stuck handlers",
        lambda meter: sum(_get_ages(meter)),
    ),
    (
        'Gauge',
        'longest_running_processor_seconds',
        "The time of the worker that has been running the longest",
        lambda meter: max(_get_ages(meter), default=0.0),
    ),
)
"""The kinds, names and texts of the metrics of the queue, and the functions that return their values."""


class MetricsError(ExplainedError):
    """Raised when metrics cannot be provided. The message contains the reason and the remedy."""


class OperatorState(Protocol):
    """Provides values about an operator that are computed for each scrape. The methods are called in any thread."""

    def count_objects(self) -> Mapping[tuple[str, str], int]:
        """Return the number of known objects by the names of their resources, and by their states."""

    def measure_silences(self) -> Mapping[str, float]:
        """Return how long the watches of each resource have brought nothing (in seconds), not even bookmarks."""

    def get_leases(self) -> Mapping[str, bool]:
        """Return whether this operator leads, by the name of the Lease; empty without an election."""

    def count_unowned(self) -> int | None:
        """Return how many buckets no member holds; ``None`` without shards."""


class RestartMeter(Instrument):
    """Counts the restarts of watches."""

    def __init__(self) -> None:
        self.restarts: collections.Counter[tuple[str, str]] = collections.Counter()
        """By the names of the resources, and the reasons."""

    def watch_changes(self, change: WatchChange) -> None:
        """Count the restart, if the change of the watch is a restart."""
        if change.state == 'backing-off' and change.reason is not None:
            self.restarts[name_resource(change.resource), change.reason] += 1


class MetricsCollector:
    """The metrics of the framework; it has the interface of the registries and collectors of ``prometheus_client``."""

    def __init__(self, meters: Meters, watches: RestartMeter, state: OperatorState, prometheus: Any) -> None:
        self._meters = meters
        self._watches = watches
        self._state = state
        self._core = prometheus.core
        self._lag = 0.0

    def note_lag(self, seconds: float) -> None:
        """Called before the metrics are collected, with the lag of the event loop (in seconds)."""
        self._lag = seconds

    def collect(self) -> Iterator[Any]:
        """Return all metrics with their current values."""
        # Copied first, because the event loop of the operator can add meters meanwhile.
        meters = self._meters.resources.copy()
        yield from self._collect_reconciliations(meters)
        yield from self._collect_queues(meters)
        yield self._make(
            'Counter',
            'rest_client_requests',
            "Number of HTTP requests, partitioned by status code, method, and host",
            ('code', 'method', 'host'),
            self._count_requests(),
        )
        yield self._collect_handlers()
        yield self._make(
            'Gauge',
            'kopf_objects',
            "Number of known objects by their states",
            ('resource', 'state'),
            self._state.count_objects(),
        )
        yield self._make(
            'Gauge',
            'kopf_watch_silence_seconds',
            "Time since the last event or bookmark of the quietest watch of the resource",
            ('resource',),
            {(resource,): value for resource, value in self._state.measure_silences().items()},
        )
        yield self._make(
            'Counter',
            'kopf_watch_restarts',
            "Number of restarts of watches by their reasons",
            ('resource', 'reason'),
            self._watches.restarts.copy(),
        )
        yield self._make(
            'Gauge',
            'leader_election_master_status',
            "Whether the operator is the leader of its replicas",
            ('name',),
            {(name,): int(leads) for name, leads in self._state.get_leases().items()},
        )
        if (unowned := self._state.count_unowned()) is not None:
            text = "Number of buckets whose objects no member of the sharded operator handles"
            yield self._make('Gauge', 'kopf_unowned_buckets', text, (), {(): unowned})
        yield self._make(
            'Gauge',
            'kopf_event_loop_lag_seconds',
            "How long the event loop of the operator takes to respond",
            (),
            {(): self._lag},
        )

    def _count_requests(self) -> Mapping[tuple[str, str, str], int]:
        """Return the number of requests by the status codes, the methods, and the hosts."""
        counts: collections.Counter[tuple[str, str, str]] = collections.Counter()
        for (server, method, status), count in self._meters.requests.copy().items():
            counts[str(status or '<error>'), method, urllib.parse.urlsplit(server).netloc] += count
        return counts

    def _collect_reconciliations(self, meters: Mapping[str, ResourceMeter]) -> Iterator[Any]:
        yield self._make(
            'Counter',
            'controller_runtime_reconcile',
            "Total number of reconciliations per controller",
            ('controller', 'result'),
            {(name, result): count for name, meter in meters.items() for result, count in meter.get_results().items()},
        )
        yield self._make(
            'Counter',
            'controller_runtime_reconcile_errors',
            "Total number of reconciliation errors per controller",
            ('controller',),
            {(name,): meter.get_results()['error'] for name, meter in meters.items()},
        )
        yield self._make(
            'Gauge',
            'controller_runtime_active_workers',
            "Number of currently used workers per controller",
            ('controller',),
            {(name,): len(meter.running) for name, meter in meters.items()},
        )
        name, text, get_durations = HISTOGRAMS[0]
        yield self._make_histogram(name, text, ('controller',), meters, get_durations)

    def _collect_queues(self, meters: Mapping[str, ResourceMeter]) -> Iterator[Any]:
        labels = ('name', 'controller')
        for kind, name, text, get in QUEUE_METRICS:
            values = {(resource, resource): get(meter) for resource, meter in meters.items()}
            yield self._make(kind, f'workqueue_{name}', text, labels, values)
        for name, text, get_durations in HISTOGRAMS[1:]:
            yield self._make_histogram(name, text, labels, meters, get_durations)

    def _collect_handlers(self) -> Any:
        family = self._core.SummaryMetricFamily(
            'kopf_handler_seconds', "Time in handlers by their outcomes", labels=('handler', 'outcome')
        )
        for labels, (count, seconds) in self._meters.handlers.copy().items():
            family.add_metric(labels, count_value=count, sum_value=seconds)
        return family

    def _make(self, kind: str, name: str, text: str, labels: tuple[str, ...], values: Mapping[Any, float]) -> Any:
        family = getattr(self._core, f'{kind}MetricFamily')(name, text, labels=labels)
        for key, value in values.items():
            family.add_metric(key, value)
        return family

    def _make_histogram(
        self,
        name: str,
        text: str,
        labels: tuple[str, ...],
        meters: Mapping[str, ResourceMeter],
        get_durations: Callable[[ResourceMeter], Durations],
    ) -> Any:
        family = self._core.HistogramMetricFamily(name, text, labels=labels)
        for resource, meter in meters.items():
            durations, total, buckets = get_durations(meter), 0, []
            for bound, count in zip((*map(str, BOUNDS), '+Inf'), get_counts(durations), strict=True):
                total += count
                buckets.append((bound, total))
            family.add_metric([resource] * len(labels), buckets=buckets, sum_value=durations[-1])
        return family


class AllMetrics:
    """
    The metrics of the framework, and then those of the program from its registry.

    Why not register the collector in that registry? Several operators in one process would clash there, and so would
    a metric of the program with the same name. A clash would be an error at the start, or make all scrapes fail.
    """

    def __init__(self, collector: MetricsCollector, registry: Any) -> None:
        self._collector = collector
        self._registry = registry
        self._told: set[str] = set()

    def collect(self) -> Iterator[Any]:
        """Return all metrics. Those of the program are left out if they fail or clash, with a warning for each."""
        names = set()
        for family in self._collector.collect():
            names.update(_get_names(family))
            yield family
        for family in self._collect_others():
            if names.isdisjoint(_get_names(family)):
                yield family
            else:
                self._tell(
                    f"The metric {family.name!r} of the program is not exposed, as the framework has one of this name. "
                    "Rename it."
                )

    def _collect_others(self) -> Iterable[Any]:
        try:
            return list(self._registry.collect())
        except Exception as error:
            self._tell(f"The metrics of the program are not exposed, as a collector has failed: {name_error(error)}")
            return ()

    def _tell(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            logger.warning("%s", message, extra={'message_code': 'metrics-unexposed'})


def _get_names(family: Any) -> set[str]:
    return {family.name, *(sample.name for sample in family.samples)}


class MetricsResponder:
    """
    Responds to the requests of Prometheus, in the loop of the status server.

    Args:
        collector: the metrics of the framework.
        monitor: the monitor of the operator's event loop.
        settings: the settings of metrics.
        prometheus: the library.
    """

    def __init__(
        self, collector: MetricsCollector, monitor: LoopMonitor[Any], settings: MetricsSettings, prometheus: Any
    ) -> None:
        registry = prometheus.REGISTRY if settings.registry is None else settings.registry
        self._collector = collector
        self._metrics = AllMetrics(collector, registry)
        self._monitor = monitor
        self._settings = settings
        self._prometheus = prometheus
        # The collectors of the program can block, but the server must respond to the probes.
        self._threads = DaemonicThreadPool(max_workers=1)
        self._collecting: concurrent.futures.Future[tuple[bytes, str]] | None = None

    def get_routes(self, path: str) -> dict[str, Respond]:
        """Return the routes: the metrics at this path."""
        return {path: self._respond}

    async def _respond(self, request: 'web.Request') -> 'web.StreamResponse':
        from aiohttp import web

        if self._collecting is not None and not self._collecting.done():
            return web.Response(
                status=503, text="The former request for metrics has not ended: a collector is stuck.\n"
            )
        lag, _ = await self._monitor.measure_lag(LAG_LIMIT)
        self._collector.note_lag(lag)
        self._collecting = self._threads.submit(self._encode, request.headers.get('Accept', ''))
        try:
            async with asyncio.timeout(self._settings.timeout):
                # Shielded: its thread cannot be cancelled, and the next request must see that it is still running.
                content, content_type = await asyncio.shield(asyncio.wrap_future(self._collecting))
        except TimeoutError:
            limit = self._settings.timeout
            return web.Response(status=503, text=f"The metrics were not collected in {limit:g} seconds.\n")
        response = web.Response(body=content, headers={'Content-Type': content_type})
        response.enable_compression()
        return response

    def _encode(self, accepted: str) -> tuple[bytes, str]:
        encode, content_type = self._prometheus.exposition.choose_encoder(accepted)
        return encode(self._metrics), content_type

    def close(self) -> None:
        """End the thread, unless it is stuck."""
        self._threads.shutdown(wait=False)


def load_prometheus() -> Any:
    """
    Return the library.

    Raises:
        MetricsError: if it is not installed.
    """
    try:
        import prometheus_client.core
        import prometheus_client.exposition
    except ImportError as error:
        raise MetricsError(
            f"Metrics need the library prometheus_client ({error}). Install it: pip install 'kopf[metrics]>=1.46'"
        ) from error
    return prometheus_client
