"""
Posting of Kubernetes Events: those that handlers post explicitly, and log messages about objects.

Handlers never wait for an Event: they put it into the queue of its object and continue. The Events of one object are
posted one by one, in their order; different objects do not wait for each other's retries. Objects without Events have
no queues and no tasks. Floods of Events are dropped: see `correlation`. So are Events that the API server does not take
in time, as when their own etcd is down: they never hold up the handling.

The poster of the operator is in a context variable, so that several operators can run in one process. Threads of sync
handlers inherit it. Threads that handlers start by themselves do not, so nothing is posted from there.
"""

import asyncio
import collections
import contextvars
import logging
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from kopf._cogs.aiokits.loops import end
from kopf._cogs.helpers.explanations import quote_error
from kopf._cogs.structs import bodies
from kopf._core.actions import loggers
from kopf._core.actions.execution import Handler, handler_var
from kopf._core.engines.correlation import Correlator, EventSeries

if TYPE_CHECKING:
    from kopf._cogs.clients import api, events
    from kopf._cogs.configs import configuration

_DEFAULT_LIMIT = 8
"""
The number of objects for which Events are posted at once, unless the settings limit it.

The limit is low, as Events are the least important requests; but it is enough for thousands of them a second.
"""

_SLOW_AFTER = 1.0
"""After this time (in seconds), a slow request, usually one with retries, does not count for the limit any more."""

_MAX_WAIT = 60.0
"""How long an object waits for its turn, until its Events are dropped (in seconds), so that they fill no memory."""

_TELLING_INTERVAL = 60.0
"""The shortest time between two warnings about dropped Events (in seconds)."""

_POSTING_DELAY = 0.1
"""The delay of a new Event (in seconds), so that the patch of the same handler is sent before it."""

_MAX_REASON = 128
"""The longest reason of an event that the API accepts."""

_EXIT_TIMEOUT = 2.0
"""How long the exiting operator waits for the remaining Events (in seconds)."""

_LEVELS = {'Normal': logging.INFO, 'Warning': logging.WARNING, 'Error': logging.ERROR}
"""The levels of the conventional types, compared with `settings.posting.level`. Other types have no level."""

logger = logging.getLogger(__name__)
"""Why not the logger of objects? It would post the failure to post an Event as yet another Event."""

poster_var: contextvars.ContextVar['Poster'] = contextvars.ContextVar('poster_var')
"""The poster of the operator that runs the current code."""

event_queue_var: contextvars.ContextVar[Any] = contextvars.ContextVar('event_queue_var')
"""The target of `event`: the poster, or a queue that the user's code has set, as unit tests of operators do."""


class K8sEvent(NamedTuple):
    """An Event to be posted about an object."""

    ref: bodies.ObjectReference
    type: str
    reason: str
    message: str
    backoffs: float | Iterable[float]


