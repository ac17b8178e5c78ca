"""What `kopf manifests` makes: accepted without warnings, unchanged at the second time, and enough for the operator."""

import contextlib
import json
import os
import pathlib
import re
import secrets
import shutil
import subprocess
import urllib.request

import pytest
import yaml
from controlplane import binary
from forkserver import run_process
from kubeapi import KubeApi, wait
from operatorprocess import OperatorProcess
from ports import free_port
from sandboxplane import SandboxPlane
from snippets import find_page, read_page

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

    def run(*args, text=None, succeeds=True):
        command = ["kubectl", "--kubeconfig", str(plane), *args]
        done = subprocess.run(command, input=text, capture_output=True, text=True)
        assert (done.returncode == 0) == succeeds, done.stderr
        assert "Warning" not in done.stderr
        return done.stdout if succeeds else done.stderr

    return run


def make(path, *options):
    done = run_process(["kopf", "manifests", path, "--image", "registry.example.com/notes:1.0", *options])
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize("form", ["stream", "kustomize"])
def test_manifests_are_applied_twice_without_a_change_and_are_enough(plane, kubectl, tmp_path, monkeypatch, form):
    monkeypatch.setenv("KUBECONFIG", str(plane))
    suffix = secrets.token_hex(3)
    name, namespace = f"notes-{suffix}", f"ns-{suffix}"
    path = tmp_path / "app.py"
    path.write_text(APP.replace("GROUP", f"g{suffix}.example.dev"))
    options = ["--kustomize", tmp_path / "deploy"] if form == "kustomize" else []
    text = make(path, "--name", name, "--in", namespace, *options)
    assert text == make(path, "--name", name, "--in", namespace, *options)
    given = ["-k", str(tmp_path / "deploy")] if form == "kustomize" else ["-f", "-"]
    kubectl("create", "namespace", namespace)
    try:
        assert "deployment.apps" in kubectl("apply", *given, text=text)
        again = kubectl("apply", *given, text=text)
        assert [line for line in again.splitlines() if not line.endswith(" unchanged")] == []
        config = make_kubeconfig(KubeApi(), plane, namespace, name, tmp_path)
        operate(path, config, kubectl, namespace, tmp_path)
    finally:
        kubectl("delete", *given, "--wait=false", text=text)
        kubectl("delete", "namespace", namespace, "--wait=false")


@pytest.mark.thorough
def test_a_chart_is_installed_twice_without_a_change_and_is_enough(plane, kubectl, tmp_path, monkeypatch):
    """In another namespace than the one that the chart was made for; the operator serves this and a second one."""
    helm = Helm(plane)
    monkeypatch.setenv("KUBECONFIG", str(plane))
    suffix = secrets.token_hex(3)
    name, namespace, other = f"notes-{suffix}", f"ns-{suffix}", f"other-{suffix}"
    path, chart = tmp_path / "app.py", tmp_path / "chart"
    path.write_text(APP.replace("GROUP", f"g{suffix}.example.dev"))
    make(path, "--name", name, "--in", "made-for", "-n", "made-for", "-n", other, "--helm", chart)
    kubectl("create", "namespace", other)
    try:
        helm("lint", "--strict", chart)
        install = ["upgrade", "--install", "--create-namespace", "--namespace", namespace, name, chart]
        helm(*install)
        manifest = helm("get", "manifest", "--namespace", namespace, name)
        assert {each["kind"] for each in yaml.safe_load_all(manifest)} >= {"Deployment", "ClusterRole", "Role"}
        before = read_versions(kubectl, manifest)
        helm(*install)
        assert helm("get", "manifest", "--namespace", namespace, name) == manifest
        assert read_versions(kubectl, manifest) == before
        [deployment] = [each for each in yaml.safe_load_all(manifest) if each["kind"] == "Deployment"]
        command = deployment["spec"]["template"]["spec"]["containers"][0]["command"]
        assert command[2:4] == [f"--namespace={namespace}", f"--namespace={other}"]
        config = make_kubeconfig(KubeApi(), plane, namespace, name, tmp_path)
        operate(path, config, kubectl, other, tmp_path, scope=command[2:4])
        refused = helm("upgrade", "--namespace", namespace, "--set", "replicas=2", name, chart, succeeds=False)
        assert "Several replicas need a leader election or shards" in refused
    finally:
        helm("uninstall", "--namespace", namespace, name)
        kubectl("delete", "customresourcedefinition", f"notes.g{suffix}.example.dev", "--wait=false")
        kubectl("delete", "namespace", namespace, other, "--wait=false")


