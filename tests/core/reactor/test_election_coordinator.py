"""Replicas of one operator: one of them works, the others are warm; what happens to each kind of work in between."""

import asyncio
import concurrent.futures
import contextlib
import datetime
import threading

import pytest
from kinds import define
from operatorworld import in_virtual_time, new_world, running_operator

import kopf
from kopf._cogs.clients.api import client_var
from kopf._core.engines.indexing import OperatorIndexers
from kopf._core.engines.lease_candidate import LeadershipError
from kopf._core.reactor import election_coordinator, screening

LEASE = 'kopf-operator'


class Replicas:
    """Replicas of one operator in one loop, and what they have done."""

    def __init__(self, world):
        self.world = world
        self.aio = world.aio
        self.calls = []
        self.registry = None  # that of the replica that is being started

    def note(self, *call):
        self.calls.append((*call, asyncio.get_running_loop().time()))
        self.world.changed.set()

    def called(self, *call):
        """Return the times of these calls."""
        return [time for *other, time in self.calls if tuple(other) == call]

    async def until_called(self, *call, times=1):
        await self.world.until(lambda: len(self.called(*call)) >= times, timeout=600)

    async def until_logged(self, text):
        await self.world.until(lambda: any(text in line for line in self.world.log.texts), timeout=600)

    @contextlib.asynccontextmanager
    async def run(self, name, declare=None, **options):
        """Run a replica; ``declare`` gets its registry, to declare more handlers."""
        registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
        settings.posting.enabled = False
        settings.networking.error_backoffs = []
        settings.queueing.error_delays = [0.05]
        settings.leadership.namespace = 'default'
        options = {'standalone': True, 'leader_election': True} | options
        for key, value in options.pop('leadership', {}).items():
            setattr(settings.leadership, key, value)
        kopf.on.login(registry=registry)(kopf.login_with_kubeconfig)

        @kopf.on.create('kopfexamples', registry=registry)
        @kopf.on.update('kopfexamples', registry=registry)
        async def handle(spec, **kwargs):
            self.note(name, kwargs['name'], spec['field'])

        @kopf.on.leading(registry=registry)
        async def leading(**_):
            self.note(name, 'leading')

        @kopf.on.yielding(registry=registry)
        async def yielding(**_):
            self.note(name, 'yielding')

        if declare is not None:
            declare(registry, settings, lambda *call: self.note(name, *call))
        options |= {'registry': registry, 'settings': settings, 'identity': name}
        async with running_operator(name=name, **options) as task:
            yield task

    async def lease(self):
        return (await self.aio.get('leases', LEASE))['spec']

    async def holder(self):
        return ((await self.lease()).get('holderIdentity') or '').partition('_')[0]

    async def hold(self, holder='other_1', duration=15, **metadata):
        """Let another process hold the Lease, until it dies at once."""
        now = datetime.datetime.now(datetime.UTC).isoformat().replace('+00:00', 'Z')
        spec = {
            'holderIdentity': holder,
            'leaseDurationSeconds': duration,
            'acquireTime': now,
            'renewTime': now,
            'leaseTransitions': 4,
        }
        lease = {'apiVersion': 'coordination.k8s.io/v1', 'kind': 'Lease', 'metadata': {'name': LEASE, **metadata}}
        return await self.aio.create({**lease, 'spec': spec})

    def requests(self, resource='leases'):
        return [request for request in self.world.sandbox.requests if request.resource == resource]


@pytest.fixture
def replicas(world):
    return Replicas(world)


@pytest.fixture
def ends(monkeypatch, replicas):
    """Return what has kept running when the process was to be ended; the work goes on, as a test cannot end."""
    ends = []

    def end_process(running):
        ends.append((list(running), asyncio.get_running_loop().time()))
        replicas.world.changed.set()
        raise asyncio.CancelledError

    monkeypatch.setattr(election_coordinator, 'end_process', end_process)
    return ends


def delay_lists(world):
    """Delay lists of objects, and watches that begin with a list; but not requests of single objects."""
    for verb in ('list', 'watch'):
        world.sandbox.faults.delay(20, times=None, verb=verb, resource='kopfexamples')


def now():
    return asyncio.get_running_loop().time()


@in_virtual_time
async def test_one_replica_works_and_the_next_one_takes_over_at_once(world, replicas):
    async with replicas.run('a'):
        async with replicas.run('b'), replicas.run('c'):
            await replicas.until_logged('Standing by')
            await world.create('x', spec={'field': '1'})
            await replicas.until_called('a', 'x', '1')
            await world.handled('x', field='1')
            assert await replicas.holder() == 'a'
            assert [call[:3] for call in replicas.calls] == [('a', 'leading', replicas.calls[0][2]), ('a', 'x', '1')]
        assert await replicas.holder() == 'a'
    assert await replicas.holder() == ''


@in_virtual_time
async def test_a_graceful_end_hands_over_within_a_second(world, replicas):
    async with contextlib.AsyncExitStack() as stack:
        async with replicas.run('a'):
            await replicas.until_called('a', 'leading')
            for name in 'bc':
                await stack.enter_async_context(replicas.run(name))
            await world.create('x', spec={'field': '1'})
            await world.handled('x', field='1')
            ended = now()
        await world.edit('x', field='2')
        await world.handled('x', field='2')
        [(next_one, *_, began)] = [call for call in replicas.calls if call[1:3] == ('x', '2')]
        assert next_one in 'bc' and began - ended < 1
        assert await replicas.holder() == next_one
        lease = await replicas.lease()
        assert lease['leaseTransitions'] == 1 and lease['leaseDurationSeconds'] == 15
    order = [call[:2] for call in replicas.calls if call[1] in ('leading', 'yielding')]
    assert order[:3] == [('a', 'leading'), ('a', 'yielding'), (next_one, 'leading')]


