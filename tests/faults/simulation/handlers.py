"""The handlers of a simulated operator, of all kinds: they take their time, fail, patch, and tell the ledger."""

import asyncio
import contextlib
import functools

import kopf
from kopf._cogs.structs.credentials import ConnectionInfo
from tests.faults.simulation import electing
from tests.faults.simulation.applying import Applying
from tests.faults.simulation.ledger import Attempt, Limits, Run, look_at

RESOURCE = 'kopfexamples'
BACKOFF = {'backoff': 0.1}

DISPENSABLE = {'c1', 'c2', 'u', 'ua', 'ub', 'ul', 'uw', 'fa', 'fc', 'uc', 'fp', 'd1', 'd2', 'r', 'p'}
DISPENSABLE |= {'retried', 'timed', 'edited'}
"""The ids of the handlers that versions of the code can lack."""

_OF_FIELDS = {'ua', 'ub', 'ul', 'fa', 'fc', 'uc', 'fp', 'fw', 'sa', 'sf'}

ODD_TIMERS = [
    ('odd', {'idle': 0.3, 'interval': 0.5, 'sharp': True, 'initial_delay': 0.2}),
    ('patient', {'idle': 0.2, 'initial_delay': 1}),
    ('drawn', {'interval': 0.6, 'initial_delay': lambda spec, **_: 0.1 * (spec.get('a', 0) % 10), 'sharp': True}),
    ('strict', {'interval': 0.8, 'idle': 0.1, 'timeout': 0.3}),
]


class Panic(BaseException):
    """An error that is no `Exception`, as those of extensions in Rust."""


