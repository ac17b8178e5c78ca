"""Objects near the limits of size, and Secrets: what is stored of them, and that nothing ever loops."""

import asyncio
import base64
import json
import random

import pytest
from operatorworld import in_virtual_time

import kopf
from kopf._cogs.configs import digests, storage_formats

LAST_HANDLED = 'kopf.zalando.org/last-handled-configuration'
PACKED = f'{LAST_HANDLED}-packed'
SECRET = base64.b64encode(b'very-secret').decode()


def noise(size, seed=0):
    return base64.b64encode(random.Random(seed).randbytes(size * 3 // 4)).decode()


def annotations_of(body):
    return body['metadata'].get('annotations') or {}


async def stored(world, key, name='obj'):
    return await world.aio.wait_for('kopfexamples', name, lambda body: key in annotations_of(body))


def diffs(kwargs):
    return [(op, '.'.join(field), old, new) for op, field, old, new in kwargs['diff']]


def warnings_of(world, text):
    return [line for line in world.log.texts if text in line]


# The last-handled configuration.


@in_virtual_time
async def test_a_big_object_is_handled_and_its_changes_are_seen_exactly(world):
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.update, 'update')
    big = 'x' * 300_000
    async with world.operator():
        await world.create(spec={'field': 'v1', 'big': big})
        await stored(world, PACKED)
        await world.edit(field='v2')
        await world.until_called('update')
        await world.edit(field='v3')
        await world.until_called('update', 2)
        await world.settled()
        assert [diffs(kwargs) for kwargs in world.called('update')] == [
            [('change', 'spec.field', 'v1', 'v2')],
            [('change', 'spec.field', 'v2', 'v3')],
        ]
        assert world.called('update')[0]['old']['spec']['big'] == big
        assert len(world.patches()) == 3
        assert len(warnings_of(world, 'does not fit into its annotations')) == 1
    async with world.operator():  # and it is at rest for the next process too
        await world.settled()
    assert world.ids.count('create') - 2 == 1 and world.ids.count('update') == 2  # besides the two fences


@in_virtual_time
async def test_a_big_object_that_can_not_be_compressed_is_handled_and_its_changes_are_noticed(world):
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.update, 'update')
    async with world.operator():
        await world.create(spec={'field': 'v1', 'big': noise(300_000)})
        await stored(world, PACKED)
        await world.edit(field='v2')
        await world.until_called('update')
        await world.edit(big=noise(300_000, 1))
        await world.until_called('update', 2)
        await world.edit(big='small')
        await world.handled(big='small')
        first, second, third = map(diffs, world.called('update'))
        assert first == [('change', 'spec.field', 'v1', 'v2')]
        [(op, field, old, new)] = second
        assert (op, field, new) == ('change', 'spec.big', noise(300_000, 1)) and old.startswith('digest:')
        assert third[0][3] == 'small'
        assert PACKED not in annotations_of(await world.get())
        assert len(world.patches()) == 4


@in_virtual_time
async def test_the_progress_of_handlers_has_place_beside_a_big_object(world):
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.update, 'update', does=[kopf.TemporaryError('x' * 1_000_000, delay=0.01)] * 3)
    size = storage_formats.MAX_ANNOTATIONS_SIZE - 1024  # it would fit, but nothing else
    async with world.operator():
        await world.create(spec={'big': noise(size)[:size], 'field': 'v1'})
        await stored(world, PACKED)
        await world.edit(field='v2')
        await world.until_called('update', 4)
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: list(annotations_of(body)) == [PACKED])
        assert not warnings_of(world, 'Throttling')


# Refusals.


