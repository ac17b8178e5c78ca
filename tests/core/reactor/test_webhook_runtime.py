"""Admission in a whole operator: its server, the configurations in the cluster, and the memos of its objects."""

import asyncio

import pytest
from kinds import define
from offlineserver import OfflineServer
from operatorworld import LAST_HANDLED, in_virtual_time

import kopf
from kopf._core.engines import webhook_registration
from kopf._core.engines.webhook_configurations import REVIEW_INTERVAL
from kopf._core.reactor.webhook_runtime import ServerEndedError, ServerMissingError
from kopf.testing import Sandbox

VALIDATING, MUTATING = 'validatingwebhookconfigurations', 'mutatingwebhookconfigurations'
NAME = 'test.kopf.dev'


@pytest.fixture
def server(world):
    server = OfflineServer()
    world.settings.admission.server = server
    world.settings.admission.managed = NAME
    return server


@pytest.fixture
def hooks(world):
    """Wait until the configuration has these webhooks; give them by their ids."""

    async def hooks(resource, *ids):
        names = {f'{id}.{NAME}' for id in ids}
        found = await world.aio.wait_for(
            resource, NAME, lambda body: {webhook['name'] for webhook in body.get('webhooks', [])} == names
        )
        return {webhook['name'].removesuffix(f'.{NAME}'): webhook for webhook in found.get('webhooks', [])}

    return hooks


@in_virtual_time
async def test_configurations_follow_from_the_handlers(world, server, hooks):
    world.declare(kopf.on.validate, 'validating', operation='UPDATE')
    world.declare(kopf.on.mutate, 'mutating', labels={'a': 'b'})
    async with world.operator():
        (validating,) = (await hooks(VALIDATING, 'validating')).values()
        (mutating,) = (await hooks(MUTATING, 'mutating')).values()
        assert validating['clientConfig'] == {'url': 'https://localhost:1/root/validating', 'caBundle': 'Q0E='}
        assert validating['rules'][0]['operations'] == ['UPDATE']
        assert mutating['objectSelector']['matchExpressions'] == [{'key': 'a', 'operator': 'In', 'values': ['b']}]
        assert (await server.review('UPDATE', webhook='validating'))['allowed']
        assert len(world.called('validating')) == 1


@in_virtual_time
async def test_the_api_forgets_all_but_the_persistent_before_the_server_ends(world, server, hooks):
    seen = {}

    async def look():
        for resource in (VALIDATING, MUTATING):
            seen[resource] = [webhook['name'] for webhook in (await world.aio.get(resource, NAME)).get('webhooks', [])]

    server.ending = look
    world.declare(kopf.on.validate, 'temporary')
    world.declare(kopf.on.validate, 'persistent', persistent=True)
    world.declare(kopf.on.mutate, 'mutating')
    async with world.operator():
        await hooks(VALIDATING, 'temporary', 'persistent')
        await hooks(MUTATING, 'mutating')
    assert server.ended.is_set()
    assert seen == {VALIDATING: [f'persistent.{NAME}'], MUTATING: []}


@pytest.mark.parametrize('kind', ['admission', 'conversion'])
@in_virtual_time
async def test_webhooks_are_there_until_the_last_results_of_handlers_are_stored(world, server, kind):
    async def work(**_):
        await asyncio.sleep(5)

    async def look():
        world.note('ending', None, annotations=(await world.get())['metadata'].get('annotations') or {})

    server.ending = look
    resource = VALIDATING if kind == 'admission' else 'customresourcedefinitions'
    if kind == 'admission':
        world.declare(kopf.on.validate, 'validating', operation='DELETE')
    else:
        world.declare(kopf.on.convert, 'convert', persistent=False)
    world.declare(kopf.on.create, 'create', does=work)
    world.settings.queueing.exit_timeout = 60
    async with world.operator():
        await server.started.wait()
        await world.create()
        await world.until_called('create')
    assert LAST_HANDLED in world.called('ending')[0]['annotations']
    patched = [request.resource for request in world.sandbox.requests if request.verb == 'patch']
    assert patched[-1] == resource and patched[-2] == 'kopfexamples'


