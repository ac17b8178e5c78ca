"""HTTP over one connection: requests in pieces, pipelined, too slow, too large, or malformed."""

import asyncio
import logging

import pytest
from hypothesis import HealthCheck, given, settings, strategies

from kopf._kits.testing.wire import httpconnections
from kopf._kits.testing.wire.httpexchanges import Dropped, Response

GET = b'GET %b HTTP/1.1\r\nHost: x\r\n\r\n'
POST = b'POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b'


def get(path=b'/x'):
    return GET % path


def post(path=b'/x', body=b'body'):
    return POST % (path, len(body), body)


async def until(predicate):
    async with asyncio.timeout(60):
        while not predicate():
            await asyncio.sleep(0.001)


# Requests and answers.


async def test_requests_one_after_another(client, app):
    for number in range(3):
        status, headers, body = await client.ask(post(b'/%d' % number, b'body'))
        assert (status, body) == (200, b'/%d body' % number)
        assert headers['x-own'] == 'yes'
        assert headers['date'].endswith(' gmt')
        assert 'connection' not in headers
    assert [request.method for request in app.requests] == ['POST'] * 3


async def test_requests_at_once_are_answered_in_their_order(client, app):
    app.gates['/0'] = asyncio.Event()
    client.send(b''.join(post(b'/%d' % number) for number in range(1000)))
    await app.began.wait()
    await asyncio.sleep(0.01)
    assert len(app.requests) == 1
    app.gates['/0'].set()
    assert [(await client.read())[2] for _ in range(1000)] == [b'/%d body' % number for number in range(1000)]
    assert (await client.ask(post(b'/after')))[2] == b'/after body'


async def test_many_large_requests_at_once_are_not_read_ahead(serve, connect, app, secure):
    port, _ = await serve(secure=secure, get_max_body=lambda path: 1_000_000)
    client = await connect(port, secure=secure)
    app.gates['/0'] = asyncio.Event()

    async def feed():
        for number in range(20):
            client.send(post(b'/%d' % number, b'x' * 1_000_000))
            await client.writer.drain()

    feeding = asyncio.create_task(feed())
    await app.began.wait()
    done, _ = await asyncio.wait([feeding], timeout=0.3)
    assert not done
    app.gates['/0'].set()
    for number in range(20):
        assert (await client.read())[2].startswith(b'/%d x' % number)
    await feeding


async def test_headers_are_read_in_any_case(client, app):
    await client.ask(
        b'GET /x?a=1&b=%20&a=2&c= HTTP/1.1\r\nHost: x\r\nX-One: 1\r\nX-Two: \xc3\xa4\r\nx-one: 2\r\n'
        b'Content-Type: Application/JSON; charset=utf-8\r\n\r\n'
    )
    (request,) = app.requests
    assert request.headers['x-one'] == '1\n2'
    assert request.get_header(b'x-two') == request.headers['x-two'] == 'ä'
    assert request.get_header(b'x-six') == ''
    assert request.get_sent_headers() == {
        'Host': 'x',
        'X-One': '1',
        'X-Two': 'ä',
        'x-one': '2',
        'Content-Type': 'Application/JSON; charset=utf-8',
    }
    assert request.content_type == 'application/json'
    assert request.query_string == 'a=1&b=%20&a=2&c='
    assert request.query == {'a': '1', 'b': ' ', 'c': ''}
    assert request.version == '1.1'
    assert request.certificate is None


@pytest.mark.parametrize(
    'url, path, query',
    [
        (b'/', '/', ''),
        (b'/a%2Fb%20c?d%20e', '/a/b c', 'd%20e'),
        (b'/%ff', '/\N{REPLACEMENT CHARACTER}', ''),
        (b'//x//', '//x//', ''),
        (b'http://proxy:1/a/b?c', '/a/b', 'c'),
        (b'https://proxy', '/', ''),
        (b'/a?b?c', '/a', 'b?c'),
    ],
)
async def test_urls_are_split_into_path_and_query(client, app, url, path, query):
    await client.ask(GET % url)
    assert (app.requests[0].path, app.requests[0].query_string) == (path, query)


async def test_requests_about_the_server_itself(client, app):
    await client.ask(b'OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n')
    assert (app.requests[0].method, app.requests[0].path) == ('OPTIONS', '*')


CHUNKED = b'POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n'


async def test_bodies_are_read_in_chunks(client, app):
    assert (await client.ask(CHUNKED + b'2\r\nbo\r\n2;name=value\r\ndy\r\n0\r\n\r\n'))[2] == b'/x body'


