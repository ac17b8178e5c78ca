"""Spawning: which daemons run for an object as it changes and is deleted, and as the operator pauses and exits.

The time is virtual: it goes on only when all tasks wait.
"""

import asyncio
import contextlib
import threading

import pytest

import kopf
from kopf import DaemonStoppingReason as Reason
from kopf._cogs.structs.credentials import LoginError

pytestmark = pytest.mark.looptime


async def let_it_run(seconds=0.0):
    await asyncio.sleep(seconds)
    for _ in range(10):
        await asyncio.sleep(0)


def declare(host, *, lingering=0.0, **options):
    """Declare a daemon that lives until it is told to stop; return what it notes."""
    notes = []

    @kopf.daemon('kopfexamples', registry=host.registry, **{'id': 'fn', **options})
    async def fn(stopped, **_):
        notes.append('start')
        await stopped.wait()
        await asyncio.sleep(lingering)
        notes.append(stopped.reason)

    return notes


# ---------------------------------------------------------------- objects


async def test_an_object_is_held_before_its_daemons_start(host):
    notes = declare(host)
    finalizers = host.raw['metadata'].pop('finalizers')
    assert await host.look()
    await let_it_run()
    assert notes == []
    assert await host.edit(metadata={'finalizers': finalizers})
    await let_it_run()
    assert notes == ['start']


async def test_a_deleted_object_gets_no_daemons(host):
    notes = declare(host)
    assert not await host.delete()
    await let_it_run()
    assert notes == []


async def test_nothing_is_kept_of_objects_without_daemons(host):
    notes = declare(host, labels={'run': 'yes'})
    assert not await host.look()
    assert host.record.daemons is None
    await host.edit(metadata={'labels': {'run': 'yes'}})
    await let_it_run()
    await host.edit(metadata={'labels': {}})
    await let_it_run()
    assert not await host.look()
    assert host.record.daemons is None
    assert notes == ['start', Reason.FILTERS_MISMATCH]


@pytest.mark.parametrize(
    'options, matching, mismatching',
    [
        ({'labels': {'x': 'y'}}, {'metadata': {'labels': {'x': 'y'}}}, {'metadata': {'labels': {'x': 'z'}}}),
        (
            {'annotations': {'x': kopf.PRESENT}},
            {'metadata': {'annotations': {'x': ''}}},
            {'metadata': {'annotations': {}}},
        ),
        ({'field': 'spec.x', 'value': 1}, {'spec': {'x': 1}}, {'spec': {'x': 2}}),
        ({'field': 'spec.x'}, {'spec': {'x': 1}}, {'spec': {}}),
        ({'when': lambda spec, **_: spec.get('x')}, {'spec': {'x': 1}}, {'spec': {}}),
    ],
)
async def test_daemons_come_and_go_as_their_filters_say(host, options, matching, mismatching):
    notes = declare(host, **options)
    for _ in range(2):
        assert not await host.edit(**mismatching) or notes
        await let_it_run()
        assert await host.edit(**matching)
        await let_it_run()
    assert notes == ['start', Reason.FILTERS_MISMATCH, 'start']


async def test_a_daemon_that_is_ending_is_not_started_anew_until_it_has_ended(host):
    notes = declare(host, labels={'run': 'yes'}, lingering=5)
    await host.edit(metadata={'labels': {'run': 'yes'}})
    await let_it_run()
    await host.edit(metadata={'labels': {'run': 'no'}})
    await let_it_run(1)
    assert await host.edit(metadata={'labels': {'run': 'yes'}})
    await let_it_run(1)
    assert notes == ['start']
    await let_it_run(5)
    assert host.wakeups == 1  # the object is looked at again, and then
    assert await host.look()
    await let_it_run()
    assert notes == ['start', Reason.FILTERS_MISMATCH, 'start']


async def test_an_abandoned_daemon_is_not_started_anew_until_it_has_ended(host):
    notes = declare(host, labels={'run': 'yes'}, cancellation_timeout=1)

    @kopf.daemon('kopfexamples', registry=host.registry, id='stubborn', labels={'run': 'yes'}, cancellation_timeout=1)
    async def stubborn(**_):
        notes.append('stubborn')
        for _ in range(10):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1)

    await host.edit(metadata={'labels': {'run': 'yes'}})
    await let_it_run()
    await host.edit(metadata={'labels': {'run': 'no'}})
    with pytest.warns(ResourceWarning):
        await let_it_run(2)
    assert not await host.look()
    await host.edit(metadata={'labels': {'run': 'yes'}})
    await let_it_run(2)
    assert notes.count('stubborn') == 1
    await let_it_run(10)
    await host.look()
    await let_it_run()
    assert notes.count('stubborn') == 2
    await let_it_run(20)


