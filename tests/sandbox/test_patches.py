"""Properties of patches that hold for all documents."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._kits.testing.wire import json_patches

scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab~/", max_size=2), inner, max_size=3),
    max_leaves=10,
)
objects = st.dictionaries(st.text("ab~/", max_size=2), documents, max_size=4)


@given(objects, objects)
def test_merging_changes_nothing_that_was_given(document, patch):
    before = copy.deepcopy((document, patch))
    json_patches.merge(document, patch)
    assert (document, patch) == before


@given(objects, objects)
def test_merging_twice_is_merging_once(document, patch):
    once = json_patches.merge(document, patch)
    assert json_patches.merge(once, patch) == once


@given(objects, objects)
def test_merged_documents_have_what_the_patch_says(document, patch):
    merged = json_patches.merge(document, patch)
    assert {key for key, value in patch.items() if value is None} & set(merged) == set()
    assert {key for key, value in patch.items() if value is not None} <= set(merged)
    assert {key: value for key, value in merged.items() if key not in patch} == {
        key: value for key, value in document.items() if key not in patch
    }


@given(objects, st.text("ab~/", max_size=2), documents)
def test_removing_undoes_adding(document, key, value):
    path = "/" + key.replace("~", "~0").replace("/", "~1")
    before = copy.deepcopy(document)
    added = json_patches.apply(
        document, [{"op": "add", "path": path, "value": value}, {"op": "test", "path": path, "value": value}]
    )
    assert document == before
    assert added == {**document, key: value}
    removed = json_patches.apply(added, [{"op": "remove", "path": path}])
    assert removed == {name: item for name, item in document.items() if name != key}


@pytest.mark.parametrize("path", ["/list/3", "/list/-4", "/list/x", "/list/0/deep", "/text/0", "/nope/x", "list"])
def test_patches_of_absent_places_are_errors(path):
    with pytest.raises(json_patches.PatchError):
        json_patches.apply({"list": [1, 2], "text": "x"}, [{"op": "add", "path": path, "value": 0}])
