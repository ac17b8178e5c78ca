"""
Tables: the columns that ``kubectl get`` shows, of CRDs by their printer columns, of a dozen built-in kinds by hand.

Whatever is not described here has a name and an age, as on a real server.
"""
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from kopf._kits.testing import clocks
from kopf._kits.testing.kinds import Kind

Body = Mapping[str, Any]

NAME_TEXT = ('Name must be unique within a namespace. Is required when creating resources, although some resources may '
             'allow a client to request the generation of an appropriate name automatically. Name is primarily '
             'intended for creation idempotence and configuration definition. Cannot be updated. More info: '
             'https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names')


class Column(NamedTuple):
    """One column: its definition as it is sent, and how to get the cell of an object."""
    definition: dict[str, Any]
    cell: Callable[[Body], Any]


@functools.lru_cache(maxsize=1000)
def columns(kind: Kind) -> tuple[Column, ...]:
    """The columns of a kind, the name first."""
    first = _column('Name', 'string', lambda body: body['metadata'].get('name'), text=NAME_TEXT, format='name')
    if kind.custom:
        declared = kind.columns or [{'name': 'Age', 'type': 'date', 'jsonPath': '.metadata.creationTimestamp'}]
        return first, *(_declared(column) for column in declared)
    if kind.plural == 'events':
        return EVENTS
    return first, *BUILTINS.get(kind.plural, (AGE,))


def find(body: Any, path: str) -> Iterator[Any]:
    """What is at a JSON path of an object: ``.a.b``, ``['a']``, ``[0]``, ``[*]``, ``[?(@.type=="Ready")]``."""
    nodes = [body]
    for field, quoted, index, filter in _PATH.findall(path.strip('{}')):
        name = field or quoted
        nodes = [found for node in nodes for found in _step(node, name, index, filter)]
    return iter(nodes)


_PATH = re.compile(r"""\.([\w\-\\/]+)|\[['"](.*?)['"]\]|\[(-?\d+|\*)\]|\[\?\((.*?)\)\]""")
_FILTER = re.compile(r"""\s*@((?:\.[\w\-]+)+)\s*(==|!=)\s*['"]?(.*?)['"]?\s*""")


def _step(node: Any, name: str, index: str, filter: str) -> Iterator[Any]:
    if name:
        if isinstance(node, Mapping) and name.replace('\\', '') in node:
            yield node[name.replace('\\', '')]
    elif index == '*':
        yield from node.values() if isinstance(node, Mapping) else node if isinstance(node, list) else ()
    elif index:
        if isinstance(node, list) and -len(node) <= int(index) < len(node):
            yield node[int(index)]
    elif (match := _FILTER.fullmatch(filter)) is not None and isinstance(node, list):
        for item in node:
            values = [str(value) for value in find(item, match[1])]
            if (match[3] in values) is (match[2] == '=='):
                yield item


def _declared(column: Mapping[str, Any]) -> Column:
    path, type = column.get('jsonPath', ''), column.get('type', 'string')

    def cell(body: Body) -> Any:
        values = list(find(body, path))
        if not values or values[0] is None:
            return None
        return _printable(values, type)

    text = column.get('description') or f'Custom resource definition column (in JSONPath format): {path}'
    return _column(column['name'], type, cell, priority=column.get('priority', 0), text=text,
                   format=column.get('format', ''))


def _printable(values: list[Any], type: str) -> Any:
    value = values[0]
    match type:
        case 'integer':
            return int(value) if isinstance(value, (int, float)) else None
        case 'number':
            return float(value) if isinstance(value, (int, float)) else None
        case 'boolean':
            return value if isinstance(value, bool) else None
        case 'date':
            return clocks.age(str(value))
    if isinstance(value, (dict, list)):
        return orjson.dumps(value).decode()
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _column(
        name: str, type: str, cell: Callable[[Body], Any], *, priority: int = 0, text: str = '', format: str = '',
) -> Column:
    return Column({'name': name, 'type': type, 'format': format, 'description': text or name, 'priority': priority},
                  cell)


def _at(path: str, default: Any = '<none>') -> Callable[[Body], Any]:
    return lambda body: next(find(body, path), default)


def _count(key: str) -> Callable[[Body], Any]:
    return lambda body: str(len(body.get(key) or ()))


def _age(body: Body) -> str:
    return clocks.age(body['metadata'].get('creationTimestamp', ''))


