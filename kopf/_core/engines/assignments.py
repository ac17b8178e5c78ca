"""
The assignment of buckets to the members of a sharded operator.

One record grants buckets to members. Each member reports the buckets that it holds, and the revision of the record that
it has seen. This module is pure: it has neither a clock nor requests, and accepts records and reports in any order and
with any delay.

A bucket can never be held by two members at once:

- A member holds only buckets that the newest known record grants to it.
- The record takes a bucket away in two steps. First, it revokes the bucket: the member begins no further work on its
  objects. Then the member reports that it has seen this revision, and that it does not hold the bucket any more. Only
  after that, or when the member has ended or expired, the record grants the bucket to another member.
- These facts are permanent: a member that has seen the revocation cannot take the bucket back, and a member that has
  ended never continues (if its process continues, it becomes a new member). So a decision from old reports is still
  correct. The record is replaced only if it has not changed since the decision.

If the record is lost, the next record begins with the reported buckets, and grants no others until all members have
seen it.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

NOTHING: frozenset[int] = frozenset()


class Division(NamedTuple):
    """The division of all objects into buckets. All members must agree on it."""

    buckets: int
    """The number of buckets."""
    key: str
    """The hashed field: ``uid`` or ``namespace``."""

    def __str__(self) -> str:
        return f'{self.buckets} buckets by {self.key}'


class Seen(NamedTuple):
    """The newest record that a member has seen."""

    generation: str
    revision: int


class Report(NamedTuple):
    """The report of one member about itself."""

    member: str
    division: Division
    seen: Seen | None = None
    """The newest record that the member has seen; ``None`` if it has not seen any."""
    held: frozenset[int] = NOTHING
    """The buckets that the member holds, including the draining ones."""
    draining: frozenset[int] = NOTHING
    """The held buckets whose objects still have running handlers or daemons, but get no new ones."""
    is_absent: bool = False
    """Whether the Lease of the member is gone, although the member can still be working: it gets no more buckets."""
    is_renewed: bool = True
    """
    Whether the Lease has changed since the deciding process sees it, or is newer than that.

    Otherwise, the member can have been lost: its Lease stays for a while. Without a grant, it gets no buckets.
    """


class Grant(NamedTuple):
    """The buckets that one member may hold."""

    buckets: frozenset[int] = NOTHING
    """All granted buckets, including the revoked ones."""
    revoked: frozenset[int] = NOTHING
    """The buckets that the member must drain and release."""
    revoked_at: int = 0
    """The revision of the record that has revoked the last of these buckets."""


class Assignment(NamedTuple):
    """The record of a group."""

    generation: str
    """A random text that no other record of the group has, if the former one was lost."""
    revision: int
    division: Division
    grants: Mapping[str, Grant]
    """The grants by members."""
    settled: bool = True
    """Whether all members have seen this generation. Until then, no other buckets are granted."""

    def find_granted(self) -> frozenset[int]:
        """Return all buckets that any member may hold."""
        return NOTHING.union(*(grant.buckets for grant in self.grants.values()))

    def find_free(self) -> frozenset[int]:
        """Return the buckets that no member may hold."""
        return frozenset(range(self.division.buckets)) - self.find_granted()


# The group.


def begin(generation: str, division: Division, reports: Collection[Report]) -> Assignment:
    """
    Return the first record of a group, or the one after a lost record.

    It grants the buckets that members report to hold, so that they continue; it revokes those that several members
    report.

    Args:
        generation: a new random text.
        division: the division, if no member holds any buckets yet.
        reports: the reports of all members that have not ended. They must be newer than the loss of the former record.
    """
    working = [report for report in reports if report.held and not report.is_absent]
    if working:
        division = working[0].division
    claims = [report for report in working if report.division == division]
    grants: dict[str, Grant] = {}
    for report in claims:
        others = NOTHING.union(*(other.held for other in claims if other is not report))
        if report.held - others:
            grants[report.member] = Grant(report.held - others)
    return Assignment(generation, 1, division, grants, settled=False)


def is_lost(assignment: Assignment, reports: Iterable[Report]) -> bool:
    """Check whether the record was replaced with an older one, e.g. when a cluster was restored from a backup."""
    seen = [report.seen for report in reports if report.seen is not None]
    return any(each.generation == assignment.generation and each.revision > assignment.revision for each in seen)


def is_orphaned(assignment: Assignment, reports: Iterable[Report]) -> bool:
    """Check whether all members with the division of the record have ended, so that others can begin with theirs."""
    return all(report.division != assignment.division and not report.held for report in reports)


def advance(assignment: Assignment, reports: Collection[Report]) -> Assignment:
    """
    Return the next record; the same one if nothing is to be changed.

    Args:
        assignment: the current record.
        reports: the newest known reports of all members that have not ended. If the record is not settled, they must
            be newer than the record.
    """
    by_member = {report.member: report for report in reports}
    grants = {
        member: _collect(grant, assignment, by_member[member])
        for member, grant in assignment.grants.items()
        if member in by_member
    }
    settled = assignment.settled or all(
        report.seen is not None and report.seen.generation == assignment.generation for report in reports
    )
    revision = assignment.revision + 1
    if settled:
        eligible = [report for report in reports if _is_eligible(report, assignment)]
        claimed = _find_claimed(assignment, reports)
        grants = _distribute(grants, eligible, assignment.division.buckets, claimed, revision)
    grants = {member: grant for member, grant in grants.items() if grant.buckets}
    if grants == assignment.grants and settled == assignment.settled:
        return assignment
    return assignment._replace(revision=revision, grants=grants, settled=settled)


def _collect(grant: Grant, assignment: Assignment, report: Report) -> Grant:
    """Remove the revoked buckets that the member has released from the grant."""
    seen = report.seen
    if seen is None or seen.generation != assignment.generation or seen.revision < grant.revoked_at:
        return grant
    return grant._replace(buckets=grant.buckets - (grant.revoked - report.held), revoked=grant.revoked & report.held)


def _is_eligible(report: Report, assignment: Assignment) -> bool:
    """Check whether the member can get buckets."""
    if report.division != assignment.division or report.is_absent:
        return False
    return report.is_renewed or report.member in assignment.grants


def _find_claimed(assignment: Assignment, reports: Iterable[Report]) -> frozenset[int]:
    """Return the buckets that members hold without a grant: they drain them after the loss of a record."""
    claimed = NOTHING
    for report in reports:
        if report.held and report.division != assignment.division:
            # The buckets of another division contain other objects.
            return frozenset(range(assignment.division.buckets))
        grant = assignment.grants.get(report.member, Grant())
        ungranted = report.held - grant.buckets
        # A bucket is granted to another member only when the former one has released it, or has ended. If it has ended,
        # a process that sees its Lease for the first time would wait once more until that expires.
        seen = report.seen
        if seen is not None and seen.generation == assignment.generation and seen.revision < assignment.revision:
            ungranted -= assignment.find_granted()
        claimed |= ungranted
    return claimed


def _distribute(
    grants: Mapping[str, Grant],
    eligible: Collection[Report],
    buckets: int,
    claimed: frozenset[int],
    revision: int,
) -> dict[str, Grant]:
    """Grant the free buckets, and revoke as few as possible, so that all members get equally many."""
    result = dict(grants)
    granted = NOTHING.union(*(grant.buckets for grant in grants.values()))
    free = sorted(frozenset(range(buckets)) - granted - claimed)
    quotas = _find_quotas({report.member: _count_kept(grants.get(report.member)) for report in eligible}, buckets)
    for member, quota in quotas.items():
        grant = result.get(member, Grant())
        kept = sorted(grant.buckets - grant.revoked)
        if len(kept) > quota:
            excess = frozenset(kept[quota:])
            result[member] = grant._replace(revoked=grant.revoked | excess, revoked_at=revision)
        elif free and len(kept) < quota:
            missing = quota - len(kept)
            added, free = free[:missing], free[missing:]
            result[member] = grant._replace(buckets=grant.buckets.union(added))
    return result


def _count_kept(grant: Grant | None) -> int:
    return 0 if grant is None else len(grant.buckets - grant.revoked)


def _find_quotas(kept: Mapping[str, int], buckets: int) -> dict[str, int]:
    """Return the number of buckets for each member. Members with the most buckets get the remaining ones."""
    if not kept:
        return {}
    least, more = divmod(buckets, len(kept))
    members = sorted(kept, key=lambda member: (-kept[member], member))
    return {member: least + (number < more) for number, member in enumerate(members)}


# One member.


class Changes(NamedTuple):
    """The changes that a new record makes for a member."""

    taken: frozenset[int]
    """The buckets that the member holds from now on."""
    dropped: frozenset[int]
    """The buckets to drain: no further work begins on their objects."""


NO_CHANGES = Changes(NOTHING, NOTHING)


class Ownership:
    """The buckets that one member holds."""

    def __init__(self, member: str, division: Division) -> None:
        self.member = member
        self.division = division
        self.seen: Seen | None = None
        self.active: frozenset[int] = NOTHING
        """The buckets whose objects are handled."""
        self.draining: frozenset[int] = NOTHING
        """The buckets whose objects still have running handlers or daemons, but get no new ones."""

    def follow(self, assignment: Assignment) -> Changes:
        """
        Follow a newer record.

        Buckets that are still being drained are not taken again: all running work for them must end first.
        """
        seen = Seen(assignment.generation, assignment.revision)
        if self.seen is not None and seen.generation == self.seen.generation and seen.revision < self.seen.revision:
            return NO_CHANGES
        self.seen = seen
        permitted = NOTHING
        if assignment.division == self.division and (grant := assignment.grants.get(self.member)) is not None:
            permitted = grant.buckets - grant.revoked
        changes = Changes(permitted - self.active - self.draining, self.active - permitted)
        self.active = self.active - changes.dropped | changes.taken
        self.draining |= changes.dropped
        return changes

    def finish(self, buckets: Collection[int]) -> None:
        """Called when all work for the objects of these buckets has ended."""
        self.draining -= frozenset(buckets)

    def report(self) -> Report:
        """Return the report of the member."""
        return Report(self.member, self.division, self.seen, self.active | self.draining, self.draining)
