"""CRDs: their validation, and the effect of their schemas on objects."""

import pytest

MERGE = "application/merge-patch+json"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUP = "things.example.dev"

RICH = {
    "type": "object",
    "required": ["size"],
    "properties": {
        "size": {"type": "integer", "minimum": 0, "maximum": 100, "multipleOf": 5},
        "name": {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 5},
        "when": {"type": "string", "format": "date-time"},
        "port": {"x-kubernetes-int-or-string": True},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "numbers": {"type": "object", "additionalProperties": {"type": "integer"}},
        "nullable": {"type": "string", "nullable": True},
        "flag": {"type": "boolean"},
        "nested": {"type": "object", "default": {}, "properties": {"a": {"type": "integer", "default": 7}}},
        "list": {
            "type": "array",
            "maxItems": 3,
            "items": {
                "type": "object",
                "required": ["k"],
                "properties": {"k": {"type": "string"}, "v": {"type": "number", "default": 1.5}},
            },
        },
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "map": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "integer"}}},
        },
        "embedded": {
            "type": "object",
            "x-kubernetes-embedded-resource": True,
            "x-kubernetes-preserve-unknown-fields": True,
        },
        "either": {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
            "oneOf": [{"required": ["x"]}, {"required": ["y"]}],
        },
    },
}


@pytest.fixture
async def store(client, make_crd):
    """Store an object with such a specification."""
    await client("POST", DEFINITIONS, make_crd("riches", "Rich", spec=RICH))

    async def store(spec):
        body = {"apiVersion": f"{GROUP}/v1", "kind": "Rich", "metadata": {"generateName": "r-"}, "spec": spec}
        return await client("POST", f"/apis/{GROUP}/v1/namespaces/{client.namespace}/riches", body)

    return store


async def test_defaults_pruning_and_nulls(store):
    answer = await store(
        {
            "size": 5,
            "unknown": 1,
            "name": None,
            "nullable": None,
            "port": "http",
            "nested": {},
            "list": [{"k": "a", "z": 1}],
            "free": {"any": {"thing": None}},
            "numbers": {"a": 1, "b": None},
            "embedded": {"apiVersion": "v1", "kind": "X", "metadata": {"name": "x", "odd": 1}, "more": 1},
        }
    )
    assert answer.status == 201
    assert answer.body["spec"] == {
        "size": 5,
        "nullable": None,
        "port": "http",
        "nested": {"a": 7},
        "list": [{"k": "a", "v": 1.5}],
        "free": {"any": {"thing": None}},
        "numbers": {"a": 1},
        "embedded": {"apiVersion": "v1", "kind": "X", "metadata": {"name": "x"}, "more": 1},
    }


@pytest.mark.parametrize(
    "spec, field, message",
    [
        ({}, "spec.size", "Required value"),
        ({"size": "x"}, "spec.size", 'spec.size in body must be of type integer: "string"'),
        ({"size": 2.5}, "spec.size", 'spec.size in body must be of type integer: "number"'),
        ({"size": True}, "spec.size", 'spec.size in body must be of type integer: "boolean"'),
        ({"size": -5}, "spec.size", "spec.size in body should be greater than or equal to 0"),
        ({"size": 105}, "spec.size", "spec.size in body should be less than or equal to 100"),
        ({"size": 7}, "spec.size", "spec.size in body should be a multiple of 5"),
        ({"size": 5, "name": "x"}, "spec.name", "should be at least 2 chars long"),
        ({"size": 5, "name": "toolong"}, "spec.name", "Too long: may not be more than 5 bytes"),
        ({"size": 5, "name": "A1"}, "spec.name", "spec.name in body should match '^[a-z]+$'"),
        ({"size": 5, "when": "today"}, "spec.when", 'must be of type date-time: "today"'),
        ({"size": 5, "port": 1.5}, "spec.port", 'must be of type integer,string: "number"'),
        ({"size": 5, "flag": 1}, "spec.flag", 'must be of type boolean: "integer"'),
        ({"size": 5, "numbers": {"a": "b"}}, "spec.numbers.a", "must be of type integer"),
        ({"size": 5, "list": [{}]}, "spec.list[0].k", "Required value"),
        ({"size": 5, "list": [{"k": "a"}] * 4}, "spec.list", "Too many: 4: must have at most 3 items"),
        ({"size": 5, "set": ["a", "a"]}, "spec.set[1]", 'Duplicate value: "a"'),
        ({"size": 5, "map": [{"k": "a"}, {"k": "a", "v": 1}]}, "spec.map[1]", 'Duplicate value: {"k":"a"}'),
        ({"size": 5, "embedded": {"metadata": {}}}, "spec.embedded.kind", "Required value"),
        ({"size": 5, "either": {}}, "<nil>", "must validate one and only one schema (oneOf). Found none valid"),
        ({"size": 5, "either": {"x": 1, "y": 2}}, "<nil>", "Found 2 valid alternatives"),
        ([], "spec", 'spec in body must be of type object: "array"'),
    ],
)
async def test_what_breaks_the_schema(store, spec, field, message):
    answer = await store(spec)
    assert (answer.status, answer.body["reason"]) == (422, "Invalid")
    assert field in answer.fields
    assert message in answer.message


