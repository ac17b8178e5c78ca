"""
Checks whether the schemas of custom resources keep what the framework stores in the fields of their objects.

With storages in the status, the CRD must have these fields. The API server drops them otherwise, so that each object
looks new: its creation handlers would be called for each change, and after each restart. Generated CRDs of declared
classes have no such fields: most operators store in annotations, and `kopf crd` does not know the settings.
"""

import logging
from collections.abc import Mapping
from typing import Any

from kopf._cogs.configs.configuration import PersistenceSettings
from kopf._cogs.structs.dicts import FieldPath
from kopf._cogs.structs.references import Resource
from kopf._core.intents.handlers import ChangingHandler
from kopf._core.intents.known_fields import Schema
from kopf._core.intents.record_places import list_fields
from kopf._core.intents.registries import HandlerTable
from kopf._core.reactor.schema_notes import SchemaNotes

logger = logging.getLogger(__name__)

_RECORD = ('id', 'started')
_LOST_ESSENCE = "creation handlers are called again for each change, and after each restart"
_LOST_PROGRESS = "handlers that have succeeded can be called again, also after a restart"


class StorageSchemas(SchemaNotes):
    """The fields of the storages that are missing in CRDs."""

    def __init__(self, persistence: PersistenceSettings) -> None:
        super().__init__()
        self._storages = [
            ('diffbase_storage', list_fields(persistence.diffbase_storage), (), 'string', _LOST_ESSENCE),
            # The fields of a record are dropped if the schema has only the field with all records.
            ('progress_storage', list_fields(persistence.progress_storage), _RECORD, 'object', _LOST_PROGRESS),
        ]

    def check(self, raw: Mapping[str, Any], version: Mapping[str, Any]) -> list[str]:
        name = raw['metadata']['name']
        schema = Schema((version.get('schema') or {}).get('openAPIV3Schema'), is_structural=True)
        return [
            f"settings.persistence.{option} stores in {'.'.join(fields[0])!r}, but the schema in the CRD {name!r} "
            f"drops this field, so {effect}. Remove the setting, so that annotations are used; or add to the schema: "
            f"{_make_yaml(fields[0], type_)}"
            for option, fields, inner, type_, effect in self._storages
            if fields and all(schema.find_unknown((*field, *inner)) is not None for field in fields)
        ]

    def report(self, tables: Mapping[Resource, HandlerTable]) -> None:
        """Warn once about each served resource whose schema drops what the framework stores."""
        for resource, table in tables.items():
            for text in self.take_new(resource, concerned=bool(table.of(ChangingHandler))):
                logger.warning("%s", text, extra={'message_code': 'storage-not-in-schema'})


def _make_yaml(field: FieldPath, type_: str) -> str:
    """Return the part of the schema that keeps the field: of ``status.kopf.progress``, all of ``status.kopf``."""
    *parents, name = field[:2]
    is_string = type_ == 'string' and len(field) <= 2
    text = f"{name}: {{type: {'string' if is_string else 'object, x-kubernetes-preserve-unknown-fields: true'}}}"
    return f"{parents[0]}: {{type: object, properties: {{{text}}}}}" if parents else text
