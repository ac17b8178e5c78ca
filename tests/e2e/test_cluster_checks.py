"""`kopf check --cluster`: an operator on a cluster, disturbed by a proxy, with nothing left behind."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests.kits.checking.conftest import CRD, OBJECT

OPERATOR = """
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

PLAN = """
seed: 1
do: kill
request: {verb: patch, resource: configmaps}
when: unanswered
"""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_planted_bug_is_found_and_a_correct_operator_passes(cluster, kubeapi, tmp_path):
    for name, text in {
        "planted.py": OPERATOR.replace("NAME", "f'{name}-{uuid.uuid4()}'"),
        "correct.py": OPERATOR.replace("NAME", "name"),
        "crd.yaml": CRD,
        "web.yaml": OBJECT,
        "plan.yaml": PLAN,
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
    assert "+ configmaps default/#2" in outputs["planted"]
    assert checks["correct"].returncode == 0, outputs["correct"]
    namespaces = kubeapi.items("v1", "Namespace")
    assert not [item for item in namespaces if "kopf.dev/check" in item["metadata"].get("labels", {})]
