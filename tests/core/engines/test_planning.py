"""Plans of handlers of states: what triggers a run, who goes first, what follows; and any order of all that."""

import heapq
import itertools
import random

import pytest

from kopf._core.actions.execution import NotReadyError, Outcome, PermanentError, TemporaryError
from kopf._core.engines.planning import Again, Pace, Plan, Planner, Trigger

SUCCESS = Outcome(final=True)
FAILURE = Outcome(final=True, exception=PermanentError())


def retry(delay):
    return Outcome(final=False, delay=delay, exception=TemporaryError())


class Model:
    """
    Some objects with inputs that change at random, their workers, and a clock; what must always hold is checked.

    The inputs of an object are its own version, and that of its children. A run sees what they are when it begins.
    """

    def __init__(self, seed):
        self.rng = rng = random.Random(seed)
        self.now = 0.0
        self.events = []
        self.numbers = itertools.count()
        self.concurrency = rng.choice([None, 1, 2, 3])
        self.interval = rng.choice([None, None, 20.0])
        self.names = [f'obj{number}' for number in range(rng.randint(1, 5))]
        self.inputs = {name: [0, 0] for name in self.names}
        self.life = 0  # of the operator
        self.hopeless = rng.random() / 2  # how many of the runs fail
        self.start()

    def start(self):
        """Start the operator anew: what has run is cancelled, what was planned is forgotten."""
        self.life += 1
        pace = Pace(interval=self.interval, backoff=(1, 8), concurrency=self.concurrency)
        self.planner = Planner(pace, self.call, self.rng)
        self.plans = {name: Plan(name) for name in self.names}
        self.running, self.working = set(), set()
        self.seen = dict.fromkeys(self.names)  # what the last run has seen, if it has not failed for now
        self.due = dict.fromkeys(self.names, False)  # whether something has come since the last run began
        self.planner.expect('children')
        for name in self.names:
            self.trigger(name, Trigger.START)
        self.at(self.rng.random(), self.planner.dismiss, 'children')

    def at(self, delay, fn, *args):
        """Call the function after a while, unless the operator is restarted by then."""
        life = self.life
        heapq.heappush(self.events, (self.now + delay, next(self.numbers), lambda: life == self.life and fn(*args)))

    def run(self):
        for _ in range(self.rng.randint(1, 25)):
            edit = self.rng.choice([self.edit, self.edit, self.edit, self.start])
            heapq.heappush(self.events, (self.rng.random() * 30, next(self.numbers), edit))
        while self.events and self.now < 500:
            self.now, _, event = heapq.heappop(self.events)
            self.hopeless = 0 if self.now > 100 else self.hopeless
            event()
        for name in self.names:
            assert self.seen[name] == self.inputs[name], "the last run has seen the last state of all inputs"
        if self.interval is None:
            assert not self.events and not self.running and not self.working
            assert not any(plan.reasons for plan in self.plans.values())

    def edit(self):
        name, which = self.rng.choice(self.names), self.rng.randrange(2)
        self.inputs[name][which] += 1
        self.trigger(name, [Trigger.CHANGE, Trigger.OWNED][which])

    def trigger(self, name, reason):
        self.due[name] = True
        self.planner.trigger(self.plans[name], reason)

    def ring(self, name):
        plan = self.plans[name]
        if plan.due_at is not None and plan.due_at <= self.now:
            self.due[name] = True
        self.planner.ring(plan, self.now)

    def call(self, plan):
        if plan.target in self.working:
            return False
        self.working.add(plan.target)
        self.at(self.rng.random() / 10, self.come, plan)
        return True

    def come(self, plan):
        """Begin to work: sometimes with something else, which takes long."""
        if self.rng.random() < 0.2:
            self.planner.yield_slot(plan)
            self.at(self.rng.random() * 5, self.look, plan)
        else:
            self.look(plan)

    def look(self, plan):
        name = plan.target
        if not (reasons := self.planner.take(plan)):
            self.working.discard(name)
            assert not plan.reasons or plan.is_waiting or plan.is_held, "it is not forgotten"
            return
        assert name not in self.running and not plan.is_held, "there are never two runs at once"
        assert self.due[name] and set(reasons) <= set(Trigger), "no run is without a reason"
        self.running.add(name)
        assert self.concurrency is None or len(self.running) <= self.concurrency
        self.due[name] = False
        state = list(self.inputs[name])
        self.at(self.rng.choice([0, 0.01, 1, 10]), self.end, plan, state)

    def end(self, plan, state):
        name = plan.target
        self.running.discard(name)
        failing = self.rng.random() < self.hopeless
        outcome = retry(self.rng.choice([0, self.planner.find_backoff(plan)])) if failing else SUCCESS
        self.seen[name] = None if failing else state
        held = failing and self.rng.random() < 0.3
        self.planner.end(plan, outcome, self.now, held=held)
        if held:
            self.at(self.rng.random() * 20, self.planner.release, plan)
        if plan.due_at is not None:
            self.at(plan.due_at - self.now + 1e-9, self.ring, name)
        self.look(plan)


