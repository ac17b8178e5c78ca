"""Several operators and one API: which one handles what, when some come, go, die, and pause each other."""

import asyncio
import contextlib
import datetime
import logging
import pathlib
import random
import signal
import threading
import time

import pytest
from forkserver import AsyncProcess
from operatorworld import in_virtual_time, running_operator

import kopf
from kopf._cogs.helpers.clocks import read_time
from kopf._core.engines import peering_member
from kopf._core.engines.indexing import OperatorIndexers
from kopf._core.reactor import peering_coordinator, watches
from kopf.testing import Refusal, Sandbox

ROOT = pathlib.Path(__file__).resolve().parents[3]
CRDS = [ROOT / 'examples' / 'crd.yaml']
PEERINGS = [ROOT / 'peering.yaml']
FINALIZER = 'kopf.zalando.org/KopfFinalizerMarker'


@pytest.fixture
def sandbox(request, monkeypatch):
    virtual_time = hasattr(request.function, 'in_virtual_time')
    with Sandbox(crds=getattr(request, 'param', CRDS + PEERINGS), virtual_time=virtual_time) as sandbox:
        monkeypatch.setenv('KUBECONFIG', str(sandbox.kubeconfig))
        yield sandbox


without_kinds = pytest.mark.parametrize('sandbox', [CRDS], indirect=True)


@pytest.fixture
def world(sandbox):
    world = World(sandbox)
    handler = Watcher(world)
    names = ('engines.peering_member', 'reactor.orchestration', 'reactor.peering_coordinator')
    loggers = [logging.getLogger(f'kopf._core.{name}') for name in names]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    yield world
    for logger in loggers:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)


class Watcher(logging.Handler):
    """Remembers what the operators say about their peers and their pauses."""

    def __init__(self, world):
        super().__init__()
        self.world = world

    def emit(self, record):
        self.world.says.append(record.getMessage())
        self.world.changed.set()


class World:
    """The cluster with its operators, and what they have done."""

    def __init__(self, sandbox):
        self.sandbox = sandbox
        self.aio = sandbox.aio
        self.calls = []
        self.indices = {}
        self.says = []
        self.lingering = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.unblocked = threading.Event()
        self.changed = asyncio.Event()

    def get_index(self, identity):
        """Return the fields of all the objects in the index of the operator."""
        index = self.indices[identity]['fields'] if identity in self.indices else {}
        return {name: value for name, [value] in index.items()}

    async def until_indexed(self, identity, **fields):
        async with asyncio.timeout(60):
            while self.get_index(identity) != fields:
                await asyncio.sleep(0.01)

    def note(self, *call):
        self.calls.append(call)
        self.changed.set()

    async def until(self, predicate):
        async with asyncio.timeout(60):
            while not predicate():
                self.changed.clear()
                await self.changed.wait()

    @contextlib.asynccontextmanager
    async def operator(
        self,
        identity,
        *,
        worker_limit=None,
        retrying=False,
        ticking=False,
        observing=False,
        lingering=False,
        following=False,
        clustered=False,
        patching=False,
        lifetime=60,
        progress_storage=None,
        exit_timeout=None,
        **options,
    ):
        registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
        if progress_storage is not None:
            settings.persistence.progress_storage = progress_storage
        settings.queueing.worker_limit = worker_limit
        settings.peering.lifetime = lifetime
        settings.posting.enabled = False

        @kopf.on.login(registry=registry)
        def login(**kwargs):
            return kopf.login_with_kubeconfig(**kwargs)

        @kopf.on.create('kopfexamples', registry=registry)
        async def create(name, **_):
            self.note(identity, 'create', name)
            await self.gate.wait()

        if following:

            @kopf.on.create('kopfexamples', registry=registry)
            async def follow(name, **_):
                self.note(identity, 'follow', name)

        @kopf.on.update('kopfexamples', registry=registry)
        async def update(name, diff, **_):
            self.note(identity, 'update', name, *(item.new for item in diff))

        if retrying:

            @kopf.on.update('kopfexamples', registry=registry)
            async def retry(name, **_):
                self.note(identity, 'retry', name)
                raise kopf.TemporaryError("not yet", delay=1000)

        @kopf.on.resume('kopfexamples', registry=registry)
        async def resume(name, **_):
            self.note(identity, 'resume', name)

        @kopf.on.delete('kopfexamples', registry=registry)
        async def delete(name, **_):
            self.note(identity, 'delete', name)
            await self.gate.wait()

        @kopf.daemon(
            'kopfexamples',
            registry=registry,
            annotations={'daemon': 'yes'},
            cancellation_backoff=60 if lingering else None,
        )
        async def daemon(name, stopped, patch, **_):
            self.note(identity, 'daemon starts', name)
            await stopped.wait()
            if lingering:
                await self.lingering.wait()
            if patching:
                patch.status['daemon'] = 'ended'
            self.note(identity, 'daemon stops', name)

        if observing:

            @kopf.on.event('kopfexamples', registry=registry)
            async def event(name, type, **_):
                self.note(identity, type, name)

            @kopf.index('kopfexamples', id='fields', registry=registry)
            async def fields(name, spec, **_):
                self.indices[identity] = indexers.indices
                asyncio.get_running_loop().call_soon(self.changed.set)
                return {name: spec['field']}

        if clustered:

            @kopf.on.create('nodes', registry=registry)
            async def create_node(name, **_):
                self.note(identity, 'create', name)
                await self.gate.wait()

        indexers = OperatorIndexers()
        if ticking:

            @kopf.on.schedule(interval=0.01, registry=registry)
            async def tick():
                self.note(identity, 'tick')

        if exit_timeout is not None:
            settings.queueing.exit_timeout = exit_timeout

            @kopf.on.create('kopfexamples', registry=registry)
            def block(name, **_):
                self.note(identity, 'block', name)
                self.unblocked.wait(60)

        options = {'namespaces': ['default']} | options
        async with running_operator(
            registry=registry, settings=settings, identity=identity, indexers=indexers, **options
        ) as task:
            yield task

    async def create(self, name, finalizers=(), **spec):
        await self.aio.create(
            {
                'apiVersion': 'kopf.dev/v1',
                'kind': 'KopfExample',
                'spec': spec,
                'metadata': {
                    'name': name,
                    'finalizers': finalizers,
                    'annotations': {'daemon': 'yes'} if 'daemon' in spec else {},
                },
            }
        )

    async def handled(self, name, **spec):
        """Wait until the object is at rest, with this in its specification."""
        await self.aio.wait_for(
            'kopfexamples',
            name,
            lambda body: (
                spec.items() <= body['spec'].items()
                and all(
                    f'"{key}":"{value}"'
                    in body['metadata'].get('annotations', {}).get('kopf.zalando.org/last-handled-configuration', '')
                    for key, value in spec.items()
                )
            ),
        )

    async def join(self, name='default'):
        await self.aio.create({'apiVersion': 'kopf.dev/v1', 'kind': 'KopfPeering', 'metadata': {'name': name}})

    async def put(self, identity, priority=100, lifetime=60, age=0.0):
        lastseen = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age)
        await self.aio.patch(
            'kopfpeerings',
            'default',
            {'status': {identity: {'priority': priority, 'lifetime': lifetime, 'lastseen': lastseen.isoformat()}}},
        )

    async def paused(self, count=1):
        await self.until(lambda: sum(text.startswith('Pausing operations') for text in self.says) == count)

    async def begin_to_create(self, name, identity):
        """Create the object, and wait until its handler runs: it goes on when the gate is opened."""
        self.gate.clear()
        await self.create(name, field='1')
        await self.until(lambda: (identity, 'create', name) in self.calls)

    async def pause_before_the_success_is_stored(self):
        """Pause the operator while its handler runs, and refuse the patch with the handler's success."""
        self.sandbox.faults.error(403, times=None, method='PATCH', resource='kopfexamples')
        await self.put('boss')
        await self.paused()
        self.gate.set()
        await self.until(lambda: any("can't be stored" in text for text in self.says))
        self.sandbox.faults.clear()

    def suspend(self, monkeypatch):
        """Let the clock of the peerings be ahead of all timers, as after a suspension."""
        for module in (peering_member, peering_coordinator):
            monkeypatch.setattr(module, 'read_time', lambda: read_time() + 100)

    async def expire(self, monkeypatch, ending):
        """Let the record of the operator expire, before its running handler ends at this time."""
        if ending == 'in the pause':
            self.sandbox.faults.error(500, times=None, method='PATCH', resource='kopfpeerings')
        else:
            self.suspend(monkeypatch)
        if ending != 'before the pause':
            await self.until(lambda: any('could not be renewed' in text for text in self.says))
            await asyncio.sleep(1)

    async def take_over(self, name):
        """Edit the object, and handle it, as another operator would do."""
        handled = {'kopf.zalando.org/last-handled-configuration': '{"spec":{"field":"2"}}\n'}
        await self.aio.patch('kopfexamples', name, {'spec': {'field': '2'}, 'metadata': {'annotations': handled}})

    async def remove(self, identity):
        await self.aio.patch('kopfpeerings', 'default', {'status': {identity: None}})

    async def joined(self, *identities, name='default'):
        """Wait until exactly these operators are in the peering."""
        await self.aio.wait_for('kopfpeerings', name, lambda body: set(body.get('status') or {}) == set(identities))

    def requests(self, resource):
        return [seen for seen in self.sandbox.requests if seen.resource == resource]


