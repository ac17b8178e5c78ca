"""Good bodies made bad: what people and programs get wrong, each in one place of an otherwise valid object."""

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import worlds
from worlds import Body, Resource

Spoilt = tuple[str, Any]
"""What has been done, and the result: a body, or bytes."""

BAD_NAMES = [
    "Upper",
    "under_score",
    "-dash",
    "dash-",
    "a..b",
    "ä",
    "sp ace",
    "x" * 254,
    "a/b",
    "%",
    ".",
    "..",
    "x" * 64,
    "a.b",
    "1",
    "UPPER.case",
    "a%b",
    "-",
]
BAD_LABELS: list[Any] = [
    {"a b": "x"},
    {"a": "b c"},
    {"x" * 64: "y"},
    {"a": "x" * 64},
    {"/a": "b"},
    {"a/": "b"},
    {"A.b/c": "d"},
    {"a": 1},
    {"a": None},
    {"a/b/c": "d"},
    {"": "x"},
    "x",
    ["a"],
    {"-a": "b"},
    {"a": "-b"},
    {"a": True},
]
OWNERS: list[Any] = [
    [{"apiVersion": "v1", "kind": "ConfigMap", "name": "x"}],
    [{}],
    "x",
    [{"uid": "x"}],
    [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "u1", "controller": True},
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "y", "uid": "u2", "controller": True},
    ],
    [{"apiVersion": "a/b/c", "kind": "ConfigMap", "name": "x", "uid": "u"}],
    [{"apiVersion": "v1", "kind": "Event", "name": "x", "uid": "u"}],
]


