"""Permissions: authorization by roles, impersonation, and the limits of granting permissions."""

import asyncio
import os
import re
import shutil
import ssl
import subprocess
import textwrap
from pathlib import Path

import aiohttp
import pytest
import yaml
from forkserver import run_process
from snippets import find_page

from kopf.testing import Refusal, Sandbox

ROOT = Path(__file__).resolve().parents[2]
ROLES = "/apis/rbac.authorization.k8s.io/v1"
PODS = "/api/v1/namespaces/default/pods"
WHOAMI = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
AUTHORIZATION = "/apis/authorization.k8s.io/v1"
MERGE = "application/merge-patch+json"


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(rbac=True) as sandbox:
        yield sandbox


@pytest.fixture
async def ask(sandbox):
    """Send a request as this user, an administrator by default."""
    context = ssl.create_default_context(cadata=sandbox.ca.decode())
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:

        async def ask(method, path, body=None, *, user="", groups=(), acting_as="", type="application/json", **headers):
            token = sandbox.issue_token(user, groups) if user else sandbox.token
            sent = [("Authorization", f"Bearer {token}"), *([("Impersonate-User", acting_as)] if acting_as else ())]
            sent += [(name.replace("_", "-"), value) for name, value in headers.items()]
            if body is not None:
                sent.append(("Content-Type", type))
            async with session.request(method, sandbox.url + path, json=body, headers=sent) as response:
                is_json = response.content_type == "application/json"
                return response.status, await (response.json() if is_json else response.text())

        yield ask


def grant(sandbox, user, *rules, namespace="default", kind="User"):
    """Return a role with these rules, in a namespace or in the whole cluster (None), and a binding of it."""
    scope = "" if namespace else "Cluster"
    meta = {"name": user.rpartition(":")[2], **({"namespace": namespace} if namespace else {})}
    api = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": meta}
    sandbox.create({**api, "kind": f"{scope}Role", "rules": list(rules)})
    subject = {"kind": kind, "name": meta["name"], **({"namespace": "default"} if kind == "ServiceAccount" else {})}
    sandbox.create(
        {
            **api,
            "kind": f"{scope}RoleBinding",
            "subjects": [subject],
            "roleRef": {"kind": f"{scope}Role", "name": meta["name"], "apiGroup": "rbac.authorization.k8s.io"},
        }
    )


def rule(verbs, resources, group="", **more):
    return {"apiGroups": [group], "resources": resources.split(), "verbs": verbs.split(), **more}


@pytest.mark.parametrize(
    "method, path, message",
    [
        (
            "GET",
            PODS,
            'pods is forbidden: User "bob" cannot list resource "pods" in API group "" in the namespace "default"',
        ),
        (
            "GET",
            "/api/v1/pods?watch=1",
            'pods is forbidden: User "bob" cannot watch resource "pods" in API group "" at the cluster scope',
        ),
        (
            "GET",
            f"{PODS}/x/log",
            'pods "x" is forbidden: User "bob" cannot get resource "pods/log" in API group "" in the namespace "default"',
        ),
        (
            "GET",
            "/api/v1/namespaces/n",
            'namespaces "n" is forbidden: User "bob" cannot get resource "namespaces" in API group "" in the namespace "n"',
        ),
        (
            "DELETE",
            "/apis/apps/v1/namespaces/n/deployments",
            'deployments.apps is forbidden: User "bob" cannot deletecollection resource "deployments" in API group "apps" in '
            'the namespace "n"',
        ),
        (
            "GET",
            "/apis/no.such/v1/things",
            'things.no.such is forbidden: User "bob" cannot list resource "things" in API group "no.such" at the cluster '
            'scope',
        ),
        ("GET", "/nothing", 'forbidden: User "bob" cannot get path "/nothing"'),
    ],
)
async def test_what_is_not_allowed(ask, method, path, message):
    status, body = await ask(method, path, user="bob")
    assert (status, body["reason"], body["message"]) == (403, "Forbidden", message)


@pytest.mark.parametrize("path", ["/api", "/apis", "/version", "/openapi/v3", "/apis/apps/v1"])
async def test_everybody_can_look_around(ask, path):
    assert (await ask("GET", path, user="bob"))[0] == 200


