"""
The conditions of a namespace that is being deleted: its remaining objects, and their finalizers.

Users read these conditions when a namespace is not deleted. The most frequent cause is an operator that has not removed
its finalizers, or does not run any more.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from kopf._kits.testing.kinds.kinds import Body, Kind
from kopf._kits.testing.kinds.storage import Record
from kopf._kits.testing.wire import timestamps


def explain(body: Body, left: Iterable[tuple[Kind, Record]]) -> Body:
    """Return the namespace with the conditions about its remaining objects."""
    resources: Counter[str] = Counter()
    finalizers: Counter[str] = Counter()
    for kind, record in left:
        resources[f'{kind.plural}.{kind.group}'] += 1
        finalizers.update(record.body()['metadata'].get('finalizers') or ())
    status: dict[str, Any] = body.get('status') or {}
    before = {item['type']: item for item in status.get('conditions') or ()}
    wanted = [
        ('NamespaceDeletionDiscoveryFailure', False, 'ResourcesDiscovered', 'All resources successfully discovered'),
        (
            'NamespaceDeletionGroupVersionParsingFailure',
            False,
            'ParsedGroupVersions',
            'All legacy kube types successfully parsed',
        ),
        (
            'NamespaceDeletionContentFailure',
            False,
            'ContentDeleted',
            'All content successfully deleted, may be waiting on finalization',
        ),
        (
            'NamespaceContentRemaining',
            True,
            'SomeResourcesRemain',
            f'Some resources are remaining: {_listed(resources, "has")}',
        )
        if resources
        else ('NamespaceContentRemaining', False, 'ContentRemoved', 'All content successfully removed'),
        (
            'NamespaceFinalizersRemaining',
            True,
            'SomeFinalizersRemain',
            f'Some content in the namespace has finalizers remaining: {_listed(finalizers, "in")}',
        )
        if finalizers
        else (
            'NamespaceFinalizersRemaining',
            False,
            'ContentHasNoFinalizers',
            'All content-preserving finalizers finished',
        ),
    ]
    conditions = [_condition(before.get(item[0]) or {}, *item) for item in wanted]
    return {**body, 'status': {**status, 'conditions': conditions}}


def _listed(counts: Mapping[str, int], word: str) -> str:
    return ', '.join(f'{name} {word} {count} resource instances' for name, count in sorted(counts.items()))


def _condition(before: Mapping[str, Any], type: str, value: bool, reason: str, message: str) -> dict[str, str]:
    # Why not always the present time? Each check would change the namespace, and so send an event to all watches.
    same = before.get('status') == str(value)
    return {
        'type': type,
        'status': str(value),
        'reason': reason,
        'message': message,
        'lastTransitionTime': before['lastTransitionTime'] if same else timestamps.now(),
    }
