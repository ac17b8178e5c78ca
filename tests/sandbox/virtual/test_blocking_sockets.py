"""Blocking clients of the API in virtual time: they take turns with everything else, and so do their time-outs."""

import asyncio
import json
import socket
import textwrap
import time
import urllib.request

import pytest

from kopf._kits.testing.virtual.blocking_sockets import CHUNK
from kopf.testing import Operator, Sandbox, VirtualTimeError

CRD = "examples/crd.yaml"
virtual = pytest.mark.kopf_sandbox(virtual_time=True, crds=CRD)

PREAMBLE = """
    import json
    import urllib.request

    @kopf.on.startup()
    def connect(memo, **kwargs):
        memo.connection = kopf.login_with_kubeconfig(**kwargs)

    def send(memo, method, path, body=None, timeout=None):
        connection = memo.connection
        headers = {'Content-Type': 'application/json', **connection.as_http_headers()}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(connection.server + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return json.load(response)
"""

CLIENTS = {
    "urllib": """
        def create(memo):
            send(memo, 'POST', '/api/v1/namespaces/default/configmaps', {'metadata': {'name': 'child'}})
    """,
    "requests": """
        import requests

        def create(memo):
            connection = memo.connection
            url = f'{connection.server}/api/v1/namespaces/default/configmaps'
            with requests.Session() as session:
                for _ in range(3):
                    assert session.get(url, headers=connection.as_http_headers()).json()['items'] is not None
                session.post(url, json={'metadata': {'name': 'child'}}, headers=connection.as_http_headers())
    """,
    "kubernetes": """
        import os
        import kubernetes

        def create(memo):
            kubernetes.config.load_kube_config(os.environ['KUBECONFIG'])  # the default is that of the first import
            api = kubernetes.client.CoreV1Api()
            api.create_namespaced_config_map('default', {'metadata': {'name': 'child'}})
            watch = kubernetes.watch.Watch().stream(api.list_namespaced_config_map, 'default', timeout_seconds=600)
            assert [event['object'].metadata.name for event in watch] == ['child']
    """,
    "pykube": """
        import pykube

        def create(memo):
            api = pykube.HTTPClient(pykube.KubeConfig.from_env())
            child = {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'child', 'namespace': 'default'}}
            pykube.ConfigMap(api, child).create()
    """,
    "lightkube": """
        import lightkube
        from lightkube.models.meta_v1 import ObjectMeta
        from lightkube.resources.core_v1 import ConfigMap

        def create(memo):
            lightkube.Client().create(ConfigMap(metadata=ObjectMeta(name='child', namespace='default')))
    """,
}

HANDLER = """
    import time

    @kopf.on.create('kopfexamples')
    def create_fn(memo, **_):
        began = time.monotonic()
        create(memo)
        print(f'took {time.monotonic() - began:.3f}')
"""


@pytest.fixture
def write(tmp_path):
    """Write the parts of an operator to a file; return its path."""

    def write(*parts):
        path = tmp_path / "handlers.py"
        path.write_text("\n".join(["import kopf", *map(textwrap.dedent, parts)]))
        return path

    return write


def run_operator(sandbox, operator, path):
    with operator(path) as running:
        sandbox.create("kex", "x")
        sandbox.rest(quiet=700)
        return running.output


@virtual
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # not all clients close their sockets
@pytest.mark.parametrize(
    "client", [pytest.param(name, marks=[pytest.mark.long] if name == "kubernetes" else []) for name in CLIENTS]
)
def test_blocking_clients_reach_the_sandbox(kopf_sandbox, kopf_operator, write, client):
    if client != "urllib":
        pytest.importorskip(client)
    output = run_operator(kopf_sandbox, kopf_operator, write(PREAMBLE, CLIENTS[client], HANDLER))
    assert kopf_sandbox.get("configmaps", "child")
    assert "took" in output


def test_requests_of_blocking_clients_are_the_same_in_each_run(write):
    path = write(PREAMBLE, CLIENTS["urllib"], HANDLER)

    def run():
        with Sandbox(virtual_time=True, crds=CRD) as sandbox, Operator(sandbox, path) as operator:
            for number in range(3):
                sandbox.create("kex", f"x{number}")
            sandbox.rest(quiet=50)
            return [(seen.time, seen.method, seen.path, seen.status) for seen in sandbox.requests], operator.output

    assert len({repr(run()) for _ in range(3)}) == 1


