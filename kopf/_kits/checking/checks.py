"""
A check of an operator: several undisturbed courses, and then one disturbed course for each plan (see `plans`).

As many plans are tried as the budget permits. At the end, the plans with findings are replaced by smaller plans that
show the same mistake. Each course runs in a forked copy of this process. This process keeps the results of the
undisturbed courses, so that later copies can compare their results with these.
"""

import contextlib
import dataclasses
import functools
import importlib
import io
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kopf._core.engines.conversion_strategies import PLACEHOLDER_HOST
from kopf._kits.checking.agendas import REAL_DURATIONS, VIRTUAL_DURATIONS, Agenda, Planner
from kopf._kits.checking.courses import Course
from kopf._kits.checking.disturbances import EDITED_BY_USER, EDITING
from kopf._kits.checking.end_states import Normalizer
from kopf._kits.checking.forks import ForkFailed, ForkPool
from kopf._kits.checking.oracles import Expectation, Violation, judge, judge_annotation, judge_undisturbed
from kopf._kits.checking.outcomes import Outcome
from kopf._kits.checking.plans import Edit, Plan
from kopf._kits.checking.schema_edits import revert
from kopf._kits.checking.subjects import Loading, Recreation, Subject
from kopf._kits.checking.user_writes import merge
from kopf._kits.testing.virtual.virtual_loops import NO_SOCKETS

MANAGE = (
    'The operator converts this kind, but does not write its address to the CRD: set settings.admission.managed, '
    'beside settings.admission.server.'
)
"""The remedy if the API server cannot call the operator for conversions."""

COURSE_TIMEOUT = 30.0
"""The time limit of one course in virtual time (in seconds, measured in real time)."""

REAL_COURSE_TIMEOUT = 600.0
"""The time limit of one course in real time (in seconds)."""

REFERENCES = 3
"""The number of undisturbed courses that are compared to find the fields that differ without any disturbance."""

SHRINKING = 0.2
"""The share of the budget that is reserved for finding smaller plans with the same findings, if there are any."""

DISTURBED_EDITS = 2
"""The number of edits that are combined with disturbances."""

MAX_FINDINGS = 10
"""The maximal number of findings that are reported, each with its smallest plan; and of messages of the log."""

MAX_LOGGED = 400
"""The maximal length of a message of the log that is reported."""


OUT_OF_REACH = "The course ended before the disturbance, or the disturbed object did not exist."
"""The reason why the disturbances of some plans did not happen."""

NEEDING_PODS = frozenset({'daemonsets', 'deployments', 'jobs', 'pods', 'replicasets', 'statefulsets'})
"""The resources whose objects become ready only when a controller sets their status."""

REAL_TIME = ' Or check it in real time by --real-time, which is slower.'

SIMULATE = (
    ' For a check, simulate that service by a module beside the operator, and observe it by --observe; or check the '
    'operator with real sockets by --real-time, which is slower.'
)


class Problems:
    """Why plans could not be run. The texts of one problem differ only in names and in values."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}

    def note(self, text: str) -> None:
        """Add the problem of one plan."""
        self._texts.setdefault(_VARYING.sub('…', text), []).append(text)

    def list_texts(self) -> list[str]:
        """Return a line for each problem, with the text that was the first one, and the number of plans."""
        return [
            first if not others else f'{1 + len(others)} plans could not be run{_name_cause(first, others)}: {first}'
            for first, *others in self._texts.values()
        ]


_VARYING = re.compile(r"""\{.*\}|\[.*\]|"[^"]*"|'[^']*'|\d+""")
"""What is not compared: values as JSON, quoted names and values, numbers."""


def _name_cause(first: str, others: Sequence[str]) -> str:
    return '' if set(others) == {first} else '; the first of them'


class CannotCheck(Exception):
    """Raised when an operator cannot be checked; the message has the reason and the remedy."""

    __module__ = 'kopf.testing'


@dataclasses.dataclass
class Finding:
    """A mistake of the operator, with the smallest plan that shows it."""

    plan: Plan
    violations: Sequence[Violation]
    moment: str = ''
    """The same request in the undisturbed course as that at which the disturbance begins."""
    count: int = 1
    """The number of plans that have shown the mistake."""
    log: str = ''
    """The requests of the course, if the log was requested."""


