"""Empty objects of each kind, which are sent in bookmarks."""

import functools
from collections.abc import Mapping
from typing import Any

from kopf._kits.testing.kinds.kinds import Kind

_MORE: Mapping[str, Mapping[str, Any]] = {
    'deployments': {'spec': {'replicas': 0, 'selector': None}},
    'statefulsets': {
        'spec': {'replicas': 0, 'selector': None, 'serviceName': ''},
        'status': {'replicas': 0, 'availableReplicas': 0},
    },
    'daemonsets': {
        'spec': {'selector': None},
        'status': dict.fromkeys(
            ('currentNumberScheduled', 'numberMisscheduled', 'desiredNumberScheduled', 'numberReady'), 0
        ),
    },
    'replicasets': {'spec': {'replicas': 0, 'selector': None}, 'status': {'replicas': 0}},
    'replicationcontrollers': {'status': {'replicas': 0}},
    'events': dict.fromkeys(('firstTimestamp', 'lastTimestamp', 'eventTime')),
    'roles': {'rules': None},
    'clusterroles': {'rules': None},
    'poddisruptionbudgets': {
        'status': dict.fromkeys(('disruptionsAllowed', 'currentHealthy', 'desiredHealthy', 'expectedPods'), 0)
    },
    'horizontalpodautoscalers': {'spec': {'maxReplicas': 0}, 'status': {'desiredReplicas': 0, 'currentMetrics': None}},
    'priorityclasses': {'value': 0},
    'endpointslices': {'endpoints': None, 'ports': None},
}
"""The additional fields that a real server writes for these kinds even if they are empty."""


@functools.lru_cache(maxsize=100)
def of(kind: Kind) -> Mapping[str, Any]:
    """Return the fields that a real server writes for an empty object, except its metadata."""
    if kind.custom:
        return {}
    body = {key: value for key, value in kind.shape.new().items() if key != 'metadata'}
    for key, value in _MORE.get(kind.plural, {}).items():
        body[key] = {**(body.get(key) or {}), **value} if isinstance(value, Mapping) else value
    return kind.to_served(body) if kind.to_served is not None else body