@in_virtual_time
async def test_a_dead_holder_is_replaced_after_its_duration_and_not_before(world, replicas):
    await replicas.hold()
    began = now()
    async with replicas.run('a'):
        await world.create('x', spec={'field': '1'})
        await replicas.until_called('a', 'x', '1')
    assert 15 <= replicas.called('a', 'leading')[0] - began < 15.5
    assert (await replicas.lease())['leaseTransitions'] == 5


@in_virtual_time
async def test_the_duration_that_the_holder_promises_counts(world, replicas):
    await replicas.hold(duration=40)
    began = now()
    async with replicas.run('a'):
        await replicas.until_called('a', 'leading')
    assert 40 <= replicas.called('a', 'leading')[0] - began < 40.5
    assert any('promises to stop only after 40 seconds' in text for text in world.log.texts)


@in_virtual_time
async def test_a_lease_of_another_program_is_told_of(world, replicas):
    await replicas.hold()
    async with replicas.run('a'):
        await replicas.until_logged('is not that of a kopf operator')


@in_virtual_time
async def test_a_released_lease_of_a_go_client_is_taken_at_once(world, replicas):
    await replicas.hold(holder='', duration=1)
    began = now()
    async with replicas.run('a'):
        await replicas.until_called('a', 'leading')
    assert replicas.called('a', 'leading')[0] - began < 0.5


@in_virtual_time
async def test_clocks_of_other_machines_do_not_matter(world, replicas):
    await replicas.hold()
    async with replicas.run('a'):
        for shift in (+300, -300, +3600, -3600, 0):  # the clock of the holder is off, in all directions
            time = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=shift)
            await asyncio.sleep(10)
            await world.aio.patch('leases', LEASE, {'spec': {'renewTime': time.isoformat().replace('+00:00', 'Z')}})
            assert not replicas.calls
        last = now()
        await replicas.until_called('a', 'leading')
    assert 15 <= replicas.called('a', 'leading')[0] - last < 15.5


@in_virtual_time
async def test_a_leader_that_cannot_renew_stops_before_another_one_can_begin(world, replicas):
    cancelled = []

    def declare(registry, settings, note):
        @kopf.on.create('kopfexamples', registry=registry)
        async def slow(name, **_):
            note('slow', name)
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                cancelled.append(now())
                raise

        @kopf.daemon('kopfexamples', registry=registry)
        async def daemon(name, **_):
            note('daemon', name)
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                cancelled.append(now())
                raise

        @kopf.on.schedule(interval=1000, registry=registry)
        async def scheduled(**_):
            note('scheduled')
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                cancelled.append(now())
                raise

    async with replicas.run('a', declare):
        await world.create('x', spec={'field': '1'})
        await replicas.until_called('a', 'slow', 'x')
        await replicas.until_called('a', 'daemon', 'x')
        await replicas.until_called('a', 'scheduled')
        world.sandbox.faults.error(500, times=None, method='PUT', resource='leases')
        last = now()
        await replicas.until_called('a', 'yielding')
        assert 8 <= now() - last <= 10.1
        await replicas.until_logged('All work of this replica has ended')
        assert len(cancelled) == 3 and all(8 <= time - last <= 10.2 for time in cancelled)
        assert not any("failed" in line for line in world.log.texts if 'slow' in line)
        world.sandbox.faults.clear()
        # It is not restarted, and works again as soon as it is elected again.
        await replicas.until_called('a', 'leading', times=2)
        await replicas.until_called('a', 'slow', 'x', times=2)
        await replicas.until_called('a', 'daemon', 'x', times=2)
        await replicas.until_called('a', 'scheduled', times=2)


@in_virtual_time
async def test_what_cannot_be_stopped_ends_the_process_when_the_lease_expires(world, replicas, ends):
    ending = asyncio.Event()

    def declare(registry, settings, note):
        @kopf.on.create('kopfexamples', registry=registry)
        async def stubborn(name, **_):
            note('stubborn', name)
            while not ending.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await ending.wait()

    async with replicas.run('a', declare):
        await world.create('x', spec={'field': '1'})
        await replicas.until_called('a', 'stubborn', 'x')
        world.sandbox.faults.error(500, times=None, method='PUT', resource='leases')
        last = now()
        await world.until(lambda: ends)
        assert ends[0][0] == ['handlers of <default/x>'] and 13 <= ends[0][1] - last <= 15.1
        ending.set()


@pytest.fixture
def blocked():
    """Return two flags: the first one is set when a function blocks its thread, the second one lets it go on."""
    entered, leave = threading.Event(), threading.Event()
    yield entered, leave
    leave.set()


async def until_set(flag):
    async with asyncio.timeout(600):
        while not flag.is_set():
            await asyncio.sleep(0.1)


@in_virtual_time
async def test_functions_that_run_in_standbys_too_do_not_end_the_process(world, replicas, ends, blocked):
    entered, leave = blocked

    def declare(registry, settings, note):
        settings.execution.executor = concurrent.futures.ThreadPoolExecutor()

        @kopf.index('kopfexamples', registry=registry)
        def index(spec, **_):
            if spec['field'] == '2':
                entered.set()
                leave.wait()

    async with replicas.run('a', declare):
        await world.create('x', spec={'field': '1'})
        await replicas.until_called('a', 'x', '1')
        await world.edit('x', field='2')
        await until_set(entered)
        await world.aio.patch('leases', LEASE, {'spec': {'holderIdentity': 'intruder', 'renewTime': None}})
        await replicas.until_logged('All work of this replica has ended')
        leave.set()
        await replicas.until_called('a', 'leading', times=2)
    assert ends == []


