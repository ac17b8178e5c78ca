"""
Discovery documents, in both forms that clients use: one document for each version, or one for all resources.

The documents are created once for each revision of the catalog.
"""

import base64
import hashlib
from collections.abc import Callable
from typing import Any

import orjson

from kopf._kits.testing.kinds.kinds import VERBS, Catalog, Kind
from kopf._kits.testing.wire import statuses

AGGREGATED = ('application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList',)

SUBRESOURCES: dict[str, tuple[tuple[str, ...], tuple[str, str, str] | None]] = {
    'status': (('get', 'patch', 'update'), None),
    'scale': (('get', 'patch', 'update'), ('autoscaling', 'v1', 'Scale')),
    'approval': (('get', 'patch', 'update'), None),
    'finalize': (('update',), None),
    'attach': (('create', 'get'), ('', 'v1', 'PodAttachOptions')),
    'exec': (('create', 'get'), ('', 'v1', 'PodExecOptions')),
    'log': (('get',), None),
    'portforward': (('create', 'get'), ('', 'v1', 'PodPortForwardOptions')),
    'token': (('create',), ('authentication.k8s.io', 'v1', 'TokenRequest')),
    'eviction': (('create',), ('policy', 'v1', 'Eviction')),
    'binding': (('create',), ('', 'v1', 'Binding')),
    'ephemeralcontainers': (('get', 'patch', 'update'), None),
    'resize': (('get', 'patch', 'update'), None),
    'proxy': (('create', 'delete', 'get', 'patch', 'update'), ('', 'v1', '{}ProxyOptions')),
}
"""The verbs of subresources, and their kinds if they differ from that of the resource."""

STORED = dict.fromkeys(
    ('customresourcedefinitions', 'mutatingadmissionpolicies', 'mutatingadmissionpolicybindings'), 'v1beta1'
)
"""The storage versions that a real server reports, if they are not the preferred ones."""


