"""
Instruments: the interface for metrics, traces, and other tools that observe a running operator.

An operator has one `Instruments`. Each place that reports something first checks whether an instrument listens there:
``if instruments.steps: ...``. This tuple is made when an instrument is added, so that an operator without instruments
pays only for one attribute and one test. Why not events, or loggers? Both would cost more when they are off, and could
not show which activity is a part of another one.

An activity that takes time is a `Span`. Both its beginning and its end are always reported, also with errors. Spans are
nested: step → handler → sub-handler → request. The current span is kept in a context variable, so that it is right in
threads and tasks, too. An instrument can set context variables of its own at a beginning and reset them at the end.

Traces are usually made for one step of a hundred. A `SamplingInstrument` decides that when the outermost span begins,
and is told nothing of spans that are not sampled. Why not leave it to its hooks? They would cost more than to decide.
"""

import asyncio
import inspect
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar, Token
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self

from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.references import Namespace, Resource

if TYPE_CHECKING:
    from kopf._cogs.structs.meters import Meters

logger = logging.getLogger(__name__)


class Instrument:
    """
    The base class of instruments: each overrides the methods that it needs.

    The methods are called in the event loop, so they must not block. They must not change their arguments, except for
    the attributes whose descriptions permit it. If a method raises an error, the error is logged and the instrument is
    removed: the operator continues without it.
    """

    def step_begins(self, step: 'ObjectStep') -> None:
        """Called when a worker takes the newest state of an object and begins to handle it."""

    def step_decides(self, step: 'ObjectStep') -> None:
        """Called when the reason and the due handlers of changes are decided. Not all steps reach this point."""

    def step_ends(self, step: 'ObjectStep') -> None:
        """Called when the handlers have run, and their patch was applied."""

    def handler_begins(self, call: 'HandlerCall') -> None:
        """Called before an attempt of a handler of any kind."""

    def handler_ends(self, call: 'HandlerCall') -> None:
        """Called after the attempt."""

    def request_begins(self, request: 'ApiRequest') -> None:
        """Called before an attempt of a request to the Kubernetes API; instruments can add ``headers``."""

    def request_ends(self, request: 'ApiRequest') -> None:
        """Called when the response has arrived or the attempt has failed; for a watch-stream, when it is open."""

    def watch_changes(self, change: 'WatchChange') -> None:
        """Called when the state of a watch has changed."""

    def object_queued(self, entry: 'QueueEntry') -> None:
        """Called when an object needs a worker."""

    def object_taken(self, entry: 'QueueEntry') -> None:
        """Called when a worker begins to handle the object, in one step or several."""

    def object_done(self, entry: 'QueueEntry') -> None:
        """Called when the worker has ended, or is not needed any more: once for each `object_queued`."""

    def object_requeued(self, entry: 'QueueEntry') -> None:
        """Called when the object is scheduled to be queued again after the ``delay``, unless an event comes before."""

    def event_posted(self, event: 'ObjectEvent') -> None:
        """Called when a Kubernetes Event about an object is created in the cluster, or is counted up there."""


class Unsampled(Protocol):
    """A trace that is not sampled: nothing of it is recorded, but its parts must know that."""

    @property
    def traceparent(self) -> str:
        """The trace in the format of the W3C, for requests and for later attempts of handlers."""

    @property
    def log_ids(self) -> Mapping[str, str]:
        """The attributes of the lines that are logged in it."""

    def enter(self) -> Any:
        """Make it the current trace for the code of a handler; return the token for `leave`."""

    def leave(self, token: Any) -> None:
        """Restore the previous trace."""


class SamplingInstrument(Instrument):
    """An instrument that observes only some of the outermost spans, with all their parts."""

    samples_early = False
    """Whether it decides at the beginning; otherwise, it observes all spans."""

    def skip(self, span: 'ObjectStep | HandlerCall', carried: str | None) -> Unsampled | None:
        """
        Decide whether to observe the outermost span.

        Args:
            span: the span that begins.
            carried: the text from `HandlerCall.carried` of the trace to continue; ``None`` for a new trace.

        Returns:
            The trace of the span if it is not sampled; ``None`` if the span is to be observed.
        """
        return None


Listeners = tuple[Instrument, ...]

_POINTS: Mapping[str, tuple[str, ...]] = {
    'steps': ('step_begins', 'step_decides', 'step_ends'),
    'handlers': ('handler_begins', 'handler_ends'),
    'requests': ('request_begins', 'request_ends'),
    'watches': ('watch_changes',),
    'queue': ('object_queued', 'object_taken', 'object_done', 'object_requeued'),
    'events': ('event_posted',),
}


