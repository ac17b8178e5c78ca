"""The order of plans, and which plans follow from an undisturbed course."""

from kopf._kits.checking.agendas import Agenda, Planner, find_tampering, get_field, list_moments, spread
from kopf._kits.checking.end_states import State, StoredObject
from kopf._kits.checking.outcomes import Facts, Outcome, Request
from kopf._kits.checking.plans import Edit, Moment, Plan, Target

WEB = Target(resource="webs", namespace="default", name="w1")
POD = Target(resource="pods", namespace="default", name="p1")


def make_request(verb, resource, phase="scenario", **fields):
    methods = {"patch": "PATCH", "create": "POST", "update": "PUT", "delete": "DELETE"}
    common = {"subresource": "", "method": methods.get(verb, "GET"), "path": "/", "status": 200, "phase": phase}
    return Request(verb=verb, resource=resource, **{**common, **fields})


def make_outcome(**facts):
    web = StoredObject("webs", "default", "w1", {"metadata": {"name": "w1"}, "spec": {"size": 2}})
    entry = {"operation": "Apply", "fieldsV1": {"f:spec": {"f:node": {}}}}
    pod = StoredObject("pods", "default", "p1", {"metadata": {"managedFields": [entry]}, "spec": {"node": "a"}})
    requests = [
        make_request("watch", "webs", "start"),
        make_request("patch", "webs"),
        make_request("create", "pods"),
        make_request("create", "events"),
        make_request("patch", "webs"),
        make_request("patch", "webs", "deletion"),
    ]
    known = Facts(created=[(WEB, {})], parents=[WEB], children=[POD], watched=["webs"], updated={"webs": [()]})
    vars(known).update(facts)
    return Outcome(requests=requests, steps=["apply w1", "delete w1"], end=State([web, pod], {}), facts=known)


def take_all(agenda):
    plans = []
    while (plan := agenda.take()) is not None:
        plans.append(plan)
    return plans


def test_kinds_of_plans_take_turns():
    agenda = Agenda()
    agenda.add("drop", [Plan(do="drop", seed=seed) for seed in range(3)])
    agenda.add("lose", [Plan(do="lose", seed=seed) for seed in range(2)])
    assert len(agenda) == 5
    assert [plan.do for plan in take_all(agenda)] == ["drop", "lose", "drop", "lose", "drop"]


def test_the_same_plan_is_tried_once():
    agenda = Agenda()
    agenda.add("drop", [Plan(), Plan()])
    agenda.add("lose", [Plan(), Plan(seed=2)])
    assert [plan.seed for plan in take_all(agenda)] == [1, 2]


def test_later_kinds_do_not_catch_up():
    agenda = Agenda()
    agenda.add("drop", [Plan(do="drop", seed=seed) for seed in range(6)])
    for _ in range(4):
        agenda.take()
    agenda.add("lose", [Plan(do="lose", seed=seed) for seed in range(4)])
    assert [plan.do for plan in take_all(agenda)] == ["drop", "lose", "drop", "lose", "lose", "lose"]


def test_moments_are_spread():
    assert spread(list(range(7))) == [0, 6, 1, 3, 4, 5, 2]
    assert spread([]) == [] and spread([1]) == [1]
    assert all(sorted(spread(list(range(count)))) == list(range(count)) for count in range(20))


def test_moments_are_numbered_among_requests_of_the_same_kind():
    found = [moment for moment, _ in list_moments(make_outcome().requests, ("scenario", "deletion"))]
    assert found == [
        Moment(verb="patch", resource="webs"),
        Moment(verb="create", resource="pods"),
        Moment(verb="patch", resource="webs", number=2),
        Moment(verb="patch", resource="webs", number=3),
    ]


def plan_all(outcome):
    agenda = Agenda()
    planner = Planner(1, outcome.facts)
    planner.plan_course(agenda, outcome, (), ("scenario", "deletion"))
    planner.plan_children(agenda, outcome)
    return take_all(agenda)


