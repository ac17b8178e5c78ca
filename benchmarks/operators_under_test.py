"""
The processes of the operators under test: started, watched, stopped.
"""

import collections
import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import queue
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from clusters import HERE, Cluster


def end(process: "subprocess.Popen[bytes]") -> None:
    """End the process as Kubernetes does: kill it if it has not ended in a minute."""
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@dataclasses.dataclass
class Runner:
    name: str
    kind: str  # kopf, go or limit
    program: str
    options: str = ""

    @classmethod
    def parse(cls, kind: str, text: str) -> 'Runner':
        name, _, program = text.partition("=")
        program, _, options = program.partition("+")
        if os.sep in program:
            program = os.path.abspath(program)  # it is run in other folders, too
        return cls(name, kind, program, options)

    @functools.cached_property
    def is_ours(self) -> bool:
        """Check whether it has what this package adds to the API of upstream."""
        probe = "import sys, kopf; sys.exit(not hasattr(kopf.on, 'reconcile'))"
        return self.kind == "kopf" and not subprocess.run([self.program, "-c", probe], check=False, cwd=HERE).returncode

    def command(self, operator: str, arguments: Sequence[str]) -> list[str]:
        return {
            "kopf": [self.program, "-m", "kopf", "run", *arguments, f"{HERE}/operators/{operator}.py"],
            "go": [self.program, operator],
            "limit": [self.program, f"{HERE}/operators/limit.py", operator],
        }[self.kind]


class Operator:
    """An operator under test. It reports events as JSON lines through a pipe."""

    def __init__(
        self,
        cluster: Cluster,
        runner: Runner,
        operator: str,
        plural: str,
        total: int,
        options: str = '',
        *,
        arguments: Sequence[str] = ("--all-namespaces",),
        **env: str,
    ) -> None:
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
                runner.command(operator, arguments),
                pass_fds=[write],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=HERE,
            )  # not the repository: its package would be taken
        os.close(write)
        self.reports: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=self._read, args=[read], daemon=True).start()
        self.wait("start")
        self.base_cpu, self.base_rss = self.cpu(), self.memory()["rss"]

    def __enter__(self) -> 'Operator':
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _read(self, fd: int) -> None:
        with open(fd) as file:
            for line in file:
                self.reports.put(json.loads(line))
        self.reports.put(None)

    def wait(self, event: str, timeout: float = 300) -> Any:
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

    def drain(self, quiet: float) -> list[Any]:
        """Return all reports until there is none for so many seconds."""
        reports: list[Any] = []
        with contextlib.suppress(queue.Empty):
            while (report := self.reports.get(timeout=quiet)) is not None:
                reports.append(report)
            raise RuntimeError(f"the operator has ended; its log is {self.log}")
        return reports

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop all its processes, as a machine does that has no time for them, and let them go on in the end."""
        processes = [self.process.pid, *self.children()]
        try:
            for pid in processes:
                os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in processes:
                os.kill(pid, signal.SIGCONT)

    @contextlib.contextmanager
    def thawed(self, pid: int) -> Iterator[None]:
        """Let one of the frozen processes go on, and stop it again in the end."""
        try:
            os.kill(pid, signal.SIGCONT)
            yield
        finally:
            os.kill(pid, signal.SIGSTOP)

    def cpu(self) -> float:
        """CPU seconds of the process and of its children, all threads, user and system."""
        return sum(self.cpu_of(pid) for pid in [self.process.pid, *self.children()])

    @staticmethod
    def cpu_of(pid: int) -> float:
        """CPU seconds of one process, all threads, user and system."""
        return time.clock_gettime(~pid << 3 | 2)

    def children(self) -> list[int]:
        """The processes that it has started, and that still run."""
        pid = self.process.pid
        return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def memory(self, pid: int | None = None) -> dict[str, float]:
        """Megabytes of the process, or of one of its children."""
        proc = f"/proc/{pid or self.process.pid}/"
        text = pathlib.Path(proc, "status").read_text() + pathlib.Path(proc, "smaps_rollup").read_text()
        return {
            name: int(re.findall(rf"^{key}:\s+(\d+)", text, re.M)[0]) / 1024
            for name, key in [("rss", "VmRSS"), ("peak", "VmHWM"), ("pss", "Pss")]
        }

    def stop(self) -> float:
        """Stop it as Kubernetes does; return how long that took."""
        begin = time.monotonic()
        if self.process.poll() is None:
            end(self.process)
        return time.monotonic() - begin

    def requests(self, since: int, until: int) -> collections.Counter[str]:
        """API requests in a period; to be called after stop(), as watches are logged when they end."""
        time.sleep(0.5)
        return self.cluster.requests(self.offset, since, until)
