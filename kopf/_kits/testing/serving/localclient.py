"""
The verbs of the API for tests, without the network.

All methods run in the server's event loop; `kopf.testing.Sandbox` calls them from other threads.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from kopf._kits.testing.access.write_options import Options
from kopf._kits.testing.kinds.kinds import Bodies, Body, Kind
from kopf._kits.testing.objects import objects, rest
from kopf._kits.testing.serving import snapshots
from kopf._kits.testing.serving.api_dispatch import Api
from kopf._kits.testing.serving.snapshots import Snapshot
from kopf._kits.testing.serving.waits import Predicate, Wait
from kopf._kits.testing.storing.selectors import Selector
from kopf._kits.testing.wire import manifests, statuses

ResourceName = str
"""A name of a resource; see `Sandbox.get`."""


_METADATA = ('annotations', 'finalizers', 'labels', 'ownerReferences')
"""The keywords that are fields of the metadata."""


class RefusedManifest(manifests.ManifestError, statuses.Refusal):
    """Raised when the API refuses an object of a source; callers can catch it as either of its base classes."""

    def __init__(self, place: str, refusal: statuses.Refusal) -> None:
        statuses.Refusal.__init__(
            self, refusal.code, refusal.reason, f'{place}: {refusal.message}', refusal.details, headers=refusal.headers
        )


# Tracebacks show this name, which users import.
RefusedManifest.__module__ = statuses.Refusal.__module__
RefusedManifest.__name__ = RefusedManifest.__qualname__ = statuses.Refusal.__name__


def _add_remedy(refusal: statuses.Refusal, body: Body) -> statuses.Refusal:
    """Return the refusal with what to do, if it is about a ServiceMonitor of ``kopf manifests`` without its CRD."""
    if body['kind'] != 'ServiceMonitor' or not refusal.message.startswith('no matches for kind'):
        return refusal
    text = (
        "Apply the CRDs of the Prometheus operator first, or make the manifests with --metrics, not with --monitoring."
    )
    return statuses.Refusal(refusal.code, refusal.reason, f'{refusal.message}. {text}', refusal.details)


class LocalClient:
    """The verbs on objects as dicts."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def create(
        self,
        what: Mapping[str, Any] | ResourceName,
        name: str | None,
        namespace: str | None,
        fields: Mapping[str, Any],
    ) -> Body:
        """Create one object, given as a whole, or by its kind, name and fields."""
        if isinstance(what, str):
            named = self._api.catalog.named(what)
            body: Mapping[str, Any] = compose(f'{named.group}/{named.version}'.lstrip('/'), named.name, name, fields)
        elif name is None and not fields:
            body = what
        else:
            raise TypeError('create() takes either a whole object, or a kind, a name and the fields of the object')
        kind = self._kind_of(body)
        given = orjson.loads(orjson.dumps(body))
        place = self._namespace(kind, namespace or (given.get('metadata') or {}).get('namespace'))
        decoded = objects.decode(given, kind, b'')
        return _loads(await self._api.objects.create(kind, place, decoded, Options()))

    async def get(self, resource: ResourceName, name: str, namespace: str | None) -> Body:
        """Return one object."""
        kind = self._api.catalog.named(resource)
        return kind.body(await self._api.objects.read(kind, self._namespace(kind, namespace), name))

    async def list(
        self,
        resource: ResourceName,
        namespace: str | None,
        labels: str,
        fields: str,
    ) -> Bodies:
        """Return all objects, of one namespace or of all."""
        kind = self._api.catalog.named(resource)
        selector = Selector(labels, fields)
        chosen = [record for record in kind.store.records(namespace or '') if selector.matches(record)]
        await kind.ready(*chosen)
        return [kind.body(record) for record in chosen]

    async def patch(
        self,
        resource: ResourceName,
        name: str,
        patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        namespace: str | None,
        subresource: str,
    ) -> Body:
        """Change one object."""
        kind = self._api.catalog.named(resource)
        content_type = rest.MERGE_PATCH if isinstance(patch, Mapping) else rest.JSON_PATCH
        decoded = orjson.loads(orjson.dumps(patch))
        place = self._namespace(kind, namespace)
        return _loads(await self._api.objects.patch(kind, place, name, decoded, content_type, Options(), subresource))

    async def replace(self, body: Mapping[str, Any], namespace: str | None, subresource: str) -> Body:
        """Replace one object."""
        kind = self._kind_of(body)
        given = orjson.loads(orjson.dumps(body))
        meta = given.get('metadata') or {}
        place = self._namespace(kind, namespace or meta.get('namespace'))
        decoded = objects.decode(given, kind, b'')
        raw, _ = await self._api.objects.replace(kind, place, meta.get('name', ''), decoded, Options(), subresource)
        return _loads(raw)

    async def delete(self, resource: ResourceName, name: str, namespace: str | None, propagation: str) -> None:
        """Delete one object."""
        kind = self._api.catalog.named(resource)
        await self._api.objects.delete(kind, self._namespace(kind, namespace), name, Options(propagation=propagation))

    async def apply(self, source: manifests.Source) -> Bodies:
        """Create or update the objects of a source."""
        applied = []
        for place, body in manifests.read(source):
            try:
                applied.append(await self._apply_one(body))
            except statuses.Refusal as refusal:
                name = (body.get('metadata') or {}).get('name', '')
                raise RefusedManifest(f'{place}: {body["kind"]} {name!r}', _add_remedy(refusal, body)) from None
        return applied

    async def snapshot(self) -> Snapshot:
        """Take a snapshot."""
        return snapshots.take(self._api.storage)

    async def restore(self, snapshot: Snapshot) -> None:
        """Restore a snapshot."""
        snapshots.restore(self._api.storage, snapshot)

    async def wait_for(
        self,
        resource: ResourceName,
        name: str,
        predicate: Predicate | None,
        namespace: str | None,
        timeout: float,
    ) -> Body:
        """Wait for a state of one object; raise `WaitTimeout` with the last state otherwise."""
        return await Wait(self._api, resource, name, namespace, predicate).until_there(timeout)

    async def wait_gone(self, resource: ResourceName, name: str, namespace: str | None, timeout: float) -> None:
        """Wait until the object does not exist."""
        await Wait(self._api, resource, name, namespace, None).until_gone(timeout)

    async def _apply_one(self, body: Body) -> Body:
        try:
            return await self.create(body, None, None, {})
        except statuses.Refusal as refusal:
            if refusal.reason != 'AlreadyExists':
                raise
        kind = self._kind_of(body)
        meta = body['metadata']
        place = self._namespace(kind, meta.get('namespace'))
        raw = await self._api.objects.patch(kind, place, meta['name'], body, rest.MERGE_PATCH, Options())
        return _loads(raw)

    def _kind_of(self, body: Mapping[str, Any]) -> Kind:
        return self._api.catalog.of_object(str(body.get('apiVersion', '')), str(body.get('kind', '')))

    def _namespace(self, kind: Kind, namespace: str | None) -> str:
        return (namespace or 'default') if kind.namespaced else ''


def _loads(raw: bytes) -> Body:
    body: Body = orjson.loads(raw)
    return body


def compose(api_version: str, kind: str, name: str | None, fields: Mapping[str, Any]) -> Body:
    """Return an object with these fields, some of which are those of its metadata."""
    own = {key: value for key, value in fields.items() if key not in _METADATA}
    metadata = {**(own.pop('metadata', None) or {}), **{key: fields[key] for key in _METADATA if key in fields}}
    if name is not None:
        metadata['name'] = name
    return {'apiVersion': api_version, 'kind': kind, 'metadata': metadata, **own}
