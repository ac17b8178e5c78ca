"""One course: what it depends on, and what it tells."""

import pytest

from kopf._kits.checking.courses import Course, find_repeated
from kopf._kits.checking.forks import ForkPool
from kopf._kits.checking.plans import Edit, Moment, Plan, Target
from kopf._kits.checking.subjects import Loading, Subject
from kopf._kits.testing.serving.faults import SeenRequest
from kopf._kits.testing.wire.manifests import read

WEB = Target(resource="webs", namespace="default", name="w1")
PATCH = Moment(verb="patch", resource="webs", subresource="status")

HANDLERS = """
    import random

    @kopf.on.create('webs')
    @kopf.on.update('webs')
    def serve(spec, patch, **_):
        patch.status['size'] = spec['size']
        patch.status['random'] = random.random()

    @kopf.on.delete('webs')
    def end(**_):
        pass
"""


ELECTED = """
    import asyncio

    @kopf.on.startup()
    def configure(settings, **_):
        settings.leadership.enabled = True

    @kopf.on.create('webs')
    @kopf.on.resume('webs')
    async def serve(spec, patch, **_):
        await asyncio.sleep(5)
        patch.status['size'] = spec['size']
"""

EAGER = """
    import asyncio

    @kopf.on.event('webs')
    async def serve(**_):
        await asyncio.sleep(5)
"""


@pytest.fixture
def run(write, tmp_path):
    """Run a course by a plan in a copy of this process; return its outcome."""
    subject = Subject(
        arguments=["--all-namespaces", str(tmp_path / "app.py")],
        options={"crds": tmp_path / "crd.yaml"},
        scenario=Loading([body for _, body in read(tmp_path / "web.yaml")]),
        observers={},
        folder=tmp_path,
    )

    def run(plan=None, text=HANDLERS, **options):
        write(text)
        return ForkPool(1, 60).call(lambda: Course(subject, plan or Plan(), **options).run(), None)

    return run


SERVING = (
    HANDLERS
    + """
    @kopf.on.startup()
    def configure(settings, **_):
        settings.admission.server = kopf.WebhookServer()
        settings.admission.managed = 'check.kopf.dev'

    @kopf.on.convert('webs', persistent=False)
    def convert(**_):
        pass
"""
)


def test_the_address_of_the_webhook_server_may_change_at_a_restart(run):
    outcome = run(Plan(restart=True), text=SERVING)
    assert outcome.problem == ""
    assert any(request.resource == "customresourcedefinitions" and request.is_write for request in outcome.requests)
    assert not outcome.restart_writes


def make_request(status=200, body=b"same", content_type="application/merge-patch+json", user_agent="curl"):
    return SeenRequest("PATCH", "/x", {}, user_agent, content_type, body=body, status=status)


def test_equal_writes_are_needless_the_third_time():
    assert find_repeated([make_request()] * 2) == []
    assert find_repeated([make_request()] * 3) == ["PATCH /x"]
    assert find_repeated([make_request(body=bytes([number])) for number in range(3)]) == []
    assert find_repeated([make_request(status=409)] * 3) == []
    assert find_repeated([make_request(user_agent="kopf/1.46.0")] * 3) == []
    assert find_repeated([make_request(content_type="application/apply-patch+yaml")] * 3) == []


def get_statuses(outcome):
    return [item.body["status"]["size"] for item in outcome.end.objects if item.resource == "webs"]


def test_a_course_goes_to_the_end_of_all_objects(run):
    outcome = run(Plan(restart=True))
    assert get_statuses(outcome) == [2]
    assert (outcome.problem, outcome.failure, outcome.scenario_error) == ("", "", "")
    assert outcome.steps == ["apply w1", "delete webs w1"]
    assert outcome.rests and not outcome.quiet_writes and not outcome.restart_writes
    assert not outcome.final.objects
    writes = [request for request in outcome.requests if request.is_write and request.resource == "webs"]
    assert [request.phase for request in writes] == ["scenario"] * 3 + ["deletion"]
    facts = outcome.facts
    assert (facts.parents, facts.children, facts.watched) == ([WEB], [], ["webs"])
    assert facts.updated == {"webs": [()]} and "serve" in facts.results


