"""The first lines of the README as a new user runs them: installed from a checkout, into an environment of one's own.

The package and what it needs come from a package index, so this takes long.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import pytest
from checkouts import environment, make_checkout
from kubeapi import wait
from snippets import ROOT

README = (ROOT / "README.md").read_text()
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]
INSTALLATION = "pip install '.[dev,msgspec,cel]' pytest"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """Return a copy of the repository, in which the package is installed as the README says."""
    folder = make_checkout(tmp_path_factory.mktemp("newcomer"))
    subprocess.run(INSTALLATION, cwd=folder, check=True, shell=True, env=environment(folder))
    return folder


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_the_first_operator_of_the_readme_works_in_a_new_checkout(checkout):
    assert INSTALLATION in COMMANDS
    [command] = [line for line in COMMANDS if line.endswith("handlers.py")]
    expected = "kopf-example-1 is created with"
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


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_the_new_project_of_the_readme_is_tested_and_deployed_in_a_new_checkout(checkout):
    commands = COMMANDS[COMMANDS.index("kopf init shop-operator") :]
    assert len(commands) == 5
    for command in [line for line in commands if not line.startswith("kopf run")]:
        done = subprocess.run(
            command, shell=True, cwd=checkout, env=environment(checkout), capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    assert "kind: Deployment" in checkout.joinpath("deploy.yaml").read_text()


LIMIT = 60
"""How long it may take from nothing to a tested operator (in seconds), on a machine that is not busy with others."""

PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def find_python(version):
    """Return an interpreter of the version; ``None`` if none is installed."""
    home = pathlib.Path(os.environ.get("PYENV_ROOT") or pathlib.Path.home() / ".pyenv")
    found = [shutil.which(f"python{version}"), *sorted(map(str, home.glob(f"versions/{version}.*/bin/python")))]
    for python in filter(None, found):
        if not subprocess.run([python, "-c", "import ensurepip, venv"], capture_output=True).returncode:
            return python
    return None


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Return the wheel of the package, built from a copy of the repository."""
    folder = tmp_path_factory.mktemp("wheel")
    command = ["pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder / "dist", "."]
    subprocess.run([sys.executable, "-m", *command], cwd=make_checkout(folder), check=True)
    (path,) = folder.glob("dist/*.whl")
    return path


@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", PYTHONS)
def test_a_new_operator_is_tested_within_a_minute(version, wheel, tmp_path):
    python = find_python(version)
    if python is None:
        pytest.skip(f"Python {version} is not installed.")

    def run(command, folder="."):
        done = subprocess.run(command, shell=True, cwd=tmp_path / folder, env=env, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    env, begin = {**environment(tmp_path), "PYTHONPATH": ""}, time.monotonic()
    run(f"{python} -m venv env")
    run(f"pip install {wheel}")
    run("kopf init shop-operator")
    block = re.search(r"```bash\n(.*?)```", tmp_path.joinpath("shop-operator/README.md").read_text(), re.DOTALL)
    installing, testing, playing = block[1].splitlines()
    run(installing, "shop-operator")
    assert " passed" in run(testing, "shop-operator")
    took = time.monotonic() - begin
    assert run("python --version").startswith(f"Python {version}.")
    assert playing.startswith("kopf run --sandbox")
    assert took < LIMIT * max(1, os.getloadavg()[0] / os.cpu_count())
