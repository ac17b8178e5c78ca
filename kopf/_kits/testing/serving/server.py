"""
The HTTP server of the sandbox: TLS on the loopback interface, users, faults, and the log of requests.

Why not a web framework with routes? The API has its own scheme of URLs, and the routing would make every request
slower. An instance belongs to one event loop and is used from there only, except for the methods of `Controls`.
"""

import asyncio
import contextlib
import inspect
import logging
import os
import socket
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, TypeVar

import orjson

from kopf._kits.testing.access import permissions, users
from kopf._kits.testing.access.users import Tokens, User
from kopf._kits.testing.access.write_options import Options
from kopf._kits.testing.kinds.kinds import Kind
from kopf._kits.testing.serving import routes
from kopf._kits.testing.serving.api_dispatch import Api, json_response, refused
from kopf._kits.testing.serving.audits import AuditLog
from kopf._kits.testing.serving.faults import REASONS, Controls, Fault, Faults, SeenRequest
from kopf._kits.testing.serving.impersonation import Impersonation
from kopf._kits.testing.serving.routes import Place
from kopf._kits.testing.storing import watching
from kopf._kits.testing.storing.states import State
from kopf._kits.testing.wire import statuses
from kopf._kits.testing.wire.httpconnections import Connection
from kopf._kits.testing.wire.httpexchanges import Dropped, Request, Response, Service
from kopf._kits.testing.wire.httplisteners import Listener
from kopf._kits.testing.wire.tls import Authority

T = TypeVar('T')

logger = logging.getLogger(__name__)

HOST = '127.0.0.1'
ADMIN = '/_sandbox/'

Bind = Callable[[tuple[str, int]], socket.socket]

MAX_BODY = 3 * 1024 * 1024
CACHING = ('Cache-Control', 'no-cache, private')


