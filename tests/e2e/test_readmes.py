"""What the READMEs of the examples say is what comes: see `readmes` for how they are read."""

import pathlib
import re
import shutil
import subprocess
import sys
import threading

import pytest
from controlplane import ControlPlane
from readmes import Walkthrough

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = sorted(path for path in (ROOT / "examples").iterdir() if path.is_dir())
SCRIPTS = sorted(path for path in (ROOT / "examples").glob("*/*.py"))

SOME = {"01-minimal", "03-exceptions"}
"""The examples for each test run: the first one, and those whose READMEs are read in different ways."""

# One is not an operator to be run, but tests to be run, which `tests/sandbox/test_plugin.py` does.
RUNNABLE = [
    pytest.param(path.name, marks=[] if path.name in SOME else [pytest.mark.long])
    for path in EXAMPLES
    if path.name != "09-testing"
]


# Here the readers, or the tests, play the nodes and the provisioner of volumes.
PLAYED = {"10-builtins", "18-walkthrough"}


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize("name", RUNNABLE)
def test_commands_of_readmes_print_what_they_say(name, follow):
    follow(name)


def test_all_are_listed():
    listed = re.findall(r"(?m)^\| \[(\S+)\]\((\S+)/\) \|", (ROOT / "examples" / "README.md").read_text())
    assert listed == [(path.name, path.name) for path in EXAMPLES]


def test_all_can_be_imported():
    """In one process, as loading the package takes most of the time."""
    code = """if True:
        import importlib.util, sys
        for number, path in enumerate(sys.argv[1:]):
            spec = importlib.util.spec_from_file_location(f"example{number}", path)
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
    """
    done = subprocess.run([sys.executable, "-W", "error", "-c", code, *SCRIPTS], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.fixture
def follow(cluster, request, name):
    """Do all that the README says: on the cluster, or in a sandbox of its own."""
    if kind_of(cluster) == "sandbox":
        return lambda name: walk(name, request.getfixturevalue("tmp_path"))
    if cluster.external and name in PLAYED:
        pytest.skip("this cluster has nodes and volumes of its own")
    if name == "18-walkthrough":
        request.getfixturevalue("volumes")
    folder, kubeconfig, namespace = map(request.getfixturevalue, ["tmp_path", "kubeconfig", "namespace"])
    return lambda name: walk(name, folder, kubeconfig, namespace)


def walk(name, folder, kubeconfig=None, namespace=""):
    with Walkthrough(ROOT / "examples" / name / "README.md", folder, kubeconfig, namespace) as walkthrough:
        walkthrough.follow()


def kind_of(cluster):
    return "real" if isinstance(cluster, ControlPlane) else "sandbox"


@pytest.fixture
def kubeconfig(cluster, namespace, tmp_path):
    """That of the control plane, with the namespace of the test as the default."""
    path = tmp_path / "kubeconfig"
    config = ["kubectl", "--kubeconfig", cluster.kubeconfig, "config"]
    path.write_text(subprocess.check_output([*config, "view", "--raw", "--flatten"], text=True))
    subprocess.check_call([*config[:2], path, "config", "set-context", "--current", f"--namespace={namespace}"])
    return str(path)


@pytest.fixture
def volumes(kubeapi, namespace):
    """Yield a class of volumes that can grow, and remove all claims of the namespace, as no controller does that."""
    path = "/apis/storage.k8s.io/v1/storageclasses"
    kubeapi.request(
        "POST",
        path,
        {
            "metadata": {"name": namespace, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
            "provisioner": "example.com/none",
            "allowVolumeExpansion": True,
        },
    )
    ended = threading.Event()

    def let_go():
        while not ended.wait(0.1):
            for claim in kubeapi.items("v1", "PersistentVolumeClaim", namespace):
                name = claim["metadata"]["name"]
                if claim["metadata"].get("deletionTimestamp"):
                    # There is no controller that takes away the protection of volumes that are in use.
                    kubeapi.patch("v1", "PersistentVolumeClaim", namespace, name, {"metadata": {"finalizers": None}})

    ending = threading.Thread(target=let_go)
    ending.start()
    yield
    ended.set()
    ending.join()
    kubeapi.request("DELETE", f"{path}/{namespace}")
