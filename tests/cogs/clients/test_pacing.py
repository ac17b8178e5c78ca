"""How fast servers are asked: the gate alone, in virtual time; and the client, as the server sees it."""

import asyncio
import functools
import time

import orjson
import pytest
from aiohttp import web

from kopf._cogs.clients import api, errors, pacing
from kopf._cogs.structs.credentials import ConnectionInfo

# The gate alone.


class Visitors:
    """The tasks that come to a gate, and when they are let in."""

    def __init__(self, settings):
        self.settings = settings
        self.tasks = []
        self.times = {}

    @functools.cached_property
    def gate(self):
        return pacing.Gate('server', self.settings)

    def come(self, *names, lasting=0.0, yielding=False, way='enter', query='/x'):
        for name in names:
            with pacing.background(yielding):
                self.tasks.append(asyncio.create_task(self.visit(name, lasting, way, query), name=str(name)))

    async def visit(self, name, lasting, way, query):
        slot = await getattr(self.gate, way)(query)
        self.times[name] = asyncio.get_running_loop().time()
        await asyncio.sleep(lasting)
        self.gate.leave(slot)

    def leave(self, *names):
        for task in self.tasks:
            if task.get_name() in names:
                task.cancel()

    async def all(self):
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.gate.close()
        return self.times


@pytest.fixture
def visitors(settings):
    return Visitors(settings)


def about(seconds):
    return pytest.approx(seconds, abs=0.005)


@pytest.mark.looptime
async def test_as_many_at_a_time_as_allowed(visitors, settings):
    settings.networking.max_connections = 2
    visitors.come(*'abcde', lasting=1)
    assert await visitors.all() == about({'a': 0, 'b': 0, 'c': 1, 'd': 1, 'e': 2})


@pytest.mark.looptime
async def test_as_many_a_second_as_allowed(visitors, settings):
    settings.networking.requests_per_second = 2
    settings.networking.requests_burst = 3
    visitors.come(0)
    await asyncio.sleep(100)  # rights to make requests are not hoarded
    visitors.come(*'abcde')
    times = await visitors.all()
    assert times == about({0: 0, 'a': 100, 'b': 100, 'c': 100, 'd': 100.5, 'e': 101})


@pytest.mark.looptime
@pytest.mark.parametrize('rate', [None, 0])
async def test_no_limit_a_second(visitors, settings, rate):
    settings.networking.requests_per_second = rate
    settings.networking.requests_burst = 1
    visitors.come(*range(1000))
    assert set((await visitors.all()).values()) == {0}


@pytest.mark.looptime
async def test_limits_can_be_changed_at_any_time(visitors, settings):
    settings.networking.requests_per_second = None
    visitors.come(*range(10000))
    await asyncio.sleep(1)
    settings.networking.requests_per_second = 1
    settings.networking.requests_burst = 1
    visitors.come('a', 'b')
    times = await visitors.all()
    assert (times['a'], times['b']) == (about(1), about(2))


@pytest.mark.looptime
async def test_all_wait_as_long_as_the_server_asks_for(visitors, caplog):
    visitors.gate.hold(5)
    visitors.gate.hold(3)  # by another one, who was asked earlier
    visitors.come('a', 'b')
    visitors.come('stream', way='pass_by')
    await asyncio.sleep(2)
    visitors.gate.hold(5)
    visitors.come('c')
    assert await visitors.all() == about({'a': 7, 'b': 7, 'c': 7, 'stream': 7})
    assert [record.getMessage() for record in caplog.records] == [
        "The server server has too many requests, and asks to wait for 5 seconds; so all requests to it wait."
    ]


@pytest.mark.looptime
async def test_the_longest_of_the_waiting_times_counts(visitors):
    visitors.gate.hold(5)
    visitors.gate.hold(3)
    visitors.come('a')
    visitors.come('stream', way='pass_by')
    assert await visitors.all() == about({'a': 5, 'stream': 5})


@pytest.mark.looptime
async def test_some_time_is_waited_even_if_the_server_does_not_say_how_long(visitors):
    visitors.gate.hold(None)
    visitors.come('a')
    assert await visitors.all() == about({'a': 1})


