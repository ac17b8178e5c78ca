"""
The client of the Kubernetes API: the only interface between the operator and the network.

It adds rotation of credentials, retries, and rate limits to the sessions. Settings are read at every request, and never
stored: startup handlers may change them after the client is created.
"""

import asyncio
import contextlib
import functools
import json
import logging
import time
import urllib.parse
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping, Sized
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import orjson

from kopf._cogs.clients import errors, pacing, sessions
from kopf._cogs.configs import configuration
from kopf._cogs.helpers.jsontexts import dump_tightly, replace_halves
from kopf._cogs.structs import credentials
from kopf._cogs.structs.instruments import NO_INSTRUMENTS, ApiRequest, Instruments

if TYPE_CHECKING:
    import aiohttp

AnyLogger: TypeAlias = logging.Logger | logging.LoggerAdapter[Any]
Params: TypeAlias = Mapping[str, str | int | None]
Backoffs: TypeAlias = float | Iterable[float]

_SNIPPET = 200

default_logger = logging.getLogger(__name__)


client_var: 'ContextVar[ApiClient]' = ContextVar('client_var')
"""The client of the operator, for requests of its handlers and webhook servers."""

unfenced_var: ContextVar[bool] = ContextVar('unfenced_var', default=False)
"""Whether the current code may write even when the client is fenced: see `ApiClient.fence`."""


LANDMARK_TIMEOUT = 10.0
"""How long all requests wait until a server shows whether it is that of the former cluster (in seconds)."""