async def test_what_follows_a_body_is_no_header(client, app):
    await client.ask(CHUNKED + b'2\r\nbo\r\n0\r\nAuthorization: forged\r\nX-Own: 1\r\n\r\n')
    await client.ask(get(b'/next'))
    assert [set(request.headers) for request in app.requests] == [{'host', 'transfer-encoding'}, {'host'}]


async def test_requests_are_read_in_pieces(client, app):
    for byte in post(b'/first') + CHUNKED + b'4\r\nbody\r\n0\r\n\r\n' + get(b'/last'):
        client.send(bytes([byte]))
        await asyncio.sleep(0)
    assert [(await client.read())[2] for _ in range(3)] == [b'/first body', b'/x body', b'/last ']


@settings(max_examples=settings.default.max_examples // 2, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(strategies.lists(strategies.integers(1, 300), max_size=5))
async def test_pieces_make_no_difference(serve, connect, cuts):
    data = post(b'/1') + get(b'/2') + CHUNKED + b'2\r\nbo\r\n2\r\ndy\r\n0\r\n\r\n' + post(b'/4', b'')
    client = await connect((await serve())[0])
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
        client.send(data[start:end])
        await asyncio.sleep(0.001)
    assert [(await client.read())[2] for _ in range(4)] == [b'/1 body', b'/2 ', b'/x body', b'/4 ']


async def test_heads_are_answered_without_a_body(client):
    client.send(b'HEAD /x HTTP/1.1\r\nHost: x\r\n\r\n' + get())
    status, headers, _ = await client.read(bodiless=True)
    assert (status, headers['content-length']) == (200, '3')
    assert (await client.read())[2] == b'/x '


async def test_large_bodies_are_received_in_full(serve, connect, secure):
    port, _ = await serve(secure=secure, get_max_body=lambda path: 10_000_000)
    client = await connect(port, secure=secure)
    body = bytes(range(256)) * 30_000
    assert (await client.ask(post(b'/x', body)))[2] == b'/x ' + body
    assert (await client.ask(get()))[0] == 200


# The end of connections.


@pytest.mark.parametrize(
    'request_, headers',
    [
        (b'GET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n', {'connection': 'close'}),
        (b'GET /x HTTP/1.0\r\n\r\n', {'connection': 'close'}),
        (b'GET /x HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n', {'connection': 'close'}),
    ],
)
async def test_the_last_request_of_a_connection(client, app, request_, headers):
    status, got, body = await client.ask(request_ + get(b'/more'))
    assert (status, body) == (200, b'/x ')
    assert got.items() >= headers.items()
    assert await client.is_closed()
    assert len(app.requests) == 1


async def test_old_clients_can_keep_their_connection(client, app):
    request = b'GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n'
    for _ in range(2):
        assert (await client.ask(request))[1]['connection'] == 'keep-alive'


async def test_half_closed_connections_are_answered(serve, connect, app):
    port, _ = await serve()
    client = await connect(port)
    app.gates['/slow'] = asyncio.Event()
    client.send(post(b'/slow') + post(b'/last'))
    client.writer.write_eof()
    await app.began.wait()
    await asyncio.sleep(0.01)
    app.gates['/slow'].set()
    assert (await client.read())[2] == b'/slow body'
    assert (await client.read())[1]['connection'] == 'close'
    assert await client.is_closed()


async def test_requests_broken_off_are_not_handled(serve, connect, app, secure):
    port, _ = await serve(secure=secure)
    for part in (b'', b'POST', post()[:-1], CHUNKED + b'4\r\nbody\r\n'):
        client = await connect(port, secure=secure)
        client.send(part)
        if secure:
            await client.close()
        else:
            client.writer.write_eof()
            assert await client.is_closed()
    client = await connect(port, secure=secure)
    await client.ask(get(b'/good'))
    assert [request.path for request in app.requests] == ['/good']


@pytest.mark.parametrize('abandons', [True, False])
async def test_handlers_are_cancelled_when_the_client_is_gone_if_requested(
    serve, connect, app, secure, abandons, caplog
):
    port, _ = await serve(secure=secure, abandons=abandons)
    app.gates['/x'] = asyncio.Event()
    client = await connect(port, secure=secure)
    client.send(get() + get(b'/next'))
    await app.began.wait()
    client.writer.transport.abort()
    if abandons:
        await until(lambda: app.cancelled)
    else:
        await asyncio.sleep(0.05)
        app.gates['/x'].set()
        await until(lambda: app.ended)
        await asyncio.sleep(0.01)
    assert app.cancelled == (['/x'] if abandons else [])
    assert app.ended[:1] == ([] if abandons else ['/x'])
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


# What is refused.


@pytest.mark.parametrize(
    'sent',
    [
        b'rubbish\r\n\r\n',
        b'\x80\x03\x00\x01',
        b'\x00' * 1000,
        b'GET\r\n\r\n',
        b'GET / HTTP/9.9\r\n\r\n',
        b'GET / HTTP/2.0\r\n\r\n',
        b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n',
        b'GET / FTP/1.1\r\n\r\n',
        b'GET /\x01 HTTP/1.1\r\nHost: x\r\n\r\n',
        b'GET / HTTP/1.1\r\nHost : x\r\n\r\n',
        b'GET / HTTP/1.1\r\n: x\r\n\r\n',
        b'GET / HTTP/1.1\r\nX: \x00\r\n\r\n',
        b'GET / HTTP/1.1\r\nX\r\n\r\n',
        b'GET x HTTP/1.1\r\n\r\n',
        b'POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n',
        b'POST / HTTP/1.1\r\nContent-Length: 1x\r\n\r\n',
        b'POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n',
        b'POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab',
        b'POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
        b'POST / HTTP/1.1\r\nTransfer-Encoding: chunked, gzip\r\n\r\n',
        CHUNKED + b'x\r\n',
        CHUNKED + b'-1\r\n',
        CHUNKED + b'fffffffffffffffff\r\n',
        CHUNKED + b'2\r\nbody\r\n',
    ],
)
async def test_what_is_not_http(serve, connect, app, sent):
    client = await connect((await serve())[0])
    status, headers, body = await client.ask(sent)
    assert (status, headers['connection']) == (400, 'close')
    assert b'HTTP' in body
    assert await client.is_closed()
    assert not app.requests


async def test_what_is_not_http_after_what_is(client, app):
    app.gates['/slow'] = asyncio.Event()
    client.send(post(b'/slow') + get(b'/x') + b'rubbish\r\n\r\n' + get(b'/never'))
    await app.began.wait()
    app.gates['/slow'].set()
    assert [(await client.read())[0] for _ in range(3)] == [200, 200, 400]
    assert await client.is_closed()
    assert [request.path for request in app.requests] == ['/slow', '/x']


@pytest.mark.parametrize(
    'sent',
    [
        GET % (b'/' + b'x' * 70_000),
        b'GET / HTTP/1.1\r\nX: ' + b'x' * 70_000 + b'\r\n\r\n',
        b'GET / HTTP/1.1\r\n' + b'X: x\r\n' * 40_000 + b'\r\n',
        b'GET / HTTP/1.1\r\nX: ' + b'x' * 1_000_000,
        b'GET /' + b'x' * 1_000_000,
        b'X' * 1_000_000,
        CHUNKED + b'1\r\nx\r\n0\r\nX: ' + b'x' * 1_000_000,
        CHUNKED + b'1;' + b'x' * 1_000_000,
    ],
)
async def test_heads_that_are_too_large_are_refused(serve, connect, app, sent):
    client = await connect((await serve())[0])
    client.send(sent)
    status, _, body = await client.read()
    assert status in (400, 431)
    assert not app.requests
    assert await client.is_closed()


@pytest.mark.parametrize(
    'sent',
    [
        b'POST /x HTTP/1.1\r\nContent-Length: 1001\r\n\r\n',
        b'POST /x HTTP/1.1\r\nContent-Length: 1001\r\nExpect: 100-continue\r\n\r\n',
        b'POST /x HTTP/1.1\r\nContent-Length: 100000000\r\n\r\n' + b'x' * 2_000_000,
        CHUNKED + b'1000\r\n' + b'x' * 1001,
        CHUNKED + b'800\r\n' + b'x' * 0x800 + b'\r\n',
        CHUNKED + b'1\r\nx\r\n' * 1001,
    ],
)
async def test_bodies_too_large_are_not_waited_for(client, app, sent):
    client.send(sent)
    status, headers, body = await client.read()
    assert (status, headers['connection'], body) == (413, 'close', b'too large')
    assert [request.body for request in app.requests] == [None]
    assert await client.is_closed()


async def test_bodies_in_small_chunks_are_not_too_large(client):
    assert len((await client.ask(CHUNKED + b'1\r\nx\r\n' * 1000 + b'0\r\n\r\n'))[2]) == 1003


async def test_limits_are_of_paths(serve, connect):
    port, _ = await serve(get_max_body=lambda path: 10 if path == '/small' else 100)
    client = await connect(port)
    assert (await client.ask(post(b'/large', b'x' * 100)))[0] == 200
    assert (await client.ask(post(b'/small', b'x' * 11)))[0] == 413


async def test_refusals_are_seen_by_clients_that_still_send(serve, connect, secure, monkeypatch):
    monkeypatch.setattr(httpconnections, 'LINGERING_TIME', 5)
    port, _ = await serve(secure=secure)
    client = await connect(port, secure=secure)
    client.send(b'POST /x HTTP/1.1\r\nContent-Length: 100000000\r\n\r\n')
    for _ in range(20):
        client.send(b'x' * 100_000)
        await asyncio.sleep(0.001)
    assert (await client.read())[0] == 413
    client.writer.transport.abort()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(strategies.data())
async def test_whatever_is_sent_is_answered_or_refused(serve, connect, caplog, data):
    sent = bytearray(post(b'/1') + CHUNKED + b'4\r\nbody\r\n0\r\n\r\n' + get(b'/3'))
    for _ in range(data.draw(strategies.integers(0, 4))):
        place = data.draw(strategies.integers(0, len(sent)))
        sent[place : place + data.draw(strategies.integers(0, 3))] = data.draw(strategies.binary(max_size=3))
    port, listener = await serve()
    client = await connect(port)
    client.send(bytes(sent))
    client.writer.write_eof()
    answer = await asyncio.wait_for(client.reader.read(), 60)
    assert not answer or answer.startswith((b'HTTP/1.1 200', b'HTTP/1.1 4'))
    assert b'HTTP/1.1 5' not in answer
    await listener.close()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


# Permission to send bodies.

EXPECTING = b'POST /x HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n'
CONTINUE = b'HTTP/1.1 100 Continue\r\n\r\n'


async def test_clients_may_wait_for_the_permission_to_send_the_body(client):
    client.send(EXPECTING)
    assert await client.reader.readuntil(b'\r\n\r\n') == CONTINUE
    client.send(b'body')
    assert (await client.read())[2] == b'/x body'


async def test_clients_need_not_wait_for_the_permission_to_send_the_body(client):
    client.send(EXPECTING + b'body' + get())
    assert (await client.read())[::2] == (200, b'/x body')
    assert (await client.read())[::2] == (200, b'/x ')


async def test_permissions_wait_for_the_answers_before_them(client, app):
    app.gates['/slow'] = asyncio.Event()
    client.send(get(b'/slow') + EXPECTING)
    await app.began.wait()
    app.gates['/slow'].set()
    assert (await client.read())[2] == b'/slow '
    assert await client.reader.readuntil(b'\r\n\r\n') == CONTINUE
    client.send(b'body')
    assert (await client.read())[2] == b'/x body'


# Time.


async def test_idle_connections_are_closed(serve, connect, secure):
    port, _ = await serve(secure=secure, idle_timeout=1, request_timeout=10)
    client = await connect(port, secure=secure)
    for _ in range(3):
        await client.ask(get())
        await asyncio.sleep(0.4)
    assert await client.is_closed()


async def test_slow_handlers_are_not_idle(serve, connect, app):
    port, _ = await serve(idle_timeout=0.02, request_timeout=0.02)
    client = await connect(port)
    app.gates['/x'] = asyncio.Event()
    client.send(get())
    await asyncio.sleep(0.1)
    app.gates['/x'].set()
    assert (await client.read())[2] == b'/x '
    assert await client.is_closed()


@pytest.mark.parametrize('part', [b'G', b'GET / HTTP/1.1\r\n', post()[:-1], CHUNKED + b'1\r\nx\r\n'])
async def test_slow_requests_are_refused_after_a_while(serve, connect, app, part):
    port, _ = await serve(idle_timeout=10, request_timeout=0.3)
    client = await connect(port)
    await client.ask(get(b'/first'))
    client.send(part[:1])
    await asyncio.sleep(0.05)
    client.send(part[1:])
    status, headers, body = await client.read()
    assert (status, headers['connection']) == (408, 'close')
    assert b'within 0.3 seconds' in body
    assert await client.is_closed()
    assert [request.path for request in app.requests] == ['/first']


async def test_silent_clients_are_disconnected(serve, connect):
    port, _ = await serve(idle_timeout=0.05)
    assert await (await connect(port)).is_closed()


async def test_requests_that_wait_for_others_are_not_slow(serve, connect, app):
    port, _ = await serve(request_timeout=0.5)
    client = await connect(port)
    app.gates['/0'] = asyncio.Event()
    client.send(get(b'/0') + get(b'/1') + post(b'/2')[:-1])
    await app.began.wait()
    await asyncio.sleep(0.7)
    app.gates['/0'].set()
    assert [(await client.read())[2] for _ in range(2)] == [b'/0 ', b'/1 ']
    client.send(b'y')
    assert (await client.read())[2] == b'/2 body'


async def test_clients_that_do_not_read_are_disconnected(serve, connect, app, secure):
    port, _ = await serve(secure=secure, answer_timeout=0.1)

    async def answer(request):
        return Response(200, b'x' * 30_000_000)

    app.actions['/large'] = answer
    client = await connect(port, secure=secure)
    client.writer.transport.pause_reading()
    client.send(get(b'/large') + get(b'/next'))
    await until(lambda: app.requests)
    await asyncio.sleep(1)  # so much takes its time to be encrypted, too
    assert len(app.requests) == 1
    client.writer.transport.resume_reading()
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await client.read()


# Handlers.


async def test_failing_handlers_are_answered_with_an_error(client, app, caplog):
    async def fail(request):
        raise ValueError("a secret of ours")

    app.actions['/fail'] = fail
    status, _, body = await client.ask(get(b'/fail'))
    assert (status, body) == (500, b'The server has failed.\n')
    assert "The request GET /fail has failed: a secret of ours" in caplog.text
    assert (await client.ask(get()))[0] == 200


async def test_handlers_can_break_off_the_connection(client, app):
    async def drop(request):
        raise Dropped

    app.actions['/drop'] = drop
    client.send(get(b'/drop') + get())
    assert await client.is_closed()
    assert len(app.requests) == 1


async def test_cancellations_by_the_handler_itself_close_the_connection(client, app):
    async def cancel(request):
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    app.actions['/cancel'] = cancel
    client.send(get(b'/cancel'))
    assert await client.is_closed()


async def test_streams_are_sent_in_chunks(client, app):
    more = asyncio.Event()

    async def stream(request):
        stream = request.stream([('X-Own', 'yes')])
        await stream.write(b'one')
        await stream.write(b'')
        await more.wait()
        await stream.write(b'two')

    app.actions['/stream'] = stream
    client.send(get(b'/stream') + get())
    status, headers, _ = await client.read()
    assert (status, headers['transfer-encoding'], headers['x-own']) == (200, 'chunked', 'yes')
    assert await client.reader.readexactly(8) == b'3\r\none\r\n'
    more.set()
    assert await client.reader.readexactly(13) == b'3\r\ntwo\r\n0\r\n\r\n'
    assert (await client.read())[2] == b'/x '


async def test_streams_for_old_clients_end_with_the_connection(client, app):
    async def stream(request):
        await request.stream([]).write(b'one')

    app.actions['/stream'] = stream
    client.send(b'GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n')
    status, headers, _ = await client.read()
    assert 'transfer-encoding' not in headers
    assert await client.reader.read() == b'one'


async def test_streams_that_fail_are_broken_off(client, app, caplog):
    async def stream(request):
        await request.stream([]).write(b'one')
        raise ValueError("a secret of ours")

    app.actions['/stream'] = stream
    client.send(get(b'/stream') + get())
    await client.read()
    assert await client.reader.readexactly(8) == b'3\r\none\r\n'
    assert await client.is_closed()
    assert "a secret of ours" in caplog.text


async def test_streams_wait_for_their_readers(serve, connect, app, secure):
    written = 0

    async def stream(request):
        nonlocal written
        stream = request.stream([])
        while True:
            await stream.write(b'x' * 100_000)
            written += 1

    app.actions['/stream'] = stream
    port, _ = await serve(secure=secure, abandons=True)
    client = await connect(port, secure=secure)
    client.writer.transport.pause_reading()
    client.send(get(b'/stream'))
    await until(lambda: written)
    before = 0
    while written != before:  # nothing is awaited by then but the reader
        before = written
        await asyncio.sleep(0.2)
    assert written < 1000
    client.writer.transport.abort()
