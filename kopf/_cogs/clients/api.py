"""
The only seam between the operator and the network.

It adds to HTTP what every talk with the Kubernetes API needs: credentials that come and go,
retries, time-outs, typed errors. Everything that does not change from request to request (headers,
TLS contexts, time-outs, URLs' beginnings) is prepared once per credentials, since requests are counted
in tens of thousands. Settings are read at every request: startup handlers may change them at any time.
"""
import asyncio
import contextlib
import json
import logging
import time
import urllib.parse
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Iterator, Mapping, Sized
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import orjson

from kopf._cogs.clients import errors
from kopf._cogs.configs import configuration
from kopf._cogs.helpers import versions
from kopf._cogs.structs import credentials

if TYPE_CHECKING:
    import aiohttp
    import yarl

AnyLogger: TypeAlias = logging.Logger | logging.LoggerAdapter[Any]
Params: TypeAlias = Mapping[str, str | int | None]
Backoffs: TypeAlias = float | Iterable[float]
Failures: TypeAlias = tuple[type[Exception], ...]

# Fewer seconds than servers and load balancers usually keep an idle connection: they must not close it
# at the very moment when we use it.
_KEEPALIVE = 30.0

# How often the files with tokens are looked into (seconds). Kubelet renews them long before they expire.
_TOKEN_REFRESH = 10.0

# Watch-streams come in many small chunks; lists in a few huge ones.
_READ_BUFFER = 2 ** 18

default_logger = logging.getLogger(__name__)


