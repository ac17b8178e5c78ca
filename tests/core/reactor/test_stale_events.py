"""The filter of events from before the operator's last patch, and of the echo of it."""

import asyncio
import collections
import datetime
import functools
import time
import types

import pytest
from operatorworld import LAST_HANDLED, Gate, in_virtual_time

import kopf
from kopf._cogs.clients.connections import Connection
from kopf._cogs.structs.references import Resource
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.registries import HandlerTable
from kopf._core.reactor.echoes import Expectation
from kopf._core.reactor.indexing_gate import IndexingGate
from kopf._core.reactor.informer import IndexingState
from kopf._core.reactor.object_records import ObjectRecord
from kopf._core.reactor.processing import Processor
from kopf._core.reactor.stale_events import StaleEventFilter
from kopf._core.reactor.workers import WorkerPool


async def test_late_events_from_before_a_patch_are_not_handled(world):
    gate = Gate()
    world.declare(kopf.on.create, 'create', does=gate)
    world.declare(kopf.on.update, 'update')
    async with world.operator():
        await world.create(spec={'field': 'v1'})
        await world.until_called('create')
        world.sandbox.faults.freeze_watches(resource='kopfexamples')
        await world.edit(field='v2')  # before our patch
        gate.open()
        await world.handled(field='v2')  # known from the answer to the patch
        await world.edit(field='v3')  # after it
        world.sandbox.faults.clear()
        await world.handled(field='v3')
    assert world.ids == ['create', 'update', 'update']


@pytest.fixture
def lagging(monkeypatch):
    """Let each line of a watch come some seconds after the one before."""
    lag, read = types.SimpleNamespace(seconds=1.0), Connection.read
    waiting = collections.defaultdict(collections.deque)

    async def read_one_line(connection):
        lines = waiting[connection]
        lines.extend(() if lines else (await read(connection)).splitlines(keepends=True))
        await asyncio.sleep(lag.seconds)
        return lines.popleft() if lines else b''

    monkeypatch.setattr(Connection, 'read', read_one_line)
    return lag


@pytest.mark.parametrize('status', [422, 403, 500])
@in_virtual_time
async def test_no_handlers_run_for_the_stale_event_of_a_patch_that_has_failed(world, lagging, status):
    async def see(body, patch, **_):
        if world.called('create') and LAST_HANDLED not in body.metadata.annotations:
            patch.status['seen'] = 'before the end of the creation'

    world.declare(kopf.on.event, 'see', does=see)
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.delete, 'delete')
    world.sandbox.faults.error(status, method='PATCH', condition=lambda request: b'"seen"' in request.body)
    async with world.operator():
        await world.create()
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: 'seen' in (body.get('status') or {}))
        await world.settled()
    assert len(world.called('create', 'obj')) == 1


@in_virtual_time
async def test_what_is_requested_for_stale_events_is_kept_while_the_newest_state_cannot_be_requested(world, lagging):
    async def see(patch, **_):
        number = len(world.called('see', 'obj'))
        if number in (2, 3):
            patch.status[f'seen{number}'] = 'x'

    world.settings.queueing.error_delays = [0.5]
    world.declare(kopf.on.event, 'see', does=see)
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.delete, 'delete')
    world.sandbox.faults.error(500, method='PATCH', condition=lambda request: b'"seen' in request.body)
    world.sandbox.faults.error(500, method='GET', path='/kopfexamples/obj', times=2)
    async with world.operator():
        await world.create()
        await world.aio.wait_for(
            'kopfexamples', 'obj', lambda body: (body.get('status') or {}).keys() >= {'seen2', 'seen3'}
        )


@in_virtual_time
async def test_no_handlers_run_for_the_stale_event_of_a_patch_that_is_held_back(world, lagging):
    """The handler of raw events triggers itself: it writes something new for each event, also for a late one."""

    async def create(spec, **_):
        for number in range(30):
            kopf.subhandler(id=str(number))(functools.partial(run, number))

    async def run(number, **_):
        world.note(number, 'obj')

    async def see(patch, **_):
        patch.status['seen'] = len(world.calls)

    lagging.seconds = 0.05
    world.declare(kopf.on.event, 'see', does=see)
    world.declare(kopf.on.create, 'create', does=create)
    world.declare(kopf.on.delete, 'delete')
    async with world.operator():
        await world.create()
        await asyncio.sleep(100)
    assert [number for number in world.ids if isinstance(number, int)] == [*range(30)]


