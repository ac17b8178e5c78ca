"""
Replicas as processes: one works, with real signals and a network that fails; and what ends a process that cannot stop.

A longer run, with more rounds and the default times, is `python -m tests.soak.election`.
"""

import json
import pathlib
import signal
import sys
import textwrap
import time
import urllib.error
import urllib.request

import pytest
from kubeapi import wait
from ports import free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "soak"))

import election  # noqa: E402

DURATION = 3.0
HEAD = f"""
import asyncio, json, os, time
import kopf

def note(*words):
    with open(os.environ["NOTES"], "a") as file:
        file.write(json.dumps([*words, os.getpid(), time.monotonic()]) + "\\n")

@kopf.on.startup()
def configure(settings, **_):
    settings.leadership.namespace = os.environ["NAMESPACE"]
    settings.leadership.duration = {DURATION}
    settings.leadership.renew_deadline = {DURATION * 2 / 3}
    settings.leadership.retry_period = 0.4
    settings.posting.enabled = False

@kopf.on.leading()
async def leading(**_):
    note("leading")

"""


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(2, 5))])
def test_exactly_one_replica_works_whatever_happens(seed, cluster, namespace, tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", cluster.kubeconfig)
    it, wrong = election.soak(
        election.Soak, cluster.kubeconfig, tmp_path, namespace, rounds=7, seed=str(seed), duration=DURATION, objects=8
    )
    assert not wrong
    assert {each.action for each in it.rounds} == set(election.Soak.actions) and it.edits > 50


@pytest.fixture
def replica(run_operator, tmp_path, namespace):
    """Start a replica with these handlers; they note what they do in a file."""

    def start(code, *args, **environment):
        path = tmp_path / "handlers.py"
        path.write_text(HEAD + textwrap.dedent(code))
        environment |= {"NOTES": str(tmp_path / "notes"), "NAMESPACE": namespace}
        return run_operator("--standalone", "--leader-election", *args, path, **environment)

    return start


@pytest.fixture
def notes(tmp_path):
    def read(event):
        path = tmp_path / "notes"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line[1:] for line in lines if line[0] == event]

    return read


def create(kubeapi, namespace, name="obj"):
    body = {"apiVersion": "kopf.dev/v1", "kind": "KopfExample", "metadata": {"name": name}, "spec": {"field": "1"}}
    kubeapi.apply(body, namespace)


def take_away(kubeapi, namespace):
    """Let another program take the Lease."""
    patch = {"spec": {"holderIdentity": "intruder"}}
    kubeapi.patch("coordination.k8s.io/v1", "Lease", namespace, "kopf-operator", patch)


@pytest.mark.parametrize(
    "handler, name",
    [
        ("@kopf.on.create('kopfexamples')\ndef stuck(name, **_):", "stuck() of {namespace}/obj"),
        ("@kopf.daemon('kopfexamples')\ndef stuck(name, **_):", "stuck() of {namespace}/obj"),
        ("@kopf.on.schedule(interval=1000)\ndef stuck(**_):", "stuck()"),
    ],
    ids=["handler", "daemon", "schedule"],
)
def test_a_thread_that_does_not_end_ends_the_process(handler, name, replica, notes, kubeapi, namespace):
    operator = replica(f"{handler}\n    note('stuck')\n    while True: time.sleep(0.1)\n")
    create(kubeapi, namespace)
    wait(lambda: notes("stuck"), "the thread")
    take_away(kubeapi, namespace)
    began = time.monotonic()
    assert operator.process.wait(30) == 1
    assert time.monotonic() - began < DURATION + 2
    assert name.format(namespace=namespace) in operator.output.splitlines()[-1]


def test_a_blocked_event_loop_ends_the_process(replica, notes, kubeapi, namespace):
    operator = replica(
        "@kopf.on.create('kopfexamples')\nasync def stuck(name, **_):\n    note('stuck'); time.sleep(60)\n"
    )
    create(kubeapi, namespace)
    wait(lambda: notes("stuck"), "the handler")
    began = time.monotonic()
    assert operator.process.wait(30) == 1
    assert time.monotonic() - began < DURATION + 5
    assert "These could not be stopped" in operator.output


def test_a_replica_goes_on_without_a_restart_when_its_work_ends_in_time(replica, notes, kubeapi, namespace):
    operator = replica("@kopf.on.create('kopfexamples')\ndef slow(name, **_):\n    note('slow'); time.sleep(1)\n")
    create(kubeapi, namespace)
    wait(lambda: notes("slow"), "the thread")
    take_away(kubeapi, namespace)
    operator.wait_output("All work of this replica has ended")
    wait(lambda: len(notes("leading")) == 2, "the next term")
    wait(lambda: len(notes("slow")) == 2, "the next attempt")
    assert operator.stop() == (0, pytest.approx(0, abs=10))


def test_a_long_thread_delays_the_release_of_the_lease(replica, notes, kubeapi, namespace):
    operator = replica(
        """
        @kopf.on.create('kopfexamples')
        def slow(name, **_):
            note('begins')
            time.sleep(5)
            note('ends')

        @kopf.on.startup()
        def hurry(settings, **_):
            settings.queueing.exit_timeout = 0.1
            settings.leadership.duration, settings.leadership.renew_deadline = 15, 10
        """
    )
    create(kubeapi, namespace)
    wait(lambda: notes("begins"), "the thread")
    operator.process.send_signal(signal.SIGTERM)
    lease = ("coordination.k8s.io/v1", "Lease", namespace, "kopf-operator")
    wait(lambda: not kubeapi.get(*lease)["spec"].get("holderIdentity"), "the release")
    assert notes("ends")
    assert operator.process.wait(30) == 0


def test_a_standby_is_ready_when_it_is_warm(replica, notes, kubeapi, namespace):
    code = """
        @kopf.index('kopfexamples')
        async def slowly(name, **_):
            if os.environ.get('SLOW'):
                await asyncio.sleep(2)
            return {name: name}

        @kopf.on.event('kopfexamples')
        async def seen(name, **_):
            note('event', name)
    """
    create(kubeapi, namespace)
    replica(code)
    wait(lambda: notes("event"), "the leader to work")
    url = f"http://127.0.0.1:{free_port()}"
    replica(code, "--liveness", f"{url}/healthz", SLOW="yes")

    def probe():
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=5) as response:
                return response.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    wait(lambda: probe() == 503, "the standby to start")
    began = time.monotonic()
    wait(lambda: probe() == 200, "the standby to be warm")
    assert time.monotonic() - began > 0.5
    assert {pid for *_, pid, _ in notes("leading")} == {pid for *_, pid, _ in notes("event")}