class ApiClient:
    """
    The client of the Kubernetes API; an async context manager.

    When it is closed, all requests in flight and in the queue fail with `errors.APIConnectionError`.

    Args:
        vault: the source of credentials, to which refused ones are reported.
        settings: the settings of the operator; almost all that it reads are in ``settings.networking``.
        instruments: the instruments to report the requests to.
    """

    def __init__(
        self,
        vault: credentials.Vault,
        settings: configuration.OperatorSettings,
        instruments: Instruments = NO_INSTRUMENTS,
    ) -> None:
        self._vault = vault
        self._settings = settings
        self.instruments = instruments
        """The instruments to report the requests to."""
        self._sessions: dict[credentials.VaultKey, sessions.Session] = {}
        self._retired: set[sessions.Session] = set()
        self._given: set[aiohttp.ClientSession] = set()  # sessions of login handlers, which the client has to close
        self._gates: dict[str, pacing.Gate] = {}  # by server
        self._default_namespace: str | None = None
        self._lacks: set[str] = set()
        self._streams: set[sessions.Stream] = set()
        self._cluster_generation = 0
        self._login_generation = vault.cluster_generation  # the last one that was looked at
        self._looking_around = asyncio.Lock()
        self._landmark: tuple[str, str] | None = None  # the path and the uid of an object
        self.listeners: list[Callable[[], None]] = []
        """The functions to call when a login has led to another cluster; they must not start tasks."""
        self._fence: Callable[[], None] | None = None
        self._pauses: set[asyncio.Task[None]] = set()  # between attempts
        self._closed = False
        self._doubtful = True  # no server has responded yet, and no warning was logged

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; it can be called repeatedly."""
        # Set it before anything is awaited: requests that wait for a login check it afterwards, and do not open new
        # sessions.
        self._closed = True
        for pause in self._pauses:
            pause.cancel()
        everything = [*self._sessions.values(), *self._retired]
        # Empty the dict before the sessions are closed: a failing request releases its session, and must not close it
        # again.
        self._sessions.clear()
        self._retired.clear()
        # Close the gates before the sessions, so that queued requests are refused at once. In closing sessions, they
        # would fail one after another, and each would wait for its next attempt.
        for gate in self._gates.values():
            gate.close()
        for session in everything:
            await session.close()
        for given in self._given:
            await given.close()
        self._given.clear()
        for _ in range(2):
            await asyncio.sleep(0)  # transports close in the next iterations of the loop, which can be its last ones

    @property
    def default_namespace(self) -> str | None:
        """The namespace of the credentials in use; `None` before the first request or if there is none."""
        return self._default_namespace

    @property
    def cluster_generation(self) -> int:
        """A number that grows when a login leads to another cluster, where resource versions mean other states."""
        return self._cluster_generation

    def set_landmark(self, path: str, uid: str) -> None:
        """Recognize the cluster by this object, if a login leads to another address: it can be the same cluster."""
        self._landmark = path, uid

    def lacks(self, feature: str) -> bool:
        """Check whether the server was seen to lack the optional feature; see `note_lack`."""
        return feature in self._lacks

    def note_lack(self, feature: str) -> None:
        """Remember that the server lacks the feature, for all users of this client; see `lacks`."""
        self._lacks.add(feature)

    @property
    def is_fenced(self) -> bool:
        """Return whether writes are checked, because another replica of the operator can take over at any time."""
        return self._fence is not None

    def fence(self, check: Callable[[], None] | None) -> None:
        """
        Check each write right before it is sent, except for those that other replicas may make at the same time.

        These are made by code with `unfenced_var`: requests of the election itself, Events, and the webhooks, which all
        replicas serve.

        Args:
            check: the function that raises `errors.APIFencedError` if the operator must not write; ``None`` to end it.
        """
        self._fence = check

    async def get_json(self, path: str, params: Params | None = None, *, logger: AnyLogger | None = None) -> Any:
        """Return the decoded JSON of an object, a list, etc.; errors are those of `request`."""
        return _decode('GET', path, await self.request('GET', path, params=params, logger=logger))

    async def post_json(self, path: str, obj: Any, *, logger: AnyLogger | None = None) -> Any:
        """Create an object and return it as created; errors are those of `request`."""
        return _decode('POST', path, await self.request('POST', path, payload=encode(obj), logger=logger))

    async def patch(
        self,
        path: str,
        obj: Any,
        content_type: str,
        *,
        params: Params | None = None,
        logger: AnyLogger | None = None,
        guard: Callable[[], None] | None = None,
    ) -> Any:
        """Patch an object and return its new state; arguments and errors are those of `request`."""
        body = await self.request(
            'PATCH', path, params=params, payload=encode(obj), content_type=content_type, logger=logger, guard=guard
        )
        return _decode('PATCH', path, body)

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        payload: bytes | None = None,
        content_type: str = 'application/json',
        accept: str | None = None,
        logger: AnyLogger | None = None,
        backoffs: Backoffs | None = None,
        reporting: bool = False,
        guard: Callable[[], None] | None = None,
    ) -> bytes:
        """
        Make a request and return the body of the response.

        Requests that fail for temporary reasons are repeated after ``settings.networking.error_backoffs``:
        with network errors, 5xx, 429. A request can therefore be made twice if its response is lost.
        It can also be queued, see `kopf._cogs.clients.pacing`; the time-out starts after that.

        Args:
            method: the HTTP method.
            path: the path after the server's URL, beginning with a slash.
            params: the query parameters; those which are `None` are omitted.
            payload: the body of the request.
            content_type: the type of the payload, if there is a payload.
            accept: the types of the response to accept.
            logger: the logger for failed attempts.
            backoffs: the pauses between attempts (in seconds) instead of ``settings.networking.error_backoffs``;
                if empty, there is only one attempt.
            reporting: whether the request only reports, as Events do: it takes no slot of other requests, has a short
                time-out, `pacing.REPORT_TIMEOUT`, and is not repeated after that.
            guard: called right before each attempt; it raises `errors.APIFencedError` to prevent it. A fence of the
                client is checked instead, if there is one.

        Raises:
            errors.APITimeoutError: if a report is not answered in time.
            errors.APIFencedError: if the operator must not write now; see `fence`.
            errors.APIError: if the last attempt has failed, or if the error is not temporary.
            credentials.LoginError: if there are no (more) credentials.
        """
        headers = (accept, content_type if payload is not None else None)
        if self._fence is not None:
            guard = None if method == 'GET' or unfenced_var.get() else self._check_fence
        # A trace that is not sampled needs no span for each attempt: without metrics, it has only headers to add.
        unsampled = self.instruments.skip_request() if self.instruments.skips_requests else None
        request = sessions.Request(
            method, _encode_query(path, params), payload, headers, unsampled, guard, self.instruments.meters
        )
        attempts = _Attempts(self._settings.networking, logger or default_logger, backoffs)
        number, refused = 0, False
        while True:
            # Take them for each attempt, because the credentials (and with them, the server of the gate) can be
            # replaced between attempts.
            asked = time.monotonic() if self.instruments.requests else 0.0
            session, gate, slot = await self._enter(request, reporting=reporting)
            refusal: errors.APIUnauthorizedError | None = None
            failure: errors.APIError | None = None
            try:
                # Why twice? Without spans, an attempt costs neither a context manager nor a copy of the request.
                if unsampled is not None or not self.instruments.requests:
                    body = await self._attempt(request, session, gate, slot)
                else:
                    with self._observe(session, request, number, asked) as span:
                        body = await self._attempt(request._replace(span=span), session, gate, slot)
                if refused:
                    self._vault.note_accepting_part(pacing.get_resource_path(path))
                return body
            except errors.APIUnauthorizedError as e:
                refusal, refused = e, True
            except errors.APITimeoutError as e:
                if reporting:
                    raise
                failure = e
            except (errors.APITooManyRequestsError, errors.APIServerError, errors.APIConnectionError) as e:
                failure = e
            try:
                if refusal is not None:
                    if not await self._replace(session, refusal, path):
                        raise refusal
                elif failure is not None:
                    # Why not let the next attempt fail? It comes only after a pause, and the end of the operator waits.
                    if self._closed:
                        raise failure
                    await self._pause(attempts.count(failure, method, session.server + request.query))
            finally:
                number += 1
                refusal = failure = None  # otherwise, this frame and the errors would be a reference cycle

    def _check_fence(self) -> None:
        # Why not pass the function itself? The fence can be removed while the request waits.
        if self._fence is not None:
            self._fence()

    async def _pause(self, delay: float) -> None:
        """Wait for the next attempt, or until the client is closed."""
        pause = asyncio.create_task(asyncio.sleep(delay))
        self._pauses.add(pause)
        try:
            await asyncio.wait({pause})
        finally:
            self._pauses.discard(pause)
            pause.cancel()

    def _observe(
        self,
        session: sessions.Session,
        request: sessions.Request,
        number: int,
        asked: float,
        *,
        streaming: bool = False,
    ) -> ApiRequest:
        path, _, _ = request.query.partition('?')
        return ApiRequest(
            self.instruments,
            server=session.server,
            method=request.method,
            path=path,
            payload=request.payload,
            attempt=number,
            waited=time.monotonic() - asked if asked else 0.0,
            streaming=streaming,
        )

    async def _attempt(
        self, request: sessions.Request, session: sessions.Session, gate: pacing.Gate, slot: pacing.Slot
    ) -> bytes:
        """Make the request once, and release the session and the gate in any case."""
        networking = self._settings.networking
        answering = networking.request_timeout or None
        if slot.is_report:
            answering = pacing.REPORT_TIMEOUT if answering is None else min(answering, pacing.REPORT_TIMEOUT)
        try:
            body = await session.request(
                request, sessions.Timeouts(connecting=networking.connect_timeout or None, answering=answering)
            )
        except errors.APITooManyRequestsError as e:
            # Hold the gate before `leave` below lets the next request begin, because the server would refuse that, too.
            if not e.is_partial:
                gate.hold(e.retry_after)
            raise
        except (errors.APIServerError, errors.APIConnectionError) as e:
            self._suspect(e, session, request)
            raise
        finally:
            # Leave before anything is awaited: the slot must become free even if the release of the session is
            # cancelled.
            gate.leave(slot)
            await self._release(session)
        # Once for each session: the vault needs to know only that the credentials work. Errors other than 401 do not
        # show that: a proxy can respond instead of the API server.
        if not session.is_approved:
            self._approve(session)
        return body

    @contextlib.asynccontextmanager
    async def stream(
        self,
        path: str,
        params: Params | None = None,
        *,
        opening: float | None = None,
        logger: AnyLogger | None = None,
    ) -> AsyncGenerator[sessions.Lines, None]:
        """
        Open an endless response, such as a watch-stream, to be read by lines of any length.

        The lines come in lists: all lines received at once. The last line can be incomplete if the server ends
        the stream in its middle. A read can be cancelled and repeated without loss of data. There are no retries
        except for new credentials, and no time limit except for ``settings.watching.client_timeout``,
        after which the stream ends.

        Args:
            path: the path after the server's URL, beginning with a slash.
            params: the query parameters; those which are `None` are omitted.
            opening: how long the server may take to begin its response, if less than usual (in seconds).
            logger: the logger for refusals of the credentials.

        Raises:
            errors.APIError: if the stream is not opened; from reads: if it breaks.
            credentials.LoginError: if there are no (more) credentials.
        """
        request, number = sessions.Request('GET', _encode_query(path, params), meters=self.instruments.meters), 0
        while True:
            asked = time.monotonic() if self.instruments.requests else 0.0
            session, gate, _ = await self._enter(request, streaming=True)
            try:
                if not self.instruments.requests:
                    stream = await self._open(session, request, opening)
                else:
                    with self._observe(session, request, number, asked, streaming=True) as span:
                        stream = await self._open(session, request._replace(span=span), opening)
            except errors.APITooManyRequestsError as e:
                if not e.is_partial:
                    gate.hold(e.retry_after)
                raise
            except errors.APIUnauthorizedError as e:
                refusal = e
            # Why no retries here? The watch has its own back-off, which is seen from outside as a state of the watch.
            except errors.APIConnectionError as e:
                self._suspect(e, session, request)
                raise
            else:
                if not session.is_approved:
                    self._approve(session)
                if number:
                    self._vault.note_accepting_part(pacing.get_resource_path(path))
                self._streams.add(stream)
                try:
                    yield sessions.Lines(stream)
                finally:
                    self._streams.discard(stream)
                    stream.abort()
                return
            finally:
                await self._release(session)
            (logger or default_logger).debug("The stream needs other credentials: %r", refusal)
            number += 1
            try:
                if not await self._replace(session, refusal, path):
                    raise refusal
            finally:
                del refusal  # otherwise, this frame and its traceback would be a reference cycle

    def _suspect(self, error: errors.APIError, session: sessions.Session, request: sessions.Request) -> None:
        """Request a new login if the server is not trusted any more; log once if no server has ever responded."""
        server = session.server
        if self.instruments.meters is not None and not error.status:
            self.instruments.meters.note_request(server, request.method, 0)
        if sessions.is_certificate_rejected(error) and self._vault.distrust(session.key, session.info):
            default_logger.warning(
                "The server %s is not trusted any more, so the credentials are read again: %s",
                server,
                error.__cause__ or error,
            )
        if self._doubtful and isinstance(error, errors.APIConnectionError):
            self._doubtful = False
            default_logger.warning(
                "No API answers at %s: %s. %s It is tried again for a while.",
                server,
                error.__cause__ or error,
                "The server is not trusted: is it the right one, and is certificate-authority (or -data) in the "
                "kubeconfig that of its cluster?"
                if 'CERTIFICATE_VERIFY_FAILED' in str(error.__cause__)
                else "The address begins with http: is it https?"
                if 'lost before the response' in str(error.__cause__) and str(server).startswith('http:')
                else "Is the cluster running, and is it the right one? See kubectl cluster-info.",
            )

    async def _open(
        self, session: sessions.Session, request: sessions.Request, opening: float | None
    ) -> sessions.Stream:
        networking, watching = self._settings.networking, self._settings.watching
        limits = [limit for limit in (opening, networking.request_timeout) if limit]
        connect_timeouts = [watching.connect_timeout, networking.connect_timeout, networking.request_timeout]
        return await session.open(
            request,
            sessions.Timeouts(
                connecting=next((value for value in connect_timeouts if value), None),
                answering=min(limits, default=None),
                streaming=watching.client_timeout or None,
            ),
        )

    async def _enter(
        self, request: sessions.Request, *, streaming: bool = False, reporting: bool = False
    ) -> tuple[sessions.Session, pacing.Gate, pacing.Slot]:
        """Wait until a request may be made; return the session, the gate and the slot, which the caller releases."""
        while True:
            # The session comes first: its credentials determine the server, and thus the gate.
            session = await self._acquire()
            gate = self._gates[session.server]
            try:
                if streaming:
                    slot = await gate.pass_by(request.query)
                else:
                    slot = await (gate.enter_report(request.query) if reporting else gate.enter(request.query))
            # This includes cancellations: a session with a wrong count of users would never be closed.
            except BaseException:
                await self._release(session)
                raise
            if not slot.waited or self._sessions.get(session.key) is session:
                return session, gate, slot
            # The server has refused these credentials to another request meanwhile.
            gate.leave(slot)
            await self._release(session)

    async def _acquire(self) -> sessions.Session:
        while True:
            key, info = await self._vault.select()
            # Check this after the wait: the client can be closed during the login.
            if self._closed:
                raise errors.APIConnectionError(f"The client of the server {info.server} is closed.")
            session = self._sessions.get(key)
            # Compare the identity: after a login, files with equal paths can have other contents, such as a rotated CA,
            # which only a new session reads.
            if session is not None and session.info is info:
                session.begin_use()
                return session
            if self._login_generation == self._vault.cluster_generation:
                opened = await self._open_session(key, info)
            else:
                # Hundreds of requests can wait for the login. Only one of them looks around, before the others are
                # sent there.
                async with self._looking_around:
                    if self._login_generation == self._vault.cluster_generation:
                        continue
                    opened = await self._open_session(key, info)
            if opened is not None:
                return opened

    async def _open_session(self, key: credentials.VaultKey, info: credentials.KubeContext) -> sessions.Session | None:
        """Open a session and use it; return ``None`` if the credentials cannot be used, so that others are needed."""
        try:
            session = sessions.open_session(key, info)
        except credentials.PassingLoginError as e:
            await self._vault.invalidate(key, info, e, backoffs=self._login_backoffs)
            return None
        session.begin_use()
        if self._login_generation != self._vault.cluster_generation:
            await self._look_around(session)
        # Begin its use before this wait: another request can replace the session meanwhile, and would close an unused
        # one.
        await self._adopt(session)
        return session

    async def _adopt(self, session: sessions.Session) -> None:
        info, outdated = session.info, self._sessions.get(session.key)
        self._sessions[session.key] = session
        if isinstance(info, credentials.AiohttpSession):
            self._given.add(info.aiohttp_session)
        # A gate outlives the sessions: otherwise, new credentials would lift the delay that the server has requested.
        if session.server not in self._gates:
            self._gates[session.server] = pacing.Gate(session.server, self._settings)
        self._default_namespace = info.default_namespace or self._default_namespace
        if outdated is not None:
            await self._retire(outdated)

    async def _look_around(self, session: sessions.Session) -> None:
        """Find out whether the last login has led to another cluster."""
        try:
            generation = self._vault.cluster_generation
            is_same = await self._recognizes(session)
            self._login_generation = generation
            if not is_same:
                self._leave_cluster(session.server)
        except BaseException:
            await session.close()
            raise

    async def _recognizes(self, session: sessions.Session) -> bool:
        """Check whether there is the landmark, if one is set; not if the server does not show it."""
        if self._landmark is None:
            return False
        path, uid = self._landmark
        request = sessions.Request('GET', path, meters=self.instruments.meters)
        try:
            body = await session.request(request, self._make_short_timeouts())
            found = decode_object('GET', path, body)
        # Why not try it again? To leave the cluster is safe, and the requests of others wait for this one.
        except errors.APIError:
            return False
        return bool(found['metadata'].get('uid') == uid)

    def _leave_cluster(self, server: str) -> None:
        """End all streams of the former cluster, which could go on for hours, as a login has led to another one."""
        default_logger.info(
            "The login has led to another API server, %s. All objects are listed again, as it can be another cluster.",
            server,
        )
        self._cluster_generation += 1
        self._landmark = None
        self._lacks.clear()
        for stream in self._streams:
            stream.abort()
        for listener in self.listeners:
            listener()

    async def _release(self, session: sessions.Session) -> None:
        session.end_use()
        if session in self._retired and not session.is_used:
            self._retired.discard(session)
            await session.close()

    async def _replace(self, session: sessions.Session, refusal: errors.APIUnauthorizedError, path: str) -> bool:
        """Wait for credentials; return false if another attempt makes no sense, as only this part refuses them."""
        check = functools.partial(self._is_accepted, session.key, session.info)
        if self._vault.note_refusing_part(pacing.get_resource_path(path)):
            return await self._vault.refresh(session.key, session.info, check)
        # The server usually refuses many requests of a session at once; only the first of them retires it.
        if self._sessions.get(session.key) is session:
            del self._sessions[session.key]
            await self._retire(session)
        await self._vault.invalidate(
            session.key,
            session.info,
            refusal,
            backoffs=self._login_backoffs,
            check=check,
        )
        return True

    async def _is_accepted(self, key: credentials.VaultKey, info: credentials.KubeContext) -> bool:
        """Check whether the server accepts the credentials for ``/api``, which only known users may read."""
        if self._closed:
            return False
        try:
            session = sessions.open_session(key, info)
        except credentials.LoginError:
            return False
        try:
            # Why not its version? Unknown users may read it, too, so the server accepts empty tokens and any passwords.
            await session.request(
                sessions.Request('GET', '/api', meters=self.instruments.meters), self._make_short_timeouts()
            )
        except errors.APIError:
            return False
        finally:
            await session.close()
        return True

    def _make_short_timeouts(self) -> sessions.Timeouts:
        networking = self._settings.networking
        limits = [limit for limit in (LANDMARK_TIMEOUT, networking.request_timeout) if limit]
        return sessions.Timeouts(connecting=networking.connect_timeout or None, answering=min(limits))

    @property
    def _login_backoffs(self) -> Iterable[float]:
        backoffs = self._settings.networking.login_backoffs
        return backoffs if isinstance(backoffs, Iterable) else [backoffs]

    def _approve(self, session: sessions.Session) -> None:
        session.approve()
        self._doubtful = False
        self._vault.approve(session.key, session.info)

    async def _retire(self, session: sessions.Session) -> None:
        # The session of old credentials lives for as long as it has requests or streams in flight.
        if session.is_used:
            self._retired.add(session)
        else:
            await session.close()


def _decode(method: str, path: str, body: bytes) -> Any:
    try:
        return decode(body)
    except ValueError as e:
        raise errors.APIServerError(f"The response to {method} {path} is not JSON: {body[:_SNIPPET]!r}") from e


def decode_object(method: str, path: str, body: bytes) -> Mapping[str, Any]:
    """
    Decode the response to a request for one object.

    Raises:
        errors.APIServerError: if it is no object: some proxies respond with pages of their own, and with status 200.
    """
    obj = _decode(method, path, body)
    if not isinstance(obj, dict) or not isinstance(obj.get('metadata'), dict):
        raise errors.APIServerError(f"The response to {method} {path} is no object: {body[:_SNIPPET]!r}")
    return obj


def decode(data: bytes) -> Any:
    """
    Decode JSON: fast if it is valid, and tolerantly otherwise.

    Raises:
        ValueError: if it is not JSON at all, or a part of a document.
    """
    try:
        return orjson.loads(data)
    except ValueError:
        # Accept byte-order marks, invalid characters, NaN: one such object must not stop the handling of other objects.
        try:
            return json.loads(data.decode('utf-8-sig', errors='replace'), strict=False)
        except RecursionError as e:
            raise ValueError("The JSON is nested too deeply.") from e


def encode(obj: Any) -> bytes:
    """
    Encode values of handlers as JSON: JSON types, and also views, tuples, huge integers.

    Lone surrogates, e.g. of file names that are not in UTF-8, become U+FFFD, as servers would decode them.

    Raises:
        TypeError: if there are values of other types.
    """
    try:
        return dump_tightly(obj, default=_simplify)
    except orjson.JSONEncodeError:
        # Why not in ASCII? Its escapes would hide lone surrogates from the replacement, and `simplify` could not
        # decode them.
        text = json.dumps(obj, default=_simplify_all, separators=(',', ':'), ensure_ascii=False)
        return replace_halves(text).encode()


def simplify(obj: Any) -> Any:
    """Return the value as it would be after encoding and decoding: with JSON types only."""
    return orjson.loads(encode(obj))


def _simplify(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    # Sets are refused: their order differs between processes, so equal sets would be stored as different lists.
    if isinstance(value, Collection) and not isinstance(value, bytes | bytearray | memoryview | set | frozenset):
        return list(value)
    raise TypeError(f"{type(value).__name__} cannot be stored in an object: {value!r}")


def _simplify_all(value: Any) -> Any:
    # Only the fast encoder supports timestamps etc.; the result must be the same here.
    try:
        return orjson.loads(orjson.dumps(value))
    except orjson.JSONEncodeError:
        return _simplify(value)


class _Attempts:
    """Counts the attempts of one request, and decides on the delays between them."""

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

    def count(self, error: errors.APIError, method: str, url: str) -> float:
        """Report a failed attempt; return the delay until the next one, or raise the error if it was the last one."""
        self._count += 1
        # Why only now? Nearly all requests succeed at once, and the settings can have changed since the last request.
        if self._iterator is None:
            backoffs = self._settings.error_backoffs if self._backoffs is None else self._backoffs
            backoffs = backoffs if isinstance(backoffs, Iterable) else [backoffs]
            # Generators can be endless, and have no length that could be logged.
            self._total = f"/{len(backoffs) + 1}" if isinstance(backoffs, Sized) else ''
            self._iterator = iter(backoffs)
        backoff = next(self._iterator, None)
        cause = error.__cause__ or error
        if backoff is None:
            self._logger.error(
                "Request attempt #%d%s failed; escalating: %s %s -> %r", self._count, self._total, method, url, cause
            )
            raise error
        self._logger.error(
            "Request attempt #%d%s failed; will retry: %s %s -> %r", self._count, self._total, method, url, cause
        )
        return self._extend(backoff, error.retry_after)

    def _extend(self, backoff: float, retry_after: float | None) -> float:
        if retry_after is None:
            return backoff
        return retry_after if self._settings.enforce_retry_after else max(backoff, retry_after)


def _encode_query(path: str, params: Params | None) -> str:
    if not params:
        return path
    query = urllib.parse.urlencode({key: value for key, value in params.items() if value is not None})
    return f"{path}?{query}" if query else path
