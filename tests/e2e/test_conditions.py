"""Conditions that clients wait for: `kubectl wait` never returns too early, and never waits in vain."""

import concurrent.futures
import os
import random
import shutil
import subprocess
import time

import pytest
from kinds import PARTS, define
from kubeapi import wait

KIND = ("conditions.example.dev/v1", "Thing")
CRD = define("things", "Thing", group="conditions.example.dev", schema=PARTS, subresources={"status": {}})

# A run says in a condition of its own what it has seen. Its duration, its errors, and its own edits vary.
HANDLERS = """
import asyncio, random
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
    conditions['Seen'] = kopf.Condition(True, f"Value{spec['value']}")
"""

# What clients see of an object: what is desired, and what its conditions are about.
COLUMNS = [
    ".metadata.name",
    ".metadata.generation",
    ".spec.value",
    '.status.conditions[?(@.type=="Ready")].status',
    '.status.conditions[?(@.type=="Ready")].observedGeneration',
    '.status.conditions[?(@.type=="Seen")].reason',
]
TEMPLATE = "jsonpath=" + "|".join(f"{{{column}}}" for column in COLUMNS) + '{"\\n"}'


@pytest.mark.long
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.timeout(1800)
def test_kubectl_wait_never_returns_early_or_never(cluster, kubeapi, namespace, run_operator, tmp_path, request):
    count = 1000 if request.config.getoption("--thorough") else 60
    kubeapi.apply(CRD)
    path, seen = tmp_path / "handlers.py", tmp_path / "seen"
    path.write_text(HANDLERS)
    operator = run_operator("--standalone", "--quiet", path)
    names = ["a", "b", "c", "d"]
    for name in names:
        thing = {"apiVersion": KIND[0], "kind": KIND[1], "metadata": {"name": name}, "spec": {"value": 0}}
        kubeapi.apply(thing, namespace)
    kubectl = Kubectl(cluster.kubeconfig, namespace)
    with seen.open("w") as file, concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
        watching = kubectl("get", "things", "--watch", "-o", TEMPLATE, stdout=file)
        racers = [Racer(kubeapi, kubectl, namespace, name) for name in names]
        waits = list(pool.map(lambda racer: racer.race(count // len(names)), racers))
        wait(lambda: all(racer.is_final(seen.read_text()) for racer in racers), "the last states in the watch")
        watching.kill()
        watching.wait()
    assert operator.stop()[0] == 0
    lines = [line for line in seen.read_text().splitlines() if line]
    ready = [line for line in lines if is_ready(line)]
    assert [line for line in ready if not is_seen(line)] == []
    print(f"{count} edits, {sum(waits)} waits; {len(lines)} states, {len(ready)} of them ready")


def is_ready(line):
    """Check whether clients take this state for ready, as `kubectl wait` does."""
    _, generation, _, status, observed, _ = line.split("|")
    return status == "True" and int(observed) >= int(generation)


def is_seen(line):
    """Check whether a run has seen what is desired in this state."""
    return line.split("|")[-1] == f"Value{line.split('|')[2]}"


class Kubectl:
    """Starts `kubectl` in a namespace."""

    def __init__(self, kubeconfig: str, namespace: str) -> None:
        self.env, self.namespace = {**os.environ, "KUBECONFIG": str(kubeconfig)}, namespace

    def __call__(self, *args, stdout=subprocess.PIPE):
        command = ["kubectl", "-n", self.namespace, *args]
        return subprocess.Popen(command, env=self.env, stdout=stdout, stderr=subprocess.STDOUT, text=True)


class Racer:
    """Edits one object again and again, while `kubectl` waits for it."""

    def __init__(self, kubeapi, kubectl: Kubectl, namespace: str, name: str) -> None:
        self.kubeapi, self.kubectl, self.namespace, self.name = kubeapi, kubectl, namespace, name
        self.chance = random.Random(name)
        self.value = 0

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
            line = output.strip()
            assert is_ready(line) and is_seen(line) and int(line.split("|")[2]) >= waited_for, line
            waits += 1
        # An edit that is undone at once must not be waited for in vain either.
        self.patch({"moment": "y"})
        self.patch({"moment": "x"})
        process = self.start_waiting()
        output, _ = process.communicate()
        assert process.returncode == 0 and is_seen(output.strip()), output
        return waits + 1

    def is_final(self, text):
        lines = [line for line in text.splitlines() if line.startswith(f"{self.name}|")]
        return is_ready(lines[-1]) and lines[-1].split("|")[2] == str(self.value)

    def start_waiting(self):
        return self.kubectl("wait", f"things/{self.name}", "--for=condition=Ready", "--timeout=60s", "-o", TEMPLATE)


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


def test_the_next_operator_ends_what_a_killed_one_has_begun(cluster, kubeapi, namespace, run_operator, tmp_path):
    kubeapi.apply(CRD)
    path, gate = tmp_path / "handlers.py", tmp_path / "gate"
    path.write_text(
        "import os, time, kopf\n"
        "@kopf.on.reconcile('conditions.example.dev', 'things', conditions=True)\n"
        "def thing(**_):\n"
        "    while not os.path.exists(os.environ['GATE']):\n"
        "        time.sleep(0.05)\n"
    )
    thing = {"apiVersion": KIND[0], "kind": KIND[1], "metadata": {"name": "obj"}, "spec": {}}
    kubeapi.apply(thing, namespace)

    def has(*wanted):
        found = kubeapi.get(*KIND, namespace, "obj").get("status", {}).get("conditions", [])
        return [(each["type"], each["status"]) for each in found] == [*wanted]

    operator = run_operator("--standalone", "--quiet", path, GATE=str(gate))
    wait(lambda: has(("Ready", "Unknown"), ("Reconciling", "True")), "the beginning of the run")
    operator.process.kill()
    operator.process.wait()
    gate.touch()
    run_operator("--standalone", "--quiet", path, GATE=str(gate))
    wait(lambda: has(("Ready", "True")), "the end of the run")
