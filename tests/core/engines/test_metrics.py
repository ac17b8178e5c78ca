"""The metrics in the formats of Prometheus: their values, those of the program, and bad collectors."""

import asyncio
import sys
import threading
import time
import urllib.error
import urllib.request

import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

import kopf
from kopf._cogs.aiokits.loop_monitors import LoopMonitor
from kopf._cogs.structs.instruments import WatchChange
from kopf._cogs.structs.meters import Meters
from kopf._cogs.structs.references import Resource
from kopf._core.engines.blocking import BlockingReporter
from kopf._core.engines.metrics import (
    AllMetrics,
    MetricsCollector,
    MetricsError,
    MetricsResponder,
    RestartMeter,
    load_prometheus,
)
from kopf._core.engines.status_server import StatusServer

RESOURCE = Resource('kopf.dev', 'v1', 'kopfexamples', kind='KopfExample', namespaced=True)
NAME = 'kopfexamples.kopf.dev'


class State:
    def __init__(self):
        self.objects, self.silences = {(NAME, 'resting'): 3}, {NAME: 12.5}

    def count_objects(self):
        return self.objects

    def measure_silences(self):
        return self.silences

    def get_leases(self):
        return {'kopf-mine': True, 'kopf-other': False}

    def count_unowned(self):
        return 7


class Broken:
    """A collector of the program that fails."""

    def describe(self):
        return []

    def collect(self):
        raise ValueError("boo")


def read(collector):
    """Return the values of all metrics by their names and labels, as Prometheus reads them."""
    text = prometheus_client.generate_latest(collector).decode()
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def meters():
    return Meters()


@pytest.fixture
def watches():
    return RestartMeter()


@pytest.fixture
def registry():
    return prometheus_client.CollectorRegistry()


@pytest.fixture
def collector(meters, watches):
    return MetricsCollector(meters, watches, State(), load_prometheus())


def test_what_meters_have_counted_is_shown(collector, meters):
    meter = meters.get(RESOURCE)
    meter.queue('a')
    meter.take('b')
    meter.retry()
    meter.note_reconciliation(time.monotonic() - 1, 'success', 'uid')
    meters.note_attempt('create', None, 'succeeded', time.monotonic() - 1.5)
    meters.note_attempt('create/x', 'create', 'succeeded', time.monotonic() - 2)
    meters.note_attempt('create/y', 'create', 'succeeded', time.monotonic() - 3)
    values = read(collector)
    queue = ('controller', NAME), ('name', NAME)
    assert values['workqueue_depth', *queue] == 1
    assert values['workqueue_adds_total', *queue] == 2
    assert values['workqueue_retries_total', *queue] == 1
    assert values['workqueue_queue_duration_seconds_count', *queue] == 1
    assert 0 < values['workqueue_longest_running_processor_seconds', *queue] < 60
    assert values['controller_runtime_active_workers', ('controller', NAME)] == 1
    assert values['controller_runtime_reconcile_total', ('controller', NAME), ('result', 'success')] == 1
    buckets = [values['controller_runtime_reconcile_time_seconds_bucket', ('controller', NAME), ('le', le)]
               for le in ('0.5', '2.5', '+Inf')]  # fmt: skip
    assert buckets == [0, 1, 1]
    assert values['kopf_handler_seconds_sum', ('handler', 'create'), ('outcome', 'succeeded')] >= 1.5
    assert values['kopf_handler_seconds_count', ('handler', 'create/*'), ('outcome', 'succeeded')] == 2
    assert values['kopf_objects', ('resource', NAME), ('state', 'resting')] == 3
    assert values['kopf_watch_silence_seconds', ('resource', NAME)] == 12.5
    assert values['leader_election_master_status', ('name', 'kopf-mine')] == 1
    assert values['leader_election_master_status', ('name', 'kopf-other')] == 0
    assert values['kopf_unowned_buckets',] == 7


def test_requests_are_counted_by_codes_methods_and_hosts(collector, meters):
    for status in (200, 200, 409, 0):
        meters.note_request('https://api:6443', 'PATCH', status)
    values = read(collector)
    labels = ('host', 'api:6443'), ('method', 'PATCH')
    assert values['rest_client_requests_total', ('code', '200'), *labels] == 2
    assert values['rest_client_requests_total', ('code', '409'), *labels] == 1
    assert values['rest_client_requests_total', ('code', '<error>'), *labels] == 1


