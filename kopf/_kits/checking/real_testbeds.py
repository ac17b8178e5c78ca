"""
Testbeds in real time: each operator is a process of its own, with real sockets and threads.

A course takes some seconds there, and two courses are never exactly equal. Therefore, an operator counts as being at
rest after some seconds without writes, and a check runs a plan again before it reports a finding.
"""

import asyncio
import contextlib
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from kopf._core.intents.handlers import DaemonHandler
from kopf._core.intents.registries import OperatorRegistry, SmartOperatorRegistry
from kopf._kits.checking.call_records import CallRecorder, ObservedCall
from kopf._kits.checking.plans import CALL, Plan
from kopf._kits.checking.sandbox_testbeds import SandboxTestbed
from kopf._kits.checking.subjects import Subject
from kopf._kits.checking.takeovers import find_takeover
from kopf._kits.checking.testbeds import CannotContinue, Pace, Testbed, Write
from kopf._kits.checking.user_writes import CourseSandbox, RecordedWrites
from kopf._kits.checking.virtual_testbeds import CallHost
from kopf._kits.checking.watched_runs import Orders, make_identity, parse, without_cluster
from kopf._kits.testing.serving.faults import SeenRequest
from kopf._kits.testing.wire.httpexchanges import Dropped
from kopf._kits.testing.wire.statuses import Refusal

FOLDER = 'KOPF_CHECK_FOLDER'
"""The environment variable with the folder of a course, where fakes of external services keep their data."""

READY_TIMEOUT = 15.0
"""How long to wait for a started operator to report that it is ready (in seconds); some operators never do."""

STOP_TIMEOUT = 30.0
"""How long an operator may take to stop gracefully (in seconds)."""

RETRIED_WITHIN = 25.0
"""How long after a failure a retry of the request is expected (in seconds): the framework's longest delay is 21."""

UNREACHABLE = 1.0
"""How long after the start of operators a write is retried that needs their webhooks (in seconds)."""


