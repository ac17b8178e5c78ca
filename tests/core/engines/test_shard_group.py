"""The group as one member knows it: who has ended is believed only when it is sure; who assigns, and what is told."""

import asyncio
import contextlib
import json

import pytest

from kopf._cogs.clients import errors
from kopf._cogs.configs.configuration import ShardingSettings
from kopf._core.engines import shard_group
from kopf._core.engines.assignments import Assignment, Division, Grant, Ownership
from kopf._core.engines.buckets import format_ranges
from kopf._core.engines.lease_candidate import LeadershipError
from kopf._core.engines.shard_group import ShardGroup, is_later
from kopf._core.engines.shard_leases import decode_assignment, encode_assignment

pytestmark = pytest.mark.looptime
DIVISION = Division(4, 'uid')


class Store:
    """The Leases in memory."""

    name, namespace = 'g', 'ns'

    def __init__(self):
        self.version = 0
        self.bodies = {}
        self.requests = []
        self.errors = []

    def put(self, name, spec, annotations):
        self.version += 1
        metadata = {'name': name, 'uid': name, 'resourceVersion': str(self.version), 'annotations': annotations}
        self.bodies[name] = {'metadata': metadata, 'spec': spec}
        return self.bodies[name]

    def renew(self, name, *, holder='h', epoch=1, held='', seen=(None, None), **fields):
        """Renew the Lease of another member."""
        fields = {'epoch': epoch, 'buckets': 4, 'key': 'uid', 'holds': held, 'drains': '', **fields}
        text = json.dumps(fields | {'generation': seen[0], 'revision': seen[1]})
        spec = {'holderIdentity': holder, 'renewTime': str(self.version), 'leaseDurationSeconds': 15}
        return self.put(name, spec, {'kopf.dev/shard': text})

    def _begin(self, request):
        self.requests.append(request)
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error

    async def read(self):
        self._begin('read')
        return self.bodies.get('g')

    async def list_all(self):
        self._begin('list')
        return list(self.bodies.values())

    async def write(self, body, record, text):
        self._begin('write')
        known = self.bodies.get('g')
        if (known is None) != (body is None) or (known and known['metadata'] != body['metadata']):
            raise errors.APIConflictError('changed', status=409)
        return self.put('g', record.as_spec(), {'kopf.dev/assignment': text})

    async def delete(self, body):
        self._begin('delete')
        del self.bodies[body['metadata']['name']]

    @property
    def assignment(self):
        return decode_assignment(self.bodies['g']['metadata']['annotations']['kopf.dev/assignment'])


class World:
    def __init__(self):
        self.store = Store()
        self.ownership = Ownership('g-me/1', DIVISION)
        self.publishes = True  # its Lease at once, as soon as it has seen a record
        self.group = ShardGroup(
            self.store,
            ShardingSettings(),
            division=DIVISION,
            get_report=lambda: self.ownership.report(),
            changed=self.follow,
        )

    def follow(self):
        self.ownership.follow(self.group.assignment)
        if self.publishes:
            self.publish()

    @contextlib.asynccontextmanager
    async def running(self):
        task = asyncio.create_task(self.group.run())
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait([task])

    def publish(self):
        """Renew the own Lease with what it holds by now, and let the watch bring it."""
        held, seen = self.ownership.report().held, self.ownership.seen or (None, None)
        self.group.see(self.store.renew('g-me', held=format_ranges(held), seen=seen))

    async def pass_time(self, seconds, *, other=None, **fields):
        """Let time pass, in which another member renews its Lease, and the watch brings it."""
        end = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end:
            self.publish()
            if other:
                self.group.see(self.store.renew(other, **fields))
            await asyncio.sleep(min(2, end - asyncio.get_running_loop().time()))

    async def share(self):
        """Let another member come, and wait until it has got its part."""
        await self.pass_time(4, other='g-you')
        while 'g-you/1' not in self.holders:
            await self.pass_time(1, other='g-you', seen=self.ownership.seen)

    @property
    def holders(self):
        return {member: sorted(grant.buckets) for member, grant in self.store.assignment.grants.items()}


@pytest.fixture
def world(monkeypatch):
    monkeypatch.setattr(shard_group, 'read_time', lambda: asyncio.get_running_loop().time())
    return World()


async def test_a_member_alone_gets_all_buckets(world):
    async with world.running():
        await world.pass_time(0.5)
    assert world.ownership.active == {0, 1, 2, 3}
    assert world.store.bodies['g']['spec']['holderIdentity'] == 'g-me/1'
    assert world.group.find_unowned() == 0


