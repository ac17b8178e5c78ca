"""
The ``scale`` subresource: the current and the desired number of replicas of an object, and their selector.

A write to the scale becomes a write to the object: it changes the number of replicas and the manager of this field.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from kopf._kits.testing.access.write_options import Options
from kopf._kits.testing.kinds import jsonpaths, tables
from kopf._kits.testing.kinds.kinds import Body, Kind
from kopf._kits.testing.merging import scaling, server_side_apply
from kopf._kits.testing.merging.managers import Record
from kopf._kits.testing.objects import patch_results
from kopf._kits.testing.objects.rest import Objects
from kopf._kits.testing.wire import gotext, statuses
from kopf._kits.testing.wire.json_patches import json_type

API_VERSION, KIND = 'autoscaling/v1', 'Scale'
KEPT = ('name', 'namespace', 'uid', 'resourceVersion', 'creationTimestamp')
KNOWN: Mapping[str, tuple[str, ...]] = {
    '': ('apiVersion', 'kind', 'metadata', 'spec', 'status'),
    'spec': ('replicas',),
    'status': ('replicas', 'selector'),
}
SCHEME = 'pkg/runtime/scheme.go:111'


SCALE = Kind(
    group='autoscaling',
    version='v1',
    plural='scales',
    singular='scale',
    name=KIND,
    namespaced=True,
    custom=True,
    columns=(
        {
            'name': 'Desired',
            'type': 'integer',
            'description': 'Number of desired replicas',
            'jsonPath': '.spec.replicas',
        },
        {
            'name': 'Available',
            'type': 'integer',
            'description': 'Number of actual replicas',
            'jsonPath': '.status.replicas',
        },
        {'name': 'Age', 'type': 'date', 'description': tables.AGE_TEXT, 'jsonPath': '.metadata.creationTimestamp'},
    ),
)
"""The kind of scales, which defines their tables."""


BUILTIN = dataclasses.replace(
    SCALE,
    custom=False,
    columns=tuple(
        {'name': name, 'type': type, 'format': '', 'description': text, 'priority': 0}
        for name, type, text in (
            ('Name', 'string', tables.NAME_TEXT),
            ('Desired', 'integer', 'replicas is the desired number of instances for the scaled object.'),
            ('Available', 'integer', 'replicas is the actual number of observed instances of the scaled object.'),
            ('Age', 'string', tables.AGE_TEXT),
        )
    ),
)
"""The kind of scales for built-in kinds, whose fields have other descriptions."""
Rescale = Callable[[Body, list[Record]], tuple[Body, list[Record] | None]]
"""
A function that gets a scale with the records of its managed fields, and returns the changed scale and records.

If it returns None instead of the records, they are computed as after an update.
"""


def kind_of(parent: Kind) -> Kind:
    """Return the kind of the scales of these objects."""
    return SCALE if parent.custom else BUILTIN


class Scales:
    """The scales of all objects that have one."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def get(self, kind: Kind, namespace: str, name: str) -> Body:
        """Return the scale of an object; raise a 500 if a custom object does not have the wanted number of replicas."""
        body = kind.body(self._objects.get(kind, namespace, name))
        if kind.custom and next(jsonpaths.find(body, kind.scale['spec']), None) is None:
            why = f'the spec replicas field "{kind.scale["spec"]}" does not exist'
            raise statuses.Refusal(
                500, 'InternalError', f'Internal error occurred: {why}', {'causes': [{'message': why}]}
            )
        return _view(kind, body)

    async def replace(self, kind: Kind, namespace: str, name: str, scale: Any, options: Options) -> Body:
        """Store another scale, as it was sent."""
        given = scale if isinstance(scale, dict) else {}
        _check_decoded(given, kind)
        meta = given.get('metadata') or {}
        patch_results.check_name(meta.get('name') or '', name)
        self._objects.get(kind, namespace, name)  # raises the 404 of a missing object before its fields are checked
        return await self._store(kind, namespace, name, given, options)

    async def patch(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        change: Callable[[Body], Any],
        options: Options,
    ) -> Body:
        """Store the scale that the function ``change`` returns for the present one."""
        scale = _view(kind, kind.body(self._objects.get(kind, namespace, name)))
        changed = change(scale)
        if not isinstance(changed, dict):
            raise statuses.rejected()
        if complaint := _complaint(changed):
            text = orjson.dumps(orjson.dumps(changed).decode()).decode()
            raise statuses.invalid('', '', '', [statuses.value_invalid('patch', text, complaint)])
        return await self._store(kind, namespace, name, changed, options)

    async def apply(self, kind: Kind, namespace: str, name: str, config: Body, options: Options) -> Body:
        """Apply a decoded configuration of the scale; raise a 409 if other managers own the number."""
        self._objects.get(kind, namespace, name)
        server_side_apply.check(config, BUILTIN, namespace, name, present=True)

        def change(scale: Body, owners: list[Record]) -> tuple[Body, list[Record]]:
            return scaling.applied(scale, owners, config, options.manager, options.force)

        return await self._rewrite(kind, namespace, name, change, options)

    async def _store(self, kind: Kind, namespace: str, name: str, scale: Body, options: Options) -> Body:
        _check_fields(scale, options)
        if not kind.custom and (replicas := _replicas(scale)) < 0:
            raise statuses.invalid(
                'autoscaling',
                KIND,
                name,
                [statuses.value_invalid('spec.replicas', str(replicas), 'must be greater than or equal to 0')],
            )
        return await self._rewrite(kind, namespace, name, lambda _, owners: (scale, None), options)

    async def _rewrite(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        change: Rescale,
        options: Options,
    ) -> Body:
        """Translate the write of a scale to a write of the object."""

        def rewrite(body: Body) -> Body:
            ownership = scaling.Ownership(body, kind.api_version, path := kind.scale['spec'])
            before = _view(kind, body)
            scale, owners = change(before, ownership.of_scale())
            replicas = _replicas(scale)
            if owners is None:
                owners = ownership.updated(options.manager, _replicas(before), replicas)
            meta = {**body['metadata'], 'managedFields': ownership.of_object(owners)}
            # If the client has sent a resource version, the write is refused when the object has a newer one.
            if version := (scale.get('metadata') or {}).get('resourceVersion'):
                meta['resourceVersion'] = version
            return {**_with_number(body, path.strip('.').split('.'), replicas), 'metadata': meta}

        return _view(
            kind,
            orjson.loads(await self._objects.rewrite(kind, namespace, name, rewrite, options, scaling.SUBRESOURCE)),
        )