class Poster:
    """
    The queues of all Events of one operator that are not posted yet, and the tasks that post them.

    It works inside of its context (``async with``), and all tasks started there find it in `poster_var`.
    At exit from the context, the remaining Events have a short time to be posted, and are then dropped.

    Args:
        client: the API client of the operator.
        settings: the settings of the operator, mostly ``settings.posting``.
    """

    def __init__(self, client: 'api.ApiClient', settings: 'configuration.OperatorSettings') -> None:
        self._client = client
        self._settings = settings
        self._writer: events.EventWriter | None = None
        self._correlator: Correlator[K8sEvent] = Correlator()
        # An object with Events waits for a slot (in ready), has a slot (in serving), or posts slowly (in neither).
        self._queues: dict[tuple[object, ...], collections.deque[EventSeries[K8sEvent]]] = {}
        self._ready: collections.deque[tuple[float, tuple[object, ...]]] = collections.deque()  # since when, and which
        self._serving: set[tuple[object, ...]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pending: asyncio.TimerHandle | None = None
        self._overdue = 0  # the number of Events that were dropped as the API server has not taken them in time
        self._told_at: float | None = None  # when it was logged
        self._closed = True

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        # Why not at the top? This module is imported with the package, the client only by running operators.
        from kopf._cogs.clients.api import unfenced_var

        self._context = contextvars.copy_context()
        # Standby replicas post Events, too: those of their webhooks.
        self._context.run(unfenced_var.set, True)
        self._token = poster_var.set(self)
        self._queue_token = event_queue_var.set(self)
        self._closed = False
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        poster_var.reset(self._token)
        event_queue_var.reset(self._queue_token)
        try:
            # Events posted from threads are not in the queues yet: their callbacks run in the next cycle of the loop.
            await asyncio.sleep(0)
            if self._pending is not None:
                self._pending.cancel()
            self._dispatch()
            deadline = self._loop.time() + _EXIT_TIMEOUT
            while self._tasks and (timeout := deadline - self._loop.time()) > 0:
                await asyncio.wait(self._tasks, timeout=timeout)
        finally:
            self._closed = True
            if self._tasks:
                left = len(self._tasks) + self.qsize()
                logger.warning(
                    "Exiting without posting %d event(s): the API server has not accepted them in time.", left
                )
                await end(list(self._tasks), timeout=_EXIT_TIMEOUT, what="The posting of events")

    @property
    def settings(self) -> 'configuration.OperatorSettings':
        """The settings of the operator that posts."""
        return self._settings

    @property
    def dropped(self) -> int:
        """
        The number of Events that were not posted.

        There were too many for their objects, or the API server did not take them in time.
        """
        return self._correlator.dropped + self._overdue

    def qsize(self) -> int:
        """
        Return how many Events wait to be posted. Can be called from any thread.

        The name is that of a queue's method: in upstream kopf, `event_queue_var` has a queue, and operators report
        its size.
        """
        return sum(map(len, tuple(self._queues.values())))

    def post(self, event: K8sEvent) -> None:
        """
        Put an Event into the queue to be posted soon. Can be called from any thread.

        Events about Events are dropped: a handler of Events that posts Events would call itself endlessly.
        """
        if _is_event(event.ref):
            return
        # `call_soon_threadsafe` is avoided where possible: it would wake up the selector for each Event.
        if threading.get_ident() == self._thread:
            self._put(event)
            return
        try:
            self._loop.call_soon_threadsafe(self._put, event)
        except RuntimeError:
            logger.debug("The operator has ended, the event is not posted: %r", event)

    def _put(self, event: K8sEvent) -> None:
        """Add the Event to the queue of its object, unless it is only counted or dropped."""
        if self._closed:
            logger.debug("The operator has ended, the event is not posted: %r", event)
            return
        # The uid is included: Events of a deleted object are not counted together with those of a new object of the
        # same name.
        key = tuple(event.ref.get(name) for name in ('apiVersion', 'kind', 'namespace', 'name', 'uid'))
        message = self._correlator.combine((key, event.type, event.reason), str(event.message))
        is_combined = message != event.message
        series = self._correlator.observe(
            key, (key, event.type, event.reason, None if is_combined else message), event._replace(message=message)
        )
        if series is None:
            logger.debug(
                "Too many events about %s, the event is not posted (the %d. one so far): %s %s: %s",
                '/'.join(str(part) for part in key[1:4] if part),
                self.dropped,
                event.type,
                event.reason,
                event.message,
            )
            return
        if series.waiting:
            # The series is in the queue already. It will be posted with the newest message and the total count.
            return
        series.wait()
        if (queue := self._queues.get(key)) is not None:
            queue.append(series)
        else:
            self._queues[key] = collections.deque([series])
            self._ready.append((self._loop.time(), key))
            if self._pending is None:
                self._pending = self._loop.call_later(_POSTING_DELAY, self._dispatch)

    def _dispatch(self) -> None:
        self._pending = None
        limit = self._settings.posting.worker_limit or _DEFAULT_LIMIT
        while self._ready and len(self._serving) < limit and not self._closed:
            since, key = self._ready.popleft()
            if self._loop.time() - since > _MAX_WAIT:
                for series in self._queues.pop(key):
                    self._drop(series.take())
                continue
            self._serving.add(key)
            # Run in the operator's context: the current context belongs to the handler, with all its variables.
            task = self._context.run(self._loop.create_task, self._serve(key))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, key: tuple[object, ...]) -> None:
        """Post one Event of the object. If there are more of them, the object waits for its next turn."""
        queue = self._queues[key]
        # A slow request continues, but its slot becomes free: a few objects with failing Events must not block all
        # others.
        timer = self._loop.call_later(_SLOW_AFTER, self._vacate, key)
        try:
            # One Event in each turn: an object with many Events must not delay the first Event of others.
            await self._post(queue.popleft())
        finally:
            timer.cancel()
            if queue:
                self._ready.append((self._loop.time(), key))
            else:
                del self._queues[key]
            self._vacate(key)

    def _vacate(self, key: tuple[object, ...]) -> None:
        """Free the slot of the object for other objects: its Event is posted, or is slow."""
        self._serving.discard(key)
        self._dispatch()

    def _drop(self, event: K8sEvent) -> None:
        """Count an Event that the API server has not taken in time; log a warning from time to time."""
        self._overdue += 1
        now = self._loop.time()
        if self._told_at is None or now - self._told_at >= _TELLING_INTERVAL:
            self._told_at = now
            logger.warning(
                "The API server does not accept all events in time, so some are lost: %d by now. The handling of the "
                "objects goes on.",
                self._overdue,
            )
        logger.debug("The event is lost, as it could not be posted in time: %r", event)

    async def _post(self, series: EventSeries[K8sEvent]) -> None:
        """Create the Event in the cluster, or update it if the series has one already."""
        # Imported with the first Event: many operators never post any.
        from kopf._cogs.clients import errors, events

        if self._writer is None:
            self._writer = events.EventWriter(self._client, self._settings)
        event = series.take()
        try:
            if series.name is not None and await self._writer.update(
                event.ref, series.name, count=series.count, message=event.message, backoffs=event.backoffs
            ):
                self._tell(event, series.count)
                return
            posted = await self._writer.create(
                event.ref,
                type=event.type,
                reason=event.reason,
                message=event.message,
                count=series.count,
                first=series.first,
                backoffs=event.backoffs,
            )
            if posted is not None:
                series.keep(posted.name, posted.first)
                self._tell(event, series.count)
        except errors.APITimeoutError:
            self._drop(event)
        except Exception:
            # The error is only logged, because the operator can work without its Events.
            logger.exception("Failed to post an event: %r", event)

    def _tell(self, event: K8sEvent, count: int) -> None:
        """Report the posted Event to the instruments."""
        instruments = self._client.instruments
        if instruments.events:
            # Imported here: this module is imported with the package, and few operators have such instruments.
            from kopf._cogs.structs.instruments import ObjectEvent

            posted = ObjectEvent(event.ref, event.type, event.reason, event.message, count)
            instruments.tell(instruments.events, 'event_posted', posted)


