"""Sets of fields: the laws of sets hold for them at any depth."""

from hypothesis import given
from hypothesis import strategies as st

from kopf._kits.definitions.schema_extensions import LIST_KEYS, LIST_TYPE
from kopf._kits.testing.kinds import shapes
from kopf._kits.testing.merging import fieldsets, strategic, typed
from kopf._kits.testing.wire import gotext

KEYS = st.sampled_from(["f:a", "f:b", 'k:{"n":1}', 'v:"x"'])
NODES = st.recursive(
    st.just({}),
    lambda inner: st.builds(
        lambda below, member: {**below, ".": {}} if member and below else below,
        st.dictionaries(KEYS, inner, min_size=1, max_size=3),
        st.booleans(),
    ),
    max_leaves=8,
)
SETS = st.dictionaries(KEYS, NODES, max_size=3)

SHAPE = shapes.Shape(
    {
        "type": "object",
        "properties": {
            "size": {"type": "integer"},
            "tags": {"type": "array", "items": {"type": "string"}, LIST_TYPE: "set"},
            "words": {"type": "array", "items": {"type": "string"}},
            "ports": {
                "type": "array",
                LIST_TYPE: "map",
                LIST_KEYS: ["number", "protocol"],
                "items": {
                    "type": "object",
                    "properties": {
                        "number": {"type": "integer"},
                        "name": {"type": "string"},
                        "protocol": {"type": "string", "default": "TCP"},
                    },
                },
            },
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        },
    }
)


def paths(fields):
    return set(fieldsets.members(fields))


@given(SETS, SETS)
def test_they_are_sets(one, another):
    assert paths(fieldsets.union(one, another)) == paths(one) | paths(another)
    assert paths(fieldsets.difference(one, another)) == paths(one) - paths(another)
    assert paths(fieldsets.intersection(one, another)) == paths(one) & paths(another)


@given(SETS)
def test_nothing_is_left_of_a_set_without_itself(fields):
    assert fieldsets.difference(fields, fields) == {}
    assert fieldsets.intersection(fields, fields) == fieldsets.union(fields, fields) == fields


def test_paths_are_written_as_by_the_server():
    fields = {"f:spec": {"f:ports": {'k:{"number":1,"protocol":"TCP"}': {".": {}, "f:name": {}}, 'v:"x"': {}}}}
    assert list(fieldsets.members(fields)) == [
        '.spec.ports[number=1,protocol="TCP"]',
        '.spec.ports[="x"]',
        '.spec.ports[number=1,protocol="TCP"].name',
    ]


def test_fields_are_found_in_values():
    value = {"size": 1, "tags": ["a"], "words": ["a"], "ports": [{"number": 1}], "labels": {"a": "b"}}
    assert typed.fields_of(value, SHAPE) == {
        "f:size": {},
        "f:tags": {'v:"a"': {}},
        "f:words": {},
        "f:labels": {"f:a": {}},
        "f:ports": {'k:{"number":1,"protocol":"TCP"}': {".": {}, "f:number": {}}},
    }


def test_comparisons_name_changed_and_removed_fields():
    old = {"size": 1, "tags": ["a", "b"], "words": ["a"], "ports": [{"number": 1, "name": "x"}], "labels": {"a": "b"}}
    new = {"size": True, "tags": ["b", "c"], "words": ["b"], "ports": [{"number": 1, "name": "y"}]}
    comparison = typed.Comparison(old, new, SHAPE)
    key = 'k:{"number":1,"protocol":"TCP"}'
    assert comparison.changed == {
        "f:size": {},
        "f:tags": {'v:"c"': {}},
        "f:words": {},
        "f:ports": {key: {"f:name": {}}},
    }
    assert comparison.removed == {"f:tags": {'v:"a"': {}}, "f:labels": {"f:a": {}, ".": {}}}


VALUES = st.fixed_dictionaries(
    {},
    optional={
        "size": st.integers(),
        "tags": st.lists(st.sampled_from("abcdef"), unique=True),
        "words": st.lists(st.sampled_from("abc")),
        "labels": st.dictionaries(st.sampled_from("abc"), st.text(max_size=2), min_size=1),
        "ports": st.lists(st.builds(lambda n: {"number": n}, st.integers(0, 4)), unique_by=lambda port: port["number"]),
    },
)


@given(VALUES, VALUES)
def test_what_is_merged_is_there_and_nothing_is_lost(live, config):
    merged = typed.merge(live, config, SHAPE)
    assert paths(typed.fields_of(config, SHAPE)) <= paths(typed.fields_of(merged, SHAPE))
    for key in ("tags", "ports"):
        items, before = merged.get(key) or [], live.get(key) or []
        assert [item for item in items if item in (config.get(key) or [])] == (config.get(key) or [])
        assert {str(item) for item in before} <= {str(item) for item in items}
    assert typed.merge(merged, config, SHAPE) == merged


def test_go_prints_values():
    assert gotext.plain({"b": [1, None, True], "a": {"c": "d"}}) == "map[a:map[c:d] b:[1 <nil> true]]"
    assert gotext.literal({"a": [1, "b"]}) == 'map[string]interface {}{"a":[]interface {}{1, "b"}}'


def test_directives_never_become_a_part_of_the_object():
    pod = shapes.builtin("", "v1", "Pod")
    patch = {
        "spec": {
            "containers": [{"name": "a", "$patch": "delete"}, {"name": "b", "image": "b"}],
            "$setElementOrder/containers": [{"name": "b"}],
        }
    }
    document = {"spec": {"containers": [{"name": "a", "image": "a"}]}}
    assert strategic.merge(document, patch, pod) == {"spec": {"containers": [{"name": "b", "image": "b"}]}}
    assert document == {"spec": {"containers": [{"name": "a", "image": "a"}]}}
