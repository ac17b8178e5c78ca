"""
Early decisions whether a trace is sampled, before anything of it is made.

With OpenTelemetry alone, each span is made first, and then asks the sampler. In production, one trace of a hundred is
sampled; so nearly all of that is in vain. The samplers that ``OTEL_TRACES_SAMPLER`` chooses look only at the id of the
trace, which is random. So one random number decides, and the id that suits the decision is drawn when it is needed: at
once for a sampled trace, and for most other ones never. Samplers of other packages are asked for each span, as they can
look at anything.
"""

import contextvars
import random
import re
from collections.abc import Callable
from typing import Any, Self

from opentelemetry import context, trace
from opentelemetry.sdk.trace import sampling
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator

from kopf._cogs.structs.instruments import Unsampled, begin_trace, get_unsampled, is_idle
from kopf._core.actions.execution import handler_var

_RATIO = re.compile(
    r'ParentBased{root:(?:TraceIdRatioBased{(?P<rate>[0-9.e+-]+)}|AlwaysOffSampler),remoteParentSampled:AlwaysOnSampler,'
    r'remoteParentNotSampled:AlwaysOffSampler,localParentSampled:AlwaysOnSampler,localParentNotSampled:AlwaysOffSampler}'
)

_TRACEPARENT = re.compile(r'[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-([0-9a-f]{2})(?:-.*)?')

_LIMIT = (1 << 64) - 1
"""The part of the id that the samplers look at."""


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


class SampledIds(IdGenerator):  # type: ignore[misc]
    """
    A generator of ids for traces of which it is already decided whether they are sampled.

    Why not ids that are drawn first, for the decision? Most traces are not sampled, and need no id at all.

    Args:
        inner: the generator of the provider. Only the part of an id that the samplers look at is changed, if necessary.
        bound: see `find_bound`.
    """

    def __init__(self, inner: Any, bound: int) -> None:
        self._inner = inner
        self._bound = bound
        self._random = random.Random()  # the handlers of the user can set the seed of the common one
        is_random = getattr(inner, 'is_trace_id_random', None)  # newer versions of OpenTelemetry have it
        self._flags = '02' if is_random is not None and is_random() else '00'
        self._is_plain = type(inner) is RandomIdGenerator  # its ids have no meaning
        self._lowest = f'{bound:016x}'

    def generate_span_id(self) -> int:
        """Return the id of a span."""
        span_id: int = self._inner.generate_span_id()
        return span_id

    def generate_trace_id(self) -> int:
        """Return the id of a new trace that the sampler of the provider samples."""
        return self._generate(0, self._bound)

    def draw_unsampled(self, trace_id: str | None = None) -> str:
        """
        Return the ids of a span in a trace that is not sampled, in the format of the W3C.

        Args:
            trace_id: the trace; ``None`` for a new one that the sampler of the provider does not sample.
        """
        if trace_id is None:
            # Each request needs the ids. One number for both is drawn and formatted much faster than two.
            digits = '%048x' % self._random.getrandbits(192)  # noqa: UP031 - this is the fastest
            if self._is_plain and digits[16:32] >= self._lowest:
                return f'00-{digits[:32]}-{digits[32:]}-{self._flags}'
            trace_id = f'{self._generate(self._bound, _LIMIT + 1):032x}'
        return f'00-{trace_id}-{self.generate_span_id():016x}-{self._flags}'

    def is_trace_id_random(self) -> bool:
        """Return whether the ids are random."""
        return self._flags != '00'

    def _generate(self, low: int, high: int) -> int:
        trace_id: int = self._inner.generate_trace_id()
        if low <= trace_id & _LIMIT < high or low >= high:
            return trace_id
        return trace_id & ~_LIMIT | self._random.randrange(low, high)


