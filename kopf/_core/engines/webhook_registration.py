"""
Registration of the operator's webhook server in the cluster: the base of webhook configurations and CRD conversions.

The objects are written when both the served handlers and the address of the server are known, and again when either
changes. Failed requests are retried endlessly, while the rest of the operator works: the API server can be unavailable
for a while, and an administrator can grant a missing permission later.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import ClassVar

from kopf._cogs.clients import errors
from kopf._cogs.clients.api import ApiClient
from kopf._cogs.helpers.explanations import ExplainedError
from kopf._cogs.structs.credentials import LoginError
from kopf._cogs.structs.reviews import WebhookClientConfig

logger = logging.getLogger(__name__)

CLEANUP_TIMEOUT = 10.0
"""How long the clean-up can take before it is given up (in seconds)."""

RETRY_DELAYS = (1, 2, 5, 10, 30)
"""The pauses after failures (in seconds); the last one is repeated."""


class WebhookRegistration(ABC):
    """Writes the address of the webhook server to objects in the cluster, and cleans them up at exit."""

    rule: ClassVar[str]
    """The RBAC rule that the operator needs for that."""
    consequence: ClassVar[str]
    """The consequence of a failed clean-up, for logs."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._client_config: WebhookClientConfig | None = None
        self._changed = asyncio.Event()
        self._writing = asyncio.Lock()
        self._closed = False
        self.settled = asyncio.Event()
        """Set when the objects are written for the first time, or when the API server has refused that."""

    @property
    @abstractmethod
    def title(self) -> str:
        """The name of the objects, for logs."""

    @abstractmethod
    async def write(self, client_config: WebhookClientConfig) -> None:
        """Write the objects that have changed."""

    @abstractmethod
    async def remove(self, client_config: WebhookClientConfig) -> None:
        """Remove the webhooks that must not stay when the webhook server stops."""

    async def resign(self) -> None:  # noqa: B027  # there is usually nothing to do
        """Called instead of `remove` when the server stops, but other replicas serve the webhooks at its address."""

    def connect(self, client_config: WebhookClientConfig) -> None:
        """Set the address of the webhook server, and request that the objects are written."""
        self._client_config = client_config
        self._changed.set()

    def recheck(self) -> None:
        """Request that the objects are compared with those in the cluster, and written if they differ."""
        self._changed.set()

    def note_other_cluster(self) -> None:
        """Called when a login has led to another cluster, in which the objects must be written, too."""
        self._changed.set()

    async def run(self) -> None:
        """Write the objects after each change, until they are cleaned up; retry failed requests."""
        failures = 0
        while True:
            await self._changed.wait()
            # Clear the flag before writing: changes during the requests need another round.
            self._changed.clear()
            if self._client_config is None:
                continue
            try:
                async with self._writing:
                    if self._closed:
                        # Check this under the lock: the clean-up can have happened while this round waited for the
                        # lock.
                        return
                    await self.write(self._client_config)
                failures = 0
                self.settled.set()
            except LoginError:
                raise
            except Exception as error:
                if isinstance(error, errors.APIError):
                    self.settled.set()  # who waits for the start must not wait until a permission is granted
                if (end := self.find_end()) is not None:
                    raise end from error
                delay = RETRY_DELAYS[min(failures, len(RETRY_DELAYS) - 1)]
                failures += 1
                self._report(error, delay)
                await asyncio.sleep(delay)
                self._changed.set()

    def explain_failure(self) -> str:
        """Return a sentence on what waits until the objects are written; empty if nothing does."""
        return ''

    def find_end(self) -> ExplainedError | None:
        """Return the error with which the operator ends after a failure; ``None`` to try again."""
        return None

    def _report(self, error: Exception, delay: float) -> None:
        if isinstance(error, errors.APIError):
            # The remedy comes first, as the middle of long messages is cut.
            hint = f"It needs the permission {self.rule}. " if isinstance(error, errors.APIForbiddenError) else ""
            text = f"{hint}{error}{self.explain_failure()}"
            logger.error("The %s cannot be written; trying again in %s s: %s", self.title, delay, text)
        else:  # e.g. a proxy has sent an object of its own
            logger.error("The %s cannot be written; trying again in %s s.", self.title, delay, exc_info=error)

    async def clean_up(self, *, is_last: bool = True) -> None:
        """
        Remove the webhooks that must not stay, unless other replicas serve them; log an error if that fails.

        A request in progress is awaited, not cancelled: the API server could still process it after the removal.
        """
        self._closed = True
        if self._client_config is None:
            return
        try:
            async with asyncio.timeout(CLEANUP_TIMEOUT), self._writing:
                await (self.remove(self._client_config) if is_last else self.resign())
        except Exception as error:
            logger.error("The %s cannot be cleaned up; %s: %r", self.title, self.consequence, error)


async def attempt_all(steps: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """
    Run all the steps, even if some fail, so that a broken object does not affect the others.

    Raises:
        errors.APIError: the first of the failures, after all the steps.
    """
    failures: list[errors.APIError] = []
    for step in steps:
        try:
            await step()
        except errors.APIError as error:
            failures.append(error)
    try:
        for failure in failures:
            raise failure
    finally:
        failures.clear()  # otherwise, this frame and the tracebacks of the errors would be a reference cycle
