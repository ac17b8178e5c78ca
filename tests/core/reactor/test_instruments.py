"""What instruments are told of a whole operator: what happens, in which order, and always both ends of it."""

import asyncio
import collections
import functools
import sys
import types

import pytest
from operatorworld import in_virtual_time

import kopf
from kopf._cogs.structs import instruments, meters
from kopf._cogs.structs.instruments import get_current_activity

PLURAL = 'kopfexamples'
ROUTE = '/apis/kopf.dev/v1/namespaces/{namespace}/kopfexamples/{name}'


class Recorder(kopf.Instrument):
    """Records all that it is told, and checks that it is told of both ends."""

    def __init__(self, world):
        self.world = world
        self.told = []

    def _tell(self, hook, facts):
        self.told.append((hook, facts))
        self.world.changed.set()

    def find(self, hook):
        return [facts for name, facts in self.told if name == hook]

    def calls(self, id):
        return [
            call for call in self.find('handler_ends') if call.id == id and (call.key is None or call.key.name == 'obj')
        ]

    def steps(self):
        return [step for step in self.find('step_ends') if step.key.name == 'obj']

    def patches(self):
        return [each for each in self.find('request_ends') if each.method == 'PATCH' and each.path.endswith('/obj')]

    def watch(self):
        return [change for change in self.find('watch_changes') if change.resource.plural == PLURAL]

    def check_pairs(self):
        for kind in ('step', 'handler', 'request'):
            begun, ended = self.find(f'{kind}_begins'), self.find(f'{kind}_ends')
            assert set(begun) == set(ended) and len(begun) == len(ended)
            assert all(span.duration >= 0 and span.outcome is not None and span.exception is None for span in ended)
        queued = collections.Counter(entry.key for entry in self.find('object_queued'))
        assert collections.Counter(entry.key for entry in self.find('object_done')) == queued


class HandlerSeconds(kopf.Instrument):
    """The time spent in handlers (in seconds), by their ids and by what has come of them."""

    def __init__(self):
        self.seconds = collections.Counter()

    def handler_ends(self, call):
        self.seconds[call.id, call.outcome] += call.duration


def _record(hook):
    return lambda self, facts: self._tell(hook, facts)


for name in [name for name in vars(kopf.Instrument) if not name.startswith('_')]:
    setattr(Recorder, name, _record(name))


@pytest.fixture
def recorder(world):
    recorder = Recorder(world)
    yield recorder
    recorder.check_pairs()


@in_virtual_time
async def test_a_change_is_a_step_with_its_handlers_and_requests(world, recorder):
    seen = []

    async def look(**_):
        seen.append(get_current_activity())

    world.declare(kopf.on.create, 'create', does=look)
    async with world.operator(instruments=[recorder]):
        await world.settled()
        body = await world.create()
        await world.handled()
    (call,) = recorder.calls('create')
    assert (call.kind, call.reason, call.retry, call.outcome, call.delay) == ('Handler', 'create', 0, 'succeeded', None)
    assert call.key == (call.key.resource, 'default', 'obj', body['metadata']['uid'])
    assert call.key.resource.plural == PLURAL and call.cause.diff
    assert seen[-1] is call
    step = next(step for step in recorder.steps() if step.handlers)
    assert (step.event, step.number, step.reason, step.handlers) == ('ADDED', 1, 'create', ('create',))
    assert (step.outcome, step.delay) == ('done', None)
    (patch,) = recorder.patches()
    assert (patch.route, patch.verb, patch.status, patch.outcome, patch.attempt) == (
        ROUTE,
        'patch',
        200,
        'succeeded',
        0,
    )
    assert patch.server == world.sandbox.url and b'last-handled' in patch.payload
    hooks = [hook for hook, facts in recorder.told if facts in (step, call, patch)]
    assert hooks == [
        'step_begins', 'step_decides', 'handler_begins', 'handler_ends', 'request_begins', 'request_ends', 'step_ends',
    ]  # fmt: skip


