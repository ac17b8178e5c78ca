"""What `kopf shards` shows: the groups, their members, who holds what and since when, and what no member holds."""

import asyncio
import datetime
import json

import pytest

from kopf._core.engines import shard_command
from kopf._core.engines.assignments import Assignment, Division, Grant, Report, Seen
from kopf._core.engines.shard_leases import MemberState, encode_assignment, encode_member

NOW = datetime.datetime(2030, 1, 1, 12, tzinfo=datetime.UTC)
DIVISION = Division(8, 'uid')


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(shard_command, 'read_wall_clock', lambda: NOW)


def make_lease(name, holder, annotation, text, *, group='ops', age=1):
    renewed = f'{NOW - datetime.timedelta(seconds=age):%Y-%m-%dT%H:%M:%S.%f}Z'
    metadata = {
        'name': name,
        'namespace': 'ns',
        'labels': {'kopf.dev/shards': group},
        'annotations': {annotation: text},
    }
    return {'metadata': metadata, 'spec': {'holderIdentity': holder, 'renewTime': renewed, 'leaseDurationSeconds': 15}}


def make_member(name, holder, held, draining=(), **options):
    report = Report(f'{name}/1', DIVISION, Seen('g', 3), frozenset(held), frozenset(draining))
    text = encode_member(1, MemberState(report, '2030-01-01T11:00:00.000000Z'))
    return make_lease(name, holder, 'kopf.dev/shard', text, **options)


def make_group(text=None, **options):
    text = text or encode_assignment(Assignment('g', 3, DIVISION, {'ops-a/1': Grant(frozenset(range(8)))}))
    return make_lease(options.get('group', 'ops'), 'ops-a/1', 'kopf.dev/assignment', text, **options)


def test_the_members_are_shown_with_what_they_hold():
    leases = [make_group(), make_member('ops-b', 'pod-b_2', {4, 5, 7}, {5}), make_member('ops-a', 'pod-a_1', {0, 1, 2})]
    groups = list(shard_command.find_groups(leases))
    assert shard_command.render(groups).splitlines() == [
        'ops in ns: 8 buckets by uid, revision 3',
        '   MEMBER   COUNT  SINCE                 HOLDS',
        '*  pod-a_1  3      2030-01-01T11:00:00Z  0-2',
        '   pod-b_2  3      2030-01-01T11:00:00Z  4-5,7 (drains 5)',
        '2 buckets are held by no member: 3,6',
    ]
    [group] = json.loads(shard_command.dump(groups))
    assert group['unowned'] == '3,6' and group['assignedBy'] == 'ops-a/1' and group['key'] == 'uid'
    assert [(each['identity'], each['holds'], each['drains']) for each in group['members']] == [
        ('pod-a_1', '0-2', ''),
        ('pod-b_2', '4-5,7', '5'),
    ]


def test_a_silent_member_holds_nothing():
    groups = list(shard_command.find_groups([make_group(), make_member('ops-a', 'pod-a_1', range(8), age=16)]))
    assert '(silent)' in shard_command.render(groups)
    assert '8 buckets are held by no member: 0-7' in shard_command.render(groups)
    assert json.loads(shard_command.dump(groups))[0]['members'][0]['silent'] is True


class Client:
    """Returns these states of the Leases, one after another."""

    def __init__(self, *states):
        self.states = list(states)

    async def get_json(self, path, params):
        return {'items': self.states.pop(0)}


@pytest.mark.looptime
@pytest.mark.parametrize('age', [300, -300])
async def test_clocks_that_differ_by_minutes_do_not_matter(age):
    former = [make_group(), make_member('ops-a', 'a', range(4), age=age), make_member('ops-b', 'b', range(4), age=age)]
    latter = [make_group(), make_member('ops-a', 'a', range(4), age=age - 2), former[2]]
    command = shard_command.ShardsCommand(None)
    await command(Client(former, latter), None, [], [])
    assert asyncio.get_running_loop().time() == pytest.approx(5)  # a third of the duration
    members = json.loads(shard_command.dump(command.groups))[0]['members']
    assert [(member['identity'], member['silent']) for member in members] == [('a', False), ('b', True)]


@pytest.mark.looptime
async def test_the_leases_are_read_once_if_no_member_seems_to_be_silent():
    command = shard_command.ShardsCommand(None)
    await command(Client([make_group(), make_member('ops-a', 'a', range(8), age=14)]), None, [], [])
    assert asyncio.get_running_loop().time() == pytest.approx(0)


def test_ended_members_and_damaged_leases_are_left_out():
    leases = [make_group('damaged'), make_member('ops-a', None, {1})]
    leases.append(make_lease('ops-b', 'pod-b', 'kopf.dev/shard', 'damaged'))
    [group] = shard_command.find_groups(leases)
    assert not group.members and group.assignment is None
    assert shard_command.render([group]).splitlines()[0] == 'ops in ns: without an assignment'
    assert json.loads(shard_command.dump([group]))[0]['buckets'] is None


def test_groups_are_told_apart():
    leases = [make_group(), make_group(group='other'), make_member('other-a', 'pod-c', {1}, group='other')]
    groups = list(shard_command.find_groups(leases))
    assert [(group.name, len(group.members)) for group in groups] == [('ops', 0), ('other', 1)]
    assert '\n\nother in ns' in shard_command.render(groups)
