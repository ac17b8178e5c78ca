"""A whole operator in the loop of a test, against a sandbox: with handlers that note what they are called for."""

import asyncio
import collections
import contextlib
import functools
import json
import logging
import pathlib

import pytest

import kopf
from kopf._cogs.aiokits.flags import ServingEvent
from kopf.testing import Sandbox

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAST_HANDLED = 'kopf.zalando.org/last-handled-configuration'
FINALIZER = 'kopf.zalando.org/KopfFinalizerMarker'

Call = collections.namedtuple('Call', 'id name kwargs')


class Gate:
    """A handler that runs until the test opens the gate."""

    def __init__(self):
        self.event = asyncio.Event()

    async def __call__(self, **_):
        await self.event.wait()

    def open(self):
        self.event.set()


@contextlib.asynccontextmanager
async def running_operator(*, name=None, has_ended=False, **options):
    """
    Run an operator in a task. The block begins when the operator is ready or has failed, and ends it.

    The block gets the task. If the operator ends before the block does (`has_ended`), its errors are left in the task.
    """
    ready, stop = ServingEvent(), asyncio.Event()
    task = asyncio.create_task(kopf.operator(ready_flag=ready, stop_flag=stop, **options), name=name)
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    try:
        yield task
    finally:
        stop.set()
        if not has_ended:
            await task


class Log(logging.Handler):
    def __init__(self, changed):
        super().__init__()
        self.texts = []
        self.changed = changed
        self.loop = None  # of the waiting tests

    def emit(self, record):
        self.texts.append(record.getMessage())
        self.wake()

    def wake(self):
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.changed.set)  # other threads log, too


class World:
    """The cluster, the operators with their handlers, and what they have done."""

    root = ROOT

    def __init__(self, sandbox):
        self.sandbox = sandbox
        self.aio = sandbox.aio
        self.replace_code()
        self.settings = kopf.OperatorSettings()
        self.settings.posting.enabled = False
        self.settings.networking.error_backoffs = []
        self.settings.queueing.error_delays = [0.05]
        self.calls = []
        self.changed = asyncio.Event()
        self.log = Log(self.changed)

    # Handlers.

    def replace_code(self):
        """Begin with other code for the next operator: without any handlers but the login."""
        self.registry = kopf.OperatorRegistry()
        kopf.on.login(registry=self.registry)(kopf.login_with_kubeconfig)

    def note(self, id, name, **kwargs):
        self.calls.append(Call(id, name, kwargs))
        self.wake()

    def wake(self):
        """Let tests that wait look again; functions in threads must call it, too."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self.log.wake()
        else:
            self.changed.set()

    def declare(self, decorator, id, *args, does=None, resource='kopfexamples', **options):
        """Return a handler that notes its call, and then calls, raises, or returns what was given."""
        options.setdefault('registry', self.registry)

        @decorator(resource, *args, id=id, **options)
        async def fn(name, **kwargs):
            self.note(id, name, **kwargs)
            what = (does.pop(0) if does else None) if isinstance(does, list) else does
            if isinstance(what, BaseException):
                raise what
            return await what(name=name, **kwargs) if callable(what) else what

        return fn

    def called(self, id, name=None):
        """Return the kwargs of all calls of the handler."""
        return [call.kwargs for call in self.calls if call.id == id and name in (None, call.name)]

    @property
    def ids(self):
        return [call.id for call in self.calls]

    # Operators.

    @contextlib.asynccontextmanager
    async def operator(self, **options):
        options = {'registry': self.registry, 'settings': self.settings, 'standalone': True} | options
        async with running_operator(**options) as task:
            yield task
            assert not task.done(), task.result()

    @contextlib.asynccontextmanager
    async def gap(self):
        """Hide the cluster from operators for a while; after it, all their watches have to list again."""
        self.sandbox.faults.refuse_connections()
        yield
        self.sandbox.faults.forget_history()
        self.sandbox.faults.accept_connections()

    # Objects.

    async def create(self, name='obj', *, spec=None, **metadata):
        return await self.aio.create(
            {
                'apiVersion': 'kopf.dev/v1',
                'kind': 'KopfExample',
                'metadata': {'name': name, **metadata},
                'spec': {'field': 'value'} if spec is None else spec,
            }
        )

    async def get(self, name='obj'):
        return await self.aio.get('kopfexamples', name)

    async def edit(self, name='obj', *, metadata=None, **spec):
        patch = {**({'metadata': metadata} if metadata else {}), **({'spec': spec} if spec else {})}
        return await self.aio.patch('kopfexamples', name, patch)

    async def delete(self, name='obj'):
        await self.aio.delete('kopfexamples', name)

    async def gone(self, name='obj'):
        await self.aio.wait_gone('kopfexamples', name)

    async def handled(self, name='obj', **spec):
        """Wait until the object is at rest, with this in the spec that was handled last."""

        def at_rest(body):
            annotations = body['metadata'].get('annotations') or {}
            last = json.loads(annotations.get(LAST_HANDLED, 'null'))
            progress = [key for key in annotations if key.startswith('kopf.zalando.org/') and key != LAST_HANDLED]
            return last is not None and not progress and spec.items() <= last.get('spec', {}).items()

        return await self.aio.wait_for('kopfexamples', name, at_rest)

    async def until(self, predicate, timeout=60):
        self.log.loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout):
            while not predicate():
                self.changed.clear()
                await self.changed.wait()

    async def until_called(self, id, times=1, name=None):
        await self.until(lambda: len(self.called(id, name)) >= times)

    async def until_logged(self, text):
        await self.until(lambda: any(text in line for line in self.log.texts))

    async def settled(self):
        """Wait until everything that has happened by now is also known to the operators, and handled."""
        self.fences = getattr(self, 'fences', 0) + 1
        await self.create(f'fence-{self.fences}')
        await self.handled(f'fence-{self.fences}')

    def patches(self, name='obj'):
        """Return the patches of the object by operators."""
        return [
            json.loads(request.body)
            for request in self.sandbox.requests
            if request.method == 'PATCH' and request.name == name
        ]


def in_virtual_time(fn):
    """Run the test, a coroutine function with a world, in the loop of virtual time: it waits for no clock."""

    @functools.wraps(fn)
    def run(world, **kwargs):
        world.sandbox.run(fn(world=world, **kwargs))

    run.in_virtual_time = True
    return run


@contextlib.contextmanager
def new_world(virtual_time=False, **options):
    """Yield a sandbox with the kind of the examples, known to operators as the cluster to log in to."""
    crd = ROOT / 'examples' / 'crd.yaml'
    with Sandbox(crds=[crd], virtual_time=virtual_time, **options) as sandbox, pytest.MonkeyPatch.context() as patching:
        patching.setenv('KUBECONFIG', str(sandbox.kubeconfig))
        world = World(sandbox)
        logger = logging.getLogger()
        level = logger.level
        logger.addHandler(world.log)
        logger.setLevel(logging.INFO)
        yield world
        logger.removeHandler(world.log)
        logger.setLevel(level)