@in_virtual_time
async def test_runs_of_level_triggered_handlers_are_told_like_those_of_others(world, recorder):
    world.declare(kopf.on.reconcile, 'fn', does=[kopf.TemporaryError("not yet", delay=0.01), None])
    async with world.operator(instruments=[recorder]):
        await world.create()
        await world.until(lambda: len(recorder.calls('fn')) == 2)
    assert [(call.kind, call.retry, call.outcome) for call in recorder.calls('fn')] == [
        ('Reconciler', 0, 'retried'),
        ('Reconciler', 1, 'succeeded'),
    ]


async def test_a_metric_of_the_documentation(world):
    metric = HandlerSeconds()
    world.declare(kopf.on.create, 'create', does=[kopf.TemporaryError("not yet", delay=0), None])
    async with world.operator(instruments=[metric]):
        await world.create()
        await world.handled()
    assert {('create', 'retried'), ('create', 'succeeded')} <= set(metric.seconds)
    assert all(seconds > 0 for seconds in metric.seconds.values())


@in_virtual_time
async def test_spans_are_nested(world, recorder):
    parents = {}

    class Parents(kopf.Instrument):
        def handler_begins(self, call):
            parents[call.id] = call.parent

        def request_begins(self, request):
            parents[request.method] = request.parent

    async def sub(**_):
        pass

    async def create(**_):
        await kopf.execute(fns={'sub': sub})

    world.declare(kopf.on.create, 'create', does=create)
    async with world.operator(instruments=[recorder, Parents()]):
        await world.create()
        await world.handled()
    step = next(step for step in recorder.steps() if step.handlers)
    assert parents['create'] is step and parents['PATCH'] is step
    assert parents['create/sub'] is recorder.calls('create')[0]


@in_virtual_time
async def test_retries_are_told_with_their_delays_and_reasons(world, recorder):
    world.declare(kopf.on.create, 'create', does=[kopf.TemporaryError("not yet", delay=0.1), None])
    async with world.operator(instruments=[recorder]):
        await world.create()
        await world.handled()
    first, second = recorder.calls('create')
    assert (first.outcome, first.delay, first.message, first.retry) == ('retried', 0.1, 'not yet', 0)
    assert (second.outcome, second.delay, second.message, second.retry) == ('succeeded', None, None, 1)
    delayed = [step for step in recorder.steps() if step.outcome == 'delayed']
    assert delayed and all(0 < step.delay <= 0.1 for step in delayed)
    entry = recorder.find('object_requeued')[0]
    assert (entry.key.name, entry.reason) == ('obj', 'delayed') and 0 < entry.delay <= 0.1


@pytest.mark.parametrize(
    'error, options, outcome',
    [
        (kopf.PermanentError("boo"), {}, 'failed'),
        (ValueError("boo"), {'errors': kopf.ErrorsMode.IGNORED}, 'ignored'),
        (ValueError("boo"), {'retries': 1}, 'failed'),
    ],
)
@in_virtual_time
async def test_errors_are_told(world, recorder, error, options, outcome):
    exceptions = []

    class Errors(kopf.Instrument):
        def handler_ends(self, call):
            exceptions.append(call.exception)

    world.declare(kopf.on.create, 'create', does=error, **options)
    async with world.operator(instruments=[recorder, Errors()]):
        await world.create()
        await world.handled()
    (call,) = recorder.calls('create')
    assert call.outcome == outcome and call.exception is None
    assert outcome == 'ignored' or error in exceptions


@in_virtual_time
async def test_updates_and_deletions_are_told_by_their_reasons(world, recorder):
    world.declare(kopf.on.update, 'update')
    world.declare(kopf.on.delete, 'delete')
    async with world.operator(instruments=[recorder]):
        await world.create()
        await world.handled()
        await world.edit(field='other')
        await world.until_called('update')
        await world.handled(field='other')
        await world.delete()
        await world.gone()
        await world.settled()
    assert [(call.id, call.reason) for call in recorder.find('handler_ends') if call.key] == [
        ('update', 'update'),
        ('delete', 'delete'),
    ]
    assert recorder.steps()[-1].event == 'DELETED'


