import asyncio
import base64
import dataclasses
import datetime
import gc
import json
import logging

import aiohttp
import pytest
from aiohttp import web

from kopf._cogs.clients import api, errors, pacing, sessions
from kopf._cogs.structs.credentials import AiohttpSession, ConnectionInfo, KubeContext, LoginError, Vault


def lines_of(batches):
    return [line for batch in batches for line in batch]


async def read_all(client, path='/watch', params=None):
    async with client.stream(path, params) as batches:
        return lines_of([batch async for batch in batches])


def streaming(*chunks, abort=False, length=None, before=None):
    """Answer by chunks, each in its own packet as far as the network permits."""

    async def handler(request):
        response = web.StreamResponse()
        if length is not None:
            response.content_length = length
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
            await asyncio.sleep(0.001)
        if before is not None:
            await before.wait()
        if abort:
            request.transport.abort()
        return response

    return handler


async def until_closed(connections):
    async with asyncio.timeout(60):
        while not all(connection.is_closing() for connection in connections):
            await asyncio.sleep(0)


async def abort(request):
    request.transport.abort()
    return web.Response()


async def hang(request):
    await asyncio.Event().wait()


def by_token(**statuses):
    """Answer by statuses, depending on who asks."""

    async def handler(request):
        token = request.headers.get('Authorization', '').removeprefix('Bearer ')
        status = statuses[token]
        return web.json_response({'code': status, 'token': token}, status=status)

    return handler


#
# What is sent
#


async def test_gets_send_queries_and_headers_and_no_body(client, server):
    server.add('GET', '/api/v1/pods', {'items': []})
    assert await client.get_json('/api/v1/pods', {'limit': 5, 'continue': None, 'labelSelector': 'a=b,c!=d e'}) == {
        'items': []
    }
    [seen] = server.seen
    assert (seen.method, seen.path) == ('GET', '/api/v1/pods')
    assert seen.query == {'limit': '5', 'labelSelector': 'a=b,c!=d e'}
    assert seen.body == b''
    assert seen.headers['Authorization'] == 'Bearer good'
    assert seen.headers['User-Agent'].startswith('kopf/')
    assert seen.headers['Accept'] == 'application/json'
    assert 'Content-Type' not in seen.headers
    assert 'Accept-Encoding' not in seen.headers


async def test_posts_send_json_and_return_the_response(client, server):
    server.add('POST', '/api/v1/namespaces/ns/pods', (201, {'kind': 'Pod'}))
    assert await client.post_json('/api/v1/namespaces/ns/pods', {'a': 'ё'}) == {'kind': 'Pod'}
    assert json.loads(server.seen[0].body) == {'a': 'ё'}
    assert server.seen[0].headers['Content-Type'] == 'application/json'


async def test_patches_send_their_content_type(client, server):
    server.add('PATCH', '/x', {'patched': True})
    assert await client.patch('/x', {'a': None}, 'application/merge-patch+json') == {'patched': True}
    assert json.loads(server.seen[0].body) == {'a': None}
    assert server.seen[0].headers['Content-Type'] == 'application/merge-patch+json'


def refuse():
    raise errors.APIFencedError("not now")


@pytest.mark.parametrize('method', ['POST', 'PUT', 'PATCH', 'DELETE'])
async def test_a_fenced_client_sends_no_writes(client, server, method):
    server.add(method, '/x', {})
    server.add('GET', '/x', {})
    client.fence(refuse)
    for _ in range(3):
        with pytest.raises(errors.APIFencedError, match="not now"):
            await client.request(method, '/x')
    assert await client.get_json('/x') == {}
    client.fence(None)
    await client.request(method, '/x')
    assert [seen.method for seen in server.seen] == ['GET', method]


async def test_what_other_replicas_may_do_too_passes_the_fence(client, server):
    server.add('PUT', '/x', {})
    client.fence(refuse)
    token = api.unfenced_var.set(True)
    await client.request('PUT', '/x')
    api.unfenced_var.reset(token)
    with pytest.raises(errors.APIFencedError):
        await client.request('PUT', '/x')


async def test_the_fence_is_checked_after_all_waits(client, server, settings):
    settings.networking.max_connections = 1
    server.add('GET', '/slow', hang)
    server.add('PUT', '/x', {})
    client.fence(lambda: None)
    first = asyncio.create_task(client.request('GET', '/slow'))
    while not server.seen:
        await asyncio.sleep(0.001)
    second = asyncio.create_task(client.request('PUT', '/x'))
    await asyncio.sleep(0.01)
    client.fence(refuse)
    first.cancel()
    with pytest.raises(errors.APIFencedError):
        await second
    assert [seen.path for seen in server.seen] == ['/slow']


async def test_raw_bytes_and_content_negotiation(client, server):
    server.add('GET', '/x', b'not json')
    assert await client.request('GET', '/x', accept='a/b;c=d,e/f') == b'not json'
    assert await client.request('GET', '/x') == b'not json'
    assert [seen.headers['Accept'] for seen in server.seen] == ['a/b;c=d,e/f', 'application/json']


