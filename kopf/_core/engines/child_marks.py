"""
Marks on the owner of children: the kinds of its children, and a finalizer if the operator must delete some of them.

An annotation lists the kinds, so that the children of a kind are pruned even if a newer version of the operator does
not name the kind any more. Children without an owner reference are not deleted by the garbage collector. They need
a finalizer: the operator deletes them before the owner. Both marks are written before the first child of a kind is
created: otherwise, a crash in between would leave a child that the operator cannot find again.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from kopf._cogs.structs.finalizers import append_finalizer, remove_finalizer
from kopf._cogs.structs.patches import Patch
from kopf._cogs.structs.references import Resource

ANNOTATION_PREFIX: Final = 'children.kopf.zalando.org'
"""
The prefix of the annotation, before the name of the operator.

With such a prefix, the annotation is excluded from the essence of the object, so handlers do not see it as a change.
"""

FINALIZER_PREFIX: Final = 'kopf.dev/children-'
"""The prefix of the finalizer, before the name of the operator."""

_REMOTE: Final = '*/'


class ChildKind(NamedTuple):
    """A kind of children in the annotation of the owner."""

    group: str
    version: str
    plural: str
    is_remote: bool
    """Whether there are, or were, children of this kind that the garbage collector does not delete."""

    def __str__(self) -> str:
        names = [self.group, self.version, self.plural] if self.group else [self.version, self.plural]
        return (_REMOTE if self.is_remote else '') + '/'.join(names)

    @classmethod
    def parse(cls, text: str) -> 'ChildKind | None':
        """Return the kind from its text in the annotation; ``None`` if the text is malformed."""
        names = text.removeprefix(_REMOTE).split('/')
        if len(names) not in (2, 3) or not all(names):
            return None
        group, version, plural = names if len(names) == 3 else ('', *names)
        return cls(group, version, plural, text.startswith(_REMOTE))

    @classmethod
    def of(cls, resource: Resource, *, is_remote: bool) -> 'ChildKind':
        """Return the kind of the resource."""
        return cls(resource.group, resource.version, resource.plural, is_remote)

    def is_of(self, resource: Resource) -> bool:
        """Check whether this is the kind of the resource, in any version."""
        return (self.group, self.plural) == (resource.group, resource.plural)

    def get_resource(self, *, namespaced: bool) -> Resource:
        """Return a resource that is sufficient for requests."""
        return Resource(self.group, self.version, self.plural, namespaced=namespaced)


def read_kinds(raw: Mapping[str, Any], operator: str) -> frozenset[ChildKind]:
    """Return the kinds from the annotation of the owner."""
    text = (raw['metadata'].get('annotations') or {}).get(f'{ANNOTATION_PREFIX}/{operator}') or ''
    return frozenset(kind for kind in map(ChildKind.parse, text.split(',')) if kind is not None)


def has_finalizer(raw: Mapping[str, Any], operator: str) -> bool:
    """Check whether the owner has the finalizer."""
    # Why the type? Servers of aggregated APIs can have bugs, and all objects in deletion are checked.
    finalizers = raw['metadata'].get('finalizers')
    return isinstance(finalizers, list) and FINALIZER_PREFIX + operator in finalizers


def is_marked(raw: Mapping[str, Any], kinds: Collection[ChildKind], operator: str) -> bool:
    """Check whether the owner has the marks for children of these kinds."""
    is_held = has_finalizer(raw, operator) or not any(kind.is_remote for kind in kinds)
    return is_held and read_kinds(raw, operator).issuperset(kinds)


def make_patch(kinds: Iterable[ChildKind], operator: str, *, holding: bool) -> Patch:
    """Return the patch of the owner that sets these kinds, and adds the finalizer if it is needed."""
    text = ','.join(sorted(map(str, kinds)))
    values = {'metadata': {'annotations': {f'{ANNOTATION_PREFIX}/{operator}': text or None}}}
    return Patch(values, fns=[append_finalizer(FINALIZER_PREFIX + operator)] if holding else [])


def make_release(operator: str) -> Patch:
    """Return the patch of the owner that removes the finalizer."""
    return Patch(fns=[remove_finalizer(FINALIZER_PREFIX + operator)])


def find_dropped(kinds: Collection[ChildKind], served: Collection[Resource]) -> list[ChildKind]:
    """Return the kinds from the annotation that no handler names any more."""
    return sorted(kind for kind in kinds if not any(kind.is_of(resource) for resource in served))