async def test_at_rest_no_requests_are_made(world):
    async with world.running():
        await world.share()
        before = len(world.store.requests)
        await world.pass_time(60, other='g-you', seen=world.ownership.seen, held='2-3')
    assert len(world.store.requests) == before


async def test_the_buckets_of_a_silent_member_are_granted_after_its_duration_and_not_before(world):
    async with world.running():
        await world.share()
        await world.pass_time(14)
        assert 'g-you/1' in world.holders
        assert world.group.find_unowned() == 2  # it must have stopped, though others cannot know
        await world.pass_time(2)
        assert world.holders == {'g-me/1': [0, 1, 2, 3]}


async def test_a_member_is_not_replaced_if_only_its_renewals_were_not_seen(world):
    async with world.running():
        await world.share()
        for _ in range(30):
            world.store.renew('g-you', held='2-3', seen=world.ownership.seen)  # the watch does not bring it
            await world.pass_time(2)
        assert 'g-you/1' in world.holders


async def test_a_released_lease_frees_its_buckets_at_once(world):
    async with world.running():
        await world.share()
        world.group.see(world.store.renew('g-you', holder=None))
        await asyncio.sleep(0.1)
        assert world.holders == {'g-me/1': [0, 1, 2, 3]}


async def test_own_buckets_are_granted_to_others_only_when_the_own_lease_says_that_they_are_released(world):
    async with world.running():
        await world.pass_time(4)
        world.publishes = False
        world.group.see(world.store.renew('g-you', seen=world.ownership.seen))
        await asyncio.sleep(0.1)
        world.ownership.finish(world.ownership.draining)
        world.group.wake()
        await asyncio.sleep(0.1)
        assert world.ownership.report().held == {0, 1} and world.holders == {'g-me/1': [0, 1, 2, 3]}
        world.publish()
        await asyncio.sleep(0.1)
        assert world.holders == {'g-me/1': [0, 1], 'g-you/1': [2, 3]}


async def test_a_deleted_lease_frees_no_buckets_until_its_duration_is_over(world):
    async with world.running():
        await world.share()
        world.group.see(world.store.bodies.pop('g-you'), is_deleted=True)
        await world.pass_time(14)
        assert 'g-you/1' in world.holders
        await world.pass_time(2)
        assert world.holders == {'g-me/1': [0, 1, 2, 3]}


@pytest.mark.parametrize(
    'silence, change, waits',
    [
        (20, {}, False),  # another member has deleted it, as its member has expired
        (10, {}, True),
        (20, {'renewTime': 'later'}, True),  # there was another renewal, which the watch has not brought
        (20, {'holderIdentity': None}, True),  # the watch has missed the deletion, and so it does not have the record
    ],
)
async def test_a_new_holder_does_not_wait_for_a_member_that_had_expired_before_its_lease_was_deleted(
    world, silence, change, waits
):
    world.group.see(world.store.renew('g-boss', held='0-1'))
    world.group.see(world.store.renew('g-dead', held='0-1'))
    grants = {'g-boss/1': Grant(frozenset({0, 1})), 'g-me/1': Grant(frozenset({2, 3}))}
    record = encode_assignment(Assignment('first', 1, DIVISION, grants))
    world.group.see(world.store.put('g', {'holderIdentity': 'g-boss/1'}, {'kopf.dev/assignment': record}))
    async with world.running():
        await world.pass_time(silence, other='g-boss', held='0-1', seen=('first', 1))
        last = world.store.bodies.pop('g-dead')
        world.group.see({**last, 'spec': last['spec'] | change}, is_deleted=True)
        await world.pass_time(1, other='g-boss', held='0-1', seen=('first', 1))
        assert world.store.bodies['g']['spec']['holderIdentity'] == 'g-boss/1'
        world.group.see(world.store.renew('g-boss', holder=None))
        await world.pass_time(1)
        assert world.holders == {'g-me/1': [2, 3] if waits else [0, 1, 2, 3]}
        await world.pass_time(15)
        assert world.holders == {'g-me/1': [0, 1, 2, 3]}


