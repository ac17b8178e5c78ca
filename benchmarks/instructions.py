#!/usr/bin/env python3
"""
The instructions that an operator executes for each handled change: without instruments, with metrics, and with traces.

Times of some microseconds depend on what else the machine does, and so do differences of a few per cent. The number of
instructions does not: Valgrind counts them. The operator is one of `operators/`, in a process of its own, against the
sandbox, which is not counted. It is frozen while its objects are changed, so it handles the same changes in all
measurements. The start is not counted.

What remains is how objects lie in memory, e.g. in the hash tables of context variables: this differs between programs
by up to half a per cent, and is evened out by several measurements with other seeds of hashes.
"""

import argparse
import contextlib
import http.server
import json
import os
import pathlib
import queue
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

from objects import body, definition
from operators_under_test import end

from kopf.testing import Sandbox

HERE = pathlib.Path(__file__).resolve().parent
PLURAL = "list1"
UNSAMPLED, SAMPLED, MADE = "traces, none sampled", "traces, all sampled", "traces, all sampled, not exported"
VARIANTS: dict[str, tuple[str, dict[str, str]]] = {
    "off": ("", {}),
    "metrics": ("metrics", {}),
    UNSAMPLED: ("tracing", {"OTEL_TRACES_SAMPLER_ARG": "0"}),
    # Not 1: only below it, the sampling is decided early.
    SAMPLED: ("tracing", {"OTEL_TRACES_SAMPLER_ARG": "0.999999"}),
    MADE: ("tracing", {"OTEL_TRACES_SAMPLER_ARG": "0.999999", "OTEL_TRACES_EXPORTER": "none"}),
}
NOT_EXPORTED = "traces of 1 %, not exported"
SHARE = 0.01
"""The share of sampled traces in production. Why not measured as such? Each run would have another number of them."""

LIMITS = {
    "event": {"metrics": 1.025, NOT_EXPORTED: 1.025, "traces of 1 %": 1.035},
    "update": {"metrics": 1.025, "traces of 1 %": 1.04},
}
"""
The highest ratios to the operator without instruments: the measured ones, and what programs differ by at random.

For updates, 1.012 and 1.029 were measured with 100 objects; for raw events, 1.018, 1.017 and 1.028. Lower the limits
after an improvement.

Why also without the export? For raw events, more than half of the difference is the exporter of OpenTelemetry, which no
framework can make faster: what the framework can do is seen better without it.
"""

REPETITIONS = 3
"""How often the same operator is measured: on a busy machine, its event loop can need more iterations."""

QUIET = 0.6
"""How long the operator must have done nothing until it is at rest (in seconds)."""

EXPORT_INTERVAL = 5.0
"""How often spans are exported by default (in seconds): the last ones are exported that long after the changes."""


class Receiver(http.server.BaseHTTPRequestHandler):
    """Receives the exported spans, and forgets them."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def receiving() -> Iterator[str]:
    """Serve a receiver of spans; its URL is the result."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class CountedOperator:
    """An operator whose instructions are counted."""

    def __init__(self, sandbox: Sandbox, folder: pathlib.Path, operator: str, env: dict[str, str]) -> None:
        self._sandbox, self._folder = sandbox, folder
        is_exporting = env.get("OTEL_TRACES_SAMPLER_ARG", "0") != "0" and "OTEL_TRACES_EXPORTER" not in env
        self._quiet = EXPORT_INTERVAL + 1 if is_exporting else QUIET
        read, write = os.pipe()
        counting = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/counts"]
        command = [sys.executable, "-m", "kopf", "run", "--all-namespaces", f"{HERE}/operators/{operator}.py"]
        self.log = folder / "operator.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*counting, *command],
                pass_fds=[write],
                env=os.environ | {"BENCH_FD": str(write), "PYTHONPATH": f"{HERE}/operators"} | env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
            )
        os.close(write)
        self._reports: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=self._read, args=[read], daemon=True).start()

    def __enter__(self) -> 'CountedOperator':
        return self

    def __exit__(self, *_: object) -> None:
        end(self.process)

    def _read(self, fd: int) -> None:
        with open(fd) as file:
            for line in file:
                self._reports.put(json.loads(line)["event"])
        self._reports.put(None)

    def wait(self, event: str) -> None:
        """Wait for a report of the operator."""
        while (report := self._reports.get(timeout=600)) != event:
            if report is None:
                raise RuntimeError(f"The operator has ended:\n{self.log.read_text(errors='replace')[-2000:]}")

    def rest(self) -> None:
        """Wait until the operator neither runs nor waits for the processor, and makes no requests."""
        quiet, before = 0.0, None
        while quiet < self._quiet:
            time.sleep(0.05)
            tasks = pathlib.Path(f"/proc/{self.process.pid}/task").iterdir()
            stats = [pathlib.Path(task, "stat").read_text().rpartition(")")[2].split() for task in tasks]
            # The times in user mode and in the system are in hundredths of a second.
            now = sum(int(stat[11]) + int(stat[12]) for stat in stats), len(self._sandbox.requests)
            is_quiet = now == before and all(stat[0] == "S" for stat in stats)
            quiet, before = quiet + 0.05 if is_quiet else 0.0, now

    def change(self, total: int, mark: int) -> None:
        """Change each object once, and let the operator handle the changes."""
        self.process.send_signal(signal.SIGSTOP)
        for number in range(total):
            self._sandbox.patch(PLURAL, f"obj-{number:05}", {"spec": {"round": mark}})
        self.process.send_signal(signal.SIGCONT)
        if mark == -1:
            self.wait("final")
        self.rest()

    def command(self, *words: str) -> None:
        """Send a command to Valgrind."""
        subprocess.run(["vgdb", f"--pid={self.process.pid}", *words], check=True, capture_output=True)

    def count(self, total: int, mark: int) -> float:
        """Return the lowest number of instructions for each of two changes of all objects, of several measurements."""
        return min(self._count_once(total, mark + number) for number in range(REPETITIONS))

    def _count_once(self, total: int, mark: int) -> float:
        self.command("zero")
        self.change(total, mark)
        self.change(total, -1)
        self.command("dump")
        dump = max(self._folder.glob("counts.*"), key=lambda path: int(path.suffix[1:]))
        return int(re.findall(r"^(?:totals|summary): (\d+)", dump.read_text(), re.MULTILINE)[0]) / (2 * total)


