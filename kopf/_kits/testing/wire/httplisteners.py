"""
The ports that are listened at, and the connections to them, from the first to the last.
"""

import asyncio
import functools
import socket
import ssl
from collections.abc import Iterable
from typing import Any

from kopf._cogs.aiokits import loops
from kopf._kits.testing.wire.httpconnections import Connection
from kopf._kits.testing.wire.httpexchanges import Service

BACKLOG = 512
"""How many connections wait to be accepted."""
HANDSHAKE_TIMEOUT = 10.0
"""How long clients may take to agree on TLS (in seconds)."""
FAREWELL_TIMEOUT = 1.0
"""How long to wait for clients to say goodbye, and for handlers to end when they are cancelled (in seconds)."""


class Listener:
    """
    Serves at any number of sockets.

    :param service: what is served.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._connections: set[Connection] = set()
        self._servers: list[asyncio.Server] = []

    async def open(self, sockets: Iterable[socket.socket], context: ssl.SSLContext | None) -> None:
        """Accept connections at the sockets; they are closed together with this."""
        options: dict[str, Any] = (
            {}
            if context is None
            else {'ssl': context, 'ssl_handshake_timeout': HANDSHAKE_TIMEOUT, 'ssl_shutdown_timeout': FAREWELL_TIMEOUT}
        )
        make = functools.partial(Connection, self._service, self._connections)
        loop = asyncio.get_running_loop()
        for sock in sockets:
            self._servers.append(await loop.create_server(make, sock=sock, backlog=BACKLOG, **options))

    async def close(self, *, timeout: float = 0.0) -> None:
        """
        Close the sockets; let the answers under way be given, and close all connections.

        :param timeout: how long to wait for the answers (seconds); if they are not given by then, they never are.
        """
        for server in self._servers:
            server.close()
        self._servers = []
        for connection in list(self._connections):
            connection.finish()
        await self._wait_ended(timeout)
        tasks = [connection.task for connection in self._connections if connection.task is not None]
        for connection in list(self._connections):
            connection.abort()
        await loops.end(tasks, timeout=FAREWELL_TIMEOUT, what="The requests")
        await self._wait_ended(FAREWELL_TIMEOUT)

    async def _wait_ended(self, timeout: float) -> None:
        if self._connections:
            await asyncio.wait([connection.ended for connection in self._connections], timeout=timeout)
