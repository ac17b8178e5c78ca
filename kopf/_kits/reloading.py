"""
Development with ``kopf run --reload``: the operator is restarted when its files change.

The operator runs in a separate process, because modules cannot be reliably imported again. This process watches the
files, and keeps the sandbox of ``--sandbox`` with all its objects.
"""

import contextlib
import dataclasses
import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FrameType

import click

from kopf._cogs.helpers.runfiles import ADDRESS_VARIABLE, make_address
from kopf._kits.child_operators import Parent

POLLING = 0.2
"""The interval of checks of the files (in seconds)."""

PATIENCE = 10.0
"""How long an operator may take to end before it is killed (in seconds)."""

SHARE = 0.2
"""The greatest share of the time that the checks may take: in large folders, they are made less often."""

_IGNORED = ('__pycache__', 'node_modules', 'site-packages')

Versions = Mapping[pathlib.Path, tuple[int, int]]


def find_roots(paths: Iterable[str], modules: Iterable[str]) -> list[pathlib.Path]:
    """Return the folders whose files are watched: those of the files, and the packages of the modules."""
    roots = [pathlib.Path(path).resolve() for path in paths]
    for name in modules:
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(name.partition('.')[0])
            if spec is not None and spec.origin is not None:
                roots.append(pathlib.Path(spec.origin).resolve())
    return sorted({root if root.is_dir() else root.parent for root in roots})


def read_versions(roots: Iterable[pathlib.Path]) -> Versions:
    """Return the times and the sizes of all Python files in the folders, except hidden ones and environments."""
    found: dict[pathlib.Path, tuple[int, int]] = {}
    for root in roots:
        for folder, folders, files in os.walk(root):
            if 'pyvenv.cfg' in files:
                folders.clear()
                continue
            folders[:] = [name for name in folders if name not in _IGNORED and not name.startswith('.')]
            for name in files:
                if name.endswith('.py'):
                    path = pathlib.Path(folder, name)
                    with contextlib.suppress(OSError):  # a file can be removed at this moment
                        stat = path.stat()
                        found[path] = stat.st_mtime_ns, stat.st_size
    return found


def run_reloading(
    arguments: Sequence[str], roots: Sequence[pathlib.Path], parent: Parent, *, started: Callable[[], None]
) -> None:
    """
    Run the operator, and start it again when files change, until SIGINT or SIGTERM.

    Args:
        arguments: the arguments of ``kopf``, beginning with the command.
        roots: the folders whose files are watched.
        parent: the facts about this process that the process of the operator gets in its environment.
        started: called in another thread when the operator is started for the first time.

    Raises:
        SystemExit: when it is stopped by a signal.
    """
    command = [sys.executable, '-m', 'kopf', *arguments]
    threading.Thread(target=started, daemon=True).start()
    versions = read_versions(roots)
    with _ending_on_signals(), _open_lifeline() as lifeline:
        environment = {
            **dataclasses.replace(parent, lifeline=lifeline).make_environment(),
            ADDRESS_VARIABLE: make_address(),
        }
        while True:
            process = subprocess.Popen(command, env=environment, pass_fds=[lifeline])
            try:
                changed = _wait_for_change(process, roots, versions)
            finally:
                _stop(process)
            versions = read_versions(roots)
            click.echo(f'Starting again, as {changed.name} has changed.', err=True)


def _wait_for_change(
    process: 'subprocess.Popen[bytes]', roots: Sequence[pathlib.Path], known: Versions
) -> pathlib.Path:
    told = False
    while True:
        began = time.monotonic()
        versions = read_versions(roots)
        duration = time.monotonic() - began
        if changed := {path for path, _ in versions.items() ^ known.items()}:
            return min(changed)
        if not told and process.poll() is not None:
            told = True
            click.echo('The operator has ended. It is started again when its files change.', err=True)
        time.sleep(max(POLLING, duration / SHARE))


def _stop(process: 'subprocess.Popen[bytes]') -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            click.echo(f'The operator does not end within {PATIENCE:g} seconds, and is killed.', err=True)
            process.kill()
            process.wait()


@contextlib.contextmanager
def _open_lifeline() -> Iterator[int]:
    """Open a pipe whose other end only this process has; the system closes it when this process dies."""
    reading, writing = os.pipe()
    try:
        yield reading
    finally:
        os.close(reading)
        os.close(writing)


@contextlib.contextmanager
def _ending_on_signals() -> Iterator[None]:
    def receive(number: int, _: FrameType | None) -> None:
        raise SystemExit(0)

    before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
