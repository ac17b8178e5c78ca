"""
The sandbox as users see it: a Kubernetes API for one test, for one run of an operator, or for a whole working day.

The server runs in a thread of its own, so that it works for synchronous and asynchronous code, for operators in the
same process and in others, and is not disturbed by whoever blocks or fakes the event loop. It listens on the loopback
interface only. It is for development and tests: everything is in memory, and everybody with credentials may do all.
"""
import asyncio
import base64
import concurrent.futures
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import orjson

from kopf._kits.testing.certificates import Pair
from kopf._kits.testing.doors import Door, Predicate, ResourceName, each
from kopf._kits.testing.faults import Faults, SeenRequest
from kopf._kits.testing.kinds import Bodies, Body
from kopf._kits.testing.manifests import Source
from kopf._kits.testing.server import Server

T = TypeVar('T')


class Instance:
    """One server with its kubeconfig, in the event loop that it is started in."""

    def __init__(
            self, *, port: int = 0, kubeconfig: str | os.PathLike[str] | None = None,
            crds: Iterable[Source] = (), loads: Iterable[Source] = (), history: int = 2000,
    ) -> None:
        self._port = port
        self._crds = list(crds)
        self._loads = list(loads)
        self._folder = None if kubeconfig is not None else tempfile.mkdtemp(prefix='kopf-sandbox-')
        self.kubeconfig = Path(kubeconfig) if kubeconfig is not None else Path(self._folder or '', 'kubeconfig')
        self.server = Server(history=history)
        self.door = Door(self.server.api)

    async def start(self) -> None:
        """Listen, write the kubeconfig, and apply what is to be there from the beginning."""
        try:
            await self.server.start(self._port)
            self.server.on_token = self._write
            self._write()
            for source in [*self._crds, *self._loads]:
                await self.door.apply(source)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Close everything; the kubeconfig is removed unless its place was given."""
        await self.server.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self) -> None:
        """Written anew and moved into place, so that nobody reads half a file."""
        authority = base64.b64encode(self.server.authority.certificate).decode()
        config = {
            'apiVersion': 'v1', 'kind': 'Config', 'current-context': 'sandbox',
            'clusters': [{'name': 'sandbox', 'cluster': {
                'server': self.server.url, 'certificate-authority-data': authority}}],
            'users': [{'name': 'sandbox', 'user': {'token': self.server.token}}],
            'contexts': [{'name': 'sandbox', 'context': {
                'cluster': 'sandbox', 'user': 'sandbox', 'namespace': 'default'}}],
        }
        self.kubeconfig.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self.kubeconfig.parent, prefix='.kubeconfig-')
        with os.fdopen(handle, 'wb') as file:
            file.write(orjson.dumps(config, option=orjson.OPT_INDENT_2) + b'\n')
        os.replace(name, self.kubeconfig)


class _Common:
    """What both sandboxes, the synchronous and the asynchronous one, have in common."""

    def __init__(self, runner: '_Runner') -> None:
        self._runner = runner

    @property
    def kubeconfig(self) -> Path:
        """The file with the address and the credentials, for ``$KUBECONFIG``."""
        return self._runner.instance.kubeconfig

    @property
    def url(self) -> str:
        """The address of the API: ``https://127.0.0.1:PORT``."""
        return self._runner.instance.server.url

    @property
    def token(self) -> str:
        """The token that the kubeconfig has, too."""
        return self._runner.instance.server.token

    @property
    def ca(self) -> bytes:
        """The certificate of the authority that has signed the server's certificate, as PEM."""
        return self._runner.instance.server.authority.certificate

    @property
    def faults(self) -> Faults:
        """What is to go wrong: see the methods of `Faults`."""
        return self._runner.instance.server.faults

    @property
    def requests(self) -> list[SeenRequest]:
        """The last requests over HTTP (5,000 at most), the oldest first; not those made by this object."""
        return list(self._runner.instance.server.requests)

    def client_certificate(self, user: str = 'sandbox', groups: Sequence[str] = ('system:masters',)) -> Pair:
        """A certificate and a key, both as PEM, by which a client is this user of these groups."""
        return self._runner.instance.server.authority.client(user, tuple(groups))