@in_virtual_time
async def test_handlers_of_another_operator_in_the_same_executor_do_not_end_the_process(world, replicas, ends, blocked):
    entered, leave = blocked
    executor = concurrent.futures.ThreadPoolExecutor()
    world.settings.execution.executor = executor

    @kopf.on.create('kopfexamples', labels={'for': 'other'}, registry=world.registry)
    def other(**_):
        entered.set()
        leave.wait()

    def declare(registry, settings, note):
        settings.execution.executor = executor

    async with world.operator():
        async with replicas.run('a', declare):
            await replicas.until_called('a', 'leading')
            await world.create('y', spec={'field': '1'}, labels={'for': 'other'})
            await until_set(entered)
            began = now()
        assert now() - began < 5
        leave.set()
    assert ends == []


@in_virtual_time
async def test_handlers_in_a_former_executor_end_the_process_when_the_lease_expires(world, replicas, ends, blocked):
    entered, leave = blocked
    every = []

    def declare(registry, settings, note):
        every.append(settings)

        @kopf.on.create('kopfexamples', registry=registry)
        def blocking(**_):
            entered.set()
            leave.wait()

    async with replicas.run('a', declare):
        await world.create('x', spec={'field': '1'})
        await until_set(entered)
        every[0].execution.executor = concurrent.futures.ThreadPoolExecutor()
        world.sandbox.faults.error(500, times=None, method='PUT', resource='leases')
        await world.until(lambda: ends, timeout=600)
        assert any('blocking() of default/x' in text for text in ends[0][0])
        leave.set()


def declare_leading(blocked, registry):
    """Declare a sync handler for the beginning of the leadership, which runs until it may leave; return its calls."""
    entered, leave = blocked
    calls = []

    @kopf.on.leading(registry=registry)
    def blocking():
        calls.append('begun')
        entered.set()
        leave.wait()
        calls.append('ended')

    return calls


@in_virtual_time
async def test_threads_of_the_handlers_of_the_leadership_end_the_process_when_the_lease_expires(
    world, replicas, ends, blocked
):
    def declare(registry, settings, note):
        declare_leading(blocked, registry)

    async with replicas.run('a', declare):
        await until_set(blocked[0])
        world.sandbox.faults.error(500, times=None, method='PUT', resource='leases')
        last = now()
        await world.until(lambda: ends, timeout=600)
        assert len(ends[0][0]) == 1 and 'blocking()' in ends[0][0][0]
        assert 13 <= ends[0][1] - last <= 15.1
        blocked[1].set()


@in_virtual_time
async def test_a_sync_handler_of_the_leadership_ends_before_it_is_called_again(world, replicas, ends, blocked):
    every = []

    def declare(registry, settings, note):
        every.append(declare_leading(blocked, registry))

    async with replicas.run('a', declare):
        await until_set(blocked[0])
        world.sandbox.faults.error(500, times=None, method='PUT', resource='leases')
        await replicas.until_called('a', 'yielding')
        world.sandbox.faults.clear()
        await asyncio.sleep(3)
        assert every[0] == ['begun']
        blocked[1].set()
        await replicas.until_called('a', 'leading', times=2)
        await world.until(lambda: len(every[0]) == 4, timeout=60)
    assert every[0] == ['begun', 'ended'] * 2
    assert ends == []


async def release_later(replicas, leave):
    """Let the sync handler go on when the operator waits for it."""
    await replicas.until_logged('The Lease is released when these have ended: ')
    assert await replicas.holder() == 'a'
    leave.set()


@in_virtual_time
async def test_a_leader_that_ends_waits_for_the_threads_of_its_beginning(world, replicas, ends, blocked):
    def declare(registry, settings, note):
        declare_leading(blocked, registry)

    async with asyncio.TaskGroup() as group:
        async with replicas.run('a', declare):
            await until_set(blocked[0])
            group.create_task(release_later(replicas, blocked[1]))
    assert replicas.called('a', 'yielding')
    assert not await replicas.holder()
    assert ends == []


@in_virtual_time
@pytest.mark.parametrize('is_lost', [True, False])
async def test_handlers_of_the_leadership_that_ignore_their_cancellation_end_the_process(
    world, replicas, ends, is_lost
):
    ending = asyncio.Event()

    def declare(registry, settings, note):
        @kopf.on.leading(registry=registry)
        async def stubborn():
            note('begun')
            while not ending.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await ending.wait()

    with contextlib.suppress(asyncio.CancelledError):  # the process would end here
        async with replicas.run('a', declare):
            await replicas.until_called('a', 'begun')
            if is_lost:
                world.sandbox.faults.error(500, times=None, method='PUT', resource='leases')
                await world.until(lambda: ends, timeout=60)
                ending.set()
    ending.set()
    assert 'on.leading' in ends[0][0]


@in_virtual_time
async def test_the_end_of_the_leadership_is_told_after_its_beginning_has_ended(world, replicas):
    def declare(registry, settings, note):
        @kopf.on.leading(registry=registry)
        async def slow():
            note('begun')
            try:
                await asyncio.sleep(1000)
            finally:
                await asyncio.sleep(3)
                note('ended')

    async with replicas.run('a', declare):
        await replicas.until_called('a', 'begun')
    assert [call for _, call, _ in replicas.calls] == ['leading', 'begun', 'ended', 'yielding']
    assert not await replicas.holder()


