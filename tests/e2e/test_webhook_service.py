"""Webhooks of a Service: the API finds the operator by its name in the cluster, with certificates from a Secret."""

import base64
import pathlib
import signal
import textwrap

import pytest
from controlplane import ControlPlane
from cryptography import x509
from kubeapi import ApiError, wait
from ports import free_port

KIND = "kopf.dev/v1", "KopfExample"
GROUP = "admissionregistration.k8s.io/v1"
SERVICE = "hooks"
SECRET = "hooks-webhook-certs"

OPERATOR = """
    import kopf, os

    @kopf.on.startup()
    def configure(settings, **_):
        port = int(os.environ["PORT"])
        settings.admission.server = kopf.WebhookService(
            name="hooks", namespace=os.environ["NAMESPACE"], port=port, service_port=int(os.environ["SERVICE_PORT"]),
            addr="localhost", path="/some/root", **OPTIONS)
        settings.admission.managed = os.environ["MANAGED"]

    @kopf.on.mutate('kopfexamples', operation='CREATE')
    async def mark(patch, **_):
        patch.spec['mark'] = os.environ["MARK"]
"""


class Cluster:
    """What is in the cluster of the webhooks of the test."""

    def __init__(self, kubeapi, namespace):
        self.api, self.namespace, self.managed = kubeapi, namespace, f"{namespace}.kopf.dev"
        self.port = free_port()
        # There are no pods here, nor a network between them: the name of the service leads to this machine.
        kubeapi.apply(
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": SERVICE},
                "spec": {"type": "ExternalName", "externalName": "localhost"},
            },
            namespace,
        )

    def webhooks(self):
        found = self.api.get(GROUP, "MutatingWebhookConfiguration", None, self.managed) or {}
        return found.get("webhooks", [])

    def client_config(self):
        return self.webhooks()[0]["clientConfig"]

    def bundle(self):
        return base64.b64decode(self.client_config()["caBundle"])

    def secret(self):
        found = self.api.get("v1", "Secret", self.namespace, SECRET) or {}
        return {key: base64.b64decode(value) for key, value in found.get("data", {}).items()}

    def replicas(self):
        return self.api.get("v1", "Secret", self.namespace, SECRET)["metadata"].get("annotations", {})

    def mark(self):
        """Return which server has answered the API; raise an error if the API does not trust it."""
        found = self.api.request(
            "POST",
            self.api.path(*KIND, self.namespace) + "?dryRun=All",
            {"apiVersion": KIND[0], "kind": KIND[1], "metadata": {"name": "trial"}, "spec": {}},
        )
        return found["spec"].get("mark")

    def served(self, mark="yes"):
        def served():
            try:
                return self.mark() == mark
            except ApiError as error:
                assert "certificate" not in str(error), error
                return False

        wait(served, "the webhooks to be called")


@pytest.fixture
def hooks(kubeapi, namespace):
    cluster = Cluster(kubeapi, namespace)
    yield cluster
    kubeapi.delete(GROUP, "MutatingWebhookConfiguration", None, cluster.managed)
    kubeapi.delete(GROUP, "ValidatingWebhookConfiguration", None, cluster.managed)


@pytest.fixture
def operate(run_operator, hooks, tmp_path):
    def operate(options="{}", *, mark="yes", port=None, code="", **env):
        # A file for each of them: those that are starting would read a file that is being written.
        path = tmp_path / f"operator{len(list(tmp_path.glob('*.py')))}.py"
        path.write_text(f"OPTIONS = {options}\n" + textwrap.dedent(OPERATOR) + textwrap.dedent(code))
        return run_operator(
            path,
            "--verbose",
            "--standalone",
            MANAGED=hooks.managed,
            NAMESPACE=hooks.namespace,
            PORT=str(port or hooks.port),
            SERVICE_PORT=str(hooks.port),
            MARK=mark,
            **env,
        )

    return operate


def test_webhooks_are_served_behind_the_service(hooks, operate):
    operator = operate()
    hooks.served()
    config = hooks.client_config()
    assert config["service"] == {
        "name": SERVICE,
        "namespace": hooks.namespace,
        "port": hooks.port,
        "path": "/some/root/mark",
    }
    secret = hooks.secret()
    assert hooks.bundle() == secret["ca.crt"]
    certificate = x509.load_pem_x509_certificate(secret["tls.crt"])
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert f"{SERVICE}.{hooks.namespace}.svc" in names.get_values_for_type(x509.DNSName)
    assert operator.stop()[0] == 0
    assert not hooks.webhooks()
    assert not hooks.replicas()

    operate()  # with the same certificates again
    hooks.served()
    assert hooks.secret() == secret


