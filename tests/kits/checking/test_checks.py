"""Whole checks of small operators: the right ones pass, and what is wrong with the others is found."""

import contextlib
import itertools
import re

import pytest

from kopf._kits.checking.checks import OUT_OF_REACH, Check, Finding
from kopf._kits.checking.oracles import Violation
from kopf._kits.checking.outcomes import Outcome
from kopf._kits.checking.plans import Edit, Moment, Plan, Target
from kopf._kits.checking.subjects import Loading, Subject
from kopf.testing import CannotCheck, ChecksFailed

RIGHT = """
    import cloud

    @kopf.on.create('webs')
    @kopf.on.update('webs')
    def serve(uid, spec, patch, **_):
        cloud.servers[uid] = {'size': spec['size']}
        patch.status['size'] = spec['size']

    @kopf.on.delete('webs')
    def end(uid, **_):
        cloud.servers.pop(uid, None)
"""

TWICE = """
    import cloud

    @kopf.on.create('webs')
    def serve(spec, patch, **_):
        patch.status['server'] = cloud.create(spec['size'])

    @kopf.on.delete('webs')
    def end(status, **_):
        cloud.servers.pop(status.get('server'), None)
"""

RANDOM_NAMES = """
    import random

    @kopf.on.create('webs')
    async def serve(spec, body, **_):
        child = {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': f'web-{random.randint(1000, 9999)}'}}
        kopf.adopt(child, owner=body)
        await kopf.apply(child)
"""

FALSY = """
    @kopf.on.create('webs')
    @kopf.on.update('webs')
    def serve(spec, patch, **_):
        if spec['size']:
            patch.status['size'] = spec['size']
"""

UNADOPTED = """
    @kopf.on.create('webs')
    async def serve(namespace, name, **_):
        await kopf.apply({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name, 'namespace': namespace}})
"""

RESTLESS = """
    import time

    @kopf.on.create('webs')
    @kopf.on.update('webs')
    def serve(patch, **_):
        patch.meta.annotations['seen'] = str(time.time())
"""

LEVEL = """
    @kopf.on.reconcile('webs', owns=['configmaps'])
    async def serve(spec, name, children, **_):
        data = {'size': str(spec['size'])}
        await children.apply({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name}, 'data': data})
"""

UNREPAIRED = """
    @kopf.on.reconcile('webs', owns=['configmaps'], prune=False)
    async def serve(name, children, status, patch, **_):
        if not status.get('done'):
            await children.apply({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name}})
            patch.status['done'] = True
"""


PLANS = 10
"""Among so many, there are plans of all kinds. A number, since the plans within a time depend on the machine."""


def limit_plans(monkeypatch, plans):
    """Let a check end after so many plans, not by its budget."""
    next_task, numbers = Check.next_task, itertools.count()
    monkeypatch.setattr(Check, "next_task", lambda self: next_task(self) if next(numbers) < plans else None)


@pytest.fixture
def check(write, kopf_chaos, tmp_path, monkeypatch):
    """Check an operator with a scenario that creates one object; by default, only a few plans are tried."""

    def check(text, scenario=None, *, budget=100, plans=PLANS, **options):
        limit_plans(monkeypatch, plans)
        app = write(text)
        monkeypatch.syspath_prepend(tmp_path)
        kopf_chaos._options.setdefault("crds", tmp_path / "crd.yaml")
        return kopf_chaos.check(
            app, scenario or (lambda sandbox: sandbox.apply(tmp_path / "web.yaml")), budget=budget, **options
        )

    return check


def find(check, text, **options):
    """Return the report about an operator that is wrong."""
    with pytest.raises(ChecksFailed) as caught:
        check(text, only_first=True, plans=1000, **options)
    return str(caught.value)


def test_right_operators_pass(check):
    report = check(RIGHT)
    assert {plan.do for plan, _ in report.tried} > {"", "kill", "lose", "error"}


@pytest.mark.long
def test_level_triggered_operators_pass(check):
    report = check(LEVEL)
    assert {plan.do for plan, _ in report.tried} > {"", "kill", "lose", "error"}


@pytest.mark.long
def test_calls_that_are_made_twice_are_found(check, kopf_chaos, tmp_path):
    def observe():
        import cloud

        return cloud.servers

    kopf_chaos.watch("cloud", observe)
    report = find(check, TWICE)
    assert '~ outside cloud server-(uid) 2: nothing is expected, {"size":2} is there' in report
    assert "The operator was killed, and started again 1 s later, " in report