async def test_a_daemon_that_has_ended_by_itself_does_not_come_back_with_its_filters(host):
    calls = []

    @kopf.daemon('kopfexamples', registry=host.registry, labels={'run': 'yes'})
    async def fn(**_):
        calls.append(1)

    for run in ('yes', 'no', 'yes'):
        await host.edit(metadata={'labels': {'run': run}})
        await let_it_run()
    assert calls == [1]


@pytest.mark.parametrize('when', [None, lambda **_: True])
async def test_the_same_function_under_several_decorators_runs_once(host, when):
    calls = []

    @kopf.daemon('kopfexamples', registry=host.registry)
    @kopf.daemon('kopfexamples', registry=host.registry, when=when)
    async def fn(stopped, **_):
        calls.append(1)
        await stopped.wait()

    await host.look()
    await let_it_run()
    assert calls == [1]


async def test_a_daemon_goes_on_as_long_as_any_of_its_decorators_matches(host):
    notes = []

    @kopf.daemon('kopfexamples', registry=host.registry, labels={'a': kopf.PRESENT})
    @kopf.daemon('kopfexamples', registry=host.registry, labels={'b': kopf.PRESENT})
    async def fn(stopped, **_):
        notes.append('start')
        await stopped.wait()
        notes.append('stop')

    for labels in ({'a': ''}, {'b': ''}, {}, {'b': ''}):
        await host.edit(metadata={'labels': labels})
        await let_it_run()
    assert notes == ['start', 'stop', 'start']


async def test_different_functions_of_the_same_id_run_side_by_side(host):
    notes = [declare(host), declare(host)]
    await host.look()
    await let_it_run()
    assert not await host.delete()
    assert notes == [['start', Reason.RESOURCE_DELETED]] * 2


async def test_planning_changes_nothing(host):
    notes = declare(host)
    plan = host.spawner.plan(host.record, host.raw)
    await let_it_run()
    assert ([handler.id for handler in plan.missing], list(plan.excess), plan.holding) == (['fn'], [], True)
    assert notes == []


async def test_failing_filters_are_reported_once(host, caplog):
    declare(host, when=lambda **_: 1 / 0)
    await host.look()
    await host.look()
    assert caplog.text.count("when= of daemon 'fn'") == caplog.text.count("ZeroDivisionError: division by zero") == 1


async def test_daemons_of_objects_that_are_gone_do_not_wake_them_up(host):
    notes = declare(host, lingering=5)
    await host.look()
    await let_it_run()
    host.record.daemons.forget()
    await let_it_run(10)
    assert notes == ['start', Reason.RESOURCE_DELETED]
    assert host.wakeups == 0


async def test_rejected_credentials_end_the_operator(host):
    host.failures = [LoginError('boo')]

    @kopf.daemon('kopfexamples', registry=host.registry)
    async def fn(**_):
        return 1

    await host.look()
    await let_it_run()
    assert isinstance(host.failed, LoginError)


# ---------------------------------------------------------------- operators


async def test_the_end_of_the_operator_stops_all(host):
    notes = declare(host)
    kopf.timer('kopfexamples', registry=host.registry, interval=10, id='timer')(lambda **_: None)
    await host.look()
    await let_it_run()
    await host.background.close()
    assert notes == ['start', Reason.OPERATOR_EXITING]
    assert len(host.background) == 0
    assert host.wakeups == 0  # the object stays held for the next run of the operator
    assert await host.look()
    await let_it_run(100)
    assert notes == ['start', Reason.OPERATOR_EXITING]


async def test_an_operator_without_daemons_ends_at_once(host):
    await host.look()
    await host.background.close()


async def test_daemons_have_the_limits_of_their_own_at_the_end_of_the_operator(host):
    notes = declare(host, lingering=12, cancellation_backoff=15, cancellation_timeout=5)
    await host.look()
    await let_it_run()
    start = asyncio.get_running_loop().time()
    await host.background.close()
    assert asyncio.get_running_loop().time() - start == 12
    assert notes == ['start', Reason.OPERATOR_EXITING | Reason.DAEMON_SIGNALLED]