@in_virtual_time
async def test_handlers_of_all_kinds_are_told(world, recorder):
    options = {'registry': world.registry}
    kopf.on.startup(id='startup', **options)(lambda **_: None)
    kopf.on.cleanup(id='cleanup', **options)(lambda **_: None)
    world.declare(kopf.on.event, 'event')
    world.declare(kopf.index, 'index')
    world.declare(kopf.timer, 'timer', interval=100)

    async def stay(stopped, **_):
        await stopped.wait()

    world.declare(kopf.daemon, 'daemon', does=stay)
    await world.create()
    async with world.operator(instruments=[recorder]):
        for id in ('event', 'index', 'timer', 'daemon'):
            await world.until_called(id)
    found = {call.id: (call.kind, call.reason, call.outcome) for call in recorder.find('handler_ends')}
    assert found == {
        'startup': ('Activity', 'startup', 'succeeded'),
        'login_with_kubeconfig': ('Activity', 'authentication', 'succeeded'),
        'index': ('Indexer', None, 'succeeded'),
        'event': ('Handler', found['event'][1], 'succeeded'),
        'timer': ('Timer', None, 'succeeded'),
        'daemon': ('Daemon', None, 'succeeded'),
        'cleanup': ('Activity', 'cleanup', 'succeeded'),
    }
    event, daemon = recorder.calls('event')[0], recorder.calls('daemon')[0]
    assert event.reason == 'LISTED' and event.key == daemon.key and event.key.name == 'obj'


@in_virtual_time
async def test_cancelled_daemons_are_told(world, recorder):
    world.declare(kopf.daemon, 'daemon', does=lambda **_: asyncio.Event().wait(), cancellation_timeout=1)
    async with world.operator(instruments=[recorder]):
        await world.create()
        await world.until_called('daemon')
        await world.delete()
        await world.gone()
    assert [call.outcome for call in recorder.calls('daemon')] == ['cancelled']


@in_virtual_time
async def test_steps_are_ended_when_the_operator_is_stopped(world, recorder):
    world.settings.queueing.exit_timeout = 0.1
    world.declare(kopf.on.create, 'create', does=lambda **_: asyncio.Event().wait())
    async with world.operator(instruments=[recorder]):
        await world.create()
        await world.until_called('create')
    assert [call.outcome for call in recorder.calls('create')] == ['cancelled']
    assert recorder.steps()[-1].outcome == 'cancelled'


@in_virtual_time
async def test_threads_know_what_they_are_a_part_of(world, recorder):
    seen = []
    kopf.on.create(PLURAL, id='create', registry=world.registry)(lambda **_: seen.append(get_current_activity()))
    async with world.operator(instruments=[recorder]):
        await world.create()
        await world.handled()
    assert seen == recorder.calls('create')


@in_virtual_time
async def test_reviews_are_told(world, recorder):
    ready, reviewed = asyncio.Event(), asyncio.Event()

    async def server(fn):
        yield {'url': 'https://localhost:1/', 'caBundle': 'Q0E='}
        obj = {'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample', 'metadata': {'name': 'obj'}, 'spec': {}}
        await ready.wait()
        resource = {'group': 'kopf.dev', 'version': 'v1', 'resource': PLURAL}
        request = {'uid': '1', 'operation': 'CREATE', 'userInfo': {}, 'object': obj, 'resource': resource}
        await fn({'apiVersion': 'admission.k8s.io/v1', 'kind': 'AdmissionReview', 'request': request})
        reviewed.set()
        await asyncio.Event().wait()

    world.settings.admission.server = server
    world.declare(kopf.on.validate, 'validate', does=kopf.AdmissionError("no"))
    async with world.operator(instruments=[recorder]):
        ready.set()
        await reviewed.wait()
    (call,) = recorder.calls('validate')
    assert (call.kind, call.reason, call.outcome, call.message) == ('Webhook', 'create', 'refused', 'no')
    assert (call.key.resource.plural, call.key.name) == (PLURAL, 'obj')


