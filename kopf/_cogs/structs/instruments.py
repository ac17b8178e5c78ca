"""
Instruments: the interface for metrics, traces, and other tools that observe a running operator.

An operator has one `Instruments`, with a tuple of instruments for each kind of reports. Code that reports something
first checks whether any instrument listens: ``if instruments.steps: ...``. So an operator without instruments pays only
for one attribute and one test. Why not events, or loggers? Both would cost more when they are off, and could not show
which activity is a part of another one.

An activity that takes time is a `Span`. Its beginning and its end are always reported, even if it fails. Spans are
nested: step → handler → sub-handler → request. A context variable has the current span, so that threads and tasks
inherit it. An instrument can set its own context variables when a span begins, and reset them when it ends.

Traces are usually recorded for one step of a hundred. Before an outermost span begins, a `SamplingInstrument` decides
whether its trace is sampled. Of other traces, it gets no reports. If no other instrument listens either, no spans are
created for such a trace: an `Unsampled` replaces them as the current activity. Why not let the hooks ignore the spans?
Most of the cost is the creation of a span.
"""

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar, Token
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self

from kopf._cogs.helpers.explanations import INTERRUPTIONS
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.references import Namespace, Resource

if TYPE_CHECKING:
    from kopf._cogs.structs.meters import Meters

logger = logging.getLogger(__name__)


