"""The commands of a page, run as users run them, in a folder with the files that the page shows.

``kopf run`` does not end by itself: it is run until the next one, or the end of the page; in a thread of this process,
since that is much faster than a process. Other commands of kopf are forks, if they need no shell. All others are run by
bash.
"""

import contextlib
import os
import pathlib
import re
import shlex
import subprocess
import sys
import threading
import time

from forkserver import run_process, split_command, start_process
from snippets import Block
from stage import Lines, assert_shows

import kopf
from kopf import cli
from kopf._cogs.aiokits.flags import ServingThreadEvent

SECONDS = 60.0
_LASTING = re.compile(r"kopf (run|sandbox)\b(?!.*--help)")
_FAILING = re.compile(r"^error\b|^The \w+ \S+ is invalid:", re.MULTILINE | re.IGNORECASE)


def write_file(folder: pathlib.Path, block: Block) -> None:
    """Write a block with a caption to its file, or append it."""
    name, _, addition = block.caption.partition(", ")
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a" if addition else "w") as file:
        file.write(f"\n\n{block.text}" if addition else block.text)


class Shell:
    """The terminals of one page. Close it in the end.

    :param folder: where the commands are run.
    :param files: the blocks with captions, which are the names of files. They are written before the commands that
        follow them; a block with the caption "NAME, at the end" is appended to the file.
    """

    def __init__(self, folder: pathlib.Path, files: list[Block]) -> None:
        self._folder = folder
        self._operator: Foreground | None = None
        self._path = list(sys.path)
        self._files = sorted(files, key=lambda file: file.line)

    def run(self, block: Block) -> None:
        """Run all commands of a block, each of which has to succeed and to print what is shown."""
        while self._files and self._files[0].line < block.line:
            write_file(self._folder, self._files.pop(0))
        for command, shown in commands(block):
            if command.startswith("cd "):
                self._folder /= command.removeprefix("cd ")
                os.chdir(self._folder)  # the fixture returns from it
            elif _LASTING.match(command) and not _FAILING.search(shown):
                self.close()
                # These are ended by signals, which are for processes.
                alone = "sandbox" in command or "--processes" in command
                self._operator = (Process if alone else Thread)(command, self._folder, block.place)
                self._operator.wait_for(shown, block.place)
            else:
                self._run(command, shown, block.place)

    def close(self) -> None:
        """Stop what runs, and forget where its files are."""
        if self._operator is not None:
            self._operator.stop()
            self._operator = None
            sys.path[:] = self._path

    def _run(self, command: str, shown: str, place: str) -> None:
        deadline = time.monotonic() + SECONDS
        while True:
            process = self._execute(command)
            output = process.stdout
            try:
                # A command that shows an error is there for the error.
                failed = process.returncode != 0
                assert failed == bool(_FAILING.search(shown)), f"{place}: {command}: {output}"
                assert_shows(shown, output, place)
                return
            except AssertionError as error:
                if not shown or time.monotonic() > deadline:
                    details = self._operator.output if self._operator is not None else "(no operator)"
                    raise AssertionError(f"{error}\nThe operator:\n{details}") from None
            time.sleep(0.1)

    def _execute(self, command: str) -> "subprocess.CompletedProcess[str]":
        line, _, file = command.partition(" > ")
        words, environment = split_command(line), os.environ | self._find_sandbox()
        if words is not None and words[0] == "kopf" and re.fullmatch(r"[\w./-]*", file):
            options = {"cwd": self._folder, "env": environment, "timeout": 4 * SECONDS}
            process = run_process(words, is_merged=not file, **options)
            if file:
                (self._folder / file).write_text(process.stdout)
                process.stdout = process.stderr
            return process
        return subprocess.run(
            ["bash", "-c", command],
            cwd=self._folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=4 * SECONDS,
        )

    def _find_sandbox(self) -> dict[str, str]:
        """Return the variable that readers paste into another terminal, while there is a sandbox."""
        found = re.search(r"^export KUBECONFIG=(.+)$", self._operator.output if self._operator else "", re.MULTILINE)
        return {"KUBECONFIG": found[1]} if found else {}


