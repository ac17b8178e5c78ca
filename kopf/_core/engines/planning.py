"""
When the handlers of states are run: what triggers them, who goes first, and what follows from an outcome.

All of it is pure: no clock, no tasks, no requests. The times are passed in, and the one who has the workers is called
when an object is to get one. So everything that can happen to an object can be tried in a model, thousands of times.

A trigger says only *that* something has changed, not what: a handler looks at the newest state anyway. So it is enough
to remember one trigger an object, whatever its number, and nothing is ever compared or merged.
"""

import enum
import random
from collections.abc import Callable, Hashable
from typing import Any, Final, NamedTuple

from kopf._cogs.aiokits.priority_queues import FairPriorityQueue
from kopf._core.actions.execution import Outcome

GROWTH = 2
"""By which factor each delay after an error is longer than the previous one."""

SPREAD = 0.1
"""By which share delays and intervals vary, so that thousands of objects are not all handled at the same moment."""


LONGEST_DELAY = 365 * 24 * 3600.0
"""The longest time to wait (in seconds). Handlers can ask for infinite ones, which clocks and timers do not know."""


class Trigger(enum.StrEnum):
    """Why a handler of states is run."""

    START = 'start'
    """The operator has started, or goes on after a pause."""
    CHANGE = 'change'
    OWNED = 'owned'
    WATCHED = 'watched'
    INTERVAL = 'interval'
    AGAIN = 'again'
    RETRY = 'retry'


_CALM: Final = frozenset({Trigger.START, Trigger.INTERVAL})
"""The triggers that let all others go first: there can be one for every object at once."""

NONE: Final[frozenset[Trigger]] = frozenset()


