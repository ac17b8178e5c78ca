import asyncio
import base64
import dataclasses
import datetime
import pathlib
import ssl
import time

import pytest

from kopf._cogs.structs.credentials import (
    AiohttpSession,
    ConnectionInfo,
    FinalLoginError,
    KubeContext,
    LoginError,
    PassingLoginError,
    Vault,
)

NOW = datetime.datetime.now(datetime.UTC)
PAST, FUTURE = NOW - datetime.timedelta(hours=1), NOW + datetime.timedelta(hours=1)


def info(token, **kwargs):
    return ConnectionInfo(server='https://localhost', token=token, **kwargs)


class Login:
    """Gives the credentials prepared, one set a login; the last one again and again."""

    def __init__(self, *found, gate=None):
        self.found = list(found)
        self.calls = 0
        self.gate = gate

    async def __call__(self):
        self.calls += 1
        if self.gate is not None:
            await self.gate.wait()
        found = self.found.pop(0) if len(self.found) > 1 else self.found[0]
        if isinstance(found, BaseException):
            raise found
        return found


def make_vault(*args, **kwargs):
    vault = Vault()
    vault.authenticate = Login(*args, **kwargs)
    return vault


#
# What is sent to the server
#


@pytest.mark.parametrize(
    'kwargs, expected',
    [
        ({}, None),
        ({'token': 't'}, 'Bearer t'),
        ({'scheme': 'Digest'}, 'Digest'),
        ({'scheme': 'Digest', 'token': 't'}, 'Digest t'),
        ({'scheme': '', 'token': 't'}, 'Bearer t'),
        ({'username': 'u', 'password': 'p'}, 'Basic dTpw'),
        ({'username': 'u', 'password': 'p', 'token': 't', 'scheme': 'Digest'}, 'Basic dTpw'),
        ({'username': 'u'}, None),
        ({'password': 'p'}, None),
    ],
)
def test_credentials_become_an_authorization_header(kwargs, expected):
    headers = ConnectionInfo(server='https://localhost', **kwargs).as_http_headers()
    assert headers == ({'Authorization': expected} if expected else {})


def test_token_is_read_from_file_every_time(tmp_path: pathlib.Path):
    path = tmp_path / 'token'
    path.write_text('one\n')
    creds = ConnectionInfo(server='https://localhost', token='zero', token_path=path)
    assert creds.as_http_headers() == {'Authorization': 'Bearer one'}
    path.write_text('two\n')
    assert creds.as_http_headers() == {'Authorization': 'Bearer two'}
    path.unlink()
    with pytest.raises(OSError):
        creds.as_http_headers()


def test_basic_auth_is_in_headers_only_as_aiohttp_refuses_both():
    creds = ConnectionInfo(server='https://localhost', username='u', password='p')
    with pytest.deprecated_call(match='as_http_headers'):
        assert creds.as_aiohttp_basic_auth() is None


def test_secrets_are_not_shown():
    creds = ConnectionInfo(server='https://localhost', token='AAA', password='BBB', private_key_data='CCC')
    assert not any(secret in repr(creds) for secret in ['AAA', 'BBB', 'CCC'])


#
# TLS
#


def test_tls_verifies_by_default():
    context = info('t').as_ssl_context()
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT


def test_tls_can_be_insecure_even_with_authorities(pki):
    context = info('t', insecure=True, ca_path=pki.ca).as_ssl_context()
    assert context.verify_mode == ssl.CERT_NONE
    assert not context.check_hostname


@pytest.mark.parametrize(
    'encode',
    [
        lambda pem: pem,
        lambda pem: pem.decode(),
        base64.b64encode,
        lambda pem: base64.b64encode(pem).decode(),
    ],
    ids=['pem-bytes', 'pem-str', 'base64-bytes', 'base64-str'],
)
def test_tls_data_in_all_notations(pki, encode):
    creds = ConnectionInfo(
        server='https://localhost',
        ca_data=encode(pki.ca.read_bytes()),
        certificate_data=encode(pki.client_cert.read_bytes()),
        private_key_data=encode(pki.client_key.read_bytes()),
    )
    assert len(creds.as_ssl_context().get_ca_certs()) == 1


