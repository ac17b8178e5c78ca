"""
The sandbox as a command: ``kopf sandbox``, and around the operator of ``kopf run --sandbox``.

The sandbox runs in a thread of the command's process. So both end together, and an operator that blocks its event loop
does not block the API. Messages are written to the standard error, except for the line ``export KUBECONFIG=...``, which
a shell can evaluate.
"""

import contextlib
import os
import shlex
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import click

from kopf._cogs.aiokits.flags import Flag, is_raised
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._core.engines.conversion_strategies import PLACEHOLDER_HOST
from kopf._kits.testing.sandbox import Sandbox
from kopf._kits.testing.sandbox_logins import environment, make_vault
from kopf._kits.testing.storing.states import StateError
from kopf._kits.testing.wire.manifests import ManifestError, Source
from kopf._kits.testing.wire.tls import CertificatesUnavailable

WEBHOOKS_TIMEOUT = 10.0
"""How long the objects of ``--load`` wait for the webhooks of a running operator (seconds)."""

# The variables by which an operator detects that it runs in a cluster.
_IN_CLUSTER = ('KUBERNETES_SERVICE_HOST', 'KUBERNETES_SERVICE_PORT')


def serve(
    *,
    port: int,
    kubeconfig: str | None,
    rbac: bool,
    sharding: bool,
    crds: Collection[str],
    loads: Collection[str],
    state: str | None,
    pods: bool,
) -> None:
    """
    Run a sandbox until SIGINT or SIGTERM; the parameters are those of `Sandbox`.

    Raises:
        click.ClickException: The sandbox does not start; the message says why.
    """
    sandbox = Sandbox(
        port=port, kubeconfig=kubeconfig, rbac=rbac, sharding=sharding, crds=crds, loads=loads, state=state, pods=pods
    )
    with _ended_by_signals(), _started(sandbox, state, pods=pods):
        forever = threading.Event()
        # Why a timeout? A signal does not interrupt the wait if it arrives just before it, or in another thread.
        while not forever.wait(1.0):
            pass


@contextlib.contextmanager
def serving(*, crds: Collection[str], loads: Collection[str], pods: bool) -> Iterator['Launched']:
    """
    Run a sandbox for as long as the context lasts; yield its credentials and objects for an operator.

    The environment variables of the process also point to the sandbox, for libraries and subprocesses of the operator.
    The operator's login handlers are not called, since they could lead to another cluster.

    Raises:
        click.ClickException: The sandbox does not start; the message says why.
    """
    with _ended_by_signals(), _started(Sandbox(crds=crds, pods=pods), pods=pods) as sandbox:
        with environment({'KUBECONFIG': str(sandbox.kubeconfig), **dict.fromkeys(_IN_CLUSTER)}):
            yield Launched(sandbox, loads)


class AwaitedWebhooks(NamedTuple):
    """The webhooks of an operator that must be registered before the objects of ``--load`` are created."""

    configurations: Collection[str]
    """The resources of the webhook configurations."""
    is_pending: Callable[[Mapping[str, Any]], bool]
    """Whether a CRD does not have the address of its conversion webhook yet, which the operator serves."""


