"""The dashboard and the alerts: valid, and with data from a real operator."""

import asyncio
import contextlib
import json
import re
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request

import pytest
import yaml
from click.testing import CliRunner
from operatorworld import new_world
from prometheus_client.parser import text_string_to_metric_families
from snippets import find_page

import kopf
from kopf._kits.boards import make_alerts, make_board
from kopf.cli import main

CONTROLLER_RUNTIME = {
    'controller_runtime_active_workers': {'controller'},
    'controller_runtime_reconcile_total': {'controller', 'result'},
    'controller_runtime_reconcile_errors_total': {'controller'},
    'controller_runtime_reconcile_time_seconds_bucket': {'controller', 'le'},
    'workqueue_depth': {'name'},
    'workqueue_adds_total': {'name'},
    'workqueue_retries_total': {'name'},
    'workqueue_queue_duration_seconds_bucket': {'name', 'le'},
    'workqueue_work_duration_seconds_bucket': {'name', 'le'},
    'workqueue_unfinished_work_seconds': {'name'},
    'workqueue_longest_running_processor_seconds': {'name'},
    'rest_client_requests_total': {'code', 'method', 'host'},
}
"""The metrics that the dashboard of kubebuilder's projects uses, and others of its metrics; with their labels."""


SELECTOR = '{job="operator", namespace="ops"}'


def rate(metric, by, *, selector=SELECTOR):
    return f'sum by ({by}) (rate({metric}{selector}[5m]))'


def quantile(number, metric, by):
    return f'histogram_quantile({number}, {rate(metric + "_bucket", by + ", le")})'


CONTROLLER_RUNTIME_BOARD = (
    rate('controller_runtime_reconcile_total', 'instance, pod'),
    rate('controller_runtime_reconcile_total', 'controller, result'),
    rate('controller_runtime_reconcile_errors_total', 'instance, pod'),
    *(quantile(number, 'controller_runtime_reconcile_time_seconds', 'controller') for number in (0.5, 0.9, 0.99)),
    rate('controller_runtime_reconcile_time_seconds_sum', 'controller'),
    rate('controller_runtime_reconcile_time_seconds_count', 'controller'),
    f'controller_runtime_active_workers{SELECTOR}',
    f'workqueue_depth{SELECTOR}',
    rate('workqueue_adds_total', 'instance, name'),
    rate('workqueue_retries_total', 'instance, name'),
    *(quantile(number, 'workqueue_queue_duration_seconds', 'instance, name') for number in (0.5, 0.9, 0.99)),
    *(quantile(number, 'workqueue_work_duration_seconds', 'instance, name') for number in (0.5, 0.9, 0.99)),
    f'rate(workqueue_unfinished_work_seconds{SELECTOR}[5m])',
    f'workqueue_longest_running_processor_seconds{SELECTOR}',
    rate('rest_client_requests_total', 'code, method, host'),
    f'rate(process_cpu_seconds_total{SELECTOR}[5m]) * 100',
    f'process_resident_memory_bytes{SELECTOR}',
    'group by (job) (controller_runtime_reconcile_total{namespace=~"ops"})',  # the values of the variables
    'group by (namespace) (controller_runtime_reconcile_total)',
)
"""What boards of controller-runtime's metrics ask, as its documentation describes these metrics and their labels."""

CONTROLLER_RUNTIME_ALERTS = (
    rate('controller_runtime_reconcile_errors_total', 'controller')
    + ' / '
    + rate('controller_runtime_reconcile_total', 'controller'),
    rate('controller_runtime_reconcile_total', 'controller', selector='{result="error"}'),
    'sum by (controller) (increase(controller_runtime_reconcile_errors_total[10m]))',
    quantile(0.99, 'controller_runtime_reconcile_time_seconds', 'controller'),
    quantile(0.99, 'workqueue_queue_duration_seconds', 'name'),
    'max by (name) (workqueue_depth)',
    'max by (name) (workqueue_unfinished_work_seconds)',
    'max by (name) (workqueue_longest_running_processor_seconds)',
    rate('rest_client_requests_total', 'job', selector='{code=~"5.."}')
    + ' / '
    + rate('rest_client_requests_total', 'job', selector=''),
    'sum by (job) (leader_election_master_status)',
    'absent(controller_runtime_reconcile_total{job="another"})',
)
"""What the usual alerts compare with a limit."""


def get_queries():
    board = [target['expr'] for panel in make_board()['panels'] for target in panel.get('targets', ())]
    return [*board, *(rule['expr'] for rule in make_alerts()['groups'][0]['rules'])]


def read_names(query):
    """Return the metrics of the query, without functions, labels and variables."""
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^]]*\]|\bby \([^)]*\)', '', query)
    return set(re.findall(r'[a-z_]+_[a-z_]+', bare)) - {'histogram_quantile'}


def read_labels(query):
    return {name for group in re.findall(r'\bby \(([^)]*)\)', query) for name in re.split(', *', group)}


REPLICAS = [
    pytest.param({'leader_election': True}, 'kopf_unowned_buckets', id='election'),
    pytest.param({'shards': 'auto'}, 'leader_election_master_status', id='shards'),
]
"""The options of operators with several replicas, and the metric that they do not have."""


