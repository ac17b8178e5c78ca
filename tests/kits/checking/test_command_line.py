"""``kopf check`` as users run it: what it prints, what it writes, and its exit codes."""

import os
import re
import signal
import subprocess
import sys
import time
from xml.etree import ElementTree

import pytest
from forkserver import run_process

from kopf._kits.checking.command_line import Options, choose_budget

RIGHT = """
    @kopf.on.create('webs')
    def serve(spec, patch, **_):
        patch.status['size'] = spec['size']
"""

TWICE = """
    import cloud

    @kopf.on.create('webs')
    def serve(spec, **_):
        cloud.create(spec['size'])
"""

OPTIONS = ["--crd", "crd.yaml", "--load", "web.yaml"]


@pytest.fixture
def run(write, tmp_path):
    """Run the command with the handlers in ``app.py``; return its exit code and its outputs."""

    def run(text, *arguments):
        if text is not None:
            write(text)
        done = run_process(["kopf", "check", *arguments], cwd=tmp_path, timeout=300)
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.mark.long
def test_nothing_is_found(run, tmp_path):
    code, output, errors = run(RIGHT, "app.py", *OPTIONS, "--budget", "15s", "--junit", "junit.xml")
    assert code == 0, output + errors
    assert re.search(r"plans in .*: nothing found(\.|, but the budget has ended before the others; .*)\n$", output)
    assert "- No handler handles updates of webs: the edited objects were not compared with new ones." in output
    assert "of " in errors and "plans done, 0 found, " in errors
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert suite.get("failures") == "0" and int(suite.get("tests")) > 1
    assert suite.findall("testcase")[0].get("name") == "Nothing was disturbed."
    assert suite.findall(".//skipped")


def test_a_budget_without_any_disturbance_is_no_success(run):
    code, output, _ = run(RIGHT, "app.py", *OPTIONS, "--budget", "0.01s")
    assert code == 2
    assert re.search(r"1 of \d+ plans in .*: nothing was disturbed, as the budget .*; --budget 60s tries more", output)


def test_kinds_that_the_operator_declares_need_no_crds(run, tmp_path):
    text = """
    import dataclasses

    @dataclasses.dataclass
    class Spec:
        size: int

    @kopf.kind('example.com/v1', 'Note', rules=['self.spec.size > 0'])
    @dataclasses.dataclass
    class Note:
        spec: Spec

    @kopf.on.create(Note)
    @kopf.on.update(Note)
    def serve(spec: Spec, **_):
        return None
    """
    note = "{apiVersion: example.com/v1, kind: Note, metadata: {name: a, namespace: default}, spec: {size: 3}}"
    (tmp_path / "note.yaml").write_text(note)
    (tmp_path / "plan.yaml").write_text("{seed: 1, do: kill, step: 1, seconds: 5}")
    code, output, errors = run(text, "app.py", "--load", "note.yaml", "--plan", "plan.yaml")
    assert code == 0, output + errors
    assert "The schema of notes" not in output  # so its fields were edited
    assert int(re.search(r"(\d+) plans in", output)[1]) > 1


def test_what_is_found_can_be_run_again(run, tmp_path):
    observed = ["--observe", "cloud:servers"]
    code, output, errors = run(
        TWICE, "app.py", *OPTIONS, *observed, "-x", "--budget", "2m", "--junit", "junit.xml", "--save", "plans"
    )
    assert code == 1, output + errors
    again = "kopf check app.py --crd crd.yaml --load web.yaml --observe cloud:servers --plan plans/kopf-check-1.yaml"
    assert f"Run it again: {again}" in output
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert suite.get("failures") == "1" and "outside cloud" in suite.find(".//failure").text
    plan = (tmp_path / "plans" / "kopf-check-1.yaml").read_text()
    assert f"# Run: {again}\n" in plan
    logs = set()
    for _ in range(3):
        code, output, _ = run(None, *again.split()[2:], "--log", "requests.log")
        assert code == 1 and "1 found" in output
        logs.add((tmp_path / "requests.log").read_bytes())
    assert len(logs) == 1 and b" watch /apis/example.com/v1/webs " in logs.pop()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_operators_with_real_sockets_are_checked_in_real_time(run):
    text = """
    import socket, uuid

    s = socket.create_server(('127.0.0.1', 0))

    @kopf.on.create('webs')
    async def serve(body, **_):
        socket.create_connection(s.getsockname()).close()
        child = {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': f'web-{uuid.uuid4()}'}}
        kopf.adopt(child, owner=body)
        await kopf.apply(child)
    """
    code, _, errors = run(text, "app.py", *OPTIONS)
    assert code == 2 and "--real-time" in errors
    options = ["--real-time", "--rest", "1s", "--budget", "3m"]
    code, output, errors = run(None, "app.py", *OPTIONS, *options, "-x")
    assert code == 1 and "+ configmaps default/#2" in output, output + errors
    again = "kopf check app.py --crd crd.yaml --load web.yaml --real-time --rest=1s --plan kopf-check-1.yaml"
    assert f"Run it again: {again}" in output
    code, output, errors = run(None, *again.split()[2:])
    assert code == 1 and "1 found" in output, output + errors


