"""Members of one operator share the objects: each is handled by exactly one; what happens to each kind of work."""

import asyncio
import collections
import contextlib
import datetime
import json
import threading

import aiohttp
import pytest
from operatorworld import FINALIZER, in_virtual_time, new_world, running_operator

import kopf
from kopf._cogs.clients.api import ApiClient, decode
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._core.engines.buckets import find_bucket
from kopf._core.engines.lease_candidate import LeadershipError
from kopf._core.engines.shard_command import ShardsCommand, ShardsError, dump, render
from kopf._core.engines.shard_leases import decode_assignment, decode_member
from kopf._core.reactor import election_coordinator, watches
from kopf._core.reactor.sharding_coordinator import check_sharding

GROUP = 'kopf-operator-shards'
HALVES = [
    "shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')",
    "shardRange(object.metadata.uid, '0x8000000000000000', '0x10000000000000000')",
    "shardRange(object.metadata.uid, '0x0000000000000000', '0x10000000000000000')",
]
"""The selectors of either half of all objects, and of the whole."""
NAMES = [f'obj-{number}' for number in range(12)]


class Members:
    """Members of one operator in one loop, and what they have done."""

    def __init__(self, world):
        self.world = world
        self.calls = []  # the members, what they do, the objects, and when

    def note(self, member, what, name, value=None):
        self.calls.append((member, what, name, value, now()))
        self.world.changed.set()

    def find(self, what, *, member=None, name=None, value=None):
        """Return the members that have done this, in that order."""
        wanted = member, what, name, value
        return [
            call[0]
            for call in self.calls
            if all(one is None or one == other for one, other in zip(wanted, call, strict=False))
        ]

    async def until(self, check, timeout=600):
        await self.world.until(check, timeout=timeout)

    async def until_done(self, what, times=1, **options):
        await self.until(lambda: len(self.find(what, **options)) >= times)

    async def until_logged(self, text):
        await self.until(lambda: any(text in line for line in self.world.log.texts))

    @contextlib.asynccontextmanager
    async def run(self, name, declare=None, *, has_ended=False, **options):
        """Run a member; ``declare`` gets its registry, to declare more handlers."""
        registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
        settings.posting.enabled = False
        settings.networking.error_backoffs = []
        settings.queueing.error_delays = [0.05]
        settings.sharding.namespace = 'default'
        settings.sharding.buckets = 16
        for key, value in options.pop('sharding', {}).items():
            setattr(settings.sharding, key, value)
        kopf.on.login(registry=registry)(kopf.login_with_kubeconfig)

        @kopf.on.create('kopfexamples', registry=registry)
        @kopf.on.update('kopfexamples', registry=registry)
        async def handle(spec, **kwargs):
            self.note(name, 'begin', kwargs['name'], spec['field'])
            try:
                await asyncio.sleep(0.2)
            finally:
                self.note(name, 'end', kwargs['name'], spec['field'])

        if declare is not None:
            declare(registry, settings, lambda *call: self.note(name, *call))
        options = {'shards': 'auto', 'registry': registry, 'settings': settings, 'identity': name} | options
        async with running_operator(name=name, has_ended=has_ended, **options) as task:
            yield task

    # The cluster.

    async def create(self, names=NAMES, **metadata):
        for name in names:
            await self.world.create(name, spec={'field': '1'}, **metadata)

    async def edit(self, value, names=NAMES):
        for name in names:
            await self.world.edit(name, field=value)

    async def handled(self, value, names=NAMES):
        for name in names:
            await self.world.handled(name, field=value)

    async def group(self):
        return await self.world.aio.get('leases', GROUP)

    async def record(self):
        return decode_assignment((await self.group())['metadata']['annotations']['kopf.dev/assignment'])

    async def leases(self):
        """Return the Leases of the members by the identities of these."""
        bodies = await self.world.aio.list('leases')
        bodies = [body for body in bodies if body['metadata']['name'] != GROUP]
        return {(body['spec'].get('holderIdentity') or '').partition('_')[0]: body for body in bodies}

    async def reports(self):
        """Return what the members say of themselves, by their identities."""
        return {
            name: decode_member(body['metadata']['name'], body['metadata']['annotations']['kopf.dev/shard']).report
            for name, body in (await self.leases()).items()
            if name
        }

    async def balanced(self, *names, buckets=16):
        """Wait until these members hold all buckets, evenly."""
        while True:
            reports = await self.reports()
            counts = [len(report.held) for report in reports.values()]
            is_draining = any(report.draining for report in reports.values())
            if set(reports) == set(names) and sum(counts) == buckets and max(counts) - min(counts) <= 1:
                if not is_draining:
                    return reports
            await asyncio.sleep(0.1)

    async def find_names(self, member):
        """Return the names of the objects that the member handles."""
        held = (await self.reports())[member].held
        bodies = await self.world.aio.list('kopfexamples')
        return [body['metadata']['name'] for body in bodies if find_bucket(body['metadata']['uid'], 16) in held]

    def check(self):
        """Check that no object was handled by two members at once, and no state twice."""
        running = {}
        for member, what, name, _, time in self.calls:
            if what == 'begin':
                assert name not in running, (name, member, running[name], time)
                running[name] = member
            elif what == 'end':
                assert running.pop(name) == member
        done = collections.Counter((name, value) for _, what, name, value, _ in self.calls if what == 'end' and value)
        assert set(done.values()) <= {1}, done


def now():
    return asyncio.get_running_loop().time()


@pytest.fixture
def world(request):
    """Yield a sandbox that sends all objects to each member, unless it is to cut the streams itself."""
    is_cut = getattr(request, 'param', None) == 'cut'
    with new_world(virtual_time=hasattr(request.function, 'in_virtual_time'), sharding=is_cut) as world:
        yield world


with_and_without_cuts = pytest.mark.parametrize(
    'world', [pytest.param('whole', marks=pytest.mark.long), 'cut'], indirect=True
)


