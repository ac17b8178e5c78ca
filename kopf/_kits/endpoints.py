"""
The HTTP part of webhook servers: it listens, receives requests for reviews, and returns the responses.

It uses aiohttp's low-level ``web.Server``. Why not routes and middlewares? There are many requests, and the API server
waits for each of them. This module adds limits that aiohttp does not have: the time to receive a request, the time for
a client to read the response, and the size of bodies by path. A malformed request gets a 4xx with a reason, in the form
that the API server shows to its users.
"""

import asyncio
import errno
import functools
import logging
import re
import socket
import ssl
import zlib
from typing import Any, cast
from urllib.parse import parse_qsl

import orjson
from aiohttp import StreamReader, web

from kopf._cogs.clients.api import encode
from kopf._cogs.helpers.explanations import ExplainedError
from kopf._cogs.structs import reviews
from kopf._cogs.structs.reviews import WebhookFn, shared_port_var, time_limit_var
from kopf._core.engines.conversion_reviews import ENDPOINT
from kopf._core.engines.responders import ReviewError

logger = logging.getLogger(__name__)

MAX_BODY = 16 * 1024 * 1024
"""
The largest body of an admission review (in bytes).

This is more than sufficient: a review has at most two objects, and the API server accepts no requests over 3 MiB.
"""
MAX_CONVERTED_BODY = 256 * 1024 * 1024
"""The largest body of a conversion review, which has all the objects of a list (in bytes)."""
MAX_HEAD_LINE = 64 * 1024
"""The largest URL, and the largest header (in bytes)."""
KEEPALIVE_TIMEOUT = 120.0
"""How long idle connections are kept: longer than by the API server (90 s), so that it never uses a closing one."""
REQUEST_TIMEOUT = 60.0
"""How long a client may take to send a request, and to read the response (in seconds)."""
SHUTDOWN_TIMEOUT = 5.0
"""How long to wait for pending responses when the server ends (in seconds)."""
LINGERING_TIME = 1.0
"""The time in which the rest of a refused request is still read, so that the client gets the reason (in seconds)."""
HANDSHAKE_TIMEOUT = 10.0
"""How long a client may take to agree on TLS (in seconds)."""
FAREWELL_TIMEOUT = 1.0
"""How long a client may take to end its TLS connection (in seconds)."""
BACKLOG = 512
"""The maximal number of connections that wait to be accepted."""

_JSON = {'Content-Type': 'application/json'}
_TIMEOUT = re.compile(r'(\d+(?:\.\d+)?)(ms|s)')


class AddressError(ExplainedError, OSError):
    """Raised if the server cannot listen at the address."""


