"""Daemons of an object: their kwargs, errors, patches, and the stages of stopping. Timers: the times of their runs.

The time is virtual: it goes on only when all tasks wait.
"""

import asyncio
import contextlib
import datetime
import gc
import logging
import math
import re
import threading
import time
import tracemalloc
import warnings
from contextvars import ContextVar

import pytest

import kopf
from kopf import DaemonStoppingReason as Reason
from kopf._cogs.clients.errors import APIForbiddenError, APIServerError, APIUnprocessableError
from kopf._core.engines.daemons import Daemon
from kopf._core.reactor.object_records import ObjectRecord

pytestmark = pytest.mark.looptime


@pytest.fixture(autouse=True)
def _verbose(caplog):
    caplog.set_level(logging.DEBUG)


@pytest.fixture
def clock():
    """How many seconds have passed since the first call of it."""
    starts = []

    def clock():
        now = asyncio.get_running_loop().time()
        starts.append(now)
        return round(now - starts[0], 3)

    return clock


async def let_it_run(seconds=0.0):
    await asyncio.sleep(seconds)
    for _ in range(10):
        await asyncio.sleep(0)


async def until(condition):
    while not condition():
        await asyncio.sleep(0.01)


# ---------------------------------------------------------------- running


async def test_a_daemon_gets_its_kwargs(host):
    seen = {}

    @kopf.daemon('kopfexamples', id='fn', registry=host.registry, param='param')
    async def fn(**kwargs):
        seen.update(kwargs)

    await host.look()
    await let_it_run()
    assert set(seen) == {
        'annotations',
        'body',
        'labels',
        'logger',
        'memo',
        'meta',
        'name',
        'namespace',
        'param',
        'patch',
        'resource',
        'retry',
        'runtime',
        'spec',
        'started',
        'status',
        'stopped',
        'uid',
    }
    assert (seen['name'], seen['param'], seen['retry'], seen['memo']) == ('obj', 'param', 0, host.memo)


async def test_a_daemon_sees_the_newest_state(host):
    @kopf.daemon('kopfexamples', id='fn', registry=host.registry)
    async def fn(stopped, spec, memo, **_):
        memo.spec = spec
        await stopped.wait()

    await host.look()
    await let_it_run()
    assert host.memo.spec == {'field': 'value'}
    await host.edit(spec={'field': 'other'})
    assert host.memo.spec == {'field': 'other'}


async def test_older_states_are_not_shown(host):
    @kopf.daemon('kopfexamples', id='fn', registry=host.registry)
    async def fn(stopped, **_):
        await stopped.wait()

    old = host.raw
    await host.look()
    await host.edit(spec={'field': 'other'})
    assert not host.record.daemons.update(old)
    assert host.record.daemons.body.spec == {'field': 'other'}


async def test_a_daemon_that_ends_by_itself_is_not_restarted(host, caplog):
    calls = []

    @kopf.daemon('kopfexamples', id='fn', registry=host.registry)
    async def fn(**_):
        calls.append(1)
        await asyncio.sleep(1)

    assert await host.look()
    await let_it_run(2)
    assert host.wakeups == 1
    assert not await host.look()
    assert not await host.edit(spec={'field': 'other'})
    await let_it_run(1000)
    assert calls == [1]
    assert "Daemon 'fn' succeeded." in caplog.messages[-2]
    assert "Daemon 'fn' has exited on its own and will not be retried or restarted." in caplog.messages[-1]


async def test_a_daemon_holds_the_object_while_another_one_has_ended(host):
    @kopf.daemon('kopfexamples', registry=host.registry)
    async def short(**_):
        pass

    @kopf.daemon('kopfexamples', registry=host.registry)
    async def long(stopped, **_):
        await stopped.wait()

    await host.look()
    await let_it_run()
    assert host.wakeups == 0
    assert await host.look()


@pytest.mark.parametrize(
    'delay, expected',
    [
        (3, 3),
        (lambda name, **_: len(name), 3),
        (lambda **_: None, 0),
        (None, 0),
    ],
)
async def test_the_initial_delay_precedes_the_start(host, clock, delay, expected):
    @kopf.daemon('kopfexamples', id='fn', registry=host.registry, initial_delay=delay)
    async def fn(memo, **_):
        memo.time = clock()

    clock()
    await host.look()
    await let_it_run(10)
    assert host.memo.time == expected


