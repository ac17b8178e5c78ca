"""Children that come after their owner has said that it is Ready."""

import pytest

from kopf._kits.checking.end_states import StoredObject
from kopf._kits.checking.readiness_records import ReadinessRecord, is_ready


def make_parent(generation=1, **condition):
    conditions = [{"type": "Other", "status": "True"}]
    if condition:
        conditions.append({"type": "Ready", **condition})
    body = {"metadata": {"uid": "p", "generation": generation}, "status": {"conditions": conditions}}
    return StoredObject("webs", "ns", "web", body)


def make_child(uid, owner="p"):
    return StoredObject("pods", "ns", uid, {"metadata": {"uid": uid, "ownerReferences": [{"uid": owner}]}})


def test_children_of_ready_owners_are_early():
    record = ReadinessRecord()
    record.note([make_parent()])
    record.note([make_parent(), make_child("a")])
    record.note([make_parent(status="True"), make_child("a")])
    assert record.early == []
    record.note([make_parent(status="True"), make_child("a"), make_child("b"), make_child("c", owner="other")])
    assert record.early == ["pods ns/b"]


def test_changed_owners_can_get_other_children():
    record = ReadinessRecord()
    record.note([make_parent(status="True", observedGeneration=1)])
    record.note([make_parent(2, status="True", observedGeneration=1)])
    record.note([make_parent(2, status="True", observedGeneration=1), make_child("a")])
    assert record.early == []


@pytest.mark.parametrize(
    "parent, expected",
    [
        (make_parent(), False),
        (make_parent(status="False"), False),
        (make_parent(status="True"), True),
        (make_parent(2, status="True"), False),
        (make_parent(2, status="True", observedGeneration=2), True),
        (make_parent(2, status="True", observedGeneration=1), False),
    ],
)
def test_readiness_is_that_of_the_present_generation(parent, expected):
    assert is_ready(parent.body) is expected


@pytest.mark.parametrize("status", [None, "Ready", {}, {"conditions": "Ready"}, {"conditions": ["Ready"]}])
def test_objects_without_conditions_say_nothing(status):
    assert not is_ready({"metadata": {}, "status": status})
