"""
Limits of requests to one server: in flight, per second, and during the pauses that the server requests.

All requests to a server pass one `Gate`. When the server responds with 429, it is overloaded, so all requests wait, not
only the refused one. Two kinds of responses do not delay other requests: 429 about one resource, such as a new CRD, or
Events (see `errors.APITooManyRequestsError.is_partial`), and 503, which usually comes from the server of one API group.

Queued requests about live changes go first. Requests about objects that existed before the operator started, and
requests that only report (see `background`), get a fixed share of the turns.

Some requests are exempt from all this (see `exempted`), so that other requests never hold them up.

While one resource is slow, e.g. because a webhook hangs, requests about other resources go on: a request that is not
answered in time (`SLOWNESS`) leaves its slot to them, but not to others about the same resource.

Reports, i.e. Events, wait with all others, but take none of their slots, however slow they are: they have a few places
of their own (see `Gate.enter_report`).
"""

import asyncio
import contextvars
import logging
from collections.abc import Callable

from kopf._cogs.aiokits.priority_queues import FairPriorityQueue
from kopf._cogs.clients import errors
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.instruments import locate_plural

logger = logging.getLogger(__name__)

DEFAULT_HOLD = 1.0
"""The delay (in seconds) if the server does not specify it: the usual one of Kubernetes servers."""

MIN_PAUSE = 0.001
"""The shortest delay (in seconds): with less than the resolution of timers (milliseconds), the loop would be busy."""


SLOWNESS = 1.0
"""The time after which a request in flight leaves its slot to requests about other resources (in seconds)."""

MAX_SLOW = 3
"""How many requests can have left their slots, for each slot: if everything is slow, the server has too many."""

REPORTS_LIMIT = 8
"""How many reports are in flight at once, unless `settings.posting.worker_limit` says it."""

REPORT_TIMEOUT = 10.0
"""How long a report waits for a place, and then for its response, until it fails (in seconds)."""


class Pressure:
    """
    The number of background requests of one origin that are queued at all gates.

    Args:
        relieved: called each time when one of them leaves the queue.
    """

    __slots__ = ('_relieved', 'size')

    def __init__(self, relieved: Callable[[], None]) -> None:
        self._relieved = relieved
        self.size = 0

    def leave(self) -> None:
        """Decrease the number, and call the callback."""
        self.size -= 1
        self._relieved()


_UNGROUPED = Pressure(lambda: None)

_pressure: contextvars.ContextVar[Pressure | None] = contextvars.ContextVar('_pressure', default=None)


class background:
    """A context manager: if ``yielding``, all other requests go before the requests in its block."""

    __slots__ = ('_pressure', '_token')

    def __init__(self, yielding: bool = True, pressure: Pressure = _UNGROUPED) -> None:
        self._pressure = pressure if yielding else None

    def __enter__(self) -> None:
        self._token = _pressure.set(self._pressure)

    def __exit__(self, *_: object) -> None:
        _pressure.reset(self._token)


_exempt: contextvars.ContextVar[bool] = contextvars.ContextVar('_exempt', default=False)


class exempted:
    """
    A context manager: if ``active``, the requests in its block do not wait at any gate.

    These are the renewals of Leases and of records in peerings: if they waited for slow patches of objects, or because
    the server protects itself from these, the operator would lose its Lease, or would seem to be gone. (The server has
    a priority level for them.) And requests of the handlers of webhooks: they must not wait for the slots of patches
    that wait for the webhook.

    The block should have nothing but these requests, because the tasks that it starts are exempt, too.
    """

    __slots__ = ('_active', '_token')

    def __init__(self, active: bool = True) -> None:
        self._active = active

    def __enter__(self) -> None:
        self._token = _exempt.set(self._active)

    def __exit__(self, *_: object) -> None:
        _exempt.reset(self._token)


class Slot:
    """
    The place of one request among those in flight.

    Args:
        query: the path of the request, with or without its parameters.
    """

    __slots__ = ('future', 'kind', 'query', 'since', 'urgent', 'waited')

    is_report = False
    """Whether the request only reports, so that it takes no slot of others."""

    def __init__(self, query: str) -> None:
        self.query = query
        self.kind = ''
        """The path of the resource, if the request has to wait, or if any resource is slow."""
        self.future: asyncio.Future[None]
        """Done when the request is admitted; only of requests that have to wait."""
        self.urgent = True
        """Whether the request goes before others that wait."""
        self.since = 0.0
        """When the request was admitted (by the clock of the event loop)."""
        self.waited = False
        """Whether the request had to wait."""


class _ReportSlot(Slot):
    __slots__ = ('places',)

    is_report = True

    def __init__(self, query: str) -> None:
        super().__init__(query)
        self.places: asyncio.Semaphore | None = None  # where it has a place


def get_resource_path(query: str) -> str:
    """Return the beginning of the path of a request by which the resource is known: its group, version and plural."""
    parts = query.partition('?')[0].split('/')
    start, plural = locate_plural(parts)
    return '/'.join([*parts[:start], *parts[plural : plural + 1]])


