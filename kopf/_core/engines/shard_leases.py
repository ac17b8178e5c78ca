"""
The stored form of the Leases of a sharded operator: one for each member, and one for their group.

Only the member itself renews its Lease; an annotation contains its buckets. The Lease of the group has the assignment
in an annotation; its holder is the member that writes it. It is written only if the assignment changes: its holder is
alive as long as it renews its own Lease.
"""

import datetime
import json
import urllib.parse
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from kopf._cogs.clients import api, errors
from kopf._core.engines.assignments import Assignment, Division, Grant, Report, Seen
from kopf._core.engines.buckets import format_ranges, parse_ranges
from kopf._core.engines.leases import MANAGED_BY, LeaseRecord, LeaseStore

GROUP_LABEL = 'kopf.dev/shards'
"""The label of all Leases of a group; its value is the name of the group."""

MEMBER_ANNOTATION = 'kopf.dev/shard'
"""The annotation of the Lease of a member: the report of the member, as JSON."""

GROUP_ANNOTATION = 'kopf.dev/assignment'
"""The annotation of the Lease of a group: the assignment, as JSON."""


class MemberState(NamedTuple):
    """The content of the Lease of a member."""

    report: Report
    since: str | None = None
    """When the member has last begun to hold or to release buckets, by its own clock."""


def make_member(name: str, epoch: int) -> str:
    """Return the identity of a member: the name of its Lease, and the number of the term in which it holds it."""
    return f'{name}/{epoch}'


def encode_member(epoch: int, state: MemberState) -> str:
    """Return the annotation of the Lease of a member."""
    report = state.report
    fields = {
        'epoch': epoch,
        'buckets': report.division.buckets,
        'key': report.division.key,
        'generation': None if report.seen is None else report.seen.generation,
        'revision': None if report.seen is None else report.seen.revision,
        'holds': format_ranges(report.held),
        'drains': format_ranges(report.draining),
        'since': state.since,
    }
    return json.dumps(fields, separators=(',', ':'))


def decode_member(name: str, text: object) -> MemberState:
    """
    Return what the annotation of the Lease says.

    Raises:
        ValueError: if the annotation is absent or malformed.
    """
    fields = _load(text)
    division = _get_division(fields)
    seen = None
    if fields.get('generation') is not None:
        seen = Seen(_get(fields, 'generation', str), _get(fields, 'revision', int))
    report = Report(
        make_member(name, _get(fields, 'epoch', int)),
        division,
        seen,
        frozenset(parse_ranges(fields.get('holds'), division.buckets)),
        frozenset(parse_ranges(fields.get('drains', ''), division.buckets)),
    )
    since = fields.get('since')
    return MemberState(report, since if isinstance(since, str) else None)


def encode_assignment(assignment: Assignment) -> str:
    """Return the annotation of the Lease of a group."""
    fields = {
        'generation': assignment.generation,
        'revision': assignment.revision,
        'settled': assignment.settled,
        'buckets': assignment.division.buckets,
        'key': assignment.division.key,
        'members': {
            member: {
                'granted': format_ranges(grant.buckets),
                'revoked': format_ranges(grant.revoked),
                'revokedAt': grant.revoked_at,
            }
            for member, grant in sorted(assignment.grants.items())
        },
    }
    return json.dumps(fields, separators=(',', ':'))


def decode_assignment(text: object) -> Assignment:
    """
    Return what the annotation of the Lease says.

    Raises:
        ValueError: if the annotation is absent or malformed.
    """
    fields = _load(text)
    division = _get_division(fields)
    return Assignment(
        _get(fields, 'generation', str),
        _get(fields, 'revision', int),
        division,
        {
            member: Grant(
                frozenset(parse_ranges(_get(grant, 'granted', str), division.buckets)),
                frozenset(parse_ranges(_get(grant, 'revoked', str), division.buckets)),
                _get(grant, 'revokedAt', int),
            )
            for member, grant in _get(fields, 'members', dict).items()
        },
        _get(fields, 'settled', bool),
    )


def _load(text: object) -> Mapping[str, Any]:
    if not isinstance(text, str):
        raise ValueError("there is no such annotation")
    fields = json.loads(text)
    if not isinstance(fields, dict):
        raise ValueError(f"{text!r:.200} is no JSON object")
    return fields


def _get(fields: Any, name: str, type_: type[Any]) -> Any:
    value = fields.get(name) if isinstance(fields, dict) else None
    if type(value) is not type_:
        raise ValueError(f"the field {name!r} is {value!r:.200}")
    return value


