"""Kinds that lose or gain the status subresource: the status endpoint responds with 404, but the objects exist."""

import asyncio

import pytest
from kinds import define
from operatorworld import FINALIZER, LAST_HANDLED, in_virtual_time

import kopf

REMOVE = [{'op': 'remove', 'path': '/spec/versions/0/subresources'}]


class Things:
    """The objects of a kind whose definition can lose the status subresource."""

    def __init__(self, world):
        self.world = world
        self.define(subresources={'status': {}})

    def define(self, **options):
        self.world.sandbox.apply(define('things', 'Thing', **options))

    async def create(self, **metadata):
        body = {'apiVersion': 'example.dev/v1', 'kind': 'Thing', 'metadata': {'name': 'obj', **metadata}, 'spec': {}}
        return await self.world.aio.create(body)

    async def edit(self, **spec):
        return await self.world.aio.patch('things', 'obj', {'spec': spec})

    async def until(self, check):
        return await self.world.aio.wait_for('things', 'obj', check)

    async def handled(self):
        def is_handled(body):
            keys = body['metadata'].get('annotations', {})
            return [key for key in keys if key.startswith('kopf')] == [LAST_HANDLED]

        return await self.until(is_handled)

    async def lose_status(self, **_):
        await self.world.aio.patch('customresourcedefinitions', 'things.example.dev', REMOVE)

    def deny_status(self, times):
        """Respond as an API server that does not know of the status subresource (yet)."""
        reason = {'reason': 'NotFound', 'message': 'things.example.dev "obj" not found'}
        self.world.sandbox.faults.error(404, times=times, method='PATCH', path='/obj/status$', **reason)


@pytest.fixture
def things(world):
    return Things(world)


def put(way, patch, **status):
    if way == 'values':
        patch.status.update(status)
    else:
        patch.fns.append(lambda body: body.setdefault('status', {}).update(status))


@pytest.mark.parametrize('way', ['values', 'functions'])
@pytest.mark.parametrize('lag', [0, 60])
@in_virtual_time
async def test_a_creation_goes_on_when_the_kind_loses_the_status(world, things, way, lag):
    async def lose(patch, **_):
        if lag:
            world.sandbox.faults.freeze_discovery()
        await things.lose_status()
        put(way, patch, a=1)

    world.declare(kopf.on.create, 'one', does=lose, resource='things')
    world.declare(kopf.on.create, 'two', resource='things')
    async with world.operator():
        await things.create()
        body = await things.handled()
        assert body['status'] == {'a': 1}
        await asyncio.sleep(lag)
    assert world.ids == ['one', 'two']


@in_virtual_time
async def test_an_update_goes_on_when_the_kind_loses_the_status(world, things):
    async def lose(patch, **_):
        await things.lose_status()
        patch.status['a'] = 1

    world.declare(kopf.on.update, 'one', does=lose, resource='things')
    world.declare(kopf.on.update, 'two', resource='things')
    async with world.operator():
        await things.create()
        await things.handled()
        await things.edit(z=1)
        await world.until_called('two')
        body = await things.handled()
    assert world.ids == ['one', 'two'] and body['status'] == {'a': 1}


@in_virtual_time
async def test_a_deletion_ends_when_the_kind_loses_the_status(world, things):
    async def lose(patch, **_):
        await things.lose_status()
        patch.status['a'] = 1

    world.declare(kopf.on.delete, 'delete', does=lose, resource='things')
    async with world.operator():
        await things.create()
        assert FINALIZER in (await things.handled())['metadata']['finalizers']
        await asyncio.sleep(1)  # later events would make the operator request the object
        await world.aio.delete('things', 'obj')
        await world.aio.wait_gone('things', 'obj')
    assert world.ids == ['delete']


