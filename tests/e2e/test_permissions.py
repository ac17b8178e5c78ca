"""The permissions that the page on security names for the features: with these alone, it works; else, the log tells.

On the sandbox and on a real control plane, both with RBAC. The operator has a service account of its own for each test.
"""

import pathlib
import re
import secrets
import textwrap

import pytest
import yaml
from kinds import define
from kubeapi import KubeApi, make_kubeconfig
from operatorprocess import OperatorProcess
from sandboxplane import SandboxPlane
from snippets import find_page

from kopf.testing import Sandbox

ROOT = pathlib.Path(__file__).resolve().parents[2]
CRD = define("guardeds", "Guarded", group="kopf.dev", subresources={"status": {}})
RBAC = "rbac.authorization.k8s.io"
CREATE = """
import kopf

@kopf.on.create('kopf.dev', 'guardeds')
def create_fn(**_):
    return 'handled'
"""
WATCH = CREATE.replace("create", "event")
WEBHOOK = """
import kopf

@kopf.on.startup()
def configure(settings, **_):
    settings.admission.server = kopf.WebhookServer()
    settings.admission.managed = 'SUFFIX.kopf.dev'

@kopf.on.validate('kopf.dev', 'guardeds')
def check(**_):
    pass
"""


def rule(group, resource, *verbs):
    return {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}


# How a rule is written in the page.
HANDLED = rule("kopf.dev", "guardeds", "list", "watch", "patch")
STATUS = rule("kopf.dev", "guardeds/status", "patch")
EVENTS = rule("", "events", "create", "patch")
KINDS = rule("apiextensions.k8s.io", "customresourcedefinitions", "list", "watch")
NAMESPACES = rule("", "namespaces", "list", "watch")
PEERING = rule("kopf.dev", "kopfpeerings", "list", "watch", "patch")
PEERING_OF_CLUSTER = rule("kopf.dev", "clusterkopfpeerings", "list", "watch", "patch")
WEBHOOKS = [
    rule("admissionregistration.k8s.io", f"{kind}webhookconfigurations", "create", "get", "patch")
    for kind in ("validating", "mutating")
]

ELECTION = (
    CREATE
    + """
@kopf.on.startup()
def configure(settings, **_):
    settings.leadership.namespace = 'SUFFIX'
"""
)


def read_rules(page):
    """Return the rules of the Roles in the page."""
    text = find_page(page).read_text().replace("\n    ---\n", "\n\n.. code-block:: yaml\n\n")
    blocks = re.findall(r"code-block:: yaml\n((?:\n|    .*\n)*)", text)
    bodies = [yaml.safe_load(textwrap.dedent(block)) for block in blocks]
    return [rule for body in bodies if body["kind"] == "Role" for rule in body["rules"]]


DONE = "Creation is processed: 1 succeeded; 0 failed"
FEATURES = {
    "watching": (
        WATCH,
        ["-n", "NS", "--standalone"],
        [rule("kopf.dev", "guardeds", "list", "watch")],
        "Handler 'event_fn' succeeded",
        {0: "Not permitted to list or watch guardeds.v1.kopf.dev in 'NS'"},
    ),
    "handling": (
        CREATE,
        ["-n", "NS", "--standalone"],
        [HANDLED, STATUS],
        DONE,
        {1: 'Grant the verb patch for the resource and for its status'},
    ),
    "patching": (
        CREATE,
        ["-n", "NS", "--standalone"],
        [rule("kopf.dev", "guardeds", "list", "watch"), rule("kopf.dev", "guardeds", "patch"), STATUS],
        DONE,
        {1: 'Grant the verb patch for the resource and for its status'},
    ),
    "events": (
        CREATE,
        ["-n", "NS", "--standalone"],
        [HANDLED, STATUS, EVENTS],
        DONE,
        {2: 'cannot create resource "events"'},
    ),
    "kinds": (
        CREATE,
        ["-n", "NS", "--standalone"],
        [HANDLED, STATUS, KINDS],
        DONE,
        {2: "Resources that appear, change, or vanish will not be noticed. Grant the verbs list and watch"},
    ),
    "namespaces": (
        CREATE,
        ["-n", "NS*", "--standalone"],
        [HANDLED, STATUS, NAMESPACES],
        DONE,
        {2: "The patterns of namespaces match nothing, and only these namespaces are served"},
    ),
    "everywhere": (
        CREATE,
        ["-A", "--standalone"],
        [HANDLED, STATUS],
        DONE,
        {0: "Not permitted to list or watch guardeds.v1.kopf.dev cluster-wide"},
    ),
    "peering": (
        CREATE,
        ["-n", "NS", "--peering=guarded"],
        [HANDLED, STATUS, PEERING],
        DONE,
        {2: "Grant the verbs list, watch, patch for kopfpeerings.v1.kopf.dev"},
    ),
    "peering of the cluster": (
        CREATE,
        ["-A", "--peering=NS"],
        [HANDLED, STATUS, PEERING_OF_CLUSTER],
        DONE,
        {2: "Grant the verbs list, watch, patch for clusterkopfpeerings.v1.kopf.dev"},
    ),
    "election": (
        ELECTION,
        ["-n", "NS", "--standalone", "--leader-election", "--lease=my-operator"],
        [HANDLED, STATUS, *read_rules("election")],
        DONE,
        dict.fromkeys((2, 3), "so it cannot be elected"),
    ),
    "shards": (
        ELECTION.replace("leadership", "sharding"),
        ["-n", "NS", "--shards=auto"],
        [HANDLED, STATUS, *read_rules("sharding")],
        DONE,
        {2: "so it cannot share the objects"},
    ),
    "webhooks": (
        WEBHOOK,
        ["-n", "NS", "--standalone"],
        WEBHOOKS,
        "Reconfiguring the validating webhook",
        {0: "It needs the permission", 1: "It needs the permission"},
    ),
}
CLUSTERWIDE = {"everywhere", "peering of the cluster"}  # the kind itself is handled in all namespaces
WHOLE_CLUSTER = {
    "customresourcedefinitions",
    "namespaces",
    "clusterkopfpeerings",
    "validatingwebhookconfigurations",
    "mutatingwebhookconfigurations",
}


