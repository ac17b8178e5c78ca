"""
Sessions with the API server: one for every set of credentials, with everything prepared for its requests.

Headers, TLS contexts, and prefixes of URLs are the same for tens of thousands of requests, so they are created once.
The modules above do not depend on HTTP: they get bytes, lines, and typed errors from here.
"""

import abc
import asyncio
import contextlib
import time
import urllib.parse
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self, TypeAlias

from kopf._cogs.clients import errors
from kopf._cogs.helpers import versions
from kopf._cogs.structs import credentials, instruments

if TYPE_CHECKING:
    from kopf._cogs.clients import connections
    from kopf._cogs.structs.meters import Meters

ExtraHeaders: TypeAlias = tuple[str | None, str | None]  # Accept, Content-Type

KEEPALIVE = 30.0
"""
The time for which an idle connection is kept (in seconds).

It is shorter than the idle timeouts of servers and load balancers. Otherwise, these could close a connection at the
moment of its use.
"""

_TOKEN_REFRESH = 10.0
"""The interval between reads of files with tokens (in seconds). Kubelet renews them long before they expire."""


class Request(NamedTuple):
    """A request to the server; `query` is the path with its query."""

    method: str
    query: str
    payload: bytes | None = None
    headers: ExtraHeaders = (None, None)
    span: instruments.ApiRequest | instruments.Unsampled | None = None
    """The span of the request, which gets the status, and can add headers; or the trace that is not sampled."""
    guard: Callable[[], None] | None = None
    """The function to call right before the request is sent, after all waits; if it raises, nothing is sent."""
    meters: 'Meters | None' = None
    """The meters that count the responses, if there are metrics; the client counts the attempts without a response."""

    def note_status(self, server: str, status: int) -> None:
        """Called when the response has arrived."""
        if self.span is not None:
            self.span.note_status(status)
        if self.meters is not None:
            self.meters.note_request(server, self.method, status)


class Timeouts(NamedTuple):
    """The time limits of one request (in seconds): of connecting, of the whole response, of a stream as a whole."""

    connecting: float | None
    answering: float | None
    streaming: float | None = None


class Stream(Protocol):
    """The body of an endless response."""

    async def read(self) -> bytes:
        """Return the received data; empty if the stream has ended; raise `TimeoutError` if it has lasted too long."""

    def hold(self, held: bool) -> None:
        """Set whether data gather in the buffers of the system, or are received piece by piece."""

    def abort(self) -> None:
        """Close the connection at once."""


class Session(abc.ABC):
    """A session with the server under the same credentials, and everything prepared for its requests."""

    def __init__(self, key: credentials.VaultKey, info: credentials.KubeContext) -> None:
        self.key = key
        self.info = info
        self.server = info.server.rstrip('/')
        self.is_approved = False
        """Whether the server has accepted the credentials."""
        self._users = 0
        """The number of requests and streams that use the session."""

    @property
    def is_used(self) -> bool:
        """Return whether any request or stream uses the session."""
        return self._users > 0

    def begin_use(self) -> None:
        """Called when a request or a stream begins to use the session."""
        self._users += 1

    def end_use(self) -> None:
        """Called when the request or the stream has ended."""
        self._users -= 1

    def approve(self) -> None:
        """Called when the server has accepted the credentials."""
        self.is_approved = True

    @abc.abstractmethod
    async def close(self) -> None:
        """Close the session with its requests in flight, unless it is a session of a login handler."""

    @abc.abstractmethod
    async def request(self, request: Request, timeouts: Timeouts) -> bytes:
        """Make one request and return the body of the response; raise only errors of `errors`."""

    @abc.abstractmethod
    async def open(self, request: Request, timeouts: Timeouts) -> Stream:
        """Open a stream and return it; raise only errors of `errors`."""


