"""
Services: their defaults, the allocation of addresses and ports, and the release of these if the type changes.

Addresses and ports are computed from the names of services, so that they are the same in each run.
"""

import ipaddress
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from kopf._kits.testing.objects.podspecs import Fields, maps
from kopf._kits.testing.wire import names
from kopf._kits.testing.wire.statuses import Cause, text, value_forbidden, value_invalid

Body = dict[str, Any]

_EXTERNAL, _NODES, _BALANCED = 'ExternalName', ('NodePort', 'LoadBalancer'), ('LoadBalancer',)
_INSIDE = ('ClusterIP', *_NODES)
NO_ADDRESS = 'must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)'
_OF_TYPES = (
    (_INSIDE, ('clusterIP', 'clusterIPs', 'ipFamilies', 'ipFamilyPolicy', 'internalTrafficPolicy')),
    (_NODES, ('externalTrafficPolicy',)),
    (_BALANCED, ('allocateLoadBalancerNodePorts', 'loadBalancerClass', 'healthCheckNodePort')),
)
"""The fields that belong to services of some types only."""


def complete(body: Body) -> None:
    """Fill in the defaults."""
    spec = _spec(body)
    type = spec.setdefault('type', 'ClusterIP')
    if spec.setdefault('sessionAffinity', 'None') == 'ClientIP':
        config = spec.setdefault('sessionAffinityConfig', {'clientIP': {'timeoutSeconds': 10800}})
        if isinstance(config, dict) and isinstance(config.setdefault('clientIP', {}), dict):
            config['clientIP'].setdefault('timeoutSeconds', 10800)
    elif spec['sessionAffinity'] == 'None':
        spec.pop('sessionAffinityConfig', None)
    for port in maps(spec.get('ports')):
        port.setdefault('protocol', 'TCP')
        if not port.get('targetPort'):
            port['targetPort'] = port.get('port')
    for point in maps(((body.get('status') or {}).get('loadBalancer') or {}).get('ingress')):
        if point.get('ip'):
            point.setdefault('ipMode', 'VIP')
    if type == _EXTERNAL:
        return
    spec.setdefault('internalTrafficPolicy', 'Cluster')
    if type in _NODES:
        spec.setdefault('externalTrafficPolicy', 'Cluster')
    if type in _BALANCED:
        spec.setdefault('allocateLoadBalancerNodePorts', True)


def warnings(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield the warnings about fields without an effect."""
    spec = body.get('spec') or {}
    if spec.get('clusterIP') == 'None' and spec.get('sessionAffinity') == 'ClientIP':
        yield 'spec.SessionAffinity is ignored for headless services'


def problems_of_status(body: Mapping[str, Any]) -> Iterator[Cause]:
    """Yield the errors of the addresses of a load balancer."""
    listed = ((body.get('status') or {}).get('loadBalancer') or {}).get('ingress') or ()
    place = 'status.loadBalancer.ingress'
    if listed and (body.get('spec') or {}).get('type') != 'LoadBalancer':
        yield value_forbidden(place, "may only be used when `spec.type` is 'LoadBalancer'")
        return
    for index, point in enumerate(maps(listed)):
        if (address := point.get('ip')) and not _is_address(address):
            yield value_invalid(f'{place}[{index}].ip', text(address), NO_ADDRESS)
        if name := point.get('hostname'):
            for problem in names.subdomain_problems(name):
                yield value_invalid(f'{place}[{index}].hostname', text(name), problem)
            if _is_address(name):
                yield value_invalid(f'{place}[{index}].hostname', text(name), 'must be a DNS name, not an IP address')


def _is_address(value: str) -> bool:
    try:
        return bool(ipaddress.ip_address(value))
    except ValueError:
        return False


def allocate(body: Body, old: Body | None = None) -> None:
    """Allocate the addresses and ports that the client has not set; allocated ones stay."""
    spec = _spec(body)
    if old is not None:
        before = old.get('spec') or {}
        _let_go(spec, before)
        _keep(spec, before)
    if spec.get('type') == _EXTERNAL:
        return
    headless, meta = spec.get('clusterIP') == 'None', body['metadata']
    number = zlib.crc32(f'{meta.get("namespace")}/{meta.get("name")}'.encode())
    if not spec.get('clusterIP'):
        spec['clusterIP'] = f'10.0.{number % 256}.{number // 256 % 254 + 1}'
    spec.setdefault('clusterIPs', [spec['clusterIP']])
    dual = headless and not spec.get('selector')
    spec.setdefault('ipFamilies', ['IPv4', 'IPv6'] if dual else ['IPv4'])
    spec.setdefault('ipFamilyPolicy', 'RequireDualStack' if dual else 'SingleStack')
    if spec['type'] in _NODES:
        for index, port in enumerate(maps(spec.get('ports'))):
            port.setdefault('nodePort', 30000 + (number + index) % 2768)


def _let_go(spec: Fields, before: Mapping[str, Any]) -> None:
    """Remove the fields that only the former type needs, unless the client has changed them."""
    for types, keys in _OF_TYPES:
        if before.get('type') in types and spec.get('type') not in types:
            for key in keys:
                if spec.get(key) == before.get(key):
                    spec.pop(key, None)
    ports, former = ([port.get('nodePort') for port in maps(each.get('ports'))] for each in (spec, before))
    if before.get('type') in _NODES and spec.get('type') not in _NODES and ports == former:
        for port in maps(spec.get('ports')):
            port.pop('nodePort', None)


def _keep(spec: Fields, before: Mapping[str, Any]) -> None:
    """Keep the addresses and ports that the service already has."""
    if spec.get('type') in _INSIDE and before.get('type') in _INSIDE:
        if not spec.get('clusterIP') and before.get('clusterIP'):
            spec['clusterIP'] = before['clusterIP']
        same = spec.get('clusterIP') == before.get('clusterIP')
        if not same and spec.get('clusterIPs') == before.get('clusterIPs'):
            spec['clusterIPs'] = [spec['clusterIP']]
        elif same and not spec.get('clusterIPs') and before.get('clusterIPs'):
            spec['clusterIPs'] = before['clusterIPs']
        for key in ('ipFamilies', 'ipFamilyPolicy'):
            if key in before and not spec.get(key):
                spec[key] = before[key]
    if spec.get('type') in _NODES and before.get('type') in _NODES:
        chosen = {_key(port): port['nodePort'] for port in maps(before.get('ports')) if port.get('nodePort')}
        for port in maps(spec.get('ports')):
            if not port.get('nodePort') and _key(port) in chosen:
                port['nodePort'] = chosen[_key(port)]


def _key(port: Fields) -> tuple[Any, Any]:
    return port.get('protocol'), port.get('port')


def _spec(body: Body) -> Fields:
    spec = body.get('spec')
    if not isinstance(spec, dict):
        spec = body['spec'] = {}
    return spec
