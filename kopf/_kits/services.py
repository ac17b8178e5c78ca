"""
Serving webhooks inside the cluster, with certificates that are created and renewed automatically.

The certificates are in a Secret. All replicas of the operator share them, because the API can call any replica through
the Service. The first replica that notices a due renewal writes the Secret. The other replicas get a conflict, and read
the new certificates. Specified in the documentation's "Serve webhooks in the cluster".
"""

import asyncio
import base64
import binascii
import datetime
import logging
import pathlib
import secrets
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any

from kopf._cogs.clients import errors
from kopf._cogs.clients.api import ApiClient, client_var
from kopf._cogs.helpers.explanations import ExplainedError
from kopf._cogs.structs.reviews import WebhookClientConfig, WebhookClientConfigService, WebhookFn
from kopf._kits import authorities
from kopf._kits.authorities import Keyring, Schedule
from kopf._kits.endpoints import Endpoint
from kopf._kits.webhooks import StrPath, WebhookContextManager, make_context

logger = logging.getLogger(__name__)

NAMESPACE_FILE = pathlib.Path('/var/run/secrets/kubernetes.io/serviceaccount/namespace')
MERGE_PATCH = 'application/merge-patch+json'
PRESENCE_PREFIX = 'replica.kopf.dev/'
"""The prefix of the Secret's annotations that register the running replicas."""
PRESENCE_PERIOD = datetime.timedelta(minutes=5)
PRESENCE_LIFETIME = 3 * PRESENCE_PERIOD
"""The time after which a replica that does not renew its annotation is considered dead."""
RETRY_DELAYS = (1, 2, 5, 10, 30)
"""The pauses between attempts to reach the API at the start (in seconds); the last one is repeated."""

_RULE = '{apiGroups: [""], resources: [secrets], verbs: [get, create, patch]}'


class WebhookServiceError(ExplainedError):
    """Raised if the configuration of the webhook service is wrong; the message has the remedy."""