@in_virtual_time
async def test_events_from_before_a_deletion_are_not_handled_after_the_end_of_its_timers(world):
    world.settings.persistence.consistency_timeout = 1
    creating, seeing = Gate(), Gate()
    world.declare(kopf.on.create, 'create', does=creating)
    world.declare(kopf.on.event, 'see', does=[None, seeing])
    world.declare(kopf.timer, 'tick', interval=1)
    async with world.operator():
        await world.create()
        await world.until_called('create')
        await world.edit(metadata={'annotations': {'kubectl.kubernetes.io/last-applied-configuration': '{}'}})
        await asyncio.sleep(1)
        world.sandbox.faults.freeze_watches(resource='kopfexamples')
        await world.delete()
        await world.edit(metadata={'finalizers': None})
        creating.open()
        await world.until_called('see', times=2)  # now, the API server has said that the object is missing
        await asyncio.sleep(2)
        world.sandbox.faults.clear()
        await asyncio.sleep(1)
        seeing.open()
        await asyncio.sleep(10)
    assert len(world.called('create')) == 1


@in_virtual_time
async def test_an_event_that_was_held_back_is_not_handled_after_the_deletion(world):
    world.settings.persistence.consistency_timeout = 1
    creating = Gate()
    world.declare(kopf.on.create, 'create', does=creating)
    world.declare(kopf.on.event, 'see', does=[None, None, lambda **_: asyncio.sleep(3)])
    world.declare(kopf.on.reconcile, 'level', interval=1)
    await world.create()
    async with world.operator():
        await world.until_called('create')
        world.sandbox.faults.error(404, verb='patch', resource='kopfexamples')  # as if it was deleted already
        creating.open()
        await asyncio.sleep(0.1)
        await world.edit(field='edited')
        await world.until_called('see', times=2)
        await world.delete()
        await asyncio.sleep(10)
    assert [kwargs['type'] for kwargs in world.called('see')] == [None, 'MODIFIED', 'DELETED']
    assert world.ids[-1] == 'see'  # level-triggered handlers do not run either


async def pause_for_a_moment(world):
    """Let a peer take over, and leave again at once, without having done anything."""
    boss = {'priority': 100, 'lastseen': datetime.datetime.now(datetime.UTC).isoformat(), 'lifetime': 60}
    await world.aio.patch('clusterkopfpeerings', 'default', {'status': {'boss': boss}})
    await world.until_logged("Pausing operations")
    await world.aio.patch('clusterkopfpeerings', 'default', {'status': {'boss': None}})
    await world.until_logged("Resuming operations")


@pytest.mark.parametrize('kind', [kopf.index, kopf.on.event])
@in_virtual_time
async def test_events_from_before_a_patch_are_not_handled_after_a_pause(world, kind):
    await world.aio.apply((world.root / 'peering.yaml').read_text())
    await world.aio.create({'apiVersion': 'kopf.dev/v1', 'kind': 'ClusterKopfPeering', 'metadata': {'name': 'default'}})
    creating, seeing = Gate(), Gate()
    world.declare(kopf.on.create, 'create', does=creating)
    world.declare(kind, 'see', does=[None, seeing, lambda **_: asyncio.sleep(1)])
    async with world.operator(standalone=False, clusterwide=True, peering_name='default'):
        await world.create()
        await world.until_called('create')
        await world.edit(metadata={'annotations': {'kubectl.kubernetes.io/last-applied-configuration': '{}'}})
        if kind is kopf.index:  # the handlers of raw events are called by the same worker as that of the creation
            await world.until_called('see', times=2)
        creating.open()
        await world.handled()
        await world.until_called('see', times=2)
        await pause_for_a_moment(world)
        await asyncio.sleep(1)
        seeing.open()
        await asyncio.sleep(10)
    assert len(world.called('create')) == 1


