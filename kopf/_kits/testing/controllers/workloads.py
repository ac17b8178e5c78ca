"""
The simulated life of pods, jobs, deployments and other workloads, for operators that wait for them.

The simulation is off by default, since most tests expect that only their operator changes objects. One task handles one
object after another: changed objects and expired timers are put into one queue. The modules of the kinds derive the
writes from the present state alone, so that interruptions and changes by other clients do no harm.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kopf._kits.testing.access.write_options import Options
from kopf._kits.testing.controllers import jobs, pods, replicasets, statefulsets
from kopf._kits.testing.kinds.kinds import Body, Catalog, Kind
from kopf._kits.testing.kinds.storage import Change, Record, Storage, Table, TableName
from kopf._kits.testing.objects import objects
from kopf._kits.testing.objects.rest import Objects
from kopf._kits.testing.wire import statuses

logger = logging.getLogger(__name__)

PODS, JOBS = TableName('', 'pods'), TableName('batch', 'jobs')
SETS, DEPLOYMENTS = TableName('apps', 'replicasets'), TableName('apps', 'deployments')
STATEFUL, DAEMONS = TableName('apps', 'statefulsets'), TableName('apps', 'daemonsets')
CLAIMS = TableName('', 'persistentvolumeclaims')
CREATED: Mapping[TableName, TableName] = {DEPLOYMENTS: SETS, SETS: PODS, JOBS: PODS, STATEFUL: PODS, DAEMONS: PODS}
"""The kinds of objects that the controllers create, by the kinds that control them."""
RETRY = 1.0
"""How long to wait before a refused write is repeated (seconds)."""


class Place(NamedTuple):
    """The name of an object; after a while, another object can have the same name."""

    table: TableName
    namespace: str
    name: str


class Workloads:
    """The controller of all workloads."""

    def __init__(self, storage: Storage, catalog: Catalog, rest: Objects) -> None:
        self._storage = storage
        self._kinds = {
            name: catalog.named(f'{name.plural}.{name.group}' if name.group else f'{name.plural}.v1')
            for name in (PODS, CLAIMS, JOBS, SETS, DEPLOYMENTS, STATEFUL, DAEMONS)
        }
        self._rest = rest
        self._visits: Mapping[TableName, Callable[[Place, Body], Awaitable[None]]] = {
            PODS: self._visit_pod,
            JOBS: self._visit_job,
            SETS: self._visit_set,
            DEPLOYMENTS: self._visit_deployment,
            STATEFUL: functools.partial(self._visit_named, statefulsets.decide_stateful),
            DAEMONS: functools.partial(self._visit_named, statefulsets.decide_daemons),
        }
        self._queue: asyncio.Queue[Place] = asyncio.Queue()
        self._queued: set[Place] = set()
        self._due: dict[str, tuple[Any, float]] = {}  # the phases of pods, and when they end, by the uids of the pods
        self._addresses = 0
        self._task: asyncio.Task[None] | None = None

    async def start(self, catalog: Catalog) -> None:
        """Create the node, start the task, and visit all existing objects."""
        kind = catalog.named('nodes')
        if kind.store.get('', pods.NODE) is None:
            await self._rest.create(kind, '', objects.decode(pods.node(), kind, b''), Options())
        for name in self._visits:
            for record in self._storage.table(*name).records():
                self._put(Place(name, record.namespace, record.name))
        self._storage.observers.append(self._observe)
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop the task."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def _observe(self, table: Table, change: Change) -> None:
        if table.name not in self._visits:
            return
        record = change.record
        if change.type == 'DELETED':
            self._due.pop(record.uid, None)
        else:
            self._put(Place(table.name, record.namespace, record.name))
        for uid in record.owners:
            if (owner := self._storage.owner(uid)) is not None and (place := self._storage.place(uid)) is not None:
                if place.name in self._visits:
                    self._put(Place(place.name, owner.namespace, owner.name))

    def _put(self, place: Place) -> None:
        if place not in self._queued:
            self._queued.add(place)
            self._queue.put_nowait(place)

    def _later(self, seconds: float, place: Place) -> None:
        asyncio.get_running_loop().call_later(seconds, self._put, place)

    async def _run(self) -> None:
        while True:
            place = await self._queue.get()
            self._queued.discard(place)
            # Why not the object of the event? It can be outdated, because it has waited in the queue.
            record = self._storage.table(*place.table).get(place.namespace, place.name)
            if record is None or record.deleting:
                continue
            try:
                await self._visits[place.table](place, self._kinds[place.table].body(record))
            except statuses.Refusal as refusal:
                logger.warning(f'{place.table.plural} {place.namespace}/{place.name}: {refusal.message}')
                self._later(RETRY, place)
            # Why not let the task end? All other objects would stop changing, too, without any explanation for the
            # test.
            except Exception:
                logger.exception(f'The sandbox has failed at {place.table.plural} {place.namespace}/{place.name}')

    async def _visit_pod(self, place: Place, body: Body) -> None:
        uid, delay = body['metadata']['uid'], pods.delay(body)
        if delay is None:
            self._due.pop(uid, None)
            return
        status = body.get('status') or {}
        phase = status.get('phase'), str(status.get('containerStatuses'))
        now = asyncio.get_running_loop().time()
        known, due = self._due.get(uid, (None, 0.0))
        # Restart the timer only for a new phase: otherwise, a pod that is edited all the time would never end.
        if known != phase:
            due = now + delay
            self._due[uid] = phase, due
        if due > now:
            self._later(due - now, place)
            return
        pods.advance(body, status.get('podIP') or self._address())
        self._write(place, body)

    async def _visit_job(self, place: Place, body: Body) -> None:
        if jobs.is_over(body):
            if (left := jobs.seconds_left(body)) is not None:
                if left > 0:
                    self._later(left, place)
                else:
                    await self._rest.delete(self._kinds[JOBS], *place[1:], Options(propagation='Background'))
            return
        outcome = jobs.decide(body, self._children(body, place.table))
        self._write(place, {**body, 'status': outcome.status})
        self._delete_pods(place.namespace, outcome.superfluous)
        if outcome.again is not None:
            self._later(max(0.01, outcome.again), place)
        await self._create_pods(place.namespace, outcome.missing, body)

    async def _visit_set(self, place: Place, body: Body) -> None:
        outcome = replicasets.decide_set(body, self._children(body, place.table))
        self._write(place, {**body, 'status': outcome.status})
        self._delete_pods(place.namespace, outcome.superfluous)
        await self._create_pods(place.namespace, outcome.missing, body)

    async def _visit_deployment(self, place: Place, body: Body) -> None:
        rollout = replicasets.decide_rollout(body, self._children(body, place.table))
        self._write(place, {**body, 'status': rollout.status})
        for name, size in rollout.sizes.items():
            other = self._storage.table(*SETS).get(place.namespace, name)
            if other is not None and not other.deleting:
                resized = self._kinds[SETS].body(other)
                resized['spec']['replicas'] = size
                resized['metadata']['generation'] = resized['metadata'].get('generation', 1) + 1
                self._write(Place(SETS, place.namespace, name), resized)
        if rollout.new is not None:
            await self._create(self._kinds[SETS], place.namespace, rollout.new)

    async def _visit_named(
        self, decide: Callable[[Body, Sequence[Body]], statefulsets.SetOutcome], place: Place, body: Body
    ) -> None:
        outcome = decide(body, self._children(body, place.table))
        self._write(place, {**body, 'status': outcome.status})
        self._delete_pods(place.namespace, outcome.superfluous)
        for claim in outcome.claims:
            if self._storage.table(*CLAIMS).get(place.namespace, claim['metadata']['name']) is None:
                await self._create(self._kinds[CLAIMS], place.namespace, claim)
        for pod in outcome.missing:
            await self._create(self._kinds[PODS], place.namespace, pod)

    def _children(self, body: Body, owner: TableName) -> list[Body]:
        found, table = self._storage.dependents(body['metadata']['uid']), CREATED[owner]
        return [
            self._kinds[table].body(record) for place, record in found if place.name == table and not record.deleting
        ]

    async def _create_pods(self, namespace: str, count: int, owner: Body) -> None:
        for _ in range(count):
            await self._create(self._kinds[PODS], namespace, jobs.pod_of(owner, owner['spec']['template']))

    async def _create(self, kind: Kind, namespace: str, body: Body) -> None:
        await self._rest.create(kind, namespace, objects.decode(body, kind, b''), Options())

    def _delete_pods(self, namespace: str, names: Iterable[str]) -> None:
        for name in names:
            if (record := self._storage.table(*PODS).get(namespace, name)) is not None:
                self._rest.remove(self._kinds[PODS], record)

    def _write(self, place: Place, body: Body) -> None:
        table = self._storage.table(*place.table)
        if not objects.same(body, self._kinds[place.table].body(_found(table, place))):
            self._storage.commit(table, 'MODIFIED', body)

    def _address(self) -> str:
        self._addresses += 1
        return f'10.244.{self._addresses // 250 % 250}.{self._addresses % 250 + 1}'


def is_created(table: Table, body: Body, storage: Storage) -> bool:
    """Check whether a controller has created the object for another object, such as a pod for a job."""
    references = body['metadata'].get('ownerReferences') or ()
    owners = [storage.place(owner['uid']) for owner in references if owner.get('controller')]
    return any(owner is not None and CREATED.get(owner.name) == table.name for owner in owners)


def _found(table: Table, place: Place) -> Record:
    record = table.get(place.namespace, place.name)
    assert record is not None
    return record
