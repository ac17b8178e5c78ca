"""Record how a version of Kubernetes describes its built-in kinds: `python scripts/record_openapi.py`.

It asks the cluster of `$KUBECONFIG` for its OpenAPI documents of version 3, drops the descriptions, and packs the
schemas into one file for the sandbox, `kopf/_kits/testing/data/kubernetes-1.NN.json.gz`, which takes the newest of
these files. What the documents do not say, is found out by requests for a dry run: what Go calls the types of fields
(from the complaints about wrong ones), and whether fields are kept that are empty. Use a cluster without kinds and
settings of its own: `tests/cluster/cluster up` starts one.
"""

import copy
import gzip
import json
import os
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import Any

import yaml

HERE = pathlib.Path(__file__).parent
TARGET = HERE.parent / "kopf" / "_kits" / "testing" / "data"
DOCUMENT = re.compile(r"api/v1|apis/[^/]+/[^/]+")
COMPLAINT = re.compile(r"cannot unmarshal \w+ (?:[\d.]+ )?into Go struct field (\w+)\.(\S+) of type (\S+)$")
EMPTY = {"string": "", "integer": 0, "boolean": False, "number": 0}
Schema = dict[str, Any]

sys.path.insert(0, str(HERE.parent / "tests" / "cluster"))


class Recorder:
    """Asks the cluster."""

    def __init__(self, kubeconfig: str) -> None:
        from replays import Replayer

        self.replayer = Replayer(kubeconfig)
        self.schemas: dict[str, Schema] = {}
        self.places: dict[str, str] = {}
        self.go: dict[str, dict[str, list[str]]] = {}
        self.kept: dict[str, set[str]] = {}

    def fetch(self, path: str) -> Any:
        answer = self.replayer.send("GET", path, None, "")
        assert answer["status"] == 200, answer
        return answer["body"]

    def record(self) -> None:
        for path, place in sorted(self.fetch("/openapi/v3")["paths"].items()):
            if DOCUMENT.fullmatch(path):
                document = self.fetch(place["serverRelativeURL"])
                self.schemas.update(strip(document["components"]["schemas"]))
                for url, methods in document["paths"].items():
                    if "post" in methods and not url.endswith("}") and "{name}" not in url:
                        kind = methods["post"]["x-kubernetes-group-version-kind"]
                        self.places[json.dumps(kind, sort_keys=True)] = url.replace("{namespace}", "default")
        done: set[str] = set()
        for name in sorted(self.schemas):
            for kind in self.schemas[name].get("x-kubernetes-group-version-kind", ()):
                if (url := self.places.get(json.dumps(kind, sort_keys=True))) is not None:
                    self.complain(url, kind, name, [], "", done)
        for sample in yaml.safe_load((HERE / "record_samples.yaml").read_text()):
            group, _, version = sample["apiVersion"].rpartition("/")
            kind = {"group": group, "version": version, "kind": sample["kind"]}
            self.keep(self.places[json.dumps(kind, sort_keys=True)], kind, sample)

    def complain(self, url: str, kind: Schema, name: str, path: list[Any], go_path: str, done: set[str]) -> None:
        """Put something wrong into each field of a schema, and go on with the schemas of its fields."""
        if name in done:
            return
        done.add(name)
        for field, schema in (self.schemas[name].get("properties") or {}).items():
            plain, depth = schema, []
            while plain.get("type") in ("array", "object") and (inner := items(plain)) is not None:
                depth.append([] if plain["type"] == "array" else {})
                plain = inner
            target = reference(plain)
            segment = field
            if (said := self.said(url, kind, [*path, field])) is not None:
                struct, where, type = said
                segment = where.removeprefix(f"{go_path}.") if go_path else where
                derived = [go_type(schema), field, name.rpartition(".")[2]]
                if [type, segment, struct] != derived:
                    self.go.setdefault(name, {})[field] = [type, segment, struct]
            if target is not None and self.schemas[target].get("properties"):
                below = f"{go_path}.{segment}" if go_path else segment
                self.complain(url, kind, target, [*path, field, *depth], below, done)

    def said(self, url: str, kind: Schema, path: list[Any]) -> list[str] | None:
        for wrong in ("x", 1, []):
            body: Any = wrong
            for part in reversed(path):
                body = [body] if part == [] else {"key": body} if part == {} else {part: body}
            answer = self.replayer.send("POST", f"{url}?dryRun=All", {**identity(kind), **body}, "application/json")
            if answer["status"] == 400 and (match := COMPLAINT.search(answer["body"]["message"])):
                return [match[1], match[2], match[3]]
        return None

    def keep(self, url: str, kind: Schema, sample: Any) -> None:
        """See for all fields that are not in the sample whether they are still there when they are empty."""
        name = next(
            name for name, schema in self.schemas.items() if kind in schema.get("x-kubernetes-group-version-kind", ())
        )
        answer = self.replayer.send("POST", f"{url}?dryRun=All", sample, "application/json")
        assert answer["status"] == 201, (sample, answer)
        for path, schema_name in list(self.structs(sample, name, [])):
            self.kept.setdefault(schema_name, set())
            for field, schema in self.schemas[schema_name]["properties"].items():
                target = reference(schema)
                plain = self.schemas[target] if target else schema
                if plain.get("type") not in EMPTY or field in self.kept.get(schema_name, ()) or path == ["metadata"]:
                    continue
                body = copy.deepcopy(sample)
                at(body, path)[field] = EMPTY[plain["type"]]
                answer = self.replayer.send("POST", f"{url}?dryRun=All", body, "application/json")
                if "default" in schema:
                    continue
                kept = answer["status"] == 201 and (at(answer["body"], path) or {}).get(field) == EMPTY[plain["type"]]
                if kept or answer["status"] == 422:  # What is wrong if it is empty has to be seen to be refused.
                    self.kept[schema_name].add(field)

    def structs(self, value: Any, name: str, path: list[Any]) -> Iterator[tuple[list[Any], str]]:
        yield path, name
        for field, item in value.items():
            schema = self.schemas[name]["properties"].get(field, {})
            inner = items(schema) if isinstance(item, list) else schema
            target = reference(inner or {})
            if target and self.schemas[target].get("properties") and item:
                if isinstance(item, list):
                    for index, each in enumerate(item):
                        yield from self.structs(each, target, [*path, field, index])
                elif isinstance(item, dict):
                    yield from self.structs(item, target, [*path, field])


