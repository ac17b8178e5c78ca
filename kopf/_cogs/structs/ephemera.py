"""
Memos and indices: data of the developer that an operator keeps in memory only.

These are the types for handlers. Indices are abstract and read-only here; the indexing engine implements them.
"""

from collections.abc import Collection, Mapping
from typing import Any, Generic, TypeAlias, TypeVar

_K = TypeVar('_K')
_V = TypeVar('_V', covariant=True)

AnyMemo: TypeAlias = object
"""The type of memos: developers can pass any object as the operator's memo."""


class Memo(dict[Any, Any]):
    """
    Arbitrary values kept for an object or for the operator, accessible both as items and as attributes.

    >>> memo = Memo()
    >>> memo.counter = 1
    >>> memo['counter']
    1
    """

    __slots__ = ()

    def __getattr__(self, key: str) -> Any:
        try:
            return self[key]
        except KeyError:
            # It must be this error for `hasattr`, `getattr` with defaults, and copying to work.
            raise AttributeError(
                f"{type(self).__name__!r} has no {key!r} yet: set it before, or use .get({key!r})", name=key, obj=self
            ) from None

    def __setattr__(self, key: str, value: Any) -> None:
        self[key] = value

    def __delattr__(self, key: str) -> None:
        try:
            del self[key]
        except KeyError:
            raise AttributeError(f"{type(self).__name__!r} has no {key!r}", name=key, obj=self) from None


class Store(Collection[_V], Generic[_V]):
    """All values of one key of an index, in no specific order: one value for every object with this key."""

    __slots__ = ()


class Index(Mapping[_K, Store[_V]], Generic[_K, _V]):
    """A read-only live mapping of keys to stores of values, all of them returned for objects by an indexing handler."""

    __slots__ = ()
