"""
What `load.py` and `leaks.py` have in common: a sandbox, an operator in a process of its own, and what it has noted.

The sandbox is in this process, so that the memory of the operator is measured alone.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Coroutine
from typing import Any, NoReturn, Self

import kopf.testing

ROOT = pathlib.Path(__file__).resolve().parents[2]
OPERATOR = pathlib.Path(__file__).with_name('loadoperator.py')


@dataclasses.dataclass
class Expected:
    """One object as it is, or was: all the values of its field, the last one last."""

    name: str
    uid: str
    values: list[int]
    deleted: bool = False


class Load:
    """The cluster, the operator, and what is known about both."""

    def __init__(self, sandbox: kopf.testing.Sandbox, folder: pathlib.Path) -> None:
        self.sandbox = sandbox
        self.log = folder / 'operator.log'
        self.objects: dict[str, Expected] = {}  # those that are there, by name
        self.gone: list[Expected] = []
        self.requests: dict[str, int] = {}
        self._notes = folder / 'notes'
        self._notes.touch()
        self._read = 0
        self._seen = 0.0
        self._value = 0
        self._measured = 0
        self.noted: list[dict[str, Any]] = []
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls) -> AsyncIterator[Self]:
        crds = [ROOT / 'examples' / 'crd.yaml']
        with tempfile.TemporaryDirectory() as folder, kopf.testing.Sandbox(crds=crds, history=50_000) as sandbox:
            load = cls(sandbox, pathlib.Path(folder))
            try:
                yield load
            finally:
                if load._process is not None:
                    load._process.kill()
                    load._process.wait()

    # The operator.

    def start(self) -> None:
        """Start the operator, or start it anew."""
        environment = {**os.environ, 'KUBECONFIG': str(self.sandbox.kubeconfig), 'KOPF_NOTES': str(self._notes)}
        with self.log.open('ab') as output:
            self._process = subprocess.Popen(
                [sys.executable, '-m', 'kopf', 'run', '--standalone', '-A', str(OPERATOR)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def stop(self) -> int:
        """Let the operator end; give its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(30)

    def check_alive(self) -> None:
        assert self._process is not None
        if self._process.poll() is not None:
            tail = self.log.read_text(errors='replace')[-3000:]
            raise RuntimeError(f"The operator has ended with the code {self._process.returncode}:\n{tail}")

    async def measure(self) -> dict[str, Any]:
        """Ask the operator for its memory."""
        self._measured += 1
        name = f'measure-{self._measured}'
        await self.sandbox.aio.create({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name}})
        while True:
            for entry in reversed(self.read()):
                if entry['name'] == name:
                    await self.sandbox.aio.delete('configmaps', name)
                    return entry
            self.check_alive()
            await asyncio.sleep(0.1)

    def read(self) -> list[dict[str, Any]]:
        """All that the operator has noted so far; and count its requests meanwhile."""
        with self._notes.open('rb') as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b'\n'):
                    break
                self._read += len(line)
                self.noted.append(json.loads(line))
        self.count_requests()
        return self.noted

    def count_requests(self) -> None:
        """Count by verbs; to be called often, as the sandbox remembers only some thousands of them."""
        since = self._seen
        for seen in self.sandbox.requests:
            if seen.time > since and seen.user_agent.startswith('kopf/'):
                verb = seen.verb or 'discover'
                self.requests[verb] = self.requests.get(verb, 0) + 1
                self._seen = max(self._seen, seen.time)

    # The objects.

    async def create(self, name: str) -> None:
        self._value += 1
        body = await self.sandbox.aio.create(
            {
                'apiVersion': 'kopf.dev/v1',
                'kind': 'KopfExample',
                'metadata': {'name': name},
                'spec': {'field': self._value},
            }
        )
        self.objects[name] = Expected(name, body['metadata']['uid'], [self._value])

    async def edit(self, name: str) -> None:
        self._value += 1
        self.objects[name].values.append(self._value)
        await self.sandbox.aio.patch('kopfexamples', name, {'spec': {'field': self._value}})

    async def delete(self, name: str) -> None:
        expected = self.objects.pop(name)
        expected.deleted = True
        self.gone.append(expected)
        await self.sandbox.aio.delete('kopfexamples', name)

    async def exists(self, name: str) -> bool:
        with contextlib.suppress(kopf.testing.Refusal):
            await self.sandbox.aio.get('kopfexamples', name)
            return True
        return False

    async def settle(self, timeout: float) -> None:
        """Wait until each object is handled in its last state, and those deleted are gone; the time is for a step."""
        deadline, fewest = 0.0, sys.maxsize
        while left := await self.unsettled():
            now = time.monotonic()
            if len(left) < fewest:
                deadline, fewest = now + timeout, len(left)
            self.read()
            self.check_alive()
            if now > deadline:
                raise RuntimeError(
                    f"{len(left)} objects are not handled, such as {left[:3]}; nothing has happened for "
                    f"{timeout} s; the end of the log: {self.log.read_text(errors='replace')[-3000:]}"
                )
            await asyncio.sleep(0.1 + len(self.objects) / 1000)  # looking at all of them takes the server's time

    async def unsettled(self) -> list[Any]:
        left = []
        for body in await self.sandbox.aio.list('kopfexamples'):
            annotations = body['metadata'].get('annotations') or {}
            last = json.loads(annotations.get('kopf.zalando.org/last-handled-configuration', '{}'))
            if last.get('spec') != body['spec'] or body['metadata'].get('deletionTimestamp'):
                left.append(body)
        return left

    def judge(self) -> list[str]:
        """Return what was lost, and what was done twice."""
        calls: dict[str, list[tuple[str, int]]] = {}
        for entry in self.read():
            if entry['id'] != 'measure':
                calls.setdefault(entry['uid'], []).append((entry['id'], entry['field']))
        problems = []
        for expected in [*self.objects.values(), *self.gone]:
            problems += [f'{expected.name}: {problem}' for problem in _judge(expected, calls.pop(expected.uid, []))]
        return problems + [f'unknown object {uid}: {its_calls}' for uid, its_calls in calls.items()]


def _judge(expected: Expected, calls: list[tuple[str, int]]) -> list[str]:
    ids = [id for id, _ in calls]
    handled = [value for id, value in calls if id != 'delete']
    problems = []
    if ids.count('create') > 1 or ids.count('delete') > 1 or len(set(handled)) < len(handled):
        problems.append(f'done twice: {calls}')
    if not set(handled) <= set(expected.values):
        problems.append(f'values that never were: {calls}')
    if handled != sorted(handled):
        problems.append(f'back to an old state: {calls}')
    if not expected.deleted:
        if not handled or handled[-1] != expected.values[-1] or ids[0] != 'create':
            problems.append(f'lost: {calls}, but the values were {expected.values}')
    elif ids and ids[-1] != 'delete':
        problems.append(f'the deletion is lost: {calls}')
    return problems


def conclude(work: Coroutine[Any, Any, list[str]], praise: str) -> NoReturn:
    """Do the work; tell in the last line what has come of it; end with 1 if it has found problems, else with 0."""
    began = time.monotonic()
    try:
        problems = asyncio.run(work)
    except Exception as error:
        traceback.print_exc(file=sys.stdout)
        problems = [f'given up: {error!r:.300}']
    for problem in problems[:20]:
        print("PROBLEM:", problem)
    elapsed = f'{time.monotonic() - began:.0f} s'
    print(f"FAILED in {elapsed}: {len(problems)} problems; {problems[0]}" if problems else f"ok in {elapsed}: {praise}")
    sys.exit(bool(problems))
