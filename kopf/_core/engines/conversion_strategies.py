"""
The conversion strategies of CRDs (``spec.conversion``), which make the API server call the operator's webhook server.

When the operator exits, it does not restore a strategy unless the handlers are declared with ``persistent=False``:
without a conversion, the API server would serve and store objects of one version as if they were of another. The
operator never overwrites a strategy that another client has changed meanwhile.
"""

import contextlib
import functools
import logging
from collections.abc import Mapping
from typing import Any

from kopf._cogs.clients import errors
from kopf._cogs.clients.api import ApiClient
from kopf._cogs.structs.reviews import WebhookClientConfig
from kopf._core.engines.conversion_reviews import ENDPOINT, Convertible, group_by_crd
from kopf._core.engines.webhook_configurations import inject_path
from kopf._core.engines.webhook_registration import WebhookRegistration, attempt_all

logger = logging.getLogger(__name__)

PATH = '/apis/apiextensions.k8s.io/v1/customresourcedefinitions'
JSON_PATCH = 'application/json-patch+json'
ATTEMPTS = 5
NONE: Mapping[str, Any] = {'strategy': 'None'}


class ConversionStrategies(WebhookRegistration):
    """Keeps the conversion strategies of CRDs up to date with the handlers and with the address of the server."""

    rule = "{apiGroups: [apiextensions.k8s.io], resources: [customresourcedefinitions], verbs: [get, patch]}"
    consequence = "objects cannot be converted until the operator is back"
    title = "conversion strategy of the CRDs"

    def __init__(self, client: ApiClient) -> None:
        super().__init__(client)
        # All keys are names of CRDs.
        self._persistent: dict[str, bool] = {}
        self._sent: dict[str, Mapping[str, Any]] = {}
        self._written: dict[str, Mapping[str, Any]] = {}
        self._previous: dict[str, Mapping[str, Any]] = {}
        self._foreign: set[str] = set()

    def serve(self, served: Convertible) -> None:
        """Replace the handlers and the resources, and request that the strategies are written."""
        self._persistent = {
            name: any(handler.persistent for handler in handlers)
            for name, (_, handlers) in group_by_crd(served).items()
        }
        self._changed.set()

    async def write(self, client_config: WebhookClientConfig) -> None:
        await attempt_all(
            functools.partial(self._write_over, name, build_strategy(name, client_config))
            for name in sorted(self._persistent)
        )

    async def remove(self, client_config: WebhookClientConfig) -> None:
        await attempt_all(functools.partial(self._restore, name) for name in list(self._sent))

    async def _restore(self, name: str) -> None:
        crd = await self._read(name)
        if crd is None or not is_same(_get_strategy(crd), self._sent[name]):
            return  # deleted, or changed by another client
        if self._persistent.get(name, True):
            logger.info(
                "The conversion strategy of %s is left as it is: until the operator is back, "
                "objects can be used only in the versions in which they are stored.",
                name,
            )
        else:
            logger.info("Cleaning up the conversion strategy of %s.", name)
            await self._patch(crd, self._previous.get(name, NONE))

    async def _write_over(self, name: str, strategy: Mapping[str, Any]) -> None:
        for _ in range(ATTEMPTS - 1):
            with contextlib.suppress(errors.APIUnprocessableError):  # also raised if the resource version has changed
                await self._write(name, strategy)
                return
        await self._write(name, strategy)

    async def _write(self, name: str, strategy: Mapping[str, Any]) -> None:
        """Write the strategy of one CRD, unless it is up to date, or another client has changed it."""
        crd = await self._read(name)
        if crd is None:
            logger.error("Objects of %s cannot be converted: it is no custom resource, as it has no CRD.", name)
            return
        current, written = _get_strategy(crd), self._written.get(name)
        if is_same(current, strategy):
            self._foreign.discard(name)
            self._sent[name] = strategy
        elif written is not None and is_same(written, strategy) and current['strategy'] == 'Webhook':
            if name not in self._foreign:
                logger.warning(
                    "The conversion strategy of %s has been changed by another client. The API server does not call "
                    "this operator for conversions any more, but: %s",
                    name,
                    current.get('webhook'),
                )
            self._foreign.add(name)
            return
        else:
            logger.info("Reconfiguring the conversion strategy of %s.", name)
            # Do not restore the strategy of a killed operator at exit: there is no server at its address any more.
            if not _is_own(current, name):
                self._previous[name] = current
            # This is set before the request: if the response is lost, the strategy can be stored and needs a clean-up.
            self._sent[name] = strategy
            await self._patch(crd, strategy)
        self._written[name] = strategy

    async def _read(self, name: str) -> Mapping[str, Any] | None:
        try:
            return dict(await self._client.get_json(f'{PATH}/{name}', logger=logger))
        except errors.APINotFoundError:
            return None

    async def _patch(self, crd: Mapping[str, Any], strategy: Mapping[str, Any]) -> None:
        metadata = crd['metadata']
        await self._client.patch(
            f"{PATH}/{metadata['name']}",
            [
                {'op': 'test', 'path': '/metadata/resourceVersion', 'value': metadata['resourceVersion']},
                {'op': 'add', 'path': '/spec/conversion', 'value': strategy},
            ],
            JSON_PATCH,
            logger=logger,
        )


def build_strategy(name: str, client_config: WebhookClientConfig) -> dict[str, Any]:
    """Return the conversion strategy of a CRD with the address of the webhook server."""
    return {
        'strategy': 'Webhook',
        'webhook': {
            'clientConfig': inject_path(client_config, f'{ENDPOINT}{name}'),
            'conversionReviewVersions': ['v1'],
        },
    }


def is_same(strategy: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Check whether two strategies are equal, not counting the defaults that the API server adds."""
    return _simplify(strategy) == _simplify(other)


def _simplify(strategy: Mapping[str, Any]) -> tuple[object, ...]:
    webhook = strategy.get('webhook') or {}
    config = webhook.get('clientConfig') or {}
    service = config.get('service') or {}
    address = tuple(service.get(key) for key in ('namespace', 'name', 'path')) + (service.get('port') or 443,)
    return (
        strategy.get('strategy'),
        config.get('url'),
        address if service else None,
        config.get('caBundle'),
        webhook.get('conversionReviewVersions'),
    )


def _get_strategy(crd: Mapping[str, Any]) -> Mapping[str, Any]:
    return crd['spec'].get('conversion') or NONE


def _is_own(strategy: Mapping[str, Any], name: str) -> bool:
    """Check whether an operator of this framework has written the strategy, e.g. this one in a previous run."""
    config = (strategy.get('webhook') or {}).get('clientConfig') or {}
    path = config.get('url') or (config.get('service') or {}).get('path') or ''
    return bool(path.endswith(f'/{ENDPOINT}{name}'))