@pytest.mark.parametrize(
    "text, expected",
    [
        pytest.param(RANDOM_NAMES, "+ configmaps default/#2", marks=pytest.mark.long),
        pytest.param(
            FALSY,
            "was edited at rest: spec.size = 0.\n"
            "   The operator reaches another end state than without the disturbance.\n       ~ ",
            marks=pytest.mark.long,
        ),
        (UNADOPTED, "Objects are left after the deletion of all user objects.\n       + configmaps default/w1"),
        pytest.param(RESTLESS, "The operator does not come to rest: ", marks=pytest.mark.long),
        pytest.param(
            UNREPAIRED,
            "Another client deleted configmaps default/w1, at rest.\n   The operator reaches another",
            marks=pytest.mark.long,
        ),
    ],
    ids=["random names", "falsy", "unadopted", "restless", "unrepaired"],
)
def test_mistakes_are_found(check, text, expected):
    assert expected in find(check, text)


@pytest.mark.long
def test_plans_that_have_found_something_find_it_again(check, tmp_path):
    find(check, RANDOM_NAMES)
    for _ in range(2):
        report = find(check, RANDOM_NAMES, plan=tmp_path / "kopf-check-1.yaml")
        assert "+ configmaps default/#2" in report
        assert "2 plans in " in report


UNSUPPORTED = """
    import dataclasses

    @kopf.kind('example.com/v1')
    @dataclasses.dataclass
    class Shop:
        spec: complex

    @kopf.on.create(Shop)
    def created(**_):
        pass
"""
CONVERTING = """
    import dataclasses

    @kopf.kind('example.com/v1beta1', 'Alarm')
    @dataclasses.dataclass
    class OldAlarm:
        spec: dict[str, str]

    @kopf.kind('example.com/v1')
    @dataclasses.dataclass
    class Alarm:
        spec: dict[str, str]

    @kopf.on.startup()
    def configure(settings, **_):
        settings.admission.server = kopf.WebhookServer()

    @kopf.on.convert(OldAlarm, Alarm)
    def upgrade(obj: OldAlarm, **_) -> Alarm:
        return Alarm(obj.spec)
"""
OLD_ALARM = {"apiVersion": "example.com/v1beta1", "kind": "Alarm"}

REFUSING = """
    import asyncio

    class Slow(kopf.WebhookServer):
        async def __call__(self, fn):
            await asyncio.sleep(5)
            async for config in super().__call__(fn):
                yield config

    @kopf.on.startup()
    def configure(settings, **_):
        settings.admission.managed = 'webs.example.com'
        settings.admission.server = Slow()

    @kopf.on.validate('webs')
    def refuse(**_):
        raise kopf.AdmissionError("No webs today.")

    @kopf.on.event('secrets')
    def look(**_): pass
"""


@pytest.mark.parametrize(
    "text, scenario, reason",
    [
        (RIGHT, lambda _: None, "The user creates no objects, so the operator has nothing to do: name some by --load"),
        (RIGHT, lambda _: 1 / 0, "The scenario fails without any disturbance: ZeroDivisionError: division by zero. "),
        ("1 / 0", None, "The operator has exited with the code 1: .*This happens without any disturbance: try it by"),
        (
            "@kopf.on.create('webs')\ndef serve(**_): raise kopf.TemporaryError('no pods yet', delay=50)",
            None,
            r"come to rest without any disturbance: serve of webs w1 is tried again .*\(no pods yet\). .*--pods",
        ),
        (
            "import socket\n@kopf.on.create('webs')\ndef serve(**_): socket.create_connection(('10.0.0.1', 1))",
            None,
            "A connection to 10.0.0.1:1 was attempted by a socket. .* For a check, simulate that service by",
        ),
        (
            UNSUPPORTED,
            None,
            "^Shop.spec has a type that msgspec does not support: [^\n]*complex",
        ),
        (
            CONVERTING,
            lambda sandbox: sandbox.create({**OLD_ALARM, "metadata": {"name": "a"}, "spec": {}}),
            "operator-not-started.invalid.* this kind, but does not write .*: set settings.admission.managed",
        ),
        (REFUSING, None, "The API refuses an object: .* denied the request: No webs today."),
    ],
    ids=["nothing", "scenario", "start", "controllers", "sockets", "models", "conversions", "webhooks"],
)
def test_what_cannot_be_checked_is_explained(check, text, scenario, reason):
    with pytest.raises(CannotCheck, match=reason):
        check(text, scenario)


