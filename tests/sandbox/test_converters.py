"""Conversion of custom resources: which version is shown and stored, and the rules for webhooks."""

import asyncio
import base64
import copy
import ssl
from collections.abc import AsyncIterator

import aiohttp.web
import pytest

from kopf._kits.testing.wire.tls import Authority

MERGE = "application/merge-patch+json"
GROUP = "conv.example.dev"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
FREE = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
SPECS = {
    "v1": {"port": {"type": "integer"}},
    "v2": {"ports": {"type": "array", "items": {"type": "integer"}}, "mode": {"type": "string", "default": "slow"}},
}


class Hook:
    """A conversion webhook: v1 has a port, v2 has ports; `spoil` changes what it answers."""

    def __init__(self) -> None:
        self.asked: list[dict] = []
        self.spoil = lambda review: review
        self.authority = Authority()

    async def handle(self, request: aiohttp.web.Request) -> aiohttp.web.Response:
        review = await request.json()
        self.asked.append(review)
        asked = review.pop("request")
        objects = copy.deepcopy(asked["objects"])
        for item in objects:
            item["apiVersion"], spec = asked["desiredAPIVersion"], item.setdefault("spec", {})
            if item["apiVersion"].endswith("v2") and "port" in spec:
                spec["ports"] = [spec.pop("port")]
            if item["apiVersion"].endswith("v1") and "ports" in spec:
                spec["port"] = spec.pop("ports")[0]
        review["request"] = asked
        response = {"uid": asked["uid"], "convertedObjects": objects, "result": {"status": "Success"}}
        answer = self.spoil({"apiVersion": review["apiVersion"], "kind": "ConversionReview", "response": response})
        return answer if isinstance(answer, aiohttp.web.Response) else aiohttp.web.json_response(answer)

    @property
    def conversion(self) -> dict:
        bundle = base64.b64encode(self.authority.certificate).decode()
        return {
            "strategy": "Webhook",
            "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": {"url": self.url, "caBundle": bundle}},
        }


@pytest.fixture
async def hook() -> AsyncIterator[Hook]:
    hook = Hook()
    app = aiohttp.web.Application()
    app.router.add_post("/convert", hook.handle)
    runner = aiohttp.web.AppRunner(app)
    await runner.setup()
    context: ssl.SSLContext = hook.authority.context()
    await aiohttp.web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    hook.url = f"https://127.0.0.1:{runner.addresses[0][1]}/convert"
    yield hook
    for connection in runner.server.connections:
        connection.transport.abort()  # The sandbox keeps them.
    await runner.cleanup()


class Resource:
    """A custom resource in the versions v1 and v2; v1 is stored at first."""

    def __init__(self, client) -> None:
        self.client, self.plural = client, f"conv{client.namespace[3:]}s"
        self.crd = f"{CRDS}/{self.plural}.{GROUP}"

    async def define(self, conversion=None):
        names = {"plural": self.plural, "kind": "Conv" + self.plural[4:-1]}
        answer = await self.client(
            "POST",
            CRDS,
            {
                "metadata": {"name": f"{self.plural}.{GROUP}"},
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "spec": {
                    "group": GROUP,
                    "scope": "Namespaced",
                    "names": names,
                    "versions": self.versions("v1"),
                    **({"conversion": conversion} if conversion else {}),
                },
            },
        )
        return answer

    def versions(self, stored, among=("v1", "v2")):
        return [
            {
                "name": name,
                "served": True,
                "storage": name == stored,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {"spec": {"type": "object", "properties": SPECS[name]}, "status": FREE},
                    }
                },
            }
            for name in among
        ]

    async def redefine(self, subresource="", **patch):
        return await self.client("PATCH", self.crd + subresource, patch, type=MERGE)

    def path(self, version, name=""):
        return f"/apis/{GROUP}/{version}/namespaces/{self.client.namespace}/{self.plural}" + (name and f"/{name}")

    async def create(self, version, name, query="", **spec):
        return await self.client(
            "POST",
            self.path(version) + query,
            {
                "apiVersion": f"{GROUP}/{version}",
                "kind": "Conv" + self.plural[4:-1],
                "metadata": {"name": name},
                "spec": spec,
            },
        )

    async def get(self, version, name):
        return await self.client("GET", self.path(version, name))

    async def spec(self, version, name):
        answer = await self.get(version, name)
        assert answer.status == 200, answer
        assert answer.body["apiVersion"] == f"{GROUP}/{version}"
        return answer.body["spec"]


