"""
The conversion strategies of CRDs (``spec.conversion``), which make the API server call the operator's webhook server.

When the operator exits, it does not restore a strategy unless the handlers are declared with ``persistent=False``:
without a conversion, the API server would serve and store objects of one version as if they were of another. The
operator never overwrites a strategy that another client has changed meanwhile.

For the same reason, the operator does not handle the objects of a kind until its conversion is in force: the API server
would drop the fields that the versions do not share, and the first patch would store the rest. This also holds if the
conversion is removed later, for example by applying a former CRD again, until it is in force once more.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from kopf._cogs.clients import errors
from kopf._cogs.clients.api import ApiClient
from kopf._cogs.helpers.explanations import ExplainedError
from kopf._cogs.structs.references import Resource
from kopf._cogs.structs.reviews import WebhookClientConfig
from kopf._core.engines.conversion_reviews import ENDPOINT, Convertible, group_by_crd
from kopf._core.engines.webhook_configurations import inject_path
from kopf._core.engines.webhook_registration import WebhookRegistration, attempt_all

logger = logging.getLogger(__name__)

CRDS_PATH = '/apis/apiextensions.k8s.io/v1/customresourcedefinitions'
JSON_PATCH = 'application/json-patch+json'
ATTEMPTS = 5
NONE: Mapping[str, Any] = {'strategy': 'None'}

SETTLING_TIME = 2.0
"""How long the API servers may take to use the first conversion of a CRD after it is stored (in seconds)."""

REVIEW_INTERVAL = 30.0
"""The interval of reads while a strategy is missing that the operator must not write (in seconds)."""

REFUSAL_LIMIT = 120.0
"""
How long objects may wait while the operator is not permitted to write their strategy (in seconds).

Why not end at once? The roles can be applied a moment after the operator, and administrators can correct them.
"""

PLACEHOLDER_HOST = 'operator-not-started.invalid'
"""
The host in generated CRDs of operators whose address is not known yet.