@in_virtual_time
async def test_an_operator_of_higher_priority_takes_over_and_hands_back(world):
    await world.join()
    async with world.operator('low', priority=1):
        await world.create('a', field='1')
        await world.handled('a', field='1')
        async with world.operator('high', priority=2):
            await world.paused()
            await world.until(lambda: ('high', 'resume', 'a') in world.calls)
            await world.create('b', field='1')
            await world.handled('b', field='1')
            await world.aio.patch('kopfexamples', 'a', {'spec': {'field': '2'}})
            await world.handled('a', field='2')
        await world.joined('low')
        await world.create('c', field='1')
        await world.handled('c', field='1')
    await world.joined()
    assert [call for call in world.calls if call[1] != 'resume'] == [
        ('low', 'create', 'a'),
        ('high', 'create', 'b'),
        ('high', 'update', 'a', '2'),
        ('low', 'create', 'c'),
    ]


@in_virtual_time
async def test_a_record_that_is_just_being_written_in_the_end_is_removed(world):
    await world.join()
    world.sandbox.faults.delay(0.3, method='PATCH', resource='kopfpeerings')
    async with world.operator('brief'):
        while not any(request.method == 'PATCH' for request in world.requests('kopfpeerings')):
            await asyncio.sleep(0.01)
    assert len([request for request in world.requests('kopfpeerings') if request.method == 'PATCH']) == 2
    await world.joined()


@in_virtual_time
async def test_a_record_that_was_maybe_written_is_removed(world):
    await world.join()
    world.sandbox.faults.lose(method='PATCH', resource='kopfpeerings')
    async with world.operator('brief'):
        await world.joined('brief')
        await world.until(lambda: any('Keep-alive in' in text for text in world.says))
    await world.joined()


@in_virtual_time
async def test_changes_during_the_pause_are_handled_once_after_it(world):
    await world.join()
    async with world.operator('low'):
        for name in 'abc':
            await world.create(name, field='1')
            await world.handled(name, field='1')
        world.calls.clear()
        await world.put('boss')
        await world.paused()
        await world.aio.patch('kopfexamples', 'a', {'spec': {'field': '2'}})
        await world.aio.patch('kopfexamples', 'a', {'spec': {'field': '3'}})
        await world.create('d', field='1')
        await world.aio.delete('kopfexamples', 'b')
        assert not world.calls
        await world.remove('boss')
        await world.handled('a', field='3')
        await world.handled('d', field='1')
        await world.aio.wait_gone('kopfexamples', 'b')
    assert sorted(world.calls) == [('low', 'create', 'd'), ('low', 'delete', 'b'), ('low', 'update', 'a', '3')]


@in_virtual_time
async def test_indices_are_kept_during_the_pause_and_events_are_reported_after_it(world):
    await world.join()
    async with world.operator('low', observing=True):
        for name in 'abc':
            await world.create(name, field='1')
            await world.handled(name, field='1')
        await world.until(lambda: world.calls.count(('low', 'MODIFIED', 'c')))
        await world.put('boss')
        await world.paused()
        world.calls.clear()
        await world.aio.patch('kopfexamples', 'a', {'spec': {'field': '2'}})
        await world.aio.patch('kopfexamples', 'b', {'metadata': {'finalizers': []}})
        await world.aio.delete('kopfexamples', 'b')
        await world.create('d', field='1')
        await world.create('e', field='1')
        await world.until_indexed('low', a='2', c='1', d='1', e='1')
        await world.aio.delete('kopfexamples', 'e')
        await world.until_indexed('low', a='2', c='1', d='1')
        assert not world.calls
        await world.remove('boss')
        await world.handled('a', field='2')
        await world.handled('d', field='1')
        await world.until_indexed('low', a='2', c='1', d='1')
    calls = [call for call in world.calls if call[1] != 'MODIFIED']
    assert sorted(calls, key=str) == sorted(
        [
            ('low', 'DELETED', 'b'),
            *[('low', None, name) for name in 'acd'],
            ('low', 'create', 'd'),
            ('low', 'update', 'a', '2'),
        ],
        key=str,
    )


