"""Functions run once at a time while their objects get another watch, or leave the selection and come back."""

import asyncio
import gc
import threading

import pytest
import yaml
from operatorworld import Gate, in_virtual_time

import kopf
from kopf._core.reactor.object_records import ObjectRecord

WAYS = ['upgraded', 'declared', 'reselected']


class Work:
    """One run of a function for one object: it lasts until the test lets it go, even if it is cancelled."""

    def __init__(self, world, *, threaded, until_stopped=False):
        self.world, self.threaded, self.until_stopped = world, threaded, until_stopped
        self.loop = asyncio.get_running_loop()
        self.let_go = threading.Event()
        self.begun = self.running = self.most = self.ended = self.stopped = 0

    def declare(self, decorator, **options):
        def sync_fn(name, **kwargs):
            if name != 'obj':
                return None
            self.loop.call_soon_threadsafe(self._enter)
            if self.until_stopped:
                kwargs['stopped'].wait()
                self.loop.call_soon_threadsafe(self._note_stop)
            self.let_go.wait(60)
            self.loop.call_soon_threadsafe(self._leave)
            return None if self.until_stopped else {'key': 'result'}

        async def async_fn(name, **kwargs):
            if name != 'obj':
                return None
            self._enter()
            if self.until_stopped:
                await kwargs['stopped'].wait()
                self._note_stop()
            while not self.let_go.is_set():
                try:
                    await asyncio.sleep(0.01)
                except asyncio.CancelledError:  # in vain, as for a thread
                    pass
            self._leave()
            return None if self.until_stopped else {'key': 'result'}

        decorator('kopfexamples', id='work', registry=self.world.registry, **options)(
            sync_fn if self.threaded else async_fn
        )

    def _enter(self):
        self.begun += 1
        self.running += 1
        self.most = max(self.most, self.running)
        self.world.changed.set()

    def _note_stop(self):
        self.stopped += 1
        self.world.changed.set()

    def _leave(self):
        self.running -= 1
        self.ended += 1
        self.world.changed.set()


@pytest.fixture
def rewire(world):
    """Let the operator watch anew, and return when it has seen what is there; another object is not held up."""
    world.settings.watching.label_selectors['kopfexamples'] = 'app=x'
    world.declare(kopf.on.event, 'seen')

    async def upgrade():
        crd = yaml.safe_load((world.root / 'examples' / 'crd.yaml').read_text())
        crd['spec']['versions'].append({**crd['spec']['versions'][0], 'name': 'v2', 'storage': False})
        await world.aio.apply(crd)
        await world.until(
            lambda: any(
                call.kwargs['body']['apiVersion'].endswith('/v2') for call in world.calls if call.name == 'other'
            )
        )

    async def declare():
        world.declare(kopf.on.event, 'late')
        await world.until_called('late', name='other')

    async def reselect():
        await world.edit(metadata={'labels': {'app': 'y'}})
        await world.edit(metadata={'labels': {'app': 'x'}})
        await world.edit('other', field='fence')
        await world.until(
            lambda: any(call.kwargs['spec']['field'] == 'fence' for call in world.calls if call.name == 'other')
        )

    return {'upgraded': upgrade, 'declared': declare, 'reselected': reselect}


async def create_objects(world):
    await world.create('other', labels={'app': 'x'})
    await world.create(labels={'app': 'x'})


@pytest.mark.parametrize('threaded', [False, True], ids=['async', 'sync'])
@pytest.mark.parametrize('way', WAYS)
@in_virtual_time
async def test_a_handler_ends_and_its_success_is_stored(world, rewire, way, threaded):
    world.settings.queueing.exit_timeout = 0.1
    work = Work(world, threaded=threaded)
    work.declare(kopf.on.create)
    world.declare(kopf.on.update, 'update', field='spec.field')
    async with world.operator():
        await create_objects(world)
        await world.until(lambda: work.running)
        await rewire[way]()
        await world.edit(field='edited')
        await asyncio.sleep(0.3)  # more than what has been waited for before it was cancelled
        work.let_go.set()
        body = await world.handled(field='edited')
        await world.until_called('update', name='obj')
    assert (work.begun, work.most) == (1, 1)
    assert body['status']['work'] == {'key': 'result'}
    assert [kwargs['new'] for kwargs in world.called('update', 'obj')] == ['edited']


