"""
Sessions with the API server: one for every set of credentials, with everything prepared for its requests.

Headers, TLS contexts, time-outs and URLs' beginnings do not change from request to request, and requests are
counted in tens of thousands; so they are made once. This is the only place that knows the HTTP library: what
comes out of here is bytes, lines, and typed errors.
"""
import asyncio
import contextlib
import functools
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from kopf._cogs.clients import errors
from kopf._cogs.helpers import versions
from kopf._cogs.structs import credentials

if TYPE_CHECKING:
    import aiohttp
    import yarl
    from aiohttp.connector import Connection

Failures: TypeAlias = tuple[type[Exception], ...]
ExtraHeaders: TypeAlias = tuple[str | None, str | None]  # Accept, Content-Type

# Fewer seconds than servers and load balancers usually keep an idle connection: they must not close it
# at the very moment when we use it.
_KEEPALIVE = 30.0

# How often the files with tokens are looked into (seconds). Kubelet renews them long before they expire.
_TOKEN_REFRESH = 10.0

# Watch-streams come in many small chunks; lists in a few huge ones.
_READ_BUFFER = 2 ** 18


class Session:
    """A session with the server under the same credentials, and everything prepared for its requests."""
    __slots__ = ('key', 'info', 'server', 'users', 'failures', '_session', '_owned', '_options',
                 '_headers', '_variants', '_refreshed', '_timeouts')

    def __init__(self, key: credentials.VaultKey, info: credentials.KubeContext) -> None:
        import aiohttp
        self.key = key
        self.info = info
        self.server = info.server.rstrip('/')
        self.users = 0
        self.failures: Failures = (aiohttp.ClientError, OSError)  # time-outs are OSError
        self._options: dict[str, Any] = {'allow_redirects': False}
        self._headers: Mapping[str, str] = {}
        self._variants: dict[ExtraHeaders, Mapping[str, str]] = {}
        self._refreshed = time.monotonic()
        self._timeouts: dict[tuple[float | None, float | None], aiohttp.ClientTimeout] = {}
        if isinstance(info, credentials.AiohttpSession):
            self._session, self._owned = info.aiohttp_session, False
        elif isinstance(info, credentials.ConnectionInfo):
            self._session, self._owned = self._open_session(info), True
        else:
            raise credentials.LoginError(f"Login handlers must return ConnectionInfo, not {type(info).__name__}.")

    def _open_session(self, info: credentials.ConnectionInfo) -> 'aiohttp.ClientSession':
        import aiohttp
        if not self.server.startswith(('http://', 'https://')):
            raise credentials.LoginError(f"The server's address must be an HTTP(S) URL, not {info.server!r}.")
        try:
            self._headers = {'User-Agent': versions.user_agent, **info.as_http_headers()}
            context = info.as_ssl_context() if self.server.startswith('https://') else True
        except (OSError, ValueError) as e:
            raise credentials.LoginError(f"The credentials for {self.server} cannot be used: {e}") from e
        if info.tls_server_name:
            self._options['server_hostname'] = info.tls_server_name
        if info.proxy_url:
            if not info.proxy_url.startswith(('http://', 'https://')):
                raise credentials.LoginError(f"Only HTTP proxies are supported, not {info.proxy_url!r}.")
            self._options['proxy'] = info.proxy_url
        return aiohttp.ClientSession(
            # The limit is ours: streams and requests share the sockets, but streams are not limited.
            connector=aiohttp.TCPConnector(limit=0, ssl=context, keepalive_timeout=_KEEPALIVE),
            cookie_jar=aiohttp.DummyCookieJar(),
            response_class=_abrupt_response_class(),
            skip_auto_headers=['Accept-Encoding', 'Content-Type'],  # unpacking costs more than the network
            auto_decompress=False,
            trust_env=info.trust_env,
            read_bufsize=_READ_BUFFER,
        )

    async def close(self) -> None:
        """Close the session if it is ours, with all that is still in flight."""
        if self._owned and (connector := self._session.connector) is not None:
            try:
                # The polite end of TLS takes more iterations of the loop than there may be.
                await connector.close(abort_ssl=True)  # type: ignore[call-arg,unused-ignore]
            except TypeError:  # in older versions, there is no other end than the polite one
                pass
            await self._session.close()

    async def request(
            self,
            method: str,
            query: str,
            *,
            payload: bytes | None,
            headers: ExtraHeaders,
            timeout: float | None,
            connect_timeout: float | None,
    ) -> bytes:
        """Make one request; all errors are typed."""
        try:
            async with asyncio.timeout(timeout), self._session.request(
                method, self._make_url(query), data=payload, headers=self._make_headers(headers),
                timeout=self._make_timeout(None, connect_timeout), **self._options,
            ) as response:
                with _aborting(response.connection):
                    body = await response.read()
        except self.failures as e:
            raise _make_error(e) from e
        errors.check_response(response.status, response.headers, body)
        return body

    async def open(
            self,
            query: str,
            *,
            timeout: float | None,
            connect_timeout: float | None,
            total_timeout: float | None,
    ) -> 'aiohttp.ClientResponse':
        """Open a stream; all errors are typed; `timeout` is for everything until the stream begins."""
        try:
            async with asyncio.timeout(timeout):
                response = await self._session.request(
                    'GET', self._make_url(query), headers=self._make_headers((None, None)),
                    timeout=self._make_timeout(total_timeout, connect_timeout), **self._options)
                if response.status < 400:
                    return response
                async with response:
                    body = await response.read()
        except self.failures as e:
            raise _make_error(e) from e
        raise errors.build_error(response.status, response.headers, body)

    def _make_url(self, query: str) -> 'yarl.URL':
        import yarl
        return yarl.URL(self.server + query, encoded=True)

    def _make_headers(self, extra: ExtraHeaders) -> Mapping[str, str]:
        info = self.info
        if isinstance(info, credentials.ConnectionInfo) and info.token_path:
            self._refresh_token(info)
        headers = self._variants.get(extra)
        if headers is None:
            import multidict
            accept, content_type = extra
            named = {'Accept': accept or 'application/json', 'Content-Type': content_type}
            headers = multidict.CIMultiDict(self._headers)
            headers.update({name: value for name, value in named.items() if value is not None})
            self._variants[extra] = headers
        return headers

    def _refresh_token(self, info: credentials.ConnectionInfo) -> None:
        now = time.monotonic()
        if now - self._refreshed >= _TOKEN_REFRESH:
            self._refreshed = now
            with contextlib.suppress(OSError):  # the old token may be good for a while
                self._headers = {**self._headers, **info.as_http_headers()}
                self._variants.clear()

    def _make_timeout(self, total: float | None, connect: float | None) -> 'aiohttp.ClientTimeout':
        timeout = self._timeouts.get((total, connect))
        if timeout is None:
            import aiohttp
            timeout = self._timeouts[total, connect] = aiohttp.ClientTimeout(total=total, sock_connect=connect)
        return timeout