@pytest.mark.parametrize(
    'seeds', [range(500), pytest.param(range(500, 10_500), marks=pytest.mark.thorough)], ids=['some', 'many']
)
def test_the_last_run_sees_the_last_state_whatever_happens_when(seeds):
    for seed in seeds:
        try:
            Model(seed).run()
        except AssertionError as error:
            raise AssertionError(f"Model({seed}).run()") from error


class Calls:
    """A planner with its workers: they come when the test says so."""

    def __init__(self, **options):
        self.called = []
        self.busy = set()
        self.planner = Planner(Pace(**options), self.call, random.Random(1))

    def call(self, plan):
        if plan.target in self.busy:
            return False
        self.called.append(plan.target)
        return True

    def run(self, plan, outcome=SUCCESS, now=0.0):
        reasons = self.planner.take(plan)
        assert reasons
        self.planner.end(plan, outcome, now)
        return set(reasons)


def test_triggers_before_a_run_are_one_run_with_all_reasons():
    calls, plan = Calls(), Plan('a')
    calls.planner.trigger(plan, Trigger.START)
    calls.planner.trigger(plan, Trigger.OWNED)
    calls.planner.trigger(plan, Trigger.OWNED)
    assert calls.run(plan) == {'start', 'owned'}
    assert not calls.planner.take(plan) and plan.due_at is None


def test_triggers_during_a_run_are_one_more_run():
    calls, plan = Calls(), Plan('a')
    calls.planner.trigger(plan, Trigger.CHANGE)
    assert calls.planner.take(plan)
    calls.planner.trigger(plan, Trigger.OWNED)
    calls.planner.trigger(plan, Trigger.CHANGE)
    assert not calls.planner.take(plan)
    calls.planner.end(plan, SUCCESS, 0.0)
    assert calls.run(plan) == {'owned', 'change'}
    assert not calls.planner.take(plan)


def test_the_worker_is_called_for_what_has_come_during_a_run():
    calls, plan = Calls(), Plan('a')
    calls.planner.trigger(plan, Trigger.CHANGE)
    assert calls.planner.take(plan)
    calls.planner.trigger(plan, Trigger.OWNED)
    assert calls.called == ['a']
    calls.planner.end(plan, SUCCESS, 0.0)
    assert calls.called == ['a', 'a']


def test_live_triggers_go_before_those_of_the_start_and_of_intervals():
    calls = Calls(concurrency=1)
    plans = {name: Plan(name) for name in 'abcd'}
    for name, reason in zip('abcd', [Trigger.CHANGE, Trigger.START, Trigger.INTERVAL, Trigger.RETRY], strict=True):
        calls.planner.trigger(plans[name], reason)
    for plan in list(plans.values())[:1]:
        calls.run(plan)
    assert calls.called == ['a', 'd']
    calls.planner.trigger(plans['c'], Trigger.WATCHED)
    calls.run(plans['d'])
    calls.run(plans['c'])
    assert calls.called == ['a', 'd', 'c', 'b']


def test_objects_whose_workers_are_busy_hold_no_places():
    calls, busy, other = Calls(concurrency=1), Plan('busy'), Plan('other')
    calls.busy.add('busy')
    calls.planner.trigger(busy, Trigger.CHANGE)
    calls.planner.trigger(other, Trigger.CHANGE)
    assert calls.called == ['other']
    assert not calls.planner.take(busy)  # its worker comes, and finds no place
    calls.busy.clear()
    calls.run(other)
    assert calls.called == ['other', 'busy'] and calls.run(busy) == {'change'}


