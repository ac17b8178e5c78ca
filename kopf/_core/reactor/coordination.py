"""
What operators agree on with each other: which of them may work now, and where.

The orchestrator asks one `Coordinator`. A way to agree, such as peering, is one class of this protocol, and is created
in `make_coordinator` if the settings ask for it. Where there are several ways, all of them must permit the work.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence, Set
from typing import Protocol

from kopf._cogs.clients.api import ApiClient
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.references import Namespace, Resource
from kopf._core.reactor.peering_coordinator import PeeringCoordinator
from kopf._core.reactor.watches import ResourceWatch

Affected = Collection[Namespace] | None
"""The namespaces where it can be decided differently what is to be done; ``None`` for all of them."""

Guard = Callable[[], bool]
"""Whether the operator must pause, although its coordinator has not said so yet."""


class Coordinator(Protocol):
    """One way to agree with other operators."""

    @property
    def groups(self) -> Collection[str]:
        """The API groups of the kinds that it meets the others by; they are discovered for it."""

    @property
    def paused(self) -> bool:
        """Whether the operator has to leave the work to others, or to wait."""

    @property
    def guard(self) -> Guard | None:
        """What is to be asked before any work begins; ``None`` if nothing is."""

    @property
    def watches(self) -> Sequence[ResourceWatch]:
        """Its watches that go on. The probes read them in another thread."""

    def is_open(self, namespace: Namespace) -> bool:
        """Check whether it is known that work may begin in this namespace; with ``None``, in the whole cluster."""

    def rediscover(self, resources: Collection[Resource]) -> None:
        """Find the kinds that it needs among all the resources that there are now; `adjust` follows."""

    def adjust(self, namespaces: Set[Namespace], affected: Affected = None) -> Affected:
        """
        Meet the others in these namespaces, and no longer in those that are not served any more.

        It must not call back: what it decides at once is asked for when it returns.

        Args:
            namespaces: all the namespaces that are served.
            affected: those that can have come or gone since the last time; by default, all of them.

        Returns:
            The affected namespaces; all of them if more can be decided differently now.
        """

    def note_ending(self, namespace: Namespace, ending: bool) -> None:
        """Called when the namespace begins to be deleted (``ending``), and when it is gone or not ending after all."""

    def halt(self, halted: bool) -> None:
        """Called when all work has stopped after a pause was asked for, and when it goes on."""

    async def leave(self) -> None:
        """Let the others take over. Called when the operator exits and does nothing any more."""


Changed = Callable[[Affected], None]
"""Is called by a coordinator when it has come to another decision in these namespaces."""


class Unanimity:
    """Several coordinators as one: the operator works where all of them permit it. With none, it always works."""

    def __init__(self, coordinators: Collection[Coordinator]) -> None:
        self._coordinators = tuple(coordinators)
        guards = [each.guard for each in self._coordinators]
        self._guards = [guard for guard in guards if guard is not None]

    @property
    def groups(self) -> Collection[str]:
        return {group for each in self._coordinators for group in each.groups}

    @property
    def paused(self) -> bool:
        return any(each.paused for each in self._coordinators)

    @property
    def guard(self) -> Guard | None:
        # It is asked for each event: so, a single guard is asked directly.
        return self._check_guards if len(self._guards) > 1 else self._guards[0] if self._guards else None

    def _check_guards(self) -> bool:
        answers = [guard() for guard in self._guards]  # of all: each of them can begin a pause of its own
        return any(answers)

    @property
    def watches(self) -> Sequence[ResourceWatch]:
        return [watch for each in self._coordinators for watch in each.watches]

    def is_open(self, namespace: Namespace) -> bool:
        return all(each.is_open(namespace) for each in self._coordinators)

    def rediscover(self, resources: Collection[Resource]) -> None:
        for each in self._coordinators:
            each.rediscover(resources)

    def adjust(self, namespaces: Set[Namespace], affected: Affected = None) -> Affected:
        changes = [each.adjust(namespaces, affected) for each in self._coordinators]
        return None if None in changes else affected

    def note_ending(self, namespace: Namespace, ending: bool) -> None:
        for each in self._coordinators:
            each.note_ending(namespace, ending)

    def halt(self, halted: bool) -> None:
        for each in self._coordinators:
            each.halt(halted)

    async def leave(self) -> None:
        # All of them are waited for, also if one fails: otherwise, the operator would end in the midst of the rest.
        results = await asyncio.gather(*(each.leave() for each in self._coordinators), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result


def make_coordinator(
    client: ApiClient,
    settings: OperatorSettings,
    *,
    identity: str | None,
    tasks: asyncio.TaskGroup,
    changed: Changed,
) -> Coordinator:
    """
    Create what the settings ask for; the only place that knows which coordinators there are.

    Args:
        client: the client of the API.
        settings: the settings of the operator, as its startup handlers have left them.
        identity: the name of the operator among the others; if absent, it is detected when it is needed.
        tasks: where the tasks of the coordinators live.
        changed: is called when it can be decided differently what is to be done.
    """
    coordinators: list[Coordinator] = []
    if not settings.peering.standalone:
        coordinators.append(PeeringCoordinator(client, settings, identity=identity, tasks=tasks, changed=changed))
    return coordinators[0] if len(coordinators) == 1 else Unanimity(coordinators)
