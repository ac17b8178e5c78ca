"""The manifests that users apply: accepted by a real API server, and doing what they are for."""

import pathlib

import pytest
from kubeapi import wait

ROOT = pathlib.Path(__file__).resolve().parents[2]


def served(kubeapi, group, plural):
    """Return what discovery says of a resource."""
    found = [item for item in kubeapi.request("GET", f"/apis/{group}/v1")["resources"] if item["name"] == plural]
    return found[0] if found else None


def test_the_kind_of_the_examples_can_be_created(kubeapi):
    resource = wait(lambda: served(kubeapi, "kopf.dev", "kopfexamples"), "the kind to be discovered")
    assert resource["kind"] == "KopfExample"
    assert resource["namespaced"] is True
    assert "kex" in resource["shortNames"]


def test_example_object_is_kept_as_it_is_written(kubeapi, namespace):
    [obj] = kubeapi.apply(ROOT / "examples" / "obj.yaml", namespace)
    assert obj["metadata"]["name"] == "kopf-example-1"
    assert obj["spec"] == {"duration": "1m", "field": "value", "items": ["item1", "item2"]}


def test_unknown_fields_are_kept(kubeapi, namespace):
    kubeapi.apply(ROOT / "examples" / "obj.yaml", namespace)
    patch = {"spec": {"new": {"deep": [1]}}, "status": {"handler": {"result": 2}}, "data": {"top": "level"}}
    obj = kubeapi.patch("kopf.dev/v1", "KopfExample", namespace, "kopf-example-1", patch)
    assert obj["spec"]["new"] == {"deep": [1]}
    assert obj["status"] == {"handler": {"result": 2}}
    assert obj["data"] == {"top": "level"}


@pytest.mark.parametrize(
    "kind, plural, namespaced",
    [
        ("ClusterKopfPeering", "clusterkopfpeerings", False),
        ("KopfPeering", "kopfpeerings", True),
    ],
)
def test_the_kinds_of_peerings_can_be_created(kubeapi, namespace, kind, plural, namespaced):
    assert len(kubeapi.apply(ROOT / "peering.yaml")) == 2
    resource = wait(lambda: served(kubeapi, "kopf.dev", plural), "the kind to be discovered")
    assert resource["kind"] == kind
    assert resource["namespaced"] is namespaced

    peering = {"apiVersion": "kopf.dev/v1", "kind": kind, "metadata": {"name": namespace}}
    kubeapi.apply(peering, namespace)
    record = {"status": {"someone": {"priority": 1, "lifetime": 60, "lastseen": "2020-01-01T00:00:00+00:00"}}}
    assert kubeapi.patch("kopf.dev/v1", kind, namespace, namespace, record)["status"] == record["status"]
    kubeapi.delete("kopf.dev/v1", kind, namespace, namespace)
