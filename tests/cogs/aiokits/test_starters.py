"""Coroutines that begin at once: whatever they can tell of it, they are in a usual task."""
import asyncio
import contextlib
import contextvars

import pytest

from kopf._cogs.aiokits.starters import Starter

var = contextvars.ContextVar('var', default='outside')


@pytest.fixture
async def starter():
    starter = Starter()

    async def nothing():
        pass

    assert starter.start(nothing()) is not None  # at first, there is no spare task yet
    await settle()
    yield starter
    await starter.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_does_not_wait_is_done_at_once(starter):
    done = []

    async def work():
        done.append(asyncio.current_task())

    mine = asyncio.current_task()
    tasks = asyncio.all_tasks()
    assert starter.start(work()) is starter.start(work()) is None
    assert done[0] is done[1] is not mine
    assert asyncio.current_task() is mine
    assert asyncio.all_tasks() == tasks


async def test_what_waits_goes_on_in_the_same_task(starter):
    seen, going = [], asyncio.Event()

    async def work():
        async with asyncio.timeout(9):
            seen.append(asyncio.current_task())
            await going.wait()
            await asyncio.sleep(0)
        seen.append(asyncio.current_task())

    task = starter.start(work())
    assert seen == [task]
    await settle()
    going.set()
    await task
    assert seen == [task, task]
    assert not task.cancelling()


async def test_time_limits_and_groups_end_what_has_begun_in_them(starter):
    seen = []

    async def work():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0):
                await asyncio.sleep(9)
            seen.append("never")
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))
        seen.append("ended")

    await starter.start(work())
    assert seen == ["ended"]


async def test_each_has_a_context_of_its_own(starter):
    seen, token = [], var.set('caller')

    async def work(value):
        seen.append(var.get())
        var.set(value)
        if value == 'waits':
            await asyncio.sleep(0)
            await asyncio.create_task(child())

    async def child():
        seen.append(var.get())

    task = starter.start(work('waits'))
    assert starter.start(work('does not')) is not None  # the next spare task is not ready yet
    assert var.get() == 'caller'
    var.reset(token)
    await task
    await settle()
    starter.start(work('another'))
    assert seen == ['caller', 'caller', 'waits', 'outside']


async def test_errors_come_from_the_start_or_from_the_task(starter):
    async def work(event):
        if event is not None:
            await event.wait()
        raise ValueError("boo")

    with pytest.raises(ValueError, match="boo"):
        starter.start(work(None))
    event = asyncio.Event()
    task = starter.start(work(event))
    event.set()
    with pytest.raises(ValueError, match="boo"):
        await task


@pytest.mark.parametrize('iterations', [0, 1, 5])
async def test_cancellation_reaches_what_is_waited_for(starter, iterations):
    future, seen = asyncio.get_running_loop().create_future(), []

    async def work():
        try:
            await future
        except asyncio.CancelledError:
            seen.append("cancelled")
            await asyncio.sleep(0)  # there is time to clean up
            seen.append("cleaned")
            raise

    task = starter.start(work())
    for _ in range(iterations):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert future.cancelled()
    assert seen == ["cancelled", "cleaned"]


@pytest.mark.parametrize('iterations', [0, 1])
async def test_cancellation_of_what_only_lets_others_go_first(starter, iterations):
    seen = []

    async def work():
        try:
            while True:
                await asyncio.sleep(0)
        finally:
            seen.append("ended")

    task = starter.start(work())
    for _ in range(iterations):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert seen == ["ended"]


async def test_what_cancels_itself(starter):
    async def work():
        asyncio.current_task().cancel()
        await asyncio.sleep(9)

    async def in_vain():
        asyncio.current_task().cancel()

    task = starter.start(work())
    await asyncio.wait([task], timeout=5)
    assert task.cancelled()
    await settle()
    assert starter.start(in_vain()) is None
    await settle()
    done = []

    async def another():
        await asyncio.sleep(0)
        done.append(True)

    await starter.start(another())
    assert done


async def test_several_can_wait_for_the_same(starter):
    future, seen = asyncio.get_running_loop().create_future(), []

    async def work():
        seen.append(await future)

    tasks = [starter.start(work()), asyncio.create_task(work()), starter.start(work())]
    await settle()
    future.set_result("x")
    await asyncio.gather(*tasks)
    assert seen == ["x"] * 3


async def test_what_is_over_at_the_very_moment(starter):
    future = asyncio.get_running_loop().create_future()

    async def work():
        return await future

    task = starter.start(work())
    future.set_result("x")
    await asyncio.wait([task], timeout=5)
    assert task.done() and not task.cancelled()


async def test_one_inside_of_another(starter):
    seen = []

    async def outer():
        task = starter.start(inner())
        seen.append("outer")
        await task

    async def inner():
        seen.append("inner")
        assert asyncio.current_task() in asyncio.all_tasks()

    await starter.start(outer())
    assert seen == ["outer", "inner"]


async def test_from_outside_of_tasks(starter):
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    async def work():
        assert asyncio.current_task() is not None
        done.set()

    loop.call_soon(starter.start, work())
    async with asyncio.timeout(5):
        await done.wait()


async def test_not_too_much_begins_as_one_task(starter):
    seen = set()

    async def work():
        seen.add(asyncio.current_task())

    for _ in range(250):
        starter.start(work())
        await settle()
    assert len(seen) >= 3
    assert sum(not task.done() for task in seen) == 1
