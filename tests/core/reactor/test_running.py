"""How operators begin and end: in loops, threads and processes of their own and of others."""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import gc
import pathlib
import signal
import textwrap
import threading
import time

import pytest
from forkserver import AsyncProcess
from operatorworld import Gate, in_virtual_time

import kopf
from kopf._cogs.aiokits.flags import ServingEvent
from kopf._core.reactor import running
from kopf._core.reactor.operators import unwrap_error

CRD = pathlib.Path(__file__).resolve().parents[3] / 'examples' / 'crd.yaml'


@pytest.fixture
def activities(world):
    """Startup and cleanup handlers that note when they are called."""
    kopf.on.startup(registry=world.registry)(lambda **_: world.note('startup', None))

    @kopf.on.cleanup(registry=world.registry)
    async def cleanup(**_):
        await asyncio.sleep(0)
        world.note('cleanup', None)


def options(world, **options):
    return {'registry': world.registry, 'settings': world.settings, 'standalone': True, 'clusterwide': True} | options


# In a loop.

FLAGS = [asyncio.Event, asyncio.Future, threading.Event, concurrent.futures.Future]


async def test_signal_handlers_keep_nothing_of_the_operator_that_was_first(world):
    """Operators in one loop share the handlers of signals, and the first one of them can end before the others."""
    marker = contextvars.ContextVar('marker')
    context = contextvars.copy_context()
    context.run(marker.set, world)
    signals = running._Signals(asyncio.get_running_loop())
    context.run(signals.add, 'first')
    try:
        signals.add('second')
        handlers = [handle for handle in gc.get_objects() if type(handle) is asyncio.Handle]
        contexts = [context for context in gc.get_referents(*handlers) if type(context) is contextvars.Context]
        assert not any(marker in context for context in contexts)
    finally:
        signals.discard('first')
        signals.discard('second')


async def raise_flag(flag):
    flag.set() if hasattr(flag, 'set') else flag.set_result(None)


async def wait_flag(flag):
    while not (flag.is_set() if hasattr(flag, 'is_set') else flag.done()):
        await asyncio.sleep(0.001)


@pytest.mark.parametrize('cls', FLAGS)
@in_virtual_time
async def test_flags_tell_that_the_operator_is_ready_and_stop_it(world, activities, cls):
    ready, stop = cls(), cls()
    world.declare(kopf.on.create, 'create')
    async with asyncio.timeout(60):
        task = asyncio.create_task(kopf.operator(**options(world, ready_flag=ready, stop_flag=stop)))
        await wait_flag(ready)
        await world.create()
        await world.until_called('create')
        await world.handled()
        await raise_flag(stop)
        await task
    assert world.ids == ['startup', 'create', 'cleanup']


@in_virtual_time
async def test_an_operator_that_is_stopped_before_its_start_makes_no_requests(world, activities):
    stop = asyncio.Event()
    stop.set()
    async with asyncio.timeout(60):
        await kopf.operator(**options(world, stop_flag=stop))
    assert not any(request.user_agent for request in world.sandbox.requests)


@in_virtual_time
async def test_an_operator_can_be_stopped_while_it_starts_up(world):
    @kopf.on.startup(registry=world.registry)
    async def startup(**_):
        world.note('startup', None)
        await asyncio.Event().wait()

    kopf.on.cleanup(registry=world.registry)(lambda **_: world.note('cleanup', None))
    stop = asyncio.Event()
    async with asyncio.timeout(60):
        task = asyncio.create_task(kopf.operator(**options(world, stop_flag=stop)))
        await world.until_called('startup')
        stop.set()
        await task
    assert world.ids == ['startup']
    assert world.sandbox.requests == []


@in_virtual_time
async def test_a_cancelled_operator_leaves_no_tasks_behind(world, activities):
    world.declare(kopf.on.create, 'create', does=lambda **_: asyncio.Event().wait())
    world.settings.queueing.exit_timeout = 0.05
    async with asyncio.timeout(60):
        task = asyncio.create_task(kopf.operator(**options(world)))
        await world.create()
        await world.until_called('create')
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert world.ids == ['startup', 'create', 'cleanup']
    assert any(
        'Unprocessed streams left for 1 objects; cancelling them: <default/obj>' in text for text in world.log.texts
    )
    assert len(asyncio.all_tasks()) == 1  # nothing is left behind


