"""Operators that log in: by the libraries that are installed besides, through proxies, with retries, by contexts."""

import asyncio
import contextlib
import json
import pathlib
import sys

import pytest

import kopf


@pytest.fixture
def config(world, tmp_path, monkeypatch):
    """Write another kubeconfig for the sandbox: as it is but for these changes."""
    content = json.loads(pathlib.Path(world.sandbox.kubeconfig).read_text())

    def write(**changes):
        path = tmp_path / 'kubeconfig'
        path.write_text(json.dumps(content | changes))
        monkeypatch.setenv('KUBECONFIG', str(path))
        for name in ['kubernetes', 'kubernetes_asyncio']:  # they look at the variable only once
            module = pytest.importorskip(f'{name}.config.kube_config')
            monkeypatch.setattr(module, 'KUBE_CONFIG_DEFAULT_LOCATION', str(path))

    content['write'] = write
    world.registry.activities._handlers.pop(0)
    return content


def declare_login(world, fn):
    kopf.on.login(registry=world.registry, id='login')(fn)


async def assert_works(world):
    world.declare(kopf.on.create, 'create')
    async with world.operator(namespaces=['default']):
        await world.create()
        await world.handled()
    assert world.ids == ['create']


@pytest.mark.parametrize('way', ['token', 'file', 'certificate', 'plugin'])
@pytest.mark.parametrize(
    'fn',
    [
        kopf.login_via_client,
        kopf.login_via_async_client,
        kopf.login_via_pykube,
        kopf.login_with_kubeconfig,
    ],
    ids=lambda fn: fn.__name__,
)
async def test_each_library_logs_in_with_each_kind_of_credentials(world, config, tmp_path, fn, way):
    token, pair = world.sandbox.token, world.sandbox.client_certificate()
    for name, text in {'token': token.encode(), 'crt': pair.certificate, 'key': pair.key}.items():
        (tmp_path / name).write_bytes(text)
    answer = {'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential', 'status': {'token': token}}
    (tmp_path / 'plugin.py').write_text(f'print({json.dumps(answer)!r})')
    user = {
        'token': {'token': token},
        'file': {'tokenFile': str(tmp_path / 'token')},
        'certificate': {'client-certificate': str(tmp_path / 'crt'), 'client-key': str(tmp_path / 'key')},
        'plugin': {
            'exec': {
                'apiVersion': answer['apiVersion'],
                'command': sys.executable,
                'interactiveMode': 'Never',
                'args': [str(tmp_path / 'plugin.py')],
                'env': [],
            }
        },
    }[way]
    config.pop('write')(users=[{'name': config['users'][0]['name'], 'user': user}])
    declare_login(world, fn)
    await assert_works(world)


async def test_the_current_context_is_used(world, config):
    others = [{'name': 'other', 'cluster': {'server': 'https://127.0.0.1:1'}}]
    chosen = config['contexts'][0]
    config.pop('write')(
        **{
            'clusters': [*others, *config['clusters']],
            'current-context': chosen['name'],
            'contexts': [{'name': 'other', 'context': {'cluster': 'other'}}, chosen],
        }
    )
    declare_login(world, kopf.login_with_kubeconfig)
    await assert_works(world)


async def test_failing_logins_are_retried(world, config):
    attempts = []

    @kopf.on.login(registry=world.registry, retries=3, backoff=0.01)
    def login(retry, **kwargs):
        attempts.append(retry)
        if retry < 2:
            raise Exception('not yet')
        return kopf.login_with_kubeconfig(**kwargs)

    await assert_works(world)
    assert attempts == [0, 1, 2]


async def test_logins_without_more_retries_end_the_operator(world, config):
    @kopf.on.login(registry=world.registry, retries=2, backoff=0.01)
    def login(**_):
        raise Exception('not ever')

    world.declare(kopf.on.create, 'create')
    with pytest.raises(kopf.LoginError):
        await kopf.operator(registry=world.registry, settings=world.settings, namespaces=['default'], standalone=True)


class Proxy:
    """What forwards connections, and remembers to where."""

    def __init__(self):
        self.targets = []
        self.tasks = set()

    async def serve(self, reader, writer):
        self.tasks.add(asyncio.current_task())
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b'\r\n\r\n')
            method, target, _ = head.split(b' ', 2)
            self.targets.append((method, target.decode()))
            host, _, port = target.decode().rpartition(':')
            other_reader, other_writer = await asyncio.open_connection(host, int(port))
            writer.write(b'HTTP/1.1 200 Connection established\r\n\r\n')
            await asyncio.gather(self.pump(reader, other_writer), self.pump(other_reader, writer))

    async def pump(self, reader, writer):
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()


@pytest.fixture
async def proxy():
    proxy = Proxy()
    server = await asyncio.start_server(proxy.serve, '127.0.0.1', 0)
    proxy.url = f'http://127.0.0.1:{server.sockets[0].getsockname()[1]}'
    yield proxy
    server.close()
    for task in proxy.tasks:
        task.cancel()
    await asyncio.gather(*proxy.tasks, return_exceptions=True)


@pytest.mark.parametrize('trusted', [True, False])
async def test_proxies_of_the_environment(world, config, proxy, monkeypatch, trusted):
    monkeypatch.setenv('HTTPS_PROXY', proxy.url)
    monkeypatch.delenv('NO_PROXY', raising=False)
    monkeypatch.delenv('no_proxy', raising=False)
    world.settings.networking.trust_env = trusted
    declare_login(world, kopf.login_with_kubeconfig)
    await assert_works(world)
    server = world.sandbox.url.removeprefix('https://').rstrip('/')
    assert set(proxy.targets) == ({(b'CONNECT', server)} if trusted else set())


async def test_proxies_of_the_cluster(world, config, proxy):
    cluster = config['clusters'][0]
    config.pop('write')(clusters=[{**cluster, 'cluster': {**cluster['cluster'], 'proxy-url': proxy.url}}])
    declare_login(world, kopf.login_with_kubeconfig)
    await assert_works(world)
    assert {method for method, _ in proxy.targets} == {b'CONNECT'}
