"""The protocol for looking into an operator: who may do that, what is asked for, and what is streamed."""

import asyncio
import http.client
import json

import pytest

from kopf._core.engines.inspecting import InspectionResponder
from kopf._core.engines.status_server import StatusServer


class Inspection:
    def __init__(self):
        self.asked = []

    async def describe(self, limit):
        self.asked.append(limit)
        return {'pid': 1, 'odd': object}

    def list_objects(self, filters, limit):
        self.asked.append((filters, limit))
        return {'objects': [], 'total': 0}

    async def describe_timeline(self, uid, after):
        self.asked.append((uid, after))
        return {'uid': uid}

    def follow(self):
        self.asked.append('follow')

    def unfollow(self):
        self.asked.append('unfollow')

    def take_changed(self, limit):
        return ['a']

    def get_known(self):
        return {}

    def describe_objects(self, uids):
        return [{'resource': 'pods', 'uid': uid} for uid in uids]

    async def describe_operator(self):
        return {'pid': 1}


@pytest.fixture
def inspection():
    return Inspection()


@pytest.fixture
async def server(inspection):
    responder = InspectionResponder(inspection, 'secret')
    server = StatusServer('127.0.0.1', 0, responder.get_routes(), purpose="kopf top", ending=responder.close)
    async with server:
        yield server


@pytest.fixture
async def ask(server):
    def ask_now(path, method='GET', **headers):
        connection = http.client.HTTPConnection('127.0.0.1', server.port, timeout=60)
        try:
            connection.request(method, path, headers={'Authorization': 'Bearer secret'} | headers)
            response = connection.getresponse()
            content = response.read()
            return response.status, json.loads(content) if content.startswith(b'{') else content
        finally:
            connection.close()

    async def ask(*args, **kwargs):
        return await asyncio.to_thread(ask_now, *args, **kwargs)

    return ask


async def test_the_token_permits_to_look(ask, inspection):
    status, content = await ask('/v1/now')
    assert status == 200 and content['pid'] == 1
    assert inspection.asked == [100]


@pytest.mark.parametrize('path', ['/v1/now', '/v1/objects', '/v1/timeline?uid=x', '/v1/updates'])
@pytest.mark.parametrize('given', ['', 'Bearer ', 'Bearer wrong', 'Basic secret2', 'Bearer s\xe9cret'])
async def test_nothing_is_shown_without_the_token(ask, inspection, path, given):
    assert (await ask(path, Authorization=given.encode('latin-1')))[0] == 401
    assert inspection.asked == []


async def test_a_token_in_the_address_does_not_count(ask, inspection):
    assert (await ask('/v1/now?token=secret', Authorization=''))[0] == 401


async def test_the_page_itself_needs_no_token(ask, inspection):
    status, content = await ask('/', Authorization='')
    assert status == 200 and b'<!doctype html>' in content.lower() and inspection.asked == []


@pytest.mark.parametrize(
    'host, status',
    [('evil.example', 403), ('evil.example:80', 403), ('localhost', 200), ('127.0.0.1:80', 200), ('[::1]:80', 200)],
)
async def test_only_local_names_of_the_host_are_accepted(ask, host, status):
    assert (await ask('/v1/now', Host=host))[0] == status
    assert (await ask('/', Host=host))[0] == status


@pytest.mark.parametrize('method', ['POST', 'PUT', 'PATCH', 'DELETE'])
async def test_nothing_can_be_changed(ask, inspection, method):
    assert (await ask('/v1/now', method))[0] == 405
    assert inspection.asked == []


async def test_objects_are_filtered_and_limited(ask, inspection):
    assert (await ask('/v1/objects?resource=pods&state=waiting&limit=5'))[0] == 200
    assert inspection.asked == [({'resource': 'pods', 'state': 'waiting'}, 5)]


async def test_unknown_filters_are_refused(ask, inspection):
    status, content = await ask('/v1/objects?label=x')
    assert (status, content) == (400, {'error': "There is no filter 'label'."})
    assert inspection.asked == []


async def test_timelines_are_read_from_an_entry_on(ask, inspection):
    assert await ask('/v1/timeline?uid=a&after=5') == (200, {'uid': 'a'})
    assert await ask('/v1/timeline?uid=a') == (200, {'uid': 'a'})
    assert inspection.asked == [('a', 5), ('a', 0)]
    assert (await ask('/v1/timeline'))[0] == 400


@pytest.mark.parametrize('path', ['/', '/v1/now'])
async def test_nothing_of_other_hosts_is_used_and_nothing_uses_it(server, path):
    def read_headers():
        connection = http.client.HTTPConnection('127.0.0.1', server.port, timeout=60)
        try:
            connection.request('GET', path, headers={'Authorization': 'Bearer secret'})
            return connection.getresponse().headers
        finally:
            connection.close()

    headers = await asyncio.to_thread(read_headers)
    policy = headers['Content-Security-Policy']
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert 'http' not in policy and 'unsafe' not in policy
    assert headers['Referrer-Policy'] == 'no-referrer' and headers['Cache-Control'] == 'no-store'
    assert headers['Cross-Origin-Resource-Policy'] == 'same-origin' and headers['X-Content-Type-Options'] == 'nosniff'
    assert 'Access-Control-Allow-Origin' not in headers and 'Set-Cookie' not in headers


class Stream:
    """An open stream of updates."""

    def __init__(self, server):
        self.connection = http.client.HTTPConnection('127.0.0.1', server.port, timeout=60)
        self.connection.request('GET', '/v1/updates', headers={'Authorization': 'Bearer secret'})
        self.response = self.connection.getresponse()

    def read_names(self, count):
        names = []
        while len(names) < count and (line := self.response.readline()):
            names += [line.decode().removeprefix('event: ').strip()] if line.startswith(b'event: ') else []
        return names

    def close(self):
        self.response.close()
        self.connection.close()


async def test_updates_are_streamed_until_the_page_is_closed(server, inspection):
    stream = await asyncio.to_thread(Stream, server)
    assert stream.response.headers['Content-Type'] == 'text/event-stream'
    assert await asyncio.to_thread(stream.read_names, 4) == ['state', 'operator', 'objects', 'objects']
    stream.close()
    async with asyncio.timeout(60):
        while 'unfollow' not in inspection.asked:
            await asyncio.sleep(0.01)
    assert inspection.asked == ['follow', 'unfollow']


async def test_streams_do_not_delay_the_end_of_the_operator(inspection):
    responder = InspectionResponder(inspection, 'secret')
    routes, loop = responder.get_routes(), asyncio.get_running_loop()
    async with StatusServer('127.0.0.1', 0, routes, purpose="kopf top", ending=responder.close) as server:
        stream = await asyncio.to_thread(Stream, server)
        await asyncio.to_thread(stream.read_names, 2)
        began = loop.time()
    assert loop.time() - began < 0.9  # the server waits for one second for responses that do not end
    assert len(await asyncio.to_thread(stream.read_names, 100)) < 100
    stream.close()
    assert inspection.asked == ['follow', 'unfollow']


async def test_only_some_pages_can_be_open(server, ask, monkeypatch):
    monkeypatch.setattr('kopf._core.engines.live_updates.MAX_PAGES', 1)
    stream = await asyncio.to_thread(Stream, server)
    await asyncio.to_thread(stream.read_names, 1)
    assert (await ask('/v1/updates'))[0] == 503
    stream.close()