class EarlySampler:
    """
    Decides whether traces are sampled, as often as the sampler of OpenTelemetry that it stands for.

    Args:
        tracer: the tracer that makes the sampled spans.
        bound: see `find_bound`.
    """

    def __init__(self, tracer: Any, bound: int) -> None:
        self.is_lazy = False
        """Whether traces that are not sampled can be created only when the code of handlers needs them."""
        self.context = trace.set_span_in_context(UnsampledSpan(self), context.Context())
        """The context of OpenTelemetry that `attach` makes the current one."""
        self.rate = bound / (_LIMIT + 1)
        """The share of the sampled traces."""
        self.draw = random.Random().random
        """Draws a number for each new trace."""
        self.get_context = _find_getter(self.context)
        """Returns the current context of OpenTelemetry."""
        # The tracer is shared by all operators of the process that have the same provider.
        ids = tracer.id_generator
        self._ids = tracer.id_generator = ids if isinstance(ids, SampledIds) else SampledIds(ids, bound)

    @classmethod
    def make(cls, provider: Any, tracer: Any) -> Self | None:
        """Return the early sampler for the provider; ``None`` if the provider's own sampler must be asked."""
        bound = find_bound(getattr(provider, 'sampler', None))
        return None if bound is None or not hasattr(tracer, 'id_generator') else cls(tracer, bound)

    def skip(self, carried: str | None) -> Unsampled | None:
        """Return the trace of an outermost span if it is not sampled. An unknown carried text begins a new trace."""
        if carried is not None and (known := _TRACEPARENT.fullmatch(carried)) is not None:
            return None if int(known[2], 16) & 1 else Unsampled(self, carried)
        return None if self.draw() < self.rate else Unsampled(self)

    def find_current(self) -> Unsampled | None:
        """Return the trace of a handler in a step that was skipped; create it if needed."""
        # In all other handlers, there is an activity, even if it has ended.
        return begin_trace(self) if self.is_lazy and is_idle() and handler_var.get(None) is not None else None

    def be_lazy(self, *, lazy: bool) -> None:
        """Set whether traces that are not sampled can be created only when the code of handlers needs them."""
        self.is_lazy = lazy

    def draw_traceparent(self, carried: str | None) -> str:
        """Return new ids; in the trace of the carried text, if there is one."""
        if carried is not None and (known := _TRACEPARENT.fullmatch(carried)) is not None:
            return self._ids.draw_unsampled(known[1])
        return self._ids.draw_unsampled()

    def attach(self) -> Any:
        """Let spans of the user's code be parts of the current trace; do nothing if they are already."""
        return None if self.get_context() is self.context else context.attach(self.context)

    def detach(self, token: Any) -> None:
        """Restore the previous context."""
        if token is not None:
            context.detach(token)


def _find_getter(example: context.Context) -> Callable[[], context.Context]:
    """
    Return the fastest function that returns the current context of OpenTelemetry: the one of its context variable.

    The function of OpenTelemetry takes two more calls, and this is asked for each line of the log. The variable has no
    public name, so it is found by its value.
    """
    token = context.attach(example)
    try:
        found = [variable for variable, value in contextvars.copy_context().items() if value is example]
    finally:
        context.detach(token)
    # With another implementation of the current context, there is no such variable, or it has no default.
    try:
        contextvars.Context().run(found[0].get)
    except (IndexError, LookupError):
        get_current: Callable[[], context.Context] = context.get_current
        return get_current
    return found[0].get


class UnsampledSpan(trace.NonRecordingSpan):  # type: ignore[misc]
    """
    The only span of the current trace, if that is not sampled; without such a trace, no valid span.

    Why one for all traces? It is set once in the context of an operator, and not for each call of a handler.
    """

    def __init__(self, sampler: EarlySampler) -> None:
        super().__init__(trace.INVALID_SPAN_CONTEXT)
        self._sampler = sampler

    def get_span_context(self) -> trace.SpanContext:
        """Return the ids of the trace and of the span."""
        unsampled = get_unsampled() or self._sampler.find_current()
        if unsampled is None:
            return trace.INVALID_SPAN_CONTEXT
        trace_id, span_id, flags = (int(text, 16) for text in unsampled.draw_ids())
        return trace.SpanContext(trace_id, span_id, False, trace.TraceFlags(flags))

    def __repr__(self) -> str:
        return f'{type(self).__name__}({self.get_span_context()!r})'