@in_virtual_time
async def test_what_is_just_being_written_in_the_end_is_removed_too(world, server):
    world.sandbox.faults.delay(0.2, method='PATCH', resource=VALIDATING)
    world.declare(kopf.on.validate, 'validating')
    async with world.operator():
        while not any(request.method == 'PATCH' for request in world.sandbox.requests):
            await asyncio.sleep(0.01)
    patches = [
        request for request in world.sandbox.requests if request.method == 'PATCH' and request.resource == VALIDATING
    ]
    assert len(patches) == 2
    assert 'webhooks' not in await world.aio.get(VALIDATING, NAME)


@in_virtual_time
async def test_what_was_maybe_written_is_removed_too(world, server, hooks, monkeypatch):
    monkeypatch.setattr(webhook_registration, 'RETRY_DELAYS', (600,))
    world.settings.networking.error_backoffs = ()
    world.sandbox.faults.lose(method='PATCH', resource=VALIDATING)
    world.declare(kopf.on.validate, 'validating')
    async with world.operator():
        await world.until_logged("cannot be written; trying again")
        await hooks(VALIDATING, 'validating')
    assert 'webhooks' not in await world.aio.get(VALIDATING, NAME)


@in_virtual_time
async def test_configurations_that_others_have_deleted_need_no_cleanup(world, server, hooks):
    world.declare(kopf.on.validate, 'validating')
    async with world.operator():
        await hooks(VALIDATING, 'validating')
        await world.aio.delete(VALIDATING, NAME)
    assert not any("cannot be cleaned up" in line for line in world.log.texts)


@in_virtual_time
async def test_configurations_that_another_process_has_emptied_are_written_again(world, server, hooks):
    world.declare(kopf.on.validate, 'validating')
    async with world.operator():
        written = await hooks(VALIDATING, 'validating')
        await world.aio.patch(VALIDATING, NAME, {'webhooks': []})
        await asyncio.sleep(REVIEW_INTERVAL + 1)
        assert await hooks(VALIDATING, 'validating') == written
        await world.aio.delete(VALIDATING, NAME)
        await asyncio.sleep(REVIEW_INTERVAL + 1)
        assert await world.aio.list(VALIDATING) == []  # as an administrator has wanted it


async def test_configurations_are_written_to_another_cluster_too(world, server, hooks, monkeypatch):
    world.declare(kopf.on.validate, 'validating')
    async with Sandbox(crds=[world.root / 'examples' / 'crd.yaml']) as other, world.operator():
        written = await hooks(VALIDATING, 'validating')
        monkeypatch.setenv('KUBECONFIG', str(other.kubeconfig))
        world.sandbox.faults.expire_tokens()
        world.sandbox.faults.end_watches()
        world.aio = other
        assert await hooks(VALIDATING, 'validating') == written


@pytest.mark.parametrize('address', ['shared', 'own'])
@in_virtual_time
async def test_persistent_webhooks_of_a_process_that_has_ended_are_replaced_by_those_of_another(
    world, server, hooks, address
):
    world.declare(kopf.on.validate, 'temporary')
    world.declare(kopf.on.validate, 'persistent', persistent=True)
    async with world.operator():
        written = await hooks(VALIDATING, 'temporary', 'persistent')
        other = kopf.OperatorSettings()
        other.admission.managed, other.admission.server = NAME, OfflineServer()
        if address == 'own':
            other.admission.server.configs.get_nowait()
            other.admission.server.configs.put_nowait({'url': 'https://another:1', 'caBundle': 'Q0E='})
        async with world.operator(settings=other):
            await asyncio.sleep(REVIEW_INTERVAL + 1)
        await hooks(VALIDATING, 'persistent')
        await asyncio.sleep(REVIEW_INTERVAL + 1)
        assert await hooks(VALIDATING, 'temporary', 'persistent') == written
    await hooks(VALIDATING, 'persistent')


