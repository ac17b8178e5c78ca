"""The `deleting` flag: running handlers are notified when their object is being deleted."""

import asyncio

import pytest
from operatorworld import in_virtual_time

import kopf


class Waiting:
    """Handlers that wait for the deletion, and note when it has come."""

    def __init__(self, world):
        self.world = world
        self.loop = asyncio.get_running_loop()

    def note(self, what, name):
        self.loop.call_soon_threadsafe(self.world.note, what, name)

    def declare(self, decorator, *, threaded, **options):
        def sync_fn(name, deleting, **_):
            if name == 'obj':
                self.note('begun' if not deleting else 'raised', name)
                if deleting.wait(60):
                    self.note('told', name)

        async def async_fn(name, deleting, **_):
            if name == 'obj':
                self.note('begun' if not deleting else 'raised', name)
                if await deleting.wait(60):
                    self.note('told', name)

        decorator('kopfexamples', id='fn', registry=self.world.registry, **options)(sync_fn if threaded else async_fn)


@pytest.mark.parametrize('threaded', [False, True], ids=['async', 'sync'])
@pytest.mark.parametrize(
    'decorator, options',
    [
        (kopf.on.create, {}),
        (kopf.on.field, {'field': 'spec'}),
        (kopf.timer, {'interval': 60}),
        (kopf.daemon, {}),
    ],
    ids=['create', 'field', 'timer', 'daemon'],
)
@pytest.mark.parametrize('held', [False, True], ids=['gone', 'held'])
@in_virtual_time
async def test_running_functions_are_notified_of_the_deletion(world, decorator, options, threaded, held):
    Waiting(world).declare(decorator, threaded=threaded, **options)
    async with world.operator():
        await world.create(finalizers=['example.com/foreign'] if held else [])
        await world.until_called('begun')
        assert not world.called('told')
        if not held:
            await world.edit(metadata={'finalizers': []})
        await world.delete()
        await world.until_called('told')
        if held:
            await world.edit(metadata={'finalizers': []})


@in_virtual_time
async def test_running_resuming_handlers_are_notified_too(world):
    Waiting(world).declare(kopf.on.resume, threaded=False)
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        await world.create()
        await world.handled()
    async with world.operator():
        await world.until_called('begun')
        await world.delete()
        await world.until_called('told')


@in_virtual_time
async def test_running_subhandlers_are_notified_too(world):
    waiting = Waiting(world)

    @kopf.on.create('kopfexamples', registry=world.registry)
    def fn(**_):
        @kopf.subhandler()
        async def sub(name, deleting):
            waiting.note('begun', name)
            await deleting.wait()
            waiting.note('told', name)

    async with world.operator():
        await world.create()
        await world.until_called('begun')
        await world.delete()
        await world.until_called('told')


@in_virtual_time
async def test_deletion_handlers_have_the_flag_set_from_the_beginning(world):
    Waiting(world).declare(kopf.on.delete, threaded=False)
    async with world.operator():
        await world.create()
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: body['metadata'].get('finalizers'))
        await world.delete()
        await world.gone()
    assert len(world.called('raised')) == 1


@in_virtual_time
async def test_handlers_that_begin_after_the_deletion_have_the_flag_set(world):
    """Both are run in one step: the deletion comes while the first one runs."""

    async def wait(**_):
        await asyncio.sleep(0.3)

    world.declare(kopf.on.create, 'first', does=wait)
    Waiting(world).declare(kopf.on.create, threaded=False)
    async with world.operator(lifecycle=kopf.lifecycles.all_at_once):
        await world.create()
        await world.until_called('first')
        await world.delete()
        await world.until_called('raised')


@in_virtual_time
async def test_waiting_for_the_deletion_can_time_out(world):
    @kopf.on.create('kopfexamples', registry=world.registry)
    async def fn(name, deleting):
        world.note('first', name, flag=bool(await deleting.wait(0.01)))

    @kopf.on.create('kopfexamples', registry=world.registry)
    def sync_fn(name, deleting):
        world.note('second', name, flag=bool(deleting.wait(0.01)))

    async with world.operator():
        await world.create()
        await world.handled()
    assert world.called('first') == world.called('second') == [{'flag': False}]


@in_virtual_time
async def test_only_functions_that_name_the_flag_get_it(world):
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.timer, 'timer', interval=60)
    async with world.operator():
        await world.create()
        await world.handled()
        await world.until_called('timer')
    assert not any('deleting' in call.kwargs for call in world.calls)


@in_virtual_time
async def test_an_index_of_this_name_goes_first(world):
    @kopf.index('kopfexamples', registry=world.registry, id='deleting')
    async def index(name):
        return {name: 1}

    @kopf.on.create('kopfexamples', registry=world.registry)
    async def fn(name, deleting, **_):
        world.note('create', name, known=name in deleting)

    async with world.operator():
        await world.create()
        await world.handled()
    assert world.called('create') == [{'known': True}]
