"""
Commands as forks of a process that has imported kopf already: they spend no time on interpreters and imports.

Otherwise, they are processes like all others: they have their own signals, exit codes, environments, and standard
streams. Tests of the start itself (what is imported, options of Python) start new interpreters instead.

The forks are made by a server, a process with one thread: a fork of the process that runs the tests, with its threads
and loops, would not be safe. The server gets the descriptors of the streams over a socket, and writes the exit code of
each child into a pipe of its own. Several processes that run tests have a server each; only the first of those servers
is a new interpreter, and the others are forks of it.

A child ends without taking the interpreter down, object by object: that would take six times as long as to fork it.
"""

import asyncio
import atexit
import contextlib
import functools
import gc
import io
import json
import os
import re
import runpy
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

MODULES = [
    "aiohttp.web",
    "kopf.cli",
    "kopf._cogs.clients.aiosessions",
    "kopf._cogs.clients.connection_pools",
    "kopf._core.engines.admission",
    "kopf._core.engines.daemons",
    "kopf._core.reactor.operators",
    "kopf._core.reactor.running",
    "kopf._kits.checking.command_line",
    "kopf._kits.webhooks",
    "kopf.testing",
    "pytest",
    "uvloop",
    "yaml",
]
"""The modules that are imported before the forks: those that most operators import, directly or later."""

INHERITED = ("PYTHONUNBUFFERED",)
"""The variables for the interpreter that can be set after its start. With others, a new one is started."""


class ForkedProcess:
    """A child of the server; a `subprocess.Popen` as far as tests use it."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit code, or the negative number of the signal; ``None`` while the process runs."""
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        """
        Wait for the end, and return the exit code.

        Raises:
            subprocess.TimeoutExpired: if the process still runs after the timeout (in seconds).
        """
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("a forked operator", timeout or 0)
        return code

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _wait(self, timeout: float | None) -> int | None:
        with self._lock:
            if self.returncode is None:
                with selectors.DefaultSelector() as selector:
                    selector.register(self._status, selectors.EVENT_READ)
                    if selector.select(timeout):
                        # Without a code, the server has ended before its child.
                        self.returncode = int(os.read(self._status, 16) or b"-9")
                        os.close(self._status)
            return self.returncode


class ForkServer:
    """
    The server, as the tests see it: it ends with them.

    Args:
        connection: to the process of the server.
        environment: the variables for its interpreter.
    """

    def __init__(self, connection: socket.socket, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self._lock = threading.Lock()
        self._socket = connection

    @classmethod
    def launch(cls, env: Mapping[str, str]) -> "ForkServer":
        """Start a server in a new interpreter."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                env=env,
            )
        server, owner = cls(ours, _get_python_variables(env)), os.getpid()

        def end() -> None:
            server.close()
            if os.getpid() == owner:  # not in forks of the process
                process.wait()

        atexit.register(end)
        return server

    def close(self) -> None:
        """Let the server end, and all that it has started."""
        self._socket.close()

    def split(self) -> "ForkServer":
        """Start another server: a fork of this one."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._request({}, [theirs.fileno()])
        return ForkServer(ours, self.environment)

    def start(
        self, words: Sequence[str], *, env: Mapping[str, str], cwd: str, stdout: int, stderr: int
    ) -> ForkedProcess:
        """Start a process that runs the command."""
        reading, writing = os.pipe()
        try:
            pid = self._request({"words": list(words), "env": dict(env), "cwd": cwd}, [stdout, stderr, writing])
        finally:
            os.close(writing)
        return ForkedProcess(pid, reading)

    def _request(self, request: Mapping[str, Any], fds: Sequence[int]) -> int:
        data = json.dumps(request).encode()
        with self._lock:
            socket.send_fds(self._socket, [len(data).to_bytes(4)], fds)
            self._socket.sendall(data)
            return int.from_bytes(_receive(self._socket, 4))


def start_process(
    words: Sequence[str | os.PathLike[str]],
    *,
    stdout: IO[Any],
    stderr: IO[Any] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] = ".",
) -> "subprocess.Popen[bytes] | ForkedProcess":
    """
    Start a command in a session of its own: as a fork, or as a new process if the environment needs a new interpreter.

    Args:
        words: the command: `kopf`, `python SCRIPT` or `python -m MODULE`, with its arguments.
        stdout: the file for the standard output.
        stderr: the file for the standard error; by default, that of the standard output.
        env: the environment instead of the current one.
        cwd: the working folder.
    """
    command, *args = map(os.fspath, words)
    env, folder = os.environ if env is None else env, os.path.abspath(cwd)
    if _get_python_variables(env) == get_server().environment:
        outputs = {"stdout": stdout.fileno(), "stderr": (stderr or stdout).fileno()}
        return get_server().start([command, *args], env=env, cwd=folder, **outputs)
    return subprocess.Popen(
        [sys.executable, *(["-m", "kopf"] if command == "kopf" else []), *args],
        env=env,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.STDOUT if stderr is None else stderr,
        start_new_session=True,
    )


