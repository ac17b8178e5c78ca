"""The sinks of the watches of namespaces and CRDs: they notify the orchestrator of changes in what it has to serve."""

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from kopf._cogs.clients import errors
from kopf._cogs.structs.bodies import RawEvent
from kopf._cogs.structs.references import (
    Namespace,
    NamespacePattern,
    match_namespace,
    select_specific_namespaces,
)
from kopf._core.reactor.indexing_gate import IndexingGate
from kopf._core.reactor.informer import MAX_FAILURES
from kopf._core.reactor.object_records import ObjectRecord, is_deleted
from kopf._core.reactor.resource_selection import Definitions
from kopf._core.reactor.sinks import EventSink
from kopf._core.reactor.watches import ResourceWatch

if TYPE_CHECKING:
    from kopf._core.reactor.orchestration import Orchestrator

logger = logging.getLogger(__name__)


class DefinitionsSink(EventSink):
    """Records the definitions of resources (CRDs); triggers the discovery when they change after the first list."""

    def __init__(self, orchestrator: 'Orchestrator', definitions: Definitions) -> None:
        self._orchestrator = orchestrator
        self._definitions = definitions
        self._uids: dict[str, str] = {}
        self._listed = self._warned = False

    def receive(self, crd: ObjectRecord, event: RawEvent, *, listed_since: float | None) -> None:
        if event['type'] != 'DELETED':
            self._uids[crd.name] = crd.uid
            self._definitions.note(crd.name, event['object'])
        elif self._uids.get(crd.name) == crd.uid:  # otherwise, there is a new object of this name
            del self._uids[crd.name]
            self._definitions.note(crd.name, {})
        if self._listed:
            # The CRDs of the first list are compared together at its end.
            self._orchestrator.note_definition()

    def listed(self, watch: ResourceWatch) -> None:
        self._listed = True
        self._orchestrator.compare_definitions()

    def refused(self, watch: ResourceWatch, error: errors.APIError) -> bool:
        if not isinstance(error, errors.APIForbiddenError):
            return False
        if self._warned:
            return True
        self._warned = True
        logger.warning(
            "Resources that appear, change, or vanish will not be noticed. Grant the verbs list and watch for "
            "customresourcedefinitions.apiextensions.k8s.io to the operator's account, or set "
            "settings.scanning.disabled, to avoid this warning: %s",
            error,
        )
        return True


class NamespaceSink(EventSink):
    """Reports the existing namespaces that match the patterns to the orchestrator."""

    def __init__(
        self,
        orchestrator: 'Orchestrator',
        patterns: Collection[NamespacePattern],
        indexing_gate: IndexingGate,
    ) -> None:
        self._orchestrator = orchestrator
        self._specific = select_specific_namespaces(patterns)
        self._patterns = [pattern for pattern in patterns if pattern not in self._specific]
        self._indexing_gate = indexing_gate
        self._uids: dict[str, str] = {}
        self._failures = 0
        self._warned = False

    def expect(self, indices: Collection[str]) -> None:
        """Delay handlers until the namespaces are listed, as each of them can have objects for these indices."""
        self._indexing_gate.expect(self, 'namespaces', indices)

    def receive(self, namespace: ObjectRecord, event: RawEvent, *, listed_since: float | None) -> None:
        if not self._matches(namespace.name):
            return
        if event['type'] != 'DELETED':
            self._uids[namespace.name] = namespace.uid
            self._orchestrator.add_namespace(namespace.name, ending=is_deleted(event))
        elif self._uids.get(namespace.name) == namespace.uid:  # otherwise, there is a new object of this name
            del self._uids[namespace.name]
            self._orchestrator.remove_namespaces({namespace.name})

    def _matches(self, name: str) -> bool:
        return name in self._specific or any(match_namespace(name, pattern) for pattern in self._patterns)

    def listed(self, watch: ResourceWatch) -> None:
        self._orchestrator.compare_namespaces(self._uids)
        self._stop_waiting()

    def failed(self, watch: ResourceWatch, error: Exception) -> None:
        self._failures += 1
        if self._failures == MAX_FAILURES:
            self._indexing_gate.stop_delaying_all(self)

    def _stop_waiting(self) -> None:
        self._indexing_gate.dismiss(self)
        self._orchestrator.end_listing_namespaces()

    def refused(self, watch: ResourceWatch, error: errors.APIError) -> bool:
        self._stop_waiting()
        if not isinstance(error, errors.APIForbiddenError):
            return False
        if self._warned:
            return True
        self._warned = True
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


def join_names(names: Collection[Namespace]) -> str:
    """Return the names of namespaces for a log message."""
    return ', '.join(sorted(map(str, names))) or 'none'
