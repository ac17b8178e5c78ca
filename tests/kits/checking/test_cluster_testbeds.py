"""Courses on a cluster: what is refused, what is compared, and what stays there. See also the end-to-end tests."""

import subprocess
import sys

import pytest

from kopf._kits.checking.cluster_testbeds import prepared
from kopf._kits.checking.clusters import LABEL, Cluster, ClusterError
from kopf._kits.testing.wire.manifests import read
from kopf.testing import Sandbox
from tests.kits.checking.conftest import CRD, OBJECT

[(_, CRD_BODY)], [(_, WEB)] = read(CRD), read(OBJECT)


@pytest.fixture
def sandbox(tmp_path, monkeypatch):
    """Return a sandbox in the place of a cluster."""
    with Sandbox(kubeconfig=tmp_path / "admin") as sandbox:
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "admin"))
        yield sandbox


def prepare(crds=(CRD_BODY,), bodies=(WEB,), **options):
    return prepared("sandbox", crds=crds, bodies=bodies, **{"applies_crds": True, **options})


@pytest.fixture
def run(sandbox, write, tmp_path):
    """Run the command in another process; return its exit code and its output."""

    def run(text):
        write(text)
        options = ["--crd", "crd.yaml", "--load", "web.yaml", "--cluster", "sandbox", "--apply-crds", "--rest", "0.7s"]
        command = [sys.executable, "-m", "kopf", "check", "app.py", *options]
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return result.returncode, result.stdout + result.stderr

    return run


def test_missing_crds_are_created_only_on_request_and_removed_again(sandbox):
    with pytest.raises(ClusterError, match=r"'sandbox' has no CRD webs\.example\.com: .* by --apply-crds"):
        prepare(applies_crds=False).__enter__()
    with prepare() as place:
        assert place.get("webs").schema and sandbox.get("crd", "webs.example.com")
    assert not sandbox.list("crd")


def test_crds_that_are_there_stay_as_they_are(sandbox):
    [before] = sandbox.apply(CRD_BODY)
    with prepare():
        pass
    assert sandbox.get("crd", "webs.example.com")["metadata"]["uid"] == before["metadata"]["uid"]


def test_crds_that_another_client_creates_at_the_same_time_stay(sandbox, monkeypatch):
    monkeypatch.setattr(Cluster, "has_crd", lambda *_: False)  # the check has looked too early
    sandbox.apply(CRD_BODY)
    with prepare() as place:
        assert place.get("webs").schema
    assert sandbox.get("crd", "webs.example.com")


def test_crds_that_another_client_creates_anew_stay(sandbox):
    with prepare():
        sandbox.delete("crd", "webs.example.com")
        sandbox.wait_gone("crd", "webs.example.com")
        [created] = sandbox.apply(CRD_BODY)
    assert sandbox.get("crd", "webs.example.com")["metadata"]["uid"] == created["metadata"]["uid"]


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"bodies": [{**WEB, "metadata": {"name": "x", "namespace": "other"}}, WEB]}, "several namespaces"),
        ({"bodies": [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "x"}}]}, "cluster-scoped"),
        ({"crds": [{**CRD_BODY, "spec": {**CRD_BODY["spec"], "scope": "Cluster"}}]}, "cluster-scoped"),
        ({"crds": [WEB]}, "Web w1 of --crd is not a CustomResourceDefinition"),
        ({"crds": []}, r"has no kind Web \(example.com/v1\)"),
    ],
)
def test_what_cannot_be_checked_on_a_cluster_is_explained(sandbox, options, reason):
    with pytest.raises(ClusterError, match=reason):
        prepare(**options).__enter__()
    assert not sandbox.list("crd") and not sandbox.list("namespaces", label_selector=LABEL)


def test_what_cannot_be_removed_is_told(sandbox, monkeypatch):
    told = []
    with prepare(tell=told.append):
        sandbox.faults.refuse_connections()
    assert "kubectl delete namespace,crd -l kopf.dev/check=" in told[0]


CLUSTERWIDE = """
    @kopf.on.create('webs')
    async def serve(name, **_):
        await kopf.apply({
            'apiVersion': 'rbac.authorization.k8s.io/v1', 'kind': 'ClusterRole', 'metadata': {'name': name}, 'rules': []
        })
"""

WATCHING_NODES = """
    @kopf.on.event('nodes')
    def see(**_):
        pass
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "text, reason",
    [
        (WATCHING_NODES, "The objects of nodes, which 'see' handles, are cluster-scoped"),
        (CLUSTERWIDE, "The operator writes to clusterroles (PATCH), which are cluster-scoped"),
    ],
)
def test_operators_that_leave_their_namespace_are_refused(run, sandbox, text, reason):
    code, output = run(text)
    assert code == 2 and reason in output and "without --cluster" in output
    assert not [role for role in sandbox.list("clusterroles") if role["metadata"]["name"] == "w1"]
    assert not sandbox.list("namespaces", label_selector=LABEL) and not sandbox.list("crd")
