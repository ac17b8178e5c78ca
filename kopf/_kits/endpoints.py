"""
The HTTP side of webhook servers: it listens, takes requests for reviews, and gives back the answers.

What is no proper request is refused with a 4xx and a reason, in the form in which the API shows it to its users. There
is no routing and no middleware here: requests are many, and the API waits for each of them.
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

from kopf._cogs.aiokits.servers.exchanges import Request, Response, Service
from kopf._cogs.aiokits.servers.listeners import BACKLOG, Listener
from kopf._cogs.clients.api import encode
from kopf._cogs.helpers.explanations import ExplainedError
from kopf._cogs.structs import reviews
from kopf._cogs.structs.reviews import WebhookFn, time_limit_var
from kopf._core.engines.conversion import ENDPOINT
from kopf._core.engines.reviewing import ReviewError

logger = logging.getLogger(__name__)

MAX_BODY = 16 * 1024 * 1024
"""An admission review has two objects at most, and the API takes no requests over 3 MiB."""
MAX_CONVERTED_BODY = 256 * 1024 * 1024
"""A conversion review has all the objects of a list."""
KEEPALIVE_TIMEOUT = 120.0
"""It must be longer than that of the API (90 s), or else the API would use connections that are being closed."""
REQUEST_TIMEOUT = 60.0
"""How long a request may take to come in, and its client for the next step in reading the answer (in seconds)."""
SHUTDOWN_TIMEOUT = 5.0
"""How long to wait for the answers under way when the server ends (in seconds)."""

_JSON = (('Content-Type', 'application/json'),)
_TIMEOUT = re.compile(r'(\d+(?:\.\d+)?)(ms|s)')


class AddressError(ExplainedError, OSError):
    """The address can't be listened at."""