class Helm:
    """The command line of Helm: the installed one, or one that is built with Go (two minutes of CPU) and kept."""

    VERSION = "v3.21.4"

    def __init__(self, kubeconfig):
        self._kubeconfig = kubeconfig
        self._binary = shutil.which("helm") or str(self._build())

    def _build(self):
        folder = binary().parent
        path = folder / "helm"
        if not path.exists():
            if shutil.which("go") is None:
                pytest.skip("there is neither Helm nor Go to build it")
            environment = {**os.environ, "GOBIN": str(folder), "CGO_ENABLED": "0"}
            subprocess.run(["go", "install", f"helm.sh/helm/v3/cmd/helm@{self.VERSION}"], env=environment, check=True)
        return path

    def __call__(self, *args, succeeds=True):
        command = [self._binary, "--kubeconfig", str(self._kubeconfig), *map(str, args)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode == 0) == succeeds, done.stderr
        assert not re.search("(?i)warning", done.stderr)
        return done.stdout if succeeds else done.stderr


def read_versions(kubectl, manifest):
    """Return the versions of all objects of the manifest, which change with each write."""
    found = yaml.safe_load(kubectl("get", "-f", "-", "-o", "yaml", text=manifest))["items"]
    return {(each["kind"], each["metadata"]["name"]): each["metadata"]["resourceVersion"] for each in found}


def operate(path, config, kubectl, namespace, folder, scope=("-A",)):
    group = re.search(r"'(g\w+\.example\.dev)/v1'", path.read_text())[1]
    note = {
        "apiVersion": f"{group}/v1",
        "kind": "Note",
        "metadata": {"name": "a", "namespace": namespace},
        "spec": {"text": "hello"},
    }
    with OperatorProcess(*scope, "--standalone", path, log=folder / "log", kubeconfig=str(config)) as operator:
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
        ),
    ],
    ids=["election", "shards"],
)
@pytest.mark.long
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

    def __init__(self, deployment, path, config, log, **environment):
        [container] = deployment["spec"]["template"]["spec"]["containers"]
        port, probe = free_port(), container["readinessProbe"]["httpGet"]["path"]
        self._url = f"http://127.0.0.1:{port}{probe}"
        words = [word.replace("0.0.0.0:8080", f"127.0.0.1:{port}") for word in container["command"]]
        assert words[:2] == ["kopf", "run"]
        self.operator = OperatorProcess(
            *[str(path) if word == f"/app/{path.name}" else word for word in words[2:]],
            log=log,
            kubeconfig=str(config),
            **environment,
        )

    def is_ready(self):
        """Check whether the probe of the container succeeds."""
        with contextlib.suppress(OSError):  # including refusals by HTTP
            with urllib.request.urlopen(self._url, timeout=5) as response:
                return response.status == 200
        return False


