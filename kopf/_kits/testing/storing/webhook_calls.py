"""
Calls of webhooks, for admission and conversion alike: their URLs, their CAs, and their errors.

Connections are kept open for the next calls, as on a real server, so the caller must close them at the end. The
messages of errors are Go's, as on a real server.
"""

import asyncio
import base64
import errno
import functools
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson

from kopf._kits.testing.kinds.storage import Storage

if TYPE_CHECKING:
    import aiohttp


class CalloutError(Exception):
    """Raised when the webhook did not respond, or not with 200; the message is that of a real server."""


class Callouts:
    """A client of all webhooks; to be closed at the end."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def post(self, client: Mapping[str, Any], review: Mapping[str, Any], seconds: float) -> bytes:
        """
        Send a review to the webhook of a client configuration, and return the body of the response.

        Raises:
            CalloutError: The webhook did not respond, or not with 200.
        """
        import aiohttp  # imported only when webhooks are called, because it is slow to import

        if self._session is None:
            self._session = aiohttp.ClientSession(headers={'User-Agent': 'kube-apiserver-admission'})
        url, hostname = self._locate(client)
        shown = f'{url}?timeout={seconds:g}s'
        try:
            async with self._session.post(
                url,
                data=orjson.dumps(review),
                ssl=_ssl_context(client.get('caBundle') or ''),
                server_hostname=hostname,
                params={'timeout': f'{seconds:g}s'},
                timeout=aiohttp.ClientTimeout(total=seconds),
                headers={'Content-Type': 'application/json', 'Accept': 'application/json, */*'},
            ) as answer:
                body = await answer.read()
                if answer.status == 200:
                    return body
                kind = answer.content_type
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise CalloutError(f'Post "{shown}": {describe(error)}') from error
        if answer.status == 404:
            raise CalloutError('the server could not find the requested resource')
        text = orjson.dumps(body.decode(errors='replace').strip() if kind == 'text/plain' else 'unknown').decode()
        raise CalloutError(f'an error on the server ({text}) has prevented the request from succeeding')

    def _locate(self, client: Mapping[str, Any]) -> tuple[str, str | None]:
        """Return the URL, and the expected name of the server. Only services of the type ExternalName can be called."""
        if 'url' in client:
            return client['url'], None
        service = client['service']
        name, namespace = service['name'], service['namespace']
        record = self._storage.table('', 'services').get(namespace, name)
        spec = {} if record is None else record.body().get('spec') or {}
        if record is None:
            raise CalloutError(f'service "{name}" not found')
        if spec.get('type') != 'ExternalName':
            raise CalloutError(
                f'services are not reachable in the sandbox: {namespace}/{name}; use a URL in the '
                f'client configuration, or a service of the type ExternalName'
            )
        path = (service.get('path') or '').lstrip('/')
        return f'https://{spec["externalName"]}:{service.get("port") or 443}/{path}', f'{name}.{namespace}.svc'


def describe(error: BaseException) -> str:
    """Return the error of a call in the words of Go."""
    import aiohttp

    if isinstance(error, (TimeoutError, asyncio.CancelledError)):
        return 'context deadline exceeded'
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f'tls: failed to verify certificate: x509: {_certificate_problem(error.certificate_error)}'
    if isinstance(error, aiohttp.ClientConnectorError):
        place = f'dial tcp {error.host}:{error.port}'
        if error.os_error.errno == errno.ECONNREFUSED or 'Connect call failed' in str(error):
            return f'{place}: connect: connection refused'
        return f'{place}: {error.os_error.strerror or error}'
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return 'EOF'
    return str(error) or type(error).__name__


def _certificate_problem(error: Exception) -> str:
    reason = getattr(error, 'verify_message', '') or str(error)
    known = {
        'self-signed certificate in certificate chain',
        'unable to get local issuer certificate',
        'self-signed certificate',
    }
    return 'certificate signed by unknown authority' if reason in known else reason


# Why cached? A new context reads the system's certificates, and aiohttp reuses connections only for the same context.
@functools.lru_cache(maxsize=100)
def _ssl_context(bundle: str) -> ssl.SSLContext:
    # Without a bundle, the system's certificates are read, which takes tens of milliseconds.
    return ssl.create_default_context(cadata=base64.b64decode(bundle).decode() if bundle else None)
