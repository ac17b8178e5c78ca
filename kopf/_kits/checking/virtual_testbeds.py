"""
The testbed in virtual time: the operators and the sandbox run in one event loop, whose clock jumps over idle times.

Its events depend only on the plan: the same plan gives the same requests at the same times.
"""

import asyncio
import contextlib
import contextvars
import os
import unittest.mock
from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol

from kopf._core.intents.registries import OperatorRegistry
from kopf._kits.checking.call_records import CallRecorder
from kopf._kits.checking.outside_calls import Killed, OutsideCalls
from kopf._kits.checking.sandbox_testbeds import SandboxTestbed
from kopf._kits.checking.subjects import Subject
from kopf._kits.checking.testbeds import VIRTUAL, RunningOperator, Write
from kopf._kits.checking.user_modules import UserModules
from kopf._kits.checking.user_writes import CourseSandbox, Host, RecordedWrites
from kopf._kits.testing.inline_operators import InlineOperator
from kopf._kits.testing.serving.faults import SeenRequest
from kopf._kits.testing.virtual.outputs import output_var
from kopf._kits.testing.virtual.simulations import Simulation
from kopf._kits.testing.virtual.virtual_clocks import EPOCH
from kopf._kits.testing.wire.statuses import Refusal

UNREACHABLE = 60.0
"""The delay of retries of a write that was refused because a webhook was unavailable (in seconds)."""


class CallHost(Host, Protocol):
    """The operations of a course, i.e. of one run of the scenario, that the testbed needs."""

    def note_call(self, name: str) -> bool:
        """Record a call of an external service; return whether the caller must be killed now."""

    def release_operator(self, operator: RunningOperator) -> None:
        """Called before the operator is killed, so that another one can be started in its place."""


class VirtualOperator:
    """One operator in virtual time."""

    def __init__(self, inline: InlineOperator, recorder: CallRecorder) -> None:
        self.inline = inline
        self.recorder = recorder

    @property
    def is_starting(self) -> bool:
        """True until the operator has started its watches and registered its webhooks."""
        return not self.inline.is_serving

    @property
    def returncode(self) -> int | None:
        """The exit code; None while the operator runs."""
        return self.inline.returncode

    @property
    def output(self) -> str:
        """The output so far, including the log."""
        return self.inline.output

    def kill(self) -> None:
        """Kill the operator immediately."""
        self.inline.kill()
        self.recorder.forget()

    def stop(self) -> None:
        """Stop the operator gracefully."""
        self.inline.stop(60)
        self.recorder.forget()

    def hang(self, seconds: float) -> None:
        """Suspend the operator for a time (in seconds). Running handlers may continue later, but none may start."""
        self.recorder.forget()
        self.inline.freeze(seconds)


