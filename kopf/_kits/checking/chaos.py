"""The fixture for pytest: it checks an operator in a test, with a scenario that the test defines."""

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kopf._kits.checking import reports
from kopf._kits.checking.checks import CannotCheck, Check, Report
from kopf._kits.checking.command_line import count_jobs
from kopf._kits.checking.outside_calls import find_modules
from kopf._kits.checking.plans import Plan
from kopf._kits.checking.subjects import Scenario, Subject
from kopf._kits.checking.user_modules import is_users

__tracebackhide__ = True  # pytest shows the test instead


class ChecksFailed(AssertionError):
    """Raised when a disturbance has shown a mistake of the operator; the message is the report."""

    __module__ = 'kopf.testing'


class KopfChaos:
    """
    Checks operators by disturbing them.

    Args:
        options: the options of the sandboxes.
        folder: the folder for the plans that have found mistakes.
    """

    def __init__(self, options: Mapping[str, Any], folder: Path) -> None:
        self._options = options
        self._folder = folder
        self._observers: dict[str, Callable[[], Any]] = {}

    def watch(self, name: str, observe: Callable[[], Any]) -> None:
        """
        Compare also the result of the function: the state of a system outside of the cluster, such as a fake cloud.

        The state must be in a module that the test has imported, so that it survives when an operator is killed. It
        must consist of dicts, lists, and plain values.
        """
        self._observers[name] = observe

    def check(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        scenario: Scenario,
        *,
        options: Sequence[str] = (),
        seed: int = 1,
        budget: float = 60.0,
        jobs: int | None = None,
        only_first: bool = False,
        plan: str | os.PathLike[str] | None = None,
    ) -> Report:
        """
        Check an operator: ``kopf_chaos.check('app.py', scenario)``.

        Args:
            paths: the file or the files with the handlers.
            scenario: a function of the sandbox. It writes as a user would, and can wait for the effects. It is called
                many times, in copies of the test's process.
            options: more arguments of ``kopf run``.
            seed: the seed of random numbers, and of the order of concurrent events.
            budget: how long the check may take (in seconds).
            jobs: how many copies of the operator run at the same time; by default, one on each processor.
            only_first: whether to end with the first finding.
            plan: a file with the only plan to try.

        Raises:
            ChecksFailed: with a disturbance, the operator does not reach the same end state as without it.
            CannotCheck: the operator cannot be checked, or the budget has ended before anything was disturbed.
        """
        files = [paths] if isinstance(paths, (str, os.PathLike)) else paths
        with tempfile.TemporaryDirectory(prefix='kopf-check-') as folder:
            subject = Subject(
                arguments=['--all-namespaces', *(os.fspath(file) for file in files), *options],
                options=self._options,
                scenario=scenario,
                observers=self._observers,
                outside=sorted(self._find_outside()),
                folder=Path(folder),
            )
            check = Check(subject, seed=seed, budget=budget, jobs=jobs or count_jobs(), only_first=only_first)
            report = check.run() if plan is None else check.run_plan(Plan.read(Path(plan)))
        if report.findings:
            raise ChecksFailed('\n' + reports.format_report(report, self._write(report)))
        if report.is_vain:
            raise CannotCheck(reports.summarize(report))
        print(reports.format_report(report, []))  # pytest shows it on request: what was tried, and what was not
        return report

    def _find_outside(self) -> set[str]:
        """Return the names of the user's modules that the observing functions refer to."""
        found = [module for observe in self._observers.values() for module in find_modules(observe)]
        return {module.__name__ for module in found if is_users(module)}

    def _write(self, report: Report) -> list[str]:
        """Write the plans of the findings; return the calls that repeat them."""
        reports.write_plans(report, self._folder, [])
        files = [self._folder / reports.name_plan(number) for number in range(1, len(report.findings) + 1)]
        return [f"kopf_chaos.check(..., plan='{file}')" for file in files]