class WebhookService(WebhookContextManager):
    """
    Serves webhooks from the pods of the operator: the API server calls them through a Service.

    It creates and renews a certificate authority and a certificate in a Secret that all replicas share. It does not
    create the Service: declare it in the manifests, beside the Deployment, with ``service_port`` as its port and
    ``port`` as its target port. The operator's service account needs to get, create and patch the Secret; the image
    needs the library `cryptography`.

    On exit, webhooks are removed from the managed configurations only by the last replica.

    Args:
        name: the name of the Service.
        namespace: its namespace, which is also that of the Secret; by default, the namespace of this pod.
        service_port: the port of the Service.
        addr: the address to listen at; by default, all of IPv4; for all of IPv6 too, it is ``::``.
        port: the port to listen at: the Service's ``targetPort``.
        path: the path before the ids of the webhooks; by default, there is none.
        secret: the name of the Secret; by default, it is that of the Service with ``-webhook-certs``.
        extra_sans: more names and IP addresses for the certificate, besides those of the Service.
        lifetime: the time for which a certificate is valid (in seconds); it is renewed when a third of this time is
            left. The authority is valid four times as long, and is replaced after a half of its time.
        overlap: the time between the announcement of a new authority and its first use (in seconds), in which the API
            begins to trust it; by default, a tenth of the lifetime.
        check_interval: the interval between reads of the Secret (in seconds); the overlap must be longer.
        verify_mode: whether clients must have certificates; this and the next arguments are those of `WebhookServer`.
        verify_cafile: the CA bundle by which the certificates of clients are verified, as a file.
        verify_capath: the same, as a directory in the form of OpenSSL.
        verify_cadata: the same, as PEM or DER.

    Raises:
        MissingDependencyError: if there is no library to make certificates.
        WebhookServiceError: if the Secret can't be used; if the namespace is unknown; if no operator uses the server.
        OSError: if the address can't be used, for example because another process listens there.
        ValueError: if the times contradict each other.
    """

    def __init__(
        self,
        *,
        name: str,
        namespace: str | None = None,
        service_port: int = 443,
        addr: str | None = None,
        port: int = 9443,
        path: str | None = None,
        secret: str | None = None,
        extra_sans: tuple[str, ...] | list[str] = (),
        lifetime: float = 90 * 24 * 60 * 60,
        overlap: float | None = None,
        check_interval: float = 60.0,
        verify_mode: ssl.VerifyMode | None = None,
        verify_cafile: StrPath | None = None,
        verify_capath: StrPath | None = None,
        verify_cadata: str | bytes | None = None,
    ) -> None:
        super().__init__()
        if not name:
            raise ValueError("WebhookService: name= must be the name of a Service.")
        self.name = name
        self.namespace = namespace
        self.service_port = service_port
        self.addr = addr
        self.port = port
        self.path = path
        self.secret = secret or f'{name}-webhook-certs'
        self.extra_sans = extra_sans
        self.lifetime = lifetime
        self.overlap = lifetime / 10 if overlap is None else overlap
        self.check_interval = check_interval
        self.verify_mode = verify_mode
        self.verify_cafile = verify_cafile
        self.verify_capath = verify_capath
        self.verify_cadata = verify_cadata
        if not 0 < self.check_interval < self.overlap < self.lifetime / 2:
            raise ValueError(
                f"WebhookService: check_interval={self.check_interval:g} must be shorter than "
                f"overlap={self.overlap:g}, which must be shorter than a half of lifetime={self.lifetime:g} (seconds)."
            )
        self._store: _Store | None = None

    async def __call__(self, fn: WebhookFn) -> AsyncIterator[WebhookClientConfig]:
        path = '/' + self.path.strip('/') if self.path and self.path.strip('/') else ''
        namespace = self.namespace or _get_own_namespace()
        client = client_var.get(None)
        if client is None:
            raise WebhookServiceError("WebhookService works only as settings.admission.server of an operator.")
        store = self._store = _Store(client, namespace, self.secret)
        endpoint = Endpoint(fn, path=path)
        self._resources.push_async_callback(endpoint.close)
        try:
            await endpoint.bind(self.addr or '0.0.0.0', self.port)
            keyring: Keyring | None = None
            async for fresh in self._follow(store, namespace):
                if keyring is None or fresh.certificate != keyring.certificate:
                    await endpoint.listen(
                        make_context(
                            (fresh.certificate, fresh.key, None),
                            mode=self.verify_mode,
                            cafile=self.verify_cafile,
                            capath=self.verify_capath,
                            cadata=self.verify_cadata,
                        )
                    )
                if keyring is None or fresh.authorities != keyring.authorities:
                    logger.debug(
                        "Webhooks are served at the port %s for the service %s/%s.", self.port, namespace, self.name
                    )
                    yield WebhookClientConfig(
                        service=WebhookClientConfigService(
                            namespace=namespace, name=self.name, port=self.service_port, path=path or None
                        ),
                        caBundle=base64.b64encode(fresh.authorities).decode(),
                    )
                keyring = fresh
        finally:
            await self._resources.aclose()

    async def leave(self) -> bool:
        """Unregister this replica; return true if there are no others."""
        try:
            return self._store is None or await self._store.leave()
        except errors.APINotFoundError:
            return True
        except errors.APIError as error:
            logger.warning("This replica could not be unregistered in the secret of the webhook service: %s", error)
            # Why not return true? The webhooks would be removed although other replicas can still serve them, and the
            # API server would admit all requests unchecked. Webhooks without a server can be deleted by hand.
            return False

    async def _follow(self, store: '_Store', namespace: str) -> AsyncIterator[Keyring]:
        """Yield the certificates when they change; renew them when they are due."""
        full = f'{self.name}.{namespace}.svc'
        names = [full, self.name, f'{self.name}.{namespace}', f'{full}.cluster.local', *self.extra_sans]
        schedule = Schedule(datetime.timedelta(seconds=self.lifetime), datetime.timedelta(seconds=self.overlap))
        failures = 0
        ready = False
        while True:
            try:
                keyring = await store.sync(names, schedule)
            except WebhookServiceError as error:
                if not ready:
                    raise
                logger.error("The certificates of the webhook service cannot be renewed: %s", error)
            except errors.APIError as error:
                delay = RETRY_DELAYS[min(failures, len(RETRY_DELAYS) - 1)]
                failures += 1
                logger.warning("The certificates of the webhook service cannot be read; trying again: %s", error)
                if not ready:
                    await asyncio.sleep(delay)
                    continue
            else:
                failures, ready = 0, True
                yield keyring
            await asyncio.sleep(self.check_interval)


