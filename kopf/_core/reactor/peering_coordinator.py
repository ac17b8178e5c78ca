"""
Coordination by peering objects: one for the whole cluster, or one in each served namespace.

Peering objects are watched like other resources. The operator pauses if any of them requires it. A namespace is not
served until its peering object was read. If the cluster does not have the CRD of peerings, no requests are made.
"""

import asyncio
import functools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, NamedTuple

from kopf._cogs.clients.errors import APIError, APIForbiddenError
from kopf._cogs.helpers.clocks import read_time
from kopf._cogs.structs.bodies import RawEvent
from kopf._cogs.structs.references import PEERING_GROUPS, Namespace, Resource, select_peerings
from kopf._core.reactor.coordination import Coordinator, CoordinatorContext
from kopf._core.reactor.object_records import ObjectRecord
from kopf._core.reactor.sinks import EventSink
from kopf._core.reactor.watches import ResourceWatch

if TYPE_CHECKING:
    from kopf._core.engines.peering_member import PeeringMember

logger = logging.getLogger(__name__)

MIN_LIFETIME = 1.0
"""The minimal lifetime of records in peering objects (in seconds)."""

ENDING_DELAY = 0.5
"""The time after which an ending operator begins to renew its records (in seconds); most operators end earlier."""

RESPITE = 5
"""How long peers wait for an operator that has left while threads of its handlers were running (in seconds)."""

REFUSAL_DELAYS = (0.5, 1.0, 2.0)
"""
The delays of the next requests (in seconds) before a refused list of peering objects means that there is no peering.

A refusal can be temporary: the API server has just started, or the role of the operator was just created. Without the
retries, such an operator would work at the same time as its peers.
"""

FOLLOWING_DELAYS = (5.0, 10.0, 20.0, 40.0)
"""The delays of further requests (in seconds), while the operator works without the optional peering."""


class JoinedPeering(NamedTuple):
    """A peering member with its watch and its tasks."""

    member: 'PeeringMember'
    watch: ResourceWatch
    tasks: Sequence[asyncio.Task[None]]


