"""
Conversion of HorizontalPodAutoscalers between ``v1`` and ``v2``. They are stored in ``v2``, which has more fields.

Fields that ``v1`` does not have are kept in an annotation, as on a real server.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from kopf._kits.testing.kinds.kinds import Body

METRICS = 'autoscaling.alpha.kubernetes.io/metrics'
OLD_TARGETS = {'averageUtilization': 'targetAverageUtilization', 'averageValue': 'targetAverageValue'}


def to_served(body: Body) -> Body:
    """Return an object of ``v2`` converted to ``v1``."""
    spec, status = dict(body.get('spec') or {}), dict(body.get('status') or {})
    others = []
    for metric in spec.pop('metrics', None) or ():
        percentage = _percentage(metric)
        if percentage is not None and 'targetCPUUtilizationPercentage' not in spec:
            spec['targetCPUUtilizationPercentage'] = percentage
        else:
            others.append(_old(metric))
    result = {**body, 'spec': spec}
    if 'status' in body:
        status.pop('currentMetrics', None)
        status.pop('conditions', None)
        result['status'] = {'currentReplicas': 0, **status}
    if others:
        meta = body['metadata']
        annotations = {**(meta.get('annotations') or {}), METRICS: orjson.dumps(others).decode()}
        result['metadata'] = {**meta, 'annotations': annotations}
    return result


def to_stored(body: Body) -> Body:
    """Return an object of ``v1`` converted to ``v2``."""
    spec, meta = dict(body.get('spec') or {}), dict(body['metadata'])
    spec.setdefault('minReplicas', 1)
    metrics: list[Mapping[str, Any]] = []
    if (percentage := spec.pop('targetCPUUtilizationPercentage', None)) is not None:
        metrics.append(
            {
                'type': 'Resource',
                'resource': {'name': 'cpu', 'target': {'type': 'Utilization', 'averageUtilization': percentage}},
            }
        )
    annotations = dict(meta.pop('annotations', None) or {})
    if text := annotations.pop(METRICS, ''):
        metrics += [_new(metric) for metric in orjson.loads(text)]
    if metrics:
        spec['metrics'] = metrics
    if annotations:
        meta['annotations'] = annotations
    result = {**body, 'metadata': meta, 'spec': spec}
    if 'status' in body:
        result['status'] = {
            key: value for key, value in (body['status'] or {}).items() if key != 'currentReplicas' or value
        } | {'currentMetrics': None}
    return result


def _percentage(metric: Mapping[str, Any]) -> int | None:
    resource = metric.get('resource') or {}
    if metric.get('type') != 'Resource' or resource.get('name') != 'cpu':
        return None
    percentage: int | None = (resource.get('target') or {}).get('averageUtilization')
    return percentage


def _old(metric: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a metric in the format of the annotation; only metrics of resources differ from ``v2``."""
    resource = metric.get('resource')
    if metric.get('type') != 'Resource' or not resource:
        return metric
    target = resource.get('target') or {}
    values = {OLD_TARGETS[key]: value for key, value in target.items() if key in OLD_TARGETS}
    return {'type': 'Resource', 'resource': {'name': resource.get('name'), **values}}


def _new(metric: Mapping[str, Any]) -> Mapping[str, Any]:
    resource = metric.get('resource')
    if metric.get('type') != 'Resource' or not resource or 'target' in resource:
        return metric
    names = {old: new for new, old in OLD_TARGETS.items()}
    target = {names[key]: value for key, value in resource.items() if key in names}
    kind = 'Utilization' if 'averageUtilization' in target else 'AverageValue'
    return {'type': 'Resource', 'resource': {'name': resource.get('name'), 'target': {'type': kind, **target}}}
