"""
Starting and stopping watches as resources and namespaces come and go.

Resources and namespaces are discovered at the start and whenever they change. Observers detect the changes: they are
watches of namespaces and CRDs. If RBAC forbids these watches, the operator serves what it has discovered at the start.
"""

import asyncio
import contextlib
import contextvars
import dataclasses
import itertools
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from kopf._cogs.aiokits.loops import end, make_threadsafe
from kopf._cogs.clients import errors
from kopf._cogs.clients.api import ApiClient
from kopf._cogs.clients.discovery import discover, explaining_discovery_errors
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.helpers.explanations import ExplainedError
from kopf._cogs.structs.bodies import RawBody
from kopf._cogs.structs.credentials import LoginError, Vault
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.references import (
    CRDS,
    Namespace,
    NamespacePattern,
    Resource,
    select_specific_namespaces,
)
from kopf._core.actions.execution import Outcome
from kopf._core.engines.indexing import OperatorIndexers
from kopf._core.engines.schedules import Schedules
from kopf._core.intents.causes import Activity
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.handlers import ReconcilingHandler
from kopf._core.intents.record_places import list_fields
from kopf._core.intents.registries import HandlerTable
from kopf._core.reactor.coordination import Controls, CoordinatorContext, OwnerCheck, Surrender, make_coordinator
from kopf._core.reactor.discovery_sinks import DefinitionsSink, NamespaceSink, join_names
from kopf._core.reactor.former_finalizers import FormerFinalizer
from kopf._core.reactor.indexing_gate import IndexingGate
from kopf._core.reactor.informer import Informer
from kopf._core.reactor.object_records import ObjectRecord, get_api_version
from kopf._core.reactor.processing import Processor
from kopf._core.reactor.resource_selection import (
    Absences,
    Definitions,
    ResourceProblems,
    SchemaCheck,
    get_groups,
    resolve_tables,
)
from kopf._core.reactor.sinks import EventSink, ObjectSink
from kopf._core.reactor.watches import ResourceWatch, WatchState
from kopf._core.reactor.workers import WorkerPool

if TYPE_CHECKING:
    from kopf._core.engines.levels import LeftThread, Levels
    from kopf._core.reactor.permission_reviews import PermissionReviews
    from kopf._core.reactor.webhook_runtime import WebhookRuntime

logger = logging.getLogger(__name__)

Scope = tuple[Resource, Namespace]
"""The scope of one watch: a resource in a namespace, or in the whole cluster."""

Place = tuple[str, str, Namespace]
"""The group, the plural name, and the namespace: the same for all versions of a resource."""

Watching = tuple[ResourceWatch, ObjectSink, asyncio.Task[None]]
"""A watch with its sink, and the task that runs it."""

Leaving = tuple[ResourceWatch, ObjectSink, asyncio.Task[None], asyncio.Task[None] | None]
"""A watch that is being stopped: its sink, its task, and the task that releases its objects, if it has begun."""

NAMESPACE = Resource('', 'v1', 'namespaces', kind='Namespace', namespaced=False)
"""The resource of namespaces. Every cluster has it, so it is not discovered."""

SETTLING_DELAYS = (0.2, 0.5, 1, 2, 5, 10, 20, 30)
"""The delays (in seconds) between discoveries, as long as the discovery API does not reflect the known CRDs."""

SAVING_DELAYS = (0.5, 1, 2, 4)
"""The delays of the next attempts to store progress before other members take objects over (in seconds)."""

GATHERING_DELAY = 0.1
"""How long to wait for more of the objects that other members hand over, before all objects are listed (in seconds)."""

NARROWING_DELAYS = (1, 2, 4, 8, 16)
"""
The delays of the requests for narrower streams, after objects were handed over to other members (in seconds).

At each further delay, only those streams are requested that were still listing objects at the previous one.
"""

