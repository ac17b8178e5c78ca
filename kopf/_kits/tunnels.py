"""
Webhook servers that detect the type of the cluster, and tunnels for clusters that cannot reach this machine.

In local clusters, this machine has a special host name, which depends on the tool that has created the cluster. The
certificate of the API indicates the tool. For other clusters, a tunnel leads from a public URL to a local server.
"""

import asyncio
import functools
import logging
import ssl
import urllib.parse
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from kopf._cogs.helpers.explanations import ExplainedError
from kopf._cogs.structs.credentials import ConnectionInfo
from kopf._cogs.structs.reviews import WebhookClientConfig, WebhookFn
from kopf._core.engines.admission import vault_var
from kopf._kits.certificates import MissingDependencyError
from kopf._kits.webhooks import (
    StrPath,
    WebhookContextManager,
    WebhookDockerDesktopServer,
    WebhookK3dServer,
    WebhookMinikubeServer,
    WebhookServer,
)

logger = logging.getLogger(__name__)

DETECTION_TIMEOUT = 10.0
"""The time limit for getting the API's certificate (in seconds)."""

_SIGNS = {
    'k3s': WebhookK3dServer.DEFAULT_HOST,
    'k3d': WebhookK3dServer.DEFAULT_HOST,
    'minikube': WebhookMinikubeServer.DEFAULT_HOST,
    'docker-desktop': WebhookDockerDesktopServer.DEFAULT_HOST,
    'docker-for-desktop': WebhookDockerDesktopServer.DEFAULT_HOST,
}
"""The prefixes of names in the certificates of local clusters."""


class ClusterDetector:
    """Detects local clusters by the certificates of their API."""

    @staticmethod
    async def guess_host() -> str | None:
        """Return the host name of this machine in the cluster; ``None`` if it is not a local cluster."""
        vault = vault_var.get(None)
        if vault is None:
            return None
        _, info = await vault.select()
        if not isinstance(info, ConnectionInfo):
            return None
        try:
            async with asyncio.timeout(DETECTION_TIMEOUT):
                certificate = await _get_certificate(info)
        # The detection is only a guess: without it, the cluster counts as not local.
        except (OSError, TimeoutError, ssl.SSLError) as error:
            logger.debug("The certificate of the API cannot be read: %r", error)
            return None
        return next(
            (host for name in _iter_names(certificate) for sign, host in _SIGNS.items() if name.startswith(sign)), None
        )


class WebhookAutoServer(ClusterDetector, WebhookServer):
    """
    Listens on this machine, under the host name that fits the cluster, if it is a local one.

    Takes the same parameters as `WebhookServer`. It never tunnels.
    """

    async def _find_host(self) -> str | None:
        return self.host or await self.guess_host()


class TunnelError(ExplainedError):
    """Raised if a tunnel cannot be opened."""


class WebhookNgrokTunnel(WebhookContextManager):
    """
    Lets the API reach this machine through ngrok: https://ngrok.com/.

    Needs the extra ``dev`` of the package. The URL is public, and any client that has it can send reviews. There is no
    CA bundle: the certificates of ngrok are signed by public authorities.

    Args:
        addr: the address to listen at locally, by HTTP; by default, ``localhost``.
        port: the port to listen at; by default, 9443, or any other that is free if that is taken.
        path: the path before the ids of the webhooks; by default, there is none.
        token: the token of an account at ngrok.
        region: the region of ngrok to go through.
        binary: the ngrok binary; by default, it is downloaded.

    Raises:
        MissingDependencyError: if the library is not installed.
    """

    def __init__(
        self,
        *,
        addr: str | None = None,
        port: int | None = None,
        path: str | None = None,
        token: str | None = None,
        region: str | None = None,
        binary: StrPath | None = None,
    ) -> None:
        super().__init__()
        self.addr = addr
        self.port = port
        self.path = path
        self.token = token
        self.region = region
        self.binary = binary

    async def __call__(self, fn: WebhookFn) -> AsyncIterator[WebhookClientConfig]:
        try:
            from pyngrok import conf, exception, ngrok
        except ImportError:
            raise MissingDependencyError(
                "Tunnels through ngrok need an extra library: run `pip install pyngrok`, or "
                "`pip install 'kopf[dev]>=1.46'`."
            ) from None
        binary = None if self.binary is None else str(self.binary)
        options: dict[str, Any] = {'ngrok_path': binary, 'region': self.region, 'auth_token': self.token}
        config = conf.PyngrokConfig(**{key: value for key, value in options.items() if value})
        # Call it in threads, because the library blocks: it downloads and starts a program.
        run = asyncio.get_running_loop().run_in_executor
        server = WebhookServer(addr=self.addr, port=self.port, path=self.path, insecure=True)
        await self._resources.enter_async_context(server)
        try:
            async for client_config in server(fn):
                local = urllib.parse.urlsplit(client_config['url'] or '')
                try:
                    tunnel = await run(
                        None,
                        functools.partial(
                            ngrok.connect, local.netloc, 'http', pyngrok_config=config, schemes=['https']
                        ),
                    )
                except exception.PyngrokError as error:
                    raise TunnelError(f"The tunnel through ngrok cannot be opened: {error}") from None
                self._resources.push_async_callback(
                    run, None, functools.partial(ngrok.disconnect, tunnel.public_url or '', pyngrok_config=config)
                )
                yield WebhookClientConfig(url=f"{tunnel.public_url}{local.path}")
        finally:
            await self._resources.aclose()


class WebhookAutoTunnel(ClusterDetector, WebhookContextManager):
    """
    Listens on this machine if the cluster is a local one; otherwise, goes through a tunnel: that of ngrok.

    Args:
        addr: the address to listen at; by default, ``localhost``.
        port: the port to listen at; by default, 9443, or any other that is free if that is taken.
        path: the path before the ids of the webhooks; by default, there is none.
    """

    def __init__(self, *, addr: str | None = None, port: int | None = None, path: str | None = None) -> None:
        super().__init__()
        self.addr = addr
        self.port = port
        self.path = path

    async def __call__(self, fn: WebhookFn) -> AsyncIterator[WebhookClientConfig]:
        host = await self.guess_host()
        server: WebhookServer | WebhookNgrokTunnel
        if host is not None:
            server = WebhookServer(addr=self.addr, port=self.port, path=self.path, host=host)
        else:
            server = WebhookNgrokTunnel(addr=self.addr, port=self.port, path=self.path)
        await self._resources.enter_async_context(server)
        try:
            async for client_config in server(fn):
                yield client_config
        finally:
            await self._resources.aclose()


async def _get_certificate(info: ConnectionInfo) -> Mapping[str, Any]:
    """Return the certificate of the API as the standard library shows it, i.e. only if it is verified."""
    server = urllib.parse.urlsplit(info.server)
    if server.scheme != 'https':
        return {}
    _, writer = await asyncio.open_connection(
        server.hostname,
        server.port or 443,
        ssl=info.as_ssl_context(),
        server_hostname=info.tls_server_name or server.hostname,
    )
    try:
        certificate: Mapping[str, Any] = writer.get_extra_info('peercert') or {}
        return certificate
    finally:
        writer.close()


def _iter_names(certificate: Mapping[str, Any]) -> Iterator[str]:
    for part in ('subject', 'issuer'):
        for items in certificate.get(part, ()):
            yield from (str(value) for _, value in items)
    yield from (str(value) for _, value in certificate.get('subjectAltName', ()))
