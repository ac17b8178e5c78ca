"""The seam alone: who is told what, and that no instrument can do any harm."""

import asyncio
import contextvars
import gc
import logging
import types

import pytest

import kopf
from kopf._cogs.structs.instruments import (
    ApiRequest,
    HandlerCall,
    Instruments,
    ObjectKey,
    ObjectStep,
    Unsampled,
    get_current_activity,
)
from kopf._cogs.structs.references import Resource

KEY = ObjectKey(Resource('kopf.dev', 'v1', 'kopfexamples'), 'ns', 'obj', 'uid1')


class Cause:
    key, occasion = KEY, 'update'


class Recorder(kopf.Instrument):
    def __init__(self):
        self.seen = []

    def step_begins(self, step):
        self.seen.append(('begins', step))

    def step_ends(self, step):
        self.seen.append(('ends', step))

    @property
    def hooks(self):
        return [hook for hook, _ in self.seen]


class Broken(Recorder):
    def step_begins(self, step):
        super().step_begins(step)
        raise ValueError("boo!")

    def __repr__(self):
        return 'Broken!'


def make_step(instruments):
    return ObjectStep(instruments, KEY, event=None, number=1)


def make_call(instruments):
    return HandlerCall(instruments, id='fn', kind='Handler', fn=print, cause=Cause(), retry=0)


def test_instruments_listen_only_where_they_override_something():
    recorder = Recorder()
    instruments = Instruments([recorder])
    assert instruments.steps == (recorder,)
    assert not instruments.handlers and not instruments.requests and not instruments.watches and not instruments.queue


def test_instruments_are_told_of_both_ends():
    recorder = Recorder()
    with make_step(Instruments([recorder])) as step:
        assert recorder.hooks == ['begins'] and step.duration is None
        step.set_outcome(12.3, requeued=False)
    assert recorder.hooks == ['begins', 'ends']
    assert (step.outcome, step.delay) == ('delayed', 12.3) and step.duration >= 0


@pytest.mark.parametrize(
    'error, outcome',
    [(ValueError(), 'failed'), (asyncio.CancelledError(), 'cancelled'), (GeneratorExit(), 'cancelled')],
)
def test_instruments_are_told_of_errors_while_the_end_is_told(error, outcome):
    class Errors(kopf.Instrument):
        seen = None

        def step_ends(self, step):
            self.seen = step.exception

    errors = Errors()
    with pytest.raises(type(error)), make_step(Instruments([errors])) as step:
        raise error
    assert errors.seen is error
    assert step.outcome == outcome and step.exception is None


def test_failing_instruments_are_reported_once_and_removed(caplog):
    broken, recorder = Broken(), Recorder()
    instruments = Instruments([broken, recorder])
    for _ in range(2):
        with make_step(instruments):
            pass
    assert broken.hooks == ['begins']
    assert recorder.hooks == ['begins', 'ends'] * 2
    records = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [record.getMessage() for record in records] == [
        "The instrument Broken! has failed in step_begins(), and is removed."
    ]
    assert records[0].exc_info is not None


def test_added_instruments_are_not_told_of_ends_without_beginnings():
    instruments, late = Instruments([Recorder()]), Recorder()
    with make_step(instruments):
        instruments.add(late)
    assert late.hooks == []
    with make_step(instruments):
        pass
    assert late.hooks == ['begins', 'ends']


def test_removed_instruments_are_told_nothing_more():
    recorder = Recorder()
    instruments = Instruments([recorder])
    with make_step(instruments):
        instruments.remove(recorder)
    assert recorder.hooks == ['begins'] and not instruments.steps


def test_instruments_are_added_once():
    recorder = Recorder()
    assert Instruments([recorder, recorder]).steps == (recorder,)


def test_other_objects_are_no_instruments():
    with pytest.raises(TypeError, match=r"Instruments must be instances of kopf.Instrument, not <object"):
        Instruments([object()])


def test_coroutines_are_refused_as_nothing_would_await_them():
    class Wrong(kopf.Instrument):
        async def watch_changes(self, change):
            pass

    with pytest.raises(TypeError, match=r"Wrong.watch_changes must be a plain function, not a coroutine."):
        Instruments([Wrong()])