def test_tls_paths_are_expanded(pki, monkeypatch):
    monkeypatch.setenv('HOME', str(pki.ca.parent))
    creds = info('t', ca_path='~/ca.crt', certificate_path=b'~/client.crt', private_key_path='~/client.key')
    assert len(creds.as_ssl_context().get_ca_certs()) == 1


@pytest.mark.parametrize(
    'kwargs',
    [
        {'ca_path': 'x', 'ca_data': 'x'},
        {'certificate_path': 'x', 'certificate_data': 'x'},
        {'private_key_path': 'x', 'private_key_data': 'x'},
    ],
)
def test_tls_with_ambiguous_data(kwargs):
    with pytest.raises(ValueError, match='only one'):
        info('t', **kwargs)


@pytest.mark.parametrize('data', ['garbage', '%%%'])
def test_tls_with_broken_data(data):
    with pytest.raises(ValueError, match='neither PEM nor base64'):
        info('t', ca_data=data).as_ssl_context()


def test_tls_certificate_without_its_key(pki):
    with pytest.raises(OSError):
        info('t', certificate_path=pki.client_cert).as_ssl_context()


#
# The vault
#


async def test_vault_gives_what_it_has():
    creds = info('a')
    key, found = await Vault({'login': creds}).select()
    assert key == 'login'
    assert found is creds


async def test_vault_takes_any_of_the_highest_priority():
    vault = Vault({'a': info('a', priority=1), 'b': info('b', priority=2), 'c': info('c', priority=2)})
    assert {(await vault.select())[0] for _ in range(100)} == {'b', 'c'}


@pytest.mark.parametrize('expiration', [PAST, PAST.replace(tzinfo=None)])
async def test_vault_drops_the_expired(expiration):
    vault = Vault({'a': info('a', priority=2, expiration=expiration), 'b': info('b', priority=1)})
    assert (await vault.select())[0] == 'b'


@pytest.mark.parametrize('expiration', [FUTURE, FUTURE.replace(tzinfo=None)])
async def test_vault_keeps_the_unexpired(expiration):
    vault = Vault({'a': info('a', priority=2, expiration=expiration), 'b': info('b', priority=1)})
    assert (await vault.select())[0] == 'a'


async def test_vault_logs_in_when_all_are_expired_on_the_way():
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=0.05)
    old = info('old', expiration=soon)
    vault = Vault()
    vault.authenticate = Login({'a': old}, {'a': info('new')})
    while (await vault.select())[1] is old:
        await asyncio.sleep(0)
    assert vault.authenticate.calls == 2
    assert (await vault.select())[1] == info('new')


async def test_vault_logs_in_once_for_all():
    gate = asyncio.Event()
    vault = make_vault({'a': info('a')}, gate=gate)
    tasks = [asyncio.create_task(vault.select()) for _ in range(10)]
    await asyncio.sleep(0)
    gate.set()
    assert await asyncio.gather(*tasks) == [('a', info('a'))] * 10
    assert vault.authenticate.calls == 1


async def test_vault_fails_for_all_if_there_is_nothing():
    vault = make_vault({})
    results = await asyncio.gather(*[vault.select() for _ in range(10)], return_exceptions=True)
    assert {type(result) for result in results} == {LoginError}
    assert vault.authenticate.calls == 1


async def test_vault_tells_the_reason_of_login_handlers():
    vault = make_vault(LoginError("nothing at all"))
    with pytest.raises(LoginError, match="nothing at all"):
        await vault.select()


async def test_vault_turns_any_failure_of_login_to_its_own_error():
    vault = make_vault(ValueError("boo"))
    with pytest.raises(LoginError, match="boo"):
        await vault.select()


async def test_vault_without_any_way_to_log_in():
    with pytest.raises(LoginError):
        await Vault().select()


