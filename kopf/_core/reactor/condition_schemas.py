"""
Checks whether the schemas of custom resources keep the conditions that handlers set.

The API server drops fields that are not in the schema, without an error. The handlers would set the same conditions
again and again, and other clients would never see them. So a warning at the start names the missing parts of the CRD.
"""

import logging
from collections.abc import Mapping
from typing import Any, Final

from kopf._cogs.structs.references import Resource
from kopf._core.engines.verdicts import is_own_kind
from kopf._core.intents.handlers import ReconcilingHandler
from kopf._core.intents.registries import HandlerTable
from kopf._core.reactor.schema_notes import SchemaNotes

logger = logging.getLogger(__name__)

FIELDS: Final = {
    'type': 'string',
    'status': 'string',
    'reason': 'string',
    'message': 'string',
    'lastTransitionTime': 'string, format: date-time',
    'observedGeneration': 'integer, format: int64',
}
"""The fields of a condition, with their types in the schema."""

_FIELDS_YAML: Final = ', '.join(f'{name}: {{type: {type_}}}' for name, type_ in FIELDS.items())
_CONDITIONS_YAML: Final = (
    'conditions: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [type], '
    f'items: {{type: object, required: [type, status], properties: {{{_FIELDS_YAML}}}}}}}'
)
_STATUS_YAML: Final = f'status: {{type: object, properties: {{{_CONDITIONS_YAML}}}}}'


def explain_pruning(schema: Any) -> str | None:
    """Return an explanation if the schema of a version drops fields of conditions; ``None`` if it keeps all."""
    root = 'schema.openAPIV3Schema'
    status = _descend(schema, 'status')
    if status is None or status is True:
        return None if status else f"it drops 'status': add to {root}.properties: {_STATUS_YAML}"
    conditions = _descend(status, 'conditions')
    if conditions is None or conditions is True:
        path = f"{root}.properties.status.properties"
        return None if conditions else f"it drops 'status.conditions': add to {path}: {_CONDITIONS_YAML}"
    items = conditions.get('items')
    missing = [name for name in FIELDS if _descend(items, name) is None]
    if not missing:
        return None
    path = f"{root}.properties.status.properties.conditions.items.properties"
    yaml = ', '.join(f'{name}: {{type: {FIELDS[name]}}}' for name in missing)
    return f"it drops {', '.join(missing)} in 'status.conditions': add to {path}: {{{yaml}}}"


def _descend(schema: Any, name: str) -> Any:
    """Return the schema of the field; true if the field is kept without a schema, ``None`` if it is dropped."""
    if not isinstance(schema, Mapping):
        return None
    properties = schema.get('properties') or {}
    if name in properties:
        return properties[name] or True
    return True if schema.get('x-kubernetes-preserve-unknown-fields') or schema.get('additionalProperties') else None


def explain(version: Mapping[str, Any]) -> str | None:
    """Return an explanation if this version of a CRD does not support conditions; ``None`` if it does."""
    wrong = []
    pruning = explain_pruning((version.get('schema') or {}).get('openAPIV3Schema'))
    if pruning is not None:
        wrong.append(pruning)
    if 'status' not in (version.get('subresources') or {}):
        wrong.append(
            "it has no status subresource, so that each write of conditions makes a new generation, and clients cannot "
            "tell which one the conditions are about: add to the version: subresources: {status: {}}"
        )
    return '; and '.join(wrong) or None


class ConditionSchemas(SchemaNotes):
    """The explanations of all CRDs that do not keep conditions."""

    def __init__(self) -> None:
        super().__init__()
        self._foreign: set[Resource] = set()

    def check(self, raw: Mapping[str, Any], version: Mapping[str, Any]) -> list[str]:
        text = explain(version)
        return [text] if text else []

    def report(self, tables: Mapping[Resource, HandlerTable]) -> None:
        """Warn once about each resource whose schema drops the conditions of its handlers."""
        for resource, table in tables.items():
            self._report_foreign(resource, table)
            for text in self.take_new(resource, concerned=_uses_conditions(table)):
                logger.warning("Conditions of %s (%r) are not kept by its CRD: %s.", resource.kind, resource, text)

    def _report_foreign(self, resource: Resource, table: HandlerTable) -> None:
        """Warn once if handlers have ``conditions=True`` for a built-in kind, where it has no effect."""
        keepers = [handler for handler in table.of(ReconcilingHandler) if handler.conditions]
        if keepers and not is_own_kind(resource) and resource not in self._foreign:
            self._foreign.add(resource)
            logger.warning(
                "conditions=True of %s has no effect on %r: they belong to Kubernetes itself. "
                "Only the conditions that the handler sets are written.",
                keepers[0],
                resource,
            )


def _uses_conditions(table: HandlerTable) -> bool:
    return any(handler.uses_conditions for handlers in table.handlers.values() for handler in handlers)