@in_virtual_time
async def test_repeated_requests_are_told_one_by_one(world, recorder):
    world.settings.networking.error_backoffs = [0, 0]
    world.declare(kopf.on.create, 'create')
    world.sandbox.faults.error(503, method='PATCH')
    world.sandbox.faults.drop(method='PATCH')
    async with world.operator(instruments=[recorder]):
        await world.create()
        await world.handled()
    found = [(each.attempt, each.status, each.outcome) for each in recorder.patches()]
    assert found == [(0, 503, 'failed'), (1, None, 'failed'), (2, 200, 'succeeded')]


async def test_watches_tell_their_states_and_why_they_are_restarted(world, recorder):
    world.settings.watching.reconnect_backoff = 0
    world.declare(kopf.on.event, 'event')
    async with world.operator(instruments=[recorder]):
        await world.create()
        await world.until_called('event')
        world.sandbox.faults.expire_watches(resource=PLURAL)
        world.sandbox.faults.drop_watches()
        await world.until(lambda: [change.state for change in recorder.watch()].count('streaming') >= 2)
    states = [(change.previous, change.state, change.reason) for change in recorder.watch()]
    assert states[:2] == [('stopped', 'listing', None), ('listing', 'streaming', None)]
    assert ('backing-off', 'expired') in [(change.state, change.reason) for change in recorder.watch()]
    assert states[-1][1] == 'stopped'
    assert all(one.state == other.previous for one, other in zip(recorder.watch(), recorder.watch()[1:], strict=False))
    assert not any(change.paused for change in recorder.watch())


async def test_the_queue_tells_who_waits(world, recorder):
    world.settings.queueing.worker_limit = 1
    release = asyncio.Event()
    world.declare(kopf.on.create, 'create', does=lambda **_: release.wait())
    async with world.operator(instruments=[recorder]):
        await world.create('one')
        await world.until_called('create')
        await world.create('two')
        await world.create('three')
        await world.until(lambda: len(recorder.find('object_queued')) == 3)
        assert [(entry.key.name, entry.depth) for entry in recorder.find('object_queued')] == [
            ('one', 0),
            ('two', 0),
            ('three', 1),
        ]
        assert [entry.key.name for entry in recorder.find('object_taken')] == ['one']
        release.set()
        await world.handled('three')
        await world.until(lambda: len(recorder.find('object_done')) == len(recorder.find('object_queued')))
    names = [(hook.removeprefix('object_'), facts.key.name) for hook, facts in recorder.told if 'object_' in hook]
    assert names[:6] == [
        ('queued', 'one'),
        ('taken', 'one'),
        ('queued', 'two'),
        ('queued', 'three'),
        ('done', 'one'),
        ('taken', 'two'),
    ]


@in_virtual_time
async def test_what_is_carried_survives_restarts(world):
    seen = []

    class Tracer(kopf.Instrument):
        def step_decides(self, step):
            if step.handlers:
                seen.append(('step', step.carried))

        def handler_begins(self, call):
            if call.key is not None:
                seen.append(('handler', call.carried))
                call.carried = call.carried or 'trace1'

    world.declare(kopf.on.create, 'create', does=[kopf.TemporaryError("not yet", delay=0.5), None])
    async with world.operator(instruments=[Tracer()]):
        await world.create()
        await world.aio.wait_for(PLURAL, 'obj', lambda body: 'trace1' in str(body['metadata'].get('annotations')))
    async with world.operator(instruments=[Tracer()]):
        await world.handled()
    assert seen == [('step', None), ('handler', None), ('step', 'trace1'), ('handler', 'trace1')]


