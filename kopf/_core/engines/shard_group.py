"""
The group of a sharded operator from the view of one member: the Leases of all members, and the assignment.

One member writes the assignment: the holder of the group's Lease. If that member has ended, any other member takes its
place. Two writers do no harm: a record is replaced only if it has not changed since the decision, and decisions are
based on facts that never change (see `assignments`). One of these facts needs the clock: a member has expired when its
Lease has not been renewed for the duration in the Lease, measured by the monotonic clock of this process. This process
can have been suspended meanwhile, so the Leases are requested once more before a member counts as expired.
"""

import asyncio
import json
import logging
import math
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Protocol

from kopf._cogs.clients import errors
from kopf._cogs.configs.configuration import ShardingSettings
from kopf._cogs.helpers.clocks import read_time, read_wall_clock
from kopf._cogs.structs.bodies import is_older_version
from kopf._core.engines import assignments
from kopf._core.engines.assignments import Assignment, Division, Report
from kopf._core.engines.buckets import format_ranges
from kopf._core.engines.lease_candidate import SILENCE, LeadershipError
from kopf._core.engines.leases import LeaseRecord, format_time
from kopf._core.engines.shard_leases import (
    GROUP_ANNOTATION,
    MEMBER_ANNOTATION,
    MemberState,
    decode_assignment,
    decode_member,
    encode_assignment,
    get_annotation,
)
from kopf._core.intents.role_rules import list_general_rules

logger = logging.getLogger(__name__)

UNLIMITED = 10 * 365 * 24 * 3600
"""
The duration in the Lease of the group (in seconds).

The holder does not renew this Lease, so it must seem valid for long: another operator that elects its leader by a Lease
of the same name must not take it over.
"""

CONFLICT_DELAY = 0.05
"""The delay of the next attempt if another member has written the record (in seconds)."""

[_RULE] = list_general_rules(clusterwide=True, sharded=True, posting=False, scanning=False)
RULES = f'- {{apiGroups: ["{_RULE.group}"], resources: ["{_RULE.resource}"], verbs: {json.dumps(_RULE.verbs)}}}'
"""The rules of RBAC that members need in the namespace of their Leases."""


class GroupStore(Protocol):
    """The Leases of the group in the API."""

    name: str
    namespace: str

    async def read(self) -> Mapping[str, Any] | None:
        """Return the Lease of the group; ``None`` if it does not exist."""

    async def write(self, body: Mapping[str, Any] | None, record: LeaseRecord, text: str) -> Mapping[str, Any]:
        """Replace the Lease of the group and its annotation, if its body has not changed; without a body, create it."""

    async def list_all(self) -> Collection[Mapping[str, Any]]:
        """Return all Leases of the group."""

    async def delete(self, body: Mapping[str, Any]) -> None:
        """Delete a Lease, if its body has not changed."""


