"""What all tests share: determinism, and the control plane for those marked `e2e`.

End-to-end tests run only with `--e2e` (`make e2e`): nobody's KUBECONFIG is touched by a plain `pytest`, and the
default run needs no cluster, no Go, and little time.
"""
import asyncio
import os
import pathlib
import secrets
from collections.abc import Callable, Iterator

import hypothesis
import pytest
from controlplane import ControlPlane, Unavailable, missing
from kubeapi import ApiError, KubeApi
from operatorprocess import OperatorProcess

ROOT = pathlib.Path(__file__).resolve().parent.parent

# The same examples in every run, however slow the machine; HYPOTHESIS_PROFILE=search looks for new ones.
hypothesis.settings.register_profile("steady", derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("search", max_examples=5000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


def pytest_configure(config: pytest.Config) -> None:
    # Otherwise, looptime asks for a loop in tests that have none; it would be made, and never closed.
    asyncio.set_event_loop(None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--e2e", action="store_true", help="run the tests that need a real control plane, too")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if (ROOT / "tests" / "e2e") in item.path.parents:
            item.add_marker(pytest.mark.e2e)
        if item.get_closest_marker("e2e"):
            # The first of them may have to build the control plane.
            item.add_marker(pytest.mark.timeout(600))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if not item.get_closest_marker("e2e"):
        return
    if not item.config.getoption("--e2e"):
        pytest.skip("end-to-end tests need a real control plane: run `make e2e`")
    if problem := missing():
        if os.environ.get("CI"):
            pytest.exit(f"CI needs a control plane for the end-to-end tests: {problem}", returncode=1)
        pytest.skip(f"no control plane: {problem}")


@pytest.fixture(scope="session")
def cluster() -> Iterator[ControlPlane]:
    """A real control plane: that of $KUBECONFIG, or one started for this run (for several: with CLUSTER_DIR)."""
    try:
        with ControlPlane() as plane:
            yield plane
    except Unavailable as error:
        pytest.exit(f"the control plane does not start: {error}", returncode=1)


@pytest.fixture(scope="session")
def kubeapi(cluster: ControlPlane) -> KubeApi:
    """A client of the control plane that knows the kind of the examples."""
    with pytest.MonkeyPatch.context() as patching:
        patching.setenv("KUBECONFIG", cluster.kubeconfig)
        api = KubeApi()
    api.apply(ROOT / "examples" / "crd.yaml")
    return api


@pytest.fixture
def namespace(kubeapi: KubeApi) -> Iterator[str]:
    """A namespace of the test's own, removed with all that is in it."""
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
def run_operator(
    cluster: ControlPlane, namespace: str, tmp_path: pathlib.Path,
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