async def test_roles_in_a_namespace(ask, sandbox):
    grant(sandbox, "reader", rule("get list", "pods"), rule("get", "secrets", resourceNames=["s"]))
    assert (await ask("GET", PODS, user="reader"))[0] == 200
    assert (await ask("GET", f"{PODS}?watch=1", user="reader"))[0] == 403
    assert (await ask("GET", "/api/v1/pods", user="reader"))[0] == 403
    assert (await ask("GET", "/api/v1/namespaces/kube-system/pods", user="reader"))[0] == 403
    assert (await ask("GET", "/api/v1/namespaces/default/secrets/s", user="reader"))[0] == 404
    assert (await ask("GET", "/api/v1/namespaces/default/secrets/t", user="reader"))[0] == 403
    sandbox.delete("role", "reader")
    status, body = await ask("GET", PODS, user="reader")
    assert status == 403
    assert body["message"].endswith(
        'in the namespace "default": RBAC: role.rbac.authorization.k8s.io "reader" not found'
    )


async def test_roles_in_the_whole_cluster_for_groups(ask, sandbox):
    grant(
        sandbox,
        "scalers",
        rule("*", "*/scale", "*"),
        {"nonResourceURLs": ["/met*"], "verbs": ["get"]},
        namespace=None,
        kind="Group",
    )
    path = "/apis/apps/v1/namespaces/default/deployments/d"
    assert (await ask("GET", f"{path}/scale", user="x", groups=["scalers"]))[0] == 404
    assert (await ask("GET", path, user="x", groups=["scalers"]))[0] == 403
    assert (await ask("GET", "/metrics", user="x", groups=["scalers"]))[0] == 404
    assert (await ask("GET", "/metrics", user="x"))[0] == 403


async def test_default_roles_are_made_of_others(ask, sandbox):
    sandbox.create(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "viewers"},
            "subjects": [{"kind": "User", "name": "viewer"}],
            "roleRef": {"kind": "ClusterRole", "name": "view"},
        }
    )
    assert (await ask("GET", "/api/v1/pods", user="viewer"))[0] == 200
    assert (await ask("GET", "/apis/own.dev/v1/things", user="viewer"))[0] == 403
    sandbox.create(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "rules": [rule("list", "things", "own.dev")],
            "metadata": {"name": "own", "labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
        }
    )
    async with asyncio.timeout(60):
        while (await ask("GET", "/apis/own.dev/v1/things", user="viewer"))[0] == 403:
            await asyncio.sleep(0.02)


async def test_tokens_of_service_accounts(ask, sandbox):
    sandbox.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}})
    grant(sandbox, "robot", rule("list", "pods"), kind="ServiceAccount")
    _, body = await ask("POST", "/api/v1/namespaces/default/serviceaccounts/robot/token", {})
    headers = {"Authorization": f"Bearer {body['status']['token']}"}
    context = ssl.create_default_context(cadata=sandbox.ca.decode())
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context), headers=headers) as session:
        for path, expected in ((PODS, 200), ("/api/v1/pods", 403)):
            async with session.get(sandbox.url + path) as response:
                assert response.status == expected
        sandbox.delete("serviceaccount", "robot")
        async with session.get(sandbox.url + PODS) as response:
            assert response.status == 401


async def test_admins_can_act_for_other_users(ask, sandbox):
    _, body = await ask("POST", WHOAMI, {}, acting_as="alice", Impersonate_Group="dev", Impersonate_Extra_Reason="x")
    assert body["status"]["userInfo"] == {
        "username": "alice",
        "groups": ["dev", "system:authenticated"],
        "extra": {"reason": ["x"]},
    }
    _, body = await ask("POST", WHOAMI, {}, acting_as="system:serviceaccount:default:sa")
    assert "system:serviceaccounts:default" in body["status"]["userInfo"]["groups"]
    assert (await ask("GET", PODS, acting_as="alice"))[0] == 403


async def test_acting_for_others_without_permission(ask, sandbox):
    status, body = await ask("GET", PODS, user="mimic", acting_as="alice")
    assert (status, body["message"]) == (
        403,
        'pods is forbidden: User "mimic" cannot impersonate-on:user-info:list resource "pods" in API group "" in '
        'the namespace "default"',
    )
    grant(sandbox, "mimic", rule("impersonate", "users", resourceNames=["alice"]), namespace=None)
    status, body = await ask("POST", WHOAMI, {}, user="mimic", acting_as="alice")
    assert (status, body["status"]["userInfo"]["username"]) == (201, "alice")
    status, body = await ask("POST", WHOAMI, {}, user="mimic", acting_as="alice", Impersonate_Group="dev")
    assert (status, body["message"]) == (
        403,
        'groups "dev" is forbidden: User "mimic" cannot impersonate resource "groups" in API group "" at the '
        'cluster scope',
    )


