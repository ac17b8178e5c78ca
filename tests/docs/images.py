"""A Dockerfile without Docker: its steps are done in a folder, where paths from the root on begin, too.

It knows the few instructions that operators need. ``FROM python:...`` is a new virtual environment with whatever
version of Python runs this; everything else is done as it is written, the downloads included.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import venv

_FROM_ROOT = re.compile(r"(?<![\w.:/*-])/(?=[a-z])")


class Image:
    """What comes of a Dockerfile.

    :param dockerfile: the text.
    :param context: where the files to be copied are.
    :param root: an empty folder, the root of the image.
    :raises ValueError: there is something in the Dockerfile that this does not know.
    """

    def __init__(self, dockerfile: str, context: pathlib.Path, root: pathlib.Path) -> None:
        self.context = context
        self.root = root
        self.command: list[str] = []
        self._folder = root
        text = re.sub(r"\\\n", " ", dockerfile)
        for line in filter(None, map(str.strip, text.splitlines())):
            if line.startswith("#"):
                continue
            instruction, _, rest = line.partition(" ")
            step = {
                "FROM": self._begin,
                "WORKDIR": self._enter,
                "COPY": self._copy,
                "RUN": self._run,
                "USER": self._switch,
                "CMD": self._end,
            }.get(instruction)
            if step is None:
                raise ValueError(f"Unknown instruction: {line}")
            step(rest.strip())

    @property
    def environment(self) -> dict[str, str]:
        """The variables of what runs in it."""
        path = os.pathsep.join([str(self.root / "env" / "bin"), os.environ["PATH"]])
        return {**os.environ, "PATH": path, "VIRTUAL_ENV": str(self.root / "env"), "HOME": str(self.root)}

    def _begin(self, base: str) -> None:
        if not re.fullmatch(r"python:3(\.\d+)?(-slim)?", base):
            raise ValueError(f"Unknown base: {base}")
        venv.create(self.root / "env", with_pip=True)

    def _enter(self, folder: str) -> None:
        self._folder = self.root / folder.lstrip("/")
        self._folder.mkdir(parents=True, exist_ok=True)

    def _copy(self, paths: str) -> None:
        *sources, target = paths.split()
        folder = self.root / target.lstrip("/") if target.startswith("/") else self._folder / target
        if not target.endswith("/"):
            raise ValueError(f"Not a folder: {target}")
        folder.mkdir(parents=True, exist_ok=True)
        for source in sources:
            found = sorted(self.context.glob(source))
            if not found and not ("*" in source and len(sources) > 1):
                raise ValueError(f"Nothing to copy: {source}")
            for path in found:
                shutil.copy(path, folder)

    def _run(self, command: str) -> None:
        subprocess.run(["bash", "-c", self._inside(command)], cwd=self._folder, env=self.environment, check=True)

    def _switch(self, user: str) -> None:
        if not user.isdigit() or user == "0":  # Kubernetes checks ``runAsNonRoot`` by numbers alone
            raise ValueError(f"Not the number of a user without rights: {user}")

    def _end(self, command: str) -> None:
        self.command = [self._inside(word) for word in json.loads(command)]

    def _inside(self, text: str) -> str:
        return _FROM_ROOT.sub(f"{self.root}/", text)
