"""Posting of Events: their content, order, and limits, and the failures of the API.

The API is a real HTTP server, so that everything down to the request is tested. Only where the time matters, a client
that never responds takes its place, and the time is virtual.
"""

import asyncio
import contextlib
import functools
import logging
import threading

import aiohttp.web
import pytest

import kopf._core.engines.posting as posting
from kopf._cogs.clients.api import ApiClient
from kopf._cogs.clients.errors import APITimeoutError
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.credentials import ConnectionInfo, Vault
from kopf._core.actions.execution import Handler, running
from kopf._core.actions.loggers import LocalObjectLogger, ObjectLogger


def make_raw(name='obj1', **fields):
    return {
        'apiVersion': 'kopf.dev/v1',
        'kind': 'KopfExample',
        'metadata': {'name': name, 'namespace': 'ns1', 'uid': f'uid-{name}'},
        'spec': {'field': 'value'},
        **fields,
    }


class FakeAPI:
    """An API that accepts Events, and can be told to refuse or to hold those about some objects."""

    def __init__(self):
        self.events = []
        self.attempts = []
        self.failures = {}  # name -> how many times to fail
        self.gates = {}  # name -> an event to wait for before the response
        self.forbidden = set()  # methods
        self._names = 0
        self._changed = asyncio.Condition()

    async def handle(self, request):
        event = await request.json()
        if request.method in self.forbidden:
            status = {'kind': 'Status', 'code': 403, 'message': 'forbidden'}
            return aiohttp.web.json_response(status, status=403)
        if request.method == 'PATCH':
            return await self._update(request.match_info['name'], event)
        name = event['involvedObject']['name']
        self.attempts.append((name, event['reason']))
        await self._notify()
        if name in self.gates:
            await self.gates[name].wait()
        if self.failures.get(name, 0) > 0:
            self.failures[name] -= 1
            return aiohttp.web.json_response({'kind': 'Status', 'code': 500, 'message': 'boo'}, status=500)
        self._names += 1
        event['metadata']['name'] = f'event-{self._names}'
        self.events.append(event)
        await self._notify()
        return aiohttp.web.json_response(event, status=201)

    async def _update(self, name, patch):
        for event in self.events:
            if event['metadata']['name'] == name:
                self.attempts.append((event['involvedObject']['name'], event['reason']))
                event.update(patch)
                await self._notify()
                return aiohttp.web.json_response(event)
        return aiohttp.web.json_response({'kind': 'Status', 'code': 404, 'message': 'gone'}, status=404)

    async def _notify(self):
        async with self._changed:
            self._changed.notify_all()

    async def wait_until(self, condition):
        async with self._changed:
            await asyncio.wait_for(self._changed.wait_for(condition), timeout=60)

    @property
    def summary(self):
        return [
            (event['involvedObject']['name'], event['type'], event['reason'], event['message']) for event in self.events
        ]

    def of(self, name):
        return [event['message'] for event in self.events if event['involvedObject']['name'] == name]


@pytest.fixture()
async def api():
    api = FakeAPI()
    app = aiohttp.web.Application()
    app.router.add_post('/api/v1/namespaces/{namespace}/events', api.handle)
    app.router.add_patch('/api/v1/namespaces/{namespace}/events/{name}', api.handle)
    runner = aiohttp.web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    site = aiohttp.web.TCPSite(runner, '127.0.0.1', 0)
    await site.start()
    api.url = f'http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}'
    yield api
    for gate in api.gates.values():
        gate.set()
    await runner.cleanup()


@pytest.fixture()
def settings():
    return OperatorSettings()


@pytest.fixture()
def body():
    return Body(make_raw())


@pytest.fixture()
def logger(body, settings):
    return ObjectLogger(body=body, settings=settings)


@pytest.fixture(autouse=True)
def _log_level():
    objects_logger = logging.getLogger('kopf.objects')
    objects_logger.setLevel(logging.DEBUG)
    yield
    objects_logger.setLevel(logging.NOTSET)


