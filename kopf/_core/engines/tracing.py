"""
Traces of OpenTelemetry: the work of an operator for one change of an object, across all retries and restarts.

A step of an object is a span (a *cycle*). Its handlers are child spans, and the requests of a handler are child spans
of the handler. The ``traceparent`` of the first step is stored with the progress of the handlers, so that the next
steps join its trace, also in another process. Each request sends its ``traceparent`` to the API server.

If the resource has no handlers but one of raw events, its steps have no spans of their own: the span of the handler is
the root of the trace. Such steps are the most frequent ones, and a span takes OpenTelemetry longer than a whole step.

Steps without handlers and without requests are not traced, as most of them have nothing to do. Lists and watches are
not traced, as they belong to no object. Specified in the documentation's "Trace handlers and requests".
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kopf._cogs.helpers.explanations import ExplainedError
from kopf._cogs.structs.instruments import (
    CARRYING,
    TRACEPARENT,
    ApiRequest,
    HandlerCall,
    ObjectKey,
    ObjectStep,
    SamplingInstrument,
    Span,
    TraceIds,
    get_current_activity,
    prepare_context,
)
from kopf._cogs.structs.meters import name_resource
from kopf._core.actions.execution import TemporaryError

if TYPE_CHECKING:
    from kopf._core.engines.trace_sampling import EarlySampler

logger = logging.getLogger(__name__)


class TracingError(ExplainedError):
    """Raised when traces cannot be made. The message contains the reason and the remedy."""


class _Open(NamedTuple):
    """A span of OpenTelemetry that is not ended yet."""

    span: Any
    token: Any = None
    """The token that restores the previous context."""
    borrowed: bool = False
    """Whether it is the span of the parent: in a trace that is not sampled, activities have no spans of their own."""
    ended: int | None = None
    """When the handler of this span has ended, if the span is left to the step (in nanoseconds since the epoch)."""


class Tracing(SamplingInstrument):
    """
    Makes spans of OpenTelemetry from the spans of the framework.

    Args:
        provider: the ``TracerProvider``.
        version: the version of the framework.
    """

    def __init__(self, provider: Any, version: str) -> None:
        from opentelemetry import context, propagate, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        from kopf._core.engines import trace_sampling

        self._trace, self._context, self._propagate = trace, context, propagate
        self._empty = context.Context()
        # Why not the configured propagators? The next operator must be able to read the stored value.
        self._stored_format = TraceContextTextMapPropagator()
        self._tracer = provider.get_tracer('kopf', version)
        self.sampler: EarlySampler | None = trace_sampling.EarlySampler.make(provider, self._tracer)
        self._steps: dict[ObjectStep, int] = {}
        """When the steps have begun (in nanoseconds since the epoch)."""
        self._open: dict[Span, _Open] = {}
        self._is_showing_all = True
        self._last_ids: tuple[Any, Mapping[str, str]] = (None, {})
        """The span that the last line of the log belongs to, and its ids."""

    def attach(self) -> None:
        """Called in the context that all tasks of the operator will inherit, so that handlers need not change it."""
        if self.sampler is not None:
            self.sampler.attach()
            prepare_context()

    # Steps.

    def step_begins(self, step: ObjectStep) -> None:
        """Record the time: the span is made later, when it is known whether the step continues a trace."""
        self._steps[step] = time.time_ns() - int((time.monotonic() - step.began) * 1e9)

    def step_decides(self, step: ObjectStep) -> None:
        """Make the span if any handlers are due."""
        if step.handlers:
            self._open_step(step)

    def step_ends(self, step: ObjectStep) -> None:
        """End the span, if there is one."""
        self._steps.pop(step, None)
        opened = self._open.pop(step, None)
        if opened is None:
            return
        if opened.ended is None and opened.span.is_recording():
            # All at once, as OpenTelemetry takes long for each call.
            facts: dict[str, Any] = {'kopf.event': step.event or '', 'kopf.step': step.number}
            _describe(facts, step.key)
            facts['kopf.reason'] = step.reason or ''
            _describe_outcome(facts, step.outcome, step.delay)
            opened.span.set_attributes(facts)
        # If the span is that of the handler, a cancellation of the handler is already recorded.
        if opened.ended is None or step.outcome == 'failed':
            self._record_error(opened.span, step)
        opened.span.end(opened.ended)

    def _open_step(self, step: ObjectStep) -> Any:
        opened = self._open.get(step)
        if opened is None:
            span = self._tracer.start_span(
                f'cycle {name_resource(step.key.resource)}',
                context=self._read(step.carried),
                start_time=self._steps.get(step),
            )
            opened = self._open[step] = _Open(span)
        return opened.span

    # Handlers.

    def handler_begins(self, call: HandlerCall) -> None:
        """Begin the span of the handler, and make it the current one, so that spans of the user are in it."""
        is_root = self._is_root(call)
        parent = None if is_root else self._find_parent(call)
        if parent is not None and call.carried is not None and not self._is_in_trace(call.carried, parent):
            parent = None
        is_borrowed = parent is not None and not parent.is_recording()
        span = parent if is_borrowed else self._start_handler(call, parent)
        token = self._context.attach(self._trace.set_span_in_context(span))
        opened = self._open[call] = _Open(span, token, is_borrowed)
        if is_root and call.parent is not None:
            self._open[call.parent] = opened

    def _is_root(self, call: HandlerCall) -> bool:
        """Check whether the span of the handler is also that of its step."""
        step = call.parent
        return isinstance(step, ObjectStep) and step.single and step in self._steps and step not in self._open

    def _start_handler(self, call: HandlerCall, parent: Any) -> Any:
        if parent is None:
            context = self._read(call.carried)
        else:
            context = self._trace.set_span_in_context(parent, self._empty)
        # The attributes are set at the end: most spans are usually not sampled, and need no attributes.
        return self._tracer.start_span(f'handler {call.id}', context=context)

    def _is_in_trace(self, carried: str, parent: Any) -> bool:
        """Check whether the step continues this trace; event handlers can have begun its span as a new trace."""
        known = self._trace.get_current_span(self._read(carried)).get_span_context()
        return not known.is_valid or known.trace_id == parent.get_span_context().trace_id

    def _find_parent(self, activity: Span) -> Any:
        """Return the span of the step or the handler that the activity is a part of; ``None`` without any."""
        parent = activity.parent
        if isinstance(parent, ObjectStep):
            return self._open_step(parent) if parent in self._steps else None
        return None if parent is None or parent not in self._open else self._open[parent].span

    def _find_origin(self, call: HandlerCall, span: Any) -> str | None:
        """Return the ``traceparent`` for later attempts: that of the first step, or else of this attempt."""
        step: Span | None = call.parent
        while step is not None and not isinstance(step, ObjectStep):
            step = step.parent
        if isinstance(step, ObjectStep):
            return step.carried or self._write(self._open_step(step))
        return self._write(span)

    def handler_ends(self, call: HandlerCall) -> None:
        """End the span of the handler, with its error if there is one."""
        opened = self._open.pop(call, None)
        if opened is None:
            return
        # Needed only if another attempt follows: otherwise, no progress is stored.
        if call.carried is None and call.key is not None and call.outcome in CARRYING:
            call.carried = self._find_origin(call, opened.span)
        if not opened.borrowed and opened.span.is_recording():
            facts: dict[str, Any] = {
                'kopf.handler': call.id,
                'kopf.kind': call.kind,
                'kopf.reason': call.reason or '',
                'kopf.retry': call.retry,
            }
            if call.key is not None:
                _describe(facts, call.key)
            _describe_outcome(facts, call.outcome, call.delay)
            opened.span.set_attributes(facts)
        if call.parent is not None and self._open.get(call.parent) is opened:
            self._leave(opened, call, call.parent)
        else:
            self._end(opened, call)

    def _leave(self, opened: _Open, call: HandlerCall, step: Span) -> None:
        """Leave the span to the step, whose patch and errors belong to it, too. It lasts as long as the handler did."""
        # Why not end it now? An ended span cannot get the errors of the step.
        self._record_error(opened.span, call)
        self._context.detach(opened.token)
        self._open[step] = _Open(opened.span, ended=time.time_ns())

    # Requests.

    def request_begins(self, request: ApiRequest) -> None:
        """Begin the span of a request of a step or a handler, and add its ``traceparent`` to the request."""
        parent = self._find_parent_of_request(request)
        if parent is None:
            return
        if not parent.is_recording():
            # Why not by `_inject`? Most traces are not sampled, and the propagators cost more than all else of them.
            found = parent.get_span_context()
            if found.is_valid:
                request.headers[TRACEPARENT] = _format_ids(found).traceparent
            return
        span = self._tracer.start_span(
            f'{request.method} {request.route}',
            context=self._trace.set_span_in_context(parent, self._empty),
            kind=self._trace.SpanKind.CLIENT,
            attributes={
                'http.request.method': request.method,
                'http.request.resend_count': request.attempt,
                'url.path': request.path,
                'server.address': request.server,
                'kopf.verb': request.verb,
            },
        )
        self._open[request] = _Open(span)
        self._inject(request, span)

    def _inject(self, request: ApiRequest, span: Any) -> None:
        self._propagate.inject(request.headers, self._trace.set_span_in_context(span, self._empty))

    def _find_parent_of_request(self, request: ApiRequest) -> Any:
        """Return the innermost span around the request, e.g. one of the user's code; ``None`` without any."""
        parent = self._find_parent(request)
        if parent is not None and not parent.is_recording():
            return parent  # the trace is not sampled, so spans inside of the parent are not needed
        current = self._trace.get_current_span()
        if parent is None:
            return current if current.is_recording() else None
        # A handler of another object can have started this worker, so the current span can be of that handler.
        is_inside = current.get_span_context().trace_id == parent.get_span_context().trace_id
        return current if is_inside else parent

    def request_ends(self, request: ApiRequest) -> None:
        """End the span of the request."""
        opened = self._open.pop(request, None)
        if opened is not None:
            if request.status is not None:
                opened.span.set_attribute('http.response.status_code', request.status)
            self._end(opened, request)

    # The rest.

    def show_ids(self, *, of_all: bool) -> Callable[[], Mapping[str, str] | None]:
        """
        Set whether lines of logs get the ids of all traces, or only of the sampled ones.

        Returns:
            The function that returns the ids for a line, as `find_ids` does.
        """
        self._is_showing_all = of_all
        sampler = self.sampler
        if sampler is None:
            return self.find_ids
        sampler.be_lazy(lazy=not of_all)
        if of_all:
            return self.find_ids
        find, opened, get_context, usual = self.find_ids, self._open, sampler.get_context, sampler.context

        def find_sampled_ids() -> Mapping[str, str] | None:
            # The usual case in production, for each line: no span is open, and there are no spans of the user's code.
            # Why not a method? It would take twice as long to get the same from attributes.
            return None if not opened and get_context() is usual else find()

        return find_sampled_ids

    def _end(self, opened: _Open, activity: Span) -> None:
        if not opened.borrowed:
            self._record_error(opened.span, activity)
            opened.span.end()
        if opened.token is not None:
            self._context.detach(opened.token)

    def _record_error(self, span: Any, activity: Span) -> None:
        error = None if activity.outcome == 'refused' else activity.exception
        if error is not None and not isinstance(error, TemporaryError):
            span.record_exception(error)
        if activity.outcome == 'failed' or (error is not None and not isinstance(error, TemporaryError)):
            span.set_status(self._trace.StatusCode.ERROR, None if error is None else str(error))

    def _read(self, carried: str | None) -> Any:
        """Return the context of the stored trace; an empty one without any."""
        # Never use the current context: a handler of another object can have started this worker.
        return self._empty if carried is None else self._stored_format.extract({TRACEPARENT: carried}, self._empty)

    def _write(self, span: Any) -> str | None:
        carrier: dict[str, str] = {}
        self._stored_format.inject(carrier, self._trace.set_span_in_context(span, self._empty))
        return carrier.get(TRACEPARENT)

    def find_ids(self) -> Mapping[str, str] | None:
        """Return the attributes of log lines: the ids of the current trace and span; ``None`` if there is no span."""
        activity = get_current_activity()
        if activity is not None and activity.unsampled is not None:
            return activity.unsampled.draw_log_ids() if self._is_showing_all else None
        span, current = activity if isinstance(activity, Span) else None, self._trace.get_current_span()
        if span is None and not self._is_showing_all and not current.is_recording():
            return None
        found = current.get_span_context()
        if not found.is_valid:
            while span is not None and span not in self._open:
                span = span.parent
            if span is None:
                return None
            found = self._open[span].span.get_span_context()
        known, ids = self._last_ids
        if known is not found:  # most lines come right after another one of the same handler
            trace_id, span_id, _ = _format_ids(found)
            ids = {'trace_id': trace_id, 'span_id': span_id}
            self._last_ids = found, ids  # one assignment, as threads of handlers write log lines, too
        return ids


def _format_ids(context: Any) -> TraceIds:
    return TraceIds(f'{context.trace_id:032x}', f'{context.span_id:016x}', f'{context.trace_flags:02x}')


def _describe_outcome(facts: dict[str, Any], outcome: str | None, delay: float | None) -> None:
    facts['kopf.outcome'] = outcome or ''
    if delay is not None:
        facts['kopf.delay'] = delay


def _describe(facts: dict[str, Any], key: ObjectKey) -> None:
    facts['kopf.resource'] = name_resource(key.resource)
    if key.namespace is not None:
        facts['k8s.namespace.name'] = key.namespace
    if key.name is not None:
        facts['kopf.object.name'] = key.name
    if key.uid is not None:
        facts['kopf.object.uid'] = key.uid
