"""Built-in kinds: their defaults and rules."""

import pytest

MERGE = "application/merge-patch+json"


@pytest.fixture
def path(client):
    return lambda plural, group="api/v1": f"/{group}/namespaces/{client.namespace}/{plural}"


async def test_namespaces_have_phase_finalizer_and_label(client):
    body = (await client("GET", f"/api/v1/namespaces/{client.namespace}")).body
    assert body["status"] == {"phase": "Active"}
    assert body["spec"] == {"finalizers": ["kubernetes"]}
    assert body["metadata"]["labels"] == {"kubernetes.io/metadata.name": client.namespace}
    assert "generation" not in body["metadata"]
    assert (await client("POST", "/api/v1/namespaces", {"metadata": {"name": "a.b"}})).status == 422


async def test_kind_and_version_may_be_left_out_but_not_be_wrong(client):
    answer = await client("POST", client.configmaps, {"metadata": {"name": "a"}})
    assert (answer.body["apiVersion"], answer.body["kind"]) == ("v1", "ConfigMap")
    answer = await client("POST", client.configmaps, {"kind": "Secret", "metadata": {"name": "b"}})
    assert (answer.status, answer.body["reason"]) == (400, "BadRequest")


async def test_strings_of_secrets_are_encoded(client, path):
    secret = {"metadata": {"name": "s"}, "stringData": {"a": "b"}}
    body = (await client("POST", path("secrets"), secret)).body
    assert (body["data"], body["type"], "stringData" in body) == ({"a": "Yg=="}, "Opaque", False)


async def test_events_are_one_resource_in_two_groups(client, path):
    event = {
        "metadata": {"generateName": "e-"},
        "reason": "R",
        "message": "m",
        "type": "Normal",
        "reportingComponent": "c",
        "involvedObject": {"kind": "Thing", "name": "a", "namespace": client.namespace},
        "source": {"component": "s"},
    }
    created = await client("POST", path("events"), event)
    assert created.status == 201
    (seen,) = (await client("GET", path("events", "apis/events.k8s.io/v1"))).body["items"]
    assert (seen["note"], seen["regarding"]["name"], seen["reportingController"]) == ("m", "a", "c")
    assert seen["deprecatedSource"] == {"component": "s"}
    listed = await client("GET", path("events"), fieldSelector="involvedObject.name=a,reason=R")
    assert listed.names == [created.body["metadata"]["name"]]
    new = {
        "metadata": {"name": "n"},
        "note": "x",
        "regarding": {"namespace": client.namespace, "name": "b"},
        "eventTime": "2001-02-03T04:05:06.000000Z",
        "reportingController": "c",
        "reportingInstance": "i",
        "action": "A",
        "reason": "R",
        "type": "Normal",
    }
    await client("POST", path("events", "apis/events.k8s.io/v1"), new)
    assert (await client("GET", path("events") + "/n")).body["message"] == "x"


async def test_events_belong_to_the_namespace_of_their_object(client, path):
    event = {"metadata": {"name": "e"}, "involvedObject": {"namespace": "other"}}
    answer = await client("POST", path("events"), event)
    assert answer.fields == {"involvedObject.namespace"}


async def test_pods_begin_as_pending(client, path):
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}, "status": {"phase": "X"}}
    body = (await client("POST", path("pods"), pod)).body
    assert body["status"]["phase"] == "Pending"
    assert (await client("POST", path("pods"), {"metadata": {"name": "q"}, "spec": {}})).status == 422
    placed = {"metadata": {"name": "r"}, "spec": {**pod["spec"], "nodeName": "n"}}
    await client("POST", path("pods"), placed)
    assert (await client("GET", path("pods") + "/r/log")).status == 501
    async with client.watch(path("pods"), resourceVersion=await client.version()) as watch:
        deleted = await client("DELETE", path("pods") + "/p")
        assert deleted.body["kind"] == "Pod"
        assert await watch.until(2) == [("MODIFIED", "p"), ("DELETED", "p")]


async def test_deployments_have_a_scale(client, path):
    deployments = path("deployments", "apis/apps/v1")
    pod = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": pod}
    body = (await client("POST", deployments, {"metadata": {"name": "d"}, "spec": spec})).body
    assert body["spec"]["replicas"] == 1
    scale = (await client("GET", f"{deployments}/d/scale")).body
    assert (scale["kind"], scale["spec"]) == ("Scale", {"replicas": 1})
    assert scale["status"] == {"replicas": 0, "selector": "a=b"}
    answer = await client("PATCH", f"{deployments}/d/scale", {"spec": {"replicas": 3}}, type=MERGE)
    assert answer.body["spec"] == {"replicas": 3}
    deployment = (await client("GET", f"{deployments}/d")).body
    assert (deployment["spec"]["replicas"], deployment["metadata"]["generation"]) == (3, 2)
    assert (await client("PATCH", f"{deployments}/d/scale", {"spec": {"replicas": -1}}, type=MERGE)).status == 422


async def test_services_get_addresses(client, path):
    service = {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}}
    spec = (await client("POST", path("services"), service)).body["spec"]
    assert spec["clusterIP"].startswith("10.") and spec["type"] == "ClusterIP"
    assert spec["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 80}]


async def test_generation_is_counted_where_it_is_in_a_cluster(client, path):
    pod = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    job = {"metadata": {"name": "j"}, "spec": {"template": pod}}
    assert (await client("POST", path("jobs", "apis/batch/v1"), job)).body["metadata"]["generation"] == 1
    config = (await client("POST", client.configmaps, {"metadata": {"name": "c"}})).body
    assert "generation" not in config["metadata"]
