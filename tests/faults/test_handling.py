"""Handling under faults: own echoes, sleepers, threads, and objects that others break, delete and create anew."""

import asyncio
import itertools
import json
import threading

import aiohttp
import pytest
from kinds import define
from operatorworld import in_virtual_time

import kopf

LAST_HANDLED = 'kopf.zalando.org/last-handled-configuration'
FINALIZER = 'kopf.zalando.org/KopfFinalizerMarker'


def diffs(kwargs):
    return [(op, '.'.join(field), old, new) for op, field, old, new in kwargs['diff']]


def annotations_of(body):
    return body['metadata'].get('annotations') or {}


def is_held(body):
    return FINALIZER in body['metadata'].get('finalizers', ())


# Own echoes.


@in_virtual_time
async def test_a_relist_right_after_an_own_patch_stalls_nothing(world):
    async def work(**_):
        world.sandbox.faults.freeze_watches(times=1, resource='kopfexamples')  # the echo of the patch does not come...

    world.declare(kopf.on.create, 'create', does=[work])
    world.declare(kopf.on.update, 'update')
    world.settings.persistence.consistency_timeout = 60
    loop = asyncio.get_running_loop()
    async with world.operator():
        await world.create()
        await world.handled()
        await world.edit(field='v2')
        world.sandbox.faults.forget_history()
        world.sandbox.faults.drop_watches()  # ... and all that is seen is a list with something newer
        began = loop.time()
        await world.until_called('update')
        assert loop.time() - began < 30
    assert world.ids == ['create', 'update']


@in_virtual_time
async def test_stale_events_after_own_patches_are_dropped(world):
    seen = []

    async def work(**_):
        seen.append(await world.get())

    world.declare(kopf.on.create, 'create', does=[work])
    async with world.operator():
        await world.create()
        await world.handled()
        await world.settled()
        world.sandbox.faults.say(json.dumps({'type': 'MODIFIED', 'object': seen[0]}), resource='kopfexamples')
        await world.settled()
    assert len(world.called('create', 'obj')) == 1


# Handlers that are retried later, and handlers that take long.


@in_virtual_time
@pytest.mark.long
async def test_retries_of_hundreds_of_objects_hold_nothing(world):
    world.settings.execution.max_workers = 4
    world.declare(kopf.on.create, 'create', does=kopf.TemporaryError('later', delay=600), labels={'x': 'y'})

    @kopf.on.create('kopfexamples', registry=world.registry, labels={'x': 'z'}, id='sync')
    def sync(name, **_):
        world.note('sync', name)
        raise kopf.TemporaryError('later', delay=600)

    async with world.operator():
        tasks, threads = len(asyncio.all_tasks()), threading.active_count()
        for number in range(300):
            await world.create(f'obj-{number}', labels={'x': 'y' if number % 2 else 'z'})
        await world.until(lambda: len(world.calls) == 300)
        await world.aio.wait_for('kopfexamples', 'obj-299', annotations_of)
        async with asyncio.timeout(60):
            while len(asyncio.all_tasks()) > tasks + 2:
                await asyncio.sleep(0.05)
        assert threading.active_count() <= threads + 4


@in_virtual_time
async def test_two_places_with_two_who_sleep_serve_a_third(world):
    world.settings.queueing.worker_limit = 2
    world.declare(kopf.on.create, 'create', does=kopf.TemporaryError('later', delay=600), labels={'x': 'sleeper'})
    world.declare(kopf.on.create, 'third', labels={'x': 'third'})
    async with world.operator():
        await world.create('one', labels={'x': 'sleeper'})
        await world.create('two', labels={'x': 'sleeper'})
        await world.until_called('create', 2)
        await world.create('three', labels={'x': 'third'})
        await world.handled('three')


@in_virtual_time
async def test_eight_sync_daemons_on_four_threads(world):
    world.settings.execution.max_workers = 4
    running = []

    @kopf.daemon('kopfexamples', registry=world.registry)
    def daemon(name, stopped, **_):
        running.append(name)
        stopped.wait()

    @kopf.on.update('kopfexamples', registry=world.registry, id='update')
    def update(name, **_):
        world.note('update', name)

    loop = asyncio.get_running_loop()
    async with world.operator():
        for number in range(8):
            await world.create(f'obj-{number}')
        async with asyncio.timeout(60):
            while len(running) < 8:
                await asyncio.sleep(0.02)
        await world.edit('obj-0', field='v2')
        await world.until_called('update')
        began = loop.time()
    assert loop.time() - began < 15
    assert not any('orphaned' in line for line in world.log.texts)


