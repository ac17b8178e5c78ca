"""A checkout of this repository as a new user has it, with a virtual environment in it in which there is only pip.

It is a copy of what is in the repository as it is now: also of what is not committed yet.
"""

import os
import pathlib
import shutil
import subprocess
import venv

from snippets import ROOT


def make_checkout(folder: pathlib.Path) -> pathlib.Path:
    """Copy the repository into the folder, and make the environment ``env`` there."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    venv.create(folder / "env", with_pip=True)
    return folder


def environment(folder: pathlib.Path, *others: pathlib.Path) -> dict[str, str]:
    """Return the variables of a developer in the checkout, where its environment is activated; no cluster is known."""
    path = os.pathsep.join([*map(str, [*others, folder / "env" / "bin"]), os.environ["PATH"]])
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CLUSTER_")}
    return {**kept, "PATH": path, "VIRTUAL_ENV": str(folder / "env"), "KUBECONFIG": ""}
