"""
The ownership of the number of replicas, as the scale subresource shows it.

A scale has only one field that can be owned: the number of replicas. So its managed fields are the records of the
object that contain this number. A client that writes the scale becomes the owner of the number in the object, with a
record for the subresource and without a time. If the number has no owner, only a server-side apply makes the client its
owner; an update does not.
"""

import dataclasses
from typing import Any

from kopf._kits.testing.kinds import shapes
from kopf._kits.testing.kinds.kinds import Body
from kopf._kits.testing.merging import fieldsets, managers, server_side_apply
from kopf._kits.testing.merging.fieldsets import EMPTY, FieldSet
from kopf._kits.testing.merging.managers import APPLY, UPDATE, Record, Writer

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
        """Return the records of the scale."""
        return [
            dataclasses.replace(record, api_version=API_VERSION, fields=REPLICAS)
            for record in self._records
            if fieldsets.intersection(record.fields, self._place)
        ]

    def updated(self, manager: str, before: int, after: int) -> list[Record]:
        """Return the records of the scale after an update by this manager."""
        records = self.of_scale()
        if not records or not after:
            return []
        return records if before == after else [Record(manager, UPDATE, API_VERSION, SUBRESOURCE, '', REPLICAS)]

    def of_object(self, scale: list[Record]) -> list[dict[str, Any]]:
        """Return the managed fields of the object that follow from the records of its scale."""
        records = [
            dataclasses.replace(record, fields=fieldsets.difference(record.fields, self._place))
            for record in self._records
        ]
        records = [record for record in records if record.fields]
        for record in scale:
            # A manager can have two records of updates, for the object and for the scale, because records of updates
            # with different versions are different records.
            same = [each for each in records if record.operation == APPLY and each.is_of(record)]
            if same:
                same[0].fields = fieldsets.union(same[0].fields, self._place)
            else:
                records.append(dataclasses.replace(record, api_version=self._api_version, fields=self._place, time=''))
        return managers.encode(records)


def applied(scale: Body, owners: list[Record], config: Body, manager: str, force: bool) -> tuple[Body, list[Record]]:
    """Return the scale after the apply of a configuration, and its records; raise a 409 if others own the number."""
    shape = shapes.builtin(GROUP, VERSION, KIND)
    writer = Writer(manager, API_VERSION, shape, {API_VERSION: shape}.get, SUBRESOURCE, {'f:status': EMPTY})
    live = {**scale, 'metadata': {**scale['metadata'], 'managedFields': [record.encoded() for record in owners]}}
    result = server_side_apply.apply(live, config, writer, force)
    records = managers.decode(result['metadata'].pop('managedFields', None)) or []
    return result, [record for record in records if fieldsets.intersection(record.fields, REPLICAS)]
