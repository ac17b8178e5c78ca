"""Early decisions: the same as those of OpenTelemetry's samplers, without spans for what is not sampled."""

import concurrent.futures
import random

import hypothesis
import hypothesis.strategies as st
import pytest
from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider, sampling
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator

from kopf._core.engines.trace_sampling import EarlySampler, SampledIds, find_bound

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
def test_the_ids_suit_the_decision(rate, trace_id):
    early, tracer = make(rate, trace_id, trace_id)
    sampled, unsampled = tracer.id_generator.generate_trace_id(), int(early.draw_traceparent(None).split('-')[1], 16)

    def decide(drawn):
        return tracer.sampler.should_sample(None, drawn, 'cycle').decision.is_sampled()

    assert decide(sampled) is (find_bound(tracer.sampler) > 0) and not decide(unsampled)
    # The part that samplers do not look at can have a meaning, such as the time.
    assert sampled >> 64 == unsampled >> 64 == trace_id >> 64 and trace_id in (sampled, unsampled)


@hypothesis.settings(max_examples=10)
@hypothesis.given(rate=st.floats(0.01, 0.99))
def test_traces_are_sampled_as_often_as_by_the_sampler(rate):
    early, _ = make(rate)
    share = sum(early.skip(None) is None for _ in range(20_000)) / 20_000
    assert abs(share - rate) < 0.025  # seven standard deviations


def test_the_seed_of_the_user_does_not_decide():
    early, _ = make(0.5)
    decisions = set()
    for _ in range(100):
        random.seed(1)
        decisions.add(early.skip(None) is None)
    assert decisions == {True, False}


def test_nothing_is_drawn_until_it_is_needed():
    early, _ = make(0)  # its generator of ids has none
    found = early.skip(None)
    found.end_handler(found.begin_handler())
    with pytest.raises(IndexError):
        _ = found.draw_ids()


def test_operators_in_several_threads_do_not_take_the_ids_of_each_other():
    early, tracer = make(0.5, *range(1, 4001))
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        spans = list(threads.map(lambda _: tracer.start_span('cycle', context=Context()), range(2000)))
        others = list(threads.map(lambda _: int(early.draw_traceparent(None).split('-')[1], 16), range(2000)))
    ids = {span.get_span_context().trace_id for span in spans}
    assert all(span.is_recording() for span in spans) and len(ids) == len(set(others)) == 2000
    assert not ids & set(others)


def test_all_operators_of_a_provider_share_the_ids():
    provider = TracerProvider(sampler=sampling.ParentBasedTraceIdRatio(0.5), id_generator=Ids(1))
    tracer = provider.get_tracer('kopf')
    assert all(EarlySampler.make(provider, tracer) for _ in range(3))
    assert isinstance(tracer.id_generator, SampledIds) and not isinstance(tracer.id_generator._inner, SampledIds)


@pytest.mark.parametrize('carried', [SAMPLED, SAMPLED + '-more'])
def test_stored_traces_that_are_sampled_are_observed(carried):
    early, _ = make(0)
    assert early.skip(carried) is None


@pytest.mark.parametrize('carried', ['nonsense', ''])
def test_unknown_stored_traces_are_new_ones(carried):
    early, _ = make(0, 5)
    assert early.skip(carried).draw_ids().trace_id == f'{5:032x}'


def test_a_stored_trace_that_is_not_sampled_is_continued():
    early, _ = make(0.999)
    found = early.skip(UNSAMPLED)
    assert found.draw_traceparent() == UNSAMPLED
    assert found.draw_ids().trace_id == UNSAMPLED.split('-')[1] == found.draw_log_ids()['trace_id']


@pytest.mark.parametrize('prepared', [False, True])
def test_spans_in_a_trace_that_is_not_sampled_are_not_sampled(prepared):
    early, tracer = make(0.999, 5)
    outer = early.attach() if prepared else None  # as for the whole operator
    found = early.skip(UNSAMPLED)
    token = found.begin_handler()
    span = tracer.start_span('mine')
    found.end_handler(token)
    later = trace.get_current_span().get_span_context()
    if prepared:
        context.detach(outer)
    assert span.get_span_context().trace_id == int(UNSAMPLED.split('-')[1], 16) and not span.is_recording()
    assert not trace.get_current_span().get_span_context().is_valid
    assert later.is_valid is False


class Stack:
    """Another implementation of the current context: not by a context variable."""

    def __init__(self):
        self.contexts = [Context()]

    def attach(self, attached):
        self.contexts.append(attached)
        return len(self.contexts) - 1

    def get_current(self):
        return self.contexts[-1]

    def detach(self, token):
        del self.contexts[token:]


@pytest.mark.parametrize('is_usual', [True, False])
def test_the_current_context_is_read_without_calls_of_opentelemetry_if_that_is_possible(monkeypatch, is_usual):
    if not is_usual:
        monkeypatch.setattr(context, '_RUNTIME_CONTEXT', Stack())
    early, _ = make(0)
    assert (early.get_context is context.get_current) is not is_usual
    assert early.get_context() is context.get_current() is not early.context
    token = early.attach()
    assert early.get_context() is context.get_current() is early.context
    assert early.attach() is None
    early.detach(token)
    assert early.get_context() is context.get_current() is not early.context


def test_the_ids_of_a_trace_are_the_same_everywhere():
    early, _ = make(0, 5)
    found = early.skip(None)
    token = found.begin_handler()
    span = trace.get_current_span().get_span_context()
    found.end_handler(token)
    assert found.draw_traceparent().split('-')[1:3] == [f'{span.trace_id:032x}', f'{span.span_id:016x}']
    assert found.draw_log_ids() == {'trace_id': f'{span.trace_id:032x}', 'span_id': f'{span.span_id:016x}'}
    assert not span.trace_flags.sampled and not int(found.draw_traceparent()[-2:], 16) & 1


def test_traces_with_random_ids_say_so_if_the_generator_does():
    class Random(RandomIdGenerator):
        def is_trace_id_random(self):
            return True

    assert SampledIds(Random(), 5).draw_unsampled().endswith('-02')
    assert SampledIds(Ids(7), 5).draw_unsampled().endswith('-00')
