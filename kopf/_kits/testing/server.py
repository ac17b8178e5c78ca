"""
The API server: HTTP over TLS on the loopback interface, in front of storage, rules and watches.

It is a bare handler of aiohttp, without applications and routes: the API has its own way of naming things, and every
microsecond here is paid by each request. One instance lives in one event loop and is used from there only.
"""
import asyncio
import functools
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from aiohttp import web

from kopf._kits.testing import (
    crds, defaults, forms, listing, objects, openapi, rest, routes, statuses, subresources, watching,
)
from kopf._kits.testing.admission import Webhooks
from kopf._kits.testing.certificates import Authority
from kopf._kits.testing.controllers import Controllers
from kopf._kits.testing.discovery import Discovery
from kopf._kits.testing.faults import REASONS, Controls, Fault, Faults, SeenRequest
from kopf._kits.testing.kinds import Catalog, Kind, builtin_kinds
from kopf._kits.testing.rest import Objects, Options, User
from kopf._kits.testing.routes import Place
from kopf._kits.testing.storage import Storage, Table

if TYPE_CHECKING:
    import aiohttp.abc

T = TypeVar('T')

HOST = '127.0.0.1'
ADMIN = '/_sandbox/'
MAX_BODY = 3 * 1024 * 1024
OPEN_PATHS = frozenset({'/healthz', '/livez', '/readyz', '/version'})
VERSION = {
    'major': '1', 'minor': '36', 'gitVersion': 'v1.36.0+kopf-sandbox', 'gitCommit': '', 'gitTreeState': '',
    'buildDate': '1970-01-01T00:00:00Z', 'goVersion': '', 'compiler': '', 'platform': 'python',
}
NAMESPACES = ('default', 'kube-node-lease', 'kube-public', 'kube-system')
ACCEPTED = ('application/json', 'application/yaml')
PROTOBUF_HINT = 'the sandbox does not read protobuf: send JSON'
NO_STRATEGIC = ('application/json-patch+json', 'application/merge-patch+json', 'application/apply-patch+yaml')


class Dropped(Exception):
    """The connection is to be broken off."""