@pytest.mark.looptime
async def test_urgent_requests_go_first(visitors, settings):
    settings.networking.max_connections = 1
    visitors.come('first', lasting=1)
    visitors.come('old1', 'old2', lasting=1, yielding=True)
    visitors.come('new1', 'new2', lasting=1)
    await visitors.all()
    assert list(visitors.times) == ['first', 'new1', 'new2', 'old1', 'old2']


@pytest.mark.looptime
async def test_streams_do_not_wait_for_requests(visitors, settings):
    settings.networking.max_connections = 1
    visitors.come('request', 'another', lasting=100)
    visitors.come('stream', way='pass_by')
    assert await visitors.all() == about({'request': 0, 'another': 100, 'stream': 0})


@pytest.mark.looptime
async def test_cancelled_visitors_take_no_places(visitors, settings):
    settings.networking.max_connections = 1
    visitors.come('a', lasting=1)
    visitors.come('b', 'c', 'd', lasting=1)
    await asyncio.sleep(0.5)
    visitors.leave('b')
    await asyncio.sleep(0.5)  # now, it is the turn of the next one: at the same time as it leaves
    visitors.leave('c')
    visitors.come('e', lasting=1)
    times = await visitors.all()
    assert {name: times.get(name) for name in 'bde'} == {'b': None, 'd': about(times['d']), 'e': about(times['d'] + 1)}
    assert not visitors.gate._in_flight


@pytest.mark.looptime
async def test_admitted_and_cancelled_at_the_same_moment(visitors, settings):
    settings.networking.max_connections = 1
    slot = await visitors.gate.enter('/x')
    visitors.come('a', 'b')
    await asyncio.sleep(0)
    visitors.gate.leave(slot)  # "a" is let in now, but does not know it yet
    visitors.leave('a')
    await visitors.all()
    assert list(visitors.times) == ['b']


THINGS = '/apis/example.com/v1/namespaces/default/things/x'
OTHERS = '/apis/example.com/v1/others'


@pytest.mark.looptime
async def test_slow_requests_leave_their_slots_to_other_resources(visitors, settings):
    settings.networking.max_connections = 2
    visitors.come('a', 'b', 'c', 'd', lasting=30, query=THINGS)
    visitors.come('other', 'another', 'last', lasting=0.25, query=OTHERS)
    times = await visitors.all()
    assert times == about({'a': 0, 'b': 0, 'other': 1, 'another': 1, 'last': 1.25, 'c': 30, 'd': 30})


@pytest.mark.looptime
async def test_several_slow_resources(visitors, settings):
    settings.networking.max_connections = 2
    for number in range(3):
        visitors.come(f'{number}a', f'{number}b', f'{number}c', lasting=10, query=f'/api/v1/things{number}')
    visitors.come('other', query=OTHERS)
    times = await visitors.all()
    first = {f'{number}{letter}': number for number in range(3) for letter in 'ab'}
    assert times == about({**first, 'other': 3, '0c': 10, '1c': 11, '2c': 12})


@pytest.mark.looptime
async def test_a_resource_that_is_not_slow_any_more_gets_all_slots(visitors, settings):
    settings.networking.max_connections = 2
    visitors.come('a', 'b', lasting=3, query=THINGS)
    visitors.come('c', 'd', 'e', 'f', lasting=0.5, query=THINGS)
    visitors.come('other', query=OTHERS)
    times = await visitors.all()
    assert times == about({'a': 0, 'b': 0, 'other': 1, 'c': 3, 'd': 3, 'e': 3.5, 'f': 3.5})
    assert not visitors.gate._slow and not visitors.gate._blocked


@pytest.mark.looptime
async def test_a_visitor_that_is_cancelled_at_its_turn_is_followed_by_the_next_one(visitors, settings):
    settings.networking.max_connections = 2
    visitors.come('slow', lasting=100, query=THINGS)
    visitors.come('a', lasting=10, query=THINGS)
    visitors.come('b', 'c', query=THINGS)
    visitors.come('other', query=OTHERS)  # it shows that the resource is slow
    await asyncio.sleep(9.9)
    asyncio.get_running_loop().call_at(10, visitors.leave, 'b')
    await asyncio.sleep(1)
    assert visitors.times == about({'slow': 0, 'a': 0, 'other': 1, 'c': 10})


