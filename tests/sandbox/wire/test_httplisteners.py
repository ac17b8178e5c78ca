"""The start and end of servers: ports, certificates of clients, and requests under way at the close."""

import asyncio
import datetime
import gc
import socket
import ssl
import weakref

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from kopf._kits.testing.wire import httplisteners
from kopf._kits.testing.wire.httpconnections import Connection

GET = b'GET /x HTTP/1.1\r\nHost: x\r\n\r\n'
POST = b'POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody'


async def close(listener, **options):
    async with asyncio.timeout(60):
        await listener.close(**options)


async def test_a_listener_serves_several_sockets(app, serve, connect):
    port, listener = await serve()
    sock = socket.create_server(('127.0.0.1', 0))
    other = sock.getsockname()[1]
    await listener.open([sock], None)
    for each in (port, other):
        assert (await (await connect(each)).ask(GET))[0] == 200
    await close(listener)
    for each in (port, other):
        with pytest.raises(ConnectionError):
            await connect(each)


@pytest.fixture(scope='session')
def client_pair(tmp_path_factory):
    """Return a certificate for clients: those for servers are refused in their place."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, 'client')])
    now = datetime.datetime.now(datetime.UTC)
    certificate = x509.CertificateBuilder(
        name,
        name,
        key.public_key(),
        x509.random_serial_number(),
        now,
        now + datetime.timedelta(days=1),
    ).sign(key, hashes.SHA256())
    path = tmp_path_factory.mktemp('clients') / 'client.pem'
    path.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return path


async def test_certificates_of_clients_are_given_to_the_app(app, serve, connect, pair, client_pair):
    server_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=client_pair)
    server_context.load_cert_chain(pair)
    server_context.verify_mode = ssl.CERT_OPTIONAL
    client_context = ssl.create_default_context(cafile=pair)
    client_context.load_cert_chain(client_pair)
    port, _ = await serve(context=server_context)
    await (await connect(port, secure=True)).ask(GET)
    client = await connect(port, secure=True, context=client_context)
    for _ in range(2):
        await client.ask(GET)
    first, *others = [request.certificate for request in app.requests]
    assert first is None
    assert [each['subject'] for each in others] == [((('commonName', 'client'),),)] * 2


@pytest.mark.parametrize('last', [GET, POST[:-1], b'rubbish', b''])
async def test_nothing_of_a_connection_is_left_to_the_garbage_collector(app, serve, connect, secure, last, monkeypatch):
    accepted = []

    def accept(*args):
        connection = Connection(*args)
        accepted.append(weakref.ref(connection))
        return connection

    monkeypatch.setattr(httplisteners, 'Connection', accept)
    port, _ = await serve(secure=secure)
    gc.disable()
    try:
        for _ in range(3):
            client = await connect(port, secure=secure)
            await client.ask(GET)
            client.send(last)
            await client.close()
        assert len(accepted) == 3
        async with asyncio.timeout(60):
            while any(connection() for connection in accepted):
                app.requests.clear()
                await asyncio.sleep(0.01)
    finally:
        gc.enable()


# The end.


async def test_idle_connections_are_closed_at_once(app, serve, connect, secure):
    port, listener = await serve(secure=secure)
    client = await connect(port, secure=secure)
    await client.ask(GET)
    asyncio.get_running_loop().call_later(0.05, client.writer.close)  # some clients are slow to say goodbye
    await close(listener, timeout=4)
    assert await client.is_closed()


async def test_clients_that_do_not_say_goodbye_are_left(app, serve, connect, secure, monkeypatch):
    monkeypatch.setattr(httplisteners, 'FAREWELL_TIMEOUT', 0.1)
    port, listener = await serve(secure=secure)
    client = await connect(port, secure=secure)
    await client.ask(GET)
    client.writer.transport.pause_reading()
    await close(listener, timeout=4)
    client.writer.transport.abort()


async def test_answers_under_way_are_given(app, serve, connect, secure):
    port, listener = await serve(secure=secure)
    client = await connect(port, secure=secure)
    app.gates['/x'] = asyncio.Event()
    client.send(GET + POST)
    await app.began.wait()
    closing = asyncio.create_task(close(listener, timeout=4))
    await asyncio.sleep(0.01)
    with pytest.raises(ConnectionError):
        await connect(port)
    assert not closing.done()
    app.gates['/x'].set()
    status, headers, _ = await client.read()
    assert (status, 'connection' in headers) == (200, False)
    status, headers, body = await client.read()
    assert (status, headers['connection'], body) == (200, 'close', b'/x body')
    assert await client.is_closed()
    await closing


async def test_requests_that_are_coming_in_are_answered(app, serve, connect, secure):
    port, listener = await serve(secure=secure)
    client = await connect(port, secure=secure)
    await client.ask(GET)
    client.send(POST[:-1])
    await asyncio.sleep(0.01)
    closing = asyncio.create_task(close(listener, timeout=4))
    await asyncio.sleep(0.01)
    client.send(POST[-1:])
    status, headers, body = await client.read()
    assert (status, headers['connection'], body) == (200, 'close', b'/x body')
    await closing


async def test_what_takes_too_long_is_broken_off(app, serve, connect, secure):
    port, listener = await serve(secure=secure)
    slow, partial = await connect(port, secure=secure), await connect(port, secure=secure)
    app.gates['/x'] = asyncio.Event()
    slow.send(GET)
    partial.send(POST[:-1])
    await app.began.wait()
    await close(listener, timeout=0.1)
    assert app.cancelled == ['/x']
    assert await slow.is_closed()
    assert await partial.is_closed()


async def test_handlers_that_do_not_want_to_end_are_left(app, serve, connect, monkeypatch, caplog):
    monkeypatch.setattr(httplisteners, 'FAREWELL_TIMEOUT', 0.05)
    end = asyncio.Event()

    async def stay(request):
        while not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                pass

    app.actions['/x'] = stay
    port, listener = await serve()
    (await connect(port)).send(GET)
    await app.began.wait()
    await close(listener)
    assert "The requests ignore their cancellation, and are left" in caplog.text
    end.set()
    await asyncio.sleep(0.01)


async def test_connections_without_an_agreement_on_tls_are_closed(app, serve, connect):
    port, listener = await serve(secure=True)
    client = await connect(port)
    await asyncio.sleep(0.01)
    await close(listener, timeout=0.1)
    client.send(b'no TLS at all')
    assert await client.is_closed()
    assert not app.requests


async def test_http_in_place_of_https(app, serve, connect):
    port, _ = await serve(secure=True)
    client = await connect(port)
    client.send(GET)
    async with asyncio.timeout(60):
        assert b'HTTP/' not in await client.reader.read()
    assert (await (await connect(port, secure=True)).ask(GET))[0] == 200


async def test_a_listener_can_be_closed_twice(serve):
    _, listener = await serve()
    await close(listener)
    await close(listener)
