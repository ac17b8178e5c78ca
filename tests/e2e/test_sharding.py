"""
Members that share the objects, as processes: each object is handled by one, with real signals and a failing network.

A longer run, with more rounds and the default times, is `python -m tests.soak.sharding`.
"""

import json
import os
import pathlib
import re
import sys

import pytest
from controlplane import ControlPlane, Unavailable
from forkserver import run_process
from kubeapi import KubeApi, wait
from sandboxplane import SandboxPlane

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "soak"))

import election  # noqa: E402
import sharding  # noqa: E402

DURATION = 3.0
ACTIONS = ["kill", "grow", "freeze", "shrink", "lease"]


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(2, 5))])
def test_each_object_is_handled_by_one_member_whatever_happens(seed, cluster, namespace, tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", cluster.kubeconfig)
    it, wrong = election.soak(
        sharding.ShardingSoak,
        cluster.kubeconfig,
        tmp_path,
        namespace,
        rounds=5,
        seed=str(seed),
        duration=DURATION,
        actions=ACTIONS,
    )
    assert not wrong
    assert {each.action for each in it.rounds} == set(ACTIONS) and it.edits > 50 and it.moved > 50


@pytest.fixture
def cutting_cluster(cluster, monkeypatch):
    """Yield another cluster, whose lists and watches are cut to shards by the server."""
    plane = SandboxPlane if isinstance(cluster, SandboxPlane) else ControlPlane
    try:
        with plane(sharding=True) as it:
            monkeypatch.setenv("KUBECONFIG", it.kubeconfig)
            yield it
    except Unavailable as error:
        pytest.skip(f"a control plane with the feature gate does not start: {error}")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_each_object_is_handled_by_one_member_if_the_server_cuts_the_streams(cutting_cluster, tmp_path):
    it, wrong = election.soak(
        sharding.ShardingSoak,
        cutting_cluster.kubeconfig,
        tmp_path,
        "default",
        rounds=3,
        seed="5",
        duration=DURATION,
        actions=["grow", "kill", "shrink"],
    )
    assert not wrong
    assert it.edits > 30 and it.moved > 50
    if isinstance(cutting_cluster, ControlPlane):
        metrics = KubeApi().read("/metrics")
        [count] = re.findall(r'apiserver_watch_filtered_events_total{.*resource="kopfexamples"} (.*)', metrics)
        assert float(count) > 10


def test_the_command_shows_the_members(cluster, namespace, run_operator, tmp_path):
    path = tmp_path / "handlers.py"
    path.write_text(
        "import kopf\n"
        "@kopf.on.startup()\n"
        "def configure(settings, **_):\n"
        f"    settings.sharding.namespace = {namespace!r}\n"
        "    settings.posting.enabled = False\n"
        "@kopf.on.create('kopfexamples')\n"
        "def create(**_): pass\n"
    )
    run_operator("--shards", "auto", path, POD_NAME="pod-1")
    run_operator("--shards=auto", path, POD_NAME="pod-2")
    environment = {**os.environ, "KUBECONFIG": cluster.kubeconfig}

    def show(*options):
        return run_process(["kopf", "shards", "-n", namespace, "operator", *options], env=environment, cwd=ROOT).stdout

    def find_counts():
        text = show("--json")
        members = json.loads(text)[0]["members"] if text else []
        return {member["identity"].partition("_")[0]: member["count"] for member in members}

    wait(lambda: find_counts() == {"pod-1": 128, "pod-2": 128}, "the members to share the buckets")
    text = show()
    assert f"kopf-operator-shards in {namespace}: 256 buckets by uid" in text and "pod-1_" in text and "pod-2_" in text