@pytest.mark.parametrize('threaded', [False, True], ids=['async', 'sync'])
@pytest.mark.parametrize(
    'options',
    [{'cancellation_backoff': 60}, {'cancellation_timeout': 0.05}, {}],
    ids=['patient', 'abandoned', 'endless'],
)
@pytest.mark.parametrize('way', ['upgraded', 'reselected'])
@pytest.mark.filterwarnings('ignore:.*did not exit in time')
@in_virtual_time
async def test_a_daemon_starts_again_when_the_former_one_has_ended(world, rewire, way, options, threaded):
    work = Work(world, threaded=threaded, until_stopped=True)
    work.declare(kopf.daemon, **options)
    async with world.operator():
        await create_objects(world)
        await world.until(lambda: work.running)
        await rewire[way]()
        await world.until(lambda: work.stopped)
        await asyncio.sleep(0.2)
        assert work.begun == 1
        work.let_go.set()
        await world.until(lambda: work.begun == 2)
    assert work.most == 1


@in_virtual_time
async def test_an_object_that_comes_back_to_be_deleted_is_freed_when_its_daemon_ends(world):
    world.settings.watching.label_selectors['kopfexamples'] = 'app=x'
    work = Work(world, threaded=False, until_stopped=True)
    work.declare(kopf.daemon)
    world.declare(kopf.on.event, 'seen')
    world.declare(kopf.on.delete, 'delete')
    async with world.operator():
        await world.create(labels={'app': 'x'})
        await world.until(lambda: work.running)
        await world.edit(metadata={'labels': {'app': 'y'}})
        await world.until(lambda: work.stopped and world.called('seen')[-1]['type'] == 'DELETED')
        await world.delete()
        await world.edit(metadata={'labels': {'app': 'x'}})
        await world.aio.wait_for(
            'kopfexamples', 'obj', lambda body: any('delete' in key for key in body['metadata'].get('annotations', {}))
        )  # its deletion is handled
        await world.edit(field='fence')
        await world.until(lambda: world.called('seen')[-1]['spec']['field'] == 'fence')
        work.let_go.set()
        await world.gone()
    assert work.begun == 1
    assert len(world.called('delete')) == 1


@pytest.mark.parametrize('threaded', [False, True], ids=['async', 'sync'])
@in_virtual_time
async def test_daemons_go_on_when_other_handlers_are_declared(world, rewire, threaded):
    work = Work(world, threaded=threaded, until_stopped=True)
    work.declare(kopf.daemon)
    async with world.operator():
        await create_objects(world)
        await world.until(lambda: work.running)
        await rewire['declared']()
        assert (work.begun, work.stopped) == (1, 0)
        work.let_go.set()
        await world.delete()
        await world.gone()
    assert (work.begun, work.stopped) == (1, 1)


@pytest.mark.parametrize('threaded', [False, True], ids=['async', 'sync'])
@in_virtual_time
async def test_daemons_that_match_again_start_when_the_former_ones_have_ended(world, threaded):
    work = Work(world, threaded=threaded, until_stopped=True)
    work.declare(kopf.daemon, labels={'on': 'yes'})
    async with world.operator():
        await world.create(labels={'on': 'yes'})
        await world.until(lambda: work.running)
        await world.edit(metadata={'labels': {'on': 'no'}})
        await world.until(lambda: work.stopped)
        await world.edit(metadata={'labels': {'on': 'yes'}})
        await asyncio.sleep(0.2)
        assert work.begun == 1
        work.let_go.set()
        await world.until(lambda: work.begun == 2)
    assert work.most == 1


