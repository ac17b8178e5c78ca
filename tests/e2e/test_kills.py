"""Operators that are killed in the middle of anything: the next one goes on where the previous one was."""

import json
import pathlib
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kubeapi import KubeApi, wait
from operatorprocess import OperatorProcess

LAST_HANDLED = "kopf.zalando.org/last-handled-configuration"
HANDLERS = '''
import asyncio, json, os, kopf

def note(**facts):
    with open(os.environ["JOURNAL"], "a") as journal:
        journal.write(json.dumps(facts) + "\\n")

@kopf.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False

def declare(decorator, id, **options):
    @decorator("kopfexamples", id=id, **options)
    async def fn(name, spec, retry, reason, **_):
        await asyncio.sleep(0.01)
        if retry == 0 and (spec["value"] + len(id)) % 3 == 0:
            raise kopf.TemporaryError("not yet", delay=0.1)
        note(id=id, name=name, value=spec["value"], retry=retry, reason=str(reason))

for number in range(2):
    declare(kopf.on.create, f"create{number}")
    declare(kopf.on.update, f"update{number}")
declare(kopf.on.delete, "delete")
'''


@pytest.fixture
def start(
    tmp_path: pathlib.Path,
    run_operator: Callable[..., OperatorProcess],
) -> Callable[[], OperatorProcess]:
    handlers = tmp_path / "handlers.py"
    handlers.write_text(HANDLERS)
    return lambda: run_operator("--standalone", "--quiet", handlers, JOURNAL=str(tmp_path / "journal"))


@pytest.fixture
def journal(tmp_path: pathlib.Path) -> Callable[[], list[dict[str, Any]]]:
    def read() -> list[dict[str, Any]]:
        path = tmp_path / "journal"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    return read


@pytest.fixture
def objects(kubeapi: KubeApi, namespace: str) -> Iterator[Callable[[], dict[str, Any]]]:
    yield lambda: {item["metadata"]["name"]: item for item in kubeapi.items("kopf.dev/v1", "KopfExample", namespace)}


def is_at_rest(body: dict[str, Any]) -> bool:
    annotations = {key: value for key, value in body["metadata"].get("annotations", {}).items() if "kopf" in key}
    return list(annotations) == [LAST_HANDLED] and json.loads(annotations[LAST_HANDLED])["spec"] == body["spec"]


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(2, 6))])
def test_killed_at_any_moment(seed, kubeapi, namespace, start, journal, objects):
    chance = random.Random(seed)
    names = [f"obj-{number}" for number in range(12)]
    values = dict.fromkeys(names, 0)
    for name in names:
        kubeapi.apply(
            {
                "apiVersion": "kopf.dev/v1",
                "kind": "KopfExample",
                "metadata": {"name": name, "namespace": namespace},
                "spec": {"value": 0},
            },
            namespace,
        )

    def kill_after(condition: Callable[[], object]) -> None:
        operator = start()
        wait(condition, "the moment of the kill")
        time.sleep(chance.uniform(0, 0.1))
        operator.process.kill()
        operator.process.wait()

    # In the middle of the creation; there are no edits meanwhile.
    kill_after(lambda: len(journal()) >= chance.randint(1, 10))
    kill_after(lambda: all(map(is_at_rest, objects().values())))
    # In the middle of updates, and with edits while no operator is there.
    for _ in range(2):
        for name in chance.sample(names, 8):
            values[name] += 1
            kubeapi.patch("kopf.dev/v1", "KopfExample", namespace, name, {"spec": {"value": values[name]}})
        count = len(journal())
        kill_after(lambda count=count: len(journal()) > count + chance.randint(0, 6))
    start()
    wait(lambda: all(map(is_at_rest, objects().values())), "the end of all updates")

    notes = journal()
    for name in names:
        for id in ("create0", "create1"):
            seen = [note for note in notes if note["name"] == name and note["id"] == id]
            assert 1 <= len(seen) <= 2  # once; or again, if it could not be stored before the kill
        for id in ("update0", "update1"):
            seen = [note["value"] for note in notes if note["name"] == name and note["id"] == id]
            assert (seen[-1] if seen else 0) == values[name]
            assert seen == sorted(seen)  # nothing old comes back
    repeated = len(notes) - len({(note["name"], note["id"], note["value"]) for note in notes})
    assert repeated <= 5 * len(names)  # of each object, at most one handler runs when it is killed

    # And in the middle of the deletion.
    for name in names:
        kubeapi.delete("kopf.dev/v1", "KopfExample", namespace, name)
    wait(lambda: not objects(), "the deletion")
    deleted = [note["name"] for note in journal() if note["id"] == "delete"]
    assert sorted(deleted) == sorted(names)