@pytest.fixture
def members(world):
    members = Members(world)
    yield members
    members.check()
    assert not [text for text in world.log.texts if 'Exception in callback' in text or 'unexpectedly' in text]


@pytest.fixture
def ends(monkeypatch, members):
    """Return what has kept running when the process was to be ended; the work goes on, as a test cannot end."""
    ends = []

    def end_process(running):
        ends.append(list(running))
        raise asyncio.CancelledError

    monkeypatch.setattr(election_coordinator, 'end_process', end_process)
    return ends


@in_virtual_time
async def test_one_member_handles_all_objects(world, members):
    began = now()
    async with members.run('a'):
        await members.create()
        await members.handled('1')
        assert len((await members.balanced('a'))['a'].held) == 16
        assert min(time for *_, time in members.calls) - began < 1  # it does not wait for others
    lease = (await members.leases())['']
    assert decode_member('x', lease['metadata']['annotations']['kopf.dev/shard']).report.held == frozenset()


@with_and_without_cuts
@in_virtual_time
async def test_members_share_the_objects(world, members):
    async with members.run('a'), members.run('b'), members.run('c'):
        await members.balanced('a', 'b', 'c')
        await members.create()
        await members.handled('1')
        assert sorted(members.find('begin', value='1')) != ['a'] * 12
        await members.edit('2')
        await members.handled('2')
        for name in NAMES:
            [first] = members.find('begin', name=name, value='1')
            assert members.find('begin', name=name, value='2') == [first]


@with_and_without_cuts
@in_virtual_time
async def test_objects_follow_their_buckets_when_members_come_and_go(world, members):
    async with members.run('a'):
        await members.create()
        await members.handled('1')
        async with members.run('b'):
            await members.balanced('a', 'b')
            await members.edit('2')
            await members.handled('2')
            assert set(members.find('begin', value='2')) == {'a', 'b'}
            theirs = await members.find_names('b')
            ended = now()
        await members.edit('3')
        await members.handled('3')
        assert set(members.find('begin', value='3')) == {'a'}
        began = max(time for member, what, name, value, time in members.calls if what == 'begin' and name in theirs)
        assert began - ended < 1  # a graceful end hands over at once


@with_and_without_cuts
@in_virtual_time
async def test_edits_in_the_middle_of_a_hand_over_are_handled_once(world, members):
    async with members.run('a'):
        await members.create()
        await members.handled('1')
        async with members.run('b'), members.run('c'):
            for number in range(2, 40):
                await members.edit(str(number), NAMES[number % 3 :: 3])
                await asyncio.sleep(0.05)
            await members.edit('last')
            await members.handled('last')
            await members.balanced('a', 'b', 'c')


@with_and_without_cuts
@in_virtual_time
async def test_a_running_handler_ends_before_its_object_changes_hands(world, members):
    ending = asyncio.Event()

    def declare(registry, settings, note):
        @kopf.on.create('kopfexamples', registry=registry)
        async def slow(name, **_):
            note('begin', f'slow {name}')
            await ending.wait()
            note('end', f'slow {name}')

    async with members.run('a', declare):
        await members.create()
        await members.until_done('begin', name='slow obj-0')
        async with members.run('b', declare):
            await asyncio.sleep(30)
            reports = await members.reports()
            assert not reports['b'].held & reports['a'].held
            assert reports['a'].draining  # for as long as it takes
            assert not members.find('begin', member='b')
            ending.set()
            await members.handled('1')
            await members.balanced('a', 'b')
            await members.edit('2')
            await members.handled('2')
            assert set(members.find('begin', value='2')) == {'a', 'b'}


@in_virtual_time
async def test_a_bucket_is_granted_only_when_the_lease_of_its_holder_says_that_it_is_released(world, members):
    async with members.run('a'):
        lease = (await members.balanced('a'), (await members.leases())['a'])[1]
        assert (await members.group())['spec']['holderIdentity'].startswith(lease['metadata']['name'])
        # The member that assigns the buckets knows of its own releases before the API server does.
        world.sandbox.faults.delay(1, times=None, method='PUT', resource='leases', name=lease['metadata']['name'])
        async with members.run('b'):
            held = {}
            while len(held.get('b', ())) < 8:
                held = {name: report.held for name, report in (await members.reports()).items()}
                assert not held['a'] & held.get('b', frozenset())
                await asyncio.sleep(0.01)
            world.sandbox.faults.clear()


@in_virtual_time
async def test_a_thread_that_is_left_after_its_timeout_keeps_back_only_the_bucket_of_its_object(world, members):
    ending, calls = threading.Event(), []

    def declare(registry, settings, note):
        @kopf.on.reconcile('kopfexamples', id='slow', labels={'slow': 'yes'}, registry=registry, timeout=1)
        def slow(**_):
            calls.append('slow')
            if calls == ['slow']:
                ending.wait(60)

    async with members.run('a', declare):
        await members.create()
        await members.handled('1')
        bodies = await world.aio.list('kopfexamples')
        buckets = {body['metadata']['name']: find_bucket(body['metadata']['uid'], 16) for body in bodies}
        kept_back = max(buckets, key=buckets.get)  # the next member gets the last buckets
        await world.edit(kept_back, metadata={'labels': {'slow': 'yes'}}, field='2')
        await members.until_logged('its thread is left')
        async with members.run('b', declare):
            await members.until_logged(
                f"The buckets {buckets[kept_back]} are released to other members when these have ended: "
                f"the thread of Reconciler 'slow' of <default/{kept_back}>"
            )
            assert (await members.reports())['a'].draining == {buckets[kept_back]}
            assert len((await members.reports())['b'].held) == 7
            assert calls == ['slow']
            ending.set()
            async with asyncio.timeout(60):
                while len(calls) < 2:
                    await asyncio.sleep(0.1)


