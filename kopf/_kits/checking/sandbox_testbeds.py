"""The common part of the testbeds with sandboxes: objects and kinds are read from the sandbox without requests."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set

from kopf._kits.checking.end_states import StoredObject
from kopf._kits.checking.outcomes import HIDDEN
from kopf._kits.checking.testbeds import KindFacts, Testbed
from kopf._kits.checking.user_writes import CourseSandbox
from kopf._kits.testing.controllers import workloads
from kopf._kits.testing.kinds.kinds import Kind
from kopf._kits.testing.serving.faults import Faults, SeenRequest
from kopf._kits.testing.serving.server import Server

Versions = Mapping[tuple[str, str], tuple[str, int]]
"""The uids and versions of objects."""


class SandboxTestbed(Testbed):
    """
    A testbed with a sandbox.

    Args:
        sandbox: the sandbox, which is not running yet.
        pods: whether the sandbox emulates the controllers of pods, jobs, deployments, and so on.
    """

    def __init__(self, sandbox: CourseSandbox, *, pods: bool) -> None:
        self.sandbox = self.user = sandbox
        self._pods = pods
        self._initial: Versions = {}

    def open(self) -> None:
        """Start the sandbox."""
        self.sandbox.__enter__()
        self._initial = self.list_versions()

    @property
    def requests(self) -> Sequence[SeenRequest]:
        """The requests that the sandbox has seen."""
        return self.sandbox.requests

    @property
    def faults(self) -> Faults:
        """The faults of the sandbox."""
        return self.sandbox.faults

    def is_stable(self) -> bool:
        """Return true: the sandbox's controllers act immediately, so they never have work left."""
        return True

    @property
    def _server(self) -> Server:
        return self.sandbox._runner.instance.server

    def list_versions(self) -> Versions:
        """Return the versions of all objects, by their resources and keys."""
        return self._server.call(self._list_versions)

    def _list_versions(self) -> Versions:
        return {
            (resource, record.key): (record.uid, record.version)
            for resource, kind in self._iter_kinds()
            if len(kind.store)
            for record in kind.store.records()
        }

    def list_objects(self) -> list[StoredObject]:
        """Return all objects that were created or changed since the start."""
        return self._server.call(self._list_objects)

    def _list_objects(self) -> list[StoredObject]:
        found = []
        storage = self._server.api.storage
        for resource, kind in self._iter_kinds():
            if len(kind.store):
                for record in kind.store.records():
                    if self._initial.get((resource, record.key)) != (record.uid, record.version):
                        body = {'apiVersion': kind.storage_api_version, 'kind': kind.name, **record.body()}
                        is_created = self._pods and workloads.is_created(kind.store, body, storage)
                        found.append(StoredObject(resource, record.namespace, record.name, body, is_created))
        return [item for item in found if item.resource != 'customresourcedefinitions']

    def list_kinds(self) -> Mapping[str, KindFacts]:
        """Return the kinds of objects by the names of their resources."""
        return {
            resource: KindFacts(kind.as_resource(), (kind.schema or {}) if kind.custom else None)
            for resource, kind in self._iter_kinds()
        }

    def name_resource(self, api_version: str, kind: str) -> str:
        """Return the name of the resource of an object."""
        return self._name(self._server.api.catalog.of_object(api_version, kind), self._find_ambiguous())

    def _iter_kinds(self) -> Iterator[tuple[str, Kind]]:
        """Yield one kind for each table of stored objects, after the name of its resource."""
        tables, ambiguous = set(), self._find_ambiguous()
        for kind in self._server.api.catalog:
            if kind.table is not None and kind.table.name not in tables and kind.plural not in HIDDEN:
                tables.add(kind.table.name)
                yield self._name(kind, ambiguous), kind

    def _name(self, kind: Kind, ambiguous: Set[str]) -> str:
        return f'{kind.plural}.{kind.group}' if kind.plural in ambiguous else kind.plural

    def _find_ambiguous(self) -> Set[str]:
        """Return the plurals that resources of several groups have."""
        catalog = self._server.api.catalog
        tables = {(kind.plural, kind.table.name) for kind in catalog if kind.table is not None}
        return {plural for plural, number in Counter(plural for plural, _ in tables).items() if number > 1}
