"""Creation, reading and replacement of single objects, and refusals."""

import json
import secrets
import ssl
import urllib.error
import urllib.request

import pytest


async def test_a_new_object_gets_its_identity(client):
    body = await client.create("a", labels={"x": "y"})
    meta = body["metadata"]
    assert set(meta) == {
        "name",
        "namespace",
        "labels",
        "uid",
        "creationTimestamp",
        "resourceVersion",
        "generation",
        "managedFields",
    }
    assert meta["generation"] == 1
    assert meta["creationTimestamp"].endswith("Z")
    assert (await client("GET", f"{client.things}/a")).body == body


async def test_what_clients_may_not_set_is_ignored(client):
    given = {
        "uid": "mine",
        "generation": 9,
        "creationTimestamp": "2000-01-01T00:00:00Z",
        "selfLink": "x",
        "deletionTimestamp": "2000-01-01T00:00:00Z",
        "managedFields": [],
    }
    meta = (await client.create("a", **given))["metadata"]
    assert meta["uid"] != "mine" and meta["generation"] == 1 and meta["creationTimestamp"] > "2001"
    assert not {"selfLink", "deletionTimestamp"} & set(meta)
    assert [entry["manager"] for entry in meta["managedFields"]] == ["Python"]


async def test_generated_names_are_unique(client, make_thing):
    body = make_thing("", generateName="some-")
    names = {(await client("POST", client.things, body)).body["metadata"]["name"] for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("some-") and len(name) == 10 for name in names)


@pytest.fixture
def letters(monkeypatch):
    """How many of the next generated names are the same ones."""

    def letters(same):
        texts = ["bbbbb"] * same + ["ccccc"]
        drawn = iter("".join(texts))
        monkeypatch.setattr(secrets, "choice", lambda alphabet: next(drawn))

    return letters


async def test_generated_names_that_are_taken_are_tried_again(client, make_thing, letters):
    letters(8)
    body = make_thing("", generateName="same-")
    assert (await client("POST", client.things, body)).body["metadata"]["name"] == "same-bbbbb"
    answer = await client("POST", client.things, body)
    assert (answer.status, answer.body["metadata"]["name"]) == (201, "same-ccccc")


async def test_generated_names_are_tried_only_so_often(client, make_thing, letters):
    letters(9)
    body = make_thing("", generateName="often-")
    await client("POST", client.things, body)
    answer = await client("POST", client.things, body)
    assert (answer.status, answer.body["reason"], answer.headers["Retry-After"]) == (409, "AlreadyExists", "1")
    assert answer.message == (
        'things.things.example.dev "often-bbbbb" already exists, the server was not able to '
        'generate a unique name for the object'
    )
    assert answer.body["details"]["retryAfterSeconds"] == 1


async def test_given_names_that_are_taken_are_not_generated(client, make_thing):
    body = make_thing("given", generateName="given-")
    await client("POST", client.things, body)
    answer = await client("POST", client.things, body)
    assert (answer.status, answer.body["reason"]) == (409, "AlreadyExists")
    assert "was not able to generate a unique name" in answer.message  # so says a real server, too


async def test_yaml_in_and_out(client):
    text = "apiVersion: things.example.dev/v1\nkind: Thing\nmetadata: {name: why}\nspec: {size: 4}\n"
    answer = await client("POST", client.things, data=text, type="application/yaml")
    assert (answer.status, answer.body["spec"]["size"]) == (201, 4)
    answer = await client("GET", f"{client.things}/why", headers={"Accept": "application/yaml"})
    assert answer.headers["Content-Type"] == "application/yaml"
    assert "\n  size: 4\n" in answer.body


async def test_the_name_is_taken(client, make_thing):
    await client.create("a")
    answer = await client("POST", client.things, make_thing("a"))
    assert (answer.status, answer.body["reason"]) == (409, "AlreadyExists")
    assert answer.body["details"] == {"name": "a", "group": "things.example.dev", "kind": "things"}


async def test_absent_objects_and_namespaces(client, make_thing):
    answer = await client("GET", f"{client.things}/nope")
    assert (answer.status, answer.body["reason"], answer.body["details"]["name"]) == (404, "NotFound", "nope")
    assert answer.message == 'things.things.example.dev "nope" not found'
    answer = await client("POST", client.things.replace(client.namespace, "nope"), make_thing("a"))
    assert (answer.status, answer.message) == (404, 'namespaces "nope" not found')


