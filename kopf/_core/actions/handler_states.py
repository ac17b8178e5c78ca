"""
How far the handlers of one change have come: what is stored of it, and what the next step is.

`HandlerState` is one handler's record: immutable, derived from what is stored and from the outcomes of attempts.
`State` is all the records of one handling cycle of one object. It lives in memory while the cycle goes on, and is
stored on the object after each step, so that a restarted operator goes on where the previous one was.

A record also carries a digest of the essence that its handler has seen: when the object is edited meanwhile, a finished
handler has not seen the edit, and is due again. While creation handlers follow each other at once, their records have
it after the microseconds of a timestamp, and no fields that upstream's do not have. The formats are specified in the
documentation's "Continuity".
"""

import datetime
import hashlib
import re
from collections.abc import Collection, ItemsView, Iterable, Iterator, Mapping, ValuesView
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import orjson

from kopf._cogs.configs.progress import ProgressRecord
from kopf._cogs.helpers.clocks import get_shift
from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.patches import Patch
from kopf._core.actions.execution import Handler, Outcome

MAX_MESSAGE = 4096
"""How much of an error is stored: annotations are limited to 256 KiB altogether (characters)."""

TOLD_DELAY = 300.0
"""Longer delays (in seconds) are also stored as such, so that nobody with another clock waits longer than they are."""

MAX_DELAY = 10 * 365 * 86400.0
"""The limit of delays, beyond which no time can be told (in seconds)."""

_DIGEST_IN_TIME: Final = re.compile(r'\.\d{6}(\d{15})(?!\d)')

HandlerT = TypeVar('HandlerT', bound=Handler)


