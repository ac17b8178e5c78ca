"""
Webhook servers, to which the API server sends admission and conversion reviews over HTTPS.

A server is any callable that accepts a function for reviews, and yields client configs, i.e. its addresses for the API.
The servers here listen on this machine, and differ in the host name by which a cluster resolves the machine. For
other servers, see `tunnels` and `services`. Specified in the documentation's "Servers".
"""

import asyncio
import base64
import contextlib
import dataclasses
import errno
import logging
import os
import pathlib
import secrets
import ssl
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable
from typing import ClassVar, Self, TypeAlias

from kopf._cogs.helpers.explanations import ExplainedError
from kopf._cogs.structs.reviews import WebhookClientConfig, WebhookFn
from kopf._kits import certificates
from kopf._kits.endpoints import AddressError, Endpoint

logger = logging.getLogger(__name__)

StrPath: TypeAlias = str | os.PathLike[str]
Pair: TypeAlias = tuple[StrPath | bytes, StrPath | bytes | None, str | None]
"""A certificate and its private key, as files or as PEM, and the password of the key."""

DEFAULT_PORT = 9443

_EVERYWHERE = {'0.0.0.0': '127.0.0.1', '::': '::1'}
"""The addresses that mean all interfaces, each with an address at which clients can reach the server."""


class WebhookContextManager:
    """
    Makes a server usable with ``async with``: all its resources are closed at the exit.

    Without it, the resources would be closed only when Python closes the generator of client configs, possibly late.
    """

    def __init__(self) -> None:
        super().__init__()
        self._resources = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._resources.aclose()


class CertificateError(ExplainedError, OSError, ValueError):
    """Raised if the certificates of a server cannot be used."""


