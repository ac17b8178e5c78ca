"""Requests to a real cluster, its kinds, and the removal of what a check has created there."""

import threading

import pytest

from kopf._kits.checking.clusters import LABEL, Cluster, ClusterError, ClusterPlace
from kopf._kits.testing.wire.statuses import Refusal
from kopf.testing import Sandbox
from tests.kits.checking.conftest import CRD

SAME_PLURAL = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: pods.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Pod, plural: pods, singular: pod}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
"""


@pytest.fixture
def sandbox(tmp_path, monkeypatch):
    with Sandbox(kubeconfig=tmp_path / "admin", crds=CRD) as sandbox:
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "admin"))
        yield sandbox


@pytest.fixture
def api(sandbox):
    with Cluster("sandbox") as api:
        yield api


def make_place(api):
    return ClusterPlace(context="sandbox", run="r", namespace="default", kinds=api.list_kinds())


def test_refusals_have_the_reason_of_the_api(api):
    with pytest.raises(Refusal, match='configmaps "x" not found') as caught:
        api.call("GET", "/api/v1/namespaces/default/configmaps/x")
    assert (caught.value.code, caught.value.reason) == (404, "NotFound")


def test_no_thread_is_used_unless_it_is_asked_for(api):
    # Copies of the process must not be made while a thread uses TLS, or ends after that.
    assert "kopf-cluster" not in {thread.name for thread in threading.enumerate()}
    with Cluster("sandbox", threaded=True) as other:
        assert "kopf-cluster" in {thread.name for thread in threading.enumerate()}
        assert other.call("GET", "/version")
    assert "kopf-cluster" not in {thread.name for thread in threading.enumerate()}


def test_contexts_that_do_not_exist_are_told_with_those_that_do(sandbox):
    with pytest.raises(ClusterError, match="'other' does not exist .* there are: 'sandbox'"), Cluster("other"):
        pass


def test_a_cluster_that_does_not_answer_is_told(api, sandbox):
    sandbox.faults.refuse_connections()
    with pytest.raises(ClusterError, match="The cluster of the context 'sandbox' does not answer"):
        api.call("GET", "/api/v1/namespaces")


def test_kinds_have_scopes_schemas_and_distinct_names(api, sandbox):
    sandbox.apply(SAME_PLURAL)
    kinds = {kind.name: kind for kind in api.list_kinds()}
    assert "size" in kinds["webs"].schema["properties"]["spec"]["properties"]
    assert (kinds["webs"].resource.subresources, kinds["webs"].resource.namespaced) == ({"status"}, True)
    assert (kinds["pods"].api_version, kinds["pods.example.com"].api_version) == ("v1", "example.com/v1")
    assert not kinds["nodes"].resource.namespaced and kinds["pods"].schema is None


def test_kinds_are_found_by_their_objects(api):
    place = make_place(api)
    assert place.find("example.com/v1", "Web").get_path("x", "y") == "/apis/example.com/v1/namespaces/x/webs/y"
    with pytest.raises(ClusterError, match=r"has no kind Other \(example.com/v1\): give its definition by --crd"):
        place.find("example.com/v1", "Other")
    with pytest.raises(ClusterError, match=r"The objects of Node \(v1\) are cluster-scoped"):
        place.find("v1", "Node")


def test_namespaces_are_removed_with_objects_that_wait_for_a_dead_operator(api, sandbox):
    kinds = make_place(api).namespaced
    name, other = api.create_namespace("r"), api.create_namespace("other")
    sandbox.create("webs", "w", namespace=name, spec={"size": 1}, finalizers=["example.com/finalizer"])
    assert [body["metadata"]["name"] for kind, body in api.list_objects(kinds, name) if kind.name == "webs"] == ["w"]
    assert api.remove_namespaces("r", kinds) == []
    names = [body["metadata"]["name"] for body in sandbox.list("namespaces", label_selector=LABEL)]
    assert names == [other]
