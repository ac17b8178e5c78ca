"""Field selectors on the ``selectableFields`` of CRDs."""

import pytest

GROUP = "things.example.dev"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SPEC = {
    "type": "object",
    "properties": {
        "color": {"type": "string"},
        "size": {"type": "integer"},
        "on": {"type": "boolean"},
        "inner": {"type": "object", "properties": {"color": {"type": "string"}}},
        "many": {"type": "array", "items": {"type": "string"}},
    },
}
FIELDS = [
    {"jsonPath": ".spec.color"},
    {"jsonPath": ".spec.size"},
    {"jsonPath": ".spec.on"},
    {"jsonPath": ".spec.inner.color"},
]


@pytest.fixture
async def balls(client, sandbox, make_crd):
    """Return the path of a kind with selectable fields, and some of them."""
    sandbox.apply(make_crd("balls", "Ball", spec=SPEC, selectableFields=FIELDS))
    path = f"/apis/{GROUP}/v1/namespaces/{client.namespace}/balls"
    for name, spec in {
        "a": {"color": "red", "size": 1, "on": True},
        "b": {"color": "blue", "size": 2},
        "c": {"color": "red", "size": 2, "inner": {"color": "green"}},
        "d": {},
    }.items():
        await client(
            "POST", path, {"apiVersion": f"{GROUP}/v1", "kind": "Ball", "metadata": {"name": name}, "spec": spec}
        )
    return path


@pytest.mark.parametrize(
    "selector, names",
    [
        ("spec.color=red", "ac"),
        ("spec.size=2", "bc"),
        ("spec.size=2,spec.color=red", "c"),
        ("spec.color!=red", "bd"),
        ("spec.color=", "d"),
        ("spec.on=true", "a"),
        ("spec.inner.color=green", "c"),
        ("metadata.name=a,spec.color=red", "a"),
        ("spec.size=x", ""),
    ],
)
async def test_lists_are_narrowed_by_selectable_fields(client, balls, selector, names):
    assert (await client("GET", balls, fieldSelector=selector)).names == list(names)


async def test_watches_are_narrowed_by_selectable_fields(client, balls):
    async with client.watch(balls, fieldSelector="spec.color=red", resourceVersion=await client.version()) as watch:
        for name, color in (("b", "red"), ("b", "blue"), ("a", "red")):
            patch = {"spec": {"color": color}, "metadata": {"labels": {"x": "y"}}}
            await client("PATCH", f"{balls}/{name}", patch, type="application/merge-patch+json")
        assert await watch.until(3) == [("ADDED", "b"), ("DELETED", "b"), ("MODIFIED", "a")]


async def test_collections_are_deleted_by_selectable_fields(client, balls):
    assert (await client("DELETE", balls, fieldSelector="spec.color=red")).names == ["a", "c"]
    assert (await client("GET", balls)).names == ["b", "d"]


async def test_other_fields_are_not_selectable(client, balls):
    answer = await client("GET", balls, fieldSelector="spec.many=x")
    assert (answer.status, answer.message) == (400, "field label not supported: spec.many")


async def test_fields_can_be_added_later(client, balls, sandbox, make_crd):
    fields = [*FIELDS, {"jsonPath": ".status.phase"}]
    definition = make_crd("balls", "Ball", spec=SPEC, selectableFields=fields)
    version = definition["spec"]["versions"][0]
    version["schema"]["openAPIV3Schema"]["properties"]["status"] = {
        "type": "object",
        "properties": {"phase": {"type": "string"}},
    }
    sandbox.apply(definition)
    assert (await client("GET", balls, fieldSelector="status.phase=")).names == list("abcd")


@pytest.mark.parametrize(
    "path, message",
    [
        (".spec.inner", "must point to a field of type string, boolean or integer"),
        (".spec.nope", "is an invalid path: does not refer to a valid field"),
        (".metadata.name", "is an invalid path: does not refer to a valid field"),
        (".spec.many[0]", "is an invalid path: array notation is not allowed"),
        ("spec.color", "is an invalid path: expected [ or . but got: spec"),
        ("", "Required value"),
    ],
)
async def test_invalid_fields_are_refused(client, make_crd, path, message):
    definition = make_crd("cubes", "Cube", spec=SPEC, selectableFields=[{"jsonPath": path}])
    answer = await client("POST", DEFINITIONS, definition)
    assert (answer.status, message in answer.message) == (422, True)
    assert answer.fields == {"spec.selectableFields[0].jsonPath"}
