"""
Members that share the objects, as processes: each object is handled by one, with real signals and a failing network.

A longer run, with more rounds and the default times, is `python -m tests.soak.sharding`.
"""

import json
import pathlib
import subprocess
import sys

import pytest
from kubeapi import wait

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "soak"))

import election  # noqa: E402
import sharding  # noqa: E402

DURATION = 3.0
ACTIONS = ["kill", "grow", "freeze", "shrink", "lease"]


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
    environment = {"KUBECONFIG": cluster.kubeconfig, "PATH": "/usr/bin:/bin"}

    def show(*options):
        command = [sys.executable, "-m", "kopf", "shards", "-n", namespace, "operator", *options]
        return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60).stdout

    def find_counts():
        text = show("--json")
        members = json.loads(text)[0]["members"] if text else []
        return {member["identity"].partition("_")[0]: member["count"] for member in members}

    wait(lambda: find_counts() == {"pod-1": 128, "pod-2": 128}, "the members to share the buckets")
    text = show()
    assert f"kopf-operator-shards in {namespace}: 256 buckets by uid" in text and "pod-1_" in text and "pod-2_" in text