def at(value: Any, path: list[Any]) -> Any:
    for part in path:
        value = value[part] if isinstance(part, int) else (value or {}).get(part)
    return value


def identity(kind: Schema) -> Schema:
    group = f"{kind['group']}/" if kind["group"] else ""
    return {"apiVersion": f"{group}{kind['version']}", "kind": kind["kind"]}


def items(schema: Schema) -> Any:
    return schema.get("items") if schema.get("type") == "array" else schema.get("additionalProperties")


def reference(schema: Schema) -> str | None:
    parts = schema.get("allOf") or [schema]
    place = parts[0].get("$ref")
    return place.removeprefix("#/components/schemas/") if place else None


def go_type(schema: Schema) -> str:
    """What a field is called in Go, most probably; the same as in `kopf._kits.testing.schemas.decoding`."""
    if (target := reference(schema)) is not None:
        return ".".join(target.split(".")[-2:])
    match schema.get("type"):
        case "array":
            return f"[]{go_type(schema['items'])}"
        case "object":
            return f"map[string]{go_type(schema['additionalProperties'])}" if items(schema) else "object"
        case "boolean":
            return "bool"
        case "string":
            return "[]uint8" if schema.get("format") == "byte" else "string"
    return str(schema.get("format") or schema.get("type") or "")


def strip(schema: Any) -> Any:
    """The schema without the words for people; fields that are called "description" are kept."""
    if isinstance(schema, list):
        return [strip(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: strip(item) for name, item in value.items()} if key == "properties" else strip(value)
        for key, value in schema.items()
        if key != "description" or not isinstance(value, str)
    }


def main() -> None:
    recorder = Recorder(os.environ["KUBECONFIG"])
    recorder.record()
    version = recorder.fetch("/version")
    name = f"{version['major']}.{re.sub('[^0-9]', '', version['minor'])}"
    recording = {
        "gitVersion": version["gitVersion"],
        "schemas": dict(sorted(recorder.schemas.items())),
        "go": recorder.go,
        "kept": {name: sorted(fields) for name, fields in sorted(recorder.kept.items())},
    }
    packed = gzip.compress(json.dumps(recording, separators=(",", ":")).encode(), mtime=0)
    target = TARGET / f"kubernetes-{name}.json.gz"
    target.write_bytes(packed)
    print(f"{target}: {len(recorder.schemas)} schemas of {version['gitVersion']}, {len(packed)} bytes")


if __name__ == "__main__":
    main()