@pytest.mark.long
@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_no_processes_stay_after_an_interruption(write, tmp_path, number, code):
    text = """
    import pathlib, time

    @kopf.on.create('webs')
    def serve(**_):
        pathlib.Path('began').touch()
        time.sleep(600)
    """
    (tmp_path / "tmp").mkdir()
    app = str(write(text))
    command = [sys.executable, "-m", "kopf", "check", app, *OPTIONS, "--real-time"]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    with subprocess.Popen(command, cwd=tmp_path, env=environment) as check:
        while not (tmp_path / "began").exists():
            time.sleep(0.05)
        check.send_signal(number)
    assert check.returncode == code
    listing = ["ps", "-A", "-ww", "-o", "args"]
    while app in subprocess.run(listing, capture_output=True, text=True, check=True).stdout:
        time.sleep(0.05)
    assert number == signal.SIGKILL or not list((tmp_path / "tmp").iterdir())


@pytest.mark.long
def test_options_of_the_operator_are_passed_on(run, tmp_path):
    written = ["--leader-election", "-n", "default", "--plan", "plan.yaml", "--log", "requests.log"]
    (tmp_path / "plan.yaml").write_text("{seed: 1, replicas: 2, do: kill, step: 0}")
    code, output, errors = run(RIGHT, "app.py", *OPTIONS, *written)
    assert code == 0, output + errors
    log = (tmp_path / "requests.log").read_text()
    assert "/namespaces/default/leases " in log and " watch /apis/example.com/v1/namespaces/default/webs " in log


def test_commands_that_repeat_a_check_have_its_options():
    options = {
        "paths": ["app.py"],
        "modules": [],
        "crds": ["crd.yaml"],
        "loads": ["web.yaml"],
        "observed": [],
        "namespaces": ["one", "two"],
        "peering_name": "main",
        "leader_election": True,
        "pods": True,
        "real_time": True,
        "cluster": None,
        "apply_crds": False,
        "rest": 5.0,
        "seed": 1,
        "budget": None,
        "jobs": None,
        "only_first": True,
        "plan_file": None,
        "save": ".",
        "junit": None,
        "log": None,
    }
    operator = ["--leader-election", "--peering", "main"]
    assert Options(**options).make_arguments() == ["--namespace", "one", "--namespace", "two", *operator, "app.py"]
    command = ["kopf", "check", "app.py", "--crd", "crd.yaml", "--load", "web.yaml", "-n", "one", "-n", "two"]
    assert Options(**options).make_command() == [*command, *operator, "--pods", "--real-time", "--rest=5s"]
    assert choose_budget(None, is_real=Options(**options).is_real) == 300
    assert Options(**{**options, "real_time": False}).make_command() == [*command, *operator, "--pods"]
    options |= {"real_time": False, "cluster": "kind", "apply_crds": True, "pods": False, "namespaces": []}
    where = ["--cluster", "kind", "--apply-crds", "--rest=5s"]
    assert Options(**options).make_command() == [*command[:-4], *operator, *where]
    assert Options(**options).make_arguments() == [*operator, "app.py"]
    assert choose_budget(None, is_real=Options(**options).is_real) == 300


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "Name the files with the handlers"),
        (["app.py", "--budget", "soon"], "'soon' is not a duration: write it as 60s or 2m."),
        (["app.py", "--log", "x.log"], "--log is for --plan only."),
        (["app.py", "--apply-crds"], "Not checked: --apply-crds is for --cluster only"),
        (["app.py", "--cluster", "x", "-n", "one"], "Not checked: With --cluster, leave out --namespace"),
        (["app.py", "--cluster", "x", "--pods"], "Not checked: With --cluster, leave out --pods"),
        (["app.py", *OPTIONS, "--cluster", "x"], "Not checked: .*(x|kubeconfig).*"),
        (
            ["app.py", "--load", "web.yaml"],
            "Not checked: .*no matches for kind .*[.] Name the CRD of this kind by --crd.",
        ),
        (["app.py", "--crd", "crd.yaml"], "Not checked: The user creates no objects"),
        (["absent.py", *OPTIONS], "Not checked: The operator has exited with the code 1: .*absent.py"),
        (
            ["app.py", *OPTIONS, "--real-time", "--rest", "0s"],
            "Not checked: --rest 0s is too short: give the",
        ),
        (["app.py", *OPTIONS, "--observe", "cloud"], "Not checked: 'cloud' is not of the form MODULE:NAME"),
        (
            ["app.py", *OPTIONS, "--observe", "cloud:x"],
            "'cloud:x' cannot be observed: .* no attribute 'x'",
        ),
        (["app.py", *OPTIONS, "--observe", "sky:x"], "Not checked: 'sky:x' cannot be observed: No module named 'sky'."),
        (["app.py", *OPTIONS, "--plan", "crd.yaml"], "Not checked: crd.yaml: not a plan of kopf check: "),
    ],
)
def test_what_cannot_be_run_is_explained(run, arguments, message):
    code, _, errors = run(RIGHT, *arguments)
    assert code == 2
    assert re.search(message, errors.replace("\n", " ")), errors
