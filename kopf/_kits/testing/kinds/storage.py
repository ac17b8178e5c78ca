"""
The storage of the sandbox: the objects, their versions, and the last changes of each resource.

Objects are kept as the JSON text that is sent to clients, without the two fields that differ between API versions
(``apiVersion`` and ``kind``). So a response is a concatenation of bytes, lists and watches serialise each object only
once, and a stored object cannot be changed by accident. A caller that needs the object itself decodes it (some µs).

All writes are synchronous and happen in one event loop, so a read followed by a write needs no locks.
"""

import asyncio
import bisect
import dataclasses
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import orjson

ChangeType = Literal['ADDED', 'MODIFIED', 'DELETED']

FieldsOf = Callable[[Mapping[str, Any]], Mapping[str, str]]
"""Returns the values of an object for field selectors, besides its name and namespace."""


class Expired(Exception):
    """Raised when the requested version is no longer in the history; ``floor`` is the oldest version in it."""

    def __init__(self, version: int, floor: int) -> None:
        super().__init__(f'too old resource version: {version} ({floor})')
        self.version = version
        self.floor = floor


class TableName(NamedTuple):
    """The name of the table with the objects of a resource in all of its versions."""

    group: str
    plural: str


@dataclasses.dataclass(slots=True, frozen=True, eq=False, weakref_slot=True)
class Record:
    """
    One version of one object; ``rest`` is its JSON after the opening brace, without ``apiVersion`` and ``kind``.

    ``stored`` is the API version in which the object was written; see `kopf._kits.testing.resources.converters`.
    """

    namespace: str
    name: str
    uid: str
    version: int
    rest: bytes
    labels: Mapping[str, str]
    fields: Mapping[str, str]
    owners: tuple[str, ...]
    deleting: bool
    stored: str = ''

    @property
    def key(self) -> str:
        """The key in the table, which also defines the order of lists."""
        return f'{self.namespace}/{self.name}' if self.namespace else self.name

    def body(self) -> dict[str, Any]:
        """Return a copy of the object, without ``apiVersion`` and ``kind``; the caller may change it."""
        body: dict[str, Any] = orjson.loads(b'{' + self.rest)
        return body


class Change:
    """One event of the history, with the lines that watches have sent about it, by their kind."""

    __slots__ = ('type', 'record', 'previous', 'lines')

    def __init__(self, type: ChangeType, record: Record, previous: Record | None) -> None:
        self.type = type
        self.record = record
        self.previous = previous
        self.lines: dict[Any, bytes] = {}

    @property
    def version(self) -> int:
        """The resource version of the object after this change."""
        return self.record.version


