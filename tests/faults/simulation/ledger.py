"""
What the handlers have done, and what is wrong with it at once: two at a time, twice, too often, too long.

What can only be told when everything has come to rest is in `resting`.
"""

import collections
import dataclasses
from typing import Any, NamedTuple


@dataclasses.dataclass
class Run:
    """One call of a handler of changes. Only those are kept that have come to their end, for good."""

    process: Any
    id: str
    uid: str
    reason: str
    seen: Any
    part: str
    """The part of the seen state that the handler is for: a key of `PARTS`."""
    called: float
    ended: float = 0.0
    effects: dict[tuple[str, str], Any] = dataclasses.field(default_factory=dict)
    """What the handler has put into the object: by the stanza and the name of the field."""
    stored: bool = False
    """Whether the operator has learnt that a patch was stored since."""

    @property
    def value(self):
        return PARTS[self.part](self.seen)


@dataclasses.dataclass
class Attempt:
    """One attempt of a handler whose attempts are limited."""

    process: Any
    id: str
    uid: str
    reason: str
    number: int
    since: float = 0.0
    final: bool = False
    ended: bool = False


class Limits(NamedTuple):
    """How often, and for how long (in seconds) a handler may be tried."""

    retries: int | None
    timeout: float | None


@dataclasses.dataclass(frozen=True)
class Token:
    """One call that is in progress."""

    process_id: int
    what: str
    number: int


def look_at(body):
    """Return all of an object that others edit and that handlers are for."""
    meta, spec = body['metadata'], body.get('spec') or {}
    labels = tuple(sorted((meta.get('labels') or {}).items()))
    return (
        spec.get('a'),
        spec.get('b'),
        tuple(spec.get('items') or ()),
        labels,
        (meta.get('annotations') or {}).get('x'),
        spec.get('c'),
    )


PARTS = {
    'all': lambda seen: seen,
    'a': lambda seen: seen[0],
    'b': lambda seen: seen[1],
    'labels': lambda seen: seen[3],
    'c': lambda seen: seen[5],
}


RESUMING = frozenset({'r', 'rw', 's', 'sw', 'sf'})
"""The ids of functions that are for resuming, and of those also for changes."""


