"""
The network in memory: sessions of operators with the server of the sandbox, with latencies, lags, and outages.

Requests are handled by the server's own code, from its dispatch to its faults; only HTTP and TLS are left out.
"""

import asyncio
import collections
import contextvars
import dataclasses
import random

from kopf._cogs.clients import errors, sessions
from kopf._kits.testing.wire.httpexchanges import Dropped, Request
from tests.faults.simulation import processes
from tests.faults.simulation.virtualtime import Numbered


@dataclasses.dataclass
class Network:
    """How fast the network is, and whether it works at all."""

    server: object
    rng: random.Random
    slowness: float
    """By how much everything takes longer than in a good network."""
    lagging: float
    """The share of the lines of streams that come late."""
    down_until: float = 0.0

    def draw_latency(self):
        return self.rng.choice([0.0001, 0.0005, 0.002, 0.01]) * self.slowness

    def draw_lag(self):
        late = self.rng.random() <= self.lagging
        return self.rng.choice([0.05, 0.2, 1.0, 3.0]) if late else self.draw_latency()

    def check(self):
        if asyncio.get_running_loop().time() < self.down_until:
            raise ConnectionRefusedError('the network is down')

    def take_over(self):
        """Let all operators from now on use this network."""
        sessions.open_session = lambda key, info: _Session(key, info, self)


class _Request(Request):
    """A request that has not come over HTTP."""

    __slots__ = ('pipe',)

    def __init__(self, method, query, payload, token, extra, pipe=None):
        accept, content_type = extra
        fields = [
            (b'Authorization', f'Bearer {token}'.encode()),
            (b'Accept', (accept or 'application/json').encode()),
            (b'User-Agent', b'simulation'),
        ]
        if content_type:
            fields.append((b'Content-Type', content_type.encode()))
        super().__init__(None, method, '1.1', query.encode(), fields)
        self.body = payload or b''
        self.pipe = pipe

    @property
    def certificate(self):
        return None

    def stream(self, headers):
        self.pipe.begin()
        return self.pipe


class _Pipe(Numbered):
    """The way of a stream from the server to the client: lines can lag, but keep their order."""

    def __init__(self, network):
        super().__init__()
        self._network = network
        self._lines = collections.deque()
        self._waiter = None
        self._last = 0.0
        self._end = None  # a tuple with the error, or with None if it has ended in order
        self.begun = asyncio.get_running_loop().create_future()
        self.serving = None
        self._closed = False

    def begin(self):
        if not self.begun.done():
            self.begun.set_result(None)

    async def write(self, data):
        if self._closed:
            raise ConnectionResetError
        if data:
            now = asyncio.get_running_loop().time()
            self._last = max(self._last, now + self._network.draw_lag())
            self._lines.append((self._last, data))
            self._wake()

    def abort(self):
        """Called by the server to break off the stream."""
        self.finish(ConnectionResetError('reset'))
        self.close()

    def close(self):
        self._closed = True
        if self.serving is not None:
            self.serving.cancel()

    def finish(self, error):
        if self._end is None:
            self._end = (error,)
        self.begin()
        self._wake()

    def check(self):
        if self._end is not None and self._end[0] is not None:
            raise self._end[0]

    async def read(self):
        while True:
            self.check()  # what is on its way is lost with the connection
            if self._lines:
                due, data = self._lines[0]
                if (delay := due - asyncio.get_running_loop().time()) > 0:
                    await asyncio.sleep(delay)
                    continue
                self._lines.popleft()
                return data
            if self._end is not None:
                return b''
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def _wake(self):
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _Stream:
    """The client's end of a stream."""

    def __init__(self, pipe, process, limit):
        self._pipe, self._process = pipe, process
        self._deadline = None if limit is None else asyncio.get_running_loop().time() + limit

    async def read(self):
        async with asyncio.timeout_at(self._deadline):
            data = await self._pipe.read()
        await self._process.alive()
        return data

    def hold(self, holding):
        pass  # the lines wait in the pipe

    def abort(self):
        self._pipe.close()


class _Session(sessions.Session):
    def __init__(self, key, info, network):
        super().__init__(key, info)
        self._network = network
        self._process = processes.current.get()

    async def close(self):
        pass

    async def request(self, request, timeouts):
        try:
            async with asyncio.timeout(timeouts.answering):
                response = await self._exchange(request)
        except OSError as error:
            raise sessions.make_error(error) from error
        if response.status >= 300:
            raise _refuse(response)
        return response.body

    async def open(self, request, timeouts):
        try:
            async with asyncio.timeout(timeouts.answering):
                return await self._open(request, timeouts)
        except OSError as error:
            raise sessions.make_error(error) from error

    async def _exchange(self, request):
        await self._process.send(request)
        await asyncio.sleep(self._network.draw_latency())
        await self._process.alive()
        self._network.check()
        sent = _Request(request.method, request.query, request.payload, self.info.token, request.headers)
        handling = _start(self._network.server._handle(sent))
        try:
            response = await asyncio.shield(handling)
        except Dropped:
            raise ConnectionResetError('dropped') from None
        except asyncio.CancelledError:
            # The server notices the broken connection, or it does not.
            if self._network.rng.random() < 0.5:
                handling.cancel()
            handling.add_done_callback(lambda task: task.cancelled() or task.exception())
            raise
        await self._process.take(request, response)
        await asyncio.sleep(self._network.draw_latency())
        await self._process.alive()
        return response

    async def _open(self, request, timeouts):
        await self._process.alive()
        await asyncio.sleep(self._network.draw_latency())
        self._network.check()
        pipe, refusals = _Pipe(self._network), []
        sent = _Request('GET', request.query, None, self.info.token, request.headers, pipe)
        pipe.serving = _start(_serve(self._network.server, sent, pipe, refusals))
        try:
            await pipe.begun
            await asyncio.sleep(self._network.draw_latency())
        except asyncio.CancelledError:
            pipe.close()
            raise
        if refusals:
            raise _refuse(refusals[0])
        pipe.check()
        return _Stream(pipe, self._process, timeouts.streaming)


async def _serve(server, request, pipe, refusals):
    try:
        response = await server._handle(request)
        if response is not None:
            refusals.append(response)
        pipe.finish(None)
    except (Dropped, ConnectionError) as error:
        pipe.finish(ConnectionResetError(f'dropped: {error}'))
    except asyncio.CancelledError:
        pipe.finish(ConnectionResetError('closed'))
        raise


def _start(work):
    """Start a task of the server: it belongs to no process."""
    return asyncio.get_running_loop().create_task(work, context=contextvars.Context())


def _refuse(response):
    return errors.build_error(response.status, dict(response.headers), response.body)
