"""Updates of built-in objects: the fields that the server keeps, counts or sets."""

from collections.abc import Callable, Mapping
from typing import Any

from kopf._kits.testing.objects import podspecs
from kopf._kits.testing.wire import timestamps

Body = dict[str, Any]

GENERATION = 'deprecated.daemonset.template.generation'


def apply(body: Body, old: Body, plural: str, subresource: str = '') -> None:
    """Complete the new version from the old one."""
    if (complete := _COMPLETE.get((plural, subresource))) is not None:
        complete(body, old)


def _pod(body: Body, old: Body) -> None:
    spec, before = _mapping(body, 'spec'), old.get('spec') or {}
    for key in ('priority', 'preemptionPolicy'):
        if key in before:
            spec.setdefault(key, before[key])
    podspecs.complete_pod(spec)


def _pod_status(body: Body, old: Body) -> None:
    status, before = _mapping(body, 'status'), old.get('status') or {}
    status.pop('qosClass', None)
    for key in ('qosClass', 'observedGeneration'):
        if key in before and not status.get(key):
            status[key] = before[key]


def _volume_status(body: Body, old: Body) -> None:
    status, before = _mapping(body, 'status'), old.get('status') or {}
    moment = before.get('lastPhaseTransitionTime')
    if status.get('phase') != before.get('phase') and status.get('lastPhaseTransitionTime') in (None, moment):
        status['lastPhaseTransitionTime'] = timestamps.now()
    elif moment is not None:
        status.setdefault('lastPhaseTransitionTime', moment)


def _autoscaler_status(body: Body, old: Body) -> None:
    status = _mapping(body, 'status')
    status.setdefault('currentMetrics', None)
    status.setdefault('desiredReplicas', 0)


def _daemonset(body: Body, old: Body) -> None:
    number = (old['metadata'].get('annotations') or {}).get(GENERATION, '1')
    templates = [(each.get('spec') or {}).get('template') for each in (body, old)]
    if number.isdecimal() and templates[0] != templates[1]:
        number = str(int(number) + 1)
    _mapping(body['metadata'], 'annotations')[GENERATION] = number


def _mapping(body: Body, key: str) -> Body:
    value = body.get(key)
    if not isinstance(value, dict):
        value = body[key] = {}
    return value


_COMPLETE: Mapping[tuple[str, str], Callable[[Body, Body], None]] = {
    ('pods', ''): _pod,
    ('pods', 'status'): _pod_status,
    ('persistentvolumes', 'status'): _volume_status,
    ('daemonsets', ''): _daemonset,
    ('horizontalpodautoscalers', 'status'): _autoscaler_status,
}
