"""
The planning of level-triggered handlers: triggers, priorities, limits of concurrency, and delays after errors.

This module is pure: it has no clock, tasks, or requests. The times are arguments, and a callback requests workers. So a
model test can try thousands of sequences of events.

A trigger has only a reason, without the state: the handler reads the newest state anyway. So triggers need no queue:
an object that was triggered many times has one plan, with the set of the reasons.
"""

import enum
import random
from collections.abc import Callable, Hashable
from typing import Any, Final, NamedTuple

from kopf._cogs.aiokits.priority_queues import FairPriorityQueue
from kopf._core.actions.execution import NotReadyError, Outcome

GROWTH = 2
"""The factor between a delay after an error and the previous one."""

SPREAD = 0.1
"""The random variation of delays and intervals, as a fraction, so that not all objects are due at the same moment."""


LONGEST_DELAY = 365 * 24 * 3600.0
"""The longest time to wait (in seconds). Handlers can request infinite delays, which timers do not support."""


class Trigger(enum.StrEnum):
    """The reasons for running a level-triggered handler."""

    START = 'start'
    """The operator has started, or has resumed after a pause."""
    CHANGE = 'change'
    OWNED = 'owned'
    WATCHED = 'watched'
    INTERVAL = 'interval'
    AGAIN = 'again'
    RETRY = 'retry'


_CALM: Final = frozenset({Trigger.START, Trigger.INTERVAL})
"""The triggers with a low priority: they can come for all objects at once, and must not delay other triggers."""

NONE: Final[frozenset[Trigger]] = frozenset()


class Again:
    """
    The result of a level-triggered handler that requests another run after some time (in seconds).

    If another trigger runs the handler earlier, this request is dropped.
    """

    __slots__ = ('after',)

    def __init__(self, after: float) -> None:
        given: object = after
        if not isinstance(given, int | float) or isinstance(given, bool):
            raise TypeError(f"kopf.Again: after= must be a number of seconds, not {after!r}.")
        if not given >= 0:
            raise ValueError(f"kopf.Again: after= must not be negative, but it is {after!r}.")
        self.after = after

    def __repr__(self) -> str:
        return f'kopf.Again(after={self.after!r})'


class Pace(NamedTuple):
    """The limits of a handler's runs; times are in seconds."""

    interval: float | None = None
    backoff: tuple[float, float] = (1, 600)
    """The first delay after an error, and the longest one."""
    concurrency: int | None = None
    """The limit of objects for which the handler runs at the same time."""


class Plan:
    """The next run of one handler for one object. Only `Planner` changes it."""

    __slots__ = (
        'due_at',
        'due_reason',
        'failures',
        'is_counted',
        'is_granted',
        'is_held',
        'is_running',
        'is_urgent',
        'is_waiting',
        'message',
        'paused_until',
        'reasons',
        'target',
    )

    def __init__(self, target: Any) -> None:
        self.target = target
        self.reasons = NONE
        """The triggers since the last run began; empty if no run is needed."""
        self.is_urgent = False
        """Whether any of the reasons has the high priority."""
        self.is_running = False
        self.is_waiting = False
        """Whether it is queued, because the limit of concurrency is reached or a list is awaited."""
        self.is_granted = False
        """Whether it has a slot of the limit of concurrency, and a worker is requested for it."""
        self.is_held = False
        """Whether a thread of an earlier run is still running: no other run may begin until it ends."""
        self.is_counted = False
        """Whether a failure of the current run counts as an attempt. Other triggers between retries do not count."""
        self.failures = 0
        """The number of consecutive failed attempts."""
        self.message: str | None = None
        """
        The error after which the handler waits for its next attempt, or the text about the object that it waits for.

        It is ``None`` after a success, and after the last attempt.
        """
        self.due_at: float | None = None
        """The time of the next run, unless it is triggered earlier."""
        self.due_reason = Trigger.INTERVAL
        self.paused_until: float | None = None
        """The end of a pause, before which no run may begin: handlers have been triggering each other endlessly."""

    @property
    def awaits_readiness(self) -> bool:
        """Return whether the last run could not continue until another object is ready; the message tells which one."""
        return self.message is not None and not self.failures

    @property
    def is_ready(self) -> bool:
        """Return whether the handler is triggered, and waits only for a worker."""
        return (
            bool(self.reasons)
            and not (self.is_running or self.is_held or self.is_waiting)
            and self.paused_until is None
        )


