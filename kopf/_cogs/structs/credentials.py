"""
Credentials of the Kubernetes API and the vault that keeps them.

Login handlers know where credentials come from and the API client how to use them; the vault
stands between them, so that neither waits for nor knows of the other. It belongs to the operator,
not to the client: it outlives sessions and is accepted from outside when embedding.
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
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NewType, TypeAlias

from kopf._cogs.aiokits.delays import Delays
from kopf._cogs.aiokits.loops import end
from kopf._cogs.helpers.explanations import ExplainedError
from kopf._cogs.structs import ids

if TYPE_CHECKING:
    import aiohttp

logger = logging.getLogger(__name__)

AnyPath: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]

# How many bad credentials a login handler is remembered for. It is only a guard against endless
# loops: who rotates through more tokens than this, is rather rotating than looping.
_REMEMBERED = 100

# For how long the login handlers may take to end when they are cancelled (seconds).
_EXIT_TIMEOUT = 2.0


# The pauses between failing logins if credentials were accepted before (seconds); the last one is repeated.
_FAILURE_PAUSES = (1, 2, 4, 8, 15, 30)

# Credentials that are accepted by some requests and refused to others as soon as that (seconds) are worth a pause
# after a few times: a part of the API can refuse everything.
_SHORT_LIFE = 10.0
_SHORT_LIVES = 5

# How many times to log in again if that brings nothing at all, or what is expired already.
_FRUITLESS_LOGINS = 3

# The pauses between logins because of untrusted certificates (seconds); the last one is repeated.
_DISTRUST_PAUSES = (1, 2, 5, 10, 20, 60)


class LoginError(ExplainedError):
    """There is nothing (more) to log in with."""


class PassingLoginError(LoginError):
    """The same login can succeed soon: a program has failed, or a file could not be read."""


class FinalLoginError(LoginError):
    """A login handler has said that it is of no use to try again."""


class _FruitlessLoginError(LoginError):
    """The login handlers have not failed, but there is nothing to be used in what they have returned."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class KubeContext:
    """
    Anything that one can talk to a cluster with.

    Args:
        server: the URL of the API server, maybe with a path.
        priority: the higher, the more preferred; among the equal, a random one is used.
        default_namespace: the namespace where the context is, e.g. that of the pod.
        expiration: when it is to be renewed; without a timezone it is UTC.
    """

    server: str
    priority: int = 0
    default_namespace: str | None = None
    expiration: datetime.datetime | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class AiohttpSession(KubeContext):
    """
    An HTTP session made by the operator's developer: it brings all of TLS, headers, proxies, etc.

    The session is used as it is, and is closed when the operator ends: it is given away to the operator.
    """

    aiohttp_session: 'aiohttp.ClientSession'


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConnectionInfo(KubeContext):
    """
    An endpoint and credentials of a cluster, to be returned by login handlers.

    Certificates and keys can be given by path or by data: in PEM, or in base64 of it. Raises ``ValueError`` for both.

    Args:
        ca_path: a file with the certificates of authorities to trust instead of the system's ones.
        ca_data: the same by value.
        insecure: do not verify the server's certificate at all.
        username: for the basic authentication (with a password); wins over the token.
        password: for the basic authentication (with a username).
        scheme: of the ``Authorization`` header; ``Bearer`` if there is a token.
        token: of the ``Authorization`` header.
        token_path: a file with the token, read again and again while in use; wins over the token.
        certificate_path: a file with the client's certificate; ``~`` is the home directory.
        certificate_data: the same by value.
        private_key_path: a file with the private key of the client's certificate.
        private_key_data: the same by value.
        tls_server_name: the name to expect in the server's certificate, if not the one in the URL.
        proxy_url: the HTTP proxy for all requests.
        trust_env: take proxies and passwords from the environment and from ``~/.netrc``.
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
        Get nothing: the name and the password are in `as_http_headers`, and aiohttp refuses to have both. Deprecated.
        """
        warnings.warn(
            "as_aiohttp_basic_auth() is deprecated, do not call it: as_http_headers() has all that it had.",
            DeprecationWarning,
            stacklevel=2,
        )
        return None

    def as_http_headers(self) -> dict[str, str]:
        """
        Get the HTTP headers that identify the client; maybe none.

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
        Make a TLS context with the authorities and certificates. It takes milliseconds: do it once.

        Raises:
            ValueError: if something is neither PEM nor base64.
            OSError: if a file cannot be read, or is not a certificate.
        """
        context = ssl.create_default_context(
            cafile=_find(self.ca_path) if self.ca_path else None,
            cadata=_decode_pem(self.ca_data) if self.ca_data else None,
        )
        # Clusters sign for themselves, often without the key identifiers that are demanded since Python 3.13.
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


