"""
The peering objects of an operator: one for the whole cluster, or one in each namespace that it serves.

They are watched as everything else. The operator pauses if it has to in any of them; nothing is begun in a namespace
until its peering object is looked at. Where the cluster has no such kind of objects, nothing is requested at all.
"""

import asyncio
import functools
import logging
from collections.abc import Callable, Collection, Sequence, Set
from typing import TYPE_CHECKING, Any, NamedTuple

from kopf._cogs.clients.api import ApiClient
from kopf._cogs.clients.errors import APIError, APIForbiddenError
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.bodies import RawEvent
from kopf._cogs.structs.references import PEERING_GROUPS, Namespace, Resource, select_peerings
from kopf._core.reactor.object_records import ObjectRecord
from kopf._core.reactor.sinks import EventSink
from kopf._core.reactor.watches import ResourceWatch

if TYPE_CHECKING:
    from kopf._core.engines.peering_member import PeeringMember

logger = logging.getLogger(__name__)

MIN_LIFETIME = 1.0
"""No record that is announced from now on can end earlier than after that time (in seconds)."""


class JoinedPeering(NamedTuple):
    """A peering member with its watch and its tasks."""

    member: 'PeeringMember'
    watch: ResourceWatch
    tasks: Sequence[asyncio.Task[None]]


