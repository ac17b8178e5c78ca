"""Activities: the rounds of their handlers, the outcomes, the credentials, and mistakes in startup handlers."""

import asyncio
import datetime
import json
import re
import sys

import pytest

import kopf
from kopf._core.actions import execution
from kopf._core.actions.execution import Outcome
from kopf._core.engines import activities
from kopf._core.engines.activities import ActivityError, check_outcomes, get_credentials, run_activity
from kopf._core.intents.causes import Activity
from kopf._core.intents.contexts import OperatorContext

START = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
INFO = kopf.ConnectionInfo(server='https://localhost')


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Wall clocks go as the loop's clock does."""
    moments = []

    def utcnow():
        moments.append(asyncio.get_running_loop().time())
        return START + datetime.timedelta(seconds=round(moments[-1] - moments[0], 6))

    monkeypatch.setattr(execution, 'utcnow', utcnow)
    monkeypatch.setattr(activities, 'utcnow', utcnow)


@pytest.fixture
def run(registry):
    async def run(activity=Activity.STARTUP, **kwargs):
        handlers = registry.activities.get_handlers(activity)
        settings = kwargs.pop('settings', kopf.OperatorSettings())
        return await run_activity(activity, handlers, OperatorContext(settings=settings), **kwargs)

    return run


@pytest.mark.looptime
async def test_all_handlers_of_an_activity_run_in_the_order_of_their_declaration(registry, run):
    calls = []
    for number in range(3):
        kopf.on.startup(id=f'id{number}', registry=registry)(lambda number=number, **_: calls.append(number) or number)
    outcomes = await run()
    assert calls == [0, 1, 2]
    assert {key: outcome.result for key, outcome in outcomes.items()} == {'id0': 0, 'id1': 1, 'id2': 2}


@pytest.mark.looptime
@pytest.mark.parametrize(
    'activity, effect',
    [
        (Activity.STARTUP, "Until it ends, no objects are handled."),
        (
            Activity.CLEANUP,
            "Until it ends, the operator does not end. A second signal, such as Ctrl-C, ends it at once.",
        ),
    ],
)
async def test_a_slow_handler_is_reported_once_with_what_waits_for_it(registry, run, caplog, activity, effect):
    decorator = kopf.on.startup if activity is Activity.STARTUP else kopf.on.cleanup

    @decorator(registry=registry, id='quick')
    async def quick():
        await asyncio.sleep(9)

    @decorator(registry=registry, id='slow')
    async def slow():
        await asyncio.sleep(100)

    await run(activity)
    [message] = [record.message for record in caplog.records if record.levelname == 'WARNING']
    assert re.fullmatch(
        rf"Activity 'slow' \(\S*test_activities.py:\d+\) still runs after 10 seconds. {re.escape(effect)}", message
    )


@pytest.mark.looptime
async def test_handlers_get_the_kwargs_of_activities(registry, run, caplog):
    seen = {}

    @kopf.on.startup(registry=registry, param='param')
    async def fn(**kwargs):
        seen.update(kwargs)

    settings = kopf.OperatorSettings()
    await run(settings=settings)
    assert seen.keys() == {'activity', 'logger', 'memo', 'param', 'retry', 'runtime', 'settings', 'started'}
    assert seen['activity'] == 'startup'
    assert seen['settings'] is settings and seen['param'] == 'param'
    assert seen['retry'] == 0 and seen['started'] == START
    assert seen['logger'].name == 'kopf.activities.startup'


@pytest.mark.looptime
async def test_handlers_of_the_same_id_are_all_run(registry, run):
    calls = []
    for number in range(3):

        @kopf.on.startup(id='fn', registry=registry)
        def fn(number=number, **_):
            calls.append(number)
            if number == 1:
                raise kopf.PermanentError('boo')

    outcomes = await run()
    assert calls == [0, 1, 2]
    with pytest.raises(ActivityError, match="The activity 'startup' has failed: fn#2: boo"):
        check_outcomes(Activity.STARTUP, outcomes)