class RealOperator:
    """
    One operator in a process of its own, with a process group of its own.

    Signals that kill or suspend the operator reach its child processes, too, as in a container.

    Args:
        recorder: records the calls of its handlers.
        forget: called with the recorder when the operator has been killed or suspended.
        output: the file for its output.
        now: the time (in seconds).
    """

    def __init__(
        self, recorder: CallRecorder, forget: Callable[[CallRecorder], None], output: Path, now: float
    ) -> None:
        self.recorder = recorder
        self.quiet_since = now + READY_TIMEOUT
        """The time of the last activity of handlers (in seconds); while the operator starts, a time in the future."""
        self.is_starting = True
        """Whether the operator has not yet reported that it has started its watches and registered its webhooks."""
        self.is_released = False
        """Whether the operator has killed itself after a call of an external service: later reports are ignored."""
        self._forget = forget
        self._path = output
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the process."""
        command = [sys.executable, '-m', 'kopf._kits.checking.watched_runs', *arguments]
        with open(self._path, 'wb') as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                process_group=0,
            )

    @property
    def returncode(self) -> int | None:
        """The exit code; None while the operator runs."""
        return None if self._process is None else self._process.poll()

    @property
    def output(self) -> str:
        """The output so far, including the log."""
        return self._path.read_text(errors='replace')

    def note_activity(self, now: float) -> None:
        """Called when the operator becomes ready, and when a handler begins or ends."""
        self.is_starting = False
        self.quiet_since = now

    def release(self) -> None:
        """Called before the operator kills itself."""
        self.is_released = True

    def kill(self) -> None:
        """Kill the processes immediately."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait()
            assert self._process.stdin is not None
            self._process.stdin.close()
        self._forget(self.recorder)

    def stop(self) -> None:
        """Stop the operator gracefully."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)  # the child processes that still run
        self.kill()

    def hang(self, seconds: float) -> None:
        """Suspend the process for a time."""
        self._signal(signal.SIGSTOP)
        self._forget(self.recorder)
        timer = threading.Timer(seconds, self._signal, [signal.SIGCONT])
        timer.daemon = True
        timer.start()

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS does not permit signals to zombies
                os.killpg(self._process.pid, number)


class RealTestbed(Testbed):
    """
    The common part of the testbeds in real time.

    Args:
        subject: the operator and its user.
        host: the course.
        plan: the plan of the course.
        pace: the times.
    """

    def __init__(self, subject: Subject, host: CallHost, plan: Plan, pace: Pace) -> None:
        self.pace = pace
        self._subject = subject
        self._host = host
        self._plan = plan
        self._started_at = time.time()
        self._folder = Path(tempfile.mkdtemp(dir=subject.folder))
        self._events = self._folder / 'events'
        self._read = 0
        self._reading = threading.RLock()
        self._operators: list[RealOperator] = []
        self._started_last = self._started_at
        """When the last operator was started (in seconds since the epoch)."""
        self._changed_at = self._started_at
        """When an operator was started, killed, or suspended for the last time (in seconds since the epoch)."""
        self._calls = 0
        self._is_open = False
        self._timers: set[threading.Timer] = set()
        """The timers whose functions have not ended yet."""
        self._requests: set[object] = set()
        """A token for each request that waits for a function."""
        self._failure = ''
        """The error of a function in another thread."""

    @property
    @abstractmethod
    def kubeconfig(self) -> Path:
        """The credentials of the operators."""

    def open(self) -> None:
        """Prepare the folder and the environment variables. This process is a copy for one course: it keeps them."""
        outside = self._folder / 'outside'
        outside.mkdir()
        self._events.touch()
        os.environ.update({'KUBECONFIG': str(self.kubeconfig), FOLDER: str(outside)})
        threading.Thread(target=_end_with_parent, args=[os.getppid()], name='kopf-parent', daemon=True).start()
        self._is_open = True

    def close(self) -> None:
        """End all processes. Wait for the timers first: one of them can be starting a process at this moment."""
        self._is_open = False
        for timer in list(self._timers):
            timer.cancel()
            if timer.is_alive():
                timer.join(STOP_TIMEOUT)
        with contextlib.ExitStack() as stack:
            for operator in self._operators:
                stack.callback(operator.kill)

    @property
    def now(self) -> float:
        """The time since the start (in seconds)."""
        return time.time() - self._started_at

    def get_time(self, request: SeenRequest) -> float:
        """Return the time of a request, on the scale of `now`."""
        return request.time - self._started_at

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)
        if self._failure:
            raise CannotContinue(f'The disturbance has failed: {self._failure}.')

    def await_operators(self) -> None:
        """Wait for the operators that are being started again, and for their webhooks."""
        ends_at = self.now + READY_TIMEOUT
        while self._is_disturbing() and self.now < ends_at:
            self.advance(self.pace.short_stride)
            self.check()
        self.advance(UNREACHABLE)

    def _is_disturbing(self) -> bool:
        """Check whether an operator is starting, or the disturbance has not ended yet."""
        starting = any(operator.is_starting and operator.returncode is None for operator in self._operators)
        return bool(starting or self._timers or self._requests)

    def call_later(self, seconds: float, function: Callable[[], object]) -> None:
        """Call the function in a thread after the time (in seconds)."""

        def call() -> None:
            if self._is_open:
                self._call(function)
            self._timers.discard(timer)

        timer = threading.Timer(seconds, call)
        timer.daemon = True
        self._timers.add(timer)
        timer.start()

    def call_in_request(self, function: Callable[[], object], *, ends: bool) -> Coroutine[Any, Any, None]:
        """Call the function in a thread; the request waits for its end."""

        async def call() -> None:
            self._requests.add(call)
            try:
                await asyncio.to_thread(self._call, function)
            finally:
                self._requests.discard(call)
            if ends:
                raise Dropped  # the server possibly does not know yet that its client is dead

        return call()

    def _call(self, function: Callable[[], object]) -> None:
        """Called in another thread: call the function; if it fails, the course ends with an error."""
        try:
            function()
        except Exception as error:
            self._failure = self._failure or f'{type(error).__name__}: {error}'

    def write(self, get_writes: Callable[[], Sequence[Write]], done: Callable[[], None], *, waits: bool) -> None:
        """Make the writes of another client at once: the caller is never in the thread of a server."""
        with self.user.writes.unrecorded(), contextlib.suppress(Refusal):
            for resource, name, namespace, patch in get_writes():
                if patch is None:
                    self.user.delete(resource, name, namespace=namespace)
                else:
                    self.user.patch(resource, name, patch, namespace=namespace)
                done()

    def start_operator(self, number: int, recorder: CallRecorder) -> RealOperator:
        """Start one operator."""
        if self.registry is None:
            self._load()
        operator = RealOperator(recorder, self._forget, self._folder / f'output-{len(self._operators)}', self.now)
        orders = Orders(
            number=len(self._operators),
            path=str(self._events),
            outside=self._subject.outside,
            folders=[find_root(name) for name in self._subject.outside],
            **self._find_due_call(),
        )
        self._operators.append(operator)
        # With equal priorities, all peers would pause.
        priority = ['--priority', str(100 - number)] if self._plan.replicas > 1 else []
        environment = {**without_cluster(os.environ), 'PYTHONUNBUFFERED': '1', **orders.make_environment()}
        self._started_last = self._changed_at = time.time()
        operator.start([*self._list_arguments(), *priority], environment)
        return operator

    def _list_arguments(self) -> Sequence[str]:
        """Return the arguments of ``kopf run``."""
        return self._subject.arguments

    def _find_due_call(self) -> Mapping[str, Any]:
        """Return the external call after which the next operator must be killed; None if that call has been made."""
        moment = self._plan.request
        if moment is None or moment.verb != CALL or self._calls >= moment.number:
            return {}
        return {'call': moment.resource, 'count': moment.number - self._calls}

    def _load(self) -> None:
        """Load the handlers into this process, too, because the course needs to know what they handle."""
        self.registry = load_handlers(self._list_arguments())
        self.define(declare_crds(self.registry))

    @abstractmethod
    def define(self, crds: Sequence[Mapping[str, Any]]) -> None:
        """Create the kinds that the operator declares as classes."""

    def check(self) -> None:
        """Read the operators' reports since the last call."""
        with self._reading:
            with open(self._events, 'rb') as file:
                file.seek(self._read)
                data = file.read()
            data = data[: data.rfind(b'\n') + 1]  # the last line may still be incomplete
            self._read += len(data)
            for line in data.decode().splitlines():
                self._take(*parse(line))

    def _forget(self, recorder: CallRecorder) -> None:
        """Called when an operator was killed or suspended: read its last reports, then forget its running calls."""
        with self._reading:
            self.check()
            recorder.forget()
            self._changed_at = time.time()

    def _take(self, number: int, what: str, at: float, fields: Sequence[str]) -> None:
        operator = self._operators[number]
        if operator.is_released:
            return
        if what == 'ready' or (what in ('begin', 'end') and fields[3] not in self._list_handlers(periodic=True)):
            operator.note_activity(self.now)
        if what == 'begin':
            operator.recorder.note_begin(ObservedCall(*fields), at)
        elif what == 'end':
            operator.recorder.note_end(ObservedCall(*fields), at)
        elif what == 'call':
            moment = self._plan.request
            self._calls += moment is not None and fields[0] == moment.resource
            if self._host.note_call(fields[0]):
                self._host.release_operator(operator)  # the operator has killed itself
                operator.release()
                operator.recorder.forget()
                self._changed_at = time.time()

    def is_stable(self) -> bool:
        """
        Check whether no further events are to be expected.

        No operator is starting or takes over, no requests are retried, and no handlers are running or have just run,
        except for daemons.
        """
        if self._timers or self._requests or self._is_retrying() or self._is_taking_over():
            return False
        daemons = self._list_handlers(periodic=False)
        with self._reading:
            self.check()
            for operator in self._operators:
                is_busy = any(id not in daemons for _, id in operator.recorder.running)
                if operator.returncode is None and (is_busy or self.now - operator.quiet_since < self.pace.silence):
                    return False
        return True

    def _is_retrying(self) -> bool:
        """Check whether the last attempt of a request has failed recently: its client will probably retry it."""
        # Killed operators retry nothing.
        last = {(seen.verb, seen.path): seen for seen in list(self.requests) if seen.time >= self._started_last}
        failed = [seen for seen in last.values() if seen.status == 429 or seen.status >= 500]
        return any(self.now - self.get_time(seen) < RETRIED_WITHIN for seen in failed)

    def _is_taking_over(self) -> bool:
        """Check whether an operator is going to work in the place of a dead one, or has just begun to do so."""
        ended = {
            make_identity(number)
            for number, operator in enumerate(self._operators)
            if operator.is_released or operator.returncode is not None
        }
        taken_at = find_takeover(list(self.requests), changed_at=self._changed_at, ended=ended)
        return time.time() - taken_at < self.pace.silence

    def _list_handlers(self, *, periodic: bool) -> frozenset[str]:
        """Return the ids of the daemons; with ``periodic``, also those of timers and other periodic handlers."""
        handlers = [] if self.registry is None else self.registry.iter_handlers()
        return frozenset(
            str(handler.id)
            for handler in handlers
            if isinstance(handler, DaemonHandler) or (periodic and handler.is_periodic)
        )


