"""
Managed fields: the owners of an object's fields, and their effect on server-side apply.

The records are kept in the form of the API, so that objects need no conversion for reading and writing. A write without
changes does not change the records. An update takes the ownership of the fields that it changes from all other
managers. A server-side apply takes fields from other managers only with force, and removes the fields that its manager
no longer applies.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kopf._kits.testing.kinds.shapes import Shape
from kopf._kits.testing.merging import fieldsets, typed
from kopf._kits.testing.merging.fieldsets import EMPTY, FieldSet
from kopf._kits.testing.wire import statuses, timestamps

Body = dict[str, Any]
ShapeOf = Callable[[str], Shape | None]
"""Returns the shape of the objects of an API version; None if it is not served."""

APPLY, UPDATE = 'Apply', 'Update'
MOST_UPDATERS = 10
"""The maximal number of records of updates in an object; the oldest ones are merged."""
ANCIENT, BEFORE_APPLY = 'ancient-changes', 'before-first-apply'

UNOWNED: FieldSet = {
    'f:apiVersion': EMPTY,
    'f:kind': EMPTY,
    'f:metadata': dict.fromkeys(
        map(
            fieldsets.field,
            (
                'name',
                'namespace',
                'creationTimestamp',
                'selfLink',
                'uid',
                'clusterName',
                'generation',
                'managedFields',
                'resourceVersion',
            ),
        ),
        EMPTY,
    ),
}
"""The fields that have no owner."""
DROPPED = ('deletionTimestamp', 'deletionGracePeriodSeconds')
"""The fields of new objects that the API server drops."""


@dataclasses.dataclass(slots=True)
class Record:
    """One manager's entry in the managed fields of an object."""

    manager: str
    operation: str
    api_version: str
    subresource: str
    time: str
    fields: FieldSet

    @property
    def identity(self) -> tuple[str, ...]:
        """The key of the record's manager; for appliers, it does not include the version."""
        return self.manager, self.operation, self.subresource, self.api_version if self.operation == UPDATE else ''

    def is_of(self, other: 'Record') -> bool:
        """Check whether both records belong to the same manager."""
        return self.identity == other.identity

    def encoded(self) -> dict[str, Any]:
        """Return the record in the form of the API."""
        record: dict[str, Any] = {
            'manager': self.manager,
            'operation': self.operation,
            'apiVersion': self.api_version,
            'time': self.time,
            'fieldsType': 'FieldsV1',
            'fieldsV1': self.fields,
            'subresource': self.subresource,
        }
        return {key: value for key, value in record.items() if value or key == 'fieldsV1'}


@dataclasses.dataclass(slots=True, frozen=True)
class Writer:
    """The manager of a write, with the version and the subresource; the manager cannot own the ``ignored`` fields."""

    manager: str
    api_version: str
    shape: Shape
    shape_of: ShapeOf
    subresource: str = ''
    ignored: FieldSet = dataclasses.field(default_factory=dict)

    def record(self, operation: str, fields: FieldSet = EMPTY) -> Record:
        """Return a record of this writer without a time."""
        return Record(self.manager, operation, self.api_version, self.subresource, '', fields)

    def owned(self, fields: FieldSet) -> FieldSet:
        """Return the fields that the writer can own."""
        fields = _of_contents(fields)
        return fieldsets.without(fields, self.ignored) if self.ignored else fields


class Conflicted(Exception):
    """Raised when other managers own applied fields; ``conflicts`` lists them with the records of the owners."""

    def __init__(self, conflicts: list[tuple[Record, FieldSet]]) -> None:
        super().__init__(f'conflicts with {len(conflicts)} managers')
        self.conflicts = conflicts


def manager_name(given: str, agent: str) -> str:
    """Return the name of the manager: the given one, or else the first word of the user agent."""
    if given:
        return given
    return ''.join(char for char in agent.partition('/')[0] if char.isprintable())[:128] or 'unknown'


def reset(given: Any, shape: Shape) -> bool:
    """Check whether a client requests to drop all records: for built-in kinds only, by an empty list."""
    return given == [{}] or given == [] and bool(shape.name)


def decode(given: Any) -> list[Record] | None:
    """Return the decoded records, the last one of each manager; None if they cannot be decoded."""
    records: dict[tuple[str, ...], Record] = {}
    if not isinstance(given, list | None):
        return None
    for entry in given or ():
        if not isinstance(entry, Mapping) or entry.get('operation') not in (APPLY, UPDATE):
            return None
        if entry.get('fieldsType') != 'FieldsV1' or not isinstance(fields := entry.get('fieldsV1') or {}, Mapping):
            return None
        record = Record(
            entry.get('manager') or '',
            entry['operation'],
            entry.get('apiVersion') or '',
            entry.get('subresource') or '',
            entry.get('time') or '',
            fields,
        )
        records[record.identity] = record
    return [*records.values()]


