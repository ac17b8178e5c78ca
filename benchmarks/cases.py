"""
The cases: each is one measurement of one environment, and returns its metrics.
"""

import collections
import contextlib
import json
import os
import queue
import re
import socket
import statistics
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Any

from clients import Client
from clusters import HERE, Cluster
from objects import API, GROUP, WRITERS, body, path
from operators_under_test import Operator, Runner
from results import Metrics
from writers import (
    await_children,
    churn_objects,
    delete_children,
    finish_objects,
    label_namespaces,
    post_reviews,
)

CHILDREN = 5
MORE_CHILDREN = 25
"""With so many, the memory is measured once more: the difference is that of the children alone."""


WRITES = ("create", "update", "patch", "delete")


HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


ANNOTATION = "kopf.zalando.org/last-handled-configuration"


def landed(cluster: Cluster, plural: str, version: str, total: int) -> int:
    """Wait until all objects have the annotation; return the time. The server may end a slow watch: then list."""
    names: set[bytes] = set()
    while len(names) < total:
        for line in Client(**cluster.access).watch(f"{API}/{plural}", version):
            if f'{ANNOTATION}":"'.encode() in line:
                names.update(re.findall(rb'"name":"(obj-\d+)"', line)[:1])
                if len(names) == total:
                    return time.time_ns()
        page = cluster.admin.get(f"{API}/{plural}")
        version = page["metadata"]["resourceVersion"]
        names = {
            item["metadata"]["name"].encode() for item in page["items"] if ANNOTATION in item["metadata"]["annotations"]
        }
    return time.time_ns()


def patches(counts: collections.Counter[str], plural: str) -> int:
    return sum(count for key, count in counts.items() if key.split()[1].startswith(plural) and key.startswith("p"))


def percentile(values: Sequence[float], percent: float) -> float:
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * percent / 100))]


def case_import(cluster: Cluster, runner: Runner, scale: dict[str, Any]) -> Metrics:
    """Import and --help, each the median of 5 processes."""
    status = "dict(l.split(':', 1) for l in open('/proc/self/status'))"
    probes = {
        "import": "import json, sys, time; old = len(sys.modules); begin = time.perf_counter(); import kopf; "
        f"wall = time.perf_counter() - begin; s = {status}; print(json.dumps("
        "[wall * 1e3, int(s['VmRSS'].split()[0]) / 1024, len(sys.modules) - old]), file=sys.stderr)",
        "help": "import runpy, sys; sys.argv = ['kopf', '--help']\n"
        "try: runpy.run_module('kopf', run_name='__main__')\nexcept SystemExit: pass\n"
        f"import json, time; s = {status}; print(json.dumps("
        "[time.process_time() * 1e3, int(s['VmHWM'].split()[0]) / 1024]), file=sys.stderr)",
    }
    rows: dict[str, list[list[float]]] = {name: [] for name in probes}
    for name, probe in probes.items():
        for _ in range(5):
            begin = time.perf_counter()
            result = subprocess.run([runner.program, "-c", probe], capture_output=True, check=True, cwd=HERE)
            wall = (time.perf_counter() - begin) * 1e3
            rows[name].append([wall, *json.loads(result.stderr.splitlines()[-1])])
    first, second = ([statistics.median(column) for column in zip(*rows[name], strict=True)] for name in probes)
    return {
        "import ms": first[1],
        "import rss MB": first[2],
        "modules": first[3],
        "help wall ms": second[0],
        "help cpu ms": second[1],
        "help peak MB": second[2],
    }


def case_ready(cluster: Cluster, runner: Runner, scale: dict[str, Any]) -> Metrics:
    """From the start of the process to the first call of a handler."""
    plural, total = cluster.ensure("list1")
    with Operator(cluster, runner, "event", plural, total) as operator:
        seen = operator.wait("seen")["time"]
        cpu, memory = operator.cpu(), operator.memory()
        time.sleep(1)
    counts = operator.requests(operator.began, seen)
    return {
        "ready s": (seen - operator.began) / 1e9,
        "cpu s": cpu,
        "rss MB": memory["rss"],
        "api requests": counts.total(),
    }


def case_kinds(cluster: Cluster, runner: Runner, scale: dict[str, Any], kinds: int) -> Metrics:
    """One object of each of many kinds, all of them handled; it is as case_ready otherwise."""
    plurals = [f"kind{chr(ord('a') + number)}1" for number in range(kinds)]
    for plural in plurals:
        cluster.ensure(plural)
    with Operator(cluster, runner, "kinds", ",".join(plurals), 1) as operator:
        seen = operator.wait("seen")["time"]
        cpu = operator.cpu()
        time.sleep(scale["settle"])
        memory = operator.memory()
    counts = operator.requests(operator.began, seen)
    return {
        "ready s": (seen - operator.began) / 1e9,
        "cpu s": cpu,
        "settled rss MB": memory["rss"],
        "api requests": counts.total(),
    }


