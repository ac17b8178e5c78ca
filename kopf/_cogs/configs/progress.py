"""
Storages for the progress of handlers between their attempts, across delays and restarts of the operator.

There is one record per handler and object. Records are independent of each other, so that operators with different
handlers do not interfere. Everything is written to the patch, which is sent when the handling cycle ends; storages send
nothing themselves, except for those of developers, such as a database.
"""

import abc
import datetime
import re
from collections.abc import Collection, Mapping
from typing import Any, Final, TypedDict, cast

from kopf._cogs.configs import storage_formats
from kopf._cogs.structs import bodies, dicts, ids, patches


class ProgressRecord(TypedDict, total=True):
    """
    The progress of one handler on one object. All times are in ISO 8601 with time zones.

    Older records can lack some of the fields, newer ones can have more of them.
    """

    started: str | None
    """The time when the handler was selected for the current cause."""

    stopped: str | None
    """The time when the handler has succeeded or failed permanently."""

    delayed: str | None
    """The time before which the handler is not to be retried."""

    purpose: str | None
    """The reason of handling: ``create``, ``update``, ``delete``, ``resume``."""

    retries: int | None
    """The number of attempts."""

    success: bool | None
    """True if the handler has succeeded."""

    failure: bool | None
    """True if the handler has failed permanently."""

    message: str | None
    """The text of the last error."""

    subrefs: Collection[ids.HandlerId] | None
    """The ids of all sub-handlers of this handler, on all levels."""


_TYPES: Final[Mapping[str, type]] = {
    'started': str,
    'stopped': str,
    'delayed': str,
    'purpose': str,
    'message': str,
    'retries': int,
    'waits': int,
    'success': bool,
    'failure': bool,
    'subrefs': list,
}


_TIMES: Final = frozenset({'started', 'stopped', 'delayed'})
_DIGEST: Final = re.compile('[0-9a-f]{0,12}')

_EXTRAS: Final = ('base', 'carried', 'delay', 'digest', 'edited', 'waits')
"""The fields of records that upstream kopf does not know."""

_EXTRAS_SUFFIX: Final = ':extras'
"""What is appended to the id of a handler for the key of these fields, if they are stored apart from the record."""

_IDENTITY: Final = ('started', 'stopped', 'retries')
"""The fields whose values differ between two records of the same handler."""


class ProgressStorage(storage_formats.StorageStanzaCleaner, metaclass=abc.ABCMeta):
    """
    A base class for all storages of progress.

    Developers can inherit from it to store the progress elsewhere: `fetch`, `store`, `purge` must be implemented. To
    group the writes, collect them there, and make them in `flush`.
    """

    @abc.abstractmethod
    def fetch(self, *, key: ids.HandlerId, body: bodies.Body) -> ProgressRecord | None:
        """Return the record of a handler; `None` if there is none."""
        raise NotImplementedError

    @abc.abstractmethod
    def store(self, *, key: ids.HandlerId, record: ProgressRecord, body: bodies.Body, patch: patches.Patch) -> None:
        """Write the record of a handler, in full, in place of the former one."""
        raise NotImplementedError

    @abc.abstractmethod
    def purge(self, *, key: ids.HandlerId, body: bodies.Body, patch: patches.Patch) -> None:
        """Remove the record of a handler: both the stored one and the one in the patch."""
        raise NotImplementedError

    def touch(self, *, body: bodies.Body, patch: patches.Patch, value: str | None) -> None:
        """Make an inessential change in the object, which causes a new event; `None` undoes the change."""

    def clear(self, *, essence: bodies.BodyEssence) -> bodies.BodyEssence:
        """Remove all traces of the storage from the essence; the given one is not modified (but can be returned)."""
        return essence

    def list_annotations(self, key: ids.HandlerId) -> Collection[str]:
        """Return the annotations in which the record of a handler is stored; none if it is stored elsewhere."""
        return ()

    def purge_unfinished_creations(self, *, body: bodies.Body, patch: patches.Patch) -> None:
        """
        Remove the records that tell that the creation of the object goes on, of whatever handlers.

        Called when it is over: records of handlers that the operator does not have any more would begin it anew when
        a former version of the operator comes back.
        """

    def flush(self) -> None:
        """Complete postponed writes. Called when all records of a handling cycle are written."""