class Launched:
    """A sandbox for one operator: its credentials, and the objects to load."""

    def __init__(self, sandbox: Sandbox, loads: Collection[str]) -> None:
        self._sandbox = sandbox
        self._loads = loads
        self.vault = make_vault(sandbox)

    def apply(self, objects: Collection[Mapping[str, Any]]) -> None:
        """
        Apply these objects immediately, before the objects of ``--load``.

        Raises:
            click.ClickException: An object is refused.
        """
        for body in objects:
            self._apply(body)

    def load(self) -> None:
        """
        Apply the objects of ``--load`` immediately.

        Raises:
            click.ClickException: An object is refused, or cannot be read.
        """
        for source in self._loads:
            self._apply(source)

    def _apply(self, source: Source) -> None:
        try:
            self._sandbox.apply(source)
        except ManifestError as error:
            raise click.ClickException(f'The sandbox does not start: {_add_hint(str(error))}') from error

    def load_patiently(self) -> None:
        """
        Apply the objects of ``--load`` as soon as their kinds exist and can be converted.

        This is for operators in other processes, which can create the CRDs at any time.
        """
        deadline = time.monotonic() + WEBHOOKS_TIMEOUT
        with contextlib.suppress(RuntimeError):  # the sandbox has ended before
            for source in self._loads:
                while (error := self._try_to_apply(source)) is not None:
                    text = str(error)
                    is_early = 'no matches for kind' in text or PLACEHOLDER_HOST in text
                    if not is_early or time.monotonic() >= deadline:
                        click.echo(f'Not loaded: {_add_hint(str(error))}', err=True)
                        break
                    time.sleep(0.05)

    def _try_to_apply(self, source: str) -> ManifestError | None:
        """Apply the objects of the source; return the error if they are refused, or cannot be read."""
        try:
            self._sandbox.apply(source)
        except ManifestError as error:
            return error
        return None

    def load_checked(self, awaited: 'AwaitedWebhooks', settings: OperatorSettings, ready: Flag) -> None:
        """Apply the objects of ``--load`` as soon as the operator's webhooks are registered."""
        if self._loads:
            threading.Thread(target=self._load_later, args=(awaited, settings, ready), daemon=True).start()

    def _load_later(self, awaited: 'AwaitedWebhooks', settings: OperatorSettings, ready: Flag) -> None:
        with contextlib.suppress(RuntimeError):  # the sandbox has ended before
            if (reason := self._wait_for_webhooks(awaited, settings, ready)) is not None:
                click.echo(f'The objects of --load are not checked by the webhooks of the operator: {reason}', err=True)
            for source in self._loads:
                if (error := self._try_to_apply(source)) is not None:
                    click.echo(f'Not loaded: {error}', err=True)

    def _are_configured(self, awaited: 'AwaitedWebhooks') -> bool:
        configured = (any(body.get('webhooks') for body in self._sandbox.list(each)) for each in awaited.configurations)
        return all(configured) and not any(map(awaited.is_pending, self._sandbox.list('customresourcedefinitions')))

    def _wait_for_webhooks(self, awaited: 'AwaitedWebhooks', settings: OperatorSettings, ready: Flag) -> str | None:
        """Wait until the webhooks are registered; return the reason if they are not in time."""
        deadline: float | None = None
        while not self._are_configured(awaited):
            if deadline is None and is_raised(ready):
                deadline = time.monotonic() + WEBHOOKS_TIMEOUT
                if settings.admission.managed is None:
                    return 'it does not write their configurations, because settings.admission.managed is not set.'
            if deadline is not None and time.monotonic() > deadline:
                return f'their configurations are absent {WEBHOOKS_TIMEOUT:g} seconds after its start.'
            time.sleep(0.05)
        return None


@contextlib.contextmanager
def _started(sandbox: Sandbox, state: str | None = None, *, pods: bool) -> Iterator[Sandbox]:
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(sandbox)
        except (CertificatesUnavailable, ManifestError, OSError, StateError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise click.ClickException(f'The sandbox does not start: {_add_hint(str(reason))}') from error
        kept = f'All objects are kept in {state}.' if state else 'All objects are lost when it ends.'
        idle = '' if pods else ' No pods run, and deployments do not become available: --pods emulates a node.'
        click.echo(
            f'The sandbox is at {sandbox.url}: an emulated Kubernetes API in memory, for development and tests '
            f'only, reachable from this machine only.{idle}\n{kept} '
            'To work with it from another terminal:',
            err=True,
        )
        click.echo(f'export KUBECONFIG={shlex.quote(os.path.abspath(sandbox.kubeconfig))}')
        yield sandbox


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Exit with success on the first signal, in any thread; the second signal ends the process immediately."""
    numbers = (signal.SIGINT, signal.SIGTERM)

    def receive(number: int, _: FrameType | None) -> NoReturn:
        for other in numbers:
            signal.signal(other, signal.SIG_DFL)
        raise SystemExit(0)

    if threading.current_thread() is not threading.main_thread():
        yield  # Python allows signal handlers only in the main thread.
        return
    before = {number: signal.signal(number, receive) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _add_hint(reason: str) -> str:
    return f'{reason}. Put the CRD of this kind there first, by --crd.' if 'no matches for kind' in reason else reason
