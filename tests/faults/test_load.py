"""Short forms of the scripts in this folder: seconds instead of minutes, hundreds of objects instead of thousands."""

import pathlib
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).parent


def run(script, *args):
    done = subprocess.run([sys.executable, FOLDER / script, *args], capture_output=True, text=True, timeout=200)
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.timeout(300)
def test_nothing_is_lost_or_done_twice_under_load():
    assert 'nothing lost, nothing done twice' in run('load.py', '--objects=200', '--seconds=5')


@pytest.mark.long
@pytest.mark.timeout(300)
def test_nothing_stays_of_objects_that_come_and_go():
    assert 'nothing stays' in run('leaks.py', '--events=3000', '--objects=100')
