"""One running server with its kubeconfig: in an existing event loop, or in a thread with its own."""

import asyncio
import base64
import concurrent.futures
import contextlib
import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, TypeVar

import orjson

from kopf._kits.testing.controllers.workloads import Workloads
from kopf._kits.testing.serving.localclient import LocalClient
from kopf._kits.testing.serving.server import Bind, Server
from kopf._kits.testing.serving.waits import PredicateError, WaitTimeout
from kopf._kits.testing.storing.states import State
from kopf._kits.testing.wire.manifests import ManifestError, Source
from kopf._kits.testing.wire.statuses import Refusal

T = TypeVar('T')

__tracebackhide__ = True  # pytest omits the frames of this module from tracebacks

_OWN = (str(Path(__file__).parents[2]) + os.sep, str(Path(asyncio.__file__).parent) + os.sep)


class Instance:
    """One server with its kubeconfig, in the event loop that it is started in."""

    def __init__(
        self,
        *,
        port: int = 0,
        kubeconfig: str | os.PathLike[str] | None = None,
        crds: Iterable[Source] = (),
        loads: Iterable[Source] = (),
        history: int = 2000,
        audit: str | os.PathLike[str] | None = None,
        rbac: bool = False,
        sharding: bool = False,
        state: str | os.PathLike[str] | None = None,
        pods: bool = False,
        bind: Bind | None = None,
    ) -> None:
        self._port = port
        self._crds = list(crds)
        self._loads = list(loads)
        self.server = Server(history=history, audit=audit, rbac=rbac, sharding=sharding, bind=bind)
        self.client = LocalClient(self.server.api)
        self._others: list[tempfile.TemporaryDirectory[str]] = []
        self._state = State(state) if state is not None else None
        self._pods = pods
        self._workloads: Workloads | None = None
        self._folder = None if kubeconfig is not None else tempfile.mkdtemp(prefix='kopf-sandbox-')
        self.kubeconfig = Path(kubeconfig) if kubeconfig is not None else Path(self._folder or '', 'kubeconfig')

    async def start(self) -> None:
        """Listen, write the kubeconfig, and apply the initial objects."""
        try:
            self._spare_others()
            await self.server.start(self._port, self._state)
            if self._pods:
                api = self.server.api
                self._workloads = Workloads(api.storage, api.catalog, api.objects)
                await self._workloads.start(api.catalog)
            self.server.on_token = self._write
            self._write()
            for source in [*self._crds, *self._loads]:
                await self.client.apply(source)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Close everything, and remove the kubeconfig unless the caller has chosen its path."""
        if self._workloads is not None:
            await self._workloads.stop()
        await self.server.stop()
        for folder in self._others:
            folder.cleanup()
        if self._state is not None:
            await self._state.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _spare_others(self) -> None:
        """Refuse to replace a kubeconfig that no sandbox has written: it may have the credentials of a real cluster."""
        with contextlib.suppress(FileNotFoundError):
            text = self.kubeconfig.read_bytes()
            with contextlib.suppress(ValueError, TypeError, KeyError):
                if not text or {item['name'] for item in orjson.loads(text)['clusters']} == {'sandbox'}:
                    return
            raise FileExistsError(
                errno.EEXIST,
                f'{self.kubeconfig} is not overwritten, as it was not written by a sandbox: choose another path',
            )

    def _write(self) -> None:
        self._write_to(self.kubeconfig, self.server.token)

    def write_kubeconfig(self, token: str) -> Path:
        """Write another kubeconfig with this token; `stop` removes it."""
        self._others.append(tempfile.TemporaryDirectory(prefix='kopf-sandbox-'))
        path = Path(self._others[-1].name, 'kubeconfig')
        self._write_to(path, token)
        return path

    def _write_to(self, path: Path, token: str) -> None:
        """Write the kubeconfig to a temporary file and rename that, so that readers never see an incomplete file."""
        cluster = {'server': self.server.url}
        if self.server.ca:
            cluster['certificate-authority-data'] = base64.b64encode(self.server.ca).decode()
        config = {
            'apiVersion': 'v1',
            'kind': 'Config',
            'current-context': 'sandbox',
            'clusters': [{'name': 'sandbox', 'cluster': cluster}],
            'users': [{'name': 'sandbox', 'user': {'token': token}}],
            'contexts': [
                {'name': 'sandbox', 'context': {'cluster': 'sandbox', 'user': 'sandbox', 'namespace': 'default'}}
            ],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix='.kubeconfig-')
        with os.fdopen(handle, 'wb') as file:
            file.write(orjson.dumps(config, option=orjson.OPT_INDENT_2) + b'\n')
        os.replace(name, path)


class Runner:
    """The thread with the server's event loop."""

    def __init__(self, make: Callable[[], Instance]) -> None:
        self._make = make
        self._instance: Instance | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop: asyncio.Event | None = None
        self._stopping = False
        self.ready: concurrent.futures.Future[None] = concurrent.futures.Future()

    @property
    def instance(self) -> Instance:
        """The server; raises RuntimeError outside of the context."""
        if self._instance is None:
            raise RuntimeError('The sandbox is not running: use "with Sandbox() as sandbox" or "async with".')
        return self._instance

    def start(self) -> None:
        """Start the thread; `wait_ready` raises the error if that fails."""
        if self._thread is not None:
            raise RuntimeError('A sandbox can be used once: create another one.')
        self._thread = threading.Thread(target=self._run, name='kopf-sandbox', daemon=True)
        self._thread.start()

    def wait_ready(self) -> None:
        """Block until the server listens; raise the error that has prevented it."""
        if isinstance(error := self.ready.exception(), ManifestError):
            raise error.with_traceback(None)  # without the traceback of the thread, which does not help users
        self.ready.result()

    def stop(self) -> None:
        """Stop the thread, and wait for its end."""
        self._stopping = True
        if self._loop is not None and self._stop is not None:
            # RuntimeError: the loop is closed already because the server has failed to start.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread is not None:
            self._thread.join()

    def now(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the server's loop, and block until it is done."""
        future = self._submit(coroutine)
        if (error := future.exception()) is not None:
            raise shorten(error)
        return future.result()

    async def later(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the server's loop, and await it in the present one."""
        try:
            return await asyncio.wrap_future(self._submit(coroutine))
        except Exception as error:
            failure = shorten(error)
        raise failure

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        if self._loop is None or self._loop.is_closed():
            coroutine.close()
            raise RuntimeError('The sandbox is not running any more.')
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
        if self._stopping:  # The stop was requested before the server had started.
            return
        instance = self._make()
        await instance.start()
        self._instance = instance
        self.ready.set_result(None)
        try:
            await self._stop.wait()
        finally:
            await instance.stop()


def shorten(error: BaseException) -> BaseException:
    """Drop the server's frames from the traceback, if the error is a refusal or comes from the user's predicate."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OWN):
        trace = trace.tb_next
    if trace is None and not isinstance(error, Refusal | WaitTimeout | PredicateError | ManifestError):
        return error  # a defect of the sandbox
    return error.with_traceback(trace)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of event loops: uvloop's if it is installed, because that is faster with TLS."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
