"""
Changes between two states of an object or of its field, in the form passed to handlers.

``None`` means absence, as it does in Kubernetes: a null field and an absent field are the same.
Values are compared as JSON, where 1, 1.0 and true are different, though they are equal in Python. Only mappings are
compared by key; lists have no keys to match their items by, so they are compared and reported as a whole.
"""

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, overload

import orjson

from kopf._cogs.structs import dicts


class DiffOperation(enum.StrEnum):
    """The type of a change of a field."""

    ADD = 'add'
    CHANGE = 'change'
    REMOVE = 'remove'

    def __repr__(self) -> str:
        return repr(self.value)


class DiffItem(NamedTuple):
    """One changed field: the operation, the path of the field, the old and new values (``None`` if absent)."""

    operation: DiffOperation
    field: dicts.FieldPath
    old: Any
    new: Any

    def __repr__(self) -> str:
        return repr(tuple(self))

    # Existing tests of operators compare items with lists from JSON or YAML.
    def __eq__(self, other: object) -> bool:
        return tuple.__eq__(self, tuple(other) if isinstance(other, list) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return tuple.__hash__(self)

    @property
    def op(self) -> DiffOperation:
        """A shorter name of the operation."""
        return self.operation


class Diff(Sequence[DiffItem]):
    """
    An immutable list of changes. It equals any list or tuple of the same items, and is falsy if nothing has changed.

    Items can be plain 4-tuples.

    Raises:
        ValueError: if an operation is unknown.
    """

    __slots__ = ('_items',)

    def __init__(self, items: Iterable[DiffItem | tuple[str, Iterable[str], Any, Any]] = (), /) -> None:
        super().__init__()
        self._items = tuple([item if type(item) is DiffItem else _make_item(*item) for item in items])

    def __repr__(self) -> str:
        return repr(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[DiffItem]:
        return iter(self._items)

    @overload
    def __getitem__(self, item: int) -> DiffItem: ...

    @overload
    def __getitem__(self, item: slice) -> Sequence[DiffItem]: ...

    def __getitem__(self, item: int | slice) -> DiffItem | Sequence[DiffItem]:
        return self._items[item]

    def __eq__(self, other: object) -> bool:
        match other:
            case Diff():
                return self._items == other._items
            case tuple() | list():
                return self._items == tuple(other)
            case _:
                return NotImplemented

    def __hash__(self) -> int:
        return hash(self._items)


EMPTY: Final = Diff()


def diff(a: Any, b: Any, /) -> Diff:
    """
    Compare the old and the new state: of any types, usually mappings.

    The order is the same for the same inputs: on every level, first what was added, then what was removed,
    then what was changed or has changes inside; each in the order of keys.
    """
    if is_same(a, b):
        return EMPTY
    items: list[DiffItem] = []
    _collect_unequal(items, (), a, b)
    return Diff(items)


def is_same(a: Any, b: Any, /, *, exact: bool = True) -> bool:
    """
    Check whether both are the same JSON. Unless ``exact``, 1 and 1.0 are the same number.

    The API can write a number in another way than a client has sent it. So a desired value and the actual value are
    compared inexactly. Two states from the API are compared exactly.
    """
    if a is b:
        return True
    if not bool(a == b):  # the fastest comparison in Python; but it treats 1, 1.0 and True as equal
        return False
    return type(a) is str or _is_same_inside(a, b, exact)


def reduce(d: Diff, path: dicts.FieldPath, /) -> Diff:
    """
    Narrow the diff to one field: only the changes of this field, with paths relative to it.

    If one of the parents was added, removed or changed as a whole, only the part about the field is returned.
    """
    return Diff(_iter_reduced(d, path)) if d and path else d


def _is_same_inside(a: Any, b: Any, exact: bool) -> bool:
    """Check whether two values that are equal in Python are also equal in JSON."""
    if type(a) is dict is type(b):
        try:  # serializing both is several times faster than iterating over dicts in Python
            if orjson.dumps(a) == orjson.dumps(b):
                return True
        except TypeError:
            pass
    return _has_same_types(a, b, exact)


def _has_same_types(a: Any, b: Any, exact: bool) -> bool:
    if type(a) is str or a is b:
        return True
    # Equal mappings can have different texts: because of the order of keys, which does not matter, or of 1 and 1.0.
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return all(_has_same_types(value, b.get(key), exact) for key, value in a.items())
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        # Why not strict? The lists are equal in Python, so they have the same length.
        return all(_has_same_types(value, other, exact) for value, other in zip(a, b, strict=False))
    if isinstance(a, int | float) and isinstance(b, int | float):
        is_same_kind = isinstance(a, bool) is isinstance(b, bool)
        return is_same_kind and (not exact or isinstance(a, float) is isinstance(b, float))
    return True


def _make_item(op: str, field: Iterable[str], old: Any, new: Any) -> DiffItem:
    return DiffItem(DiffOperation(op), tuple(field), old, new)


def _collect_unequal(items: list[DiffItem], path: dicts.FieldPath, a: Any, b: Any) -> None:
    if a is None:
        items.append(DiffItem(DiffOperation.ADD, path, a, b))
    elif b is None:
        items.append(DiffItem(DiffOperation.REMOVE, path, a, b))
    elif type(a) is dict is type(b) or isinstance(a, Mapping) and isinstance(b, Mapping):
        _collect_unequal_in_mappings(items, path, a, b)
    else:
        items.append(DiffItem(DiffOperation.CHANGE, path, a, b))


def _collect_unequal_in_mappings(
    items: list[DiffItem],
    path: dicts.FieldPath,
    a: Mapping[Any, Any],
    b: Mapping[Any, Any],
) -> None:
    changed: list[tuple[Any, Any, Any]] = []
    for key, new in b.items():
        old = a.get(key)
        if old is None and new is not None:
            items.append(DiffItem(DiffOperation.ADD, (*path, key), None, new))
        elif new is not None and not is_same(old, new):
            changed.append((key, old, new))
    for key, old in a.items():
        if old is not None and b.get(key) is None:
            items.append(DiffItem(DiffOperation.REMOVE, (*path, key), old, None))
    # Changes are added last, although they were found first: the order of the operations is a part of the interface.
    for key, old, new in changed:
        _collect_unequal(items, (*path, key), old, new)


def _iter_reduced(d: Diff, path: dicts.FieldPath) -> Iterator[DiffItem]:
    size = len(path)
    for item in d:
        depth = len(item.field)
        if item.field[:size] == path:
            yield DiffItem(item.operation, item.field[size:], item.old, item.new)
        elif path[:depth] == item.field:
            subpath = path[depth:]
            yield from diff(dicts.resolve(item.old, subpath, None), dicts.resolve(item.new, subpath, None))
