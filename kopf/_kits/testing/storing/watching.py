"""
Watches: the changes of one resource as an endless stream of lines.

A watch is a position in the history of its table. When it wakes up, it takes all new changes at once, filters them by
its selector, and sends them in one piece. The lines are encoded once for all watches of a kind. If a slow watch falls
behind the oldest change of the history, it ends with the error that its version has expired.
"""

import asyncio
import dataclasses
import random
from collections.abc import AsyncIterator, Iterable, Sequence

import orjson

from kopf._kits.testing.kinds import defaults
from kopf._kits.testing.kinds.kinds import Kind
from kopf._kits.testing.kinds.storage import Change, Expired, Record, Storage
from kopf._kits.testing.storing.listing import ListOptions
from kopf._kits.testing.storing.representations import Form
from kopf._kits.testing.storing.selectors import Selector
from kopf._kits.testing.wire import statuses

BOOKMARK_INTERVAL = 60.0
LAST_BOOKMARK = 1.0
"""The time between the last bookmark of a watch and its end (seconds)."""
DURATION = 1800.0
"""The minimal duration of a watch without a requested timeout (seconds); the maximum is twice as long."""
CONVERSION_RETRY = 1.0
"""The delay between attempts of a failed conversion of objects (seconds)."""

Event = tuple[str, Record, Change | None]
"""The type of the event, the object, and the change if all watches send the same line for it."""


class Watch:
    """One stream of the changes of a kind, which begins at the version of the options."""

    def __init__(
        self,
        storage: Storage,
        kind: Kind,
        namespace: str,
        options: ListOptions,
        form: Form,
    ) -> None:
        self._storage = storage
        self._kind = kind
        self._namespace = namespace
        self._selector: Selector | None = options.selector or None
        self._options = options
        self._form = form
        self._since = _version(options.version)

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield pieces of the stream, which consist of all lines that are ready; an empty piece after each wake-up."""
        loop = asyncio.get_running_loop()
        table = self._kind.store
        end = loop.time() + (self._options.timeout or DURATION * (1 + random.random()))
        bookmark = self._next_bookmark(end)
        try:
            if self._options.initial_events and self._since > self._storage.version:
                yield error_line(statuses.too_new(self._since, self._storage.version))
                return
            initial = self._initial()
            position = table.position(min(self._since, self._storage.version))
            if initial is not None:
                if not await self._convertible(initial, end):
                    return
                yield self._together(initial)
            while True:
                changes, position = table.changes_from(position)
                events = self._select(changes)
                if self._kind.conversion is not None:
                    events = list(events)
                    if not await self._convertible([record for _, record, _ in events], end):
                        return
                if data := b''.join([self._line(*event) for event in events]):
                    yield data
                if changes:
                    continue
                now = loop.time()
                if table.ended or self._kind.service.ended or now >= end:
                    return
                if now >= bookmark:
                    bookmark = self._next_bookmark(end)
                    # Why not for closed tables? The client would skip the objects of a new resource with this name.
                    if not table.closed:
                        yield self._bookmark(self._storage.version)
                await self._pause(min(end, bookmark))
                yield b''
        except Expired as error:
            message = str(error) if error.version else 'too old resource version: the watch has fallen behind'
            yield error_line(statuses.expired(message))

    def _initial(self) -> list[Record] | None:
        """Return the existing objects, if the watch sends them first."""
        options = self._options
        if self._since and not options.initial_events:
            return None
        if options.initial_events is False:
            self._since = self._storage.version
            return None
        records = [
            record
            for record in self._kind.store.records(self._namespace)
            if self._selector is None or self._selector.matches(record)
        ]
        self._since = self._storage.version
        return records

    def _together(self, records: Iterable[Record]) -> bytes:
        lines = [self._line_of('ADDED', record) for record in records]
        if self._options.initial_events and self._options.bookmarks:
            lines.append(self._bookmark(self._since, {'k8s.io/initial-events-end': 'true'}))
        return b''.join(lines)

    async def _convertible(self, records: Sequence[Record], end: float) -> bool:
        """Wait until the objects can be converted, as a real server does; return whether this happens in time."""
        while True:
            try:
                await self._kind.ready(*records)
                return True
            except statuses.Refusal:
                if self._kind.store.ended or self._kind.service.ended or asyncio.get_running_loop().time() >= end:
                    return False
                await asyncio.sleep(CONVERSION_RETRY)

    def _select(self, changes: Iterable[Change]) -> Iterable[Event]:
        for change in changes:
            record = change.record
            if self._namespace and record.namespace != self._namespace or change.version <= self._since:
                continue
            if self._selector is None:
                yield change.type, record, change
                continue
            before = change.previous is not None and self._selector.matches(change.previous)
            after = change.type != 'DELETED' and self._selector.matches(record)
            if change.type == 'DELETED':
                if before:
                    yield change.type, record, change
            # If an object does not match the selector any more, report it as deleted, in its last matching state.
            elif before and not after and change.previous is not None:
                yield 'DELETED', _renumbered(change.previous, record.version), None
            elif after and not before:
                yield 'ADDED', record, None
            elif after:
                yield change.type, record, change

    def _line(self, type: str, record: Record, change: Change | None) -> bytes:
        if change is None:
            return self._line_of(type, record)
        key = (self._kind, self._form.name)
        if (line := change.lines.get(key)) is None:
            line = change.lines[key] = self._line_of(type, record)
        self._form = self._form.continued()
        return line

    def _line_of(self, type: str, record: Record) -> bytes:
        line = b'{"type":"%s","object":%s}\n' % (type.encode(), self._form.object(self._kind, record))
        self._form = self._form.continued()
        return line

    def _bookmark(self, version: int, annotations: dict[str, str] | None = None) -> bytes:
        meta: dict[str, object] = {'resourceVersion': str(version)}
        if annotations:
            meta['annotations'] = annotations
        kind = self._kind
        body = {'kind': kind.name, 'apiVersion': kind.api_version, **defaults.of(kind), 'metadata': meta}
        line = b'{"type":"BOOKMARK","object":%s}\n' % self._form.raw(kind, orjson.dumps(body))
        self._form = self._form.continued()
        return line

    def _next_bookmark(self, end: float) -> float:
        if not self._options.bookmarks:
            return end + 1
        now = asyncio.get_running_loop().time()
        last = end - LAST_BOOKMARK
        return min(now + BOOKMARK_INTERVAL, last) if now < last else end + 1

    async def _pause(self, until: float) -> None:
        table = self._kind.store
        waiter = table.waiter()
        timer = asyncio.get_running_loop().call_at(until, _finish, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            table.discard(waiter)


def error_line(refusal: statuses.Refusal) -> bytes:
    """Return a refusal as an event of a stream."""
    return b'{"type":"ERROR","object":%s}\n' % orjson.dumps(refusal.as_status())


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _renumbered(record: Record, version: int) -> Record:
    """Return the last state of an object that matched the selector, with the resource version of the next one."""
    body = record.body()
    body['metadata']['resourceVersion'] = str(version)
    return dataclasses.replace(record, version=version, rest=orjson.dumps(body)[1:])


def _version(text: str) -> int:
    try:
        return int(text or 0)
    except ValueError:
        raise statuses.internal(
            f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        ) from None
