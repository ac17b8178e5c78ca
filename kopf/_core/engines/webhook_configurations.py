"""
The webhook configurations in the cluster, which make the API server call the operator's webhook server.

There is one object for validating and one for mutating webhooks, both with the name of ``settings.admission.managed``.
They are written as a whole, and only when something has changed. If a webhook stayed in the cluster without a server,
the API server would deny all changes of its resource; so the objects are cleaned up before the webhook server stops.

Another process of the operator can write them, too, e.g. in a rolling update: the last one to start gets the requests.
When it ends, it empties them, or at least removes its name from them; so the others read them at intervals, and write
their own webhooks again.
"""

import asyncio
import contextlib
import functools
import logging
import secrets
import urllib.parse
from collections.abc import Collection, Mapping
from typing import Any, cast

from kopf._cogs.clients import errors
from kopf._cogs.clients.api import ApiClient
from kopf._cogs.structs.references import Resource
from kopf._cogs.structs.reviews import WebhookClientConfig
from kopf._core.engines.webhook_registration import WebhookRegistration, attempt_all
from kopf._core.intents.callbacks import MetaFilterToken
from kopf._core.intents.handlers import WebhookHandler, WebhookType

logger = logging.getLogger(__name__)

GROUP_VERSION = 'admissionregistration.k8s.io/v1'
MERGE_PATCH = 'application/merge-patch+json'
TIMEOUT = 30
"""The time limit for the API server's requests: the longest one that it permits (in seconds)."""

REVIEW_INTERVAL = 30.0
"""The interval at which the stored configurations are read (in seconds)."""

WRITER = 'kopf.dev/webhooks-of'
"""
The annotation with the name of the process that has written the webhooks last; absent if that process has ended.

Only those of a Service have it, as all replicas have its address. Others are recognized by what remains of them.
"""

_KINDS = {
    WebhookType.VALIDATING: ('ValidatingWebhookConfiguration', 'validatingwebhookconfigurations'),
    WebhookType.MUTATING: ('MutatingWebhookConfiguration', 'mutatingwebhookconfigurations'),
}

Served = Mapping[WebhookHandler, Collection[Resource]]
"""The handlers with the resources that they are for."""


