"""What is deleted, and maybe created anew, while operators see nothing of the cluster."""

import asyncio
import contextlib
import datetime
import json

import pytest
from kinds import define
from offlineserver import OfflineServer
from operatorworld import in_virtual_time

import kopf
from kopf._core.engines import webhook_registration
from kopf._core.engines.stoppers import DaemonStoppingReason
from kopf._core.reactor import orchestration, watches

PEERING = {'apiVersion': 'kopf.dev/v1', 'kind': 'KopfPeering', 'metadata': {'name': 'default'}}


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    """Shorten the delays of clusters."""
    monkeypatch.setattr(watches, 'MIN_BACKOFF', 0.05)
    monkeypatch.setattr(watches, 'MAX_BACKOFF', 0.2)
    monkeypatch.setattr(orchestration, 'SETTLING_DELAYS', (0.05, 0.1, 0.1))


def make_namespace(name='app'):
    return {'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': name}}


def make_object(name, namespace='app'):
    return {'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample', 'metadata': {'name': name, 'namespace': namespace}}


def seen(world, name='obj'):
    """Return the types of the events of the objects of this name, with their uids."""
    return [(call['event']['type'], call['uid']) for call in world.called('event', name)]


async def streaming(world, resource='kopfexamples', since=0):
    """Wait until the objects are streamed after they were listed; `since` is a number of requests to skip."""
    async with asyncio.timeout(20):
        while not any(
            request.resource == resource and request.verb == 'watch' and request.status == 200
            for request in world.sandbox.requests[since:]
        ):
            await asyncio.sleep(0.005)


# Objects that are created anew.


@pytest.mark.parametrize('streamed', [True, False], ids=['streamed', 'chunked'])
@in_virtual_time
async def test_the_deletion_of_an_object_comes_before_its_successor(world, streamed):
    world.settings.watching.streaming_lists = streamed
    world.declare(kopf.on.event, 'event')
    old = await world.create()
    async with world.operator(clusterwide=True):
        await world.until_called('event')
        await streaming(world)
        async with world.gap():
            await world.delete()
            await world.gone()
            new = await world.create()
        await world.until(lambda: (None, new['metadata']['uid']) in seen(world))
    assert seen(world) == [
        (None, old['metadata']['uid']),
        ('DELETED', old['metadata']['uid']),
        (None, new['metadata']['uid']),
    ]


@pytest.mark.parametrize('pattern', ['app', 'app*'])
@in_virtual_time
async def test_a_namespace_that_is_created_anew_is_served(world, pattern):
    world.declare(kopf.on.event, 'event')
    await world.aio.create(make_namespace())
    async with world.operator(namespaces=[pattern]):
        await world.aio.create(make_object('one'))
        await world.until_called('event', 1, 'one')
        async with world.gap():
            await world.aio.delete('namespaces', 'app')
            await world.aio.wait_gone('namespaces', 'app')
            await world.aio.create(make_namespace())
        await world.aio.create(make_object('two'))
        await world.until_called('event', 1, 'two')


@in_virtual_time
async def test_a_late_deletion_of_a_predecessor_does_not_concern_the_namespace(world):
    world.declare(kopf.on.event, 'event')
    namespace = await world.aio.create(make_namespace())
    async with world.operator(namespaces=['app*']):
        await world.aio.create(make_object('one'))
        await world.until_called('event', 1, 'one')
        stale = {**namespace, 'metadata': {**namespace['metadata'], 'uid': 'other'}}
        world.sandbox.faults.say(json.dumps({'type': 'DELETED', 'object': stale}), resource='namespaces')
        await world.aio.create(make_namespace('app-2'))
        await world.aio.create(make_object('two', 'app-2'))
        await world.until_called('event', 1, 'two')
        assert not world.sandbox.faults.pending()
        await world.aio.create(make_object('three'))
        await world.until_called('event', 1, 'three')


