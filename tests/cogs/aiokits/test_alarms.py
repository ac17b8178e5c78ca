"""Alarms that go off together if they are due at nearly the same time."""

import asyncio
import contextvars
import functools

import pytest

from kopf._cogs.aiokits.alarms import RATE, Alarms

pytestmark = pytest.mark.looptime


@pytest.fixture()
def alarms():
    return Alarms(contextvars.copy_context())


@pytest.fixture()
def rung():
    return []


@pytest.fixture()
def ring(rung):
    def make(name):
        return functools.partial(lambda: rung.append((name, asyncio.get_running_loop().time())))

    return make


async def test_alarms_are_never_early_and_hardly_late(alarms, ring, rung):
    begun = asyncio.get_running_loop().time()
    delays = [0, 0.1, 0.499, 0.5, 0.62, 0.7, 0.7111, 0.75]
    for delay in reversed(delays):
        alarms.set(begun + delay, ring(delay))
    await asyncio.sleep(1)
    assert sorted(name for name, _ in rung) == delays
    assert all(-0.0011 <= time - begun - delay < 1 / RATE + 0.001 for delay, time in rung)


async def test_those_of_a_round_have_one_timer(alarms, ring, rung, monkeypatch):
    loop, timers = asyncio.get_running_loop(), []
    call_at = loop.call_at
    monkeypatch.setattr(loop, 'call_at', lambda *args, **kwargs: timers.append(args) or call_at(*args, **kwargs))
    begun = loop.time()
    for number in range(1000):
        alarms.set(begun + 0.6 + number / 10000, ring(number))
    assert len(timers) <= 0.1 * RATE + 1
    await asyncio.sleep(0.8)
    assert [name for name, _ in rung] == list(range(1000))


async def test_cancelled_alarms_leave_nothing(alarms, ring, rung, monkeypatch):
    begun = asyncio.get_running_loop().time()
    first, second, third = [alarms.set(begun + delay, ring(delay)) for delay in (0.6, 0.6, 3600)]
    third.cancel()
    assert len(alarms._rounds) == 1
    first.cancel()
    await asyncio.sleep(0.7)
    assert len(rung) == 1
    second.cancel()  # too late, and no harm
    assert not alarms._rounds


async def test_alarms_can_cancel_those_after_them(alarms, ring, rung):
    begun = asyncio.get_running_loop().time()
    alarms.set(begun + 0.6, lambda: alarm.cancel())
    alarm = alarms.set(begun + 0.6, ring('cancelled'))
    alarms.set(begun + 0.6, ring('other'))
    await asyncio.sleep(0.7)
    assert [name for name, _ in rung] == ['other']


async def test_alarms_that_fail_are_told_of_and_hold_up_nobody(alarms, ring, rung):
    loop, told = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: told.append(repr(context['exception'])))
    alarms.set(loop.time() + 0.6, functools.partial(int, 'x'))
    alarms.set(loop.time() + 0.6, ring('other'))
    await asyncio.sleep(0.7)
    assert len(told) == 1 and told[0].startswith('ValueError') and [name for name, _ in rung] == ['other']