async def test_all_that_is_wrong_is_told_at_once(store):
    answer = await store({"size": "x", "flag": 1, "name": "A1"})
    assert answer.fields == {"spec.size", "spec.flag", "spec.name"}


@pytest.mark.parametrize(
    "change, field, message",
    [
        ({"metadata": {"name": "wrong"}}, "metadata.name", "must be spec.names.plural"),
        ({"scope": "Galaxy"}, "spec.scope", 'Unsupported value: "Galaxy"'),
        ({"scope": None}, "spec.scope", "Required value"),
        ({"versions": []}, "spec.versions", "exactly one version marked as storage version"),
        ({"schema": None}, "spec.versions[0].schema.openAPIV3Schema", "Required value"),
        ({"schema": {"properties": {}}}, "spec.validation.openAPIV3Schema.type", "must not be empty at the root"),
        ({"schema": {"type": "thing"}}, "spec.validation.openAPIV3Schema.type", 'Unsupported value: "thing"'),
        (
            {"schema": {"type": "object", "properties": {"spec": {}}}},
            "spec.validation.openAPIV3Schema.properties[spec].type",
            "must not be empty for specified object fields",
        ),
    ],
)
async def test_invalid_definitions_are_refused_with_the_field(client, make_crd, change, field, message):
    definition = make_crd("wrongs", "Wrong")
    definition["metadata"].update(change.get("metadata", {}))
    if "schema" in change:
        definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = change["schema"]
    definition["spec"].update({key: value for key, value in change.items() if key in ("scope", "versions")})
    answer = await client("POST", DEFINITIONS, definition)
    assert answer.status == 422
    assert field in answer.fields
    assert message in answer.message


async def test_definitions_are_completed_and_established(client, make_crd):
    created = (await client("POST", DEFINITIONS, make_crd("oxen", "Ox"))).body
    assert created["spec"]["names"] == {"plural": "oxen", "singular": "ox", "kind": "Ox", "listKind": "OxList"}
    assert created["status"]["storedVersions"] == ["v1"]
    status = (await client("GET", f"{DEFINITIONS}/oxen.{GROUP}")).body["status"]
    assert status["acceptedNames"]["listKind"] == "OxList"
    assert {item["type"]: item["status"] for item in status["conditions"]} == {
        "NamesAccepted": "True",
        "Established": "True",
    }


async def test_definitions_whose_names_are_taken_are_not_established(client, make_crd):
    definition = make_crd("duplicates", "Thing")
    await client("POST", DEFINITIONS, definition)
    conditions = (await client("GET", f"{DEFINITIONS}/duplicates.{GROUP}")).body["status"]["conditions"]
    assert {item["type"]: item["status"] for item in conditions} == {"NamesAccepted": "False", "Established": "False"}
    assert (await client("GET", f"/apis/{GROUP}/v1/duplicates")).status == 404


