"""
Plain HTTP/1.1 connections to the API server.

Why not a general HTTP library? Every change of an object costs a request, and a request in such a library costs more
than the rest of the handling. The API needs little of HTTP: a request has a body of a known type, and a response is
either bytes or an endless stream. llhttp (httptools) parses the syntax, and asyncio does TLS. This module adds
time-outs and flow control. `connection_pools` opens connections and keeps them for the next requests.
"""

import asyncio
import contextlib
import socket
from collections.abc import Mapping
from typing import NamedTuple, cast

import httptools

_READ_AHEAD = 2**20
"""The amount of a stream that is read ahead of its consumer (in bytes)."""
_GATHERED = 2**16
"""How many data of a held stream the system buffers before it wakes up the event loop (in bytes)."""
_MAX_HEAD = 2**18
"""The size limit of the status line and the headers, interim responses (1xx) included (in bytes)."""
_MAX_RESPONSE = 2**30
"""The size limit of a response that is not a stream: 500 objects of the largest size fit (in bytes)."""


class Response(NamedTuple):
    """A response of the server; for a stream, only its head, without the body."""

    status: int
    headers: Mapping[bytes, bytes]
    body: bytes

    def as_mapping(self) -> Mapping[str, str]:
        """Return the headers with capitalised names."""
        return {name.decode('latin-1').title(): value.decode('latin-1') for name, value in self.headers.items()}


class ConnectionLost(ConnectionError):
    """Raised if the connection is lost before the end of the response; `early` if before its first byte."""

    def __init__(self, message: str, *, early: bool = False) -> None:
        super().__init__(message)
        self.early = early


