"""SIGTERM in every state: the end is bounded and orderly, and tasks that do not end are named. Other ends, too."""

import asyncio
import contextlib
import signal
import textwrap
import time

import pytest
from forkserver import AsyncProcess

pytestmark = pytest.mark.timeout(300)

SOON = 30  # seconds: also on a busy machine, and far from those of all that hangs

# How long it takes here is up to the machine; hanging would be minutes.
PREFACE = '''
import asyncio, kopf, threading, time
async def ignore_cancellations():
    while True:
        try: await asyncio.sleep(600)
        except asyncio.CancelledError: print('CANCELLED', flush=True)
@kopf.on.cleanup()
def cleanup(**_): print('CLEANUP', flush=True)
'''


class Process:
    """``kopf run`` with these handlers."""

    def __init__(self, world, folder):
        self.world = world
        self.path = folder / 'handlers.py'
        self.process = None
        self.output = ''

    async def start(self, code, *options, standalone=True):
        self.path.write_text(PREFACE + textwrap.dedent(code))
        options = (*options, *(['--standalone'] if standalone else []))
        self.process = await AsyncProcess.start(['kopf', 'run', '--all-namespaces', *options, self.path], limit=2**22)

    async def until(self, text, timeout=60):
        async with asyncio.timeout(timeout):
            while text not in self.output:
                line = await self.process.stdout.readline()
                assert line, self.output
                self.output += line.decode()

    async def end(self, timeout=60):
        """Wait for the end; give the exit code and for how long it has lasted."""
        began = time.monotonic()
        async with asyncio.timeout(timeout):
            self.output += (await self.process.communicate())[0].decode()
        return self.process.returncode, time.monotonic() - began

    async def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return await self.end()


@pytest.fixture
async def process(world, tmp_path):
    process = Process(world, tmp_path)
    yield process
    if process.process is not None and process.process.returncode is None:
        process.process.kill()
        await process.process.communicate()
    print(process.output[-5000:])


async def until(predicate):
    async with asyncio.timeout(60):
        while not predicate():
            await asyncio.sleep(0.02)


def seen(world, **fields):
    return [
        request
        for request in world.sandbox.requests
        if all(getattr(request, name) == value for name, value in fields.items())
    ]


# Before there is anything to handle.


async def test_startup_handlers_that_ignore_their_cancellation_are_named(process):
    await process.start('''
        @kopf.on.startup()
        async def startup(**_):
            print('READY', flush=True)
            await ignore_cancellations()
    ''')
    await process.until('READY')
    code, seconds = await process.stop()
    assert code == 0 and seconds < SOON
    assert 'The startup handlers ignore their cancellation, and are left' in process.output
    assert 'Traceback' not in process.output


@pytest.mark.thorough
async def test_login_handlers_that_ignore_their_cancellation_are_named(process):
    await process.start('''
        @kopf.on.login()
        async def login(**_):
            print('READY', flush=True)
            await ignore_cancellations()
        @kopf.on.event('kopfexamples')
        def event(**_): pass
    ''')
    await process.until('READY')
    code, seconds = await process.stop()
    assert code == 0 and seconds < SOON
    assert 'The login handlers ignore their cancellation, and are left' in process.output
    assert 'CLEANUP' in process.output


@pytest.mark.thorough
@pytest.mark.parametrize('fault', ['delay', 'error', 'drop'])
@pytest.mark.parametrize('path', ['^/apis?$|^/apis?/[^/]+(/[^/]+)?$', '/kopfexamples$'], ids=['discovery', 'listing'])
async def test_while_the_api_does_not_work(process, fault, path):
    await process.start('''
        @kopf.on.create('kopfexamples')
        def create(**_): pass
    ''')
    process.world.sandbox.faults.add(fault, path=path, times=None, **({'seconds': 60} if fault == 'delay' else {}))
    await until(lambda: [request for request in process.world.sandbox.requests if 'apis' in request.path])
    await asyncio.sleep(0.2)
    code, seconds = await process.stop()
    assert code == 0 and seconds < SOON
    assert 'CLEANUP' in process.output


@pytest.mark.thorough
async def test_while_the_api_is_down(process):
    process.world.sandbox.faults.refuse_connections()
    await process.start('''
        @kopf.on.create('kopfexamples')
        def create(**_): pass
    ''')
    await process.until('attempt #1')
    code, seconds = await process.stop()
    assert code == 0 and seconds < SOON
    process.world.sandbox.faults.accept_connections()


async def test_indexing_functions_that_ignore_their_cancellation_are_named(process):
    await process.start('''
        @kopf.index('kopfexamples')
        async def index(**_):
            print('READY', flush=True)
            await ignore_cancellations()
    ''')
    await process.world.create()
    await process.until('READY')
    code, seconds = await process.stop()
    assert code == 0 and seconds < SOON
    assert 'The functions of indices ignore their cancellation, and are left' in process.output
    assert 'CLEANUP' in process.output