class Handlers:
    """
    The handlers of one process of an operator.

    Args:
        process: the process.
        registry: where they are declared.
        ledger: where they tell what they do.
        options: the options of the run.
        rng: the random numbers of all handlers of the run.
        server: the server, for its token.
    """

    def __init__(self, process, registry, ledger, options, rng, server):
        self._process, self._registry, self._ledger = process, registry, ledger
        self._options, self._rng, self._server = options, rng, server
        self._common = {'registry': registry}
        self.late = {}
        """The kinds of the handlers that were declared while the operator was running, and when; by their ids."""
        self.absent = frozenset(rng.sample(sorted(DISPENSABLE), 4)) if options.upgrading else frozenset()
        """The ids of the handlers that this version of the code lacks."""
        if options.selecting == 'decorators':
            self._common['label_selector'] = 'app=x'

    def declare(self):
        """Declare all the handlers that the options ask for."""
        self._declare_activities()
        if self._options.managing:
            self._declare_changes()
            if self._options.stacking:
                self._declare_stacks()
            if 'p' not in self.absent:
                self._declare_parent()
            if self._options.limited:
                self._declare_limited()
            if self._options.deleting:
                self._declare_deletions()
            if self._options.spawning:
                self._declare_daemons()
                self._declare_timers()
        self._declare_events()
        if self._options.indexing:
            self._declare_index()
        if self._options.levels:
            self._declare_levels()
        if self._options.applying:
            Applying(self._process, self._ledger, self._options, self._rng).declare(RESOURCE, **self._common)

    # Activities.

    def _declare_activities(self):
        def log_in(**_):
            return ConnectionInfo(server='http://simulation', token=self._server.token)

        async def schedule(**_):
            await self._process.alive()
            self._ledger.schedules[self._process.id] = self._ledger.now

        kopf.on.login(registry=self._registry)(log_in)
        kopf.on.schedule(interval=0.5, registry=self._registry)(schedule)

    # Changes.

    def _declare_changes(self):
        sync, common = self._options.sync, {**BACKOFF, **self._common}
        for decorator, id, part, threaded, options in [
            (kopf.on.create, 'c1', 'all', sync, {}),
            (kopf.on.create, 'c2', 'all', not sync, {}),
            (kopf.on.update, 'u', 'all', sync, {}),
            (kopf.on.update, 'ua', 'a', not sync, {'field': 'spec.a'}),
            (kopf.on.update, 'ub', 'b', sync, {'field': 'spec.b', 'retries': 3}),
            (kopf.on.update, 'ul', 'labels', False, {'field': 'metadata.labels'}),
            (kopf.on.update, 'uw', 'all', False, {'when': lambda labels, **_: labels.get('w') == 'on'}),
            (kopf.on.field, 'fa', 'a', False, {'field': 'spec.a'}),
            (kopf.on.delete, 'd1', 'all', sync, {}),
            (kopf.on.delete, 'd2', 'all', False, {'optional': True}),
            (kopf.on.resume, 'r', 'all', False, {}),
            *(self._list_fleeting() if self._options.fleeting else ()),
            *(self._list_labelled(sync) if self._options.matching else ()),
        ]:
            if id in self.absent:
                continue
            fn = self._make_changing(id, part, retries=options.get('retries'), threaded=threaded)
            decorator(RESOURCE, id=id, **options, **common)(fn)

    def _declare_stacks(self):
        """Declare functions with several decorators, each of which is called once for one change."""
        by_label, by_field = {'labels': {'w': 'on'}}, {'field': 'spec.a'}
        for id, part, stack in [
            ('s', 'all', [(kopf.on.create, {}), (kopf.on.update, {}), (kopf.on.resume, {})]),
            ('sw', 'all', [(decorator, by_label) for decorator in (kopf.on.create, kopf.on.update, kopf.on.resume)]),
            ('sa', 'a', [(kopf.on.create, {}), (kopf.on.update, by_field)]),
            ('sf', 'a', [(kopf.on.field, by_field), (kopf.on.resume, {**by_field, 'deleted': True})]),
        ]:
            fn = self._make_changing(id, part, threaded=self._options.sync)
            for decorator, options in stack:
                decorator(RESOURCE, id=id, **options, **BACKOFF, **self._common)(fn)

    @staticmethod
    def _list_fleeting():
        """Return the handlers of a field that comes and goes."""
        return [
            (kopf.on.field, 'fc', 'c', False, {'field': 'spec.c'}),
            (kopf.on.update, 'uc', 'c', False, {'field': 'spec.c'}),
            (kopf.on.field, 'fp', 'c', False, {'field': 'spec.c', 'value': kopf.PRESENT}),
        ]

    @staticmethod
    def _list_labelled(threaded):
        """Return the handlers of objects with a label that comes and goes."""
        labels = {'labels': {'w': 'on'}}
        return [
            (kopf.on.create, 'cw', 'all', threaded, labels),
            (kopf.on.resume, 'rw', 'all', False, labels),
            (kopf.on.field, 'fw', 'a', threaded, {'field': 'spec.a', **labels}),
            (kopf.on.delete, 'dw', 'all', False, {'optional': True, **labels}),
        ]

    def _make_changing(self, id, part, *, retries=None, threaded=False):
        run = functools.partial(self._run, id, part, retries)

        def fn(**kwargs):
            return run(**kwargs)  # the coroutine plays the thread

        async def coroutine_fn(**kwargs):
            return await run(**kwargs)

        return fn if threaded else coroutine_fn

    async def _run(self, id, part, retries, *, uid, name, body, reason, retry, patch, memo, **_):
        await self._process.alive()
        if self._options.remembering:
            self._ledger.check_memo(self._process, uid, memo)
        ledger, reason, seen = self._ledger, str(reason), look_at(body)
        done = Run(self._process, id, uid, reason, seen, part, called=ledger.now)
        token = ledger.enter(self._process, uid, id)
        ledger.calls += 1
        if reason == 'create':
            ledger.created_at[uid] = done.called
        version = body['metadata'].get('resourceVersion')
        ledger.note(f'{self._process} call {reason} {id} {name} {uid[-4:]} {seen} version={version} retry={retry}')
        if retries is not None and retry >= retries:
            ledger.fault(f'too many attempts: {id} of {uid}: number {retry} of {retries}')
        try:
            await asyncio.sleep(self._rng.choice([0, 0, 0.05, self._options.slow_handlers]))
            await self._process.alive()
            error = self._draw_error(limited=retries is not None)
            last = retries is not None and retry + 1 >= retries
            if error is None or isinstance(error, kopf.PermanentError) or last:
                ledger.finish(done)
                if id == 'r' and error is None:
                    self._note_resumed(uid)
            if error is not None:
                raise error
            self._change(id, done, patch)
            result = {'v': ledger.number()} if self._rng.random() < 0.5 else None
            if result is not None and id not in _OF_FIELDS:  # their results are stored by longer ids
                done.effects['status', id] = result
            return result
        finally:
            ledger.leave(uid, token)

    def _draw_error(self, *, limited):
        rate = self._options.error_rate if self._ledger.chaos else 0
        if limited and self._rng.random() < 0.5:
            return ValueError('limited')
        chance = self._rng.random()
        if chance < rate * 0.6:
            return kopf.TemporaryError('again', delay=self._rng.choice([0, 0.05, 0.3, 2]))
        if chance < rate * 0.8:
            return ValueError('arbitrary')
        return kopf.PermanentError('permanent') if chance < rate * 0.85 else None

    def _change(self, id, run, patch):
        key = id.replace('/', '_').replace('.', '_')
        if self._options.patching_spec and self._rng.random() < 0.1:
            patch.spec[f'x_{key}'] = run.effects['spec', f'x_{key}'] = self._ledger.number()
        if self._rng.random() < 0.2:
            patch.status[f's_{key}'] = run.effects['status', f's_{key}'] = self._ledger.number()
        if self._options.patching_functions and self._rng.random() < 0.2:
            number = self._ledger.number()
            patch.fns.append(lambda body: body.setdefault('status', {}).update({'f': number}))

    def _note_resumed(self, uid):
        self._ledger.resumed[uid, self._process.id] += 1
        if self._ledger.resumed[uid, self._process.id] > 1 and not self._ledger.excused and not self._has_left(uid):
            self._ledger.fault(f'resumed twice: {uid} by {self._process}')

    def _has_left(self, uid):
        """Check whether the object was absent for a while since its last resuming, so that a list can bring it back."""
        before = [run for run in self._ledger.runs[uid, 'r'] if run.process is self._process][-2]
        if not before.stored and before.process.lost_at >= before.called:
            return True  # the process has lost its Lease before the success was stored
        if electing.has_surrendered(self._process, uid, since=before.called):
            return True  # another member has handled the object, and each next member resumes it
        # In a pause, another operator can have ended the change in which it was resumed.
        if self._ledger.restored or (self._options.peering and before.reason != 'resume'):
            return True
        changes = [seen for at, seen in self._ledger.history[uid] if at > before.ended - 5]
        return bool(self._options.selecting) and any(dict(seen[3]).get('app') != 'x' for seen in changes)

    def _declare_parent(self):
        async def parent(uid, body, reason, **_):
            await self._process.alive()
            if reason == 'create':
                self._ledger.created_at[uid] = self._ledger.now
            items = (body.get('spec') or {}).get('items') or ()
            for item in items:
                kopf.subhandler(id=item)(functools.partial(self._run_child, item))
            if not items:  # it succeeds at once; otherwise, its sub-handlers are the first ones
                seen = look_at(body)
                self._ledger.add(Run(self._process, 'p', uid, str(reason), seen, 'all', called=self._ledger.now))

        common = {**BACKOFF, **self._common}
        kopf.on.create(RESOURCE, id='p', **common)(parent)
        kopf.on.update(RESOURCE, id='p', field='spec.items', **common)(parent)

    async def _run_child(self, item, *, uid, body, reason, **_):
        await self._process.alive()
        id, seen = f'p/{item}', look_at(body)
        done = Run(self._process, id, uid, str(reason), seen, 'all', called=self._ledger.now)
        token = self._ledger.enter(self._process, uid, id)
        try:
            await asyncio.sleep(self._rng.choice([0, 0.05, 0.2]))
            await self._process.alive()
            if self._ledger.chaos and self._rng.random() < self._options.error_rate * 0.5:
                raise kopf.TemporaryError('child', delay=0.1)
            self._ledger.subhandlers[uid][item] = self._ledger.now
            self._ledger.add(done)
        finally:
            self._ledger.leave(uid, token)

    # Changes with limits.

    def _declare_limited(self):
        for decorator, id, options in [
            (kopf.on.create, 'retried', {'retries': 3}),
            (kopf.on.create, 'timed', {'timeout': 4}),
            (kopf.on.update, 'edited', {'field': 'spec.b', 'retries': 4, 'timeout': 6}),
        ]:
            if id in self.absent:
                continue
            limits = Limits(options.get('retries'), options.get('timeout'))
            decorator(RESOURCE, id=id, backoff=0.2, **options, **self._common)(
                functools.partial(self._run_limited, id, limits)
            )

    def _declare_deletions(self):
        for id, options in [
            ('leaving', {'retries': 3}),
            ('late_leaving', {'timeout': 3}),
            ('labelled_leaving', {'retries': 5, 'labels': {'w': 'on'}}),
        ]:
            limits = Limits(options.get('retries'), options.get('timeout'))
            kopf.on.delete(RESOURCE, id=id, backoff=0.2, **options, **self._common)(
                functools.partial(self._run_limited, id, limits)
            )

    async def _run_limited(self, id, limits, *, uid, retry, runtime, reason, **_):
        await self._process.alive()
        seconds = runtime.total_seconds()
        self._ledger.note(f'{self._process} call {reason} {id} of {uid[-4:]} retry={retry} runtime={seconds}')
        token = self._ledger.enter(self._process, uid, id)
        attempt = Attempt(self._process, id, uid, str(reason), retry)
        self._ledger.attempt(attempt, limits, seconds)
        try:
            await asyncio.sleep(self._rng.choice([0, 0, 0.3, 2]))
            await self._process.alive()
            chance = self._rng.random()
            if chance < 0.35:
                raise kopf.TemporaryError('limited', delay=self._rng.choice([0, 0.2, 1, 3]))
            if chance < 0.6:
                attempt.final = limits.retries is not None and retry + 1 >= limits.retries
                raise ValueError('limited')
            attempt.final = True
        except asyncio.CancelledError:
            attempt.final = True  # it has run out of time, or its process ends
            raise
        finally:
            self._ledger.leave(uid, token)
            attempt.ended = not self._process.dead

    # Daemons and timers.

    def _declare_daemons(self):
        kopf.daemon(
            RESOURCE,
            id='daemon',
            labels={'d': 'on'},
            cancellation_backoff=self._options.daemon_backoff,
            cancellation_timeout=self._options.daemon_timeout,
            **self._common,
        )(self._make_daemon())
        kopf.daemon(RESOURCE, id='threaded', labels={'sd': 'on'}, **self._common)(
            lambda uid, name, stopped, **_: self._run_thread(uid, name, stopped)
        )

    def _make_daemon(self):
        async def daemon(uid, name, stopped, patch, **_):
            await self._process.alive()
            token = self._ledger.enter_daemon(self._process, 'async', uid, name)
            try:
                while not stopped:
                    await stopped.wait(self._rng.choice([None, 3]))
                    await self._process.alive()
                    if self._ledger.chaos and self._rng.random() < 0.1:
                        patch.status['dm'] = self._ledger.number()
                        raise kopf.TemporaryError('daemon', delay=self._rng.choice([0, 0.1, 1]))
                await asyncio.sleep(self._rng.choice([0, 0, 0.1, 0.5, 3]))
                patch.status['dm'] = self._ledger.number()
            finally:
                self._ledger.leave_daemon(self._process, 'async', uid, token)

        return daemon

    async def _run_thread(self, uid, name, stopped):
        await self._process.alive()
        token = self._ledger.enter_daemon(self._process, 'sync', uid, name)
        try:
            while not stopped:
                await asyncio.sleep(0.05)
                await self._process.alive()
            await asyncio.sleep(self._rng.choice([0, 0, 0.1, 0.3]))
        finally:
            self._ledger.leave_daemon(self._process, 'sync', uid, token)

    def _declare_timers(self):
        for id, options in [
            ('tick', {'interval': 0.7, 'initial_delay': 0.1}),
            ('idle', {'idle': 0.3}),
            ('both', {'idle': 0.4, 'interval': 0.9}),
            ('sharp', {'interval': 1, 'sharp': True}),
            *(ODD_TIMERS if self._options.odd else ()),
        ]:
            kopf.timer(RESOURCE, id=id, backoff=0.3, **options, **self._common)(functools.partial(self._tick, id))

    async def _tick(self, id, *, uid, spec, patch, memo, **_):
        await self._process.alive()
        if self._options.remembering:
            self._ledger.check_memo(self._process, uid, memo)
        self._ledger.enter_tick(self._process, id, uid)
        try:
            value = spec.get('a')
            await asyncio.sleep(self._rng.choice([0, 0, 0.05, 0.4]))
            await self._process.alive()
            self._ledger.tick(id, uid, value)
            if self._ledger.chaos and self._rng.random() < 0.02:
                patch.status['tk'] = self._ledger.number()
            if self._ledger.chaos and self._options.disturbing and self._rng.random() < 0.05:
                patch.spec['x_tick'] = self._ledger.number()
            if self._ledger.chaos and id != 'idle' and self._rng.random() < 0.05:
                raise self._rng.choice([ValueError('timer'), kopf.TemporaryError('timer', delay=0.2)])
        finally:
            if not self._process.dead:
                self._ledger.leave_tick(id, uid)

    # Events, indices, levels.

    def _declare_events(self):
        async def watch(uid, type, body, **_):
            await self._process.alive()
            self._ledger.events[uid] = type, self._process.id, look_at(body)

        if self._options.observing:
            kopf.on.event(RESOURCE, id='slow', **self._common)(self._observe)
        kopf.on.event(RESOURCE, id='ev', **self._common)(watch)

    async def _observe(self, *, uid, patch, **_):
        await self._process.alive()
        key = f'events of {uid}'
        token = self._ledger.enter(self._process, key, 'slow')
        try:
            await asyncio.sleep(self._rng.choice([0, 0, 0.05, 0.3, 2]) if self._ledger.chaos else 0)
            await self._process.alive()
            if self._ledger.chaos and self._rng.random() < 0.1:
                patch.status['ob'] = self._ledger.number()
            if self._ledger.chaos and self._rng.random() < 0.1:
                raise self._rng.choice([ValueError, SystemExit, Panic])('observing')
        finally:
            self._ledger.leave(key, token)

    def _declare_index(self):
        async def index(uid, spec, **_):
            await self._process.alive()
            if self._rng.random() < 0.1:
                await asyncio.sleep(self._rng.choice([0, 0.05, 1]))
            if self._ledger.chaos and self._rng.random() < 0.05:
                raise kopf.TemporaryError('index', delay=self._rng.choice([0, 0.1]))
            return {uid: spec.get('a')}

        kopf.index(RESOURCE, id='ix', **self._common)(index)
        if self._options.odd:
            self._declare_odd_indices()

    def _declare_odd_indices(self):
        async def index(uid, spec, **_):
            await self._process.alive()
            await asyncio.sleep(self._rng.choice([0, 0, 0, 0.05, 3]))
            await self._process.alive()
            if self._ledger.chaos and self._rng.random() < 0.2:
                raise ValueError('odd')
            return {uid: spec.get('a')}

        kopf.index(RESOURCE, id='again', errors=kopf.ErrorsMode.TEMPORARY, backoff=0.3, **self._common)(index)
        kopf.index(RESOURCE, id='never', errors=kopf.ErrorsMode.PERMANENT, **self._common)(index)
        kopf.index(RESOURCE, id='twice', errors=kopf.ErrorsMode.TEMPORARY, retries=2, timeout=1, **self._common)(index)

    def _declare_levels(self):
        sources = {}
        if self._options.children:
            sources = {'owns': ['configmaps'], 'watches': {'secrets': _find_users}}
            kopf.index('configmaps', id='owned', registry=self._registry)(_index_children)
            kopf.index('secrets', id='used', registry=self._registry)(_index_secrets)
        kopf.on.reconcile(
            RESOURCE,
            id='lv',
            backoff=(0.1, self._options.level_backoff),
            interval=self._options.level_interval,
            **sources,
            **self._common,
        )(self._run_level)

    async def _run_level(self, *, uid, body, name, namespace, reasons, patch, **kwargs):
        await self._process.alive()
        token, seen, reasons = self._ledger.enter(self._process, uid, 'lv'), look_at(body), sorted(map(str, reasons))
        self._ledger.calls += reasons != ['interval']
        self._ledger.note(f'{self._process} level {name} {uid[-4:]} {seen} {reasons}')
        others = tuple(
            sorted([*kwargs.get('owned', {}).get(uid, ()), *kwargs.get('used', {}).get((namespace, name), ())])
        )
        try:
            await asyncio.sleep(self._rng.choice([0, 0, 0.05, 1]) if self._ledger.chaos else 0)
            await self._process.alive()
            if self._ledger.chaos and self._rng.random() < self._options.error_rate:
                raise self._rng.choice(
                    [kopf.TemporaryError('level', delay=self._rng.choice([0, 0.1, 1])), ValueError()]
                )
            if self._ledger.chaos and self._rng.random() < 0.2:
                patch.status['lv'] = self._ledger.number()
            if self._ledger.chaos and self._options.patching_spec and self._rng.random() < 0.1:
                patch.spec['x_lv'] = self._ledger.number()
            self._ledger.levels[uid] = seen, others, self._process.id, self._ledger.now
            self._ledger.leveled_by[uid].add(self._process.id)
            if self._ledger.chaos and self._rng.random() < 0.1:
                return kopf.Again(after=self._rng.choice([0.1, 1]))
        finally:
            self._ledger.leave(uid, token)
        return None

    # Handlers that are declared while the operator runs.

    def declare_late(self, number, kind):
        id = f'late{number}'
        self.late[id] = kind, self._ledger.now
        note = functools.partial(self._note_late, id)
        if kind == 'index':
            kopf.index(RESOURCE, id=id, **self._common)(lambda uid, **_: {uid: 1})
        elif kind == 'update':
            kopf.on.update(RESOURCE, id=id, field='spec.a', **self._common)(note)
        elif kind == 'field':
            kopf.on.field(RESOURCE, id=id, field='spec.a', **self._common)(note)
        elif kind == 'timer':
            kopf.timer(RESOURCE, id=id, interval=2, **self._common)(note)
        elif kind == 'daemon':
            kopf.daemon(RESOURCE, id=id, **self._common)(functools.partial(self._run_late, id))
        elif kind == 'level':
            kopf.on.reconcile(RESOURCE, id=id, **self._common)(note)
        elif kind == 'secret':
            kopf.on.event('secrets', id=id, registry=self._registry)(note)
        else:
            kopf.on.event(RESOURCE, id=id, **self._common)(note)

    async def _note_late(self, id, *, uid, body, **_):
        await self._process.alive()
        await asyncio.sleep(self._rng.choice([0, 0, 0.05]))
        await self._process.alive()
        self._ledger.late[self._process.id, id, uid] = self._ledger.now, look_at(body)

    async def _run_late(self, id, *, stopped, uid, **_):
        await self._process.alive()
        key = self._process.id, id, uid
        if key in self._ledger.late_daemons:
            self._ledger.fault(f'two daemons at once: {key}')
        self._ledger.late_daemons.add(key)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await stopped.wait()
                await asyncio.sleep(self._rng.choice([0, 0, 0.1, 0.5]))
        finally:
            self._ledger.late_daemons.discard(key)


def _find_users(namespace, body, **_):
    user = (body['metadata'].get('labels') or {}).get('used-by')
    return [(namespace, user)] if user else []


def _index_children(meta, name, **_):
    version = (meta.get('labels') or {}).get('v', '')
    return {owner['uid']: f'{name}={version}' for owner in meta.get('ownerReferences') or ()}


def _index_secrets(namespace, meta, name, **_):
    labels = meta.get('labels') or {}
    return {(namespace, labels['used-by']): f'{name}={labels.get("v", "")}'} if labels.get('used-by') else None
