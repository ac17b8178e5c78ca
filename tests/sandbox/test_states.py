"""The file with the state: what the next sandbox knows after any end of the previous one."""

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading

import pytest
from forkserver import run_process, start_process
from kinds import NOTES, config, note
from kubeapi import wait

from kopf.testing import Sandbox, StateError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sandbox.state"


def test_objects_are_there_again(path):
    with Sandbox(state=path, crds=NOTES) as sandbox:
        before = sandbox.create(note("n"))
        gone = sandbox.create(config("gone"))
        sandbox.delete("configmaps", "gone")
        last = sandbox.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "own"}})
        namespaces = sandbox.list("namespaces")
    with Sandbox(state=path) as sandbox:
        assert sandbox.get("notes", "n") == before
        assert sandbox.list("namespaces") == namespaces
        assert [item["metadata"]["name"] for item in sandbox.list("configmaps")] == []
        assert gone["metadata"]["uid"] not in str(sandbox.list("configmaps"))
        changed = sandbox.patch("notes", "n", {"text": "b"})
        assert int(changed["metadata"]["resourceVersion"]) > int(last["metadata"]["resourceVersion"])
    with Sandbox(state=path, crds=NOTES) as sandbox:  # Kinds and objects that are there already do no harm.
        assert sandbox.get("notes", "n") == changed


async def test_former_versions_have_expired(path, tmp_path):
    """A watch can't go on from a version of the former sandbox: it has to list again, as after a compaction."""
    async with Sandbox(state=path) as sandbox:
        created = await sandbox.create(config("a"))
        await sandbox.create(config("seen", labels={"x": "y"}))
    import aiohttp

    async with Sandbox(state=path, kubeconfig=tmp_path / "kubeconfig") as sandbox:
        await sandbox.create(config("b"))
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {sandbox.token}"}) as session:
            url = f"{sandbox.url}/api/v1/configmaps"
            async with session.get(
                url, ssl=False, params={"watch": "true", "resourceVersion": created["metadata"]["resourceVersion"]}
            ) as response:
                line = json.loads(await response.content.readline())
            assert (line["type"], line["object"]["code"]) == ("ERROR", 410)


SCRIPT = """
import sys, kopf.testing
with kopf.testing.Sandbox(state=sys.argv[1]) as sandbox:
    for number in range(100_000):
        made = sandbox.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"c{number:06}"}})
        print(number, made["metadata"]["resourceVersion"], flush=True)
"""


def is_in_files(path, number):
    files = path, path.with_name(path.name + "-wal")
    return any(f"c{number:06}".encode() in file.read_bytes() for file in files if file.exists())


def test_only_the_last_moment_is_lost_when_killed(path):
    """No more than the last moment is lost, in order; no version is used twice."""
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, path], stdout=subprocess.PIPE, text=True)
    lines = []
    reading = threading.Thread(target=lambda: lines.extend(process.stdout))
    reading.start()
    wait(lambda: len(lines) >= 300, "objects")
    written = len(lines)
    wait(lambda: is_in_files(path, written - 1), "the last of these in the file")
    later = len(lines) + 1
    wait(lambda: is_in_files(path, later), "one of a later transaction in the file")
    process.send_signal(signal.SIGKILL)
    process.wait()
    reading.join()
    process.stdout.close()
    last = int(lines[-1].split()[1])
    with Sandbox(state=path) as sandbox:
        found = [item["metadata"]["name"] for item in sandbox.list("configmaps")]
        assert len(found) >= written
        assert found == [f"c{number:06}" for number in range(len(found))]
        created = sandbox.create(config("after"))
        assert int(created["metadata"]["resourceVersion"]) > last
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_what_was_going_on_goes_on(path):
    """Objects that are being deleted, owners that are gone: the controllers look at them again."""
    with Sandbox(state=path, crds=NOTES) as sandbox:
        owner = sandbox.create(config("owner"))
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
        sandbox.create(note("child", ownerReferences=[reference]))
        sandbox.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "leaving"}})
        sandbox.create(note("held", namespace="leaving", finalizers=["example.dev/own"]))
        sandbox.delete("namespaces", "leaving")
        sandbox.wait_for("notes", "held", lambda body: "deletionTimestamp" in body["metadata"], namespace="leaving")
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("DELETE FROM objects WHERE name = 'owner'")
    with Sandbox(state=path) as sandbox:
        sandbox.wait_gone("notes", "child")
        sandbox.patch("notes", "held", {"metadata": {"finalizers": None}}, namespace="leaving")
        sandbox.wait_gone("namespaces", "leaving")