class ApiClient:
    """
    The client of the Kubernetes API; an async context manager.

    Args:
        vault: where credentials come from and where the refused ones are reported to.
        settings: the settings, mostly ``settings.networking``.
    """

    def __init__(self, vault: credentials.Vault, settings: configuration.OperatorSettings) -> None:
        self._vault = vault
        self._settings = settings
        self._connections: dict[credentials.VaultKey, _Connection] = {}
        self._retired: set[_Connection] = set()
        self._slots: asyncio.Semaphore | None = None
        self._default_namespace: str | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
            self,
            exc_type: type[BaseException] | None,
            exc: BaseException | None,
            traceback: TracebackType | None,
    ) -> None:
        connections = [*self._connections.values(), *self._retired]
        self._connections.clear()
        self._retired.clear()
        for connection in connections:
            await connection.close()

    @property
    def default_namespace(self) -> str | None:
        """The namespace of the credentials in use; `None` before the first request or if there is none."""
        return self._default_namespace

    async def get_json(self, path: str, params: Params | None = None, *, logger: AnyLogger | None = None) -> Any:
        """Get the decoded JSON of an object, a list, etc.; errors are those of `request`."""
        return orjson.loads(await self.request('GET', path, params=params, logger=logger))

    async def post_json(self, path: str, obj: Any, *, logger: AnyLogger | None = None) -> Any:
        """Create an object, get it as it is created; errors are those of `request`."""
        return orjson.loads(await self.request('POST', path, payload=encode(obj), logger=logger))

    async def patch(self, path: str, obj: Any, content_type: str, *, logger: AnyLogger | None = None) -> Any:
        """Patch an object by a patch of the given type, get its new state; errors are those of `request`."""
        return orjson.loads(await self.request(
            'PATCH', path, payload=encode(obj), content_type=content_type, logger=logger))

    async def request(
            self,
            method: str,
            path: str,
            *,
            params: Params | None = None,
            payload: bytes | None = None,
            content_type: str = 'application/json',
            accept: str | None = None,
            timeout: float | None = None,
            logger: AnyLogger | None = None,
            retry: bool = True,
            backoffs: Backoffs | None = None,
    ) -> bytes:
        """
        Make a request, get the body of the response.

        Requests that fail for temporary reasons are repeated after ``settings.networking.error_backoffs``:
        with network errors, 5xx, 429. A request can therefore be made twice if its response is lost.

        Args:
            method: the HTTP method.
            path: the path after the server's URL, beginning with a slash.
            params: the query; those which are `None` are left out.
            payload: the body of the request.
            content_type: the type of the payload, if there is a payload.
            accept: the types of the response to accept.
            timeout: the limit of one attempt (seconds) instead of ``settings.networking.request_timeout``.
            logger: where the failed attempts are reported to.
            retry: whether to repeat at all.
            backoffs: the pauses between attempts (seconds) instead of ``settings.networking.error_backoffs``.

        Raises:
            errors.APIError: if the last attempt has failed, or if there is no sense in repeating.
            credentials.LoginError: if there are no (more) credentials.
        """
        query = _encode_query(path, params)
        headers = (accept, content_type if payload is not None else None)
        attempts = _Attempts(self._settings.networking, logger or default_logger, backoffs if retry else ())
        while True:
            refusal: errors.APIUnauthorizedError | None = None
            failure: errors.APIError | None = None
            async with self._get_slots():
                connection = await self._acquire()
                try:
                    return await connection.request(
                        method, query, payload=payload, headers=headers,
                        timeout=self._settings.networking.request_timeout if timeout is None else timeout,
                        connect_timeout=self._settings.networking.connect_timeout,
                    )
                except errors.APIUnauthorizedError as e:
                    refusal = e
                except (errors.APIServerError, errors.APITooManyRequestsError, errors.APIConnectionError) as e:
                    failure = e
                finally:
                    await self._release(connection)

            # Nothing is held while waiting: neither a connection, nor a slot.
            if refusal is not None:
                await self._replace(connection, refusal)
            elif failure is not None:
                await attempts.wait(failure, method, connection.server + query)

    @contextlib.asynccontextmanager
    async def stream(
            self,
            path: str,
            params: Params | None = None,
    ) -> AsyncGenerator[AsyncIterator[list[bytes]], None]:
        """
        Open an endless response, such as a watch-stream, to be read by lines of any length.

        The lines come in lists: all those that the network has brought at once. The last one can be incomplete
        if the server ends the stream in its middle. A read can be cancelled and repeated, with nothing lost.
        There are no retries except for new credentials, and no limit of time except for
        ``settings.watching.client_timeout``, after which the stream ends.

        Args:
            path: the path after the server's URL, beginning with a slash.
            params: the query; those which are `None` are left out.

        Raises:
            errors.APIError: if the stream is not opened; from reads: if it breaks.
            credentials.LoginError: if there are no (more) credentials.
        """
        query = _encode_query(path, params)
        while True:
            connection = await self._acquire()
            try:
                response = await self._open(connection, query)
            except errors.APIUnauthorizedError as e:
                refusal = e
            else:
                with contextlib.closing(response):
                    yield _Lines(response, connection.failures)
                return
            finally:
                await self._release(connection)
            await self._replace(connection, refusal)

    async def _open(self, connection: '_Connection', query: str) -> 'aiohttp.ClientResponse':
        networking, watching = self._settings.networking, self._settings.watching
        connect_timeouts = [watching.connect_timeout, networking.connect_timeout, networking.request_timeout]
        return await connection.open(
            query,
            timeout=networking.request_timeout,
            connect_timeout=next((value for value in connect_timeouts if value is not None), None),
            total_timeout=watching.client_timeout,
        )

    async def _acquire(self) -> '_Connection':
        key, info = await self._vault.select()
        connection = self._connections.get(key)
        if connection is not None and connection.info is info:
            connection.users += 1
            return connection
        outdated, connection = connection, _Connection(key, info)
        connection.users += 1
        self._connections[key] = connection
        self._default_namespace = info.default_namespace or self._default_namespace
        if outdated is not None:
            await self._retire(outdated)
        return connection

    async def _release(self, connection: '_Connection') -> None:
        connection.users -= 1
        if connection in self._retired and not connection.users:
            self._retired.discard(connection)
            await connection.close()

    async def _replace(self, connection: '_Connection', refusal: errors.APIUnauthorizedError) -> None:
        if self._connections.get(connection.key) is connection:
            del self._connections[connection.key]
            await self._retire(connection)
        await self._vault.invalidate(connection.key, connection.info, refusal)

    async def _retire(self, connection: '_Connection') -> None:
        # The session of old credentials lives for as long as it has requests or streams in flight.
        if connection.users:
            self._retired.add(connection)
        else:
            await connection.close()

    def _get_slots(self) -> asyncio.Semaphore:
        if self._slots is None:
            self._slots = asyncio.Semaphore(max(1, self._settings.networking.max_connections))
        return self._slots


def encode(obj: Any) -> bytes:
    """
    Encode what handlers want to be in an object: JSON types, and also views, tuples, sets, huge integers.

    Raises:
        TypeError: if there is anything else inside.
    """
    try:
        return orjson.dumps(obj, default=_simplify)
    except orjson.JSONEncodeError:
        return json.dumps(obj, default=_simplify, separators=(',', ':')).encode()


