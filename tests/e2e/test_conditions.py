"""Conditions that clients wait for: `kubectl wait` never returns too early, and never waits in vain."""

import concurrent.futures
import os
import pathlib
import random
import shutil
import subprocess
import time

import pytest
from kubeapi import wait

KIND = ("conditions.example.dev/v1", "Thing")
CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.conditions.example.dev}
spec:
  group: conditions.example.dev
  scope: Namespaced
  names: {kind: Thing, plural: things, singular: thing}
  versions:
    - name: v1
      served: true
      storage: true
      subresources: {status: {}}
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec: {type: object, x-kubernetes-preserve-unknown-fields: true}
            status: {type: object, x-kubernetes-preserve-unknown-fields: true}
"""

# What a run has done is in a file before the conditions can say so. Its duration, its errors, and its own edits vary.
HANDLERS = """
import asyncio, os, random
import kopf

chance = random.Random(0)

@kopf.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False

@kopf.on.reconcile('conditions.example.dev', 'things', conditions=True, backoff=(0.01, 0.05))
async def thing(name, spec, patch, conditions, **_):
    await asyncio.sleep(chance.uniform(0, 0.02))
    luck = chance.random()
    if luck < 0.1:
        raise ValueError("as it happens")
    if luck < 0.2:
        raise kopf.TemporaryError("as it happens", delay=0.01)
    if luck < 0.3:
        patch.spec['own'] = spec['value']  # which makes a new generation
    if luck < 0.4:
        patch.status['seen'] = spec['value']
    with open(os.path.join(os.environ['DONE'], name), 'a') as file:
        file.write(f"{spec['value']}\\n")
"""


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.timeout(1800)
def test_kubectl_wait_never_returns_early_or_never(cluster, kubeapi, namespace, run_operator, tmp_path, request):
    count = 1000 if request.config.getoption("--thorough") else 60
    kubeapi.apply(CRD)
    path, done = tmp_path / "handlers.py", tmp_path / "done"
    path.write_text(HANDLERS)
    done.mkdir()
    operator = run_operator("--standalone", "--quiet", path, DONE=str(done))
    names = ["a", "b", "c", "d"]
    for name in names:
        thing = {"apiVersion": KIND[0], "kind": KIND[1], "metadata": {"name": name}, "spec": {"value": 0}}
        kubeapi.apply(thing, namespace)
    with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
        racers = [Racer(kubeapi, cluster.kubeconfig, namespace, name, done) for name in names]
        waits = list(pool.map(lambda racer: racer.race(count // len(names)), racers))
    print(f"{count} edits, {sum(waits)} waits; {sum(len(racer.read()) for racer in racers)} successful runs")
    assert operator.stop()[0] == 0


class Racer:
    """Edits one object again and again, while `kubectl` waits for it."""

    def __init__(self, kubeapi, kubeconfig: str, namespace: str, name: str, done: pathlib.Path) -> None:
        self.kubeapi, self.kubeconfig, self.namespace, self.name = kubeapi, kubeconfig, namespace, name
        self.chance = random.Random(name)
        self.file = done / name
        self.value = 0

    def read(self):
        return [int(line) for line in self.file.read_text().split()] if self.file.exists() else []

    def edit(self) -> None:
        """Change the object; sometimes only for a moment."""
        self.value += 1
        self.patch({"value": self.value, "moment": self.chance.choice([None, "x"])})

    def patch(self, spec) -> None:
        self.kubeapi.patch(*KIND, self.namespace, self.name, {"spec": spec})

    def race(self, count: int) -> int:
        """Make so many edits; return how often `kubectl` has waited, each time for what it must have waited for."""
        waits = 0
        while self.value < count:
            self.edit()
            waited_for = self.value
            # The process starts while the handler runs: its first look at the object comes before, in, or after a run.
            process = self.start_waiting()
            for _ in range(min(self.chance.randrange(7), count - self.value)):
                time.sleep(self.chance.choice([0, 0, 0.01, 0.03, 0.1]))
                self.edit()
            output, _ = process.communicate()
            assert process.returncode == 0, output
            assert max(self.read(), default=0) >= waited_for, "it has returned early"
            waits += 1
        # An edit that is undone at once must not be waited for in vain either.
        self.patch({"moment": "y"})
        self.patch({"moment": "x"})
        process = self.start_waiting()
        assert process.communicate()[0].strip().endswith("condition met") and process.returncode == 0
        return waits + 1

    def start_waiting(self):
        return subprocess.Popen(
            ["kubectl", "wait", "-n", self.namespace, f"things/{self.name}", "--for=condition=Ready", "--timeout=60s"],
            env={**os.environ, "KUBECONFIG": self.kubeconfig},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def test_at_rest_nothing_is_written(cluster, kubeapi, namespace, run_operator, tmp_path):
    kubeapi.apply(CRD)
    path = tmp_path / "handlers.py"
    path.write_text(
        "import kopf\n"
        "@kopf.on.reconcile('conditions.example.dev', 'things', conditions=True, interval=0.1)\n"
        "def thing(name, conditions, **_):\n"
        "    conditions['Counted'] = kopf.Condition(True, 'Fine')\n"
        "    print(f'{name} is run.', flush=True)\n"
    )
    thing = {"apiVersion": KIND[0], "kind": KIND[1], "metadata": {"name": "obj"}, "spec": {}}
    kubeapi.apply(thing, namespace)

    def get_rested():
        found = kubeapi.get(*KIND, namespace, "obj")
        types = [(each["type"], each["status"]) for each in found.get("status", {}).get("conditions", [])]
        return found["metadata"]["resourceVersion"] if types == [("Ready", "True"), ("Counted", "True")] else None

    operator = run_operator("--standalone", "--quiet", path)
    version = wait(get_rested, "the conditions")
    operator.wait_output("(?s)(obj is run.*){5}")
    operator.stop()
    operator = run_operator("--standalone", "--quiet", path)
    operator.wait_output("(?s)(obj is run.*){5}")
    assert get_rested() == version
