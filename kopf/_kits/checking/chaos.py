"""The fixture for pytest: it checks an operator in a test, with a scenario that the test defines."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kopf._kits.checking import reports
from kopf._kits.checking.checks import CannotCheck, Check, Report
from kopf._kits.checking.clusters import ClusterError, ClusterPlace
from kopf._kits.checking.command_line import REST, check_rest, choose_budget, choose_jobs
from kopf._kits.checking.outside_calls import find_modules
from kopf._kits.checking.plans import Plan
from kopf._kits.checking.subjects import Scenario, Subject
from kopf._kits.checking.user_modules import is_users
from kopf._kits.testing.wire.manifests import each, read

__tracebackhide__ = True  # pytest omits the frames of this module from tracebacks

_OPTION = 'budget={}'
"""How a test gives a check more time."""


class ChecksFailed(AssertionError):
    """Raised when a disturbance has shown a mistake of the operator; the message is the report."""

    __module__ = 'kopf.testing'


class KopfChaos:
    """
    Checks operators by disturbing them.

    Args:
        options: the options of the sandboxes.
        folder: the folder for the plans that have found mistakes.
        remark: called with the last line of a report if nothing was found, but not all plans were tried; does nothing
            by default.
    """

    def __init__(
        self, options: Mapping[str, Any], folder: Path, remark: Callable[[str], None] = lambda line: None
    ) -> None:
        self._options = options
        self._folder = folder
        self._remark = remark
        self._observers: dict[str, Callable[[], Any]] = {}

    def watch(self, name: str, observe: Callable[[], Any]) -> None:
        """
        Also compare the result of a function: the state of a system outside of the cluster, such as a fake cloud.

        A module that the test has imported must hold the state, so that the state survives when an operator is killed.
        The result must consist of dicts, lists, and plain values.
        """
        self._observers[name] = observe

    def check(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        scenario: Scenario,
        *,
        options: Sequence[str] = (),
        seed: int = 1,
        budget: float | None = None,
        jobs: int | None = None,
        only_first: bool = False,
        plan: str | os.PathLike[str] | None = None,
        cluster: str | None = None,
        apply_crds: bool = False,
        rest: float = REST,
    ) -> Report:
        """
        Check an operator: ``kopf_chaos.check('app.py', scenario)``.

        Args:
            paths: the file or the files with the handlers.
            scenario: a function that gets the sandbox, makes the writes of a user, and can wait for their effects. It
                is called many times, in forked copies of the test's process.
            options: more arguments of ``kopf run``.
            seed: the seed of random numbers, and of the order of concurrent events.
            budget: how long the check may take (in seconds); by default a minute, or five minutes on a cluster.
            jobs: how many copies of the operator run at the same time; by default one for each processor, or four on a
                cluster.
            only_first: whether to end with the first finding.
            plan: a file with the only plan to try.
            cluster: the context of a real cluster, where each run has a namespace of its own. Instead of the sandbox,
                the scenario gets an object with its methods for objects, such as ``create`` and ``wait_for``. Of the
                options of the sandbox, only ``crds`` counts.
            apply_crds: whether missing CRDs are created in the cluster, and deleted at the end.
            rest: on a cluster, after how long without writes the operator is at rest (in seconds).

        Raises:
            ChecksFailed: with a disturbance, the operator does not reach the same end state as without it.
            CannotCheck: the operator cannot be checked, or the budget has ended before anything was disturbed.
        """
        files = [paths] if isinstance(paths, (str, os.PathLike)) else paths
        is_real = cluster is not None
        if is_real:
            check_rest(rest, 'rest=')
        scope = [] if is_real else ['--all-namespaces']  # on a cluster, each course adds its own namespace
        arguments = [*scope, *(os.fspath(file) for file in files), *options]
        with (
            tempfile.TemporaryDirectory(prefix='kopf-check-', ignore_cleanup_errors=is_real) as folder,
            self._prepare_cluster(cluster, arguments, apply_crds) as place,
        ):
            subject = Subject(
                arguments=arguments,
                options=self._options,
                scenario=scenario,
                observers=self._observers,
                outside=sorted(self._find_outside()),
                folder=Path(folder),
                rest=rest if is_real else 0.0,
                cluster=place,
            )
            check = Check(
                subject,
                seed=seed,
                budget=choose_budget(budget, is_real=is_real),
                jobs=choose_jobs(jobs, is_real=is_real),
                only_first=only_first,
            )
            report = check.run() if plan is None else check.run_plan(Plan.read(Path(plan)))
        return self._judge(report)

    @contextlib.contextmanager
    def _prepare_cluster(
        self, context: str | None, arguments: Sequence[str], applies_crds: bool
    ) -> Iterator[ClusterPlace | None]:
        """Prepare the cluster, if there is one, and remove at the end all that was created there."""
        if context is None:
            yield None
            return
        from kopf._kits.checking import cluster_testbeds  # most checks are in the sandbox

        crds = [body for source in each(self._options.get('crds', ())) for _, body in read(source)]
        try:
            with cluster_testbeds.prepared_for(
                arguments, context, crds=crds, bodies=[], applies_crds=applies_crds
            ) as place:
                yield place
        except ClusterError as error:
            raise CannotCheck(str(error)) from None

    def _judge(self, report: Report) -> Report:
        if report.findings:
            raise ChecksFailed('\n' + reports.format_report(report, self._write(report), option=_OPTION))
        if report.is_vain:
            raise CannotCheck(reports.summarize(report, option=_OPTION))
        print(reports.format_report(report, [], option=_OPTION))  # pytest shows the report of a passed test on request
        if report.left:
            self._remark(reports.summarize(report, option=_OPTION))
        return report

    def _find_outside(self) -> set[str]:
        """Return the names of the user's modules that the functions of `watch` refer to."""
        found = [module for observe in self._observers.values() for module in find_modules(observe)]
        return {module.__name__ for module in found if is_users(module)}

    def _write(self, report: Report) -> list[str]:
        """Write the plans of the findings; return the calls of ``check`` that repeat them."""
        reports.write_plans(report, self._folder, [])
        files = [self._folder / reports.name_plan(number) for number in range(1, len(report.findings) + 1)]
        return [f"kopf_chaos.check(..., plan='{file}')" for file in files]
