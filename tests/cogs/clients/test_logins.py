import json
import logging
import sys
import textwrap

import pytest

from kopf._cogs.clients import logins
from kopf._cogs.structs.credentials import LoginError


@pytest.fixture(autouse=True)
def service_account(monkeypatch, tmp_path):
    """Where the service account would be; it is not there by default. And there is no kubeconfig."""
    path = tmp_path / 'serviceaccount'
    monkeypatch.setattr(logins, 'SERVICE_ACCOUNT', str(path))
    monkeypatch.setenv('HOME', str(tmp_path))
    for name in ['KUBECONFIG', 'KUBERNETES_SERVICE_HOST', 'KUBERNETES_SERVICE_PORT']:
        monkeypatch.delenv(name, raising=False)
    return path


def mount(path, **files):
    path.mkdir()
    for name, content in files.items():
        (path / name.replace('_', '.')).write_text(content)


@pytest.fixture
def kwargs(settings):
    return {'settings': settings, 'logger': logging.getLogger(), 'retry': 0, 'param': None}


def test_nothing_to_log_in_with(kwargs, service_account):
    assert logins.login_with_kubeconfig(**kwargs) is None
    assert logins.login_with_service_account(**kwargs) is None
    assert not logins.has_kubeconfig()
    assert not logins.has_service_account()
    assert str(service_account) in logins.explain_absence()
    assert '.kube/config' in logins.explain_absence()


@pytest.mark.parametrize('trust_env', [True, False])
def test_the_kubeconfig_is_found_by_its_variable(kwargs, settings, monkeypatch, tmp_path, trust_env):
    settings.networking.trust_env = trust_env
    path = tmp_path / 'config'
    path.write_text(
        json.dumps(
            {
                'current-context': 'c',
                'contexts': [{'name': 'c', 'context': {'cluster': 'c'}}],
                'clusters': [{'name': 'c', 'cluster': {'server': 'https://server'}}],
            }
        )
    )
    monkeypatch.setenv('KUBECONFIG', str(path))
    assert logins.has_kubeconfig()
    assert str(path) in logins.explain_absence()
    info = logins.login_with_kubeconfig(**kwargs)
    assert (info.server, info.priority, info.trust_env) == ('https://server', 10, trust_env)


@pytest.mark.parametrize(
    'host, port, server',
    [
        (None, None, 'https://kubernetes.default.svc'),
        ('1.2.3.4', '6443', 'https://1.2.3.4:6443'),
        ('1.2.3.4', None, 'https://1.2.3.4:443'),
        ('fd00::1', '443', 'https://[fd00::1]:443'),
    ],
)
@pytest.mark.parametrize('trust_env', [True, False])
def test_the_mounted_service_account_logs_in(
    kwargs, settings, service_account, monkeypatch, host, port, server, trust_env
):
    settings.networking.trust_env = trust_env
    for name, value in [('HOST', host), ('PORT', port)]:
        if value is not None:
            monkeypatch.setenv(f'KUBERNETES_SERVICE_{name}', value)
    mount(service_account, token='tkn\n', namespace='ns\n', ca_crt='CA')
    assert logins.has_service_account()
    info = logins.login_with_service_account(**kwargs)
    assert (info.server, info.priority, info.trust_env) == (server, 20, trust_env)
    assert (info.token, info.default_namespace) == ('tkn', 'ns')
    assert info.ca_path == str(service_account / 'ca.crt')
    assert info.token_path == str(service_account / 'token')


def test_service_account_with_the_token_only(kwargs, service_account):
    mount(service_account, token='tkn')
    info = logins.login_with_service_account(**kwargs)
    assert (info.token, info.default_namespace, info.ca_path) == ('tkn', None, None)


def test_a_broken_service_account_is_an_error(kwargs, service_account):
    (service_account / 'token').mkdir(parents=True)
    with pytest.raises(LoginError, match='token'):
        logins.login_with_service_account(**kwargs)


#
# Piggybacking: by the libraries if they are installed, and by modules that look like them.
#


def test_without_pykube_its_login_is_skipped(kwargs, monkeypatch):
    monkeypatch.setitem(sys.modules, 'pykube', None)
    assert not logins.has_pykube()
    assert logins.login_via_pykube(**kwargs) is None


