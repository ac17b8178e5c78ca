"""
What an operator keeps in memory only, on behalf of its developer: memos and indices.

Here is only what handlers see of them. Indices are abstract and read-only: it is the indexing that fills them.
"""

from collections.abc import Collection, Mapping
from typing import Any, Generic, TypeAlias, TypeVar

_K = TypeVar('_K')
_V = TypeVar('_V', covariant=True)

# Developers can bring any object as the operator's memo; only their code knows what is in it.
AnyMemo: TypeAlias = object


class Memo(dict[Any, Any]):
    """
    Arbitrary values kept for an object or for the operator, by keys or, the same, by attributes.

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
            raise AttributeError(f"{type(self).__name__!r} has no {key!r}", name=key, obj=self) from None

    def __setattr__(self, key: str, value: Any) -> None:
        self[key] = value

    def __delattr__(self, key: str) -> None:
        try:
            del self[key]
        except KeyError:
            raise AttributeError(f"{type(self).__name__!r} has no {key!r}", name=key, obj=self) from None


class Store(Collection[_V], Generic[_V]):
    """
    All values of one key of an index, in no specific order. One value for every object that has brought this key.
    """

    __slots__ = ()


class Index(Mapping[_K, Store[_V]], Generic[_K, _V]):
    """
    A read-only live mapping of keys to stores of values, all of them calculated from objects by an indexing handler.
    """

    __slots__ = ()