@pytest.mark.parametrize('mandatory', [True, False], ids=['mandatory', 'optional'])
@in_virtual_time
async def test_an_operator_joins_a_peering_that_is_created_anew(world, mandatory):
    world.settings.peering.mandatory = mandatory
    world.declare(kopf.on.event, 'event')
    await world.aio.apply(world.root / 'peering.yaml')
    await world.aio.create(PEERING)
    async with world.operator(namespaces=['default'], standalone=False, identity='me'):
        await world.create('one')
        await world.until_called('event', 1, 'one')
        async with world.gap():
            await world.aio.delete('kopfpeerings', 'default')
            await world.aio.wait_gone('kopfpeerings', 'default')
            await world.aio.create(PEERING)
        await world.aio.wait_for('kopfpeerings', 'default', lambda body: 'me' in (body.get('status') or {}))
        await world.create('two')
        await world.until_called('event', 1, 'two')


@in_virtual_time
async def test_a_kind_that_is_defined_anew_is_discovered_and_no_more(world):
    world.declare(kopf.on.event, 'event', resource='things')
    await world.aio.create(define('things', 'Thing', group='other.dev'))
    async with world.operator(clusterwide=True):
        await world.aio.create({'apiVersion': 'other.dev/v1', 'kind': 'Thing', 'metadata': {'name': 'one'}})
        await world.until_called('event', 1, 'one')
        async with world.gap():
            await world.aio.delete('customresourcedefinitions', 'things.other.dev')
            await world.aio.wait_gone('customresourcedefinitions', 'things.other.dev')
            await world.aio.create(define('things', 'Thing', group='other.dev'))
        await world.aio.create({'apiVersion': 'other.dev/v1', 'kind': 'Thing', 'metadata': {'name': 'two'}})
        await world.until_called('event', 1, 'two')

        def count_discoveries():
            return sum(request.path == '/apis' for request in world.sandbox.requests)

        async with asyncio.timeout(20):
            before = -1
            while (now := count_discoveries()) != before:  # it is settled when nothing is asked for a second
                before = now
                await asyncio.sleep(1)


# Objects that are gone with their namespace or their kind.


def declare_observers(world, *args, resource='kopfexamples'):
    """Declare an event handler, a daemon, and an index, whose content is noted at each event of a configmap."""
    world.declare(kopf.on.event, 'event', *args, resource=resource)

    @kopf.daemon(resource, *args, registry=world.registry)
    async def daemon(stopped, name, **_):
        world.note('daemon', name)
        await stopped.wait()
        world.note('stopped', name, reason=stopped.reason)

    @kopf.index(resource, *args, registry=world.registry, id='names')
    async def names(name, **_):
        return {name: True}

    @kopf.on.event('configmaps', registry=world.registry)
    async def look(names, **_):
        world.note('index', None, names=set(names))


async def told_of_deletion(world, name='obj'):
    """Wait until all of them have been told that the object is deleted: once, and in the end."""
    await world.until(lambda: world.called('event', name) and world.called('event', name)[-1]['type'] == 'DELETED', 20)
    await world.until(lambda: world.called('stopped', name), 20)
    assert DaemonStoppingReason.RESOURCE_DELETED in world.called('stopped', name)[-1]['reason']
    await world.aio.create({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'later'}})
    await world.until(lambda: world.called('index') and world.called('index')[-1]['names'] == set(), 20)
    assert [call['type'] for call in world.called('event', name)].count('DELETED') == 1


async def remove_namespace(world):
    await world.aio.patch('kopfexamples', 'obj', {'metadata': {'finalizers': None}}, namespace='app')
    await world.aio.delete('namespaces', 'app')
    await world.aio.wait_gone('namespaces', 'app')


@pytest.mark.parametrize('anew', [True, False], ids=['created anew', 'gone'])
@in_virtual_time
async def test_objects_are_gone_with_their_namespace(world, anew):
    declare_observers(world)
    await world.aio.create(make_namespace())
    async with world.operator(namespaces=['app', 'default']):
        await world.aio.create(make_object('obj'))
        await world.until_called('daemon')
        async with world.gap():
            await remove_namespace(world)
            if anew:
                await world.aio.create(make_namespace())
        await told_of_deletion(world)
        if anew:
            await world.aio.create(make_object('obj'))
            await world.until_called('daemon', 2)
            assert world.called('event')[-1]['type'] != 'DELETED'


@in_virtual_time
async def test_objects_are_gone_with_their_namespace_while_their_own_stream_is_silent(world):
    declare_observers(world)
    await world.aio.create(make_namespace())
    async with world.operator(namespaces=['app', 'default']):
        await world.aio.create(make_object('obj'))
        await world.until_called('daemon')
        await world.aio.wait_for(
            'kopfexamples', 'obj', lambda body: body['metadata'].get('finalizers'), namespace='app'
        )
        world.sandbox.faults.freeze_watches(resource='kopfexamples')
        await remove_namespace(world)
        await told_of_deletion(world)


