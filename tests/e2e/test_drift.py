"""Many objects with children: at rest, nothing is written; each child that others edit or delete is soon back.

With --thorough, it is 1,000 objects with 5 children each, as promised; the figures are printed with `-s`:

    pytest --cluster both --thorough -s tests/e2e/test_drift.py
"""

import http.client
import json
import pathlib
import queue
import re
import statistics
import threading
import time
from typing import Any

import pytest
from kubeapi import KubeApi, wait

CHILDREN = 5
FIGURES = (
    "{what}: back after {mean:.1f} ms (median), {high:.1f} ms (p99); the API alone: {api_mean:.1f}, {api_high:.1f}"
)

OPERATOR = """
import kopf
from kopf._cogs.clients.api import client_var  # its instruments see each request, also those that change nothing

class Writes(kopf.Instrument):
    def request_begins(self, request):
        if request.method != 'GET':
            print(f"WRITE {request.method} {request.path}", flush=True)

@kopf.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False
    client_var.get().instruments.add(Writes())

@kopf.on.reconcile('kopfexamples', owns=['configmaps'], backoff=(0.1, 1))
async def reconcile(name, spec, children, **_):
    for number in range(spec['children']):
        obj = {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': f'{name}-{number}'}}
        data = {f'SETTING_{key}': f'value-{name}-{number}-{key}' for key in range(10)}
        await children.apply({**obj, 'data': {'key': 'value', **data}})
    print(f"RUN {spec['round']} {name}", flush=True)
"""


class Operator:
    """The operator, with the lines that it has printed."""

    def __init__(self, process: Any) -> None:
        self._process = process

    def get_writes(self, name: str = "") -> list[str]:
        """
        Return the requests that were to write something: those for the object of this name, or all.

        Reviews are questions, though they are posted: they ask for the permissions of the operator.
        """
        lines = [line for line in self._process.output.splitlines() if line.startswith("WRITE ")]
        lines = [line for line in lines if "/authorization.k8s.io/" not in line]
        return [line for line in lines if line.endswith(f"/{name}")] if name else lines

    def count_runs(self, number: int) -> int:
        """Count the objects that were reconciled in this round."""
        lines = self._process.output.splitlines()
        return len({line for line in lines if line.startswith(f"RUN {number} ")})


class Stream:
    """A watch of all config maps of a namespace, in a thread; it says when it has received what."""

    def __init__(self, kubeapi: KubeApi, namespace: str) -> None:
        self._events: queue.Queue[tuple[float, dict[str, Any]]] = queue.Queue()
        path = kubeapi.path("v1", "ConfigMap", namespace)
        version = kubeapi.request("GET", path)["metadata"]["resourceVersion"]
        self._response = kubeapi.open(f"{path}?watch=true&resourceVersion={version}")
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for line in self._response:
                received = time.perf_counter()
                self._events.put((received, json.loads(line)))
        except (OSError, ValueError, AttributeError, http.client.HTTPException):
            pass  # it is closed

    def until(self, name: str, *types: str, key: str = "value", uid: str | None = None) -> float:
        """Wait for such an event of the object with this value, and not this uid; return when it was received."""
        while True:
            received, event = self._events.get(timeout=60)
            obj = event["object"]
            if obj["metadata"].get("name") == name and event["type"] in types and obj["data"]["key"] == key:
                if obj["metadata"]["uid"] != uid:
                    return received


class Drift:
    """Edits or deletes one object after another, and measures how long it takes until each one is back."""

    def __init__(self, kubeapi: KubeApi, namespace: str, stream: Stream) -> None:
        self._kubeapi, self._namespace, self._stream = kubeapi, namespace, stream
        control = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "control"}}
        self._control = {**control, "data": {"key": "value", "name": "control"}}
        self.restore()

    def restore(self) -> None:
        """Apply the control object: it is restored by the test itself, as a measure of the API alone."""
        path = self._kubeapi.path("v1", "ConfigMap", self._namespace, "control")
        url = f"{path}?fieldManager=test&force=true"
        self._kubeapi.request("PATCH", url, self._control, "application/apply-patch+yaml")

    def edit(self, name: str) -> float:
        """Edit the object; return the time until it is back (in seconds)."""
        edited = time.perf_counter()  # the child can be back before the response arrives
        self._kubeapi.patch("v1", "ConfigMap", self._namespace, name, {"data": {"key": "edited"}})
        if name == "control":
            self._stream.until(name, "MODIFIED", key="edited")
            self.restore()
        return self._stream.until(name, "MODIFIED") - edited

    def delete(self, name: str) -> float:
        """Delete the object; return the time until its successor is there (in seconds)."""
        path = self._kubeapi.path("v1", "ConfigMap", self._namespace, name)
        uid = self._kubeapi.request("GET", path)["metadata"]["uid"]
        deleted = time.perf_counter()
        self._kubeapi.request("DELETE", path)
        if name == "control":
            self._stream.until(name, "DELETED")
            self.restore()
        return self._stream.until(name, "ADDED", uid=uid) - deleted