@pytest.mark.parametrize('options', [{}, {'cancellation_backoff': 3}])
async def test_daemons_without_limits_are_cancelled_at_the_end_of_the_operator(host, options):
    notes = declare(host, lingering=100, **options)
    await host.look()
    await let_it_run()
    start = asyncio.get_running_loop().time()
    await host.background.close()
    assert asyncio.get_running_loop().time() - start == 5
    assert notes == ['start']


@pytest.mark.parametrize('options', [{}, {'cancellation_polling': 2}])  # the reminders do not put off the end
async def test_daemons_that_are_being_stopped_are_cancelled_too(host, options):
    notes = declare(host, lingering=100, **options)
    await host.look()
    await let_it_run()
    await host.delete()
    await let_it_run(1)
    start = asyncio.get_running_loop().time()
    await host.background.close()
    assert asyncio.get_running_loop().time() - start == 5
    assert notes == ['start']
    assert all(timer.cancelled() for timer in asyncio.get_running_loop()._scheduled)  # no reminders are left


async def test_the_end_is_bounded_whatever_daemons_do(host):
    @kopf.daemon('kopfexamples', registry=host.registry)
    async def stubborn(**_):
        for _ in range(5):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(10)

    await host.look()
    await let_it_run()
    start = asyncio.get_running_loop().time()
    with pytest.warns(ResourceWarning):
        await host.background.close()
    assert asyncio.get_running_loop().time() - start <= 6
    await asyncio.sleep(100)


async def test_abandoned_daemons_are_given_some_time_at_the_end_of_the_operator(host):
    cancellations = []

    @kopf.daemon('kopfexamples', registry=host.registry, cancellation_timeout=1)
    async def stubborn(**_):
        for _ in range(5):
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                cancellations.append(1)

    await host.look()
    await let_it_run()
    with pytest.warns(ResourceWarning):
        await host.delete()
        await let_it_run(2)
    start = asyncio.get_running_loop().time()
    await host.background.close()
    assert asyncio.get_running_loop().time() - start == pytest.approx(2, abs=0.5)
    assert cancellations == [1]


@pytest.mark.looptime(False)
async def test_a_thread_that_hangs_does_not_hold_up_the_end(host, monkeypatch):
    monkeypatch.setattr('kopf._core.engines.daemons.EXIT_TIMEOUT', 0.1)
    monkeypatch.setattr('kopf._core.engines.daemons.EXIT_CANCELLATION_TIMEOUT', 0.1)
    monkeypatch.setattr('kopf._core.engines.spawning.EXIT_TIMEOUT', 0.1)
    gate, started = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    @kopf.daemon('kopfexamples', registry=host.registry)
    def fn(**_):
        loop.call_soon_threadsafe(started.set)
        gate.wait(10)

    await host.look()
    await started.wait()
    with pytest.warns(ResourceWarning):
        await asyncio.wait_for(host.background.close(), 60)
    gate.set()


async def test_a_paused_operator_has_no_daemons(host):
    notes = declare(host)
    await host.look()
    await let_it_run()
    host.background.pause()
    await let_it_run()
    assert notes == ['start', Reason.OPERATOR_PAUSING]
    assert host.wakeups == 0
    assert await host.look()
    await let_it_run()
    assert notes == ['start', Reason.OPERATOR_PAUSING]
    host.background.resume()
    assert await host.look()
    await let_it_run()
    assert notes == ['start', Reason.OPERATOR_PAUSING, 'start']


async def test_a_daemon_that_ends_after_the_pause_is_started_anew(host):
    notes = declare(host, lingering=5)
    await host.look()
    await let_it_run()
    host.background.pause()
    await let_it_run(1)
    host.background.resume()
    assert await host.look()
    await let_it_run(5)
    assert host.wakeups == 1
    assert await host.look()
    await let_it_run()
    assert notes == ['start', Reason.OPERATOR_PAUSING, 'start']


async def test_daemons_that_have_ended_do_not_come_back_after_a_pause(host):
    calls = []

    @kopf.daemon('kopfexamples', registry=host.registry)
    async def fn(**_):
        calls.append(1)

    await host.look()
    await let_it_run()
    host.background.pause()
    host.background.resume()
    await host.look()
    await let_it_run()
    assert calls == [1]
