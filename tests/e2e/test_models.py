"""Models and their CRDs: what is valid for a class is valid for the API server, and the other way round."""

import dataclasses
import datetime
import enum
import ipaddress
import json
import random
import string
import typing
import uuid
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pydantic
import pytest
from kubeapi import ApiError

import kopf
from kopf._kits.definitions.crd_documents import make_crds

GROUP = "models.example.dev"
LIBRARIES = ["pydantic", "dataclass", "TypedDict", "Struct"]
REQUIRED = dataclasses.MISSING


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 9


class Library:
    """Makes classes and limits of values as users of a library write them."""

    def __init__(self, name: str) -> None:
        self.name = name

    def limit(self, **limits: Any) -> Any:
        return pydantic.Field(**limits) if self.name == "pydantic" else msgspec.Meta(**limits)

    def make(self, name: str, **fields: Any) -> Any:
        """Return a class with these fields: their types, or pairs of a type and a default."""
        pairs = {key: each if isinstance(each, tuple) else (each, REQUIRED) for key, each in fields.items()}
        pairs = dict(sorted(pairs.items(), key=lambda item: item[1][1] is not REQUIRED))
        if self.name == "pydantic":
            config = pydantic.ConfigDict(strict=True)
            defaults = {key: (type, ... if value is REQUIRED else value) for key, (type, value) in pairs.items()}
            return pydantic.create_model(name, __config__=config, **defaults)
        if self.name == "TypedDict":
            types = {
                key: type if value is REQUIRED else typing.NotRequired[type] for key, (type, value) in pairs.items()
            }
            return TypedDict(name, types)
        if self.name == "Struct":
            return msgspec.defstruct(
                name, [(key, type) if value is REQUIRED else (key, type, value) for key, (type, value) in pairs.items()]
            )
        items = [
            (key, type)
            if value is REQUIRED
            else (key, type, dataclasses.field(default_factory=lambda value=value: value))
            for key, (type, value) in pairs.items()
        ]
        return dataclasses.make_dataclass(name, items)

    def tagged(self) -> Any:
        """Return a union of classes that are told apart by a field."""
        if self.name == "pydantic":
            git = self.make("Git", type=Literal["git"], url=str)
            file = self.make("File", type=Literal["file"], path=Annotated[str, self.limit(min_length=2)])
            return Annotated[git | file, pydantic.Field(discriminator="type")]
        git = msgspec.defstruct("Git", [("url", str)], tag_field="type", tag="git")
        file = msgspec.defstruct(
            "File", [("path", Annotated[str, msgspec.Meta(min_length=2)])], tag_field="type", tag="file"
        )
        return git | file

    def tagged_by_default(self, tagged: Any) -> Any:
        """Return a union of classes that have a default for the field that tells them apart, where that is possible."""
        if self.name != "pydantic":
            return tagged
        left = self.make("Left", type=(Literal["a"], "a"), size=(int, 1))
        right = self.make("Right", type=(Literal["b"], "b"), label=str)
        return Annotated[left | right, pydantic.Field(discriminator="type")]