# Objects that others change in unusual ways.


@in_virtual_time
async def test_created_anew_while_the_predecessor_is_handled(world):
    entered, leave = asyncio.Event(), asyncio.Event()

    async def work(body, patch, **_):
        entered.set()
        await leave.wait()
        patch.status['seen'] = body['spec']['field']

    world.declare(kopf.on.create, 'create', does=[work, work])
    async with world.operator():
        await world.create(spec={'field': 'old'})
        await entered.wait()
        await world.delete()
        await world.create(spec={'field': 'new'})
        await world.until_called('create', 2)
        leave.set()
        body = await world.handled(field='new')
    assert body['status'] == {'seen': 'new'}
    assert [request.status for request in world.sandbox.requests if b'"seen":"old"' in request.body] in ([409], [422])
    assert [kwargs['spec']['field'] for kwargs in world.called('create')] == ['old', 'new']


@in_virtual_time
async def test_deleted_by_its_own_handler(world):
    async def work(name, patch, **_):
        patch.status['done'] = True
        await world.delete(name)

    world.declare(kopf.on.create, 'create', does=work)
    async with world.operator():
        await world.create()
        await world.until_called('create')
        await world.gone()
        await world.create('another')
        await world.until_called('create', name='another')
        await world.gone('another')
    assert not any('Throttling' in line for line in world.log.texts)


@in_virtual_time
async def test_deletions_are_handled_once_though_the_finalizer_can_not_be_removed_at_once(world):
    async def work(name, **_):
        await world.edit(name, field='v2')  # the removal fits to the previous version only

    world.declare(kopf.on.delete, 'delete', does=work)
    async with world.operator():
        await world.create()
        await world.aio.wait_for('kopfexamples', 'obj', is_held)
        await world.delete()
        await world.gone()
    assert world.ids == ['delete']


@in_virtual_time
async def test_successes_for_one_reason_do_not_count_for_another(world):
    """The same function for all reasons; and it had succeeded for one of them when the operator went down."""
    world.declare(kopf.on.create, 'both')
    world.declare(kopf.on.delete, 'both')
    world.declare(kopf.on.create, 'create', does=[kopf.TemporaryError('later', delay=600)])
    async with world.operator():
        await world.create()
        await world.aio.wait_for(
            'kopfexamples', 'obj', lambda body: 'later' in annotations_of(body).get('kopf.zalando.org/create', '')
        )
    await world.delete()
    async with world.operator():
        await world.gone()
    assert [(call.id, str(call.kwargs['reason'])) for call in world.calls] == [
        ('both', 'create'),
        ('create', 'create'),
        ('both', 'delete'),
    ]


@in_virtual_time
async def test_finalizers_that_others_remove_are_put_back(world):
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.delete, 'delete')
    async with world.operator():
        await world.create()
        await world.handled()
        await world.edit(metadata={'finalizers': []})
        await world.aio.wait_for('kopfexamples', 'obj', is_held)
        await world.delete()
        await world.gone()
    assert world.ids == ['create', 'delete']


@in_virtual_time
async def test_finalizers_that_others_remove_from_a_deleted_object_let_it_go(world):
    world.declare(kopf.on.delete, 'delete', does=[kopf.TemporaryError('later', delay=600)])
    async with world.operator():
        await world.create()
        await world.aio.wait_for('kopfexamples', 'obj', is_held)
        await world.delete()
        await world.until_called('delete')
        await world.edit(metadata={'finalizers': []})
        await world.gone()
        await world.create()
        await world.aio.wait_for('kopfexamples', 'obj', is_held)
        await world.edit(metadata={'finalizers': []})
    assert len(world.called('delete')) == 1


@pytest.mark.parametrize(
    'value, expected, warned',
    [
        (None, 'create', False),
        ('{not json', 'create', True),
        ('[1]', 'create', True),
        ('null', 'create', False),
        ('{"spec":{"field":"older"}}', 'update', False),
    ],
)
@in_virtual_time
async def test_last_handled_configurations_that_are_lost_broken_or_edited(world, value, expected, warned):
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.update, 'update')
    async with world.operator():
        await world.create()
        await world.handled()
        world.calls.clear()
        await world.edit(metadata={'annotations': {LAST_HANDLED: value}})
        await world.until_called(expected)
        await world.aio.wait_for(
            'kopfexamples', 'obj', lambda body: annotations_of(body).get(LAST_HANDLED) == '{"spec":{"field":"value"}}\n'
        )
        await world.settled()
    assert [call.id for call in world.calls if call.name == 'obj'] == [expected]
    assert any(LAST_HANDLED in line and 'obj' in line for line in world.log.texts) is warned
    if expected == 'update':
        assert diffs(world.called('update')[0]) == [('change', 'spec.field', 'older', 'value')]