def _of(path: str, total: str) -> Callable[[Body], str]:
    return lambda body: f'{next(find(body, path), 0)}/{next(find(body, total), 0)}'


def _joined(path: str) -> Callable[[Body], str]:
    return lambda body: ','.join(str(value) for value in find(body, path)) or '<none>'


def _labels(path: str) -> Callable[[Body], str]:
    def cell(body: Body) -> str:
        labels = next(find(body, path), None) or {}
        return ','.join(f'{key}={value}' for key, value in sorted(labels.items())) or '<none>'
    return cell


def _pod_status(body: Body) -> str:
    if 'deletionTimestamp' in body['metadata']:
        return 'Terminating'
    status = body.get('status') or {}
    return str(status.get('reason') or status.get('phase') or 'Unknown')


def _pod_ready(body: Body) -> str:
    ready = sum(bool(status.get('ready')) for status in find(body, '.status.containerStatuses[*]'))
    return f'{ready}/{sum(1 for _ in find(body, ".spec.containers[*]"))}'


def _pod_restarts(body: Body) -> str:
    return str(sum(status.get('restartCount', 0) for status in find(body, '.status.containerStatuses[*]')))


def _ports(body: Body) -> str:
    ports = [f'{port.get("port")}/{port.get("protocol", "TCP")}' for port in find(body, '.spec.ports[*]')]
    return ','.join(ports) or '<none>'


def _job_status(body: Body) -> str:
    for condition in find(body, '.status.conditions[*]'):
        if condition.get('status') == 'True' and condition.get('type') in ('Complete', 'Failed', 'Suspended'):
            return str(condition['type'])
    return 'Running'


def _last_seen(body: Body) -> str:
    for key in ('lastTimestamp', 'deprecatedLastTimestamp', 'eventTime'):
        if body.get(key):
            return clocks.age(body[key])
    return _age(body)


def _event_object(body: Body) -> str:
    involved = body.get('involvedObject') or body.get('regarding') or {}
    return f'{str(involved.get("kind", "")).lower()}/{involved.get("name", "")}'


def _event_source(body: Body) -> str:
    source = body.get('source') or body.get('deprecatedSource') or {}
    words = (source.get('component') or body.get('reportingComponent') or body.get('reportingController'),
             source.get('host') or body.get('reportingInstance'))
    return ', '.join(word for word in words if word)


def _s(name: str, cell: Callable[[Body], Any], priority: int = 0, type: str = 'string') -> Column:
    return _column(name, type, cell, priority=priority)


AGE = _s('Age', _age)
CREATED = _column('Created At', 'date', lambda body: body['metadata'].get('creationTimestamp'))
_TEMPLATE = (
    _s('Containers', _joined('.spec.template.spec.containers[*].name'), 1),
    _s('Images', _joined('.spec.template.spec.containers[*].image'), 1),
)
_SELECTOR = _s('Selector', _labels('.spec.selector.matchLabels'), 1)


def _i(name: str, path: str) -> Column:
    return _s(name, _at(path, 0), type='integer')


#: The columns of events, in which the name comes last.
EVENTS = (
    _s('Last Seen', _last_seen), _s('Type', _at('.type', '')), _s('Reason', _at('.reason', '')),
    _s('Object', _event_object), _s('Subobject', _at('.involvedObject.fieldPath', ''), 1),
    _s('Source', _event_source, 1),
    _s('Message', lambda body: str(body.get('message') or body.get('note') or '')),
    _s('First Seen', lambda body: clocks.age(body.get('firstTimestamp') or body.get('eventTime') or ''), 1),
    _s('Count', lambda body: body.get('count') or body.get('deprecatedCount') or 1, 1),
    _s('Name', _at('.metadata.name'), 1),
)