class Vault:
    """
    The owner of all credentials of an operator.

    Requests take credentials by `select` and give them back by `invalidate` if they are refused.
    When there is nothing left, the first who notices starts the one and only re-authentication,
    and everybody waits for it. It runs in a task of its own, so that a request which is cancelled or
    timed out does not cancel the login of others; the task ends by itself or with `close`.

    A refusal can be the server's own fault: of one that restarts, or that cannot ask the owner of the tokens.
    So, if the login handlers have nothing else, the refused credentials get more chances, later and later;
    but only one chance if none have ever been accepted, as they are then most likely wrong. The same goes for
    credentials that are new each time, and refused each time: logins must not follow each other without a pause.

    A login that fails is repeated, too, for as long as it takes, if there were accepted credentials before: meanwhile,
    the operator does what needs no requests, and the requests wait. It ends only if a login handler says that it is of
    no use. Before the first success, the operator has nothing to lose, and its user wants to know the reason at once:
    only failures that can pass by themselves are tried once more.

    Args:
        src: the credentials to begin with, by login handler.
    """

    authenticate: Authenticator | None
    """What gets the credentials of all login handlers; to be set by the operator."""

    def __init__(self, src: Mapping[ids.HandlerId, KubeContext] | None = None, /) -> None:
        self.authenticate = None
        self._current: dict[VaultKey, KubeContext] = {}
        self._refused: dict[VaultKey, collections.deque[KubeContext]] = {}
        self._best: list[tuple[VaultKey, KubeContext]] = []
        self._chances: Iterator[float] | None = None  # since the first refusal with no success after it
        self._refusals = 0
        self._renewed = False  # whether others came after the last refusal, so that the next login has to wait
        self._lenient = False  # whether there was a pause after it, so that the refused ones can be tried again
        self._short_lives = 0  # of credentials in a row
        self._born_at = 0.0
        self._distrust: Delays | None = None  # since the first untrusted certificate with no success after it
        self._distrusted_until = 0.0
        self._unusable: LoginError | None = None  # why the last credentials cannot be used at all
        self._pauses: Delays | None = None  # since the first failure of a login with no success after it
        self._failures = 0
        self._failing_since: float | None = None
        self._proven = False
        self._expiring = False
        self._login: asyncio.Task[Exception | None] | None = None
        self._update(src or {})

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._current!r}>"

    def is_empty(self) -> bool:
        """Check if the next `select` will have to log in."""
        self._drop_expired()
        return not self._best

    @property
    def failing_for(self) -> float:
        """For how long (in seconds) the logins have been failing."""
        return 0.0 if self._failing_since is None else time.monotonic() - self._failing_since

    async def select(self) -> tuple[VaultKey, KubeContext]:
        """
        Get credentials to use now: random ones of the highest priority.

        Raises:
            LoginError: if there are none, and the login handlers give nothing new.
        """
        if self._expiring:
            self._drop_expired()
        while not self._best:
            await self._renew()
        return self._best[0] if len(self._best) == 1 else random.choice(self._best)

    async def invalidate(
        self,
        key: VaultKey,
        info: KubeContext,
        exc: Exception | None = None,
        *,
        backoffs: Iterable[float] = (),
    ) -> None:
        """
        Give up the credentials that are refused by the server; take them again only if there are no others.

        It returns when there are credentials to try. If the credentials are already replaced,
        it does nothing: many requests are usually refused at once.

        Args:
            key: where the credentials are from.
            info: the credentials, as they were selected.
            exc: the refusal; or a `LoginError` if they cannot even be shown to the server.
            backoffs: how long to wait (seconds) before each next attempt with credentials that were refused.

        Raises:
            LoginError: if there are no other credentials, and no more attempts; caused by `exc`.
        """
        if self._current.get(key) is info:
            del self._current[key]
            if isinstance(exc, LoginError):
                self._unusable = exc
            else:
                self._note_refusal(key, info, backoffs)
            self._rank()
        try:
            await self.select()
        except LoginError as e:
            if isinstance(exc, LoginError):  # it is the credentials themselves that make no sense
                raise exc from exc.__cause__
            raise e from exc

    def _note_refusal(self, key: VaultKey, info: KubeContext, backoffs: Iterable[float]) -> None:
        self._refusals += 1
        self._short_lives = self._short_lives + 1 if time.monotonic() - self._born_at < _SHORT_LIFE else 0
        if self._chances is None:
            self._chances = itertools.islice(backoffs, None if self._proven else 1)
            self._renewed = self._lenient = False
        self._refused.setdefault(key, collections.deque(maxlen=_REMEMBERED)).append(_reduce(info))

    def distrust(self, key: VaultKey, info: KubeContext) -> bool:
        """
        Give up the credentials, as the server's certificate does not fit to them any more; return whether this is done.

        Certificate authorities of clusters are rotated: then, only another login brings the new ones. It is not done
        too often, and only if the server was trusted before: otherwise, most likely, it is the wrong server.
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
        """Know that the server has accepted the credentials: if they were refused before, it was not their fault."""
        self._proven = True
        if self._current.get(key) is info:
            self._chances, self._refusals = None, 0
            self._pauses = self._distrust = None
            refused = self._refused.get(key)
            if refused and (reduced := _reduce(info)) in refused:
                refused.remove(reduced)

    async def close(self) -> None:
        """
        Stop the login if it is going on, and start no other one until `authenticate` is set again.

        Login handlers that do not stop in time are named in the logs and left.
        """
        self.authenticate = None
        task = self._login
        if task is not None:
            await end([task], timeout=_EXIT_TIMEOUT, what="The login handlers")

    async def _renew(self) -> None:
        if self._login is None:
            # Login handlers see nothing of the request or the handler that has caused the login.
            self._login = asyncio.create_task(self._authenticate(), name="login", context=contextvars.Context())
        task = self._login
        await asyncio.wait([task])
        if self._login is task:
            self._login = None
        if task.cancelled():
            raise LoginError("The login was cancelled before it brought any credentials.")
        error = task.result()
        if isinstance(error, LoginError):
            own = LoginError(*error.args)  # each of those who wait needs one, as it gets a traceback
            own.exit_code = error.exit_code
            raise own from error.__cause__
        if error is not None:
            raise LoginError(f"The login has failed: {error!r}") from error

    async def _authenticate(self) -> Exception | None:
        # The error is returned, not raised: there can be many to raise it, or nobody at all.
        if self._short_lives >= _SHORT_LIVES:
            await self._pause_after_short_lives()
        error: Exception | None
        error, self._unusable = self._unusable, None
        try:
            if error is None:
                error = await self._log_in()
            while error is not None:
                if not self._is_retried(error):
                    return error
                await self._pause_after_failure(error)
                error = await self._log_in()
        except Exception as e:
            return e
        self._failing_since, self._born_at = None, time.monotonic()
        return None

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
            "The login has failed, and will be tried again in %g seconds; until then, the requests wait: %s",
            delay,
            error,
        )
        await asyncio.sleep(delay)

    async def _log_in(self) -> Exception | None:
        """Log in once, after a pause if that is needed; return why it has failed for now, or raise why for good."""
        if self.authenticate is None:
            raise LoginError("There are no credentials, and nothing to get them with.")
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
            "again in %g seconds, as it can be a fault of the API.",
            _join(keys),
            delay,
        )
        await asyncio.sleep(delay)
        self._renewed, self._lenient = False, True

    async def _pause_after_short_lives(self) -> None:
        delay = min(60.0, 2.0 ** (self._short_lives - _SHORT_LIVES))
        logger.warning(
            "The API accepts the credentials for some requests, and refuses them for others. "
            "The next login is in %g seconds.",
            delay,
        )
        await asyncio.sleep(delay)

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

    def _drop_expired(self, *, force: bool = False) -> None:
        now = datetime.datetime.now(datetime.UTC)
        expired = [key for key, info in self._current.items() if _is_expired(info, now)]
        for key in expired:
            del self._current[key]
        if expired or force:
            self._rank()

    def _rank(self) -> None:
        top = max((info.priority for info in self._current.values()), default=0)
        self._best = [(key, info) for key, info in self._current.items() if info.priority == top]
        self._expiring = any(info.expiration is not None for info in self._current.values())


def _join(keys: Iterable[str]) -> str:
    return ', '.join(repr(str(key)) for key in keys)


def _reduce(info: KubeContext) -> KubeContext:
    # A refused token is refused with any other promise of its lifetime too.
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
    # The errors of the TLS library do not name the file.
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
        return base64.b64decode(''.join(text.split()), validate=True).decode('ascii')
    except ValueError:
        raise ValueError(f"the data of a certificate or a key are neither PEM nor base64: {text[:20]!r}...") from None


def _write_text(path: str, text: str) -> None:
    with open(path, 'w', encoding='ascii') as f:
        f.write(text)