class KnownLease:
    """
    The last seen state of the Lease of one member.

    Args:
        name: the name of the Lease.
        seen_at: when it was seen, or when it was found to be absent.
        duration: after which the member expires if its Lease does not say that (in seconds).
        is_new: whether the Lease did not exist yet when this process has joined the group.
    """

    def __init__(self, name: str, seen_at: float, duration: float, *, is_new: bool) -> None:
        self.name = name
        self.is_renewed = is_new
        """Whether the Lease has changed since it was seen for the first time, or is new."""
        self._duration = duration
        self._expired = ''  # the member that has expired, even if a late request has renewed the Lease afterwards
        self.body: Mapping[str, Any] | None = None
        """The last known state; ``None`` if the Lease does not exist."""
        self._was_seen = False
        self._expected = ''  # a later member than that of the known state, according to the Lease of the group
        self.record = LeaseRecord(None)
        """The record of the last state in which the Lease existed."""
        self.state: MemberState | None = None
        """The report of the member in that state; ``None`` if it is malformed."""
        self.changed_at = self.seen_at = seen_at
        self.confirmed_at = -math.inf
        """The time of the last request of the API that has returned this state."""

    def see(self, body: Mapping[str, Any] | None, now: float) -> None:
        """Take a newer state."""
        self._note_expiry()
        was_there, self.body, self.seen_at = self.body is not None, body, now
        self._was_seen |= was_there or body is not None
        self.is_renewed |= was_there and body is not None
        if body is None:
            if was_there:
                self.changed_at = now  # its member goes on until it notices
            return
        record = LeaseRecord.parse(body.get('spec'))
        if record != self.record or not was_there:
            self.record, self.changed_at = record, now
        try:
            self.state = decode_member(self.name, get_annotation(body, MEMBER_ANNOTATION))
        except ValueError as error:
            if self.state is not None:
                logger.warning("The Lease %r does not say which buckets its member holds: %s.", self.name, error)
        if self.state is not None and not is_later(self._expected, self.state.report.member):
            self._expected = ''

    def see_deletion(self, last: Mapping[str, Any], now: float) -> None:
        """
        Called when the watch has reported the deletion.

        Usually, the Lease is deleted because its member has expired. Then the time of its last renewal stays, which is
        to be confirmed by a request. Otherwise, the members would wait for the duration once more.

        Args:
            last: the state before the deletion; without the record if the watch has missed the deletion.
            now: the present time.
        """
        is_unrenewed = not self._expected and LeaseRecord.parse(last.get('spec')) == self.record
        changed_at, is_silent = self.changed_at, now >= self.find_expiry()
        self.see(None, now)
        if is_unrenewed and is_silent:
            self.changed_at = changed_at

    def expect(self, member: str, now: float) -> None:
        """
        Called when the Lease of the group names this member: the member must have held its own Lease already.

        The known state can be older, from a former term that was released or has expired. It does not prove that the
        present term of the member has ended.
        """
        known = self._expected or ('' if self.state is None else self.state.report.member)
        if is_later(member, known):
            self._note_expiry()
            self._expected, self.changed_at = member, now

    def _note_expiry(self) -> None:
        if not self._expected and self.state is not None and self.confirmed_at >= self.find_expiry():
            self._expired = self.state.report.member

    def confirm(self, asked_at: float) -> None:
        """Called when a request of this time has returned the known state."""
        self.confirmed_at = asked_at

    @property
    def is_released(self) -> bool:
        """Return whether the member has released the Lease."""
        return self._was_seen and self.record.holder is None and not self._expected

    def find_expiry(self) -> float:
        """Return when the member expires."""
        return self.changed_at + (self.record.duration or self._duration)

    def has_ended(self, member: str) -> bool:
        """Check whether the member has certainly ended: it can never continue."""
        if self.is_released or self._expired == member:
            return True
        if self.body is not None and self.state is not None and is_later(self.state.report.member, member):
            return True  # the same process has begun another term, after all its work had ended
        return self.confirmed_at >= self.find_expiry()

    def is_doubtful(self, now: float) -> bool:
        """Check whether the member seems to have expired, but its Lease was not requested again since then."""
        expiry = self.find_expiry()
        return not self.is_released and now >= expiry > self.confirmed_at


def is_later(member: str, other: str) -> bool:
    """Check whether a member is the same process as another one, in a later term."""
    return member.rpartition('/')[0] == other.rpartition('/')[0] and _get_epoch(member) > _get_epoch(other)


