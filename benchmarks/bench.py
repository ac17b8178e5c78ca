#!/usr/bin/env python3
"""Side-by-side benchmarks of operator frameworks with the API of kopf. See README.md."""

import argparse
import collections
import contextlib
import dataclasses
import datetime
import json
import multiprocessing
import os
import pathlib
import queue
import re
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

import results as reporting

HERE = pathlib.Path(__file__).resolve().parent
GROUP = "bench.kopf.dev"
API = f"/apis/{GROUP}/v1"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
ANNOTATION = "kopf.zalando.org/last-handled-configuration"
WRITERS = 4
SLOW = ["index:N=10000", "index:N=30000"]  # quadratic in kopf 1.45: minutes, and half an hour

SCALES = {
    "small": dict(
        ingest=[1000, 10000],
        index=[1000],
        kinds=[],
        namespaces=[100],
        settle=6,
        create=[300],
        variants=["finalizer"],
        latency=50,
        churn=5,
        daemons=500,
        window=6,
        sync=100,
        webhook=4,
        idle=10,
    ),
    "full": dict(
        ingest=[1000, 10000, 30000],
        index=[1000, 3000, 10000, 30000],
        kinds=[1, 20],
        namespaces=[75, 300, 1000],
        settle=6,
        create=[500, 2000],
        variants=["noposting", "logposting", "finalizer", "handlers=5", "handlers=10"],
        latency=100,
        churn=15,
        daemons=2000,
        window=20,
        sync=200,
        webhook=10,
        idle=30,
    ),
}


# ---------------------------------------------------------------- HTTP and the cluster


