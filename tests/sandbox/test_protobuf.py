"""Bodies in protobuf, as kubectl sends them."""

import base64

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kopf._kits.testing.wire import protobuf

MEDIA = "application/vnd.kubernetes.protobuf"
SECRET = "azhzAAoMCgJ2MRIGU2VjcmV0Eh0KEQoBcxIAGgAiACoAMgA4AEIAEgYKAWESAWIaABoAIgA="
BUDGET = (
    "azhzAAogCglwb2xpY3kvdjESE1BvZERpc3J1cHRpb25CdWRnZXQSNgoRCgFwEgAaACIAKgAyADgAQgASFQoJCAEQABoDNTAlEggKBgoBYRIBYhoK"
    "CAAYACAAKAAwABoAIgA="
)
QUOTA = "azhzAAoTCgJ2MRINUmVzb3VyY2VRdW90YRIwChEKAXESABoAIgAqADIAOABCABIZCgoKA2NwdRIDCgExCgsKBHBvZHMSAwoBMhoAGgAiAA=="
DEPLOYMENT = (
    "azhzAAoVCgdhcHBzL3YxEgpEZXBsb3ltZW50ErABChsKAWQSABoAIgAqADIAOABCAFoICgNhcHASAWQSggEIABIKCggKA2FwcBIBZBpqChoKAB"
    "IAGgAiACoAMgA4AEIAWggKA2FwcBIBZBJMEi4KBW5naW54EgVuZ2lueCoAMgoKABAAGFAiACoAQgBqAHIAgAEAiAEAkAEAogEAGgAyAEIASgBS"
    "AFgAYABoAIIBAIoBAJoBAMIBACICCgAoADgAGgwIABAAGAAgACgAOAAaACIA"
)


def decode(text):
    return protobuf.loads(base64.b64decode(text))


def test_bytes_stay_as_in_json():
    assert decode(SECRET) == {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"a": "Yg=="}}


def test_values_can_be_numbers_or_texts():
    assert decode(BUDGET)["spec"] == {"minAvailable": "50%", "selector": {"matchLabels": {"a": "b"}}}


def test_quantities_are_decoded_as_texts():
    assert decode(QUOTA)["spec"] == {"hard": {"cpu": "1", "pods": "2"}}


def test_zeros_that_mean_something_are_kept_and_others_are_not():
    # That command: kubectl create deployment d --image=nginx --replicas=0 --port=80
    assert decode(DEPLOYMENT) == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d", "labels": {"app": "d"}},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "d"}},
            "strategy": {},
            "template": {
                "metadata": {"labels": {"app": "d"}},
                "spec": {
                    "containers": [
                        {"name": "nginx", "image": "nginx", "ports": [{"containerPort": 80}], "resources": {}}
                    ]
                },
            },
        },
        "status": {},
    }


@given(st.binary(max_size=200), st.sampled_from([SECRET, BUDGET, QUOTA, DEPLOYMENT]), st.integers(4, 200))
@example(b"\x0a\xff", SECRET, 4)
def test_nonsense_is_told_of(garbage, text, position):
    data = base64.b64decode(text)
    try:
        assert isinstance(protobuf.loads(data[:position] + garbage + data[position:]), dict)
    except protobuf.ProtobufError as error:
        assert str(error)


async def test_objects_are_created(client, sandbox):
    path = f"/api/v1/namespaces/{client.namespace}/secrets"
    accept = f"{MEDIA},application/json"
    async with client.session.post(
        client.url + path, data=base64.b64decode(SECRET), headers={"Content-Type": MEDIA, "Accept": accept}
    ) as response:
        body = await response.json()
    assert (response.status, body["kind"], body["data"], body["type"]) == (201, "Secret", {"a": "Yg=="}, "Opaque")
    assert sandbox.get("secrets", "s", namespace=client.namespace)["data"] == {"a": "Yg=="}


@pytest.mark.parametrize(
    "data, message",
    [
        (
            "hello",
            "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0] (68656c6c6f)",
        ),
        ("k8s\0abc", "unexpected EOF (6b387300616263)"),
        ("k8s\0", "empty body (6b387300)"),
    ],
)
async def test_what_cannot_be_read(client, data, message):
    answer = await client("POST", client.configmaps, data=data, type=MEDIA)
    assert (answer.status, answer.body["reason"]) == (400, "BadRequest")
    assert answer.message == f"the object provided is unrecognized (must be of type ConfigMap): {message}"


async def test_unknown_kinds_are_refused(client):
    data = "k8s\0\x0a\x0f\x0a\x02v2\x12\x09ConfigMap"
    answer = await client("POST", client.configmaps, data=data, type=MEDIA)
    assert (answer.status, answer.message) == (
        400,
        'ConfigMap in version "v2" cannot be handled as a ConfigMap: no kind "ConfigMap" is registered for '
        'version "v2" in scheme "pkg/runtime/scheme.go:111"',
    )


async def test_custom_resources_are_never_in_protobuf(client):
    answer = await client("POST", client.things, data="k8s\0", type=MEDIA)
    assert (answer.status, answer.message) == (
        415,
        "the body of the request was in an unknown format - accepted media types include: application/json, "
        "application/yaml",
    )