@in_virtual_time
async def test_a_handler_that_does_not_end_keeps_back_only_the_bucket_of_its_object(world, members):
    ending = asyncio.Event()

    def declare(registry, settings, note):
        @kopf.on.update('kopfexamples', id='slow', labels={'slow': 'yes'}, registry=registry)
        async def slow(name, **_):
            note('slow', name)
            await ending.wait()

        @kopf.daemon('kopfexamples', id='patient', labels={'slow': 'yes'}, registry=registry)
        async def patient(**_):
            await ending.wait()

    async with members.run('a', declare):
        await members.create()
        await members.handled('1')
        bodies = await world.aio.list('kopfexamples')
        buckets = {body['metadata']['name']: find_bucket(body['metadata']['uid'], 16) for body in bodies}
        kept_back, *others = sorted(buckets, key=buckets.get, reverse=True)  # the next member gets the last buckets
        await world.edit(kept_back, metadata={'labels': {'slow': 'yes'}}, field='2')
        await members.until_done('slow')
        async with members.run('b', declare):
            while not (report := (await members.reports()).get('b')) or len(report.held) < 7:
                await asyncio.sleep(0.1)
            assert (await members.reports())['a'].draining == {buckets[kept_back]}
            await members.until_logged(
                f"The buckets {buckets[kept_back]} are released to other members when these have ended: "
                f"Handler 'slow' of <default/{kept_back}>, Daemon 'patient' of <default/{kept_back}>."
            )
            free = [name for name in others if buckets[name] != buckets[kept_back]]
            await members.edit('3', free)
            await members.handled('3', free)
            assert set(members.find('begin', value='3')) == {'a', 'b'}
            assert (await members.reports())['a'].draining == {buckets[kept_back]}  # for as long as it takes
            ending.set()
            await members.balanced('a', 'b')
            await world.edit(kept_back, field='4')
            await world.handled(kept_back, field='4')
            assert members.find('begin', name=kept_back, value='4') == ['b']


@with_and_without_cuts
@in_virtual_time
async def test_a_member_that_cannot_renew_stops_and_others_take_its_buckets_over_in_time(world, members, ends):
    async with members.run('a'), members.run('b'):
        await members.balanced('a', 'b')
        await members.create()
        await members.handled('1')
        name = (await members.leases())['a']['metadata']['name']
        theirs = await members.find_names('a')
        world.sandbox.faults.error(500, times=None, method='PUT', resource='leases', name=name)
        last = now()
        await members.until_logged('No longer a member of the group')
        await members.edit('2')
        await members.handled('2')
        assert set(members.find('begin', value='2')) == {'b'}
        times = [time for _, what, name, value, time in members.calls if what == 'begin' and value == '2']
        assert max(times) - last < 15 + 2 and theirs
        world.sandbox.faults.clear()
        await members.balanced('a', 'b')  # it is a member again, without a restart
        await members.edit('3')
        await members.handled('3')
        assert set(members.find('begin', value='3')) == {'a', 'b'}
    assert not ends


@in_virtual_time
async def test_nothing_is_written_without_the_lease(world, members, ends):
    def declare(registry, settings, note):
        @kopf.on.create('kopfexamples', registry=registry)
        async def late(name, patch, **_):
            try:
                await asyncio.sleep(1000)
            finally:
                patch.status['late'] = True

    async with members.run('a', declare):
        await members.create(NAMES[:1])
        await members.until_done('end', name='obj-0')
        world.sandbox.faults.error(500, times=None, method='PUT', resource='leases')
        await members.until_logged('All work of this replica has ended')
        assert 'status' not in await world.get('obj-0')
        world.sandbox.faults.clear()


def declare_kinds(registry, settings, note):
    """Declare one handler of each kind."""

    @kopf.on.resume('kopfexamples', registry=registry)
    async def resume(name, **_):
        note('resume', name)

    @kopf.daemon('kopfexamples', registry=registry, cancellation_backoff=2, cancellation_timeout=1)
    async def daemon(name, stopped, **_):
        note('begin', f'daemon {name}')
        await stopped.wait()
        await asyncio.sleep(0.5)  # the next member waits for that
        note('end', f'daemon {name}')

    @kopf.timer('kopfexamples', interval=5, registry=registry)
    async def timer(name, index, **_):
        note('tick', name, len(index))

    @kopf.index('kopfexamples', id='index', registry=registry)
    def index(name, **_):
        return {name: True}

    @kopf.on.event('kopfexamples', registry=registry)
    async def raw(name, type, **_):
        note('event', name, type)

    @kopf.on.schedule(interval=5, registry=registry)
    async def schedule(**_):
        note('schedule', 'schedule')

    @kopf.on.delete('kopfexamples', registry=registry)
    async def delete(name, **_):
        note('delete', name)


@with_and_without_cuts
@in_virtual_time
async def test_each_kind_of_work_changes_hands(world, members):
    async with members.run('a', declare_kinds):
        await members.create()
        await members.handled('1')
        await members.until_done('begin', name='daemon obj-11')
        async with members.run('b', declare_kinds):
            await members.balanced('a', 'b')
            theirs = await members.find_names('b')
            mine = [name for name in NAMES if name not in theirs]
            for name in theirs:
                await members.until_done('begin', name=f'daemon {name}', member='b')
                await members.until_done('resume', name=name, member='b')
            assert {name for name in NAMES if members.find('resume', name=name, member='b')} == set(theirs)
            # Daemons and timers go on where the objects are handled, and only there.
            began = now()
            await asyncio.sleep(11)
            recent = [call for call in members.calls if call[-1] > began]
            assert {call[2] for call in recent if call[:2] == ('b', 'tick')} == set(theirs)
            assert {call[2] for call in recent if call[:2] == ('a', 'tick')} == set(mine)
            for name in mine:
                assert members.find('end', name=f'daemon {name}') == []  # those of the others were not disturbed
            # One member runs the schedules. The indices of all members have all objects.
            assert len({call[0] for call in recent if call[1] == 'schedule'}) == 1
            assert 2 <= len([call for call in recent if call[1] == 'schedule']) <= 3
            assert {call[3] for call in recent if call[1] == 'tick'} == {12}
            # No handler was told that an object is deleted, as it is not.
            assert not members.find('event', value='DELETED')
            for name in NAMES:
                await world.delete(name)
                await world.gone(name)
            assert {name for name in NAMES if members.find('delete', name=name, member='b')} == set(theirs)
            assert {name for name in NAMES if members.find('delete', name=name, member='a')} == set(mine)
            for name in NAMES:
                assert members.find('begin', name=f'daemon {name}', member='a') == ['a']
    assert len(members.find('delete')) == 12