async def test_connections_are_reused(client, server):
    server.add('GET', '/x', {})
    server.add('PATCH', '/x', {})
    for _ in range(5):
        await client.get_json('/x')
        await client.patch('/x', {}, 'application/json-patch+json')
    assert len(server.connections) == 1


async def test_requests_in_parallel_are_limited(client, server, settings):
    settings.networking.max_connections = 3

    async def slow(request):
        await asyncio.sleep(0.001)
        return web.json_response({})

    server.add('GET', '/x', slow)
    await asyncio.gather(*[client.get_json('/x') for _ in range(20)])
    assert server.peak == 3
    assert len(server.connections) == 3


async def test_streams_are_not_limited(client, server, settings):
    settings.networking.max_connections = 1
    gate = asyncio.Event()
    server.add('GET', '/x', {})
    server.add('GET', '/watch', streaming(b'{}\n', before=gate))
    async with client.stream('/watch') as one, client.stream('/watch') as two:
        assert [await anext(one), await anext(two)] == [[b'{}'], [b'{}']]
        await client.get_json('/x')
        gate.set()


@pytest.mark.parametrize(
    'value, expected',
    [
        ({'a': (1, 2), 'b': {3: 4}, 'c': 2**70}, {'a': [1, 2], 'b': {'3': 4}, 'c': 2**70}),
        ({'at': datetime.date(2020, 12, 31), 'b': {3: 4}}, {'at': '2020-12-31', 'b': {'3': 4}}),
        ({'file': '\udcff.txt', 'x': 'é\U0001f600'}, {'file': '\ufffd.txt', 'x': 'é\U0001f600'}),
    ],
)
def test_encoding_of_unusual_values(value, expected):
    assert json.loads(api.encode(value)) == expected
    assert api.simplify(value) == expected


def test_encoding_of_impossible_values():
    with pytest.raises(TypeError, match='object'):
        api.encode({'a': object()})


async def test_servers_with_a_path(server, settings, make_vault):
    server.add('GET', '/k8s/clusters/c1/api', {})
    async with api.ApiClient(make_vault(ConnectionInfo(server=f'{server.url}/k8s/clusters/c1/')), settings) as client:
        assert await client.get_json('/api') == {}


#
# Credentials in all forms
#


async def get_with(info, settings, make_vault):
    async with api.ApiClient(make_vault(info), settings) as client:
        return await client.get_json('/x')


@pytest.mark.parametrize(
    'kwargs, expected',
    [
        ({}, None),
        ({'token': 'tkn'}, 'Bearer tkn'),
        ({'token': 'tkn', 'scheme': 'Digest'}, 'Digest tkn'),
        ({'username': 'u', 'password': 'ё'}, 'Basic ' + base64.b64encode('u:ё'.encode()).decode()),
    ],
)
async def test_credentials_become_the_authorization_header(server, settings, make_vault, kwargs, expected):
    server.add('GET', '/x', {})
    await get_with(ConnectionInfo(server=server.url, **kwargs), settings, make_vault)
    assert server.seen[0].headers.get('Authorization') == expected


async def test_tls_with_authority_and_client_certificate_by_path(tls_server, settings, make_vault, pki):
    tls_server.add('GET', '/x', {})
    await get_with(
        ConnectionInfo(
            server=tls_server.url,
            ca_path=pki.ca,
            certificate_path=pki.client_cert,
            private_key_path=pki.client_key,
        ),
        settings,
        make_vault,
    )
    assert tls_server.seen[0].peer['subject'] == ((('commonName', 'alice'),),)


async def test_tls_with_authority_and_client_certificate_by_data(tls_server, settings, make_vault, pki):
    tls_server.add('GET', '/x', {})
    await get_with(
        ConnectionInfo(
            server=tls_server.url,
            ca_data=pki.ca.read_text(),
            certificate_data=base64.b64encode(pki.client_cert.read_bytes()),
            private_key_data=pki.client_key.read_bytes(),
        ),
        settings,
        make_vault,
    )
    assert tls_server.seen[0].peer['subject'] == ((('commonName', 'alice'),),)


async def test_tls_without_the_authority_is_refused(tls_server, settings, make_vault, sleeps):
    with pytest.raises(errors.APIConnectionError, match='certificate'):
        await get_with(ConnectionInfo(server=tls_server.url), settings, make_vault)
    assert not tls_server.seen


async def test_an_insecure_client_accepts_unknown_certificates(tls_server, settings, make_vault):
    tls_server.add('GET', '/x', {})
    await get_with(ConnectionInfo(server=tls_server.url, insecure=True), settings, make_vault)
    assert len(tls_server.seen) == 1


