"""What instruments are told of requests, and what they can add to them."""

import pytest
from aiohttp import web

import kopf
from kopf._cogs.clients.api import ApiClient
from kopf._cogs.clients.errors import APIError, APINotFoundError
from kopf._cogs.structs.credentials import ConnectionInfo
from kopf._cogs.structs.instruments import Instruments
from kopf._cogs.structs.meters import Meters


async def abort(request):
    request.transport.abort()
    return web.Response()


class Recorder(kopf.Instrument):
    def __init__(self):
        self.told = []
        self.requests = []

    def request_begins(self, request):
        self.told.append('begins')
        request.headers['traceparent'] = f'00-{request.attempt}'

    def request_ends(self, request):
        self.told.append('ends')
        self.requests.append(request)


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture(params=['direct', 'aiohttp'])
async def client(request, server, make_vault, settings, recorder):
    """Yield a client with a session of each kind."""
    info = ConnectionInfo(server=server.url, trust_env=request.param == 'aiohttp')
    async with ApiClient(make_vault(info), settings, Instruments([recorder])) as client:
        yield client


async def test_requests_are_told_with_what_is_known_of_them(server, client, recorder):
    server.add('POST', '/api/v1/pods', (201, {}))
    await client.post_json('/api/v1/pods', {'a': 1})
    (request,) = recorder.requests
    assert recorder.told == ['begins', 'ends']
    assert (request.method, request.path, request.payload) == ('POST', '/api/v1/pods', b'{"a":1}')
    assert (request.status, request.outcome, request.attempt, request.streaming) == (201, 'succeeded', 0, False)
    assert request.server == server.url and request.duration > 0 and request.waited >= 0


async def test_requests_are_counted_with_and_without_a_response(server, client, settings):
    settings.networking.error_backoffs = [0, 0]
    client.instruments.measure(meters := Meters())
    server.add('POST', '/x', 500, abort, {})
    server.add('GET', '/y', 404)
    await client.post_json('/x', {})
    with pytest.raises(APINotFoundError):
        await client.get_json('/y')
    with pytest.raises(APINotFoundError):
        async with client.stream('/y'):
            pass
    counts = {(method, status): count for (_, method, status), count in meters.requests.items()}
    assert counts == {('POST', 500): 1, ('POST', 0): 1, ('POST', 200): 1, ('GET', 404): 2}


async def test_queries_are_no_part_of_the_path(server, client, recorder):
    server.add('GET', '/api/v1/pods', {})
    await client.get_json('/api/v1/pods', {'limit': 1})
    assert [request.path for request in recorder.requests] == ['/api/v1/pods']


async def test_added_headers_are_sent_with_each_attempt(server, client, recorder, settings):
    settings.networking.error_backoffs = [0]
    server.add('GET', '/api/v1/pods', 500, {})
    await client.get_json('/api/v1/pods')
    assert [seen.headers.get('traceparent') for seen in server.seen] == ['00-0', '00-1']
    assert [(request.attempt, request.status) for request in recorder.requests] == [(0, 500), (1, 200)]


async def test_streams_are_told_when_they_are_open(server, client, recorder):
    server.add('GET', '/api/v1/pods', b'{}\n')
    async with client.stream('/api/v1/pods', {'watch': 'true'}) as batches:
        assert recorder.told == ['begins', 'ends']
        assert [batch async for batch in batches] == [[b'{}']]
    (request,) = recorder.requests
    assert (request.verb, request.status, request.outcome) == ('watch', 200, 'succeeded')
    assert [seen.headers.get('traceparent') for seen in server.seen] == ['00-0']


@pytest.mark.parametrize('status', [403, 404, 422])
async def test_refusals_are_told_with_their_status(server, client, recorder, status):
    server.add('GET', '/api/v1/pods', status)
    with pytest.raises(APIError):
        await client.get_json('/api/v1/pods')
    assert [(request.status, request.outcome) for request in recorder.requests] == [(status, 'failed')]
