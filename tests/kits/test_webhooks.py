"""Webhook servers as their clients see them: over real HTTPS, with certificates of all sorts, good and bad requests."""

import asyncio
import base64
import contextlib
import datetime
import gzip
import http.client
import ipaddress
import json
import os
import pathlib
import shutil
import socket
import ssl
import sys
import types
import urllib.parse
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

import hypothesis
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import strategies as st

import kopf
from kopf._cogs.helpers.explanations import ExplainedError
from kopf._cogs.structs.references import Resource
from kopf._cogs.structs.reviews import time_limit_var
from kopf._core.engines.admission import AdmissionReviewer, vault_var
from kopf._core.engines.responders import ReviewError
from kopf._core.intents.contexts import OperatorContext
from kopf._kits import certificates, endpoints, tunnels, webhooks

REVIEW = {
    'apiVersion': 'admission.k8s.io/v1',
    'kind': 'AdmissionReview',
    'request': {
        'uid': 'uid1',
        'kind': {'group': 'kopf.dev', 'version': 'v1', 'kind': 'KopfExample'},
        'resource': {'group': 'kopf.dev', 'version': 'v1', 'resource': 'kopfexamples'},
        'name': 'name1',
        'namespace': 'ns1',
        'operation': 'CREATE',
        'userInfo': {'username': 'user1'},
        'object': {'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample', 'metadata': {'name': 'name1'}},
        'oldObject': None,
        'dryRun': False,
    },
}


class Seen:
    """A function for reviews that remembers how it was called."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, dict[str, Any]]] = []
        self.limits: list[float] = []
        self.error: Exception | None = None

    async def __call__(self, request: Any, **kwargs: Any) -> Any:
        self.calls.append((request, kwargs))
        self.limits.append(time_limit_var.get())
        if self.error is not None:
            raise self.error
        return {'response': 'given'}


@pytest.fixture
def fn() -> Seen:
    return Seen()


@pytest.fixture
async def start(fn: Seen) -> AsyncIterator[Any]:
    """Start a server, give an iterator of its client configs."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(server: Any, fn: Any = fn) -> Any:
            configs = server(fn)
            await stack.enter_async_context(contextlib.aclosing(configs))
            return configs

        yield start


@pytest.fixture
async def serve(start: Any) -> Any:
    """Start a server, give its first client config."""

    async def serve(server: Any, fn: Any = None) -> kopf.WebhookClientConfig:
        configs = await (start(server) if fn is None else start(server, fn))
        config: kopf.WebhookClientConfig = await anext(configs)
        return config

    return serve


def trust(config: kopf.WebhookClientConfig, *pair: os.PathLike[str]) -> ssl.SSLContext:
    """Return what a client needs to trust the server as the API does, and to show its own certificate."""
    context = ssl.create_default_context(cadata=base64.b64decode(config['caBundle'] or '').decode())
    if sys.version_info < (3, 13):
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    if pair:
        context.load_cert_chain(*pair)
    return context


async def send(
    config: kopf.WebhookClientConfig,
    path: str = '',
    body: bytes | str | None = None,
    *,
    method: str = 'POST',
    context: ssl.SSLContext | None = None,
    headers: dict[str, str] | None = None,
    host: str | None = None,
) -> tuple[int, Any]:
    """Send a request as a client that trusts the CA bundle and nothing else; give the status and the JSON."""
    url = urllib.parse.urlsplit(config['url'] or '')
    body = json.dumps(REVIEW) if body is None else body

    def request() -> tuple[int, Any]:
        if url.scheme == 'http':
            connection = http.client.HTTPConnection(url.hostname or '', url.port, timeout=5)
        else:
            connection = http.client.HTTPSConnection(
                host or url.hostname or '', url.port, timeout=5, context=context or trust(config)
            )
        with contextlib.closing(connection):
            connection.request(method, url.path + path, body, headers or {})
            response = connection.getresponse()
            return response.status, json.loads(response.read())

    return await asyncio.to_thread(request)


class Pair:
    """A certificate with its key, in files."""

    def __init__(self, directory: pathlib.Path, name: str) -> None:
        self.certificate, self.key = directory / f'{name}.pem', directory / f'{name}-key.pem'

    def renew(self, *names: str, password: str | None = None) -> None:
        certificate, key = certificates.build_certificate(names or ('localhost',), password)
        self.certificate.write_bytes(certificate)
        self.key.write_bytes(key)


def make_server(directory: pathlib.Path, *names: str, password: str | None = None) -> Pair:
    pair = Pair(directory, 'server')
    pair.renew(*names, password=password)
    return pair


def make_client(directory: pathlib.Path, name: str) -> Pair:
    pair = Pair(directory, name)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = x509.CertificateBuilder(
        subject,
        subject,
        key.public_key(),
        x509.random_serial_number(),
        now - datetime.timedelta(days=1),
        now + datetime.timedelta(days=1),
    ).sign(key, hashes.SHA256())
    pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    pair.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return pair


# Where it listens.


async def test_servers_use_https_on_localhost_by_default(fn: Seen, serve: Any) -> None:
    config = await serve(kopf.WebhookServer())
    assert config['url'].startswith('https://localhost:')
    assert await send(config, '/handler%20id/sub.field?timeout=10s', headers={'X-Own': 'yes'}) == (
        200,
        {'response': 'given'},
    )
    ((request, kwargs),) = fn.calls
    assert request == REVIEW
    assert kwargs['webhook'] == 'handler id/sub.field'
    assert kwargs['headers']['X-Own'] == 'yes'
    assert kwargs['sslpeer'] is None
    assert fn.limits == [9]


@pytest.mark.parametrize(
    'query, limit',
    [
        ('?timeout=30s', 29),
        ('?timeout=1s', 0.9),
        ('?timeout=500ms', 0.45),
        ('?timeout=2.5s', 2.25),
        ('', 29),
        ('?timeout=', 29),
        ('?timeout=forever', 29),
        ('?other=1s', 29),
    ],
)
async def test_the_time_limit_of_a_review_comes_from_its_query(fn: Seen, serve: Any, query: str, limit: float) -> None:
    await send(await serve(kopf.WebhookServer(insecure=True)), f'/x{query}')
    assert fn.limits == [pytest.approx(limit)]


