"""What happens often does not flood the cluster with Events, whatever the handlers log."""

import json

from operatorworld import in_virtual_time

import kopf


async def events(world, name='obj'):
    return [
        (event['message'], event.get('count', 1))
        for event in (await world.aio.list('events', namespace='default'))
        if event['involvedObject']['name'] == name
    ]


def posts(world):
    return [
        json.loads(request.body)['message']
        for request in world.sandbox.requests
        if request.method == 'POST' and request.path.endswith('/events')
    ]


@in_virtual_time
async def test_routine_successes_of_timers_are_no_events(world):
    world.settings.posting.enabled = True
    world.declare(kopf.timer, 'tick', interval=0.01)
    async with world.operator():
        await world.create()
        await world.until_called('tick', times=30)
    assert "Timer 'tick' succeeded." in world.log.texts
    assert posts(world) == []


@in_virtual_time
async def test_what_a_timer_logs_again_and_again_is_one_event_with_a_count(world):
    async def tick(logger, **_):
        logger.info("Still alive.")

    world.settings.posting.enabled = True
    world.declare(kopf.timer, 'tick', interval=0.01, does=tick)
    async with world.operator():
        await world.create()
        await world.until_called('tick', times=100)
    (found,) = await events(world)
    assert found[0] == "Still alive." and found[1] > 5
    assert len([request for request in world.sandbox.requests if '/events' in request.path]) <= 25


@in_virtual_time
async def test_different_messages_are_combined(world):
    async def tick(logger, retry, **_):
        logger.info("The time is %s.", len(world.calls))

    world.settings.posting.enabled = True
    world.declare(kopf.timer, 'tick', interval=0.01, does=tick)
    async with world.operator():
        await world.create()
        await world.until_called('tick', times=100)
    found = await events(world)
    assert len(found) == 11
    assert len([1 for message, _ in found if message.startswith('(combined from similar events): The time is')]) == 1


@in_virtual_time
async def test_failures_of_timers_are_events(world):
    world.settings.posting.enabled = True
    world.declare(kopf.timer, 'tick', interval=0.01, does=[kopf.TemporaryError("Not yet.", delay=0), None])
    async with world.operator():
        await world.create()
        await world.until_called('tick', times=3)
    assert [message for message, _ in await events(world)] == ["Timer 'tick' failed temporarily: Not yet."]