@contextlib.asynccontextmanager
async def operating(api, settings):
    """Yield what an operator provides for its handlers."""
    vault = Vault({'login': ConnectionInfo(server=api.url)})
    async with ApiClient(vault, settings) as client, posting.Poster(client, settings) as poster:
        yield poster


async def test_posted_events_refer_to_their_objects(api, settings, body):
    async with operating(api, settings):
        posting.event(body, type='SomeType', reason='SomeReason', message='some message')
    (event,) = api.events
    assert event['type'] == 'SomeType'
    assert event['reason'] == 'SomeReason'
    assert event['message'] == 'some message'
    assert event['involvedObject'] == {
        'apiVersion': 'kopf.dev/v1',
        'kind': 'KopfExample',
        'name': 'obj1',
        'namespace': 'ns1',
        'uid': 'uid-obj1',
    }


async def test_shortcuts_have_types_of_their_own(api, settings, body):
    async with operating(api, settings):
        posting.info(body, reason='Reason1', message='one')
        posting.warn(body, reason='Reason2', message='two')
        posting.exception(body, reason='Reason3', message='three', exc=ValueError('boo'))
        posting.exception(body, exc=ValueError('boo'))
        posting.exception(body, message='five', exc=TimeoutError())
        try:
            raise KeyError('boo')
        except KeyError:
            posting.exception(body)
        posting.exception(body, reason='Reason7', message='without exceptions')
        posting.exception(body, message='without anything')
    assert api.summary == [
        ('obj1', 'Normal', 'Reason1', 'one'),
        ('obj1', 'Warning', 'Reason2', 'two'),
        ('obj1', 'Error', 'Reason3', 'three boo'),
        ('obj1', 'Error', 'ValueError', 'boo'),
        ('obj1', 'Error', 'TimeoutError', 'five'),
        ('obj1', 'Error', 'KeyError', "'boo'"),
        ('obj1', 'Error', 'Reason7', 'without exceptions'),
        ('obj1', 'Error', 'Exception', 'without anything'),
    ]


@pytest.mark.parametrize('wrap', [list, tuple, iter])
async def test_an_event_can_be_posted_about_several_objects(api, settings, body, wrap):
    async with operating(api, settings):
        posting.info(wrap([body, make_raw('obj2')]), reason='Reason', message='msg')
    assert {name for name, *_ in api.summary} == {'obj1', 'obj2'}


@pytest.mark.parametrize('wrong', ['text', [object()], [['nested']]])
async def test_other_values_than_bodies_are_refused(api, settings, wrong):
    async with operating(api, settings):
        with pytest.raises(TypeError):
            posting.info(wrong, reason='Reason')


@pytest.mark.parametrize('api_version', ['v1', 'events.k8s.io/v1', 'events.k8s.io/v1beta1'])
async def test_events_about_events_are_not_posted(api, settings, api_version):
    raw = make_raw(apiVersion=api_version, kind='Event')
    async with operating(api, settings):
        posting.info(raw, reason='Reason')
        ObjectLogger(body=Body(raw), settings=settings).info("hello")
    assert api.attempts == []


async def test_custom_kinds_named_as_events_are_posted(api, settings):
    async with operating(api, settings):
        posting.info(make_raw(apiVersion='kopf.dev/v1', kind='Event'), reason='Reason')
    assert len(api.events) == 1


def test_nothing_is_posted_outside_of_operators(body, settings):
    posting.info(body, reason='Reason')
    ObjectLogger(body=body, settings=settings).info("hello")


async def test_nothing_is_posted_after_the_operator_has_ended(api, settings, body):
    async with operating(api, settings) as poster:
        pass
    posting.info(body, reason='Reason')
    poster.post(posting.K8sEvent({'kind': 'X', 'name': 'n'}, 'Normal', 'Reason', 'message', ()))
    assert api.attempts == []
    assert posting.poster_var.get(None) is None


