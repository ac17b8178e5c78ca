"""
Episodes about the owners of fields: a few managers write the same few objects again and again, in all possible ways.

The objects have all kinds of structures: maps and lists that are owned as a whole, lists with keys, sets, and values of
any shape. No controller writes them, so that the managed fields depend on the requests alone.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import episodes
import worlds
from steps import Memory, Ref, Step, resolve

Body = dict[str, Any]
MANAGERS = ["one", "one", "two", "three"]
WIDGETS = f"/apis/{worlds.GROUP}/v1/namespaces/{{}}/widgets"

CONTAINERS = [
    {"name": "a", "image": "one", "ports": [{"containerPort": 80}], "env": [{"name": "x", "value": "1"}]},
    {"name": "a", "image": "two", "env": [{"name": "x", "value": "2"}, {"name": "y", "value": "1"}]},
    {"name": "b", "image": "one", "args": ["x"], "resources": {"limits": {"cpu": "1000m"}}},
]
OWNERS = ("owner-1", "owner-2")
LABELS = {"app": "x"}
Choices = dict[str, list[Any]]
"""The fields, by their paths, with the values that they can have."""

META: Choices = {
    "metadata.labels.a": ["1", "2"],
    "metadata.labels.b": ["1", "2"],
    "metadata.annotations.a": ["1", "2"],
    "metadata.finalizers": [["x.y/a"], ["x.y/a", "x.y/b"], ["x.y/b"]],
}
KINDS: dict[str, tuple[str, str, str, Body, Choices]] = {
    "configmaps": (
        "v1",
        "ConfigMap",
        "/api/v1/namespaces/{}/configmaps",
        {},
        {"data.a": ["1", "2"], "data.b": ["1", "2", ""], "binaryData.c": ["eA=="], "immutable": [False]},
    ),
    "services": (
        "v1",
        "Service",
        "/api/v1/namespaces/{}/services",
        {"spec": {"clusterIP": "None", "ports": [{"port": 80}], "selector": LABELS}},
        {
            "spec.ports": [
                [{"port": 80, "name": "a"}],
                [{"port": 80, "name": "a", "targetPort": 8080}, {"port": 80, "protocol": "UDP", "name": "b"}],
                [{"port": 81}],
            ],
            "spec.selector": [LABELS, {"app": "y"}, {"app": "x", "b": "y"}],
            "spec.sessionAffinity": ["None", "ClientIP"],
            "spec.clusterIP": ["None"],
        },
    ),
    "podtemplates": (
        "v1",
        "PodTemplate",
        "/api/v1/namespaces/{}/podtemplates",
        {"template": {"metadata": {"labels": LABELS}, "spec": {"containers": CONTAINERS[:1]}}},
        {
            "template.metadata.labels": [LABELS, {"app": "x", "b": "1"}],
            "template.spec.containers": [CONTAINERS[:1], CONTAINERS[1:2], CONTAINERS[1:], CONTAINERS[::2]],
            "template.spec.nodeSelector": [{"a": "b"}, {"a": "c"}],
            "template.spec.tolerations": [[{"key": "a", "operator": "Exists"}], [{"key": "b", "operator": "Exists"}]],
            "template.spec.hostAliases": [[{"ip": "1.2.3.4", "hostnames": ["a"]}]],
            "template.spec.terminationGracePeriodSeconds": [30, 5],
        },
    ),
    "serviceaccounts": (
        "v1",
        "ServiceAccount",
        "/api/v1/namespaces/{}/serviceaccounts",
        {},
        {
            "imagePullSecrets": [[{"name": "a"}], [{"name": "b"}, {"name": "a"}]],
            "secrets": [[{"name": "a"}], [{"name": "a"}, {"name": "b"}]],
            "automountServiceAccountToken": [True, False],
        },
    ),
    "widgets": (
        f"{worlds.GROUP}/v1",
        "Widget",
        WIDGETS,
        {"spec": {"size": 1}},
        {
            "spec.size": [1, 2],
            "spec.replicas": [1, 2],
            "spec.color": ["red", "blue"],
            "spec.title": ["a", None],
            "spec.tags": [["a"], ["a", "b"], ["b"]],
            "spec.ports": [[{"port": 1}], [{"port": 1, "name": "a"}, {"port": 2, "protocol": "UDP"}], [{"port": 2}]],
            "spec.limits": [{"cpu": 1}, {"cpu": "2", "memory": "1Gi"}],
            "spec.free": [{"a": {"b": 1}}, {"a": {"b": 2, "c": [1]}}, {}],
            "spec.nested.mode": ["auto", "manual"],
            "spec.nested.deep.value": ["a", "b"],
            "status.phase": ["Ready", "Failed"],
            "status.replicas": [1, 2],
            "status.seen": [{"a": 1}, {"b": {"c": 1}}],
        },
    ),
}


def put(body: Body, path: str, value: Any) -> None:
    """Set the field in place."""
    *parents, last = path.split(".")
    for key in parents:
        body = body.setdefault(key, {}) if isinstance(body.get(key), dict | None) else body
    body[last] = value


def cut(body: Body, path: str) -> None:
    """Remove the field in place, if it is there."""
    *parents, last = path.split(".")
    for key in parents:
        body = body.get(key) or {}
    body.pop(last, None)


class OwnershipEpisode(episodes.Episode):
    """The requests of one seed and number, about one kind."""

    def __init__(self, seed: int, number: int, length: int, **options: Any) -> None:
        super().__init__(seed, number, length, **options)
        self._plural = self.rng.choice([*KINDS, "widgets"])
        self._version, self._kind, place, self._base, own = KINDS[self._plural]
        self._collection = place.format(self.namespace)
        self._choices = {**META, **own, "metadata.ownerReferences": self._refer_to_owners()}
        self._is_custom = self._plural == "widgets"

    def _refer_to_owners(self) -> list[Any]:
        # Owners that exist, as the garbage collectors would delete the objects at some time otherwise.
        paths = {name: f"/api/v1/namespaces/{self.namespace}/configmaps/{name}" for name in OWNERS}
        one, other = [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "name": name,
                "uid": Ref(lambda memory, path=path: memory.uid(path)),
            }
            for name, path in paths.items()
        ]
        return [[one], [other], [one, other]]

    def steps(self) -> Iterator[Step]:
        """Yield all requests."""
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
        yield Step("namespace create", "POST", "/api/v1/namespaces", body=namespace)
        place = f"/api/v1/namespaces/{self.namespace}/configmaps"
        for name in OWNERS:
            owner = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
            yield Step("owner create", "POST", place, body=owner, target=f"{place}/{name}")
        writes: list[tuple[Callable[[str], Step], float]] = [
            (self._create, 1),
            (self._apply, 8),
            (self._replace, 4),
            (self._merge, 4),
            (self._edit, 2),
            (self._reset, 0.5),
            (self._remove, 0.4),
        ]
        if self._is_custom:
            writes += [(self._status, 4), (self._scale, 1.5)]
        else:
            writes += [(self._strategic, 3)]
        for _ in range(self.length):
            name = self.rng.choice([self.name, self.name, f"{self.name}-2"])
            [write] = self.rng.choices([write for write, _ in writes], [weight for _, weight in writes])
            step = write(name)
            step.target = f"{self._collection}/{name}"
            yield step

    def collections(self) -> Iterator[str]:
        """Yield where objects were created."""
        yield self._collection

    def cleanup(self) -> Iterator[Step]:
        """Yield the requests that remove all."""
        yield Step("-", "DELETE", f"/api/v1/namespaces/{self.namespace}", compared=False)

    # Parts of requests.

    def _some(self, most: int, *, within: str = "", without: str = "status") -> dict[str, Any]:
        paths = [
            path for path in self._choices if path.startswith(within) and not (without and path.startswith(without))
        ]
        chosen = self.rng.sample(paths, min(len(paths), self.rng.randint(0, most)))
        return {path: self.rng.choice(self._choices[path]) for path in chosen}

    def _body(self, name: str, fields: dict[str, Any], base: Body | None = None) -> Body:
        body = {
            "apiVersion": self._version,
            "kind": self._kind,
            "metadata": {"name": name},
            **copy.deepcopy(base or {}),
        }
        for path, value in fields.items():
            put(body, path, value)
        return body

    def _params(self) -> list[tuple[str, Any]]:
        return [("fieldManager", self.rng.choice(MANAGERS))] if self.rng.random() < 0.9 else []

    def _step(
        self, label: str, method: str, name: str, body: Any, type: str = "application/json", sub: str = ""
    ) -> Step:
        path = f"{self._collection}/{name}{sub}" if name else self._collection
        return Step(f"{label} {self._plural}", method, path, self._params(), body=body, type=type)

    # Requests.

    def _create(self, name: str) -> Step:
        return self._step("create", "POST", "", self._body(name, self._some(5), self._base))

    def _apply(self, name: str, sub: str = "") -> Step:
        rng = self.rng
        fields = self._some(4, within="status", without="") if sub else self._some(6)
        base = self._base if not sub and rng.random() < 0.7 else None
        step = self._step("apply", "PATCH", name, self._body(name, fields, base), episodes.APPLY, sub)
        step.params = [("fieldManager", rng.choice(MANAGERS))]
        if rng.random() < 0.5:
            step.params.append(("force", "true"))
        return step

    def _replace(self, name: str, sub: str = "") -> Step:
        """Replace the object by what was read before, with some changes, as most controllers do."""
        changes = self._some(3, within="status" if sub else "", without="" if sub else "status")
        gone = [] if sub else [path for path in self._choices if self.rng.random() < 0.1 and path != "spec.size"]
        keeps = self.rng.choice(["keep", "keep", "drop", "empty", "edit"])
        path = f"{self._collection}/{name}"

        def change(memory: Memory) -> Body:
            body = memory.current(path)
            body.setdefault("apiVersion", self._version)
            body.setdefault("kind", self._kind)
            for each in gone:
                cut(body, each)
            for each, value in changes.items():
                put(body, each, resolve(value, memory))
            body["metadata"].pop("resourceVersion", None)
            managed = body["metadata"].get("managedFields")
            if keeps == "drop" or not managed:
                body["metadata"].pop("managedFields", None)
            elif keeps == "empty":
                body["metadata"]["managedFields"] = []
            elif keeps == "edit":
                body["metadata"]["managedFields"] = managed[:1]
            return body

        return self._step("update", "PUT", name, Ref(change), sub=sub)

    def _merge(self, name: str, sub: str = "") -> Step:
        fields = self._some(3, within="status", without="") if sub else self._some(3)
        body: Body = {}
        for path, value in fields.items():
            put(body, path, None if self.rng.random() < 0.25 and path != "spec.size" else value)
        return self._step("merge", "PATCH", name, body, episodes.MERGE, sub)

    def _strategic(self, name: str) -> Step:
        body: Body = {}
        for path, value in self._some(3).items():
            put(body, path, None if self.rng.random() < 0.2 else value)
        return self._step("strategic", "PATCH", name, body, episodes.STRATEGIC)

    def _edit(self, name: str) -> Step:
        path, value = self.rng.choice([*self._some(1).items()] or [("metadata.labels", {"a": "3"})])
        pointer = "/" + path.replace(".", "/")
        operation = (
            {"op": "add", "path": pointer, "value": value}
            if self.rng.random() < 0.7
            else {"op": "remove", "path": pointer}
        )
        return self._step("json", "PATCH", name, [operation], episodes.JSON)

    def _status(self, name: str) -> Step:
        return self.rng.choice([self._apply, self._merge, self._replace])(name, "/status")

    def _scale(self, name: str) -> Step:
        body = {"spec": {"replicas": self.rng.choice([1, 2, 3])}}
        return self._step("scale", "PATCH", name, body, episodes.MERGE, "/scale")

    def _reset(self, name: str) -> Step:
        return self._step("reset", "PATCH", name, {"metadata": {"managedFields": [{}]}}, episodes.MERGE)

    def _remove(self, name: str) -> Step:
        return Step(f"delete {self._plural}", "DELETE", f"{self._collection}/{name}")


def sort_owners(value: Any) -> Any:
    """Return the body with its managed fields in the order of their managers: that of their times is of no use here."""
    if isinstance(value, dict) and isinstance(meta := value.get("metadata"), dict) and meta.get("managedFields"):
        return {**value, "metadata": {**meta, "managedFields": sorted(meta["managedFields"], key=_get_manager)}}
    return value


def _get_manager(entry: Body) -> tuple[str, ...]:
    return tuple(str(entry.get(key)) for key in ("operation", "manager", "apiVersion", "subresource"))
