"""
The HTTP server of the sandbox: TLS on the loopback interface, users, faults, and the log of requests.

It is a bare handler of aiohttp, without applications and routes: the API has its own way of naming things, and every
microsecond here is paid by each request. One instance lives in one event loop and is used from there only, but for
what `Controls` promises.
"""
import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, TypeVar

import orjson
from aiohttp import web

from kopf._kits.testing import routes, statuses, subresources, watching
from kopf._kits.testing.api import Api, json_response
from kopf._kits.testing.audits import AuditLog
from kopf._kits.testing.certificates import Authority
from kopf._kits.testing.faults import REASONS, Controls, Fault, Faults, SeenRequest
from kopf._kits.testing.kinds import Kind
from kopf._kits.testing.rest import Options, User
from kopf._kits.testing.routes import Place

T = TypeVar('T')

logger = logging.getLogger(__name__)

HOST = '127.0.0.1'
ADMIN = '/_sandbox/'
MAX_BODY = 3 * 1024 * 1024
OPEN_PATHS = frozenset({'/healthz', '/livez', '/readyz', '/version'})


class Dropped(Exception):
    """The connection is to be broken off."""


class Server(Controls):
    """
    The server; see `kopf.testing.Sandbox` for the door to it.

    ``history`` is the number of changes that are remembered a resource, ``log`` that of requests; ``audit`` is a file
    for the audit log, if there is to be one.
    """

    def __init__(self, *, history: int = 2000, log: int = 5000, audit: str | os.PathLike[str] | None = None) -> None:
        self._audit = AuditLog(audit) if audit is not None else None
        self.authority = Authority()
        self.faults = Faults(self)
        self.requests: deque[SeenRequest] = deque(maxlen=log)
        self.port = 0
        self.on_token: Callable[[], None] = lambda: None
        self._tokens: dict[str, User] = {}
        self.api = Api(history=history, lookup=self._tokens.get, issue=self.issue_token)
        self.token = self.issue_token(User())
        self._streams: set[asyncio.BaseTransport] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._server: web.Server | None = None
        self._runner: web.ServerRunner | None = None
        self._site: web.TCPSite | None = None
        self._ssl = self.authority.context()

    @property
    def url(self) -> str:
        """Where the server listens."""
        return f'https://{HOST}:{self.port}'

    async def start(self, port: int = 0) -> None:
        """Listen on the port, or on any free one; OSError if it is taken."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        await self.api.start()
        self.port = port
        await self.accept_connections()

    async def stop(self) -> None:
        """Close the port and all connections."""
        await self.refuse_connections()
        await self.api.webhooks.close()
        if self._audit is not None:
            self._audit.close()

    # What faults need.

    def call(self, function: Callable[[], T]) -> T:
        """Call the function in the server's thread and wait for it."""
        if self._loop is None or threading.get_ident() == self._thread:
            return function()

        async def run() -> T:
            return function()
        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def call_async(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run the coroutine function in the server's loop; waits for it, unless called from there."""
        assert self._loop is not None
        if threading.get_ident() == self._thread:
            task = self._loop.create_task(function())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            asyncio.run_coroutine_threadsafe(function(), self._loop).result()

    def wake(self) -> None:
        """Let all watches look at the rules."""
        for table in self.api.storage:
            table.wake()

    def drop_watches(self) -> int:
        """Break off all watches."""
        streams = list(self._streams)
        for transport in streams:
            _abort(transport)
        return len(streams)

    def forget_history(self) -> None:
        """Drop the history of all resources."""
        for table in self.api.storage:
            table.forget_before(self.api.storage.version)

    def set_availability(self, group: str, available: bool) -> None:
        """Let the API group be served, or not."""
        self.api.set_availability(group, available)

    def expire_tokens(self) -> None:
        """Replace the token."""
        self._tokens.clear()
        self.token = self.issue_token(User())
        self.on_token()

    async def refuse_connections(self, seconds: float | None = None) -> None:
        """Close the port and all connections, for a time or for good."""
        if self._runner is None or self._server is None or self._site is None:
            return
        if seconds is not None:
            asyncio.get_running_loop().call_later(seconds, self.call_async, self.accept_connections)
        runner, self._runner = self._runner, None
        await self._site.stop()
        for connection in self._server.connections:
            if connection.transport is not None:
                _abort(connection.transport)
        await runner.cleanup()

    async def accept_connections(self) -> None:
        """Listen again."""
        if self._runner is not None:
            return
        self._server = web.Server(self._handle, request_factory=_make_request, handler_cancellation=True,
                                  access_log=None, keepalive_timeout=3600)
        runner = web.ServerRunner(self._server, shutdown_timeout=0.1)
        await runner.setup()
        self._site = web.TCPSite(runner, HOST, self.port, ssl_context=self._ssl, backlog=512)
        await self._site.start()
        self._runner = runner
        self.port = runner.addresses[0][1]

    # Requests.

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        seen = SeenRequest(
            request.method, request.path, request.query, request.headers.get('User-Agent', ''), request.content_type)
        options = Options()
        try:
            response = await self._answer(request, seen, options)
        except statuses.UnknownPath:
            response = web.Response(status=404, text='404 page not found\n')
        except statuses.Refusal as refusal:
            response = json_response(refusal.as_status(), refusal.code, refusal.headers)
        except web.HTTPRequestEntityTooLarge:
            message = f'Request entity too large: limit is {MAX_BODY}'
            response = json_response(statuses.Refusal(413, 'RequestEntityTooLarge', message).as_status(), 413)
        except (Dropped, ConnectionError):
            _abort(request.transport)
            response = web.Response(status=500)
        except Exception as error:
            logger.exception(f'The sandbox has failed to answer: {seen.method} {seen.path}')
            message = f'Internal error occurred: the sandbox has failed: {error!r}'
            response = json_response(statuses.Refusal(500, 'InternalError', message).as_status(), 500)
        seen.status = response.status
        if self._audit is not None:
            self._audit.write(seen)
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
            seen.verb = place.verb if place.plural else seen.method.lower()
            seen.group, seen.version, seen.resource = place.group, place.version, place.plural
            seen.namespace, seen.name, seen.subresource = place.namespace, place.name, place.subresource
        if seen.method in ('POST', 'PUT', 'PATCH', 'DELETE'):
            seen.body = await request.read()
        self.requests.append(seen)
        if (rule := self.faults.take(seen)) is not None:
            await _suffer(rule)
        options.user = self._authenticate(request, seen)
        accept = request.headers.get('Accept', '')
        if place is None or not place.plural:
            return self.api.document(path.rstrip('/') or '/', accept, f'{HOST}:{self.port}')
        kind = self.api.resolve(place, seen, options)
        seen.kind = kind.name
        if place.verb == 'watch':
            return await self._watch(request, kind, place, seen)
        return await self.api.act(kind, place, seen, accept, options)

    async def _watch(
            self, request: web.BaseRequest, kind: Kind, place: Place, seen: SeenRequest,
    ) -> web.StreamResponse:
        lines = self.api.watch(kind, place, seen, request.headers.get('Accept', ''))
        response = web.StreamResponse(headers={'Content-Type': 'application/json',
                                               'Cache-Control': 'no-cache, private'})
        await response.prepare(request)
        seen.status = response.status
        if (transport := request.transport) is None:
            return response
        self._streams.add(transport)
        try:
            going_on = await self._disturb(response, seen, b'', kind)
            async for data in lines if going_on else _nothing():
                if not await self._disturb(response, seen, data, kind):
                    break
                if data:
                    await response.write(data)
        finally:
            self._streams.discard(transport)
        return response

    async def _disturb(self, response: web.StreamResponse, seen: SeenRequest, data: bytes, kind: Kind) -> bool:
        """Do to the stream what is asked for, before the data are sent; tell if it goes on."""
        while (rule := self.faults.take(seen, watching=True, idle=not data)) is not None:
            match rule.action:
                case 'cut':
                    await response.write(data[:max(1, len(data) // 2)])
                    raise Dropped
                case 'gone':
                    await response.write(watching.error_line(statuses.expired('too old resource version')))
                    return False
                case 'fail':
                    await response.write(watching.error_line(_refusal(rule)))
                    return False
                case 'end':
                    return False
                case 'say':
                    await response.write(rule.line.encode() + b'\n')
                case 'freeze':
                    await self._freeze(rule, kind)
        return True

    async def _freeze(self, rule: Fault, kind: Kind) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + rule.seconds if rule.seconds is not None else None
        while self.faults.is_frozen(rule) and (end is None or loop.time() < end):
            waiter = kind.store.waiter()
            try:
                async with asyncio.timeout_at(end):
                    await waiter
            except TimeoutError:
                return
            finally:
                kind.store.discard(waiter)

    # Users.

    def issue_token(self, user: User, token: str = '') -> str:
        """Let whoever shows the token (a random one if empty) be that user; returns the token."""
        token = token or subresources.new_token()
        self._tokens[token] = user
        return token

    def _authenticate(self, request: web.BaseRequest, seen: SeenRequest) -> User:
        scheme, _, token = request.headers.get('Authorization', '').partition(' ')
        user = None
        if scheme:
            user = self._tokens.get(token.strip()) if scheme.lower() == 'bearer' else None
            if user is None:
                raise statuses.unauthorized()
        elif request.transport is not None and (certificate := request.transport.get_extra_info('peercert')):
            user = _certified(certificate)
        if user is None:
            user = User('system:anonymous', ('system:unauthenticated',))
            if seen.path.rstrip('/') not in OPEN_PATHS:
                raise _anonymous(seen)
        seen.user = user.name
        return user

    # The admin endpoint: what `Faults` and the log of requests are for Python, for all others.

    async def _administer(self, request: web.BaseRequest, path: str) -> web.Response:
        match request.method, path.rstrip('/'):
            case 'GET', 'faults':
                return json_response({'faults': [_fields(rule) for rule in self.faults.pending()]})
            case 'POST', 'faults':
                return self._add_fault(await request.read())
            case 'DELETE', 'faults':
                self.faults.clear()
                return json_response({})
            case 'GET', 'requests':
                return json_response({'requests': [_fields(seen) for seen in self.requests]})
            case 'POST', ('drop-watches' | 'forget-history' | 'expire-tokens') as action:
                getattr(self.faults, action.replace('-', '_'))()
                return json_response({})
            case 'POST', 'refuse-connections':
                # A little later, so that this request is still answered.
                seconds = _seconds(await request.read())
                asyncio.get_running_loop().call_later(0.05, self.faults.refuse_connections, seconds)
                return json_response({})
        raise statuses.UnknownPath

    def _add_fault(self, body: bytes) -> web.Response:
        try:
            rule = self.faults.add(**orjson.loads(body))
        except (ValueError, TypeError) as error:
            raise statuses.bad_request(f'not a fault: {error}') from None
        return json_response(_fields(rule), 201)


def _make_request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    return web.BaseRequest(message, payload, protocol, writer, task, asyncio.get_running_loop(),
                           client_max_size=MAX_BODY)


def _abort(transport: asyncio.BaseTransport | None) -> None:
    if isinstance(transport, asyncio.Transport) or hasattr(transport, 'abort'):
        transport.abort()  # type: ignore[union-attr]


async def _suffer(rule: Fault) -> None:
    match rule.action:
        case 'delay':
            await asyncio.sleep(rule.seconds or 0)
        case 'drop':
            raise Dropped
        case 'error':
            raise _refusal(rule)


def _refusal(rule: Fault) -> statuses.Refusal:
    headers = {} if rule.retry_after is None else {'Retry-After': str(rule.retry_after)}
    details = None if rule.retry_after is None else {'retryAfterSeconds': rule.retry_after}
    reason = rule.reason or REASONS.get(rule.status, '')
    message = rule.message or 'this error was asked for'
    return statuses.Refusal(rule.status, reason, message, details, headers=headers)


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield


def _certified(certificate: Mapping[str, Any]) -> User:
    pairs = [pair for group in certificate.get('subject', ()) for pair in group]
    name = next((value for key, value in pairs if key == 'commonName'), '')
    groups = tuple(value for key, value in pairs if key == 'organizationName')
    return User(name, (*groups, 'system:authenticated'))


def _anonymous(seen: SeenRequest) -> statuses.Refusal:
    if not seen.resource:
        return statuses.Refusal(403, 'Forbidden', 'forbidden: User "system:anonymous" cannot '
                                                  f'{seen.method.lower()} path "{seen.path}"', {})
    scope = f'in the namespace "{seen.namespace}"' if seen.namespace else 'at the cluster scope'
    return statuses.forbidden(seen.group, seen.resource, seen.name,
                              f'User "system:anonymous" cannot {seen.verb} resource "{seen.resource}" in API group '
                              f'"{seen.group}" {scope}')


def _seconds(body: bytes) -> float:
    try:
        return float(orjson.loads(body or b'{}').get('seconds', 1))
    except (ValueError, TypeError, AttributeError):
        raise statuses.bad_request('the number of seconds is wanted: {"seconds": 1}') from None


def _fields(item: Any) -> dict[str, Any]:
    fields = {name: getattr(item, name) for name in item.__slots__}
    return {name: value.decode(errors='replace') if isinstance(value, bytes) else dict(value)
            if isinstance(value, Mapping) else value for name, value in fields.items()}
