"""A record of the children that an operator creates too late: when their owner is already Ready."""

from collections.abc import Iterable, Mapping
from typing import Any

from kopf._kits.checking.end_states import StoredObject


class ReadinessRecord:
    """Records which objects of one course are Ready, and which children were created too late."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._ready: set[str] = set()
        self.early: list[str] = []
        """The children that were created when their owners were already Ready."""

    def note(self, objects: Iterable[StoredObject]) -> None:
        """Called after each write with all existing objects."""
        items = {item.body['metadata']['uid']: item for item in objects}
        for uid, item in items.items():
            owners = item.body['metadata'].get('ownerReferences') or ()
            if uid not in self._known and any(owner['uid'] in self._ready for owner in owners):
                self.early.append(f'{item.resource} {item.namespace}/{item.name}')
        self._known = {*items}
        self._ready = {uid for uid, item in items.items() if is_ready(item.body)}


def is_ready(body: Mapping[str, Any]) -> bool:
    """
    Check whether the condition Ready is true for the present generation of the object.

    If the status has no ``observedGeneration``, it is assumed to be that of the first generation.
    """
    status = body.get('status')
    if not isinstance(status, Mapping) or not isinstance(status.get('conditions'), list):
        return False
    for condition in status['conditions']:
        if isinstance(condition, Mapping) and condition.get('type') == 'Ready' and condition.get('status') == 'True':
            observed = condition.get('observedGeneration', status.get('observedGeneration', 1))
            return bool(observed == body['metadata'].get('generation', 1))
    return False
