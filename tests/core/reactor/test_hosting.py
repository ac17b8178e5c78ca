"""Daemons and the processing of their objects: finalizers, patches from both sides, and deletion in one piece.

The scene is one object in memory, with versions and finalizers; its events come when the test lets them.
"""

import asyncio
import types

import jsonpatch
import pytest

import kopf
from kopf._cogs.clients import errors
from kopf._cogs.structs.references import Resource
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.registries import HandlerTable, OperatorRegistry
from kopf._core.reactor.indexing_gate import IndexingGate
from kopf._core.reactor.object_records import ObjectRecord
from kopf._core.reactor.processing import Processor
from kopf._core.reactor.workers import WorkerPool

pytestmark = pytest.mark.looptime

FINALIZER = 'kopf.zalando.org/KopfFinalizerMarker'


class Scene:
    """One object, and the operator that serves it."""

    is_fenced = False

    def __init__(self):
        self.registry = OperatorRegistry()
        self.settings = kopf.OperatorSettings()
        self.version = 0
        self.raw = None
        self.events = []
        self.delay = 0.0  # of the answers to patches
        self.patches = []
        self.record = None

    def start(self, workers=None):
        resource = Resource('kopf.dev', 'v1', 'kopfexamples', kind='KopfExample', namespaced=True)
        table = HandlerTable.build(self.registry, resource, set(self.registry.iter_selectors()))
        self.workers = workers or WorkerPool(self.settings, IndexingGate())
        self.processor = Processor(
            OperatorContext(settings=self.settings, lifecycle=kopf.lifecycles.all_at_once, memo=kopf.Memo()),
            client=self,
            table=table,
            workers=self.workers,
        )

    # Of the API.

    async def patch(self, path, payload, content_type, *, logger, guard=None):
        if self.raw is None:
            raise errors.APINotFoundError('gone', status=404)
        self.patches.append(payload)
        if isinstance(payload, list):
            try:
                raw = jsonpatch.apply_patch(self.raw, payload)
            except jsonpatch.JsonPatchTestFailed as error:
                raise errors.APIUnprocessableError('a newer version', status=422) from error
        else:
            raw = kopf.Patch(payload).applied_to(self.raw)
        answer = self._store(raw)
        await asyncio.sleep(self.delay)
        return answer

    async def get_json(self, path, *, logger):
        return self.raw

    def _store(self, raw):
        if raw['metadata'].get('deletionTimestamp') and not raw['metadata'].get('finalizers'):
            self.events.append({'type': 'DELETED', 'object': raw})
            self.raw = None
            return raw  # the version stays as it was
        self.version += 1
        raw = {**raw, 'metadata': {**raw['metadata'], 'resourceVersion': str(self.version)}}
        self.events.append({'type': 'MODIFIED' if self.raw else 'ADDED', 'object': raw})
        self.raw = raw
        return raw

    # Of tests.

    @property
    def watch(self):
        return types.SimpleNamespace(records={'uid': self.record}, get_known=lambda: [self.record])

    def create(self, **fields):
        self.start()
        self.record = ObjectRecord('uid', 'ns', 'obj', initial=False)
        self._store(
            {
                'apiVersion': 'kopf.dev/v1',
                'kind': 'KopfExample',
                'spec': {},
                'metadata': {'name': 'obj', 'namespace': 'ns', 'uid': 'uid'},
                **fields,
            }
        )

    def edit(self, metadata=(), **fields):
        self._store({**self.raw, **fields, 'metadata': {**self.raw['metadata'], **dict(metadata)}})

    def delete(self):
        self.edit(metadata={'deletionTimestamp': '2030-01-01T00:00:00Z'})

    def feed(self):
        """Let the operator see what has happened so far."""
        while self.events:
            self.processor.receive(self.record, self.events.pop(0), listed_since=None)

    async def run(self, seconds=0.0):
        """Let the time pass, with all events seen at once."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while True:
            for _ in range(20):
                self.feed()
                await asyncio.sleep(0)
            if loop.time() >= end:
                return
            await asyncio.sleep(0.05)


@pytest.fixture
async def scene():
    scene = Scene()
    yield scene
    if scene.record is not None:
        await scene.workers.close()


async def test_the_finalizer_comes_first_and_stays_while_a_daemon_runs(scene):
    held = []

    @kopf.daemon('kopfexamples', registry=scene.registry)
    async def fn(stopped, meta, **_):
        held.append(list(meta['finalizers']))
        await stopped.wait()
        await asyncio.sleep(3)

    scene.create()
    await scene.run(1)
    assert held == [[FINALIZER]]
    assert len(scene.patches) == 1
    scene.delete()
    await scene.run(2)
    assert scene.raw is not None
    await scene.run(1.1)
    assert scene.raw is None
    assert len(scene.patches) == 2


async def test_an_object_whose_daemons_have_ended_by_themselves_is_freed(scene):
    @kopf.daemon('kopfexamples', registry=scene.registry)
    async def fn(**_):
        await asyncio.sleep(3)

    scene.create()
    await scene.run(2)
    assert scene.raw['metadata']['finalizers'] == [FINALIZER]
    await scene.run(2)
    assert 'finalizers' not in scene.raw['metadata']
    assert scene.record.body is None


async def test_an_object_whose_daemons_end_at_once_is_freed(scene):
    @kopf.daemon('kopfexamples', registry=scene.registry)
    async def fn(**_):
        raise kopf.PermanentError("It is of no use.")

    scene.create()
    await scene.run(1)
    assert 'finalizers' not in scene.raw['metadata']
    assert len(scene.patches) == 2 and scene.record.body is None


@pytest.mark.parametrize('lingering, patches', [(0, 0), (0.5, 0), (3, 1)])
async def test_deletion_handlers_run_once_however_long_the_daemons_take(scene, lingering, patches):
    deletions = []

    @kopf.daemon('kopfexamples', registry=scene.registry)
    async def fn(stopped, **_):
        await stopped.wait()
        await asyncio.sleep(lingering)

    @kopf.on.delete('kopfexamples', registry=scene.registry)
    async def deleted(**_):
        deletions.append(1)

    scene.create()
    await scene.run(1)
    del scene.patches[:]
    scene.delete()
    await scene.run(5)
    assert deletions == [1]
    assert scene.raw is None
    assert len(scene.patches) == patches + 1


async def test_a_restarted_operator_knows_that_the_deletion_is_handled(scene):
    deletions = []

    @kopf.daemon('kopfexamples', registry=scene.registry, id='fn')
    async def fn(stopped, **_):
        await stopped.wait()
        await asyncio.sleep(100)

    @kopf.on.delete('kopfexamples', registry=scene.registry)
    async def deleted(**_):
        deletions.append(1)

    scene.create()
    await scene.run(1)
    scene.delete()
    await scene.run(3)
    await scene.workers.close()
    scene.start()
    scene.record = ObjectRecord('uid', 'ns', 'obj', initial=True)
    scene.events = [{'type': None, 'object': scene.raw}]
    await scene.run(1)
    assert scene.raw is None
    assert deletions == [1]


async def test_daemons_are_stopped_even_while_a_handler_takes_long(scene):
    stops = []

    @kopf.daemon('kopfexamples', registry=scene.registry)
    async def fn(stopped, **_):
        await stopped.wait()
        stops.append(asyncio.get_running_loop().time())

    @kopf.on.update('kopfexamples', registry=scene.registry)
    async def updated(**_):
        await asyncio.sleep(10)

    scene.create()
    await scene.run(1)
    scene.edit(spec={'x': 1})
    await scene.run(1)
    scene.delete()
    now = asyncio.get_running_loop().time()
    await scene.run(0.1)
    assert stops and stops[0] - now < 0.1
    await scene.run(12)
    assert scene.raw is None


async def test_echoes_of_daemons_patches_are_no_work(scene):
    updates = []

    @kopf.timer('kopfexamples', registry=scene.registry, interval=1)
    async def fn(patch, status, **_):
        patch.status['count'] = status.get('count', 0) + 1

    @kopf.on.update('kopfexamples', registry=scene.registry)
    async def updated(**_):
        updates.append(1)

    scene.create()
    await scene.run(10.5)
    assert scene.raw['status'] == {'count': 11}
    assert len(scene.patches) == 2 + 11  # the finalizer, the last-handled state, and those of the timer
    assert updates == []
    await asyncio.sleep(1)
    assert len(scene.patches) == 2 + 12
    assert scene.record.body is None  # even before the echo


async def test_essential_patches_of_daemons_are_handled(scene):
    updates = []

    @kopf.timer('kopfexamples', registry=scene.registry, interval=100, initial_delay=5)
    async def fn(patch, **_):
        patch.spec['x'] = 1

    @kopf.on.update('kopfexamples', registry=scene.registry)
    async def updated(diff, **_):
        updates.append(tuple(diff))

    scene.create()
    await scene.run(10)
    assert updates == [(('add', ('spec', 'x'), None, 1),)]


async def test_edits_that_are_seen_after_a_daemons_patch_are_not_lost(scene):
    seen = []

    @kopf.timer('kopfexamples', registry=scene.registry, interval=100, initial_delay=5)
    async def fn(patch, **_):
        scene.edit(spec={'x': 'of another client'})  # its event comes later than the answer to the patch
        patch.status['y'] = 1

    @kopf.on.update('kopfexamples', registry=scene.registry)
    async def updated(spec, **_):
        seen.append(dict(spec))

    scene.create()
    await scene.run(4)
    await asyncio.sleep(2)
    assert scene.raw['status'] == {'y': 1}
    assert seen == [{'x': 'of another client'}]
    await scene.run(2)
    assert seen == [{'x': 'of another client'}]


async def test_answers_that_come_late_do_not_bring_back_old_states(scene):
    seen = []

    @kopf.timer('kopfexamples', registry=scene.registry, interval=1e9, initial_delay=5)
    async def fn(patch, **_):
        scene.delay = 3
        patch.status['y'] = 1

    @kopf.on.update('kopfexamples', registry=scene.registry)
    async def updated(spec, **_):
        seen.append(dict(spec))

    scene.create()
    await scene.run(6)
    scene.delay = 0
    scene.edit(spec={'x': 'newer than the patch'})
    await scene.run(10)
    assert seen == [{'x': 'newer than the patch'}]
    assert scene.record.daemons.body.spec == {'x': 'newer than the patch'}


async def test_answers_to_handlers_that_come_late_do_not_bring_back_the_states_before_a_daemons_patch(scene):
    seen = []

    @kopf.timer('kopfexamples', registry=scene.registry, interval=1e9, initial_delay=5)
    async def fn(patch, **_):
        patch.spec['x'] = 'of the timer'

    @kopf.on.update('kopfexamples', registry=scene.registry, field='spec.y')
    async def updated(spec, patch, retry, **_):
        seen.append(dict(spec))
        if not retry:
            patch.status['z'] = 1
            scene.delay = 3  # the answer comes when the timer has changed the object
            asyncio.get_running_loop().call_later(0.2, setattr, scene, 'delay', 0.0)
            raise kopf.TemporaryError("once more", delay=0)

    scene.create()
    await scene.run(4.5)
    scene.edit(spec={'y': 1})
    await scene.run()
    await asyncio.sleep(10)  # the stream is even later
    assert seen == [{'y': 1}, {'x': 'of the timer', 'y': 1}]


async def test_functions_of_daemons_are_applied_to_a_fresher_state(scene):
    @kopf.timer('kopfexamples', registry=scene.registry, interval=100, initial_delay=5)
    async def fn(patch, **_):
        scene.edit(spec={'items': [1, 2]})
        patch.fns.append(lambda body: body['spec'].setdefault('items', []).append(3))

    scene.create()
    await scene.run(4)
    await asyncio.sleep(2)
    assert scene.raw['spec'] == {'items': [1, 2, 3]}


async def test_an_object_that_vanishes_ends_its_daemons(scene):
    reasons = []

    @kopf.daemon('kopfexamples', registry=scene.registry)
    async def fn(stopped, patch, spec, **_):
        await stopped.wait()
        await asyncio.sleep(1)
        reasons.append((stopped.reason, dict(spec)))
        patch.status['x'] = 1

    scene.create(spec={'field': 'value'})
    await scene.run(1)
    scene.raw = None
    scene.events = [{'type': 'DELETED', 'object': {'metadata': {'name': 'obj', 'namespace': 'ns', 'uid': 'uid'}}}]
    await scene.run(3)
    assert reasons == [(kopf.DaemonStoppingReason.RESOURCE_DELETED, {'field': 'value'})]
    assert len(scene.workers.background) == 0
    assert not scene.record.has_worker


async def test_daemons_see_what_others_change(scene):
    bodies = []

    @kopf.daemon('kopfexamples', registry=scene.registry)
    async def fn(stopped, body, **_):
        bodies.append(body)
        await stopped.wait()

    scene.create(spec={'field': 'value'})
    await scene.run(1)
    scene.edit(spec={'field': 'other'})
    await scene.run(1)
    assert [dict(body.spec) for body in bodies] == [{'field': 'other'}]


async def test_the_operators_end_leaves_the_finalizer(scene):
    @kopf.daemon('kopfexamples', registry=scene.registry)
    async def fn(stopped, **_):
        await stopped.wait()

    scene.create()
    await scene.run(1)
    await scene.workers.close()
    await scene.run(1)
    assert scene.raw['metadata']['finalizers'] == [FINALIZER]
    assert len(scene.patches) == 1


async def test_a_pause_stops_daemons_and_the_next_list_starts_them(scene):
    notes = []

    @kopf.daemon('kopfexamples', registry=scene.registry)
    async def fn(stopped, **_):
        notes.append('start')
        await stopped.wait()
        notes.append(stopped.reason)

    scene.create()
    await scene.run(1)
    scene.workers.pause()
    await scene.run(1)
    assert notes == ['start', kopf.DaemonStoppingReason.OPERATOR_PAUSING]
    scene.processor.resumed(scene.watch)
    scene.workers.resume()
    scene.events = [{'type': None, 'object': scene.raw}]
    await scene.run(1)
    assert notes[2:] == ['start']


async def test_objects_that_are_not_served_any_more_lose_their_daemons(scene):
    notes = []

    @kopf.daemon('kopfexamples', registry=scene.registry)
    async def fn(stopped, **_):
        await stopped.wait()
        notes.append(stopped.reason)

    scene.create()
    await scene.run(1)
    scene.processor.dropped(scene.watch)
    await scene.run(1)
    assert notes == [kopf.DaemonStoppingReason.RESOURCE_DELETED]
    assert scene.raw['metadata']['finalizers'] == [FINALIZER]


async def test_failing_filters_stop_neither_the_watch_nor_other_objects(scene, caplog):
    @kopf.daemon('kopfexamples', registry=scene.registry, when=lambda spec, **_: 1 / spec.get('x', 0))
    async def fn(stopped, memo, **_):
        memo.started = True
        await stopped.wait()

    scene.create()
    await scene.run(0.5)
    assert 'ZeroDivisionError' in caplog.text
    scene.edit(spec={'x': 1})
    await scene.run(3)
    assert scene.record.memo == {'started': True}


# What ends at once, while the event of it is being received.


async def test_timers_do_not_begin_anew_for_objects_that_have_vanished(scene):
    runs = []

    @kopf.timer('kopfexamples', registry=scene.registry, interval=10)
    async def fn(**_):
        runs.append(1)

    scene.create()
    await scene.run(1)
    scene.raw = None
    scene.events.append(
        {
            'type': 'DELETED',
            'object': {
                'apiVersion': 'kopf.dev/v1',
                'kind': 'KopfExample',
                'metadata': {'name': 'obj', 'namespace': 'ns', 'uid': 'uid'},
            },
        }
    )  # as relists tell of it
    await scene.run(1)
    assert runs == [1]


async def test_raw_events_go_first_also_if_timers_end_by_them(scene):
    seen = []

    @kopf.timer('kopfexamples', registry=scene.registry, interval=10)
    async def fn(**_):
        pass

    @kopf.on.event('kopfexamples', registry=scene.registry)
    async def watch(meta, **_):
        seen.append(('event', bool(meta.deletion_timestamp)))

    @kopf.on.delete('kopfexamples', registry=scene.registry)
    async def delete(**_):
        seen.append('delete')

    scene.create()
    await scene.run(1)
    seen.clear()
    scene.delete()
    await scene.run(3)
    assert seen[:2] == [('event', True), 'delete']


async def test_a_patch_of_a_daemon_that_outlasts_its_processor_is_handled_by_the_next_one(scene):
    updates = []

    @kopf.timer('kopfexamples', registry=scene.registry, interval=1e9, initial_delay=5)
    async def fn(patch, **_):
        scene.delay = 3
        patch.spec['x'] = 1

    @kopf.on.update('kopfexamples', registry=scene.registry)
    async def updated(spec, **_):
        updates.append(dict(spec))

    scene.create()
    await scene.run(4)
    await asyncio.sleep(2)  # the patch is being answered; there are no events from now on
    former = scene.processor
    scene.start(scene.workers)
    former.retire(scene.processor, [scene.record])
    former.released(scene.watch)
    assert updates == []
    await asyncio.sleep(8)
    assert updates == [{'x': 1}]


async def test_the_answer_to_a_daemons_patch_does_not_revive_an_object_that_is_gone(scene):
    calls = []

    @kopf.timer('kopfexamples', registry=scene.registry, interval=1e9, initial_delay=5)
    async def fn(patch, **_):
        scene.delay = 3
        patch.spec['x'] = 1

    @kopf.on.update('kopfexamples', registry=scene.registry)
    async def updated(**_):
        calls.append('update')

    scene.create()
    await scene.run(4)
    await asyncio.sleep(2)  # the patch is stored, but its answer is on its way
    scene.raw = None
    scene.events = [{'type': 'DELETED', 'object': {'metadata': {'name': 'obj', 'namespace': 'ns', 'uid': 'uid'}}}]
    await scene.run(10)
    assert calls == []
    assert scene.record.body is None and scene.record.expected is None and not scene.record.in_use


async def test_patches_for_events_from_before_the_operators_own_patch_do_not_repeat_handlers(scene):
    calls = []

    @kopf.on.event('kopfexamples', registry=scene.registry)
    async def observed(spec, patch, **_):
        patch.status['seen'] = spec.get('x')

    @kopf.on.create('kopfexamples', registry=scene.registry)
    @kopf.on.update('kopfexamples', registry=scene.registry, id='updated')
    async def handled(spec, reason, **_):
        calls.append((reason, spec.get('x')))

    scene.create(spec={'x': 1})
    await scene.run(1)
    scene.edit(spec={'x': 2})
    old = scene.events[-1]
    await scene.run(1)
    assert calls == [('create', 1), ('update', 2)] and scene.raw['status'] == {'seen': 2}
    scene.edit(status={'seen': None})
    scene.events = [old]  # as if the stream was late: from before the patch with the handled state
    await scene.run(1)
    assert calls == [('create', 1), ('update', 2)]
    assert scene.raw['status'] == {'seen': 2}  # but the patch of the handler of raw events is applied
