"""
Nested dictionaries: access to their fields by paths, and live views of their parts.

Kubernetes objects are plain dicts. Why not copy them or wrap them in models? It would cost more than the rest of the
processing of an event. Instead, a view stores the root and a path, and resolves the path on every use. The root is in
a one-item list (a cell), which all views of one root share. When the root is replaced, all views show the new one, and
they need no references to each other. See `packed_objects` for other types of cells.
"""

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, MutableMapping, ValuesView
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Self, TypeAlias, TypeVar, overload

FieldPath: TypeAlias = tuple[str, ...]
FieldSpec: TypeAlias = None | str | FieldPath | list[str]

_T = TypeVar('_T')
_K = TypeVar('_K')
_V = TypeVar('_V')

_UNSET: Final[Any] = object()  # there is no default
_ABSENT: Final[Any] = object()  # there is no such key
_EMPTY: Final[Mapping[Any, Any]] = {}
_STR: Final = frozenset({str})


def parse_field(field: FieldSpec) -> FieldPath:
    """
    Convert any notation of a field to its path.

    ``None`` is the root, i.e. the empty path; strings are split by dots; lists and tuples of strings are taken as is
    (the only way to address keys with dots inside, such as annotations).

    Raises:
        ValueError: if it is anything else.
    """
    match field:
        case None:
            return ()
        case str():
            return tuple(field.split('.'))
        case list() | tuple() if set(map(type, field)) <= _STR or all(isinstance(key, str) for key in field):
            return tuple(field)
        case _:
            raise ValueError(f"A field must be a string with dots, or a list or a tuple of strings; got {field!r}.")


@overload
def resolve(d: Mapping[Any, Any] | None, field: FieldSpec) -> Any: ...


@overload
def resolve(d: Mapping[Any, Any] | None, field: FieldSpec, default: _T) -> Any | _T: ...


def resolve(d: Mapping[Any, Any] | None, field: FieldSpec, default: Any = _UNSET) -> Any:
    """
    Return the value of a nested field.

    With a default, the field is absent in all these cases: a missing key at any level, or ``None``, a scalar or a list
    in the middle of the path. ``None`` at the end of the path is a value, and is returned.

    Raises:
        KeyError: if a key is absent, and there is no default.
        TypeError: if one of the parents is not a mapping, and there is no default.
    """
    value: Any = d
    for key in field if type(field) is tuple else parse_field(field):
        # The exact type first: checks of abstract classes are several times slower, and nearly all values are
        # plain dicts.
        if type(value) is not dict and not isinstance(value, Mapping):
            if default is _UNSET:
                raise TypeError(f"Cannot get the field {key!r} of what is not a mapping: {value!r}")
            return default
        value = value.get(key, _ABSENT)
        if value is _ABSENT:
            if default is _UNSET:
                raise KeyError(key)
            return default
    return value


def ensure(d: MutableMapping[Any, Any], field: FieldSpec, value: Any) -> None:
    """
    Set the value of a nested field; create the missing parents.

    Raises:
        ValueError: if the field is the root.
        TypeError: if one of the parents is present and is not a mutable mapping.
    """
    *parents, key = _parse_nested(field)
    _ensure_mapping(d, parents)[key] = value


def remove(d: MutableMapping[Any, Any], field: FieldSpec) -> None:
    """
    Remove a nested field, and then its parents that are left empty. An absent field is not an error.

    Raises:
        ValueError: if the field is the root.
    """
    key, *rest = _parse_nested(field)
    child = d.get(key)
    if not rest:
        d.pop(key, None)
    elif isinstance(child, MutableMapping):
        remove(child, rest)
        if not child:
            del d[key]


def cherrypick(src: Mapping[Any, Any], dst: MutableMapping[Any, Any], fields: Iterable[FieldSpec] | None) -> None:
    """
    Copy the fields from one mapping to another; the fields absent in the source are skipped. The values are shared.

    Raises:
        ValueError: if a field is the root.
        TypeError: if a parent in the destination is not a mutable mapping.
    """
    for field in fields or ():
        value = resolve(src, field, _ABSENT)
        if value is not _ABSENT:
            ensure(dst, field, value)


def _parse_nested(field: FieldSpec) -> FieldPath:
    path = parse_field(field)
    if not path:
        raise ValueError("The root of a mapping can be neither set nor removed; name a field in it.")
    return path


def _ensure_mapping(d: MutableMapping[Any, Any], path: Iterable[str]) -> MutableMapping[Any, Any]:
    for key in path:
        child = d.get(key)
        if child is None:  # as everywhere in Kubernetes, null means absence
            child = d[key] = {}
        elif type(child) is not dict and not isinstance(child, MutableMapping):
            raise TypeError(f"Cannot set a field inside of {key!r}: it is not a mapping, but {child!r}")
        d = child
    return d


class Cell(Protocol):
    """A container of the root of views as its only item. Usually, it is a list."""

    def __getitem__(self, index: int, /) -> Mapping[Any, Any]: ...

    def __setitem__(self, index: int, root: Mapping[Any, Any], /) -> None: ...


