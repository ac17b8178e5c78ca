"""What all tests share: determinism, and the cluster for the end-to-end tests.

By default, that is the sandbox: no KUBECONFIG is touched by a plain `pytest`, which needs no cluster, no Go, and
little time. With `--cluster=real`, it is a real control plane, or a failure: there is no silent choice.
"""

import asyncio
import contextlib
import gc
import os
import pathlib
import secrets
import signal
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import forkedworkers
import forkserver
import hypothesis
import hypothesis.strategies
import pytest
import pytest_rerunfailures
from controlplane import ControlPlane, Unavailable
from kubeapi import ApiError, KubeApi
from operatorprocess import OperatorProcess
from sandboxplane import SandboxPlane

from kopf._kits.testing import operator_processes

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Where the tests wait more than they compute.
WAITING = (
    "tests/cluster/",
    "tests/docs/",
    "tests/e2e/",
    "tests/faults/",
    "tests/kits/test_reloading.py",
    "tests/kits/test_supervising.py",
    "tests/public/",
    "tests/sandbox/test_plugin.py",
    "tests/soak/",
)

# While thousands of tests are collected, hardly anything becomes garbage; to look for it takes a sixth of that time.
gc.disable()

# The same examples in every run, however slow the machine: a few by default, more with HYPOTHESIS_PROFILE=broad.
# HYPOTHESIS_PROFILE=search looks for new ones. Tests that need more than others set a multiple of the number.
for profile, number in {"steady": 20, "broad": 50}.items():
    hypothesis.settings.register_profile(profile, max_examples=number, derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("search", max_examples=5000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") and hasattr(config, "failures_db"):
        # Over its socket, pytest-rerunfailures asks the first process before each test: for 40 ms, as its small packets
        # wait for each other (Nagle's algorithm). What each worker counts for itself is enough, unless workers crash.
        config.failures_db.sock.close()
        config.failures_db = pytest_rerunfailures.StatusDB()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Shells start commands in the background so. Operators would inherit it, and could not be interrupted.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Otherwise, looptime asks for a loop in tests that have none; it would be made, and never closed.
    asyncio.set_event_loop(None)
    # Whenever any fixture is set up, looptime looks through all members of pytest-asyncio for those that make loops,
    # which takes as long as to set up the fixture. Here, only fixtures of its own module make loops.
    looptime, maker = map(config.pluginmanager.getplugin, ("looptime_plugin", "asyncio"))
    if hasattr(looptime, "_should_patch"):
        looptime._should_patch = lambda fixturedef, request: fixturedef.func.__module__ == maker.__name__
    forkedworkers.pytest_configure(config)
    if config.getoption("--forks") and not config.option.collectonly:
        forkserver.launch_server(os.environ | make_environment(config))  # while the tests are collected
    config.addinivalue_line("markers", "long: takes long on the sandbox, where it is run only with --long")
    config.addinivalue_line("markers", "thorough: takes minutes, or needs more, and is run only with --thorough")


def pytest_addoption(parser: pytest.Parser) -> None:
    forkedworkers.pytest_addoption(parser)
    parser.addoption(
        "--cluster",
        choices=["sandbox", "real", "both"],
        default="sandbox",
        help="what the end-to-end tests run on; the real one is that of KUBECONFIG, or is built with Go",
    )
    parser.addoption(
        "--record",
        action="store_true",
        help="with --cluster=real: write down what it answers to the replays of tests/sandbox/",
    )
    parser.addoption("--long", action="store_true", help="run the tests that take too long for each run, and no others")
    parser.addoption("--thorough", action="store_true", help="also run the tests that take minutes, or need more")
    parser.addoption(
        "--pictures", action="store_true", help="write the pictures of the inspector into the documentation"
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    sys.dont_write_bytecode = True
    os.environ.update(make_environment(session.config))
    if session.config.getoption("--forks"):
        draw_text()
        if session.config.getoption("--cluster") != "sandbox":
            share_control_plane(session.config)
    # The thousands of tests stay, so that no collection of garbage has to look at them.
    gc.collect()
    gc.freeze()
    gc.enable()


def make_environment(config: pytest.Config) -> dict[str, str]:
    """Return the variables for the processes that tests start."""
    # What tests write, run, and write again within the same second is never taken for what it was before.
    variables = {"PYTHONDONTWRITEBYTECODE": "1"}
    if config.getoption("--cluster") == "sandbox" and not config.getoption("--thorough"):
        bare = str(ROOT / "tests" / "cluster" / "bare")
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, [bare, os.environ.get("PYTHONPATH")]))
    return variables


def share_control_plane(config: pytest.Config) -> None:
    """Start one control plane for all workers, unless the environment names one; each would start its own."""
    if os.environ.get("KUBECONFIG") or os.environ.get("CLUSTER_DIR"):
        return
    stack = contextlib.ExitStack()
    config.add_cleanup(stack.close)
    plane = start_control_plane(stack)
    os.environ["CLUSTER_DIR"] = str(plane.directory)


def start_control_plane(stack: contextlib.ExitStack) -> ControlPlane:
    """Start a control plane that the stack stops, or end all tests if that fails."""
    try:
        return stack.enter_context(ControlPlane())
    except Unavailable as error:
        pytest.exit(f"the control plane does not start: {error}", returncode=1)


@hypothesis.given(hypothesis.strategies.text())
def draw_text(text: str) -> None:
    """Let hypothesis read the tables of all characters, or make them; otherwise, each worker would, for a second."""


def is_wanted(item: pytest.Item) -> bool:
    """Check whether the options ask for the test."""
    if item.get_closest_marker("thorough") and not item.config.getoption("--thorough"):
        return False
    return is_long(item) == item.config.getoption("--long")


def is_long(item: pytest.Item) -> bool:
    """Check whether the test takes long. On a real cluster, it is not left out: there, all tests take long."""
    cluster = item.callspec.params.get("cluster") if hasattr(item, "callspec") else None
    return item.get_closest_marker("long") is not None and cluster != "real"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cluster" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--cluster")
        clusters = ["sandbox", "real"] if chosen == "both" else [chosen]
        metafunc.parametrize("cluster", clusters, indirect=True, scope="session")