def test_without_the_official_client_its_login_is_skipped(kwargs, monkeypatch):
    monkeypatch.setitem(sys.modules, 'kubernetes', None)
    assert not logins.has_client()
    assert logins.login_via_client(**kwargs) is None


async def test_without_the_asynchronous_client_its_login_is_skipped(kwargs, monkeypatch):
    monkeypatch.setitem(sys.modules, 'kubernetes_asyncio', None)
    assert not logins.has_async_client()
    assert await logins.login_via_async_client(**kwargs) is None


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Make importable modules of the sources given."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def forget():
        for name in list(sys.modules):
            if name.split('.')[0] in ('pykube', 'kubernetes', 'kubernetes_asyncio'):
                del sys.modules[name]

    def library(**sources):
        for name, source in sources.items():
            path = tmp_path.joinpath(*name.split('__'))
            path.mkdir(parents=True, exist_ok=True)
            (path / '__init__.py').write_text(textwrap.dedent(source))
        forget()

    yield library
    forget()


PYKUBE = '''
    class PyKubeError(Exception): pass
    class File:
        def __init__(self, name): self.name = name
        def filename(self): return self.name
    class KubeConfig:
        cluster = {'server': 'https://server', 'certificate-authority': File('ca'), 'insecure-skip-tls-verify': True}
        user = {'username': 'u', 'password': 'p', 'token': 't\\n',
                'client-certificate': File('c'), 'client-key': File('k')}
        namespace = 'ns\\n'
        @classmethod
        def from_service_account(cls): raise FileNotFoundError
        @classmethod
        def from_file(cls): %s
'''


def test_pykube_gives_its_credentials(kwargs, library):
    library(pykube=PYKUBE % 'return cls()')
    info = logins.login_via_pykube(**kwargs)
    assert (info.server, info.priority, info.default_namespace) == ('https://server', 20, 'ns')
    assert (info.username, info.password, info.token, info.insecure) == ('u', 'p', 't', True)
    assert (info.ca_path, info.certificate_path, info.private_key_path) == ('ca', 'c', 'k')


def test_pykube_without_a_configuration_fails(kwargs, library):
    library(pykube=PYKUBE % 'raise PyKubeError')
    with pytest.raises(LoginError, match='Cannot authenticate pykube neither in-cluster, nor via kubeconfig'):
        logins.login_via_pykube(**kwargs)


CLIENT = '''
    class Configuration:
        host, ssl_ca_cert, verify_ssl, cert_file, key_file, proxy = 'https://server', 'ca', True, 'c', 'k', None
        username, password, tls_server_name = '', '', ''
        @classmethod
        def get_default_copy(cls): return cls()
        {async_}def get_api_key_with_prefix(self, name): return 'bearer tkn\\n'
'''
CONFIG = '''
    from {name} import client
    class ConfigException(Exception): pass
    def load_incluster_config(): raise ConfigException
    {async_}def load_kube_config(): {outcome}
'''


@pytest.mark.parametrize('name, async_, priority', [('kubernetes', '', 10), ('kubernetes_asyncio', 'async ', 15)])
async def test_official_clients_give_their_credentials(kwargs, library, name, async_, priority):
    library(
        **{
            name: '',
            f'{name}__client': CLIENT.format(async_=async_),
            f'{name}__config': CONFIG.format(name=name, async_=async_, outcome='pass'),
        }
    )
    info = await logins.login_via_async_client(**kwargs) if async_ else logins.login_via_client(**kwargs)
    assert (info.server, info.priority, info.insecure) == ('https://server', priority, False)
    assert (info.scheme, info.token, info.username, info.password) == ('bearer', 'tkn', None, None)
    assert (info.ca_path, info.certificate_path, info.private_key_path) == ('ca', 'c', 'k')


@pytest.mark.parametrize('name, async_', [('kubernetes', ''), ('kubernetes_asyncio', 'async ')])
async def test_clients_without_a_configuration_fail(kwargs, library, name, async_):
    library(
        **{
            name: '',
            f'{name}__client': CLIENT.format(async_=async_),
            f'{name}__config': CONFIG.format(name=name, async_=async_, outcome='raise ConfigException'),
        }
    )
    with pytest.raises(LoginError, match='neither in-cluster, nor via kubeconfig'):
        await logins.login_via_async_client(**kwargs) if async_ else logins.login_via_client(**kwargs)
