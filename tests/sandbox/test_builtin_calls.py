"""Subresources and versions of built-in kinds: approvals, logs, and others."""

import base64

import pytest

REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
MERGE = "application/merge-patch+json"


@pytest.fixture
async def asked(client):
    """Yield the path of a request for a certificate."""
    name = client.namespace
    answer = await client(
        "POST",
        REQUESTS,
        {
            "metadata": {"name": name},
            "spec": {
                "request": base64.b64encode(b"x").decode(),
                "signerName": "example.dev/s",
                "usages": ["client auth"],
                "username": "another user",
            },
        },
    )
    assert answer.status == 201, answer
    yield f"{REQUESTS}/{name}"
    await client("DELETE", f"{REQUESTS}/{name}")


def condition(type):
    return {"type": type, "status": "True", "reason": "R", "message": "m"}


async def test_the_server_says_who_asks_for_a_certificate(client, asked):
    spec = (await client("GET", asked)).body["spec"]
    assert (spec["username"], spec["groups"]) == ("sandbox", ["system:masters", "system:authenticated"])


async def test_approvals_change_only_the_conditions(client, asked):
    body = (await client("GET", asked)).body
    approved = {
        **body,
        "status": {"conditions": [condition("Approved")], "certificate": "eA=="},
        "spec": {**body["spec"], "signerName": "example.dev/other"},
    }
    answer = await client("PUT", f"{asked}/approval", approved)
    assert answer.status == 200
    body = (await client("GET", f"{asked}/approval")).body
    assert (body["spec"]["signerName"], body["status"].get("certificate")) == ("example.dev/s", None)
    (found,) = body["status"]["conditions"]
    assert found["type"] == "Approved" and found["lastUpdateTime"] and found["lastTransitionTime"]


@pytest.mark.parametrize(
    "types, message",
    [
        (["Denied"], 'updates may not remove a condition of type "Approved"'),
        (["Approved", "Denied"], "Approved and Denied conditions are mutually exclusive"),
    ],
)
async def test_decisions_are_final(client, asked, types, message):
    for given, status in ((["Approved"], 200), (types, 422)):
        body = (await client("GET", asked)).body
        body["status"] = {"conditions": [condition(type) for type in given]}
        answer = await client("PUT", f"{asked}/approval", body)
        assert answer.status == status
    assert message in answer.message


@pytest.fixture
async def pod(client):
    path = f"/api/v1/namespaces/{client.namespace}/pods"
    await client(
        "POST",
        path,
        {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]}},
    )
    return f"{path}/p"


@pytest.mark.parametrize(
    "method, call, status, message",
    [
        ("GET", "log?container=a", 204, ""),
        ("GET", "log", 400, "a container name must be specified for pod p, choose one of: [a b]"),
        ("GET", "log?container=x", 400, "container x is not valid for pod p"),
        ("GET", "log?container=a&tailLines=-1", 422, "must be greater than or equal to 0"),
        ("POST", "exec?command=ls&container=a", 400, "pod p does not have a host assigned"),
        ("POST", "portforward", 400, "pod p does not have a host assigned"),
    ],
)
async def test_calls_of_pods_that_do_not_run_are_answered_as_by_a_real_server(
    client, pod, method, call, status, message
):
    path, _, query = call.partition("?")
    params = dict(item.split("=") for item in query.split("&")) if query else {}
    answer = await client(method, f"{pod}/{path}", **params)
    assert (answer.status, message in str(answer.body)) == (status, True)


def eviction(name="p", **more):
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}, **more}


@pytest.mark.parametrize(
    "order, status, message",
    [
        (eviction("other"), 400, "name in URL does not match name in Eviction object"),
        ({}, 400, "name in URL does not match name in Eviction object"),
        ({**eviction(), "kind": "Pod"}, 400, 'no kind "Pod" is registered for version "policy/v1"'),
        (eviction(deleteOptions=5), 400, "cannot unmarshal number into Go struct field Eviction.deleteOptions"),
        (
            eviction(deleteOptions={"preconditions": {"uid": "x"}}),
            409,
            "the UID in the precondition (x) does not match",
        ),
        (eviction(deleteOptions={"propagationPolicy": "Bad"}), 422, 'Unsupported value: "Bad"'),
        (eviction(deleteOptions={"dryRun": ["All"]}), 201, ""),
    ],
)
async def test_invalid_evictions_leave_the_pod_alone(client, pod, order, status, message):
    answer = await client("POST", f"{pod}/eviction", order)
    assert answer.status == status and message in answer.body.get("message", "")
    assert (await client("GET", pod)).status == 200


