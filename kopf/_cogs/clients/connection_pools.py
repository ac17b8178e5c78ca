"""
Pools of connections to one server: connections are opened on demand, and kept for the next requests.

A new connection costs more than several requests, so connections are reused. If the server has closed an unused
connection meanwhile, the request is repeated on another one. For proxies and other features, see `aiosessions`.
"""

import asyncio
import functools
import ipaddress
import socket
import ssl
import urllib.parse
import weakref
from collections.abc import Callable
from typing import NamedTuple

from kopf._cogs.clients.connections import Connection, ConnectionLost, Response

_NEXT_ADDRESS_DELAY = 0.25
"""The delay until the next address of the same host is tried in parallel (in seconds; RFC 8305, section 5)."""


class Origin(NamedTuple):
    """The address of a server, and the TLS options for it."""

    host: str
    port: int
    context: ssl.SSLContext | None
    server_hostname: str | None


class Pool:
    """
    The connections to one server.

    Args:
        origin: the address of the server.
        keepalive: how long an unused connection is kept (in seconds).
    """

    def __init__(self, origin: Origin, *, keepalive: float) -> None:
        self._origin = origin
        self._keepalive = keepalive
        self._idle: list[Connection] = []  # the last used one is reused first: others can expire
        self._busy: dict[Connection, None] = {}
        # Weak references: streams are aborted by their readers, which need not report that to the pool.
        self._streams: weakref.WeakKeyDictionary[Connection, None] = weakref.WeakKeyDictionary()
        self._closed = False
        self._sweeping: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Abort all connections and the requests in flight, and permit no new ones."""
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in (*self._idle, *self._busy, *self._streams):
            connection.abort()
        self._idle.clear()

    async def request(
        self,
        data: bytes,
        *,
        connect_timeout: float | None,
        repeatable: bool,
        guard: Callable[[], None] | None = None,
    ) -> Response:
        """
        Send a request and return its response.

        Args:
            data: the whole request.
            connect_timeout: the time limit for opening a connection if one is needed (in seconds).
            repeatable: whether it is safe to send it again if the server closes an old connection at the same time.
            guard: the function to call right before the request is sent; if it raises, the request is not sent.

        Raises:
            OSError: if the network or the server fails, time-outs of connecting included.
        """
        while True:
            connection = self._take() or await self._connect(connect_timeout)
            if guard is not None:
                try:
                    guard()
                except BaseException:
                    self._put(connection)
                    raise
            used = connection.used
            self._busy[connection] = None
            try:
                response = await connection.request(data)
            except ConnectionLost as e:
                # The server can close an unused connection at the same moment when a request is sent. It can have
                # executed the request, so RFC 9112, section 9.3.1, permits to repeat only requests for which that does
                # no harm. The loop ends with a new connection at the latest, because requests on new connections are
                # not repeated.
                if used and e.early and repeatable:
                    continue
                raise
            finally:
                self._busy.pop(connection, None)
            self._put(connection)
            return response

    async def stream(
        self,
        data: bytes,
        *,
        connect_timeout: float | None,
        total_timeout: float | None,
    ) -> tuple[Response, Connection]:
        """
        Open a stream on a separate connection, which the caller has to abort.

        Args:
            data: the whole request.
            connect_timeout: the time limit for opening the connection (in seconds).
            total_timeout: how long the stream may last (in seconds).

        Raises:
            OSError: if the network or the server fails, time-outs of connecting included.
        """
        connection = await self._connect(connect_timeout)
        # Add it before the request is sent, so that `close` also aborts streams that are being opened.
        self._streams[connection] = None
        return await connection.stream(data, timeout=total_timeout), connection

    def _take(self) -> Connection | None:
        oldest = asyncio.get_running_loop().time() - self._keepalive
        # Why check the age? The timer runs once in each keep-alive time, so an unused connection can be nearly twice as
        # old.
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and connection.idle_since >= oldest:
                return connection
            connection.abort()
        return None

    def _put(self, connection: Connection) -> None:
        if self._closed or not connection.reusable:
            connection.abort()
            return
        connection.begin_idling()
        self._idle.append(connection)
        # One timer for all of them: a timer for each connection would be set and cancelled with each request.
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(self._keepalive, self._sweep)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        oldest = loop.time() - self._keepalive
        kept = [connection for connection in self._idle if connection.usable and connection.idle_since > oldest]
        for connection in self._idle:
            if connection not in kept:
                connection.abort()
        self._idle = kept
        self._sweeping = loop.call_later(self._keepalive, self._sweep) if kept else None

    async def _connect(self, timeout: float | None) -> Connection:
        host, port, context, hostname = self._origin
        loop = asyncio.get_running_loop()
        connection = Connection()
        try:
            # Check this before and after connecting, because the pool can be closed meanwhile.
            self._check_open()
            async with asyncio.timeout(timeout):
                # An address needs neither the resolver nor a race of several addresses.
                if _is_address(host):
                    await loop.create_connection(lambda: connection, host, port, ssl=context, server_hostname=hostname)
                else:
                    sock = await _open_socket(host, port)
                    await loop.create_connection(lambda: connection, sock=sock, ssl=context, server_hostname=hostname)
            self._check_open()
        except BaseException:
            connection.abort()  # the connection can be open already when the wait is cancelled
            raise
        return connection

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionAbortedError("The session is closed.")


async def _open_socket(host: str, port: int) -> socket.socket:
    """Connect to the address of the host that responds first."""
    import aiohappyeyeballs

    try:
        addresses = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as e:  # e.g. a part of the name is too long
        raise OSError(f"The host {host!r} is not a valid name: {e}") from e
    # Why not `create_connection` with its option for that? The event loop of uvloop does not have the option.
    return await aiohappyeyeballs.start_connection(addresses, happy_eyeballs_delay=_NEXT_ADDRESS_DELAY, interleave=1)


@functools.cache
def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def split_url(url: str) -> tuple[urllib.parse.SplitResult, str, int]:
    """
    Split the URL of a server into its parts, the host, and the port.

    Raises:
        ValueError: if there is no host, or the port is not a number.
    """
    parts = urllib.parse.urlsplit(url)
    if not parts.hostname:
        raise ValueError("no host in it")
    return parts, parts.hostname, parts.port or (443 if parts.scheme == 'https' else 80)