@pytest.mark.parametrize('timeout', [2.0, None])
@in_virtual_time
async def test_handlers_can_finish_at_the_end(world, timeout):
    async def work(**_):
        await asyncio.sleep(0.1)
        return 'result'

    world.settings.queueing.exit_timeout = timeout

    world.declare(kopf.on.create, 'create', does=work)
    async with world.operator():
        await world.create()
        await world.until_called('create')
    assert (await world.get())['status'] == {'create': 'result'}


@pytest.mark.parametrize('lifecycle', [kopf.lifecycles.asap, kopf.lifecycles.all_at_once])
@pytest.mark.parametrize('other', ['next', 'retried', 'sub-handler', 'edited', 'level'])
@in_virtual_time
async def test_no_handlers_begin_at_the_end(world, other, lifecycle):
    gate = Gate()
    world.settings.queueing.exit_timeout = 30

    async def create(**_):
        await gate()
        if other == 'sub-handler':
            kopf.register(id='sub', fn=lambda name, **_: world.note('other', name))
        if other == 'retried':
            raise kopf.TemporaryError("again", delay=0)

    world.declare(kopf.on.create, 'create', does=create)
    decorators = {'next': kopf.on.create, 'edited': kopf.on.update, 'level': kopf.on.reconcile}
    if other in decorators:
        world.declare(decorators[other], 'other')
    async with world.operator(lifecycle=lifecycle):
        await world.create()
        await world.until_called('create')
        if other == 'edited':
            await world.edit(field='edited')
        asyncio.get_running_loop().call_later(5, gate.open)
    assert world.ids == ['create']
    if other not in ('retried', 'sub-handler'):
        assert any("Handler 'create' succeeded." in text for text in world.log.texts)


@in_virtual_time
async def test_functions_that_wait_for_threads_do_not_begin_at_the_end(world):
    world.settings.execution.executor = executor = concurrent.futures.ThreadPoolExecutor(1)
    ended = threading.Event()
    executor.submit(ended.wait)

    @kopf.on.create('kopfexamples', registry=world.registry)
    def create(name, **_):
        world.note('create', name)

    world.declare(kopf.on.event, 'event')
    async with world.operator():
        await world.create()
        await world.until_called('event')
        await asyncio.sleep(1)  # it is waiting for the thread by then
        asyncio.get_running_loop().call_later(1, ended.set)
    assert not world.called('create')


@in_virtual_time
async def test_events_that_have_come_reach_their_handlers_at_the_end(world):
    gate = Gate()
    world.settings.queueing.exit_timeout = 30
    world.declare(kopf.on.event, 'event')
    world.declare(kopf.on.create, 'create', does=gate)
    world.declare(kopf.on.update, 'update')
    async with world.operator():
        await world.create()
        await world.until_called('create')
        await world.edit(field='edited')
        await world.delete()
        await world.gone()
        await asyncio.sleep(1)  # until the operator has these events
        asyncio.get_running_loop().call_later(5, gate.open)
    assert world.called('event')[-1]['type'] == 'DELETED' and not world.called('update')


@in_virtual_time
async def test_what_has_not_begun_at_the_end_is_done_by_the_next_operator(world):
    gate = Gate()
    world.settings.queueing.exit_timeout = 30
    world.declare(kopf.on.create, 'first', does=gate)
    world.declare(kopf.on.create, 'second')
    async with world.operator():
        await world.create()
        await world.until_called('first')
        asyncio.get_running_loop().call_later(5, gate.open)
    async with world.operator():
        await world.handled()
    assert world.ids == ['first', 'second']