@pytest.mark.parametrize('decorators', [[kopf.on.event], [kopf.index], [kopf.on.event, kopf.index]])
@in_virtual_time
async def test_each_member_removes_former_finalizers_only_from_its_own_objects(world, members, decorators):
    def declare(registry, settings, note):
        async def fn(**_):
            pass

        for decorator in decorators:
            decorator('configmaps', registry=registry)(fn)

    async with members.run('a', declare), members.run('b', declare):
        await members.balanced('a', 'b')
        for name in NAMES:
            await world.aio.create('configmaps', name, finalizers=[FINALIZER])
        for name in NAMES:
            await world.aio.wait_for('configmaps', name, lambda body: not body['metadata'].get('finalizers'))
        await asyncio.sleep(30)
    assert [len(world.patches(name)) for name in NAMES] == [1] * len(NAMES)


@in_virtual_time
async def test_objects_are_resumed_by_each_next_member(world, members):
    async with members.run('a', declare_kinds):
        await members.create()
        await members.handled('1')
        async with members.run('b', declare_kinds):
            await members.balanced('a', 'b')
            theirs = await members.find_names('b')
            for name in theirs:
                await members.until_done('resume', name=name, member='b')
        for name in theirs:
            await members.until_done('resume', name=name, member='a')
            await members.until_done('begin', name=f'daemon {name}', times=3)
        mine = [name for name in NAMES if name not in theirs]
        assert not [name for name in mine if members.find('resume', name=name)]  # they were created under it


@in_virtual_time
async def test_no_further_handler_begins_for_an_object_that_is_to_change_hands(world, members):
    ending = asyncio.Event()

    def declare(registry, settings, note):
        @kopf.on.create('kopfexamples', registry=registry)
        async def slow(name, patch, **_):
            note('slow', name)
            await ending.wait()
            patch.status['slow'] = name

        @kopf.on.create('kopfexamples', registry=registry)
        async def following(name, **_):
            note('following', name)

    async with members.run('a', declare):
        await members.create()
        await members.until_done('slow', times=12)
        async with members.run('b', declare):
            while not (await members.reports())['a'].draining:
                await asyncio.sleep(0.1)
            report = (await members.reports())['a']
            bodies = await world.aio.list('kopfexamples')
            uids = {body['metadata']['name']: body['metadata']['uid'] for body in bodies}
            theirs = {name for name in NAMES if find_bucket(uids[name], 16) in report.draining}
            assert theirs
            ending.set()
            await members.handled('1')
            assert members.find('slow') == ['a'] * 12
            assert {name for name in NAMES if members.find('following', name=name) == ['b']} == theirs


@in_virtual_time
async def test_daemons_that_the_last_step_starts_are_stopped(world, members):
    going_on = asyncio.Event()

    def declare(registry, settings, note):
        @kopf.on.event('kopfexamples', labels={'on': 'yes'}, registry=registry)
        async def slow(name, **_):
            note('event', name)
            await going_on.wait()

        @kopf.on.delete('kopfexamples', registry=registry)  # so the finalizer is there before the daemon
        async def delete(**_):
            pass

        @kopf.daemon('kopfexamples', labels={'on': 'yes'}, registry=registry)
        async def daemon(name, stopped, **_):
            note('begin', f'daemon {name}')
            await stopped.wait()
            note('end', f'daemon {name}')

    async with members.run('a', declare):
        await members.create()
        await members.handled('1')
        for name in NAMES:
            await world.edit(name, metadata={'labels': {'on': 'yes'}}, field='2')
        await members.until_done('event', times=12)
        async with members.run('b', declare):
            while not (await members.reports())['a'].draining:
                await asyncio.sleep(0.1)
            going_on.set()
            await members.balanced('a', 'b')
            for name in await members.find_names('b'):
                await members.until_done('begin', member='b', name=f'daemon {name}')
                assert members.find('begin', member='a', name=f'daemon {name}')  # or the test tests nothing


@in_virtual_time
@pytest.mark.parametrize('failures', [1, 3])
async def test_progress_that_is_only_in_memory_is_stored_before_a_hand_over(world, members, failures):
    def declare(registry, settings, note):
        settings.queueing.error_delays = [10_000]

    async with members.run('a', declare):
        for name in NAMES:
            world.sandbox.faults.error(500, times=failures, method='PATCH', resource='kopfexamples', name=name)
        await members.create()
        await members.until_done('end', times=12)
        await asyncio.sleep(1)
        async with members.run('b', declare):
            await members.balanced('a', 'b')
            theirs = await members.find_names('b')
            await members.handled('1', theirs)
            assert not members.find('begin', member='b') and theirs


@with_and_without_cuts
@in_virtual_time
async def test_retries_go_on_with_their_attempts_in_the_next_member(world, members):
    def declare(registry, settings, note):
        @kopf.on.create('kopfexamples', registry=registry)
        async def failing(name, retry, **_):
            note('attempt', name, retry)
            if retry < 4:
                raise kopf.TemporaryError("Not yet.", delay=10)

    async with members.run('a', declare):
        await members.create()
        await members.until_done('attempt', value=1, times=12)
        async with members.run('b', declare):
            await members.handled('1')
            theirs = await members.find_names('b')
    for name in NAMES:
        attempts = [(call[0], call[3]) for call in members.calls if call[1:3] == ('attempt', name)]
        assert [number for _, number in attempts] == [0, 1, 2, 3, 4]
        assert attempts[-1][0] == ('b' if name in theirs else 'a')