class Client:
    """A blocking HTTP/1.1 keep-alive client: no more than the benchmark needs."""

    def __init__(self, base, cafile, token=""):
        self.url = urllib.parse.urlsplit(base)
        self.context = ssl.create_default_context(cafile=cafile)
        self.context.check_hostname = False
        self.head = f"Host: {self.url.netloc}\r\nAccept: application/json\r\nAuthorization: Bearer {token}\r\n"
        self.connect()

    def connect(self):
        raw = socket.create_connection((self.url.hostname, self.url.port), timeout=120)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = self.context.wrap_socket(raw, server_hostname=self.url.hostname)
        self.file = self.socket.makefile("rb", 1 << 16)

    def send(self, method, path, body=None, kind="application/json"):
        """Send a request; return the status and an iterator over the pieces of the response's body."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\n{self.head}Content-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n"
        try:
            self.socket.sendall(head.encode() + data)
            first = self.file.readline()
        except (ConnectionError, ssl.SSLError):
            first = b""
        if not first:  # the server closes connections that were idle for minutes
            self.connect()
            self.socket.sendall(head.encode() + data)
            first = self.file.readline()
        status = int(first.split()[1])
        headers = {}
        while line := self.file.readline().strip():
            name, _, value = line.partition(b":")
            headers[name.lower()] = value.strip()
        return status, self.pieces(headers)

    def pieces(self, headers):
        if b"chunked" in headers.get(b"transfer-encoding", b""):
            while size := int(self.file.readline(), 16):
                yield self.file.read(size)
                self.file.readline()
            self.file.readline()
        else:
            yield self.file.read(int(headers.get(b"content-length", b"0")))

    def request(self, method, path, body=None, kind="application/json", fine=()):
        status, pieces = self.send(method, path, body, kind)
        data = b"".join(pieces)
        if status >= 400 and status not in fine:
            raise RuntimeError(f"{method} {path}: {status} {data[:300]!r}")
        return status, data

    def get(self, path):
        return json.loads(self.request("GET", path)[1])

    def watch(self, path, version):
        """The lines of a watch stream, unparsed."""
        status, pieces = self.send("GET", f"{path}?watch=true&resourceVersion={version}")
        if status != 200:
            raise RuntimeError(f"watch of {path}: {status}")
        rest = b""
        for piece in pieces:
            *lines, rest = (rest + piece).split(b"\n")
            yield from lines


class Cluster:
    def __init__(self, directory, port):
        self.directory = pathlib.Path(directory)
        env = {**os.environ, "CLUSTER_PORT": str(port), "APISERVER_ARGS": "--audit-log-maxsize=16384"}
        subprocess.run(
            [HERE.parent / "tests/cluster/cluster", "up", directory],
            env=env,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        config = json.loads((self.directory / "kubeconfig").read_text())
        self.access = dict(
            base=config["clusters"][0]["cluster"]["server"],
            cafile=config["clusters"][0]["cluster"]["certificate-authority"],
            token="admin",
        )
        self.admin = Client(**self.access)
        self.pool = multiprocessing.Pool(WRITERS, initializer=connect, initargs=[self.access])

    def spread(self, function, plural, numbers, *args):
        """Call the function in all writers at once, each with its own part of the objects."""
        parts = [(plural, numbers[i::WRITERS], *args) for i in range(WRITERS)]
        return self.pool.starmap(function, parts, chunksize=1)

    def ensure(self, plural):
        """Make sure that the resource exists and is full: its name ends with the number of its objects."""
        total = int(re.search(r"\d+$", plural)[0])
        if self.admin.request("GET", f"{CRDS}/{plural}.{GROUP}", fine=[404])[0] == 404:
            for number in range(WRITERS):
                namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"bench-{number}"}}
                self.admin.request("POST", "/api/v1/namespaces", namespace, fine=[409])
            self.admin.request("POST", CRDS, definition(plural))
            while self.admin.request("GET", f"{API}/{plural}?limit=1", fine=[404])[0] == 404:
                time.sleep(0.1)
            time.sleep(1)
        page = self.admin.get(f"{API}/{plural}?limit=1")
        if len(page["items"]) + page["metadata"].get("remainingItemCount", 0) < total:
            self.spread(create_objects, plural, range(total))
        return plural, total

    def ensure_spread(self, total):
        """Make sure that there are so many namespaces, with an object in each; return the resource."""
        plural = "spread1"
        self.ensure(plural)
        self.spread(create_namespaces, plural, range(total), f"spread-{total}")
        return plural

    def reset(self, plural):
        """As ensure(), and undo what operators and writers changed; also return the resource version."""
        plural, total = self.ensure(plural)
        dirty = [
            int(item["metadata"]["name"][4:])
            for item in self.admin.get(f"{API}/{plural}")["items"]
            if any("kopf" in key for key in [*item["metadata"]["annotations"], *item.get("status", {})])
            or item["metadata"].get("finalizers")
            or item["spec"]["round"]
        ]
        self.spread(clean_objects, plural, dirty)
        return plural, total, self.admin.get(f"{API}/{plural}?limit=1")["metadata"]["resourceVersion"]

    def requests(self, offset, since, until):
        """Count the operator's API requests in a period, by verb and resource, from the audit log."""
        stamps = [datetime.datetime.fromtimestamp(t / 1e9, datetime.UTC).strftime("%FT%T.%fZ") for t in (since, until)]
        counts = collections.Counter()
        with open(self.directory / "audit.log", "rb") as file:
            file.seek(offset)
            for line in file:
                if b'"username":"operator"' in line:
                    entry = json.loads(line)
                    if stamps[0] <= entry["requestReceivedTimestamp"] <= stamps[1]:
                        counts[f"{entry['verb']} {entry.get('objectRef', {}).get('resource', '-')}"] += 1
        return counts

    def audit_size(self):
        path = self.directory / "audit.log"
        return path.stat().st_size if path.exists() else 0


def definition(plural):
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": plural, "kind": plural.title()},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def body(plural, number):
    """An object of about 1.5 KB together with what the server adds."""
    name = f"obj-{number:05}"
    env = [{"name": f"SETTING_{i}", "value": f"value-{number}-{i}"} for i in range(3)]
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": plural.title(),
        "metadata": {
            "name": name,
            "labels": {
                "app.kubernetes.io/name": "bench",
                "app.kubernetes.io/instance": name,
                "app.kubernetes.io/managed-by": "bench",
                "team": f"team-{number % 7}",
            },
            "annotations": {
                "example.com/owner": f"owner-{number}@example.com",
                "example.com/revision": f"{number:040x}",
            },
        },
        "spec": {
            "round": 0,
            "replicas": number % 5,
            "image": f"registry.example.com/team/app:{number}",
            "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
            "env": env,
            "schedule": "*/5 * * * *",
            "suspend": False,
        },
    }


def path(plural, number):
    return f"{API}/namespaces/bench-{number % WRITERS}/{plural}/obj-{number:05}"