class WebhookConfigurations(WebhookRegistration):
    """Keeps the webhook configurations up to date with the handlers, their resources, and the address of the server."""

    rule = (
        "{apiGroups: [admissionregistration.k8s.io], verbs: [create, get, patch], "
        "resources: [validatingwebhookconfigurations, mutatingwebhookconfigurations]}"
    )
    consequence = "it can block changes of the resources"

    def __init__(self, client: ApiClient, name: str) -> None:
        super().__init__(client)
        self._name = name
        self._identity = secrets.token_hex(8)
        self._served: Served = {}
        self._written: dict[WebhookType, list[dict[str, Any]]] = {}
        self._unsure: set[WebhookType] = set()  # requested, and it is unknown whether the API server has stored it
        self._replaced: set[WebhookType] = set()  # those whose address is known to be that of another process
        self._review_timer: asyncio.TimerHandle | None = None
        self._is_review_due = False
        self._is_cluster_new = False

    @property
    def title(self) -> str:
        return f"webhook configuration {self._name}"

    def serve(self, served: Served) -> None:
        """Replace the handlers and the resources, and request that the configurations are written."""
        self._served = served
        self._changed.set()

    def note_other_cluster(self) -> None:
        # Why not forget them here? A write in progress would note what it has written to the former cluster.
        self._is_cluster_new = True
        super().note_other_cluster()

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            if self._review_timer is not None:
                self._review_timer.cancel()

    async def write(self, client_config: WebhookClientConfig) -> None:
        built = {type: self._build(type, client_config) for type in WebhookType}
        if self._is_cluster_new:
            self._is_cluster_new = False
            self._written.clear()
            self._unsure.clear()
        if self._is_review_due:
            self._is_review_due = False
            for type, webhooks in built.items():
                is_of_interest = webhooks or _is_of_service(client_config)
                if is_of_interest and self._written.get(type) == webhooks and type not in self._unsure:
                    await self._review(type, webhooks, client_config)
        changed = {
            type: webhooks
            for type, webhooks in built.items()
            if self._written.get(type) != webhooks or type in self._unsure
        }
        for type in changed:
            logger.info("Reconfiguring the %s webhook %s.", type.value, self._name)
        await attempt_all(
            [
                *(functools.partial(self._create, type) for type in changed if type not in self._written),
                *(functools.partial(self._write, type, webhooks, client_config) for type, webhooks in changed.items()),
            ]
        )
        if any(built.values()):
            self._review_later()

    # The review of what other processes have written.

    def _review_later(self) -> None:
        if self._review_timer is not None:
            self._review_timer.cancel()
        self._review_timer = asyncio.get_running_loop().call_later(REVIEW_INTERVAL, self._request_review)

    def _request_review(self) -> None:
        self._is_review_due = True
        self.recheck()

    async def _review(
        self, type: WebhookType, webhooks: list[dict[str, Any]], client_config: WebhookClientConfig
    ) -> None:
        """
        Forget the written webhooks if another process has removed them, or has replaced them and has ended.

        If it has replaced the address and still runs, only warn.
        """
        obj = await self._read(type)
        stored = [] if obj is None else _get_webhooks(obj)
        if obj is None or (not stored and not webhooks):
            return
        if not stored:
            logger.info("The %s webhook %s was emptied by another process.", type.value, self._name)
            del self._written[type]
        elif self._is_left(type, obj, webhooks, client_config):
            logger.info("The %s webhook %s was left by a process that has ended.", type.value, self._name)
            del self._written[type]
        elif not webhooks:
            return
        if not _is_foreign(stored, webhooks):
            self._replaced.discard(type)
        elif type not in self._replaced:
            self._replaced.add(type)
            logger.warning(
                "Another process has replaced the address in the %s webhook %s, and gets its requests now.",
                type.value,
                self._name,
            )

    def _is_left(
        self,
        type: WebhookType,
        obj: Mapping[str, Any],
        webhooks: list[dict[str, Any]],
        client_config: WebhookClientConfig,
    ) -> bool:
        """Check whether the stored webhooks are what a process has left at its end, but not all of the own ones."""
        if _is_of_service(client_config):
            return _get_writer(obj) is None
        persistent = self._build(type, client_config, persistent_only=True)
        left = {webhook.get('name') for webhook in _get_webhooks(obj)}
        return left == {webhook['name'] for webhook in persistent} != {webhook['name'] for webhook in webhooks}

    async def _read(self, type: WebhookType) -> dict[str, Any] | None:
        """Return the stored object; ``None`` if it is unknown, or if an administrator has deleted it."""
        try:
            return dict(await self._client.get_json(self._get_path(type), logger=logger))
        except errors.APIError as error:
            # Without the permission to read them, they are only written: earlier roles of operators have no such rule.
            logger.debug("The webhook configuration %s cannot be read: %s", self._name, error)
            return None

    def _get_path(self, type: WebhookType) -> str:
        return f'/apis/{GROUP_VERSION}/{_KINDS[type][1]}/{self._name}'

    async def remove(self, client_config: WebhookClientConfig) -> None:
        await attempt_all(
            functools.partial(self._clear, type, client_config)
            for type in WebhookType
            if type in self._written or type in self._unsure
        )

    async def _clear(self, type: WebhookType, client_config: WebhookClientConfig) -> None:
        written = self._written.get(type)
        if written and type not in self._unsure and _is_foreign(_get_webhooks(await self._read(type) or {}), written):
            logger.info("Leaving the admission webhook %s to the process that has replaced its address.", self._name)
            return
        logger.info("Cleaning up the admission webhook %s.", self._name)
        remaining, metadata = (
            self._build(type, client_config, persistent_only=True),
            _make_metadata(client_config, None),
        )
        if remaining != written or type in self._unsure or (written and metadata):
            with contextlib.suppress(errors.APINotFoundError):
                await self._send(type, remaining, metadata)

    async def resign(self) -> None:
        """
        Remove the own name from the objects, so that the other replicas write their webhooks.

        The stored ones can lack handlers that a newer version of the operator has.
        """
        await attempt_all(functools.partial(self._resign, type) for type in self._written.keys() | self._unsure)

    async def _resign(self, type: WebhookType) -> None:
        obj = await self._read(type)
        if obj is not None and _get_writer(obj) == self._identity:
            patch = {'metadata': {'annotations': {WRITER: None}}}
            await self._client.patch(self._get_path(type), patch, MERGE_PATCH, logger=logger)

    async def _create(self, type: WebhookType) -> None:
        kind, plural = _KINDS[type]
        obj = {'apiVersion': GROUP_VERSION, 'kind': kind, 'metadata': {'name': self._name}}
        try:
            await self._client.post_json(f'/apis/{GROUP_VERSION}/{plural}', obj, logger=logger)
        except (errors.APIConflictError, errors.APIForbiddenError) as error:
            # This is no error yet: the object can exist, and the operator can have only the permission to patch it.
            logger.debug("The webhook configuration %s is not created: %s", self._name, error)

    async def _write(
        self, type: WebhookType, webhooks: list[dict[str, Any]], client_config: WebhookClientConfig
    ) -> None:
        if self._written.get(type) == webhooks and type not in self._unsure:
            return
        await self._send(type, webhooks, _make_metadata(client_config, self._identity))

    async def _send(self, type: WebhookType, webhooks: list[dict[str, Any]], metadata: Mapping[str, Any]) -> None:
        # Marked before the request: if the response is lost, the API server can have stored the webhooks. So they are
        # written again, and are cleaned up at the exit.
        self._unsure.add(type)
        try:
            # A merge patch replaces the whole list. This is intended: webhooks of former handlers must not stay.
            await self._client.patch(
                self._get_path(type), {**metadata, 'webhooks': webhooks}, MERGE_PATCH, logger=logger
            )
        except errors.APIClientError as error:
            self._unsure.discard(type)
            if isinstance(error, errors.APINotFoundError):
                self._written.pop(type, None)  # deleted by another client; it is created again with the next attempt
            raise
        self._unsure.discard(type)
        self._written[type] = webhooks

    def _build(
        self,
        type: WebhookType,
        client_config: WebhookClientConfig,
        *,
        persistent_only: bool = False,
    ) -> list[dict[str, Any]]:
        served = {
            handler: resources
            for handler, resources in self._served.items()
            if handler.type is type and (handler.persistent or not persistent_only)
        }
        return build_webhooks(
            served, client_config=client_config, suffix=self._name, endpoints=name_endpoints(self._served)
        )


