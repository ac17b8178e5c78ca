"""
The membership of this operator in one peering object: it renews its own record, and observes the records of its peers.

The records determine whether this operator must pause. It decides anew whenever a record changes, and exactly when the
lifetime of its own record ends, even while a request is in progress: at that moment, a peer begins to work, and two
operators must never work at once. When the lifetime of a peer's record ends, a response of the API server must confirm
that the record was not renewed. An operator that cannot renew its own record in time pauses, too: its peers must
assume that it is dead, and take over. No requests are made while the peering object is absent.
"""

import asyncio
import contextlib
import dataclasses
import logging
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from kopf._cogs.aiokits.loops import complete
from kopf._cogs.clients import api, errors
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.helpers.clocks import read_time, read_wall_clock
from kopf._cogs.structs.bodies import is_older_version
from kopf._cogs.structs.credentials import LoginError
from kopf._cogs.structs.references import Namespace, Resource
from kopf._core.engines.peering import Peer, describe_place, touch

logger = logging.getLogger(__name__)

RETRY_DELAY = 5.0
"""The pause after a failed request, and the minimal interval of restoring or removing the same record (in seconds)."""

REQUEST_TIMEOUT = 10.0
"""The time limit of a request (in seconds): a slower one would come too late for the lifetime of the record."""

LEAVE_BACKOFFS = (0.2, 1.0)
"""The pauses before the record is tried to be removed again (in seconds), e.g. while the API server restarts."""

EXIT_TIMEOUT = 2.0
"""How long the exiting operator waits for a renewal in progress (in seconds), which must not follow the removal."""

_UNSEEN = ('expired', 'unannounced')
"""The reasons of pauses in which the peering object has no valid record of this operator."""

_FLAGS = frozenset({'waiting', 'pausing', 'paused'})
"""The additional fields of records, by which operators coordinate a takeover."""

_TRANSIENT_REFUSALS = (401, 404, 408, 409, 429)
"""The statuses of client errors that say nothing about the permission to write: the same request can succeed later."""

REFUSAL_DELAYS = (0.5, 1.0, 2.0)
"""
The delays of the next requests (in seconds) before a refused record means that the operator may not write it.

A single refusal can be temporary, e.g. of an API server that has just started. If it were final, an operator with an
optional peering would work without a record, unseen by its peers.
"""

TAKEOVER_TIMEOUT = 5.0
"""
How long a starting operator waits until the operators with lower priorities have paused (in seconds).

It waits longer only for those that report that their handlers are still running.
"""


@dataclasses.dataclass(slots=True)
class ObservedPeer:
    """The record of another operator, and the end of its lifetime by our clock."""

    peer: Peer
    until: float