def open_session(key: credentials.VaultKey, info: credentials.KubeContext) -> Session:
    """
    Open a session of the type that the credentials need.

    Raises:
        credentials.LoginError: if the credentials cannot be used.
        credentials.PassingLoginError: if their files cannot be read now, which can be different at the next attempt.
    """
    if not info.server.startswith(('http://', 'https://')):
        raise credentials.LoginError(f"The server's address must be an HTTP(S) URL, not {info.server!r}.")
    try:
        if (
            isinstance(info, credentials.AiohttpSession)
            # Only aiohttp supports proxies, credentials in the URL, and the environment variables for both.
            or isinstance(info, credentials.ConnectionInfo)
            and (info.proxy_url or info.trust_env or '@' in urllib.parse.urlsplit(info.server).netloc)
        ):
            from kopf._cogs.clients import aiosessions

            return aiosessions.AiohttpSession(key, info)
        if isinstance(info, credentials.ConnectionInfo):
            return DirectSession(key, info)
    except (OSError, ValueError) as e:
        raise credentials.PassingLoginError(f"The credentials for {info.server} cannot be used: {e}") from e
    raise credentials.LoginError(f"Login handlers must return ConnectionInfo, not {type(info).__name__}.")


class Headers:
    """
    The headers of all requests of a session; the token changes when its file changes.

    Args:
        info: the credentials; without them, there are only the headers of the request itself.

    Raises:
        OSError: if the file with the token cannot be read initially.
        ValueError: if the credentials have characters that headers cannot have.
    """

    def __init__(self, info: credentials.ConnectionInfo | None = None) -> None:
        self.version = 0
        self._info = info
        self._headers = _identify(info) if info is not None else {}
        self._refreshed = time.monotonic()

    def refresh(self) -> int:
        """Read the token again if it is time; return the version number, which grows with the changes."""
        if self._info is not None and self._info.token_path and time.monotonic() - self._refreshed >= _TOKEN_REFRESH:
            # Set it before the read: if the read fails, the file must not be read again with each request.
            self._refreshed = time.monotonic()
            with contextlib.suppress(OSError, ValueError):  # the old token can still be valid for a while
                headers = _identify(self._info)
                # Ignore an empty file: it is being written at this moment.
                if headers != self._headers and len(headers) >= len(self._headers):
                    self._headers = headers
                    self.version += 1
        return self.version

    def combine(self, extra: ExtraHeaders) -> Mapping[str, str]:
        """Return the headers of a request."""
        accept, content_type = extra
        named = {'Accept': accept or 'application/json', 'Content-Type': content_type}
        return {**self._headers, **{name: value for name, value in named.items() if value is not None}}


def _identify(info: credentials.ConnectionInfo) -> Mapping[str, str]:
    headers = {'User-Agent': versions.user_agent, **info.as_http_headers()}
    for name, value in headers.items():
        # Otherwise, a line break in a token would begin another header.
        if not value.isascii() or not value.isprintable():
            raise ValueError(f"the value of the header {name} contains non-ASCII or control characters")
    return headers


