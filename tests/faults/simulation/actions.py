"""What others do to the cluster, to the API and to the operators: one random action after another."""

import asyncio
import contextlib

from kopf.testing import Refusal
from tests.faults.simulation.applying import MARKS, Meddling
from tests.faults.simulation.storages import MIGRATIONS, find_handled, find_progress
from tests.faults.simulation.twins import Twins

OFFLINE = ['edit'] * 2 + ['revert', 'delete', 'delete', 'create', 'recreate', 'unfinalize', 'finalizer', 'app']
OFFLINE += ['daemon', 'touch', 'status', 'child', 'secret']
"""What happens while no operator is running."""

ALWAYS = {
    'create': 6, 'edit': 12, 'delete': 4, 'app': 3, 'daemon': 4, 'touch': 2, 'status': 2, 'quiet': 2, 'versions': 1,
    'late': 1, 'recreate_namespace': 1, 'create_namespace': 1, 'peer': 2, 'unfinalize': 1, 'restart': 1, 'recreate': 2,
    'undefine': 1, 'finalizer': 2, 'outage': 1, 'revert': 2,
}  # fmt: skip
"""The actions with their weights."""

OPTIONAL = {
    'killing': {'kill': 3},
    'clocks': {'clock': 2, 'suspend': 2},
    'conflicts': {'conflicts': 4},
    'refusals': {'refusals': 3},
    'downtimes': {'downtime': 3},
    'migrating': {'migrate': 3},
    'relabelling': {'app': 8, 'leave_and_return': 4},
    'restoring': {'back_up': 1, 'restore': 1},
    'children': {'child': 4, 'secret': 4},
    'forbidding': {'forbid': 4},
    'applying': {'meddle': 6, 'refuse_children': 2},
    'fleeting': {'come_and_go': 8},
    'twins': {'twin': 16, 'secret': 12},
    'remote': {'unmark': 6},
    'outages': {'group_outage': 5},
    'sharing': {'hand_over': 16},
}

FORBIDDEN = ['kopfexamples'] * 4 + ['kopfpeerings', 'clusterkopfpeerings', 'namespaces', 'configmaps', 'leases']
FORBIDDEN += ['customresourcedefinitions']
"""The resources for which the permissions of operators can be missing."""

GROUPS = ['kopf.dev', 'kopf.dev', 'apiextensions.k8s.io', '', 'coordination.k8s.io']
"""The API groups that can be down."""

FAULTS = {
    'error': 2, 'lose': 2, 'drop': 1, 'error_of_list': 1, 'error_of_discovery': 1, 'error_of_anything': 2,
    'cut_watches': 1, 'expire_watches': 1, 'fail_watches': 1, 'end_watches': 1, 'forget_history': 1,
    'drop_watches': 1, 'freeze_watches': 1, 'delay': 1, 'expire_tokens': 1, 'freeze_discovery': 1,
}  # fmt: skip


