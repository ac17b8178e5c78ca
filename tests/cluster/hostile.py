"""
A server between operators and the API, which speaks HTTP as badly as real servers and proxies do.

It passes on what it is asked, by plain HTTP, and lets the rules of the tests spoil the answers to some of the requests.
"""

import asyncio
import contextlib
import dataclasses
import re
import ssl
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from kopf._cogs.clients import connection_pools, connections


@dataclasses.dataclass
class Exchange:
    """One request, its real answer, and where to write to whatever comes of it."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    writer: asyncio.StreamWriter
    answer: connections.Response | None = None
    stream: connections.Connection | None = None
    closing: bool = False
    """Whether the connection is closed after it."""

    @property
    def status_line(self) -> bytes:
        assert self.answer is not None
        return b'%d Whatever' % self.answer.status

    async def chunks(self) -> AsyncIterator[bytes]:
        assert self.answer is not None
        if self.stream is None:
            yield self.answer.body
        else:
            while chunk := await self.stream.read():
                yield chunk

    async def read(self) -> bytes:
        """Get the whole answer, or the beginning of a stream."""
        return await anext(self.chunks())

    async def send(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()

    async def send_all(self, body: bytes, *headers: bytes, status: bytes | None = None) -> None:
        lines = [
            b'HTTP/1.1 ' + (status or self.status_line),
            b'Content-Type: application/json',
            b'Content-Length: %d' % len(body),
            *headers,
            b'',
            body,
        ]
        await self.send(b'\r\n'.join(lines))

    def reset(self) -> None:
        """Break off the connection by a reset, not in the usual way."""
        self.closing = True
        sock = self.writer.get_extra_info('socket')
        sock.setsockopt(1, 13, struct.pack('ii', 1, 0))  # SOL_SOCKET, SO_LINGER
        self.writer.transport.abort()


Spoil = Callable[[Exchange], Awaitable[None]]


@dataclasses.dataclass
class Rule:
    """What to do with the answers to those requests, and how many times."""

    spoil: Spoil
    method: str
    pattern: str
    times: int | None
    executed: bool

    def matches(self, exchange: Exchange) -> bool:
        return exchange.method == self.method and re.search(self.pattern, exchange.target) is not None


class HostileServer:
    """The server; use `open`."""

    def __init__(self, url: str, ca: bytes) -> None:
        parts, host, port = connection_pools.split_url(url)
        context = ssl.create_default_context(cadata=ca.decode())
        self._pool = connection_pools.Pool(connection_pools.Origin(host, port, context, host), keepalive=60)
        self._netloc = parts.netloc
        self._rules: list[Rule] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.spoilt = 0
        """How many answers were spoilt by now."""
        self.seen: list[tuple[float, str, str]] = []
        """The time, the method and the target of each request."""
        self.url = ''

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, url: str, ca: bytes) -> 'AsyncIterator[HostileServer]':
        self = cls(url, ca)
        server = await asyncio.start_server(self._serve, '127.0.0.1', 0)
        self.url = f'http://127.0.0.1:{server.sockets[0].getsockname()[1]}'
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._pool.close()
            for _ in range(3):
                await asyncio.sleep(0)  # the transports end in the next iterations of the loop

    def spoil(
        self, fn: Spoil, method: str = 'GET', pattern: str = '', *, times: int | None = 1, executed: bool = True
    ) -> None:
        """Let the answers be written by this function instead, to requests that are executed, or are not."""
        self._rules.append(Rule(fn, method, pattern, times, executed))

    def clear(self) -> None:
        self._rules.clear()

    def drop(self) -> None:
        """Break off all connections, open streams included."""
        for task in self._tasks:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._exchange(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b'\r\n\r\n')).decode('latin-1')
        first, *lines = head.rstrip('\r\n').split('\r\n')
        method, target, _ = first.split(' ')
        headers = dict(line.split(': ', 1) for line in lines)
        body = await reader.readexactly(int(headers.get('Content-Length', 0)))
        exchange = Exchange(method, target, headers, body, writer)
        self.seen.append((time.monotonic(), method, target))
        try:
            rule = next((rule for rule in self._rules if rule.matches(exchange)), None)
            if rule is None or rule.executed:
                await self._ask(exchange)
            if rule is None:
                await self._pass_on(exchange)
            else:
                self.spoilt += 1
                if rule.times is not None:
                    rule.times -= 1
                    if not rule.times:
                        self._rules.remove(rule)
                await rule.spoil(exchange)
        finally:
            if exchange.stream is not None:
                exchange.stream.abort()
        return not exchange.closing

    async def _ask(self, exchange: Exchange) -> None:
        lines = [
            f'{exchange.method} {exchange.target} HTTP/1.1',
            *(f'{name}: {value}' for name, value in (exchange.headers | {'Host': self._netloc}).items()),
        ]
        data = '\r\n'.join([*lines, '', '']).encode('latin-1') + exchange.body
        if 'watch=true' in exchange.target:
            exchange.answer, exchange.stream = await self._pool.stream(data, connect_timeout=5, total_timeout=None)
        else:
            exchange.answer = await self._pool.request(data, connect_timeout=5, repeatable=True)

    async def _pass_on(self, exchange: Exchange) -> None:
        if exchange.stream is None:
            await exchange.send_all(await exchange.read())
            return
        await exchange.send(b'HTTP/1.1 ' + exchange.status_line + b'\r\nTransfer-Encoding: chunked\r\n\r\n')
        async for chunk in exchange.chunks():
            await exchange.send(b'%x\r\n%s\r\n' % (len(chunk), chunk))
        await exchange.send(b'0\r\n\r\n')
