"""Conversions as users of the cluster see them: one object in several versions, by an API that asks the operator."""

import textwrap

import pytest
from kubeapi import ApiError, wait
from ports import free_port

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

HEAD = """
    import asyncio, kopf, os

    @kopf.on.startup()
    def configure(settings, **_):
        settings.admission.server = eval(os.environ["SERVER"])
        settings.admission.managed = os.environ["MANAGED"]
"""

# v1 has a port, v2 has ports, v3 has endpoints.
HANDLERS = """
    PLURAL = os.environ["PLURAL"]

    @kopf.on.convert(PLURAL, from_version="v1", to_version="v2")
    async def one_to_two(body, spec, **_):
        if spec.get('port') == 0:
            raise kopf.PermanentError("The port is wrong.")
        return {**body, 'spec': {'ports': [spec['port']] if 'port' in spec else []}}

    @kopf.on.convert(PLURAL, from_version="v2", to_version="v1")
    def two_to_one(spec, patch, **_):
        ports = spec.get('ports') or []
        patch.spec['ports'] = None
        patch.spec['port'] = ports[0] if ports else None
        patch.meta.annotations['kopf.dev/more'] = ','.join(map(str, ports[1:])) or None

    @kopf.on.convert(PLURAL, from_version="v2", to_version="v3")
    @kopf.on.convert(PLURAL, from_version="v3", to_version="v2")
    async def endpoints(spec, patch, to_version, **_):
        patch.spec['ports'] = None if to_version == 'v3' else [item['port'] for item in spec.get('endpoints', [])]
        patch.spec['endpoints'] = None if to_version == 'v2' else [{'port': port} for port in spec.get('ports', [])]
"""


class Conversions:
    """A kind in three versions, stored in the first one."""

    def __init__(self, kubeapi, namespace):
        self.api, self.namespace = kubeapi, namespace
        self.plural = f"convs{namespace[-8:]}"
        self.kind = f"Conv{namespace[-8:]}"
        self.crd = f"{self.plural}.conv.kopf.dev"
        any_spec = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": any_spec, "status": any_spec}}}
        kubeapi.apply(
            {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {"name": self.crd},
                "spec": {
                    "group": "conv.kopf.dev",
                    "scope": "Namespaced",
                    "names": {"plural": self.plural, "kind": self.kind},
                    "versions": [
                        {
                            "name": f"v{n}",
                            "served": True,
                            "storage": n == 1,
                            "schema": schema,
                            "subresources": {"status": {}},
                        }
                        for n in (1, 2, 3)
                    ],
                },
            }
        )

    def path(self, version, name=""):
        return f"/apis/conv.kopf.dev/{version}/namespaces/{self.namespace}/{self.plural}" + (name and f"/{name}")

    def create(self, version, name, metadata=None, **spec):
        return self.api.request(
            "POST",
            self.path(version),
            {
                "apiVersion": f"conv.kopf.dev/{version}",
                "kind": self.kind,
                "metadata": {"name": name, **(metadata or {})},
                "spec": spec,
            },
        )

    def get(self, version, name):
        return self.api.request("GET", self.path(version, name))

    def strategy(self):
        return self.api.request("GET", f"{CRDS}/{self.crd}")["spec"]["conversion"]

    def failure(self, *args, **kwargs):
        with pytest.raises(ApiError) as error:
            self.get(*args, **kwargs)
        return str(error.value)

    def served(self):
        def served():
            try:
                return "ports" in self.create("v2", "trial", ports=[1])["spec"]
            except ApiError as error:
                return error.status == 409

        wait(served, "the conversions")
        self.api.request("DELETE", self.path("v1", "trial"))


@pytest.fixture
def conversions(cluster, kubeapi, namespace):
    conversions = Conversions(kubeapi, namespace)
    yield conversions
    kubeapi.request(
        "PATCH",
        f"{CRDS}/{conversions.crd}",
        [{"op": "add", "path": "/spec/conversion", "value": {"strategy": "None"}}],
        "application/json-patch+json",
    )
    kubeapi.delete("apiextensions.k8s.io/v1", "CustomResourceDefinition", None, conversions.crd)


@pytest.fixture
def operate(run_operator, conversions, tmp_path):
    def operate(code=HANDLERS, server="kopf.WebhookServer()", **env):
        path = tmp_path / "operator.py"
        path.write_text(textwrap.dedent(HEAD) + textwrap.dedent(code))
        operator = run_operator(
            path,
            "--verbose",
            "--standalone",
            MANAGED=f"{conversions.namespace}.kopf.dev",
            PLURAL=conversions.plural,
            SERVER=server,
            NAMESPACE=conversions.namespace,
            **env,
        )
        operator.wait_output("Reconfiguring the conversion strategy")
        conversions.served()
        return operator

    return operate


