"""
Courses: one run of an operator, from its start, through the writes of a user, to the deletion of all objects.

A course in virtual time depends only on its plan: the same plan gives the same requests at the same times.
"""

import contextlib
import dataclasses
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kopf._cogs.structs.model_adapters import ModelError
from kopf._core.intents.causes import Reason
from kopf._core.intents.handlers import ChangingHandler, ResourceHandler
from kopf._core.intents.registries import OperatorRegistry
from kopf._kits.checking.call_records import Call, CallRecord
from kopf._kits.checking.clusters import ClusterError
from kopf._kits.checking.disturbances import ACTIONS, EDITED_BY_USER, EDITING, Disturbance
from kopf._kits.checking.end_states import State, StoredObject
from kopf._kits.checking.outcomes import HIDDEN, MAX_WRITES, Facts, Outcome, Request
from kopf._kits.checking.plans import CALL, Plan, Target
from kopf._kits.checking.readiness_records import ReadinessRecord
from kopf._kits.checking.subjects import Scenario, Subject
from kopf._kits.checking.testbeds import CannotContinue, KindFacts, RunningOperator, Testbed, make_real_pace
from kopf._kits.checking.user_writes import ObjectEdit, clean, merge
from kopf._kits.checking.virtual_testbeds import VirtualTestbed
from kopf._kits.testing.operator_processes import OWN_PLURALS
from kopf._kits.testing.serving.faults import SeenRequest
from kopf._kits.testing.serving.waits import WaitTimeout
from kopf._kits.testing.virtual.virtual_clocks import VirtualTimeError
from kopf._kits.testing.wire.manifests import ManifestError
from kopf._kits.testing.wire.statuses import Refusal

FEW_WRITES = 20
"""The number of writes in one stride from which on the next strides are shorter."""

REPEATED = 3
"""The number of equal writes at rest from which on they are reported."""

COORDINATING = frozenset({'leases', 'clusterkopfpeerings', 'kopfpeerings'})
"""The resources through which several operators elect the one that works."""

REGISTRATIONS = frozenset(
    {'customresourcedefinitions', 'validatingwebhookconfigurations', 'mutatingwebhookconfigurations'}
)
"""The resources with the address and the CA of the webhook server, which can differ after each start."""


class CourseFailed(Exception):
    """Raised when the course cannot continue because the operator has failed."""


def make_testbed(subject: Subject, plan: Plan, host: 'Course') -> Testbed:
    """Return the testbed on which the subject is checked."""
    pace = make_real_pace(subject.rest, plan.seconds)
    # Most checks are in virtual time.
    if subject.cluster is not None:
        from kopf._kits.checking import cluster_testbeds

        return cluster_testbeds.ClusterTestbed(subject, subject.cluster, host, plan, pace)
    if subject.is_real:
        from kopf._kits.checking import real_testbeds

        return real_testbeds.RealSandboxTestbed(subject, host, plan, pace)
    return VirtualTestbed(subject, host, seed=plan.seed, replicas=plan.replicas)