class _Store:
    """The Secret with the certificates; its annotations register the running replicas."""

    def __init__(self, client: ApiClient, namespace: str, name: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._path = f'/api/v1/namespaces/{namespace}/secrets'
        self._presence = f'{PRESENCE_PREFIX}{secrets.token_hex(8)}'
        self._leaving = False

    async def sync(self, names: list[str], schedule: Schedule) -> Keyring:
        """Return the certificates of the Secret; renew them if they are due and no other replica is faster."""
        while True:
            try:
                secret = await self._read()
                known = self._decode(secret)
                now = datetime.datetime.now(datetime.UTC)
                fresh = authorities.renew(known, names, schedule, now)
                annotations = self._get_presence(secret, now)
                if fresh is not known:
                    await self._write(secret, fresh, annotations)
                    logger.info(
                        "The certificates of the webhook service are renewed in the secret %s/%s.",
                        self._namespace,
                        self._name,
                    )
                elif annotations:
                    await self._patch({'metadata': {'annotations': annotations}})
                return fresh
            # Another replica has renewed them at the same moment. The next round reads its certificates.
            except errors.APIConflictError as error:
                logger.debug("Another replica has been faster; using its certificates: %s", error)
            except errors.APIForbiddenError as error:
                raise WebhookServiceError(
                    f"The webhook service may not use the secret {self._namespace}/{self._name}. Give the "
                    f"operator's service account a Role in the namespace {self._namespace!r} with the rule {_RULE}. "
                    f"The API says: {error}"
                ) from None

    async def leave(self) -> bool:
        """Unregister this replica; return true if there are no others."""
        # Set this first: a sync in progress must not register this replica again.
        self._leaving = True
        secret = await self._patch({'metadata': {'annotations': {self._presence: None}}})
        now = datetime.datetime.now(datetime.UTC)
        return not any(_is_alive(value, now) for value in _iter_presences(secret).values())

    async def _read(self) -> Mapping[str, Any] | None:
        try:
            return dict(await self._client.get_json(f'{self._path}/{self._name}', logger=logger))
        except errors.APINotFoundError:
            return None

    async def _write(self, secret: Mapping[str, Any] | None, keyring: Keyring, annotations: Mapping[str, Any]) -> None:
        data = {name: base64.b64encode(value).decode() for name, value in keyring.dump().items()}
        metadata = {'name': self._name, 'annotations': annotations}
        if secret is not None:
            # The version works as an election without locks: only one replica can renew the same state.
            version = secret['metadata'].get('resourceVersion')
            await self._patch({'metadata': {'annotations': annotations, 'resourceVersion': version}, 'data': data})
            return
        labels = {'app.kubernetes.io/managed-by': 'kopf'}
        try:
            await self._client.post_json(
                self._path,
                {
                    'apiVersion': 'v1',
                    'kind': 'Secret',
                    'type': 'kubernetes.io/tls',
                    'metadata': {**metadata, 'labels': labels},
                    'data': data,
                },
                logger=logger,
            )
        except errors.APINotFoundError as error:
            raise WebhookServiceError(
                f"The namespace {self._namespace!r} of the webhook service is not there; create it, or set "
                f"namespace= of kopf.WebhookService. The API says: {error}"
            ) from None

    async def _patch(self, patch: Mapping[str, Any]) -> Any:
        return await self._client.patch(f'{self._path}/{self._name}', patch, MERGE_PATCH, logger=logger)

    def _decode(self, secret: Mapping[str, Any] | None) -> Keyring | None:
        data = (secret or {}).get('data') or {}
        if not any(data.values()):
            return None
        if 'ca.key' not in data:
            raise WebhookServiceError(
                f"The secret {self._namespace}/{self._name} contains other data than the certificates of a webhook "
                f"service: {', '.join(sorted(data))}. Set secret= of kopf.WebhookService to another name."
            )
        try:
            return Keyring.load({name: base64.b64decode(value, validate=True) for name, value in data.items()})
        except (KeyError, TypeError, binascii.Error) as error:
            logger.warning(
                "The secret %s/%s of the webhook service is broken, so it is written anew: %r",
                self._namespace,
                self._name,
                error,
            )
            return None

    def _get_presence(self, secret: Mapping[str, Any] | None, now: datetime.datetime) -> dict[str, str | None]:
        """Return the annotations to be changed: of this replica if it needs a renewal, and of dead replicas."""
        known = _iter_presences(secret)
        changes: dict[str, str | None] = {
            key: None for key, value in known.items() if key != self._presence and not _is_alive(value, now)
        }
        own = _parse_time(known.get(self._presence))
        if not self._leaving and (own is None or now - own >= PRESENCE_PERIOD):
            changes[self._presence] = now.isoformat(timespec='seconds')
        return changes


def _iter_presences(secret: Mapping[str, Any] | None) -> dict[str, Any]:
    annotations = (secret or {}).get('metadata', {}).get('annotations') or {}
    return {key: value for key, value in annotations.items() if key.startswith(PRESENCE_PREFIX)}


def _is_alive(value: Any, now: datetime.datetime) -> bool:
    time = _parse_time(value)
    return time is not None and now - time < PRESENCE_LIFETIME


def _parse_time(value: Any) -> datetime.datetime | None:
    try:
        time = datetime.datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=datetime.UTC)


def _get_own_namespace() -> str:
    try:
        return NAMESPACE_FILE.read_text().strip()
    except OSError:
        raise WebhookServiceError(
            "The namespace of the webhook service is unknown, as this is not a pod of a cluster. "
            "Set namespace= of kopf.WebhookService."
        ) from None
