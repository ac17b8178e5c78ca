"""
Classes as models of objects: pydantic models, dataclasses, TypedDicts, and Structs of msgspec.

Pydantic's classes are validated by pydantic, the others by msgspec. A library is imported only if a class needs it.
"""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, Protocol

import orjson

from kopf._cogs.helpers.explanations import ExplainedError


class ModelError(ExplainedError, TypeError):
    """Raised if a class cannot be the model of a kind; the text has the reason."""


class Adapter(Protocol):
    """Converts between the plain data of the API and objects of a class, by the library of that class."""

    def load(self, data: Mapping[str, Any]) -> Any:
        """
        Return an object of the class.

        Raises:
            ValueError: if the data are not valid; the text names the fields.
        """

    def dump(self, obj: Any) -> Any:
        """Return the data of an object in JSON types; fields without a value are ``None``."""

    def make_schema(self) -> dict[str, Any]:
        """Return the JSON schema of the class."""


class _PydanticAdapter:
    """An adapter for pydantic's models, and for its dataclasses."""

    def __init__(self, cls: type[Any]) -> None:
        from pydantic import TypeAdapter, ValidationError

        self._adapter = TypeAdapter(cls)
        self._error = ValidationError

    def load(self, data: Mapping[str, Any]) -> Any:
        try:
            # Why not `validate_python`? In strict models, it refuses texts for times, enums, and other types that
            # JSON does not have.
            return self._adapter.validate_json(orjson.dumps(data))
        except self._error as error:
            problems = [
                f"{'.'.join(map(str, each['loc'])) or 'the object'}: {each['msg']}, not {_shorten(each['input'])}"
                if each['type'] != 'missing'
                else f"{'.'.join(map(str, each['loc']))}: {each['msg']}"
                for each in error.errors(include_url=False, include_context=False)
            ]
            raise ValueError("; ".join(problems)) from None

    def dump(self, obj: Any) -> Any:
        return self._adapter.dump_python(obj, mode='json', by_alias=True)

    def make_schema(self) -> dict[str, Any]:
        return self._adapter.json_schema(by_alias=True, mode='validation')


class _MsgspecAdapter:
    """An adapter for dataclasses, TypedDicts, and Structs."""

    def __init__(self, cls: type[Any]) -> None:
        try:
            import msgspec
        except ImportError as error:
            raise ModelError(
                f"The class {cls.__qualname__} needs the library msgspec: pip install 'kopf[msgspec]'"
            ) from error
        self._cls = cls
        self._msgspec = msgspec

    def load(self, data: Mapping[str, Any]) -> Any:
        try:
            return self._msgspec.convert(data, type=self._cls)
        except self._msgspec.ValidationError as error:
            text, _, path = str(error).partition(' - at `$')
            field = path.rstrip('`').lstrip('.')
            raise ValueError(f"{field or 'the object'}: {text}") from None

    def dump(self, obj: Any) -> Any:
        return self._msgspec.to_builtins(obj)

    def make_schema(self) -> dict[str, Any]:
        return self._msgspec.json.schema(self._cls)


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


_adapters: dict[type[Any], Adapter] = {}


def get_adapter(cls: type[Any]) -> Adapter:
    """
    Return the adapter for a class.

    Raises:
        ModelError: if the class is of no supported library.
    """
    if cls not in _adapters:
        if not is_model(cls):
            raise ModelError(
                f"{cls!r} is no model: derive it from pydantic.BaseModel, msgspec.Struct, or typing.TypedDict, "
                f"or decorate it with @dataclasses.dataclass."
            )
        make = _PydanticAdapter if hasattr(cls, '__pydantic_validator__') else _MsgspecAdapter
        _adapters[cls] = make(cls)
    return _adapters[cls]


def is_model(value: object) -> bool:
    """Check whether the value is a class of one of the supported libraries."""
    return isinstance(value, type) and (
        dataclasses.is_dataclass(value)
        or typing.is_typeddict(value)
        or hasattr(value, '__required_keys__')  # the TypedDict of typing_extensions
        or hasattr(value, '__pydantic_validator__')
        or hasattr(value, '__struct_fields__')
    )


def dump_model(value: Any) -> Any:
    """
    Return the plain data of an object of a model; return any other value unchanged.

    Fields without a value are ``None``, so that a merge patch removes them.
    """
    return get_adapter(type(value)).dump(value) if is_model(type(value)) else value


def drop_nulls(value: Any) -> Any:
    """Return plain data without the fields that are ``None``, for objects as a whole."""
    if isinstance(value, Mapping):
        return {key: drop_nulls(each) for key, each in value.items() if each is not None}
    return [drop_nulls(each) for each in value] if isinstance(value, list) else value


def list_fields(cls: type[Any]) -> frozenset[str]:
    """Return the names of the fields of a class."""
    names = {*getattr(cls, '__struct_fields__', ()), *getattr(cls, '__pydantic_fields__', ())}
    names |= {*getattr(cls, '__required_keys__', ()), *getattr(cls, '__optional_keys__', ())}
    if dataclasses.is_dataclass(cls):
        names |= {field.name for field in dataclasses.fields(cls)}
    return frozenset(names)