async def test_nothing_is_posted_if_the_posting_is_disabled(api, settings, body, logger):
    settings.posting.enabled = False
    async with operating(api, settings):
        posting.event(body, type='SomeType', reason='Reason')
        posting.warn(body, reason='Reason')
        logger.error("hello")
    assert api.attempts == []


@pytest.mark.parametrize(
    'level, expected',
    [
        (logging.DEBUG, ['Normal', 'Warning', 'Error', 'SomeType']),
        (logging.INFO, ['Normal', 'Warning', 'Error', 'SomeType']),
        (logging.WARNING, ['Warning', 'Error', 'SomeType']),
        (logging.ERROR, ['Error', 'SomeType']),
        (logging.CRITICAL, ['SomeType']),
    ],
)
async def test_types_of_events_obey_the_level_of_the_settings(api, settings, body, level, expected):
    settings.posting.level = level
    async with operating(api, settings):
        for type in ['Normal', 'Warning', 'Error', 'SomeType']:
            posting.event(body, type=type, reason='Reason')
    assert [type for _, type, *_ in api.summary] == expected


@pytest.mark.parametrize(
    'level, expected',
    [
        (logging.DEBUG, ['Debug', 'Normal', 'Warning', 'Error', 'Fatal']),
        (logging.INFO, ['Normal', 'Warning', 'Error', 'Fatal']),
        (logging.WARNING, ['Warning', 'Error', 'Fatal']),
        (logging.ERROR, ['Error', 'Fatal']),
    ],
)
async def test_log_messages_obey_the_level_of_the_settings(api, settings, logger, level, expected):
    settings.posting.level = level
    async with operating(api, settings):
        logger.debug("msg %s", 1)
        logger.info("msg %s", 1)
        logger.warning("msg %s", 1)
        logger.error("msg %s", 1)
        logger.critical("msg %s", 1)
    assert api.summary == [('obj1', type, 'Logging', 'msg 1') for type in expected]


async def test_ids_of_handlers_can_be_the_reasons_of_log_messages(api, settings, logger):
    async def call(**_):
        pass

    handler, long = Handler(id='create/sub', fn=call), Handler(id='x' * 200, fn=call)
    settings.posting.handler_reasons = True
    async with operating(api, settings):
        logger.info("of the framework")
        with running(handler, None):
            logger.info("of the user")
        logger.info("%s succeeded.", handler)
        with running(long, None):
            logger.info("too long")
    assert [reason for _, _, reason, _ in api.summary] == ['Logging', 'create/sub', 'create/sub', 'x' * 128]


async def test_exceptions_in_logs_are_posted_with_the_message(api, settings, logger):
    async with operating(api, settings):
        try:
            raise ValueError("boo")
        except ValueError:
            logger.exception("failed")
    (message,) = api.of('obj1')
    assert message.startswith("failed\nTraceback (most recent call last):\n")
    assert message.endswith("\nValueError: boo")


async def test_logs_of_others_and_disabled_logs_are_not_posted(api, settings, body, logger):
    async with operating(api, settings):
        LocalObjectLogger(body=body, settings=settings).error("local")
        logging.getLogger('kopf.objects').error("about nothing")
        logging.getLogger('mine').error("of mine")
        settings.posting.loggers = False
        logger.error("hello")
        posting.info(body, reason='Reason', message='explicit')
    assert api.of('obj1') == ['explicit']


async def test_events_can_be_posted_from_threads(api, settings, body, logger):
    asyncio.get_running_loop().set_debug(True)  # complains about calls that are not thread-safe
    async with operating(api, settings):
        await asyncio.to_thread(posting.info, body, reason='Reason', message='event')
        await asyncio.to_thread(logger.info, "log")
        await api.wait_until(lambda: len(api.events) == 2)
    assert api.of('obj1') == ['event', 'log']


async def test_events_from_threads_are_posted_even_at_the_exit(api, settings, body):
    async with operating(api, settings) as poster:
        thread = threading.Thread(
            target=functools.partial(
                poster.post, posting.K8sEvent({'name': 'obj1', 'namespace': 'ns1'}, 'Normal', 'Reason', 'late', ())
            )
        )
        thread.start()
        thread.join()
    assert api.of('obj1') == ['late']