class AsyncSandbox(_Common):
    """The sandbox for ``async with`` and ``Sandbox.aio``: `Sandbox` with coroutines."""

    async def create(self, body: Mapping[str, Any], *, namespace: str | None = None) -> Body:
        """See `Sandbox.create`."""
        return await self._runner.later(self._door.create(body, namespace))

    async def get(self, resource: ResourceName, name: str, *, namespace: str | None = None) -> Body:
        """See `Sandbox.get`."""
        return await self._runner.later(self._door.get(resource, name, namespace))

    async def list(
            self, resource: ResourceName, *, namespace: str | None = None, label_selector: str = '',
            field_selector: str = '',
    ) -> Bodies:
        """See `Sandbox.list`."""
        return await self._runner.later(self._door.list(resource, namespace, label_selector, field_selector))

    async def patch(
            self, resource: ResourceName, name: str, patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
            *, namespace: str | None = None, subresource: str = '',
    ) -> Body:
        """See `Sandbox.patch`."""
        return await self._runner.later(self._door.patch(resource, name, patch, namespace, subresource))

    async def replace(
            self, body: Mapping[str, Any], *, namespace: str | None = None, subresource: str = '',
    ) -> Body:
        """See `Sandbox.replace`."""
        return await self._runner.later(self._door.replace(body, namespace, subresource))

    async def delete(
            self, resource: ResourceName, name: str, *, namespace: str | None = None, propagation: str = '',
    ) -> None:
        """See `Sandbox.delete`."""
        await self._runner.later(self._door.delete(resource, name, namespace, propagation))

    async def apply(self, source: Source) -> Bodies:
        """See `Sandbox.apply`."""
        return await self._runner.later(self._door.apply(source))

    async def wait_for(
            self, resource: ResourceName, name: str, predicate: Predicate | None = None,
            *, namespace: str | None = None, timeout: float = 10.0,
    ) -> Body:
        """See `Sandbox.wait_for`."""
        found = await self._runner.later(self._door.wait_for(resource, name, predicate, namespace, False, timeout))
        return found or {}

    async def wait_gone(
            self, resource: ResourceName, name: str, *, namespace: str | None = None, timeout: float = 10.0,
    ) -> None:
        """See `Sandbox.wait_gone`."""
        await self._runner.later(self._door.wait_for(resource, name, None, namespace, True, timeout))

    @property
    def _door(self) -> Door:
        return self._runner.instance.door


class Sandbox(_Common):
    """
    An embedded Kubernetes API server, for as long as the context lasts.

    ::

        with Sandbox(crds=['crd.yaml']) as sandbox:
            sandbox.create({'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample', 'metadata': {'name': 'x'}})
            sandbox.wait_for('kopfexamples', 'x', lambda body: 'status' in body)

    In ``async with``, the same methods are coroutines (also as ``sandbox.aio`` in any context). Use those wherever an
    operator or a webhook server runs in the same event loop, since the others block it.

    ``crds`` and ``loads`` are applied at the start, in this order: files, folders, texts of YAML, or dicts. ``port`` is
    a free one by default; ``kubeconfig`` is where that file is written (by default a temporary folder, removed in the
    end). ``history`` is how many changes of each resource are remembered for watches.

    Refused requests raise `Refusal` with ``code``, ``reason`` and ``message``; a port that is taken raises OSError;
    objects that cannot be applied at the start raise `ManifestError`.
    """

    def __init__(
            self,
            *,
            crds: Iterable[Source] | Source = (),
            loads: Iterable[Source] | Source = (),
            port: int = 0,
            kubeconfig: str | os.PathLike[str] | None = None,
            history: int = 2000,
    ) -> None:
        super().__init__(_Runner(lambda: Instance(
            port=port, kubeconfig=kubeconfig, crds=each(crds), loads=each(loads), history=history)))
        self.aio = AsyncSandbox(self._runner)

    def __enter__(self) -> Self:
        self._runner.start()
        self._runner.wait_ready()
        return self

    def __exit__(
            self, type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None,
    ) -> None:
        self._runner.stop()

    async def __aenter__(self) -> AsyncSandbox:
        self._runner.start()
        await asyncio.wrap_future(self._runner.ready)
        return self.aio

    async def __aexit__(
            self, type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None,
    ) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._runner.stop)

    def create(self, body: Mapping[str, Any], *, namespace: str | None = None) -> Body:
        """Create an object: a dict with ``apiVersion``, ``kind``, ``metadata``; the namespace is ``default`` if unsaid."""
        return self._runner.now(self._door.create(body, namespace))

    def get(self, resource: ResourceName, name: str, *, namespace: str | None = None) -> Body:
        """Read an object; `Refusal` with the code 404 if it is absent."""
        return self._runner.now(self._door.get(resource, name, namespace))

    def list(
            self, resource: ResourceName, *, namespace: str | None = None, label_selector: str = '',
            field_selector: str = '',
    ) -> Bodies:
        """Read all objects of a resource, of one namespace or of all (None)."""
        return self._runner.now(self._door.list(resource, namespace, label_selector, field_selector))

    def patch(
            self, resource: ResourceName, name: str, patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
            *, namespace: str | None = None, subresource: str = '',
    ) -> Body:
        """Change an object: a dict is a merge patch, a list is a JSON patch."""
        return self._runner.now(self._door.patch(resource, name, patch, namespace, subresource))

    def replace(self, body: Mapping[str, Any], *, namespace: str | None = None, subresource: str = '') -> Body:
        """Replace an object by another version of it, which has to name the version that it is based on."""
        return self._runner.now(self._door.replace(body, namespace, subresource))

    def delete(
            self, resource: ResourceName, name: str, *, namespace: str | None = None, propagation: str = '',
    ) -> None:
        """Delete an object, or mark it if it has finalizers; ``propagation``: Background, Foreground, Orphan."""
        self._runner.now(self._door.delete(resource, name, namespace, propagation))

    def apply(self, source: Source) -> Bodies:
        """Create or merge all objects of a file, a folder, a text of YAML, or one dict."""
        return self._runner.now(self._door.apply(source))

    def wait_for(
            self, resource: ResourceName, name: str, predicate: Predicate | None = None,
            *, namespace: str | None = None, timeout: float = 10.0,
    ) -> Body:
        """
        Wait until the object is there and the predicate is true of it; returns the object.

        The predicate is called in the server's thread, with the object, at each of its changes. After ``timeout``
        seconds a TimeoutError says what the object is like.
        """
        return self._runner.now(self._door.wait_for(resource, name, predicate, namespace, False, timeout)) or {}

    def wait_gone(
            self, resource: ResourceName, name: str, *, namespace: str | None = None, timeout: float = 10.0,
    ) -> None:
        """Wait until there is no such object; TimeoutError after ``timeout`` seconds."""
        self._runner.now(self._door.wait_for(resource, name, None, namespace, True, timeout))

    @property
    def _door(self) -> Door:
        return self._runner.instance.door