The top-level domain never exists, so the API server refuses conversions, with the name of the host in the message.
"""


class ConversionRefusedError(ExplainedError):
    """Raised when objects wait in vain, because the operator is not permitted to write their conversion strategy."""


class ConversionStrategies(WebhookRegistration):
    """
    Keeps the conversion strategies of CRDs up to date with the handlers and with the address of the server.

    Args:
        client: the client of the API.
        managed: whether the operator writes the strategies; otherwise, it only checks that they exist.
        switched: called when the conversion of a kind comes into force, so that its objects can be handled, and when
            it is lost, so that they must not be handled any more.
    """

    rule = "{apiGroups: [apiextensions.k8s.io], resources: [customresourcedefinitions], verbs: [get, patch]}"
    consequence = "objects cannot be converted until the operator is back"
    title = "conversion strategy of the CRDs"

    def __init__(self, client: ApiClient, *, managed: bool, switched: Callable[[], None]) -> None:
        super().__init__(client)
        self._managed = managed
        self._switched = switched
        # All keys are names of CRDs.
        self._persistent: dict[str, bool] = {}
        self._sent: dict[str, Mapping[str, Any]] = {}
        self._written: dict[str, Mapping[str, Any]] = {}
        self._previous: dict[str, Mapping[str, Any]] = {}
        self._services: dict[str, Mapping[str, Any]] = {}  # those that this operator has replaced
        self._foreign: set[str] = set()
        self._in_force: set[str] = set()
        self._missing: set[str] = set()
        self._placeholders: set[str] = set()  # those that were warned of
        self._refused_since: dict[str, float] = {}  # by the clock of the event loop
        self._timers: dict[str | None, asyncio.TimerHandle] = {}
        self._cluster_generation = client.cluster_generation  # of the cluster that all this is about

    def converts(self, resource: Resource) -> bool:
        """Check whether the operator converts the objects of the resource."""
        return get_crd_name(resource) in self._persistent

    def holds(self, resource: Resource) -> bool:
        """Check whether the objects of the resource must not be handled yet, as their conversion is not in force."""
        name = get_crd_name(resource)
        return name in self._persistent and name not in self._in_force

    def find_held(self) -> Collection[str]:
        """Return the names of the CRDs whose conversions are not in force; callable from any thread."""
        return sorted(set(self._persistent) - self._in_force)

    def serve(self, served: Convertible) -> None:
        """Replace the handlers and the resources, and request that the strategies are written."""
        self._persistent = {
            name: any(handler.persistent for handler in handlers)
            for name, (_, handlers) in group_by_crd(served).items()
        }
        # A CRD that is deleted and created again begins without a conversion.
        self._in_force.intersection_update(self._persistent)
        self._missing.intersection_update(self._persistent)
        self._refused_since = {name: since for name, since in self._refused_since.items() if name in self._persistent}
        for name in [name for name in self._timers if name is not None and name not in self._persistent]:
            self._timers.pop(name).cancel()
        self._changed.set()

    def note_other_cluster(self) -> None:
        self._forget()
        super().note_other_cluster()

    def _forget(self) -> None:
        """Forget all strategies, and let no objects be handled: it is not known whether that cluster converts them."""
        for timer in self._timers.values():
            timer.cancel()
        for known in self._sent, self._written, self._previous, self._services, self._refused_since, self._timers:
            known.clear()
        for names in self._foreign, self._missing, self._placeholders, self._in_force:
            names.clear()
        self._switched()

    async def write(self, client_config: WebhookClientConfig) -> None:
        if self._cluster_generation != self._client.cluster_generation:
            # Again: a write that was in progress has noted what it has written to the former cluster.
            self._cluster_generation = self._client.cluster_generation
            self._forget()
        names = sorted(self._persistent)
        if self._managed:
            await attempt_all(
                functools.partial(self._write_over, name, build_strategy(name, client_config)) for name in names
            )
        else:
            await attempt_all(functools.partial(self._review, name) for name in names)
            if self.find_held():
                # Without the permission to watch CRDs, nothing else notices that the strategy is written.
                self._call_later(None, REVIEW_INTERVAL, self.recheck)

    async def clean_up(self, *, is_last: bool = True) -> None:
        for timer in self._timers.values():
            timer.cancel()
        await super().clean_up(is_last=is_last)

    def explain_failure(self) -> str:
        held = self.find_held()
        return f" The objects of {', '.join(held)} are not handled until then." if held else ''

    def find_end(self) -> ExplainedError | None:
        now = asyncio.get_running_loop().time()
        held = set(self.find_held())
        refused = [name for name, since in self._refused_since.items() if name in held and now - since > REFUSAL_LIMIT]
        if not refused:
            return None
        # Why not handle the objects without a conversion? The API server would drop fields of theirs.
        return ConversionRefusedError(
            f"The objects of {', '.join(sorted(refused))} cannot be handled: their CRDs have no conversion, and for "
            f"{REFUSAL_LIMIT:g} seconds, the operator was not permitted to write it. Add this rule to its ClusterRole: "
            f"{self.rule}"
        )

    def _open(self, name: str, *, delay: float = 0) -> None:
        """Let the objects be handled from now on, or after some seconds."""
        if name in self._in_force or name in self._timers:
            return
        if self._cluster_generation != self._client.cluster_generation:
            return  # found in the former cluster; another write follows
        if delay:
            self._call_later(name, delay, functools.partial(self._open_now, name))
        else:
            self._open_now(name)

    def _open_now(self, name: str) -> None:
        if name in self._missing:
            self._missing.discard(name)
            logger.info("The conversion of %s is in force: its objects are handled from now on.", name)
        self._in_force.add(name)
        self._switched()

    def _hold(self, name: str) -> None:
        """Let the objects not be handled from now on, as the API server does not convert them."""
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()
        if name in self._in_force:
            self._in_force.discard(name)
            self._switched()

    def _call_later(self, key: str | None, delay: float, fn: Callable[[], None]) -> None:
        """Call the function once after the delay, unless such a call is pending already."""

        def call() -> None:
            del self._timers[key]
            fn()

        if key not in self._timers:
            self._timers[key] = asyncio.get_running_loop().call_later(delay, call)

    async def _review(self, name: str) -> None:
        """Let the objects be handled if the CRD, which other clients manage, makes the API server convert them."""
        try:
            crd = await self._find(name)
        except errors.APIForbiddenError as error:
            if name in self._in_force:
                return  # the warning below was logged before, or the conversion was found before
            logger.warning(
                "It is not known whether the API server converts %s. If its CRD has no spec.conversion, fields get "
                "lost. To let the operator check this, grant the verb list for "
                "customresourcedefinitions.apiextensions.k8s.io to its account: %s",
                name,
                error,
            )
            self._missing.discard(name)  # or else, it would be logged as being in force
            self._open(name)
            return
        if crd is None or _is_safe(crd):
            has_placeholder = crd is not None and _has_placeholder_url(_get_strategy(crd))
            if has_placeholder and name not in self._placeholders:
                logger.warning(
                    "The API server cannot convert %s: spec.conversion of the CRD has the address %s, which stands "
                    "for that of the operator. Let the operator write its address: set settings.admission.managed.",
                    name,
                    PLACEHOLDER_HOST,
                )
            (self._placeholders.add if has_placeholder else self._placeholders.discard)(name)
            self._open(name, delay=SETTLING_TIME if name in self._missing else 0)
            return
        # Also while the kind waits to be opened: otherwise, it would be opened without a conversion.
        self._hold(name)
        if name not in self._missing:
            self._missing.add(name)
            logger.warning(
                "The objects of %s are not handled: spec.conversion of the CRD has no webhook, so the API server "
                "would drop the fields that the versions do not share. Write the address of the webhook server there, "
                "or let the operator do that: set settings.admission.managed.",
                name,
            )

    async def remove(self, client_config: WebhookClientConfig) -> None:
        await attempt_all(functools.partial(self._restore, name) for name in list(self._sent))

    async def _restore(self, name: str) -> None:
        crd = await self._read(name)
        if crd is None or not is_same(_get_strategy(crd), self._sent[name]):
            return  # deleted, or changed by another client
        if name in self._services:
            logger.info("The conversion strategy of %s calls the Service of the deployed operator again.", name)
            await self._patch(crd, self._services[name])
        elif self._persistent.get(name, True):
            logger.info(
                "The conversion strategy of %s is left as it is: until the operator is back, "
                "objects can be used only in the versions in which they are stored.",
                name,
            )
        else:
            logger.info("Cleaning up the conversion strategy of %s.", name)
            await self._patch(crd, self._previous.get(name, NONE))

    async def _write_over(self, name: str, strategy: Mapping[str, Any]) -> None:
        try:
            for _ in range(ATTEMPTS - 1):
                # The error is also raised if the resource version has changed.
                with contextlib.suppress(errors.APIUnprocessableError):
                    await self._write(name, strategy)
                    break
            else:
                await self._write(name, strategy)
        except errors.APIForbiddenError:
            self._refused_since.setdefault(name, asyncio.get_running_loop().time())
            raise
        except Exception:
            # It is unknown whether the operator is permitted to write it by now.
            self._refused_since.pop(name, None)
            raise
        self._refused_since.pop(name, None)

    async def _write(self, name: str, strategy: Mapping[str, Any]) -> None:
        """Write the strategy of one CRD, unless it is up to date, or another client has changed it."""
        crd = await self._read(name)
        if crd is None:
            logger.error("Objects of %s cannot be converted: it is no custom resource, as it has no CRD.", name)
            self._open(name)
            return
        current, written = _get_strategy(crd), self._written.get(name)
        if is_same(current, strategy):
            self._foreign.discard(name)
            self._sent[name] = strategy
            # It can have been written a moment ago, and the response was lost.
            self._open(name, delay=SETTLING_TIME if name in self._missing else 0)
        elif written is not None and is_same(written, strategy) and _is_foreign(current):
            if name not in self._foreign:
                logger.warning(
                    "The conversion strategy of %s has been changed by another client. The API server does not call "
                    "this operator for conversions any more, but: %s",
                    name,
                    current.get('webhook'),
                )
            self._foreign.add(name)
            self._open(name)
            return
        else:
            await self._replace(crd, current, strategy)
        self._written[name] = strategy

    async def _replace(self, crd: Mapping[str, Any], current: Mapping[str, Any], strategy: Mapping[str, Any]) -> None:
        name, is_safe = crd['metadata']['name'], _is_safe(crd)
        if not is_safe:
            self._missing.add(name)
            self._hold(name)
        logger.info(
            "Reconfiguring the conversion strategy of %s.%s",
            name,
            "" if is_safe else " Its objects are handled when the conversion is in force.",
        )
        if _calls_service(current) and not _calls_service(strategy):
            # This operator runs outside of the cluster for a while, in place of the deployed one, or before it. Without
            # the Service, the manifest with it could not be applied again: it would be added to the URL.
            self._services[name] = current
        # Do not restore the strategy of a killed operator at exit: there is no server at its address any more.
        if not _is_own(current, name) or is_placeholder(current):
            self._previous[name] = current
        # This is set before the request: if the response is lost, the strategy can be stored and needs a clean-up.
        self._sent[name] = strategy
        try:
            await self._patch(crd, strategy)
        except errors.APIError:
            # The API server calls another address, or fails to call it: in both cases, it does not drop fields
            # silently. Why not wait until the patch succeeds? Policies of the cluster can refuse it for ever.
            if is_safe:
                self._open(name)
            raise
        self._open(name, delay=0 if is_safe else SETTLING_TIME)

    async def _read(self, name: str) -> Mapping[str, Any] | None:
        try:
            return dict(await self._client.get_json(f'{CRDS_PATH}/{name}', logger=logger))
        except errors.APINotFoundError:
            return None
        except errors.APIForbiddenError as error:
            refusal = error
        try:
            return await self._find(name)
        except errors.APIForbiddenError:
            raise refusal from None

    async def _find(self, name: str) -> Mapping[str, Any] | None:
        """Return the CRD from a list. Operators can usually list CRDs, while few of them can get one by its name."""
        found = await self._client.get_json(f'{CRDS_PATH}?fieldSelector=metadata.name%3D{name}', logger=logger)
        return next(iter(found.get('items') or ()), None)

    async def _patch(self, crd: Mapping[str, Any], strategy: Mapping[str, Any]) -> None:
        metadata = crd['metadata']
        await self._client.patch(
            f"{CRDS_PATH}/{metadata['name']}",
            [
                {'op': 'test', 'path': '/metadata/resourceVersion', 'value': metadata['resourceVersion']},
                {'op': 'add', 'path': '/spec/conversion', 'value': strategy},
            ],
            JSON_PATCH,
            logger=logger,
        )


def get_crd_name(resource: Resource) -> str:
    """Return the name of the CRD of a custom resource."""
    return f'{resource.plural}.{resource.group}'


def make_placeholder(name: str) -> dict[str, Any]:
    """
    Return a conversion strategy for a CRD before the address of the operator is known.

    With it, the API server refuses requests that need a conversion. Without any strategy, it would drop the fields that
    the versions do not share, until the operator has written its address.
    """
    return build_strategy(name, {'url': f'https://{PLACEHOLDER_HOST}'})


def make_service_strategy(name: str, *, service: str, namespace: str) -> dict[str, Any]:
    """Return a conversion strategy for a CRD that calls the operator by a Service; the operator adds the CA."""
    return build_strategy(name, {'service': {'namespace': namespace, 'name': service, 'port': 443}})


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


def _is_safe(crd: Mapping[str, Any]) -> bool:
    """Check whether the API server drops no fields: it calls a webhook, or there is nothing to convert."""
    return len(crd['spec'].get('versions') or ()) < 2 or _get_strategy(crd)['strategy'] == 'Webhook'


def is_placeholder(strategy: Mapping[str, Any]) -> bool:
    """Check whether the strategy comes from a generated CRD, and no operator has written its address there yet."""
    config = _get_client_config(strategy)
    is_unsigned = f"/{ENDPOINT}" in ((config.get('service') or {}).get('path') or '') and not config.get('caBundle')
    return is_unsigned or _has_placeholder_url(strategy)


def _has_placeholder_url(strategy: Mapping[str, Any]) -> bool:
    url = _get_client_config(strategy).get('url') or ''
    return url.startswith(f'https://{PLACEHOLDER_HOST}/')


def _calls_service(strategy: Mapping[str, Any]) -> bool:
    return bool(_get_client_config(strategy).get('service'))


def _get_client_config(strategy: Mapping[str, Any]) -> Mapping[str, Any]:
    return (strategy.get('webhook') or {}).get('clientConfig') or {}


def _is_foreign(strategy: Mapping[str, Any]) -> bool:
    """Check whether another client has written the address of its own server."""
    return strategy['strategy'] == 'Webhook' and not is_placeholder(strategy)


def _is_own(strategy: Mapping[str, Any], name: str) -> bool:
    """Check whether an operator of this framework has written the strategy, e.g. this one in a previous run."""
    config = _get_client_config(strategy)
    path = config.get('url') or (config.get('service') or {}).get('path') or ''
    return bool(path.endswith(f'/{ENDPOINT}{name}'))