class Instrument:
    """
    The base class of instruments: each overrides the methods that it needs.

    The methods are called in the event loop, so they must not block. They must not change their arguments, except for
    attributes that say so. If a method raises an error, the error is logged and the instrument is removed: the operator
    continues without it.
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
        """Called after an attempt of a handler."""

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


class SamplingInstrument(Instrument):
    """An instrument that observes only some of the outermost spans, with all their parts."""

    sampler: 'Sampler | None' = None
    """Decides which outermost spans are observed; ``None`` if the instrument observes all of them."""


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
    The instruments of one operator: a tuple for each kind of reports.

    Metrics of the queue, the steps, and the handlers use meters instead, because the facts for instruments would be too
    expensive. The reporting code calls the meters directly.
    """

    __slots__ = (
        '_members',
        '_sampling',
        '_unsampled',
        'meters',
        'is_lazy',
        'observes_handlers',
        'sampler',
        'skips_handlers',
        'skips_requests',
        'skips_steps',
        *_POINTS,
    )

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
        self.sampler: Sampler | None = None
        """Decides which of the outermost spans to observe, if one of the instruments observes only some of them."""
        self.skips_steps = self.skips_handlers = self.skips_requests = False
        """Whether steps need no spans in traces that are not sampled, because only the sampler listens to steps."""
        self.is_lazy = False
        """Whether steps without decisions need no trace if it is not sampled: nothing observes it, or shows its ids."""
        self._sampling: SamplingInstrument | None = None
        self._unsampled: dict[str, Listeners] = {}
        self._find_listeners()
        for member in members:
            self.add(member)

    def add(self, instrument: Instrument) -> None:
        """Add the instrument. The ends of spans that began before are not reported to it."""
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
        sampling = [member for member in self._members if isinstance(member, SamplingInstrument)]
        self._sampling = sampling[0] if len(sampling) == 1 and sampling[0].sampler is not None else None
        self.sampler = None if self._sampling is None else self._sampling.sampler
        for point in _POINTS:
            self._unsampled[point] = tuple(each for each in getattr(self, point) if each is not self._sampling)
        self.skips_steps, self.skips_handlers, self.skips_requests = (
            self.sampler is not None and not self._unsampled[point] for point in ('steps', 'handlers', 'requests')
        )
        self.is_lazy = (
            self.sampler is not None
            and self.sampler.is_lazy
            and (self.skips_steps and self.skips_handlers and self.skips_requests)
        )

    def get_listeners(self, point: str, unsampled: 'Unsampled | None') -> Listeners:
        """Return the instruments that listen to these reports, without the sampler if the trace is not sampled."""
        listeners: Listeners = getattr(self, point) if unsampled is None else self._unsampled[point]
        return listeners

    def skip(self, carried: str | None) -> 'Unsampled | None':
        """
        Decide whether to observe the outermost span that begins next.

        Args:
            carried: the text from `HandlerCall.carried` of the trace to continue; ``None`` for a new trace.

        Returns:
            The trace of the span if it is not sampled; ``None`` if the span is to be observed.
        """
        if self.sampler is None or self._sampling is None:
            return None
        try:
            return self.sampler.skip(carried)
        except INTERRUPTIONS:
            raise
        except BaseException:
            logger.exception("The instrument %r has failed in %s(), and is removed.", self._sampling, 'skip')
            self.remove(self._sampling)
            return None

    def skip_step(self, event: str | None, number: int) -> 'Unsampled | None':
        """
        Decide whether to observe the step that begins next; the arguments are those of `ObjectStep`.

        Returns:
            The trace of the step if no instrument listens to steps in it, which is usual in production: it has begun,
            and `Unsampled.end_step` must follow. ``None`` if the step is to be observed.
        """
        if not self.skips_steps or self.sampler is None:
            return None
        if self.sampler.draw() < self.sampler.rate:
            return None
        unsampled = Unsampled(self.sampler)
        unsampled.begin_step(event, number)
        return unsampled

    def ignore_step(self) -> bool:
        """
        Check whether the next step needs no trace: it is not sampled, and only calls handlers of raw events.

        Then, there is no current activity during the step. If the code of a handler needs the trace, it is created
        there; see `Sampler.find_current`. This is only for `is_lazy` instruments.
        """
        # This is called for each event, so it takes as few calls and looks at as few attributes as possible.
        sampler = self.sampler
        if sampler is None or sampler.draw() < sampler.rate:
            return False
        # A worker usually has the context of the operator. But it can also have that of a handler that has started it.
        if _current_var.get(_FOREIGN) is not None:
            _current_var.set(None)
            sampler.attach()
        return True

    def begin_trace(self) -> None:
        """Called when a step that `ignore_step` has skipped needs its trace after all."""
        if self.is_lazy and self.sampler is not None and is_idle():
            begin_trace(self.sampler)

    def find_ignored(self) -> 'Unsampled | None':
        """Return the current trace if no instrument listens to handlers in it, which is usual in production."""
        if not self.skips_handlers:
            return None
        activity = _current_var.get()
        return activity if type(activity) is Unsampled and not activity.ended else None

    def skip_handler(self, carried: str | None) -> 'Unsampled | None':
        """Return the trace of the next attempt of a handler, the current or a new one, if that trace is not sampled."""
        activity = get_current_activity()
        return self.skip(carried) if activity is None else activity.unsampled

    def skip_request(self) -> 'Unsampled | None':
        """Return the current trace if requests in it have no spans."""
        if not self.skips_requests or self.sampler is None:
            return None
        activity = get_current_activity()
        return self.sampler.find_current() if activity is None else activity.unsampled

    def tell_late(self, span: 'Span', hook: str) -> None:
        """Call the hook of the sampling instrument, which begins to observe the span only now."""
        if self._sampling is not None:
            self.tell((self._sampling,), hook, span)

    def tell(self, listeners: Listeners, hook: str, facts: object) -> None:
        """Call the hook of these instruments, except for removed ones; remove an instrument if its hook fails."""
        for instrument in listeners:
            if instrument in self._members:
                try:
                    getattr(instrument, hook)(facts)
                except INTERRUPTIONS:
                    raise
                except BaseException:
                    self.remove(instrument)
                    logger.exception("The instrument %r has failed in %s(), and is removed.", instrument, hook)


def _overrides(instrument: Instrument, hooks: Iterable[str]) -> bool:
    return any(getattr(type(instrument), hook) is not getattr(Instrument, hook) for hook in hooks)


NO_INSTRUMENTS = Instruments()
"""The default for objects that are created without an operator, e.g. in tools and tests. It always stays empty."""


class TraceIds(NamedTuple):
    """The ids of a trace and of one of its spans, as hexadecimal texts of 32, 16 and 2 digits."""

    trace_id: str
    span_id: str
    flags: str

    @property
    def traceparent(self) -> str:
        """The ids in the format of the W3C."""
        return f'00-{self.trace_id}-{self.span_id}-{self.flags}'