class ShardGroup:
    """
    The group from the view of one member.

    Args:
        store: the Leases.
        settings: the times.
        division: how this member divides the objects.
        get_report: returns the report of this member; ``None`` while the process is no member.
        changed: called when the assignment has changed.
    """

    def __init__(
        self,
        store: GroupStore,
        settings: ShardingSettings,
        *,
        division: Division,
        get_report: Callable[[], Report | None],
        changed: Callable[[], None],
    ) -> None:
        self._store = store
        self._settings = settings
        self._division = division
        self._get_report = get_report
        self._changed = changed
        self.assignment: Assignment | None = None
        """The newest known record; ``None`` if no record is known."""
        self.leases: dict[str, KnownLease] = {}
        """The Leases of the members, by their names."""
        self._body: Mapping[str, Any] | None = None  # the Lease of the group
        self._known = False  # whether that Lease was requested since this member has joined
        self._body_seen_at = -math.inf
        self._holder_since = -math.inf  # when the present holder of that Lease was first seen
        self._heard_at = -math.inf  # when any Lease of a member was seen the last time
        self._polled_at = -math.inf  # when the Leases were requested the last time, as the watch was silent
        self._next_attempt = -math.inf
        self._failure: str | None = None
        self._listed = False  # whether the Leases could be listed at least once
        self._told: set[str] = set()  # the keys of the logged warnings, which are not logged again
        self._ended_at: dict[str, float] = {}  # when members were first known to have ended, by their Leases
        self._keeps_ended = False  # whether Leases of ended members cannot be deleted
        self._wakeup = asyncio.Event()

    @property
    def holder(self) -> str | None:
        """The member that writes the assignment, or another program that holds the Lease."""
        return None if self._body is None else LeaseRecord.parse(self._body.get('spec')).holder

    def find_unowned(self) -> int:
        """Return the number of buckets that no member handles, as far as known; callable from any thread."""
        assignment, report, now = self.assignment, self._get_report(), read_time()
        if assignment is None:
            return self._division.buckets
        unowned = assignment.division.buckets
        for member, grant in assignment.grants.items():
            lease = self.leases.get(member.rpartition('/')[0])
            # A member that has been silent for so long has stopped its work.
            is_working = lease is not None and now < lease.changed_at + self._settings.renew_deadline
            if is_working or (report is not None and report.member == member):
                unowned -= len(grant.buckets)
        return unowned

    # The knowledge of the group.

    def join(self) -> None:
        """Called when this process has become a member: it must read the Leases again before any decision."""
        self._known = False
        self.assignment = None
        self.wake()

    def forget(self) -> None:
        """Called when a login has led to another cluster, which has other Leases."""
        self.leases.clear()
        self._ended_at.clear()
        self._body, self._body_seen_at, self._holder_since = None, -math.inf, -math.inf
        self.join()

    def wake(self) -> None:
        """Called when the report of this member has changed, or anything else that decisions depend on."""
        self._wakeup.set()

    def see(self, body: Mapping[str, Any], *, is_deleted: bool = False, asked_at: float | None = None) -> None:
        """
        Called with each state of a Lease of the group.

        Args:
            body: the state.
            is_deleted: whether the Lease is deleted.
            asked_at: when the state was requested, by `read_time`; ``None`` if the watch has reported it.
        """
        name = body['metadata']['name']
        if name == self._store.name:
            if not _is_outdated(body, self._body, self._body_seen_at, asked_at):
                self._see_group(None if is_deleted else body)
            return
        now = self._heard_at = read_time()
        lease = self.leases.get(name)
        if lease is None:
            lease = self.leases[name] = KnownLease(name, now, self._settings.duration, is_new=self._known)
        if not is_deleted and _is_same(body, lease.body):
            return  # not woken: the requests of a decision would cause another one, without an end
        if not _is_outdated(body, lease.body, lease.seen_at, asked_at):
            if is_deleted:
                lease.see_deletion(body, now)
            else:
                lease.see(body, now)
        if is_deleted and lease.is_released:
            del self.leases[name]
        self.wake()

    def _see_group(self, body: Mapping[str, Any] | None) -> None:
        known, former, self._body, self._body_seen_at = self._body, self.holder, body, read_time()
        if self.holder != former or self._holder_since == -math.inf:
            self._holder_since = self._body_seen_at
        if not _is_same(body, known):
            self.wake()
        if body is None:
            self.assignment = None  # the members keep the buckets that they hold
            return
        try:
            assignment = decode_assignment(get_annotation(body, GROUP_ANNOTATION))
        except ValueError as error:
            self._tell(
                f'record {error}',
                f"The Lease {self._store} is not that of the shards of a kopf operator: {error}. If it is not meant "
                f"for this operator, set settings.sharding.name to another name.",
                'shards-lease-foreign',
            )
            self.assignment = None
            return
        for member in {*assignment.grants, self.holder or ''}:
            if (lease := self.leases.get(member.rpartition('/')[0])) is not None:
                lease.expect(member, self._body_seen_at)
        if assignment != self.assignment and self._known:
            self.assignment = assignment
            self._changed()

    def _tell(self, key: str, message: str, code: str) -> None:
        """Log a warning with its code, once."""
        if key not in self._told:
            self._told.add(key)
            logger.warning("%s", message, extra={'message_code': code})

    # The members.

    def _get_lease(self, name: str) -> KnownLease:
        lease = self.leases.get(name)
        if lease is None:
            # The record names a member without a Lease: the member can still work, as its Lease was perhaps just
            # deleted.
            lease = self.leases[name] = KnownLease(name, read_time(), self._settings.duration, is_new=self._known)
        return lease

    def _find_concerned(self) -> Iterator[tuple[KnownLease, Report]]:
        """Return the Leases that can have a working member, except for the own one, with the reports of the members."""
        own = self._get_report()
        granted: dict[str, list[str]] = {}
        for member in () if self.assignment is None else self.assignment.grants:
            granted.setdefault(member.rpartition('/')[0], []).append(member)
        for name in [*self.leases, *(name for name in granted if name not in self.leases)]:
            lease = self._get_lease(name)
            if own is not None and name == own.member.rpartition('/')[0]:
                continue
            report = None if lease.state is None else lease.state.report
            # A process has only one member at a time: all its former terms have ended. The record can know a later one.
            members = [*granted.get(name, ()), *([] if report is None else [report.member])]
            member = max(members, key=_get_epoch, default='')
            if not lease.has_ended(member):
                yield lease, self._find_report(lease, member)

    def _find_report(self, lease: KnownLease, member: str) -> Report:
        if lease.state is not None and lease.state.report.member == member:
            return lease.state.report._replace(is_absent=lease.body is None, is_renewed=lease.is_renewed)
        # Nothing is known of the member except for its grants.
        grant = None if self.assignment is None else self.assignment.grants.get(member)
        division = self._division if self.assignment is None else self.assignment.division
        held = assignments.NOTHING if grant is None else grant.buckets
        return Report(member or f'{lease.name}/0', division, None, held, is_absent=True)

    def find_reports(self) -> list[Report]:
        """
        Return the published reports of all members that have not ended, this one included.

        Why not what this process knows of itself? Until its Lease says that a bucket is released, all others must
        assume that it is held: no Lease may ever say that of a bucket that the record grants to another member.
        """
        own = self._get_report()
        reports = [report for _, report in self._find_concerned()]
        if own is not None:
            published = self._find_report(self._get_lease(own.member.rpartition('/')[0]), own.member)
            reports.append(published._replace(is_renewed=True))
        return reports

    # The task.

    async def run(self) -> None:
        """
        Read and write the Leases as necessary, until cancelled.

        Raises:
            LeadershipError: if the operator can never take part, e.g. without the permission.
        """
        while True:
            await self._wait()
            if self._get_report() is not None and read_time() >= self._next_attempt:
                await self._attempt()

    async def _wait(self) -> None:
        """Wait until something has changed, or a time has come; but not before the next attempt after a failure."""
        while (delay := self._find_due() - read_time()) > 0:
            if self._wakeup.is_set():
                await asyncio.sleep(delay)
                continue
            try:
                async with asyncio.timeout(None if delay == math.inf else delay):
                    await self._wakeup.wait()
            except TimeoutError:
                break  # the time that was waited for is over, so `_find_due` does not return it any more
        self._wakeup.clear()

    def _find_due(self) -> float:
        """Return the time of the next decision; see `read_time`."""
        if self._wakeup.is_set():
            return self._next_attempt
        if self._get_report() is None:
            return math.inf
        settings, now = self._settings, read_time()
        times = [self._find_poll()]
        times += [expiry for lease in self.leases.values() if (expiry := lease.find_expiry()) > now]
        times += [time + settings.duration for time in self._ended_at.values() if time + settings.duration > now]
        return max(min(times), self._next_attempt)

    def _find_poll(self) -> float:
        """Return when to request the Leases. The watch also reports the own renewals: if it is silent, it is broken."""
        return max(self._heard_at, self._polled_at) + self._settings.retry_period * SILENCE

    async def _attempt(self) -> None:
        started = read_time()
        try:
            async with asyncio.timeout(self._settings.renew_deadline / 2):
                await self._act(started)
        except errors.APIConflictError:
            pass  # another member was faster: the next request or the watch brings its record
        except (errors.APIError, TimeoutError) as error:
            self._note_failure(error)
            self._next_attempt = started + self._settings.retry_period
            self.wake()
            return
        if self._failure is not None:
            self._failure = None
            logger.info("The Leases of the group %s can be accessed again.", self._store)

    def _note_failure(self, error: Exception) -> None:
        text = str(error) or repr(error)
        if isinstance(error, errors.APIForbiddenError) and not self._listed and not error.is_by_admission:
            raise LeadershipError(
                f"The Leases of the group {self._store} are not permitted to the operator, so it cannot share the "
                f"objects with other members: {text} Grant these rules by a Role in the namespace "
                f"{self._store.namespace!r}: {RULES}"
            ) from error
        level = logging.WARNING if self._failure is None else logging.DEBUG
        logger.log(level, "The Leases of the group %s cannot be accessed; trying again: %s", self._store, text)
        self._failure = text

    async def _act(self, started: float) -> None:
        if not self._known:
            await self._begin()
        if started >= self._find_poll():
            self._polled_at = started
            await self._list()
            await self._read()
        if not await self._take_lead():
            return
        now = read_time()
        if any(lease.is_doubtful(now) for lease, _ in self._find_concerned()):
            await self._list()
        await self._lead()
        await self._clean_up()

    async def _begin(self) -> None:
        """Read all Leases, after the own one was written: see `assignments`."""
        await self._list()
        self._known = True
        self._polled_at = read_time()
        try:
            await self._read()
        except BaseException:
            self._known = False  # otherwise, the holder of the Lease would seem to be another program
            raise

    async def _list(self) -> None:
        asked_at = read_time()
        bodies = await self._store.list_all()
        self._listed = True
        found = set()
        for body in bodies:
            found.add(body['metadata']['name'])
            self.see(body, asked_at=asked_at)
        for lease in list(self.leases.values()):
            # Unless the watch has brought it since the request.
            if lease.name not in found and lease.body is not None and lease.seen_at <= asked_at:
                lease.see(None, read_time())
            if lease.changed_at <= asked_at:
                lease.confirm(asked_at)

    async def _read(self) -> None:
        asked_at = read_time()
        body = await self._store.read()
        if body is None and self._body_seen_at <= asked_at:
            self._see_group(None)
        elif body is not None and not _is_outdated(body, self._body, self._body_seen_at, asked_at):
            self._see_group(body)

    async def _take_lead(self) -> bool:
        """Check whether this member writes the assignment: if it holds the Lease, or if no other member holds it."""
        own = self._get_report()
        if own is None or self.holder in (None, own.member):
            return own is not None
        holder = str(self.holder)
        if self.assignment is None:
            return await self._outwait_stranger(holder)
        lease = self._get_lease(holder.rpartition('/')[0])
        if lease.is_doubtful(read_time()):
            await self._list()
        return lease.has_ended(holder)

    async def _outwait_stranger(self, holder: str) -> bool:
        """Check whether the Lease of the group has expired, while its holder is not a member."""
        self._tell(
            f'holder {holder}',
            f"The Lease {self._store} is held by {holder!r}, which is no member of this group: nothing is handled "
            f"until that ends. If it is another program, set settings.sharding.name to another name.",
            'shards-lease-foreign',
        )
        # Requested, as the watch brings only Leases with the label of the group.
        version = self._version
        await self._read()
        if self._version != version:
            self._holder_since = read_time()
        record = LeaseRecord.parse((self._body or {}).get('spec'))
        asyncio.get_running_loop().call_later(self._settings.retry_period, self.wake)
        return record.holder is None or read_time() >= self._holder_since + (record.duration or self._settings.duration)

    @property
    def _version(self) -> str | None:
        """The resource version of the Lease of the group."""
        return None if self._body is None else self._body['metadata'].get('resourceVersion')

    async def _lead(self) -> None:
        """Write the next record, if there is anything to change."""
        version, record, reports = self._version, self.assignment, self.find_reports()
        is_over = record is None or assignments.is_lost(record, reports) or assignments.is_orphaned(record, reports)
        if is_over or record is None or not record.settled:
            await self._list()
            reports = self.find_reports()
        own = self._get_report()
        if self._version != version or own is None:
            self.wake()  # meanwhile, another record was written, or this process is no member any more
            return
        if is_over or record is None:
            following = assignments.begin(uuid.uuid4().hex[:10], self._division, reports)
        else:
            following = assignments.advance(record, reports)
            self._tell_mistakes(record, reports)
        if following is not record or self.holder != own.member:
            await self._write(own, following)

    async def _write(self, own: Report, assignment: Assignment) -> None:
        now = format_time(read_wall_clock())
        former = LeaseRecord.parse(None if self._body is None else self._body.get('spec'))
        is_same = former.holder == own.member
        record = LeaseRecord(
            holder=own.member,
            duration=UNLIMITED,
            acquired=former.acquired if is_same else now,
            renewed=now,
            transitions=former.transitions + (not is_same and self._body is not None),
        )
        try:
            answer = await self._store.write(self._body, record, encode_assignment(assignment))
        except (errors.APIConflictError, errors.APINotFoundError) as error:
            if isinstance(error, errors.APINotFoundError) and self._body is None:
                raise
            # Another member was faster, or the Lease is gone, or the last response was lost.
            await self._read()
            asyncio.get_running_loop().call_later(CONFLICT_DELAY, self.wake)
            return
        if not is_same:
            logger.info("This member, %r, assigns the buckets of the group %s.", own.member, self._store)
        if not _is_outdated(answer, self._body, self._body_seen_at, None):
            self._see_group(answer)

    def _tell_mistakes(self, record: Assignment, reports: Collection[Report]) -> None:
        """Warn of members that do not fit to the group."""
        for report in reports:
            grant = record.grants.get(report.member)
            granted = assignments.NOTHING if grant is None else grant.buckets
            if report.division != record.division:
                self._tell(
                    f'division {report.member}',
                    f"The member {report.member!r} has {report.division}, but the group {self._store} has "
                    f"{record.division}: it works when all others have ended. Set the same settings.sharding.buckets "
                    f"and settings.sharding.key for all.",
                    'shards-differ',
                )
            elif report.held - report.draining - granted and report.seen == (record.generation, record.revision):
                self._tell(
                    f'liar {report.member}',
                    f"The member {report.member!r} says that it holds the buckets "
                    f"{format_ranges(report.held - granted)}, which are not granted to it: nothing is changed for "
                    f"them. Its Lease was edited, or it does not work as it must: end it.",
                    'member-untrue',
                )

    async def _clean_up(self) -> None:
        """Delete the Leases of ended members a while after their end; others must be able to see that they ended."""
        now, duration = read_time(), self._settings.duration
        concerned = {lease.name for lease, _ in self._find_concerned()}
        own = self._get_report()
        concerned.add('' if own is None else own.member.rpartition('/')[0])
        ended = {name for name in self.leases if name not in concerned}
        self._ended_at = {name: self._ended_at.get(name, now) for name in ended}
        for name in [name for name, time in self._ended_at.items() if now >= time + duration]:
            lease = self.leases.get(name)  # the watch can have reported its deletion during the former request
            if lease is None or lease.body is None or await self._delete(lease.body):
                self.leases.pop(name, None)
                self._ended_at.pop(name, None)

    async def _delete(self, body: Mapping[str, Any]) -> bool:
        """
        Delete the Lease of an ended member; return whether it is gone.

        As long as it exists, it must stay known: otherwise, any edit or list of it would look like a new member.
        """
        if self._keeps_ended:
            return False
        try:
            await self._store.delete(body)
        except errors.APIForbiddenError as error:
            self._keeps_ended = True
            logger.warning("The Leases of ended members stay, as they cannot be deleted: %s", error)
            return False
        except errors.APIConflictError:
            return False  # it was edited; the watch brings the newer version
        except errors.APINotFoundError:
            pass
        return True


def _is_outdated(
    body: Mapping[str, Any], known: Mapping[str, Any] | None, seen_at: float, asked_at: float | None
) -> bool:
    """Check whether a state is older than the known one: watches and requests bring states in any order."""
    if known is None or (asked_at is not None and asked_at > seen_at):
        return False
    version = body['metadata'].get('resourceVersion')
    return version is not None and is_older_version(version, known['metadata'].get('resourceVersion'))


def _is_same(body: Mapping[str, Any] | None, known: Mapping[str, Any] | None) -> bool:
    """Check whether both are the same version of a Lease, or both mean that the Lease does not exist."""
    if body is None or known is None:
        return body is known
    fields = 'uid', 'resourceVersion'
    return all(body['metadata'].get(field) == known['metadata'].get(field) for field in fields)


def _get_epoch(member: str) -> int:
    """Return the number of the term in the name of a member; 0 if it has none: other clients can write any name."""
    epoch = member.rpartition('/')[2]
    return int(epoch) if epoch.isdecimal() else 0