class Course:
    """
    One course, which can be run once.

    Args:
        subject: the operator and its user.
        plan: the disturbance.
        periodic: whether an earlier course has shown that the operator writes periodically.
        scenario: the actions of the user, instead of the subject's scenario.
        number: the number of the undisturbed course. Courses with higher numbers idle longer before the end state is
            taken, so that fields that depend on time differ.
        log: whether to return the log of all requests.
    """

    def __init__(
        self,
        subject: Subject,
        plan: Plan,
        *,
        periodic: bool = False,
        scenario: Scenario | None = None,
        number: int = 0,
        log: bool = False,
    ) -> None:
        self._subject = subject
        self._plan = plan
        self._scenario = scenario or subject.choose_scenario(plan)
        self._is_periodic = periodic
        self._number = number
        self._has_log = log
        self.testbed = make_testbed(subject, plan, self)
        self._replicas: list[RunningOperator | None] = [None] * plan.replicas
        self._changing = threading.RLock()
        """Held while an operator is started or released: in real time, several threads do this."""
        self._operators: list[RunningOperator] = []
        self._record = CallRecord(self.testbed.pace.moment)
        self._readiness = ReadinessRecord()
        self._disturbance = Disturbance(self, plan)
        self._outcome = Outcome(quiet=self.testbed.pace.quiet)
        self._phase = 'start'
        self._marks: list[tuple[str, int]] = []
        self._created: dict[Target, Mapping[str, Any]] = {}

    # The methods for the disturbance.

    def kill_operator(self) -> None:
        """Kill the working operator immediately."""
        if (operator := self._take_operator()) is not None:
            operator.kill()

    def stop_operator(self) -> None:
        """Stop the working operator gracefully."""
        if (operator := self._take_operator()) is not None:
            operator.stop()

    def hang_operator(self, seconds: float) -> None:
        """Suspend the working operator for a time (in seconds)."""
        if (operator := self._find_working()) is not None:
            operator.hang(seconds)

    def start_operator(self) -> None:
        """Start the operators that do not run now."""
        with self._changing:
            for number, operator in enumerate(self._replicas):
                if operator is None:
                    self._replicas[number] = self._start_replica(number)

    def _start_replica(self, number: int) -> RunningOperator:
        operator = self.testbed.start_operator(number, self._record.add())
        self._operators.append(operator)
        return operator

    def _find_working(self) -> RunningOperator | None:
        """Return the operator that has called a handler last; usually, the others have called none."""
        self.testbed.check()
        running = [operator for operator in self._replicas if operator is not None]
        return max(running, key=lambda operator: operator.recorder.last_at, default=None)

    def _take_operator(self) -> RunningOperator | None:
        operator = self._find_working()
        if operator is not None:
            self.release_operator(operator)
        return operator

    def release_operator(self, operator: RunningOperator) -> None:
        """Called before the operator is killed, so that another one can be started in its place."""
        with self._changing:
            self._replicas = [None if other is operator else other for other in self._replicas]

    def find(self, target: Target) -> Mapping[str, Any] | None:
        """Return the object, if it exists."""
        items = [item for item in self.testbed.list_objects() if item.resource == target.resource]
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
        """Record a write of the user, and begin the disturbance before or after it if the plan says so."""
        if self._phase in ('scenario', 'edits', 'deletion'):
            self._outcome.steps.append(text)
            number = len(self._outcome.steps)
            self._disturbance.before_step(number)
            try:
                yield
            finally:
                # The disturbance can have made its write during this one: a webhook delays it, for example.
                self._outcome.user_goes_on |= self._phase == 'scenario' and self._disturbance.has_written
                self._disturbance.after_step(number)
        else:
            yield

    def note_created(self, body: Mapping[str, Any], given: Mapping[str, Any] | None = None) -> None:
        """Record an object that the user has created; or merge what the user has given into the recorded one."""
        if self._phase == 'scenario' and body['kind'] != 'CustomResourceDefinition':
            target = self._get_target(body)
            is_known = given is not None and target in self._created
            self._created[target] = merge(self._created[target], clean(given)) if is_known and given else clean(body)

    def note_edited(self, body: Mapping[str, Any], edit: ObjectEdit | None) -> None:
        """Record an edit of an object; None if creating the object again cannot repeat the edit."""
        if self._phase == 'scenario':
            target = self._get_target(body)
            if edit is None or target not in self._created:
                self._outcome.facts.tended.add(target.resource)
            else:
                self._created[target] = edit(self._created[target])

    def _get_target(self, body: Mapping[str, Any]) -> Target:
        meta, resource = body['metadata'], self.testbed.name_resource(body['apiVersion'], body['kind'])
        return Target(resource=resource, namespace=meta.get('namespace', ''), name=meta['name'])

    def settle(self) -> bool:
        """Wait until the operator is at rest; return whether that happens in time."""
        pace, started = self.testbed.pace, self.testbed.now
        patience = pace.periodic_patience if self._is_periodic else pace.patience
        is_at_rest = False
        written = before = self._count_writes()
        stride = pace.short_stride
        last = max(started, self._disturbance.ends_at, self._last_write_at)
        while not is_at_rest and self.testbed.now - max(started, self._disturbance.ends_at) < patience:
            if (count := self._count_writes()) > written + MAX_WRITES:
                return False
            # Advance in small steps: an operator that writes in a loop without delays can make thousands of requests in
            # a second.
            stride, before = min(stride * 2, pace.stride) if count < before + FEW_WRITES else pace.short_stride, count
            self.testbed.advance(min(max(last + pace.silence - self.testbed.now, pace.short_stride), stride))
            self._check_operator()
            last = max(started, self._disturbance.ends_at, self._last_write_at)
            is_at_rest = self.testbed.now - last >= pace.silence and self._is_idle()
        return is_at_rest

    def _is_idle(self) -> bool:
        """Check whether no handler is retried, and the testbed has nothing left to do."""
        return not self._list_calls('retried') and self.testbed.is_stable()

    # The course.

    def run(self) -> Outcome:
        """Run the course to its end."""
        try:
            with contextlib.closing(self.testbed):
                self.testbed.open()
                self._go()
        except ScenarioFailed as error:
            self._outcome.scenario_error = str(error)
        except CourseFailed as error:
            self._outcome.failure = str(error)
        except (VirtualTimeError, CannotContinue, ClusterError) as error:
            self._outcome.problem = str(error)
            self._outcome.exceeds_virtual_time = isinstance(error, VirtualTimeError)
        except ModelError as error:
            self._outcome.problem = str(error)
        except (ManifestError, Refusal) as error:
            self._outcome.problem = f'The API refuses an object: {error}'
        self._outcome.has_begun = self._disturbance.has_begun
        self._outcome.overlaps = self._record.overlaps
        self._outcome.early = self._readiness.early
        self._outcome.requests = list(self._iter_requests())
        self._outcome.output = '\n'.join(operator.output for operator in self._operators)[-3000:]
        if self._has_log:
            self._outcome.log = self._write_log()
        return self._outcome

    def note_call(self, name: str) -> bool:
        """Record a call of an external service; return whether the caller must be killed now."""
        self._outcome.calls.append(
            Request(verb=CALL, resource=name, subresource='', method=CALL, path='', status=0, phase=self._phase)
        )
        return self._disturbance.is_due_at_call(name)

    def _go(self) -> None:
        self._enter_phase('start')
        self._disturbance.arm()
        # Disturbances delete children, and the operator may restore them while their owner is Ready.
        if not self._plan.do and self.testbed.has_cheap_lists:
            self.testbed.faults.call(
                lambda: self._readiness.note(self.testbed.list_objects()), times=None, late=True, condition=_matters
            )
        self.start_operator()
        self._await_start()
        self._enter_phase('scenario')
        self._play()
        self._outcome.rests = self.settle()
        self._enter_phase('edits')
        for edit in self._plan.edits if not self._plan.fresh else ():
            if self._plan.do not in EDITING or edit is not self._plan.edits[0]:
                self.testbed.user.patch(
                    edit.target.resource, edit.target.name, edit.patch, namespace=edit.target.namespace
                )
                self._outcome.rests = self.settle()
        if self._disturbance.happens_at_rest:
            self._disturbance.happen_at_rest()
            self._outcome.rests = self.settle()
        # Do not idle with an operator that is in a loop: its thousands of requests would use up the budget.
        if self._outcome.rests or self._is_periodic:
            self.testbed.advance(self._number * self.testbed.pace.idle)
        self._outcome.end = self._get_state()
        self._outcome.failed = self._list_calls('failed')
        self._outcome.retried = self._list_calls('retried')
        if not self._plan.do and not self._plan.edits:
            self._outcome.logged = find_remarkable('\n'.join(operator.output for operator in self._operators))
        self._collect_facts()
        self._disturbance.suspend()
        self._enter_phase('quiet')
        self._record.watch_rest()
        self._outcome.quiet_writes = self._watch_rest()
        self._record.end_rest()
        if self._plan.restart:
            self._restart()
        self._delete()

    def _watch_rest(self) -> list[str]:
        """Let some time pass at rest; return the operator's writes during this time."""
        pace, before = self.testbed.pace, len(self._seen)
        ends_at = self.testbed.now + pace.quiet
        written = self._count_writes()
        stride = pace.short_stride
        while self.testbed.now < ends_at and self._count_writes() <= written + MAX_WRITES:
            self.testbed.advance(min(stride, max(0.0, ends_at - self.testbed.now)))
            stride = min(stride * 2, pace.stride)
        self.testbed.check()
        writes = [request for request in self._seen[before:] if _matters(request)]
        self._outcome.needless_writes = find_repeated(writes)
        return [_tell(request) for request in writes]

    def _count_writes(self) -> int:
        return sum(map(_matters, self._seen))

    def _play(self) -> None:
        """Run the scenario."""
        try:
            self._scenario(self.testbed.user)
        except (CourseFailed, VirtualTimeError, CannotContinue, ClusterError, ManifestError):
            raise
        except Exception as error:
            if self._plan.do in EDITED_BY_USER and self._disturbance.has_written:
                # The edit can have replaced what the scenario waits for, asserts, or has read before.
                self._outcome.is_cut_short = True
            elif isinstance(error, WaitTimeout):
                # The timeout is no failure if the disturbance has deleted the object that the scenario waits for.
                if not (self._plan.do == 'delete' and self._disturbance.has_begun):
                    raise CourseFailed(f'The scenario waits in vain: {str(error).partition(";")[0]}.') from None
            elif isinstance(error, Refusal):
                # The refusal is no failure if the disturbance has deleted the object that the scenario writes to.
                if not (self._plan.do in ('delete', 'recreate') and self._disturbance.has_begun):
                    raise ScenarioFailed(f'Refusal: {error}') from error
            else:
                raise ScenarioFailed(f'{type(error).__name__}: {error}') from error

    def _await_start(self) -> None:
        started = self.testbed.now
        while self.testbed.now - started < self.testbed.pace.start:
            self.testbed.advance(min(0.5, self.testbed.pace.stride))
            self._check_operator()
            if any(request.verb == 'watch' and request.resource not in OWN_PLURALS for request in self._seen):
                # Otherwise, the first objects of the scenario would bypass the webhooks.
                if not any(operator.is_starting and operator.returncode is None for operator in self._operators):
                    return

    def _restart(self) -> None:
        self._enter_phase('restart')
        before = self.testbed.list_versions()
        self.stop_operator()
        self.start_operator()
        self.settle()
        after = self.testbed.list_versions()
        names = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        # Ignore writes to handled objects: the framework stores the progress of resuming handlers in them.
        handled = {target.resource for target in self._outcome.facts.parents}
        ignored = {*handled, *REGISTRATIONS}
        self._outcome.restart_writes = sorted(f'{resource} {key}' for resource, key in names if resource not in ignored)
        self._outcome.restarted = self._get_state()

    def _delete(self) -> None:
        """Delete the objects of the user, beginning with those that the operator handles."""
        self._disturbance.enter_deletion()
        self._enter_phase('deletion')
        parents = [target for target in self._created if target in self._outcome.facts.parents]
        others = [target for target in self._created if target not in self._outcome.facts.parents]
        for targets in (parents, others):
            for target in targets:
                with contextlib.suppress(Refusal):
                    self.testbed.user.delete(target.resource, target.name, namespace=target.namespace or None)
            if targets:
                self.settle()
        self._outcome.final = self._get_state()

    # The observation of the operators.

    @property
    def _seen(self) -> Sequence[SeenRequest]:
        return self.testbed.requests

    @property
    def _last_write_at(self) -> float:
        # The requests are in the order of their arrival, and there can be thousands.
        return next((self.testbed.get_time(request) for request in reversed(self._seen) if _matters(request)), 0.0)

    def _check_operator(self) -> None:
        """Raise an error if an operator has ended by itself."""
        self.testbed.check()
        ended = [operator for operator in self._replicas if operator is not None and operator.returncode is not None]
        if not ended:
            return
        self.testbed.check()  # skip operators that the disturbance has killed meanwhile
        for operator in [each for each in ended if each in self._replicas]:
            if self._plan.do == 'hang':  # it may exit after missed deadlines; Kubernetes would restart it
                operator.recorder.forget()
                self.release_operator(operator)
                self.start_operator()
                continue
            code, lines = operator.returncode, operator.output.strip().splitlines()[-1:]
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
        lines = [
            f'{self.testbed.get_time(request):.6f} {request.verb} {request.path} {dict(request.query)} '
            f'{request.body.decode(errors="replace")} {request.status}\n'
            for request in self._seen
        ]
        if self._disturbance.began is not None:
            position, at = self._disturbance.began
            edits = ''.join(f': {edit.target} {edit}' for edit in self._plan.edits[:1] if self._plan.do in EDITING)
            lines.insert(position, f'# {at:.6f} {ACTIONS[self._plan.do]}{edits}\n')
        return ''.join(lines)

    def _get_state(self) -> State:
        outside = {name: as_data(observe()) for name, observe in self._subject.observers.items()}
        return State(self.testbed.list_objects(), outside)

    def _list_calls(self, outcome: str) -> list[Call]:
        uids = frozenset(item.body['metadata']['uid'] for item in self.testbed.list_objects())
        return self._record.list_unsuccessful(uids, outcome)

    def _collect_facts(self) -> None:
        facts = self._outcome.facts
        facts.created = list(self._created.items())
        facts.watched = sorted({request.resource for request in self._seen if request.verb == 'watch'} - OWN_PLURALS)
        facts.imports = list(self.testbed.list_imports())
        facts.untried = list(self.testbed.untried)
        facts.is_coordinated = any(request.resource in COORDINATING and is_write(request) for request in self._seen)
        if self.testbed.registry is not None:
            describe(facts, self.testbed.registry, self.testbed.list_kinds())
        for item in self._outcome.end.objects:
            # Ignore the bookkeeping objects of the cluster's controllers, except if the operator watches them.
            if not self._is_users(item) and (not item.is_bookkeeping or item.resource in facts.watched):
                facts.children.append(Target(resource=item.resource, namespace=item.namespace, name=item.name))