_Queue = FairPriorityQueue[Slot, None]


class Gate:
    """The limits of requests to one server; all methods are for the event loop only."""

    __slots__ = (
        '_blocked',
        '_closing',
        '_held_until',
        '_in_flight',
        '_loop',
        '_reported_at',
        '_reports',
        '_server',
        '_settings',
        '_slow',
        '_timer',
        '_tokens',
        '_updated',
        '_waiting',
    )

    def __init__(self, server: str, settings: OperatorSettings) -> None:
        self._server = server
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        # Why not a set? The dict keeps their order, so the oldest ones are found at once.
        self._in_flight: dict[Slot, None] = {}
        self._slow: dict[str, set[Slot]] = {}  # those in flight that have left their slots, by their resources
        self._reports: asyncio.Semaphore | None = None  # the places of reports
        self._reported_at = -REPORT_TIMEOUT  # when the last report was answered in time
        self._waiting: _Queue = FairPriorityQueue()
        self._blocked: dict[str, _Queue] = {}  # those that wait until requests about the same slow resource end
        self._tokens = float(settings.networking.requests_burst)
        self._updated = self._loop.time()
        self._held_until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._closing: asyncio.Future[None] = self._loop.create_future()

    async def enter(self, query: str, slot: Slot | None = None) -> Slot:
        """
        Wait until a request can be made; return its slot, to be given back to `leave`.

        Args:
            query: the path of the request, with or without its parameters.
            slot: the slot to use, instead of a new one.

        Raises:
            errors.APIConnectionError: if the gate is closed, before or meanwhile.
        """
        self._check_open()
        slot = Slot(query) if slot is None else slot
        # Queued requests go first, even if a slot is free at this moment.
        if not self._waiting and not self._slow and len(self._in_flight) < self._limit and self._delay() <= 0:
            self._take(slot)
            return slot
        if _exempt.get():
            # Without a right to make a request, others must not wait for longer.
            self._tokens -= min(1, max(0, self._tokens))
            return slot
        pressure = _pressure.get()
        slot.future, slot.waited, slot.urgent = self._loop.create_future(), True, pressure is None
        slot.kind = get_resource_path(query)
        self._waiting.push(slot, None, urgent=slot.urgent)
        # Without requests in flight, nothing else would wake up the queue: admit this request now, or set a timer.
        self._start_queued()
        if pressure is not None:
            pressure.size += 1
        try:
            await slot.future
        except asyncio.CancelledError:
            if not slot.future.done() or slot.future.cancelled():
                self._discard(slot)
            elif slot.future.exception() is None:
                self.leave(slot)  # the request was admitted and cancelled at the same moment
            raise
        finally:
            if pressure is not None:
                pressure.leave()
        return slot

    async def enter_report(self, query: str) -> Slot:
        """
        Wait until a report can be made; return its slot, to be given back to `leave`.

        Args:
            query: the path of the request, with or without its parameters.

        Raises:
            errors.APITimeoutError: if former reports take too long.
            errors.APIConnectionError: if the gate is closed, before or meanwhile.
        """
        slot = _ReportSlot(query)
        await self.enter(query, slot)
        if self._reports is None:
            self._reports = asyncio.Semaphore(self._settings.posting.worker_limit or REPORTS_LIMIT)
        slot.waited = slot.waited or self._reports.locked()
        while slot.places is None:
            try:
                async with asyncio.timeout(REPORT_TIMEOUT):
                    await self._reports.acquire()
                slot.places, slot.since = self._reports, self._loop.time()
            except TimeoutError:
                # Many reports can wait for a server that is slow, but not stuck.
                if self._loop.time() >= self._reported_at + REPORT_TIMEOUT:
                    text = f"Former requests about {get_resource_path(query)} are not answered in time."
                    raise errors.APITimeoutError(text) from None
        if self._closing.done():
            self.leave(slot)
            raise self._make_error()
        return slot

    def leave(self, slot: Slot) -> None:
        """Release the slot of a finished request, and admit queued requests."""
        # `leave` releases a slot and lets the next request take it without an `await` in between, so no lock is needed.
        if slot in self._in_flight:
            del self._in_flight[slot]
            if self._slow:
                self._unblock(slot.kind)
        elif isinstance(slot, _ReportSlot):
            if slot.places is not None:
                if self._loop.time() < slot.since + REPORT_TIMEOUT:
                    self._reported_at = self._loop.time()
                slot.places.release()
        elif slot in self._slow.get(slot.kind, ()):
            self._slow[slot.kind].remove(slot)
            if not self._slow[slot.kind]:
                del self._slow[slot.kind]
            self._unblock(slot.kind)
        if self._waiting:
            self._start_queued()

    async def pass_by(self, query: str) -> Slot:
        """
        Wait until a stream can be opened. Streams do not count as requests in flight, so `leave` does nothing for them.

        Args:
            query: the path of the request, with or without its parameters.

        Raises:
            errors.APIConnectionError: if the gate is closed, before or meanwhile.
        """
        self._check_open()
        slot, delay = Slot(query), self._delay()
        self._tokens -= 1  # now: otherwise, queued requests would take all tokens while this stream waits
        try:
            # In later rounds, the token is already taken, so only another hold can prolong the wait.
            while delay > 0:
                await asyncio.wait({self._closing}, timeout=delay)
                self._check_open()
                slot.waited, delay = True, self._held_until - self._loop.time()
        except asyncio.CancelledError:
            self._tokens += 1
            raise
        return slot

    def hold(self, seconds: float | None) -> None:
        """Hold all requests for the time (in seconds) that the server has requested."""
        seconds = DEFAULT_HOLD if seconds is None else seconds
        now = self._loop.time()
        # Log it only once, although each request in flight can get its own 429.
        if self._held_until <= now < now + seconds:
            logger.warning(
                "The server %s has too many requests, and asks to wait for %g seconds; so all requests to it wait.",
                self._server,
                seconds,
            )
        self._held_until = max(self._held_until, now + seconds)

    def close(self) -> None:
        """Refuse all further requests and the queued ones, and cancel the timer."""
        if not self._closing.done():
            self._closing.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for queue in (self._waiting, *self._blocked.values()):
            while queue:
                slot, _ = queue.pop()
                if not slot.future.done():
                    slot.future.set_exception(self._make_error())

    def _check_open(self) -> None:
        if self._closing.done():
            raise self._make_error()

    def _make_error(self) -> errors.APIConnectionError:
        return errors.APIConnectionError(f"The client of the server {self._server} is closed.")

    @property
    def _limit(self) -> int:
        return max(1, self._settings.networking.max_connections)

    def _take(self, slot: Slot) -> None:
        self._tokens -= 1
        if not slot.is_report:
            slot.since = self._loop.time()
            self._in_flight[slot] = None

    def _delay(self) -> float:
        """Return how long the gate stays closed (in seconds)."""
        now = self._loop.time()
        networking = self._settings.networking
        rate, burst = networking.requests_per_second, max(1, networking.requests_burst)
        if not rate:
            # Without a limit, keep the bucket full, in case that a limit is set later.
            self._tokens = float(burst)
            return self._held_until - now
        self._tokens = min(burst, self._tokens + (now - self._updated) * rate)
        self._updated = now
        return max(self._held_until - now, (1 - self._tokens) / rate)

    def _start_queued(self) -> None:
        """Start as many queued requests as the limits permit; set a timer for the others."""
        while self._waiting:
            delay = self._free_slot() or self._delay()
            if delay > 0:
                self._look_later(max(delay, MIN_PAUSE))
                return
            slot, _ = self._waiting.pop()
            if slot.future.done():  # requests that were just cancelled are still in the queue
                continue
            if self._slow and self._is_saturated(slot.kind):
                self._blocked.setdefault(slot.kind, FairPriorityQueue()).push(slot, None, urgent=slot.urgent)
            else:
                self._take(slot)
                slot.future.set_result(None)

    def _free_slot(self) -> float:
        """Let slow requests leave their slots; return when the next one may (in seconds); zero if a slot is free."""
        while len(self._in_flight) >= self._limit:
            oldest = next(iter(self._in_flight))
            delay = oldest.since + SLOWNESS - self._loop.time()
            if delay >= 0:
                return max(delay, MIN_PAUSE)
            if sum(map(len, self._slow.values())) >= MAX_SLOW * self._limit:
                return SLOWNESS
            if not self._slow:
                for slot in self._in_flight:
                    slot.kind = slot.kind or get_resource_path(slot.query)
            del self._in_flight[oldest]
            self._slow.setdefault(oldest.kind, set()).add(oldest)
        return 0

    def _is_saturated(self, kind: str) -> bool:
        """Check whether requests about this slow resource are as many as may be in flight altogether."""
        slow = self._slow.get(kind)
        return slow is not None and len(slow) + sum(each.kind == kind for each in self._in_flight) >= self._limit

    def _unblock(self, kind: str) -> None:
        """Queue the next request about this resource again; all of them if the resource is not slow any more."""
        blocked = self._blocked.get(kind)
        if blocked is None:
            return
        found: list[Slot] = []
        while blocked and not (found and kind in self._slow):
            slot, _ = blocked.pop()
            if not slot.future.done():  # those that were just cancelled would free the place for no one
                found.append(slot)
        for slot in reversed(found):
            self._waiting.put_back(slot, None, urgent=slot.urgent)
        if not blocked:
            del self._blocked[kind]

    def _discard(self, slot: Slot) -> None:
        """Remove a cancelled request from its queue."""
        if not self._waiting.discard(slot) and (blocked := self._blocked.get(slot.kind)) is not None:
            blocked.discard(slot)
            if not blocked:
                del self._blocked[slot.kind]

    def _look_later(self, delay: float) -> None:
        at = self._loop.time() + delay
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        self._start_queued()