DEPLOYING = """
    @kopf.on.create('webs')
    async def serve(name, body, **_):
        pod = {'metadata': {'labels': {'app': name}}, 'spec': {'containers': [{'name': 'web', 'image': 'web'}]}}
        spec = {'selector': {'matchLabels': {'app': name}}, 'template': pod}
        child = {'apiVersion': 'apps/v1', 'kind': 'Deployment', 'metadata': {'name': name}, 'spec': spec}
        kopf.adopt(child, owner=body)
        await kopf.apply(child)
"""


@pytest.mark.long
@pytest.mark.parametrize("pods", [False, True])
def test_children_that_need_controllers_are_named(check, kopf_chaos, pods):
    kopf_chaos._options["pods"] = pods
    report = check(DEPLOYING, budget=6)
    assert any("No controllers run the pods of deployments" in text for text in report.untried) is not pods


ROLLING = """
    @kopf.on.reconcile('webs', owns=['deployments'])
    async def serve(spec, name, children, **_):
        container = {'name': 'web', 'image': f'web:{spec["size"]}'}
        template = {'metadata': {'labels': {'app': name}}, 'spec': {'containers': [container]}}
        deployment = {'apiVersion': 'apps/v1', 'kind': 'Deployment', 'metadata': {'name': name}}
        own = {'replicas': spec['size'], 'selector': {'matchLabels': {'app': name}}, 'template': template}
        await children.apply({**deployment, 'spec': own}, ready=True)
"""


@pytest.mark.parametrize("sizes", [(0,), (3,), (3, 2)], ids=str)
@pytest.mark.long
def test_the_bookkeeping_of_deployments_is_no_alarm(check, kopf_chaos, tmp_path, sizes):
    kopf_chaos._options["pods"] = True
    target = Target(resource="webs", namespace="default", name="w1")
    Plan(edits=tuple(Edit(target, {"spec": {"size": size}}) for size in sizes)).write(tmp_path / "plan.yaml")
    report = check(ROLLING, plan=tmp_path / "plan.yaml")
    assert len(report.tried) == 2


TAGGED = """
    @kopf.on.reconcile('webs', owns=['deployments'])
    async def serve(spec, name, children, **_):
        container = {'name': 'web', 'image': 'web:1' if spec['size'] > 1 else 'web'}
        template = {'metadata': {'labels': {'app': name}}, 'spec': {'containers': [container]}}
        deployment = {'apiVersion': 'apps/v1', 'kind': 'Deployment', 'metadata': {'name': name}}
        own = {'selector': {'matchLabels': {'app': name}}, 'template': template}
        await children.apply({**deployment, 'spec': own})
"""


@pytest.mark.long
def test_defaults_from_the_time_of_the_creation_are_no_alarm(check, tmp_path):
    edit = Edit(Target(resource="webs", namespace="default", name="w1"), {"spec": {"size": 1}})
    Plan(edits=(edit,)).write(tmp_path / "plan.yaml")
    assert len(check(TAGGED, plan=tmp_path / "plan.yaml").tried) == 2


@pytest.mark.long
def test_the_pods_of_deployments_are_no_children_unless_they_are_watched(check, kopf_chaos):
    kopf_chaos._options["pods"] = True
    report = check(DEPLOYING, plans=1)
    assert "The operator does not watch deployments: what other clients do to these children was not tried." in (
        report.untried
    )


@pytest.mark.long
def test_the_whole_budget_is_for_other_plans_if_nothing_is_found(check):
    report = check(RIGHT, budget=5, plans=10**6)
    assert report.left and not report.findings
    assert report.seconds > 0.9 * 5  # a fifth would be for smaller plans, if there were findings
    [text] = [text for text in report.untried if "more plans were not tried" in text]
    counts = re.findall(r"\w+ \((\d+)\)", text.partition("They are: ")[2])
    assert sum(map(int, counts)) == report.left


TICKING = """
    import time

    @kopf.on.create('webs')
    @kopf.on.update('webs')
    def serve(spec, patch, **_):
        patch.status['size'] = spec['size']

    @kopf.timer('webs', interval=30)
    def tick(patch, **_):
        patch.status['ticked'] = time.time()
"""


@pytest.mark.long
def test_periodic_writes_are_disturbed_before_the_end_state_only(check):
    report = check(TICKING, plans=60)
    assert not [text for text in report.untried if OUT_OF_REACH in text]


