"""
The subresources ``eviction`` and ``binding`` of pods.

PodDisruptionBudgets do not limit evictions, because the sandbox has no controller that counts the pods.
"""

from typing import Any

from kopf._kits.testing.access.write_options import Options, decode_options
from kopf._kits.testing.kinds.kinds import Body, Kind
from kopf._kits.testing.wire import statuses, timestamps
from kopf._kits.testing.wire.statuses import Cause, text

EVICTION = Kind(group='policy', version='v1', plural='evictions', singular='eviction', name='Eviction', namespaced=True)
BINDING = Kind(group='', version='v1', plural='bindings', singular='binding', name='Binding', namespaced=True)


def check_eviction(order: Body, namespace: str, name: str, options: Options) -> None:
    """Set the options of deletion from an eviction; raise a 4xx if it is about another pod."""
    _check_place(order, namespace, name)
    dry_run = options.dry_run
    if (wanted := order.get('deleteOptions')) is not None:
        decode_options(wanted, {}, options)
    options.dry_run = options.dry_run or dry_run


def check_binding(order: Body, namespace: str, name: str) -> None:
    """Refuse (4xx or 500) a binding of another pod, or without a node."""
    _check_place(order, namespace, name)
    if causes := list(_target_causes(order.get('target') or {})):
        texts = [f'{cause.field}: {cause.message}' for cause in causes]
        raise statuses.internal(texts[0] if len(texts) == 1 else f'[{", ".join(texts)}]')


def bind(pod: Body, order: Body) -> Body:
    """Return the pod with the node, annotations and labels of the binding; raise a 409 if it cannot be bound."""
    name = pod['metadata']['name']
    if 'deletionTimestamp' in pod['metadata']:
        raise _conflict(name, f'pod {name} is being deleted, cannot be assigned to a host')
    if node := pod['spec'].get('nodeName'):
        raise _conflict(name, f'pod {name} is already assigned to node {text(node)}')
    for key in ('annotations', 'labels'):
        if added := order['metadata'].get(key):
            pod['metadata'][key] = {**pod['metadata'].get(key, {}), **added}
    pod['spec']['nodeName'] = order['target']['name']
    conditions = pod.setdefault('status', {}).get('conditions') or []
    others = [condition for condition in conditions if condition['type'] != 'PodScheduled']
    pod['status']['conditions'] = [
        *others,
        {'lastProbeTime': None, 'lastTransitionTime': timestamps.now(), 'status': 'True', 'type': 'PodScheduled'},
    ]
    return pod


def _check_place(order: Body, namespace: str, name: str) -> None:
    meta = order['metadata']
    if (meta.get('namespace') or namespace) != namespace:
        raise statuses.wrong_namespace()
    if meta.get('name', '') != name:
        raise statuses.bad_request(f'name in URL does not match name in {order["kind"]} object')


def _target_causes(target: Any) -> list[Cause]:
    causes = []
    if (kind := target.get('kind', '')) not in ('', 'Node'):
        causes.append(statuses.value_unsupported('target.kind', text(kind), ['"Node"', '"<empty>"']))
    if not target.get('name'):
        causes.append(statuses.value_required('target.name'))
    return causes


def _conflict(name: str, why: str) -> statuses.Refusal:
    return statuses.conflict('', 'pods/binding', name, why)
