"""Workers: how many at a time, which objects go first, and which wait until requests can be made."""

import asyncio
import contextlib
import contextvars

import pytest
from operatorworld import in_virtual_time

import kopf
from kopf._cogs.clients import errors, pacing
from kopf._core.reactor import workers
from kopf._core.reactor.indexing_gate import IndexingGate
from kopf._core.reactor.object_records import ObjectRecord
from kopf._core.reactor.workers import WorkerPool


async def until_watched(world, resources):
    while not resources <= {
        seen.resource for seen in world.sandbox.requests if seen.verb == 'watch' and seen.status == 200
    }:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize('limit', [1, 2])
@in_virtual_time
async def test_as_many_at_once_as_allowed(world, limit):
    running, most = 0, 0

    async def work(**_):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    world.settings.queueing.worker_limit = limit
    world.declare(kopf.on.create, 'create', does=work)
    async with world.operator():
        for number in range(6):
            await world.create(f'obj{number}')
        for number in range(6):
            await world.handled(f'obj{number}')
    assert most == limit


@in_virtual_time
async def test_sleeping_objects_take_no_places(world):
    async def work(name, **_):
        if name != 'third':
            raise kopf.TemporaryError('boo', delay=999)

    world.settings.queueing.worker_limit = 2
    world.declare(kopf.on.create, 'create', does=work)
    async with world.operator():
        await world.create('first')
        await world.create('second')
        await world.until_called('create', 2)
        await world.create('third')
        await world.handled('third')


# Objects of the initial list, and live changes.


@pytest.fixture
def crowd(world):
    """Create objects that are there before the operator."""
    names = [f'old{number}' for number in range(10)]
    for name in names:
        world.sandbox.create('kex', name, spec={'field': 'value'})
    return names


@pytest.mark.parametrize('streaming', [True, False], ids=['streamed', 'chunked'])
@in_virtual_time
async def test_live_changes_go_before_the_initial_list(world, crowd, streaming):
    first = asyncio.Event()

    async def work(**_):
        if not first.is_set():
            await first.wait()

    world.settings.queueing.worker_limit = 1
    world.settings.watching.streaming_lists = streaming
    world.declare(kopf.on.create, 'create', does=work)
    world.declare(kopf.on.event, 'seen', resource='configmaps')
    async with world.operator():
        await world.until_called('create')
        await until_watched(world, {'kopfexamples', 'configmaps'})  # the streams know no order among each other
        await world.create('new')
        await world.edit(crowd[-1], field='v2')
        await world.aio.create({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'last'}})
        await asyncio.sleep(0.3)  # all of that comes to the operator
        assert [call.id for call in world.calls] == ['create', 'seen']  # the other kind has a slot of its own
        first.set()
        for name in [*crowd, 'new']:
            await world.handled(name)
    names = [call.name for call in world.calls]
    assert set(names[1:4]) == {'new', crowd[-1], 'last'}
    assert sorted(names) == sorted([*crowd, 'new', 'last'])  # each once


@in_virtual_time
async def test_the_initial_list_is_not_stuck_behind_live_changes(world, crowd):
    world.settings.queueing.worker_limit = 1
    world.declare(kopf.on.create, 'create')

    async def work(name, patch, spec, **_):  # again and again, as if it was changed by others all the time
        patch.spec['field'] = spec['field'] + 1

    world.declare(kopf.on.event, 'busy', does=work, when=lambda name, **_: name.startswith('busy'))
    async with world.operator():
        for number in range(3):
            await world.create(f'busy{number}', spec={'field': 0})
        for name in crowd:
            await world.handled(name)
        before = len(world.called('busy'))
        await world.until_called('busy', before + 10)


