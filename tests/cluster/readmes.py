"""The READMEs of the examples as scripts: their commands are run, and their outputs are compared with what comes.

A README is a sequence of fenced blocks: "bash" has commands, where those that do not end (`kopf run` and the like)
go on in the background; "console" has commands after "$ " with their outputs; "text" has lines that the background
commands print sooner or later. Where the prose before a block speaks of Ctrl-C, the last of the background commands is
interrupted first. "…" stands for anything. In a sandbox, this is done literally; on a control plane, what starts
the sandbox is replaced by the commands of the section "On a cluster", and the namespace "default" by that of the test.
"""

import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

from forkserver import run_process, split_command, start_process
from kubeapi import wait
from ports import free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
BACKGROUND = re.compile(r"kopf (run|sandbox)\b|python ")
STARTS_SANDBOX = re.compile(r"kopf run --sandbox\b|kopf sandbox\b|export KUBECONFIG=")
REPEATABLE = re.compile(r"kubectl get\b|curl\b")


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block: its language and its lines, and what goes before it."""

    language: str
    lines: list[str]
    prose: str
    section: str


def parse(text: str) -> Iterator[Block]:
    """Split a README into its blocks."""
    section = ""
    for prose, language, body in re.findall(r"(?ms)(.*?)^```(\w+)\n(.*?)^```$", text):
        section = (re.findall(r"(?m)^## (.*)$", prose) or [section])[-1]
        yield Block(language, body.splitlines(), prose, section)


class Stream:
    """What a command prints, and up to where it was waited for."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.seen = 0

    @property
    def text(self) -> str:
        return self.path.read_text(errors="replace")


