"""
The fields that a schema has: `Schema`.

The schemas come from declared classes (JSON schemas) or from CRDs (structural schemas); both are read without a
conversion.
"""

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

_ALWAYS = frozenset({'apiVersion', 'kind', 'metadata'})
"""The fields that all objects have, whether the schema names them or not."""

_CACHE_SIZE = 1024
"""The number of paths whose results are cached. It is limited, because the keys of maps are parts of paths, too."""


class UnknownField(NamedTuple):
    """A field that a schema does not have."""

    path: tuple[str, ...]
    """The known part of the path, and the first unknown name."""
    known: Collection[str]
    """The names of the known fields in this place."""

    @property
    def hint(self) -> str:
        """A sentence with the most similar field, or with all known fields."""
        import difflib  # only for mistakes

        *parents, name = self.path
        if found := difflib.get_close_matches(name, self.known, n=1):
            return f"Did you mean {'.'.join([*parents, found[0]])!r}?"
        place = '.'.join(parents)
        return f"{place or 'It'} has: {', '.join(sorted(self.known)) or 'no fields'}."


class Schema:
    """
    A schema of objects.

    Args:
        root: the JSON schema of a class, or the structural schema of a version in a CRD.
        is_structural: whether it is a structural schema, in which a value without properties has no fields.
    """

    def __init__(self, root: Any, *, is_structural: bool) -> None:
        self._root = root
        self._is_structural = is_structural
        # Why not decorate a method? That cache would keep all former schemas alive.
        self._is_known: Callable[[tuple[str, ...]], bool] = functools.lru_cache(_CACHE_SIZE)(
            lambda path: self.find_unknown(path) is None
        )

    def find_unknown(self, path: Sequence[str]) -> UnknownField | None:
        """Return the first field of the path that the schema does not have; ``None`` if all fields are possible."""
        if not path or path[0] in _ALWAYS:
            return None
        nodes = [self._root]
        for index, name in enumerate(path):
            variants = [variant for node in nodes for variant in self._list_variants(node)]
            nodes, known = [], set[str]()
            for variant in variants:
                properties = variant.get('properties') or {}
                if name in properties:
                    nodes.append(properties[name])
                elif isinstance(others := variant.get('additionalProperties'), Mapping) and others:
                    nodes.append(others)
                elif self._is_open(variant):
                    return None
                known.update(properties)
            if not nodes:
                return UnknownField(tuple(path[: index + 1]), known)
        return None

    def _list_variants(self, node: Any, depth: int = 0) -> list[Mapping[str, Any]]:
        """Return the alternative schemas of a value, with all references and unions resolved."""
        if not isinstance(node, Mapping) or depth > 20:  # true permits any value; references can be recursive
            return [{'x-kubernetes-preserve-unknown-fields': True}]
        if self._is_structural:
            return [node]
        if (reference := node.get('$ref')) is not None:
            definitions = self._root.get('$defs') or {}
            return self._list_variants(definitions.get(str(reference).removeprefix('#/$defs/'), True), depth + 1)
        unions = [node.get(key) for key in ('anyOf', 'oneOf', 'allOf')]
        if any(unions) and 'properties' not in node:
            return [
                variant for union in unions for each in union or () for variant in self._list_variants(each, depth + 1)
            ]
        return [node]

    def _is_open(self, node: Mapping[str, Any]) -> bool:
        """Check whether the value can have other fields than those in the schema."""
        if node.get('x-kubernetes-preserve-unknown-fields') or node.get('x-kubernetes-embedded-resource'):
            return True
        if (others := node.get('additionalProperties')) is not None:
            return others is not False
        if self._is_structural or node.get('properties'):
            return False
        return node.get('type') in (None, 'object') and not node.keys() & {'const', 'enum'}

    def is_always_null(self, name: str) -> bool:
        """Check whether the root has this field, but with no other value than null."""
        nodes = [(variant.get('properties') or {}).get(name) for variant in self._list_variants(self._root)]
        variants = [variant for node in nodes if node is not None for variant in self._list_variants(node)]
        return bool(variants) and all(variant.get('type') == 'null' for variant in variants)

    def find_strangers(self, value: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        """Yield the paths of the fields in the value that the schema does not have, without those in lists."""
        for key, each in value.items():
            place = (*path, key)
            if not self._is_known(place):
                yield place
            elif isinstance(each, Mapping) and place[0] not in _ALWAYS:
                yield from self.find_strangers(each, place)
