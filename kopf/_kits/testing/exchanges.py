"""
The HTTP of the sandbox: whole requests come in, whole answers or streams go out.

It is what an API needs of HTTP/1.1, no more. The syntax is parsed by llhttp (httptools), as in the client. A web
framework takes more time to be imported than all the rest of the sandbox, and for a request than the request itself.
"""
import asyncio
import contextlib
import functools
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, cast
from urllib.parse import parse_qsl, unquote

import httptools

Headers = Iterable[tuple[str, str]]


class Dropped(Exception):
    """The connection is to be broken off."""


class Response(NamedTuple):
    """An answer; its headers are those besides the length."""
    status: int
    body: bytes
    headers: Headers


class Request:
    """
    One request with its body.

    The names of headers are in lower case. Of parameters that are repeated, the first ones count. There is no body
    (None) if it is too large.
    """
    __slots__ = ('_connection', 'body', 'headers', 'method', 'path', 'query')

    def __init__(
            self, connection: 'Connection', method: str, url: bytes, headers: Mapping[str, str], body: bytes | None,
    ) -> None:
        path, _, query = url.decode('ascii', 'replace').partition('?')
        self.method = method
        self.path = unquote(path)
        self.query: dict[str, str] = {}
        for name, value in parse_qsl(query, keep_blank_values=True):
            self.query.setdefault(name, value)
        self.headers = headers
        self.body = body
        self._connection = connection

    @property
    def content_type(self) -> str:
        """The type of the body, without its parameters."""
        return self.headers.get('content-type', 'application/octet-stream').partition(';')[0].strip().lower()

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """The client's certificate, if it has shown one."""
        certificate: Mapping[str, Any] | None = self._connection.get_extra_info('peercert')
        return certificate

    def stream(self, headers: Headers) -> 'Connection':
        """Begin an endless answer with the status 200; ConnectionError if there is nobody to hear it."""
        self._connection.begin_stream(headers)
        return self._connection


Handler = Callable[[Request], Awaitable[Response | None]]
"""Gives the answer to a request, or None if it was a stream. All its errors are a reason to break off."""


class Connection(asyncio.Protocol):
    """One connection of a client: the requests are answered one after another."""

    def __init__(self, handle: Handler, connections: 'set[Connection]', max_body: int) -> None:
        self._handle = handle
        self._connections = connections
        self._max_body = max_body
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._queue: deque[tuple[Request, bool]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._last = False
        self._streaming = False
        self._reset()

    def _reset(self) -> None:
        self._url = b''
        self._headers: dict[str, str] = {}
        self._chunks: list[bytes] = []
        self._size = 0

    # For the handler.

    def get_extra_info(self, name: str) -> Any:
        """What the transport knows."""
        return None if self._transport is None else self._transport.get_extra_info(name)

    def begin_stream(self, headers: Headers) -> None:
        """Begin an answer of chunks; ConnectionError if the connection is lost."""
        self._streaming = True
        self._write(_format_head(200, headers, 'Transfer-Encoding: chunked'))

    async def write(self, data: bytes) -> None:
        """Send the next chunk, when there is room for it; ConnectionError if the connection is lost."""
        if data:
            self._write(b'%x\r\n%b\r\n' % (len(data), data))
            if self._drained is not None:
                await self._drained

    def abort(self) -> None:
        """Break off."""
        if self._transport is not None:
            self._transport.abort()

    def _write(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("The client has gone.")
        self._transport.write(data)

    # For the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._last:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # the request is answered as any other; it is the last one of this syntax
            self._last = True
        except httptools.HttpParserError:
            self._last = True
            if self._task is None and self._transport is not None:
                self._transport.write(_format_head(400, (), 'Content-Length: 0'))
                self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.resume_writing()
        self._queue.clear()
        if self._task is not None:
            self._task.cancel()
        else:
            self._connections.discard(self)

    def pause_writing(self) -> None:
        self._drained = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    # For the parser.

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        key, text = name.decode('latin-1').lower(), value.decode('utf-8', 'surrogateescape')
        if key in self._headers and key.startswith('impersonate-'):  # The only ones that are repeated; as lines.
            text = f'{self._headers.pop(key)}\n{text}'
        self._headers.setdefault(key, text)

    def on_headers_complete(self) -> None:
        if self._headers.get('expect', '').lower() == '100-continue' and self._transport is not None:
            self._transport.write(b'HTTP/1.1 100 Continue\r\n\r\n')

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size <= self._max_body:
            self._chunks.append(body)

    def on_message_complete(self) -> None:
        body = b''.join(self._chunks) if self._size <= self._max_body else None
        request = Request(self, self._parser.get_method().decode(), self._url, self._headers, body)
        self._queue.append((request, self._parser.should_keep_alive()))
        self._reset()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._answer_all())

    # Answering.

    async def _answer_all(self) -> None:
        try:
            while self._queue:
                request, goes_on = self._queue.popleft()
                self._finish(await self._handle(request), bodiless=request.method == 'HEAD')
                if (not goes_on or self._last and not self._queue) and self._transport is not None:
                    self._transport.close()
                    return
        except (Dropped, ConnectionError):
            self.abort()
        finally:
            self._task = None
            if self._transport is None:
                self._connections.discard(self)

    def _finish(self, response: Response | None, *, bodiless: bool) -> None:
        if self._streaming:
            self._streaming = False
            self._write(b'0\r\n\r\n')
        elif response is not None:
            head = _format_head(response.status, response.headers, f'Content-Length: {len(response.body)}')
            self._write(head if bodiless else head + response.body)


class Listener:
    """An open port, and the connections to it."""

    def __init__(self, handle: Handler, *, max_body: int) -> None:
        self._connections: set[Connection] = set()
        self._make = functools.partial(Connection, handle, self._connections, max_body)
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int, context: ssl.SSLContext) -> int:
        """Listen on the port, or on any free one if it is 0; give its number; OSError if it is taken."""
        self._server = await asyncio.get_running_loop().create_server(
            self._make, host, port, ssl=context, backlog=512)
        number: int = self._server.sockets[0].getsockname()[1]
        return number

    async def close(self) -> None:
        """Close the port, and break off all connections."""
        if self._server is not None:
            self._server.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                while self._connections:
                    for connection in self._connections:
                        connection.abort()
                    await asyncio.sleep(0)


@functools.lru_cache(maxsize=64)
def _format_status(status: int) -> str:
    from http import HTTPStatus
    try:
        return f'HTTP/1.1 {status} {HTTPStatus(status).phrase}'
    except ValueError:  # one of those that faults have made up
        return f'HTTP/1.1 {status} '


def _format_head(status: int, headers: Headers, length: str) -> bytes:
    lines = [_format_status(status), length, *(f'{name}: {value}' for name, value in headers)]
    return '\r\n'.join([*lines, '\r\n']).encode('utf-8', 'surrogateescape')
