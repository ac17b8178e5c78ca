"""Traces: one for each change, over retries and restarts; with spans of steps, handlers, requests, and of the user."""

import asyncio
import contextlib
import json
import logging
import types

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import Span, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision, ParentBased, StaticSampler, TraceIdRatioBased

import kopf
from kopf._cogs.structs.instruments import ApiRequest, HandlerCall, Instruments, ObjectKey, ObjectStep, Unsampled
from kopf._cogs.structs.references import Resource
from kopf._core.engines.tracing import Tracing

PATCHING = 'PATCH /apis/kopf.dev/v1/namespaces/{namespace}/kopfexamples/{name}'
TRACEPARENT = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
KEY = ObjectKey(Resource('kopf.dev', 'v1', 'kopfexamples'), 'default', 'obj', 'uid')
CYCLE = 'cycle kopfexamples.kopf.dev'


class Spans:
    """The ended spans of an operator."""

    def __init__(self, world, **options):
        self.world, self.exporter, self.provider = world, InMemorySpanExporter(), TracerProvider(**options)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        world.settings.tracing.provider = self.provider

    @property
    def all(self):
        """The spans about the object, with their requests, without fences."""
        return [
            span
            for span in self.exporter.get_finished_spans()
            if span.attributes.get('kopf.object.name', 'obj') == 'obj'
            and 'fence' not in span.attributes.get('url.path', '')
        ]

    def find(self, name):
        return [span for span in self.all if span.name == name]

    async def until(self, name, count=1):
        async with asyncio.timeout(60):
            while len(self.find(name)) < count:
                await asyncio.sleep(0.01)
        return self.find(name)

    def traces(self):
        return {span.context.trace_id for span in self.all if not span.name.startswith('handler login')}


@pytest.fixture
def spans(world):
    return Spans(world)


async def test_a_change_is_a_cycle_with_its_handlers_and_requests(world, spans):
    requests = []

    class Requests(kopf.Instrument):
        def request_ends(self, request):
            requests.append(request)

    world.declare(kopf.on.create, 'create')
    async with world.operator(tracing=True, instruments=[Requests()]):
        await world.create()
        await world.handled()
        (cycle,) = await spans.until(CYCLE)
    (handler,), (patch,) = spans.find('handler create'), spans.find(PATCHING)
    assert handler.parent.span_id == patch.parent.span_id == cycle.context.span_id and cycle.parent is None
    assert cycle.attributes['kopf.reason'] == 'create' and cycle.attributes['kopf.outcome'] == 'done'
    assert handler.attributes['kopf.outcome'] == 'succeeded' and handler.attributes['kopf.object.name'] == 'obj'
    assert patch.kind is trace.SpanKind.CLIENT and patch.attributes['http.response.status_code'] == 200
    assert spans.traces() == {cycle.context.trace_id}
    (sent,) = [request.headers['traceparent'] for request in requests if request.method == 'PATCH']
    assert sent.startswith(f'00-{patch.context.trace_id:032x}-{patch.context.span_id:016x}-')


async def test_retries_and_restarts_are_one_trace(world, spans):
    errors = [kopf.TemporaryError("not yet", delay=0.05), kopf.TemporaryError("not yet", delay=0.5), None]
    world.declare(kopf.on.create, 'create', does=errors)
    async with world.operator(tracing=True):
        await world.create()
        await world.until_called('create', 2)
        await spans.until('handler create', 2)
    spans_before = Spans(world)  # the next operator has another provider
    async with world.operator(tracing=True):
        await world.handled()
        await spans_before.until('handler create')
    attempts = [*spans.find('handler create'), *spans_before.find('handler create')]
    assert [span.attributes['kopf.outcome'] for span in attempts] == ['retried', 'retried', 'succeeded']
    assert [span.attributes['kopf.retry'] for span in attempts] == [0, 1, 2]
    assert len(spans.traces() | spans_before.traces()) == 1
    first = spans.find(CYCLE)[0]
    assert {span.parent.span_id for span in spans.find(CYCLE)[1:]} <= {first.context.span_id}
    assert spans_before.find(CYCLE)[0].parent.span_id == first.context.span_id


async def test_another_change_is_another_trace(world, spans):
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.update, 'update')
    async with world.operator(tracing=True):
        await world.create()
        await world.handled()
        await world.edit(field='other')
        await world.handled(field='other')
        await spans.until(CYCLE, 2)
    (created,), (updated,) = spans.find('handler create'), spans.find('handler update')
    assert created.context.trace_id != updated.context.trace_id