def test_each_write_is_disturbed_in_each_way():
    plans = plan_all(make_outcome())
    moment = Moment(verb="create", resource="pods")
    here = [(plan.do, plan.when, plan.status, plan.times) for plan in plans if plan.request == moment]
    assert sorted(here) == [
        ("delay", "before", 0, 1),
        ("delete", "before", 0, 1),
        ("delete", "unanswered", 0, 1),
        ("drop", "before", 0, 1),
        ("error", "before", 429, 1),
        ("error", "before", 500, 1),
        ("error", "before", 500, 12),
        ("kill", "after", 0, 1),
        ("kill", "before", 0, 1),
        ("kill", "unanswered", 0, 1),
        ("lose", "before", 0, 1),
    ]


def test_the_operator_is_killed_after_each_call_of_what_is_outside_of_the_cluster():
    outcome = make_outcome()
    outcome.calls = [make_request("call", "cloud.create", method="call") for _ in range(2)]
    moments = [Moment(verb="call", resource="cloud.create", number=number) for number in (1, 2)]
    plans = [plan for plan in plan_all(outcome) if plan.request in moments]
    assert [(plan.do, plan.when, plan.request) for plan in plans] == [("kill", "after", moment) for moment in moments]
    assert str(moments[1]) == "the second call of cloud.create"


def test_conflicts_are_for_writes_that_can_have_them():
    plans = [plan for plan in plan_all(make_outcome()) if plan.status == 409]
    assert {(plan.request.verb, plan.request.resource) for plan in plans} == {("patch", "webs")}
    outcome = make_outcome()
    outcome.requests = [make_request("patch", "webs", is_apply=True), make_request("update", "pods")]
    assert [plan.request.verb for plan in plan_all(outcome) if plan.status == 409] == ["update"]


def test_handlers_that_give_up_see_no_outages():
    assert not [plan for plan in plan_all(make_outcome(is_limited=True)) if plan.times > 1]


def test_children_are_disturbed_if_the_operator_watches_them():
    def list_children(**facts):
        return {
            f"{plan.do} {plan.when}"
            for plan in plan_all(make_outcome(**facts))
            if plan.step == 0 and POD in (plan.target, *(edit.target for edit in plan.edits))
        }

    unwatched = {"annotate away"}
    watched = {*unwatched, "annotate before", "delete before"}
    assert list_children() == unwatched
    assert list_children(watched=["pods", "webs"]) == watched
    owned = {*watched, "delete away", "tamper before", "tamper away"}
    assert list_children(watched=["pods", "webs"], owned=["pods"]) == owned


def test_two_operators_are_killed_and_suspended_at_each_request_and_each_write_of_the_user():
    agenda, outcome = Agenda(), make_outcome()
    Planner(1, outcome.facts).plan_replicas(agenda, outcome)
    plans = take_all(agenda)
    assert {plan.replicas for plan in plans} == {2}
    assert {(plan.do, plan.when) for plan in plans if plan.request is not None} == {
        (do, when) for do in ("kill", "hang") for when in ("before", "unanswered")
    }
    assert {plan.step for plan in plans if plan.do == "hang"} == {None, 0, 1, 2}
    assert Plan(seed=1, replicas=2) in plans


def test_only_applied_fields_are_tampered_with():
    body = {"metadata": {}, "spec": {"replicas": 1, "image": "a"}}
    assert find_tampering(body) == {}
    entries = [
        {"operation": "Update", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
        {"operation": "Apply", "fieldsV1": {"f:metadata": {"f:labels": {}}, "f:spec": {"f:image": {}}}},
    ]
    assert find_tampering({**body, "metadata": {"managedFields": entries}}) == {"spec": {"image": "a-tampered"}}


def test_edits_are_compared_if_their_field_is_handled():
    edit = Edit(WEB, {"spec": {"size": {"cpu": 1}}})
    assert get_field(edit) == ("spec", "size", "cpu")
    for field, expected in [((), True), (("spec",), True), (("spec", "size"), True), (("spec", "color"), False)]:
        assert Planner(1, Facts(updated={"webs": [field]})).is_handled(edit) is expected
    assert not Planner(1, Facts(updated={"pods": [()]})).is_handled(edit)


def test_edits_of_different_fields_take_turns():
    outcome = make_outcome()
    outcome.end.objects[0].body["spec"]["color"] = "red"
    fields = [get_field(edit)[1] for edit in Planner(1, outcome.facts).list_edits(outcome)]
    assert fields[:4] == ["size", "color", "size", "color"]
