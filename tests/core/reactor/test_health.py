"""What the probes of a running operator answer, when its watches go wrong."""

import asyncio
import json
import pathlib
import socket
import threading
import urllib.error
import urllib.request

import pytest
from kinds import define
from offlineserver import OfflineServer

import kopf
from kopf._core.reactor import watches
from kopf.testing import Sandbox

PEERINGS = pathlib.Path(__file__).resolve().parents[3] / 'peering.yaml'
CRD = define('kopfexamples', 'KopfExample', group='kopf.dev')


@pytest.fixture
def sandbox(monkeypatch):
    with Sandbox(crds=[CRD, PEERINGS]) as sandbox:
        monkeypatch.setenv('KUBECONFIG', str(sandbox.kubeconfig))
        yield sandbox


@pytest.fixture
def settings():
    settings = kopf.OperatorSettings()
    settings.networking.error_backoffs = []
    settings.probing.failing_watch_limit = 0
    return settings


@pytest.fixture
def registry():
    return kopf.OperatorRegistry()


@pytest.fixture
async def ask(sandbox, settings, registry):
    """Run an operator, give the function to ask it."""
    kopf.on.login(registry=registry)(kopf.login_with_kubeconfig)
    kopf.on.event('kopfexamples', registry=registry)(lambda **_: None)
    with socket.create_server(('127.0.0.1', 0)) as free:
        port = free.getsockname()[1]

    def ask_now(path):
        try:
            with urllib.request.urlopen(f'http://127.0.0.1:{port}{path}', timeout=60) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())
        except OSError:
            return 0, {}

    async def ask(path, status, reason=''):
        """Ask until the answer is as expected."""
        async with asyncio.timeout(60):
            while True:
                code, content = await asyncio.to_thread(ask_now, path)
                if code == status and reason in str(content.get('reasons', content.get('warnings', ''))):
                    return
                await asyncio.sleep(0.02)

    stop = asyncio.Event()
    task = asyncio.create_task(
        kopf.operator(
            registry=registry,
            settings=settings,
            namespaces=['default'],
            stop_flag=stop,
            liveness_endpoint=f'http://:{port}/healthz',
        )
    )
    yield ask
    stop.set()
    await task


async def test_a_working_operator_is_healthy_and_ready(ask):
    await ask('/readyz', 200)
    await ask('/healthz', 200)


async def test_a_failing_watch_makes_the_operator_unhealthy(sandbox, settings, ask):
    await ask('/readyz', 200)
    sandbox.faults.error(500, times=None, resource='kopfexamples')
    sandbox.faults.drop_watches()
    await ask('/healthz', 503, "The watch-stream for kopfexamples.v1.kopf.dev in 'default' has been failing")
    settings.probing.failing_watch_limit = None
    await ask('/healthz', 200)
    settings.probing.failing_watch_limit = 0
    sandbox.faults.clear()
    await ask('/healthz', 200)


async def test_missing_permissions_make_it_not_ready_but_alive(sandbox, ask):
    sandbox.faults.error(403, times=None, resource='kopfexamples', message='not for you')
    await ask('/readyz', 503, 'not for you')
    await ask('/healthz', 200)


async def test_an_operator_is_not_ready_before_its_lists(sandbox, ask):
    sandbox.faults.error(500, times=None, resource='kopfexamples')
    await ask('/readyz', 503)
    sandbox.faults.clear()
    await ask('/readyz', 200)


@pytest.mark.parametrize('resource', ['namespaces', 'customresourcedefinitions', 'kopfpeerings'])
async def test_a_failing_observer_makes_the_operator_unhealthy(sandbox, settings, ask, resource):
    await ask('/readyz', 200)
    sandbox.faults.error(500, times=None, resource=resource)
    sandbox.faults.drop_watches()
    await ask('/healthz', 503, f"The watch-stream for {resource}")
    sandbox.faults.clear()
    await ask('/healthz', 200)