async def test_reviews_tell_what_is_allowed(ask, sandbox):
    async def review(kind, spec, **options):
        _, body = await ask("POST", f"{AUTHORIZATION}/{kind}", {"spec": spec}, **options)
        return body["status"]

    grant(sandbox, "asker", rule("get", "pods"))
    own = {"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "default"}}
    assert await review("selfsubjectaccessreviews", own, user="asker") == {
        "allowed": True,
        "reason": 'RBAC: allowed by RoleBinding "asker/default" of Role "asker" to User "asker"',
    }
    other = {"resourceAttributes": {"verb": "list", "resource": "pods", "namespace": "default"}}
    assert await review("selfsubjectaccessreviews", other, user="asker") == {"allowed": False}
    assert await review("subjectaccessreviews", {"user": "asker", **own}) == (
        await review("selfsubjectaccessreviews", own, user="asker")
    )
    spec = {"user": "x", "groups": ["system:masters"], **other}
    assert await review("subjectaccessreviews", spec) == {"allowed": True}
    rules = await review("selfsubjectrulesreviews", {"namespace": "default"}, user="asker")
    assert {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]} in rules["resourceRules"]
    assert any("/api/*" in item["nonResourceURLs"] for item in rules["nonResourceRules"])
    status, body = await ask("POST", f"{AUTHORIZATION}/selfsubjectaccessreviews", {"spec": {}})
    assert (status, body["details"]["causes"][0]["field"]) == (422, "spec.resourceAttributes")


async def test_users_cannot_grant_more_than_they_have(ask, sandbox):
    admin = rule("create patch", "roles rolebindings clusterroles", "rbac.authorization.k8s.io")
    grant(sandbox, "granter", admin, rule("get", "pods"), namespace=None)
    roles = f"{ROLES}/namespaces/default/roles"
    status, body = await ask(
        "POST",
        roles,
        {"metadata": {"name": "more"}, "rules": [rule("get list", "pods secrets"), rule("*", "deployments", "apps")]},
        user="granter",
    )
    assert (status, body["message"]) == (
        403,
        (
            'roles.rbac.authorization.k8s.io "more" is forbidden: user "granter" (groups=["system:authenticated"]) is '
            'attempting to grant RBAC permissions not currently held:\n'
            '{APIGroups:[""], Resources:["pods"], Verbs:["list"]}\n'
            '{APIGroups:[""], Resources:["secrets"], Verbs:["get" "list"]}\n'
            '{APIGroups:["apps"], Resources:["deployments"], Verbs:["*"]}'
        ),
    )
    same = {"metadata": {"name": "same"}, "rules": [rule("get", "pods", resourceNames=["a"])]}
    assert (await ask("POST", roles, same, user="granter"))[0] == 201
    more = {"rules": [rule("list", "pods")]}
    assert (await ask("PATCH", f"{roles}/same", more, user="granter", type=MERGE))[0] == 403
    status, body = await ask(
        "POST",
        f"{ROLES}/clusterroles",
        {"metadata": {"name": "all"}, "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}},
        user="granter",
    )
    assert (status, "must have cluster-admin privileges" in body["message"]) == (403, True)
    for name, expected in (("same", 201), ("no-such", 404)):
        binding = {
            "metadata": {"name": f"to-{name}"},
            "subjects": [{"kind": "User", "name": "x"}],
            "roleRef": {"kind": "Role", "name": name, "apiGroup": "rbac.authorization.k8s.io"},
        }
        assert (await ask("POST", f"{ROLES}/namespaces/default/rolebindings", binding, user="granter"))[0] == expected
    binding["roleRef"].update(kind="ClusterRole", name="edit")
    assert (await ask("POST", f"{ROLES}/namespaces/default/rolebindings", binding, user="granter"))[0] == 403


async def test_creating_by_other_verbs_is_creating(ask, sandbox):
    grant(sandbox, "changer", rule("update patch", "leases", "coordination.k8s.io"), rule("patch", "configmaps"))
    lease = "/apis/coordination.k8s.io/v1/namespaces/default/leases/x"
    status, body = await ask("PUT", lease, {"metadata": {"name": "x"}, "spec": {}}, user="changer")
    assert (status, body["message"]) == (
        403,
        'leases.coordination.k8s.io "x" is forbidden: User "changer" cannot create resource "leases" in API group '
        '"coordination.k8s.io" in the namespace "default"',
    )
    applied = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}
    path = "/api/v1/namespaces/default/configmaps/x?fieldManager=m"
    for user, expected in (("changer", 403), ("", 201), ("changer", 200)):
        assert (await ask("PATCH", path, applied, user=user, type="application/apply-patch+yaml"))[0] == expected


