"""
Relations between objects: which objects must be reconciled when an object of another resource changes.

They are found by the owner references of the changed object, or by a function of the user. The memory has the version
of each object and the keys of its dependents; it has the whole object only if the handler reads or applies children.
When an object changes, both its former and its new dependents are triggered. Why not call the function again with the
old object? All old objects would be kept in memory, and the function could return other keys than before, because it
can use an index, for example. If the index changes, the remembered keys become outdated. This does no harm while the
object exists, because the objects in the index trigger the handler themselves. But when the object is deleted, the
function is called once more to get the current keys.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from kopf._cogs.helpers.explanations import INTERRUPTIONS, name_error
from kopf._cogs.structs.references import Resource
from kopf._core.actions.execution import Logger
from kopf._core.engines.adoption import GroupKind, find_owners
from kopf._core.engines.owned_objects import OwnedObjects
from kopf._core.intents import mistakes
from kopf._core.intents.causes import TYPED_GETTERS, ResourceCause
from kopf._core.intents.filters import FilterError
from kopf._core.intents.handlers import ResourceHandler, Source, find_typed

Key = str | tuple[str | None, str]
"""The uid of an owner; or a namespace and a name from a function of the user."""

NO_KEYS: Final[frozenset[Key]] = frozenset()


class Sighting(NamedTuple):
    """The remembered state of an object that other objects depend on."""

    version: str | None
    keys: frozenset[Key]


def _is_key(pair: object) -> bool:
    """Check whether the value is a pair of a namespace (or ``None``) and a name."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        return False
    namespace, name = pair
    return isinstance(namespace, str | None) and isinstance(name, str)


class MappingError(Exception):
    """Raised if the function of the user has failed, or has not returned a list of keys."""


class Relations:
    """
    The objects of one handler that depend on the objects of one source.

    Args:
        handler: the handler.
        source: the source.
        objects: the memory of the owned objects, if the handler reads or applies them.
    """

    __slots__ = (
        '_failed',
        '_handler',
        '_has_selected',
        '_known',
        '_owners',
        '_typed',
        'is_outdated',
        'objects',
        'resource',
        'source',
    )

    def __init__(self, handler: ResourceHandler, source: Source, objects: OwnedObjects | None = None) -> None:
        self._handler = handler
        self.source = source
        self.objects = objects
        self.resource: Resource | None = None
        """The resource of the source; ``None`` if it is not watched yet."""
        self._owners: set[GroupKind] = set()
        """The kinds of the handler that are, or were, served: a selector can match several of them."""
        self._has_selected = False  # whether objects were ignored, or can have been, for the kinds of their owners
        self.is_outdated = False
        """Whether the objects of owners of some kind were ignored, and must be listed again."""
        self._typed = () if source.fn is None or source.model is None else find_typed(source.fn)
        self._known: dict[str, Sighting] = {}
        self._failed: set[str] = set()  # the uids of the objects whose failures were logged

    def serve(self, resource: Resource) -> None:
        """Called when the resource of the source is found, and is going to be watched."""
        self.resource = resource

    def note_owner(self, resource: Resource) -> None:
        """Called when a resource of the handler is going to be served."""
        kind = resource.group, resource.kind
        # A kind can be found late: its CRD is new, or its group could not be discovered at the start.
        if kind not in self._owners and self._has_selected:
            self.is_outdated = True
        self._owners.add(kind)

    def note_relisting(self) -> None:
        """Called when the objects of the source are going to be listed again."""
        self.is_outdated = False

    def find_owners(self, raw: Mapping[str, Any]) -> frozenset[str]:
        """Return the uids of the owners that the handler can handle; of all owners while it is not served yet."""
        return find_owners(raw, self._owners or None)

    def is_known(self, uid: str) -> bool:
        """Check whether other objects depend on the last known state of the object."""
        return uid in self._known if self.objects is None else uid in self.objects

    def get_keys(self, uid: str) -> Collection[Key]:
        """Return the keys of the objects that depend on the last known state of the object."""
        if self.objects is not None:
            return self.objects.get_owners(uid)
        known = self._known.get(uid)
        return NO_KEYS if known is None else known.keys

    def note(
        self,
        uid: str,
        raw: Mapping[str, Any],
        make_cause: Callable[[], ResourceCause],
        *,
        asked_at: float | None = None,
    ) -> Collection[Key]:
        """Receive the newest state of an object; return the keys of its dependents, including the former ones."""
        if self.objects is not None:
            self._has_selected = self._has_selected or bool(self._owners)
            return self.objects.note(raw, self.find_owners(raw), asked_at)
        former, version = self._known.get(uid), raw['metadata'].get('resourceVersion')
        if former is not None and former.version == version and version is not None:
            return NO_KEYS  # the object was listed again, unchanged
        known = NO_KEYS if former is None else former.keys
        keys = self._find_keys(uid, raw, make_cause, known)
        if keys:
            self._known[uid] = Sighting(version, keys)
        else:
            self._known.pop(uid, None)
        return known | keys

    def remove(self, uid: str, raw: Mapping[str, Any], make_cause: Callable[[], ResourceCause]) -> Collection[Key]:
        """Receive the last state of a deleted object; return the keys of its dependents, including the former ones."""
        keys = NO_KEYS
        if self.source.fn is not None:
            # If the watch has missed the deletion, the state has only the identity of the object. The functions of
            # users do not expect such a state, and can fail.
            is_whole = raw['metadata'].get('resourceVersion') is not None
            keys = self._find_keys(uid, raw, make_cause, NO_KEYS, is_reported=is_whole)
        return frozenset(self.forget(uid)) | keys

    def forget(self, uid: str) -> Collection[Key]:
        """Called when the object is deleted; return the keys of its former dependents."""
        if self.objects is not None:
            return self.objects.forget(uid)
        self._failed.discard(uid)
        former = self._known.pop(uid, None)
        return NO_KEYS if former is None else former.keys

    def _find_keys(
        self,
        uid: str,
        raw: Mapping[str, Any],
        make_cause: Callable[[], ResourceCause],
        known: frozenset[Key],
        *,
        is_reported: bool = True,
    ) -> frozenset[Key]:
        if self.source.fn is None:
            return find_owners(raw)
        cause = make_cause()
        try:
            keys = self._call(cause, self.source.fn)
        except MappingError as error:
            if is_reported:
                self._report(uid, error, cause.logger)
            return known  # a wrong trigger costs one run, a missing one would leave an object unreconciled
        self._failed.discard(uid)
        return keys

    def _call(self, cause: ResourceCause, fn: Callable[..., Any]) -> frozenset[Key]:
        try:
            kwargs = cause.kwargs_of_callback(fn, self._handler)
            typed = [name for name in self._typed if name not in cause.indices]
            kwargs |= {name: TYPED_GETTERS[name](cause, self.source) for name in typed}
            result = fn(**kwargs)
            pairs = [] if result is None else [*result]
        except INTERRUPTIONS:
            raise
        except BaseException as error:
            raise MappingError(f"{FilterError(fn, error).place}) failed: {name_error(error)}") from error
        for pair in pairs:
            if not _is_key(pair):
                raise MappingError(
                    f"{mistakes.locate(fn)}) must return a list of pairs of a namespace and a name, not {result!r}"
                )
        return frozenset((namespace or None, name) for namespace, name in pairs)

    def _report(self, uid: str, error: MappingError, logger: Logger) -> None:
        if uid not in self._failed:
            self._failed.add(uid)
            title = f"watches= of {self._handler.kind.lower()} {self._handler.id!r}"
            logger.error("%s (%s. Its former result is used until the object changes.", title, error)
