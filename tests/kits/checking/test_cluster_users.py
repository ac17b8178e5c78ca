"""The user of a course on a cluster: writes in the namespace of the course, told as those of plans."""

import contextlib

import pytest

from kopf._kits.checking.cluster_users import ClusterUser, Translation
from kopf._kits.checking.clusters import Cluster, ClusterError, ClusterPlace
from kopf._kits.checking.user_writes import RecordedWrites
from kopf._kits.testing.serving.waits import WaitTimeout
from kopf._kits.testing.wire.statuses import Refusal

MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "default"}, "data": {"x": "1"}}


class Host:
    """Remembers what the user has told."""

    def __init__(self):
        self.steps, self.created, self.edits = [], [], []

    @contextlib.contextmanager
    def step(self, text):
        self.steps.append(text)
        yield

    def note_created(self, body, given=None):
        self.created.append(body)

    def note_edited(self, body, edit):
        self.edits.append(edit and edit({"metadata": {"name": "x"}, "data": {"x": "1", "z": "0"}}))


@pytest.fixture
def host():
    return Host()


@pytest.fixture
def user(sandbox, host):
    with Cluster("sandbox") as cluster:
        place = ClusterPlace(context="sandbox", run="r", namespace="default", kinds=cluster.list_kinds())
        writes = RecordedWrites(host, lambda: None)
        yield ClusterUser(cluster, place, Translation("default", "run-1"), writes, wait=0.3)


def test_objects_are_written_to_the_namespace_of_the_course(user, host, sandbox):
    [first] = user.apply(MAP)
    assert first["metadata"]["namespace"] == "default"
    [second] = user.apply({**MAP, "data": {"y": "2"}})
    assert second["data"] == {"x": "1", "y": "2"}
    user.patch("configmaps", "a", {"data": {"x": None}}, namespace="default")
    assert sandbox.get("configmaps", "a", namespace="run-1")["data"] == {"y": "2"}
    user.delete("configmaps", "a", namespace="default")
    user.wait_gone("configmaps", "a")
    assert user.create(MAP)["data"] == {"x": "1"}
    assert host.steps == ["apply a", "apply a", "patch configmaps a", "delete configmaps a", "create ConfigMap a"]
    assert host.created == [first, second, {**MAP, **host.created[2]}]
    assert host.edits == [{"metadata": {"name": "x"}, "data": {"z": "0"}}]


def test_scenarios_of_the_sandbox_can_be_played(user, host):
    user.create("cm", "b", namespace="default", labels={"app": "x"}, data={"x": "1"})
    assert user.wait_for("ConfigMap", "b", lambda body: body["data"]["x"] == "1")["metadata"]["namespace"] == "default"
    user.patch("configmaps", "b", [{"op": "replace", "path": "/data/x", "value": "2"}])
    body = user.get("configmap", "b")
    user.replace({**body, "data": {"x": "3"}})
    user.create("configmaps.v1", "c")
    assert [item["data"] for item in user.list("configmaps", label_selector="app=x")] == [{"x": "3"}]
    assert {item["kind"] for item in user.list("configmaps")} == {"ConfigMap"}
    user.delete("cm", "b", propagation="Foreground")
    user.wait_gone("cm", "b")
    assert host.steps[1:3] == ["patch configmaps b", "replace ConfigMap b"]
    assert [edit["data"] for edit in host.edits] == [{"x": "1", "z": "0"}, {"x": "3"}]


def test_a_wait_ends_at_its_timeout(user):
    user.create(MAP)
    with pytest.raises(WaitTimeout, match=r"configmaps a is still there after 0\.3 s"):
        user.wait_gone("configmaps", "a")
    with pytest.raises(WaitTimeout, match=r"cm 'a' is not as expected after 0\.3 s; it is: \{"):
        user.wait_for("cm", "a", lambda body: body["data"]["x"] == "2")
    with pytest.raises(WaitTimeout, match=r"cm 'b' is not there after 0\.3 s; it is: absent"):
        user.wait_for("cm", "b")


def test_unknown_kinds_are_named(user):
    with pytest.raises(ClusterError, match="The cluster of the context 'sandbox' has no kind 'things'"):
        user.get("things", "a")


def test_refusals_are_those_of_the_sandbox(user):
    user.create(MAP)
    with pytest.raises(Refusal, match="already exists"):
        user.create(MAP)


def test_other_namespaces_are_impossible(user):
    with pytest.raises(ClusterError, match="The namespace other is not that of the other objects, default"):
        user.delete("configmaps", "a", namespace="other")
    with pytest.raises(ClusterError, match="The namespace other is not that of the other objects, default"):
        user.create({**MAP, "metadata": {"name": "a", "namespace": "other"}})


def test_the_namespace_is_translated_wherever_it_is():
    translation = Translation("default", "run-1")
    body = {"spec": {"host": "x.run-1.svc", "run-1": ["run-1", 1, None]}}
    assert translation.to_plan(body) == {"spec": {"host": "x.default.svc", "default": ["default", 1, None]}}
    assert translation.to_cluster({"kind": "X"}) == {"kind": "X", "metadata": {"namespace": "run-1"}}