async def test_observers_without_rights_are_not_waited_for(sandbox, ask):
    for resource in ['namespaces', 'customresourcedefinitions', 'kopfpeerings']:
        sandbox.faults.error(403, times=None, resource=resource)
    await ask('/readyz', 200)
    await ask('/healthz', 200)


class SlowServer:
    """A webhook server that takes its time to begin."""

    def __init__(self):
        self.listens = asyncio.Event()

    async def __call__(self, fn):
        await self.listens.wait()
        yield {'url': 'https://localhost:1/', 'caBundle': 'Q0E='}
        await asyncio.Event().wait()


@pytest.fixture
def server(registry, settings):
    kopf.on.validate('kopfexamples', registry=registry)(lambda **_: None)
    settings.admission.server = SlowServer()
    return settings.admission.server


async def test_the_webhook_server_does_not_listen_yet(server, ask):
    await ask('/readyz', 503, "The webhook server does not listen yet.")
    await ask('/healthz', 200)
    server.listens.set()
    await ask('/readyz', 200)


@pytest.fixture
def hanging_review(registry, settings):
    """Have a handler of a webhook that hangs until the end of the test; return its server."""
    leave = threading.Event()
    kopf.on.validate('kopfexamples', registry=registry)(lambda **_: leave.wait())
    settings.admission.server, settings.execution.max_workers = OfflineServer(), 1
    yield settings.admission.server
    leave.set()


async def test_probes_do_not_wait_for_webhooks_that_hang_in_all_threads(registry, hanging_review, ask):
    kopf.on.probe(registry=registry)(lambda **_: 'fine')
    await hanging_review.started.wait()
    review = asyncio.create_task(hanging_review.review())
    await ask('/healthz', 200)
    assert not review.done()
    review.cancel()


@pytest.fixture
def index_of_things(registry):
    kopf.index('things', registry=registry, id='index')(lambda **_: None)


async def test_an_index_that_cannot_be_filled_fails_the_readiness(index_of_things, sandbox, ask, monkeypatch):
    monkeypatch.setattr(watches, 'MAX_BACKOFF', 0.5)
    await ask('/readyz', 200)
    sandbox.faults.error(500, times=None, resource='things')
    names = {'plural': 'things', 'kind': 'Thing'}
    sandbox.apply({**CRD, 'metadata': {'name': 'things.kopf.dev'}, 'spec': {**CRD['spec'], 'names': names}})
    await ask('/readyz', 503, "The indices are not complete yet.")
    await ask('/healthz', 503, "The watch-stream for things.v1.kopf.dev")
    sandbox.faults.clear()
    await ask('/readyz', 200)


@pytest.fixture
def converted(registry, settings, sandbox):
    kopf.on.convert('things', registry=registry)(lambda **_: None)
    kopf.index('things', registry=registry, id='index')(lambda **_: None)
    settings.admission.server = SlowServer()
    settings.admission.managed = 'test.kopf.dev'
    settings.admission.server.listens.set()
    names, [version] = {'plural': 'things', 'kind': 'Thing'}, CRD['spec']['versions']
    versions = [version, {**version, 'name': 'v2', 'storage': False}]
    spec = {**CRD['spec'], 'names': names, 'versions': versions}
    sandbox.apply({**CRD, 'metadata': {'name': 'things.kopf.dev'}, 'spec': spec})


async def test_kinds_that_wait_for_their_conversion_are_warnings(converted, sandbox, ask, monkeypatch):
    """Kubernetes calls the webhook of an operator only when it is ready, so it must be ready without these kinds."""
    monkeypatch.setattr(watches, 'MAX_BACKOFF', 0.5)
    sandbox.faults.error(403, times=None, method='PATCH', name='things.kopf.dev')
    await ask('/readyz', 200, "The objects of things.kopf.dev are not handled: their conversion is not in force.")
    sandbox.faults.clear()
    sandbox.faults.error(500, times=None, resource='things')
    await ask('/readyz', 200, "The list of things.v2.kopf.dev in")
    sandbox.faults.clear()
