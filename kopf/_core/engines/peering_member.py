"""
Our membership in one peering object: telling the others that we are alive, and seeing who else is.

The verdict follows from the records: whether this operator has to pause. It is reached at once when a record changes,
and at the very moment when a record's lifetime ends, whatever is being requested meanwhile: at that moment, the next
one begins to act, so nobody may go on for longer. An operator that can't renew its own record in time pauses, too:
the others must think that it is dead, and take over. Nothing is requested while the peering object is absent.
"""

import asyncio
import contextlib
import dataclasses
import logging
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from kopf._cogs.aiokits.loops import complete
from kopf._cogs.clients import api, errors
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.helpers.clocks import get_suspended_time, read_wall_clock
from kopf._cogs.structs.bodies import is_older_version
from kopf._cogs.structs.credentials import LoginError
from kopf._cogs.structs.references import Namespace, Resource
from kopf._core.engines.peering import Peer, describe_place, touch

logger = logging.getLogger(__name__)

RETRY_DELAY = 5.0
"""When to try again after a failed request, and how often to restore or remove the same record (in seconds)."""

REQUEST_TIMEOUT = 10.0
"""For how long to wait for the API at most: the lifetime goes on (in seconds)."""

EXIT_PATIENCE = 2.0
"""For how long the end waits for a record that is being written: it must not come after its removal (in seconds)."""

TAKEOVER_TIMEOUT = 5.0
"""For how long a newcomer waits at most until those of lower priorities tell that they have stopped (in seconds)."""


def read_time() -> float:
    """Return the time of the loop (in seconds), as if it went on while the machine is suspended."""
    return asyncio.get_running_loop().time() + get_suspended_time()


@dataclasses.dataclass(slots=True)
class Sighting:
    """The last change of a record as we have seen it, and when it ceases to mean anything, by our clock."""

    peer: Peer
    until: float


