"""Flags of all makes: raised before and after, from the loop and from threads; giving up leaves them alone."""

import asyncio
import concurrent.futures
import gc
import threading

import pytest

from kopf._cogs.aiokits.flags import raise_flag, wait_flag

FLAGS = [asyncio.Event, asyncio.Future, threading.Event, concurrent.futures.Future]


@pytest.fixture(params=FLAGS, ids=lambda cls: f'{cls.__module__}.{cls.__name__}')
async def flag(request):
    return request.param()


def is_raised(flag):
    return flag.is_set() if hasattr(flag, 'is_set') else flag.done() and not flag.cancelled()


async def start_waiting(flag):
    task = asyncio.create_task(wait_flag(flag))
    await asyncio.sleep(0)
    return task


async def test_a_flag_raised_before_ends_the_wait_at_once(flag):
    await raise_flag(flag)
    async with asyncio.timeout(60):
        await wait_flag(flag)


async def test_a_flag_raised_meanwhile_ends_the_wait(flag):
    task = await start_waiting(flag)
    assert not task.done()
    await raise_flag(flag)
    async with asyncio.timeout(60):
        await task


async def test_many_can_wait(flag):
    tasks = [await start_waiting(flag) for _ in range(3)]
    await raise_flag(flag)
    async with asyncio.timeout(60):
        await asyncio.gather(*tasks)


async def test_a_flag_can_be_raised_twice(flag):
    await raise_flag(flag)
    await raise_flag(flag)
    assert is_raised(flag)


async def test_giving_up_does_not_touch_the_flag(flag):
    task = await start_waiting(flag)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not is_raised(flag)
    assert not hasattr(flag, 'cancelled') or not flag.cancelled()
    await raise_flag(flag)
    assert is_raised(flag)


@pytest.mark.parametrize('cls', [threading.Event, concurrent.futures.Future])
async def test_raised_in_another_thread(cls):
    flag = cls()
    task = await start_waiting(flag)
    threading.Thread(target=lambda: asyncio.run(raise_flag(flag))).start()
    async with asyncio.timeout(60):
        await task


@pytest.mark.parametrize('cls', [asyncio.Future, concurrent.futures.Future])
async def test_a_wait_for_a_future_returns_its_result(cls):
    flag = cls()
    task = await start_waiting(flag)
    flag.set_result('the reason')
    async with asyncio.timeout(60):
        assert await task == 'the reason'


@pytest.mark.parametrize('cls', [asyncio.Future, concurrent.futures.Future])
async def test_a_wait_for_a_future_raises_its_error(cls):
    flag = cls()
    task = await start_waiting(flag)
    flag.set_exception(ValueError('boo'))
    async with asyncio.timeout(60):
        with pytest.raises(ValueError, match='boo'):
            await task


async def test_cancelled_futures_are_not_raised_again():
    flag = asyncio.Future()
    flag.cancel()
    await raise_flag(flag)
    assert flag.cancelled()


@pytest.mark.parametrize('cls', [threading.Event, concurrent.futures.Future])
def test_flags_can_outlive_their_loop(cls, caplog):
    flag = cls()

    async def give_up():
        (await start_waiting(flag)).cancel()

    before = set(threading.enumerate())
    asyncio.run(give_up())
    asyncio.run(raise_flag(flag))
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()
    gc.collect()
    assert not caplog.records


@pytest.mark.parametrize('wrong', [None, True, object(), 'flag'])
async def test_other_things_are_refused(wrong):
    with pytest.raises(TypeError, match='A flag must be'):
        await wait_flag(wrong)
    with pytest.raises(TypeError, match='A flag must be'):
        await raise_flag(wrong)
