"""The control plane that the end-to-end tests and the demo work with.

It is either the one that $KUBECONFIG names, which is left as it was found, or a fresh one of the script
beside this file, which is stopped at the end. Only the standard library is needed here, so that a missing
prerequisite can be named before anything else goes wrong.
"""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping

SCRIPT = pathlib.Path(__file__).resolve().parent / "cluster"


class Unavailable(Exception):
    """There is no control plane and no way to start one; the message says what would help."""


def binary() -> pathlib.Path:
    """Where the script keeps the control plane that it has built."""
    return pathlib.Path(os.environ.get("KUBELAB") or pathlib.Path.home() / ".cache" / "kubelab" / "kubelab")


def missing(environment: Mapping[str, str] = os.environ) -> str:
    """Return what is missing for a control plane, with the remedy; empty if nothing is."""
    if environment.get("KUBECONFIG"):
        return ""
    if not binary().exists() and not shutil.which("go"):
        return "no Go to build a control plane with (https://go.dev/dl/), and no KUBECONFIG that names a cluster"
    tools = [tool for tool in ("openssl", "curl") if not shutil.which(tool)]
    return f"{' and '.join(tools)} not found: install, or set KUBECONFIG to use a cluster of yours" if tools else ""


class ControlPlane:
    """A running control plane, as a context manager.

    :ivar kubeconfig: what $KUBECONFIG has to be for operators to log in.
    :ivar external: whether it was there before; then it is neither stopped nor restarted.
    :ivar directory: where its script keeps its files.
    :param sharding: whether it is to restrict lists and watches to shards; if so, it is always a fresh one.
    """

    def __init__(self, *, sharding: bool = False) -> None:
        self._environment = dict(os.environ)
        if sharding:
            for name in ("KUBECONFIG", "CLUSTER_DIR", "CLUSTER_PORT"):
                self._environment.pop(name, None)
            self._environment["APISERVER_ARGS"] = "--feature-gates=ShardedListAndWatch=true"
        self.kubeconfig = self._environment.get("KUBECONFIG", "")
        self.external = bool(self.kubeconfig)
        self.directory = pathlib.Path(self._environment.get("CLUSTER_DIR", ""))
        self._temporary: pathlib.Path | None = None

    def __enter__(self) -> "ControlPlane":
        if problem := missing(self._environment):
            raise Unavailable(problem)
        if not self.external:
            self._start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._temporary is None:
            return
        # An impatient second Ctrl-C must not leave servers behind: it has its effect afterwards.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            self._run("down")
            shutil.rmtree(self._temporary, ignore_errors=True)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def restart(self) -> None:
        """Kill the API server and start it again on the same data."""
        assert not self.external
        self._run("restart")

    def _start(self) -> None:
        # The user's own cluster is reused and left running: that is what CLUSTER_DIR is for.
        if not self._environment.get("CLUSTER_DIR"):
            # Why not TemporaryDirectory? Forks of this process would remove it when they end.
            self._temporary = pathlib.Path(tempfile.mkdtemp(prefix="kubelab-"))
            self.directory = self._temporary / "cluster"
            self._environment.setdefault("CLUSTER_PORT", str(free_ports(3)))
        try:
            self._run("up")
        except BaseException:
            self.__exit__()
            raise
        self.kubeconfig = str(self.directory / "kubeconfig")

    def _run(self, command: str) -> None:
        # In a session of its own: Ctrl-C must reach the one who stops the servers, not the servers.
        done = subprocess.run(
            [SCRIPT, command, self.directory],
            env=self._environment,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode:
            raise Unavailable(f"`{SCRIPT} {command}` failed:\n{done.stderr.strip()}")


def free_ports(count: int) -> int:
    """Return the first of so many consecutive ports that are free."""
    for first in range(16443, 32000, count):
        try:
            for port in range(first, first + count):
                with socket.socket() as listener:
                    listener.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise Unavailable("no free ports on 127.0.0.1")
