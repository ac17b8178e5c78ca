"""The first lines of the README as a new user runs them: installed from a checkout, into an environment of one's own.

The package and what it needs come from a package index, so this takes long.
"""

import re
import subprocess

import pytest
from checkouts import environment, make_checkout
from kubeapi import wait
from snippets import ROOT

README = (ROOT / "README.md").read_text()
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]
INSTALLATION = "pip install '.[dev]'"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """Return a copy of the repository, in which the package is installed as the README says."""
    folder = make_checkout(tmp_path_factory.mktemp("newcomer"))
    subprocess.run(INSTALLATION, cwd=folder, check=True, shell=True, env=environment(folder))
    return folder


@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "command, expected",
    [
        (
            next(line for line in COMMANDS if line.endswith("examples/01-minimal/example.py") and "--sandbox" in line),
            "And here we are! Creating:",
        ),
        (next(line for line in COMMANDS if line.endswith("handlers.py")), "kopf-example-1 has been created with"),
    ],
)
def test_the_commands_of_the_readme_work_in_a_new_checkout(checkout, command, expected):
    assert INSTALLATION in COMMANDS
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    checkout.joinpath("handlers.py").write_text(code[1])
    log = checkout / "log"
    with log.open("w") as output:
        operator = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=checkout,
            env={**environment(checkout), "PYTHONUNBUFFERED": "1"},  # a terminal shows each line at once
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait(
            lambda: expected in log.read_text() and "Creation is processed: 1 succeeded" in log.read_text(),
            f"the operator to handle the object: {command}",
            timeout=30,
        )
    finally:
        operator.terminate()
        assert operator.wait(30) == 0, log.read_text()