@pytest.mark.parametrize('name, ok', [('localhost', True), ('elsewhere', False)])
async def test_the_certificate_is_checked_for_the_tls_server_name(
    tls_server, settings, make_vault, pki, name, ok, sleeps
):
    tls_server.add('GET', '/x', {})
    info = ConnectionInfo(server=tls_server.url, ca_path=pki.ca, tls_server_name=name)
    if ok:
        await get_with(info, settings, make_vault)
    else:
        with pytest.raises(errors.APIConnectionError):
            await get_with(info, settings, make_vault)


async def test_requests_go_through_the_proxy(server, settings, make_vault):
    server.add('GET', '/x', {'via': 'proxy'})  # for plain HTTP, proxies are asked for the whole URL
    info = ConnectionInfo(server='http://nowhere.invalid', proxy_url=server.url, token='t')
    assert await get_with(info, settings, make_vault) == {'via': 'proxy'}
    assert server.seen[0].headers['Host'] == 'nowhere.invalid'


@pytest.mark.parametrize('trust_env', [True, False])
async def test_proxy_from_the_environment(server, settings, make_vault, monkeypatch, trust_env, sleeps):
    server.add('GET', '/x', {'via': 'proxy'})
    monkeypatch.setenv('http_proxy', server.url)
    info = ConnectionInfo(server='http://nowhere.invalid', trust_env=trust_env)
    if trust_env:
        assert await get_with(info, settings, make_vault) == {'via': 'proxy'}
    else:
        with pytest.raises(errors.APIConnectionError):
            await get_with(info, settings, make_vault)


async def test_session_of_the_developer(server, settings, make_vault):
    server.add('GET', '/x', {})
    async with aiohttp.ClientSession(headers={'X-Mine': 'yes', 'User-Agent': 'mine'}) as session:
        info = AiohttpSession(server=server.url, aiohttp_session=session, default_namespace='ns')
        async with api.ApiClient(make_vault(info), settings) as client:
            await client.get_json('/x')
            assert client.default_namespace == 'ns'
            assert not session.closed
        assert session.closed
    assert server.seen[0].headers['X-Mine'] == 'yes'
    assert server.seen[0].headers['User-Agent'] == 'mine'


@pytest.mark.parametrize('path', ['/x', '/stream'])
async def test_errors_are_typed_in_sessions_that_raise_those_of_the_library(server, settings, make_vault, path):
    server.add('GET', path, 410)
    session = aiohttp.ClientSession(raise_for_status=True)
    vault = make_vault(AiohttpSession(server=server.url, aiohttp_session=session))
    async with api.ApiClient(vault, settings) as client:
        with pytest.raises(errors.APIGoneError):
            if path == '/x':
                await client.get_json(path)
            else:
                async with client.stream(path):
                    pass


async def test_streams_leave_connections_of_a_session_of_the_developer_to_other_requests(server, settings, make_vault):
    gate = asyncio.Event()
    server.add('GET', '/stream', streaming(b'{}\n', before=gate))
    server.add('GET', '/x', {})
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=3))
    vault = make_vault(AiohttpSession(server=server.url, aiohttp_session=session))
    async with api.ApiClient(vault, settings) as client:
        for _ in range(2):  # what is closed counts no more
            async with client.stream('/stream'), client.stream('/stream'):
                with pytest.raises(errors.APIConnectionError, match='permits 3 connections, and 2 of them'):
                    async with client.stream('/stream'):
                        pass
                await client.get_json('/x')
        gate.set()


@pytest.mark.parametrize(
    'info, match',
    [
        (ConnectionInfo(server='localhost:6443'), 'must be an HTTP'),
        (ConnectionInfo(server='https://localhost', ca_path='/nonexistent'), '/nonexistent'),
        (ConnectionInfo(server='https://localhost', ca_data='garbage'), 'cannot be used'),
        (ConnectionInfo(server='http://localhost', token_path='/nonexistent'), '/nonexistent'),
        (ConnectionInfo(server='http://localhost', proxy_url='socks5://localhost'), 'prox'),
        (KubeContext(server='http://localhost'), 'ConnectionInfo'),
    ],
)
async def test_unusable_credentials_fail_with_a_login_error(settings, make_vault, info, match):
    with pytest.raises(LoginError, match=match):
        await get_with(info, settings, make_vault)


async def test_default_namespace_is_known_after_the_first_request(client, server):
    assert client.default_namespace is None
    server.add('GET', '/x', {})
    await client.get_json('/x')
    assert client.default_namespace == 'ns1'


async def test_token_file_is_read_again(server, settings, make_vault, tmp_path, monkeypatch):
    monkeypatch.setattr(sessions, '_TOKEN_REFRESH', 0)
    server.add('GET', '/x', {})
    path = tmp_path / 'token'
    path.write_text('one')
    vault = make_vault(ConnectionInfo(server=server.url, token='one', token_path=str(path)))
    async with api.ApiClient(vault, settings) as client:
        await client.get_json('/x')
        path.write_text('two')
        await client.get_json('/x')
        path.write_text('')  # it is being written just now
        await client.get_json('/x')
        path.unlink()
        await client.get_json('/x')
    assert [seen.headers['Authorization'] for seen in server.seen] == ['Bearer one'] + ['Bearer two'] * 3
    assert len(server.connections) == 1


