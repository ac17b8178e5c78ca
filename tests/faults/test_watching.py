"""
Watching on a bad day: whole operators, and an API that fails in all the ways that were seen in clusters.

Besides the resource that suffers, each operator here serves another one: it must never notice anything.
"""

import asyncio
import gc
import json
import logging
import weakref

import pytest
from kinds import define
from operatorworld import in_virtual_time

import kopf
from kopf._core.reactor import watches

FINALIZER = 'kopf.zalando.org/KopfFinalizerMarker'


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    """Shorten the delays of clusters to a tenth."""
    monkeypatch.setattr(watches, 'MIN_BACKOFF', 0.08)
    monkeypatch.setattr(watches, 'MAX_BACKOFF', 3.0)
    monkeypatch.setattr(watches, 'FORBIDDEN_BACKOFF', 0.3)


@pytest.fixture
def neighbour(world):
    """Return a check that another resource goes on, whatever happens to the first one."""
    world.declare(kopf.on.event, 'neighbour', resource='configmaps')
    count = 0

    async def check():
        nonlocal count
        count += 1
        await world.aio.create({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': f'map{count}'}})
        await world.until_called('neighbour', 1, f'map{count}')
        assert len(streams(world, 'configmaps')) == 1

    return check


def streams(world, resource='kopfexamples'):
    return [seen for seen in world.sandbox.requests if seen.resource == resource and seen.verb == 'watch']


def lists(world, resource='kopfexamples'):
    return [seen for seen in world.sandbox.requests if seen.resource == resource and seen.verb == 'list']


async def streaming(world, count=1, resource='kopfexamples'):
    """Wait until so many streams have been opened."""
    async with asyncio.timeout(60):
        while sum(seen.status == 200 for seen in streams(world, resource)) < count:
            await asyncio.sleep(0.005)


# Errors: recovered, and alone.

FAULTS = {
    '500 in the stream': lambda faults: faults.fail_watches(500, resource='kopfexamples'),
    '503 in the stream': lambda faults: faults.fail_watches(503, resource='kopfexamples'),
    '410 in the stream': lambda faults: faults.expire_watches(resource='kopfexamples'),
    'an end': lambda faults: faults.end_watches(resource='kopfexamples'),
    'nonsense': lambda faults: faults.say('{"type":"ERROR","object":"?"}', resource='kopfexamples'),
    'a cut in the middle of a line': lambda faults: faults.cut_watches(resource='kopfexamples'),
}


@pytest.mark.parametrize('fault', FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize('streamed', [True, False], ids=['streamed', 'chunked'])
@in_virtual_time
async def test_streams_that_fail_once(world, neighbour, fault, streamed):
    world.settings.watching.streaming_lists = streamed
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.update, 'update')
    async with world.operator():
        await world.create('before')
        await world.handled('before')
        fault(world.sandbox.faults)
        await world.create('meanwhile')
        await world.edit('before', field='v2')
        await world.handled('meanwhile')
        await world.handled('before', field='v2')
        assert world.sandbox.faults.pending() == []
        await neighbour()
    assert sorted((call.id, call.name) for call in world.calls if call.id != 'neighbour') == [
        ('create', 'before'),
        ('create', 'meanwhile'),
        ('update', 'before'),
    ]


@pytest.mark.parametrize('status', [410, 500, 503, 429])
@in_virtual_time
async def test_refused_streams_do_not_disturb_the_others(world, neighbour, status):
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        await streaming(world)
        world.sandbox.faults.error(status, verb='watch', resource='kopfexamples')
        world.sandbox.faults.end_watches(resource='kopfexamples')
        await world.create()
        await world.handled()
        await neighbour()
    assert len(world.calls) == 2


@in_virtual_time
async def test_continue_tokens_that_expire(world, neighbour):
    world.settings.watching.streaming_lists = False
    world.settings.watching.chunk_size = 2
    world.declare(kopf.on.create, 'create')
    for number in range(5):
        await world.create(f'obj{number}')
    world.sandbox.faults.error(410, times=None, query='continue=', resource='kopfexamples')
    async with world.operator():
        for number in range(5):
            await world.handled(f'obj{number}')
        await neighbour()
    assert len(lists(world)) == 2 + 1  # all of it again, in one request
    assert sorted(call.name for call in world.calls if call.id == 'create') == [f'obj{number}' for number in range(5)]


@pytest.mark.parametrize('status', [400, 422])
@in_virtual_time
async def test_servers_without_streamed_lists(world, neighbour, status):
    world.declare(kopf.on.create, 'create')
    await world.create('old')
    world.sandbox.faults.error(status, times=None, query='sendInitialEvents', resource='kopfexamples')
    async with world.operator():
        await world.handled('old')
        world.sandbox.faults.expire_watches(resource='kopfexamples')
        await world.create('new')
        await world.handled('new')
        await neighbour()
    asked = [seen for seen in streams(world) if 'sendInitialEvents' in seen.query]
    assert len(asked) == 1  # it is remembered
    assert sorted(call.name for call in world.calls if call.id == 'create') == ['new', 'old']


@in_virtual_time
async def test_streamed_lists_are_the_default(world, neighbour):
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        await world.create()
        await world.handled()
    assert lists(world) == []
    assert streams(world)[0].query['sendInitialEvents'] == 'true'


@pytest.mark.parametrize('fault', ['cut_watches', 'fail_watches', 'expire_watches', 'end_watches'])
@in_virtual_time
async def test_initial_streams_that_break_start_over(world, neighbour, fault):
    world.declare(kopf.on.create, 'create')
    for number in range(20):
        await world.create(f'obj{number}')
    getattr(world.sandbox.faults, fault)(times=2, resource='kopfexamples')
    async with world.operator():
        for number in range(20):
            await world.handled(f'obj{number}')
        await neighbour()
    assert [seen.query.get('sendInitialEvents') for seen in streams(world)] == ['true'] * 3
    assert len(world.called('create')) == 20  # each once, although some were listed several times


@in_virtual_time
async def test_one_resource_is_forbidden(world, neighbour):
    world.declare(kopf.on.create, 'create')
    await world.create()
    world.sandbox.faults.error(403, times=None, resource='kopfexamples')
    async with world.operator():
        await world.until_logged('Not permitted to list or watch kopfexamples.v1.kopf.dev')
        await neighbour()
        await asyncio.sleep(0.5)
        assert len(streams(world)) <= 3 + watches.QUICK_REFUSALS
        world.sandbox.faults.clear()
        await world.handled()


# A server, or a proxy, that closes every watch at once.


@in_virtual_time
async def test_servers_that_close_every_watch_get_few_requests(world, neighbour):
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        await streaming(world)
        await neighbour()
        world.sandbox.faults.end_watches(times=None, resource='kopfexamples')
        began = asyncio.get_running_loop().time()
        await streaming(world, 5)
        assert asyncio.get_running_loop().time() - began > 0.5  # 5 s in clusters, as the pauses are shortened here
        await neighbour()
        world.sandbox.faults.clear()
        await world.create()
        await world.handled()


# Malformed events.

LINES = {
    'broken': '{"type":"ADDED","obj',
    'no object': '{"type":"ADDED"}',
    'unknown type': '{"type":"RENAMED","object":{"metadata":{"name":"x"}}}',
    'no metadata': '{"type":"MODIFIED","object":{"kind":"KopfExample"}}',
    'no name': '{"type":"MODIFIED","object":{"metadata":{"uid":"x"}}}',
    'not an object': '{"type":"ADDED","object":"text"}',
    'not even JSON': '<html>502 Bad Gateway</html>',
}


@pytest.mark.parametrize('line', LINES.values(), ids=LINES)
@in_virtual_time
async def test_nonsense_is_named_once_and_skipped(world, neighbour, caplog, line):
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        await streaming(world)
        caplog.clear()
        world.sandbox.faults.say(line, resource='kopfexamples')
        await world.create()
        await world.handled()
        await neighbour()
        assert len(streams(world)) == 1
    complaints = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.getMessage() for record in complaints if 'kopfexamples' in record.getMessage()]
    assert len(complaints) == 1


@pytest.mark.parametrize('labels', [None, {}], ids=['null', 'empty'])
@pytest.mark.parametrize('uid', [True, False], ids=['with uid', 'without uid'])
@in_virtual_time
async def test_strange_objects_are_handled(world, neighbour, labels, uid):
    world.declare(kopf.on.event, 'event', labels={'x': kopf.ABSENT})
    async with world.operator():
        await streaming(world)
        metadata = {
            'name': 'strange',
            'namespace': 'default',
            'resourceVersion': '1',
            'labels': labels,
            'annotations': labels,
            'finalizers': None,
            **({'uid': 'some'} if uid else {}),
        }
        line = json.dumps(
            {
                'type': 'ADDED',
                'object': {'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample', 'metadata': metadata, 'spec': None},
            }
        )
        world.sandbox.faults.say(line, resource='kopfexamples')
        await world.until_called('event', 1, 'strange')
        assert world.called('event')[0]['labels'] == {}
        await neighbour()


# Silence, slowness, and rights that end.


@in_virtual_time
async def test_frozen_streams_are_reopened(world, neighbour):
    world.settings.watching.inactivity_timeout = 0.5
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        await streaming(world)
        world.sandbox.faults.freeze_watches(times=1, resource='kopfexamples')
        await world.create()
        await world.handled()
    assert len(world.called('create')) == 1


@in_virtual_time
async def test_streams_outlive_their_tokens(world, neighbour):
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        await streaming(world)
        world.sandbox.faults.expire_tokens()
        await world.create('one')
        await world.handled('one')  # by the same stream; the patch has needed another token
        await neighbour()
        assert len(streams(world)) == 1
        world.sandbox.faults.expire_tokens()
        world.sandbox.faults.end_watches(resource='kopfexamples')
        await world.create('two')
        await world.handled('two')
    assert [call.name for call in world.calls if call.id == 'create'] == ['one', 'two']


@in_virtual_time
async def test_slow_servers_while_being_paused(world):
    await world.aio.apply(define('kopfpeerings', 'KopfPeering', group='kopf.dev'))
    await world.aio.apply({'apiVersion': 'kopf.dev/v1', 'kind': 'KopfPeering', 'metadata': {'name': 'default'}})
    world.declare(kopf.on.create, 'create')
    world.settings.peering.name, world.settings.peering.mandatory = 'default', True
    async with world.operator(standalone=False, namespaces=['default']):
        await world.create('one')
        await world.handled('one')
        world.sandbox.faults.delay(0.3, times=3, verb='watch', resource='kopfexamples')
        world.sandbox.faults.end_watches(resource='kopfexamples')
        before = len(streams(world))
        async with asyncio.timeout(60):
            while len(streams(world)) == before:  # now it waits for headers
                await asyncio.sleep(0.005)
        boss = {'priority': 100, 'lifetime': 60, 'lastseen': '2999-01-01T00:00:00Z'}
        for _ in range(2):
            for record, text in [(boss, 'Pausing operations'), (None, 'Resuming operations')]:
                world.log.texts.clear()
                await world.aio.patch('kopfpeerings', 'default', {'status': {'boss': record}})
                await world.until_logged(text)
        await world.create('two')
        await world.handled('two')
    assert [call.name for call in world.calls] == ['one', 'two']


@in_virtual_time
async def test_slow_headers_are_limited(world, neighbour):
    world.settings.networking.request_timeout = 1
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        await streaming(world)
        world.sandbox.faults.delay(60, verb='watch', resource='kopfexamples')
        world.sandbox.faults.end_watches(resource='kopfexamples')
        await world.create()
        await world.handled()
        await neighbour()
    assert len(world.called('create')) == 1


# What no watch has seen.


class Memo(kopf.Memo):
    """A memo that can be referred to weakly."""


@in_virtual_time
async def test_deleted_in_a_gap(world, neighbour):
    stopped = asyncio.Event()
    world.declare(kopf.on.event, 'event')

    @kopf.index('kopfexamples', registry=world.registry, id='names')
    async def names(name, **_):
        return {name: True}

    @kopf.on.event('configmaps', registry=world.registry, id='look')
    async def look(names, **_):
        world.note('index', None, names=set(names))

    @kopf.daemon('kopfexamples', registry=world.registry)
    async def daemon(**kwargs):
        world.note('daemon', 'obj')
        await kwargs['stopped'].wait()
        stopped.set()

    async with world.operator(memo=Memo()):
        await world.create()
        await world.until_called('daemon')
        await world.until_called('event', 2)
        memo = weakref.ref(world.called('event')[0]['memo'])
        await neighbour()
        await world.until(lambda: world.called('index') and world.called('index')[-1]['names'] == {'obj'})
        world.sandbox.faults.freeze_watches(resource='kopfexamples')
        await world.edit(metadata={'finalizers': None})
        await world.delete()
        await world.gone()
        world.sandbox.faults.forget_history()
        world.calls.clear()
        world.sandbox.faults.clear()
        world.sandbox.faults.expire_watches(resource='kopfexamples')
        await world.until_called('event')
        assert world.called('event')[-1]['type'] == 'DELETED'
        await asyncio.wait_for(stopped.wait(), 60)
        await asyncio.sleep(0.05)
        await world.aio.create({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'later'}})
        await world.until(lambda: world.called('index') and world.called('index')[-1]['names'] == set())
        world.calls.clear()
        async with asyncio.timeout(60):
            while memo() is not None:
                gc.collect()
                await asyncio.sleep(0.05)