@in_virtual_time
async def test_an_operator_that_is_paused_from_the_beginning_is_ready_to_take_over(world):
    await world.join()
    await world.put('boss')
    await world.create('a', field='1')
    async with world.operator('low', observing=True):
        await world.until_indexed('low', a='1')
        await world.create('b', field='1')
        await world.until_indexed('low', a='1', b='1')
        assert not world.calls
        await world.remove('boss')
        await world.handled('a', field='1')
        await world.handled('b', field='1')
    assert sorted(call for call in world.calls if call[1] == 'create') == [
        ('low', 'create', 'a'),
        ('low', 'create', 'b'),
    ]


async def test_what_was_seen_before_the_pause_is_forgotten(world):
    await world.join()
    world.gate.clear()
    async with world.operator('low', worker_limit=1):
        await world.create('a', field='1')
        await world.until(lambda: ('low', 'create', 'a') in world.calls)
        await world.create('b', field='1', finalizers=[FINALIZER])  # this one has to wait
        await world.create('c', field='1')
        await world.put('boss')
        await world.paused()
        await world.aio.patch(
            'kopfexamples',
            'b',
            {'metadata': {'annotations': {'kopf.zalando.org/last-handled-configuration': '{"spec":{"field":"1"}}\n'}}},
        )
        world.gate.set()
        await world.handled('a', field='1')
        await world.remove('boss')
        await world.handled('c', field='1')
    assert world.calls == [('low', 'create', 'a'), ('low', 'create', 'c')]


@pytest.mark.parametrize('fault', [{'status': 500}, {'status': 503}, {}], ids=['500', '503', 'dropped'])
@in_virtual_time
async def test_one_failed_request_does_not_keep_an_operator_that_ends_in_its_peering(world, fault):
    await world.join()
    async with world.operator('me'):
        await world.joined('me')
        add = world.sandbox.faults.error if fault else world.sandbox.faults.drop
        add(**fault, times=1, resource='kopfpeerings', verb='patch')
    await world.joined()


@in_virtual_time
async def test_deletions_with_a_namespace_right_before_the_pause_are_seen_after_it(world):
    await world.join()
    async with world.operator('low', namespaces=['default', 'oth*'], observing=True):
        await world.joined('low')
        await world.aio.create({'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': 'other'}})
        metadata = {'name': 'a', 'namespace': 'other'}
        spec = {'field': '1'}
        await world.aio.create({'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample', 'metadata': metadata, 'spec': spec})
        await world.until(lambda: ('low', 'create', 'a') in world.calls)
        await asyncio.sleep(1)
        await world.aio.patch('kopfexamples', 'a', {'metadata': {'finalizers': None}}, namespace='other')
        world.sandbox.faults.freeze_watches(resource='kopfexamples')
        await world.aio.delete('kopfexamples', 'a', namespace='other')
        await world.aio.delete('namespaces', 'other')
        await asyncio.sleep(0.3)  # the namespace is seen as deleted, the object not yet
        assert ('low', 'DELETED', 'a') not in world.calls
        await world.put('boss')
        await world.paused()
        await asyncio.sleep(5)
        world.sandbox.faults.clear()
        await world.remove('boss')
        await world.until(lambda: ('low', 'DELETED', 'a') in world.calls)


@in_virtual_time
async def test_deletions_from_before_the_pause_are_seen_after_it(world):
    await world.join()
    world.gate.clear()
    async with world.operator('low', worker_limit=1, observing=True):
        await world.create('a', field='1', daemon='yes')
        await world.until(lambda: ('low', 'daemon starts', 'a') in world.calls)
        await world.create('b', field='1', finalizers=[FINALIZER])  # this one has to wait
        for name in 'ab':
            await world.aio.delete('kopfexamples', name)
            await world.aio.patch('kopfexamples', name, {'metadata': {'finalizers': None}})
            await world.aio.wait_gone('kopfexamples', name)
        await world.until(lambda: ('low', 'daemon stops', 'a') in world.calls)  # its deletion is seen, and has to wait
        await world.put('boss')
        await world.paused()
        await world.remove('boss')
        world.gate.set()
        await world.until(lambda: {('low', 'DELETED', name) for name in 'ab'} <= set(world.calls))
    assert world.calls.count(('low', 'daemon starts', 'a')) == 1


async def test_changes_that_others_have_handled_in_the_pause_are_no_part_of_the_next_ones(world):
    await world.join()
    async with world.operator('low', retrying=True):
        await world.create('a', field='1')
        await world.handled('a', field='1')
        await world.aio.patch('kopfexamples', 'a', {'spec': {'field': '2'}})
        await world.until(lambda: ('low', 'retry', 'a') in world.calls and ('low', 'update', 'a', '2') in world.calls)
        await world.put('boss')
        await world.paused()
        body = await world.aio.get('kopfexamples', 'a')
        records = [key for key in body['metadata']['annotations'] if 'last-handled' not in key]
        world.calls.clear()
        # The boss handles the change; another one, too; and then the first state is there again.
        await world.aio.patch(
            'kopfexamples',
            'a',
            {
                'spec': {'field': '2'},
                'metadata': {
                    'annotations': {
                        **dict.fromkeys(records),
                        'kopf.zalando.org/last-handled-configuration': '{"spec":{"field":"3"}}\n',
                    }
                },
            },
        )
        await world.remove('boss')
        await world.until(lambda: ('low', 'update', 'a', '2') in world.calls)


@in_virtual_time
async def test_takeover_also_where_there_is_no_peering(world):
    await world.aio.create({'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': 'other'}})
    await world.join()
    options = {'namespaces': ['default', 'other']}
    async with world.operator('low', priority=1, **options):
        await world.joined('low')
        async with world.operator('high', priority=2, **options):
            await world.aio.wait_for('kopfpeerings', 'default', lambda body: 'high' in (body.get('status') or {}))
            await world.paused()  # in this moment, the other one must not have begun yet
            watching = [seen for seen in world.requests('kopfexamples') if seen.namespace == 'other']
            assert len(watching) == 1