@pytest.mark.parametrize(
    "plural, body, field",
    [
        ("roles", {"rules": [{"apiGroups": [""], "resources": ["pods"]}]}, "rules[0].verbs"),
        ("roles", {"rules": [{"nonResourceURLs": ["/x"], "verbs": ["get"]}]}, "rules[0].nonResourceURLs"),
        ("rolebindings", {"roleRef": {"kind": "Robot", "name": "x"}}, "roleRef.kind"),
        (
            "rolebindings",
            {"roleRef": {"kind": "Role", "name": "x"}, "subjects": [{"kind": "Foo", "name": "y"}]},
            "subjects[0].kind",
        ),
    ],
)
async def test_invalid_roles_are_refused_with_the_field(ask, plural, body, field):
    status, answer = await ask("POST", f"{ROLES}/namespaces/default/{plural}", {"metadata": {"name": "wrong"}, **body})
    assert (status, [cause["field"] for cause in answer["details"]["causes"]]) == (422, [field])


async def test_bindings_stay_with_their_roles(ask, sandbox):
    grant(sandbox, "steady", rule("get", "pods"))
    status, body = await ask(
        "PATCH", f"{ROLES}/namespaces/default/rolebindings/steady", {"roleRef": {"name": "other"}}, type=MERGE
    )
    assert (status, "cannot change roleRef" in body["message"]) == (422, True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.long
def test_kubectl_asks_what_is_allowed(sandbox, tmp_path):
    grant(sandbox, "curious", rule("get list", "pods"))

    def kubectl(*arguments, kubeconfig=sandbox.kubeconfig):
        return subprocess.run(
            ["kubectl", f"--cache-dir={tmp_path}", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "KUBECONFIG": str(kubeconfig)},
        )

    own = sandbox.kubeconfig_for("curious")
    assert kubectl("auth", "can-i", "list", "pods", kubeconfig=own).stdout.strip() == "yes"
    answer = kubectl("auth", "can-i", "delete", "pods", kubeconfig=own)
    assert (answer.stdout.strip(), answer.returncode) == ("no", 1)
    assert "[get list]" in kubectl("auth", "can-i", "--list", kubeconfig=own).stdout
    assert "curious" in kubectl("auth", "whoami", kubeconfig=own).stdout
    assert kubectl("get", "pods", kubeconfig=own).returncode == 0
    denied = kubectl("get", "secrets", "--as=curious", "--as-group=a", "--as-group=b")
    assert 'Error from server (Forbidden): secrets is forbidden: User "curious" cannot list' in denied.stderr
    assert (
        "[a b system:authenticated]" in kubectl("auth", "whoami", "--as=curious", "--as-group=a", "--as-group=b").stdout
    )


HANDLERS = """
import kopf

@kopf.on.create("configmaps", labels={"watched": "yes"})
def create_fn(patch, **_):
    patch.metadata.annotations["seen"] = "yes"

@kopf.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False
"""


@pytest.mark.kopf_sandbox(rbac=True)
@pytest.mark.usefixtures("forked_operators")
def test_operators_work_as_far_as_their_permissions_go(kopf_sandbox, kopf_operator, tmp_path):
    (tmp_path / "handlers.py").write_text(HANDLERS)
    sandbox, robot = kopf_sandbox, "system:serviceaccount:default:robot"
    grant(
        sandbox,
        robot,
        rule("get list watch", "configmaps"),
        rule("list watch", "namespaces"),
        namespace=None,
        kind="ServiceAccount",
    )
    operator = {"env": {"KUBECONFIG": str(sandbox.kubeconfig_for(robot))}}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "labels": {"watched": "yes"}}}
    with kopf_operator("handlers.py", "--standalone", **operator, cwd=tmp_path) as running:
        sandbox.create(body)
        running.wait_for_output('User "system:serviceaccount:default:robot" cannot patch resource "configmaps"')
        sandbox.patch("clusterrole", "robot", [{"op": "add", "path": "/rules/-", "value": rule("patch", "configmaps")}])
        sandbox.wait_for(
            "configmap", "x", lambda it: it["metadata"].get("annotations", {}).get("seen") == "yes", timeout=60
        )


