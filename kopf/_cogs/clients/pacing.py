"""
Limits of requests to one server: in flight, per second, and during the pauses that the server requests.

All requests to a server pass one `Gate`. When the server responds with 429, it is overloaded, so all requests wait, not
only the refused one. Two kinds of responses do not delay other requests: 429 about one resource, such as a new CRD, or
Events (see `errors.APITooManyRequestsError.is_partial`), and 503, which usually comes from the server of one API group.

Queued requests about live changes go first. Requests about objects that existed before the operator started, and
requests that only report (see `background`), get a fixed share of the turns.
"""

import asyncio
import contextvars
import logging
from collections.abc import Callable

from kopf._cogs.aiokits.priority_queues import FairPriorityQueue
from kopf._cogs.clients import errors
from kopf._cogs.configs.configuration import OperatorSettings

logger = logging.getLogger(__name__)

DEFAULT_HOLD = 1.0
"""The delay (in seconds) if the server does not specify it: the usual one of Kubernetes servers."""

MIN_PAUSE = 0.001
"""The shortest delay (in seconds): with less than the resolution of timers (milliseconds), the loop would be busy."""


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


class Gate:
    """The limits of requests to one server; all methods are for the event loop only."""

    __slots__ = (
        '_closing',
        '_count',
        '_held_until',
        '_loop',
        '_server',
        '_settings',
        '_timer',
        '_tokens',
        '_updated',
        '_waiting',
    )

    def __init__(self, server: str, settings: OperatorSettings) -> None:
        self._server = server
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._count = 0  # in flight
        self._waiting: FairPriorityQueue[asyncio.Future[None], None] = FairPriorityQueue()
        self._tokens = float(settings.networking.requests_burst)
        self._updated = self._loop.time()
        self._held_until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._closing: asyncio.Future[None] = self._loop.create_future()

    async def enter(self) -> bool:
        """
        Wait until a request can be made; return true if it had to wait. To be followed by `leave`.

        Raises:
            errors.APIConnectionError: if the gate is closed, before or meanwhile.
        """
        self._check_open()
        # Queued requests go first, even if a slot is free at this moment.
        if not self._waiting and self._count < self._limit and self._delay() <= 0:
            self._take()
            return False
        future, pressure = self._loop.create_future(), _pressure.get()
        self._waiting.push(future, None, urgent=pressure is None)
        # Without requests in flight, nothing else would wake up the queue: admit this request now, or set a timer.
        self._start_queued()
        if pressure is not None:
            pressure.size += 1
        try:
            await future
        except asyncio.CancelledError:
            if not future.done() or future.cancelled():
                self._waiting.discard(future)
            elif future.exception() is None:
                self.leave()  # the request was admitted and cancelled at the same moment
            raise
        finally:
            if pressure is not None:
                pressure.leave()
        return True

    def leave(self) -> None:
        """Release the slot of a finished request, and admit queued requests."""
        # `leave` releases a slot and lets the next request take it without an `await` in between, so no lock is needed.
        self._count -= 1
        if self._waiting:
            self._start_queued()

    async def pass_by(self) -> bool:
        """
        Wait until a stream can be opened; return true if it had to wait. Streams do not count as requests in flight.

        Raises:
            errors.APIConnectionError: if the gate is closed, before or meanwhile.
        """
        self._check_open()
        waited, delay = False, self._delay()
        self._tokens -= 1  # now: otherwise, queued requests would take all tokens while this stream waits
        try:
            # In later rounds, the token is already taken, so only another hold can prolong the wait.
            while delay > 0:
                await asyncio.wait({self._closing}, timeout=delay)
                self._check_open()
                waited, delay = True, self._held_until - self._loop.time()
        except asyncio.CancelledError:
            self._tokens += 1
            raise
        return waited

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
        while self._waiting:
            future, _ = self._waiting.pop()
            if not future.done():
                future.set_exception(self._make_error())

    def _check_open(self) -> None:
        if self._closing.done():
            raise self._make_error()

    def _make_error(self) -> errors.APIConnectionError:
        return errors.APIConnectionError(f"The client of the server {self._server} is closed.")

    @property
    def _limit(self) -> int:
        return max(1, self._settings.networking.max_connections)

    def _take(self) -> None:
        self._count += 1
        self._tokens -= 1

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
        while self._waiting and self._count < self._limit:
            if (delay := self._delay()) > 0:
                if self._timer is None:
                    self._timer = self._loop.call_later(max(delay, MIN_PAUSE), self._look_again)
                return
            future, _ = self._waiting.pop()
            if not future.done():  # requests that were just cancelled are still in the queue
                self._take()
                future.set_result(None)

    def _look_again(self) -> None:
        self._timer = None
        self._start_queued()