@pytest.mark.parametrize('threaded', [False, True], ids=['async', 'sync'])
@pytest.mark.parametrize('way', WAYS)
@in_virtual_time
async def test_a_timer_begins_again_when_its_former_run_has_ended(world, rewire, way, threaded):
    work = Work(world, threaded=threaded)
    work.declare(kopf.timer, interval=0.05)
    async with world.operator():
        await create_objects(world)
        await world.until(lambda: work.running)
        await rewire[way]()
        await asyncio.sleep(0.2)
        assert work.begun == 1
        work.let_go.set()
        await world.until(lambda: work.begun >= 3)
    assert work.most == 1


@pytest.mark.parametrize('threaded', [False, True], ids=['async', 'sync'])
@pytest.mark.parametrize('way', WAYS)
@in_virtual_time
async def test_an_index_function_runs_again_when_its_former_run_has_ended(world, rewire, way, threaded):
    work = Work(world, threaded=threaded)
    work.declare(kopf.index)
    async with world.operator():
        await world.create('other', labels={'app': 'x'})
        await world.until_called('seen', name='other')
        await world.create(labels={'app': 'x'})
        await world.until(lambda: work.running)
        rewiring = asyncio.create_task(rewire[way]())
        await asyncio.sleep(0.3)
        assert work.begun == 1
        work.let_go.set()
        await rewiring
        # When it leaves the selection, it is seen as deleted, without its values in the index.
        await world.until(lambda: any(call['type'] != 'DELETED' for call in world.called('seen', 'obj')))
        assert [*world.called('seen', 'obj')[-1]['work']['key']] == ['result']
    assert work.most == 1


@pytest.mark.parametrize('moment', ['after', 'meanwhile'])
@in_virtual_time
async def test_functions_go_on_for_kinds_that_vanish_and_come_back(world, moment):
    """The kind is not served for a while, but its objects stay."""

    async def serve(served):
        crd = yaml.safe_load((world.root / 'examples' / 'crd.yaml').read_text())
        crd['spec']['versions'][0]['served'] = served
        await world.aio.apply(crd)

    @kopf.daemon('kopfexamples', registry=world.registry)
    async def daemon(name, stopped, **_):
        await stopped.wait()
        world.note('stopped', name)

    work = Work(world, threaded=True)
    work.declare(kopf.on.create)
    world.declare(kopf.on.event, 'seen')
    async with world.operator():
        await create_objects(world)
        await world.until(lambda: work.running)
        await serve(False)
        await world.until_called('stopped', name='other')
        if moment == 'meanwhile':
            work.let_go.set()
            await world.until(lambda: work.ended)
        seen = len(world.called('seen', 'other'))
        await serve(True)
        await world.until_called('seen', seen + 1, name='other')
        work.let_go.set()
        body = await world.handled()
    assert (work.begun, work.most) == (1, 1)
    assert body['status']['work'] == {'key': 'result'}


@pytest.mark.parametrize('threaded', [False, True], ids=['async', 'sync'])
@pytest.mark.parametrize('departure', ['left', 'deleted'])
@in_virtual_time
async def test_objects_that_are_gone_are_not_handled_again_when_their_daemons_end(world, rewire, departure, threaded):
    work = Work(world, threaded=threaded, until_stopped=True)
    work.declare(kopf.daemon)
    world.declare(kopf.on.delete, 'delete')
    async with world.operator():
        await create_objects(world)
        await world.until(lambda: work.running)
        if departure == 'left':
            await world.edit(metadata={'labels': {'app': 'y'}})
        else:
            await world.delete()
            await world.until_called('delete')
            await world.edit(metadata={'finalizers': None})
        await world.until(lambda: [call['type'] for call in world.called('seen', 'obj')][-1] == 'DELETED')
        await rewire['declared']()
        work.let_go.set()
        await world.until(lambda: work.ended)
        await asyncio.sleep(0.2)  # nothing is to happen
    assert work.begun == 1
    assert len(world.called('delete')) == (departure == 'deleted')


