"""Merge patches and JSON patches: their effects and refusals, and the status subresource."""

import pytest

from kopf._kits.testing.wire import timestamps

MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"


@pytest.fixture
async def patch(client):
    """Patch the object `a`, which is there already."""
    await client.create("a", labels={"l": "1"}, annotations={"k": "v"})

    async def patch(body, type=MERGE, name="a", **params):
        return await client("PATCH", f"{client.things}/{name}", body, type=type, **params)

    return patch


async def test_merge_patches_replace_and_remove_fields(patch):
    answer = await patch({"spec": {"size": 7}, "metadata": {"labels": {"l": None, "m": "2"}}})
    assert answer.status == 200
    assert answer.body["spec"]["size"] == 7
    assert answer.body["metadata"]["labels"] == {"m": "2"}
    assert answer.body["metadata"]["annotations"] == {"k": "v"}


async def test_nulls_inside_of_new_values_are_dropped(patch):
    answer = await patch({"spec": {"free": {"a": None, "b": 1, "c": [{"d": None, "e": 2}]}}})
    assert answer.body["spec"]["free"] == {"b": 1, "c": [{"e": 2}]}


async def test_generation_follows_the_specification(patch):
    assert (await patch({"spec": {"size": 2}})).body["metadata"]["generation"] == 2
    assert (await patch({"metadata": {"labels": {"x": "y"}}})).body["metadata"]["generation"] == 2


async def test_patches_without_effect_keep_the_version(patch):
    before = (await patch({})).body
    assert (await patch({"spec": {"size": 1}, "metadata": {"finalizers": [], "uid": None}})).body == before


async def test_the_type_of_a_value_is_a_change(patch):
    first = (await patch({"spec": {"free": {"x": 1}}})).body
    second = (await patch({"spec": {"free": {"x": True}}})).body
    assert second["spec"]["free"]["x"] is True
    assert second["metadata"]["resourceVersion"] != first["metadata"]["resourceVersion"]


@pytest.mark.parametrize(
    "body, status, message",
    [
        ({"metadata": {"resourceVersion": "1"}}, 409, "the object has been modified"),
        ({"metadata": {"resourceVersion": "abc"}}, 500, "invalid syntax"),
        ({"metadata": {"resourceVersion": "0"}}, 422, "must be specified for an update"),
        ({"metadata": {"uid": "other"}}, 422, "field is immutable"),
        ({"metadata": {"deletionTimestamp": "2020-01-01T00:00:00Z"}}, 422, "field is immutable"),
        ({"metadata": {"name": "b"}}, 400, "does not match the name on the URL"),
        ({"metadata": {"namespace": "b"}}, 400, "does not match the namespace"),
        ({"metadata": {"labels": {"l": 1}}}, 422, "cannot unmarshal number"),
        ({"metadata": {"labels": {"l": "b d"}}}, 422, "a valid label must be"),
        ({"metadata": None}, 400, "name must be provided"),
        ({"kind": "Other"}, 422, "must be Thing"),
        ({"spec": {"size": "many"}}, 422, "must be of type integer"),
        ([], 400, "cannot unmarshal array"),
        ("x", 400, "cannot unmarshal string"),
    ],
)
async def test_wrong_merge_patches_are_refused(patch, body, status, message):
    answer = await patch(body)
    assert answer.status == status
    assert message in answer.message


async def test_system_fields_are_kept_silently(patch):
    before = (await patch({})).body
    meta = {"creationTimestamp": None, "generation": 100, "managedFields": [{"manager": "x"}]}
    assert (await patch({"metadata": meta})).body == before


async def test_json_patches_apply_all_operations(patch):
    answer = await patch(
        [
            {"op": "test", "path": "/metadata/labels/l", "value": "1"},
            {"op": "add", "path": "/metadata/labels/a~1b", "value": "x"},
            {"op": "add", "path": "/spec/free", "value": {"list": []}},
            {"op": "add", "path": "/spec/free/list/-", "value": 2},
            {"op": "add", "path": "/spec/free/list/0", "value": 1},
            {"op": "copy", "from": "/spec/free/list", "path": "/spec/free/copy"},
            {"op": "move", "from": "/spec/free/copy/1", "path": "/spec/free/moved"},
            {"op": "remove", "path": "/metadata/annotations"},
        ],
        JSON,
    )
    assert answer.status == 200
    assert answer.body["metadata"]["labels"] == {"l": "1", "a/b": "x"}
    assert answer.body["spec"]["free"] == {"list": [1, 2], "copy": [1], "moved": 2}
    assert "annotations" not in answer.body["metadata"]


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/metadata/resourceVersion", "value": "1"},
        {"op": "test", "path": "/metadata/labels/absent", "value": "1"},
        {"op": "test", "path": "/spec/size", "value": 1.0},
        {"op": "test", "path": "/spec/size", "value": True},
        {"op": "remove", "path": "/spec/absent"},
        {"op": "add", "path": "/no/where", "value": 1},
        {"op": "dance", "path": "/spec"},
        {"op": "add", "path": "spec", "value": 1},
    ],
)
async def test_json_patches_that_cannot_be_applied_are_refused(patch, operation):
    answer = await patch([operation], JSON)
    assert (answer.status, answer.body["reason"], answer.body["details"]) == (422, "Invalid", {})