@contextlib.asynccontextmanager
async def serving(port, **options):
    """Run an operator that has handled an object, and has met with all kinds of failures."""
    with new_world() as world:
        world.settings.networking.error_backoffs = [0.01]
        world.settings.watching.reconnect_backoff = 0
        world.settings.leadership.namespace = world.settings.sharding.namespace = 'default'
        world.sandbox.faults.error(503, method='PATCH')
        world.declare(kopf.on.create, 'create')
        world.declare(kopf.on.update, 'update')
        world.declare(kopf.on.create, 'failing', does=kopf.PermanentError("boo"))
        async with world.operator(metrics_endpoint=f'http://127.0.0.1:{port}/metrics', **options):
            await world.create()
            await world.handled()
            world.sandbox.faults.expire_watches(resource='kopfexamples')
            world.sandbox.faults.drop_watches()
            async with asyncio.timeout(60):
                while 'kopf_watch_restarts_total{' not in await fetch(f'http://127.0.0.1:{port}/metrics'):
                    pass
            yield world


def fetch_now(url):
    with urllib.request.urlopen(url, timeout=60) as response:
        return response.read().decode()


async def fetch(url):
    return await asyncio.to_thread(fetch_now, url)


@pytest.fixture
def port(unused_tcp_port):
    return unused_tcp_port


@pytest.mark.parametrize('options, missing', REPLICAS)
async def test_all_metrics_of_the_queries_exist_with_the_labels_that_they_use(port, options, missing):
    async with serving(port, **options):
        text = await fetch(f'http://127.0.0.1:{port}/metrics')
    labels = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    for query in get_queries():
        names = read_names(query)
        if missing in names:
            continue
        assert names <= labels.keys(), query
        # Prometheus adds these.
        known = set().union(*(labels[name] for name in names)) | {'job', 'namespace', 'pod', 'instance'}
        assert read_labels(query) <= known, query


async def test_metrics_of_other_dashboards_exist_with_their_labels(port):
    async with serving(port):
        text = await fetch(f'http://127.0.0.1:{port}/metrics')
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    assert {name: labels - found.get(name, set()) for name, labels in CONTROLLER_RUNTIME.items()} == dict.fromkeys(
        CONTROLLER_RUNTIME, set()
    )


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which('prometheus') is None, reason="Prometheus is not installed")
@pytest.mark.parametrize('options, missing', REPLICAS)
async def test_the_queries_have_data_in_prometheus(port, tmp_path, options, missing):
    async with serving(port, **options) as world, prometheus(port, tmp_path) as own:
        for query in get_queries():
            query = query.replace('$__rate_interval', '1m').replace('$job', '.*').replace('$namespace', '.*')
            query = re.sub(r' (>|> [0-9.]+ \*) [^>]*$', '', query)  # without the limit of the alert
            if missing not in query:
                await until_answered(own, query, world)


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which('prometheus') is None, reason="Prometheus is not installed")
async def test_queries_of_controller_runtime_have_data_in_prometheus(port, tmp_path):
    async with serving(port, leader_election=True) as world, prometheus(port, tmp_path) as own:
        for query in (*CONTROLLER_RUNTIME_BOARD, *CONTROLLER_RUNTIME_ALERTS):
            await until_answered(own, query, world)
        assert await ask(own, 'workqueue_nonsense') == []


@contextlib.asynccontextmanager
async def prometheus(port, path):
    """Run a Prometheus that scrapes the operator as if it were in a pod; yield its port."""
    with socket.create_server(('127.0.0.1', 0)) as free:
        own = free.getsockname()[1]
    target = {'targets': [f'127.0.0.1:{port}'], 'labels': {'namespace': 'ops', 'pod': 'operator-0'}}
    scraping = {'job_name': 'operator', 'scrape_interval': '1s', 'static_configs': [target]}
    config = path / 'prometheus.yml'
    config.write_text(yaml.safe_dump({'scrape_configs': [scraping]}))
    command = ['prometheus', f'--config.file={config}', f'--storage.tsdb.path={path}/data']
    process = await asyncio.create_subprocess_exec(
        *command, f'--web.listen-address=127.0.0.1:{own}', stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield own
    finally:
        process.terminate()
        await process.wait()


async def until_answered(port, query, world):
    """Wait until the query has data with a value, while the operator has work; fail with the query otherwise."""
    for number in range(600):
        if any(sample['value'][1] != 'NaN' for sample in await ask(port, query)):
            return
        await world.edit(field=f'{query} {number}')  # without new events, most quantiles and shares are undefined
        await asyncio.sleep(0.1)
    raise AssertionError(f"No data: {query}")


async def ask(port, query):
    """Return the result of the query; nothing if Prometheus is not ready yet."""
    url = f'http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({"query": query})}'
    try:
        return json.loads(await fetch(url))['data']['result']
    except OSError:
        return []


def test_panels_do_not_overlap():
    places = set()
    for panel in make_board()['panels']:
        position = panel['gridPos']
        cells = {(position['x'] + x, position['y'] + y) for x in range(position['w']) for y in range(position['h'])}
        assert not cells & places and max(x for x, _ in cells) < 24
        places |= cells
    ids = [panel['id'] for panel in make_board()['panels']]
    assert len(ids) == len(set(ids))


def test_the_command_prints_the_dashboard():
    result = CliRunner().invoke(main, ['grafana', '--title', 'My operators'])
    assert result.exit_code == 0
    board = json.loads(result.output)
    assert board == make_board('My operators') and board['uid'] == 'kopf-my-operators'


def test_the_command_prints_the_alerts():
    result = CliRunner().invoke(main, ['grafana', '--alerts'])
    assert result.exit_code == 0
    assert yaml.safe_load(result.output) == make_alerts()
    page = find_page('metrics').read_text()
    assert all(f"``{rule['alert']}``" in page for rule in make_alerts()['groups'][0]['rules'])


@pytest.mark.skipif(shutil.which('promtool') is None, reason="promtool is not installed")
def test_promtool_accepts_the_alerts(tmp_path):
    path = tmp_path / 'alerts.yaml'
    path.write_text(yaml.safe_dump(make_alerts()))
    result = subprocess.run(['promtool', 'check', 'rules', path], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
