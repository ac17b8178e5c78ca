"""
The command ``kopf shards``: shows which member of a sharded operator holds which buckets, and since when.

A bucket is a fixed part of all objects; `kopf._core.engines.buckets` defines it. The command reads the Leases that the
members have written. The times in the Leases are from the clocks of the members, which can differ from the command's
clock. So if a Lease seems to be expired, or was renewed at a time in the future, the command waits and reads the Leases
once more: a member that has renewed its Lease meanwhile is alive.
"""

import asyncio
import datetime
import json
import logging
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from kopf._cogs.clients.api import ApiClient
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.helpers.clocks import read_wall_clock
from kopf._cogs.helpers.explanations import ExplainedError
from kopf._cogs.structs.references import Namespace, NamespacePattern, Resource, select_specific_namespaces
from kopf._core.engines.assignments import NOTHING, Assignment
from kopf._core.engines.buckets import format_ranges
from kopf._core.engines.leases import LEASES, LeaseRecord, find_namespace
from kopf._core.engines.shard_leases import (
    GROUP_ANNOTATION,
    GROUP_LABEL,
    MEMBER_ANNOTATION,
    MemberState,
    decode_assignment,
    decode_member,
    get_annotation,
    parse_time,
)

logger = logging.getLogger(__name__)

TOLERANCE = datetime.timedelta(seconds=1)
"""By how much the clock of a member may be ahead of the command's clock before the command waits for a renewal."""


class ShardsError(ExplainedError):
    """Raised when there are no shards to show. The message contains the reason and the remedy."""


class MemberFacts(NamedTuple):
    """One member, as its Lease describes it."""

    name: str
    record: LeaseRecord
    state: MemberState
    is_renewed: bool | None = None
    """Whether the member has renewed the Lease while the command waited; ``None`` if the command has not waited."""

    def is_silent(self, now: datetime.datetime) -> bool:
        """Check whether the Lease has expired: the member has not renewed it within its duration."""
        if self.is_renewed is not None:
            return not self.is_renewed
        renewed = parse_time(self.record.renewed)
        return renewed is not None and now > renewed + datetime.timedelta(seconds=self.record.duration or 0)

    def is_doubtful(self, now: datetime.datetime) -> bool:
        """Check whether it is unclear if the member is alive: its Lease has expired, or was renewed in the future."""
        renewed = parse_time(self.record.renewed)
        return renewed is not None and (self.is_silent(now) or renewed > now + TOLERANCE)


class GroupFacts(NamedTuple):
    """One group: its members, and the assignment of buckets to them."""

    name: str
    namespace: str
    holder: str | None
    assignment: Assignment | None
    members: Collection[MemberFacts]

    def find_unowned(self, now: datetime.datetime) -> frozenset[int]:
        """Return the buckets that no member holds."""
        buckets = 0 if self.assignment is None else self.assignment.division.buckets
        held = (member.state.report.held for member in self.members if not member.is_silent(now))
        return frozenset(range(buckets)) - NOTHING.union(*held)


class ShardsCommand:
    """
    Reads the Leases of the groups, and shows them.

    Args:
        name: the name of the group, or of the operator; by default, all groups are shown.
    """

    def __init__(self, name: str | None) -> None:
        self._name = name
        self.groups: list[GroupFacts] = []
        """The found groups."""

    async def __call__(
        self,
        client: ApiClient,
        settings: OperatorSettings,
        resources: Collection[Resource],
        patterns: Collection[NamespacePattern],
    ) -> None:
        """
        Read the Leases.

        Raises:
            ShardsError: if there is no such group.
            errors.APIError: if the API server refuses the request, or is unavailable.
        """
        namespaces: Collection[Namespace] = select_specific_namespaces(patterns) if patterns else [None]
        self.groups = await self._read(client, namespaces)
        if delay := _find_delay(self.groups, read_wall_clock()):
            logger.info("Waiting for %g seconds to see which members renew their Leases.", delay)
            former = {member.name: member.record for group in self.groups for member in group.members}
            await asyncio.sleep(delay)
            self.groups = [_compare(group, former) for group in await self._read(client, namespaces)]
        if not self.groups:
            where = ', '.join(sorted(str(each) for each in namespaces if each)) or 'the cluster'
            what = "an operator with shards" if self._name is None else f"the operator {self._name!r} with shards"
            # Without namespaces, the Leases of the whole cluster were listed.
            hint = f" Name their namespace, e.g.: kopf shards -n {find_namespace(client)}" if patterns else ""
            raise ShardsError(f"No Leases of {what} exist in {where}: it does not run there.{hint}")

    async def _read(self, client: ApiClient, namespaces: Collection[Namespace]) -> list[GroupFacts]:
        bodies: list[Mapping[str, Any]] = []
        for namespace in namespaces:
            path = LEASES.get_url(namespace=namespace)
            answer = await client.get_json(path, {'labelSelector': GROUP_LABEL})
            bodies += answer.get('items') or []
        names = None if self._name is None else {self._name, f'kopf-{self._name}-shards'}
        return [group for group in find_groups(bodies) if names is None or group.name in names]


