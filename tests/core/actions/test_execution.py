"""One attempt of a handler: the meaning of its errors, its limits, and the logs."""

import asyncio
import contextlib
import contextvars
import datetime
import functools
import logging
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

import kopf
from kopf._cogs.structs import meters as meters_module
from kopf._cogs.structs.instruments import Instruments, ObjectKey, SamplingInstrument, Unsampled
from kopf._cogs.structs.meters import Meters
from kopf._cogs.structs.references import Resource
from kopf._core.actions import execution
from kopf._core.actions.execution import (
    Execution,
    Handler,
    HandlerChildrenRetry,
    Outcome,
    cause_var,
    handler_var,
    run_handler,
    running,
)
from kopf._core.actions.handler_states import HandlerState

pytestmark = pytest.mark.looptime

START = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
ENDLESS = object()

logger = logging.getLogger('test')


@pytest.fixture
def executor():
    with ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Wall clocks go as the loop's clock does."""
    moments = []

    def utcnow():
        moments.append(asyncio.get_running_loop().time())
        return START + datetime.timedelta(seconds=round(moments[-1] - moments[0], 6))

    monkeypatch.setattr(execution, 'utcnow', utcnow)


class Cause:
    """Why a handler is run: for no reason but the test."""

    logger = logger

    def kwargs_for(self, handler, state):
        return {'x': 1}


@pytest.fixture
def run(executor, caplog):
    """Run a handler that does this: raises it, calls it, or returns it."""
    caplog.set_level(logging.DEBUG)

    async def run(
        what,
        *,
        after=None,
        default_errors=kopf.ErrorsMode.TEMPORARY,
        is_cancelled=None,
        retries_done=0,
        age=0.0,
        **options,
    ):
        async def fn(**kwargs):
            if what is ENDLESS:
                await asyncio.Event().wait()
            elif isinstance(what, BaseException):
                raise what
            return await what(**kwargs) if callable(what) else what

        state = HandlerState(started=START - datetime.timedelta(seconds=age), retries=retries_done)
        rules = Execution(
            find_executor=lambda: executor,
            default_errors=default_errors,
            find_backoff=lambda: 33,
            is_cancelled=is_cancelled,
        )
        return await run_handler(Handler(id='fn', fn=fn, **options), Cause(), state, rules, after=after)

    return run


def messages(caplog, level=logging.INFO):
    return [record.getMessage() for record in caplog.records if record.levelno >= level]


# Successes.


async def test_a_handler_that_returns_has_succeeded_with_its_result(run, caplog):
    assert await run({'a': 1}) == Outcome(final=True, result={'a': 1})
    assert messages(caplog, logging.DEBUG) == ["Handler 'fn' is invoked.", "Handler 'fn' succeeded."]
    assert [record.levelname for record in caplog.records] == ['DEBUG', 'INFO']


async def test_handlers_get_the_kwargs_of_their_cause(run):
    async def fn(**kwargs):
        return kwargs

    assert (await run(fn)).result == {'x': 1}


async def test_sync_functions_are_run_in_the_executor(executor, caplog):
    handler = Handler(id='fn', fn=lambda **kwargs: kwargs)
    outcome = await run_handler(
        handler, Cause(), HandlerState(started=START), Execution(find_executor=lambda: executor)
    )
    assert outcome.result == {'x': 1}


async def test_errors_of_the_function_after_the_handler_count_as_its_own(run):
    async def after():
        raise HandlerChildrenRetry(5)

    outcome = await run('ignored', after=after)
    assert (outcome.final, outcome.delay, outcome.result, outcome.message) == (False, 5, None, None)


async def test_unfinished_children_are_not_logged(run, caplog):
    await run(HandlerChildrenRetry(5))
    assert messages(caplog) == []


# Errors.