@in_virtual_time
async def test_nothing_is_carried_without_instruments(world):
    world.declare(kopf.on.create, 'create', does=[kopf.TemporaryError("not yet", delay=0.01), None])
    async with world.operator():
        await world.create()
        await world.handled()
    assert not any('carried' in str(patch) for patch in world.patches())


@pytest.fixture
def called(monkeypatch):
    """Yield the counter of the calls of all functions for instruments and meters, constructors included."""
    called = collections.Counter()

    def spy(fn):
        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            called[fn.__qualname__] += 1
            return fn(*args, **kwargs)

        return wrapper

    for source in (instruments, meters):
        own = [value for value in vars(source).values() if getattr(value, '__module__', None) == source.__name__]
        for cls in [each for each in own if isinstance(each, type)]:
            for name, fn in [*vars(cls).items()]:
                if isinstance(fn, types.FunctionType):
                    monkeypatch.setattr(cls, name, spy(fn))
                elif name == '__new__':  # of a named tuple
                    monkeypatch.setattr(cls, name, staticmethod(spy(fn.__func__)))
        for fn in [each for each in own if isinstance(each, types.FunctionType)]:
            for module in [module for name, module in sys.modules.items() if name.startswith('kopf.')]:
                for name in [name for name, value in vars(module).items() if value is fn]:
                    monkeypatch.setattr(module, name, spy(fn))
    return called


@pytest.mark.parametrize('instrumented', [False, True])
@in_virtual_time
async def test_nothing_is_called_or_made_without_instruments(world, recorder, called, instrumented):
    """What is off costs no more than a test of an attribute: no function is called, and so no object is made."""

    async def stay(stopped, **_):
        await stopped.wait()

    async def post(body, **_):
        kopf.event(body, type='Normal', reason='Reason', message="text")

    world.settings.posting.enabled = True
    world.declare(kopf.on.event, 'event', does=post)
    world.declare(kopf.index, 'index')
    world.declare(kopf.timer, 'timer', interval=0.05)
    world.declare(kopf.daemon, 'daemon', does=stay)
    errors = [kopf.TemporaryError("not yet", delay=0.01), ValueError("boo")]
    world.declare(kopf.on.create, 'create', does=[*errors, None], backoff=0.01)
    world.declare(kopf.on.update, 'update')
    world.declare(kopf.on.delete, 'delete')
    world.declare(kopf.on.reconcile, 'level')
    async with world.operator(instruments=[recorder] if instrumented else []):
        called.clear()  # the operator has made its empty set of instruments
        await world.create()
        await world.handled()
        await world.edit(field='y')
        for id in ('update', 'level', 'timer', 'daemon', 'event'):
            await world.until_called(id)
        await world.delete()
        await world.gone()
        await world.settled()
    assert bool(called) == instrumented, called


@in_virtual_time
async def test_failing_instruments_do_not_harm_the_operator(world):
    class Broken(kopf.Instrument):
        def handler_begins(self, call):
            raise ValueError("boo!")

    world.declare(kopf.on.create, 'create')
    async with world.operator(instruments=[Broken()]):
        await world.create()
        await world.handled()
    errors = [text for text in world.log.texts if 'has failed in handler_begins(), and is removed' in text]
    assert len(errors) == 1


@in_virtual_time
async def test_posted_events_are_told_with_their_objects(world, recorder):
    async def post(body, **_):
        kopf.event(body, type='Normal', reason='Reason', message="text")

    world.settings.posting.enabled = True
    world.declare(kopf.on.create, 'create', does=post)
    async with world.operator(instruments=[recorder]):
        body = await world.create()
        await world.until(lambda: any(event.reason == 'Reason' for event in recorder.find('event_posted')))
    (event,) = [event for event in recorder.find('event_posted') if event.reason == 'Reason']
    assert (event.type, event.message, event.times) == ('Normal', "text", 1)
    assert event.ref['uid'] == body['metadata']['uid']