class AnnotationsProgressStorage(
    storage_formats.StorageKeyFormingConvention,
    storage_formats.StorageKeyMarkingConvention,
    ProgressStorage,
):
    """
    A storage in annotations: one annotation per handler, with JSON inside.

    Args:
        prefix: the prefix of the annotations' keys.
        verbose: whether the empty fields are stored as nulls or not stored.
        touch_key: the name of the annotation for dummy changes.
        v1: whether the older form of keys is used too.

    Raises:
        ValueError: if there is no prefix.
    """

    def __init__(
        self,
        *,
        prefix: str = 'kopf.zalando.org',
        verbose: bool = False,
        touch_key: str = 'touch-dummy',
        v1: bool = True,
    ) -> None:
        super().__init__(prefix=prefix, v1=v1)
        self.verbose = verbose
        self.touch_key = touch_key

    def fetch(self, *, key: ids.HandlerId, body: bodies.Body) -> ProgressRecord | None:
        annotations = storage_formats.get_annotations(body)
        if not annotations:
            return None
        for full_key in self.make_keys(key, body=body):
            text = annotations.get(full_key)
            if text is not None:
                try:
                    value = storage_formats.load_json(text)
                except (ValueError, TypeError) as e:
                    storage_formats.warn_of_broken(body, f"the annotation {full_key!r}", f"not JSON: {e}")
                    # The annotation with the other form of the key can still be readable.
                    continue
                record = _check_record(value, body, f"the annotation {full_key!r}")
                if record is not None:
                    return record
        return None

    def store(self, *, key: ids.HandlerId, record: ProgressRecord, body: bodies.Body, patch: patches.Patch) -> None:
        values = {name: value for name, value in record.items() if value is not None or self.verbose}
        text = storage_formats.dump_json(values)
        for full_key in self.make_keys(key, body=body):
            dicts.ensure(patch, ('metadata', 'annotations', full_key), text)
        self._store_marker(prefix=self.prefix, patch=patch, body=body)

    def purge(self, *, key: ids.HandlerId, body: bodies.Body, patch: patches.Patch) -> None:
        annotations = storage_formats.get_annotations(body)
        for full_key in self.make_keys(key, body=body):
            _purge_field(patch, ('metadata', 'annotations', full_key), is_present=full_key in annotations)

    def touch(self, *, body: bodies.Body, patch: patches.Patch, value: str | None) -> None:
        annotations = storage_formats.get_annotations(body)
        for full_key in self.make_keys(self.touch_key, body=body):
            if annotations.get(full_key) != value:
                dicts.ensure(patch, ('metadata', 'annotations', full_key), value)
                self._store_marker(prefix=self.prefix, patch=patch, body=body)

    def clear(self, *, essence: bodies.BodyEssence) -> bodies.BodyEssence:
        annotations = storage_formats.get_annotations(essence)
        if not annotations:
            return storage_formats.clear_empty_stanzas(essence)
        prefix = f'{self.prefix}/'
        kept = {key: value for key, value in annotations.items() if not key.startswith(prefix)}
        if len(kept) < len(annotations):
            essence = {**essence, 'metadata': {**essence['metadata'], 'annotations': kept}}
        return storage_formats.clear_empty_stanzas(essence)

    def list_annotations(self, key: ids.HandlerId) -> Collection[str]:
        return list(self.make_keys(key))

    def purge_unfinished_creations(self, *, body: bodies.Body, patch: patches.Patch) -> None:
        prefix = f'{self.prefix}/'
        for full_key, text in storage_formats.get_annotations(body).items():
            if full_key.startswith(prefix) and _is_unfinished_creation(_load_if_of_edited(text)):
                dicts.ensure(patch, ('metadata', 'annotations', full_key), None)