def case_namespaces(cluster: Cluster, runner: Runner, scale: dict[str, Any], total: int) -> Metrics:
    """One object in each of many namespaces that are served by a pattern; then, events of the namespaces."""
    plural = cluster.ensure_spread(total)
    prefix = f"spread-{total}"
    with Operator(cluster, runner, "event", plural, total, arguments=[f"--namespace={prefix}-*"]) as operator:
        begin = time.time_ns()
        seen = operator.wait("seen", timeout=600)["time"]
        cpu = operator.cpu() - operator.base_cpu
        time.sleep(scale["settle"])
        settled = operator.cpu()
        cluster.spread(label_namespaces, plural, range(total), prefix, begin)
        time.sleep(scale["settle"])  # nothing tells when the operator has seen them, so the time is the same for all
        events = operator.cpu() - settled
        memory = operator.memory()
    counts = operator.requests(operator.began, seen)
    return {
        "ready s": (seen - begin) / 1e9,
        "cpu s": cpu,
        "cpu ms/namespace": cpu / total * 1e3,
        "cpu ms/event of namespaces": events / total * 1e3,
        "settled rss KB/namespace": (memory["rss"] - operator.base_rss) * 1024 / total,
        "api requests/namespace": counts.total() / total,
    }


def case_ingest(
    cluster: Cluster, runner: Runner, scale: dict[str, Any], total: int, operator: str = 'event'
) -> Metrics:
    """The first look at many objects that exist already."""
    cluster.ensure("list1")
    plural, total = cluster.ensure(f"list{total}")
    with Operator(cluster, runner, operator, plural, total) as process:
        begin = time.time_ns()
        seen = process.wait("seen", timeout=600)["time"]
        cpu = process.cpu() - process.base_cpu
        time.sleep(scale["settle"])
        settled = process.cpu() - process.base_cpu
        memory = process.memory()
    return {
        "wall s": (seen - begin) / 1e9,
        "cpu s": cpu,
        "cpu settled s": settled,
        "cpu us/object": settled / total * 1e6,
        "peak rss MB": memory["peak"],
        "settled rss MB": memory["rss"],
        "settled pss MB": memory["pss"],
        "settled rss KB/object": (memory["rss"] - process.base_rss) * 1024 / total,
    }


def case_create(cluster: Cluster, runner: Runner, scale: dict[str, Any], total: int, options: str = '') -> Metrics:
    """Handle the creation of objects that exist already but were never handled."""
    plural, total, version = cluster.reset(f"work{total}")
    with Operator(cluster, runner, "create", plural, total, options) as operator:
        begin = time.time_ns()
        done = landed(cluster, plural, version, total)
        cpu = operator.cpu() - operator.base_cpu
        memory = operator.memory()
        time.sleep(2)
    counts = operator.requests(operator.began, time.time_ns())
    return {
        "wall s": (done - begin) / 1e9,
        "objects/s ↑": total / (done - begin) * 1e9,
        "cpu ms/object": cpu / total * 1e3,
        "peak rss MB": memory["peak"],
        "patches/object": patches(counts, plural) / total,
        "events posted/object": counts["create events"] / total,
    }


def case_latency(cluster: Cluster, runner: Runner, scale: dict[str, Any]) -> Metrics:
    """One change at a time of one object."""
    plural, total, version = cluster.reset("work1")
    stream = Client(**cluster.access).watch(f"{API}/{plural}", version)
    handled: queue.Queue[tuple[int, int]] = queue.Queue()

    def follow() -> None:
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            for line in stream:
                essence = json.loads(line)["object"]["metadata"].get("annotations", {}).get(ANNOTATION)
                if essence:
                    handled.put((json.loads(essence)["spec"]["round"], time.time_ns()))

    threading.Thread(target=follow, daemon=True).start()
    runs, lands = [], []
    with Operator(cluster, runner, "update", plural, total, "trace") as operator:
        handled.get(timeout=60)
        time.sleep(2)
        cpu = operator.cpu()
        for number in range(1, scale["latency"] + 1):
            cluster.admin.request("PATCH", path(plural, 0), {"spec": {"round": number}}, "application/merge-patch+json")
            answer = time.time_ns()
            while (report := operator.wait("run", timeout=30))["round"] != number:
                pass
            runs.append((report["time"] - answer) / 1e6)
            while (event := handled.get(timeout=30))[0] != number:
                pass
            lands.append((event[1] - answer) / 1e6)
            time.sleep(0.02)
        cpu = operator.cpu() - cpu
    return {
        "handler p50 ms": statistics.median(runs),
        "handler p99 ms": percentile(runs, 99),
        "patched p50 ms": statistics.median(lands),
        "patched p99 ms": percentile(lands, 99),
        "cpu ms/change": cpu / len(runs) * 1e3,
    }