@pytest.mark.parametrize('text', ['{not json', '[]', '"x"', '{"retries":"many"}', '{"started":"yesterday"}', ''])
@in_virtual_time
async def test_progress_that_makes_no_sense_is_absent_with_a_warning(world, text):
    world.declare(kopf.on.create, 'create')
    await world.create(annotations={'kopf.zalando.org/create': text})
    async with world.operator():
        await world.handled()
    assert world.ids == ['create']
    assert any('kopf.zalando.org/create' in line and 'obj' in line for line in world.log.texts)


@in_virtual_time
async def test_times_without_offsets_are_in_utc(world):
    world.declare(kopf.on.create, 'create')
    record = {
        'started': '2020-01-01T00:00:00.123456',
        'delayed': '2020-01-01T00:01:00',
        'purpose': 'create',
        'retries': 3,
    }
    await world.create(annotations={'kopf.zalando.org/create': json.dumps(record)})
    async with world.operator():
        await world.handled()
    [kwargs] = world.called('create')
    assert kwargs['retry'] == 3 and kwargs['started'].isoformat() == '2020-01-01T00:00:00.123456+00:00'


@in_virtual_time
async def test_verbose_progress_is_retried(world):
    world.settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(verbose=True)
    world.declare(kopf.on.create, 'create', does=[kopf.TemporaryError('later', delay=0.05)] * 3)
    async with world.operator():
        await world.create()
        await world.handled()
    assert [kwargs['retry'] for kwargs in world.called('create')] == [0, 1, 2, 3]


@in_virtual_time
async def test_callbacks_for_absent_fields_get_none(world):
    values = []

    def is_absent(value, **_):
        values.append(value)
        return value is None

    for decorator, id in ((kopf.on.event, 'event'), (kopf.on.create, 'create'), (kopf.on.resume, 'resume')):
        world.declare(decorator, id, field='spec.absent', value=is_absent)
    await world.create()
    async with world.operator():
        await world.until_called('create')
        await world.until_called('event')
    assert set(values) == {None}


# What the API refuses, or adjusts.

ANYTHING = {'type': 'object', 'x-kubernetes-preserve-unknown-fields': True}
THING = define(
    'things',
    'Thing',
    group='other.dev',
    subresources={'status': {}},
    schema={
        'type': 'object',
        'properties': {
            'spec': {**ANYTHING, 'properties': {'sub': {'type': 'object', 'properties': {'a': {'type': 'string'}}}}},
            'status': {**ANYTHING, 'properties': {'phase': {'type': 'string'}}},
        },
    },
)


async def create_thing(world):
    await world.aio.apply(THING)
    await world.aio.create({'apiVersion': 'other.dev/v1', 'kind': 'Thing', 'metadata': {'name': 'obj'}, 'spec': {}})


async def thing_handled(world):
    return await world.aio.wait_for('things', 'obj', lambda body: list(annotations_of(body)) == [LAST_HANDLED])


@pytest.mark.parametrize('way', ['values', 'functions', 'values with others', 'functions with others'])
@in_virtual_time
async def test_a_success_is_not_on_record_without_its_status(world, way):
    phases = iter([5, 'ready'])  # the schema permits only texts

    async def work(patch, **_):
        phase = next(phases)
        if 'values' in way:
            patch.status['phase'] = phase
        else:
            patch.fns.append(lambda body: body.setdefault('status', {}).update(phase=phase))
        if 'others' in way:
            patch.spec['touched'] = True
            patch.metadata.labels['touched'] = 'yes'

    world.declare(kopf.on.create, 'create', resource='things', does=work)
    world.declare(kopf.on.create, 'other', resource='things')
    world.settings.queueing.error_delays = [100]
    await create_thing(world)
    async with world.operator():
        await world.until_logged('The API refuses to patch the object: status.phase')
        body = await world.aio.get('things', 'obj')
        assert not annotations_of(body)
    async with world.operator():
        body = await thing_handled(world)
    assert body['status'] == {'phase': 'ready'}
    assert body['spec'] == ({'touched': True} if 'others' in way else {})
    assert world.ids == ['create', 'create', 'other']