def created(body: Body, writer: Writer) -> None:
    """Make the writer the owner of all fields of a new object, except dropped fields and nulls of required fields."""
    new = _ownable(body)
    for key in DROPPED:
        new['metadata'].pop(key, None)
    nulls = {key: None for key, value in body.items() if value is None} if writer.shape.name else {}
    blank = {**nulls, **writer.shape.blank}
    comparison = typed.Comparison(blank, new, writer.shape)
    fields = writer.owned(comparison.changed)
    _store(body, [dataclasses.replace(writer.record(UPDATE, fields), time=timestamps.now())] if fields else [])


def updated(body: Body, old: Body, writer: Writer, given: Any = None) -> None:
    """Make the writer the owner of all changed fields; ``given`` are the records that the client has sent."""
    stored = old['metadata'].get('managedFields')
    records: list[Record] | None = None
    if given is not None and given != stored:
        if reset(given, writer.shape):
            body['metadata'].pop('managedFields', None)
            return
        records = decode(given) or None
        stored = None if records is not None else stored
    before, after = _ownable(old), _ownable(body)
    comparison = typed.Comparison(before, after, writer.shape)
    if not comparison.changed and not comparison.removed and stored is not None:
        # A write of the scale can leave two records of one manager. As on a real server, the next write drops the first
        # one.
        decoded = decode(stored) or []
        body['metadata']['managedFields'] = stored if len(decoded) == len(stored) else encode(decoded)
        return
    if records is None:
        if not stored:  # The fields of this object are not tracked until a client applies something.
            body['metadata'].pop('managedFields', None)
            return
        records = decode(stored) or []
    if comparison.changed or comparison.removed:
        mine = writer.record(UPDATE, writer.owned(comparison.changed))
        _take(records, _comparisons(before, after, writer, comparison))
        if mine.fields:
            present = next((record for record in records if record.is_of(mine)), None)
            if present is None:
                records.append(present := mine)
            present.fields = fieldsets.union(present.fields, mine.fields)
            present.time = timestamps.now()
    _store(body, _capped([record for record in records if record.fields]))


def applied(live: Body | None, config: Body, writer: Writer, force: bool) -> Body:
    """
    Return the live object with the configuration applied to it, and with its new managed fields.

    The result shares parts with both of them.

    Raises:
        Conflicted: Other managers own some of the fields, and ``force`` is not set.
    """
    shape = writer.shape
    present = live or {}
    records = decode(present.get('metadata', {}).get('managedFields')) or []
    if live is not None and not records:
        comparison = typed.Comparison(shape.blank, _ownable(live), shape)
        records.append(
            Record(
                BEFORE_APPLY,
                UPDATE,
                writer.api_version,
                writer.subresource,
                timestamps.now(),
                writer.owned(comparison.changed),
            )
        )
    wanted = typed.fields_of(config, shape)
    mine = writer.record(APPLY, writer.owned(fieldsets.without(wanted, UNOWNED)))
    last = next((record for record in records if record.is_of(mine)), None)
    others = [record for record in records if record is not last]
    merged = typed.merge(present, config, shape)
    if last is not None and last.fields:
        mine.time = last.time
        for record in others:
            wanted = fieldsets.union(wanted, record.fields)
        merged = _pruned(merged, last, wanted, writer)
    before, after = _ownable(present), _ownable(merged)
    comparison = typed.Comparison(before, after, shape)
    comparison.ignore(writer.ignored)
    comparisons = _comparisons(before, after, writer, comparison)
    conflicts = [
        (record, shared)
        for record in others
        if (found := comparisons(record)) is not None
        and (shared := fieldsets.intersection(record.fields, found.changed))
    ]
    if conflicts and not force:
        raise Conflicted(conflicts)
    _take(others, comparisons)
    if comparison.changed or comparison.removed:
        mine.time = timestamps.now()
    result = {**merged, 'metadata': dict(merged['metadata'])}
    _store(result, [record for record in (*others, mine) if record.fields])
    return result


def same_but_times(one: Any, another: Any) -> bool:
    """Check whether two versions of managed fields are equal except for their times."""
    return _timeless(one) == _timeless(another)


def conflict(conflicts: Iterable[tuple[Record, FieldSet]]) -> statuses.Refusal:
    """Return a 409: other managers own applied fields."""
    by_owner: dict[str, list[str]] = {}
    causes = []
    for record, fields in sorted(conflicts, key=lambda item: _words(item[0])):
        for path in fieldsets.members(fields):
            by_owner.setdefault(_words(record), []).append(path)
            causes.append(statuses.Cause(path, 'FieldManagerConflict', f'conflict with {_words(record)}'))
    if len(causes) == 1:
        text = f'1 conflict: {causes[0].message}: {causes[0].field}'
    else:
        listed = [
            line
            for owner, paths in by_owner.items()
            for line in (f'conflicts with {owner}:', *(f'- {path}' for path in paths))
        ]
        text = f'{len(causes)} conflicts: ' + '\n'.join(listed)
    details = {
        'causes': [
            {'reason': cause.reason, 'message': cause.message, 'field': cause.field}
            for cause in sorted(causes, key=lambda cause: cause.field)
        ]
    }
    return statuses.Refusal(409, 'Conflict', f'Apply failed with {text}', details)


