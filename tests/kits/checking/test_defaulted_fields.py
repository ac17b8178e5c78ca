"""Defaulted fields: what no client has set is marked, and compared only with what a client has set."""

import pytest

from kopf._kits.checking.defaulted_fields import Defaulted, mark, unwrap
from kopf._kits.checking.end_states import Normalizer, State, StoredObject, find_differences

OWNED = {"f:spec": {"f:replicas": {}, "f:items": {'k:{"name":"a"}': {".": {}, "f:name": {}, "f:image": {}}}}}


def make_body(spec, *owned):
    return {"kind": "Web", "metadata": {"managedFields": [{"fieldsV1": fields} for fields in owned]}, "spec": spec}


@pytest.mark.parametrize(
    "spec, owned, marked",
    [
        ({"replicas": 1, "policy": "x"}, [OWNED], {"replicas": 1, "policy": Defaulted("x")}),
        ({"strategy": {"type": "x"}}, [OWNED], {"strategy": Defaulted({"type": "x"})}),
        ({"policy": "x"}, [OWNED, {"f:spec": {"f:policy": {}}}], {"policy": "x"}),
        (
            {"items": [{"name": "a", "image": "i", "pull": "y"}, {"name": "b", "pull": "y"}]},
            [OWNED],
            {"items": [{"name": "a", "image": "i", "pull": Defaulted("y")}, {"name": "b", "pull": "y"}]},
        ),
        ({"policy": "x"}, [], {"policy": "x"}),
        ({"policy": "x"}, [{"f:status": {"f:a": {}}}], {"policy": "x"}),
        ({"policy": {"a": 1}}, [{"f:spec": {"f:policy": {}}}], {"policy": {"a": 1}}),
    ],
)
def test_what_no_client_has_set_is_marked(spec, owned, marked):
    assert mark(make_body(spec, *owned))["spec"] == marked


def test_marks_are_removed():
    assert unwrap(Defaulted(1)) == unwrap(1) == 1


def make_state(policy, *owned):
    return State([StoredObject("webs", "ns", "x", make_body({"replicas": 1, "policy": policy}, *owned))], {})


@pytest.mark.parametrize(
    "policy, owned, differences",
    [
        ("b", [OWNED], []),
        ("b", [OWNED, {"f:spec": {"f:policy": {}}}], ['~ webs ns/x spec.policy: "a" is expected, "b" is there']),
        ("a", [OWNED, {"f:spec": {"f:policy": {}}}], []),
    ],
)
def test_defaults_are_compared_only_with_what_a_client_has_set(policy, owned, differences):
    reference = make_state("a", OWNED)
    normalizer = Normalizer([[reference] * 2])
    expected, actual = normalizer.normalize(reference), normalizer.normalize(make_state(policy, *owned))
    assert find_differences(expected, actual) == differences
