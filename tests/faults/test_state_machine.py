"""
"No update is lost" and "nothing runs twice", for any order of what can happen to one object and one operator.

The reactor is real, from the watch to the patches; the API is in memory and the time is virtual, so that hypothesis can
decide on everything: edits, outcomes, what handlers patch, crashes, patches that are refused or whose answers are lost,
events that come as late as it likes, or never, as the stream breaks and everything is listed anew; and the kind: with a
generation or not, with the status as a subresource or not. In the end, the object is deleted.
"""

import asyncio
import contextlib
import dataclasses
import datetime
import itertools
import json
import logging
import random
import types

import jsonpatch
import looptime
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import kopf
from kopf._cogs.clients import errors, patching
from kopf._cogs.structs.patches import Patch
from kopf._cogs.structs.references import Resource
from kopf._core.actions import execution
from kopf._core.engines import changing, spawning
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.registries import HandlerTable
from kopf._core.reactor import applying, echoes, reconciling, throttling, watches
from kopf._core.reactor.indexing_gate import IndexingGate
from kopf._core.reactor.processing import Processor
from kopf._core.reactor.watches import ResourceWatch
from kopf._core.reactor.workers import WorkerPool

pytestmark = pytest.mark.timeout(300)

RESOURCE = Resource('kopf.dev', 'v1', 'kopfexamples', kind='KopfExample', verbs=frozenset({'list', 'watch', 'patch'}))
SPLIT = dataclasses.replace(RESOURCE, subresources=frozenset({'status'}))
LAST_HANDLED = 'kopf.zalando.org/last-handled-configuration'
START = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
WISHES = {
    'status': ['status'],
    'spec': ['spec'],
    'both': ['spec', 'status'],
    'function': ['spec'],
    'functions': ['spec', 'status'],
}
FAULTS = ['refused', 'lost', 'status refused', 'overtaken', 'none']
REST = 2000.0  # seconds without anything new, after which everything must be at rest


def look_at(raw):
    """Return what there is to be seen of an object: the fields that others edit, and those that the handlers patch."""
    return {**raw['spec'], 'l': raw['metadata'].get('labels', {}).get('l')}


def reduce(seen):
    """Only what others edit: what the handlers of a change patch themselves counts as seen by all of them."""
    return {key: seen.get(key) for key in ('a', 'b', 'l')}


