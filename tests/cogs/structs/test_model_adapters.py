"""Adapters of model classes: loading, dumping, and schemas, for all supported libraries."""

import dataclasses
import datetime
import enum
import ipaddress
import json
import pathlib
import subprocess
import sys
import typing
from collections.abc import Callable
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest
import typing_extensions

from kopf._cogs.structs.model_adapters import ModelError, drop_nulls, dump_model, get_adapter, is_model, list_fields


class Colour(enum.Enum):
    RED = 'red'


class PydanticModel(pydantic.BaseModel):
    size: int
    since: datetime.date | None = None
    colour: Colour = Colour.RED
    long_name: str | None = pydantic.Field(default=None, alias='longName')


@dataclasses.dataclass
class DataclassModel:
    size: int
    since: datetime.date | None = None
    colour: Colour = Colour.RED


class StructModel(msgspec.Struct):
    size: int
    since: datetime.date | None = None
    colour: Colour = Colour.RED


class TypedDictModel(TypedDict, total=False):
    size: int
    since: datetime.date | None
    colour: Colour


class ExtendedDictModel(typing_extensions.TypedDict, total=False):
    size: int
    since: datetime.date | None
    colour: Colour


CLASSES = [PydanticModel, DataclassModel, StructModel, TypedDictModel, ExtendedDictModel]


@pytest.mark.parametrize('cls', CLASSES)
def test_data_are_loaded_and_dumped_as_json_has_them(cls):
    adapter = get_adapter(cls)
    data = {'size': 3, 'since': '2020-01-31', 'colour': 'red'}
    obj = adapter.load(data)
    get = obj.get if isinstance(obj, dict) else lambda name: getattr(obj, name)
    assert (get('size'), get('since'), get('colour')) == (3, datetime.date(2020, 1, 31), Colour.RED)
    dumped = adapter.dump(obj)
    assert json.loads(json.dumps(dumped)) == dumped
    assert {key: dumped[key] for key in data} == data


@pytest.mark.parametrize('cls', CLASSES)
def test_errors_name_the_field_and_what_is_expected(cls):
    with pytest.raises(ValueError, match=r'^size: .*(int|integer)'):
        get_adapter(cls).load({'size': 'three'})


def test_errors_of_pydantic_name_all_fields_and_quote_short_values():
    with pytest.raises(ValueError) as caught:
        get_adapter(PydanticModel).load({'since': 'x' * 1000})
    assert str(caught.value).startswith('size: Field required; since: ')
    assert len(str(caught.value)) < 250