def measure(operator: str, variant: str, total: int, seed: int) -> float:
    """Return the number of instructions for each change."""
    options, env = VARIANTS[variant]
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sandbox = stack.enter_context(Sandbox())
        sandbox.apply(definition(PLURAL))
        for number in range(total):
            content = body(PLURAL, number)
            sandbox.apply({**content, "metadata": {**content["metadata"], "namespace": "default"}})
        env = {
            # Without the garbage collector, because a full collection within a measurement would be 1 % of it.
            "BENCH_OPTIONS": f"{options},nogc",
            "BENCH_PLURAL": PLURAL,
            "BENCH_N": str(total),
            "KUBECONFIG": str(sandbox.kubeconfig),
            "OTEL_EXPORTER_OTLP_ENDPOINT": stack.enter_context(receiving()),
            "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": str(seed),
            **env,
        }
        counted = stack.enter_context(CountedOperator(sandbox, folder, operator, env))
        counted.wait("start")
        if operator == "event":
            counted.wait("seen")
        counted.rest()
        for mark in (1, -1):  # for the caches
            counted.change(total, mark)
        counted.command("instrumentation", "on")
        return counted.count(total, 2)


def report(operator: str, total: int, seeds: int) -> dict[str, float]:
    """Measure all variants that have limits, print the table, and return the ratios."""
    shares = {"traces of 1 %": SAMPLED, NOT_EXPORTED: MADE}
    unlimited = {sampled for share, sampled in shares.items() if share not in LIMITS[operator]}
    counts: dict[str, list[float]] = {variant: [] for variant in VARIANTS if variant not in unlimited}
    for seed in range(seeds):
        for variant in counts:
            counts[variant].append(measure(operator, variant, total, seed))
            print(f"{operator}: {variant}, seed {seed}: {counts[variant][-1]:,.0f}", file=sys.stderr, flush=True)
    means = {variant: statistics.fmean(values) for variant, values in counts.items()}
    for share, sampled in shares.items():
        if sampled in means:
            means[share] = (1 - SHARE) * means[UNSAMPLED] + SHARE * means[sampled]
    ratios = {variant: mean / means["off"] for variant, mean in means.items()}
    print(f"\non.{operator}: instructions for each change")
    for variant, mean in means.items():
        print(f"  {variant:34} {mean:12,.0f} {ratios[variant]:8.4f}")
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operators", nargs="+", default=list(LIMITS), choices=list(LIMITS))
    parser.add_argument("--objects", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--check", action="store_true", help="fail if a ratio is above its limit")
    arguments = parser.parse_args()
    failures = []
    for operator in arguments.operators:
        ratios = report(operator, arguments.objects, arguments.seeds)
        failures += [
            f"on.{operator} with {variant}: {ratios[variant]:.4f} is above {limit}"
            for variant, limit in LIMITS[operator].items()
            if ratios[variant] > limit
        ]
    if arguments.check and failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    main()