def run_process(
    words: Sequence[str | os.PathLike[str]], *, timeout: float = 60, is_merged: bool = False, **options: Any
) -> "subprocess.CompletedProcess[str]":
    """
    Run a command as `start_process` does, and wait for its end; return the exit code and what it has printed.

    If both streams are merged, as on a terminal, the standard output has the lines of both.
    """
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        process = start_process(words, stdout=stdout, stderr=None if is_merged else stderr, **options)
        try:
            code = process.wait(timeout)
        except BaseException:
            process.kill()
            raise
        for file in (stdout, stderr):
            file.seek(0)
        return subprocess.CompletedProcess(words, code, stdout.read(), stderr.read())


def split_command(line: str) -> list[str] | None:
    """Return the words of a command that `start_process` can start; ``None`` if it needs a shell."""
    is_known = re.match(r"kopf |python [^-]", line) is not None
    return shlex.split(line) if is_known and not re.search(r"[$`|&;<>*?(){}~\\]", line) else None


class AsyncProcess:
    """A process whose output is read by a coroutine; an `asyncio.subprocess.Process` as far as tests use it."""

    def __init__(self, process: "subprocess.Popen[bytes] | ForkedProcess", stdout: asyncio.StreamReader) -> None:
        self._process = process
        self.stdout = stdout
        self.kill = process.kill
        self.send_signal = process.send_signal

    @classmethod
    async def start(
        cls, words: Sequence[str | os.PathLike[str]], *, limit: int = 2**16, **options: Any
    ) -> "AsyncProcess":
        """Start a command as `start_process` does; both its streams are read as one."""
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(limit)
        reading, writing = os.pipe()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb"))
        with os.fdopen(writing, "wb") as file:
            return cls(start_process(words, stdout=file, **options), reader)

    @property
    def returncode(self) -> int | None:
        """The exit code; ``None`` while the process runs."""
        return self._process.poll()

    async def communicate(self) -> tuple[bytes, None]:
        """Wait for the end; return the rest of the output."""
        output = await self.stdout.read()
        await asyncio.to_thread(self._process.wait)
        return output, None


def get_server() -> ForkServer:
    """Return the server of this process; start it when it is needed for the first time."""
    with _lock:
        if not _servers:
            _servers.append(ForkServer.launch(os.environ))
        return _servers[0]


def launch_server(env: Mapping[str, str]) -> None:
    """Start the server of this process now. Others that this process forks can have forks of it."""
    _servers.append(ForkServer.launch(env))


def split_server() -> ForkServer | None:
    """Return another server, for a fork of this process; ``None`` if this process has none yet."""
    return _servers[0].split() if _servers else None


def replace_server(server: ForkServer) -> None:
    """Let this server be the one of this process, after a fork, instead of that of the original process."""
    _servers.pop().close()
    _servers.append(server)


_lock = threading.Lock()
_servers: list[ForkServer] = []