def _timeless(records: Any) -> list[Any]:
    return [{**entry, 'time': ''} if isinstance(entry, Mapping) else entry for entry in records or ()]


def _words(record: Record) -> str:
    name = f'"{record.manager}"'
    if record.subresource:
        name += f' with subresource "{record.subresource}"'
    return f'{name} using {record.api_version}' if record.operation == UPDATE else name


def _pruned(merged: Body, last: Record, wanted: FieldSet, writer: Writer) -> Body:
    """Return the object without the fields that its manager has applied before and no manager owns any more."""
    shape = writer.shape_of(last.api_version)
    if shape is None:
        return merged
    everything = typed.with_parents(typed.fields_of(merged, shape), shape)
    was = typed.with_parents(last.fields, shape)
    rest = _fields_of(typed.remove(merged, was, shape), shape)
    kept = fieldsets.union(rest, typed.with_parents(wanted, shape))
    rest = _fields_of(typed.remove(merged, fieldsets.difference(everything, kept), shape), shape)
    gone = fieldsets.intersection(fieldsets.difference(everything, rest), was)
    result: Body = typed.remove(merged, gone, shape)
    return result


def _fields_of(value: Any, shape: Shape) -> FieldSet:
    return typed.with_parents(typed.fields_of(value or {}, shape), shape)


def _comparisons(
    before: Body,
    after: Body,
    writer: Writer,
    own: typed.Comparison,
) -> Callable[[Record], typed.Comparison | None]:
    """Return a function that compares both objects in a record's version; it returns None if that is not served."""
    known: dict[str, typed.Comparison | None] = {writer.api_version: own}

    def find(record: Record) -> typed.Comparison | None:
        if record.api_version not in known:
            shape = writer.shape_of(record.api_version)
            comparison = None if shape is None else typed.Comparison(before, after, shape)
            if comparison is not None:
                comparison.ignore(writer.ignored)
            known[record.api_version] = comparison
        return known[record.api_version]

    return find


def _take(records: list[Record], comparisons: Callable[[Record], typed.Comparison | None]) -> None:
    """Remove the fields that the write has changed or removed from all records."""
    for record in records:
        if (comparison := comparisons(record)) is None:
            record.fields = EMPTY
        else:
            left = fieldsets.difference(record.fields, comparison.changed)
            record.fields = fieldsets.difference(left, comparison.removed)


def _capped(records: list[Record]) -> list[Record]:
    """Return the records; if there are too many updates, merge the oldest ones."""
    updaters = sorted(
        (record for record in records if record.operation == UPDATE),
        key=lambda record: (record.time, record.manager, record.api_version),
    )
    first: dict[str, Record] = {}
    count = len(updaters)
    for record in updaters:
        if count <= MOST_UPDATERS:
            break
        bucket = first.setdefault(record.api_version, record)
        if bucket is record:
            continue
        bucket.manager, bucket.subresource, bucket.time = ANCIENT, '', record.time
        bucket.fields = fieldsets.union(bucket.fields, record.fields)
        records.remove(record)
        count -= 1
    return records


def encode(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return the records in the form and the order of the API."""
    ordered = sorted(
        records,
        key=lambda record: (record.operation, record.time, record.manager, record.api_version, record.subresource),
    )
    return [record.encoded() for record in ordered]


def _store(body: Body, records: list[Record]) -> None:
    if records:
        body['metadata']['managedFields'] = encode(records)
    else:
        body['metadata'].pop('managedFields', None)


_METADATA = frozenset(key[2:] for key in UNOWNED['f:metadata'])


def _ownable(body: Mapping[str, Any]) -> Body:
    """Return the parts of an object that can be owned."""
    found = dict(body)
    found.pop('apiVersion', None)
    found.pop('kind', None)
    found['metadata'] = {key: value for key, value in body.get('metadata', {}).items() if key not in _METADATA}
    return found


def _of_contents(fields: FieldSet) -> FieldSet:
    """Return the same set without the metadata themselves as a member."""
    meta = fields.get('f:metadata')
    if meta is None or (meta and '.' not in meta):
        return fields
    left = dict(fields)
    left['f:metadata'] = {key: below for key, below in meta.items() if key != '.'}
    if not left['f:metadata']:
        del left['f:metadata']
    return left
