"""
The HTTP server for requests about the operator itself: probes, metrics, inspection.

The server has a thread and an event loop of its own, as it must respond also when the operator's loop is stuck. Each
feature brings its routes; features with the same address share one server.
"""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import logging
import threading
import urllib.parse
from collections.abc import Awaitable, Callable, Collection, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeGuard

from kopf._cogs.helpers.explanations import ExplainedError

if TYPE_CHECKING:
    from aiohttp import web
    from aiohttp.abc import AbstractAccessLogger

logger = logging.getLogger(__name__)

Respond = Callable[['web.Request'], Awaitable['web.StreamResponse']]
"""A coroutine function that responds to a request, in the loop of the server."""

ANY_HOST = (None, '0.0.0.0', '::')
"""The hosts in URLs that mean all network interfaces."""


IDLE_TIMEOUT = 10.0
"""How long idle connections are kept (in seconds): those of vanished clients would hold file descriptors for ever."""


class StatusServerError(ExplainedError, OSError):
    """Raised when the server cannot listen at its address. The message contains the reason and the remedy."""


class EndpointError(ValueError):
    """Raised when the URL of an endpoint is invalid."""


_KUBELET = 'kube-probe/'
"""The beginning of the user agent of probes by kubelet."""

LOCAL_SCHEME = 'http+unix'
"""The scheme of URLs of Unix sockets: ``http+unix://%2Frun%2Foperator.sock/healthz``."""


def is_socket_path(host: str | None) -> TypeGuard[str]:
    """Check whether the host is the path of a Unix socket, which has no port."""
    return host is not None and host.startswith('/')


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """The address to listen at, on all interfaces if there is no host; and the path."""

    host: str | None
    """The host, or the absolute path of a Unix socket."""
    port: int
    path: str

    @classmethod
    def parse(cls, url: str, *, purpose: str = 'liveness', example: str = 'http://0.0.0.0:8080/healthz') -> Self:
        """
        Return the endpoint for a URL such as ``http://:8080/healthz``.

        Args:
            url: the URL.
            purpose: the name of the endpoint, for the message of the error.
            example: a valid URL, also for the message.

        Raises:
            EndpointError: if it is not such a URL.
        """
        parts = urllib.parse.urlsplit(url)
        try:
            port = parts.port
        except ValueError as error:
            raise EndpointError(f"Wrong port in the {purpose} endpoint {url!r}: {error}") from error
        if parts.scheme == LOCAL_SCHEME and parts.netloc.upper().startswith('%2F'):
            return cls(urllib.parse.unquote(parts.netloc), 0, parts.path or '/')
        if parts.scheme != 'http' or not parts.netloc:
            raise EndpointError(f"The {purpose} endpoint must be like {example}, not {url!r}.")
        return cls(parts.hostname or None, 80 if port is None else port, parts.path or '/')

    def shares_server(self, other: 'Endpoint') -> bool:
        """Check whether one server can listen at both endpoints."""
        same_host = self.host == other.host or (self.host in ANY_HOST and other.host in ANY_HOST)
        return self.port == other.port and same_host


class StatusServer:
    """
    One server at one address; an async context manager.

    Args:
        host: the host to listen at; ``None`` for all interfaces; the absolute path of a Unix socket.
        port: the port to listen at; 0 for any free port.
        routes: the responses by their paths.
        purpose: the purpose of the server, for messages: ``the probes``.
        ending: called in the loop of the server when it stops; it must end the responses that last for long.
        quiet: the paths with frequent requests, which are logged only as debug messages.
    """

    def __init__(
        self,
        host: str | None,
        port: int,
        routes: Mapping[str, Respond],
        *,
        purpose: str,
        ending: Callable[[], Awaitable[None]] | None = None,
        quiet: Collection[str] = (),
    ) -> None:
        self._host = host
        self._routes = routes
        self._ending = ending
        self._quiet = quiet
        self._purpose = purpose
        self._listening: concurrent.futures.Future[int] = concurrent.futures.Future()
        self._listening.set_running_or_notify_cancel()  # a cancelled start must not cancel it
        self._closing: Callable[[], object] = lambda: None
        self._is_ending = False
        self._closed: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.port = port
        """The port at which the server listens: the requested one, unless that is 0."""

    async def __aenter__(self) -> Self:
        # Why not an executor? Its threads are joined at exit, so a stuck server would keep the process alive.
        threading.Thread(target=self._run, name='kopf-status', daemon=True).start()
        try:
            self.port = await asyncio.wrap_future(self._listening)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self,
        type_: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # In this order: if the thread has not begun to serve yet, it sees the flag then.
        self._is_ending = True
        self._closing()
        await asyncio.wrap_future(self._closed)

    # In the thread of the server.

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if not self._listening.done():
                self._listening.set_exception(error)
            else:
                logger.exception("The server of %s has failed: %s", self._purpose, error)
        finally:
            self._closed.set_result(None)

    async def _serve(self) -> None:
        from aiohttp import web
        from aiohttp.log import access_logger

        loop, closing = asyncio.get_running_loop(), asyncio.Event()

        def close() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                loop.call_soon_threadsafe(closing.set)

        self._closing = close
        if self._is_ending:
            return
        app = web.Application()
        for path, respond in self._routes.items():
            app.router.add_get(path, respond)
        # A supervisor logs the requests that it forwards to Unix sockets.
        log = None if is_socket_path(self._host) else access_logger
        runner = web.AppRunner(
            app,
            handle_signals=False,
            keepalive_timeout=IDLE_TIMEOUT,
            shutdown_timeout=1.0,
            access_log=log,
            access_log_class=_make_access_log_class(self._quiet),
        )
        await runner.setup()
        try:
            try:
                await self._make_site(runner).start()
            except OSError as error:
                raise StatusServerError(
                    error.errno,
                    f"The server of {self._purpose} cannot listen at {self._host or '*'}:{self.port}: "
                    f"{error.strerror}. Choose another address or port for its endpoint.",
                ) from None
            # Unix sockets have no port: their address is their path.
            address = runner.addresses[0]
            self._listening.set_result(0 if isinstance(address, str) else address[1])
            await closing.wait()
            if self._ending is not None:
                await self._ending()
        finally:
            await runner.cleanup()

    def _make_site(self, runner: 'web.AppRunner') -> 'web.BaseSite':
        from aiohttp import web

        if is_socket_path(self._host):
            return web.UnixSite(runner, self._host)
        return web.TCPSite(runner, self._host, self.port)


def _make_access_log_class(quiet: Collection[str]) -> 'type[AbstractAccessLogger]':
    """
    Return the class of the access log: that of aiohttp, but with debug messages for frequent requests.

    These are the requests to the paths, and the successful probes of kubelet. Why not all probes? Upstream logs them,
    and requests of people are rare.
    """
    from aiohttp.web_log import AccessLogger

    class StatusAccessLogger(AccessLogger):
        def log(self, request: 'web.BaseRequest', response: 'web.StreamResponse', time: float) -> None:
            is_probe = request.headers.get('User-Agent', '').startswith(_KUBELET) and response.status < 400
            if request.path not in quiet and not is_probe:
                super().log(request, response, time)
            else:
                self.logger.debug('%s "%s %s" %d', request.remote, request.method, request.path_qs, response.status)

    return StatusAccessLogger