def _simplify(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Collection):
        return list(value)
    raise TypeError(f"{type(value).__name__} cannot be stored in an object: {value!r}")


class _Attempts:
    """Counts the attempts of one request and waits between them."""
    __slots__ = ('_settings', '_logger', '_backoffs', '_iterator', '_count', '_total')

    def __init__(
            self,
            settings: configuration.NetworkingSettings,
            logger: AnyLogger,
            backoffs: Backoffs | None,
    ) -> None:
        self._settings = settings
        self._logger = logger
        self._backoffs = backoffs
        self._iterator: Iterator[float] | None = None
        self._count = 0
        self._total = ''

    async def wait(self, error: errors.APIError, method: str, url: str) -> None:
        """Report a failed attempt and wait for the next one, or raise the error if it was the last."""
        self._count += 1
        if self._iterator is None:
            backoffs = self._settings.error_backoffs if self._backoffs is None else self._backoffs
            backoffs = backoffs if isinstance(backoffs, Iterable) else [backoffs]
            self._total = f"/{len(backoffs) + 1}" if isinstance(backoffs, Sized) else ''
            self._iterator = iter(backoffs)
        backoff = next(self._iterator, None)
        cause = error.__cause__ or error
        if backoff is None:
            self._logger.error("Request attempt #%d%s failed; escalating: %s %s -> %r",
                               self._count, self._total, method, url, cause)
            raise error
        self._logger.error("Request attempt #%d%s failed; will retry: %s %s -> %r",
                           self._count, self._total, method, url, cause)
        await asyncio.sleep(self._extend(backoff, error.retry_after))

    def _extend(self, backoff: float, retry_after: float | None) -> float:
        if retry_after is None:
            return backoff
        return retry_after if self._settings.enforce_retry_after else max(backoff, retry_after)


