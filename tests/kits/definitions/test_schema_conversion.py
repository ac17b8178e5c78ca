"""Structural schemas from classes: what each Python type becomes, and what is refused."""

import dataclasses
import datetime
import enum
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest

import kopf
from kopf._cogs.structs.model_adapters import get_adapter
from kopf._kits.definitions.schema_conversion import convert_schema


class Colour(enum.Enum):
    RED = 'red'
    BLUE = 'b+'


class Port(pydantic.BaseModel):
    number: int
    name: str = 'http'


class Git(pydantic.BaseModel):
    type: Literal['git']
    url: str
    depth: int = 1


class File(pydantic.BaseModel):
    type: Literal['file']
    path: str


class Tree(pydantic.BaseModel):
    children: 'list[Tree]' = []


@pytest.fixture
def warnings():
    return []


@pytest.fixture
def convert(warnings):
    """Convert a class with one field of the type; return the schema of the field."""

    def convert(type, **options):
        cls = pydantic.create_model('Model', spec=(type, pydantic.Field(**options) if options else ...))
        return convert_schema(get_adapter(cls).make_schema(), model='Model', warn=warnings.append)['properties']['spec']

    return convert


@pytest.mark.parametrize(
    'type, schema',
    [
        (int, {'type': 'integer'}),
        (float, {'type': 'number'}),
        (str, {'type': 'string'}),
        (bool, {'type': 'boolean'}),
        (int | None, {'type': 'integer', 'nullable': True}),
        (Any, {'x-kubernetes-preserve-unknown-fields': True, 'nullable': True}),
        (list[int], {'type': 'array', 'items': {'type': 'integer'}}),
        (set[str], {'type': 'array', 'items': {'type': 'string'}, 'x-kubernetes-list-type': 'set'}),
        (tuple[int, int], {'type': 'array', 'items': {'type': 'integer'}, 'minItems': 2, 'maxItems': 2}),
        (dict[str, int], {'type': 'object', 'additionalProperties': {'type': 'integer'}}),
        (dict[str, Any], {'type': 'object', 'x-kubernetes-preserve-unknown-fields': True}),
        (int | str, {'x-kubernetes-int-or-string': True}),
        (int | str | None, {'x-kubernetes-int-or-string': True, 'nullable': True}),
        (int | float, {'type': 'number'}),
        (Literal['a', 'b'], {'type': 'string', 'enum': ['a', 'b']}),
        (Literal[1, 'a'], {'x-kubernetes-int-or-string': True, 'enum': [1, 'a']}),
        (Colour, {'type': 'string', 'enum': ['red', 'b+']}),
        (Colour | None, {'type': 'string', 'pattern': r'^(red|b\+)$', 'nullable': True}),
        (datetime.datetime, {'type': 'string', 'format': 'date-time'}),
        (datetime.timedelta, {'type': 'string'}),  # durations of ISO 8601 are not those of Go
    ],
)
def test_each_type_becomes_a_structural_schema(convert, type, schema):
    assert convert(type) == schema


@pytest.mark.parametrize(
    'type, schema',
    [
        (datetime.datetime, {'type': 'string'}),  # times without a zone are valid, which the server refuses
        (Annotated[datetime.datetime, msgspec.Meta(tz=True)], {'type': 'string', 'format': 'date-time'}),
    ],
)
def test_times_of_msgspec_have_a_format_if_they_must_have_a_zone(type, schema):
    cls = msgspec.defstruct('Struct', [('spec', type)])
    converted = convert_schema(get_adapter(cls).make_schema(), model='Struct', warn=print)
    assert converted['properties']['spec'] == schema


def test_enums_of_others_than_strings_are_in_a_branch_if_they_are_nullable(convert):
    assert convert(Literal[1, 2, None]) == {'type': 'integer', 'nullable': True, 'allOf': [{'enum': [1, 2]}]}
    mixed = {'x-kubernetes-int-or-string': True, 'nullable': True, 'allOf': [{'enum': ['a', 1]}]}
    assert convert(Literal['a', 1] | None) == mixed
    assert convert(list[Literal['a', 1] | None]) == {'type': 'array', 'items': mixed}


def test_nullable_enums_of_numbers_hold_for_their_own_class_of_a_union(convert):
    one = dataclasses.make_dataclass('One', [('size', Literal[1, None])])
    two = dataclasses.make_dataclass('Two', [('size', Literal[2, None])])
    union = convert(one | two)
    assert union['properties'] == {'size': {'type': 'integer', 'nullable': True}}
    assert [each['properties']['size'] for each in union['anyOf']] == [
        {'allOf': [{'enum': [1]}]},
        {'allOf': [{'enum': [2]}]},
    ]