@with_and_without_cuts
@in_virtual_time
async def test_objects_of_a_namespace_stay_together_by_key(world, members):
    await world.aio.create({'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': 'other'}})
    sharding = {'key': 'namespace', 'buckets': 2}
    async with members.run('a', sharding=sharding), members.run('b', sharding=sharding):
        await members.balanced('a', 'b', buckets=2)
        await members.create()
        await members.handled('1')
    assert len(set(members.find('begin'))) == 1


@in_virtual_time
async def test_webhooks_are_served_by_every_member_and_memos_are_not_handed_over(world, members):
    class Server:
        async def __call__(self, fn):
            self.fn = fn
            yield {'url': 'https://host/path'}
            await asyncio.Event().wait()

    servers = []

    def declare(registry, settings, note):
        servers.append(Server())
        settings.admission.server = servers[-1]
        settings.admission.managed = 'test.kopf.dev'

        @kopf.on.validate('kopfexamples', id='check', registry=registry)
        async def check(name, **_):
            note('checked', name)

        @kopf.on.resume('kopfexamples', registry=registry)
        @kopf.on.create('kopfexamples', registry=registry)
        async def remember(name, memo, **_):
            note('memo', name, dict(memo))
            memo['known'] = True

    async with members.run('a', declare):
        await world.aio.wait_for('validatingwebhookconfigurations', 'test.kopf.dev', lambda body: body.get('webhooks'))
        await world.aio.delete('validatingwebhookconfigurations', 'test.kopf.dev')  # its URL cannot be called
        await members.create()
        await members.handled('1')
        async with members.run('b', declare):
            await members.balanced('a', 'b')
            await world.aio.wait_for(
                'validatingwebhookconfigurations', 'test.kopf.dev', lambda body: body.get('webhooks')
            )
            for name in await members.find_names('b'):
                await members.until_done('memo', member='b', name=name)
    assert all(call[3] == {} for call in members.calls if call[1] == 'memo')
    assert len(servers) == 2 and all(server.fn for server in servers)


@in_virtual_time
async def test_peerings_are_not_used(world, members):
    await world.aio.apply(world.root / 'peering.yaml')
    record = {'priority': 100, 'lifetime': 60, 'lastseen': datetime.datetime.now(datetime.UTC).isoformat()}
    peering = {'apiVersion': 'kopf.dev/v1', 'kind': 'KopfPeering', 'metadata': {'name': 'default'}}
    await world.aio.create(peering | {'status': {'boss': record}})
    async with members.run('a', namespaces=['default']), members.run('b', namespaces=['default']):
        await members.balanced('a', 'b')
        await members.create()
        await members.handled('1')
        await asyncio.sleep(60)
        assert (await world.aio.get('kopfpeerings', 'default'))['status'] == {'boss': record}


@in_virtual_time
async def test_handlers_of_the_leadership_are_not_called(world, members):
    def declare(registry, settings, note):
        for decorator in kopf.on.leading, kopf.on.yielding:

            @decorator(registry=registry)
            async def fn(**_):
                note('leadership', 'leadership')

    async with members.run('a', declare):
        await members.create()
        await members.handled('1')
        async with members.run('b', declare):
            await members.balanced('a', 'b')
        await members.balanced('a')
    assert not members.find('leadership')


async def test_every_member_is_ready_when_its_indices_are_complete_even_without_buckets(
    world, members, unused_tcp_port_factory
):
    gates = {'a': asyncio.Event(), 'b': asyncio.Event()}
    ports = {name: unused_tcp_port_factory() for name in gates}
    sharding = {'buckets': 1, 'duration': 15, 'renew_deadline': 10, 'retry_period': 0.2}

    def run(member):
        def declare(registry, settings, note):
            @kopf.index('kopfexamples', id='slowly', registry=registry)
            async def slowly(name, **_):
                note('index', name)
                await gates[member].wait()

        return members.run(
            member, declare, sharding=sharding, liveness_endpoint=f'http://127.0.0.1:{ports[member]}/healthz'
        )

    async def probe(member, path):
        url = f'http://127.0.0.1:{ports[member]}{path}'
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return response.status

    await world.create('x', spec={'field': '1'})
    async with run('a'), run('b'):
        for member, gate in gates.items():
            await members.until_done('index', member=member)
            assert (await probe(member, '/healthz'), await probe(member, '/readyz')) == (200, 503)
            gate.set()
            while await probe(member, '/readyz') != 200:
                await asyncio.sleep(0.01)
        await world.handled('x', field='1')
        await members.balanced('a', 'b', buckets=1)


# Levels: owned kinds are dispatched by their owner.


def declare_level(registry, settings, note):
    @kopf.on.reconcile('kopfexamples', owns=['configmaps'], registry=registry)
    async def level(name, namespace, spec, children, reasons, **_):
        note('level begin', name, sorted(reasons))
        data = {'value': spec['field']}
        await children.apply({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name}, 'data': data})
        await asyncio.sleep(0.1)
        note('level end', name)


@with_and_without_cuts
@in_virtual_time
async def test_owned_objects_trigger_the_member_that_handles_their_owner(world, members):
    async with members.run('a', declare_level), members.run('b', declare_level):
        await members.balanced('a', 'b')
        await members.create()
        await members.handled('1')
        theirs = await members.find_names('b')
        assert theirs
        for name in NAMES:
            await members.until_done('level end', name=name)
            count = len(members.find('level end', name=name))
            await world.aio.patch('configmaps', name, {'data': {'value': 'drifted'}})
            await members.until_done('level end', name=name, times=count + 1)
            assert (await world.aio.get('configmaps', name))['data'] == {'value': '1'}
        for name in NAMES:
            assert set(members.find('level begin', name=name)) == {'b' if name in theirs else 'a'}