class OpaqueApi:
    """An API with one object, whose versions tell nothing of their order."""

    def __init__(self):
        self.number = 0
        self.version = 'v{}'
        self.raw = {'metadata': {'name': 'obj', 'uid': 'uid', 'resourceVersion': 'v0'}, 'spec': {'field': 'v1'}}

    def change(self, **changes):
        self.number += 1
        version = self.version.format(self.number)
        metadata = {**self.raw['metadata'], **changes.pop('metadata', {}), 'resourceVersion': version}
        self.raw = {**self.raw, **changes, 'metadata': metadata}
        return {'type': 'MODIFIED', 'object': self.raw}

    is_fenced = False

    async def patch(self, path, obj, content_type, *, logger=None, guard=None):
        return self.change(**obj)['object']


@pytest.fixture
async def seeing(world):
    """Return the gate that the second call of a handler of raw events waits for; to be declared before `opaque`."""
    gate = Gate()
    world.declare(kopf.on.event, 'see', does=[None, gate])
    return gate


@pytest.fixture
async def opaque(world):
    registry = world.registry
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.update, 'update')
    api, settings = OpaqueApi(), kopf.OperatorSettings()
    settings.persistence.consistency_timeout = 0.2
    table = HandlerTable.build(registry, Resource('kopf.dev', 'v1', 'kopfexamples'), set(registry.iter_selectors()))
    workers = WorkerPool(settings, IndexingGate())
    processor = Processor(
        OperatorContext(settings=settings, lifecycle=kopf.lifecycles.asap, memo=kopf.Memo()),
        client=api,
        table=table,
        workers=workers,
    )
    record = ObjectRecord('uid', None, 'obj', initial=False)

    async def rest():
        await asyncio.sleep(0)
        while record.has_worker:
            await asyncio.sleep(0)

    yield types.SimpleNamespace(
        api=api,
        record=record,
        rest=rest,
        settings=settings,
        processor=processor,
        receive=lambda event, since=None: processor.receive(record, event, listed_since=since),
    )
    await workers.close()


async def test_with_opaque_versions_events_before_the_echo_are_dropped(world, opaque):
    stale = {'type': 'ADDED', 'object': opaque.api.raw}
    opaque.receive(stale)
    await opaque.rest()
    opaque.receive(stale)  # from before our patch, as far as we can know
    opaque.receive({'type': 'MODIFIED', 'object': opaque.api.raw})  # its echo
    opaque.receive(opaque.api.change(spec={'field': 'v2'}))
    await opaque.rest()
    assert world.ids == ['create', 'update']
    await asyncio.sleep(0.3)
    assert world.ids == ['create', 'update']


@pytest.mark.parametrize('reset', ['resumed', 'dropped', 'surrendered'])
async def test_events_from_before_a_patch_stay_stale_for_a_worker_that_has_them(world, seeing, opaque, reset):
    opaque.api.version, opaque.api.raw['metadata']['resourceVersion'] = '{}', '0'
    stale = {'type': 'ADDED', 'object': opaque.api.raw}
    opaque.receive(stale)
    await opaque.rest()
    opaque.receive(stale)
    await world.until_called('see', times=2)
    watch = types.SimpleNamespace(records={'uid': opaque.record}, get_known=lambda: [opaque.record])
    getattr(opaque.processor, reset)([opaque.record] if reset == 'surrendered' else watch)
    seeing.open()
    await opaque.rest()
    assert world.ids == ['see', 'create', 'see']


async def test_events_from_before_a_patch_stay_stale_if_a_later_list_comes_meanwhile(world, seeing, opaque):
    opaque.api.version, opaque.api.raw['metadata']['resourceVersion'] = '{}', '0'
    stale = {'type': 'ADDED', 'object': opaque.api.raw}
    opaque.receive(stale)
    await opaque.rest()
    opaque.receive(stale)
    await world.until_called('see', times=2)
    opaque.receive({'type': None, 'object': opaque.api.raw}, time.monotonic() + 1)  # after the consistency timeout
    seeing.open()
    await opaque.rest()
    assert world.ids == ['see', 'create', 'see', 'see']


