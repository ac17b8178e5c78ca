"""What is not about objects of known kinds: documents, unknown paths and methods, reviews, namespaces, definitions."""

import copy
import random
from collections.abc import Iterable
from typing import Any

import mischief
import worlds
from steps import Step

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
G = worlds.GROUP

#: Documents that have to be the same, and those that are only there.
DOCUMENTS = [
    "/api",
    "/api/",
    f"/apis/{G}",
    f"/apis/{G}/v1",
    f"/apis/{G}/v1beta1",
    f"/apis/{G}/v1alpha1",
    "/apis/apps",
    "/apis/apps/v1",
    "/apis/batch/v1",
    "/api/v1",
    "/apis/apiextensions.k8s.io/v1",
    "/apis/apiextensions.k8s.io",
    "/apis/coordination.k8s.io/v1",
    "/apis/events.k8s.io/v1",
    "/apis/rbac.authorization.k8s.io/v1",
    "/apis/networking.k8s.io/v1",
    "/apis/policy/v1",
    "/apis/admissionregistration.k8s.io/v1",
    "/apis/autoscaling/v2",
    "/apis/autoscaling",
    "/apis/storage.k8s.io/v1",
    "/apis/authorization.k8s.io/v1",
    "/apis/authentication.k8s.io/v1",
    "/apis/discovery.k8s.io/v1",
    "/apis/scheduling.k8s.io/v1",
    "/apis/certificates.k8s.io/v1",
    "/apis/node.k8s.io/v1",
    "/healthz",
    "/livez",
    "/readyz",
    "/healthz/ping",
    "/livez/ping",
    "/readyz/ping",
    "/readyz/bogus",
    "/apis/apps/v1/",
    "/api/v1/",
]
PRESENT = [
    "/healthz?verbose",
    "/apis",
    "/apis/",
    "/version",
    "/openapi/v3",
    "/openapi/v2",
    "/",
    "/metrics",
    f"/openapi/v3/apis/{G}/v1",
    "/openapi/v3/api/v1",
    "/version/",
    "/openapi/v3/apis/apps/v1",
]
ABSENT = [
    "/bogus",
    "/api/v2",
    "/api/v1/bogus",
    "/api/v1/namespaces/default/bogus",
    "/api/v1/namespaces/default/bogus/x",
    "/apis/bogus",
    "/apis/bogus.example.dev/v1",
    "/apis/bogus.example.dev/v1/things",
    "/apis/apps/v9",
    "/apis/apps/v9/deployments",
    "/apis/apps/v1/bogus",
    f"/apis/{G}/v9",
    f"/apis/{G}/v9/widgets",
    f"/apis/{G}/v1/bogus",
    f"/apis/{G}/v1/namespaces/default/bogus",
    f"/apis/{G}/v1alpha1/gizmos",
    f"/apis/{G}/v1/namespaces/default/gadgets",
    f"/apis/{G}/v1/widgets/x",
    "/api/v1/pods/x",
    "/api/v1/namespaces/default/nodes",
    "/api/v1/namespaces/default/configmaps/x/y",
    "/api/v1/namespaces/default/configmaps/x/y/z",
    "/api/v1/namespaces/default/pods/x/bogus",
    "/api/v1/namespaces/default",
    "/api/v1/namespaces/absent",
    "/api/v1/namespaces/absent/pods",
    "/api/v1/namespaces/absent/pods/x",
    f"/apis/{G}/v1/namespaces/absent/widgets",
    "/apis/apps/v1/namespaces/default",
    "/API/V1",
    f"/apis/{G}/v1/namespaces/default",
    "/api/v1/nodes/x/proxy",
    "/api//v1",
    "//api/v1",
    "/api/v1/namespaces//pods",
    "/api/v1/../v1",
    "/apis/apps/v1/namespaces/default/deployments/x/bogus",
    "/openapi/v3/apis/bogus/v1",
    "/openapi/v4",
    "/logs",
    "/healthz/bogus",
    "/api/v1/componentstatuses",
    "/apis/apps/v1/watch/deployments/x",
    "/api/v1/watch/bogus",
    "/apis/bogus/v1/namespaces/default/x/y",
    f"/apis/{G}/v1/namespaces/default/widgets/x/bogus",
    f"/apis/{G}/v1/gadgets/x/status",
    f"/apis/{G}/v1/gadgets/x/scale",
    "/api/v1/namespaces/default/pods/x/status",
    "/api/v1/namespaces/default/pods/x/log",
    "/api/v1/namespaces/default/services/x/proxy",
]
WORDS = ["BOGUS", "OPTIONS", "HEAD", "TRACE", "POST", "PUT", "PATCH", "DELETE", "CONNECTX"]