@pytest.mark.long
def test_the_operator_of_the_tutorial_is_deployed_as_the_page_says(plane, kubectl, tmp_path, monkeypatch):
    """With its Service, its roles, and the command of its container; only the image is not there."""
    monkeypatch.setenv("KUBECONFIG", str(plane))
    suffix = secrets.token_hex(3)
    namespace, group, port = f"webapps-{suffix}", f"g{suffix}.example.dev", free_port()
    path = write_tutorial(tmp_path, group, f"name='webapp-operator', namespace='{namespace}', port={port}")
    text = make(path, "--name", "webapp-operator", "--in", namespace)
    path = write_tutorial(
        tmp_path, group, f"name='webapp-operator', namespace='{namespace}', port={port}, service_port={port}"
    )
    kubectl("create", "namespace", namespace)
    try:
        kubectl("apply", "-f", "-", text=text)
        # There are no pods, nor a network between them: the name of the Service leads to this machine.
        kubectl("delete", "service", "webapp-operator", "-n", namespace)
        kubectl("create", "service", "externalname", "webapp-operator", "-n", namespace, "--external-name=localhost")
        config = make_kubeconfig(KubeApi(), plane, namespace, "webapp-operator", tmp_path)
        [deployment] = [each for each in yaml.safe_load_all(text) if each["kind"] == "Deployment"]
        replica = Replica(deployment, path, config, tmp_path / "log", KUBERNETES_SERVICE_HOST="localhost")
        with replica.operator as operator:
            wait(replica.is_ready, "the operator to be ready")
            operator.wait_output("Reconfiguring the validating webhook")
            kubectl("apply", "-n", namespace, "-f", str(tmp_path / "obj.yaml"))
            run_deployment(kubectl, namespace, "shop")
            get = ("get", f"webapps.{group}", "-n", namespace, "--no-headers")
            wait(lambda: kubectl(*get).split()[:3] == ["shop", "True", "2"], "the WebApp to be ready")
            kubectl("delete", "service", "shop", "-n", namespace)
            wait(lambda: "shop" in kubectl("get", "services", "-n", namespace), "the Service to be restored")
            for patch, reason in [({"replicas": 11}, "replicas must be from 0 to 10"), ({"image": "x"}, "has no tag")]:
                refused = ["patch", f"webapps.{group}", "shop", "-n", namespace, "--type", "merge", "-p"]
                assert reason in kubectl(*refused, json.dumps({"spec": patch}), succeeds=False)
            assert operator.stop()[0] == 0
        assert "ermitted" not in operator.output and "orbidden" not in operator.output, operator.output
    finally:
        kubectl("delete", "-f", "-", "--wait=false", "--ignore-not-found", text=text)
        kubectl("delete", "namespace", namespace, "--wait=false")


def write_tutorial(folder, group, service):
    """Write the files of the tutorial, with another group and other arguments of the server for the Service."""
    page = read_page(find_page("operator"))
    parts = [block.text for block in page.files if block.caption in ("app.py", "app.py, at the end")]
    code = "\n".join(parts).replace("example.com", group).replace("name='webapp-operator'", service)
    assert len(parts) == 3 and service in code
    (folder / "app.py").write_text(code)
    [obj] = [block.text for block in page.shells if block.text.startswith("cat > obj.yaml")]
    (folder / "obj.yaml").write_text("\n".join(obj.replace("example.com", group).splitlines()[1:-1]))
    return folder / "app.py"


def run_deployment(kubectl, namespace, name):
    """Report the pods of the Deployment as ready, as its controller does."""
    found = ("get", "deployment", "-n", namespace, "-o", "name")
    wait(lambda: f"deployment.apps/{name}" in kubectl(*found), "the Deployment")
    body = yaml.safe_load(kubectl("get", "deployment", name, "-n", namespace, "-o", "yaml"))
    count = body["spec"]["replicas"]
    numbers = dict.fromkeys(("replicas", "readyReplicas", "availableReplicas", "updatedReplicas"), count)
    status = {"status": {"observedGeneration": body["metadata"]["generation"], **numbers}}
    kubectl(
        *("patch", "deployment", name, "-n", namespace, "--subresource=status", "--type=merge"),
        "-p",
        json.dumps(status),
    )


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


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--replicas", "3"],
        ["-n", "default", "-n", "other"],
    ],
)
def test_example_manifests_are_accepted_by_the_server(kubectl, options):
    example = ROOT / "examples" / "22-models" / "example.py"
    text = make(example, *options)
    others = [each for each in yaml.safe_load_all(text) if each["metadata"].get("namespace") != "other"]
    kubectl("apply", "--dry-run=server", "-f", "-", text=yaml.safe_dump_all(others))


def test_kustomize_accepts_the_folder(kubectl, tmp_path):
    make(ROOT / "examples" / "22-models" / "example.py", "--kustomize", tmp_path / "deploy")
    rendered = list(yaml.safe_load_all(kubectl("kustomize", str(tmp_path / "deploy"))))
    assert {"Deployment", "CustomResourceDefinition", "ClusterRole"} <= {each["kind"] for each in rendered}