def make_call(instruments, id, carried=None):
    cause = types.SimpleNamespace(occasion='update', key=KEY)
    return HandlerCall(instruments, id=id, kind='Handler', fn=print, cause=cause, retry=0, carried=carried)


def test_handlers_of_raw_events_do_not_part_a_trace(spans):
    instruments = Instruments([Tracing(spans.provider, '1.0')])
    # The first handler is called before it is known which trace the step continues.
    with ObjectStep(instruments, KEY, event='LISTED', number=1) as step:
        with make_call(instruments, 'event'):
            pass
        step.decide('update', ['update'], TRACEPARENT)
        with make_call(instruments, 'update', carried=TRACEPARENT):
            pass
        step.set_outcome(None, requeued=False)
    (event,), (update,) = spans.find('handler event'), spans.find('handler update')
    assert f'{update.context.trace_id:032x}' == TRACEPARENT.split('-')[1]
    assert f'{update.parent.span_id:016x}' == TRACEPARENT.split('-')[2]
    assert event.context.trace_id != update.context.trace_id


def test_refusals_of_webhooks_are_no_errors(spans):
    with make_call(Instruments([Tracing(spans.provider, '1.0')]), 'check') as call:
        call.set_outcome('refused', exception=kopf.AdmissionError("No."))
    (span,) = spans.find('handler check')
    assert span.status.is_unset and not span.events


async def test_errors_are_recorded(world, spans):
    world.declare(
        kopf.on.create, 'create', does=[ValueError("boo"), kopf.TemporaryError("no", delay=0), None], backoff=0
    )
    async with world.operator(tracing=True):
        await world.create()
        await world.handled()
        failed, retried, succeeded = await spans.until('handler create', 3)
    assert failed.status.status_code is trace.StatusCode.ERROR
    assert failed.events[0].attributes['exception.type'] == 'ValueError'
    assert retried.status.is_unset and succeeded.status.is_unset and not retried.events


async def test_spans_of_the_user_and_their_requests_are_in_the_handler(world, spans):
    tracer = spans.provider.get_tracer('mine')

    async def create(**_):
        with tracer.start_as_current_span('mine'):
            await kopf.apply(
                {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'x', 'namespace': 'default'}}
            )

    @kopf.on.create('kopfexamples', id='sync', registry=world.registry)
    def sync(**_):
        with tracer.start_as_current_span('threaded'):
            pass

    world.declare(kopf.on.create, 'create', does=create)
    async with world.operator(tracing=True):
        await world.create()
        await world.handled()
        await spans.until(CYCLE)
    (handler,), (mine,) = spans.find('handler create'), spans.find('mine')
    assert mine.parent.span_id == handler.context.span_id
    assert [span.parent.span_id for span in spans.all if 'configmaps' in span.name] == [mine.context.span_id]
    (threaded,), (sync_handler,) = spans.find('threaded'), spans.find('handler sync')
    assert threaded.parent.span_id == sync_handler.context.span_id


async def test_subhandlers_are_in_their_handler(world, spans):
    async def sub(**_):
        pass

    async def create(**_):
        await kopf.execute(fns={'sub': sub})

    world.declare(kopf.on.create, 'create', does=create)
    async with world.operator(tracing=True):
        await world.create()
        await world.handled()
        await spans.until(CYCLE)
    (parent,), (child,) = spans.find('handler create'), spans.find('handler create/sub')
    assert child.parent.span_id == parent.context.span_id


async def test_lists_and_watches_and_idle_steps_are_not_traced(world, spans):
    world.declare(kopf.on.update, 'update')
    async with world.operator(tracing=True):
        await world.create()
        await world.handled()
        await spans.until(PATCHING)
    assert not [span for span in spans.all if span.name.startswith('GET')]
    assert len(spans.find(CYCLE)) == 1  # of the patch with the state