class Connection(asyncio.Protocol):
    """One connection: used by one request at a time, or by one stream till its end."""

    def __init__(self) -> None:
        self.used = False
        self.idle_since = 0.0
        """When the last request has ended, by the clock of the loop."""
        self._loop = asyncio.get_running_loop()
        self._headers: dict[bytes, bytes] = {}
        self._chunks: list[bytes] = []
        # The most frequent callbacks of the parser are methods in C, so that no Python code is executed.
        self.on_header = self._headers.__setitem__
        self.on_body = self._chunks.append
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        self._streaming = False
        self._paused = False
        self._expiry: asyncio.TimerHandle | None = None
        self._reset()

    def _reset(self) -> None:
        self._status = 0
        # Clear these objects, never replace them: the parser calls their methods.
        self._headers.clear()
        self._chunks.clear()
        self._size = 0
        self._began = False
        self._complete = False
        self._reusable = False

    # The methods for the users of the connection.

    def begin_idling(self) -> None:
        """Called when the connection is kept for the next request."""
        self.idle_since = self._loop.time()

    @property
    def usable(self) -> bool:
        """True if another request can be sent."""
        transport = self._transport
        return self._error is None and not self._streaming and transport is not None and not transport.is_closing()

    @property
    def reusable(self) -> bool:
        """True if the server permits another request after this response, and has read the whole request."""
        transport = self._transport
        return self._reusable and self.usable and transport is not None and transport.get_write_buffer_size() == 0

    async def request(self, data: bytes) -> Response:
        """
        Send a request and return its response; the connection is aborted if this fails or is cancelled.

        Raises:
            ConnectionError: if the connection is lost, or the response is not HTTP.
        """
        self._reset()
        await self._send(data)
        self.used = True
        # Copy the headers: the next request on this connection clears them.
        return Response(self._status, self._headers.copy(), b''.join(self._chunks))

    async def stream(self, data: bytes, *, timeout: float | None) -> Response:
        """
        Send a request and return the head of its response; the body is to be read by `read`.

        Args:
            data: the whole request.
            timeout: how long the stream may last from now on (in seconds).

        Raises:
            ConnectionError: if the connection is lost, or the response is not HTTP.
        """
        self._reset()
        self._streaming = True
        if timeout is not None:
            self._expiry = self._loop.call_later(timeout, self._expire)
        await self._send(data)
        return Response(self._status, self._headers.copy(), b'')

    async def read(self) -> bytes:
        """
        Wait for data of the stream and return all received so far; empty if it has ended. It can be cancelled.

        Raises:
            TimeoutError: if the stream lasts for too long.
            ConnectionError: if it breaks.
        """
        while not self._chunks:
            if self._complete:
                return b''
            await self._wait()
        chunk = self._chunks[0] if len(self._chunks) == 1 else b''.join(self._chunks)
        self._chunks.clear()
        # From now on, the size counts only data that are received before the next read.
        self._size = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return chunk

    def hold(self, held: bool) -> None:
        """Set whether data of the stream gather in the system before they are received, or are received immediately."""
        # Why not `pause_reading`? With TLS, the data are received nevertheless, piece by piece, only decrypted later.
        if self._transport is not None:
            with contextlib.suppress(OSError, AttributeError):
                sock = self._transport.get_extra_info('socket')
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _GATHERED if held else 1)

    def abort(self) -> None:
        """Abort the connection without a TLS shutdown, which would outlive the session and the loop."""
        self._break()
        self._fail(ConnectionAbortedError("The connection is closed."))
        # Replace the former error: its traceback refers to its callers, and these refer to the connection. Only the
        # garbage collector, which runs rarely, would free this cycle.
        self._error = ConnectionAbortedError("The connection is closed.")

    def _break(self) -> None:
        self._parser = None  # it refers to the connection, too
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if self._transport is not None:
            self._transport.abort()

    async def _send(self, data: bytes) -> None:
        assert self._transport is not None
        # Why not wait until it is written? The request is in memory anyway, and a server can answer before it has read
        # all, e.g. with 413. A connection with unsent data is not reused.
        self._transport.write(data)
        try:
            while not (self._complete or self._streaming and self._began):
                await self._wait()
        # This includes cancellations: otherwise, the rest of this response would be read as the response to the next
        # request.
        except BaseException:
            self.abort()
            raise

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _expire(self) -> None:
        self._fail(TimeoutError("The stream has lasted for as long as it may."))
        self._break()

    def _fail(self, error: BaseException) -> None:
        # Keep the first error: further errors are its consequences, such as the loss of an aborted connection.
        if self._error is None:
            self._error = error
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_exception(error)

    # The methods for the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # the transports of uvloop are not its subclasses
        # With this option, the system probes silent connections, so that a vanished server is noticed even if the user
        # has switched off the time-outs. Not all transports have sockets.
        # Why not TCP_KEEPIDLE, too? By default, silence is noticed earlier: of watches after the `inactivity_timeout`,
        # as bookmarks come each minute, and of other requests after the `request_timeout`.
        with contextlib.suppress(OSError, AttributeError):
            transport.get_extra_info('socket').setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            return
        if self._complete or self._waiter is None and not self._streaming:  # e.g. 408 of a closing server
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as e:
            self._fail(ConnectionError(f"The response is not HTTP: {e}"))
            self._break()
            return
        self._size += len(data)
        if not self._began:
            # The parser and the headers store the whole head, so an endless head would take all the memory.
            if self._size > _MAX_HEAD:
                self._refuse(f"its head is larger than {_MAX_HEAD} bytes")
        elif self._streaming:
            self._wake()
            if self._size > _READ_AHEAD and not self._paused and not self._complete:
                self._limit_stream()
        elif self._size > _MAX_RESPONSE:
            self._refuse(f"it is larger than {_MAX_RESPONSE} bytes")

    def _limit_stream(self) -> None:
        """Pause reading until the consumer reads; fail if there is no content, e.g. because of endless trailers."""
        if not self._chunks:
            self._refuse(f"there is no content in {self._size} bytes")
        elif self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _refuse(self, reason: str) -> None:
        self._fail(ConnectionError(f"The response is refused: {reason}."))
        self._break()

    def eof_received(self) -> None:
        # Why not the default? It waits until the request is sent, and the server may never read it.
        transport = self._transport
        self.connection_lost(None)
        if transport is not None:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._began and not self._complete and exc is None and self._ends_with_connection():
            self._complete = True
            self._wake()
        early = not self._began
        moment = 'before' if early else 'in the middle of'
        reason = exc or 'closed by the server'
        error = ConnectionLost(f"The connection is lost {moment} the response: {reason}", early=early)
        error.__cause__ = exc
        self._fail(error)

    def _ends_with_connection(self) -> bool:
        # RFC 9112, section 6.3: without these headers, the response ends with its connection. With them, it is cut off.
        return not any(name.lower() in (b'content-length', b'transfer-encoding') for name in self._headers)

    # The methods for the parser.

    def on_message_begin(self) -> None:
        # Why also here? An extra response can arrive in the same piece of data as the real one, while `data_received`
        # checks only the beginning of each piece.
        if self._complete:
            raise ConnectionError("the server has sent a response without a request")

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        status = self._parser.get_status_code()
        if status < 200:  # the final response comes later
            self._headers.clear()
        else:
            self._status = status
            self._began = True

    def on_message_complete(self) -> None:
        assert self._parser is not None
        # Interim responses are complete messages, too.
        if self._began:
            self._complete = True
            self._wake()
            self._reusable = self._parser.should_keep_alive()
