"""Refused credentials: some are bad, and sometimes only the server has a bad day."""

import asyncio
import datetime
import json
import pathlib
import secrets
import sys

import kinds
import pytest
from operatorworld import in_virtual_time

import kopf
from kopf.testing import Sandbox


def refusals(world):
    return [seen for seen in world.sandbox.requests if seen.status == 401]


@pytest.fixture(autouse=True)
def pauses(world):
    world.settings.networking.login_backoffs = [0.05, 0.05, 0.1]


@pytest.mark.parametrize('times', [1, 3])
@pytest.mark.parametrize('verb', ['patch', 'watch'])
@in_virtual_time
async def test_refusals_without_a_reason_end_nothing(world, verb, times):
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        await world.create('before')
        await world.handled('before')
        world.sandbox.faults.error(401, times=times, verb=verb, resource='kopfexamples')
        if verb == 'watch':
            world.sandbox.faults.end_watches(resource='kopfexamples')
        await world.create('after')
        await world.handled('after')
    assert len(refusals(world)) == times
    assert [call.name for call in world.calls] == ['before', 'after']  # no handler is called again for that
    told = [text for text in world.log.texts if 'The API refuses the credentials of' in text]
    assert len(told) == times and 'will be tried again in 0.05 seconds' in told[0]


@pytest.mark.parametrize('path', ['^/apis$', '/kopfexamples$'])
@in_virtual_time
async def test_refusals_at_the_start(world, path):
    world.sandbox.faults.error(401, path=path)
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        await world.create()
        await world.handled()
    assert len(refusals(world)) == 1


@in_virtual_time
async def test_credentials_that_were_never_accepted_are_given_up_soon(world):
    world.settings.networking.login_backoffs = [0.05, 60]
    world.sandbox.faults.error(401, times=None)
    world.declare(kopf.on.create, 'create')
    with pytest.raises(kopf.LoginError, match="No new credentials.* Renew them or fix the login handlers"):
        async with world.operator() as task:
            await asyncio.wait_for(task, 60)


@in_virtual_time
async def test_a_success_is_a_new_beginning(world):
    world.settings.networking.login_backoffs = 0.01
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        for number in range(5):
            world.sandbox.faults.error(401, verb='patch')
            await world.create(f'obj{number}')
            await world.handled(f'obj{number}')
    assert len(refusals(world)) == 5


@pytest.mark.parametrize('path', ['^/', '^/api'])  # unknown users may read the version of the server
@pytest.mark.parametrize('backoffs, attempts', [([], 1), (0.01, 2), ([0.01, 0.01], 3), ([0.01] * 6, 7)])
@in_virtual_time
async def test_an_operator_that_is_refused_for_good_is_told_what_to_do(world, backoffs, attempts, path):
    world.settings.networking.login_backoffs = backoffs
    world.declare(kopf.on.create, 'create')
    with pytest.raises(kopf.LoginError, match="No new credentials.* Renew them or fix the login handlers"):
        async with world.operator() as task:
            await world.create('before')
            await world.handled('before')
            world.sandbox.faults.error(401, times=None, path=path)
            await world.create('after')
            await asyncio.wait_for(task, 60)
    patches = [seen for seen in refusals(world) if seen.verb == 'patch']
    assert len(patches) == attempts


@pytest.mark.parametrize('elected', [False, True])
@pytest.mark.parametrize('verb', ['patch', 'watch'])
@in_virtual_time
async def test_a_part_of_the_api_that_refuses_the_credentials_stops_no_other(world, verb, elected):
    world.settings.queueing.error_delays = [5]
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.create, 'other', resource='configmaps')
    async with world.operator(leader_election=elected):
        await world.settled()
        world.sandbox.faults.error(401, times=None, verb=verb, resource='configmaps')
        world.sandbox.faults.end_watches(resource='configmaps')
        await world.aio.create({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'other'}})
        for _ in range(10):
            await asyncio.sleep(20)
            async with asyncio.timeout(0.1):
                await world.settled()
        logins = [text for text in world.log.texts if text.startswith("Re-authentication has been initiated")]
        world.sandbox.faults.clear()
        await world.aio.wait_for('configmaps', 'other', lambda body: body['metadata'].get('annotations'))
    assert 2 <= len(logins) <= 15
    assert not any('No longer the leader' in text for text in world.log.texts)