@pytest.mark.parametrize(
    'function, error',
    [
        (lambda **_: 1 / 0, "ZeroDivisionError: division by zero"),
        *(
            (lambda value=value, **_: value, f"TypeError: it has returned {value!r}, which is no number of seconds")
            for value in ('5', math.nan, math.inf, datetime.timedelta(seconds=5))
        ),
    ],
)
async def test_a_failing_function_of_the_initial_delay_is_reported(host, caplog, function, error):
    @kopf.daemon('kopfexamples', id='fn', registry=host.registry, initial_delay=function)
    async def fn(memo, **_):
        memo.called = True

    await host.look()
    await let_it_run()
    assert host.memo.called
    [message] = [message for message in caplog.messages if 'initial_delay' in message]
    assert re.fullmatch(
        rf"initial_delay= of daemon 'fn' \(\S*test_daemons.py:\d+\) failed: {re.escape(error)}. "
        r"Daemon 'fn' begins at once.",
        message,
    )


async def test_errors_are_retried_as_in_other_handlers(host, clock):
    runs = []

    @kopf.daemon('kopfexamples', id='fn', registry=host.registry, backoff=5, retries=5)
    async def fn(retry, **_):
        runs.append((clock(), retry))
        if retry == 0:
            raise kopf.TemporaryError('again', delay=2)
        if retry == 1:
            raise kopf.TemporaryError('at once', delay=None)
        raise ValueError('boo')

    await host.look()
    await let_it_run(100)
    assert runs == [(0, 0), (2, 1), (2, 2), (7, 3), (12, 4)]
    assert not await host.look()


async def test_a_permanent_error_ends_a_daemon(host):
    calls = []

    @kopf.daemon('kopfexamples', id='fn', registry=host.registry)
    async def fn(**_):
        calls.append(1)
        raise kopf.PermanentError('boo')

    await host.look()
    await let_it_run(100)
    assert calls == [1]
    assert not await host.look()


async def test_the_time_limit_ends_a_daemon(host, clock):
    @kopf.daemon('kopfexamples', id='fn', registry=host.registry, timeout=7)
    async def fn(memo, **_):
        try:
            await asyncio.sleep(100)
        finally:
            memo.time = clock()

    clock()
    await host.look()
    await let_it_run(100)
    assert host.memo.time == pytest.approx(7, abs=0.1)
    assert not await host.look()


@pytest.mark.parametrize('delay', [0, 1])
async def test_context_variables_of_a_run_are_not_seen_by_the_next_one(host, delay):
    var = ContextVar('var', default=0)
    seen = []

    @kopf.daemon('kopfexamples', id='fn', registry=host.registry)
    async def fn(**_):
        seen.append(var.get())
        var.set(1)
        if len(seen) < 3:
            raise kopf.TemporaryError('again', delay=delay)

    await host.look()
    await let_it_run(5)
    assert seen == [0, 0, 0]


# ---------------------------------------------------------------- patches


async def test_results_and_patches_are_applied_after_each_attempt(host):
    @kopf.daemon('kopfexamples', id='fn', registry=host.registry)
    async def fn(retry, patch, **_):
        patch.status[f'attempt{retry}'] = True
        if retry == 0:
            raise kopf.TemporaryError('again', delay=1)
        return {'result': 123}

    await host.look()
    await let_it_run(2)
    assert host.patches == [{'status': {'attempt0': True}}, {'status': {'attempt1': True, 'fn': {'result': 123}}}]


async def test_no_patch_is_sent_without_changes(host):
    @kopf.daemon('kopfexamples', id='fn', registry=host.registry)
    async def fn(**_):
        return None

    await host.look()
    await let_it_run()
    assert host.patches == []


