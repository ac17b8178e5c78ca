"""Requests that are sent to the sandbox and to a real control plane alike, and answers that can be compared.

A replay is a YAML file with scenarios by their names; each is a list of steps,
`VERB resource[/name[/subresource]][?query]: body`. Bodies get the `apiVersion` and `kind` of the resource where they
say nothing of them. The verbs are those of HTTP, and `APPLY`, `MERGE`, `STRATEGIC`, `JSON` for the patches. Each
scenario has a namespace of its own: `{ns}`, with the uid `{uid}`; `{default}` is the uid of the namespace `default`.
"""

import json
import pathlib
import re
import secrets
import ssl
import time
from collections.abc import Iterator
from typing import Any

import yaml
from keptconnections import KeptConnections

GROUP = "replays.example.dev"
RESOURCES = {
    f"{GROUP}/v1": {"things": "Thing", "plains": "Plain", "ruleds": "Ruled"},
    f"{GROUP}/v2": {"v2things": "Thing"},
    "v1": {
        "configmaps": "ConfigMap",
        "pods": "Pod",
        "services": "Service",
        "podtemplates": "PodTemplate",
        "secrets": "Secret",
        "serviceaccounts": "ServiceAccount",
        "persistentvolumeclaims": "PersistentVolumeClaim",
        "resourcequotas": "ResourceQuota",
        "limitranges": "LimitRange",
        "endpoints": "Endpoints",
        "namespaces": "Namespace",
        "nodes": "Node",
        "persistentvolumes": "PersistentVolume",
        "events": "Event",
        "replicationcontrollers": "ReplicationController",
    },
    "apps/v1": {
        "deployments": "Deployment",
        "statefulsets": "StatefulSet",
        "daemonsets": "DaemonSet",
        "replicasets": "ReplicaSet",
        "controllerrevisions": "ControllerRevision",
    },
    "batch/v1": {"jobs": "Job", "cronjobs": "CronJob"},
    "autoscaling/v2": {"horizontalpodautoscalers": "HorizontalPodAutoscaler"},
    "networking.k8s.io/v1": {
        "ingresses": "Ingress",
        "networkpolicies": "NetworkPolicy",
        "ingressclasses": "IngressClass",
    },
    "policy/v1": {"poddisruptionbudgets": "PodDisruptionBudget"},
    "rbac.authorization.k8s.io/v1": {
        "roles": "Role",
        "rolebindings": "RoleBinding",
        "clusterroles": "ClusterRole",
        "clusterrolebindings": "ClusterRoleBinding",
    },
    "coordination.k8s.io/v1": {"leases": "Lease"},
    "discovery.k8s.io/v1": {"endpointslices": "EndpointSlice"},
    "scheduling.k8s.io/v1": {"priorityclasses": "PriorityClass"},
    "storage.k8s.io/v1": {"storageclasses": "StorageClass"},
    "apiextensions.k8s.io/v1": {"customresourcedefinitions": "CustomResourceDefinition"},
    "admissionregistration.k8s.io/v1": {
        "validatingwebhookconfigurations": "ValidatingWebhookConfiguration",
        "mutatingwebhookconfigurations": "MutatingWebhookConfiguration",
    },
}
KINDS = {plural: (api_version, kind) for api_version, kinds in RESOURCES.items() for plural, kind in kinds.items()}
CLUSTER_SCOPED = {
    "namespaces",
    "nodes",
    "persistentvolumes",
    "clusterroles",
    "clusterrolebindings",
    "priorityclasses",
    "storageclasses",
    "customresourcedefinitions",
    "validatingwebhookconfigurations",
    "mutatingwebhookconfigurations",
    "ingressclasses",
}
PATCHES = {
    "APPLY": "apply-patch+yaml",
    "MERGE": "merge-patch+json",
    "STRATEGIC": "strategic-merge-patch+json",
    "JSON": "json-patch+json",
}
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
ADDRESS = re.compile(r"10\.0\.\d+\.\d+")
UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class Replayer:
    """Sends the steps of scenarios to the cluster of a kubeconfig."""

    def __init__(self, kubeconfig: str, agent: str = "replay/1.0 (tests)") -> None:
        config = yaml.safe_load(pathlib.Path(kubeconfig).read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        authority = cluster.get("certificate-authority")
        context = ssl.create_default_context(cafile=authority)
        if "certificate-authority-data" in cluster:
            import base64

            context.load_verify_locations(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
        self._headers = {"Authorization": f"Bearer {user['token']}", "User-Agent": agent, "Accept": "application/json"}
        self._connections = KeptConnections(cluster["server"], context)

    def play(self, steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the normalised answers to the steps, after each other, in a new namespace."""
        namespace = f"replay-{secrets.token_hex(4)}"
        own = self.send("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}}, "application/json")
        other = self.send("GET", "/api/v1/namespaces/default", None, "")
        words = {
            "{ns}": namespace,
            "{uid}": own["body"]["metadata"]["uid"],
            "{default}": other["body"]["metadata"]["uid"],
        }
        answers = [self._step(words, *next(iter(step.items()))) for step in steps]
        self.send("DELETE", f"/api/v1/namespaces/{namespace}", None, "application/json")
        return list(_normalised(answers, namespace))

    def prepare(self, crds: list[dict[str, Any]]) -> None:
        """Create the kinds, when those of a former run are gone, and wait until they are served."""
        for crd in crds:
            present = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}"
            for _ in range(300):
                if "deletionTimestamp" not in self.send("GET", present, None, "")["body"].get("metadata", {}):
                    break
                time.sleep(0.1)
            self.send("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd, "application/json")
            names = crd["spec"]["names"]["plural"]
            for version in crd["spec"]["versions"]:
                for _ in range(100):
                    path = f"/apis/{crd['spec']['group']}/{version['name']}/{names}"
                    if self.send("GET", path, None, "")["status"] == 200:
                        break
                    time.sleep(0.1)

    def clean(self, crds: list[dict[str, Any]]) -> None:
        """Delete the kinds."""
        for crd in crds:
            path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}"
            self.send("DELETE", path, None, "")

    def _step(self, words: dict[str, str], action: str, body: Any) -> dict[str, Any]:
        verb, _, target = action.partition(" ")
        path, _, query = target.partition("?")
        plural, *rest = path.split("/")
        api_version, kind = KINDS[plural]
        if isinstance(body, dict) and verb in ("POST", "PUT", "APPLY"):
            body = {"apiVersion": api_version, "kind": kind, **body}
        root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        scope = "" if plural in CLUSTER_SCOPED else f"/namespaces/{words['{ns}']}"
        place = "/".join([f"{root}{scope}", plural.removeprefix("v2"), *rest])
        text = json.dumps(body) if body is not None and not isinstance(body, str) else body
        for word, value in words.items():
            text = text and text.replace(word, value)
        media = f"application/{PATCHES.get(verb, 'json')}"
        return self.send("PATCH" if verb in PATCHES else verb, f"{place}?{query}" if query else place, text, media)

    def send(self, method: str, path: str, body: Any, media: str) -> dict[str, Any]:
        """Return the answer to one request: its status, its body, and its warnings."""
        data = None if body is None else (body if isinstance(body, str) else json.dumps(body)).encode()
        headers = {**self._headers, **({} if data is None else {"Content-Type": media})}
        answer = self._connections.request(method, path, data, headers)
        try:
            decoded = json.loads(answer.text)
        except ValueError:
            decoded = answer.text
        return {"status": answer.status, "body": decoded, "warnings": answer.headers.get_all("Warning") or []}


def _normalised(answers: list[dict[str, Any]], namespace: str) -> Iterator[dict[str, Any]]:
    """Replace names, times, versions and uids by those that are the same in all runs."""
    seen: dict[str, dict[str, str]] = {"uid": {}, "version": {}}

    def number(kind: str, text: str) -> str:
        return seen[kind].setdefault(text, f"<{kind} {len(seen[kind]) + 1}>")

    def walk(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {plain(name): walk(item, name) for name, item in value.items()}
        if isinstance(value, list):
            items = [walk(item) for item in value]
            return sorted(items, key=_order) if key in ("managedFields", "causes") else items
        if key == "nodePort":
            return "<port>"
        if not isinstance(value, str):
            return value
        if key == "resourceVersion":
            return number("version", value)
        return plain(value)

    def plain(text: str) -> str:
        text = ADDRESS.sub("<address>", TIME.sub("<time>", text.replace(namespace, "<namespace>")))
        return UID.sub(lambda match: number("uid", match[0]), text)

    for answer in answers:
        yield {key: value for key, value in walk(answer).items() if value or key == "status"}


def _order(entry: dict[str, Any]) -> list[str]:
    """Where times and chance would give the order otherwise."""
    return [entry.get(key, "") for key in ("operation", "manager", "apiVersion", "subresource", "field", "message")]


def scenarios(path: pathlib.Path) -> dict[str, list[dict[str, Any]]]:
    """Return the scenarios of a replay; a step without a body may be a plain string."""
    loaded = yaml.safe_load(path.read_text())
    return {
        name: [step if isinstance(step, dict) else {step: None} for step in steps] for name, steps in loaded.items()
    }
