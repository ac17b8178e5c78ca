"""HTTP as it comes over the wire, in any pieces, from servers that keep, close, break, and confuse connections."""
import asyncio

import pytest
from hypothesis import HealthCheck, given, settings, strategies

from kopf._cogs.clients.connections import Connection, ConnectionLost, Origin, Pool

OK = b'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok'
REQUEST = b'GET /x HTTP/1.1\r\nHost: h\r\n\r\n'


class RawServer:
    """Answers the requests of all connections with what is scripted: bytes to be sent one after another, or actions."""

    def __init__(self):
        self.scripts = []
        self.connections = []  # the numbers of requests in each
        self.received = []

    async def serve(self, reader, writer):
        self.connections.append(0)
        number = len(self.connections) - 1
        try:
            while True:
                self.received.append(await reader.readuntil(b'\r\n\r\n'))
                self.connections[number] += 1
                for step in self.scripts.pop(0) if self.scripts else [OK]:
                    if isinstance(step, bytes):
                        writer.write(step)
                        await writer.drain()
                        await asyncio.sleep(0)
                    elif await step(writer):
                        return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.close()


async def close(writer):
    writer.close()
    return True


async def reset(writer):
    writer.transport.abort()
    return True


@pytest.fixture
async def server():
    server = RawServer()
    async with await asyncio.start_server(server.serve, '127.0.0.1', 0) as listener:
        server.port = listener.sockets[0].getsockname()[1]
        yield server
        listener.close()
        if hasattr(listener, 'close_clients'):
            listener.close_clients()


@pytest.fixture
async def pool(server):
    pool = Pool(Origin('127.0.0.1', server.port, None, None), keepalive=30)
    yield pool
    pool.close()


def get(pool, *, repeatable=True):
    return pool.request(REQUEST, connect_timeout=5, repeatable=repeatable)


