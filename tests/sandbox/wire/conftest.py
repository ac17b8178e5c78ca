"""A server of the smallest kind, and clients that can send anything: over TCP and TLS, in both kinds of event loops."""

import asyncio
import dataclasses
import socket
import ssl

import pytest
import uvloop

from kopf._kits.certificates import build_certificate
from kopf._kits.testing.wire import httpconnections
from kopf._kits.testing.wire.httpexchanges import Response, Service
from kopf._kits.testing.wire.httplisteners import Listener


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories():
    """Run all tests here in both: with TLS, they are different down to the bytes."""
    return {'asyncio': asyncio.new_event_loop, 'uvloop': uvloop.new_event_loop}


class App:
    """Echoes requests, unless told otherwise; remembers them."""

    def __init__(self):
        self.requests = []
        self.gates = {}  # by paths: what their requests wait for
        self.began = asyncio.Event()
        self.cancelled = []
        self.ended = []
        self.actions = {}  # by paths

    async def handle(self, request):
        self.requests.append(request)
        self.began.set()
        try:
            if request.path in self.gates:
                await self.gates[request.path].wait()
            if request.path in self.actions:
                return await self.actions[request.path](request)
        except asyncio.CancelledError:
            self.cancelled.append(request.path)
            raise
        self.ended.append(request.path)
        if request.body is None:
            return Response(413, b'too large')
        return Response(200, request.path.encode() + b' ' + request.body, [('X-Own', 'yes')])


@dataclasses.dataclass
class Client:
    """One connection, and what comes of it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data):
        self.writer.write(data)

    async def read(self, *, bodiless=False):
        """Read one answer: its status, its headers, its body."""
        async with asyncio.timeout(60):
            head = await self.reader.readuntil(b'\r\n\r\n')
            status, *lines = head.decode().splitlines()
            headers = dict(line.lower().split(': ', 1) for line in lines if line)
            size = 0 if bodiless else int(headers.get('content-length', 0))
            return int(status.split()[1]), headers, await self.reader.readexactly(size)

    async def ask(self, data):
        self.send(data)
        return await self.read()

    async def is_closed(self):
        """Wait for the end; tell whether nothing has come before."""
        async with asyncio.timeout(60):
            try:
                return await self.reader.read() == b''
            except ConnectionError:
                return True

    async def close(self):
        self.writer.close()
        try:
            async with asyncio.timeout(1):
                await self.writer.wait_closed()
        except (OSError, TimeoutError):
            self.writer.transport.abort()
            await asyncio.sleep(0)


@pytest.fixture(scope='session')
def pair(tmp_path_factory):
    """Return the certificate of the server, with its key in the same file."""
    path = tmp_path_factory.mktemp('servers') / 'server.pem'
    path.write_bytes(b''.join(build_certificate(['localhost', '127.0.0.1'])))
    return path


@pytest.fixture(scope='session')
def server_context(pair):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair)
    return context


@pytest.fixture(scope='session')
def client_context(pair):
    return ssl.create_default_context(cafile=pair)


@pytest.fixture(params=['tcp', 'tls'])
def secure(request):
    return request.param == 'tls'


@pytest.fixture
async def app(monkeypatch):
    monkeypatch.setattr(httpconnections, 'LINGERING_TIME', 0.1)
    return App()


@pytest.fixture
async def serve(app, server_context):
    """Start a server, give its port and the listener."""
    listeners = []

    async def serve(*, secure=False, context=None, **options):
        listener = Listener(Service(**{'handle': app.handle, 'get_max_body': lambda path: 1000, **options}))
        listeners.append(listener)
        sock = socket.create_server(('127.0.0.1', 0))
        port = sock.getsockname()[1]
        await listener.open([sock], context or (server_context if secure else None))
        return port, listener

    yield serve
    for listener in listeners:
        await listener.close()


@pytest.fixture
async def connect(client_context):
    """Connect to a port."""
    clients = []

    async def connect(port, *, secure=False, context=None):
        options = {'ssl': context or client_context, 'server_hostname': 'localhost'} if secure else {}
        client = Client(*await asyncio.open_connection('127.0.0.1', port, **options))
        clients.append(client)
        return client

    yield connect
    for client in clients:
        await client.close()


@pytest.fixture
async def client(serve, connect, secure):
    """Return a connection to a server with the default options."""
    port, _ = await serve(secure=secure)
    return await connect(port, secure=secure)