class RealSandboxTestbed(RealTestbed, SandboxTestbed):
    """The testbed with a sandbox on the loopback interface, in real time."""

    def __init__(self, subject: Subject, host: CallHost, plan: Plan, pace: Pace) -> None:
        RealTestbed.__init__(self, subject, host, plan, pace)
        writes = RecordedWrites(host, self.await_operators)
        sandbox = CourseSandbox(
            writes, wait=pace.patience, kubeconfig=self._folder / 'kubeconfig', seed=plan.seed, **subject.options
        )
        SandboxTestbed.__init__(self, sandbox, pods=bool(subject.options.get('pods')))

    @property
    def kubeconfig(self) -> Path:
        """The credentials of the operators."""
        return self.sandbox.kubeconfig

    def open(self) -> None:
        """Start the sandbox."""
        SandboxTestbed.open(self)
        RealTestbed.open(self)

    def close(self) -> None:
        """End all processes, and the sandbox."""
        try:
            RealTestbed.close(self)
        finally:
            self.sandbox.__exit__(None, None, None)

    def define(self, crds: Sequence[Mapping[str, Any]]) -> None:
        """Create the kinds that the operator declares as classes."""
        for crd in crds:
            self.sandbox.apply(crd)


def find_root(name: str) -> str:
    """Return the folder from which a module was imported; of a package or its module, the folder with the package."""
    path = Path(str(sys.modules[name].__file__))
    levels = name.count('.') + (path.stem == '__init__')
    return str(path.parents[levels])


def _end_with_parent(parent: int) -> None:
    """Kill this process when its parent has ended or was killed, so that its operators end, too."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


def declare_crds(registry: OperatorRegistry) -> list[Mapping[str, Any]]:
    """Return the definitions of the kinds that the operator declares as classes."""
    if not registry.kinds:
        return []
    from kopf._kits.definitions.crd_documents import make_crds  # most operators declare no kinds

    return list(make_crds(registry.kinds, warn=lambda text: None))


def load_handlers(arguments: Sequence[str]) -> OperatorRegistry:
    """Load the handlers as ``kopf run`` does, but run nothing; if that fails, return the handlers loaded so far."""
    registry = SmartOperatorRegistry()
    # Imported by its name at run time, as the layers do not allow the kits to import the command line.
    cli = importlib.import_module('kopf.cli')
    controls = cli.CLIControls(registry=registry, run=lambda **options: None)
    with contextlib.suppress(Exception, SystemExit):  # the process of the operator will report the error
        cli.main.main(['run', *arguments], prog_name='kopf', standalone_mode=False, obj=controls)
    return registry
