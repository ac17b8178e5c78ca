"""
The public class of the sandbox: a Kubernetes API for tests and for first steps with operators.

The server runs in a separate thread. So it works for synchronous and asynchronous code, for operators in the same
process and in others, and even if a test blocks or replaces the event loop. It listens on the loopback interface only.
By default, all data are in memory, and all users with credentials may do everything.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from kopf._kits.testing.access import users
from kopf._kits.testing.access.users import User
from kopf._kits.testing.instances import Instance, Runner
from kopf._kits.testing.kinds.kinds import Bodies, Body
from kopf._kits.testing.serving.faults import Faults, SeenRequest
from kopf._kits.testing.serving.localclient import LocalClient, ResourceName
from kopf._kits.testing.serving.snapshots import Snapshot
from kopf._kits.testing.serving.waits import Predicate, WaitTimeout
from kopf._kits.testing.wire.manifests import Source, each
from kopf._kits.testing.wire.tls import Pair

if TYPE_CHECKING:
    from kopf._kits.testing.virtual.simulations import Simulation

T = TypeVar('T')

UNIMPORTANT = frozenset({'events', 'leases', 'clusterkopfpeerings', 'kopfpeerings', 'selfsubjectaccessreviews'})
"""The resources that operators write to even at rest."""

__tracebackhide__ = True  # pytest omits the frames of this module from tracebacks


class _Logs:
    """The outputs of the operators that work with a sandbox."""

    def __init__(self) -> None:
        self._readers: list[Callable[[], str]] = []

    def add(self, reader: Callable[[], str]) -> None:
        self._readers.append(reader)

    @contextlib.contextmanager
    def added(self) -> Iterator[None]:
        """Add all outputs to the timeouts that are raised in the context."""
        try:
            yield
        except WaitTimeout as error:
            error.logs = [reader() for reader in self._readers]
            raise


class _Common:
    """The common part of the synchronous and the asynchronous sandbox."""

    def __init__(self, runner: Runner, logs: _Logs) -> None:
        self._runner = runner
        self._logs = logs

    def add_log(self, reader: Callable[[], str]) -> None:
        """Add a log to the errors of timeouts; the function returns its text, such as an operator's output."""
        self._logs.add(reader)

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
        """The token in the kubeconfig."""
        return self._runner.instance.server.token

    @property
    def ca(self) -> bytes:
        """The certificate of the CA that has signed the server's certificate, in PEM; empty in virtual time."""
        return self._runner.instance.server.ca

    @property
    def faults(self) -> Faults:
        """The faults on request: see the methods of `Faults`."""
        return self._runner.instance.server.faults

    @property
    def requests(self) -> list[SeenRequest]:
        """The last requests over HTTP (5,000 at most), the oldest first; calls of this object are not included."""
        return list(self._runner.instance.server.requests)

    def issue_token(self, user: str, groups: Sequence[str] = (), *, token: str = '') -> str:
        """Return a new token of this user in these groups; it is random by default."""
        server = self._runner.instance.server
        return server.call(lambda: server.issue_token(_user(user, groups), token))

    def kubeconfig_for(self, user: str, groups: Sequence[str] = ()) -> Path:
        """
        Return the path of a kubeconfig of this user in these groups; the file is removed when the sandbox ends.

        The user ``system:serviceaccount:NAMESPACE:NAME`` is in the groups of service accounts, too.
        """
        instance = self._runner.instance
        return instance.server.call(lambda: instance.write_kubeconfig(instance.server.issue_token(_user(user, groups))))

    def client_certificate(self, user: str = 'sandbox', groups: Sequence[str] = ('system:masters',)) -> Pair:
        """Return a certificate and a key, both in PEM, of this user in these groups."""
        return self._runner.instance.server.authority.client(user, tuple(groups))


def _user(name: str, groups: Sequence[str]) -> User:
    place = users.split_account(name)
    return User(name, (*groups, *(users.account_groups(place[0]) if place else (users.AUTHENTICATED,))))