#
# Refused credentials
#


async def test_refused_credentials_are_replaced_once_for_all(server, settings, make_vault):
    server.add('GET', '/x', by_token(bad=401, good=200))
    bad, good = (ConnectionInfo(server=server.url, token=token) for token in ['bad', 'good'])
    logins = []

    async def login():
        logins.append(1)
        return {'login0': good}

    vault = make_vault(bad)
    vault.authenticate = login
    async with api.ApiClient(vault, settings) as client:
        results = await asyncio.gather(*[client.get_json('/x') for _ in range(50)])
    assert {result['token'] for result in results} == {'good'}
    assert len(logins) == 1


async def test_refused_credentials_with_nothing_new_fail_for_all(server, settings, make_vault):
    server.add('GET', '/x', by_token(bad=401))
    bad = ConnectionInfo(server=server.url, token='bad')
    settings.networking.login_backoffs = []

    async def login():
        return {'login0': dataclasses.replace(bad)}

    vault = make_vault(bad)
    vault.authenticate = login
    async with api.ApiClient(vault, settings) as client:
        results = await asyncio.gather(*[client.get_json('/x') for _ in range(50)], return_exceptions=True)
    assert {type(result) for result in results} == {LoginError}
    assert {type(result.__cause__) for result in results} <= {errors.APIUnauthorizedError, type(None)}
    assert len(server.seen) <= settings.networking.max_connections


async def test_refused_streams_get_new_credentials(server, settings, make_vault):
    async def handler(request):
        if request.headers['Authorization'] != 'Bearer good':
            return web.Response(status=401)
        return await streaming(b'{}\n')(request)

    server.add('GET', '/watch', handler)
    vault = make_vault(
        *[
            ConnectionInfo(server=server.url, token=token, priority=n)
            for n, token in enumerate(['good', 'bad', 'worse'])
        ]
    )
    async with api.ApiClient(vault, settings) as client:
        assert await read_all(client) == [b'{}']
    assert [seen.headers['Authorization'] for seen in server.seen] == ['Bearer worse', 'Bearer bad', 'Bearer good']


@pytest.mark.parametrize('method', ['GET', 'PATCH', 'WATCH'])
async def test_parts_of_the_api_that_refuse_accepted_credentials_fail_alone(server, settings, make_vault, method):
    logins, down = [], True

    async def answer(request):
        return web.json_response({'code': 401}, status=401) if down else web.json_response({})

    async def login():
        logins.append('login')
        return {'login0': ConnectionInfo(server=server.url, token=str(len(logins)))}

    async def ask(path):
        if method == 'WATCH':
            await read_all(client, path)
        else:
            await client.request(method, path)

    for name in ['namespaces/ns/metrics/one', 'namespaces/ns/metrics/two/status', 'metrics', 'metrics/three']:
        server.add(method.replace('WATCH', 'GET'), f'/apis/m.dev/v1/{name}', answer)
    server.add('GET', '/x', by_token(old=200, **{str(n): 200 for n in range(9)}))
    vault = make_vault(ConnectionInfo(server=server.url, token='old'))
    vault.authenticate = login
    async with api.ApiClient(vault, settings) as client:
        await client.request('GET', '/x')
        refused = asyncio.create_task(ask('/apis/m.dev/v1/namespaces/ns/metrics/one'))
        while not refused.done():
            await client.request('GET', '/x')
        assert isinstance(refused.exception(), errors.APIUnauthorizedError)
        known = len(logins)
        for path in ['namespaces/ns/metrics/two/status', 'metrics', 'metrics/three']:
            with pytest.raises(errors.APIUnauthorizedError):
                await ask(f'/apis/m.dev/v1/{path}')
        assert (await client.get_json('/x'))['token'] == str(known)
        assert len(logins) == known <= 2
        down = False
        await ask('/apis/m.dev/v1/metrics')


@pytest.mark.parametrize('streaming', [False, True])
async def test_expired_tokens_are_not_taken_for_failures_of_a_part(server, settings, make_vault, caplog, streaming):
    valid = ['0']

    async def answer(request):
        is_valid = request.headers['Authorization'] == f'Bearer {valid[-1]}'
        return web.json_response({}, status=200 if is_valid else 401)

    async def login():
        return {'login0': ConnectionInfo(server=server.url, token=valid[-1])}

    server.add('GET', '/x', answer)
    vault = make_vault(ConnectionInfo(server=server.url, token='0'))
    vault.authenticate = login
    async with api.ApiClient(vault, settings) as client:
        for number in range(5):
            await (read_all(client, '/x') if streaming else client.get_json('/x'))
            valid.append(str(number + 1))
    assert 'The API accepts the credentials for some requests' not in caplog.text


