"""Everyday commands of kubectl, where it is installed."""
import json
import os
import shutil
import subprocess

import pytest

from kopf.testing import Sandbox

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")

CRD = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": "notes.example.dev"},
    "spec": {"group": "example.dev", "scope": "Namespaced", "names": {
        "plural": "notes", "kind": "Note", "shortNames": ["nt"]}, "versions": [{
            "name": "v1", "served": True, "storage": True, "subresources": {"status": {}},
            "additionalPrinterColumns": [{"name": "Text", "type": "string", "jsonPath": ".spec.text"}],
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                "spec": {"type": "object", "properties": {"text": {"type": "string", "description": "What is noted."}}},
                "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}}}}]},
}
NOTE = {"apiVersion": "example.dev/v1", "kind": "Note", "metadata": {"name": "n", "labels": {"a": "b"}},
        "spec": {"text": "first"}}


@pytest.fixture(scope="module")
def kubectl(tmp_path_factory):
    """Run kubectl and return what it prints; an object among the arguments is given as a file."""
    folder = tmp_path_factory.mktemp("kubectl")

    def kubectl(*arguments):
        words = []
        for number, argument in enumerate(arguments):
            if isinstance(argument, dict):
                (folder / f"{number}.json").write_text(json.dumps(argument))
                argument = str(folder / f"{number}.json")
            words.append(argument)
        process = subprocess.run(
            ["kubectl", f"--cache-dir={folder}/cache", *words], capture_output=True, text=True, timeout=20,
            env={**os.environ, "KUBECONFIG": str(sandbox.kubeconfig)})
        assert process.returncode == 0, process.stderr
        return process.stdout

    with Sandbox() as sandbox:
        kubectl("apply", "-f", CRD)
        kubectl("wait", "--for=condition=Established", "crd/notes.example.dev", "--timeout=10s")
        yield kubectl


def test_looking_around(kubectl):
    assert "kopf-sandbox" in kubectl("version")
    assert "default" in kubectl("get", "namespaces")
    assert "notes" in kubectl("api-resources", "--api-group=example.dev")
    assert "apps/v1" in kubectl("api-versions")
    assert "What is noted." in kubectl("explain", "notes.spec")
    assert "KIND" in kubectl("explain", "pod.spec")


def test_the_life_of_an_object(kubectl):
    assert "created" in kubectl("apply", "-f", NOTE)
    assert kubectl("get", "nt").split() == ["NAME", "TEXT", "n", "first"]
    assert kubectl("get", "nt", "-A", "-l", "a=b", "-o", "name").strip() == "note.example.dev/n"
    assert "Text:  first" in kubectl("describe", "note", "n")
    changed = {**NOTE, "spec": {"text": "second"}}
    assert "unchanged" in kubectl("apply", "-f", NOTE)
    assert "configured" in kubectl("apply", "-f", changed)
    kubectl("patch", "nt", "n", "--type=merge", "-p", '{"spec": {"text": "third"}}')
    kubectl("patch", "nt", "n", "--type=json", "-p", '[{"op": "add", "path": "/metadata/labels/c", "value": "d"}]')
    kubectl("patch", "nt", "n", "--subresource=status", "--type=merge", "-p", '{"status": {"seen": true}}')
    kubectl("label", "nt", "n", "e=f")
    kubectl("annotate", "nt", "n", "g=h")
    body = json.loads(kubectl("get", "nt", "n", "-o", "json"))
    assert (body["spec"], body["status"]) == ({"text": "third"}, {"seen": True})
    assert body["metadata"]["labels"] == {"a": "b", "c": "d", "e": "f"}
    assert "n" in kubectl("get", "nt", "--watch", "--request-timeout=1s")
    assert "replaced" in kubectl("replace", "-f", NOTE)
    assert "deleted" in kubectl("delete", "nt", "n")


def test_generators(kubectl):
    kubectl("create", "secret", "generic", "s", "--from-literal=a=b")
    assert "Opaque" in kubectl("get", "secret", "s")
    kubectl("create", "deployment", "d", "--image=x")
    kubectl("scale", "deployment", "d", "--replicas=3")
    assert kubectl("get", "deployment", "d", "-o", "jsonpath={.spec.replicas}") == "3"
    assert "d" in kubectl("rollout", "history", "deployment/d")
    kubectl("create", "job", "j", "--image=x")
    kubectl("create", "serviceaccount", "a")
    assert kubectl("create", "token", "a").strip()
    kubectl("create", "role", "r", "--verb=get", "--resource=pods")
    kubectl("create", "rolebinding", "b", "--role=r", "--serviceaccount=default:a")
    kubectl("create", "quota", "q", "--hard=pods=2")
    assert kubectl("auth", "can-i", "list", "pods").strip() == "yes"
    assert "sandbox" in kubectl("auth", "whoami")


def test_builtin_kinds(kubectl):
    kubectl("create", "-f", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "b"}})
    assert kubectl("get", "configmap", "c", "--no-headers").split()[:2] == ["c", "1"]
    kubectl("run", "p", "--image=x", "--restart=Never")
    assert "pod/p" in kubectl("get", "all")
    assert "Pending" in kubectl("get", "pods")
    assert "deleted" in kubectl("delete", "pods", "--all", "--wait=false")
