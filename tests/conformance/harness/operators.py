"""
The process of an operator, as a scenario starts, stops, kills and restarts it.
"""

import collections
import contextlib
import json
import pathlib
import signal
import subprocess
import textwrap
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.clusters import Cluster


class Operator:
    """The operator's process: started, stopped, killed and restarted by the scenario."""

    def __init__(self, cluster: 'Cluster', name: str, source: str, args: list[str], script: bool = False) -> None:
        self.cluster, self.name, self.args, self.script = cluster, name, args, script
        self.process: subprocess.Popen[bytes] | None = None
        self.exits: list[int | str] = []
        self.logs: list[pathlib.Path] = []
        self.file = cluster.folder / f'{name}.py'
        self.source = source

    @property
    def source(self) -> str:
        return self.file.read_text()

    @source.setter
    def source(self, text: str) -> None:
        """The module's text; a new text takes effect on the next start."""
        self.file.write_text(self.cluster.fill(textwrap.dedent(text)))

    def start(
        self,
        *,
        listing: Iterable[str] = ('kopfexamples',),
        timeout: float = 15,
        args: Iterable[str] | None = None,
        env: dict[str, str] | None = None,
        command: list[str] | None = None,
    ) -> 'Operator':
        """Start the process; wait until it has listed these resources (as often as they are given; maybe none)."""
        given = [self.cluster.fill(arg) for arg in (self.args if args is None else args)]
        if command is None:
            command = (
                [str(self.file)]
                if self.script
                else ['-m', 'kopf', 'run', *self._defaults(given), *given, str(self.file)]
            )
        else:
            command = [self.cluster.fill(arg) for arg in command]
        log = self.cluster.folder / f'{self.name}-{len(self.logs)}.log'
        self.logs.append(log)
        before = len(self.cluster.requests())
        with log.open('wb') as output:
            self.process = subprocess.Popen(
                [self.cluster.python, *command],
                cwd=self.cluster.folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.cluster.environment(env or {}),
                start_new_session=True,
            )
        self.cluster.processes.append(self.process)
        for plural, count in collections.Counter(listing).items():
            self._wait_for_listing(plural, count, before, timeout)
        return self

    def _defaults(self, args: list[str]) -> list[str]:
        defaults = []
        if not any(arg.startswith('--log-format') for arg in args):
            defaults.append('--log-format=json')
        if not any(arg in ('-A', '-n') or arg.startswith(('--all-namespaces', '--namespace')) for arg in args):
            defaults.append(f'--namespace={self.cluster.ns}')
        return defaults

    def _wait_for_listing(self, plural: str, count: int, before: int, timeout: float) -> None:
        """Wait until a list request tells that watching starts; a package that never lists gets 2 silent seconds."""
        process = self.process
        assert process is not None
        quiet_since, seen = time.monotonic(), before
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and process.poll() is None:
            requests = self.cluster.requests()
            lists = [
                entry
                for entry in requests[before:]
                if entry['verb'] == 'list' and entry['objectRef'].get('resource') == plural
            ]
            if len(lists) >= count:
                time.sleep(0.1)
                return
            if len(requests) != seen or seen == before:
                quiet_since, seen = time.monotonic(), len(requests)
            elif time.monotonic() - quiet_since > 2:
                return
            time.sleep(0.05)
        if process.poll() is not None:
            raise TimeoutError(f'the operator exited with code {process.poll()} at its start')

    def stop(self, sig: int = signal.SIGTERM, timeout: float = 30) -> Any:
        """Signal the process, wait for its end, and remember the exit code."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(sig)
        return self.wait(timeout)

    def kill(self) -> Any:
        return self.stop(signal.SIGKILL)

    def wait(self, timeout: float = 30) -> Any:
        """Wait until the process ends by itself; return its exit code."""
        if self.process is None:
            return None
        code: int | str
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            code = 'did not exit'
        self.process = None
        self.exits.append(code)
        return code

    def output(self) -> str:
        """All that the process has written to stdout and stderr, of all its runs."""
        return ''.join(log.read_text(errors='replace') for log in self.logs)

    def messages(self) -> list[list[str]]:
        """Return the log records of level INFO and above, as [severity, message]."""
        result = []
        for line in self.output().splitlines():
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                if isinstance(record, dict) and record.get('severity') in ('info', 'warn', 'error', 'fatal'):
                    message = str(record.get('message', ''))
                    if ' HTTP/1.1" ' not in message:  # not an access log of a web server
                        result.append([record['severity'], message])
        return result
