"""
The server's side of HTTP/1.1 on one connection.

This module controls the order of responses, the timeouts, and the ends of connections. Memory and time for each client
are limited, so that an idle or abusive client does not affect others. `httpreaders` parses the received bytes.
"""

import asyncio
import contextlib
import logging
import time
from typing import Any, cast

from kopf._kits.testing.wire.httpexchanges import Dropped, Headers, Request, Response, Service, format_date, format_head
from kopf._kits.testing.wire.httpreaders import Reader

logger = logging.getLogger(__name__)

LINGERING_TIME = 1.0
"""
How long to continue reading from a client that was refused in the middle of its request (seconds).

If the connection were closed at once, the TCP reset could discard the response before the client reads it.
"""
_PIECE = 64 * 1024
"""The size of the parts of a response (bytes): the next part is sent when the client has read the previous one."""
_READ_AHEAD = 4
"""How many requests are read while another one is handled. Further requests stay in the buffers of the network."""


class Connection(asyncio.Protocol):
    """
    One connection of a client: its requests are answered one after another.

    Args:
        service: The handler and the limits.
        connections: The collection that contains this connection until it and the handling of its requests have ended.
    """

    def __init__(self, service: Service, connections: 'dict[Connection, None]') -> None:
        self._service = service
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._reader = Reader(self, service)
        self._transport: asyncio.Transport | None = None
        self.task: asyncio.Task[None] | None = None
        """The task that answers the requests, if there are any."""
        self.ended: asyncio.Future[None] = self._loop.create_future()
        """Done when the connection and the handling of its requests have ended."""
        self._drained: asyncio.Future[None] | None = None
        self._finishing = False  # the connection ends after the responses under way
        self._paused = False
        self._streaming: bytes | None = None  # the bytes that end the current stream, if any
        self._timed = 0  # the number of the request that the deadline belongs to
        self._deadline: float | None = None
        self._alarm: asyncio.TimerHandle | None = None

    # The handler calls these methods.

    def get_extra_info(self, name: str) -> Any:
        """Return the transport's information of that name."""
        return None if self._transport is None else self._transport.get_extra_info(name)

    def begin_stream(self, headers: Headers, *, chunked: bool) -> None:
        """
        Start a streaming response.

        Raises:
            ConnectionError: The connection is lost.
        """
        self._streaming = b'0\r\n\r\n' if chunked else b''
        ending = b'Transfer-Encoding: chunked\r\n\r\n' if chunked else b'Connection: close\r\n\r\n'
        self._write(format_head(200, tuple(headers)) + format_date(int(time.time())) + ending)

    async def write(self, data: bytes) -> None:
        """
        Send the next chunk; wait for the client's reads while the buffer is full.

        Raises:
            ConnectionError: The connection is lost.
        """
        if data:
            self._write(b'%x\r\n%b\r\n' % (len(data), data) if self._streaming else data)
            if self._drained is not None:
                await self._drained

    def abort(self) -> None:
        """Close the connection without sending the buffered data."""
        self._reader.stop()
        if self._transport is not None:
            self._transport.abort()

    def finish(self) -> None:
        """Close the connection after the responses under way have been sent."""
        self._finishing = True
        if self.task is None and not self._reader.partial:
            self._end()

    def _write(self, data: bytes | memoryview) -> None:
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("The client has disconnected.")
        self._transport.write(data)

    # The transport calls these methods.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Why not isinstance()? The transports of uvloop are not subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._connections[self] = None
        self._set_deadline(self._service.idle_timeout)

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if reader.deaf:
            return
        reader.feed(data)
        if self.task is None and reader.partial and self._timed != reader.number:
            self._time_request()
        self._go_on()

    def eof_received(self) -> bool:
        self._reader.deaf = True
        self._reader.abrupt = self._reader.partial = False
        if self.task is None or self._service.abandons or self.get_extra_info('sslcontext') is not None:
            return False  # TLS has no half-closed connections
        self._finishing = True
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._reader.stop()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self.resume_writing()
        if self.task is None:
            self._leave()
        elif self._service.abandons:
            self.task.cancel()

    def pause_writing(self) -> None:
        self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    # The responses.

    def _go_on(self) -> None:
        """Called after bytes were received or sent: start to answer, and pause or resume reading, as needed."""
        if self._transport is None:
            return
        reader = self._reader
        if reader.queue:
            if self.task is None:
                self._deadline = None  # no timeout while the client waits for our response
                self.task = self._loop.create_task(self._answer_all())
            elif len(reader.queue) >= _READ_AHEAD and not self._paused and not reader.deaf:
                self._paused = True
                self._transport.pause_reading()
        elif self.task is None:
            if self._paused:
                self._paused = False
                self._transport.resume_reading()
            if reader.awaited:
                reader.awaited = False
                self._write(b'HTTP/1.1 100 Continue\r\n\r\n')

    async def _answer_all(self) -> None:
        try:
            while self._reader.queue:
                if not await self._answer_next():
                    self._end()
                    return
            if self._reader.partial:
                self._time_request()
            else:
                self._set_deadline(self._service.idle_timeout)
        except (Dropped, ConnectionError, TimeoutError):
            self.abort()
        except BaseException:
            self.abort()
            raise
        finally:
            self.task = None
            if self._transport is None:
                self._leave()
        self._go_on()

    async def _answer_next(self) -> bool:
        """Answer the next request; return whether other requests can follow it."""
        request, keeps = self._reader.queue.popleft()
        response = request if isinstance(request, Response) else await self._handle(request)
        keeps = keeps and not (self._finishing and not self._reader.queue)
        if self._streaming is not None:
            keeps = self._end_stream() and keeps
        elif response is not None:
            await self._send(response, request if isinstance(request, Request) else None, keeps=keeps)
        return keeps

    async def _handle(self, request: Request) -> Response | None:
        try:
            return await self._service.handle(request)
        except (Dropped, ConnectionError):
            raise
        except Exception as error:
            logger.exception("The request %s %s has failed: %s", request.method, request.path, error)
            if self._streaming is not None:
                raise Dropped from error
            return self._service.refuse(500, "The server has failed.")

    def _end_stream(self) -> bool:
        end, self._streaming = self._streaming or b'', None
        if end:
            self._write(end)
        return bool(end)

    async def _send(self, response: Response, request: Request | None, *, keeps: bool) -> None:
        status, body, headers = response
        head = b'%b%bContent-Length: %d\r\n%b\r\n' % (
            format_head(status, tuple(headers)),
            format_date(int(time.time())),
            len(body),
            b'Connection: close\r\n'
            if not keeps
            else b'Connection: keep-alive\r\n'
            if request is not None and request.version == '1.0'
            else b'',
        )
        if request is not None and request.method == 'HEAD':
            body = b''
        self._write(head + body[:_PIECE])
        await self._drain()
        rest = memoryview(body)
        for start in range(_PIECE, len(body), _PIECE):
            self._write(rest[start : start + _PIECE])
            await self._drain()

    async def _drain(self) -> None:
        if self._drained is not None:
            async with asyncio.timeout(self._service.answer_timeout):
                await self._drained

    # The end.

    def _leave(self) -> None:
        self._connections.pop(self, None)
        if not self.ended.done():
            self.ended.set_result(None)
            self._reader.close()

    def _end(self) -> None:
        """Close the connection when all data are sent; a client that still sends gets time to read the response."""
        self._reader.deaf = True
        if self._transport is None or self._transport.is_closing():
            return
        if not self._reader.abrupt:
            self._transport.close()
            return
        if self._transport.can_write_eof():
            with contextlib.suppress(OSError):  # the client has just closed the connection
                self._transport.write_eof()
        self._set_deadline(LINGERING_TIME)

    def _time_request(self) -> None:
        self._timed = self._reader.number
        self._set_deadline(self._service.request_timeout)

    def _set_deadline(self, seconds: float | None) -> None:
        """Set or remove the time limit for the client's next step."""
        if seconds is None or self._transport is None:
            self._deadline = None
            return
        self._deadline = deadline = self._loop.time() + seconds
        # Why not always replace the timer? Deadlines change with every request. A timer that fires too early sets a new
        # one.
        if self._alarm is None or self._alarm.cancelled() or self._alarm.when() > deadline:
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm = self._loop.call_at(deadline, self._check_time)

    def _check_time(self) -> None:
        self._alarm = None
        if self._deadline is None or self._transport is None:
            return
        if self._loop.time() < self._deadline:
            self._alarm = self._loop.call_at(self._deadline, self._check_time)
        elif self._reader.partial and not self._reader.deaf:
            self._reader.refuse(408, f"The request has not come in within {self._service.request_timeout:g} seconds.")
            self._go_on()
        else:
            self._reader.abrupt = False
            self._end()
