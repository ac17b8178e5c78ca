"""Kinds that come while an operator runs, and groups that are down: with all the delays that the API server has."""

import secrets

import pytest

OPERATOR = """
import kopf

@kopf.on.event('kopfexamples')
def by_plural(name, **_):
    print(f'by plural: {{name}}', flush=True)

@kopf.on.event('kopf.dev', 'kopfexamples')
def by_group(name, **_):
    print(f'by group: {{name}}', flush=True)

@kopf.on.event('{plural}')
def late(name, **_):
    print(f'late: {{name}}', flush=True)
"""


@pytest.fixture
def kind():
    """Return a kind that the server has never had before: servers remember."""
    return f"late{secrets.token_hex(3)}"


def definition(kind):
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind}s.{kind}.dev"},
        "spec": {
            "group": f"{kind}.dev",
            "scope": "Namespaced",
            "names": {"plural": f"{kind}s", "kind": kind.title()},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                }
            ],
        },
    }


def example(name):
    return {"apiVersion": "kopf.dev/v1", "kind": "KopfExample", "metadata": {"name": name}}


def test_a_kind_that_comes_late_is_served(kubeapi, namespace, run_operator, tmp_path, kind):
    path = tmp_path / "operator.py"
    path.write_text(OPERATOR.format(plural=f"{kind}s"))
    operator = run_operator("--standalone", path)
    kubeapi.apply(example("first"), namespace)
    operator.wait_output("by plural: first")
    kubeapi.apply(definition(kind))
    try:
        kubeapi.apply({"apiVersion": f"{kind}.dev/v1", "kind": kind.title(), "metadata": {"name": "x"}}, namespace)
        operator.wait_output("late: x", timeout=60)
        assert operator.stop()[0] == 0
    finally:
        kubeapi.delete("apiextensions.k8s.io/v1", "CustomResourceDefinition", None, f"{kind}s.{kind}.dev")


def test_a_group_that_is_down_stops_no_other(kubeapi, cluster, namespace, run_operator, tmp_path, kind):
    service = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"v1.{kind}.dev"},
        "spec": {
            "group": f"{kind}.dev",
            "version": "v1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "insecureSkipTLSVerify": True,
            "service": {"name": "absent", "namespace": "default"},
        },
    }
    place = "/apis/apiregistration.k8s.io/v1/apiservices"
    if type(cluster).__name__ == "SandboxPlane":
        pytest.skip("the sandbox has no aggregated APIs; its faults do the same in tests/faults/")
    kubeapi.request("POST", place, service)
    try:
        path = tmp_path / "operator.py"
        path.write_text(OPERATOR.format(plural=f"{kind}s"))
        operator = run_operator("--standalone", path)
        kubeapi.apply(example("first"), namespace)
        operator.wait_output("by plural: first")
        operator.wait_output("by group: first")
        assert operator.stop()[0] == 0
    finally:
        kubeapi.request("DELETE", f"{place}/v1.{kind}.dev")