async def test_evictions_delete_the_pod(client, pod):
    assert (await client("POST", f"{pod}/eviction", eviction())).status == 201
    assert (await client("GET", pod)).status == 404


async def test_pods_get_nodes_by_bindings(client, pod):
    order = {"metadata": {"name": "p", "annotations": {"by": "me"}}, "target": {"kind": "Node", "name": "n1"}}
    answer = await client("POST", f"{pod}/binding", {**order, "target": {"kind": "Pod"}})
    assert answer.status == 500 and "target.name: Required value" in answer.message
    assert (await client("POST", f"{pod}/binding", order)).status == 201
    body = (await client("GET", pod)).body
    assert (body["spec"]["nodeName"], body["metadata"]["annotations"]) == ("n1", {"by": "me"})
    assert [item["type"] for item in body["status"]["conditions"]] == ["PodScheduled"]
    answer = await client("POST", f"{pod}/binding", order)
    assert answer.status == 409 and 'pod p is already assigned to node "n1"' in answer.message


async def test_autoscalers_in_both_versions(client):
    old, new = (
        f"/apis/autoscaling/{version}/namespaces/{client.namespace}/horizontalpodautoscalers"
        for version in ("v1", "v2")
    )
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}
    await client(
        "POST",
        old,
        {
            "metadata": {"name": "a"},
            "spec": {"scaleTargetRef": target, "maxReplicas": 3, "targetCPUUtilizationPercentage": 80},
        },
    )
    cpu = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}
    assert (await client("GET", f"{new}/a")).body["spec"] == {
        "scaleTargetRef": target,
        "minReplicas": 1,
        "maxReplicas": 3,
        "metrics": [cpu],
    }
    memory = {
        "type": "Resource",
        "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "10Mi"}},
    }
    await client(
        "POST",
        new,
        {"metadata": {"name": "b"}, "spec": {"scaleTargetRef": target, "maxReplicas": 3, "metrics": [cpu, memory]}},
    )
    body = (await client("GET", f"{old}/b")).body
    assert body["spec"] == {
        "scaleTargetRef": target,
        "minReplicas": 1,
        "maxReplicas": 3,
        "targetCPUUtilizationPercentage": 80,
    }
    answer = await client("PATCH", f"{old}/b", {"spec": {"targetCPUUtilizationPercentage": 70}}, type=MERGE)
    assert (answer.status, answer.body["spec"]["targetCPUUtilizationPercentage"]) == (200, 70)
    metrics = (await client("GET", f"{new}/b")).body["spec"]["metrics"]
    assert [item["resource"]["target"].get("averageUtilization") for item in metrics] == [70, None]
    assert metrics[1] == memory


NOW = "2001-02-03T04:05:06.000000Z"
NEWER = {
    "regarding": {"kind": "Pod", "name": "p"},
    "eventTime": NOW,
    "reportingController": "example.dev/c",
    "reportingInstance": "i",
    "action": "A",
    "reason": "R",
    "type": "Normal",
    "note": "n",
}


@pytest.fixture
async def say(client):
    """Create an event in one of the groups."""

    async def say(group, name, **fields):
        path = (
            f"/apis/events.k8s.io/v1/namespaces/{client.namespace}/events"
            if group
            else (f"/api/v1/namespaces/{client.namespace}/events")
        )
        reference = "regarding" if group else "involvedObject"
        fields[reference] = {"kind": "Pod", "name": "p", "namespace": client.namespace}
        return await client("POST", path, {"metadata": {"name": name}, **fields})

    return say


@pytest.mark.parametrize(
    "group, fields, fault",
    [
        ("", {"eventTime": NOW, "reason": "R"}, "reportingComponent: Required value"),
        ("", {"eventTime": NOW, "reason": "R"}, "action: Required value"),
        ("", {**NEWER, "reportingComponent": "a b"}, "name part must consist of alphanumeric characters"),
        (
            "",
            {**NEWER, "reportingComponent": "c", "message": "x" * 1025},
            "message: Invalid value: \"\": can have at most",
        ),
        ("newer", {**NEWER, "eventTime": None}, "eventTime: Required value"),
        ("newer", {**NEWER, "type": "Odd"}, 'type: Invalid value: "": has invalid value: Odd'),
        ("newer", {**NEWER, "series": {"count": 1}}, "series.count: Invalid value"),
        ("newer", {**NEWER, "deprecatedCount": 3}, 'count: Invalid value: "": needs to be unset'),
    ],
)
async def test_events_that_say_when_they_happened_have_to_say_more(say, group, fields, fault):
    answer = await say(group, "e", **fields)
    assert answer.status == 422 and fault in answer.message