async def test_ends_that_are_cut_short_leave_no_tasks_but_those_of_handlers():
    class Processor:
        meter = None

        async def work(self, record):
            await asyncio.sleep(999)

    workers = WorkerPool(kopf.OperatorSettings(), IndexingGate())
    for name in 'ab':
        workers.start(Processor(), ObjectRecord(name, None, name, initial=False))
        await asyncio.sleep(0)
    tasks = asyncio.all_tasks()
    closing = asyncio.create_task(workers.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert len(left) == 2 and left < tasks
    for task in left:
        task.cancel()
    await asyncio.wait(left)


# Objects of the initial list get no workers while enough of them wait for the API.


@pytest.fixture
def few(monkeypatch):
    """One request at a time, and two that wait for it, are enough."""
    monkeypatch.setattr(workers, 'MAX_WAITING', 2)
    monkeypatch.setattr(workers, 'MAX_AT_ONCE', 2)


MOST = 1 + 2 + 2 * 2  # only in the next iteration of the loop, workers are known to wait for the API


def patched(world):
    """Return the objects in the order in which the operator has patched them."""
    return [seen.name for seen in world.sandbox.requests if seen.verb == 'patch' and b'kopf' in seen.body]


@pytest.mark.parametrize('streaming', [True, False], ids=['streamed', 'chunked'])
@in_virtual_time
async def test_live_changes_are_not_held_back_by_workers_that_wait_for_the_api(world, crowd, few, streaming):
    world.settings.networking.max_connections = 1
    world.settings.watching.streaming_lists = streaming
    world.sandbox.faults.delay(0.4, verb='patch', name=crowd[0])
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        await until_watched(world, {'kopfexamples'})
        await world.create('new')
        await world.edit(crowd[-1], field='v2')
        await world.until_called('create', name=crowd[-1])
        begun = [call.name for call in world.calls]
        assert begun == [*crowd[: len(begun) - 2], 'new', crowd[-1]] and len(begun) <= MOST + 2
        assert patched(world) == [crowd[0]]  # it is not answered yet
        await world.handled(crowd[-1], field='v2')
        for name in [*crowd, 'new']:
            await world.handled(name)
    assert patched(world)[:3] == [crowd[0], 'new', crowd[-1]]
    assert sorted(call.name for call in world.calls) == sorted([*crowd, 'new'])  # each once


@in_virtual_time
async def test_workers_that_make_no_requests_hold_no_others_back(world, crowd, few):
    over = asyncio.Event()
    world.settings.networking.max_connections = 1
    world.declare(kopf.on.create, 'create', does=lambda **_: over.wait())
    async with world.operator():
        await world.until_called('create', len(crowd))
        assert not patched(world)
        over.set()
        for name in crowd:
            await world.handled(name)


@pytest.mark.parametrize('fault', ['error', 'drop', 'lose'])
@in_virtual_time
async def test_failures_of_the_api_keep_no_objects_waiting(world, crowd, few, fault):
    world.settings.networking.max_connections = 1
    getattr(world.sandbox.faults, fault)(verb='patch', times=5)
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.daemon, 'daemon')
    async with world.operator():
        for name in crowd:
            await world.handled(name)
        await world.until_called('daemon', len(crowd))
    assert len(world.called('create')) == len(crowd)


_context = contextvars.ContextVar('_context')


class Crowd:
    """Objects of an initial list, each of which makes one request of a second; in virtual time."""

    requesting = True
    arguments = None
    meter = None
    afterwards = 0  # for how long they do something else after the request

    def __init__(self, number=20):
        self.settings = kopf.OperatorSettings()
        self.settings.networking.max_connections = 1
        self.workers = WorkerPool(self.settings, IndexingGate())
        self.gate = pacing.Gate('server', self.settings)
        self.begun, self.ended = [], []
        self.records = [self.come(number) for number in range(number)]

    def come(self, name, *, urgent=False):
        record = ObjectRecord(str(name), None, name, initial=not urgent)
        record.pending = self.make_event(record)
        self.workers.start(self, record, urgent=urgent)
        return record

    def make_event(self, record):
        return {'type': None, 'object': {'metadata': {'name': str(record.name)}, 'spec': {'text': '\u00e9', 'x': 0.1}}}

    def is_due(self, record):
        return record.has_work

    async def work(self, record):
        assert _context.get(None) is None  # it begins with nothing that others have left
        _context.set(record.name)
        self.begun.append(record.name)
        assert record.take_pending() == self.make_event(record)
        with contextlib.suppress(errors.APIConnectionError):
            with pacing.background(not self.workers.is_urgent(record), self.workers.pressure):
                slot = await self.gate.enter('/x')
            try:
                await asyncio.sleep(1)
            finally:
                self.gate.leave(slot)
            await asyncio.sleep(self.afterwards)
            self.ended.append(record.name)


@pytest.mark.looptime
async def test_workers_that_wait_for_the_api_are_followed_by_others_in_order(few):
    crowd = Crowd()
    assert [type(record.pending) for record in crowd.records[-3:]] == [bytes] * 3  # a text takes less memory
    for second in range(20):
        await asyncio.sleep(0.5)
        assert min(second + 3, 20) <= len(crowd.begun) <= second + MOST
        await asyncio.sleep(0.5)
    await asyncio.sleep(0.1)
    assert crowd.begun == crowd.ended == list(range(20))
    assert crowd.workers.pressure.size == 0


@pytest.mark.looptime
async def test_workers_that_go_on_after_their_requests_hold_no_others_back(few):
    crowd = Crowd()
    crowd.afterwards = 1000
    await asyncio.sleep(20.1)
    assert crowd.begun == list(range(20)) and not crowd.ended and not crowd.workers.pressure.size
    await crowd.workers.close()