async def test_events_from_threads_after_the_loop_are_dropped(settings):
    def run_and_close():
        async def run():
            async with posting.Poster(None, settings) as poster:
                return poster

        return asyncio.run(run())

    poster = await asyncio.to_thread(run_and_close)
    poster.post(posting.K8sEvent({'name': 'obj1'}, 'Normal', 'Reason', 'late', ()))


async def test_events_can_be_posted_from_tasks_of_the_operator(api, settings, body):
    async def handler():
        posting.info(body, reason='Reason', message='event')

    async with operating(api, settings):
        await asyncio.create_task(handler())
    assert api.of('obj1') == ['event']


async def test_operators_do_not_mix(api, settings, body):
    other_settings = OperatorSettings()
    other_settings.posting.enabled = False

    async def run(settings, message):
        async with operating(api, settings):
            posting.info(body, reason='Reason', message=message)

    await asyncio.gather(run(settings, 'enabled'), run(other_settings, 'disabled'))
    assert api.of('obj1') == ['enabled']


async def test_events_of_an_object_are_posted_in_their_order(api, settings, body):
    settings.posting.level = logging.WARNING
    async with operating(api, settings):
        for i in range(20):
            posting.warn([body, make_raw('obj2')], reason=f'Reason{i % 2}', message=f'{i}')
    assert api.of('obj1') == [f'{i}' for i in range(20)]
    assert api.of('obj2') == [f'{i}' for i in range(20)]


async def test_exceptions_show_their_types(api, settings, body):
    async with operating(api, settings):
        posting.exception(body, reason='Failed', message='It failed:', exc=KeyError('nosuch'))
        posting.exception(body, reason='Failed', exc=AssertionError())
        posting.exception(body, exc=KeyError('nosuch'))  # the type is the reason
    assert [(event['reason'], event['message']) for event in api.events] == [
        ('Failed', "It failed: KeyError: 'nosuch'"),
        ('Failed', "AssertionError()"),
        ('KeyError', "'nosuch'"),
    ]


async def test_equal_events_are_one_with_a_count(api, settings, body):
    async with operating(api, settings):
        posting.info(body, reason='Reason', message='hello')
        await api.wait_until(lambda: api.events)
        first = dict(api.events[0])
        posting.info(body, reason='Reason', message='hello')
        await api.wait_until(lambda: api.events[0].get('count') == 2)
        for _ in range(100):
            posting.info(body, reason='Reason', message='hello')
    (event,) = api.events
    assert 'count' not in first and 'series' not in first
    assert event.pop('count') == 102
    assert (series := event.pop('series'))['count'] == 102
    assert series['lastObservedTime'] >= first['eventTime']
    assert event.pop('lastTimestamp') >= first.pop('lastTimestamp')
    assert event == first
    assert len(api.attempts) == 3  # Events that come while an equal one waits are only counted


async def test_events_that_are_forgotten_by_the_cluster_are_posted_anew(api, settings, body):
    async with operating(api, settings):
        posting.info(body, reason='Reason', message='hello')
        await api.wait_until(lambda: api.events)
        old = api.events.pop()
        posting.info(body, reason='Reason', message='hello')
        await api.wait_until(lambda: api.events)
    assert (api.events[0]['count'], api.events[0]['firstTimestamp']) == (2, old['firstTimestamp'])
    assert api.events[0]['metadata']['name'] != old['metadata']['name']


async def test_events_are_posted_anew_if_they_must_not_be_changed(api, settings, body, caplog):
    caplog.set_level('DEBUG', 'kopf._cogs.clients.events')
    api.forbidden = {'PATCH'}
    async with operating(api, settings):
        for i in range(3):
            posting.info(body, reason='Reason', message='hello')
            await api.wait_until(lambda number=i + 1: len(api.events) == number)
    assert [event.get('count') for event in api.events] == [None, 2, 3]
    assert [event.get('series', {}).get('count') for event in api.events] == [None, 2, 3]
    assert caplog.text.count("Grant the verb patch for events") == 1
    assert not [record for record in caplog.records if record.name.startswith("kopf") and record.levelname != "DEBUG"]