async def test_patches_are_sent_again_when_the_api_is_down(host, clock):
    host.settings.queueing.error_delays = (1, 2)
    host.failures = [APIServerError('boo', status=500) for _ in range(3)]

    @kopf.daemon('kopfexamples', id='fn', registry=host.registry)
    async def fn(**_):
        return 'result'

    clock()
    await host.look()
    await until(lambda: host.patches)
    assert clock() == pytest.approx(1 + 2 + 2, abs=0.1)


@pytest.mark.parametrize('failures, patches', [(4, [{'status': {'fn': 'result'}}]), (20, [])])
async def test_patches_are_sent_again_when_the_permission_is_away_for_a_moment(host, clock, failures, patches):
    host.settings.queueing.error_delays = (5,)
    host.failures = [APIForbiddenError('no', status=403) for _ in range(failures)]

    @kopf.daemon('kopfexamples', id='fn', registry=host.registry)
    async def fn(**_):
        return 'result'

    await host.look()
    await let_it_run(200)
    assert host.patches == patches


@pytest.mark.parametrize(
    'error',
    [
        APIUnprocessableError('no such field', status=422),
        APIForbiddenError('admission webhook "x" denied the request: no such field', status=403),
        TypeError('no such field'),
    ],
)
async def test_patches_that_can_not_be_applied_are_lost_and_reported(host, caplog, error):
    host.failures = [error]

    @kopf.daemon('kopfexamples', id='fn', registry=host.registry)
    async def fn(retry, patch, **_):
        patch.spec['x'] = retry
        if retry == 0:
            raise kopf.TemporaryError('again', delay=1)

    await host.look()
    await let_it_run(2)
    assert host.patches == [{'spec': {'x': 1}}]
    assert any(
        "'fn'" in record.message and 'no such field' in record.message
        for record in caplog.records
        if record.levelno == logging.ERROR
    )


async def test_a_daemon_that_is_to_stop_does_not_wait_for_the_api(host):
    host.failures = [APIServerError('boo', status=500) for _ in range(1000)]

    @kopf.daemon('kopfexamples', id='fn', registry=host.registry)
    async def fn(**_):
        return 'result'

    await host.look()
    await let_it_run(5)
    await host.delete()
    await let_it_run()
    assert not await host.look()


async def test_the_patch_of_a_cancelled_daemon_is_applied(host):
    @kopf.daemon('kopfexamples', id='fn', registry=host.registry, cancellation_timeout=5)
    async def fn(patch, **_):
        try:
            await asyncio.sleep(100)
        finally:
            patch.status['ended'] = True

    await host.look()
    await let_it_run(1)
    await host.delete()
    await let_it_run(1)
    assert host.patches == [{'status': {'ended': True}}]


@pytest.mark.parametrize('backoff', [None, 1])
async def test_the_last_patch_of_a_daemon_is_not_cancelled(host, backoff):
    @kopf.daemon('kopfexamples', id='fn', registry=host.registry, cancellation_backoff=backoff, cancellation_timeout=5)
    async def fn(stopped, patch, **_):
        await stopped.wait()
        patch.status['ended'] = True

    host.latency = 2
    await host.look()
    await let_it_run(1)
    await host.delete()
    await let_it_run(3)
    assert host.patches == [{'status': {'ended': True}}]
    assert not await host.look()


async def test_the_last_patch_of_a_sync_daemon_is_not_cancelled(host):
    @kopf.daemon('kopfexamples', id='fn', registry=host.registry, cancellation_backoff=1, cancellation_timeout=5)
    def fn(stopped, patch, **_):
        stopped.wait()
        patch.status['ended'] = True

    host.latency = 2
    await host.look()
    await let_it_run(1)
    await host.delete()
    await until(lambda: host.patches)
    assert host.patches == [{'status': {'ended': True}}]
    assert not await host.look()


async def test_a_last_patch_that_hangs_does_not_hold_the_object(host, caplog):
    @kopf.daemon('kopfexamples', id='fn', registry=host.registry, cancellation_timeout=5)
    async def fn(stopped, patch, **_):
        await stopped.wait()
        patch.status['ended'] = True

    host.latency = 1000
    await host.look()
    await let_it_run(1)
    await host.delete()
    await let_it_run(4)
    assert await host.look()
    await let_it_run(2)
    assert not await host.look()
    assert "Daemon 'fn' did not exit in time. Leaving it orphaned." in caplog.messages