def test_restarts_of_watches_are_counted_by_reasons(collector, watches):
    watches.watch_changes(WatchChange(RESOURCE, None, 'streaming', 'backing-off', False, 'expired'))
    watches.watch_changes(WatchChange(RESOURCE, None, 'backing-off', 'listing', False))
    assert read(collector)['kopf_watch_restarts_total', ('reason', 'expired'), ('resource', NAME)] == 1


def test_one_resource_has_at_most_60_series(collector, meters):
    meters.get(RESOURCE).take('a')
    values = read(collector)
    assert 20 < len([labels for _, *labels in values if any(value == NAME for _, value in labels)]) <= 50


def test_metrics_of_the_program_come_along(collector, registry):
    prometheus_client.Counter('orders', "Orders", registry=registry).inc()
    values = read(AllMetrics(collector, registry))
    assert values['orders_total',] == 1 and values['kopf_event_loop_lag_seconds',] == 0


def test_metrics_of_the_program_with_names_of_the_framework_are_left_out_and_told_once(collector, registry, caplog):
    prometheus_client.Gauge('kopf_objects', "Mine", registry=registry)
    prometheus_client.Gauge('workqueue_depth', "Mine", registry=registry)
    prometheus_client.Gauge('orders', "Orders", registry=registry)
    metrics = AllMetrics(collector, registry)
    for _ in range(2):
        values = read(metrics)
        assert ('orders',) in values and ('kopf_objects',) not in values
    assert [record.getMessage() for record in caplog.records] == [
        f"The metric {name!r} of the program is not exposed, as the framework has one of this name. Rename it."
        for name in ('kopf_objects', 'workqueue_depth')
    ]


def test_failing_collectors_of_the_program_do_not_hide_the_metrics_of_the_framework(collector, registry, caplog):
    registry.register(Broken())
    metrics = AllMetrics(collector, registry)
    assert ('kopf_event_loop_lag_seconds',) in read(metrics) and read(metrics)
    assert [record.getMessage() for record in caplog.records] == [
        "The metrics of the program are not exposed, as a collector has failed: ValueError: boo"
    ]


def test_the_missing_library_is_named_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, 'prometheus_client', None)  # as if it was not installed
    with pytest.raises(MetricsError, match=r"pip install 'kopf\[metrics\]>=1\.46'"):
        load_prometheus()


class Served:
    def __init__(self, port):
        self.port = port

    def ask_now(self, accept='text/plain'):
        request = urllib.request.Request(f'http://127.0.0.1:{self.port}/metrics', headers={'Accept': accept})
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, response.headers['Content-Type'], response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, '', error.read().decode()

    async def ask(self, **options):
        return await asyncio.to_thread(self.ask_now, **options)


@pytest.fixture
def settings(registry):
    settings = kopf.OperatorSettings()
    settings.metrics.registry = registry
    return settings


@pytest.fixture
async def served(collector, settings):
    async with LoopMonitor(BlockingReporter(settings)) as monitor:
        responder = MetricsResponder(collector, monitor, settings.metrics, load_prometheus())
        async with StatusServer('127.0.0.1', 0, responder.get_routes('/metrics'), purpose="the metrics") as server:
            yield Served(server.port)
        responder.close()


async def test_the_format_is_negotiated(served):
    status, content_type, text = await served.ask()
    assert status == 200 and content_type.startswith('text/plain') and 'kopf_objects{' in text
    _, content_type, text = await served.ask(accept='application/openmetrics-text; version=1.0.0')
    assert content_type.startswith('application/openmetrics-text') and text.endswith('# EOF\n')


def read_lag(text):
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith('kopf_event_loop_lag'))


async def test_a_blocked_loop_is_measured_from_aside(served, monkeypatch):
    monkeypatch.setattr('kopf._core.engines.metrics.LAG_LIMIT', 0.05)
    _, _, text = await served.ask()
    assert read_lag(text) < 0.05
    answers = []
    thread = threading.Thread(target=lambda: answers.append(served.ask_now()))
    thread.start()
    thread.join()  # here the event loop is blocked
    assert read_lag(answers[0][2]) >= 0.05


async def test_a_stuck_collector_fails_the_request_and_the_next_ones_at_once(served, registry, settings):
    settings.metrics.timeout = 0.05
    release = threading.Event()

    class Stuck:
        def describe(self):
            return []

        def collect(self):
            release.wait()
            return []

    registry.register(Stuck())
    try:
        status, _, text = await served.ask()
        assert (status, text) == (503, "The metrics were not collected in 0.05 seconds.\n")
        status, _, text = await served.ask()
        assert status == 503 and "stuck" in text
    finally:
        release.set()
    settings.metrics.timeout = 60
    async with asyncio.timeout(60):
        while (await served.ask())[0] != 200:
            pass
