"""What comes and goes all the time is freed at once, not when the garbage collector comes: it comes rarely."""

import asyncio
import collections
import datetime
import gc
import types
import weakref

import pytest
from kinds import define

import kopf
from kopf._cogs.clients.connection_pools import Pool
from kopf._cogs.clients.sessions import DirectSession
from kopf._core.reactor import orchestration, watches

PEERING = {'apiVersion': 'kopf.dev/v1', 'kind': 'KopfPeering', 'metadata': {'name': 'default'}}


async def live(world, plural, kind, namespace='default'):
    """Let an object be created and deleted; handlers fail once, and a daemon runs meanwhile."""
    await world.aio.create(
        {'apiVersion': 'other.dev/v1', 'kind': kind, 'metadata': {'name': 'obj', 'namespace': namespace}}
    )
    await world.aio.wait_for(
        f'{plural}.v1.other.dev', 'obj', lambda body: 'created' in body.get('status', {}), namespace=namespace
    )
    await world.aio.delete(f'{plural}.v1.other.dev', 'obj', namespace=namespace)
    await world.aio.wait_gone(f'{plural}.v1.other.dev', 'obj', namespace=namespace)


async def kinds(world, number):
    plural = f'fleeting{number}'
    await world.aio.create(define(plural, plural.capitalize(), group='other.dev'))
    await world.aio.wait_for(
        'customresourcedefinitions',
        f'{plural}.other.dev',
        lambda body: any(
            condition['type'] == 'Established' for condition in body.get('status', {}).get('conditions', [])
        ),
    )
    await live(world, plural, plural.capitalize())
    await world.aio.delete('customresourcedefinitions', f'{plural}.other.dev')
    await world.aio.wait_gone('customresourcedefinitions', f'{plural}.other.dev')


async def namespaces(world, number):
    await world.aio.create({'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': f'ns-{number}'}})
    await live(world, 'steady', 'Steady', f'ns-{number}')
    await world.aio.delete('namespaces', f'ns-{number}')
    await world.aio.wait_gone('namespaces', f'ns-{number}')


async def streams(world, number):
    world.sandbox.faults.drop_watches()
    await live(world, 'steady', 'Steady')


async def credentials(world, number):
    world.sandbox.faults.expire_tokens()
    world.sandbox.faults.drop_watches()
    await live(world, 'steady', 'Steady')


async def errors(world, number):
    world.sandbox.faults.error(500, times=3)
    world.sandbox.faults.drop_watches()
    await live(world, 'steady', 'Steady')


async def peers(world, number):
    record = {'priority': 100, 'lifetime': 60, 'lastseen': datetime.datetime.now(datetime.UTC).isoformat()}
    for value, text in [(record, "Pausing operations"), (None, "Resuming operations")]:
        world.log.texts.clear()
        await world.aio.patch('kopfpeerings', 'default', {'status': {'boss': value}})
        await world.until_logged(text)
    await live(world, 'steady', 'Steady')


async def serve(stopped, **_):
    await stopped.wait()


def find_garbage():
    """Count the objects of this framework that only the collector would free; sandboxes live in the same process."""
    gc.collect()
    items = [
        (item.f_globals['__name__'] if isinstance(item, types.FrameType) else type(item).__module__, item)
        for item in gc.garbage
    ]
    return collections.Counter(
        type(item).__qualname__ for module, item in items if module.startswith(('kopf._core.', 'kopf._cogs.'))
    )


def list_sessions():
    return [item for item in gc.get_objects() if isinstance(item, (DirectSession, Pool))]


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    """Shorten the delays of clusters."""
    monkeypatch.setattr(watches, 'MIN_BACKOFF', 0.02)
    monkeypatch.setattr(watches, 'MAX_BACKOFF', 0.1)
    monkeypatch.setattr(orchestration, 'SETTLING_DELAYS', (0.05,))


@pytest.fixture
def collecting():
    gc.collect()
    gc.freeze()  # what other tests have left is not looked at again and again
    gc.disable()
    yield
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


@pytest.mark.parametrize('trouble', [kinds, namespaces, streams, credentials, errors, peers])
async def test_nothing_is_left_to_the_garbage_collector(world, collecting, trouble):
    world.sandbox.apply(world.root / 'peering.yaml')
    await world.aio.create(PEERING)
    await world.aio.create(define('steady', 'Steady', group='other.dev'))
    world.settings.networking.error_backoffs = [0.01] * 5
    world.declare(kopf.daemon, 'daemon', kopf.EVERYTHING, resource='other.dev', does=serve)
    world.declare(kopf.timer, 'timer', kopf.EVERYTHING, resource='other.dev', interval=0.01)

    @kopf.on.create('other.dev', kopf.EVERYTHING, registry=world.registry, id='created')
    def created(retry, **_):
        if not retry:
            raise kopf.TemporaryError("not now", delay=0.01)
        return 'done'

    @kopf.on.delete('other.dev', kopf.EVERYTHING, registry=world.registry)
    async def deleted(**_):
        pass

    async with world.operator(namespaces=['default', 'ns-*'], standalone=False):
        await live(world, 'steady', 'Steady')
        await trouble(world, 0)
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        for number in (1, 2):
            await trouble(world, number)
        await asyncio.sleep(0.2)  # the last connections end
        assert not find_garbage()


async def test_nothing_is_kept_of_old_credentials(world, collecting):
    former = list_sessions()  # other tests in this process can have left some, e.g. in a traceback

    def find_sessions():
        added = [item for item in list_sessions() if not any(item is other for other in former)]
        return sorted(type(item).__name__ for item in added)

    await world.aio.create(define('steady', 'Steady', group='other.dev'))
    world.declare(kopf.on.create, 'created', kopf.EVERYTHING, resource='other.dev', does=[{}] * 9)
    async with world.operator(namespaces=['default']):
        for number in range(3):
            await credentials(world, number)
        async with asyncio.timeout(60):
            while find_sessions() != ['DirectSession', 'Pool']:  # until the last connections have ended
                await asyncio.sleep(0.05)


class Boo(kopf.PermanentError):
    """It is logged without its traceback: otherwise, the captured logs would keep it."""


async def test_errors_of_handlers_are_freed_at_once(world, collecting):
    errors = {}

    def failing(id):
        async def fail(**_):
            error = Boo("boo")
            errors[id] = weakref.ref(error)
            world.changed.set()
            try:
                raise error
            finally:
                del error

        return fail

    everything = ('other.dev', kopf.EVERYTHING)
    for id, decorator, options in [
        ('create', kopf.on.create, {}),
        ('event', kopf.on.event, {}),
        ('daemon', kopf.daemon, {}),
        ('timer', kopf.timer, {'interval': 60}),
        ('index', kopf.index, {}),
    ]:
        decorator(*everything, id=id, registry=world.registry, **options)(failing(id))
    await world.aio.create(define('steady', 'Steady', group='other.dev'))
    await world.aio.create(
        {'apiVersion': 'other.dev/v1', 'kind': 'Steady', 'metadata': {'name': 'obj', 'namespace': 'default'}}
    )
    async with world.operator(namespaces=['default']):
        await world.until(lambda: len(errors) == 5)
        await world.until_logged("Creation is processed")
        await asyncio.sleep(0)
        assert [id for id, error in errors.items() if error() is not None] == []