class PeeringMember:
    """
    One operator in one peering object.

    The reactor watches the peering object and calls `see` and `settle`; and it runs `run` in a task.
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
        lapsed: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = settings.peering.name
        self.known = False
        """Whether the first decision is made. The operator must not work until then."""
        self.paused = False
        """Whether this operator must not work, according to the last decision."""
        self._client = client
        self._settings = settings
        self._resource = resource
        self._namespace = namespace
        self._identity = identity
        self._changed = changed
        self._lapsed = lapsed
        self._place = describe_place(self.name, namespace)
        self._present: bool | None = None
        self._version: str | None = None
        self._seen_at = 0.0  # when that version was received
        self._ending = False  # the namespace is being deleted
        self._observed: dict[str, ObservedPeer] = {}
        self._former: dict[str, ObservedPeer] = {}  # the records of former objects of this name, while they live
        self._vanished_at = 0.0  # when the last object of this name was found to be absent
        self._halted = False
        self._written_flags: frozenset[str] = frozenset()
        self._failing = False
        self._listed = False  # our own record is in the object
        self._own: Peer | None = None
        self._announced = 0.0
        self._renewal = 0.0
        self._removal = 0.0
        self._removed: frozenset[str] = frozenset()  # the identities at the last attempt to remove dead records
        self._expiry: float | None = None
        self._confirmed_at = 0.0  # when the last state was requested that a response to a patch has shown
        self._refusals = 0  # how often in a row the API server has refused our own record
        self._unsure = False  # our own record can be in the object: the response to its request was lost
        self._reason: object = None
        self._reported = (False, False, False)  # the last values of `known`, `paused`, `joined`, to report only changes
        self._wakeup = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def _refused(self) -> bool:
        # The first refusals can be temporary, see `REFUSAL_DELAYS`.
        return self._refusals > len(REFUSAL_DELAYS)

    @property
    def mandatory(self) -> bool:
        """True if the operator must pause as long as there is no peering object."""
        return self._settings.peering.mandatory

    @property
    def joined(self) -> bool:
        """True if the operator may begin to watch objects. If the peering is mandatory, its own record comes first."""
        return self.known and (self.expiry is not None or not self.mandatory or self._is_over())

    # The observed state.

    def see(self, body: Mapping[str, Any] | None, *, asked_at: float | None = None) -> None:
        """
        Called with each state of the peering object, or with ``None`` if it is absent.

        Args:
            body: the object.
            asked_at: when the state was requested from the API, by the monotonic clock. If that was after the known
                state was received, this one is newer even with a lower version: versions go back when the storage of
                a cluster is restored from a backup.
        """
        # Otherwise, the object was created anew while the request was in progress.
        if body is None and (asked_at is None or asked_at >= self._seen_at):
            if self._present:
                self._retire_records()
            self._present, self._version, self._listed = False, None, False
            self._expiry = None
            self._renewal = 0.0
        elif body is not None and ((asked_at or 0) > self._seen_at or not self._is_outdated(body)):
            first = not self._present
            self._present = True
            self._version = (body.get('metadata') or {}).get('resourceVersion')
            self._seen_at = time.monotonic()
            status = body.get('status')
            self._read(status if isinstance(status, Mapping) else {}, first=first)
        self._reconsider()

    def _retire_records(self) -> None:
        """
        Called when the object is deleted: its records count until their lifetimes end, see `_get_former_end`.

        Operators that work without a peering object continue to do so after its deletion. If it is created again, they
        add their records only after they have seen it. If it is deleted together with its namespace, another watch
        shows that, and can be later.
        """
        now = self._vanished_at = read_time()
        self._former = {
            identity: other for identity, other in (self._former | self._observed).items() if other.until > now
        }
        self._observed = {}

    def note_ending(self, ending: bool) -> None:
        """Called when the namespace is being deleted: the peering object can be deleted before other objects."""
        if ending is not self._ending:
            self._ending = ending
            self._reconsider()

    def _is_unannounced(self) -> bool:
        # Peers pause only when they see our record, so it is useless to wait for them earlier. If the peering is
        # optional, an operator without the permission to write its record works without a record.
        return bool(self._present) and self._expiry is None and (self.mandatory or not self._refused)

    def _is_over(self) -> bool:
        # The peering object is deleted, so no operator can join or renew its record. If all operators paused because of
        # its absence, none would remove the finalizers of the remaining objects in the namespace.
        return self._ending and not self._present

    def settle(self) -> None:
        """Called when the peering objects have been listed: if the object was not among them, it is absent."""
        if self._present is None:
            self.see(None)

    def give_up(self, error: Exception) -> None:
        """Called when the peering object cannot be watched: it counts as absent."""
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
        # Events of the watch come later than the responses to our own patches, so an event can be older.
        version = (body.get('metadata') or {}).get('resourceVersion')
        return version is not None and is_older_version(version, self._version)

    def _read(self, status: Mapping[str, Any], *, first: bool) -> None:
        now, clock = read_time(), read_wall_clock()
        observed: dict[str, ObservedPeer] = {}
        for identity, record in status.items():
            peer = Peer.parse(identity, record)
            if peer is None or identity == self._identity:
                continue
            other = self._observed.get(identity)
            if other is None or other.peer != peer:
                # A record in the first observed state can be old already, so its own timestamp counts.
                dead = peer.lifetime <= 0 or (first and peer.seems_dead(clock))
                other = ObservedPeer(peer, now if dead else now + peer.lifetime)
            # An unchanged record keeps its end, which was computed by our own clock at the last observed change.
            observed[identity] = other
        self._observed = observed
        for identity in observed:
            self._former.pop(identity, None)
        # Why read it from the object, and not remember our requests? A peer can have removed the record, the response
        # to a request can be lost, and a killed operator with the same identity, e.g. in the same pod, can have left
        # its flags. Peers would wait for ever because of a flag that is never removed.
        own = status.get(self._identity)
        if isinstance(own, Mapping):
            self._written_flags = frozenset(flag for flag in _FLAGS if own.get(flag))
        self._listed = own is not None

    def halt(self, halted: bool) -> None:
        """Called with true when the paused operator has stopped all its work, and with false when it works again."""
        self._halted = halted
        # The flag in the record is written at once: an operator that takes over can wait for it.
        self._wakeup.set()

    @property
    def expiry(self) -> float | None:
        """When the lifetime of our own record ends (by `read_time`); ``None`` if it is not in the object."""
        return self._expiry if self._present else None

    @property
    def is_overdue(self) -> bool:
        """True if the lifetime of our own record has ended unnoticed, because the operator was suspended."""
        return self.is_overdue_at(read_time())

    def is_overdue_at(self, now: float) -> bool:
        """Check whether `is_overdue` is true at this time, by `read_time`; callable from any thread."""
        expiry = self.expiry  # the event loop can forget the record meanwhile
        return self.known and not self.paused and expiry is not None and expiry <= now

    def pause_if_overdue(self) -> None:
        """Pause if the lifetime of our own record has ended, and write the record again."""
        if self.is_overdue:
            self._reconsider()

    # The decision.

    def _set_timer(self, now: float) -> None:
        """Set the timer to the next end of a lifetime."""
        if self._timer is not None:
            self._timer.cancel()
        ends = [other.until for other in self._observed.values()]
        ends += [self._get_former_end(other) for other in self._former.values()]
        if self._expiry is not None:
            ends.append(self._expiry)
        end = min((end for end in ends if end > now), default=None)
        self._timer = None if end is None else asyncio.get_running_loop().call_later(end - now, self._note_end, end)

    def _note_end(self, end: float) -> None:
        self._reach(end)
        self._reconsider()

    def _reach(self, moment: float) -> None:
        """Treat all times up to this moment as passed: a timer can fire slightly too early."""
        now = read_time()
        if self._renewal <= moment:
            self._renewal = min(self._renewal, now)
        if self._removal <= moment:
            self._removal = min(self._removal, now)
        if self._expiry is not None and self._expiry <= moment:
            self._expiry = min(self._expiry, now)
        for other in self._observed.values():
            if other.until <= moment:
                other.until = min(other.until, now)

    def _reconsider(self) -> None:
        if self.known:
            self._decide()
        else:
            self._set_timer(read_time())
        self._wakeup.set()

    def _decide(self) -> None:
        """Decide whether to pause; call `changed` if the decision has changed."""
        now = read_time()
        priority = self._settings.peering.priority
        alive = [other.peer for other in self._observed.values() if self._is_alive(other, now)]
        alive += [other.peer for other in self._former.values() if self._get_former_end(other) > now]
        higher = [peer for peer in alive if peer.priority > priority]
        equal = [peer for peer in alive if peer.priority == priority]
        # An operator that works already ignores pausing peers: it is too late to wait for their last handlers.
        pausing = [
            peer for peer in alive if peer.priority < priority and peer.pausing and (self.paused or not self.known)
        ]
        # Our own record is checked before the records of the peers: an operator that its peers do not see must not
        # work.
        if not self._present and self.mandatory and not self._ending:
            self._set_decision(True, 'absent')
        elif self._expiry is not None and self._expiry <= now:
            if self._reason != 'expired':
                self._lapsed()
            self._set_decision(True, 'expired')
        elif self._is_unannounced():
            self._set_decision(True, 'unannounced')
        elif higher:
            self._set_decision(True, higher)
        # Operators with shards have equal priorities on purpose: each handles its own part of the objects.
        elif equal and not self._settings.watching.shard_selectors:
            self._set_decision(True, equal, equal=equal)
        # The handlers of peers can run for hours. Why not start later? A paused operator watches, and answers the
        # probes.
        elif pausing:
            self._set_decision(True, 'unfinished', pausing=pausing)
        elif not self._present and not self._ending:
            self._set_decision(False, 'absent')
        else:
            self._set_decision(False, None)
        self.known = True
        self._set_timer(now)
        decision = (self.known, self.paused, self.joined)
        # Report only changes: each renewal of each peer comes here, and the orchestrator checks all watches each time.
        if decision != self._reported:
            self._reported = decision
            self._changed()

    def _is_alive(self, other: ObservedPeer, now: float) -> bool:
        """Check whether the other operator can be working, so that this one has to pause for it."""
        if other.until > now:
            return True
        # Why not trust the end of the lifetime? The watch can be broken and miss renewals of the record; then, two
        # operators would work at once. So, before the pause ends, a response of the API server must show that the
        # record was not renewed. Without the permission to write, the operator gets no such responses.
        is_confirmed = self._confirmed_at >= other.until or not self._present or self._refused
        return self.known and self.paused and not is_confirmed

    def _get_former_end(self, other: ObservedPeer) -> float:
        """Return the time until which a record of a deleted peering object counts."""
        if self._is_over():
            return other.until
        # The time is limited: a record of ``kopf freeze`` can live for days, and users can delete the object to end it.
        return min(other.until, self._vanished_at + self._settings.peering.lifetime)

    def _set_decision(
        self,
        paused: bool,
        reason: object,
        *,
        equal: Collection[Peer] = (),
        pausing: Collection[Peer] = (),
    ) -> None:
        # Compare only identities, because the records change with every renewal, and each reason is logged once.
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
                remedy = " Create this object, or name one that exists." if paused else ""
                logger.log(level, "The peering %s is not found; %s.%s", self._place, self._describe_absence(), remedy)
            elif reason == 'expired':
                logger.warning(
                    "Pausing operations: the record in the peering %s could not be renewed in time, "
                    "so that other operators can take over.",
                    self._place,
                )
            elif reason == 'unfinished':
                logger.warning(
                    "Pausing operations until the running handlers of other operators have ended, or these operators "
                    "are gone: %r.",
                    pausing,
                )
        if self.paused and not paused and self.known:
            logger.info("Resuming operations after the pause. Conflicting operators with the same priority are gone.")
        self.paused, self._reason = paused, key

    def _describe_absence(self) -> str:
        return "pausing until it is there" if self.mandatory else "running in the standalone mode"

    # The requests.

    async def run(self) -> None:
        """Renew our own record, remove dead records of peers, and decide when to pause; until cancelled."""
        try:
            while True:
                if self._present is not None:
                    if self._present:
                        await self._maintain_records()
                    # Wait only after our own record is written: it makes the peers with lower priorities pause.
                    if not self.known and not self._is_unannounced():
                        await self._take_over()
                    self._decide()
                    # The decision can change the flags. These are written at once, as peers wait for them; but after a
                    # failure, `_wait` pauses first.
                    if self._present and not self._failing and self._get_flags() != self._written_flags:
                        continue
                await self._wait()
        finally:
            if self._timer is not None:
                self._timer.cancel()

    async def _wait(self) -> None:
        now = read_time()
        moment = min(self._moments(), default=None)
        # A request, or the wait for peers, can take longer than the pause after a failure. Then, the next one is due.
        if moment is not None and moment <= now:
            return
        try:
            async with asyncio.timeout(None if moment is None else moment - now):
                await self._wakeup.wait()
        except TimeoutError:
            if moment is not None:
                self._reach(moment)
        self._wakeup.clear()

    def _moments(self) -> Iterator[float]:
        if self._present:
            yield self._renewal
            if self._find_dead():
                yield self._removal

    def _find_dead(self) -> list[str]:
        now = read_time()
        return [identity for identity, other in self._observed.items() if other.until <= now]

    async def _take_over(self) -> None:
        """
        Wait until the operators with lower priorities have paused, or their records are dead.

        The wait is limited, as operators of other frameworks, upstream kopf included, do not report that they paused.
        If peers still report running handlers at the end of the wait, this operator pauses, see `_decide`.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(TAKEOVER_TIMEOUT, self._settings.peering.lifetime / 2)):
                while self._present and self._outranks_workers():
                    self._wakeup.clear()
                    await self._wakeup.wait()

    def _outranks_workers(self) -> bool:
        now, priority = read_time(), self._settings.peering.priority
        return any(
            other.until > now and other.peer.priority < priority and not other.peer.paused and not other.peer.waiting
            for other in self._observed.values()
        )

    def _is_waited_for(self) -> bool:
        now, priority = read_time(), self._settings.peering.priority
        return any(
            other.until > now and other.peer.priority > priority and other.peer.waiting
            for other in self._observed.values()
        )

    def _get_flags(self) -> frozenset[str]:
        """Return the additional fields of our own record, by which operators coordinate a takeover."""
        if self._halted and self._is_waited_for():
            return frozenset({'paused'})
        # Report running handlers until they have ended, even if the waiting peer has left: the next one waits for them,
        # too.
        if self.paused and not self._halted and ('pausing' in self._written_flags or self._is_waited_for()):
            return frozenset({'pausing'})
        arriving = not self.known or self._reason in (*_UNSEEN, 'unfinished')
        return frozenset({'waiting'}) if arriving and self._outranks_workers() else frozenset()

    async def _maintain_records(self) -> None:
        if not self._listed and self._expiry is not None:
            # A peer with a wrong clock has removed our record. The pause limits how often both operators repeat this.
            self._renewal = min(self._renewal, self._announced + RETRY_DELAY)
        if read_time() >= self._renewal or (not self._failing and self._get_flags() != self._written_flags):
            await self._announce()
        dead = self._find_dead()
        # The interval is only for repeated removals. Newly dead records are removed at once, which can end our pause.
        if dead and self._present and (read_time() >= self._removal or not self._removed.issuperset(dead)):
            self._removed = frozenset(dead)
            await self._remove(dead)
            self._removal = read_time() + RETRY_DELAY

    async def _announce(self) -> None:
        """Renew our own record."""
        if self.is_overdue:
            self._decide()  # the operator was suspended, and another one could have taken over
        lifetime = self._settings.peering.lifetime
        # The lifetime is counted from before the request. So it ends earlier here than for any other operator.
        started = read_time()
        own = self._make_peer(lifetime)
        flags, asked_at = self._get_flags(), time.monotonic()
        record = {**own.as_record(), **dict.fromkeys(self._written_flags - flags), **dict.fromkeys(flags, True)}
        self._unsure = True
        try:
            # Not cancelled with this task: the server could process the request after the removal of the record, and
            # the next operator would wait for a dead one.
            body = await complete(self._touch({self._identity: record}), patience=EXIT_TIMEOUT)
        except (errors.APIError, TimeoutError) as error:
            self._failing = True
            is_refused = isinstance(error, errors.APIClientError) and error.status not in _TRANSIENT_REFUSALS
            self._unsure = not is_refused
            self._refusals = self._refusals + 1 if is_refused else 0
            delay = REFUSAL_DELAYS[self._refusals - 1] if is_refused and not self._refused else RETRY_DELAY
            self._renewal = read_time() + min(delay, lifetime / 4)
            logger.warning("Keep-alive in %s has failed; trying again soon: %s", self._place, str(error) or repr(error))
            return
        self._failing = self._unsure = False
        self._refusals = 0
        self._log_keepalive('not found' if body is None else 'ok')
        if body is not None:
            # The time is random, so that operators do not send their requests simultaneously, and early enough for
            # retries. For a short lifetime, the random part would be too long, so the record is renewed after half of
            # its lifetime.
            self._renewal = started + max(lifetime / 2, lifetime - random.uniform(5, 10))
            self._expiry = started + lifetime
            self._announced, self._own, self._written_flags = started, own, flags
            self._confirmed_at = started
            if self._reason in _UNSEEN:
                self.known = False  # other operators could have taken over meanwhile, or could not see our record yet
        self.see(body, asked_at=asked_at)

    def _make_peer(self, lifetime: int) -> Peer:
        return Peer(
            self._identity,
            priority=self._settings.peering.priority,
            lifetime=lifetime,
            lastseen=read_wall_clock().isoformat(timespec='microseconds'),
        )

    async def _remove(self, identities: list[str]) -> None:
        """Remove dead records, unless the object changes meanwhile."""
        started, asked_at = read_time(), time.monotonic()
        try:
            body = await self._touch(dict.fromkeys(identities), version=self._version)
        # A peer has renewed its record, and the watch has not shown that yet. Why not wait for the watch? It can be
        # broken for long. The response to the renewal of our own record shows the state without the permission to get
        # the object.
        except errors.APIConflictError:
            self._renewal = min(self._renewal, read_time())
            self._wakeup.set()
            return
        except (errors.APIError, TimeoutError) as error:
            logger.warning("Dead peers could not be removed from %s: %s", self._place, str(error) or repr(error))
            return
        logger.debug("Dead peers are removed from %s: %s.", self._place, ', '.join(identities))
        if body is not None:
            self._confirmed_at = started
        self.see(body, asked_at=asked_at)

    async def leave(self, respite: int = 0) -> None:
        """
        Remove our own record, so that peers need not wait until its lifetime ends.

        Args:
            respite: how long peers must still wait, because handlers are running (in seconds).
        """
        if not self._present or (self._expiry is None and not self._unsure):
            return
        try:
            record = self._make_peer(respite).as_record() if respite else None
            body = await self._touch({self._identity: record}, backoffs=LEAVE_BACKOFFS)
        except (errors.APIError, LoginError, TimeoutError) as error:
            logger.warning(
                "The operator's record could not be removed from the peering %s; other operators wait until its "
                "lifetime ends: %s",
                self._place,
                str(error) or repr(error),
            )
        else:
            self._log_keepalive('not found' if body is None else 'shortened' if respite else 'removed')

    async def _touch(
        self,
        records: Mapping[str, Mapping[str, Any] | None],
        *,
        version: str | None = None,
        backoffs: Sequence[float] = (),
    ) -> Mapping[str, Any] | None:
        # Do not use the usual retries: they can take longer than the lifetime of the record.
        async with asyncio.timeout(REQUEST_TIMEOUT):
            return await touch(
                self._client, self._resource, self._namespace, self.name, records, version=version, backoffs=backoffs
            )

    def _log_keepalive(self, outcome: str) -> None:
        if not self._settings.peering.stealth:
            logger.debug("Keep-alive in %s: %s.", self._place, outcome)
