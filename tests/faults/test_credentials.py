"""Refused credentials: some are bad, and sometimes only the server has a bad day."""
import asyncio

import pytest

import kopf


def refusals(world):
    return [seen for seen in world.sandbox.requests if seen.status == 401]


@pytest.fixture(autouse=True)
def pauses(world):
    world.settings.networking.login_backoffs = [0.05, 0.05, 0.1]


@pytest.mark.parametrize('times', [1, 3])
@pytest.mark.parametrize('verb', ['patch', 'watch'])
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
    assert [call.name for call in world.calls] == ['before', 'after']  # nobody is called again for that
    told = [text for text in world.log.texts if 'The API refuses the credentials of' in text]
    assert len(told) == times and 'will be tried again in 0.05 seconds' in told[0]


@pytest.mark.parametrize('path', ['^/apis$', '/kopfexamples$'])
async def test_refusals_at_the_start(world, path):
    world.sandbox.faults.error(401, path=path)
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        await world.create()
        await world.handled()
    assert len(refusals(world)) == 1


async def test_those_who_were_never_accepted_are_refused_soon(world):
    world.settings.networking.login_backoffs = [0.05, 60]
    world.sandbox.faults.error(401, times=None)
    world.declare(kopf.on.create, 'create')
    with pytest.raises(kopf.LoginError, match="No new credentials.* Renew them or fix the login handlers"):
        async with world.operator() as task:
            await asyncio.wait_for(task, 60)


async def test_a_success_is_a_new_beginning(world):
    world.settings.networking.login_backoffs = 0.01
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        for number in range(5):
            world.sandbox.faults.error(401, verb='patch')
            await world.create(f'obj{number}')
            await world.handled(f'obj{number}')
    assert len(refusals(world)) == 5


@pytest.mark.parametrize('backoffs, attempts', [([], 1), (0.01, 2), ([0.01, 0.01], 3)])
async def test_those_who_are_refused_for_good_are_told_what_to_do(world, backoffs, attempts):
    world.settings.networking.login_backoffs = backoffs
    world.declare(kopf.on.create, 'create')
    with pytest.raises(kopf.LoginError, match="No new credentials.* Renew them or fix the login handlers"):
        async with world.operator() as task:
            await world.create('before')
            await world.handled('before')
            world.sandbox.faults.error(401, times=None)
            await world.create('after')
            await asyncio.wait_for(task, 60)
    patches = [seen for seen in refusals(world) if seen.verb == 'patch']
    assert len(patches) == attempts


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
