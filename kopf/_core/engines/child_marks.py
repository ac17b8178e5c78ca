"""
Marks on the owner of children: the kinds of its children, and a finalizer if the operator must delete some of them.

An annotation lists the kinds, so that the children of a kind are pruned even if a newer version of the operator does
not name the kind any more. Children without an owner reference are not deleted by the garbage collector. They need
a finalizer: the operator deletes them before the owner. Both marks are written before the first child of a kind is
created: otherwise, a crash in between would leave a child that the operator cannot find again.
"""

import functools
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
    return _parse_kinds(text)


# Thousands of owners have the same text, so they share one set in memory.
@functools.lru_cache(maxsize=128)
def _parse_kinds(text: str) -> frozenset[ChildKind]:
    return frozenset(kind for kind in map(ChildKind.parse, text.split(',')) if kind is not None)


def has_finalizer(raw: Mapping[str, Any], operator: str) -> bool:
    """Check whether the owner has the finalizer."""
    # Why the type? Servers of aggregated APIs can have bugs, and all objects in deletion are checked.
    finalizers = raw['metadata'].get('finalizers')
    return isinstance(finalizers, list) and FINALIZER_PREFIX + operator in finalizers


def is_marked(raw: Mapping[str, Any], kinds: Collection[ChildKind], operator: str) -> bool:
    """Check whether the owner has the marks for children of these kinds."""
    if any(kind.is_remote for kind in kinds) and not has_finalizer(raw, operator):
        return False
    marked = read_kinds(raw, operator)
    return all(is_covered(kind, marked) for kind in kinds)


def is_covered(kind: ChildKind, kinds: Collection[ChildKind]) -> bool:
    """Check whether the children of this kind are found by one of these kinds."""
    return kind in kinds or (not kind.is_remote and kind._replace(is_remote=True) in kinds)


def merge_kinds(*groups: Iterable[ChildKind]) -> frozenset[ChildKind]:
    """Return the kinds of all groups, except for local kinds that are in a group as remote kinds, too."""
    kinds = frozenset().union(*groups)
    return frozenset(kind for kind in kinds if kind.is_remote or kind._replace(is_remote=True) not in kinds)


class OwnerMarks:
    """
    The kinds of children for which one owner must have marks, whichever of its handlers applies them.

    All handlers share one annotation and one finalizer. If each handler remembered and wrote only its own kinds, it
    would remove those of the others.
    """

    __slots__ = ('_is_missed', '_kinds', '_operator')

    def __init__(self, operator: str) -> None:
        self._operator = operator
        self._kinds: frozenset[ChildKind] = frozenset()
        self._is_missed = False  # whether it is known already that the owner does not have the marks

    def recall(self, raw: Mapping[str, Any]) -> frozenset[ChildKind]:
        """Remember the kinds in the annotation of the owner, too; return all kinds, known from there or from before."""
        marked = read_kinds(raw, self._operator)
        kinds = merge_kinds(self._kinds, marked)
        self._kinds = marked if kinds == marked else kinds  # the former one is shared
        return self._kinds

    def begin_writing(self, kinds: frozenset[ChildKind]) -> None:
        """Called before the marks for these kinds, and for no others, are written."""
        # The annotation can be written before the finalizer. It is no loss that the state in between lacks the latter.
        self._kinds, self._is_missed = kinds, True

    def end_writing(self) -> None:
        """Called when the marks were written."""
        self._is_missed = False

    def note_state(self, raw: Mapping[str, Any]) -> bool:
        """Called with each new state of the owner; return whether it lacks marks that the former state had."""
        # Why is each loss reported only once? A webhook could remove the marks at each patch that restores them.
        was_missed, self._is_missed = self._is_missed, not is_marked(raw, self._kinds, self._operator)
        return self._is_missed and not was_missed


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