@pytest.mark.looptime
async def test_failed_handlers_are_retried_after_their_delays(registry, run):
    calls = []

    @kopf.on.startup(id='slow', registry=registry)
    async def slow(retry, **_):
        calls.append(('slow', asyncio.get_running_loop().time(), retry))
        if retry < 2:
            raise kopf.TemporaryError('boo', delay=10)

    @kopf.on.startup(id='fast', registry=registry, backoff=3)
    async def fast(retry, **_):
        calls.append(('fast', asyncio.get_running_loop().time(), retry))
        if retry < 1:
            raise ValueError('boo')
        return 'result'

    outcomes = await run()
    began = calls[0][1]
    assert [(id, round(moment - began), retry) for id, moment, retry in calls] == [
        ('slow', 0, 0),
        ('fast', 0, 0),
        ('fast', 3, 1),
        ('slow', 10, 1),
        ('slow', 20, 2),
    ]
    assert outcomes == {'fast': Outcome(final=True, result='result'), 'slow': Outcome(final=True)}
    check_outcomes(Activity.STARTUP, outcomes)


@pytest.mark.looptime
async def test_the_limit_of_retries_ends_the_attempts(registry, run):
    kopf.on.startup(id='fn', registry=registry, retries=2)(lambda **_: 1 / 0)
    outcomes = await run(settings=(settings := kopf.OperatorSettings()))
    assert settings.execution.default_backoff == 60
    with pytest.raises(ActivityError, match='division by zero'):
        check_outcomes(Activity.STARTUP, outcomes)


async def test_failures_do_not_stop_the_others(registry, run):
    calls = []

    @kopf.on.startup(id='failing', registry=registry)
    def failing(**_):
        raise kopf.PermanentError('boo')

    kopf.on.startup(id='other', registry=registry)(lambda **_: calls.append(1))
    outcomes = await run()
    assert calls == [1] and set(outcomes) == {'failing', 'other'}


async def test_an_activity_without_handlers_ends_at_once(run):
    assert await run() == {}


async def test_a_cancelled_activity_cancels_its_handlers(registry, run):
    started = asyncio.Event()

    @kopf.on.startup(id='fn', registry=registry)
    async def fn(**_):
        started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(run())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_other_activities_are_not_concerned(registry, run):
    kopf.on.startup(id='fn', registry=registry)(lambda **_: pytest.fail())
    assert await run(Activity.CLEANUP) == {}


# Credentials.


def test_credentials_are_collected_though_other_login_handlers_fail():
    outcomes = {
        'a': Outcome(final=True, result=INFO),
        'b': Outcome(final=True),
        'c': Outcome(final=True, exception=ValueError('boo')),
    }
    assert get_credentials(outcomes) == {'a': INFO}
    assert get_credentials({}) == get_credentials({'b': Outcome(final=True)}) == {}


@pytest.mark.parametrize('codes, expected', [([3], 3), ([None], 0), (['No $TOKEN.'], 1), ([0, 4], 4)])
@pytest.mark.looptime
async def test_exits_are_not_retried_and_give_their_codes(registry, run, codes, expected):
    for number, code in enumerate(codes):
        kopf.on.startup(id=f'id{number}', registry=registry)(lambda code=code, **_: sys.exit(code))
    outcomes = await run()
    with pytest.raises(activities.ActivityError) as info:
        activities.check_outcomes(Activity.STARTUP, outcomes)
    assert info.value.exit_code == expected
    with pytest.raises(kopf.LoginError) as info:
        get_credentials(outcomes)
    assert info.value.exit_code == expected


def test_failures_of_all_login_handlers_are_an_error():
    with pytest.raises(kopf.LoginError, match='All login handlers have failed. a: ValueError: boo; b: ValueError: foo'):
        get_credentials(
            {
                'a': Outcome(final=True, exception=ValueError('boo')),
                'b': Outcome(final=True, exception=ValueError('foo')),
            }
        )


@pytest.mark.parametrize('result', ['token', 123, {}])
def test_other_results_of_login_handlers_are_refused(result):
    with pytest.raises(kopf.LoginError, match="The login handler 'a' must return a kopf.ConnectionInfo"):
        get_credentials({'a': Outcome(final=True, result=result)})


async def test_login_errors_are_not_retried():
    calls = []

    def login(**_):
        calls.append(1)
        raise kopf.LoginError("the kubeconfig is broken")

    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(login)
    settings = kopf.OperatorSettings()
    outcomes = await activities.run_activity(
        Activity.AUTHENTICATION,
        registry.activities.get_handlers(Activity.AUTHENTICATION),
        OperatorContext(settings=settings, memo=kopf.Memo()),
    )
    with pytest.raises(kopf.LoginError, match='the kubeconfig is broken'):
        activities.get_credentials(outcomes)
    assert len(calls) == 1


