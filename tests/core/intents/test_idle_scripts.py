"""Scripts that only declare handlers say so when they end."""

import os
import re
import subprocess
import sys

import pytest


def run_script(tmp_path, text):
    (tmp_path / 'handlers.py').write_text("import kopf\n" + text)
    env = {**os.environ, 'KUBECONFIG': str(tmp_path / 'nosuch')}
    command = [sys.executable, 'handlers.py']
    return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False).stderr


DECLARED = "@kopf.on.create('kopfexamples')\ndef fn(**_): pass\n"


def test_a_script_that_only_declares_handlers_says_how_to_run_them(tmp_path):
    [line] = run_script(tmp_path, DECLARED * 2 + "@kopf.on.startup()\ndef start(**_): pass\n").splitlines()[-1:]
    assert re.fullmatch(r"Nothing has run: .*handlers.py only declares handlers. To run them: kopf run .*", line)


@pytest.mark.long
def test_other_scripts_do_not(tmp_path):
    assert run_script(tmp_path, f"{DECLARED}if len('') == 1: kopf.run()\n") == ""
    assert "Nothing has run" not in run_script(tmp_path, f"{DECLARED}1 / 0\n")
