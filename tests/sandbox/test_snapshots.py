"""Snapshots: all objects as they were, as clients read and watch them."""

import time

import pytest
from kinds import NOTES, config, define, note

from kopf.testing import Sandbox


@pytest.fixture(scope="module")
def notes():
    with Sandbox(crds=NOTES) as sandbox:
        yield sandbox


@pytest.fixture(autouse=True)
def clean(notes):
    empty = notes.snapshot()
    yield
    notes.restore(empty)


def everything(sandbox):
    found = [item for kind in ("namespaces", "configmaps", "crds", "notes") for item in sandbox.list(kind)]
    return [{**item, "metadata": {**item["metadata"], "resourceVersion": ""}} for item in found]


def test_all_is_as_it_was(notes):
    notes.create(note("kept"))
    notes.create(note("changed", labels={"a": "b"}))
    notes.create(note("deleted", finalizers=["example.dev/x"]))
    notes.create(config("recreated"))
    before, snapshot = everything(notes), notes.snapshot()
    kept = notes.get("notes", "kept")
    notes.patch("notes", "changed", {"text": "b", "metadata": {"labels": None}})
    notes.delete("notes", "deleted")
    notes.patch("notes", "deleted", {"metadata": {"finalizers": None}})
    notes.delete("configmaps", "recreated")
    notes.create(config("recreated"))
    notes.create(note("added", finalizers=["example.dev/x"]))
    notes.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "added"}})
    notes.delete("namespaces", "added")
    for _ in range(2):
        notes.restore(snapshot)
        assert everything(notes) == before
        assert notes.get("notes", "kept") == kept  # with its version: it was not touched
        notes.delete("notes", "kept")
        notes.restore(snapshot)
        kept = notes.get("notes", "kept")


def test_nothing_is_collected_afterwards(notes):
    """Owners are the same for the garbage collector, since their uids are."""

    def create_owner_of(child, name):
        uid = notes.create(config(name))["metadata"]["uid"]
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid}
        notes.create(note(child, ownerReferences=[reference]))

    create_owner_of("child", "owner")
    snapshot = notes.snapshot()
    notes.delete("configmaps", "owner")
    notes.wait_gone("notes", "child")
    notes.restore(snapshot)
    create_owner_of("another-child", "another-owner")
    notes.delete("configmaps", "another-owner")
    notes.wait_gone("notes", "another-child")
    assert notes.get("notes", "child")
    notes.delete("configmaps", "owner")
    notes.wait_gone("notes", "child")


def test_kinds_are_restored_with_their_objects(notes):
    notes.create(note("n"))
    snapshot = notes.snapshot()
    other = define("papers", "Paper")
    notes.apply(other)
    notes.create({**note("p"), "kind": "Paper"})
    notes.delete("crds", "notes.example.dev")
    notes.wait_gone("crds", "notes.example.dev")
    notes.restore(snapshot)
    assert notes.get("notes", "n")["text"] == "a"
    assert [item["metadata"]["name"] for item in notes.list("crds")] == ["notes.example.dev"]
    with pytest.raises(Exception, match="doesn't have a resource type"):
        notes.list("papers")


async def test_watches_see_ordinary_changes(sandbox, client, make_thing):
    await client.create("kept")
    await client.create("changed")
    await client.create("deleted")
    snapshot = await sandbox.aio.snapshot()
    async with client.watch(resourceVersion=await client.version()) as watch:
        await client("PATCH", f"{client.things}/changed", {"spec": {"size": 2}}, type="application/merge-patch+json")
        await client("DELETE", f"{client.things}/deleted")
        await client.create("added")
        assert await watch.until(3) == [("MODIFIED", "changed"), ("DELETED", "deleted"), ("ADDED", "added")]
        await sandbox.aio.restore(snapshot)
        events = [await watch.next() for _ in range(3)]
    assert [(event["type"], event["object"]["metadata"]["name"]) for event in events] == [
        ("DELETED", "added"),
        ("MODIFIED", "changed"),
        ("ADDED", "deleted"),
    ]
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
    assert versions == sorted(set(versions))
    assert events[1]["object"]["spec"]["size"] == 1


def test_a_snapshot_is_restored_in_another_sandbox(notes):
    notes.create(note("n"))
    snapshot = notes.snapshot()
    with Sandbox() as other:
        other.restore(snapshot)
        assert everything(other) == everything(notes)
        assert other.patch("notes", "n", {"text": "b"})["text"] == "b"
    assert notes.get("notes", "n")["text"] == "a"


@pytest.mark.long
def test_snapshots_cost_next_to_nothing(notes):
    """For each test of a suite, so it must cost next to nothing; it is CPU time, as machines can be busy."""
    for number in range(1000):
        notes.create(note(f"n{number:04}", labels={"number": str(number)}))
    started = time.process_time()
    snapshot = notes.snapshot()
    taken = time.process_time()
    notes.restore(snapshot)
    untouched = time.process_time()
    for number in range(1000):
        notes.delete("notes", f"n{number:04}")
    again = time.process_time()
    notes.restore(snapshot)
    done = time.process_time()
    print(f"{(taken - started) * 1e3:.1f}, {(untouched - taken) * 1e3:.1f}, {(done - again) * 1e3:.1f} ms")
    assert taken - started < 0.1
    assert untouched - taken < 0.1
    assert done - again < 0.5
