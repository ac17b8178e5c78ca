"""Patches that the API refuses, loses, or cannot apply to the newest state."""

import asyncio
import gc

import pytest
from operatorworld import Gate, in_virtual_time

import kopf
from kopf._core.engines.spawning import ObjectDaemons


async def create_but_tell_that_it_is_gone(world):
    """Let the creation of an object be handled, and answer its patch with 404."""
    world.sandbox.faults.error(404, times=1, verb='patch', name='obj')
    await world.create()
    await world.until_called('create')
    await world.settled()


@pytest.mark.parametrize('status', [400, 403, 409, 422, 429, 500])
@in_virtual_time
async def test_refused_patches_lose_nothing(world, status):
    async def work(patch, **_):
        patch.spec['added'] = 'by value'
        patch.fns.append(lambda body: body['spec'].update(also='by function'))
        return 'result'

    world.declare(kopf.on.create, 'create', does=work)
    world.declare(kopf.on.update, 'update')
    async with world.operator():
        world.sandbox.faults.error(status, times=2, verb='patch', name='obj')
        await world.create()
        await world.handled(added='by value', also='by function')
        await world.settled()
        body = await world.get()
    assert body['spec'] == {'field': 'value', 'added': 'by value', 'also': 'by function'}
    assert body['status'] == {'create': 'result'}
    assert len(world.called('create', 'obj')) == 1
    assert len(world.called('update', 'obj')) <= 1  # of what the creation has made


@in_virtual_time
async def test_lost_responses_to_patches_repeat_no_handlers(world):
    world.declare(kopf.on.create, 'create', does='result')
    world.declare(kopf.on.update, 'update')
    async with world.operator():
        world.sandbox.faults.drop(times=2, verb='patch', name='obj')
        await world.create()
        assert (await world.handled())['status'] == {'create': 'result'}
    assert world.ids == ['create']


@in_virtual_time
async def test_an_object_whose_patch_gets_404_is_handled_when_it_changes(world):
    world.settings.persistence.consistency_timeout = 0.5
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        await create_but_tell_that_it_is_gone(world)
        assert not any('Throttling' in text for text in world.log.texts)
        await world.edit(field='v2')
        await world.handled(field='v2')


@in_virtual_time
async def test_an_object_that_is_gone_is_not_handled_anew_when_the_stream_is_behind(world):
    world.settings.persistence.consistency_timeout = 60
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        await create_but_tell_that_it_is_gone(world)
        await world.edit(field='v2')  # as if this was from before the deletion
        await world.settled()
        await world.delete()
        await world.settled()
    assert len(world.called('create', 'obj')) == 1


@pytest.mark.parametrize('failures', [0, 2])
@pytest.mark.parametrize('observing', [True, False])
@in_virtual_time
async def test_an_object_that_is_gone_is_not_handled_anew_when_the_stream_is_far_behind(world, observing, failures):
    world.settings.persistence.consistency_timeout = 0.1
    world.declare(kopf.on.create, 'create')
    if observing:
        world.declare(kopf.on.event, 'event')
    async with world.operator():
        await create_but_tell_that_it_is_gone(world)
        if failures:
            world.sandbox.faults.error(500, times=failures, verb='get', name='obj')
        world.sandbox.faults.error(404, times=1, verb='get', name='obj')
        await world.edit(field='v2')  # as if this was from before the deletion
        async with asyncio.timeout(10):
            while not any(seen.verb == 'get' and seen.status == 404 for seen in world.sandbox.requests):
                await asyncio.sleep(0.01)
        await world.settled()
    assert len(world.called('create', 'obj')) == 1


@in_virtual_time
async def test_an_object_that_is_gone_is_not_handled_anew_even_without_the_permission_to_get_it(world):
    world.settings.persistence.consistency_timeout = 0.1
    world.declare(kopf.on.create, 'create')
    world.sandbox.faults.error(403, times=None, verb='get', resource='kopfexamples')
    async with world.operator():
        await create_but_tell_that_it_is_gone(world)
        world.sandbox.faults.delay(1, verb='list', resource='kopfexamples')
        await world.edit(field='v2')  # as if this was from before the deletion
        async with asyncio.timeout(30):
            while not any(seen.query.get('fieldSelector') == 'metadata.name=obj' for seen in world.sandbox.requests):
                await asyncio.sleep(0.01)
        await world.delete()
        await world.settled()
    assert len(world.called('create', 'obj')) == 1


@in_virtual_time
async def test_an_object_is_handled_even_without_the_permission_to_get_it(world):
    world.settings.persistence.consistency_timeout = 0.5
    world.declare(kopf.on.create, 'create')
    world.sandbox.faults.error(403, times=None, verb='get', resource='kopfexamples')
    async with world.operator():
        await create_but_tell_that_it_is_gone(world)
        await world.edit(field='v2')
        await world.handled(field='v2')


