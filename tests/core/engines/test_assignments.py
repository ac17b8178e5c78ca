"""The assignment of buckets: no bucket is ever held twice, whatever comes when; all are held in the end, evenly."""

import collections
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kopf._core.engines.assignments import (
    Assignment,
    Division,
    Grant,
    Ownership,
    Report,
    Seen,
    advance,
    begin,
    is_lost,
    is_orphaned,
)

SMALL, OTHER, USUAL = Division(8, 'uid'), Division(4, 'uid'), Division(256, 'uid')


class World:
    """The members, the record in the cluster with all its former states, and the reports as they are published."""

    def __init__(self, chances):
        self.chances = chances
        self.members = {}  # that have not ended
        self.published = collections.defaultdict(list)  # all reports of each member
        self.records = [None]  # all states; None if it does not exist
        self.views = {}  # by members: the number of the record that it has seen last
        self.known_reports = {}  # by leaders: the numbers of the reports that it knows
        self.known_ends = collections.defaultdict(set)  # by leaders: the members that it knows to have ended
        self.count = 0
        self.joined = []

    # What can happen.

    def join(self, division=SMALL):
        """Let a member publish its report first, and read the record only then."""
        self.count += 1
        name = f'm{self.count}'
        self.members[name] = Ownership(name, division)
        self.joined.append(name)
        self.publish(name)
        self.views[name] = len(self.records) - 1
        self.follow(name, self.views[name])

    def die(self):
        name = self.pick()
        del self.members[name]

    def notice_end(self):
        leader = self.pick()
        ended = [name for name in self.joined if name not in self.members]
        if ended:
            self.known_ends[leader].add(self.chances.choice(ended))

    def see(self):
        name = self.pick()
        self.views[name] = self.chances.randint(self.views[name], len(self.records) - 1)
        self.follow(name, self.views[name])

    def follow(self, name, number):
        if self.records[number] is not None:
            self.members[name].follow(self.records[number])

    def drain(self):
        name = self.pick()
        member = self.members[name]
        member.finish([bucket for bucket in member.draining if self.chances.random() < 0.5])
        self.follow(name, self.views[name])

    def publish(self, name=None):
        name = name or self.pick()
        self.published[name].append(self.members[name].report())

    def lead(self, fresh=False):
        """Let a member make the next record from what it knows, if the record is still the one that it knows."""
        leader = self.pick()
        number = len(self.records) - 1 if fresh else self.views[leader]
        record = self.records[number]
        if number != len(self.records) - 1:
            return  # the API server would refuse the write
        is_safe = record is not None and record.settled
        reports = self.know(leader, fresh=fresh or not is_safe)
        if record is None or is_lost(record, reports) or is_orphaned(record, reports):
            reports = self.know(leader, fresh=True)
            division = self.members[leader].division
            self.records.append(begin(f'g{len(self.records)}', division, reports))
        elif (following := advance(record, reports)) is not record:
            self.records.append(following)

    def know(self, leader, *, fresh):
        reports = []
        for name in self.joined:
            if name in self.known_ends[leader]:
                continue
            former = self.known_reports.get((leader, name), 0)
            last = len(self.published[name]) - 1
            number = last if fresh else self.chances.randint(former, last)
            self.known_reports[leader, name] = number
            is_renewed = fresh or self.chances.random() < 0.8
            reports.append(self.published[name][number]._replace(is_renewed=is_renewed))
        return reports

    def lose(self):
        if self.records[-1] is not None:
            self.records.append(None)

    # What must hold.

    def pick(self):
        if not self.members:
            self.join()
        return self.chances.choice(sorted(self.members))

    def check(self):
        holders = collections.Counter(
            (bucket / member.division.buckets, (bucket + 1) / member.division.buckets)
            for member in self.members.values()
            for bucket in member.active | member.draining
        )
        spans = sorted(holders.elements())
        assert all(left[1] <= right[0] for left, right in zip(spans, spans[1:], strict=False)), spans

    def settle(self):
        """Let all members know everything, until nothing changes any more."""
        for _ in range(40):
            for name, member in self.members.items():
                self.views[name] = len(self.records) - 1
                self.follow(name, self.views[name])
                member.finish(member.draining)
                self.follow(name, self.views[name])
                self.publish(name)
            for name in self.members:
                self.known_ends[name] = {each for each in self.joined if each not in self.members}
            before = len(self.records)
            self.lead(fresh=True)
            if len(self.records) == before:
                return
        raise AssertionError("It does not settle.")


