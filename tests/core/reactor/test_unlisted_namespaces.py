"""A namespace appears whose indexed objects cannot be listed: soon, only handlers of its own objects wait for them."""

import asyncio

import pytest
from offlineserver import OfflineServer
from operatorworld import in_virtual_time

import kopf


def refuse(faults, **options):
    faults.error(403, **options)


def fail(faults, **options):
    faults.error(500, **options)


def hang(faults, **options):
    faults.delay(60, **options)


@in_virtual_time
@pytest.mark.parametrize('fault', [refuse, fail, hang])
async def test_handlers_of_other_namespaces_wait_only_for_seconds(world, fault):
    world.declare(kopf.index, 'idx', resource='configmaps', does={'key': 'value'})

    @kopf.on.create('kopfexamples', registry=world.registry)
    async def create(name, idx, **_):
        world.note('create', name, known=len(idx))

    @kopf.on.validate('kopfexamples', registry=world.registry)
    async def check(idx, **_):
        pass

    @kopf.on.schedule(interval=10, registry=world.registry)
    async def schedule(idx, **_):
        world.note('schedule', None)

    server = world.settings.admission.server = OfflineServer()
    async with world.operator(namespaces=['default', 'new*']):
        await world.settled()
        fault(
            world.sandbox.faults,
            times=None,
            resource='configmaps',
            namespace='new',
            condition=lambda request: request.verb in ('list', 'watch'),
        )
        await world.aio.create({'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': 'new'}})
        config = {'name': 'config', 'namespace': 'new'}
        await world.aio.create({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': config})
        await world.create('own', namespace='new')
        await world.create('other')
        async with asyncio.timeout(7):
            await world.until_called('create', name='other')
        world.calls.clear()
        await asyncio.sleep(30)
        assert world.ids == ['schedule'] * 3
        for namespace, allowed in (('new', False), ('default', True)):
            assert (await server.review(metadata={'name': 'obj', 'namespace': namespace}))['allowed'] == allowed
        world.sandbox.faults.clear()
        await world.until_called('create', name='own')
    assert world.called('create', 'own') == [{'known': 1}]


@in_virtual_time
async def test_handlers_of_other_namespaces_wait_for_a_new_kind_that_fails_in_all_of_them(world):
    crd = {'kind': 'CustomResourceDefinition', 'apiVersion': 'apiextensions.k8s.io/v1'}
    schema = {'openAPIV3Schema': {'type': 'object'}}
    spec = {
        'group': 'late.dev',
        'scope': 'Namespaced',
        'names': {'plural': 'parts', 'kind': 'Part'},
        'versions': [{'name': 'v1', 'served': True, 'storage': True, 'schema': schema}],
    }
    world.declare(kopf.index, 'idx', resource='parts')

    @kopf.on.create('namespaces', registry=world.registry)
    async def create(name, idx, **_):
        world.note('create', name)

    async with world.operator(namespaces=['default', 'new*']):
        await world.until_called('create', name='default')
        world.sandbox.faults.error(500, times=None, resource='parts')
        await world.aio.create({**crd, 'metadata': {'name': 'parts.late.dev'}, 'spec': spec})
        await asyncio.sleep(20)
        await world.aio.create({'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': 'new'}})
        await asyncio.sleep(60)
        assert not world.called('create', 'new')
        world.sandbox.faults.clear()
        await world.until_called('create', name='new')
