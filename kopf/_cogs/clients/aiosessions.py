"""
Sessions over aiohttp: for proxies, settings of the environment, and the sessions that login handlers return.

Why not use aiohttp always? It supports all of HTTP, but takes several times more CPU per request than the connections
in `connections`. So it is imported only if its features are needed.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import aiohttp
import multidict
import yarl
from aiohttp.connector import Connection

from kopf._cogs.clients import errors, sessions
from kopf._cogs.structs import credentials

# Why so large? Watch-streams arrive in many small chunks, but lists in a few huge ones.
_READ_BUFFER = 2**18

_RESERVE = 0.1
"""The share of the connections of a developer's session that is kept free of streams, for all other requests."""


class AiohttpStream:
    """
    The body of an endless response.

    Args:
        response: the response.
        closed: called once when the connection is closed.
    """

    def __init__(self, response: aiohttp.ClientResponse, closed: Callable[[], None]) -> None:
        self._response = response
        self._closed: Callable[[], None] | None = closed

    async def read(self) -> bytes:
        try:
            return await self._response.content.readany()
        except TimeoutError:
            raise
        except aiohttp.ClientError as e:
            raise sessions.make_error(e) from e

    def hold(self, held: bool) -> None:
        pass  # the library reads ahead

    def abort(self) -> None:
        # Why not close() alone? The TLS shutdown would outlive the session and the loop.
        _abort(self._response.connection)
        self._response.close()
        closed, self._closed = self._closed, None
        if closed is not None:
            closed()


class AiohttpSession(sessions.Session):
    """
    A session over aiohttp.

    Raises:
        OSError: if a file of the credentials cannot be read.
        ValueError: if the credentials cannot be used.
    """

    def __init__(
        self,
        key: credentials.VaultKey,
        info: credentials.AiohttpSession | credentials.ConnectionInfo,
    ) -> None:
        super().__init__(key, info)
        # The errors have types of their own, also in sessions that would raise those of the library.
        self._options: dict[str, Any] = {'allow_redirects': False, 'raise_for_status': False}
        self._timeouts: dict[tuple[float | None, float | None], aiohttp.ClientTimeout] = {}
        self._streams = 0
        if isinstance(info, credentials.AiohttpSession):
            self._headers, self._session, self._owned = sessions.Headers(), info.aiohttp_session, False
        else:
            self._headers, self._session, self._owned = sessions.Headers(info), self._open_session(info), True

    def _open_session(self, info: credentials.ConnectionInfo) -> aiohttp.ClientSession:
        if info.tls_server_name:
            self._options['server_hostname'] = info.tls_server_name
        if info.proxy_url:
            if not info.proxy_url.startswith(('http://', 'https://')):
                raise ValueError(f"only HTTP proxies are supported, not {info.proxy_url!r}")
            self._options['proxy'] = info.proxy_url
        context = info.as_ssl_context() if self.server.startswith('https://') else True
        return aiohttp.ClientSession(
            # Why no limit here? Gates already limit the requests, and the streams, which use the same connector, have
            # no limit.
            connector=aiohttp.TCPConnector(limit=0, ssl=context, keepalive_timeout=sessions.KEEPALIVE),
            # The API uses no cookies. Those of a load balancer would bind all requests to one server.
            cookie_jar=aiohttp.DummyCookieJar(),
            response_class=AbruptResponse,
            skip_auto_headers=['Accept-Encoding', 'Content-Type'],  # unpacking costs more than the network
            auto_decompress=False,
            trust_env=info.trust_env,
            read_bufsize=_READ_BUFFER,
        )

    async def close(self) -> None:
        if self._owned and (connector := self._session.connector) is not None:
            try:
                # The TLS shutdown could take more iterations of the loop than are left.
                await connector.close(abort_ssl=True)  # type: ignore[call-arg,unused-ignore]
            except TypeError:  # older versions of aiohttp cannot skip the TLS shutdown
                pass
            await self._session.close()

    async def request(self, request: sessions.Request, timeouts: sessions.Timeouts) -> bytes:
        # Why not right before the request is sent? This library connects and sends in one call.
        if request.guard is not None:
            request.guard()
        with _typed_errors():
            async with asyncio.timeout(timeouts.answering), await self._send(request, timeouts) as response:
                with _aborting(response.connection):
                    body = await response.read()
                request.note_status(self.server, response.status)
        errors.check_response(response.status, response.headers, body)
        return body

    async def open(self, request: sessions.Request, timeouts: sessions.Timeouts) -> sessions.Stream:
        self._check_limit()
        # Counted from now on: others can be opened meanwhile.
        self._streams += 1
        stream: AiohttpStream | None = None
        try:
            with _typed_errors():
                async with asyncio.timeout(timeouts.answering):
                    response = await self._send(request, timeouts)
                    request.note_status(self.server, response.status)
                    if response.status < 300:
                        stream = AiohttpStream(response, self._note_closed)
                        return stream
                    async with response:
                        body = await response.read()
        finally:
            if stream is None:
                self._note_closed()
        raise errors.build_error(response.status, response.headers, body)

    def _note_closed(self) -> None:
        self._streams -= 1

    def _check_limit(self) -> None:
        """
        Leave some connections of a developer's session to other requests, which would wait for one for ever.

        Raises:
            APIConnectionError: if it has too few connections for one more stream.
        """
        connector = self._session.connector
        limits = [] if connector is None else [connector.limit, connector.limit_per_host]
        limit = min(filter(None, limits), default=0)
        if limit and self._streams >= limit - max(1, int(limit * _RESERVE)):
            raise errors.APIConnectionError(
                f"The aiohttp session of the login handler permits {limit} connections, and {self._streams} of them "
                f"are taken by watches. Prepare it with aiohttp.TCPConnector(limit=0)."
            )

    async def _send(self, request: sessions.Request, timeouts: sessions.Timeouts) -> aiohttp.ClientResponse:
        return await self._session.request(
            request.method,
            self._make_url(request.query),
            data=request.payload,
            headers=self._make_headers(request),
            timeout=self._make_timeout(timeouts),
            **self._options,
        )

    def _make_url(self, query: str) -> yarl.URL:
        return yarl.URL(self.server + query, encoded=True)

    def _make_headers(self, request: sessions.Request) -> Mapping[str, str]:
        self._headers.refresh()
        headers = multidict.CIMultiDict(self._headers.combine(request.headers))
        if request.span is not None:
            headers.update(request.span.get_headers())
        return headers

    def _make_timeout(self, timeouts: sessions.Timeouts) -> aiohttp.ClientTimeout:
        key = timeouts.streaming, timeouts.connecting
        timeout = self._timeouts.get(key)
        if timeout is None:
            timeout = self._timeouts[key] = aiohttp.ClientTimeout(total=key[0], sock_connect=key[1])
        return timeout


class AbruptResponse(aiohttp.ClientResponse):
    """A response whose connection is aborted at once if the request is cancelled before the response begins."""

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        with _aborting(connection):
            return await super().start(connection)


@contextlib.contextmanager
def _typed_errors() -> Iterator[None]:
    try:
        yield
    except (aiohttp.ClientError, OSError) as e:  # time-outs are OSError
        raise sessions.make_error(e) from e


@contextlib.contextmanager
def _aborting(connection: Connection | None) -> Iterator[None]:
    try:
        yield
    except BaseException:
        _abort(connection)
        raise


def _abort(connection: Connection | None) -> None:
    if connection is not None and connection.transport is not None:
        connection.transport.abort()