@pytest.mark.parametrize('delay', [0, None, 5, 1.5])
async def test_temporary_errors_delay_the_next_attempt(run, caplog, delay):
    outcome = await run(kopf.TemporaryError('boo', delay=delay))
    assert (outcome.final, outcome.delay, outcome.message) == (False, delay, 'boo')
    assert messages(caplog) == ["Handler 'fn' failed temporarily: boo"]
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize('delay', [0, None])
async def test_handlers_that_always_ask_to_be_called_at_once_are_slowed_down(run, caplog, delay):
    error = kopf.TemporaryError('boo', delay=delay)
    assert (await run(error, retries_done=18)).delay == delay
    assert not any('at once' in text for text in messages(caplog))
    assert (await run(error, retries_done=19)).delay == 0.5
    assert sum('is called again at once each time' in text for text in messages(caplog)) == 1
    assert (await run(error, retries_done=30)).delay == 0.5
    assert (await run(error, retries_done=30, age=5.8)).delay == pytest.approx(0.2)
    assert (await run(error, retries_done=30, age=10)).delay == delay  # the attempts take long enough themselves
    assert (await run(ValueError('boo'), retries_done=30, backoff=0)).delay == 0.5
    assert (await run(kopf.TemporaryError('boo', delay=0.1), retries_done=30)).delay == 0.1
    assert sum('is called again at once each time' in text for text in messages(caplog)) == 1


async def test_temporary_errors_are_delayed_by_default(run):
    assert (await run(kopf.TemporaryError('boo'))).delay == 60


@pytest.mark.parametrize(
    'error, text', [(kopf.PermanentError('boo'), 'boo'), (kopf.PermanentError(), 'PermanentError()')]
)
async def test_permanent_errors_are_final(run, caplog, error, text):
    outcome = await run(error)
    assert (outcome.final, outcome.exception, outcome.message) == (True, error, text)
    assert messages(caplog) == [f"Handler 'fn' failed permanently: {text}"]


async def test_the_delay_of_a_subclass_that_does_not_call_the_constructor(run):
    class NotReady(kopf.TemporaryError):
        def __init__(self, pod):
            self.pod = pod

    outcome = await run(NotReady('pod'))
    assert not outcome.final and outcome.delay == 60


@pytest.mark.parametrize('cls', [kopf.PermanentError, kopf.TemporaryError])
@pytest.mark.parametrize('options', [{}, {'retries': 1}, {'timeout': 0.1}])
async def test_errors_of_functions_of_the_framework_are_logged_with_their_codes(run, caplog, cls, options):
    class CodedError(cls):
        message_code = 'coded-error'

    await run(CodedError('boo'), **options)
    assert [record.message_code for record in caplog.records if record.levelname == 'ERROR'] == ['coded-error']
    caplog.clear()
    await run(cls('boo'), **options)
    assert not any(hasattr(record, 'message_code') for record in caplog.records)


@pytest.mark.parametrize('mode', kopf.ErrorsMode)
async def test_modes_do_not_concern_explicit_errors(run, mode):
    assert not (await run(kopf.TemporaryError('boo'), errors=mode)).final
    assert (await run(kopf.PermanentError('boo'), errors=mode)).exception is not None


@pytest.mark.parametrize('error', [ValueError('boo'), TimeoutError('boo'), SystemExit('boo')])
@pytest.mark.parametrize('options, delay', [({}, 33), ({'backoff': 7}, 7), ({'backoff': 0}, 0)])
async def test_arbitrary_errors_are_retried_after_the_backoff(run, caplog, error, options, delay):
    outcome, text = await run(error, **options), f'{type(error).__name__}: boo'
    assert (outcome.final, outcome.delay, outcome.exception, outcome.message) == (False, delay, error, text)
    assert messages(caplog) == [f"Handler 'fn' failed with an exception and will try again in {delay} seconds: {text}"]
    assert caplog.records[-1].exc_info[1] is error


@pytest.mark.parametrize('how', ['own', 'default'])
async def test_arbitrary_errors_can_be_declared_as_permanent(run, caplog, how):
    error, mode = ValueError('boo'), kopf.ErrorsMode.PERMANENT
    outcome = await (run(error, errors=mode) if how == 'own' else run(error, default_errors=mode))
    assert outcome == Outcome(final=True, exception=error)
    assert messages(caplog) == ["Handler 'fn' failed with an exception and will stop now: ValueError: boo"]


