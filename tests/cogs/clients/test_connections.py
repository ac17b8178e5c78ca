"""HTTP as it comes over the wire, in any pieces, from servers that keep, close, break, and confuse connections."""

import asyncio
import sys

import pytest
from hypothesis import HealthCheck, given, settings, strategies
from rawhttp import OK, REQUEST, close, get, until

from kopf._cogs.clients import connections, errors, sessions
from kopf._cogs.clients.connections import Connection


async def reset(writer):
    writer.transport.abort()
    return True


@pytest.mark.parametrize(
    'steps, body',
    [
        ([OK], b'ok'),
        ([b'HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n'], b''),
        ([b'HTTP/1.1 204 No Content\r\n\r\n'], b''),
        ([b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n', b'2;x=y\r\nde\r\n0\r\n\r\n'], b'abcde'),
        ([b'HTTP/1.1 100 Continue\r\n\r\n', OK], b'ok'),
        ([b'HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n' + OK], b'ok'),
    ],
)
async def test_connections_are_kept(raw_server, pool, steps, body):
    raw_server.scripts = [steps, steps]
    assert (await get(pool)).body == body
    assert (await get(pool)).body == body
    assert raw_server.connections == [2]


@pytest.mark.parametrize(
    'steps',
    [
        [b'HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok', close],
        [b'HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok', close],
        [b'HTTP/1.1 200 OK\r\n\r\no', b'k', close],  # the end of the body is the end of the connection
    ],
)
async def test_connections_are_not_kept_if_the_server_says_so(raw_server, pool, steps):
    raw_server.scripts = [steps, steps]
    assert (await get(pool)).body == b'ok'
    assert (await get(pool)).body == b'ok'
    assert raw_server.connections == [1, 1]


async def test_responses_have_a_status_and_headers(raw_server, pool):
    raw_server.scripts = [[b'HTTP/1.1 429 Too Many\r\nretry-after: 5\r\nX-ONE: 1\r\nContent-Length: 0\r\n\r\n']]
    response = await get(pool)
    assert response.status == 429
    assert response.as_mapping() == {'Retry-After': '5', 'X-One': '1', 'Content-Length': '0'}


@pytest.mark.parametrize(
    'steps',
    [
        [b'HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok', close],
        [b'HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok', reset],
        [b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab', close],
        [b'HTTP/1.1 200 OK\r\nConte', close],
        [close],
        [b'220 mail.example.com ESMTP\r\n'],
        [b'HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n'],
    ],
)
async def test_broken_responses_do_not_affect_the_next_request(raw_server, pool, steps):
    raw_server.scripts = [steps, steps]
    with pytest.raises(ConnectionError):
        await get(pool, repeatable=False)
    raw_server.scripts = []
    assert (await get(pool)).body == b'ok'  # the next request is not affected


async def test_unexpected_data_close_the_connection(raw_server, pool):
    raw_server.scripts = [[OK + b'HTTP/1.1 408 Request Timeout\r\n\r\n'], [OK]]
    assert (await get(pool)).body == b'ok'
    assert (await get(pool)).body == b'ok'
    assert raw_server.connections == [1, 1]


HUGE = REQUEST.replace(b'\r\n\r\n', b'\r\nContent-Length: 20000000\r\n\r\n') + b'x' * 20_000_000


async def never(writer):
    await asyncio.sleep(60)


async def half_close(writer):
    writer.write_eof()
    await asyncio.sleep(60)


@pytest.mark.parametrize(
    'steps',
    [
        [b'HTTP/1.1 413 Large\r\nContent-Length: 2\r\n\r\nno', never],
        [b'HTTP/1.1 413 Large\r\nConnection: close\r\n\r\nno', half_close],
    ],
)
async def test_requests_can_be_answered_before_they_are_read(raw_server, pool, steps):
    raw_server.scripts = [steps]
    async with asyncio.timeout(60):
        response = await pool.request(HUGE, connect_timeout=5, repeatable=False)
        assert (response.status, response.body) == (413, b'no')
        assert (await get(pool)).body == b'ok'
    assert raw_server.connections == [1, 1]


async def test_cancelled_requests_break_their_connections(raw_server, pool):
    raw_server.scripts = [[b'HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\no']]
    task = asyncio.create_task(get(pool))
    await until(lambda: raw_server.received)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await get(pool)).body == b'ok'
    assert raw_server.connections == [1, 1]


CHUNKED = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n'


async def read_all(stream):
    result = []
    while chunk := await stream.read():
        result.append(chunk)
    return b''.join(result)


async def test_streams_are_read_to_their_end(raw_server, pool):
    raw_server.scripts = [[CHUNKED, b'4\r\nabc\n\r\n', b'4\r\ndef\n\r\n', b'0\r\n\r\n']]
    response, stream = await pool.stream(REQUEST, connect_timeout=5, total_timeout=None)
    assert response.status == 200
    assert await read_all(stream) == b'abc\ndef\n'
    assert await stream.read() == b''
    stream.abort()


@pytest.mark.parametrize(
    'steps',
    [
        [CHUNKED, b'4\r\nabc\n\r\n', b'4\r\nde', close],
        [CHUNKED, b'4\r\nabc\n\r\n', reset],
        [CHUNKED, b'4\r\nabc\n\r\n', b'what?\r\n'],
    ],
)
async def test_broken_streams_give_what_has_come_first(raw_server, pool, steps):
    raw_server.scripts = [steps]
    _, stream = await pool.stream(REQUEST, connect_timeout=5, total_timeout=None)
    data = b''
    with pytest.raises(ConnectionError):
        while True:
            data += await stream.read()
    assert data.startswith(b'abc\n')
    stream.abort()


async def test_streams_without_a_length_end_with_the_connection(raw_server, pool):
    raw_server.scripts = [[b'HTTP/1.1 200 OK\r\n\r\nabc\n', b'def', close]]
    _, stream = await pool.stream(REQUEST, connect_timeout=5, total_timeout=None)
    assert await read_all(stream) == b'abc\ndef'


async def test_reads_can_be_cancelled_and_lose_nothing(raw_server, pool):
    go = asyncio.Event()

    async def wait(writer):
        await go.wait()

    raw_server.scripts = [[CHUNKED, wait, b'4\r\nabc\n\r\n', b'0\r\n\r\n']]
    _, stream = await pool.stream(REQUEST, connect_timeout=5, total_timeout=None)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream.read(), 0.001)
    go.set()
    assert await read_all(stream) == b'abc\n'


@pytest.mark.skipif(sys.platform != 'linux', reason="other systems need not obey the socket's option")
async def test_a_held_stream_receives_nothing_until_it_is_released(raw_server, pool, monkeypatch):
    go, sent, received = asyncio.Event(), asyncio.Event(), []

    async def wait(writer):
        await go.wait()

    async def tell(writer):
        await writer.drain()
        sent.set()

    raw_server.scripts = [[CHUNKED, b'4\r\nabc\n\r\n', wait, b'4\r\ndef\n\r\n', tell, b'0\r\n\r\n']]
    _, stream = await pool.stream(REQUEST, connect_timeout=5, total_timeout=None)
    assert await stream.read() == b'abc\n'
    receive = Connection.data_received
    monkeypatch.setattr(Connection, 'data_received', lambda *args: received.append(args) or receive(*args))
    stream.hold(True)
    go.set()
    await sent.wait()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not received
    stream.hold(False)
    assert await read_all(stream) == b'def\n'


async def test_a_stream_is_not_held_after_a_cancelled_rest(raw_server, pool):
    go = asyncio.Event()

    async def wait(writer):
        await writer.drain()
        await go.wait()

    raw_server.scripts = [[CHUNKED, b'4\r\nabc\n\r\n', wait, b'4\r\ndef\n\r\n', wait]]
    _, stream = await pool.stream(REQUEST, connect_timeout=5, total_timeout=None)
    assert await stream.read() == b'abc\n'
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await sessions.Lines(stream).rest(60)
    go.set()
    async with asyncio.timeout(60):
        assert await stream.read() == b'def\n'
    stream.abort()
    stream.hold(True)  # the connection is lost
    stream.hold(False)


async def test_streams_last_for_a_limited_time(raw_server, pool):
    async def wait(writer):
        await asyncio.sleep(60)

    raw_server.scripts = [[CHUNKED, b'4\r\nabc\n\r\n', wait]]
    _, stream = await pool.stream(REQUEST, connect_timeout=5, total_timeout=0.05)
    assert await stream.read() == b'abc\n'
    with pytest.raises(TimeoutError):
        await stream.read()


async def test_streams_are_not_read_far_ahead_of_their_consumer(raw_server, pool):
    sent = []

    async def flood(writer):
        for number in range(2000):
            writer.write(b'8000\r\n' + b'x' * 0x8000 + b'\r\n')
            await writer.drain()
            sent.append(number)
        writer.write(b'0\r\n\r\n')

    raw_server.scripts = [[CHUNKED, flood]]
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


def endless(piece, *, before=b''):
    """Send the head, and then the same again and again, until the client breaks off."""

    async def send(writer):
        writer.write(before)
        while not writer.transport.is_closing():
            writer.write(piece)
            try:
                await writer.drain()
            except ConnectionError:
                return

    return send


ENDLESS = {
    'spaces': endless(b' ' * 4096, before=b'HTTP/1.1 200 '),
    'reason': endless(b'x' * 4096, before=b'HTTP/1.1 200 OK'),
    'headers': endless(b''.join(b'X-%d: x\r\n' % number for number in range(500)), before=b'HTTP/1.1 200 OK\r\n'),
    'name of a header': endless(b'x' * 4096, before=b'HTTP/1.1 200 OK\r\n'),
    'value of a header': endless(b'x' * 4096, before=b'HTTP/1.1 200 OK\r\nX: '),
    'interim responses': endless(b'HTTP/1.1 103 Early Hints\r\nX: y\r\n\r\n' * 100),
    'size of a chunk': endless(b'0' * 4096, before=CHUNKED),
    'extension of a chunk': endless(b'x' * 4096, before=CHUNKED + b'5;x='),
    'trailers': endless(b'X: y\r\n' * 500, before=CHUNKED + b'2\r\nok\r\n0\r\n'),
}


@pytest.mark.parametrize('streaming', [False, True])
@pytest.mark.parametrize('manner', ENDLESS)
async def test_responses_without_an_end_are_refused(raw_server, pool, monkeypatch, manner, streaming):
    monkeypatch.setattr(connections, '_MAX_RESPONSE', 2**20)
    raw_server.scripts = [[ENDLESS[manner]]]
    async with asyncio.timeout(60):
        with pytest.raises(ConnectionError, match='refused|not HTTP'):
            if not streaming:
                await get(pool)
            else:
                _, stream = await pool.stream(REQUEST, connect_timeout=5, total_timeout=None)
                await read_all(stream)
        assert (await get(pool)).body == b'ok'  # the next request is not affected


@pytest.mark.parametrize(
    'head', [b'HTTP/1.1 200 OK\r\nContent-Length: 9999999999\r\n\r\n', b'HTTP/1.1 200 OK\r\n\r\n', CHUNKED]
)
async def test_bodies_without_an_end_are_refused(raw_server, pool, monkeypatch, head):
    monkeypatch.setattr(connections, '_MAX_RESPONSE', 2**20)
    piece = b'1000\r\n' + b'x' * 4096 + b'\r\n' if head is CHUNKED else b'x' * 4096
    raw_server.scripts = [[endless(piece, before=head)]]
    async with asyncio.timeout(60):
        with pytest.raises(ConnectionError, match='larger than 1048576 bytes'):
            await get(pool)


FRAGMENTS = strategies.sampled_from(
    [
        b'HTTP/1.1 200 OK\r\n',
        b'HTTP/1.0 200 OK\r\n',
        b'HTTP/1.1 101 Switching\r\n',
        b'HTTP/1.1 204 No Content\r\n\r\n',
        b'HTTP/1.1 100 Continue\r\n\r\n',
        b'HTTP/2 200\r\n',
        OK,
        CHUNKED,
        b'Content-Length: 5\r\n',
        b'Content-Length: 18446744073709551616\r\n',
        b'Content-Length: 3, 3\r\n',
        b'Transfer-Encoding: chunked\r\n',
        b'Transfer-Encoding: gzip, chunked\r\n',
        b'Connection: close\r\n',
        b'Connection: upgrade\r\nUpgrade: x\r\n',
        b'\r\n',
        b'\n',
        b'\r',
        b' x: y\r\n',
        b'x:\x00\r\n',
        b'5\r\nhello\r\n',
        b'0\r\n\r\n',
        b'ffffffffffffffffff\r\n',
        b'-1\r\n',
        b'5;a=b\r\n',
        b'hello',
        b'\x16\x03\x01',
        b'\xff\xfe',
    ]
) | strategies.binary(max_size=20)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=6 * settings.default.max_examples)
@given(
    pieces=strategies.lists(FRAGMENTS, min_size=1, max_size=12),
    glued=strategies.booleans(),
    lost=strategies.booleans(),
    streaming=strategies.booleans(),
)
async def test_whatever_a_server_sends_is_a_response_or_an_error(pieces, glued, lost, streaming):
    connection = Connection()
    connection.connection_made(FakeTransport())
    use = read_stream(connection) if streaming else connection.request(REQUEST)
    task = asyncio.create_task(use)
    await asyncio.sleep(0)
    for piece in [b''.join(pieces)] if glued else pieces:
        connection.data_received(piece)
        await asyncio.sleep(0)
    if lost:
        connection.connection_lost(ConnectionResetError("lost"))
    else:
        connection.eof_received()
    async with asyncio.timeout(5):
        try:
            await task
        except ConnectionError as error:
            assert str(error)
    assert not connection.reusable


async def read_stream(connection):
    await connection.stream(REQUEST, timeout=None)
    return await read_all(connection)


async def test_streams_that_are_cut_are_errors_and_no_ends(raw_server, pool):
    raw_server.scripts = [[CHUNKED + b'4\r\nabc\n\r\n', reset]]
    _, stream = await pool.stream(REQUEST, connect_timeout=5, total_timeout=None)
    with pytest.raises(ConnectionError):
        await read_all(stream)


async def test_lines_without_an_end_are_refused(monkeypatch):
    class Endless:
        aborted = False

        async def read(self):
            return b'x' * 4096

        def abort(self):
            self.aborted = True

    monkeypatch.setattr(sessions, '_MAX_LINE', 2**16)
    stream = Endless()
    with pytest.raises(errors.APIConnectionError, match='a line is longer than 65536 bytes'):
        await anext(sessions.Lines(stream))
    assert stream.aborted