async def test_errors_are_freed_without_the_garbage_collector(registry, run, failing):
    kopf.on.startup(registry=registry)(failing.fn)
    outcomes = await run()
    assert failing.errors and [outcome.exception for outcome in outcomes.values()] == failing.remaining
    del outcomes
    assert not failing.remaining


def misspell(settings):
    settings.posting.enable = False


def mistype(settings):
    settings.watching.server_timeout = '10m'


def call_wrongly(settings):
    len()


def use_unknown_name(settings):
    nosuch  # noqa: B018, F821


def import_unknown_module(settings):
    import nosuch_module  # noqa: F401


@pytest.mark.looptime
@pytest.mark.parametrize('what', [misspell, mistype, call_wrongly, use_unknown_name, import_unknown_module])
async def test_mistakes_at_the_start_are_not_retried(registry, run, caplog, what):
    kopf.on.startup(id='fn', registry=registry)(lambda settings, **_: what(settings))
    outcomes = await run()
    place = f"tests/core/engines/test_activities.py:{what.__code__.co_firstlineno + 1}"
    assert f"'fn' failed with an exception and will stop now (it is a mistake in {place}): " in caplog.text
    with pytest.raises(ActivityError, match="The activity 'startup' has failed: fn: [A-Z][A-Za-z]+Error: "):
        check_outcomes(Activity.STARTUP, outcomes)


def fail_in_library(settings):
    json.dumps(object())


def use_absent_answer(settings):
    None.value  # noqa: B018


def fail(settings):
    raise ValueError('boo')


@pytest.mark.looptime
@pytest.mark.parametrize('what', [fail_in_library, use_absent_answer, fail])
async def test_errors_that_can_pass_are_retried_at_the_start(registry, run, what):
    calls = []

    @kopf.on.startup(registry=registry, backoff=1)
    def fn(settings, retry, **_):
        calls.append(retry)
        if not retry:
            what(settings)

    check_outcomes(Activity.STARTUP, await run())
    assert calls == [0, 1]


@pytest.mark.looptime
@pytest.mark.parametrize('options', [{'retries': 3}, {'timeout': 9}, {'errors': kopf.ErrorsMode.TEMPORARY}])
async def test_mistakes_are_retried_if_the_handler_says_so(registry, run, options):
    calls = []

    @kopf.on.startup(registry=registry, backoff=1, **options)
    def fn(settings, retry, **_):
        calls.append(retry)
        if not retry:
            misspell(settings)

    check_outcomes(Activity.STARTUP, await run())
    assert calls == [0, 1]


@pytest.mark.looptime
async def test_mistakes_in_other_activities_are_retried(registry, run):
    calls = []

    @kopf.on.cleanup(registry=registry, backoff=1)
    def fn(settings, retry, **_):
        calls.append(retry)
        if not retry:
            misspell(settings)

    await run(Activity.CLEANUP)
    assert calls == [0, 1]


@pytest.mark.looptime
@pytest.mark.parametrize(
    'decorator, activity, ending',
    [
        (kopf.on.cleanup, Activity.CLEANUP, "the operator is ending"),
        (kopf.on.yielding, Activity.YIELDING, "this replica stops leading"),
    ],
)
@pytest.mark.parametrize(
    'options, error, expected',
    [
        ({}, ValueError("boo"), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        ({'backoff': 4}, ValueError("boo"), [0, 4, 8]),
        ({}, kopf.TemporaryError("boo", delay=60), [0]),
        ({'retries': 3}, kopf.TemporaryError("boo", delay=60), [0, 60, 120]),
        ({'timeout': 25}, kopf.TemporaryError("boo", delay=10), [0, 10, 20]),
    ],
    ids=['default', 'backoff', 'delay', 'retries', 'timeout'],
)
async def test_failing_handlers_do_not_hold_up_an_end_unless_they_say_so(
    registry, run, caplog, decorator, activity, ending, options, error, expected
):
    attempts = []

    @decorator(registry=registry, id='fn', **options)
    async def fn():
        attempts.append(round(asyncio.get_running_loop().time()))
        raise error

    outcomes = await run(activity)
    assert attempts == expected
    with pytest.raises(ActivityError):
        check_outcomes(activity, outcomes)
    is_given_up = not {'retries', 'timeout'} & options.keys()
    assert (f"Activity 'fn' is not called again, as {ending}." in caplog.text) is is_given_up