def _get_division(fields: Mapping[str, Any]) -> Division:
    return Division(_get(fields, 'buckets', int), _get(fields, 'key', str))


def get_annotation(body: Mapping[str, Any], name: str) -> Any:
    """Return the annotation of a Lease; ``None`` if it is absent."""
    annotations = body['metadata'].get('annotations')
    return annotations.get(name) if isinstance(annotations, Mapping) else None


class AnnotatedLeaseStore(LeaseStore):
    """
    One Lease of a sharded operator, which is read and written with its annotation.

    Args:
        client: the client of the API.
        namespace: the namespace of the Lease.
        name: the name of the Lease.
        group: the name of the group.
    """

    annotation = ''
    """The name of the annotation."""

    def __init__(self, client: api.ApiClient, *, namespace: str, name: str, group: str) -> None:
        super().__init__(client, namespace=namespace, name=name)
        self._group = group

    def get_text(self) -> str:
        """Return the annotation; called right before each write."""
        raise NotImplementedError

    def _fill(self, body: Mapping[str, Any], record: LeaseRecord) -> Mapping[str, Any]:
        filled = super()._fill(body, record)
        metadata = filled['metadata']
        labels = {**(metadata.get('labels') or {}), MANAGED_BY: 'kopf', GROUP_LABEL: self._group}
        annotations = {**(metadata.get('annotations') or {}), self.annotation: self.get_text()}
        return {**filled, 'metadata': {**metadata, 'labels': labels, 'annotations': annotations}}


class MemberStore(AnnotatedLeaseStore):
    """
    The Lease of a member.

    Args:
        client: the client of the API.
        namespace: the namespace of the Lease.
        name: the name of the Lease.
        group: the name of the group.
        get_text: returns the annotation; called right before each write.
        written: called with each written state.
    """

    annotation = MEMBER_ANNOTATION

    def __init__(
        self,
        client: api.ApiClient,
        *,
        namespace: str,
        name: str,
        group: str,
        get_text: Callable[[], str],
        written: Callable[[Mapping[str, Any]], None],
    ) -> None:
        super().__init__(client, namespace=namespace, name=name, group=group)
        self._get_text = get_text
        self._written = written

    def get_text(self) -> str:
        return self._get_text()

    async def create(self, record: LeaseRecord) -> Mapping[str, Any]:
        body = await super().create(record)
        self._note(body)
        return body

    async def replace(self, body: Mapping[str, Any], record: LeaseRecord, *, is_dry: bool = False) -> Mapping[str, Any]:
        answer = await super().replace(body, record, is_dry=is_dry)
        if not is_dry:
            self._note(answer)
        return answer

    def _note(self, body: Mapping[str, Any]) -> None:
        if body['metadata'].get('name') == self.name:  # proxies can respond with anything
            self._written(body)


class GroupLeaseStore(AnnotatedLeaseStore):
    """The Lease of the group; and all Leases of its members."""

    annotation = GROUP_ANNOTATION
    _text = ''

    def get_text(self) -> str:
        return self._text

    async def write(self, body: Mapping[str, Any] | None, record: LeaseRecord, text: str) -> Mapping[str, Any]:
        """Replace the Lease and its annotation, if it is still in this state; with ``None``, create it."""
        self._text = text
        return await (self.create(record) if body is None else self.replace(body, record))

    async def list_all(self) -> Collection[Mapping[str, Any]]:
        """Return all Leases of the group."""
        selector = urllib.parse.quote(f'{GROUP_LABEL}={self._group}')
        answer = await self._request('GET', f'{self._path}?labelSelector={selector}')
        items = answer.get('items', 0)
        if not isinstance(items, list | None):
            # If this were treated as an empty list, all other members would seem to be gone.
            raise errors.APIServerError(f"The answer is no list of Leases: {str(answer)[:200]}")
        return [item for item in items or () if isinstance(item, dict) and isinstance(item.get('metadata'), dict)]

    async def delete(self, body: Mapping[str, Any]) -> None:
        """Delete a Lease, if it is still in this state."""
        metadata = body['metadata']
        conditions = {'uid': metadata['uid'], 'resourceVersion': metadata['resourceVersion']}
        options = {'apiVersion': 'v1', 'kind': 'DeleteOptions', 'preconditions': conditions}
        await self._request('DELETE', f'{self._path}/{metadata["name"]}', options)


def parse_time(text: str | None) -> datetime.datetime | None:
    """Return the time of a Lease; ``None`` if it is absent or malformed."""
    try:
        return None if text is None else datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