@in_virtual_time
async def test_nothing_is_written_without_the_lease(world, replicas):
    def declare(registry, settings, note):
        @kopf.on.create('kopfexamples', registry=registry)
        async def late(name, patch, **_):
            note('late', name)
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                patch.status['late'] = True
                try:
                    await client_var.get().patch(
                        f'/apis/kopf.dev/v1/namespaces/default/kopfexamples/{name}',
                        {'spec': {'field': 'late'}},
                        'application/merge-patch+json',
                    )
                except Exception as error:
                    note('refused', str(error))
                raise

    async with replicas.run('a', declare):
        await world.create('x', spec={'field': '1'})
        await replicas.until_called('a', 'late', 'x')
        world.sandbox.faults.error(500, times=None, method='PUT', resource='leases')
        await replicas.until_logged('All work of this replica has ended')
        assert replicas.called(
            'a', 'refused', 'The request is not sent, as this replica of the operator is not the leader.'
        )
        assert (await world.get('x'))['spec'] == {'field': '1'}
        assert not any(b'late' in request.body for request in replicas.requests('kopfexamples') if request.status)


@in_virtual_time
async def test_patches_of_the_leader_carry_the_version_they_were_decided_on(world, replicas):
    def declare(registry, settings, note):
        @kopf.on.create('kopfexamples', registry=registry)
        async def marking(name, patch, **_):
            await world.edit(name, field='edited')  # by another client, meanwhile
            patch.spec['marked'] = True

    async with replicas.run('a', declare):
        await world.create('x', spec={'field': '1'})
        body = await world.handled('x', field='edited')
    assert body['spec'] == {'field': 'edited', 'marked': True}
    patches = [request for request in replicas.requests('kopfexamples') if request.method == 'PATCH']
    assert 409 in {request.status for request in patches}
    assert all(b'resourceVersion' in request.body for request in patches)


@in_virtual_time
async def test_without_election_patches_carry_no_versions(world, replicas):
    async with replicas.run('a', leader_election=False):
        await world.create('x', spec={'field': '1'})
        await world.handled('x', field='1')
    patches = [request for request in replicas.requests('kopfexamples') if request.method == 'PATCH']
    assert patches and not any(b'resourceVersion' in request.body for request in patches)
    assert not replicas.requests() and not replicas.called('a', 'leading')


@in_virtual_time
async def test_a_standby_keeps_its_indices_and_costs_few_requests(world, replicas):
    indexers = OperatorIndexers()

    def declare(registry, settings, note):
        @kopf.index('kopfexamples', id='fields', registry=registry)
        async def fields(name, spec, **_):
            return {name: spec['field']}

    async with replicas.run('a'):
        await replicas.until_called('a', 'leading')
        async with replicas.run('b', declare, indexers=indexers):
            await world.create('x', spec={'field': '1'})
            await world.handled('x', field='1')
            await world.edit('x', field='2')
            await world.handled('x', field='2')
            async with asyncio.timeout(10):
                while {key: list(values) for key, values in indexers.indices['fields'].items()} != {'x': ['2']}:
                    await asyncio.sleep(0.01)
            began, before = now(), len(replicas.requests())
            await asyncio.sleep(100)
            assert len(replicas.requests()) - before <= (now() - began) / 2 + 1
    assert not [call for call in replicas.calls if call[0] == 'b' and call[1] == 'x']


@in_virtual_time
async def test_a_renewal_with_a_lost_response_is_recognized(world, replicas):
    async with replicas.run('a'):
        await replicas.until_called('a', 'leading')
        world.sandbox.faults.lose(method='PUT', resource='leases', times=2)
        await asyncio.sleep(30)
        assert replicas.called(
            'a',
            'leading',
        ) and not replicas.called('a', 'yielding')
        assert await replicas.holder() == 'a'


@in_virtual_time
async def test_edits_of_the_lease_by_others_do_not_end_the_term(world, replicas):
    async with replicas.run('a'):
        await replicas.until_called('a', 'leading')
        for number in range(5):
            await world.aio.patch('leases', LEASE, {'metadata': {'labels': {'edit': str(number)}}})
            await asyncio.sleep(7)
        assert not replicas.called('a', 'yielding')
        assert (await world.aio.get('leases', LEASE))['metadata']['labels'] == {
            'edit': '4',
            'app.kubernetes.io/managed-by': 'kopf',
        }


@in_virtual_time
async def test_a_deleted_lease_is_created_anew_by_its_holder(world, replicas):
    async with replicas.run('a'):
        await replicas.until_called('a', 'leading')
        async with replicas.run('b'):
            await replicas.until_logged('Standing by')
            await world.aio.delete('leases', LEASE)
            await asyncio.sleep(30)
            assert await replicas.holder() == 'a'
    assert not replicas.called('b', 'leading')


@in_virtual_time
async def test_a_leader_whose_lease_is_taken_by_force_stops(world, replicas):
    async with replicas.run('a'):
        await replicas.until_called('a', 'leading')
        await world.aio.patch('leases', LEASE, {'spec': {'holderIdentity': 'intruder', 'renewTime': None}})
        await replicas.until_called('a', 'yielding')
        assert any("the Lease was taken over by 'intruder'" in text for text in world.log.texts)
        await replicas.until_called('a', 'leading', times=2)