@in_virtual_time
async def test_handlers_that_do_not_end_are_left(world, activities):
    release = threading.Event()

    @kopf.on.create('kopfexamples', registry=world.registry, when=lambda name, **_: name == 'sync')
    def sync(**_):
        started.set()
        release.wait(60)

    async def swallow(**_):
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.3)

    started = threading.Event()
    world.declare(kopf.on.create, 'swallow', does=swallow, when=lambda name, **_: name == 'async')
    world.settings.queueing.exit_timeout = 0.05
    async with world.operator():
        await world.create('sync')
        await world.create('async')
        await wait_flag(started)
        await world.until_called('swallow')
        began = time.monotonic()
    assert time.monotonic() - began < 15
    assert world.ids[-1] == 'cleanup'
    assert any('ignore their cancellation, and are left' in text for text in world.log.texts)
    release.set()
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})


@in_virtual_time
async def test_a_failing_startup_handler_ends_the_operator_before_any_request(world):
    @kopf.on.startup(registry=world.registry)
    def startup(**_):
        raise kopf.PermanentError('boo')

    kopf.on.cleanup(registry=world.registry)(lambda **_: world.note('cleanup', None))
    with pytest.raises(Exception, match='boo'):
        await kopf.operator(**options(world))
    assert world.sandbox.requests == [] and world.ids == []


@in_virtual_time
async def test_a_failing_cleanup_handler_fails_the_operator(world):
    @kopf.on.cleanup(registry=world.registry)
    def cleanup(**_):
        raise kopf.PermanentError('boo')

    ready, stop = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(kopf.operator(**options(world, ready_flag=ready, stop_flag=stop)))
    await ready.wait()
    stop.set()
    with pytest.raises(Exception, match='boo'):
        await task


@pytest.mark.parametrize('elected', [True, False])
@in_virtual_time
async def test_cleanup_handlers_can_write_to_the_cluster(world, elected):
    @kopf.on.cleanup(registry=world.registry)
    async def cleanup(**_):
        await kopf.apply({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'x', 'namespace': 'default'}})

    world.declare(kopf.on.create, 'create')
    async with world.operator(leader_election=elected):
        await world.settled()
    assert await world.aio.get('configmaps', 'x')


@in_virtual_time
async def test_credentials_that_cannot_be_renewed_end_the_operator(world, activities):
    world.registry.activities._handlers.pop(0)
    infos = []

    @kopf.on.login(registry=world.registry)
    def login(**kwargs):
        infos[:] = infos or [kopf.login_with_kubeconfig(**kwargs)]
        return infos[0]

    for resource in ['kopfexamples', 'configmaps', 'secrets', 'pods']:
        world.declare(kopf.on.event, 'event', resource=resource)
    world.settings.networking.login_backoffs = [0.1]
    ready = ServingEvent()
    task = asyncio.create_task(kopf.operator(**options(world, ready_flag=ready)))
    await ready.wait()
    world.sandbox.faults.expire_tokens()
    world.sandbox.faults.drop_watches()
    async with asyncio.timeout(60):
        with pytest.raises(kopf.LoginError):
            await task
    assert world.ids[-1] == 'cleanup'


@in_virtual_time
async def test_refused_credentials_are_renewed(world, activities):
    logins = []

    @kopf.on.login(registry=world.registry)
    def login(**_):
        logins.append(1)

    world.declare(kopf.on.create, 'create')
    async with world.operator():
        await world.create('one')
        await world.handled('one')
        world.sandbox.faults.expire_tokens()
        world.sandbox.faults.drop_watches()
        await world.create('two')
        await world.handled('two')
    assert len(logins) == 2


def test_errors_of_groups_are_unwrapped():
    error1, error2, error3 = ValueError('a'), ValueError('a'), ValueError('b')
    assert unwrap_error(error1) is error1
    assert unwrap_error(ExceptionGroup('', [error1])) is error1
    assert unwrap_error(ExceptionGroup('', [ExceptionGroup('', [error1])])) is error1
    assert unwrap_error(ExceptionGroup('', [error1, error2])) is error1
    different = ExceptionGroup('', [error1, error3])
    assert unwrap_error(different) is different