@pytest.mark.looptime
async def test_objects_that_are_only_observed_do_not_wait_with_the_others(few):
    crowd = Crowd()
    await asyncio.sleep(0.5)
    crowd.requesting = False
    crowd.come('observed')
    await asyncio.sleep(0)
    assert crowd.begun[-1] == 'observed' and len(crowd.begun) <= MOST + 1
    await crowd.workers.close()


@pytest.mark.looptime
async def test_cancelled_workers_are_followed_by_others(few):
    crowd = Crowd()
    for _ in range(10):
        await asyncio.sleep(0.01)
        for task in list(crowd.workers._tasks)[1:]:
            task.cancel()
    await asyncio.sleep(20)
    assert crowd.begun == list(range(20))
    assert 0 < len(crowd.ended) < 10


@pytest.mark.looptime
async def test_a_closed_client_keeps_no_objects_waiting_for_a_place(few):
    crowd = Crowd()
    await asyncio.sleep(0.5)
    crowd.gate.close()
    await asyncio.sleep(0.1)
    assert len(crowd.begun) == 20


@pytest.mark.looptime
async def test_a_server_that_asks_to_wait_only_delays_the_objects(few):
    crowd = Crowd()
    await asyncio.sleep(0.5)
    crowd.gate.hold(100)
    await asyncio.sleep(99)
    assert len(crowd.begun) <= MOST
    calm = crowd.begun[:]
    crowd.workers.pause()
    for number in range(9):  # enough for the others to get their share of places
        crowd.come(f'new{number}', urgent=True)
    crowd.workers.resume()
    await asyncio.sleep(0.5)
    assert crowd.begun == [*calm, *[f'new{number}' for number in range(9)]]
    await asyncio.sleep(30)
    assert crowd.ended[1:8] == [f'new{number}' for number in range(7)]
    assert len(crowd.ended) == 29


@pytest.mark.looptime
async def test_a_rate_of_requests_only_delays_the_objects(few):
    crowd = Crowd()
    crowd.settings.networking.requests_per_second = 0.1
    crowd.settings.networking.requests_burst = 1
    await asyncio.sleep(100)
    assert 10 + 2 <= len(crowd.begun) <= 10 + MOST
    await asyncio.sleep(110)
    assert len(crowd.ended) == 20


@pytest.mark.looptime
async def test_no_workers_start_in_a_pause_but_all_after_it(few):
    crowd = Crowd()
    await asyncio.sleep(0.5)
    crowd.workers.pause()
    await crowd.workers.drain()
    assert crowd.ended == crowd.begun and 3 <= len(crowd.begun) <= MOST
    crowd.workers.resume()
    await asyncio.sleep(20)
    assert crowd.ended == list(range(20))


@pytest.mark.looptime
async def test_all_workers_start_when_the_indices_are_complete(few):
    crowd = Crowd(number=0)
    crowd.workers._indexing_gate.expect('list', 'list')
    records = [crowd.come(number) for number in range(20)]
    assert not crowd.begun
    crowd.workers._indexing_gate.dismiss('list')
    await asyncio.sleep(0.5)
    assert 3 <= len(crowd.begun) <= MOST
    await asyncio.sleep(20)
    assert crowd.ended == list(range(20)) and not any(record.has_worker for record in records)


@pytest.mark.looptime
async def test_no_workers_start_after_the_end(few):
    crowd = Crowd()
    await asyncio.sleep(0.5)
    await crowd.workers.close()
    assert crowd.ended and len(crowd.begun) <= MOST


@pytest.mark.looptime
async def test_released_objects_get_no_workers_any_more(few):
    crowd = Crowd()
    await asyncio.sleep(0.5)
    began = len(crowd.begun)
    assert began <= MOST
    await crowd.workers.release(crowd.records[:10])
    assert not any(record.has_worker for record in crowd.records[:10])
    await asyncio.sleep(20)
    assert crowd.begun == [*range(began), *range(10, 20)]
    assert crowd.ended[-10:] == [*range(10, 20)]


@pytest.mark.looptime
async def test_workers_that_make_requests_later_start_at_once():
    """Only workers that wait for the API are limited: all the others start, some in each iteration of the loop."""
    crowd = Crowd(number=0)

    async def work(record):
        crowd.begun.append(record.name)
        await asyncio.sleep(100)

    crowd.work = work
    crowd.workers.pause()
    for number in range(200):
        crowd.come(number)
    crowd.workers.resume()
    await asyncio.sleep(0.01)
    assert crowd.begun == list(range(200))
    await crowd.workers.close()
