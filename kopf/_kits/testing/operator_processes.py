"""An operator of a test, in a process or in virtual time: the test starts it, waits for it, and always stops it."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kopf._kits.testing.sandbox import Sandbox
from kopf._kits.testing.serving.faults import SeenRequest
from kopf._kits.testing.webhook_notices import OWN_RESOURCES

if TYPE_CHECKING:
    from kopf._cogs.configs.configuration import OperatorSettings
    from kopf._core.intents.registries import OperatorRegistry
    from kopf._kits.testing.inline_operators import InlineOperator

OWN_PLURALS = frozenset(resource.plural for resource in OWN_RESOURCES)
"""The names of the resources that the framework itself watches, before the resources of the handlers."""

WEBHOOKS = frozenset({'validatingwebhookconfigurations', 'mutatingwebhookconfigurations'})
"""The resources that an operator writes to register its webhooks."""


__tracebackhide__ = True  # pytest omits the frames of this module from tracebacks


PROVISIONER = 'kopf-tests'
"""
The user who applies the CRDs of declared kinds in place of the operator.

Otherwise, roles that are made from the requests of the operator would permit it to write CRDs.
"""

_UNRESOLVED = 'Unresolved resources cannot be served'
"""The beginning of the warning of an operator without the kinds that its handlers are for."""

_UNRESOLVED_TIMEOUT = 5.0
"""How long (in seconds) an operator may start without the kinds that its handlers are for."""


class OperatorFailed(RuntimeError):
    """Raised when the operator has exited, or a wait times out; the message has the end of its output."""

    __module__ = 'kopf.testing'


class OperatorProcess:
    """One operator in a process of its own."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._output = tempfile.NamedTemporaryFile(prefix='kopf-operator-', suffix='.log')
        self._notice = tempfile.NamedTemporaryFile(prefix='kopf-operator-', suffix='.json')
        self._is_noticed = False
        self._text = ''
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_serving(self) -> bool:
        """True since the operator has started its watches and registered its webhooks and conversions, if it tells."""
        return not self._is_noticed or 'has_endpoints' in self._read_notice()

    @property
    def has_endpoints(self) -> bool:
        """True if the API server calls the operator for admission or conversion, as far as the operator tells."""
        return self._is_noticed and bool(self._read_notice().get('has_endpoints'))

    @property
    def handles_own_resources(self) -> bool:
        """True if all handlers are for resources that the framework watches, too, as far as the operator tells."""
        return self._is_noticed and bool(self._read_notice().get('handles_own_resources'))

    def _read_notice(self) -> Mapping[str, Any]:
        text = Path(self._notice.name).read_text()  # empty while it is being written
        notice: Mapping[str, Any] = json.loads(text) if text else {}
        return notice

    @property
    def output(self) -> str:
        """The output so far, including the log."""
        if not self._output.closed:
            self._text = Path(self._output.name).read_text(errors='replace')
        return self._text

    @property
    def returncode(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll() if self._process is not None else None

    @property
    def is_started(self) -> bool:
        """True if the operator was started."""
        return self._process is not None

    def start(
        self,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | os.PathLike[str] | None,
        provisioner: str | None = None,
    ) -> None:
        """
        Start the process.

        Args:
            arguments: the arguments of ``kopf run``.
            env: more environment variables.
            cwd: the working directory.
            provisioner: the token of the user who applies the CRDs; by default, the operator does.
        """
        program = ['kopf']
        if not any(re.match('--(reload|processes)', argument) for argument in arguments):
            # Why not with these options? The operator is then a child of that process, which does not know its
            # settings.
            self._is_noticed = True
            login = {'server': self._sandbox.url, 'ca_data': self._sandbox.ca.decode(), 'token': provisioner}
            Path(self._notice.name).write_text(json.dumps({'provisioner': login if provisioner else None}))
            program = ['kopf._kits.testing.webhook_notices', self._notice.name]
        self._process = subprocess.Popen(
            [sys.executable, '-m', *program, 'run', *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env={**os.environ, 'PYTHONUNBUFFERED': '1', 'KUBECONFIG': str(self._sandbox.kubeconfig), **env},
        )

    def kill(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self, timeout: float) -> int | None:
        """Stop the process gracefully, and kill it after the timeout (in seconds); return the exit code."""
        if self._process is None or self._output.closed:
            self._output.close()
            self._notice.close()
            return self.returncode
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._text = self.output
        self._output.close()
        self._notice.close()
        return self._process.returncode


class Operator:
    """
    A running ``kopf run`` with these arguments: files of handlers, and options.

    The operator serves all namespaces unless the arguments name some. It applies the CRDs of its declared kinds, except
    with a ``KUBECONFIG`` in ``env``: then, the test applies them. The context begins when the operator watches its
    resources and, with ``settings.admission.managed``, has registered its webhooks and conversions. The context ends
    with the graceful exit of the operator. `OperatorFailed` is raised if the operator does not start within ``timeout``
    seconds.

    The operator is a process of its own or, in a sandbox with virtual time, a task in the process of the test. A
    ``registry`` of handlers and initial ``settings`` are only possible in virtual time.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        *arguments: str | os.PathLike[str],
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        timeout: float = 60.0,
        registry: 'OperatorRegistry | None' = None,
        settings: 'OperatorSettings | None' = None,
    ) -> None:
        self._sandbox = sandbox
        self._arguments = [os.fspath(argument) for argument in arguments]
        self._env = dict(env or {})
        self._cwd = cwd
        self._timeout = timeout
        if sandbox.simulation is None and (registry is not None or settings is not None):
            raise TypeError('registry= and settings= are for operators in a sandbox with virtual_time=True only.')
        self._control: OperatorProcess | InlineOperator
        if sandbox.simulation is None:
            self._control = OperatorProcess(sandbox)
        else:
            # Imported only here, because it imports the whole framework, unlike the class for processes.
            from kopf._kits.testing import inline_operators

            self._control = inline_operators.InlineOperator(
                sandbox, sandbox.simulation, registry=registry, settings=settings
            )
        sandbox.add_log(lambda: self.output)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def output(self) -> str:
        """The output of the operator so far, including its log."""
        return self._control.output

    @property
    def returncode(self) -> int | None:
        """The exit code; None while it runs."""
        return self._control.returncode

    def start(self) -> None:
        """Start the operator and wait until it serves its resources."""
        scoped = any(re.match(r'-[An]|--(namespace|all-namespaces)', argument) for argument in self._arguments)
        started = time.time()
        # Apply only the CRDs that the operator declares; the test applies all others. With a kubeconfig of the test,
        # the operator is tested as it is deployed: it has no permission to apply CRDs.
        applying = [] if 'KUBECONFIG' in self._env else ['--apply-crds']
        # With the option of the test's choice, the operator needs the permissions for that.
        is_own = not applying or '--apply-crds' in self._arguments
        provisioner = None if is_own else self._sandbox.issue_token(PROVISIONER, ['system:masters'])
        arguments = [*applying, *([] if scoped else ['--all-namespaces']), *self._arguments]
        self._control.start(arguments, env=self._env, cwd=self._cwd, provisioner=provisioner)
        deadline, hint = time.monotonic() + self._timeout, f' after {self._timeout} s'
        while (lacking := self._find_lacking(started)) is not None:
            if self.returncode is not None:
                raise OperatorFailed(f'the operator has exited with the code {self.returncode}:\n{self._tail()}')
            if _UNRESOLVED in self.output:
                # The test cannot create the kind, as it waits here. But another thread of it could.
                if not hint.startswith(';'):
                    deadline = min(deadline, time.monotonic() + _UNRESOLVED_TIMEOUT)
                hint = '; apply the CRDs of its resources before it starts'
            if time.monotonic() > deadline:
                raise OperatorFailed(f'the operator {lacking}{hint}:\n{self._tail()}')
            time.sleep(0.02)

    def wait_for_output(self, pattern: str, *, timeout: float = 30.0) -> re.Match[str]:
        """Wait until the output matches the regular expression; raise `OperatorFailed` otherwise."""
        deadline = time.monotonic() + timeout
        while True:
            # checked before the output is read, so that the last output is not missed
            is_over = self.returncode is not None or time.monotonic() > deadline
            if match := re.search(pattern, self.output, re.MULTILINE):
                return match
            if is_over or (self.returncode is None and not self._control.is_started):
                hint = '' if self._control.is_started else ' (it is not started: use it in a with statement)'
                raise OperatorFailed(f'nothing in the output matches {pattern!r}{hint}:\n{self._tail()}')
            time.sleep(0.02)

    def stop(self, *, timeout: float = 30.0) -> int | None:
        """Stop the operator gracefully, and kill it after ``timeout`` seconds; return the exit code."""
        return self._control.stop(timeout)

    def kill(self) -> None:
        """Kill the operator, so that it makes no last requests."""
        self._control.kill()

    def _find_lacking(self, started: float) -> str | None:
        """Return what the operator still has to do to be started, in words; None if it is started."""
        requests = [request for request in self._sandbox.requests if request.time >= started and _is_ours(request)]
        is_watching = any(_watches(request) for request in requests)
        if not self._control.is_serving:
            pending = 'has not registered its webhooks'
            return pending if is_watching else 'has no registered webhooks, and does not watch anything'
        # An operator writes both configurations, one after the other, even if one of them is empty or refused.
        # Operators with --reload or --processes do not tell when they have written both.
        if len({request.resource for request in requests if _is_written(request)}) == 1:
            return 'has not registered its webhooks'
        if is_watching or any(_is_registration(request) for request in requests):
            return None
        # An operator with nothing but webhooks or conversions that others have registered makes no such request. The
        # requests for namespaces and CRDs do not show for whom they are.
        is_hidden = self._control.has_endpoints or self._control.handles_own_resources
        if is_hidden and _UNRESOLVED not in self.output:
            return None
        return 'does not watch anything'

    def _tail(self) -> str:
        return '\n'.join(self.output.splitlines()[-20:])


def _is_ours(request: SeenRequest) -> bool:
    return request.user_agent.startswith('kopf/')


def _is_written(request: SeenRequest) -> bool:
    return request.resource in WEBHOOKS and request.verb == 'patch' and request.status != 0


def _is_registration(request: SeenRequest) -> bool:
    """Check whether the request lets the API server call the operator for admission or conversion."""
    if request.status != 200 or b'"clientConfig"' not in request.body:
        return False
    # Applied CRDs do not have the address of the operator yet, unlike the patch of this one field.
    is_conversion = request.resource == 'customresourcedefinitions' and b'"/spec/conversion"' in request.body
    return is_conversion or request.resource in WEBHOOKS


def _watches(request: SeenRequest) -> bool:
    return request.status == 200 and request.verb == 'watch' and request.resource not in OWN_PLURALS
