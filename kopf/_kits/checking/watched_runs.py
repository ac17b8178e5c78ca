"""
``kopf run`` in a process of its own, for checks in real time: the calls of its handlers are written to a file.

All operators of a course append to the same file, one line at a time, so the lines are in the order of the events. The
process ends at once when its parent has ended, even if the parent was killed. It is in a process group of its own,
and ends together with its child processes, as a container does.
"""

import dataclasses
import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kopf._cogs.helpers import loaders
from kopf._cogs.structs.instruments import HandlerCall, Instrument
from kopf._core.reactor import running
from kopf._kits.checking.call_records import ObservedCall
from kopf._kits.checking.outside_calls import OutsideCalls
from kopf._kits.child_operators import make_sandbox_vault

VARIABLE = 'KOPF_CHECK'
"""The environment variable with the orders."""


@dataclasses.dataclass(frozen=True)
class Orders:
    """What a process is told by the check."""

    number: int
    """The number of the operator in its course."""
    path: str
    """The file to append to."""
    outside: Sequence[str] = ()
    """The modules that stand for the world outside of the cluster."""
    folders: Sequence[str] = ()
    """The folders to import these modules from."""
    call: str = ''
    """The function of these modules after whose call the process is to be killed."""
    count: int = 0
    """The number of that call."""

    def make_environment(self) -> dict[str, str]:
        """Return the environment for the process."""
        return {VARIABLE: json.dumps(dataclasses.asdict(self))}

    @classmethod
    def take(cls) -> 'Orders':
        """Return the orders for this process. Processes that this one starts do not inherit them."""
        return cls(**json.loads(os.environ.pop(VARIABLE)))


class CallWriter(Instrument):
    """Writes the calls to the file."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._left = orders.count
        self._file = os.open(orders.path, os.O_WRONLY | os.O_APPEND)

    def handler_begins(self, call: HandlerCall) -> None:
        """Write the start."""
        if (observed := ObservedCall.of(call)) is not None:
            self._write('begin', observed)

    def handler_ends(self, call: HandlerCall) -> None:
        """Write the end."""
        if (observed := ObservedCall.of(call)) is not None:
            self._write('end', observed)

    def note_call(self, name: str) -> None:
        """Write a call of an external service; kill the process if this is the moment for it."""
        self._write('call', [name])
        if name == self._orders.call:
            self._left -= 1
            if not self._left:
                end()

    def note_ready(self, ready: threading.Event) -> None:
        """Wait for the flag, and write that the operator is ready to work."""
        ready.wait()
        self._write('ready', [])

    def _write(self, what: str, fields: Sequence[str]) -> None:
        line = json.dumps([self._orders.number, what, time.monotonic(), *fields]) + '\n'
        os.write(self._file, line.encode())  # at once, so that lines of several processes are never mixed


def end() -> None:
    """Kill this process, and its child processes."""
    os.killpg(0, signal.SIGKILL)


def end_with_parent() -> None:
    """End the process when its standard input ends, as the parent holds the other end."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        end()

    threading.Thread(target=wait, name='kopf-watched', daemon=True).start()


def main(arguments: Sequence[str]) -> None:
    """Run the operator."""
    orders = Orders.take()
    end_with_parent()
    for folder in orders.folders:
        loaders.expose(Path(folder))
    writer = CallWriter(orders)
    # Imported by its name at run time, as the layers do not allow the kits to import the command line.
    cli = importlib.import_module('kopf.cli')

    def run(**options: Any) -> None:
        with OutsideCalls(orders.outside, writer.note_call, lambda: True).recorded():
            running.run(**options, instruments=[writer])

    ready = threading.Event()
    threading.Thread(target=writer.note_ready, args=[ready], name='kopf-ready', daemon=True).start()
    # No login handlers: they could lead to another cluster.
    controls = cli.CLIControls(vault=make_sandbox_vault(), ready_flag=ready, run=run)
    cli.main.main(['run', *arguments], prog_name='kopf', obj=controls)


def parse(line: str) -> tuple[int, str, float, Sequence[str]]:
    """Return the fields of a line: the number of the operator, the type of the event, the time, and further fields."""
    number, what, at, *fields = json.loads(line)
    return number, what, at, fields


def without_cluster(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables by which clients log in to the cluster of their pod."""
    hidden = ('KUBERNETES_SERVICE_HOST', 'KUBERNETES_SERVICE_PORT')
    return {name: value for name, value in environment.items() if name not in hidden}


if __name__ == '__main__':
    main(sys.argv[1:])
