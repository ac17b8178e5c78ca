"""`kopf check --cluster`: an operator on a cluster, disturbed by a proxy, with nothing left behind."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests.kits.checking.conftest import CRD, OBJECT

CREATING = """
import uuid
import kopf

@kopf.on.create('webs')
async def serve(body, name, namespace, patch, **_):
    metadata = {'name': NAME, 'namespace': namespace}
    child = {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': metadata}
    kopf.adopt(child, owner=body)
    await kopf.apply(child)
    patch.status['done'] = True
"""

IMPATIENT = CREATING.replace(
    "@kopf.on.create('webs')",
    """
@kopf.on.startup()
def configure(settings, **_):
    settings.networking.error_backoffs = []

@kopf.on.create('webs', backoff=1)
""",
)

RESUMING = CREATING.replace("@kopf.on.create", "@kopf.on.resume('webs')\n@kopf.on.create")

RECONCILING = """
import kopf

applied = set()

@kopf.on.reconcile('webs', owns=['configmaps'])
async def serve(name, children, **_):
    if name not in applied:
        await children.apply({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name}, 'data': {'a': 'b'}})
        REMEMBER
"""

RANDOM, BY_OWNER = "f'{name}-{uuid.uuid4()}'", "name"


@dataclasses.dataclass
class Case:
    """A mistake that one plan shows, and the same operator without it."""

    planted: str
    correct: str
    plan: str
    finding: str


CASES = {
    "killed between a request and its response": Case(
        CREATING.replace("NAME", RANDOM),
        CREATING.replace("NAME", BY_OWNER),
        "{seed: 1, do: kill, request: {verb: patch, resource: configmaps}, when: unanswered}",
        "+ configmaps default/#2",
    ),
    "a request is done but times out": Case(
        IMPATIENT.replace("NAME", RANDOM),
        IMPATIENT.replace("NAME", BY_OWNER),
        "{seed: 1, do: lose, request: {verb: patch, resource: configmaps}}",
        "+ configmaps default/#2",
    ),
    "restarted at rest": Case(
        RESUMING.replace("NAME", RANDOM),
        RESUMING.replace("NAME", BY_OWNER),
        "{seed: 1, do: stop, step: 0, seconds: 1}",
        "+ configmaps default/#2",
    ),
    "a child is edited": Case(
        RECONCILING.replace("REMEMBER", "applied.add(name)"),
        RECONCILING.replace("REMEMBER", ""),
        """
            seed: 1
            do: tamper
            step: 0
            target: {resource: configmaps, namespace: default, name: w1}
            edits: [{target: {resource: configmaps, namespace: default, name: w1}, patch: {data: {a: c}}}]
        """,
        "- configmaps default/w1",
    ),
}


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_planted_bug_is_found_and_a_correct_operator_passes(cluster, kubeapi, tmp_path, case):
    for name, text in {
        "planted.py": case.planted,
        "correct.py": case.correct,
        "crd.yaml": CRD,
        "web.yaml": OBJECT,
        "plan.yaml": case.plan,
    }.items():
        (tmp_path / name).write_text(text)
    kubeapi.apply(tmp_path / "crd.yaml")  # as two checks need it at the same time
    config = json.loads(pathlib.Path(cluster.kubeconfig).read_text())
    options = ["--crd", "crd.yaml", "--load", "web.yaml", "--cluster", config["current-context"], "--rest", "0.7s"]
    checks = {
        name: subprocess.Popen(
            [sys.executable, "-m", "kopf", "check", f"{name}.py", *options, "--plan", "plan.yaml"],
            cwd=tmp_path,
            env={**os.environ, "KUBECONFIG": cluster.kubeconfig},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name in ("planted", "correct")
    }
    outputs = {name: process.communicate(timeout=240)[0] for name, process in checks.items()}
    assert checks["planted"].returncode == 1, outputs["planted"]
    assert case.finding in outputs["planted"]
    assert checks["correct"].returncode == 0, outputs["correct"]
    namespaces = kubeapi.items("v1", "Namespace")
    assert not [item for item in namespaces if "kopf.dev/check" in item["metadata"].get("labels", {})]
