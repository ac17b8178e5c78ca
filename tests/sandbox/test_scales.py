"""The scale subresource, of custom and of built-in kinds."""

import pytest

MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
GROUP = "things.example.dev"
PATHS = {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.count", "labelSelectorPath": ".status.labels"}
SELECTOR = {
    "matchLabels": {"b": "c", "a": "b"},
    "matchExpressions": [
        {"key": "x", "operator": "In", "values": ["2", "1"]},
        {"key": "y", "operator": "Exists"},
        {"key": "z", "operator": "DoesNotExist"},
        {"key": "q", "operator": "NotIn", "values": ["1"]},
    ],
}


@pytest.fixture
async def fleets(client, sandbox, make_crd):
    """Return the path of a kind that can be scaled to 10 at most, with one object of it."""
    spec = {"type": "object", "properties": {"size": {"type": "integer", "maximum": 10}}}
    sandbox.apply(make_crd("fleets", "Fleet", spec=spec, subresources={"status": {}, "scale": PATHS}))
    path = f"/apis/{GROUP}/v1/namespaces/{client.namespace}/fleets"
    await client(
        "POST", path, {"apiVersion": f"{GROUP}/v1", "kind": "Fleet", "metadata": {"name": "f"}, "spec": {"size": 2}}
    )
    return path


@pytest.fixture
async def deployment(client):
    path = f"/apis/apps/v1/namespaces/{client.namespace}/deployments"
    labels = {"a": "b", "b": "c", "x": "1", "y": ""}
    await client(
        "POST",
        path,
        {
            "metadata": {"name": "d"},
            "spec": {
                "replicas": 2,
                "selector": SELECTOR,
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
            },
        },
    )
    return f"{path}/d"


async def test_what_a_scale_says(client, fleets):
    await client("PATCH", f"{fleets}/f/status", {"status": {"count": 1, "labels": "a=b"}}, type=MERGE)
    fleet = (await client("GET", f"{fleets}/f")).body["metadata"]
    answer = await client("GET", f"{fleets}/f/scale")
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    assert answer.body == {
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": {key: fleet[key] for key in kept},
        "spec": {"replicas": 2},
        "status": {"replicas": 1, "selector": "a=b"},
    }


@pytest.mark.parametrize(
    "type, patch",
    [
        (MERGE, {"spec": {"replicas": 5}}),
        (JSON, [{"op": "replace", "path": "/spec/replicas", "value": 5}]),
    ],
)
async def test_patched_scales_change_the_object(client, fleets, type, patch):
    answer = await client("PATCH", f"{fleets}/f/scale", patch, type=type)
    assert (answer.status, answer.body["kind"], answer.body["spec"]) == (200, "Scale", {"replicas": 5})
    fleet = (await client("GET", f"{fleets}/f")).body
    assert (fleet["spec"], fleet["metadata"]["generation"]) == ({"size": 5}, 2)


async def test_replaced_scales_change_the_object(client, fleets):
    scale = (await client("GET", f"{fleets}/f/scale")).body
    scale["spec"] = {}
    assert (await client("PUT", f"{fleets}/f/scale", scale)).body["spec"] == {}
    assert (await client("GET", f"{fleets}/f")).body["spec"] == {"size": 0}
    conflict = await client("PUT", f"{fleets}/f/scale", scale)
    assert (conflict.status, conflict.body["reason"]) == (409, "Conflict")
    nameless = await client("PUT", f"{fleets}/f/scale", {})
    assert (nameless.status, "name must be provided" in nameless.message) == (400, True)


async def test_dry_changes_of_scales_store_nothing(client, fleets):
    answer = await client("PATCH", f"{fleets}/f/scale", {"spec": {"replicas": 9}}, type=MERGE, dryRun="All")
    assert answer.body["spec"] == {"replicas": 9}
    assert (await client("GET", f"{fleets}/f")).body["spec"] == {"size": 2}


@pytest.mark.parametrize(
    "replicas, message",
    [
        (
            -1,
            'Fleet.things.example.dev "f" is invalid: .spec.size: Invalid value: -1: should be a non-negative integer',
        ),
        (11, "spec.size in body should be less than or equal to 10"),
        ("x", "cannot unmarshal string into Go struct field ScaleSpec.spec.replicas of type int32"),
    ],
)
async def test_invalid_numbers_are_refused(client, fleets, replicas, message):
    answer = await client("PATCH", f"{fleets}/f/scale", {"spec": {"replicas": replicas}}, type=MERGE)
    assert (answer.status, message in answer.message) == (422, True), answer.message


async def test_scales_of_objects_without_a_number_can_be_patched_but_not_read(client, fleets):
    await client("PATCH", f"{fleets}/f", {"spec": {"size": None}}, type=MERGE)
    answer = await client("GET", f"{fleets}/f/scale")
    assert (answer.status, answer.body["reason"]) == (500, "InternalError")
    assert (await client("PATCH", f"{fleets}/f/scale", {"spec": {"replicas": 3}}, type=MERGE)).status == 200


@pytest.mark.parametrize("type", [STRATEGIC, "application/json"])
async def test_patches_of_other_types(client, fleets, type):
    answer = await client("PATCH", f"{fleets}/f/scale", {"spec": {"replicas": 3}}, type=type, fieldManager="m")
    assert (answer.status, answer.body["reason"]) == (415, "UnsupportedMediaType")


async def test_applied_scales_own_the_replicas(client, fleets):
    """Deployments are among the replays; numbers of custom kinds can be anywhere."""
    scale = {"apiVersion": "autoscaling/v1", "kind": "Scale", "spec": {"replicas": 5}}
    apply = {"type": "application/apply-patch+yaml", "fieldManager": "me"}
    answer = await client("PATCH", f"{fleets}/f/scale", scale, **apply)
    assert (answer.status, answer.fields) == (409, {".spec.replicas"})
    assert (await client("PATCH", f"{fleets}/f/scale", scale, **apply, force="true")).body["spec"] == {"replicas": 5}
    fleet = (await client("GET", f"{fleets}/f")).body
    assert fleet["spec"] == {"size": 5}
    (mine,) = (record for record in fleet["metadata"]["managedFields"] if record["manager"] == "me")
    assert mine == {
        "manager": "me",
        "operation": "Apply",
        "apiVersion": f"{GROUP}/v1",
        "subresource": "scale",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {"f:size": {}}},
    }
    scale["spec"]["replicas"] = 11
    assert (await client("PATCH", f"{fleets}/f/scale", scale, **apply)).status == 422


