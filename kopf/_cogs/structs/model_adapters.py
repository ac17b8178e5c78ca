"""
Classes as models of objects: pydantic models, dataclasses, TypedDicts, and Structs of msgspec.

Pydantic's classes are validated by pydantic, the others by msgspec. A library is imported only if a class needs it.
"""

import dataclasses
import typing
from collections.abc import Callable, Mapping, Sequence
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

        self._cls = cls
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
        # Without computed fields: the schema does not have them, and models can forbid them.
        return self._adapter.dump_python(obj, mode='json', by_alias=True, round_trip=True)

    def make_schema(self) -> dict[str, Any]:
        from pydantic import TypeAdapter

        try:
            schema = self._adapter.json_schema(by_alias=True, mode='validation')
        except Exception as error:  # of several classes, which pydantic does not document
            raise _explain_type(
                self._cls, error, 'pydantic', lambda hint: TypeAdapter(hint).json_schema(mode='validation')
            ) from None
        self._check_aliases(schema)
        return schema

    def _check_aliases(self, read: Mapping[str, Any]) -> None:
        """Check that fields are written by the names by which they are read, as a CRD has one name for each."""
        try:
            written = self._adapter.json_schema(by_alias=True, mode='serialization')
        except Exception:  # e.g. of serializers that are functions: it is not known what they write
            return
        places = [(self._cls.__qualname__, read, written)]
        definitions = written.get('$defs') or {}
        places += [(name, each, definitions.get(name) or {}) for name, each in (read.get('$defs') or {}).items()]
        for name, before, after in places:
            known = before.get('properties') or {}
            for field, schema in (after.get('properties') or {}).items():
                if known and field not in known and not schema.get('readOnly'):  # computed fields are not written
                    raise ModelError(
                        f"{name} has a field that is written as {field!r}, but read by another name, and the schema of "
                        f"a CRD has only one. Use alias= instead of validation_alias= and serialization_alias=."
                    )


class _MsgspecAdapter:
    """An adapter for dataclasses, TypedDicts, and Structs."""

    def __init__(self, cls: type[Any]) -> None:
        try:
            import msgspec
        except ImportError as error:
            raise ModelError(
                f"The class {cls.__qualname__} needs the library msgspec: pip install 'kopf[msgspec]>=1.46'"
            ) from error
        self._cls = cls
        self._msgspec = msgspec

    def load(self, data: Mapping[str, Any]) -> Any:
        try:
            # The keys of JSON objects are strings, also for a `dict[int, ...]`.
            return self._msgspec.convert(data, type=self._cls, dec_hook=_decode_text, str_keys=True)
        except self._msgspec.ValidationError as error:
            text, _, path = str(error).partition(' - at `$')
            field = path.rstrip('`').lstrip('.')
            raise ValueError(f"{field or 'the object'}: {text}") from None

    def dump(self, obj: Any) -> Any:
        # Sets are sorted, as each process would have another order, and so write another value.
        builtins = self._msgspec.to_builtins(obj, enc_hook=_encode_text, str_keys=True, order='deterministic')
        return _listify(builtins)

    def make_schema(self) -> dict[str, Any]:
        try:
            return self._make_schema(self._cls)
        except Exception as error:  # TypeError, NameError, and those of annotations
            raise _explain_type(self._cls, error, 'msgspec', self._make_schema) from None

    def _make_schema(self, type: Any) -> dict[str, Any]:
        schema: dict[str, Any] = self._msgspec.json.schema(type, schema_hook=_make_text_schema)
        return schema


# The types of the standard library that pydantic knows, but msgspec does not: those that are made from texts.


_FORMATS: Mapping[str, str] = {'IPv4Address': 'ipv4', 'IPv6Address': 'ipv6'}


def _is_text(type: Any) -> bool:
    return getattr(type, '__module__', '').partition('.')[0] in ('ipaddress', 'pathlib')


def _decode_text(type: Any, value: Any) -> Any:
    if not _is_text(type):
        raise NotImplementedError(f"objects of type {type.__qualname__} are not supported")
    if not isinstance(value, str):
        raise ValueError(f"Expected `str`, got `{value.__class__.__name__}`")
    return type(value)


def _encode_text(value: Any) -> str:
    if not _is_text(type(value)):
        raise NotImplementedError(f"objects of type {type(value).__qualname__} are not supported")
    return str(value)


def _make_text_schema(type: Any) -> dict[str, Any]:
    if not _is_text(type):
        raise NotImplementedError
    name = type.__name__
    return {'type': 'string', **({'format': _FORMATS[name]} if name in _FORMATS else {})}


def _listify(value: Any) -> Any:
    """Return plain data with lists in the place of tuples, as the API returns them."""
    if isinstance(value, dict):
        return {key: _listify(each) for key, each in value.items()}
    return [_listify(each) for each in value] if isinstance(value, list | tuple) else value


# Types that a library does not support.


def _explain_type(cls: type[Any], error: Exception, library: str, make_schema: Callable[[Any], Any]) -> ModelError:
    """Return an error that names the attribute whose type has no schema; only the class if that is unknown."""
    names, error, hint = _find_attribute(cls, make_schema, set()) or ((), error, cls)
    reason = str(error).strip().partition('\n\nFor further information')[0].splitlines()[-1].rstrip('.')
    is_mixed = library != 'pydantic' and any(hasattr(each, '__pydantic_validator__') for each in _find_models(hint))
    remedy = "Take all classes of the kind from one library" if is_mixed else "Use another type, or typing.Any"
    path = '.'.join([cls.__qualname__, *names])
    return ModelError(f"{path} has a type that {library} does not support: {reason}. {remedy}.")


def _find_attribute(
    cls: type[Any], make_schema: Callable[[Any], Any], seen: set[Any]
) -> tuple[Sequence[str], Exception, Any] | None:
    """Return the names that lead to the attribute without a schema, the error, and the type; ``None`` if unknown."""
    seen.add(cls)
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception:  # an annotation that cannot be evaluated: the error of the class says so
        return None
    for name, hint in hints.items():
        if typing.get_origin(hint) is typing.ClassVar or hint is typing.ClassVar:
            continue
        try:
            make_schema(hint)
        except Exception as error:
            models = _find_models(hint)
            if not seen.isdisjoint(models):
                continue  # it is recursive: another attribute has no schema
            for inner in models:
                if (found := _find_attribute(inner, make_schema, seen)) is not None:
                    return [name, *found[0]], *found[1:]
            return [name], error, hint
    return None


def _find_models(hint: Any) -> list[type[Any]]:
    """Return the classes in an annotation, such as that of the items of a list."""
    return [hint] if is_model(hint) else [each for part in typing.get_args(hint) for each in _find_models(part)]


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