class Endpoint:
    """Serves the reviews at one address: ``{path}/{webhook}``."""

    def __init__(self, fn: WebhookFn, *, path: str) -> None:
        self._fn = fn
        self._root = path.rstrip('/')
        self._limit = time_limit_var.get()
        self._service: web.Server | None = None
        self._servers: list[asyncio.Server] = []
        self._connections: set[_Connection] = set()
        self._sockets: list[socket.socket] = []
        self._context = _ReplaceableContext(ssl.PROTOCOL_TLS_SERVER)

    async def bind(self, addr: str, port: int | None) -> int:
        """
        Bind to the address and return the port; clients wait until `listen` is called.

        Args:
            addr: the host name or the address to listen at.
            port: the port; if ``None``, any that is free.

        Raises:
            AddressError: if the address cannot be used.
        """
        try:
            return await self._bind(addr, port)
        except OSError as error:
            self._close_sockets()
            raise AddressError(
                error.errno,
                f"The webhook server cannot listen at {addr}:{port or 'any port'}: {error.strerror}. "
                f"Set addr= and port= of the server to what is free on this machine.",
            ) from None

    async def _bind(self, addr: str, port: int | None) -> int:
        infos = await asyncio.get_running_loop().getaddrinfo(
            addr, port or 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        failure: OSError | None = None
        # IPv4 comes first: if any free port may be used, IPv4 chooses it, and IPv6 uses the same number.
        for family, _, _, _, address in sorted(infos, key=lambda info: info[0] is not socket.AF_INET):
            try:
                sock = _open_socket(family, (address[0], port or 0, *address[2:]))
            except OSError as error:  # often, only one of the protocols (IPv4, IPv6) is available
                failure = failure or error
                # If only one protocol could be bound, clients that try the other one first could reach another program.
                if error.errno == errno.EADDRINUSE:
                    raise
            else:
                self._sockets.append(sock)
                port = port or sock.getsockname()[1]
        if failure is not None and not self._sockets:
            raise failure
        return port or 0

    async def listen(self, context: ssl.SSLContext | None) -> None:
        """Accept connections; when called again, only replace the TLS context for new connections."""
        if context is not None:
            self._context.current = context
        if self._service is not None:
            return
        self._service = service = web.Server(self._handle, request_factory=self._make_request)
        options: dict[str, Any] = (
            {}
            if context is None
            else {
                'ssl': self._context,
                'ssl_handshake_timeout': HANDSHAKE_TIMEOUT,
                'ssl_shutdown_timeout': FAREWELL_TIMEOUT,
            }
        )
        loop = asyncio.get_running_loop()
        for sock in self._sockets:
            self._servers.append(
                await loop.create_server(
                    functools.partial(_Connection, service, loop, self._connections),
                    sock=sock,
                    backlog=BACKLOG,
                    **options,
                )
            )

    async def close(self) -> None:
        """Stop listening, and wait for the pending responses, at most for `SHUTDOWN_TIMEOUT`."""
        # Refuse new connections first: otherwise, the wait could be endless.
        for server in self._servers:
            server.close()
        self._servers = []
        service, self._service = self._service, None
        if service is not None:
            service.pre_shutdown()  # ends the connections that wait for their next request
            await service.shutdown(SHUTDOWN_TIMEOUT)
        await self._wait_closed()
        self._close_sockets()

    async def _wait_closed(self) -> None:
        """Wait until all connections are closed: aiohttp only begins to close them."""
        if self._connections:
            await asyncio.wait([each.closed for each in self._connections], timeout=FAREWELL_TIMEOUT)
        # Iterate over a copy: connections remove themselves from the set when they are lost.
        remaining = list(self._connections)
        for connection in remaining:
            connection.abort()
        if remaining:
            await asyncio.wait([each.closed for each in remaining], timeout=FAREWELL_TIMEOUT)

    def _close_sockets(self) -> None:
        for sock in self._sockets:
            sock.close()
        self._sockets = []

    def _make_request(
        self,
        message: Any,
        payload: Any,
        protocol: web.RequestHandler,
        writer: Any,
        task: 'asyncio.Task[None]',
    ) -> web.BaseRequest:
        return web.BaseRequest(
            message,
            payload,
            protocol,
            writer,
            task,
            asyncio.get_running_loop(),
            client_max_size=self._get_max_body(message.url.path),
        )

    async def _handle(self, request: web.BaseRequest) -> web.Response:
        connection = cast(_Connection, request.protocol)
        try:
            return _respond(200, await self._review(request, connection))
        except ReviewError as error:
            return _refuse(error.status, f"{error}", request)
        except web.HTTPRequestEntityTooLarge as error:
            limit = self._get_max_body(request.path)
            return _refuse(error.status, f"The request is larger than {limit} bytes.", request)
        except web.RequestPayloadError as error:
            return _refuse(400, f"The request is not HTTP: {error}", request)
        except ConnectionError:  # the client has disconnected in the middle of its request
            raise
        except Exception as error:
            # Why a response? Without one, the API server would report only a lost connection to its user.
            logger.exception("The webhook request %s has failed: %s", request.path, error)
            return _make_refusal(500, "The webhook server has failed.")
        finally:
            connection.expect_reading()

    async def _review(self, request: web.BaseRequest, connection: '_Connection') -> bytes:
        # Check the path before the body is read: a request to a wrong path must not take memory for its body.
        webhook = self._get_webhook(request.path)
        if request.method != 'POST':
            raise ReviewError("Reviews are accepted only by the method POST.", status=405)
        try:
            review = orjson.loads(await self._read(request, connection))
        except ValueError as error:
            raise ReviewError(f"The request is not JSON: {error}") from None
        if not isinstance(review, dict):
            raise ReviewError("The request is not a JSON object.")
        limit = _parse_limit(request.query_string)
        time_limit_var.set(self._limit if limit is None else limit)
        transport = request.transport
        response = await self._fn(
            cast(reviews.Request, review),
            webhook=webhook,
            headers=dict(request.headers),
            sslpeer=None if transport is None else transport.get_extra_info('peercert') or None,
        )
        return encode(response)

    def _get_webhook(self, path: str) -> str | None:
        if path != self._root and not path.startswith(f'{self._root}/'):
            raise ReviewError(f"There are no webhooks at {path}.", status=404)
        return path[len(self._root) + 1 :] or None

    def _get_max_body(self, path: str) -> int:
        return MAX_CONVERTED_BODY if path.startswith(f'{self._root}/{ENDPOINT}') else MAX_BODY

    async def _read(self, request: web.BaseRequest, connection: '_Connection') -> bytes:
        body = await connection.read(request)
        # Why not let aiohttp decompress it? Its errors name neither the supported encodings nor the reason.
        if encoding := request.headers.get('Content-Encoding'):
            return _decompress(body, encoding, self._get_max_body(request.path))
        return body


class _Connection(web.RequestHandler):
    """
    One connection of a client, with time limits for the actions of the client.

    There is one timer per connection. Each request changes the deadline, and it would cost too much to restart
    the timer each time. So, when it fires before the current deadline, it is started again for the rest of the time.
    """

    __slots__ = (
        '_alarm',
        '_answered',
        '_connections',
        '_deadline',
        '_ended',
        '_idle',
        '_incoming',
        '_socket',
        'closed',
    )

    def __init__(
        self,
        service: web.Server,
        loop: asyncio.AbstractEventLoop,
        connections: 'set[_Connection]',
    ) -> None:
        super().__init__(
            service,
            loop=loop,
            keepalive_timeout=KEEPALIVE_TIMEOUT,
            auto_decompress=False,
            access_log=None,  # type: ignore[arg-type]  # documented so: it turns the log off
            lingering_time=LINGERING_TIME,
            max_line_size=MAX_HEAD_LINE,
            max_field_size=MAX_HEAD_LINE,
        )
        self._connections = connections
        self._socket: asyncio.Transport | None = None  # aiohttp drops its reference before the socket is closed
        self.closed: asyncio.Future[None] = loop.create_future()
        """Done when the connection has ended."""
        self._deadline: float | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._answered = False
        """True if a response was sent already."""
        self._idle = True
        """True if no part of the next request was received yet."""
        self._ended = False
        """True if the client has closed its half of the connection, so that it cannot send requests."""
        self._incoming: StreamReader | None = None
        """The body that is coming in."""

    async def read(self, request: web.BaseRequest) -> bytes:
        """Return the body of the request, if it is received in time."""
        content = request.content
        if self._ended and not content.is_eof():
            raise ConnectionResetError("The client has closed the connection in the middle of a request.")
        self._incoming = content
        try:
            if request.headers.get('Expect', '').lower() == '100-continue' and not content.is_eof():
                await request.writer.write(b'HTTP/1.1 100 Continue\r\n\r\n')  # curl waits for it
            return await request.read()
        finally:
            self._incoming = None
            self._idle, self._deadline = False, None  # a client that waits for a response has no time limit

    def abort(self) -> None:
        """Abort the connection."""
        if self._socket is not None:
            self._socket.abort()

    def expect_reading(self) -> None:
        """Limit the time in which the client reads the response to its request."""
        self._answered = self._idle = True
        self._set_deadline(REQUEST_TIMEOUT)

    # The methods for the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._socket = cast(asyncio.Transport, transport)
        self._connections.add(self)
        self._set_deadline(KEEPALIVE_TIMEOUT)

    def data_received(self, data: bytes) -> None:
        if self._idle:
            self._idle = False
            self._set_deadline(REQUEST_TIMEOUT)
        super().data_received(data)

    def eof_received(self) -> bool | None:  # type: ignore[override]  # asyncio allows None
        if self._idle or self.ssl_context is not None:
            return None  # TLS has no half-closed connections
        # Clients such as netcat close their half after the request, and still wait for the response.
        self._ended = True
        if self._incoming is not None:
            return None
        self._set_deadline(FAREWELL_TIMEOUT)  # limits the wait for the rest of a request's head
        self.close()  # after the answer
        return True

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        super().connection_lost(exc)
        self._socket = None
        self._connections.discard(self)
        self.closed.set_result(None)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Refuse a request that is not HTTP, in the same form as other refusals."""
        if isinstance(exc, ConnectionError):
            raise exc  # the client has disconnected: a response and a report are useless
        if status >= 500:
            logger.error("The webhook request %s has failed.", request.path, exc_info=exc)
            response = _make_refusal(status, "The webhook server has failed.")
        else:
            response = _refuse(status, f"The request is not HTTP: {' '.join((message or str(exc)).split())[:200]}")
        response.force_close()
        return response

    # The time limits.

    def _set_deadline(self, seconds: float) -> None:
        self._deadline = deadline = self._loop.time() + seconds
        # A later deadline needs no other timer: the present timer checks the deadline when it fires.
        if self._alarm is None or self._alarm.when() > deadline:
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm = self._loop.call_at(deadline, self._check_time)

    def _check_time(self) -> None:
        self._alarm = None
        if self._deadline is None or self.transport is None:
            return
        if self._loop.time() < self._deadline:
            self._alarm = self._loop.call_at(self._deadline, self._check_time)
        elif self._incoming is not None:
            self._incoming.set_exception(
                ReviewError(f"The request has not come in within {REQUEST_TIMEOUT:g} seconds.", status=408)
            )
        elif not self._idle or not self._answered or self.transport.get_write_buffer_size():
            # The client has not sent a whole head, or has not read the response. A partial head needs no response.
            self.transport.abort()


class _ReplaceableContext(ssl.SSLContext):
    """
    Uses another context, which can be replaced while the server listens.

    Why not simply listen again with the other context? The connections being accepted at the moment would be lost.
    """

    current: ssl.SSLContext

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        return self.current.wrap_bio(*args, **kwargs)


def _open_socket(family: int, address: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Otherwise, a restarted operator could not listen while connections of the former one are in TIME_WAIT.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared_port_var.get():  # the kernel distributes the connections to the processes
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            # "::" includes IPv4; other hosts have a socket for each protocol.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address[0] != '::'))
        sock.bind(address)
        sock.listen(BACKLOG)  # why so early? Only this call fails if the address is in use
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def _refuse(status: int, reason: str, request: web.BaseRequest | None = None) -> web.Response:
    """Report the error to the client and in the log: in one line, since any client can send garbage."""
    what = "" if request is None else f" {request.method} {request.path}:"
    logger.warning("A webhook request is refused:%s %s %s", what, status, reason)
    return _make_refusal(status, reason)


def _make_refusal(status: int, reason: str) -> web.Response:
    response = _respond(
        status, encode({'apiVersion': 'v1', 'kind': 'Status', 'status': 'Failure', 'code': status, 'message': reason})
    )
    if status == 405:
        response.headers['Allow'] = 'POST'
    return response


def _respond(status: int, body: bytes) -> web.Response:
    return web.Response(status=status, body=body, headers=_JSON)


def _decompress(body: bytes, encoding: str, limit: int) -> bytes:
    """
    Decompress the body of a request.

    Raises:
        ReviewError: if it is not compressed in this way, or is larger than the limit (in bytes).
    """
    if encoding.lower() not in ('gzip', 'deflate'):
        raise ReviewError(f"The encoding {encoding!r} of the request is not known.", status=415)
    try:
        # The bit 32 selects both formats, gzip and zlib. The limit stops small requests that expand to gigabytes.
        inflated = (decompressor := zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)).decompress(body, limit)
    except zlib.error as error:
        raise ReviewError(f"The request is not what its encoding {encoding!r} says: {error}") from None
    if decompressor.unconsumed_tail:
        raise ReviewError(f"The request is larger than {limit} bytes.", status=413)
    return inflated


@functools.lru_cache(maxsize=64)
def _parse_limit(query: str) -> float | None:
    """Parse the time-out of the API, which it adds to the URL; reserve a part of it for the network."""
    match = _TIMEOUT.fullmatch(dict(parse_qsl(query)).get('timeout', ''))
    if match is None:
        return None
    seconds = float(match[1]) * (0.001 if match[2] == 'ms' else 1)
    return max(seconds - 1, seconds * 0.9)
