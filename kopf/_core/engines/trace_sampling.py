"""
Early decisions whether a trace is sampled, before anything of it is made.

With OpenTelemetry alone, each span is made first, and then asks the sampler. In production, one trace of a hundred is
sampled; so nearly all of that is in vain. The samplers that ``OTEL_TRACES_SAMPLER`` chooses look only at the id of the
trace, so the id is drawn first. A trace that is not sampled is one `UnsampledTrace`; a sampled one gets the drawn id.
Samplers of other packages are asked for each span, as they can look at anything.
"""

import contextlib
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any, Self

from opentelemetry import context, trace
from opentelemetry.sdk.trace import sampling
from opentelemetry.sdk.trace.id_generator import IdGenerator

from kopf._cogs.structs.instruments import Span

_RATIO = re.compile(
    r'ParentBased{root:(?:TraceIdRatioBased{(?P<rate>[0-9.e+-]+)}|AlwaysOffSampler),remoteParentSampled:AlwaysOnSampler,'
    r'remoteParentNotSampled:AlwaysOffSampler,localParentSampled:AlwaysOnSampler,localParentNotSampled:AlwaysOffSampler}'
)

_TRACEPARENT = re.compile(r'[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-([0-9a-f]{2})(?:-.*)?')

_LIMIT = (1 << 64) - 1
"""The part of the id that the samplers look at."""

_NO_CONTEXT = context.Context()

_RANDOM = 0x02
"""The flag of traces whose ids are random."""


def find_bound(sampler: object) -> int | None:
    """
    Return the bound that the lower half of the id of a new trace must be below, so that the trace is sampled.

    Returns:
        The bound; ``None`` if the sampler is unknown, or samples all traces.
    """
    if not isinstance(sampler, sampling.ParentBased):
        return None
    # Subclasses of samplers can have the same description, but decide otherwise.
    members = [sampler, *vars(sampler).values()]
    if any(type(member).__module__ != sampling.__name__ for member in members):
        return None
    match = _RATIO.fullmatch(sampler.get_description())
    if match is None:
        return None
    bound: int = sampling.TraceIdRatioBased.get_bound_for_rate(float(match['rate'] or 0))
    return bound if bound <= _LIMIT else None


class DrawnIds(IdGenerator):  # type: ignore[misc]
    """A generator of ids whose next id of a trace can be set, as it was drawn before."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._next: int | None = None
        is_random = getattr(inner, 'is_trace_id_random', None)  # newer versions of OpenTelemetry have it
        self.flags = _RANDOM if is_random is not None and is_random() else 0
        """The flags of traces that are not sampled."""

    def generate_span_id(self) -> int:
        """Return the id of a span."""
        span_id: int = self._inner.generate_span_id()
        return span_id

    def generate_trace_id(self) -> int:
        """Return the id that was set, once; otherwise, a new one."""
        drawn, self._next = self._next, None
        trace_id: int = self._inner.generate_trace_id() if drawn is None else drawn
        return trace_id

    def is_trace_id_random(self) -> bool:
        """Return whether the ids are random."""
        return bool(self.flags)

    def set_next(self, trace_id: int | None) -> None:
        """Use the id for the next trace; ``None`` to generate it."""
        self._next = trace_id


class EarlySampler:
    """
    Decides whether traces are sampled, like the sampler of OpenTelemetry that it stands for.

    Args:
        tracer: the tracer that makes the sampled spans.
        bound: see `find_bound`.
    """

    def __init__(self, tracer: Any, bound: int) -> None:
        self._bound = bound
        # The tracer is shared by all operators of the process that have the same provider.
        ids = tracer.id_generator
        self._ids = tracer.id_generator = ids if isinstance(ids, DrawnIds) else DrawnIds(ids)
        self._drawn: dict[Span, int] = {}

    @classmethod
    def make(cls, provider: Any, tracer: Any) -> Self | None:
        """Return the early sampler for the provider; ``None`` if the provider's own sampler must be asked."""
        bound = find_bound(getattr(provider, 'sampler', None))
        return None if bound is None or not hasattr(tracer, 'id_generator') else cls(tracer, bound)

    def skip(self, span: Span, carried: str | None) -> 'UnsampledTrace | None':
        """Return the trace of an outermost span if it is not sampled; otherwise, keep the id of a new trace."""
        if carried is not None:
            known = _TRACEPARENT.fullmatch(carried)
            if known is None or int(known[2], 16) & 1:
                return None
            return UnsampledTrace(self._ids, int(known[1], 16), carried)
        trace_id = self._ids.generate_trace_id()
        if trace_id & _LIMIT < self._bound:
            self._drawn[span] = trace_id
            return None
        return UnsampledTrace(self._ids, trace_id)

    @contextlib.contextmanager
    def using_id(self, span: Span) -> Iterator[None]:
        """Use the id that was drawn for this span if a trace begins in this block."""
        self._ids.set_next(self._drawn.pop(span, None))
        try:
            yield
        finally:
            # A span that continues another trace takes no id. Left for the next draw, it would be sampled once more.
            self._ids.set_next(None)

    def forget(self, span: Span) -> None:
        """Forget the id that was drawn for this span: it has ended, maybe without any need for a trace."""
        self._drawn.pop(span, None)


class UnsampledTrace(trace.NonRecordingSpan):  # type: ignore[misc]
    """A trace that is not sampled: its only span, which the code of handlers finds. It is read only if it is needed."""

    def __init__(self, ids: DrawnIds, trace_id: int, carried: str | None = None) -> None:
        self._ids = ids
        self._trace_id = trace_id
        self._carried = carried

    def get_span_context(self) -> trace.SpanContext:
        """Return the ids of the trace and of the span."""
        return trace.SpanContext(self._trace_id, self._span_id, False, trace.TraceFlags(self._ids.flags))

    def __repr__(self) -> str:
        return f'{type(self).__name__}({self.get_span_context()!r})'

    @functools.cached_property
    def _span_id(self) -> int:
        return self._ids.generate_span_id()

    def enter(self) -> Any:
        """Make it the current trace, so that spans of the user are parts of it."""
        return context.attach(trace.set_span_in_context(self, _NO_CONTEXT))

    def leave(self, token: Any) -> None:
        """Restore the previous trace."""
        context.detach(token)

    @property
    def traceparent(self) -> str:
        """The trace in the format of the W3C: the first step for later attempts, and the parent of requests."""
        return self._carried or f'00-{self._trace_id:032x}-{self._span_id:016x}-{self._ids.flags:02x}'

    @functools.cached_property
    def log_ids(self) -> Mapping[str, str]:
        """The attributes of log lines."""
        return {'trace_id': f'{self._trace_id:032x}', 'span_id': f'{self._span_id:016x}'}