async def test_log_lines_carry_the_ids(world, spans, caplog):
    async def create(logger, **_):
        logger.info("I am here.")

    world.declare(kopf.on.create, 'create', does=create)
    before = logging.getLogRecordFactory()
    async with world.operator(tracing=True):
        await world.create()
        await world.handled()
        (cycle,) = await spans.until(CYCLE)
    (handler,) = spans.find('handler create')
    ids = {
        record.getMessage(): (record.trace_id, record.span_id)
        for record in caplog.records
        if getattr(record, 'trace_id', None) is not None
    }
    expected = f'{handler.context.trace_id:032x}', f'{handler.context.span_id:016x}'
    assert ids["I am here."] == ids["Handler 'create' succeeded."] == expected
    assert ids["Creation is processed: 1 succeeded; 0 failed."] == (expected[0], f'{cycle.context.span_id:016x}')
    assert logging.getLogRecordFactory() is before


async def test_the_attributes_of_a_span_are_set_at_once(world, spans, monkeypatch):
    calls, original = [], Span.set_attributes
    monkeypatch.setattr(
        Span, 'set_attributes', lambda self, attributes: (calls.append(self.name), original(self, attributes))
    )
    world.declare(kopf.on.event, 'event')
    world.declare(kopf.on.event, 'other')
    await world.create()
    async with world.operator(tracing=True):
        await spans.until(CYCLE)
    (cycle,), (handler,) = spans.find(CYCLE), spans.find('handler event')
    assert (calls.count(cycle.name), calls.count(handler.name)) == (1, 1)
    known = {'kopf.resource': 'kopfexamples.kopf.dev', 'kopf.object.name': 'obj'}
    known |= {name: handler.attributes[name] for name in ('k8s.namespace.name', 'kopf.object.uid')}
    assert cycle.attributes == known | {
        'kopf.event': 'LISTED',
        'kopf.step': 1,
        'kopf.reason': '',
        'kopf.outcome': 'done',
    }
    assert handler.attributes == known | {
        'kopf.handler': 'event',
        'kopf.kind': 'Handler',
        'kopf.reason': 'LISTED',
        'kopf.retry': 0,
        'kopf.outcome': 'succeeded',
    }


async def annotate(annotations, patch, **_):
    if 'seen' not in annotations:
        patch.metadata.annotations['seen'] = 'yes'


async def test_the_only_handler_of_raw_events_is_the_root_of_the_trace(world, spans):
    world.declare(kopf.on.event, 'event', does=annotate)
    body = await world.create()
    async with world.operator(tracing=True):
        (patch,) = await spans.until(PATCHING)
        handler = (await spans.until('handler event'))[0]
    assert handler.parent is None and spans.find(CYCLE) == []
    assert patch.parent.span_id == handler.context.span_id and patch.context.trace_id == handler.context.trace_id
    assert handler.end_time <= patch.start_time  # as long as the handler, without the patch
    expected = {
        'kopf.handler': 'event',
        'kopf.reason': 'LISTED',
        'kopf.outcome': 'succeeded',
        'kopf.resource': 'kopfexamples.kopf.dev',
        'k8s.namespace.name': 'default',
        'kopf.object.name': 'obj',
        'kopf.object.uid': body['metadata']['uid'],
    }
    assert {name: handler.attributes[name] for name in expected} == expected


async def test_requests_of_a_handler_of_raw_events_are_in_its_span(world, spans):
    async def event(**_):
        await kopf.apply({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'x', 'namespace': 'default'}})

    world.declare(kopf.on.event, 'event', does=event)
    await world.create()
    async with world.operator(tracing=True):
        (handler,) = await spans.until('handler event')
    requests = [span for span in spans.all if 'configmaps' in span.name]
    assert requests and {span.parent.span_id for span in requests} == {handler.context.span_id}


async def test_several_handlers_of_raw_events_are_in_the_span_of_their_step(world, spans):
    world.declare(kopf.on.event, 'one')
    world.declare(kopf.on.event, 'two', does=annotate)
    await world.create()
    async with world.operator(tracing=True):
        cycle, *_ = await spans.until(CYCLE)
    (patch,) = spans.find(PATCHING)
    for span in (spans.find('handler one')[0], spans.find('handler two')[0], patch):
        assert span.parent.span_id == cycle.context.span_id and span.context.trace_id == cycle.context.trace_id


async def test_a_handler_of_raw_events_beside_another_one_is_in_the_span_of_the_step(world, spans):
    world.declare(kopf.on.event, 'event')
    world.declare(kopf.on.create, 'create')
    async with world.operator(tracing=True):
        await world.create()
        await world.handled()
        cycle, *_ = await spans.until(CYCLE)
    event, create = spans.find('handler event')[0], spans.find('handler create')[0]
    assert event.parent.span_id == create.parent.span_id == cycle.context.span_id


