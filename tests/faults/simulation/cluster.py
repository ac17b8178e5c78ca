"""The cluster as others see it: its objects, namespaces and kinds, and the edits that they make."""

import asyncio
import contextlib

from kopf._kits.testing.serving.localclient import LocalClient
from kopf.testing import Refusal
from tests.faults.simulation.ledger import look_at

CRD = 'kopfexamples.kopf.dev'
PLURAL = 'kopfexamples'
CATEGORY = 'simulated'
FOREIGN_FINALIZER = 'other/finalizer'
UNFINALIZED = {'metadata': {'finalizers': None}}


def make_crd(plural, kind, *, versions=('v1',), scope='Namespaced', status=False, pruning=False, categories=()):
    schema = {'openAPIV3Schema': {'type': 'object', 'x-kubernetes-preserve-unknown-fields': True}}
    if pruning:
        kept = {'type': 'object', 'x-kubernetes-preserve-unknown-fields': True}
        schema = {'openAPIV3Schema': {'type': 'object', 'properties': {'spec': kept}}}
    subresources = {'subresources': {'status': {}}} if status else {}
    return {
        'apiVersion': 'apiextensions.k8s.io/v1',
        'kind': 'CustomResourceDefinition',
        'metadata': {'name': f'{plural}.kopf.dev'},
        'spec': {
            'group': 'kopf.dev',
            'scope': scope,
            'names': {'plural': plural, 'singular': kind.lower(), 'kind': kind, 'categories': list(categories)},
            'versions': [
                {'name': version, 'served': True, 'storage': version == versions[0], 'schema': schema, **subresources}
                for version in versions
            ],
        },
    }


