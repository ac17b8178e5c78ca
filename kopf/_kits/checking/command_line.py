"""``kopf check``: the options of the command line, and the exit codes."""

import importlib
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from kopf._cogs.helpers import loaders
from kopf._kits.checking import reports
from kopf._kits.checking.checks import CannotCheck, Check, Progress
from kopf._kits.checking.plans import Plan, PlanError
from kopf._kits.checking.subjects import Loading, Subject
from kopf._kits.testing.wire.manifests import ManifestError, read

NOTHING_FOUND, FOUND, NOT_RUN = 0, 1, 2
"""The exit codes."""


class OptionError(ValueError):
    """Raised when the value of an option is invalid; the message has the reason."""


def parse_seconds(text: str) -> float:
    """
    Return the seconds of a duration such as ``60``, ``60s``, ``2m``.

    Raises:
        OptionError: the text is not a duration.
    """
    match = re.fullmatch(r'(\d+(?:\.\d+)?)(s|m|h|)', text)
    if match is None:
        raise OptionError(f'{text!r} is not a duration: write it as 60s or 2m.')
    return float(match[1]) * {'': 1, 's': 1, 'm': 60, 'h': 3600}[match[2]]


def import_observers(names: Sequence[str], folders: Sequence[Path]) -> dict[str, Callable[[], Any]]:
    """
    Import the functions or variables ``MODULE:NAME`` that simulate systems outside of the cluster.

    Their modules are imported before the operator, so that their state survives when the operator is killed.

    Raises:
        OptionError: a name is malformed, or cannot be imported.
    """
    observers: dict[str, Callable[[], Any]] = {}
    for folder in folders:
        loaders.expose(folder)
    for name in names:
        module_name, colon, attribute = name.partition(':')
        if not colon or not attribute:
            raise OptionError(f'{name!r} is not of the form MODULE:NAME, such as cloud:servers.')
        try:
            module = importlib.import_module(module_name)
            observers[name] = _make_observer(module, attribute)
        except (ImportError, AttributeError) as error:
            raise OptionError(f'{name!r} cannot be observed: {error}.') from None
    return observers


def _make_observer(module: Any, path: str) -> Callable[[], Any]:
    def find() -> Any:
        value = module
        for part in path.split('.'):
            value = getattr(value, part)
        return value

    def observe() -> Any:
        value = find()
        return value() if callable(value) else value

    find()  # raises AttributeError now, not in the middle of a course
    return observe


class ProgressLine:
    """Shows the progress: on a terminal in one changing line, elsewhere in a new line from time to time."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._last = 0.0

    def show(self, progress: Progress) -> None:
        """Show the progress, but not too often."""
        if time.monotonic() - self._last >= (0.2 if self._is_terminal else 10.0):
            self._last = time.monotonic()
            text = reports.format_progress(progress)
            self._stream.write(f'\r\x1b[K{text}' if self._is_terminal else f'{text}\n')
            self._stream.flush()

    def clear(self) -> None:
        """Remove the line from the terminal."""
        if self._is_terminal:
            self._stream.write('\r\x1b[K')
            self._stream.flush()


def check(
    *,
    paths: Sequence[str],
    modules: Sequence[str],
    crds: Sequence[str],
    loads: Sequence[str],
    pods: bool,
    observed: Sequence[str],
    seed: int,
    budget: float,
    jobs: int | None,
    only_first: bool,
    plan_file: str | None,
    save: str,
    junit: str | None,
    log: str | None,
) -> int:
    """Check an operator with the options of the command line; print the report, and return the exit code."""
    try:
        if not hasattr(os, 'fork'):
            raise CannotCheck('Operators can be checked on systems with fork() only, such as Linux and macOS.')
        bodies = [body for load in loads for _, body in read(load)]
        observers = import_observers(observed, [Path(path).resolve().parent for path in paths])
        plan = Plan.read(Path(plan_file)) if plan_file is not None else None
        arguments = ['--all-namespaces', *paths, *(part for name in modules for part in ('--module', name))]
        with tempfile.TemporaryDirectory(prefix='kopf-check-') as folder:
            subject = Subject(
                arguments=arguments,
                options={'crds': list(crds), 'pods': pods},
                scenario=Loading(bodies),
                observers=observers,
                outside=sorted({name.partition(':')[0] for name in observed}),
                folder=Path(folder),
            )
            line = ProgressLine(sys.stderr)
            session = Check(
                subject,
                seed=seed,
                budget=budget,
                jobs=jobs or count_jobs(),
                only_first=only_first,
                tell=line.show,
            )
            try:
                report = session.run() if plan is None else session.run_plan(plan)
            finally:
                line.clear()
    except (CannotCheck, ManifestError, PlanError, OptionError) as error:
        print(f'Not checked: {error}', file=sys.stderr)
        return NOT_RUN
    command = make_command(paths, modules, crds, loads, pods, observed)
    commands = reports.write_plans(report, Path(save), command) if plan is None else [''] * len(report.findings)
    print(reports.format_report(report, commands))
    if junit is not None:
        reports.write_junit(report, Path(junit), ' '.join([*paths, *modules]))
    if log is not None:
        Path(log).write_text(report.log, encoding='utf-8')
    if report.is_vain:
        return NOT_RUN
    return FOUND if report.findings else NOTHING_FOUND


def count_jobs() -> int:
    """Return the number of courses that run at the same time: one per processor."""
    affinity: Callable[[int], set[int]] | None = getattr(os, 'sched_getaffinity', None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def make_command(
    paths: Sequence[str],
    modules: Sequence[str],
    crds: Sequence[str],
    loads: Sequence[str],
    pods: bool,
    observed: Sequence[str],
) -> list[str]:
    """Return the command line that repeats the check, without the plan."""
    options: Mapping[str, Sequence[str]] = {'-m': modules, '--crd': crds, '--load': loads, '--observe': observed}
    parts = ['kopf', 'check', *paths]
    for option, values in options.items():
        parts += [part for value in values for part in (option, value)]
    return [*parts, '--pods'] if pods else parts
