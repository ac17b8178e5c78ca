"""Listening sockets, and all connections accepted on them until they are closed."""

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
"""The maximal number of connections that wait to be accepted."""
HANDSHAKE_TIMEOUT = 10.0
"""How long a client may take for the TLS handshake (seconds)."""
FAREWELL_TIMEOUT = 1.0
"""The time limit for the TLS shutdown of clients, and for the end of cancelled handlers (seconds)."""


class Listener:
    """
    A server on any number of sockets.

    Args:
        service: The handler and the limits.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._connections: dict[Connection, None] = {}
        self._servers: list[asyncio.Server] = []

    async def open(self, sockets: Iterable[socket.socket], context: ssl.SSLContext | None) -> None:
        """Accept connections on the sockets; `close` closes them."""
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
        Close the sockets, finish the responses under way, and close all connections.

        Args:
            timeout: How long to wait for the responses (seconds); then, the remaining ones are broken off.
        """
        for server in self._servers:
            server.close()
        self._servers = []
        for connection in list(self._connections):
            connection.finish()
        await self._wait_ended(timeout)
        # The tasks are collected first: an aborted connection leaves `_connections` when its task has ended.
        tasks = [connection.task for connection in self._connections if connection.task is not None]
        for connection in list(self._connections):
            connection.abort()
        await loops.end(tasks, timeout=FAREWELL_TIMEOUT, what="The requests")
        await self._wait_ended(FAREWELL_TIMEOUT)

    async def _wait_ended(self, timeout: float) -> None:
        if self._connections:
            await asyncio.wait([connection.ended for connection in self._connections], timeout=timeout)
