"""
Who owns the number of replicas, as it is seen through the scale subresource.

A scale is an object of a kind of its own with one field that can be owned. Its managed fields are those of the object
that own this number, and whoever writes the scale owns it in the object from then on, in a record for the subresource.
These records have no times, and nobody begins to own a number that nobody owned before, unless it is applied.
"""

import dataclasses
from typing import Any

from kopf._kits.testing.kinds import shapes
from kopf._kits.testing.kinds.kinds import Body
from kopf._kits.testing.patching import applying, fieldsets, managers
from kopf._kits.testing.patching.fieldsets import EMPTY, FieldSet
from kopf._kits.testing.patching.managers import UPDATE, Record, Writer

GROUP, VERSION, KIND = 'autoscaling', 'v1', 'Scale'
API_VERSION, SUBRESOURCE = f'{GROUP}/{VERSION}', 'scale'
REPLICAS: FieldSet = {'f:spec': {'f:replicas': EMPTY}}


class Ownership:
    """The managed fields of one object; ``path`` leads to its number of replicas: ``.spec.replicas``."""

    def __init__(self, body: Body, api_version: str, path: str) -> None:
        self._api_version = api_version
        self._records = managers.decode(body['metadata'].get('managedFields')) or []
        self._place: FieldSet = EMPTY
        for part in reversed(path.strip('.').split('.')):
            self._place = {fieldsets.field(part): self._place}

    def of_scale(self) -> list[Record]:
        """The records of the scale."""
        return [
            dataclasses.replace(record, api_version=API_VERSION, fields=REPLICAS)
            for record in self._records
            if fieldsets.intersection(record.fields, self._place)
        ]

    def updated(self, manager: str, before: int, after: int) -> list[Record]:
        """The records of the scale when somebody has written it."""
        records = self.of_scale()
        if not records or not after:
            return []
        return records if before == after else [Record(manager, UPDATE, API_VERSION, SUBRESOURCE, '', REPLICAS)]

    def of_object(self, scale: list[Record]) -> list[dict[str, Any]]:
        """The managed fields of the object, by the records of its scale."""
        records = [
            dataclasses.replace(record, fields=fieldsets.difference(record.fields, self._place))
            for record in self._records
        ]
        records += [
            dataclasses.replace(record, api_version=self._api_version, fields=self._place, time='') for record in scale
        ]
        return managers.encode(record for record in records if record.fields)


def applied(scale: Body, owners: list[Record], config: Body, manager: str, force: bool) -> tuple[Body, list[Record]]:
    """A scale with a configuration applied to it, and its records then; 409 if others own the number."""
    shape = shapes.builtin(GROUP, VERSION, KIND)
    writer = Writer(manager, API_VERSION, shape, {API_VERSION: shape}.get, SUBRESOURCE, {'f:status': EMPTY})
    live = {**scale, 'metadata': {**scale['metadata'], 'managedFields': [record.encoded() for record in owners]}}
    result = applying.apply(live, config, writer, force)
    records = managers.decode(result['metadata'].pop('managedFields', None)) or []
    return result, [record for record in records if fieldsets.intersection(record.fields, REPLICAS)]