def _get_webhooks(obj: Mapping[str, Any]) -> list[dict[str, Any]]:
    webhooks = obj.get('webhooks')
    return webhooks if isinstance(webhooks, list) else []


def _is_of_service(client_config: WebhookClientConfig) -> bool:
    return 'service' in client_config


def _make_metadata(client_config: WebhookClientConfig, writer: str | None) -> Mapping[str, Any]:
    return {'metadata': {'annotations': {WRITER: writer}}} if _is_of_service(client_config) else {}


def _get_writer(obj: Mapping[str, Any]) -> str | None:
    return ((obj.get('metadata') or {}).get('annotations') or {}).get(WRITER)


def _is_foreign(stored: Collection[Mapping[str, Any]], own: Collection[Mapping[str, Any]]) -> bool:
    """Check whether there are stored webhooks, but none with an address of our own ones."""
    addresses = {_get_address(webhook) for webhook in own}
    return bool(stored) and addresses.isdisjoint(map(_get_address, stored))


def _get_address(webhook: Mapping[str, Any]) -> str:
    # Not the certificate: other controllers, such as cert-manager, can add theirs.
    config = webhook.get('clientConfig') or {}
    service = config.get('service') or {}
    place = '/'.join(str(service.get(key, '')) for key in ('namespace', 'name'))
    return str(config.get('url') or f"{place}:{service.get('port') or 443}{service.get('path') or ''}")


def name_endpoints(handlers: Collection[WebhookHandler]) -> dict[WebhookHandler, str]:
    """
    Return the last part of the URL for each of the handlers: normally, it is the id.

    A validating and a mutating handler with the same id get different parts: the API server calls them separately, and
    a validating webhook must not respond with a patch.
    """
    types: dict[str, set[WebhookType]] = {}
    for handler in handlers:
        types.setdefault(handler.id, set()).add(handler.type)
    return {
        handler: handler.id if len(types[handler.id]) == 1 else f'{handler.id}/{handler.type.value}'
        for handler in handlers
    }


def get_aliases(endpoint: str) -> Collection[str]:
    """Return all the paths of an endpoint: in URLs, and in references to services of the cluster."""
    return {endpoint, _make_service_path(endpoint)}