@pytest.fixture(autouse=True)
def only_some_on_the_sandbox(request, cluster):
    if isinstance(cluster, SandboxPlane) and not request.config.getoption("--thorough"):
        if request.node.callspec.params["feature"] not in ("handling", "webhooks"):
            pytest.skip("run with --thorough, or with --cluster=real")


@pytest.fixture(scope="module")
def api(cluster, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patching:
        if isinstance(cluster, SandboxPlane):
            sandbox = Sandbox(rbac=True)
            with sandbox:
                patching.setenv("KUBECONFIG", str(sandbox.kubeconfig))
                api = KubeApi()
                prepare(api)
                yield api
        else:
            patching.setenv("KUBECONFIG", cluster.kubeconfig)
            api = KubeApi()
            prepare(api)
            yield api
            api.delete("apiextensions.k8s.io/v1", "CustomResourceDefinition", None, "guardeds.kopf.dev")


def prepare(api):
    api.apply(CRD)
    api.apply(ROOT / "peering.yaml")


@pytest.fixture
def run(api, tmp_path):
    """Run an operator with these rights; give what it has logged until there is something like the text."""
    name = f"guarded-{secrets.token_hex(4)}"
    made = []

    def run(feature, rules, text):
        handlers, args, *_ = FEATURES[feature]
        meta = {"name": name, "namespace": name}
        create(api, made, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        create(api, made, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta})
        for whole in (True, False):
            chosen = [
                each for each in rules if (each["resources"][0] in WHOLE_CLUSTER or feature in CLUSTERWIDE) is whole
            ]
            kind = "ClusterRole" if whole else "Role"
            create(api, made, {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": meta, "rules": chosen})
            create(
                api,
                made,
                {
                    "apiVersion": f"{RBAC}/v1",
                    "kind": f"{kind}Binding",
                    "metadata": meta,
                    "roleRef": {"apiGroup": RBAC, "kind": kind, "name": name},
                    "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": name}],
                },
            )
        create(api, made, {"apiVersion": "kopf.dev/v1", "kind": "KopfPeering", "metadata": {**meta, "name": "guarded"}})
        create(api, made, {"apiVersion": "kopf.dev/v1", "kind": "ClusterKopfPeering", "metadata": {"name": name}})
        create(api, made, {"apiVersion": "kopf.dev/v1", "kind": "Guarded", "metadata": meta})
        tmp_path.joinpath("handlers.py").write_text(handlers.replace("SUFFIX", name))
        args = [arg.replace("NS", name) for arg in args]
        with OperatorProcess(
            *args, tmp_path / "handlers.py", log=tmp_path / "log", kubeconfig=str(make_kubeconfig(api, name, tmp_path))
        ) as operator:
            operator.wait_output(re.escape(text.replace("NS", name)), timeout=30)
            operator.stop()
            return operator.output

    yield run
    for kind in ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"):
        api.delete("admissionregistration.k8s.io/v1", kind, None, f"{name}.kopf.dev")  # if it was left
    for obj in reversed(made):
        if obj["kind"] == "Guarded":
            api.patch(obj["apiVersion"], obj["kind"], name, name, {"metadata": {"finalizers": []}})
        api.delete(obj["apiVersion"], obj["kind"], obj["metadata"].get("namespace"), obj["metadata"]["name"])


def create(api, made, obj):
    api.apply(obj)
    made.append(obj)


@pytest.mark.parametrize("feature", FEATURES)
def test_documented_permissions_are_enough(run, feature):
    _, _, rules, done, messages = FEATURES[feature]
    output = run(feature, rules, done)
    for message in messages.values():
        assert message not in output


@pytest.mark.parametrize(
    "feature, left_out", [(feature, number) for feature, (*_, messages) in FEATURES.items() for number in messages]
)
def test_missing_permissions_are_named(run, feature, left_out):
    _, _, rules, _, messages = FEATURES[feature]
    run(feature, [each for number, each in enumerate(rules) if number != left_out], messages[left_out])