def test_strict_models_accept_the_texts_of_times_and_enums():
    class Strict(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(strict=True)
        since: datetime.date
        colour: Colour

    assert get_adapter(Strict).load({'since': '2020-01-31', 'colour': 'red'}).colour is Colour.RED


def test_unset_fields_are_dumped_as_nulls_so_that_patches_remove_them():
    assert dump_model(PydanticModel(size=1)) == {'size': 1, 'since': None, 'colour': 'red', 'longName': None}
    assert dump_model(DataclassModel(size=1)) == {'size': 1, 'since': None, 'colour': 'red'}


def test_other_values_are_not_dumped():
    values: list[Any] = [None, 1, 'x', {'size': None}, [1]]
    assert [dump_model(value) for value in values] == values


def test_nulls_are_dropped_at_all_depths():
    assert drop_nulls({'a': None, 'b': {'c': None, 'd': [{'e': None}, None]}}) == {'b': {'d': [{}, None]}}


@pytest.mark.parametrize('cls', CLASSES)
def test_fields_are_listed(cls):
    assert list_fields(cls) >= {'size', 'since', 'colour'}


@pytest.mark.parametrize('value', [int, dict, object, None, 'WebApp', Colour])
def test_other_classes_are_no_models(value):
    assert not is_model(value)


def test_an_adapter_is_refused_for_a_class_that_is_no_model():
    with pytest.raises(ModelError, match=r"int.* is no model: derive it from pydantic.BaseModel"):
        get_adapter(int)


@pytest.mark.long
@pytest.mark.parametrize('library', ['pydantic', 'msgspec'])
def test_the_other_library_is_not_imported(library):
    code = {
        'pydantic': 'import pydantic\nclass Model(pydantic.BaseModel):\n    size: int',
        'msgspec': 'import dataclasses\n@dataclasses.dataclass\nclass Model:\n    size: int',
    }[library]
    check = (
        f"{code}\nimport sys\nfrom kopf._cogs.structs.model_adapters import get_adapter\n"
        f"get_adapter(Model).load({{'size': 1}})\nprint('pydantic' in sys.modules, 'msgspec' in sys.modules)"
    )
    result = subprocess.run([sys.executable, '-c', check], capture_output=True, text=True, check=True)
    assert result.stdout.split() == [str(library == 'pydantic'), str(library == 'msgspec')]


class Standard(msgspec.Struct):
    address: ipaddress.IPv4Address
    path: pathlib.PurePosixPath
    names: set[str]
    pair: tuple[int, ...]
    counts: dict[int, str]


def test_types_of_the_standard_library_are_loaded_and_dumped_as_lists_and_texts():
    adapter = get_adapter(Standard)
    data = {'address': '10.0.0.1', 'path': '/a/b', 'names': ['b', 'c', 'a'], 'pair': [2, 1], 'counts': {'5': 'five'}}
    obj = adapter.load(data)
    assert obj == Standard(
        ipaddress.IPv4Address('10.0.0.1'), pathlib.PurePosixPath('/a/b'), {'a', 'b', 'c'}, (2, 1), {5: 'five'}
    )
    assert adapter.dump(obj) == {**data, 'names': ['a', 'b', 'c']}
    properties = adapter.make_schema()['$defs']['Standard']['properties']
    assert properties['address'] == {'type': 'string', 'format': 'ipv4'}
    assert properties['path'] == {'type': 'string'}


@pytest.mark.parametrize('value', ['10.0.0', 5])
def test_values_that_are_no_addresses_are_named(value):
    with pytest.raises(ValueError, match='address: '):
        get_adapter(Standard).load({'address': value, 'path': '', 'names': [], 'pair': [], 'counts': {}})


class Unsupported(msgspec.Struct):
    known: int
    number: complex


class UnsupportedByPydantic(pydantic.BaseModel):
    known: int
    function: Callable[[], None]


@dataclasses.dataclass
class Mixed:
    inner: list[PydanticModel]


@dataclasses.dataclass
class Recursive:
    others: 'list[Recursive]'
    number: complex
    shared: typing.ClassVar[complex] = 0


@pytest.mark.parametrize(
    'cls, message',
    [
        (msgspec.defstruct('M', [('spec', list[Unsupported])]), "M.spec.number has a type that msgspec does not supp"),
        (Recursive, "Recursive.number has a type that msgspec does not support: .*complex.* Use another type, or"),
        (Mixed, "Mixed.inner has a type that msgspec does not support: .* Take all classes of the kind from one lib"),
        (
            pydantic.create_model('M', spec=(UnsupportedByPydantic, ...)),
            "M.spec.function has a type that pydantic does not support: Cannot generate a JsonSchema for",
        ),
        (dataclasses.make_dataclass('M', [('spec', 'NoSuch')]), "M has a type that .*: name 'NoSuch' is not defined"),
    ],
)
def test_types_that_a_library_does_not_support_are_named_with_their_attribute(cls, message):
    with pytest.raises(ModelError, match=message):
        get_adapter(cls).make_schema()


def test_names_that_differ_in_reading_and_writing_are_refused():
    class Aliased(pydantic.BaseModel):
        name: str = pydantic.Field('', validation_alias='title')

    cls = pydantic.create_model('Model', spec=(Aliased, ...))
    with pytest.raises(ModelError, match="Aliased has a field that is written as 'name', but read by another name"):
        get_adapter(cls).make_schema()


def test_computed_fields_are_not_written():
    class Computing(pydantic.BaseModel, extra='forbid'):
        size: int

        @pydantic.computed_field
        @property
        def double(self) -> int:
            return 2 * self.size

    adapter = get_adapter(Computing)
    assert adapter.dump(Computing(size=2)) == {'size': 2}
    assert list(adapter.make_schema()['properties']) == ['size']
