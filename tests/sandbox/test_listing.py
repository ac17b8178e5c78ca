"""Lists: selectors, chunks, versions, and forms."""

import base64
import json

import pytest

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@pytest.fixture
async def abc(client):
    for name, labels in (("a", {"app": "x", "n": "1"}), ("b", {"app": "y", "n": "5"}), ("c", {})):
        await client.create(name, labels=labels)


async def test_a_list_has_a_kind_and_metadata(client, abc):
    body = (await client("GET", client.things)).body
    assert (body["kind"], body["apiVersion"]) == ("ThingList", "things.example.dev/v1")
    assert body["metadata"]["resourceVersion"].isdigit()
    assert [item["kind"] for item in body["items"]] == ["Thing"] * 3


async def test_items_of_builtin_kinds_do_not_repeat_their_kind(client):
    await client("POST", client.configmaps, {"metadata": {"name": "c"}, "data": {"a": "b"}})
    body = (await client("GET", client.configmaps)).body
    assert body["kind"] == "ConfigMapList"
    assert set(body["items"][0]) == {"metadata", "data"}


async def test_objects_of_all_namespaces_are_listed(client, abc):
    listed = await client("GET", "/apis/things.example.dev/v1/things")
    own = [item for item in listed.body["items"] if item["metadata"]["namespace"] == client.namespace]
    assert [item["metadata"]["name"] for item in own] == ["a", "b", "c"]


async def test_lists_of_absent_namespaces_are_empty(client):
    assert (await client("GET", "/api/v1/namespaces/nope/configmaps")).names == []


@pytest.mark.parametrize(
    "selector, names",
    [
        ("app=x", "a"),
        ("app==x", "a"),
        ("app!=x", "bc"),
        ("app in (x, y)", "ab"),
        ("app notin (x)", "bc"),
        ("app", "ab"),
        ("!app", "c"),
        ("app=x,n=1", "a"),
        ("app=x,n=2", ""),
        ("n>1", "b"),
        ("n<5", "a"),
        ("", "abc"),
        ("app=", ""),
        ("app in ()", ""),
    ],
)
async def test_label_selectors_choose_the_listed_objects(client, abc, selector, names):
    assert (await client("GET", client.things, labelSelector=selector)).names == list(names)


@pytest.mark.parametrize(
    "selector, message",
    [
        ("a b", "found 'b', expected: in, notin, =, ==, !=, gt, lt"),
        ("a in (b", "found '', expected: ',' or ')'"),
        ("a=b=c", "found '=', expected: ',' or 'end of string'"),
        ("=", "found '=', expected: !, identifier, or 'end of string'"),
        ("x/y/z=1", "a valid label key must consist"),
        ("n>x", "the value must be an integer"),
    ],
)
async def test_wrong_label_selectors_are_refused(client, selector, message):
    answer = await client("GET", client.things, labelSelector=selector)
    assert (answer.status, answer.body["reason"]) == (400, "BadRequest")
    assert message in answer.message


async def test_field_selectors_choose_the_listed_objects(client, abc):
    for selector, names in (
        ("metadata.name=a", "a"),
        ("metadata.name!=a", "bc"),
        ("metadata.name=a,metadata.name=b", ""),
        (f"metadata.namespace={client.namespace}", "abc"),
    ):
        assert (await client("GET", client.things, fieldSelector=selector)).names == list(names)
    assert (await client("GET", client.things, fieldSelector="spec.size=1")).status == 400
    assert (await client("GET", client.things, fieldSelector="nonsense")).status == 400


async def test_builtin_kinds_have_field_selectors_of_their_own(client):
    pods = f"/api/v1/namespaces/{client.namespace}/pods"
    for name in ("p", "q"):
        spec = {"containers": [{"name": "c", "image": "i"}]}
        await client("POST", pods, {"metadata": {"name": name}, "spec": spec})
    await client("PATCH", f"{pods}/q/status", {"status": {"phase": "Running"}}, type="application/merge-patch+json")
    assert (await client("GET", pods, fieldSelector="status.phase=Running")).names == ["q"]
    assert (await client("GET", pods, fieldSelector="status.phase!=Running")).names == ["p"]


async def test_chunks_are_one_consistent_list(client, abc):
    first = await client("GET", client.things, limit="2")
    assert first.names == ["a", "b"]
    assert first.body["metadata"]["remainingItemCount"] == 1
    await client.create("b2")
    await client("DELETE", f"{client.things}/c")
    second = await client("GET", client.things, limit="2", **{"continue": first.body["metadata"]["continue"]})
    assert second.names == ["c"]
    assert second.body["metadata"]["resourceVersion"] == first.body["metadata"]["resourceVersion"]
    assert not second.body["metadata"].get("continue")