class Foreground:
    """A command of kopf that runs until it is stopped."""

    @property
    def output(self) -> str:
        """All that it has printed so far."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop it; it must end well."""
        raise NotImplementedError

    def wait_for(self, shown: str, place: str) -> None:
        """Wait until the lines are there."""
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                return assert_shows(shown, self.output, place)
            except AssertionError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.01)


class Thread(Foreground):
    """In a thread of this process."""

    def __init__(self, command: str, folder: pathlib.Path, place: str) -> None:
        # The shell knows best what its words mean.
        line = re.sub(r"^kopf ", "", command)
        words = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], cwd=folder, capture_output=True, check=True)
        self._stream = Lines()
        self._error: BaseException | None = None
        self._stop = threading.Event()
        ready = ServingThreadEvent()
        controls = cli.CLIControls(ready_flag=ready, stop_flag=self._stop, registry=kopf.OperatorRegistry())

        def run() -> None:
            try:
                with contextlib.redirect_stdout(self._stream), contextlib.redirect_stderr(self._stream):
                    cli.main(
                        words.stdout.decode().split("\0")[:-1], prog_name="kopf", obj=controls, standalone_mode=False
                    )
            except BaseException as error:
                self._error = error
            finally:
                ready.set()

        self._thread = threading.Thread(target=run, name=command, daemon=True)
        self._thread.start()
        assert ready.wait(SECONDS) and self._error is None, f"{place}: {command}: {self._error!r}\n{self.output}"

    @property
    def output(self) -> str:
        return self._stream.getvalue()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(SECONDS)
        assert not self._thread.is_alive() and self._error is None, f"{self._error!r}\n{self.output}"


class Process(Foreground):
    """In a process."""

    def __init__(self, command: str, folder: pathlib.Path, place: str) -> None:
        self._log = folder / "process.log"
        with self._log.open("wb") as log:
            words = split_command(command)
            assert words is not None, f"{place}: a command that goes on must need no shell: {command}"
            self._process = start_process(words, cwd=folder, stdout=log)
        try:
            self.wait_for(
                "The sandbox is at ..." if "sandbox" in command else "...Initial authentication has finished....", place
            )
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise

    @property
    def output(self) -> str:
        return self._log.read_text()

    def stop(self) -> None:
        self._process.terminate()
        try:
            code = self._process.wait(SECONDS)
        finally:
            self._process.kill()
        assert code == 0, self.output


def commands(block: Block):
    """Take a block apart: give the commands, each with the output that is shown for it."""
    lines = block.text.splitlines()
    if block.kind == "bash":
        lines = [line if continued else f"$ {line}" for line, continued in _with_continuations(lines)]
    command, shown = None, []
    for line in lines:
        if line.startswith("$ "):
            if command is not None:
                yield command, "\n".join(shown)
            command, shown = line[2:], []
        elif command is not None and (command.endswith("\\") or _is_open(command)):
            command += f"\n{line}"
        else:
            shown.append(line)
    if command is not None:
        yield command, "\n".join(shown)


def _with_continuations(lines):
    command = ""
    for line in lines:
        continued = bool(command) and (command.endswith("\\") or _is_open(command))
        if not continued and (not line.strip() or line.startswith("#")):
            continue
        command = f"{command}\n{line}" if continued else line
        yield line, continued


def _is_open(command: str) -> bool:
    """Check whether a quote or a here-document goes on in the next line."""
    if found := re.search(r"<<\s*'?(\w+)'?", command):
        return not command.rstrip().endswith(f"\n{found[1]}")
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return True
    return False


def environment() -> dict[str, str]:
    """Return the variables of the commands that differ from those of the tests."""
    scripts = pathlib.Path(sys.executable).parent
    return {
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        # As on terminals, where each line is shown at once; into files, it would come at the end.
        "PYTHONUNBUFFERED": "1",
        # Readers have no plugin of pytest but ours; this one warns of itself on Python 3.12 and 3.13.
        "PYTEST_ADDOPTS": "-p no:looptime_plugin",
    }