@in_virtual_time
async def test_the_last_states_of_objects_that_are_gone_with_their_namespace_are_shown(world):
    world.declare(kopf.on.event, 'event')
    await world.aio.create(make_namespace())
    async with world.operator(namespaces=['app*']):
        for number in range(20):
            await world.aio.create({**make_object(f'obj{number}'), 'spec': {'field': number}})
        await world.until_called('event', 20)
        await world.aio.delete('namespaces', 'app')
        await world.until(lambda: len([1 for call in world.called('event') if call['type'] == 'DELETED']) == 20, 20)
    assert all(call['spec'] for call in world.called('event'))


@pytest.mark.parametrize('gap', [True, False], ids=['in a gap', 'before its eyes'])
@in_virtual_time
async def test_objects_are_gone_with_their_kind(world, gap):
    declare_observers(world, 'things', resource='other.dev')
    await world.aio.create(define('things', 'Thing', group='other.dev'))
    async with world.operator(clusterwide=True):
        await world.aio.create({'apiVersion': 'other.dev/v1', 'kind': 'Thing', 'metadata': {'name': 'obj'}})
        await world.until_called('daemon')
        await world.aio.wait_for('things', 'obj', lambda body: body['metadata'].get('finalizers'))
        async with world.gap() if gap else contextlib.nullcontext():
            if gap:
                await world.aio.patch('things', 'obj', {'metadata': {'finalizers': None}})
            await world.aio.delete('customresourcedefinitions', 'things.other.dev')
            if gap:
                await world.aio.wait_gone('customresourcedefinitions', 'things.other.dev')
        await told_of_deletion(world)


@contextlib.asynccontextmanager
async def removing_kind(world):
    """Remove the kind of an object; in the block, the operator knows that, but still awaits the last events."""
    async with world.operator(clusterwide=True):
        await world.aio.create({'apiVersion': 'other.dev/v1', 'kind': 'Thing', 'metadata': {'name': 'obj'}})
        await world.until_called('daemon')
        await world.aio.wait_for('things', 'obj', lambda body: body['metadata'].get('finalizers'))
        world.sandbox.faults.freeze_watches(resource='things')
        await world.aio.patch('things', 'obj', {'metadata': {'finalizers': None}})
        await world.aio.delete('customresourcedefinitions', 'things.other.dev')
        await world.aio.wait_gone('customresourcedefinitions', 'things.other.dev')
        await asyncio.sleep(0.5)
        yield
        await world.until(lambda: world.called('stopped'), 20)
        assert DaemonStoppingReason.RESOURCE_DELETED in world.called('stopped')[-1]['reason']


@in_virtual_time
async def test_daemons_end_with_their_kind_although_it_is_back_in_another_version(world):
    declare_observers(world, 'v1', 'things', resource='other.dev')
    crd = define('things', 'Thing', group='other.dev')
    [version] = crd['spec']['versions']
    await world.aio.create(crd)
    async with removing_kind(world):
        await world.aio.create({**crd, 'spec': {**crd['spec'], 'versions': [{**version, 'name': 'v2'}]}})


@in_virtual_time
async def test_daemons_end_with_their_kind_although_it_is_back_without_its_conversion(world, monkeypatch):
    monkeypatch.setattr(webhook_registration, 'RETRY_DELAYS', (0.05,))
    world.settings.admission.server = OfflineServer()
    world.settings.admission.managed = 'test.kopf.dev'
    declare_observers(world, 'v1', 'things', resource='other.dev')

    @kopf.on.convert('things', registry=world.registry)
    async def convert(**_):
        pass

    crd = define('things', 'Thing', group='other.dev')
    [version] = crd['spec']['versions']
    versions = [version, {**version, 'name': 'v2', 'storage': False}]
    await world.aio.create(crd)
    async with removing_kind(world):
        world.sandbox.faults.error(403, times=None, method='PATCH', name='things.other.dev')
        await world.aio.create({**crd, 'spec': {**crd['spec'], 'versions': versions}})


