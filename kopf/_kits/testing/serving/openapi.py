"""
OpenAPI documents: the parts that kubectl needs to apply, validate and explain objects.

The schemas of built-in kinds are those of a real control plane, but without descriptions; those of custom kinds come
from the CRDs.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson

from kopf._kits.testing.kinds import recordings
from kopf._kits.testing.kinds.kinds import Catalog, Kind
from kopf._kits.testing.wire import statuses

META_SCHEMA = {
    'type': 'object',
    'description': 'Standard object\'s metadata.',
    'x-kubernetes-preserve-unknown-fields': True,
}
STRINGS = {
    'apiVersion': {'type': 'string', 'description': 'The versioned schema of this representation of an object.'},
    'kind': {'type': 'string', 'description': 'The REST resource that this object represents.'},
}


class OpenApi:
    """The documents for the present state of the catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def index(self) -> bytes:
        """Return the list of documents of OpenAPI v3."""
        paths = {}
        for group, versions in self._catalog.groups().items():
            for version in versions:
                place = f'apis/{group}/{version}' if group else f'api/{version}'
                digest = hashlib.sha256(self.version(group, version)).hexdigest().upper()
                paths[place] = {'serverRelativeURL': f'/openapi/v3/{place}?hash={digest}'}
        return orjson.dumps({'paths': paths})

    def version(self, group: str, version: str) -> bytes:
        """Return the v3 document of one group and version; raise a 404 if there is no such version."""
        kinds = self._catalog.resources(group, version)
        if not kinds:
            raise statuses.UnknownPath
        paths: dict[str, Any] = {}
        schemas: dict[str, Any] = {}
        for kind in kinds:
            name = _schema_name(kind)
            if kind.custom:
                schemas[name] = _schema(kind)
            else:
                recordings.newest().reachable(name, schemas)
            paths[_path(kind)] = {
                'get': _operation(kind, 'get'),
                'put': _operation(kind, 'put', name),
                'patch': _operation(kind, 'patch', name),
                'delete': _operation(kind, 'delete'),
            }
            paths[_path(kind).removesuffix('/{name}')] = {'post': _operation(kind, 'post', name)}
        return orjson.dumps(
            {
                'openapi': '3.0.0',
                'info': {'title': 'kopf sandbox', 'version': 'v1'},
                'paths': paths,
                'components': {'schemas': schemas},
            }
        )

    def legacy(self) -> bytes:
        """Return the document of OpenAPI v2."""
        definitions = {_schema_name(kind): _schema(kind) for kind in self._catalog if kind.custom}
        for name, schema in recordings.newest().schemas.items():
            definitions[name] = _relocated(schema)
        paths = {
            _path(kind): {'get': _operation(kind, 'get'), 'patch': _operation(kind, 'patch')} for kind in self._catalog
        }
        return orjson.dumps(
            {
                'swagger': '2.0',
                'info': {'title': 'kopf sandbox', 'version': 'v1'},
                'paths': paths,
                'definitions': definitions,
            }
        )


def _relocated(schema: Any) -> Any:
    """Return the schema with the references of OpenAPI v2."""
    if isinstance(schema, Mapping):
        return {
            key: f'#/definitions/{value.removeprefix(recordings.PREFIX)}'
            if key == '$ref' and isinstance(value, str)
            else _relocated(value)
            for key, value in schema.items()
        }
    return [_relocated(item) for item in schema] if isinstance(schema, list) else schema


def _path(kind: Kind) -> str:
    root = f'/apis/{kind.group}/{kind.version}' if kind.group else f'/api/{kind.version}'
    scope = 'namespaces/{namespace}/' if kind.namespaced else ''
    return f'{root}/{scope}{kind.plural}/{{name}}'


def _schema_name(kind: Kind) -> str:
    if kind.custom:
        return '.'.join([*reversed(kind.group.split('.')), kind.version, kind.name])
    name = recordings.newest().name_of(kind.group, kind.version, kind.name)
    assert name is not None, kind
    return name


def _schema(kind: Kind) -> dict[str, Any]:
    own: dict[str, Any] = dict(kind.schema or {})
    own['properties'] = {**STRINGS, 'metadata': META_SCHEMA, **(own.get('properties') or {})}
    own['x-kubernetes-group-version-kind'] = [_gvk(kind)]
    return own


def _operation(kind: Kind, verb: str, schema: str = '') -> dict[str, Any]:
    operation: dict[str, Any] = {
        'x-kubernetes-action': {'get': 'get', 'put': 'put', 'patch': 'patch', 'delete': 'delete', 'post': 'post'}[verb],
        'x-kubernetes-group-version-kind': _gvk(kind),
        'responses': {'200': {'description': 'OK'}},
    }
    if schema:
        names = ('dryRun', 'fieldManager', 'fieldValidation', *(('force',) if verb == 'patch' else ()))
        operation['parameters'] = [
            {'name': name, 'in': 'query', 'schema': {'type': 'string', 'uniqueItems': True}} for name in names
        ]
        reference = {'schema': {'$ref': f'#/components/schemas/{schema}'}}
        operation['requestBody'] = {'content': {'application/json': reference}}
    return operation


def _gvk(kind: Kind) -> dict[str, str]:
    return {'group': kind.group, 'version': kind.version, 'kind': kind.name}