TYPED = """
import dataclasses, kopf

@dataclasses.dataclass
class Spec:
    size: int = 0

@kopf.kind("example.com/v1")
@dataclasses.dataclass
class Thing:
    spec: Spec

@kopf.on.startup()
def configure(settings, **_):
    settings.admission.server = kopf.WebhookServer()
    settings.admission.managed = "things.example.com"

@kopf.on.create(Thing)
def create_fn(spec: Spec, patch, **_):
    patch.metadata.annotations["size"] = str(spec.size)

@kopf.on.validate(Thing)
def check_size(spec: Spec, **_):
    if spec.size > 10:
        raise kopf.AdmissionError(f"{spec.size} is too large.", code=422)
"""


def is_sized(body):
    return body["metadata"]["annotations"]["size"] == "1"


@pytest.mark.kopf_sandbox(rbac=True)
@pytest.mark.usefixtures("forked_operators")
def test_operators_with_an_account_of_their_own_do_not_apply_their_definitions(kopf_sandbox, kopf_operator, tmp_path):
    (tmp_path / "typed.py").write_text(TYPED)
    made = run_process(["kopf", "manifests", "typed.py", "--image", "example:1", "--name", "robot"], cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    kopf_sandbox.apply(made.stdout)
    own = kopf_sandbox.kubeconfig_for("system:serviceaccount:default:robot")
    with kopf_operator("typed.py", env={"KUBECONFIG": str(own)}, cwd=tmp_path) as operator:
        operator.wait_for_output("Reconfiguring the validating webhook")
        kopf_sandbox.create("things", "one", spec={"size": 1})
        kopf_sandbox.wait_for("things", "one", is_sized)
    assert "forbidden" not in operator.output


@pytest.mark.usefixtures("forked_operators")
def test_webhooks_with_classes_get_the_changed_object(kopf_sandbox, kopf_operator, tmp_path):
    (tmp_path / "typed.py").write_text(TYPED)
    with kopf_operator("typed.py", cwd=tmp_path) as operator:
        operator.wait_for_output("Reconfiguring the validating webhook")
        kopf_sandbox.create("things", "one", spec={"size": 1})
        kopf_sandbox.wait_for("things", "one", is_sized)
        for size in (11, 12):
            with pytest.raises(Refusal, match=f"{size} is too large"):
                kopf_sandbox.patch("things", "one", {"spec": {"size": size}})
        kopf_sandbox.patch("things", "one", {"spec": {"size": 2}})


def documented(*kinds):
    """Return the objects of these kinds that the page on deployment shows."""
    page = find_page("deployment").read_text()
    blocks = re.findall(r"^\.\. code-block:: yaml\n(?: +:.*\n)*\n((?: {4}.*\n|\n)+)", page, re.MULTILINE)
    return [body for block in blocks for body in yaml.safe_load_all(textwrap.dedent(block)) if body["kind"] in kinds]


@pytest.mark.kopf_sandbox(rbac=True)
@pytest.mark.usefixtures("forked_operators")
def test_the_documented_permissions_are_enough(kopf_sandbox, kopf_operator):
    roles = documented("ServiceAccount", "ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding")
    assert len(roles) == 5
    for body in [*roles, ROOT / "peering.yaml", ROOT / "examples" / "crd.yaml", ROOT / "examples" / "obj.yaml"]:
        kopf_sandbox.apply(body)
    kopf_sandbox.create({"apiVersion": "kopf.dev/v1", "kind": "ClusterKopfPeering", "metadata": {"name": "default"}})
    own = kopf_sandbox.kubeconfig_for("system:serviceaccount:default:my-operator")
    with kopf_operator(ROOT / "examples" / "01-minimal" / "example.py", env={"KUBECONFIG": str(own)}) as operator:
        operator.wait_for_output("Creation is processed: 1 succeeded; 0 failed")
    assert not re.search("(?i)forbidden", operator.output)
    assert [event for event in kopf_sandbox.list("events") if event["reason"] == "Logging"]