def make_shapes(library: Library) -> dict[str, Any]:
    """Return the types of the fields that are tried, by names."""
    limit, make, tagged = library.limit, library.make, library.tagged()
    point = make("Point", x=int, y=Annotated[int, limit(ge=0)])
    partial = make("Partial", a=(int, 1), b=(str | None, None), c=(bool, True))
    deep = make("Deep", inner=make("Inner", items=list[point], names=(dict[str, point], {})))
    return {
        "int": int,
        "float": float,
        "str": str,
        "bool": bool,
        "int_bounds": Annotated[int, limit(ge=0, le=10)],
        "int_open": Annotated[int, limit(gt=0, lt=10)],
        "int_half": Annotated[int, limit(gt=-3)],
        "int_multiple": Annotated[int, limit(multiple_of=5)],
        "float_bounds": Annotated[float, limit(ge=0.5, le=2)],
        "float_open": Annotated[float, limit(gt=0)],
        "str_length": Annotated[str, limit(min_length=1, max_length=3)],
        "str_pattern": Annotated[str, limit(pattern="^[a-c]+$")],
        "str_part": Annotated[str, limit(pattern="b")],
        "literal": Literal["a", "b"],
        "literal_one": Literal["a"],
        "literal_int": Literal[1, 2],
        "literal_null": Literal["a", None],
        "literal_mixed": Literal[1, "a"],
        "literal_mixed_null": Literal[1, "a"] | None,
        "literals_null": list[Literal[1, "a"] | None],
        "level_null": Level | None,
        "enum": Colour,
        "enum_int": Level,
        "enum_null": Colour | None,
        "int_null": int | None,
        "str_null": Annotated[str, limit(max_length=2)] | None,
        "bool_null": bool | None,
        "list_int": list[int],
        "list_str": list[Annotated[str, limit(min_length=1)]],
        "list_bounds": Annotated[list[int], limit(min_length=1, max_length=2)],
        "list_null": list[int] | None,
        "list_of_null": list[int | None],
        "list_list": list[list[int]],
        "list_enum": list[Colour],
        "list_any": list[Any],
        "tuple": tuple[int, ...],
        "tuple_two": tuple[int, int],
        "dict_int": dict[str, int],
        "dict_str": dict[str, Annotated[str, limit(max_length=2)]],
        "dict_list": dict[str, list[int]],
        "dict_dict": dict[str, dict[str, bool]],
        "dict_of_null": dict[str, int | None],
        "dict_bounds": Annotated[dict[str, int], limit(min_length=1, max_length=2)],
        "dict_any": dict[str, Any],
        "dict_null": dict[str, str] | None,
        "any": Any,
        "int_or_str": int | str,
        "int_or_str_null": int | str | None,
        "int_or_float": int | float,
        "int_or_str_list": list[int | str],
        "point": point,
        "point_null": point | None,
        "points": list[point],
        "points_by_name": dict[str, point],
        "partial": partial,
        "partials": list[partial],
        "deep": deep,
        "deep_null": deep | None,
        "tagged": tagged,
        "tagged_list": list[tagged],
        "tagged_null": tagged | None,
        "tagged_by_default": library.tagged_by_default(tagged),
        "nested": make("Outer", one=make("Middle", two=make("Core", three=Literal["x"]))),
        "defaults": make("Defaults", n=(Annotated[int, limit(ge=1)], 1), s=(Literal["a", "b"], "b")),
        "uuid": uuid.UUID,
        "date": datetime.date,
        "address": ipaddress.IPv4Address,
        "address_null": ipaddress.IPv6Address | None,
    }


def declare(library: Library, registry: kopf.OperatorRegistry) -> Any:
    """Declare a kind with a field of each shape; each field is an object with the one that is tried."""
    shapes = {
        name: (library.make(f"Shape_{name}", value=type) | None, None) for name, type in make_shapes(library).items()
    }
    spec = library.make("ShapesSpec", **shapes)
    cls = library.make(f"{library.name.capitalize()}Shapes", spec=spec)
    return kopf.kind(f"{GROUP}/v1", plural=f"{library.name.lower()}shapes", registry=registry)(cls)