class Instruments:
    """
    The instruments of one operator; for each point, the tuple of the instruments that listen there.

    For the queue, the steps, and the handlers, metrics use meters instead, because the facts for instruments would be
    too expensive there. The owners of these points call the meters directly.
    """

    __slots__ = ('_members', '_unsampled', 'meters', 'observes_handlers', 'sampler', 'skips_handlers', *_POINTS)

    steps: Listeners
    handlers: Listeners
    requests: Listeners
    watches: Listeners
    queue: Listeners
    events: Listeners

    def __init__(self, members: Iterable[Instrument] = ()) -> None:
        self._members: Listeners = ()
        self.meters: Meters | None = None
        """The meters, if there are metrics."""
        self.observes_handlers = False
        """Whether handlers are measured, or instruments listen to them: one test for both."""
        self.sampler: SamplingInstrument | None = None
        """The instrument that observes only some of the outermost spans, if there is one."""
        self.skips_handlers = False
        """Whether handlers need no spans in traces that are not sampled: only the sampler listens to them."""
        self._unsampled: dict[str, Listeners] = {}
        self._find_listeners()
        for member in members:
            self.add(member)

    def add(self, instrument: Instrument) -> None:
        """Add the instrument. It gets only the ends of the spans whose beginnings it has got."""
        if not isinstance(instrument, Instrument):
            raise TypeError(f"Instruments must be instances of kopf.Instrument, not {instrument!r}.")
        for hook in (hook for hooks in _POINTS.values() for hook in hooks):
            if inspect.iscoroutinefunction(getattr(instrument, hook)):
                raise TypeError(f"{type(instrument).__name__}.{hook} must be a plain function, not a coroutine.")
        if instrument not in self._members:
            self._members += (instrument,)
            self._find_listeners()

    def remove(self, instrument: Instrument) -> None:
        """Remove the instrument: its hooks are not called any more."""
        self._members = tuple(member for member in self._members if member is not instrument)
        self._find_listeners()

    def measure(self, meters: 'Meters') -> None:
        """Use these meters for all activities that begin from now on."""
        self.meters = meters
        self._find_listeners()

    def _find_listeners(self) -> None:
        for point, hooks in _POINTS.items():
            setattr(self, point, tuple(member for member in self._members if _overrides(member, hooks)))
        self.observes_handlers = bool(self.handlers) or self.meters is not None
        samplers = [member for member in self._members if isinstance(member, SamplingInstrument)]
        self.sampler = samplers[0] if len(samplers) == 1 and samplers[0].samples_early else None
        for point in _POINTS:
            self._unsampled[point] = tuple(each for each in getattr(self, point) if each is not self.sampler)
        self.skips_handlers = self.sampler is not None and not self._unsampled['handlers']

    def get_listeners(self, point: str, unsampled: Unsampled | None) -> Listeners:
        """Return the instruments that listen at the point to spans of such a trace."""
        listeners: Listeners = getattr(self, point) if unsampled is None else self._unsampled[point]
        return listeners

    def skip(self, span: 'ObjectStep | HandlerCall', carried: str | None) -> Unsampled | None:
        """Return the trace of the outermost span if it is not sampled; see `SamplingInstrument.skip`."""
        sampler = self.sampler
        if sampler is None:
            return None
        try:
            return sampler.skip(span, carried)
        except Exception:
            self.remove(sampler)
            logger.exception("The instrument %r has failed in %s(), and is removed.", sampler, 'skip')
            return None

    def find_skipped(self) -> Unsampled | None:
        """Return the current trace if handlers in it need no spans, as it is not sampled."""
        if not self.skips_handlers:
            return None
        span = _current_var.get()
        return None if span is None or span.duration is not None else span.unsampled

    def tell(self, listeners: Listeners, hook: str, facts: object) -> None:
        """Call the hook of these instruments, except for removed ones; remove an instrument if its hook fails."""
        for instrument in listeners:
            if instrument in self._members:
                try:
                    getattr(instrument, hook)(facts)
                except Exception:
                    self.remove(instrument)
                    logger.exception("The instrument %r has failed in %s(), and is removed.", instrument, hook)


def _overrides(instrument: Instrument, hooks: Iterable[str]) -> bool:
    return any(getattr(type(instrument), hook) is not getattr(Instrument, hook) for hook in hooks)