class Cluster:
    """
    The cluster.

    Args:
        server: the server of the sandbox.
        rng: the random numbers of the actions.
        ledger: where the edits are noted.
        options: the options of the run.
    """

    def __init__(self, server, rng, ledger, options):
        self.api = LocalClient(server.api)
        self._rng, self._ledger, self._options = rng, ledger, options
        self.namespaces = ['ns-0', 'ns-1']
        self.known = {}  # uid: the last seen body
        self.forced = set()  # uids of those that have lost their finalizers, or have vanished in spite of them

    async def set_up(self):
        await self.define()
        if self._options.peering:
            await self.api.apply(make_crd('clusterkopfpeerings', 'ClusterKopfPeering', scope='Cluster'))
            await self.api.apply(make_crd('kopfpeerings', 'KopfPeering'))
        if self._options.twins:
            await self.api.apply(self._make_crd('kopftwins', 'KopfTwin'))
        await asyncio.sleep(2)
        for name in self.namespaces:
            await self.create_namespace(name)
        if self._options.electing:
            await self.api.create('namespaces', 'ns-leases', None, {})
        await self.ensure_peerings()

    async def define(self, versions=('v1',)):
        await self.api.apply(self._make_crd(versions=versions))

    async def ensure_defined(self):
        with contextlib.suppress(Refusal):
            await self.api.create(self._make_crd(), None, None, {})

    def _make_crd(self, plural=PLURAL, kind='KopfExample', versions=('v1',)):
        options = self._options
        return make_crd(
            plural,
            kind,
            versions=versions,
            scope='Cluster' if options.clusterwide_kind else 'Namespaced',
            status=options.status_subresource,
            pruning=options.pruning,
            categories=[CATEGORY],
        )

    async def undefine(self, pause):
        """Delete the kind with all its objects, and define it anew."""
        uids = {body['metadata']['uid'] for body in await self.list()}
        self.forced.update(uids)
        self._ledger.undefined.update(uids)
        await self.api.delete('customresourcedefinitions', CRD, None, '')
        for body in await self.list():
            with contextlib.suppress(Refusal):
                await self.patch(body, UNFINALIZED)
        await asyncio.sleep(pause)
        for _ in range(100):
            try:
                await self.api.create(self._make_crd(), None, None, {})
            except Refusal:
                await asyncio.sleep(0.1)
            else:
                return

    # Objects.

    async def list(self, resource=PLURAL):
        try:
            return await self.api.list(resource, None, '', '')
        except Refusal:
            return []

    async def create(self, name, namespace):
        spec = {'a': self.number(), 'b': self.number(), 'items': self.draw_items()}
        labels = {'app': 'x' if self._rng.random() < 0.8 else 'y'}
        labels.update({key: 'on' for key, share in (('d', 0.5), ('sd', 0.3), ('w', 0.3)) if self._rng.random() < share})
        meta = {'name': name, 'labels': labels}
        if self._rng.random() < 0.1:
            meta['finalizers'] = [FOREIGN_FINALIZER]
        body = {'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample', 'metadata': meta, 'spec': spec}
        place = None if self._options.clusterwide_kind else namespace
        created = await self.api.create(body, None, place, {})
        self.known[created['metadata']['uid']] = created
        return created

    def number(self):
        return self._ledger.number()

    def draw_items(self):
        return [f'i{self.number()}' for _ in range(self._rng.choice([0, 1, 3]))]

    async def get(self, body):
        return await self.api.get(PLURAL, body['metadata']['name'], body['metadata'].get('namespace'))

    async def patch(self, body, patch, *, subresource=''):
        meta = body['metadata']
        patched = await self.api.patch(PLURAL, meta['name'], patch, meta.get('namespace'), subresource)
        self._ledger.history[patched['metadata']['uid']].append((self._ledger.now, look_at(patched)))
        return patched

    async def label(self, body, **labels):
        await self.patch(body, {'metadata': {'labels': labels}})

    async def delete(self, body):
        await self.api.delete(PLURAL, body['metadata']['name'], body['metadata'].get('namespace'), '')

    async def force(self, body):
        """Remove the finalizers of a deleted object, whatever they are for."""
        self.forced.add(body['metadata']['uid'])
        with contextlib.suppress(Refusal):
            await self.patch(body, UNFINALIZED)

    async def toggle_finalizer(self, body):
        """Add or remove the finalizer of another controller, as careful controllers do."""
        meta = body['metadata']
        finalizers = [each for each in meta.get('finalizers', []) if each != FOREIGN_FINALIZER]
        if FOREIGN_FINALIZER not in meta.get('finalizers', []) and not meta.get('deletionTimestamp'):
            finalizers.append(FOREIGN_FINALIZER)
        await self.patch(
            body,
            [
                {'op': 'test', 'path': '/metadata/resourceVersion', 'value': meta['resourceVersion']},
                {'op': 'add', 'path': '/metadata/finalizers', 'value': finalizers},
            ],
        )

    # What the objects depend on.

    async def change_child(self, owner):
        """Create, edit or delete a child of the object."""
        meta = owner['metadata']
        references = [{key: owner[key] for key in ('apiVersion', 'kind')} | {key: meta[key] for key in ('name', 'uid')}]
        name = f'{meta["name"]}-{self._rng.randrange(2)}'
        await self._change('configmaps', 'ConfigMap', name, meta, {'ownerReferences': references}, {})

    async def change_secret(self, user):
        """Create, edit or delete a secret that names the object."""
        name = f'secret-{self._rng.randrange(3)}'
        await self._change('secrets', 'Secret', name, user['metadata'], {}, {'used-by': user['metadata']['name']})

    async def _change(self, resource, kind, name, meta, fields, labels):
        namespace = meta.get('namespace', 'ns-0')
        labels = {**labels, 'v': str(self.number())}
        body = {'apiVersion': 'v1', 'kind': kind, 'metadata': {'name': name, 'labels': labels, **fields}}
        try:
            await self.api.create(body, None, namespace, {})
        except Refusal:
            if self._rng.random() < 0.5:
                await self.api.delete(resource, name, namespace, '')
            else:
                await self.api.patch(resource, name, {'metadata': {'labels': labels}}, namespace, '')

    # Namespaces and peerings.

    async def create_namespace(self, name):
        await self.api.create('namespaces', name, None, {})

    async def ensure_peerings(self):
        if not self._options.peering:
            return
        if self._options.scope == 'cluster':
            with contextlib.suppress(Refusal):
                await self.api.create('clusterkopfpeerings', 'default', None, {})
            return
        for namespace in self.namespaces:
            with contextlib.suppress(Refusal):
                await self.api.create('kopfpeerings', 'default', namespace, {})

    async def write_peer(self, record, *, everywhere=False):
        """Write the record of an operator that is not simulated; with ``None``, remove it."""
        patch = {'status': {'boss': record}}
        if self._options.scope == 'cluster':
            with contextlib.suppress(Refusal):
                await self.api.patch('clusterkopfpeerings', 'default', patch, None, '')
            return
        for namespace in self.namespaces if everywhere else [self._rng.choice(self.namespaces)]:
            with contextlib.suppress(Refusal):
                await self.api.patch('kopfpeerings', 'default', patch, namespace, '')

    async def recreate_namespace(self, name, *, forced, patience):
        """Delete the namespace, and create it anew as soon as it is gone; return whether that was in time."""
        await self.api.delete('namespaces', name, None, '')
        if forced:
            for body in await self.list():
                if body['metadata'].get('namespace') == name:
                    await self.force(body)
        for _ in range(patience):
            try:
                await self.create_namespace(name)
            except Refusal:
                await asyncio.sleep(0.1)
            else:
                return True
        self.namespaces.remove(name)
        return False

    def is_served(self, body):
        """Check whether the operators handle the object, according to their options."""
        if self._options.scope == 'specific' and body['metadata'].get('namespace', 'ns-0') not in ('ns-0', 'ns-1'):
            return False
        if body['kind'] == 'KopfTwin' and self._options.selecting == 'settings':
            return True  # the setting is for the other kind
        return not self._options.selecting or (body['metadata'].get('labels') or {}).get('app') == 'x'
