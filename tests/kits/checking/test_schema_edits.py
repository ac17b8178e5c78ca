"""Edits of specs by their schemas and their present values."""

import pytest

from kopf._kits.checking.plans import Edit, Target
from kopf._kits.checking.schema_edits import iter_edits, revert

WEB = Target(resource="webs", namespace="default", name="w1")


def list_values(present, **schema):
    """Return the values that are tried for one field."""
    body = {"spec": {} if present is None else {"field": present}}
    described = {"properties": {"spec": {"properties": {"field": schema}, "required": ["field"]}}}
    return [edit.patch["spec"]["field"] for edit in iter_edits(WEB, body, described)]


@pytest.mark.parametrize(
    "present, schema, values",
    [
        (True, {"type": "boolean"}, [False]),
        ("red", {"type": "string", "enum": ["red", "green", "blue"]}, ["green", "blue"]),
        (2, {"type": "integer", "minimum": 1, "maximum": 5}, [1, 3, 1, 5, 5]),
        (2, {"type": "integer", "maximum": 10**6}, [0, 3, 1, 5]),
        ("abc", {"type": "string"}, ["", "abcx"]),
        ("abc", {"type": "string", "minLength": 1}, ["abcx"]),
        ("10Gi", {"type": "string", "pattern": "^[0-9]+Gi$"}, [""]),
        ("v1", {"type": "string", "pattern": "^v[0-9]$"}, ["", "v2"]),
        ("shop", {"type": "string", "pattern": "^[a-z]+$"}, ["", "shopp"]),
        ("shop", {"type": "string", "pattern": "^[a-z]{1,4}$"}, ["", "sho"]),
        ("shop", {"type": "string", "pattern": r"^\p{L}+$"}, [""]),
        ("2030-01-01", {"type": "string", "format": "date"}, ["", "2030-01-02"]),
        (
            ["a", "b"],
            {"type": "array", "items": {"type": "string"}},
            [[], ["b"], ["b", "a"], ["a", "b", ""], ["", "b"]],
        ),
        (
            None,
            {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"default": 3}}},
            [{"a": True, "b": 3}],
        ),
        (7, {}, [0, 8, 6, 10]),
        (None, {}, []),
    ],
)
def test_values_follow_from_the_schema_and_the_present_value(present, schema, values):
    assert list_values(present, **schema) == values


def test_optional_fields_are_removed_and_nested_ones_are_edited():
    body = {"spec": {"a": {"b": True}, "c": "x"}}
    patches = [edit.patch for edit in iter_edits(WEB, body, {})]
    assert patches == [
        {"spec": {"a": {"b": False}}},
        {"spec": {"a": {"b": None}}},
        {"spec": {"a": None}},
        {"spec": {"c": ""}},
        {"spec": {"c": "xx"}},
        {"spec": {"c": None}},
    ]


def test_objects_without_specs_are_not_edited():
    assert list(iter_edits(WEB, {"data": {"a": "b"}}, {})) == []


def test_edits_are_reverted():
    body = {"spec": {"a": {"b": True}, "c": "x"}}
    assert revert(Edit(WEB, {"spec": {"a": {"b": None}}}), body).patch == {"spec": {"a": {"b": True}}}
    assert revert(Edit(WEB, {"spec": {"d": 1}}), body).patch == {"spec": {"d": None}}
    assert revert(Edit(WEB, {"spec": {"a": None}}), body).patch == {"spec": {"a": {"b": True}}}