FAILING = """
    @kopf.on.create('webs')
    @kopf.on.update('webs')
    def serve(spec, **_):
        raise kopf.PermanentError('There is no such size')
"""


def test_handlers_that_fail_without_disturbances_are_named(check):
    report = check(FAILING, plans=1)
    assert report.noticed == [
        "Handler 'serve' of webs w1 failed in the undisturbed run, too: There is no such size. "
        "The other runs are expected to fail in the same way."
    ]


CONFUSED = """
    @kopf.timer('webs', interval=3600, initial_delay=lambda status, **_: status.last)
    def count(patch, **_):
        patch.status['size'] = 1

    @kopf.on.create('webs', when=lambda spec, **_: spec['sizes'] > 1)
    def serve(retry, logger, **_):
        logger.warning('Nothing to be noticed.')

    @kopf.on.create('webs')
    def wait(retry, **_):
        if not retry:
            raise kopf.TemporaryError('It is not there yet.', delay=1)
"""


def test_errors_in_the_log_of_the_undisturbed_run_are_named(check):
    report = check(CONFUSED, plans=1)
    texts = [re.sub(r"\(\S+?(\w+\.py:\d+)\)", r"(\1)", text) for text in sorted(report.noticed)]
    assert texts == [
        "Logged in the undisturbed run: initial_delay= of timer 'count' (app.py:3) failed: AttributeError: 'Status' "
        "object has no attribute 'last': it is a mapping, use ['last'] or .get('last'). "
        "Timer 'count' begins at once. [function-failed]",
        "Logged in the undisturbed run: when= of handler 'serve' (app.py:7) failed: KeyError: 'sizes'. "
        "The handler is skipped, and is tried again with the next change. [function-failed]",
    ]


REFUSING = """
    @kopf.on.create('webs')
    @kopf.on.update('webs')
    def serve(spec, patch, **_):
        if not spec['size']:
            raise kopf.TemporaryError('Some servers are needed.', delay=10)
        patch.status['size'] = spec['size']
"""


MUTATING = """
    @kopf.on.startup()
    def configure(settings, **_):
        settings.admission.managed = 'webs.example.com'
        settings.admission.server = kopf.WebhookServer()

    @kopf.on.mutate('webs', operations=OPERATIONS)
    def default_size(spec, patch, **_):
        if not spec.get('size'):
            patch.spec['size'] = 3

    @kopf.on.create('webs')
    @kopf.on.update('webs', field=FIELD)
    def serve(spec, patch, **_):
        patch.status['size'] = spec.get('size')
"""


SIZELESS = Edit(Target(resource="webs", namespace="default", name="w1"), {"spec": {"size": 0}})


@pytest.mark.long
def test_values_that_a_webhook_sets_at_the_creation_are_no_alarm(check, tmp_path):
    Plan(edits=(SIZELESS,)).write(tmp_path / "plan.yaml")
    text = MUTATING.replace("OPERATIONS", "['CREATE']").replace("FIELD", "'spec'")
    check(text, plan=tmp_path / "plan.yaml")


@pytest.mark.long
def test_ignored_values_are_found_if_a_webhook_sets_them_at_edits_too(check, tmp_path):
    Plan(edits=(SIZELESS,)).write(tmp_path / "plan.yaml")
    ignoring = "'spec', when=lambda spec, **_: spec['size'] != 3"
    with pytest.raises(ChecksFailed, match="status.size: 3 is expected, 2 is there"):
        check(
            MUTATING.replace("OPERATIONS", "['CREATE', 'UPDATE']").replace("FIELD", ignoring),
            plan=tmp_path / "plan.yaml",
        )


@pytest.mark.long
def test_values_that_a_handler_sets_at_the_creation_are_found(check, tmp_path):
    Plan(edits=(SIZELESS,)).write(tmp_path / "plan.yaml")
    creating = """
    @kopf.on.create('webs')
    def first(spec, patch, **_):
        if not spec['size']:
            patch.spec['size'] = 3
"""
    with pytest.raises(ChecksFailed, match="spec.size: 3 is expected, 0 is there"):
        check(
            MUTATING.replace("OPERATIONS", "['DELETE']").replace("FIELD", "'spec'") + creating,
            plan=tmp_path / "plan.yaml",
        )


@pytest.mark.long
def test_values_that_a_webhook_sets_at_the_creation_are_named(check):
    text = MUTATING.replace("OPERATIONS", "['CREATE']").replace("FIELD", "'spec'")
    report = check(text, plans=30)
    [named] = [text for text in report.untried if "replaces the value in new objects" in text]
    assert "webs default/w1 with spec.size = 0 was not compared with a new object" in named


