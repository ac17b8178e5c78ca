"""Courses in real time: operators as processes, with clients that virtual time cannot control."""

import os
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from kopf._kits.checking.command_line import import_observers
from kopf._kits.checking.courses import Course
from kopf._kits.checking.forks import ForkPool
from kopf._kits.checking.plans import CALL, Edit, Moment, Plan, Target
from kopf._kits.checking.real_testbeds import RealSandboxTestbed, find_root
from kopf._kits.checking.subjects import Loading, Subject
from kopf._kits.checking.testbeds import CannotContinue, make_real_pace
from kopf._kits.testing.wire.manifests import read

WEB = Target(resource="webs", namespace="default", name="w1")
CREATE = Moment(verb="create", resource="configmaps")

HANDLERS = """
    import json, os, ssl, subprocess, sys, time, urllib.error, urllib.request, yaml

    def send(path, body):
        # A client of its own, in a process of its own, with a real socket.
        subprocess.run([sys.executable, __file__, path, json.dumps(body)], check=True)

    @kopf.on.create('webs')
    @kopf.on.update('webs')
    def serve(spec, name, namespace, body, patch, **_):
        child = {'metadata': {'generateName': f'{name}-'}}
        kopf.adopt(child, owner=body)
        send(f'/api/v1/namespaces/{namespace}/configmaps', child)
        time.sleep(0.5)  # so that a kill soon after the response comes before the end of the handler
        patch.status['size'] = spec['size']

    if __name__ == '__main__':
        with open(os.environ['KUBECONFIG']) as file:
            config = yaml.safe_load(file)
        url = config['clusters'][0]['cluster']['server'] + sys.argv[1]
        token = config['users'][0]['user']['token']
        headers = {'Content-Type': 'application/json', 'Authorization': f'Bearer {token}'}
        request = urllib.request.Request(url, sys.argv[2].encode(), headers)
        urllib.request.urlopen(request, context=ssl._create_unverified_context()).read()
"""

CLOUD = """
import os, pathlib

def create(name):
    pathlib.Path(os.environ['KOPF_CHECK_FOLDER'], name).touch()

def list_servers():
    return sorted(os.listdir(os.environ['KOPF_CHECK_FOLDER']))
"""

ORDERING = """
    import asyncio, cloud, uuid

    @kopf.on.create('webs')
    async def serve(name, **_):
        cloud.create(f'{name}-{uuid.uuid4()}')
        await asyncio.sleep(0.1)
"""


@pytest.fixture
def run(write, tmp_path, monkeypatch):
    """Run a course in real time; return its outcome."""

    def run(plan, text=HANDLERS, **fields):
        monkeypatch.syspath_prepend(tmp_path)
        subject = Subject(
            arguments=["--all-namespaces", str(write(text))],
            options={"crds": tmp_path / "crd.yaml"},
            scenario=Loading([body for _, body in read(tmp_path / "web.yaml")]),
            folder=tmp_path,
            rest=0.7,
            **{"observers": {}, **fields},
        )
        return ForkPool(1, 100).call(lambda: Course(subject, plan).run(), None)

    return run


def count_children(outcome):
    return sum(item.resource == "configmaps" for item in outcome.end.objects)


def is_running(path):
    listed = subprocess.run(["ps", "-A", "-ww", "-o", "args"], capture_output=True, text=True, check=True)
    return str(path) in listed.stdout


@pytest.mark.long
def test_a_kill_in_the_middle_of_a_request_shows_what_is_done_twice(run, tmp_path):
    outcome = run(Plan(do="kill", when="unanswered", request=CREATE))
    assert (outcome.problem, outcome.failure, outcome.has_begun) == ("", "", True)
    assert count_children(outcome) == 2
    assert not outcome.final.objects and not is_running(tmp_path / "app.py")