# ---------------------------------------------------------------- stopping


async def test_the_flag_ends_a_daemon_and_frees_the_object_at_once(host, clock, caplog):
    @kopf.daemon('kopfexamples', id='fn', registry=host.registry)
    async def fn(stopped, memo, **_):
        assert isinstance(stopped, kopf.AsyncDaemonStopperChecker.__origin__)
        while not await stopped.wait(10):
            pass
        memo.reason = stopped.reason

    clock()
    await host.look()
    await let_it_run(3)
    assert not await host.delete()
    assert clock() == 3
    assert host.memo.reason == Reason.RESOURCE_DELETED
    assert "Daemon 'fn' has exited on request and will not be retried or restarted." in caplog.messages


async def test_the_instant_exit_can_be_given_some_time(host):
    host.settings.background.instant_exit_timeout = 5

    @kopf.daemon('kopfexamples', id='fn', registry=host.registry)
    async def fn(stopped, **_):
        await stopped.wait()
        await asyncio.sleep(3)

    await host.look()
    await let_it_run()
    assert not await host.delete()


async def test_a_daemon_that_ends_later_lets_the_object_go_on(host, clock):
    @kopf.daemon('kopfexamples', id='fn', registry=host.registry)
    async def fn(stopped, **_):
        await stopped.wait()
        await asyncio.sleep(7)

    await host.look()
    await let_it_run()
    clock()
    assert await host.delete()
    await until(lambda: host.wakeups)
    assert clock() == pytest.approx(7, abs=0.05)
    assert not await host.look()


async def test_a_daemon_is_signalled_then_cancelled_then_abandoned(host, clock, caplog):
    stages = []

    @kopf.daemon('kopfexamples', id='fn', registry=host.registry, cancellation_backoff=3, cancellation_timeout=5)
    async def fn(stopped, **_):
        await stopped.wait()
        stages.append((clock(), stopped.reason))
        for _ in range(2):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(20)
            stages.append((clock(), stopped.reason))

    await host.look()
    await let_it_run()
    clock()
    assert await host.delete()
    await let_it_run(7.5)
    assert stages == [
        (0, Reason.RESOURCE_DELETED | Reason.DAEMON_SIGNALLED),
        (3, Reason.RESOURCE_DELETED | Reason.DAEMON_SIGNALLED | Reason.DAEMON_CANCELLED),
    ]
    assert await host.look()
    with pytest.warns(ResourceWarning, match='fn'):
        await let_it_run(1)
    assert host.wakeups == 1
    assert not await host.look()
    await let_it_run(100)
    assert stages[2][1] & Reason.DAEMON_ABANDONED
    assert [message for message in caplog.messages if 'exit' in message] == [
        "Daemon 'fn' is signalled to exit gracefully.",
        "Daemon 'fn' is signalled to exit by force.",
        "Daemon 'fn' did not exit in time. Leaving it orphaned.",
        "Daemon 'fn' has exited on request and will not be retried or restarted.",
    ]


@pytest.mark.parametrize(
    'options', [{}, {'cancellation_backoff': 3}, {'cancellation_backoff': 3, 'cancellation_timeout': 5}]
)
@pytest.mark.parametrize('lasting', [1, 4])
async def test_no_timers_are_left_of_daemons_that_have_ended(host, caplog, options, lasting):
    @kopf.daemon('kopfexamples', id='fn', registry=host.registry, cancellation_polling=2, **options)
    async def fn(stopped, **_):
        await stopped.wait()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(lasting)

    await host.look()
    await let_it_run()
    await host.delete()
    await let_it_run(lasting + 0.5)
    assert not await host.look()
    assert all(timer.cancelled() for timer in asyncio.get_running_loop()._scheduled)
    caplog.clear()
    await let_it_run(100)
    assert not caplog.messages