async def test_patches_of_wrong_types_are_refused(client, patch):
    assert (await patch({}, JSON)).status == 400
    assert (await patch({}, "application/json")).status == 415
    assert (await patch({}, "application/apply-patch+yaml")).status == 422
    answer = await patch({}, "application/strategic-merge-patch+json")
    assert answer.status == 415
    assert "strategic" not in answer.message


async def test_absent_objects_are_not_found(patch):
    assert (await patch({}, name="nope")).status == 404


async def test_the_status_has_an_endpoint_of_its_own(client, patch):
    change = {"status": {"ok": True}, "spec": {"size": 9}, "metadata": {"labels": {"from": "status"}}}
    body = (await client("PATCH", f"{client.things}/a/status", change, type=MERGE)).body
    assert body["status"] == {"ok": True}
    assert body["spec"]["size"] == 1
    assert body["metadata"]["labels"] == {"l": "1"}
    assert body["metadata"]["generation"] == 1
    body = (await patch({"status": {"ok": False}, "spec": {"size": 2}})).body
    assert (body["status"], body["spec"]["size"]) == ({"ok": True}, 2)
    assert (await client("GET", f"{client.things}/a/status")).body == body
    assert (await client("GET", f"{client.things}/a/scale")).status == 404
    assert (await client("DELETE", f"{client.things}/a/status")).status == 405


async def test_the_status_is_not_taken_at_creation(client, make_thing):
    answer = await client("POST", client.things, {**make_thing("a"), "status": {"ok": True}})
    assert "status" not in answer.body


async def test_without_the_subresource_the_status_is_a_field_like_others(client, make_crd):
    await client(
        "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", make_crd("plains", "Plain", status=False)
    )
    plains = f"/apis/things.example.dev/v1/namespaces/{client.namespace}/plains"
    body = {"apiVersion": "things.example.dev/v1", "kind": "Plain", "metadata": {"name": "p"}, "status": {"a": 1}}
    assert (await client("POST", plains, body)).body["status"] == {"a": 1}
    answer = await client("PATCH", f"{plains}/p", {"status": {"a": 2}}, type=MERGE)
    assert answer.body["status"] == {"a": 2}
    assert answer.body["metadata"]["generation"] == 2
    assert (await client("PATCH", f"{plains}/p/status", {}, type=MERGE)).status == 404


async def test_unknown_fields_are_pruned_with_a_warning(patch):
    answer = await patch({"spec": {"unknown": 1}, "metadata": {"unknown": 1}})
    assert "unknown" not in answer.body["spec"]
    assert answer.headers.getall("Warning") == [
        '299 - "unknown field \\"metadata.unknown\\""',
        '299 - "unknown field \\"spec.unknown\\""',
    ]
    assert (await patch({"spec": {"unknown": 1}}, fieldValidation="Strict")).status == 422
    assert "Warning" not in (await patch({"spec": {"unknown": 1}}, fieldValidation="Ignore")).headers


async def test_the_time_of_a_manager_moves_with_the_values_that_it_applies(client, patch, monkeypatch):
    async def apply(size):
        body = {**given, "metadata": {"name": "b"}, "spec": {"size": size}}
        params = {"fieldManager": "me", "force": "true"}
        answer = await patch(body, "application/apply-patch+yaml", name="b", **params)
        assert answer.status in (200, 201), answer.body
        [entry] = answer.body["metadata"]["managedFields"]
        return entry["time"]

    given = {key: (await patch({})).body[key] for key in ("apiVersion", "kind")}
    times = []
    for moment, size in (1, 1), (2, 1), (3, 2), (4, 2):
        monkeypatch.setattr(timestamps, "now", lambda moment=moment: timestamps.at(moment))
        times.append(await apply(size))
    assert times == [timestamps.at(1), timestamps.at(1), timestamps.at(3), timestamps.at(3)]