class PeeringCoordinator(Coordinator):
    """All peering members of one operator: a coordinator, see `coordination.Coordinator`."""

    def __init__(self, context: CoordinatorContext) -> None:
        """Create the coordinator. It joins peerings later, in `adjust`."""
        self._client = context.client
        self._settings = context.settings
        self._identity = context.identity
        self._tasks = context.tasks
        self._controls = context.controls
        self._resource: Resource | None = None
        self._joined: dict[Namespace, JoinedPeering] = {}
        self._loop = asyncio.get_running_loop()
        self._complained = False
        self._nowhere = False  # whether there is no namespace to be served
        self._has_warned_of_absence = False
        self._discovered = False  # whether it is known which kind of peerings exists
        self._doubtful = False  # whether there can be peerings that could not be discovered
        self._holding = False  # after a change of the kind: whether to stay paused until all members have a verdict
        self._listing = False  # whether there can be more namespaces to join in before any work begins
        self._moved = False  # whether a login has led to another cluster since the last discovery
        self._oriented = False  # whether all members have had verdicts at the same time, at least once
        self._safe_until = 0.0  # before this time, no record can expire, so the members need not be checked
        # The verdicts are cached here: with hundreds of namespaces, it would take too long to ask all members.
        self._halted = False  # whether all handlers have ended in a pause
        self._unknown: set[Namespace] = set()  # the namespaces of members without a verdict
        self._pausing: set[Namespace] = set()  # the namespaces of members that require a pause
        self._ending: set[Namespace] = set()  # the namespaces that are being deleted
        self._staying: asyncio.Task[None] | None = None  # renews the records of an ending operator
        self._standing_by = False  # whether another replica can be the leader: only the leader joins the peerings

    @property
    def leases(self) -> Mapping[str, bool]:
        return {}

    @property
    def groups(self) -> Set[str]:
        return PEERING_GROUPS

    @property
    def paused(self) -> bool:
        if self._standing_by:
            return False  # the operator is paused anyway
        return self._is_missing() or bool(self._pausing) or (self._holding and not self._is_complete())

    @property
    def keeps_warm(self) -> bool:
        return False

    @property
    def overdue_check(self) -> Callable[[], bool]:
        return self._check_overdue

    def _check_overdue(self) -> bool:
        """
        Return whether a record of this operator has expired by the clock; if so, request the pause.

        After a suspension (SIGSTOP, a laptop's lid), all timers are overdue at once. Peers can have taken over, so this
        check precedes any work. It must be cheap.
        """
        if not self._joined:
            return False
        now = read_time()
        if now < self._safe_until:
            return False
        members = [joined.member for joined in list(self._joined.values())]  # other threads call it, too
        expiries = [expiry for each in members if (expiry := each.expiry) is not None]
        self._safe_until = min([*expiries, now + MIN_LIFETIME])
        overdue = [each for each in members if each.is_overdue_at(now)]
        for member in overdue:
            # Why not at once? The pause changes objects that the caller is using, such as the queue of workers.
            self._loop.call_soon_threadsafe(member.pause_if_overdue)
        return bool(overdue)

    @property
    def watches(self) -> list[ResourceWatch]:
        return [joined.watch for joined in list(self._joined.values())]

    def stand_by(self, standing: bool) -> None:
        """Called with true when another replica can lead, so that this one must have no records; else, with false."""
        if standing:
            self._stop(list(self._joined))
        # The watches already run, but no work may begin until the priorities of other operators are known. The same
        # happens after the discovery of another kind of peerings.
        self._standing_by, self._holding = standing, not standing

    def is_open(self, namespace: Namespace) -> bool:
        if self._standing_by:
            return True
        if self._resource is None:
            return not self._settings.peering.mandatory and not self._doubtful
        if self._oriented and namespace in self._joined:
            return self._joined[namespace].member.joined
        # At the start, wait for the verdicts of all members. An operator with a lower priority pauses in all of its
        # namespaces as soon as it sees this one in any of them, and needs some time for that.
        return self._is_complete() and not self._is_missing()

    def _is_missing(self) -> bool:
        """Check whether there is no mandatory peering to join: neither its kind, nor any of the namespaces."""
        return self._settings.peering.mandatory and (self._resource is None or (self._nowhere and not self._listing))

    def _is_complete(self) -> bool:
        """Check whether all members have verdicts, and there is a member in each namespace that is to be served."""
        return not self._unknown and not self._listing

    def note_listing(self, listing: bool) -> None:
        self._listing = listing and not self._settings.peering.clusterwide
        self._orient()

    def note_ending(self, namespace: Namespace, ending: bool) -> None:
        # Members do not wait for the peering object of a namespace that is being deleted.
        if ending is not (namespace in self._ending):
            (self._ending.add if ending else self._ending.discard)(namespace)
            if namespace in self._joined:
                self._joined[namespace].member.note_ending(ending)

    def note_other_cluster(self) -> None:
        # The members join anew, and no work begins before they have read the peering objects of that cluster.
        self._stop(list(self._joined))
        self._holding = self._moved = True
        self._controls.changed(None)

    def halt(self, halted: bool) -> None:
        self._halted = halted
        for joined in self._joined.values():
            joined.member.halt(halted)

    def rediscover(self, resources: Collection[Resource], failed_groups: Collection[str]) -> None:
        self._doubtful = not self.groups.isdisjoint(failed_groups)
        resource = select_peerings(resources, clusterwide=self._settings.peering.clusterwide)
        if resource != self._resource:
            # The members of the other kind have not read their objects yet. If the pause ended now, this operator
            # would work at the same time as the peer that it has paused for.
            holding = self._discovered and (self.paused or self._moved)
            self._stop(list(self._joined))
            self._resource, self._holding = resource, holding
        self._discovered, self._moved = True, False
        if resource is None and self._settings.peering.mandatory and not self._complained:
            logger.warning(
                "The cluster has no peering objects: their CRD is absent. Pausing until it is there. "
                "Apply the file peering.yaml of the framework, or remove the name of the peering."
            )
        self._complained = resource is None

    def adjust(
        self,
        namespaces: Set[Namespace],
        affected: Collection[Namespace] | None = None,
    ) -> Collection[Namespace] | None:
        """Join the peerings of these namespaces, or the cluster-wide one; stop the members of other namespaces."""
        was_oriented = self._oriented
        if self._resource is not None and not self._standing_by:
            self._adjust(self._resource, namespaces, affected)
            if self._is_missing() and not self._has_warned_of_absence:
                logger.warning(
                    "There is no namespace to serve, so the mandatory peering cannot be joined in any. "
                    "Pausing until there is one."
                )
            self._has_warned_of_absence = self._is_missing()
        return affected if self._oriented == was_oriented else None

    def _adjust(
        self,
        resource: Resource,
        namespaces: Set[Namespace],
        affected: Collection[Namespace] | None,
    ) -> None:
        if self._settings.peering.clusterwide:
            namespaces, affected = {None}, [None]
        self._nowhere = not namespaces
        changed = set(namespaces | self._joined.keys() if affected is None else affected)
        if not self._settings.peering.clusterwide:
            changed.discard(None)
        self._stop([namespace for namespace in changed - namespaces if namespace in self._joined])
        for namespace in [name for name in changed & namespaces if name not in self._joined]:
            self._join(resource, namespace)

    def _join(self, resource: Resource, namespace: Namespace) -> None:
        from kopf._core.engines.peering import detect_own_id
        from kopf._core.engines.peering_member import PeeringMember

        self._identity = self._identity or detect_own_id(manual=False)
        member = PeeringMember(
            self._client,
            self._settings,
            resource=resource,
            namespace=namespace,
            identity=self._identity,
            changed=functools.partial(self._note, namespace),
            lapsed=self._controls.note_lapse,
        )
        watch = ResourceWatch(
            self._client,
            self._settings,
            resource,
            namespace,
            PeeringSink(member),
            selective=False,
            instruments=self._client.instruments,
            refusal_delays=REFUSAL_DELAYS,
        )
        member.note_ending(namespace in self._ending)
        # Tell a new member that the handlers have ended: otherwise, peers would wait for this operator for ever.
        member.halt(self._halted)
        self._unknown.add(namespace)
        self._joined[namespace] = JoinedPeering(
            member,
            watch,
            [
                # Refused watches are retried, because the permissions can be granted later. Without the watch, the
                # operator would not notice its peers, and would handle the same objects.
                self._tasks.create_task(watch.persist(FOLLOWING_DELAYS), name=f'observer of {watch}'),
                self._tasks.create_task(member.run(), name=f'keep-alive in {watch}'),
            ],
        )

    def _note(self, namespace: Namespace) -> None:
        """Called when the verdict of the member in this namespace has changed."""
        if namespace not in self._joined:
            return  # the member was stopped meanwhile
        member = self._joined[namespace].member
        (self._unknown.discard if member.joined else self._unknown.add)(namespace)
        (self._pausing.add if member.paused else self._pausing.discard)(namespace)
        was_oriented = self._oriented
        self._orient()
        self._controls.changed([namespace] if namespace is not None and self._oriented == was_oriented else None)

    def _orient(self) -> None:
        if self._joined and self._is_complete():
            self._oriented, self._holding = True, False

    def _stop(self, namespaces: Collection[Namespace]) -> None:
        # Why not remove the records? Either the peering objects are deleted, too, or the records expire soon.
        for namespace in namespaces:
            self._unknown.discard(namespace)
            self._pausing.discard(namespace)
            for task in self._joined.pop(namespace).tasks:
                task.cancel()
        self._orient()

    def end(self) -> None:
        """Renew the records until the last handlers and daemons have ended: otherwise, peers would begin too early."""
        # Why not in the task group of the operator? It is cancelled by now.
        self._staying = asyncio.create_task(self._stay(), name='last keep-alives')

    async def _stay(self) -> None:
        await asyncio.sleep(ENDING_DELAY)
        coros = [coro for joined in self._joined.values() for coro in (joined.watch.persist(), joined.member.run())]
        # An error must neither stop the others nor delay the end of the operator. The watch or the member logs it.
        await asyncio.gather(*coros, return_exceptions=True)

    async def leave(self) -> None:
        """
        Remove the records of this operator, so that its peers take over at once.

        If threads of handlers are still running, the records expire soon instead: normally, the process ends before.
        """
        if self._staying is not None:
            self._staying.cancel()
            await asyncio.wait({self._staying})
        # Why not wait for the threads? They can run for minutes, and the time-outs of the exit limit how long it takes.
        respite = min(RESPITE, self._settings.peering.lifetime) if self._joined and self._controls.find_running() else 0
        await asyncio.gather(*(joined.member.leave(respite) for joined in self._joined.values()))


class PeeringSink(EventSink):
    """Passes the states of the peering object to its member; skips other peering objects."""

    def __init__(self, member: 'PeeringMember') -> None:
        self._member = member
        self._uid: str | None = None

    def receive(self, record: ObjectRecord, event: RawEvent, *, listed_since: float | None) -> None:
        if record.name != self._member.name:
            return
        if event['type'] != 'DELETED':
            body: Any = event['object']
            self._uid = record.uid
            self._member.see(body, asked_at=listed_since)
        elif self._uid in (None, record.uid):  # otherwise, there is a new object of this name
            self._uid = None
            self._member.see(None)

    def listed(self, watch: ResourceWatch) -> None:
        self._member.settle()

    def refused(self, watch: ResourceWatch, error: APIError) -> bool:
        self._member.give_up(error)
        return isinstance(error, APIForbiddenError) and not self._member.mandatory
