"""`kopf sandbox` and `kopf run --sandbox`: as users run them, with real signals; and what they say when they cannot."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request

import pytest
from forkserver import run_process, start_process
from kinds import define
from kubeapi import KubeApi, wait
from operatorprocess import OperatorProcess

from kopf.testing import KopfRunner, Sandbox

CRD = define(
    "notes",
    "Note",
    schema={
        "type": "object",
        "properties": {
            "spec": {"type": "object", "properties": {"size": {"type": "integer", "maximum": 9}}},
            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        },
    },
)
NOTE = "{apiVersion: example.dev/v1, kind: Note, metadata: {name: 'n', namespace: default}, spec: {size: %s}}"
HANDLERS = """
import os, kopf

@kopf.on.login()
def login(**_):
    raise kopf.PermanentError("The way to another cluster.")

@kopf.on.create('notes')
def created(**_):
    return os.environ['KUBECONFIG'], os.environ.get('KUBERNETES_SERVICE_HOST')
"""


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "crd.yaml").write_text(json.dumps(CRD))
    (tmp_path / "good.yaml").write_text(NOTE % 1)
    (tmp_path / "bad.yaml").write_text(NOTE % 10)
    (tmp_path / "handlers.py").write_text(HANDLERS)


@pytest.fixture
def run_kopf():
    """Run a command that fails; return its exit code and its output."""

    def run(*args, **env):
        done = run_process(["kopf", *args], env={**os.environ, **env})
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.fixture
def start_sandbox(tmp_path):
    """Start `kopf sandbox` with these options; return the process and its first line on stdout."""
    with contextlib.ExitStack() as stack:

        def start(*args):
            reading, writing = os.pipe()
            output = stack.enter_context(open(reading))
            with open(writing, "wb") as stdout, open(tmp_path / "errors", "wb") as stderr:
                process = start_process(["kopf", "sandbox", *args], stdout=stdout, stderr=stderr)
            stack.callback(process.kill)
            return process, output.readline()

        yield start


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_the_sandbox_runs_without_an_operator(start_sandbox, monkeypatch, tmp_path, sig):
    process, line = start_sandbox("--crd", "crd.yaml", "--load", "good.yaml")
    kubeconfig = re.fullmatch(r"export KUBECONFIG=(/\S+)\n", line)[1]
    monkeypatch.setenv("KUBECONFIG", kubeconfig)
    assert KubeApi().get("example.dev/v1", "Note", "default", "n")["spec"] == {"size": 1}
    process.send_signal(sig)
    assert process.wait(60) == 0
    banner = (tmp_path / "errors").read_text()
    assert "development and tests only" in banner
    assert "https://127.0.0.1:" in banner
    assert "Traceback" not in banner
    assert not os.path.exists(kubeconfig)


@pytest.mark.parametrize("options", [[], ["--pods"]])
def test_the_sandbox_says_whether_pods_run(start_sandbox, tmp_path, options):
    process, _ = start_sandbox(*options)
    process.terminate()
    process.wait(60)
    assert ("No pods run" in (tmp_path / "errors").read_text()) is not bool(options)


def test_the_sandbox_is_ended_by_signals_to_any_thread(tmp_path):
    """Waiting is interrupted in that thread alone that a signal finds; nor by one that comes right before it."""
    code = """
import os, signal, threading, time
from kopf import cli
def end():
    while not os.path.exists("config"):
        time.sleep(0.01)
    time.sleep(0.5)  # now, the other thread waits
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
threading.Thread(target=end, daemon=True).start()
cli.main(["sandbox", "--kubeconfig", "config"])
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, timeout=60, capture_output=True).returncode == 0


def test_the_kubeconfig_where_it_is_wanted(start_sandbox, tmp_path):
    for _ in range(2):  # What a sandbox has left is replaced by the next one.
        process, line = start_sandbox("--kubeconfig", "config")
        assert line == f"export KUBECONFIG={tmp_path}/config\n"
        process.terminate()
        process.wait(60)
    assert (tmp_path / "config").exists()