@pytest.mark.parametrize('how', ['own', 'default'])
async def test_arbitrary_errors_can_be_ignored(run, caplog, how):
    error, mode = ValueError('boo'), kopf.ErrorsMode.IGNORED
    outcome = await (run(error, errors=mode) if how == 'own' else run(error, default_errors=mode))
    assert outcome == Outcome(final=True, ignored=True)
    assert messages(caplog) == ["Handler 'fn' failed with an exception and will ignore it: ValueError: boo"]


async def test_the_mode_of_the_handler_precedes_that_of_the_operator(run):
    outcome = await run(ValueError(), errors=kopf.ErrorsMode.TEMPORARY, default_errors=kopf.ErrorsMode.IGNORED)
    assert not outcome.final


# Limits of attempts.


@pytest.mark.parametrize('error', [kopf.TemporaryError('boo'), ValueError('boo')])
async def test_the_last_permitted_attempt_is_final_if_it_fails(run, caplog, error):
    outcomes = [await run(error, retries=3, retries_done=done) for done in range(3)]
    assert [outcome.final for outcome in outcomes] == [False, False, True]
    assert outcomes[-1].exception is not None
    assert '3 retries' in messages(caplog)[-1] and 'boo' in messages(caplog)[-1]


async def test_no_attempt_is_made_beyond_the_limit(run, caplog):
    outcome = await run(pytest.fail, retries=3, retries_done=3)
    assert isinstance(outcome.exception, kopf.HandlerRetriesError) and outcome.final
    assert messages(caplog) == ["Handler 'fn' has exceeded 3 retries."]


async def test_the_last_attempt_can_succeed(run):
    assert await run('result', retries=3, retries_done=2) == Outcome(final=True, result='result')


# Limits of time.


@pytest.mark.parametrize(
    'error, options', [(kopf.TemporaryError('boo', delay=6), {}), (ValueError('boo'), {'backoff': 6})]
)
@pytest.mark.parametrize('age, final', [(0, False), (3.9, False), (4, True), (9, True)])
async def test_no_attempt_is_planned_past_the_end(run, caplog, error, options, age, final):
    outcome = await run(error, timeout=10, age=age, **options)
    assert outcome.final is final
    assert not final or ('boo' in outcome.message and 'time out' in messages(caplog)[-1])


async def test_no_attempt_is_made_after_the_end(run, caplog):
    outcome = await run(pytest.fail, timeout=10, age=10)
    assert isinstance(outcome.exception, kopf.HandlerTimeoutError) and outcome.final
    assert messages(caplog) == ["Handler 'fn' has timed out after 10 seconds."]


@pytest.mark.parametrize('age', [0, 7.5])
async def test_coroutines_are_stopped_at_the_end(run, age):
    loop = asyncio.get_running_loop()
    began = loop.time()
    outcome = await run(ENDLESS, timeout=10, age=age)
    assert isinstance(outcome.exception, kopf.HandlerTimeoutError) and outcome.final
    assert loop.time() - began == pytest.approx(10 - age)


async def test_coroutines_can_clean_up_at_the_end(run):
    log = []

    async def fn(**_):
        try:
            await asyncio.sleep(99)
        finally:
            await asyncio.sleep(1)
            log.append('cleaned')

    assert isinstance((await run(fn, timeout=5)).exception, kopf.HandlerTimeoutError)
    assert log == ['cleaned']


async def test_timeouts_inside_of_the_function_are_its_own(run):
    async def fn(**_):
        async with asyncio.timeout(1):
            await asyncio.sleep(99)

    outcome = await run(fn, timeout=100, backoff=5)
    assert isinstance(outcome.exception, TimeoutError) and not outcome.final


# Cancellations.


async def test_cancellations_of_the_task_are_raised(run, caplog):
    task = asyncio.create_task(run(ENDLESS))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert messages(caplog) == ["Handler 'fn' is cancelled. Will escalate."]