@pytest.mark.parametrize('held', ['0-1', '2-3'])
async def test_a_new_holder_does_not_wait_for_a_member_that_was_lost_before_it_has_joined(world, held):
    # The holder has taken the buckets from the lost member, but has not deleted its Lease yet.
    world.store.renew('g-lost', held=held, seen=('first', 1))
    world.group.see(world.store.renew('g-boss', held='0-1', seen=('first', 2)))
    grants = {'g-boss/1': Grant(frozenset({0, 1})), 'g-me/1': Grant(frozenset({2, 3}))}
    record = encode_assignment(Assignment('first', 2, DIVISION, grants))
    world.store.put('g', {'holderIdentity': 'g-boss/1'}, {'kopf.dev/assignment': record})
    async with world.running():
        await world.pass_time(1, other='g-boss', held='0-1', seen=('first', 2))
        world.group.see(world.store.renew('g-boss', holder=None))
        await world.pass_time(1)
        assert world.holders == {'g-me/1': [0, 1, 2, 3]}


async def test_the_next_term_of_a_member_is_another_member(world):
    async with world.running():
        await world.share()
        world.group.see(world.store.renew('g-you', epoch=2))
        await asyncio.sleep(0.1)
        assert set(world.holders) == {'g-me/1', 'g-you/2'}


async def test_a_late_renewal_does_not_bring_an_expired_member_back(world):
    async with world.running():
        await world.share()
        await world.pass_time(16)
        assert world.holders == {'g-me/1': [0, 1, 2, 3]}
        # It was sent before the member expired, and the network has delivered it only now.
        world.group.see(world.store.renew('g-you', held='2-3'))
        await world.pass_time(4)
        assert world.store.assignment.grants == {'g-me/1': Grant(frozenset(range(4)))}
        # The process has begun another term.
        await world.pass_time(4, other='g-you', epoch=2, seen=world.ownership.seen)
        assert world.store.assignment.grants['g-me/1'].revoked == {2, 3}


@pytest.mark.parametrize('is_released', [False, True])
async def test_a_member_has_not_ended_because_its_former_term_has(world, is_released):
    async with world.running():
        await world.share()
        if is_released:
            world.group.see(world.store.renew('g-you', holder=None))
            await world.pass_time(4)
        else:
            await world.pass_time(20)
        assert world.holders == {'g-me/1': [0, 1, 2, 3]}
        # It assigns the buckets in its next term. The watch brings this before the Lease of that term.
        world.store.renew('g-you', epoch=2, held='2-3')
        grants = {'g-me/1': Grant(frozenset({0, 1})), 'g-you/2': Grant(frozenset({2, 3}))}
        record = world.store.assignment._replace(generation='next', revision=1, grants=grants)
        spec = {**world.store.bodies['g']['spec'], 'holderIdentity': 'g-you/2'}
        world.group.see(world.store.put('g', spec, {'kopf.dev/assignment': encode_assignment(record)}))
        await world.pass_time(10)
        assert world.ownership.active == {0, 1}
        assert world.store.bodies['g']['spec']['holderIdentity'] == 'g-you/2'


async def test_an_announced_term_that_never_comes_expires(world):
    async with world.running():
        await world.share()
        world.group.see(world.store.renew('g-you', holder=None))
        grants = {'g-me/1': Grant(frozenset({0, 1})), 'g-you/2': Grant(frozenset({2, 3}))}
        record = world.store.assignment._replace(generation='next', revision=1, grants=grants)
        spec = {**world.store.bodies['g']['spec'], 'holderIdentity': 'g-you/2'}
        world.group.see(world.store.put('g', spec, {'kopf.dev/assignment': encode_assignment(record)}))
        await world.pass_time(20)
        assert world.holders == {'g-me/1': [0, 1, 2, 3]}


async def test_leases_of_ended_members_are_deleted_later(world):
    async with world.running():
        world.group.see(world.store.renew('g-old', holder=None))
        await world.pass_time(14)
        assert 'g-old' in world.store.bodies
        await world.pass_time(4)
        assert 'g-old' not in world.store.bodies


@pytest.mark.parametrize(
    'refusal', [errors.APIConflictError('edited', status=409), errors.APIForbiddenError('no', status=403)]
)
async def test_ended_members_stay_so_if_their_leases_cannot_be_deleted(world, refusal):
    async def delete(body):
        world.store.requests.append('delete')
        raise refusal

    world.store.delete = delete
    async with world.running():
        await world.share()
        await world.pass_time(34)
        assert 'delete' in world.store.requests and world.holders == {'g-me/1': [0, 1, 2, 3]}
        # Another client edits the Lease; nothing is renewed.
        body = world.store.bodies['g-you']
        world.group.see(world.store.put('g-you', body['spec'], body['metadata']['annotations'] | {'edited': 'yes'}))
        await world.pass_time(4)
        await asyncio.sleep(10)  # without any news from the watch, all Leases are listed
        await world.pass_time(4)
        assert world.store.requests.count('list') > 2
        assert world.store.assignment.grants == {'g-me/1': Grant(frozenset(range(4)))}