@in_virtual_time
async def test_scopes_exclude_each_other(world):
    with pytest.raises(TypeError, match='either cluster-wide or namespaced'):
        await kopf.operator(**options(world, namespaces=['ns']))


# In applications.


def test_a_registry_can_be_run_twice_in_a_row(kopf_sandbox):
    kopf_sandbox.apply(CRD)
    registry, seen = kopf.OperatorRegistry(), []
    kopf.on.login(registry=registry)(kopf.login_with_kubeconfig)
    kopf.on.startup(registry=registry)(lambda **_: seen.append('startup'))
    kopf.on.cleanup(registry=registry)(lambda **_: seen.append('cleanup'))

    async def main(stop):
        @kopf.on.event('kopfexamples', registry=registry, id='event')
        async def event(name, **_):
            seen.append(name)
            stop.set()

        await kopf.operator(registry=registry, clusterwide=True, standalone=True, stop_flag=stop)

    kopf_sandbox.create({'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample', 'metadata': {'name': 'obj'}})
    asyncio.run(main(asyncio.Event()))
    asyncio.run(main(asyncio.Event()))
    assert seen[:3] == ['startup', 'obj', 'cleanup']
    assert seen[3] == 'startup'
    assert seen[-1] == 'cleanup'


@in_virtual_time
async def test_tasks_of_applications_are_not_touched(world, activities):
    async def serve():
        await asyncio.Event().wait()

    @contextlib.asynccontextmanager
    async def lifespan():  # as web frameworks have it
        task = asyncio.create_task(kopf.operator(**options(world)))
        await world.until_called('startup')
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    before = asyncio.create_task(serve())
    async with lifespan():
        after = asyncio.create_task(serve())
        await asyncio.sleep(0.01)
    assert world.ids == ['startup', 'cleanup']
    assert not before.done() and not after.done()
    await asyncio.sleep(1)  # the server of the sandbox is in this loop, too: it ends its tasks a moment later
    assert asyncio.all_tasks() == {before, after, asyncio.current_task()}
    before.cancel()
    after.cancel()


# Handlers that come later.


@pytest.mark.parametrize('threaded', [False, True])
@in_virtual_time
async def test_handlers_can_be_declared_while_the_operator_runs(world, threaded):
    world.declare(kopf.on.event, 'first')
    stop = asyncio.Event()
    task = asyncio.create_task(kopf.operator(**options(world, stop_flag=stop)))
    await world.create()
    await world.until_called('first')

    def declare():
        world.declare(kopf.on.create, 'second')
        world.declare(kopf.on.event, 'third', resource='configmaps')
        world.declare(kopf.index, 'fourth', resource='configmaps', does={'key': 'value'})

    await (asyncio.to_thread(declare) if threaded else asyncio.sleep(0, declare()))
    await world.aio.create({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'map'}})
    await world.until_called('second')
    await world.until_called('third', name='map')
    await world.until(lambda: 'value' in str(list(world.called('third')[-1]['fourth'].values())))
    stop.set()
    await task
    assert len(world.called('second')) == 1
    world.declare(kopf.on.event, 'too late')  # the operator has ended by then


# As tasks.


@pytest.mark.parametrize(
    'wrong, words',
    [
        ({'namespaces': ['a'], 'namespace': 'b'}, "Only one of namespaces= and namespace="),
        ({'namespaces': 'abc'}, r"such as namespaces=\['abc'\]"),
        ({'nonsense': 1}, "unexpected keyword argument 'nonsense'"),
    ],
)
@in_virtual_time
async def test_wrong_options_are_refused_before_the_startup(world, activities, wrong, words):
    with pytest.raises(TypeError, match=words):
        await kopf.operator(registry=world.registry, **wrong)
    assert not world.ids


@in_virtual_time
async def test_running_in_a_running_loop(world):
    with pytest.raises(RuntimeError, match=r'await kopf\.operator'):
        kopf.run(**options(world))


