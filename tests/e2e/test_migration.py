"""Moving live objects to upstream kopf and back by scripts/migrate.py: nothing is handled that has been handled before.

Upstream comes from a package index into an environment of its own, so this takes long; $KOPF_UPSTREAM names the Python
of an environment that has it already.
"""

import json
import os
import pathlib
import subprocess
import sys
import venv

import pytest
from kubeapi import wait

from kopf.testing import Sandbox

ROOT = pathlib.Path(__file__).resolve().parents[2]
PREFIX = "kopf.zalando.org"
STATE, PACKED = f"{PREFIX}/last-handled-configuration", f"{PREFIX}/last-handled-configuration-packed"
HANDLERS = """
import sys

import kopf

def note(call):
    sys.stdout.write(f"CALL {call}\\n")  # Not printed: that is two writes, which threads interleave.
    sys.stdout.flush()

@kopf.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False

for resource in ('kopfexamples', 'secrets'):
    for event in ('create', 'update', 'resume'):
        @getattr(kopf.on, event)(resource, id=event, param=event)
        def fn(name, param, **_):
            note(f"{param} {name}")

@kopf.on.update('kopfexamples', field='spec.slow')
def slowly(retry, name, **_):
    note(f"slowly {name} {retry}")
    if not retry:
        raise kopf.TemporaryError("Later.", delay=3)
"""


class Operators:
    """Runs an operator of one of the two packages, until it has resumed all objects; collects what it has called."""

    def __init__(self, sandbox, folder, upstream):
        self.sandbox, self.folder, self.upstream = sandbox, folder, upstream
        folder.joinpath("handlers.py").write_text(HANDLERS)

    def run(self, python, until, meanwhile=lambda: None):
        log = self.folder / "operator.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [python, "-m", "kopf", "run", "-A", "--standalone", "handlers.py"],
                cwd=self.folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "KUBECONFIG": str(self.sandbox.kubeconfig)},
            )
            try:
                meanwhile()
                wait(lambda: until(log.read_text()), "the operator to be done", timeout=30)
            except TimeoutError as error:
                raise TimeoutError(f"{error}\n{log.read_text()}") from None
            finally:
                process.terminate()
                process.wait(20)
        return sorted(line.removeprefix("CALL ") for line in log.read_text().splitlines() if line.startswith("CALL "))

    def migrate(self, direction, *options):
        process = subprocess.run(
            [sys.executable, ROOT / "scripts" / "migrate.py", direction, "kopfexamples", "secrets", *options],
            env={**os.environ, "KUBECONFIG": str(self.sandbox.kubeconfig)},
            capture_output=True,
            text=True,
        )
        assert not process.stderr, process.stderr
        return process.returncode, process.stdout


@pytest.fixture(scope="module")
def upstream(tmp_path_factory):
    if "KOPF_UPSTREAM" in os.environ:
        return os.environ["KOPF_UPSTREAM"]
    folder = tmp_path_factory.mktemp("upstream")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "kopf==1.45.2"], check=True)
    return str(python)


@pytest.fixture
def operators(tmp_path, upstream):
    with Sandbox(crds=ROOT / "examples" / "crd.yaml") as sandbox:
        yield Operators(sandbox, tmp_path, upstream)


def make(kind, name, **fields):
    api = "v1" if kind == "Secret" else "kopf.dev/v1"
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": "default"}, **fields}


