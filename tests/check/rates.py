"""Rates: what a check finds in the operators of the corpus, by which plan, and how long it takes."""

import dataclasses
import fnmatch
import os
import pathlib
import tempfile
import time
from collections.abc import Iterator, Sequence

from kopf._kits.checking import reports
from kopf._kits.checking.checks import CannotCheck, Check, Progress
from kopf._kits.checking.command_line import count_jobs
from kopf._kits.checking.subjects import Loading
from kopf._kits.checking.subjects import Subject as CheckedSubject
from kopf._kits.testing.wire.manifests import read
from tests.check import corpus
from tests.check.corpus import Subject

LEAST = 22 / 24
"""The part of the planted bugs that must be found."""


@dataclasses.dataclass
class Result:
    """What has come of the check of one operator."""

    subject: Subject
    found: str = ""
    """The disturbance that has shown something."""
    plans: int = 0
    seconds: float = 0.0
    finding_seconds: float = 0.0
    """How long it took until something was found."""
    error: str = ""
    """Why it could not be checked."""
    text: str = ""
    """The report."""

    @property
    def is_wrong(self) -> bool:
        """True if a planted bug is not found, or something else is."""
        return bool(self.error) or bool(self.found) is not (self.subject.group == "planted")


def select(patterns: Sequence[str]) -> Iterator[Subject]:
    """Yield the operators with these names or of these groups."""
    for subject in corpus.find_subjects():
        names = (subject.name, subject.group)
        if not patterns or any(fnmatch.fnmatch(name, pattern) for name in names for pattern in patterns):
            yield subject


def measure(subject: Subject, *, budget: float, seed: int = 1, jobs: int | None = None) -> Result:
    """Check one operator; it ends with the first finding."""
    result = Result(subject)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kopf-check-") as folder:
        checked = CheckedSubject(
            arguments=["--all-namespaces", os.fspath(subject.app)],
            options={"crds": [os.fspath(path) for path in subject.crds], "pods": subject.pods},
            scenario=Loading([body for path in subject.loads for _, body in read(path)]),
            observers={},
            folder=pathlib.Path(folder),
        )

        def note(progress: Progress) -> None:
            if progress.findings and not result.finding_seconds:
                result.finding_seconds = time.monotonic() - started

        check = Check(checked, seed=seed, budget=budget, jobs=jobs or count_jobs(), only_first=True, tell=note)
        try:
            report = check.run()
        except CannotCheck as error:
            result.error = str(error)
        else:
            result.plans = len(report.tried)
            if report.findings:
                result.found = reports.describe(report.findings[0].plan)
            result.text = reports.format_report(report, [""] * len(report.findings))
    result.seconds = time.monotonic() - started
    result.finding_seconds = result.finding_seconds or result.seconds
    return result


def format_row(result: Result) -> str:
    """Return the row of the table about one operator."""
    subject = result.subject
    mark = "WRONG" if result.is_wrong else "ok"
    rate = result.plans / result.seconds * 60
    what = result.error or result.found or "nothing found"
    return (
        f"{mark:5} {subject.group:7} {subject.name:22} {result.finding_seconds:5.1f} s {result.plans:5} plans "
        f"{rate:5.0f}/min  {what}"
    )


def format_summary(results: Sequence[Result]) -> str:
    """Return the rates of all operators."""
    planted = [result for result in results if result.subject.group == "planted"]
    others = [result for result in results if result.subject.group != "planted"]
    found = [result for result in planted if not result.is_wrong]
    plans, seconds = sum(result.plans for result in results), sum(result.seconds for result in results)
    slowest = max((result.finding_seconds for result in found), default=0)
    return (
        f"{len(found)} of {len(planted)} planted bugs found, the slowest after {slowest:.1f} s; "
        f"{sum(bool(result.found) for result in others)} alarms and {sum(bool(result.error) for result in others)} "
        f"errors in {len(others)} other operators; {plans} plans in {seconds:.0f} s "
        f"({plans / max(seconds, 0.001) * 60:.0f} a minute)."
    )


def is_good(results: Sequence[Result], least: float) -> bool:
    """Check whether enough of the planted bugs are found, and nothing in all other operators."""
    planted = [result.is_wrong for result in results if result.subject.group == "planted"]
    others = [result.is_wrong for result in results if result.subject.group != "planted"]
    return not any(others) and planted.count(False) >= least * len(planted)
