"""
The controllers: they establish CRDs, delete the contents of namespaces and CRDs, and collect garbage.

The storage calls the controllers synchronously with every change. The kinds of a new CRD are served before the response
to the request that has created the CRD. All other work is done a little later, in the order of the changes, as on a
real control plane.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Hashable

from kopf._kits.testing.access import permissions, roles
from kopf._kits.testing.controllers.garbage import GarbageCollector
from kopf._kits.testing.controllers.namespaces import explain
from kopf._kits.testing.controllers.protection import Protection
from kopf._kits.testing.kinds.kinds import VERBS, Body, Catalog, ConversionFactory, Kind, Schemas, Service
from kopf._kits.testing.kinds.storage import Change, Record, Storage, Table, TableName
from kopf._kits.testing.objects import objects
from kopf._kits.testing.objects.rest import Objects
from kopf._kits.testing.resources import crds
from kopf._kits.testing.schemas import schemas
from kopf._kits.testing.storing import selectables

STREAMS_OUTLIVE = 1.0
"""
How long watches of custom resources continue after the deletion of the CRD (seconds), as on a real server.
"""
ROLES = TableName(permissions.GROUP, 'clusterroles')
_ENDING = tuple(verb for verb in VERBS if verb != 'create')


class Controllers:
    """All controllers; ``delay`` is how long the background work waits (seconds)."""

    def __init__(
        self,
        storage: Storage,
        catalog: Catalog,
        rest: Objects,
        converting: ConversionFactory,
        *,
        delay: float = 0.01,
    ) -> None:
        self._storage = storage
        self._catalog = catalog
        self._rest = rest
        self._delay = delay
        self._scheduled: set[Hashable] = set()
        self._terminating: set[str] = set()
        self._converting = converting
        self._schemas: dict[str, Schemas] = {}
        self._services: dict[str, tuple[Body, Service]] = {}
        self._selectable: dict[Table, list[str]] = {}
        self._garbage = GarbageCollector(storage, catalog, rest, self._later)
        self._protection = Protection(storage, self._garbage.release, self._later)
        storage.observers.append(self._observe)

    def _observe(self, table: Table, change: Change) -> None:
        record = change.record
        if table.name == ROLES:
            self._later(self._aggregate_roles, ROLES)
        if table.name == (crds.GROUP, crds.PLURAL):
            self._crd_changed(table, change)
        elif table.name == ('', 'namespaces') and record.deleting and change.type != 'DELETED':
            self._terminating.add(record.name)
            self._later(self._empty_namespace, record.name)
        self._garbage.observe(table, change)
        self._protection.observe(table, change)
        if record.namespace in self._terminating:
            self._later(self._empty_namespace, record.namespace)
        if change.type == 'DELETED' and self._is_leaving(table):
            self._later(self._empty_crd, f'{table.name.plural}.{table.name.group}')

    def resume(self, table: Table) -> None:
        """Continue the work that was unfinished when the objects of the table were stored."""
        if f'{table.name.plural}.{table.name.group}' in self._schemas:
            self._conform(table)
        for record in list(table.records()):
            self._observe(table, Change('MODIFIED', record, None))

    def _conform(self, table: Table) -> None:
        """Convert the objects of a custom resource to the present schemas of the versions that they are stored in."""
        schemas_of = self._schemas[f'{table.name.plural}.{table.name.group}']
        table.rewrite(lambda stored, version: _conform(stored, schemas_of.get(version)))

    def _later(self, work: Callable[..., object], subject: Hashable) -> None:
        key = (work.__name__, subject)
        if key in self._scheduled:
            return
        self._scheduled.add(key)

        def run() -> None:
            self._scheduled.discard(key)
            work(subject)

        asyncio.get_running_loop().call_later(self._delay, run)

    # CRDs.

    def _crd_changed(self, table: Table, change: Change) -> None:
        body = change.record.body()
        group, plural = body['spec']['group'], body['spec']['names']['plural']
        if change.type == 'DELETED':
            self._catalog.remove(group, plural)
            self._schemas.pop(change.record.name, None)
            self._services.pop(change.record.name, None)
            if (abandoned := self._storage.close(group, plural)) is not None:
                self._selectable.pop(abandoned, None)
                asyncio.get_running_loop().call_later(STREAMS_OUTLIVE, abandoned.end)
            return
        if change.record.deleting:
            self._serve(body, terminating=True)
            self._later(self._empty_crd, change.record.name)
            return
        accepted = change.record.body()
        crds.accept(accepted, self._taken(group, plural))
        if crds.is_established(accepted):
            self._serve(accepted)
        if not objects.same(accepted, body):
            self._storage.commit(table, 'MODIFIED', accepted)

    def _taken(self, group: str, plural: str) -> dict[str, str]:
        words = {}
        for kind in self._catalog:
            if kind.group == group and kind.plural != plural:
                for word in (kind.plural, kind.singular, kind.name, kind.list_kind, *kind.short_names):
                    words[word] = kind.plural
        return words

    def _serve(self, body: Body, *, terminating: bool = False) -> None:
        if not crds.is_established(body):
            return
        spec = body['spec']
        group, plural = spec['group'], spec['names']['plural']
        name, table = body['metadata']['name'], self._storage.open(group, plural)
        served = {'spec': spec, 'names': body['status']['acceptedNames']}
        before, service = self._services.get(name, ({}, Service()))
        if served == before and not terminating:
            return
        if before and served != before:
            # As on a real server: watches of the previous definition end a little later, and the clients reconnect.
            asyncio.get_running_loop().call_later(STREAMS_OUTLIVE, _end, service, table)
        self._catalog.remove(group, plural)
        for kind in crds.kinds_of(body, table, self._converting):
            service = kind.service
            self._catalog.add(dataclasses.replace(kind, verbs=_ENDING) if terminating else kind)
        fields = sorted({path for version in spec['versions'] for path in selectables.paths(version)})
        if self._selectable.get(table, []) != fields:
            self._selectable[table] = fields
            table.select(selectables.picker(fields))
        self._services[name] = served, service
        schemas_of = crds.schemas_of(body)
        if self._schemas.setdefault(name, schemas_of) != schemas_of:
            self._schemas[name] = schemas_of
            self._conform(table)
        table.wake()

    def _is_leaving(self, table: Table) -> bool:
        crd = self._storage.table(crds.GROUP, crds.PLURAL).get('', f'{table.name.plural}.{table.name.group}')
        return crd is not None and crd.deleting

    def _empty_crd(self, name: str) -> None:
        definitions = self._storage.table(crds.GROUP, crds.PLURAL)
        crd = definitions.get('', name)
        if crd is None or not crd.deleting:
            return
        body = crd.body()
        try:
            table = self._storage.table(body['spec']['group'], body['spec']['names']['plural'])
        except KeyError:
            table = None
        if table is not None and (kind := self._garbage.kind_of(table)) is not None:
            for record in list(table.records()):
                self._rest.remove(kind, record)
            if len(table):
                return
        self._garbage.release(definitions, crd, crds.FINALIZER)

    # Namespaces.

    def _empty_namespace(self, name: str) -> None:
        home = self._storage.table('', 'namespaces')
        namespace = home.get('', name)
        if namespace is None or not namespace.deleting:
            self._terminating.discard(name)
            return
        left: list[tuple[Kind, Record]] = []
        for table in self._storage:
            records = list(table.records(name))
            if records and (kind := self._garbage.kind_of(table)) is not None and kind.namespaced:
                for record in records:
                    self._rest.remove(kind, record)
                left += [(kind, record) for record in table.records(name)]
        body = explain(namespace.body(), left)
        if not objects.same(body, namespace.body()):
            self._storage.commit(home, 'MODIFIED', body)
        if left:
            return
        self._terminating.discard(name)
        if not body['metadata'].get('finalizers'):
            self._storage.commit(home, 'DELETED', body)
        elif body['spec']:
            self._storage.commit(home, 'MODIFIED', {**body, 'spec': {}})

    # Roles.

    def aggregate_roles(self) -> None:
        """Set the rules of aggregated roles, until there are no more changes."""
        while self._aggregate_roles(ROLES):
            pass

    def _aggregate_roles(self, name: TableName) -> bool:
        table, changed = self._storage.table(*name), False
        every = [record.body() for record in table.records()]
        for body in every:
            if body.get('aggregationRule') and (rules := roles.aggregated(body, every)) != (body.get('rules') or []):
                self._storage.commit(table, 'MODIFIED', {**body, 'rules': rules})
                changed = True
        return changed


def _end(service: Service, table: Table) -> None:
    service.ended = True
    table.wake()


def _conform(body: Body, schema: schemas.Schema | None) -> Body:
    if schema is None:  # The version in which the object was stored does not exist any more.
        return body
    for _ in schemas.prune(body, schema):
        pass
    schemas.fill(body, schema)
    return body