def case_churn(cluster: Cluster, runner: Runner, scale: dict[str, Any], operator: str) -> Metrics:
    """Writers change 300 objects as fast as the server lets them."""
    plural, total, version = cluster.reset("work300")
    with Operator(cluster, runner, operator, plural, total) as process:
        if operator == "event":
            process.wait("seen")
        else:
            landed(cluster, plural, version, total)
        time.sleep(2)
        cpu, begin = process.cpu(), time.time_ns()
        changes = sum(cluster.spread(churn_objects, plural, range(total), scale["churn"]))
        end = time.time_ns()
        final = process.wait("final")
        cpu = process.cpu() - cpu
        memory = process.memory()
    calls = final["count"] - (total if operator == "event" else 0)
    counts = process.requests(begin, time.time_ns())
    return {
        "writes/s": changes / (end - begin) * 1e9,
        "calls/s ↑": calls / (final["time"] - begin) * 1e9,
        "lag s": max(0.0, (final["time"] - end) / 1e9),
        "cpu us/write": cpu / changes * 1e6,
        "cpu us/call": cpu / calls * 1e6,
        "calls/write": calls / changes,
        "patches/call": patches(counts, plural) / calls,
        "peak rss MB": memory["peak"],
    }


def case_reconcile(cluster: Cluster, runner: Runner, scale: dict[str, Any], total: int) -> Metrics:
    """One change of each of many objects, and the run of its level-triggered handler."""
    plural, total, _ = cluster.reset(f"work{total}")
    with Operator(cluster, runner, "reconcile", plural, total) as process:
        process.wait("seen")
        time.sleep(2)
        cpu, begin = process.cpu(), time.time_ns()
        cluster.spread(finish_objects, plural, range(total))
        final = process.wait("final")
        cpu = process.cpu() - cpu
        memory = process.memory()
    return {
        "runs/s ↑": total / (final["time"] - begin) * 1e9,
        "cpu us/run": cpu / total * 1e6,
        "runs/change": (final["count"] - total) / total,
        "settled rss KB/object": (memory["rss"] - process.base_rss) * 1024 / total,
    }


def case_children(cluster: Cluster, runner: Runner, scale: dict[str, Any], total: int) -> Metrics:
    """Objects with 5 children each: all are applied, then nothing is to be done, then one of each is deleted."""
    plural, total, _ = cluster.reset(f"work{total}")
    cluster.spread(delete_children, plural, range(total), MORE_CHILDREN)
    with Operator(cluster, runner, "children", plural, total) as process:
        seen = process.wait("seen")["time"]
        first = process.cpu() - process.base_cpu
        time.sleep(scale["settle"])
        memory, begin, cpu = process.memory(), time.time_ns(), process.cpu()
        cluster.spread(finish_objects, plural, range(total))
        final = process.wait("final")["time"]
        second = process.cpu() - cpu
        time.sleep(2)
        writes = count_writes(process, begin)
        drifted, cpu = time.time_ns(), process.cpu()
        cluster.spread(delete_children, plural, range(total), 1)
        cluster.spread(await_children, plural, range(total))
        repaired, drift = time.time_ns(), process.cpu() - cpu
        repairs = count_writes(process, drifted)
    with Operator(cluster, runner, "children", plural, total, BENCH_CHILDREN=str(MORE_CHILDREN)) as larger:
        larger.wait("seen")
        time.sleep(scale["settle"])
        grown = larger.memory()["rss"] - memory["rss"]
    cluster.spread(delete_children, plural, range(total), MORE_CHILDREN)
    count = total * CHILDREN
    return {
        "first pass s": (seen - process.began) / 1e9,
        "first pass cpu ms/child": first / count * 1e3,
        "settled rss KB/child": (memory["rss"] - process.base_rss) * 1024 / count,
        "slope of rss KB/child": grown * 1024 / (total * (MORE_CHILDREN - CHILDREN)),
        "second pass cpu us/object": second / total * 1e6,
        "second pass s": (final - begin) / 1e9,
        "second pass writes": writes,
        "drift s": (repaired - drifted) / 1e9,
        "drift cpu ms/child": drift / total * 1e3,
        "drift writes/child": repairs / total,
    }


def count_writes(process: Operator, since: int) -> int:
    """Count the writes of children by the operator."""
    counts = process.requests(since, time.time_ns())
    return sum(count for key, count in counts.items() if key.split()[1] == "configmaps" and key.split()[0] in WRITES)


