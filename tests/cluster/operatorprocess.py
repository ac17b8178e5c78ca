"""An operator in a process of its own: `kopf run` as users call it, with what it prints kept for looking at.

The process is the unit here because exit codes, signals and start-up are what end-to-end tests are about.
"""

import os
import pathlib
import re
import signal
import subprocess
import time

from forkserver import ForkedProcess, start_process
from kubeapi import wait


class OperatorProcess:
    """`python -m kopf run ARGS...` as a context manager; it never outlives the block.

    :param log: the file that its stdout and stderr go to.
    :param kubeconfig: the value of $KUBECONFIG for the process.
    :param environment: more variables for it, besides those of this process.
    """

    def __init__(
        self,
        *args: str | os.PathLike[str],
        log: pathlib.Path,
        kubeconfig: str,
        **environment: str,
    ) -> None:
        self.log = log
        self._command = ["kopf", "run", *args]
        self._environment = {**os.environ, "KUBECONFIG": kubeconfig, "PYTHONUNBUFFERED": "1", **environment}
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None

    def __enter__(self) -> "OperatorProcess":
        with self.log.open("wb") as output:
            self._process = start_process(self._command, env=self._environment, stdout=output)
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    @property
    def process(self) -> "subprocess.Popen[bytes] | ForkedProcess":
        """The process, once it is started."""
        assert self._process is not None
        return self._process

    @property
    def output(self) -> str:
        """All that it has printed so far."""
        return self.log.read_text(errors="replace")

    def wait_output(self, pattern: str, *, timeout: float = 60) -> re.Match[str]:
        """Wait until the output has a match of the regular expression.

        :raises TimeoutError: not within `timeout` seconds.
        :raises RuntimeError: the operator has ended before.
        """

        def search() -> re.Match[str] | None:
            ended = self.process.poll()
            if found := re.search(pattern, self.output):
                return found
            if ended is not None:
                raise RuntimeError(f"The operator ended with {ended} without printing {pattern!r}:\n{self.output}")
            return None

        try:
            found = wait(search, repr(pattern), timeout=timeout)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; the operator has printed:\n{self.output}") from None
        assert found is not None
        return found

    def stop(self, sig: int = signal.SIGTERM, *, timeout: float = 60) -> tuple[int, float]:
        """Send a signal and wait for the end; return the exit code and the seconds that it took."""
        began = time.monotonic()
        self.process.send_signal(sig)
        return self.process.wait(timeout), time.monotonic() - began
