"""A level-triggered handler that applies children and keeps conditions; and what there must be of these at rest."""

import asyncio
import contextlib

import kopf
from kopf.testing import Refusal
from tests.faults.simulation.ledger import look_at

OWNER_ANNOTATION, OWNER_LABEL, PRUNED_LABEL = 'kopf.dev/owner', 'kopf.dev/owner-uid', 'kopf.dev/pruned-by'
MAX_MEDDLING = 2
"""How often others may change a child in a minute: the operator leaves them the fields that they take more often."""


def find_desired(body, options):
    """Return the data of the children that the handler applies for the object, by their namespaces and names."""
    meta, spec = body['metadata'], body.get('spec') or {}
    data = {'a': str(spec.get('a')), 'b': str(spec.get('b'))}
    desired = {(meta['namespace'], f'{meta["name"]}-{item}'): data for item in spec.get('items') or ()}
    if options.remote and (meta.get('labels') or {}).get('w') == 'on':
        other = 'ns-0' if meta['namespace'] == 'ns-1' else 'ns-1'
        desired[other, f'{meta["namespace"]}-{meta["name"]}'] = data
    return desired


def find_owners(child):
    """Return the uids of the objects that the child belongs to."""
    meta = child['metadata']
    owners = {owner['uid'] for owner in meta.get('ownerReferences') or ()}
    if OWNER_ANNOTATION in (meta.get('annotations') or {}):
        owners.update(uid for key, uid in (meta.get('labels') or {}).items() if key == OWNER_LABEL)
    return owners


def is_applied(child):
    return PRUNED_LABEL in (child['metadata'].get('labels') or {})


class Applying:
    """
    The handler of one process.

    Args:
        process: the process.
        ledger: where it tells what it does.
        options: the options of the run.
        rng: the random numbers of all handlers of the run.
    """

    def __init__(self, process, ledger, options, rng):
        self._process, self._ledger, self._options, self._rng = process, ledger, options, rng

    def declare(self, resource, **common):
        kopf.on.reconcile(
            resource,
            id='ap',
            owns=['configmaps'],
            conditions=self._options.conditions,
            backoff=(0.1, self._options.level_backoff),
            interval=self._options.level_interval,
            concurrency=self._options.concurrency,
            timeout=self._options.applying_timeout,
            **common,
        )(self._run)

    async def _run(self, *, uid, body, name, reasons, children, conditions, patch, **_):
        await self._process.alive()
        ledger, seen = self._ledger, look_at(body)
        ledger.calls += set(reasons) != {'interval'}
        ledger.note(f'{self._process} applies for {name} {uid[-4:]} {seen} {sorted(map(str, reasons))}')
        token = ledger.enter(self._process, uid, 'ap')
        try:
            for (namespace, child), data in find_desired(body, self._options).items():
                await self._hesitate()
                metadata = {'namespace': namespace, 'name': child}
                obj = {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': metadata, 'data': data}
                await children.apply(obj, ready=self._rng.random() < 0.5)
            await self._hesitate()
            if self._options.conditions:
                conditions['Seen'] = kopf.Condition(True, 'Seen', str(seen[0]))
            if ledger.chaos and self._rng.random() < 0.2:
                patch.status['ap'] = ledger.number()
            ledger.applied[uid] = seen
        finally:
            ledger.leave(uid, token)

    async def _hesitate(self):
        if not self._ledger.chaos:
            return
        await asyncio.sleep(self._rng.choice([0, 0, 0, 0.05, 1]))
        await self._process.alive()
        if self._rng.random() < self._options.error_rate / 3:
            raise self._rng.choice([kopf.TemporaryError('applying', delay=0.2), ValueError('applying')])


class Meddling:
    """
    What others do to the children.

    Args:
        api: the client of the cluster.
        rng: the random numbers of the actions.
        ledger: the clock, and the numbers of the edits.
    """

    def __init__(self, api, rng, ledger):
        self._api, self._rng, self._ledger = api, rng, ledger
        self._edits = {}  # (namespace, name): when it was changed

    async def meddle(self):
        """Edit or delete a child."""
        found = [child for child in await self._api.list('configmaps', None, '', '') if is_applied(child)]
        if not found:
            return
        child = self._rng.choice(found)
        meta, now = child['metadata'], self._ledger.now
        place = meta['namespace'], meta['name']
        recent = [moment for moment in self._edits.get(place, ()) if moment > now - 70]
        what = self._rng.choice(['edit', 'edit', 'add', 'disown', 'unlabel', 'remove', 'delete'])
        self._ledger.note(f'meddling: {what} {place}')
        if what == 'delete':
            with contextlib.suppress(Refusal):
                await self._api.delete('configmaps', meta['name'], meta['namespace'], '')
        elif what == 'add' or len(recent) < MAX_MEDDLING:
            self._edits[place] = [*recent, *([now] if what != 'add' else [])]
            with contextlib.suppress(Refusal):
                await self._api.patch('configmaps', meta['name'], self._make_patch(what), meta['namespace'], '')

    def _make_patch(self, what):
        return {
            'edit': {'data': {'a': f'edited {self._ledger.number()}'}},
            'add': {'data': {'z': str(self._ledger.number())}},
            'disown': {'metadata': {'ownerReferences': None}},
            'unlabel': {'metadata': {'labels': {OWNER_LABEL: None}}},
            'remove': {'data': {'b': None}},
        }[what]


def find_flaws(body, seen, children, options, status_subresource):
    """Return what is wrong with the children and the conditions of one object at rest."""
    uid, flaws = body['metadata']['uid'], []
    mine = [child for child in children if uid in find_owners(child) and is_applied(child)]
    found = {
        (child['metadata']['namespace'], child['metadata']['name']): {
            key: value for key, value in (child.get('data') or {}).items() if key != 'z'
        }
        for child in mine
        if 'deletionTimestamp' not in child['metadata']
    }
    expected = find_desired(body, options)
    if found != expected:
        flaws.append(f'it has the children {found} instead of {expected}')
    if options.conditions:
        entries = {entry['type']: entry for entry in (body.get('status') or {}).get('conditions') or ()}
        if entries.keys() != {'Ready', 'Seen'} or entries['Ready']['status'] != 'True':
            flaws.append(f'it has the conditions {entries}')
        elif entries['Seen']['message'] != str(seen[0]):
            flaws.append(f'it has the condition {entries["Seen"]} instead of {seen[0]}')
        if status_subresource:
            generation = body['metadata'].get('generation')
            late = [type_ for type_, entry in entries.items() if entry.get('observedGeneration') != generation]
            if late:
                flaws.append(f'its conditions {late} are not about the generation {generation}: {entries}')
    return flaws
