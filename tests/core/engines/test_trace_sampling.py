"""Early decisions: the same as those of OpenTelemetry's samplers, without spans for what is not sampled."""

import types

import hypothesis
import hypothesis.strategies as st
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider, sampling
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator

from kopf._core.engines.trace_sampling import DrawnIds, EarlySampler, UnsampledTrace, find_bound

SAMPLED = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
UNSAMPLED = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00'


class Ids(IdGenerator):
    """Returns the given ids of traces."""

    def __init__(self, *ids):
        self.ids = list(ids)

    def generate_trace_id(self):
        return self.ids.pop(0)

    def generate_span_id(self):
        return 7


class Own(sampling.TraceIdRatioBased):
    """A sampler of another package with the description of the usual one."""


class OwnParentBased(sampling.ParentBased):
    """Another one."""


def make(rate, *ids):
    provider = TracerProvider(sampler=sampling.ParentBased(sampling.TraceIdRatioBased(rate)), id_generator=Ids(*ids))
    tracer = provider.get_tracer('kopf')
    return EarlySampler.make(provider, tracer), tracer


@pytest.mark.parametrize(
    'sampler, bound',
    [
        (sampling.ParentBased(sampling.TraceIdRatioBased(0.25)), 1 << 62),
        (sampling.ParentBasedTraceIdRatio(0.25), 1 << 62),
        (sampling.ParentBasedTraceIdRatio(1e-05), sampling.TraceIdRatioBased.get_bound_for_rate(1e-05)),
        (sampling.DEFAULT_OFF, 0),
    ],
)
def test_samplers_that_look_only_at_the_id_decide_early(sampler, bound):
    assert find_bound(sampler) == bound


@pytest.mark.parametrize(
    'sampler',
    [
        None,
        sampling.DEFAULT_ON,
        sampling.ALWAYS_ON,
        sampling.ALWAYS_OFF,
        sampling.TraceIdRatioBased(0.5),
        sampling.ParentBasedTraceIdRatio(1.0),
        sampling.ParentBased(Own(0.5)),
        sampling.ParentBased(sampling.TraceIdRatioBased(0.5), remote_parent_not_sampled=sampling.ALWAYS_ON),
        OwnParentBased(sampling.TraceIdRatioBased(0.5)),
    ],
)
def test_all_other_samplers_are_asked_for_each_span(sampler):
    assert find_bound(sampler) is None


@hypothesis.given(rate=st.floats(0, 0.999), trace_id=st.integers(1, (1 << 128) - 1))
def test_the_decision_is_that_of_the_sampler(rate, trace_id):
    early, tracer = make(rate, trace_id)
    decision = tracer.sampler.should_sample(None, trace_id, 'cycle').decision
    assert (early.skip(object(), None) is None) is decision.is_sampled()


def test_a_sampled_trace_has_the_drawn_id():
    early, tracer = make(0.5, 1, 2, 3)
    first, second = object(), object()
    assert early.skip(first, None) is None and early.skip(second, None) is None
    for drawn, known in ((second, 2), (first, 1), (first, 3)):
        with early.using_id(drawn):
            span = tracer.start_span('cycle')
        assert span.get_span_context().trace_id == known and span.is_recording()


def test_a_forgotten_id_is_not_used():
    early, tracer = make(0.5, 1, 2)
    span = object()
    early.skip(span, None)
    early.forget(span)
    with early.using_id(span):
        assert tracer.start_span('cycle').get_span_context().trace_id == 2


def test_an_id_that_was_not_needed_is_not_drawn_again():
    early, tracer = make(0.5, 1, 2)
    step = object()
    early.skip(step, None)
    with early.using_id(step):
        parent = trace.set_span_in_context(UnsampledTrace(early._ids, 9))
        assert tracer.start_span('cycle', context=parent).get_span_context().trace_id == 9
    another = object()
    early.skip(another, None)
    with early.using_id(another):
        assert tracer.start_span('cycle').get_span_context().trace_id == 2


def test_all_operators_of_a_provider_share_the_ids():
    provider = TracerProvider(sampler=sampling.ParentBasedTraceIdRatio(0.5), id_generator=Ids(1))
    tracer = provider.get_tracer('kopf')
    assert all(EarlySampler.make(provider, tracer) for _ in range(3))
    assert isinstance(tracer.id_generator, DrawnIds) and not isinstance(tracer.id_generator._inner, DrawnIds)


@pytest.mark.parametrize('carried', [SAMPLED, SAMPLED + '-more', 'nonsense', ''])
def test_stored_traces_that_are_sampled_or_unknown_are_observed(carried):
    early, _ = make(0)
    assert early.skip(object(), carried) is None


def test_a_stored_trace_that_is_not_sampled_is_continued():
    early, _ = make(0.999)
    found = early.skip(object(), UNSAMPLED)
    assert found.traceparent == UNSAMPLED
    assert f'{found.get_span_context().trace_id:032x}' == UNSAMPLED.split('-')[1] == found.log_ids['trace_id']


def test_spans_in_a_trace_that_is_not_sampled_are_not_sampled():
    early, tracer = make(0, 5)
    found = early.skip(object(), None)
    token = found.enter()
    span = tracer.start_span('mine')
    found.leave(token)
    assert span.get_span_context().trace_id == 5 and not span.is_recording()
    assert not trace.get_current_span().get_span_context().is_valid


def test_the_ids_of_a_trace_are_the_same_everywhere():
    early, _ = make(0, 5)
    found = early.skip(object(), None)
    span = found.get_span_context()
    assert found.traceparent.split('-')[1:3] == [f'{span.trace_id:032x}', f'{span.span_id:016x}']
    assert found.log_ids == {'trace_id': f'{span.trace_id:032x}', 'span_id': f'{span.span_id:016x}'}
    assert not span.trace_flags.sampled and not int(found.traceparent[-2:], 16) & 1


def test_traces_with_random_ids_say_so_if_the_generator_does():
    class Random(RandomIdGenerator):
        def is_trace_id_random(self):
            return True

    assert UnsampledTrace(DrawnIds(Random()), 5).traceparent.endswith('-02')
    assert UnsampledTrace(DrawnIds(types.SimpleNamespace(generate_span_id=lambda: 1)), 5).traceparent.endswith('-00')