async def until(predicate):
    async with asyncio.timeout(5):
        while not predicate():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize('steps, body', [
    ([OK], b'ok'),
    ([b'HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n'], b''),
    ([b'HTTP/1.1 204 No Content\r\n\r\n'], b''),
    ([b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n', b'2;x=y\r\nde\r\n0\r\n\r\n'], b'abcde'),
    ([b'HTTP/1.1 100 Continue\r\n\r\n', OK], b'ok'),
    ([b'HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n' + OK], b'ok'),
])
async def test_connections_are_kept(server, pool, steps, body):
    server.scripts = [steps, steps]
    assert (await get(pool)).body == body
    assert (await get(pool)).body == body
    assert server.connections == [2]


@pytest.mark.parametrize('steps', [
    [b'HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok', close],
    [b'HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok', close],
    [b'HTTP/1.1 200 OK\r\n\r\no', b'k', close],  # the end of the body is the end of the connection
])
async def test_connections_are_not_kept_if_the_server_says_so(server, pool, steps):
    server.scripts = [steps, steps]
    assert (await get(pool)).body == b'ok'
    assert (await get(pool)).body == b'ok'
    assert server.connections == [1, 1]


async def test_status_and_headers(server, pool):
    server.scripts = [[b'HTTP/1.1 429 Too Many\r\nretry-after: 5\r\nX-ONE: 1\r\nContent-Length: 0\r\n\r\n']]
    response = await get(pool)
    assert response.status == 429
    assert response.as_mapping() == {'Retry-After': '5', 'X-One': '1', 'Content-Length': '0'}


@pytest.mark.parametrize('steps', [
    [b'HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok', close],
    [b'HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok', reset],
    [b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab', close],
    [b'HTTP/1.1 200 OK\r\nConte', close],
    [close],
    [b'220 mail.example.com ESMTP\r\n'],
    [b'HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n'],
])
async def test_broken_responses(server, pool, steps):
    server.scripts = [steps, steps]
    with pytest.raises(ConnectionError):
        await get(pool, repeatable=False)
    server.scripts = []
    assert (await get(pool)).body == b'ok'  # the next request is not affected


async def test_requests_are_repeated_if_old_connections_are_closed_meanwhile(server, pool):
    await get(pool)
    server.scripts = [[close]]
    assert (await get(pool)).body == b'ok'
    assert server.connections == [2, 1]


async def test_writes_are_not_repeated(server, pool):
    await get(pool)
    server.scripts = [[close]]
    with pytest.raises(ConnectionLost) as e:
        await get(pool, repeatable=False)
    assert e.value.early


async def test_requests_are_not_repeated_on_new_connections(server, pool):
    server.scripts = [[close], [close]]
    with pytest.raises(ConnectionLost):
        await get(pool)
    assert server.connections == [1]


async def test_unexpected_data_close_the_connection(server, pool):
    server.scripts = [[OK + b'HTTP/1.1 408 Request Timeout\r\n\r\n'], [OK]]
    assert (await get(pool)).body == b'ok'
    assert (await get(pool)).body == b'ok'
    assert server.connections == [1, 1]


HUGE = REQUEST.replace(b'\r\n\r\n', b'\r\nContent-Length: 20000000\r\n\r\n') + b'x' * 20_000_000


async def never(writer):
    await asyncio.sleep(60)


async def half_close(writer):
    writer.write_eof()
    await asyncio.sleep(60)


@pytest.mark.parametrize('steps', [
    [b'HTTP/1.1 413 Large\r\nContent-Length: 2\r\n\r\nno', never],
    [b'HTTP/1.1 413 Large\r\nConnection: close\r\n\r\nno', half_close],
])
async def test_requests_that_are_answered_before_they_are_read(server, pool, steps):
    server.scripts = [steps]
    async with asyncio.timeout(5):
        response = await pool.request(HUGE, connect_timeout=5, repeatable=False)
        assert (response.status, response.body) == (413, b'no')
        assert (await get(pool)).body == b'ok'
    assert server.connections == [1, 1]


async def test_old_connections_that_are_being_closed_are_not_used(server, pool):
    async def close_soon(writer):
        asyncio.get_running_loop().call_later(0.01, writer.close)

    server.scripts = [[OK, close_soon]]
    await get(pool)
    await asyncio.sleep(0.1)
    assert (await get(pool, repeatable=False)).body == b'ok'
    assert server.connections == [1, 1]


async def test_closed_pools_open_nothing(server, pool):
    await get(pool)
    _, stream = await pool.stream(REQUEST, connect_timeout=5, total_timeout=None)
    opening = asyncio.create_task(pool.stream(REQUEST, connect_timeout=5, total_timeout=None))
    await asyncio.sleep(0)
    pool.close()
    for wait in [get(pool), opening]:
        with pytest.raises(ConnectionError):
            await wait
    while await stream.read():  # what has come before
        pass


async def test_parallel_requests_have_connections_of_their_own(server, pool):
    responses = await asyncio.gather(*[get(pool) for _ in range(5)])
    assert [response.body for response in responses] == [b'ok'] * 5
    assert server.connections == [1] * 5
    for _ in range(5):
        await get(pool)
    assert sorted(server.connections) == [1, 1, 1, 1, 6]


async def test_unused_connections_expire(server):
    pool = Pool(Origin('127.0.0.1', server.port, None, None), keepalive=0.05)
    await get(pool)
    server.scripts = [[OK]]
    await until(lambda: not pool._idle)
    await get(pool)
    assert server.connections == [1, 1]
    pool.close()


async def test_cancelled_requests_break_their_connections(server, pool):
    server.scripts = [[b'HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\no']]
    task = asyncio.create_task(get(pool))
    await until(lambda: server.received)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await get(pool)).body == b'ok'
    assert server.connections == [1, 1]


async def test_hosts_by_name(server):
    pool = Pool(Origin('localhost', server.port, None, None), keepalive=30)  # which may also be ::1
    assert (await get(pool)).body == b'ok'
    pool.close()


async def test_time_outs_of_connecting(server):
    pool = Pool(Origin('192.0.2.1', 81, None, None), keepalive=30)  # nobody's address; either refused or silent
    with pytest.raises(OSError):
        await pool.request(REQUEST, connect_timeout=0.01, repeatable=True)


CHUNKED = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n'


async def read_all(stream):
    result = []
    while chunk := await stream.read():
        result.append(chunk)
    return b''.join(result)


async def test_streams(server, pool):
    server.scripts = [[CHUNKED, b'4\r\nabc\n\r\n', b'4\r\ndef\n\r\n', b'0\r\n\r\n']]
    response, stream = await pool.stream(REQUEST, connect_timeout=5, total_timeout=None)
    assert response.status == 200
    assert await read_all(stream) == b'abc\ndef\n'
    assert await stream.read() == b''
    stream.abort()


@pytest.mark.parametrize('steps', [
    [CHUNKED, b'4\r\nabc\n\r\n', b'4\r\nde', close],
    [CHUNKED, b'4\r\nabc\n\r\n', reset],
    [CHUNKED, b'4\r\nabc\n\r\n', b'what?\r\n'],
])
async def test_broken_streams_give_what_has_come_first(server, pool, steps):
    server.scripts = [steps]
    _, stream = await pool.stream(REQUEST, connect_timeout=5, total_timeout=None)
    data = b''
    with pytest.raises(ConnectionError):
        while True:
            data += await stream.read()
    assert data.startswith(b'abc\n')
    stream.abort()


async def test_streams_without_a_length_end_with_the_connection(server, pool):
    server.scripts = [[b'HTTP/1.1 200 OK\r\n\r\nabc\n', b'def', close]]
    _, stream = await pool.stream(REQUEST, connect_timeout=5, total_timeout=None)
    assert await read_all(stream) == b'abc\ndef'


async def test_reads_can_be_cancelled_and_lose_nothing(server, pool):
    go = asyncio.Event()

    async def wait(writer):
        await go.wait()

    server.scripts = [[CHUNKED, wait, b'4\r\nabc\n\r\n', b'0\r\n\r\n']]
    _, stream = await pool.stream(REQUEST, connect_timeout=5, total_timeout=None)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream.read(), 0.001)
    go.set()
    assert await read_all(stream) == b'abc\n'


async def test_streams_last_for_a_limited_time(server, pool):
    async def wait(writer):
        await asyncio.sleep(60)

    server.scripts = [[CHUNKED, b'4\r\nabc\n\r\n', wait]]
    _, stream = await pool.stream(REQUEST, connect_timeout=5, total_timeout=0.05)
    assert await stream.read() == b'abc\n'
    with pytest.raises(TimeoutError):
        await stream.read()


async def test_streams_are_not_read_far_ahead_of_their_consumer(server, pool):
    sent = []

    async def flood(writer):
        for number in range(2000):
            writer.write(b'8000\r\n' + b'x' * 0x8000 + b'\r\n')
            await writer.drain()
            sent.append(number)
        writer.write(b'0\r\n\r\n')

    server.scripts = [[CHUNKED, flood]]
    _, stream = await pool.stream(REQUEST, connect_timeout=5, total_timeout=None)
    count = -1
    while count != len(sent):  # until it stalls
        count = len(sent)
        await asyncio.sleep(0.1)
    assert count < 1000
    assert len(await read_all(stream)) == 2000 * 0x8000
    stream.abort()


class FakeTransport(asyncio.Transport):
    def write(self, data):
        pass

    def abort(self):
        pass

    def is_closing(self):
        return False

    def get_write_buffer_size(self):
        return 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    chunks=strategies.lists(strategies.binary(min_size=1), max_size=5),
    cuts=strategies.lists(strategies.integers(0, 400)),
)
async def test_the_network_may_cut_a_response_anywhere(chunks, cuts):
    data = CHUNKED + b''.join(b'%x\r\n%b\r\n' % (len(chunk), chunk) for chunk in chunks) + b'0\r\n\r\n'
    cuts = sorted({0, *(cut for cut in cuts if cut < len(data)), len(data)})
    pieces = [data[start:end] for start, end in zip(cuts, cuts[1:], strict=False)]
    connection = Connection()
    connection.connection_made(FakeTransport())
    request = asyncio.create_task(connection.request(REQUEST))
    await asyncio.sleep(0)
    for piece in pieces:
        connection.data_received(piece)
    assert (await request).body == b''.join(chunks)
    assert connection.reusable