@in_virtual_time
async def test_takeover_waits_for_operators_that_still_work(world):
    await world.join()
    async with world.operator('low', priority=1):
        await world.begin_to_create('a', 'low')
        async with world.operator('high', priority=2):
            await world.paused()
            await asyncio.sleep(0.3)
            assert not [call for call in world.calls if call[0] == 'high']
            world.gate.set()
            await world.until(lambda: ('high', 'resume', 'a') in world.calls)
            await world.aio.wait_for(
                'kopfpeerings',
                'default',
                lambda body: all(not {'paused', 'waiting'} & set(record) for record in body['status'].values()),
            )
    assert [call for call in world.calls if call[1] != 'resume'] == [('low', 'create', 'a')]


@in_virtual_time
async def test_takeover_waits_for_handlers_however_long_they_run(world, monkeypatch):
    monkeypatch.setattr(peering_member, 'TAKEOVER_TIMEOUT', 0.1)
    await world.join()
    world.gate.clear()
    async with world.operator('low', priority=1):
        await world.create('a', field='1')
        await world.until(lambda: ('low', 'create', 'a') in world.calls)
        async with world.operator('high', priority=2, observing=True):
            await world.aio.wait_for(
                'kopfpeerings', 'default', lambda body: (body['status'].get('low') or {}).get('pausing') is True
            )
            await world.until_indexed('high', a='1')  # it watches, and so has begun, but does not work yet
            assert not [call for call in world.calls if call[0] == 'high']
            world.gate.set()
            await world.until(lambda: ('high', 'resume', 'a') in world.calls)
            await world.aio.wait_for(
                'kopfpeerings',
                'default',
                lambda body: all(
                    not {'paused', 'pausing', 'waiting'} & set(record) for record in body['status'].values()
                ),
            )
    assert [call for call in world.calls if call[1] in ('create', 'update')] == [('low', 'create', 'a')]


@in_virtual_time
async def test_a_paused_operator_begins_no_more_handlers_of_the_running_step(world):
    await world.join()
    async with world.operator('low', following=True, lifecycle=kopf.lifecycles.all_at_once):
        await world.begin_to_create('a', 'low')
        await world.put('boss')
        await world.paused()
        world.gate.set()
        await world.aio.wait_for(
            'kopfexamples', 'a', lambda body: '"success":true' in str(body['metadata'].get('annotations'))
        )
        assert ('low', 'follow', 'a') not in world.calls
        await world.remove('boss')
        await world.until(lambda: ('low', 'follow', 'a') in world.calls)
    assert world.calls.count(('low', 'create', 'a')) == 1


@in_virtual_time
async def test_takeover_does_not_wait_for_paused_operators_in_namespaces_that_come_later(world):
    await world.join()
    options = {'namespaces': ['default', 'ns-*']}
    async with world.operator('low', **options):
        await world.put('boss')
        await world.paused()
        await asyncio.sleep(1)  # of the virtual time: the pause has begun in full
        await world.aio.create({'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': 'ns-1'}})
        peering = {'apiVersion': 'kopf.dev/v1', 'kind': 'KopfPeering', 'metadata': {'name': 'default'}}
        await world.aio.create({**peering, 'metadata': {'name': 'default', 'namespace': 'ns-1'}})
        await world.aio.wait_for(
            'kopfpeerings', 'default', lambda body: 'low' in (body.get('status') or {}), namespace='ns-1'
        )
        async with world.operator('high', priority=200, **options):
            await world.create('a', field='1')
            await world.until(lambda: ('high', 'create', 'a') in world.calls)


@in_virtual_time
async def test_a_success_from_before_a_pause_is_stored_after_it_although_a_daemon_patches_the_object_first(world):
    await world.join()
    async with world.operator('me', lingering=True, patching=True):
        await world.create('a', daemon='yes')
        await world.until(lambda: ('me', 'daemon starts', 'a') in world.calls)
        world.gate.clear()
        await world.aio.delete('kopfexamples', 'a')
        await world.until(lambda: ('me', 'delete', 'a') in world.calls)
        world.sandbox.faults.error(403, times=None, method='PATCH', resource='kopfexamples')
        await world.put('boss')
        await world.paused()
        world.gate.set()
        await asyncio.sleep(0.5)  # of the virtual time: the success is not stored, and tried again only later
        world.sandbox.faults.clear()
        world.sandbox.faults.delay(5, times=None, method='GET', resource='kopfexamples')
        await world.remove('boss')
        await world.until(lambda: any(text.startswith('Resuming operations') for text in world.says))
        world.lingering.set()
        await world.aio.wait_for('kopfexamples', 'a', lambda body: body.get('status', {}).get('daemon') == 'ended')
        await world.aio.wait_gone('kopfexamples', 'a')
    assert world.calls.count(('me', 'delete', 'a')) == 1


@pytest.mark.parametrize('priority', [1, 3])
@in_virtual_time
async def test_nothing_begins_anywhere_before_the_peerings_of_all_namespaces_are_joined(world, priority):
    for name in ['ns-1', 'ns-2']:
        await world.aio.create({'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': name}})
        peering = {'apiVersion': 'kopf.dev/v1', 'kind': 'KopfPeering', 'metadata': {'name': 'default'}}
        await world.aio.create({**peering, 'metadata': {'name': 'default', 'namespace': name}})
    world.gate.clear()
    options = {'clustered': True, 'ticking': True, 'peering_name': 'default'}
    async with world.operator('former', namespaces=['ns-2'], priority=2, **options):
        await world.aio.create({'apiVersion': 'v1', 'kind': 'Node', 'metadata': {'name': 'node'}})
        await world.until(lambda: ('former', 'create', 'node') in world.calls)
        listed = world.sandbox.faults.error(503, times=5, resource='namespaces')
        async with world.operator('later', namespaces=['ns-*'], priority=priority, **options):
            await world.paused()
            assert not listed.times
            await asyncio.sleep(5)  # of the virtual time
            assert not [call for call in world.calls if call[0] == 'later']
            world.gate.set()
            if priority == 3:
                await world.until(lambda: ('later', 'tick') in world.calls)
    assert [call for call in world.calls if call[1] == 'create'] == [('former', 'create', 'node')]


@in_virtual_time
async def test_a_mandatory_peering_needs_a_namespace(world):
    async def create_node(name):
        await world.aio.create({'apiVersion': 'v1', 'kind': 'Node', 'metadata': {'name': name}})

    def waits():
        return sum("There is no namespace to serve" in text for text in world.says)

    async with world.operator('me', namespaces=['ns-*'], clustered=True, ticking=True, peering_name='default'):
        await create_node('first')
        await world.until(lambda: waits() == 1)
        await asyncio.sleep(5)  # of the virtual time
        assert not world.calls
        await world.aio.create({'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': 'ns-1'}})
        peering = {'apiVersion': 'kopf.dev/v1', 'kind': 'KopfPeering'}
        await world.aio.create({**peering, 'metadata': {'name': 'default', 'namespace': 'ns-1'}})
        await world.until(lambda: ('me', 'create', 'first') in world.calls and ('me', 'tick') in world.calls)
        await world.aio.delete('namespaces', 'ns-1')
        await world.until(lambda: waits() == 2)
        await create_node('second')
        await asyncio.sleep(5)
        assert ('me', 'create', 'second') not in world.calls


