"""
Credentials of the Kubernetes API and the vault that keeps them.

Login handlers provide credentials, and the API client uses them. The vault stands between them, so that they do not
depend on each other. It belongs to the operator, not to the client: it outlives sessions, and an application that
embeds the operator can pass its own vault.
"""

import asyncio
import base64
import collections
import contextvars
import dataclasses
import datetime
import itertools
import logging
import os
import random
import ssl
import time
import warnings
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Set
from typing import TYPE_CHECKING, NewType, TypeAlias

from kopf._cogs.aiokits.delays import Delays
from kopf._cogs.aiokits.loops import end
from kopf._cogs.helpers.explanations import ExplainedError
from kopf._cogs.structs import ids

if TYPE_CHECKING:
    import aiohttp

logger = logging.getLogger(__name__)

AnyPath: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]

_REMEMBERED = 100
"""
The number of refused credentials that are remembered for each login handler.

This prevents that a handler endlessly returns the same refused credentials. If a handler has returned more different
tokens than this, it probably gets new tokens each time.
"""

_EXIT_TIMEOUT = 2.0
"""The time that cancelled login handlers have to end (in seconds)."""

_FAILURE_PAUSES = (1, 2, 4, 8, 15, 30)
"""The pauses between failing logins if credentials were accepted before (in seconds); the last one is repeated."""

_SHORT_LIFE = 10.0
"""The age (in seconds) up to which refused credentials count as short-lived, though they were accepted before."""

_SHORT_LIVES = 5
"""
The number of short-lived credentials in a row before further refusals are no reason to drop accepted credentials.

This happens if parts of the API refuse credentials that other parts accept: new logins do not help then.
"""

_PARTIAL_PAUSES = (1, 2, 4, 8, 15, 30, 60)
"""The pauses between logins for the parts of the API that refuse accepted credentials (in seconds)."""

_PARTIAL_MEMORY = 600.0
"""How long it is remembered that a part of the API has refused the credentials (in seconds)."""

_DOUBTS = 3
"""The number of refusals in a row from which on the server is asked whether it accepts the credentials at all."""

_FRUITLESS_LOGINS = 3
"""The number of repeated logins if the login handlers return nothing, or only expired credentials."""

_DISTRUST_PAUSES = (1, 2, 5, 10, 20, 60)
"""The pauses between logins because of untrusted certificates (in seconds); the last one is repeated."""


class LoginError(ExplainedError):
    """Raised if there are no credentials, or only refused ones."""


class PassingLoginError(LoginError):
    """Raised if a login has failed for a temporary reason, such as an unreadable file: the next one can succeed."""


class FinalLoginError(LoginError):
    """Raised if a login handler has forbidden further attempts."""