class Again:
    """
    What a handler of states returns in order to be called once more after some time (in seconds).

    Any other trigger calls it earlier, and takes the place of this one.
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
    """How often a handler may be run; times are in seconds."""

    interval: float | None = None
    backoff: tuple[float, float] = (1, 600)
    """The first delay after an error, and the longest one."""
    concurrency: int | None = None
    """For how many objects the handler may run at once."""


class Plan:
    """When one handler is to be run for one object. Only `Planner` changes it."""

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
        'reasons',
        'target',
    )

    def __init__(self, target: Any) -> None:
        self.target = target
        self.reasons = NONE
        """What has come since the last run has begun; empty if there is nothing to do."""
        self.is_urgent = False
        """Whether some of it is not calm."""
        self.is_running = False
        self.is_waiting = False
        """Whether it waits for a place among the runs of the handler."""
        self.is_granted = False
        """Whether it has such a place, and its worker is on its way."""
        self.is_held = False
        """Whether a thread of an earlier run still goes on: another run must not be beside it."""
        self.is_counted = False
        """Whether a failure of the current run is one more attempt."""
        self.failures = 0
        """How many attempts have failed in a row."""
        self.due_at: float | None = None
        """When the handler is to be run if nothing triggers it earlier."""
        self.due_reason = Trigger.INTERVAL


class Planner:
    """
    Plans the runs of one handler for all its objects.

    Args:
        pace: how often it may be run.
        call: lets the worker of the object come, which takes the plan. It returns false if the worker is busy with
            the object, and so comes by itself.
        rng: makes the delays different from each other.
    """

    def __init__(self, pace: Pace, call: Callable[[Plan], bool], rng: random.Random | None = None) -> None:
        self._pace = pace
        self._call = call
        self._rng = random.Random() if rng is None else rng
        self._queue: FairPriorityQueue[Plan, None] = FairPriorityQueue()
        self._occupied = 0  # the places of those that run, and of those whose workers are on their way
        self._awaited: set[Hashable] = set()

    # What runs wait for.

    def expect(self, key: Hashable) -> None:
        """Begin no runs until the list of this key is there: they would be run again because of it."""
        self._awaited.add(key)

    def dismiss(self, key: Hashable) -> None:
        """Wait for the list no more: it is there, or can't be had now."""
        self._awaited.discard(key)
        self._admit()

    def _has_place(self) -> bool:
        limit = self._pace.concurrency
        return not self._awaited and (limit is None or self._occupied < limit)

    # Triggers.

    def trigger(self, plan: Plan, reason: Trigger) -> None:
        """Have the handler run for the object: once, whatever the number of triggers until that begins."""
        plan.reasons |= {reason}
        if reason not in _CALM and not plan.is_urgent:
            plan.is_urgent = True
            if plan.is_waiting:
                self._queue.hurry(plan)
        self._request(plan)

    def ring(self, plan: Plan, now: float) -> None:
        """Called when the time has come that was planned."""
        if plan.due_at is not None and plan.due_at <= now:
            plan.due_at = None
            self.trigger(plan, plan.due_reason)

    def drop(self, plan: Plan) -> None:
        """Forget all that is planned; what runs already ends by itself."""
        plan.reasons, plan.is_urgent, plan.due_at, plan.failures = NONE, False, None, 0
        if plan.is_waiting:
            plan.is_waiting = False
            self._queue.discard(plan)
        self.give_back(plan)

    def release(self, plan: Plan) -> None:
        """Called when the thread of an earlier run has ended after all."""
        plan.is_held = False
        self._request(plan)

    def _request(self, plan: Plan) -> None:
        if not plan.reasons or plan.is_running or plan.is_held or plan.is_waiting or plan.is_granted:
            return
        if not self._has_place():
            plan.is_waiting = True
            self._queue.push(plan, None, urgent=plan.is_urgent)
        else:
            self._grant(plan)

    def _grant(self, plan: Plan) -> None:
        plan.is_granted = True
        self._occupied += 1
        if not self._call(plan):
            # A busy worker asks for a place by itself when it is
            # done with the rest. Meanwhile, the place is for others.
            self._take_back(plan)

    def _take_back(self, plan: Plan) -> None:
        plan.is_granted = False
        self._occupied -= 1

    def _admit(self) -> None:
        while self._queue and self._has_place():
            plan, _ = self._queue.pop()
            plan.is_waiting = False
            self._grant(plan)

    # Runs.

    def give_back(self, plan: Plan) -> None:
        """Called when the worker has something else to do first: meanwhile, the place is for others."""
        if plan.is_granted:
            self._take_back(plan)
            self._admit()

    def take(self, plan: Plan) -> frozenset[Trigger]:
        """Begin a run if there is a reason and a place for it; return the reasons, or nothing if it can't begin now."""
        if not plan.is_granted:
            if not plan.reasons or plan.is_running or plan.is_held or plan.is_waiting:
                return NONE
            if not self._has_place():
                self._request(plan)
                return NONE
            self._occupied += 1
        reasons, plan.reasons = plan.reasons, NONE
        plan.is_running, plan.is_granted, plan.is_urgent, plan.due_at = True, False, False, None
        # Runs for other triggers do not count as attempts: frequent edits would let the back-off grow to its limit.
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
        End the run, and plan what follows from its outcome; nothing does from ``None``, as of a cancelled run.

        Args:
            plan: the plan of the run.
            outcome: the outcome of the run; ``None`` also if the object is gone meanwhile, or does not match any more.
            now: the current time.
            held: whether a thread could not be stopped.
            recurring: whether a run that has succeeded is followed by others without a change.
        """
        plan.is_running, plan.is_held = False, held
        self._occupied -= 1
        if outcome is None:
            pass
        elif not outcome.final:
            plan.failures += plan.is_counted
            plan.due_at, plan.due_reason = now + min(outcome.delay or 0, LONGEST_DELAY), Trigger.RETRY
        else:
            plan.failures = 0
            if outcome.exception is None and recurring:
                self._plan_next(plan, outcome.result, now)
        self._admit()
        # Queued behind the others: an object that is triggered all the time must not keep its place.
        self._request(plan)

    def _plan_next(self, plan: Plan, result: object, now: float) -> None:
        if self._pace.interval is not None:
            interval = min(self._pace.interval, LONGEST_DELAY)
            plan.due_at, plan.due_reason = now + self._vary(interval), Trigger.INTERVAL
        if isinstance(result, Again):
            again_at = now + min(result.after, LONGEST_DELAY)
            if plan.due_at is None or again_at <= plan.due_at:
                plan.due_at, plan.due_reason = again_at, Trigger.AGAIN

    def get_attempts(self, plan: Plan) -> int:
        """Return how many attempts there were before the current run: those that count."""
        return plan.failures if plan.is_counted else plan.failures - 1

    def find_backoff(self, plan: Plan) -> float:
        """Return after which time to try again if the current run fails (in seconds)."""
        first, longest = self._pace.backoff
        # The exponent is limited, as the power would be too large for a float after a thousand attempts.
        delay = min(longest, first * GROWTH ** min(self.get_attempts(plan), 64))
        return round(self._vary(delay), 2)

    def _vary(self, delay: float) -> float:
        return delay * self._rng.uniform(1 - SPREAD, 1 + SPREAD)