class Server(Controls):
    """
    The sandbox's server; see `kopf.testing.Sandbox` for the door to it.

    ``history`` is the number of changes that are remembered a resource, ``log`` that of requests.
    """

    def __init__(self, *, history: int = 2000, log: int = 5000) -> None:
        self.storage = Storage(history=history)
        self.catalog = Catalog()
        self.webhooks = Webhooks(self.storage, self.catalog)
        self.objects = Objects(self.storage, self.catalog, self.webhooks)
        self.authority = Authority()
        self.faults = Faults(self)
        self.requests: deque[SeenRequest] = deque(maxlen=log)
        self.port = 0
        self.token = ''
        self.on_token: Callable[[], None] = lambda: None
        self._tokens: dict[str, User] = {}
        self._discovery = Discovery(self.catalog)
        self._openapi = openapi.OpenApi(self.catalog)
        self._scales = subresources.Scales(self.objects)
        self._controllers = Controllers(self.storage, self.catalog, self.objects)
        self._streams: set[asyncio.Transport] = set()
        self._connections: set[asyncio.Transport] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._server: web.Server | None = None
        self._runner: web.ServerRunner | None = None
        self._site: web.TCPSite | None = None
        self._ssl = self.authority.context()
        self._token_users()
        for kind in builtin_kinds(self._open):
            self.catalog.add(kind)

    @property
    def url(self) -> str:
        """Where the server listens."""
        return f'https://{HOST}:{self.port}'

    async def start(self, port: int = 0) -> None:
        """Listen on the port, or on any free one; OSError if it is taken."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        for name in NAMESPACES:
            namespace = self.catalog.named('namespaces')
            body = objects.decode({'metadata': {'name': name}}, namespace, b'')
            await self.objects.create(namespace, '', body, Options())
        self.port = port
        await self.accept_connections()

    async def stop(self) -> None:
        """Close the port and all connections."""
        await self.refuse_connections()
        await self.webhooks.close()

    # -- What faults and the sandbox need

    def call(self, function: Callable[[], T]) -> T:
        """Call the function in the server's thread and wait for it."""
        if self._loop is None or threading.get_ident() == self._thread:
            return function()

        async def run() -> T:
            return function()
        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def call_async(self, function: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Run the coroutine function in the server's loop, and wait for it unless called from there."""
        assert self._loop is not None
        if threading.get_ident() == self._thread:
            task = self._loop.create_task(function())
            task.add_done_callback(lambda task: task.exception())
        else:
            asyncio.run_coroutine_threadsafe(function(), self._loop).result()

    def wake(self) -> None:
        """Let all watches look at the rules."""
        for table in self.storage:
            table.wake()

    def drop_watches(self) -> int:
        """Break off all watches."""
        streams = list(self._streams)
        for transport in streams:
            transport.abort()
        return len(streams)

    def forget_history(self) -> None:
        """Drop the history of all resources."""
        for table in self.storage:
            table.forget_before(self.storage.version)

    def expire_tokens(self) -> None:
        """Replace the token."""
        self._tokens.clear()
        self._token_users()
        self.on_token()

    async def refuse_connections(self) -> None:
        """Close the port and all connections."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            if self._site is not None:
                await self._site.stop()
            for transport in list(self._connections):
                transport.abort()
            await runner.cleanup()

    async def accept_connections(self) -> None:
        """Listen again."""
        if self._runner is not None:
            return
        server = web.Server(self._handle, request_factory=self._make_request, handler_cancellation=True,
                            access_log=None, keepalive_timeout=3600)
        self._runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, HOST, self.port, ssl_context=self._ssl, backlog=512)
        await self._site.start()
        assert self._site._server is not None
        self.port = self._site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]

    def _open(self, group: str, plural: str) -> Table:
        return self.storage.open(group, plural, defaults.fields_of(plural))

    def _token_users(self) -> None:
        self.token = self._issue(User())

    def _issue(self, user: User) -> str:
        token = subresources.new_token()
        self._tokens[token] = user
        return token

    # -- Requests

    def _make_request(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        if (transport := protocol.transport) is not None and transport not in self._connections:
            self._connections = {known for known in self._connections if not known.is_closing()}
            self._connections.add(transport)
        return web.BaseRequest(message, payload, protocol, writer, task, asyncio.get_running_loop(),
                               client_max_size=MAX_BODY)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        seen = SeenRequest(
            request.method, request.path, request.query, request.headers.get('User-Agent', ''), request.content_type)
        options = Options()
        try:
            response = await self._answer(request, seen, options)
        except statuses.UnknownPath:
            response = web.Response(status=404, text='404 page not found\n')
        except statuses.Refusal as refusal:
            response = _json(refusal.as_status(), refusal.code, refusal.headers)
        except web.HTTPRequestEntityTooLarge:
            message = f'Request entity too large: limit is {MAX_BODY}'
            response = _json(statuses.Refusal(413, 'RequestEntityTooLarge', message).as_status(), 413)
        except (Dropped, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
            response = web.Response(status=500)
        seen.status = response.status
        if not response.prepared:
            response.headers['Cache-Control'] = 'no-cache, private'
            for warning in options.warnings:
                response.headers.add('Warning', f'299 - {orjson.dumps(warning).decode()}')
        return response

    async def _answer(self, request: web.BaseRequest, seen: SeenRequest, options: Options) -> web.StreamResponse:
        path = seen.path
        if path.startswith(ADMIN):
            self._authenticate(request, seen)
            return await self._administer(request, path.removeprefix(ADMIN))
        place = None
        if path.startswith(('/api/', '/apis/')):
            place = routes.locate(seen.method, path, seen.query)
            seen.verb, seen.group, seen.resource = place.verb, place.group, place.plural
            seen.namespace, seen.name, seen.subresource = place.namespace, place.name, place.subresource
        if seen.method in ('POST', 'PUT', 'PATCH', 'DELETE'):
            seen.body = await request.read()
        self.requests.append(seen)
        if (rule := self.faults.take(seen, watching=False)) is not None:
            await _suffer(rule)
        options.user = self._authenticate(request, seen)
        if place is None or not place.version:
            return self._document(request, path.rstrip('/') or '/')
        if not place.plural:
            return _raw(self._discovery.version(place.group, place.version))
        kind = routes.resolve(self.catalog, place, seen.method)
        if kind.warning:
            options.warnings.append(kind.warning)
        if place.verb == 'watch':
            return await self._watch(request, kind, place, seen)
        return await self._act(request, kind, place, seen, options)

    def _authenticate(self, request: web.BaseRequest, seen: SeenRequest) -> User:
        scheme, _, token = request.headers.get('Authorization', '').partition(' ')
        user = None
        if scheme.lower() == 'bearer':
            if (user := self._tokens.get(token.strip())) is None:
                raise statuses.unauthorized()
        elif scheme:
            raise statuses.unauthorized()
        elif request.transport is not None and (certificate := request.transport.get_extra_info('peercert')):
            user = _certified(certificate)
        if user is None:
            if seen.path.rstrip('/') not in OPEN_PATHS:
                raise _anonymous(seen)
            user = User('system:anonymous', ('system:unauthenticated',))
        seen.user = user.name
        return user

    def _document(self, request: web.BaseRequest, path: str) -> web.Response:
        match path:
            case '/healthz' | '/livez' | '/readyz':
                return web.Response(text='ok')
            case '/version':
                return _json(VERSION)
            case '/':
                return _json({'paths': self._discovery.paths()})
            case '/api' | '/apis':
                accept = request.headers.get('Accept', '')
                body, media = self._discovery.root(path, accept, f'{HOST}:{self.port}')
                return _raw(body, media=media)
            case '/openapi/v3':
                return _raw(self._openapi.index())
            case '/openapi/v2':
                return _raw(self._openapi.legacy())
        head, _, rest = path.removeprefix('/').partition('/')
        if head == 'apis':
            return _raw(self._discovery.group(rest))
        if path.startswith(('/openapi/v3/api/', '/openapi/v3/apis/')):
            group, _, version = path.split('/', 4)[4].rpartition('/')
            return _raw(self._openapi.version(group, version))
        raise statuses.UnknownPath

    # -- Verbs

    async def _act(
            self, request: web.BaseRequest, kind: Kind, place: Place, seen: SeenRequest, options: Options,
    ) -> web.Response:
        form, syntax = forms.negotiate(request.headers.get('Accept', ''), seen.query)
        _read_options(seen, place.verb, options)
        status = 200
        if kind.table is None or place.subresource not in ('', 'status'):
            status, raw = await self._special(kind, place, seen, options)
        else:
            match place.verb:
                case 'get':
                    raw = form.raw(kind, kind.raw(self.objects.get(kind, place.namespace, place.name)))
                case 'list':
                    listed = listing.list_options(seen.query, _known_fields(kind), watch=False)
                    raw = listing.answer(self.storage, kind, place.namespace, listed, form)
                case _:
                    status, raw = await self._write(kind, place, seen, options)
                    if form is not forms.PLAIN and place.verb != 'delete':
                        raw = form.raw(kind, raw)
        return _raw(raw, status) if syntax == 'json' else _yaml(raw, status)

    async def _write(self, kind: Kind, place: Place, seen: SeenRequest, options: Options) -> tuple[int, bytes]:
        namespace, name, subresource = place.namespace, place.name, place.subresource
        match place.verb:
            case 'create':
                body = objects.decode(_decoded(seen, kind), kind, seen.body)
                return 201, await self.objects.create(kind, namespace, body, options)
            case 'update':
                body = objects.decode(_decoded(seen, kind), kind, seen.body)
                raw, created = await self.objects.replace(kind, namespace, name, body, options, subresource)
                return 201 if created else 200, raw
            case 'patch':
                patch = _decoded_patch(seen, kind)
                raw = await self.objects.patch(kind, namespace, name, patch, seen.content_type, options, subresource)
                return 200, raw
            case 'delete':
                rest.decode_options(_decoded_options(seen), seen.query, options)
                answer = await self.objects.delete(kind, namespace, name, options)
                return 200, answer if isinstance(answer, bytes) else orjson.dumps(answer)
        rest.decode_options(_decoded_options(seen), seen.query, options)
        selected = listing.list_options(seen.query, _known_fields(kind), watch=False)
        gone = await self.objects.delete_collection(kind, namespace, selected.selector, options)
        return 200, _collection(kind, gone, self.storage.version)

    async def _special(self, kind: Kind, place: Place, seen: SeenRequest, options: Options) -> tuple[int, bytes]:
        namespace, name = place.namespace, place.name
        if kind.table is None:
            answer = subresources.review(kind, _decoded(seen, kind), options.user, self._tokens.get)
            return 201, orjson.dumps(answer)
        match place.subresource, place.verb:
            case 'scale', 'get':
                return 200, orjson.dumps(self._scales.get(kind, namespace, name))
            case 'scale', _:
                change = functools.partial(_changed, seen, kind)
                return 200, orjson.dumps(await self._scales.change(kind, namespace, name, change, options))
            case 'token', _:
                self.objects.get(kind, namespace, name)
                answer = subresources.token_request(namespace, name, _decoded(seen, kind), self._issue)
                return 201, orjson.dumps(answer)
            case 'eviction', _:
                await self.objects.delete(kind, namespace, name, options)
                return 201, orjson.dumps({'kind': 'Status', 'apiVersion': 'v1', 'metadata': {}, 'status': 'Success',
                                          'code': 201})
            case 'finalize' | 'approval', 'update':
                body = objects.decode(_decoded(seen, kind), kind, seen.body)
                raw, _ = await self.objects.replace(kind, namespace, name, body, options, 'finalize')
                return 200, raw
        self.objects.get(kind, namespace, name)
        raise statuses.not_emulated(f'{kind.plural}/{place.subresource}', 'nothing runs in its pods')

    async def _watch(
            self, request: web.BaseRequest, kind: Kind, place: Place, seen: SeenRequest,
    ) -> web.StreamResponse:
        form, _ = forms.negotiate(request.headers.get('Accept', ''), seen.query)
        options = listing.list_options(seen.query, _known_fields(kind), watch=True)
        watch = watching.Watch(self.storage, kind, place.namespace, options, form,
                               interrupt=lambda: self._interruption(seen, kind))
        response = web.StreamResponse(headers={'Content-Type': 'application/json', 'Cache-Control': 'no-cache, private'})
        await response.prepare(request)
        seen.status = response.status
        transport = request.transport
        if not isinstance(transport, asyncio.Transport):
            return response
        self._streams.add(transport)
        lines = watch.lines()
        try:
            async for data in lines:
                if (rule := self.faults.take(seen, watching=True)) is not None and rule.action == 'cut':
                    await response.write(data[:len(data) // 2])
                    raise Dropped
                await response.write(data)
            await response.write_eof()
        finally:
            await lines.aclose()
            self._streams.discard(transport)
        return response

    def _interruption(self, seen: SeenRequest, kind: Kind) -> AsyncIterator[bytes] | None:
        return None