def test_deleted_definitions_leave_no_objects_in_the_file(path):
    with Sandbox(state=path, crds=NOTES) as sandbox:
        sandbox.create(note("n"))
        sandbox.delete("crds", "notes.example.dev")
        sandbox.wait_gone("crds", "notes.example.dev")
    with Sandbox(state=path) as sandbox:
        assert sandbox.list("crds") == []
        sandbox.apply(NOTES)
        assert sandbox.list("notes") == []


def test_defaults_of_new_schemas_last_over_a_restart(path):
    """What a schema has changed without a write is so after a restart, too."""
    with Sandbox(state=path, crds=NOTES) as sandbox:
        sandbox.create(note("n"))
        schema = {"openAPIV3Schema": {"type": "object", "properties": {"size": {"type": "integer", "default": 7}}}}
        sandbox.patch(
            "crds", "notes.example.dev", [{"op": "replace", "path": "/spec/versions/0/schema", "value": schema}]
        )
        before = sandbox.get("notes", "n")
        assert before["size"] == 7
    with Sandbox(state=path) as sandbox:
        assert sandbox.get("notes", "n") == before


def test_one_at_a_time(path):
    with Sandbox(state=path):
        with pytest.raises(StateError, match="is in use by another sandbox"):
            with Sandbox(state=path):
                pass
    with Sandbox(state=path):
        pass


def test_files_of_other_programs_are_refused(path):
    path.write_text("something else, and long enough to be a file with a header " * 10)
    with pytest.raises(StateError, match="is not a state file of a sandbox .*use another file"):
        Sandbox(state=path).__enter__()
    assert path.read_text().startswith("something else")
    path.unlink()
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE mine (a)")
    with pytest.raises(StateError, match="is a database, but not a state file of a sandbox"):
        Sandbox(state=path).__enter__()


def test_files_of_other_versions(path):
    with Sandbox(state=path):
        pass
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(StateError, match="written by another version of kopf .its layout is 99, not 1"):
        Sandbox(state=path).__enter__()


def test_a_state_in_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder"):
        Sandbox(state=tmp_path / "absent" / "file").__enter__()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_state_without_permission_is_refused(path):
    path.touch(mode=0o400)
    with pytest.raises(StateError, match="cannot be used"):
        Sandbox(state=path).__enter__()


async def test_writes_to_a_full_disk_are_repeated_when_there_is_room(path, caplog):
    """It is told, the sandbox goes on, and it is written when it can be."""
    async with Sandbox(state=path) as sandbox:
        await sandbox.create(config("a"))
        state = sandbox._runner.instance._state
        await asyncio.sleep(0.2)
        limit = state._database.execute("PRAGMA page_count").fetchone()[0]
        state._database.execute(f"PRAGMA max_page_count = {limit}")
        await sandbox.create({**config("b"), "data": {"x": "y" * 100_000}})
        for _ in range(100):
            if "cannot be written" in caplog.text:
                break
            await asyncio.sleep(0.05)
        assert f"The state of the sandbox cannot be written to {path}: database or disk is full" in caplog.text
        await sandbox.create(config("c"))
        state._database.execute("PRAGMA max_page_count = 1000000")
    async with Sandbox(state=path) as sandbox:
        assert [item["metadata"]["name"] for item in await sandbox.list("configmaps")] == ["a", "b", "c"]


def test_the_command_keeps_its_state_in_a_file(path, tmp_path):
    kubeconfig = tmp_path / "kubeconfig"
    command = ["kopf", "sandbox", "--state", path, "--kubeconfig", kubeconfig]
    reading, writing = os.pipe()
    with open(reading) as output, open(tmp_path / "errors", "wb") as errors:
        with open(writing, "wb") as stdout:
            process = start_process(command, stdout=stdout, stderr=errors)
        try:
            assert output.readline().startswith("export KUBECONFIG=")
            second = run_process(command)
            assert second.returncode == 1
            assert "The sandbox does not start:" in second.stderr
            assert "in use by another sandbox" in second.stderr
        finally:
            process.terminate()
            process.wait(60)
    assert f"All objects are kept in {path}." in (tmp_path / "errors").read_text()