@pytest.mark.long
def test_retries_of_values_that_no_handler_can_apply_are_no_alarm(check, tmp_path):
    Plan(edits=(SIZELESS,)).write(tmp_path / "plan.yaml")
    check(REFUSING, plan=tmp_path / "plan.yaml")


IGNORANT = """
    @kopf.on.create('webs')
    @kopf.on.update('webs')
    def serve(spec, status, patch, **_):
        if not status.get('size'):
            patch.status['size'] = spec['size']

    @kopf.on.delete('webs')
    def end(**_):
        pass
"""


@pytest.fixture
def check_edited(check, tmp_path):
    """Check an operator with one edit at its first patch, when the scenario is going to edit the same object."""

    def scenario(sandbox):
        sandbox.apply(tmp_path / "web.yaml")
        sandbox.wait_for("webs", "w1", lambda body: "finalizers" in body["metadata"])
        sandbox.patch("webs", "w1", {"spec": {"size": 5}})

    def check_edited(text, size, when):
        edit = Edit(Target(resource="webs", namespace="default", name="w1"), {"spec": {"size": size}})
        moment = Moment(verb="patch", resource="webs", number=1)
        Plan(do="edit", when=when, request=moment, edits=(edit,)).write(tmp_path / "plan.yaml")
        return check(text, scenario, plan=tmp_path / "plan.yaml")

    return check_edited


@pytest.mark.parametrize(
    "when, size",
    [
        pytest.param("before", 3, id="before-replaced"),
        pytest.param("before", 5, id="before-repeated"),
        pytest.param("unanswered", 3, id="unanswered-replaced"),
        pytest.param("unanswered", 5, id="unanswered-repeated"),
    ],
)
@pytest.mark.long
def test_edits_that_the_scenario_replaces_are_no_alarm(check_edited, when, size):
    check_edited(RIGHT, size, when)


@pytest.mark.parametrize("size", [3, 5], ids=["replaced", "repeated"])
@pytest.mark.long
def test_replaced_edits_that_the_operator_mistakes_are_found(check_edited, size):
    with pytest.raises(ChecksFailed, match="another end state"):
        check_edited(IGNORANT, size, "before")


@pytest.mark.long
def test_modules_with_handlers_are_imported_by_each_operator_anew(check, tmp_path, write):
    write(RANDOM_NAMES, "handlers.py")
    report = find(check, "import handlers")
    assert "+ configmaps default/#2" in report


@pytest.mark.long
def test_the_budget_is_kept(check):
    for budget in (2, 8, 32):  # on a busy machine, the undisturbed runs alone can take some seconds
        with contextlib.suppress(CannotCheck):
            report = check(RIGHT, budget=budget, plans=1000)
            break
    assert report.seconds < budget + 8
    assert any("more plans were not tried: the budget was used up." in text for text in report.untried)
    assert report.left > 0 and report.budget == budget


def test_a_budget_without_any_disturbance_is_no_success(check):
    with pytest.raises(CannotCheck, match=r"1 of \d+ plans in .*: nothing was disturbed, as .*; budget=60 tries more"):
        check(RIGHT, budget=0.01, plans=1000)


def test_the_report_of_a_success_is_printed(check, capsys):
    check(RIGHT, plans=2)
    assert re.search(r"plans in .*: nothing found", capsys.readouterr().out)


@pytest.fixture
def real(tmp_path):
    """Return a check in real time, which does not run."""
    return Check(Subject(arguments=[], options={}, scenario=Loading([]), observers={}, folder=tmp_path, rest=1))


def test_findings_in_real_time_are_confirmed_by_a_second_run(real, monkeypatch):
    once, twice = Finding(Plan(do="stop", step=1), [Violation("end", "")]), Finding(Plan(), [Violation("rest", "")])
    real._found = {("once",): once, ("twice",): twice}
    monkeypatch.setattr(real, "_try_in_copy", lambda plan: (Outcome(), [] if plan.do else [Violation("rest", "")]))
    real._confirm()
    assert (real._found, real._report.unconfirmed) == ({("twice",): twice}, [once])
    monkeypatch.setattr(real, "_try_in_copy", lambda plan: (Outcome(), []))
    real._confirm()  # what was seen twice is not tried again
    assert list(real._found) == [("twice",)] and not real._report.untried


