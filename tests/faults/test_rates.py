"""Servers that are asked too much: what operators do when they are told so, and how they avoid it."""

import asyncio

import pytest
from operatorworld import Gate, in_virtual_time

import kopf


def requests(world):
    """Return what the operator has asked for, in the order in which it has come."""
    return [seen for seen in world.sandbox.requests if seen.user_agent.startswith('kopf/')]


@in_virtual_time
async def test_everybody_waits_when_one_is_told_to(world):
    world.settings.networking.error_backoffs = [0.1]
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.event, 'event', resource='configmaps')
    async with world.operator():
        await world.create('first')
        await world.handled('first')
        world.sandbox.faults.error(429, retry_after=1, verb='patch')
        world.sandbox.faults.end_watches(resource='configmaps')  # there will be a new one
        for number in range(10):
            await world.create(f'obj{number}')
        for number in range(10):
            await world.handled(f'obj{number}')
    told = next(seen for seen in requests(world) if seen.status == 429)
    at_once = [seen for seen in requests(world) if told.time < seen.time < told.time + 0.95]
    # Those that were on their way already, at the same time as the one that was refused.
    assert all(seen.time < told.time + 0.5 for seen in at_once)
    assert sorted(call.name for call in world.calls if call.id == 'create') == sorted(
        ['first', *(f'obj{number}' for number in range(10))]
    )  # no handler is called again for that
    assert any('asks to wait for 1 seconds' in text for text in world.log.texts)


@pytest.mark.parametrize('way', ['election', 'peering'])
@pytest.mark.parametrize('fault', ['overloaded', 'slow'])
@in_virtual_time
async def test_operators_keep_their_leases_and_peerings_meanwhile(world, way, fault):
    world.settings.networking.max_connections = 2
    world.settings.peering.lifetime = 20
    await world.aio.apply(world.root / 'peering.yaml')
    await world.aio.create({'apiVersion': 'kopf.dev/v1', 'kind': 'ClusterKopfPeering', 'metadata': {'name': 'default'}})
    gate = Gate()
    world.declare(kopf.on.create, 'create', does=lambda name, **_: gate() if name == 'long' else asyncio.sleep(0))
    world.declare(kopf.on.event, 'event', resource='configmaps')
    options = {'leader_election': True} if way == 'election' else {'standalone': False, 'peering_name': 'default'}
    async with world.operator(clusterwide=True, **options):
        await world.create('long')
        await world.until_called('create')
        if fault == 'overloaded':
            world.sandbox.faults.error(429, retry_after=40, verb='patch', resource='kopfexamples')
        else:
            world.sandbox.faults.delay(30, times=None, verb='patch', resource='kopfexamples')
        for number in range(5):
            await world.create(f'obj{number}')
        await asyncio.sleep(60)
        gate.open()
    assert len(world.called('create', 'long')) == 1
    assert not any('No longer the leader' in text or 'Pausing' in text for text in world.log.texts)


@in_virtual_time
async def test_a_slow_resource_does_not_hold_up_others(world):
    world.settings.networking.max_connections = 2
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.create, 'other', resource='configmaps')
    world.sandbox.faults.delay(30, times=None, verb='patch', resource='kopfexamples')
    async with world.operator():
        for number in range(5):
            await world.create(f'obj{number}')
        await world.until_called('create', 5)
        asked = len(requests(world))
        await world.aio.create('configmaps', 'x')
        await asyncio.sleep(2)
        assert 'configmaps' in [seen.resource for seen in requests(world)[asked:] if seen.verb == 'patch']


@in_virtual_time
async def test_events_that_are_not_answered_hold_up_nothing(world):
    world.settings.posting.enabled = True
    world.settings.networking.max_connections = 1
    world.declare(kopf.on.create, 'create')
    world.sandbox.faults.delay(300, times=None, path='events')
    async with world.operator():
        for number in range(30):
            await world.create(f'obj{number}')
            await world.handled(f'obj{number}')
            # Each has several Events, which begin a little after the handling.
            await asyncio.sleep(0.2)
        await world.until_logged('The API server does not accept all events in time')
    patches = [seen for seen in requests(world) if seen.verb == 'patch']
    assert patches[-1].time - patches[0].time < 30 * 0.3
    events = sorted(seen.time for seen in requests(world) if seen.resource == 'events')
    assert len(events) > 8 and all(later - earlier > 9 for earlier, later in zip(events, events[8:], strict=False))


@in_virtual_time
async def test_no_resource_waits_for_the_storage_of_another_one(world):
    world.settings.networking.error_backoffs = [0.1]
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.event, 'event', resource='configmaps')
    world.sandbox.faults.error(
        429, times=None, retry_after=60, resource='configmaps', message='storage is (re)initializing'
    )
    async with world.operator():
        await world.create()
        await world.handled()
        assert any(seen.status == 429 for seen in requests(world))
    assert not any('asks to wait' in text for text in world.log.texts)


@in_virtual_time
async def test_refusals_again_and_again_lose_nothing(world):
    world.settings.networking.error_backoffs = [0.1]
    world.sandbox.faults.error(429, retry_after=0, times=20, verb='patch')
    world.declare(kopf.on.create, 'create')
    world.settings.queueing.error_delays = [0.1]
    for number in range(5):
        await world.create(f'old{number}')

    async with world.operator():
        await world.create('new')
        for name in [*(f'old{number}' for number in range(5)), 'new']:
            await world.handled(name)
    assert world.sandbox.faults.pending() == []
    assert len(world.called('create')) == 6


@in_virtual_time
async def test_patches_of_live_changes_go_first(world):
    names = [f'old{number:02}' for number in range(40)]
    for name in names:
        await world.create(name)
    world.settings.networking.max_connections = 1
    world.sandbox.faults.delay(0.03, times=None, verb='patch')
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        await world.until_called('create', 40)
        await world.create('new')
        for name in [*names, 'new']:
            await world.handled(name)
    order = [seen.name for seen in requests(world) if seen.verb == 'patch']
    assert order.index('new') < 20
    assert len(order) == 41


@in_virtual_time
async def test_as_many_at_once_and_a_second_as_the_settings_say(world):
    world.settings.networking.requests_per_second = 50
    world.settings.networking.requests_burst = 10
    for number in range(60):
        await world.create(f'obj{number}')
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        async with asyncio.timeout(60):
            for number in range(60):
                await world.handled(f'obj{number}')
    times = [seen.time for seen in requests(world)]
    assert len(times) >= 60
    assert times[-1] - times[0] > (len(times) - 10) / 50 - 0.1
