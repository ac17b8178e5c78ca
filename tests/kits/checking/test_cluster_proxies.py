"""The proxy between an operator and a cluster: what it disturbs, what it records, and what it refuses."""

import contextlib
import http.client
import json
import ssl
import threading

import orjson
import pytest
import yaml

from kopf._kits.checking.cluster_proxies import ClusterProxy
from kopf._kits.checking.clusters import Cluster

CONFIGMAPS = "/api/v1/namespaces/run-1/configmaps"


class Client:
    """An operator's client: one request a connection."""

    def __init__(self, kubeconfig):
        config = yaml.safe_load(kubeconfig.read_text())
        self.netloc = config["clusters"][0]["cluster"]["server"].removeprefix("https://")
        self.headers = {"Authorization": f"Bearer {config['users'][0]['user']['token']}"}
        self.namespace = config["contexts"][0]["context"]["namespace"]

    @contextlib.contextmanager
    def open(self, method, path, body=None, **headers):
        connection = http.client.HTTPSConnection(self.netloc, context=ssl._create_unverified_context(), timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path, body and orjson.dumps(body), {**self.headers, **headers})
            yield connection.getresponse()

    def __call__(self, method, path, body=None, **headers):
        with self.open(method, path, body, **headers) as response:
            return response.status, json.loads(response.read())


@pytest.fixture
def proxy(sandbox, tmp_path):
    """Return a proxy for the namespace ``run-1``, which is ``default`` in plans."""
    with (
        Cluster("sandbox", threaded=True) as cluster,
        ClusterProxy(cluster, "run-1", "default", tmp_path / "operator") as proxy,
    ):
        yield proxy


@pytest.fixture
def client(proxy, tmp_path):
    return Client(tmp_path / "operator")


def make(name):
    return {"metadata": {"name": name}}


def test_requests_are_answered_by_the_cluster(proxy, client, sandbox):
    status, body = client("POST", CONFIGMAPS, make("a"))
    assert (status, body["metadata"]["namespace"]) == (201, "run-1")
    assert client("GET", f"{CONFIGMAPS}/a?pretty=true")[1]["metadata"]["uid"] == body["metadata"]["uid"]
    assert client("GET", f"{CONFIGMAPS}/b")[0] == 404
    assert client.namespace == "run-1" and sandbox.get("configmaps", "a", namespace="run-1")


def test_requests_are_recorded_with_the_namespace_of_plans(proxy, client):
    client("POST", CONFIGMAPS, make("a"), **{"User-Agent": "me", "Content-Type": "application/json"})
    [seen] = proxy.requests
    assert (seen.verb, seen.resource, seen.namespace, seen.status) == ("create", "configmaps", "default", 201)
    assert (seen.path, seen.user_agent) == ("/api/v1/namespaces/default/configmaps", "me")
    assert json.loads(seen.body) == make("a")


def test_large_objects_pass(proxy, client):
    text = "x" * 900_000
    assert client("POST", CONFIGMAPS, {**make("a"), "data": {"text": text}})[0] == 201
    assert client("POST", CONFIGMAPS, {**make("b"), "data": {"text": text + text}})[0] in (413, 422)


def test_requests_without_the_token_of_the_proxy_are_refused(proxy, client):
    assert client("GET", CONFIGMAPS, Authorization="Bearer wrong")[0] == 401
    assert not proxy.requests


@pytest.mark.parametrize(
    "method, path",
    [
        ("POST", "/api/v1/namespaces/default/configmaps"),
        ("POST", "/api/v1/namespaces"),
        ("DELETE", "/api/v1/namespaces/run-1"),
        ("PATCH", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/x"),
        ("DELETE", "/api/v1/configmaps"),
        ("DELETE", "/api/v1/namespaces/%72un-2/configmaps"),
    ],
)
def test_writes_outside_of_the_namespace_are_refused(proxy, client, sandbox, method, path):
    status, body = client(method, path, make("a"))
    assert status == 403 and "confined to a namespace of its own" in body["message"]
    assert proxy.refused == body["message"] and not proxy.requests
    assert sandbox.get("namespaces", "run-1")["status"]["phase"] == "Active"


def test_questions_are_no_writes(proxy, client):
    spec = {"resourceAttributes": {"verb": "list", "resource": "pods"}}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec}
    assert client("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)[0] == 201
    assert not proxy.refused


@pytest.mark.parametrize("status", [409, 429, 500])
def test_requests_fail_on_request_and_are_not_done(proxy, client, sandbox, status):
    proxy.faults.error(status, retry_after=1, condition=lambda seen: seen.verb == "create")
    assert client("GET", CONFIGMAPS)[0] == 200
    assert client("POST", CONFIGMAPS, make("a"))[0] == status
    assert proxy.requests[-1].status == status and not sandbox.list("configmaps", namespace="run-1")
    assert client("POST", CONFIGMAPS, make("a"))[0] == 201


@pytest.mark.parametrize("action, names", [("drop", []), ("lose", ["a"])])
def test_connections_break_off_before_or_after_the_request_is_done(proxy, client, sandbox, action, names):
    getattr(proxy.faults, action)(verb="create")
    with pytest.raises((http.client.HTTPException, OSError)):
        client("POST", CONFIGMAPS, make("a"))
    assert [body["metadata"]["name"] for body in sandbox.list("configmaps", namespace="run-1")] == names
    assert proxy.requests[-1].status >= 201


@pytest.mark.parametrize("late", [False, True])
def test_a_function_is_called_before_or_after_the_request_is_done(proxy, client, sandbox, late):
    found = []
    proxy.faults.call(lambda: found.append(len(sandbox.list("configmaps", namespace="run-1"))), late=late)
    assert client("POST", CONFIGMAPS, make("a"))[0] == 201
    assert found == [int(late)]


def test_a_frozen_watch_is_silent_until_it_goes_on(proxy, client, sandbox):
    arrived = threading.Event()
    lines = []

    def read(response):
        with contextlib.suppress(OSError, http.client.HTTPException):  # at the end, it is broken off
            while line := response.readline():
                lines.append(json.loads(line)["object"]["metadata"]["name"])
                arrived.set()

    with contextlib.ExitStack() as stack:
        response = stack.enter_context(client.open("GET", f"{CONFIGMAPS}?watch=true"))
        thread = threading.Thread(target=read, args=[response], daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(sandbox.faults.drop_watches)
        sandbox.create("configmaps", "a", namespace="run-1")
        assert arrived.wait(30)
        arrived.clear()
        proxy.faults.freeze_watches(resource="configmaps")
        stack.callback(proxy.faults.clear)
        sandbox.create("configmaps", "b", namespace="run-1")
        assert not arrived.wait(0.3) and lines == ["a"]
        proxy.faults.clear()
        assert arrived.wait(30) and lines == ["a", "b"]