async def test_with_opaque_versions_and_no_echo_events_are_handled_after_the_timeout(world, opaque):
    opaque.receive({'type': 'ADDED', 'object': opaque.api.raw})
    await opaque.rest()
    opaque.receive(opaque.api.change(spec={'field': 'v2'}))
    opaque.receive(opaque.api.change(spec={'field': 'v3'}))
    await opaque.rest()
    assert world.ids == ['create']
    await world.until_called('update')
    assert world.called('update')[0]['new']['spec'] == {'field': 'v3'}


async def test_lower_versions_of_a_later_list_are_handled_after_the_timeout(world, opaque):
    """As when the API is restored from a backup: then, all newer versions are lower than that of our last patch."""
    opaque.api.version, opaque.api.number = '{}', 100
    opaque.settings.persistence.consistency_timeout = 0.01
    opaque.receive(opaque.api.change())
    await opaque.rest()
    await asyncio.sleep(0.02)
    opaque.api.number = 50
    opaque.receive({**opaque.api.change(spec={'field': 'v2'}), 'type': None}, time.monotonic())
    await opaque.rest()
    assert world.ids == ['create', 'update']


@pytest.fixture
async def late(opaque):
    """Let the operator patch the object; return what the stream brings late: it has left and is back before that."""
    opaque.api.version, opaque.api.number = '{}', 100
    opaque.settings.persistence.consistency_timeout = 0.01
    # All before the patch, which comes at once where Python has eager tasks.
    creation, departure, *others = [opaque.api.change() for _ in range(4)]
    opaque.receive(creation)
    await opaque.rest()
    assert opaque.record.expected is not None
    return [{**departure, 'type': 'DELETED'}, *others]


async def test_an_object_that_left_before_the_patch_can_come_back_long_after_it(world, opaque, late):
    await asyncio.sleep(0.02)
    opaque.settings.persistence.consistency_timeout = 60  # from the departure on
    for event in late:
        opaque.receive(event)
        await opaque.rest()
        await asyncio.sleep(0.001)
    assert world.ids == ['create']


@pytest.mark.parametrize('at_once', [True, False])
async def test_an_object_that_is_back_is_not_handled_in_older_states_after_the_timeout(world, opaque, late, at_once):
    opaque.settings.persistence.consistency_timeout = 0.1
    for event in late[:2]:
        opaque.receive(event)
        if not at_once:
            await opaque.rest()
    await opaque.rest()
    await asyncio.sleep(0.2)
    opaque.receive(late[2])
    await opaque.rest()
    assert world.ids == ['create']


async def test_an_object_that_is_indexed_when_it_is_back_is_not_handled_in_older_states(world, opaque, late):
    opaque.receive(late[0])
    await opaque.rest()
    opaque.record.begin_indexing(IndexingState())  # by the sink in front of the processor
    await asyncio.sleep(0.02)
    opaque.receive(late[1])
    opaque.record.end_indexing()
    await opaque.rest()
    assert world.ids == ['create']


class LaggingWatch:
    """A watch whose stream has come to a version."""

    def __init__(self):
        self.position = 0

    def has_reached(self, version):
        return int(version) <= self.position


@pytest.mark.parametrize('listed', [True, False])
async def test_an_object_that_comes_back_long_after_it_has_left_is_not_handled_in_older_states(
    world, opaque, late, listed
):
    opaque.processor.attach_watch(watch := LaggingWatch())
    departure, since = late[0], None
    if listed:  # by a list that was requested before the patch
        departure = {'type': 'DELETED', 'object': {'metadata': {'name': 'obj', 'uid': 'uid'}}}
        since = opaque.record.expected._made_at - 0.001
        opaque.record.expected._deadline = since + 60
    opaque.receive(departure, since)
    await opaque.rest()
    await asyncio.sleep(0.1)  # ten times the timeout
    opaque.receive(late[1])
    await opaque.rest()
    assert world.ids == ['create']
    opaque.receive({**late[2], 'type': 'DELETED'})
    await opaque.rest()
    await asyncio.sleep(0.05)
    assert opaque.record.in_use
    watch.position = 1000
    await asyncio.sleep(0.05)
    assert not opaque.record.in_use