@pytest.mark.long
def test_an_undisturbed_course_goes_to_the_end_of_all_objects(run):
    outcome = run(Plan(restart=True))
    assert (outcome.problem, outcome.failure, outcome.scenario_error, outcome.rests) == ("", "", "", True)
    assert outcome.steps == ["apply w1", "delete webs w1"]
    assert count_children(outcome) == 1 and not outcome.quiet_writes and not outcome.restart_writes
    assert (outcome.facts.parents, outcome.facts.watched) == ([WEB], ["webs"])
    assert outcome.facts.updated == {"webs": [()]} and "size" in str(outcome.facts.schemas["webs"])


@pytest.mark.long
@pytest.mark.parametrize(
    "plan, children",
    [
        (Plan(do="kill", when="before", request=CREATE), 1),
        (Plan(do="kill", when="after", request=CREATE), 2),
        (Plan(do="stop", step=1, seconds=1), 1),
        (Plan(do="hang", step=1, seconds=2), 1),
        (Plan(do="freeze", step=1, seconds=2, target=Target(resource="webs")), 1),
        (Plan(do="edit", when="before", request=CREATE, edits=(Edit(WEB, {"spec": {"size": 4}}),)), 2),
        (Plan(edits=(Edit(WEB, {"spec": {"size": 4}}),)), 2),
        (Plan(do="recreate", step=0, target=WEB), 1),
    ],
    ids=lambda value: f"{value.do} {value.when}" if isinstance(value, Plan) else "",
)
def test_plans_are_those_of_virtual_time(run, plan, children):
    outcome = run(plan)
    assert (outcome.problem, outcome.failure, outcome.retried) == ("", "", [])
    assert outcome.has_begun is bool(plan.do)
    assert count_children(outcome) == children


@pytest.mark.long
def test_an_error_is_retried_although_that_takes_longer_than_the_rest(run):
    text = HANDLERS.replace("on.create('webs')", "on.create('webs', backoff=2)")
    outcome = run(Plan(do="error", status=500, request=CREATE), text)
    assert outcome.has_begun and not outcome.retried and count_children(outcome) == 1


@pytest.mark.long
def test_requests_are_retried_although_that_takes_longer_than_the_rest(run):
    patched = Moment(verb="patch", resource="webs", subresource="status")
    outcome = run(Plan(do="error", status=500, times=4, request=patched))  # it is retried after 1, 1, 2, and 3 s
    assert outcome.has_begun and outcome.rests and not outcome.quiet_writes and count_children(outcome) == 1
    [web] = [item for item in outcome.end.objects if item.resource == "webs"]
    assert web.body["status"]["size"] == 2


ELECTED = """
    @kopf.on.startup()
    def configure(settings, **_):
        settings.leadership.enabled = True
        settings.leadership.duration, settings.leadership.renew_deadline = 6, 4

    @kopf.on.create('webs')
    async def serve(spec, patch, **_):
        patch.status['size'] = spec['size']
"""


@pytest.mark.long
@pytest.mark.parametrize("replicas", [1, 2])
def test_the_successor_of_a_killed_leader_works_before_the_rest(run, replicas):
    plan = Plan(do="kill", when="before", request=Moment(verb="patch", resource="webs"), replicas=replicas)
    outcome = run(plan, ELECTED)
    assert (outcome.problem, outcome.failure, outcome.has_begun, outcome.rests) == ("", "", True, True)
    [web] = [item for item in outcome.end.objects if item.resource == "webs"]
    assert web.body["status"]["size"] == 2 and not outcome.quiet_writes


@pytest.mark.long
def test_an_operator_is_killed_after_a_call_of_the_outside(run, tmp_path):
    (tmp_path / "cloud.py").write_text(CLOUD)
    observers = import_observers(["cloud:list_servers"], [tmp_path])
    plan = Plan(do="kill", when="after", request=Moment(verb=CALL, resource="cloud.create"))
    outcome = run(plan, ORDERING, observers=observers, outside=["cloud"])
    assert outcome.has_begun and not outcome.failure
    assert len(outcome.end.outside["cloud:list_servers"]) == 2
    assert not outcome.overlaps  # the call of the killed operator does not go on
    assert "KOPF_CHECK_FOLDER" not in os.environ