def pytest_report_collectionfinish(config: pytest.Config) -> str:
    return "deselected tests are run with --long or --thorough" if not config.getoption("--long") else ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Why are they not skipped? Each of the thousand tests would have its report, which takes two seconds in all.
    config.hook.pytest_deselected(items=[item for item in items if not is_wanted(item)])
    items[:] = filter(is_wanted, items)
    # What waits for processes goes first, as forks want it: none of it is left alone at the end.
    items.sort(key=lambda item: not item.nodeid.startswith(WAITING))
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            if item.callspec.params.get("cluster") == "real":
                # The first of them may have to build the control plane.
                item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[ControlPlane | SandboxPlane]:
    """Yield the sandbox or a real control plane: that of $KUBECONFIG, or one started for this run or by CLUSTER_DIR."""
    if request.param == "sandbox":
        with SandboxPlane() as plane:
            yield plane
        return
    with contextlib.ExitStack() as stack:
        yield start_control_plane(stack)


@pytest.fixture(scope="session")
def kubeapi(cluster: ControlPlane | SandboxPlane) -> KubeApi:
    """Return a client of the cluster that knows the kind of the examples."""
    with pytest.MonkeyPatch.context() as patching:
        patching.setenv("KUBECONFIG", cluster.kubeconfig)
        api = KubeApi()
    api.apply(ROOT / "examples" / "crd.yaml")
    return api


@pytest.fixture
def namespace(kubeapi: KubeApi) -> Iterator[str]:
    """Yield a namespace of the test's own, removed with all that is in it."""
    name = f"kopf-test-{secrets.token_hex(4)}"
    kubeapi.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    yield name
    # Objects with finalizers would wait for operators that are gone.
    for item in kubeapi.items("kopf.dev/v1", "KopfExample", name):
        if item["metadata"].get("finalizers"):
            release = {"metadata": {"finalizers": []}}
            kubeapi.patch("kopf.dev/v1", "KopfExample", name, item["metadata"]["name"], release)
    try:
        kubeapi.delete("v1", "Namespace", None, name)
    except ApiError as error:
        if error.status != 409:  # already on its way
            raise


@pytest.fixture
def forked_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the operators of `kopf_operator` be forks, for tests that are not about the start of an interpreter."""

    def start(command: list[str], *, stdin: int, stderr: int, **options: Any) -> forkserver.ForkedProcess:
        assert (command[0], stdin, stderr) == (sys.executable, subprocess.DEVNULL, subprocess.STDOUT)
        options["cwd"] = options["cwd"] or "."
        return forkserver.start_process(["python", *command[1:]], **options)

    names = {name: getattr(subprocess, name) for name in ("DEVNULL", "STDOUT", "TimeoutExpired")}
    monkeypatch.setattr(operator_processes, "subprocess", types.SimpleNamespace(Popen=start, **names))


@pytest.fixture
def run_operator(
    cluster: ControlPlane | SandboxPlane,
    namespace: str,
    tmp_path: pathlib.Path,
) -> Iterator[Callable[..., OperatorProcess]]:
    """Start `kopf run ARGS...` in the namespace of the test; what is still running at its end is killed."""
    operators: list[OperatorProcess] = []

    def run(*args: str | os.PathLike[str], kubeconfig: str = cluster.kubeconfig, **env: str) -> OperatorProcess:
        log = tmp_path / f"operator-{len(operators)}.log"
        operator = OperatorProcess("-n", namespace, *args, log=log, kubeconfig=kubeconfig, **env)
        operators.append(operator)
        return operator.__enter__()

    yield run
    for operator in operators:
        operator.__exit__()
        print(operator.log.name, operator.output, sep="\n")  # shown if the test has failed