class Discovery:
    """The documents for the present state of the catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._revision = -1
        self._cache: dict[str, bytes] = {}
        self._unavailable: set[str] = set()
        self.frozen = False
        """Whether the documents do not change, as if the server had not noticed the latest changes yet."""

    def set_availability(self, group: str, available: bool) -> None:
        """List the group with its resources, or without them if it is unavailable."""
        (self._unavailable.discard if available else self._unavailable.add)(group)
        self._revision = -1

    def check_availability(self, group: str) -> None:
        """Refuse requests about the group if it is not available."""
        if group in self._unavailable:
            message = 'the server is currently unable to handle the request'
            raise statuses.Refusal(503, 'ServiceUnavailable', message)

    def root(self, path: str, accept: str, address: str) -> tuple[bytes, str]:
        """Return the body and the content type for ``/api`` and ``/apis``."""
        for media in accept.split(','):
            wanted = {part.strip() for part in media.split(';')}
            for known in AGGREGATED:
                if wanted >= set(known.split(';')):
                    return self._cached(f'{path} v2', lambda: self._aggregated(path)), known
        return self._cached(f'{path} {address}', lambda: self._legacy(path, address)), 'application/json'

    def group(self, group: str) -> bytes:
        """Return the document of one group; raise a 404 if it does not exist."""
        if group not in (groups := self._catalog.groups()):
            raise statuses.UnknownPath
        return orjson.dumps({'kind': 'APIGroup', 'apiVersion': 'v1', **self._group(group, groups[group])})

    def version(self, group: str, version: str) -> bytes:
        """Return the document of one group and version; raise a 404 if it does not exist."""
        kinds = self._catalog.resources(group, version)
        if not kinds:
            self._catalog.find(group, version, '')  # This raises the 404.
            raise statuses.UnknownPath
        self.check_availability(group)
        return self._cached(f'{group}/{version}', lambda: self._version(group, version, kinds))

    def paths(self) -> list[str]:
        """Return all paths below which something is served."""
        paths = ['/api', '/api/v1', '/apis', '/healthz', '/livez', '/openapi/v2', '/openapi/v3', '/readyz', '/version']
        for group, versions in self._catalog.groups().items():
            if group:
                paths += [f'/apis/{group}', *(f'/apis/{group}/{version}' for version in versions)]
        return sorted(paths)

    def _cached(self, key: str, make: Callable[[], Any]) -> bytes:
        if self._revision != self._catalog.revision and not self.frozen:
            self._cache.clear()
            self._revision = self._catalog.revision
        if key not in self._cache:
            self._cache[key] = orjson.dumps(make())
        return self._cache[key]

    def _legacy(self, path: str, address: str) -> dict[str, Any]:
        if path == '/api':
            return {
                'kind': 'APIVersions',
                'versions': ['v1'],
                'serverAddressByClientCIDRs': [{'clientCIDR': '0.0.0.0/0', 'serverAddress': address}],
            }
        groups = self._catalog.groups()
        return {
            'kind': 'APIGroupList',
            'apiVersion': 'v1',
            'groups': [self._group(group, versions) for group, versions in groups.items() if group],
        }

    def _group(self, group: str, versions: list[str]) -> dict[str, Any]:
        listed = [{'groupVersion': f'{group}/{version}', 'version': version} for version in versions]
        return {'name': group, 'versions': listed, 'preferredVersion': listed[0]}

    def _version(self, group: str, version: str, kinds: list[Kind]) -> dict[str, Any]:
        resources: list[dict[str, Any]] = []
        for kind in kinds:
            resource: dict[str, Any] = {
                'name': kind.plural,
                'singularName': kind.singular,
                'namespaced': kind.namespaced,
                'kind': kind.name,
                'verbs': _verbs(kind),
            }
            if kind.short_names:
                resource['shortNames'] = kind.short_names
            if kind.categories:
                resource['categories'] = kind.categories
            if kind.table is not None:
                stored = '' if kind.plural == 'events' else kind.group
                version_stored = STORED.get(kind.plural, kind.stored_version)
                digest = hashlib.sha256(f'{stored}/{version_stored}/{kind.name}'.encode()).digest()
                resource['storageVersionHash'] = base64.b64encode(digest[:8]).decode()
            resources.append(resource)
            for name in _subresources(kind):
                verbs, spoken = SUBRESOURCES[name]
                sub: dict[str, Any] = {
                    'name': f'{kind.plural}/{name}',
                    'singularName': '',
                    'namespaced': kind.namespaced,
                }
                if spoken is not None and spoken[0]:
                    sub.update(group=spoken[0], version=spoken[1])
                word = spoken[2].format(kind.name) if spoken is not None else kind.name
                resources.append({**sub, 'kind': word, 'verbs': verbs})
        own = {'apiVersion': 'v1', 'groupVersion': f'{group}/{version}'} if group else {'groupVersion': version}
        return {'kind': 'APIResourceList', **own, 'resources': resources}

    def _aggregated(self, path: str) -> dict[str, Any]:
        items = []
        for group, versions in self._catalog.groups().items():
            if bool(group) is not (path == '/apis'):
                continue
            items.append(
                {
                    'metadata': {'name': group} if group else {},
                    'versions': [self._aggregated_version(group, version) for version in versions],
                }
            )
        return {'kind': 'APIGroupDiscoveryList', 'apiVersion': 'apidiscovery.k8s.io/v2', 'metadata': {}, 'items': items}

    def _aggregated_version(self, group: str, version: str) -> dict[str, Any]:
        if group in self._unavailable:
            return {'version': version, 'freshness': 'Stale', 'resources': []}
        return {
            'version': version,
            'freshness': 'Current',
            'resources': [_aggregated(kind) for kind in self._catalog.resources(group, version)],
        }


def _aggregated(kind: Kind) -> dict[str, Any]:
    own = (kind.group, kind.version) if kind.custom else ('', '')
    resource: dict[str, Any] = {
        'resource': kind.plural,
        'responseKind': {'group': own[0], 'version': own[1], 'kind': kind.name},
        'scope': 'Namespaced' if kind.namespaced else 'Cluster',
        'singularResource': kind.singular,
        'verbs': _verbs(kind),
    }
    if kind.short_names:
        resource['shortNames'] = kind.short_names
    if kind.categories:
        resource['categories'] = kind.categories
    subresources = []
    for name in _subresources(kind):
        verbs, spoken = SUBRESOURCES[name]
        group, version, word = spoken or (*own, kind.name)
        subresources.append(
            {
                'subresource': name,
                'verbs': verbs,
                'responseKind': {'group': group, 'version': version, 'kind': word.format(kind.name)},
            }
        )
    if subresources:
        resource['subresources'] = subresources
    return resource


def _verbs(kind: Kind) -> tuple[str, ...]:
    if kind.custom and 'create' not in kind.verbs:  # discovery lacks the verb "patch" here, although patches work
        return ('delete', 'deletecollection', 'get', 'list', 'watch')
    if kind.custom:
        return ('delete', 'deletecollection', 'get', 'list', 'patch', 'create', 'update', 'watch')
    return tuple(verb for verb in VERBS if verb in kind.verbs)


def _subresources(kind: Kind) -> list[str]:
    """Return the subresources by name; those of CRDs begin with the status."""
    return sorted(kind.subresources, reverse=kind.custom)