def paths(value: Any, prefix: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the places in the value where something can be spoilt."""
    if prefix:
        yield prefix
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from paths(item, (*prefix, key))


def put(body: Any, path: tuple[Any, ...], value: Any) -> None:
    """Set what is at the path; with ``...``, remove it."""
    for key in path[:-1]:
        body = body[key]
    if value is ...:
        del body[path[-1]]
    else:
        body[path[-1]] = value


def dig(body: Any, path: tuple[Any, ...]) -> Any:
    """Return what is at the path."""
    for key in path:
        body = body[key]
    return body


def _in_spec(body: Body, rng: random.Random) -> tuple[Any, ...] | None:
    found = [path for path in paths(body) if path[0] not in ("metadata", "apiVersion", "kind")]
    return rng.choice(found) if found else None


def of_value(resource: Resource, body: Body, rng: random.Random) -> Spoilt:
    """Return a wrong type, a null, something missing or unknown, or a value out of the bounds."""
    how = rng.choice(["type", "null", "missing", "unknown", "bounds", "bounds", "unknown-nested"])
    path = _in_spec(body, rng)
    if how == "unknown" or path is None:
        place = rng.choice([(), ("metadata",)])
        dig(body, place)["bogus"] = rng.choice([1, "x", {"y": 1}, None])
        return "unknown-field", body
    if how == "unknown-nested":
        nodes = [place for place in paths(body) if isinstance(dig(body, place), dict) and place[0] != "metadata"]
        if nodes:
            dig(body, rng.choice(nodes))["bogus"] = 1
        return "unknown-nested", body
    if how == "null":
        put(body, path, None)
    elif how == "missing":
        put(body, path, ...)
    elif how == "type" or not resource.schema:
        old = dig(body, path)
        others = [value for value in (7, "word", True, ["x"], {"x": 1}, 1.5) if type(value) is not type(old)]
        put(body, path, rng.choice(others))
    else:
        return "bounds", _out_of_bounds(resource, body, rng)
    return how, body


def _out_of_bounds(resource: Resource, body: Body, rng: random.Random) -> Body:
    schema = (resource.schema or {}).get("properties", {}).get("spec")
    if schema is None or not isinstance(body.get("spec"), dict):
        return body
    for _ in range(rng.choice([1, 1, 2])):
        key = rng.choice(sorted(schema["properties"]))
        body["spec"][key] = _bad(schema["properties"][key], rng)
    return body


def _bad(schema: Body, rng: random.Random) -> Any:
    choices: list[Any] = []
    match schema.get("type"):
        case "integer":
            choices = [-1, 101, 1000000, 2**31, 2**63, 7.5, 3, "5", 1e3]
        case "number":
            choices = [0, -0.5, 1.5, "x", 10**400 if rng.random() < 0.1 else 2]
        case "string":
            choices = ["", "x" * 40, "Upper", "2001-13-41", "!!", "300.1.1.1", "not a link", 5, "purple"]
        case "array":
            choices = [
                [],
                ["a", "a"],
                ["x"] * 6,
                [1],
                "x",
                [None],
                [{"port": 1}, {"port": 1}],
                [{"name": "x"}],
                [{"port": 0}, {"port": 70000, "protocol": "ICMP"}],
                [[1, "2"], []],
                [""],
            ]
        case "object":
            choices = [
                {},
                {"a": "1", "b": "2"},
                {"a": 1, "b": 2},
                {"word": "x"},
                "x",
                [],
                {"k": None},
                {"mode": 5},
                {"deep": {"value": 1}},
                {f"k{index}": "1" for index in range(5)},
                {"kind": "Only"},
                {"apiVersion": "v1", "kind": "X", "metadata": {"labels": {"a b": "c"}}},
                {"apiVersion": "v1", "kind": "X", "metadata": {"name": 5}},
                {"level": None, "mode": None},
            ]
        case _:
            choices = [1.5, True, {}, [1], None]
    return rng.choice(choices)


def of_metadata(resource: Resource, body: Body, rng: random.Random) -> Spoilt:
    """Something wrong with the name, the labels and so on."""
    meta = body["metadata"]
    how = rng.choice(
        [
            "name",
            "name",
            "labels",
            "labels",
            "annotations",
            "finalizers",
            "owners",
            "namespace",
            "version",
            "identity",
            "absent",
            "generate",
            "times",
            "managed",
            "null",
            "generation",
        ]
    )
    match how:
        case "name":
            meta["name"] = rng.choice([*BAD_NAMES, "", None, 5])
        case "labels":
            meta["labels"] = rng.choice(BAD_LABELS)
        case "annotations":
            meta["annotations"] = rng.choice([*BAD_LABELS, {"a": "x" * 300_000}, {"A": "fine"}])
        case "finalizers":
            meta["finalizers"] = rng.choice(
                [["a b"], ["nodomain"], [1], "x", [""], ["a/b", "a/b"], ["orphan"], ["x" * 70], ["kubernetes"], [None]]
            )
        case "owners":
            meta["ownerReferences"] = rng.choice(OWNERS)
        case "namespace":
            meta["namespace"] = rng.choice(["elsewhere", "Bad_One", 5, ""])
        case "version":
            meta["resourceVersion"] = rng.choice(["5", "0", "x", 7, "", "-1"])
        case "identity":
            meta["uid"] = rng.choice(["11111111-2222-3333-4444-555555555555", "short", 9])
        case "absent":
            body.pop("metadata")
            if rng.random() < 0.5:
                body["metadata"] = rng.choice([None, {}, [], "x", 5])
        case "generate":
            meta.pop("name", None)
            meta["generateName"] = rng.choice(["Bad_", "gen-", "gen-" + "x" * 240, "", 5, "gen.-"])
        case "times":
            meta[rng.choice(["creationTimestamp", "deletionTimestamp"])] = rng.choice(
                ["2001-02-03T04:05:06Z", "yesterday", None, 5]
            )
        case "managed":
            meta["managedFields"] = rng.choice([[], [{}], "x", [{"manager": "m"}]])
        case "null":
            meta[rng.choice(["labels", "annotations", "finalizers", "ownerReferences", "generateName"])] = None
        case "generation":
            meta[rng.choice(["generation", "deletionGracePeriodSeconds"])] = rng.choice([5, "5", -1, 2.5])
    return f"metadata-{how}", body


def of_type(resource: Resource, body: Body, rng: random.Random) -> Spoilt:
    """Another kind or version than that of the path."""
    how = rng.choice(["kind", "version", "no-kind", "no-version", "neither", "types"])
    match how:
        case "kind":
            body["kind"] = rng.choice(["Other", resource.kind.lower(), resource.kind + "List", "ConfigMap", "Status"])
        case "version":
            body["apiVersion"] = rng.choice(["v1", f"{resource.group}/v9", "other.example.dev/v1", "a/b/c", "apps/v1"])
        case "no-kind":
            body["kind"] = ""
            if rng.random() < 0.7:
                del body["kind"]
        case "no-version":
            body["apiVersion"] = ""
            if rng.random() < 0.7:
                del body["apiVersion"]
        case "neither":
            del body["kind"], body["apiVersion"]
        case "types":
            body[rng.choice(["kind", "apiVersion"])] = rng.choice([5, None, {}, ["x"]])
    return f"type-{how}", body


def of_text(resource: Resource, body: Body, rng: random.Random) -> Spoilt:
    """Not JSON, not an object, or written in an unusual way."""
    text = json.dumps(body)
    how = rng.choice(
        [
            "cut",
            "empty",
            "garbage",
            "list",
            "scalar",
            "duplicate",
            "spaces",
            "trailing",
            "nan",
            "utf8",
            "null",
            "case",
            "escaped",
            "comma",
            "quotes",
            "number",
        ]
    )
    variants = {
        "cut": text[: rng.randint(1, len(text) - 1)],
        "empty": "",
        "garbage": rng.choice(["{{", "nope", "<xml/>", "}", "\0"]),
        "list": f"[{text}]",
        "scalar": rng.choice(["5", '"x"', "true", "1.5"]),
        "null": "null",
        "duplicate": text[:-1] + ', "metadata": {"name": "again"}}',
        "spaces": f"\n  {json.dumps(body, indent=3)}\n ",
        "trailing": text + rng.choice(["}", " x", text, "\n\n", ","]),
        "nan": text.replace('"spec": {', '"spec": {"x": NaN, ', 1),
        "case": text.replace('"metadata"', '"Metadata"', 1),
        "escaped": text.replace("name", "n\\u0061me"),
        "comma": text[:-1] + ",}",
        "quotes": text.replace('"', "'"),
        "number": text[:-1] + ', "n": 01}',
    }
    if how == "utf8":
        return "text-utf8", text.encode().replace(b'"name"', b'"na\xffme"', 1)
    return f"text-{how}", variants[how].encode()


WAYS: list[tuple[Callable[[Resource, Body, random.Random], Spoilt], float]] = [
    (of_value, 5),
    (of_metadata, 4),
    (of_type, 1.5),
    (of_text, 1.2),
]


def spoil(resource: Resource, body: Body, rng: random.Random) -> Spoilt:
    """Return a copy of the body with something wrong, and the word for it."""
    way = rng.choices([way for way, _ in WAYS], [weight for _, weight in WAYS])[0]
    return way(resource, copy.deepcopy(body), rng)


def sample(resource: Resource, name: str, namespace: str, episode: str, rng: random.Random) -> Body:
    """Return a good object of that name."""
    meta: Body = {"name": name, "labels": {"twins": episode, "n": str(rng.randint(0, 3))}}
    if rng.random() < 0.2:
        meta["annotations"] = {"example.com/note": "x", "other": ""}
    if resource.namespaced and rng.random() < 0.3:
        meta["namespace"] = namespace
    if rng.random() < 0.1:
        meta["finalizers"] = ["example.com/hold"]
    body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta, **resource.sample(rng)}
    text = json.dumps(body).replace("$namespace", namespace)
    result: Body = json.loads(text)
    return result


__all__ = ["BAD_NAMES", "dig", "of_value", "paths", "put", "sample", "spoil", "worlds"]
