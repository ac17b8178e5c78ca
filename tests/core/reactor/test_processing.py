"""The processing of events until objects are at rest: steps, timers, restarts, and broken watches."""

import asyncio
import json

import pytest
from operatorworld import Gate, in_virtual_time

import kopf
from kopf._core.reactor import processing


@in_virtual_time
async def test_an_object_created_anew_is_handled_beside_its_predecessor(world):
    gate = Gate()
    world.declare(kopf.on.create, 'create', does=[gate, {'number': 2}])
    async with world.operator():
        old = await world.create(spec={'field': 'old'})
        await world.until_called('create', 1)
        await world.delete()
        new = await world.create(spec={'field': 'new'})
        await world.handled(field='new')
        gate.open()
        await world.settled()
        body = await world.get()
    assert [call['uid'] for call in world.called('create', 'obj')] == [old['metadata']['uid'], new['metadata']['uid']]
    assert body['status'] == {'create': {'number': 2}}


@in_virtual_time
async def test_an_object_deleted_while_being_handled_is_not_throttled(world):
    gate = Gate()
    world.declare(kopf.on.create, 'create', does=[gate, None])
    async with world.operator():
        await world.create()
        await world.until_called('create')
        await world.delete()
        gate.open()
        await world.settled()
    assert len(world.called('create', 'obj')) == 1
    assert not any('Throttling' in text for text in world.log.texts)


class ForgetfulStorage(kopf.ProgressStorage):
    """Nothing is written, so that no request makes a pause between the attempts."""

    def fetch(self, *, key, body):
        return None

    def store(self, *, key, record, body, patch):
        pass

    def purge(self, *, key, body, patch):
        pass


@pytest.mark.timeout(30)
@in_virtual_time
async def test_an_object_that_does_not_come_to_rest_is_throttled(world, monkeypatch):
    monkeypatch.setattr(processing, 'MAX_STEPS', 10)
    world.settings.persistence.progress_storage = ForgetfulStorage()
    world.settings.queueing.error_delays = [1, 10, 999]
    world.declare(kopf.on.create, 'create', does=kopf.TemporaryError('boo', delay=0))
    async with world.operator():
        await world.create()
        await world.until_logged("The object does not come to rest in 10 steps.")
        assert len(world.called('create')) <= 10
        await asyncio.sleep(100)
        assert len(world.called('create')) <= 30
        assert not any('Throttling is over' in text for text in world.log.texts)


@in_virtual_time
async def test_retries_are_started_in_memory_without_patches_of_the_object(world):
    world.declare(
        kopf.on.create, 'create', does=[kopf.TemporaryError('boo', delay=0.1), ValueError('boo'), 'result'], backoff=0.1
    )
    async with world.operator():
        await world.create()
        body = await world.handled()
    calls = world.called('create')
    assert [call['retry'] for call in calls] == [0, 1, 2]
    assert len({call['started'] for call in calls}) == 1
    assert body['status'] == {'create': 'result'}
    assert len(world.patches()) == 3
    assert 'touch-dummy' not in json.dumps(world.patches())


@in_virtual_time
async def test_attempts_continue_after_a_restart(world):
    world.declare(kopf.on.create, 'create', does=[kopf.TemporaryError('boo', delay=0.2), None])
    async with world.operator():
        await world.create()
        await world.aio.wait_for(
            'kopfexamples', 'obj', lambda body: 'kopf.zalando.org/create' in body['metadata'].get('annotations', {})
        )
    async with world.operator():
        await world.handled()
    assert [call['retry'] for call in world.called('create')] == [0, 1]
    assert len({call['started'] for call in world.called('create')}) == 1