def test_workers_that_have_something_else_to_do_first_give_their_place_to_others():
    calls, first, second = Calls(concurrency=1), Plan('first'), Plan('second')
    calls.planner.trigger(first, Trigger.CHANGE)
    calls.planner.trigger(second, Trigger.CHANGE)
    calls.planner.yield_slot(first)
    assert calls.called == ['first', 'second']
    assert not calls.planner.take(first)
    calls.run(second)
    assert calls.run(first) == {'change'}


def test_errors_back_off_twofold_and_not_beyond_the_limit():
    calls, plan, delays = Calls(backoff=(1, 10)), Plan('a'), []
    calls.planner.trigger(plan, Trigger.CHANGE)
    for _ in range(6):
        assert calls.planner.take(plan)
        delays.append(calls.planner.find_backoff(plan))
        calls.planner.end(plan, retry(delays[-1]), 100.0)
        calls.planner.ring(plan, 100.0 + delays[-1] - 0.01)
        assert not plan.reasons
        calls.planner.ring(plan, 100.0 + delays[-1])
    assert delays == pytest.approx([1, 2, 4, 8, 10, 10], rel=0.1)
    assert delays != [1, 2, 4, 8, 10, 10]  # not all objects at the same moment


def test_triggers_from_outside_run_it_earlier_and_consume_no_attempt():
    calls, plan = Calls(backoff=(1, 100)), Plan('a')
    calls.planner.trigger(plan, Trigger.CHANGE)
    calls.run(plan, retry(1))
    for _ in range(5):
        calls.planner.trigger(plan, Trigger.OWNED)
        assert calls.planner.take(plan) == {'owned'}
        assert calls.planner.get_attempts(plan) == 0
        assert calls.planner.find_backoff(plan) == pytest.approx(1, rel=0.1)
        calls.planner.end(plan, retry(1), 0.0)
    calls.planner.ring(plan, 1.0)
    assert calls.planner.take(plan) == {'retry'} and calls.planner.get_attempts(plan) == 1
    assert calls.planner.find_backoff(plan) == pytest.approx(2, rel=0.1)


def test_attempts_are_counted_anew_after_a_success():
    calls, plan = Calls(), Plan('a')
    calls.planner.trigger(plan, Trigger.CHANGE)
    calls.run(plan, retry(1))
    calls.planner.ring(plan, 1.0)
    calls.run(plan)
    calls.planner.trigger(plan, Trigger.CHANGE)
    assert calls.planner.take(plan) and calls.planner.get_attempts(plan) == 0


def test_the_reason_of_a_wait_is_known_until_the_next_result():
    calls, plan = Calls(), Plan('a')
    unready = Outcome(final=False, exception=NotReadyError("a child is not ready"))
    failed = Outcome(final=False, delay=1, exception=TemporaryError("no answer"))
    for outcome, message, awaits in [
        (unready, "a child is not ready", True),
        (failed, "no answer", False),
        (unready, "a child is not ready", True),
        (SUCCESS, None, False),
        (failed, "no answer", False),
        (FAILURE, None, False),
        (failed, "no answer", False),
    ]:
        calls.planner.trigger(plan, Trigger.RETRY)
        calls.run(plan, outcome)
        assert (plan.message, plan.awaits_readiness) == (message, awaits)
    calls.planner.drop(plan)
    assert plan.message is None


def test_permanent_errors_wait_for_the_next_trigger_from_outside():
    calls, plan = Calls(interval=10), Plan('a')
    calls.planner.trigger(plan, Trigger.CHANGE)
    calls.run(plan, FAILURE)
    assert plan.due_at is None and not plan.reasons
    calls.planner.trigger(plan, Trigger.OWNED)
    assert calls.run(plan) == {'owned'}