@pytest.mark.parametrize('path, expected', [(None, ''), ('', ''), ('/', '/'), ('root', '/root'), ('/a/b/', '/a/b/')])
@pytest.mark.parametrize('suffix, webhook', [('', None), ('/', None), ('/fn', 'fn'), ('/a%2Fb/c', 'a/b/c')])
async def test_the_path_names_the_webhook(
    fn: Seen, serve: Any, path: str | None, expected: str, suffix: str, webhook: str | None
) -> None:
    config = await serve(kopf.WebhookServer(insecure=True, path=path))
    assert urllib.parse.urlsplit(config['url']).path == expected
    config['url'] = config['url'].rstrip('/')
    assert (await send(config, suffix))[0] == 200
    assert fn.calls[0][1]['webhook'] == webhook


@pytest.mark.parametrize(
    'addr, host',
    [
        ('localhost', 'localhost'),
        ('127.0.0.1', '127.0.0.1'),
        ('0.0.0.0', '127.0.0.1'),
    ],
)
async def test_the_url_has_the_address_of_the_server(serve: Any, addr: str, host: str) -> None:
    config = await serve(kopf.WebhookServer(addr=addr))
    assert urllib.parse.urlsplit(config['url']).hostname == host
    assert (await send(config))[0] == 200


@pytest.mark.parametrize('addr', ['::1', '::'])
async def test_servers_listen_on_addresses_of_ipv6(serve: Any, addr: str) -> None:
    with contextlib.closing(socket.socket(socket.AF_INET6)) as sock:
        try:
            sock.bind(('::1', 0))
        except OSError:
            pytest.skip("There is no IPv6 here.")
    config = await serve(kopf.WebhookServer(addr=addr))
    assert config['url'].startswith('https://[::1]:')
    assert (await send(config))[0] == 200


async def test_the_url_has_the_chosen_port(serve: Any, fn: Seen) -> None:
    with contextlib.closing(socket.socket()) as sock:
        sock.bind(('127.0.0.1', 0))
        port = sock.getsockname()[1]
    config = await serve(kopf.WebhookServer(addr='127.0.0.1', port=port))
    assert config['url'] == f'https://127.0.0.1:{port}'
    assert (await send(config))[0] == 200
    with pytest.raises(OSError, match=rf"cannot listen at 127\.0\.0\.1:{port}: Address already in use"):
        await anext(kopf.WebhookServer(addr='127.0.0.1', port=port)(fn))
    with pytest.raises(OSError, match=r"cannot listen at absent\.invalid:9443: .*Set addr= and port="):
        await anext(kopf.WebhookServer(addr='absent.invalid')(fn))


async def test_the_default_port_is_taken_if_it_is_free(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(socket.socket()) as sock:
        sock.bind(('127.0.0.1', 0))
        port = sock.getsockname()[1]
    assert webhooks.DEFAULT_PORT == 9443
    monkeypatch.setattr(webhooks, 'DEFAULT_PORT', port)
    first = await serve(kopf.WebhookServer(addr='127.0.0.1'))
    second = await serve(kopf.WebhookServer(addr='127.0.0.1'))
    assert first['url'] == f'https://127.0.0.1:{port}'
    assert urllib.parse.urlsplit(second['url']).port != port
    assert (await send(first))[0] == (await send(second))[0] == 200


@pytest.mark.parametrize(
    'server, host',
    [
        (kopf.WebhookServer(host='example.com', addr='127.0.0.1'), 'example.com'),
        (kopf.WebhookK3dServer(), 'host.k3d.internal'),
        (kopf.WebhookMinikubeServer(), 'host.minikube.internal'),
        (kopf.WebhookDockerDesktopServer(), 'host.docker.internal'),
        (kopf.WebhookK3dServer(host='own'), 'own'),
        (kopf.WebhookAutoServer(host='own'), 'own'),
    ],
)
async def test_the_certificate_is_issued_for_the_host_name(serve: Any, server: kopf.WebhookServer, host: str) -> None:
    config = await serve(server)
    url = urllib.parse.urlsplit(config['url'])
    assert url.hostname == host
    certificate = x509.load_pem_x509_certificate(base64.b64decode(config['caBundle']))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert host in names.get_values_for_type(x509.DNSName)
    config['url'] = f'https://{server.addr or "localhost"}:{url.port}'
    assert (await send(config))[0] == 200


async def test_insecure_servers_use_plain_http(serve: Any) -> None:
    config = await serve(kopf.WebhookServer(insecure=True))
    assert config.keys() == {'url'}
    assert config['url'].startswith('http://localhost:')
    assert (await send(config)) == (200, {'response': 'given'})


# How it ends.


async def test_it_ends_with_its_generator(start: Any) -> None:
    configs = await start(kopf.WebhookServer())
    config = await anext(configs)
    await configs.aclose()
    with pytest.raises(OSError):
        await send(config)


async def test_it_ends_with_its_context(fn: Seen) -> None:
    async with kopf.WebhookServer() as server:
        configs = server(fn)
        config = await anext(configs)
        assert (await send(config))[0] == 200
    with pytest.raises(OSError):
        await send(config)
    await configs.aclose()


async def test_it_ends_when_cancelled(fn: Seen) -> None:
    got: asyncio.Queue[Any] = asyncio.Queue()

    async def run() -> None:
        async for config in kopf.WebhookServer()(fn):
            got.put_nowait(config)

    task = asyncio.create_task(run())
    config = await got.get()
    task.cancel()
    await asyncio.wait([task])
    with pytest.raises(OSError):
        await send(config)


async def test_answers_under_way_are_given(start: Any) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    async def slow(request: Any, **_: Any) -> Any:
        begun.set()
        await release.wait()
        return {}

    configs = await start(kopf.WebhookServer(), slow)
    request = asyncio.create_task(send(await anext(configs)))
    await begun.wait()
    closing = asyncio.create_task(configs.aclose())
    release.set()
    await closing
    assert await request == (200, {})


async def test_it_can_be_inherited(fn: Seen) -> None:
    class Tunnel(kopf.WebhookServer):
        async def __call__(self, fn: Any) -> AsyncIterator[kopf.WebhookClientConfig]:
            async for config in super().__call__(fn):
                yield {**config, 'url': f"{config['url']}/tunnelled"}

    async with Tunnel() as tunnel, contextlib.aclosing(tunnel(fn)) as configs:  # type: ignore[type-var]
        assert (await anext(configs))['url'].endswith('/tunnelled')


# Whom clients trust.


async def test_self_signed_certificates_name_all_hosts(serve: Any) -> None:
    server = kopf.WebhookServer(addr='0.0.0.0', host='example.com', extra_sans=['extra.example.com', '10.1.2.3'])
    bundle = base64.b64decode((await serve(server))['caBundle'])
    certificate = x509.load_pem_x509_certificate(bundle)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ['example.com', 'extra.example.com']
    assert names.get_values_for_type(x509.IPAddress) == [
        ipaddress.ip_address('127.0.0.1'),
        ipaddress.ip_address('10.1.2.3'),
    ]
    assert certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == 'example.com'
    assert certificate.not_valid_before_utc < datetime.datetime.now(datetime.UTC)
    assert certificate.not_valid_after_utc > datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=3000)


