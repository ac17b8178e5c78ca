"""The calls of handlers in a course: which of them run at the same time, and how they end."""

from typing import NamedTuple

from kopf._cogs.structs.instruments import HandlerCall, Instrument

_CONCURRENT = frozenset({'Indexer', 'Webhook', 'Activity', 'Schedule'})
"""Kinds of handlers that have no object, or can be called for the same object several times at once."""

Key = tuple[str, str]
"""The uid of an object, and the id of a handler."""


class Call(NamedTuple):
    """The end of a handler's last call for an object."""

    resource: str
    name: str
    id: str
    outcome: str
    message: str


class CallRecord:
    """All calls of handlers in one course, for all operators that were started in it."""

    def __init__(self) -> None:
        self.last: dict[Key, Call] = {}
        self.overlaps: list[str] = []

    def begin(self, key: Key) -> None:
        """Record the start of a call. The failure of the previous call is forgotten: the handler is retried."""
        self.last.pop(key, None)

    def end(self, key: Key, call: Call) -> None:
        """Record how a call has ended."""
        self.last[key] = call
        if call.outcome == 'succeeded':
            # The framework does not retry sub-handlers that their parent has ceased to declare, e.g. after an edit.
            uid, id = key
            for other in [each for each in self.last if each[0] == uid and each[1].startswith(f'{id}/')]:
                if self.last[other].outcome == 'retried':
                    del self.last[other]

    def overlap(self, call: HandlerCall) -> None:
        """Record that a handler was called while it still ran for the same object."""
        if call.key is not None:
            self.overlaps.append(f'{call.id} of {call.key.resource.plural} {call.key.name}')

    def list_unsuccessful(self, uids: frozenset[str], outcome: str) -> list[Call]:
        """Return the last calls of handlers for existing objects, if they have ended with this outcome."""
        return [call for (uid, _), call in self.last.items() if uid in uids and call.outcome == outcome]


class CallRecorder(Instrument):
    """Records the calls of one operator."""

    def __init__(self, record: CallRecord) -> None:
        self._record = record
        self._running: set[Key] = set()

    def handler_begins(self, call: HandlerCall) -> None:
        """Record the start, and whether the handler runs for the same object already."""
        if (key := _get_key(call)) is not None:
            if key in self._running:
                self._record.overlap(call)
            self._running.add(key)
            self._record.begin(key)

    def handler_ends(self, call: HandlerCall) -> None:
        """Record the end."""
        if (key := _get_key(call)) is not None and call.key is not None:
            self._running.discard(key)
            resource, name = call.key.resource.plural, call.key.name or ''
            self._record.end(key, Call(resource, name, call.id, call.outcome or '', call.message or ''))


def _get_key(call: HandlerCall) -> Key | None:
    if call.kind in _CONCURRENT or call.key is None or call.key.uid is None:
        return None
    return call.key.uid, call.id