def test_replicas_that_start_at_once(hooks, operate):
    ports = [hooks.port, free_port(), free_port(), free_port()]
    operators = [operate(port=port, mark=f"by {port}") for port in ports]
    for operator in operators:
        operator.wait_output("Reconfiguring the mutating webhook")
    hooks.served(f"by {hooks.port}")
    assert hooks.bundle() == hooks.secret()["ca.crt"]
    assert sum("are renewed in the secret" in operator.output for operator in operators) == 1
    assert len(hooks.replicas()) == 4
    for operator in operators[1:]:
        assert operator.stop()[0] == 0
        assert len(hooks.webhooks()) == 1  # the others still serve them
    hooks.served(f"by {hooks.port}")
    assert operators[0].stop()[0] == 0
    assert not hooks.webhooks()


@pytest.mark.long
def test_renewal_is_not_noticed(hooks, operate):
    """The API calls all the time, while authorities and certificates change under it."""
    operators = [
        operate("dict(lifetime=6, overlap=2, check_interval=0.2)", port=port) for port in (hooks.port, free_port())
    ]
    hooks.served()
    issuers, bundles, calls = set(), set(), 0

    def has_changed():
        nonlocal calls
        assert hooks.mark() == "yes"
        calls += 1
        issuers.add(x509.load_pem_x509_certificate(hooks.secret()["tls.crt"]).issuer)
        bundles.add(hooks.bundle())
        return len(issuers) >= 2

    wait(has_changed, "certificates by another authority")
    assert calls > 5
    assert {bundle.count(b"BEGIN CERTIFICATE") for bundle in bundles} == {1, 2}
    for operator in operators:
        assert "Traceback" not in operator.output


def test_the_killed_is_replaced(hooks, operate):
    operate(mark="first").stop(signal.SIGKILL)
    operator = operate(mark="second")
    hooks.served("second")
    assert operator.stop()[0] == 0


@pytest.mark.parametrize("data", [{"tls.crt": "eA==", "tls.key": "eA=="}])
def test_secrets_of_others_are_left_alone(hooks, operate, kubeapi, data):
    kubeapi.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}, "data": data}, hooks.namespace)
    operator = operate()
    assert operator.process.wait(60) != 0
    assert "Set secret= of kopf.WebhookService to another name" in operator.output
    assert kubeapi.get("v1", "Secret", hooks.namespace, SECRET)["data"] == data


def test_the_documented_permissions_are_enough(cluster, hooks, operate, kubeapi, namespace):
    limited = pathlib.Path(cluster.kubeconfig).with_name("kubeconfig-limited")
    if not isinstance(cluster, ControlPlane) or not limited.exists():
        pytest.skip("there is no user without rights")
    name, rbac = f"limited-{namespace}", "rbac.authorization.k8s.io/v1"
    subjects = [{"kind": "User", "name": "limited", "apiGroup": "rbac.authorization.k8s.io"}]

    def grant(kind, *rules):
        meta = {"metadata": {"name": name}}
        kubeapi.apply({"apiVersion": rbac, "kind": kind, **meta, "rules": list(rules)}, namespace)
        kubeapi.apply(
            {
                "apiVersion": rbac,
                "kind": f"{kind}Binding",
                **meta,
                "subjects": subjects,
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
            },
            namespace,
        )

    crds = {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"]}
    grant(
        "ClusterRole",
        {**crds, "verbs": ["list", "watch", "get", "patch"]},
        {
            "apiGroups": ["admissionregistration.k8s.io"],
            "verbs": ["create", "patch"],
            "resources": ["validatingwebhookconfigurations", "mutatingwebhookconfigurations"],
        },
    )
    code = """
    @kopf.on.convert('kopfexamples', persistent=False)
    async def convert(**_):
        pass
    """
    try:
        operator = operate(code=code, kubeconfig=str(limited))
        assert operator.process.wait(60) != 0
        rule = '{apiGroups: [""], resources: [secrets], verbs: [get, create, patch]}'
        assert f"a Role in the namespace '{namespace}' with the rule {rule}" in operator.output
        assert "Traceback" not in operator.output

        grant("Role", {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "create", "patch"]})
        operator = operate(code=code, kubeconfig=str(limited))
        hooks.served()
        operator.wait_output("Reconfiguring the conversion strategy of kopfexamples.kopf.dev")
        assert operator.stop()[0] == 0
        assert not hooks.webhooks()
        assert "forbidden" not in operator.output.partition(rule)[2]
        crd = kubeapi.get("apiextensions.k8s.io/v1", "CustomResourceDefinition", None, "kopfexamples.kopf.dev")
        assert crd["spec"]["conversion"] == {"strategy": "None"}
    finally:
        kubeapi.delete(rbac, "ClusterRoleBinding", None, name)
        kubeapi.delete(rbac, "ClusterRole", None, name)
