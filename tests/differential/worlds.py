"""The kinds that requests are about: the definitions of custom ones, and samples of objects of all of them."""

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import builtin_samples

GROUP = "twins.example.dev"
Body = dict[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Resource:
    """One kind in one version, and how its objects are made."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    sample: Callable[[random.Random], Body]
    weight: float = 1.0
    subresources: tuple[str, ...] = ()
    schema: Body | None = None
    fields: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def custom(self) -> bool:
        return self.group == GROUP

    def collection(self, namespace: str) -> str:
        """Return the path of the objects of the namespace, or of all if it is empty."""
        base = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        place = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{base}{place}/{self.plural}"


NAME = {"type": "string", "minLength": 1, "maxLength": 12, "pattern": "^[a-z][a-z0-9-]*$"}
WIDGET: Body = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["size"],
            "properties": {
                "size": {"type": "integer", "minimum": 0, "maximum": 100},
                "replicas": {"type": "integer", "format": "int32", "default": 1},
                "color": {"type": "string", "enum": ["red", "green", "blue"], "default": "red"},
                "title": {"type": "string", "nullable": True, "maxLength": 20},
                "owner": NAME,
                "ratio": {"type": "number", "exclusiveMinimum": True, "minimum": 0, "maximum": 1},
                "step": {"type": "integer", "multipleOf": 5},
                "enabled": {"type": "boolean", "default": True},
                "tags": {
                    "type": "array",
                    "items": {"type": "string", "minLength": 1},
                    "minItems": 1,
                    "maxItems": 4,
                    "x-kubernetes-list-type": "set",
                },
                "ports": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["port"],
                    "items": {
                        "type": "object",
                        "required": ["port"],
                        "properties": {
                            "port": {"type": "integer", "minimum": 1, "maximum": 65535},
                            "name": {"type": "string"},
                            "protocol": {"type": "string", "enum": ["TCP", "UDP"], "default": "TCP"},
                        },
                    },
                },
                "limits": {
                    "type": "object",
                    "additionalProperties": {"x-kubernetes-int-or-string": True},
                    "maxProperties": 3,
                },
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "nested": {
                    "type": "object",
                    "default": {},
                    "properties": {
                        "mode": {"type": "string", "default": "auto"},
                        "level": {"type": "integer", "nullable": True},
                        "deep": {"type": "object", "properties": {"value": {"type": "string"}}},
                    },
                },
            },
        },
        "status": {
            "type": "object",
            "properties": {
                "phase": {"type": "string", "enum": ["Ready", "Failed"]},
                "replicas": {"type": "integer"},
                "selector": {"type": "string"},
                "seen": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            },
        },
    },
}
PART: Body = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "template": {
                    "type": "object",
                    "x-kubernetes-embedded-resource": True,
                    "x-kubernetes-preserve-unknown-fields": True,
                },
                "target": {"x-kubernetes-int-or-string": True},
                "either": {
                    "type": "object",
                    "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
                    "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
                },
                "some": {
                    "type": "object",
                    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                    "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
                },
                "other": {"type": "object", "properties": {"word": {"type": "string"}}, "not": {"required": ["word"]}},
                "when": {"type": "string", "format": "date-time"},
                "data": {"type": "string", "format": "byte"},
                "address": {"type": "string", "format": "ipv4"},
                "link": {"type": "string", "format": "uri"},
                "count": {"type": "integer", "format": "int64", "minimum": 1, "exclusiveMaximum": True, "maximum": 9},
                "matrix": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
                "pairs": {"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 1},
            },
        },
    },
}


def _definition(plural: str, kind: str, versions: list[Body], *, scope: str = "Namespaced", **names: Any) -> Body:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": scope,
            "versions": versions,
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, **names},
        },
    }


def _version(name: str, schema: Body, **more: Any) -> Body:
    return {"name": name, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}, **more}


LOOSE: Body = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
SCALE = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".status.selector",
}
COLUMNS = [
    {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
    {"name": "Color", "type": "string", "jsonPath": ".spec.color", "description": "The color."},
    {"name": "Enabled", "type": "boolean", "jsonPath": ".spec.enabled", "priority": 1},
    {"name": "Tags", "type": "string", "jsonPath": ".spec.tags[*]"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
]
DEFINITIONS = [
    _definition(
        "widgets",
        "Widget",
        [_version("v1", WIDGET, subresources={"status": {}, "scale": SCALE}, additionalPrinterColumns=COLUMNS)],
        shortNames=["wd"],
        categories=["all"],
    ),
    _definition("parts", "Part", [_version("v1", PART)]),
    _definition("gadgets", "Gadget", [_version("v1", LOOSE)], scope="Cluster"),
    _definition(
        "gizmos",
        "Gizmo",
        [
            _version("v1", WIDGET, subresources={"status": {}}),
            _version(
                "v1beta1", {**WIDGET, "required": []}, subresources={"status": {}}, storage=False, deprecated=True
            ),
            _version("v1alpha1", LOOSE, storage=False, served=False),
        ],
    ),
]


def value(schema: Body, rng: random.Random) -> Any:
    """Return a value that the schema allows, more or less."""
    if schema.get("nullable") and rng.random() < 0.3:
        return None
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return rng.choice([rng.randint(0, 500), "100m", "50%", "1Gi"])
    if schema.get("x-kubernetes-embedded-resource"):
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "inner"}, "data": {"a": "b"}}
    match schema.get("type"):
        case "object":
            return _mapping(schema, rng)
        case "array":
            return _items(schema, rng)
        case "integer":
            low, high = schema.get("minimum", 0), schema.get("maximum", 50)
            step = schema.get("multipleOf", 1)
            return rng.randint(low, high - 1) // step * step
        case "number":
            return rng.choice([0.5, 0.25, 1, 0.125])
        case "boolean":
            return rng.random() < 0.5
    return _string(schema, rng)


def _mapping(schema: Body, rng: random.Random) -> Body:
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return rng.choice([{}, {"x": 1}, {"x": {"y": [1, "2", None]}}, {"x": None}])
    if alternatives := schema.get("oneOf", schema.get("anyOf")):
        return {key: value(schema["properties"][key], rng) for key in rng.choice(alternatives)["required"]}
    if schema.get("not"):
        return {}
    properties = schema.get("properties", {})
    result = {
        key: value(sub, rng)
        for key, sub in properties.items()
        if key in schema.get("required", ()) or rng.random() < 0.35
    }
    if isinstance(others := schema.get("additionalProperties"), dict):
        result.update({f"k{index}": value(others, rng) for index in range(rng.randint(1, 3))})
    return result


def _items(schema: Body, rng: random.Random) -> list[Any]:
    items = [value(schema["items"], rng) for _ in range(rng.randint(max(1, schema.get("minItems", 0)), 3))]
    if schema.get("x-kubernetes-list-type") == "set":
        return list(dict.fromkeys(items))
    if keys := schema.get("x-kubernetes-list-map-keys"):
        return list({tuple(item.get(key) for key in keys): item for item in items}.values())
    return items


def _string(schema: Body, rng: random.Random) -> str:
    match schema.get("format"):
        case "date-time":
            return rng.choice(["2001-02-03T04:05:06Z", "2001-02-03T04:05:06.789+01:00"])
        case "byte":
            return "aGVsbG8="
        case "ipv4":
            return "192.168.1.1"
        case "uri":
            return "https://example.com/x"
    return rng.choice(["abc", "x", "name-1", "zed"])


def custom_sample(schema: Body) -> Callable[[random.Random], Body]:
    """Return samples of a custom kind; those that preserve everything get something."""

    def make(rng: random.Random) -> Body:
        if "properties" not in schema:
            return {"spec": {"any": rng.choice([1, "x", None, [1, None], {"y": 1.5}])}}
        return {"spec": value(schema["properties"]["spec"], rng)}

    return make


WIDGETS = Resource(GROUP, "v1", "widgets", "Widget", True, custom_sample(WIDGET), 12, ("status", "scale"), WIDGET)
CUSTOM = [
    WIDGETS,
    Resource(GROUP, "v1", "parts", "Part", True, custom_sample(PART), 5, (), PART),
    Resource(GROUP, "v1", "gadgets", "Gadget", False, custom_sample(LOOSE), 4, (), LOOSE),
    Resource(GROUP, "v1", "gizmos", "Gizmo", True, custom_sample(WIDGET), 3, ("status",), WIDGET),
    Resource(GROUP, "v1beta1", "gizmos", "Gizmo", True, custom_sample(WIDGET), 2, ("status",), WIDGET),
]
BUILTIN = [Resource(*row) for row in builtin_samples.ROWS]
RESOURCES = CUSTOM + BUILTIN
