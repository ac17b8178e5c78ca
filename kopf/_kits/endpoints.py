"""
The HTTP side of webhook servers: it listens, takes requests for reviews, and gives back the answers.

What is no proper request is refused with a 4xx and a reason, in the form in which the API shows it to its users. There
is no routing and no middleware here: requests are many, and the API waits for each of them.
"""
import asyncio
import contextlib
import errno
import logging
import re
import socket
import ssl
from typing import TYPE_CHECKING, Any, cast

import orjson

from kopf._cogs.clients.api import encode
from kopf._cogs.helpers.explanations import ExplainedError
from kopf._cogs.structs.reviews import Request, WebhookFn, time_limit_var
from kopf._core.engines.admission import ReviewError
from kopf._core.engines.conversion import ENDPOINT

if TYPE_CHECKING:
    from aiohttp import web

logger = logging.getLogger(__name__)

MAX_BODY = 16 * 1024 * 1024
"""An admission review has two objects at most, and the API takes no requests over 3 MiB."""
MAX_CONVERTED_BODY = 256 * 1024 * 1024
"""A conversion review has all the objects of a list."""
KEEPALIVE_TIMEOUT = 120.0
"""It must be longer than that of the API (90 s), or else the API would use connections that are being closed."""
LINGERING_TIME = 1.0
"""How long to read what is sent by those who are refused, so that they see the refusal (in seconds)."""
SHUTDOWN_TIMEOUT = 5.0
"""How long to wait for the answers under way when the server ends (in seconds)."""
BACKLOG = 128
"""How many connections wait to be accepted."""

_TIMEOUT = re.compile(r'(\d+(?:\.\d+)?)(ms|s)')


class AddressError(ExplainedError, OSError):
    """The address can't be listened at."""


class Endpoint:
    """Serves the reviews at one address: ``{path}/{webhook}``."""

    def __init__(self, fn: WebhookFn, *, path: str) -> None:
        self._fn = fn
        self._root = path.rstrip('/')
        self._runner: web.ServerRunner | None = None
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
        if self._runner is not None:
            return
        from aiohttp import web
        server = web.Server(
            self._handle, logger=_TerseLogger(logger), access_log=None, keepalive_timeout=KEEPALIVE_TIMEOUT,
            lingering_time=LINGERING_TIME)
        self._runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=SHUTDOWN_TIMEOUT)
        await self._runner.setup()
        for sock in self._sockets:
            site = web.SockSite(self._runner, sock, ssl_context=None if context is None else self._context)
            await site.start()

    async def close(self) -> None:
        """Stop to listen, and let the answers under way be given."""
        runner, self._runner = self._runner, None
        if runner is not None:
            connections = runner.server.connections if runner.server is not None else []
            transports = [handler.transport for handler in connections if handler.transport is not None]
            await runner.cleanup()
            # Those that use TLS would wait for their clients to say goodbye, and be left open when the loop is closed.
            for transport in transports:
                transport.abort()
            await asyncio.sleep(0)
        self._close_sockets()

    def _close_sockets(self) -> None:
        for sock in self._sockets:
            sock.close()
        self._sockets = []

    async def _handle(self, request: 'web.BaseRequest') -> 'web.StreamResponse':
        from aiohttp import web
        try:
            answer = await self._review(request)
            return web.Response(body=answer, content_type='application/json')
        except ReviewError as error:
            return self._refuse(request, error.status, str(error))
        except Exception as error:
            logger.exception("The webhook request %s has failed: %s", request.path, error)
            return self._refuse(request, 500, "The webhook server has failed.", silent=True)

    async def _review(self, request: 'web.BaseRequest') -> bytes:
        webhook = self._get_webhook(request.path)
        if request.method != 'POST':
            raise ReviewError("Reviews are accepted only by the method POST.", status=405)
        conversion = webhook is not None and webhook.startswith(ENDPOINT)
        payload = await self._read(request, MAX_CONVERTED_BODY if conversion else MAX_BODY)
        try:
            review = orjson.loads(payload)
        except ValueError as error:
            raise ReviewError(f"The request is not JSON: {error}") from None
        if not isinstance(review, dict):
            raise ReviewError("The request is not a JSON object.")
        transport = request.transport
        sslpeer = None if transport is None else transport.get_extra_info('peercert')
        time_limit_var.set(_get_limit(request.query.get('timeout', '')))
        response = await self._fn(
            cast(Request, review), webhook=webhook, headers=dict(request.headers), sslpeer=sslpeer or None)
        return encode(response)

    def _get_webhook(self, path: str) -> str | None:
        if path != self._root and not path.startswith(f'{self._root}/'):
            raise ReviewError(f"There are no webhooks at {path}.", status=404)
        return path[len(self._root) + 1:] or None

    async def _read(self, request: 'web.BaseRequest', limit: int) -> bytes:
        from aiohttp import web
        chunks: list[bytes] = []
        size = 0
        with contextlib.suppress(web.RequestPayloadError, ConnectionError):
            async for chunk in request.content.iter_any():
                chunks.append(chunk)
                size += len(chunk)
                if size > limit:
                    raise ReviewError(f"The request is larger than {limit} bytes.", status=413)
            return chunks[0] if len(chunks) == 1 else b''.join(chunks)
        raise ReviewError("The request is incomplete or broken.")

    def _refuse(self, request: 'web.BaseRequest', status: int, reason: str, *, silent: bool = False) -> 'web.Response':
        from aiohttp import web
        if not silent:
            logger.warning("A webhook request is refused: %s %s: %s %s", request.method, request.path, status, reason)
        body = {'apiVersion': 'v1', 'kind': 'Status', 'status': 'Failure', 'code': status, 'message': reason}
        response = web.Response(status=status, body=encode(body), content_type='application/json')
        if status == 405:
            response.headers['Allow'] = 'POST'
        return response


class _ReplaceableContext(ssl.SSLContext):
    """
    Uses another context, which can be replaced while the server listens.

    Listening anew with the other context would lose those connections that are just being accepted.
    """
    current: ssl.SSLContext

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        return self.current.wrap_bio(*args, **kwargs)


class _TerseLogger(logging.LoggerAdapter[logging.Logger]):
    """Lets the library say in a line what is wrong with clients: anybody can send rubbish."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        error = kwargs.pop('exc_info', None)
        detail = f": {str(error).splitlines()[0]}" if isinstance(error, Exception) and str(error) else ""
        super().log(min(level, logging.WARNING), f"{msg}%s", *args, detail, **kwargs)


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


def _get_limit(timeout: str) -> float:
    """Parse the time that the API waits, as it adds it to the URL; leave a part of it to the network."""
    if (match := _TIMEOUT.fullmatch(timeout)) is None:
        return time_limit_var.get()
    seconds = float(match[1]) * (0.001 if match[2] == 'ms' else 1)
    return max(seconds - 1, seconds * 0.9)
