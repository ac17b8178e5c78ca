"""Workers: how many at a time, and who goes first."""
import asyncio

import pytest

import kopf
from kopf._core.reactor.intake import Indexation
from kopf._core.reactor.inventory import ObjectRecord
from kopf._core.reactor.workforce import Workforce


async def until_watched(world, resources):
    while not resources <= {seen.resource for seen in world.sandbox.requests
                            if seen.verb == 'watch' and seen.status == 200}:
        await asyncio.sleep(0.01)


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


# Those who are there already, and those who come.

@pytest.fixture
async def crowd(world):
    """Objects that are there before the operator."""
    names = [f'old{number}' for number in range(10)]
    for name in names:
        await world.create(name)
    return names


@pytest.mark.parametrize('streaming', [True, False], ids=['streamed', 'chunked'])
async def test_live_changes_go_before_the_initial_list(world, crowd, streaming):
    first = asyncio.Event()

    async def work(**_):
        if not first.is_set():
            await first.wait()
    world.settings.queueing.worker_limit = 1
    world.settings.watching.streaming_lists = streaming
    world.declare(kopf.on.create, 'create', does=work)
    world.declare(kopf.on.event, 'seen', resource='configmaps')
    async with world.operator():
        await world.until_called('create')
        await until_watched(world, {'kopfexamples', 'configmaps'})  # the streams know no order among each other
        await world.create('new')
        await world.edit(crowd[-1], field='v2')
        await world.aio.create({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'last'}})
        await asyncio.sleep(0.3)  # all of that comes to the operator
        assert len(world.calls) == 1
        first.set()
        for name in [*crowd, 'new']:
            await world.handled(name)
    names = [call.name for call in world.calls]
    assert set(names[1:4]) == {'new', crowd[-1], 'last'}
    assert sorted(names) == sorted([*crowd, 'new', 'last'])  # each once


async def test_the_initial_list_is_not_stuck_behind_live_changes(world, crowd):
    world.settings.queueing.worker_limit = 1
    world.declare(kopf.on.create, 'create')

    async def work(name, patch, spec, **_):  # again and again, as if it was changed by others all the time
        patch.spec['field'] = spec['field'] + 1
    world.declare(kopf.on.event, 'busy', does=work, when=lambda name, **_: name.startswith('busy'))
    async with world.operator():
        for number in range(3):
            await world.create(f'busy{number}', spec={'field': 0})
        for name in crowd:
            await world.handled(name)
        before = len(world.called('busy'))
        await world.until_called('busy', before + 10)


async def test_ends_that_are_cut_short_leave_no_tasks_but_those_of_handlers():
    class Processor:
        async def work(self, record):
            await asyncio.sleep(999)

    workforce = Workforce(kopf.OperatorSettings(), Indexation())
    for name in 'ab':
        workforce.start(Processor(), ObjectRecord(name, None, name, initial=False))
        await asyncio.sleep(0)
    tasks = asyncio.all_tasks()
    closing = asyncio.create_task(workforce.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert len(left) == 2 and left < tasks
    for task in left:
        task.cancel()
    await asyncio.wait(left)
