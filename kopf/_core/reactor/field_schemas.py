"""
Checks whether the schemas of custom resources have the fields that handlers name.

The CRDs come from the watch that notices new resources, so the checks need no further requests. Kinds that are declared
as classes are not checked here: `field_checks` compares them with their classes.
"""

import logging
from collections.abc import Mapping
from typing import Any

from kopf._cogs.structs.references import Resource
from kopf._core.intents.field_checks import find_doubt, is_declared, names_field
from kopf._core.intents.known_fields import Schema
from kopf._core.intents.registries import HandlerTable, OperatorRegistry
from kopf._core.reactor.schema_notes import SchemaNotes

logger = logging.getLogger(__name__)


class FieldSchemas(SchemaNotes):
    """The messages about fields that are missing in CRDs."""

    def __init__(self, registry: OperatorRegistry) -> None:
        super().__init__()
        self._registry = registry

    def check(self, raw: Mapping[str, Any], version: Mapping[str, Any]) -> list[str]:
        spec, names = raw['spec'], raw['spec']['names']
        resource = Resource(
            spec['group'],
            version['name'],
            names['plural'],
            kind=names['kind'],
            singular=names.get('singular'),
            shortcuts=frozenset(names.get('shortNames') or ()),
        )
        schema = Schema((version.get('schema') or {}).get('openAPIV3Schema'), is_structural=True)
        found = []
        for handler in self._registry.iter_resource_handlers():
            selector = handler.selector
            if not names_field(handler) or selector is None or not selector.check(resource):
                continue
            if not is_declared(selector, self._registry.kinds):
                found.append(find_doubt(handler, schema, raw['metadata']['name']))
        return [text for text in found if text is not None]

    def report(self, tables: Mapping[Resource, HandlerTable]) -> None:
        """Warn once about each field that the schema of a served resource does not have."""
        for resource in tables:
            for text in self.take_new(resource):
                logger.warning("%s", text, extra={'message_code': 'field-not-in-schema'})