class Background:
    """A command that goes on while others are run, with its output.

    Its two streams go into files of their own: a program that prints in one thread and logs in another mixes their
    lines in a common file, since unbuffered prints write the text and its end separately.
    """

    def __init__(self, command: str, number: int, cwd: pathlib.Path, environment: dict[str, str]) -> None:
        self.command = command
        self.streams = [Stream(cwd / f"{number}.{name}") for name in ("stdout", "stderr")]
        with self.streams[0].path.open("wb") as stdout, self.streams[1].path.open("wb") as stderr:
            # Without a shell in between, which would not pass the signals on.
            words = split_command(command)
            assert words is not None, f"A command that goes on must need no shell: {command}"
            self.process = start_process(words, cwd=cwd, env=environment, stdout=stdout, stderr=stderr)

    @property
    def output(self) -> str:
        return "".join(stream.text for stream in self.streams)

    def interrupt(self) -> None:
        """Press Ctrl-C, and expect a graceful end."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        assert self.process.wait(60) == 0, f"{self.command} has ended with {self.process.returncode}:\n{self.output}"


class Walkthrough:
    """What a reader does who follows a README.

    :param folder: where the files are that are written on the way.
    :param kubeconfig: that of a control plane, with the namespace as the default; None for a sandbox of its own.
    """

    def __init__(self, readme: pathlib.Path, folder: pathlib.Path, kubeconfig: str | None, namespace: str) -> None:
        self.folder = folder
        self.namespace = namespace
        self.real = kubeconfig is not None
        # The garbage collector of a control plane looks for new kinds, such as those of parents, only every 30 s.
        self.patience = 60
        self.background: list[Background] = []
        for name in ("examples", "peering.yaml"):
            (folder / name).symlink_to(ROOT / name)
        text = readme.read_text()
        ports = sorted(set(re.findall(r"(?<=127\.0\.0\.1:)\d+", text)))
        self.ports = {port: str(free_port()) for port in ports}
        self.blocks = list(parse(text))
        self.environment = {
            **os.environ,
            "PATH": f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder),  # kubectl's cache, too
            "PYTHONUNBUFFERED": "1",
            "PORT": self.ports.get("8000", ""),
            "KUBECONFIG": kubeconfig or "",
        }

    def __enter__(self) -> "Walkthrough":
        return self

    def __exit__(self, type: object, error: BaseException | None, traceback: object) -> None:
        for item in self.background:
            if item.process.poll() is None:
                item.process.kill()
                item.process.wait()
            if error is not None:
                error.add_note(f"$ {item.command}\n{item.output}")

    def follow(self) -> None:
        """Do all that is written there, up to the section for clusters, and end what has been started."""
        for block in self.blocks:
            if block.section == "On a cluster":
                break
            if "Ctrl-C" in block.prose.rpartition("```")[2] and "until Ctrl-C" not in block.prose:
                self.background[-1].interrupt()
            self._do(block)
        for item in reversed(self.background):
            item.interrupt()
        promised = "".join(line for block in self.blocks for line in block.lines)
        if "failed with an exception" not in promised:
            assert not any("Traceback" in item.output for item in self.background)

    def _do(self, block: Block) -> None:
        lines = [self._localise(line) for line in block.lines]
        if block.language == "bash":
            if self.real and STARTS_SANDBOX.match(lines[0]):
                lines = [line for line in lines if not STARTS_SANDBOX.match(line)] or self._commands_for_cluster()
            for line in lines:
                self._run(line)
        elif block.language == "console":
            for part in re.findall(r"(?ms)^\$ .*?(?=^\$ |\Z)", "\n".join(lines)):
                command, _, expected = part.partition("\n")
                self._compare(command.removeprefix("$ "), expected)
        elif block.language == "text":
            self._wait_for(lines)

    def _commands_for_cluster(self) -> list[str]:
        return [
            self._localise(line)
            for block in self.blocks
            for line in block.lines
            if block.section == "On a cluster" and block.language == "bash"
        ]

    def _localise(self, line: str) -> str:
        for port, ours in self.ports.items():
            line = line.replace(f"127.0.0.1:{port}", f"127.0.0.1:{ours}")
        if not self.real:
            return line
        line = re.sub(r"^(python \S+)$", rf"\1 {self.namespace}", line)
        line = re.sub(r"--all-namespaces|--namespace=default|-n default", f"--namespace={self.namespace}", line)
        return re.sub(r'(?<=[\["])default(?=/)|(?<=in )default(?= namespace)', self.namespace, line)

    def _run(self, line: str) -> None:
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            self.environment[name] = value
        elif BACKGROUND.match(line):
            started = Background(line, len(self.background), self.folder, self.environment)
            self.background.append(started)
            if STARTS_SANDBOX.match(line):
                found = self._wait_output(started, re.compile(r"(?m)^export KUBECONFIG=(\S+)$"))
                self.environment["KUBECONFIG"] = found[1]
        else:
            done = self._execute(line)
            assert done.returncode == 0, f"$ {line}\n{done.stdout}"

    def _execute(self, command: str) -> "subprocess.CompletedProcess[str]":
        words = split_command(command)
        if words is not None:
            return run_process(words, cwd=self.folder, env=self.environment, is_merged=True)
        return subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )

    def _compare(self, command: str, expected: str) -> None:
        pattern = _pattern(" ".join(expected.split()))
        output = ""

        def matches() -> bool:
            nonlocal output
            output = self._execute(command).stdout
            return bool(re.fullmatch(pattern, " ".join(output.split()))) or not REPEATABLE.match(command)

        try:
            wait(matches, "the expected output", timeout=self.patience)
        except TimeoutError:
            pass
        assert re.fullmatch(pattern, " ".join(output.split())), f"$ {command}\n{output}\n...is not:\n{expected}"

    def _wait_for(self, lines: list[str]) -> None:
        """Wait until all the lines are there, in any order, after those that were waited for before."""
        streams = [stream for item in self.background for stream in item.streams]
        ends: dict[Stream, int] = {}
        for line in lines:
            pattern = re.compile(rf"(?m)(?:^|\s){_pattern(line)}$")

            def find(pattern: "re.Pattern[str]" = pattern) -> tuple[Stream, int] | None:
                found = ((stream, pattern.search(stream.text, stream.seen)) for stream in streams)
                return next(((stream, match.end()) for stream, match in found if match), None)

            stream, end = wait(find, f"the output {line!r}", timeout=self.patience) or (streams[0], 0)
            ends[stream] = max(ends.get(stream, 0), end)
        for stream, end in ends.items():
            stream.seen = end

    def _wait_output(self, item: Background, pattern: "re.Pattern[str]") -> "re.Match[str]":
        found = wait(lambda: pattern.search(item.output) or item.process.poll(), f"the output of {item.command}")
        assert isinstance(found, re.Match), item.output
        return found


def _pattern(text: str) -> str:
    return ".*".join(re.escape(part) for part in text.split("…"))