@in_virtual_time
async def test_handlers_of_a_newer_replica_are_registered_again_when_the_older_one_has_left(world, server, hooks):
    class SharedServer(OfflineServer):
        def __init__(self):
            super().__init__()
            self.configs.get_nowait()
            self.configs.put_nowait({'service': {'namespace': 'ops', 'name': 'hooks'}, 'caBundle': 'Q0E='})

        async def leave(self):
            return False

    world.settings.admission.server = SharedServer()
    world.declare(kopf.on.validate, 'known')
    older = kopf.OperatorRegistry()
    kopf.on.login(registry=older)(kopf.login_with_kubeconfig)
    world.declare(kopf.on.validate, 'known', registry=older)
    world.declare(kopf.on.validate, 'new')
    async with world.operator():
        written = await hooks(VALIDATING, 'known', 'new')
        settings = kopf.OperatorSettings()
        settings.admission.managed, settings.admission.server = NAME, SharedServer()
        async with world.operator(registry=older, settings=settings):
            await hooks(VALIDATING, 'known')
            await asyncio.sleep(REVIEW_INTERVAL + 1)
        await hooks(VALIDATING, 'known')
        await asyncio.sleep(REVIEW_INTERVAL + 1)
        assert await hooks(VALIDATING, 'known', 'new') == written


@in_virtual_time
async def test_an_address_that_another_process_has_replaced_is_warned_of_and_left(world, server, hooks):
    world.declare(kopf.on.validate, 'validating')
    world.declare(kopf.on.mutate, 'mutating')
    async with world.operator():
        await hooks(MUTATING, 'mutating')
        (webhook,) = (await hooks(VALIDATING, 'validating')).values()
        foreign = {**webhook, 'clientConfig': {**webhook['clientConfig'], 'url': 'https://another/validating'}}
        await world.aio.patch(VALIDATING, NAME, {'webhooks': [foreign]})
        await asyncio.sleep(2 * REVIEW_INTERVAL + 1)
        warnings = [line for line in world.log.texts if "has replaced the address in the validating webhook" in line]
        assert len(warnings) == 1
    assert (await world.aio.get(VALIDATING, NAME))['webhooks'] == [foreign]
    assert not (await world.aio.get(MUTATING, NAME)).get('webhooks')


@in_virtual_time
async def test_without_the_permission_to_read_configurations_they_are_still_cleaned_up(world, server, hooks):
    world.sandbox.faults.error(403, times=None, method='GET', resource=VALIDATING, user_agent='kopf')
    world.declare(kopf.on.validate, 'validating')
    async with world.operator():
        while not any(request.method == 'PATCH' for request in world.sandbox.requests):
            await asyncio.sleep(0.01)
        await asyncio.sleep(REVIEW_INTERVAL + 1)
    world.sandbox.faults.clear()
    assert not (await world.aio.get(VALIDATING, NAME)).get('webhooks')


@in_virtual_time
async def test_existing_configurations_are_taken_over(world, server, hooks):
    await world.aio.create(
        {
            'apiVersion': 'admissionregistration.k8s.io/v1',
            'kind': 'ValidatingWebhookConfiguration',
            'metadata': {'name': NAME, 'labels': {'own': 'label'}},
        }
    )
    world.declare(kopf.on.validate, 'validating')
    async with world.operator():
        await hooks(VALIDATING, 'validating')
        assert (await world.aio.get(VALIDATING, NAME))['metadata']['labels'] == {'own': 'label'}


@in_virtual_time
async def test_new_addresses_are_told_to_the_api(world, server, hooks):
    world.declare(kopf.on.validate, 'validating')
    async with world.operator():
        await hooks(VALIDATING, 'validating')
        server.configs.put_nowait({'service': {'name': 'svc', 'namespace': 'ns', 'path': '/root'}})
        found = await world.aio.wait_for(
            VALIDATING, NAME, lambda body: 'service' in body['webhooks'][0]['clientConfig']
        )
        service = found['webhooks'][0]['clientConfig']['service']
        assert (service['name'], service['namespace'], service['path']) == ('svc', 'ns', '/root/validating')