class Sampler(Protocol):
    """Decides which traces are sampled, and makes the ids of other traces available to the code of handlers."""

    @property
    def is_lazy(self) -> bool:
        """Return whether traces that are not sampled can be created only when the code of handlers needs them."""

    @property
    def draw(self) -> Callable[[], float]:
        """
        Return the function that draws the number for the next trace: it is sampled if the number is below the `rate`.

        Why no method that decides? It would be called for each event. The function must not fail, unlike `skip`: errors
        are not handled, also for speed.
        """

    @property
    def rate(self) -> float:
        """Return the share of the sampled traces."""

    def skip(self, carried: str | None, /) -> 'Unsampled | None':
        """Return the trace of the next outermost span if it is not sampled; see `Instruments.skip`."""

    def find_current(self) -> 'Unsampled | None':
        """Return the trace of a handler in a step that `Instruments.ignore_step` has skipped; create it if needed."""

    def draw_traceparent(self, carried: str | None, /) -> str:
        """Return new ids for a trace that is not sampled; in the trace of the carried text, if there is one."""

    def attach(self) -> Any:
        """Make the current trace available to the code of a handler; return the token for `detach`."""

    def detach(self, token: Any, /) -> None:
        """Undo `attach`."""


class Unsampled:
    """
    A trace that is not sampled. Its parts must know that they are not recorded, either.

    While the context lasts, the trace is the current activity, instead of a span. Its ids are drawn only when requests,
    log lines, or the code of handlers need them.
    """

    __slots__ = ('_carried', '_drawn', '_event', '_number', '_sampler', 'ended', 'step')

    # Only what every trace needs is set: an assignment takes a tenth of the time to create an object.
    def __init__(self, sampler: Sampler, carried: str | None = None) -> None:
        self._sampler = sampler
        self._carried = carried
        self._drawn: str | None = None
        self.step: ObjectStep | None = None
        """The current step, if it is observed after all; see `rejoin`."""
        self.ended = False
        """Whether the activity has ended. Code that still runs in its context is not a part of it."""

    # A step of an object as the current activity. Why no context manager? It would be slower.

    def begin_step(self, event: str | None, number: int) -> None:
        """Called when a step of an object begins; the arguments are those of `ObjectStep`."""
        self._event, self._number = event, number
        # The variable is not reset at the end: each worker has a context of its own, and each step sets the variable.
        # Why not keep the token? If a step begins in the context of another one, there would be a chain of tokens.
        former = _current_var.set(self).old_value
        # The context of the operator finds the trace already; see `prepare_context`. But a worker can have another one,
        # e.g. that of a handler in a sampled trace, whose write has started it.
        if former is not None and type(former) is not Unsampled:
            self._sampler.attach()

    def end_step(self, error: BaseException | None = None) -> None:
        """Called when the step has ended, also with an error."""
        if self.step is not None:
            self.step.__exit__(*((None, None, None) if error is None else (type(error), error, error.__traceback__)))
        self.ended = True

    @property
    def unsampled(self) -> 'Unsampled':
        """The trace itself, as in `Span.unsampled`."""
        return self

    def rejoin(self, carried: str, instruments: Instruments, key: 'ObjectKey') -> 'ObjectStep | None':
        """
        Join the trace of the earlier steps of the same change, which becomes known in the middle of a step.

        Returns:
            The step to be observed, if that trace is sampled: it begins now, and ends together with this one.
        """
        known = instruments.skip(carried)
        if known is not None:
            self._carried, self._drawn = carried, None
            return None
        self.step = ObjectStep(instruments, key, event=self._event, number=self._number)
        return self.step.__enter__()

    # The ids, for the parts of the trace.

    def draw_ids(self) -> TraceIds:
        """Return the ids of the trace, and of its only span; draw them once."""
        return TraceIds(*self._draw().split('-')[1:])

    def draw_traceparent(self) -> str:
        """Return the trace in the format of the W3C: the first step for later attempts, and the parent of requests."""
        return self._carried or self._draw()

    def draw_log_ids(self) -> Mapping[str, str]:
        """Return the attributes of the lines that are logged in it; draw its ids once."""
        drawn = self._draw()
        return {'trace_id': drawn[3:35], 'span_id': drawn[36:52]}

    def _draw(self) -> str:
        if self._drawn is None:
            with _drawing:  # threads of handlers need the ids, too
                if self._drawn is None:
                    self._drawn = self._sampler.draw_traceparent(self._carried)
        return self._drawn

    # Why no context manager? It would be slower, and this is called for each call of a handler.

    def begin_handler(self) -> Any:
        """Called when a handler without a span begins. A handler without a step is the whole activity."""
        token = _current_var.set(self) if get_current_activity() is None else None
        return self._sampler.attach(), token

    def end_handler(self, token: Any) -> None:
        """Called when the handler ends, with the result of `begin_handler`."""
        attached, outermost = token
        self._sampler.detach(attached)
        if outermost is not None:
            self.ended = True
            _reset(outermost)

    # The interface of `ApiRequest`, for requests in the trace.

    notes_status: ClassVar = False
    """Whether `note_status` does anything."""

    def get_headers(self) -> Mapping[str, str]:
        """Return the headers to add to a request."""
        return {TRACEPARENT: self._carried or self._draw()}

    def note_status(self, status: int) -> None:
        """Do nothing: no instrument listens to the request."""


