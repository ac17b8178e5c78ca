"""Plans as files."""

import pytest

from kopf._kits.checking.plans import Edit, Moment, Plan, PlanError, Target

WEB = Target(resource="webs", namespace="default", name="w1")


@pytest.mark.parametrize(
    "plan",
    [
        Plan(),
        Plan(seed=7, do="kill", when="unanswered", request=Moment(verb="patch", resource="webs", subresource="status")),
        Plan(do="freeze", step=1, target=Target(resource="pods"), seconds=30),
        Plan(do="delete", step=0, target=Target(resource="pods", namespace="default", number=2), when="away"),
        Plan(edits=(Edit(WEB, {"spec": {"size": 0}}), Edit(WEB, {"spec": {"size": 2}})), without=(1, 3), restart=True),
    ],
    ids=["nothing", "request", "step", "generated", "edits"],
)
def test_plans_are_read_as_they_were_written(tmp_path, plan):
    plan.write(tmp_path / "plan.yaml", ["What is done.", "What is wrong."])
    assert Plan.read(tmp_path / "plan.yaml") == plan
    assert (tmp_path / "plan.yaml").read_text().startswith("# What is done.\n# What is wrong.\nseed: ")


def test_files_show_only_what_matters(tmp_path):
    Plan(do="kill", request=Moment(verb="patch", resource="webs", number=2)).write(tmp_path / "plan.yaml")
    assert (tmp_path / "plan.yaml").read_text() == (
        "seed: 1\ndo: kill\nrequest:\n  verb: patch\n  resource: webs\n  number: 2\n"
    )


@pytest.mark.parametrize("text", ["", "[]", "seed: [", "nonsense: 1", "request: {verb: x}", "edits: [1]"])
def test_other_files_are_refused(tmp_path, text):
    (tmp_path / "plan.yaml").write_text(text)
    with pytest.raises(PlanError, match="plan.yaml: not a plan of kopf check: "):
        Plan.read(tmp_path / "plan.yaml")


def test_absent_files_are_told(tmp_path):
    with pytest.raises(PlanError, match="plan.yaml: cannot be read: No such file"):
        Plan.read(tmp_path / "plan.yaml")


def test_moments_are_readable():
    assert str(Moment(verb="patch", resource="webs", number=3)) == "the third request to patch webs"
    assert str(Moment(verb="create", resource="pods", subresource="eviction", number=11)) == (
        "the 11th request to create pods/eviction"
    )