async def test_spans_know_what_they_are_a_part_of():
    instruments = Instruments()
    assert get_current_activity() is None
    with make_step(instruments) as step:
        with make_call(instruments) as call:
            assert call.parent is step and get_current_activity() is call
            assert await asyncio.to_thread(get_current_activity) is call
        assert get_current_activity() is step
        lasting = asyncio.create_task(asyncio.sleep(0, lambda: get_current_activity()))
    assert get_current_activity() is None
    assert (await lasting)() is None


async def test_an_ended_call_is_no_parent_of_requests_in_its_tasks():
    instruments, begin = Instruments(), asyncio.Event()

    async def continue_later():
        await begin.wait()
        with make_call(instruments) as call:
            return call.parent, get_current_activity() is call

    with make_step(instruments):
        task = asyncio.create_task(continue_later())
    begin.set()
    assert await task == (None, True)


async def test_instruments_can_set_variables_for_what_they_are_told_of():
    from contextvars import ContextVar

    var = ContextVar('var', default='outside')

    class Tracer(kopf.Instrument):
        def handler_begins(self, call):
            self.token = var.set('inside')

        def handler_ends(self, call):
            var.reset(self.token)

    with make_call(Instruments([Tracer()])):
        assert var.get() == 'inside' and await asyncio.to_thread(var.get) == 'inside'
    assert var.get() == 'outside'


@pytest.mark.parametrize(
    'method, path, verb, route',
    [
        ('GET', '/apis', 'get', '/apis'),
        ('GET', '/version', 'get', '/version'),
        ('GET', '/api/v1', 'get', '/api/v1'),
        ('GET', '/apis/kopf.dev/v1', 'get', '/apis/kopf.dev/v1'),
        ('GET', '/api/v1/pods', 'list', '/api/v1/pods'),
        ('GET', '/api/v1/namespaces', 'list', '/api/v1/namespaces'),
        ('GET', '/api/v1/namespaces/ns', 'get', '/api/v1/namespaces/{name}'),
        ('PUT', '/api/v1/namespaces/ns/finalize', 'update', '/api/v1/namespaces/{name}/finalize'),
        ('POST', '/api/v1/namespaces/ns/events', 'create', '/api/v1/namespaces/{namespace}/events'),
        (
            'PATCH',
            '/apis/kopf.dev/v1/namespaces/ns/kopfexamples/obj/status',
            'patch',
            '/apis/kopf.dev/v1/namespaces/{namespace}/kopfexamples/{name}/status',
        ),
        ('DELETE', '/apis/kopf.dev/v1/kopfexamples/obj', 'delete', '/apis/kopf.dev/v1/kopfexamples/{name}'),
        ('DELETE', '/apis/kopf.dev/v1/kopfexamples', 'deletecollection', '/apis/kopf.dev/v1/kopfexamples'),
    ],
)
def test_requests_can_be_told_of_without_names(method, path, verb, route):
    request = ApiRequest(Instruments(), server='http://localhost', method=method, path=path)
    assert (request.verb, request.route) == (verb, route)


def test_headers_that_cannot_be_sent_are_left_out():
    request = ApiRequest(Instruments(), server='http://localhost', method='GET', path='/apis')
    request.headers |= {'traceparent': '00-1-2-01', 'x': 'two\r\nlines', 'y': 'ü', 'z:': '', '': 'nameless'}
    assert request.get_headers() == {'traceparent': '00-1-2-01'}


def test_traces_that_are_not_sampled_do_not_keep_the_former_ones_in_memory():
    def step():
        unsampled = Unsampled(types.SimpleNamespace(attach=lambda: None))
        unsampled.begin_step('MODIFIED', 1)
        inherited = contextvars.copy_context()  # of a daemon, or of a worker, which starts the next step
        unsampled.end_step()
        return inherited

    def count():
        gc.collect()
        return sum(type(each) is Unsampled for each in gc.get_objects())

    before, context = count(), contextvars.copy_context()
    for _ in range(20):
        context = context.run(step)
    assert count() == before + 1
