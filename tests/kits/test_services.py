"""The webhook service against the sandbox: its Secret, its replicas, and what may be wrong with either."""

import asyncio
import base64
import contextlib
import datetime
import json

import pytest

import kopf
from kopf._cogs.clients.api import ApiClient, client_var
from kopf._cogs.clients.logins import login_with_kubeconfig
from kopf._cogs.structs.credentials import Vault
from kopf._kits import services
from kopf._kits.services import PRESENCE_PREFIX, WebhookServiceError
from kopf.testing import Sandbox

SECRET = 'svc-webhook-certs'
QUICK = {'lifetime': 100, 'overlap': 1, 'check_interval': 0.02}


@pytest.fixture
async def sandbox(monkeypatch):
    with Sandbox() as sandbox:
        monkeypatch.setenv('KUBECONFIG', str(sandbox.kubeconfig))
        yield sandbox


@pytest.fixture
async def client(sandbox):
    settings = kopf.OperatorSettings()

    async def log_in():
        return {'id': login_with_kubeconfig(settings=settings)}

    settings.networking.error_backoffs = []
    vault = Vault()
    vault.authenticate = log_in
    async with ApiClient(vault, settings) as client:
        token = client_var.set(client)
        yield client
        client_var.reset(token)
    await vault.close()


@pytest.fixture
async def start(client):
    """Start a service, give the iterator of its client configs."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(**options):
            server = kopf.WebhookService(
                **{'name': 'svc', 'namespace': 'default', 'addr': '127.0.0.1', 'port': 0, **QUICK, **options}
            )
            configs = server(None)
            await stack.enter_async_context(contextlib.aclosing(configs))
            return server, configs

        yield start


@contextlib.asynccontextmanager
async def following(configs):
    """Let the service go on, until its next client config."""
    task = asyncio.create_task(anext(configs))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_the_configuration_names_the_service_and_its_authority(sandbox, start):
    _, configs = await start(service_port=8443, path='root/')
    config = await anext(configs)
    secret = await sandbox.aio.get('secrets', SECRET)
    assert config == {
        'service': {'namespace': 'default', 'name': 'svc', 'port': 8443, 'path': '/root'},
        'caBundle': secret['data']['ca.crt'],
    }
    assert secret['type'] == 'kubernetes.io/tls'
    assert secret['metadata']['labels'] == {'app.kubernetes.io/managed-by': 'kopf'}


async def test_the_namespace_is_that_of_the_pod(start, monkeypatch, tmp_path):
    monkeypatch.setattr(services, 'NAMESPACE_FILE', tmp_path / 'namespace')
    _, configs = await start(namespace=None)
    with pytest.raises(WebhookServiceError, match="namespace="):
        await anext(configs)
    (tmp_path / 'namespace').write_text('default\n')
    _, configs = await start(namespace=None)
    assert (await anext(configs))['service']['namespace'] == 'default'


async def test_replicas_share_one_secret(sandbox, start):
    replicas = [await start() for _ in range(5)]
    configs = await asyncio.gather(*(anext(configs) for _, configs in replicas))
    assert len({config['caBundle'] for config in configs}) == 1
    secret = await sandbox.aio.get('secrets', SECRET)
    assert len(secret['metadata']['annotations']) == 5
    assert [await server.leave() for server, _ in replicas] == [False, False, False, False, True]


async def test_dead_replicas_are_forgotten(sandbox, start, monkeypatch):
    server, configs = await start()
    await anext(configs)
    now = datetime.datetime.now(datetime.UTC)
    dead = f'{PRESENCE_PREFIX}dead'
    await sandbox.aio.patch(
        'secrets',
        SECRET,
        {
            'metadata': {
                'annotations': {
                    dead: (now - services.PRESENCE_LIFETIME).isoformat(),
                    f'{PRESENCE_PREFIX}odd': 'rubbish',
                }
            }
        },
    )
    async with following(configs):
        found = await sandbox.aio.wait_for('secrets', SECRET, lambda body: dead not in body['metadata']['annotations'])
        assert len(found['metadata']['annotations']) == 1
        assert await server.leave()


async def test_presence_is_renewed(sandbox, start, monkeypatch):
    _, configs = await start()
    await anext(configs)
    before = (await sandbox.aio.get('secrets', SECRET))['metadata']['annotations']
    monkeypatch.setattr(services, 'PRESENCE_PERIOD', datetime.timedelta(seconds=1))
    async with following(configs):
        await sandbox.aio.wait_for('secrets', SECRET, lambda body: body['metadata']['annotations'] != before)


async def test_who_leaves_does_not_come_back(sandbox, start):
    server, configs = await start()
    await anext(configs)
    async with following(configs):
        assert await server.leave()
        seen = len(sandbox.requests)
        async with asyncio.timeout(60):
            while len(sandbox.requests) < seen + 5:
                await asyncio.sleep(0.01)
    assert not (await sandbox.aio.get('secrets', SECRET))['metadata'].get('annotations')


async def test_nothing_is_written_while_nothing_is_due(sandbox, start):
    _, configs = await start()
    await anext(configs)
    async with following(configs):
        written = len([request for request in sandbox.requests if request.method != 'GET'])
        seen = len(sandbox.requests)
        async with asyncio.timeout(60):
            while len(sandbox.requests) < seen + 5:
                await asyncio.sleep(0.01)
        assert len([request for request in sandbox.requests if request.method != 'GET']) == written


@pytest.mark.parametrize('method', ['GET', 'POST'])
async def test_missing_permissions_are_named_by_the_error(sandbox, start, method):
    sandbox.faults.error(403, times=None, method=method, resource='secrets')
    _, configs = await start()
    with pytest.raises(WebhookServiceError) as error:
        await anext(configs)
    assert 'default/svc-webhook-certs' in str(error.value)
    assert '{apiGroups: [""], resources: [secrets], verbs: [get, create, patch]}' in str(error.value)


async def test_a_missing_namespace_is_named_by_the_error(start):
    _, configs = await start(namespace='absent')
    with pytest.raises(WebhookServiceError, match="The namespace 'absent' of the webhook service is not there"):
        await anext(configs)


async def test_an_ill_api_is_waited_for(sandbox, start, monkeypatch):
    monkeypatch.setattr(services, 'RETRY_DELAYS', (0.01,))
    sandbox.faults.error(500, times=3, resource='secrets')
    _, configs = await start()
    assert (await anext(configs))['caBundle']


@pytest.mark.parametrize('status', [403, 500])
async def test_later_failures_leave_what_there_is(sandbox, start, caplog, status):
    _, configs = await start()
    await anext(configs)
    sandbox.faults.error(status, times=2, resource='secrets')
    async with following(configs) as task:
        async with asyncio.timeout(60):
            while "The certificates of the webhook service cannot be" not in caplog.text:
                await asyncio.sleep(0.01)
        await sandbox.aio.patch('secrets', SECRET, {'data': {'tls.key': ''}})
        assert (await task)['caBundle']  # they were broken, so they are made anew, by a new authority


@pytest.mark.parametrize(
    'data',
    [
        {'ca.key': ''},
        {'ca.key': 'eA=='},
        dict.fromkeys(services.Keyring.FILES, 'eA=='),
        {},
        None,
    ],
)
async def test_broken_secrets_are_written_anew(sandbox, start, data):
    await sandbox.aio.create(
        {'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': SECRET, 'namespace': 'default'}, 'data': data}
    )
    _, configs = await start()
    assert (await anext(configs))['caBundle'] == (await sandbox.aio.get('secrets', SECRET))['data']['ca.crt']


async def test_a_deleted_secret_gives_all_replicas_another_authority(sandbox, start):
    replicas = [configs for _, configs in [await start(), await start()]]
    former, _ = await asyncio.gather(*map(anext, replicas))
    leaked = (await sandbox.aio.get('secrets', SECRET))['data']
    await sandbox.aio.delete('secrets', SECRET)
    fresh, others = await asyncio.gather(*map(anext, replicas))
    data = (await sandbox.aio.get('secrets', SECRET))['data']
    assert fresh == others != former
    assert fresh['caBundle'] == data['ca.crt'] != leaked['ca.crt'], "the API must not trust the leaked authority"
    assert not {*data.values()} & {*leaked.values()}


async def test_secrets_of_others_are_left_alone(sandbox, start):
    data = {'password': base64.b64encode(b'x').decode()}
    await sandbox.aio.create(
        {'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': SECRET, 'namespace': 'default'}, 'data': data}
    )
    _, configs = await start()
    with pytest.raises(WebhookServiceError, match="other data than the certificates .*: password"):
        await anext(configs)
    assert json.loads(json.dumps((await sandbox.aio.get('secrets', SECRET))['data'])) == data


async def test_failed_goodbyes_keep_the_webhooks(sandbox, start):
    server, configs = await start()
    await anext(configs)
    sandbox.faults.error(403, times=None, resource='secrets')
    assert not await server.leave()


async def test_goodbyes_without_a_secret(sandbox, start):
    server, configs = await start()
    assert await server.leave()
    await anext(configs)
    await sandbox.aio.delete('secrets', SECRET)
    assert await server.leave()


async def test_it_is_only_for_operators():
    with pytest.raises(WebhookServiceError, match="of an operator"):
        await anext(kopf.WebhookService(name='svc', namespace='default')(None))


@pytest.mark.parametrize(
    'options',
    [
        {'lifetime': 50},
        {'lifetime': 1000, 'overlap': 500},
        {'check_interval': 0},
        {'overlap': 1},
        {'name': ''},
    ],
)
def test_impossible_options_are_refused(options):
    with pytest.raises(ValueError, match="WebhookService"):
        kopf.WebhookService(**{'name': 'svc', **options})