async def test_the_newer_group_of_events_fixes_them_and_selects_them_by_its_own_names(client, say):
    await say("newer", "e1", **NEWER)
    await say("", "e2", reason="R", source={"component": "old"}, type="Odd")
    core = f"/api/v1/namespaces/{client.namespace}/events"
    newer = core.replace("/api/v1", "/apis/events.k8s.io/v1")
    answer = await client("PATCH", f"{newer}/e1", {"note": "other"}, type=MERGE)
    assert answer.status == 422 and answer.message.endswith('message: Invalid value: "other": field is immutable')
    series = {"series": {"count": 2, "lastObservedTime": NOW}}
    assert (await client("PATCH", f"{newer}/e1", series, type=MERGE)).status == 200
    assert (await client("PATCH", f"{core}/e1", {"message": "other"}, type=MERGE)).status == 200

    async def names(path, selector):
        answer = await client("GET", path, fieldSelector=selector)
        return [item["metadata"]["name"] for item in answer.body["items"]] if answer.status == 200 else answer.status

    assert await names(newer, "regarding.name=p,reportingController=example.dev/c") == ["e1"]
    assert await names(core, "involvedObject.name=p,source=old") == ["e2"]
    assert [await names(newer, "involvedObject.name=p"), await names(core, "regarding.name=p")] == [400, 400]


BUDGETS, SERVICES = "/apis/policy/v1/namespaces/{}/poddisruptionbudgets", "/api/v1/namespaces/{}/services"
BALANCED = {"type": "LoadBalancer", "ports": [{"port": 80}]}
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
COLUMN = {"name": "A", "type": "string", "format": "name", "jsonPath": ".a"}


@pytest.mark.parametrize(
    "path, body, message",
    [
        (BUDGETS, {"spec": {"minAvailable": "x"}}, "a valid percent string must be a numeric string followed by"),
        (
            BUDGETS,
            {"spec": {"minAvailable": 1, "maxUnavailable": 1}},
            "minAvailable and maxUnavailable cannot be both set",
        ),
        ("/api/v1/namespaces/{}/secrets", {"type": "kubernetes.io/basic-auth"}, "data[username]: Required value"),
        ("/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices", {"addressType": "Bad"}, 'Unsupported value: "Bad"'),
        ("/apis/apps/v1/namespaces/{}/statefulsets", {"metadata": {"name": "a.b"}}, "must not contain dots"),
        (
            CRDS,
            {
                "spec": {
                    "group": "example.dev",
                    "scope": "Cluster",
                    "names": {"plural": "as", "kind": "A"},
                    "versions": [
                        {
                            "name": "v1",
                            "served": True,
                            "storage": True,
                            "additionalPrinterColumns": [COLUMN],
                            "schema": {"openAPIV3Schema": {"type": "object"}},
                        }
                    ],
                }
            },
            "must be one of byte,date,date-time,double,float",
        ),
    ],
)
async def test_rules_of_some_kinds(client, path, body, message):
    name = "as.example.dev" if path == CRDS else "x"
    answer = await client("POST", path.format(client.namespace), {"metadata": {"name": name}, **body}, dryRun="All")
    assert answer.status == 422 and message in answer.message


async def test_budgets_of_nothing_are_kept(client):
    path = BUDGETS.format(client.namespace)
    answer = await client("POST", path, {"metadata": {"name": "b"}, "spec": {"maxUnavailable": 0}})
    assert answer.body["spec"] == {"maxUnavailable": 0}


async def test_addresses_of_services_are_checked(client):
    path = SERVICES.format(client.namespace)
    await client("POST", path, {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}})
    status = {"status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}}
    answer = await client("PATCH", f"{path}/s/status", status, type=MERGE)
    assert answer.status == 422 and "may only be used when `spec.type` is 'LoadBalancer'" in answer.message
    answer = await client("PATCH", f"{path}/s", {"spec": {"clusterIP": "10.0.0.77"}}, type=MERGE)
    assert answer.status == 422 and "may not change once set" in answer.message
    await client("PATCH", f"{path}/s", {"spec": BALANCED}, type=MERGE)
    answer = await client("PATCH", f"{path}/s/status", status, type=MERGE)
    assert answer.body["status"]["loadBalancer"] == {"ingress": [{"ip": "1.2.3.4", "ipMode": "VIP"}]}
    status["status"]["loadBalancer"]["ingress"][0]["ip"] = "x"
    answer = await client("PATCH", f"{path}/s/status", status, type=MERGE)
    assert answer.status == 422 and "must be a valid IP address" in answer.message
