"""A short soak, on the sandbox: that the script works, and nothing goes wrong at once; and how memory is judged."""

import pathlib
import random
import runpy
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parent / 'soak.py'


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_short_soak_finds_no_violations():
    command = [sys.executable, str(SCRIPT), '--sandbox', '--minutes=0.1', '--objects=20', '--seed=1']
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith('0 violations\n')


@pytest.mark.parametrize(
    'minutes, growing, bad',
    [
        (10, 0.1, False),  # MB a minute: of some 37, this is 1.1 % between the middle and the end
        (10, 0.2, True),
        (10, -0.5, False),
        (4, 1, False),  # it is still warming up
    ],
)
def test_growth_is_found_in_noise(minutes, growing, bad):
    find_growth = runpy.run_path(str(SCRIPT.with_name('verdict.py')))['find_growth']
    noise = random.Random(1)
    samples = [int((35 + growing * second / 60 + noise.uniform(0, 0.5)) * 2**20) for second in range(minutes * 60)]
    assert bool(list(find_growth(samples))) == bad
