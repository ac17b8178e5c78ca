"""
The sandbox as a command: for ``kopf sandbox``, and around the operator of ``kopf run --sandbox``.

It runs in a thread of the same process: so neither can be left behind by the other, and whoever blocks the operator's
event loop does not stop the API, nor the other way. What is announced goes to the standard error, but for the one line
that a shell can evaluate.
"""
import contextlib
import os
import shlex
import signal
import threading
from collections.abc import Collection, Iterator, Mapping
from types import FrameType
from typing import NoReturn

import click

from kopf._cogs.structs.credentials import ConnectionInfo, KubeContext, Vault
from kopf._cogs.structs.ids import HandlerId
from kopf._kits.testing.sandbox import Sandbox
from kopf._kits.testing.storing.states import StateError
from kopf._kits.testing.wire.manifests import ManifestError
from kopf._kits.testing.wire.tls import CertificatesUnavailable

# What an operator takes for a sign that it runs in a cluster, i.e. not here.
_IN_CLUSTER = ('KUBERNETES_SERVICE_HOST', 'KUBERNETES_SERVICE_PORT')


def serve(
        *, port: int, kubeconfig: str | None, rbac: bool, sharding: bool, crds: Collection[str],
        loads: Collection[str], state: str | None, pods: bool,
) -> None:
    """
    Run a sandbox until SIGINT or SIGTERM; the parameters are those of `Sandbox`.

    :raises click.ClickException: if it does not start; the message says why.
    """
    sandbox = Sandbox(
        port=port, kubeconfig=kubeconfig, rbac=rbac, sharding=sharding, crds=crds, loads=loads, state=state, pods=pods)
    with _ended_by_signals(), _started(sandbox, state):
        forever = threading.Event()
        while not forever.wait(1.0):
            pass  # A signal that has come right before the wait, or to another thread, has not interrupted it.


@contextlib.contextmanager
def serving(*, crds: Collection[str], loads: Collection[str], pods: bool) -> Iterator[Vault]:
    """
    Run a sandbox for as long as the context lasts; what is given are the credentials for an operator.

    The environment of the process points to the sandbox, too, for what the operator starts or uses besides the
    framework. No login handlers are needed or called, since they could lead to another cluster.

    :raises click.ClickException: if it does not start; the message says why.
    """
    with _ended_by_signals(), _started(Sandbox(crds=crds, loads=loads, pods=pods)) as sandbox:
        with _environment({'KUBECONFIG': str(sandbox.kubeconfig), **dict.fromkeys(_IN_CLUSTER)}):
            yield _credentials(sandbox)


@contextlib.contextmanager
def _started(sandbox: Sandbox, state: str | None = None) -> Iterator[Sandbox]:
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(sandbox)
        except (CertificatesUnavailable, ManifestError, OSError, StateError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise click.ClickException(f'The sandbox does not start: {reason}') from error
        kept = f'All that is in it is kept in {state}.' if state else 'All that is in it is lost when it ends.'
        click.echo(f'The sandbox is at {sandbox.url}: an emulated Kubernetes API in memory, for development and tests '
                   f'only, reachable from this machine only.\n{kept} '
                   'To work with it from another terminal:', err=True)
        click.echo(f'export KUBECONFIG={shlex.quote(os.path.abspath(sandbox.kubeconfig))}')
        yield sandbox


def _credentials(sandbox: Sandbox) -> Vault:
    def current() -> Mapping[HandlerId, KubeContext]:
        return {HandlerId('sandbox'): ConnectionInfo(
            server=sandbox.url, ca_data=sandbox.ca, token=sandbox.token, default_namespace='default')}

    async def authenticate() -> Mapping[HandlerId, KubeContext]:
        return current()

    vault = Vault(current())
    vault.authenticate = authenticate  # The tokens of a sandbox can be made to expire.
    return vault


@contextlib.contextmanager
def _environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set the variables, or remove those that are None, for a time."""
    before = {name: os.environ.get(name) for name in variables}
    try:
        _set(variables)
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Exit well on the first signal, wherever it finds us; let the second one end the process at once."""
    numbers = (signal.SIGINT, signal.SIGTERM)

    def receive(number: int, _: FrameType | None) -> NoReturn:
        for other in numbers:
            signal.signal(other, signal.SIG_DFL)
        raise SystemExit(0)

    if threading.current_thread() is not threading.main_thread():
        yield  # Python permits signal handlers only in the main thread.
        return
    before = {number: signal.signal(number, receive) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