@dataclasses.dataclass
class Report:
    """The result of a check."""

    tried: list[tuple[Plan, Sequence[Violation]]] = dataclasses.field(default_factory=list)
    findings: list[Finding] = dataclasses.field(default_factory=list)
    untried: list[str] = dataclasses.field(default_factory=list)
    """The parts of the check that were impossible, with the reasons: one sentence each."""
    noticed: list[str] = dataclasses.field(default_factory=list)
    """Remarks on the undisturbed course that are no findings, such as failed handlers: one line each."""
    unconfirmed: list[Finding] = dataclasses.field(default_factory=list)
    """In real time, the findings that did not occur again when their plans were run again."""
    left: int = 0
    """The number of plans that were not tried because the budget was used up."""
    budget: float = 0.0
    """The budget (in seconds)."""
    seconds: float = 0.0
    """The duration (in seconds)."""
    log: str = ''
    """The log of the requests, if the check has run only one plan."""

    @property
    def is_disturbed(self) -> bool:
        """Return whether any plan was tried besides the undisturbed course."""
        return len(self.tried) > 1

    @property
    def is_vain(self) -> bool:
        """Return whether the budget was used up before the first disturbance, so that the check has no result."""
        return bool(self.left) and not self.is_disturbed and not self.findings


@dataclasses.dataclass(frozen=True)
class Progress:
    """The progress of a check."""

    done: int
    planned: int
    findings: int
    seconds_left: float


