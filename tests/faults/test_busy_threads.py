"""The threads of sync handlers: what handlers wait for goes on if all are in use, and they can be replaced."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from operatorworld import in_virtual_time

import kopf


@pytest.fixture(autouse=True)
def threads(world):
    world.settings.execution.max_workers = 1


def make_child(name, field):
    return {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name}, 'data': {'field': field}}


@in_virtual_time
async def test_a_login_needs_no_thread_of_the_handlers_that_wait_for_it(world):
    @kopf.on.reconcile('kopfexamples', owns=['configmaps'], registry=world.registry)
    def reconcile(name, spec, children, **_):
        if spec['field'] == 'v2':
            world.sandbox.faults.expire_tokens()
        children.apply(make_child(name, spec['field']))
        world.note('applied', name)

    async with world.operator():
        await world.create()
        await world.until_called('applied')
        await world.edit(field='v2')
        await world.until_called('applied', 2)


@in_virtual_time
async def test_the_logins_of_the_framework_need_no_thread_of_an_executor_of_the_users(world):
    world.settings.execution.executor = ThreadPoolExecutor(max_workers=1)

    @kopf.on.create('kopfexamples', registry=world.registry)
    def create(name, **_):
        world.sandbox.faults.expire_tokens()
        kopf.apply(make_child(name, 'x'))
        world.note('applied', name)

    async with world.operator():
        await world.create()
        await world.until_called('applied')


@in_virtual_time
async def test_a_login_does_not_wait_for_long_handlers(world):
    entered, leave = threading.Event(), threading.Event()

    @kopf.on.create('kopfexamples', labels={'in': 'thread'}, registry=world.registry)
    def long(**_):
        entered.set()
        leave.wait()

    world.declare(kopf.on.create, 'short', labels={'in': 'loop'})
    async with world.operator():
        try:
            await world.create('long', labels={'in': 'thread'})
            async with asyncio.timeout(60):
                while not entered.is_set():
                    await asyncio.sleep(0.1)
            world.sandbox.faults.expire_tokens()
            await world.create('short', labels={'in': 'loop'})
            await world.handled('short')
        finally:
            leave.set()


@in_virtual_time
async def test_an_operator_cleans_up_and_ends_although_handlers_hang_in_all_threads(world):
    world.settings.queueing.exit_timeout = 1
    entered, leave = threading.Event(), threading.Event()

    @kopf.on.create('kopfexamples', registry=world.registry)
    def hang(**_):
        entered.set()
        leave.wait()

    @kopf.on.cleanup(registry=world.registry)
    def cleanup(**_):
        world.note('cleanup', None)

    try:
        async with asyncio.timeout(60), world.operator():
            await world.create()
            while not entered.is_set():
                await asyncio.sleep(0.1)
    finally:
        leave.set()
    assert world.called('cleanup')


@in_virtual_time
async def test_index_functions_need_no_thread_of_the_handlers_that_wait_for_them(world):
    @kopf.index('configmaps', id='configs', registry=world.registry)
    def index(name, body, **_):
        return {name: body['data']['field']}

    @kopf.on.reconcile('kopfexamples', owns=['configmaps'], registry=world.registry)
    def reconcile(name, spec, children, configs, **_):
        children.apply(make_child(name, spec['field']))
        world.note('applied', name, found=[*configs.get(name, ())])

    loop = asyncio.get_running_loop()
    for number in range(5):
        await world.create(f'obj-{number}')
    async with world.operator():
        began = loop.time()
        await world.until_called('applied', 5)
        assert loop.time() - began < 5
    assert all(call.kwargs['found'] == ['value'] for call in world.calls)


@in_virtual_time
async def test_webhook_handlers_can_apply_objects_that_are_reviewed_here_too(world):
    world.settings.admission.server = kopf.WebhookServer()
    world.settings.admission.managed = 'test.kopf.dev'

    @kopf.on.validate('kopfexamples', registry=world.registry)
    def outer(name, **_):
        kopf.apply(make_child(name, 'x'))
        world.note('applied', name)

    @kopf.on.validate('configmaps', registry=world.registry)
    def inner(name, **_):
        world.note('reviewed', name)

    async with world.operator():
        await world.aio.wait_for('validatingwebhookconfigurations', 'test.kopf.dev', lambda body: body.get('webhooks'))
        async with asyncio.timeout(5), asyncio.TaskGroup() as group:
            for number in range(5):
                group.create_task(world.create(f'obj-{number}'))
    assert sorted(set(world.ids)) == ['applied', 'reviewed'] and len(world.called('applied')) == 5


@in_virtual_time
async def test_index_functions_can_apply_objects_that_are_indexed(world):
    @kopf.index('configmaps', id='configs', registry=world.registry)
    def index(name, body, **_):
        return {name: body['data']['field']}

    @kopf.index('kopfexamples', id='applied', registry=world.registry)
    def apply(name, **_):
        kopf.apply(make_child(name, 'x'))
        world.note('applied', name)

    for number in range(5):
        await world.create(f'obj-{number}')
    began = asyncio.get_running_loop().time()
    async with world.operator():
        await world.until_called('applied', 5)
        assert asyncio.get_running_loop().time() - began < 5


@in_virtual_time
async def test_an_executor_that_is_set_later_is_for_all_functions_that_are_called_from_then_on(world):
    used, loop = {}, asyncio.get_running_loop()

    def make(id):
        def fn(**_):
            used[id] = threading.current_thread().name.partition('_')[0]
            loop.call_soon_threadsafe(world.changed.set)

        return fn

    for decorator, options in [
        (kopf.on.create, {}),
        (kopf.on.update, {}),
        (kopf.on.delete, {}),
        (kopf.on.event, {}),
        (kopf.on.reconcile, {}),
        (kopf.index, {}),
        (kopf.timer, {'interval': 1}),
    ]:
        decorator('kopfexamples', id=decorator.__name__, registry=world.registry, **options)(make(decorator.__name__))
    kopf.on.schedule(interval=1, registry=world.registry)(make('schedule'))
    former = world.settings.execution.executor = ThreadPoolExecutor(thread_name_prefix='first')
    async with world.operator():
        await world.create('a')
        every = {'create', 'event', 'reconcile', 'index', 'timer', 'schedule'}
        await world.until(lambda: used.keys() >= every, timeout=60)
        assert set(used.values()) == {'first'}
        world.settings.execution.executor = ThreadPoolExecutor(thread_name_prefix='second')
        former.shutdown(wait=False)
        used.clear()
        await world.create('b')
        await world.edit('a', field='other')
        await world.until(lambda: used.keys() >= {*every, 'update'}, timeout=60)
        await world.delete('a')
        # A call that has begun before can end late, but each function is called again.
        await world.until(lambda: 'delete' in used and set(used.values()) == {'second'}, timeout=60)


@in_virtual_time
async def test_the_back_off_that_is_set_later_is_for_the_errors_from_then_on(world):
    world.settings.execution.default_backoff = 1000
    world.declare(kopf.on.create, 'create', does=[ValueError('a'), ValueError('b')])
    async with world.operator():
        await world.create('a')
        await world.until_called('create')
        world.settings.execution.default_backoff = 2
        world.calls.clear()
        await world.create('b')
        await world.until_called('create', 2, 'b')