# ---------------------------------------------------------------- the writers, each in its own process

writer = None


def connect(access):
    global writer
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    writer = Client(**access)


def patch(plural, number, change):
    return writer.request("PATCH", path(plural, number), change, "application/merge-patch+json")


def create_objects(plural, numbers):
    for number in numbers:
        writer.request("POST", path(plural, number).rpartition("/")[0], body(plural, number), fine=[409])


def create_namespaces(plural, numbers, prefix):
    for number in numbers:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"{prefix}-{number:04}"}}
        writer.request("POST", "/api/v1/namespaces", namespace, fine=[409])
        target = f"{API}/namespaces/{prefix}-{number:04}/{plural}"
        writer.request("POST", target, body(plural, number), fine=[409])


def label_namespaces(plural, numbers, prefix, value):
    for number in numbers:
        writer.request(
            "PATCH",
            f"/api/v1/namespaces/{prefix}-{number:04}",
            {"metadata": {"labels": {"bench": str(value)}}},
            "application/merge-patch+json",
        )


def clean_objects(plural, numbers):
    for number in numbers:
        annotations = json.loads(writer.request("GET", path(plural, number))[1])["metadata"]["annotations"]
        patch(
            plural,
            number,
            {
                "spec": {"round": 0},
                "metadata": {"finalizers": None, "annotations": {key: None for key in annotations if "kopf" in key}},
            },
        )


def churn_objects(plural, numbers, seconds):
    """Change the objects as fast as possible, then mark each as final; return how many changes were made."""
    end, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        rounds += 1
        for number in numbers:
            patch(plural, number, {"spec": {"round": rounds}})
    for number in numbers:
        patch(plural, number, {"spec": {"round": -1}})
    return (rounds + 1) * len(numbers)


def post_reviews(url, cafile, data, seconds):
    """Post the same admission review over one connection; return the latencies."""
    client, target, latencies = Client(url, cafile), urllib.parse.urlsplit(url).path, []
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        _, answer = client.request("POST", target, data)
        latencies.append(time.perf_counter() - begin)
    assert json.loads(answer)["response"]["allowed"] is True
    return latencies


# ---------------------------------------------------------------- the operator's process


@dataclasses.dataclass
class Runner:
    name: str
    kind: str  # kopf, go or limit
    program: str
    options: str = ""

    @classmethod
    def parse(cls, kind, text):
        name, _, program = text.partition("=")
        program, _, options = program.partition("+")
        return cls(name, kind, program, options)

    def command(self, operator, scope="--all-namespaces"):
        return {
            "kopf": [self.program, "-m", "kopf", "run", scope, f"{HERE}/operators/{operator}.py"],
            "go": [self.program, operator],
            "limit": [self.program, f"{HERE}/operators/limit.py", operator],
        }[self.kind]