@in_virtual_time
async def test_nothing_is_written_if_nothing_has_changed(world, server, hooks):
    world.declare(kopf.on.validate, 'validating')
    config = await server.configs.get()
    server.configs.put_nowait(config)
    async with world.operator():
        await hooks(VALIDATING, 'validating')
        server.configs.put_nowait(dict(config))
        server.configs.put_nowait({'url': 'https://other'})
        await world.aio.wait_for(
            VALIDATING, NAME, lambda body: body['webhooks'][0]['clientConfig']['url'] == 'https://other/validating'
        )
        patches = [
            request
            for request in world.sandbox.requests
            if request.method == 'PATCH' and request.resource == VALIDATING
        ]
        assert len(patches) == 2


@in_virtual_time
async def test_webhooks_are_registered_for_resources_that_come_later(world, server, hooks):
    world.declare(kopf.on.validate, 'late', resource='kopflates')
    async with world.operator():
        await world.aio.wait_for(VALIDATING, NAME)
        assert await hooks(VALIDATING) == {}
        await world.aio.create(define('kopflates', 'KopfLate', group='kopf.dev'))
        await hooks(VALIDATING, 'late')
        assert (await server.review(webhook='late', resource='kopflates'))['allowed']
        await world.aio.delete('customresourcedefinitions', 'kopflates.kopf.dev')
        await hooks(VALIDATING)


@in_virtual_time
async def test_webhooks_need_no_watching(world, server, hooks):
    world.declare(kopf.on.validate, 'validating')
    async with world.operator():
        await hooks(VALIDATING, 'validating')
    assert not [request for request in world.sandbox.requests if request.resource == 'kopfexamples']


@in_virtual_time
async def test_failures_are_retried(world, server, hooks, monkeypatch):
    monkeypatch.setattr(webhook_registration, 'RETRY_DELAYS', (0.01,))
    world.sandbox.faults.error(500, times=2, method='PATCH')
    world.sandbox.faults.error(403, times=1, method='POST')
    world.declare(kopf.on.validate, 'validating')
    async with world.operator():
        await world.until_logged("cannot be written; trying again")
        await hooks(VALIDATING, 'validating')


@in_virtual_time
async def test_one_kind_that_is_refused_does_not_concern_the_other(world, server, hooks, monkeypatch):
    """Neither when they are written, nor when they are cleaned up."""
    monkeypatch.setattr(webhook_registration, 'RETRY_DELAYS', (0.05,))
    world.sandbox.faults.error(403, times=None, method='PATCH', resource=VALIDATING)
    world.declare(kopf.on.validate, 'validating')
    world.declare(kopf.on.mutate, 'mutating')
    async with world.operator():
        await hooks(MUTATING, 'mutating')
        world.sandbox.faults.clear()
        await hooks(VALIDATING, 'validating')
        world.sandbox.faults.error(403, times=None, method='PATCH', resource=VALIDATING)
    assert (await world.aio.get(MUTATING, NAME)).get('webhooks', []) == []
    assert any("cannot be cleaned up" in line for line in world.log.texts)


@in_virtual_time
async def test_configurations_deleted_by_others_are_made_again(world, server, hooks, monkeypatch):
    monkeypatch.setattr(webhook_registration, 'RETRY_DELAYS', (0.01,))
    world.declare(kopf.on.validate, 'validating')
    async with world.operator():
        await hooks(VALIDATING, 'validating')
        await world.aio.delete(VALIDATING, NAME)
        server.configs.put_nowait({'url': 'https://other'})
        await hooks(VALIDATING, 'validating')


@in_virtual_time
async def test_impossible_cleanup_is_named_and_left(world, server, hooks):
    world.declare(kopf.on.validate, 'validating')
    async with world.operator():
        await hooks(VALIDATING, 'validating')
        world.sandbox.faults.error(403, times=None, method='PATCH')
    assert any("cannot be cleaned up" in line for line in world.log.texts)
    assert server.ended.is_set()


