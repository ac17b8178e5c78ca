"""CRDs: their validation, and the effect of their schemas on objects."""

import pytest

MERGE = "application/merge-patch+json"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DRY = f"{DEFINITIONS}?dryRun=All"
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
            "items": {
                "type": "object",
                "required": ["k"],
                "properties": {"k": {"type": "string"}, "v": {"type": "integer"}},
            },
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


TEXT = {"type": "string"}
INT_OR_STRING = {"x-kubernetes-int-or-string": True}
EMBEDDED = {"type": "object", "x-kubernetes-embedded-resource": True}
ATOMIC = "must be atomic as item of a list with x-kubernetes-list-type=set"
KEY = "this property is in x-kubernetes-list-map-keys, so it"
NAMES = "must not specify anything other than name and generateName, but metadata is implicitly specified"
UNKNOWN = "must not have unknown fields"


def fields(**properties):
    return {"type": "object", "properties": properties}


def items_of(kind, /, *keys, **schema):
    return {"type": "array", "x-kubernetes-list-type": kind, "x-kubernetes-list-map-keys": keys, "items": schema}


@pytest.mark.parametrize(
    "schema, causes",
    [
        (items_of("map", "k", **fields(k=TEXT), required=["k"]), {}),
        (items_of("map", "k", **fields(k={**TEXT, "default": "x"})), {}),
        (items_of("map", "k", **fields(k=INT_OR_STRING), required=["k"]), {}),
        (
            items_of("map", "k", **fields(k=TEXT)),
            {".items.properties[k].default": f"Required value: {KEY} must have a default or be a required property"},
        ),
        (
            items_of("map", "k", **fields(k={**TEXT, "nullable": True}), required=["k"]),
            {".items.properties[k].nullable": f"Forbidden: {KEY} cannot be nullable"},
        ),
        (
            items_of("map", "k", **fields(k=TEXT), required=["k"], nullable=True),
            {".items.nullable": "Forbidden: cannot be nullable when x-kubernetes-list-type is map"},
        ),
        (
            items_of("map", "k", **fields(k={"type": "array", "items": TEXT}), required=["k"]),
            {
                ".items.properties[k].type": 'Invalid value: "object": must be a scalar type if parent array\'s '
                "x-kubernetes-list-type is map"
            },
        ),
        (
            items_of("map", "q", **fields(k=TEXT)),
            {".x-kubernetes-list-map-keys": 'Invalid value: ["q"]: entries must all be names of item properties'},
        ),
        (
            items_of("map", "k", "k", **fields(k=TEXT), required=["k"]),
            {".x-kubernetes-list-map-keys": 'Invalid value: ["k","k"]: must not contain duplicate entries'},
        ),
        (
            items_of("atomic", "k", **fields(k=TEXT)),
            {
                ".x-kubernetes-list-type": 'Invalid value: "atomic": must be map if x-kubernetes-list-map-keys is '
                "non-empty"
            },
        ),
        (items_of("set", **fields(), **{"x-kubernetes-map-type": "atomic"}), {}),
        (items_of("set", type="array", items=TEXT), {}),
        (items_of("set", **fields()), {".items.x-kubernetes-map-type": f"Invalid value: null: {ATOMIC}"}),
        (
            items_of("set", **items_of("set", **TEXT)),
            {".items.x-kubernetes-list-type": f'Invalid value: "set": {ATOMIC}'},
        ),
        (
            items_of("set", **TEXT, nullable=True),
            {".items.nullable": "Forbidden: cannot be nullable when x-kubernetes-list-type is set"},
        ),
        (
            {"type": "array", "items": {}},
            {".items.type": "Required value: must not be empty for specified array items"},
        ),
        ({**fields(y=TEXT), "default": {"y": "x"}}, {}),
        (
            {**fields(y=TEXT), "default": {"y": "x", "a": 1}},
            {".default": f'Invalid value: {{"a":1,"y":"x"}}: {UNKNOWN}'},
        ),
        ({"type": "object", "default": {"x": 1}}, {".default": f'Invalid value: {{"x":1}}: {UNKNOWN}'}),
        ({**INT_OR_STRING, "default": True}, {}),
        ({**fields(p=INT_OR_STRING), "default": {"p": [1]}}, {}),
        (
            {**INT_OR_STRING, "enum": [1], "default": True},
            {".default": 'Unsupported value: true: supported values: "1"'},
        ),
        ({**EMBEDDED, **fields(metadata={"type": "object", "default": {"name": "a"}})}, {}),
        ({**EMBEDDED, **fields(metadata=fields(labels={"type": "object"}))}, {}),
        (
            {**EMBEDDED, **fields(metadata=TEXT)},
            {".properties[metadata].type": 'Invalid value: "string": must be object'},
        ),
        (
            {**TEXT, "pattern": "^(?!x)"},
            {
                ".pattern": 'Invalid value: "^(?!x)": must be a valid regular expression, but isn\'t: error parsing '
                "regexp: invalid or unsupported Perl syntax: `(?!`"
            },
        ),
    ],
)
async def test_schemas_of_fields_are_structural(client, make_crd, schema, causes):
    answer = await client("POST", DRY, make_crd("wrongs", "Wrong", spec=fields(a=schema)))
    base = "spec.validation.openAPIV3Schema.properties[spec].properties[a]"
    assert find_causes(answer) == {f"{base}{place}": message for place, message in causes.items()}


