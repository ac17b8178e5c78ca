"""
What is served at the moment: the watches that run, as resources and namespaces come and go.

It is found out at the start and whenever something changes. Observers tell what changes: they watch namespaces and CRDs
as everything else is watched. Where an operator has no rights for that, it serves what it knows from the beginning.
"""

import asyncio
import dataclasses
import itertools
import logging
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kopf._cogs.aiokits.loops import end, make_threadsafe
from kopf._cogs.clients import errors
from kopf._cogs.clients.api import ApiClient
from kopf._cogs.clients.discovery import discover, explaining
from kopf._cogs.structs.bodies import RawEvent
from kopf._cogs.structs.credentials import Vault
from kopf._cogs.structs.references import (
    CRDS,
    Namespace,
    NamespacePattern,
    Resource,
    match_namespace,
    select_specific_namespaces,
)
from kopf._core.engines.indexing import OperatorIndexers
from kopf._core.engines.schedules import Schedules
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.registries import HandlerTable
from kopf._core.reactor.coordination import make_coordinator
from kopf._core.reactor.indexing_gate import IndexingGate
from kopf._core.reactor.informer import MAX_FAILURES, Informer
from kopf._core.reactor.object_records import ObjectRecord, is_deleted
from kopf._core.reactor.observation import Absences, Complaints, Definitions, get_groups, resolve_tables
from kopf._core.reactor.processing import Processor
from kopf._core.reactor.sinks import EventSink, ObjectSink
from kopf._core.reactor.watches import ResourceWatch, WatchState
from kopf._core.reactor.workers import WorkerPool

if TYPE_CHECKING:
    from kopf._core.reactor.webhook_runtime import WebhookRuntime

logger = logging.getLogger(__name__)

Scope = tuple[Resource, Namespace]
Place = tuple[str, str, Namespace]
Watching = tuple[ResourceWatch, ObjectSink, asyncio.Task[None]]
Leaving = tuple[ResourceWatch, ObjectSink, asyncio.Task[None], asyncio.Task[None] | None]

NAMESPACE = Resource('', 'v1', 'namespaces', kind='Namespace', namespaced=False)
"""It is in every cluster: there is no need to look for it."""

SETTLING_DELAYS = (0.2, 0.5, 1, 2, 5, 10, 20, 30)
"""How soon to look again while the API server is known to serve something else than it tells (in seconds)."""