class _FruitlessLoginError(LoginError):
    """Raised if no login handler has failed, but none has returned usable credentials."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class KubeContext:
    """
    The means to access a cluster: the base class of credentials.

    Args:
        server: the URL of the API server, possibly with a path.
        priority: the preference; the credentials of the highest priority are used, in random order.
        default_namespace: the namespace of the context, e.g. that of the pod.
        expiration: the time when the credentials are to be renewed; in UTC if it has no timezone.
    """

    server: str
    priority: int = 0
    default_namespace: str | None = None
    expiration: datetime.datetime | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class AiohttpSession(KubeContext):
    """
    An HTTP session of the operator's developer, with its own TLS, headers, proxies, etc.

    The session is used as it is. The operator owns it from then on, and closes it in the end.
    """

    aiohttp_session: 'aiohttp.ClientSession'


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConnectionInfo(KubeContext):
    """
    An endpoint and credentials of a cluster, to be returned by login handlers.

    Certificates and keys can be set by path or by data, i.e. PEM or base64 of PEM.

    Args:
        ca_path: a file with the certificates of authorities to trust instead of the system's ones.
        ca_data: the same as data.
        insecure: whether to skip the verification of the server's certificate.
        username: the name for the basic authentication (with a password); preferred to the token.
        password: the password for the basic authentication (with a username).
        scheme: the scheme of the ``Authorization`` header; ``Bearer`` if there is a token.
        token: the token of the ``Authorization`` header.
        token_path: a file with the token, re-read while in use; preferred to the token.
        certificate_path: a file with the client's certificate; ``~`` is the home directory.
        certificate_data: the same as data.
        private_key_path: a file with the private key of the client's certificate.
        private_key_data: the same as data.
        tls_server_name: the name expected in the server's certificate, if not the one in the URL.
        proxy_url: the HTTP proxy for all requests.
        trust_env: whether to take proxies and passwords from the environment and from ``~/.netrc``.

    Raises:
        ValueError: if a certificate or a key is set both by path and by data.
    """

    ca_path: AnyPath | None = None
    ca_data: str | bytes | None = dataclasses.field(default=None, repr=False)
    insecure: bool | None = None
    username: str | None = None
    password: str | None = dataclasses.field(default=None, repr=False)
    scheme: str | None = None
    token: str | None = dataclasses.field(default=None, repr=False)
    certificate_path: AnyPath | None = None
    certificate_data: str | bytes | None = dataclasses.field(default=None, repr=False)
    private_key_path: AnyPath | None = None
    private_key_data: str | bytes | None = dataclasses.field(default=None, repr=False)
    proxy_url: str | None = None
    trust_env: bool = False
    tls_server_name: str | None = None
    token_path: AnyPath | None = None

    def __post_init__(self) -> None:
        _check_alternatives('CA', self.ca_path, self.ca_data)
        _check_alternatives('certificate', self.certificate_path, self.certificate_data)
        _check_alternatives('private key', self.private_key_path, self.private_key_data)

    def as_aiohttp_basic_auth(self) -> 'aiohttp.BasicAuth | None':
        """
        Return ``None``. Deprecated.

        The name and the password are in `as_http_headers`; aiohttp refuses requests that have both.
        """
        warnings.warn(
            "as_aiohttp_basic_auth() is deprecated: remove the call, because as_http_headers() includes the password.",
            DeprecationWarning,
            stacklevel=2,
        )
        return None

    def as_http_headers(self) -> dict[str, str]:
        """
        Return the HTTP headers that authenticate the client; possibly none.

        Raises:
            OSError: if the file with the token cannot be read.
        """
        if self.username and self.password:
            pair = f"{self.username}:{self.password}".encode()
            return {'Authorization': f"Basic {base64.b64encode(pair).decode('ascii')}"}
        token = _read_token(self.token_path) if self.token_path else self.token
        if token:
            return {'Authorization': f"{self.scheme or 'Bearer'} {token}"}
        if self.scheme:
            return {'Authorization': self.scheme}
        return {}

    def as_ssl_context(self) -> ssl.SSLContext:
        """
        Create a TLS context with the authorities and certificates. It takes milliseconds, so it is to be reused.

        Raises:
            ValueError: if the data of a certificate or a key are neither PEM nor base64.
            OSError: if a file cannot be read, or is not a certificate.
        """
        context = ssl.create_default_context(
            cafile=_find(self.ca_path) if self.ca_path else None,
            cadata=_decode_pem(self.ca_data) if self.ca_data else None,
        )
        # Clusters have their own authorities, often without the key identifiers that Python requires since 3.13.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        self._load_client_certificate(context)
        return context

    def _load_client_certificate(self, context: ssl.SSLContext) -> None:
        if not self.certificate_path and not self.certificate_data:
            return
        import tempfile

        # Python's ssl loads client certificates from files only. The files are removed when they are loaded.
        with tempfile.TemporaryDirectory(prefix='kopf-') as directory:  # with the mode 0700
            cert = _find(self.certificate_path) if self.certificate_path else None
            pkey = _find(self.private_key_path) if self.private_key_path else None
            if self.certificate_data:
                cert = os.path.join(directory, 'client.crt')
                _write_text(cert, _decode_pem(self.certificate_data))
            if self.private_key_data:
                pkey = os.path.join(directory, 'client.key')
                _write_text(pkey, _decode_pem(self.private_key_data))
            assert cert is not None
            context.load_cert_chain(cert, pkey)


VaultKey = NewType('VaultKey', str)
Authenticator: TypeAlias = Callable[[], Awaitable[Mapping[ids.HandlerId, KubeContext]]]
Check: TypeAlias = Callable[[], Awaitable[bool]]


@dataclasses.dataclass(slots=True)
class _PartState:
    """The refusals by one part of the API."""

    acceptances: int
    """The number of acceptances by any part before the first refusal by this one."""
    refused_at: float
    """The time of the last refusal."""
    is_reported: bool = False


class Vault:
    """
    The owner of all credentials of an operator.

    Requests take credentials by `select`, and report refused ones by `invalidate`. When there are none left, the first
    request starts a single re-authentication, and all requests wait for it. Why not log in within that request?
    Its cancellation or time-out would cancel the login for all of them. So the login runs in a separate task,
    which ends by itself or by `close`.

    A refusal can be a failure of the server: while it restarts, or cannot reach the issuer of the tokens. So, if the
    login handlers have no other credentials, the refused ones are retried with growing delays. If no credentials
    were accepted before, they are retried only once, as they are most likely wrong. The same delays apply if login
    handlers return new credentials each time, which are refused each time.

    A refusal can also be a failure of one part of the API, such as an aggregated API server. A part that has refused
    the credentials before and after they were accepted by others is no evidence against them any more: only its own
    requests wait for the next login, or fail. If no other requests are made, the server is asked.

    If credentials were accepted before, a failing login is retried endlessly, unless a login handler forbids it.
    Meanwhile, the requests wait, and the operator does only work that needs no requests. But before the first success,
    only temporary failures are retried, and only once, so that a user with wrong credentials gets the error at once.

    Args:
        src: the initial credentials, by login handler.
    """

    authenticate: Authenticator | None
    """The function that calls all login handlers and returns their credentials; set by the operator."""
    cluster_generation: int
    """The number of logins that have led to another cluster than before."""

    def __init__(self, src: Mapping[ids.HandlerId, KubeContext] | None = None, /) -> None:
        self.authenticate = None
        self.cluster_generation = 0
        self._servers: set[str] = set()  # the known addresses of the current cluster
        self._current: dict[VaultKey, KubeContext] = {}
        self._refused: dict[VaultKey, collections.deque[KubeContext]] = {}
        # They are sorted when credentials are added or dropped, not at each request.
        self._best: list[tuple[VaultKey, KubeContext]] = []
        self._chances: Iterator[float] | None = None  # the delays of retries; from the first refusal to a success
        self._refusals = 0
        # whether a login has brought credentials in the current series of refusals, so that the next login must wait
        self._renewed = False
        # whether the login after such a pause has not ended yet: it may return the refused credentials once more
        self._lenient = False
        self._short_lives = 0  # the number of short-lived credentials in a row
        self._born_at = 0.0
        self._acceptances = 0  # the number of credentials that were accepted after their logins
        self._acceptances_at_login = 0
        self._parts: dict[str, _PartState] = {}  # the parts of the API that have refused credentials lately
        self._partial_pauses = Delays(_PARTIAL_PAUSES)
        self._partial_pause = 0.0  # the least age of the last login before another one for such a part
        # the last refused credentials, and how to ask the server about them
        self._doubted: tuple[VaultKey, KubeContext, Check] | None = None
        # how to ask the server, before the next login for such a part, about credentials that no other has accepted yet
        self._unverified: Check | None = None
        self._distrust: Delays | None = None  # from the first untrusted certificate to a success
        self._distrusted_until = 0.0
        self._unusable: LoginError | None = None  # the reason why the last credentials are malformed
        self._pauses: Delays | None = None  # from the first failure of a login to a success
        self._failures = 0
        self._failing_since: float | None = None
        self._proven = False
        self._expiring = False
        self._login: asyncio.Task[Exception | None] | None = None
        self._update(src or {})

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._current!r}>"

    @property
    def failing_for(self) -> float:
        """The time (in seconds) for which the logins have been failing."""
        return 0.0 if self._failing_since is None else time.monotonic() - self._failing_since

    async def select(self) -> tuple[VaultKey, KubeContext]:
        """
        Return credentials to use now: random ones of the highest priority; log in if there are none.

        Raises:
            LoginError: if there are none, and the login handlers return no new ones.
        """
        if self._expiring:
            self._drop_expired()
        # Why a loop? Another request can have dropped the new credentials before this one is resumed.
        while not self._best:
            await self._renew()
        # As documented, they are chosen at random, so that all credentials share the load.
        return self._best[0] if len(self._best) == 1 else random.choice(self._best)

    async def invalidate(
        self,
        key: VaultKey,
        info: KubeContext,
        exc: Exception | None = None,
        *,
        backoffs: Iterable[float] = (),
        check: Check | None = None,
    ) -> None:
        """
        Drop the credentials that the server has refused, and wait until there are credentials to try.

        The same credentials are retried only if there are no others. If they are replaced already, nothing is dropped:
        the server usually refuses many requests at once.

        Args:
            key: the key of the credentials, as they were selected.
            info: the credentials, as they were selected.
            exc: the refusal; or a `LoginError` if the credentials are malformed, and cannot be sent to the server.
            backoffs: the delays (in seconds) before each next attempt with the refused credentials.
            check: the function that asks the server whether it accepts the credentials for anything else.

        Raises:
            LoginError: if there are no other credentials, and no more attempts; caused by `exc`.
        """
        # Compare the identity: a login can have returned equal credentials since they were selected.
        if self._current.get(key) is info:
            del self._current[key]
            if isinstance(exc, LoginError):
                self._unusable = exc
            else:
                self._note_refusal(key, info, backoffs)
                self._doubted = None if check is None else (key, info, check)
            self._rank()
        try:
            await self.select()
        except LoginError as e:
            if isinstance(exc, LoginError):  # the credentials are malformed, which is the actual reason
                raise exc from exc.__cause__
            raise e from exc

    def _note_refusal(self, key: VaultKey, info: KubeContext, backoffs: Iterable[float]) -> None:
        self._refusals += 1
        self._short_lives = self._short_lives + 1 if time.monotonic() - self._born_at < _SHORT_LIFE else 0
        if self._chances is None:
            self._chances = itertools.islice(backoffs, None if self._proven else 1)
            self._renewed = self._lenient = False
        self._refused.setdefault(key, collections.deque(maxlen=_REMEMBERED)).append(_reduce(info))

    def note_refusing_part(self, part: str) -> bool:
        """
        Remember that the part of the API has refused credentials; return true if others accept them: see `refresh`.

        Args:
            part: any name of the part of the API, the same for all requests that probably share its failures.
        """
        now = time.monotonic()
        state = self._parts.get(part)
        if state is None:
            self._parts = {key: each for key, each in self._parts.items() if now - each.refused_at < _PARTIAL_MEMORY}
            if not self._parts:
                self._partial_pauses = Delays(_PARTIAL_PAUSES)
                self._partial_pause = self._partial_pauses.next()
        # Why forget it after a while? If the credentials have expired, its next refusal is the first sign of that.
        if state is None or now - state.refused_at >= _PARTIAL_MEMORY:
            state = self._parts[part] = _PartState(self._acceptances, now)
        state.refused_at = now
        # One part after another can refuse them, too, and each of them would stop all requests once.
        is_partial = self._acceptances > state.acceptances or (
            self._short_lives >= _SHORT_LIVES
            and self._acceptances > self._acceptances_at_login
            and now - self._born_at < _SHORT_LIFE
        )
        if is_partial and not state.is_reported:
            state.is_reported = True
            logger.warning(
                "The API accepts the credentials for some requests, and refuses them for %s. Only requests for that "
                "wait for the next login, or fail.",
                part,
            )
        return is_partial

    def note_accepting_part(self, part: str) -> None:
        """Called when a part of the API accepts credentials after it has refused others."""
        self._parts.pop(part, None)

    async def refresh(self, key: VaultKey, info: KubeContext, check: Check | None = None) -> bool:
        """
        Log in for a part of the API that refuses the credentials, while they stay in use for the other parts.

        Args:
            key: the key of the credentials, as they were selected.
            info: the credentials, as they were selected.
            check: the function that asks the server whether it accepts the credentials for anything else.

        Returns:
            Whether there are credentials to try; false if the last login is so recent that another would not help.

        Raises:
            LoginError: if a login handler has forbidden further attempts.
        """
        if self._current.get(key) is not info:
            return True
        if not self._is_logging_in:
            if time.monotonic() - self._born_at < self._partial_pause or self.authenticate is None:
                return False
            self._partial_pause = self._partial_pauses.next()
            # Without requests for other parts since the last login, it is unknown whether these still accept them.
            if self._acceptances == self._acceptances_at_login:
                self._unverified = check
        await self._renew()
        return True

    @property
    def _is_logging_in(self) -> bool:
        return self._login is not None and not self._login.done()

    def distrust(self, key: VaultKey, info: KubeContext) -> bool:
        """
        Drop the credentials because the server's certificate is not trusted any more; return true if they are dropped.

        When certificate authorities of a cluster are rotated, only another login brings the new ones. This is limited
        in rate, and is done only if the server was trusted before; otherwise, it is most likely the wrong server.
        """
        now = time.monotonic()
        if (
            self._current.get(key) is not info
            or not self._proven
            or self.authenticate is None
            or now < self._distrusted_until
        ):
            return False
        self._distrust = Delays(_DISTRUST_PAUSES) if self._distrust is None else self._distrust
        self._distrusted_until = now + self._distrust.next()
        del self._current[key]
        self._rank()
        return True

    def approve(self, key: VaultKey, info: KubeContext) -> None:
        """Called when the server has accepted the credentials. Their earlier refusals are forgotten."""
        self._proven = True
        # Another request can have dropped them meanwhile, as a part of the API refuses them. They stay in use then.
        if key not in self._current and self._is_logging_in and _reduce(info) in self._refused.get(key, ()):
            self._current[key] = info
            self._rank()
        if self._current.get(key) is info:
            self._acceptances += 1
            self._doubted = None
            self._chances, self._refusals = None, 0
            self._pauses = self._distrust = None
            refused = self._refused.get(key)
            if refused and (reduced := _reduce(info)) in refused:
                refused.remove(reduced)

    async def close(self) -> None:
        """
        Stop the current login, if any, and start no other one until `authenticate` is set again.

        Login handlers that do not stop in time are named in the log and abandoned.
        """
        # Clear it first: a login between two attempts checks it before it tries again.
        self.authenticate = None
        task = self._login
        if task is not None:
            await end([task], timeout=_EXIT_TIMEOUT, what="The login handlers")

    async def _renew(self) -> None:
        if self._login is None:
            # Use an empty context: login handlers must not see the variables of the waiting request or handler.
            self._login = asyncio.create_task(self._authenticate(), name="login", context=contextvars.Context())
        task = self._login
        # Why not await the task? This neither cancels the login with this request, nor raises the login's error here.
        await asyncio.wait([task])
        # The waiting requests are resumed one after another, and the first one removes the task. Before the others are
        # resumed, another request can have started the next login.
        if self._login is task:
            self._login = None
        if task.cancelled():
            raise LoginError("The login was cancelled before it brought any credentials.")
        error = task.result()
        if isinstance(error, LoginError):
            own = LoginError(*error.args)  # each waiting request needs its own error, as raising adds a traceback to it
            own.exit_code = error.exit_code
            raise own from error.__cause__
        if error is not None:
            raise LoginError(f"The login has failed: {error!r}") from error

    async def _authenticate(self) -> Exception | None:
        # Why not simply raise the error? Several requests can wait for the login, or none if all were cancelled
        # meanwhile.
        error: Exception | None
        error, self._unusable = self._unusable, None
        verify, self._unverified = self._unverified, None
        try:
            if verify is not None and not await verify():
                self._parts.clear()  # the next refusal counts as one by the whole API
                return None
            if error is None:
                error = await self._log_in()
            while error is not None:
                if not isinstance(error, FinalLoginError) and (self._best or await self._check_doubted()):
                    logger.warning("The login has failed. The former credentials stay in use: %s", error)
                    break
                if not self._is_retried(error):
                    return error
                await self._pause_after_failure(error)
                error = await self._log_in()
        except Exception as e:
            if isinstance(e, FinalLoginError) or not await self._check_doubted():
                return e
        self._failing_since, self._born_at = None, time.monotonic()
        self._acceptances_at_login = self._acceptances
        return None

    async def _check_doubted(self) -> bool:
        """Ask the server about the refused credentials; take them again if it accepts them for anything else."""
        if self._doubted is None or not self._proven:
            return False
        key, info, check = self._doubted
        if _is_expired(info, datetime.datetime.now(datetime.UTC)) or not await check():
            return False
        self.approve(key, info)
        return True

    def _is_retried(self, error: Exception) -> bool:
        count = 0 if self._pauses is None else self._failures
        if self.authenticate is None or isinstance(error, FinalLoginError):
            return False
        if not self._proven:
            return isinstance(error, PassingLoginError) and not count
        return not isinstance(error, _FruitlessLoginError) or count < _FRUITLESS_LOGINS

    async def _pause_after_failure(self, error: Exception) -> None:
        if self._pauses is None:
            self._pauses, self._failures = Delays(_FAILURE_PAUSES), 0
        if self._failing_since is None:
            self._failing_since = time.monotonic()
        self._failures += 1
        delay = self._pauses.next()
        logger.warning(
            "The login has failed. It is tried again in %g seconds, and all requests to the API wait until then: %s",
            delay,
            error,
        )
        await asyncio.sleep(delay)

    async def _log_in(self) -> Exception | None:
        """Log in once, after a pause if needed; return the error if it can be retried, raise it otherwise."""
        if self.authenticate is None:
            raise LoginError("There are no credentials, and no login handlers that could provide them.")
        if self._chances is not None and self._renewed:
            delay = next(self._chances, None)
            if delay is None:
                raise LoginError(self._explain_refusals(self._refused))
            await self._pause_after_refusal(self._refused, delay)
        found = await self._call()
        if isinstance(found, Exception):
            return found
        self._update(found)
        if not self._best and not self._lenient and (delay := self._get_chance(found)) is not None:
            await self._pause_after_refusal(found, delay)
            if isinstance(found := await self._call(), Exception):
                return found
            self._update(found)
        if not self._best and self._lenient:
            self._update(found, leniently=True)
        if self._best:
            self._renewed, self._lenient = self._chances is not None, False
            return None
        if not found:
            return _FruitlessLoginError("No credentials were provided by the login handlers.")
        if _are_expired(found):
            return _FruitlessLoginError(self._explain_refusals(found))
        raise LoginError(self._explain_refusals(found))

    async def _call(self) -> Mapping[ids.HandlerId, KubeContext] | Exception:
        assert self.authenticate is not None
        try:
            return await self.authenticate()
        except Exception as e:
            return e

    async def _pause_after_refusal(self, keys: Iterable[str], delay: float) -> None:
        logger.warning(
            "The API refuses the credentials of %s, and there are no others. They will be tried "
            "again in %g seconds, in case the API server has failed to verify them.",
            _join(keys),
            delay,
        )
        # Why not at the first one? It can be a short failure of the server, after which nothing refuses them.
        if self._refusals >= _DOUBTS:
            await self._check_doubted()
        await asyncio.sleep(delay)
        self._renewed, self._lenient = False, True

    def _explain_refusals(self, keys: Iterable[str]) -> str:
        times = f" {self._refusals} times in a row" if self._refusals > 1 else ""
        return (
            f"No new credentials were provided: those of {_join(keys)} are already expired or were refused by "
            f"the server{times}. Renew them or fix the login handlers."
        )

    def _get_chance(self, found: Mapping[ids.HandlerId, KubeContext]) -> float | None:
        if self._chances is None or _are_expired(found):
            return None
        return next(self._chances, None)

    def _update(self, src: Mapping[ids.HandlerId, KubeContext], *, leniently: bool = False) -> None:
        for handler_id, info in src.items():
            key = VaultKey(str(handler_id))
            if leniently or _reduce(info) not in self._refused.get(key, ()):
                self._current[key] = info
        self._drop_expired(force=True)
        self._note_servers({info.server for info in self._current.values()})

    def _note_servers(self, servers: Set[str]) -> None:
        """Begin another generation if the credentials of a login lead only to unknown servers."""
        # Why not if only one of them is unknown? Login handlers can return several addresses of one cluster, and not
        # all of them return credentials each time. Why forget the former addresses? The next login can lead back to
        # them, e.g. if the context of a kubeconfig is switched to and fro.
        if servers and self._servers.isdisjoint(servers):
            if self._servers:
                self.cluster_generation += 1
            self._servers = set()
        self._servers |= servers

    def _drop_expired(self, *, force: bool = False) -> None:
        now = datetime.datetime.now(datetime.UTC)
        expired = [key for key, info in self._current.items() if _is_expired(info, now)]
        for key in expired:
            del self._current[key]
        # With `force`, the credentials are sorted even if none were dropped: the caller has added some.
        if expired or force:
            self._rank()

    def _rank(self) -> None:
        top = max((info.priority for info in self._current.values()), default=0)
        self._best = [(key, info) for key, info in self._current.items() if info.priority == top]
        self._expiring = any(info.expiration is not None for info in self._current.values())


def _join(keys: Iterable[str]) -> str:
    return ', '.join(repr(str(key)) for key in keys)


def _reduce(info: KubeContext) -> KubeContext:
    # A refused token stays refused if only its metadata differ, e.g. the expiration.
    return dataclasses.replace(info, priority=0, default_namespace=None, expiration=None)


def _are_expired(found: Mapping[ids.HandlerId, KubeContext]) -> bool:
    now = datetime.datetime.now(datetime.UTC)
    return all(_is_expired(info, now) for info in found.values())


def _is_expired(info: KubeContext, now: datetime.datetime) -> bool:
    if info.expiration is None:
        return False
    aware = info.expiration.tzinfo is not None
    return (info.expiration if aware else info.expiration.replace(tzinfo=datetime.UTC)) <= now


def _check_alternatives(name: str, path: AnyPath | None, data: str | bytes | None) -> None:
    if path and data:
        raise ValueError(f"Both the {name} path and the {name} data are set; only one is needed.")


def _expand(path: AnyPath) -> str:
    return os.path.expanduser(os.fsdecode(path))


def _find(path: AnyPath) -> str:
    # Open the file only to get a good error: the errors of the TLS library do not name the file.
    expanded = _expand(path)
    with open(expanded, 'rb'):
        return expanded


def _read_token(path: AnyPath) -> str:
    with open(_expand(path), encoding='utf-8') as f:
        return f.read().strip()


def _decode_pem(data: str | bytes) -> str:
    text = data.decode('ascii') if isinstance(data, bytes) else data
    if '-----BEGIN ' in text:
        return text
    try:
        # YAML files wrap long texts, so Base64 can contain line breaks.
        return base64.b64decode(''.join(text.split()), validate=True).decode('ascii')
    except ValueError:
        raise ValueError(f"the data of a certificate or a key are neither PEM nor base64: {text[:20]!r}...") from None


def _write_text(path: str, text: str) -> None:
    with open(path, 'w', encoding='ascii') as f:
        f.write(text)