@pytest.mark.parametrize("closed", ["<&-", "<&- >&-"])
def test_an_operator_without_standard_streams_ends_well(tmp_path, closed):
    """Their numbers must not be those of sockets: libuv aborts when it closes one, and prints would go into them."""
    names = "started", "ended"
    handlers = zip(["startup", "cleanup"], names, strict=True)
    code = "".join(f"@kopf.on.{activity}()\ndef {name}(): open({name!r}, 'w').close()\n" for activity, name in handlers)
    (tmp_path / "marking.py").write_text(f"import kopf\n{code}")
    command = [sys.executable, "-m", "kopf", "run", "--sandbox", "marking.py"]
    with open("errors", "w") as errors:
        process = subprocess.Popen(["sh", "-c", f'exec "$@" {closed}', "sh", *command], stderr=errors)
        try:
            wait((tmp_path / "started").exists, "the startup handler")
            process.terminate()
            assert process.wait(60) == 0, (tmp_path / "errors").read_text()
        finally:
            process.kill()
    assert all((tmp_path / name).exists() for name in names)


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_an_operator_with_a_sandbox(tmp_path, monkeypatch, sig):
    args = ["--sandbox", "--crd", "crd.yaml", "--load", "good.yaml", "handlers.py"]
    env = {"KUBERNETES_SERVICE_HOST": "192.0.2.1", "KUBERNETES_SERVICE_PORT": "443"}
    with OperatorProcess(*args, log=tmp_path / "log", kubeconfig="/nonexistent", **env) as operator:
        kubeconfig = operator.wait_output(r"(?m)^export KUBECONFIG=(/\S+)$")[1]
        monkeypatch.setenv("KUBECONFIG", kubeconfig)
        api = KubeApi()
        status = wait(lambda: api.get("example.dev/v1", "Note", "default", "n").get("status"), "the status")
        assert operator.stop(sig)[0] == 0
    assert status == {"created": [kubeconfig, None]}
    assert "development and tests only" in operator.output
    assert "The login handlers are not called" in operator.output
    assert "another cluster" not in operator.output
    assert "Traceback" not in operator.output
    assert not os.path.exists(kubeconfig)


def test_the_link_of_the_inspector_is_printed(tmp_path):
    args = ["--sandbox", "--inspect", "--crd", "crd.yaml", "handlers.py"]
    with OperatorProcess(*args, log=tmp_path / "log", kubeconfig="/nonexistent") as operator:
        link = operator.wait_output(r"The inspector is at (http://127\.0\.0\.1:\d+/)#token=\S+")[1]
        with urllib.request.urlopen(link, timeout=60) as response:
            assert "<title>kopf inspector</title>" in response.read().decode()
        assert operator.stop()[0] == 0


def test_the_environment_is_restored(monkeypatch):
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "192.0.2.1")
    threads = set(threading.enumerate())
    args = ["--crd", "crd.yaml", "--load", "good.yaml", "handlers.py"]
    with KopfRunner(["run", "--sandbox", *args], timeout=60):
        api = KubeApi()
        wait(lambda: api.get("example.dev/v1", "Note", "default", "n").get("status"), "the status")
        assert os.environ["KUBECONFIG"] != "/nonexistent"
        assert "KUBERNETES_SERVICE_HOST" not in os.environ
    assert os.environ["KUBECONFIG"] == "/nonexistent"
    assert os.environ["KUBERNETES_SERVICE_HOST"] == "192.0.2.1"
    assert "kopf-sandbox" not in {thread.name for thread in set(threading.enumerate()) - threads}


@pytest.mark.parametrize("command", [["sandbox"], ["run", "--sandbox", "handlers.py"]])
def test_refused_manifests_are_named_with_the_reason(run_kopf, command):
    code, output = run_kopf(*command, "--crd", "crd.yaml", "--load", "bad.yaml")
    assert code == 1
    for part in ["bad.yaml", "Note 'n'", "spec.size", "less than or equal to 9"]:
        assert part in output


@pytest.mark.parametrize("command", [["sandbox"], ["run", "--sandbox", "handlers.py"]])
def test_objects_without_their_kinds(run_kopf, command):
    code, output = run_kopf(*command, "--load", "good.yaml")
    assert code == 1
    assert (
        'no matches for kind "Note" in version "example.dev/v1". Put the CRD of this kind there first, by --crd.'
        in (output.replace("\n", " "))
    )


def test_absent_manifests_are_named(run_kopf):
    code, output = run_kopf("sandbox", "--crd", "absent.yaml")
    assert code == 2
    assert "'absent.yaml' does not exist" in output


def test_nothing_is_applied_to_real_clusters(run_kopf):
    code, output = run_kopf("run", "--load", "good.yaml", "handlers.py")
    assert code == 2
    assert "--sandbox only" in output


def test_a_port_that_is_taken_is_an_error(run_kopf):
    with Sandbox() as other:
        code, output = run_kopf("sandbox", "--port", other.url.rpartition(":")[2])
    assert code == 1
    assert "address already in use" in output.lower()


@pytest.mark.parametrize("content", ["apiVersion: v1\n", '{"clusters": [{"name": "production"}]}', "[]"])
def test_kubeconfigs_of_others_are_spared(run_kopf, tmp_path, content):
    (tmp_path / "config").write_text(content)
    code, output = run_kopf("sandbox", "--kubeconfig", "config")
    assert code == 1
    assert "config is not overwritten, as it was not written by a sandbox" in output
    assert (tmp_path / "config").read_text() == content