NO_INSTRUMENTS = Instruments()
"""The default for objects that are created without an operator, e.g. in tools and tests. It always stays empty."""


class ObjectKey(NamedTuple):
    """The object that is handled. Its name and uid must not be labels of metrics: they have too many values."""

    resource: Resource
    namespace: Namespace
    name: str | None
    uid: str | None


class Span:
    """An activity that takes time: a context manager that reports its beginning and its end."""

    __slots__ = (
        '_instruments',
        '_listeners',
        '_token',
        'began',
        'duration',
        'exception',
        'outcome',
        'parent',
        'unsampled',
    )

    POINT: ClassVar[str]
    BEGINS: ClassVar[str]
    ENDS: ClassVar[str]

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self._listeners: Listeners = ()
        self._token: Token[Span | None] | None = None
        self.began = 0.0
        """On the monotonic clock (in seconds)."""
        self.duration: float | None = None
        """The duration (in seconds); ``None`` until the end."""
        self.outcome: str | None = None
        """The outcome in one word; ``None`` until the end. The possible words are listed in the subclasses."""
        self.exception: BaseException | None = None
        """The error, if it has failed; reset after the end is reported, as its traceback keeps all frames in memory."""
        self.parent: Span | None = None
        """The span that it is a part of."""
        self.unsampled: Unsampled | None = None
        """The trace, if it is not sampled."""

    def __enter__(self) -> Self:
        parent = _current_var.get()
        self.parent = parent if parent is not None and parent.duration is None else None
        self._token = _current_var.set(self)
        if self._instruments.sampler is not None:
            self.unsampled = self._find_unsampled()
        self._listeners = self._instruments.get_listeners(self.POINT, self.unsampled)
        self.began = time.monotonic()
        if self._listeners:
            self._instruments.tell(self._listeners, self.BEGINS, self)
        return self

    def _find_unsampled(self) -> Unsampled | None:
        return None if self.parent is None else self.parent.unsampled

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.duration = time.monotonic() - self.began
        if exc is not None:
            self.outcome = 'cancelled' if isinstance(exc, asyncio.CancelledError | GeneratorExit) else 'failed'
            self.exception = exc
        if self._listeners:
            self._instruments.tell(self._listeners, self.ENDS, self)
        self.exception = self.parent = None
        if self._token is not None:
            try:
                _current_var.reset(self._token)
            except ValueError:  # an abandoned generator is closed in another context than it was started in
                pass
            self._token = None


_current_var: ContextVar[Span | None] = ContextVar('_current_var', default=None)


def get_current_span() -> Span | None:
    """Return the innermost current span, e.g. for log lines; ``None`` if no instrument listens to any spans."""
    span = _current_var.get()
    return span if span is not None and span.duration is None else None


class ObjectStep(Span):
    """
    One step of handling an object: handlers of raw events, a decision, handlers of changes, one patch.

    Traces call it a cycle, and metrics a reconciliation. The outcomes: ``done``; ``delayed`` if the next step follows
    after the ``delay``; ``requeued`` if it follows at once; ``failed`` in the framework itself (not in a handler);
    ``cancelled``.
    """

    __slots__ = ('carried', 'delay', 'event', 'handlers', 'key', 'number', 'reason')

    POINT, BEGINS, ENDS = 'steps', 'step_begins', 'step_ends'

    def __init__(self, instruments: Instruments, key: ObjectKey, *, event: str | None, number: int) -> None:
        super().__init__(instruments)
        self.key = key
        self.event = event
        """The type of the handled event, ``LISTED`` if the object is from a list; ``None`` without an event."""
        self.number = number
        """The number of the step since the last event, beginning with 1."""
        self.reason: str | None = None
        """The reason of the change (``create``, ``update``, …, ``noop``); ``None`` until the decision."""
        self.handlers: tuple[HandlerId, ...] = ()
        """The handlers that are due; empty until the decision."""
        self.carried: str | None = None
        """The text that an instrument has put into `HandlerCall.carried` in an earlier step of the same change."""
        self.delay: float | None = None
        """The time until the next step (in seconds)."""

    def decide(self, reason: str, handlers: Iterable[HandlerId], carried: str | None) -> None:
        """Report the decision."""
        self.reason, self.handlers, self.carried = reason, tuple(handlers), carried
        if self.unsampled is not None and carried is not None:
            self._continue(carried)
        if self._listeners:
            self._instruments.tell(self._listeners, 'step_decides', self)

    def _find_unsampled(self) -> Unsampled | None:
        # Why not by the parent? The handler of another object can have started this worker.
        return self._instruments.skip(self, None)

    def _continue(self, carried: str) -> None:
        """Join the trace of the earlier steps, which is known only now; it can be sampled."""
        self.unsampled = self._instruments.skip(self, carried)
        sampler = self._instruments.sampler
        if self.unsampled is None and sampler is not None:
            self._listeners = self._instruments.steps
            self._instruments.tell((sampler,), self.BEGINS, self)

    def set_outcome(self, delay: float | None, *, requeued: bool) -> None:
        """Set the outcome, which is reported at the end."""
        self.delay = delay
        self.outcome = 'requeued' if requeued else 'done' if delay is None else 'delayed'