class Corners:
    """Requests for one episode."""

    def __init__(self, rng: random.Random, name: str, namespace: str) -> None:
        self.rng = rng
        self.name = name
        self.namespace = namespace
        self._count = 0

    def any(self) -> Step | Iterable[Step]:
        """One request, or some that belong together."""
        makes = [
            self._document,
            self._absent,
            self._word,
            self._review,
            self._namespace,
            self._definition,
            self._definition,
            self._life,
            self._elsewhere,
            self._namespaces,
        ]
        weights = [4, 4, 2, 2, 3, 3, 3, 0.7, 2, 2]
        result: Step | Iterable[Step] = self.rng.choices(makes, weights)[0]()
        return result

    def _document(self) -> Step:
        shallow = self.rng.random() < 0.25
        step = Step("document", "GET", self.rng.choice(PRESENT if shallow else DOCUMENTS), shallow=shallow)
        if self.rng.random() < 0.15:
            step.accept = self.rng.choice(
                [AGGREGATED, AGGREGATED + ",application/json", "application/yaml", "text/plain", "*/*", ""]
            )
            step.shallow = True
        return step

    def _absent(self) -> Step:
        method = self.rng.choice(["GET"] * 5 + ["POST", "PUT", "PATCH", "DELETE"])
        step = Step("absent path", method, self.rng.choice(ABSENT))
        if method in ("POST", "PUT", "PATCH"):
            step.body = {"apiVersion": "v1", "kind": "X", "metadata": {"name": "x"}}
            step.type = "application/merge-patch+json" if method == "PATCH" else step.type
        return step

    def _word(self) -> Step:
        path = self.rng.choice(
            [
                "/api/v1/namespaces/default/configmaps",
                "/api/v1/namespaces/default/configmaps/x",
                f"/apis/{G}/v1/namespaces/default/widgets",
                f"/apis/{G}/v1/namespaces/default/widgets/x",
                "/api/v1",
                "/apis",
                "/version",
                "/healthz",
                f"/apis/{G}/v1",
                "/api/v1/namespaces",
                f"/apis/{G}/v1/widgets",
                "/api/v1/pods",
                f"/apis/{G}/v1/gadgets",
                f"/apis/{G}/v1/gadgets/x",
            ]
        )
        method = self.rng.choice(WORDS)
        body = {} if method in ("POST", "PUT", "PATCH") else None
        step = Step(f"word {method}", method, path, body=body, shallow=path in PRESENT)
        if method == "DELETE" and path.rpartition("/")[2] != "x":
            step.params = [("labelSelector", "twins=absent")]
        return step

    def _review(self) -> Step:
        rng = self.rng
        plural, kind, spec = rng.choice(
            [
                (
                    "selfsubjectaccessreviews",
                    "SelfSubjectAccessReview",
                    {"resourceAttributes": {"verb": "list", "resource": "pods"}},
                ),
                (
                    "selfsubjectaccessreviews",
                    "SelfSubjectAccessReview",
                    {"nonResourceAttributes": {"verb": "get", "path": "/x"}},
                ),
                ("selfsubjectaccessreviews", "SelfSubjectAccessReview", {}),
                (
                    "subjectaccessreviews",
                    "SubjectAccessReview",
                    {"user": "u", "resourceAttributes": {"verb": "list", "resource": "pods"}},
                ),
                (
                    "subjectaccessreviews",
                    "SubjectAccessReview",
                    {"resourceAttributes": {"verb": "list", "resource": "pods"}},
                ),
                ("selfsubjectrulesreviews", "SelfSubjectRulesReview", {"namespace": "default"}),
            ]
        )
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
        return Step(
            f"review {plural}", "POST", f"/apis/authorization.k8s.io/v1/{plural}", body=body, shallow="rules" in plural
        )

    def _namespace(self) -> Step:
        rng = self.rng
        self._count += 1
        body: Any = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"{self.name}-{self._count}"}}
        how = rng.choice(["name", "dry", "again", "labels", "kind", "status"])
        match how:
            case "name":
                body["metadata"]["name"] = rng.choice(mischief.BAD_NAMES)
            case "again":
                body["metadata"]["name"] = self.namespace
            case "labels":
                body["metadata"]["labels"] = rng.choice(mischief.BAD_LABELS)
            case "kind":
                body["kind"] = "Bogus"
            case "status":
                body["status"], body["spec"] = {"phase": "Terminating"}, {"finalizers": ["example.com/x"]}
        return Step(f"namespace create {how}", "POST", "/api/v1/namespaces", [("dryRun", "All")], body)

    def _namespaces(self) -> Step:
        rng, path = self.rng, f"/api/v1/namespaces/{self.namespace}"
        merge = "application/merge-patch+json"
        return rng.choice(
            [
                Step("namespace get", "GET", path, target=path),
                Step("namespace status", "GET", f"{path}/status"),
                Step("namespace list", "GET", "/api/v1/namespaces", [("labelSelector", f"twins={self.name}")]),
                Step(
                    "namespace patch",
                    "PATCH",
                    path,
                    body={"metadata": {"labels": {"x": rng.choice(["1", None])}}},
                    type=merge,
                    target=path,
                ),
                Step(
                    "namespace patch",
                    "PATCH",
                    path,
                    body={"metadata": {"labels": {"kubernetes.io/metadata.name": "other"}}},
                    type=merge,
                    target=path,
                ),
                Step("namespace patch", "PATCH", path, body={"spec": {"finalizers": []}}, type=merge, target=path),
                Step("namespace patch", "PATCH", f"{path}/status", body={"status": {"phase": "Odd"}}, type=merge),
                Step("namespace collection", "DELETE", "/api/v1/namespaces", [("labelSelector", "twins=absent")]),
                Step("namespace delete", "DELETE", path, [("dryRun", "All")]),
            ]
        )

    def _life(self) -> Iterable[Step]:
        """Yield the steps of a namespace that ends with something in it."""
        self._count += 1
        name = f"{self.name}-e{self._count}"
        path = f"/api/v1/namespaces/{name}"
        yield Step(
            "life",
            "POST",
            "/api/v1/namespaces",
            body={"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}},
        )
        held = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "finalizers": ["example.com/hold"]}}
        yield Step("life", "POST", f"{path}/configmaps", body=held)
        yield Step("life", "DELETE", path)
        yield Step("life", "POST", f"{path}/configmaps", body={"metadata": {"name": "y"}})
        yield Step("life", "GET", path, shallow=True)
        yield Step(
            "life",
            "PATCH",
            f"{path}/configmaps/x",
            body={"metadata": {"finalizers": None}},
            type="application/merge-patch+json",
            shallow=True,
        )
        yield Step("life", "GET", path, until=404)

    def _definition(self) -> Step:
        """Return a definition that is good or not so good; none is stored."""
        rng = self.rng
        self._count += 1
        plural, group = f"c{self._count}s", f"{self.name}.example.dev"
        schema = copy.deepcopy(rng.choice([worlds.WIDGET, worlds.PART, worlds.LOOSE]))
        body: Any = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}"},
            "spec": {
                "group": group,
                "scope": rng.choice(["Namespaced", "Cluster"]),
                "names": {"plural": plural, "kind": "Thing"},
                "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
            },
        }
        how = rng.choice(
            ["good", "schema", "schema", "schema", "spec", "spec", "names", "version", "versions", "any", "metadata"]
        )
        spec = body["spec"]
        match how:
            case "schema":
                self._spoil_schema(schema)
            case "spec":
                key, value = rng.choice(
                    [
                        ("scope", "Bad"),
                        ("scope", None),
                        ("group", "nodots"),
                        ("group", "Bad.Group"),
                        ("group", ""),
                        ("versions", []),
                        ("versions", None),
                        ("names", {}),
                        ("conversion", {"strategy": "Bad"}),
                        ("conversion", {"strategy": "Webhook"}),
                        ("preserveUnknownFields", True),
                        ("conversion", {"strategy": "None"}),
                        ("bogus", 1),
                        ("versions", "x"),
                        (
                            "conversion",
                            {
                                "strategy": "Webhook",
                                "webhook": {
                                    "conversionReviewVersions": ["v1"],
                                    "clientConfig": {"url": "https://example.com/x"},
                                },
                            },
                        ),
                    ]
                )
                spec[key] = value
            case "names":
                key, value = rng.choice(
                    [
                        ("plural", "Bad"),
                        ("kind", "bad kind"),
                        ("singular", "Sing"),
                        ("shortNames", ["Short"]),
                        ("kind", None),
                        ("plural", "others"),
                        ("listKind", "thing"),
                        ("categories", ["Cat"]),
                        ("listKind", "Thing"),
                    ]
                )
                spec["names"][key] = value
            case "version":
                key, value = rng.choice(
                    [
                        ("name", "V1"),
                        ("name", ""),
                        ("storage", False),
                        ("served", False),
                        ("schema", None),
                        ("schema", {}),
                        ("subresources", {"status": {}}),
                        ("subresources", {"scale": {}}),
                        ("subresources", {"scale": {"specReplicasPath": "x", "statusReplicasPath": ".status.r"}}),
                        ("additionalPrinterColumns", [{"name": "A", "type": "bad", "jsonPath": "x"}]),
                        ("additionalPrinterColumns", [{"name": "A"}]),
                        ("selectableFields", [{"jsonPath": ".spec.color"}]),
                        ("selectableFields", [{"jsonPath": ".spec.absent"}]),
                        ("deprecated", True),
                        ("deprecationWarning", "old"),
                        ("bogus", 1),
                        ("additionalPrinterColumns", worlds.COLUMNS),
                        ("name", "x" * 64),
                    ]
                )
                spec["versions"][0][key] = value
            case "versions":
                other = copy.deepcopy(spec["versions"][0])
                other.update(
                    rng.choice(
                        [
                            {"name": "v2"},
                            {"name": "v2", "storage": False},
                            {"storage": False},
                            {"name": "v2", "storage": False, "schema": {"openAPIV3Schema": {"type": "object"}}},
                        ]
                    )
                )
                spec["versions"].append(other)
            case "metadata":
                body["metadata"] = rng.choice(
                    [
                        {},
                        {"name": "wrong"},
                        {"name": f"{plural}.{group}", "labels": {"a b": "c"}},
                        {"name": f"{plural}.{group}", "finalizers": ["x"]},
                        {"generateName": "gen-"},
                    ]
                )
            case "any":
                places = [place for place in mischief.paths(body) if place[0] == "spec" and len(place) < 6]
                mischief.put(body, rng.choice(places), rng.choice([..., None, 5, "x", [], {}]))
        return Step(
            f"definition {how}",
            "POST",
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            [("dryRun", "All")],
            body,
        )

    def _spoil_schema(self, schema: Any) -> None:
        rng = self.rng
        nodes = [schema, *(mischief.dig(schema, place) for place in mischief.paths(schema))]
        nodes = [
            node
            for node in nodes
            if isinstance(node, dict)
            and ("type" in node or "x-kubernetes-int-or-string" in node)
            and not isinstance(node.get("type"), dict)
        ]
        node = rng.choice([schema, *nodes])
        edits: list[Any] = [
            {"type": "bogus"},
            {"type": ...},
            {"type": "array"},
            {"type": "object", "properties": {"a": {}}},
            {"uniqueItems": True},
            {"additionalProperties": False},
            {"properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "string"}},
            {"default": 5},
            {"default": {}},
            {"default": "x"},
            {"pattern": "("},
            {"minimum": "x"},
            {"enum": []},
            {"$ref": "#/x"},
            {"nullable": True},
            {"x-kubernetes-list-type": "bad"},
            {"x-kubernetes-list-type": "map"},
            {"x-kubernetes-preserve-unknown-fields": False},
            {"oneOf": [{"type": "string"}]},
            {"anyOf": [{"required": ["x"]}]},
            {"not": {"default": 1}},
            {"x-kubernetes-int-or-string": True},
            {"x-kubernetes-embedded-resource": True},
            {"required": ["absent"]},
            {"maxLength": -1},
            {"format": "bogus"},
            {"title": "T"},
            {"x-kubernetes-map-type": "atomic"},
            {"x-kubernetes-map-type": "bad"},
            {"x-bogus": 1},
            {"id": "x"},
            {"deprecated": True},
            {"x-kubernetes-list-map-keys": ["a"]},
            {"dependencies": {"a": ["b"]}},
            {"patternProperties": {"a": {}}},
            {"multipleOf": 0},
            {"x-kubernetes-validations": [{"rule": "true"}]},
            {"x-kubernetes-validations": [{"rule": "bogus("}]},
            {"example": {"a": 1}},
            {"definitions": {}},
            {"items": {"type": "string"}},
            {"items": [{"type": "string"}]},
            {"allOf": [{"properties": {"zzz": {"minLength": 1}}}]},
        ]
        for key, value in rng.choice(edits).items():
            if value is ...:
                node.pop(key, None)
            else:
                node[key] = value

    def _elsewhere(self) -> Step:
        """Return a step with an object in a place where it does not belong."""
        rng = self.rng
        widget = {"apiVersion": f"{G}/v1", "kind": "Widget", "metadata": {"name": "x"}, "spec": {"size": 1}}
        config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}
        group = f"/apis/{G}/v1"
        return rng.choice(
            [
                Step("elsewhere", "POST", "/api/v1/namespaces/absent/configmaps", body=config),
                Step("elsewhere", "POST", f"{group}/namespaces/absent/widgets", body=widget),
                Step("elsewhere", "POST", f"{group}/widgets", body=widget),
                Step("elsewhere", "POST", "/api/v1/configmaps", body=config),
                Step("elsewhere", "POST", f"{group}/namespaces/{self.namespace}/gadgets", body=widget),
                Step("elsewhere", "PUT", f"{group}/namespaces/absent/widgets/x", body=widget),
                Step("elsewhere", "PUT", "/api/v1/namespaces/absent/configmaps/x", body=config),
                Step("elsewhere", "DELETE", "/api/v1/namespaces/absent/configmaps/x"),
                Step("elsewhere", "DELETE", f"{group}/namespaces/absent/widgets"),
                Step("elsewhere", "POST", f"/api/v1/namespaces/{self.namespace}/configmaps/x", body=config),
                Step("elsewhere", "POST", f"{group}/namespaces/{self.namespace}/widgets/x", body=widget),
                Step(
                    "elsewhere",
                    "PUT",
                    f"{group}/namespaces/{self.namespace}/widgets/absent",
                    body={**widget, "metadata": {"name": "absent"}},
                ),
                Step("elsewhere", "DELETE", "/api/v1/namespaces/absent"),
                Step("elsewhere", "DELETE", "/api/v1/namespaces/default", [("dryRun", "All")]),
                Step(
                    "elsewhere",
                    "GET",
                    f"/api/v1/watch/namespaces/{self.namespace}/configmaps",
                    [("timeoutSeconds", "1"), ("resourceVersion", "x")],
                ),
                Step(
                    "elsewhere",
                    "POST",
                    f"/api/v1/namespaces/{self.namespace}/configmaps",
                    [("dryRun", "All")],
                    b'{"data": {"a": "' + b"x" * 1_100_000 + b'"}, "metadata": {"name": "big"}}',
                ),
                Step(
                    "elsewhere",
                    "POST",
                    f"/api/v1/namespaces/{self.namespace}/configmaps",
                    [],
                    b'{"data": {"a": "' + b"x" * 3_200_000 + b'"}}',
                ),
                Step(
                    "elsewhere",
                    "GET",
                    "/api/v1/namespaces/default/configmaps",
                    headers={"Authorization": "Bearer wrong"},
                ),
                Step(
                    "elsewhere", "GET", "/api/v1/namespaces/default/configmaps", headers={"Authorization": "Basic eDp5"}
                ),
            ]
        )