LAST_EVENTS_DELAYS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4)
"""How long to wait (in seconds, in steps) for the last events of a deleted namespace or resource."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tools:
    """The collaborators of an orchestrator. The operator opens and closes them."""

    context: OperatorContext
    client: ApiClient
    indexers: OperatorIndexers
    vault: Vault
    workers: WorkerPool
    indexing_gate: IndexingGate
    schedules: Schedules
    run_activity: Callable[[Activity], Awaitable[Mapping[HandlerId, Outcome]]]


class WriteThrough:
    """
    Passes the states from the responses to writes to the watches of an operator, ahead of the streams.

    It is created before the watches, because older tasks inherit it as a context variable. Without watches, it ignores
    all states.
    """

    def __init__(self, settings: OperatorSettings) -> None:
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        """The event loop of the operator, for threads."""
        self._orchestrator: Orchestrator | None = None

    @contextlib.contextmanager
    def connected(self, orchestrator: 'Orchestrator') -> Iterator[None]:
        """Pass the states to the watches of the orchestrator while they run."""
        self._orchestrator = orchestrator
        try:
            yield
        finally:
            self._orchestrator = None

    @property
    def is_connected(self) -> bool:
        """Return whether the operator has watches."""
        return self._orchestrator is not None

    def see(self, raw: RawBody, *, is_deleted: bool = False) -> Collection[ObjectRecord]:
        """Pass the state to the watches; see `Orchestrator.see`."""
        return () if self._orchestrator is None else self._orchestrator.see(raw, is_deleted=is_deleted)


write_through_var: ContextVar[WriteThrough] = ContextVar('write_through_var')
"""The receiver of the states from responses to writes, in the operator that runs the current code."""


class Orchestrator:
    """Starts and stops the watches of an operator; pauses and resumes them."""

    def __init__(
        self,
        tools: Tools,
        *,
        patterns: Collection[NamespacePattern],
        identity: str | None,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._tools = tools
        self._patterns = patterns
        self._tasks = tasks
        controls = Controls(
            changed=self._adjust,
            note_lapse=tools.workers.note_lapse,
            abort=self._abort,
            find_running=self._find_running,
            find_running_for=self._find_running_for,
            run_activity=tools.run_activity,
            relist=self._relist,
            narrow=self._narrow,
            surrender=self._surrender,
        )
        self.coordinator = make_coordinator(
            CoordinatorContext(tools.client, tools.context.settings, identity, tasks, controls)
        )
        # Why ``None``, and not a function that always returns false? It would be called for each event.
        if (overdue_check := self.coordinator.overdue_check) is not None:
            tools.workers.set_overdue_check(overdue_check)
            tools.schedules.set_overdue_check(overdue_check)
        if (owner_check := self.coordinator.owner_check) is not None:
            tools.workers.set_owner_check(owner_check)
        if self.coordinator.keeps_warm:
            tools.workers.keep_warm()
        registry = tools.context.registry
        self._levels: Levels | None = None
        self.webhooks = self._make_webhook_runtime() if registry.webhooks or registry.conversions else None
        self._paused = False
        self._ending = False
        self._observed_definitions: set[Resource] | None = None
        """The versions of the resource of CRDs that are watched; ``None`` if they are not to be watched (yet)."""
        self._starting = True  # whether all handlers wait for the indices of newly found resources
        self._listing_namespaces = False
        self._tables: dict[Resource, HandlerTable] = {}
        self._namespaces: set[Namespace] = set()
        self._watches: dict[Scope, Watching] = {}
        self._halting: asyncio.Task[None] | None = None
        self._saving: asyncio.Task[None] | None = None
        self._handed_over = False  # in a pause, whether all handlers have ended, so that peers can work
        self._resuming: asyncio.Task[None] | None = None
        self._narrowing: asyncio.Task[None] | None = None
        self._observers: list[ResourceWatch] = []
        self._problems = ResourceProblems()
        self._resources: Collection[Resource] | None = None
        self._served: dict[Scope, HandlerTable] = {}
        self._leaving: dict[Scope, Leaving] = {}
        self._former_finalizers: dict[tuple[str, str], FormerFinalizer] = {}  # by group and plural
        self._held: set[Resource] = set()  # the resources whose indices are expected before their watches begin
        self._checks = list(self._make_checks())
        self._permissions = self._make_permissions()
        self._definitions = Definitions(self._checks)
        self._absences = Absences(self._definitions)
        self._changed = asyncio.Event()
        # Users can declare handlers at any time, and in any thread.
        self._listener = make_threadsafe(self.note_definition)
        registry.listeners.append(self._listener)
        tools.client.listeners.append(self._note_other_cluster)
        self._context = contextvars.copy_context()

    def end(self) -> None:
        """Called when the operator stops serving and waits for its running handlers: no further handlers may start."""
        self._ending = True
        self.coordinator.end()

    def close(self) -> None:
        """Stop listening to the registry and to the client, which can outlive the operator."""
        self._tools.context.registry.listeners.remove(self._listener)
        self._tools.client.listeners.remove(self._note_other_cluster)
        if self._levels is not None:
            self._levels.close()

    def _make_webhook_runtime(self) -> 'WebhookRuntime':
        from kopf._core.reactor.webhook_runtime import WebhookRuntime

        tools = self._tools
        return WebhookRuntime(
            tools.context,
            client=tools.client,
            vault=tools.vault,
            memos=self.get_memo,
            barrier=tools.indexing_gate,
        )

    def _make_checks(self) -> Iterator[SchemaCheck]:
        """Yield the checks of CRDs that the handlers need."""
        registry = self._tools.context.registry
        if any(handler.uses_conditions for handler in registry.iter_resource_handlers()):
            from kopf._core.reactor.condition_schemas import ConditionSchemas

            yield ConditionSchemas()
        if any(handler.field for handler in registry.iter_resource_handlers()):
            from kopf._core.reactor.field_schemas import FieldSchemas

            yield FieldSchemas(registry)
        persistence = self._tools.context.settings.persistence
        if list_fields(persistence.diffbase_storage) or list_fields(persistence.progress_storage):
            from kopf._core.reactor.storage_schemas import StorageSchemas

            yield StorageSchemas(persistence)

    def _make_permissions(self) -> 'PermissionReviews | None':
        """Return the reviews of permissions if they are requested; ``None`` otherwise."""
        settings, registry = self._tools.context.settings, self._tools.context.registry
        mode = settings.scanning.permissions
        # By default, operators with only the classic kinds of handlers make no additional requests.
        if mode == 'off' or (mode is None and not registry.reconciling and not registry.kinds):
            return None
        from kopf._core.reactor.permission_reviews import PermissionReviews

        return PermissionReviews(
            self._tools.client, settings, registry, clusterwide=not self._patterns, tasks=self._tasks
        )

    async def start(self) -> None:
        """Discover the resources, and start the watches and the observers."""
        specific = select_specific_namespaces(self._patterns)
        self._namespaces = {None} if not self._patterns else set(specific)
        self._begin_listing_namespaces()
        # Webhooks are called as soon as their resources are known, before the lists of the indices begin.
        if indices := {handler.id for handler in self._tools.context.registry.indexing}:
            # Other handlers need not wait, as no objects are watched yet.
            self._tools.indexing_gate.expect(self, 'the discovered resources', indices, initial=False)
        with explaining_discovery_errors():
            # A failure of the first discovery ends the operator. Later ones are retried, because the operator serves
            # the known resources meanwhile.
            settled = await self._discover()
        if self.webhooks is not None:
            # Why not earlier? No watch may begin before the permissions are reviewed, and before handlers wait for all
            # indices.
            self._tasks.create_task(self._follow_conversions(self.webhooks), name='conversions')
        if self._tools.context.settings.scanning.disabled:
            if len(specific) < len(set(self._patterns)):
                logger.warning(
                    "The patterns of namespaces match nothing, as settings.scanning.disabled is set; "
                    "served are only: %s.",
                    join_names(specific),
                )
        else:
            if self._patterns:
                sink = NamespaceSink(self, self._patterns, self._tools.indexing_gate)
                if indices:
                    sink.expect(indices)
                self._observe(NAMESPACE, sink)
            self._observed_definitions = set()
            self._observe_definitions(self._observed_definitions)
        # Also without observers: a group can be down at the start, and handlers can be declared later.
        if not settled:
            self._changed.set()
        self._tasks.create_task(self._rediscover(), name='discovery')

    def _observe_definitions(self, observed: set[Resource]) -> None:
        """Watch the CRDs, as soon as their group is discovered."""
        for resource in CRDS.select(self._resources or ()) - observed:
            observed.add(resource)
            self._observe(resource, DefinitionsSink(self, self._definitions))

    def _observe(self, resource: Resource, sink: EventSink) -> None:
        watch = ResourceWatch(
            self._tools.client,
            self._tools.context.settings,
            resource,
            None,
            sink,
            # The selectors of the settings are for the objects to handle, not for namespaces and CRDs.
            selective=False,
            instruments=self._tools.context.instruments,
        )
        self._observers.append(watch)
        self._tasks.create_task(watch.persist(), name=f'observer of {watch}')

    async def _follow_conversions(self, webhooks: 'WebhookRuntime') -> None:
        """
        Start the watches of kinds when their conversions come into force, and stop them when these are lost.

        Why not by a call from the webhook runtime? The tasks of the watches would inherit the context of its task,
        whose requests are not fenced.
        """
        while True:
            await webhooks.switched.wait()
            webhooks.switched.clear()
            self._hold_indices()
            self._adjust()
            self._release_indices()

    def _is_held(self, resource: Resource) -> bool:
        """Check whether the objects must not be handled yet, as the API server would drop some of their fields."""
        return self.webhooks is not None and self.webhooks.holds(resource)

    def _hold_indices(self) -> None:
        """Delay the handlers that can use the indices of held kinds, until these can be converted and are watched."""
        for resource, table in self._tables.items():
            if table.indexing and resource not in self._held and self._is_held(resource):
                self._held.add(resource)
                indices = {handler.id for handler in table.indexing}
                self._tools.indexing_gate.expect(resource, repr(resource), indices, initial=False)

    def _release_indices(self) -> None:
        """Called after the watches of released kinds have begun: now, handlers wait for the lists of these watches."""
        for resource in [each for each in self._held if each not in self._tables or not self._is_held(each)]:
            self._held.discard(resource)
            self._tools.indexing_gate.dismiss(resource)

    async def _discover(self) -> bool:
        """
        Discover the resources, and adjust the watches.

        Returns:
            Whether the result is complete. Otherwise, the discovery is to be repeated.
        """
        registry = self._tools.context.registry
        groups = get_groups(registry)
        if groups is not None:
            groups |= {'apiextensions.k8s.io', *self.coordinator.groups}
        discovery = await discover(self._tools.client, groups)
        hidden = {resource for resource in self._resources or () if resource.group in discovery.failed_groups}
        self._tools.indexers.ensure(registry.indexing)
        # If the server of a group is down, its resources still exist.
        self._resources = self._absences.fill(discovery.resources | hidden, self._resources or ())
        self._tables, problems = resolve_tables(registry, self._resources)
        problems = problems.with_failed_groups(discovery.failed_groups, hidden, registry.iter_selectors(watched=True))
        problems = problems.with_selectors(self._tools.context.settings.watching.label_selectors)
        problems.log(self._problems)
        self._problems = problems
        for check in self._checks:
            check.report(self._tables)
        # This comes before `_adjust`: no watch may begin until it is known whether peerings exist.
        self.coordinator.rediscover(self._resources, discovery.failed_groups)
        unresolved = problems.unresolved
        if self.webhooks is not None:
            unresolved |= self.webhooks.rediscover(self._resources)
        if self._permissions is not None:
            await self._permissions.serve(self._resources, self._namespaces)
        self._hold_indices()  # before other kinds are watched: the end of their lists would complete the indices
        self._adjust()
        self._release_indices()
        if self._observed_definitions is not None:
            self._observe_definitions(self._observed_definitions)
        if self._absences or problems.failed_groups or (discovery.failed_groups and unresolved):
            return False
        if not discovery.failed_groups.isdisjoint(self._find_own_groups()):
            return False
        return self._definitions.compare(self._resources, groups)

    def _find_own_groups(self) -> Collection[str]:
        """Return the API groups that the operator needs itself, besides those of the handlers."""
        scanning = not self._tools.context.settings.scanning.disabled
        return {*self.coordinator.groups, *(['apiextensions.k8s.io'] if scanning else [])}

    def get_memo(self, resource: Resource, metadata: Mapping[str, Any]) -> Any:
        """Return the memo of the object, or ``None`` if no watch has seen it."""
        for namespace in {metadata.get('namespace'), None}:
            watch, _, _ = self._watches.get((resource, namespace), (None, None, None))
            record = None if watch is None else watch.records.get(metadata.get('uid') or '')
            if record is not None:
                return record.get_memo(self._tools.context.copy_memo)
        return None

    def serves(self, resource: Resource, namespace: Namespace) -> bool:
        """Check whether the objects of the resource in the namespace are watched."""
        return any((resource, scope) in self._watches for scope in {namespace, None})

    def is_watched(self, resource: Resource) -> bool:
        """Check whether the objects of the resource are watched, in any namespace."""
        return any(each == resource for each, _ in self._watches)

    def find_namespaces(self) -> Collection[str]:
        """Return the served namespaces; none if the whole cluster is served, or if some are not known yet."""
        return () if self._lacks_namespaces() else {name for name in self._namespaces if name is not None}

    def see(self, raw: RawBody, *, is_deleted: bool = False) -> Collection[ObjectRecord]:
        """
        Pass the state of an object from the response to a write to the watches, ahead of the streams.

        Args:
            raw: the object. It must not be changed afterwards.
            is_deleted: whether the response reports a completed deletion, not only a mark for deletion.

        Returns:
            The records of the object, in the watches for which the state is new.
        """
        metadata, records = raw['metadata'], []
        if metadata.get('finalizers') or metadata.get('deletionGracePeriodSeconds'):
            is_deleted = False  # an object with finalizers is only marked for deletion
        for resource in self._tables:
            if resource.kind == raw.get('kind') and get_api_version(resource) == raw.get('apiVersion'):
                for namespace in {metadata.get('namespace'), None}:
                    watch, _, _ = self._watches.get((resource, namespace), (None, None, None))
                    record = None if watch is None else watch.see(raw, is_deleted=is_deleted)
                    if record is not None:
                        records.append(record)
        return records

    def get_watches(self) -> Collection[ResourceWatch]:
        """Return the watches of the objects that are handled; callable from any thread."""
        # Copied first: the dict can change meanwhile.
        return [watch for watch, _, _ in list(self._watches.values())]

    def get_leases(self) -> Mapping[str, bool]:
        """Return whether this operator leads, by the name of the Lease; empty without an election."""
        return self.coordinator.leases

    def find_failures(self) -> Iterator[str]:
        """Return messages about watches and logins that have been failing for long, for the probes."""
        limit = self._tools.context.settings.probing.failing_watch_limit
        for watch in [*self._observers, *self.coordinator.watches, *self.get_watches()]:
            if limit is not None and watch.failing_for > limit:
                yield f"The watch-stream for {watch} has been failing for {watch.failing_for:.0f} s: {watch.failure}"
        if limit is not None and self._tools.vault.failing_for > limit:
            yield f"The login has been failing for {self._tools.vault.failing_for:.0f} s."

    def find_delays(self) -> Iterator[str]:
        """Return messages about parts that have not started yet, for the probes. A paused operator is ready."""
        if self._resources is None:
            yield "The resources are not discovered yet."
        if self.webhooks is not None and not self.webhooks.listening:
            yield "The webhook server does not listen yet."
        # A paused operator is ready, unless it must be able to take over at once: then, it needs all lists and indices.
        is_cold = self._paused and not self.coordinator.keeps_warm
        if self.coordinator.keeps_warm and not self.coordinator.is_open(None):
            yield "It is not known yet which replica of the operator is the leader."
        watches = [] if is_cold else self.get_watches()
        for watch in [*self._observers, *self.coordinator.watches, *watches]:
            if not watch.complete and not watch.refused and not self._needs_own_webhook(watch):
                yield _describe_list(watch)
        if not is_cold and not self._tools.indexing_gate.is_complete and not self._indexes_converted():
            yield "The indices are not complete yet."

    def _needs_own_webhook(self, watch: ResourceWatch) -> bool:
        """
        Check whether the list can depend on the conversions of this operator.

        Kubernetes calls an operator by its Service only when it is ready, so its readiness must not wait for that list.
        """
        return self.webhooks is not None and self.webhooks.converts(watch.resource)

    def _indexes_converted(self) -> bool:
        """Check whether any index has objects that this operator converts."""
        webhooks, tables = self.webhooks, list(self._tables.items())
        return webhooks is not None and any(table.indexing and webhooks.converts(each) for each, table in tables)

    def find_warnings(self) -> Collection[str]:
        """Return messages about missing permissions and other faults that do not stop the operator, for the probes."""
        texts = () if self._permissions is None else self._permissions.texts
        missing = [f"A permission of the operator is missing. Add this rule to {text}" for text in texts]
        if self.webhooks is None:
            return missing
        lists = [
            _describe_list(watch)
            for watch in self.get_watches()
            if not watch.complete and not watch.refused and self._needs_own_webhook(watch)
        ]
        return [*missing, *self.webhooks.find_warnings(), *lists]

    async def _rediscover(self) -> None:
        """Repeat the discovery when something has changed, and until the result is complete."""
        delays: Iterator[float] | None = None
        while True:
            try:
                async with asyncio.timeout(None if delays is None else next(delays)):
                    await self._changed.wait()
            except TimeoutError:
                pass
            else:
                delays = itertools.chain(SETTLING_DELAYS, itertools.repeat(SETTLING_DELAYS[-1]))
                await asyncio.sleep(0.1)  # changes usually come together, such as CRDs of one chart
            # The flag is cleared before the discovery, because its result can lack changes that are made meanwhile.
            self._changed.clear()
            try:
                if await self._discover():
                    delays = None
            except errors.APIError as error:
                logger.warning("The resources could not be discovered; trying again: %s", error)
            except (LoginError, ExplainedError):  # mistakes that only users can correct
                raise
            except Exception:  # e.g. of an invalid response; the known resources are still served
                logger.exception("The resources could not be discovered; trying again.")

    def note_definition(self) -> None:
        """Called when a CRD has changed, or when handlers are declared."""
        self._changed.set()

    def _note_other_cluster(self) -> None:
        """Called when a login has led to another cluster. The watches list its objects by themselves."""
        # Why not at once? The client calls this in the middle of any request, with the context of that.
        asyncio.get_running_loop().call_soon(self._move, context=self._context)

    def _move(self) -> None:
        self._begin_listing_namespaces()
        self.coordinator.note_other_cluster()  # before the watches list the objects of that cluster
        self._changed.set()
        if self.webhooks is not None:
            self.webhooks.note_other_cluster()

    def compare_definitions(self) -> None:
        """Called when all CRDs are listed. Some can be newer than the last discovery."""
        if not self._definitions.compare(self._resources or (), None):
            self._changed.set()
        for check in self._checks:
            check.report(self._tables)
        if self.webhooks is not None:
            self.webhooks.recheck()

    def add_namespace(self, name: str, *, ending: bool = False) -> None:
        """Called when a namespace is created or modified; ``ending`` if it is being deleted."""
        self.coordinator.note_ending(name, ending)
        if name not in self._namespaces:
            self._namespaces.add(name)
            if self._permissions is not None:
                self._permissions.recheck()
            self._adjust([name])

    def remove_namespaces(self, names: Collection[Namespace]) -> None:
        """Called when namespaces are deleted."""
        gone = [name for name in names if name in self._namespaces]
        self._namespaces.difference_update(gone)
        if gone:
            if self._permissions is not None:
                self._permissions.recheck()
            self._adjust(gone)
        for name in gone:  # after `_adjust`, which leaves their peerings: otherwise, the operator would pause
            self.coordinator.note_ending(name, False)

    def compare_namespaces(self, names: Collection[str]) -> None:
        """Called when all namespaces are listed: stop serving the namespaces that do not exist."""
        if missing := self._namespaces.difference(names):
            logger.warning("These namespaces are served as soon as they exist: %s.", join_names(missing))
            self.remove_namespaces(missing)

    def _begin_listing_namespaces(self) -> None:
        """Called when the namespaces that match the patterns are not known yet."""
        self._listing_namespaces = bool(self._patterns) and not self._tools.context.settings.scanning.disabled
        self.coordinator.note_listing(self._lacks_namespaces())

    def _lacks_namespaces(self) -> bool:
        """Check whether the namespaces that match patterns with wildcards are not known yet."""
        has_wildcards = len(select_specific_namespaces(self._patterns)) < len(set(self._patterns))
        return self._listing_namespaces and has_wildcards

    def end_listing_namespaces(self) -> None:
        """Called when all namespaces are listed, or when they cannot be listed."""
        if self._listing_namespaces:
            self._listing_namespaces = False
            self.coordinator.note_listing(False)
            self._adjust()

    def _check_started(self) -> None:
        """
        End the start phase when all resources and namespaces found at the start are being served.

        From then on, handlers wait only for the indices that they can use.
        """
        if self._listing_namespaces:
            return
        if self.coordinator.is_open(None):
            self._tools.indexing_gate.dismiss(self)  # from now on, handlers wait for the lists themselves
            if not self._paused:
                self._starting = False

    def _adjust(self, affected: Collection[Namespace] | None = None) -> None:
        """
        Start missing watches, and stop those that are not needed any more; or pause or resume all watches.

        Args:
            affected: the namespaces that were created or deleted, or can be served now; by default, all of them. With
                hundreds of namespaces, it would take too long to check all of them whenever one of them changes.
        """
        if self._ending:
            # When the operator is ending, only a pause is handled: peers may begin, so the last workers must do no more
            # steps.
            if self.coordinator.paused:
                self._tools.workers.pause()
            return
        affected = self.coordinator.adjust(self._namespaces, affected)
        if self.coordinator.paused != self._paused:
            affected = None
        wanted = self._find_wanted(self._namespaces if affected is None else self._namespaces.intersection(affected))
        looked_at = list(self._watches) if affected is None else self._find_scopes(affected)
        leaving = [scope for scope in looked_at if not self._keep_serving(scope, wanted.get(scope))]
        for scope in leaving:
            watch, sink, task = self._watches.pop(scope)
            del self._served[scope]
            # The watches of deleted namespaces and resources run a little longer: they can still bring the last events.
            if not self._is_gone(*scope):
                task.cancel()
            self._leaving[scope] = watch, sink, task, None
        if self.coordinator.paused != self._paused:
            self._paused = self.coordinator.paused
            if self._paused:
                self._pause()
            else:
                self._resume()
        self._tools.schedules.permit(
            not self._paused and self.coordinator.is_open(None) and self.coordinator.runs_schedules
        )
        predecessors = {get_place(*scope): scope for scope in self._leaving if scope not in wanted}
        for scope, table in wanted.items():
            if scope not in self._watches and self.coordinator.is_open(scope[1]):
                former = scope if scope in self._leaving else predecessors.pop(get_place(*scope), None)
                self._watches[scope] = self._start_watch(scope, table, former and self._leaving.pop(former))
                self._served[scope] = table
        self._relist_children()
        # Why not end these watches earlier? A new watch can have taken over their objects, with workers and daemons. If
        # the old watch ended first, it would stop these daemons and wait for these workers.
        for scope in leaving:
            if scope in self._leaving:
                self._leaving[scope] = self._end_watch(scope, *self._leaving[scope][:3])
        if self._leaving:
            self._leaving = {
                scope: leaving
                for scope, leaving in self._leaving.items()
                if leaving[3] is None or not leaving[3].done()
            }
        self._check_started()

    def _find_wanted(self, namespaces: Collection[Namespace]) -> dict[Scope, HandlerTable]:
        """Return the scopes to be served in these namespaces, and those of cluster-scoped resources."""
        return {
            (resource, namespace): table
            for resource, table in self._tables.items()
            if not self._is_held(resource)
            # Sorted, so that the watches always start in the same order.
            for namespace in (sorted(namespaces, key=str) if resource.namespaced else [None])
        }

    def _find_scopes(self, namespaces: Collection[Namespace]) -> list[Scope]:
        """Return the scopes that are watched in these namespaces."""
        scopes = [(resource, namespace) for resource in self._tables for namespace in namespaces]
        return [scope for scope in scopes if scope in self._watches]

    def _keep_serving(self, scope: Scope, table: HandlerTable | None) -> bool:
        """Keep the watch of the scope if its handlers are the same; return whether it is kept."""
        served = self._served[scope]
        if table is None or table != served:
            return False
        if not table.resource.is_same(served.resource):
            self._watches[scope][1].revise(table)  # the table can differ in verbs or subresources, for example
            self._served[scope] = table
        return True

    def _pause(self) -> None:
        """Pause the handling, so that other operators handle the objects. Watching and indexing continue."""
        if self._resuming is not None:
            self._resuming.cancel()
        self._tools.workers.pause()
        for watch, sink, _ in self._watches.values():
            sink.paused(watch)
            watch.pause(True)
        # The deletions of objects that go with their namespace or resource are reported a moment later.
        for watch, sink, _, _ in self._leaving.values():
            sink.paused(watch)
        # Do this even without watches: handlers of a former watch can be running, and peers wait for their end. Why
        # save before the daemons have ended? The pause can be over by then.
        self._halting = self._tasks.create_task(self._halt(self._start_saving()), name='pausing')

    def _abort(self) -> None:
        """Cancel all work at once: another replica can begin to handle the objects. A pause follows."""
        self._handed_over = True  # so that nothing is stored any more
        self._tools.schedules.permit(False)
        self._tools.workers.abort()
        self._tools.schedules.abort()

    def _relist(self, taken: OwnerCheck) -> None:
        """List all objects again, as the operator handles more of them from now on; see `Controls`."""
        if self._paused or self._ending:
            return  # after a pause, all objects are listed anyway
        for scope in self._watches:
            # Why not at once? When a member begins, several others release their buckets one after another.
            self._list_again(scope, taken, delay=GATHERING_DELAY)

    def _relist_children(self) -> None:
        """List the children again if handlers have got another kind of owners: before, its children were ignored."""
        outdated = [] if self._levels is None else self._levels.find_outdated()
        resources = {relations.resource for relations in outdated}
        for scope in self._watches if resources and not self._paused else ():
            if scope[0] in resources:
                self._list_again(scope, lambda record: False)
        for relations in outdated:
            relations.note_relisting()

    def _list_again(self, scope: Scope, taken: OwnerCheck, *, delay: float = 0) -> None:
        watch, sink, task = self._watches[scope]
        task.cancel()
        watch.relist()
        sink.relisting(watch, taken)
        self._watches[scope] = watch, sink, self._run_watch(watch, delay=delay)

    def _narrow(self) -> None:
        """Request the streams again, as the operator handles fewer objects from now on; see `Controls`."""
        if self._narrowing is None or self._narrowing.done():
            self._narrowing = self._tasks.create_task(self._narrow_later(), name='narrowing of the streams')

    async def _narrow_later(self) -> None:
        # Why not immediately? This only saves traffic, and other buckets are often taken away or returned soon.
        for delay in NARROWING_DELAYS:
            await asyncio.sleep(delay)
            for scope, (watch, sink, task) in self._watches.items():
                # Watches that are listing or waiting are skipped: they usually make another request soon.
                if watch.is_too_wide and watch.state is WatchState.STREAMING and not self._ending:
                    task.cancel()
                    self._watches[scope] = watch, sink, self._run_watch(watch)
            if not any(watch.is_too_wide for watch, _, _ in self._watches.values()):
                return

    def _find_sinks(self) -> list[tuple[ResourceWatch, ObjectSink]]:
        """Return all watches with their sinks, including those that are being stopped."""
        pairs = [(watch, sink) for watch, sink, _ in self._watches.values()]
        return pairs + [(watch, sink) for watch, sink, _, _ in self._leaving.values()]

    async def _surrender(self, surrender: Surrender) -> None:
        """End the handling of these objects, and wait until nothing runs for them; see `Controls`."""
        found: dict[int, list[tuple[ObjectSink, list[ObjectRecord]]]] = {bucket: [] for bucket in surrender.buckets}
        for watch, sink in self._find_sinks():
            groups: dict[int, list[ObjectRecord]] = {}
            for record in watch.get_known():
                if (bucket := surrender.find_bucket(record)) in found:
                    groups.setdefault(bucket, []).append(record)
            for bucket, records in groups.items():
                sink.surrendered(records)
                found[bucket].append((sink, records))
        busy = {bucket for bucket, pairs in found.items() if any(_has_work(records) for _, records in pairs)}
        busy |= found.keys() & {surrender.find_bucket(left.plan.level.record) for left in self._find_threads()}
        if surrender.schedules is not None:
            busy.add(surrender.schedules)
        # Why each bucket separately? A handler can run for hours, and only the objects of its own bucket must wait for
        # it.
        parts = [[bucket for bucket in found if bucket not in busy], *([bucket] for bucket in busy)]
        await asyncio.gather(*(self._outwait(surrender, found, part) for part in parts))

    async def _outwait(
        self,
        surrender: Surrender,
        by_bucket: Mapping[int, Collection[tuple[ObjectSink, Collection[ObjectRecord]]]],
        buckets: Collection[int],
    ) -> None:
        """Wait until nothing runs for the objects of these buckets; then forget them."""
        found = [pair for bucket in buckets for pair in by_bucket[bucket]]
        everything = [record for _, records in found for record in records]
        await self._tools.workers.wait_for(everything)
        # Wait once more: the last steps can have started daemons.
        for sink, records in found:
            sink.surrendered(records)
        await self._tools.workers.release(everything)
        uids = {record.uid for record in everything}
        if left := self._find_threads(lambda record: record.uid in uids):
            await asyncio.wait([each.thread for each in left])
        if surrender.schedules in buckets:
            await self._tools.schedules.drain()
        await self.save(found)
        # The next operator would call the handlers again. Why not without a limit? The API can refuse a patch for ever.
        for delay in SAVING_DELAYS:
            if self._ending or self._handed_over or not any(record.in_memory_only for record in everything):
                break
            await asyncio.sleep(delay)
            await self.save(found)
        for sink, records in found:
            sink.disowned(records)
        for watch, _ in self._find_sinks():
            watch.forget(uids)
        surrender.ended(buckets)

    def _find_threads(self, concerns: OwnerCheck = lambda _: True) -> 'list[LeftThread]':
        """Return the threads of level-triggered handlers that have timed out, for the selected objects."""
        return [] if self._levels is None else self._levels.find_threads(concerns)

    def _find_running_for(self, concerns: OwnerCheck) -> list[str]:
        """Return the names of the handlers, daemons and threads that are running for the selected objects."""
        return [*self._tools.workers.find_running_for(concerns), *map(str, self._find_threads(concerns))]

    def _find_running(self) -> list[str]:
        """Return the names of all running handlers, including threads and tasks that ignore their cancellation."""
        return [
            *self._tools.workers.find_running(),
            *self._tools.schedules.find_running(),
            *self._tools.context.thread_calls.find(),
        ]

    async def _halt(self, saving: asyncio.Task[None]) -> None:
        # Why not `await saving`? When the pause ends, this task is cancelled, which would also cancel the saving.
        await asyncio.wait({saving})
        await self._tools.workers.drain()
        # Save once more, because the last workers have ended in the meantime.
        await asyncio.wait({self._start_saving()})
        await self._tools.schedules.drain()
        # This comes last: peers take over when they see it.
        self._handed_over = True
        self.coordinator.halt(True)

    def _start_saving(self) -> asyncio.Task[None]:
        """Start to store the progress that is only in memory; continue even if the pause ends meanwhile."""
        self._saving = self._tasks.create_task(self.save(), name='saving')
        return self._saving

    async def save(self, found: Iterable[tuple[ObjectSink, Collection[ObjectRecord]]] | None = None) -> None:
        """
        Store the progress that is only in memory on the objects, before other operators can take over.

        Args:
            found: the objects by their sinks; by default, all objects.
        """
        timeout = self._tools.context.settings.queueing.exit_timeout
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        delays = iter(SAVING_DELAYS)
        found = None if found is None else list(found)
        while tasks := self._start_saving_all(found):
            delay = None
            try:
                await asyncio.wait(tasks, timeout=None if timeout is None else max(0.0, deadline - time.monotonic()))
                # Storages of users can fail for a moment. Why only at the end? After a pause, and for other members,
                # it is tried again anyway.
                if self._ending and all(map(_is_worth_another_attempt, _find_failed(tasks))):
                    delay = next((each for each in delays if time.monotonic() + each < deadline), None)
            finally:
                failed = _find_failed(tasks)
                if failed and delay is None:
                    logger.warning(
                        "The results of the handlers of %d objects can't be stored; they are handled again later: %s",
                        len(failed),
                        ', '.join(sorted(task.get_name() for task in failed)),
                    )
                await end(tasks, timeout=timeout, what="The last patches")
            if not failed or delay is None:
                return
            await asyncio.sleep(delay)

    def _start_saving_all(
        self, found: Iterable[tuple[ObjectSink, Collection[ObjectRecord]]] | None
    ) -> set[asyncio.Task[None]]:
        """Start to store the progress that is only in memory; return a task for each object."""
        # Peers can have handled the objects meanwhile, and would use the old progress for their own handlers.
        if self._handed_over:
            return set()
        working = self._tools.workers.find_working()
        if found is None:
            found = ((sink, watch.get_known()) for watch, sink in self._find_sinks())
        return {
            asyncio.create_task(sink.save(record), name=repr(record))
            for sink, records in found
            for record in records
            # A running worker stores its own results: storing them here, too, would take a second patch.
            if record.in_memory_only and record not in working
        }

    def _resume(self) -> None:
        """Resume the handling after a pause."""
        if self._halting is not None:
            self._halting.cancel()
        if self._saving is not None and not self._saving.done():
            # The resumption drops the progress in memory. If it were not stored before, handlers would run twice.
            self._resuming = self._tasks.create_task(self._resume_later(self._saving), name='resuming')
        else:
            self._go_on()

    async def _resume_later(self, saving: asyncio.Task[None]) -> None:
        await asyncio.wait({saving})
        self._go_on()

    def _go_on(self) -> None:
        self._handed_over = False
        self.coordinator.halt(False)
        # Why not continue the watches? Events during the pause were not handled. And a peer can have died while it was
        # handling an object: if the object has not changed since, only a list brings it.
        for scope, (watch, sink, task) in self._watches.items():
            task.cancel()
            watch.restart()
            watch.pause(False)
            sink.resumed(watch)
            self._watches[scope] = watch, sink, self._run_watch(watch)
        self._tools.workers.resume()

    def _run_watch(self, watch: ResourceWatch, *, delay: float = 0) -> asyncio.Task[None]:
        return self._tasks.create_task(self._watch(watch, delay), name=f'watch of {watch}')

    @staticmethod
    async def _watch(watch: ResourceWatch, delay: float) -> None:
        if delay:
            await asyncio.sleep(delay)
        await watch.run()

    def _is_gone(self, resource: Resource, namespace: Namespace) -> bool:
        """Check whether the namespace or the resource is deleted, not only excluded from serving."""
        # A resource with another scope is another one: the CRD was deleted with its objects, and created again.
        key = resource.group, resource.plural, resource.namespaced
        return (resource.namespaced and namespace not in self._namespaces) or not any(
            key == (other.group, other.plural, other.namespaced) for other in self._resources or ()
        )

    def _is_returning(self, resource: Resource, namespace: Namespace) -> bool:
        """Check whether another watch takes over the objects soon, as their namespace or resource exists again."""
        # Objects in another version than those of all handlers, or whose conversion is not in force, get no watch.
        served = {
            get_place(other, namespace if other.namespaced else None)
            for other in self._tables
            if not self._is_held(other)
        }
        return not self._is_gone(resource, namespace) and get_place(resource, namespace) in served

    def _end_watch(self, scope: Scope, watch: ResourceWatch, sink: ObjectSink, task: asyncio.Task[None]) -> Leaving:
        if self._is_gone(*scope):
            end = self._bury(scope, watch, sink, task)
        else:
            sink.dropped(watch)
            end = self._release(watch, sink)
        return watch, sink, task, self._tasks.create_task(end, name=f'end of {watch}')

    async def _bury(self, scope: Scope, watch: ResourceWatch, sink: ObjectSink, task: asyncio.Task[None]) -> None:
        """Report the objects of a deleted namespace or resource as deleted, and release the watch."""
        # This watch can lag behind that of namespaces or CRDs. Wait for its events, because they have the last states.
        for delay in LAST_EVENTS_DELAYS:
            if watch.records and watch.state is WatchState.STREAMING:
                await asyncio.sleep(delay)
        # The namespace can exist again, and this watch can have its objects. The next watch takes them over, but first
        # waits until the peering of the namespace is known. Why not an event? Each adjustment would have to set it.
        while self._is_returning(*scope):  # noqa: ASYNC110
            await asyncio.sleep(LAST_EVENTS_DELAYS[-1])
        task.cancel()
        records = watch.get_known()
        await watch.report_deletions()
        sink.vanished(watch)
        # Objects can return, e.g. if their kind was not served for a while. Then, the next watch takes over these
        # records, so that no daemon starts beside its predecessor.
        await self._tools.workers.outwait(records)
        sink.released(watch)

    async def _release(self, watch: ResourceWatch, sink: ObjectSink) -> None:
        """Wait for the workers and daemons of the objects, and release the watch."""
        await self._tools.workers.release(watch.get_known())
        sink.released(watch)

    async def _retire(self, watch: ResourceWatch, sink: ObjectSink, records: Collection[ObjectRecord]) -> None:
        """Wait for the workers of objects that another watch has taken over, and release the former watch."""
        await self._tools.workers.wait_for(records)
        sink.released(watch)

    def _start_watch(self, scope: Scope, table: HandlerTable, former: Leaving | None) -> Watching:
        tools = self._tools
        sink = self._make_sink(table)
        informer = (
            None
            if not table.indexing
            else Informer(
                sink,
                context=tools.context,
                table=table,
                indexers=tools.indexers,
                indexing_gate=tools.indexing_gate,
            )
        )
        sink = sink if informer is None else informer
        watch = ResourceWatch(
            self._tools.client,
            self._tools.context.settings,
            *scope,
            sink,
            label_selector=table.label_selector,
            instruments=tools.context.instruments,
            # Indices and relations need all objects.
            shard=None if table.indexing or table.dependents else self.coordinator.shard_filter,
        )
        sink.processor.attach_watch(watch)
        # This comes before the watch runs: the gate must expect the list before the list can be complete.
        if informer is not None:
            namespace = scope[1] if not self._starting and self._is_listed(scope[0]) else None
            informer.expect(str(watch), initial=self._starting, namespace=namespace)
        if former is not None:
            self._take_over(watch, sink, former)
        # A watch that begins during a pause runs nevertheless: webhooks and probes use the indices, which must be up to
        # date.
        if self._paused:
            sink.paused(watch)
            watch.pause(True)
        return watch, sink, self._run_watch(watch)

    def _is_listed(self, resource: Resource) -> bool:
        """Check whether the resource is listed in any namespace, so that its indices lack only new namespaces."""
        return any(watch.complete for (each, _), (watch, _, _) in self._watches.items() if each == resource)

    def _make_sink(self, table: HandlerTable) -> ObjectSink:
        """Create the processor of the resource, which gets its events after they are indexed."""
        tools = self._tools
        is_leveled = bool(table.of(ReconcilingHandler))
        former_finalizer = self._get_former_finalizer(table)
        processor = (
            None
            if is_leveled
            else Processor(
                tools.context,
                client=tools.client,
                table=table,
                workers=tools.workers,
                find_namespaces=self.find_namespaces,
                former_finalizer=former_finalizer,
            )
        )
        if processor is not None and not table.dependents:
            return self._filter(processor)
        # Why not at the top? Few operators have such handlers, and all others would start more slowly.
        from kopf._core.engines.levels import Levels
        from kopf._core.reactor.leveling import LevelProcessor, RelationSink

        if self._levels is None:
            background = tools.workers.background
            self._levels = Levels(tools.context, background, self)
        sink: ObjectSink = self._filter(
            processor
            or LevelProcessor(
                tools.context,
                client=tools.client,
                table=table,
                workers=tools.workers,
                levels=self._levels,
                former_finalizer=former_finalizer,
            )
        )
        if table.dependents:
            sink = RelationSink(sink, table=table, levels=self._levels)
            sink.expect()
        return sink

    def _get_former_finalizer(self, table: HandlerTable) -> FormerFinalizer | None:
        """Return the finalizer to be removed, if there is one; the processors of all namespaces share it."""
        if not table.releasing:
            return None
        key = table.resource.group, table.resource.plural
        if key not in self._former_finalizers:
            self._former_finalizers[key] = FormerFinalizer(self._tools.context.settings.persistence.finalizer)
        return self._former_finalizers[key]

    def _filter(self, sink: ObjectSink) -> ObjectSink:
        """Let the sink get only the objects that this operator handles, if others handle the rest."""
        owns = self.coordinator.owner_check
        if owns is None:
            return sink
        from kopf._core.reactor.shard_sinks import ShardSink  # only for sharded operators

        return ShardSink(sink, owns)

    def _take_over(self, watch: ResourceWatch, sink: ObjectSink, former: Leaving) -> None:
        """Take over the objects of a former watch, which had another version of the resource or other handlers."""
        former_watch, former_sink, task, end = former
        task.cancel()
        watch.inherit(former_watch)
        records = watch.get_known()
        former_sink.retire(sink, records)
        if end is not None:
            end.cancel()
        self._tasks.create_task(self._retire(former_watch, former_sink, records), name=f'end of {former_watch}')


def _describe_list(watch: ResourceWatch) -> str:
    return f"The list of {watch} is not complete yet{f': {watch.failure}' if watch.failure else '.'}"


def _find_failed(tasks: Iterable[asyncio.Task[None]]) -> list[asyncio.Task[None]]:
    """Return the tasks that have failed, or have not ended in time."""
    return [task for task in tasks if not task.done() or task.cancelled() or task.exception() is not None]


def _is_worth_another_attempt(task: asyncio.Task[None]) -> bool:
    """Check whether the task has failed with an error that another attempt may not have."""
    error = task.exception() if task.done() and not task.cancelled() else None
    return error is not None and not isinstance(error, LoginError | errors.APIClientError)


def _has_work(records: Iterable[ObjectRecord]) -> bool:
    """Check whether anything runs for any of these objects, or is still to be stored."""
    return any(record.has_worker or record.daemons is not None or record.in_memory_only for record in records)


def get_place(resource: Resource, namespace: Namespace) -> Place:
    """Return the key that the scopes of different versions of the same objects share."""
    return resource.group, resource.plural, namespace