@in_virtual_time
async def test_an_object_with_no_place_at_all_waits_without_a_loop_until_there_is_place(world):
    world.settings.queueing.error_delays = [0.1, 0.2, 0.4, 100]
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.update, 'update')
    async with world.operator():
        await world.create(annotations={'example.com/all': 'x' * (storage_formats.MAX_ANNOTATIONS_SIZE - 17)})
        await world.until_logged('Throttling for 100 seconds')
        assert len(world.patches()) == 4
        await world.settled()  # others go on
        [explanation] = warnings_of(world, 'The API refuses to patch the object')
        assert 'metadata.annotations: Too long' in explanation and 'Remove some of its annotations' in explanation
        await world.edit(metadata={'annotations': {'example.com/all': None}})
        await world.handled()
        await world.until_logged('Throttling is over.')
    assert len(world.called('create', 'obj')) == 1  # it had succeeded, only that could not be written down
    assert len(world.called('update', 'obj')) == 1  # of the annotation


@in_virtual_time
async def test_an_object_with_no_place_at_all_can_be_deleted(world):
    world.declare(kopf.on.delete, 'first')
    world.declare(kopf.on.delete, 'second')
    async with world.operator():
        await world.create(annotations={'example.com/all': 'x' * (storage_formats.MAX_ANNOTATIONS_SIZE - 17)})
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: body['metadata'].get('finalizers'))
        await world.delete()
        await world.gone()
    assert len(world.called('first', 'obj')) == len(world.called('second', 'obj')) == 1


async def test_refused_wishes_of_handlers_are_explained_once_and_are_given_up_when_the_object_changes(world):
    world.sandbox.patch(
        'crds',
        'kopfexamples.kopf.dev',
        [
            {
                'op': 'add',
                'path': '/spec/versions/0/schema/openAPIV3Schema/properties',
                'value': {
                    'status': {
                        'type': 'object',
                        'properties': {'size': {'type': 'integer'}},
                        'x-kubernetes-preserve-unknown-fields': True,
                    }
                },
            }
        ],
    )
    world.settings.queueing.error_delays = [0.1, 0.2, 0.4, 100]

    async def work(spec, patch, **_):
        patch.status['size'] = spec['size']

    world.declare(kopf.on.create, 'create', does=work)
    async with world.operator():
        await world.create(spec={'size': 'many'})
        await world.until_logged('Throttling for 100 seconds')
        assert len(world.called('create', 'obj')) == 1 and len(world.patches()) == 4
        [explanation] = warnings_of(world, 'The API refuses to patch the object')
        assert 'status.size: ' in explanation and 'Fix what the handlers put there' in explanation
        await world.aio.patch('kopfexamples', 'obj', {'status': {'inessential': 1}})
        await world.edit('obj', size=5)
        body = await world.handled(size=5)
    assert body['status'] == {'size': 5, 'inessential': 1}
    assert len(world.called('create', 'obj')) == 2  # what it had wanted of the former state was never applied


@in_virtual_time
async def test_an_object_that_changes_all_the_time_is_not_tried_all_the_time(world):
    world.settings.queueing.error_delays = [100]
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        world.sandbox.faults.error(422, times=None, verb='patch', name='obj', reason='Invalid')
        await world.create()
        await world.until_logged('Throttling')
        began = asyncio.get_running_loop().time()
        for number in range(50):
            await world.edit(field=f'v{number}')
            await asyncio.sleep(0.03)
        lasted = asyncio.get_running_loop().time() - began
        attempts = [request for request in world.sandbox.requests if request.name == 'obj' and request.status == 422]
        assert 2 <= len(attempts) <= 2 + lasted  # once a second at most
        world.sandbox.faults.clear()
        await world.handled(field='v49')


@in_virtual_time
async def test_a_refused_object_can_be_deleted_at_once(world):
    world.settings.queueing.error_delays = [0.01, 100]
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.delete, 'delete')
    async with world.operator():
        await world.create()
        await world.handled()
        world.sandbox.faults.error(403, times=2, verb='patch', name='obj')
        await world.edit(metadata={'labels': {'x': 'y'}})
        await world.until_logged('Throttling for 100 seconds')
        assert 'Grant the verb patch' in warnings_of(world, 'The API refuses')[0]
        await world.delete()
        await world.gone()
    assert len(world.called('delete')) == 1


