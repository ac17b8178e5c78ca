"""An operator's folder: a kind with a schema, an object, and a module that stands for a cloud."""

import textwrap

import pytest

from kopf.testing import Sandbox

CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: webs.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Web, plural: webs, singular: web}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            required: [size]
            properties:
              size: {type: integer, minimum: 0, maximum: 5}
              color: {type: string, enum: [red, green]}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
"""

OBJECT = """
apiVersion: example.com/v1
kind: Web
metadata: {name: w1}
spec: {size: 2}
"""

CLOUD = """
servers = {}

def create(size):
    import uuid
    key = f'server-{uuid.uuid4()}'
    servers[key] = {'size': size}
    return key

def put(key, server):
    servers[key] = server
"""


@pytest.fixture
def write(tmp_path):
    """Write the handlers of an operator to a file in the folder; return its path."""
    (tmp_path / "crd.yaml").write_text(CRD)
    (tmp_path / "web.yaml").write_text(OBJECT)
    (tmp_path / "cloud.py").write_text(CLOUD)

    def write(text, name="app.py"):
        path = tmp_path / name
        path.write_text("import kopf\n" + textwrap.dedent(text))
        return path

    return write


@pytest.fixture
def sandbox(tmp_path, monkeypatch):
    """Yield a sandbox that stands for a cluster: that of KUBECONFIG, with the namespace of a course."""
    with Sandbox(kubeconfig=tmp_path / "admin") as sandbox:
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "admin"))
        sandbox.create("namespaces", "run-1")
        yield sandbox
