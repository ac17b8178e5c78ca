"""Flags with reasons: raised in the event loop, waited for there and in threads."""

import asyncio
import contextvars
import enum
import gc
import math
import threading

import pytest

from kopf._cogs.aiokits.awaitable_flags import AsyncFlagWaiter, ReasonedFlag, SyncFlagWaiter
from kopf._cogs.aiokits.coalesced_timers import CoalescedTimers


class Why(enum.Flag):
    RAIN = enum.auto()
    NIGHT = enum.auto()


@pytest.fixture
def flag():
    return ReasonedFlag[Why](CoalescedTimers(contextvars.copy_context()))


@pytest.mark.parametrize('cls', [SyncFlagWaiter, AsyncFlagWaiter])
def test_a_waiter_shows_the_flag(flag, cls):
    waiter = cls(flag)
    assert not waiter
    assert not waiter.is_set()
    assert waiter.reason is None
    flag.set(Why.RAIN)
    assert waiter
    assert waiter.is_set()
    assert waiter.reason is Why.RAIN
    assert 'True' in repr(waiter) and 'RAIN' in repr(waiter)


def test_reasons_add_up(flag):
    flag.set(Why.RAIN)
    flag.set(Why.NIGHT)
    assert flag.reason == Why.RAIN | Why.NIGHT


@pytest.mark.looptime
async def test_a_coroutine_waits_until_the_flag(flag):
    loop, waiter = asyncio.get_running_loop(), AsyncFlagWaiter(flag)
    loop.call_later(3, flag.set, Why.RAIN)
    start = loop.time()
    assert await waiter.wait() is waiter
    assert loop.time() - start == 3


@pytest.mark.looptime
@pytest.mark.parametrize('timeout', [0, 2])
async def test_a_coroutine_waits_no_longer_than_its_timeout(flag, timeout):
    loop = asyncio.get_running_loop()
    start = loop.time()
    assert not await AsyncFlagWaiter(flag).wait(timeout)
    assert loop.time() - start == timeout


@pytest.mark.looptime
async def test_a_coroutine_waits_for_ever_if_its_timeout_is_infinite(flag):
    task = asyncio.create_task(AsyncFlagWaiter(flag).wait(math.inf))
    await asyncio.sleep(1000)
    assert not task.done()
    flag.set(Why.RAIN)
    assert await task


@pytest.mark.looptime
async def test_coroutines_that_wait_for_nearly_the_same_time_go_on_together(flag):
    loop, times = asyncio.get_running_loop(), []

    async def wait(timeout):
        await AsyncFlagWaiter(flag).wait(timeout)
        times.append(loop.time())

    await asyncio.gather(*[wait(5 + number / 1000) for number in range(2, 10)])
    assert len(set(times)) == 1 and 5.009 <= times[0] <= 5.02
    assert not flag._timers._rounds


async def test_several_coroutines_wait_and_one_is_cancelled(flag):
    waiter = AsyncFlagWaiter(flag)
    tasks = [asyncio.create_task(waiter.wait(100)) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.sleep(0)
    flag.set(Why.RAIN)
    await asyncio.wait(tasks)
    assert [task.cancelled() for task in tasks] == [False, True, False]
    assert not flag._timers._rounds


async def test_nothing_is_left_of_waiting(flag):
    def count():
        gc.collect()
        return sum(isinstance(item, asyncio.Future) for item in gc.get_objects())

    waiter, before = AsyncFlagWaiter(flag), count()
    for _ in range(100):
        await waiter.wait(0.0001)
    assert count() < before + 50


async def test_a_coroutine_that_ignores_the_flag_lets_others_run(flag):
    flag.set(Why.RAIN)
    others = []
    asyncio.get_running_loop().call_soon(others.append, True)
    await AsyncFlagWaiter(flag).wait()
    assert others


def test_a_thread_waits_no_longer_than_its_timeout(flag):
    waiter = SyncFlagWaiter(flag)
    assert waiter.wait(0.01) is waiter
    assert not waiter


def test_a_thread_does_not_wait_for_a_raised_flag(flag):
    flag.set(Why.RAIN)
    assert SyncFlagWaiter(flag).wait()


def test_threads_are_woken_up(flag):
    started, results = threading.Barrier(3), []

    def wait():
        started.wait()
        results.append(bool(SyncFlagWaiter(flag).wait(10)))

    threads = [threading.Thread(target=wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    started.wait()
    flag.set(Why.RAIN)
    for thread in threads:
        thread.join()
    assert results == [True, True]
