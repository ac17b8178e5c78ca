"""``kopf run --reload``: the operator is started again when its files change, and the sandbox stays."""

import contextlib
import importlib
import os
import re
import threading
import time

import pytest
from forkserver import start_process

from kopf._kits.reloading import find_roots, read_versions

APP = """
import dataclasses, kopf

@dataclasses.dataclass
class Spec:
    text: str

@kopf.kind('example.com/v1')
@dataclasses.dataclass
class Note:
    spec: Spec

@kopf.on.resume(Note)
@kopf.on.create(Note)
def seen(spec, logger, **_):
    logger.info(f"WORD {spec.text}")
"""
NOTE = "{apiVersion: example.com/v1, kind: Note, metadata: {name: a, namespace: default}, spec: {text: hello}}"


def test_the_folders_of_files_and_modules_are_watched(tmp_path, monkeypatch):
    for name in (
        'one/app.py',
        'two/watched_package/__init__.py',
        'two/watched_package/deep/more.py',
        'one/__pycache__/app.py',
        'one/.hidden/app.py',
        'one/environment/pyvenv.cfg',
        'one/environment/lib/module.py',
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('')
    # No other test may import a package of this name: tests share a process.
    monkeypatch.syspath_prepend(str(tmp_path / 'two'))
    importlib.invalidate_caches()
    roots = find_roots([str(tmp_path / 'one' / 'app.py')], ['watched_package.deep', 'no_such_package'])
    assert roots == [tmp_path / 'one', tmp_path / 'two' / 'watched_package']
    names = {str(path.relative_to(tmp_path)) for path in read_versions(roots)}
    assert names == {'one/app.py', 'two/watched_package/__init__.py', 'two/watched_package/deep/more.py'}


class Output:
    """The lines of a process, which are read as they come."""

    def __init__(self, file):
        self.lines = []
        self.reader = threading.Thread(target=lambda: self.lines.extend(iter(file.readline, '')), daemon=True)
        self.reader.start()

    def wait_for(self, pattern, timeout=60):
        deadline = time.monotonic() + timeout
        while not any(re.search(pattern, line) for line in self.lines):
            assert time.monotonic() < deadline, ''.join(self.lines)
            time.sleep(0.02)


@contextlib.contextmanager
def running(command, environment):
    """Run a command in the block, which gets the process and its output."""
    reading, writing = os.pipe()
    with open(reading) as file:
        with open(writing, 'wb') as stdout:
            process = start_process(command, stdout=stdout, env={**environment, 'PYTHONUNBUFFERED': '1'})
        output = Output(file)
        try:
            yield process, output
        finally:
            process.kill()
            output.reader.join(30)  # until the last process has closed the pipe


@pytest.mark.timeout(240)
@pytest.mark.long
def test_a_changed_operator_is_started_again_and_the_objects_stay(tmp_path):
    app, note = tmp_path / 'app.py', tmp_path / 'note.yaml'
    app.write_text(APP.replace('WORD', 'first'))
    note.write_text(NOTE)
    options = ['--sandbox', '--reload', '--inspect', '--load', note]
    with running(['kopf', 'run', *options, app], os.environ) as (process, output):
        try:
            output.wait_for('first hello')
            app.write_text(APP.replace('WORD', 'second'))
            output.wait_for('Starting again, as app.py has changed')
            output.wait_for('second hello')
            app.write_text('raise ValueError("broken")')
            output.wait_for('The operator has ended. It is started again when its files change')
            app.write_text(APP.replace('WORD', 'third'))
            output.wait_for('third hello')
        finally:
            process.terminate()
        assert process.wait(30) == 0
    links = re.findall(r'The inspector is at (\S+)', ''.join(output.lines))
    assert len(links) == 3 and len(set(links)) == 1  # so that an open page goes on with the next process


@pytest.mark.timeout(120)
def test_the_login_handlers_are_not_called_with_a_sandbox_as_they_could_lead_to_a_cluster(tmp_path):
    app, note = tmp_path / 'app.py', tmp_path / 'note.yaml'
    login = "@kopf.on.login()\ndef login(**_):\n    return kopf.ConnectionInfo(server='http://elsewhere.invalid')\n"
    app.write_text(APP.replace('WORD', 'seen') + login)
    note.write_text(NOTE)
    # By the environment: the process of the operator inherits it, and must not start yet another process.
    environment = {**os.environ, 'KOPF_RUN_RELOAD': '1', 'KOPF_RUN_SANDBOX': '1', 'KOPF_RUN_LOAD': str(note)}
    with running(['kopf', 'run', app], environment) as (process, output):
        try:
            output.wait_for('seen hello')
        finally:
            process.terminate()
        assert process.wait(30) == 0
    assert not any('elsewhere' in line for line in output.lines)


@pytest.mark.timeout(120)
def test_the_operator_ends_when_the_process_that_restarts_it_is_killed(tmp_path):
    app = tmp_path / 'app.py'
    app.write_text("import kopf\n\n@kopf.on.startup()\ndef start(logger, **_):\n    logger.info('started')\n")
    with running(['kopf', 'run', '--sandbox', '--reload', '-A', app], os.environ) as (process, output):
        output.wait_for('started')
        process.kill()
        output.reader.join(60)  # it ends when all processes have closed the pipe
        assert not output.reader.is_alive()
