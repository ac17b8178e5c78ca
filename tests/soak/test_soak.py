"""A short soak, on the sandbox: that the script works, and that nothing goes wrong at once."""
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parent / 'soak.py'


@pytest.mark.timeout(120)
def test_short_soak():
    command = [sys.executable, str(SCRIPT), '--sandbox', '--minutes=0.1', '--objects=20', '--seed=1']
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith('0 violations\n')
