"""
Coordination by shards: all members of the operator work, each for the objects whose buckets it holds.

Each member holds its own Lease, as a leader holds the Lease of all replicas: if it loses the Lease, all its work is
cancelled, and it writes nothing any more. The assignment of the group decides which buckets the member may hold (see
`assignments`). When a bucket is taken away, the member drains it: no more work begins for its objects, the running work
ends, and only then the member reports that it has released the bucket. When a member gets buckets, it lists all objects
again: the known states can be older than the last writes of the former holder. Specified in the documentation's
"Share the objects among members".
"""

import asyncio
import functools
import logging
import uuid
from collections.abc import Callable, Collection, Mapping

from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.helpers.clocks import read_wall_clock
from kopf._cogs.structs.bodies import RawEvent
from kopf._cogs.structs.labelselectors import LabelSelector
from kopf._core.engines.assignments import Division, Ownership, Report
from kopf._core.engines.buckets import MAX_BUCKETS, find_bucket, format_ranges
from kopf._core.engines.lease_candidate import LeadershipError, LeaseCandidate, check_settings
from kopf._core.engines.leases import LEASES, find_namespace, format_time
from kopf._core.engines.shard_filters import ShardFilter
from kopf._core.engines.shard_group import RULES, ShardGroup
from kopf._core.engines.shard_leases import (
    GROUP_LABEL,
    GroupLeaseStore,
    MemberState,
    MemberStore,
    encode_member,
    make_member,
)
from kopf._core.reactor.coordination import CoordinatorContext, Surrender, find_group_name
from kopf._core.reactor.election_coordinator import ElectionCoordinator, Phase, TermWatchdog
from kopf._core.reactor.object_records import ObjectRecord
from kopf._core.reactor.sinks import EventSink
from kopf._core.reactor.watches import ResourceWatch

logger = logging.getLogger(__name__)

NAME_LIMIT = 52
"""The maximal length of the name of a group: it is the value of a label, and the names of the members add to it."""

FIRST_RELEASE = 0.2
"""
How long to wait for the running work before the first buckets are released without the others (in seconds).

It is doubled with each release, because the members that get the buckets list all objects after each one.
"""

MAX_TOLD = 10
"""The maximal number of running handlers in a message."""

SCHEDULES_BUCKET = 0
"""The bucket whose holder runs the schedules."""


class MemberCandidate(LeaseCandidate):
    """The candidacy for the own Lease of a member."""

    group = 'sharding'
    consequence = "so it cannot share the objects with other members"
    beginning, loss = "Member of a group: this process", "No longer a member of the group"

    def _list_rules(self) -> str:
        return RULES