@pytest.mark.looptime
async def test_cancelled_visitors_of_slow_resources(visitors, settings):
    settings.networking.max_connections = 1
    visitors.come('a', lasting=3, query=THINGS)
    visitors.come('b', 'c', lasting=3, query=THINGS)
    visitors.come('other', query=OTHERS)
    await asyncio.sleep(2)
    visitors.leave('b')
    await asyncio.sleep(0.5)
    visitors.leave('a')  # as if the server had answered
    visitors.tasks[0].cancel()
    await asyncio.sleep(10)
    assert visitors.times == about({'a': 0, 'other': 1})
    visitors.gate.close()
    with pytest.raises(errors.APIConnectionError):
        await visitors.tasks[2]


@pytest.mark.looptime
async def test_exempted_requests_do_not_wait(visitors, settings):
    settings.networking.max_connections = 1
    settings.networking.requests_per_second = 1
    settings.networking.requests_burst = 1
    visitors.come('slow', lasting=100, query=THINGS)
    await asyncio.sleep(0.1)
    visitors.gate.hold(5)
    with pacing.exempted():
        visitors.come('request', 'another')
        with pacing.exempted(False):
            visitors.come('usual', query=OTHERS)
    times = await visitors.all()
    assert times == about({'slow': 0, 'request': 0.1, 'another': 0.1, 'usual': 5.1})


@pytest.mark.looptime
async def test_exempted_requests_do_not_use_up_the_rate(visitors, settings):
    settings.networking.requests_per_second = 10
    settings.networking.requests_burst = 10
    with pacing.exempted():
        visitors.come(*range(1000))
    await asyncio.sleep(0)
    visitors.come('other')
    assert (await visitors.all())['other'] < 0.2


@pytest.mark.looptime
async def test_an_overloaded_server_gets_no_endless_number_of_requests(visitors, settings):
    settings.networking.max_connections = 2
    for number in range(20):
        visitors.come(f'{number}a', f'{number}b', lasting=1000, query=f'/api/v1/things{number}')
    await asyncio.sleep(100)
    assert len(visitors.times) == 2 + pacing.MAX_SLOW * 2


@pytest.mark.looptime
@pytest.mark.parametrize('lasting, made', [(4, 6), (100, 1)], ids=['slow', 'stuck'])
async def test_reports_wait_while_others_are_answered(settings, lasting, made):
    async def report():
        slot = await gate.enter_report('/x')
        await asyncio.sleep(lasting)
        gate.leave(slot)

    settings.posting.worker_limit = 1
    gate = pacing.Gate('server', settings)
    results = await asyncio.gather(*[report() for _ in range(6)], return_exceptions=True)
    assert results.count(None) == made
    assert all(isinstance(error, errors.APITimeoutError) for error in results if error is not None)


@pytest.mark.parametrize(
    'query, kind',
    [
        ('/api/v1/pods?watch=true', '/api/v1/pods'),
        ('/api/v1/namespaces/x/pods/y/status', '/api/v1/pods'),
        ('/api/v1/namespaces', '/api/v1/namespaces'),
        ('/api/v1/namespaces/x', '/api/v1/namespaces'),
        ('/apis/a.b/v1/namespaces/x/things/y', '/apis/a.b/v1/things'),
        ('/apis/a.b/v1/things/y', '/apis/a.b/v1/things'),
        ('/apis/a.b/v1', '/apis/a.b/v1'),
        ('/version', '/version'),
        ('/', '/'),
        ('', ''),
    ],
)
def test_the_resource_is_known_by_the_path(query, kind):
    assert pacing.get_resource_path(query) == kind


# The client.


def seconds_between(server, first, second):
    return server.seen[second].time - server.seen[first].time


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)


TOO_MANY = 429, {'kind': 'Status', 'code': 429, 'message': 'wait'}, {'Retry-After': '0.3'}