CARRYING = ('retried', 'waiting')
"""The outcomes of attempts after which another attempt continues the trace."""


class HandlerCall(Span):
    """
    One attempt of a handler of any kind.

    The outcomes: ``succeeded``; ``failed`` for good; ``retried`` after the ``delay``; ``waiting`` for its sub-handlers;
    ``ignored`` if it has failed, and its errors are ignored; ``cancelled``.
    """

    __slots__ = (
        '_entered',
        'carried',
        'cause',
        'concurrent',
        'delay',
        'fn',
        'frequent',
        'id',
        'key',
        'kind',
        'message',
        'reason',
        'retry',
    )

    POINT, BEGINS, ENDS = 'handlers', 'handler_begins', 'handler_ends'

    def __init__(
        self,
        instruments: Instruments,
        *,
        id: HandlerId,
        kind: str,
        fn: Callable[..., Any],
        cause: Any,
        retry: int,
        carried: str | None = None,
        frequent: bool = False,
        concurrent: bool = False,
    ) -> None:
        super().__init__(instruments)
        self.id = id
        self.kind = kind
        """The kind of the handler as in logs: ``Handler``, ``Daemon``, ``Timer``, ``Indexer``, ``Webhook``, …"""
        self.frequent = frequent
        """Whether handlers of this kind are called so often that their calls would displace others in short lists."""
        self.concurrent = concurrent
        """Whether handlers of this kind may be called several times at once for one object."""
        self.fn = fn
        self.cause = cause
        """The cause of the call, with all possible arguments of the function, such as the ``diff`` of a change."""
        self.reason: str | None = cause.occasion
        """The reason of the change, the type of the event, the operation of the review, or the activity."""
        self.key: ObjectKey | None = cause.key
        """The object; ``None`` for activities."""
        self.retry = retry
        """The number of attempts before this one."""
        self.carried = carried
        """
        A text that an instrument can leave for the next attempts of changes, e.g. for their trace.

        It is stored with the handler's progress, so it is available after a restart and in another process.
        """
        self.delay: float | None = None
        self.message: str | None = None
        """The text of the error."""
        self._entered: Any = None

    def __enter__(self) -> Self:
        super().__enter__()
        if self.unsampled is not None:
            self._entered = self.unsampled.enter()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.unsampled is not None:
            self.unsampled.leave(self._entered)
        super().__exit__(exc_type, exc, traceback)

    def _find_unsampled(self) -> Unsampled | None:
        return self._instruments.skip(self, self.carried) if self.parent is None else self.parent.unsampled

    def set_outcome(
        self,
        outcome: str,
        *,
        delay: float | None = None,
        message: str | None = None,
        exception: BaseException | None = None,
    ) -> None:
        """Set the outcome, which is reported at the end."""
        self.outcome, self.delay, self.message, self.exception = outcome, delay, message, exception
        if self.unsampled is not None and self.carried is None and self.key is not None and outcome in CARRYING:
            self.carried = self.unsampled.traceparent


