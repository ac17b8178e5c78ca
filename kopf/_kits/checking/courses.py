"""
Courses: one run of an operator, from its start, through the writes of a user, to the deletion of all objects.

A course runs in virtual time, so ten minutes without events take no real time. It depends only on its plan: the same
plan gives the same requests at the same times.
"""

import contextlib
import contextvars
import dataclasses
import os
import sys
import unittest.mock
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

from kopf._core.intents.causes import Reason
from kopf._core.intents.handlers import ChangingHandler, ResourceHandler
from kopf._core.intents.registries import OperatorRegistry
from kopf._kits.checking.call_records import Call, CallRecord, CallRecorder
from kopf._kits.checking.disturbances import EDITING, Disturbance, clean
from kopf._kits.checking.end_states import State, StoredObject
from kopf._kits.checking.outside_calls import Killed, OutsideCalls
from kopf._kits.checking.plans import CALL, Plan, Target
from kopf._kits.checking.readiness_records import ReadinessRecord
from kopf._kits.checking.user_modules import UserModules
from kopf._kits.testing.controllers import workloads
from kopf._kits.testing.inline_operators import InlineOperator
from kopf._kits.testing.kinds.kinds import Bodies, Body, Kind
from kopf._kits.testing.operator_processes import OWN_RESOURCES, WEBHOOKS
from kopf._kits.testing.sandbox import UNIMPORTANT, Sandbox
from kopf._kits.testing.serving.faults import SeenRequest
from kopf._kits.testing.serving.waits import WaitTimeout
from kopf._kits.testing.virtual.outputs import output_var
from kopf._kits.testing.virtual.virtual_clocks import EPOCH, VirtualTimeError
from kopf._kits.testing.wire.manifests import ManifestError, Source
from kopf._kits.testing.wire.statuses import Refusal

START = 60.0
"""How long an operator may take until it watches its resources (in seconds)."""

SILENCE = 100.0
"""After how long without writes an operator is at rest (in seconds): longer than the usual delays of retries."""

PATIENCE = 1800.0
"""How long an operator may take to come to rest (in seconds)."""

PERIODIC_PATIENCE = 300.0
"""The same for operators that write periodically, and so never rest (in seconds)."""

STRIDE = 25.0
"""By how much virtual time is advanced at once (in seconds)."""

SHORT_STRIDE = 0.25
"""The same while the operator writes often (in seconds)."""

FEW_WRITES = 20
"""With this number of writes in one stride, the operator writes often."""

MAX_WRITES = 600
"""The number of writes after which an operator that has not come to rest is considered to be in a loop."""

REPEATED = 3
"""The number of equal writes at rest that is reported."""

QUIET = 600.0
"""How long an operator at rest is observed (in seconds)."""

UNREACHABLE = 60.0
"""After how long the user retries a write that was refused because a webhook was unavailable (in seconds)."""

WAIT = 3600.0
"""The minimal timeout of the waits in scenarios (in seconds): disturbances delay the expected states."""

HIDDEN = UNIMPORTANT | WEBHOOKS | {'selfsubjectrulesreviews', 'selfsubjectaccessreviews', 'selfsubjectreviews'}
"""
The resources that are not compared as a part of the end state.

Configurations of webhooks, for example, belong to the operator and not to its objects.
"""

COORDINATING = frozenset({'leases', 'clusterkopfpeerings', 'kopfpeerings'})
"""The resources through which several operators agree on the one that works."""

T = TypeVar('T')

Scenario = Callable[[Sandbox], object]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """The input of a check: an operator, the actions of its user, and systems outside of the cluster."""

    arguments: Sequence[str]
    """The arguments of ``kopf run``."""
    options: Mapping[str, Any]
    """The options of the sandbox."""
    scenario: Scenario
    observers: Mapping[str, Callable[[], Any]]
    """Functions that return the states of systems outside of the cluster."""
    folder: Path
    """The folder for temporary files."""
    outside: Sequence[str] = ()
    """The names of the modules that stand for the world outside of the cluster."""

    def choose_scenario(self, plan: Plan) -> Scenario:
        """Return the scenario, without the objects that the plan omits."""
        return self.scenario.reduce(plan.without) if isinstance(self.scenario, Loading) else self.scenario