class Server:
    """The API with one object: as much of it as the reactor needs. It is the client for it, too."""

    def __init__(self, resource, generation):
        self.resource = resource
        self.version = 100
        self.raw = {
            'apiVersion': 'kopf.dev/v1',
            'kind': 'KopfExample',
            'metadata': {'name': 'obj', 'uid': 'uid1', 'resourceVersion': '100'},
            'spec': {'a': 0, 'b': 0},
        }
        if generation:
            self.raw['metadata']['generation'] = 1
        self.history = [look_at(self.raw)]
        self.gone = False
        self.log = []  # the versions and the lines of all changes
        self.visible = 100
        """Up to which version the streams show what has happened."""
        self.changed = asyncio.Event()
        self.read_until = 0
        """The version that the operator has read last from the stream."""
        self.broken = False
        """Whether the next read of a stream fails, and everything is to be listed anew."""
        self.faults = []
        self.overtake = None
        """Edits and shows the object as another client, before a patch is answered."""
        self.patches = 0
        self.records = 0
        """How many of the patches have told how far the handlers are."""

    def put(self, raw):
        raw = json.loads(json.dumps(raw))
        if {**raw['metadata'], 'resourceVersion': ''} == {**self.raw['metadata'], 'resourceVersion': ''} and (
            raw['spec'] == self.raw['spec'] and raw.get('status') == self.raw.get('status')
        ):
            return  # as in Kubernetes, this is no change
        is_split = bool(self.resource.subresources)
        if 'generation' in raw['metadata'] and (
            raw['spec'] != self.raw['spec'] or (not is_split and raw.get('status') != self.raw.get('status'))
        ):
            raw['metadata']['generation'] = self.raw['metadata']['generation'] + 1
        self.gone = 'deletionTimestamp' in raw['metadata'] and not raw['metadata'].get('finalizers')
        self.version += random.Random(self.version).randint(1, 3)
        raw['metadata']['resourceVersion'] = str(self.version)
        self.raw = raw
        self.history.append(look_at(raw))
        type_ = 'DELETED' if self.gone else 'MODIFIED'
        self.log.append((self.version, json.dumps({'type': type_, 'object': raw}).encode()))

    def delete(self):
        self.put({**self.raw, 'metadata': {**self.raw['metadata'], 'deletionTimestamp': '2030-01-01T00:00:00Z'}})

    def show(self, count=None):
        hidden = [version for version, _ in self.log if version > self.visible]
        if hidden:
            self.visible = hidden[-1] if count is None else hidden[min(count, len(hidden)) - 1]
        self.changed.set()

    def break_streams(self):
        self.broken = True
        self.changed.set()

    # As the client.

    is_fenced = False
    cluster_generation = 0

    async def get_json(self, path, params=None, *, logger=None):
        await asyncio.sleep(0.01)
        if path.endswith('/obj'):
            if self.gone:
                raise errors.APINotFoundError('gone', status=404, code=404)
            return self.raw
        self.visible = self.version  # a list is never older than what is read directly
        items = [] if self.gone else [self.raw]
        return {'kind': 'KopfExampleList', 'metadata': {'resourceVersion': str(self.version)}, 'items': items}

    async def patch(self, path, payload, content_type, *, logger=None, guard=None):
        is_status = path.endswith('/status')
        # The last patch of a change is overtaken: after any other one, the next patch brings the newest state anyway.
        is_last = LAST_HANDLED in json.dumps(payload) or LAST_HANDLED.replace('/', '~1') in json.dumps(payload)
        unsuitable = {'status refused': not is_status, 'overtaken': not is_last}
        waiting = unsuitable.get(self.faults[0] if self.faults else None, False)
        fault = self.faults.pop(0) if self.faults and not waiting else None
        await asyncio.sleep(0.01)
        if fault in ('refused', 'status refused'):
            raise errors.APIServerError('down', status=500)
        if self.gone:
            raise errors.APINotFoundError('gone', status=404, code=404)
        if content_type == patching._JSON:
            try:
                new = jsonpatch.apply_patch(self.raw, payload)
            except jsonpatch.JsonPatchTestFailed as error:
                raise errors.APIUnprocessableError('the test has failed', status=422) from error
        else:
            assert is_status or payload['metadata']['uid'] == 'uid1'
            if (
                payload['metadata'].get('resourceVersion', self.raw['metadata']['resourceVersion'])
                != (self.raw['metadata']['resourceVersion'])
            ):
                raise errors.APIConflictError('changed', status=409)
            new = Patch(payload).applied_to(self.raw)
        if is_status:
            new = {**self.raw, 'status': new.get('status')}
        elif self.resource.subresources:
            new = {**new, 'status': self.raw.get('status')}
        self.put({key: value for key, value in new.items() if value is not None})
        self.patches += 1
        self.records += any(mark in json.dumps(payload) for mark in ('kopf.zalando.org', '/metadata/finalizers'))
        result = self.raw
        if fault == 'overtaken':
            self.overtake()
        await asyncio.sleep(0.01)
        if fault == 'lost':
            raise errors.APIConnectionError('reset')
        return result

    @contextlib.asynccontextmanager
    async def stream(self, path, params, *, opening=None):
        self.broken = False
        self.read_until = int(params['resourceVersion'])
        yield self._iterate()

    async def _iterate(self):
        while True:
            if self.broken:
                raise errors.APIGoneError('too old', status=410)
            lines = [(version, line) for version, line in self.log if self.read_until < version <= self.visible]
            for version, line in lines:
                self.read_until = version
                yield [line]
            if not lines:
                self.changed.clear()
                await self.changed.wait()