@pytest.mark.parametrize(
    "schema, causes",
    [
        (fields(metadata=fields(name={**TEXT, "maxLength": 5}, generateName=TEXT)), {}),
        (fields(kind={**TEXT, "enum": ["Wrong"]}), {}),
        (fields(kind={"type": "integer"}), {".properties[kind].type": 'Invalid value: "integer": must be string'}),
        (fields(metadata=TEXT), {".properties[metadata].type": 'Invalid value: "string": must be object'}),
        (fields(metadata=fields(labels={"type": "object"})), {".properties[metadata]": f"Forbidden: {NAMES}"}),
        (fields(metadata={"type": "object", "required": ["name"]}), {".properties[metadata]": f"Forbidden: {NAMES}"}),
        (
            fields(metadata={"type": "object", "default": {}}),
            {".properties[metadata].default": "Forbidden: must not be set in top-level metadata"},
        ),
        (
            fields(metadata=fields(name={**TEXT, "default": "a"})),
            {".properties[metadata].properties[name].default": "Forbidden: must not be set in top-level metadata"},
        ),
    ],
)
async def test_schemas_of_objects_restrict_only_the_names_in_the_metadata(client, make_crd, schema, causes):
    definition = make_crd("wrongs", "Wrong")
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = schema
    answer = await client("POST", DRY, definition)
    assert find_causes(answer) == {f"spec.validation.openAPIV3Schema{place}": why for place, why in causes.items()}


def find_causes(answer):
    assert answer.status == (422 if "details" in answer.body else 201)
    return {cause["field"]: cause["message"] for cause in answer.body.get("details", {}).get("causes", ())}


@pytest.mark.parametrize(
    "group, approval, reason",
    [
        ("x.k8s.io", None, "Required value: "),
        ("a.b.kubernetes.io", "", "Required value: "),
        ("k8s.io", "soon", 'Invalid value: "soon": '),
        ("x.k8s.io", "http://", 'Invalid value: "http://": '),
        ("x.k8s.io", "unapproved, for a test", None),
        ("x.k8s.io", "https://example.dev/1", None),
        ("xk8s.io", None, None),
    ],
)
async def test_groups_of_kubernetes_need_an_approval(client, make_crd, group, approval, reason):
    definition = make_crd("wrongs", "Wrong")
    definition["spec"]["group"] = group
    annotations = {} if approval is None else {"api-approved.kubernetes.io": approval}
    definition["metadata"] = {"name": f"wrongs.{group}", "annotations": annotations}
    causes = find_causes(await client("POST", DRY, definition))
    assert set(causes) == ({"metadata.annotations[api-approved.kubernetes.io]"} if reason else set())
    assert all(message.startswith(f"{reason}protected groups must have approval") for message in causes.values())


@pytest.mark.parametrize(
    "paths, causes",
    [
        ((".spec.a", ".status.b", ".spec.c"), {}),
        ((".spec.a", ".status.b", None), {}),
        (
            (".status.a", ".spec", ".metadata.c"),
            {
                "specReplicasPath": 'Invalid value: ".status.a": should be a json path under .spec',
                "statusReplicasPath": 'Invalid value: ".spec": should be a json path under .status',
                "labelSelectorPath": 'Invalid value: ".metadata.c": should be a json path under either .spec or .status',
            },
        ),
        (
            (".specs.a", ".status.b", "status.c"),
            {
                "specReplicasPath": 'Invalid value: ".specs.a": should be a json path under .spec',
                "labelSelectorPath": 'Invalid value: "status.c": must be a simple json path starting with .',
            },
        ),
    ],
)
async def test_paths_of_scales_are_in_the_spec_and_in_the_status(client, make_crd, paths, causes):
    definition, keys = make_crd("wrongs", "Wrong"), ("specReplicasPath", "statusReplicasPath", "labelSelectorPath")
    definition["spec"]["versions"][0]["subresources"] = {
        "scale": {key: path for key, path in zip(keys, paths, strict=True) if path}
    }
    answer = await client("POST", DRY, definition)
    assert find_causes(answer) == {f"spec.subresources.scale.{key}": why for key, why in causes.items()}


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
