"""Admission webhooks: which of them are called, and the effect of their responses."""

import base64
import json
import ssl
from collections.abc import AsyncIterator

import aiohttp.web
import pytest

from kopf._kits.testing.wire.tls import Authority

MERGE = "application/merge-patch+json"
GROUP = "things.example.dev"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/{}webhookconfigurations"


class Hooks:
    """A webhook server: it notes what it is asked and answers what it is told."""

    def __init__(self) -> None:
        self.asked: list[dict] = []
        self.answer: dict = {}
        self.queries: list[str] = []
        self.authority = Authority()

    async def handle(self, request: aiohttp.web.Request) -> aiohttp.web.Response:
        review = await request.json()
        self.asked.append(review["request"])
        self.queries.append(request.query_string)
        response = {"uid": review["request"]["uid"], "allowed": True, **self.answer}
        return aiohttp.web.json_response(
            {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
        )


@pytest.fixture
async def hooks() -> AsyncIterator[Hooks]:
    hooks = Hooks()
    app = aiohttp.web.Application()
    app.router.add_post("/hook", hooks.handle)
    runner = aiohttp.web.AppRunner(app)
    await runner.setup()
    context: ssl.SSLContext = hooks.authority.context()
    site = aiohttp.web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    hooks.url = f"https://127.0.0.1:{runner.addresses[0][1]}/hook"
    yield hooks
    for connection in runner.server.connections:
        connection.transport.abort()  # The sandbox keeps them, and TLS would not be done with them in time.
    await runner.cleanup()


@pytest.fixture
async def configure(client, hooks):
    """Register the webhook; what is not said is: asked for all changes of things of this test's namespace."""
    written = []

    async def configure(kind="validating", **changes):
        name = f"w{len(written)}.{client.namespace}"
        rule = {"apiGroups": [GROUP], "apiVersions": ["*"], "resources": ["things"], "operations": ["*"]}
        webhook = {
            "name": f"{name}.dev",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "timeoutSeconds": 3,
            "clientConfig": {"url": hooks.url, "caBundle": base64.b64encode(hooks.authority.certificate).decode()},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": client.namespace}},
            **changes,
            "rules": [{**rule, **changes.get("rule", {})}],
        }
        webhook.pop("rule", None)
        path = CONFIGURATIONS.format(kind)
        answer = await client("POST", path, {"metadata": {"name": name}, "webhooks": [webhook]})
        assert answer.status == 201, answer
        written.append(f"{path}/{name}")

    yield configure
    for path in written:
        await client("DELETE", path)


async def test_webhooks_are_asked_with_a_full_review(client, configure, hooks, make_thing):
    await configure()
    await client("POST", client.things, make_thing("a"))
    (asked,) = hooks.asked
    assert asked["operation"] == "CREATE"
    assert asked["kind"] == asked["requestKind"] == {"group": GROUP, "version": "v1", "kind": "Thing"}
    assert asked["resource"] == {"group": GROUP, "version": "v1", "resource": "things"}
    assert (asked["namespace"], asked["name"], asked["dryRun"]) == (client.namespace, "a", False)
    assert asked["object"]["spec"] == {"size": 1, "color": "red"}
    assert asked["object"]["metadata"]["uid"]
    assert asked["oldObject"] is None
    assert "system:masters" in asked["userInfo"]["groups"]
    assert hooks.queries == ["timeout=3s"]


async def test_updates_and_deletions_are_reviewed_with_the_old_object(client, configure, hooks):
    await client.create("a")
    await configure()
    await client("PATCH", f"{client.things}/a", {"spec": {"size": 2}}, type=MERGE)
    await client("DELETE", f"{client.things}/a")
    update, deletion = hooks.asked
    assert (update["object"]["spec"]["size"], update["oldObject"]["spec"]["size"]) == (2, 1)
    assert (deletion["operation"], deletion["object"]) == ("DELETE", None)
    assert deletion["oldObject"]["metadata"]["name"] == "a"


@pytest.mark.parametrize(
    "status, code, reason, message",
    [
        (None, 403, "Forbidden", "without explanation"),
        ({"message": "no way"}, 403, "Forbidden", "denied the request: no way"),
        ({"message": "too big", "code": 429}, 429, None, "denied the request: too big"),
    ],
)
async def test_refusals_of_webhooks_reach_the_client(
    client, configure, hooks, make_thing, status, code, reason, message
):
    await configure()
    hooks.answer = {"allowed": False, **({"status": status} if status else {})}
    answer = await client("POST", client.things, make_thing("a"))
    assert (answer.status, answer.body.get("reason")) == (code, reason)
    assert answer.message.startswith('admission webhook "')
    assert message in answer.message
    assert (await client("GET", f"{client.things}/a")).status == 404


async def test_warnings_of_webhooks_reach_the_client(client, configure, hooks, make_thing):
    await configure()
    hooks.answer = {"warnings": ["careful"]}
    answer = await client("POST", client.things, make_thing("a"))
    assert (answer.status, answer.headers["Warning"]) == (201, '299 - "careful"')


def patch(*operations):
    encoded = base64.b64encode(json.dumps(operations).encode()).decode()
    return {"patchType": "JSONPatch", "patch": encoded}


async def test_patches_of_webhooks_are_stored(client, configure, hooks, make_thing):
    await configure("mutating")
    hooks.answer = patch(
        {"op": "add", "path": "/metadata/annotations", "value": {"by": "hook"}},
        {"op": "replace", "path": "/spec/size", "value": 5},
    )
    answer = await client("POST", client.things, make_thing("a"))
    assert answer.body["metadata"]["annotations"] == {"by": "hook"}
    assert answer.body["spec"]["size"] == 5
    (owner,) = answer.body["metadata"]["managedFields"]
    assert owner["fieldsV1"] == {"f:spec": {".": {}, "f:color": {}, "f:size": {}}}


async def test_mutations_are_validated(client, configure, hooks, make_thing):
    await configure("mutating")
    hooks.answer = patch({"op": "replace", "path": "/spec/size", "value": "huge"})
    assert (await client("POST", client.things, make_thing("a"))).status == 422


async def test_validating_webhooks_see_what_mutating_ones_have_made(client, configure, hooks, make_thing):
    await configure("validating", rule={"operations": ["UPDATE"]})
    await configure("mutating", rule={"operations": ["UPDATE"]})
    await client.create("a")
    hooks.answer = patch({"op": "add", "path": "/spec/size", "value": 50})
    await client("PATCH", f"{client.things}/a", {"spec": {"color": "green"}}, type=MERGE)
    assert [asked["object"]["spec"]["size"] for asked in hooks.asked] == [1, 50]


@pytest.mark.parametrize("policy, status", [("Fail", 500), ("Ignore", 201)])
@pytest.mark.parametrize("problem", ["refused", "late", "nonsense"])
async def test_failing_webhooks_follow_their_policy(client, configure, hooks, make_thing, policy, status, problem):
    changes = {"failurePolicy": policy}
    if problem == "refused":
        changes["clientConfig"] = {"url": "https://127.0.0.1:1/hook"}
    if problem == "late":
        changes["clientConfig"] = {"service": {"name": "x", "namespace": "y"}}
    if problem == "nonsense":
        hooks.answer = {"uid": "another"}
    await configure(**changes)
    answer = await client("POST", client.things, make_thing("a"))
    assert answer.status == status
    if policy == "Fail":
        assert "failed calling webhook" in answer.message


@pytest.mark.parametrize(
    "changes, asked",
    [
        ({"rule": {"operations": ["UPDATE", "DELETE"]}}, False),
        ({"rule": {"apiGroups": ["other.dev"]}}, False),
        ({"rule": {"apiVersions": ["v1"]}}, True),
        ({"rule": {"apiVersions": ["v7"]}}, False),
        ({"rule": {"resources": ["*"]}}, True),
        ({"rule": {"resources": ["*/*"]}}, True),
        ({"rule": {"resources": ["things/status"]}}, False),
        ({"rule": {"scope": "Cluster"}}, False),
        ({"objectSelector": {"matchLabels": {"app": "x"}}}, True),
        ({"objectSelector": {"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}}, False),
        ({"objectSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["x"]}]}}, True),
        ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "elsewhere"}}}, False),
    ],
)
async def test_only_matching_webhooks_are_asked(client, configure, hooks, make_thing, changes, asked):
    await configure(**changes)
    await client("POST", client.things, make_thing("a", labels={"app": "x"}))
    assert bool(hooks.asked) is asked


SCALERS = {"apiGroups": ["autoscaling"], "apiVersions": ["v2"], "resources": ["horizontalpodautoscalers"]}


@pytest.fixture
async def create_old_autoscaler(client):
    """Create an autoscaler in ``v1``, of which the metrics have another form in ``v2``."""

    async def create():
        target = {"kind": "Deployment", "name": "x", "apiVersion": "apps/v1"}
        spec = {"scaleTargetRef": target, "maxReplicas": 3, "targetCPUUtilizationPercentage": 80}
        path = f"/apis/autoscaling/v1/namespaces/{client.namespace}/horizontalpodautoscalers"
        return await client("POST", path, {"metadata": {"name": "a"}, "spec": spec})

    return create


@pytest.mark.parametrize("kind", ["validating", "mutating"])
async def test_webhooks_of_an_equivalent_version_get_the_object_in_it(configure, hooks, create_old_autoscaler, kind):
    await configure(kind, rule=SCALERS)
    assert (await create_old_autoscaler()).status == 201
    (asked,) = hooks.asked
    assert (asked["kind"]["version"], asked["requestKind"]["version"]) == ("v2", "v1")
    assert (asked["resource"]["version"], asked["requestResource"]["version"]) == ("v2", "v1")
    assert asked["object"]["apiVersion"] == "autoscaling/v2"
    assert asked["object"]["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"] == 80


async def test_patches_of_an_equivalent_version_are_converted_back(configure, hooks, create_old_autoscaler):
    await configure("mutating", rule=SCALERS)
    path = "/spec/metrics/0/resource/target/averageUtilization"
    hooks.answer = patch({"op": "replace", "path": path, "value": 50})
    answer = await create_old_autoscaler()
    assert answer.body["apiVersion"] == "autoscaling/v1"
    assert answer.body["spec"]["targetCPUUtilizationPercentage"] == 50


async def test_webhooks_of_exact_versions_are_not_called_for_others(configure, hooks, create_old_autoscaler):
    await configure(rule=SCALERS, matchPolicy="Exact")
    assert (await create_old_autoscaler()).status == 201
    assert hooks.asked == []


async def test_a_rule_for_the_requested_version_goes_before_equivalent_ones(configure, hooks, create_old_autoscaler):
    await configure(rule={**SCALERS, "apiVersions": ["v2", "v1"]})
    assert (await create_old_autoscaler()).status == 201
    assert [asked["kind"]["version"] for asked in hooks.asked] == ["v1"]


async def test_webhooks_of_subresources_see_only_these(client, configure, hooks):
    await client.create("a")
    await configure(rule={"resources": ["things/status"]})
    await client("PATCH", f"{client.things}/a/status", {"status": {"x": 1}}, type=MERGE)
    await client("PATCH", f"{client.things}/a", {"spec": {"size": 9}}, type=MERGE)
    assert [asked["subResource"] for asked in hooks.asked] == ["status"]


async def test_webhooks_are_told_of_dry_runs(client, configure, hooks, make_thing):
    await configure()
    assert (await client("POST", client.things, make_thing("a"), dryRun="All")).status == 201
    assert hooks.asked[0]["dryRun"] is True


async def test_configurations_are_completed_and_checked(client):
    path = CONFIGURATIONS.format("mutating")
    wrong = {"name": "short", "clientConfig": {}}
    answer = await client("POST", path, {"metadata": {"name": "x"}, "webhooks": [wrong]})
    assert answer.fields == {
        f"webhooks[0].{field}" for field in ("name", "sideEffects", "clientConfig", "admissionReviewVersions")
    }
    webhook = {
        "name": "a.b.c",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "objectSelector": None,
        "clientConfig": {"url": "https://x/"},
    }
    stored = (await client("POST", path, {"metadata": {"name": "x"}, "webhooks": [webhook]}, dryRun="All")).body
    assert stored["webhooks"][0] == {
        **webhook,
        "objectSelector": {},
        "namespaceSelector": {},
        "failurePolicy": "Fail",
        "timeoutSeconds": 10,
        "matchPolicy": "Equivalent",
        "reinvocationPolicy": "Never",
    }


@pytest.mark.parametrize("admission", [False, True])
async def test_nulls_that_are_applied_stay_until_they_are_checked(client, configure, admission):
    if admission:
        await configure("mutating")
    answer = await client(
        "PATCH",
        f"{client.things}/new?fieldManager=me",
        {"apiVersion": f"{GROUP}/v1", "kind": "Thing", "metadata": {"name": "new"}, "spec": {"size": None}},
        type="application/apply-patch+yaml",
    )
    assert (answer.status, answer.fields) == (422, {"spec.size"})
