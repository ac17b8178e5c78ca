"""What `kopf manifests` makes: accepted without warnings, unchanged at the second time, and enough for the operator."""

import contextlib
import pathlib
import re
import secrets
import shutil
import subprocess
import urllib.request

import pytest
import yaml
from forkserver import run_process
from kubeapi import KubeApi, wait
from operatorprocess import OperatorProcess
from ports import free_port
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


@pytest.mark.parametrize(
    "options, beginnings",
    [
        (["--replicas", "2"], {"Elected: this replica", "Standing by: the Lease"}),
        pytest.param(
            ["--replicas", "2", "--shards", "auto"],
            {"This member handles 128 buckets from now on"},
            marks=pytest.mark.long,
        ),
    ],
    ids=["election", "shards"],
)
def test_the_replicas_of_a_deployment_hand_over_with_just_its_roles(
    plane, kubectl, tmp_path, monkeypatch, options, beginnings
):
    monkeypatch.setenv("KUBECONFIG", str(plane))
    suffix = secrets.token_hex(3)
    name = namespace = f"notes-{suffix}"
    path = tmp_path / "app.py"
    path.write_text(APP.replace("GROUP", f"g{suffix}.example.dev"))
    text = make(path, "--name", name, "--in", namespace, *options)
    kubectl("create", "namespace", namespace)
    try:
        kubectl("apply", "-f", "-", text=text)
        config = make_kubeconfig(KubeApi(), plane, namespace, name, tmp_path)
        [deployment] = [each for each in yaml.safe_load_all(text) if each["kind"] == "Deployment"]
        with contextlib.ExitStack() as stack:
            replicas = []
            for number in range(deployment["spec"]["replicas"]):
                replica = Replica(deployment, path, config, tmp_path / f"log-{number}")
                replicas.append(stack.enter_context(replica.operator))
                wait(replica.is_ready, "the replica to be ready")
            found = [
                beginning
                for operator in replicas
                for beginning in beginnings
                if operator.wait_output("|".join(beginnings)) and beginning in operator.output
            ]
            assert set(found) == beginnings and len(found) == len(replicas)
            handle(kubectl, f"g{suffix}.example.dev", namespace, "a")
            for leaving, operator in enumerate(replicas[:-1]):
                operator.stop()
                handle(kubectl, f"g{suffix}.example.dev", namespace, f"b-{leaving}")
            replicas[-1].stop()
        for operator in replicas:
            assert "ermitted" not in operator.output and "orbidden" not in operator.output
    finally:
        kubectl("delete", "-f", "-", "--wait=false", text=text)
        kubectl("delete", "namespace", namespace, "--wait=false")


class Replica:
    """One pod of a Deployment, as a process with the command of its container."""

    def __init__(self, deployment, path, config, log):
        [container] = deployment["spec"]["template"]["spec"]["containers"]
        port, probe = free_port(), container["readinessProbe"]["httpGet"]["path"]
        self._url = f"http://127.0.0.1:{port}{probe}"
        words = [word.replace("0.0.0.0:8080", f"127.0.0.1:{port}") for word in container["command"]]
        assert words[:2] == ["kopf", "run"]
        self.operator = OperatorProcess(
            *[str(path) if word == f"/app/{path.name}" else word for word in words[2:]],
            log=log,
            kubeconfig=str(config),
        )

    def is_ready(self):
        """Check whether the probe of the container succeeds."""
        with contextlib.suppress(OSError):  # including refusals by HTTP
            with urllib.request.urlopen(self._url, timeout=5) as response:
                return response.status == 200
        return False


def handle(kubectl, group, namespace, name):
    """Create an object, and delete it when it is handled."""
    meta = {"name": name, "namespace": namespace}
    note = {"apiVersion": f"{group}/v1", "kind": "Note", "metadata": meta, "spec": {"text": "hello"}}
    kubectl("apply", "-f", "-", text=yaml.safe_dump(note))
    get = ("get", f"notes.{group}", name, "-n", namespace, "-o", "jsonpath={.status.done}")
    wait(lambda: kubectl(*get) == "hello", "the status")
    kubectl("delete", f"notes.{group}", name, "-n", namespace)


def make_kubeconfig(api, plane, namespace, name, folder):
    """Return a kubeconfig with a token of the operator's service account, and with its namespace, as in a pod."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = wait(lambda: api.request("POST", path, body), "a token")["status"]["token"]
    config = yaml.safe_load(pathlib.Path(plane).read_text())
    context = next(each["context"] for each in config["contexts"] if each["name"] == config["current-context"])
    context["namespace"] = namespace
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