@in_virtual_time
async def test_retries_go_on_when_the_kind_loses_the_status(world, things):
    async def lose(patch, retry, **_):
        patch.status['a'] = retry
        if not retry:
            await things.lose_status()
        if retry < 3:
            raise kopf.TemporaryError("not yet", delay=3)

    world.declare(kopf.on.create, 'create', does=lose, resource='things')
    async with world.operator():
        await things.create()
        await things.until(lambda body: body.get('status') == {'a': 3})
    assert world.ids == ['create'] * 4


@in_virtual_time
async def test_a_status_that_one_of_several_api_servers_does_not_serve_yet_is_stored(world, things):
    async def work(patch, **_):
        patch.status['a'] = 1

    world.declare(kopf.on.create, 'one', does=work, resource='things')
    world.declare(kopf.on.create, 'two', resource='things')
    async with world.operator():
        things.deny_status(times=1)
        await things.create()
        body = await things.handled()
    assert world.ids == ['one', 'two'] and body['status'] == {'a': 1}


@in_virtual_time
async def test_a_status_that_is_never_served_does_not_hold_up_the_handlers(world, things):
    async def work(patch, **_):
        patch.status['a'] = 1

    world.settings.scanning.disabled = True
    world.declare(kopf.on.create, 'one', does=work, resource='things')
    world.declare(kopf.on.create, 'two', resource='things')
    async with world.operator():
        things.deny_status(times=None)
        await things.create()
        await things.handled()
        await asyncio.sleep(600)
    assert world.ids == ['one', 'two']
    assert any('The status is lost' in text for text in world.log.texts)
    assert len([request for request in world.sandbox.requests if request.name == 'obj']) < 50


@in_virtual_time
async def test_a_status_without_a_subresource_is_stored_even_if_the_scanning_is_disabled(world, things):
    async def work(patch, **_):
        patch.status['a'] = 1

    world.settings.scanning.disabled = True
    world.declare(kopf.on.create, 'create', does=work, resource='things')
    async with world.operator():
        await things.lose_status()
        await asyncio.sleep(5)
        await things.create()
        body = await things.handled()
    assert world.ids == ['create'] and body['status'] == {'a': 1}


@in_virtual_time
async def test_daemons_go_on_when_the_kind_loses_the_status(world, things):
    async def lose(patch, **_):
        await things.lose_status()
        patch.status['daemon'] = True

    world.declare(kopf.on.daemon, 'daemon', does=lose, resource='things')
    world.declare(kopf.on.update, 'update', resource='things')
    async with world.operator():
        await things.create()
        await things.until(lambda body: body.get('status') == {'daemon': True})
        await things.edit(z=1)
        await world.until_called('update')
        await world.aio.delete('things', 'obj')
        await world.aio.wait_gone('things', 'obj')


@in_virtual_time
async def test_conditions_of_reconciling_handlers_are_stored_when_the_kind_loses_the_status(world, things):
    @kopf.on.reconcile('things', id='fn', registry=world.registry)
    async def fn(conditions, name, patch, spec, **_):
        world.note('fn', name, spec=dict(spec))
        if not spec:
            await things.lose_status()
        patch.status['a'] = dict(spec)
        conditions['Working'] = kopf.Condition(True, 'Fine')

    def is_written(body):
        types = [each['type'] for each in body.get('status', {}).get('conditions', ())]
        return 'Working' in types and body['status'].get('a') == body['spec']

    async with world.operator():
        await things.create()
        await things.until(is_written)
        await things.edit(z=1)
        await things.until(is_written)
    assert [call.kwargs['spec'] for call in world.calls][-1] == {'z': 1}


@in_virtual_time
async def test_an_object_that_is_gone_when_its_status_is_patched_is_forgotten(world, things):
    async def delete(patch, **_):
        await world.aio.delete('things', 'obj')
        patch.status['a'] = 1

    world.declare(kopf.on.create, 'create', does=delete, resource='things')
    async with world.operator():
        await things.create()
        await world.until_called('create')
        await world.aio.wait_gone('things', 'obj')
        await asyncio.sleep(600)
        await things.create()
        await world.until_called('create', 2)
    assert not any('status is lost' in text or 'Throttling' in text for text in world.log.texts)