class DirectSession(Session):
    """A session over the connections of `connection_pools`: the usual one."""

    def __init__(self, key: credentials.VaultKey, info: credentials.ConnectionInfo) -> None:
        from kopf._cogs.clients import connection_pools

        super().__init__(key, info)
        if not self.server.isascii() or not self.server.isprintable() or ' ' in self.server:
            raise ValueError("the server's address contains spaces, control characters, or non-ASCII characters")
        parts, host, port = connection_pools.split_url(self.server)
        self._prefix = parts.path
        self._host = parts.netloc
        self._headers = Headers(info)
        self._heads: dict[ExtraHeaders, str] = {}
        self._version = self._headers.version
        context = info.as_ssl_context() if parts.scheme == 'https' else None
        # A final dot marks an absolute name for the DNS only; neither SNI (RFC 6066, section 3) nor certificates
        # have it.
        hostname = (info.tls_server_name or host).rstrip('.') if context is not None else None
        self._pool = connection_pools.Pool(connection_pools.Origin(host, port, context, hostname), keepalive=KEEPALIVE)

    async def close(self) -> None:
        self._pool.close()

    async def request(self, request: Request, timeouts: Timeouts) -> bytes:
        data = self._encode(request)
        try:
            async with asyncio.timeout(timeouts.answering):
                response = await self._pool.request(
                    data,
                    connect_timeout=timeouts.connecting,
                    repeatable=request.method == 'GET',
                    guard=request.guard,
                )
        except OSError as e:
            raise make_error(e) from e
        if request.meters is not None or (request.span is not None and request.span.notes_status):
            request.note_status(self.server, response.status)
        if response.status >= 300:
            raise _refuse(response)
        return response.body

    async def open(self, request: Request, timeouts: Timeouts) -> Stream:
        data = self._encode(request)
        try:
            async with asyncio.timeout(timeouts.answering):
                response, stream = await self._pool.stream(
                    data, connect_timeout=timeouts.connecting, total_timeout=timeouts.streaming
                )
                request.note_status(self.server, response.status)
                if response.status < 300:
                    return stream
                try:
                    body = b''.join([chunk async for chunk in _read_on(stream)])
                finally:
                    stream.abort()
        except OSError as e:
            raise make_error(e) from e
        raise _refuse(response._replace(body=body))

    def _encode(self, request: Request) -> bytes:
        method, query, payload, extra, span, _, _ = request
        version = self._headers.refresh()
        if version != self._version:
            self._version = version
            self._heads.clear()
        head = self._heads.get(extra)
        if head is None:
            headers = {'Host': self._host, **self._headers.combine(extra)}
            lines = [f'{name}: {value}\r\n' for name, value in headers.items()]
            head = self._heads[extra] = f" HTTP/1.1\r\n{''.join(lines)}"
        if not query.isascii() or not query.isprintable() or ' ' in query:
            query = urllib.parse.quote(query, safe="/?&=%:,;+~@!$'()*")
        if span is not None:
            for name, value in span.get_headers().items():
                head += f'{name}: {value}\r\n'
        if payload is None:
            # RFC 9110, section 8.6: methods that usually have a content declare its absence, other methods do not
            # mention it.
            length = '' if method in ('GET', 'DELETE') else 'Content-Length: 0\r\n'
            return f'{method} {self._prefix}{query}{head}{length}\r\n'.encode('latin-1')
        return f'{method} {self._prefix}{query}{head}Content-Length: {len(payload)}\r\n\r\n'.encode('latin-1') + payload


def _refuse(response: 'connections.Response') -> errors.APIError:
    return errors.build_error(response.status, response.as_mapping(), response.body)


async def _read_on(stream: Stream) -> AsyncIterator[bytes]:
    while chunk := await stream.read():
        yield chunk


_MAX_LINE = 2**26
"""The size limit of a line of a stream: several times the largest object that the API can store (in bytes)."""


class Lines:
    """Splits a stream into lines. Why not a generator? A cancelled read would end it."""

    __slots__ = ('_stream', '_rest', '_size')

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._rest: list[bytes] = []  # the beginning of a line, joined only once, even if it is long
        self._size = 0  # the size of that beginning

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[bytes]:
        while True:
            chunk = await self._read()
            if not chunk:
                # Servers can leave out the newline of the last line.
                line, self._rest = b''.join(self._rest), []
                if line:
                    return [line]
                raise StopAsyncIteration
            head, newline, tail = chunk.rpartition(b'\n')
            if not newline:
                self._rest.append(chunk)
                self._size += len(chunk)
                if self._size > _MAX_LINE:
                    self._rest.clear()
                    self._stream.abort()
                    raise errors.APIConnectionError(f"The stream is closed: a line is longer than {_MAX_LINE} bytes.")
                continue
            self._rest.append(head)
            lines = [line for line in b''.join(self._rest).split(b'\n') if line]
            self._rest, self._size = [tail] if tail else [], len(tail)
            if lines:
                return lines

    async def rest(self, seconds: float) -> None:
        """Wait until more data have gathered, because each received piece wakes up the event loop."""
        self._stream.hold(True)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._stream.hold(False)

    async def _read(self) -> bytes:
        try:
            return await self._stream.read()
        except TimeoutError:  # the time limit of the whole stream, which counts as a normal end
            self._rest.clear()
            return b''
        except OSError as e:
            raise make_error(e) from e


def is_certificate_rejected(error: errors.APIError) -> bool:
    """Check whether the connection has failed because one side has rejected the certificate of the other side."""
    # Why compare the text? The exceptions of asyncio and of aiohttp have no common class for this.
    text = str(error.__cause__)
    return 'SSL' in text and ('CERTIFICATE' in text or 'UNKNOWN_CA' in text)


def make_error(exc: Exception) -> errors.APIError:
    """Return a typed error for a failure of the network."""
    message = str(exc) or repr(exc)
    if isinstance(exc, TimeoutError):
        return errors.APITimeoutError(message)
    return errors.APIConnectionError(message)