@in_virtual_time
async def test_daemons_that_have_ended_for_good_are_not_started_by_declarations(world, rewire):
    @kopf.daemon('kopfexamples', registry=world.registry)
    async def fn(name, **_):
        world.note('run', name)

    @kopf.daemon('kopfexamples', registry=world.registry)
    async def other(name, stopped, **_):
        await stopped.wait()

    async with world.operator():
        await create_objects(world)
        await world.until(lambda: len(world.called('run')) == 2)
        await rewire['declared']()
        await world.edit(field='v2')
        await world.until(
            lambda: any(
                call.kwargs['spec']['field'] == 'v2' for call in world.calls if (call.id, call.name) == ('late', 'obj')
            )
        )
    assert len(world.called('run', 'obj')) == 1


@in_virtual_time
async def test_delayed_retries_are_not_lost(world, rewire):
    async def fail_once(retry, **_):
        if not retry:
            raise kopf.TemporaryError("not yet", delay=0.5)

    world.declare(kopf.on.create, 'create', does=fail_once)
    async with world.operator():
        await create_objects(world)
        await world.until_called('create', name='obj')
        await rewire['declared']()
        await rewire['upgraded']()
        await world.handled()
    assert len(world.called('create', 'obj')) == 2


@pytest.mark.parametrize('steps', [1, 2])
@in_virtual_time
async def test_late_events_of_the_stream_are_not_handled_again(world, steps):
    """The object leaves and comes back, then its handler ends: the stream tells of all that only after the patch."""
    world.settings.watching.label_selectors['kopfexamples'] = 'app=x'
    work = Work(world, threaded=False)
    work.declare(kopf.on.create)
    for number in range(1, steps):
        world.declare(kopf.on.create, f'next-{number}')
    world.declare(kopf.on.update, 'update', field='spec.field')
    async with world.operator():
        await world.create(labels={'app': 'x'})
        await world.until(lambda: work.running)
        world.sandbox.faults.freeze_watches(resource='kopfexamples')
        await world.edit(metadata={'labels': {'app': 'y'}})
        await world.edit(metadata={'labels': {'app': 'x'}})
        work.let_go.set()
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: 'work' in body.get('status', {}))
        world.sandbox.faults.clear()
        await world.edit(field='edited')
        await world.handled(field='edited')
    assert work.begun == 1
    assert len(world.called('update')) == 1
    assert [len(world.called(f'next-{number}')) for number in range(1, steps)] == [1] * (steps - 1)


@in_virtual_time
@pytest.mark.long
async def test_objects_that_leave_right_before_a_declaration_are_freed(world, rewire):
    others = find_records('obj')  # of other tests in this process
    world.settings.persistence.consistency_timeout = 1
    work = Work(world, threaded=False)
    work.declare(kopf.on.create)
    async with world.operator():
        await create_objects(world)
        await world.until(lambda: work.running)
        world.sandbox.faults.freeze_watches(resource='kopfexamples')
        await world.edit(metadata={'labels': {'app': 'y'}})
        work.let_go.set()
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: 'work' in body.get('status', {}))
        world.sandbox.faults.clear()
        await world.until(lambda: [call.kwargs['type'] for call in world.calls if call.name == 'obj'][-1] == 'DELETED')
        await rewire['declared']()
        async with asyncio.timeout(20):
            while find_records('obj', besides=others):
                await asyncio.sleep(2)  # each look at all objects of the process takes some 50 ms


def find_records(name, besides=()):
    gc.collect()
    found = [record for record in gc.get_objects() if isinstance(record, ObjectRecord) and record.name == name]
    return [record for record in found if not any(record is other for other in besides)]


@in_virtual_time
async def test_progress_that_could_not_be_stored_is_known_after_leaving_the_selection(world):
    world.settings.watching.label_selectors['kopfexamples'] = 'app=x'
    world.settings.queueing.error_delays = [0.5]
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        world.sandbox.faults.error(500, method='PATCH', resource='kopfexamples')
        await world.create(labels={'app': 'x'})
        await world.until_logged('Throttling for')
        await world.edit(metadata={'labels': {'app': 'y'}})
        await world.edit(metadata={'labels': {'app': 'x'}})
        await world.handled()
        await world.until_logged('Throttling is over')
    assert world.ids == ['create']


