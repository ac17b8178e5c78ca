"""
``kopf run`` in a process of its own, for checks in real time: it writes the calls of its handlers to a file.

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

from kopf._cogs.aiokits.flags import ServingThreadEvent
from kopf._cogs.helpers import loaders
from kopf._cogs.structs.instruments import HandlerCall, Instrument
from kopf._core.reactor import running
from kopf._kits.checking.call_records import ObservedCall
from kopf._kits.checking.outside_calls import OutsideCalls
from kopf._kits.child_operators import make_sandbox_vault

VARIABLE = 'KOPF_CHECK'
"""The environment variable with the `Orders`."""


@dataclasses.dataclass(frozen=True)
class Orders:
    """The parameters of a process, which the check sets."""

    number: int
    """The number of the operator in its course."""
    path: str
    """The file to append to."""
    outside: Sequence[str] = ()
    """The modules that simulate systems outside of the cluster."""
    folders: Sequence[str] = ()
    """The folders from which to import these modules."""
    call: str = ''
    """The function of these modules after which the process must be killed."""
    count: int = 0
    """The number of the call of that function after which the process must be killed."""

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
        """Write the start of a call."""
        if (observed := ObservedCall.of(call)) is not None:
            self._write('begin', observed)

    def handler_ends(self, call: HandlerCall) -> None:
        """Write the end of a call."""
        if (observed := ObservedCall.of(call)) is not None:
            self._write('end', observed)

    def note_call(self, name: str) -> None:
        """Write a call of an external service; kill the process if the orders name this call."""
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
        os.write(self._file, line.encode())  # in one piece, so that lines of several processes are never mixed


def end() -> None:
    """Kill this process, and its child processes."""
    os.killpg(0, signal.SIGKILL)


def end_with_parent() -> None:
    """End the process when its standard input ends, which happens when the parent ends."""

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
            running.run(**options, identity=make_identity(orders.number), instruments=[writer])

    ready = ServingThreadEvent()
    threading.Thread(target=writer.note_ready, args=[ready], name='kopf-ready', daemon=True).start()
    # Remove the login handlers: they could lead to another cluster.
    controls = cli.CLIControls(vault=make_sandbox_vault(), ready_flag=ready, run=run)
    cli.main.main(['run', *arguments], prog_name='kopf', obj=controls)


def make_identity(number: int) -> str:
    """Return the name of an operator among its peers, by its number in the course."""
    return f'kopf-check-{number}'


def parse(line: str) -> tuple[int, str, float, Sequence[str]]:
    """Return the number of the operator, the type of the event, the time, and the further fields of a line."""
    number, what, at, *fields = json.loads(line)
    return number, what, at, fields


def without_cluster(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables by which clients log in to the cluster of their pod."""
    hidden = ('KUBERNETES_SERVICE_HOST', 'KUBERNETES_SERVICE_PORT')
    return {name: value for name, value in environment.items() if name not in hidden}


if __name__ == '__main__':
    main(sys.argv[1:])