@in_virtual_time
async def test_the_old_form_of_namespaces_works_with_a_warning(world):
    world.declare(kopf.on.event, 'event')
    await world.create()
    stop = asyncio.Event()
    with pytest.warns(DeprecationWarning, match=r'namespaces=\[') as warnings:
        task = asyncio.create_task(
            kopf.operator(**options(world, clusterwide=False, namespace='default', stop_flag=stop))
        )
        await world.until_called('event')
    stop.set()
    await task
    assert len(warnings) == 1


@in_virtual_time
async def test_spawned_tasks_can_be_run_beside_others(world, activities, monkeypatch):
    monkeypatch.setattr(running, 'LEFTOVERS_PATIENCE', 0.1)
    stop = asyncio.Event()
    earlier = asyncio.create_task(asyncio.Event().wait())
    tasks = await kopf.spawn_tasks(**options(world, stop_flag=stop))
    bystander = asyncio.create_task(asyncio.Event().wait())
    waiting = asyncio.create_task(kopf.run_tasks(tasks, ignored=[bystander]))
    late_bystander = asyncio.create_task(asyncio.Event().wait(), name='late')
    await world.until_called('startup')
    stop.set()
    async with asyncio.timeout(60):
        await waiting
    assert not bystander.done() and not earlier.done()
    assert late_bystander.cancelled()  # according to the handbook, it could be a part of the operator
    assert any('are left behind, and are cancelled: late' in text for text in world.log.texts)
    bystander.cancel()
    earlier.cancel()


@in_virtual_time
async def test_tasks_can_finish_when_the_operator_ends(world, activities, monkeypatch):
    monkeypatch.setattr(running, 'LEFTOVERS_PATIENCE', 60)

    async def finish():
        await world.until_called('cleanup')
        return 'result'

    stop, ready = asyncio.Event(), asyncio.Event()
    tasks = await kopf.spawn_tasks(**options(world, stop_flag=stop, ready_flag=ready))
    late = asyncio.create_task(finish())
    await ready.wait()
    stop.set()
    await kopf.run_tasks(tasks)
    assert late.result() == 'result'


@in_virtual_time
async def test_options_of_tasks_are_checked_and_known_at_once(world):
    with pytest.raises(TypeError, match="either cluster-wide or namespaced"):
        await kopf.spawn_tasks(**options(world, namespaces=['a']))
    stop = asyncio.Event()
    tasks = await kopf.spawn_tasks(**options(world, peering_name='mine', priority=123, stop_flag=stop))
    assert world.settings.peering.name == 'mine' and world.settings.peering.mandatory
    assert world.settings.peering.priority == 123 and world.settings.peering.standalone
    stop.set()
    await kopf.run_tasks(tasks)


@in_virtual_time
async def test_tasks_that_handlers_leave_behind_are_cancelled(world, activities):
    world.settings.queueing.exit_timeout = 0.1
    left = []

    async def leave(**_):
        async def work():
            await asyncio.Event().wait()

        left.append(asyncio.create_task(work(), name='forgotten'))

    def leave_by_thread(**_):
        asyncio.run_coroutine_threadsafe(leave(), loop)

    loop = asyncio.get_running_loop()
    kopf.on.startup(registry=world.registry)(leave)
    kopf.on.cleanup(registry=world.registry)(leave_by_thread)
    world.declare(kopf.on.create, 'create', does=leave)
    world.declare(kopf.daemon, 'daemon', does=leave)
    async with world.operator():
        await world.create()
        await world.handled()
        await world.until_called('daemon')
        bystander = asyncio.create_task(asyncio.Event().wait())
    assert len(left) == 4 and all(task.cancelled() for task in left)
    assert [text for text in world.log.texts if 'are left behind, and are cancelled' in text] == [
        f"These tasks are left behind, and are cancelled: {', '.join(['forgotten (%s)'] * 4)}."
        % ((left[0].get_coro().__qualname__,) * 4)
    ]
    assert not bystander.done()
    bystander.cancel()