def percentile(values: list[float], percent: float) -> float:
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * percent / 100))]


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_nothing_is_written_at_rest_and_children_are_soon_back(kubeapi, namespace, run_operator, tmp_path, request):
    is_thorough = request.config.getoption("--thorough")
    parents, rest = (1000, 60) if is_thorough else (10, 2)
    path = tmp_path / "handlers.py"
    path.write_text(OPERATOR)
    for number in range(parents):
        kubeapi.apply(make_parent(number), namespace)
    operator = Operator(run_operator("--standalone", "--quiet", path))
    wait(lambda: operator.count_runs(0) == parents, "the first pass", timeout=600)
    written = len(operator.get_writes())
    assert written == parents * (CHILDREN + 1)  # each parent has the annotation with the kinds of its children

    for number in range(parents):
        kubeapi.patch("kopf.dev/v1", "KopfExample", namespace, f"obj-{number}", {"spec": {"round": 1}})
    wait(lambda: operator.count_runs(1) == parents, "the second pass", timeout=600)
    time.sleep(rest)  # nothing is to happen
    assert len(operator.get_writes()) == written

    stream = Stream(kubeapi, namespace)
    drift = Drift(kubeapi, namespace, stream)
    names = [f"obj-{number}-{child}" for number in range(parents) for child in range(CHILDREN)]
    for what, disturb in {"edited": drift.edit, "deleted": drift.delete}.items():
        # In turns: what else the machine does at the time makes both slower.
        pairs = [(disturb("control"), disturb(name)) for name in names]
        alone, times = ([value * 1000 for value in column] for column in zip(*pairs, strict=True))
        figures = {"mean": statistics.median(times), "high": percentile(times, 99)}
        figures |= {"api_mean": statistics.median(alone), "api_high": percentile(alone, 99)}
        print(FIGURES.format(what=f"{len(names)} children {what}", **figures))
        # Of a few measurements, one that is disturbed by another process would be the 99th percentile.
        own, api = ("high", "api_high") if is_thorough else ("mean", "api_mean")
        assert figures[own] < 50 + figures[api]
    time.sleep(rest)
    assert [name for name in names if len(operator.get_writes(name)) != 3] == []  # created, edited, deleted
    assert len(operator.get_writes()) == written + 2 * len(names)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_child_takes_at_most_3_kb_of_the_process(kubeapi, namespace, run_operator, tmp_path, request):
    parents, children = 20, (30, 230 if request.config.getoption("--thorough") else 80)
    path = tmp_path / "handlers.py"
    path.write_text(OPERATOR)
    for number in range(parents):
        kubeapi.apply(make_parent(number), namespace)
    process = run_operator("--standalone", "--quiet", path)
    operator, sizes = Operator(process), []
    for round_number, count in enumerate(children, 1):
        for number in range(parents):
            spec = {"round": round_number, "children": count}
            kubeapi.patch("kopf.dev/v1", "KopfExample", namespace, f"obj-{number}", {"spec": spec})
        wait(lambda number=round_number: operator.count_runs(number) == parents, "the children", timeout=600)
        sizes.append(measure_memory(process.process.pid))
    slope = (sizes[1] - sizes[0]) / (children[1] - children[0]) / parents
    print(f"{parents * (children[1] - children[0])} more children take {slope:.0f} bytes each")
    assert slope < 3 * 1024


def measure_memory(pid: int) -> int:
    """Return the resident memory of the process (in bytes)."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    [kilobytes] = re.findall(r"VmRSS:\s+(\d+)", status)
    return int(kilobytes) * 1024


def make_parent(number: int) -> dict[str, Any]:
    metadata = {"name": f"obj-{number}"}
    spec = {"children": CHILDREN, "round": 0}
    return {"apiVersion": "kopf.dev/v1", "kind": "KopfExample", "metadata": metadata, "spec": spec}
