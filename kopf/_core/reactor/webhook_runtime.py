"""
Running the webhook server of an operator, and registering its webhooks in the cluster.

The user chooses the server (or tunnel): any callable of the documented protocol. It is started after the first
discovery, and runs until the operator exits. Then, the webhooks are removed from the cluster before the server stops.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from kopf._cogs.aiokits.loops import end
from kopf._cogs.clients.api import ApiClient, unfenced_var
from kopf._cogs.helpers.explanations import ExplainedError
from kopf._cogs.structs.credentials import Vault
from kopf._cogs.structs.references import Resource, Selector
from kopf._cogs.structs.reviews import Headers, SSLPeer
from kopf._core.engines.admission import AdmissionReviewer, vault_var
from kopf._core.engines.conversion_reviews import KIND, Converter
from kopf._core.engines.conversion_strategies import ConversionStrategies
from kopf._core.engines.indexing import IndexBarrier
from kopf._core.engines.responders import Memos
from kopf._core.engines.webhook_configurations import WebhookConfigurations
from kopf._core.engines.webhook_registration import CLEANUP_TIMEOUT, WebhookRegistration
from kopf._core.intents.contexts import OperatorContext
from kopf._core.reactor.resource_selection import ResourceProblems, resolve_webhooks

logger = logging.getLogger(__name__)

EXIT_TIMEOUT = 10.0
"""How long a cancelled webhook server may take to end (in seconds)."""


class ServerMissingError(ExplainedError):
    """Raised when there are admission or conversion handlers, but no webhook server is configured."""

    def __init__(self, found: object = None) -> None:
        super().__init__(
            f"settings.admission.server must be a server, such as kopf.WebhookServer(), not {found!r}."
            if found
            else "There are admission handlers (@kopf.on.validate, @kopf.on.mutate) or conversion handlers "
            "(@kopf.on.convert), but no server for them. "
            "Set settings.admission.server in a startup handler: for example, to kopf.WebhookServer() or to "
            "kopf.WebhookAutoServer(); see \"Servers\" in the documentation."
        )


class ServerEndedError(Exception):
    """Raised when the webhook server has ended, so that the API server cannot call the webhooks any more."""


class WebhookRuntime:
    """
    Serves the admission and conversion handlers of an operator, if there are any.

    Args:
        context: what the operator shares.
        client: the client of the API.
        vault: the credentials.
        memos: finds the memos of objects.
        barrier: tells whether the indices are complete that the handlers can use; ``None`` not to wait for them.

    Raises:
        ServerMissingError: if no webhook server is configured.
    """

    def __init__(
        self,
        context: OperatorContext,
        *,
        client: ApiClient,
        vault: Vault,
        memos: Memos,
        barrier: IndexBarrier | None = None,
    ) -> None:
        self._client = client
        registry = context.registry
        self._registry = registry
        self._settings = context.settings.admission
        if self._settings.server is None:
            raise ServerMissingError()
        self._vault = vault
        self._reviewer = AdmissionReviewer(context, memos=memos, barrier=barrier)
        self._converter = Converter(context, memos=memos)
        managed = self._settings.managed
        self._configurations = WebhookConfigurations(client, managed) if managed and len(registry.webhooks) else None
        self.switched = asyncio.Event()
        """Set when the conversion of a kind comes into force or is lost: the orchestrator adjusts its watches."""
        self._strategies = (
            ConversionStrategies(client, managed=managed is not None, switched=self.switched.set)
            if len(registry.conversions)
            else None
        )
        kept = (self._configurations, self._strategies)
        self._kept: tuple[WebhookRegistration, ...] = tuple(upkeep for upkeep in kept if upkeep is not None)
        self._problems = ResourceProblems()
        self._discovered = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._listening = asyncio.Event()

    @property
    def listening(self) -> bool:
        """True since the server has yielded its client configuration."""
        return self._listening.is_set()

    def rediscover(self, resources: Collection[Resource]) -> frozenset[Selector]:
        """Select the resources of the handlers; return the selectors that match none."""
        served, converted, problems = resolve_webhooks(self._registry, resources)
        problems.log(self._problems)
        self._problems = problems
        self._reviewer.serve(served)
        self._converter.serve(converted)
        if self._configurations is not None:
            self._configurations.serve(served)
        if self._strategies is not None:
            self._strategies.serve(converted)
        self._discovered.set()
        return problems.unresolved

    def recheck(self) -> None:
        """Called when CRDs can have changed since the discovery, with their conversion strategies."""
        if self._strategies is not None:
            self._strategies.recheck()

    def note_other_cluster(self) -> None:
        """Called when a login has led to another cluster, in which nothing is registered yet."""
        for upkeep in self._kept:
            upkeep.note_other_cluster()

    def holds(self, resource: Resource) -> bool:
        """Check whether the objects of the resource must not be handled yet, as their conversion is not in force."""
        return self._strategies is not None and self._strategies.holds(resource)

    def converts(self, resource: Resource) -> bool:
        """Check whether the API server needs this operator to list the objects of the resource."""
        return self._strategies is not None and self._strategies.converts(resource)

    def find_warnings(self) -> Collection[str]:
        """Return messages about the kinds that are not handled, for the probes."""
        held = () if self._strategies is None else self._strategies.find_held()
        return [f"The objects of {name} are not handled: their conversion is not in force." for name in held]

    async def serve(self) -> None:
        """Serve until `close`, even if this is cancelled; raise the error of the server if it ends before."""
        self._serving = asyncio.create_task(self._run(), name='webhooks')
        await asyncio.wait({self._serving})
        self._serving.result()

    async def settle(self) -> None:
        """Wait until the webhooks and the conversions are registered, or the API server has refused that."""
        await self._listening.wait()
        for upkeep in self._kept:
            await upkeep.settled.wait()

    async def close(self) -> None:
        """Remove the webhooks that must not stay, and stop the server."""
        if self._serving is not None:
            self._serving.cancel()
            # Not awaited directly: its errors end the operator only while it serves.
            await asyncio.gather(self._serving, return_exceptions=True)

    async def _run(self) -> None:
        # All replicas of the operator serve webhooks, so each of them maintains the configurations.
        unfenced_var.set(True)
        await self._discovered.wait()
        # The server must outlive its webhooks in the API, so it is in a task that is not cancelled with this one.
        tasks = {asyncio.create_task(self._run_server(), name='webhook server')}
        tasks |= {asyncio.create_task(upkeep.run(), name=upkeep.title) for upkeep in self._kept}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            # Only the last replica cleans up: otherwise, the API server would not call the other replicas any more.
            is_last = await self._is_last()
            for upkeep in self._kept:
                await upkeep.clean_up(is_last=is_last)
            await end(tasks, timeout=EXIT_TIMEOUT, what="The webhook server and its configurations")

    async def _answer(
        self,
        request: Any,
        *,
        webhook: str | None = None,
        headers: Headers | None = None,
        sslpeer: SSLPeer | None = None,
    ) -> Any:
        """Respond to a review of admission or conversion; see `kopf.WebhookFn`."""
        conversion = isinstance(request, Mapping) and request.get('kind') == KIND
        answer: Any = self._converter if conversion else self._reviewer
        return await answer(request, webhook=webhook, headers=headers, sslpeer=sslpeer)

    async def _is_last(self) -> bool:
        """Check whether no other replica of the operator serves webhooks at the same address."""
        leave: Callable[[], Awaitable[bool]] | None = getattr(self._settings.server, 'leave', None)
        if leave is None:
            return True
        try:
            async with asyncio.timeout(CLEANUP_TIMEOUT):
                return await leave()
        except TimeoutError:
            return False

    async def _run_server(self) -> None:
        vault_var.set(self._vault)
        server: Any = self._settings.server
        if not callable(server) or (isinstance(server, type) and not hasattr(server, '__aiter__')):
            raise ServerMissingError(server)
        async with contextlib.AsyncExitStack() as stack:
            # A server can be a context manager, in order to close connections or files; simple ones are only callable.
            if hasattr(type(server), '__aenter__'):
                server = await stack.enter_async_context(server)
            configs = server(self._answer)
            if hasattr(configs, 'aclose'):
                await stack.enter_async_context(contextlib.aclosing(configs))
            async for client_config in configs:
                if not self.listening and self._settings.managed is None:
                    logger.info(
                        "Webhooks are served at %s. The API is not told of them, as settings.admission.managed "
                        "is not set.",
                        client_config.get('url') or client_config.get('service'),
                    )
                self._listening.set()
                for upkeep in self._kept:
                    upkeep.connect(client_config)
        # This ends the operator: the API server would refuse all changes of the resources, or admit them unchecked.
        raise ServerEndedError("The webhook server has ended unexpectedly.")