LAST_EVENTS_DELAYS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4)
"""When to look whether a stream has brought the last events of a namespace or a kind that is gone (in seconds)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tools:
    """What an operator works with; it opens and closes them."""

    context: OperatorContext
    client: ApiClient
    indexers: OperatorIndexers
    vault: Vault
    workers: WorkerPool
    indexing_gate: IndexingGate
    schedules: Schedules


class Orchestrator:
    """Starts and stops the watches, as resources and namespaces come and go."""

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
        self.coordinator = make_coordinator(
            tools.client, tools.context.settings, identity=identity, tasks=tasks, changed=self._adjust
        )
        if (guard := self.coordinator.guard) is not None:
            tools.workers.guard(guard)
            tools.schedules.guard(guard)
        registry = tools.context.registry
        self.webhooks = self._make_webhook_runtime() if registry.webhooks or registry.conversions else None
        self._paused = False
        self._starting = True  # whether all handlers wait for the indices of what is found
        self._listing_namespaces = False
        self._tables: dict[Resource, HandlerTable] = {}
        self._namespaces: set[Namespace] = set()
        self._watches: dict[Scope, Watching] = {}
        self._halting: asyncio.Task[None] | None = None
        self._saving: asyncio.Task[None] | None = None
        self._resuming: asyncio.Task[None] | None = None
        self._observers: set[ResourceWatch] = set()
        self._complaints = Complaints()
        self._resources: Collection[Resource] | None = None
        self._served: dict[Scope, HandlerTable] = {}
        self._leaving: dict[Scope, Leaving] = {}
        self._definitions = Definitions()
        self._absences = Absences(self._definitions)
        self._changed = asyncio.Event()
        # Handlers can be declared at any time, and in any thread.
        self._listener = make_threadsafe(self.note_definition)
        registry.listeners.append(self._listener)

    def close(self) -> None:
        """Do not listen to the registry any more: it can be there for longer."""
        self._tools.context.registry.listeners.remove(self._listener)

    def _make_webhook_runtime(self) -> 'WebhookRuntime':
        from kopf._core.reactor.webhook_runtime import WebhookRuntime

        tools = self._tools
        return WebhookRuntime(
            tools.context,
            client=tools.client,
            vault=tools.vault,
            memos=self.get_memo,
        )

    async def start(self) -> None:
        """Begin to serve what is there, and to observe what changes."""
        specific = select_specific_namespaces(self._patterns)
        self._namespaces = {None} if not self._patterns else set(specific)
        self._listing_namespaces = bool(self._patterns) and not self._tools.context.settings.scanning.disabled
        with explaining():
            settled = await self._discover()
        if self._tools.context.settings.scanning.disabled:
            if len(specific) < len(set(self._patterns)):
                logger.warning(
                    "The patterns of namespaces match nothing, as settings.scanning.disabled is set; "
                    "served are only: %s.",
                    join_names(specific),
                )
            return
        if not settled:
            self._changed.set()
        if self._patterns:
            sink = NamespaceSink(self, self._patterns, self._tools.indexing_gate)
            if indices := {handler.id for handler in self._tools.context.registry.indexing}:
                sink.expect(indices)
            self._observe(NAMESPACE, sink)
        for resource in CRDS.select(self._resources or ()):
            self._observe(resource, DefinitionsSink(self, self._definitions))
        self._tasks.create_task(self._rediscover(), name='discovery')

    def _observe(self, resource: Resource, sink: EventSink) -> None:
        watch = ResourceWatch(self._tools.client, self._tools.context.settings, resource, None, sink, selective=False)
        self._observers.add(watch)
        self._tasks.create_task(self._run_observer(watch), name=f'observer of {watch}')

    async def _run_observer(self, watch: ResourceWatch) -> None:
        try:
            await watch.run()
        finally:
            self._observers.discard(watch)

    async def _discover(self) -> bool:
        """Find out what is to be served, and serve it; tell if it is certain that nothing is missing."""
        registry = self._tools.context.registry
        groups = get_groups(registry)
        if groups is not None:
            groups |= {'apiextensions.k8s.io', *self.coordinator.groups}
        discovery = await discover(self._tools.client, groups)
        hidden = {resource for resource in self._resources or () if resource.group in discovery.failed_groups}
        self._tools.indexers.ensure(registry.indexing)
        # If a group is down, what it serves is still there.
        self._resources = self._absences.fill(discovery.resources | hidden, self._resources or ())
        self._tables, complaints = resolve_tables(registry, self._resources)
        complaints = complaints.about_groups(discovery.failed_groups, hidden)
        complaints.log(self._complaints)
        self._complaints = complaints
        self.coordinator.rediscover(self._resources)
        unresolved = complaints.unresolved
        if self.webhooks is not None:
            unresolved |= self.webhooks.rediscover(self._resources)
        self._adjust()
        if self._absences or (discovery.failed_groups and (hidden or unresolved)):
            return False
        return self._definitions.compare(self._resources, groups)

    def get_memo(self, resource: Resource, metadata: Mapping[str, Any]) -> Any:
        """Give the memo of the object, or ``None`` if it is not seen in any watch."""
        for namespace in {metadata.get('namespace'), None}:
            watch, _, _ = self._watches.get((resource, namespace), (None, None, None))
            record = None if watch is None else watch.records.get(metadata.get('uid') or '')
            if record is not None:
                return record.get_memo(self._tools.context.copy_memo)
        return None

    def find_failures(self) -> Iterator[str]:
        """Tell what has been failing for long."""
        limit = self._tools.context.settings.probing.failing_watch_limit
        watches = [watch for watch, _, _ in list(self._watches.values())]
        for watch in [*list(self._observers), *self.coordinator.watches, *watches]:
            if limit is not None and watch.failing_for > limit:
                yield f"The watch-stream for {watch} has been failing for {watch.failing_for:.0f} s: {watch.failure}"
        if limit is not None and self._tools.vault.failing_for > limit:
            yield f"The login has been failing for {self._tools.vault.failing_for:.0f} s."

    def find_delays(self) -> Iterator[str]:
        """Tell what has not begun yet. Those who are paused are ready to take over."""
        if self._resources is None:
            yield "The resources are not discovered yet."
        if self.webhooks is not None and not self.webhooks.listening:
            yield "The webhook server does not listen yet."
        watches = [] if self._paused else [watch for watch, _, _ in list(self._watches.values())]
        for watch in [*list(self._observers), *self.coordinator.watches, *watches]:
            if not watch.complete:
                yield f"The list of {watch} is not complete yet{f': {watch.failure}' if watch.failure else '.'}"
        if not self._paused and not self._tools.indexing_gate.is_complete:
            yield "The indices are not complete yet."

    async def _rediscover(self) -> None:
        """Find out anew what is served, each time when something has changed, and until it is certain."""
        delays: Iterator[float] | None = None
        while True:
            try:
                async with asyncio.timeout(None if delays is None else next(delays)):
                    await self._changed.wait()
            except TimeoutError:
                pass
            else:
                delays = itertools.chain(SETTLING_DELAYS, itertools.repeat(SETTLING_DELAYS[-1]))
                await asyncio.sleep(0.1)  # changes come in bunches
            self._changed.clear()
            try:
                if await self._discover():
                    delays = None
            except errors.APIError as error:
                logger.warning("The resources could not be discovered; trying again: %s", error)

    def note_definition(self) -> None:
        """Know that a definition of a resource has changed, or that there are more handlers."""
        self._changed.set()

    def compare_definitions(self) -> None:
        """Know that all definitions are listed: some can be newer than what was discovered before."""
        if not self._definitions.compare(self._resources or (), None):
            self._changed.set()
        if self.webhooks is not None:
            self.webhooks.recheck()

    def add_namespace(self, name: str, *, ending: bool = False) -> None:
        self.coordinator.note_ending(name, ending)
        if name not in self._namespaces:
            self._namespaces.add(name)
            self._adjust([name])

    def remove_namespaces(self, names: Collection[Namespace]) -> None:
        gone = [name for name in names if name in self._namespaces]
        self._namespaces.difference_update(gone)
        if gone:
            self._adjust(gone)
        for name in gone:  # only after their peerings are left: nothing is to be paused because of them any more
            self.coordinator.note_ending(name, False)

    def compare_namespaces(self, names: Collection[str]) -> None:
        """Know that these are all the namespaces that match: those that were assumed to exist are not there yet."""
        if missing := self._namespaces.difference(names):
            logger.warning("These namespaces are served as soon as they exist: %s.", join_names(missing))
            self.remove_namespaces(missing)

    def end_listing_namespaces(self) -> None:
        """Called when all namespaces are known, or when they cannot be."""
        self._listing_namespaces = False
        self._notice_start()

    def _notice_start(self) -> None:
        """From when everything is served that was there at the start, handlers wait only for indices that they use."""
        if not self._listing_namespaces and not self._paused and self.coordinator.is_open(None):
            self._starting = False

    def _adjust(self, affected: Collection[Namespace] | None = None) -> None:
        """
        Start the watches that are missing, stop those that are not needed; or pause and resume them all.

        Args:
            affected: the namespaces that have come or gone, or that can be served now; by default, all of them. With
                hundreds of namespaces, it takes too long to look at all of them whenever one of them changes.
        """
        affected = self.coordinator.adjust(self._namespaces, affected)
        if self.coordinator.paused != self._paused:
            affected = None
        wanted = self._find_wanted(self._namespaces if affected is None else self._namespaces.intersection(affected))
        looked_at = list(self._watches) if affected is None else self._find_scopes(affected)
        leaving = [scope for scope in looked_at if not self._keep_serving(scope, wanted.get(scope))]
        for scope in leaving:
            watch, sink, task = self._watches.pop(scope)
            del self._served[scope]
            if not self._is_gone(*scope):
                task.cancel()
            self._leaving[scope] = watch, sink, task, None
        if self.coordinator.paused != self._paused:
            self._paused = self.coordinator.paused
            if self._paused:
                self._pause()
            else:
                self._resume()
        self._tools.schedules.permit(not self._paused and self.coordinator.is_open(None))
        predecessors = {get_place(*scope): scope for scope in self._leaving if scope not in wanted}
        for scope, table in wanted.items():
            if scope not in self._watches and self.coordinator.is_open(scope[1]):
                former = scope if scope in self._leaving else predecessors.pop(get_place(*scope), None)
                self._watches[scope] = self._start_watch(scope, table, former and self._leaving.pop(former))
                self._served[scope] = table
        for scope in leaving:
            if scope in self._leaving:
                self._leaving[scope] = self._end_watch(scope, *self._leaving[scope][:3])
        if self._leaving:
            self._leaving = {
                scope: leaving
                for scope, leaving in self._leaving.items()
                if leaving[3] is None or not leaving[3].done()
            }
        self._notice_start()

    def _find_wanted(self, namespaces: Collection[Namespace]) -> dict[Scope, HandlerTable]:
        """Find what is to be served in these namespaces, and what is in no namespace."""
        return {
            (resource, namespace): table
            for resource, table in self._tables.items()
            for namespace in (namespaces if resource.namespaced else [None])
        }

    def _find_scopes(self, namespaces: Collection[Namespace]) -> list[Scope]:
        """Find what is watched in these namespaces."""
        scopes = [(resource, namespace) for resource in self._tables for namespace in namespaces]
        return [scope for scope in scopes if scope in self._watches]

    def _keep_serving(self, scope: Scope, table: HandlerTable | None) -> bool:
        """Go on with the watch if its handlers are the same; return whether they are."""
        served = self._served[scope]
        if table is None or table != served:
            return False
        if not table.resource.is_same(served.resource):
            self._watches[scope][1].revise(table)  # it has other subresources, for example
            self._served[scope] = table
        return True

    def _pause(self) -> None:
        """Let others handle the objects: go on seeing and indexing them, but do nothing about them."""
        if self._resuming is not None:
            self._resuming.cancel()
        self._tools.workers.pause()
        for watch, sink, _ in self._watches.values():
            sink.paused(watch)
        if self._watches or self._tools.schedules:
            # At once: the daemons can take long to end, and the pause can be over by then.
            self._halting = self._tasks.create_task(self._halt(self._start_saving()), name='pausing')

    async def _halt(self, saving: asyncio.Task[None]) -> None:
        await asyncio.wait({saving})
        await self._tools.workers.drain()
        await asyncio.wait({self._start_saving()})
        await self._tools.schedules.drain()
        self.coordinator.halt(True)

    def _start_saving(self) -> asyncio.Task[None]:
        """Store what is only remembered of the objects, also if the pause is over meanwhile."""
        self._saving = self._tasks.create_task(self.save(), name='saving')
        return self._saving

    async def save(self) -> None:
        """Store what is only remembered of the objects: before the operator ends, or leaves them to another one."""
        workers, timeout = self._tools.workers, self._tools.context.settings.queueing.exit_timeout
        pairs = [(watch, sink) for watch, sink, _ in self._watches.values()]
        pairs += [(watch, sink) for watch, sink, _, _ in self._leaving.values()]
        tasks = {
            asyncio.create_task(sink.save(record), name=repr(record))
            for watch, sink in pairs
            for record in watch.get_known()
            if record.in_memory_only and not workers.is_at_work(record)
        }
        if not tasks:
            return
        try:
            await asyncio.wait(tasks, timeout=timeout)
        finally:
            failed = [task for task in tasks if not task.done() or task.cancelled() or task.exception() is not None]
            if failed:
                logger.warning(
                    "What has come of the handlers of %d objects can't be stored, and is handled again later: %s",
                    len(failed),
                    ', '.join(sorted(task.get_name() for task in failed)),
                )
            await end(tasks, timeout=timeout, what="The last patches")

    def _resume(self) -> None:
        """Go on where the others have stopped."""
        if self._halting is not None:
            self._halting.cancel()
        if self._saving is not None and not self._saving.done():
            # What is being stored must not be forgotten before it is on the objects: it would be done twice.
            self._resuming = self._tasks.create_task(self._resume_later(self._saving), name='resuming')
        else:
            self._go_on()

    async def _resume_later(self, saving: asyncio.Task[None]) -> None:
        await asyncio.wait({saving})
        self._go_on()

    def _go_on(self) -> None:
        self.coordinator.halt(False)
        for scope, (watch, sink, task) in self._watches.items():
            task.cancel()
            watch.restart()
            sink.resumed(watch)
            self._watches[scope] = watch, sink, self._run_watch(watch, task)
        self._tools.workers.resume()

    def _run_watch(self, watch: ResourceWatch, former: asyncio.Task[None] | None = None) -> asyncio.Task[None]:
        return self._tasks.create_task(self._watch(watch, former), name=f'watch of {watch}')

    async def _watch(self, watch: ResourceWatch, former: asyncio.Task[None] | None) -> None:
        if former is not None:
            await asyncio.wait({former})
        await watch.run()

    def _is_gone(self, resource: Resource, namespace: Namespace) -> bool:
        """Check whether the objects are gone with their namespace or kind, and are not only served no more."""
        return (resource.namespaced and namespace not in self._namespaces) or not any(
            other.plural == resource.plural and other.group == resource.group for other in self._resources or ()
        )

    def _end_watch(self, scope: Scope, watch: ResourceWatch, sink: ObjectSink, task: asyncio.Task[None]) -> Leaving:
        if self._is_gone(*scope):
            end = self._bury(watch, sink, task)
        else:
            sink.dropped(watch)
            end = self._release(watch, sink)
        return watch, sink, task, self._tasks.create_task(end, name=f'end of {watch}')

    async def _bury(self, watch: ResourceWatch, sink: ObjectSink, task: asyncio.Task[None]) -> None:
        """Report the objects as deleted that are gone with their namespace or kind; then, let go of the watch."""
        # The stream shows objects as they were in the end, but it can be behind that of the namespaces or the CRDs.
        for delay in LAST_EVENTS_DELAYS:
            if watch.records and watch.state is WatchState.STREAMING:
                await asyncio.sleep(delay)
        task.cancel()
        records = watch.get_known()
        await watch.report_deletions()
        sink.vanished(watch)
        await self._tools.workers.wait_for(records)
        sink.released(watch)

    async def _release(self, watch: ResourceWatch, sink: ObjectSink) -> None:
        """Let those who work on the objects finish; then, nothing is to be left of the watch."""
        await self._tools.workers.release(watch.get_known())
        sink.released(watch)

    async def _retire(self, watch: ResourceWatch, sink: ObjectSink, records: Collection[ObjectRecord]) -> None:
        """The same when others have taken over: they wait only for those objects that are worked on at the moment."""
        await self._tools.workers.wait_for(records)
        sink.released(watch)

    def _start_watch(self, scope: Scope, table: HandlerTable, former: Leaving | None) -> Watching:
        tools = self._tools
        processor = Processor(
            tools.context,
            client=tools.client,
            table=table,
            workers=tools.workers,
        )
        informer = (
            None
            if not table.indexing
            else Informer(
                processor,
                context=tools.context,
                table=table,
                indexers=tools.indexers,
                indexing_gate=tools.indexing_gate,
            )
        )
        sink: ObjectSink = processor if informer is None else informer
        watch = ResourceWatch(
            self._tools.client, self._tools.context.settings, *scope, sink, label_selector=table.label_selector
        )
        if informer is not None:
            informer.expect(str(watch), initial=self._starting)
        if former is not None:
            self._take_over(watch, sink, former)
        if self._paused:
            sink.paused(watch)
        return watch, sink, self._run_watch(watch)

    def _take_over(self, watch: ResourceWatch, sink: ObjectSink, former: Leaving) -> None:
        """Let the watch go on with the objects of a former one: of another version of them, or for other handlers."""
        former_watch, former_sink, task, end = former
        task.cancel()
        watch.inherit(former_watch)
        records = watch.get_known()
        former_sink.retire(sink, records)
        if end is not None:
            end.cancel()
        self._tasks.create_task(self._retire(former_watch, former_sink, records), name=f'end of {former_watch}')


class DefinitionsSink(EventSink):
    """Notices which resources are defined, and tells the orchestrator what has changed since the first list."""

    def __init__(self, orchestrator: Orchestrator, definitions: Definitions) -> None:
        self._orchestrator = orchestrator
        self._definitions = definitions
        self._uids: dict[str, str] = {}
        self._listed = False

    def receive(self, record: ObjectRecord, event: RawEvent, *, listed_since: float | None) -> None:
        if event['type'] != 'DELETED':
            self._uids[record.name] = record.uid
            self._definitions.note(record.name, event['object'])
        elif self._uids.get(record.name) == record.uid:  # otherwise, it has got a successor already
            del self._uids[record.name]
            self._definitions.note(record.name, {})
        if self._listed:
            self._orchestrator.note_definition()

    def listed(self, watch: ResourceWatch) -> None:
        self._listed = True
        self._orchestrator.compare_definitions()

    def refused(self, watch: ResourceWatch, error: errors.APIError) -> bool:
        if not isinstance(error, errors.APIForbiddenError):
            return False
        logger.warning(
            "Resources that appear, change, or vanish will not be noticed. Grant the verbs list and watch for "
            "customresourcedefinitions.apiextensions.k8s.io to the operator's account, or set "
            "settings.scanning.disabled, to avoid this warning: %s",
            error,
        )
        return True


class NamespaceSink(EventSink):
    """Tells the orchestrator which namespaces are there, of those that match."""

    def __init__(
        self,
        orchestrator: Orchestrator,
        patterns: Collection[NamespacePattern],
        indexing_gate: IndexingGate,
    ) -> None:
        self._orchestrator = orchestrator
        self._specific = select_specific_namespaces(patterns)
        self._patterns = [pattern for pattern in patterns if pattern not in self._specific]
        self._indexing_gate = indexing_gate
        self._uids: dict[str, str] = {}
        self._failures = 0

    def expect(self, indices: Collection[str]) -> None:
        """Let the handlers wait for the namespaces: each of them can bring more objects to these indices."""
        self._indexing_gate.expect(self, 'namespaces', indices)

    def receive(self, record: ObjectRecord, event: RawEvent, *, listed_since: float | None) -> None:
        if not self._matches(record.name):
            return
        if event['type'] != 'DELETED':
            self._uids[record.name] = record.uid
            self._orchestrator.add_namespace(record.name, ending=is_deleted(event))
        elif self._uids.get(record.name) == record.uid:  # otherwise, it has got a successor already
            del self._uids[record.name]
            self._orchestrator.remove_namespaces({record.name})

    def _matches(self, name: str) -> bool:
        return name in self._specific or any(match_namespace(name, pattern) for pattern in self._patterns)

    def listed(self, watch: ResourceWatch) -> None:
        self._orchestrator.compare_namespaces(self._uids)
        self._stop_waiting()

    def failed(self, watch: ResourceWatch, error: Exception) -> None:
        self._failures += 1
        if self._failures == MAX_FAILURES:
            self._indexing_gate.excuse(self)

    def _stop_waiting(self) -> None:
        self._indexing_gate.dismiss(self)
        self._orchestrator.end_listing_namespaces()

    def refused(self, watch: ResourceWatch, error: errors.APIError) -> bool:
        self._stop_waiting()
        if not isinstance(error, errors.APIForbiddenError):
            return False
        logger.warning(
            "The patterns of namespaces match nothing, and only these namespaces are served, assuming that they exist: "
            "%s. Grant the verbs list and watch for namespaces to the operator's account, or set "
            "settings.scanning.disabled, to avoid this warning: %s",
            join_names(self._specific),
            error,
        )
        return True

    def dropped(self, watch: ResourceWatch) -> None:
        self._stop_waiting()


def get_place(resource: Resource, namespace: Namespace) -> Place:
    """Give what different versions of the same objects have in common."""
    return resource.group, resource.plural, namespace


def join_names(names: Collection[Namespace]) -> str:
    """Name the namespaces in a log."""
    return ', '.join(sorted(map(str, names))) or 'none'