class K8sPoster(logging.Handler):
    """A log handler that posts the records about objects as Events, according to ``settings.posting``."""

    def handle(self, record: logging.LogRecord) -> Any:
        # Checked before the locks and filters of the base class: most records are not posted, and must cost little.
        return self._find_poster(record) is not None and super().handle(record)

    def _find_poster(self, record: logging.LogRecord) -> Poster | None:
        poster = poster_var.get(None)
        if poster is None or getattr(record, 'k8s_skip', False) or getattr(record, 'k8s_ref', None) is None:
            return None
        posting = poster._settings.posting
        return poster if posting.enabled and posting.loggers and record.levelno >= posting.level else None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            poster = self._find_poster(record)
            if poster is not None:
                # The poster is looked up again, because the base class passes nothing from `handle` to `emit`.
                posting = poster.settings.posting
                poster.post(
                    K8sEvent(
                        ref=bodies.shorten_reference(record.k8s_ref),  # type: ignore[attr-defined]
                        type=_get_type(record.levelno),
                        reason=_find_reason(record) if posting.handler_reasons else 'Logging',
                        message=self.format(record),
                        backoffs=posting.logging_backoffs,
                    )
                )
        except Exception:
            if loggers.explain_bad_message(record) is None:  # otherwise, the handler of the log stream reports it
                self.handleError(record)


def _find_reason(record: logging.LogRecord) -> str:
    """Return the id of the handler that has logged the record, or that the record is about."""
    about = record.args if isinstance(record.args, tuple) else ()
    handler = next((each for each in about if isinstance(each, Handler)), handler_var.get(None))
    return 'Logging' if handler is None else handler.id[:_MAX_REASON]


loggers.objects_logger.addHandler(K8sPoster())