@pytest.mark.parametrize('when', ['login', 'startup', 'API'])
@in_virtual_time
async def test_readiness_is_told_in_any_case(world, when):
    world.registry.activities._handlers.clear()
    ready, stop = asyncio.Event(), asyncio.Event()

    @kopf.on.startup(registry=world.registry)
    def startup(**_):
        assert not ready.is_set()
        if when == 'startup':
            raise kopf.PermanentError('boo')

    @kopf.on.login(registry=world.registry)
    def login(**_):
        if when == 'login':
            raise kopf.PermanentError('boo')
        return kopf.ConnectionInfo(server='http://127.0.0.1:1')

    world.settings.networking.error_backoffs = [60]
    task = asyncio.create_task(kopf.operator(**options(world, ready_flag=ready, stop_flag=stop)))
    async with asyncio.timeout(60):
        await ready.wait()
        if when == 'API':
            stop.set()
        with contextlib.nullcontext() if when == 'API' else pytest.raises(Exception, match='boo'):
            await task


@in_virtual_time
async def test_tasks_can_be_run_together_with_others(world, activities):
    async def bring():
        await world.until_called('startup')

    tasks = await kopf.spawn_tasks(**options(world))
    tasks.append(asyncio.create_task(bring()))
    async with asyncio.timeout(5):
        await kopf.run_tasks(tasks)
    assert all(task.done() for task in tasks)


@in_virtual_time
async def test_errors_of_tasks_are_raised(world):
    @kopf.on.startup(registry=world.registry)
    def startup(**_):
        raise kopf.PermanentError('boo')

    with pytest.raises(Exception, match='boo'):
        await kopf.run_tasks(await kopf.spawn_tasks(**options(world)))


async def test_running_no_tasks_ends_at_once():
    await kopf.run_tasks([])


# In threads.


@pytest.mark.parametrize('given', [True, False], ids=['loop', 'no loop'])
async def test_an_operator_runs_in_another_thread(world, activities, given):
    ready, stop = threading.Event(), threading.Event()
    loop = asyncio.new_event_loop() if given else None
    thread = threading.Thread(
        target=kopf.run, kwargs={**options(world, ready_flag=ready, stop_flag=stop), 'loop': loop}
    )
    thread.start()
    await wait_flag(ready)
    stop.set()
    while thread.is_alive():
        await asyncio.sleep(0.001)
    thread.join()
    assert world.ids == ['startup', 'cleanup']
    if loop is not None:
        assert not loop.is_closed()
        loop.close()


# In processes.


class Process:
    """A script with handlers, run by ``kopf run`` or as it is."""

    def __init__(self, world, tmp_path):
        self.world = world
        self.path = tmp_path / 'handlers.py'
        self.process = None
        self.output = ''

    async def start(self, code, *command):
        self.path.write_text(textwrap.dedent(code))
        command = command or ('kopf', 'run', '--all-namespaces', '--standalone')
        self.process = await AsyncProcess.start([*command, self.path])

    async def until(self, text):
        async with asyncio.timeout(60):
            while text not in self.output:
                line = await self.process.stdout.readline()
                assert line, self.output
                self.output += line.decode()

    async def end(self):
        async with asyncio.timeout(60):
            self.output += (await self.process.communicate())[0].decode()
        return self.process.returncode

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)


@pytest.fixture
async def process(world, tmp_path):
    process = Process(world, tmp_path)
    yield process
    if process.process is not None and process.process.returncode is None:
        process.process.kill()
        await process.process.communicate()
    print(process.output)


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
async def test_a_signal_ends_the_operator_in_order(process, number):
    await process.start('''
        import kopf
        @kopf.on.event('kopfexamples')
        def event(**_): pass
        @kopf.on.cleanup()
        def cleanup(**_): print('CLEANUP')
        @kopf.on.event('configmaps')
        def configmap(**_): print('READY', flush=True)
    ''')
    await process.world.aio.create({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'x'}})
    await process.until('READY')
    process.signal(number)
    began = time.monotonic()
    assert await process.end() == 0
    assert time.monotonic() - began < 15
    assert 'CLEANUP' in process.output and f'Signal {number.name} is received.' in process.output