@in_virtual_time
async def test_resumed_objects_are_handled_once_by_the_next_leader(world, replicas):
    def declare(registry, settings, note):
        @kopf.on.resume('kopfexamples', registry=registry)
        async def resumed(name, **_):
            note('resumed', name)

        @kopf.timer('kopfexamples', interval=10, registry=registry)
        async def ticked(name, **_):
            note('ticked', name)

    async with contextlib.AsyncExitStack() as stack:
        async with replicas.run('a', declare):
            await world.create('x', spec={'field': '1'})
            await world.handled('x', field='1')
            await stack.enter_async_context(replicas.run('b', declare))
            await replicas.until_called('a', 'ticked', 'x', times=3)
            assert not replicas.called('b', 'ticked', 'x')
        await replicas.until_called('b', 'ticked', 'x', times=3)
        assert len(replicas.called('b', 'resumed', 'x')) == 1
        assert replicas.called('b', 'ticked', 'x')[0] > replicas.called('a', 'ticked', 'x')[-1]


@in_virtual_time
async def test_a_handler_of_the_leadership_that_cancels_its_task_is_called_again(world, replicas):
    def declare(registry, settings, note):
        @kopf.on.leading(registry=registry, id='other', backoff=1)
        async def cancelling(retry, **_):
            note('attempt')
            if not retry:
                asyncio.current_task().cancel()
                await asyncio.sleep(9)

    async with replicas.run('a', declare):
        await replicas.until_called('a', 'attempt', times=2)
        await world.create()
        await world.handled()


@in_virtual_time
async def test_a_failing_handler_of_the_leadership_ends_the_operator_and_frees_the_lease(world, replicas):
    def declare(registry, settings, note):
        @kopf.on.leading(registry=registry)
        async def fail(**_):
            raise kopf.PermanentError("No licence.")

    with pytest.raises(Exception, match="No licence"):
        async with replicas.run('a', declare) as task:
            await asyncio.wait([task], timeout=60)
    assert await replicas.holder() == ''


def make_role(*verbs):
    """Return a role for a service account, and its binding."""
    rules = [{'apiGroups': ['kopf.dev'], 'resources': ['*'], 'verbs': ['*']}]
    if verbs:
        rules.append({'apiGroups': ['coordination.k8s.io'], 'resources': ['leases'], 'verbs': list(verbs)})
    group, metadata = 'rbac.authorization.k8s.io', {'name': 'operator'}
    return [
        {'apiVersion': f'{group}/v1', 'kind': 'ClusterRole', 'metadata': metadata, 'rules': rules},
        {
            'apiVersion': f'{group}/v1',
            'kind': 'ClusterRoleBinding',
            'metadata': metadata,
            'roleRef': {'apiGroup': group, 'kind': 'ClusterRole', 'name': 'operator'},
            'subjects': [{'kind': 'ServiceAccount', 'name': 'operator', 'namespace': 'default'}],
        },
    ]


@pytest.mark.parametrize(
    'verbs, held',
    [((), False), (('get',), False), (('get', 'list', 'watch'), True), (('get', 'list', 'watch', 'create'), True)],
)
def test_without_the_permission_the_operator_ends_and_prints_the_rule(verbs, held, monkeypatch):
    async def run(world, replicas):
        for body in make_role(*verbs):
            await world.aio.create(body)
        if held:
            await replicas.hold()
        with pytest.raises(LeadershipError) as caught:
            async with replicas.run('a') as task:
                await asyncio.wait([task], timeout=5)
        assert 'apiGroups: ["coordination.k8s.io"]' in str(caught.value) and '\n' not in str(caught.value)
        assert not replicas.calls

    with new_world(virtual_time=True, rbac=True) as world:
        account = 'system:serviceaccount:default:operator'
        monkeypatch.setenv('KUBECONFIG', str(world.sandbox.kubeconfig_for(account)))
        world.sandbox.run(run(world, Replicas(world)))


def test_without_the_permission_to_watch_the_lease_is_read(monkeypatch):
    async def run(world, replicas):
        for body in make_role('get', 'create', 'update'):
            await world.aio.create(body)
        await replicas.hold()
        async with replicas.run('a'):
            await replicas.until_logged('The Lease cannot be watched')
            await asyncio.sleep(10)
            await world.aio.patch('leases', LEASE, {'spec': {'holderIdentity': None}})
            released = now()
            await replicas.until_called('a', 'leading')
            assert now() - released < 2.5

    with new_world(virtual_time=True, rbac=True) as world:
        account = 'system:serviceaccount:default:operator'
        monkeypatch.setenv('KUBECONFIG', str(world.sandbox.kubeconfig_for(account)))
        world.sandbox.run(run(world, Replicas(world)))


