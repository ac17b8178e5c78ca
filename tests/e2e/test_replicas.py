"""
Replicas of one operator: exactly one of them acts at any time, and the next one takes over when it is killed.

The killed one is dead when its record has not changed for its lifetime: this very moment is the time to take over, not
before, and not later than it takes to begin working (see also `test_peering_member.py`: the decision has no delay).
"""

import datetime
import itertools
import json
import pathlib
import textwrap
import time

import pytest
from kubeapi import wait

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIFETIME = 3
BEGINNING = 1.0
"""How long (in seconds) it may take to see a record, to list the objects, and to begin to work, on a busy machine."""
HANDLED = "kopf.zalando.org/last-handled-configuration"
HANDLERS = f"""
    import asyncio, json, os, time
    import kopf

    ME = int(os.environ['PRIORITY'])
    LEDGER = os.open(os.environ['LEDGER'], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(event, name):
        os.write(LEDGER, json.dumps([ME, event, name, time.monotonic()]).encode() + b'\\n')

    @kopf.on.startup()
    def configure(settings, **_):
        settings.peering.lifetime = {LIFETIME}
        settings.peering.priority = ME

    @kopf.on.create('kopfexamples')
    async def created(name, **_):
        note('created', name)

    @kopf.daemon('kopfexamples')
    async def daemon(name, stopped, **_):
        while not stopped:
            note('beat', name)
            await stopped.wait(0.05)
"""


@pytest.fixture
def replicas(run_operator, kubeapi, namespace, tmp_path):
    kubeapi.apply(ROOT / "peering.yaml")
    kubeapi.apply({"apiVersion": "kopf.dev/v1", "kind": "KopfPeering", "metadata": {"name": "default"}}, namespace)
    path = tmp_path / "handlers.py"
    path.write_text(textwrap.dedent(HANDLERS))

    class Replicas:
        ledger = tmp_path / "ledger"

        def kill(self, operator, priority):
            """Kill it; give the moment of the last change of its record, on the clock of the notes."""
            operator.process.kill()
            operator.process.wait()
            (record,) = [record for record in self.records().values() if record["priority"] == priority]
            age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(record["lastseen"])
            return time.monotonic() - age.total_seconds()

        def start(self, priority):
            operator = run_operator(path, PRIORITY=str(priority), LEDGER=str(self.ledger))
            wait(lambda: len(self.records()) >= priority, f"the replica {priority} to join")
            return operator

        def records(self):
            return (kubeapi.get("kopf.dev/v1", "KopfPeering", namespace, "default") or {}).get("status") or {}

        def create(self, name):
            kubeapi.apply({"apiVersion": "kopf.dev/v1", "kind": "KopfExample", "metadata": {"name": name}}, namespace)

        def notes(self, event):
            lines = self.ledger.read_text().splitlines() if self.ledger.exists() else []
            return [(me, name, at) for me, kind, name, at in map(json.loads, lines) if kind == event]

        def wait_handled(self, name):
            """Wait until it is also remembered: what killed operators have done and not stored is unknown."""
            wait(
                lambda: (
                    HANDLED
                    in (
                        (kubeapi.get("kopf.dev/v1", "KopfExample", namespace, name) or {})
                        .get("metadata", {})
                        .get("annotations", {})
                    )
                ),
                f"{name} to be handled",
            )
            return [me for me, other, _ in self.notes("created") if other == name]

        def wait_beat(self, acting):
            wait(lambda: [me for me, _, _ in self.notes("beat")][-1:] == [acting], f"the daemons of {acting}")

    return Replicas()


def test_takeovers_from_the_killed(replicas):
    operators = [replicas.start(priority) for priority in (1, 2, 3)]
    changed = 0.0
    for acting in (3, 2, 1):
        replicas.create(f"by-{acting}")
        assert replicas.wait_handled(f"by-{acting}") == [acting]
        replicas.wait_beat(acting)
        if acting < 3:
            began = min(at for me, _, at in replicas.notes("beat") if me == acting and at > changed)
            assert LIFETIME <= began - changed < LIFETIME + BEGINNING
        if acting > 1:
            changed = replicas.kill(operators[acting - 1], acting)
    # By their heartbeats, they have acted one after another, and each object was handled by one of them, once.
    assert [me for me, _ in itertools.groupby(me for me, _, _ in replicas.notes("beat"))] in ([3, 2, 1], [1, 3, 2, 1])
    assert sorted(name for _, name, _ in replicas.notes("created")) == ["by-1", "by-2", "by-3"]
    wait(lambda: len(replicas.records()) == 1, "the dead to be removed")
