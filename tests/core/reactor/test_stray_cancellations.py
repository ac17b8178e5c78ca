"""Functions and libraries that cancel the task in which the operator serves an object, and no other code does."""

import asyncio
import time

import pytest
from operatorworld import Gate, in_virtual_time

import kopf


async def cancel(**_):
    """Cancel the task; if nothing else is awaited then, this becomes effective only later."""
    asyncio.current_task().cancel()


async def cancel_and_wait(**_):
    await cancel()
    await asyncio.sleep(9)


def is_done(obj):
    """Check whether a handler has noted on the object that it is done."""
    return 'done' in obj['metadata'].get('annotations', {})


@pytest.mark.parametrize('kind', [kopf.on.create, kopf.on.update, kopf.on.delete, kopf.on.reconcile])
@in_virtual_time
async def test_the_handler_is_called_again(world, kind):
    world.settings.execution.default_backoff = 5
    world.declare(kopf.on.create, 'before')
    world.declare(kind, 'handler', does=[cancel_and_wait, None])
    world.declare(kopf.on.create, 'after')
    async with world.operator():
        await world.create()
        await world.handled()
        if kind is kopf.on.update:
            await world.edit(field='edited')
        elif kind is kopf.on.delete:
            await world.delete()
        began = asyncio.get_running_loop().time()
        await world.until_called('handler', times=2)
        assert asyncio.get_running_loop().time() - began < 6
    assert [world.ids.count(id) for id in ('before', 'handler', 'after')] == [1, 2, 1]


@pytest.mark.parametrize('kind', [kopf.on.create, kopf.on.reconcile])
@in_virtual_time
async def test_a_handler_that_has_ended_has_succeeded(world, kind):
    async def does(patch, **_):
        patch.metadata.annotations['done'] = 'yes'
        await cancel()

    world.declare(kind, 'handler', does=does)
    async with world.operator():
        await world.create()
        await world.aio.wait_for('kopfexamples', 'obj', is_done)
        await asyncio.sleep(9)
    assert world.ids == ['handler']
    assert not any("hrottling" in line for line in world.log.texts)


@pytest.mark.parametrize('does', [cancel_and_wait, cancel])
@pytest.mark.parametrize('kind', [kopf.on.event, kopf.index])
@in_virtual_time
async def test_other_handlers_are_called_nevertheless(world, kind, does):
    world.declare(kind, 'first', does=[does, None, None, None])
    world.declare(kind, 'second', does=lambda **_: asyncio.sleep(1))
    world.declare(kopf.on.create, 'create', does=lambda **_: asyncio.sleep(1))
    async with world.operator():
        await world.create()
        await world.handled()
    assert len(world.called('create')) == 1
    assert not any("'second' failed" in line for line in world.log.texts)


@in_virtual_time
async def test_an_index_function_that_leaves_a_cancellation_is_called_again(world):
    async def index(**_):
        await cancel()
        raise kopf.TemporaryError('boo', delay=0)

    world.declare(kopf.index, 'index', does=[index, {'key': 'value'}, {'key': 'value'}])
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        await world.create()
        await world.handled()
    assert world.ids[:3] == ['index', 'index', 'create']


@in_virtual_time
async def test_an_index_function_that_leaves_a_cancellation_does_not_affect_the_next_event(world):
    async def index(spec, **_):
        await asyncio.sleep(1)
        if spec['field'] == 'value':
            await cancel()
        return {'key': spec['field']}

    async def event(index, spec, **_):
        world.note('event', 'obj', indexed=[*index['key']], field=spec['field'])

    world.declare(kopf.index, 'index', does=index)
    kopf.on.event('kopfexamples', registry=world.registry)(event)
    async with world.operator():
        await world.create()
        await world.until_called('index')
        await world.edit(field='edited')
        await world.until(lambda: any(kwargs['field'] == 'edited' for kwargs in world.called('event')))
    assert [kwargs['indexed'] for kwargs in world.called('event')][-1] == ['edited']