@pytest.fixture
async def resource(client) -> AsyncIterator[Resource]:
    resource = Resource(client)
    yield resource
    await resource.redefine(spec={"conversion": {"strategy": "None", "webhook": None}})
    await client("DELETE", resource.crd)


async def test_without_webhooks_unknown_fields_are_lost(resource):
    """What the other version does not know is lost, and what it has by default is not shown before it is written."""
    await resource.define()
    await resource.create("v1", "a", port=5)
    assert await resource.spec("v2", "a") == {}
    assert (await resource.create("v2", "b", ports=[5])).body["spec"] == {}
    assert await resource.spec("v1", "a") == {"port": 5}


async def test_objects_are_converted_when_read_and_written(resource, hook):
    await resource.define(hook.conversion)
    await resource.create("v1", "a", port=5)
    assert await resource.spec("v2", "a") == {"ports": [5]}
    created = await resource.create("v2", "b", ports=[1, 2])
    assert created.body["spec"] == {"ports": [1]}  # as it was stored
    assert await resource.spec("v1", "b") == {"port": 1}
    patched = await resource.client("PATCH", resource.path("v2", "a"), {"spec": {"ports": [7]}}, type=MERGE)
    assert patched.body["spec"] == {"ports": [7]}
    assert await resource.spec("v1", "a") == {"port": 7}
    listed = await resource.client("GET", resource.path("v2"))
    assert [item["spec"] for item in listed.body["items"]] == [{"ports": [7]}, {"ports": [1]}]
    tried = await resource.create("v2", "c", "?dryRun=All", ports=[3, 4])
    assert tried.body["spec"] == {"ports": [3]}
    assert (await resource.get("v1", "c")).status == 404


async def test_webhooks_are_asked_with_a_full_review(resource, hook):
    await resource.define(hook.conversion)
    created = (await resource.create("v1", "a", port=5)).body
    await resource.get("v2", "a")
    (review,) = hook.asked
    assert (review["apiVersion"], review["kind"]) == ("apiextensions.k8s.io/v1", "ConversionReview")
    assert review["request"]["desiredAPIVersion"] == f"{GROUP}/v2"
    del created["metadata"]["resourceVersion"]
    assert review["request"]["objects"] == [created]


async def test_only_reads_of_single_objects_ask_again(resource, hook):
    """Lists are answered from what was converted before, as from the watch cache; single objects never are."""
    await resource.define(hook.conversion)
    await resource.create("v1", "a", port=5)
    for _ in range(3):
        await resource.client("GET", resource.path("v2"))
    assert len(hook.asked) == 1
    await resource.get("v2", "a")
    assert len(hook.asked) == 2
    await resource.get("v1", "a")
    assert len(hook.asked) == 2


def respond(**changes):
    def spoil(review):
        review["response"].update(changes)
        return review

    return spoil


def answer(**changes):
    def spoil(review):
        review.update(changes)
        return review

    return spoil


def change(**changes):
    def spoil(review):
        for item in review["response"]["convertedObjects"]:
            item.update({key: value for key, value in changes.items() if key != "metadata"})
            item["metadata"].update(changes.get("metadata") or {})
        return review

    return spoil


def reply(status, text="", media="application/json"):
    return lambda _: aiohttp.web.Response(status=status, text=text, content_type=media)


UNREADABLE = (
    'failed: couldn\'t get version/kind; json parse error: json: cannot unmarshal {} into Go value of type '
    'struct { APIVersion string "json:\\"apiVersion,omitempty\\""; Kind string "json:\\"kind,omitempty\\"" }'
)


