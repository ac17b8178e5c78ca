"""What `kopf manifests` makes: accepted without warnings, unchanged at the second time, and enough for the operator."""

import pathlib
import re
import secrets
import shutil
import subprocess

import pytest
import yaml
from forkserver import run_process
from kubeapi import KubeApi, wait
from operatorprocess import OperatorProcess
from sandboxplane import SandboxPlane

from kopf.testing import Sandbox

ROOT = pathlib.Path(__file__).resolve().parents[2]
APP = '''
import dataclasses
import kopf

@dataclasses.dataclass
class Spec:
    text: str

@dataclasses.dataclass
class Status:
    done: str | None = None

@kopf.kind('GROUP/v1', 'Note')
@dataclasses.dataclass
class Note:
    spec: Spec
    status: Status | None = None

@kopf.on.reconcile(Note, owns=['configmaps'], watches={'secrets': lambda namespace, name, **_: [(namespace, name)]})
async def reconcile(name, spec, children, patch, **_):
    await children.apply({
        'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name}, 'data': {'text': spec.text}
    })
    patch.status = Status(done=spec.text)

@kopf.on.create(Note)
def created(**_):
    pass
'''


@pytest.fixture
def plane(cluster):
    """Yield an API server where roles and bindings decide, and a client of it with all permissions."""
    if not isinstance(cluster, SandboxPlane):
        yield cluster.kubeconfig
        return
    with Sandbox(rbac=True) as sandbox:
        yield sandbox.kubeconfig


@pytest.fixture
def kubectl(plane):
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")

    def run(*args, text=None):
        command = ["kubectl", "--kubeconfig", str(plane), *args]
        done = subprocess.run(command, input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr
        return done.stdout

    return run


def make(path, *options):
    done = run_process(["kopf", "manifests", path, "--image", "registry.example.com/notes:1.0", *options])
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_manifests_are_applied_twice_without_a_change_and_are_enough(plane, kubectl, tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(plane))
    suffix = secrets.token_hex(3)
    name, namespace = f"notes-{suffix}", f"ns-{suffix}"
    path = tmp_path / "app.py"
    path.write_text(APP.replace("GROUP", f"g{suffix}.example.dev"))
    text = make(path, "--name", name, "--in", namespace)
    assert text == make(path, "--name", name, "--in", namespace)
    kubectl("create", "namespace", namespace)
    try:
        kubectl("apply", "-f", "-", text=text)
        again = kubectl("apply", "-f", "-", text=text)
        assert [line for line in again.splitlines() if not line.endswith(" unchanged")] == []
        config = make_kubeconfig(KubeApi(), plane, namespace, name, tmp_path)
        operate(path, config, kubectl, namespace, tmp_path)
    finally:
        kubectl("delete", "-f", "-", "--wait=false", text=text)
        kubectl("delete", "namespace", namespace, "--wait=false")


def operate(path, config, kubectl, namespace, folder):
    group = re.search(r"'(g\w+\.example\.dev)/v1'", path.read_text())[1]
    note = {
        "apiVersion": f"{group}/v1",
        "kind": "Note",
        "metadata": {"name": "a", "namespace": namespace},
        "spec": {"text": "hello"},
    }
    with OperatorProcess("-A", "--standalone", path, log=folder / "log", kubeconfig=str(config)) as operator:
        operator.wait_output("Starting the watch|serves|Initial authentication", timeout=30)
        kubectl("apply", "-f", "-", text=yaml.safe_dump(note))
        get = ("get", f"notes.{group}", "a", "-n", namespace, "-o", "jsonpath={.status.done}")
        wait(lambda: kubectl(*get) == "hello", "the status")
        operator.wait_output("Creation is processed: 1 succeeded", timeout=30)
        assert kubectl("get", "configmap", "a", "-n", namespace, "-o", "jsonpath={.data.text}") == "hello"
        kubectl("delete", f"notes.{group}", "a", "-n", namespace)
        operator.stop()
    assert "ermitted" not in operator.output
    assert "orbidden" not in operator.output


def make_kubeconfig(api, plane, namespace, name, folder):
    """Return a kubeconfig with a token of the operator's service account."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = wait(lambda: api.request("POST", path, body), "a token")["status"]["token"]
    config = yaml.safe_load(pathlib.Path(plane).read_text())
    context = next(each["context"] for each in config["contexts"] if each["name"] == config["current-context"])
    config["users"] = [{"name": context["user"], "user": {"token": token}}]
    target = folder / "kubeconfig"
    target.write_text(yaml.safe_dump(config))
    return target


@pytest.mark.parametrize("options", [[], ["--replicas", "3"], ["-n", "default", "-n", "other"]])
def test_example_manifests_are_accepted_by_the_server(kubectl, options):
    example = ROOT / "examples" / "22-models" / "example.py"
    text = make(example, *options)
    others = [each for each in yaml.safe_load_all(text) if each["metadata"].get("namespace") != "other"]
    kubectl("apply", "--dry-run=server", "-f", "-", text=yaml.safe_dump_all(others))


def test_kustomize_accepts_the_folder(kubectl, tmp_path):
    make(ROOT / "examples" / "22-models" / "example.py", "--kustomize", tmp_path / "deploy")
    rendered = list(yaml.safe_load_all(kubectl("kustomize", str(tmp_path / "deploy"))))
    assert {"Deployment", "CustomResourceDefinition", "ClusterRole"} <= {each["kind"] for each in rendered}