_REMARKABLE = re.compile(r'\[[^]]+\] kopf\.\S+ +\[(?:(ERROR)|WARNING) *\] (?:\[\S+\] )?(.+)')
_CODE = re.compile(r' \[[a-z-]+\]$')


def find_remarkable(output: str) -> list[str]:
    """
    Return the errors in the log of an operator, and its warnings with codes: each message once.

    Warnings without a code can be those of handlers by the logger of the object. Temporary errors are the way in which
    handlers wait.
    """
    found = [match for line in output.splitlines() if (match := _REMARKABLE.match(line)) is not None]
    texts = [match[2] for match in found if match[1] or _CODE.search(match[2])]
    return list(dict.fromkeys(text for text in texts if ' failed temporarily: ' not in text))


def find_repeated(writes: Sequence[SeenRequest]) -> list[str]:
    """
    Return the repeated writes of equal contents: all but the first of them can change nothing.

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


def describe(facts: Facts, registry: OperatorRegistry, kinds: Mapping[str, KindFacts]) -> None:
    """Derive facts about the operator from the handlers in its registry."""
    handlers = list(registry.iter_resource_handlers())
    facts.results = sorted({str(handler.id) for handler in handlers})
    facts.is_limited = any(
        handler.retries is not None or handler.timeout is not None or handler.errors is not None for handler in handlers
    )
    facts.is_periodic = any(handler.is_periodic for handler in registry.iter_handlers())
    for name, (resource, schema) in kinds.items():
        selecting = [item for item in handlers if item.selector is not None and item.selector.check(resource)]
        if not all(item.concurrent for item in selecting):  # others, such as admission, only answer requests
            facts.parents += [target for target, _ in facts.created if target.resource == name]
        if fields := [item.field or () for item in selecting if item.handles_updates]:
            facts.updated[name] = [tuple(map(str, field)) for field in fields]
        elif _is_polling_only(selecting):
            facts.updated[name] = [()]
        if any(source.fn is None and source.selector.check(resource) for item in handlers for source in item.sources):
            facts.owned.append(name)
        if schema is not None:
            facts.schemas[name] = schema
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
