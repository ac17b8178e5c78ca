"""
Marking of objects for deletion, and the finalizers of the garbage collector.

One of these finalizers makes the garbage collector delete the dependents before the object; the other one makes them
orphans. Each deletion request chooses between the two, even if the object is already being deleted.
"""

from collections.abc import Sequence

from kopf._kits.testing.kinds.kinds import Body, Kind
from kopf._kits.testing.resources import crds
from kopf._kits.testing.wire import timestamps

FOREGROUND, ORPHAN = 'foregroundDeletion', 'orphan'


def mark(body: Body, kind: Kind, policy: str) -> bool:
    """Mark an object for deletion in place, unless it is marked already; return whether it has finalizers."""
    meta = body['metadata']
    deleting = 'deletionTimestamp' in meta
    meta['finalizers'] = finalizers(meta.get('finalizers') or (), policy)
    if kind.plural == crds.PLURAL and not deleting and crds.FINALIZER not in meta['finalizers']:
        meta['finalizers'].append(crds.FINALIZER)
        crds.terminate(body)
    held = bool(meta['finalizers']) or (kind.plural == 'namespaces' and bool(body['spec'].get('finalizers')))
    if not meta['finalizers']:
        del meta['finalizers']
    if not held or deleting:
        return held
    meta['deletionTimestamp'] = timestamps.now()
    if kind.plural == 'namespaces':
        body['status'] = {'phase': 'Terminating'}
    elif kind.plural != crds.PLURAL:
        meta['deletionGracePeriodSeconds'] = 0
        if meta.get('generation'):
            meta['generation'] += 1
    return True


def finalizers(present: Sequence[str], policy: str) -> list[str]:
    """Return the finalizers of an object after a deletion request with this policy (empty: unspecified)."""
    orphan = policy == 'Orphan' or (not policy and ORPHAN in present)
    foreground = policy == 'Foreground' or (not policy and FOREGROUND in present)
    others = [item for item in present if item not in (FOREGROUND, ORPHAN)]
    return [*others, *([ORPHAN] if orphan else ()), *([FOREGROUND] if foreground else ())]