class PeeringMember:
    """
    One operator in one peering object.

    It is driven from outside by what is seen of the object: `see`, `settle`; and needs `run` to be running.
    """

    def __init__(
        self,
        client: api.ApiClient,
        settings: OperatorSettings,
        *,
        resource: Resource,
        namespace: Namespace,
        identity: str,
        changed: Callable[[], None],
    ) -> None:
        self.name = settings.peering.name
        self.known = False
        """Whether it is known if we may work: until then, we may not."""
        self.paused = False
        """Whether we have to leave the work to the others, or to nobody."""
        self._client = client
        self._settings = settings
        self._resource = resource
        self._namespace = namespace
        self._identity = identity
        self._changed = changed
        self._place = describe_place(self.name, namespace)
        self._present: bool | None = None
        self._version: str | None = None
        self._seen_at = 0.0  # when that version was received
        self._ending = False  # whether the namespace is being deleted
        self._sightings: dict[str, Sighting] = {}
        self._halted = False
        self._told: frozenset[str] = frozenset()
        self._failing = False
        self._listed = False  # whether our own record is there
        self._own: Peer | None = None
        self._announced = 0.0
        self._renewal = 0.0
        self._removal = 0.0
        self._expiry: float | None = None
        self._unsure = False  # whether our own record can be there, though nobody has confirmed it
        self._reason: object = None
        self._verdict = (False, False, False)  # what was told last: if it is known, if to pause, if joined
        self._nudge = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def mandatory(self) -> bool:
        """Whether to wait for the peering object as long as there is none."""
        return self._settings.peering.mandatory

    @property
    def joined(self) -> bool:
        """Whether the objects may be looked at, at least: not before our own record is there, if it must be."""
        return self.known and (self.expiry is not None or not self.mandatory or self._is_over())

    # What is seen.

    def see(self, body: Mapping[str, Any] | None, *, asked_at: float | None = None) -> None:
        """
        Take the newest state of the peering object, or its absence.

        What the API was asked for after the known state was received is newer, even if its version is lower: the
        versions of a cluster go back when its storage is restored from a backup.
        """
        if body is None:
            self._present, self._version, self._listed = False, None, False
            self._expiry = None
            self._renewal = 0.0
        elif (asked_at is not None and asked_at > self._seen_at) or not self._is_outdated(body):
            first = not self._present
            if first:
                self._sightings.clear()
            self._present = True
            self._version = (body.get('metadata') or {}).get('resourceVersion')
            self._seen_at = time.monotonic()
            status = body.get('status')
            self._read(status if isinstance(status, Mapping) else {}, first=first)
        self._reconsider()

    def note_ending(self, ending: bool) -> None:
        """Called when the namespace is being deleted: the peering object can be gone before the other objects are."""
        if ending is not self._ending:
            self._ending = ending
            self._reconsider()

    def _is_over(self) -> bool:
        # No operator can join any more, nor tell that it is alive: what is known of the others holds as long as their
        # records would have. If all operators waited for the object, nothing could free what is left in the namespace.
        return self._ending and not self._present

    def settle(self) -> None:
        """Know that everything has been seen: if there was no such object, then there is none."""
        if self._present is None:
            self.see(None)

    def give_up(self, error: Exception) -> None:
        """Know that the peering object can't be looked at."""
        if self._present is None:
            logger.warning(
                "The peering %s is not accessible; %s. Grant the verbs list, watch, patch for %s to the "
                "operator's account: %s",
                self._place,
                self._describe_absence(),
                self._resource,
                error,
            )
            self.see(None)

    def _is_outdated(self, body: Mapping[str, Any]) -> bool:
        # The stream is behind the responses to our own patches.
        version = (body.get('metadata') or {}).get('resourceVersion')
        return version is not None and is_older_version(version, self._version)

    def _read(self, status: Mapping[str, Any], *, first: bool) -> None:
        now, clock = read_time(), read_wall_clock()
        sightings: dict[str, Sighting] = {}
        for identity, record in status.items():
            peer = Peer.parse(identity, record)
            if peer is None or identity == self._identity:
                continue
            sighting = self._sightings.get(identity)
            if sighting is None or sighting.peer != peer:
                # The record could be there for ages: only in this case, there is nothing but its own word.
                dead = peer.lifetime <= 0 or (first and peer.seems_dead(clock))
                sighting = Sighting(peer, now if dead else now + peer.lifetime)
            sightings[identity] = sighting
        self._sightings = sightings
        self._listed = status.get(self._identity) is not None

    def halt(self, halted: bool) -> None:
        """Know whether this operator has stopped all its work, as it is paused; tell it to those who wait for that."""
        self._halted = halted
        self._nudge.set()

    @property
    def expiry(self) -> float | None:
        """When our own record ends to live (as `read_time` counts), if it is there."""
        return self._expiry if self._present else None

    @property
    def is_overdue(self) -> bool:
        """Whether our own record is not alive any more, though this was not noticed yet: the operator was suspended."""
        return self.known and not self.paused and self.expiry is not None and self.expiry <= read_time()

    def notice_overdue(self) -> None:
        """Pause if our own record is not alive any more, and announce it again."""
        if self.is_overdue:
            self._reconsider()

    # What follows.

    def _set_timer(self, now: float) -> None:
        """See to it that the next end of a lifetime is not missed."""
        if self._timer is not None:
            self._timer.cancel()
        ends = [sighting.until for sighting in self._sightings.values()]
        if self._expiry is not None:
            ends.append(self._expiry)
        end = min((end for end in ends if (self._present or self._ending) and end > now), default=None)
        self._timer = (
            None if end is None else asyncio.get_running_loop().call_at(end - get_suspended_time(), self._note_end, end)
        )

    def _note_end(self, end: float) -> None:
        self._reach(end)
        self._reconsider()

    def _reach(self, moment: float) -> None:
        """Leave no doubt that it is as late as that: timers can be early, by as much as the clock can't tell."""
        now = read_time()
        if self._renewal <= moment:
            self._renewal = min(self._renewal, now)
        if self._removal <= moment:
            self._removal = min(self._removal, now)
        if self._expiry is not None and self._expiry <= moment:
            self._expiry = min(self._expiry, now)
        for sighting in self._sightings.values():
            if sighting.until <= moment:
                sighting.until = min(sighting.until, now)

    def _reconsider(self) -> None:
        if self.known:
            self._judge()
        else:
            self._set_timer(read_time())
        self._nudge.set()

    def _judge(self) -> None:
        """Decide whether to pause, and why; tell about it if it has changed."""
        now = read_time()
        priority = self._settings.peering.priority
        alive = [sighting.peer for sighting in self._sightings.values() if sighting.until > now]
        higher = [peer for peer in alive if peer.priority > priority]
        equal = [peer for peer in alive if peer.priority == priority]
        if not self._present and not self._ending:
            self._conclude(self.mandatory, 'absent')
        elif self._expiry is not None and self._expiry <= now:
            self._conclude(True, 'expired')
        elif self._expiry is None and self.mandatory and self._present:
            self._conclude(True, 'unannounced')
        elif higher:
            self._conclude(True, higher)
        elif equal and not self._settings.watching.shard_selectors:
            self._conclude(True, equal, equal=equal)
        else:
            self._conclude(False, None)
        self.known = True
        self._set_timer(now)
        verdict = (self.known, self.paused, self.joined)
        if verdict != self._verdict:
            self._verdict = verdict
            self._changed()

    def _conclude(self, paused: bool, reason: object, *, equal: Collection[Peer] = ()) -> None:
        # The same peers are not worth saying twice, though their records change all the time.
        key = sorted(peer.identity for peer in reason) if isinstance(reason, list) else reason
        if key != self._reason:
            if equal:
                logger.warning("Possibly conflicting operators with the same priority: %r.", reason)
                if not self.paused:
                    logger.warning("Pausing all operators, including self: %r", [self._own, *equal])
            elif isinstance(reason, list):
                logger.info("Pausing operations in favour of %r.", reason)
            elif reason == 'absent':
                level = logging.WARNING if paused else logging.DEBUG
                logger.log(level, "The peering %s is not found; %s.", self._place, self._describe_absence())
            elif reason == 'expired':
                logger.warning(
                    "Pausing operations: the record in the peering %s could not be renewed in time, "
                    "so that other operators can take over.",
                    self._place,
                )
        if self.paused and not paused and self.known:
            logger.info("Resuming operations after the pause. Conflicting operators with the same priority are gone.")
        self.paused, self._reason = paused, key

    def _describe_absence(self) -> str:
        return "pausing until it is there" if self.mandatory else "running in the standalone mode"

    # What is done.

    async def run(self) -> None:
        """Keep our record alive, remove those of the dead, and see when they die; until cancelled."""
        try:
            while True:
                if self._present is not None:
                    if self._present:
                        await self._care()
                    if not self.known:
                        await self._take_over()
                    self._judge()
                    if self._present and not self._failing and self._get_notes() != self._told:
                        continue
                await self._rest()
        finally:
            if self._timer is not None:
                self._timer.cancel()

    async def _rest(self) -> None:
        now = read_time()
        moment = min((moment for moment in self._moments() if moment > now), default=None)
        try:
            async with asyncio.timeout_at(None if moment is None else moment - get_suspended_time()):
                await self._nudge.wait()
        except TimeoutError:
            if moment is not None:
                self._reach(moment)
        self._nudge.clear()

    def _moments(self) -> Iterator[float]:
        if self._present:
            yield self._renewal
            yield self._removal

    async def _take_over(self) -> None:
        """Wait until those of lower priorities have stopped, or are dead, or do not tell: as other frameworks."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(TAKEOVER_TIMEOUT, self._settings.peering.lifetime / 2)):
                while self._present and self._outranks_workers():
                    self._nudge.clear()
                    await self._nudge.wait()

    def _outranks_workers(self) -> bool:
        now, priority = read_time(), self._settings.peering.priority
        return any(
            sighting.until > now
            and sighting.peer.priority < priority
            and not sighting.peer.paused
            and not sighting.peer.waiting
            for sighting in self._sightings.values()
        )

    def _is_waited_for(self) -> bool:
        now, priority = read_time(), self._settings.peering.priority
        return any(
            sighting.until > now and sighting.peer.priority > priority and sighting.peer.waiting
            for sighting in self._sightings.values()
        )

    def _get_notes(self) -> frozenset[str]:
        """What is to be said in our record besides the usual, as long as somebody takes over from somebody."""
        if self._halted and self._is_waited_for():
            return frozenset({'paused'})
        arriving = not self.known or self._reason == 'expired'
        return frozenset({'waiting'}) if arriving and self._outranks_workers() else frozenset()

    async def _care(self) -> None:
        if not self._listed and self._expiry is not None:
            # Somebody with a wrong clock has removed us. There must be no endless fight without a breath.
            self._renewal = min(self._renewal, self._announced + RETRY_DELAY)
        if read_time() >= self._renewal or (not self._failing and self._get_notes() != self._told):
            await self._announce()
        dead = [identity for identity, sighting in self._sightings.items() if sighting.until <= read_time()]
        if dead and self._present and read_time() >= self._removal:
            self._removal = read_time() + RETRY_DELAY
            await self._remove(dead)

    async def _announce(self) -> None:
        """Renew our own record."""
        if self.is_overdue:
            self._judge()  # the operator was suspended: others could have taken over
        lifetime = self._settings.peering.lifetime
        started = read_time()
        own = Peer(
            self._identity,
            priority=self._settings.peering.priority,
            lifetime=lifetime,
            lastseen=read_wall_clock().isoformat(timespec='microseconds'),
        )
        notes, asked_at = self._get_notes(), time.monotonic()
        record = {**own.as_record(), **dict.fromkeys(self._told - notes), **dict.fromkeys(notes, True)}
        self._unsure = True
        try:
            body = await complete(self._touch({self._identity: record}), patience=EXIT_PATIENCE)
        except (errors.APIError, TimeoutError) as error:
            self._failing = True
            self._unsure = not isinstance(error, errors.APIClientError)
            self._renewal = read_time() + min(RETRY_DELAY, lifetime / 4)
            logger.warning("Keep-alive in %s has failed; trying again soon: %s", self._place, str(error) or repr(error))
            return
        self._failing = self._unsure = False
        self._log_keepalive('not found' if body is None else 'ok')
        if body is not None:
            # Not at the same time with others, and not too late. Short lifetimes are for those who are in a hurry.
            self._renewal = started + max(lifetime / 2, lifetime - random.uniform(5, 10))
            self._expiry = started + lifetime
            self._announced, self._own, self._told = started, own, notes
            if self._reason == 'expired':
                self.known = False  # others could have taken over meanwhile
        self.see(body, asked_at=asked_at)

    async def _remove(self, identities: list[str]) -> None:
        """Remove the records of those who are dead, unless anything changes meanwhile."""
        asked_at = time.monotonic()
        try:
            body = await self._touch(dict.fromkeys(identities), version=self._version)
        except errors.APIConflictError:
            return
        except (errors.APIError, TimeoutError) as error:
            logger.warning("Dead peers could not be removed from %s: %s", self._place, str(error) or repr(error))
            return
        logger.debug("Dead peers are removed from %s: %s.", self._place, ', '.join(identities))
        self.see(body, asked_at=asked_at)

    async def leave(self) -> None:
        """Remove our own record, if it is there: the others need not wait until it dies."""
        if not self._present or (self._expiry is None and not self._unsure):
            return
        try:
            body = await self._touch({self._identity: None})
        except (errors.APIError, LoginError, TimeoutError) as error:
            logger.warning(
                "Our record could not be removed from the peering %s; other operators wait until it dies: %s",
                self._place,
                str(error) or repr(error),
            )
        else:
            self._log_keepalive('not found' if body is None else 'removed')

    async def _touch(
        self,
        records: Mapping[str, Mapping[str, Any] | None],
        *,
        version: str | None = None,
    ) -> Mapping[str, Any] | None:
        # Without the usual retries, which take longer than records live.
        async with asyncio.timeout(REQUEST_TIMEOUT):
            return await touch(
                self._client, self._resource, self._namespace, self.name, records, version=version, backoffs=()
            )

    def _log_keepalive(self, outcome: str) -> None:
        if not self._settings.peering.stealth:
            logger.debug("Keep-alive in %s: %s.", self._place, outcome)