async def test_the_watch_can_report_a_deletion_before_the_request_for_it_is_answered(world):
    delete = world.store.delete

    async def delete_and_report(body):
        await delete(body)
        world.group.see(body, is_deleted=True)

    world.store.delete = delete_and_report
    async with world.running() as task:
        world.group.see(world.store.renew('g-old', holder=None))
        world.group.see(world.store.renew('g-older', holder=None))
        await world.pass_time(18)
        assert not {'g-old', 'g-older'} & {*world.store.bodies, *world.group.leases}
        assert not task.done()


async def test_a_conflict_means_that_another_member_was_faster(world):
    async with world.running():
        await world.pass_time(1)
        record, body = world.store.assignment, world.store.bodies['g']
        annotations = body['metadata']['annotations']
        world.store.put('g', body['spec'] | {'holderIdentity': 'g-you/1'}, annotations)  # the watch does not bring it
        await world.pass_time(3, other='g-you')
        assert world.store.bodies['g']['spec']['holderIdentity'] == 'g-you/1'
        assert world.store.assignment == record


async def test_a_failure_at_the_beginning_does_not_make_a_member_seem_to_be_another_program(world, caplog):
    async with world.running():
        await world.share()
        annotations = world.store.bodies['g']['metadata']['annotations']
        body = world.store.put('g', world.store.bodies['g']['spec'] | {'holderIdentity': 'g-you/1'}, annotations)
        world.group.see(body)
        world.store.errors = [None, errors.APIServerError('down', status=500)]
        world.group.join()
        await world.pass_time(5, other='g-you', seen=world.ownership.seen, held='2-3')
        assert world.group.assignment is not None
    assert 'which is no member of this group' not in caplog.text


async def test_failing_requests_are_repeated_and_told_once(world, caplog):
    caplog.set_level('INFO')
    world.store.errors = [errors.APIServerError('down', status=500)] * 3
    async with world.running():
        await world.pass_time(10)
    assert world.ownership.active == {0, 1, 2, 3}
    assert caplog.text.count('cannot be accessed') == 1 and 'can be accessed again' in caplog.text


async def test_without_the_permission_it_fails(world):
    world.store.errors = [errors.APIForbiddenError('no', status=403)]
    async with world.running() as task:
        await asyncio.wait([task], timeout=5)
        with pytest.raises(LeadershipError, match='cannot share the objects'):
            task.result()


@pytest.mark.parametrize('text', [None, '', '{}', '[1]'])
async def test_a_damaged_record_is_replaced(world, text, caplog):
    async with world.running():
        await world.pass_time(1)
        body = world.store.bodies['g']
        annotations = {} if text is None else {'kopf.dev/assignment': text}
        world.group.see(world.store.put('g', body['spec'], annotations))
        await world.pass_time(1)
        assert world.holders == {'g-me/1': [0, 1, 2, 3]} and world.ownership.active == {0, 1, 2, 3}
        assert 'is not that of the shards of a kopf operator' in caplog.text


async def test_a_holder_that_never_was_a_member_is_replaced(world):
    async with world.running():
        await world.share()
        body = world.store.bodies['g']
        spec = {**body['spec'], 'holderIdentity': 'g-you/nonsense'}
        world.group.see(world.store.put('g', spec, body['metadata']['annotations']))
        await world.pass_time(4, other='g-you', seen=world.ownership.seen, held='2-3')
        assert world.store.bodies['g']['spec']['holderIdentity'] == 'g-me/1'
        assert world.holders == {'g-me/1': [0, 1], 'g-you/1': [2, 3]}


@pytest.mark.parametrize(
    'member, other, later',
    [
        ('x/2', 'x/1', True),
        ('x/10', 'x/9', True),
        ('x/1', 'x/1', False),
        ('y/2', 'x/1', False),
        ('x/1', 'x/nonsense', True),
        ('x/nonsense', 'x/1', False),
    ],
)
def test_later_terms_are_recognized(member, other, later):
    assert is_later(member, other) == later