@pytest.mark.parametrize(
    'leadership, text',
    [
        ({'duration': 10}, "settings.leadership.duration must be above renew_deadline, but 10 is not above 10."),
        ({'renew_deadline': 2}, "settings.leadership.renew_deadline must be above retry_period, but 2 is not above 2."),
        ({'retry_period': 0}, "settings.leadership.retry_period must be above zero, but 0 is not above 0."),
        ({'name': 'My_Lease'}, "settings.leadership.name must be lowercase letters"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(world, replicas, leadership, text):
    async def run():
        with pytest.raises(Exception, match=text):
            async with replicas.run('a', leadership=leadership) as task:
                await asyncio.wait([task], timeout=60)

    world.sandbox.run(run())


test_settings_that_contradict_each_other_are_refused.in_virtual_time = True


@in_virtual_time
async def test_an_absent_namespace_ends_the_operator(world, replicas):
    with pytest.raises(Exception, match="Create the namespace 'nowhere', or set settings.leadership.namespace"):
        async with replicas.run('a', leadership={'namespace': 'nowhere'}) as task:
            await asyncio.wait([task], timeout=60)


def join(replicas, name='default'):
    """Return a coroutine that creates the peering object."""
    return replicas.aio.create({'apiVersion': 'kopf.dev/v1', 'kind': 'KopfPeering', 'metadata': {'name': name}})


@in_virtual_time
async def test_only_the_leader_has_a_record_in_the_peering_and_the_next_one_takes_it_over(world, replicas):
    await world.aio.apply(world.root / 'peering.yaml')
    await join(replicas)

    async def records():
        return list((await world.aio.get('kopfpeerings', 'default')).get('status') or {})

    options = {'standalone': False, 'namespaces': ['default']}
    async with contextlib.AsyncExitStack() as stack:
        async with replicas.run('a', **options):
            await world.create('x', spec={'field': '1'})
            await world.handled('x', field='1')
            await stack.enter_async_context(replicas.run('b', **options))
            await replicas.until_logged('Standing by')
            await asyncio.sleep(30)
            assert await records() == [LEASE]
            # The next leader finds the record of a killed one: it has not been removed.
            world.sandbox.faults.error(500, times=1, method='PATCH', resource='kopfpeerings', path='default')
        ended = now()
        await world.edit('x', field='2')
        await replicas.until_called('b', 'x', '2')
        assert now() - ended < 1
        assert await records() == [LEASE]


@in_virtual_time
async def test_the_leader_pauses_for_its_peers_and_keeps_the_lease(world, replicas):
    await world.aio.apply(world.root / 'peering.yaml')
    await join(replicas)
    async with replicas.run('a', standalone=False, namespaces=['default']):
        await world.create('x', spec={'field': '1'})
        await world.handled('x', field='1')
        record = {'priority': 100, 'lifetime': 60, 'lastseen': datetime.datetime.now(datetime.UTC).isoformat()}
        await world.aio.patch('kopfpeerings', 'default', {'status': {'boss': record}})
        await replicas.until_logged('Pausing operations in favour of')
        await world.edit('x', field='2')
        await asyncio.sleep(30)
        assert not replicas.called('a', 'x', '2') and await replicas.holder() == 'a'
        await world.aio.patch('kopfpeerings', 'default', {'status': {'boss': None}})
        await replicas.until_called('a', 'x', '2')


@in_virtual_time
async def test_no_work_begins_before_the_peers_are_asked(world, replicas):
    await world.aio.apply(world.root / 'peering.yaml')
    await join(replicas)
    record = {'priority': 100, 'lifetime': 60, 'lastseen': datetime.datetime.now(datetime.UTC).isoformat()}
    await world.aio.patch('kopfpeerings', 'default', {'status': {'boss': record}})
    await world.create('x', spec={'field': '1'})
    await replicas.hold()
    async with replicas.run('a', standalone=False, namespaces=['default']):
        await replicas.until_logged('Pausing operations in favour of')
        assert replicas.called('a', 'leading') and not replicas.called('a', 'x', '1')
        await world.aio.patch('kopfpeerings', 'default', {'status': {'boss': None}})
        await replicas.until_called('a', 'x', '1')


@in_virtual_time
async def test_level_triggered_handlers_are_called_by_each_new_leader_and_children_survive(world, replicas):
    def declare(registry, settings, note):
        @kopf.on.reconcile('kopfexamples', registry=registry, owns=['configmaps'])
        async def level(name, reasons, children, **_):
            note('level', name, *sorted(reasons))
            child = {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'child'}, 'data': {'a': 'b'}}
            await children.apply(child)

    async with contextlib.AsyncExitStack() as stack:
        async with replicas.run('a', declare):
            await world.create('x', spec={'field': '1'})
            await world.aio.wait_for('configmaps', 'child', lambda body: True)
            uid = (await world.aio.get('configmaps', 'child'))['metadata']['uid']
            await stack.enter_async_context(replicas.run('b', declare))
            await asyncio.sleep(5)
            assert not [call for call in replicas.calls if call[:2] == ('b', 'level')]
        await world.until(lambda: [call for call in replicas.calls if call[:2] == ('b', 'level')])
        [first] = [call for call in replicas.calls if call[:2] == ('b', 'level')][:1]
        assert first[3:-1] == ('start',)
        await asyncio.sleep(5)
        assert (await world.aio.get('configmaps', 'child'))['metadata']['uid'] == uid


@in_virtual_time
async def test_deletions_and_retries_are_continued_by_the_next_leader(world, replicas):
    def declare(registry, settings, note):
        @kopf.on.create('kopfexamples', registry=registry)
        async def retried(name, retry, **_):
            note('retried', name, retry)
            if retry < 3:
                raise kopf.TemporaryError("not yet", delay=20)

        @kopf.on.delete('kopfexamples', registry=registry)
        async def deleted(name, retry, **_):
            note('deleted', name, retry)
            if retry < 1:
                raise kopf.TemporaryError("not yet", delay=20)

    async with contextlib.AsyncExitStack() as stack:
        async with replicas.run('a', declare):
            await world.create('x', spec={'field': '1'})
            await replicas.until_called('a', 'retried', 'x', 1)
            await stack.enter_async_context(replicas.run('b', declare))
        await replicas.until_called('b', 'retried', 'x', 3)
        await world.handled('x', field='1')
        attempts = [(call[0], call[3]) for call in replicas.calls if call[1] == 'retried']
        assert attempts == [('a', 0), ('a', 1), ('b', 2), ('b', 3)]
        await world.delete('x')
        await replicas.until_called('b', 'deleted', 'x', 0)
        await stack.enter_async_context(replicas.run('c', declare))
    # The third one has started before the second one has ended, and has ended the deletion or not; nothing is lost.
    assert {call[0] for call in replicas.calls if call[1] == 'deleted'} <= {'b', 'c'}


@in_virtual_time
async def test_memos_are_those_of_each_replica(world, replicas):
    def declare(registry, settings, note):
        @kopf.on.create('kopfexamples', registry=registry)
        @kopf.on.resume('kopfexamples', registry=registry)
        async def remember(name, memo, **_):
            note('memo', name, dict(memo))
            memo.seen = True

    async with contextlib.AsyncExitStack() as stack:
        async with replicas.run('a', declare):
            await world.create('x', spec={'field': '1'})
            await world.handled('x', field='1')
            await stack.enter_async_context(replicas.run('b', declare))
        await replicas.until_called('b', 'memo', 'x', {})


@in_virtual_time
async def test_webhooks_of_standbys_are_served_and_configured(world, replicas):
    class Server:
        async def __call__(self, fn):
            self.fn = fn
            yield {'url': 'https://host/path'}
            await asyncio.Event().wait()

    servers = {}

    def declare(registry, settings, note):
        settings.admission.server = servers[len(servers)] = Server()
        settings.admission.managed = 'test.kopf.dev'

        @kopf.on.validate('kopfexamples', id='check', registry=registry)
        async def check(name, **_):
            note('checked', name)

    await replicas.hold()
    async with replicas.run('a', declare):
        await world.aio.wait_for('validatingwebhookconfigurations', 'test.kopf.dev', lambda body: body.get('webhooks'))
        assert not replicas.called('a', 'leading')


@in_virtual_time
async def test_standbys_create_definitions_that_were_being_deleted_at_their_start(world, replicas):
    definition = define('widgets', 'Widget')

    def declare(registry, settings, note):
        @kopf.on.startup(registry=registry)
        async def start(**_):
            await kopf.ensure_crds(definition)

    uid = (await world.aio.create(definition))['metadata']['uid']
    metadata = {'name': 'x', 'finalizers': ['example.dev/x']}
    await world.aio.create({'apiVersion': 'example.dev/v1', 'kind': 'Widget', 'metadata': metadata})
    await world.aio.delete('customresourcedefinitions', 'widgets.example.dev')
    await replicas.hold(duration=1000)
    async with replicas.run('a', declare):
        await replicas.until_logged("The CRD widgets.example.dev is being deleted")
        await world.aio.patch('widgets', 'x', {'metadata': {'finalizers': None}})
        await world.aio.wait_for(
            'customresourcedefinitions', 'widgets.example.dev', lambda body: body['metadata']['uid'] != uid
        )
        assert not replicas.called('a', 'leading')


@in_virtual_time
async def test_without_an_election_the_handlers_of_the_leadership_are_not_called(world, replicas):
    async with replicas.run('a', leader_election=False):
        await world.create('x', spec={'field': '1'})
        await world.handled('x', field='1')
    assert not replicas.called('a', 'leading') and not replicas.called('a', 'yielding')


@in_virtual_time
async def test_a_replica_whose_yielding_handler_fails_releases_its_lease_in_time(world, replicas):
    def declare(registry, settings, note):
        @kopf.on.yielding(registry=registry)
        async def failing():
            raise ValueError("boo")

        @kopf.on.cleanup(registry=registry)
        async def cleanup():
            note('cleanup')

    async with replicas.run('a', declare):
        await replicas.until_called('a', 'leading')
        began = now()
    assert 9 <= now() - began <= 12
    assert replicas.called('a', 'cleanup')
    assert not await replicas.holder()


@in_virtual_time
async def test_a_replica_whose_yielding_handler_hangs_does_not_keep_its_lease(world, replicas, ends):
    def declare(registry, settings, note):
        @kopf.on.yielding(registry=registry)
        async def hanging():
            await asyncio.sleep(10000)

    with contextlib.suppress(asyncio.CancelledError):  # the process would end here
        async with replicas.run('a', declare):
            await replicas.until_called('a', 'leading')
            began = now()
    assert ends[0][0] == ['on.yielding']
    assert 15 <= ends[0][1] - began <= 30


@in_virtual_time
async def test_a_namespace_that_is_deleted_with_its_lease_stops_the_leader(world, replicas):
    await world.aio.create({'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': 'ops'}})
    async with replicas.run('a', leadership={'namespace': 'ops'}):
        await replicas.until_called('a', 'leading')
        await world.aio.delete('namespaces', 'ops')
        await replicas.until_called('a', 'yielding')
        assert len([text for text in world.log.texts if 'cannot be accessed; trying again' in text]) <= 2
        await asyncio.sleep(60)
        await world.aio.create({'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': 'ops'}})
        await replicas.until_called('a', 'leading', times=2)


