"""Ports for servers that have to know theirs beforehand, though many tests run at once.

They are not of those that the system gives away: between being chosen and being used, no other process gets them.
"""

import contextlib
import secrets
import socket

PORTS = range(20000, 32000)


def free_port() -> int:
    """Return a free port; the next one is most likely another."""
    while True:
        port = secrets.choice(PORTS)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