# While objects are handled.


async def test_while_everything_waits_for_retries(process):
    await process.start(
        '''
        count = 0
        @kopf.on.create('kopfexamples')
        def create(**_):
            global count
            count += 1
            if count == 50: print('READY', flush=True)
            raise kopf.TemporaryError('later', delay=600)
    ''',
        '--quiet',
    )
    for number in range(50):
        await process.world.create(f'obj-{number}')
    await process.until('READY')
    code, seconds = await process.stop()
    assert code == 0 and seconds < SOON
    assert 'CLEANUP' in process.output


@pytest.mark.thorough
@pytest.mark.parametrize(
    'fault', [{'action': 'error', 'status': 500}, {'action': 'delay', 'seconds': 60}], ids=lambda fault: fault['action']
)
async def test_while_patches_are_not_accepted(process, fault):
    process.world.sandbox.faults.add(**fault, verb='patch', times=None)
    await process.start('''
        @kopf.on.create('kopfexamples')
        def create(**_): pass
    ''')
    await process.world.create()
    await until(lambda: seen(process.world, verb='patch'))
    code, seconds = await process.stop()
    assert code == 0 and seconds < SOON
    assert 'cancelling them: <default/obj>' in process.output and 'CLEANUP' in process.output


@pytest.mark.thorough
async def test_a_throttled_operator_ends_soon(process):
    process.world.sandbox.faults.error(403, verb='patch', times=None)
    await process.start('''
        @kopf.on.startup()
        def configure(settings, **_): settings.queueing.error_delays = [600]
        @kopf.on.create('kopfexamples')
        def create(**_): pass
    ''')
    await process.world.create()
    await process.until('Throttling for 600 seconds')
    code, seconds = await process.stop()
    assert code == 0 and seconds < SOON


async def test_a_paused_operator_ends_without_handling(process):
    world = process.world
    await world.aio.apply((world.root / 'peering.yaml').read_text())
    await world.aio.create(
        {
            'apiVersion': 'kopf.dev/v1',
            'kind': 'ClusterKopfPeering',
            'metadata': {'name': 'default'},
            'status': {'boss': {'priority': 100, 'lifetime': 600, 'lastseen': '2100-01-01T00:00:00Z'}},
        }
    )
    await process.start(
        '''
        @kopf.on.create('kopfexamples')
        def create(**_): print('CALLED', flush=True)
    ''',
        standalone=False,
    )
    await process.until('Pausing operations in favour of')
    await world.create()
    code, seconds = await process.stop()
    assert code == 0 and seconds < SOON
    assert 'CALLED' not in process.output and 'CLEANUP' in process.output
    peering = await world.aio.get('clusterkopfpeerings', 'default')
    assert list(peering['status']) == ['boss']


@pytest.mark.thorough
async def test_while_the_peering_can_not_be_left(process):
    world = process.world
    await world.aio.apply((world.root / 'peering.yaml').read_text())
    await world.aio.create({'apiVersion': 'kopf.dev/v1', 'kind': 'ClusterKopfPeering', 'metadata': {'name': 'default'}})
    await process.start(
        '''
        @kopf.on.create('kopfexamples')
        def create(**_): print('READY', flush=True)
    ''',
        standalone=False,
    )
    await world.create()
    await process.until('READY')
    world.sandbox.faults.delay(60, times=None, resource='clusterkopfpeerings', verb='patch')
    code, seconds = await process.stop()
    assert code == 0 and seconds < 45


@pytest.mark.parametrize(
    'kind, count',
    [
        ('async', 300),
        pytest.param('async', 5000, marks=pytest.mark.thorough),
        pytest.param('sync', 300, marks=pytest.mark.thorough),
        pytest.param('timer', 1000, marks=pytest.mark.thorough),
    ],
)
async def test_daemons_are_stopped_before_the_end(process, kind, count):
    code = {
        'async': '@kopf.daemon("kopfexamples")\nasync def daemon(stopped, **_): note(); await stopped.wait()',
        'sync': '@kopf.daemon("kopfexamples")\ndef daemon(stopped, **_): note(); stopped.wait()',
        'timer': '@kopf.timer("kopfexamples", interval=600)\nasync def timer(**_): note()',
    }[kind]
    await process.start(
        textwrap.dedent(f'''
        count = 0
        def note():
            global count
            count += 1
            if count == {count}: print('READY', flush=True)
    ''')
        + code,
        '--quiet',
    )
    for number in range(count):
        await process.world.create(f'obj-{number}', finalizers=['kopf.zalando.org/KopfFinalizerMarker'])
    await process.until('READY')
    exit_code, seconds = await process.stop()
    assert exit_code == 0 and seconds < SOON
    assert 'CLEANUP' in process.output and 'orphaned' not in process.output