def test_exclusive_limits_are_spelled_as_openapi_3_0_has_them(convert):
    assert convert(int, gt=0, le=9) == {'type': 'integer', 'minimum': 0, 'exclusiveMinimum': True, 'maximum': 9}


def test_descriptions_and_extensions_are_kept(convert):
    extra = {'x-kubernetes-list-type': 'map', 'x-kubernetes-list-map-keys': ['number']}
    schema = convert(list[Port], description='The ports.', json_schema_extra=extra)
    assert schema['description'] == 'The ports.'
    assert schema['x-kubernetes-list-map-keys'] == ['number']
    assert schema['items'] == {
        'type': 'object',
        'properties': {'number': {'type': 'integer'}, 'name': {'type': 'string', 'default': 'http'}},
        'required': ['number'],
    }


def test_null_defaults_are_left_out(convert):
    assert convert(int | None, default=None) == {'type': 'integer', 'nullable': True}


def test_alternatives_become_validations_beside_the_joined_fields(convert):
    assert convert(Git | File) == {
        'type': 'object',
        'properties': {
            'type': {'type': 'string'},
            'url': {'type': 'string'},
            'depth': {'type': 'integer'},  # a default would be set in files, too
            'path': {'type': 'string'},
        },
        'anyOf': [
            {'required': ['type', 'url'], 'properties': {'type': {'enum': ['git']}}},
            {'required': ['type', 'path'], 'properties': {'type': {'enum': ['file']}}},
        ],
    }


def test_recursion_becomes_any_object_with_a_warning(convert, warnings):
    schema = convert(Tree)
    assert schema['properties']['children']['items'] == {
        'type': 'object',
        'x-kubernetes-preserve-unknown-fields': True,
    }
    assert warnings == [
        "Model.spec.children.* is recursive, which CRDs cannot express: the API server will accept any object there, "
        "and keep all its fields."
    ]


@pytest.mark.parametrize(
    'type, message',
    [
        (int | list[int], 'Model.spec is a union of integer and array, which the schema of a CRD cannot express'),
        (str | bool, 'Model.spec is a union of string and boolean.* Use one of the types, or typing.Any'),
        (dict[str, int | bool], r'Model.spec.\* is a union of integer and boolean'),
        (tuple[int, str], 'Model.spec is a tuple of different types'),
        (None, 'Model.spec is a field that is always null'),
        (Literal[1, True], 'Model.spec is the values 1, True'),
        (
            Annotated[str, pydantic.Field(json_schema_extra={'pattern': r'(?=a)b'})],
            r"the pattern '\(\?=a\)b', which .* Use one without look-around",
        ),
    ],
)
def test_what_cannot_be_structural_is_refused_with_the_name_of_the_attribute(convert, type, message):
    with pytest.raises(kopf.ModelError, match=message):
        convert(type)


def test_a_model_needs_fields():
    with pytest.raises(kopf.ModelError, match='Model has no fields'):
        convert_schema({'type': 'object'}, model='Model', warn=print)


def test_the_fields_of_all_objects_are_left_to_the_server():
    @dataclasses.dataclass
    class Model:
        metadata: dict[str, Any]
        spec: Annotated[str, msgspec.Meta(description='What.')]

    schema = convert_schema(get_adapter(Model).make_schema(), model='Model', warn=print)
    assert schema == {
        'type': 'object',
        'properties': {'spec': {'type': 'string', 'description': 'What.'}},
        'required': ['spec'],
    }


@dataclasses.dataclass
class Stateless:
    spec: Port
    status: None = None


class StatelessModel(pydantic.BaseModel):
    spec: Port
    status: None


@pytest.mark.parametrize(
    'cls', [Stateless, StatelessModel, msgspec.defstruct('Struct', [('spec', int), ('status', None)])]
)
def test_a_status_that_is_always_none_is_left_out(cls, warnings):
    if cls is Stateless:
        cls = pydantic.dataclasses.dataclass(cls)
    schema = convert_schema(get_adapter(cls).make_schema(), model='Model', warn=warnings.append)
    assert list(schema['properties']) == schema['required'] == ['spec']


def test_the_field_that_tells_classes_apart_is_required_even_if_they_have_defaults_for_it():
    class Git(pydantic.BaseModel):
        type: Literal['git'] = 'git'

    class File(pydantic.BaseModel):
        type: Literal['file'] = 'file'
        path: str

    class Model(pydantic.BaseModel):
        source: Annotated[Git | File, pydantic.Field(discriminator='type')]

    source = convert_schema(Model.model_json_schema(), model='Model', warn=print)['properties']['source']
    assert [set(each['required']) for each in source['anyOf']] == [{'type'}, {'type', 'path'}]
    assert 'default' not in source['properties']['type']