async def test_a_missing_permission_is_reported_once_with_the_rule_to_grant(api, settings, body, caplog):
    api.forbidden = {'POST'}
    async with operating(api, settings):
        for i in range(3):
            posting.info(body, reason='Reason', message=f'{i}')
    assert caplog.text.count("Grant the verbs create, patch for events of the core API group") == 1
    assert not api.events


async def test_floods_are_cut_off_and_counted(api, settings, body, caplog):
    caplog.set_level('DEBUG', posting.logger.name)
    async with operating(api, settings) as poster:
        for i in range(60):
            posting.info(body, reason=f'Reason{i}', message='hello')
        posting.info(make_raw('obj2'), reason='Reason', message='hello')
    assert len(api.of('obj1')) == 25
    assert len(api.of('obj2')) == 1
    assert poster.dropped == 35
    assert "Too many events about KopfExample/ns1/obj1" in caplog.text


async def test_order_is_kept_over_retries(api, settings, body):
    api.failures['obj1'] = 2
    async with operating(api, settings):
        posting.info(body, reason='Reason1', message='one', backoffs=[0, 0])
        posting.info(body, reason='Reason2', message='two', backoffs=0)
    assert api.attempts == [('obj1', 'Reason1')] * 3 + [('obj1', 'Reason2')]
    assert api.of('obj1') == ['one', 'two']


@pytest.mark.parametrize('backoffs, attempts', [([], 1), ([0], 2), (0, 2), ([0, 0], 3)])
async def test_failures_are_limited_and_do_not_stop_the_others(api, settings, body, backoffs, attempts):
    api.failures['obj1'] = attempts
    async with operating(api, settings):
        posting.info(body, reason='Reason1', message='lost', backoffs=backoffs)
        posting.info(body, reason='Reason2', message='posted', backoffs=backoffs)
    assert api.attempts.count(('obj1', 'Reason1')) == attempts
    assert api.of('obj1') == ['posted']


async def test_backoffs_are_those_of_the_settings_by_default(api, settings, body, logger):
    settings.posting.default_backoffs = [0]
    settings.posting.logging_backoffs = [0, 0]
    api.failures['obj1'] = 5
    async with operating(api, settings):
        posting.info(body, reason='Explicit', message='lost')
        logger.info("lost")
        posting.info(body, reason='Explicit', message='posted')
    assert api.attempts == [('obj1', 'Explicit')] * 2 + [('obj1', 'Logging')] * 3 + [('obj1', 'Explicit')]


async def test_slow_objects_do_not_hold_others(api, settings, body):
    gate = api.gates['obj1'] = asyncio.Event()
    async with operating(api, settings):
        posting.info(body, reason='Reason', message='slow')
        await api.wait_until(lambda: api.attempts)
        posting.info([body, make_raw('obj2')], reason='Reason', message='fast')
        await api.wait_until(lambda: api.of('obj2'))
        assert api.of('obj1') == []
        gate.set()
    assert api.of('obj1') == ['slow', 'fast']


async def test_the_number_of_objects_posted_at_once_is_limited(api, settings):
    settings.posting.worker_limit = 2
    api.gates = {f'obj{i}': asyncio.Event() for i in range(5)}
    async with operating(api, settings):
        posting.info([make_raw(name) for name in api.gates], reason='Reason')
        await api.wait_until(lambda: len(api.attempts) == 2)
        api.gates['obj0'].set()
        await api.wait_until(lambda: len(api.attempts) == 3)
        assert [name for name, _ in api.attempts] == ['obj0', 'obj1', 'obj2']
        for gate in api.gates.values():
            gate.set()
    assert len(api.events) == 5


