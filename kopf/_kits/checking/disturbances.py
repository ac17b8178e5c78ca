"""
Disturbances: crashes, network faults, and writes of other clients, at the moment that the plan names.

A disturbance begins during a request or between two requests, and ends before the states are compared.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from kopf._kits.checking.plans import CALL, Moment, Plan, Target
from kopf._kits.checking.testbeds import Testbed, Write
from kopf._kits.checking.user_writes import clean
from kopf._kits.testing.serving.faults import SeenRequest

EDITED_BY_USER = frozenset({'edit', 'stale'})
"""The disturbances in which the user edits an object during the scenario."""

EDITING = EDITED_BY_USER | {'tamper', 'annotate'}
"""The disturbances that make the first edit of the plan themselves. All other edits are made at rest."""

WRITING = EDITING | {'delete', 'recreate'}
"""The disturbances in which a client other than the operator changes objects."""

ACTIONS: Mapping[str, str] = {
    'kill': 'the operator is killed, and started again',
    'stop': 'the operator is stopped gracefully, and started again',
    'hang': 'the process of the operator is suspended for a while, and goes on',
    'error': 'the API answers with an error',
    'drop': 'the connection breaks off, and the request is not done',
    'lose': 'the request is done, but the connection breaks off before the response',
    'delay': 'the request is done much later',
    'freeze': 'the watch of one resource is silent for a while',
    'stale': 'the watch of one resource is silent, and the user edits the object meanwhile',
    'edit': 'the user edits the object',
    'tamper': 'another client edits a child',
    'annotate': 'another client adds an annotation to a child; the operator must keep it',
    'delete': 'another client deletes an object',
    'recreate': 'the user deletes the object and creates it again',
}
"""The disturbances, with their descriptions."""


class DisturbedCourse(Protocol):
    """The operations of a course that disturbances need."""

    testbed: Testbed

    def kill_operator(self) -> None:
        """Kill the operator at once."""

    def stop_operator(self) -> None:
        """Stop the operator gracefully. It must not be called within the event loop."""

    def hang_operator(self, seconds: float) -> None:
        """Suspend the operator for a time."""

    def start_operator(self) -> None:
        """Start the operator if it does not run."""

    def find(self, target: Target) -> Mapping[str, Any] | None:
        """Return the object that the target identifies; None if it does not exist."""


class Disturbance:
    """
    The one disturbance of a plan.

    In real time, several threads call the methods, but never at the same time: a request starts a timer, which starts
    the next timer. So the methods need no lock.
    """

    def __init__(self, course: DisturbedCourse, plan: Plan) -> None:
        self._course = course
        self._plan = plan
        self._count = 0
        self._failed = 0
        self.has_begun = False
        """Whether the course has reached the moment of the plan, and any writes of other clients were possible then."""
        self.has_written = False
        """Whether the disturbance has made its write as another client."""
        self.ends_at = 0.0
        """The time when the disturbance ends (in seconds)."""
        self.began: tuple[int, float] | None = None
        """When the disturbance has begun: the number of earlier requests, and the time (in seconds)."""
        self._begins_at_requests = True

    @property
    def _testbed(self) -> Testbed:
        return self._course.testbed

    @property
    def happens_at_rest(self) -> bool:
        """True if the disturbance happens after the scenario."""
        return self._plan.step == 0

    def suspend(self) -> None:
        """Begin at no request until the deletion: the end state is taken, and the rest is watched."""
        self._begins_at_requests = False

    def enter_deletion(self) -> None:
        """Begin at requests again, unless another client would write: its edits could not be in the end state."""
        self._begins_at_requests = self._plan.do not in WRITING

    def arm(self) -> None:
        """Set the faults that take effect when the operator makes the request of the plan."""
        plan, faults = self._plan, self._testbed.faults
        if plan.request is None:
            return
        moment = plan.request
        common: dict[str, Any] = {'condition': lambda request: self._is_due(request, moment)}
        match plan.do:
            case 'error':
                retry_after = 1 if plan.status == 429 else None
                faults.error(plan.status, times=plan.times, retry_after=retry_after, **common)
            case 'drop':
                faults.drop(times=plan.times, **common)
            case 'lose':
                faults.lose(times=plan.times, **common)
            case 'delay':
                faults.delay(plan.seconds, **common)
            case _:
                faults.call(self._happen_in_request, late=plan.when != 'before', **common)

    def _is_due(self, request: SeenRequest, moment: Moment) -> bool:
        if (request.verb, request.resource, request.subresource) != moment.key:
            return False
        self._count += 1
        if self._count < moment.number or not (self.has_begun or self._begins_at_requests):
            return False
        self._begin(self._plan.seconds)
        return True

    def is_due_at_call(self, name: str) -> bool:
        """Check whether the plan kills the operator after this call of a function; if so, start it again later."""
        moment = self._plan.request
        if moment is None or (moment.verb, moment.resource) != (CALL, name):
            return False
        self._count += 1
        if self._count != moment.number or not self._begins_at_requests:
            return False
        self._begin(0)
        self._later(self._plan.seconds or self._testbed.pace.killed, self._course.start_operator)
        return True

    def _begin(self, seconds: float) -> None:
        self.has_begun = True
        if self.began is None:
            self.began = len(self._testbed.requests), self._testbed.now
        self.ends_at = self._testbed.now + seconds

    def _happen_in_request(self) -> Any:
        if self._plan.when == 'after':
            self._later(self._testbed.pace.answered, self._happen)
            return None
        return self._testbed.call_in_request(self._happen, ends=self._plan.do == 'kill' and self._plan.replicas == 1)

    def _later(self, seconds: float, function: Callable[[], object]) -> None:
        self.ends_at = max(self.ends_at, self._testbed.now + seconds)
        self._testbed.call_later(seconds, function)

    def _happen(self) -> None:
        """Do the action of the plan, during a request or between two requests."""
        plan = self._plan
        match plan.do:
            case 'kill':
                self._course.kill_operator()
                self._later(plan.seconds or self._testbed.pace.killed, self._course.start_operator)
            case 'hang':
                self._course.hang_operator(plan.seconds)
            case 'freeze':
                self._freeze()
            case 'stale':
                self._freeze()
                self._later(self._testbed.pace.stale, self._write)
            case 'edit' | 'tamper' | 'annotate' | 'delete':
                self._write()

    def _freeze(self) -> None:
        faults = self._testbed.faults
        if self._plan.target is not None:
            faults.freeze_watches(resource=self._plan.target.resource.partition('.')[0])
            self._later(self._plan.seconds, faults.clear)

    def _write(self, *, waits: bool = False) -> None:
        """Change or delete the object as another client; do nothing if it does not exist any more."""
        self.has_begun = False
        self._testbed.write(self._list_writes, self._note_written, waits=waits)

    def _note_written(self) -> None:
        self.has_begun = self.has_written = True

    def _list_writes(self) -> list[Write]:
        plan = self._plan
        wanted = [(edit.target, edit.patch) for edit in plan.edits[:1]] if plan.do in EDITING else []
        targets: list[tuple[Target | None, Mapping[str, Any] | None]] = [*wanted] or [(plan.target, None)]
        found: list[Write] = []
        for target, patch in targets:
            body = self._course.find(target) if target is not None else None
            if target is not None and body is not None:
                meta = body['metadata']
                found.append(Write(target.resource, meta['name'], meta.get('namespace', ''), patch))
        return found

    # Disturbances between the writes of the scenario.

    def before_step(self, number: int) -> None:
        """Called before a write of the user."""
        plan = self._plan
        if plan.step != number or number == 0:
            return
        self._begin(plan.seconds)
        if plan.do == 'kill':
            self._course.kill_operator()
        elif plan.do == 'stop':
            self._course.stop_operator()
        elif plan.do == 'hang':
            self._course.hang_operator(plan.seconds)
        elif plan.do == 'freeze':
            self._freeze()

    def after_step(self, number: int) -> None:
        """Called after a write of the user."""
        if self._plan.step == number and number != 0 and self._plan.do in ('kill', 'stop'):
            self._testbed.advance(self._plan.seconds)
            self._course.start_operator()

    def happen_at_rest(self) -> None:
        """Called at rest, after the scenario and the edits."""
        plan = self._plan
        if plan.step != 0:
            return
        self._begin(0)
        is_away = plan.when == 'away'
        if is_away:
            self._course.kill_operator()
        match plan.do:
            case 'edit' | 'tamper' | 'annotate' | 'delete':
                self._write(waits=True)
            case 'recreate':
                self._recreate()
            case 'hang':
                self._begin(plan.seconds)
                self._course.hang_operator(plan.seconds)
            case 'kill':
                self._course.kill_operator()
                is_away = True
            case 'stop':
                self._course.stop_operator()
                is_away = True
        if is_away:
            self._testbed.advance(plan.seconds or self._testbed.pace.killed)
            self._course.start_operator()

    def _recreate(self) -> None:
        testbed, target = self._testbed, self._plan.target
        body = self._course.find(target) if target is not None else None
        if target is None or body is None:
            return
        user, meta = testbed.user, body['metadata']
        with user.writes.unrecorded():
            user.delete(target.resource, meta['name'], namespace=meta.get('namespace'))
            user.wait_gone(target.resource, meta['name'], namespace=meta.get('namespace'))
            # Let the garbage collector delete the old children, which occupy the names of the new ones.
            testbed.advance(testbed.pace.collected)
            user.create(clean(body))