@in_virtual_time
async def test_unmanaged_configurations_are_left_alone(world, server, caplog):
    caplog.set_level('INFO')
    world.settings.admission.managed = None
    world.declare(kopf.on.validate, 'validating')
    async with world.operator():
        await server.started.wait()
        assert (await server.review())['allowed']
    assert not [request for request in world.sandbox.requests if request.group == 'admissionregistration.k8s.io']
    assert "The API is not told of them, as settings.admission.managed is not set." in caplog.text


@in_virtual_time
async def test_no_server_for_handlers(world):
    world.declare(kopf.on.validate, 'validating')
    with pytest.raises(ServerMissingError, match=r"settings\.admission\.server"):
        await kopf.operator(registry=world.registry, settings=world.settings, standalone=True)
    assert not world.sandbox.requests


@in_virtual_time
async def test_what_is_no_server(world):
    world.declare(kopf.on.validate, 'validating')
    with pytest.raises(TypeError, match=r"must be an object, not a class: write WebhookServer\(...\)"):
        world.settings.admission.server = kopf.WebhookServer
    world.settings.admission.server = object()
    with pytest.raises(ServerMissingError, match=r"must be a server, .*not <object"):
        await kopf.operator(registry=world.registry, settings=world.settings, standalone=True)


@in_virtual_time
async def test_servers_are_not_started_without_handlers(world, server):
    world.declare(kopf.on.event, 'event')
    async with world.operator():
        await world.create()
        await world.until_called('event')
    assert server.fn is None


@in_virtual_time
async def test_an_ending_server_ends_the_operator(world, server, hooks):
    world.declare(kopf.on.validate, 'validating')
    with pytest.raises(ServerEndedError):
        async with world.operator() as task:
            await hooks(VALIDATING, 'validating')
            server.configs.put_nowait(None)
            await asyncio.wait([task])
    assert await hooks(VALIDATING) == {}


@in_virtual_time
async def test_a_failing_server_ends_the_operator(world):
    async def broken(fn):
        raise OSError("no such address")
        yield

    world.settings.admission.server = broken
    world.declare(kopf.on.validate, 'validating')
    with pytest.raises(OSError, match="no such address"):
        await kopf.operator(registry=world.registry, settings=world.settings, standalone=True)


@pytest.mark.parametrize('substituted', [False, True])
@in_virtual_time
async def test_servers_that_are_context_managers_are_entered_and_exited(world, server, hooks, substituted):
    events = []

    class Manager(OfflineServer):
        async def __aenter__(self):
            events.append('enter')
            return server if substituted else self

        async def __aexit__(self, *_):
            events.append('exit')

    manager = Manager()
    world.settings.admission.server = manager
    world.declare(kopf.on.validate, 'validating')
    async with world.operator():
        await hooks(VALIDATING, 'validating')
        assert events == ['enter']
        assert (await (server if substituted else manager).review())['allowed']
    assert events == ['enter', 'exit']


@in_virtual_time
async def test_memos_of_existing_objects(world, server, hooks):
    async def remember(memo, **_):
        memo.seen = 'in an event'

    async def tell(memo, warnings, **_):
        warnings.append(f"{memo.get('common')} {memo.get('seen')}")

    world.declare(kopf.on.event, 'event', does=remember)
    world.declare(kopf.on.validate, 'validating', does=tell)
    metadata = (await world.create())['metadata']
    async with world.operator(memo=kopf.Memo(common='common')):
        await world.until_called('event')
        await hooks(VALIDATING, 'validating')
        assert (await server.review('CREATE', metadata=metadata))['warnings'] == ['common None']
        assert (await server.review('UPDATE', metadata=metadata))['warnings'] == ['common in an event']
        assert (await server.review('DELETE', metadata=metadata))['warnings'] == ['common in an event']
        other = {**metadata, 'uid': 'another'}
        assert (await server.review('UPDATE', metadata=other))['warnings'] == ['common None']


