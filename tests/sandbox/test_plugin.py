"""The plugin for pytest as users get it: by its entry point, in a run of their own."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml
from forkserver import run_process

pytestmark = pytest.mark.timeout(300)  # each of them starts a pytest of its own

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "09-testing"


@pytest.fixture(autouse=True)
def _only_our_plugin(monkeypatch):
    # Without the plugins that these tests do not need: to load them takes half of the time of a run. Users do not have
    # that of looptime, which warns of itself on Python 3.13.
    names = ["looptime_plugin", "hypothesispytest", "rerunfailures", "anyio"]
    monkeypatch.setenv("PYTEST_ADDOPTS", " ".join(f"-p no:{name}" for name in names))


@pytest.fixture
def run_pytest(tmp_path):
    """Run pytest on a file with this text; return its exit code and its output."""

    def run(text, *args):
        (tmp_path / "test_it.py").write_text(textwrap.dedent(text))
        done = run_process(["python", "-m", "pytest", "-p", "no:cacheprovider", *args], cwd=tmp_path)
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.mark.long
def test_the_tests_of_the_example_pass():
    done = run_process(["python", "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", EXAMPLE, EXAMPLE])
    assert done.returncode == 0, done.stdout
    assert "4 passed in " in done.stdout


def test_nothing_is_loaded_for_tests_without_its_fixtures(tmp_path):
    (tmp_path / "test_it.py").write_text("""
import sys

def test_it():
    assert "pytest_kopf" in sys.modules
    assert "kopf._kits.testing.sandbox" not in sys.modules
""")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_it_costs_nothing_where_it_is_not_used():
    code = """
import pytest, sys, time
modules, seconds = set(sys.modules), time.process_time()
import pytest_kopf
print(time.process_time() - seconds, *(set(sys.modules) - modules))
"""
    least = 1.0
    for _ in range(5):  # the least of them, since others need the processor, too
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
        seconds, *modules = done.stdout.split()
        assert modules == ["pytest_kopf"]
        least = min(least, float(seconds))
        if least < 0.005:
            break
    assert least < 0.005


def test_asynchronous_tests_can_use_the_sandbox(run_pytest):
    code, output = run_pytest(
        """
        import os

        async def test_it(kopf_sandbox):
            assert os.environ["KUBECONFIG"] == str(kopf_sandbox.kubeconfig)
            await kopf_sandbox.aio.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}})
            assert len(await kopf_sandbox.aio.list("configmaps")) == 1
    """,
        "-o",
        "asyncio_mode=auto",
    )
    assert code == 0, output


FAILING = """
    import time

    import pytest

    def find_size(body):
        return body["status"]["size"]

    def test_waiting(kopf_sandbox, kopf_operator):
        kopf_sandbox.apply("crd.yaml")
        with kopf_operator("handlers.py"):
            kopf_sandbox.create("kex", "obj", spec={})
            with pytest.raises(TimeoutError):
                kopf_sandbox.wait_gone("kex", "obj", timeout=0.01)
            kopf_sandbox.wait_for("kex", "obj", lambda body: body["status"]["count"] == 3)
            while len(kopf_sandbox.list("events")) < 2:
                time.sleep(0.01)
            kopf_sandbox.wait_for("kex", "obj", find_size, timeout=0.3)

    async def test_refusals(kopf_sandbox):
        await kopf_sandbox.aio.create("pods", "obj", spec={})

    def test_refused_manifests(kopf_sandbox):
        kopf_sandbox.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "obj"}, "spec": {}})

    def test_mistakes(kopf_sandbox):
        kopf_sandbox.wait_for("namespaces", "default", lambda body: find_sizes(body))
"""


def test_failures_are_explained(run_pytest, tmp_path):
    (tmp_path / "crd.yaml").write_text((EXAMPLE.parent / "crd.yaml").read_text())
    (tmp_path / "handlers.py").write_text(
        textwrap.dedent("""
        import kopf

        @kopf.on.create("kopfexamples")
        def create_fn(patch, logger, **_):
            logger.info("it is counted")
            patch.status["count"] = 3
    """)
    )
    code, output = run_pytest(FAILING, "-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function")
    assert code == 1
    waiting, refusals, manifests, mistakes = re.split(r"^_+ test_\w+ _+$", output, flags=re.MULTILINE)[1:]

    assert (
        "kopf.testing.WaitTimeout: kex 'obj' is not as expected after 0.3 s (the predicate has failed: "
        "KeyError: 'size'); it is: {" in waiting
    )
    assert "managedFields" not in waiting
    assert re.search(
        r"- Events of the object -+\n(.*\n)*Normal Logging: it is counted\n(.*\n)*"
        r"-+ Log of the operator -+\n(.*\n)*.* it is counted\n",
        waiting,
    )

    message = 'kopf.testing.Refusal: Pod "obj" is invalid: spec.containers: Required value'
    assert message in refusals and message.replace("Refusal: ", "Refusal: object: Pod 'obj': ") in manifests
    assert "NameError: name 'find_sizes' is not defined" in mistakes
    for text in [waiting, refusals, manifests, mistakes]:
        places = re.findall(r"^(\S+\.py):\d+: ", text, flags=re.MULTILINE)
        assert places and set(places) == {"test_it.py"}
        assert "Events of the object" not in text or text is waiting


def test_it_can_be_switched_off(run_pytest):
    code, output = run_pytest("def test_it(kopf_sandbox): pass", "-p", "no:kopf")
    assert code == 1
    assert "fixture 'kopf_sandbox' not found" in output


OPERATOR = """
    def test_it(kopf_sandbox, kopf_operator):
        kopf_sandbox.apply(CRD)
        with kopf_operator('handlers.py'):
            kopf_sandbox.create('kex', 'x')
            kopf_sandbox.wait_for('kex', 'x', lambda body: body['metadata']['labels']['done'])

    def test_other():
        pass
