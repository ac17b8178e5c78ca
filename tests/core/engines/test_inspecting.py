"""The protocol for looking into an operator: who may do that, and what is asked for."""

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


@pytest.fixture
def inspection():
    return Inspection()


@pytest.fixture
async def ask(inspection):
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

    routes = InspectionResponder(inspection, 'secret').get_routes()
    async with StatusServer('127.0.0.1', 0, routes, purpose="kopf top") as server:
        yield ask


async def test_the_token_permits_to_look(ask, inspection):
    status, content = await ask('/v1/now')
    assert status == 200 and content['pid'] == 1
    assert inspection.asked == [100]


@pytest.mark.parametrize('given', ['', 'Bearer ', 'Bearer wrong', 'Basic secret2', 'Bearer s\xe9cret'])
async def test_nothing_is_shown_without_the_token(ask, inspection, given):
    assert (await ask('/v1/now', Authorization=given.encode('latin-1')))[0] == 401
    assert (await ask('/v1/objects', Authorization=given.encode('latin-1')))[0] == 401
    assert inspection.asked == []


@pytest.mark.parametrize(
    'host, status',
    [('evil.example', 403), ('evil.example:80', 403), ('localhost', 200), ('127.0.0.1:80', 200), ('[::1]:80', 200)],
)
async def test_only_local_names_of_the_host_are_accepted(ask, host, status):
    assert (await ask('/v1/now', Host=host))[0] == status


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