class Planner:
    """
    Plans the runs of one handler for all its objects.

    Args:
        pace: the limits of its runs.
        call: requests a worker for the object of the plan. It returns false if the object has a running worker, which
            takes the plan when it is free.
        rng: the source of random variation.
    """

    def __init__(self, pace: Pace, call: Callable[[Plan], bool], rng: random.Random | None = None) -> None:
        self._pace = pace
        self._call = call
        self._rng = random.Random() if rng is None else rng
        self._queue: FairPriorityQueue[Plan, None] = FairPriorityQueue()
        self._occupied = 0  # the number of plans that are running, or have a worker requested
        self._awaited: set[Hashable] = set()

    # Awaited lists.

    def expect(self, key: Hashable) -> None:
        """Hold all runs until `dismiss` is called with this key: the awaited list will trigger the objects again."""
        self._awaited.add(key)

    def dismiss(self, key: Hashable) -> None:
        """Stop waiting for the list with this key: it was received, or has failed."""
        self._awaited.discard(key)
        self._fill_slots()

    def _has_slot(self) -> bool:
        limit = self._pace.concurrency
        return not self._awaited and (limit is None or self._occupied < limit)

    # Triggers.

    def trigger(self, plan: Plan, reason: Trigger) -> None:
        """Request a run of the handler; further triggers before it begins are covered by the same run."""
        plan.reasons |= {reason}
        if reason not in _CALM and not plan.is_urgent:
            plan.is_urgent = True
            if plan.is_waiting:
                self._queue.prioritize(plan)
        self._request(plan)

    def ring(self, plan: Plan, now: float) -> None:
        """Called when the timer of the object fires; triggers the plan if it is due, and ends its pause."""
        if plan.paused_until is not None and plan.paused_until <= now:
            self.resume(plan)
        if plan.due_at is not None and plan.due_at <= now:
            plan.due_at = None
            self.trigger(plan, plan.due_reason)

    def drop(self, plan: Plan) -> None:
        """Cancel the planned runs of the object; a run in progress continues to its end."""
        plan.reasons, plan.is_urgent, plan.due_at, plan.failures = NONE, False, None, 0
        plan.paused_until = plan.message = None
        self._withdraw(plan)

    def _withdraw(self, plan: Plan) -> None:
        if plan.is_waiting:
            plan.is_waiting = False
            self._queue.discard(plan)
        self.yield_slot(plan)

    def pause(self, plan: Plan, until: float) -> None:
        """Begin no run before this time."""
        plan.paused_until = until

    def resume(self, plan: Plan) -> None:
        """End the pause, and request a run if it was triggered meanwhile."""
        plan.paused_until = None
        self._request(plan)

    def hold(self, plan: Plan) -> None:
        """Begin no run until `release`: the thread of an earlier run is still running."""
        plan.is_held = True
        self._withdraw(plan)

    def release(self, plan: Plan) -> None:
        """Called when the thread of an earlier run has ended, long after its timeout."""
        plan.is_held = False
        self._request(plan)

    def _request(self, plan: Plan) -> None:
        if not plan.is_ready or plan.is_granted:
            return
        if not self._has_slot():
            plan.is_waiting = True
            self._queue.push(plan, None, urgent=plan.is_urgent)
        else:
            self._grant(plan)

    def _grant(self, plan: Plan) -> None:
        plan.is_granted = True
        self._occupied += 1
        if not self._call(plan):
            # The worker is busy with other work on this object, and will call `take` afterwards. Until then, the slot
            # is free for other objects.
            self._free_slot(plan)

    def _free_slot(self, plan: Plan) -> None:
        plan.is_granted = False
        self._occupied -= 1

    def _fill_slots(self) -> None:
        while self._queue and self._has_slot():
            plan, _ = self._queue.pop()
            plan.is_waiting = False
            self._grant(plan)

    # Runs.

    def yield_slot(self, plan: Plan) -> None:
        """Called when the worker does other work on the object first: another object can use the slot meanwhile."""
        if plan.is_granted:
            self._free_slot(plan)
            self._fill_slots()

    def take(self, plan: Plan) -> frozenset[Trigger]:
        """Begin a run if it is triggered and a slot is free; return its reasons, or an empty set if it cannot begin."""
        if not plan.is_granted:
            if not plan.is_ready:
                return NONE
            if not self._has_slot():
                self._request(plan)
                return NONE
            self._occupied += 1
        reasons, plan.reasons = plan.reasons, NONE
        plan.is_running, plan.is_granted, plan.is_urgent, plan.due_at = True, False, False, None
        # Runs by other triggers do not count as attempts: otherwise, the back-off would grow to its limit with frequent
        # edits.
        plan.is_counted = not plan.failures or Trigger.RETRY in reasons
        return reasons

    def end(
        self,
        plan: Plan,
        outcome: Outcome | None,
        now: float,
        *,
        held: bool = False,
        recurring: bool = True,
    ) -> None:
        """
        End the run, and plan the retry or the next run by its outcome.

        Args:
            plan: the plan that was taken.
            outcome: the outcome; ``None`` if no further run is needed: this one was cancelled, or the object was
                deleted or does not match any more.
            now: the time (in seconds).
            held: whether the thread of the run could not be stopped, so that no other run may begin yet.
            recurring: whether a successful run plans the next one: by the interval, or by `Again`.
        """
        plan.is_running, plan.is_held = False, held
        plan.message = None if outcome is None or outcome.final else outcome.message
        self._occupied -= 1
        if outcome is None:
            pass
        elif isinstance(outcome.exception, NotReadyError):
            # Why no delay? The object that is not ready is owned or watched, so its next event triggers the handler.
            plan.failures = 0
            if recurring:
                self._plan_next(plan, None, now)
        elif not outcome.has_begun:
            plan.due_at, plan.due_reason = now, Trigger.RETRY
        elif not outcome.final:
            plan.failures += plan.is_counted
            plan.due_at, plan.due_reason = now + min(outcome.delay or 0, LONGEST_DELAY), Trigger.RETRY
        else:
            plan.failures = 0
            if outcome.exception is None and recurring:
                self._plan_next(plan, outcome.result, now)
        self._fill_slots()
        # It is queued behind other objects: an object that is triggered all the time must not keep its slot.
        self._request(plan)

    def _plan_next(self, plan: Plan, result: object, now: float) -> None:
        if self._pace.interval is not None:
            interval = min(self._pace.interval, LONGEST_DELAY)
            plan.due_at, plan.due_reason = now + self._vary(interval), Trigger.INTERVAL
        if isinstance(result, Again):
            again_at = now + min(result.after, LONGEST_DELAY)
            if plan.due_at is None or again_at <= plan.due_at:
                plan.due_at, plan.due_reason = again_at, Trigger.AGAIN

    def plan_by(self, plan: Plan, moment: float) -> None:
        """Plan a run at this time, unless one is planned before."""
        if plan.due_at is None or moment < plan.due_at:
            plan.due_at, plan.due_reason = moment, Trigger.AGAIN

    def get_attempts(self, plan: Plan) -> int:
        """Return the number of failed attempts before the current run."""
        return plan.failures if plan.is_counted else plan.failures - 1

    def find_backoff(self, plan: Plan) -> float:
        """Return the delay of the next attempt if the current run fails (in seconds)."""
        first, longest = self._pace.backoff
        # The exponent is limited, as the power would be too large for a float after a thousand attempts.
        delay = min(longest, first * GROWTH ** min(self.get_attempts(plan), 64))
        return round(self._vary(delay), 2)

    def _vary(self, delay: float) -> float:
        return delay * self._rng.uniform(1 - SPREAD, 1 + SPREAD)