@in_virtual_time
async def test_indices_are_given(world, server, hooks):
    @kopf.index('kopfexamples', id='names', registry=world.registry)
    async def names(name, **_):
        return {'all': name}

    seen = []

    async def look(names, **_):
        seen.extend(names.get('all', ()))

    world.declare(kopf.on.validate, 'validating', does=look)
    await world.create('one')
    async with world.operator():
        await hooks(VALIDATING, 'validating')
        async with asyncio.timeout(60):
            while 'one' not in seen:
                await server.review()
                await asyncio.sleep(0)


@in_virtual_time
async def test_the_real_server_with_the_api_calling_back(world, hooks):
    async def change(patch, **_):
        patch.spec['added'] = 'yes'

    async def refuse(spec, **_):
        if spec.get('bad'):
            raise kopf.AdmissionError("It is bad.", code=418)

    world.settings.admission.server = kopf.WebhookServer()
    world.settings.admission.managed = NAME
    world.declare(kopf.on.mutate, 'changing', does=change)
    world.declare(kopf.on.validate, 'refusing', does=refuse)
    async with world.operator():
        await hooks(MUTATING, 'changing')
        await hooks(VALIDATING, 'refusing')
        assert (await world.create(spec={'field': 'x'}))['spec'] == {'field': 'x', 'added': 'yes'}
        with pytest.raises(kopf.testing.Refusal, match=r"It is bad\.") as error:
            await world.create('other', spec={'bad': True})
        assert error.value.code == 418


@in_virtual_time
async def test_webhooks_of_everything_do_not_review_what_the_operator_needs_before_it_can_answer(world, hooks):
    """A handler waits for its index, which waits until the operator is in its peering, by a change that is reviewed."""

    @kopf.index('kopfexamples', id='names', registry=world.registry)
    async def names(name, **_):
        return {'all': name}

    async def look(names, **_):
        pass

    world.settings.admission.server = kopf.WebhookServer()
    world.settings.admission.managed = NAME
    world.settings.peering.mandatory = True
    world.declare(kopf.on.validate, 'validating', resource=kopf.EVERYTHING, does=look)
    world.declare(kopf.on.create, 'create')
    await world.aio.apply(world.root / 'peering.yaml')
    await world.aio.create({'apiVersion': 'kopf.dev/v1', 'kind': 'ClusterKopfPeering', 'metadata': {'name': 'default'}})
    async with world.operator(standalone=False, clusterwide=True, identity='me'):
        rules = (await hooks(VALIDATING, 'validating'))['validating']['rules']
        reviewed = {name for rule in rules for name in rule['resources']}
        assert reviewed >= {'kopfexamples', 'namespaces'}
        assert reviewed.isdisjoint({'leases', 'kopfpeerings', 'clusterkopfpeerings'})
        await world.create('one')
        await world.handled('one')


@in_virtual_time
@pytest.mark.parametrize('name', ['leases', 'clusterkopfpeerings'])
async def test_webhooks_that_name_leases_or_peerings_review_them(world, server, hooks, name):
    await world.aio.apply(world.root / 'peering.yaml')
    world.declare(kopf.on.validate, 'validating', resource=name)
    async with world.operator():
        [rule] = (await hooks(VALIDATING, 'validating'))['validating']['rules']
        assert rule['resources'] == [name]


@in_virtual_time
async def test_webhooks_that_end_with_their_process_name_no_writer(world, server, hooks):
    world.declare(kopf.on.validate, 'validating')
    async with world.operator():
        await hooks(VALIDATING, 'validating')
        [stored] = await world.aio.list(VALIDATING)
        assert 'annotations' not in stored['metadata']


@in_virtual_time
async def test_webhooks_that_end_with_their_process_cause_no_needless_requests(world, server, hooks):
    world.declare(kopf.on.validate, 'validating', persistent=True)
    async with world.operator():
        await hooks(VALIDATING, 'validating')
        await asyncio.sleep(REVIEW_INTERVAL * 3)
    requests = [each for each in world.sandbox.requests if each.user_agent.startswith('kopf')]
    assert [each.method for each in requests if each.resource == VALIDATING].count('PATCH') == 1  # none at the exit
    assert not any(each.method == 'GET' for each in requests if each.resource == MUTATING)