def _find_delay(groups: Collection[GroupFacts], now: datetime.datetime) -> float:
    """Return how long to wait for renewals (in seconds). A third is enough: members renew more often than that."""
    members = [member for group in groups for member in group.members if member.is_doubtful(now)]
    return max((member.record.duration or 0.0 for member in members), default=0.0) / 3


def _compare(group: GroupFacts, former: Mapping[str, LeaseRecord]) -> GroupFacts:
    """Return the group with `is_renewed` of each member: whether its Lease is new or differs from the former one."""
    members = [member._replace(is_renewed=former.get(member.name) != member.record) for member in group.members]
    return group._replace(members=members)


def find_groups(bodies: Collection[Mapping[str, Any]]) -> Iterator[GroupFacts]:
    """Yield the groups that these Leases belong to, sorted by namespace and name."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for body in bodies:
        metadata = body['metadata']
        found.setdefault((metadata['namespace'], metadata['labels'][GROUP_LABEL]), []).append(body)
    for (namespace, name), leases in sorted(found.items()):
        assignment, holder, members = None, None, []
        for body in sorted(leases, key=lambda body: str(body['metadata']['name'])):
            record = LeaseRecord.parse(body.get('spec'))
            try:
                if body['metadata']['name'] == name:
                    holder = record.holder
                    assignment = decode_assignment(get_annotation(body, GROUP_ANNOTATION))
                elif record.holder is not None:
                    state = decode_member(body['metadata']['name'], get_annotation(body, MEMBER_ANNOTATION))
                    members.append(MemberFacts(body['metadata']['name'], record, state))
            except ValueError:
                continue  # the members log why they cannot use this Lease
        yield GroupFacts(name, namespace, holder, assignment, members)


def dump(groups: Collection[GroupFacts]) -> str:
    """Return the groups as JSON."""
    now = read_wall_clock()
    facts = [
        {
            'group': group.name,
            'namespace': group.namespace,
            'buckets': None if group.assignment is None else group.assignment.division.buckets,
            'key': None if group.assignment is None else group.assignment.division.key,
            'revision': None if group.assignment is None else group.assignment.revision,
            'assignedBy': group.holder,
            'unowned': format_ranges(group.find_unowned(now)),
            'members': [
                {
                    'lease': member.name,
                    'identity': member.record.holder,
                    'count': len(member.state.report.held),
                    'holds': format_ranges(member.state.report.held),
                    'drains': format_ranges(member.state.report.draining),
                    'since': member.state.since,
                    'acquired': member.record.acquired,
                    'renewed': member.record.renewed,
                    'silent': member.is_silent(now),
                }
                for member in group.members
            ],
        }
        for group in groups
    ]
    return json.dumps(facts, indent=2)


def render(groups: Collection[GroupFacts]) -> str:
    """Return the groups as text for people."""
    return '\n\n'.join('\n'.join(_render(group, read_wall_clock())) for group in groups)


def _render(group: GroupFacts, now: datetime.datetime) -> Iterator[str]:
    record = group.assignment
    about = 'without an assignment' if record is None else f'{record.division}, revision {record.revision}'
    yield f'{group.name} in {group.namespace}: {about}'
    rows = [('', 'MEMBER', 'COUNT', 'SINCE', 'HOLDS')]
    for member in group.members:
        report = member.state.report
        remarks = [f'(drains {format_ranges(report.draining)})'] if report.draining else []
        remarks += ['(silent)'] if member.is_silent(now) else []
        rows.append(
            (
                '*' if report.member == group.holder else '',
                str(member.record.holder),
                str(len(report.held)),
                _shorten(member.state.since),
                ' '.join([format_ranges(report.held) or '-', *remarks]),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield '  '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    if unowned := group.find_unowned(now):
        yield f'{len(unowned)} buckets are held by no member: {format_ranges(unowned)}'


def _shorten(text: str | None) -> str:
    time = parse_time(text)
    return '-' if time is None else f'{time.astimezone(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}'
