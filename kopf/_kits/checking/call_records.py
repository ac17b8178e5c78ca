"""The calls of handlers in a course: which of them run at the same time, and how they end."""

import dataclasses
import itertools
import math
import time
from typing import NamedTuple

from kopf._cogs.structs.instruments import HandlerCall, Instrument

Key = tuple[str, str]
"""The uid of an object, and the id of a handler."""


class Call(NamedTuple):
    """The end of a handler's last call for an object."""

    resource: str
    name: str
    id: str
    outcome: str
    message: str


class ObservedCall(NamedTuple):
    """A call of a handler, at its beginning or its end."""

    uid: str
    resource: str
    name: str
    id: str
    outcome: str = ''
    message: str = ''

    @classmethod
    def of(cls, call: HandlerCall) -> 'ObservedCall | None':
        """Return the call, if it is one for an object, and only one at a time is expected."""
        if call.concurrent or call.key is None or call.key.uid is None:
            return None
        resource, name = call.key.resource.plural, call.key.name or ''
        return cls(call.key.uid, resource, name, call.id, call.outcome or '', call.message or '')


@dataclasses.dataclass(eq=False)
class Running:
    """One call of a handler."""

    call: ObservedCall
    started: float
    lasted: float = math.inf
    """The duration of the call (in seconds); infinite while it runs."""


class CallRecord:
    """
    All calls of handlers in one course, for all operators that were started in it.

    Args:
        moment: the longest duration of a call without any requests (in seconds).
    """

    def __init__(self, moment: float = 0.0002) -> None:
        self._moment = moment
        self.last: dict[Key, Call] = {}
        self._recorders: list[CallRecorder] = []
        self._repeated: list[ObservedCall] = []
        self._pairs: list[tuple[Running, Running]] = []

    def add(self) -> 'CallRecorder':
        """Create the recorder of another operator."""
        recorder = CallRecorder(self)
        self._recorders.append(recorder)
        return recorder

    def begin(self, key: Key, running: Running, recorder: 'CallRecorder') -> None:
        """Record the start of a call. The failure of the previous call is forgotten: the handler is retried."""
        self.last.pop(key, None)
        if key in recorder.running:
            self._repeated.append(running.call)
        # Different handlers of one operator may run at the same time for the same object. Two operators may not do so.
        for other in self._recorders:
            if other is not recorder:
                self._pairs += [(running, each) for (uid, _), each in other.running.items() if uid == key[0]]

    def end(self, key: Key, call: Call) -> None:
        """Record how a call has ended."""
        self.last[key] = call
        if call.outcome == 'succeeded':
            # The framework does not retry sub-handlers that their parent has ceased to declare, e.g. after an edit.
            uid, id = key
            for other in [each for each in self.last if each[0] == uid and each[1].startswith(f'{id}/')]:
                if self.last[other].outcome == 'retried':
                    del self.last[other]

    def watch_rest(self) -> None:
        """Called at the start of the rest: forget who has handled the objects, as each has only one operator now."""
        for recorder in self._recorders:
            recorder.handled.clear()

    def end_rest(self) -> None:
        """Called at the end of the rest: record the objects that several operators have handled alternately."""
        for one, other in itertools.combinations(self._recorders, 2):
            self._pairs += [
                (running, other.handled[uid]) for uid, running in one.handled.items() if uid in other.handled
            ]

    @property
    def overlaps(self) -> list[str]:
        """The handlers that were called for an object while another call for the same object was running."""
        # Ignore short calls: handlers can check themselves that their replica is not the leader, and return at once.
        doubled = [one.call for one, other in self._pairs if min(one.lasted, other.lasted) > self._moment]
        return [f'{call.id} of {call.resource} {call.name}' for call in (*self._repeated, *doubled)]

    def list_unsuccessful(self, uids: frozenset[str], outcome: str) -> list[Call]:
        """Return the last calls of handlers for existing objects, if they have ended with this outcome."""
        last = list(self.last.items())  # in real time, another thread may record calls meanwhile
        return [call for (uid, _), call in last if uid in uids and call.outcome == outcome]


class CallRecorder(Instrument):
    """
    Records the calls of one operator.

    Args:
        record: the calls of all operators of the course.
    """

    def __init__(self, record: CallRecord) -> None:
        self._record = record
        self.running: dict[Key, Running] = {}
        self.handled: dict[str, Running] = {}
        """The longest calls since the start of the rest, by the uids of the objects."""
        self.last_at = 0.0
        """When the last call has begun (by the monotonic clock)."""

    def forget(self) -> None:
        """Called when the operator is killed or suspended: its running calls may overlap with those of others."""
        self.running.clear()

    def handler_begins(self, call: HandlerCall) -> None:
        """Record the start, and the other calls for the same object that run already."""
        if (observed := ObservedCall.of(call)) is not None:
            self.note_begin(observed, time.monotonic())

    def handler_ends(self, call: HandlerCall) -> None:
        """Record the end."""
        if (observed := ObservedCall.of(call)) is not None:
            self.note_end(observed, time.monotonic())

    def note_begin(self, call: ObservedCall, at: float) -> None:
        """Record the start at this time (by the monotonic clock)."""
        key, running = (call.uid, call.id), Running(call, at)
        self._record.begin(key, running, self)
        self.running[key] = running
        self.last_at = at

    def note_end(self, call: ObservedCall, at: float) -> None:
        """Record the end at this time (by the monotonic clock)."""
        key = call.uid, call.id
        running = self.running.pop(key, None)
        if running is not None:
            running.lasted = at - running.started
            if call.uid not in self.handled or running.lasted > self.handled[call.uid].lasted:
                self.handled[call.uid] = running
        self._record.end(key, Call(call.resource, call.name, call.id, call.outcome, call.message))