@pytest.mark.parametrize(
    "change, fields",
    [
        ({"scope": "Cluster"}, {"spec.scope"}),
        ({"names": {"kind": "Other"}}, {"spec.names.kind"}),
        ({"names": {"plural": "others"}}, {"spec.names.plural"}),
        ({"group": "other.example.dev"}, {"spec.group"}),
        ({"scope": "Cluster", "names": {"kind": "Other"}}, {"spec.scope", "spec.names.kind"}),
        ({"names": {"singular": "other", "listKind": "OtherList"}}, None),
    ],
)
async def test_what_identifies_a_kind_cannot_be_changed(client, make_crd, change, fields):
    await client("POST", DEFINITIONS, make_crd("fixed", "Fixed"))
    answer = await client("PATCH", f"{DEFINITIONS}/fixed.{GROUP}", {"spec": change}, type=MERGE)
    assert answer.status == (422 if fields else 200)
    if fields:
        assert answer.fields == fields
        assert answer.message.count("field is immutable") == len(fields)


async def test_the_scope_can_be_changed_until_the_names_are_accepted(client, make_crd):
    await client("POST", DEFINITIONS, make_crd("duplicates", "Thing"))
    change = {"spec": {"scope": "Cluster", "names": {"kind": "Duplicate", "listKind": "DuplicateList"}}}
    answer = await client("PATCH", f"{DEFINITIONS}/duplicates.{GROUP}", change, type=MERGE)
    assert answer.status == 200


async def test_a_changed_schema_changes_what_is_read(client, make_crd):
    definition = make_crd("turns", "Turn", spec={"type": "object", "properties": {"a": {"type": "integer"}}})
    await client("POST", DEFINITIONS, definition)
    turns = f"/apis/{GROUP}/v1/namespaces/{client.namespace}/turns"
    body = {"apiVersion": f"{GROUP}/v1", "kind": "Turn", "metadata": {"name": "t"}, "spec": {"a": 1}}
    before = (await client("POST", turns, body)).body
    properties = {"a": {"type": "integer"}, "b": {"type": "string", "default": "new"}}
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"] = properties
    await client("PATCH", f"{DEFINITIONS}/turns.{GROUP}", {"spec": definition["spec"]}, type=MERGE)
    after = (await client("GET", f"{turns}/t")).body
    assert after["spec"] == {"a": 1, "b": "new"}
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


async def test_several_versions_of_one_object(client, make_crd):
    definition = make_crd("epochs", "Epoch")
    free = definition["spec"]["versions"][0]
    strict = {
        "type": "object",
        "properties": {"spec": {"type": "object", "properties": {"new": {"type": "string", "default": "x"}}}},
    }
    definition["spec"]["versions"] += [
        {**free, "name": "v2", "storage": False, "schema": {"openAPIV3Schema": strict}},
        {**free, "name": "v1beta1", "storage": False, "deprecated": True},
        {**free, "name": "v3", "storage": False, "served": False},
    ]
    await client("POST", DEFINITIONS, definition)
    path = f"/apis/{GROUP}/{{}}/namespaces/{client.namespace}/epochs"
    body = {"apiVersion": f"{GROUP}/v1beta1", "kind": "Epoch", "metadata": {"name": "e"}, "spec": {"any": 1}}
    answer = await client("POST", path.format("v1beta1"), body)
    assert answer.headers["Warning"] == f'299 - "{GROUP}/v1beta1 Epoch is deprecated; use {GROUP}/v2 Epoch"'
    assert (await client("GET", path.format("v1") + "/e")).body["spec"] == {"any": 1}
    second = (await client("GET", path.format("v2") + "/e")).body
    # The defaults on reading are those of the version that the object is stored in.
    assert (second["apiVersion"], second["spec"]) == (f"{GROUP}/v2", {})
    assert (await client("GET", path.format("v3"))).status == 404


async def test_empty_values_are_defaults_too(client, make_crd):
    """They are values as all others."""
    properties = {
        "list": {"type": "array", "items": {"type": "string"}, "default": []},
        "number": {"type": "integer", "default": 0},
        "flag": {"type": "boolean", "default": False},
        "text": {"type": "string", "default": ""},
    }
    await client("POST", DEFINITIONS, make_crd("blanks", "Blank", spec={"type": "object", "properties": properties}))
    body = {"apiVersion": f"{GROUP}/v1", "kind": "Blank", "metadata": {"name": "b"}, "spec": {}}
    created = await client("POST", f"/apis/{GROUP}/v1/namespaces/{client.namespace}/blanks", body)
    assert created.body["spec"] == {"list": [], "number": 0, "flag": False, "text": ""}