class Operator:
    """An operator under test. It reports events as JSON lines through a pipe."""

    def __init__(self, cluster, runner, operator, plural, total, options="", *, scope="--all-namespaces", **env):
        self.cluster, self.offset = cluster, cluster.audit_size()
        read, write = os.pipe()
        env = {
            **os.environ,
            "KUBECONFIG": str(cluster.directory / "kubeconfig-operator"),
            "BENCH_FD": str(write),
            "BENCH_PLURAL": plural,
            "BENCH_N": str(total),
            "BENCH_OPTIONS": f"{options},{runner.options}",
            "PYTHONPATH": str(HERE / "operators"),
            "PYTHONDONTWRITEBYTECODE": "1",
            **env,
        }
        self.log = cluster.directory / "operator.log"
        self.began = time.time_ns()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                runner.command(operator, scope),
                pass_fds=[write],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=HERE,
            )  # not the repository: its package would be taken
        os.close(write)
        self.reports = queue.Queue()
        threading.Thread(target=self._read, args=[read], daemon=True).start()
        self.wait("start")
        self.base_cpu, self.base_rss = self.cpu(), self.memory()["rss"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def _read(self, fd):
        with open(fd) as file:
            for line in file:
                self.reports.put(json.loads(line))
        self.reports.put(None)

    def wait(self, event, timeout=300):
        """Wait for a report; earlier ones of other kinds are dropped."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            with contextlib.suppress(queue.Empty):
                report = self.reports.get(timeout=max(0.0, end - time.monotonic()))
                if report is None:
                    break
                if report["event"] == event:
                    return report
        tail = self.log.read_bytes()[-1500:].decode(errors="replace")
        self.stop()
        raise RuntimeError(f"no report {event!r} from the operator; its log ends with:\n{tail}")

    def cpu(self):
        """CPU seconds of the process, all threads, user and system."""
        return time.clock_gettime(~self.process.pid << 3 | 2)

    def memory(self):
        """Megabytes."""
        proc = f"/proc/{self.process.pid}/"
        text = pathlib.Path(proc, "status").read_text() + pathlib.Path(proc, "smaps_rollup").read_text()
        return {
            name: int(re.search(rf"^{key}:\s+(\d+)", text, re.M)[1]) / 1024
            for name, key in [("rss", "VmRSS"), ("peak", "VmHWM"), ("pss", "Pss")]
        }

    def stop(self):
        """Stop it as Kubernetes does; return how long that took."""
        begin = time.monotonic()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return time.monotonic() - begin

    def requests(self, since, until):
        """API requests in a period; to be called after stop(), as watches are logged when they end."""
        time.sleep(0.5)
        return self.cluster.requests(self.offset, since, until)


def landed(cluster, plural, version, total):
    """Wait until all objects have the annotation; return the time. The server may end a slow watch: then list."""
    names = set()
    while len(names) < total:
        for line in Client(**cluster.access).watch(f"{API}/{plural}", version):
            if f'{ANNOTATION}":"'.encode() in line:
                names.add(re.search(rb'"name":"(obj-\d+)"', line)[1])
                if len(names) == total:
                    return time.time_ns()
        page = cluster.admin.get(f"{API}/{plural}")
        version = page["metadata"]["resourceVersion"]
        names = {
            item["metadata"]["name"].encode() for item in page["items"] if ANNOTATION in item["metadata"]["annotations"]
        }
    return time.time_ns()


def patches(counts, plural):
    return sum(count for key, count in counts.items() if key.split()[1].startswith(plural) and key.startswith("p"))


def percentile(values, percent):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * percent / 100))]


# ---------------------------------------------------------------- the cases


def case_import(cluster, runner, scale):
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
    rows = {name: [] for name in probes}
    for name, probe in probes.items():
        for _ in range(5):
            begin = time.perf_counter()
            result = subprocess.run([runner.program, "-c", probe], capture_output=True, check=True, cwd=HERE)
            wall = (time.perf_counter() - begin) * 1e3
            rows[name].append([wall, *json.loads(result.stderr.splitlines()[-1])])
    first, second = ([statistics.median(column) for column in zip(*rows[name])] for name in probes)
    return {
        "import ms": first[1],
        "import rss MB": first[2],
        "modules": first[3],
        "help wall ms": second[0],
        "help cpu ms": second[1],
        "help peak MB": second[2],
    }


def case_ready(cluster, runner, scale):
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


def case_kinds(cluster, runner, scale, kinds):
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


def case_namespaces(cluster, runner, scale, total):
    """One object in each of many namespaces that are served by a pattern; then, events of the namespaces."""
    plural = cluster.ensure_spread(total)
    prefix = f"spread-{total}"
    with Operator(cluster, runner, "event", plural, total, scope=f"--namespace={prefix}-*") as operator:
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


def case_ingest(cluster, runner, scale, total, operator="event"):
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


def case_create(cluster, runner, scale, total, options=""):
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


def case_latency(cluster, runner, scale):
    """One change at a time of one object."""
    plural, total, version = cluster.reset("work1")
    stream = Client(**cluster.access).watch(f"{API}/{plural}", version)
    handled = queue.Queue()

    def follow():
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


def case_churn(cluster, runner, scale, operator):
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


def case_daemons(cluster, runner, scale, operator):
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


def case_webhook(cluster, runner, scale):
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
            times = sum(cluster.pool.starmap(post_reviews, [args] * WRITERS, chunksize=1), [])
            cpu = operator.cpu() - cpu
    finally:
        cluster.admin.request("DELETE", f"{HOOKS}/{GROUP}", fine=[404])
    return {
        "requests/s ↑": len(times) / scale["webhook"],
        "p50 ms": statistics.median(times) * 1e3,
        "p99 ms": percentile(times, 99) * 1e3,
        "cpu us/request": cpu / len(times) * 1e6,
    }


def case_idle(cluster, runner, scale):
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


def plan(scale):
    """All measurements as (case, variant, function, its arguments, whether the anchors take part)."""
    yield "import", "", case_import, {}, False
    yield "ready", "", case_ready, {}, True
    for total in scale["ingest"]:
        yield "ingest", f"N={total}", case_ingest, dict(total=total), True
    for kinds in scale["kinds"]:
        yield "kinds", f"K={kinds}", case_kinds, dict(kinds=kinds), False
    for total in scale["namespaces"]:
        yield "namespaces", f"N={total}", case_namespaces, dict(total=total), False
    for total in scale["index"]:
        yield "index", f"N={total}", case_ingest, dict(total=total, operator="index"), False
    for total in scale["create"]:
        yield "create", f"N={total}", case_create, dict(total=total), True
    for options in scale["variants"]:
        yield (
            "create",
            f"{options} N={scale['create'][0]}",
            case_create,
            dict(total=scale["create"][0], options=options),
            False,
        )
    yield "latency", "", case_latency, {}, True
    yield "churn", "on.event", case_churn, dict(operator="event"), True
    yield "churn", "on.update", case_churn, dict(operator="update"), True
    yield "daemons", "daemon", case_daemons, dict(operator="daemon"), False
    yield "daemons", "timer", case_daemons, dict(operator="timer"), False
    yield "sync", f"N={scale['sync']}", case_create, dict(total=scale["sync"], options="sync"), False
    yield "webhook", "", case_webhook, {}, False
    yield "idle", "", case_idle, {}, True


# ---------------------------------------------------------------- the commands


def build_anchor():
    binary = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "kubelab/goanchor"
    binary.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", binary, "."],
        cwd=HERE / "goanchor",
        env={**os.environ, "CGO_ENABLED": "0"},
        check=True,
    )
    return str(binary)


def prepare(args):
    """The runners that are asked for, with the first one as the base, and the cluster."""
    runners = [Runner.parse("kopf", text) for text in args.venv]
    if args.go:
        runners.append(Runner("go", "go", build_anchor()))
    runners += [Runner.parse("limit", text) for text in args.limit]
    return runners, Cluster(args.dir, args.port)


def measure(cluster, runners, scale, *, only=(), repeat=1, slow=False, minutes=float("inf"), done=lambda results: None):
    """Measure the cases, all runners in turns; return the results and the number of failures."""
    results, failures, took = [], 0, collections.Counter()
    end = time.monotonic() + minutes * 60
    for repetition in range(repeat):
        for case, variant, function, arguments, anchors in plan(SCALES[scale]):
            label = f"{case}:{variant}"
            for runner in runners:
                if only and label not in only and case not in only or runner.kind != "kopf" and not anchors:
                    continue
                if label in SLOW and runner is runners[0] and not slow:
                    continue
                begin = time.monotonic()
                if repetition and begin + took[label, runner.name] > end:
                    continue
                try:
                    metrics = function(cluster, runner, SCALES[scale], **arguments)
                except (RuntimeError, OSError, queue.Empty, ValueError) as error:
                    print(f"{case} {variant} {runner.name}: FAILED: {error!s:.2000}", file=sys.stderr)
                    failures += 1
                    continue
                took[label, runner.name] = time.monotonic() - begin
                results.append(dict(case=case, variant=variant, runner=runner.name, repeat=repetition, metrics=metrics))
                shown = ", ".join(f"{name} {reporting.number(value)}" for name, value in metrics.items())
                print(
                    f"{case} {variant} {runner.name}: {shown} [load {os.getloadavg()[0]:.1f}]",
                    file=sys.stderr,
                    flush=True,
                )
                done(results)
    return results, failures


def run(args):
    runners, cluster = prepare(args)
    names = [runner.name for runner in runners]
    output = pathlib.Path(args.json or f"{cluster.directory}-results/{time.strftime('%m%d-%H%M%S')}.json")
    output.parent.mkdir(parents=True, exist_ok=True)
    results, failures = measure(
        cluster,
        runners,
        args.scale,
        only=args.only,
        repeat=args.repeat,
        slow=args.slow,
        minutes=args.minutes,
        done=lambda results: output.write_text(json.dumps(dict(runners=names, results=results))),
    )
    reporting.print_table(results, names)
    print(f"\nJSON: {output}")
    cluster.pool.terminate()
    sys.exit(f"{failures} measurements failed" if failures else 0)


def check(args):
    """Compare with the recorded ratios; what seems to be worse is measured again, together with the base."""
    recorded = {}  # (measurement, metric): (ratio, how much worse it may be: in %)
    for label, metrics in json.loads(args.recorded.read_text()).items():
        for metric, value in metrics.items():
            if not args.only or label in args.only or label.partition(":")[0] in args.only:
                recorded[label, metric] = value if isinstance(value, list) else (value, args.tolerance)
    limits = {key: ratio * (1 + tolerance / 100) for key, (ratio, tolerance) in recorded.items()}
    runners, cluster = prepare(args)
    base, other = (runner.name for runner in runners)
    results, worse, found = [], list(recorded), {}
    for attempt in range(args.attempts):
        labels = sorted({label for label, _ in worse})
        if attempt:
            print(f"Once more: {', '.join(labels)}", file=sys.stderr, flush=True)
        results += measure(cluster, runners, "small", only=labels, repeat=args.repeat)[0]
        found = reporting.ratios(results, base, other)
        worse = [key for key in recorded if found.get(key, float("inf")) > limits[key]]
        if not worse:
            break
    cluster.pool.terminate()
    print("| case | metric | recorded | now | at most | |\n|---|---|---:|---:|---:|---|")
    for label, metric in recorded:
        ratios = recorded[label, metric][0], found.get((label, metric), float("nan")), limits[label, metric]
        texts = [f"×{reporting.number(ratio)}" for ratio in ratios] + ["WORSE" if (label, metric) in worse else ""]
        print(f"| {label} | {metric} |", " | ".join(texts), "|")
    sys.exit(f"{len(worse)} of {len(recorded)} ratios are worse than they may be" if worse else 0)


def show(args):
    """The table of one or more earlier runs."""
    results, runners = reporting.load(args.file)
    (reporting.print_page if args.csv else reporting.print_table)(results, runners)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--venv", action="append", default=[], metavar="NAME=PATH/bin/python[+OPTION,…]")
    shared.add_argument("--limit", action="append", default=[], metavar="NAME=PATH/bin/python[+OPTION,…]")
    shared.add_argument("--go", action="store_true", help="also the client-go anchor")
    shared.add_argument("--repeat", type=int, default=1)
    shared.add_argument(
        "--dir", default=os.path.join(tempfile.gettempdir(), "kubelab", "bench"), help="the cluster; it is left running"
    )
    shared.add_argument("--port", type=int, default=int(os.environ.get("CLUSTER_PORT") or 18443))
    command = commands.add_parser("run", parents=[shared], help="measure and compare")
    command.set_defaults(function=run)
    command.add_argument("--only", nargs="+", default=[], metavar="CASE[:VARIANT]")
    command.add_argument("--scale", choices=SCALES, default="small")
    command.add_argument("--json", help="where to write the results")
    command.add_argument(
        "--minutes",
        type=float,
        default=float("inf"),
        help="begin no more repetitions that would end later; everything is measured once at least",
    )
    command.add_argument(
        "--slow",
        action="store_true",
        help=f"measure {' and '.join(SLOW)} also in the base, where they can take half an hour",
    )
    command = commands.add_parser("check", parents=[shared], help="compare two environments with the recorded ratios")
    command.set_defaults(function=check)
    command.add_argument("--recorded", type=pathlib.Path, default=HERE / "ratios.json")
    command.add_argument("--only", nargs="+", default=[], metavar="CASE[:VARIANT]")
    command.add_argument(
        "--tolerance",
        type=float,
        default=20,
        help="how much worse the ratios may be where nothing is recorded: %% (default: %(default)g)",
    )
    command.add_argument("--attempts", type=int, default=5, help="how often to measure what seems to be worse")
    command = commands.add_parser("show", help="print the table of earlier runs")
    command.set_defaults(function=show)
    command.add_argument("file", nargs="+")
    command.add_argument("--csv", action="store_true", help="print the rows of docs/performance.csv")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the operator is stopped too
    args.function(args)


if __name__ == "__main__":
    main()
