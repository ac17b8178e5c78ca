"""
The most frequently violated rules of built-in kinds: required fields, exclusive fields, maximums.

A real server has many more rules; this module has those whose messages were recorded. Objects that violate other rules
are stored. The caller has already checked types and unknown fields.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kopf._kits.testing.objects import podparts, podrules, service_addresses
from kopf._kits.testing.objects.podspecs import Fields, maps
from kopf._kits.testing.wire import names, quantities
from kopf._kits.testing.wire.statuses import (
    Cause,
    text,
    value_forbidden,
    value_invalid,
    value_required,
    value_unsupported,
)

Body = Mapping[str, Any]
_LARGEST = 1024 * 1024


def problems(body: Body, plural: str) -> Iterator[Cause]:
    """Yield all known errors of a built-in object, except for its metadata."""
    if (check := _CHECKS.get(plural)) is not None:
        yield from check(body, body.get('spec') or {})


def _pod(body: Body, spec: Fields) -> Iterator[Cause]:
    yield from podrules.problems(spec, 'spec')
    for number, volume in enumerate(maps(spec.get('volumes')) if not spec.get('serviceAccountName') else ()):
        for index, source in enumerate(maps((volume.get('projected') or {}).get('sources'))):
            if 'serviceAccountToken' in source:
                yield value_forbidden(
                    f'spec.volumes[{number}].projected.sources[{index}].serviceAccountToken',
                    'must not be specified when serviceAccountName is not set',
                )


def _workload(body: Body, spec: Fields) -> Iterator[Cause]:
    template = spec.get('template') or {}
    yield from _selecting(spec, (template.get('metadata') or {}).get('labels'), body['kind'].lower())
    if (spec.get('replicas') or 0) < 0:
        yield value_invalid('spec.replicas', text(spec['replicas']), 'must be greater than or equal to 0')
    claims = list(maps(spec.get('volumeClaimTemplates')))
    yield from podrules.template_problems(template.get('spec') or {}, 'spec.template.spec', claims)
    for index, claim in enumerate(claims):
        yield from _claim_problems(claim.get('spec') or {}, f'spec.volumeClaimTemplates[{index}].spec')
    strategy = spec.get('strategy') or {}
    if strategy.get('type') == 'Recreate' and 'rollingUpdate' in strategy:
        yield value_forbidden('spec.strategy.rollingUpdate', "may not be specified when strategy `type` is 'Recreate'")


def _selecting(spec: Fields, labels: Mapping[str, str] | None, word: str) -> Iterator[Cause]:
    selector = spec.get('selector')
    if selector is None and word != 'daemonset':
        yield value_required('spec.selector')
    if selector is not None and not selector.get('matchLabels') and not selector.get('matchExpressions'):
        called = 'deployment' if word == 'replicaset' else word
        yield value_invalid('spec.selector', '{}', f'empty selector is invalid for {called}')
    elif selector is None or not _matches(selector, labels or {}):
        yield value_invalid(
            'spec.template.metadata.labels', text(labels), '`selector` does not match template `labels`'
        )


def _matches(selector: Fields, labels: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in (selector.get('matchLabels') or {}).items())


def _controller(body: Body, spec: Fields) -> Iterator[Cause]:
    if not spec.get('selector'):
        yield value_required('spec.selector')
    if not spec.get('template'):
        yield value_required('spec.template')
    else:
        yield from podrules.template_problems(spec['template'].get('spec') or {}, 'spec.template.spec')


def _job(body: Body, spec: Fields) -> Iterator[Cause]:
    yield from _job_spec(spec, 'spec')


def _job_spec(spec: Fields, place: str) -> Iterator[Cause]:
    template = (spec.get('template') or {}).get('spec') or {}
    yield from podrules.template_problems(template, f'{place}.template.spec')
    if (policy := template.get('restartPolicy', 'Always')) == 'Always':
        yield value_required(f'{place}.template.spec.restartPolicy', 'valid values: "OnFailure", "Never"')
    elif policy not in ('OnFailure', 'Never'):
        yield value_unsupported(f'{place}.template.spec.restartPolicy', text(policy), ['"OnFailure"', '"Never"'])


def _cronjob(body: Body, spec: Fields) -> Iterator[Cause]:
    fields = (schedule := spec.get('schedule') or '').split()
    if not schedule:
        yield value_required('spec.schedule')
    elif not schedule.startswith('@') and len(fields) != 5:
        yield value_invalid(
            'spec.schedule', text(schedule), f'expected exactly 5 fields, found {len(fields)}: [{" ".join(fields)}]'
        )
    yield from _job_spec((spec.get('jobTemplate') or {}).get('spec') or {}, 'spec.jobTemplate.spec')


def _podtemplate(body: Body, _: Fields) -> Iterator[Cause]:
    yield from podrules.template_problems((body.get('template') or {}).get('spec') or {}, 'template.spec')


def _configmap(body: Body, _: Fields) -> Iterator[Cause]:
    data, binary = body.get('data') or {}, body.get('binaryData') or {}
    for field, values in (('data', data), ('binaryData', binary)):
        for key in values:
            for problem in _key_problems(key):
                yield value_invalid(f'{field}[{key}]', text(key), problem)
            if field == 'data' and key in binary:
                yield value_invalid(f'data[{key}]', text(key), 'duplicate of key present in binaryData')
    if sum(len(str(value).encode()) for value in (*data.values(), *binary.values())) > _LARGEST:
        yield Cause('[]', 'FieldValueTooLong', f'Too long: may not be more than {_LARGEST} bytes')


def _secret(body: Body, _: Fields) -> Iterator[Cause]:
    data = body.get('data') or {}
    for key in data:
        for problem in _key_problems(key):
            yield value_invalid(f'data[{key}]', text(key), problem)
    for key in _SECRETS.get(body.get('type', ''), ()):
        if key not in data:
            yield value_required(f'data[{key}]')
    if body.get('type') == 'kubernetes.io/basic-auth' and not {'username', 'password'} & {*data}:
        yield value_required('data[username]')
        yield value_required('data[password]')
    if sum(len(str(value)) * 3 // 4 for value in data.values()) > _LARGEST:
        yield Cause('data', 'FieldValueTooLong', f'Too long: may not be more than {_LARGEST} bytes')


_SECRETS = {
    'kubernetes.io/dockerconfigjson': ('.dockerconfigjson',),
    'kubernetes.io/dockercfg': ('.dockercfg',),
    'kubernetes.io/ssh-auth': ('ssh-privatekey',),
    'kubernetes.io/tls': ('tls.crt', 'tls.key'),
}


def _key_problems(key: str) -> list[str]:
    problems = [] if len(key) <= 253 else ['must be no more than 253 characters']
    if not key or not all(character.isascii() and (character.isalnum() or character in '-_.') for character in key):
        problems.append(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. "
            "'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
        )
    if key in ('.', '..'):
        problems.append(f"must not be '{key}'")
    elif key.startswith('..'):
        problems.append("must not start with '..'")
    return problems


def _service(body: Body, spec: Fields) -> Iterator[Cause]:
    ports = list(maps(spec.get('ports')))
    if not ports and spec.get('clusterIP') != 'None' and spec.get('type') != 'ExternalName':
        yield value_required('spec.ports')
    if spec.get('type') in ('NodePort', 'LoadBalancer') and spec.get('clusterIP') == 'None':
        yield value_invalid('spec.clusterIPs[0]', '"None"', f"may not be set to 'None' for {spec['type']} services")
    if spec.get('type') == 'ExternalName' and not spec.get('externalName'):
        yield value_invalid('spec.externalName', '""', names.subdomain_problems('')[0])
    for index, port in enumerate(ports):
        place = f'spec.ports[{index}]'
        if len(ports) > 1 and not port.get('name'):
            yield value_required(f'{place}.name')
        for problem in names.label_problems(port['name']) if port.get('name') else ():
            yield value_invalid(f'{place}.name', text(port['name']), problem)
        yield from podrules.one_of(port, 'protocol', place, podrules.PROTOCOLS)
        for key in ('port', 'targetPort'):
            if not isinstance(number := port.get(key) or 0, str) and not 1 <= number <= 65535:
                yield value_invalid(f'{place}.{key}', str(number), podparts.PORTS)
    yield from podrules.one_of(spec, 'type', 'spec', ('ClusterIP', 'ExternalName', 'LoadBalancer', 'NodePort'))
    yield from service_addresses.problems_of_status(body)


def _claim(body: Body, spec: Fields) -> Iterator[Cause]:
    yield from _claim_problems(spec, 'spec')


def _claim_problems(spec: Fields, place: str) -> Iterator[Cause]:
    if not spec.get('accessModes'):
        yield value_required(f'{place}.accessModes', 'at least 1 access mode is required')
    yield from _storage(spec, place)


def _storage(spec: Fields, place: str) -> Iterator[Cause]:
    requests = (spec.get('resources') or {}).get('requests') or {}
    if 'storage' not in requests:
        yield value_required(f'{place}.resources[storage]')
    elif quantities.amount(requests['storage']) <= 0:
        yield value_invalid(f'{place}.resources[storage]', text(requests['storage']), 'must be greater than zero')


def _endpoints(body: Body, _: Fields) -> Iterator[Cause]:
    for number, subset in enumerate(maps(body.get('subsets'))):
        if not subset.get('addresses') and not subset.get('notReadyAddresses'):
            yield value_required(f'subsets[{number}]', 'must specify `addresses` or `notReadyAddresses`')
        for index, port in enumerate(maps(subset.get('ports'))):
            if not 1 <= (value := port.get('port') or 0) <= 65535:
                yield value_invalid(
                    f'subsets[{number}].ports[{index}].port', str(value), 'must be between 1 and 65535, inclusive'
                )


def _volume(body: Body, spec: Fields) -> Iterator[Cause]:
    if not spec.get('accessModes'):
        yield value_required('spec.accessModes')
    if not spec.get('capacity'):
        yield value_required('spec.capacity')


def _ingress_class(_: Body, spec: Fields) -> Iterator[Cause]:
    if not spec.get('controller'):
        yield value_required('spec.controller')


def _ingress(body: Body, spec: Fields) -> Iterator[Cause]:
    if not spec.get('rules') and spec.get('defaultBackend') is None:
        yield value_invalid(
            'spec', text(body.get('spec') or None), 'either `defaultBackend` or `rules` must be specified'
        )
    if spec.get('defaultBackend') is not None:
        yield from _backend(spec['defaultBackend'], 'spec.defaultBackend')
    for number, rule in enumerate(maps(spec.get('rules'))):
        if rule.get('http') is not None and not rule['http'].get('paths'):
            yield value_required(f'spec.rules[{number}].http.paths')
        for index, path in enumerate(maps((rule.get('http') or {}).get('paths'))):
            place = f'spec.rules[{number}].http.paths[{index}]'
            if not (kind := path.get('pathType')):
                yield value_required(f'{place}.pathType', 'pathType must be specified')
            elif kind in ('Exact', 'Prefix') and not str(path.get('path') or '').startswith('/'):
                yield value_invalid(f'{place}.path', text(path.get('path') or ''), 'must be an absolute path')
            yield from _backend(path.get('backend') or {}, f'{place}.backend')


def _backend(backend: Fields, place: str) -> Iterator[Cause]:
    if (service := backend.get('service')) is None:
        if backend.get('resource') is None:
            yield value_invalid(place, '""', 'resource or service backend is required')
        return
    if not (name := service.get('name')):
        yield value_required(f'{place}.service.name')
    for problem in names.label_problems(name) if name else ():
        yield value_invalid(f'{place}.service.name', text(name), problem)
    port = service.get('port') or {}
    if port.get('name') and port.get('number'):
        yield value_invalid(place, '""', 'cannot set both port name & port number')
    elif not port.get('name') and not port.get('number'):
        yield value_required(place, 'port name or number is required')
    elif port.get('number') and not 1 <= port['number'] <= 65535:
        yield value_invalid(f'{place}.service.port.number', str(port['number']), podparts.PORTS)


def _autoscaler(body: Body, spec: Fields) -> Iterator[Cause]:
    target, most, least = spec.get('scaleTargetRef') or {}, spec.get('maxReplicas') or 0, spec.get('minReplicas')
    if least is not None and least < 1:
        yield value_invalid('spec.minReplicas', str(least), 'must be greater than or equal to 1')
    if most < 1:
        yield value_required('spec.maxReplicas', 'must be set and greater than 0')
    if least is not None and most < least:
        yield value_invalid('spec.maxReplicas', str(most), 'must be greater than or equal to `minReplicas`')
    if '/' not in (version := target.get('apiVersion') or ''):
        yield value_invalid('spec.scaleTargetRef.apiVersion', text(version), 'apiVersion must specify API group')
    if not target.get('kind'):
        yield value_required('spec.scaleTargetRef.kind')
    if not target.get('name'):
        yield value_required('spec.scaleTargetRef.name')
    for index, metric in enumerate(maps(spec.get('metrics'))):
        if metric.get('type') == 'Resource' and not (metric.get('resource') or {}).get('name'):
            yield value_required(f'spec.metrics[{index}].resource.name', 'must specify a resource name')


def _storage_class(body: Body, _: Fields) -> Iterator[Cause]:
    if not body.get('provisioner'):
        yield value_required('provisioner')


def _lease(body: Body, spec: Fields) -> Iterator[Cause]:
    if (seconds := spec.get('leaseDurationSeconds')) is not None and seconds <= 0:
        yield value_invalid('spec.leaseDurationSeconds', str(seconds), 'must be greater than 0')
    if (number := spec.get('leaseTransitions')) is not None and number < 0:
        yield value_invalid('spec.leaseTransitions', str(number), 'must be greater than or equal to 0')


def _policy(body: Body, spec: Fields) -> Iterator[Cause]:
    for direction, key in (('ingress', 'from'), ('egress', 'to')):
        for number, rule in enumerate(maps(spec.get(direction))):
            for index, peer in enumerate(maps(rule.get(key))):
                place = f'spec.{direction}[{number}].{key}[{index}]'
                if not peer:
                    yield value_required(place, 'must specify a peer')
                elif isinstance(block := peer.get('ipBlock'), dict) and not block.get('cidr'):
                    yield value_required(f'{place}.ipBlock.cidr')


def _slice(body: Body, _: Fields) -> Iterator[Cause]:
    if not (type := body.get('addressType')):
        yield value_required('addressType')
    elif type not in ('FQDN', 'IPv4', 'IPv6'):
        yield value_unsupported('addressType', text(type), ['"FQDN"', '"IPv4"', '"IPv6"'])


def _budget(body: Body, spec: Fields) -> Iterator[Cause]:
    least, most = spec.get('minAvailable'), spec.get('maxUnavailable')
    for key, amount in (('minAvailable', least), ('maxUnavailable', most)):
        if isinstance(amount, str) and not re.fullmatch('[0-9]+%', amount):
            yield value_invalid(
                f'spec.{key}',
                text(amount),
                "a valid percent string must be a numeric string followed "
                "by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')",
            )
        elif isinstance(amount, int) and amount < 0:
            yield value_invalid(f'spec.{key}', str(amount), 'must be greater than or equal to 0')
    if least is not None and most is not None:
        quoted = {
            'MinAvailable': least,
            'Selector': spec.get('selector'),
            'MaxUnavailable': most,
            'UnhealthyPodEvictionPolicy': spec.get('unhealthyPodEvictionPolicy'),
        }
        yield value_invalid('spec', text(quoted), 'minAvailable and maxUnavailable cannot be both set')


def _status(body: Body, spec: Fields) -> Iterator[Cause]:
    phase = (body.get('status') or {}).get('phase')
    if 'deletionTimestamp' not in body['metadata'] and phase != 'Active':
        yield value_invalid('status.Phase', text(phase), "may only be 'Active' if `deletionTimestamp` is empty")


_CHECKS: Mapping[str, Callable[[Body, Fields], Iterator[Cause]]] = {
    'pods': _pod,
    'podtemplates': _podtemplate,
    'deployments': _workload,
    'statefulsets': _workload,
    'daemonsets': _workload,
    'replicasets': _workload,
    'replicationcontrollers': _controller,
    'jobs': _job,
    'cronjobs': _cronjob,
    'configmaps': _configmap,
    'secrets': _secret,
    'services': _service,
    'persistentvolumeclaims': _claim,
    'persistentvolumes': _volume,
    'ingresses': _ingress,
    'horizontalpodautoscalers': _autoscaler,
    'storageclasses': _storage_class,
    'leases': _lease,
    'networkpolicies': _policy,
    'endpointslices': _slice,
    'endpoints': _endpoints,
    'ingressclasses': _ingress_class,
    'namespaces': _status,
    'poddisruptionbudgets': _budget,
}
