"""The endpoints of a whole operator: metrics, beside the probes or elsewhere, and bad options."""

import asyncio
import contextlib
import json
import shutil
import socket
import subprocess
import urllib.error
import urllib.request

import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

import kopf
from kopf._core.engines.status_server import EndpointError, StatusServerError
from kopf._core.reactor.status_runtime import parse_metrics_endpoint

NAME = 'kopfexamples.kopf.dev'


def ask_now(port, path):
    try:
        with urllib.request.urlopen(f'http://127.0.0.1:{port}{path}', timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def ask(port, path='/metrics'):
    return await asyncio.to_thread(ask_now, port, path)


async def read(port):
    """Return the values of all metrics: the labels are joined, as in ``"a=1,b=2"``."""
    status, text = await ask(port)
    assert status == 200
    return {
        (sample.name, ','.join(f'{name}={value}' for name, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def read_until(port, predicate):
    async with asyncio.timeout(60):
        while True:
            values = await read(port)
            with contextlib.suppress(KeyError):  # a metric that is not there yet
                if predicate(values):
                    return values


@pytest.fixture
def port(unused_tcp_port):
    return unused_tcp_port


@pytest.fixture(autouse=True)
def registry(world):
    world.settings.metrics.registry = prometheus_client.CollectorRegistry()
    return world.settings.metrics.registry


@pytest.mark.parametrize(
    'url, path',
    [('http://:9090', '/metrics'), ('http://:9090/', '/metrics'), ('http://:9090/own', '/own')],
)
def test_the_path_of_metrics_has_a_default(url, path):
    assert parse_metrics_endpoint(url).path == path


def test_wrong_urls_are_refused_by_the_name_of_the_option():
    with pytest.raises(EndpointError, match=r"The metrics endpoint must be like http://0\.0\.0\.0:9090/metrics"):
        parse_metrics_endpoint('localhost:9090')


async def test_the_work_of_an_operator_is_counted(world, port):
    errors = [kopf.TemporaryError("not yet", delay=0.5), ValueError("boo")]
    world.declare(kopf.on.create, 'create', does=errors, backoff=0.5)
    async with world.operator(metrics_endpoint=f'http://127.0.0.1:{port}'):
        await world.create()
        await world.handled()
        # The object is at rest a moment before its step has ended.
        values = await read_until(port, lambda values: values['kopf_objects', f'resource={NAME},state=resting'] == 1)
    results = {
        result: values['controller_runtime_reconcile_total', f'controller={NAME},result={result}']
        for result in ('success', 'requeue_after', 'error')
    }
    assert results['success'] >= 1 and results['requeue_after'] >= 1 and results['error'] == 1
    assert values['controller_runtime_reconcile_errors_total', f'controller={NAME}'] == 1
    assert values['controller_runtime_reconcile_time_seconds_count', f'controller={NAME}'] >= sum(results.values())
    assert values['workqueue_adds_total', f'controller={NAME},name={NAME}'] >= 3
    assert values['workqueue_retries_total', f'controller={NAME},name={NAME}'] >= 2
    assert values['kopf_handler_seconds_count', 'handler=create,outcome=retried'] == 2
    assert values['kopf_handler_seconds_count', 'handler=create,outcome=succeeded'] == 1
    host = world.sandbox.url.partition('://')[2]
    assert values['rest_client_requests_total', f'code=200,host={host},method=PATCH'] >= 1


async def test_objects_are_counted_by_their_states(world, port):
    keys = [('kopf_objects', f'resource={NAME},state={state}') for state in ('waiting', 'handling', 'queued')]
    world.settings.queueing.worker_limit = 1
    gate = asyncio.Event()

    async def wait(name, **_):
        if name == 'delayed':
            raise kopf.TemporaryError("later", delay=1000)
        await gate.wait()

    world.declare(kopf.on.create, 'create', does=wait)
    async with world.operator(metrics_endpoint=f'http://127.0.0.1:{port}'):
        await world.create('delayed')
        await read_until(port, lambda values: values[keys[0]] == 1)
        await world.create('running')
        await world.until_called('create', name='running')
        await world.create('queued')

        values = await read_until(port, lambda values: [values[key] for key in keys] == [1, 1, 1])
        gate.set()
        await world.handled('queued')
    assert values['workqueue_depth', f'controller={NAME},name={NAME}'] == 1
    assert values['controller_runtime_active_workers', f'controller={NAME}'] == 1
    assert values['workqueue_longest_running_processor_seconds', f'controller={NAME},name={NAME}'] > 0


async def test_runs_of_level_triggered_handlers_are_reconciliations(world, port):
    world.declare(kopf.on.reconcile, 'fn', does=[kopf.TemporaryError("not yet", delay=0.01), kopf.PermanentError("no")])
    async with world.operator(metrics_endpoint=f'http://127.0.0.1:{port}'):
        await world.create()
        await world.until_called('fn', 2)
        errors = 'controller_runtime_reconcile_errors_total', f'controller={NAME}'
        values = await read_until(port, lambda values: values[errors] == 1)
    assert {
        result: values['controller_runtime_reconcile_total', f'controller={NAME},result={result}']
        for result in ('success', 'requeue', 'requeue_after', 'error')
    } == {'success': 0, 'requeue': 0, 'requeue_after': 1, 'error': 1}


async def test_instruments_and_meters_get_the_same_handlers(world, port):
    class Calls(kopf.Instrument):
        def __init__(self):
            self.outcomes = []

        def handler_ends(self, call):
            self.outcomes.append((call.id, call.outcome))

        def step_ends(self, step):
            self.outcomes.append(('step', step.outcome))

    calls = Calls()
    world.declare(kopf.on.create, 'create')
    async with world.operator(metrics_endpoint=f'http://127.0.0.1:{port}', instruments=[calls]):
        await world.create()
        await world.handled()
        values = await read(port)
    assert ('create', 'succeeded') in calls.outcomes and ('step', 'done') in calls.outcomes
    assert values['kopf_handler_seconds_count', 'handler=create,outcome=succeeded'] == 1


async def test_the_leader_of_replicas_is_shown(world, port):
    world.settings.leadership.namespace = 'default'
    world.declare(kopf.on.create, 'create')
    async with world.operator(leader_election=True, metrics_endpoint=f'http://127.0.0.1:{port}'):
        await read_until(port, lambda values: values['leader_election_master_status', 'name=kopf-operator'] == 1)


async def test_the_buckets_without_a_member_are_shown(world, port):
    world.settings.sharding.namespace = 'default'
    world.declare(kopf.on.create, 'create')
    async with world.operator(shards='auto', metrics_endpoint=f'http://127.0.0.1:{port}'):
        await read_until(port, lambda values: values['kopf_unowned_buckets', ''] == 0)


async def test_there_is_no_leader_without_an_election(world, port):
    async with world.operator(metrics_endpoint=f'http://127.0.0.1:{port}'):
        values = await read(port)
    assert not any(name == 'leader_election_master_status' for name, _ in values)


async def test_metrics_of_the_program_come_along(world, port, registry):
    prometheus_client.Counter('orders', "Orders", registry=registry).inc(5)
    async with world.operator(metrics_endpoint=f'http://127.0.0.1:{port}/own'):
        status, text = await ask(port, '/own')
    assert status == 200 and 'orders_total 5.0' in text


async def test_metrics_and_probes_can_share_a_port(world, port, caplog):
    caplog.set_level('INFO', 'aiohttp.access')
    world.settings.metrics.endpoint = f'http://127.0.0.1:{port}/metrics'
    async with world.operator(liveness_endpoint=f'http://127.0.0.1:{port}/healthz'):
        assert (await ask(port))[0] == 200
        assert json.loads((await ask(port, '/healthz'))[1]) == {}
    assert [('/healthz' in text, '/metrics' in text) for text in caplog.messages if 'GET ' in text] == [(True, False)]


async def test_metrics_and_probes_cannot_share_a_path(world, port):
    with pytest.raises(StatusServerError, match="The endpoints of the probes and of the metrics are the same"):
        async with world.operator(
            liveness_endpoint=f'http://127.0.0.1:{port}/same', metrics_endpoint=f'http://127.0.0.1:{port}/same'
        ):
            pass


async def test_a_port_in_use_ends_the_operator_with_the_reason(world):
    with socket.create_server(('127.0.0.1', 0)) as taken:
        url = f'http://127.0.0.1:{taken.getsockname()[1]}/metrics'
        with pytest.raises(StatusServerError, match=r"The server of the metrics cannot listen at 127.*in use"):
            async with world.operator(metrics_endpoint=url):
                pass


@pytest.mark.skipif(shutil.which('promtool') is None, reason="promtool is not installed")
async def test_promtool_finds_no_fault(world, port):
    world.declare(kopf.on.create, 'create')
    async with world.operator(metrics_endpoint=f'http://127.0.0.1:{port}'):
        await world.create()
        await world.handled()
        _, text = await ask(port)
    result = subprocess.run(['promtool', 'check', 'metrics'], input=text, text=True, capture_output=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, '', '')
