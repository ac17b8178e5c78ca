"""
The public surface is typed: strict checkers find no fault in an operator, and find the mistakes in a wrong one.

Pyright is run as basedpyright, in the strict mode of both: its package has all that it needs, and downloads nothing.
"""
import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

import kopf

SAMPLE = pathlib.Path(__file__).parent / 'typing_sample.py'
MISTAKES = '''
import kopf
from typing import Any

@kopf.on.create('kopfexamples', nonsense=1)
def fn1(**_: Any) -> None: ...

@kopf.timer('kopfexamples', interval='soon')
def fn2(**_: Any) -> None: ...

@kopf.on.event('kopfexamples', labels={'a': 1})
def fn3(spec: kopf.Spec, **_: Any) -> None:
    spec['x'] = 1

kopf.adopt(123)
'''
LINES = {5, 8, 11, 13, 15}

pytestmark = pytest.mark.timeout(300)  # nothing is cached where the tests run for the first time


@pytest.fixture(params=['mypy', 'basedpyright'])
def check(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Callable[[pathlib.Path], str]:
    """Run the checker on a file; return its complaints."""
    config = tmp_path / 'config.json'
    if request.param == 'mypy':
        config.write_text('[mypy]\nstrict = true\n')
        args = ['mypy', '--config-file', str(config), '--no-error-summary', '--hide-error-context']
    else:
        config.write_text(json.dumps({'typeCheckingMode': 'strict', 'include': [str(SAMPLE.parent), str(tmp_path)]}))
        args = ['basedpyright', '--project', str(config), '--pythonpath', sys.executable, '--level', 'error']

    def run(path: pathlib.Path) -> str:
        done = subprocess.run([sys.executable, '-m', *args, str(path)], capture_output=True, text=True)
        assert done.returncode in (0, 1), done.stdout + done.stderr
        return '\n'.join(line for line in done.stdout.splitlines() if ' error: ' in line or ' - error: ' in line)
    return run


def test_all_public_names_are_used() -> None:
    used = set(re.findall(r'\bkopf\.(\w+)', SAMPLE.read_text()))
    assert not set(kopf.__all__) - used


def test_operators_can_be_strictly_typed(check: Callable[[pathlib.Path], str]) -> None:
    assert check(SAMPLE) == ''


def test_mistakes_are_found(check: Callable[[pathlib.Path], str], tmp_path: pathlib.Path) -> None:
    path = tmp_path / 'mistakes.py'
    path.write_text(MISTAKES)
    found = check(path)
    lines = {int(line) for line in re.findall(rf'{path.name}:(\d+):', found)}
    assert lines == LINES, found