@pytest.mark.parametrize('way', WAYS)
@in_virtual_time
async def test_timers_go_on_right_after_a_patch_of_their_object(world, rewire, way):
    """They wait for their time, so nothing runs that would tell of its end; and the last event is that of the patch."""
    world.settings.persistence.consistency_timeout = 600
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.timer, 'tick', interval=0.1)
    async with world.operator():
        await create_objects(world)
        await world.handled()
        await world.handled('other')
        await rewire[way]()
        await world.until_called('tick', len(world.called('tick', 'obj')) + 3, name='obj')


@in_virtual_time
async def test_timers_that_are_declared_late_begin_right_after_a_patch_of_their_object(world, rewire):
    world.settings.persistence.consistency_timeout = 600
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        await create_objects(world)
        await world.handled()
        await world.handled('other')
        world.declare(kopf.timer, 'tick', interval=0.1)
        await world.until_called('tick', name='obj')


@in_virtual_time
async def test_a_storage_that_fails_while_other_handlers_take_over_does_not_end_the_operator(world):
    class Storage(kopf.AnnotationsDiffBaseStorage):
        failures = 0

        def build(self, **kwargs):
            if self.failures:
                self.failures -= 1
                raise OSError("The database is down.")
            return super().build(**kwargs)

    storage = world.settings.persistence.diffbase_storage = Storage()
    world.settings.queueing.error_delays = [0.1]
    world.declare(kopf.timer, 'tick', interval=1000)
    async with world.operator():
        await create_objects(world)
        await world.until_called('tick', name='obj')
        await world.until_called('tick', name='other')
        storage.failures = 2
        world.declare(kopf.timer, 'idle', interval=0.1, idle=0.1)
        await world.until_called('idle', name='obj')
        await world.until_called('idle', name='other')
        await world.create('new')
        await world.until_called('idle', name='new')


@pytest.mark.parametrize('scopes', [('Namespaced', 'Cluster'), ('Cluster', 'Namespaced')])
@in_virtual_time
async def test_objects_are_deleted_if_their_kind_gets_another_scope_in_a_gap_of_the_watch(world, scopes):
    async def define(scope):
        crd = yaml.safe_load((world.root / 'examples' / 'crd.yaml').read_text())
        await world.aio.delete('customresourcedefinitions', crd['metadata']['name'])
        await world.aio.wait_gone('customresourcedefinitions', crd['metadata']['name'])
        await world.aio.apply(crd | {'spec': crd['spec'] | {'scope': scope}})
        await asyncio.sleep(1)

    @kopf.index('kopfexamples', id='names', registry=world.registry)
    async def index(name, **_):
        return {name: True}

    world.declare(kopf.on.event, 'seen')
    world.declare(kopf.on.create, 'create')
    await define(scopes[0])
    async with world.operator(namespaces=['default']):
        await world.create('former')
        await world.handled('former')
        async with world.gap():
            await define(scopes[1])
        await world.until(lambda: 'DELETED' in [call['type'] for call in world.called('seen', 'former')])
        await world.create('new')
        await world.handled('new')
        assert [*world.called('seen', 'new')[-1]['names']] == ['new']


@pytest.mark.parametrize('way', WAYS)
@in_virtual_time
async def test_a_step_that_goes_on_while_others_take_over_starts_no_daemons_of_its_own(world, rewire, way):
    gate = Gate()
    world.declare(kopf.timer, 'timer', interval=1)
    world.declare(kopf.on.update, 'update')

    async def hold(name, **_):
        if name == 'obj':
            await gate()

    async with world.operator():
        await create_objects(world)
        await world.until_called('timer', name='obj')
        await world.until_called('timer', name='other')
    world.calls.clear()
    world.declare(kopf.on.event, 'held', does=hold)
    async with world.operator():  # it lists the object, which has the finalizer already
        await world.until_called('held', name='obj')
        await rewire[way]()
        world.declare(kopf.timer, 'later', interval=1)
        await world.until_called('later', name='other')
        gate.open()
        await world.until_called('later', name='obj')
        await world.until_called('timer', name='obj')
        await world.edit(field='new')
        await world.until_called('update', name='obj')
    assert not any('Throttling' in text for text in world.log.texts)