@in_virtual_time
async def test_reconciling_starts_in_the_next_member_with_fresh_children(world, members):
    async with members.run('a', declare_level):
        await members.create()
        await members.handled('1')
        async with members.run('b', declare_level):
            await members.balanced('a', 'b')
            for name in await members.find_names('b'):
                await members.until_done('level end', name=name, member='b')
                first = next(call for call in members.calls if call[:3] == ('b', 'level begin', name))
                assert first[3] == ['start']
    running = {}
    for member, what, name, *_ in members.calls:
        if what == 'level begin':
            assert running.setdefault(name, member) == member
        elif what == 'level end':
            del running[name]


@in_virtual_time
async def test_reconciling_in_the_next_member_waits_for_its_new_list_of_children(world, members):
    async with members.run('a', declare_level), members.run('b', declare_level):
        await members.balanced('a', 'b')
        await members.create()
        await members.handled('1')
        for name in NAMES:
            await members.until_done('level end', name=name)
        world.sandbox.faults.delay(5, times=None, method='GET', resource='configmaps')
        theirs = await members.find_names('a')
        name = (await members.leases())['a']['metadata']['name']
        world.sandbox.faults.error(500, times=None, method='PUT', resource='leases', name=name)
        began = now()
        while len((await members.reports())['b'].held) < 16:
            await asyncio.sleep(0.1)
        taken = now()
        for name in theirs:
            await members.until_done('level begin', member='b', name=name)
        times = [call[-1] for call in members.calls if call[:2] == ('b', 'level begin') and call[-1] > began]
        assert min(times) - taken >= 4.5
        world.sandbox.faults.clear()
        await members.balanced('a', 'b')


# Requests.


@in_virtual_time
@pytest.mark.long
async def test_members_at_rest_make_one_request_a_renewal(world, members):
    async with members.run('a'), members.run('b'), members.run('c'):
        await members.balanced('a', 'b', 'c')
        await asyncio.sleep(10)
        before = len(world.sandbox.requests)
        await asyncio.sleep(60)
        requests = [request for request in world.sandbox.requests[before:] if request.resource == 'leases']
        assert 85 <= len(requests) <= 95, collections.Counter(request.method for request in requests)


@in_virtual_time
@pytest.mark.long
async def test_buckets_that_are_released_one_after_another_cause_few_lists(world, members):
    names = [f'obj-{number}' for number in range(64)]

    def declare(registry, settings, note):
        @kopf.on.update('kopfexamples', registry=registry)
        async def slow(name, **_):
            note('slow', name)
            await asyncio.sleep(1 + names.index(name) * 0.25)  # up to 17 seconds

    sharding = {'buckets': 64}
    async with members.run('a', declare, sharding=sharding):
        await members.create(names)
        await members.handled('1', names)
        await members.edit('2', names)
        for name in names:
            await members.until_done('slow', name=name)
        before = len(world.sandbox.requests)
        async with members.run('b', declare, sharding=sharding):
            while not (report := (await members.reports()).get('b')) or len(report.held) < 32:
                await asyncio.sleep(0.1)
            requests = world.sandbox.requests[before:]
            lists = [each for each in requests if each.resource == 'kopfexamples' and 'sendInitialEvents' in each.query]
            # The pauses between the releases are doubled: 0.2, 0.4, 0.8 seconds, and so on.
            assert 2 <= len(lists) <= 8
            await members.handled('2', names)


@in_virtual_time
async def test_lines_of_foreign_objects_are_not_decoded(world, members, monkeypatch):
    decoded = []
    monkeypatch.setattr(watches, 'decode', lambda line: decoded.append(line) or decode(line))
    async with members.run('a'), members.run('b'):
        await members.balanced('a', 'b')
        await members.create()
        await members.handled('1')
        decoded.clear()
        await members.edit('2')
        await members.handled('2')
        uids = [body['metadata']['uid'] for body in await world.aio.list('kopfexamples')]
        lines = {uid: [line for line in decoded if uid.encode() in line] for uid in uids}
        # Each line is decoded by the one that handles the object, and not by the other one.
        assert all(len(lines[uid]) == len(set(lines[uid])) >= 1 for uid in uids)


@with_and_without_cuts
@in_virtual_time
@pytest.mark.parametrize('key', ['uid', 'namespace'])
async def test_objects_that_mention_foreign_ones_are_handled(world, members, key):
    sharding = {'key': key}
    async with members.run('a', sharding=sharding), members.run('b', sharding=sharding):
        await members.balanced('a', 'b')
        await members.create()
        await members.handled('1')
        uids = [body['metadata']['uid'] for body in await world.aio.list('kopfexamples')]
        for name in NAMES:
            await world.edit(name, field='2', references=[{'uid': uid, 'namespace': 'other'} for uid in uids])
        await members.handled('2')


class Requests:
    """The requests for the objects, as the members have sent them; and the names of the objects in the answers."""

    def __init__(self, monkeypatch):
        self.selectors = []  # of lists and streams
        self.lists = 0
        get_json, stream = ApiClient.get_json, ApiClient.stream

        async def note_list(client, path, params=None, **options):
            self.note(path, params or {}, is_list=True)
            return await get_json(client, path, params, **options)

        def note_stream(client, path, params, **options):
            self.note(path, params, is_list=bool(params.get('sendInitialEvents')))
            return stream(client, path, params, **options)

        monkeypatch.setattr(ApiClient, 'get_json', note_list)
        monkeypatch.setattr(ApiClient, 'stream', note_stream)

    def note(self, path, params, *, is_list):
        if path.endswith('/kopfexamples'):
            self.selectors.append(params.get('shardSelector'))
            self.lists += is_list

    async def until(self, *selectors):
        """Wait until these selectors have been requested: before the streams end by themselves."""
        async with asyncio.timeout(20):
            while not set(selectors) <= set(self.selectors):
                await asyncio.sleep(0.1)