@in_virtual_time
async def test_a_daemon_is_outwaited_if_its_kind_is_not_served_for_a_while(world):
    running, ending = [], asyncio.Event()

    @kopf.daemon('things', registry=world.registry)
    async def daemon(stopped, **_):
        running.append('daemon')
        world.note('daemon', None, running=len(running))
        await stopped.wait()
        world.note('stopping', None)
        await ending.wait()
        running.pop()

    async def serve(served):
        versions = [{**version, 'served': served} for version in crd['spec']['versions']]
        await world.aio.apply({**crd, 'spec': {**crd['spec'], 'versions': versions}})

    world.declare(kopf.on.event, 'event', resource='things')
    crd = define('things', 'Thing', group='other.dev')
    await world.aio.create(crd)
    async with world.operator(clusterwide=True):
        await world.aio.create({'apiVersion': 'other.dev/v1', 'kind': 'Thing', 'metadata': {'name': 'obj'}})
        await world.until_called('daemon')
        await serve(False)
        await world.until_called('stopping')
        await world.until(lambda: world.called('event')[-1]['type'] == 'DELETED')
        await world.aio.create(define('others', 'Other', group='other.dev'))
        await asyncio.sleep(10)  # the resources are discovered once more
        await serve(True)
        await world.until(lambda: world.called('event')[-1]['type'] is None)
        await asyncio.sleep(10)  # no daemon may start
        ending.set()
        await world.until_called('daemon', 2)
    assert [call['running'] for call in world.called('daemon')] == [1, 1]


@in_virtual_time
async def test_objects_that_are_only_served_no_more_are_not_reported_as_deleted(world):
    world.declare(kopf.on.event, 'event', resource='things')
    await world.aio.create(define('things', 'Thing', group='one.dev'))
    async with world.operator(clusterwide=True):
        await world.aio.create({'apiVersion': 'one.dev/v1', 'kind': 'Thing', 'metadata': {'name': 'obj'}})
        await world.until_called('event')
        await world.aio.create(define('things', 'Thing', group='two.dev'))
        await world.until_logged('Ambiguous resources will not be served')
        await world.aio.delete('customresourcedefinitions', 'things.two.dev')
        await world.until_called('event', 2)
    assert [call['type'] for call in world.called('event')] in ([None] * 2, ['ADDED', None])


# Versions that go back, as after a restoration of etcd from a backup.


def restore(world, body):
    """Let the storage be as it was when this object was its newest one, the versions included."""
    server, version = world.sandbox._runner.instance.server, int(body['metadata']['resourceVersion'])

    def restore():
        storage = server.api.storage
        storage.version = version
        for table in storage:
            table.forget()
            table.floor = version
            if table.name.plural == body['kind'].lower() + 's':
                table.load(body, version, body['apiVersion'])

    server.call(restore)