def _get_python_variables(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith("PYTHON") and name not in INHERITED}


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (chunk := connection.recv(size - len(data))):
        data += chunk
    return data


# The server.


def serve(connection: socket.socket) -> Callable[[], Any] | None:
    """Fork for each request, until the tests end; return what is to be run in a child, and ``None`` in the server."""
    wakeup, waker = socket.socketpair()
    for each in (wakeup, waker):
        each.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    statuses: dict[int, int] = {}
    selector = selectors.DefaultSelector()
    selector.register(connection, selectors.EVENT_READ)
    selector.register(wakeup, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is wakeup:
                wakeup.recv(4096)
                _reap(statuses)
                continue
            head, fds, _, _ = socket.recv_fds(connection, 4, 3)
            if not head:
                # The tests have ended, or were killed: nothing may outlive them.
                for pid in statuses:
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    while True:
                        os.wait()  # for the other servers, too
                return None
            request = json.loads(_receive(connection, int.from_bytes(head)))
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                for each in (selector, wakeup, waker, connection):
                    each.close()
                for fd in statuses.values():
                    os.close(fd)
                if not request:
                    return functools.partial(serve, socket.socket(fileno=fds[0]))
                return functools.partial(_run, fds, request)
            if request:
                statuses[pid] = fds.pop()
            for fd in fds:
                os.close(fd)
            connection.sendall(pid.to_bytes(4))


def _reap(statuses: dict[int, int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            if pid in statuses:  # unlike the other servers
                with open(statuses.pop(pid), "wb") as pipe:
                    pipe.write(b"%d" % os.waitstatus_to_exitcode(status))


def _run(fds: Sequence[int], request: Mapping[str, Any]) -> None:
    """Run the command, in the child."""
    os.setsid()
    for number, fd in enumerate(fds[:2], start=1):
        os.dup2(fd, number)
    for fd in fds:
        os.close(fd)
    for sig, handler in {signal.SIGCHLD: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}.items():
        signal.signal(sig, handler)
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    os.chdir(request["cwd"])
    # As in a new interpreter: the buffers are those of the variables in the environment. Why not `reconfigure`? It does
    # not change the buffer of bytes below that of text.
    buffering = 0 if os.environ.get("PYTHONUNBUFFERED") else -1
    for name, number in (("stdout", 1), ("stderr", 2)):
        binary = open(number, "wb", buffering, closefd=False)
        setattr(sys, name, io.TextIOWrapper(binary, line_buffering=number == 2, write_through=buffering == 0))
    with _ending_quickly():
        command, *args = request["words"]
        if command == "kopf":
            from kopf import cli

            sys.argv, sys.path[0] = ["kopf", *args], request["cwd"]
            cli.launch()
        elif args[0] == "-m":
            sys.argv, sys.path[0] = args[1:], request["cwd"]
            runpy.run_module(args[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv, sys.path[0] = args, os.path.dirname(os.path.abspath(args[0]))
            runpy.run_path(args[0], run_name="__main__")


@contextlib.contextmanager
def _ending_quickly() -> Iterator[None]:
    """End the process after the block as the interpreter would, except that the modules are not torn down."""
    code: Any = 0
    try:
        yield
    except SystemExit as exit:
        code = exit.code
        if code is not None and not isinstance(code, int):
            raise  # its text is printed by the interpreter
    except Exception:
        sys.excepthook(*sys.exc_info())
        code = 1
    # Other exceptions, as for Ctrl+C, are left to the interpreter.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()  # of what is forgotten in cycles, warnings are printed
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit((code or 0) & 0xFF)


def main() -> None:
    """Import what operators need, and serve."""
    import importlib

    for module in MODULES:
        importlib.import_module(module)
    # The children share these objects with the server until they write to them.
    gc.collect()
    gc.freeze()
    run = serve(socket.socket(fileno=int(sys.argv[1])))
    while run is not None:
        run = run()  # a further server, or a command


if __name__ == "__main__":
    main()