@pytest.fixture
def requests(monkeypatch):
    return Requests(monkeypatch)


@in_virtual_time
async def test_members_request_only_their_own_objects(world, members, requests):
    async with members.run('a'):
        await requests.until(HALVES[2])
        async with members.run('b'):
            await members.balanced('a', 'b')
            await requests.until(*HALVES[:2])
            requests.selectors.clear()
        await requests.until(HALVES[2])
    assert None not in requests.selectors


@with_and_without_cuts
@in_virtual_time
async def test_a_smaller_part_needs_no_list(world, members, requests):
    async with members.run('a'):
        await members.create()
        await members.handled('1')
        requests.selectors.clear()
        requests.lists = 0
        async with members.run('b'):
            await members.balanced('a', 'b')
            await members.edit('2')
            await requests.until(*HALVES[:2])
            await members.edit('3')
            await members.handled('3')
            assert requests.lists == 1  # of b


@in_virtual_time
@pytest.mark.parametrize('kind', ['index', 'event'])
async def test_what_is_indexed_is_requested_whole(world, members, requests, kind):
    def declare(registry, settings, note):
        if kind == 'index':
            kopf.index('kopfexamples', registry=registry)(lambda **_: None)

    async with members.run('a', declare), members.run('b', declare):
        await members.balanced('a', 'b')
        await members.create()
        await members.handled('1')
        assert (None in requests.selectors) is (len(set(requests.selectors)) == 1) is (kind == 'index')


@in_virtual_time
async def test_kinds_that_others_own_are_requested_whole(world, members, monkeypatch):
    requested = {}
    stream = ApiClient.stream

    def note_stream(client, path, params, **options):
        requested.setdefault(path.rpartition('/')[2], set()).add(params.get('shardSelector'))
        return stream(client, path, params, **options)

    monkeypatch.setattr(ApiClient, 'stream', note_stream)
    async with members.run('a', declare_level), members.run('b', declare_level):
        await members.balanced('a', 'b')
        await members.create()
        await members.until_done('level end', times=len(NAMES))
        assert requested['configmaps'] == {None} and set(HALVES[:2]) <= requested['kopfexamples']


# Trouble.


@in_virtual_time
async def test_the_member_that_assigns_is_replaced(world, members, ends):
    async with members.run('a'):
        await members.balanced('a')
        async with members.run('b'):
            await members.balanced('a', 'b')
            assert (await members.group())['spec']['holderIdentity'].startswith(GROUP)
            name = (await members.leases())['a']['metadata']['name']
            assert (await members.group())['spec']['holderIdentity'].startswith(name)
            world.sandbox.faults.error(500, times=None, method='PUT', resource='leases', name=name)
            began = now()
            await members.balanced('b', 'a', buckets=16)  # the dead Lease says that it holds its part
            while len((await members.reports())['b'].held) < 16:
                await asyncio.sleep(0.1)
            assert now() - began < 17
            world.sandbox.faults.clear()
            await members.balanced('a', 'b')


@in_virtual_time
@pytest.mark.parametrize('what', [*(pytest.param(what, marks=pytest.mark.long) for what in ['group', 'member']), 'all'])
async def test_deleted_leases_come_back_and_nothing_is_handled_twice(world, members, what, ends):
    async with members.run('a'), members.run('b'):
        await members.balanced('a', 'b')
        await members.create()
        await members.handled('1')
        leases = await members.leases()
        names = {'group': [GROUP], 'member': [leases['b']['metadata']['name']]}
        names['all'] = [GROUP, *(body['metadata']['name'] for body in leases.values())]
        for name in names[what]:
            await world.aio.delete('leases', name)
        for number in range(2, 30):
            await members.edit(str(number), NAMES[number % 3 :: 3])
            await asyncio.sleep(0.3)
        await members.balanced('a', 'b')
        await members.edit('last')
        await members.handled('last')
        assert set(members.find('begin', value='last')) == {'a', 'b'}


@in_virtual_time
@pytest.mark.long
async def test_a_lease_of_another_program_is_waited_for_and_told_of(world, members):
    spec = {'holderIdentity': 'other', 'leaseDurationSeconds': 30}
    lease = {'apiVersion': 'coordination.k8s.io/v1', 'kind': 'Lease', 'metadata': {'name': GROUP}, 'spec': spec}
    await world.aio.create(lease)
    async with members.run('a'):
        await members.create(NAMES[:1])
        await members.until_logged("which is no member of this group: nothing is handled until that ends")
        began = now()
        for number in range(10):
            await asyncio.sleep(10)
            await world.aio.patch('leases', GROUP, {'spec': {'leaseTransitions': number}})
        assert not members.calls
        await members.until_done('end', name='obj-0')
        assert 130 <= now() - began < 136  # 30 seconds after the last renewal


@in_virtual_time
async def test_a_namespace_that_is_deleted_with_its_leases_stops_all_members(world, members, ends):
    ops = {'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': 'ops'}}
    await world.aio.create(ops)
    async with members.run('a', sharding={'namespace': 'ops'}), members.run('b', sharding={'namespace': 'ops'}):
        await members.create()
        await members.handled('1')
        await world.aio.delete('namespaces', 'ops')
        await asyncio.sleep(11)
        assert len([text for text in world.log.texts if 'All work of this replica has ended' in text]) == 2
        await members.edit('2')
        await asyncio.sleep(60)
        assert not members.find('begin', value='2')
        assert len([text for text in world.log.texts if 'cannot be accessed; trying again' in text]) <= 6
        await world.aio.create(ops)
        await members.handled('2')


