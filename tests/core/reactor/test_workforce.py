"""Workers: how many at a time, and who goes first."""
import asyncio

import pytest

import kopf


@pytest.mark.parametrize('limit', [1, 2])
async def test_as_many_at_once_as_allowed(world, limit):
    running, most = 0, 0

    async def work(**_):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    world.settings.queueing.worker_limit = limit
    world.declare(kopf.on.create, 'create', does=work)
    async with world.operator():
        for number in range(6):
            await world.create(f'obj{number}')
        for number in range(6):
            await world.handled(f'obj{number}')
    assert most == limit


async def test_those_who_sleep_take_no_places(world):
    async def work(name, **_):
        if name != 'third':
            raise kopf.TemporaryError('boo', delay=999)
    world.settings.queueing.worker_limit = 2
    world.declare(kopf.on.create, 'create', does=work)
    async with world.operator():
        await world.create('first')
        await world.create('second')
        await world.until_called('create', 2)
        await world.create('third')
        await world.handled('third')