def event(
    objs: bodies.Body | Iterable[bodies.Body],
    *,
    type: str,
    reason: str,
    message: str = '',
    backoffs: float | Iterable[float] | None = None,
) -> None:
    """
    Post a Kubernetes Event about one or several objects. Can be called in handlers of all kinds.

    The function does not wait until the Event is posted; a failure to post it is only logged.
    Nothing is posted outside of a running operator, or for objects that are Events themselves.

    Args:
        objs: the object or objects that the Event is about: bodies from handlers or from other clients.
        type: the type, such as ``Normal``, ``Warning``, ``Error`` (these obey ``settings.posting.level``) or any other.
        reason: the reason: a word in camel case.
        message: an arbitrary text, which is shortened if it is longer than Kubernetes permits (1024 characters).
        backoffs: the delays (seconds) between attempts if the API fails, one or many;
            ``settings.posting.default_backoffs`` by default.
    """
    poster = event_queue_var.get(None)
    if poster is None:
        logger.debug("Not in an operator, the event is not posted: %s %s %s", type, reason, message)
        return
    if not isinstance(poster, Poster):
        # A queue that the user's tests have put into the variable: as in upstream kopf, all Events go there.
        for obj in _iterate(objs):
            poster.put_nowait(K8sEvent(bodies.build_object_reference(obj), type, reason, message, backoffs or ()))
        return
    posting = poster.settings.posting
    level = _LEVELS.get(type)
    if posting.enabled and (level is None or level >= posting.level):
        backoffs = posting.default_backoffs if backoffs is None else backoffs
        for obj in _iterate(objs):
            poster.post(K8sEvent(bodies.build_object_reference(obj), type, reason, message, backoffs))


def info(
    objs: bodies.Body | Iterable[bodies.Body],
    *,
    reason: str,
    message: str = '',
    backoffs: float | Iterable[float] | None = None,
) -> None:
    """Post an Event of the type ``Normal``. See `event` for the arguments."""
    event(objs, type='Normal', reason=reason, message=message, backoffs=backoffs)


def warn(
    objs: bodies.Body | Iterable[bodies.Body],
    *,
    reason: str,
    message: str = '',
    backoffs: float | Iterable[float] | None = None,
) -> None:
    """Post an Event of the type ``Warning``. See `event` for the arguments."""
    event(objs, type='Warning', reason=reason, message=message, backoffs=backoffs)


def exception(
    objs: bodies.Body | Iterable[bodies.Body],
    *,
    reason: str = '',
    message: str = '',
    exc: BaseException | None = None,
    backoffs: float | Iterable[float] | None = None,
) -> None:
    """
    Post an Event of the type ``Error`` with the text of an exception after the message.

    By default, the exception is the one that is being handled at the moment, if any, and the reason is its class.
    See `event` for the other arguments.
    """
    exc = exc if exc is not None else sys.exc_info()[1]
    reason = reason or ('Exception' if exc is None else exc.__class__.__name__)  # the API demands a reason
    if exc is not None:
        # The reason is the type, unless another one is given.
        text = str(exc) if reason == type(exc).__name__ else quote_error(exc)
        message = ' '.join(filter(None, [message, text]))
    event(objs, type='Error', reason=reason, message=message, backoffs=backoffs)


def _iterate(objs: bodies.Body | Iterable[bodies.Body]) -> Iterator[bodies.Body]:
    # Any mappings are accepted, not only the bodies of handlers: other clients return plain dicts.
    objects: Any = objs
    if isinstance(objects, Mapping | str) or not isinstance(objects, Iterable):
        objects = [objs]
    for obj in objects:
        if not isinstance(obj, Mapping):
            raise TypeError(f"Events are posted about bodies of objects, got {obj!r}. Use the argument body.")
        yield obj  # type: ignore[misc]


def _is_event(ref: bodies.ObjectReference) -> bool:
    group = ref.get('apiVersion', 'v1').rpartition('/')[0]
    return ref.get('kind') == 'Event' and group in ('', 'events.k8s.io')


def _get_type(level: int) -> str:
    if level <= logging.DEBUG:
        return 'Debug'
    if level <= logging.INFO:
        return 'Normal'
    if level <= logging.WARNING:
        return 'Warning'
    if level <= logging.ERROR:
        return 'Error'
    return 'Fatal'
