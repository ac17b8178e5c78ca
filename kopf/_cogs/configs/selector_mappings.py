"""
Settings that differ by resources.

The keys are spelled as the resources in decorators. Several of them can match one resource: all their values are used.
"""

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, TypeAlias, TypeVar

from kopf._cogs.structs import references

_V = TypeVar('_V')

SelectorSpec: TypeAlias = (
    references.Selector
    | str
    | references.Marker
    | Callable[[references.Resource], bool]
    | tuple[str, str | references.Marker]
    | tuple[str, str, str | references.Marker]
)
"""A specification of resources: a name, a marker, a callable, or a tuple with a group and a version before a name."""


class SelectorMapping(MutableMapping[SelectorSpec, _V]):
    """
    A mapping from resources to values: ``mapping['pods']``, ``mapping['apps', 'v1', 'deployments']``, etc.

    The keys are equal if they are spelled equally: ``'pods'`` and ``('v1', 'pods')`` are different keys.

    Args:
        items: the initial items.

    Raises:
        TypeError: (here and in all operations) if the key is not a valid specification of resources.
    """

    def __init__(self, items: Mapping[Any, _V] | None = None) -> None:
        super().__init__()
        self._items: dict[references.Selector, _V] = {}
        self.update(items or {})

    def __repr__(self) -> str:
        return f'{self.__class__.__name__}({self._items!r})'

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[references.Selector]:
        return iter(self._items)

    def __contains__(self, key: object) -> bool:
        return _parse_selector(key) in self._items

    def __getitem__(self, key: SelectorSpec) -> _V:
        return self._items[_parse_selector(key)]

    def __setitem__(self, key: SelectorSpec, value: _V) -> None:
        self._items[_parse_selector(key)] = value

    def __delitem__(self, key: SelectorSpec) -> None:
        del self._items[_parse_selector(key)]

    def collect(self, resource: references.Resource) -> list[_V]:
        """List the values of all keys that match the resource, in the order of their declaration."""
        # Why not only the value of the most specific key? Selectors for a watch restrict it together: all are applied.
        return [value for selector, value in self._items.items() if selector.check(resource)]


def _parse_selector(key: Any) -> references.Selector:
    match key:
        case references.Selector():
            return key
        case tuple():
            return references.Selector(*key)
        case str() | references.Marker():
            return references.Selector(key)
        case _ if callable(key):
            return references.Selector(key)
        case _:
            raise TypeError(f"Resources are specified by strings, tuples, kopf.EVERYTHING, or callables; got {key!r}.")