@in_virtual_time
async def test_takeover_does_not_wait_for_operators_that_serve_nothing(world, caplog):
    await world.join()
    async with world.operator('low', priority=1):
        await world.joined('low')
        await world.aio.delete('customresourcedefinitions', 'kopfexamples.kopf.dev')
        async with asyncio.timeout(30):
            while 'Unresolved resources' not in caplog.text:
                await asyncio.sleep(0.01)
        started = time.monotonic()
        async with world.operator('high', priority=2):
            await world.aio.wait_for(
                'kopfpeerings',
                'default',
                lambda body: 'waiting' not in (body['status'].get('high') or {'waiting': True}),
            )
    assert time.monotonic() - started < peering_member.TAKEOVER_TIMEOUT - 1


@pytest.mark.parametrize('options', [{'peering_name': 'default'}, {}], ids=['mandatory', 'optional'])
@in_virtual_time
async def test_takeover_waits_also_if_it_could_not_be_announced_at_first(world, monkeypatch, options):
    monkeypatch.setattr(peering_member, 'RETRY_DELAY', 0.2)
    await world.join()
    async with world.operator('low', priority=1):
        await world.begin_to_create('a', 'low')
        world.sandbox.faults.error(500, times=1, method='PATCH', resource='kopfpeerings')
        async with world.operator('high', priority=2, **options):
            await world.paused()
            await asyncio.sleep(0.3)
            assert not [call for call in world.calls if call[0] == 'high']
            world.gate.set()
            await world.until(lambda: ('high', 'resume', 'a') in world.calls)
    assert [call for call in world.calls if call[1] != 'resume'] == [('low', 'create', 'a')]


@in_virtual_time
async def test_handlers_that_run_during_a_whole_pause_are_not_repeated_if_they_cannot_be_stored_at_once(world):
    await world.join()
    async with world.operator('me'):
        await world.begin_to_create('a', 'me')
        await world.put('boss')
        await world.paused()
        await world.remove('boss')
        await world.until(lambda: any(text.startswith('Resuming') for text in world.says))
        world.sandbox.faults.error(403, times=1, method='PATCH', resource='kopfexamples')
        world.gate.set()
        await world.handled('a', field='1')
    assert world.calls.count(('me', 'create', 'a')) == 1


@in_virtual_time
async def test_a_success_that_cannot_be_stored_before_a_pause_is_stored_after_it(world):
    await world.join()
    async with world.operator('me'):
        await world.begin_to_create('a', 'me')
        await world.pause_before_the_success_is_stored()
        await world.remove('boss')
        await world.handled('a', field='1')
    assert world.calls.count(('me', 'create', 'a')) == 1


@in_virtual_time
async def test_a_success_from_before_a_pause_is_stored_after_it_although_a_storage_fails_then(world):
    class Storage(kopf.AnnotationsProgressStorage):
        failing = False

        def fetch(self, **kwargs):
            if self.failing:
                self.failing = False
                raise OSError("The database is down.")
            return super().fetch(**kwargs)

    storage = Storage()
    await world.join()
    async with world.operator('me', progress_storage=storage):
        await world.begin_to_create('a', 'me')
        await world.pause_before_the_success_is_stored()
        storage.failing = True
        await world.remove('boss')
        await world.handled('a', field='1')
    assert world.calls.count(('me', 'create', 'a')) == 1 and not storage.failing


@in_virtual_time
async def test_a_success_from_before_a_pause_is_forgotten_if_others_have_handled_the_object(world):
    await world.join()
    async with world.operator('me'):
        await world.begin_to_create('a', 'me')
        await world.pause_before_the_success_is_stored()
        handled = {'kopf.zalando.org/last-handled-configuration': '{"spec":{"field":"1"}}\n'}
        await world.aio.patch('kopfexamples', 'a', {'metadata': {'annotations': handled}})
        count = len(world.sandbox.requests)
        await world.remove('boss')
        await world.create('b', field='1')
        await world.handled('b', field='1')
    assert not [seen for seen in world.sandbox.requests[count:] if seen.name == 'a' and seen.method == 'PATCH']
    assert world.calls.count(('me', 'create', 'a')) == 1


@in_virtual_time
async def test_a_success_from_before_a_pause_is_not_stored_when_the_operator_ends_in_the_pause(world):
    await world.join()
    async with world.operator('me'):
        await world.begin_to_create('a', 'me')
        await world.pause_before_the_success_is_stored()
        await asyncio.sleep(1)  # of the virtual time: the pause has begun in full
        count = len(world.sandbox.requests)
    assert not [seen for seen in world.sandbox.requests[count:] if seen.name == 'a' and seen.method == 'PATCH']


@in_virtual_time
async def test_a_peering_is_joined_when_the_right_to_see_it_is_granted(world, monkeypatch):
    monkeypatch.setattr(watches, 'FORBIDDEN_BACKOFF', 0.2)
    await world.join()
    await world.put('boss')
    world.sandbox.faults.error(403, times=None, method='GET', resource='kopfpeerings')
    async with world.operator('me'):
        await world.until(lambda: any('is not accessible' in text for text in world.says))
        world.sandbox.faults.clear()
        await world.paused()
        await world.joined('boss', 'me')


@pytest.mark.parametrize('status, times', [(403, 1), (403, 3), (404, 2), (410, 6)])
@in_virtual_time
async def test_a_list_that_is_refused_for_a_moment_lets_no_operator_begin_beside_others(world, status, times):
    await world.join()
    await world.put('boss')
    await world.create('a', field='1')
    world.sandbox.faults.error(status, times=times, method='GET', resource='kopfpeerings', user_agent='kopf/')
    async with world.operator('me'):
        await world.paused()
        await world.joined('boss', 'me')
        await asyncio.sleep(1)
    assert not world.calls and not world.sandbox.faults.pending()


@in_virtual_time
async def test_without_the_right_to_see_a_peering_the_operator_begins_a_moment_later_and_asks_again(world):
    await world.join()
    await world.create('a', field='1')
    world.sandbox.faults.error(403, times=None, method='GET', resource='kopfpeerings', user_agent='kopf/')
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with world.operator('me'):
        await world.handled('a', field='1')
        assert loop.time() - began < 5
        await asyncio.sleep(10)
        world.sandbox.faults.clear()
        await world.put('boss')
        await world.paused()
        assert loop.time() - began < 40