class ApiRequest(Span):
    """
    One attempt of a request to the Kubernetes API: ``succeeded``, ``failed``, or ``cancelled``.

    It begins when it is sent, after the time in the queue (``waited``). Each attempt of a request is one instance.
    """

    __slots__ = ('attempt', 'headers', 'method', 'path', 'payload', 'server', 'status', 'streaming', 'waited')

    POINT, BEGINS, ENDS = 'requests', 'request_begins', 'request_ends'

    def __init__(
        self,
        instruments: Instruments,
        *,
        server: str,
        method: str,
        path: str,
        payload: bytes | None = None,
        attempt: int = 0,
        waited: float = 0.0,
        streaming: bool = False,
    ) -> None:
        super().__init__(instruments)
        self.server = server
        """The URL of the server."""
        self.method = method
        self.path = path
        """The path without the query; see `route` for metrics."""
        self.payload = payload
        self.attempt = attempt
        """The number of attempts before this one."""
        self.waited = waited
        """The time in the queue before it was sent (in seconds)."""
        self.streaming = streaming
        """Whether it opens a watch-stream."""
        self.headers: dict[str, str] = {}
        """More headers to send, such as ``traceparent``: instruments can add them in `Instrument.request_begins`."""
        self.status: int | None = None
        """The HTTP status; ``None`` if there is no answer."""

    def __enter__(self) -> Self:
        super().__enter__()
        if self.unsampled is not None:
            self.headers['traceparent'] = self.unsampled.traceparent
        return self

    def note_status(self, status: int) -> None:
        """Set the status of the response, and the outcome that follows from it."""
        self.status, self.outcome = status, 'succeeded' if status < 300 else 'failed'

    def get_headers(self) -> Mapping[str, str]:
        """Return the added headers, except for invalid ones."""
        return {
            name: value
            for name, value in self.headers.items()
            if name and f'{name}{value}'.isascii() and f'{name}{value}'.isprintable() and ':' not in name
        }

    @property
    def route(self) -> str:
        """The path without the names of objects: ``/api/v1/namespaces/{namespace}/pods/{name}``, for example."""
        return '/'.join(_replace_names(self.path.split('/')))

    @property
    def verb(self) -> str:
        """The verb as in RBAC rules: ``get``, ``list``, ``watch``, ``create``, ``patch``, and so on."""
        if self.streaming:
            return 'watch'
        parts = self.route.split('/')
        if '{name}' in parts or len(parts) <= _STARTS.get(parts[1], len(parts)):
            return _VERBS.get(self.method, self.method.lower())
        return _PLURAL_VERBS.get(self.method, self.method.lower())


def _replace_names(parts: list[str]) -> list[str]:
    """Replace the names in the parts of a path, if it is one of resources: ``['', 'api', 'v1', 'pods', …]``."""
    found, start = parts.copy(), _STARTS.get(parts[1], len(parts))
    if (
        parts[start : start + 1] == ['namespaces']
        and len(parts) > start + 2
        and parts[start + 2] not in _NAMESPACE_SUBRESOURCES
    ):
        found[start + 1] = '{namespace}'
        start += 2
    if len(parts) > start + 1:
        found[start + 1] = '{name}'
    return found


_NAMESPACE_SUBRESOURCES = ('status', 'finalize')
_STARTS = {'api': 3, 'apis': 4}
"""Where the plural name is in a path, or ``namespaces`` before it: after the group and the version."""
_VERBS = {'POST': 'create', 'PUT': 'update'}
_PLURAL_VERBS = {'POST': 'create', 'GET': 'list', 'DELETE': 'deletecollection'}


class WatchChange(NamedTuple):
    """A change of the state of a watch."""

    resource: Resource
    namespace: Namespace
    """The namespace; ``None`` if it watches all of them."""
    previous: str
    state: str
    """``listing``, ``streaming``, ``backing-off``, ``stopped``."""
    paused: bool
    """Whether the operator is paused: objects are indexed, but not handled."""
    reason: str | None = None
    """
    The reason in one word; ``None`` if the states are sufficient.

    For ``backing-off``, it is ``ended``, ``expired``, ``inactive``, ``incomplete``, ``forbidden``, ``unauthorized``,
    ``throttled``, ``refused``, ``server``, ``timeout``, ``connection``, ``unexpected``. Without a change of the state,
    it is ``paused`` or ``resumed``, as the operator is.
    """
    error: BaseException | None = None
    """The error of the failed watch."""
    delay: float | None = None
    """The delay until the next attempt (in seconds)."""


class QueueEntry(NamedTuple):
    """An object in the queue for workers."""

    key: ObjectKey
    urgent: bool
    """Whether it has the high priority; objects that existed when the operator started have the low one."""
    depth: int
    """The number of objects that wait for a worker."""
    delay: float | None = None
    """The delay until it is queued again (in seconds)."""
    reason: str | None = None
    """The reason of queueing it again: ``delayed`` by its handlers, or ``failed`` in the framework itself."""


class ObjectEvent(NamedTuple):
    """A Kubernetes Event that the operator has posted."""

    ref: Mapping[str, Any]
    """The reference to the object, with its ``uid``."""
    type: str
    reason: str
    message: str
    times: int
    """The count of the event so far: an Event of a series is posted once, then only its count is increased."""