class VirtualTestbed(SandboxTestbed):
    """
    The testbed of a course in virtual time.

    Args:
        subject: the operator and its user.
        host: the course.
        seed: the seed of random numbers, and of the order of concurrent events.
        replicas: how many operators run at the same time.
    """

    pace = VIRTUAL

    def __init__(self, subject: Subject, host: CallHost, *, seed: int, replicas: int) -> None:
        # Why the id of the process? Forked copies have equal ids of objects, and their sandboxes have different tokens.
        kubeconfig = subject.folder / f'kubeconfig-{os.getpid()}-{id(self)}'
        sandbox = CourseSandbox(
            RecordedWrites(host, lambda: self.advance(UNREACHABLE)),
            virtual_time=True,
            seed=seed,
            kubeconfig=kubeconfig,
            **subject.options,
        )
        super().__init__(sandbox, pods=bool(subject.options.get('pods')))
        self._subject = subject
        self._host = host
        self._has_peers = replicas > 1
        self._modules = UserModules()
        self._calls = OutsideCalls(subject.outside, self._note_call, lambda: not self._is_dead(self._find_owner()))
        self._operators: list[VirtualOperator] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._stack = contextlib.ExitStack()
        self._context = contextvars.copy_context()

    def open(self) -> None:
        """Start the sandbox."""
        super().open()
        self._stack.enter_context(unittest.mock.patch.object(os, '_exit', self._end_process))
        self._stack.enter_context(self._calls.recorded())

    def close(self) -> None:
        """Stop replacing functions. The sandbox keeps running, since this process ends after the course anyway."""
        self._stack.close()

    @property
    def _simulation(self) -> Simulation:
        assert self.sandbox.simulation is not None
        return self.sandbox.simulation

    @property
    def now(self) -> float:
        """The virtual time (in seconds)."""
        return self._simulation.clock.now

    def get_time(self, request: SeenRequest) -> float:
        """Return the time of a request, on the scale of `now`."""
        return request.time - EPOCH

    def advance(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.sandbox.advance(seconds)

    def call_later(self, seconds: float, function: Callable[[], object]) -> None:
        """Call the function in the event loop after the time."""
        # Why an empty context? In the context of an operator, the function would not be called if the operator was
        # killed.
        self._simulation.loop.call_later(seconds, function, context=self._context.copy())

    def call_in_request(self, function: Callable[[], object], *, ends: bool) -> None:
        """Call the function immediately. Why ignore ``ends``? The requests of a killed operator end with its tasks."""
        function()

    def write(self, get_writes: Callable[[], Sequence[Write]], done: Callable[[], None], *, waits: bool) -> None:
        """Make the writes of another client in the event loop."""

        async def write() -> None:
            aio = self.sandbox.aio
            with contextlib.suppress(Refusal):
                for resource, name, namespace, patch in get_writes():
                    if patch is None:
                        await aio.delete(resource, name, namespace=namespace)
                    else:
                        await aio.patch(resource, name, patch, namespace=namespace)
                    done()

        if waits:
            self.sandbox.run(write())
        else:
            task = self._simulation.loop.create_task(write())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def start_operator(self, number: int, recorder: CallRecorder) -> VirtualOperator:
        """Start one operator."""
        inline = InlineOperator(self.sandbox, self._simulation, instruments=[recorder])
        operator = VirtualOperator(inline, recorder)
        self._operators.append(operator)
        # With equal priorities, all peers would pause.
        priority = ['--priority', str(100 - number)] if self._has_peers else []
        with self._modules.loading(inline.registry):
            inline.start([*self._subject.arguments, *priority], env={}, cwd=None, loaded=self._create_kinds)
        self.registry = inline.registry
        return operator

    def list_imports(self) -> Sequence[str]:
        """Return the modules that the operator imports from the standard library and from installed packages."""
        return self._modules.foreign

    def _create_kinds(self, registry: OperatorRegistry) -> None:
        """Create the kinds that the operator declares as classes, at its first start."""
        if registry.kinds and self.registry is None:
            from kopf._kits.definitions.crd_conversions import add_conversions  # most operators declare no kinds
            from kopf._kits.definitions.crd_documents import make_crds

            crds = make_crds(registry.kinds, warn=lambda text: None)  # ``kopf crd`` shows the warnings
            for body in add_conversions(crds, registry):
                self.sandbox.apply(body)

    def check(self) -> None:
        """Do nothing: the instruments of the operators have recorded everything."""

    # The actions of the operators besides requests.

    def _find_owner(self) -> object:
        """Return the operator whose code is running: its output stream, as each operator has a stream of its own."""
        strand = self._simulation.turns.current
        return output_var.get() if strand is None else strand.owner

    def _find_operator(self, owner: object) -> VirtualOperator | None:
        return next((operator for operator in self._operators if operator.inline.is_owner(owner)), None)

    def _is_dead(self, owner: object) -> bool:
        operator = self._find_operator(owner)
        return operator is not None and operator.returncode is not None

    def _note_call(self, name: str) -> None:
        """Record a call of an external service, and let the disturbance happen if it is due."""
        operator = self._find_operator(self._find_owner())
        if operator is not None and self._host.note_call(name):
            self._host.release_operator(operator)
            if self._simulation.turns.current is None:
                operator.kill()
            else:
                # Why not kill it here? This is its own thread, which has to end first.
                self._simulation.loop.call_soon(operator.kill, context=contextvars.Context())
            raise Killed

    def _end_process(self, code: int) -> NoReturn:
        """Called instead of `os._exit`, which would end this process with all operators."""
        operator = self._find_operator(self._find_owner())
        if operator is not None and operator.returncode is None:
            self._simulation.loop.call_soon(operator.kill, context=contextvars.Context())
        raise SystemExit(code)