def test_objects_are_converted_between_all_versions(conversions, operate):
    """Chains lead from v1 to v3 and back, though there are only handlers for neighbours."""
    operator = operate()
    metadata = {"labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["kopf.dev/own"]}
    created = conversions.create("v3", "one", metadata, endpoints=[{"port": 1}, {"port": 2}])
    assert created["spec"] == {"endpoints": [{"port": 1}]}  # the other one went to the annotation
    assert conversions.get("v1", "one")["spec"] == {"port": 1}
    assert conversions.get("v2", "one")["spec"] == {"ports": [1]}
    found = conversions.get("v3", "one")
    assert found["spec"] == {"endpoints": [{"port": 1}]}
    assert found["apiVersion"] == "conv.kopf.dev/v3"
    assert found["metadata"]["labels"] == {"a": "b"}
    assert found["metadata"]["annotations"] == {"c": "d", "kopf.dev/more": "2"}
    assert found["metadata"]["finalizers"] == ["kopf.dev/own"]
    for key in ("uid", "creationTimestamp", "resourceVersion", "generation"):
        assert found["metadata"][key] == conversions.get("v1", "one")["metadata"][key]

    for number in range(30):
        conversions.create("v1", f"many-{number:02}", port=number + 1)
    found = conversions.api.request("GET", conversions.path("v2"))["items"]
    assert [(item["metadata"]["name"], item["spec"]) for item in found if item["metadata"]["name"] != "one"] == [
        (f"many-{number:02}", {"ports": [number + 1]}) for number in range(30)
    ]
    conversions.api.request(
        "PATCH",
        conversions.path("v3", "one"),
        {"metadata": {"finalizers": []}, "spec": {"endpoints": [{"port": 9}]}},
        "application/merge-patch+json",
    )
    assert conversions.get("v1", "one")["spec"] == {"port": 9}
    assert "Traceback" not in operator.output


def test_failed_conversions_are_explained_to_clients(conversions, operate):
    operator = operate()
    conversions.create("v1", "bad", port=0)
    text = conversions.failure("v2", "bad")
    assert f"conversion webhook for conv.kopf.dev/v1, Kind={conversions.kind} failed: " in text
    assert f": {conversions.namespace}/bad: " in text
    assert "The port is wrong." in text
    assert conversions.get("v1", "bad")["spec"] == {"port": 0}
    operator.wait_output("Conversion 'one_to_two' failed permanently: The port is wrong.")
    assert "Traceback" not in operator.output


def test_what_is_not_let_through(conversions, operate):
    operate("""
    @kopf.on.convert(os.environ["PLURAL"])
    async def convert(name, patch, **_):
        if name == 'renamed':
            patch.meta['name'] = 'other'
        patch.spec['ports'] = []
    """)
    conversions.create("v1", "renamed")
    assert "The handler has changed metadata.name" in conversions.failure("v2", "renamed")


def test_without_the_operator_other_versions_are_refused(conversions, operate):
    """Without the operator, objects are refused in the other versions, not shown wrongly."""
    operator = operate()
    conversions.create("v1", "one", port=1)
    assert operator.stop()[0] == 0
    assert conversions.strategy()["strategy"] == "Webhook"
    assert conversions.get("v1", "one")["spec"] == {"port": 1}
    assert "conversion webhook" in conversions.failure("v2", "one")
    operate()
    assert conversions.get("v2", "one")["spec"] == {"ports": [1]}


def test_the_last_operator_removes_a_conversion_that_is_not_persistent(conversions, operate):
    operator = operate("""
    @kopf.on.convert(os.environ["PLURAL"], persistent=False)
    async def convert(patch, **_):
        patch.spec['ports'] = [7]
    """)
    conversions.create("v1", "one", port=1)
    assert conversions.get("v2", "one")["spec"] == {"port": 1, "ports": [7]}
    assert operator.stop()[0] == 0
    assert conversions.strategy() == {"strategy": "None"}
    wait(lambda: conversions.get("v2", "one")["spec"] == {"port": 1}, "objects without conversion")


def test_conversions_are_called_through_services(conversions, operate, kubeapi):
    port = free_port()
    kubeapi.apply(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "conv"},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        },
        conversions.namespace,
    )
    operate(
        server="kopf.WebhookService(name='conv', namespace=os.environ['NAMESPACE'], addr='localhost', "
        f"port={port}, service_port={port})"
    )
    assert conversions.strategy()["webhook"]["clientConfig"]["service"]["name"] == "conv"
    conversions.create("v1", "one", port=1)
    assert conversions.get("v3", "one")["spec"] == {"endpoints": [{"port": 1}]}


def test_handlers_of_the_same_objects(conversions, operate):
    """The operator itself watches one version, converts others, and patches through them."""
    operator = operate(
        HANDLERS
        + """
    @kopf.on.create('conv.kopf.dev', 'v2', PLURAL)
    async def created(spec, patch, **_):
        patch.status['seen'] = list(spec['ports'])
    """
    )
    conversions.create("v1", "one", port=5)
    wait(lambda: conversions.get("v1", "one").get("status") == {"seen": [5]}, "the status")
    operator.wait_output("Creation is processed: 1 succeeded; 0 failed.")