def resumed(*names):
    return lambda output: all(f"CALL resume {name}\n" in output for name in names)


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_objects_move_to_this_package_and_back(operators):
    sandbox = operators.sandbox

    def annotations(kind, name):
        return sandbox.get(kind, name, namespace="default")["metadata"].get("annotations", {})

    def create_and_edit():
        for kind, name, fields in [
            ("KopfExample", "plain", {"spec": {"x": 1}}),
            ("KopfExample", "midway", {"spec": {"slow": 1}}),
            ("KopfExample", "large", {"spec": {"text": "x" * 150_000}}),
            ("Secret", "secret", {"data": {"password": "c2VjcmV0"}}),
        ]:
            sandbox.create(make(kind, name, **fields))
            wait(lambda kind=kind, name=name: STATE in annotations(f"{kind.lower()}s", name), name)
        # Together with this, the state does not fit into the annotations any more.
        note = {"metadata": {"annotations": {"note": "y" * 60_000}}}
        sandbox.patch("kopfexamples", "large", note, namespace="default")
        sandbox.patch("kopfexamples", "midway", {"spec": {"slow": 2}}, namespace="default")

    calls = operators.run(
        sys.executable,
        meanwhile=create_and_edit,
        until=lambda output: (
            PACKED in annotations("kopfexamples", "large")
            and "CALL slowly midway 0\n" in output
            and "retries" in annotations("kopfexamples", "midway").get(f"{PREFIX}/slowly.spec.slow", "")
        ),
    )
    assert "create secret" in calls and "update midway" in calls
    assert "digest:" in annotations("secrets", "secret")[STATE]

    code, output = operators.migrate("to-upstream")
    assert code == 1, "the large one does not fit"
    assert "KopfExample default/large is left as it is: its last handled state does not fit" in output
    sandbox.patch("kopfexamples", "large", {"metadata": {"annotations": {"note": None}}}, namespace="default")
    code, output = operators.migrate("to-upstream")
    assert code == 0 and "KopfExample default/large is moved" in output
    assert json.loads(annotations("secrets", "secret")[STATE])["data"] == {"password": "c2VjcmV0"}
    assert operators.migrate("to-upstream") == (0, "")

    names = "plain", "large", "secret"
    everything = lambda output: resumed(*names)(output) and "CALL slowly midway 1\n" in output  # noqa: E731
    calls = operators.run(operators.upstream, until=everything)
    # What it does is what was left to be done: the rest of an update, and the edit of a moment ago.
    assert [call for call in calls if not call.startswith("resume")] == ["slowly midway 1", "update large"]

    code, output = operators.migrate("from-upstream", "--dry-run")
    assert code == 0 and "Secret default/secret would be moved" in output
    code, output = operators.migrate("from-upstream")
    assert code == 0 and output.count("\n") == 1
    assert "digest:" in annotations("secrets", "secret")[STATE]
    calls = operators.run(sys.executable, until=resumed(*names, "midway"))
    assert [call for call in calls if not call.startswith("resume")] == []


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_without_the_script_upstream_sees_an_update_of_a_secret(operators):
    sandbox = operators.sandbox
    sandbox.create(make("Secret", "secret", data={"password": "c2VjcmV0"}))
    operators.run(
        sys.executable,
        until=lambda _: (
            STATE in sandbox.get("secrets", "secret", namespace="default")["metadata"].get("annotations", {})
        ),
    )
    calls = operators.run(operators.upstream, until=lambda output: "CALL update secret\n" in output)
    assert "update secret" in calls


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_an_update_with_its_progress_in_the_status_goes_on_with_upstream(operators):
    sandbox, conf = operators.sandbox, "settings.posting.enabled = False"
    storage = "settings.persistence.progress_storage = kopf.StatusProgressStorage()"
    operators.folder.joinpath("handlers.py").write_text(HANDLERS.replace(conf, f"{conf}\n    {storage}"))

    def create_and_edit():
        sandbox.create(make("KopfExample", "midway", spec={"slow": 1}))
        wait(lambda: STATE in get()["metadata"].get("annotations", {}), "the creation to be handled")
        sandbox.patch("kopfexamples", "midway", {"spec": {"slow": 2}}, namespace="default")

    def get():
        return sandbox.get("kopfexamples", "midway", namespace="default")

    def is_put_off(_):
        progress = get().get("status", {}).get("kopf", {}).get("progress", {})
        return progress.get("slowly/spec.slow", {}).get("retries")

    calls = operators.run(sys.executable, meanwhile=create_and_edit, until=is_put_off)
    assert calls == ["create midway", "slowly midway 0", "update midway"]
    # Otherwise, upstream would store the records again and again, and would wait for the events of these patches.
    calls = operators.run(operators.upstream, until=lambda output: "CALL slowly midway 1\n" in output)
    assert calls == ["resume midway", "slowly midway 1"]
