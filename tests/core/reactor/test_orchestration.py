"""Watches that start and stop as resources come, go, and change."""

import asyncio
import itertools

import kinds
import pytest
from operatorworld import FINALIZER, Gate, in_virtual_time

import kopf


def define(plural='kopfexamples', group='other.dev', version='v1'):
    return kinds.define(plural, 'Kind' + plural.title(), group=group, version=version)


@in_virtual_time
async def test_resources_are_served_as_they_come_and_go(world):
    world.declare(kopf.on.event, 'event', resource='things')
    async with world.operator():
        await world.until_logged('Unresolved resources cannot be served')
        for version in ['v1', 'v2']:
            await world.aio.create(define('things', version=version))
            await world.aio.create(
                {'apiVersion': f'other.dev/{version}', 'kind': 'KindThings', 'metadata': {'name': f'x-{version}'}}
            )
            await world.until(lambda version=version: world.called('event', f'x-{version}'))
            await world.aio.delete('customresourcedefinitions', 'things.other.dev')
            await world.aio.wait_gone('customresourcedefinitions', 'things.other.dev')


@in_virtual_time
async def test_ambiguous_selectors_do_not_affect_other_selectors(world):
    world.declare(kopf.on.event, 'ambiguous', resource='kopfexamples')
    world.declare(kopf.on.event, 'specific', 'kopfexamples', resource='kopf.dev')
    await world.aio.create(define('kopfexamples'))
    async with world.operator():
        await world.until_logged('Ambiguous resources will not be served')
        await world.create()
        await world.until_called('specific')
        assert 'ambiguous' not in world.ids
        await world.aio.delete('customresourcedefinitions', 'kopfexamples.other.dev')
        await world.until_called('ambiguous')


@in_virtual_time
async def test_nothing_is_handled_of_resources_that_are_not_served_any_more(world):
    world.declare(kopf.on.create, 'create', does=[kopf.TemporaryError('boo', delay=1), None])
    world.declare(kopf.on.event, 'event', resource='configmaps')
    async with world.operator():
        await world.create()
        await world.until_called('create')
        await world.aio.delete('customresourcedefinitions', 'kopfexamples.kopf.dev')
        await asyncio.sleep(1.5)
    assert world.ids.count('create') == 1


@pytest.mark.parametrize(
    'change, version', [({'subresources': {'status': {}}}, 'v1'), ({'name': 'v2', 'storage': False}, 'v2')]
)
@in_virtual_time
async def test_objects_are_not_resumed_again_when_their_resource_is_defined_differently(world, change, version):
    async def remember(memo, **_):
        memo.seen = True

    world.declare(kopf.on.resume, 'resume', does=remember)
    world.declare(kopf.on.update, 'update', does=['result'] * 100)
    async with world.operator():
        await world.create('old')
        await world.handled('old')
    async with world.operator():
        await world.until_called('resume')
        await world.create('new')
        await world.handled('new')
        name = 'kopfexamples.kopf.dev'
        crd = await world.aio.get('customresourcedefinitions', name)
        versions = crd['spec']['versions']
        changed = {**versions[0], **change}
        await world.aio.patch(
            'customresourcedefinitions',
            name,
            {'spec': {'versions': [*(item for item in versions if item['name'] != changed['name']), changed]}},
        )
        for number in itertools.count():  # until the operator knows, too
            await world.edit('old', field=f'value{number}')
            await world.until_called('update', number + 1, name='old')
            resource = world.called('update', name='old')[-1]['resource']
            if resource.version == version and ('subresources' not in change or 'status' in resource.subresources):
                break
        assert world.called('update', name='old')[-1]['memo'].seen
        await world.aio.wait_for('kopfexamples', 'old', lambda body: body.get('status', {}).get('update') == 'result')
    assert [call.name for call in world.calls if call.id == 'resume'] == ['old']


@in_virtual_time
async def test_another_version_takes_over_what_is_planned(world):
    world.declare(kopf.on.create, 'create', does=[kopf.TemporaryError('boo', delay=3), None])
    async with world.operator():
        await world.create()
        await world.until_called('create')
        name = 'kopfexamples.kopf.dev'
        versions = (await world.aio.get('customresourcedefinitions', name))['spec']['versions']
        await world.aio.patch(
            'customresourcedefinitions',
            name,
            {'spec': {'versions': [*versions, {**versions[0], 'name': 'v2', 'storage': False}]}},
        )
        await world.handled()
        await asyncio.sleep(0.2)
    assert [call['retry'] for call in world.called('create')] == [0, 1]
    assert world.called('create')[-1]['resource'].version == 'v2'


async def switch_version(world, *, old_served):
    name = 'kopfexamples.kopf.dev'
    versions = (await world.aio.get('customresourcedefinitions', name))['spec']['versions']
    await world.aio.patch(
        'customresourcedefinitions',
        name,
        {
            'spec': {
                'versions': [{**versions[0], 'served': old_served}, {**versions[0], 'name': 'v2', 'storage': False}]
            }
        },
    )


@pytest.mark.parametrize('old_served', [True, False], ids=['with the old', 'without the old'])
@in_virtual_time
async def test_another_version_while_handlers_run(world, old_served):
    gate = Gate()
    world.declare(kopf.on.create, 'create', does=[gate, None])
    world.declare(kopf.on.delete, 'delete')
    world.declare(kopf.on.resume, 'resume')
    async with world.operator():
        await world.create('other')
        await world.until_called('create')
        await world.create()
        await world.until_called('create', name='obj')
        await world.handled()
        await switch_version(world, old_served=old_served)
        await asyncio.sleep(0.3)
        gate.open()
        await world.handled('other')
        body = await world.aio.get('kopfexamples', 'other')
        assert body['apiVersion'] == 'kopf.dev/v2' and 'create' not in body.get('status', {})
        await world.delete('other')
        await world.gone('other')
    assert sorted(world.ids) == ['create', 'create', 'delete']


@in_virtual_time
async def test_objects_of_deleted_resources_are_released(world):
    gate = Gate()
    world.declare(kopf.on.delete, 'delete', does=[gate])
    async with world.operator():
        await world.create()
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: body['metadata'].get('finalizers'))
        await world.aio.delete('customresourcedefinitions', 'kopfexamples.kopf.dev')
        await world.until_called('delete')
        await asyncio.sleep(0.5)  # the operators look at what there is to be served
        gate.open()
        await world.aio.wait_gone('customresourcedefinitions', 'kopfexamples.kopf.dev')
    assert world.ids == ['delete']
    assert not any('Non-patchable' in text for text in world.log.texts)


@in_virtual_time
async def test_kinds_that_are_being_deleted_before_the_operator_starts(world):
    world.declare(kopf.on.delete, 'delete')
    await world.create(finalizers=[FINALIZER])
    await world.aio.delete('customresourcedefinitions', 'kopfexamples.kopf.dev')
    async with world.operator():
        await world.aio.wait_gone('customresourcedefinitions', 'kopfexamples.kopf.dev')
    assert world.ids == ['delete']
