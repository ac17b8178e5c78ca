"""
What tests do to the cluster behind the server's back: the same verbs as over HTTP, without the network.

Everything here runs in the server's event loop; `kopf.testing.Sandbox` brings it there from elsewhere.
"""
import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from kopf._kits.testing.access.options import Options
from kopf._kits.testing.kinds.kinds import Bodies, Body, Kind
from kopf._kits.testing.objects import objects, rest
from kopf._kits.testing.serving import snapshots
from kopf._kits.testing.serving.api import Api
from kopf._kits.testing.serving.snapshots import Snapshot
from kopf._kits.testing.storing.selectors import Selector
from kopf._kits.testing.wire import manifests, statuses

#: ``plural``, ``singular``, ``Kind`` or a short name, with ``.group`` or ``.version.group`` after it where it helps.
ResourceName = str
Predicate = Callable[[Body], object]


class RefusedManifest(manifests.ManifestError, statuses.Refusal):
    """An object of a source that the API refuses: an error in what was given, and an answer of the API as well."""

    def __init__(self, place: str, refusal: statuses.Refusal) -> None:
        statuses.Refusal.__init__(
            self, refusal.code, refusal.reason, f'{place}: {refusal.message}', refusal.details,
            headers=refusal.headers)


class Door:
    """The verbs on objects as they are in Python: dicts."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def create(self, body: Mapping[str, Any], namespace: str | None) -> Body:
        """Create one object."""
        kind = self._kind_of(body)
        given = orjson.loads(orjson.dumps(body))
        place = self._namespace(kind, namespace or (given.get('metadata') or {}).get('namespace'))
        decoded = objects.decode(given, kind, b'')
        return _loads(await self._api.objects.create(kind, place, decoded, Options()))

    async def get(self, resource: ResourceName, name: str, namespace: str | None) -> Body:
        """Read one object."""
        kind = self._api.catalog.named(resource)
        return kind.body(await self._api.objects.read(kind, self._namespace(kind, namespace), name))

    async def list(
            self, resource: ResourceName, namespace: str | None, labels: str, fields: str,
    ) -> Bodies:
        """Read all objects, of one namespace or of all."""
        kind = self._api.catalog.named(resource)
        selector = Selector(labels, fields)
        chosen = [record for record in kind.store.records(namespace or '') if selector.matches(record)]
        await kind.ready(*chosen)
        return [kind.body(record) for record in chosen]

    async def patch(
            self, resource: ResourceName, name: str, patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
            namespace: str | None, subresource: str,
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
        """Create the objects of a source, or bring those that exist in line."""
        applied = []
        for place, body in manifests.read(source):
            try:
                applied.append(await self._apply_one(body))
            except statuses.Refusal as refusal:
                name = (body.get('metadata') or {}).get('name', '')
                raise RefusedManifest(f'{place}: {body["kind"]} {name!r}', refusal) from refusal
        return applied

    async def snapshot(self) -> Snapshot:
        """Take a snapshot."""
        return snapshots.take(self._api.storage)

    async def restore(self, snapshot: Snapshot) -> None:
        """Bring everything back as it was."""
        snapshots.restore(self._api.storage, snapshot)

    async def wait_for(
            self, resource: ResourceName, name: str, predicate: Predicate | None, namespace: str | None, gone: bool,
            timeout: float,
    ) -> Body | None:
        """Wait for a state of one object; TimeoutError with the last state otherwise."""
        last: Body | None = None
        try:
            async with asyncio.timeout(timeout):
                while True:
                    kind = await self._served(resource)
                    table = kind.store
                    record = table.get(self._namespace(kind, namespace), name)
                    await kind.ready(*[record] if record is not None else [])
                    last = kind.body(record) if record is not None else None
                    if gone and last is None:
                        return None
                    if not gone and last is not None and (predicate is None or predicate(last)):
                        return last
                    waiter = table.waiter()
                    try:
                        await waiter
                    finally:
                        table.discard(waiter)
        except TimeoutError:
            wanted = 'gone' if gone else 'as expected' if predicate is not None else 'there'
            state = orjson.dumps(last, option=orjson.OPT_INDENT_2).decode() if last is not None else 'absent'
            raise TimeoutError(f'{resource} {name!r} is not {wanted} after {timeout} s; it is: {state}') from None

    async def _served(self, resource: ResourceName) -> Kind:
        while True:
            try:
                return self._api.catalog.named(resource)
            except statuses.Refusal:
                await asyncio.sleep(0.02)

    async def _apply_one(self, body: Body) -> Body:
        try:
            return await self.create(body, None)
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