@pytest.mark.parametrize('password', [None, 'secret'])
async def test_self_signed_certificates_with_passwords(serve: Any, password: str | None) -> None:
    assert (await send(await serve(kopf.WebhookServer(password=password))))[0] == 200


@pytest.mark.parametrize(
    'hostnames, common_name',
    [
        (['1.2.3.4', 'b', 'a'], 'b'),
        (['1.2.3.4', '::1'], '1.2.3.4'),
        (['0.0.0.0', '::', '[::1]'], '::1'),
        (['x' * 60 + '.example.com'], 'x' * 60 + '.exa'),
        (['bücher.example'], 'xn--bcher-kva.example'),
    ],
)
def test_the_common_name_is_the_first_host_name_that_is_no_address(hostnames: list[str], common_name: str) -> None:
    certificate, key = kopf.WebhookServer.build_certificate(hostnames)
    assert key.startswith(b'-----BEGIN PRIVATE KEY-----')
    subject = x509.load_pem_x509_certificate(certificate).subject
    assert subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == common_name


def test_certificates_need_a_name() -> None:
    with pytest.raises(ValueError, match=r"0\.0\.0\.0"):
        kopf.WebhookServer.build_certificate(['0.0.0.0'])


def test_keys_are_encrypted() -> None:
    _, key = kopf.WebhookServer.build_certificate(['localhost'], 'secret')
    assert key.startswith(b'-----BEGIN ENCRYPTED PRIVATE KEY-----')