@in_virtual_time
async def test_expired_tokens_are_replaced_while_a_part_of_the_api_refuses_all(world):
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.event, 'other', resource='configmaps')
    async with world.operator():
        await world.settled()
        world.sandbox.faults.error(401, times=None, resource='configmaps')
        world.sandbox.faults.end_watches(resource='configmaps')
        for _ in range(10):
            await asyncio.sleep(20)
            world.sandbox.faults.expire_tokens()
            async with asyncio.timeout(0.1):
                await world.settled()


@in_virtual_time
async def test_a_quiet_operator_notices_that_all_is_refused_after_a_part_was(world):
    world.settings.networking.login_backoffs = [0.1, 0.2]
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.event, 'other', resource='configmaps')
    with pytest.raises(kopf.LoginError, match="No new credentials"):
        async with world.operator() as task:
            await world.settled()
            world.sandbox.faults.error(401, times=None, resource='configmaps')
            world.sandbox.faults.end_watches(resource='configmaps')
            await asyncio.sleep(30)
            await world.settled()
            world.sandbox.faults.error(401, times=None)
            await asyncio.wait({task}, timeout=150)
            assert task.done()


@in_virtual_time
async def test_a_discovery_that_is_refused_is_made_later(world):
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.event, 'thing', resource='things')
    async with world.operator():
        await world.settled()
        world.sandbox.faults.error(401, times=None, path='^/apis$')
        await world.aio.create(kinds.define('things', 'Thing', group='other.dev'))
        await asyncio.sleep(60)
        await world.settled()
        world.sandbox.faults.clear()
        await world.aio.create({'apiVersion': 'other.dev/v1', 'kind': 'Thing', 'metadata': {'name': 'one'}})
        await world.until_called('thing')


@in_virtual_time
async def test_new_credentials_are_taken_as_soon_as_they_come(world):
    world.settings.networking.login_backoffs = [0.2, 60]
    logins = []
    world.registry.activities._handlers.clear()

    @kopf.on.login(registry=world.registry)
    def login(**kwargs):
        logins.append('login')
        if len(logins) == 3:  # it is late
            world.sandbox.faults.clear()
            world.sandbox.faults.expire_tokens()
        return kopf.login_with_kubeconfig(**kwargs)

    world.declare(kopf.on.create, 'create')
    async with world.operator():
        await world.create('before')
        await world.handled('before')
        world.sandbox.faults.error(401, times=None)
        await world.create('after')
        await world.handled('after')
    assert len(logins) == 3


@in_virtual_time
async def test_files_with_tokens_are_read_again(world, tmp_path):
    world.registry.activities._handlers.clear()
    path = tmp_path / 'token'
    path.write_text(world.sandbox.token)
    (tmp_path / 'ca.crt').write_bytes(world.sandbox.ca)

    @kopf.on.login(registry=world.registry)
    def login(**_):
        path.write_text(world.sandbox.token)
        return kopf.ConnectionInfo(server=world.sandbox.url, token_path=path, ca_path=tmp_path / 'ca.crt')

    world.declare(kopf.on.create, 'create')
    async with world.operator():
        await world.create('before')
        await world.handled('before')
        world.sandbox.faults.expire_tokens()
        await world.create('after')
        await world.handled('after')


PLUGIN = """
import pathlib, sys
folder = pathlib.Path(__file__).parent
number = int((folder / 'count').read_text()) + 1
(folder / 'count').write_text(str(number))
if (folder / 'broken').exists():
    sys.exit('the identity provider answers 503')
print((folder / 'answer').read_text())
"""


