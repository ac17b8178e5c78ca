"""What users see of plans and findings."""

import pytest

from kopf._kits.checking.checks import Finding, Problems, Progress, Report
from kopf._kits.checking.oracles import Violation
from kopf._kits.checking.plans import Edit, Moment, Plan, Target
from kopf._kits.checking.reports import describe, format_progress, format_report, write_junit

WEB = Target(resource="webs", namespace="default", name="w1")
EDIT = Edit(WEB, {"spec": {"size": 0}})
MOMENT = Moment(verb="create", resource="pods", number=2)


@pytest.mark.parametrize(
    "plan, text",
    [
        (Plan(), "Nothing was disturbed."),
        (Plan(edits=(EDIT,)), "webs default/w1 was edited at rest: spec.size = 0."),
        (Plan(edits=(EDIT,), fresh=True), "webs default/w1 was created with spec.size = 0."),
        (
            Plan(edits=(EDIT, Edit(WEB, {"spec": {"size": None}}))),
            "webs default/w1 was edited at rest: spec.size = 0, and then spec.size = nothing.",
        ),
        (
            Plan(do="kill", when="unanswered", request=MOMENT),
            "The operator was killed, and started again 1 s later, after the second request to create pods was done, "
            "but before its response.",
        ),
        (
            Plan(do="error", status=500, times=12, request=MOMENT),
            "The API answered with the error 500 (12 times), at the second request to create pods.",
        ),
        (
            Plan(do="stop", step=1, seconds=5),
            "The operator was stopped, and started again 5 s later, before write 1 of the user, and during it.",
        ),
        (
            Plan(do="delete", step=0, when="away", target=Target(resource="pods", number=2)),
            "Another client deleted pods #2, while no operator was running, at rest.",
        ),
        (
            Plan(do="edit", when="before", request=MOMENT, edits=(EDIT,), without=(2,)),
            "Of the loaded objects, #2 were left out. The user edited webs default/w1: spec.size = 0, before the "
            "second request to create pods was done.",
        ),
        (
            Plan(do="freeze", step=1, seconds=30, target=Target(resource="pods")),
            "The watch of pods was silent for 30 s, before write 1 of the user, and during it.",
        ),
    ],
    ids=lambda value: value.do or "edits" if isinstance(value, Plan) else "",
)
def test_plans_are_described(plan, text):
    assert describe(plan) == text


def test_reports_say_what_was_done_what_differs_and_how_to_run_it_again():
    violation = Violation(
        "end", "The operator reaches another end state than without the disturbance.", ("+ pods default/#2",)
    )
    plan = Plan(do="lose", request=MOMENT)
    report = Report([(plan, [violation])], [Finding(plan, [violation], count=3)], ["Something."], seconds=6.0)
    assert format_report(report, ["kopf check app.py --plan kopf-check-1.yaml"]) == (
        "1. The connection broke off after the request was done, but before its response, at the second request to "
        "create pods.\n"
        "   The operator reaches another end state than without the disturbance.\n"
        "       + pods default/#2\n"
        "   3 plans have shown it; this is the smallest.\n"
        "   Run it again: kopf check app.py --plan kopf-check-1.yaml\n\n"
        "Not tried:\n- Something.\n\n"
        "1 plan in 6.0 s (10 a minute): 1 found."
    )


def test_the_progress_is_one_line():
    assert format_progress(Progress(3, 10, 1, 41.7)) == "3 of 10 plans done, 1 found, 42 s left"


def test_what_was_seen_only_once_is_listed_apart():
    report = Report(unconfirmed=[Finding(Plan(do="lose", request=MOMENT), [Violation("end", "It differs.")])])
    text = format_report(report, [])
    assert "Seen once, but not when the plan was run again:\n- The connection broke off " in text
    assert "pods. It differs.\n" in text


@pytest.mark.parametrize(
    "tried, budget, text",
    [
        (
            3,
            2.0,
            "3 of 135 plans in 2.0 s: nothing found, but the budget has ended before the others; "
            "--budget 113s tries more.",
        ),
        (
            3,
            90.5,
            "3 of 135 plans in 2.0 s: nothing found, but the budget has ended before the others; "
            "--budget 181s tries more.",
        ),
        (
            90,
            2.0,
            "90 of 222 plans in 2.0 s: nothing found, but the budget has ended before the others; "
            "--budget 60s tries more.",
        ),
        (
            1,
            2.0,
            "1 of 133 plans in 2.0 s: nothing was disturbed, as the budget has ended before the others; "
            "--budget 60s tries more.",
        ),
    ],
)
def test_the_last_line_says_what_the_budget_has_left_out(tried, budget, text):
    report = Report([(Plan(do="lose", request=MOMENT), [])] * tried, left=132, budget=budget, seconds=2.0)
    assert format_report(report, []) == text


def test_reports_have_a_part_for_what_is_remarkable(tmp_path):
    report = Report([(Plan(), [])] * 2, noticed=["Handler 'serve' failed."], seconds=6.0)
    assert format_report(report, []) == (
        "Noticed:\n- Handler 'serve' failed.\n\n2 plans in 6.0 s (20 a minute): nothing found."
    )
    write_junit(report, tmp_path / "junit.xml", "app.py")
    assert "<system-out>Handler 'serve' failed.</system-out>" in (tmp_path / "junit.xml").read_text()


def test_a_problem_of_several_plans_is_reported_once():
    problems = Problems()
    for name, value in (("w1", 0), ("w1", 0), ("w2", '"x"')):
        problems.note(f'The API refuses an object: Web "{name}" is invalid: spec.size: Invalid value: {value}')
    for text in ("The course ended.", "The course ended.", "The API refuses an object."):
        problems.note(text)
    assert problems.list_texts() == [
        '3 plans could not be run; the first of them: '
        'The API refuses an object: Web "w1" is invalid: spec.size: Invalid value: 0',
        "2 plans could not be run: The course ended.",
        "The API refuses an object.",
    ]
