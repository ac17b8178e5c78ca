"""The limit of workers: of each kind and each watched namespace, and not of the operator."""

import asyncio

import pytest
from operatorworld import in_virtual_time

import kopf
from kopf._cogs.structs.references import Resource
from kopf._core.reactor.indexing_gate import IndexingGate
from kopf._core.reactor.object_records import ObjectRecord
from kopf._core.reactor.workers import WorkerPool

KEXES, THINGS = Resource('kopf.dev', 'v1', 'kopfexamples'), Resource('kopf.dev', 'v1', 'things')


class Processor:
    """Works on each of its objects until the test lets that end."""

    requesting = False
    arguments = meter = None
    is_observer = False

    def __init__(self, workers, resource=KEXES):
        self.workers, self.resource = workers, resource
        self.working, self.ended = {}, []

    def come(self, name, namespace='ns', *, urgent=True):
        record = ObjectRecord(f'{namespace}/{name}', namespace, name, initial=not urgent)
        record.pending = {'type': None, 'object': {}}
        self.workers.start(self, record, urgent=urgent)
        return record

    def is_due(self, record):
        return record.has_work

    async def work(self, record):
        record.take_pending()
        self.working[record.name] = asyncio.Event()
        await self.working[record.name].wait()
        del self.working[record.name]
        self.ended.append(record.name)

    async def end(self, name):
        self.working[name].set()
        await asyncio.sleep(0.01)


@pytest.fixture
def settings():
    settings = kopf.OperatorSettings()
    settings.queueing.worker_limit = 1
    return settings


@pytest.mark.looptime
@pytest.mark.parametrize('clusterwide, expected', [(True, ['a']), (False, ['a', 'b'])])
async def test_each_watched_namespace_has_its_slots(settings, clusterwide, expected):
    processor = Processor(WorkerPool(settings, IndexingGate(), clusterwide=clusterwide))
    for namespace in ('a', 'b'):
        processor.come(namespace, namespace)
        processor.come(f'{namespace}2', namespace)
    await asyncio.sleep(0.01)
    assert [*processor.working] == expected
    await processor.end('a')
    assert len(processor.working) == len(expected) and 'a' not in processor.working


@pytest.mark.looptime
async def test_objects_get_the_slots_in_their_turn(settings):
    workers = WorkerPool(settings, IndexingGate())
    processor, other = Processor(workers), Processor(workers, THINGS)
    records = [processor.come(name, urgent=False) for name in 'abcd']
    workers.start(processor, records[3], urgent=True)  # it has changed meanwhile
    other.come('x')
    await asyncio.sleep(0.01)
    assert [*processor.working] == ['a'] and [*other.working] == ['x']
    assert workers.must_yield(records[0]) and not workers.must_yield(records[1])
    for name in 'adbc':
        await processor.end(name)
    assert processor.ended == [*'adbc']


@pytest.mark.looptime
@pytest.mark.parametrize('limit, expected', [(3, 'abc'), (None, 'abcd')])
async def test_the_limit_can_be_changed_at_any_time(settings, limit, expected):
    processor = Processor(WorkerPool(settings, IndexingGate()))
    for name in ('first', *'abcd'):
        processor.come(name)
    settings.queueing.worker_limit = limit
    await asyncio.sleep(0.01)
    await processor.end('first')
    assert [*processor.working] == [*expected]


@pytest.mark.looptime
async def test_waiting_objects_can_be_released(settings):
    workers = WorkerPool(settings, IndexingGate())
    processor = Processor(workers)
    processor.come('first')
    records = [processor.come(name) for name in 'ab']
    await asyncio.sleep(0.01)
    await workers.release(records[:1])
    assert not records[0].has_worker
    await processor.end('first')
    assert [*processor.working] == ['b']


@pytest.mark.looptime
async def test_others_get_the_slot_that_a_released_object_does_not_take(settings):
    workers, overdue = WorkerPool(settings, IndexingGate()), []
    workers.set_overdue_check(lambda: bool(overdue))
    processor = Processor(workers)
    processor.come('first')
    records = [processor.come(name) for name in 'ab']
    await asyncio.sleep(0.01)
    overdue.append(True)
    processor.working['first'].set()
    for _ in range(5):
        await asyncio.sleep(0)
    overdue.clear()
    await workers.release(records[:1])
    await asyncio.sleep(0.01)
    assert [*processor.working] == ['b']


@in_virtual_time
async def test_handlers_of_one_kind_can_wait_for_those_of_another_one(world):
    world.settings.queueing.worker_limit = 1
    done = asyncio.Event()

    async def wait(**_):
        await done.wait()

    async def let_go(**_):
        done.set()

    world.declare(kopf.on.create, 'waiting', does=wait)
    world.declare(kopf.on.create, 'other', resource='configmaps', does=let_go)
    async with world.operator():
        await world.create()
        await world.until_called('waiting')
        await world.aio.create({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'x'}})
        await world.handled()