@pytest.mark.parametrize('options', [{'initial_delay': 100}, {'interval': 100}, {'interval': 1, 'idle': 100}])
async def test_no_timers_are_left_of_stopped_timers_that_waited(host, options):
    timers = asyncio.get_running_loop()._scheduled

    @kopf.timer('kopfexamples', registry=host.registry, **{'interval': 1, **options})
    async def fn(**_):
        pass

    await host.look()
    await let_it_run(10)
    assert any(not timer.cancelled() for timer in timers)
    assert not await host.delete()
    assert all(timer.cancelled() for timer in timers)


async def test_a_daemon_without_limits_is_waited_for_with_reminders_in_the_log(host, caplog):
    @kopf.daemon('kopfexamples', id='fn', registry=host.registry, cancellation_polling=10)
    async def fn(stopped, **_):
        await stopped.wait()
        await asyncio.sleep(35)

    await host.look()
    await let_it_run()
    await host.delete()
    await let_it_run(34)
    assert await host.look()
    assert caplog.messages.count("Daemon 'fn' is still exiting. The next check is in 10 seconds.") == 4
    [warning] = [record.message for record in caplog.records if record.levelname == 'WARNING']
    assert warning == (
        "Daemon 'fn' still runs, though it was told to stop. The operator waits for it; if its object is being "
        "deleted, the object stays until then. Let its loop end when `stopped` is set, or when asyncio.CancelledError "
        "is raised in it."
    )
    await let_it_run(2)
    assert not await host.look()


async def test_the_interval_of_reminders_is_a_setting_too(host, caplog):
    host.settings.background.cancellation_polling = 20

    @kopf.daemon('kopfexamples', id='fn', registry=host.registry, cancellation_backoff=5)
    async def fn(stopped, **_):
        await asyncio.sleep(100)

    await host.look()
    await let_it_run()
    await host.delete()
    await let_it_run(30)
    assert caplog.messages.count("Daemon 'fn' is still exiting. The next check is in 20 seconds.") == 2


async def test_a_daemon_that_waits_for_its_flag_is_not_cancelled_even_without_a_backoff(host):
    @kopf.daemon('kopfexamples', id='fn', registry=host.registry, cancellation_timeout=5)
    async def fn(stopped, memo, **_):
        try:
            await stopped.wait()
        except asyncio.CancelledError:
            memo.cancelled = True

    await host.look()
    await let_it_run()
    await host.delete()
    await let_it_run(1)
    assert 'cancelled' not in host.memo


async def test_a_daemon_that_waits_for_a_retry_ends_at_once(host):
    @kopf.daemon('kopfexamples', id='fn', registry=host.registry)
    async def fn(memo, **_):
        memo.calls = memo.get('calls', 0) + 1
        raise kopf.TemporaryError('again', delay=10)

    await host.look()
    await let_it_run(1)
    assert not await host.delete()
    await let_it_run(100)
    assert host.memo.calls == 1


async def test_a_warning_turned_into_an_error_breaks_nothing(host):
    @kopf.daemon('kopfexamples', id='fn', registry=host.registry, cancellation_timeout=1)
    async def fn(**_):
        for _ in range(10):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1)

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    await host.look()
    await let_it_run()
    await host.delete()
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        await let_it_run(2)
    assert not await host.look()
    await let_it_run(20)


# ---------------------------------------------------------------- threads


@pytest.mark.looptime(False)
async def test_a_sync_daemon_lives_in_a_thread(host):
    started = threading.Event()

    @kopf.daemon('kopfexamples', id='fn', registry=host.registry)
    def fn(stopped, memo, **_):
        assert isinstance(stopped, kopf.SyncDaemonStopperChecker.__origin__)
        started.set()
        while not stopped.wait(10):
            pass
        memo.update(thread=threading.current_thread(), reason=stopped.reason)

    await host.look()
    await until(started.is_set)
    await host.delete()
    await until(lambda: host.wakeups)
    assert not await host.look()
    assert host.memo.thread is not threading.current_thread()
    assert host.memo.reason == Reason.RESOURCE_DELETED


