"""A server of one's own for every test: real sockets, real TLS, scripted answers.

Nothing of the client is replaced, so that what is tested is what goes over the network. Only the pauses between
attempts are recorded instead of being waited for.
"""

import asyncio
import dataclasses
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest
from aiohttp import web
from rawhttp import RawServer

from kopf._cogs.clients import api
from kopf._cogs.clients.connection_pools import Origin, Pool
from kopf._cogs.configs import configuration
from kopf._cogs.structs import credentials, ids

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclasses.dataclass
class Seen:
    """One request as the server has seen it."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    peer: Mapping[str, Any] | None
    connection: asyncio.BaseTransport
    time: float = dataclasses.field(default_factory=time.monotonic)


class Server:
    """A scripted HTTP(S) server; answers are given by path, the last one of a path for ever."""

    def __init__(self) -> None:
        self.url = ''
        self.port = 0
        self.seen: list[Seen] = []
        self.connections: set[Any] = set()
        self.active = 0
        self.peak = 0
        self._handlers: dict[tuple[str, str], list[Handler]] = {}

    def add(self, method: str, path: str, *handlers: Handler | Any) -> None:
        """Answer by functions, or by statuses, or by statuses with data or headers, or by data."""
        self._handlers.setdefault((method, path), []).extend(self._make(handler) for handler in handlers)

    def _make(self, spec: Any) -> Handler:
        if callable(spec):
            return spec
        status, data, headers = 200, spec, None
        match spec:
            case int():
                status, data = spec, {'kind': 'Status', 'code': spec, 'message': f'msg{spec}', 'reason': f'R{spec}'}
            case (int() as status, data):
                pass
            case (int() as status, data, headers):
                pass

        async def handler(request: web.Request) -> web.StreamResponse:
            if isinstance(data, bytes):
                return web.Response(status=status, body=data, headers=headers)
            return web.json_response(data, status=status, headers=headers)

        return handler

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        transport = request.transport
        assert transport is not None
        self.connections.add(transport)
        self.seen.append(
            Seen(
                method=request.method,
                path=request.path,
                query=dict(request.query),
                headers=request.headers.copy(),
                body=body,
                peer=transport.get_extra_info('peercert'),
                connection=transport,
            )
        )
        handlers = self._handlers.get((request.method, request.path))
        if not handlers:
            return await self._make(404)(request)
        handler = handlers.pop(0) if len(handlers) > 1 else handlers[0]
        self.active += 1
        self.peak = max(self.peak, self.active)
        try:
            return await handler(request)
        finally:
            self.active -= 1


async def _serve(context: ssl.SSLContext | None) -> AsyncIterator[Server]:
    server = Server()
    app = web.Application(client_max_size=2**26)
    app.router.add_route('*', '/{path:.*}', server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.01, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, '127.0.0.1', 0, ssl_context=context)
    await site.start()
    server.port = runner.addresses[0][1]
    server.url = f"{'https' if context else 'http'}://127.0.0.1:{server.port}"
    yield server
    await runner.cleanup()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async for server in _serve(None):
        yield server


@pytest.fixture
async def tls_server(pki: Any) -> AsyncIterator[Server]:
    """Yield the same server with TLS; clients may have certificates."""
    async for server in _serve(pki.as_server_context()):
        yield server


@pytest.fixture
def settings() -> configuration.OperatorSettings:
    settings = configuration.OperatorSettings()
    settings.networking.error_backoffs = [1, 2]
    return settings


@pytest.fixture
def make_vault() -> Callable[..., credentials.Vault]:
    def make(*infos: credentials.KubeContext) -> credentials.Vault:
        return credentials.Vault({ids.HandlerId(f'login{index}'): info for index, info in enumerate(infos)})

    return make


@pytest.fixture
def vault(server: Server, make_vault: Callable[..., credentials.Vault]) -> credentials.Vault:
    return make_vault(credentials.ConnectionInfo(server=server.url, token='good', default_namespace='ns1'))


@pytest.fixture
async def client(
    vault: credentials.Vault,
    settings: configuration.OperatorSettings,
) -> AsyncIterator[api.ApiClient]:
    async with api.ApiClient(vault, settings) as client:
        yield client


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the pauses that were asked for; there are no pauses in fact."""
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def pause(delay: float, result: Any = None) -> Any:
        if delay:
            pauses.append(delay)
        return await sleep(0, result)

    monkeypatch.setattr(asyncio, 'sleep', pause)
    return pauses


@pytest.fixture
async def raw_server():
    server = RawServer()
    async with await asyncio.start_server(server.serve, '127.0.0.1', 0) as listener:
        server.port = listener.sockets[0].getsockname()[1]
        yield server
        listener.close()
        if hasattr(listener, 'close_clients'):
            listener.close_clients()


@pytest.fixture
async def pool(raw_server):
    pool = Pool(Origin('127.0.0.1', raw_server.port, None, None), keepalive=30)
    yield pool
    pool.close()