def _with_number(body: Body, path: list[str], number: int) -> Body:
    first, *rest = path
    if not rest:
        return {**body, first: number}
    inner = body.get(first)
    return {**body, first: _with_number(inner if isinstance(inner, dict) else {}, rest, number)}


def _replicas(scale: Body) -> int:
    """Return the wanted number of replicas of a valid scale."""
    return (scale.get('spec') or {}).get('replicas') or 0


def _check_decoded(scale: Body, kind: Kind) -> None:
    """Refuse (400) a body that is not a scale."""
    name, version = scale.get('kind') or KIND, scale.get('apiVersion') or API_VERSION
    complaint = _complaint(scale)
    if (name, version) != (KIND, API_VERSION):
        complaint = f'no kind "{name}" is registered for version "{version}" in scheme "{SCHEME}"'
    if complaint and kind.custom:
        raise statuses.bad_request(f'no kind is registered for the type v1.Scale in scheme "{SCHEME}"')
    if complaint:
        raise statuses.bad_request(
            f'{name} in version "{version.rpartition("/")[2]}" cannot be handled as a {KIND}: {complaint}'
        )


def _complaint(scale: Body) -> str:
    """Return Go's error about a scale that cannot be decoded; empty if it can."""
    spec = scale.get('spec') or {}
    value, place, type = (
        (spec, 'Scale.spec', 'v1.ScaleSpec')
        if not isinstance(spec, dict)
        else (spec.get('replicas') or 0, 'ScaleSpec.spec.replicas', 'int32')
    )
    if isinstance(value, int) and not isinstance(value, bool) and -(2**31) <= value < 2**31:
        return ''
    what = json_type(value)
    if what == 'number':
        what = f'number {gotext.plain(value)}'
    return f'json: cannot unmarshal {what} into Go struct field {place} of type {type}'


def _check_fields(scale: Body, options: Options) -> None:
    """Warn about fields that scales do not have, or refuse them, as ``fieldValidation`` requests."""
    unknown = [
        f'{place}.{key}'.lstrip('.')
        for place, known in KNOWN.items()
        for key in (scale.get(place) or {} if place else scale)
        if key not in known
    ]
    if unknown and options.field_validation == 'Strict':
        raise statuses.bad_request('no kind is registered for the type v1.Scale in scheme "pkg/runtime/scheme.go:111"')
    if options.field_validation != 'Ignore':
        options.warnings += [f'unknown field "{path}"' for path in unknown]


def _view(kind: Kind, body: Body) -> Body:
    meta = body['metadata']
    status: Body = {'replicas': next(jsonpaths.find(body, kind.scale['status']), None) or 0}
    if path := kind.scale.get('selector'):
        selector = next(jsonpaths.find(body, path), '')
        if selector := selector_text(selector) if isinstance(selector, Mapping) else selector:
            status['selector'] = selector
    replicas = next(jsonpaths.find(body, kind.scale['spec']), None)
    return {
        'apiVersion': API_VERSION,
        'kind': KIND,
        'metadata': {key: meta[key] for key in KEPT if key in meta},
        'spec': {'replicas': replicas} if replicas else {},
        'status': status,
    }


def selector_text(selector: Mapping[str, Any]) -> str:
    """Return a label selector as a string, in the order of its keys."""
    structured = 'matchLabels' in selector or 'matchExpressions' in selector
    labels = (selector.get('matchLabels') or {}) if structured else selector
    terms = [(key, f'{key}={value}') for key, value in labels.items()]
    for item in (selector.get('matchExpressions') or ()) if structured else ():
        key, listed = item['key'], ','.join(sorted(item.get('values') or ()))
        text = {'In': f'{key} in ({listed})', 'NotIn': f'{key} notin ({listed})', 'Exists': key}
        terms.append((key, text.get(item['operator'], f'!{key}')))
    return ','.join(text for _, text in sorted(terms, key=lambda term: term[0]))