@pytest.mark.parametrize('status, error', [(200, errors.APIUnauthorizedError), (401, LoginError), (403, LoginError)])
async def test_the_core_api_tells_whether_credentials_are_accepted(server, settings, make_vault, status, error):
    server.add('GET', '/version', by_token(good=200))  # unknown users may read it, too
    server.add('GET', '/api', by_token(good=status))
    server.add('GET', '/y', by_token(good=200))
    server.add('GET', '/x', by_token(good=401))
    settings.networking.login_backoffs = []
    vault = make_vault(good := ConnectionInfo(server=server.url, token='good'))

    async def login():
        return {'login0': dataclasses.replace(good)}

    vault.authenticate = login
    async with api.ApiClient(vault, settings) as client:
        await client.get_json('/y')
        with pytest.raises(error):
            await client.get_json('/x')


async def test_streams_and_requests_in_flight_outlive_their_credentials(server, settings, make_vault):
    gate, begun = asyncio.Event(), asyncio.Event()

    async def slow(request):
        begun.set()
        await gate.wait()
        return web.json_response({'slow': True})

    server.add('GET', '/x', by_token(old=401, new=200))
    server.add('GET', '/slow', slow)
    server.add('GET', '/watch', streaming(b'1\n', before=gate))
    vault = make_vault(ConnectionInfo(server=server.url, token='old'))

    async def login():
        return {'login0': ConnectionInfo(server=server.url, token='new')}

    vault.authenticate = login
    async with api.ApiClient(vault, settings) as client, client.stream('/watch') as batches:
        assert await anext(batches) == [b'1']
        task = asyncio.create_task(client.get_json('/slow'))
        await begun.wait()
        assert (await client.get_json('/x'))['token'] == 'new'
        gate.set()
        assert await task == {'slow': True}
        assert [batch async for batch in batches] == []


@pytest.mark.parametrize('trust_env', [False, True], ids=['direct', 'aiohttp'])
async def test_streams_end_when_a_login_leads_to_another_server(server, tls_server, settings, make_vault, trust_env):
    server.add('GET', '/x', 401)
    server.add('GET', '/watch', streaming(b'1\n', before=asyncio.Event()))
    tls_server.add('GET', '/x', 200)
    vault = make_vault(ConnectionInfo(server=server.url, trust_env=trust_env))

    async def login():
        return {'login0': ConnectionInfo(server=tls_server.url, insecure=True)}

    vault.authenticate = login
    async with api.ApiClient(vault, settings) as client:
        client.note_lack('feature')
        client.listeners.append(lambda: generations.append(client.cluster_generation))
        generations = [client.cluster_generation]
        with pytest.raises(errors.APIConnectionError):
            async with client.stream('/watch') as batches:
                assert await anext(batches) == [b'1']
                await client.get_json('/x')
                await anext(batches)
        assert generations == [0, 1]
        assert not client.lacks('feature')


@pytest.mark.parametrize(
    'found, is_same',
    [
        ({'metadata': {'uid': 'mine'}}, True),
        ({'metadata': {'uid': 'theirs'}}, False),
        ({'metadata': {}}, False),
        ('<html>', False),
        (404, False),
        (500, False),
        (abort, False),
    ],
)
async def test_a_cluster_is_recognized_by_an_object(
    server, tls_server, settings, make_vault, monkeypatch, found, is_same
):
    opened = []

    def open_session(key, info):
        opened.append(info.server)
        return original(key, info)

    original = sessions.open_session
    monkeypatch.setattr(sessions, 'open_session', open_session)
    server.add('GET', '/x', 401)
    tls_server.add('GET', '/x', 200)
    tls_server.add('GET', '/lease', found)
    vault = make_vault(ConnectionInfo(server=server.url))

    async def login():
        return {'login0': ConnectionInfo(server=tls_server.url, insecure=True)}

    vault.authenticate = login
    async with api.ApiClient(vault, settings) as client:
        client.set_landmark('/lease', 'mine')
        await asyncio.gather(*(client.get_json('/x') for _ in range(20)))
        assert client.cluster_generation == (0 if is_same else 1)
        assert [seen.path for seen in tls_server.seen].count('/lease') == 1
        assert opened == [server.url, tls_server.url]


@pytest.fixture
def no_leaks(recwarn):
    """Check that sessions are closed by us, not by the garbage collector."""
    yield
    gc.collect()
    assert not [warning for warning in recwarn if issubclass(warning.category, ResourceWarning)]