@in_virtual_time
async def test_a_new_leader_begins_with_the_last_changes_while_it_lists_all_objects(world, replicas):
    for name in 'xyz':
        await world.create(name, spec={'field': '1'})
    async with contextlib.AsyncExitStack() as stack:
        async with replicas.run('a'):
            for name in 'xyz':
                await world.handled(name, field='1')
            await stack.enter_async_context(replicas.run('b'))
            await replicas.until_logged('Standing by')
            await asyncio.sleep(5)
            world.sandbox.faults.error(500, times=None, method='PUT', resource='leases')
            await replicas.until_called('a', 'yielding')
            for name in 'xyz':
                await world.edit(name, field='2')
            await world.delete('z')
            world.sandbox.faults.clear()
            delay_lists(world)
            began = now()
        for name in 'xy':
            await replicas.until_called('b', name, '2')
            assert replicas.called('b', name, '2')[0] - began < 1
            await world.handled(name, field='2')
        await asyncio.sleep(60)
    assert len([call for call in replicas.calls if call[2] == '2']) == 2


@in_virtual_time
@pytest.mark.parametrize('is_deleted', [False, True])
async def test_a_new_leader_whose_watch_lags_behind_repeats_no_handlers(world, replicas, is_deleted):
    def declare(registry, settings, note):
        @kopf.on.update('kopfexamples', id='last', registry=registry)
        @kopf.on.delete('kopfexamples', id='last', registry=registry)
        async def last(name, reason, **_):
            note(reason, name)
            await asyncio.sleep(1)  # both replicas have received the change, but do not receive what is written then
            world.sandbox.faults.freeze_watches(30, resource='kopfexamples')

    reason = 'delete' if is_deleted else 'update'
    async with contextlib.AsyncExitStack() as stack:
        async with replicas.run('a', declare):
            await world.create('x', spec={'field': '1'})
            await world.handled('x', field='1')
            await stack.enter_async_context(replicas.run('b', declare))
            await replicas.until_logged('Standing by')
            await asyncio.sleep(5)
            await (world.delete('x') if is_deleted else world.edit('x', field='2'))
            await replicas.until_called('a', reason, 'x')
            await (world.aio.wait_gone('kopfexamples', 'x') if is_deleted else world.handled('x', field='2'))
        delay_lists(world)
        await asyncio.sleep(60)
    assert len(replicas.called('a', reason, 'x')) == 1
    assert not [call for call in replicas.calls if call[0] == 'b' and 'x' in call]


