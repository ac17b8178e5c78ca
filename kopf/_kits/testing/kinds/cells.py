"""
The table cells of built-in kinds, which ``kubectl get`` shows, by the names of their columns.

The values are the same as on a real server, including ``<none>``, ``<unset>``, and ``<unknown>``. Some numbers are
strings there, too.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kopf._kits.testing.kinds.jsonpaths import find
from kopf._kits.testing.wire import timestamps

Body = Mapping[str, Any]
Cell = Callable[[Body], Any]

NONE, UNSET, UNKNOWN = '<none>', '<unset>', '<unknown>'
_MODES = {'ReadWriteOnce': 'RWO', 'ReadOnlyMany': 'ROX', 'ReadWriteMany': 'RWX', 'ReadWriteOncePod': 'RWOP'}


def of(plural: str, column: str) -> Cell:
    """Return the function that computes the cell of this column for objects of this resource."""
    return BUILTINS.get(plural, {}).get(column) or COMMON.get(column) or (lambda body: NONE)


def _first(body: Body, path: str, default: Any = '') -> Any:
    return next(find(body, path), None) or default


def _at(path: str, default: Any = NONE) -> Cell:
    return lambda body: _first(body, path, default)


def _number(path: str) -> Cell:
    return lambda body: _first(body, path, 0)


def _count(path: str) -> Cell:
    return lambda body: len(_first(body, path, ()))


def _flag(path: str, default: bool = False) -> Cell:
    return lambda body: next(find(body, path), default)


def _ready(body: Body) -> str:
    return f'{_first(body, ".status.readyReplicas", 0)}/{next(find(body, ".spec.replicas"), 0)}'


def _age(body: Body) -> str:
    return timestamps.age(body['metadata'].get('creationTimestamp') or '')


def _joined(path: str, default: str = NONE) -> Cell:
    return lambda body: ','.join(str(value) for value in find(body, path)) or default


def _decision(body: Body) -> str:
    types = list(find(body, '.status.conditions[*].type'))
    words = [word for word in ('Approved', 'Denied') if word in types] or ['Pending']
    words += ['Failed'] if 'Failed' in types else []
    return ','.join([*words, *(['Issued'] if _first(body, '.status.certificate') else ())])


def _labels(values: Any) -> str:
    return ','.join(f'{key}={value}' for key, value in sorted((values or {}).items())) or NONE


def _selector(path: str) -> Cell:
    def cell(body: Body) -> str:
        selector = _first(body, path, {})
        terms = [f'{key}={value}' for key, value in sorted((selector.get('matchLabels') or {}).items())]
        for expression in selector.get('matchExpressions') or ():
            key, values = expression.get('key', ''), ','.join(sorted(expression.get('values') or ()))
            terms.append(
                {
                    'In': f'{key} in ({values})',
                    'NotIn': f'{key} notin ({values})',
                    'Exists': key,
                    'DoesNotExist': f'!{key}',
                }.get(expression.get('operator', ''), key)
            )
        return ','.join(sorted(terms)) or NONE

    return cell


def _phase(body: Body) -> str:
    return 'Terminating' if 'deletionTimestamp' in body['metadata'] else str(_first(body, '.status.phase'))


def _pod_status(body: Body) -> str:
    if 'deletionTimestamp' in body['metadata']:
        return 'Terminating'
    return str(_first(body, '.status.reason') or _first(body, '.status.phase'))


def _pod_ready(body: Body) -> str:
    ready = sum(bool(status.get('ready')) for status in find(body, '.status.containerStatuses[*]'))
    return f'{ready}/{sum(1 for _ in find(body, ".spec.containers[*]"))}'


def _pod_restarts(body: Body) -> str:
    return str(sum(status.get('restartCount', 0) for status in find(body, '.status.containerStatuses[*]')))


def _service_address(body: Body) -> str:
    type, own = _first(body, '.spec.type'), list(find(body, '.spec.externalIPs[*]'))
    if type == 'ExternalName':
        return str(_first(body, '.spec.externalName'))
    if type == 'LoadBalancer':
        given = [item.get('ip') or item.get('hostname') for item in find(body, '.status.loadBalancer.ingress[*]')]
        return ','.join(str(item) for item in [*given, *own]) or '<pending>'
    return ','.join(own) or NONE if type else UNKNOWN


def _service_ports(body: Body) -> str:
    ports = []
    for port in find(body, '.spec.ports[*]'):
        node = f':{port["nodePort"]}' if port.get('nodePort') else ''
        ports.append(f'{port.get("port")}{node}/{port.get("protocol", "TCP")}')
    return ','.join(ports) or NONE


def _job_status(body: Body) -> str:
    true = {item.get('type') for item in find(body, '.status.conditions[*]') if item.get('status') == 'True'}
    for word in ('Complete', 'Failed'):
        if word in true:
            return word
    if 'deletionTimestamp' in body['metadata']:
        return 'Terminating'
    for word in ('Suspended', 'FailureTarget', 'SuccessCriteriaMet'):
        if word in true:
            return word
    return 'Running'


def _job_completions(body: Body) -> str:
    done, wanted = _first(body, '.status.succeeded', 0), next(find(body, '.spec.completions'), None)
    if wanted is not None:
        return f'{done}/{wanted}'
    parallelism = _first(body, '.spec.parallelism', 0)
    return f'{done}/1 of {parallelism}' if parallelism > 1 else f'{done}/1'


def _node_status(body: Body) -> str:
    ready = [item.get('status') for item in find(body, '.status.conditions[*]') if item.get('type') == 'Ready']
    words = ['Ready' if ready[0] == 'True' else 'NotReady'] if ready else ['Unknown']
    return ','.join([*words, *(['SchedulingDisabled'] if _first(body, '.spec.unschedulable') else [])])


def _node_roles(body: Body) -> str:
    prefix = 'node-role.kubernetes.io/'
    roles = [key.removeprefix(prefix) for key in body['metadata'].get('labels') or {} if key.startswith(prefix)]
    return ','.join(sorted(filter(None, roles))) or NONE


def _node_address(type: str) -> Cell:
    def cell(body: Body) -> str:
        found = (item.get('address') for item in find(body, '.status.addresses[*]') if item.get('type') == type)
        return str(next(found, NONE))

    return cell


def _subjects(kind: str) -> Cell:
    def cell(body: Body) -> str:
        chosen = (item for item in body.get('subjects') or () if item.get('kind') == kind)
        return ', '.join(
            f'{item["namespace"]}/{item.get("name")}' if item.get('namespace') else str(item.get('name'))
            for item in chosen
        )

    return cell


def _modes(path: str) -> Cell:
    return lambda body: ','.join(_MODES.get(mode, mode) for mode in find(body, path))


def _bound(cell: Cell) -> Cell:
    return lambda body: cell(body) if _first(body, '.spec.volumeName') else ''


def _claim(body: Body) -> str:
    claim = _first(body, '.spec.claimRef', {})
    return f'{claim.get("namespace", "")}/{claim.get("name", "")}' if claim else ''


def _hosts(body: Body) -> str:
    hosts = [host for host in find(body, '.spec.rules[*].host') if host]
    return ','.join(hosts[:3]) + (f' + {len(hosts) - 3} more...' if len(hosts) > 3 else '') or '*'


def _endpoint_addresses(body: Body) -> str:
    found = []
    for subset in body.get('subsets') or ():
        ports = subset.get('ports') or []
        for address in subset.get('addresses') or ():
            found += [f'{address.get("ip")}:{port.get("port")}' for port in ports] or [str(address.get('ip'))]
    return _some(found)


def _some(found: list[str]) -> str:
    return ','.join(found[:3]) + (f' + {len(found) - 3} more...' if len(found) > 3 else '') or NONE


def _slice_ports(body: Body) -> str:
    ports = body.get('ports')
    return UNSET if not ports else _some([str(port.get('port', '*')) for port in ports])


def _metrics(body: Body) -> str:
    texts = list(_metric_texts(body))
    return ', '.join(texts[:2]) + (f' + {len(texts) - 2} more...' if len(texts) > 2 else '') or NONE


def _metric_texts(body: Body) -> Iterator[str]:
    for metric in find(body, '.spec.metrics[*]'):
        resource = metric.get('resource') or {}
        target = resource.get('target') or {}
        wanted = target.get('averageValue', '<auto>')
        if 'averageUtilization' in target:
            wanted = f'{target["averageUtilization"]}%'
        yield f'{resource.get("name", "")}: {UNKNOWN}/{wanted}'


def _last_seen(body: Body) -> str:
    for key in ('lastTimestamp', 'deprecatedLastTimestamp', 'eventTime', 'firstTimestamp', 'deprecatedFirstTimestamp'):
        if body.get(key):
            return timestamps.age(body[key])
    return UNKNOWN


def _first_seen(body: Body) -> str:
    for key in ('firstTimestamp', 'deprecatedFirstTimestamp', 'eventTime'):
        if body.get(key):
            return timestamps.age(body[key])
    return UNKNOWN


def _event_object(body: Body) -> str:
    involved = body.get('involvedObject') or body.get('regarding') or {}
    return f'{str(involved.get("kind", "")).lower()}/{involved.get("name", "")}'


def _event_source(body: Body) -> str:
    source = body.get('source') or body.get('deprecatedSource') or {}
    component = source.get('component') or body.get('reportingComponent') or body.get('reportingController') or ''
    host = source.get('host') or body.get('reportingInstance') or ''
    return f'{component}, {host}' if host else component


def _text(path: str, default: str) -> Cell:
    def cell(body: Body) -> str:
        value = next(find(body, path), None)
        return default if value is None else str(value)

    return cell


def _reference(body: Body) -> str:
    return f'{_first(body, ".spec.scaleTargetRef.kind")}/{_first(body, ".spec.scaleTargetRef.name")}'


def _switch(path: str) -> Cell:
    return lambda body: {True: 'True', False: 'False'}.get(next(find(body, path), None), UNSET)  # type: ignore[arg-type]


def _role(body: Body) -> str:
    return f'{_first(body, ".roleRef.kind")}/{_first(body, ".roleRef.name")}'


COMMON: Mapping[str, Cell] = {
    'Name': _at('.metadata.name', ''),
    'Age': _age,
    'Created At': _at('.metadata.creationTimestamp', None),
    'Containers': _joined('.spec.template.spec.containers[*].name', ''),
    'Images': _joined('.spec.template.spec.containers[*].image', ''),
    'Selector': _selector('.spec.selector'),
    'Webhooks': _count('.webhooks'),
    'Ready': _ready,
}
"""The columns with the same meaning in many kinds."""
_SETS: Mapping[str, Cell] = {
    'Desired': _number('.spec.replicas'),
    'Current': _number('.status.replicas'),
    'Ready': _number('.status.readyReplicas'),
}
_BINDINGS: Mapping[str, Cell] = {
    'Role': _role,
    'Users': _subjects('User'),
    'Groups': _subjects('Group'),
    'ServiceAccounts': _subjects('ServiceAccount'),
}
_CLASS = _text('.spec.volumeAttributesClassName', UNSET)

BUILTINS: Mapping[str, Mapping[str, Cell]] = {
    'namespaces': {'Status': _at('.status.phase', '')},
    'scales': {'Desired': _number('.spec.replicas'), 'Available': _number('.status.replicas')},
    'pods': {
        'Ready': _pod_ready,
        'Status': _pod_status,
        'Restarts': _pod_restarts,
        'IP': _at('.status.podIP'),
        'Node': _at('.spec.nodeName'),
        'Nominated Node': _at('.status.nominatedNodeName'),
    },
    'deployments': {
        'Up-to-date': _number('.status.updatedReplicas'),
        'Available': _number('.status.availableReplicas'),
    },
    'replicasets': _SETS,
    'replicationcontrollers': {**_SETS, 'Selector': lambda body: _labels(_first(body, '.spec.selector', {}))},
    'daemonsets': {
        'Desired': _number('.status.desiredNumberScheduled'),
        'Current': _number('.status.currentNumberScheduled'),
        'Ready': _number('.status.numberReady'),
        'Up-to-date': _number('.status.updatedNumberScheduled'),
        'Available': _number('.status.numberAvailable'),
        'Node Selector': lambda body: _labels(_first(body, '.spec.template.spec.nodeSelector', {})),
    },
    'jobs': {'Status': _job_status, 'Completions': _job_completions, 'Duration': _at('.status.completionTime', '')},
    'cronjobs': {
        'Schedule': _at('.spec.schedule', ''),
        'Timezone': _at('.spec.timeZone'),
        'Suspend': _switch('.spec.suspend'),
        'Active': _count('.status.active'),
        'Last Schedule': _at('.status.lastScheduleTime'),
        'Containers': _joined('.spec.jobTemplate.spec.template.spec.containers[*].name', ''),
        'Images': _joined('.spec.jobTemplate.spec.template.spec.containers[*].image', ''),
        'Selector': _selector('.spec.jobTemplate.spec.selector'),
    },
    'services': {
        'Type': _at('.spec.type', ''),
        'Cluster-IP': _at('.spec.clusterIP'),
        'External-IP': _service_address,
        'Port(s)': _service_ports,
        'Selector': lambda body: _labels(_first(body, '.spec.selector', {})),
    },
    'configmaps': {'Data': lambda body: len(body.get('data') or ()) + len(body.get('binaryData') or ())},
    'secrets': {'Type': _at('.type', ''), 'Data': _count('.data')},
    'nodes': {
        'Status': _node_status,
        'Roles': _node_roles,
        'Version': _at('.status.nodeInfo.kubeletVersion', ''),
        'Internal-IP': _node_address('InternalIP'),
        'External-IP': _node_address('ExternalIP'),
        'OS-Image': _at('.status.nodeInfo.osImage', UNKNOWN),
        'Kernel-Version': _at('.status.nodeInfo.kernelVersion', UNKNOWN),
        'Container-Runtime': _at('.status.nodeInfo.containerRuntimeVersion', UNKNOWN),
    },
    'leases': {'Holder': _at('.spec.holderIdentity', '')},
    'rolebindings': _BINDINGS,
    'clusterrolebindings': _BINDINGS,
    'ingresses': {
        'Class': _at('.spec.ingressClassName'),
        'Hosts': _hosts,
        'Address': _joined('.status.loadBalancer.ingress[*].ip', ''),
        'Ports': lambda body: '80, 443' if _first(body, '.spec.tls') else '80',
    },
    'ingressclasses': {'Controller': _at('.spec.controller', '')},
    'persistentvolumeclaims': {
        'Status': _phase,
        'Volume': _at('.spec.volumeName', ''),
        'Capacity': _bound(_at('.status.capacity.storage', '')),
        'Access Modes': _bound(_modes('.status.accessModes[*]')),
        'StorageClass': _at('.spec.storageClassName', ''),
        'VolumeAttributesClass': _CLASS,
        'VolumeMode': _at('.spec.volumeMode', UNSET),
    },
    'persistentvolumes': {
        'Capacity': _at('.spec.capacity.storage', ''),
        'Access Modes': _modes('.spec.accessModes[*]'),
        'Reclaim Policy': _at('.spec.persistentVolumeReclaimPolicy', ''),
        'Status': _phase,
        'Claim': _claim,
        'StorageClass': _at('.spec.storageClassName', ''),
        'VolumeAttributesClass': _CLASS,
        'Reason': _at('.status.reason', ''),
        'VolumeMode': _at('.spec.volumeMode', UNSET),
    },
    'networkpolicies': {'Pod-Selector': _selector('.spec.podSelector')},
    'poddisruptionbudgets': {
        'Min Available': _text('.spec.minAvailable', 'N/A'),
        'Max Unavailable': _text('.spec.maxUnavailable', 'N/A'),
        'Allowed Disruptions': _number('.status.disruptionsAllowed'),
    },
    'certificatesigningrequests': {
        'SignerName': _at('.spec.signerName'),
        'Requestor': _at('.spec.username'),
        'RequestedDuration': lambda body: (
            timestamps.duration(seconds) if (seconds := _first(body, '.spec.expirationSeconds', 0)) else NONE
        ),
        'Condition': _decision,
    },
    'horizontalpodautoscalers': {
        'Reference': _reference,
        'Targets': _metrics,
        'MinPods': _text('.spec.minReplicas', UNSET),
        'MaxPods': _number('.spec.maxReplicas'),
        'Replicas': _number('.status.currentReplicas'),
    },
    'priorityclasses': {
        'Value': _number('.value'),
        'Global-Default': _flag('.globalDefault'),
        'PreemptionPolicy': _at('.preemptionPolicy', ''),
    },
    'storageclasses': {
        'Provisioner': _at('.provisioner', ''),
        'ReclaimPolicy': _at('.reclaimPolicy', ''),
        'VolumeBindingMode': _at('.volumeBindingMode', ''),
        'AllowVolumeExpansion': _flag('.allowVolumeExpansion'),
    },
    'endpoints': {'Endpoints': _endpoint_addresses},
    'endpointslices': {
        'AddressType': _at('.addressType', ''),
        'Ports': _slice_ports,
        'Endpoints': lambda body: (
            _some([str(item) for item in find(body, '.endpoints[*].addresses[*]')]) if body.get('endpoints') else UNSET
        ),
    },
    'podtemplates': {
        'Containers': _joined('.template.spec.containers[*].name', ''),
        'Images': _joined('.template.spec.containers[*].image', ''),
        'Pod Labels': lambda body: _labels(_first(body, '.template.metadata.labels', {})),
    },
    'runtimeclasses': {'Handler': _at('.handler', '')},
    'resourcequotas': {'Request': lambda body: _labels(_first(body, '.spec.hard', {})), 'Limit': lambda body: ''},
    'events': {
        'Last Seen': _last_seen,
        'Type': _at('.type', ''),
        'Reason': _at('.reason', ''),
        'Object': _event_object,
        'Subobject': _at('.involvedObject.fieldPath', ''),
        'Source': _event_source,
        'First Seen': _first_seen,
        'Message': lambda body: str(body.get('message') or body.get('note') or '').strip(),
        'Count': lambda body: body.get('count') or body.get('deprecatedCount') or 1,
    },
}
"""All other columns, by kind."""
