"""
The progress of handlers: their attempts, delays, and results in one handling cycle of one object.

`HandlerState` is the progress of one handler: immutable, made from a stored record or from the outcome of an attempt.
`State` is the progress of all handlers in the cycle. It is kept in memory during the cycle, and is stored on the object
after each step, so that a restarted operator continues the cycle.

A record also contains a digest of the essence that its handler has seen. If the object is edited after that, the
handler is run again, even if it was finished. Records of creation handlers contain the digest in the last digits of a
timestamp, unless the object was edited. So their fields are the same as those of upstream kopf. The formats are
specified in the documentation's "Continuity".
"""

import datetime
import hashlib
import re
from collections.abc import Collection, ItemsView, Iterable, Iterator, Mapping, ValuesView
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import orjson

from kopf._cogs.configs.progress import ProgressRecord, is_of_edited
from kopf._cogs.helpers.clocks import get_shift
from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.patches import Patch
from kopf._core.actions.execution import Handler, Outcome

MAX_MESSAGE = 4096
"""The limit of stored error messages (in characters): all annotations of an object are limited to 256 KiB."""

STORED_DELAY = 300.0
"""
The delay above which records contain the delay itself, too (in seconds).

Records with shorter delays contain only the time of the next attempt. If another operator continues the cycle and its
clock is behind, it reaches that time too late. The stored delay limits this wait.
"""

MAX_DELAY = 10 * 365 * 86400.0
"""The limit of delays, as timestamps far in the future or in the past are not supported (in seconds)."""

_DIGEST_IN_TIME: Final = re.compile(r'\.\d{6}(\d{15})(?!\d)')

_NO_KEYS: Final[frozenset[HandlerId]] = frozenset()

HandlerT = TypeVar('HandlerT', bound=Handler)


def digest_essence(essence: Mapping[str, Any]) -> str:
    """Return a short digest of an essence, independent of the order of its keys."""
    text = orjson.dumps(essence, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    return hashlib.blake2b(text, digest_size=6).hexdigest()


class HandlerState(NamedTuple):
    """The progress of one handler in one cycle."""

    started: datetime.datetime
    purpose: str | None = None
    stopped: datetime.datetime | None = None
    delayed: datetime.datetime | None = None
    retries: int = 0
    waits: int = 0
    """The number of attempts that do not count towards the limit, as they have ended with unfinished sub-handlers."""
    success: bool = False
    failure: bool = False
    message: str | None = None
    subrefs: tuple[HandlerId, ...] = ()
    digest: str | None = None
    delay: float | None = None
    """The last delay (in seconds), if it is longer than `STORED_DELAY`."""
    base: str | None = None
    """The packed essence that the first finished handler of the cycle has seen; only in one record of the cycle."""
    carried: str | None = None
    """The text that an instrument has left for the next attempts, such as the trace that they belong to."""

    @property
    def finished(self) -> bool:
        """True if the handler has succeeded or has failed permanently."""
        return self.success or self.failure

    def is_due(self, now: datetime.datetime) -> bool:
        """Check whether the next attempt can begin."""
        return not self.finished and (self.delayed is None or self.delayed <= now)

    def with_outcome(self, outcome: Outcome, now: datetime.datetime) -> 'HandlerState':
        """Return the state after one more attempt; the same state if the function was not called."""
        if not outcome.has_begun:
            return self
        delay = None if outcome.final or outcome.delay is None else max(-MAX_DELAY, min(outcome.delay, MAX_DELAY))
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
            # The digest is added later, by `see`, because the handler's own patch changes the essence, too.
            digest=None if outcome.final else self.digest,
            delay=delay if delay is not None and delay > STORED_DELAY else None,
            carried=outcome.carried,
        )

    def shifted(self, shift: datetime.timedelta) -> 'HandlerState':
        """Return the state with all times shifted to a clock that is ahead by this much."""
        return (
            self
            if not shift
            else self._replace(
                started=_shift(self.started, shift),
                stopped=None if self.stopped is None else _shift(self.stopped, shift),
                delayed=None if self.delayed is None else _shift(self.delayed, shift),
            )
        )

    def limited(self, now: datetime.datetime) -> 'HandlerState':
        """Return the state without the effects of wrong clocks: a start in the future, or a too long wait."""
        # A start in the future was stored by an operator whose clock was ahead. Without the shift, the handler would
        # time out too late, by the difference of the clocks.
        state = self if self.started <= now else self.shifted(now - self.started)
        if state.delayed is None or state.delay is None:
            return state
        return state._replace(delayed=min(state.delayed, now + datetime.timedelta(seconds=state.delay)))

    @classmethod
    def from_record(cls, record: Mapping[str, Any], now: datetime.datetime) -> 'HandlerState':
        """Return the state of a stored record."""
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
            carried=record.get('carried'),
        )

    def as_record(self, *, usual: bool = False, edited: bool = False) -> ProgressRecord:
        """
        Return the record to be stored.

        Args:
            usual: use only the fields of upstream kopf. The digest is then put into the last digits of a timestamp.
            edited: whether the object was edited during its creation. This is marked in the record, because a last
                handled state is then stored before the creation ends.
        """
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
        if self.carried is not None:
            record['carried'] = self.carried
        if edited:
            record['edited'] = True
        return record  # type: ignore[return-value]


