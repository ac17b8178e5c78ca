"""
The immutable fields of built-in objects, with the messages of a real server.

Some messages of a real server end with a diff of Go structures. Here, only the messages about PersistentVolumeClaims
have it.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kopf._kits.testing.objects import godiffs
from kopf._kits.testing.wire import quantities, statuses
from kopf._kits.testing.wire.statuses import Cause

Body = Mapping[str, Any]

CLAIM = 'spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims'
POD = (
    'pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,'
    '`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),'
    '`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)'
)
STATEFULSET = (
    "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', "
    "'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' "
    "are forbidden"
)


def problems(body: Body, old: Body, plural: str) -> Iterator[Cause]:
    """Yield an error for each immutable field of a built-in object that the request would change."""
    if (check := _CHECKS.get(plural)) is not None:
        yield from check(body, old)


def _contents(body: Body, old: Body) -> Iterator[Cause]:
    if not old.get('immutable'):
        return
    if not body.get('immutable'):
        yield statuses.value_forbidden('immutable', 'field is immutable when `immutable` is set')
    for key in ('data', 'binaryData'):
        if body.get(key, {}) != old.get(key, {}):
            yield statuses.value_forbidden(key, 'field is immutable when `immutable` is set')


def _secret(body: Body, old: Body) -> Iterator[Cause]:
    yield from _same(body, old, 'type', 'type')
    yield from _contents(body, old)


def _selector(body: Body, old: Body) -> Iterator[Cause]:
    yield from _same(_spec(body), _spec(old), 'selector', 'spec.selector')


def _statefulset(body: Body, old: Body) -> Iterator[Cause]:
    free = (
        'replicas',
        'ordinals',
        'template',
        'updateStrategy',
        'revisionHistoryLimit',
        'persistentVolumeClaimRetentionPolicy',
        'minReadySeconds',
    )
    if _without(_spec(body), free) != _without(_spec(old), free):
        yield statuses.value_forbidden('spec', STATEFULSET)


def _job(body: Body, old: Body) -> Iterator[Cause]:
    for key in ('selector', 'completions', 'completionMode', 'podFailurePolicy', 'backoffLimitPerIndex', 'managedBy'):
        if key != 'completions' or _spec(body).get('completionMode') != 'Indexed':
            yield from _same(_spec(body), _spec(old), key, f'spec.{key}')
    if not _spec(old).get('suspend'):
        yield from _same(_spec(body), _spec(old), 'template', 'spec.template')


def _pod(body: Body, old: Body) -> Iterator[Cause]:
    spec, before = _spec(body), _spec(old)
    for key in ('containers', 'initContainers'):
        if len(spec.get(key) or ()) != len(before.get(key) or ()):
            yield statuses.value_forbidden(f'spec.{key}', 'pod updates may not add or remove containers')
            return
    if [item.get('name') for item in spec['containers']] != [item.get('name') for item in before['containers']]:
        yield statuses.value_forbidden('spec.containers', 'pod updates may not add or remove containers')
        return
    tolerations = [item for item in before.get('tolerations') or () if item not in (spec.get('tolerations') or ())]
    if tolerations or _fixed(spec) != _fixed(before):
        yield statuses.value_forbidden('spec', POD)


def _fixed(spec: Body) -> Mapping[str, Any]:
    """Return the immutable fields in the specification of a pod."""
    fixed = _without(spec, ('activeDeadlineSeconds', 'tolerations', 'nodeName'))
    for key in ('containers', 'initContainers'):
        fixed[key] = [_without(item, ('image',)) for item in spec.get(key) or ()]
    return fixed


def _claim(body: Body, old: Body) -> Iterator[Cause]:
    spec, before = _spec(body), _spec(old)
    bound = (old.get('status') or {}).get('phase') == 'Bound'
    free = [key for key in ('volumeName', 'storageClassName') if not before.get(key)]
    if bound:
        free.append('volumeAttributesClassName')
    fixed, fixed_before = _without(spec, free), _without(before, free)
    requests, previous = _requests(fixed), _requests(fixed_before)
    if previous.get('storage') and (
        'storage' not in requests
        or bound
        and (quantities.amount(requests['storage']) < quantities.amount(previous['storage']))
    ):
        yield statuses.value_forbidden('spec.resources.requests.storage', 'field can not be less than status.capacity')
    if bound:
        fixed, fixed_before = ({**each, 'resources': None} for each in (fixed, fixed_before))
    if fixed != fixed_before:
        yield statuses.value_forbidden('spec', f'{CLAIM}\n{godiffs.of_claims(fixed_before, fixed)}')
    if spec.get('volumeMode') != before.get('volumeMode'):
        yield statuses.value_invalid('volumeMode', statuses.text(spec.get('volumeMode')), 'field is immutable')


def _requests(spec: Body) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (spec.get('resources') or {}).get('requests') or {}
    return found


def _service(body: Body, old: Body) -> Iterator[Cause]:
    spec, before = _spec(body), _spec(old)
    if 'ExternalName' in (spec.get('type'), before.get('type')) or not before.get('clusterIPs'):
        return
    if spec.get('clusterIPs') != before['clusterIPs']:
        yield statuses.value_invalid(
            'spec.clusterIPs[0]', statuses.text(spec.get('clusterIPs')), 'may not change once set'
        )


def _class(body: Body, old: Body) -> Iterator[Cause]:
    for key in ('parameters', 'provisioner', 'reclaimPolicy', 'volumeBindingMode'):
        yield from _same(body, old, key, key)


def _priority(body: Body, old: Body) -> Iterator[Cause]:
    if body.get('value', 0) != old.get('value', 0):
        yield statuses.value_forbidden('value', 'may not be changed in an update.')
    yield from _same(body, old, 'preemptionPolicy', 'preemptionPolicy')


def _node(body: Body, old: Body) -> Iterator[Cause]:
    present = _spec(old).get('podCIDRs')
    if present and _spec(body).get('podCIDRs') != present:
        yield statuses.value_forbidden('spec.podCIDRs', 'node updates may not change podCIDR except from "" to valid')


def _same(body: Body, old: Body, key: str, place: str) -> Iterator[Cause]:
    if body.get(key) != old.get(key):
        yield statuses.value_invalid(place, statuses.text(body.get(key)), 'field is immutable')


def _spec(body: Body) -> Mapping[str, Any]:
    spec = body.get('spec')
    return spec if isinstance(spec, dict) else {}


def _without(value: Body, keys: Any) -> dict[str, Any]:
    return {key: item for key, item in value.items() if key not in keys}


_CHECKS: Mapping[str, Callable[[Body, Body], Iterator[Cause]]] = {
    'configmaps': _contents,
    'secrets': _secret,
    'deployments': _selector,
    'replicasets': _selector,
    'daemonsets': _selector,
    'statefulsets': _statefulset,
    'jobs': _job,
    'pods': _pod,
    'persistentvolumeclaims': _claim,
    'services': _service,
    'storageclasses': _class,
    'priorityclasses': _priority,
    'nodes': _node,
}
