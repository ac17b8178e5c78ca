"""
The server's side of HTTP/1.1 on one connection.

Here are the order of answers, the limits of time, and the ways in which connections end: nobody who is served waits
forever, nobody who is not can take memory or time from the others. What comes in is read by `httpreaders`.
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
"""How long to hear out those who are refused in the middle of a request, so that they see the answer (in seconds)."""
_PIECE = 64 * 1024
"""How much of an answer is sent at once: the rest waits for its reader (in bytes)."""
_READ_AHEAD = 4
"""How many requests are taken in while another one is answered. More of them are left to the buffers of the network."""


class Connection(asyncio.Protocol):
    """
    One connection of a client: the requests are answered one after another.

    :param service: what is served.
    :param connections: where it is kept until the connection has ended, and the handling of its requests too.
    """

    def __init__(self, service: Service, connections: 'set[Connection]') -> None:
        self._service = service
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._reader = Reader(self, service)
        self._transport: asyncio.Transport | None = None
        self.task: asyncio.Task[None] | None = None
        """Answers the requests, if there are any."""
        self.ended: asyncio.Future[None] = self._loop.create_future()
        """Tells when the connection has ended, and the handling of its requests too."""
        self._drained: asyncio.Future[None] | None = None
        self._finishing = False  # the connection ends with the answers under way
        self._paused = False
        self._streaming: bytes | None = None  # how the stream ends, if there is one
        self._timed = 0  # the number of the request that the deadline is for
        self._deadline: float | None = None
        self._alarm: asyncio.TimerHandle | None = None

    # For the handler.

    def get_extra_info(self, name: str) -> Any:
        """What the transport knows."""
        return None if self._transport is None else self._transport.get_extra_info(name)

    def begin_stream(self, headers: Headers, *, chunked: bool) -> None:
        """Begin an endless answer; ConnectionError if the connection is lost."""
        self._streaming = b'0\r\n\r\n' if chunked else b''
        ending = b'Transfer-Encoding: chunked\r\n\r\n' if chunked else b'Connection: close\r\n\r\n'
        self._write(format_head(200, tuple(headers)) + format_date(int(time.time())) + ending)

    async def write(self, data: bytes) -> None:
        """Send the next chunk, when there is room for it; ConnectionError if the connection is lost."""
        if data:
            self._write(b'%x\r\n%b\r\n' % (len(data), data) if self._streaming else data)
            if self._drained is not None:
                await self._drained

    def abort(self) -> None:
        """Break off."""
        self._reader.stop()
        if self._transport is not None:
            self._transport.abort()

    def finish(self) -> None:
        """Let the answers under way be given, and end."""
        self._finishing = True
        if self.task is None and not self._reader.partial:
            self._end()

    def _write(self, data: bytes | memoryview) -> None:
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("The client has gone.")
        self._transport.write(data)

    # For the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # in fact, uvloop's are not its subclasses
        self._connections.add(self)
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

    # Answering.

    def _go_on(self) -> None:
        """Do what there is to do after something has come in or gone out."""
        if self._transport is None:
            return
        reader = self._reader
        if reader.queue:
            if self.task is None:
                self._deadline = None  # those who wait for an answer have all the time
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
        """Answer the next request, tell if others can follow."""
        request, keeps = self._reader.queue.popleft()
        response = request if isinstance(request, Response) else await self._ask(request)
        keeps = keeps and not (self._finishing and not self._reader.queue)
        if self._streaming is not None:
            keeps = self._end_stream() and keeps
        elif response is not None:
            await self._send(response, request if isinstance(request, Request) else None, keeps=keeps)
        return keeps

    async def _ask(self, request: Request) -> Response | None:
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
        self._connections.discard(self)
        if not self.ended.done():
            self.ended.set_result(None)
            self._reader.close()

    def _end(self) -> None:
        """Close when all is sent; but not before those who still send have had the time to see why."""
        self._reader.deaf = True
        if self._transport is None or self._transport.is_closing():
            return
        if not self._reader.abrupt:
            self._transport.close()
            return
        if self._transport.can_write_eof():
            with contextlib.suppress(OSError):  # the client has gone in this very moment
                self._transport.write_eof()
        self._set_deadline(LINGERING_TIME)

    def _time_request(self) -> None:
        self._timed = self._reader.number
        self._set_deadline(self._service.request_timeout)

    def _set_deadline(self, seconds: float | None) -> None:
        """Let the client do its next step within this time."""
        if seconds is None or self._transport is None:
            self._deadline = None
            return
        self._deadline = deadline = self._loop.time() + seconds
        # Deadlines change with each request, alarms do not: those that ring too early are set anew.
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
