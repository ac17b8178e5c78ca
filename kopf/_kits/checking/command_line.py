"""``kopf check``: the options of the command line, and the exit codes."""

import contextlib
import dataclasses
import importlib
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

from kopf._cogs.helpers import loaders
from kopf._kits.checking import reports
from kopf._kits.checking.checks import CannotCheck, Check, Progress, Report
from kopf._kits.checking.clusters import ClusterError, ClusterPlace
from kopf._kits.checking.plans import Plan, PlanError
from kopf._kits.checking.subjects import Loading, Subject
from kopf._kits.testing.wire.manifests import ManifestError, read

NOTHING_FOUND, FOUND, NOT_RUN = 0, 1, 2
"""The exit codes."""


BUDGET, REAL_BUDGET = 60.0, 300.0
"""The default budgets in virtual and in real time (in seconds)."""

REAL_JOBS = 4
"""The number of courses for each processor in real time."""

REST = 3.0
"""The default time without writes after which an operator is at rest (in seconds of real time)."""

MIN_REST = 0.5
"""The minimal value of ``--rest`` (in seconds): some requests of an operator, such as Events, come after delays."""


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

    find()  # raises AttributeError now instead of in the middle of a course
    return observe


class ProgressLine:
    """Shows the progress: in one changing line on a terminal, otherwise in a new line from time to time."""

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command line."""

    paths: Sequence[str]
    modules: Sequence[str]
    crds: Sequence[str]
    loads: Sequence[str]
    pods: bool
    observed: Sequence[str]
    namespaces: Sequence[str]
    peering_name: str | None
    leader_election: bool
    real_time: bool
    cluster: str | None
    """The context of a real cluster; None for the sandbox."""
    apply_crds: bool
    rest: float
    """How long the operator must have written nothing to be at rest (in seconds of real time)."""
    seed: int
    budget: float | None
    jobs: int | None
    only_first: bool
    plan_file: str | None
    save: str
    junit: str | None
    log: str | None

    @property
    def is_real(self) -> bool:
        """Return whether the operators run in real time."""
        return self.real_time or self.cluster is not None

    def make_arguments(self) -> list[str]:
        """Return the arguments of ``kopf run``."""
        scope = [] if self.cluster is not None else ['--all-namespaces']  # each course adds its namespace
        parts = [part for name in self.namespaces for part in ('--namespace', name)] or scope
        parts += self._list_coordination()
        return [*parts, *self.paths, *(part for name in self.modules for part in ('--module', name))]

    def make_command(self) -> list[str]:
        """Return the command line that repeats the check, without the plan."""
        named = {'-m': self.modules, '--crd': self.crds, '--load': self.loads, '--observe': self.observed}
        parts = ['kopf', 'check', *self.paths]
        for option, values in {**named, '-n': self.namespaces}.items():
            parts += [part for value in values for part in (option, value)]
        parts += self._list_coordination()
        parts += ['--pods'] if self.pods else []
        if self.is_real:
            where = ['--real-time'] if self.cluster is None else ['--cluster', self.cluster]
            where += ['--apply-crds'] if self.apply_crds else []
            parts += [*where, *([f'--rest={self.rest:g}s'] if self.rest != REST else [])]
        return parts

    def _list_coordination(self) -> list[str]:
        election = ['--leader-election'] if self.leader_election else []
        return election if self.peering_name is None else [*election, '--peering', self.peering_name]


def check(options: Options) -> int:
    """Check an operator with the options of the command line; print the report, and return the exit code."""
    try:
        report = _run(options)
    except (CannotCheck, ClusterError, ManifestError, PlanError, OptionError) as error:
        hint = '. Name the CRD of this kind by --crd.' if 'no matches for kind' in str(error) else ''
        print(f"Not checked: {str(error).removesuffix('.') if hint else error}{hint}", file=sys.stderr)
        return NOT_RUN
    is_repeated = options.plan_file is not None
    save, command = Path(options.save), options.make_command()
    commands = [''] * len(report.findings) if is_repeated else reports.write_plans(report, save, command)
    print(reports.format_report(report, commands))
    if options.junit is not None:
        reports.write_junit(report, Path(options.junit), ' '.join([*options.paths, *options.modules]))
    if options.log is not None:
        Path(options.log).write_text(report.log, encoding='utf-8')
    if report.is_vain:
        return NOT_RUN
    return FOUND if report.findings else NOTHING_FOUND


@contextlib.contextmanager
def _exiting() -> Iterator[None]:
    """Convert the signals to end this process into an exception, so that child processes and files are removed."""

    def exit(number: int, frame: object) -> NoReturn:
        raise SystemExit(128 + number)  # the code of shells; 1 would mean that the check has findings

    former = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    # Signals that are ignored, for example under nohup, stay ignored.
    changed = [number for number, handler in former.items() if handler is not signal.SIG_IGN]
    for number in changed:
        signal.signal(number, exit)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, former[number])


def _run(options: Options) -> Report:
    if not hasattr(os, 'fork'):
        raise CannotCheck('Operators can be checked on systems with fork() only, such as Linux and macOS.')
    if options.is_real:
        check_rest(options.rest, '--rest ')
    if options.apply_crds and options.cluster is None:
        raise OptionError('--apply-crds is for --cluster only: in the sandbox, CRDs are always created.')
    if options.cluster is not None and (options.namespaces or options.pods):
        what = '--namespace: each run has a namespace of its own' if options.namespaces else '--pods: that is a sandbox'
        raise OptionError(f'With --cluster, leave out {what}.')
    bodies = [body for load in options.loads for _, body in read(load)]
    observers = import_observers(options.observed, [Path(path).resolve().parent for path in options.paths])
    plan = Plan.read(Path(options.plan_file)) if options.plan_file is not None else None
    line = ProgressLine(sys.stderr)
    # Why ignore errors? Operators that were just killed may still write files into the folder.
    with (
        _exiting(),
        tempfile.TemporaryDirectory(prefix='kopf-check-', ignore_cleanup_errors=True) as folder,
        _prepare_cluster(options, bodies) as cluster,
    ):
        subject = Subject(
            arguments=options.make_arguments(),
            options={'crds': list(options.crds), 'pods': options.pods},
            scenario=Loading(bodies),
            observers=observers,
            outside=sorted({name.partition(':')[0] for name in options.observed}),
            folder=Path(folder),
            rest=options.rest if options.is_real else 0.0,
            cluster=cluster,
        )
        session = Check(
            subject,
            seed=options.seed,
            budget=choose_budget(options.budget, is_real=options.is_real),
            jobs=choose_jobs(options.jobs, is_real=options.is_real),
            only_first=options.only_first,
            tell=line.show,
        )
        try:
            return session.run() if plan is None else session.run_plan(plan)
        finally:
            line.clear()


@contextlib.contextmanager
def _prepare_cluster(options: Options, bodies: Sequence[Mapping[str, Any]]) -> Iterator[ClusterPlace | None]:
    """Prepare the cluster of the options, if any; at the end, remove everything that was created there."""
    if options.cluster is None:
        yield None
        return
    from kopf._kits.checking import cluster_testbeds  # most checks are in the sandbox

    with cluster_testbeds.prepared_for(
        options.make_arguments(),
        options.cluster,
        crds=[body for source in options.crds for _, body in read(source)],
        bodies=bodies,
        applies_crds=options.apply_crds,
    ) as place:
        yield place


def choose_budget(budget: float | None, *, is_real: bool) -> float:
    """Return the given budget, or the default one in real or in virtual time (in seconds)."""
    return budget if budget is not None else REAL_BUDGET if is_real else BUDGET


def choose_jobs(jobs: int | None, *, is_real: bool) -> int:
    """Return how many courses run at the same time: as many as given, or more in real time, as they mostly wait."""
    return jobs or count_jobs() * (REAL_JOBS if is_real else 1)


def check_rest(seconds: float, option: str) -> None:
    """Raise `OptionError` if the time without writes (in seconds) is too short; the option is named in the message."""
    if seconds < MIN_REST:
        raise OptionError(f'{option}{seconds:g}s is too short: give the operator at least {MIN_REST:g}s.')


def count_jobs() -> int:
    """Return the number of courses that run at the same time: one per processor."""
    affinity: Callable[[int], set[int]] | None = getattr(os, 'sched_getaffinity', None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1