class _Connection:
    """A session with the server under the same credentials, and everything prepared for its requests."""
    __slots__ = ('key', 'info', 'server', 'users', 'failures', '_session', '_owned', '_options',
                 '_headers', '_variants', '_refreshed', '_timeouts')

    def __init__(self, key: credentials.VaultKey, info: credentials.KubeContext) -> None:
        import aiohttp
        self.key = key
        self.info = info
        self.server = info.server.rstrip('/')
        self.users = 0
        self.failures: Failures = (aiohttp.ClientError, OSError)  # time-outs are OSError
        self._options: dict[str, Any] = {'allow_redirects': False}
        self._headers: Mapping[str, str] = {}
        self._variants: dict[_ExtraHeaders, Mapping[str, str]] = {}
        self._refreshed = time.monotonic()
        self._timeouts: dict[tuple[float | None, float | None], aiohttp.ClientTimeout] = {}
        if isinstance(info, credentials.AiohttpSession):
            self._session, self._owned = info.aiohttp_session, False
        elif isinstance(info, credentials.ConnectionInfo):
            self._session, self._owned = self._open_session(info), True
        else:
            raise credentials.LoginError(f"Login handlers must return ConnectionInfo, not {type(info).__name__}.")

    def _open_session(self, info: credentials.ConnectionInfo) -> 'aiohttp.ClientSession':
        import aiohttp
        if not self.server.startswith(('http://', 'https://')):
            raise credentials.LoginError(f"The server's address must be an HTTP(S) URL, not {info.server!r}.")
        try:
            self._headers = {'User-Agent': versions.user_agent, **info.as_http_headers()}
            context = info.as_ssl_context() if self.server.startswith('https://') else True
        except (OSError, ValueError) as e:
            raise credentials.LoginError(f"The credentials for {self.server} cannot be used: {e}") from e
        if info.tls_server_name:
            self._options['server_hostname'] = info.tls_server_name
        if info.proxy_url:
            if not info.proxy_url.startswith(('http://', 'https://')):
                raise credentials.LoginError(f"Only HTTP proxies are supported, not {info.proxy_url!r}.")
            self._options['proxy'] = info.proxy_url
        return aiohttp.ClientSession(
            # The limit is ours: streams and requests share the sockets, but streams are not limited.
            connector=aiohttp.TCPConnector(limit=0, ssl=context, keepalive_timeout=_KEEPALIVE),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=['Accept-Encoding', 'Content-Type'],  # unpacking costs more than the network
            auto_decompress=False,
            trust_env=info.trust_env,
            read_bufsize=_READ_BUFFER,
        )

    async def close(self) -> None:
        """Close the session if it is ours, with all that is still in flight."""
        if self._owned:
            await self._session.close()

    async def request(
            self,
            method: str,
            query: str,
            *,
            payload: bytes | None,
            headers: '_ExtraHeaders',
            timeout: float | None,
            connect_timeout: float | None,
    ) -> bytes:
        """Make one request; all errors are typed."""
        try:
            async with asyncio.timeout(timeout), self._session.request(
                method, self._make_url(query), data=payload, headers=self._make_headers(headers),
                timeout=self._make_timeout(None, connect_timeout), **self._options,
            ) as response:
                body = await response.read()
        except self.failures as e:
            raise _make_error(e) from e
        errors.check_response(response.status, response.headers, body)
        return body

    async def open(
            self,
            query: str,
            *,
            timeout: float | None,
            connect_timeout: float | None,
            total_timeout: float | None,
    ) -> 'aiohttp.ClientResponse':
        """Open a stream; all errors are typed; `timeout` is for everything until the stream begins."""
        try:
            async with asyncio.timeout(timeout):
                response = await self._session.request(
                    'GET', self._make_url(query), headers=self._make_headers((None, None)),
                    timeout=self._make_timeout(total_timeout, connect_timeout), **self._options)
                if response.status < 400:
                    return response
                async with response:
                    body = await response.read()
        except self.failures as e:
            raise _make_error(e) from e
        raise errors.build_error(response.status, response.headers, body)

    def _make_url(self, query: str) -> 'yarl.URL':
        import yarl
        return yarl.URL(self.server + query, encoded=True)

    def _make_headers(self, extra: '_ExtraHeaders') -> Mapping[str, str]:
        info = self.info
        if isinstance(info, credentials.ConnectionInfo) and info.token_path:
            self._refresh_token(info)
        headers = self._variants.get(extra)
        if headers is None:
            import multidict
            accept, content_type = extra
            named = {'Accept': accept or 'application/json', 'Content-Type': content_type}
            headers = multidict.CIMultiDict(self._headers)
            headers.update({name: value for name, value in named.items() if value is not None})
            self._variants[extra] = headers
        return headers

    def _refresh_token(self, info: credentials.ConnectionInfo) -> None:
        now = time.monotonic()
        if now - self._refreshed >= _TOKEN_REFRESH:
            self._refreshed = now
            with contextlib.suppress(OSError):  # the old token may be good for a while
                self._headers = {**self._headers, **info.as_http_headers()}
                self._variants.clear()

    def _make_timeout(self, total: float | None, connect: float | None) -> 'aiohttp.ClientTimeout':
        timeout = self._timeouts.get((total, connect))
        if timeout is None:
            import aiohttp
            timeout = self._timeouts[total, connect] = aiohttp.ClientTimeout(total=total, sock_connect=connect)
        return timeout


class _Lines:
    """Splits a stream to lines; unlike a generator, it survives the cancellation of a read."""
    __slots__ = ('_content', '_failures', '_rest')

    def __init__(self, response: 'aiohttp.ClientResponse', failures: Failures) -> None:
        self._content = response.content
        self._failures = failures
        self._rest: list[bytes] = []  # the beginning of a line; it is joined once, however long it is

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[bytes]:
        while True:
            chunk = await self._read()
            if not chunk:
                line, self._rest = b''.join(self._rest), []
                if line:
                    return [line]
                raise StopAsyncIteration
            head, newline, tail = chunk.rpartition(b'\n')
            if not newline:
                self._rest.append(chunk)
                continue
            self._rest.append(head)
            lines = [line for line in b''.join(self._rest).split(b'\n') if line]
            self._rest = [tail] if tail else []
            if lines:
                return lines

    async def _read(self) -> bytes:
        try:
            return await self._content.readany()
        except TimeoutError:  # of the whole stream: as if the server has ended it
            self._rest.clear()
            return b''
        except self._failures as e:
            raise _make_error(e) from e


_ExtraHeaders: TypeAlias = tuple[str | None, str | None]  # Accept, Content-Type


def _encode_query(path: str, params: Params | None) -> str:
    if not params:
        return path
    query = urllib.parse.urlencode({key: value for key, value in params.items() if value is not None})
    return f"{path}?{query}" if query else path


def _make_error(exc: Exception) -> errors.APIError:
    message = str(exc) or repr(exc)
    if isinstance(exc, TimeoutError):
        return errors.APITimeoutError(message)
    return errors.APIConnectionError(message)
