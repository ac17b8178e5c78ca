"""Updates of built-in objects: fields that a real server was seen to keep, count and set."""

import pytest

MERGE = "application/merge-patch+json"
LABELS = {"a": "b"}
POD = {"containers": [{"name": "c", "image": "i"}]}
WORKLOAD = {"selector": {"matchLabels": LABELS}, "template": {"metadata": {"labels": LABELS}, "spec": POD}}
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
VOLUME = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/d"}}
PLACES = {
    "pods": "/api/v1/namespaces/{}/pods",
    "persistentvolumeclaims": "/api/v1/namespaces/{}/persistentvolumeclaims",
    "persistentvolumes": "/api/v1/persistentvolumes",
    "daemonsets": "/apis/apps/v1/namespaces/{}/daemonsets",
    "deployments": "/apis/apps/v1/namespaces/{}/deployments",
}
SPECS = {
    "pods": POD,
    "persistentvolumeclaims": CLAIM,
    "persistentvolumes": VOLUME,
    "daemonsets": WORKLOAD,
    "deployments": {**WORKLOAD, "replicas": 0},
}


@pytest.fixture
async def make(client):
    async def create(plural):
        path, name = PLACES[plural].format(client.namespace), f"x-{client.namespace}"
        assert (await client("POST", path, {"metadata": {"name": name}, "spec": SPECS[plural]})).status == 201
        return f"{path}/{name}"

    return create


async def test_templates_of_daemon_sets_are_counted(client, make):
    path, key = await make("daemonsets"), "deprecated.daemonset.template.generation"

    async def count(patch):
        return (await client("PATCH", path, patch, type=MERGE)).body["metadata"]["annotations"][key]

    assert await count({"spec": {"minReadySeconds": 3}}) == "1"
    assert await count({"spec": {"template": {"spec": {"hostNetwork": True}}}}) == "2"
    assert await count({"metadata": {"annotations": {key: "7"}}}) == "2"
    assert await count({"metadata": {"annotations": None}}) == "2"


async def test_annotations_of_deployments_are_counted(client, make):
    path = await make("deployments")
    found = []
    for meta in ({"labels": {"x": "1"}}, {"annotations": {"x": "1"}}, {"annotations": {"x": "1"}}):
        answer = await client("PATCH", path, {"metadata": meta}, type=MERGE)
        found.append(answer.body["metadata"]["generation"])
    assert found == [1, 2, 2]


@pytest.mark.parametrize(
    "plural, status, expected",
    [
        (
            "pods",
            {"conditions": [{"type": "A", "status": "True"}]},
            {
                "qosClass": "BestEffort",
                "conditions": [{"type": "A", "status": "True", "lastProbeTime": None, "lastTransitionTime": None}],
            },
        ),
        ("persistentvolumeclaims", None, {"phase": "Pending"}),
        ("persistentvolumeclaims", {"phase": "Bound"}, {"phase": "Bound"}),
        (
            "deployments",
            {"conditions": [{"type": "A", "status": "True"}]},
            {"conditions": [{"type": "A", "status": "True", "lastUpdateTime": None, "lastTransitionTime": None}]},
        ),
    ],
)
async def test_statuses_get_the_defaults_of_the_server(client, make, plural, status, expected):
    patch = [{"op": "add", "path": "/status", "value": status}]
    answer = await client("PATCH", f"{await make(plural)}/status", patch, type="application/json-patch+json")
    assert answer.body["status"] == expected


async def test_volumes_remember_when_their_phase_changed(client, make):
    path = f"{await make('persistentvolumes')}/status"
    answer = await client("PATCH", path, {"status": {"lastPhaseTransitionTime": None, "phase": None}}, type=MERGE)
    assert answer.body["status"].keys() == {"phase", "lastPhaseTransitionTime"}
    await client("DELETE", path.removesuffix("/status"))


async def test_generations_of_pods_stay_observed(client, make):
    path = f"{await make('pods')}/status"
    await client("PATCH", path, {"status": {"observedGeneration": 1}}, type=MERGE)
    answer = await client("PATCH", path, {"status": {"observedGeneration": None}}, type=MERGE)
    assert answer.body["status"]["observedGeneration"] == 1


async def test_pods_can_be_replaced_by_what_they_were_made_of(client, make):
    path = await make("pods")
    answer = await client("PUT", path, {"metadata": {"name": path.rpartition("/")[2]}, "spec": POD})
    assert (answer.status, len(answer.body["spec"]["tolerations"])) == (200, 2)


async def test_claims_are_written_anew_once(client, make):
    path = await make("persistentvolumeclaims")
    versions = [(await client("GET", path)).body["metadata"]["resourceVersion"]]
    versions += [(await client("PATCH", path, {}, type=MERGE)).body["metadata"]["resourceVersion"] for _ in range(2)]
    assert versions[0] != versions[1] == versions[2]


SERVICES = "/api/v1/namespaces/{}/services"


@pytest.mark.parametrize(
    "before, after, expected",
    [
        ({"type": "NodePort", "ports": [{"port": 80}]}, {"type": "NodePort", "ports": [{"port": 80}]}, "same"),
        ({"clusterIP": "None", "selector": LABELS}, {"ports": [{"port": 80}]}, "None"),
        (
            {"clusterIP": "None", "selector": LABELS},
            {"type": "NodePort", "ports": [{"port": 80}]},
            "spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for NodePort services",
        ),
    ],
)
async def test_what_was_allocated_stays_with_the_service(client, before, after, expected):
    path = SERVICES.format(client.namespace)
    old = await client("POST", path, {"metadata": {"name": "s"}, "spec": before})
    new = await client("PUT", f"{path}/s", {"metadata": {"name": "s"}, "spec": after})
    if expected == "same":
        assert new.body == old.body
    elif expected == "None":
        assert (new.status, new.body["spec"]["clusterIP"]) == (200, "None")
    else:
        assert (new.status, new.message) == (422, f'Service "s" is invalid: {expected}')


@pytest.mark.parametrize(
    "path, spec, count",
    [
        ("/api/v1/namespaces/{}/events", {"involvedObject": {"namespace": "{}"}}, 2),
        ("/apis/policy/v1/namespaces/{}/poddisruptionbudgets", {"spec": {}}, 2),
        ("/apis/coordination.k8s.io/v1/namespaces/{}/leases", {"spec": {}}, 3),
        ("/api/v1/namespaces/{}/configmaps", {}, 4),
    ],
)
async def test_how_often_bad_labels_are_told_of(client, path, spec, count):
    import json

    body = json.loads(json.dumps(spec).replace("{}", client.namespace)) if "involvedObject" in spec else spec
    await client("POST", path.format(client.namespace), {"metadata": {"name": "x"}, **body})
    answer = await client(
        "PATCH", f"{path.format(client.namespace)}/x", {"metadata": {"labels": {"/a": "b"}}}, type=MERGE
    )
    assert len(answer.body["details"]["causes"]) == count