@in_virtual_time
async def test_takeover_waits_for_daemons_that_still_run(world):
    await world.join()
    async with world.operator('low', priority=1, lingering=True):
        await world.create('a', field='1', daemon='yes')
        await world.until(lambda: ('low', 'daemon starts', 'a') in world.calls)
        await world.handled('a', field='1')
        async with world.operator('high', priority=2):
            await world.paused()
            await asyncio.sleep(0.3)
            assert not [call for call in world.calls if call[0] == 'high']
            world.lingering.set()
            await world.until(lambda: ('high', 'daemon starts', 'a') in world.calls)
    daemons = [call[:2] for call in world.calls if 'daemon' in call[1]]
    assert daemons[:3] == [('low', 'daemon starts'), ('low', 'daemon stops'), ('high', 'daemon starts')]


@in_virtual_time
async def test_operators_of_higher_priority_wait_until_the_last_daemon_of_an_ending_one_has_ended(world):
    await world.join()
    calls = world.calls
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(world.operator('low', priority=1, lingering=True))
        await world.create('a', field='1', daemon='yes')
        await world.until(lambda: ('low', 'daemon starts', 'a') in calls)
        await world.handled('a', field='1')
        ending = asyncio.create_task(stack.pop_all().aclose())
        await asyncio.sleep(1)
        async with world.operator('high', priority=2):
            await world.until(lambda: any('until the running handlers of other' in text for text in world.says))
            await asyncio.sleep(10)
            assert not [call for call in calls if call[0] == 'high']
            world.lingering.set()
            await ending
            await world.until(lambda: ('high', 'daemon starts', 'a') in calls)
    daemons = [call[:2] for call in calls if 'daemon' in call[1]]
    assert daemons[:3] == [('low', 'daemon starts'), ('low', 'daemon stops'), ('high', 'daemon starts')]


@in_virtual_time
async def test_operators_of_lower_priority_wait_until_the_last_daemon_of_an_ending_one_has_ended(world):
    await world.join()
    renewals, calls = set(), world.calls
    async with world.operator('low', priority=1):
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(world.operator('high', priority=2, lingering=True, lifetime=2))
            await world.paused()
            await world.create('a', field='1', daemon='yes')
            await world.until(lambda: ('high', 'daemon starts', 'a') in calls)
            await world.handled('a', field='1')
            ending = asyncio.create_task(stack.pop_all().aclose())
            while len(renewals) < 5 and ('low', 'daemon starts', 'a') not in calls:
                await asyncio.sleep(0.05)
                body = await world.aio.get('kopfpeerings', 'default')
                renewals.add((body.get('status') or {}).get('high', {}).get('lastseen'))
            world.lingering.set()
            await ending
        await world.until(lambda: ('low', 'daemon starts', 'a') in calls)
    daemons = [call[:2] for call in calls if 'daemon' in call[1]]
    assert daemons[:3] == [('high', 'daemon starts'), ('high', 'daemon stops'), ('low', 'daemon starts')]


@in_virtual_time
async def test_takeover_from_an_operator_whose_record_has_expired(world):
    await world.join()
    await world.put('dead', priority=100, lifetime=1)
    async with world.operator('low'):
        await world.create('a', field='1')
        await world.joined('low')
        await world.handled('a', field='1')
    assert world.calls == [('low', 'create', 'a')]


REPLICA = """
import kopf

@kopf.on.startup()
def configure(settings, **_):
    settings.peering.lifetime = 2

@kopf.on.create('kopfexamples')
def handled_by(**_):
    return 'high'
"""


async def test_takeover_from_a_killed_replica(world, tmp_path):
    await world.join()
    tmp_path.joinpath('replica.py').write_text(REPLICA)
    async with world.operator('low', priority=1):
        replica = await AsyncProcess.start(['kopf', 'run', '-q', '-n', 'default', '-p', '2', tmp_path / 'replica.py'])
        try:
            await world.aio.wait_for('kopfpeerings', 'default', lambda body: len(body.get('status') or {}) == 2)
            await world.create('a', field='1')
            await world.handled('a', field='1')
        finally:
            replica.kill()
            await replica.communicate()
        killed = asyncio.get_running_loop().time()
        await world.create('b', field='1')
        await world.handled('b', field='1')
        assert asyncio.get_running_loop().time() - killed < 5
        await world.joined('low')
        assert (await world.aio.get('kopfexamples', 'a'))['status'] == {'handled_by': 'high'}
        assert 'status' not in await world.aio.get('kopfexamples', 'b')
    assert [call for call in world.calls if call[1] != 'resume'] == [('low', 'create', 'b')]


SUSPENDED = """
import asyncio, sys
import kopf

def say(*words):
    print(*words, file=sys.stderr, flush=True)

@kopf.on.startup()
def configure(settings, **_):
    settings.peering.lifetime = 2

@kopf.timer('kopfexamples', interval=1)
async def tick(**_):
    say('handled: ticked')

@kopf.timer('kopfexamples', interval=1)
def tick_in_thread(**_):
    say('handled: ticked in a thread')

@kopf.on.create('kopfexamples')
async def retried(**_):
    say('handled: retried')
    raise kopf.TemporaryError('not yet', delay=1)

@kopf.on.event('kopfexamples')
async def event(**_):
    say('handled: seen')

@kopf.on.schedule(interval=1)
async def scheduled(**_):
    say('handled: scheduled')
"""


async def test_nothing_is_begun_after_a_suspension_until_the_peers_are_known(world, tmp_path):
    await world.join()
    tmp_path.joinpath('suspended.py').write_text(SUSPENDED)
    replica = await AsyncProcess.start(['kopf', 'run', '-n', 'default', '-p', '2', tmp_path / 'suspended.py'])

    lines = []

    async def read():
        async for line in replica.stdout:
            lines.append(line.decode())
            world.changed.set()

    async def until(text, start):
        await world.until(lambda: any(text in line for line in lines[start:]))
        return next(number for number, line in enumerate(lines) if number >= start and text in line)

    reading = asyncio.create_task(read())
    try:
        await world.create('a', field='1')
        for what in ['ticked', 'ticked in a thread', 'retried', 'scheduled']:
            await until(f'handled: {what}\n', 0)
        count = 0
        while len(lines) > count:  # stop it while nothing is being run
            count = len(lines)
            await asyncio.sleep(0.2)
        replica.send_signal(signal.SIGSTOP)
        try:
            stopped = time.monotonic()
            await world.put('boss')
            await world.aio.patch('kopfexamples', 'a', {'spec': {'field': '2'}})
            while time.monotonic() < stopped + 2.1:  # its lifetime is over, and all of its timers are overdue
                await asyncio.sleep(0.1)
            count = len(lines)
        finally:
            replica.send_signal(signal.SIGCONT)
        await until('Pausing operations in favour of', count)
        await world.aio.wait_for(
            'kopfpeerings',
            'default',
            lambda body: any(
                identity != 'boss' and record['lastseen'] > body['status']['boss']['lastseen']
                for identity, record in body['status'].items()
            ),
        )  # it was renewed since
        assert not [line for line in lines[count:] if 'handled' in line]
        count = len(lines)
        await world.remove('boss')
        await until('handled', count)
    finally:
        replica.kill()
        await reading
        await replica.communicate()