class _Runner:
    """The thread with the server's event loop."""

    def __init__(self, make: Callable[[], Instance]) -> None:
        self._make = make
        self._instance: Instance | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop: asyncio.Event | None = None
        self.ready: concurrent.futures.Future[None] = concurrent.futures.Future()

    @property
    def instance(self) -> Instance:
        """The server; RuntimeError outside of the context."""
        if self._instance is None:
            raise RuntimeError('The sandbox is not running: use "with Sandbox() as sandbox" or "async with".')
        return self._instance

    def start(self) -> None:
        """Start the thread; `ready` tells how it has gone."""
        if self._thread is not None:
            raise RuntimeError('A sandbox can be used once: make another one.')
        self._thread = threading.Thread(target=self._run, name='kopf-sandbox', daemon=True)
        self._thread.start()

    def wait_ready(self) -> None:
        """Block until the server listens; raises what has prevented it."""
        self.ready.result()

    def stop(self) -> None:
        """End the thread, and wait for that."""
        if self._loop is not None and self._stop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread is not None:
            self._thread.join()

    def now(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the server's loop, and wait for it."""
        return self._submit(coroutine).result()

    async def later(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the server's loop, and await it in the present one."""
        return await asyncio.wrap_future(self._submit(coroutine))

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            try:
                runner.run(self._main())
            except BaseException as error:
                if not self.ready.done():
                    self.ready.set_exception(error)
                else:
                    raise

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        instance = self._make()
        await instance.start()
        self._instance = instance
        self.ready.set_result(None)
        try:
            await self._stop.wait()
        finally:
            await instance.stop()


def serve(
        *,
        port: int = 0,
        kubeconfig: str | os.PathLike[str] | None = None,
        crds: Iterable[Source] = (),
        loads: Iterable[Source] = (),
        ready: Callable[[str, Path], None] | None = None,
) -> None:
    """
    Run a sandbox in the present thread until SIGINT or SIGTERM.

    The parameters are those of `Sandbox`; ``ready`` is called with the URL and the kubeconfig's path when it listens.
    """
    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        instance = Instance(port=port, kubeconfig=kubeconfig, crds=crds, loads=loads)
        await instance.start()
        try:
            if ready is not None:
                ready(instance.server.url, instance.kubeconfig)
            await stop.wait()
        finally:
            await instance.stop()

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(main())


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The faster event loop where it is installed; TLS is what it is good at."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