@in_virtual_time
async def test_members_with_other_buckets_work_only_after_the_others(world, members):
    async with members.run('a'):
        await members.create()
        await members.handled('1')
        async with contextlib.AsyncExitStack() as stack:
            async with members.run('b'):
                await members.balanced('a', 'b')
                await stack.enter_async_context(members.run('c', sharding={'buckets': 32}))
                await members.until_logged('has 32 buckets by uid, but the group')
                await members.edit('2')
                await members.handled('2')
            await members.edit('3')
            await members.handled('3')
            assert set(members.find('begin', value='2')) | set(members.find('begin', value='3')) == {'a', 'b'}


@in_virtual_time
@pytest.mark.parametrize(
    'division',
    [
        pytest.param({}, marks=pytest.mark.long),
        {'buckets': 32},
        pytest.param({'key': 'namespace'}, marks=pytest.mark.long),
    ],
    ids=['same', 'buckets', 'key'],
)
async def test_a_rolling_update_loses_and_doubles_nothing(world, members, division):
    async def edit():
        for number in range(2, 1000):
            await members.edit(str(number), NAMES[number % 3 :: 3])
            await asyncio.sleep(0.3)

    def run(member):
        return members.run(member, sharding=division if member in 'cd' else {})

    async with contextlib.AsyncExitStack() as stack:
        stacks = {member: await stack.enter_async_context(contextlib.AsyncExitStack()) for member in 'abcd'}
        for member in 'ab':
            await stacks[member].enter_async_context(run(member))
        await members.create()
        await members.handled('1')
        editing = asyncio.create_task(edit())
        for former, following in ('ac', 'bd'):
            await stacks[following].enter_async_context(run(following))
            await asyncio.sleep(5)
            await stacks[former].aclose()
            await asyncio.sleep(5)
        editing.cancel()
        await members.edit('last')
        await members.handled('last')
        assert set(members.find('begin', value='last')) <= {'c', 'd'}
        assert (await members.record()).division == (division.get('buckets', 16), division.get('key', 'uid'))


@in_virtual_time
async def test_a_member_that_lies_is_told_of_and_gets_nothing(world, members):
    async with members.run('a'):
        await members.create()
        await members.handled('1')
        record = await members.record()
        name, grant = next(iter(record.grants.items()))
        lie = {'epoch': 1, 'buckets': 16, 'key': 'uid', 'generation': record.generation, 'revision': record.revision}
        annotation = json.dumps({**lie, 'holds': '0-15', 'drains': ''})
        metadata = {
            'name': f'{GROUP}-liar',
            'labels': {'kopf.dev/shards': GROUP},
            'annotations': {'kopf.dev/shard': annotation},
        }
        spec = {'holderIdentity': 'liar', 'leaseDurationSeconds': 15}
        body = {'apiVersion': 'coordination.k8s.io/v1', 'kind': 'Lease', 'metadata': metadata, 'spec': spec}
        await world.aio.create(body)
        await members.until_logged(f"The member '{GROUP}-liar/1' says that it holds the buckets 0-15")
        await members.edit('2')
        await members.handled('2')


@in_virtual_time
@pytest.mark.parametrize('name', [None, GROUP, 'operator'])
async def test_the_command_shows_who_holds_what(world, members, name):
    async with members.run('a'), members.run('b'):
        await members.balanced('a', 'b')
        command = ShardsCommand(name)
        await run_command(command)
        [group] = json.loads(dump(command.groups))
        assert group['unowned'] == '' and [member['count'] for member in group['members']] == [8, 8]
        assert {member['identity'].partition('_')[0] for member in group['members']} == {'a', 'b'}
        assert '8 ' in render(command.groups)


@in_virtual_time
async def test_the_command_says_where_to_look_if_there_are_no_shards(world, members):
    with pytest.raises(ShardsError, match="No Leases of the operator 'x' with shards exist in default: .* -n default"):
        await run_command(ShardsCommand('x'))


async def run_command(command):
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(kopf.login_with_kubeconfig)
    await kopf.operator(registry=registry, _command=command, namespaces=['default'], standalone=True)


@in_virtual_time
async def test_without_the_permission_the_operator_ends_and_says_what_to_grant(world, members):
    world.sandbox.faults.error(403, times=None, method='GET', resource='leases')
    async with members.run('a', has_ended=True) as task:
        with pytest.raises(LeadershipError) as error:
            await task
    assert 'so it cannot share the objects' in str(error.value)
    assert 'verbs: ["create", "get", "list", "watch", "update", "delete"]' in str(error.value)
    assert '\n' not in str(error.value)


@pytest.mark.parametrize(
    'change, message',
    [
        (lambda settings: setattr(settings.leadership, 'enabled', True), 'Remove --leader-election'),
        (lambda settings: setattr(settings.peering, 'mandatory', True), 'Remove --peering'),
        (lambda settings: setattr(settings.sharding, 'buckets', 0), 'must be between 1 and'),
        (lambda settings: setattr(settings.sharding, 'key', 'name'), "must be 'uid' or 'namespace'"),
        (lambda settings: setattr(settings.sharding, 'duration', 5), 'settings.sharding.duration must be above'),
        (lambda settings: setattr(settings.sharding, 'name', 'x' * 53), 'at most 52 characters'),
        (lambda settings: setattr(settings.sharding, 'name', 'X'), 'settings.sharding.name must be lowercase'),
    ],
)
def test_settings_that_contradict_each_other_are_refused(change, message):
    settings = OperatorSettings()
    check_sharding(settings)
    change(settings)
    with pytest.raises(LeadershipError, match=message):
        check_sharding(settings)


@in_virtual_time
async def test_the_group_has_the_lease_of_the_options(world, members):
    async with members.run('a', shards='auto', lease_name='shop'):
        await members.create(['x'])
        await members.until_done('begin', name='x')
        names = [lease['metadata']['name'] for lease in await members.world.aio.list('leases')]
    assert names and all(name.startswith('shop') for name in names)
