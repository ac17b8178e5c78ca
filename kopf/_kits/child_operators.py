"""
Operators in child processes of ``kopf run``: the messages between them and their parent.

The child has the same arguments as its parent, ``--reload`` and ``--processes`` included. One more environment variable
tells the child that the parent already does what these options say. A supervisor also passes one end of a socket pair:
the child writes a byte when it is ready to work, and stops when the stream ends, because the supervisor has died then,
even if it was killed by SIGKILL.
"""

import contextlib
import dataclasses
import json
import os
import signal
import socket
import threading
import urllib.parse
from collections.abc import Mapping

from kopf._cogs.aiokits.flags import Flag, ServingThreadEvent
from kopf._cogs.clients import logins
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.credentials import KubeContext, Vault
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.reviews import shared_port_var
from kopf._core.engines.status_server import LOCAL_SCHEME

VARIABLE = 'KOPF_PARENT'
"""The environment variable of the child processes."""


@dataclasses.dataclass(frozen=True)
class Place:
    """The place of a process among those of a supervisor."""

    number: int
    """The number of the process, from 1."""
    descriptor: int
    """The file descriptor of the socket to the supervisor."""
    address: str
    """The path of the Unix socket on which the process serves its probes and metrics."""

    def make_local_url(self, url: str | None) -> str | None:
        """Return the URL on the Unix socket instead of the one that the supervisor serves; ``None`` for none."""
        if url is None:
            return None
        netloc = urllib.parse.quote(self.address, safe='')
        return urllib.parse.urlsplit(url)._replace(scheme=LOCAL_SCHEME, netloc=netloc).geturl()

    def join(self) -> Flag:
        """
        Join the others: tell the supervisor when this process is ready; stop this process when the supervisor is gone.

        Returns:
            The flag for the operator to raise when it is ready.
        """
        shared_port_var.set(True)
        ready, connection = ServingThreadEvent(), socket.socket(fileno=self.descriptor)

        def write() -> None:
            ready.wait()
            with contextlib.suppress(OSError):
                connection.sendall(b'.')

        def watch() -> None:
            with contextlib.suppress(OSError):
                while connection.recv(1):
                    pass
            os.kill(os.getpid(), signal.SIGTERM)

        for target in (write, watch):
            threading.Thread(target=target, name=f'kopf-supervised-{target.__name__}', daemon=True).start()
        return ready


@dataclasses.dataclass(frozen=True)
class Parent:
    """The facts about the parent that a child process gets in its environment."""

    sandboxed: bool
    """Whether the parent runs a sandbox, to which ``$KUBECONFIG`` leads."""
    place: Place | None = None
    """The place of the child, if the parent is a supervisor."""
    lifeline: int | None = None
    """The file descriptor of a pipe that ends when the parent has died; a supervisor has its socket instead."""

    def make_environment(self) -> dict[str, str]:
        """Return the environment for the child process."""
        return {**os.environ, VARIABLE: json.dumps(dataclasses.asdict(self))}

    @classmethod
    def take(cls) -> 'Parent':
        """Return the parent of this child process. Processes that this one starts by itself do not inherit it."""
        content = json.loads(os.environ.pop(VARIABLE))
        return cls(content['sandboxed'], content['place'] and Place(**content['place']), content['lifeline'])

    def follow(self) -> None:
        """Stop this process when the parent has died: even if it was killed, it leaves no operator behind."""
        lifeline = self.lifeline
        if lifeline is None:
            return
        os.set_inheritable(lifeline, False)

        def watch() -> None:
            while os.read(lifeline, 1):
                pass
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=watch, name='kopf-lifeline', daemon=True).start()


def make_sandbox_vault() -> Vault:
    """Return the credentials of the parent's sandbox, without login handlers: these could lead to a cluster."""

    async def authenticate() -> Mapping[HandlerId, KubeContext]:
        info = logins.login_with_kubeconfig(settings=OperatorSettings())
        return {} if info is None else {HandlerId('sandbox'): info}

    vault = Vault()
    vault.authenticate = authenticate
    return vault