@pytest.mark.parametrize('options', [{}, {'timeout': 9}])
async def test_stray_cancellations_of_the_task_are_errors_of_the_function(run, caplog, options):
    async def fn(**_):
        asyncio.current_task().cancel()
        await asyncio.sleep(9)

    outcome = await run(fn, backoff=5, is_cancelled=lambda: False, **options)
    assert (outcome.final, outcome.delay) == (False, 5) and 'not by the operator' in outcome.message
    assert "will try again in 5 seconds" in messages(caplog)[-1] and caplog.records[-1].exc_info
    assert not asyncio.current_task().cancelling()


async def test_cancellations_by_the_owner_of_the_task_are_raised(run):
    task = asyncio.create_task(run(ENDLESS, is_cancelled=lambda: True))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize('options', [{}, {'timeout': 9}])
async def test_cancellations_of_awaited_tasks_are_errors_of_the_function(run, caplog, options):
    async def fn(**_):
        other = asyncio.create_task(asyncio.sleep(9))
        other.cancel()
        await other

    outcome = await run(fn, backoff=5, **options)
    assert (outcome.final, outcome.delay, outcome.message) == (False, 5, 'CancelledError()')
    assert 'will try again in 5 seconds' in messages(caplog)[-1]


# Measurement.


class Reconciler(Handler):
    """A handler that is called in the steps of its object."""

    reconciles = True


class ObjectCause(Cause):
    """The cause of a handler of an object."""

    key = ObjectKey(Resource('kopf.dev', 'v1', 'kopfexamples'), 'ns', 'name', 'uid')
    occasion = None


class Listener(kopf.Instrument):
    """An instrument that listens to handlers."""

    def handler_ends(self, call):
        """Do nothing."""


class NeverSampling(SamplingInstrument):
    """An instrument that listens to handlers, but samples no traces. It is the sampler, too."""

    def __init__(self):
        self.sampler = self

    def handler_begins(self, call):
        """Never called."""
        raise AssertionError(call)

    def skip(self, carried):
        return Unsampled(self, carried)

    is_lazy = False


@pytest.fixture
def measure(executor):
    """Run a handler with meters; return the counts of attempts by handlers and outcomes, and of failed steps."""

    async def measure(fn, *instruments, cls=Handler, **options):
        meters, observers = Meters(), Instruments(instruments)
        observers.measure(meters)
        rules = Execution(find_executor=lambda: executor, instruments=observers)
        handler = cls(id='fn', fn=fn, **options)
        with contextlib.suppress(asyncio.CancelledError):
            await run_handler(handler, ObjectCause(), HandlerState(started=START), rules)
        meter = meters.get(ObjectCause.key.resource)
        meter.note_reconciliation(0, 'success', ObjectCause.key.uid)
        return {key: count for key, (count, _) in meters.handlers.items()}, meter.results['error']

    return measure


@pytest.mark.parametrize(
    'error, options, outcome, errors',
    [
        (None, {}, 'succeeded', 0),
        (kopf.TemporaryError(), {}, 'retried', 0),
        (HandlerChildrenRetry(5), {}, 'waiting', 0),
        (kopf.PermanentError(), {}, 'failed', 1),
        (ValueError(), {}, 'retried', 1),
        (ValueError(), {'errors': kopf.ErrorsMode.IGNORED}, 'ignored', 0),
        (asyncio.CancelledError(), {'errors': kopf.ErrorsMode.PERMANENT}, 'failed', 1),
    ],
)
@pytest.mark.parametrize('cls', [Handler, Reconciler])
@pytest.mark.parametrize('instruments', [(), (Listener(),)], ids=['', 'observed'])
async def test_attempts_are_counted_by_their_outcomes(measure, instruments, cls, error, options, outcome, errors):
    async def fn(**_):
        if error is not None:
            raise error

    counted = await measure(fn, *instruments, cls=cls, **options)
    assert counted == ({('fn', outcome): 1}, errors if cls is Reconciler else 0)


async def test_cancelled_attempts_are_counted(measure):
    async def fn(**_):
        task.cancel()
        await asyncio.Event().wait()

    task = asyncio.create_task(measure(fn))
    assert await task == ({('fn', 'cancelled'): 1}, 0)