@pytest.fixture
def plugin(world, tmp_path, monkeypatch):
    """Return an exec plugin in the kubeconfig, in a folder: fails as long as there is a file "broken"."""
    answer = {
        'apiVersion': 'client.authentication.k8s.io/v1',
        'kind': 'ExecCredential',
        'status': {'token': world.sandbox.token},
    }
    config = json.loads(pathlib.Path(world.sandbox.kubeconfig).read_text())
    config['users'][0]['user'] = {
        'exec': {
            'apiVersion': answer['apiVersion'],
            'command': sys.executable,
            'args': [str(tmp_path / 'plugin.py')],
            'interactiveMode': 'Never',
        }
    }
    for name, text in {
        'plugin.py': PLUGIN,
        'count': '0',
        'answer': json.dumps(answer),
        'config': json.dumps(config),
    }.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setenv('KUBECONFIG', str(tmp_path / 'config'))
    return tmp_path


async def test_failing_plugins_delay_only_what_needs_requests(world, plugin):
    proceed = asyncio.Event()

    async def work(**_):
        await proceed.wait()
        return 'result'

    world.declare(kopf.on.create, 'create', does=work)
    async with world.operator() as task:
        await world.create('one')
        await world.until_called('create')
        (plugin / 'broken').touch()
        world.sandbox.faults.expire_tokens()
        answer = json.loads((plugin / 'answer').read_text())
        answer['status']['token'] = world.sandbox.token
        (plugin / 'answer').write_text(json.dumps(answer))
        proceed.set()  # what it has returned cannot be stored now
        await world.until_logged("The login has failed. It is tried again in 1 seconds")
        assert not task.done()
        (plugin / 'broken').unlink()
        assert (await world.handled('one'))['status'] == {'create': 'result'}
        await world.create('two')
        await world.handled('two')
    assert [call.name for call in world.calls] == ['one', 'two']
    assert "503" in next(text for text in world.log.texts if "The login has failed" in text)


async def test_a_plugin_that_fails_once_at_the_start(world, plugin):
    (plugin / 'broken').touch()
    world.declare(kopf.on.create, 'create')
    starting = asyncio.create_task(world.until_logged("The login has failed"))
    starting.add_done_callback(lambda _: (plugin / 'broken').unlink())
    async with world.operator():
        await world.create()
        await world.handled()
    assert (plugin / 'count').read_text() == '2'


async def test_a_plugin_that_fails_at_the_start_ends_the_operator(world, plugin):
    (plugin / 'broken').touch()
    world.declare(kopf.on.create, 'create')
    with pytest.raises(kopf.LoginError, match="503"):
        async with world.operator() as task:
            await asyncio.wait_for(task, 60)
    assert (plugin / 'count').read_text() == '2'


@pytest.mark.parametrize('error', [kopf.LoginError('boo'), OSError('boo'), kopf.TemporaryError('boo', delay=0.1)])
@in_virtual_time
async def test_failing_login_handlers_are_asked_again(world, error):
    world.registry.activities._handlers.clear()
    logins = []

    @kopf.on.login(registry=world.registry, backoff=0.1)
    def login(**kwargs):
        logins.append('login')
        if len(logins) == 2:
            raise error
        return kopf.login_with_kubeconfig(**kwargs)

    world.declare(kopf.on.create, 'create')
    async with world.operator():
        await world.create('before')
        await world.handled('before')
        world.sandbox.faults.expire_tokens()
        await world.create('after')
        await world.handled('after')
    assert len(logins) == 3


