"""
Kubernetes objects: their raw form from the API, their views for handlers, and their essential parts.

The raw forms are typed dicts, i.e. only for type checkers; at runtime, they are dicts of the JSON parser.
`Body` and its parts are live views of the raw form: daemons hold them as long as the object lives & see its new states.
The parts of a body are created on the first access, because most bodies are only matched and dropped.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, TypedDict, cast, overload

from kopf._cogs.structs import dicts

Labels: TypeAlias = Mapping[str, str]
Annotations: TypeAlias = Mapping[str, str]

RawInputType: TypeAlias = Literal[None, 'ADDED', 'MODIFIED', 'DELETED', 'BOOKMARK', 'ERROR']
RawEventType: TypeAlias = Literal[None, 'ADDED', 'MODIFIED', 'DELETED', 'BOOKMARK']


class RawMeta(TypedDict, total=False):
    """The metadata of an object, as the API shows it."""

    uid: str
    name: str
    namespace: str
    labels: dict[str, str]
    annotations: dict[str, str]
    finalizers: list[str]
    resourceVersion: str
    deletionTimestamp: str
    creationTimestamp: str
    selfLink: str


class RawBody(TypedDict, total=False):
    """An object, as the API shows it. Kinds can have other top-level fields too."""

    apiVersion: str
    kind: str
    metadata: RawMeta
    spec: dict[str, Any]
    status: dict[str, Any]


class RawError(TypedDict, total=False):
    """An error inside of a watch-stream."""

    apiVersion: str
    kind: str
    metadata: dict[Any, Any]
    code: int
    reason: str
    status: str
    message: str


class RawInput(TypedDict):
    """Any item of a watch-stream."""

    type: RawInputType
    object: RawBody | RawError


class RawEvent(TypedDict):
    """An event about an object; the type is ``None`` for objects of the initial list."""

    type: RawEventType
    object: RawBody


class MetaEssence(TypedDict, total=False):
    """The part of the metadata that is compared to detect changes."""

    labels: dict[str, str]
    annotations: dict[str, str]


class BodyEssence(TypedDict, total=False):
    """The part of an object that is compared to detect changes: without the fields that systems and operators write."""

    metadata: MetaEssence
    spec: dict[str, Any]
    status: dict[str, Any]


class ObjectReference(TypedDict, total=False):
    """A reference from an Event to the object that it is about."""

    apiVersion: str
    kind: str
    namespace: str | None
    name: str
    uid: str


class OwnerReference(TypedDict, total=False):
    """A reference from a child to its owner, for the garbage collection."""

    controller: bool
    blockOwnerDeletion: bool
    apiVersion: str
    kind: str
    name: str
    uid: str


def _cell_of(src: 'Body | Mapping[str, Any]') -> dicts.Cell:
    return src._cell if isinstance(src, dicts.MappingView) else [src]


class _Part(dicts.MappingView[str, Any]):
    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._detached(),)


class Spec(_Part):
    """The spec of a body; empty if there is none."""

    __slots__ = ()

    def __init__(self, src: 'Body', /) -> None:
        self._cell, self._path = src._cell if type(src) is Body else _cell_of(src), ('spec',)


class Status(_Part):
    """The status of a body; empty if there is none."""

    __slots__ = ()

    def __init__(self, src: 'Body', /) -> None:
        self._cell, self._path = src._cell if type(src) is Body else _cell_of(src), ('status',)


class Meta(_Part):
    """The metadata of a body, with shortcuts to the fields that are used most; ``None`` or empty if absent."""

    __slots__ = ('_labels', '_annotations')

    def __init__(self, src: 'Body', /) -> None:
        self._cell, self._path = src._cell if type(src) is Body else _cell_of(src), ('metadata',)
        self._labels: dicts.MappingView[str, str] | None = None
        self._annotations: dicts.MappingView[str, str] | None = None

    @property
    def labels(self) -> Labels:
        """The labels; empty if absent."""
        view = self._labels
        if view is None:
            view = self._labels = dicts.MappingView._of(self._cell, ('metadata', 'labels'))
        return view

    @property
    def annotations(self) -> Annotations:
        """The annotations; empty if absent."""
        view = self._annotations
        if view is None:
            view = self._annotations = dicts.MappingView._of(self._cell, ('metadata', 'annotations'))
        return view

    @property
    def uid(self) -> str | None:
        """The unique id of the object; it differs from that of a deleted object with the same name."""
        return self._data().get('uid')

    @property
    def name(self) -> str | None:
        """The name; absent only before the creation, if the API server generates it."""
        return self._data().get('name')

    @property
    def namespace(self) -> str | None:
        """The namespace; absent in cluster-scoped objects."""
        return self._data().get('namespace')

    @property
    def creation_timestamp(self) -> str | None:
        """The time of creation as the API shows it: ISO 8601."""
        return self._data().get('creationTimestamp')

    @property
    def deletion_timestamp(self) -> str | None:
        """The time when the deletion was requested, as the API shows it: ISO 8601; absent if it was not requested."""
        return self._data().get('deletionTimestamp')


class Body(dicts.ReplaceableMappingView[str, Any]):
    """An object, with shortcuts to its main parts; all of them show the newest state known to the body's owner."""

    __slots__ = ('_meta', '_spec', '_status')

    def __init__(self, src: Mapping[str, Any] | RawBody | BodyEssence, /) -> None:
        self._cell = [src]  # why not super()? A body is created for every event, and the call would be slower
        self._path = ()
        self._meta: Meta | None = None
        self._spec: Spec | None = None
        self._status: Status | None = None

    # These do the same as the inherited methods, but faster: a body has no path, and these methods are used most.
    def _data(self) -> Mapping[str, Any]:
        return self._cell[0]

    def __getitem__(self, key: str, /) -> Any:
        return self._cell[0][key]

    @overload
    def get(self, key: str, /) -> Any | None: ...

    @overload
    def get(self, key: str, /, default: Any) -> Any: ...

    def get(self, key: str, /, default: Any = None) -> Any:
        return self._cell[0].get(key, default)

    @classmethod
    def living_in(cls, cell: dicts.Cell, /) -> 'Body':
        """Create a body that always shows the current state in the cell."""
        body = cls({})
        body._cell = cell
        return body

    @property
    def metadata(self) -> Meta:
        """The metadata of the object."""
        view = self._meta
        if view is None:
            view = self._meta = Meta(self)
        return view

    @property
    def meta(self) -> Meta:
        """The metadata of the object, in short."""
        return self.metadata

    @property
    def spec(self) -> Spec:
        """The spec of the object."""
        view = self._spec
        if view is None:
            view = self._spec = Spec(self)
        return view

    @property
    def status(self) -> Status:
        """The status of the object."""
        view = self._status
        if view is None:
            view = self._status = Status(self)
        return view