async def test_an_object_that_has_not_come_back_is_forgotten_after_the_timeout(opaque, late):
    opaque.settings.persistence.consistency_timeout = 0.01
    for event in late[:2]:
        opaque.receive(event)
    opaque.receive({**late[2], 'type': 'DELETED'})
    assert opaque.record.in_use
    await opaque.rest()
    await asyncio.sleep(0.02)
    assert not opaque.record.in_use


class Filters:
    """Filters of one chain of processors, as the objects are handed over from one to the next."""

    def __init__(self, timeout=60):
        self.settings = kopf.OperatorSettings()
        self.settings.persistence.consistency_timeout = timeout
        self.record = ObjectRecord('uid', None, 'obj', initial=False)
        self.received = []
        self.first, self.second = self.make('first'), self.make('second')

    def make(self, name):
        def receive(record, event, *, listed_since):
            self.received.append((name, event['object']['metadata']['resourceVersion']))

        return StaleEventFilter(self.settings, receive)

    def expect(self, version):
        raw = {'metadata': {'resourceVersion': version}}
        self.record.expect(Expectation.after_patch(raw, self.record.expected, timeout=self.timeout))

    @property
    def timeout(self):
        return self.settings.persistence.consistency_timeout

    def drop(self, version, *, by=None):
        return (by or self.first).drop_stale(self.record, make_event(version))


def make_event(version, type='MODIFIED'):
    return {'type': type, 'object': {'metadata': {'name': 'obj', 'uid': 'uid', 'resourceVersion': version}}}


async def test_older_states_and_the_echo_are_dropped_and_newer_states_are_not():
    filters = Filters()
    assert not filters.drop('1')  # nothing is expected
    filters.expect('10')
    assert [filters.drop(version) for version in ('9', '10', '9', '11')] == [True, True, True, False]
    assert filters.record.expected is None


async def test_an_echo_is_handled_by_the_successor_because_it_can_have_other_handlers():
    filters = Filters()
    filters.expect('10')
    filters.second.inherit(filters.record)
    filters.first.retire(filters.second)
    assert filters.drop('9', by=filters.second)
    assert not filters.drop('10', by=filters.second)
    filters.expect('12')  # a patch of the successor itself
    assert filters.drop('12', by=filters.second)


@in_virtual_time
async def test_an_event_that_was_held_back_goes_to_the_last_successor(world):
    filters = Filters(timeout=5)
    filters.expect('v10')
    assert filters.drop('v9')
    filters.first.retire(filters.second)
    filters.first.release()
    filters.second.retire(filters.make('third'))
    await asyncio.sleep(4)
    assert filters.received == []
    await asyncio.sleep(2)
    assert filters.received == [('third', 'v9')]


@in_virtual_time
async def test_an_event_that_was_held_back_waits_for_the_echo_of_a_later_patch_too(world):
    filters = Filters(timeout=5)
    filters.expect('v10')
    assert filters.drop('v9')
    await asyncio.sleep(3)
    filters.expect('v11')
    await asyncio.sleep(3)
    assert filters.received == []
    await asyncio.sleep(3)
    assert filters.received == [('first', 'v9')]


@in_virtual_time
async def test_an_event_that_was_held_back_is_not_received_after_the_end_of_its_processor(world):
    filters = Filters(timeout=5)
    filters.expect('v10')
    assert filters.drop('v9')
    filters.first.release()
    await asyncio.sleep(6)
    assert filters.received == []


async def test_the_echo_of_a_deleted_object_is_dropped_by_successors_too():
    filters = Filters()
    filters.second.inherit(filters.record)
    filters.first.retire(filters.second)
    filters.first.forget(filters.record, make_event('11', 'DELETED'))
    filters.expect('12')
    assert filters.drop('12', by=filters.second)


@pytest.mark.parametrize('how', ['reset', 'disown'])
async def test_echoes_are_dropped_after_a_pause_or_when_another_operator_had_the_object(how):
    filters = Filters()
    filters.first.inherit(filters.record)
    if how == 'reset':
        filters.first.reset()
    else:
        filters.first.disown([filters.record])
    filters.expect('12')
    assert filters.drop('12')
