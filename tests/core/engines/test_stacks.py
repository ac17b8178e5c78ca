"""Stacks of coroutines, of the threads that they wait for, and of the calls that block the loop."""

import asyncio
import concurrent.futures
import contextlib
import inspect
import threading

from kopf._core.actions.invocation import invoke
from kopf._core.engines.stacks import Stack, read_stack


def get_line(fn, text):
    lines, start = inspect.getsourcelines(fn)
    return next(start + number for number, line in enumerate(lines) if text in line)


async def outer(event):
    await inner(event)


async def inner(event):
    await event.wait()


async def run_until_called(task, event):
    async with asyncio.timeout(60):
        while not event.is_set():
            await asyncio.sleep(0)


async def test_the_place_of_a_coroutine_is_where_its_innermost_own_coroutine_waits():
    event = asyncio.Event()
    task = asyncio.create_task(outer(event))
    await asyncio.sleep(0)
    stack = read_stack(task, None)
    assert [call.function for call in stack.calls][:2] == ['outer', 'inner']
    place = stack.find_place(outer)
    assert (place.file, place.line) == (__file__, get_line(inner, 'event.wait'))
    assert place.text == 'await event.wait()' and stack.thread is None
    event.set()
    await task


async def test_the_stack_goes_on_in_the_task_that_is_waited_for():
    async def gather():
        await asyncio.create_task(inner(event))

    event = asyncio.Event()
    task = asyncio.create_task(gather())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert read_stack(task, None).find_place(gather).function == 'inner'
    event.set()
    await task


async def test_sync_functions_are_found_in_their_threads():
    locks = {name: threading.Lock() for name in 'ab'}

    def fn(name):
        with locks[name]:
            return name

    def is_waiting(task):
        place = read_stack(task, None).find_place(fn)  # there is none before the thread has begun
        return place is not None and place.text == 'with locks[name]:'

    with contextlib.ExitStack() as stack:
        executor = stack.enter_context(concurrent.futures.ThreadPoolExecutor())
        for lock in locks.values():
            stack.enter_context(lock)  # released before the executor waits for its threads, also if the test fails
        tasks = [asyncio.create_task(invoke(fn, {'name': name}, executor=executor)) for name in 'ab']
        async with asyncio.timeout(60):
            while not all(is_waiting(task) for task in tasks):
                await asyncio.sleep(0)
        stacks = [read_stack(task, None) for task in tasks]
        assert len({stack.thread for stack in stacks}) == 2
        assert [call.function for call in stacks[0].calls] == ['fn']
    assert await asyncio.gather(*tasks) == ['a', 'b']


async def test_calls_that_block_the_loop_are_found_below_their_coroutine():
    found = []
    loop_thread = threading.get_ident()

    def look():
        while not found:
            stack = read_stack(task, loop_thread)
            if 'thread.join' in stack.find_place(fn).text:
                found.append(stack)

    def block():
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()  # here the event loop is blocked

    async def fn():
        await asyncio.sleep(0)
        block()

    async def run():
        await invoke(fn, {}, executor=None)

    task = asyncio.create_task(run())
    async with asyncio.timeout(60):
        await task
    place = found[0].find_place(fn)
    assert (place.file, place.line) == (__file__, get_line(block, 'thread.join'))
    assert [call.function for call in found[0].calls][:2] == ['fn', 'block']


def test_there_is_no_place_without_calls():
    assert Stack([]).find_place(outer) is None