@in_virtual_time
async def test_login_handlers_can_end_the_operator(world):
    world.registry.activities._handlers.clear()
    logins = []

    @kopf.on.login(registry=world.registry)
    def login(**kwargs):
        logins.append('login')
        if len(logins) == 2:
            raise kopf.PermanentError('fired')
        return kopf.login_with_kubeconfig(**kwargs)

    world.declare(kopf.on.create, 'create')
    with pytest.raises(kopf.LoginError, match='fired'):
        async with world.operator() as task:
            await world.create()
            await world.handled()
            world.sandbox.faults.expire_tokens()
            world.sandbox.faults.drop_watches()
            await asyncio.wait_for(task, 60)
    assert len(logins) == 2


@pytest.mark.parametrize('proven', [False, True])
@in_virtual_time
async def test_new_credentials_that_are_refused_each_time_are_not_a_storm(world, proven):
    world.settings.networking.login_backoffs = [0.1, 0.2, 0.3]
    world.registry.activities._handlers.clear()
    logins = []

    @kopf.on.login(registry=world.registry)
    def login(**_):  # as the plugins of clouds do it: each call signs a new token
        logins.append('login')
        token = world.sandbox.token if proven and len(logins) == 1 else secrets.token_hex(8)
        return kopf.ConnectionInfo(server=world.sandbox.url, ca_data=world.sandbox.ca, token=token)

    world.declare(kopf.on.create, 'create')
    with pytest.raises(kopf.LoginError, match="No new credentials.* Renew them or fix the login handlers"):
        async with world.operator() as task:
            if proven:
                await world.create()
                await world.handled()
                world.sandbox.faults.expire_tokens()
                world.sandbox.faults.drop_watches()
            await asyncio.wait_for(task, 60)
    assert len(logins) == (5 if proven else 3)


async def test_files_that_can_not_be_read_for_a_moment(world, tmp_path):
    world.registry.activities._handlers.clear()
    path = tmp_path / 'ca.crt'
    path.write_bytes(world.sandbox.ca)
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=1)
    expirations = [soon]

    @kopf.on.login(registry=world.registry)
    def login(**_):
        if not expirations:
            path.unlink(missing_ok=True)
        return kopf.ConnectionInfo(
            server=world.sandbox.url,
            ca_path=path,
            token=world.sandbox.token,
            expiration=expirations.pop() if expirations else None,
        )

    world.declare(kopf.on.create, 'create')
    async with world.operator() as task:
        await world.create('before')
        await world.handled('before')
        while datetime.datetime.now(datetime.UTC) <= soon:
            await asyncio.sleep(0.05)
        await world.create('after')
        await world.edit('before', field='other')
        await world.until_logged("cannot be used")
        world.registry.activities._handlers.clear()
        kopf.on.login(registry=world.registry)(kopf.login_with_kubeconfig)
        await world.handled('after')
        await world.handled('before')
        assert not task.done()


async def test_certificates_of_servers_are_rotated(world, tmp_path, monkeypatch):
    config = tmp_path / 'config'
    monkeypatch.setenv('KUBECONFIG', str(config))
    world.declare(kopf.on.create, 'create')
    crds = [world.root / 'examples' / 'crd.yaml']
    kubernetes = Sandbox(crds=crds)
    async with kubernetes as aio:
        world.aio = aio
        config.write_bytes(pathlib.Path(kubernetes.kubeconfig).read_bytes())
        port = int(kubernetes.url.rsplit(':', 1)[1])
        operator = world.operator()
        task = await operator.__aenter__()
        await world.create('before')
        await world.handled('before')
    kubernetes = Sandbox(crds=crds, port=port)
    async with kubernetes as aio:
        world.aio = aio
        await world.until_logged("is not trusted any more")
        config.write_bytes(pathlib.Path(kubernetes.kubeconfig).read_bytes())
        async with asyncio.timeout(60):
            while not any(seen.verb == 'watch' and seen.user_agent.startswith('kopf/') for seen in kubernetes.requests):
                await asyncio.sleep(0.01)
        assert not task.done()
        await operator.__aexit__(None, None, None)