@pytest.mark.parametrize('hanging', ['await asyncio.sleep(60)', 'time.sleep(60)'])
async def test_operators_that_stop_for_too_long_are_killed(process, hanging):
    await process.start(f'''
        import asyncio, kopf, time
        @kopf.on.startup()
        async def configure(settings, **_): settings.process.ultimate_exiting_timeout = 0.3
        @kopf.on.cleanup()
        async def cleanup(**_): {hanging}
        @kopf.on.event('kopfexamples')
        def event(**_): pass
        @kopf.on.event('configmaps')
        def configmap(**_): print('READY', flush=True)
    ''')
    await process.world.aio.create({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'x'}})
    await process.until('READY')
    process.signal()
    assert await process.end() == -signal.SIGKILL
    assert 'still stopping after 0.3 seconds' in process.output


async def test_signals_end_the_operator_while_handlers_hang(process):
    await process.start('''
        import asyncio, kopf, time, threading
        running = set()
        def note(name):
            running.add(name)
            if len(running) == 3:
                print('READY', flush=True)
        @kopf.on.startup()
        async def configure(settings, **_): settings.queueing.exit_timeout = 0.1
        @kopf.on.create('kopfexamples', labels={'x': 'a'})
        def sync(**_): note('sync'); time.sleep(60)
        @kopf.on.create('kopfexamples', labels={'x': 'b'})
        async def obedient(**_): note('obedient'); await asyncio.sleep(60)
        @kopf.on.create('kopfexamples', labels={'x': 'c'})
        async def stubborn(**_):
            note('stubborn')
            while True:
                try: await asyncio.sleep(60)
                except asyncio.CancelledError: pass
    ''')
    for label in 'abc':
        await process.world.create(label, labels={'x': label})
    await process.until('READY')
    process.signal()
    began = time.monotonic()
    assert await process.end() == 0
    assert time.monotonic() - began < 15
    assert '<default/c>' in process.output and 'Traceback' not in process.output


async def test_the_second_signal_ends_at_once(process):
    await process.start('''
        import asyncio, kopf
        @kopf.on.create('kopfexamples')
        async def stubborn(**_):
            print('READY', flush=True)
            while True:
                try: await asyncio.sleep(60)
                except asyncio.CancelledError: pass
    ''')
    await process.world.create()
    await process.until('READY')
    process.signal()
    await process.until('Signal SIGTERM is received')
    process.signal()
    began = time.monotonic()
    assert await process.end() == -signal.SIGTERM
    assert time.monotonic() - began < 15


async def test_the_second_signal_ends_what_blocks_the_loop(process):
    await process.start('''
        import kopf
        @kopf.on.create('kopfexamples')
        async def blocking(**_):
            print('READY', flush=True)
            while True: pass
    ''')
    await process.world.create()
    await process.until('READY')
    process.signal()
    await asyncio.sleep(0.1)  # two at the same moment are one, and there is nothing to be seen of the first
    process.signal()
    assert await process.end() == -signal.SIGTERM


@pytest.mark.parametrize('kind', ['def', 'async def'])
async def test_signals_end_the_operator_while_it_starts_up(process, kind):
    await process.start(f'''
        import asyncio, kopf, time
        @kopf.on.startup()
        {kind} startup(**_):
            print('READY', flush=True)
            {'await asyncio' if kind == 'async def' else 'time'}.sleep(60)
    ''')
    await process.until('READY')
    process.signal()
    began = time.monotonic()
    assert await process.end() == 0
    assert time.monotonic() - began < 15
    assert process.world.sandbox.requests == []


async def test_failures_have_exit_codes(process):
    await process.start('''
        import kopf
        @kopf.on.startup()
        def startup(**_): raise kopf.PermanentError('boo')
    ''')
    assert await process.end() == 1
    assert 'boo' in process.output and 'Traceback' not in process.output
    await process.start('''
        import kopf
        @kopf.on.login()
        def login(**_): return kopf.ConnectionInfo(server='https://127.0.0.1:1', token='x', expiration=__import__(
            'datetime').datetime(2000, 1, 1))
        @kopf.on.event('kopfexamples')
        def event(**_): pass
    ''')
    assert await process.end() == 1
    assert 'No new credentials' in process.output and 'Traceback' not in process.output