@contextlib.contextmanager
def dropping(response: 'aiohttp.ClientResponse') -> Iterator[None]:
    """Close the response in the end, without the ceremonies of TLS: they would outlive the session and the loop."""
    try:
        yield
    finally:
        _abort(response.connection)
        response.close()


@contextlib.contextmanager
def _aborting(connection: 'Connection | None') -> Iterator[None]:
    """Break off the connection, as `dropping` does, if what is done with it fails or is cancelled."""
    try:
        yield
    except BaseException:
        _abort(connection)
        raise


def _abort(connection: 'Connection | None') -> None:
    if connection is not None and connection.transport is not None:
        connection.transport.abort()


@functools.cache
def _abrupt_response_class() -> 'type[aiohttp.ClientResponse]':
    import aiohttp

    class AbruptResponse(aiohttp.ClientResponse):
        """A response whose connection is broken off at once if it is given up before it begins."""

        async def start(self, connection: 'Connection') -> aiohttp.ClientResponse:
            with _aborting(connection):
                return await super().start(connection)

    return AbruptResponse


class Lines:
    """Splits a stream to lines; unlike a generator, it survives the cancellation of a read."""
    __slots__ = ('_content', '_failures', '_rest')

    def __init__(self, response: 'aiohttp.ClientResponse', failures: Failures) -> None:
        self._content = response.content
        self._failures = failures
        self._rest: list[bytes] = []  # the beginning of a line; it is joined once, however long it is

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[bytes]:
        while True:
            chunk = await self._read()
            if not chunk:
                line, self._rest = b''.join(self._rest), []
                if line:
                    return [line]
                raise StopAsyncIteration
            head, newline, tail = chunk.rpartition(b'\n')
            if not newline:
                self._rest.append(chunk)
                continue
            self._rest.append(head)
            lines = [line for line in b''.join(self._rest).split(b'\n') if line]
            self._rest = [tail] if tail else []
            if lines:
                return lines

    async def _read(self) -> bytes:
        try:
            return await self._content.readany()
        except TimeoutError:  # of the whole stream: as if the server has ended it
            self._rest.clear()
            return b''
        except self._failures as e:
            raise _make_error(e) from e


def _make_error(exc: Exception) -> errors.APIError:
    message = str(exc) or repr(exc)
    if isinstance(exc, TimeoutError):
        return errors.APITimeoutError(message)
    return errors.APIConnectionError(message)