class StatusProgressStorage(ProgressStorage):
    """
    A storage in the status or in any other field, as a structure: one sub-field per handler.

    The field must be preserved by the schema of the resource (``x-kubernetes-preserve-unknown-fields``).

    Args:
        name: the name of the operator, if several operators handle the same objects.
        field: the field with the records; if it is a string, ``{name}`` in it is replaced.
        touch_field: the field for dummy changes; if it is a string, ``{name}`` in it is replaced.
    """

    def __init__(
        self,
        *,
        name: str = 'kopf',
        field: dicts.FieldSpec = 'status.{name}.progress',
        touch_field: dicts.FieldSpec = 'status.{name}.dummy',
    ) -> None:
        super().__init__()
        self._name = name
        self.field = field
        self.touch_field = touch_field

    @property
    def field(self) -> dicts.FieldPath:
        """The path to the field with the records of all handlers."""
        return self._field

    @field.setter
    def field(self, field: dicts.FieldSpec) -> None:
        self._field = storage_formats.parse_template(field, name=self._name)

    @property
    def touch_field(self) -> dicts.FieldPath:
        """The path to the field for dummy changes."""
        return self._touch_field

    @touch_field.setter
    def touch_field(self, field: dicts.FieldSpec) -> None:
        self._touch_field = storage_formats.parse_template(field, name=self._name)

    def fetch(self, *, key: ids.HandlerId, body: bodies.Body) -> ProgressRecord | None:
        value = dicts.resolve(body, (*self._field, key), None)
        where = f"the field {'.'.join(self._field)!r} under the key {key!r}"
        return None if value is None else _check_record(self._add_extras(value, key, body), body, where)

    def _add_extras(self, value: Any, key: ids.HandlerId, body: bodies.Body) -> Any:
        """Return the record with the fields that are stored apart; without them if they belong to a former record."""
        extras = dicts.resolve(body, (*self._field, key + _EXTRAS_SUFFIX), None)
        if not isinstance(value, Mapping) or not isinstance(extras, Mapping) or extras.get('of') != _identify(value):
            return value
        return {**value, **{name: extras[name] for name in _EXTRAS if name in extras}}

    def store(self, *, key: ids.HandlerId, record: ProgressRecord, body: bodies.Body, patch: patches.Patch) -> None:
        # Why not in the record, as in annotations? The API merges the fields, so the records that upstream kopf writes
        # would keep them. It would store such records again and again, and wait for events that do not come.
        extras = {name: value for name, value in record.items() if name in _EXTRAS and value is not None}
        extras_path = (*self._field, key + _EXTRAS_SUFFIX)
        if extras:
            dicts.ensure(patch, extras_path, {'of': _identify(record), **dict.fromkeys(_EXTRAS), **extras})
        else:
            _purge_field(patch, extras_path, is_present=dicts.resolve(body, extras_path, None) is not None)
        # Why send nulls, too? The API merges the fields into the former record, so omitted fields would keep their
        # values.
        stored = dicts.resolve(body, (*self._field, key), None)
        outdated = [name for name in _EXTRAS if isinstance(stored, Mapping) and name in stored]
        values = {name: value for name, value in record.items() if name not in _EXTRAS}
        dicts.ensure(patch, (*self._field, key), {**dict.fromkeys(outdated), **values})

    def purge(self, *, key: ids.HandlerId, body: bodies.Body, patch: patches.Patch) -> None:
        purged = False
        for name in (key, key + _EXTRAS_SUFFIX):
            path = (*self._field, name)
            is_present = dicts.resolve(body, path, None) is not None
            _purge_field(patch, path, is_present=is_present)
            purged = purged or is_present
        if purged and body.metadata.get('deletionTimestamp') is not None:
            _purge_empty(patch, self._field, body=body)

    def purge_unfinished_creations(self, *, body: bodies.Body, patch: patches.Patch) -> None:
        records = dicts.resolve(body, self._field, None)
        for name, value in records.items() if isinstance(records, Mapping) else ():
            if _is_unfinished_creation(self._add_extras(value, ids.HandlerId(name), body)):
                self.purge(key=ids.HandlerId(name), body=body, patch=patch)

    def touch(self, *, body: bodies.Body, patch: patches.Patch, value: str | None) -> None:
        if dicts.resolve(body, self._touch_field, None) != value:
            dicts.ensure(patch, self._touch_field, value)

    def clear(self, *, essence: bodies.BodyEssence) -> bodies.BodyEssence:
        return storage_formats.clear_empty_stanzas(storage_formats.clear_field(essence, self._field))


class MultiProgressStorage(ProgressStorage):
    """
    Several storages as one: written to all of them, read from the first one that has a record.

    Args:
        storages: the storages, in the order of preference for reading.
    """

    def __init__(self, storages: Collection[ProgressStorage]) -> None:
        super().__init__()
        self.storages = storages

    def fetch(self, *, key: ids.HandlerId, body: bodies.Body) -> ProgressRecord | None:
        for storage in self.storages:
            record = storage.fetch(key=key, body=body)
            if record is not None:
                return record
        return None

    def store(self, *, key: ids.HandlerId, record: ProgressRecord, body: bodies.Body, patch: patches.Patch) -> None:
        for storage in self.storages:
            storage.store(key=key, record=record, body=body, patch=patch)

    def purge(self, *, key: ids.HandlerId, body: bodies.Body, patch: patches.Patch) -> None:
        for storage in self.storages:
            storage.purge(key=key, body=body, patch=patch)

    def touch(self, *, body: bodies.Body, patch: patches.Patch, value: str | None) -> None:
        for storage in self.storages:
            storage.touch(body=body, patch=patch, value=value)

    def clear(self, *, essence: bodies.BodyEssence) -> bodies.BodyEssence:
        for storage in self.storages:
            essence = storage.clear(essence=essence)
        return essence

    def list_annotations(self, key: ids.HandlerId) -> Collection[str]:
        return [name for storage in self.storages for name in storage.list_annotations(key)]

    def purge_unfinished_creations(self, *, body: bodies.Body, patch: patches.Patch) -> None:
        for storage in self.storages:
            storage.purge_unfinished_creations(body=body, patch=patch)

    def flush(self) -> None:
        for storage in self.storages:
            storage.flush()


