"""Fields that decorators name: which of them the schemas lack, and what is said of them."""

import dataclasses
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

import kopf
from kopf._core.intents.field_checks import find_doubts_of_kinds, list_fields_of_rule
from kopf._core.intents.known_fields import UnknownField


@pytest.mark.parametrize(
    'unknown, hint',
    [
        (UnknownField(('spec', 'feild'), {'field', 'other'}), "Did you mean 'spec.field'?"),
        (UnknownField(('spec', 'x'), {'field', 'other'}), "spec has: field, other."),
        (UnknownField(('x',), {'spec'}), "It has: spec."),
        (UnknownField(('status', 'x'), set()), "status has: no fields."),
    ],
)
def test_the_nearest_name_is_suggested(unknown, hint):
    assert unknown.hint == hint


@pytest.mark.parametrize(
    'rule, fields',
    [
        ('self.spec.replicas <= 10', [('spec', 'replicas')]),
        ('self.spec.items.all(x, x.name != self.spec.name)', [('spec', 'items'), ('spec', 'name')]),
        ('has(self.spec.a) || !has( self . spec . b )', [('spec', 'a'), ('spec', 'b')]),
        ('self.spec == oldSelf.spec', [('spec',)]),
        ('self.spec.name != "self.spec.nothing" && r\'self.x\' == ""', [('spec', 'name')]),
        ('myself.spec.x && other.self.y', []),
        ('self.size() > 0', []),
        ('self.spec.__namespace__ == ""', [('spec',)]),
        ('self.spec.list[0].name', [('spec', 'list')]),
    ],
)
def test_fields_of_rules_are_found(rule, fields):
    assert list_fields_of_rule(rule) == fields


# Classes.


class PydanticSpec(pydantic.BaseModel):
    replicas: int = 1
    full_name: str = pydantic.Field(default='', alias='fullName')
    labels: dict[str, str] = {}
    nested: 'PydanticSpec | None' = None


class PydanticModel(pydantic.BaseModel):
    spec: PydanticSpec | None = None


@dataclasses.dataclass
class DataSpec:
    replicas: int = 1
    labels: dict[str, str] = dataclasses.field(default_factory=dict)
    nested: 'DataSpec | None' = None


@dataclasses.dataclass
class DataModel:
    spec: DataSpec | None = None


class TypedSpec(TypedDict, total=False):
    replicas: int
    labels: dict[str, str]
    nested: 'TypedSpec | None'


class TypedModel(TypedDict, total=False):
    spec: TypedSpec


class StructSpec(msgspec.Struct):
    replicas: int = 1
    labels: dict[str, str] = {}
    nested: 'StructSpec | None' = None


class StructModel(msgspec.Struct):
    spec: StructSpec | None = None


MODELS = [PydanticModel, DataModel, TypedModel, StructModel]


@pytest.fixture
def registry():
    return kopf.OperatorRegistry()


def declare(registry, cls=DataModel, **options):
    kopf.kind('example.com/v1', 'WebApp', short_names=['wa'], registry=registry, **options)(cls)


@pytest.mark.parametrize('cls', MODELS, ids=lambda cls: cls.__name__)
def test_fields_of_handlers_are_compared_with_the_class(registry, cls):
    declare(registry, cls)
    for field in ('spec.replicas', 'spec.labels.any', 'spec.nested.nested.replicas', 'metadata.labels', 'spec.replcas'):
        kopf.on.field(cls, field=field, registry=registry)(lambda **_: None)
    [text] = find_doubts_of_kinds(registry)
    assert "has field='spec.replcas', but the class" in text
    assert text.endswith("has no such field. Did you mean 'spec.replicas'?") and '\n' not in text


@dataclasses.dataclass
class Unspecified:
    image: str


def test_a_specification_that_the_class_lacks_is_named(registry):
    declare(registry, Unspecified)

    @kopf.on.create(Unspecified, registry=registry)
    def fn(spec, status, **_): ...

    @kopf.on.update(Unspecified, registry=registry)
    def other(obj, **_): ...

    [text] = find_doubts_of_kinds(registry)
    assert "Handler 'test_a_specification" in text and "asks for 'spec', which is always None, but the class" in text


def test_aliases_are_the_names_of_fields(registry):
    declare(registry, PydanticModel)
    for field in ('spec.fullName', 'spec.full_name'):
        kopf.on.field(PydanticModel, field=field, registry=registry)(lambda **_: None)
    [text] = find_doubts_of_kinds(registry)
    assert "'spec.full_name'" in text and "Did you mean 'spec.fullName'?" in text


@pytest.mark.parametrize('names', [['webapps'], ['wa'], ['example.com', 'v1', 'webapps'], ['WebApp']])
def test_a_declared_kind_can_be_named_in_other_ways(registry, names):
    declare(registry)
    kopf.on.update(*names, field='spec.x', registry=registry)(lambda **_: None)
    assert len(list(find_doubts_of_kinds(registry))) == 1


def test_other_kinds_and_handlers_of_many_kinds_are_not_compared(registry):
    declare(registry)
    kopf.on.update('others', field='spec.x', registry=registry)(lambda **_: None)
    kopf.on.update(kopf.EVERYTHING, field='spec.x', registry=registry)(lambda **_: None)
    kopf.on.update(category='all', field='spec.x', registry=registry)(lambda **_: None)
    kopf.on.update('webapps', registry=registry)(lambda **_: None)
    assert not list(find_doubts_of_kinds(registry))


def test_columns_are_compared(registry):
    paths = {'A': '.spec.replicas', 'B': {'path': '.spec.replcas'}, 'C': '.spec.x[0].y', 'D': '.metadata.name'}
    declare(registry, columns=paths)
    [text] = find_doubts_of_kinds(registry)
    assert "columns= has 'B' with '.spec.replcas', but the class DataModel" in text and "'spec.replicas'?" in text


def test_rules_are_compared(registry):
    rules = ['self.spec.replicas < 3', ('self.spec.replcas < 3', "few"), {'rule': 'self.spc.x'}]
    declare(registry, rules=rules)
    first, second = find_doubts_of_kinds(registry)
    assert "rules= has 'self.spec.replcas < 3' with 'self.spec.replcas'" in first
    assert "with 'self.spc.x'" in second and "Did you mean 'spec'?" in second


def test_conditions_are_a_field_if_they_are_declared(registry):
    declare(registry, conditions=True)
    kopf.on.field(DataModel, field='status.conditions', registry=registry)(lambda **_: None)
    assert not list(find_doubts_of_kinds(registry))


def test_a_class_without_a_schema_is_left_to_the_command(registry):
    @dataclasses.dataclass
    class Strange:
        spec: Any
        other: type

    declare(registry, Strange, columns={'X': '.spec.x'})
    assert not list(find_doubts_of_kinds(registry))