@pytest.mark.parametrize('ending', ['before', 'after'])
@pytest.mark.parametrize(
    'installing',
    [
        'loop.add_signal_handler(signal.SIGTERM, ended.set)',
        'signal.signal(signal.SIGTERM, lambda *_: loop.call_soon_threadsafe(ended.set))',
    ],
    ids=['loop', 'python'],
)
async def test_signals_also_reach_the_program_around_the_operator(process, installing, ending):
    """As web servers do it, which end the operator themselves when they end."""
    await process.start(
        f'''
        import asyncio, kopf, signal
        async def main():
            ended, ready, stop, loop = asyncio.Event(), asyncio.Event(), asyncio.Event(), asyncio.get_running_loop()
            {installing}
            operator = asyncio.create_task(kopf.operator(ready_flag=ready, stop_flag=stop, standalone=True))
            await ready.wait()
            if {ending == 'before'}:
                stop.set()
                await operator
            print('READY', flush=True)
            await ended.wait()
            stop.set()
            await operator
            print('END')
        asyncio.run(main())
    ''',
        'python',
    )
    await process.until('READY')
    process.signal()
    assert await process.end() == 0
    assert 'END' in process.output


async def test_a_program_that_waits_for_the_operator_goes_on_when_a_signal_has_stopped_it(process):
    await process.start(
        '''
        import kopf, signal, sys
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
        @kopf.on.startup()
        async def startup(**_): print('READY', flush=True)
        kopf.run(standalone=True)
        print('END')
    ''',
        'python',
    )
    await process.until('READY')
    process.signal()
    assert await process.end() == 0
    assert 'END' in process.output


async def test_the_handlers_of_a_program_that_exits_are_called_after_the_end_of_the_operator(process):
    await process.start(
        '''
        import asyncio, kopf, signal, sys
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
        @kopf.on.create('kopfexamples')
        async def create(**_):
            print('READY', flush=True)
            await asyncio.sleep(0.5)
            print('HANDLED')
        asyncio.run(kopf.operator(standalone=True))
    ''',
        'python',
    )
    await process.world.create()
    await process.until('READY')
    process.signal()
    assert await process.end() == 3
    assert 'HANDLED' in process.output


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
async def test_signals_do_not_interrupt_a_program_that_has_no_handlers_of_its_own(process, number):
    await process.start(
        '''
        import asyncio, kopf
        class Ready(asyncio.Event):
            def set(self): print('READY', flush=True)
        asyncio.run(kopf.operator(ready_flag=Ready(), standalone=True))
        print('END')
    ''',
        'python',
    )
    await process.until('READY')
    process.signal(number)
    assert await process.end() == 0
    assert 'END' in process.output


async def test_several_operators_can_run_in_one_loop(process):
    await process.start(
        '''
        import asyncio, kopf, signal, sys
        before = signal.getsignal(signal.SIGTERM)
        async def main():
            registries = [kopf.OperatorRegistry() for _ in range(3)]
            for number, registry in enumerate(registries):
                kopf.on.login(registry=registry)(kopf.login_with_kubeconfig)
                async def cleanup(number=number, **_): print('CLEANUP', number)
                kopf.on.cleanup(registry=registry)(cleanup)
            flags = [asyncio.Event() for _ in range(6)]
            tasks = [asyncio.create_task(kopf.operator(
                registry=registry, ready_flag=flags[2 * number], stop_flag=flags[2 * number + 1], standalone=True))
                for number, registry in enumerate(registries)]
            for flag in flags[::2]:
                await flag.wait()
            flags[1].set()
            await tasks[0]  # the others go on, and still listen to signals
            print('READY', flush=True)
            await asyncio.gather(*tasks)
        asyncio.run(main())
        assert signal.getsignal(signal.SIGTERM) is before
        print('END')
    ''',
        'python',
    )
    await process.until('READY')
    assert 'CLEANUP 0' in process.output
    process.signal()
    assert await process.end() == 0
    assert 'CLEANUP 1' in process.output and 'CLEANUP 2' in process.output and 'END' in process.output