@pytest.mark.parametrize('does', [cancel_and_wait, cancel])
@pytest.mark.parametrize('kind, options', [(kopf.daemon, {}), (kopf.timer, {'interval': 5})])
@in_virtual_time
async def test_a_daemon_or_timer_that_cancels_its_task_is_called_again(world, kind, options, does):
    async def background(patch, **_):
        patch.metadata.annotations['done'] = 'yes'
        await does()
        raise RuntimeError('boo')

    world.declare(kind, 'daemon', does=[background, None], backoff=5, **options)
    async with world.operator():
        await world.create()
        await world.aio.wait_for('kopfexamples', 'obj', is_done)
        began = asyncio.get_running_loop().time()
        await world.until_called('daemon', times=2)
        assert asyncio.get_running_loop().time() - began < 6


@in_virtual_time
async def test_a_patch_of_a_timer_that_is_cancelled_later_is_sent_again(world):
    async def timer(patch, **_):
        patch.metadata.annotations['done'] = 'yes'
        world.sandbox.faults.drop(verb='patch', name='obj')
        world.sandbox.faults.delay(1, verb='patch', name='obj')
        asyncio.get_running_loop().call_later(0.5, asyncio.current_task().cancel)

    world.settings.networking.error_backoffs = [0.1]
    world.declare(kopf.timer, 'timer', does=[timer, None], interval=5)
    async with world.operator():
        await world.create()
        await world.aio.wait_for('kopfexamples', 'obj', is_done)
        await world.until_called('timer', times=2)
    assert any("not by the operator" in line for line in world.log.texts)


@in_virtual_time
async def test_time_outs_around_sub_handlers_work(world):
    async def create(**_):
        try:
            async with asyncio.timeout(1):
                await kopf.execute(fns={'sub': Gate()})
        except TimeoutError:
            world.note('timeout', 'obj')

    world.declare(kopf.on.create, 'create', does=create)
    async with world.operator():
        await world.create()
        await world.handled()
    assert world.ids == ['create', 'timeout']


@in_virtual_time
async def test_a_sub_handler_that_cancels_the_task_is_called_again_with_its_parent(world):
    async def create(**_):
        await kopf.execute(fns={'sub': sub})

    async def sub(retry, **_):
        world.note('sub', 'obj')
        if len(world.called('sub')) == 1:
            await cancel_and_wait()

    world.declare(kopf.on.create, 'create', does=create, backoff=5)
    async with world.operator():
        await world.create()
        await world.handled()
    assert world.ids == ['create', 'sub', 'create', 'sub']


@pytest.mark.parametrize('kind', [kopf.on.create, kopf.on.delete, kopf.on.event, kopf.on.reconcile])
@in_virtual_time
async def test_a_request_that_is_cancelled_later_is_sent_again(world, kind):
    async def does(patch, **_):
        patch.metadata.annotations['done'] = 'yes'
        if len(world.called('handler')) == 1:
            world.sandbox.faults.drop(verb='patch', name='obj')
            world.sandbox.faults.delay(1, verb='patch', name='obj')
            asyncio.get_running_loop().call_later(0.5, asyncio.current_task().cancel)

    world.settings.networking.error_backoffs = [0.1]
    world.declare(kind, 'handler', does=does)
    async with world.operator():
        await world.create()
        if kind is kopf.on.delete:
            await world.aio.wait_for('kopfexamples', 'obj', lambda obj: obj['metadata'].get('finalizers'))
            await world.delete()
            await world.gone()
        else:
            await world.until_logged("not by the operator")
            await world.aio.wait_for('kopfexamples', 'obj', is_done)
    assert any("not by the operator" in line for line in world.log.texts)


