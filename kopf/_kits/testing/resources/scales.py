"""
Scales: the view of an object that only says how many replicas there are and should be, and of what.

Whatever is written to it is written through to the object, as a patch of the one field.
"""
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from kopf._kits.testing.objects import outcomes, rest
from kopf._kits.testing.objects.options import Options
from kopf._kits.testing.objects.rest import Objects
from kopf._kits.testing.patching.patches import json_type
from kopf._kits.testing.resources import jsonpaths
from kopf._kits.testing.resources.kinds import Body, Kind
from kopf._kits.testing.serving import statuses

API_VERSION, KIND = 'autoscaling/v1', 'Scale'
KEPT = ('name', 'namespace', 'uid', 'resourceVersion', 'creationTimestamp')
KNOWN: Mapping[str, tuple[str, ...]] = {
    '': ('apiVersion', 'kind', 'metadata', 'spec', 'status'), 'spec': ('replicas',), 'status': ('replicas', 'selector'),
}


class Scales:
    """The scales of all objects that have one."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def get(self, kind: Kind, namespace: str, name: str) -> Body:
        """The scale of an object; 500 if an object of a custom kind does not say how many there should be."""
        body = kind.body(self._objects.get(kind, namespace, name))
        if kind.custom and next(jsonpaths.find(body, kind.scale['spec']), None) is None:
            why = f'the spec replicas field "{kind.scale["spec"]}" does not exist'
            raise statuses.Refusal(500, 'InternalError', f'Internal error occurred: {why}',
                                   {'causes': [{'message': why}]})
        return _view(kind, body)

    async def replace(self, kind: Kind, namespace: str, name: str, scale: Any, options: Options) -> Body:
        """Store another scale: as it was sent."""
        self._objects.get(kind, namespace, name)
        given = scale if isinstance(scale, dict) else {}
        if (given.get('kind', KIND), given.get('apiVersion', API_VERSION)) != (KIND, API_VERSION):
            raise statuses.bad_request('no kind is registered for the type v1.Scale in scheme '
                                       '"pkg/runtime/scheme.go:111"')
        meta = given.get('metadata') or {}
        outcomes.check_name(meta.get('name') or '', name)
        return await self._store(kind, namespace, name, given, options)

    async def patch(
            self, kind: Kind, namespace: str, name: str, change: Callable[[Body], Any], options: Options,
    ) -> Body:
        """Change the scale by a function of it."""
        scale = _view(kind, kind.body(self._objects.get(kind, namespace, name)))
        changed = change(scale)
        if not isinstance(changed, dict):
            raise statuses.rejected()
        return await self._store(kind, namespace, name, changed, options)

    async def _store(self, kind: Kind, namespace: str, name: str, scale: Body, options: Options) -> Body:
        replicas = _replicas(scale)
        _check_fields(scale, options)
        if replicas < 0:
            raise _negative(kind, name, replicas)
        patch: Body = {}
        node, path = patch, kind.scale['spec'].strip('.').split('.')
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = replicas
        if version := (scale.get('metadata') or {}).get('resourceVersion'):
            patch.setdefault('metadata', {})['resourceVersion'] = version
        raw = await self._objects.patch(kind, namespace, name, patch, rest.MERGE_PATCH, options)
        return _view(kind, orjson.loads(raw))


def _replicas(scale: Body) -> int:
    """How many are wanted; 422 in the words of Go if it is not a number."""
    spec = scale.get('spec') or {}
    value, place, type = (spec, 'Scale.spec', 'v1.ScaleSpec') if not isinstance(spec, dict) else (
        spec.get('replicas') or 0, 'ScaleSpec.spec.replicas', 'int32')
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = orjson.dumps(orjson.dumps(scale).decode()).decode()
    raise statuses.invalid('', '', '', [statuses.value_invalid(
        'patch', text, f'json: cannot unmarshal {json_type(value)} into Go struct field {place} of type {type}')])


def _check_fields(scale: Body, options: Options) -> None:
    """Warn of fields that scales do not have, or refuse them, as the client wants it."""
    unknown = [f'{place}.{key}'.lstrip('.') for place, known in KNOWN.items()
               for key in (scale.get(place) or {} if place else scale) if key not in known]
    if unknown and options.field_validation == 'Strict':
        raise statuses.bad_request('no kind is registered for the type v1.Scale in scheme "pkg/runtime/scheme.go:111"')
    if options.field_validation != 'Ignore':
        options.warnings += [f'unknown field "{path}"' for path in unknown]


def _negative(kind: Kind, name: str, replicas: int) -> statuses.Refusal:
    if kind.custom:
        return statuses.invalid(kind.group, kind.name, name, [statuses.value_invalid(
            kind.scale['spec'], str(replicas), 'should be a non-negative integer')])
    return statuses.invalid('autoscaling', KIND, name, [statuses.value_invalid(
        'spec.replicas', str(replicas), 'must be greater than or equal to 0')])


def _view(kind: Kind, body: Body) -> Body:
    meta = body['metadata']
    status: Body = {'replicas': next(jsonpaths.find(body, kind.scale['status']), None) or 0}
    if path := kind.scale.get('selector'):
        selector = next(jsonpaths.find(body, path), '')
        if selector := selector_text(selector) if isinstance(selector, Mapping) else selector:
            status['selector'] = selector
    replicas = next(jsonpaths.find(body, kind.scale['spec']), None)
    return {
        'apiVersion': API_VERSION, 'kind': KIND, 'metadata': {key: meta[key] for key in KEPT if key in meta},
        'spec': {'replicas': replicas} if replicas else {}, 'status': status,
    }


def selector_text(selector: Mapping[str, Any]) -> str:
    """A selector of labels as text, in the order of its keys."""
    structured = 'matchLabels' in selector or 'matchExpressions' in selector
    labels = (selector.get('matchLabels') or {}) if structured else selector
    terms = [(key, f'{key}={value}') for key, value in labels.items()]
    for item in (selector.get('matchExpressions') or ()) if structured else ():
        key, listed = item['key'], ','.join(sorted(item.get('values') or ()))
        text = {'In': f'{key} in ({listed})', 'NotIn': f'{key} notin ({listed})', 'Exists': key}
        terms.append((key, text.get(item['operator'], f'!{key}')))
    return ','.join(text for _, text in sorted(terms, key=lambda term: term[0]))
