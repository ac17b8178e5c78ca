"""The end of a loop is bounded; what does not end is named."""

import asyncio
import logging
import time

import pytest

from kopf._cogs.aiokits.loops import complete, finishing, make_threadsafe


def test_the_loop_is_closed():
    with finishing(asyncio.new_event_loop()) as loop:
        assert loop.run_until_complete(asyncio.sleep(0, 'result')) == 'result'
    assert loop.is_closed()


def test_the_loop_is_closed_after_errors():
    with pytest.raises(ValueError):
        with finishing(asyncio.new_event_loop()) as loop:
            raise ValueError
    assert loop.is_closed()


def test_tasks_that_are_left_are_cancelled():
    log, tasks = [], []

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            log.append('cleaned')

    async def main():
        tasks.append(asyncio.create_task(work()))
        await asyncio.sleep(0)

    with finishing(asyncio.new_event_loop()) as loop:
        loop.run_until_complete(main())
    assert log == ['cleaned'] and tasks[0].cancelled()


def test_generators_that_are_left_are_closed():
    log, generators = [], []

    async def generate():
        try:
            yield 1
        finally:
            log.append('closed')

    async def main():
        generators.append(generate())
        await anext(generators[0])

    with finishing(asyncio.new_event_loop()) as loop:
        loop.run_until_complete(main())
    assert log == ['closed']


def test_tasks_that_swallow_cancellations_are_named_and_left(caplog):
    caplog.set_level(logging.WARNING)
    tasks = []

    async def stubborn():
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass

    async def main():
        tasks.append(asyncio.create_task(stubborn(), name='the-task'))
        await asyncio.sleep(0)

    started = time.monotonic()
    with finishing(asyncio.new_event_loop(), timeout=0.1) as loop:
        loop.run_until_complete(main())
    assert time.monotonic() - started < 2
    assert loop.is_closed()
    assert 'the-task' in caplog.text and 'stubborn' in caplog.text


@pytest.mark.parametrize('patience, ends', [(60, ['finished']), (0.01, ['cancelled'])])
async def test_what_is_cancelled_comes_to_its_end_if_that_does_not_take_long(patience, ends):
    log, step = [], asyncio.Event()

    async def work():
        try:
            await step.wait()
            log.append('finished')
        except asyncio.CancelledError:
            log.append('cancelled')
            raise

    task = asyncio.create_task(complete(work(), patience=patience))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    if patience > 1:
        step.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ends


async def test_what_is_not_cancelled_is_as_without():
    assert await complete(asyncio.sleep(0, 'result'), patience=0) == 'result'
    with pytest.raises(TimeoutError):
        await complete(asyncio.wait_for(asyncio.Event().wait(), 0.01), patience=0)


# Calls from other threads.


async def test_a_function_is_called_in_its_loop_from_another_thread():
    called = asyncio.Event()
    await asyncio.to_thread(make_threadsafe(called.set))
    async with asyncio.timeout(10):
        await called.wait()


def test_calls_into_a_closed_loop_do_nothing():
    async def make():
        return make_threadsafe(pytest.fail)

    with finishing(asyncio.new_event_loop()) as loop:
        call = loop.run_until_complete(make())
    call()
