"""
Level-triggered handlers that apply children and keep conditions; and what there must be of these at rest.

There can be a second handler: it matches only some of the objects, has a kind of children of its own, and some children
go from one handler to the other when the object changes. And there can be a second kind of objects for both handlers,
the twins. An object and its twin have the same name; secrets that name them as their users are for both.
"""

import asyncio
import base64
import contextlib
import functools

import kopf
from kopf.testing import Refusal
from tests.faults.simulation.ledger import look_at

OWNER_ANNOTATION, OWNER_LABEL, PRUNED_LABEL = 'kopf.dev/owner', 'kopf.dev/owner-uid', 'kopf.dev/pruned-by'
MARKS = 'children.kopf.zalando.org/operator'
MAX_MEDDLING = 2
"""How often others may change a child in a minute: the operator leaves them the fields that they take more often."""


def encode(value):
    """Return the value as Secrets have it; ConfigMaps have it so, too."""
    return base64.b64encode(str(value).encode()).decode()


def find_desired(body, options, id):
    """Return the data of the children that the handler applies for the object, by their kinds, namespaces and names."""
    meta, spec = body['metadata'], body.get('spec') or {}
    namespace, name = meta['namespace'], ('twin-' if body['kind'] == 'KopfTwin' else '') + meta['name']
    data = {'a': encode(spec.get('a')), 'b': encode(spec.get('b')), 'by': encode(id)}
    desired = {}
    if id == find_handler_of_items(body, options):
        for item in spec.get('items') or ():
            desired['ConfigMap', namespace, f'{name}-{item}'] = data
    if id == 'aq':
        desired['Secret', namespace, f'{name}-q'] = data
    if options.remote and (meta.get('labels') or {}).get('w') == 'on':
        other, kind = 'ns-0' if namespace == 'ns-1' else 'ns-1', 'ConfigMap' if id == 'ap' else 'Secret'
        desired[kind, other, f'{namespace}-{name}'] = data
    return desired


def find_handler_of_items(body, options):
    labels = body['metadata'].get('labels') or {}
    return 'aq' if options.sharing and labels.get('d') == 'on' else 'ap'


def is_for_second(labels, **_):
    """Check whether the second handler is for the object."""
    if labels.get('sd') == 'on' and labels.get('d') == 'on':
        raise ValueError("the filter fails")
    return labels.get('sd') != 'on'


def find_users(namespace, labels, **_):
    return [(namespace, labels['used-by'])] if 'used-by' in labels else []


def index_secrets(namespace, name, labels, meta, **_):
    return {(namespace, labels.get('used-by')): f'{name}={labels.get("v")}'} if 'used-by' in labels else None


def find_secrets(children, body):
    """Return the names and versions of the secrets for which the object is a user."""
    place = body['metadata'].get('namespace'), body['metadata']['name']
    metas = [child['metadata'] for child in children if child['kind'] == 'Secret']
    return sorted(
        f'{meta["name"]}={meta["labels"].get("v")}'
        for meta in metas
        if (meta['namespace'], (meta.get('labels') or {}).get('used-by')) == place
    )


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
        """Declare the handlers of this resource, and of the second kind if there is one."""
        watches = {'secrets': find_users} if self._options.twins else None
        if watches:
            kopf.index('secrets', id='uses', registry=common['registry'])(index_secrets)
        self._declare('ap', resource, {'owns': ['configmaps'], 'watches': watches, **common})
        if self._options.sharing:
            self._declare('aq', resource, {'owns': ['configmaps', 'secrets'], 'when': is_for_second, **common})

    def _declare(self, id, resource, common):
        fn = functools.partial(self._run, id)
        selectors = [{'plural': resource}]
        if self._options.twins == 'stacked':
            selectors.append({'plural': 'kopftwins'})
        elif self._options.twins == 'category':
            selectors = [{'category': 'simulated'}]
        for selector in selectors:
            fn = kopf.on.reconcile(
                **selector,
                id=id,
                conditions=self._options.conditions,
                backoff=(0.1, self._options.level_backoff),
                interval=self._options.level_interval,
                concurrency=self._options.concurrency,
                timeout=self._options.applying_timeout,
                **common,
            )(fn)

    async def _run(self, id, *, uid, body, name, namespace, reasons, children, conditions, patch, **kwargs):
        await self._process.alive()
        secrets = sorted(kwargs.get('uses', {}).get((namespace, name), ()))
        ledger, seen = self._ledger, look_at(body)
        ledger.calls += set(reasons) != {'interval'}
        ledger.note(f'{self._process} {id} applies for {name} {uid[-4:]} {seen} {sorted(map(str, reasons))}')
        token = ledger.enter(self._process, uid, id)
        try:
            desired = find_desired(body, self._options, id)
            for (kind, place, child), data in desired.items():
                await self._hesitate()
                metadata = {'namespace': place, 'name': child}
                obj = {'apiVersion': 'v1', 'kind': kind, 'metadata': metadata, 'data': data}
                await children.apply(obj, ready=self._rng.random() < 0.5)
                ledger.note_child(id, uid, (kind, place, child))
            await self._hesitate()
            if self._options.conditions:
                conditions[f'Seen{id}'] = kopf.Condition(True, 'Seen', str(seen[0]))
            if ledger.chaos and self._rng.random() < 0.2:
                patch.status[id] = ledger.number()
            ledger.applied[id, uid] = seen, secrets if id == 'ap' else []
            ledger.note_children(id, uid, desired)
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
        found = [
            (resource, child)
            for resource in ('configmaps', 'secrets')
            for child in await self._api.list(resource, None, '', '')
            if is_applied(child)
        ]
        if not found:
            return
        resource, child = self._rng.choice(found)
        meta, now = child['metadata'], self._ledger.now
        place = resource, meta['namespace'], meta['name']
        recent = [moment for moment in self._edits.get(place, ()) if moment > now - 70]
        what = self._rng.choice(['edit', 'edit', 'add', 'disown', 'unlabel', 'remove', 'delete'])
        self._ledger.note(f'meddling: {what} {place}')
        if what in ('delete', 'disown', 'unlabel'):
            self._ledger.note_meddling(child['kind'], meta['namespace'], meta['name'])
        if what == 'delete':
            with contextlib.suppress(Refusal):
                await self._api.delete(resource, meta['name'], meta['namespace'], '')
        elif what == 'add' or len(recent) < MAX_MEDDLING:
            self._edits[place] = [*recent, *([now] if what != 'add' else [])]
            with contextlib.suppress(Refusal):
                await self._api.patch(resource, meta['name'], self._make_patch(what), meta['namespace'], '')

    def _make_patch(self, what):
        return {
            'edit': {'data': {'a': encode(f'edited {self._ledger.number()}')}},
            'add': {'data': {'z': encode(self._ledger.number())}},
            'disown': {'metadata': {'ownerReferences': None}},
            'unlabel': {'metadata': {'labels': {OWNER_LABEL: None}}},
            'remove': {'data': {'b': None}},
        }[what]


