"""The list of an indexed kind is never answered: only the handlers that can use the index wait for it."""

import asyncio
import datetime

from operatorworld import in_virtual_time

import kopf


def declare(world):
    world.declare(kopf.index, 'idx', resource='configmaps')

    @kopf.on.create('kopfexamples', registry=world.registry)
    async def create(name, **_):
        world.note('create', name)

    @kopf.on.create('secrets', registry=world.registry)
    async def use(name, idx, **_):
        world.note('use', name)


async def create_both(world):
    await world.create()
    await world.aio.create({'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': 'secret'}})


@in_virtual_time
async def test_handlers_of_other_kinds_run_soon_after_the_start(world):
    declare(world)
    world.sandbox.faults.delay(9999, times=None, resource='configmaps')
    began = asyncio.get_running_loop().time()
    async with world.operator():
        await create_both(world)
        await world.until_called('create')
        assert 29 < asyncio.get_running_loop().time() - began < 35
        await asyncio.sleep(999)
    assert world.ids == ['create']


@in_virtual_time
async def test_handlers_of_other_kinds_run_at_once_after_a_pause(world):
    declare(world)
    await world.aio.apply((world.root / 'peering.yaml').read_text())
    await world.aio.create({'apiVersion': 'kopf.dev/v1', 'kind': 'ClusterKopfPeering', 'metadata': {'name': 'default'}})
    boss = {'priority': 100, 'lastseen': datetime.datetime.now(datetime.UTC).isoformat(), 'lifetime': 60}
    async with world.operator(standalone=False, clusterwide=True, peering_name='default'):
        await world.settled()
        world.sandbox.faults.delay(9999, times=None, resource='configmaps')
        await world.aio.patch('clusterkopfpeerings', 'default', {'status': {'boss': boss}})
        await world.until_logged("Pausing operations")
        await create_both(world)
        await world.aio.patch('clusterkopfpeerings', 'default', {'status': {'boss': None}})
        async with asyncio.timeout(5):
            await world.until_called('create', name='obj')
        await asyncio.sleep(999)
    assert 'use' not in world.ids