class Loading:
    """
    A scenario that creates the given objects, one after another.

    If an object is given twice, the second one is an edit: it is made when the operator is at rest.
    """

    def __init__(self, bodies: Sequence[Mapping[str, Any]]) -> None:
        self.bodies = bodies

    def reduce(self, without: Sequence[int]) -> 'Loading':
        """Return the scenario without these objects (by their numbers, from 1)."""
        return Loading([body for number, body in enumerate(self.bodies, 1) if number not in without])

    def __call__(self, sandbox: Sandbox) -> None:
        """Create the objects."""
        seen = set()
        for body in self.bodies:
            meta = body.get('metadata') or {}
            key = (body.get('apiVersion'), body.get('kind'), meta.get('namespace'), meta.get('name'))
            if key in seen and isinstance(sandbox, CourseSandbox):
                sandbox.settle()
            seen.add(key)
            sandbox.apply(body)


class Recreation:
    """A scenario that creates objects with their final specs, instead of editing them."""

    def __init__(self, bodies: Sequence[Mapping[str, Any]]) -> None:
        self._bodies = bodies

    def __call__(self, sandbox: Sandbox) -> None:
        """Create the objects."""
        for body in self._bodies:
            sandbox.create(body)


@dataclasses.dataclass(frozen=True)
class Request:
    """One request of the operator."""

    verb: str
    resource: str
    subresource: str
    method: str
    path: str
    status: int
    phase: str
    """The phase of the course: ``start``, ``scenario``, ``edits``, ``quiet``, ``restart``, ``deletion``."""
    is_apply: bool = False
    """Whether it is a server-side apply."""

    @property
    def is_write(self) -> bool:
        """Return whether it can change something."""
        return self.method not in ('GET', 'HEAD')

    def __str__(self) -> str:
        return f'{self.method} {self.path}: {self.status}'


