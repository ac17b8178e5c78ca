"""
Keeping something in the cluster in line with what the operator serves, and with the address where it serves it.

It is written when both are known, and again when either changes; on failures, until it works: the API can be ill, or an
administrator can be just about to give the permission that is missing.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import ClassVar

from kopf._cogs.clients import errors
from kopf._cogs.clients.api import ApiClient
from kopf._cogs.structs.reviews import WebhookClientConfig

logger = logging.getLogger(__name__)

CLEANUP_TIMEOUT = 10.0
"""How long the clean-up may take before it is given up (in seconds)."""

RETRY_DELAYS = (1, 2, 5, 10, 30)
"""The pauses after failures (in seconds); the last one is repeated."""


class WebhookRegistration(ABC):
    """What is written to the cluster so that the API finds the webhook server, and is cleaned up in the end."""

    rule: ClassVar[str]
    """The RBAC rule that it takes."""
    consequence: ClassVar[str]
    """What happens if it can't be cleaned up."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._client_config: WebhookClientConfig | None = None
        self._changed = asyncio.Event()
        self._writing = asyncio.Lock()
        self._closed = False

    @property
    @abstractmethod
    def title(self) -> str:
        """What is written, for logs."""

    @abstractmethod
    async def write(self, client_config: WebhookClientConfig) -> None:
        """Write what has changed."""

    @abstractmethod
    async def remove(self, client_config: WebhookClientConfig) -> None:
        """Remove what must not stay when nobody answers any more."""

    def connect(self, client_config: WebhookClientConfig) -> None:
        """Let the API find the server there."""
        self._client_config = client_config
        self._changed.set()

    def recheck(self) -> None:
        """Write again what is not as it should be."""
        self._changed.set()

    async def run(self) -> None:
        """Write when it has to be written until it is cleaned up; on failures, try again until it works."""
        failures = 0
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._client_config is None:
                continue
            try:
                async with self._writing:
                    if self._closed:
                        return
                    await self.write(self._client_config)
                failures = 0
            except errors.APIError as error:
                delay = RETRY_DELAYS[min(failures, len(RETRY_DELAYS) - 1)]
                failures += 1
                hint = f". It needs the permission {self.rule}." if isinstance(error, errors.APIForbiddenError) else ""
                logger.error("The %s cannot be written; trying again in %s s: %s%s", self.title, delay, error, hint)
                await asyncio.sleep(delay)
                self._changed.set()

    async def clean_up(self) -> None:
        """
        Remove what must not stay; if that is impossible, say so.

        What is just being written is waited for: the API would store it even if nobody waited, after it is removed.
        """
        self._closed = True
        if self._client_config is None:
            return
        try:
            async with asyncio.timeout(CLEANUP_TIMEOUT), self._writing:
                await self.remove(self._client_config)
        except (TimeoutError, errors.APIError) as error:
            logger.error("The %s cannot be cleaned up; %s: %r", self.title, self.consequence, error)


async def attempt_all(steps: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """
    Take all the steps, even if the API refuses some: what is wrong with one object must not be felt by others.

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
        failures.clear()  # otherwise, this frame and their tracebacks would be a reference cycle