async def grow(world):
    """Let versions be much higher than before."""
    for number in range(30):
        await world.aio.create({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': f'map{number}'}})


@pytest.mark.parametrize('patching', [True, False], ids=['patching', 'looking'])
@pytest.mark.parametrize('streamed', [True, False], ids=['streamed', 'chunked'])
@in_virtual_time
async def test_timers_see_objects_of_a_restored_cluster(world, patching, streamed):
    world.settings.watching.streaming_lists = streamed

    async def look(spec, patch, **_):
        if patching:
            patch.status['looked'] = world.calls[-1].kwargs['body']['metadata']['resourceVersion']

    world.declare(kopf.timer, 'timer', interval=0.05, does=look)
    world.declare(kopf.on.update, 'update')
    await world.create()
    async with world.operator():
        await world.handled()
        backup = await world.get()
        await grow(world)
        await world.edit(field='lost')
        await world.until(lambda: world.called('timer') and world.called('timer')[-1]['spec']['field'] == 'lost')
        await world.handled(field='lost')
        async with world.gap():
            restore(world, backup)
        world.sandbox.faults.expire_watches(resource=backup['kind'].lower() + 's')
        world.calls.clear()
        await world.until(lambda: world.called('timer') and world.called('timer')[-1]['spec']['field'] == 'value', 20)
        await world.edit(field='later')
        await world.until(lambda: world.called('timer')[-1]['spec']['field'] == 'later', 20)
        await world.until_called('update')
        assert world.called('update')[-1]['new']['spec']['field'] == 'later'


@in_virtual_time
async def test_edits_right_after_our_own_patch_are_not_lost_in_a_restored_cluster(world):
    world.settings.persistence.consistency_timeout = 2
    world.declare(kopf.on.update, 'update')
    await world.create()
    async with world.operator():
        await world.handled()
        backup = await world.get()
        await grow(world)
        await world.edit(field='lost')
        await world.handled(field='lost')
        async with world.gap():
            restore(world, backup)
        world.sandbox.faults.expire_watches(resource=backup['kind'].lower() + 's')
        await world.edit(field='later')
        await world.until_called('update', 2)
        assert world.called('update')[-1]['new']['spec']['field'] == 'later'


@in_virtual_time
async def test_objects_that_a_backup_brings_back_to_life_are_handled_to_their_end_again(world):
    """The finalizer of another controller keeps the object, so the operator never learns of an end of it."""

    async def wait(stopped, **_):
        await stopped.wait()

    world.declare(kopf.on.delete, 'delete')
    world.declare(kopf.on.update, 'update')
    world.declare(kopf.daemon, 'daemon', does=wait)
    await world.create(finalizers=['other/finalizer'])
    async with world.operator():
        await world.handled()
        await world.until_called('daemon')
        backup = await world.get()
        await grow(world)
        await world.delete()
        await world.until_called('delete')
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: len(body['metadata']['finalizers']) == 1)
        async with world.gap():
            restore(world, backup)
        world.sandbox.faults.expire_watches(resource='kopfexamples')
        await world.until_called('daemon', 2)
        await world.edit(field='later')
        await world.until_called('update')
        await world.delete()
        await world.until_called('delete', 2)


@in_virtual_time
async def test_a_peering_of_a_restored_cluster_is_obeyed(world):
    world.declare(kopf.on.event, 'event')
    await world.aio.apply(world.root / 'peering.yaml')
    backup = await world.aio.create(PEERING)
    async with world.operator(namespaces=['default'], standalone=False, identity='me'):
        await world.create()
        await world.until_called('event')
        await grow(world)
        await world.aio.patch('kopfpeerings', 'default', {'status': {'lost': None, 'me': None}})
        await world.aio.wait_for('kopfpeerings', 'default', lambda body: 'me' in (body.get('status') or {}))
        async with world.gap():
            restore(world, backup)
        world.sandbox.faults.expire_watches(resource=backup['kind'].lower() + 's')
        world.log.texts.clear()
        await world.aio.wait_for('kopfpeerings', 'default', lambda body: 'me' in (body.get('status') or {}))
        await world.aio.patch(
            'kopfpeerings',
            'default',
            {'status': {'boss': {'priority': 100, 'lifetime': 60, 'lastseen': '2100-01-01T00:00:00+00:00'}}},
        )
        await world.until_logged('Pausing operations')


# Namespaces that are being deleted, and have lost their peering objects first.


async def lose_peering(world):
    """Delete the namespace, so that only the objects are left in it that are held."""
    await world.aio.delete('namespace', 'one')
    await world.aio.wait_gone('kopfpeerings', 'default', namespace='one')


@pytest.fixture
async def peered(world):
    """Two namespaces with peerings, and a held object in one of them."""
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.delete, 'delete')
    await world.aio.apply(world.root / 'peering.yaml')
    for name in ['one', 'two']:
        await world.aio.create(make_namespace(name))
        await world.aio.create({**PEERING, 'metadata': {'name': 'default', 'namespace': name}})
    await world.create('a', namespace='one', finalizers=['kopf.zalando.org/KopfFinalizerMarker'])
    return world