class Ledger:
    """
    What has happened, as far as the handlers can tell.

    Args:
        clock: the clock of the simulation.
        options: the options of the run.
    """

    def __init__(self, clock, options):
        self._clock, self._options = clock, options
        self.lines = []
        self.problems = []
        self.history = collections.defaultdict(list)  # uid: (time, seen), as edited by others
        self.runs = collections.defaultdict(list)  # (uid, handler's id): Run
        self.running = collections.defaultdict(set)  # uid: Token
        self.daemons = collections.defaultdict(set)  # (kind, uid): Token
        self.resumed = collections.Counter()
        self.attempts = {}
        self.ticks = {}  # (timer's id, uid): (time, the value of a)
        self.ticking = {}  # (timer's id, uid): the number of the process
        self.events = {}  # uid: (type, number of the process, seen)
        self.applied = {}  # (handler's id, uid): (seen, secrets), by the handlers that apply children
        self._wanted = {}  # (handler's id, uid): the children that the handler has applied last
        self._touched = set()  # the children that others have deleted or taken away
        self.levels = {}  # uid: (seen, children, number of the process, time)
        self.leveled_by = collections.defaultdict(set)
        self.subhandlers = collections.defaultdict(dict)
        self.schedules = {}
        self.late = {}  # (number of the process, id, uid): (time, seen), of handlers declared at run time
        self.late_daemons = set()  # (number of the process, id, uid)
        self._memos = {}  # (number of the process, uid): the number that is kept in the memo
        self.created_at = {}  # uid: when a creation handler was called last
        self.orphaned = set()
        self.undefined = set()
        """The uids of the objects whose kind was deleted: nothing can be stored on them any more."""
        self.calls = 0
        self.chaos = True
        """Whether handlers fail and take their time."""
        self.excused = False
        """Whether the operator has announced that it will do something again."""
        self.restored = 0
        self.deaths = 0
        self._unstored = []
        self._count = 0

    @property
    def now(self):
        return self._clock.now

    def number(self):
        self._count += 1
        return self._count

    def note(self, text):
        self.lines.append(f'{self._clock.now:9.3f} {text}')

    def fault(self, text):
        """Note that something is wrong with the operator."""
        if len(self.problems) < 50:
            self.problems.append(f'{self._clock.now:.2f} {text}')
        self.note(f'!!! {text}')

    # Handlers that must not run at once for the same object.

    def enter(self, process, uid, what):
        if process.stopping.is_set() and self.now > process.stopped_at + 0.001 and what != 'slow':
            self.fault(f'begun at the end: {what} of {uid} in {process}')
        if self.running[uid]:
            self.fault(f'two at once: {what} of {uid} in {process} beside {self.running[uid]}')
        token = Token(process.id, what, self.number())
        self.running[uid].add(token)
        return token

    def leave(self, uid, token):
        self.running[uid].discard(token)

    def forget(self, process):
        """Called when the process has died: nothing of it runs any more."""
        self.deaths += 1
        for crowd in (*self.running.values(), *self.daemons.values()):
            crowd.difference_update([token for token in crowd if token.process_id == process.id])
        for key in [key for key, number in self.ticking.items() if number == process.id]:
            del self.ticking[key]

    def check_memo(self, process, uid, memo):
        """Check that the memo is that of the object, from the first call to the last one."""
        if memo.get('uid', uid) != uid:
            self.fault(f'the memo of {memo.uid} is given for {uid}')
        expected, memo.uid = self._memos.get((process.id, uid)), uid
        if expected is None or self._can_vanish(uid):
            self._memos[process.id, uid] = memo.number = self.number()
        elif memo.get('number') != expected:
            self.fault(f'the memo of {uid} is {memo}, not {expected}, in {process}')
            memo.number = expected

    def _can_vanish(self, uid):
        """Check whether the object can have been absent for a while, as far as its operator can tell."""
        options = self._options
        return bool(options.selecting or options.electing or self.restored or uid in self.undefined)

    # Successes, and failures for good.

    def finish(self, run):
        """Note the end of a call: the handler has succeeded, or failed for good."""
        self.note(f'{run.process} finished {run.reason} {run.id} {run.uid[-4:]} {run.value}')
        past = [one for one in self.runs[run.uid, run.id] if one.reason == run.reason]
        if past and not self.restored and self._is_double(run, past[-1]):
            former = f'{past[-1].process} at {past[-1].ended:.3f}'
            self.fault(f'done twice: {run.reason} {run.id} {run.uid} by {former}, then by {run.process}: {run.value}')
        self.add(run)

    def add(self, run):
        """Add a call that has come to its end, without a check whether it was needed."""
        run.ended = self.now
        self.runs[run.uid, run.id].append(run)
        self._unstored.append(run)

    def _is_double(self, run, before):
        if not before.stored and (self.excused or (before.process is not run.process and not before.process.clean)):
            return False  # its success is lost with the process
        if not before.stored and before.process.lost_at >= before.called:
            return False  # a patch cannot be sent any more
        if not before.stored and run.uid in self.undefined:
            return False
        if not before.stored and self._is_unverifiable:
            return False
        if self.deaths and self._options.storage == 'database':
            return False  # the database is written before the object: the records of a handled deletion can be purged
        if run.id in RESUMING and before.process is not run.process and run.reason != 'delete':
            return False  # each process calls them, also in the middle of a change
        if self._options.pruning and run.reason in ('create', 'delete'):
            return False  # edits are handled as creations, and objects that leave and return are new
        if run.reason in ('create', 'delete'):
            return True
        if run.reason != 'update' or before.value != run.value or before is not self.runs[run.uid, run.id][-1]:
            return False
        if (self._options.patching_spec or self._options.disturbing) and run.part == 'all':
            return False
        since = before.called - 5  # an edit can be seen late
        states = [PARTS[run.part](seen) for at, seen in self.history[run.uid] if at < since][-1:]
        states += [PARTS[run.part](seen) for at, seen in self.history[run.uid] if at >= since]
        return len(set(states)) <= 1

    @property
    def _is_unverifiable(self):
        """Return whether it can be unknown after a pause if another operator has handled the object: then, it is."""
        return self._options.storage == 'flaky' and bool(self._options.peering)

    def excuse(self):
        """Called when an operator has announced that it loses successes: handlers are going to be called again."""
        self.excused = True
        self._unstored.clear()

    def note_loss(self, process):
        """Called when a process has lost its Lease: it forgets what it has not stored yet."""
        process.lost_at = self._clock.now
        self._unstored = [run for run in self._unstored if run.process is not process]

    def note_stored(self, process, uid):
        for run in self._unstored:
            if run.uid == uid and run.process is process:
                run.stored = True
        self._unstored = [run for run in self._unstored if not run.stored]

    # Children.

    def note_children(self, id, uid, keys):
        """Called when a run of a handler has succeeded, with all the children that it has applied."""
        self._wanted[id, uid] = set(keys)

    def note_child(self, id, uid, key):
        """Called when a handler has applied this child, also if its run fails later: it has taken the child over."""
        for each in [each for each in self._wanted if each[1] == uid and each[0] != id]:
            self._wanted[each] = self._wanted[each].difference([key])

    def note_meddling(self, *key):
        self._touched.add(key)

    def find_untouched(self, id, uid):
        """Return the children that the handler has applied last, unless they were deleted or taken over since."""
        return self._wanted.get((id, uid), set()) - self._touched

    # Limited attempts.

    def attempt(self, attempt, limits, runtime):
        """Note the beginning of an attempt; `runtime` is what the operator says (in seconds)."""
        last = self.attempts.get((attempt.uid, attempt.id))
        begun = last is not None and attempt.number > 0
        attempt.since = last.since if begun else self.now
        if limits.retries is not None and attempt.number >= limits.retries:
            self.fault(f'too many attempts: {attempt}: {limits}')
        age = self.now - attempt.since
        if limits.timeout is not None and not self._options.clocks and max(runtime, age) > limits.timeout + 0.5:
            self.fault(f'too late: {attempt}: {runtime} s, {age} s after the first attempt; {limits}')
        if last is not None and attempt.number > last.number + 1:
            self.fault(f'attempts skipped: {attempt} after {last}')
        if last is not None and last.reason == attempt.reason == 'create' and not self.restored and not self.excused:
            kept = (last.process is attempt.process or last.process.clean) and attempt.uid not in self.undefined
            kept = kept and not self._is_unverifiable
            kept = kept and last.process.lost_at < last.since  # with its Lease, it loses what it has not stored
            if last.final and kept and not self._options.pruning:
                self.fault(f'done twice: {attempt} after {last}')
            elif last.ended and kept and attempt.number <= last.number and not self._options.pruning:
                self.fault(f'attempts lost: {attempt} after {last}')
        self.attempts[attempt.uid, attempt.id] = attempt

    # Daemons and timers.

    def enter_daemon(self, process, kind, uid, name):
        limited = kind == 'async' and self._options.daemon_timeout is not None
        if self.daemons[kind, uid] and not (limited and name in self.orphaned):
            self.fault(f'two daemons at once: {kind} of {name} {uid} in {process} beside {self.daemons[kind, uid]}')
        token = Token(process.id, kind, self.number())
        self.daemons[kind, uid].add(token)
        self.note(f'{process} daemon {kind} of {name} {uid[-4:]} begins')
        return token

    def leave_daemon(self, process, kind, uid, token):
        self.daemons[kind, uid].discard(token)
        self.note(f'{process} daemon {kind} of {uid[-4:]} ends')

    def enter_tick(self, process, id, uid):
        if (id, uid) in self.ticking:
            self.fault(f'two ticks at once: {id} of {uid}')
        self.ticking[id, uid] = process.id

    def leave_tick(self, id, uid):
        self.ticking.pop((id, uid), None)

    def tick(self, id, uid, value):
        self.ticks[id, uid] = self._clock.now, value
