"""
Several processes of one operator: ``kopf run --shards auto --processes N``.

Python runs one thread at a time, so one process uses one core. A supervisor starts the same command several times.
Each process is a member of the shards as if it were a replica: the members share nothing but the Kubernetes API. The
supervisor starts processes again that fail, forwards the signals, and merges the probes and the metrics. Specified in
the documentation's "Share the objects among members".
"""

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence

from kopf._kits.child_operators import Parent, Place
from kopf._kits.merged_status import serve_merged

logger = logging.getLogger(__name__)

FIRST_PAUSE = 1.0
"""How long the supervisor waits before it starts a failed process again (in seconds); doubled with each failure."""
LAST_PAUSE = 60.0
"""The longest pause, and how long a process must have worked for its former failures to be forgotten (in seconds)."""
MISUSED = 2
"""The exit code for a wrong command line, after which another start would fail, too."""


@dataclasses.dataclass(frozen=True)
class Group:
    """The processes to run."""

    arguments: Sequence[str]
    """The arguments of ``kopf``, beginning with the command."""
    count: int
    """The number of processes."""
    parent: Parent
    """The facts about the supervisor that each process gets in its environment."""


def supervise(group: Group, *, liveness: str | None, metrics: str | None) -> int:
    """
    Run the processes until SIGINT or SIGTERM, and return the exit code for all of them.

    Args:
        group: the processes.
        liveness: the URL of the merged probes, if any.
        metrics: the URL of the merged metrics, if any.

    Raises:
        StatusServerError: if the server of the probes or of the metrics cannot listen.
        MetricsError: if there can be no metrics.
    """
    with tempfile.TemporaryDirectory(prefix='kopf-') as folder:  # only its owner may enter it
        return asyncio.run(Supervisor(group, folder).run(liveness=liveness, metrics=metrics))


class Supervisor:
    """
    Starts the processes, and starts them again when they fail.

    Args:
        group: the processes.
        folder: the folder for the Unix sockets of the processes.
    """

    def __init__(self, group: Group, folder: str) -> None:
        self._command = [sys.executable, '-m', 'kopf', *group.arguments]
        self._parent = group.parent
        self._addresses = [os.path.join(folder, f'{number}.sock') for number in range(1, group.count + 1)]
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        self._exit_code = 0

    async def run(self, *, liveness: str | None, metrics: str | None) -> int:
        """Run until a signal comes, or until a process ends in a way that another start cannot mend."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, self._stop, number)
        try:
            async with serve_merged(self._addresses, liveness=liveness, metrics=metrics):
                logger.info("The operator runs in %d processes.", len(self._addresses))
                async with asyncio.TaskGroup() as group:
                    for index in range(len(self._addresses)):
                        group.create_task(self._keep_running(index + 1), name=f'process {index + 1}')
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
        return self._exit_code

    def _stop(self, number: int) -> None:
        """Forward the signal: the first one ends the processes gracefully, the second one at once."""
        self._stopping.set()
        for process in self._running.values():
            _send(process, number)

    async def _keep_running(self, number: int) -> None:
        pause, has_been_ready = FIRST_PAUSE, False
        while not self._stopping.is_set():
            began = time.monotonic()
            code, is_ready = await self._run_once(number)
            has_been_ready = has_been_ready or is_ready
            if self._stopping.is_set():
                # A process can be stopped before it handles signals.
                is_stopped = code in (-signal.SIGTERM, -signal.SIGINT)
                self._exit_code = self._exit_code or (0 if is_stopped else _get_exit_code(code))
            elif code in (0, MISUSED) or not has_been_ready:
                # A failure at the very start is a mistake in the program or in its surroundings. A single process
                # would end here, too, and all others have the same mistake.
                self._exit_code = _get_exit_code(code)
                logger.info("The process %d has ended %s; the others are stopped.", number, _describe(code))
                self._stop(signal.SIGTERM)
            else:
                pause = FIRST_PAUSE if time.monotonic() - began >= LAST_PAUSE else pause
                logger.error(
                    "The process %d has ended %s. It is started again in %g s.", number, _describe(code), pause
                )
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._stopping.wait()
                pause = min(pause * 2, LAST_PAUSE)

    async def _run_once(self, number: int) -> tuple[int, bool]:
        """Run the process to its end; return its code, and whether it has been ready to work."""
        address = self._addresses[number - 1]
        with contextlib.suppress(FileNotFoundError):
            os.unlink(address)  # of a killed process
        ours, theirs = socket.socketpair()
        with ours:
            ours.setblocking(False)
            with theirs:
                place = Place(number, theirs.fileno(), address)
                process = self._running[number] = await _start(
                    self._command, dataclasses.replace(self._parent, place=place), theirs
                )
            try:
                if self._stopping.is_set():  # the signal came meanwhile
                    _send(process, signal.SIGTERM)
                return await _wait(process, ours)
            finally:
                del self._running[number]


async def _start(command: Sequence[str], parent: Parent, inherited: socket.socket) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *command,
        env=parent.make_environment(),
        pass_fds=[inherited.fileno()],
        # Ctrl-C of a terminal goes to all processes of the group, but the supervisor forwards it, too: the second
        # signal would end the operators at once.
        process_group=0,
    )


async def _wait(process: asyncio.subprocess.Process, connection: socket.socket) -> tuple[int, bool]:
    """Wait for the end of the process; return its code, and whether it has been ready."""
    code = await process.wait()
    # Why not read the socket to its end? A subprocess of a handler can inherit it and outlive the process.
    with contextlib.suppress(BlockingIOError, ConnectionError):
        return code, bool(connection.recv(1))
    return code, False


def _send(process: asyncio.subprocess.Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        process.send_signal(number)


def _get_exit_code(code: int) -> int:
    return 128 - code if code < 0 else code


def _describe(code: int) -> str:
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with the exit code {code}"
