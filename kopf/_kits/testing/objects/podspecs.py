"""
The specifications of pods, alone and in templates: defaults and computed values.

If a client creates a pod with ``image: nginx``, the server stores it with twenty more fields. Programs compare the
stored fields with the desired ones, so all defaults are implemented here. Values of wrong types are ignored.
"""

from collections.abc import Iterator
from typing import Any

from kopf._kits.testing.wire import quantities

Fields = dict[str, Any]

PROBES = ('livenessProbe', 'readinessProbe', 'startupProbe')
NOT_READY, UNREACHABLE = 'node.kubernetes.io/not-ready', 'node.kubernetes.io/unreachable'
SOURCES = ('secret', 'configMap', 'downwardAPI', 'projected')
_MODE = 0o644


def complete_template(template: Any) -> None:
    """Fill in the template of pods."""
    if isinstance(template, dict):
        if not isinstance(template.get('metadata'), dict):
            template['metadata'] = {}
        complete(template.setdefault('spec', {}))


def complete(spec: Any) -> None:
    """Fill in the fields that pods and their templates have in common."""
    if not isinstance(spec, dict):
        return
    spec.setdefault('restartPolicy', 'Always')
    spec.setdefault('dnsPolicy', 'ClusterFirst')
    spec.setdefault('schedulerName', 'default-scheduler')
    spec.setdefault('terminationGracePeriodSeconds', 30)
    spec.setdefault('securityContext', {})
    if account := spec.get('serviceAccountName') or spec.get('serviceAccount'):
        spec['serviceAccountName'] = spec['serviceAccount'] = account
    for container in containers(spec):
        _complete_container(container)
    for volume in maps(spec.get('volumes')):
        _complete_volume(volume)
    quantities.canonize(spec.get('overhead'))


def complete_pod(spec: Any) -> None:
    """Fill in the fields that only pods have, not their templates."""
    if not isinstance(spec, dict):
        return
    spec.setdefault('priority', 0)
    spec.setdefault('preemptionPolicy', 'PreemptLowerPriority')
    tolerations = spec.setdefault('tolerations', [])
    for key in (NOT_READY, UNREACHABLE):
        if isinstance(tolerations, list) and not any(_tolerates(item, key) for item in maps(tolerations)):
            tolerations.append({'key': key, 'operator': 'Exists', 'effect': 'NoExecute', 'tolerationSeconds': 300})


def request_limits(spec: Any) -> None:
    """Set the requests of containers to their limits, if they are omitted."""
    for container in containers(spec if isinstance(spec, dict) else {}):
        resources = container.get('resources')
        if isinstance(resources, dict) and isinstance(limits := resources.get('limits'), dict):
            requests = resources.setdefault('requests', {})
            for key, value in limits.items():
                requests.setdefault(key, value)
            if not requests:
                del resources['requests']


def quality(spec: Any) -> str:
    """Return the QoS class of a pod."""
    found, guaranteed = False, True
    for container in containers(spec if isinstance(spec, dict) else {}):
        resources = container.get('resources')
        resources = resources if isinstance(resources, dict) else {}
        requests, limits = resources.get('requests') or {}, resources.get('limits') or {}
        found = found or any(key in part for part in (requests, limits) for key in ('cpu', 'memory'))
        guaranteed = guaranteed and all(
            key in limits and quantities.is_same(requests or limits, limits, key) for key in ('cpu', 'memory')
        )
    if not found:
        return 'BestEffort'
    return 'Guaranteed' if guaranteed else 'Burstable'


def containers(spec: Fields) -> Iterator[Fields]:
    """Yield all containers of a pod."""
    yield from maps(spec.get('initContainers'))
    yield from maps(spec.get('containers'))


def maps(value: Any) -> Iterator[Fields]:
    """Yield the items of a list that are objects."""
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else iter(())


def _tolerates(toleration: Fields, key: str) -> bool:
    return toleration.get('key', key) in (key, '') and toleration.get('effect', 'NoExecute') in ('NoExecute', '')


def _complete_container(container: Fields) -> None:
    container.setdefault('terminationMessagePath', '/dev/termination-log')
    container.setdefault('terminationMessagePolicy', 'File')
    container.setdefault('imagePullPolicy', 'Always' if _is_latest(container.get('image')) else 'IfNotPresent')
    resources = container.setdefault('resources', {})
    if isinstance(resources, dict):
        quantities.canonize(resources.get('limits'))
        quantities.canonize(resources.get('requests'))
    for port in maps(container.get('ports')):
        port.setdefault('protocol', 'TCP')
    for variable in maps(container.get('env')):
        _complete_reference(variable.get('valueFrom'))
    for key in PROBES:
        if isinstance(probe := container.get(key), dict):
            for field, value in (
                ('timeoutSeconds', 1),
                ('periodSeconds', 10),
                ('successThreshold', 1),
                ('failureThreshold', 3),
            ):
                if not probe.get(field):
                    probe[field] = value
            _complete_action(probe)
    if isinstance(lifecycle := container.get('lifecycle'), dict):
        for action in lifecycle.values():
            _complete_action(action)


def _complete_action(action: Any) -> None:
    if not isinstance(action, dict):
        return
    if isinstance(get := action.get('httpGet'), dict):
        get.setdefault('path', '/')
        get.setdefault('scheme', 'HTTP')
    if isinstance(call := action.get('grpc'), dict):
        call.setdefault('service', '')


def _complete_reference(source: Any) -> None:
    if isinstance(source, dict) and isinstance(reference := source.get('fieldRef'), dict):
        reference.setdefault('apiVersion', 'v1')
    if isinstance(source, dict) and isinstance(reference := source.get('resourceFieldRef'), dict):
        reference.setdefault('divisor', '0')


def _complete_volume(volume: Fields) -> None:
    if not any(isinstance(value, dict) for value in volume.values()):
        volume['emptyDir'] = {}
    for key in SOURCES:
        if isinstance(source := volume.get(key), dict):
            source.setdefault('defaultMode', _MODE)
            for part in [source, *maps(source.get('sources'))]:
                inner = part.get('downwardAPI', part) if part is not source else part
                for item in maps(inner.get('items') if isinstance(inner, dict) else None):
                    _complete_reference(item)
                if isinstance(token := part.get('serviceAccountToken'), dict):
                    token.setdefault('expirationSeconds', 3600)
    if isinstance(path := volume.get('hostPath'), dict):
        path.setdefault('type', '')
    if isinstance(empty := volume.get('emptyDir'), dict) and 'sizeLimit' in empty:
        quantities.canonize(empty)


def _is_latest(image: Any) -> bool:
    if not isinstance(image, str) or not image or '@' in image:
        return False
    _, _, tag = image.rpartition('/')[2].partition(':')
    return tag in ('', 'latest')