@in_virtual_time
@pytest.mark.parametrize('ending', ['before the pause', 'in the pause', 'after the pause'])
async def test_results_from_before_the_expiry_replace_nothing_that_other_operators_have_stored(
    world, monkeypatch, ending
):
    await world.join()
    async with world.operator('own', lifetime=20):
        await world.begin_to_create('a', 'own')
        await world.take_over('a')
        await world.expire(monkeypatch, ending)
        world.gate.set()
        await asyncio.sleep(1)
        world.sandbox.faults.clear()
        await world.create('b', field='1')
        await world.handled('b', field='1')
        await world.handled('a', field='2')
    assert [call for call in world.calls if call[1] != 'resume'] == [('own', 'create', 'a'), ('own', 'create', 'b')]


@in_virtual_time
@pytest.mark.parametrize('ending', ['before the pause', 'in the pause', 'after the pause'])
async def test_results_from_before_the_expiry_are_stored_if_no_other_operator_has_handled_the_object(
    world, monkeypatch, ending
):
    await world.join()
    async with world.operator('own', lifetime=20, following=True):
        await world.begin_to_create('a', 'own')
        await world.aio.patch('kopfexamples', 'a', {'metadata': {'labels': {'edited': 'yes'}}})
        await world.expire(monkeypatch, ending)
        world.gate.set()
        await asyncio.sleep(1)
        world.sandbox.faults.clear()
        await world.handled('a', field='1')
    assert [world.calls.count(('own', id, 'a')) for id in ('create', 'follow')] == [1, 1]


@in_virtual_time
async def test_a_patch_is_not_repeated_after_a_suspension(world, monkeypatch):
    await world.join()
    async with world.operator('own', lifetime=20):
        await world.begin_to_create('a', 'own')
        world.sandbox.faults.error(503, times=1, method='PATCH', resource='kopfexamples')
        world.gate.set()
        while not any(seen.status == 503 for seen in world.requests('kopfexamples')):
            await asyncio.sleep(0.01)
        await world.take_over('a')
        world.suspend(monkeypatch)
        await world.create('b', field='1')
        await world.handled('b', field='1')
        await asyncio.sleep(2)  # the next attempt would come after a second
        await world.handled('a', field='2')
    assert [call for call in world.calls if call[1] != 'resume'] == [('own', 'create', 'a'), ('own', 'create', 'b')]


@in_virtual_time
async def test_daemons_stop_for_the_pause(world):
    await world.join()
    async with world.operator('low'):
        await world.create('a', field='1', daemon='yes')
        await world.until(lambda: ('low', 'daemon starts', 'a') in world.calls)
        await world.handled('a', field='1')
        await world.put('boss')
        await world.until(lambda: ('low', 'daemon stops', 'a') in world.calls)
        await world.remove('boss')
        await world.until(lambda: world.calls.count(('low', 'daemon starts', 'a')) == 2)
    assert [call for call in world.calls if call[1] != 'create'] == [
        ('low', 'daemon starts', 'a'),
        ('low', 'daemon stops', 'a'),
    ] * 2
    assert world.calls.count(('low', 'create', 'a')) == 1


@in_virtual_time
async def test_schedules_wait_while_the_operator_is_paused(world):
    await world.join()
    async with world.operator('low', ticking=True), world.operator('alone', ticking=True, standalone=True):
        await world.until(lambda: world.calls.count(('low', 'tick')) >= 2)
        await world.put('boss')
        await world.until(lambda: any(text.startswith("Pausing") for text in world.says))
        begun = len(world.calls)
        await world.until(lambda: world.calls[begun:].count(('alone', 'tick')) >= 10)
        assert ('low', 'tick') not in world.calls[begun:]
        await world.remove('boss')
        await world.until(lambda: ('low', 'tick') in world.calls[begun:])


@in_virtual_time
@pytest.mark.parametrize('is_blocked', [True, False])
async def test_peers_wait_if_threads_of_handlers_outlive_the_operator(world, is_blocked):
    await world.join()
    if not is_blocked:
        world.unblocked.set()
    async with world.operator('own', exit_timeout=0.1):
        await world.create('a', field='1')
        await world.until(lambda: ('own', 'block', 'a') in world.calls)
        if not is_blocked:
            await world.handled('a')
    try:
        peering = await world.aio.get('kopfpeerings', 'default')
        lifetimes = {identity: record['lifetime'] for identity, record in (peering.get('status') or {}).items()}
        assert lifetimes == ({'own': 5} if is_blocked else {})  # the next operator begins when it has expired
    finally:
        world.unblocked.set()


async def test_schedules_do_not_begin_in_a_paused_operator(world):
    await world.join()
    await world.put('boss')
    async with world.operator('low', ticking=True), world.operator('alone', ticking=True, standalone=True):
        await world.until(lambda: world.calls.count(('alone', 'tick')) >= 10)
        assert ('low', 'tick') not in world.calls
        await world.remove('boss')
        await world.until(lambda: ('low', 'tick') in world.calls)


@in_virtual_time
async def test_mandatory_peering_is_waited_for(world):
    await world.create('a', field='1')
    async with world.operator('me', peering_name='mine'):
        await world.join('mine')
        await world.handled('a', field='1')
        await world.joined('me', name='mine')
        assert world.calls == [('me', 'create', 'a')]


async def test_mandatory_peering_before_its_kind(sandbox, world):
    for name in ['kopfpeerings.kopf.dev', 'clusterkopfpeerings.kopf.dev']:
        await world.aio.delete('customresourcedefinitions', name)
    async with world.operator('me', peering_name='default'):
        await world.create('a', field='1')
        await world.aio.apply(PEERINGS[0])
        await world.join()
        await world.joined('me')
        await world.handled('a', field='1')
    verbs = [(seen.resource, seen.verb) for seen in world.sandbox.requests if seen.user_agent.startswith('kopf/')]
    assert verbs.index(('kopfpeerings', 'patch')) < verbs.index(('kopfexamples', 'watch'))