TRACEPARENT = 'traceparent'
"""The name of the header that refers to the trace."""

_drawing = threading.Lock()


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
    INHERITS: ClassVar = True
    """Whether it is a part of the current trace."""

    def __init__(self, instruments: Instruments, unsampled: Unsampled | None = None) -> None:
        self._instruments = instruments
        self._listeners: Listeners = ()
        self._token: Token[Span | Unsampled | None] | None = None
        self.began = 0.0
        """On the monotonic clock (in seconds)."""
        self.duration: float | None = None
        """The duration (in seconds); ``None`` until the end."""
        self.outcome: str | None = None
        """The outcome in one word; ``None`` until the end. The possible words are listed in the subclasses."""
        self.exception: BaseException | None = None
        """The error, if the activity has failed; reset after the report, as it keeps frames in memory."""
        self.parent: Span | None = None
        """The span of which this one is a part."""
        self.unsampled = unsampled
        """The trace, if it is not sampled."""

    def __enter__(self) -> Self:
        activity = get_current_activity()
        self.parent = activity if isinstance(activity, Span) else None
        if self.INHERITS and activity is not None:
            self.unsampled = activity.unsampled
        self._token = _current_var.set(self)
        self._listeners = self._instruments.get_listeners(self.POINT, self.unsampled)
        self.began = time.monotonic()
        if self._listeners:
            self._instruments.tell(self._listeners, self.BEGINS, self)
        return self

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
            _reset(self._token)
            self._token = None

    @property
    def ended(self) -> bool:
        """Return whether the activity has ended. Code that still runs in its context is not a part of it."""
        return self.duration is not None


_current_var: ContextVar[Span | Unsampled | None] = ContextVar('_current_var', default=None)

_FOREIGN = object()
"""Instead of an activity, if the context is not that of an operator: see `prepare_context`."""


def prepare_context() -> None:
    """Called in the context that all tasks of the operator inherit, after `Sampler.attach`."""
    _current_var.set(None)


def begin_trace(sampler: Sampler) -> Unsampled:
    """Make a new trace, which is not sampled, the current activity."""
    unsampled = Unsampled(sampler)
    _current_var.set(unsampled)
    return unsampled


def is_idle() -> bool:
    """Check whether there is no current activity in this context, not even one that has ended."""
    return _current_var.get() is None


def _reset(token: 'Token[Span | Unsampled | None]') -> None:
    try:
        _current_var.reset(token)
    except ValueError:  # an abandoned generator is closed in another context than it was started in
        pass


def get_unsampled() -> Unsampled | None:
    """Return the trace of this context if it is not sampled, even after the end of its activity, for lasting tasks."""
    activity = _current_var.get()
    return None if activity is None else activity.unsampled