@pytest.mark.usefixtures('no_leaks')
async def test_unused_sessions_are_closed_when_their_credentials_expire(server, settings, make_vault):
    server.add('GET', '/x', by_token(old=200, new=200))
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=0.1)
    vault = make_vault(ConnectionInfo(server=server.url, token='old', expiration=soon))

    async def login():
        return {'login0': ConnectionInfo(server=server.url, token='new')}

    vault.authenticate = login
    async with api.ApiClient(vault, settings) as client:
        while (await client.get_json('/x'))['token'] == 'old':
            pass
        await until_closed(server.connections - {server.seen[-1].connection})


@pytest.mark.usefixtures('no_leaks')
async def test_streams_outlive_the_expiration_of_their_credentials(server, settings, make_vault):
    gate = asyncio.Event()
    server.add('GET', '/x', by_token(old=200, new=200))
    server.add('GET', '/watch', streaming(b'1\n', before=gate))
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=0.3)
    vault = make_vault(ConnectionInfo(server=server.url, token='old', expiration=soon))

    async def login():
        return {'login0': ConnectionInfo(server=server.url, token='new')}

    vault.authenticate = login
    async with api.ApiClient(vault, settings) as client, client.stream('/watch') as batches:
        assert await anext(batches) == [b'1']
        while (await client.get_json('/x'))['token'] == 'old':
            pass
        gate.set()
        assert [batch async for batch in batches] == []


@pytest.mark.usefixtures('no_leaks')
async def test_sessions_are_closed_whatever_happens(server, settings, make_vault):
    server.add('GET', '/x', by_token(a=401, b=401, c=200))
    vault = make_vault(*[ConnectionInfo(server=server.url, token=t, priority=-n) for n, t in enumerate('abc')])
    async with api.ApiClient(vault, settings) as client:
        await asyncio.gather(*[client.get_json('/x') for _ in range(50)])
        good = {seen.connection for seen in server.seen if seen.headers['Authorization'] == 'Bearer c'}
        await until_closed(server.connections - good)
        assert any(not connection.is_closing() for connection in good)
    await until_closed(server.connections)


@pytest.mark.parametrize('moment', ['in flight', 'in a pause'])
async def test_requests_fail_at_once_when_the_client_is_closed(server, settings, make_vault, moment):
    settings.networking.error_backoffs = [60]
    server.add('GET', '/x', hang if moment == 'in flight' else 500)
    async with api.ApiClient(make_vault(ConnectionInfo(server=server.url)), settings) as client:
        request = asyncio.create_task(client.get_json('/x'))
        async with asyncio.timeout(30):
            while not server.seen or (moment == 'in a pause' and server.active):
                await asyncio.sleep(0.01)
    async with asyncio.timeout(30):
        with pytest.raises(errors.APIConnectionError):
            await request
    assert len(server.seen) == 1


#
# Failures and retries
#


async def test_success_after_temporary_failures(client, server, sleeps, caplog):
    server.add('PATCH', '/x', 500, abort, {'ok': True})
    assert await client.patch('/x', {}, 'application/merge-patch+json') == {'ok': True}
    assert sleeps == [1, 2]
    assert len(server.seen) == 3
    first, second = [record.getMessage() for record in caplog.records if 'attempt' in record.getMessage()]
    assert first.startswith(f"Request attempt #1/3 failed; will retry: PATCH {server.url}/x -> APIServerError('msg500'")
    assert second.startswith(f"Request attempt #2/3 failed; will retry: PATCH {server.url}/x -> ")
    assert 'closed by the server' in second


async def test_escalation_of_the_last_failure(client, server, sleeps, caplog):
    server.add('PATCH', '/x', 503)
    logger = logging.getLogger('specific')
    with pytest.raises(errors.APIServerError) as e:
        await client.patch('/x', {}, 'application/merge-patch+json', logger=logger)
    assert e.value.status == 503
    assert sleeps == [1, 2]
    assert f"Request attempt #3/3 failed; escalating: PATCH {server.url}/x -> APIServerError" in caplog.text
    assert {record.name for record in caplog.records if 'attempt' in record.message} == {'specific'}


@pytest.mark.parametrize('status', [400, 403, 404, 405, 409, 410, 413, 422])
async def test_wrong_requests_escalate_at_once(client, server, sleeps, caplog, status):
    server.add('GET', '/x', status)
    with pytest.raises(errors.APIClientError) as e:
        await client.get_json('/x')
    assert (e.value.status, e.value.message, e.value.reason) == (status, f'msg{status}', f'R{status}')
    assert len(server.seen) == 1
    assert 'attempt' not in caplog.text


@pytest.mark.parametrize(
    'backoffs, expected',
    [
        ([], []),
        ((), []),
        (3, [3]),
        (2.5, [2.5]),
        ([1], [1]),
        ((x for x in (4, 5)), [4, 5]),
        ({6: 0}, [6]),
    ],
)
async def test_backoffs_can_be_numbers_or_lists(client, server, settings, sleeps, backoffs, expected):
    settings.networking.error_backoffs = backoffs
    server.add('GET', '/x', 500)
    with pytest.raises(errors.APIServerError):
        await client.get_json('/x')
    assert sleeps == expected


