"""The protection of claims and volumes: a finalizer keeps them as long as they are in use."""

from collections.abc import Callable, Mapping
from typing import Any

from kopf._kits.testing.kinds.storage import Change, Record, Storage, Table, TableName

CLAIMS, VOLUMES, PODS = (TableName('', name) for name in ('persistentvolumeclaims', 'persistentvolumes', 'pods'))
FINALIZERS: Mapping[TableName, str] = {CLAIMS: 'kubernetes.io/pvc-protection', VOLUMES: 'kubernetes.io/pv-protection'}


class Protection:
    """Removes the finalizers of unused objects: ``later`` schedules a check, ``release`` removes a finalizer."""

    def __init__(
        self,
        storage: Storage,
        release: Callable[[Table, Record, str], None],
        later: Callable[[Callable[..., object], Any], None],
    ) -> None:
        self._storage = storage
        self._release = release
        self._later = later

    def observe(self, table: Table, change: Change) -> None:
        """Schedule the check of objects that are being deleted, and of objects that are no longer used."""
        if table.name in FINALIZERS:
            if change.record.deleting and change.type != 'DELETED':
                self._later(self._let_go, (table, change.record.namespace, change.record.name))
        elif table.name == PODS and change.type == 'DELETED':
            claims = self._storage.table(*CLAIMS)
            for claim in _claims_of(change.record):
                self._later(self._let_go, (claims, change.record.namespace, claim))

    def _let_go(self, place: tuple[Table, str, str]) -> None:
        table, namespace, name = place
        record = table.get(namespace, name)
        if record is None or not record.deleting:
            return
        body, finalizer = record.body(), FINALIZERS[table.name]
        if finalizer in (body['metadata'].get('finalizers') or ()) and not self._is_used(table, record, body):
            self._release(table, record, finalizer)

    def _is_used(self, table: Table, record: Record, body: Mapping[str, Any]) -> bool:
        if table.name == VOLUMES:
            return (body.get('status') or {}).get('phase') == 'Bound'
        pods = self._storage.table(*PODS).records(record.namespace)
        return any(record.name in _claims_of(pod) for pod in pods)


def _claims_of(pod: Record) -> list[str]:
    body = pod.body()
    if (body.get('status') or {}).get('phase') in ('Succeeded', 'Failed'):
        return []
    volumes = (body.get('spec') or {}).get('volumes') or ()
    return [volume['persistentVolumeClaim']['claimName'] for volume in volumes if 'persistentVolumeClaim' in volume]