class Chance:
    """Makes random values: those that a schema accepts, almost accepts, and any others."""

    TEXTS = ("", "a", "b", "abc", "aabbcc", "x", "red", "file", "git", "1", "2020-01-31", "é", "a" * 20)
    UUID = "12345678-1234-4234-8234-123456789abc"

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def make(self, schema: dict[str, Any], depth: int = 0) -> Any:
        chance = self._random
        if chance.random() < 0.12 or depth > 6:
            return self._make_any(depth)
        if schema.get("nullable") and chance.random() < 0.2:
            return None
        if "enum" in schema and chance.random() < 0.9:
            return chance.choice(schema["enum"])
        if schema.get("x-kubernetes-int-or-string"):
            return self._make_scalar(chance.choice(["integer", "string"]), schema)
        match schema.get("type"):
            case "object":
                return self._make_object(schema, depth)
            case "array":
                return [self.make(schema["items"], depth + 1) for _ in range(chance.randrange(4))]
            case None:
                return self._make_any(depth)
            case type:
                return self._make_scalar(type, schema)

    def _make_object(self, schema: dict[str, Any], depth: int) -> Any:
        chance = self._random
        found = {}
        for key, each in schema.get("properties", {}).items():
            if chance.random() < (0.95 if key in schema.get("required", ()) else 0.6):
                found[key] = self.make(each, depth + 1)
        if isinstance(others := schema.get("additionalProperties"), dict):
            found |= {key: self.make(others, depth + 1) for key in chance.sample("pqr", chance.randrange(4))}
        return found

    def _make_scalar(self, type: str, schema: dict[str, Any]) -> Any:
        chance = self._random
        match type:
            case "boolean":
                return chance.random() < 0.5
            case "integer":
                return chance.choice([0, 1, 2, 5, 9, 10, 11, -1, -3, 100, chance.randrange(-10, 20)])
            case "number":
                return chance.choice([0, 1, 2, 0.5, 0.25, 1.5, -0.5, 2.5, 1e3])
        if schema.get("format") == "uuid":
            return chance.choice([self.UUID, self.UUID.upper(), self.UUID[:-1], "x"])
        if schema.get("format") in ("ipv4", "ipv6"):
            return chance.choice(
                ["10.0.0.1", "10.0.0.256", "10.0.0", "01.0.0.1", "::1", "fe80::1:2", ":::", "1::g", ""]
            )
        return chance.choice([*self.TEXTS, "".join(chance.choices(string.ascii_lowercase[:4], k=chance.randrange(5)))])

    def _make_any(self, depth: int) -> Any:
        chance = self._random
        kind = chance.randrange(8 if depth < 5 else 5)
        if kind == 5:
            return [self._make_any(depth + 1) for _ in range(chance.randrange(3))]
        if kind == 6:
            return {key: self._make_any(depth + 1) for key in chance.sample("axyp", chance.randrange(3))}
        return chance.choice([None, True, False, 0, 1, -1, 7, 1.5, "", "a", "git", [], {}])


def is_known(name: str, shape: str, value: Any, problem: str | None) -> bool:
    """Check whether the documentation tells of the difference between the model and the API server."""
    if problem is None:
        # Pydantic takes true for 1 in sets of values. Fields of the other classes of a union are ignored by models, but
        # have their types.
        numbers = ("literal_int", "literal_mixed", "literal_mixed_null", "literals_null", "enum_int", "level_null")
        is_number = name == "pydantic" and shape in numbers and (value is True or value == [True])
        return is_number or shape.startswith("tagged")
    # The server checks no type of lists where there is a format, and compares integers with the integer part of limits.
    has_format = shape in ("uuid", "date", "address", "address_null")
    if shape == "address" and value == "01.0.0.1":
        return True  # the server accepts leading zeros
    return (has_format and isinstance(value, list)) or (shape, value) == ("float_bounds", 0)


@pytest.mark.long
@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.timeout(3600)
def test_what_is_valid_for_the_model_is_valid_for_the_server(cluster, kubeapi, namespace, name, request):
    count = 1000 if request.config.getoption("--thorough") else 8
    registry = kopf.OperatorRegistry()
    declare(Library(name), registry)
    [kind] = registry.kinds
    [crd] = make_crds([kind], warn=print)
    kubeapi.apply(crd)
    schemas = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    path = f"{kubeapi.path(f'{GROUP}/v1', kind.kind, namespace)}?dryRun=All"
    differences, counts = [], {True: 0, False: 0}
    for shape, schema in schemas.items():
        chance = Chance(f"{name}/{shape}")
        values = {json.dumps(chance.make(schema["properties"]["value"])) for _ in range(count)}
        for text in sorted(values):
            body = {
                "apiVersion": f"{GROUP}/v1",
                "kind": kind.kind,
                "metadata": {"name": "x"},
                "spec": {shape: {"value": json.loads(text)}},
            }
            stored, refusal = try_to_create(kubeapi, path, body)
            problem = find_problem(kind, body if stored is None else stored)
            counts[problem is None] += 1
            if (refusal is None) != (problem is None) and not is_known(name, shape, json.loads(text), problem):
                differences.append(f"{shape}: {text}: model: {problem}; server: {refusal}")
    print(f"{name}: {len(schemas)} shapes, {counts[True]} valid and {counts[False]} invalid values")
    assert differences == []