@pytest.mark.looptime(False)
async def test_sync_daemons_do_not_take_the_threads_of_handlers(host):
    host.settings.execution.max_workers = 1
    results = []
    for i in range(3):
        kopf.daemon('kopfexamples', registry=host.registry, id=f'fn{i}')(lambda stopped, **_: bool(stopped.wait(10)))
    kopf.timer('kopfexamples', registry=host.registry, interval=100, id='timer')(lambda **_: results.append(1))

    await host.look()
    await until(lambda: results)
    await host.delete()
    await until(lambda: not host.holding)


@pytest.mark.looptime(False)
async def test_sync_daemons_wait_for_a_thread(host, caplog):
    host.settings.background.max_threads = 1
    gate, names = threading.Event(), []

    @kopf.daemon('kopfexamples', registry=host.registry, id='first')
    @kopf.daemon('kopfexamples', registry=host.registry, id='second')
    def fn(**_):
        names.append(threading.current_thread().name)
        gate.wait(10)

    await host.look()
    await until(lambda: names)
    assert len(names) == 1
    assert 'settings.background.max_threads' in caplog.text
    gate.set()
    await until(lambda: len(names) == 2)


@pytest.mark.looptime(False)
async def test_a_daemon_that_waits_for_a_thread_can_be_stopped(host):
    host.settings.background.max_threads = 1
    gate, calls = threading.Event(), []

    @kopf.daemon('kopfexamples', registry=host.registry, id='first')
    @kopf.daemon('kopfexamples', registry=host.registry, id='second')
    def fn(**_):
        calls.append(1)
        gate.wait(10)

    await host.look()
    await until(lambda: calls)
    assert await host.delete()
    gc.collect()
    daemons = [each for each in gc.get_objects() if type(each) is Daemon and each.owner.record is host.record]
    assert len(daemons) == 1  # the one that runs; the other one does not stay in memory until a thread is free
    del daemons
    gate.set()
    await until(lambda: not host.holding)
    assert calls == [1]


@pytest.mark.looptime(False)
async def test_a_sync_daemon_that_hangs_is_abandoned(host, caplog):
    gate, started = threading.Event(), threading.Event()

    @kopf.daemon('kopfexamples', id='fn', registry=host.registry, cancellation_timeout=0.1)
    def fn(**_):
        started.set()
        gate.wait(10)

    await host.look()
    await until(started.is_set)
    with pytest.warns(ResourceWarning):
        await host.delete()
        await until(lambda: host.wakeups)
    assert not await host.look()
    assert "Daemon 'fn' did not exit in time. Leaving it orphaned." in caplog.messages
    gate.set()
    await until(lambda: host.wakeups == 2)


# ---------------------------------------------------------------- timers


def record_runs(host, clock, *, lasting=0.0, fail=lambda run: None, **options):
    """Declare a timer; return the times at which it has been run."""
    runs = []

    @kopf.timer('kopfexamples', id='fn', registry=host.registry, **options)
    async def fn(retry, **_):
        runs.append((clock(), retry))
        await asyncio.sleep(lasting)
        fail(len(runs))

    return runs


async def test_the_interval_is_counted_from_the_end_of_a_run(host, clock):
    runs = record_runs(host, clock, interval=1, lasting=0.3)
    await host.look()
    await let_it_run(4)
    assert runs == [(0, 0), (1.3, 0), (2.6, 0), (3.9, 0)]


async def test_a_timer_waits_if_the_process_was_suspended_after_it_was_due(host, clock):
    answers = []  # whether another operator can work, when it is asked the next times
    runs = record_runs(host, clock, interval=1)
    await host.look()
    host.background.set_overdue_check(lambda: answers.pop(0) if answers else False)
    await let_it_run(0.5)
    answers[:] = [False, True]  # the suspension comes right before the function is called
    await let_it_run(2)
    assert runs == [(0, 0), (1.1, 0), (2.1, 0)]


async def test_the_interval_of_sharp_timers_is_counted_from_the_beginning(host, clock):
    runs = record_runs(host, clock, interval=1, lasting=0.3, sharp=True)
    await host.look()
    await let_it_run(4.5)
    assert runs == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)]