class Fetching(Protocol):
    """The methods of a progress storage that read records."""

    def fetch(self, *, key: HandlerId, body: Body) -> ProgressRecord | None: ...


class Storing(Protocol):
    """The methods of a progress storage that write records."""

    def store(self, *, key: HandlerId, record: ProgressRecord, body: Body, patch: Patch) -> None: ...

    def purge(self, *, key: HandlerId, body: Body, patch: Patch) -> None: ...


class State(Mapping[HandlerId, HandlerState]):
    """The progress of all handlers in one cycle, including sub-handlers."""

    __slots__ = ('_contributors', '_dirty', '_edited', '_stored', '_states', '_unsure', 'purpose')

    def __init__(self, purpose: str | None = None) -> None:
        self.purpose = purpose
        self._states: dict[HandlerId, HandlerState] = {}
        self._stored: set[HandlerId] = set()  # the ids whose records the object has, as far as known
        self._dirty: set[HandlerId] = set()  # the ids whose records differ from the stored ones
        self._unsure = False  # the object can have more records, as the response to a patch was lost
        self._edited = False  # whether the object was edited during its creation: see `as_record`
        self._contributors = _NO_KEYS  # the ids of the handlers that have requested what is not stored yet

    def __getitem__(self, key: HandlerId) -> HandlerState:
        return self._states[key]

    def __iter__(self) -> Iterator[HandlerId]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)

    # Faster than the mixins of Mapping, which look up the items one by one.
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
        Load the stored records of these handlers, and of their sub-handlers.

        A record with another purpose belongs to a previous cycle that was superseded by this one. Its progress is not
        used. It is purged together with the first stored records of a deletion, or at the end of any other cycle.

        Args:
            ids: the handlers.
            storage: the storage of the records.
            body: the object.
            now: the current time.
            keep: the handlers whose finished records count whatever their purpose is.
        """
        shift: datetime.timedelta | None = None
        pending = [*ids]
        # The list grows during the iteration: sub-handlers can have sub-handlers, too.
        for key in pending:
            record = storage.fetch(key=key, body=body)
            if record is None or key in self._stored:
                continue
            self._stored.add(key)
            # Read the two clocks only once, and only if there are any records.
            shift = -get_shift() if shift is None else shift
            state = HandlerState.from_record(record, now).shifted(shift).limited(now)
            # Older records can lack the purpose; they belong to any cycle.
            if state.purpose in (None, self.purpose) or (key in keep and state.finished):
                self._states[key] = state
                self._edited = self._edited or is_of_edited(record)
            pending += state.subrefs

    def begin(self, ids: Iterable[HandlerId], now: datetime.datetime) -> None:
        """Start the record of each handler that has none yet."""
        for key in ids:
            if key not in self._states:
                self._set(key, HandlerState(started=now, purpose=self.purpose))

    def restart(self, key: HandlerId, now: datetime.datetime, digest: str | None = None) -> None:
        """
        Start a finished handler and its sub-handlers again. Their digests stay in the records.

        Args:
            key: the handler.
            now: the current time.
            digest: the digest that the handler has seen, if its record has none, as its success was never stored.
        """
        # `subrefs` lists the sub-handlers of all levels, not only the direct ones.
        for each in (key, *self._states[key].subrefs):
            if each in self._states:
                old = self._states[each]
                seen = digest if old.digest is None and each == key else old.digest
                self._set(each, HandlerState(started=now, purpose=self.purpose, subrefs=old.subrefs, digest=seen))

    def begin_again(self, key: HandlerId, now: datetime.datetime) -> Collection[HandlerId]:
        """Begin the handler and its sub-handlers anew, if it has finished; return the ids of all of them."""
        state = self._states.get(key)
        if state is None or not state.finished:
            return ()
        keys = [each for each in (key, *state.subrefs) if each in self._states]
        for each in keys:
            # Their sub-handlers stay known, so that the records of these are purged.
            subrefs = self._states[each].subrefs
            self._states[each] = HandlerState(started=now, purpose=self.purpose, subrefs=subrefs)
        return keys

    def inherit(self, key: HandlerId, old: HandlerState, digest: str) -> None:
        """Start a handler that was finished in another cycle, with the digest that it has seen in that cycle."""
        self._set(key, HandlerState(started=old.stopped or old.started, purpose=self.purpose, digest=digest))

    def carry_over(self, other: 'State', ids: Iterable[HandlerId]) -> None:
        """Copy the records of finished handlers from a superseded cycle, for the given ids only."""
        for key in ids:
            state = other.get(key)
            if state is not None and state.finished and key not in self._states:
                self._set(key, state)
                if key in other._contributors:
                    self.note_contribution(key)

    def note_outcome(self, key: HandlerId, outcome: Outcome, now: datetime.datetime) -> None:
        """Update the progress of the handler with the outcome of an attempt."""
        self._set(key, self._states[key].with_outcome(outcome, now))

    def note_contribution(self, key: HandlerId) -> None:
        """Note that the handler has requested changes of the object; see `begin_refused`."""
        self._contributors |= {key}

    def forget_contributions(self) -> None:
        """Called when all changes that the handlers have requested are stored, or are dropped for good."""
        self._contributors = _NO_KEYS

    def begin_refused(self, now: datetime.datetime) -> Collection[HandlerId]:
        """
        Begin the handlers anew whose changes could not be stored, and return their ids.

        Parents of such sub-handlers are begun anew, too, as only they declare them; their other sub-handlers are not.
        """
        keys = [
            key
            for key, state in self._states.items()
            if key in self._contributors or not self._contributors.isdisjoint(state.subrefs)
        ]
        for key in keys:
            old = self._states[key]
            digest = None if old.finished else old.digest
            self._set(key, HandlerState(started=now, purpose=self.purpose, subrefs=old.subrefs, digest=digest))
        self._contributors = _NO_KEYS
        return keys

    def adopt(self, parent: HandlerId, children: Iterable[HandlerId]) -> None:
        """Add the sub-handlers to the records of the parent and of its own parents, so that they are found later."""
        for key, state in list(self._states.items()):
            if key == parent or parent.startswith(f'{key}/'):
                subrefs = tuple(sorted({*state.subrefs, *children}))
                if subrefs != state.subrefs:
                    self._set(key, state._replace(subrefs=subrefs))

    def see(self, keys: Iterable[HandlerId], digest: str) -> None:
        """Store in the records of the finished handlers that they have seen the essence with this digest."""
        for key in keys:
            state = self._states.get(key)
            if state is not None and state.finished and state.digest != digest:
                self._set(key, state._replace(digest=digest))

    def mark_edited(self) -> None:
        """Mark all records as those of an object that was edited during its creation; see `HandlerState.as_record`."""
        if not self._edited:
            self._edited = True
            self._dirty.update(self._states)

    @property
    def base(self) -> str | None:
        """The packed essence that the first finished handler has seen, if it is kept."""
        return next((state.base for state in self._states.values() if state.base is not None), None)

    def keep_base(self, text: str | None) -> None:
        """Keep the base in the record of a finished handler, which does not change any more, so it is stored once."""
        finished = [key for key, state in self._states.items() if state.finished]
        for key in [key for key in finished if self._states[key].base is not None] or finished[:1]:
            if self._states[key].base != text:
                self._set(key, self._states[key]._replace(base=text))

    def due(self, handlers: Iterable[HandlerT], now: datetime.datetime) -> list[HandlerT]:
        """Return those of the handlers whose next attempt can begin."""
        return [handler for handler in handlers if self._states[handler.id].is_due(now)]

    def done(self, handlers: Iterable[Handler]) -> bool:
        """Check whether all the handlers are finished."""
        return all(self._states[handler.id].finished for handler in handlers)

    def delay(self, handlers: Iterable[Handler], now: datetime.datetime) -> float | None:
        """Return the time until the first of the handlers is due (in seconds); ``None`` if all are finished."""
        delays = [
            0 if state.delayed is None else max(0, (state.delayed - now).total_seconds())
            for state in (self._states[handler.id] for handler in handlers)
            if not state.finished
        ]
        return min(delays, default=None)

    def counts(self, ids: Iterable[HandlerId]) -> tuple[int, int]:
        """Return how many of these handlers have succeeded in this cycle, and how many have failed permanently."""
        states = [
            state
            for key in set(ids)
            if (state := self._states.get(key)) is not None and state.purpose in (None, self.purpose)
        ]
        return sum(state.success for state in states), sum(state.failure for state in states)

    def store(self, *, storage: Storing, body: Body, patch: Patch) -> None:
        """Add the changed records to the patch."""
        shift = get_shift()
        # Upstream kopf does not know the field of the base. If a record has it, the digest may be in its own field,
        # too.
        usual = self.purpose == 'create' and self.base is None
        for key in self._states:
            if key in self._dirty:
                record = self._states[key].shifted(shift).as_record(usual=usual, edited=self._edited)
                storage.store(key=key, record=record, body=body, patch=patch)
        # Why not at the end, as in other cycles? Deletion handlers can be retried for days, and the object would keep
        # the useless records of superseded cycles for all that time.
        if self.purpose == 'delete' and self._dirty:
            for key in sorted(self._stored - self._states.keys()):
                storage.purge(key=key, body=body, patch=patch)
        self._stored |= self._dirty
        self._dirty.clear()

    def purge(self, *, storage: Storing, body: Body, patch: Patch) -> None:
        """Add the removal of all stored records to the patch, including those that could have been stored."""
        # Storages purge only the records that they find in the body, so they get a body with all possible records.
        if self._unsure:
            possible = Patch()
            for key, state in self._states.items():
                # Former records of the handler can have had a digest, which storages can keep apart from the record.
                record = state._replace(digest=state.digest or '').as_record()
                storage.store(key=key, record=record, body=body, patch=possible)
            body = Body(possible.applied_to(body))
        for key in sorted(self._stored | set(self._states)):
            storage.purge(key=key, body=body, patch=patch)

    def mark_unsaved(self) -> None:
        """Called when the last patch with the records has failed, or its response was lost: store all records again."""
        # Mark all of them: the API server can have stored the patch, or a part of it, before the connection was lost.
        self._dirty.update(self._states)
        self._unsure = True

    @property
    def unsaved(self) -> bool:
        """True if a patch with the records has ever failed, so that the object can have more records than known."""
        return self._unsure

    @property
    def in_memory_only(self) -> bool:
        """True if there are attempts that no patch has stored yet."""
        return any(self._states[key].retries for key in self._dirty if key in self._states)

    @property
    def stored(self) -> bool:
        """True if the object has any records of these handlers, as far as known."""
        return bool(self._stored)

    def _set(self, key: HandlerId, state: HandlerState) -> None:
        self._states[key] = state
        self._dirty.add(key)


def _shorten(message: str | None) -> str | None:
    if message is None or len(message) <= MAX_MESSAGE:
        return message
    return f'{message[: MAX_MESSAGE // 2]}...{message[3 - MAX_MESSAGE // 2 :]}'


def _shift(time: datetime.datetime, shift: datetime.timedelta) -> datetime.datetime:
    """Return the shifted time; the time itself if there is no such date, as in records that were edited by hand."""
    try:
        return time + shift
    except OverflowError:
        return time


def _add_digest(time: str, digest: str) -> str:
    """Return the timestamp with the digest as 15 more digits after the microseconds; parsers ignore them."""
    seconds, dot, rest = time.partition('.')
    # Six bytes are at most fifteen decimal digits. Python's parsers ignore the digits after the microseconds.
    return f'{seconds}{dot}{rest[:6]}{int(digest, 16):015}{rest[6:]}'


def _parse_digest(time: str | None) -> str | None:
    match = _DIGEST_IN_TIME.search(time or '')
    return f'{int(match[1]):012x}' if match else None


def parse_time(text: str | None) -> datetime.datetime | None:
    """Return the time of a stored timestamp; a timestamp without an offset is in UTC."""
    if not text:
        return None
    value = datetime.datetime.fromisoformat(text)
    # Old versions of upstream kopf have stored timestamps without an offset.
    return value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)


def parse_delay(value: object) -> float | None:
    """Return a stored delay (in seconds); ``None`` if it is not a delay that would have been stored."""
    return float(value) if isinstance(value, int | float) and STORED_DELAY < value <= MAX_DELAY else None