class AsyncSandbox(_Common):
    """The sandbox for ``async with`` and ``Sandbox.aio``: `Sandbox` with coroutines."""

    async def create(
        self,
        what: Mapping[str, Any] | ResourceName,
        name: str | None = None,
        *,
        namespace: str | None = None,
        **fields: Any,
    ) -> Body:
        """See `Sandbox.create`."""
        return await self._runner.later(self._client.create(what, name, namespace, fields))

    async def get(self, resource: ResourceName, name: str, *, namespace: str | None = None) -> Body:
        """See `Sandbox.get`."""
        return await self._runner.later(self._client.get(resource, name, namespace))

    async def list(
        self,
        resource: ResourceName,
        *,
        namespace: str | None = None,
        label_selector: str = '',
        field_selector: str = '',
    ) -> Bodies:
        """See `Sandbox.list`."""
        return await self._runner.later(self._client.list(resource, namespace, label_selector, field_selector))

    async def patch(
        self,
        resource: ResourceName,
        name: str,
        patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        namespace: str | None = None,
        subresource: str = '',
    ) -> Body:
        """See `Sandbox.patch`."""
        return await self._runner.later(self._client.patch(resource, name, patch, namespace, subresource))

    async def replace(
        self,
        body: Mapping[str, Any],
        *,
        namespace: str | None = None,
        subresource: str = '',
    ) -> Body:
        """See `Sandbox.replace`."""
        return await self._runner.later(self._client.replace(body, namespace, subresource))

    async def delete(
        self,
        resource: ResourceName,
        name: str,
        *,
        namespace: str | None = None,
        propagation: str = '',
    ) -> None:
        """See `Sandbox.delete`."""
        await self._runner.later(self._client.delete(resource, name, namespace, propagation))

    async def apply(self, source: Source) -> Bodies:
        """See `Sandbox.apply`."""
        return await self._runner.later(self._client.apply(source))

    async def snapshot(self) -> Snapshot:
        """See `Sandbox.snapshot`."""
        return await self._runner.later(self._client.snapshot())

    async def restore(self, snapshot: Snapshot) -> None:
        """See `Sandbox.restore`."""
        await self._runner.later(self._client.restore(snapshot))

    async def wait_for(
        self,
        resource: ResourceName,
        name: str,
        predicate: Predicate | None = None,
        *,
        namespace: str | None = None,
        timeout: float = 30.0,
    ) -> Body:
        """See `Sandbox.wait_for`."""
        with self._logs.added():
            return await self._runner.later(self._client.wait_for(resource, name, predicate, namespace, timeout))

    async def wait_gone(
        self,
        resource: ResourceName,
        name: str,
        *,
        namespace: str | None = None,
        timeout: float = 30.0,
    ) -> None:
        """See `Sandbox.wait_gone`."""
        with self._logs.added():
            await self._runner.later(self._client.wait_gone(resource, name, namespace, timeout))

    @property
    def _client(self) -> LocalClient:
        return self._runner.instance.client