@settings(deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([True, False]))
def test_no_bucket_is_held_twice_whatever_comes_when(seed, with_losses):
    world = World(random.Random(seed))
    world.join()
    actions = [world.see] * 6 + [world.drain] * 4 + [world.publish] * 5 + [world.lead] * 5 + [world.notice_end] * 2
    actions += [world.join, world.die] + [world.lose] * with_losses
    if seed % 3 == 0:
        actions.append(lambda: world.join(OTHER))
    for _ in range(150):
        world.chances.choice(actions)()
        world.check()
    world.pick()
    world.settle()
    world.check()
    # All buckets are held by the members that agree on the division, evenly.
    record = world.records[-1]
    counts = [len(member.active) for member in world.members.values() if member.division == record.division]
    assert sum(counts) == record.division.buckets
    assert max(counts) - min(counts) <= 1


def grow(count, division=USUAL):
    world = World(random.Random(0))
    for _ in range(count):
        world.join(division)
    world.settle()
    return world


@pytest.mark.parametrize('before, after', [(1, 2), (2, 3), (3, 4), (5, 6)])
def test_a_further_member_moves_only_its_own_share(before, after):
    world = grow(before)
    holders = {bucket: name for name, member in world.members.items() for bucket in member.active}
    for _ in range(after - before):
        world.join(USUAL)
    world.settle()
    moved = [b for name, member in world.members.items() for b in member.active if holders[b] != name]
    assert len(moved) / 256 <= 1 / after + 0.01  # 3 to 4: at most 26 %
    counts = [len(member.active) for member in world.members.values()]
    assert max(counts) - min(counts) <= 1


def test_the_buckets_of_a_member_that_ends_are_the_only_ones_that_move():
    world = grow(4)
    holders = {bucket: name for name, member in world.members.items() for bucket in member.active}
    del world.members['m2']
    world.settle()
    moved = [b for name, member in world.members.items() for b in member.active if holders[b] != name]
    assert {holders[bucket] for bucket in moved} == {'m2'}
    assert sorted(len(member.active) for member in world.members.values()) == [85, 85, 86]


def make_report(member, held=(), *, division=SMALL, seen=('g', 1)):
    return Report(member, division, None if seen is None else Seen(*seen), frozenset(held))


ALL = frozenset(range(8))


def test_a_revoked_bucket_is_granted_only_after_its_holder_has_released_it():
    first = Assignment('g', 1, SMALL, {'a': Grant(ALL)})
    revoking = advance(first, [make_report('a', ALL), make_report('b')])
    assert revoking.grants == {'a': Grant(ALL, frozenset({4, 5, 6, 7}), 2)}
    # Released, but before the revocation was seen: it could be taken again.
    assert advance(revoking, [make_report('a', {0, 1, 2, 3}), make_report('b')]) == revoking
    # Seen, but still draining.
    assert advance(revoking, [make_report('a', ALL, seen=('g', 2)), make_report('b')]) == revoking
    granting = advance(revoking, [make_report('a', {0, 1, 2, 3, 7}, seen=('g', 2)), make_report('b')])
    assert granting.grants['b'].buckets == {4, 5, 6}
    assert granting.grants['a'].buckets == {0, 1, 2, 3, 7}


def test_the_buckets_of_a_member_that_has_ended_are_granted_at_once():
    first = Assignment('g', 1, SMALL, {'a': Grant(ALL)})
    assert advance(first, [make_report('b')]).grants == {'b': Grant(ALL)}


def test_a_record_that_need_not_change_stays_the_same():
    first = Assignment('g', 1, SMALL, {'a': Grant(ALL)})
    assert advance(first, [make_report('a', ALL)]) is first