class PeeringCoordinator:
    """All peering members of one operator: a coordinator, see `coordination.Coordinator`."""

    def __init__(
        self,
        client: ApiClient,
        settings: OperatorSettings,
        *,
        identity: str | None,
        tasks: asyncio.TaskGroup,
        changed: Callable[[Collection[Namespace] | None], None],
    ) -> None:
        """
        Create the peerings; they are joined later.

        Args:
            client: the client of the API.
            settings: the settings of the operator.
            identity: the name of the operator among its peers; if absent, it is detected when it is needed.
            tasks: where the tasks of the members live.
            changed: is called when it can be decided differently what is to be done: in these namespaces, or in all.
        """
        self._client = client
        self._settings = settings
        self._identity = identity
        self._tasks = tasks
        self._changed = changed
        self._resource: Resource | None = None
        self._joined: dict[Namespace, JoinedPeering] = {}
        self._complained = False
        self._oriented = False  # whether it was known once what to do in all the namespaces that there were
        self._safe_until = 0.0
        # With hundreds of namespaces, all the members cannot be asked each time when one of them has changed.
        self._unknown: set[Namespace] = set()  # the members that do not know yet what to do
        self._pausing: set[Namespace] = set()  # the members because of which the operator pauses
        self._ending: set[Namespace] = set()  # the namespaces that are being deleted

    @property
    def groups(self) -> Collection[str]:
        return PEERING_GROUPS

    @property
    def paused(self) -> bool:
        if self._resource is None:
            return self._settings.peering.mandatory
        return bool(self._pausing)

    @property
    def guard(self) -> Callable[[], bool]:
        return self._check_overdue

    def _check_overdue(self) -> bool:
        """
        Return whether our own record has not been renewed in time, by the clock, and have the operator paused if so.

        After a suspension (SIGSTOP, a laptop's lid), all timers are overdue at once, and handlers must not be called
        before it is noticed that others could have taken over. It is asked before any work begins, so it is cheap.
        """
        if not self._joined:
            return False
        from kopf._core.engines.peering_member import read_time

        now = read_time()
        if now < self._safe_until:
            return False
        members = [joined.member for joined in self._joined.values()]
        expiries = [each.expiry for each in members if each.expiry is not None]
        self._safe_until = min([*expiries, now + MIN_LIFETIME])
        overdue = [each for each in members if each.is_overdue]
        for member in overdue:
            asyncio.get_running_loop().call_soon(member.notice_overdue)
        return bool(overdue)

    @property
    def watches(self) -> list[ResourceWatch]:
        return [joined.watch for joined in list(self._joined.values()) if not joined.tasks[0].done()]

    def is_open(self, namespace: Namespace) -> bool:
        if self._resource is None:
            return not self._settings.peering.mandatory
        if self._oriented and namespace in self._joined:
            return self._joined[namespace].member.joined
        # In the beginning, all must be known: who pauses because of us in one namespace, does so in all of them, and
        # is to be given the time for that.
        return not self._unknown

    def note_ending(self, namespace: Namespace, ending: bool) -> None:
        # The peering object of a namespace that is being deleted is not to be waited for.
        if ending is not (namespace in self._ending):
            (self._ending.add if ending else self._ending.discard)(namespace)
            if namespace in self._joined:
                self._joined[namespace].member.note_ending(ending)

    def halt(self, halted: bool) -> None:
        for joined in self._joined.values():
            joined.member.halt(halted)

    def rediscover(self, resources: Collection[Resource]) -> None:
        resource = select_peerings(resources, clusterwide=self._settings.peering.clusterwide)
        if resource != self._resource:
            self._stop(list(self._joined))
            self._resource = resource
        if resource is None and self._settings.peering.mandatory and not self._complained:
            logger.warning("The cluster has no peering objects: their CRD is absent. Pausing until it is there.")
        self._complained = resource is None

    def adjust(
        self,
        namespaces: Set[Namespace],
        affected: Collection[Namespace] | None = None,
    ) -> Collection[Namespace] | None:
        """Join the peerings of these namespaces, or the only one; stop meeting the peers in other namespaces."""
        was_oriented = self._oriented
        if self._resource is not None:
            self._adjust(self._resource, namespaces, affected)
        return affected if self._oriented == was_oriented else None

    def _adjust(
        self,
        resource: Resource,
        namespaces: Set[Namespace],
        affected: Collection[Namespace] | None,
    ) -> None:
        if self._settings.peering.clusterwide:
            namespaces, affected = {None}, [None]
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
        )
        watch = ResourceWatch(self._client, self._settings, resource, namespace, PeeringSink(member), selective=False)
        member.note_ending(namespace in self._ending)
        self._unknown.add(namespace)
        self._joined[namespace] = JoinedPeering(
            member,
            watch,
            [
                self._tasks.create_task(watch.run(), name=f'observer of {watch}'),
                self._tasks.create_task(member.run(), name=f'keep-alive in {watch}'),
            ],
        )

    def _note(self, namespace: Namespace) -> None:
        """Called when the member in this namespace has come to another decision."""
        if namespace not in self._joined:
            return  # it has left meanwhile
        member = self._joined[namespace].member
        (self._unknown.discard if member.joined else self._unknown.add)(namespace)
        (self._pausing.add if member.paused else self._pausing.discard)(namespace)
        was_oriented = self._oriented
        self._orient()
        self._changed([namespace] if namespace is not None and self._oriented == was_oriented else None)

    def _orient(self) -> None:
        if self._joined and not self._unknown:
            self._oriented = True

    def _stop(self, namespaces: Collection[Namespace]) -> None:
        # The records are not removed: either there is nothing to remove them from, or they die soon.
        for namespace in namespaces:
            self._unknown.discard(namespace)
            self._pausing.discard(namespace)
            for task in self._joined.pop(namespace).tasks:
                task.cancel()
        self._orient()

    async def leave(self) -> None:
        """Remove our records, so that the peers take over at once."""
        await asyncio.gather(*(joined.member.leave() for joined in self._joined.values()))


class PeeringSink(EventSink):
    """Shows the peering object to its member, of all such objects in the namespace."""

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
        elif self._uid in (None, record.uid):  # otherwise, it has got a successor already
            self._uid = None
            self._member.see(None)

    def listed(self, watch: ResourceWatch) -> None:
        self._member.settle()

    def refused(self, watch: ResourceWatch, error: APIError) -> bool:
        self._member.give_up(error)
        return isinstance(error, APIForbiddenError) and not self._member.mandatory
