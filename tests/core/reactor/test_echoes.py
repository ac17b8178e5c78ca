"""Events from before the operator's last patch, and the echo of it."""

import asyncio
import time
import types

import pytest
from operatorworld import Gate

import kopf
from kopf._cogs.structs.references import Resource
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.registries import HandlerTable
from kopf._core.reactor.echoes import Expectation, Verdict
from kopf._core.reactor.indexing_gate import IndexingGate
from kopf._core.reactor.informer import IndexingState
from kopf._core.reactor.object_records import ObjectRecord
from kopf._core.reactor.processing import Processor
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

    async def patch(self, path, obj, content_type, *, logger=None):
        return self.change(**obj)['object']


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


def state(version):
    return {'metadata': {'name': 'obj', 'resourceVersion': version} if version else {'name': 'obj'}}


@pytest.mark.parametrize(
    'expected, version, verdict',
    [
        ('10', '10', Verdict.ECHO),
        ('10', '9', Verdict.OLDER),
        ('10', '11', Verdict.NEWER),
        ('v10', 'v10', Verdict.ECHO),
        ('v10', 'v11', Verdict.UNSURE),
        ('10', 'v11', Verdict.UNSURE),
        ('10', None, Verdict.UNSURE),
    ],
)
def test_only_numeric_versions_tell_older_events_from_newer_ones(expected, version, verdict):
    expectation = Expectation.after_patch(state(expected), None, timeout=60)
    assert expectation.compare({'type': 'MODIFIED', 'object': state(version)}) is verdict


def test_lower_versions_are_doubted_only_after_a_list_requested_after_the_patch():
    started_at = time.monotonic()
    expectation = Expectation.after_patch(state('10'), None, timeout=60)
    event = {'type': 'MODIFIED', 'object': state('9')}
    assert expectation.after_list(since=started_at - 1).compare(event) is Verdict.OLDER
    assert expectation.after_list(since=time.monotonic() + 1).compare(event) is Verdict.UNSURE
    assert expectation.after_list(since=time.monotonic() + 61) is None


def test_nothing_is_expected_without_a_version_or_a_timeout():
    assert Expectation.after_patch(state(None), None, timeout=60) is None
    assert Expectation.after_patch(state('10'), None, timeout=0) is None
    assert Expectation.of_deletion(timeout=0) is None


def test_an_event_that_is_held_back_outlives_another_patch():
    event = {'type': 'MODIFIED', 'object': state('v9')}
    expectation = Expectation.after_patch(state('v10'), None, timeout=60)
    expectation.hold_back(event)
    assert Expectation.after_patch(state('v11'), expectation, timeout=60).unsure is event


@pytest.mark.parametrize('times', [1, 2])
@pytest.mark.parametrize('version, verdict', [('9', Verdict.OLDER), ('10', Verdict.NEWER)])
def test_an_object_that_left_the_selectors_before_the_patch_can_come_back_with_its_echo(version, verdict, times):
    rest = expectation = Expectation.after_patch(state('10'), None, timeout=60)
    for number in range(times):
        rest = rest.after_deletion({'type': 'DELETED', 'object': state(str(5 + number))}, timeout=60)
    assert rest.compare({'type': 'ADDED', 'object': state(version)}) is verdict
    assert expectation.after_deletion({'type': 'DELETED', 'object': state('11')}, timeout=60) is None
