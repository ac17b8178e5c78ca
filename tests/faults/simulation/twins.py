"""The objects of the second kind, which only level-triggered handlers are for."""

from tests.faults.simulation.ledger import look_at

TWINS = 'kopftwins'
MAX_TWINS = 4


class Twins:
    """
    What others do to these objects.

    Args:
        api: the client of the cluster.
        rng: the random numbers of the actions.
        ledger: where the edits are noted.
    """

    def __init__(self, api, rng, ledger):
        self._api, self._rng, self._ledger = api, rng, ledger

    async def change(self, others):
        """Create an object with the name of one of the others, or change any one."""
        bodies = await self._api.list(TWINS, None, '', '')
        what = self._rng.choice(['create', 'create', 'edit', 'edit', 'label', 'label', 'delete', 'recreate'])
        if what == 'create' or not bodies:
            if len(bodies) < MAX_TWINS and others:
                meta = self._rng.choice(others)['metadata']
                await self._create(meta['name'], meta['namespace'])
            return
        body = self._rng.choice(bodies)
        meta = body['metadata']
        self._ledger.note(f'twin: {what} {meta["namespace"]}/{meta["name"]} {meta["uid"][-4:]}')
        if what == 'edit':
            spec = self._rng.choice([{'a': self._ledger.number()}, {'items': self._draw_items()}])
            await self._patch(body, {'spec': spec})
        elif what == 'label':
            label, value = self._rng.choice(['app', 'd', 'sd', 'w']), self._rng.choice(['on', None])
            if label == 'app':
                value = self._rng.choice(['x', 'y'])
            await self._patch(body, {'metadata': {'labels': {label: value}}})
        else:
            await self._api.delete(TWINS, meta['name'], meta['namespace'], '')
            if what == 'recreate':
                await self._create(meta['name'], meta['namespace'])

    async def _create(self, name, namespace):
        labels = {'app': 'x', **{key: 'on' for key in ('d', 'sd', 'w') if self._rng.random() < 0.3}}
        spec = {'a': self._ledger.number(), 'b': self._ledger.number(), 'items': self._draw_items()}
        body = {'apiVersion': 'kopf.dev/v1', 'kind': 'KopfTwin', 'metadata': {'name': name, 'labels': labels}}
        await self._api.create({**body, 'spec': spec}, None, namespace, {})

    async def _patch(self, body, patch):
        meta = body['metadata']
        patched = await self._api.patch(TWINS, meta['name'], patch, meta['namespace'], '')
        self._ledger.history[meta['uid']].append((self._ledger.now, look_at(patched)))

    def _draw_items(self):
        return [f'i{self._ledger.number()}' for _ in range(self._rng.choice([0, 1, 3]))]