async def test_a_success_is_not_on_record_without_functions_that_always_conflict(world):
    edits = itertools.count()
    others = [lambda: world.sandbox.patch('things', 'obj', {'status': {'edit': next(edits)}}, subresource='status')]

    async def work(patch, **_):
        def fn(body):
            for edit in others:  # another client is always faster
                edit()
            body['spec']['done'] = True

        patch.fns.append(fn)

    world.declare(kopf.on.create, 'create', resource='things', does=work)
    world.declare(kopf.on.create, 'other', resource='things')
    await create_thing(world)
    async with world.operator():
        body = await world.aio.wait_for('things', 'obj', lambda body: body.get('status', {}).get('edit', 0) > 9)
        assert not annotations_of(body)
    others.clear()
    async with world.operator():
        body = await thing_handled(world)
    assert body['spec'] == {'done': True}
    assert world.ids.count('create') == 2


@in_virtual_time
async def test_the_order_of_all_kinds_of_patches(world):
    async def work(patch, **_):
        patch.spec['x'], patch.status['y'], patch.metadata.labels['z'] = 1, 2, '3'
        patch.fns.append(lambda body: body['spec'].update(fn=True))
        patch.fns.append(lambda body: body['status'].update(fn=True))

    world.declare(kopf.on.create, 'create', resource='things', does=work)
    await create_thing(world)
    async with world.operator():
        body = await world.aio.wait_for('things', 'obj', lambda body: body.get('status', {}).get('fn'))
    assert (body['spec'], body['status'], body['metadata']['labels']) == (
        {'x': 1, 'fn': True},
        {'y': 2, 'fn': True},
        {'z': '3'},
    )
    patches = [
        (request.subresource, type(json.loads(request.body)))
        for request in world.sandbox.requests
        if request.method == 'PATCH' and request.name == 'obj'
    ]
    assert patches[:4] == [('', dict), ('status', dict), ('', list), ('status', list)]


@in_virtual_time
async def test_values_that_the_api_adjusts_are_no_edits(world):
    async def work(patch, **_):
        patch.spec['sub'] = {'a': 'ours', 'unknown': 'to the schema'}

    world.declare(kopf.on.update, 'first', resource='things', does=work)
    world.declare(kopf.on.update, 'second', resource='things')
    world.declare(kopf.on.create, 'create', resource='things')
    await create_thing(world)
    async with world.operator():
        await thing_handled(world)
        await world.aio.patch('things', 'obj', {'spec': {'field': 'v2'}})
        await world.until_called('second')
        body = await thing_handled(world)
        await asyncio.sleep(0.1)
    assert body['spec'] == {'field': 'v2', 'sub': {'a': 'ours'}}
    assert world.ids == ['create', 'first', 'second']


@in_virtual_time
async def test_newer_wishes_win_over_those_that_could_not_be_fulfilled(world):
    world.settings.queueing.error_delays = [0.2]
    seen = []

    async def work(spec, patch, **_):
        value = spec['field']
        if value not in seen:
            seen.append(value)
            patch.status['last'] = value
            patch.status[value] = True
            patch.fns.append(lambda body: body['status'].setdefault('all', []).append(value))
            if value == 'v1':
                patch.fns.append(lambda body: body['status'].update(by='function'))
            else:
                patch.status['by'] = 'value'

    world.declare(kopf.on.event, 'event', does=work)
    async with world.operator():
        world.sandbox.faults.error(500, verb='patch', name='obj')
        await world.create(spec={'field': 'v1'})
        await world.until_logged('Throttling')
        await world.edit(field='v2')
        body = await world.aio.wait_for('kopfexamples', 'obj', lambda body: 'status' in body)
    assert body['status'] == {'last': 'v2', 'v1': True, 'v2': True, 'all': ['v1', 'v2'], 'by': 'value'}


# Other promises.


@in_virtual_time
async def test_events_are_not_posted_if_posting_is_disabled(world):
    async def work(body, logger, **_):
        kopf.warn(body, reason='X', message='m')
        kopf.info(body, reason='X', message='m')
        kopf.event(body, type='Any', reason='X', message='m')
        logger.warning('logged')

    world.declare(kopf.on.create, 'create', does=work)
    async with world.operator():
        await world.create()
        await world.handled()
    assert not [request for request in world.sandbox.requests if request.resource == 'events']