class MappingView(Mapping[_K, _V], Generic[_K, _V]):
    """
    A read-only live view of one field of a mapping, the root by default.

    It shows the state at the moment of use. An absent field, ``None``, and a value that is not a mapping look empty.
    A view of a view refers directly to the root of the latter. Copies and pickles are detached from the root.

    Raises:
        ValueError: if the path is malformed.
    """

    __slots__ = ('_cell', '_path')

    _cell: Cell
    _path: FieldPath

    def __init__(self, src: Mapping[Any, Any], path: FieldSpec = None, /) -> None:
        super().__init__()
        field = parse_field(path)
        if isinstance(src, MappingView):
            # Why the cell, not the root? The views of parts must show the new root after a replacement.
            self._cell = src._cell
            self._path = src._path + field
        else:
            self._cell = [src]
            self._path = field

    @classmethod
    def _of(cls, cell: Cell, path: FieldPath) -> Self:
        """Create a view without checks of the arguments, which is faster: bodies create many of them."""
        view = cls.__new__(cls)
        view._cell, view._path = cell, path
        return view

    def _data(self) -> Mapping[_K, _V]:
        data: Any = self._cell[0]
        for key in self._path:
            data = data.get(key)
            if type(data) is not dict and not isinstance(data, Mapping):
                return _EMPTY
        return data  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return repr(dict(self._data()))

    def __len__(self) -> int:
        return len(self._data())

    def __iter__(self) -> Iterator[_K]:
        return iter(self._data())

    def __getitem__(self, key: _K, /) -> _V:
        return self._data()[key]

    def __contains__(self, key: object, /) -> bool:
        return key in self._data()

    def __eq__(self, other: object, /) -> bool:
        if isinstance(other, MappingView):
            other = other._data()
        elif not isinstance(other, Mapping):
            return NotImplemented
        return self._data() == other

    def __reduce__(self) -> tuple[Any, ...]:
        # Include the parents, so that the path stays valid, but not the rest of the object.
        return type(self), (self._detached(), self._path)

    def _detached(self) -> Mapping[Any, Any]:
        data: Mapping[Any, Any] = self._data()
        for key in reversed(self._path):
            data = {key: data}
        return data

    # The mixins of Mapping do the same through __getitem__() & KeyError, which is several times slower.
    @overload
    def get(self, key: _K) -> _V | None: ...

    @overload
    def get(self, key: _K, default: _V | _T) -> _V | _T: ...

    def get(self, key: _K, default: Any = None) -> Any:
        return self._data().get(key, default)

    def keys(self) -> KeysView[_K]:
        return self._data().keys()

    def values(self) -> ValuesView[_V]:
        return self._data().values()

    def items(self) -> ItemsView[_K, _V]:
        return self._data().items()

    if not TYPE_CHECKING:  # at runtime only: type checkers must see a read-only mapping

        def __setitem__(self, key: object, value: object, /) -> None:
            raise TypeError(self._explain_frozen(key))

        def __delitem__(self, key: object, /) -> None:
            raise TypeError(self._explain_frozen(key))

    def _explain_frozen(self, key: object) -> str:
        path = ''.join(f'[{part!r}]' for part in (*self._path, key))
        target = '.'.join(['patch', *self._path])  # unlike items, attributes create missing parents
        return (
            f"The object cannot be changed in place: {path} belongs to what was read from the cluster. "
            f"Change it by the argument patch: {target}[{key!r}] = ..., where None removes it."
        )


class MutableMappingView(MappingView[_K, _V], MutableMapping[_K, _V]):
    """
    A live view that can also be written to. The missing parents are created on the first write, never on reading.

    Writing raises `TypeError` if one of the parents is not a mutable mapping.
    """

    __slots__ = ()

    if not TYPE_CHECKING:

        def __setattr__(self, name: str, value: object) -> None:
            try:
                object.__setattr__(self, name, value)
            except AttributeError:
                raise AttributeError(
                    f"{type(self).__name__!r} object has no attribute {name!r}: it is a mapping, use [{name!r}] = ..."
                ) from None

    def __setitem__(self, key: _K, value: _V, /) -> None:
        root: Any = self._cell[0]
        _ensure_mapping(root, self._path)[key] = value

    def __delitem__(self, key: _K, /) -> None:
        data: Any = self._data()
        del data[key]

    def __reduce__(self) -> tuple[Any, ...]:
        # A detached view has no root to write to, so a copy is a plain dict.
        return dict, (dict(self._data()),)


class ReplaceableMappingView(MappingView[_K, _V]):
    """A view of a whole mapping, which can be replaced with another one: in this view and in all views of its parts."""

    __slots__ = ()

    def __init__(self, src: Mapping[_K, _V], /) -> None:
        # Make a new cell even for a view of a view: a replacement must not affect the other root.
        self._cell = [src]
        self._path = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._data(),)

    def _replace_with(self, src: Mapping[_K, _V], /) -> None:
        self._cell[0] = src

    def _replace_from(self, src: 'ReplaceableMappingView[_K, _V]', /) -> None:
        self._cell[0] = src._cell[0]
