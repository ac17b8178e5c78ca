"""The end of a loop is bounded; what does not end is named."""
import asyncio
import logging
import time

import pytest

from kopf._cogs.aiokits.loops import finishing


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