class Actions:
    """
    The actions; each is a method.

    Args:
        simulation: the run, with its operators.
    """

    def __init__(self, simulation):
        self._simulation = simulation
        self._cluster, self._ledger, self._options = simulation.cluster, simulation.ledger, simulation.options
        self._rng, self._faults = simulation.rng, simulation.server.faults
        self._late = 0
        self._meddling = Meddling(self._cluster.api, self._rng, self._ledger)
        self._twins = Twins(self._cluster.api, self._rng, self._ledger)
        self._snapshot = None
        weights = dict(ALWAYS, fault=6 * self._options.faults)
        if self._options.pausing:
            weights.update(peer=12)
        for option, more in OPTIONAL.items():
            if getattr(self._options, option):
                for name, weight in more.items():
                    weights[name] = weights.get(name, 0) + weight
        if not self._options.scanning:
            weights.update(undefine=0, versions=0, recreate_namespace=0, create_namespace=0)
        if self._options.upgrading:
            weights.update(restart=6)
        if self._options.pruning:
            weights.update(restart=0)
        if self._options.electing:
            weights.update(add_rival=3, remove_rival=2)
            weights.pop('restore', None)
        elif self._options.rivals and self._options.peering:
            # A namespace that is created anew while the operator is cut off from its peering: until the next renewal of
            # the record, rivals do not see it there. This is a limit of peerings, not a fault to be found again.
            weights.update(add_rival=2, remove_rival=2, recreate_namespace=0)
            weights.pop('restore', None)  # the same for records that are restored from a back-up
        self._names = [name for name, weight in weights.items() for _ in range(weight)]

    async def act(self, names=None):
        """Do something."""
        bodies = await self._cluster.list()
        self._cluster.known.update((body['metadata']['uid'], body) for body in bodies)
        name = self._rng.choice(names or self._names)
        body = self._rng.choice(bodies) if bodies else None
        try:
            if name in _OF_OBJECTS:
                if body is None:
                    name = 'create'
                else:
                    meta = body['metadata']
                    self._ledger.note(f'{name} {meta.get("namespace")}/{meta["name"]} {meta["uid"][-4:]}')
                    await getattr(self, name)(body)
                    return
            self._ledger.note(name)
            await getattr(self, name)()
        except Refusal as refusal:
            self._ledger.note(f'refused: {str(refusal)[:100]}')

    def _draw_object_name(self):
        return f'o{self._rng.randrange(10)}'

    async def _sleep(self, *choices):
        await asyncio.sleep(self._rng.choice(choices))

    # Objects.

    async def create(self):
        if len(await self._cluster.list()) < 10:
            await self._cluster.create(self._draw_object_name(), self._rng.choice(self._cluster.namespaces or ['ns-0']))

    async def edit(self, body):
        for _ in range(self._rng.choice([1, 1, 2, 3])):
            fields = self._rng.choice(['a', 'a', 'b', 'items', 'ab'])
            drawn = self._cluster.draw_items() if fields == 'items' else None
            spec = {'items': drawn} if drawn is not None else {key: self._cluster.number() for key in fields}
            await self._cluster.patch(body, {'spec': spec})
            if self._rng.random() < 0.3:
                await self._sleep(0.01, 0.1)

    async def revert(self, body):
        numbers = {'a': self._cluster.number(), 'b': self._cluster.number()}
        await self._cluster.patch(body, {'spec': numbers})
        await self._sleep(0, 0.01, 0.1, 1)
        await self._cluster.patch(body, {'spec': {key: body['spec'].get(key) for key in numbers}})

    async def come_and_go(self, body):
        for _ in range(self._rng.choice([1, 1, 2])):
            await self._cluster.patch(body, {'spec': {'c': self._cluster.number()}})
            await self._sleep(0, 0.01, 0.1, 0.5, 2)
            if self._rng.random() < 0.7:
                await self._cluster.patch(body, {'spec': {'c': None}})
                await self._sleep(0, 0.01, 0.1)

    async def touch(self, body):
        await self._cluster.patch(body, {'metadata': {'annotations': {'x': str(self._cluster.number())}}})

    async def status(self, body):
        subresource = 'status' if self._options.status_subresource else ''
        await self._cluster.patch(body, {'status': {'z': self._cluster.number()}}, subresource=subresource)

    async def app(self, body):
        for _ in range(self._rng.choice([1, 2, 2])):
            labels = (await self._cluster.get(body))['metadata'].get('labels') or {}
            await self._cluster.label(body, app='y' if labels.get('app') == 'x' else 'x')
            if self._rng.random() < 0.4:
                await self._sleep(0.01, 0.1, 0.5)

    async def leave_and_return(self, body):
        await self._cluster.label(body, app='y')
        await self._sleep(0, 0.01, 0.05, 0.3, 1)
        await self._cluster.label(body, app='x')
        await self._sleep(0, 0.01, 0.05, 0.3)
        if self._rng.random() < 0.5:
            await self._cluster.patch(body, {'spec': {'a': self._cluster.number()}})
        if self._rng.random() < 0.5:
            await self._cluster.label(body, app='y')
            await self._sleep(0, 0.01, 0.3, 1)
            await self._cluster.label(body, app='x')

    async def daemon(self, body):
        for _ in range(self._rng.choice([1, 2, 3])):
            await self._cluster.label(body, **{self._rng.choice(['d', 'sd', 'w']): self._rng.choice(['on', None])})
            if self._rng.random() < 0.3:
                await self._sleep(0.01, 0.1)

    async def finalizer(self, body):
        await self._cluster.toggle_finalizer(body)

    async def delete(self, body):
        await self._cluster.delete(body)

    async def unfinalize(self, body):
        await self._cluster.delete(body)
        await self._cluster.force(body)

    async def recreate(self, body):
        await self._cluster.delete(body)
        if self._rng.random() < 0.5:
            await self._cluster.force(body)
        await self._cluster.create(body['metadata']['name'], body['metadata'].get('namespace'))

    async def child(self, body):
        await self._cluster.change_child(body)

    async def secret(self, body):
        await self._cluster.change_secret(body)

    async def twin(self):
        await self._twins.change(await self._cluster.list())

    async def hand_over(self, body):
        """Let the other handler apply some of the children, and come back to this at some time."""
        for label in self._rng.choice(
            [['d'], ['sd'], ['d', 'sd', 'd'], ['sd', 'd', 'sd'], ['d', 'd'], ['d', 'sd', 'd', 'sd']]
        ):
            labels = (await self._cluster.get(body))['metadata'].get('labels') or {}
            await self._cluster.label(body, **{label: None if labels.get(label) == 'on' else 'on'})
            await self._sleep(0, 0.1, 1, 5)

    async def unmark(self, body):
        """Remove the annotation that names the kinds of the children, and wait for the operator to restore it."""
        if body['metadata'].get('deletionTimestamp') or MARKS not in (body['metadata'].get('annotations') or {}):
            return
        former = body['metadata']['annotations'][MARKS]
        await self._cluster.patch(body, {'metadata': {'annotations': {MARKS: None}}})
        for _ in range(600):
            await asyncio.sleep(0.1)
            if ((await self._cluster.get(body))['metadata'].get('annotations') or {}).get(MARKS) == former:
                return
        # If the object were deleted now, its children in other namespaces would stay: those of a handler that does not
        # match it now, for example, are not known to an operator that has just started.
        await self._cluster.patch(body, {'metadata': {'annotations': {MARKS: former}}})

    async def meddle(self):
        await self._meddling.meddle()

    # Kinds and namespaces.

    async def versions(self):
        await self._cluster.define(self._rng.choice([('v1',), ('v1', 'v2'), ('v2', 'v1')]))

    async def undefine(self):
        await self._cluster.undefine(self._rng.choice([0, 0.1, 1.5, 10]))

    async def recreate_namespace(self):
        if self._options.scope == 'cluster' or len(self._cluster.namespaces) < 2:
            return
        name, forced = self._rng.choice(self._cluster.namespaces), self._rng.random() < 0.6
        self._ledger.note(f'{name} is deleted')
        if await self._cluster.recreate_namespace(name, forced=forced, patience=self._rng.choice([60, 300])):
            await self._sleep(0, 0, 0, 0.1, 1, 5)
            await self._cluster.ensure_peerings()

    async def create_namespace(self):
        if self._options.scope != 'specific' and len(self._cluster.namespaces) < 5:
            name = f'ns-{self._rng.randrange(2, 8)}'
            await self._cluster.create_namespace(name)
            self._cluster.namespaces.append(name)
            await self._cluster.ensure_peerings()

    async def back_up(self):
        self._snapshot = await self._cluster.api.snapshot()

    async def restore(self):
        if self._snapshot is not None:
            self._ledger.restored += 1
            former = {body['metadata']['uid'] for body in await self._cluster.list()}
            await self._cluster.api.restore(self._snapshot)
            # What was created since the back-up vanishes without a deletion, so no finalizer holds it: children that
            # are applied until the operator learns of that stay.
            former.difference_update([body['metadata']['uid'] for body in await self._cluster.list()])
            self._cluster.forced.update(former)
            self._faults.drop_watches()
            self._faults.forget_history()

    # Operators.

    async def restart(self):
        for process in self._choose_process():
            await self._simulation.stop(process)
            await self._sleep(0, 0, 1, 5)
            self._simulation.start(process.priority)

    async def kill(self):
        for process in self._choose_process():
            if self._rng.random() < 0.5:
                process.die_at_patch(self._rng.choice([1, 1, 2, 3]), before=self._rng.random() < 0.5)
                for _ in range(50):
                    if not process.dead:
                        await asyncio.sleep(0.1)
            if not process.dead:
                process.die()
            await self._sleep(0, 0.1, 1, 30)
            self._simulation.start(process.priority)

    async def downtime(self):
        if len(self._simulation.processes) != 1:
            return
        [process] = self._simulation.processes
        if self._options.killing and self._rng.random() < 0.5:
            process.die()
        else:
            await self._simulation.stop(process)
        for _ in range(self._rng.choice([0, 1, 3, 6])):
            await self.act(OFFLINE)
            await self._sleep(0, 0.1)
        await self._sleep(0, 1, 5)
        self._simulation.start(process.priority)

    async def migrate(self):
        followers = MIGRATIONS.get(self._simulation.storage)
        if followers and len(self._simulation.processes) == 1:
            await self._simulation.stop(self._simulation.processes[0])
            storage = self._rng.choice(followers)
            # What only the former storage knows is lost; and its progress would count again on the way back.
            if storage != 'new' or await self._is_migrated():
                self._simulation.storage = storage
            self._ledger.note(f'from now on: {self._simulation.storage}')
            self._simulation.start()

    async def _is_migrated(self):
        """Check whether the new storage knows all objects, and nothing is in progress in the former one."""
        return not any(
            find_progress('annotations', body, {}) or find_handled('new', body) is None
            for body in await self._cluster.list()
        )

    def _choose_process(self):
        return [self._rng.choice(self._simulation.processes)] if self._simulation.processes else []

    async def late(self):
        kind = self._rng.choice(['event', 'update', 'timer', 'index', 'daemon', 'field', 'level', 'secret'])
        if not self._options.managing or (not self._options.spawning and kind in ('timer', 'daemon')):
            kind = 'event'
        for process in self._choose_process() if self._late < 20 else []:
            self._late += 1
            process.handlers.declare_late(self._late, kind)

    async def add_rival(self):
        taken = [process.priority for process in self._simulation.processes]
        free = [priority for priority in (5, 10, 20) if priority not in taken]
        if free:
            self._simulation.start(self._rng.choice(free))

    async def remove_rival(self):
        if len(self._simulation.processes) > 1:
            await self._simulation.stop(self._rng.choice(self._simulation.processes))

    async def peer(self):
        if self._options.peering:
            lastseen = self._simulation.clock.read_wall_clock().isoformat()
            record = {'priority': self._rng.choice([1, 10, 20]), 'lifetime': self._rng.choice([1, 2, 5])}
            await self._cluster.write_peer({**record, 'lastseen': lastseen, 'namespace': 'x'})
            await self._sleep(0, 0.3, 0.5, 2)
            if self._rng.random() < 0.7:
                await self._cluster.write_peer(None)

    # Time, and the network.

    async def quiet(self):
        await self._sleep(3, 10, 40)

    async def clock(self):
        self._simulation.clock.change(self._rng.choice([-3600, -30, -3, 3, 30, 3600, 86400]))

    async def suspend(self):
        self._simulation.clock.suspend(self._rng.choice([2, 30, 600, 86400]))
        if self._rng.random() < 0.7:
            self._faults.drop_watches()

    async def outage(self):
        self._simulation.network.down_until = asyncio.get_running_loop().time() + self._rng.choice([0.1, 1, 5, 40])
        self._faults.drop_watches()

    # The API.

    async def group_outage(self):
        group = self._rng.choice(GROUPS)
        self._ledger.note(f'{group} is down')
        self._simulation.server.api.set_availability(group, False)
        asyncio.get_running_loop().call_later(
            self._rng.choice([0.1, 1, 5, 20, 60]), self._simulation.server.api.set_availability, group, True
        )
        if self._rng.random() < 0.5:
            await self.act(['restart', 'late', *(['kill'] if self._options.killing else [])])

    async def forbid(self):
        loop = asyncio.get_running_loop()
        until = loop.time() + self._rng.choice([1, 5, 25, 60])
        resource = self._rng.choice(FORBIDDEN)
        namespace = self._rng.choice([*self._cluster.namespaces, '', ''])
        verb = self._rng.choice(['', '', 'list', 'watch', 'patch'])
        # An operator that cannot see an optional peering works alone, as specified, beside those that can see it again.
        if resource.endswith('kopfpeerings') and self._options.peering == 'optional':
            return
        self._ledger.note(f'forbidden: {verb or "all"} of {resource} in {namespace or "all"}')
        self._faults.error(
            403, times=None, resource=resource, namespace=namespace, verb=verb, condition=lambda _: loop.time() < until
        )

    async def conflicts(self):
        self._faults.error(409, times=self._rng.choice([5, 20, 60]), method='PATCH', resource='kopfexamples')

    async def refusals(self):
        status, times = self._rng.choice([413, 422, 422, 400]), self._rng.choice([1, 3, 10])
        self._faults.error(status, times=times, method='PATCH', resource='kopfexamples')

    async def refuse_children(self):
        status, times = self._rng.choice([500, 503, 429, 409, 403]), self._rng.choice([1, 3, 10])
        # The deletion of a child conflicts only if the child has changed: then, its event comes.
        method = 'PATCH' if status == 409 else self._rng.choice(['PATCH', 'DELETE'])
        self._faults.error(status, times=times, method=method, resource='configmaps')

    async def fault(self):
        name = self._rng.choice([name for name, weight in FAULTS.items() for _ in range(weight)])
        self._ledger.note(f'fault: {name}')
        times = self._rng.choice([1, 3, 8])
        await getattr(self, f'_{name}')(times)

    async def _error(self, times):
        status = self._rng.choice([500, 503, 429, 409, 504])
        self._faults.error(status, times=times, method='PATCH', resource='kopfexamples')

    async def _error_of_list(self, times):
        status = self._rng.choice([500, 503, 429, 403, 404, 410])
        resources = ['kopfexamples', 'namespaces', 'customresourcedefinitions', 'kopfpeerings', 'configmaps']
        # Not for single objects: the operator must believe that such an object is gone, and forgets its progress.
        requests = {'verb': 'list'} if status == 404 else {'method': 'GET'}
        resource = self._rng.choice(resources[:1] + resources[3:4] if status == 404 else resources)
        self._faults.error(status, times=min(times, 3), resource=resource, **requests)

    async def _error_of_discovery(self, times):
        path = self._rng.choice(['/apis', '/apis/kopf.dev/v1', '/apis/kopf.dev'])
        self._faults.error(self._rng.choice([500, 503]), times=times, method='GET', path=path)

    async def _error_of_anything(self, times):
        verb = self._rng.choice(['get', 'list', 'watch', 'create', 'patch'])
        act = self._rng.choice(['error', 'delay', 'drop', 'lose'])
        if act == 'error':
            self._faults.error(self._rng.choice([500, 503, 429, 504]), times=times, verb=verb)
        elif act == 'delay':
            self._faults.delay(self._rng.choice([1, 40]), times=1, verb=verb)
        elif verb != 'watch':
            getattr(self._faults, act)(times=times, verb=verb)

    async def _lose(self, times):
        self._faults.lose(method='PATCH', resource='kopfexamples', times=times)

    async def _drop(self, times):
        self._faults.drop(method=self._rng.choice(['GET', 'PATCH']), times=times)

    async def _delay(self, times):
        self._faults.delay(self._rng.choice([0.1, 0.5, 5]), times=3)

    async def _freeze_watches(self, times):
        self._faults.freeze_watches(self._rng.choice([0.3, 1, 30]), times=self._rng.choice([1, 3]))

    async def _freeze_discovery(self, times):
        self._faults.freeze_discovery(True)
        await self._sleep(0.3, 3)
        self._faults.freeze_discovery(False)

    async def _cut_watches(self, times):
        self._faults.cut_watches()

    async def _expire_watches(self, times):
        self._faults.expire_watches()

    async def _fail_watches(self, times):
        self._faults.fail_watches()

    async def _end_watches(self, times):
        self._faults.end_watches()

    async def _forget_history(self, times):
        self._faults.forget_history()

    async def _drop_watches(self, times):
        self._faults.drop_watches()

    async def _expire_tokens(self, times):
        self._faults.expire_tokens()


_OF_OBJECTS = {
    'edit', 'revert', 'come_and_go', 'touch', 'status', 'app', 'leave_and_return', 'daemon', 'finalizer', 'delete',
    'unfinalize', 'recreate', 'child', 'secret', 'unmark',
    'hand_over',
}  # fmt: skip


async def clear(simulation):
    """End all that hinders the operators: from now on, everything has to come to rest."""
    faults, cluster = simulation.server.faults, simulation.cluster
    faults.clear()
    faults.freeze_discovery(False)
    for group in GROUPS:
        simulation.server.api.set_availability(group, True)
    simulation.network.down_until = simulation.network.lagging = 0
    simulation.network.slowness = min(simulation.network.slowness, 10)
    simulation.flakiness.rate = 0
    simulation.ledger.chaos = False
    await cluster.ensure_defined()
    await cluster.ensure_peerings()
    await cluster.write_peer(None, everywhere=True)
    for body in await cluster.list():
        if 'other/finalizer' in body['metadata'].get('finalizers', ()):
            with contextlib.suppress(Refusal):
                await cluster.toggle_finalizer(body)