def build_webhooks(
    served: Served,
    *,
    client_config: WebhookClientConfig,
    suffix: str,
    endpoints: Mapping[WebhookHandler, str],
) -> list[dict[str, Any]]:
    """
    Return the ``webhooks`` of one configuration object.

    A handler can be declared for several resources: webhooks that differ only in their rules become one webhook. Names
    are made unique by numbers, as the API server requires.
    """
    webhooks: dict[str, dict[str, Any]] = {}
    for handler, resources in served.items():
        if not resources:
            continue  # the API server would accept a webhook without rules, but never call it
        base = normalize_name(handler.id, suffix)
        webhook = _build_webhook(handler, resources, inject_path(client_config, endpoints[handler]))
        for number in range(1, len(webhooks) + 2):
            webhook['name'] = base if number == 1 else normalize_name(f'{handler.id}-{number}', suffix)
            known = webhooks.setdefault(webhook['name'], webhook)
            if known is webhook:
                break
            if {**known, 'rules': None} == {**webhook, 'rules': None}:
                known['rules'] += [rule for rule in webhook['rules'] if rule not in known['rules']]
                break
    return list(webhooks.values())


def _build_webhook(
    handler: WebhookHandler,
    resources: Collection[Resource],
    client_config: WebhookClientConfig,
) -> dict[str, Any]:
    return {
        'name': handler.id,
        'sideEffects': 'NoneOnDryRun' if handler.side_effects else 'None',
        'failurePolicy': 'Ignore' if handler.ignore_failures else 'Fail',
        'matchPolicy': 'Equivalent',
        'timeoutSeconds': TIMEOUT,
        'admissionReviewVersions': ['v1', 'v1beta1'],
        'objectSelector': _build_selector(handler.labels),
        'rules': [_build_rule(handler, resource) for resource in sorted(resources, key=_get_order)],
        'clientConfig': client_config,
    }


def _build_rule(handler: WebhookHandler, resource: Resource) -> dict[str, Any]:
    name = resource.plural if handler.subresource is None else f'{resource.plural}/{handler.subresource}'
    return {
        'apiGroups': [resource.group],
        'apiVersions': [resource.version],
        'resources': [name],
        'operations': ['*'] if handler.operations is None else list(handler.operations),
        'scope': '*',
    }


def _build_selector(labels: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the selector by which the API server filters objects; callbacks are evaluated by the operator instead."""
    expressions = [_build_expression(key, value) for key, value in (labels or {}).items() if not callable(value)]
    return {'matchExpressions': expressions} if expressions else None


def _build_expression(key: str, value: Any) -> dict[str, Any]:
    if value is MetaFilterToken.PRESENT:
        return {'key': key, 'operator': 'Exists'}
    if value is MetaFilterToken.ABSENT:
        return {'key': key, 'operator': 'DoesNotExist'}
    return {'key': key, 'operator': 'In', 'values': [value]}


def _get_order(resource: Resource) -> tuple[str, str, str]:
    return resource.group, resource.version, resource.plural


def normalize_name(id: str, suffix: str = '') -> str:
    """Return the id as a DNS name, which the API server demands: other characters become dots, dashes, or hex codes."""
    text = ''.join(_NAME_CHARS.get(char) or char.encode().hex() for char in id)
    parts = [part.strip('-') for part in text.split('.')]
    return '.'.join([part for part in parts if part] + ([suffix] if suffix else []))


_NAME_CHARS = {**{char: char for char in 'abcdefghijklmnopqrstuvwxyz0123456789-.'}, '/': '.', '_': '-'}


def inject_path(client_config: WebhookClientConfig, endpoint: str) -> WebhookClientConfig:
    """Return the configuration with the endpoint of a handler added to the URL or to the path of the service."""
    config = dict(client_config)
    if url := client_config.get('url'):
        config['url'] = f"{url.rstrip('/')}/{urllib.parse.quote(endpoint)}"
    if service := client_config.get('service'):
        path = f"{(service.get('path') or '').rstrip('/')}/{_make_service_path(endpoint)}"
        config['service'] = {**service, 'path': path}
    return cast(WebhookClientConfig, config)


def _make_service_path(endpoint: str) -> str:
    # The API server is stricter with services than with URLs: each part of the path must be a DNS name.
    return '/'.join(filter(None, (normalize_name(part) for part in endpoint.split('/'))))