class Process:
    """One life of an operator, until it is killed."""

    def __init__(self, server, registry):
        options = kopf.OperatorSettings()
        options.watching.streaming_lists = False
        options.watching.inactivity_timeout = 1e9
        table = HandlerTable.build(registry, server.resource, set(registry.iter_selectors()))
        self.workers = WorkerPool(options, IndexingGate())
        processor = Processor(
            OperatorContext(settings=options, lifecycle=kopf.lifecycles.asap, memo=kopf.Memo()),
            client=server,
            table=table,
            workers=self.workers,
        )
        self.watch = ResourceWatch(server, options, server.resource, None, processor)
        self.task = asyncio.create_task(self.watch.run())

    async def kill(self):
        loop = asyncio.get_running_loop()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for record in self.watch.records.values():
            record.cancel_wakeup()
        self.workers.ending = True
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert loop.time() < 1e6


class Operator(RuleBasedStateMachine):
    """What happens, in any order."""

    fields = st.sampled_from(['a', 'b', 'l'])
    edits = st.none() | st.builds(lambda field, value: {field: value}, fields, st.integers(0, 2))
    outcomes = st.sampled_from(['success', 'retry', 'fail', 'status', 'spec', 'both', 'function', 'functions'])

    def __init__(self):
        super().__init__()
        self.stack = contextlib.ExitStack()
        self.plan = []
        self.runs = []  # the handler, what it has seen, how many records there were by then; if it has succeeded
        self.numbers = itertools.count(1)
        self.running = 0
        self.process = None
        self.farewell = [], None
        self.complaints = []

    def open(self):
        """Begin a time of its own."""
        self.loop = looptime.new_event_loop(start=0, noop_cycles=0)  # nothing comes from outside of the loop
        self.stack.callback(self.loop.close)
        logger = logging.getLogger('kopf')
        self.stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.CRITICAL)
        patching = self.stack.enter_context(pytest.MonkeyPatch.context())
        for module in (applying, echoes, spawning, throttling, watches):
            patching.setattr(module, 'time', types.SimpleNamespace(monotonic=self.loop.time))
        self.retries = {}  # when the handlers may run again at the earliest
        for module in (execution, reconciling, changing):
            patching.setattr(module, 'utcnow', self.now)

    def now(self):
        return START + datetime.timedelta(seconds=self.loop.time())

    def run(self, coro):
        return self.loop.run_until_complete(coro)

    @initialize(creating=st.booleans(), resource=st.sampled_from([RESOURCE, SPLIT]), generation=st.booleans())
    def start(self, creating, resource, generation):
        async def begin():
            self.server = Server(resource, generation)
            self.server.overtake = self.overtake
            self.registry = kopf.OperatorRegistry()
            decorators = {
                'create1': kopf.on.create,
                'create2': kopf.on.create,
                'update1': kopf.on.update,
                'update2': kopf.on.update,
                'update3': kopf.on.update,
                'resume': kopf.on.resume,
                'delete1': kopf.on.delete,
                'delete2': kopf.on.delete,
            }
            for id, decorator in decorators.items():
                decorator('kopfexamples', id=id, registry=self.registry)(self.make_handler(id))
            field = kopf.on.field('kopfexamples', field='spec.a', id='field', registry=self.registry)
            field(self.make_handler('field'))
            self.process = Process(self.server, self.registry)
            if not creating:
                await asyncio.sleep(10)
                self.server.show()

        self.open()
        self.run(begin())

    def make_handler(self, id):
        async def fn(body, patch, retry, reason, old, **_):
            assert not self.running, "two handlers of the object run at the same time"
            if self.loop.time() < self.retries.pop((reason, id), 0):
                self.complaints.append(f"{id} is tried again too early")
            if id != 'field':
                self.check_state(reason, old)
            self.running += 1
            try:
                await self.handle(id, look_at(body), patch, reason)
            finally:
                self.running -= 1

        return fn

    def check_state(self, reason, old):
        """Check what the handlers are told of the past."""
        if not old or 'a' not in old['spec']:
            return  # it is new, or its former value is unknown
        if reduce(look_at({'metadata': {}, **old})) not in map(reduce, self.server.history):
            self.complaints.append(f"{reason} is told of a past that never was: {old}")

    async def handle(self, id, seen, patch, reason):
        outcome, edit = self.plan.pop(0) if self.plan else ('success', None)
        run = len(self.runs)
        self.runs.append((id, seen, self.server.records, False, {}))
        await asyncio.sleep(0.05)
        if edit is not None:
            self.do_edit(**edit)
        if outcome in ('retry', 'fail'):
            self.retries[reason, id] = self.loop.time() + {'retry': 3, 'fail': 60}[outcome] - 0.001
        if outcome == 'retry':
            raise kopf.TemporaryError('later', delay=3)
        if outcome == 'fail':
            raise ValueError('try again')
        if outcome == 'hang':
            await asyncio.sleep(1e5)
        number = next(self.numbers)
        wishes = WISHES.get(outcome, ())
        for field in wishes:
            if outcome.startswith('function'):
                patch.fns.append(lambda body, field=field: body.setdefault(field, {}).update({id: number}))
            else:
                patch.setdefault(field, {})[id] = number
        self.runs[run] = (id, seen, self.server.records, True, {(field, id): number for field in wishes})

    def do_edit(self, **values):
        label = values.pop('l', None)
        raw = {**self.server.raw, 'spec': {**self.server.raw['spec'], **values}}
        if label is not None:
            labels = {'l': str(label)} if label else {}
            raw['metadata'] = {
                **{key: value for key, value in raw['metadata'].items() if key != 'labels'},
                **({'labels': labels} if labels else {}),
            }
        self.server.put(raw)

    def overtake(self):
        if not self.server.gone:
            self.do_edit(b=(self.server.raw['spec']['b'] + 1) % 3)
            self.server.show()

    # What others do.

    @rule(field=fields, value=st.integers(0, 2))
    def edit(self, field, value):
        self.do_edit(**{field: value})

    @rule()
    def change_the_status(self):
        status = {**self.server.raw.get('status', {}), 'foreign': self.server.version}
        self.server.put({**self.server.raw, 'status': status})

    @rule(plan=st.lists(st.tuples(outcomes, edits), min_size=1, max_size=4), seconds=st.sampled_from([0, 0.1, 2]))
    def let_handlers_do(self, plan, seconds):
        self.plan = plan
        self.do_edit(a=(self.server.raw['spec']['a'] + 1) % 3)
        self.server.show()
        self.run(asyncio.sleep(seconds))

    @rule(faults=st.lists(st.sampled_from(FAULTS), min_size=1, max_size=4))
    def let_patches_fail(self, faults):
        self.server.faults = faults

    @rule(plan=st.lists(st.tuples(outcomes, st.none()), max_size=4), crash=st.none() | st.sampled_from([0, 0.07, 2]))
    def let_it_end(self, plan, crash):
        self.farewell = plan, crash

    # What the network does.

    @rule(count=st.none() | st.integers(1, 3), seconds=st.sampled_from([0.02, 0.2, 2, 20, 100]))
    def show_events(self, count, seconds):
        self.server.show(count)
        self.run(asyncio.sleep(seconds))

    @rule(seconds=st.sampled_from([0.001, 0.03, 0.07, 0.5, 7, 100]))
    def wait_without_events(self, seconds):
        self.run(asyncio.sleep(seconds))

    @rule(seconds=st.sampled_from([0.001, 0.03, 0.2, 5]))
    def list_anew(self, seconds):
        self.server.break_streams()
        self.run(asyncio.sleep(seconds))

    # What the operator does.

    @rule(seconds=st.sampled_from([0, 0.06, 1]), hang=st.booleans())
    def crash(self, seconds, hang):
        if hang:
            self.plan = [('hang', None)]
        self.run(self.restart(seconds))

    @rule(field=fields, value=st.integers(0, 2))
    def crash_and_edit(self, field, value):
        self.run(self.restart(0, {field: value}))

    async def restart(self, seconds, edit=None):
        await asyncio.sleep(seconds)
        await self.process.kill()
        self.plan, self.retries = [], {}
        # An outcome that could not be stored before the crash is unknown to the next process.
        self.runs = [run for run in self.runs if run[2] != self.server.records]
        if edit is not None:
            self.do_edit(**edit)
        self.process = Process(self.server, self.registry)

    # What must be true in the end.

    def teardown(self):
        try:
            if self.process is not None:
                self.run(self.come_to_rest())
                self.check()
                self.run(self.come_to_rest(overtaken=True))
                self.check()
                self.run(self.end())
                self.check_end()
                assert not self.complaints
        finally:
            if self.process is not None:
                self.run(self.process.kill())
            self.stack.close()

    async def come_to_rest(self, *, overtaken=False):
        self.plan, self.server.faults = [], []
        if overtaken:
            # By an edit that is the last one, so that no later one makes up for its loss.
            self.server.faults = ['overtaken']
            self.do_edit(a=(self.server.raw['spec']['a'] + 1) % 3)
        for _ in range(20):
            self.server.show()
            await asyncio.sleep(REST / 20)
        self.patched = self.server.patches
        self.server.show()
        await asyncio.sleep(REST)
        assert self.server.patches == self.patched, "it is not at rest"

    def check(self):
        raw = self.server.raw
        final = reduce(look_at(raw))
        annotations = self.server.raw['metadata']['annotations']
        assert list(annotations) == [LAST_HANDLED]
        assert look_at({'metadata': {}, **json.loads(annotations[LAST_HANDLED])}) == look_at(raw)
        assert self.server.read_until == self.server.version, "the stream has ended, or lags behind"
        [record] = self.process.watch.records.values()
        assert record.body is record.cycle is record.pending_patch is record.pending is record.wakeup is None
        assert not record.has_worker and not record.throttled
        successes = {
            id: [seen for other, seen, _, success, _ in self.runs if other == id and success]
            for id in ('create1', 'create2', 'update1', 'update2', 'update3', 'field', 'resume')
        }
        assert len(successes['create1']) <= 1 and len(successes['create2']) <= 1
        created_with = next(seen for id, seen, _, success, _ in self.runs if success and not id.startswith('update'))
        for id in ('update1', 'update2', 'update3'):
            last = successes[id][-1] if successes[id] else created_with
            assert reduce(last) == final, f"{id} has missed an update"
            assert [success for other, _, _, success, _ in self.runs if other == id][-1:] != [False], f"{id} gives up"
        assert successes['field'][-1]['a'] == final['a'], "the field's handler has missed an update"
        for id in ('update1', 'update2', 'update3'):
            for one, other in itertools.pairwise(successes[id]):
                assert one != other or self.has_moved(one), f"{id} has run twice for {one}"
        for _, _, _, success, wishes in self.runs:
            for (field, id), number in wishes.items() if success else ():
                assert raw[field].get(id, 0) >= number, f"what {id} has put into the {field} is lost"

    async def end(self):
        self.runs, (self.plan, crash) = [], self.farewell
        self.server.delete()
        self.server.show()
        if crash is not None:
            await self.restart(crash)
        for _ in range(5):
            self.server.show()
            await asyncio.sleep(REST / 5)

    def check_end(self):
        assert self.server.gone
        assert not self.process.watch.records
        assert sorted(id for id, _, _, success, _ in self.runs if success) == ['delete1', 'delete2']

    def has_moved(self, seen):
        """Check whether the object has become the same again after it was something else."""
        return [state for state, _ in itertools.groupby(self.server.history)].count(seen) > 1


# Without the explanation of failures: it would trace every line of the reactor.
SETTINGS = settings(stateful_step_count=20, phases=set(Phase) - {Phase.explain})
Operator.TestCase.settings = SETTINGS
test_no_update_is_lost_and_nothing_runs_twice = Operator.TestCase


class LongerOperator(Operator):
    """The same with six times as many examples."""


LongerOperator.TestCase.settings = settings(SETTINGS, max_examples=6 * settings.default.max_examples)
test_no_update_is_lost_and_nothing_runs_twice_in_more_examples = pytest.mark.long(LongerOperator.TestCase)