async def test_infinite_backoffs_are_started_anew_for_every_request(client, server, settings, sleeps, caplog):
    class Infinite:
        def __iter__(self):
            n = 0
            while True:
                n += 1
                yield n

    settings.networking.error_backoffs = Infinite()
    server.add('GET', '/x', *[500] * 4, {}, *[500] * 2, {})
    await client.get_json('/x')
    await client.get_json('/x')
    assert sleeps == [1, 2, 3, 4, 1, 2]
    assert 'Request attempt #4 failed; will retry' in caplog.text


async def test_backoffs_of_one_request(client, server, sleeps):
    server.add('GET', '/x', 500)
    with pytest.raises(errors.APIServerError):
        await client.request('GET', '/x', backoffs=[7, 8, 9])
    assert sleeps == [7, 8, 9]
    with pytest.raises(errors.APIServerError):
        await client.request('GET', '/x', backoffs=())
    assert sleeps == [7, 8, 9]


@pytest.mark.parametrize('enforce, expected', [(False, [0.02, 0.03]), (True, [0.02, 0.02])])
async def test_the_server_says_when_to_retry(client, server, settings, sleeps, enforce, expected):
    settings.networking.error_backoffs = [0.01, 0.03]
    settings.networking.enforce_retry_after = enforce
    server.add('GET', '/x', (429, {}, {'Retry-After': '.02'}), (429, {'details': {'retryAfterSeconds': 0.02}}), {})
    assert await client.get_json('/x') == {}
    assert sleeps == expected


async def test_refused_connections_are_retried_and_then_reported(settings, make_vault, sleeps, unused_tcp_port):
    with pytest.raises(errors.APIConnectionError) as e:
        await get_with(ConnectionInfo(server=f'http://127.0.0.1:{unused_tcp_port}'), settings, make_vault)
    assert isinstance(e.value.__cause__, ConnectionRefusedError)
    assert e.value.status == 0
    assert sleeps == [1, 2]


async def test_responses_cut_in_the_middle(client, server, sleeps):
    server.add('GET', '/x', streaming(b'{"a":', length=100, abort=True), {'ok': 1})
    assert await client.get_json('/x') == {'ok': 1}


async def test_requests_that_time_out_are_retried(client, server, settings, sleeps):
    server.add('GET', '/x', hang)
    settings.networking.request_timeout = 0.1
    with pytest.raises(errors.APITimeoutError):
        await client.get_json('/x')
    assert len(server.seen) == 3


@pytest.mark.parametrize('report_timeout, request_timeout', [(0.1, None), (0.1, 300), (300, 0.1)])
async def test_reports_that_time_out_are_not_retried(
    client, server, settings, monkeypatch, report_timeout, request_timeout
):
    monkeypatch.setattr(pacing, 'REPORT_TIMEOUT', report_timeout)
    settings.networking.request_timeout = request_timeout
    server.add('POST', '/x', hang)
    with pytest.raises(errors.APITimeoutError):
        await client.request('POST', '/x', payload=b'{}', reporting=True)
    assert len(server.seen) == 1


async def test_reports_that_fail_are_retried(client, server, sleeps):
    server.add('POST', '/x', 500, 503, {})
    assert await client.request('POST', '/x', payload=b'{}', reporting=True) == b'{}'
    assert len(server.seen) == 3


async def test_timeout_of_slow_bodies(client, server, settings):
    settings.networking.request_timeout = 0.05
    settings.networking.error_backoffs = []
    server.add('GET', '/x', streaming(b'{', before=asyncio.Event()))
    with pytest.raises(errors.APITimeoutError):
        await client.get_json('/x')


async def test_cancelled_requests_release_everything(client, server, settings):
    settings.networking.max_connections = 2
    server.add('GET', '/x', hang)
    server.add('GET', '/y', {})
    for _ in range(5):
        tasks = [asyncio.create_task(client.get_json('/x')) for _ in range(4)]
        while server.active < 2:
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(task.cancelled() for task in tasks)
        while server.active:
            await asyncio.sleep(0)
    assert await client.get_json('/y') == {}


async def test_redirects_are_not_followed(client, server):
    server.add('GET', '/x', (302, {'redirect': True}, {'Location': '/y'}))
    with pytest.raises(errors.APIError, match="The server redirects to '/y'"):
        await client.get_json('/x')
    with pytest.raises(errors.APIError, match="The server redirects to '/y'"):
        await read_all(client, '/x')
    assert len(server.seen) == 2


#
# Streams
#


async def test_streams_are_requested_with_their_parameters(client, server):
    server.add('GET', '/watch', streaming(b'{}\n'))
    assert await read_all(client, '/watch', {'watch': 'true', 'timeoutSeconds': 10, 'x': None}) == [b'{}']
    assert server.seen[0].query == {'watch': 'true', 'timeoutSeconds': '10'}