class _ReadOnlyStatusProgressStorage(StatusProgressStorage):
    # Old operators stored the progress in the status: it is still read and purged, but never written or touched.

    def store(self, *, key: ids.HandlerId, record: ProgressRecord, body: bodies.Body, patch: patches.Patch) -> None:
        pass

    def touch(self, *, body: bodies.Body, patch: patches.Patch, value: str | None) -> None:
        pass


class SmartProgressStorage(MultiProgressStorage):
    """
    The default storage: in annotations; the progress stored by old operators in the status is read and purged.

    Args:
        name: the name of the operator in the status (see `StatusProgressStorage`).
        field: the field in the status with the records.
        touch_key: the name of the annotation for dummy changes.
        touch_field: the field in the status for dummy changes (not used, as nothing is written there).
        prefix: the prefix of the annotations' keys (see `AnnotationsProgressStorage`).
        v1: whether the older form of keys is used too.
        verbose: whether the empty fields are stored as nulls or not stored.
    """

    def __init__(
        self,
        *,
        name: str = 'kopf',
        field: dicts.FieldSpec = 'status.{name}.progress',
        touch_key: str = 'touch-dummy',
        touch_field: dicts.FieldSpec = 'status.{name}.dummy',
        prefix: str = 'kopf.zalando.org',
        v1: bool = True,
        verbose: bool = False,
    ) -> None:
        super().__init__(
            [
                AnnotationsProgressStorage(prefix=prefix, touch_key=touch_key, v1=v1, verbose=verbose),
                _ReadOnlyStatusProgressStorage(name=name, field=field, touch_field=touch_field),
            ]
        )


def _purge_field(patch: patches.Patch, path: dicts.FieldPath, *, is_present: bool) -> None:
    # A null for an absent field would be a needless change, unless this patch already sets the field.
    if is_present:
        dicts.ensure(patch, path, None)
    elif len(patch):
        dicts.remove(patch, path)


def _purge_empty(patch: patches.Patch, path: dicts.FieldPath, *, body: bodies.Body) -> None:
    """
    Remove the field and its parents, too, if the patch leaves them empty.

    This is done only if the object is being deleted. In other objects, the field is usually needed again.
    """
    while len(path) > 1:
        present, removed = dicts.resolve(body, path, None), dicts.resolve(patch, path, None)
        if not isinstance(present, Mapping) or not isinstance(removed, Mapping):
            return
        if not present.keys() <= removed.keys() or any(value is not None for value in removed.values()):
            return
        dicts.ensure(patch, path, None)
        path = path[:-1]


def is_of_edited(record: Mapping[str, Any]) -> bool:
    """Check whether the record belongs to the creation of an object that was edited meanwhile."""
    return record.get('purpose') == 'create' and bool(record.get('edited'))


def _is_unfinished_creation(value: Any) -> bool:
    return isinstance(value, Mapping) and is_of_edited(value)


def _load_if_of_edited(text: str) -> Any:
    # Most records are of other cycles, and need not be parsed.
    try:
        return storage_formats.load_json(text) if '"edited"' in text else None
    except (ValueError, TypeError):
        return None


def _identify(record: Mapping[str, Any]) -> list[Any]:
    return [record.get(name) for name in _IDENTITY]


def _check_record(value: Any, body: bodies.Body, where: str) -> ProgressRecord | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        storage_formats.warn_of_broken(body, where, f"not an object: {value!r:.100}")
        return None
    for name, expected in _TYPES.items():
        field = value.get(name)
        # Compare exact types: `isinstance` would accept true as a number of attempts. Unknown fields can be from newer
        # versions, so they are ignored.
        if field is not None and (type(field) is not expected or (name in _TIMES and not _is_time(str(field)))):
            storage_formats.warn_of_broken(body, where, f"{name} is {field!r:.100}")
            return None
    if not _DIGEST.fullmatch(value.get('digest') or ''):
        storage_formats.warn_of_broken(body, where, f"digest is {value['digest']!r:.100}")
        return None
    if not all(type(subref) is str for subref in value.get('subrefs') or ()):
        storage_formats.warn_of_broken(body, where, f"subrefs are {value['subrefs']!r:.100}")
        return None
    return cast(ProgressRecord, value)


def _is_time(text: str) -> bool:
    try:
        datetime.datetime.fromisoformat(text)
    except ValueError:
        # An empty text counts as no time; see `parse_time` in the states of handlers.
        return not text
    return True