@in_virtual_time
async def test_a_pause_goes_on_while_the_kind_of_peerings_is_created_anew(world, caplog):
    await world.join()
    await world.put('boss')
    async with world.operator('low', peering_name='default', observing=True):
        await world.paused()
        await world.create('a', field='1')
        await world.until_indexed('low', a='1')
        await world.aio.delete('customresourcedefinitions', 'kopfpeerings.kopf.dev')
        while "Apply the file peering.yaml of the framework" not in caplog.text:
            await asyncio.sleep(0.01)
        world.says.clear()
        world.sandbox.faults.delay(0.5, method='GET', resource='kopfpeerings', user_agent='kopf/')
        await world.aio.apply(PEERINGS[0])
        await world.aio.apply(
            {
                'apiVersion': 'kopf.dev/v1',
                'kind': 'KopfPeering',
                'metadata': {'name': 'default'},
                'status': {'boss': {'priority': 100, 'lifetime': 60, 'lastseen': '2099-01-01'}},
            }
        )
        await world.paused()
        assert not world.calls
        await world.remove('boss')
        await world.handled('a', field='1')


@in_virtual_time
async def test_nothing_is_watched_before_the_mandatory_peering_is_joined(world):
    await world.create('a', field='1')
    async with world.operator('low', peering_name='default', observing=True):
        await world.until(lambda: any('is not found; pausing until it is there' in text for text in world.says))
        await world.aio.apply(
            {
                'apiVersion': 'kopf.dev/v1',
                'kind': 'KopfPeering',
                'metadata': {'name': 'default'},
                'status': {'boss': {'priority': 100, 'lifetime': 60, 'lastseen': '2099-01-01'}},
            }
        )
        await world.until_indexed('low', a='1')
        await world.remove('boss')
        await world.handled('a', field='1')
    verbs = [(seen.resource, seen.verb) for seen in world.sandbox.requests if seen.user_agent.startswith('kopf/')]
    assert verbs.index(('kopfpeerings', 'patch')) < verbs.index(('kopfexamples', 'watch'))


@in_virtual_time
async def test_a_peering_that_appears_later_is_joined(world):
    async with world.operator('me'):
        await world.create('a', field='1')
        await world.handled('a', field='1')
        assert {seen.verb for seen in world.requests('kopfpeerings')} <= {'list', 'watch'}
        await world.join()
        await world.joined('me')


@in_virtual_time
async def test_a_standalone_operator_ignores_peers(world):
    await world.join()
    await world.put('boss')
    async with world.operator('me', standalone=True):
        await world.create('a', field='1')
        await world.handled('a', field='1')
    assert not world.requests('kopfpeerings')


@without_kinds
@in_virtual_time
async def test_nothing_is_requested_without_the_kinds(world):
    async with world.operator('me'):
        await world.create('a', field='1')
        await world.handled('a', field='1')
    assert not [seen for seen in world.sandbox.requests if 'peering' in seen.path]


@in_virtual_time
async def test_freezing_and_resuming_by_commands(world):
    from kopf._core.engines.peering import PeeringCommand

    await world.join()

    async def command(command):
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry)(kopf.login_with_kubeconfig)
        await kopf.operator(registry=registry, namespaces=['default'], peering_name='default', _command=command)

    async with world.operator('me'):
        await world.joined('me')
        await command(PeeringCommand('human', priority=100, lifetime=60))
        await world.paused()
        await world.create('a', field='1')
        assert not world.calls
        await command(PeeringCommand('human'))
        await world.joined('me')
        await world.handled('a', field='1')


@pytest.mark.parametrize('when', ['before', 'after'])
@in_virtual_time
async def test_a_deletion_that_waits_for_daemons_is_not_handled_twice_because_of_a_pause(world, when):
    """The success of the deletion is only remembered at first, as the daemons usually end soon."""
    await world.join()
    async with world.operator('low', lingering=True):
        await world.create('a', field='1', daemon='yes')
        await world.until(lambda: ('low', 'daemon starts', 'a') in world.calls)
        await world.handled('a', field='1')
        if when == 'before':
            world.gate.clear()
        await world.aio.delete('kopfexamples', 'a')
        await world.until(lambda: ('low', 'delete', 'a') in world.calls)
        await world.put('boss')
        await world.paused()
        world.gate.set()
        await world.aio.wait_for('kopfpeerings', 'default', lambda body: True)
        await world.remove('boss')
        await world.until(lambda: any(text.startswith('Resuming') for text in world.says))
        world.lingering.set()
        await world.aio.wait_gone('kopfexamples', 'a')
    assert world.calls.count(('low', 'delete', 'a')) == 1


@pytest.mark.parametrize("seed", [0, 16, 22])
@in_virtual_time
async def test_pauses_at_any_time_let_nothing_be_handled_twice_or_never(world, seed):
    chance = random.Random(seed)
    await world.join()
    names = [f'obj{number}' for number in range(6)]
    async with world.operator('low', lingering=True):
        world.lingering.set()
        for name in names:
            await world.create(name, field='1', **({'daemon': 'yes'} if chance.random() < 0.5 else {}))
        for name in names:
            await world.handled(name, field='1')
        world.sandbox.faults.delay(0.05, method='PATCH', resource='kopfexamples', times=None)  # pauses come in between
        for step in range(30):
            name = chance.choice(names)
            kind = chance.choice(['pause', 'resume', 'wait', 'edit', 'delete', 'linger', 'end'])
            match kind:
                case 'pause':
                    await world.put('boss')
                case 'resume':
                    await world.remove('boss')
                case 'wait':
                    await asyncio.sleep(chance.random() * 0.1)
                case 'edit':
                    with contextlib.suppress(Refusal):
                        await world.aio.patch('kopfexamples', name, {'spec': {'field': f'{step}'}})
                case 'delete':
                    with contextlib.suppress(Refusal):
                        await world.aio.delete('kopfexamples', name)
                case 'linger':
                    world.lingering.clear()
                case 'end':
                    world.lingering.set()
        world.lingering.set()
        await world.remove('boss')
        for name in names:
            with contextlib.suppress(Refusal):
                await world.aio.delete('kopfexamples', name)
        for name in names:
            await world.aio.wait_gone('kopfexamples', name)
    handled = [call for call in world.calls if call[1] in ('create', 'update', 'delete')]
    assert sorted(handled) == sorted(set(handled))
    assert {call[2] for call in handled if call[1] == 'delete'} == set(names)