@in_virtual_time
async def test_a_leader_that_is_elected_again_repeats_no_handlers_that_another_one_has_finished(world, replicas):
    is_failing = True

    def declare(registry, settings, note):
        @kopf.on.update('kopfexamples', id='last', registry=registry)
        async def last(name, spec, **_):
            note('update', name, spec['field'])
            if is_failing:
                raise kopf.TemporaryError("The first leader waits for the next attempt.", delay=60)
            await asyncio.sleep(
                1
            )  # the first leader has received the change, but does not receive what is written then
            world.sandbox.faults.freeze_watches(60, resource='kopfexamples')

    async with replicas.run('a', declare):
        await replicas.until_called('a', 'leading')
        await world.create('x', spec={'field': '1'})
        await world.handled('x', field='1')
        await world.edit('x', field='2')
        await replicas.until_called('a', 'update', 'x', '2')
        await asyncio.sleep(5)
        async with replicas.run('b', declare):
            await replicas.until_logged('Standing by')
            await asyncio.sleep(5)
            is_failing = False
            world.sandbox.faults.error(
                500,
                times=None,
                method='PUT',
                resource='leases',
                condition=lambda request: b'"holderIdentity":"a_' in request.body.replace(b' ', b''),
            )
            await replicas.until_called('b', 'leading')
            world.sandbox.faults.clear()
            await world.edit('x', field='3')
            await replicas.until_called('b', 'update', 'x', '3')
            await world.handled('x', field='3')
        delay_lists(world)
        await asyncio.sleep(90)
    assert [call for call in replicas.calls if call[:4] == ('a', 'update', 'x', '3')] == []


@in_virtual_time
async def test_only_some_of_the_last_changes_are_kept(world, replicas, monkeypatch):
    monkeypatch.setattr(screening, 'MAX_RECENT', 2)
    await replicas.hold()
    async with replicas.run('a'):
        await replicas.until_logged('Standing by')
        await asyncio.sleep(1)
        for name in 'vwxyz':
            await world.create(name, spec={'field': '1'})
        await world.edit('x', field='2')
        await asyncio.sleep(5)
        delay_lists(world)
        await replicas.until_called('a', 'v', '1')
        assert sorted(call[1] for call in replicas.calls[:3] if call[1] in 'vwxyz') == ['x', 'z']
        assert replicas.called('a', 'v', '1')[0] - replicas.called('a', 'x', '2')[0] > 10


@in_virtual_time
async def test_operators_with_different_leases_both_lead(world, replicas):
    async with replicas.run('a', lease_name='shop'), replicas.run('b', lease_name='bells'):
        await replicas.until_called('a', 'leading')
        await replicas.until_called('b', 'leading')
        for name, holder in {'shop': 'a', 'bells': 'b'}.items():
            lease = await replicas.aio.get('leases', name)
            assert lease['spec']['holderIdentity'].startswith(f'{holder}_')


@in_virtual_time
async def test_startup_handlers_override_the_lease_of_the_options(world, replicas):
    def declare(registry, settings, note):
        @kopf.on.startup(registry=registry)
        async def configure(settings, **_):
            settings.leadership.name += '-eu'

    async with replicas.run('a', declare, lease_name='shop'):
        await replicas.until_called('a', 'leading')
        assert (await replicas.aio.get('leases', 'shop-eu'))['spec']['holderIdentity'].startswith('a_')


@pytest.mark.parametrize('enabled', [True, False])
@in_virtual_time
async def test_a_lease_without_replicas_is_warned_of(world, replicas, enabled):
    """But not if a startup handler enables the leader election."""

    def declare(registry, settings, note):
        @kopf.on.startup(registry=registry)
        async def configure(settings, **_):
            settings.leadership.enabled = enabled

    async with replicas.run('a', declare, leader_election=None, lease_name='shop'):
        await replicas.world.create('x', spec={'field': '1'})
        await replicas.until_called('a', 'x', '1')
    assert any('Lease shop is not used' in line for line in replicas.world.log.texts) is not enabled