async def test_unknown_fields_of_scales_are_warned_about(client, fleets):
    answer = await client("PATCH", f"{fleets}/f/scale", {"spec": {"foo": 3}, "bar": 1}, type=MERGE)
    assert answer.headers.getall("Warning") == [r'299 - "unknown field \"bar\""', r'299 - "unknown field \"spec.foo\""']


async def test_scales_of_deployments_have_their_selector(client, deployment):
    answer = await client("GET", f"{deployment}/scale")
    assert answer.body["status"] == {"replicas": 0, "selector": "a=b,b=c,q notin (1),x in (1,2),y,!z"}
    for type, number in ((MERGE, 5), (STRATEGIC, 6)):
        await client("PATCH", f"{deployment}/scale", {"spec": {"replicas": number}}, type=type)
        assert (await client("GET", deployment)).body["spec"]["replicas"] == number
    answer = await client("PATCH", f"{deployment}/scale", {"spec": {"replicas": -5}}, type=MERGE)
    assert answer.message == (
        'Scale.autoscaling "d" is invalid: spec.replicas: Invalid value: -5: must be greater than or equal to 0'
    )


async def test_the_discovery_tells_of_scales(client, fleets):
    resources = (await client("GET", f"/apis/{GROUP}/v1")).body["resources"]
    assert [item["name"] for item in resources if item["name"].startswith("fleets")] == [
        "fleets",
        "fleets/status",
        "fleets/scale",
    ]


@pytest.mark.parametrize(
    "accept, found",
    [
        ("application/json;as=Table;v=v1;g=meta.k8s.io", ["Name", "Desired", "Available", "Age"]),
        ("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1", []),
    ],
)
async def test_scales_can_be_tables_and_metadata(client, fleets, accept, found):
    answer = await client("GET", f"{fleets}/f/scale", headers={"Accept": accept})
    assert answer.body["kind"] in accept
    assert [column["name"] for column in answer.body.get("columnDefinitions", [])] == found


NO_KIND = 'no kind is registered for the type v1.Scale in scheme "pkg/runtime/scheme.go:111"'


@pytest.mark.parametrize(
    "name, more, custom, builtin",
    [
        (
            "other",
            {"spec": {"replicas": "x"}},
            NO_KIND,
            "Scale in version \"v1\" cannot be handled as a Scale: json: "
            "cannot unmarshal string into Go struct field ScaleSpec.spec.replicas of type int32",
        ),
        (
            "other",
            {"kind": "Other"},
            NO_KIND,
            "Other in version \"v1\" cannot be handled as a Scale: no kind \"Other\" is "
            "registered for version \"autoscaling/v1\" in scheme \"pkg/runtime/scheme.go:111\"",
        ),
        ("other", {}, *["the name of the object (other) does not match the name on the URL (none)"] * 2),
        (
            "none",
            {"spec": {"replicas": 2**31}},
            NO_KIND,
            "Scale in version \"v1\" cannot be handled as a Scale: json: "
            "cannot unmarshal number 2147483648 into Go struct field ScaleSpec.spec.replicas of type int32",
        ),
    ],
)
async def test_what_is_checked_before_the_object_is_looked_for(client, fleets, deployment, name, more, custom, builtin):
    scale = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": name}, **more}
    for path, message in (fleets, custom), (deployment.removesuffix("/d"), builtin):
        answer = await client("PUT", f"{path}/none/scale", scale)
        assert (answer.status, answer.message) == (400, message)


@pytest.mark.parametrize(
    "place, value, field, message",
    [
        (
            "spec",
            5,
            ".spec.size",
            "Invalid value: 0: .spec.size accessor error: 5 is of the type int64, expected map[string]interface{}",
        ),
        (
            "spec",
            {"size": 1.0},
            ".spec.size",
            "Invalid value: 0: .spec.size accessor error: 1 is of the type float64, expected int64",
        ),
        ("spec", {"size": -1}, ".spec.size", "Invalid value: -1: should be a non-negative integer"),
        (
            "status",
            {"count": "x"},
            ".status.count",
            "Invalid value: 0: .status.count accessor error: x is of the type string, expected int64",
        ),
        (
            "status",
            {"count": 2**31},
            ".status.count",
            "Invalid value: 2147483648: should be less than or equal to 2147483647",
        ),
        (
            "status",
            {"labels": 7},
            ".status.labels",
            "Invalid value: \"\": .status.labels accessor error: 7 is of the type int64, expected string",
        ),
    ],
)
async def test_what_is_found_where_the_numbers_should_be(client, fleets, place, value, field, message):
    path = f"{fleets}/f/status" if place == "status" else f"{fleets}/f"
    answer = await client("PATCH", path, [{"op": "add", "path": f"/{place}", "value": value}], type=JSON)
    causes = {cause["field"]: cause["message"] for cause in answer.body["details"]["causes"]}
    assert (answer.status, causes[field]) == (422, message)
