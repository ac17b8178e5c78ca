import base64
import json
import os
import pathlib
import stat

import pytest
import yaml

from kopf._cogs.clients import kubeconfigs
from kopf._cogs.structs.credentials import LoginError


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """Return a home directory with nothing in it, which is also the current one."""
    monkeypatch.delenv('KUBECONFIG', raising=False)
    monkeypatch.setenv('HOME', str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make(user=None, cluster=None, context=None, **kwargs):
    return {
        'apiVersion': 'v1',
        'kind': 'Config',
        'current-context': 'ctx',
        'contexts': [{'name': 'ctx', 'context': {'cluster': 'cls', 'user': 'usr', **(context or {})}}],
        'clusters': [{'name': 'cls', 'cluster': {'server': 'https://server:6443', **(cluster or {})}}],
        'users': [{'name': 'usr', 'user': user or {}}],
        **kwargs,
    }


@pytest.fixture
def login(monkeypatch, home):
    """Log in with files of the given contents."""

    def login(*configs, **kwargs):
        paths = []
        for index, config in enumerate(configs):
            path = home / f'dir{index}' / 'config'
            path.parent.mkdir(exist_ok=True)
            path.write_text(config if isinstance(config, str) else yaml.safe_dump(config))
            paths.append(str(path))
        monkeypatch.setenv('KUBECONFIG', os.pathsep.join(paths))
        config = kubeconfigs.load()
        return config.resolve(**kwargs)

    return login


#
# Finding and merging
#


def test_without_files_there_is_no_kubeconfig():
    assert kubeconfigs.load() is None


def test_no_files_of_those_named(monkeypatch, caplog):
    monkeypatch.setenv('KUBECONFIG', '/nonexistent1:/nonexistent2')
    assert kubeconfigs.load() is None
    assert '/nonexistent1:/nonexistent2' in caplog.text


@pytest.mark.parametrize('value', [None, '', ':', '~/.kube/config'])
def test_the_default_file_is_in_the_home_directory(monkeypatch, home, value):
    if value is not None:
        monkeypatch.setenv('KUBECONFIG', value)
    (home / '.kube').mkdir()
    (home / '.kube' / 'config').write_text(json.dumps(make({'token': 'tkn'})))
    assert kubeconfigs.load().resolve().token == 'tkn'


def test_absent_files_are_skipped(monkeypatch, home):
    (home / 'config').write_text(json.dumps(make({'token': 'tkn'})))
    monkeypatch.setenv('KUBECONFIG', f"/nonexistent:{home / 'config'}:{home / 'config'}")
    config = kubeconfigs.load()
    assert config.paths == [str(home / 'config')]
    assert config.resolve().token == 'tkn'


def test_first_values_and_names_win(login):
    info = login(
        {'current-context': 'ctx', 'users': [{'name': 'usr', 'user': {'username': 'first'}}]},
        make({'token': 'second', 'username': 'second'}, **{'current-context': 'another'}),
        make(cluster={'server': 'https://third'}),
    )
    assert info.server == 'https://server:6443'
    assert info.username == 'first'
    assert info.token is None  # the entries are taken as a whole


def test_relative_paths_are_relative_to_their_files(login, home):
    info = login(
        {
            'current-context': 'ctx',
            'users': [{'name': 'usr', 'user': {'client-certificate': 'client.crt', 'client-key': '/abs/client.key'}}],
        },
        make(cluster={'certificate-authority': 'sub/ca.crt'}),
    )
    assert info.certificate_path == str(home / 'dir0' / 'client.crt')
    assert info.private_key_path == '/abs/client.key'
    assert info.ca_path == str(home / 'dir1' / 'sub' / 'ca.crt')


#
# Fields
#


def test_a_server_is_enough_to_log_in(login):
    info = login(make())
    assert (info.server, info.priority, info.default_namespace) == ('https://server:6443', 10, None)
    assert info.as_http_headers() == {}


def test_a_context_needs_no_user(login):
    info = login(make(context={'user': ''}))
    assert info.server == 'https://server:6443'


def test_all_fields_of_a_kubeconfig_are_used(login):
    info = login(
        make(
            user={
                'username': 'u',
                'password': 'p',
                'token': 't',
                'client-certificate-data': 'Y2VydA==',
                'client-key-data': 'a2V5',
            },
            cluster={
                'certificate-authority-data': 'Y2E=',
                'insecure-skip-tls-verify': True,
                'tls-server-name': 'name',
                'proxy-url': 'http://proxy',
            },
            context={'namespace': 'ns'},
        ),
        trust_env=True,
    )
    assert (info.username, info.password, info.token) == ('u', 'p', 't')
    assert (info.certificate_data, info.private_key_data, info.ca_data) == ('Y2VydA==', 'a2V5', 'Y2E=')
    assert (info.insecure, info.tls_server_name, info.proxy_url) == (True, 'name', 'http://proxy')
    assert info.default_namespace == 'ns'
    assert info.trust_env


def test_data_wins_over_paths(login):
    info = login(
        make(
            user={
                'client-certificate': 'x',
                'client-certificate-data': 'Y2VydA==',
                'client-key': 'x',
                'client-key-data': 'a2V5',
            },
            cluster={'certificate-authority': 'x', 'certificate-authority-data': 'Y2E='},
        )
    )
    assert (info.certificate_path, info.private_key_path, info.ca_path) == (None, None, None)
    assert (info.certificate_data, info.private_key_data, info.ca_data) == ('Y2VydA==', 'a2V5', 'Y2E=')


def test_a_token_file_goes_before_a_static_token(login, home):
    (home / 'dir0').mkdir()
    (home / 'dir0' / 'token').write_text('from-file\n')
    info = login(make({'token': 'static', 'tokenFile': 'token'}))
    assert info.token == 'from-file'
    assert info.token_path == str(home / 'dir0' / 'token')
    assert info.as_http_headers() == {'Authorization': 'Bearer from-file'}


@pytest.mark.parametrize(
    'config, token',
    [
        ({'access-token': 'a', 'id-token': 'i'}, 'a'),
        ({'id-token': 'i'}, 'i'),
        ({}, None),
        (None, None),
    ],
)
def test_tokens_of_old_auth_providers(login, config, token):
    assert login(make({'auth-provider': {'name': 'x', 'config': config}})).token == token


def test_impersonation_is_not_silently_ignored(login, caplog):
    login(make({'token': 't', 'as': 'alice'}))
    assert 'Impersonation' in caplog.text


#
# Problems
#


@pytest.mark.parametrize(
    'config, problems',
    [
        ('', ['current context', 'use-context', 'dir0/config']),
        ('{a: [', ['not a YAML', 'dir0/config']),
        ('[]', ['not a mapping', 'dir0/config']),
        ({'clusters': 123}, ['clusters', 'dir0/config']),
        ({'users': [{'user': {}}]}, ['users', 'dir0/config']),
        (make(**{'current-context': 'zzz'}), ["'zzz' does not exist", 'use-context', 'dir0/config']),
        (make(clusters=None), ["cluster 'cls'", "contexts['ctx']", 'dir0/config']),
        (make(users=[]), ["user 'usr'", "contexts['ctx']", 'dir0/config']),
        (make(context={'cluster': None}), ["'cluster'", "contexts['ctx']", 'dir0/config']),
        (make(cluster={'server': None}), ["'server'", "clusters['cls']", 'dir0/config']),
        (make({'token': 123}), ["'token'", "users['usr']", 'dir0/config']),
        (make({'tokenFile': 'absent'}), ["'tokenFile'", "users['usr']", 'dir0/absent']),
        (make({'exec': 'cmd'}), ["'exec'", "users['usr']", 'dir0/config']),
    ],
)
def test_problems_name_the_place(login, config, problems):
    with pytest.raises(LoginError) as e:
        login(config)
    assert all(problem in str(e.value) for problem in problems), str(e.value)


def test_an_unreadable_file_is_named_by_the_error(monkeypatch, home):
    monkeypatch.setenv('KUBECONFIG', str(home))  # a directory
    with pytest.raises(LoginError, match=str(home)):
        kubeconfigs.load()


#
# Exec plugins
#


@pytest.fixture
def plugin(home):
    """Return a plugin that keeps what it was given and prints what it is told; returns the field of the kubeconfig."""

    def plugin(status=None, *, version='v1', kind='ExecCredential', code=0, output=None, **spec):
        answer = {'apiVersion': f'client.authentication.k8s.io/{version}', 'kind': kind, 'status': status}
        path: pathlib.Path = home / 'dir0' / 'bin' / 'plugin'
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            '\n'.join(
                [
                    '#!/bin/sh',
                    f'printf "%s" "$KUBERNETES_EXEC_INFO" > {home}/info',
                    f'echo "$@ $EXTRA $HOME" > {home}/args',
                    'echo "some problem" >&2',
                    f"cat <<'EOF'\n{json.dumps(answer) if output is None else output}\nEOF",
                    f'exit {code}',
                ]
            )
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return {
            'exec': {
                'apiVersion': f'client.authentication.k8s.io/{version}',
                'command': './bin/plugin',
                'interactiveMode': 'Never',
                **spec,
            }
        }

    return plugin


@pytest.mark.parametrize('version', ['v1', 'v1beta1'])
def test_plugin_gives_a_token(login, plugin, home, version):
    user = plugin({'token': 'tkn'}, version=version, args=['get', 'token'], env=[{'name': 'EXTRA', 'value': 'extra'}])
    info = login(make(user))
    assert info.as_http_headers() == {'Authorization': 'Bearer tkn'}
    assert info.expiration is None
    assert (home / 'args').read_text() == f'get token extra {home}\n'
    assert json.loads((home / 'info').read_text()) == {
        'apiVersion': f'client.authentication.k8s.io/{version}',
        'kind': 'ExecCredential',
        'spec': {'interactive': False},
    }


@pytest.mark.parametrize('timestamp', ['2099-12-31T23:59:59Z', '2100-01-01T01:59:59.123456789+02:00'])
def test_plugin_gives_an_expiration(login, plugin, timestamp):
    info = login(make(plugin({'token': 'tkn', 'expirationTimestamp': timestamp})))
    assert info.expiration.utctimetuple()[:6] == (2099, 12, 31, 23, 59, 59)


def test_plugin_gives_a_certificate(login, plugin, pki):
    cert, pkey = pki.client_cert.read_text(), pki.client_key.read_text()
    info = login(make(plugin({'clientCertificateData': cert, 'clientKeyData': pkey})))
    assert (info.certificate_data, info.private_key_data) == (cert, pkey)
    info.as_ssl_context()


@pytest.mark.parametrize('by_path', [True, False])
def test_plugin_is_told_about_the_cluster(login, plugin, home, by_path):
    (home / 'ca.crt').write_text('CA')
    ca_data = base64.b64encode(b'CA').decode()
    cluster = {
        'tls-server-name': 'name',
        'insecure-skip-tls-verify': True,
        'proxy-url': 'http://proxy',
        'extensions': [
            {'name': 'other', 'extension': 'x'},
            {'name': 'client.authentication.k8s.io/exec', 'extension': {'audience': 'me'}},
        ],
        **({'certificate-authority': '../ca.crt'} if by_path else {'certificate-authority-data': ca_data}),
    }
    login(make(plugin({'token': 'tkn'}, provideClusterInfo=True), cluster))
    assert json.loads((home / 'info').read_text())['spec']['cluster'] == {
        'server': 'https://server:6443',
        'tls-server-name': 'name',
        'insecure-skip-tls-verify': True,
        'certificate-authority-data': ca_data,
        'proxy-url': 'http://proxy',
        'config': {'audience': 'me'},
    }


def test_plugin_from_the_path(login, plugin, home, monkeypatch):
    user = plugin({'token': 'tkn'}, command='plugin')
    monkeypatch.setenv('PATH', str(home / 'dir0' / 'bin'), prepend=os.pathsep)
    assert login(make(user)).token == 'tkn'


def test_plugin_is_not_run_if_there_is_a_token_already(login, plugin, home):
    assert login(make({'token': 'static', **plugin({'token': 'tkn'})})).token == 'static'
    assert not (home / 'args').exists()


def test_plugin_is_run_at_every_login(login, plugin):
    user = plugin({'token': 'one'})
    assert login(make(user)).token == 'one'
    plugin({'token': 'two'})
    assert login(make(user)).token == 'two'


@pytest.mark.parametrize(
    'status, kwargs, problem',
    [
        ({'token': 't'}, {'command': 'absent-plugin', 'installHint': 'Install it!'}, 'absent-plugin.*Install it!'),
        ({'token': 't'}, {'command': 'absent-plugin'}, 'absent-plugin.*Install it, or add its folder to PATH'),
        ({'token': 't'}, {'command': ''}, 'no command'),
        ({'token': 't'}, {'apiVersion': 'client.authentication.k8s.io/v1alpha1'}, 'API version.*v1alpha1'),
        ({'token': 't'}, {'interactiveMode': 'Always'}, 'no terminal'),
        ({'token': 't'}, {'interactiveMode': 'Sometimes'}, 'Sometimes'),
        ({'token': 't'}, {'env': ['A=B']}, 'environment'),
        ({'token': 't'}, {'code': 5}, 'failed with code 5: some problem'),
        ({'token': 't'}, {'output': 'not json'}, 'no valid ExecCredential'),
        ({'token': 't'}, {'output': '[]'}, 'no valid ExecCredential'),
        ({'token': 't'}, {'output': '{}'}, 'no valid ExecCredential'),
        ({'token': 't', 'expirationTimestamp': 'soon'}, {}, 'no valid ExecCredential'),
        ({'token': 't'}, {'kind': 'Secret'}, 'v1 Secret'),
        ({'token': 't'}, {'version': 'v1beta1', 'apiVersion': 'client.authentication.k8s.io/v1'}, 'v1beta1'),
        ({}, {}, 'neither a token nor a certificate'),
        (None, {}, 'neither a token nor a certificate'),
        ({'clientCertificateData': 'c'}, {}, 'without its key'),
    ],
)
def test_problems_of_plugins_name_the_user_and_the_file(login, plugin, status, kwargs, problem):
    with pytest.raises(LoginError, match=problem) as e:
        login(make(plugin(status, **kwargs)))
    assert "users['usr']" in str(e.value)
    assert 'dir0/config' in str(e.value)