@pytest.mark.parametrize('delays', [[], [0]])
@pytest.mark.parametrize('status', [422, 500])
@in_virtual_time
async def test_without_delays_there_is_no_hot_loop_either(world, delays, status):
    world.settings.queueing.error_delays = delays
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        world.sandbox.faults.error(status, times=None, verb='patch', name='obj')
        await world.create()
        await world.until_logged('Throttling for 0.5 seconds')
        await asyncio.sleep(0.4)
        assert len([request for request in world.sandbox.requests if request.status == status]) == 4
        world.sandbox.faults.clear()
        await world.handled()


@in_virtual_time
async def test_the_finalizer_that_a_policy_denies_is_not_tried_in_a_loop(world):
    world.settings.queueing.error_delays = [0.1, 100]
    world.declare(kopf.on.delete, 'delete')
    async with world.operator():
        world.sandbox.faults.error(
            422,
            times=None,
            verb='patch',
            name='obj',
            reason='Invalid',
            message='admission webhook "x.example.com" denied the request: no finalizers',
        )
        await world.create()
        await world.until_logged('Throttling for 100 seconds')
    assert 'no finalizers' in warnings_of(world, 'The API refuses')[0]


# Secrets.


@pytest.fixture
def secrets(world):
    """Serve secrets that are handled like the objects of the examples."""

    class Secrets:
        async def create(self, name='obj', **data):
            return await world.aio.create(
                {'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': name}, 'data': data}
            )

        async def edit(self, **data):
            await world.aio.patch('secrets', 'obj', {'data': data})

        async def handled(self, previous=None):
            return await world.aio.wait_for(
                'secrets', 'obj', lambda body: annotations_of(body).get(LAST_HANDLED) not in (None, previous)
            )

        def get_writes(self):
            return [request for request in world.sandbox.requests if request.resource == 'secrets' and request.body]

    world.settings.persistence.consistency_timeout = 5
    return Secrets()


@in_virtual_time
async def test_data_of_secrets_are_not_copied_but_their_changes_are_handled(world, secrets):
    world.declare(kopf.on.create, 'create', resource='secrets')
    world.declare(kopf.on.update, 'update', resource='secrets')
    world.declare(kopf.on.field, 'field', resource='secrets', field='data.password')
    async with world.operator():
        await secrets.create(password=SECRET, user='dXNlcg==')
        first = annotations_of(await secrets.handled())[LAST_HANDLED]
        await secrets.edit(user='b3RoZXI=')
        second = annotations_of(await secrets.handled(first))[LAST_HANDLED]
        await secrets.edit(password='bmV3')
        await secrets.handled(second)
        writes = secrets.get_writes()
    assert SECRET.encode() not in b''.join(request.body for request in writes)
    assert len(writes) == 5  # one for each handler
    one, two = world.called('update')
    digest = json.loads(first)['data']['user']
    assert digest.startswith('digest:')
    assert diffs(one) == [('change', 'data.user', digest, 'b3RoZXI=')]
    assert one['old']['data']['password'] == SECRET  # what has not changed is known
    assert [(op, field) for op, field, _, _ in diffs(two)] == [('change', 'data.password')]
    assert len(world.called('field')) == 2 and world.called('field')[1]['new'] == 'bmV3'


@in_virtual_time
async def test_handled_secrets_are_at_rest_after_a_restart(world, secrets):
    world.declare(kopf.on.create, 'create', resource='secrets')
    world.declare(kopf.on.update, 'update', resource='secrets')
    async with world.operator():
        await secrets.create(password=SECRET)
        await secrets.handled()
    async with world.operator():
        await secrets.create('fence')
        await world.until_called('create', name='fence')
    assert world.ids == ['create', 'create']