@virtual
@pytest.mark.parametrize(
    "fault, error",
    [
        (lambda faults, **conditions: faults.delay(90, **conditions), "TimeoutError.*20.0"),
        (lambda faults, **conditions: faults.drop(**conditions), "RemoteDisconnected|ConnectionResetError"),
        (lambda faults, **conditions: faults.lose(**conditions), "RemoteDisconnected|ConnectionResetError"),
        (lambda faults, **conditions: faults.error(409, **conditions), "HTTPError"),
    ],
    ids=["delay", "drop", "lose", "error"],
)
def test_blocking_clients_see_disturbances(kopf_sandbox, kopf_operator, write, fault, error):
    path = write(
        PREAMBLE,
        """
        import time

        @kopf.on.create('kopfexamples')
        def create_fn(memo, **_):
            began = time.monotonic()
            try:
                send(memo, 'POST', '/api/v1/namespaces/default/configmaps', {'metadata': {'name': 'child'}}, 20)
            except Exception as error:
                print(f'got {type(error).__name__} after {time.monotonic() - began:.1f}')
        """,
    )
    fault(kopf_sandbox.faults, verb="create", resource="configmaps")
    output = run_operator(kopf_sandbox, kopf_operator, path)
    [line] = [line for line in output.splitlines() if line.startswith("got ")]
    assert any(name in line for name in error.partition(".*")[0].split("|"))
    assert line.endswith(error.partition(".*")[2])


@virtual
def test_operators_are_killed_in_requests_of_blocking_clients(kopf_sandbox, kopf_operator, write):
    with kopf_operator(write(PREAMBLE, CLIENTS["urllib"], HANDLER)) as operator:
        kopf_sandbox.faults.call(operator.kill, late=True, verb="create", resource="configmaps")
        kopf_sandbox.create("kex", "x")
        kopf_sandbox.advance(100)
        assert operator.returncode == -9
        assert "took" not in operator.output
    assert kopf_sandbox.get("configmaps", "child")


@virtual
def test_other_things_happen_while_blocking_clients_wait(kopf_sandbox, kopf_operator, write):
    ticks = """
        @kopf.timer('kopfexamples', interval=1)
        async def tick(**_):
            print('tick')
    """
    kopf_sandbox.faults.delay(30, verb="create", resource="configmaps")
    output = run_operator(kopf_sandbox, kopf_operator, write(PREAMBLE, CLIENTS["urllib"], HANDLER, ticks))
    before, _, _ = output.partition("took 30.0")
    assert before.count("tick") >= 20


@virtual
def test_tests_can_use_blocking_clients_too(kopf_sandbox):
    data = json.dumps({"metadata": {"name": "large"}, "data": {"x": "y" * 10 * CHUNK}}).encode()
    headers = {"Authorization": f"Bearer {kopf_sandbox.token}", "Content-Type": "application/json"}
    url = f"{kopf_sandbox.url}/api/v1/namespaces/default/configmaps"
    with urllib.request.urlopen(urllib.request.Request(url, data, headers)) as response:
        assert len(json.load(response)["data"]["x"]) == 10 * CHUNK


@virtual
def test_ports_without_servers_refuse_connections(kopf_sandbox):
    began = time.monotonic()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", 1))
    assert time.monotonic() - began < 1
    with socket.socket() as sock:
        assert sock.connect_ex(("127.0.0.1", 1)) > 0


@virtual
def test_coroutines_that_wait_for_sockets_are_told_what_to_do(kopf_sandbox):
    async def connect():
        with socket.socket() as sock:
            sock.connect(("127.0.0.1", 20001))

    with pytest.raises(VirtualTimeError, match="A coroutine waits for a socket, and so blocks the event loop: call"):
        kopf_sandbox.run(connect())


@virtual
def test_event_loops_in_threads_are_told_what_to_do(kopf_sandbox):
    def connect():
        with socket.socket() as sock:
            sock.setblocking(False)
            sock.connect(("127.0.0.1", 20001))

    with pytest.raises(VirtualTimeError, match="A thread connects a non-blocking socket, as event loops do."):
        kopf_sandbox.run(asyncio.to_thread(connect))