#: The columns of built-in kinds after the name.
BUILTINS: Mapping[str, tuple[Column, ...]] = {
    'namespaces': (_s('Status', _at('.status.phase')), AGE),
    'pods': (
        _s('Ready', _pod_ready), _s('Status', _pod_status), _s('Restarts', _pod_restarts), AGE,
        _s('IP', _at('.status.podIP'), 1), _s('Node', _at('.spec.nodeName'), 1),
        _s('Nominated Node', _at('.status.nominatedNodeName'), 1), _s('Readiness Gates', lambda body: '<none>', 1),
    ),
    'deployments': (
        _s('Ready', _of('.status.readyReplicas', '.spec.replicas')),
        _s('Up-to-date', lambda body: str(next(find(body, '.status.updatedReplicas'), 0))),
        _s('Available', lambda body: str(next(find(body, '.status.availableReplicas'), 0))), AGE, *_TEMPLATE, _SELECTOR,
    ),
    'replicasets': (
        _i('Desired', '.spec.replicas'), _i('Current', '.status.replicas'), _i('Ready', '.status.readyReplicas'), AGE,
        *_TEMPLATE, _SELECTOR,
    ),
    'statefulsets': (_s('Ready', _of('.status.readyReplicas', '.spec.replicas')), AGE, *_TEMPLATE),
    'daemonsets': (
        _i('Desired', '.status.desiredNumberScheduled'), _i('Current', '.status.currentNumberScheduled'),
        _i('Ready', '.status.numberReady'), _i('Up-to-date', '.status.updatedNumberScheduled'),
        _i('Available', '.status.numberAvailable'), _s('Node Selector', _labels('.spec.template.spec.nodeSelector')),
        AGE, *_TEMPLATE, _SELECTOR,
    ),
    'jobs': (
        _s('Status', _job_status), _s('Completions', _of('.status.succeeded', '.spec.completions')),
        _s('Duration', _at('.status.completionTime', '')), AGE, *_TEMPLATE, _SELECTOR,
    ),
    'cronjobs': (
        _s('Schedule', _at('.spec.schedule')), _s('Timezone', _at('.spec.timeZone')),
        _s('Suspend', _at('.spec.suspend', False), type='boolean'),
        _s('Active', lambda body: sum(1 for _ in find(body, '.status.active[*]')), type='integer'),
        _s('Last Schedule', _at('.status.lastScheduleTime')), AGE,
    ),
    'services': (
        _s('Type', _at('.spec.type')), _s('Cluster-IP', _at('.spec.clusterIP')),
        _s('External-IP', _joined('.status.loadBalancer.ingress[*].ip')), _s('Port(s)', _ports), AGE,
        _s('Selector', _labels('.spec.selector'), 1),
    ),
    'configmaps': (_s('Data', _count('data')), AGE),
    'secrets': (_s('Type', _at('.type')), _s('Data', _count('data')), AGE),
    'nodes': (
        _s('Status', _joined('.status.conditions[?(@.type=="Ready")].type')), _s('Roles', lambda body: '<none>'), AGE,
        _s('Version', _at('.status.nodeInfo.kubeletVersion', '')),
    ),
    'leases': (_s('Holder', _at('.spec.holderIdentity', '')), AGE),
    'customresourcedefinitions': (CREATED,),
    'roles': (CREATED,),
    'clusterroles': (CREATED,),
    'rolebindings': (_s('Role', lambda body: f'{_at(".roleRef.kind")(body)}/{_at(".roleRef.name")(body)}'), AGE),
    'clusterrolebindings': (_s('Role', lambda body: f'{_at(".roleRef.kind")(body)}/{_at(".roleRef.name")(body)}'), AGE),
    'ingresses': (
        _s('Class', _at('.spec.ingressClassName')), _s('Hosts', _joined('.spec.rules[*].host')),
        _s('Address', _joined('.status.loadBalancer.ingress[*].ip')),
        _s('Ports', lambda body: '80, 443' if next(find(body, '.spec.tls[*]'), None) else '80'), AGE,
    ),
    'persistentvolumeclaims': (
        _s('Status', _at('.status.phase')), _s('Volume', _at('.spec.volumeName', '')),
        _s('Capacity', _at('.status.capacity.storage', '')), _s('Access Modes', _joined('.status.accessModes[*]')),
        _s('StorageClass', _at('.spec.storageClassName', '')), AGE,
    ),
    'validatingwebhookconfigurations': (
        _s('Webhooks', lambda body: len(body.get('webhooks') or ()), type='integer'), AGE),
    'mutatingwebhookconfigurations': (
        _s('Webhooks', lambda body: len(body.get('webhooks') or ()), type='integer'), AGE),
    'resourcequotas': (_s('Request', _labels('.spec.hard')), _s('Limit', lambda body: ''), AGE),
    'networkpolicies': (_s('Pod-Selector', _labels('.spec.podSelector.matchLabels')), AGE),
}