def find_flaws(body, ledger, children, options, status_subresource):
    """Return what is wrong with the children and the conditions of one object at rest."""
    uid, flaws, seen = body['metadata']['uid'], [], look_at(body)
    labels = body['metadata'].get('labels') or {}
    ids = ['ap', *(['aq'] if options.sharing and labels.get('sd') != 'on' else [])]
    for id in ids:
        known = seen, find_secrets(children, body) if id == 'ap' and options.twins else []
        if ledger.applied.get((id, uid)) != known:
            flaws.append(f'{id} has applied its children for {ledger.applied.get((id, uid))} instead of {known}')
    found = {
        (child['kind'], child['metadata']['namespace'], child['metadata']['name']): {
            key: value for key, value in (child.get('data') or {}).items() if key != 'z'
        }
        for child in children
        if uid in find_owners(child) and is_applied(child) and 'deletionTimestamp' not in child['metadata']
    }
    expected = {key: data for id in ids for key, data in find_desired(body, options, id).items()}
    if 'aq' not in ids:  # what it has applied while it matched the object stays, unless the other one applies it
        if lost := ledger.find_untouched('aq', uid).difference(found):
            flaws.append(f'it has lost the children {lost} of a handler that does not match any more')
        found = {key: data for key, data in found.items() if key in expected or data.get('by') != encode('aq')}
    if found != expected:
        flaws.append(f'it has the children {found} instead of {expected}')
    if any(namespace != body['metadata']['namespace'] for _, namespace, _ in found):
        marks = (body['metadata'].get('annotations') or {}).get(MARKS)
        if not marks or '*/' not in marks:
            flaws.append(f'its children are not on record: {marks}')
    if options.conditions:
        flaws += _find_flaws_of_conditions(body, seen, ids, status_subresource)
    return flaws


def _find_flaws_of_conditions(body, seen, ids, status_subresource):
    labels = body['metadata'].get('labels') or {}
    doubtful = labels.get('sd') == labels.get('d') == 'on'  # a filter fails, so one handler may be for the object
    entries = {entry['type']: entry for entry in (body.get('status') or {}).get('conditions') or ()}
    expected = {'Ready', *(f'Seen{id}' for id in ids)}
    optional = {'Seenaq', 'Reconciling'} if doubtful else {'Seenaq'}
    if entries.keys() - optional != expected - {'Seenaq'} or not entries.keys() >= expected:
        return [f'it has the conditions {entries}']
    ready = entries['Ready']['status'] == 'True' or (doubtful and entries['Ready']['reason'] == 'Progressing')
    flaws = [] if ready else [f'it is not ready: {entries["Ready"]}']
    for id in ids:
        if entries[f'Seen{id}']['message'] != str(seen[0]):
            flaws.append(f'it has the condition {entries[f"Seen{id}"]} instead of {seen[0]}')
    if status_subresource:
        generation = body['metadata'].get('generation')
        late = [type_ for type_ in sorted(expected) if entries[type_].get('observedGeneration') != generation]
        if late:
            flaws.append(f'its conditions {late} are not about the generation {generation}: {entries}')
    return flaws