class ShardingCoordinator(ElectionCoordinator):
    """One member of a sharded operator: a coordinator, see `coordination.Coordinator`."""

    def __init__(self, context: CoordinatorContext) -> None:
        """Create the coordinator. The membership begins later, in `adjust`; until then, the client does not write."""
        sharding = context.settings.sharding
        check_sharding(context.settings)
        super().__init__(context)
        self._name = find_group_name(context.settings)
        self._own_name = f'{self._name}-{uuid.uuid4().hex[:10]}'
        self._division = Division(sharding.buckets, sharding.key)
        self._epoch = 1
        self._ownership = self._make_ownership()
        self._filter = ShardFilter(self._division, lambda: self._ownership.active)
        self._since: str | None = None
        self._group: ShardGroup | None = None
        self._draining: set[asyncio.Task[None]] = set()
        self._patience: asyncio.TimerHandle | None = None
        self._assigning: asyncio.Task[None] | None = None

    def _make_ownership(self) -> Ownership:
        return Ownership(make_member(self._own_name, self._epoch), self._division)

    # The permissions of this member.

    @property
    def leases(self) -> Mapping[str, bool]:
        own = make_member(self._own_name, self._epoch)
        return {self._name: self._group is not None and self._group.holder == own}

    @property
    def unowned(self) -> int | None:
        return None if self._group is None else self._group.find_unowned()

    @property
    def paused(self) -> bool:
        return self._phase is not Phase.LEADING or not self._oriented

    @property
    def owner_check(self) -> Callable[[ObjectRecord], bool]:
        return self.owns

    @property
    def shard_filter(self) -> ShardFilter:
        return self._filter

    @property
    def runs_schedules(self) -> bool:
        return SCHEDULES_BUCKET in self._ownership.active

    def owns(self, record: ObjectRecord) -> bool:
        """Check whether this member handles the object."""
        return self._find_bucket(record) in self._ownership.active

    def _find_bucket(self, record: ObjectRecord) -> int:
        text = record.uid if self._division.key == 'uid' else record.namespace or ''
        return find_bucket(text, self._division.buckets)

    def _is_in(self, buckets: Collection[int], record: ObjectRecord) -> bool:
        return self._find_bucket(record) in buckets

    # The own Lease.

    def _start(self) -> None:
        sharding = self._settings.sharding
        namespace = sharding.namespace or find_namespace(self._client)
        self._group = ShardGroup(
            GroupLeaseStore(self._client, namespace=namespace, name=self._name, group=self._name),
            sharding,
            division=self._division,
            get_report=self._get_report,
            changed=self._follow,
        )
        store = MemberStore(
            self._client,
            namespace=namespace,
            name=self._own_name,
            group=self._name,
            get_text=self._describe,
            written=self._group.see,
        )
        self._candidate = MemberCandidate(
            store, sharding, identity=self._identity, changed=self._note, recovered=self._watch_again
        )
        if not getattr(asyncio.get_running_loop(), 'is_virtual', False):
            self._watchdog = TermWatchdog(self._get_last_term, self._controls.find_running)
        self._tasks.create_task(self._supervise(), name='sharding')
        self._candidacy = self._create_task(self._candidate.run(), 'membership')
        self._assigning = self._create_task(self._group.run(), f'group {self._name!r}')
        self._observe()

    def note_other_cluster(self) -> None:
        if self._group is not None:
            self._group.forget()
        super().note_other_cluster()

    def _describe(self) -> str:
        """Return the annotation of the own Lease."""
        return encode_member(self._epoch, MemberState(self._ownership.report(), self._since))

    def _get_report(self) -> Report | None:
        """Return the report of this member; ``None`` if it does not hold its Lease."""
        candidate = self._candidate
        is_member = self._phase is Phase.LEADING and candidate is not None and candidate.term is not None
        return self._ownership.report() if is_member and candidate is not None and not candidate.is_overdue else None

    def _observe(self) -> None:
        """Watch the Leases of the group."""
        assert self._group is not None and self._candidate is not None
        namespace, _ = self._candidate.place
        self._watch = ResourceWatch(
            self._client,
            self._settings,
            LEASES,
            namespace,
            ShardLeasesSink(self._group),
            selective=False,
            label_selector=LabelSelector.parse(f'{GROUP_LABEL}={self._name}'),
            instruments=self._client.instruments,
        )
        self._watching = self._create_task(self._watch.persist(), f'observer of the group {self._name!r}')

    def _watch_again(self) -> None:
        if self._watching is not None:
            self._stop_watching()
            self._observe()

    # The term, as with an election.

    def _stand_by(self) -> None:
        pass  # no other process holds this Lease

    def _prepare(self) -> None:
        self._phase = Phase.LEADING
        if self._watchdog is not None:
            self._watchdog.begin()
        if self._group is not None:
            self._group.join()
        # Why not watch at once? All objects would be listed twice: now, and when the buckets are known.
        self._patience = asyncio.get_running_loop().call_later(self._settings.sharding.retry_period, self._orient)

    def _orient(self) -> None:
        """Begin to watch and to handle objects."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if not self._oriented and self._phase is Phase.LEADING:
            self._oriented = True
            self._report()

    def _lose(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._oriented = False
        self._ownership = self._make_ownership()  # the next term is another member, which holds no buckets yet
        super()._lose()

    async def _end_work(self) -> None:
        # The time limit is that of all other work. If work does not end in time, the process is killed.
        await self._outwait(lambda: [*self._controls.find_running(), *(task.get_name() for task in self._draining)])
        self._epoch += 1
        self._ownership = self._make_ownership()
        await super()._end_work()

    async def leave(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        for task in list(self._draining):
            task.cancel()
        await super().leave()

    async def _release(self) -> None:
        self._ownership = self._make_ownership()
        await super()._release()

    # The buckets.

    def _follow(self) -> None:
        """Called when the assignment has changed, or when a bucket is drained."""
        if self._get_report() is None or self._group is None or self._group.assignment is None or self._ending:
            return
        former = self._ownership.report()
        changes = self._ownership.follow(self._group.assignment)
        if changes.dropped:
            self._drain(changes.dropped)
            self._controls.narrow()
        if changes.taken:
            logger.info("This member handles %d buckets from now on: %s.", *self._tell_buckets())
            if self._oriented:
                self._controls.relist(functools.partial(self._is_in, changes.taken))
            if self._oriented and SCHEDULES_BUCKET in changes.taken:
                self._report()
            self._orient()
        if self._ownership.report().held != former.held or changes.dropped:
            self._since = format_time(read_wall_clock())
        if self._ownership.report() != former:
            self._publish()

    def _tell_buckets(self) -> tuple[int, str]:
        return len(self._ownership.active), format_ranges(self._ownership.active)

    def _publish(self) -> None:
        """Report to the other members which buckets this member holds, and which record it has seen."""
        # When it is written, `MemberStore` passes it on to the group.
        if self._candidate is not None:
            self._candidate.hasten()

    def _drain(self, buckets: frozenset[int]) -> None:
        logger.info("This member handles %d buckets from now on: %s.", *self._tell_buckets())
        task = self._create_task(self._end_handling(self._ownership, buckets), f'draining of {len(buckets)} buckets')
        self._draining.add(task)
        task.add_done_callback(self._draining.discard)

    async def _end_handling(self, ownership: Ownership, buckets: frozenset[int]) -> None:
        schedules = SCHEDULES_BUCKET if SCHEDULES_BUCKET in buckets else None
        if schedules is not None:
            self._report()
        ended: set[int] = set()
        task = asyncio.create_task(
            self._controls.surrender(Surrender(buckets, self._find_bucket, schedules, ended.update)),
            name='end of the handling',
        )
        patience = asyncio.get_running_loop().call_later(
            self._settings.sharding.duration, self._tell_running, ownership, buckets
        )
        pause = FIRST_RELEASE
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=pause)
                if ended:
                    self._give_up(ownership, frozenset(ended))
                    ended.clear()
                pause *= 2
        finally:
            patience.cancel()
            task.cancel()
            await asyncio.wait({task})
        await task

    def _tell_running(self, ownership: Ownership, buckets: frozenset[int]) -> None:
        """Log which handlers keep these buckets from being released."""
        buckets &= ownership.draining
        running = self._controls.find_running_for(functools.partial(self._is_in, buckets))
        if running:
            more = f' and {len(running) - MAX_TOLD} more' if len(running) > MAX_TOLD else ''
            logger.warning(
                "The buckets %s are released to other members when these have ended: %s%s.",
                format_ranges(buckets),
                ', '.join(running[:MAX_TOLD]),
                more,
            )

    def _give_up(self, ownership: Ownership, buckets: frozenset[int]) -> None:
        """Called when all work for the objects of these buckets has ended."""
        ownership.finish(buckets)
        if ownership is self._ownership:
            self._follow()
            self._since = format_time(read_wall_clock())
            self._publish()


class ShardLeasesSink(EventSink):
    """Passes the states of the Leases to the group."""

    def __init__(self, group: ShardGroup) -> None:
        self._group = group

    def receive(self, record: ObjectRecord, event: RawEvent, *, listed_since: float | None) -> None:
        self._group.see(event['object'], is_deleted=event['type'] == 'DELETED')


def check_sharding(settings: OperatorSettings) -> None:
    """
    Check the settings of the shards.

    Raises:
        LeadershipError: if they contradict each other, or other ways of coordination.
    """
    sharding = settings.sharding
    check_settings(sharding, 'sharding')
    name = find_group_name(settings)
    if len(name) > NAME_LIMIT:
        raise LeadershipError(f"settings.sharding.name must have at most {NAME_LIMIT} characters: {name!r}.")
    if not 1 <= sharding.buckets <= MAX_BUCKETS:
        raise LeadershipError(
            f"settings.sharding.buckets must be between 1 and {MAX_BUCKETS}, not {sharding.buckets!r}."
        )
    if sharding.key not in ('uid', 'namespace'):
        raise LeadershipError(f"settings.sharding.key must be 'uid' or 'namespace', not {sharding.key!r}.")
    if settings.leadership.enabled:
        raise LeadershipError(
            "Shards and a leader exclude each other: all members of a sharded operator work. "
            "Remove --leader-election (settings.leadership.enabled) or --shards (settings.sharding.enabled)."
        )
    if settings.peering.mandatory:
        raise LeadershipError(
            "Shards and a peering exclude each other: peers would pause each other, while members share the objects. "
            "Remove --peering (settings.peering.mandatory), or --shards (settings.sharding.enabled)."
        )