@pytest.mark.parametrize('edited', [True, False], ids=['edited', 'not edited'])
@in_virtual_time
async def test_edits_between_operators_in_the_middle_of_a_creation(world, edited):
    world.declare(kopf.on.create, 'first')
    world.declare(kopf.on.create, 'second', does=[kopf.TemporaryError('boo', delay=0.2), None])
    world.declare(kopf.on.update, 'update')
    async with world.operator():
        await world.create(spec={'field': 'v1'})
        await world.aio.wait_for(
            'kopfexamples',
            'obj',
            lambda body: 'boo' in body['metadata'].get('annotations', {}).get('kopf.zalando.org/second', ''),
        )
    if edited:
        await world.edit(field='v2')
    async with world.operator():
        await world.handled(field='v2' if edited else 'v1')
    assert sorted(world.ids) == ['first', 'second', 'second', *(['update'] if edited else [])]
    assert [call['new']['spec'] for call in world.called('update')] == ([{'field': 'v2'}] if edited else [])


@in_virtual_time
async def test_broken_watches_lose_no_changes(world):
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.update, 'update')
    async with world.operator():
        for number in range(3):
            await world.create(f'obj{number}', spec={'field': 'v1'})
        world.sandbox.faults.cut_watches(times=2)
        for number in range(3):
            await world.edit(f'obj{number}', field='v2')
        world.sandbox.faults.expire_watches(times=1)
        for number in range(3):
            await world.edit(f'obj{number}', field='v3')
            await world.handled(f'obj{number}', field='v3')
    assert sorted(call.name for call in world.calls if call.id == 'create') == ['obj0', 'obj1', 'obj2']
    for number in range(3):
        last = [call for call in world.calls if call.name == f'obj{number}'][-1]
        assert last.kwargs['new']['spec'] == {'field': 'v3'}


@in_virtual_time
async def test_patches_of_event_handlers_for_stale_states_do_not_start_other_handlers(world):
    async def patching(patch, body, **_):
        if 'stale' in body['metadata'].get('labels', {}):
            patch.status['stale'] = 'seen'

    world.declare(kopf.on.event, 'event', does=patching)
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        old = await world.create()
        await world.handled()
        await world.settled()
        stale = {**old, 'metadata': {**old['metadata'], 'labels': {'stale': 'yes'}}}
        world.sandbox.faults.say(json.dumps({'type': 'MODIFIED', 'object': stale}), resource='kopfexamples')
        await world.create('other')  # the next event takes the stale one along
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: body.get('status') == {'stale': 'seen'})
        await world.settled()
    assert len(world.called('create', 'obj')) == 1


class FailingStorage(kopf.AnnotationsProgressStorage):
    """A storage that fails a number of times, if asked for."""

    failures = 0

    def fetch(self, **kwargs):
        if self.failures:
            self.failures -= 1
            raise OSError("The database is down.")
        return super().fetch(**kwargs)


@pytest.mark.parametrize('failing', ['storage', 'lifecycle'])
@in_virtual_time
async def test_patches_of_event_handlers_are_kept_while_something_of_the_users_fails(world, failing):
    storage = world.settings.persistence.progress_storage = FailingStorage()
    world.settings.queueing.error_delays = [0.1]
    seen = []

    async def patching(patch, spec, **_):
        if spec['field'] == 'v2' and not seen:
            seen.append('edited')
            storage.failures = 2 if failing == 'storage' else 0
            patch.status['seen'] = spec['field']

    def lifecycle(handlers, **_):
        if seen == ['edited'] and failing == 'lifecycle':
            seen.append('failed')
            raise ValueError("oops")
        return handlers

    world.declare(kopf.on.event, 'event', does=patching)
    world.declare(kopf.on.update, 'update')
    world.declare(kopf.on.create, 'create')
    async with world.operator(lifecycle=lifecycle):
        await world.create()
        await world.handled()
        await world.settled()
        await world.edit(field='v2')
        await world.handled(field='v2')
        assert (await world.get()).get('status') == {'seen': 'v2'}
    assert not storage.failures
    assert any('Throttling' in text for text in world.log.texts)