def get_current_activity() -> Span | Unsampled | None:
    """Return the innermost current span, e.g. for log lines, or the trace that has none; ``None`` if there is none."""
    activity = _current_var.get()
    return None if activity is None or activity.ended else activity


class ObjectStep(Span):
    """
    One step of handling an object: handlers of raw events, a decision, handlers of changes, one patch.

    Traces call it a cycle, and metrics a reconciliation. The outcomes: ``done``; ``delayed`` if the next step follows
    after the ``delay``; ``requeued`` if it follows at once; ``failed`` in the framework itself (not in a handler);
    ``cancelled``.
    """

    __slots__ = ('carried', 'delay', 'event', 'handlers', 'key', 'number', 'reason', 'single')

    POINT, BEGINS, ENDS = 'steps', 'step_begins', 'step_ends'
    INHERITS = False  # the handler of another object can have started this worker

    def __init__(
        self,
        instruments: Instruments,
        key: ObjectKey,
        *,
        event: str | None,
        number: int,
        single: bool = False,
        unsampled: Unsampled | None = None,
    ) -> None:
        super().__init__(instruments, unsampled)
        self.key = key
        self.event = event
        """The type of the handled event, ``LISTED`` if the object is from a list; ``None`` without an event."""
        self.number = number
        """The number of steps since the last event, including this one."""
        self.single = single
        """Whether it calls one handler at most: the resource has no other ones, and that one is for raw events."""
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

    def _continue(self, carried: str) -> None:
        """Join the trace of the earlier steps of the change, which can be sampled."""
        self.unsampled = self._instruments.skip(carried)
        if self.unsampled is None:
            self._listeners = self._instruments.steps
            self._instruments.tell_late(self, self.BEGINS)

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
    ``refused`` if a webhook denies a request by a permanent error; ``ignored`` if it has failed, and its errors are
    ignored; ``cancelled``.
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
        unsampled: Unsampled | None = None,
    ) -> None:
        super().__init__(instruments, unsampled)
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

        The text is stored with the handler's progress, so it survives a restart of the operator.
        """
        self.delay: float | None = None
        self.message: str | None = None
        """The text of the error."""
        self._entered: Any = None

    def __enter__(self) -> Self:
        super().__enter__()
        if self.unsampled is not None:
            self._entered = self.unsampled.begin_handler()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.unsampled is not None:
            self.unsampled.end_handler(self._entered)
        super().__exit__(exc_type, exc, traceback)

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
            self.carried = self.unsampled.draw_traceparent()


class ApiRequest(Span):
    """
    One attempt of a request to the Kubernetes API: ``succeeded``, ``failed``, or ``cancelled``.

    It begins when it is sent, after the time in the queue (``waited``). Each attempt of a request is one instance.
    """

    __slots__ = ('attempt', 'headers', 'method', 'path', 'payload', 'server', 'status', 'streaming', 'waited')

    POINT, BEGINS, ENDS = 'requests', 'request_begins', 'request_ends'
    notes_status: ClassVar = True
    """Whether `note_status` does anything: it does nothing in traces that are not sampled."""

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
            self.headers[TRACEPARENT] = self.unsampled.draw_traceparent()
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
    found, (start, plural) = parts.copy(), locate_plural(parts)
    if plural > start:
        found[start + 1] = '{namespace}'
    if len(parts) > plural + 1:
        found[plural + 1] = '{name}'
    return found


def locate_plural(parts: Sequence[str]) -> tuple[int, int]:
    """
    Find the plural name of the resource in the parts of a path; those of other paths have none: it is at their end.

    Returns:
        The index after the group and the version, and the index of the plural name, which can be in a namespace.
    """
    start = _STARTS.get(parts[1], len(parts)) if len(parts) > 1 else len(parts)
    is_inside = (
        parts[start : start + 1] == ['namespaces']
        and len(parts) > start + 2
        and parts[start + 2] not in _NAMESPACE_SUBRESOURCES
    )
    return start, start + 2 if is_inside else start


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
    """How often the Event has occurred so far: it is posted once, and then only its count is increased."""