@in_virtual_time
async def test_conflicts_are_solved_without_the_stream(world):
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.delete, 'delete')  # so that there is a finalizer, by a patch that fits to one version only
    async with world.operator():
        await streaming(world)
        world.sandbox.faults.delay(1, verb='patch')
        await world.create()
        async with asyncio.timeout(60):
            while not any(seen.verb == 'patch' for seen in world.sandbox.requests):
                await asyncio.sleep(0.01)
        world.sandbox.faults.freeze_watches(resource='kopfexamples')
        await world.edit(field='v2')
        await world.handled(field='v2')
        assert [seen.status for seen in world.sandbox.requests if seen.verb == 'patch'] == [422, 200, 200]
        assert not [seen for seen in world.sandbox.requests if seen.verb == 'get' and seen.name == 'obj']
        world.sandbox.faults.clear()
        await world.delete()
        await world.gone()
    assert world.ids == ['create', 'delete']


@in_virtual_time
async def test_gone_in_a_conflict_without_the_stream(world):
    async def remember(memo, uid, **_):
        memo.setdefault('uid', uid)

    world.declare(kopf.on.event, 'event', does=remember)
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.delete, 'delete')
    async with world.operator():
        await streaming(world)
        world.sandbox.faults.delay(1, verb='patch')
        await world.create()
        async with asyncio.timeout(60):
            while not any(seen.verb == 'patch' for seen in world.sandbox.requests):
                await asyncio.sleep(0.01)
        world.sandbox.faults.freeze_watches(resource='kopfexamples')
        await world.delete()
        await world.create(spec={'field': 'successor'})
        async with asyncio.timeout(60):
            while not any(seen.verb == 'get' and seen.name == 'obj' for seen in world.sandbox.requests):
                await asyncio.sleep(0.01)
        world.sandbox.faults.clear()
        await world.handled(field='successor')
    [kwargs] = world.called('create')
    assert kwargs['spec'] == {'field': 'successor'}
    assert kwargs['memo'].uid == kwargs['uid']  # nothing of its predecessor
