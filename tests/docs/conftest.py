"""One sandbox for all pages; one namespace for each check."""

import itertools
import sys

import pytest
from snippets import ROOT
from stage import pointing

from kopf.testing import Sandbox

CLIENTS = ("kubernetes", "kubernetes_asyncio", "pykube")
CRDS = [ROOT / "examples" / "crd.yaml", ROOT / "peering.yaml"]
_numbers = itertools.count(1)


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """Return the current folder: it has what users find in the repository."""
    for name in ("examples", "peering.yaml", "scripts"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def hide_clients(monkeypatch):
    """Return a function that hides the client libraries, as in an image with kopf alone, except those in the texts.

    Operators would log in by all of them, and they read the kubeconfig with YAML's slow parser.
    """

    def hide_clients(texts):
        words = " ".join(texts)
        for name in CLIENTS:
            if name not in words:
                monkeypatch.setitem(sys.modules, name, None)

    return hide_clients


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory):
    """Yield the value of KUBECONFIG, the same for all sandboxes: client libraries remember it for ever."""
    path = tmp_path_factory.mktemp("kubeconfig") / "kubeconfig"
    with pytest.MonkeyPatch.context() as patching:
        patching.setenv("KUBECONFIG", str(path))
        yield path


@pytest.fixture(scope="session")
def sandbox(kubeconfig):
    """Yield a sandbox with the kinds of the examples and of peering; KUBECONFIG points to it."""
    with Sandbox(crds=CRDS) as sandbox, pointing(kubeconfig, sandbox):
        yield sandbox


@pytest.fixture
def empty_sandbox(sandbox, kubeconfig):
    """Another one that has no objects yet."""
    with Sandbox(crds=CRDS) as empty_sandbox, pointing(kubeconfig, empty_sandbox):
        yield empty_sandbox


@pytest.fixture
def namespace(sandbox):
    """Return a new namespace."""
    name = f"docs-{next(_numbers)}"
    sandbox.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return name