"""
HANDLERS = """
import kopf

@kopf.on.create('kopfexamples')
def create_fn(patch, **_):
    patch.metadata.labels['done'] = 'yes'
"""
EXAMPLES_CRD = Path(__file__).resolve().parents[2] / "examples" / "crd.yaml"


@pytest.mark.long
@pytest.mark.parametrize("processes", [[], ["-n", "2"]])
def test_the_role_that_tests_have_needed_is_written(run_pytest, tmp_path, processes):
    (tmp_path / "handlers.py").write_text(HANDLERS)
    code, output = run_pytest(OPERATOR.replace("CRD", repr(str(EXAMPLES_CRD))), "--kopf-rbac=role.yaml", *processes)
    assert code == 0, output
    role = (tmp_path / "role.yaml").read_text()
    assert "name: role\n" in role
    assert re.search(r"- kopfexamples\n  verbs:\n  - list\n  - watch\n  - patch\n", role), role


KIND = """
import dataclasses, kopf

@dataclasses.dataclass
class Spec:
    size: int = 1

@kopf.kind('example.com/v1')
@dataclasses.dataclass
class Shop:
    spec: Spec

@kopf.on.create(Shop)
def create_fn(patch, **_):
    patch.metadata.labels['done'] = 'yes'
"""
KIND_TEST = """
    import pytest

    @pytest.mark.kopf_sandbox(OPTIONS)
    def test_it(kopf_sandbox, kopf_operator):
        with kopf_operator('handlers.py', *ARGUMENTS):
            kopf_sandbox.create('shops', 'x', spec={})
            kopf_sandbox.wait_for('shops', 'x', lambda body: body['metadata']['labels']['done'])
"""


@pytest.mark.parametrize(
    "options, arguments, verbs",
    [
        ("", [], ["list", "watch"]),
        ("virtual_time=True", [], ["list", "watch"]),
        ("", ["--apply-crds"], ["get", "list", "watch", "create"]),
    ],
)
def test_the_role_has_the_permission_to_write_crds_only_if_the_operator_is_told_to(
    run_pytest, tmp_path, options, arguments, verbs
):
    (tmp_path / "handlers.py").write_text(KIND)
    test = KIND_TEST.replace("OPTIONS", options).replace("ARGUMENTS", repr(arguments))
    code, output = run_pytest(test, "--kopf-rbac=role.yaml")
    assert code == 0, output
    rules = yaml.safe_load((tmp_path / "role.yaml").read_text())["rules"]
    assert [rule["verbs"] for rule in rules if "customresourcedefinitions" in rule["resources"]] == [verbs]


def test_a_role_that_cannot_be_written_is_told_of_before_the_tests(run_pytest):
    code, output = run_pytest("def test_it(): pass", "--kopf-rbac=nowhere/role.yaml")
    assert code == 4
    assert "--kopf-rbac: nowhere/role.yaml cannot be written." in output


def test_checks_that_had_no_time_for_all_plans_are_named_at_the_end(run_pytest):
    code, output = run_pytest("""
        import pytest
        from kopf._kits.checking.checks import Check, Report
        from kopf._kits.checking.plans import Plan

        @pytest.mark.parametrize("left", [0, 8])
        def test_it(kopf_chaos, monkeypatch, left):
            report = Report([(Plan(), [])] * 2, left=left, budget=100, seconds=100)
            monkeypatch.setattr(Check, "run", lambda self: report)
            assert kopf_chaos.check("app.py", print) is report
    """)
    assert code == 0, output
    line = "2 of 10 plans in 100.0 s: nothing found, but the budget has ended before the others; budget=625 tries more."
    assert [line for line in output.splitlines() if line.startswith("kopf_chaos: ")] == [
        f"kopf_chaos: test_it.py::test_it[8]: {line}"
    ]