def test_no_way_to_make_certificates(run_kopf, tmp_path):
    (tmp_path / "cryptography").mkdir()
    (tmp_path / "cryptography" / "__init__.py").write_text("raise ImportError")
    code, output = run_kopf("sandbox", PYTHONPATH=str(tmp_path), PATH=str(tmp_path))
    assert code == 1
    assert 'install the Python package "cryptography", or the command "openssl"' in output


WEBHOOKS = """
import kopf

@kopf.on.startup()
def configure(settings, **_):
    settings.admission.server = kopf.WebhookServer(addr='127.0.0.1')
    settings.admission.managed = {managed!r}

@kopf.on.mutate('notes')
def fill(patch, **_):
    patch.spec['size'] = 2

@kopf.on.validate('notes')
def check(name, **_):
    if name == 'refused':
        raise kopf.AdmissionError("No such notes here.")

@kopf.on.create('notes')
def created(spec, **_):
    return spec['size']
"""


def test_loaded_objects_are_checked_by_the_webhooks_of_the_operator(tmp_path, monkeypatch):
    (tmp_path / "handlers.py").write_text(WEBHOOKS.format(managed='check.example.dev'))
    (tmp_path / "refused.yaml").write_text((NOTE % 1).replace("name: 'n',", "name: refused,"))
    args = ["--sandbox", "--crd", "crd.yaml", "--load", "refused.yaml", "--load", "good.yaml", "handlers.py"]
    with OperatorProcess(*args, log=tmp_path / "log", kubeconfig="/nonexistent") as operator:
        monkeypatch.setenv("KUBECONFIG", operator.wait_output(r"(?m)^export KUBECONFIG=(/\S+)$")[1])
        api = KubeApi()
        body = wait(lambda: api.get("example.dev/v1", "Note", "default", "n"), "the object")
        assert body["spec"] == {"size": 2}
        wait(lambda: api.get("example.dev/v1", "Note", "default", "n").get("status") == {"created": 2}, "the status")
        assert api.get("example.dev/v1", "Note", "default", "refused") is None
    assert re.search(
        r"Not loaded: refused.yaml: Note 'refused': admission webhook .* denied the request: "
        r"No such notes here\.",
        operator.output,
    )
    assert "not checked" not in operator.output


def test_loaded_objects_that_are_not_checked_are_told_of(tmp_path, monkeypatch):
    (tmp_path / "handlers.py").write_text(WEBHOOKS.format(managed=None))
    args = ["--sandbox", "--crd", "crd.yaml", "--load", "good.yaml", "handlers.py"]
    with OperatorProcess(*args, log=tmp_path / "log", kubeconfig="/nonexistent") as operator:
        monkeypatch.setenv("KUBECONFIG", operator.wait_output(r"(?m)^export KUBECONFIG=(/\S+)$")[1])
        operator.wait_output(
            r"The objects of --load are not checked by the webhooks of the operator: it does not "
            r"write their configurations, because settings\.admission\.managed is not set\."
        )
        wait(lambda: KubeApi().get("example.dev/v1", "Note", "default", "n"), "the object")


CONVERSIONS = """
import dataclasses, kopf

@dataclasses.dataclass
class OldSpec:
    at: str

@kopf.kind('alarms.example.dev/v1', 'Alarm')
@dataclasses.dataclass
class OldAlarm:
    spec: OldSpec

@dataclasses.dataclass
class Spec:
    hour: int

@kopf.kind('alarms.example.dev/v2', conditions=True)
@dataclasses.dataclass
class Alarm:
    spec: Spec

@kopf.on.startup()
def configure(settings, **_):
    settings.admission.server = kopf.WebhookServer(addr='127.0.0.1')
    settings.admission.managed = 'alarms.example.dev'

@kopf.on.convert(OldAlarm, Alarm)
def upgrade(obj, **_):
    return Alarm(Spec(int(obj.spec.at)))

@kopf.on.convert(Alarm, OldAlarm)
def downgrade(obj, **_):
    return OldAlarm(OldSpec(str(obj.spec.hour)))

@kopf.on.create(Alarm)
def created(spec, **_):
    print(f'The hour is {spec.hour}.')
"""


@pytest.mark.parametrize("options", [[], ["--reload"]], ids=["once", "reload"])
def test_loaded_objects_of_former_versions_wait_for_their_conversion(tmp_path, options):
    (tmp_path / "handlers.py").write_text(CONVERSIONS)
    old = "{apiVersion: alarms.example.dev/v1, kind: Alarm, metadata: {name: 'n', namespace: default}, spec: {at: '7'}}"
    (tmp_path / "old.yaml").write_text(old)
    args = ["--sandbox", *options, "--load", "old.yaml", "handlers.py"]
    with OperatorProcess(*args, log=tmp_path / "log", kubeconfig="/nonexistent") as operator:
        operator.wait_output(r"The hour is 7\.")
    assert "Not loaded" not in operator.output