@pytest.mark.thorough
async def test_daemons_that_ignore_everything_are_named(process):
    await process.start('''
        running = []
        def note(name):
            running.append(name)
            if len(running) == 2: print('READY', flush=True)
        @kopf.daemon('kopfexamples', cancellation_backoff=0.2, cancellation_timeout=0.2)
        async def stubborn_coroutine(**_):
            note('coroutine')
            await ignore_cancellations()
        @kopf.daemon('kopfexamples', cancellation_backoff=0.2, cancellation_timeout=0.2)
        def stubborn_thread(**_):
            note('thread')
            time.sleep(600)
    ''')
    await process.world.create()
    await process.until('READY')
    code, seconds = await process.stop()
    assert code == 0 and seconds < 45
    for name in ('stubborn_coroutine', 'stubborn_thread'):
        assert f"Daemon '{name}' did not exit in time. Leaving it orphaned." in process.output
    assert 'CLEANUP' in process.output


async def test_while_events_are_posted_to_nowhere(process):
    process.world.sandbox.faults.delay(60, times=None, resource='events', method='POST')
    await process.start(
        '''
        @kopf.on.create('kopfexamples')
        def create(body, **_):
            for _ in range(100): kopf.info(body, reason='X', message='text')
            print('READY', flush=True)
    ''',
        '--quiet',
    )
    for number in range(10):
        await process.world.create(f'obj-{number}')
    await process.until('READY')
    await until(lambda: seen(process.world, resource='events'))
    code, seconds = await process.stop()
    assert code == 0 and seconds < SOON
    assert 'Exiting without posting' in process.output and 'CLEANUP' in process.output


@pytest.mark.thorough
async def test_while_webhooks_are_asked(process):
    await process.start('''
        @kopf.on.startup()
        def configure(settings, **_):
            settings.admission.server = kopf.WebhookServer(addr='127.0.0.1', host='localhost')
            settings.admission.managed = 'x.example.com'
        @kopf.on.validate('kopfexamples')
        async def slow(**_):
            print('READY', flush=True)
            await ignore_cancellations()
        @kopf.on.event('kopfexamples')
        async def event(**_): pass
    ''')
    await until(
        lambda: [
            request
            for request in seen(process.world, method='PATCH', status=200)
            if 'webhookconfigurations' in request.resource
        ]
    )
    creation = asyncio.create_task(process.world.create())
    await process.until('READY')
    code, seconds = await process.stop()
    assert code == 0 and seconds < 45
    assert 'CLEANUP' in process.output
    with contextlib.suppress(Exception):
        await creation
    await process.world.create('another')  # no watch asks about it any more


@pytest.mark.thorough
async def test_an_operator_ends_though_everything_hangs(process):
    """Everything hangs that can, and the API is gone when the signal comes."""
    await process.start('''
        running = set()
        def note(name):
            running.add(name)
            if len(running) == 4: print('READY', flush=True)
        @kopf.on.event('kopfexamples')
        async def event(**_): note('event'); await ignore_cancellations()
        @kopf.on.create('configmaps')
        def sync(**_): note('sync'); time.sleep(600)
        @kopf.daemon('secrets')
        def thread(**_): note('thread'); time.sleep(600)
        @kopf.daemon('secrets')
        async def coroutine(body, **_):
            kopf.info(body, reason='X')
            note('coroutine')
            await ignore_cancellations()
    ''')
    for kind in ('ConfigMap', 'Secret'):
        await process.world.aio.create({'apiVersion': 'v1', 'kind': kind, 'metadata': {'name': 'x'}})
    await process.world.create()
    await process.until('READY')
    process.world.sandbox.faults.refuse_connections()
    code, seconds = await process.stop()
    process.world.sandbox.faults.accept_connections()
    assert code == 0 and seconds < 45
    assert 'CLEANUP' in process.output and '<default/obj>' in process.output


async def test_two_signals_at_once(process):
    await process.start('''
        @kopf.daemon('kopfexamples')
        def thread(**_): print('READY', flush=True); time.sleep(600)
    ''')
    await process.world.create()
    await process.until('READY')
    process.process.send_signal(signal.SIGTERM)
    await process.until('Signal SIGTERM is received')
    process.process.send_signal(signal.SIGINT)
    code, seconds = await process.end()
    assert code == -signal.SIGINT and seconds < SOON


async def test_a_failing_root_task_ends_the_operator_with_the_cause_after_the_cleanup(process):
    await process.start('''
        class Server:
            async def __call__(self, fn):
                yield {'url': 'https://localhost:1/'}
                print('READY', flush=True)
                await asyncio.sleep(0.2)
                raise OSError('the tunnel has collapsed')
        @kopf.on.startup()
        def configure(settings, **_): settings.admission.server = Server()
        @kopf.on.validate('kopfexamples')
        async def validate(**_): pass
    ''')
    await process.until('READY')
    code, seconds = await process.end()
    assert code == 1 and seconds < SOON
    assert process.output.index('CLEANUP') < process.output.index('the tunnel has collapsed')