@pytest.mark.long
def test_child_processes_are_killed_with_their_operator(run, tmp_path):
    # The child process writes to the file if it survives its operator.
    surviving = "subprocess.run(['sh', '-c', f'sleep 1.5; echo x >> {__file__}-done'], check=True)"
    text = HANDLERS.replace("patch.status['size'] =", f"{surviving}; patch.status['size'] =")
    plan = Plan(do="kill", when="after", request=CREATE, seconds=4)
    outcome = run(plan, text)
    assert outcome.has_begun and not outcome.failure
    assert (tmp_path / "app.py-done").read_text() == "x\n"


@pytest.fixture
def act(tmp_path):
    """Call the function with an open testbed, in a copy of this process; return its result."""

    def act(function):
        def call():
            subject = Subject(arguments=[], options={}, scenario=Loading([]), observers={}, folder=tmp_path, rest=1)
            testbed = RealSandboxTestbed(subject, None, Plan(), make_real_pace(1, 0))
            testbed.open()
            try:
                return function(testbed)
            finally:
                testbed.close()

        return ForkPool(1, 60).call(call, None)

    return act


def test_a_disturbance_that_fails_is_no_mistake_of_the_operator(act):
    def wait(testbed):
        testbed.call_later(0, lambda: 1 / 0)
        try:
            while True:
                testbed.advance(0.01)
        except CannotContinue as error:
            return str(error)

    assert act(wait) == "The disturbance has failed: ZeroDivisionError: division by zero."


def test_nothing_is_stable_while_a_disturbance_goes_on(act):
    def watch(testbed):
        before = testbed.is_stable()
        testbed.call_later(60, lambda: None)
        return before, testbed.is_stable()

    assert act(watch) == (True, False)


def test_the_end_waits_for_a_timer_that_is_starting_something(act):
    def end(testbed):
        entered, proceeds, done = threading.Event(), threading.Event(), []

        def start():
            entered.set()
            proceeds.wait()
            done.append(1)

        testbed.call_later(0, start)
        entered.wait()
        threading.Timer(0.2, proceeds.set).start()
        testbed.close()
        return done

    assert act(end) == [1]


def test_operators_may_rest_later_if_the_disturbance_is_long():
    short, long = make_real_pace(1, 0), make_real_pace(1, 100)
    assert (long.patience - short.patience, long.periodic_patience - short.periodic_patience) == (100, 100)


def test_modules_are_imported_from_the_folders_of_their_packages(tmp_path, monkeypatch):
    (tmp_path / "sky" / "far").mkdir(parents=True)
    for path in ("rain.py", "sky/__init__.py", "sky/far/__init__.py", "sky/far/stars.py"):
        (tmp_path / path).touch()
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("rain", "sky", "sky.far", "sky.far.stars"):
        __import__(name)
        assert find_root(name) == str(tmp_path)
        monkeypatch.delitem(sys.modules, name)


SUSPENDING = """
import pathlib, sys, time
from kopf._kits.checking.call_records import CallRecord
from kopf._kits.checking.real_testbeds import RealOperator
from kopf._kits.checking.watched_runs import Orders
import os

folder = pathlib.Path(sys.argv[1])
(folder / 'events').touch()
operator = RealOperator(CallRecord().add(), lambda recorder: None, folder / 'output', 0)
orders = Orders(number=0, path=str(folder / 'events'))
operator.start([str(folder / 'app.py')], {**os.environ, **orders.make_environment()})
while not (folder / 'loaded').exists():
    time.sleep(0.01)
if sys.argv[2] == 'suspended':
    operator.hang(600)
print('ready', flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("state", ["running", "suspended"])
@pytest.mark.long
def test_operators_end_when_their_check_is_killed(write, tmp_path, state):
    app = write(f"import pathlib, time\npathlib.Path({str(tmp_path / 'loaded')!r}).touch()\ntime.sleep(600)")
    command = [sys.executable, "-c", textwrap.dedent(SUSPENDING), str(tmp_path), state]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as check:
        try:
            assert check.stdout.readline() == b"ready\n"
            assert is_running(app)
        finally:
            check.kill()
    while is_running(app):
        time.sleep(0.05)
