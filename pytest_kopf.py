"""
The plugin for pytest: a sandbox for each test that asks for one, and operators that run against it.

::

    def test_children_are_created(kopf_sandbox, kopf_operator):
        kopf_sandbox.apply('crd.yaml')
        with kopf_operator('handlers.py'):
            kopf_sandbox.apply('obj.yaml')
            kopf_sandbox.wait_for('pvc', 'my-claim')

Nothing is imported before a test asks for it. Asynchronous tests use ``kopf_sandbox.aio``.

It is a module of its own beside the package: pytest loads it in every project where kopf is installed, and importing
the package would cost these projects ten times as much.
"""

import os
import sys
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from kopf._kits.checking.chaos import KopfChaos
    from kopf._kits.testing.operator_processes import Operator
    from kopf._kits.testing.sandbox import Sandbox


_NEEDED: pytest.StashKey[set[tuple[str, str, str]]] = pytest.StashKey()
"""What the operators of all tests have requested, for ``--kopf-rbac``."""


_REMARK = 'kopf_chaos'
"""The property of tests with what ``kopf_chaos`` remarks."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the plugin."""
    group = parser.getgroup('kopf')
    group.addoption(
        '--kopf-rbac',
        metavar='FILE',
        help='write the role that the operators in the sandboxes of the tests have really needed',
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and check the options."""
    config.addinivalue_line('markers', 'kopf_sandbox(**options): the options of the sandbox for this test')
    if file := config.getoption('--kopf-rbac', None):
        config.stash[_NEEDED] = set()
        folder = os.path.dirname(os.path.abspath(file))
        if not os.access(folder, os.W_OK) or os.path.isdir(file):
            raise pytest.UsageError(f'--kopf-rbac: {file} cannot be written.')


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the role of ``--kopf-rbac``; of several processes, the first one does it for all."""
    needed = session.config.stash.get(_NEEDED, None)
    if needed is None:
        return
    if (output := getattr(session.config, 'workeroutput', None)) is not None:
        output['kopf_rbac'] = [list(each) for each in needed]
        return
    import pathlib

    from kopf._kits.packaging.observed_roles import write_role

    file = session.config.getoption('--kopf-rbac')
    try:
        write_role(pathlib.Path(file), needed)
    except OSError as error:  # e.g. the disk is full; the folder was writable at the start
        pytest.exit(f'--kopf-rbac: {file} cannot be written: {error}', returncode=1)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Name the passed tests in which ``kopf_chaos`` had no time for all plans, as that would be hidden."""
    for report in terminalreporter.stats.get('passed', ()):
        for name, line in report.user_properties:
            if name == _REMARK and report.when == 'call':
                terminalreporter.write_line(f'{name}: {report.nodeid}: {line}')


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Called when a process of pytest-xdist has ended: take over what its tests have needed."""
    found = getattr(node, 'workeroutput', {}).get('kopf_rbac', ())
    if (needed := node.config.stash.get(_NEEDED, None)) is not None:
        needed.update((group, resource, verb) for group, resource, verb in found)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the Events of an awaited object and the operators' logs to the report of a timeout."""
    report = yield
    error: Any = call.excinfo.value if call.excinfo is not None else None
    waits = sys.modules.get('kopf._kits.testing.serving.waits')
    while error is not None and waits is not None and not isinstance(error, waits.WaitTimeout):
        error = error.__cause__ or error.__context__
    if error is not None and waits is not None:
        report.sections.append(('Events of the object', '\n'.join(error.events) or '(none)'))
        report.sections += [('Log of the operator', log.rstrip() or '(empty)') for log in error.logs]
    return report


@pytest.fixture
def kopf_sandbox(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> 'Iterator[Sandbox]':
    """
    Yield an empty embedded Kubernetes API for one test; ``$KUBECONFIG`` points to it for the time of the test.

    The options of `Sandbox` are those of the marker: ``@pytest.mark.kopf_sandbox(rbac=True)``.
    """
    from kopf._kits.testing.sandbox import Sandbox

    marker = request.node.get_closest_marker('kopf_sandbox')
    with Sandbox(**(marker.kwargs if marker is not None else {})) as sandbox:
        monkeypatch.setenv('KUBECONFIG', str(sandbox.kubeconfig))
        yield sandbox
        if (needed := request.config.stash.get(_NEEDED, None)) is not None:
            from kopf._kits.packaging.observed_roles import find_needed
            from kopf._kits.testing.operator_processes import PROVISIONER

            needed |= find_needed(each for each in sandbox.requests if each.user != PROVISIONER)


@pytest.fixture
def kopf_operator(kopf_sandbox: 'Sandbox') -> 'Iterator[Callable[..., Operator]]':
    """
    Yield a factory of operators: ``kopf_operator('handlers.py', '--verbose')`` returns a context manager.

    The arguments are those of `kopf run`. Operators that are started without a context end with the test.
    """
    from kopf._kits.testing.operator_processes import Operator

    operators = []

    def make(*arguments: str | os.PathLike[str], **options: Any) -> Operator:
        operators.append(Operator(kopf_sandbox, *arguments, **options))
        return operators[-1]

    yield make
    for operator in operators:
        operator.stop()


@pytest.fixture
def kopf_chaos(request: pytest.FixtureRequest, tmp_path: 'Path') -> 'KopfChaos':
    """
    Return a tool that disturbs operators: ``kopf_chaos.check('app.py', scenario)``.

    The options of the sandboxes are those of the marker ``kopf_sandbox``; time is virtual, unless the check is on a
    cluster. Plans that have found something are written to the temporary folder of the test.
    """
    from kopf._kits.checking.chaos import KopfChaos

    marker = request.node.get_closest_marker('kopf_sandbox')
    options = dict(marker.kwargs) if marker is not None else {}
    options.pop('virtual_time', None)
    # Unlike what a test prints, properties of a test come from the processes of pytest-xdist, and are in JUnit files.
    return KopfChaos(options, tmp_path, lambda line: request.node.user_properties.append((_REMARK, line)))