async def test_sharp_timers_that_begin_a_bit_early_run_once(host):
    loop = asyncio.get_running_loop()
    # Coalesced timers that are due right after a round expire in that round.
    await asyncio.sleep(math.ceil(loop.time() * 50) / 50 + 0.0009 - loop.time())
    runs = []

    @kopf.timer('kopfexamples', id='fn', registry=host.registry, interval=1, sharp=True)
    async def fn(**_):
        runs.append(loop.time())
        await asyncio.sleep(9 if len(runs) > 9 else 0)

    await host.look()
    await let_it_run(4.5)
    assert len(runs) == 5


async def test_sharp_timers_skip_missed_runs_and_never_overlap(host, clock):
    runs = record_runs(host, clock, interval=1, lasting=2.3, sharp=True)
    await host.look()
    await let_it_run(10)
    assert runs == [(0, 0), (3, 0), (6, 0), (9, 0)]


async def test_errors_delay_the_next_run_of_timers(host, clock):
    def fail(run):
        if run in (1, 2, 3, 5):
            raise ValueError('boo')

    runs = record_runs(host, clock, interval=10, backoff=5, fail=fail)
    await host.look()
    await let_it_run(31)
    assert runs == [(0, 0), (5, 1), (10, 2), (15, 3), (25, 0), (30, 1)]


async def test_temporary_errors_delay_timers_by_their_own_delay(host, clock):
    def fail(run):
        if run == 1:
            raise kopf.TemporaryError('again', delay=3)

    runs = record_runs(host, clock, interval=10, fail=fail)
    await host.look()
    await let_it_run(14)
    assert runs == [(0, 0), (3, 1), (13, 0)]


@pytest.mark.parametrize(
    'options, error',
    [
        ({}, kopf.PermanentError('boo')),
        ({'errors': kopf.ErrorsMode.PERMANENT}, ValueError('boo')),
        ({'retries': 1}, kopf.TemporaryError('boo', delay=1)),
    ],
)
async def test_permanent_failures_stop_timers_for_ever(host, clock, options, error):
    def fail(run):
        raise error

    runs = record_runs(host, clock, interval=10, fail=fail, **options)
    await host.look()
    await let_it_run(100)
    assert runs == [(0, 0)]
    assert not await host.look()


async def test_ignored_errors_do_not_change_the_interval(host, clock):
    def fail(run):
        raise ValueError('boo')

    runs = record_runs(host, clock, interval=10, errors=kopf.ErrorsMode.IGNORED, fail=fail)
    await host.look()
    await let_it_run(25)
    assert runs == [(0, 0), (10, 0), (20, 0)]


async def test_timers_without_an_interval_run_once(host, clock):
    runs = record_runs(host, clock)
    await host.look()
    await let_it_run(1000)
    assert runs == [(0, 0)]


async def test_idle_timers_wait_until_nothing_changes(host, clock):
    runs = record_runs(host, clock, idle=10, interval=1)
    clock()
    await host.look()
    await let_it_run(5)
    await host.edit(spec={'field': 'new'})
    await let_it_run(12.5)
    assert runs == [(15, 0), (16, 0), (17, 0)]
    await host.edit(spec={'field': 'newer'})  # at 17.5
    await let_it_run(11)
    assert runs == [(15, 0), (16, 0), (17, 0), (27.5, 0), (28.5, 0)]


async def test_idle_timers_without_an_interval_run_once_a_change(host, clock):
    runs = record_runs(host, clock, idle=10)
    clock()
    await host.look()
    await let_it_run(50)
    await host.edit(spec={'field': 'new'})
    await let_it_run(50)
    assert runs == [(10, 0), (60, 0)]


@pytest.mark.parametrize('errors', [0, 1])
async def test_idle_timers_without_an_interval_notice_changes_while_they_run(host, clock, errors):
    seen = []

    @kopf.timer('kopfexamples', registry=host.registry, idle=10, backoff=1)
    async def fn(spec, patch, **_):
        seen.append((clock(), spec['field']))
        patch.status['seen'] = patch.spec['seen'] = len(seen)  # which is no change by others
        await asyncio.sleep(20)
        if len(seen) <= errors:
            raise ValueError('boo')

    clock()
    await host.look()
    await let_it_run(15 + 21 * errors)
    await host.edit(spec={'field': 'new'})  # at 15, or at 36: the function runs since 10, or since 31
    await let_it_run(100)
    assert seen[errors:] == [(10 + 21 * errors, 'value'), (30 + 21 * errors, 'new')]