def case_daemons(cluster: Cluster, runner: Runner, scale: dict[str, Any], operator: str) -> Metrics:
    """A daemon or a timer for every object."""
    plural, total, _ = cluster.reset(f"work{scale['daemons']}")
    with Operator(cluster, runner, operator, plural, total, BENCH_WINDOW=str(scale["window"])) as process:
        begin = time.time_ns()
        running = process.wait("running")["time"]
        launch = process.cpu() - process.base_cpu
        time.sleep(scale["settle"])
        cpu = process.cpu()
        time.sleep(scale["window"])
        cpu = process.cpu() - cpu
        memory = process.memory()
        result = {
            "all running s": (running - begin) / 1e9,
            "start cpu ms/object": launch / total * 1e3,
            "steady cpu %": cpu / scale["window"] * 100,
            "rss KB/object": (memory["rss"] - process.base_rss) * 1024 / total,
            "peak rss MB": memory["peak"],
        }
        if operator == "timer":
            ticks = process.wait("ticks", timeout=60)
            result |= {
                "cpu us/tick": cpu / ticks["done"] * 1e6,
                "interval p50 s": ticks["median"],
                "interval p99 s": ticks["p99"],
                "missed ticks %": max(0.0, ticks["missed"]) * 100,
            }
        return result | {"shutdown s": process.stop()}


def case_webhook(cluster: Cluster, runner: Runner, scale: dict[str, Any]) -> Metrics:
    """Validating requests over 4 connections."""
    plural, total = cluster.ensure("hook1")
    cert, key = str(cluster.directory / "hook.crt"), str(cluster.directory / "hook.key")
    if not os.path.exists(cert):
        subprocess.run(
            [
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-days",
                "30",
                "-subj",
                "/CN=hook",
                "-addext",
                "subjectAltName=IP:127.0.0.1",
                "-keyout",
                key,
                "-out",
                cert,
            ],
            check=True,
            capture_output=True,
        )
    review = json.dumps(
        {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
                "operation": "CREATE",
                "kind": {"group": GROUP, "version": "v1", "kind": plural.title()},
                "resource": {"group": GROUP, "version": "v1", "resource": plural},
                "requestKind": {"group": GROUP, "version": "v1", "kind": plural.title()},
                "requestResource": {"group": GROUP, "version": "v1", "resource": plural},
                "name": "obj-00000",
                "namespace": "bench-0",
                "userInfo": {"username": "admin", "groups": ["a"]},
                "object": body(plural, 0),
                "oldObject": None,
                "options": None,
                "dryRun": False,
            },
        }
    ).encode()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    try:
        with Operator(
            cluster, runner, "webhook", plural, total, BENCH_PORT=str(port), BENCH_CERT=cert, BENCH_KEY=key
        ) as operator:
            for _ in range(100):
                time.sleep(0.1)
                status, data = cluster.admin.request("GET", f"{HOOKS}/{GROUP}", fine=[404])
                if status == 200 and (hooks := json.loads(data).get("webhooks")):
                    break
            else:
                raise RuntimeError("the webhook configuration was not written")
            time.sleep(1)
            cpu = operator.cpu()
            args = (hooks[0]["clientConfig"]["url"], cert, review, scale["webhook"])
            batches = cluster.pool.starmap(post_reviews, [args] * WRITERS, chunksize=1)
            times = [latency for batch in batches for latency in batch]
            cpu = operator.cpu() - cpu
    finally:
        cluster.admin.request("DELETE", f"{HOOKS}/{GROUP}", fine=[404])
    return {
        "requests/s ↑": len(times) / scale["webhook"],
        "p50 ms": statistics.median(times) * 1e3,
        "p99 ms": percentile(times, 99) * 1e3,
        "cpu us/request": cpu / len(times) * 1e6,
    }


def case_idle(cluster: Cluster, runner: Runner, scale: dict[str, Any]) -> Metrics:
    """Nothing happens with 1000 objects."""
    plural, total = cluster.ensure("list1000")
    with Operator(cluster, runner, "event", plural, total) as operator:
        operator.wait("seen")
        time.sleep(scale["settle"])
        cpu, begin = operator.cpu(), time.time_ns()
        time.sleep(scale["idle"])
        cpu, end = operator.cpu() - cpu, time.time_ns()
        memory = operator.memory()
    minutes = scale["idle"] / 60
    return {
        "cpu ms/min": cpu * 1e3 / minutes,
        "api requests/min": operator.requests(begin, end).total() / minutes,
        "rss MB": memory["rss"],
        "pss MB": memory["pss"],
    }