async def test_attempts_without_spans_are_counted(measure):
    Unsampled(SimpleNamespace(attach=lambda: None)).begin_step('MODIFIED', 1)
    assert await measure(lambda **_: None, NeverSampling()) == ({('fn', 'succeeded'): 1}, 0)


async def test_attempts_of_sub_handlers_are_counted_under_one_name(executor):
    instruments, meters = Instruments(), Meters()
    instruments.measure(meters)
    rules = Execution(find_executor=lambda: executor, instruments=instruments)

    async def fn(**_):
        for id in ('fn/a', 'fn/b'):
            child = Handler(id=id, fn=lambda **_: None)
            await run_handler(child, Cause(), HandlerState(started=START), rules)

    await run_handler(Handler(id='fn', fn=fn), Cause(), HandlerState(started=START), rules)
    assert {labels: count for labels, (count, _) in meters.handlers.items()} == {
        ('fn/*', 'succeeded'): 2,
        ('fn', 'succeeded'): 1,
    }


async def test_the_time_of_an_attempt_is_measured(executor, monkeypatch):
    for module in (execution, meters_module):
        monkeypatch.setattr(module, 'monotonic', asyncio.get_running_loop().time)
    instruments, meters = Instruments(), Meters()
    instruments.measure(meters)

    async def fn(**_):
        await asyncio.sleep(5)

    rules = Execution(find_executor=lambda: executor, instruments=instruments)
    for count in (1, 2, 3):
        await run_handler(Handler(id='fn', fn=fn), Cause(), HandlerState(started=START), rules)
        assert meters.handlers == {('fn', 'succeeded'): [count, pytest.approx(5 * count)]}


async def test_handlers_are_measured_but_not_told_if_their_step_is_not_observed(executor):
    listener, meters, told = Listener(), Meters(), []
    listener.handler_begins = told.append
    instruments = Instruments([listener])
    instruments.measure(meters)
    for observed in (False, True):
        rules = Execution(find_executor=lambda: executor, instruments=instruments, observed=observed)
        await run_handler(Handler(id='fn', fn=lambda **_: None), ObjectCause(), HandlerState(started=START), rules)
        assert (len(told), meters.handlers['fn', 'succeeded'][0]) == ((1, 2) if observed else (0, 1))


# Context.


async def test_the_handler_and_the_cause_are_in_context_variables():
    handler, cause = Handler(id='fn', fn=lambda **_: None), object()
    with running(handler, cause):
        assert handler_var.get() is handler and cause_var.get() is cause
        with running(handler, None):
            assert cause_var.get() is None
        assert cause_var.get() is cause
    assert handler_var.get(None) is None


def test_abandoned_handlers_end_quietly():
    manager = running(Handler(id='fn', fn=lambda **_: None), object())
    contextvars.Context().run(manager.__enter__)
    manager.__exit__(None, None, None)


@pytest.mark.parametrize(
    'fn, expected', [(lambda **_: None, False), (functools.partial(asyncio.sleep), True), (asyncio.sleep, True)]
)
def test_functions_are_recognised_as_sync_or_async(fn, expected):
    assert Handler(id='fn', fn=fn).asynchronous is expected


def test_errors_are_described_with_their_classes_unless_they_are_written_for_users():
    assert execution.describe_error(KeyError('nosuch')) == "KeyError: 'nosuch'"
    assert execution.describe_error(AssertionError()) == 'AssertionError()'
    assert execution.describe_error(Exception('boo')) == 'boo'
    assert execution.describe_error(Exception()) == 'Exception()'
    assert execution.describe_error(kopf.PermanentError('boo')) == 'boo'
    assert execution.describe_error(ValueError()) == 'ValueError()'
    assert execution.describe_error(ValueError(None)) == 'ValueError()'
    assert kopf.TemporaryError('boo').delay == 60


@pytest.mark.parametrize('delay', ['60', float('nan')])
def test_other_delays_than_numbers_are_refused(delay):
    with pytest.raises(TypeError, match="delay= must be a number of seconds, not "):
        kopf.TemporaryError('boo', delay=delay)