@pytest.mark.parametrize(
    "spoil, message",
    [
        (respond(result={"status": "Failed", "message": "no way"}), "failed: no way"),
        (respond(result={"status": "Failed"}), "failed: response.result.status was 'Failed', not 'Success'"),
        (respond(result={}), "failed: response.result.status was '', not 'Success'"),
        (respond(uid="other"), 'got "other"'),
        (respond(convertedObjects=[]), "returned 0 objects, expected 1"),
        (
            change(apiVersion="a/v9"),
            f"returned invalid object at index 0: invalid groupVersion (expected {GROUP}/v2, received a/v9)",
        ),
        (change(kind="Other"), "received Other)"),
        (change(metadata={"name": "other"}), "returned invalid object: must have the same name: a != other"),
        (
            change(metadata={"labels": {"x": 5}}),
            "returned invalid metadata: metadata.labels[x] must be a string, but is int64 in converted object",
        ),
        (
            change(metadata={"labels": {"x": "a b"}}),
            "returned invalid metadata: metadata.labels: Invalid value: \"a b\"",
        ),
        (answer(response=None), "failed: no response provided"),
        (
            answer(kind=""),
            "failed: expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got "
            "apiextensions.k8s.io/v1, Kind=",
        ),
        (answer(kind="AdmissionReview"), 'failed: no kind "AdmissionReview" is registered'),
        (
            answer(apiVersion="apiextensions.k8s.io/v1beta1"),
            "failed: converting (v1beta1.ConversionReview) to (v1.ConversionReview): unknown conversion",
        ),
        (reply(500, "broken"), 'failed: an error on the server ("unknown") has prevented the request from succeeding'),
        (reply(404), "failed: the server could not find the requested resource"),
        (reply(200, "garbage"), UNREADABLE.replace("{}", "string", 1)),
        (reply(200, "[]"), UNREADABLE.replace("{}", "array", 1)),
    ],
)
async def test_bad_answers_of_webhooks_fail_the_request(resource, hook, spoil, message):
    """The words are those of a real server, since people search for them."""
    await resource.define(hook.conversion)
    await resource.create("v1", "a", port=5)
    hook.spoil = spoil
    refused = await resource.get("v2", "a")
    assert (refused.status, refused.body.get("reason")) == (500, None)
    assert refused.message.startswith(f"conversion webhook for {GROUP}/v1, Kind=Conv{resource.plural[4:-1]} ")
    assert message in refused.message
    hook.spoil = lambda review: review
    assert await resource.spec("v2", "a") == {"ports": [5]}


async def test_nothing_is_written_if_it_cannot_be_converted(resource, hook):
    await resource.define(hook.conversion)
    await resource.create("v1", "a", port=5)
    hook.spoil = respond(result={"status": "Failed", "message": "no way"})
    assert (await resource.create("v2", "b", ports=[1])).status == 500
    assert (await resource.client("DELETE", resource.path("v2", "a"))).status == 500
    assert (await resource.create("v2", "c", ports="x")).status == 422  # without asking
    listed = await resource.client("GET", resource.path("v1"))
    assert listed.names == ["a"]
    assert (await resource.client("GET", resource.path("v2"))).status == 500
    assert (await resource.client("DELETE", resource.path("v1", "a"))).status == 200


async def test_what_webhooks_may_change(resource, hook):
    await resource.define(hook.conversion)
    await resource.create("v1", "a", port=5)
    hook.spoil = change(
        metadata={"labels": {"x": "y"}, "annotations": {"z": ""}, "finalizers": ["a/b"]},
        spec={"ports": [5], "unknown": 1},
    )
    found = (await resource.get("v2", "a")).body
    assert found["metadata"]["labels"] == {"x": "y"}
    assert found["metadata"]["annotations"] == {"z": ""}
    assert "finalizers" not in found["metadata"]
    assert found["spec"] == {"ports": [5]}


async def test_unreachable_webhooks_fail_the_request(resource, hook):
    conversion = hook.conversion
    conversion["webhook"]["clientConfig"]["url"] = "https://127.0.0.1:1/convert"
    await resource.define(conversion)
    await resource.create("v1", "a", port=5)
    assert (await resource.get("v2", "a")).message.endswith(
        'failed: Post "https://127.0.0.1:1/convert?timeout=30s": dial tcp 127.0.0.1:1: connect: connection refused'
    )


async def test_untrusted_webhooks_fail_the_request(resource, hook):
    conversion = hook.conversion
    del conversion["webhook"]["clientConfig"]["caBundle"]
    await resource.define(conversion)
    await resource.create("v1", "a", port=5)
    assert (await resource.get("v2", "a")).message.endswith(
        "tls: failed to verify certificate: x509: certificate signed by unknown authority"
    )


