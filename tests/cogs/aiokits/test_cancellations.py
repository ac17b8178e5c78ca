"""Cancellations that do not come from the owner of the task."""

import asyncio

import pytest

from kopf._cogs.aiokits.cancellations import withdraw_cancellation


async def cancel_itself(*, waits):
    asyncio.current_task().cancel()
    if waits:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(9)


@pytest.mark.parametrize('waits', [True, False])
async def test_the_task_goes_on_after_a_stray_cancellation(waits):
    await cancel_itself(waits=waits)
    await withdraw_cancellation(lambda: False)
    assert asyncio.current_task().cancelling() == 0
    await asyncio.sleep(0)  # nothing is raised later


async def test_a_cancellation_by_the_owner_is_raised():
    async def work():
        await cancel_itself(waits=True)
        await withdraw_cancellation(lambda: bool(cancelled))

    cancelled = []
    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    cancelled.append(task.cancel())
    with pytest.raises(asyncio.CancelledError):
        await task