class Server(Controls):
    """
    The server; see `kopf.testing.Sandbox` for its users' side.

    ``history`` is the number of changes that are kept for each resource, ``log`` the number of requests that are kept.
    ``audit`` is the file for the audit log, if any. With ``rbac``, roles and bindings decide who may do what; with
    ``sharding``, lists and watches can be restricted to shards. ``bind`` opens the listening socket; by default, it is
    a real one with TLS.
    """

    def __init__(
        self,
        *,
        history: int = 2000,
        log: int = 5000,
        audit: str | os.PathLike[str] | None = None,
        rbac: bool = False,
        sharding: bool = False,
        bind: Bind | None = None,
    ) -> None:
        self._audit = AuditLog(audit) if audit is not None else None
        # Connections in memory are not encrypted.
        self._authority = Authority() if bind is None else None
        self._bind = socket.create_server if bind is None else bind
        self.faults = Faults(self)
        self.requests: deque[SeenRequest] = deque(maxlen=log)
        self.port = 0
        self.on_token: Callable[[], None] = lambda: None
        self._tokens = Tokens()
        self.api = Api(history=history, tokens=self._tokens, rbac=rbac, sharding=sharding)
        self._impersonation = Impersonation(self.api.authorizer)
        self.token = self._tokens.issue(User())
        self._streams: dict[Connection, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._listener: Listener | None = None
        self._ssl = self._authority.context() if self._authority is not None else None

    @property
    def url(self) -> str:
        """The URL of the server."""
        return f'{"http" if self._authority is None else "https"}://{HOST}:{self.port}'

    @property
    def authority(self) -> Authority:
        """The CA of the server's and the clients' certificates."""
        if self._authority is None:
            raise RuntimeError('There are no certificates in virtual time: its connections are not encrypted.')
        return self._authority

    @property
    def ca(self) -> bytes:
        """The certificate of the CA, in PEM; empty if connections are not encrypted."""
        return b'' if self._authority is None else self._authority.certificate

    async def start(self, port: int = 0, state: State | None = None) -> None:
        """
        Listen on the port, or on any free one.

        Raises:
            OSError: The port is taken.
            StateError: The state cannot be used.
        """
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        await self.api.start(state)
        self.port = port
        await self.accept_connections()

    async def stop(self) -> None:
        """Close the port and all connections."""
        await self.refuse_connections()
        await self.api.callouts.close()
        if self._audit is not None:
            self._audit.close()

    # Controls for faults.

    def call(self, function: Callable[[], T]) -> T:
        """Call the function in the server's thread and wait for it."""
        if self._loop is None or threading.get_ident() == self._thread:
            return function()

        # Why not call_soon_threadsafe()? It does not return the result, or raise the error.
        async def run() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def call_async(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run the coroutine function in the server's loop; wait for it, unless called from there."""
        assert self._loop is not None
        # In virtual time, the loop is in this thread, and does not run between two waits of the test.
        if threading.get_ident() == self._thread and not self._loop.is_running():
            self._loop.run_until_complete(function())
        elif threading.get_ident() == self._thread:
            task = self._loop.create_task(function())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            asyncio.run_coroutine_threadsafe(function(), self._loop).result()

    def wake(self) -> None:
        """Wake up all watches, so that they check the rules."""
        for table in self.api.storage:
            table.wake()

    def drop_watches(self) -> int:
        """Break off all watches."""
        streams = list(self._streams)
        for stream in streams:
            stream.abort()
        return len(streams)

    def forget_history(self) -> None:
        """Drop the history of all resources."""
        for table in self.api.storage:
            table.forget_before(self.api.storage.version)

    def freeze_discovery(self, frozen: bool) -> None:
        """Freeze the discovery, or update it again."""
        self.api.freeze_discovery(frozen)

    def set_availability(self, group: str, available: bool) -> None:
        """Make the API group available or unavailable."""
        self.api.set_availability(group, available)

    def expire_tokens(self) -> None:
        """Replace the token."""
        self._tokens.clear()
        self.token = self._tokens.issue(User())
        self.on_token()

    async def refuse_connections(self, seconds: float | None = None) -> None:
        """Close the port and all connections, for a time or until `accept_connections`."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        if seconds is not None:
            asyncio.get_running_loop().call_later(seconds, self.call_async, self.accept_connections)
        await listener.close()

    async def accept_connections(self) -> None:
        """Listen again."""
        if self._listener is None:
            listener = Listener(Service(handle=self._handle, get_max_body=lambda path: MAX_BODY, abandons=True))
            sock = self._bind((HOST, self.port))
            self.port = sock.getsockname()[1]
            await listener.open([sock], self._ssl)
            self._listener = listener

    # Requests.

    async def _handle(self, request: Request) -> Response | None:
        seen = SeenRequest(
            request.method, request.path, request.query, request.headers.get('user-agent', ''), request.content_type
        )
        options = Options()
        try:
            response = await self._answer(request, seen, options)
        except statuses.Refusal as refusal:
            response = refused(refusal, request.headers.get('accept', ''))
        except (Dropped, ConnectionError):
            seen.status = seen.status or 500
            self._record(seen)
            raise
        except Exception as error:
            if _is_too_deep(error):
                return self._refuse(seen, statuses.not_emulated('this', 'the object is nested too deeply'))
            logger.exception(f'The sandbox has failed to answer: {seen.method} {seen.path}')
            message = f'Internal error occurred: the sandbox has failed: {error!r}'
            response = json_response(statuses.Refusal(500, 'InternalError', message).as_status(), 500)
        if response is None:
            self._record(seen)
            return None
        seen.status = response.status
        self._record(seen)
        warnings = [('Warning', f'299 - {orjson.dumps(warning).decode()}') for warning in options.warnings]
        return response._replace(headers=[*response.headers, CACHING, *warnings])

    def _refuse(self, seen: SeenRequest, refusal: statuses.Refusal) -> Response:
        seen.status = refusal.code
        self._record(seen)
        return refused(refusal, '')

    def _record(self, seen: SeenRequest) -> None:
        if self._audit is not None:
            self._audit.write(seen)

    async def _answer(self, request: Request, seen: SeenRequest, options: Options) -> Response | None:
        path = seen.path
        if path.startswith(ADMIN):
            self._identify(request, seen, None)
            return self._administer(request, path.removeprefix(ADMIN))
        place = None
        if path.startswith(('/api/', '/apis/')):
            place = routes.locate(seen.method, path, seen.query)
            seen.verb = place.verb if place.plural else seen.method.lower()
            seen.group, seen.version, seen.resource = place.group, place.version, place.plural
            seen.namespace, seen.name, seen.subresource = place.namespace, place.name, place.subresource
        if seen.method in ('POST', 'PUT', 'PATCH', 'DELETE'):
            seen.body = _take_body(request)
        self.requests.append(seen)
        if (rule := self.faults.take(seen)) is None:
            return await self._act(request, seen, place, options)
        if rule.action == 'call' and rule.late:
            try:
                return await self._act(request, seen, place, options)
            finally:  # refusals are answers, too
                await apply_fault(rule)
        if rule.action != 'lose':
            await apply_fault(rule)
            return await self._act(request, seen, place, options)
        with contextlib.suppress(statuses.Refusal):
            await self._act(request, seen, place, options)
        raise Dropped

    async def _act(
        self,
        request: Request,
        seen: SeenRequest,
        place: Place | None,
        options: Options,
    ) -> Response | None:
        options.user = self._identify(request, seen, place)
        accept = request.headers.get('accept', '')
        if place is None or not place.plural:
            return self.api.document(seen.method, seen.path.rstrip('/') or '/', accept, f'{HOST}:{self.port}')
        kind = self.api.resolve(place, seen, options)
        seen.kind = kind.name
        if place.verb == 'watch':
            await self._watch(request, kind, place, seen)
            return None
        return await self.api.act(kind, place, seen, accept, options)

    async def _watch(self, request: Request, kind: Kind, place: Place, seen: SeenRequest) -> None:
        lines = self.api.watch(kind, place, seen, request.headers.get('accept', ''))
        stream = request.stream([('Content-Type', 'application/json'), CACHING])
        seen.status = 200
        self._streams[stream] = None
        try:
            going_on = await self._disturb(stream, seen, b'', kind)
            async for data in lines if going_on else _iter_nothing():
                if not await self._disturb(stream, seen, data, kind):
                    break
                await stream.write(data)
        except Exception as error:
            if not isinstance(error, (Dropped, ConnectionError)):
                logger.exception(f'The sandbox has failed in the middle of: {seen.method} {seen.path}')
            raise Dropped from error
        finally:
            self._streams.pop(stream, None)

    async def _disturb(self, stream: Connection, seen: SeenRequest, data: bytes, kind: Kind) -> bool:
        """Apply the faults to the stream before the data are sent; return whether the stream continues."""
        while (rule := self.faults.take(seen, watching=True, idle=not data)) is not None:
            match rule.action:
                case 'cut':
                    await stream.write(data[: max(1, len(data) // 2)])
                    raise Dropped
                case 'gone':
                    await stream.write(watching.error_line(statuses.expired('too old resource version')))
                    return False
                case 'fail':
                    await stream.write(watching.error_line(_refusal(rule)))
                    return False
                case 'end':
                    return False
                case 'say':
                    await stream.write(rule.line.encode() + b'\n')
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
        """Issue a token of the user (a random one if empty); return it."""
        return self._tokens.issue(user, token)

    def _identify(self, request: Request, seen: SeenRequest, place: Place | None) -> User:
        """Return the user of the request, or the impersonated one; raise a 401 or 403 if that is not allowed."""
        user = users.authenticate(request.headers, request.certificate, self.api.user_of)
        attributes = routes.attributes(place, seen.method, seen.path, seen.query)
        user = self._impersonation.act_as(user, request.headers, attributes)
        seen.user = user.name
        permissions.check(self.api.authorizer, user, attributes)
        return user

    # The admin endpoint: `Faults` and the log of requests for clients that are not in this process.

    def _administer(self, request: Request, path: str) -> Response:
        match request.method, path.rstrip('/'):
            case 'GET', 'faults':
                return json_response({'faults': [_fields(rule) for rule in self.faults.pending()]})
            case 'POST', 'faults':
                return self._add_fault(_take_body(request))
            case 'DELETE', 'faults':
                self.faults.clear()
                return json_response({})
            case 'GET', 'requests':
                return json_response({'requests': [_fields(seen) for seen in self.requests]})
            case 'POST', ('drop-watches' | 'forget-history' | 'expire-tokens') as action:
                getattr(self.faults, action.replace('-', '_'))()
                return json_response({})
            case 'POST', 'refuse-connections':
                # Do this a little later, so that this request still gets its response.
                seconds = _seconds(_take_body(request))
                asyncio.get_running_loop().call_later(0.05, self.faults.refuse_connections, seconds)
                return json_response({})
        raise statuses.UnknownPath

    def _add_fault(self, body: bytes) -> Response:
        try:
            rule = self.faults.add(**orjson.loads(body))
        except (ValueError, TypeError) as error:
            raise statuses.bad_request(f'not a fault: {error}') from None
        return json_response(_fields(rule), 201)


def _take_body(request: Request) -> bytes:
    if request.body is None:
        raise statuses.Refusal(413, 'RequestEntityTooLarge', f'Request entity too large: limit is {MAX_BODY}')
    return request.body


async def apply_fault(rule: Fault) -> None:
    match rule.action:
        case 'delay':
            await asyncio.sleep(rule.seconds or 0)
        case 'call':
            assert rule.function is not None
            result = rule.function()
            if inspect.isawaitable(result):
                await result
            await asyncio.sleep(0)  # if the function has killed the client, the request is cancelled here
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


async def _iter_nothing() -> AsyncIterator[bytes]:
    return
    yield


def _seconds(body: bytes) -> float:
    try:
        return float(orjson.loads(body or b'{}').get('seconds', 1))
    except (ValueError, TypeError, AttributeError):
        raise statuses.bad_request('the number of seconds is wanted: {"seconds": 1}') from None


def _fields(item: Any) -> dict[str, Any]:
    fields = {name: getattr(item, name) for name in item.__slots__ if name not in ('function', 'condition')}
    return {
        name: value.decode(errors='replace')
        if isinstance(value, bytes)
        else dict(value)
        if isinstance(value, Mapping)
        else value
        for name, value in fields.items()
    }


def _is_too_deep(error: Exception) -> bool:
    """Check whether the error is the limit of recursion: real servers accept some thousands of nested levels."""
    return isinstance(error, RecursionError) or isinstance(error, TypeError) and str(error) == 'Recursion limit reached'
