"""
The last-handled configuration: the state of the object when it was successfully handled for the last time.

Changes are detected by comparing it with the current state. Both are compared only by their essence: without the fields
that Kubernetes and operators write during handling. The comparison is made for every event of every object. So the
essence is not copied: its parts are shared with the body, and are read-only by convention.
"""

import abc
import copy
import functools
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar, Final, cast

from kopf._cogs.configs import digests, storage_formats
from kopf._cogs.structs import bodies, dicts, patches

_INESSENTIAL: Final = frozenset({'apiVersion', 'kind', 'metadata', 'status'})
_ABSENT: Final[Any] = object()
_RESERVE: Final = 16 * 1024  # bytes of annotations that are left for the progress of handlers and for other tools

logger = logging.getLogger(__name__)


class DiffBaseStorage(
    storage_formats.StorageKeyMarkingConvention,
    storage_formats.StorageStanzaCleaner,
    metaclass=abc.ABCMeta,
):
    """
    A base class for all storages of the last-handled configuration.

    Args:
        ignored_fields: the fields that are never essential: if only they change, nothing has changed.

    Raises:
        ValueError: if there is something that is not a field.
    """

    ignored_fields: Collection[dicts.FieldSpec] = ()

    _builds_own: ClassVar[bool] = False
    """True if developers have overridden `build`; cached, as it is needed for every event of every object."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # Why not compare the class? Subclasses that override only other methods can still use the fast way.
        cls._builds_own = not cls.build.__module__.startswith('kopf._cogs.')

    def __init__(self, ignored_fields: Iterable[dicts.FieldSpec] | None = None) -> None:
        super().__init__()
        if isinstance(ignored_fields, str):
            raise ValueError(f"ignored_fields must be a list of fields, even for one field: [{ignored_fields!r}].")
        self.ignored_fields = list(ignored_fields or [])
        if () in [dicts.parse_field(field) for field in self.ignored_fields]:
            raise ValueError("The root cannot be in ignored_fields, as there would be nothing left; name its fields.")

    def build(
        self,
        *,
        body: bodies.Body,
        extra_fields: Iterable[dicts.FieldSpec] | None = None,
    ) -> bodies.BodyEssence:
        """
        Return the essence of the object: a copy, which may be modified.

        It has all fields except for the identification, metadata, and status; but with labels and annotations, except
        for the annotations that operators write for themselves.

        Args:
            body: the object.
            extra_fields: the fields to be added even if they are inessential otherwise, e.g. parts of the status.
        """
        return copy.deepcopy(self._pick(body, extra_fields))

    def build_shared(
        self,
        body: bodies.Body,
        extra_fields: Iterable[dicts.FieldSpec] | None = None,
    ) -> bodies.BodyEssence:
        """
        Return the same faster: the values are shared with the body, and must not be modified.

        It is for the framework only. If developers have overridden `build`, it is called with a copy of the body.
        """
        if self._builds_own:
            # A copy of the body: an overriding method may return parts of the body, and its callers may modify them.
            return self.build(body=bodies.Body(copy.deepcopy(dict(body))), extra_fields=extra_fields)
        return self._pick(body, extra_fields)

    def _pick(self, body: bodies.Body, extra_fields: Iterable[dicts.FieldSpec] | None) -> bodies.BodyEssence:
        essence: dict[str, Any] = {key: value for key, value in body.items() if key not in _INESSENTIAL}
        source = body.get('metadata') or {}
        meta: dict[str, Any] = {}
        if labels := source.get('labels'):
            meta['labels'] = labels
        if annotations := self._filter_annotations(source.get('annotations') or {}):
            meta['annotations'] = annotations
        if meta:
            essence['metadata'] = meta
        # Usually, no fields are removed from the stanzas that were added above, so none of them is empty.
        if not extra_fields and not self.ignored_fields:
            return cast(bodies.BodyEssence, essence)
        for field in extra_fields or ():
            essence = _add_field(essence, body, dicts.parse_field(field))
        for field in self.ignored_fields:
            essence = storage_formats.without(essence, dicts.parse_field(field))
        return storage_formats.clear_empty_stanzas(cast(bodies.BodyEssence, essence))

    def _filter_annotations(self, annotations: Mapping[str, str]) -> Mapping[str, str]:
        kept = {key: value for key, value in annotations.items() if not storage_formats.is_foreign(key)}
        if kept and (marked := self._detect_marked_prefixes(kept)):
            prefixes = tuple(f'{prefix}/' for prefix in marked)
            kept = {key: value for key, value in kept.items() if not key.startswith(prefixes)}
        return kept

    @abc.abstractmethod
    def fetch(self, *, body: bodies.Body) -> bodies.BodyEssence | None:
        """Return the last-handled essence; `None` if the object was never handled."""
        raise NotImplementedError

    def matches(self, *, body: bodies.Body, essence: bodies.BodyEssence) -> bool:
        """
        Check quickly whether the stored essence is the same; return false if that is uncertain without fetching it.

        Most events bring no changes, so this check is sufficient for most of them.
        """
        return False

    @abc.abstractmethod
    def store(self, *, body: bodies.Body, patch: patches.Patch, essence: bodies.BodyEssence) -> None:
        """Add the essence to the patch as the last-handled one."""
        raise NotImplementedError

    def list_annotations(self) -> Collection[str]:
        """Return the annotations that the storage uses; none if it stores the essences elsewhere."""
        return ()


class AnnotationsDiffBaseStorage(storage_formats.StorageKeyFormingConvention, DiffBaseStorage):
    """
    A storage in an annotation, as JSON.

    Kubernetes limits all annotations of an object together to 256 KiB. A longer essence is stored in another
    annotation (with ``-packed`` in the name), with a warning: compressed if that is sufficient, otherwise with
    digests instead of long values, so that changes are detected, but the old values are unknown.

    Args:
        prefix: the prefix of the annotation's key.
        key: the name of the annotation.
        ignored_fields: the fields that are never essential.
        v1: whether the older form of keys is used too.

    Raises:
        ValueError: if there is no prefix, or the ignored fields are wrong.
    """

    def __init__(
        self,
        *,
        prefix: str = 'kopf.zalando.org',
        key: str = 'last-handled-configuration',
        ignored_fields: Iterable[dicts.FieldSpec] | None = None,
        v1: bool = True,
    ) -> None:
        super().__init__(prefix=prefix, v1=v1, ignored_fields=ignored_fields)
        self.key = key

    def _pick(self, body: bodies.Body, extra_fields: Iterable[dicts.FieldSpec] | None) -> bodies.BodyEssence:
        essence = super()._pick(body, extra_fields)
        annotations = storage_formats.get_annotations(essence)
        if annotations:
            for full_key in (*self.make_keys(self.key, body=body), self._make_packed_key(body)):
                if full_key in annotations:
                    essence = storage_formats.clear_field(essence, ('metadata', 'annotations', full_key))
        return essence

    def fetch(self, *, body: bodies.Body) -> bodies.BodyEssence | None:
        annotations = storage_formats.get_annotations(body)
        if not annotations:
            return None
        for full_key in self.make_keys(self.key, body=body):
            text = annotations.get(full_key)
            if text is not None:
                essence = _parse_essence(text, body, f"the annotation {full_key!r}")
                if essence is not None:
                    return essence
        packed_key = self._make_packed_key(body)
        text = annotations.get(packed_key)
        return None if text is None else _unpack_essence(text, body, f"the annotation {packed_key!r}")

    def matches(self, *, body: bodies.Body, essence: bodies.BodyEssence) -> bool:
        annotations = storage_formats.get_annotations(body)
        for full_key in self.make_keys(self.key, body=body):
            text = annotations.get(full_key)
            if text is not None:
                # Like in `fetch`, only the first existing key counts; a broken text is never the same.
                return storage_formats.is_same_json(text, essence)
        return False

    def store(self, *, body: bodies.Body, patch: patches.Patch, essence: bodies.BodyEssence) -> None:
        text = storage_formats.dump_json(essence) + '\n'  # with a newline, kubectl shows it unescaped
        full_keys, packed_key = self.make_keys(self.key, body=body), self._make_packed_key(body)
        # The limit applies to the result, so both the present annotations and those of this patch are counted.
        annotations = storage_formats.get_annotations(body)
        changes = storage_formats.get_annotations(patch)
        room = (
            storage_formats.MAX_ANNOTATIONS_SIZE
            - _RESERVE
            - storage_formats.measure_annotations(
                {**annotations, **changes, **dict.fromkeys(full_keys), packed_key: None}
            )
        )
        values: dict[str, str | None] = dict.fromkeys(full_keys, text)
        # The text is in ASCII, so its length is its size in bytes.
        if sum(len(full_key) + len(text) for full_key in full_keys) > room:
            values = dict.fromkeys(full_keys) | {packed_key: self._pack(text, essence, room - len(packed_key), body)}
        elif packed_key in annotations:
            values[packed_key] = None
        for full_key, value in values.items():
            # Nulls are sent only for present annotations: for absent ones, they would be needless changes.
            if value is not None or full_key in annotations:
                dicts.ensure(patch, ('metadata', 'annotations', full_key), value)
        self._store_marker(prefix=self.prefix, patch=patch, body=body)

    def list_annotations(self) -> Collection[str]:
        return [*self.make_keys(self.key), self._make_packed_key(bodies.Body({}))]

    def _make_packed_key(self, body: bodies.Body) -> str:
        return self.make_v2_key(self.mark_key(f'{self.key}-packed', body=body))

    def _pack(self, text: str, essence: bodies.BodyEssence, room: int, body: bodies.Body) -> str:
        packed = digests.pack(text)
        if len(packed) <= room:
            _warn_of_size(storage_formats.describe_object(body), "it is stored compressed")
            return packed
        _warn_of_size(
            storage_formats.describe_object(body),
            "digests are stored in place of its long values, and handlers will see them as old values",
        )
        return digests.shorten(essence, room, body)


class StatusDiffBaseStorage(DiffBaseStorage):
    """
    A storage in the status or in any other field, as a string with JSON.

    The field must be preserved by the schema of the resource (``x-kubernetes-preserve-unknown-fields``).

    Args:
        name: the name of the operator, for those cases when several operators handle the same objects.
        field: the field to store to; if it is a string, ``{name}`` in it is replaced.
        ignored_fields: the fields that are never essential.

    Raises:
        ValueError: if the ignored fields are wrong.
    """

    def __init__(
        self,
        *,
        name: str = 'kopf',
        field: dicts.FieldSpec = 'status.{name}.last-handled-configuration',
        ignored_fields: Iterable[dicts.FieldSpec] | None = None,
    ) -> None:
        super().__init__(ignored_fields=ignored_fields)
        self._name = name
        self.field = field

    @property
    def field(self) -> dicts.FieldPath:
        """The path to the field with the essence."""
        return self._field

    @field.setter
    def field(self, field: dicts.FieldSpec) -> None:
        self._field = storage_formats.parse_template(field, name=self._name)

    def _pick(self, body: bodies.Body, extra_fields: Iterable[dicts.FieldSpec] | None) -> bodies.BodyEssence:
        return storage_formats.clear_field(super()._pick(body, extra_fields), self._field)

    def fetch(self, *, body: bodies.Body) -> bodies.BodyEssence | None:
        text = dicts.resolve(body, self._field, None)
        return None if text is None else _parse_essence(text, body, f"the field {'.'.join(self._field)!r}")

    def store(self, *, body: bodies.Body, patch: patches.Patch, essence: bodies.BodyEssence) -> None:
        dicts.ensure(patch, self._field, storage_formats.dump_json(essence))


class MultiDiffBaseStorage(DiffBaseStorage):
    """
    Several storages as one: written to all of them, read from the first one that has the essence.

    Args:
        storages: the storages, in the order of preference for reading.
    """

    def __init__(self, storages: Collection[DiffBaseStorage]) -> None:
        super().__init__()
        self.storages = storages

    def _pick(self, body: bodies.Body, extra_fields: Iterable[dicts.FieldSpec] | None) -> bodies.BodyEssence:
        fields = list(extra_fields or ())
        essence = super()._pick(body, fields)
        for storage in self.storages:
            # Let each storage build the essence, because each removes other fields.
            essence = storage.build_shared(bodies.Body(essence), fields)
        return essence

    def fetch(self, *, body: bodies.Body) -> bodies.BodyEssence | None:
        for storage in self.storages:
            essence = storage.fetch(body=body)
            if essence is not None:
                return essence
        return None

    def store(self, *, body: bodies.Body, patch: patches.Patch, essence: bodies.BodyEssence) -> None:
        for storage in self.storages:
            storage.store(body=body, patch=patch, essence=essence)

    def list_annotations(self) -> Collection[str]:
        return [name for storage in self.storages for name in storage.list_annotations()]


def _add_field(essence: dict[str, Any], body: bodies.Body, path: dicts.FieldPath) -> dict[str, Any]:
    if not path or (path[0] not in _INESSENTIAL):
        return essence  # already there
    value = dicts.resolve(body, path, _ABSENT)
    return essence if value is _ABSENT else _with(essence, path, value)


def _with(tree: Mapping[str, Any], path: dicts.FieldPath, value: Any) -> dict[str, Any]:
    key, *rest = path
    child = tree.get(key)
    if rest:
        value = _with(child if isinstance(child, Mapping) else {}, tuple(rest), value)
    return {**tree, key: value}


def _unpack_essence(text: Any, body: bodies.Body, where: str) -> bodies.BodyEssence | None:
    # It is either JSON with digests or a compressed text in Base64, which has no braces.
    if isinstance(text, str) and text.startswith('{'):
        essence = _parse_essence(text, body, where)
        return None if essence is None else cast(bodies.BodyEssence, digests.DigestedEssence(essence))
    try:
        return _parse_essence(digests.unpack(text), body, where)
    except (ValueError, TypeError) as e:
        storage_formats.warn_of_broken(body, where, str(e))
        return None


@functools.lru_cache(maxsize=1024)
def _warn_of_size(who: str, what: str) -> None:
    logger.warning(
        f"The last-handled configuration of {who} does not fit into its annotations, which are limited "
        f"to {storage_formats.MAX_ANNOTATIONS_SIZE} bytes together: {what}. To store it in full, "
        f"use another settings.persistence.diffbase_storage, e.g. kopf.StatusDiffBaseStorage; "
        f"or leave fields out by its ignored_fields=."
    )


def _parse_essence(text: Any, body: bodies.Body, where: str) -> bodies.BodyEssence | None:
    try:
        essence = storage_formats.load_json(text)
    except (ValueError, TypeError) as e:
        storage_formats.warn_of_broken(body, where, f"not JSON: {e}")
        return None
    if essence is not None and not isinstance(essence, dict):
        storage_formats.warn_of_broken(body, where, f"not an object: {essence!r:.100}")
        return None
    return cast(bodies.BodyEssence | None, essence)