@in_virtual_time
async def test_daemons_without_options_free_the_object_as_soon_as_they_end(world):
    stopped_at = []
    loop = asyncio.get_running_loop()

    async def run(stopped, **_):
        await stopped.wait()
        await asyncio.sleep(0.3)
        stopped_at.append(loop.time())

    world.declare(kopf.daemon, 'daemon', does=run)
    async with world.operator():
        await world.create()
        await world.until_called('daemon')
        await world.delete()
        await world.gone()
        assert stopped_at and loop.time() - stopped_at[0] < 2


@in_virtual_time
async def test_tasks_of_the_caller_are_not_cancelled(world):
    stop = asyncio.Event()
    own = asyncio.create_task(asyncio.Event().wait())
    tasks = await kopf.spawn_tasks(
        registry=world.registry, settings=world.settings, standalone=True, stop_flag=stop, clusterwide=True
    )
    asyncio.get_running_loop().call_later(0.1, stop.set)
    await kopf.run_tasks(tasks)
    assert not own.done()
    own.cancel()


@in_virtual_time
async def test_a_registry_of_ones_own_can_log_in(world):
    registry = kopf.OperatorRegistry()
    kopf.on.create('kopfexamples', registry=registry, id='x')(lambda **_: world.note('x', 'obj'))
    async with world.operator(registry=registry):
        await world.create()
        await world.until_called('x')


async def test_a_probe_that_raises_is_answered(world, unused_tcp_port):
    @kopf.on.probe(registry=world.registry, id='broken')
    def broken(**_):
        raise RuntimeError('boo')

    loop = asyncio.get_running_loop()
    async with world.operator(liveness_endpoint=f'http://127.0.0.1:{unused_tcp_port}/healthz'):
        began = loop.time()
        async with aiohttp.ClientSession() as session:
            async with session.get(f'http://127.0.0.1:{unused_tcp_port}/healthz') as response:
                assert response.status == 503 and 'boo' in await response.text()
        assert loop.time() - began < 30


@pytest.mark.parametrize('latency', [0, 0.3])
@in_virtual_time
async def test_timers_of_one_object_lose_none_of_their_patches(world, latency):
    async def update(patch, **_):
        patch.status['update'] = 1

    await world.aio.create(define('things', 'Thing', subresources={'status': {}}))
    world.declare(kopf.on.update, 'update', resource='things', does=update)
    for number in range(20):

        @kopf.timer('things', id=f't{number}', interval=1, registry=world.registry)
        async def tick(patch, memo, number=number, **_):
            memo[f't{number}'] = patch.status[f't{number}'] = memo.get(f't{number}', 0) + 1
            world.note(f't{number}', 'obj')

    if latency:
        world.sandbox.faults.delay(latency, times=None, verb='patch')
    async with world.operator():
        await world.aio.create({'apiVersion': 'example.dev/v1', 'kind': 'Thing', 'metadata': {'name': 'obj'}})
        await world.until_called('t19')
        await world.aio.patch('things', 'obj', {'spec': {'field': 'edited'}})
        await asyncio.sleep(15)
        assert (await world.aio.get('things', 'obj'))['status']['update'] == 1
    ticks = {f't{number}': len(world.called(f't{number}')) for number in range(20)}
    assert (await world.aio.get('things', 'obj'))['status'] == {'update': 1, **ticks}
    assert min(ticks.values()) >= 6
    assert not any('is lost' in text for text in world.log.texts)


@in_virtual_time
async def test_a_finalizer_that_is_needed_again_is_not_removed(world):
    async def need_it_again():
        await world.edit(metadata={'labels': {'x': 'y'}})
        await world.delete()

    world.declare(kopf.on.delete, 'delete', labels={'x': 'y'})
    async with world.operator():
        await world.create(labels={'x': 'y'})
        await world.aio.wait_for('kopfexamples', 'obj', is_held)
        world.sandbox.faults.call(need_it_again, verb='patch', condition=lambda request: b'finalizers' in request.body)
        await world.edit(metadata={'labels': {'x': None}})
        await world.gone()
    assert len(world.called('delete')) == 1


@in_virtual_time
async def test_a_deletion_while_the_finalizer_is_added_is_no_failure(world):
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.delete, 'delete')
    world.sandbox.faults.call(world.delete, verb='patch', condition=lambda request: b'finalizers' in request.body)
    async with world.operator():
        await world.create(finalizers=['example.com/other'])
        await world.settled()
    assert not [call for call in world.calls if call.name == 'obj']
    assert not any('Throttling' in text for text in world.log.texts)
