import asyncio

import pytest

from kopf._cogs.aiokits.inactivity_timeouts import InactivityTimeout

pytestmark = pytest.mark.looptime


async def test_signs_of_life_put_the_limit_off():
    loop = asyncio.get_running_loop()
    with pytest.raises(TimeoutError):
        async with InactivityTimeout(10) as silence:
            for _ in range(3):
                await asyncio.sleep(9)
                silence.renew()
            await asyncio.sleep(99)
    assert loop.time() == pytest.approx(37)


async def test_nothing_is_left_of_it_when_it_is_over():
    async with InactivityTimeout(10):
        await asyncio.sleep(9)
    await asyncio.sleep(9)


async def test_without_a_limit_inactivity_lasts_for_ever():
    async with InactivityTimeout(None) as silence:
        await asyncio.sleep(1e6)
        silence.renew()


async def test_errors_and_cancellations_of_others_come_through():
    with pytest.raises(ZeroDivisionError):
        async with InactivityTimeout(10):
            raise ZeroDivisionError
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5), InactivityTimeout(10):
            await asyncio.sleep(99)
    assert asyncio.get_running_loop().time() == pytest.approx(5)


@pytest.mark.parametrize('former', [None, 100])
async def test_limits_can_be_tightened(former):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(999), InactivityTimeout(former) as silence:
            await asyncio.sleep(9)
            silence.relax(10)
            await asyncio.sleep(9999)
    assert asyncio.get_running_loop().time() == pytest.approx(19)


@pytest.mark.parametrize('limit, end', [(20, 29), (None, 999)])
async def test_limits_can_be_relaxed(limit, end):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(999), InactivityTimeout(10) as silence:
            await asyncio.sleep(9)
            silence.relax(limit)
            await asyncio.sleep(9999)
    assert asyncio.get_running_loop().time() == pytest.approx(end)