@in_virtual_time
async def test_an_object_that_leaves_the_selection_is_left_alone_although_its_last_request_is_cancelled(world):
    async def create(**_):
        world.sandbox.faults.error(500, times=None, verb='patch', condition=lambda seen: b'"app"' not in seen.body)
        raise kopf.TemporaryError('boo', delay=5)

    async def leak(type, **_):
        if type == 'DELETED':
            world.sandbox.faults.clear()
            world.sandbox.faults.delay(1, verb='patch', name='obj')
            asyncio.get_running_loop().call_later(0.5, asyncio.current_task().cancel)

    world.settings.watching.label_selectors['kopfexamples'] = 'app=x'
    world.settings.queueing.error_delays = [9]
    world.declare(kopf.on.create, 'create', does=create)
    world.declare(kopf.on.event, 'event', does=leak)
    async with world.operator():
        await world.create(labels={'app': 'x'})
        await world.until_called('create')
        await world.edit(metadata={'labels': {'app': 'y'}})
        await world.until_logged("not by the operator")
        await asyncio.sleep(99)
    assert len(world.called('create')) == 1
    assert [kwargs['type'] for kwargs in world.called('event')].count('DELETED') == 1


@pytest.mark.parametrize(
    'kind, options', [(kopf.on.create, {}), (kopf.on.reconcile, {}), (kopf.on.reconcile, {'timeout': 99})]
)
@in_virtual_time
async def test_a_function_in_a_thread_is_not_affected(world, kind, options):
    async def leak(**_):
        if len(world.called('event')) == 1:
            asyncio.get_running_loop().call_later(0.5, asyncio.current_task().cancel)

    @kind('kopfexamples', registry=world.registry, **options)
    def handle(name, **_):
        world.note('begun', name)
        time.sleep(9)
        world.note('ended', name)

    world.settings.execution.default_backoff = 1
    world.declare(kopf.on.event, 'event', does=leak)
    async with world.operator():
        await world.create()
        await world.until_called('ended')
        await asyncio.sleep(9)
    assert [id for id in world.ids if id != 'event'] == ['begun', 'ended']
    assert not any("not by the operator" in line for line in world.log.texts)


@pytest.mark.parametrize('delays', [[0.5], [0.5, 2], []])
@in_virtual_time
async def test_a_sub_handler_in_a_thread_is_not_called_beside_itself(world, delays):
    async def leak(**_):
        if len(world.called('event')) == 1:
            for delay in delays:
                asyncio.get_running_loop().call_later(delay, asyncio.current_task().cancel)

    async def create(retry, **_):
        async with asyncio.timeout(None if delays or retry else 1):
            await kopf.execute(fns={'sub': sub})

    def sub(name, **_):
        world.note('begun', name)
        time.sleep(9)
        world.note('ended', name)

    world.settings.execution.default_backoff = 1
    world.declare(kopf.on.create, 'create', does=create)
    world.declare(kopf.on.event, 'event', does=leak)
    async with world.operator():
        await world.create()
        await world.until_called('ended', times=2)
    assert [id for id in world.ids if id in ('begun', 'ended')] == ['begun', 'ended', 'begun', 'ended']


@pytest.mark.parametrize('does', [cancel_and_wait, cancel])
@pytest.mark.parametrize('kind', [kopf.on.startup, kopf.on.cleanup])
@in_virtual_time
async def test_a_handler_of_an_activity_that_cancels_its_task_is_called_again(world, kind, does):
    @kind(registry=world.registry, backoff=1)
    async def handler(retry, **_):
        world.note('handler', None)
        if not retry:
            await does()
            raise RuntimeError('boo')

    world.declare(kopf.on.create, 'create')
    async with world.operator():
        await world.create()
        await world.handled()
    assert sorted(world.ids) == ['create', 'handler', 'handler']


@in_virtual_time
async def test_a_login_handler_that_cancels_its_task_is_called_again(world):
    @kopf.on.login(registry=world.registry, backoff=1)
    async def login(**kwargs):
        world.note('login', None)
        if len(world.called('login')) == 2:
            await cancel_and_wait()
        return kopf.login_with_kubeconfig(**kwargs)

    world.declare(kopf.on.create, 'create')
    async with world.operator() as task:
        await world.settled()
        world.sandbox.faults.expire_tokens()
        await world.create()
        await world.handled()
        await asyncio.sleep(9)
        assert not task.done()
    assert len(world.called('login')) == 3