async def test_a_failed_handler_of_raw_events_is_a_failed_trace(world, spans):
    world.declare(kopf.on.event, 'event', does=kopf.PermanentError("boo"))
    await world.create()
    async with world.operator(tracing=True):
        (handler,) = await spans.until('handler event')
    assert handler.parent is None and handler.attributes['kopf.outcome'] == 'failed'
    assert (handler.status.status_code, handler.status.description) == (trace.StatusCode.ERROR, "boo")
    assert [event.attributes['exception.message'] for event in handler.events] == ["boo"]


async def test_a_refused_patch_of_a_handler_of_raw_events_is_a_failed_trace(world, spans):
    world.declare(kopf.on.event, 'event', does=annotate)
    world.sandbox.faults.error(403, times=1, verb='patch', name='obj', message="not for you")
    await world.create()
    async with world.operator(tracing=True):
        handler = (await spans.until('handler event'))[0]
    patch = spans.find(PATCHING)[0]
    assert patch.parent.span_id == handler.context.span_id and handler.attributes['kopf.outcome'] == 'succeeded'
    assert handler.status.status_code is patch.status.status_code is trace.StatusCode.ERROR
    assert "not for you" in handler.status.description and len(handler.events) == 1


def test_a_cancelled_handler_of_raw_events_records_that_once(spans):
    instruments = Instruments([Tracing(spans.provider, '1.0')])
    with contextlib.suppress(asyncio.CancelledError):
        with ObjectStep(instruments, KEY, event='ADDED', number=1, single=True), make_call(instruments, 'event'):
            raise asyncio.CancelledError
    (handler,) = spans.all
    assert handler.name == 'handler event' and handler.attributes['kopf.outcome'] == 'cancelled'
    assert [event.attributes['exception.type'] for event in handler.events] == ['asyncio.exceptions.CancelledError']


def test_a_request_without_a_handler_of_raw_events_is_in_the_span_of_its_step(spans):
    instruments = Instruments([Tracing(spans.provider, '1.0')])
    # Its handler does not match the event, but its patch of the previous one is still to be applied.
    with ObjectStep(instruments, KEY, event='ADDED', number=1, single=True) as step:
        with ApiRequest(instruments, server='http://localhost', method='PATCH', path='/api/v1/pods/obj'):
            pass
        step.set_outcome(None, requeued=False)
    request, cycle = spans.exporter.get_finished_spans()
    assert cycle.name == CYCLE and cycle.attributes['kopf.outcome'] == 'done'
    assert request.parent.span_id == cycle.context.span_id


def test_lines_after_a_handler_of_raw_events_have_the_ids_of_its_span(spans):
    tracing = Tracing(spans.provider, '1.0')
    instruments = Instruments([tracing])
    with ObjectStep(instruments, KEY, event='ADDED', number=1, single=True) as step:
        with make_call(instruments, 'event'):
            pass
        ids = tracing.find_ids()
        step.set_outcome(None, requeued=False)
    (handler,) = spans.find('handler event')
    assert ids == {'trace_id': f'{handler.context.trace_id:032x}', 'span_id': f'{handler.context.span_id:016x}'}


async def test_events_without_requests_are_one_span_each(world, spans):
    world.declare(kopf.on.event, 'event')
    await world.create()
    async with world.operator(tracing=True):
        await world.until_called('event')
        await world.edit(field='other')
        await spans.until('handler event', 2)
    assert [span.attributes['kopf.reason'] for span in spans.find('handler event')] == ['LISTED', 'MODIFIED']
    assert len(spans.traces()) == 2
    assert [span.name for span in spans.all if 'object' in str(span.attributes)] == ['handler event'] * 2


async def test_traces_that_are_not_sampled_stay_so_over_retries(world):
    spans = Spans(world, sampler=ParentBased(TraceIdRatioBased(0)))
    world.declare(kopf.on.create, 'create', does=[kopf.TemporaryError("not yet", delay=0.3), None])
    async with world.operator(tracing=True):
        await world.create()
        stored = await world.aio.wait_for(
            'kopfexamples', 'obj', lambda body: 'carried' in str(body['metadata'].get('annotations'))
        )
        await world.handled()
    carried = json.loads(stored['metadata']['annotations']['kopf.zalando.org/create'])['carried']
    assert spans.all == [] and int(carried.split('-')[-1], 16) & 1 == 0  # the flag of sampled traces