def try_to_create(kubeapi, path, body):
    """Return the object as it would be stored, or the reason why it is refused."""
    try:
        return kubeapi.request("POST", path, body), None
    except ApiError as error:
        if error.status not in (400, 422):
            raise
        return None, str(error)


def find_problem(kind, body):
    try:
        kind.load({**body, "metadata": {"name": "x"}})
    except kopf.InvalidObjectError as error:
        return str(error)
    return None


AWARE = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
TIMES = {
    "pydantic": (datetime.datetime, False),
    "pydantic with a zone": (pydantic.AwareDatetime, False),
    "msgspec": (datetime.datetime, True),
    "msgspec with a zone": (Annotated[datetime.datetime, msgspec.Meta(tz=True)], False),
}
"""The types of times, and whether the API server accepts what they write for a time without a zone."""


@pytest.mark.parametrize("name", TIMES)
def test_times_that_models_write_are_accepted_by_the_server_if_they_have_a_zone(cluster, kubeapi, namespace, name):
    library = Library("pydantic" if name.startswith("pydantic") else "Struct")
    registry, (type, accepts_naive) = kopf.OperatorRegistry(), TIMES[name]
    plural = f"{name.replace(' ', '')}times"
    cls = library.make("Times", spec=library.make("TimesSpec", at=type))
    kopf.kind(f"{GROUP}/v1", plural=plural, kind=plural.capitalize(), registry=registry)(cls)
    [kind] = registry.kinds
    [crd] = make_crds([kind], warn=print)
    kubeapi.apply(crd)
    path = f"{kubeapi.path(f'{GROUP}/v1', kind.kind, namespace)}?dryRun=All"
    for time, accepted in [(AWARE, True), (AWARE.replace(tzinfo=None), accepts_naive)]:
        text = pydantic.TypeAdapter(datetime.datetime).dump_json(time)
        assert text == msgspec.json.encode(time)
        spec = {"at": json.loads(text)}
        body = {"apiVersion": f"{GROUP}/v1", "kind": kind.kind, "metadata": {"name": "x"}, "spec": spec}
        assert (try_to_create(kubeapi, path, body)[1] is None) is accepted, text


@dataclasses.dataclass
class FarmSpec:
    replicas: int


@dataclasses.dataclass
class FarmStatus:
    replicas: int
    selector: str


@dataclasses.dataclass
class Farm:
    spec: FarmSpec
    status: FarmStatus | None = None


def test_a_kind_with_a_label_selector_can_be_scaled_by_autoscalers_of_pods(kubeapi, namespace):
    scale = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
    registry, group, name = kopf.OperatorRegistry(), f"{GROUP}/v1", f"Farm{namespace[-8:]}"
    kopf.kind(group, name, scale={**scale, "labelSelectorPath": ".status.selector"}, registry=registry)(Farm)
    kubeapi.apply(make_crds(registry.kinds, warn=print)[0])
    kubeapi.apply({"apiVersion": group, "kind": name, "metadata": {"name": "x"}, "spec": {"replicas": 2}}, namespace)
    path = kubeapi.path(group, name, namespace, "x")
    status = {"status": {"replicas": 1, "selector": "app=x"}}
    kubeapi.request("PATCH", f"{path}/status", status, "application/merge-patch+json")
    found = kubeapi.request("GET", f"{path}/scale")
    assert (found["spec"], found["status"]) == ({"replicas": 2}, {"replicas": 1, "selector": "app=x"})