@dataclasses.dataclass
class Facts:
    """The facts about an operator and its objects that an undisturbed course has shown."""

    created: list[tuple[Target, Mapping[str, Any]]] = dataclasses.field(default_factory=list)
    """The objects of the user, as they were created, in the order of their creation."""
    parents: list[Target] = dataclasses.field(default_factory=list)
    """The objects of the user that the operator handles."""
    children: list[Target] = dataclasses.field(default_factory=list)
    """The objects that the operator has created."""
    watched: list[str] = dataclasses.field(default_factory=list)
    """The resources that the operator watches."""
    owned: list[str] = dataclasses.field(default_factory=list)
    """The resources whose objects level-triggered handlers restore after edits by others."""
    updated: dict[str, list[tuple[str, ...]]] = dataclasses.field(default_factory=dict)
    """The fields whose changes the handlers handle, by the resource."""
    results: list[str] = dataclasses.field(default_factory=list)
    """The ids of the handlers whose results are stored in the status."""
    schemas: dict[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    """The schemas of custom resources."""
    is_limited: bool = False
    """Whether some handlers have a limit for their retries or their time."""
    is_coordinated: bool = False
    """Whether several operators would agree on the one that works: by peering, or by the election of a leader."""
    is_periodic: bool = False
    """Whether some handlers are called periodically."""
    imports: list[str] = dataclasses.field(default_factory=list)
    """The modules that the operator imports from the standard library and from installed packages."""


@dataclasses.dataclass
class Outcome:
    """The result of a course."""

    problem: str = ''
    """Why the course was not completed, if the operator is not necessarily the cause."""
    failure: str = ''
    """The failure of the operator that has ended the course: it has not started, or has exited, or a wait timed out."""
    scenario_error: str = ''
    """The error of the scenario."""
    has_begun: bool = False
    """Whether the disturbance has happened."""
    rests: bool = True
    """Whether the operator has come to rest after the scenario."""
    requests: list[Request] = dataclasses.field(default_factory=list)
    calls: list[Request] = dataclasses.field(default_factory=list)
    """The calls of what is outside of the cluster."""
    steps: list[str] = dataclasses.field(default_factory=list)
    """The writes of the user."""
    end: State = State((), {})
    final: State = State((), {})
    """The state after the deletion of the user's objects."""
    restarted: State | None = None
    """The state after a restart at rest."""
    restart_writes: list[str] = dataclasses.field(default_factory=list)
    quiet_writes: list[str] = dataclasses.field(default_factory=list)
    needless_writes: list[str] = dataclasses.field(default_factory=list)
    """The writes at rest that were repeated without need."""
    overlaps: list[str] = dataclasses.field(default_factory=list)
    early: list[str] = dataclasses.field(default_factory=list)
    """The children that were created although their owners were Ready already."""
    failed: list[Call] = dataclasses.field(default_factory=list)
    """The handlers that have failed for good."""
    retried: list[Call] = dataclasses.field(default_factory=list)
    """The handlers that are still being retried at the end."""
    facts: Facts = dataclasses.field(default_factory=Facts)
    log: str = ''
    """The log of all requests, if it was requested."""
    output: str = ''
    """The end of the output of the operators."""


class CourseFailed(Exception):
    """Raised when the course cannot continue because the operator has failed."""


class CourseSandbox(Sandbox):
    """The sandbox of a course: it notifies the course of each write of the user."""

    def __init__(self, course: 'Course', **options: Any) -> None:
        super().__init__(virtual_time=True, **options)
        self._course = course
        self._is_writing = False

    def settle(self) -> None:
        """Wait until the operator is at rest."""
        self._course.settle()

    def _write(self, text: str, write: Callable[[], T]) -> T:
        """Do a write of the user; retry it while the operator's webhooks are unavailable."""
        if self._is_writing:
            return write()
        self._is_writing = True
        try:
            with self._course.step(text):
                return write()
        except Refusal as error:
            if error.code < 500:
                raise
            self.advance(UNREACHABLE)
            return write()
        finally:
            self._is_writing = False

    def create(self, what: Any, name: str | None = None, *, namespace: str | None = None, **fields: Any) -> Body:
        """Create an object, and record it as one of the user's objects."""
        kind = what if isinstance(what, str) else what.get('kind')
        create = super().create
        body = self._write(
            f'create {kind} {name or _name(what)}', lambda: create(what, name, namespace=namespace, **fields)
        )
        self._course.note_created(body)
        return body

    def apply(self, source: Source) -> Bodies:
        """Apply objects, and record them as the user's objects."""
        apply = super().apply
        bodies = self._write(f'apply {_name(source)}', lambda: apply(source))
        for body in bodies:
            self._course.note_created(body)
        return bodies

    def patch(self, resource: str, name: str, patch: Any, **options: Any) -> Body:
        """Edit an object."""
        send = super().patch
        return self._write(f'patch {resource} {name}', lambda: send(resource, name, patch, **options))

    def replace(self, body: Mapping[str, Any], **options: Any) -> Body:
        """Replace an object."""
        replace = super().replace
        return self._write(f'replace {body.get("kind")} {_name(body)}', lambda: replace(body, **options))

    def delete(self, resource: str, name: str, **options: Any) -> None:
        """Delete an object."""
        delete = super().delete
        self._write(f'delete {resource} {name}', lambda: delete(resource, name, **options))

    def wait_for(self, *args: Any, timeout: float = 0, **options: Any) -> Body:
        """Wait for a state, with a longer timeout than in ordinary tests."""
        return super().wait_for(*args, timeout=max(timeout, WAIT), **options)

    def wait_gone(self, *args: Any, timeout: float = 0, **options: Any) -> None:
        """Wait for the absence of an object, with a longer timeout than in ordinary tests."""
        super().wait_gone(*args, timeout=max(timeout, WAIT), **options)

    def rest(self, *, quiet: float = 0, timeout: float = 0) -> None:
        """Wait until the operator is at rest, except for periodic writes."""
        self._course.settle()


def _name(source: Any) -> str:
    if isinstance(source, Mapping):
        return str((source.get('metadata') or {}).get('name', ''))
    return str(source).partition('\n')[0]


class Replica(NamedTuple):
    """One of the operators that run at the same time."""

    operator: InlineOperator
    recorder: CallRecorder

    def kill(self) -> None:
        """Kill it at once."""
        self.operator.kill()
        self.recorder.forget()


class Course:
    """
    One course, which can be run once.

    Args:
        subject: the operator and its user.
        plan: the disturbance.
        periodic: whether the operator is known to write periodically.
        scenario: the actions of the user, instead of the subject's scenario.
        idle: the pause at rest before the end state is taken (in seconds), to find the fields that depend on time.
        log: whether to return the log of all requests.
    """

    def __init__(
        self,
        subject: Subject,
        plan: Plan,
        *,
        periodic: bool = False,
        scenario: Scenario | None = None,
        idle: float = 0,
        log: bool = False,
    ) -> None:
        self._subject = subject
        self._plan = plan
        self._scenario = scenario or subject.choose_scenario(plan)
        self._patience = PERIODIC_PATIENCE if periodic else PATIENCE
        self._idle = idle
        self._has_log = log
        self.sandbox: Sandbox = CourseSandbox(
            self, seed=plan.seed, kubeconfig=subject.folder / f'kubeconfig-{id(plan)}', **subject.options
        )
        self._replicas: list[Replica | None] = [None] * plan.replicas
        self._outputs: list[InlineOperator] = []
        self._modules = UserModules()
        self._record = CallRecord()
        self._readiness = ReadinessRecord()
        self._calls = OutsideCalls(subject.outside, self._note_call, lambda: not self._is_dead(self._find_owner()))
        self._disturbance = Disturbance(self, plan)
        self._outcome = Outcome()
        self._phase = 'start'
        self._marks: list[tuple[str, int]] = []
        self._initial: Mapping[Any, Any] = {}
        self._created: dict[Target, Mapping[str, Any]] = {}
        self._registry: OperatorRegistry | None = None

    # Called by the disturbance.

    def kill_operator(self) -> None:
        """Kill the operator that works at once."""
        if (replica := self._take_replica()) is not None:
            replica.kill()

    def stop_operator(self) -> None:
        """Stop the operator that works gracefully."""
        if (replica := self._take_replica()) is not None:
            replica.operator.stop(60)
            replica.recorder.forget()

    def hang_operator(self, seconds: float) -> None:
        """Suspend the operator that works for a time."""
        if (replica := self._find_working()) is not None:
            replica.recorder.forget()  # its running handlers may continue later, but it must not start others
            replica.operator.freeze(seconds)

    def start_operator(self) -> None:
        """Start the operators that do not run."""
        for number, replica in enumerate(self._replicas):
            if replica is None:
                self._replicas[number] = self._start_replica(number)

    def _start_replica(self, number: int) -> 'Replica':
        assert self.sandbox.world is not None
        recorder = self._record.add()
        operator = InlineOperator(self.sandbox, self.sandbox.world, instruments=[recorder])
        self._outputs.append(operator)
        # Peers with equal priorities would all pause.
        priority = [] if len(self._replicas) == 1 else ['--priority', str(100 - number)]
        with self._modules.loading(operator.registry):
            operator.start([*self._subject.arguments, *priority], env={}, cwd=None, loaded=self._create_kinds)
        self._registry = operator.registry
        return Replica(operator, recorder)

    def _create_kinds(self, registry: OperatorRegistry) -> None:
        """Create the kinds that the operator declares as classes, when it starts for the first time."""
        if registry.kinds and self._registry is None:
            from kopf._kits.definitions.crd_documents import make_crds  # most operators declare no kinds

            for body in make_crds(registry.kinds, warn=lambda text: None):  # ``kopf crd`` shows the warnings
                self.sandbox.apply(body)

    def _find_working(self) -> 'Replica | None':
        """Return the operator with the latest call of a handler; usually, the other ones have called none."""
        running = [replica for replica in self._replicas if replica is not None]
        return max(running, key=lambda replica: replica.recorder.last_at, default=None)

    def _take_replica(self) -> 'Replica | None':
        replica = self._find_working()
        self._replicas = [None if other is replica else other for other in self._replicas]
        return replica

    def find(self, target: Target) -> Mapping[str, Any] | None:
        """Return the object, if it exists."""
        items = [item for item in self._list_objects() if item.resource == target.resource]
        if target.name:
            wanted = (target.namespace, target.name)
            return next((item.body for item in items if (item.namespace, item.name) == wanted), None)
        generated = [item for item in items if item.namespace == target.namespace and not self._is_users(item)]
        return generated[target.number - 1].body if 0 < target.number <= len(generated) else None

    def _is_users(self, item: StoredObject) -> bool:
        return Target(resource=item.resource, namespace=item.namespace, name=item.name) in self._created

    # The actions of the user.

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Record a write of the user, and let the disturbance happen around it if it is due."""
        if self._phase in ('scenario', 'edits', 'deletion'):
            self._outcome.steps.append(text)
            number = len(self._outcome.steps)
            self._disturbance.before_step(number)
            try:
                yield
            finally:
                self._disturbance.after_step(number)
        else:
            yield

    def note_created(self, body: Mapping[str, Any]) -> None:
        """Record an object of the user."""
        kind = self._catalog.of_object(body['apiVersion'], body['kind'])
        meta = body['metadata']
        target = Target(resource=self._name_resource(kind), namespace=meta.get('namespace', ''), name=meta['name'])
        if self._phase == 'scenario' and kind.name != 'CustomResourceDefinition':
            self._created.setdefault(target, clean(body))

    def settle(self) -> bool:
        """Wait until the operator writes nothing and retries no handler; return whether it comes to rest."""
        started = self._now
        is_at_rest = False
        written = before = self._count_writes()
        stride = SHORT_STRIDE
        while not is_at_rest and self._now - started < self._patience:
            if (count := self._count_writes()) > written + MAX_WRITES:
                return False
            # Advance in small steps: an operator in a loop without delays can make thousands of requests in a second.
            stride, before = min(stride * 2, STRIDE) if count < before + FEW_WRITES else SHORT_STRIDE, count
            last = max([started, self._disturbance.ends_at, self._last_write_at])
            self.sandbox.advance(min(max(last + SILENCE - self._now, SHORT_STRIDE), stride))
            self._check_operator()
            last = max([started, self._disturbance.ends_at, self._last_write_at])
            is_at_rest = self._now - last >= SILENCE and not self._list_calls('retried')
        return is_at_rest

    # The course.

    def run(self) -> Outcome:
        """Run the course to its end."""
        try:
            self.sandbox.__enter__()
            self._initial = self._list_versions()
            with unittest.mock.patch.object(os, '_exit', self._end_process), self._calls.recorded():
                self._go()
        except ScenarioFailed as error:
            self._outcome.scenario_error = str(error)
        except CourseFailed as error:
            self._outcome.failure = str(error)
        except VirtualTimeError as error:
            self._outcome.problem = str(error)
        except (ManifestError, Refusal) as error:
            self._outcome.problem = f'The sandbox refuses an object: {error}'
        self._outcome.has_begun = self._disturbance.has_begun
        self._outcome.overlaps = self._record.overlaps
        self._outcome.early = self._readiness.early
        self._outcome.requests = list(self._iter_requests())
        self._outcome.output = '\n'.join(operator.output for operator in self._outputs)[-3000:]
        if self._has_log:
            self._outcome.log = self._write_log()
        return self._outcome

    def _find_owner(self) -> object:
        """Return the output of the operator that is running at this moment."""
        assert self.sandbox.world is not None
        strand = self.sandbox.world.turns.current
        return output_var.get() if strand is None else strand.owner

    def _is_dead(self, owner: object) -> bool:
        return any(other.is_owner(owner) and other.returncode is not None for other in self._outputs)

    def _note_call(self, name: str) -> None:
        """Record a call of what is outside of the cluster, and let the disturbance happen if it is due."""
        owner = self._find_owner()
        if any(operator.is_owner(owner) for operator in self._outputs):
            self._outcome.calls.append(
                Request(verb=CALL, resource=name, subresource='', method=CALL, path='', status=0, phase=self._phase)
            )
            if self._disturbance.is_due_at_call(name):
                self._end_running(owner)
                raise Killed

    def _end_running(self, owner: object) -> None:
        """Kill the operator that is running at this moment."""
        world = self.sandbox.world
        assert world is not None
        for replica in self._replicas:
            if replica is not None and replica.operator.is_owner(owner):
                self._replicas[self._replicas.index(replica)] = None
                if world.turns.current is None:
                    replica.kill()
                else:
                    # Not from within its own thread, which has to end first.
                    world.loop.call_soon(replica.kill, context=contextvars.Context())

    def _end_process(self, code: int) -> NoReturn:
        """Called instead of `os._exit`, which would end this process, not only that operator."""
        owner = self._find_owner()
        world = self.sandbox.world
        assert world is not None
        for replica in self._replicas:
            if replica is not None and replica.operator.is_owner(owner):
                world.loop.call_soon(replica.kill, context=contextvars.Context())
        raise SystemExit(code)

    def _go(self) -> None:
        self._enter_phase('start')
        self._disturbance.arm()
        # Disturbances delete children, and the operator may restore them while their owner is Ready.
        if not self._plan.do:
            self.sandbox.faults.call(
                lambda: self._readiness.note(self._list_objects()), times=None, late=True, condition=_matters
            )
        self.start_operator()
        self._await_start()
        self._enter_phase('scenario')
        self._play()
        self._outcome.rests = self.settle()
        self._enter_phase('edits')
        for edit in self._plan.edits if not self._plan.fresh else ():
            if self._plan.do not in EDITING or edit is not self._plan.edits[0]:
                self.sandbox.patch(edit.target.resource, edit.target.name, edit.patch, namespace=edit.target.namespace)
                self._outcome.rests = self.settle()
        if self._disturbance.happens_at_rest:
            self._disturbance.happen_at_rest()
            self._outcome.rests = self.settle()
        # Do not idle with an operator that writes all the time: its thousands of requests would use up the budget.
        if self._outcome.rests:
            self.sandbox.advance(self._idle)
        self._outcome.end = self._get_state()
        self._outcome.failed = self._list_calls('failed')
        self._outcome.retried = self._list_calls('retried')
        self._collect_facts()
        self._enter_phase('quiet')
        self._record.watch_rest()
        self._outcome.quiet_writes = self._watch_rest()
        self._record.end_rest()
        if self._plan.restart:
            self._restart()
        self._delete()

    def _watch_rest(self) -> list[str]:
        """Let ten minutes pass; return the operator's writes during this time."""
        before, ends_at = len(self._seen), self._now + QUIET
        written = self._count_writes()
        stride = SHORT_STRIDE
        while self._now < ends_at and self._count_writes() <= written + MAX_WRITES:
            self.sandbox.advance(min(stride, ends_at - self._now))
            stride = min(stride * 2, STRIDE)
        writes = [request for request in self._seen[before:] if _matters(request)]
        self._outcome.needless_writes = find_repeated(writes)
        return [_tell(request) for request in writes]

    def _count_writes(self) -> int:
        return sum(map(_matters, self._seen))

    def _play(self) -> None:
        """Run the scenario."""
        try:
            self._scenario(self.sandbox)
        except WaitTimeout as error:
            # The timeout is no failure if another client has deleted the object that the scenario waits for.
            if not (self._plan.do == 'delete' and self._disturbance.has_begun):
                raise CourseFailed(f'The scenario waits in vain: {str(error).partition(";")[0]}.') from None
        except Refusal as error:
            # The refusal is no failure if another client has deleted the object that the scenario writes to.
            if not (self._plan.do in ('delete', 'recreate') and self._disturbance.has_begun):
                raise ScenarioFailed(f'Refusal: {error}') from error
        except (CourseFailed, VirtualTimeError, ManifestError):
            raise
        except Exception as error:
            raise ScenarioFailed(f'{type(error).__name__}: {error}') from error

    def _await_start(self) -> None:
        started = self._now
        while self._now - started < START:
            self.sandbox.advance(0.5)
            self._check_operator()
            if any(request.verb == 'watch' and request.resource not in OWN_RESOURCES for request in self._seen):
                return

    def _restart(self) -> None:
        self._enter_phase('restart')
        before = self._list_versions()
        self.stop_operator()
        self.start_operator()
        self.settle()
        after = self._list_versions()
        names = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        # Ignore writes to handled objects: the framework stores the progress of resuming handlers in them.
        handled = {target.resource for target in self._outcome.facts.parents}
        self._outcome.restart_writes = sorted(f'{resource} {key}' for resource, key in names if resource not in handled)
        self._outcome.restarted = self._get_state()

    def _delete(self) -> None:
        """Delete the objects of the user, beginning with those that the operator handles."""
        self._enter_phase('deletion')
        parents = [target for target in self._created if target in self._outcome.facts.parents]
        others = [target for target in self._created if target not in self._outcome.facts.parents]
        for targets in (parents, others):
            for target in targets:
                with contextlib.suppress(Refusal):
                    self.sandbox.delete(target.resource, target.name, namespace=target.namespace or None)
            if targets:
                self.settle()
        self._outcome.final = self._get_state()

    # Observation.

    @property
    def _now(self) -> float:
        assert self.sandbox.world is not None
        return self.sandbox.world.clock.now

    @property
    def _api(self) -> Any:
        return self.sandbox._runner.instance.server.api

    @property
    def _catalog(self) -> Any:
        return self._api.catalog

    @property
    def _seen(self) -> Sequence[SeenRequest]:
        return self.sandbox.requests

    @property
    def _last_write_at(self) -> float:
        return max((request.time - EPOCH for request in self._seen if _matters(request)), default=0.0)

    def _check_operator(self) -> None:
        """Raise an error if an operator has ended by itself."""
        for number, replica in enumerate(self._replicas):
            if replica is None or replica.operator.returncode is None:
                continue
            if self._plan.do == 'hang':  # a replica that has missed its deadlines may exit; Kubernetes would restart it
                replica.recorder.forget()
                self._replicas[number] = self._start_replica(number)
                continue
            code, lines = replica.operator.returncode, replica.operator.output.strip().splitlines()[-1:]
            raise CourseFailed(f'The operator has exited with the code {code}: {"".join(lines)}')

    def _enter_phase(self, name: str) -> None:
        self._phase = name
        self._marks.append((name, len(self._seen)))

    def _iter_requests(self) -> Iterator[Request]:
        marks = [*self._marks, ('', sys.maxsize)]
        position = 0
        for number, seen in enumerate(self._seen):
            while number >= marks[position + 1][1]:
                position += 1
            if seen.resource:
                yield Request(
                    verb=seen.verb,
                    resource=seen.resource,
                    subresource=seen.subresource,
                    method=seen.method,
                    path=seen.path,
                    status=seen.status,
                    phase=marks[position][0],
                    is_apply='apply-patch' in seen.content_type,
                )

    def _write_log(self) -> str:
        return ''.join(
            f'{request.time - EPOCH:.6f} {request.verb} {request.path} {dict(request.query)} '
            f'{request.body.decode(errors="replace")} {request.status}\n'
            for request in self._seen
        )

    def _iter_kinds(self) -> Iterator[Kind]:
        """Yield one kind for each table of stored objects."""
        tables = set()
        for kind in self._catalog:
            if kind.table is not None and kind.table.name not in tables and kind.plural not in HIDDEN:
                tables.add(kind.table.name)
                yield kind

    def _name_resource(self, kind: Kind) -> str:
        same = {other.table.name for other in self._catalog if other.table is not None and other.plural == kind.plural}
        return kind.plural if len(same) < 2 else f'{kind.plural}.{kind.group}'

    def _list_versions(self) -> dict[tuple[str, str], tuple[str, int]]:
        return {
            (self._name_resource(kind), record.key): (record.uid, record.version)
            for kind in self._iter_kinds()
            if len(kind.store)
            for record in kind.store.records()
        }

    def _list_objects(self) -> list[StoredObject]:
        """Return all objects that were created or changed since the start."""
        found = []
        is_simulated = bool(self._subject.options.get('pods'))
        for kind in self._iter_kinds():
            if len(kind.store):
                resource = self._name_resource(kind)
                for record in kind.store.records():
                    if self._initial.get((resource, record.key)) != (record.uid, record.version):
                        body = {'apiVersion': kind.storage_api_version, 'kind': kind.name, **record.body()}
                        is_created = is_simulated and workloads.is_created(kind.store, body, self._api.storage)
                        found.append(StoredObject(resource, record.namespace, record.name, body, is_created))
        return [item for item in found if item.resource != 'customresourcedefinitions']

    def _get_state(self) -> State:
        outside = {name: as_data(observe()) for name, observe in self._subject.observers.items()}
        return State(self._list_objects(), outside)

    def _list_calls(self, outcome: str) -> list[Call]:
        uids = frozenset(item.body['metadata']['uid'] for item in self._list_objects())
        return self._record.list_unsuccessful(uids, outcome)

    def _collect_facts(self) -> None:
        facts = self._outcome.facts
        facts.created = list(self._created.items())
        facts.watched = sorted({request.resource for request in self._seen if request.verb == 'watch'} - OWN_RESOURCES)
        facts.imports = self._modules.foreign
        facts.is_coordinated = any(request.resource in COORDINATING and is_write(request) for request in self._seen)
        if self._registry is not None:
            describe(facts, self._registry, {self._name_resource(kind): kind for kind in self._iter_kinds()})
        for item in self._outcome.end.objects:
            # What controllers of the cluster create matters to the operator if it watches that.
            if not self._is_users(item) and (not item.is_bookkeeping or item.resource in facts.watched):
                facts.children.append(Target(resource=item.resource, namespace=item.namespace, name=item.name))


def find_repeated(writes: Sequence[SeenRequest]) -> list[str]:
    """
    Return the writes that are repeated, and cannot change anything after the first time.

    Server-side applies are excluded, because they are meant to be repeated. The patches of the framework are excluded,
    because they contain the results of handlers, which can be equal.
    """
    counts = Counter(
        (request.method, request.path, request.body)
        for request in writes
        if request.method in ('PUT', 'PATCH')
        and 'apply-patch' not in request.content_type
        and request.status < 300
        and not request.user_agent.startswith('kopf/')
    )
    return [f'{method} {path}' for (method, path, _), count in counts.items() if count >= REPEATED]


class ScenarioFailed(CourseFailed):
    """Raised when the scenario itself has failed."""


def describe(facts: Facts, registry: OperatorRegistry, kinds: Mapping[str, Kind]) -> None:
    """Add the facts that follow from the handlers in the registry."""
    resources = {name: kind.as_resource() for name, kind in kinds.items()}
    handlers = list(registry.iter_resource_handlers())
    facts.results = sorted({str(handler.id) for handler in handlers})
    facts.is_limited = any(
        handler.retries is not None or handler.timeout is not None or handler.errors is not None for handler in handlers
    )
    facts.is_periodic = any(handler.is_periodic for handler in registry.iter_handlers())
    for name, resource in resources.items():
        selecting = [item for item in handlers if item.selector is not None and item.selector.check(resource)]
        if not all(item.concurrent for item in selecting):  # others only answer questions about the objects
            facts.parents += [target for target, _ in facts.created if target.resource == name]
        if fields := [item.field or () for item in selecting if item.handles_updates]:
            facts.updated[name] = [tuple(map(str, field)) for field in fields]
        elif _is_polling_only(selecting):
            facts.updated[name] = [()]
        if any(source.fn is None and source.selector.check(resource) for item in handlers for source in item.sources):
            facts.owned.append(name)
        if kinds[name].custom:
            facts.schemas[name] = kinds[name].schema or {}
    if not facts.parents:
        facts.parents = [target for target, _ in facts.created]


def _is_polling_only(handlers: Sequence[ResourceHandler]) -> bool:
    """Check whether only handlers that act again and again, such as daemons and timers, react to the spec."""
    changing = [item for item in handlers if isinstance(item, ChangingHandler)]
    return any(item.is_periodic for item in handlers) and all(item.reason is Reason.DELETE for item in changing)


def as_data(value: Any) -> Any:
    """Return a copy of the result of a user's function, with plain values only."""
    if isinstance(value, Mapping):
        return {str(key): as_data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_data(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((as_data(item) for item in value), key=repr)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return as_data(dataclasses.asdict(value))
    return as_data(vars(value)) if hasattr(value, '__dict__') else repr(value)


def _matters(request: SeenRequest) -> bool:
    return is_write(request) and request.resource not in HIDDEN and bool(request.resource)


def is_write(request: SeenRequest) -> bool:
    """Check whether the request can change something."""
    return request.method not in ('GET', 'HEAD')


def _tell(request: SeenRequest) -> str:
    return f'{request.method} {request.path}: {request.status}'