class Table:
    """All objects of one resource, and its last changes: at least ``history`` of them, at most twice as many."""

    def __init__(self, name: TableName, version: int, history: int, fields_of: FieldsOf | None = None) -> None:
        self.name = name
        self.floor = version
        self.closed = False
        self.ended = False
        self._history = history
        self._fields_of = fields_of
        self._records: dict[str, Record] = {}
        self._keys: list[str] | None = []
        # Why not a deque? Changes are found by bisection, and taken as slices, which are slow in deques.
        self._log: list[Change] = []
        self._dropped = 0
        self._waiting: set[asyncio.Future[None]] = set()

    def __len__(self) -> int:
        return len(self._records)

    def get(self, namespace: str, name: str) -> Record | None:
        """Return the current version of the object, or None."""
        return self._records.get(f'{namespace}/{name}' if namespace else name)

    def contents(self) -> dict[str, Record]:
        """Return a copy of the current objects by their keys."""
        return dict(self._records)

    def records(self, namespace: str = '', *, start: str = '') -> Iterator[Record]:
        """Yield the current objects, or those of one namespace, in the order of lists, beginning with ``start``."""
        yield from _pick(self._records, self._sorted(), namespace, start)

    def records_at(self, version: int, namespace: str = '', *, start: str = '') -> Iterator[Record]:
        """
        Yield the objects as they were at a version in the past.

        Raises:
            Expired: The version is no longer in the history.
        """
        changes = self.changes_after(version)
        if not changes:
            return self.records(namespace, start=start)
        # Why not keep copies of former states? They are rarely requested, and it is fast to undo some changes.
        past = dict(self._records)
        for change in reversed(changes):
            if change.previous is None:
                past.pop(change.record.key, None)
            else:
                past[change.previous.key] = change.previous
        return _pick(past, sorted(past), namespace, start)

    def changes_after(self, version: int) -> list[Change]:
        """
        Return the changes after that version.

        Raises:
            Expired: The version is no longer in the history.
        """
        if version < self.floor:
            raise Expired(version, self.floor)
        return self._log[bisect.bisect_right(self._log, version, key=operator.attrgetter('version')) :]

    def position(self, version: int) -> int:
        """
        Return the position in the history after that version, for `changes_from`.

        Raises:
            Expired: The version is no longer in the history.
        """
        return self._dropped + len(self._log) - len(self.changes_after(version))

    def changes_from(self, position: int) -> tuple[list[Change], int]:
        """
        Return the changes from that position on, and the next position.

        Raises:
            Expired: The changes have been dropped.
        """
        if position < self._dropped:
            raise Expired(0, self.floor)
        return self._log[position - self._dropped :], self._dropped + len(self._log)

    def forget(self) -> None:
        """Drop the whole history, so that no client can continue from an old version."""
        if self._log:
            self._drop(len(self._log))
        self.wake()

    def forget_before(self, version: int) -> None:
        """Refuse all versions below this one, as after a compaction."""
        self.forget()
        self.floor = max(self.floor, version)

    def wake(self) -> None:
        """Wake up all watches, so that they check for new changes, faults, and the end of the table."""
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def waiter(self) -> asyncio.Future[None]:
        """Return a future that is done at the next change; call `discard` with it when it is not awaited any more."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        return future

    def discard(self, future: asyncio.Future[None]) -> None:
        """Forget a future of `waiter`."""
        self._waiting.discard(future)

    def end(self) -> None:
        """End all watches, because the resource is no longer served."""
        self.ended = True
        self.wake()

    def apply(self, type: ChangeType, body: Mapping[str, Any], version: int) -> Change:
        """Write one change; ``body`` already has its new resource version, and may be changed afterwards."""
        meta = body['metadata']
        previous = self.get(meta.get('namespace', ''), meta['name'])
        before = previous.stored if previous is not None else ''
        return self.write(type, self._record(body, version, body.get('apiVersion') or before))

    def write(self, type: ChangeType, record: Record) -> Change:
        """Write one change with a record that already has its new resource version."""
        previous = self._records.get(record.key)
        if type == 'DELETED':
            del self._records[record.key]
        else:
            self._records[record.key] = record
        if type != 'MODIFIED':
            self._keys = None
        change = Change(type, record, previous)
        self._log.append(change)
        if len(self._log) > 2 * self._history:
            self._drop(len(self._log) - self._history)
        self.wake()
        return change

    def load(self, body: Mapping[str, Any], version: int, stored: str) -> Record:
        """Store an object of a former sandbox, without a change in the history."""
        record = self._record(body, version, stored)
        self._records[record.key] = record
        self._keys = None
        return record

    def select(self, fields_of: FieldsOf | None) -> None:
        """Set the function for field selectors."""
        self._fields_of = fields_of
        self.rewrite(lambda body, stored: body)

    def rewrite(self, transform: Callable[[dict[str, Any], str], Mapping[str, Any]]) -> None:
        """
        Rewrite all objects without new resource versions, as after a change of a schema.

        Args:
            transform: Returns the new body of an object; called with its body and the API version that it is stored in.
        """
        for key, record in self._records.items():
            self._records[key] = self._record(transform(record.body(), record.stored), record.version, record.stored)

    def _record(self, body: Mapping[str, Any], version: int, stored: str) -> Record:
        meta = body['metadata']
        rest = orjson.dumps({key: value for key, value in body.items() if key not in ('apiVersion', 'kind')})
        return Record(
            namespace=meta.get('namespace', ''),
            name=meta['name'],
            uid=meta['uid'],
            version=version,
            rest=rest[1:],
            labels=meta.get('labels') or {},
            fields=self._fields_of(body) if self._fields_of is not None else {},
            owners=tuple(owner['uid'] for owner in meta.get('ownerReferences') or ()),
            deleting='deletionTimestamp' in meta,
            stored=stored,
        )

    def _sorted(self) -> list[str]:
        if self._keys is None:
            self._keys = sorted(self._records)
        return self._keys

    def _drop(self, count: int) -> None:
        self.floor = self._log[count - 1].version
        self._dropped += count
        del self._log[:count]


class Storage:
    """All tables, the counter of resource versions, and the index of owner references."""

    def __init__(self, *, history: int = 2000) -> None:
        self.version = 100
        self.observers: list[Callable[[Table, Change], None]] = []
        self._history = history
        self._tables: dict[TableName, Table] = {}
        self._uids: dict[str, tuple[Table, str, str]] = {}
        self._dependents: dict[str, dict[str, tuple[Table, str, str]]] = {}

    def __iter__(self) -> Iterator[Table]:
        return iter(list(self._tables.values()))

    def table(self, group: str, plural: str) -> Table:
        """Return the table of a resource; raise KeyError if it was never opened or has been closed."""
        return self._tables[TableName(group, plural)]

    def open(self, group: str, plural: str, fields_of: FieldsOf | None = None) -> Table:
        """Return the table of a resource; create it if it does not exist yet."""
        name = TableName(group, plural)
        if name not in self._tables:
            self._tables[name] = Table(name, self.version, self._history, fields_of)
        return self._tables[name]

    def close(self, group: str, plural: str) -> Table | None:
        """Forget a resource with its history; return its table, so that the caller can end its watches."""
        table = self._tables.pop(TableName(group, plural), None)
        if table is not None:
            table.closed = True
        return table

    def commit(self, table: Table, type: ChangeType, body: dict[str, Any]) -> Change:
        """Write one change with the next resource version, which is also set in ``body``."""
        self.version += 1
        body['metadata']['resourceVersion'] = str(self.version)
        return self._tell(table, table.apply(type, body, self.version))

    def bring_back(self, table: Table, type: ChangeType, record: Record) -> None:
        """Write a former state of an object again, with the next resource version."""
        old, new = b'"resourceVersion":"%d"' % record.version, b'"resourceVersion":"%d"' % (self.version + 1)
        if record.rest.count(old) != 1:  # The text of the old version also occurs elsewhere in the object.
            self.commit(table, type, {**record.body(), 'apiVersion': record.stored})
            return
        self.version += 1
        self._tell(
            table,
            table.write(type, dataclasses.replace(record, version=self.version, rest=record.rest.replace(old, new))),
        )

    def load(self, table: Table, body: dict[str, Any], version: int, stored: str) -> None:
        """Store an object of a former sandbox, without an event for watches."""
        record = table.load(body, version, stored)
        self._link(table, Change('ADDED', record, None))

    def owner(self, uid: str) -> Record | None:
        """Return the existing object of that uid, from any table."""
        if (place := self._uids.get(uid)) is None:
            return None
        table, namespace, name = place
        return table.get(namespace, name)

    def place(self, uid: str) -> Table | None:
        """Return the table of the existing object of that uid."""
        found = self._uids.get(uid)
        return found[0] if found is not None else None

    def dependents(self, uid: str) -> list[tuple[Table, Record]]:
        """Return the existing objects whose owner references have that uid."""
        places = self._dependents.get(uid, {}).values()
        found = [(table, table.get(namespace, name)) for table, namespace, name in places]
        return [(table, record) for table, record in found if record is not None and uid in record.owners]

    def _tell(self, table: Table, change: Change) -> Change:
        self._link(table, change)
        for observer in self.observers:
            observer(table, change)
        return change

    def _link(self, table: Table, change: Change) -> None:
        record, previous = change.record, change.previous
        place = (table, record.namespace, record.name)
        for uid in _without(previous.owners if previous is not None else (), record.owners, change.type):
            self._dependents.get(uid, {}).pop(record.uid, None)
            if not self._dependents.get(uid, True):
                del self._dependents[uid]
        if change.type == 'DELETED':
            self._uids.pop(record.uid, None)
            return
        self._uids[record.uid] = place
        for uid in record.owners:
            self._dependents.setdefault(uid, {})[record.uid] = place


def _without(before: Iterable[str], after: Iterable[str], type: ChangeType) -> set[str]:
    return set(before) if type == 'DELETED' else set(before) - set(after)


def _pick(records: Mapping[str, Record], keys: list[str], namespace: str, start: str) -> Iterator[Record]:
    prefix = f'{namespace}/' if namespace else ''
    for index in range(bisect.bisect_left(keys, max(prefix, start)), len(keys)):
        if not keys[index].startswith(prefix):
            return
        yield records[keys[index]]