@contextlib.asynccontextmanager
async def renewing_namespace(world, delay):
    """Create the namespace anew, with an object; the operator learns that when it handles the object already."""
    declare_observers(world)
    peering = {**PEERING, 'metadata': {'name': 'default', 'namespace': 'app'}}
    await world.aio.apply(world.root / 'peering.yaml')
    await world.aio.create(make_namespace())
    await world.aio.create(peering)
    async with world.operator(namespaces=['app*'], standalone=False, identity='me'):
        await world.aio.create(make_object('former'))
        await world.until_called('daemon', name='former')
        is_late = True
        world.sandbox.faults.error(503, times=None, resource='namespaces', condition=lambda _: is_late)
        before = len(world.sandbox.requests)
        world.sandbox.faults.drop_watches()
        await streaming(world, 'kopfpeerings', before)
        await release(world, 'former')
        await world.aio.delete('namespaces', 'app')
        await world.aio.wait_gone('namespaces', 'app')
        await world.aio.create(make_namespace())
        await world.aio.create(peering)
        await world.aio.create(make_object('obj'))
        await world.until_called('daemon', name='obj')
        is_joined = lambda body: 'me' in (body.get('status') or {})  # noqa: E731  # by the watch of the former one
        await world.aio.wait_for('kopfpeerings', 'default', is_joined, namespace='app')
        before = len(world.sandbox.requests)
        world.sandbox.faults.delay(delay, method='GET', resource='kopfpeerings', times=1)
        is_late = False
        await streaming(world, 'namespaces', before)
        async with asyncio.timeout(20):  # until the operator asks for the new peering
            while 'kopfpeerings' not in [each.resource for each in world.sandbox.requests[before:]]:
                await asyncio.sleep(0.005)
        yield
    assert [call['type'] for call in world.called('event', 'former')][-1] == 'DELETED'


async def release(world, name):
    await world.aio.patch('kopfexamples', name, {'metadata': {'finalizers': None}}, namespace='app')


@in_virtual_time
async def test_objects_of_a_new_namespace_are_not_gone_with_the_former_one(world):
    async with renewing_namespace(world, 5):
        await streaming(world, since=len(world.sandbox.requests))
        await world.aio.create(make_object('later'))
        await world.until_called('daemon', name='later')
        assert 'DELETED' not in [call['type'] for call in world.called('event', 'obj')]
        # The operator pauses for a moment, until its record is in the new peering.
        reasons = [call['reason'] for call in world.called('stopped', 'obj')]
        assert not any(DaemonStoppingReason.RESOURCE_DELETED in reason for reason in reasons)


@in_virtual_time
async def test_objects_are_gone_with_a_new_namespace_whose_peering_is_not_known_yet(world):
    async with renewing_namespace(world, 300):
        world.sandbox.faults.freeze_watches(resource='kopfexamples')
        await release(world, 'obj')
        await world.aio.delete('namespaces', 'app')
        await world.until(lambda: world.called('stopped', 'obj'), 100)
        await world.until(lambda: world.called('event', 'obj')[-1]['type'] == 'DELETED')
    assert [call['type'] for call in world.called('event', 'obj')].count('DELETED') == 1


@pytest.mark.parametrize('pattern', ['one', 'on*'])
@pytest.mark.parametrize('started', [True, False], ids=['before', 'after'])
async def test_objects_are_let_go_without_the_mandatory_peering_of_their_namespace(peered, pattern, started):
    world, options = peered, {'standalone': False, 'peering_name': 'default', 'identity': 'me'}
    async with contextlib.AsyncExitStack() as stack:
        if not started:
            await lose_peering(world)
        await stack.enter_async_context(world.operator(namespaces=[pattern, 'two'], **options))
        if started:
            await world.until_called('create', name='a')
            await lose_peering(world)
        await world.aio.wait_gone('namespace', 'one')
        await world.create('b', namespace='two')
        await world.until_called('create', name='b')
    assert [call.id for call in world.calls if call.name == 'a'] == ['create', 'delete'][not started :]
    assert not (started and [text for text in world.log.texts if 'pausing' in text.lower()])


@pytest.mark.parametrize('late', ['namespaces', 'kopfpeerings'])
async def test_paused_operators_do_not_take_over_a_namespace_that_is_being_deleted(peered, late):
    world, options = peered, {'standalone': False, 'identity': 'low'}
    boss = {'priority': 100, 'lifetime': 60, 'lastseen': datetime.datetime.now(datetime.UTC).isoformat()}
    await world.aio.patch('kopfpeerings', 'default', {'status': {'boss': boss}}, namespace='one')
    async with world.operator(namespaces=['one', 'two'], **options):
        await world.until_logged('Pausing operations')
        async with world.gap():
            await lose_peering(world)
        before = len(world.sandbox.requests)
        world.sandbox.faults.delay(0.5, method='GET', resource=late)
        async with asyncio.timeout(20):  # until both watches work again, the late one last
            while late not in [each.resource for each in world.sandbox.requests[before:] if each.verb == 'watch']:
                await asyncio.sleep(0.005)
        await asyncio.sleep(0.3)  # nothing is to happen
    assert not world.calls