class Check:
    """
    A check of one operator.

    Args:
        subject: the operator, and the actions of its user.
        seed: the seed of all courses.
        budget: how long the check may take (in seconds).
        jobs: how many courses are run at the same time.
        only_first: whether to end with the first finding.
        tell: called with the progress after each course.
    """

    def __init__(
        self,
        subject: Subject,
        *,
        seed: int = 1,
        budget: float = 60.0,
        jobs: int = 2,
        only_first: bool = False,
        tell: Callable[[Progress], object] = lambda _: None,
    ) -> None:
        self._subject = subject
        self._seed = seed
        self._jobs = jobs
        self._only_first = only_first
        self._tell = tell
        self._started = time.monotonic()
        self._ends_at = self._started + budget
        self._shrinks_at = self._started + budget * (1 - SHRINKING)
        self._deadline = math.inf
        self._is_periodic = False
        self._agenda = Agenda()
        self._report = Report(budget=budget)
        self._problems = Problems()
        self._found: dict[tuple[str, ...], Finding] = {}
        self._outcomes: dict[str, Outcome] = {}
        """The results of the undisturbed courses, by the edits of their plans."""
        self._refused: set[str] = set()
        """The edits for which handlers fail even if the objects are created with the edited values."""
        self._edited: list[Edit] = []
        self._confirmed: set[tuple[str, ...]] = set()
        """In real time, the findings that were seen twice."""

    def run(self) -> Report:
        """
        Try all plans, as long as the budget lasts.

        Raises:
            CannotCheck: the operator cannot be checked.
        """
        self._refer()
        if not self._found:
            self._prepare()
            self._explore()
            self._shrink()
        return self._finish_report()

    def run_plan(self, plan: Plan) -> Report:
        """
        Run only this plan, and keep the log of its requests.

        Raises:
            CannotCheck: the operator cannot be checked.
        """
        self._seed = plan.seed
        self._refer()
        self._found.clear()
        outcome, violations = self._try(plan, log=True)
        if outcome.problem:
            raise CannotCheck(outcome.problem)
        if plan.is_disturbing and not outcome.has_begun:
            raise CannotCheck(
                f'The course does not reach {plan.request or "this point"}: the plan does not fit this operator.'
            )
        self._report.tried.append((plan, violations))
        self._note(plan, violations)
        self._confirm()
        self._report.log = outcome.log
        return self._finish_report()

    def _finish_report(self) -> Report:
        report = self._report
        report.findings = list(self._found.values())
        report.untried += self._problems.list_texts()
        report.seconds = time.monotonic() - self._started
        return report

    # The undisturbed courses.

    def _refer(self) -> None:
        """Run the undisturbed courses, and learn from them which fields vary."""
        if self._subject.is_real:
            first, *others = self._refer_all(range(REFERENCES))
        else:
            [first], others = self._refer_all(range(1)), []
        self._check(first)
        if self._is_periodic:
            # Courses wait for a shorter time then. Disturbances must begin at requests that all of them reach.
            [first] = self._refer_all(range(1))
            self._check(first)
        for name in first.facts.imports:
            # Import the modules in this process, so that its copies need not import them again. Hide their output.
            with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
                importlib.import_module(name)
        others = others or self._refer_all(range(1, REFERENCES))
        for outcome in others:
            self._check(outcome)
        outcomes = [first, *others]
        groups = [[outcome.end for outcome in outcomes], [outcome.final for outcome in outcomes]]
        self._normalizer = Normalizer(groups, frozenset(first.facts.results))
        self._base = first
        durations = REAL_DURATIONS if self._subject.is_real else VIRTUAL_DURATIONS
        self._planner = Planner(self._seed, first.facts, durations)
        self._report.untried += first.facts.untried
        for resource in sorted(self._normalizer.unstable):
            self._report.untried.append(
                f'The {resource} were not compared: even undisturbed runs end with different numbers of them.'
            )
        for call in first.failed:
            self._report.noticed.append(
                f'Handler {call.id!r} of {call.resource} {call.name} failed in the undisturbed run, too: '
                f'{_sentence(call.message)} The other runs are expected to fail in the same way.'
            )
        known = [f"{call.id!r} failed permanently: {call.message}" for call in first.failed]
        logged = [text for text in first.logged if not any(each in text for each in known)]
        self._report.noticed += [
            f'Logged in the undisturbed run: {text[:MAX_LOGGED]}' for text in logged[:MAX_FINDINGS]
        ]
        plan = Plan(seed=self._seed)
        violations = judge_undisturbed(first, self._normalizer)
        if self._subject.is_real:  # in real time, a busy machine can disturb an operator, too
            also = [{other.oracle for other in judge_undisturbed(outcome, self._normalizer)} for outcome in others]
            violations = [item for item in violations if all(item.oracle in oracles for oracles in also)]
        self._report.tried.append((plan, violations))
        self._note(plan, violations)

    def _refer_all(self, numbers: Sequence[int]) -> list[Outcome]:
        """Run the undisturbed courses with these numbers at the same time."""
        plans = [Plan(seed=self._seed + number, restart=True) for number in numbers]
        tasks = [
            (plan, functools.partial(self._run_copied, plan, number=number))
            for plan, number in zip(plans, numbers, strict=True)
        ]
        results = dict(self._pool.run(iter(tasks), time.monotonic() + 2 * self._timeout))
        return [_as_outcome(results.get(plan, ForkFailed('it was interrupted'))) for plan in plans]

    def _run_alone(self, plan: Plan, **options: Any) -> Outcome:
        task = functools.partial(self._run_copied, plan, **options)
        return _as_outcome(self._pool.call(task, plan, deadline=self._deadline))

    def _run_copied(self, plan: Plan, **options: Any) -> Outcome:
        return self._make_course(plan, **options).run()

    @property
    def _timeout(self) -> float:
        return REAL_COURSE_TIMEOUT if self._subject.is_real else COURSE_TIMEOUT

    @property
    def _pool(self) -> ForkPool[Plan]:
        return ForkPool(self._jobs, self._timeout)

    def _make_course(self, plan: Plan, *, number: int = 0, log: bool = False) -> Course:
        scenario = None
        if plan.fresh:
            scenario = Recreation([apply_edits(target, body, plan.edits) for target, body in self._list_written()])
        return Course(self._subject, plan, periodic=self._is_periodic, scenario=scenario, number=number, log=log)

    def _list_written(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Yield the user's objects with the specs that they have at the end."""
        ends = {(item.resource, item.namespace, item.name): item.body for item in self._base.end.objects}
        for target, body in self._base.facts.created:
            end = ends.get((target.resource, target.namespace, target.name))
            if end is not None:
                yield target, {**body, **({'spec': end['spec']} if 'spec' in end else {})}

    def _check(self, outcome: Outcome) -> None:
        """Raise an error if other courses cannot be compared with this undisturbed one."""
        if outcome.problem:
            hint = REAL_TIME if outcome.exceeds_virtual_time and not self._subject.is_real else ''
            hint = SIMULATE if NO_SOCKETS in outcome.problem else hint
            raise CannotCheck(f'{outcome.problem}{hint}')
        if outcome.scenario_error:
            remedy = MANAGE if PLACEHOLDER_HOST in outcome.scenario_error else 'Correct it, or the operator.'
            raise CannotCheck(
                f'The scenario fails without any disturbance: {outcome.scenario_error.rstrip(".")}. {remedy}'
            )
        if outcome.failure:
            raise CannotCheck(
                f'{outcome.failure} This happens without any disturbance: try it by kopf run --sandbox first.'
            )
        if not outcome.facts.created:
            raise CannotCheck(
                'The user creates no objects, so the operator has nothing to do: name some by --load, or create them '
                'in the scenario.'
            )
        if not outcome.rests:
            self._check_rest(outcome)

    def _check_rest(self, outcome: Outcome) -> None:
        if outcome.retried:
            call = outcome.retried[0]
            raise CannotCheck(
                f'The operator does not come to rest without any disturbance: {call.id} of {call.resource} {call.name} '
                f'is tried again and again ({call.message}). If it waits for other controllers of a cluster, let '
                'the sandbox emulate them (--pods), or let the scenario do what they do.'
            )
        if not outcome.facts.is_periodic:
            return  # the operator is in a loop, and `judge_undisturbed` reports that
        self._is_periodic = True

    # The plans.

    def _prepare(self) -> None:
        """Make the plans for the undisturbed course."""
        planner, facts = self._planner, self._base.facts
        self._outcomes[repr(())] = self._base
        edits = planner.list_edits(self._base)
        agenda = self._agenda
        if facts.tended:
            # Created with the final specs, the objects would lack these writes.
            agenda.add('edits', (Plan(seed=self._seed, edits=(edit,)) for edit in edits if planner.is_handled(edit)))
            self._report.untried.append(
                f'The scenario writes the status or other objects of {", ".join(sorted(facts.tended))}: '
                'edited objects were not compared with new ones, and these objects were not changed or deleted.'
            )
        else:
            agenda.add('fresh', (Plan(seed=self._seed, edits=(edit,), fresh=True) for edit in edits))
        if not facts.tended and len(self._base.steps) > len(facts.created) and any(map(planner.is_handled, edits)):
            agenda.add('fresh', [Plan(seed=self._seed, fresh=True)])
        planner.plan_course(agenda, self._base, (), ('scenario', 'deletion'))
        planner.plan_children(agenda, self._base)
        if facts.is_coordinated:
            planner.plan_replicas(agenda, self._base)
        for resource in sorted({parent.resource for parent in facts.parents}):
            if not (facts.schemas.get(resource, {}).get('properties') or {}).get('spec', {}).get('properties'):
                self._report.untried.append(
                    f'The schema of {resource} does not describe the spec: only the fields of the given objects were '
                    'edited.'
                )
            if resource not in facts.updated:
                self._report.untried.append(
                    f'No handler handles updates of {resource}: the edited objects were not compared with new ones.'
                )
        waiting = sorted({child.resource for child in facts.children} & NEEDING_PODS)
        if waiting and not self._subject.options.get('pods'):
            self._report.untried.append(
                f'No controllers run the pods of {", ".join(waiting)}, so these are never ready: what the operator '
                'does when they are ready was not tried. Let the sandbox emulate the controllers (--pods), or write '
                'a stand-in for them.'
            )
        children = sorted({child.resource for child in facts.children} - set(facts.watched))
        if children:
            self._report.untried.append(
                f'The operator does not watch {", ".join(children)}: what other clients do to these children was not '
                'tried.'
            )

    def _explore(self) -> None:
        """Try the plans of the agenda; their results add further plans."""
        for plan, result in self._pool.run(self._iter_tasks(), self._find_end_of_exploring):
            if isinstance(result, ForkFailed):
                self._problems.note(str(result))
            else:
                self._take(plan, *result)
            self._tell(
                Progress(
                    done=len(self._report.tried),
                    planned=len(self._report.tried) + len(self._agenda),
                    findings=len(self._found),
                    seconds_left=max(0.0, self._ends_at - time.monotonic()),
                )
            )
            if self._found and self._only_first:
                self._confirm()
            if self._found and self._only_first:
                return
        self._confirm()
        if rest := len(self._agenda):
            self._report.left = rest
            kinds = ', '.join(f'{kind} ({count})' for kind, count in self._agenda.count().most_common())
            self._report.untried.append(f'{rest} more plans were not tried: the budget was used up. They are: {kinds}.')

    def _find_end_of_exploring(self) -> float:
        """Return when the last plans end: with findings, the rest of the budget is for their smaller plans."""
        return self._shrinks_at if self._found else self._ends_at

    def _iter_tasks(self) -> 'Tasks':
        return Tasks(self)

    def next_task(self) -> tuple[Plan, Callable[[], Any]] | None:
        """Return the next plan, with the function to call in the copy of the process."""
        plan = self._agenda.take()
        return None if plan is None else (plan, lambda: self._try_in_copy(plan))

    def _try_in_copy(self, plan: Plan) -> tuple[Outcome, Sequence[Violation]]:
        outcome = self._make_course(plan).run()
        violations = self._judge(plan, outcome)
        if plan.do or outcome.problem:
            # Send only the violations of most courses to the original process: it does not need the whole outcome.
            kept = ('problem', 'has_begun')
            outcome = Outcome(**{name: getattr(outcome, name) for name in kept})
        return outcome, violations

    def _judge(self, plan: Plan, outcome: Outcome) -> Sequence[Violation]:
        expected = self._choose_expectation(plan, outcome)
        if expected is None:
            if outcome.problem or plan.fresh:
                return []
            is_refused = repr(plan.edits) in self._refused or bool(self._base.facts.tended and outcome.retried)
            return judge_undisturbed(outcome, self._normalizer, is_refused=is_refused)
        found = judge(outcome, expected)
        if plan.do == 'annotate':
            found += judge_annotation(outcome, plan.edits[0].target)
        is_deletion = plan.do == 'delete' and plan.target in self._base.facts.parents
        is_probe = plan.do == 'delete' and not is_deletion and plan.target is not None
        if is_deletion or (is_probe and plan.target is not None and plan.target.resource not in self._base.facts.owned):
            # Do not compare the end states: the disturbance has deleted a user's object, or a child that no
            # level-triggered handler restores.
            found = [violation for violation in found if violation.oracle not in ('end', 'scenario')]
        return found

    def _expect(self, plan: Plan) -> Expectation | None:
        """Return the undisturbed course that this plan's course is compared with; None if there is none."""
        edits = () if plan.do in ('tamper', 'annotate') else plan.edits
        if plan.do or plan.replicas > 1:
            outcome = self._outcomes.get(repr(edits))
            history = plan.do not in {*EDITED_BY_USER, 'recreate'}
        elif plan.fresh and not plan.edits:
            outcome, history = self._base, False
        elif len(edits) > 1:
            outcome, history = self._base, False
        else:
            outcome, history = self._outcomes.get(f'fresh {edits!r}'), False
        return None if outcome is None else Expectation(outcome, self._normalizer, history)

    def _choose_expectation(self, plan: Plan, outcome: Outcome) -> Expectation | None:
        """Return the undisturbed course to compare with, which can depend on the writes of the scenario; or None."""
        if plan.do not in EDITED_BY_USER or outcome.failure or outcome.scenario_error:
            return None if self._is_set_at_creation(plan, outcome) else self._expect(plan)
        if outcome.is_cut_short or self._base.facts.tended:
            return None
        if not outcome.user_goes_on:
            return self._expect(plan)
        [edit] = plan.edits
        wanted, actual = self._base.end.find(edit.target), outcome.end.find(edit.target)
        if wanted is None or actual is None:
            return None
        if revert(edit, wanted) == revert(edit, actual):
            return Expectation(self._base, self._normalizer, has_history=False)
        return self._expect(plan) if merge(actual, edit.patch) == actual else None

    def _is_set_at_creation(self, plan: Plan, outcome: Outcome) -> bool:
        """
        Check whether a webhook replaces the edited value in new objects, but not in edited ones.

        Then, no new object has the values of the edited one. This is on purpose: by default, handlers of mutations are
        called for edits, too.
        """
        fresh = self._outcomes.get(f'fresh {plan.edits!r}')
        if fresh is None or plan.do or plan.replicas > 1 or len(plan.edits) != 1:
            return False
        [edit] = plan.edits
        # The end states are not enough: the operator can have changed the value later, which has to be compared.
        admitted = dict(fresh.facts.created).get(edit.target)
        created, edited = fresh.end.find(edit.target), outcome.end.find(edit.target)
        if admitted is None or created is None or edited is None:
            return False
        return bool(merge(admitted, edit.patch) != admitted and revert(edit, created) != revert(edit, edited))

    def _take(self, plan: Plan, outcome: Outcome, violations: Sequence[Violation]) -> None:
        """Process the result of a plan, and add the plans that follow from it."""
        if outcome.problem:
            if not plan.fresh:  # the API refuses some edits
                self._problems.note(outcome.problem)
            return
        if plan.is_disturbing and not outcome.has_begun and not outcome.failure:
            self._problems.note(OUT_OF_REACH)
            return
        self._report.tried.append((plan, violations))
        self._note(plan, violations)
        if plan.fresh and plan.edits:
            self._follow_fresh(plan, outcome)
        elif not plan.do and len(plan.edits) == 1:
            self._follow_edit(plan, outcome)

    def _follow_fresh(self, plan: Plan, outcome: Outcome) -> None:
        if outcome.failure or outcome.scenario_error:
            return
        [edit] = plan.edits
        self._keep_fresh(plan, outcome)
        if self._planner.is_handled(edit):
            ends = {(item.resource, item.namespace, item.name): item.body for item in self._base.end.objects}
            body = ends[edit.target.resource, edit.target.namespace, edit.target.name]
            back = Plan(seed=self._seed, edits=(edit, revert(edit, body)))
            self._agenda.add('edits', [Plan(seed=self._seed, edits=plan.edits), back])
        else:
            self._agenda.add('edits', [Plan(seed=self._seed, edits=plan.edits)])

    def _keep_fresh(self, plan: Plan, outcome: Outcome) -> None:
        """Keep the outcome for objects created with the new value: edited objects must reach the same end state."""
        if outcome.failed or outcome.retried:
            # The handlers fail with this value, so there is no end state to compare with. It is only checked that they
            # recover when the user restores the previous value.
            self._refused.add(repr(plan.edits))
        elif self._planner.is_handled(plan.edits[0]):
            self._outcomes[f'fresh {plan.edits!r}'] = outcome

    def _follow_edit(self, plan: Plan, outcome: Outcome) -> None:
        """Add the plans that disturb the operator's reaction to this edit, if the reaction contains writes."""
        [edit] = plan.edits
        if self._is_set_at_creation(plan, outcome):
            self._report.untried.append(
                f'A webhook replaces the value in new objects, but not in edited ones: {edit.target} with {edit} was '
                'not compared with a new object.'
            )
        self._outcomes[repr(plan.edits)] = outcome
        writes = sum(request.is_write and request.phase == 'edits' for request in outcome.requests)
        if outcome.failed or outcome.retried or not writes or not self._planner.is_handled(edit):
            return
        if len(self._edited) < DISTURBED_EDITS:
            self._edited.append(edit)
            self._planner.plan_course(self._agenda, outcome, plan.edits, ('edits',))
            self._planner.plan_concurrent(self._agenda, self._base, edit)

    def _note(self, plan: Plan, violations: Sequence[Violation]) -> None:
        if not violations:
            return
        essence = violations[0].essence
        finding = self._found.get(essence)
        if finding is None:
            self._found[essence] = Finding(plan, violations)
        else:
            finding.count += 1
            if _get_weight(plan) < _get_weight(finding.plan):
                finding.plan, finding.violations = plan, violations

    # Finding smaller plans.

    @contextlib.contextmanager
    def _limited(self) -> Iterator[None]:
        """End the courses in this context when the budget is used up."""
        self._deadline = self._ends_at
        try:
            yield
        finally:
            self._deadline = math.inf

    def _try(self, plan: Plan, *, log: bool = False) -> tuple[Outcome, Sequence[Violation]]:
        """Run a plan. Also run the undisturbed course that it is compared with, if this has not been run yet."""
        if plan.without:
            base = self._run_alone(Plan(seed=plan.seed, without=plan.without))
            if base.problem or base.failure or base.scenario_error:
                return Outcome(problem='the operator or its scenario needs the omitted objects'), []
            self._base = base
            self._outcomes.clear()
        self._outcomes[repr(())] = self._base
        needed = plan.edits[:1] if plan.do not in ('tamper', 'annotate') else ()
        if needed:
            fresh = Plan(seed=plan.seed, edits=needed, fresh=True, without=plan.without)
            created = self._run_alone(fresh)
            if self._has_expired(created):
                return created, []
            self._keep_fresh(fresh, created)
            if plan.do:
                edited = self._run_alone(Plan(seed=plan.seed, edits=needed, without=plan.without))
                if self._has_expired(edited):
                    return edited, []
                self._outcomes[repr(needed)] = edited
        outcome = self._run_alone(plan, log=log)
        if self._has_expired(outcome):
            return outcome, []
        if not (plan.do or plan.edits or plan.fresh or plan.replicas > 1):
            return outcome, judge_undisturbed(outcome, self._normalizer)
        return outcome, self._judge(plan, outcome)

    def _has_expired(self, outcome: Outcome) -> bool:
        """Check whether the deadline has ended the course, so that its outcome cannot be compared."""
        return bool(outcome.problem) and time.monotonic() >= self._deadline

    def _shrink(self) -> None:
        """Replace the plan of each finding by the smallest plan that shows the same violation."""
        found = sorted(self._found.items(), key=lambda item: _get_weight(item[1].plan))[:MAX_FINDINGS]
        dropped = len(self._found) - len(found)
        self._found = dict(found)
        if dropped:
            self._report.untried.append(f'{dropped} more findings are not shown.')
        base = self._base
        for _, finding in found:
            for smaller in self._iter_smaller(finding.plan):
                if time.monotonic() > self._ends_at - 1:
                    return
                with self._limited():
                    _, violations = self._try(smaller)
                self._base = base
                if any(violation.oracle == finding.violations[0].oracle for violation in violations):
                    finding.plan, finding.violations = smaller, violations

    def _confirm(self) -> None:
        """Run the plans of the findings again in real time, where a busy machine can disturb an operator, too."""
        if not self._subject.is_real:
            return
        tasks = [
            (key, functools.partial(self._try_in_copy, finding.plan))
            for key, finding in self._found.items()
            if key not in self._confirmed
        ]
        pool: ForkPool[tuple[str, ...]] = ForkPool(self._jobs, self._timeout)
        for key, result in pool.run(iter(tasks), self._ends_at):
            violations = [] if isinstance(result, ForkFailed) else result[1]
            if all(violation.oracle != self._found[key].violations[0].oracle for violation in violations):
                self._report.unconfirmed.append(self._found.pop(key))
            else:
                self._confirmed.add(key)
        if left := len(self._found.keys() - self._confirmed):
            self._report.untried.append(f'{left} findings were seen only once: the budget was used up.')

    def _iter_smaller(self, plan: Plan) -> Iterator[Plan]:
        """Yield smaller plans. If one of them shows the same violation, derive the next ones from that plan."""
        count = len(self._subject.scenario.bodies) if isinstance(self._subject.scenario, Loading) else 0
        if count > 1:
            for number in range(1, count + 1):
                yield dataclasses.replace(plan, without=(number,))
        if plan.times > 1:
            yield dataclasses.replace(plan, times=1)
        if plan.do in ('kill', 'stop') and plan.step != 0:
            yield dataclasses.replace(plan, do='stop', when='before', request=None, step=0)
        if plan.edits and plan.do and plan.do not in EDITING:
            yield dataclasses.replace(plan, edits=())


class Tasks(Iterator[tuple[Plan, Callable[[], Any]]]):
    """An iterator of the plans of an agenda. If plans are added after its end, it yields them, too."""

    def __init__(self, check: Check) -> None:
        self._check = check

    def __next__(self) -> tuple[Plan, Callable[[], Any]]:
        task = self._check.next_task()
        if task is None:
            raise StopIteration
        return task


def _as_outcome(result: Any) -> Outcome:
    """Return the outcome that a copy of this process has sent, or an outcome with the reason why it has sent none."""
    if isinstance(result, ForkFailed):
        problem = f'The course cannot be run: {result}.'
        return Outcome(problem=problem, exceeds_virtual_time=True)
    outcome: Outcome = result
    return outcome


def apply_edits(target: Any, body: dict[str, Any], edits: Sequence[Edit]) -> dict[str, Any]:
    """Return the object, changed by those of the edits that have this target."""
    for edit in edits:
        if edit.target == target:
            body = merge(body, edit.patch)
    return body


def _sentence(message: str) -> str:
    """Return the first line of a message as a sentence."""
    line = message.strip().partition('\n')[0]
    return line if line.endswith(('.', '!', '?')) else f'{line}.'


def _get_weight(plan: Plan) -> tuple[int, int, int]:
    """Return a sort key by which simpler plans come first."""
    return len(plan.edits), plan.times, 0 if plan.request is None else plan.request.number