async def test_chunks_have_no_remaining_count_with_selectors(client, abc):
    first = await client("GET", client.things, limit="1", labelSelector="app")
    assert "remainingItemCount" not in first.body["metadata"]
    second = await client("GET", client.things, labelSelector="app", **{"continue": first.body["metadata"]["continue"]})
    assert (first.names, second.names) == (["a"], ["b"])


async def test_chunks_that_come_too_late_are_refused(client, abc, sandbox):
    token = (await client("GET", client.things, limit="2")).body["metadata"]["continue"]
    await client.create("d")
    sandbox.faults.forget_history()
    answer = await client("GET", client.things, **{"continue": token})
    assert (answer.status, answer.body["reason"]) == (410, "Expired")
    fresh = answer.body["metadata"]["continue"]
    assert (await client("GET", client.things, **{"continue": fresh})).names == ["c", "d"]


async def test_lists_can_be_of_an_exact_version(client, abc):
    version = await client.version()
    await client.create("d")
    assert (await client("GET", client.things, resourceVersion=version)).names == ["a", "b", "c", "d"]
    exact = await client("GET", client.things, resourceVersion=version, resourceVersionMatch="Exact")
    assert exact.names == ["a", "b", "c"]
    assert exact.body["metadata"]["resourceVersion"] == version
    assert (await client("GET", client.things, resourceVersion="1", resourceVersionMatch="Exact")).status == 410
    future = await client("GET", client.things, resourceVersion="999999999")
    assert (future.status, future.body["reason"], future.headers["Retry-After"]) == (504, "Timeout", "1")


async def test_limits_do_not_count_for_any_version(client, abc):
    assert (await client("GET", client.things, resourceVersion="0", limit="2")).names == ["a", "b", "c"]


@pytest.mark.parametrize(
    "params, status",
    [
        ({"limit": "x"}, 400),
        ({"resourceVersion": "x"}, 400),
        ({"continue": "x"}, 400),
        ({"resourceVersionMatch": "Exact"}, 422),
        ({"resourceVersion": "1", "resourceVersionMatch": "Other"}, 422),
        ({"resourceVersion": "0", "resourceVersionMatch": "Exact"}, 422),
        ({"sendInitialEvents": "true"}, 422),
    ],
)
async def test_wrong_parameters_are_refused(client, params, status):
    assert (await client("GET", client.things, **params)).status == status


async def test_the_token_alone_names_the_version(client):
    token = base64.urlsafe_b64encode(json.dumps({"v": "meta.k8s.io/v1", "rv": 1, "start": "/a"}).encode()).decode()
    answer = await client("GET", client.things, resourceVersion="5", **{"continue": token})
    assert (answer.status, answer.body["reason"]) == (400, "BadRequest")


async def test_lists_can_be_tables(client, abc):
    body = (await client("GET", client.things, headers={"Accept": TABLE}, limit="2")).body
    assert body["kind"] == "Table"
    assert [column["name"] for column in body["columnDefinitions"]] == ["Name", "Size"]
    assert [row["cells"] for row in body["rows"]] == [["a", 1], ["b", 1]]
    assert body["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    assert body["metadata"]["continue"]
    one = (await client("GET", f"{client.things}/a", headers={"Accept": TABLE}, includeObject="Object")).body
    assert one["rows"][0]["object"]["spec"] == {"size": 1, "color": "red"}


async def test_builtin_kinds_have_tables_of_their_own(client):
    body = (await client("GET", "/api/v1/namespaces", headers={"Accept": TABLE})).body
    assert [column["name"] for column in body["columnDefinitions"]] == ["Name", "Status", "Age"]
    assert body["rows"][0]["cells"][:2] == ["default", "Active"]


async def test_objects_can_be_listed_by_their_metadata_only(client, abc):
    kind = "application/json;as={};v=v1;g=meta.k8s.io"
    listed = await client("GET", client.things, headers={"Accept": kind.format("PartialObjectMetadataList")})
    assert listed.body["kind"] == "PartialObjectMetadataList"
    assert set(listed.body["items"][0]) == {"kind", "apiVersion", "metadata"}
    one = await client("GET", f"{client.things}/a", headers={"Accept": kind.format("PartialObjectMetadata")})
    assert one.body["metadata"]["name"] == "a"
    wrong = await client("GET", client.things, headers={"Accept": kind.format("PartialObjectMetadata")})
    assert wrong.status == 406