class WebhookServer(WebhookContextManager):
    """
    Listens on this machine, by HTTPS unless ``insecure`` is set.

    Without a certificate, a self-signed one is created for the host, the address, and the extra names; this needs
    the extra ``dev`` of the package. The files are checked for changes periodically. New certificates are used
    without interruption, and the new CA bundle is passed to the API.

    Args:
        addr: the address to listen at; by default, ``localhost``.
        port: the port to listen at; by default, 9443, or any other that is free if that is taken.
        path: the path before the ids of the webhooks; by default, there is none.
        host: the host name in the URLs for the API; by default, the address.
        cadata: the CA bundle by which the API checks the server, as PEM, if there is a ``certfile``. Without one, the
            server checks the certificates of its clients by this bundle, as by ``verify_cadata``.
        cafile: the same, as a file.
        cadump: a file to write the CA bundle to, e.g. for ``curl --cacert``.
        context: an SSL context to be used instead of a new one.
        insecure: serve HTTP only; the API accepts no such servers, but tunnels and developers do.
        certfile: the certificate of the server, with its chain if there is any, as PEM.
        pkeyfile: its private key; by default, it is in the same file.
        password: the password of the private key.
        extra_sans: more names and IP addresses for the self-signed certificate.
        verify_mode: whether clients must have certificates; by default, they need not, but their certificates are
            verified if there is a CA bundle for that.
        verify_cafile: the CA bundle by which the certificates of clients are verified, as a file.
        verify_capath: the same, as a directory in the form of OpenSSL.
        verify_cadata: the same, as PEM or DER.
        file_check_interval: the interval between checks of the files for changes (in seconds).

    Raises:
        MissingDependencyError: if there is no certificate, and no library to make one.
        OSError: if the address can't be taken, or if files can't be read.
        ValueError: if the certificates can't be used.
    """

    DEFAULT_HOST: ClassVar[str | None] = None

    def __init__(
        self,
        *,
        addr: str | None = None,
        port: int | None = None,
        path: str | None = None,
        host: str | None = None,
        cadata: bytes | None = None,
        cafile: StrPath | None = None,
        cadump: StrPath | None = None,
        context: ssl.SSLContext | None = None,
        insecure: bool = False,
        certfile: StrPath | None = None,
        pkeyfile: StrPath | None = None,
        password: str | None = None,
        extra_sans: Iterable[str] = (),
        verify_mode: ssl.VerifyMode | None = None,
        verify_cafile: StrPath | None = None,
        verify_capath: StrPath | None = None,
        verify_cadata: str | bytes | None = None,
        file_check_interval: float = 60.0,
    ) -> None:
        super().__init__()
        for option, value in {'addr': addr, 'path': path, 'host': host}.items():
            if not isinstance(value, str | None):
                raise TypeError(f"{type(self).__name__}: {option}= must be a string, not {value!r}.")
        if not isinstance(port, int | None):
            raise TypeError(f"{type(self).__name__}: port= must be a number, not {port!r}.")
        self.addr = addr
        self.port = port
        self.path = path
        self.host = host
        self.cadata = cadata
        self.cafile = cafile
        self.cadump = cadump
        self.context = context
        self.insecure = insecure
        self.certfile = certfile
        self.pkeyfile = pkeyfile
        self.password = password
        self.extra_sans = extra_sans
        self.verify_mode = verify_mode
        self.verify_cafile = verify_cafile
        self.verify_capath = verify_capath
        self.verify_cadata = verify_cadata
        self.file_check_interval = file_check_interval

    async def __call__(self, fn: WebhookFn) -> AsyncIterator[WebhookClientConfig]:
        path = '/' + self.path.lstrip('/') if self.path else ''
        endpoint = Endpoint(fn, path=path)
        self._resources.push_async_callback(endpoint.close)
        try:
            addr = self.addr or 'localhost'
            port = await _bind(endpoint, addr, self.port)
            reachable = _EVERYWHERE.get(addr, addr)
            host = await self._find_host() or reachable
            url = f"{'http' if self.insecure else 'https'}://{f'[{host}]' if ':' in host else host}:{port}{path}"
            if self.insecure:
                await endpoint.listen(None)
                logger.debug("Webhooks are served at %s", url)
                yield WebhookClientConfig(url=url)
                # Why wait for ever? The end of this generator is the end of the server.
                await asyncio.Event().wait()
            bundles = self._serve_securely(endpoint, [host, reachable, *self.extra_sans])
            # Without it, the inner generator would be closed some time later, by the garbage collector.
            async with contextlib.aclosing(bundles):
                async for bundle in bundles:
                    logger.debug("Webhooks are served at %s", url)
                    yield WebhookClientConfig(url=url, caBundle=base64.b64encode(bundle).decode())
        finally:
            await self._resources.aclose()

    async def _find_host(self) -> str | None:
        """Return the host name of this machine for the API."""
        return self.host or self.DEFAULT_HOST

    async def _serve_securely(self, endpoint: Endpoint, hostnames: list[str]) -> AsyncGenerator[bytes, None]:
        """Listen with the certificates of the files; yield the CA bundle each time when it changes."""
        generated = self._generate(hostnames) if self.certfile is None else None
        # Read it before the files are loaded, so that a change in between is noticed.
        state = _FilesState.of(self._files())
        context, bundle = self._load(generated)
        shown: bytes | None = None
        while True:
            await endpoint.listen(context)
            if bundle != shown:
                self._dump(bundle)
                shown = bundle
                yield bundle
            while True:
                await state.wait_change(self.file_check_interval)
                # Read it before the load, as above. It replaces the known state only after a successful load, so that
                # failed loads are retried.
                fresh = _FilesState.of(self._files())
                try:
                    context, bundle = self._load(generated)
                    _check_replacement(bundle, shown)
                except (OSError, ValueError) as error:  # another process can be writing them at this moment
                    logger.warning("The changed certificates of the webhook server cannot be used yet: %s", error)
                    await asyncio.sleep(self.file_check_interval)
                else:
                    logger.info("The certificates of the webhook server have changed; using the new ones.")
                    state = fresh
                    break

    def _generate(self, hostnames: list[str]) -> tuple[bytes, bytes, str]:
        password = self.password or secrets.token_hex(16)  # the key must be passed in a file, so it is encrypted
        return (*self.build_certificate(hostnames, password), password)

    def _files(self) -> list[pathlib.Path]:
        paths = [self.cafile, self.certfile, self.pkeyfile, self.verify_cafile, self.verify_capath]
        return [pathlib.Path(path) for path in paths if path is not None]

    def _load(self, generated: tuple[bytes, bytes, str] | None) -> tuple[ssl.SSLContext, bytes]:
        try:
            return self._make_context(generated), self._get_bundle(generated)
        except (OSError, ValueError) as error:  # the errors of the TLS library do not name the files
            raise CertificateError(
                f"The webhook server cannot use its certificates: {error} "
                f"(files: {', '.join(map(str, self._files())) or 'none'})"
            ) from error

    def _get_bundle(self, generated: tuple[bytes, bytes, str] | None) -> bytes:
        """Return the CA bundle for the API: the specified authority, or else the certificate itself."""
        if generated is not None:
            return generated[0]
        if self.cadata is not None:
            return self.cadata
        path = self.cafile if self.cafile is not None else self.certfile
        return pathlib.Path(path or '').read_bytes()

    def _dump(self, bundle: bytes) -> None:
        if self.cadump is not None:
            pathlib.Path(self.cadump).write_bytes(bundle)

    def _make_context(self, generated: tuple[bytes, bytes, str] | None) -> ssl.SSLContext:
        cafile, cadata = self.verify_cafile, self.verify_cadata
        # A generated certificate is its own authority, so the given authorities can only be for clients.
        if generated is not None and not (cafile or cadata or self.verify_capath):
            cafile, cadata = self.cafile, None if self.cadata is None else self.cadata.decode()
        return make_context(
            generated or (self.certfile or '', self.pkeyfile, self.password),
            context=self.context,
            mode=self.verify_mode,
            cafile=cafile,
            capath=self.verify_capath,
            cadata=cadata,
        )

    @staticmethod
    def build_certificate(hostnames: Collection[str], password: str | None = None) -> tuple[bytes, bytes]:
        """
        Create a self-signed certificate for these names and addresses; return it and its private key, both as PEM.

        Args:
            hostnames: the names and IP addresses of the server.
            password: encrypts the private key, if given.

        Raises:
            MissingDependencyError: if the library for certificates is not installed.
        """
        return certificates.build_certificate(hostnames, password)


