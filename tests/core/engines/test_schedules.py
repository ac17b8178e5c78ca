"""Schedules: the intervals of their runs, retries, pauses, and the exit of the operator."""

import asyncio
import contextlib
import threading

import pytest

import kopf
from kopf._core.engines import schedules
from kopf._core.engines.schedules import Schedules
from kopf._core.intents.contexts import OperatorContext
from kopf._core.reactor.indexing_gate import IndexingGate
from kopf.testing import Sandbox


@pytest.fixture
def make(registry):
    def make(permitted=True, barrier=None):
        made = Schedules(
            registry,
            OperatorContext(settings=kopf.OperatorSettings(), memo='memo', indices={'index': 'content'}),
            barrier=barrier,
        )
        made.permit(permitted)
        return made

    return make


@contextlib.asynccontextmanager
async def run(schedules):
    task = asyncio.create_task(schedules.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()


def now():
    return round(asyncio.get_running_loop().time(), 3)


@pytest.mark.looptime
@pytest.mark.parametrize(
    'options, moments',
    [
        ({}, [0, 12, 24]),
        ({'initial_delay': 3}, [3, 15, 27]),
        ({'sharp': True}, [0, 10, 20]),
        ({'sharp': True, 'initial_delay': 3}, [3, 13, 23]),
    ],
)
async def test_runs_are_at_intervals(registry, make, options, moments):
    seen = []

    @kopf.on.schedule(interval=10, registry=registry, **options)
    async def fn():
        seen.append(now())
        await asyncio.sleep(2)

    async with run(make()):
        await asyncio.sleep(29.5)
    assert seen == moments


@pytest.mark.looptime
async def test_sharp_runs_that_are_missed_are_skipped(registry, make):
    seen = []

    @kopf.on.schedule(interval=10, sharp=True, registry=registry)
    async def fn():
        seen.append(now())
        await asyncio.sleep(25)

    async with run(make()):
        await asyncio.sleep(65)
    assert seen == [0, 30, 60]


@pytest.mark.looptime
async def test_handlers_get_the_kwargs_of_activities(registry, make):
    seen = {}

    @kopf.on.schedule(interval=10, registry=registry, param='param')
    async def fn(**kwargs):
        seen.update(kwargs)

    @kopf.on.schedule(interval=10, registry=registry)
    async def named(memo, index):
        seen['named'] = memo, index

    async with run(make()):
        await asyncio.sleep(5)
    assert seen.keys() == {
        'logger',
        'memo',
        'settings',
        'activity',
        'param',
        'retry',
        'started',
        'runtime',
        'index',
        'named',
    }
    assert seen['activity'] == 'schedule' and seen['param'] == 'param' and seen['named'] == ('memo', 'content')


@pytest.mark.looptime
async def test_failed_runs_are_retried_and_do_not_end_the_schedule(registry, make, caplog):
    seen, failed = [], []

    @kopf.on.schedule(interval=100, retries=3, backoff=5, registry=registry, id='fn')
    async def fn(retry):
        seen.append((now(), retry))
        if len(seen) == 1:
            raise kopf.TemporaryError("Later.", delay=7)
        if len(seen) < 5:
            raise ValueError("boo")

    @kopf.on.schedule(interval=60, registry=registry)
    async def hopeless():
        failed.append(now())
        raise kopf.PermanentError("never")

    async with run(make()):
        await asyncio.sleep(215)
    assert seen == [(0, 0), (7, 1), (12, 2), (112, 0), (117, 1)]
    assert failed == [0, 60, 120, 180]
    assert "Schedule 'fn' failed temporarily: Later." in caplog.text


def test_the_time_until_it_is_permitted_does_not_count_as_the_time_of_the_handler(registry, make):
    seen = []

    @kopf.on.schedule(interval=1000, timeout=10, registry=registry)
    async def fn(retry, **_):
        seen.append((now(), retry))
        if len(seen) == 1:
            raise kopf.TemporaryError("again", delay=1)

    async def play():
        start, made = now(), make(permitted=False)
        async with run(made):
            await asyncio.sleep(500)
            made.permit(True)
            await asyncio.sleep(0.5)
            made.permit(False)  # in the middle of the retries
            await asyncio.sleep(99.5)
            made.permit(True)
            await asyncio.sleep(1)
        assert [(round(time - start), retry) for time, retry in seen] == [(500, 0), (600, 0)]

    with Sandbox(virtual_time=True) as sandbox:
        sandbox.run(play())


@pytest.mark.looptime
async def test_nothing_begins_until_it_is_permitted(registry, make):
    seen = []
    kopf.on.schedule(interval=10, registry=registry)(lambda: None)

    @kopf.on.schedule(interval=10, registry=registry)
    async def fn():
        seen.append(now())
        await asyncio.sleep(3)

    made = make(permitted=False)
    async with run(made):
        await asyncio.sleep(35)
        made.permit(True)
        await asyncio.sleep(1)
        assert seen == [35]
        made.permit(False)
        await made.drain()
        assert now() == 38
        await asyncio.sleep(50)
        assert seen == [35]
        made.permit(True)
        await asyncio.sleep(1)
        assert seen == [35, 88]


@pytest.mark.looptime
async def test_runs_wait_for_the_indices_that_they_can_use(registry, make):
    seen = []

    @kopf.on.schedule(interval=10, registry=registry)
    async def using(index, **_):
        seen.append(('using', now()))

    @kopf.on.schedule(interval=10, registry=registry)
    async def other(**_):
        seen.append(('other', now()))

    gate = IndexingGate()
    gate.expect('pods', 'pods', ['index'])
    async with run(make(barrier=gate)):
        await asyncio.sleep(15)
        gate.dismiss('pods')
        await asyncio.sleep(1)
    await gate.close()
    assert seen == [('other', 0), ('other', 10), ('using', 15)]


@pytest.mark.looptime
async def test_waits_for_indices_between_the_attempts_do_not_reset_them(registry, make):
    seen = []

    @kopf.on.schedule(interval=100, retries=2, registry=registry)
    async def fn(index, retry, **_):
        seen.append((now(), retry))
        gate.expect('pods', 'pods', ['index'])
        asyncio.get_running_loop().call_later(3, gate.dismiss, 'pods')
        raise kopf.TemporaryError("again", delay=1)

    gate = IndexingGate()
    async with run(make(barrier=gate)):
        await asyncio.sleep(50)
    await gate.close()
    assert seen == [(0, 0), (3, 1)]


async def test_no_function_begins_in_a_thread_while_the_operator_is_overdue(registry, make):
    """The operator is frozen between the start of the run and the start of its thread."""
    main, answers = threading.current_thread(), [True, True, False]
    begun = asyncio.Event()
    begin = asyncio.get_running_loop().call_soon_threadsafe

    @kopf.on.schedule(interval=10, registry=registry)
    def fn():
        begin(begun.set)

    made = make()
    made.set_overdue_check(lambda: threading.current_thread() is not main and answers.pop(0))
    async with run(made):
        await begun.wait()
    assert not answers


@pytest.mark.looptime
@pytest.mark.parametrize('options', [{}, {'retries': 1}, {'timeout': 5}])
async def test_aborted_runs_are_repeated_as_soon_as_they_are_permitted(registry, make, options):
    seen = []

    @kopf.on.schedule(interval=1000, registry=registry, **options)
    async def fn(retry):
        seen.append((now(), retry))
        await asyncio.sleep(4)
        seen.append('ended')

    schedules = make()
    async with run(schedules):
        await asyncio.sleep(2)
        schedules.permit(False)
        schedules.abort()
        await asyncio.sleep(8)
        schedules.permit(True)
        await asyncio.sleep(10)
    assert seen == [(0, 0), (10, 0), 'ended']


@pytest.mark.looptime
@pytest.mark.parametrize('options, pause', [({}, 60), ({'backoff': 3}, 3)])
async def test_functions_that_cancel_themselves_are_called_again_after_the_backoff(registry, make, options, pause):
    seen = []

    @kopf.on.schedule(interval=1000, registry=registry, **options)
    async def fn():
        seen.append(now())
        if len(seen) < 3:
            asyncio.current_task().cancel()
            await asyncio.sleep(1)

    async with run(make()):
        await asyncio.sleep(200)
    assert seen == [0, pause, 2 * pause]


@pytest.mark.looptime
async def test_running_functions_are_cancelled_in_the_end(registry, make):
    seen = []

    @kopf.on.schedule(interval=10, registry=registry)
    async def fn():
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            seen.append(now())
            raise

    async with run(make()):
        await asyncio.sleep(5)
    assert seen == [5]


async def test_functions_in_threads_are_waited_for_in_the_end(registry, make):
    begun, released, ended = threading.Event(), threading.Event(), threading.Event()

    @kopf.on.schedule(interval=10, registry=registry)
    def fn():
        begun.set()
        released.wait(10)
        ended.set()

    async with run(make()):
        await asyncio.to_thread(begun.wait, 10)
        asyncio.get_running_loop().call_later(0.1, released.set)
    assert ended.is_set()


async def test_functions_in_threads_that_do_not_end_are_named(registry, make, monkeypatch, caplog):
    monkeypatch.setattr(schedules, 'EXIT_TIMEOUT', 0.01)
    begun, released = threading.Event(), threading.Event()

    @kopf.on.schedule(interval=10, registry=registry, id='fn')
    def fn():
        begun.set()
        released.wait(10)

    async with run(make()):
        await asyncio.to_thread(begun.wait, 10)
    released.set()
    assert "Schedule 'fn' did not end in time. Leaving it running." in caplog.text


@pytest.mark.parametrize(
    'options, error',
    [
        ({}, "interval"),
        ({'interval': 0}, "must be above zero"),
        ({'interval': -1}, "must not be negative"),
        ({'interval': '1m'}, "must be a number"),
        ({'interval': 1, 'idle': 1}, "unexpected keyword argument 'idle'"),
    ],
)
def test_wrong_options_are_refused_by_the_decorator(registry, options, error):
    with pytest.raises((TypeError, ValueError), match=error):
        kopf.on.schedule(registry=registry, **options)


# Functions that are declared at run time.


@pytest.mark.looptime
async def test_functions_that_are_declared_at_run_time_are_run_too(registry, make):
    seen = []

    def declare(id):
        @kopf.on.schedule(interval=10, initial_delay=1, registry=registry, id=id)
        async def fn():
            seen.append((id, now()))
            if id == 'first' and len(seen) == 1:
                declare('third')

    declare('first')
    async with run(make()):
        await asyncio.sleep(5)
        declare('second')
        await asyncio.sleep(10)
    assert seen == [('first', 1), ('third', 2), ('second', 6), ('first', 11), ('third', 12)]
    assert registry.activity_listeners == []


async def test_functions_that_are_declared_in_other_threads_are_run_too(registry, make):
    called = asyncio.Event()

    def declare():
        @kopf.on.schedule(interval=10, registry=registry)
        async def fn():
            called.set()

    async with run(make()), asyncio.timeout(10):
        while not registry.activity_listeners:
            await asyncio.sleep(0)
        await asyncio.to_thread(declare)
        await called.wait()