@pytest.mark.parametrize(
    "plan",
    [
        Plan(),
        Plan(do="kill", when="before", request=PATCH),
        Plan(do="kill", when="unanswered", request=PATCH),
        Plan(do="kill", when="after", request=PATCH),
        Plan(do="error", status=500, request=PATCH),
        Plan(do="error", status=429, times=12, request=PATCH),
        Plan(do="drop", request=PATCH),
        Plan(do="lose", request=PATCH),
        Plan(do="delay", seconds=90, request=PATCH),
        Plan(do="freeze", step=1, seconds=30, target=Target(resource="webs")),
        Plan(do="stop", step=1, seconds=5),
        Plan(do="kill", step=2, seconds=5),
        Plan(do="kill", step=0),
        Plan(do="recreate", step=0, target=WEB),
    ],
    ids=lambda plan: f"{plan.do} {plan.when} {plan.step} {plan.status}",
)
def test_a_careful_operator_comes_to_the_same_end(run, plan):
    outcome = run(plan)
    assert outcome.has_begun is bool(plan.do)
    assert get_statuses(outcome) == [2]
    assert not outcome.final.objects


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({}, marks=pytest.mark.long),
        {"do": "kill", "when": "unanswered", "request": PATCH},
        pytest.param({"do": "hang", "when": "before", "request": PATCH, "seconds": 100}, marks=pytest.mark.long),
        pytest.param({"do": "hang", "step": 1, "seconds": 100}, marks=pytest.mark.long),
        pytest.param({"do": "hang", "step": 0, "seconds": 100}, marks=pytest.mark.long),
        pytest.param({"do": "stop", "step": 0, "seconds": 5}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_one_of_two_operators_handles_the_objects(run, fields):
    outcome = run(Plan(replicas=2, **fields), ELECTED)
    assert outcome.has_begun is bool(fields)
    assert get_statuses(outcome) == [2]
    assert (outcome.overlaps, outcome.failure, outcome.problem) == ([], "", "")
    assert outcome.facts.is_coordinated


def test_two_operators_that_handle_the_same_object_are_seen(run):
    outcome = run(Plan(replicas=2), EAGER)
    assert set(outcome.overlaps) == {"serve of webs w1"}
    assert not outcome.facts.is_coordinated


@pytest.mark.long
def test_edits_are_made_at_rest_or_at_a_request(run):
    edits = (Edit(WEB, {"spec": {"size": 4}}),)
    assert get_statuses(run(Plan(edits=edits))) == [4]
    assert get_statuses(run(Plan(edits=(*edits, Edit(WEB, {"spec": {"size": 1}}))))) == [1]
    outcome = run(Plan(do="edit", when="unanswered", request=PATCH, edits=edits))
    assert outcome.has_begun and get_statuses(outcome) == [4]


TICKING = (
    HANDLERS
    + """
    import time

    @kopf.timer('webs', interval=30)
    def tick(patch, **_):
        patch.status['ticked'] = time.time()
"""
)


@pytest.mark.parametrize("number, size", [(2, 4), (10, 4), (15, 2)], ids=["early", "late", "too late"])
@pytest.mark.long
def test_edits_among_periodic_writes_are_in_the_end_state_or_are_not_made(run, number, size):
    request = Moment(verb="patch", resource="webs", subresource="status", number=number)
    plan = Plan(do="edit", when="unanswered", request=request, edits=(Edit(WEB, {"spec": {"size": 4}}),))
    outcome = run(plan, text=TICKING, periodic=True, log=True)
    assert get_statuses(outcome) == [size]
    assert outcome.has_begun is (size == 4)
    assert ("the user edits the object: webs default/w1 spec.size = 4\n" in outcome.log) is (size == 4)


def test_nothing_is_disturbed_between_the_end_state_and_the_deletion(run):
    request = Moment(verb="patch", resource="webs", subresource="status", number=15)
    outcome = run(Plan(do="kill", when="before", request=request), text=TICKING, periodic=True)
    assert not outcome.has_begun


def test_edits_of_absent_objects_have_not_happened(run):
    absent = Target(resource="webs", namespace="default", name="absent")
    outcome = run(Plan(do="edit", when="unanswered", request=PATCH, edits=(Edit(absent, {"spec": {"size": 4}}),)))
    assert not outcome.has_begun and get_statuses(outcome) == [2]


def test_deleted_objects_are_gone(run):
    outcome = run(Plan(do="delete", when="before", request=PATCH, target=WEB))
    assert outcome.has_begun and not outcome.end.objects


@pytest.mark.parametrize(
    "do", [pytest.param("", marks=pytest.mark.long), "kill", pytest.param("error", marks=pytest.mark.long)]
)
def test_the_same_plan_gives_the_same_requests(run, do):
    plan = Plan(do=do, status=500, request=PATCH) if do else Plan(restart=True)
    logs = {run(plan, log=True).log for _ in range(3)}
    assert len(logs) == 1
    assert logs.pop().count("\n") > 10


def test_another_seed_gives_other_requests(run):
    assert run(Plan(seed=1), log=True).log != run(Plan(seed=2), log=True).log


class Killed:
    """An operator that was killed by the disturbance."""

    returncode = -9


def test_an_operator_that_is_killed_while_the_course_looks_at_it_has_not_failed(tmp_path, monkeypatch):
    subject = Subject(arguments=[], options={}, scenario=Loading([]), observers={}, folder=tmp_path)
    course, operator = Course(subject, Plan(do="kill", step=1)), Killed()
    course._replicas = [operator]
    # The course reads what has happened, and only then sees that the operator has ended.
    checks = iter([lambda: None, lambda: course.release_operator(operator)])
    monkeypatch.setattr(course.testbed, "check", lambda: next(checks)())
    course._check_operator()
    assert course._replicas == [None]