@pytest.mark.parametrize(
    'chunks, lines',
    [
        ([], []),
        ([b'\n\n'], []),
        ([b'a\nb\n'], [b'a', b'b']),
        ([b'a\nb', b'b\nc\n'], [b'a', b'bb', b'c']),
        ([b'a', b'', b'b', b'c\n', b'd\n'], [b'abc', b'd']),
        ([b'a\n\n', b'\nb\n'], [b'a', b'b']),
        ([b'a\ncut'], [b'a', b'cut']),
        ([b'x' * 3_000_000, b'y' * 3_000_000 + b'\nz\n'], [b'x' * 3_000_000 + b'y' * 3_000_000, b'z']),
        ([b'{"a":"\r\xc2\x85\xe2\x80\xa8"}\n'], [b'{"a":"\r\xc2\x85\xe2\x80\xa8"}']),
    ],
)
async def test_streams_are_cut_into_lines(client, server, chunks, lines):
    server.add('GET', '/watch', streaming(*chunks))
    assert await read_all(client) == lines


async def test_lines_come_as_soon_as_they_are_there(client, server):
    gate = asyncio.Event()
    server.add('GET', '/watch', streaming(b'a\nb\nc', before=gate))
    async with client.stream('/watch') as batches:
        assert await anext(batches) == [b'a', b'b']
        gate.set()
        assert await anext(batches) == [b'c']


async def test_reads_can_be_cancelled_and_repeated(client, server):
    gate = asyncio.Event()

    async def handler(request):
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'a\nbb')
        await gate.wait()
        await response.write(b'bb\n')
        return response

    server.add('GET', '/watch', handler)
    async with client.stream('/watch') as batches:
        assert await anext(batches) == [b'a']
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await anext(batches)
        gate.set()
        assert await anext(batches) == [b'bbbb']


async def test_broken_streams_raise_an_error(client, server):
    server.add('GET', '/watch', streaming(b'a\n', b'b', abort=True))
    async with client.stream('/watch') as batches:
        assert await anext(batches) == [b'a']
        with pytest.raises(errors.APIConnectionError):
            await anext(batches)


@pytest.mark.parametrize('status', [403, 410, 422, 429, 500])
async def test_refused_streams_are_not_repeated(client, server, sleeps, status):
    server.add('GET', '/watch', status)
    with pytest.raises(errors.APIError) as e:
        await read_all(client)
    assert (e.value.status, e.value.message) == (status, f'msg{status}')
    assert sleeps == []
    assert len(server.seen) == 1


async def test_lost_connections_of_streams_are_not_repeated(client, server):
    server.add('GET', '/watch', abort)
    with pytest.raises(errors.APIConnectionError):
        await read_all(client)
    assert len(server.seen) <= 2  # the library may repeat on a new connection what it has lost on a kept one


async def test_streams_with_slow_headers(client, server, settings):
    settings.networking.request_timeout = 0.01
    server.add('GET', '/watch', hang)
    with pytest.raises(errors.APITimeoutError):
        await read_all(client)


async def test_streams_last_longer_than_requests(client, server, settings):
    settings.networking.request_timeout = 0.2
    server.add('GET', '/watch', streaming(*[b'a\n'] * 300))
    assert len(await read_all(client)) == 300


async def test_streams_end_by_the_timeout_of_the_client(client, server, settings):
    settings.watching.client_timeout = 0.3
    server.add('GET', '/watch', streaming(b'a\nb', before=asyncio.Event()))
    assert await read_all(client) == [b'a']


async def test_streams_are_closed_when_left(client, server):
    gone = asyncio.Event()

    async def handler(request):
        try:
            return await streaming(b'a\n', before=asyncio.Event())(request)
        finally:
            gone.set()

    server.add('GET', '/watch', handler)
    with pytest.raises(ZeroDivisionError):
        async with client.stream('/watch') as batches:
            assert await anext(batches) == [b'a']
            raise ZeroDivisionError
    await gone.wait()


async def test_errors_of_consumers_are_not_taken_for_ours(client, server):
    server.add('GET', '/watch', streaming(b'a\n'))
    error = errors.APIUnauthorizedError('from inside', status=401)
    with pytest.raises(errors.APIUnauthorizedError) as e:
        async with client.stream('/watch'):
            raise error
    assert e.value is error


async def test_a_client_without_credentials_cannot_log_in(settings):
    async with api.ApiClient(Vault(), settings) as client:
        with pytest.raises(LoginError):
            await client.get_json('/x')
        with pytest.raises(LoginError):
            await read_all(client)


async def test_time_limits_of_zero_are_none(client, server, settings):
    settings.networking.request_timeout = settings.networking.connect_timeout = 0
    settings.watching.client_timeout = settings.watching.connect_timeout = 0
    server.add('GET', '/x', {})
    assert await client.get_json('/x') == {}
    async with client.stream('/x') as lines:
        assert await anext(lines) == [b'{}']