async def test_chatty_objects_take_turns_with_others(api, settings, body):
    settings.posting.worker_limit = 1
    async with operating(api, settings):
        for i in range(3):
            posting.info(body, reason='Reason', message=f'{i}')
        posting.info(make_raw('obj2'), reason='Reason')
    assert [name for name, _ in api.attempts] == ['obj1', 'obj2', 'obj1', 'obj1']


class SlowClient:
    """A client that answers after a delay, or never, whichever way it is asked."""

    def __init__(self, delay=float('inf')):
        self.calls = 0
        self._delay = delay

    def __getattr__(self, name):
        return self._call

    async def _call(self, *args, **kwargs):
        self.calls += 1
        await (asyncio.Event().wait() if self._delay == float('inf') else asyncio.sleep(self._delay))
        return b'{}'


@pytest.mark.looptime
async def test_nothing_runs_for_idle_objects(settings):
    client = SlowClient(delay=0.1)
    async with posting.Poster(client, settings):
        posting.info([make_raw(f'obj{i}') for i in range(5)], reason='Reason')
        await asyncio.sleep(0.15)
        assert len(asyncio.all_tasks()) == 1 + 5
        await asyncio.sleep(0.1)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        posting.info(make_raw('obj0'), reason='Reason')
    assert client.calls == 5 + 1


@pytest.mark.looptime
async def test_the_exit_waits_for_events_only_for_a_while(settings, body, caplog):
    loop = asyncio.get_running_loop()
    client = SlowClient()
    async with posting.Poster(client, settings):
        for i in range(3):
            posting.info([body, make_raw('obj2')], reason='Reason', message=f'{i}')
        started = loop.time()
    assert loop.time() - started == pytest.approx(2.0)
    assert client.calls == 2
    assert "Exiting without posting 6 event(s)" in caplog.text
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.looptime
async def test_a_cancelled_exit_ends_at_once(settings, body):
    async def operate():
        async with posting.Poster(SlowClient(), settings):
            posting.info(body, reason='Reason')

    task = asyncio.create_task(operate())
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.looptime
async def test_places_of_slow_objects_are_given_to_others(settings):
    settings.posting.worker_limit = 2
    client = SlowClient()
    async with posting.Poster(client, settings):
        posting.info([make_raw(f'obj{i}') for i in range(5)], reason='Reason')
        calls = []
        for _ in range(4):
            await asyncio.sleep(0.9)
            calls.append(client.calls)
        assert calls == [2, 4, 5, 5]


class HangingClient(SlowClient):
    """A client that the API server does not answer in time."""

    async def _call(self, *args, **kwargs):
        self.calls += 1
        await asyncio.sleep(10)
        raise APITimeoutError("too late")


@pytest.mark.looptime
async def test_events_that_are_not_accepted_in_time_are_dropped_and_counted(settings, body, caplog):
    client = HangingClient()
    async with posting.Poster(client, settings) as poster:
        posting.info([make_raw(f'obj{i}') for i in range(5)], reason='Reason')
        await asyncio.sleep(15)
        assert (client.calls, poster.dropped, poster.qsize()) == (5, 5, 0)
        posting.info(body, reason='Reason', message='1')
        await asyncio.sleep(60)
        posting.info(body, reason='Reason', message='2')
        await asyncio.sleep(15)
        assert poster.dropped == 7
    assert caplog.text.count("The API server does not accept all events in time") == 2
    assert "some are lost: 7 by now" in caplog.text
    assert 'Failed to post' not in caplog.text


@pytest.mark.looptime
async def test_events_that_wait_too_long_for_others_are_dropped_and_counted(settings):
    settings.posting.worker_limit = 1
    client = HangingClient()
    async with posting.Poster(client, settings) as poster:
        posting.info([make_raw(f'obj{i}') for i in range(100)], reason='Reason')
        await asyncio.sleep(80)
        # One begins each second, as slow ones leave their turns to others.
        assert 60 <= client.calls <= 61
        assert (poster.dropped, poster.qsize()) == (100, 0)