def test_intervals_are_from_the_end_of_a_run_and_vary():
    calls, plan, moments = Calls(interval=100), Plan('a'), []
    calls.planner.trigger(plan, Trigger.START)
    for _ in range(20):
        calls.run(plan, now=50.0)
        moments.append(plan.due_at)
        calls.planner.ring(plan, plan.due_at)
        assert plan.reasons == {'interval'}
    assert all(140 <= moment <= 160 for moment in moments) and len(set(moments)) > 10


@pytest.mark.parametrize(
    'interval, after, due, reason', [(None, 5, 5, 'again'), (100, 5, 5, 'again'), (10, 500, None, 'interval')]
)
def test_the_handler_is_run_again_when_it_asks_for_that_or_earlier(interval, after, due, reason):
    calls, plan = Calls(interval=interval), Plan('a')
    calls.planner.trigger(plan, Trigger.START)
    calls.run(plan, Outcome(final=True, result=Again(after=after)))
    assert plan.due_reason == reason and (due is None or plan.due_at == due)
    calls.planner.trigger(plan, Trigger.CHANGE)
    assert plan.due_at is not None
    calls.run(plan, FAILURE)
    assert plan.due_at is None  # whatever was planned before


def test_no_run_is_beside_a_thread_that_could_not_be_stopped():
    calls, plan, other = Calls(concurrency=1), Plan('a'), Plan('other')
    calls.planner.trigger(plan, Trigger.CHANGE)
    assert calls.planner.take(plan)
    calls.planner.end(plan, retry(1), 0.0, held=True)
    calls.planner.ring(plan, 1.0)
    calls.planner.trigger(plan, Trigger.CHANGE)
    assert not calls.planner.take(plan)
    calls.planner.trigger(other, Trigger.CHANGE)
    calls.run(other)  # but it holds no place
    calls.planner.release(plan)
    assert calls.run(plan) == {'retry', 'change'}


def test_no_run_begins_before_the_expected_lists_are_there():
    calls, plan = Calls(), Plan('a')
    calls.planner.expect('deployments')
    calls.planner.expect('services')
    calls.planner.trigger(plan, Trigger.START)
    calls.planner.dismiss('deployments')
    assert not calls.called and not calls.planner.take(plan)
    calls.planner.dismiss('services')
    assert calls.called == ['a'] and calls.run(plan) == {'start'}


def test_nothing_is_left_of_a_dropped_plan():
    calls, plan, waiting = Calls(concurrency=1), Plan('a'), Plan('waiting')
    calls.planner.trigger(plan, Trigger.CHANGE)
    calls.planner.trigger(waiting, Trigger.CHANGE)
    calls.planner.drop(waiting)
    calls.planner.drop(plan)
    assert not calls.planner.take(plan) and not calls.planner.take(waiting)
    calls.planner.trigger(third := Plan('third'), Trigger.CHANGE)
    assert calls.run(third) == {'change'}


@pytest.mark.parametrize('after', [-1, float('nan')])
def test_again_in_the_past_is_refused(after):
    with pytest.raises(ValueError, match=r"kopf\.Again: after= must not be negative"):
        Again(after=after)


@pytest.mark.parametrize('after', [None, '5', True])
def test_times_are_numbers_of_seconds(after):
    with pytest.raises(TypeError, match=r"kopf\.Again: after= must be a number of seconds"):
        Again(after=after)


def test_a_paused_plan_is_not_run_whatever_triggers_it_until_the_pause_ends():
    called = []
    planner = Planner(Pace(), lambda plan: not called.append(plan))
    plan = Plan('obj')
    planner.pause(plan, 10.0)
    planner.trigger(plan, Trigger.CHANGE)
    planner.ring(plan, 9.0)
    assert not called and not planner.take(plan)
    planner.ring(plan, 10.0)
    assert called == [plan] and planner.take(plan) == {Trigger.CHANGE}


def test_the_pause_of_a_plan_ends_when_it_is_resumed_or_dropped():
    called = []
    planner = Planner(Pace(), lambda plan: not called.append(plan))
    plan = Plan('obj')
    planner.pause(plan, 10.0)
    planner.resume(plan)
    assert not called  # nothing has triggered it
    planner.pause(plan, 10.0)
    planner.drop(plan)
    planner.trigger(plan, Trigger.OWNED)
    assert called == [plan]