async def test_a_sampled_trace_stays_so_in_an_operator_that_samples_nothing(world, spans):
    errors = [kopf.TemporaryError("not yet", delay=0.05), kopf.TemporaryError("not yet", delay=0.5), None]
    world.declare(kopf.on.event, 'event')
    world.declare(kopf.on.create, 'create', does=errors)
    async with world.operator(tracing=True):
        await world.create()
        await world.until_called('create', 2)
        await spans.until('handler create', 2)
    later = Spans(world, sampler=ParentBased(TraceIdRatioBased(0)))
    async with world.operator(tracing=True):
        await world.handled()
        await later.until(CYCLE)
    (last,), (patch,) = later.find('handler create'), later.find(PATCHING)
    assert {span.context.trace_id for span in spans.find('handler create')} == {last.context.trace_id}
    assert patch.context.trace_id == last.context.trace_id and not later.find('handler event')


async def test_what_is_not_sampled_makes_no_spans(world, monkeypatch):
    made = []
    original = Tracing.handler_begins
    monkeypatch.setattr(Tracing, 'handler_begins', lambda self, call: (made.append(call.id), original(self, call)))
    Spans(world, sampler=ParentBased(TraceIdRatioBased(0)))
    world.declare(kopf.on.event, 'event')
    world.declare(kopf.on.create, 'create')
    async with world.operator(tracing=True):
        await world.create()
        await world.handled()
    assert made == []


async def test_steps_that_are_not_sampled_make_nothing(world, monkeypatch):
    made = []
    for kind in (ObjectStep, HandlerCall, ApiRequest):
        monkeypatch.setattr(kind, '__enter__', lambda self, enter=kind.__enter__: (made.append(self), enter(self))[1])
    drawn = Spans(world, sampler=ParentBased(TraceIdRatioBased(0)), id_generator=CountedIds())
    monkeypatch.setattr('kopf._core.engines.trace_exports._can_show_ids', lambda: False)
    world.declare(kopf.on.event, 'event')
    async with world.operator(tracing=True):
        await world.create()
        await world.until_called('event')
        await world.edit(field='other')
        await world.until_called('event', 2)
    assert [each for each in made if getattr(each, 'method', 'GET') != 'GET' or each.POINT == 'steps'] == []
    assert not [each for each in made if each.POINT == 'handlers' and each.key is not None]
    assert drawn.provider.id_generator.count == 0


class CountedIds(RandomIdGenerator):
    count = 0

    def generate_trace_id(self):
        self.count += 1
        return super().generate_trace_id()


async def test_requests_of_steps_that_are_not_sampled_make_no_spans(world, monkeypatch):
    made, sent = [], []
    enter, get_headers = ApiRequest.__enter__, Unsampled.get_headers
    monkeypatch.setattr(ApiRequest, '__enter__', lambda self: (made.append(self.method), enter(self))[1])
    monkeypatch.setattr(Unsampled, 'get_headers', lambda self: sent.append(get_headers(self)) or sent[-1])
    Spans(world, sampler=ParentBased(TraceIdRatioBased(0)))
    world.declare(kopf.on.create, 'create')
    async with world.operator(tracing=True):
        await world.create()
        await world.handled()
    assert 'PATCH' not in made
    assert [int(headers['traceparent'].split('-')[3], 16) & 1 for headers in sent] == [0]


async def test_a_sampled_trace_has_one_id_of_the_generator(world):
    class Ids(RandomIdGenerator):
        drawn = []

        def generate_trace_id(self):
            self.drawn.append(super().generate_trace_id())
            return self.drawn[-1]

    spans = Spans(world, sampler=ParentBased(TraceIdRatioBased(0.999999)), id_generator=Ids())
    world.declare(kopf.on.create, 'create')
    async with world.operator(tracing=True):
        await world.create()
        await world.handled()
        (cycle,) = await spans.until(CYCLE)
    assert {cycle.context.trace_id >> 64} <= {drawn >> 64 for drawn in Ids.drawn}
    assert len(Ids.drawn) == len(set(Ids.drawn))


async def test_samplers_of_other_packages_are_asked_for_each_cycle(world):
    class Sampler(StaticSampler):
        asked = []

        def should_sample(self, parent_context, trace_id, name, *args, **kwargs):
            self.asked.append(name)
            return super().should_sample(parent_context, trace_id, name, *args, **kwargs)

    spans = Spans(world, sampler=Sampler(Decision.DROP))
    world.declare(kopf.on.create, 'create')
    async with world.operator(tracing=True):
        await world.create()
        await world.handled()
        await world.until(lambda: CYCLE in Sampler.asked)
    assert spans.all == []