async def test_watches_get_converted_objects(resource, hook):
    await resource.define(hook.conversion)
    async with resource.client.watch(resource.path("v2"), timeoutSeconds="20") as watch:
        await resource.create("v1", "a", port=5)
        assert (await watch.next())["object"]["spec"] == {"ports": [5]}
        hook.spoil = respond(result={"status": "Failed", "message": "no way"})
        await resource.create("v1", "b", port=6)
        with pytest.raises(TimeoutError):  # It is silent, and nothing is lost.
            await watch.next(timeout=0.3)
        hook.spoil = lambda review: review
        event = await watch.next()
        assert (event["type"], event["object"]["spec"]) == ("ADDED", {"ports": [6]})
        await resource.client("DELETE", resource.path("v1", "a"))
        event = await watch.next()
        assert (event["type"], event["object"]["spec"]) == ("DELETED", {"ports": [5]})


async def test_watches_end_when_the_definition_changes(resource):
    await resource.define()
    async with resource.client.watch(resource.path("v1"), timeoutSeconds="40") as watch:
        await resource.redefine(metadata={"labels": {"a": "b"}})
        await asyncio.sleep(0)
        started = asyncio.get_running_loop().time()
        await resource.redefine(spec={"versions": resource.versions("v2")})
        assert await watch.next() is None
        assert 0.5 < asyncio.get_running_loop().time() - started < 20


async def test_stored_versions_are_listed_in_the_status(resource, hook):
    defined = await resource.define(hook.conversion)
    assert defined.body["status"]["storedVersions"] == ["v1"]
    await resource.create("v1", "old", port=1)
    switched = await resource.redefine(spec={"versions": resource.versions("v2")})
    assert switched.body["status"]["storedVersions"] == ["v1", "v2"]
    await resource.create("v2", "new", ports=[2])
    hook.asked.clear()
    assert await resource.spec("v1", "old") == {"port": 1}
    assert await resource.spec("v2", "new") == {"ports": [2], "mode": "slow"}
    assert not hook.asked  # Each was read in the version that it is stored in.

    old = (await resource.get("v1", "old")).body
    moved = (await resource.client("PUT", resource.path("v1", "old"), old)).body
    assert moved["metadata"]["resourceVersion"] != old["metadata"]["resourceVersion"]
    assert moved["metadata"]["generation"] == 1
    again = (await resource.client("PUT", resource.path("v1", "old"), moved)).body
    assert again["metadata"]["resourceVersion"] == moved["metadata"]["resourceVersion"]

    only = resource.versions("v2", among=["v2"])
    refused = await resource.redefine(spec={"versions": only})
    assert (refused.status, refused.fields) == (422, {"status.storedVersions[0]"})
    done = await resource.redefine("/status", status={"storedVersions": ["v2"]})
    assert done.body["status"]["storedVersions"] == ["v2"]
    assert (await resource.redefine(spec={"versions": only})).status == 200
    assert await resource.spec("v2", "old") == {"ports": [1], "mode": "slow"}


@pytest.mark.parametrize(
    "conversion, fields",
    [
        ({"strategy": "Other"}, ["strategy"]),
        ({"strategy": "Webhook"}, ["webhookClientConfig", "conversionReviewVersions"]),
        (
            {
                "strategy": "Webhook",
                "webhook": {"conversionReviewVersions": ["v7"], "clientConfig": {"url": "https://a"}},
            },
            ["conversionReviewVersions"],
        ),
        (
            {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1", "v1"], "clientConfig": {}}},
            ["webhookClientConfig", "conversionReviewVersions[1]"],
        ),
        (
            {
                "strategy": "Webhook",
                "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": {"url": "http://x?y"}},
            },
            ["webhookClientConfig.url"],
        ),
        (
            {
                "strategy": "Webhook",
                "webhook": {
                    "conversionReviewVersions": ["v1"],
                    "clientConfig": {"service": {"port": 0, "path": "x//y"}},
                },
            },
            [f"webhookClientConfig.service.{key}" for key in ("name", "namespace", "port", "path")],
        ),
        (
            {"strategy": "None", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": {"url": "https://a"}}},
            ["webhookClientConfig", "conversionReviewVersions"],
        ),
    ],
)
async def test_wrong_strategies_are_refused(resource, conversion, fields):
    refused = await resource.define(conversion)
    assert refused.status == 422
    assert refused.fields == {f"spec.conversion.{field}" for field in fields}