@in_virtual_time
async def test_an_object_that_is_gone_is_not_handled_anew_when_its_daemons_end(world):
    world.settings.persistence.consistency_timeout = 60
    creating, ending = Gate(), Gate()
    world.declare(kopf.on.create, 'create', does=[creating, None])
    world.declare(kopf.daemon, 'daemon', does=[ending], labels={'daemon': 'yes'})
    async with world.operator():
        await world.create(labels={'daemon': 'yes'})
        await world.until_called('daemon')
        await world.until_called('create')
        world.sandbox.faults.error(404, times=1, verb='patch', name='obj')
        creating.open()
        await world.settled()
        ending.open()
        await world.settled()
        await world.edit(metadata={'finalizers': []})
        await world.delete()
        await world.settled()
    assert len(world.called('create', 'obj')) == 1


@in_virtual_time
async def test_an_object_is_resumed_once_if_that_could_not_be_stored_before_an_edit(world):
    gate = Gate()

    async def resume(patch, **_):
        await gate()
        patch.status['resumed'] = True

    world.declare(kopf.on.update, 'update')
    await world.create()
    async with world.operator():
        await world.handled()
    world.declare(kopf.on.resume, 'resume', does=[resume, None])
    async with world.operator():
        await world.until_called('resume', name='obj')
        await world.edit(field='v2')
        await world.settled()
        world.sandbox.faults.error(500, times=1, verb='patch', name='obj')
        gate.open()
        await world.handled(field='v2')
    assert len(world.called('resume', 'obj')) == 1


@in_virtual_time
async def test_functions_are_applied_to_what_others_have_changed(world):
    async def work(patch, name, **_):
        patch.fns.append(lambda body: body['spec'].setdefault('items', []).append('ours'))
        await world.edit(name, items=['theirs'])

    world.declare(kopf.on.create, 'create', does=work)
    async with world.operator():
        await world.create()
        body = await world.aio.wait_for('kopfexamples', 'obj', lambda body: 'ours' in body['spec'].get('items', ()))
        assert body['spec']['items'] == ['theirs', 'ours']
        await world.handled()
    assert len(world.called('create')) == 1


@in_virtual_time
async def test_refused_patches_of_finalizers_are_repeated_for_newer_states(world):
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.delete, 'delete')
    async with world.operator():
        world.sandbox.faults.error(422, times=2, verb='patch', name='obj')
        await world.create()
        await world.edit(field='v2')
        await world.edit(field='v3')
        await world.settled()
        await world.edit(field='v4')
        await world.handled(field='v4')
        world.sandbox.faults.error(409, times=1, verb='patch', name='obj')
        await world.delete()
        await world.edit(metadata={'labels': {'x': 'y'}})
        await world.gone()
    assert len(world.called('create', 'obj')) == len(world.called('delete', 'obj')) == 1


@pytest.mark.parametrize('is_late', [True, False], ids=['event first', 'response first'])
@pytest.mark.parametrize('subresource', ['spec', 'both'])
@in_virtual_time
async def test_own_patches_do_not_disturb_idle_timers_whatever_comes_first(world, is_late, subresource):
    loop, runs, patching = asyncio.get_running_loop(), [], []

    async def patch_it(patch, **_):
        patch.spec['seen'] = patch.meta.labels['seen'] = str(len(patching))
        if subresource == 'both':
            patch.status['seen'] = len(patching)
        patching.append(loop.time())
        if is_late:
            world.sandbox.faults.call(lambda: asyncio.sleep(1), late=True, verb='patch', name='obj')

    async def observe(**_):
        runs.append(loop.time())

    world.declare(kopf.timer, 'patching', does=patch_it, idle=10)
    world.declare(kopf.timer, 'watching', does=observe, idle=20)
    async with world.operator():
        await world.create()
        await asyncio.sleep(100)
        assert (len(patching), len(runs)) == (1, 1)
        await world.edit(field='v2')
        await asyncio.sleep(100)
    assert (len(patching), len(runs)) == (2, 2)


@pytest.mark.parametrize('disturbing', ['status', 'handler'])
@in_virtual_time
async def test_own_patches_do_not_disturb_idle_timers_whatever_comes_between(world, disturbing):
    runs = []

    async def wait():
        await asyncio.sleep(0.3)
        if disturbing == 'status':
            await world.aio.patch('kopfexamples', 'obj', {'status': {'other': 1}})
        await asyncio.sleep(0.3)

    async def patch_it(patch, **_):
        runs.append(1)
        patch.spec['seen'] = len(runs)
        world.sandbox.faults.call(wait, late=True, verb='patch', name='obj')

    world.declare(kopf.timer, 'patching', does=patch_it, idle=10)
    if disturbing == 'handler':
        world.declare(kopf.on.create, 'create')
        world.declare(kopf.on.update, 'update', does='result')  # its patch is answered before that of the timer
    async with world.operator():
        await world.create()
        await asyncio.sleep(200)
    assert len(runs) == 1


@in_virtual_time
async def test_nothing_is_kept_of_edits_that_come_while_a_patch_is_refused(world):
    async def edit():
        await world.edit(edited=1)
        await asyncio.sleep(0.5)

    async def patch_it(patch, spec, **_):
        if 'edited' not in spec:
            patch.metadata.labels['no label!'] = 'x'
            world.sandbox.faults.call(edit, verb='patch', name='obj')

    world.declare(kopf.timer, 'patching', does=patch_it, idle=10)
    async with world.operator():
        await world.create()
        await world.until_called('patching', 2)
        kept = [each for each in gc.get_objects() if type(each) is ObjectDaemons and each._before_edit is not None]
        assert not kept