def test_findings_that_the_budget_leaves_unconfirmed_are_named(real):
    real._found = {("once",): Finding(Plan(), [Violation("end", "")])}
    real._ends_at = 0
    real._confirm()
    assert list(real._found) == [("once",)]
    assert real._report.untried == ["1 findings were seen only once: the budget was used up."]


@pytest.mark.parametrize("do", ["", "kill"])
def test_nothing_is_compared_with_courses_that_the_deadline_has_ended(real, monkeypatch, do):
    real._base, real._deadline = Outcome(), 0
    monkeypatch.setattr(real, "_run_alone", lambda plan, **options: Outcome(problem="it was interrupted"))
    edit = Edit(Target(resource="webs", name="w1"), {"spec": {"size": 3}})
    outcome, violations = real._try(Plan(do=do, step=1, edits=(edit,)))
    assert outcome.problem and not violations and list(real._outcomes) == ["()"]


def wait_for_the_size(sandbox):
    sandbox.create("webs", "w1", spec={"size": 1})
    sandbox.wait_for("webs", "w1", lambda body: body["status"]["size"] == 1)
    sandbox.patch("webs", "w1", {"spec": {"size": 5}})


def assert_the_size(sandbox):
    sandbox.create("webs", "w1", spec={"size": 1})
    sandbox.rest()
    assert sandbox.get("webs", "w1")["status"]["size"] == 1


def replace_what_was_read(sandbox):
    sandbox.create("webs", "w1", spec={"size": 1})
    body = sandbox.wait_for("webs", "w1", lambda body: "finalizers" in body["metadata"])
    sandbox.replace({**body, "spec": {"size": 5}})


@pytest.mark.parametrize(
    "scenario",
    [
        wait_for_the_size,
        assert_the_size,
        replace_what_was_read,
    ],
)
@pytest.mark.long
def test_scenarios_that_a_concurrent_edit_contradicts_are_no_alarm(check, tmp_path, scenario):
    edit = Edit(Target(resource="webs", namespace="default", name="w1"), {"spec": {"size": 3}})
    plan = Plan(do="edit", when="unanswered", request=Moment(verb="patch", resource="webs", number=1), edits=(edit,))
    plan.write(tmp_path / "plan.yaml")
    check(RIGHT, scenario, plan=tmp_path / "plan.yaml")


LABELLED = """
    @kopf.on.reconcile('webs', owns=['configmaps'])
    async def serve(name, labels, children, **_):
        data = {'team': labels.get('team', '')}
        await children.apply({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name}, 'data': data})
"""
WEB = {"apiVersion": "example.com/v1", "kind": "Web", "metadata": {"name": "w1", "labels": {"team": "a"}}}


@pytest.mark.parametrize("verb", ["patch", "apply", "replace"])
@pytest.mark.long
def test_edited_labels_are_those_of_the_objects_that_are_created_again(check, tmp_path, verb):
    def scenario(sandbox):
        sandbox.apply({**WEB, "spec": {"size": 1}})
        sandbox.rest()
        edited = {**WEB, "metadata": {"name": "w1", "labels": {"team": "b"}}, "spec": {"size": 2}}
        match verb:
            case "patch":
                sandbox.patch("webs", "w1", {"metadata": {"labels": {"team": "b"}}, "spec": {"size": 2}})
            case "apply":
                sandbox.apply(edited)
            case "replace":
                version = sandbox.get("webs", "w1")["metadata"]["resourceVersion"]
                sandbox.replace({**edited, "metadata": {**edited["metadata"], "resourceVersion": version}})

    Plan(fresh=True).write(tmp_path / "plan.yaml")
    check(LABELLED, scenario, plan=tmp_path / "plan.yaml")


@pytest.mark.long
@pytest.mark.parametrize("what", ["status", "child"])
def test_writes_that_new_objects_would_lack_are_named(check, what):
    def scenario(sandbox):
        sandbox.apply({**WEB, "spec": {"size": 1}})
        sandbox.wait_for("configmaps", "w1")
        sandbox.rest()
        if what == "status":
            sandbox.patch("webs", "w1", {"status": {"seen": True}}, subresource="status")
        else:
            sandbox.patch("configmaps", "w1", {"data": {"other": "1"}})

    report = check(LABELLED, scenario, plans=25)
    assert not any(plan.fresh or plan.do == "recreate" for plan, _ in report.tried)
    [text] = [text for text in report.untried if "edited objects were not compared with new ones" in text]
    assert text.startswith("The scenario writes the status or other objects of ")
