"""
The release of objects that are being deleted, but have children that Kubernetes does not delete with them.

Owner references work only in the same namespace. So an object with *remote* children, in other namespaces or
cluster-scoped, has a finalizer: the operator deletes these children before the object. If the deletion of the object
is to make its children orphans, the operator only removes what links them to the object.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Final, Protocol

from kopf._cogs.clients.api import ApiClient
from kopf._cogs.clients.errors import APIConflictError
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.bodies import Body, RawBody, RawEvent
from kopf._cogs.structs.credentials import LoginError
from kopf._core.actions.loggers import ObjectLogger
from kopf._core.engines.child_marks import has_finalizer, make_release, read_kinds
from kopf._core.engines.children import make_manager
from kopf._core.engines.pruning import RemoteChildren
from kopf._core.reactor.applying import CONFLICT_DELAYS, Applier
from kopf._core.reactor.object_records import ObjectRecord

RELEASE_DELAY = 2.0
"""
The delay of the second attempt if the remote children of a deleted object can't be deleted (in seconds).

Each further delay is twice as long.
"""

MAX_RELEASE_DELAY = 300.0
"""The longest of these delays (in seconds)."""

FORMER_PAUSE = 3.0
"""
How long the finalizer of a former version stays (in seconds).

The operator has no level-triggered handlers for the resource, so the finalizer can also be that of another operator
with the same name. That operator removes it meanwhile.
"""


ORPHAN: Final = 'orphan'
"""The finalizer of an object whose dependents the garbage collector makes orphans, before it removes the finalizer."""


class Owner(Protocol):
    """The processor of the objects."""

    def release_later(self, record: ObjectRecord, /) -> None:
        """Request a worker for another attempt."""


class ChildRelease:
    """
    Deletes the remote children of the deleted objects of one resource, and then removes the finalizer for them.

    Args:
        owner: the processor of the objects.
        client: the client of the API.
        applier: applies patches to objects.
        settings: the settings of the operator.
        find_namespaces: returns the served namespaces; none if the whole cluster is served.
        pause: the time between the first event of the deletion and the first attempt (in seconds).
    """

    def __init__(
        self,
        owner: Owner,
        *,
        client: ApiClient,
        applier: Applier,
        settings: OperatorSettings,
        find_namespaces: Callable[[], Collection[str]],
        pause: float,
    ) -> None:
        self._owner = owner
        self._client = client
        self._applier = applier
        self._settings = settings
        self._operator = settings.applying.operator
        self._find_namespaces = find_namespaces
        self._pause = pause
        self._ending: dict[ObjectRecord, RawBody] = {}
        """The objects that are being deleted, and wait for the deletion of their remote children."""
        self._orphaning: set[ObjectRecord] = set()
        """The objects whose children must become orphans."""
        self._delays: dict[ObjectRecord, float] = {}
        """The delays of the next attempts for objects whose children could not be deleted."""
        self._timers: dict[ObjectRecord, asyncio.TimerHandle] = {}
        """The timers of the objects that wait for the time of their next attempt."""
        self._attempted: set[ObjectRecord] = set()
        """The objects that are being released now."""

    def note(self, record: ObjectRecord, event: RawEvent, *, paused: bool) -> bool:
        """Note whether the object must be released; return whether it needs a worker for that now."""
        raw = event['object']
        if raw['metadata'].get('deletionTimestamp') is None:
            return False
        if event['type'] == 'DELETED' or not has_finalizer(raw, self._operator):
            self.forget(record)
            return False
        # The garbage collector removes its finalizer soon, and no other field shows the request. So it is remembered,
        # also in a pause.
        if ORPHAN in (raw['metadata'].get('finalizers') or ()):
            self._orphaning.add(record)
        if paused:
            return False
        is_known = record in self._ending
        self._ending[record] = raw
        if self._pause and not is_known:
            self._delay(record, self._pause)
        if record in self._timers and record not in self._delays:
            return False
        self._stop_timer(record)
        return True

    def forget(self, record: ObjectRecord) -> None:
        """Forget the object: it is released, or not handled here any more."""
        self._ending.pop(record, None)
        self._orphaning.discard(record)
        self._delays.pop(record, None)
        self._attempted.discard(record)
        self._stop_timer(record)

    def is_wanted(self, record: ObjectRecord) -> bool:
        """Check whether the object must be released."""
        return record in self._ending

    def is_due(self, record: ObjectRecord) -> bool:
        """Check whether the object must be released now."""
        return record in self._ending and record not in self._timers

    async def release(self, record: ObjectRecord) -> None:
        """Delete the remote children of the object, or make them orphans, and then remove the finalizer."""
        raw = self._ending.pop(record, None)
        if raw is None:
            return
        logger = ObjectLogger(body=Body(raw), settings=self._settings)
        self._attempted.add(record)
        try:
            await self._release_children(record, raw, logger)
            await self._remove_finalizer(record, raw, logger)
            self._delays.pop(record, None)
        except LoginError:
            raise
        except Exception as error:
            if record not in self._attempted:
                return  # it was forgotten meanwhile: it does not exist any more, or another member releases it
            delay = self._delays.get(record, RELEASE_DELAY)
            self._delays[record] = min(delay * 2, MAX_RELEASE_DELAY)
            logger.error(
                "The children in other namespaces can't be %s; trying again in %g seconds: %r",
                'made orphans' if record in self._orphaning else 'deleted',
                delay,
                error,
            )
            self._ending[record] = raw
            self._delay(record, delay)
        finally:
            self._attempted.discard(record)

    async def _release_children(self, record: ObjectRecord, raw: RawBody, logger: ObjectLogger) -> None:
        children = RemoteChildren(
            self._client,
            raw,
            read_kinds(raw, self._operator),
            manager=make_manager(self._operator),
            namespaces=self._find_namespaces(),
            logger=logger,
        )
        if record in self._orphaning:
            await children.orphan()
        else:
            await children.delete()

    def _delay(self, record: ObjectRecord, delay: float) -> None:
        self._stop_timer(record)
        self._timers[record] = asyncio.get_running_loop().call_later(delay, self._retry, record)

    def _stop_timer(self, record: ObjectRecord) -> None:
        timer = self._timers.pop(record, None)
        if timer is not None:
            timer.cancel()

    def _retry(self, record: ObjectRecord) -> None:
        del self._timers[record]
        if record in self._ending:
            self._owner.release_later(record)

    async def _remove_finalizer(self, record: ObjectRecord, raw: RawBody, logger: ObjectLogger) -> None:
        known: RawBody | None = raw
        patch = make_release(self._operator)
        for delay in CONFLICT_DELAYS:
            result = await self._applier.send_once(record, raw['metadata'].get('uid'), patch, known, logger)
            if not result.remaining_fns:
                return
            known = None
            await asyncio.sleep(delay)
        raise APIConflictError("The finalizer can't be removed, as the object changes all the time.")