def digest_essence(essence: Mapping[str, Any]) -> str:
    """A short digest of an essence: equal for equal essences, whatever the order of their keys."""
    text = orjson.dumps(essence, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    return hashlib.blake2b(text, digest_size=6).hexdigest()


class HandlerState(NamedTuple):
    """One handler's progress within one cycle."""

    started: datetime.datetime
    purpose: str | None = None
    stopped: datetime.datetime | None = None
    delayed: datetime.datetime | None = None
    retries: int = 0
    waits: int = 0
    """How many of the attempts do not count towards the limit: they have ended with unfinished sub-handlers."""
    success: bool = False
    failure: bool = False
    message: str | None = None
    subrefs: tuple[HandlerId, ...] = ()
    digest: str | None = None
    delay: float | None = None
    """The last delay (in seconds), if it is a long one."""
    base: str | None = None
    """What the first finished handler of the cycle has seen, packed; in one of the records."""

    @property
    def finished(self) -> bool:
        return self.success or self.failure

    def is_due(self, now: datetime.datetime) -> bool:
        return not self.finished and (self.delayed is None or self.delayed <= now)

    def with_outcome(self, outcome: Outcome, now: datetime.datetime) -> 'HandlerState':
        """The state after one more attempt."""
        delay = None if outcome.final or outcome.delay is None else min(outcome.delay, MAX_DELAY)
        return HandlerState(
            started=self.started,
            purpose=self.purpose,
            stopped=now if outcome.final else None,
            delayed=None if delay is None else now + datetime.timedelta(seconds=delay),
            retries=self.retries + 1,
            waits=self.waits + outcome.uncounted,
            success=outcome.final and outcome.exception is None,
            failure=outcome.final and outcome.exception is not None,
            message=outcome.message,
            subrefs=self.subrefs,
            digest=None if outcome.final else self.digest,
            delay=delay if delay is not None and delay > TOLD_DELAY else None,
        )

    def shifted(self, shift: datetime.timedelta) -> 'HandlerState':
        """The same by a clock that is so much ahead."""
        return (
            self
            if not shift
            else self._replace(
                started=self.started + shift,
                stopped=None if self.stopped is None else self.stopped + shift,
                delayed=None if self.delayed is None else self.delayed + shift,
            )
        )

    def limited(self, now: datetime.datetime) -> 'HandlerState':
        """The same, without what can only be by a clock that was wrong: a start in the future, or too long a wait."""
        state = self if self.started <= now else self.shifted(now - self.started)
        if state.delayed is None or state.delay is None:
            return state
        return state._replace(delayed=min(state.delayed, now + datetime.timedelta(seconds=state.delay)))

    @classmethod
    def from_record(cls, record: Mapping[str, Any], now: datetime.datetime) -> 'HandlerState':
        return cls(
            started=parse_time(record.get('started')) or now,
            stopped=parse_time(record.get('stopped')),
            delayed=parse_time(record.get('delayed')),
            purpose=record.get('purpose'),
            retries=record.get('retries') or 0,
            waits=record.get('waits') or 0,
            success=bool(record.get('success')),
            failure=bool(record.get('failure')),
            message=record.get('message'),
            subrefs=tuple(record.get('subrefs') or ()),
            digest=record['digest'] if record.get('digest') is not None else _parse_digest(record.get('stopped')),
            delay=parse_delay(record.get('delay')),
            base=record.get('base'),
        )

    def as_record(self, *, usual: bool = False) -> ProgressRecord:
        """Give what is stored; in records that are to look as ``usual``, the digest is in digits of a timestamp."""
        record: dict[str, Any] = {
            'started': self.started.isoformat(timespec='microseconds'),
            'stopped': None if self.stopped is None else self.stopped.isoformat(timespec='microseconds'),
            'delayed': None if self.delayed is None else self.delayed.isoformat(timespec='microseconds'),
            'purpose': self.purpose,
            'retries': self.retries,
            'success': self.success,
            'failure': self.failure,
            'message': _shorten(self.message),
            'subrefs': list(self.subrefs) or None,
        }
        if self.waits:
            record['waits'] = self.waits
        if self.digest is not None and self.stopped is not None and usual:
            record['stopped'] = _add_digest(record['stopped'], self.digest)
        elif self.digest is not None:
            record['digest'] = self.digest
        if self.delay is not None:
            record['delay'] = self.delay
        if self.base is not None:
            record['base'] = self.base
        return record  # type: ignore[return-value]


class Fetching(Protocol):
    """Reads the stored records: a storage of progress, for example."""

    def fetch(self, *, key: HandlerId, body: Body) -> ProgressRecord | None: ...


class Storing(Protocol):
    """Writes the records to be stored: a storage of progress, for example."""

    def store(self, *, key: HandlerId, record: ProgressRecord, body: Body, patch: Patch) -> None: ...

    def purge(self, *, key: HandlerId, body: Body, patch: Patch) -> None: ...


class State(Mapping[HandlerId, HandlerState]):
    """The progress of all the handlers of one cycle, sub-handlers included."""

    __slots__ = ('_dirty', '_stored', '_states', '_unsure', 'purpose')

    def __init__(self, purpose: str | None = None) -> None:
        self.purpose = purpose
        self._states: dict[HandlerId, HandlerState] = {}
        self._stored: set[HandlerId] = set()  # what the object is known to have
        self._dirty: set[HandlerId] = set()  # what differs from what is stored
        self._unsure = False  # whether the object can have more than it is known to have

    def __getitem__(self, key: HandlerId) -> HandlerState:
        return self._states[key]

    def __iter__(self) -> Iterator[HandlerId]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)

    # The mixins of Mapping do the same, item by item.
    def items(self) -> ItemsView[HandlerId, HandlerState]:
        return self._states.items()

    def values(self) -> ValuesView[HandlerState]:
        return self._states.values()

    def load(
        self,
        ids: Iterable[HandlerId],
        *,
        storage: Fetching,
        body: Body,
        now: datetime.datetime,
        keep: Collection[HandlerId] = (),
    ) -> None:
        """
        Take over the stored records of these handlers, and of their sub-handlers.

        A record of another purpose is of a cycle that was superseded: it is only remembered to be purged, with the
        first records of a deletion, or with the end of any other cycle. Those to ``keep`` count whatever their purpose.
        """
        shift: datetime.timedelta | None = None
        pending = [*ids]
        for key in pending:
            record = storage.fetch(key=key, body=body)
            if record is None or key in self._stored:
                continue
            self._stored.add(key)
            shift = -get_shift() if shift is None else shift
            state = HandlerState.from_record(record, now).shifted(shift).limited(now)
            if state.purpose in (None, self.purpose) or (key in keep and state.finished):
                self._states[key] = state
            pending += state.subrefs

    def begin(self, ids: Iterable[HandlerId], now: datetime.datetime) -> None:
        """Start the record of each handler that has none yet."""
        for key in ids:
            if key not in self._states:
                self._set(key, HandlerState(started=now, purpose=self.purpose))

    def restart(self, key: HandlerId, now: datetime.datetime) -> None:
        """Make a finished handler due again: from the first attempt. What it has seen stays in its record."""
        for each in (key, *self._states[key].subrefs):
            if each in self._states:
                old = self._states[each]
                self._set(each, HandlerState(started=now, purpose=self.purpose, subrefs=old.subrefs, digest=old.digest))

    def inherit(self, key: HandlerId, old: HandlerState, digest: str) -> None:
        """Let a handler that has finished in another cycle be due in this one, as it has seen something else there."""
        self._set(key, HandlerState(started=old.stopped or old.started, purpose=self.purpose, digest=digest))

    def conclude(self, key: HandlerId, outcome: Outcome, now: datetime.datetime) -> None:
        self._set(key, self._states[key].with_outcome(outcome, now))

    def adopt(self, parent: HandlerId, children: Iterable[HandlerId]) -> None:
        """Remember in the parent's record that it has these sub-handlers, and those below them."""
        for key, state in list(self._states.items()):
            if key == parent or parent.startswith(f'{key}/'):
                subrefs = tuple(sorted({*state.subrefs, *children}))
                if subrefs != state.subrefs:
                    self._set(key, state._replace(subrefs=subrefs))

    def see(self, keys: Iterable[HandlerId], digest: str) -> None:
        """Let the finished handlers count as having seen the essence of this digest."""
        for key in keys:
            state = self._states.get(key)
            if state is not None and state.finished and state.digest != digest:
                self._set(key, state._replace(digest=digest))

    @property
    def base(self) -> str | None:
        """What the first finished handler has seen, if it is kept."""
        return next((state.base for state in self._states.values() if state.base is not None), None)

    def keep_base(self, text: str | None) -> None:
        """Keep it in the record of a finished handler: those that are not finished change more often."""
        finished = [key for key, state in self._states.items() if state.finished]
        for key in [key for key in finished if self._states[key].base is not None] or finished[:1]:
            if self._states[key].base != text:
                self._set(key, self._states[key]._replace(base=text))

    def due(self, handlers: Iterable[HandlerT], now: datetime.datetime) -> list[HandlerT]:
        return [handler for handler in handlers if self._states[handler.id].is_due(now)]

    def done(self, handlers: Iterable[Handler]) -> bool:
        return all(self._states[handler.id].finished for handler in handlers)

    def delay(self, handlers: Iterable[Handler], now: datetime.datetime) -> float | None:
        """For how many seconds nothing is due; ``None`` if all is finished."""
        delays = [
            0 if state.delayed is None else max(0, (state.delayed - now).total_seconds())
            for state in (self._states[handler.id] for handler in handlers)
            if not state.finished
        ]
        return min(delays, default=None)

    def counts(self, ids: Iterable[HandlerId]) -> tuple[int, int]:
        """Return how many of these handlers have succeeded in this cycle, and how many have failed for good."""
        states = [
            state
            for key in set(ids)
            if (state := self._states.get(key)) is not None and state.purpose in (None, self.purpose)
        ]
        return sum(state.success for state in states), sum(state.failure for state in states)

    def store(self, *, storage: Storing, body: Body, patch: Patch) -> None:
        """Put what has changed into the patch."""
        shift = get_shift()
        usual = self.purpose == 'create' and self.base is None
        for key in self._states:
            if key in self._dirty:
                record = self._states[key].shifted(shift).as_record(usual=usual)
                storage.store(key=key, record=record, body=body, patch=patch)
        if self.purpose == 'delete' and self._dirty:
            for key in sorted(self._stored - self._states.keys()):
                storage.purge(key=key, body=body, patch=patch)
        self._stored |= self._dirty
        self._dirty.clear()

    def purge(self, *, storage: Storing, body: Body, patch: Patch) -> None:
        """Let the patch remove all that is stored, or could have been."""
        if self._unsure:
            possible = Patch()
            for key, state in self._states.items():
                storage.store(key=key, record=state.as_record(), body=body, patch=possible)
            body = Body(possible.applied_to(body))
        for key in sorted(self._stored | set(self._states)):
            storage.purge(key=key, body=body, patch=patch)

    def mark_unsaved(self) -> None:
        """Know that the last patch with the records has failed, or only its answer was lost: store them again."""
        self._dirty.update(self._states)
        self._unsure = True

    @property
    def unsaved(self) -> bool:
        """Whether a patch with the records has ever failed, so that the object can have more than it is known to."""
        return self._unsure

    @property
    def in_memory_only(self) -> bool:
        """Whether there are attempts that no patch has stored yet."""
        return any(self._states[key].retries for key in self._dirty if key in self._states)

    @property
    def stored(self) -> bool:
        """Whether the object has any records of these handlers, as far as known."""
        return bool(self._stored)

    def _set(self, key: HandlerId, state: HandlerState) -> None:
        self._states[key] = state
        self._dirty.add(key)


def _shorten(message: str | None) -> str | None:
    if message is None or len(message) <= MAX_MESSAGE:
        return message
    return f'{message[: MAX_MESSAGE // 2]}...{message[3 - MAX_MESSAGE // 2 :]}'


def _add_digest(time: str, digest: str) -> str:
    """Put the digest after the microseconds, as 15 more digits: that is still the same time in the same format."""
    seconds, dot, rest = time.partition('.')
    return f'{seconds}{dot}{rest[:6]}{int(digest, 16):015}{rest[6:]}'


def _parse_digest(time: str | None) -> str | None:
    match = _DIGEST_IN_TIME.search(time or '')
    return f'{int(match[1]):012x}' if match else None


def parse_time(text: str | None) -> datetime.datetime | None:
    """Read a stored timestamp; those without an offset are in UTC."""
    if not text:
        return None
    value = datetime.datetime.fromisoformat(text)
    return value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)


def parse_delay(value: object) -> float | None:
    """Read a stored delay (in seconds); what is no sane delay is as none."""
    return float(value) if isinstance(value, int | float) and TOLD_DELAY < value <= MAX_DELAY else None
