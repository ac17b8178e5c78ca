"""Work that startup handlers defer until the operator serves."""

import asyncio

import pytest

from kopf._core.engines.deferred_work import DeferredWork


async def test_the_work_is_run_when_the_operator_serves():
    deferred, done = DeferredWork(), []

    async def work(number):
        done.append(number)

    deferred.add('one', lambda: work(1))
    deferred.add('two', lambda: work(2))
    deferred.add('one', lambda: work(3))
    assert deferred.is_possible and not done
    async with asyncio.TaskGroup() as tasks:
        deferred.start(tasks)
    assert sorted(done) == [2, 3]
    assert not deferred.is_possible


async def test_failed_work_fails_its_tasks():
    deferred = DeferredWork()

    async def fail():
        raise ValueError("boo")

    deferred.add('one', fail)
    with pytest.raises(ExceptionGroup):
        async with asyncio.TaskGroup() as tasks:
            deferred.start(tasks)