class WebhookK3dServer(WebhookServer):
    """Listens on this machine for a cluster of K3d or K3s on it, also for one in a virtual machine."""

    DEFAULT_HOST = 'host.k3d.internal'


class WebhookMinikubeServer(WebhookServer):
    """Listens on this machine for a cluster of Minikube on it, also for one in a virtual machine."""

    DEFAULT_HOST = 'host.minikube.internal'


class WebhookDockerDesktopServer(WebhookServer):
    """Listens on this machine for a cluster of Docker Desktop on it."""

    DEFAULT_HOST = 'host.docker.internal'


def _check_replacement(bundle: bytes, former: bytes) -> None:
    """Raise an error if the bundle is incomplete: then, the API server would not trust the webhook server any more."""
    # Why not without a former one? It is for the API server to decide what it accepts.
    if _has_certificates(former) and not _has_certificates(bundle):
        raise ValueError("The bundle of authorities has no certificates.")


def _has_certificates(bundle: bytes) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=bundle.decode('ascii', 'ignore'))
    except (OSError, ValueError):
        return False
    return True


@dataclasses.dataclass(frozen=True)
class _FilesState:
    """The contents of the files, to detect changes. Why not times and sizes? They can be the same after a change."""

    paths: list[pathlib.Path]
    contents: list[object]

    @classmethod
    def of(cls, paths: list[pathlib.Path]) -> '_FilesState':
        return cls(paths, [_read(path) for path in paths])

    async def wait_change(self, interval: float) -> None:
        if not self.paths:
            await asyncio.Event().wait()
        while self.contents == [_read(path) for path in self.paths]:  # noqa: ASYNC110
            await asyncio.sleep(interval)


def _read(path: pathlib.Path) -> object:
    try:
        if path.is_dir():
            return {file: file.read_bytes() for file in path.iterdir() if file.is_file()}
        return path.read_bytes()
    except OSError:
        return None


async def _bind(endpoint: Endpoint, addr: str, port: int | None) -> int:
    if port is not None:
        return await endpoint.bind(addr, port)
    try:
        return await endpoint.bind(addr, DEFAULT_PORT)
    except AddressError as error:
        # The system can also have reserved the port. Any other error is about the address.
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        return await endpoint.bind(addr, None)


def make_context(
    pair: Pair,
    *,
    context: ssl.SSLContext | None = None,
    mode: ssl.VerifyMode | None = None,
    cafile: StrPath | None = None,
    capath: StrPath | None = None,
    cadata: str | bytes | None = None,
) -> ssl.SSLContext:
    """
    Create the TLS context of a server.

    Args:
        pair: the certificate, the private key, and its password: as two files, or as two texts in PEM.
        context: the context to be used instead of a new one.
        mode: whether clients must have certificates; by default, they need not, but their certificates are verified.
        cafile: the CA bundle by which the certificates of clients are verified, as a file.
        capath: the same, as a directory in the form of OpenSSL.
        cadata: the same, as PEM or DER.

    Raises:
        ValueError: if the pair can't be used.
    """
    if context is None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.set_alpn_protocols(['http/1.1'])
    verified = bool(cafile or cadata or capath)
    if verified:
        context.load_verify_locations(cafile, capath, cadata)
    if mode is not None:
        context.verify_mode = mode
    elif verified:
        # Why not required? The API server presents no certificate unless its administrators have configured one.
        context.verify_mode = ssl.CERT_OPTIONAL
    _load_pair(context, *pair)
    return context


def _load_pair(
    context: ssl.SSLContext,
    certificate: StrPath | bytes,
    key: StrPath | bytes | None,
    password: str | None,
) -> None:
    try:
        if isinstance(certificate, bytes) and isinstance(key, bytes):
            _load_texts(context, certificate, key, password)
        else:  # without any password, OpenSSL would ask for one at the terminal
            context.load_cert_chain(certificate, key, password or '')
    except ssl.SSLError as error:
        if isinstance(certificate, bytes) or isinstance(key, bytes):
            raise ValueError(f"The certificate made for the webhook server cannot be used: {error}") from None
        raise ValueError(
            f"The certificate {certificate!s} with the private key {key or 'in the same file'!s} "
            f"cannot be used: {error}"
        ) from None


def _load_texts(context: ssl.SSLContext, certificate: bytes, key: bytes, password: str | None) -> None:
    with tempfile.TemporaryDirectory() as directory:  # the standard library reads keys from files only
        path = pathlib.Path(directory) / 'pair.pem'
        path.touch(mode=0o600)
        path.write_bytes(certificate + key)
        context.load_cert_chain(path, password=password)
