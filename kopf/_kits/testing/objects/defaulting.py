"""
The defaults of built-in kinds, which a real server adds to an object before it is stored.

There is one function for each kind, found by the plural. It changes the body in place, and ignores values of wrong
types. Defaults are applied at every write, as on a real server. The defaults that only new objects get are in `begin`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from kopf._kits.testing.kinds import autoscalers
from kopf._kits.testing.objects import podspecs, transitions
from kopf._kits.testing.objects.podspecs import Fields, maps
from kopf._kits.testing.wire import quantities, timestamps

Body = dict[str, Any]


def apply(body: Body, plural: str) -> None:
    """Fill in the omitted fields of an object."""
    if (complete := _COMPLETE.get(plural)) is not None:
        complete(body, _mapping(body, 'spec') if plural not in _WITHOUT_SPEC else body)


def begin(body: Body, plural: str) -> None:
    """Fill in the fields that only new objects get; the caller has already removed the status."""
    meta = body['metadata']
    match plural:
        case 'pods':
            podspecs.complete_pod(body.get('spec'))
            body['status'] = {'phase': 'Pending', 'qosClass': podspecs.quality(body.get('spec'))}
        case 'jobs':
            _begin_job(body, _mapping(body, 'spec'))
        case 'persistentvolumeclaims' | 'persistentvolumes':
            _hold(meta, 'kubernetes.io/pvc-protection' if plural.endswith('claims') else 'kubernetes.io/pv-protection')
        case 'nodes':
            _begin_node(body)
    if plural in STATUSES:
        body['status'] = {**STATUSES[plural]}
    if plural == 'persistentvolumes':
        body['status']['lastPhaseTransitionTime'] = timestamps.now()


STATUSES: Mapping[str, Fields] = {
    'statefulsets': {'replicas': 0, 'availableReplicas': 0},
    'replicasets': {'replicas': 0},
    'replicationcontrollers': {'replicas': 0},
    'daemonsets': {'currentNumberScheduled': 0, 'desiredNumberScheduled': 0, 'numberMisscheduled': 0, 'numberReady': 0},
    'ingresses': {'loadBalancer': {}},
    'services': {'loadBalancer': {}},
    'persistentvolumeclaims': {'phase': 'Pending'},
    'persistentvolumes': {'phase': 'Pending'},
    'poddisruptionbudgets': {'currentHealthy': 0, 'desiredHealthy': 0, 'disruptionsAllowed': 0, 'expectedPods': 0},
    'horizontalpodautoscalers': {'currentMetrics': None, 'desiredReplicas': 0},
}
"""The initial status of new objects; zeros are included because their fields are required."""


def _pod(body: Body, spec: Fields) -> None:
    podspecs.complete(spec)
    spec.setdefault('enableServiceLinks', True)
    podspecs.request_limits(spec)


def _deployment(body: Body, spec: Fields) -> None:
    spec.setdefault('replicas', 1)
    spec.setdefault('revisionHistoryLimit', 10)
    spec.setdefault('progressDeadlineSeconds', 600)
    strategy = _mapping(spec, 'strategy')
    if strategy.setdefault('type', 'RollingUpdate') == 'RollingUpdate':
        rolling = _mapping(strategy, 'rollingUpdate')
        rolling.setdefault('maxSurge', '25%')
        rolling.setdefault('maxUnavailable', '25%')
    podspecs.complete_template(spec.get('template'))


def _statefulset(body: Body, spec: Fields) -> None:
    spec.setdefault('replicas', 1)
    spec.setdefault('revisionHistoryLimit', 10)
    spec.setdefault('podManagementPolicy', 'OrderedReady')
    strategy = _mapping(spec, 'updateStrategy')
    if strategy.setdefault('type', 'RollingUpdate') == 'RollingUpdate':
        _mapping(strategy, 'rollingUpdate').setdefault('partition', 0)
    retention = _mapping(spec, 'persistentVolumeClaimRetentionPolicy')
    retention.setdefault('whenDeleted', 'Retain')
    retention.setdefault('whenScaled', 'Retain')
    podspecs.complete_template(spec.get('template'))
    for claim in maps(spec.get('volumeClaimTemplates')):
        claim.setdefault('apiVersion', 'v1')
        claim.setdefault('kind', 'PersistentVolumeClaim')
        _claim(claim, _mapping(claim, 'spec'))


def _daemonset(body: Body, spec: Fields) -> None:
    _mapping(body['metadata'], 'annotations').setdefault(transitions.GENERATION, '1')
    spec.setdefault('revisionHistoryLimit', 10)
    strategy = _mapping(spec, 'updateStrategy')
    if strategy.setdefault('type', 'RollingUpdate') == 'RollingUpdate':
        rolling = _mapping(strategy, 'rollingUpdate')
        rolling.setdefault('maxUnavailable', 1)
        rolling.setdefault('maxSurge', 0)
    podspecs.complete_template(spec.get('template'))


def _replicaset(body: Body, spec: Fields) -> None:
    spec.setdefault('replicas', 1)
    podspecs.complete_template(spec.get('template'))


def _replicationcontroller(body: Body, spec: Fields) -> None:
    _replicaset(body, spec)
    if not spec.get('minReadySeconds'):
        spec.pop('minReadySeconds', None)
    template = spec.get('template')
    labels = (template.get('metadata') or {}).get('labels') if isinstance(template, dict) else None
    if labels:
        spec.setdefault('selector', dict(labels))
        body['metadata'].setdefault('labels', dict(labels))


def _job(body: Body, spec: Fields) -> None:
    if 'completions' not in spec and 'parallelism' not in spec:
        spec['completions'] = 1
    spec.setdefault('parallelism', 1)
    spec.setdefault('backoffLimit', 6 if 'backoffLimitPerIndex' not in spec else 2147483647)
    spec.setdefault('completionMode', 'NonIndexed')
    spec.setdefault('suspend', False)
    spec.setdefault('manualSelector', False)
    spec.setdefault('podReplacementPolicy', 'Failed' if 'podFailurePolicy' in spec else 'TerminatingOrFailed')
    template = spec.get('template')
    podspecs.complete_template(template)
    # Without labels of its own, a job gets those of its template.
    if not body['metadata'].get('labels') and isinstance(template, dict):
        if labels := template['metadata'].get('labels'):
            body['metadata']['labels'] = labels


def _begin_job(body: Body, spec: Fields) -> None:
    meta = body['metadata']
    if spec['manualSelector'] or not isinstance(template := spec.get('template'), dict):
        return
    labels = _mapping(_mapping(template, 'metadata'), 'labels')
    for prefix in ('', 'batch.kubernetes.io/'):
        labels[f'{prefix}controller-uid'] = meta['uid']
        labels[f'{prefix}job-name'] = meta.get('name', '')
    selector = _mapping(spec, 'selector')
    _mapping(selector, 'matchLabels')['batch.kubernetes.io/controller-uid'] = meta['uid']
    meta.setdefault('labels', dict(labels))


def _cronjob(body: Body, spec: Fields) -> None:
    spec.setdefault('concurrencyPolicy', 'Allow')
    spec.setdefault('suspend', False)
    spec.setdefault('successfulJobsHistoryLimit', 3)
    spec.setdefault('failedJobsHistoryLimit', 1)
    job = _mapping(spec, 'jobTemplate')
    _mapping(job, 'metadata')
    podspecs.complete_template(_mapping(job, 'spec').get('template'))


def _podtemplate(body: Body, _: Fields) -> None:
    podspecs.complete_template(body.get('template'))


def _claim(body: Body, spec: Fields) -> None:
    spec.setdefault('volumeMode', 'Filesystem')
    _pending(body)
    resources = _mapping(spec, 'resources')
    quantities.canonize(resources.get('requests'))
    quantities.canonize(resources.get('limits'))


def _volume(body: Body, spec: Fields) -> None:
    spec.setdefault('persistentVolumeReclaimPolicy', 'Retain')
    spec.setdefault('volumeMode', 'Filesystem')
    _pending(body)
    quantities.canonize(spec.get('capacity'))
    if isinstance(path := spec.get('hostPath'), dict):
        path.setdefault('type', '')


def _pending(body: Body) -> None:
    """Set the initial phase."""
    _mapping(body, 'status').setdefault('phase', 'Pending')


def _node(body: Body, spec: Fields) -> None:
    if cidr := spec.get('podCIDR'):
        spec.setdefault('podCIDRs', [cidr])
    if isinstance(status := body.get('status'), dict):
        quantities.canonize(status.get('capacity'))
        if status.get('capacity'):
            status.setdefault('allocatable', dict(status['capacity']))
        quantities.canonize(status.get('allocatable'))


def _begin_node(body: Body) -> None:
    taints = _mapping(body, 'spec').setdefault('taints', [])
    if not any(taint.get('key') == podspecs.NOT_READY for taint in maps(taints)):
        taints.append({'key': podspecs.NOT_READY, 'effect': 'NoSchedule'})
    status = _mapping(body, 'status')
    status.setdefault('daemonEndpoints', {'kubeletEndpoint': {'Port': 0}})
    status.setdefault(
        'nodeInfo',
        dict.fromkeys(
            (
                'machineID',
                'systemUUID',
                'bootID',
                'kernelVersion',
                'osImage',
                'containerRuntimeVersion',
                'kubeletVersion',
                'kubeProxyVersion',
                'operatingSystem',
                'architecture',
            ),
            '',
        ),
    )


def _event(body: Body, _: Fields) -> None:
    if isinstance(body.get('series'), dict):
        body['series'].setdefault('lastObservedTime', None)
    if 'regarding' in body or 'reportingController' in body or body.get('apiVersion') == 'events.k8s.io/v1':
        body.setdefault('deprecatedSource', {})
        body.setdefault('deprecatedFirstTimestamp', None)
        body.setdefault('deprecatedLastTimestamp', None)
        body.setdefault('eventTime', None)
        return
    body.setdefault('involvedObject', {})
    body.setdefault('source', {})
    for key in ('firstTimestamp', 'lastTimestamp', 'eventTime'):
        body.setdefault(key, None)
    for key in ('reportingComponent', 'reportingInstance'):
        body.setdefault(key, '')


def _policy(body: Body, spec: Fields) -> None:
    _mapping(spec, 'podSelector')
    if not spec.get('policyTypes'):
        spec['policyTypes'] = ['Ingress', *(['Egress'] if spec.get('egress') else [])]
    for rule in [*maps(spec.get('ingress')), *maps(spec.get('egress'))]:
        for port in maps(rule.get('ports')):
            port.setdefault('protocol', 'TCP')


def _autoscaler(body: Body, spec: Fields) -> None:
    spec.setdefault('minReplicas', 1)
    if body.get('apiVersion') == 'autoscaling/v1':
        if autoscalers.METRICS not in (body['metadata'].get('annotations') or {}):
            spec.setdefault('targetCPUUtilizationPercentage', 80)
    elif not spec.get('metrics'):
        target = {'type': 'Utilization', 'averageUtilization': 80}
        spec['metrics'] = [{'type': 'Resource', 'resource': {'name': 'cpu', 'target': target}}]


def _slice(body: Body, _: Fields) -> None:
    for port in maps(body.get('ports')):
        port.setdefault('name', '')
        port.setdefault('protocol', 'TCP')


def _endpoints(body: Body, _: Fields) -> None:
    for subset in maps(body.get('subsets')):
        for port in maps(subset.get('ports')):
            port.setdefault('protocol', 'TCP')


def _priorityclass(body: Body, _: Fields) -> None:
    body.setdefault('preemptionPolicy', 'PreemptLowerPriority')
    body.setdefault('value', 0)


def _storageclass(body: Body, _: Fields) -> None:
    body.setdefault('reclaimPolicy', 'Delete')
    body.setdefault('volumeBindingMode', 'Immediate')


def _spec_only(body: Body, spec: Fields) -> None:
    """Write the specification even if it is empty."""


def _hold(meta: Fields, finalizer: str) -> None:
    finalizers = meta.setdefault('finalizers', [])
    if finalizer not in finalizers:
        finalizers.append(finalizer)


def _mapping(body: Fields, key: str) -> Fields:
    value = body.get(key)
    if value is None:
        value = body[key] = {}
    return value if isinstance(value, dict) else {}


_COMPLETE: Mapping[str, Callable[[Body, Fields], None]] = {
    'pods': _pod,
    'deployments': _deployment,
    'statefulsets': _statefulset,
    'daemonsets': _daemonset,
    'replicasets': _replicaset,
    'replicationcontrollers': _replicationcontroller,
    'jobs': _job,
    'cronjobs': _cronjob,
    'podtemplates': _podtemplate,
    'persistentvolumeclaims': _claim,
    'persistentvolumes': _volume,
    'nodes': _node,
    'events': _event,
    'networkpolicies': _policy,
    'horizontalpodautoscalers': _autoscaler,
    'endpointslices': _slice,
    'endpoints': _endpoints,
    'priorityclasses': _priorityclass,
    'storageclasses': _storageclass,
    'leases': _spec_only,
    'poddisruptionbudgets': _spec_only,
    'ingresses': _spec_only,
    'ingressclasses': _spec_only,
}
_WITHOUT_SPEC = frozenset(
    {
        'events',
        'endpointslices',
        'endpoints',
        'priorityclasses',
        'storageclasses',
        'podtemplates',
    }
)