def is_older_version(version: str, other: str | None) -> bool:
    """Check whether a resource version is older than another one; false if they cannot be compared."""
    # Until Kubernetes 1.35, versions are opaque by definition, so those that are not decimal cannot be compared.
    return other is not None and version.isdecimal() and other.isdecimal() and int(version) < int(other)


def build_object_reference(body: Body) -> ObjectReference:
    """Build a reference to the object, e.g. for Events about it, without unknown fields."""
    return shorten_reference(build_full_reference(body))


def build_full_reference(body: Body) -> Mapping[str, str | None]:
    """Build a reference to the object for the log: always with the same keys, so that log parsers can rely on them."""
    data = body._data() if type(body) is Body else body  # a shortcut, as it is called for nearly each event
    meta = data.get('metadata') or {}
    return {
        'apiVersion': data.get('apiVersion'),
        'kind': data.get('kind'),
        'name': meta.get('name'),
        'uid': meta.get('uid'),
        'namespace': meta.get('namespace'),
    }


def shorten_reference(ref: Mapping[str, str | None]) -> ObjectReference:
    """Remove unknown fields from a reference."""
    # Most references are complete, and need no copy.
    return cast(ObjectReference, ref if all(ref.values()) else {key: val for key, val in ref.items() if val})


def build_owner_reference(
    body: Body,
    *,
    controller: bool | None = True,
    block_owner_deletion: bool | None = True,
) -> OwnerReference:
    """
    Build a reference to the object as an owner of its children, for their ``metadata.ownerReferences``.

    Args:
        body: the owner.
        controller: whether the owner is the managing controller of the child; ``None`` omits the field.
        block_owner_deletion: whether the child blocks the owner's foreground deletion; ``None`` omits the field.
    """
    meta = body.get('metadata') or {}
    ref = {
        'controller': controller,
        'blockOwnerDeletion': block_owner_deletion,
        'apiVersion': body.get('apiVersion'),
        'kind': body.get('kind'),
        'name': meta.get('name'),
        'uid': meta.get('uid'),
    }
    return cast(OwnerReference, {key: val for key, val in ref.items() if val is not None})