@pytest.mark.parametrize(
    'failure, text',
    [
        (None, 'extra library: run'),
        (RuntimeError("no OpenSSL"), 'extra library (certbuilder cannot be used here: no OpenSSL): run'),
    ],
)
async def test_no_library_for_certificates(
    monkeypatch: pytest.MonkeyPatch, fn: Seen, failure: Exception | None, text: str
) -> None:
    class Broken(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name.startswith('__'):
                raise AttributeError(name)
            raise failure or ImportError(name)

    monkeypatch.setitem(sys.modules, 'cryptography.x509', None)
    monkeypatch.setitem(sys.modules, 'certbuilder', Broken('certbuilder'))
    monkeypatch.setitem(sys.modules, 'oscrypto', Broken('oscrypto'))
    with pytest.raises(certificates.MissingDependencyError) as error:
        await anext(kopf.WebhookServer()(fn))
    for part in (text, 'kopf[dev]', 'certfile=', 'insecure=True'):
        assert part in str(error.value)


async def test_certbuilder_in_place_of_cryptography(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Any] = {}

    class Builder:
        def __init__(self, subject: Any, public_key: Any) -> None:
            made.update(subject=subject, builder=self)

        def build(self, key: Any) -> str:
            return f'certificate by {key}'

    monkeypatch.setitem(sys.modules, 'cryptography.x509', None)
    monkeypatch.setitem(
        sys.modules, 'certbuilder', types.SimpleNamespace(CertificateBuilder=Builder, pem_armor_certificate=str.encode)
    )
    monkeypatch.setitem(
        sys.modules,
        'oscrypto',
        types.SimpleNamespace(
            asymmetric=types.SimpleNamespace(
                generate_pair=lambda *_, **__: ('public', 'private'),
                dump_private_key=lambda key, password, encoding: f'{key} {password} {encoding}'.encode(),
            )
        ),
    )
    assert certificates.build_certificate(['host', '1.2.3.4'], 'secret') == (
        b'certificate by private',
        b'private secret pem',
    )
    builder = made['builder']
    assert made['subject'] == {'common_name': 'host'}
    assert (builder.subject_alt_domains, builder.subject_alt_ips) == (['host'], ['1.2.3.4'])
    assert builder.self_signed and builder.ca


@pytest.mark.parametrize(
    'given', [{}, {'cadata': b'any CA'}, {'cafile': 'ca.pem'}, {'cafile': 'x', 'cadata': b'any CA'}]
)
async def test_the_bundle_is_dumped_to_a_file(
    tmp_path: pathlib.Path, serve: Any, given: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pair = make_server(tmp_path)
    pathlib.Path('ca.pem').write_text('any CA')
    config = await serve(kopf.WebhookServer(certfile=pair.certificate, pkeyfile=pair.key, cadump='dump.pem', **given))
    expected = b'any CA' if given else pair.certificate.read_bytes()
    assert base64.b64decode(config['caBundle']) == expected == pathlib.Path('dump.pem').read_bytes()


async def test_certificates_are_loaded_from_files(tmp_path: pathlib.Path, serve: Any) -> None:
    pair = make_server(tmp_path, password='secret')
    config = await serve(kopf.WebhookServer(certfile=pair.certificate, pkeyfile=pair.key, password='secret'))
    assert (await send(config))[0] == 200
    both = tmp_path / 'both.pem'
    both.write_bytes(pair.certificate.read_bytes() + pair.key.read_bytes())
    assert (await send(await serve(kopf.WebhookServer(certfile=both, password='secret'))))[0] == 200


@pytest.mark.parametrize('options', [{'password': None}, {'password': 'wrong'}])
async def test_wrong_passwords_of_keys_are_refused_with_the_file_name(
    tmp_path: pathlib.Path, fn: Seen, options: Any
) -> None:
    pair = make_server(tmp_path, password='secret')
    with pytest.raises(ValueError, match=r"server\.pem"):
        await anext(kopf.WebhookServer(certfile=pair.certificate, pkeyfile=pair.key, **options)(fn))


async def test_missing_files_are_named(tmp_path: pathlib.Path, fn: Seen) -> None:
    with pytest.raises(ExplainedError, match=r"No such file.*missing\.pem"):
        await anext(kopf.WebhookServer(certfile=tmp_path / 'missing.pem')(fn))


async def test_contexts_of_ones_own(serve: Any) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    config = await serve(kopf.WebhookServer(context=context))
    assert (await send(config))[0] == 200
    strict = trust(config)
    strict.minimum_version = ssl.TLSVersion.TLSv1_3
    with pytest.raises(ssl.SSLError):
        await send(config, context=strict)


@pytest.mark.skipif(shutil.which('curl') is None, reason="curl is not installed")
@pytest.mark.parametrize('given', [False, True])
async def test_curl_with_the_dumped_bundle(tmp_path: pathlib.Path, serve: Any, given: bool, fn: Seen) -> None:
    pair = make_server(tmp_path)
    files: Any = {'certfile': pair.certificate, 'pkeyfile': pair.key} if given else {}
    config = await serve(kopf.WebhookServer(cadump=tmp_path / 'dump.pem', **files))
    process = await asyncio.create_subprocess_exec(
        'curl',
        '--silent',
        '--show-error',
        '--cacert',
        tmp_path / 'dump.pem',
        f"{config['url']}/handler",
        '-d',
        json.dumps(REVIEW),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert json.loads(output) == {'response': 'given'}
    assert fn.calls[0][1]['webhook'] == 'handler'


# Whom the server trusts.


@pytest.fixture
def client(tmp_path: pathlib.Path) -> Pair:
    return make_client(tmp_path, 'client')


@pytest.fixture
def stranger(tmp_path: pathlib.Path) -> Pair:
    return make_client(tmp_path, 'stranger')


@pytest.mark.parametrize(
    'given',
    [
        lambda client: {'verify_cafile': client.certificate},
        lambda client: {'verify_cadata': client.certificate.read_text()},
        lambda client: {'verify_cafile': client.certificate, 'verify_mode': ssl.CERT_REQUIRED},
        lambda client: {'cafile': client.certificate},
        lambda client: {'cadata': client.certificate.read_bytes()},
    ],
)
async def test_certificates_of_clients_are_given_to_the_handlers(
    serve: Any, fn: Seen, client: Pair, given: Callable[[Pair], Any]
) -> None:
    config = await serve(kopf.WebhookServer(**given(client)))
    context = trust(config, client.certificate, client.key)
    assert (await send(config, context=context))[0] == 200
    sslpeer = fn.calls[0][1]['sslpeer']
    assert sslpeer['subject'] == ((('commonName', 'client'),),)


async def test_clients_need_no_certificates(serve: Any, fn: Seen, client: Pair) -> None:
    config = await serve(kopf.WebhookServer(verify_cafile=client.certificate))
    assert (await send(config))[0] == 200
    assert fn.calls[0][1]['sslpeer'] is None


async def test_clients_without_the_required_certificate_are_refused(serve: Any, fn: Seen, client: Pair) -> None:
    config = await serve(kopf.WebhookServer(verify_cafile=client.certificate, verify_mode=ssl.CERT_REQUIRED))
    with pytest.raises((OSError, http.client.HTTPException)):
        await send(config)
    assert not fn.calls


@pytest.mark.parametrize('mode', [None, ssl.CERT_OPTIONAL, ssl.CERT_REQUIRED])
async def test_clients_with_wrong_certificates(
    serve: Any, fn: Seen, client: Pair, stranger: Pair, mode: ssl.VerifyMode | None
) -> None:
    config = await serve(kopf.WebhookServer(verify_cafile=client.certificate, verify_mode=mode))
    with pytest.raises((OSError, http.client.HTTPException)):
        await send(config, context=trust(config, stranger.certificate, stranger.key))
    assert not fn.calls


async def test_certificates_of_clients_are_ignored_if_not_verified(serve: Any, fn: Seen, client: Pair) -> None:
    config = await serve(kopf.WebhookServer())
    assert (await send(config, context=trust(config, client.certificate, client.key)))[0] == 200
    assert fn.calls[0][1]['sslpeer'] is None


# Files that change.


async def test_changed_certificates_are_used_at_once(tmp_path: pathlib.Path, start: Any) -> None:
    pair = make_server(tmp_path)
    configs = await start(
        kopf.WebhookServer(
            certfile=pair.certificate, pkeyfile=pair.key, cadump=tmp_path / 'dump.pem', file_check_interval=0.01
        )
    )
    before = await anext(configs)
    upcoming = asyncio.create_task(anext(configs))
    pair.renew('localhost')
    after = await upcoming
    assert after['url'] == before['url']
    assert base64.b64decode(after['caBundle']) == pair.certificate.read_bytes() == (tmp_path / 'dump.pem').read_bytes()
    assert (await send(after))[0] == 200
    with pytest.raises(ssl.SSLCertVerificationError):
        await send(before)


async def test_connections_outlive_the_change_of_certificates(tmp_path: pathlib.Path, start: Any) -> None:
    pair = make_server(tmp_path)
    configs = await start(kopf.WebhookServer(certfile=pair.certificate, pkeyfile=pair.key, file_check_interval=0.01))
    config = await anext(configs)
    url = urllib.parse.urlsplit(config['url'])
    connection = http.client.HTTPSConnection(url.hostname or '', url.port, timeout=5, context=trust(config))

    def request() -> int:
        connection.request('POST', '/', json.dumps(REVIEW))
        response = connection.getresponse()
        response.read()
        return response.status

    with contextlib.closing(connection):
        assert await asyncio.to_thread(request) == 200
        upcoming = asyncio.create_task(anext(configs))
        pair.renew('localhost')
        await upcoming
        assert await asyncio.to_thread(request) == 200


async def test_broken_files_are_waited_for(
    tmp_path: pathlib.Path, start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    pair = make_server(tmp_path)
    configs = await start(kopf.WebhookServer(certfile=pair.certificate, pkeyfile=pair.key, file_check_interval=0.01))
    before = await anext(configs)
    upcoming = asyncio.create_task(anext(configs))
    good = certificates.build_certificate(['localhost'])
    pair.certificate.write_bytes(good[0])  # the key is not written yet
    async with asyncio.timeout(60):
        while 'cannot be used yet' not in caplog.text:
            await asyncio.sleep(0.01)
    assert (await send(before))[0] == 200
    pair.key.write_bytes(good[1])
    assert base64.b64decode((await upcoming)['caBundle']) == good[0]


@pytest.mark.parametrize('content', ['', '-----BEGIN CERTIFICATE-----\nMII', 'nonsense'])
async def test_broken_authorities_are_waited_for(
    tmp_path: pathlib.Path, start: Any, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    pair, cafile = make_server(tmp_path), tmp_path / 'ca.pem'
    shutil.copy(pair.certificate, cafile)
    configs = await start(
        kopf.WebhookServer(certfile=pair.certificate, pkeyfile=pair.key, cafile=cafile, file_check_interval=0.01)
    )
    await anext(configs)
    upcoming = asyncio.create_task(anext(configs))
    cafile.write_text(content)
    async with asyncio.timeout(60):
        while 'cannot be used yet' not in caplog.text:
            await asyncio.sleep(0.01)
    assert not upcoming.done()
    bundle = (
        '# Főtanúsítvány\n' + pair.certificate.read_text() + certificates.build_certificate(['localhost'])[0].decode()
    )
    cafile.write_text(bundle)
    assert base64.b64decode((await upcoming)['caBundle']).decode() == bundle


async def test_changed_authorities_of_clients(
    tmp_path: pathlib.Path, start: Any, fn: Seen, client: Pair, stranger: Pair
) -> None:
    cafile = tmp_path / 'clients.pem'
    shutil.copy(client.certificate, cafile)
    configs = await start(kopf.WebhookServer(verify_cafile=cafile, file_check_interval=0.01))
    config = await anext(configs)
    upcoming = asyncio.create_task(anext(configs))
    shutil.copy(stranger.certificate, cafile)

    async def is_accepted(pair: Pair) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return (await send(config, context=trust(config, pair.certificate, pair.key)))[0] == 200
        return False

    async with asyncio.timeout(60):
        while not await is_accepted(stranger):
            await asyncio.sleep(0.01)
    assert not await is_accepted(client)
    assert not upcoming.done()  # the server's own certificate is the same
    upcoming.cancel()
    await asyncio.wait([upcoming])


# Bad requests.


@pytest.mark.parametrize(
    'options, status, reason',
    [
        ({'body': '{bad'}, 400, 'The request is not JSON'),
        ({'body': ''}, 400, 'The request is not JSON'),
        ({'body': b'\xff\xfe'}, 400, 'The request is not JSON'),
        ({'body': '[' * 100000}, 400, 'The request is not JSON'),
        ({'body': '[]'}, 400, 'The request is not a JSON object'),
        ({'body': '"text"'}, 400, 'The request is not a JSON object'),
        ({'body': 'null'}, 400, 'The request is not a JSON object'),
        ({'body': b'rubbish', 'headers': {'Content-Encoding': 'gzip'}}, 400, ''),
        ({'method': 'GET'}, 405, 'POST'),
        ({'method': 'PUT'}, 405, 'POST'),
        ({'method': 'DELETE'}, 405, 'POST'),
        ({'path': 'ed'}, 404, '/rooted'),
    ],
)
async def test_bad_requests_are_refused_with_a_status(
    serve: Any, fn: Seen, caplog: pytest.LogCaptureFixture, options: Any, status: int, reason: str
) -> None:
    config = await serve(kopf.WebhookServer(insecure=True, path='/root'))
    got, answer = await send(config, **options)
    assert got == status
    assert (answer['kind'], answer['status'], answer['code']) == ('Status', 'Failure', status)
    assert reason in answer['message']
    assert not fn.calls
    assert 'Traceback' not in caplog.text


@pytest.mark.parametrize('headers', [{}, {'Transfer-Encoding': 'chunked'}])
async def test_requests_too_large(serve: Any, fn: Seen, headers: dict[str, str]) -> None:
    config = await serve(kopf.WebhookServer(insecure=True))
    url = urllib.parse.urlsplit(config['url'])
    _, writer = reader, writer = await asyncio.open_connection(url.hostname, url.port)
    sent = b' ' * 1024 * 1024
    head = 'Transfer-Encoding: chunked' if headers else f'Content-Length: {20 * len(sent)}'
    writer.write(f'POST /x HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n'.encode())
    with contextlib.suppress(ConnectionError):
        for _ in range(20):
            writer.write(b'100000\r\n' + sent + b'\r\n' if headers else sent)
            await writer.drain()
    assert (await reader.readline()).startswith(b'HTTP/1.1 413')
    writer.close()
    assert not fn.calls


@pytest.mark.parametrize(
    'sent',
    [
        b'rubbish\r\n\r\n',
        b'POST / HTTP/9.9\r\n\r\n',
        b'\x16\x03\x01\x02\x00\x01\x00\x01\xfc',
        b'\x00' * 1000,
        b'POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n',
        b'POST /' + b'x' * 100000 + b' HTTP/1.1\r\n\r\n',
        b'POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{}',
    ],
)
async def test_what_is_no_http(serve: Any, fn: Seen, caplog: pytest.LogCaptureFixture, sent: bytes) -> None:
    config = await serve(kopf.WebhookServer(insecure=True))
    url = urllib.parse.urlsplit(config['url'])
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    writer.write(sent)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    assert not answer or answer.startswith((b'HTTP/1.1 4', b'HTTP/1.0 4'))
    assert not fn.calls
    assert 'Traceback' not in caplog.text
    assert (await send(config))[0] == 200


def as_request(body: bytes = json.dumps(REVIEW).encode(), *, path: str = '/x', headers: str = '') -> bytes:
    return f'POST {path} HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {len(body)}\r\n\r\n'.encode() + body


async def connect(config: kopf.WebhookClientConfig) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection to the server."""
    url = urllib.parse.urlsplit(config['url'] or '')
    context = None if url.scheme == 'http' else trust(config)
    return await asyncio.open_connection(url.hostname, url.port, ssl=context)


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, Any]:
    """Read one answer: its status and its content."""
    head = (await reader.readuntil(b'\r\n\r\n')).decode()
    size = next(int(line.split(':')[1]) for line in head.splitlines() if line.startswith('Content-Length'))
    return int(head.split()[1]), json.loads(await reader.readexactly(size))


async def is_held(writer: asyncio.StreamWriter) -> bool:
    """Check whether the other side still holds the connection: a closed one refuses what is sent to it."""
    try:
        await writer.drain()
    except ConnectionError:
        return False
    return not writer.transport.is_closing()


async def converse(config: kopf.WebhookClientConfig, sent: bytes, *, half: bool = False) -> list[tuple[int, Any]]:
    """Send bytes over one connection; return all that is answered to them."""
    reader, writer = await connect(config)
    writer.write(sent)
    if half:
        writer.write_eof()
    answers = []
    with contextlib.suppress(asyncio.IncompleteReadError):
        while True:
            answers.append(await read_answer(reader))
    writer.close()
    return answers


LAST = 'Connection: close\r\n'


@pytest.mark.parametrize('insecure', [True, False])
async def test_reviews_at_once_are_answered_in_their_order(serve: Any, insecure: bool) -> None:
    async def fn(request: Any, *, webhook: str, **_: Any) -> Any:
        await asyncio.sleep(0.02 if webhook == '0' else 0)
        return {'webhook': webhook}

    config = await serve(kopf.WebhookServer(insecure=insecure), fn)
    sent = b''.join(as_request(path=f'/{number}') for number in range(10)) + as_request(path='/last', headers=LAST)
    assert await converse(config, sent) == [(200, {'webhook': str(number)}) for number in range(10)] + [
        (200, {'webhook': 'last'})
    ]


async def test_clients_that_ask_before_they_send_a_review_are_told_to_go_on(serve: Any) -> None:
    config = await serve(kopf.WebhookServer(insecure=True))
    reader, writer = await connect(config)
    for _ in range(2):
        head, _, body = as_request(headers='Expect: 100-continue\r\n').partition(b'\r\n\r\n')
        writer.write(head + b'\r\n\r\n')
        async with asyncio.timeout(30):
            assert await reader.readuntil(b'\r\n\r\n') == b'HTTP/1.1 100 Continue\r\n\r\n'
            writer.write(body)
            assert await read_answer(reader) == (200, {'response': 'given'})
    writer.write(as_request(headers='Expect: 100-continue\r\n', path='/x'))  # or it does not wait
    async with asyncio.timeout(30):
        assert (await reader.readline()).startswith(b'HTTP/1.1 ')
    writer.close()


async def test_time_limits_are_of_requests_and_not_of_connections(fn: Seen, serve: Any) -> None:
    config = await serve(kopf.WebhookServer(insecure=True))
    await converse(
        config,
        as_request(path='/x?timeout=5s') + as_request() + as_request(path='/x?a&timeout=2s') + as_request(headers=LAST),
    )
    assert fn.limits == [4.5, 29, 1.8, 29]


async def test_reviews_of_half_closed_connections(fn: Seen, serve: Any) -> None:
    config = await serve(kopf.WebhookServer(insecure=True))
    assert await converse(config, as_request(), half=True) == [(200, {'response': 'given'})]
    assert await converse(config, as_request()[:-1], half=True) == []
    assert len(fn.calls) == 1


async def test_clients_that_send_a_review_too_slowly_are_disconnected(
    fn: Seen, serve: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(endpoints, 'REQUEST_TIMEOUT', 0.1)
    config = await serve(kopf.WebhookServer())
    ((status, answer),) = await converse(config, as_request()[:-1])
    assert (status, answer['kind'], answer['code']) == (408, 'Status', 408)
    assert "within 0.1 seconds" in answer['message']
    assert answer['message'] in caplog.text
    assert not fn.calls


async def test_nothing_is_handled_behind_what_is_no_http(fn: Seen, serve: Any) -> None:
    config = await serve(kopf.WebhookServer())
    reader, writer = await connect(config)
    writer.write(as_request())
    assert await read_answer(reader) == (200, {'response': 'given'})
    writer.write(b'rubbish\r\n\r\n' + as_request())
    status, answer = await read_answer(reader)
    assert (status, answer['code']) == (400, 400)
    assert answer['message'].startswith("The request is not HTTP")
    assert await reader.read() == b''
    writer.close()
    assert len(fn.calls) == 1


@pytest.mark.parametrize('insecure', [True, False])
@pytest.mark.parametrize('sent', [b'', b'POST /x HT', b'POST /x HTTP/1.1\r\nHost: x\r\n', as_request()[:-1]])
async def test_clients_that_begin_nothing_or_half_a_request_are_left(
    fn: Seen, serve: Any, monkeypatch: pytest.MonkeyPatch, sent: bytes, insecure: bool
) -> None:
    monkeypatch.setattr(endpoints, 'REQUEST_TIMEOUT', 0.1)
    monkeypatch.setattr(endpoints, 'KEEPALIVE_TIMEOUT', 0.1)
    reader, writer = await connect(await serve(kopf.WebhookServer(insecure=insecure)))
    writer.write(sent)
    async with asyncio.timeout(30):
        with contextlib.suppress(ConnectionError):
            answer = await reader.read()
            assert not answer or answer.startswith(b'HTTP/1.1 408')
    writer.close()
    assert not fn.calls


async def test_clients_that_send_nothing_after_an_answer_are_left(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, 'KEEPALIVE_TIMEOUT', 0.1)
    config = await serve(kopf.WebhookServer())
    async with asyncio.timeout(30):
        assert await converse(config, as_request()) == [(200, {'response': 'given'})]


@pytest.mark.parametrize('insecure', [True, False])
async def test_clients_that_do_not_read_their_answers_are_left(
    serve: Any, monkeypatch: pytest.MonkeyPatch, insecure: bool
) -> None:
    monkeypatch.setattr(endpoints, 'REQUEST_TIMEOUT', 0.1)

    async def talkative(request: Any, **_: Any) -> Any:
        return {'response': 'x' * 20_000_000}  # more than what the buffers of the network take

    config = await serve(kopf.WebhookServer(insecure=insecure), talkative)
    reader, writer = await connect(config)
    cast(asyncio.Transport, writer.transport).pause_reading()
    writer.write(as_request())
    async with asyncio.timeout(30):
        while await is_held(writer):
            writer.write(b'POST ')
            await asyncio.sleep(0.01)
    writer.close()
    monkeypatch.setattr(endpoints, 'REQUEST_TIMEOUT', 60)
    assert (await send(config))[0] == 200


async def test_large_answers_are_read_at_leisure(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def talkative(request: Any, **_: Any) -> Any:
        return {'response': 'x' * 20_000_000}

    ((status, answer),) = await converse(await serve(kopf.WebhookServer(), talkative), as_request(headers=LAST))
    assert (status, len(answer['response'])) == (200, 20_000_000)


@pytest.mark.parametrize(
    'body, encoding, status',
    [
        (gzip.compress(json.dumps(REVIEW).encode()), 'gzip', 200),
        (zlib.compress(json.dumps(REVIEW).encode()), 'Deflate', 200),
        (gzip.compress(json.dumps(REVIEW).encode())[:-20], 'gzip', 400),
        (b'rubbish', 'gzip', 400),
        (b'rubbish', 'br', 415),
        (gzip.compress(b' ' * 20 * 1024 * 1024), 'gzip', 413),
    ],
)
async def test_compressed_reviews_are_unpacked_within_limits(
    serve: Any, fn: Seen, body: bytes, encoding: str, status: int
) -> None:
    config = await serve(kopf.WebhookServer(insecure=True))
    headers = f'Content-Encoding: {encoding}\r\n{LAST}'
    assert [status for status, _ in await converse(config, as_request(body, headers=headers))] == [status]
    assert [request for request, _ in fn.calls] == ([REVIEW] if status == 200 else [])


async def test_answers_that_take_too_long_are_not_given_at_the_end(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, 'SHUTDOWN_TIMEOUT', 0.1)
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def stuck(request: Any, **_: Any) -> Any:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    configs = await start(kopf.WebhookServer(), stuck)
    request = asyncio.create_task(send(await anext(configs)))
    await begun.wait()
    await configs.aclose()
    assert cancelled.is_set()
    with pytest.raises((OSError, http.client.HTTPException)):
        await request


async def test_plain_requests_do_not_disturb_an_https_server(serve: Any, fn: Seen) -> None:
    config = await serve(kopf.WebhookServer())
    with pytest.raises((OSError, http.client.HTTPException)):
        await send({**config, 'url': config['url'].replace('https', 'http')})
    assert (await send(config))[0] == 200
    assert len(fn.calls) == 1


async def test_refused_reviews_are_answered_with_the_reason(
    serve: Any, fn: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    fn.error = ReviewError("not of ours", status=404)
    status, answer = await send(await serve(kopf.WebhookServer()))
    assert (status, answer['message']) == (404, "not of ours")
    assert "not of ours" in caplog.text
    assert 'Traceback' not in caplog.text


async def test_failed_reviews_are_answered_without_details(
    serve: Any, fn: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    fn.error = ValueError("a secret of ours")
    status, answer = await send(await serve(kopf.WebhookServer()))
    assert status == 500
    assert "secret" not in answer['message']
    assert "a secret of ours" in caplog.text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
)
FIELDS = st.dictionaries(st.sampled_from([*REVIEW['request'], 'subResource', 'options']), JSON, max_size=3)


@hypothesis.settings(
    max_examples=4 * hypothesis.settings.default.max_examples,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(
    body=st.binary()
    | st.text().map(str.encode)
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.builds(lambda fields: json.dumps({**REVIEW, 'request': {**REVIEW['request'], **fields}}).encode(), FIELDS)
    | st.builds(
        lambda fields: json.dumps(
            {**REVIEW, 'request': {**REVIEW['request'], 'object': {**REVIEW['request']['object'], **fields}}}
        ).encode(),
        st.dictionaries(st.sampled_from(['metadata', 'spec', 'status', 'kind']), JSON),
    ),
    path=st.sampled_from(['', '/', '/refusing', '/validating', '/mutating', '/unknown', '/%00', '//', '/%ff']),
    method=st.sampled_from(['POST', 'POST', 'POST', 'GET', 'PATCH']),
)
def test_whatever_is_sent_is_answered_or_refused(endless_server: Any, body: bytes, path: str, method: str) -> None:
    status, answer = endless_server(path, body, method=method)
    assert status == 200 or 400 <= status < 500
    if status == 200 and path != '/refusing' and 'status' in answer['response']:
        assert answer['response']['status']['message'] == 'refused by the handler'


@pytest.fixture
def endless_server() -> Iterator[Any]:
    """Yield a server with real handlers in a loop of its own, for as many requests as are wanted."""
    registry = kopf.OperatorRegistry()

    @kopf.on.validate('kopfexamples', registry=registry, id='refusing')
    async def refusing(**_: Any) -> None:
        raise kopf.AdmissionError('refused by the handler', code=418)

    @kopf.on.validate('kopfexamples', registry=registry, id='validating', labels={'a': kopf.ABSENT}, field='spec.x')
    def validating(warnings: list[str], **_: Any) -> None:
        warnings.append('warned')

    @kopf.on.mutate('kopfexamples', registry=registry, id='mutating', subresource='*')
    async def mutating(patch: kopf.Patch, **_: Any) -> None:
        patch.spec['x'] = 1
        patch.meta.labels['y'] = 'z'

    resource = Resource('kopf.dev', 'v1', 'kopfexamples', kind='KopfExample', namespaced=True)
    reviewer = AdmissionReviewer(
        OperatorContext(settings=kopf.OperatorSettings(), memo=kopf.Memo()), memos=lambda resource, metadata: None
    )
    reviewer.serve({handler: [resource] for handler in registry.webhooks})
    with asyncio.Runner() as runner:
        configs = kopf.WebhookServer(insecure=True)(reviewer)
        config = runner.run(anext(configs))
        yield lambda path, body, method: runner.run(send(config, path, body, method=method))
        runner.run(configs.aclose())


# Where the cluster is.


class FakeVault:
    def __init__(self, info: Any) -> None:
        self.info = info

    async def select(self) -> Any:
        return 'key', self.info


@pytest.fixture
def pretend(tmp_path: pathlib.Path) -> Iterator[Any]:
    """Serve TLS with a certificate of these names, as if it was the API; be an operator of it."""
    servers: list[asyncio.Server] = []

    async def pretend(*names: str) -> None:
        pair = make_server(tmp_path, *names, 'localhost')
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(pair.certificate, pair.key)
        server = await asyncio.start_server(lambda reader, writer: writer.close(), 'localhost', 0, ssl=context)
        servers.append(server)
        port = server.sockets[0].getsockname()[1]
        info = kopf.ConnectionInfo(server=f'https://localhost:{port}', ca_path=str(pair.certificate))
        vault_var.set(FakeVault(info))  # type: ignore[arg-type]

    yield pretend
    for server in servers:
        server.close()


@pytest.mark.parametrize(
    'name, host',
    [
        ('k3s', 'host.k3d.internal'),
        ('minikube', 'host.minikube.internal'),
        ('minikubeCA', 'host.minikube.internal'),
        ('k3s-server-ca@123', 'host.k3d.internal'),
        ('docker-desktop', 'host.docker.internal'),
        ('kubernetes', None),
    ],
)
async def test_clusters_are_recognised(pretend: Any, serve: Any, name: str, host: str | None) -> None:
    await pretend(name)
    assert await kopf.WebhookAutoServer.guess_host() == host
    config = await serve(kopf.WebhookAutoServer())
    assert urllib.parse.urlsplit(config['url']).hostname == (host or 'localhost')


async def test_clusters_that_cannot_be_reached_are_no_local_ones(serve: Any) -> None:
    vault_var.set(FakeVault(kopf.ConnectionInfo(server='https://localhost:1')))  # type: ignore[arg-type]
    assert await kopf.WebhookAutoServer.guess_host() is None
    vault_var.set(FakeVault(kopf.ConnectionInfo(server='http://localhost:1')))  # type: ignore[arg-type]
    assert await kopf.WebhookAutoServer.guess_host() is None
    assert (await send(await serve(kopf.WebhookAutoServer())))[0] == 200


class NgrokError(Exception):
    pass


@pytest.fixture
def ngrok(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the calls of the library, which is faked."""
    calls: list[Any] = []

    def connect(addr: str, proto: str, **options: Any) -> Any:
        calls.append(('connect', addr, proto, vars(options.pop('pyngrok_config')), options))
        if calls[-1][3].get('auth_token') == 'bad':
            raise NgrokError("It is refused.")
        return types.SimpleNamespace(public_url='https://random.ngrok.example')

    def disconnect(url: str, **options: Any) -> None:
        calls.append(('disconnect', url))

    monkeypatch.setitem(
        sys.modules,
        'pyngrok',
        types.SimpleNamespace(
            exception=types.SimpleNamespace(PyngrokError=NgrokError),
            conf=types.SimpleNamespace(PyngrokConfig=types.SimpleNamespace),
            ngrok=types.SimpleNamespace(connect=connect, disconnect=disconnect),
        ),
    )
    return calls


async def test_ngrok_is_opened_to_the_local_server(ngrok: list[Any], start: Any, fn: Seen) -> None:
    configs = await start(
        kopf.WebhookNgrokTunnel(
            addr='127.0.0.1', path='/root', token='token1', region='eu', binary=pathlib.Path('/usr/bin/ngrok')
        )
    )
    config = await anext(configs)
    assert config == {'url': 'https://random.ngrok.example/root'}
    ((_, local, proto, settings, options),) = ngrok
    assert settings == {'auth_token': 'token1', 'region': 'eu', 'ngrok_path': '/usr/bin/ngrok'}
    assert (proto, options) == ('http', {'schemes': ['https']})
    assert (await send({'url': f'http://{local}/root'}, '/handler'))[0] == 200
    assert fn.calls[0][1]['webhook'] == 'handler'
    await configs.aclose()
    assert ngrok[1:] == [('disconnect', 'https://random.ngrok.example')]
    with pytest.raises(OSError):
        await send({'url': f'http://{local}/root'})


async def test_ngrok_in_a_context(ngrok: list[Any], fn: Seen) -> None:
    async with kopf.WebhookNgrokTunnel() as tunnel:
        configs = tunnel(fn)
        await anext(configs)
    assert [call[0] for call in ngrok] == ['connect', 'disconnect']
    await configs.aclose()


async def test_a_refusal_by_ngrok_is_explained(ngrok: list[Any], fn: Seen) -> None:
    with pytest.raises(ExplainedError, match="The tunnel through ngrok cannot be opened: It is refused."):
        await anext(kopf.WebhookNgrokTunnel(token='bad')(fn))


async def test_ngrok_without_its_library(monkeypatch: pytest.MonkeyPatch, fn: Seen) -> None:
    monkeypatch.setitem(sys.modules, 'pyngrok', None)
    with pytest.raises(ImportError, match=r"pip install 'kopf\[dev\]>=1\.46'") as error:
        await anext(kopf.WebhookNgrokTunnel()(fn))
    assert isinstance(error.value, ExplainedError)  # the command line shows nothing but its text


async def test_tunnels_for_remote_clusters(ngrok: list[Any], serve: Any, pretend: Any) -> None:
    await pretend('kubernetes')
    assert (await serve(kopf.WebhookAutoTunnel(path='/root')))['url'] == 'https://random.ngrok.example/root'


async def test_no_tunnels_for_local_clusters(ngrok: list[Any], serve: Any, pretend: Any) -> None:
    await pretend('minikube')
    config = await serve(kopf.WebhookAutoTunnel(path='/root'))
    assert urllib.parse.urlsplit(config['url']).hostname == 'host.minikube.internal'
    assert not ngrok


def test_all_detectors_are_the_same() -> None:
    assert issubclass(kopf.WebhookAutoServer, tunnels.ClusterDetector)
    assert issubclass(kopf.WebhookAutoTunnel, tunnels.ClusterDetector)