@pytest.mark.parametrize('instrumented', [False, True])
async def test_parts_of_a_trace_that_is_not_sampled_know_it(world, instrumented):
    spans, seen = Spans(world, sampler=ParentBased(TraceIdRatioBased(0))), []

    async def create(**_):
        with spans.provider.get_tracer('mine').start_as_current_span('mine') as span:
            seen.append(span.get_span_context())

    class Requests(kopf.Instrument):
        def request_ends(self, request):
            if request.method == 'PATCH':
                seen.append(request.headers['traceparent'])
                world.changed.set()

    class Handlers(Requests):
        def handler_ends(self, call):
            pass

    world.declare(kopf.on.create, 'create', does=create)
    async with world.operator(tracing=True, instruments=[Handlers() if instrumented else Requests()]):
        await world.create()
        await world.handled()
        await world.until(lambda: len(seen) == 2)
    context, sent = seen
    assert spans.all == [] and not context.trace_flags.sampled
    assert sent.split('-')[1] == f'{context.trace_id:032x}' and int(sent.split('-')[3], 16) & 1 == 0


@pytest.fixture
def lazy(monkeypatch):
    """Let no formatter show the ids of traces, as that of ``kopf run`` does by default."""
    monkeypatch.setattr('kopf._core.engines.trace_exports._can_show_ids', lambda: False)


@pytest.mark.parametrize('synchronous', [False, True])
async def test_spans_in_handlers_of_raw_events_know_that_the_trace_is_not_sampled(world, lazy, synchronous):
    spans, seen, sent = Spans(world, sampler=ParentBased(TraceIdRatioBased(0))), [], []
    # Without the parent, each of them would be the root of a sampled trace.
    own = TracerProvider().get_tracer('mine')

    def look(patch):
        for _ in range(2):
            with own.start_as_current_span('mine') as span:
                seen.append(span)
        patch.status['seen'] = len(seen)

    async def event(patch, **_):
        if synchronous:
            await asyncio.to_thread(look, patch)  # with a copy of the context, as for functions that are no coroutines
        else:
            look(patch)

    get_headers = Unsampled.get_headers
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(Unsampled, 'get_headers', lambda self: sent.append(get_headers(self)) or sent[-1])
        world.declare(kopf.on.event, 'event', does=event)
        async with world.operator(tracing=True):
            await world.create()
            await world.until(lambda: seen and sent)
    assert not any(span.is_recording() for span in seen) and spans.all == []
    traces = [f'{span.get_span_context().trace_id:032x}' for span in seen[:2]]
    assert traces[0] == traces[1] != f'{0:032x}'
    assert sent[0]['traceparent'].endswith(('-00', '-02'))
    assert synchronous or sent[0]['traceparent'].split('-')[1] == traces[0]


async def test_handlers_of_raw_events_are_sampled_as_often_as_told(world, lazy):
    spans, total = Spans(world, sampler=ParentBased(TraceIdRatioBased(0.5))), 200
    world.declare(kopf.on.event, 'event')
    async with world.operator(tracing=True):
        await world.create()
        for number in range(1, total):
            await world.until_called('event', number)
            await world.edit(field=number)
        await world.until_called('event', total)
    assert 0.3 < len(spans.find('handler event')) / total < 0.7  # six standard deviations
    assert len(spans.find('handler event')) == len(spans.traces())


async def test_handlers_that_succeed_at_once_leave_nothing_on_the_object(world, spans):
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.create, 'waiting', does=[kopf.TemporaryError("not yet", delay=0.1), None])
    async with world.operator(tracing=True):
        await world.create()
        await world.handled()
        await spans.until('handler waiting', 2)
    stored = [patch['metadata']['annotations'] for patch in world.patches() if 'carried' in str(patch)]
    assert stored and not any('carried' in (each.get('kopf.zalando.org/create') or '') for each in stored)


async def test_nothing_is_stored_or_sent_without_tracing(world):
    world.declare(kopf.on.create, 'create', does=[kopf.TemporaryError("not yet", delay=0.01), None])
    async with world.operator():
        await world.create()
        await world.handled()
    assert not any('carried' in str(patch) for patch in world.patches())