@pytest.mark.parametrize('streaming', [False, True], ids=['request', 'stream'])
async def test_one_who_is_told_to_wait_holds_all_back(client, server, settings, caplog, streaming):
    settings.networking.error_backoffs = []
    server.add('GET', '/x', TOO_MANY)
    server.add('GET', '/y', {})
    with pytest.raises(errors.APITooManyRequestsError):
        if streaming:
            async with client.stream('/x'):
                pass
        else:
            await client.get_json('/x')
    await asyncio.gather(*[client.get_json('/y') for _ in range(30)])
    assert len(server.seen) == 31
    assert seconds_between(server, 0, 1) > 0.29
    assert f"The server {server.url} has too many requests, and asks to wait for 0.3 seconds" in caplog.text


@pytest.mark.parametrize('streaming', [False, True], ids=['request', 'stream'])
@pytest.mark.parametrize(
    'message',
    [
        'storage is (re)initializing',
        'limit reached on type Namespace for key default',
        'storage is (re)initializing: failed to list example.com/v1, Kind=X: conversion webhook failed',
        "Cannot evict pod as it would violate the pod's disruption budget.",
        'admission webhook "x.example.com" denied the request: too many of them',
    ],
)
async def test_refusals_of_one_resource_hold_no_other_requests_back(client, server, settings, streaming, message):
    settings.networking.error_backoffs = []
    status = {'kind': 'Status', 'code': 429, 'reason': 'TooManyRequests', 'message': message}
    server.add('GET', '/x', (429, status, {'Retry-After': '30'}))
    server.add('GET', '/y', {})
    with pytest.raises(errors.APITooManyRequestsError) as error:
        if streaming:
            async with client.stream('/x'):
                pass
        else:
            await client.get_json('/x')
    assert error.value.retry_after == 30  # it waits itself
    async with asyncio.timeout(20):
        await client.get_json('/y')


@pytest.mark.parametrize(
    'body',
    [
        b'Too many requests, please try again later.\n',
        b'<html>429 Too Many Requests</html>',
        b'',
        b'{}',
        b'{"kind": "Status", "code": 429, "message": "the server has received too many requests"}',
    ],
)
def test_other_refusals_concern_the_whole_server(body):
    error = errors.build_error(429, {'Retry-After': '1'}, body)
    assert isinstance(error, errors.APITooManyRequestsError) and not error.is_partial


async def test_new_streams_are_held_back_but_those_open_go_on(client, server, settings):
    settings.networking.error_backoffs = []
    server.add('GET', '/x', (429, {}, {'Retry-After': '1'}))
    news = asyncio.Event()

    async def stream(request):
        response = web.StreamResponse()
        await response.prepare(request)
        await news.wait()
        await response.write(b'{}\n')
        return response

    server.add('GET', '/watch', stream)
    async with client.stream('/watch') as open_before:
        with pytest.raises(errors.APITooManyRequestsError):
            await client.get_json('/x')
        news.set()
        assert await anext(open_before) == [b'{}']
        assert time.monotonic() - server.seen[1].time < 0.99
        async with client.stream('/watch'):
            pass
    assert seconds_between(server, 1, 2) > 0.99


async def test_other_errors_hold_no_other_requests_back(client, server, settings):
    settings.networking.error_backoffs = [0.4]
    server.add('GET', '/x', (503, {}, {'Retry-After': '0.4'}), {})
    server.add('GET', '/y', {})
    task = asyncio.create_task(client.get_json('/x'))
    await until(lambda: server.seen)
    await client.get_json('/y')
    await task
    assert [seen.path for seen in server.seen] == ['/x', '/y', '/x']


async def test_servers_are_independent(server, tls_server, pki, settings, make_vault):
    settings.networking.error_backoffs = []
    server.add('GET', '/x', (429, {}, {'Retry-After': '99'}))
    tls_server.add('GET', '/x', {})
    infos = [ConnectionInfo(server=server.url, priority=1), ConnectionInfo(server=tls_server.url, insecure=True)]
    vault = make_vault(*infos)
    async with api.ApiClient(vault, settings) as client, asyncio.timeout(60):
        with pytest.raises(errors.APITooManyRequestsError):
            await client.get_json('/x')
        (key, info) = await vault.select()
        await vault.invalidate(key, info)
        await client.get_json('/x')
    assert len(tls_server.seen) == 1