class Endpoint:
    """Serves the reviews at one address: ``{path}/{webhook}``."""

    def __init__(self, fn: WebhookFn, *, path: str) -> None:
        self._fn = fn
        self._root = path.rstrip('/')
        self._limit = time_limit_var.get()
        self._listener: Listener | None = None
        self._sockets: list[socket.socket] = []
        self._context = _ReplaceableContext(ssl.PROTOCOL_TLS_SERVER)

    async def bind(self, addr: str, port: int | None) -> int:
        """
        Take the address, and let the clients wait until `listen`; give the port.

        :param port: the port; if ``None``, any that is free.
        :raises AddressError: if it is not possible.
        """
        try:
            return await self._bind(addr, port)
        except OSError as error:
            self._close_sockets()
            raise AddressError(
                error.errno, f"The webhook server cannot listen at {addr}:{port or 'any port'}: {error.strerror}. "
                             f"Set addr= and port= of the server to what is free on this machine.") from None

    async def _bind(self, addr: str, port: int | None) -> int:
        infos = await asyncio.get_running_loop().getaddrinfo(
            addr, port or 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        failure: OSError | None = None
        for family, _, _, _, address in sorted(infos, key=lambda info: info[0] is not socket.AF_INET):
            try:
                sock = _open_socket(family, (address[0], port or 0, *address[2:]))
            except OSError as error:  # often, only one of the protocols is there
                failure = failure or error
                if error.errno == errno.EADDRINUSE:
                    raise
            else:
                self._sockets.append(sock)
                port = port or sock.getsockname()[1]
        if failure is not None and not self._sockets:
            raise failure
        return port or 0

    async def listen(self, context: ssl.SSLContext | None) -> None:
        """Accept connections; when called again, only let new ones have the new context."""
        if context is not None:
            self._context.current = context
        if self._listener is not None:
            return
        self._listener = Listener(Service(
            handle=self._handle, refuse=_refuse, get_max_body=self._get_max_body, idle_timeout=KEEPALIVE_TIMEOUT,
            request_timeout=REQUEST_TIMEOUT, answer_timeout=REQUEST_TIMEOUT))
        await self._listener.open(self._sockets, None if context is None else self._context)

    async def close(self) -> None:
        """Stop to listen, and let the answers under way be given."""
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.close(timeout=SHUTDOWN_TIMEOUT)
        self._close_sockets()

    def _close_sockets(self) -> None:
        for sock in self._sockets:
            sock.close()
        self._sockets = []

    async def _handle(self, request: Request) -> Response:
        try:
            return Response(200, await self._review(request), _JSON)
        except ReviewError as error:
            return _refuse(error.status, f"{error}", request)
        except Exception as error:
            logger.exception("The webhook request %s has failed: %s", request.path, error)
            return _make_refusal(500, "The webhook server has failed.")

    async def _review(self, request: Request) -> bytes:
        webhook = self._get_webhook(request.path)
        if request.method != 'POST':
            raise ReviewError("Reviews are accepted only by the method POST.", status=405)
        try:
            review = orjson.loads(self._read(request))
        except ValueError as error:
            raise ReviewError(f"The request is not JSON: {error}") from None
        if not isinstance(review, dict):
            raise ReviewError("The request is not a JSON object.")
        limit = _parse_limit(request.query_string)
        time_limit_var.set(self._limit if limit is None else limit)
        response = await self._fn(
            cast(reviews.Request, review), webhook=webhook, headers=request.get_sent_headers(),
            sslpeer=request.certificate)
        return encode(response)

    def _get_webhook(self, path: str) -> str | None:
        if path != self._root and not path.startswith(f'{self._root}/'):
            raise ReviewError(f"There are no webhooks at {path}.", status=404)
        return path[len(self._root) + 1:] or None

    def _get_max_body(self, path: str) -> int:
        return MAX_CONVERTED_BODY if path.startswith(f'{self._root}/{ENDPOINT}') else MAX_BODY

    def _read(self, request: Request) -> bytes:
        limit = self._get_max_body(request.path)
        body = request.body
        if body is not None and (encoding := request.get_header(b'content-encoding')):
            body = _decompress(body, encoding, limit)
        if body is None:
            raise ReviewError(f"The request is larger than {limit} bytes.", status=413)
        return body


class _ReplaceableContext(ssl.SSLContext):
    """
    Uses another context, which can be replaced while the server listens.

    Listening anew with the other context would lose those connections that are just being accepted.
    """
    current: ssl.SSLContext

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        return self.current.wrap_bio(*args, **kwargs)


def _open_socket(family: int, address: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # "Everywhere" includes the older protocol; other addresses have a socket for each protocol.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address[0] != '::'))
        sock.bind(address)
        sock.listen(BACKLOG)  # only this tells whether the address is free
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def _refuse(status: int, reason: str, request: Request | None = None) -> Response:
    """Say what is wrong, to the client and to the log: in a line, since anybody can send rubbish."""
    what = "" if request is None else f" {request.method} {request.path}:"
    logger.warning("A webhook request is refused:%s %s %s", what, status, reason)
    return _make_refusal(status, reason)


def _make_refusal(status: int, reason: str) -> Response:
    body = {'apiVersion': 'v1', 'kind': 'Status', 'status': 'Failure', 'code': status, 'message': reason}
    return Response(status, encode(body), (*_JSON, ('Allow', 'POST')) if status == 405 else _JSON)


def _decompress(body: bytes, encoding: str, limit: int) -> bytes | None:
    """Give the body as it was before it was compressed, or None if it is too large."""
    if encoding.lower() not in ('gzip', 'deflate'):
        raise ReviewError(f"The encoding {encoding!r} of the request is not known.", status=415)
    try:
        inflated = (decompressor := zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)).decompress(body, limit)
    except zlib.error as error:
        raise ReviewError(f"The request is not what its encoding {encoding!r} says: {error}") from None
    return None if decompressor.unconsumed_tail else inflated


@functools.lru_cache(maxsize=64)
def _parse_limit(query: str) -> float | None:
    """Parse the time that the API waits, as it adds it to the URL; leave a part of it to the network."""
    match = _TIMEOUT.fullmatch(dict(parse_qsl(query)).get('timeout', ''))
    if match is None:
        return None
    seconds = float(match[1]) * (0.001 if match[2] == 'ms' else 1)
    return max(seconds - 1, seconds * 0.9)
