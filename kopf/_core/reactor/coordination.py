"""
Coordination between operators: decides whether this operator may handle objects now, and in which namespaces.

The orchestrator asks one `Coordinator`. Each way of coordination, such as peering, is a class that implements this
protocol; `make_coordinator` creates it if the settings enable it. If there are several, all of them must permit the
handling.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kopf._cogs.clients.api import ApiClient
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.references import Namespace, Resource
from kopf._core.actions.execution import Outcome
from kopf._core.intents.causes import Activity
from kopf._core.reactor.object_records import ObjectRecord
from kopf._core.reactor.watches import ResourceWatch

if TYPE_CHECKING:
    from kopf._core.engines.shard_filters import ShardFilter

Affected = Collection[Namespace] | None
"""The namespaces for which a decision can have changed; ``None`` for all of them."""

OverdueCheck = Callable[[], bool]
"""A function that checks whether the operator must pause, even if `Coordinator.paused` is not set yet."""

OwnerCheck = Callable[[ObjectRecord], bool]
"""A function that checks whether this operator handles the object."""

Changed = Callable[[Affected], None]
"""The function that a coordinator calls when its decision for these namespaces has changed."""


class Surrender(NamedTuple):
    """The objects that this operator must stop handling, because other operators handle them next."""

    buckets: Collection[int]
    """The groups of the objects. A group can be handed over when nothing runs for its objects any more."""
    find_bucket: Callable[[ObjectRecord], int]
    """Returns the group of an object."""
    schedules: int | None
    """The group that must also wait for the end of running schedules, if any."""
    ended: Callable[[Collection[int]], None]
    """Called with groups as soon as all work for them has ended."""


class Controls(NamedTuple):
    """The functions by which a coordinator controls the work of the operator."""

    changed: Changed
    """Reports that the decision has changed."""
    note_lapse: Callable[[], None]
    """Reports that others could have begun without waiting: results of earlier steps can be outdated. Pause then."""
    abort: Callable[[], None]
    """Cancels all work at once, without waiting, because another operator may begin. A pause follows."""
    find_running: Callable[[], list[str]]
    """Returns the names of all running work, including threads and tasks that ignore their cancellation."""
    find_running_for: Callable[[OwnerCheck], list[str]]
    """Returns the names of the running handlers and daemons of the objects that the check selects."""
    run_activity: Callable[[Activity], Awaitable[Mapping[HandlerId, Outcome]]]
    """Runs the handlers of an activity; returns their outcomes."""
    relist: Callable[[OwnerCheck], None]
    """Lists all objects again, as the operator also handles the objects that the check selects from now on."""
    narrow: Callable[[], None]
    """Requests the streams again, but no lists, as the operator handles fewer objects from now on."""
    surrender: Callable[[Surrender], Coroutine[Any, Any, None]]
    """
    Ends the handling of these objects; returns when all work for them has ended. When it is called,
    `Coordinator.owner_check` must already exclude these objects.
    """


class CoordinatorContext(NamedTuple):
    """The parts of the operator that its coordinators use."""

    client: ApiClient
    """The client of the API. A coordinator can fence it, so that it writes only while this operator may write."""
    settings: OperatorSettings
    """The settings, as the startup handlers have left them."""
    identity: str | None
    """The name of this operator among others; if absent, it is detected when needed."""
    tasks: asyncio.TaskGroup
    """The group for the tasks of the coordinators; if one of them fails, the operator does."""
    controls: Controls


class Coordinator(Protocol):
    """
    One way of coordination with other operators.

    The methods that only sharding needs have defaults: without shards, an operator handles all objects.
    """

    @property
    def groups(self) -> Collection[str]:
        """The API groups of the resources that the coordinator uses, to be included in the discovery."""

    @property
    def paused(self) -> bool:
        """Return whether the operator must pause, because other operators handle the objects or can do so."""

    @property
    def keeps_warm(self) -> bool:
        """Return whether a paused operator needs complete indices to be ready, so that it can take over at once."""

    @property
    def leases(self) -> Mapping[str, bool]:
        """Return whether this operator leads, by the name of the Lease; callable from any thread."""

    @property
    def overdue_check(self) -> OverdueCheck | None:
        """The function to call before any work begins, from any thread; ``None`` if there is none."""

    @property
    def owner_check(self) -> OwnerCheck | None:
        """The function that checks whether this operator handles an object; ``None`` if it handles all of them."""
        return None

    @property
    def shard_filter(self) -> 'ShardFilter | None':
        """The filter of the objects that this operator handles, for its watches; ``None`` if it handles all of them."""
        return None

    @property
    def runs_schedules(self) -> bool:
        """Return whether this operator runs the schedules; asked again after each reported change."""
        return True

    @property
    def unowned(self) -> int | None:
        """The number of buckets that no member holds; ``None`` without shards. Callable from any thread."""
        return None

    @property
    def watches(self) -> Sequence[ResourceWatch]:
        """The running watches. The probes read them in another thread."""

    def is_open(self, namespace: Namespace) -> bool:
        """Check whether watching may begin in this namespace; with ``None``, for the whole cluster."""

    def rediscover(self, resources: Collection[Resource], failed_groups: Collection[str]) -> None:
        """
        Select the resources to use from all discovered ones. A call of `adjust` follows.

        Args:
            resources: the discovered resources.
            failed_groups: the API groups whose resources could not be discovered now.
        """

    def adjust(self, namespaces: Set[Namespace], affected: Affected = None) -> Affected:
        """
        Start coordination in these namespaces, and stop it in namespaces that are no longer served.

        An implementation must not call ``changed`` from here: the orchestrator reads the new decisions anyway.

        Args:
            namespaces: all namespaces that are served.
            affected: the namespaces that were added or removed since the last call; by default, all of them.

        Returns:
            The affected namespaces; ``None`` (all of them) if decisions for other namespaces can have changed, too.
        """

    def note_listing(self, listing: bool) -> None:
        """
        Called with true if more namespaces can match the patterns; with false when all of them are listed.

        The former is called before the first call of `adjust`; after the latter, another one follows.
        """

    def note_ending(self, namespace: Namespace, ending: bool) -> None:
        """Called with true when the namespace is being deleted, with false when it was deleted or is created again."""

    def note_other_cluster(self) -> None:
        """Called when a login has led to another cluster: no work may begin there before it is coordinated there."""

    def halt(self, halted: bool) -> None:
        """Called with true when all work has stopped for a pause, with false when the work resumes."""

    def end(self) -> None:
        """Called when the exiting operator starts no more work, and waits for the running handlers and daemons."""

    async def leave(self) -> None:
        """Let other operators take over. Called when the operator exits, after all work has ended."""


class Unanimity:
    """Combines coordinators: all of them must permit the work. Without any, the work is always permitted."""

    def __init__(self, coordinators: Collection[Coordinator]) -> None:
        self._coordinators = tuple(coordinators)
        checks = [each.overdue_check for each in self._coordinators]
        self._checks = [check for check in checks if check is not None]

    @property
    def groups(self) -> Collection[str]:
        return {group for each in self._coordinators for group in each.groups}

    @property
    def paused(self) -> bool:
        return any(each.paused for each in self._coordinators)

    @property
    def keeps_warm(self) -> bool:
        return any(each.keeps_warm for each in self._coordinators)

    @property
    def leases(self) -> Mapping[str, bool]:
        return {name: leads for each in self._coordinators for name, leads in each.leases.items()}

    @property
    def overdue_check(self) -> OverdueCheck | None:
        # The check is called for each event. So, a single check is returned unwrapped.
        return self._check_all if len(self._checks) > 1 else self._checks[0] if self._checks else None

    def _check_all(self) -> bool:
        # Why not `any()` of a generator? All checks must be called, as each can begin a pause of its coordinator.
        answers = [check() for check in self._checks]
        return any(answers)

    @property
    def owner_check(self) -> OwnerCheck | None:
        # At most one coordinator has such a check: shards exclude the other ways.
        return next((check for each in self._coordinators if (check := each.owner_check) is not None), None)

    @property
    def shard_filter(self) -> 'ShardFilter | None':
        return next((each.shard_filter for each in self._coordinators if each.shard_filter is not None), None)

    @property
    def runs_schedules(self) -> bool:
        return all(each.runs_schedules for each in self._coordinators)

    @property
    def unowned(self) -> int | None:
        return next((number for each in self._coordinators if (number := each.unowned) is not None), None)

    @property
    def watches(self) -> Sequence[ResourceWatch]:
        return [watch for each in self._coordinators for watch in each.watches]

    def is_open(self, namespace: Namespace) -> bool:
        return all(each.is_open(namespace) for each in self._coordinators)

    def rediscover(self, resources: Collection[Resource], failed_groups: Collection[str]) -> None:
        for each in self._coordinators:
            each.rediscover(resources, failed_groups)

    def adjust(self, namespaces: Set[Namespace], affected: Affected = None) -> Affected:
        changes = [each.adjust(namespaces, affected) for each in self._coordinators]
        return None if None in changes else affected

    def note_other_cluster(self) -> None:
        for each in self._coordinators:
            each.note_other_cluster()

    def note_listing(self, listing: bool) -> None:
        for each in self._coordinators:
            each.note_listing(listing)

    def note_ending(self, namespace: Namespace, ending: bool) -> None:
        for each in self._coordinators:
            each.note_ending(namespace, ending)

    def halt(self, halted: bool) -> None:
        for each in self._coordinators:
            each.halt(halted)

    def end(self) -> None:
        for each in self._coordinators:
            each.end()

    async def leave(self) -> None:
        # The coordinators leave one after another: the next leader must join the peerings only after this operator has
        # left them.
        errors: list[Exception] = []
        for each in self._coordinators:
            try:
                await each.leave()
            except Exception as error:  # the other coordinators must leave nevertheless
                errors.append(error)
        if errors:
            raise errors[0]


def find_lease_name(settings: OperatorSettings) -> str:
    """Return the name of the Lease for the election of the leader."""
    return settings.leadership.name or f'kopf-{settings.applying.operator}'


def find_group_name(settings: OperatorSettings) -> str:
    """Return the name of the group of members that share the objects, which is the name of its Lease."""
    return settings.sharding.name or f'kopf-{settings.applying.operator}-shards'


def make_coordinator(context: CoordinatorContext) -> Coordinator:
    """Create the coordinators that the settings enable. This is the only place that knows their classes."""
    settings = context.settings
    if settings.sharding.enabled:
        # Imported here, as is the election below. Shards exclude a peering, because peers would pause each other.
        from kopf._core.reactor.sharding_coordinator import ShardingCoordinator

        return ShardingCoordinator(context)
    coordinators: list[Coordinator] = []
    elected, peerings = settings.leadership.enabled, []
    if not settings.peering.standalone:
        # Why not at the top? The coordinators inherit from the protocol in this module.
        from kopf._core.reactor.peering_coordinator import PeeringCoordinator

        # Replicas share one identity, because only the leader has a record: the next leader takes it over at once.
        identity = find_lease_name(settings) if elected else context.identity
        peerings.append(PeeringCoordinator(context._replace(identity=identity)))
    coordinators += peerings
    if elected:
        # Why not at the top? Most operators have no replicas, and would start more slowly.
        from kopf._core.reactor.election_coordinator import ElectionCoordinator

        for peering in peerings:
            peering.stand_by(True)
        coordinators.append(ElectionCoordinator(context, followers=peerings))
    return coordinators[0] if len(coordinators) == 1 else Unanimity(coordinators)