async def test_waiting_requests_do_not_use_credentials_refused_meanwhile(server, settings, make_vault):
    settings.networking.max_connections = 1
    settings.networking.error_backoffs = []
    server.add('GET', '/x', 401, {})
    vault = make_vault(
        *[
            ConnectionInfo(server=server.url, token=token, priority=priority)
            for priority, token in enumerate(['good', 'bad'])
        ]
    )
    server.add('GET', '/y', {})
    async with api.ApiClient(vault, settings) as client:
        await asyncio.gather(client.get_json('/x'), *[client.get_json('/y') for _ in range(5)])
    tokens = [seen.headers['Authorization'].removeprefix('Bearer ') for seen in server.seen if seen.path == '/y']
    assert tokens == ['good'] * 5


async def test_the_rate_as_seen_by_the_server(client, server, settings):
    settings.networking.requests_per_second = 100
    settings.networking.requests_burst = 10
    server.add('GET', '/x', {})
    began = time.monotonic()
    await asyncio.gather(*[client.get_json('/x') for _ in range(40)])
    assert time.monotonic() - began > 0.28


@pytest.mark.parametrize(
    'headers, details',
    [
        ({'Retry-After': '1e999'}, {}),
        ({'Retry-After': '86400'}, {}),
        ({}, {'retryAfterSeconds': 1e9}),
    ],
)
def test_the_wait_that_a_server_asks_for_is_bounded(headers, details):
    assert errors.build_error(429, headers, orjson.dumps({'details': details})).retry_after == 300


async def test_a_closed_client_leaves_no_timers(vault, server, settings):
    settings.networking.error_backoffs = []
    server.add('GET', '/x', (429, {}, {'Retry-After': '99'}))
    async with api.ApiClient(vault, settings) as client:
        with pytest.raises(errors.APITooManyRequestsError):
            await client.get_json('/x')
        task = asyncio.create_task(client.get_json('/x'))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
    handles = asyncio.get_running_loop()._scheduled
    assert not [handle for handle in handles if not handle.cancelled() and 'Gate' in repr(handle)]


@pytest.mark.parametrize('passing_by', [False, True])
@pytest.mark.looptime
async def test_a_closed_gate_keeps_no_visitors_waiting(settings, passing_by):
    gate = pacing.Gate('server', settings)
    gate.hold(3600)
    enter = gate.pass_by if passing_by else gate.enter
    tasks = [asyncio.create_task(enter('/x')) for _ in range(3)]
    await asyncio.sleep(1)
    gate.close()
    tasks[0].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(error) for error in results] == [asyncio.CancelledError] + [errors.APIConnectionError] * 2
    with pytest.raises(errors.APIConnectionError, match='server is closed'):
        await enter('/x')
    assert asyncio.get_running_loop().time() < 2


async def test_a_closed_client_keeps_no_requests_waiting(vault, server, settings):
    settings.networking.error_backoffs = [0, 0]
    settings.networking.max_connections = 1
    coming, asked = asyncio.Event(), []

    async def hang(request):
        asked.append(request.path)
        coming.set()
        await asyncio.Event().wait()

    server.add('GET', '/x', hang)
    async with api.ApiClient(vault, settings) as client:
        tasks = [asyncio.create_task(client.get_json('/x')) for _ in range(3)]  # in flight, and behind it
        await coming.wait()
    async with asyncio.timeout(60):
        results = await asyncio.gather(*tasks, return_exceptions=True)
        with pytest.raises(errors.APIConnectionError, match='is closed'):
            await client.get_json('/x')
        with pytest.raises(errors.APIConnectionError, match='is closed'):
            async with client.stream('/x'):
                pass
    assert [type(error) for error in results] == [errors.APIConnectionError] * 3
    assert asked == ['/x']


def test_waiting_for_the_rate_is_no_busy_loop(settings):
    uvloop = pytest.importorskip('uvloop')  # its timers are at once if they are shorter than half a millisecond
    settings.networking.requests_per_second = 1000
    settings.networking.requests_burst = 1
    looks = 0

    class CountingGate(pacing.Gate):
        def _look_again(self):
            nonlocal looks
            looks += 1
            super()._look_again()

    async def visit():
        gate = CountingGate('http://server', settings)
        for _ in range(20):
            gate.leave(await gate.enter('/x'))
        gate.close()

    uvloop.run(visit())
    assert looks <= 40