class Sandbox(_Common):
    """
    An embedded Kubernetes API server, for as long as the context lasts.

    ::

        with Sandbox(crds=['crd.yaml']) as sandbox:
            sandbox.create({'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample', 'metadata': {'name': 'x'}})
            sandbox.wait_for('kopfexamples', 'x', lambda body: 'status' in body)

    In ``async with``, the same methods are coroutines (also as ``sandbox.aio`` in any context). Use those wherever an
    operator or a webhook server runs in the same event loop, since the others block it.

    Refused requests raise `Refusal` with ``code``, ``reason`` and ``message``.

    Args:
        crds: The CRDs that are applied at the start: files, folders, texts of YAML, or dicts.
        loads: The objects that are applied after them, in the same forms.
        port: The port to listen on; any free one by default.
        kubeconfig: The path of the kubeconfig; by default, it is in a temporary folder that is removed at the end.
        history: How many changes of each resource are kept for watches.
        audit: The path of a file that gets a line for each request, in the format of Kubernetes' audit log.
        rbac: Whether roles and bindings decide who may do what, as in a real cluster; by default, all users may do
            everything.
        sharding: Whether lists and watches obey ``shardSelector``, an alpha feature of Kubernetes 1.36.
        state: The path of a file that keeps the objects for the next sandbox with the same file; by default, they are
            lost at the end.
        pods: Whether pods, jobs and deployments change their status, as if there was a node.
        virtual_time: Whether the clock jumps to the next timer when nothing is left to do; the test and its operators
            are in one thread then, and nothing listens on the network.
        seed: In virtual time, the seed of random numbers and of the order of concurrent events.

    Raises:
        OSError: The port is taken, or the kubeconfig was not written by a sandbox.
        ManifestError: An object cannot be applied at the start.
        StateError: The state is not a file of a sandbox, or is in use by another one.
        VirtualTimeError: Virtual time is asked for in a coroutine, or a second time in the process.
    """

    def __init__(
        self,
        *,
        crds: Iterable[Source] | Source = (),
        loads: Iterable[Source] | Source = (),
        port: int = 0,
        kubeconfig: str | os.PathLike[str] | None = None,
        history: int = 2000,
        audit: str | os.PathLike[str] | None = None,
        rbac: bool = False,
        sharding: bool = False,
        state: str | os.PathLike[str] | None = None,
        pods: bool = False,
        virtual_time: bool = False,
        seed: int = 0,
    ) -> None:
        self.simulation: Simulation | None = None
        """The clock and the event loop of virtual time; None in real time."""

        def make() -> Instance:
            return Instance(
                port=port,
                kubeconfig=kubeconfig,
                crds=each(crds),
                loads=each(loads),
                history=history,
                audit=audit,
                rbac=rbac,
                sharding=sharding,
                state=state,
                pods=pods,
                bind=None if self.simulation is None else self.simulation.bind,
            )

        runner = Runner(make)
        if virtual_time:
            from kopf._kits.testing import virtual_runner
            from kopf._kits.testing.virtual import simulations

            self.simulation = simulations.Simulation(seed)
            runner = virtual_runner.VirtualRunner(make, self.simulation)
        super().__init__(runner, _Logs())
        self.aio = AsyncSandbox(self._runner, self._logs)

    def __enter__(self) -> Self:
        self._runner.start()
        try:
            self._runner.wait_ready()
        except BaseException:  # Why not Exception? Also an interruption of the start must stop the server.
            self._runner.stop()
            raise
        return self

    def __exit__(
        self,
        type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._runner.stop()

    async def __aenter__(self) -> AsyncSandbox:
        self._runner.start()
        try:
            await asyncio.wrap_future(self._runner.ready)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self.aio

    async def __aexit__(
        self,
        type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._runner.stop)

    def create(
        self,
        what: Mapping[str, Any] | ResourceName,
        name: str | None = None,
        *,
        namespace: str | None = None,
        **fields: Any,
    ) -> Body:
        """
        Create an object in this namespace, or in ``default``; return it as it is stored.

        It is either a dict with ``apiVersion``, ``kind``, ``metadata``; or a kind (any name that `get` accepts) and a
        name, with its fields as keywords: ``spec``, ``data``, ``metadata``, etc. The keywords ``labels``,
        ``annotations``, ``finalizers`` and ``ownerReferences`` are fields of the metadata.
        """
        return self._runner.now(self._client.create(what, name, namespace, fields))

    def get(self, resource: ResourceName, name: str, *, namespace: str | None = None) -> Body:
        """
        Return an object; raise `Refusal` with the code 404 if it is absent.

        Here and in the other methods, the resource is named by its plural, singular, kind, or short name:
        ``'kopfexamples'``, ``'kopfexample'``, ``'KopfExample'``, ``'kex'``. If that is ambiguous, or another version
        than the preferred one is meant, add the group and the version: ``'kopfexamples.kopf.dev'``,
        ``'kopfexamples.v1.kopf.dev'``, or ``'kopf.dev/v1/kopfexamples'``. The object is returned in that version. The
        core API has no group: ``'pods.v1'``, ``'v1/pods'``.
        """
        return self._runner.now(self._client.get(resource, name, namespace))

    def list(
        self,
        resource: ResourceName,
        *,
        namespace: str | None = None,
        label_selector: str = '',
        field_selector: str = '',
    ) -> Bodies:
        """Return all objects of a resource (any name that `get` accepts), of one namespace or of all (None)."""
        return self._runner.now(self._client.list(resource, namespace, label_selector, field_selector))

    def patch(
        self,
        resource: ResourceName,
        name: str,
        patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        namespace: str | None = None,
        subresource: str = '',
    ) -> Body:
        """Change an object: a dict is a merge patch, a list is a JSON patch."""
        return self._runner.now(self._client.patch(resource, name, patch, namespace, subresource))

    def replace(self, body: Mapping[str, Any], *, namespace: str | None = None, subresource: str = '') -> Body:
        """Replace an object by a changed copy of it, which must keep the resource version."""
        return self._runner.now(self._client.replace(body, namespace, subresource))

    def delete(
        self,
        resource: ResourceName,
        name: str,
        *,
        namespace: str | None = None,
        propagation: str = '',
    ) -> None:
        """Delete an object, or mark it if it has finalizers; ``propagation``: Background, Foreground, Orphan."""
        self._runner.now(self._client.delete(resource, name, namespace, propagation))

    def apply(self, source: Source) -> Bodies:
        """
        Create or merge all objects of a file, a folder, a text of YAML, or one dict.

        Raises:
            ManifestError: An object cannot be read or is refused; the message says which. If the API has refused it,
                the error is a `Refusal`, too.
        """
        return self._runner.now(self._client.apply(source))

    def snapshot(self) -> Snapshot:
        """Return a snapshot of all objects as they are now, for `restore`."""
        return self._runner.now(self._client.snapshot())

    def restore(self, snapshot: Snapshot) -> None:
        """
        Restore all objects as they were when the snapshot was taken, with the same uids.

        Watches receive ordinary changes with new resource versions, so no watch ends. Finalizers and webhooks are
        bypassed. Unchanged objects are not touched. A snapshot can be restored many times, also in another sandbox.
        """
        self._runner.now(self._client.restore(snapshot))

    def wait_for(
        self,
        resource: ResourceName,
        name: str,
        predicate: Predicate | None = None,
        *,
        namespace: str | None = None,
        timeout: float = 30.0,
    ) -> Body:
        """
        Wait until the object exists and the predicate is true of it; return the object.

        The predicate is called in the server's thread with the object, after each of its changes. Errors about absent
        keys, items and attributes (KeyError, IndexError, errors about None) mean "not yet". After ``timeout`` seconds,
        a `WaitTimeout`, which is a TimeoutError, contains the object. The plugin for pytest also shows the Events of
        the object and the logs of the operators.
        """
        with self._logs.added():
            return self._runner.now(self._client.wait_for(resource, name, predicate, namespace, timeout))

    def wait_gone(
        self,
        resource: ResourceName,
        name: str,
        *,
        namespace: str | None = None,
        timeout: float = 30.0,
    ) -> None:
        """Wait until the object does not exist; raise `WaitTimeout` after ``timeout`` seconds."""
        with self._logs.added():
            self._runner.now(self._client.wait_gone(resource, name, namespace, timeout))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine, which can use ``sandbox.aio``, in the event loop of virtual time; return its result."""
        return self._get_simulation().run(coroutine)

    def advance(self, seconds: float) -> None:
        """Let virtual time pass (in seconds) and the operators run; ``time.sleep`` in a test does the same."""
        self._get_simulation().advance(seconds)

    def rest(self, *, quiet: float = 100.0, timeout: float = 3600.0) -> None:
        """
        Let virtual time pass until the operators have written nothing for ``quiet`` seconds.

        Events, leases, and records of peerings do not count, as operators write them even at rest.

        Raises:
            WaitTimeout: They still write after ``timeout`` seconds; the message names the last requests.
        """
        simulation = self._get_simulation()
        started = time.time()
        # Why not count from the last recorded write? The calls of the test are not recorded, and operators first need
        # time to react to them.
        while (silence := time.time() - max([started, *(seen.time for seen in self._get_writes())])) < quiet:
            if time.time() - started > timeout:
                last = '\n'.join(f'{seen.method} {seen.path}: {seen.status}' for seen in self._get_writes()[-5:])
                with self._logs.added():
                    raise WaitTimeout(
                        f'The operators do not come to rest: they have written something in the last {quiet:g} s of '
                        f'{timeout:g} s. If a timer writes all the time, wait for a state instead. The last requests:'
                        f'\n{last}',
                        [],
                    )
            simulation.advance(quiet - silence)

    def _get_writes(self) -> Sequence[SeenRequest]:
        return [
            request
            for request in self.requests
            if request.method not in ('GET', 'HEAD') and request.resource not in UNIMPORTANT
        ]

    def _get_simulation(self) -> 'Simulation':
        if self.simulation is None:
            raise RuntimeError('The time of this sandbox is real: it must be Sandbox(virtual_time=True).')
        return self.simulation

    @property
    def _client(self) -> LocalClient:
        return self._runner.instance.client
