"""
Kubernetes objects of other client libraries: pykube-ng, kubernetes, kubernetes_asyncio, kr8s, lightkube.

All of them, and plain dicts too, are accessed through `Fields`, by the names of fields in the API. Why not simply
import the libraries and use `isinstance`? They are optional and slow to import. If the user has an object of a library,
the library is imported already, and the object's class is sufficient.
"""

import functools
import re
import sys
import typing
from collections.abc import Mapping, MutableMapping
from typing import Any, Protocol


class PykubeObject(Protocol):
    """An ``APIObject`` of pykube-ng: a wrapper of a dict."""

    @property
    def obj(self) -> Any: ...


class Kr8sObject(Protocol):
    """An ``APIObject`` of kr8s, synchronous or not: a wrapper of a dict."""

    @property
    def raw(self) -> Any: ...


class KubernetesModel(Protocol):
    """A model of the official client, or of its asynchronous sibling: typed attributes in snake case."""

    @property
    def openapi_types(self) -> Any: ...
    @property
    def attribute_map(self) -> Any: ...


class LightkubeModel(Protocol):
    """A model of lightkube: a data class with annotated attributes, spelled as in the API."""

    def to_dict(self) -> Any: ...


class Fields(Protocol):
    """A structure with fields: a whole object, its metadata, or a template of other objects."""

    def get(self, name: str) -> Any:
        """Return the value of the field; ``None`` if it is absent."""

    def set(self, name: str, value: Any) -> None: ...

    def remove(self, name: str) -> None:
        """Remove the field."""

    def make(self, name: str) -> Any:
        """Return the structure in the field; create an empty one if the field is absent."""

    def make_item(self, name: str, values: dict[str, Any]) -> Any:
        """Create an item for the list in the field, of the type of its items."""


class MappingFields:
    """The fields of a dict, or of another mutable mapping."""

    __slots__ = ('_obj',)

    def __init__(self, obj: MutableMapping[str, Any]) -> None:
        self._obj = obj

    @property
    def wrapped(self) -> MutableMapping[str, Any]:
        """The mapping itself."""
        return self._obj

    def get(self, name: str) -> Any:
        return self._obj.get(name)

    def set(self, name: str, value: Any) -> None:
        self._obj[name] = value

    def remove(self, name: str) -> None:
        self._obj.pop(name, None)

    def make(self, name: str) -> Any:
        if self._obj.get(name) is None:
            self._obj[name] = {}
        return self._obj[name]

    def make_item(self, name: str, values: dict[str, Any]) -> Any:
        return values


class AttributeFields:
    """The fields of a model: its attributes. The subclasses define their types and spelling."""

    __slots__ = ('_obj',)

    def __init__(self, obj: Any) -> None:
        self._obj = obj

    def get(self, name: str) -> Any:
        return getattr(self._obj, self._spell(type(self._obj), name), None)

    def set(self, name: str, value: Any) -> None:
        setattr(self._obj, self._spell(type(self._obj), name), value)

    def remove(self, name: str) -> None:
        self.set(name, None)

    def make(self, name: str) -> Any:
        value = self.get(name)
        if value is None:
            self.set(name, self._find_type(type(self._obj), name)())
            value = self.get(name)
        return value

    def make_item(self, name: str, values: dict[str, Any]) -> Any:
        cls = self._find_type(type(self._obj), name)
        return cls(**{self._spell(cls, key): value for key, value in values.items()})

    @staticmethod
    def _spell(cls: type[Any], name: str) -> str:
        return name

    @staticmethod
    def _find_type(cls: type[Any], name: str) -> type[Any]:
        """Return the class of the field's values, or of its items if it is a list."""
        raise NotImplementedError


class KubernetesFields(AttributeFields):
    """The fields of a `KubernetesModel`: the types are strings, such as ``list[V1OwnerReference]``."""

    __slots__ = ()

    @staticmethod
    def _spell(cls: type[Any], name: str) -> str:
        for attribute, spelled in cls.attribute_map.items():
            if spelled == name:
                return str(attribute)
        return name

    @staticmethod
    def _find_type(cls: type[Any], name: str) -> type[Any]:
        text = cls.openapi_types[KubernetesFields._spell(cls, name)]
        match = re.fullmatch(r'(?:list\[)?(\w+)\]?', text, re.IGNORECASE)
        # The library is imported already, because the user has an object of it.
        client = sys.modules[f'{_find_library(cls.__mro__)}.client']
        found: type[Any] = dict if match is None else getattr(client, match[1])
        return found


class LightkubeFields(AttributeFields):
    """The fields of a `LightkubeModel`: the types are annotations, such as ``Optional[List[OwnerReference]]``."""

    __slots__ = ()

    @staticmethod
    def _find_type(cls: type[Any], name: str) -> type[Any]:
        annotation = typing.get_type_hints(cls).get(name)
        while typing.get_origin(annotation) not in (None, dict):
            annotation = next(arg for arg in typing.get_args(annotation) if arg is not type(None))
        return annotation if isinstance(annotation, type) else dict


def convert(obj: Any) -> Any:
    """
    Return the object as a mapping with the names of the API; ``None`` if its type is not supported.

    The values keep the types of the library: for example, times are not converted to strings.
    """
    if isinstance(obj, Mapping):
        return obj
    library = _find_library(type(obj).__mro__)
    if library in _MODELS and hasattr(obj, 'openapi_types'):
        return _convert_model(obj)
    if library == 'lightkube' and hasattr(obj, 'to_dict'):
        return obj.to_dict()
    fields = _access_library(obj, library)
    return fields.wrapped if isinstance(fields, MappingFields) else None


def _convert_model(value: Any) -> Any:
    # Why not by the client of the library? It opens a session, and needs a configuration.
    if isinstance(value, list):
        return [_convert_model(item) for item in value]
    if isinstance(value, dict):
        return {key: _convert_model(item) for key, item in value.items()}
    if not hasattr(value, 'openapi_types'):
        return value
    fields = {spelled: getattr(value, attribute) for attribute, spelled in value.attribute_map.items()}
    return {spelled: _convert_model(item) for spelled, item in fields.items() if item is not None}


_MODELS = ('kubernetes', 'kubernetes_asyncio')


def access(obj: object) -> Fields | None:
    """Return the fields of an object or of a part of it; ``None`` if its type is not supported."""
    if isinstance(obj, MutableMapping):
        return MappingFields(obj)
    return _access_library(obj, _find_library(type(obj).__mro__))


def _access_library(obj: Any, library: str | None) -> Fields | None:
    if library in _MODELS and hasattr(obj, 'openapi_types'):
        return KubernetesFields(obj)
    if library == 'lightkube' and hasattr(obj, 'to_dict'):
        return LightkubeFields(obj)
    if library == 'pykube' and hasattr(obj, 'obj'):
        return MappingFields(obj.obj)
    if library == 'kr8s' and hasattr(obj, 'raw'):
        return MappingFields(obj.raw)
    return None


@functools.cache
def _find_library(classes: tuple[type[Any], ...]) -> str | None:
    """Return the name of the library that the object's class or one of its base classes is from."""
    for base in classes:
        library = base.__module__.partition('.')[0]
        if library in ('kubernetes', 'kubernetes_asyncio', 'pykube', 'kr8s', 'lightkube'):
            return library
    return None