@pytest.mark.parametrize(
    "change, status, message",
    [
        ({"apiVersion": "v1"}, 400, "does not match the expected API version"),
        ({"kind": "Other"}, 422, "must be Thing"),
        ({"kind": ""}, 400, "Object 'Kind' is missing"),
        ({"metadata": {"name": "a", "namespace": "other"}}, 400, "does not match the namespace sent"),
        ({"metadata": {"name": "Bad_Name"}}, 422, "RFC 1123 subdomain"),
        ({"metadata": {"name": "x" * 254}}, 422, "must be no more than 253"),
        ({"metadata": {}}, 422, "name or generateName is required"),
        ({"metadata": {"name": "a", "labels": {"k": 1}}}, 400, "ObjectMeta.labels of type string"),
        ({"metadata": {"name": "a", "labels": []}}, 400, "of type map[string]string"),
        ({"metadata": {"name": "a", "labels": {"k": "bad value"}}}, 422, "a valid label must be"),
        ({"metadata": {"name": "a", "annotations": {"bad key": ""}}}, 422, "name part must consist"),
        ({"metadata": {"name": "a", "finalizers": "x"}}, 400, "of type []string"),
        ({"metadata": {"name": "a", "ownerReferences": [{"kind": "X"}]}}, 422, "must not be empty"),
        ({"metadata": {"name": "a", "resourceVersion": "5"}}, 500, "resourceVersion should not be set"),
    ],
)
async def test_malformed_objects_are_refused(client, make_thing, change, status, message):
    answer = await client("POST", client.things, {**make_thing("a"), **change})
    assert answer.status == status
    assert message in answer.message


@pytest.mark.parametrize(
    "data, message",
    [
        ("{bad", "invalid character 'b'"),
        ("", "unexpected end of JSON input"),
        ("[]", "cannot unmarshal array"),
    ],
)
async def test_bodies_without_an_object_are_refused(client, data, message):
    answer = await client("POST", client.things, data=data)
    assert (answer.status, answer.body["reason"]) == (400, "BadRequest")
    assert message in answer.message


async def test_unknown_media_types_are_refused(client, make_thing):
    answer = await client("POST", client.things, make_thing("a"), type="text/plain")
    assert (answer.status, answer.body["reason"]) == (415, "UnsupportedMediaType")
    answer = await client("GET", client.things, headers={"Accept": "text/html"})
    assert answer.status == 406


def test_too_large_bodies_are_refused(sandbox, make_thing):
    request = urllib.request.Request(
        f"{sandbox.url}/api/v1/namespaces",
        json.dumps(make_thing("a", {"free": {"x": "x" * 4_000_000}})).encode(),
        headers={"Authorization": f"Bearer {sandbox.token}", "Content-Type": "application/json"},
    )
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(request, context=ssl.create_default_context(cadata=sandbox.ca.decode()))
    with error.value as answer:
        assert (answer.code, json.load(answer)["reason"]) == (413, "RequestEntityTooLarge")


async def test_dry_runs_store_nothing(client, make_thing):
    answer = await client("POST", client.things, make_thing("a"), dryRun="All")
    assert answer.status == 201
    assert "resourceVersion" not in answer.body["metadata"]
    assert (await client("GET", f"{client.things}/a")).status == 404
    assert (await client("POST", client.things, make_thing("a"), dryRun="Some")).status == 422


async def test_replaced_objects_get_a_new_generation(client):
    body = await client.create("a")
    body["spec"]["size"] = 2
    answer = await client("PUT", f"{client.things}/a", body)
    assert (answer.status, answer.body["spec"]["size"], answer.body["metadata"]["generation"]) == (200, 2, 2)
    body["spec"]["size"] = 3
    answer = await client("PUT", f"{client.things}/a", body)
    assert (answer.status, answer.body["reason"]) == (409, "Conflict")
    assert "the object has been modified" in answer.message


@pytest.mark.parametrize(
    "meta, status, message",
    [
        ({"resourceVersion": None}, 422, "must be specified for an update"),
        ({"resourceVersion": "abc"}, 500, "invalid syntax"),
        ({"uid": "other"}, 409, "Precondition failed: UID"),
        ({"name": "b"}, 400, "does not match the name on the URL"),
        ({"name": None}, 400, "name must be provided"),
        ({"namespace": "other"}, 400, "does not match the namespace"),
    ],
)
async def test_replacing_by_something_else(client, meta, status, message):
    body = await client.create("a")
    body["metadata"].update(meta)
    answer = await client("PUT", f"{client.things}/a", body)
    assert answer.status == status
    assert message in answer.message


async def test_replacing_what_is_not_there(client, make_thing):
    assert (await client("PUT", f"{client.things}/a", make_thing("a"))).status == 404
    lease = {"metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}}
    path = f"/apis/coordination.k8s.io/v1/namespaces/{client.namespace}/leases/l"
    assert (await client("PUT", path, lease)).status == 201
    assert (await client("PUT", path, lease)).status == 200


async def test_updates_without_effect_keep_the_version(client):
    body = await client.create("a")
    answer = await client("PUT", f"{client.things}/a", body)
    assert answer.body == body


async def test_cluster_scoped_objects_have_no_namespace(client, make_crd):
    await client(
        "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", make_crd("worlds", "World", scope="Cluster")
    )
    body = {"apiVersion": "things.example.dev/v1", "kind": "World", "metadata": {"name": "w", "namespace": "x"}}
    answer = await client("POST", "/apis/things.example.dev/v1/worlds", body)
    assert answer.status == 201
    assert "namespace" not in answer.body["metadata"]
    assert (await client("POST", "/apis/things.example.dev/v1/namespaces/default/worlds", body)).status == 404