async def test_vault_survives_the_cancellation_of_the_first_waiter():
    gate = asyncio.Event()
    vault = make_vault({'a': info('a')}, gate=gate)
    first, second = (asyncio.create_task(vault.select()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    gate.set()
    assert await second == ('a', info('a'))
    assert vault.authenticate.calls == 1


async def test_vault_survives_the_cancellation_of_the_login_itself():
    async def cancelled():
        raise asyncio.CancelledError

    vault = Vault()
    vault.authenticate = cancelled
    with pytest.raises(LoginError):
        await vault.select()
    vault.authenticate = Login({'a': info('a')})
    assert await vault.select() == ('a', info('a'))


async def test_vault_closes_amid_a_login():
    vault = make_vault({'a': info('a')}, gate=asyncio.Event())
    task = asyncio.create_task(vault.select())
    while not vault.authenticate.calls:
        await asyncio.sleep(0)
    await vault.close()
    with pytest.raises(LoginError):
        await task
    with pytest.raises(LoginError):
        await vault.select()


async def test_vault_replaces_the_refused():
    old = info('old')
    vault = Vault({'a': old})
    vault.authenticate = Login({'a': info('new')})
    await vault.invalidate('a', old, Exception())
    assert await vault.select() == ('a', info('new'))


async def test_vault_uses_the_rest_before_it_logs_in():
    creds = info('a', priority=1)
    vault = Vault({'a': creds, 'b': info('b')})
    await vault.invalidate('a', creds)
    assert (await vault.select())[0] == 'b'


@pytest.mark.parametrize(
    'logins, generation',
    [
        ([['one'], ['one']], 0),
        ([['one'], ['two']], 1),
        ([['one'], ['two'], ['one']], 2),
        ([['one', 'two'], ['two'], ['one']], 0),
        ([['one'], ['one', 'two'], ['two']], 0),
        ([['one', 'two'], ['three', 'four'], ['four']], 1),
        ([['one', 'two'], ['three'], ['three', 'one']], 1),
    ],
)
async def test_vault_notices_when_all_addresses_are_new(logins, generation):
    def found(number, servers):
        return {server: ConnectionInfo(server=server, token=str(number)) for server in servers}

    vault = make_vault(*[found(number, servers) for number, servers in enumerate(logins)])
    for servers in logins[:-1]:
        for _ in servers:
            key, creds = await vault.select()
            vault.approve(key, creds)
            await vault.invalidate(key, creds)
    assert vault.authenticate.calls == len(logins)
    assert vault.cluster_generation == generation


async def test_vault_ignores_the_addresses_of_refused_credentials():
    vault = make_vault({'a': info('old')}, {'a': info('old'), 'b': ConnectionInfo(server='https://other', token='t')})
    await vault.invalidate(*await vault.select())
    assert (await vault.select())[0] == 'b'
    assert vault.cluster_generation == 1


async def test_vault_ignores_the_late_news():
    old, new = info('old'), info('new')
    vault = Vault({'a': old})
    vault.authenticate = Login({'a': new}, {})
    await vault.invalidate('a', old)
    await vault.invalidate('a', old)
    assert await vault.select() == ('a', new)
    assert vault.authenticate.calls == 1


async def test_vault_never_takes_the_refused_again():
    creds = info('bad', expiration=FUTURE)
    again = dataclasses.replace(creds, expiration=FUTURE + datetime.timedelta(days=1), priority=5)
    vault = Vault({'a': creds})
    vault.authenticate = Login({'a': again})
    refusal = Exception("no")
    with pytest.raises(LoginError, match="No new credentials") as e:
        await vault.invalidate('a', creds, refusal)
    assert e.value.__cause__ is refusal
    with pytest.raises(LoginError):
        await vault.select()


async def test_vault_takes_the_refused_again_if_there_are_no_others():
    creds = info('a')
    vault = Vault({'a': creds})
    vault.authenticate = Login({'a': creds})
    vault.approve('a', creds)
    await vault.invalidate('a', creds, backoffs=[0, 0])
    assert await vault.select() == ('a', creds)
    await vault.invalidate('a', creds, backoffs=[0, 0])
    with pytest.raises(LoginError, match="3 times in a row"):
        await vault.invalidate('a', creds, backoffs=[0, 0])


async def test_vault_takes_the_refused_again_once_if_they_were_never_accepted():
    creds = info('a')
    vault = Vault({'a': creds})
    vault.authenticate = Login({'a': creds})
    await vault.invalidate('a', creds, backoffs=[0, 0])
    with pytest.raises(LoginError, match="2 times in a row"):
        await vault.invalidate('a', creds, backoffs=[0, 0])


@pytest.mark.looptime
async def test_vault_forgets_the_refusals_when_the_server_accepts_the_credentials():
    creds = info('a')
    vault = Vault({'a': creds})
    vault.authenticate = Login({'a': creds})
    for _ in range(5):
        await vault.invalidate('a', creds, backoffs=[0])
        vault.approve('a', creds)
    await vault.invalidate('a', creds, backoffs=[0])
    with pytest.raises(LoginError):
        await vault.invalidate('a', creds, backoffs=[0])


async def test_vault_prefers_others_to_the_refused():
    creds, other = info('a'), info('b')
    vault = Vault({'a': creds})
    vault.authenticate = Login({'a': creds}, {'a': creds, 'b': other})
    await vault.invalidate('a', creds, backoffs=[0])
    assert await vault.select() == ('b', other)


async def test_vault_does_not_wait_for_the_expired():
    creds = info('a', expiration=PAST)
    vault = Vault({'a': info('a', expiration=FUTURE)})
    vault.authenticate = Login({'a': creds})
    key, found = await vault.select()
    with pytest.raises(LoginError, match="already expired"):
        await vault.invalidate(key, found, backoffs=[1000])


@pytest.mark.looptime
async def test_vault_remembers_many_of_the_refused():
    infos = [info(f'{n}') for n in range(20)]
    vault = Vault()
    vault.authenticate = Login(*[{'a': creds} for creds in infos], {'a': infos[0]})
    with pytest.raises(LoginError):
        for _ in range(100):
            key, creds = await vault.select()
            if creds != infos[0] or vault.authenticate.calls < 20:
                vault.approve(key, creds)  # it is accepted for a while, and then refused
            await vault.invalidate(key, creds)
    assert vault.authenticate.calls == 21


def now():
    return asyncio.get_running_loop().time()


@pytest.fixture
def proven():
    """Return a vault whose credentials were accepted, and are refused now or expired."""

    async def make(*found, refused=(), **kwargs):
        creds = info('old')
        vault = Vault({'a': creds})
        vault.authenticate = Login(*found, **kwargs)
        vault.approve('a', creds)
        await vault.invalidate('a', creds, backoffs=refused)
        return vault

    return make


@pytest.mark.looptime
@pytest.mark.parametrize('error', [LoginError("the file is unreadable"), PassingLoginError("503"), ValueError("boo")])
async def test_vault_repeats_failing_logins_with_growing_pauses(proven, caplog, error):
    began = now()
    vault = await proven(*[error] * 8, {'a': info('new')})
    assert await vault.select() == ('a', info('new'))
    assert vault.authenticate.calls == 9
    assert round(now() - began) == 1 + 2 + 4 + 8 + 15 + 30 + 30 + 30
    assert [record.args[0] for record in caplog.records] == [1, 2, 4, 8, 15, 30, 30, 30]
    assert str(error) in caplog.text


@pytest.mark.looptime
async def test_vault_tells_for_how_long_the_logins_fail():
    vault = Vault({'a': (creds := info('old'))})
    vault.authenticate = Login(LoginError("503"), LoginError("503"), {'a': info('new')})
    vault.approve('a', creds)
    assert vault.failing_for == 0
    waiting = asyncio.create_task(vault.invalidate('a', creds))
    await asyncio.sleep(2)
    assert vault.failing_for > 0
    await waiting
    assert vault.failing_for == 0


@pytest.mark.looptime
async def test_vault_ends_at_once_if_it_is_of_no_use_to_try_again(proven):
    began = now()
    with pytest.raises(LoginError, match="fired"):
        await proven(FinalLoginError("fired"))
    assert now() == began


@pytest.mark.looptime
@pytest.mark.parametrize('found, match', [({}, "No credentials"), ({'a': info('x', expiration=PAST)}, "expired")])
async def test_vault_ends_soon_if_the_logins_bring_nothing(proven, found, match):
    began = now()
    with pytest.raises(LoginError, match=match):
        await proven(found)
    assert round(now() - began) == 1 + 2 + 4


@pytest.mark.looptime
@pytest.mark.parametrize('errors, calls', [(1, 2), (2, 2)])
async def test_vault_repeats_the_very_first_login_once_if_its_failure_can_pass(errors, calls):
    vault = make_vault(*[PassingLoginError("503")] * errors, {'a': info('new')})
    if errors == 1:
        assert await vault.select() == ('a', info('new'))
    else:
        with pytest.raises(LoginError, match="503"):
            await vault.select()
    assert vault.authenticate.calls == calls


@pytest.mark.looptime
async def test_vault_pauses_when_new_credentials_are_refused_too(proven):
    vault = await proven(*[{'a': info(f'{n}')} for n in range(100)], refused=[1, 2, 3])
    moments = []
    with pytest.raises(LoginError, match="No new credentials .* 5 times in a row"):
        while True:
            moments.append(now())
            await vault.invalidate(*await vault.select())
    assert [round(later - earlier) for earlier, later in zip(moments, moments[1:], strict=False)] == [1, 2, 3]
    assert vault.authenticate.calls == 4


@pytest.mark.looptime
async def test_vault_does_not_count_failures_as_refusals(proven):
    vault = await proven({'a': info('1')}, *[PassingLoginError("503")] * 9, {'a': info('2')}, refused=[1, 2])
    await vault.invalidate(*await vault.select())
    await vault.invalidate(*await vault.select())  # one more chance is left
    with pytest.raises(LoginError, match="No new credentials"):
        await vault.invalidate(*await vault.select())


async def accepted(vault):
    """Return the selected credentials, which the server has accepted for other requests."""
    key, creds = await vault.select()
    vault.approve(key, creds)
    return key, creds


@pytest.fixture
def clock(monkeypatch):
    """Return a list with the time, which only the test changes."""
    moment = [0.0]
    monkeypatch.setattr(time, 'monotonic', lambda: moment[0])
    return moment


@pytest.fixture
def partial():
    """Return a vault whose credentials a part of the API refuses, before and after others have accepted them."""

    async def make(*found, **kwargs):
        vault = Vault({'a': info('old')})
        vault.authenticate = Login(*found, **kwargs)
        assert not vault.note_refusing_part('part')
        await vault.invalidate(*await accepted(vault))
        await accepted(vault)
        return vault

    return make


async def test_vault_keeps_what_others_accept_but_logs_in_less_and_less_often_for_the_refused(partial, clock):
    vault = await partial(*[{'a': info(f'{n}')} for n in range(100)])
    moments = {}
    while clock[0] < 240:
        assert vault.note_refusing_part('part')
        if await vault.refresh(*await accepted(vault)):
            moments[vault.authenticate.calls] = clock[0]
        clock[0] += 1
    assert list(moments.values()) == [1, 3, 7, 15, 30, 60, 120, 180]
    assert vault.authenticate.calls == 9


async def test_vault_gives_what_others_accept_during_the_logins_for_the_refused(partial, clock):
    vault = await partial({'a': info('new')}, {'a': info('newer')})
    key, creds = await vault.select()
    clock[0] += 5
    vault.authenticate.gate = asyncio.Event()
    waiting = [asyncio.create_task(vault.refresh(key, creds)) for _ in range(100)]
    await asyncio.sleep(0)
    assert await vault.select() == (key, creds)
    vault.authenticate.gate.set()
    assert all(await asyncio.gather(*waiting))
    assert await vault.select() == (key, info('newer'))
    assert vault.authenticate.calls == 2


@pytest.mark.parametrize('error', [LoginError("503"), PassingLoginError("503"), ValueError("503")])
async def test_vault_keeps_what_others_accept_though_the_logins_fail(partial, clock, caplog, error):
    vault = await partial({'a': info('new')}, error)
    key, creds = await vault.select()
    clock[0] += 5
    assert await vault.refresh(key, creds)
    assert await vault.select() == (key, creds)
    assert vault.failing_for == 0
    assert "The former credentials stay in use: 503" in caplog.text


async def test_vault_ends_if_logins_for_the_refused_are_forbidden(partial, clock):
    vault = await partial({'a': info('new')}, FinalLoginError("fired"))
    key, creds = await vault.select()
    clock[0] += 5
    with pytest.raises(LoginError, match="fired"):
        await vault.refresh(key, creds)


@pytest.mark.parametrize('is_accepted', [True, False])
async def test_vault_asks_about_credentials_that_only_a_refusing_part_has_seen(partial, clock, is_accepted):
    async def check():
        asked.append('check')
        await asyncio.sleep(0)
        return is_accepted

    asked = []
    vault = await partial(*[{'a': info(f'{n}')} for n in range(9)])
    clock[0] += 5
    assert await vault.refresh(*await vault.select(), check)
    assert not asked
    clock[0] += 5
    key, creds = await vault.select()
    assert all(await asyncio.gather(*[vault.refresh(key, creds, check) for _ in range(9)]))
    assert asked == ['check']
    assert vault.authenticate.calls == (3 if is_accepted else 2)
    assert vault.note_refusing_part('part') is is_accepted


async def test_vault_tells_once_what_is_refused(partial, caplog):
    vault = await partial({'a': info('new')})
    for _ in range(3):
        assert vault.note_refusing_part('part')
    assert caplog.text.count("refuses them for part.") == 1


async def test_vault_forgets_parts_that_accept_the_credentials(partial):
    vault = await partial({'a': info('new')})
    vault.note_accepting_part('part')
    assert not vault.note_refusing_part('part')


async def test_vault_forgets_parts_after_a_while(partial, clock):
    vault = await partial({'a': info('new')})
    clock[0] += 1000
    assert not vault.note_refusing_part('part')


@pytest.mark.looptime
async def test_vault_keeps_what_is_refused_by_one_part_after_another(proven):
    vault = await proven({'a': info('new')}, refused=[0])
    for number in range(20):
        key, creds = await accepted(vault)
        if vault.note_refusing_part(f'part{number}'):
            await vault.refresh(key, creds)
        else:
            await vault.invalidate(key, creds, backoffs=[0])
    assert vault.authenticate.calls < 12
    assert await vault.select() == (key, creds)


async def test_vault_keeps_what_others_accept_while_a_login_waits(proven):
    vault = await proven({'a': info('new')})
    key, creds = await vault.select()
    vault.authenticate.gate = asyncio.Event()
    waiting = asyncio.create_task(vault.invalidate(key, creds))
    await asyncio.sleep(0)
    vault.approve(key, creds)  # a request that was in flight
    assert await asyncio.wait_for(vault.select(), 1) == (key, creds)
    waiting.cancel()
    await vault.close()


@pytest.mark.looptime
@pytest.mark.parametrize('found', [{'a': info('old')}, {}, LoginError("503")])
@pytest.mark.parametrize('refused', [[], [0] * 9])
async def test_vault_asks_the_server_about_the_refused_before_it_gives_up(found, refused):
    async def check():
        return True

    began = now()
    vault = Vault({'a': info('old')})
    vault.authenticate = Login(found)
    await accepted(vault)
    while not vault.note_refusing_part('part'):
        await vault.invalidate(*await vault.select(), backoffs=refused, check=check)
    assert await vault.select() == ('a', info('old'))
    assert now() == began
    assert vault.authenticate.calls <= 5


@pytest.mark.parametrize('refused, calls', [([], 1), ([0, 0], 1), ([0] * 4, 3)])
async def test_vault_gives_up_what_the_server_refuses_anyhow(refused, calls):
    asked = []

    async def check():
        asked.append('check')
        return False

    vault = Vault({'a': info('old')})
    vault.authenticate = Login({'a': info('old')})
    await accepted(vault)
    with pytest.raises(LoginError, match="No new credentials"):
        while not vault.note_refusing_part('part'):
            await vault.invalidate(*await vault.select(), backoffs=refused, check=check)
    assert len(asked) == calls


async def test_vault_logs_in_again_because_of_certificates_but_not_too_often(clock):
    vault = make_vault({'a': info('a')})
    key, creds = await vault.select()
    assert not vault.distrust(key, creds)  # most likely, it is the wrong server
    vault.approve(key, creds)
    pauses = []
    for _ in range(8):
        assert vault.distrust(key, creds)
        assert not vault.distrust(key, creds)  # it is done already
        creds = dataclasses.replace(creds)
        vault.authenticate.found[0] = {'a': creds}
        assert await vault.select() == (key, creds)
        began = clock[0]
        while not vault.distrust(key, creds):
            clock[0] += 1
        vault.authenticate.found[0] = {'a': (creds := dataclasses.replace(creds))}
        await vault.select()
        pauses.append(round(clock[0] - began))
        clock[0] += 1000
    assert pauses == [1, 5, 20, 60, 60, 60, 60, 60]


async def test_login_sees_nothing_of_the_waiter():
    import contextvars

    var = contextvars.ContextVar('var', default='clean')
    seen = []

    async def login():
        seen.append(var.get())
        return {'a': info('a')}

    vault = Vault()
    vault.authenticate = login
    var.set('dirty')
    await vault.select()
    assert seen == ['clean']


def test_contexts_are_values():
    assert info('a') == info('a')
    assert hash(info('a')) == hash(info('a'))
    assert issubclass(AiohttpSession, KubeContext)