@in_virtual_time
async def test_secrets_of_upstream_are_not_handled_again(world, secrets):
    world.declare(kopf.on.create, 'create', resource='secrets')
    world.declare(kopf.on.update, 'update', resource='secrets')
    stored = {'data': {'password': SECRET}, 'type': 'Opaque', 'metadata': {'labels': {'a': 'b'}}}
    await world.aio.create(
        {
            'apiVersion': 'v1',
            'kind': 'Secret',
            'type': 'Opaque',
            'data': {'password': SECRET},
            'metadata': {'name': 'obj', 'labels': {'a': 'b'}, 'annotations': {LAST_HANDLED: json.dumps(stored)}},
        }
    )
    async with world.operator():
        await secrets.create('fence')
        await world.until_called('create', name='fence')
        assert world.ids == ['create']
        await world.aio.patch('secrets', 'obj', {'metadata': {'labels': {'a': 'c'}}})
        body = await secrets.handled(json.dumps(stored))
    assert SECRET not in annotations_of(body)[LAST_HANDLED]
    assert diffs(world.called('update')[0]) == [('change', 'metadata.labels.a', 'b', 'c')]


@in_virtual_time
async def test_data_of_secrets_are_stored_if_they_are_to_be(world, secrets):
    world.settings.persistence.store_secrets = True
    world.declare(kopf.on.create, 'create', resource='secrets')
    world.declare(kopf.on.update, 'update', resource='secrets')
    async with world.operator():
        await secrets.create(password=SECRET)
        body = await secrets.handled()
        assert json.loads(annotations_of(body)[LAST_HANDLED])['data'] == {'password': SECRET}
        await secrets.edit(password='bmV3')
        await world.until_called('update')
    assert diffs(world.called('update')[0]) == [('change', 'data.password', SECRET, 'bmV3')]


@in_virtual_time
async def test_edits_of_secrets_in_the_middle_of_a_creation(world, secrets):
    entered, leave = asyncio.Event(), asyncio.Event()

    async def work(**_):
        entered.set()
        await leave.wait()

    world.declare(kopf.on.create, 'create1', resource='secrets')
    world.declare(kopf.on.create, 'create2', resource='secrets', does=work)
    world.declare(kopf.on.update, 'update', resource='secrets')
    async with world.operator():
        await secrets.create(password=SECRET, user='dXNlcg==')
        await entered.wait()
        await secrets.edit(password='bmV3')
        leave.set()
        await world.until_called('update')
        await world.aio.wait_for('secrets', 'obj', lambda body: len(annotations_of(body)) == 1)
        assert SECRET.encode() not in b''.join(request.body for request in secrets.get_writes())
    assert world.ids == ['create1', 'create2', 'update']
    assert [(op, field) for op, field, _, _ in diffs(world.called('update')[0])] == [('change', 'data.password')]


@in_virtual_time
async def test_edits_of_secrets_between_operators_in_the_middle_of_a_creation(world, secrets):
    world.declare(kopf.on.create, 'create1', resource='secrets')
    world.declare(kopf.on.create, 'create2', resource='secrets', does=[kopf.TemporaryError('later', delay=0.1)])
    world.declare(kopf.on.update, 'update', resource='secrets')
    async with world.operator():
        await secrets.create(password=SECRET, user='dXNlcg==')
        body = await world.aio.wait_for(
            'secrets', 'obj', lambda body: 'later' in annotations_of(body).get('kopf.zalando.org/create2', '')
        )
    base = json.loads(annotations_of(body)['kopf.zalando.org/create1'])['base']
    assert 'password' in digests.unpack(base) and SECRET not in digests.unpack(base)
    await secrets.edit(password='bmV3')
    async with world.operator():
        await world.until_called('update')
        await world.aio.wait_for('secrets', 'obj', lambda body: len(annotations_of(body)) == 1)
    assert world.ids == ['create1', 'create2', 'create2', 'update']
    assert [(op, field) for op, field, _, _ in diffs(world.called('update')[0])] == [('change', 'data.password')]
