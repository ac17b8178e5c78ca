"""The requests of one episode: a life of a few kinds in a namespace of its own, with all that goes wrong in it.

An episode depends on nothing but its seed and its number. It knows what it has asked for, not what came of it, so both
servers are asked the same, whatever they say.
"""

import copy
import json
import random
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

import corners
import mischief
import worlds
from mischief import BAD_NAMES, sample, spoil
from steps import Memory, Ref, Step
from worlds import Body, Resource

MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
PARTIAL = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
PARTIAL_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
ACCEPTS = ["application/json"] * 8 + [
    "*/*",
    "",
    "application/yaml",
    "text/html",
    "application/json;as=Table;v=v9;g=meta.k8s.io",
    "application/json;q=0.5",
    "image/png",
    "application/xml,application/json",
]
CHECKS = ["Strict", "Strict", "Warn", "Ignore", "", "Bad", "strict"]


class Episode:
    """The requests of one seed and number."""

    def __init__(self, seed: int, number: int, length: int, *, applies: bool) -> None:
        self.rng = random.Random(f"{seed}/{number}")
        self.name = f"s{seed}x{number}"
        self.namespace = f"{self.name}-a"
        self.length = length
        self.applies = applies
        self._count = 0
        self._models: dict[Resource, dict[str, Body]] = {}
        weights = [resource.weight for resource in worlds.RESOURCES]
        chosen = self.rng.choices(worlds.RESOURCES, weights, k=4)
        self._resources = [*dict.fromkeys([*chosen, self.rng.choice(worlds.CUSTOM)])]
        self._corners = corners.Corners(self.rng, self.name, self.namespace)

    def steps(self) -> Iterator[Step]:
        """All of them, with what comes before and after."""
        yield Step(
            "namespace create",
            "POST",
            "/api/v1/namespaces",
            target=f"/api/v1/namespaces/{self.namespace}",
            body={
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": self.namespace, "labels": {"twins": self.name}},
            },
        )
        for resource in self._resources:
            for _ in range(self.rng.randint(1, 3)):
                yield self._good_create(resource)
        verbs = [
            (self._create, 17),
            (self._get, 10),
            (self._list, 13),
            (self._watch, 1.2),
            (self._update, 15),
            (self._patch, 20),
            (self._delete, 7),
            (self._delete_many, 2),
            (self._subresource, 9),
            (self._corners.any, 8),
        ]
        for _ in range(self.length):
            verb: Callable[[], Any] = self.rng.choices([verb for verb, _ in verbs], [weight for _, weight in verbs])[0]
            step = verb()
            yield from [step] if isinstance(step, Step) else step

    def cleanup(self) -> Iterator[Step]:
        """Leave nothing behind."""
        for resource in self._resources:
            if not resource.namespaced:
                selector = [("labelSelector", f"twins={self.name}")]
                yield Step("-", "DELETE", resource.collection(""), selector, compared=False)
        yield Step("-", "DELETE", f"/api/v1/namespaces/{self.namespace}", compared=False)

    def collections(self) -> Iterator[str]:
        """Where objects have been made."""
        return (resource.collection(self.namespace) for resource in self._resources)

    # What the requests are about.

    def _resource(self) -> Resource:
        return self.rng.choice(self._resources)

    def _fresh(self) -> str:
        self._count += 1
        return f"{self.name}-{self._count}"

    def _known(self, resource: Resource) -> str:
        known = sorted(self._models.get(resource, {}))
        return self.rng.choice(known) if known and self.rng.random() < 0.93 else f"{self.name}-absent"

    def _model(self, resource: Resource, name: str) -> Body:
        model = self._models.get(resource, {}).get(name)
        return copy.deepcopy(model) if model else sample(resource, name, self.namespace, self.name, self.rng)

    def _path(self, resource: Resource, name: str) -> str:
        return f"{resource.collection(self.namespace)}/{name}"

    def _maybe(self, chance: float, *choices: Any) -> Any:
        return self.rng.choice(choices) if self.rng.random() < chance else None

    def _write_params(self) -> list[tuple[str, Any]]:
        pairs = {
            "fieldValidation": self._maybe(0.3, *CHECKS),
            "dryRun": self._maybe(0.12, "All", "All", "All", "", "Bad", "true"),
            "fieldManager": self._maybe(0.15, "me", "me-too", "x" * 130, "", "a\nb"),
            "pretty": self._maybe(0.02, "true"),
            "bogus": self._maybe(0.02, "1"),
            "timeout": self._maybe(0.02, "5s", "x", "0s"),
        }
        return [(key, value) for key, value in pairs.items() if value is not None]

    # Verbs.

    def _good_create(self, resource: Resource) -> Step:
        name = self._fresh()
        body = sample(resource, name, self.namespace, self.name, self.rng)
        self._models.setdefault(resource, {})[name] = body
        return Step(
            f"create {resource.plural}",
            "POST",
            resource.collection(self.namespace),
            body=body,
            target=self._path(resource, name),
        )

    def _create(self) -> Step:
        resource, rng = self._resource(), self.rng
        if rng.random() < 0.25:
            step = self._good_create(resource)
            step.params = self._write_params() if rng.random() < 0.5 else []
            return step
        name = self._known(resource) if rng.random() < 0.12 else self._fresh()
        body: Any = sample(resource, name, self.namespace, self.name, rng)
        label, type, params = "good", "application/json", self._write_params()
        if rng.random() < 0.12:
            label, type, body = self._other_type(body)
        elif rng.random() < 0.08:
            del body["metadata"]["name"]
            body["metadata"]["generateName"], label = "gen-", "generated"
        else:
            label, body = spoil(resource, body, rng)
        if label in ("unknown-field", "unknown-nested", "text-duplicate") and rng.random() < 0.5:
            params.append(("fieldValidation", "Strict")) if not any(
                key == "fieldValidation" for key, _ in params
            ) else None
        step = Step(
            f"create {resource.plural} {label}", "POST", resource.collection(self.namespace), params, body, type
        )
        if isinstance(body, dict) and isinstance(body.get("metadata"), dict):
            step.target = self._path(resource, urllib.parse.quote(str(body["metadata"].get("name")), safe=""))
        return step

    def _other_type(self, body: Body) -> tuple[str, str, Any]:
        import yaml

        text = json.dumps(body)
        return self.rng.choice(
            [
                ("yaml", "application/yaml", yaml.safe_dump(body).encode()),
                ("yaml-json", "application/yaml", text.encode()),
                ("yaml-bad", "application/yaml", b"a: [1\nb: {"),
                ("type-text", "text/plain", text.encode()),
                ("type-none", "", text.encode()),
                ("type-charset", "application/json; charset=utf-8", text.encode()),
                ("type-merge", MERGE, text.encode()),
                ("type-bad", "nonsense", text.encode()),
                ("type-star", "*/*", text.encode()),
                ("yaml-many", "application/yaml", b"---\n" + yaml.safe_dump(body).encode()),
            ]
        )

    def _get(self) -> Step:
        resource, rng = self._resource(), self.rng
        name = self._known(resource)
        params = [("resourceVersion", rng.choice(["0", "1", "x"]))] if rng.random() < 0.05 else []
        if rng.random() < 0.04:
            params.append(("pretty", rng.choice(["true", "1", "0"])))
        step = Step(
            f"get {resource.plural}", "GET", self._path(resource, name), params, target=self._path(resource, name)
        )
        if rng.random() < 0.3:
            step.accept, word = rng.choice([(TABLE, "table"), (PARTIAL, "partial"), (rng.choice(ACCEPTS), "accept")])
            step.label += f" {word}"
            if word == "table" and rng.random() < 0.3:
                step.params.append(("includeObject", rng.choice(["None", "Object", "Metadata", "Bad"])))
            if word != "accept":
                step.target = ""
        elif rng.random() < 0.06:
            step.label, step.target = step.label + " bad-name", ""
            step.path = self._path(
                resource, rng.choice(["Upper", "a%20b", "%25", "..", "a%2Fb", "ä", "x" * 300, "a//b", name + "/"])
            )
        elif rng.random() < 0.05:
            step.method, step.label, step.target = "HEAD", f"head {resource.plural}", ""
        return step

    def _selectors(self, resource: Resource) -> list[tuple[str, Any]]:
        rng, params = self.rng, []
        if rng.random() < 0.35:
            params.append(
                (
                    "labelSelector",
                    rng.choice(
                        [
                            "n=1",
                            "n!=1",
                            "n in (1,2)",
                            "n notin (0)",
                            "n",
                            "!n",
                            "n>1",
                            "n<2",
                            f"twins={self.name},n=0",
                            "absent",
                            "n==2",
                            "a b",
                            "=",
                            "n=",
                            "n in (",
                            "n in ()",
                            "n in (1",
                            "!",
                            "n=1,",
                            ",n=1",
                            "n=a b",
                            "n>x",
                            "-n",
                            "n=1=2",
                            "n in (,1)",
                            "x" * 64,
                            "a/b/c",
                            "n=" + "x" * 64,
                            "n = 1",
                            " n",
                            "(n)",
                            "n!",
                            "n notin",
                            "n=-",
                            "a in (b), c",
                            "n>=1",
                            "&",
                        ]
                    ),
                )
            )
        if rng.random() < 0.25:
            fields = [
                "metadata.name=" + self._known(resource),
                "metadata.name!=x",
                "metadata.namespace=" + self.namespace,
                "spec.bogus=1",
                "metadata.labels=x",
                "metadata.name",
                "=",
                "metadata.name=a,metadata.name=b",
                "x=",
                "metadata.name==x",
                ",",
                "metadata.name=x\\,y",
                "metadata.name=",
                "status.phase=Pending",
            ]
            fields += [
                f"{field}{operator}{value}"
                for field in resource.fields
                for operator in ("=", "!=")
                for value in ("", "Normal", "true", "Opaque", "0")
            ]
            params.append(("fieldSelector", rng.choice(fields)))
        return params

    def _list(self) -> Step:
        resource, rng = self._resource(), self.rng
        namespace, params = self.namespace, self._selectors(resource)
        if not resource.namespaced or rng.random() < 0.15:
            namespace = ""
            params = [("labelSelector", f"twins={self.name}"), *(pair for pair in params if pair[0] != "labelSelector")]
        step = Step(f"list {resource.plural}", "GET", resource.collection(namespace), params, target="list")
        if rng.random() < 0.25:
            params.append(("limit", rng.choice(["1", "2", "500", "0", "-1", "x", "1.5", "99999999999999999999"])))
            if rng.random() < 0.6:
                params.append(
                    (
                        "continue",
                        rng.choice(
                            [Ref(lambda memory: memory.token), Ref(lambda memory: memory.token), "x", "e30", "!!", ""]
                        ),
                    )
                )
            step.label += " limit"
        if rng.random() < 0.25:
            params += self._version_params()
            step.label += " version"
        if rng.random() < 0.06:
            params.append(
                rng.choice(
                    [
                        ("watch", "0"),
                        ("watch", "false"),
                        ("timeoutSeconds", "x"),
                        ("timeoutSeconds", "5"),
                        ("allowWatchBookmarks", "maybe"),
                        ("sendInitialEvents", "true"),
                        ("bogus", "1"),
                        ("limit", ""),
                        ("pretty", "true"),
                        ("shardSelector", "x"),
                    ]
                )
            )
            step.label += " odd"
        if rng.random() < 0.3:
            step.accept, word = rng.choice(
                [
                    (TABLE, "table"),
                    (TABLE, "table"),
                    (PARTIAL_LIST, "partial"),
                    (PARTIAL, "partial"),
                    (rng.choice(ACCEPTS), "accept"),
                ]
            )
            step.label += f" {word}"
            if word == "table" and rng.random() < 0.3:
                params.append(("includeObject", rng.choice(["None", "Object", "Metadata", "Bad"])))
        if rng.random() < 0.02:
            step.method = "HEAD"
        return step

    def _version_params(self) -> list[tuple[str, Any]]:
        rng = self.rng
        version = rng.choice([Ref(lambda memory: memory.list_version), "0", "", "1", "x", "99999999", "-1", "0x1"])
        pairs = [("resourceVersion", version)] if rng.random() < 0.9 else []
        if rng.random() < 0.5:
            pairs.append(("resourceVersionMatch", rng.choice(["Exact", "NotOlderThan", "Bad", ""])))
        return pairs

    def _watch(self) -> Step:
        resource, rng = self._resource(), self.rng
        namespace, params = self.namespace, self._selectors(resource)
        if not resource.namespaced:
            params = [("labelSelector", f"twins={self.name}"), *(pair for pair in params if pair[0] != "labelSelector")]
        params += [("watch", rng.choice(["true", "1"])), ("timeoutSeconds", "1")]
        if rng.random() < 0.5:
            params += [("allowWatchBookmarks", "true")]
        if rng.random() < 0.35:
            params += [("sendInitialEvents", rng.choice(["true", "true", "false", "x"]))]
            params += [("resourceVersionMatch", "NotOlderThan")] if rng.random() < 0.8 else []
        if rng.random() < 0.6:
            params += [
                (
                    "resourceVersion",
                    rng.choice(
                        [
                            Ref(lambda memory: memory.list_version),
                            Ref(lambda memory: memory.list_version),
                            "0",
                            "1",
                            "x",
                            "",
                            "99999999",
                        ]
                    ),
                )
            ]
            params += [("resourceVersionMatch", rng.choice(["Exact", "NotOlderThan"]))] if rng.random() < 0.1 else []
        step = Step(f"watch {resource.plural}", "GET", resource.collection(namespace), params)
        if rng.random() < 0.2:
            step.accept = rng.choice([TABLE, PARTIAL, "application/yaml", "image/png"])
        return step

    def _update(self) -> Step:
        resource, rng = self._resource(), self.rng
        name = self._known(resource)
        path, params, type = self._path(resource, name), self._write_params(), "application/json"
        body: Any
        edit, label = self._edit(resource)
        if rng.random() < 0.75:
            body = Ref(lambda memory: edit(memory.current(path), memory))
        else:
            label, body = spoil(resource, self._model(resource, name), rng)
            if (
                isinstance(body, dict)
                and isinstance(body.get("metadata"), dict)
                and "resourceVersion" not in body["metadata"]
            ):
                body["metadata"]["resourceVersion"] = Ref(lambda memory: memory.version(path))
        step = Step(f"update {resource.plural} {label}", "PUT", path, params, body, type, target=path)
        if rng.random() < 0.02:
            step.path = resource.collection(self.namespace)
        return step

    def _edit(self, resource: Resource) -> tuple[Callable[[Body, Memory], Body], str]:
        """Return a change of the object as it is now."""
        rng = self.rng
        new = sample(resource, "x", self.namespace, self.name, rng)
        label, spoilt = mischief.of_value(resource, copy.deepcopy(new), rng)
        seed = rng.random()

        def nothing(body: Body, memory: Memory) -> Body:
            return body

        def respec(body: Body, memory: Memory) -> Body:
            kept = {key: body[key] for key in ("apiVersion", "kind", "metadata") if key in body}
            return {**kept, **{key: value for key, value in new.items() if key not in kept}}

        def spoil_spec(body: Body, memory: Memory) -> Body:
            kept = {key: body[key] for key in ("apiVersion", "kind", "metadata") if key in body}
            return {**kept, **{key: value for key, value in spoilt.items() if key not in kept}}

        def remeta(body: Body, memory: Memory) -> Body:
            body["metadata"].update(copy.deepcopy(meta))
            return body

        def old(body: Body, memory: Memory) -> Body:
            path = f"{resource.collection(self.namespace)}/{body['metadata'].get('name')}"
            body["metadata"]["resourceVersion"] = memory.version(path, 1)
            body["metadata"].setdefault("labels", {})["old"] = "x"
            return body

        def some_more(body: Body, memory: Memory) -> Body:
            places = [path for path in mischief.paths(body) if path[0] in ("spec", "data", "status") and len(path) > 1]
            places.sort(key=str)
            if places:
                mischief.put(body, places[int(seed * len(places))], ...)
            return body

        meta = rng.choice(
            [
                {"labels": {"twins": self.name, "n": "2"}},
                {"labels": None},
                {"annotations": {"a": "b"}},
                {"finalizers": ["example.com/hold"]},
                {"finalizers": []},
                {"finalizers": ["example.com/hold", "example.com/other"]},
                {"generation": 77},
                {"uid": "wrong"},
                {"uid": "11111111-2222-3333-4444-555555555555"},
                {"uid": None},
                {"resourceVersion": None},
                {"resourceVersion": "0"},
                {"resourceVersion": ""},
                {"resourceVersion": "x"},
                {"resourceVersion": "1"},
                {"resourceVersion": "99999999"},
                {"name": "other"},
                {"name": ""},
                {"namespace": "other"},
                {"creationTimestamp": "2001-02-03T04:05:06Z"},
                {"creationTimestamp": None},
                {"deletionTimestamp": "2001-02-03T04:05:06Z"},
                {"deletionGracePeriodSeconds": 5},
                {"generateName": "gen-"},
                {"selfLink": "/x"},
                {"ownerReferences": rng.choice(mischief.OWNERS)},
                {"bogus": 1},
                {"labels": rng.choice(mischief.BAD_LABELS)},
                {"managedFields": []},
                {"finalizers": None},
            ]
        )
        return rng.choice(
            [
                (nothing, "nothing"),
                (respec, "spec"),
                (respec, "spec"),
                (spoil_spec, label),
                (remeta, f"meta {[*meta][0]}"),
                (remeta, f"meta {[*meta][0]}"),
                (old, "old"),
                (some_more, "remove"),
            ]
        )

    def _patch(self) -> Step:
        resource, rng = self._resource(), self.rng
        name = self._known(resource)
        path = self._path(resource, name)
        kinds = [(self._merge_patch, 5), (self._json_patch, 4), (self._bad_patch, 1)]
        if self.applies:
            kinds += [(self._strategic_patch, 3), (self._apply_patch, 3)]
        make = rng.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
        label, type, body, params = make(resource, name)
        return Step(f"patch {resource.plural} {label}", "PATCH", path, params, body, type, target=path)

    def _change(self, resource: Resource, name: str) -> tuple[str, Any]:
        """Return a merge patch for the object."""
        rng = self.rng
        model = self._model(resource, name)
        path = self._path(resource, name)
        whole = {
            key: value
            for key, value in sample(resource, name, self.namespace, self.name, rng).items()
            if key not in ("metadata", "apiVersion", "kind")
        }
        places = [
            place
            for place in mischief.paths(model)
            if place[0] not in ("metadata", "apiVersion", "kind") and all(isinstance(key, str) for key in place)
        ]
        null: Any = {}
        if places:
            place = rng.choice(places)
            null = rng.choice([None, None, 5, "x", True, {}])
            for key in reversed(place):
                null = {key: null}
        metas: list[Any] = [
            {"labels": {"n": str(rng.randint(0, 3))}},
            {"labels": {"n": None}},
            {"annotations": {"a": "b", "c": None}},
            {"finalizers": ["example.com/hold"]},
            {"finalizers": []},
            {"finalizers": None},
            {"name": "other"},
            {"uid": "wrong"},
            {"resourceVersion": "1"},
            {"resourceVersion": Ref(lambda memory: memory.version(path))},
            {"resourceVersion": "x"},
            {"uid": Ref(lambda memory: memory.uid(path))},
            {"generation": 9},
            {"creationTimestamp": None},
            {"labels": None},
            {"deletionTimestamp": "2001-02-03T04:05:06Z"},
            {"namespace": "other"},
            {"labels": rng.choice(mischief.BAD_LABELS)},
            {"ownerReferences": rng.choice(mischief.OWNERS)},
            {"bogus": 1},
            {"generateName": "x"},
            {"name": None},
            None,
            5,
            [],
            {"resourceVersion": None},
            {"finalizers": ["a b"]},
            {"uid": None},
            {"namespace": None},
        ]
        return rng.choice(
            [
                ("spec", whole),
                ("spec", whole),
                ("place", null),
                ("place", null),
                ("meta", {"metadata": rng.choice(metas)}),
                ("meta", {"metadata": rng.choice(metas)}),
                ("meta", {"metadata": rng.choice(metas)}),
                ("empty", {}),
                ("unknown", {"bogus": 1}),
                ("unknown", {"spec": {"bogus": {"x": 1}}}),
                ("status", {"status": {"phase": "Ready"}}),
                ("kind", {"kind": rng.choice(["Other", None, 5])}),
                ("version", {"apiVersion": rng.choice(["v9", "a/b", None])}),
                ("null-spec", {"spec": None}),
                ("same", {key: value for key, value in model.items() if key != "metadata"}),
            ]
        )

    def _merge_patch(self, resource: Resource, name: str) -> tuple[str, str, Any, list[tuple[str, Any]]]:
        label, body = self._change(resource, name)
        return f"merge {label}", MERGE, body, self._write_params()

    def _strategic_patch(self, resource: Resource, name: str) -> tuple[str, str, Any, list[tuple[str, Any]]]:
        label, body = self._change(resource, name)
        directive = self._maybe(
            0.2,
            {"metadata": {"labels": {"$patch": "replace", "only": "x"}}},
            {"$patch": "delete"},
            {"metadata": {"finalizers": ["a.b/c"]}},
            {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a.b/c"]}},
            {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "other"}]}}}},
            {"spec": {"containers": [{"name": "main", "$patch": "delete"}]}},
            {"spec": {"$retainKeys": ["strategy"], "strategy": {"type": "Recreate"}}},
            {"spec": {"ports": [{"port": 80, "targetPort": 81}]}},
            {"metadata": {"$setElementOrder/finalizers": ["x.y/z"], "finalizers": ["x.y/z"]}},
        )
        return f"strategic {'directive' if directive else label}", STRATEGIC, directive or body, self._write_params()

    def _apply_patch(self, resource: Resource, name: str) -> tuple[str, str, Any, list[tuple[str, Any]]]:
        rng = self.rng
        label, body = rng.choice(
            [("spec", sample(resource, name, self.namespace, self.name, rng)), self._change(resource, name)]
        )
        if label != "spec" or rng.random() < 0.85:
            body = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        params = [("fieldManager", rng.choice(["one", "one", "two", "three", ""]))] if rng.random() < 0.95 else []
        if rng.random() < 0.4:
            params.append(("force", rng.choice(["true", "true", "false", "x"])))
        return (
            f"apply {label}",
            APPLY,
            body,
            [*params, *(pair for pair in self._write_params() if pair[0] != "fieldManager")],
        )

    def _json_patch(self, resource: Resource, name: str) -> tuple[str, str, Any, list[tuple[str, Any]]]:
        rng = self.rng
        model = self._model(resource, name)
        places = [place for place in mischief.paths(model) if place[0] not in ("apiVersion", "kind")]
        pointer = "/" + "/".join(str(key).replace("~", "~0").replace("/", "~1") for key in rng.choice(places))
        path = self._path(resource, name)
        some: list[Any] = [
            {"op": "add", "path": "/metadata/labels/new", "value": "x"},
            {"op": "remove", "path": "/metadata/labels/n"},
            {"op": "replace", "path": "/metadata/labels/n", "value": "3"},
            {"op": "test", "path": "/metadata/labels/n", "value": "1"},
            {"op": "test", "path": "/metadata/name", "value": name},
            {"op": "remove", "path": pointer},
            {"op": "test", "path": pointer, "value": mischief.dig(model, places[0])},
            {"op": "add", "path": pointer, "value": 5},
            {"op": "replace", "path": pointer, "value": rng.choice(["x", 5, None, {}, []])},
            {"op": "replace", "path": "/metadata/labels/none", "value": "x"},
            {"op": "add", "path": "/absent/deep", "value": 1},
            {"op": "remove", "path": "/absent"},
            {"op": "copy", "from": "/metadata/name", "path": "/metadata/labels/copy"},
            {"op": "move", "from": "/metadata/labels/n", "path": "/metadata/labels/moved"},
            {"op": "copy", "from": "/absent", "path": "/metadata/labels/x"},
            {"op": "add", "path": "/metadata/finalizers", "value": ["example.com/hold"]},
            {"op": "add", "path": "/metadata/finalizers/-", "value": "example.com/b"},
            {"op": "remove", "path": "/metadata/finalizers/0"},
            {"op": "remove", "path": "/metadata/finalizers"},
            {"op": "test", "path": "/metadata/finalizers", "value": None},
            {"op": "test", "path": "/metadata/resourceVersion", "value": Ref(lambda memory: memory.version(path))},
            {"op": "test", "path": "/metadata/resourceVersion", "value": "1"},
            {"op": "add", "path": "/spec/bogus", "value": 1},
            {"op": "add", "path": "/bogus", "value": 1},
            {"op": "replace", "path": "", "value": {}},
            {"op": "replace", "path": "/metadata", "value": {}},
            {"op": "replace", "path": "/metadata/name", "value": "other"},
            {"op": "remove", "path": "/metadata/name"},
            {"op": "remove", "path": "/metadata"},
            {"op": "bogus", "path": "/a"},
            {"op": "add"},
            {"path": "/a"},
            {"op": "add", "path": "/metadata/labels/novalue"},
            {"op": "add", "path": "nope", "value": 1},
            {"op": "replace", "path": "/metadata/generation", "value": 100},
            {"op": "replace", "path": "/kind", "value": "Other"},
            {},
            5,
            None,
            "x",
            {"op": "add", "path": "/metadata/annotations", "value": {"a": "b"}},
            {"op": "replace", "path": "/spec", "value": None},
            {"op": "add", "path": "/metadata/labels/a~1b", "value": "x"},
            {"op": "add", "path": "/metadata/finalizers/9", "value": "a.b/c"},
            {"op": "add", "path": "/metadata/finalizers/-1", "value": "a.b/c"},
            {"op": "test", "path": "/absent", "value": None},
            {"op": "add", "path": "/metadata/finalizers/x", "value": "a.b/c"},
            {"op": 5, "path": "/a"},
            {"op": "add", "path": 5, "value": 1},
        ]
        chosen = rng.choices(some[:20] + some[:10] + some[20:], k=rng.choice([1, 1, 2, 3]))
        words = "+".join(str(item.get("op")) if isinstance(item, dict) else "?" for item in chosen[:1])
        return f"json {words}", JSON, chosen, self._write_params()

    def _bad_patch(self, resource: Resource, name: str) -> tuple[str, str, Any, list[tuple[str, Any]]]:
        rng = self.rng
        type, body = rng.choice(
            [
                (MERGE, b"{"),
                (MERGE, b""),
                (MERGE, []),
                (MERGE, b"5"),
                (MERGE, b"null"),
                (MERGE, b'"x"'),
                (JSON, b"{}"),
                (JSON, b"["),
                (JSON, b""),
                (JSON, b"null"),
                (JSON, []),
                ("application/json", {}),
                ("", b"{}"),
                ("text/plain", {}),
                (MERGE + ";charset=utf-8", {}),
                ("application/yaml", {}),
                (JSON, b"5"),
                (MERGE, b"{} x"),
                (JSON, b"[] x"),
                (MERGE, b"{\"a\": }"),
                ("application/bogus+json", {}),
                (STRATEGIC if resource.custom else "x/y", {}),
            ]
        )
        return "bad", type, body, self._write_params()

    def _delete(self) -> Step:
        resource, rng = self._resource(), self.rng
        name = self._known(resource)
        path = self._path(resource, name)
        if rng.random() < 0.5:
            self._models.get(resource, {}).pop(name, None)
        bodies: list[Any] = [
            None,
            None,
            None,
            {},
            {"propagationPolicy": "Background"},
            {"preconditions": {"uid": Ref(lambda memory: memory.uid(path))}},
            {"preconditions": {"uid": "11111111-2222-3333-4444-555555555555"}},
            {"preconditions": {"resourceVersion": "1"}},
            {"preconditions": {"resourceVersion": Ref(lambda memory: memory.version(path))}},
            {"gracePeriodSeconds": 0},
            {"gracePeriodSeconds": -1},
            {"gracePeriodSeconds": "x"},
            {"propagationPolicy": "Bad"},
            {"dryRun": ["All"]},
            {"dryRun": ["Bad"]},
            {"kind": "DeleteOptions", "apiVersion": "v1"},
            {"kind": "Other", "apiVersion": "v1"},
            {"kind": "DeleteOptions", "apiVersion": "bogus/v1"},
            {"orphanDependents": True, "propagationPolicy": "Orphan"},
            {"bogus": 1},
            b"{",
            b"[]",
            b"x",
            {"preconditions": 5},
            {"kind": "DeleteOptions", "apiVersion": resource.api_version},
            {"kind": "DeleteOptions"},
            {"ignoreStoreReadErrorWithClusterBreakingPotential": True},
            {"gracePeriodSeconds": 30},
        ]
        params = [
            self._maybe(
                0.15,
                ("propagationPolicy", "Background"),
                ("propagationPolicy", "Bad"),
                ("dryRun", "All"),
                ("dryRun", "Bad"),
                ("gracePeriodSeconds", "0"),
                ("gracePeriodSeconds", "x"),
                ("orphanDependents", "false"),
                ("bogus", "1"),
                ("orphanDependents", "x"),
            )
        ]
        step = Step(f"delete {resource.plural}", "DELETE", path, [pair for pair in params if pair], rng.choice(bodies))
        step.label += "" if step.body is None else " options"
        if step.body is not None and rng.random() < 0.05:
            step.type = rng.choice(["text/plain", "application/yaml", "", MERGE])
        if step.body is None and rng.random() < 0.1:
            step.accept = rng.choice([TABLE, PARTIAL])
        return step

    def _delete_many(self) -> Step:
        resource, rng = self._resource(), self.rng
        selector = ("labelSelector", f"twins={self.name}" + rng.choice(["", ",n=1", ",n in (0,1)", ",n"]))
        params = [
            selector,
            *(
                [
                    rng.choice(
                        [
                            ("fieldSelector", "metadata.name=x"),
                            ("dryRun", "All"),
                            ("limit", "1"),
                            ("fieldSelector", "bogus=1"),
                            ("resourceVersion", "0"),
                            ("propagationPolicy", "Background"),
                            ("dryRun", "x"),
                            ("timeoutSeconds", "x"),
                        ]
                    )
                ]
                if rng.random() < 0.4
                else []
            ),
        ]
        body = rng.choice(
            [
                None,
                None,
                {},
                {"propagationPolicy": "Bad"},
                b"{",
                {"gracePeriodSeconds": 0},
                {"preconditions": {"uid": "x"}},
            ]
        )
        return Step(f"deletecollection {resource.plural}", "DELETE", resource.collection(self.namespace), params, body)

    def _subresource(self) -> Step:
        rng = self.rng
        having = [resource for resource in self._resources if resource.subresources]
        resource = rng.choice(having) if having and rng.random() < 0.9 else self._resource()
        name = self._known(resource)
        path = self._path(resource, name)
        sub = rng.choice(
            [
                *resource.subresources * 4,
                "status",
                "scale",
                rng.choice(["bogus", "log", "exec", "finalize", "status/x", "proxy"]),
            ]
        )
        method = rng.choice(["GET", "PUT", "PATCH", "PATCH", "PATCH", rng.choice(["POST", "DELETE"])])
        step = Step(
            f"{sub} {method} {resource.plural}", method, f"{path}/{sub}", target=path if sub == "status" else ""
        )
        statuses: list[Any] = [
            {"phase": "Ready"},
            {"phase": "Failed"},
            {"phase": "Odd"},
            {"replicas": 3},
            {"replicas": "x"},
            None,
            {},
            {"seen": {"a": [1]}},
            5,
            {
                "conditions": [
                    {
                        "type": "Ready",
                        "status": "True",
                        "lastTransitionTime": "2001-02-03T04:05:06Z",
                        "reason": "R",
                        "message": "m",
                    }
                ]
            },
            {"bogus": 1},
            {"observedGeneration": 1},
            {"phase": "Ready", "replicas": 1, "selector": "a=b"},
        ]
        status = rng.choice(statuses)
        replicas = rng.choice([0, 1, 5, 5, -1, "x", None, 2**31])
        if method in ("PUT", "POST"):
            if sub == "scale":
                step.body = {
                    "apiVersion": "autoscaling/v1",
                    "kind": rng.choice(["Scale"] * 5 + ["Other"]),
                    "metadata": {"name": rng.choice([name] * 5 + ["other"]), "namespace": self.namespace},
                    "spec": {"replicas": replicas},
                }
                if rng.random() < 0.3:
                    step.body["metadata"]["resourceVersion"] = rng.choice(
                        ["1", Ref(lambda memory: memory.version(path))]
                    )
            else:
                meta = rng.choice(
                    [
                        {},
                        {},
                        {"labels": {"n": "9"}},
                        {"finalizers": []},
                        {"annotations": {"by": "status"}},
                        {"resourceVersion": None},
                        {"resourceVersion": "1"},
                    ]
                )
                step.body = Ref(lambda memory: _with_status(memory.current(path), status, meta))
        elif method == "PATCH":
            step.type = rng.choice([MERGE, MERGE, MERGE, JSON])
            content = {"spec": {"replicas": replicas}} if sub == "scale" else {"status": status}
            if rng.random() < 0.2:
                content["metadata"] = rng.choice(
                    [{"labels": {"n": "8"}}, {"resourceVersion": "1"}, {"finalizers": []}, {"annotations": {"by": "s"}}]
                )
            if sub != "scale" and rng.random() < 0.1:
                content["spec"] = {"size": 99}
            step.body = content
            if step.type == JSON:
                place = "/spec/replicas" if sub == "scale" else rng.choice(["/status", "/status/phase"])
                step.body = [
                    {
                        "op": rng.choice(["add", "replace", "test", "remove"]),
                        "path": place,
                        "value": replicas if sub == "scale" else status,
                    }
                ]
            step.params = self._write_params() if rng.random() < 0.3 else []
        elif method == "GET" and rng.random() < 0.2:
            step.accept = rng.choice([TABLE, PARTIAL])
        return step


def _with_status(body: Body, status: Any, meta: Body) -> Body:
    body["status"] = status
    if isinstance(body.get("metadata"), dict):
        body["metadata"].update(copy.deepcopy(meta))
    return body


__all__ = ["BAD_NAMES", "Episode"]
