"""Tasks that begin at once."""

import asyncio
import sys

import pytest

from kopf._cogs.aiokits.eager import create_eager_task


async def test_the_result_and_the_error_are_those_of_the_task():
    async def succeed():
        return 123

    async def fail():
        raise ValueError("boo")

    assert await create_eager_task(succeed()) == 123
    with pytest.raises(ValueError, match='boo'):
        await create_eager_task(fail())


async def test_timeouts_cancel_what_has_waited():
    async def work():
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await create_eager_task(work())


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python has eager tasks since 3.12")
async def test_what_does_not_wait_is_done_at_once():
    async def work():
        assert asyncio.current_task() is not outer
        return 123

    outer = asyncio.current_task()
    task = create_eager_task(work())
    assert task.done()
    assert task.result() == 123
    assert asyncio.current_task() is outer