async def test_idle_timers_wait_after_their_initial_delay_too(host, clock):
    runs = record_runs(host, clock, idle=10, initial_delay=8, interval=100)
    clock()
    await host.look()
    await let_it_run(5)
    await host.edit(spec={'field': 'new'})
    await let_it_run(50)
    assert runs == [(15, 0)]


async def test_unessential_changes_do_not_disturb_idle_timers(host, clock):
    runs = record_runs(host, clock, idle=10, interval=100)
    clock()
    await host.look()
    await let_it_run(5)
    await host.edit(status={'x': 1})
    await host.edit(metadata={'managedFields': [{}]})
    await let_it_run(50)
    assert runs == [(10, 0)]


async def test_own_patches_do_not_disturb_idle_timers(host, clock):
    runs = record_runs(host, clock, idle=10, interval=1)

    @kopf.timer('kopfexamples', registry=host.registry, interval=5)
    async def patching(patch, **_):
        patch.spec['x'] = clock()

    clock()
    await host.look()
    await let_it_run(12.5)
    assert runs == [(10, 0), (11, 0), (12, 0)]
    assert len(host.patches) == 3


async def test_changes_by_others_that_come_with_own_patches_count(host, clock):
    runs = record_runs(host, clock, idle=10, interval=100)

    @kopf.timer('kopfexamples', registry=host.registry, initial_delay=5, interval=100)
    async def patching(patch, **_):
        host.raw = {**host.raw, 'spec': {'field': 'of another client'}}  # not seen yet when it is patched
        patch.spec['x'] = 1

    clock()
    await host.look()
    await let_it_run(50)
    assert runs == [(15, 0)]


async def test_timers_that_wait_end_at_once(host, clock):
    runs = record_runs(host, clock, interval=10)
    await host.look()
    await let_it_run(1)
    assert not await host.delete()
    await let_it_run(100)
    assert runs == [(0, 0)]


async def test_timers_that_run_are_waited_for(host, clock):
    record_runs(host, clock, interval=10, lasting=5)
    await host.look()
    await let_it_run(1)
    assert await host.delete()
    await let_it_run(5)
    assert not await host.look()


async def test_delays_of_a_busy_loop_do_not_add_up(host, clock, monkeypatch):
    loop = asyncio.get_running_loop()
    call_at = loop.call_at
    monkeypatch.setattr(loop, 'call_at', lambda at, *args, **kwargs: call_at(at + 0.2, *args, **kwargs))
    runs = record_runs(host, clock, interval=1)
    await host.look()
    await until(lambda: len(runs) == 5)
    assert [time for time, _ in runs] == [0, 1.2, 2.2, 3.2, 4.2]


# ---------------------------------------------------------------- thousands


@pytest.mark.long
async def test_thousands_of_idle_daemons_are_cheap(host, caplog):
    caplog.set_level(logging.WARNING)

    @kopf.daemon('kopfexamples', registry=host.registry)
    async def fn(stopped, memo, **_):
        memo['running'] = memo.get('running', 0) + 1
        await stopped.wait()
        memo['running'] -= 1

    count = 2_000
    raws = [{**host.raw, 'metadata': {**host.raw['metadata'], 'uid': str(number)}} for number in range(count)]
    records = [ObjectRecord(raw['metadata']['uid'], 'ns', 'obj', initial=False) for raw in raws]
    tracemalloc.start()
    try:
        for record, raw in zip(records, raws, strict=True):
            assert await host.spawner.adjust(record, raw)
        await until(lambda: host.memo.get('running') == count)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] / count < 6_000  # bytes, with a body of some hundred
    finally:
        tracemalloc.stop()
    before = time.process_time()
    await asyncio.sleep(24 * 60 * 60)
    assert time.process_time() - before < 0.4  # not even once an hour: that alone would be 48,000 times
    await host.background.close()
    assert host.memo.running == 0 and len(host.background) == 0
