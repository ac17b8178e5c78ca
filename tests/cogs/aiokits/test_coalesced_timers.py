"""Timers that expire together if they are due at nearly the same time."""

import asyncio
import contextvars
import functools

import pytest

from kopf._cogs.aiokits.coalesced_timers import RATE, CoalescedTimers

pytestmark = pytest.mark.looptime


@pytest.fixture()
def timers():
    return CoalescedTimers(contextvars.copy_context())


@pytest.fixture()
def rung():
    return []


@pytest.fixture()
def ring(rung):
    def make(name):
        return functools.partial(lambda: rung.append((name, asyncio.get_running_loop().time())))

    return make


async def test_timers_are_never_early_and_hardly_late(timers, ring, rung):
    begun = asyncio.get_running_loop().time()
    delays = [0, 0.1, 0.499, 0.5, 0.62, 0.7, 0.7111, 0.75]
    for delay in reversed(delays):
        timers.set(begun + delay, ring(delay))
    await asyncio.sleep(1)
    assert sorted(name for name, _ in rung) == delays
    assert all(-0.0011 <= time - begun - delay < 1 / RATE + 0.001 for delay, time in rung)


async def test_timers_of_a_round_share_one_of_the_loop(timers, ring, rung, monkeypatch):
    loop, handles = asyncio.get_running_loop(), []
    call_at = loop.call_at
    monkeypatch.setattr(loop, 'call_at', lambda *args, **kwargs: handles.append(args) or call_at(*args, **kwargs))
    begun = loop.time()
    for number in range(1000):
        timers.set(begun + 0.6 + number / 10000, ring(number))
    assert len(handles) <= 0.1 * RATE + 1
    await asyncio.sleep(0.8)
    assert [name for name, _ in rung] == list(range(1000))


async def test_cancelled_timers_leave_nothing(timers, ring, rung, monkeypatch):
    begun = asyncio.get_running_loop().time()
    first, second, third = [timers.set(begun + delay, ring(delay)) for delay in (0.6, 0.6, 3600)]
    third.cancel()
    assert len(timers._rounds) == 1
    first.cancel()
    await asyncio.sleep(0.7)
    assert len(rung) == 1
    second.cancel()  # too late, and no harm
    assert not timers._rounds


async def test_timers_can_cancel_those_after_them(timers, ring, rung):
    begun = asyncio.get_running_loop().time()
    timers.set(begun + 0.6, lambda: timer.cancel())
    timer = timers.set(begun + 0.6, ring('cancelled'))
    timers.set(begun + 0.6, ring('other'))
    await asyncio.sleep(0.7)
    assert [name for name, _ in rung] == ['other']


async def test_timers_that_fail_are_reported_and_do_not_stop_the_others(timers, ring, rung):
    loop, reported = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: reported.append(repr(context['exception'])))
    timers.set(loop.time() + 0.6, functools.partial(int, 'x'))
    timers.set(loop.time() + 0.6, ring('other'))
    await asyncio.sleep(0.7)
    assert len(reported) == 1 and reported[0].startswith('ValueError') and [name for name, _ in rung] == ['other']
