"""The calls of handlers in a course: which of them overlap, and how they end."""

import dataclasses
import itertools
import math
import time
from typing import NamedTuple

from kopf._cogs.structs.instruments import HandlerCall, Instrument

Key = tuple[str, str]
"""The uid of an object, and the id of a handler."""


class Call(NamedTuple):
    """The last call of a handler for an object, with its end."""

    resource: str
    name: str
    id: str
    outcome: str
    message: str


class ObservedCall(NamedTuple):
    """A call of a handler, as it is reported when it begins and when it ends."""

    uid: str
    resource: str
    name: str
    id: str
    outcome: str = ''
    message: str = ''

    @classmethod
    def of(cls, call: HandlerCall) -> 'ObservedCall | None':
        """Return the call; None if it is not for an object, or if concurrent calls for one object are allowed."""
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
    All calls of handlers in one course, by all of its operators.

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
        """Create a recorder for another operator."""
        recorder = CallRecorder(self)
        self._recorders.append(recorder)
        return recorder

    def begin(self, key: Key, running: Running, recorder: 'CallRecorder') -> None:
        """Record the start of a call, and forget the previous failure of the same handler."""
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
        """Called when the operators are at rest: forget which operator has handled which object until now."""
        for recorder in self._recorders:
            recorder.handled.clear()

    def end_rest(self) -> None:
        """Called at the end of the rest: record the objects that several operators have handled since its start."""
        for one, other in itertools.combinations(self._recorders, 2):
            self._pairs += [
                (running, other.handled[uid]) for uid, running in one.handled.items() if uid in other.handled
            ]

    @property
    def overlaps(self) -> list[str]:
        """The handlers whose calls for an object have overlapped with other calls for that object."""
        # Ignore short calls: a handler may check whether its operator is the leader, and return immediately if not.
        doubled = [one.call for one, other in self._pairs if min(one.lasted, other.lasted) > self._moment]
        return [f'{call.id} of {call.resource} {call.name}' for call in (*self._repeated, *doubled)]

    def list_unsuccessful(self, uids: frozenset[str], outcome: str) -> list[Call]:
        """Return the last calls of handlers for existing objects, if they have ended with this outcome."""
        last = list(self.last.items())  # a copy, because in real time, another thread may record calls meanwhile
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
        """When the last call began (by the monotonic clock)."""

    def forget(self) -> None:
        """Called when the operator is killed or suspended: its running calls cannot conflict with others any more."""
        self.running.clear()

    def handler_begins(self, call: HandlerCall) -> None:
        """Record the start of a call, and the running calls for the same object."""
        if (observed := ObservedCall.of(call)) is not None:
            self.note_begin(observed, time.monotonic())

    def handler_ends(self, call: HandlerCall) -> None:
        """Record the end of a call."""
        if (observed := ObservedCall.of(call)) is not None:
            self.note_end(observed, time.monotonic())

    def note_begin(self, call: ObservedCall, at: float) -> None:
        """Record the start of a call at this time (by the monotonic clock)."""
        key, running = (call.uid, call.id), Running(call, at)
        self._record.begin(key, running, self)
        self.running[key] = running
        self.last_at = at

    def note_end(self, call: ObservedCall, at: float) -> None:
        """Record the end of a call at this time (by the monotonic clock)."""
        key = call.uid, call.id
        running = self.running.pop(key, None)
        if running is not None:
            running.lasted = at - running.started
            if call.uid not in self.handled or running.lasted > self.handled[call.uid].lasted:
                self.handled[call.uid] = running
        self._record.end(key, Call(call.resource, call.name, call.id, call.outcome, call.message))