def test_a_member_with_other_buckets_gets_none_until_the_others_have_ended():
    first = Assignment('g', 1, SMALL, {'a': Grant(ALL)})
    reports = [make_report('a', ALL), make_report('b', division=OTHER)]
    assert advance(first, reports) is first
    assert not is_orphaned(first, reports)
    assert is_orphaned(first, reports[1:])
    ownership = Ownership('b', OTHER)
    ownership.follow(first._replace(grants={'b': Grant(ALL)}))
    assert not ownership.active


def test_a_lost_record_is_made_anew_from_the_reports_and_grants_nothing_else_until_all_have_seen_it():
    reports = [make_report('a', {0, 1, 2}), make_report('b', {2, 3}), make_report('c', seen=None)]
    fresh = begin('h', SMALL, reports)
    assert fresh.grants == {'a': Grant(frozenset({0, 1})), 'b': Grant(frozenset({3}))}
    assert advance(fresh, reports) is fresh
    seen = [report._replace(seen=Seen('h', 1)) for report in reports]
    settled = advance(fresh, seen)
    assert settled.settled
    assert 2 in settled.find_free()  # both still report to hold it


def test_a_bucket_that_a_member_claims_without_a_grant_is_granted_to_none():
    first = Assignment('g', 1, SMALL, {'a': Grant(frozenset({0, 1, 2, 3}))})
    reports = [make_report('a', {0, 1, 2, 3}), make_report('liar', {6}), make_report('b')]
    assert 6 in advance(first, reports).find_free()


def test_a_lost_member_gets_no_buckets_from_one_that_sees_its_lease_for_the_first_time():
    # "lost" had a half until the second revision, then "ended" got it, and granted the other half to "new".
    record = Assignment('g', 4, SMALL, {'ended': Grant(frozenset({0, 1, 2, 3})), 'new': Grant(frozenset({4, 5, 6, 7}))})
    lost = make_report('lost', {0, 1, 2, 3}, seen=('g', 2))._replace(is_renewed=False)
    new = make_report('new', {4, 5, 6, 7}, seen=('g', 4))
    assert advance(record, [lost, new]).grants == {'new': Grant(ALL)}
    # A member that has seen the record, and still claims a bucket, has a mistake: the bucket stays free.
    assert advance(record, [lost._replace(seen=Seen('g', 4)), new]).find_free() == {0, 1, 2, 3}


def test_a_member_that_is_known_only_from_the_list_gets_no_more_buckets_until_its_next_renewal():
    record = Assignment('g', 4, SMALL, {'a': Grant(ALL)})
    other = make_report('b', seen=('g', 4))
    assert advance(record, [make_report('a', ALL), other._replace(is_renewed=False)]) is record
    assert advance(record, [make_report('a', ALL), other]).grants['a'].revoked == {4, 5, 6, 7}
    assert advance(record, [make_report('a', ALL)._replace(is_renewed=False)]) is record


def test_a_record_older_than_the_members_have_seen_is_lost():
    first = Assignment('g', 3, SMALL, {})
    assert is_lost(first, [make_report('a', seen=('g', 4))])
    assert not is_lost(first, [make_report('a', seen=('g', 3)), make_report('b', seen=('f', 9)), make_report('c')])


def test_a_member_ignores_older_records():
    ownership = Ownership('a', SMALL)
    ownership.follow(Assignment('g', 2, SMALL, {'a': Grant(ALL)}))
    assert not ownership.follow(Assignment('g', 1, SMALL, {})).dropped
    assert ownership.active == ALL


def test_a_bucket_that_is_being_drained_is_not_taken_again_before_that_has_ended():
    ownership = Ownership('a', SMALL)
    ownership.follow(Assignment('g', 1, SMALL, {'a': Grant(ALL)}))
    ownership.follow(Assignment('g', 2, SMALL, {'a': Grant(ALL, frozenset({7}), 2)}))
    again = Assignment('h', 1, SMALL, {'a': Grant(ALL)})
    assert not ownership.follow(again).taken
    assert ownership.report().held == ALL and ownership.report().draining == {7}
    ownership.finish({7})
    assert ownership.follow(again).taken == {7}
