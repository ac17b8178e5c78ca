"""Conversion strategies in a whole operator: when they are written to CRDs, and when they are restored."""

import asyncio
import copy

import pytest
from kinds import define
from offlineserver import OfflineServer
from operatorworld import in_virtual_time

import kopf
from kopf._core.engines import conversion_strategies, webhook_registration
from kopf._core.engines.conversion_strategies import ConversionRefusedError, make_placeholder, make_service_strategy

CRDS = 'customresourcedefinitions'
CRD = 'kopfexamples.kopf.dev'
FOREIGN = {
    'strategy': 'Webhook',
    'webhook': {'clientConfig': {'url': 'https://foreign/x', 'caBundle': 'Q0E='}, 'conversionReviewVersions': ['v1']},
}

LATE = define('kopflates', 'KopfLate', group='kopf.dev')
LATE_CRD = 'kopflates.kopf.dev'


@pytest.fixture
def server(world):
    world.settings.admission.server = OfflineServer()
    world.settings.admission.managed = 'test.kopf.dev'
    return world.settings.admission.server


@pytest.fixture
def strategy(world):
    """Wait until the conversion of the CRD is like this."""

    async def strategy(check, name=CRD):
        found = await world.aio.wait_for(
            CRDS, name, lambda body: check(body['spec'].get('conversion') or {'strategy': 'None'})
        )
        return found['spec'].get('conversion') or {'strategy': 'None'}

    return strategy


def has_url(url):
    return lambda conversion: conversion.get('webhook', {}).get('clientConfig', {}).get('url') == url


is_own = has_url(f'https://localhost:1/root/convert/{CRD}')


def is_none(conversion):
    return conversion == {'strategy': 'None'}


def declare(world, id='convert', resource='kopfexamples', **options):
    @kopf.on.convert(resource, id=id, registry=world.registry, **options)
    async def convert(patch, from_version, to_version, **_):
        patch.spec['converted'] = f'{from_version}-{to_version}'


@in_virtual_time
async def test_conversions_are_configured_and_answered(world, server, strategy):
    declare(world)
    async with world.operator():
        assert await strategy(is_own) == {
            'strategy': 'Webhook',
            'webhook': {
                'clientConfig': {'url': f'https://localhost:1/root/convert/{CRD}', 'caBundle': 'Q0E='},
                'conversionReviewVersions': ['v1'],
            },
        }
        answer = await server.fn(
            {
                'apiVersion': 'apiextensions.k8s.io/v1',
                'kind': 'ConversionReview',
                'request': {
                    'uid': 'uid1',
                    'desiredAPIVersion': 'kopf.dev/v2',
                    'objects': [
                        {'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample', 'metadata': {'name': 'x'}, 'spec': {}}
                    ],
                },
            },
            webhook=f'convert/{CRD}',
        )
        assert answer['response'] == {
            'uid': 'uid1',
            'result': {'status': 'Success'},
            'convertedObjects': [
                {
                    'apiVersion': 'kopf.dev/v2',
                    'kind': 'KopfExample',
                    'metadata': {'name': 'x'},
                    'spec': {'converted': 'v1-v2'},
                }
            ],
        }
    assert is_own((await world.aio.get(CRDS, CRD))['spec']['conversion'])  # conversions outlive their operators
    assert any("is left as it is" in line for line in world.log.texts)
    assert not [request for request in world.sandbox.requests if request.group == 'admissionregistration.k8s.io']


@pytest.mark.parametrize('before', [None, {'strategy': 'None'}, FOREIGN])
@in_virtual_time
async def test_strategies_that_are_not_persistent_are_restored_at_the_exit(world, server, strategy, before):
    if before is not None:
        await world.aio.patch(CRDS, CRD, {'spec': {'conversion': before}})
    declare(world, persistent=False)
    async with world.operator():
        await strategy(is_own)
    assert await strategy(lambda conversion: not is_own(conversion)) == (before or {'strategy': 'None'})


@in_virtual_time
async def test_the_strategy_of_a_killed_operator_is_not_restored_by_the_next_one(world, server, strategy):
    await world.aio.patch(
        CRDS,
        CRD,
        {
            'spec': {
                'conversion': {
                    **FOREIGN,
                    'webhook': {**FOREIGN['webhook'], 'clientConfig': {'url': f'https://localhost:7/convert/{CRD}'}},
                }
            }
        },
    )
    declare(world, persistent=False)
    async with world.operator():
        await strategy(is_own)
    await strategy(is_none)


@pytest.mark.parametrize('bundle', [{'caBundle': 'Q0E='}, {}], ids=['served', 'only applied'])
@pytest.mark.parametrize('persistent', [True, False])
@in_virtual_time
async def test_the_service_of_the_deployed_operator_is_called_again_after_the_development(
    world, server, strategy, persistent, bundle
):
    deployed = make_service_strategy(CRD, service='app', namespace='default')
    deployed['webhook']['clientConfig'] |= bundle
    await world.aio.patch(CRDS, CRD, {'spec': {'conversion': deployed}})
    declare(world, persistent=persistent)
    async with world.operator():
        await strategy(is_own)
    assert await strategy(lambda conversion: not is_own(conversion)) == deployed


@in_virtual_time
async def test_one_persistent_handler_is_enough_to_stay(world, server, strategy):
    declare(world, 'one', persistent=False, from_version='v1')
    declare(world, 'two', persistent=True, from_version='v2')
    async with world.operator():
        await strategy(is_own)
    await strategy(is_own)


@in_virtual_time
async def test_new_addresses_are_written_to_the_crd(world, server, strategy):
    declare(world)
    async with world.operator():
        await strategy(is_own)
        server.configs.put_nowait({'service': {'name': 'svc', 'namespace': 'ns', 'path': '/root'}, 'caBundle': 'Q0E='})
        found = await strategy(lambda conversion: 'service' in conversion['webhook']['clientConfig'])
        assert found['webhook']['clientConfig'] == {
            'caBundle': 'Q0E=',
            'service': {'name': 'svc', 'namespace': 'ns', 'path': f'/root/convert/{CRD}', 'port': 443},
        }


@in_virtual_time
async def test_a_reset_strategy_is_written_again(world, server, strategy):
    declare(world)
    async with world.operator():
        await strategy(is_own)
        await world.aio.patch(CRDS, CRD, {'spec': {'conversion': {'strategy': 'None', 'webhook': None}}})
        await strategy(is_own)


@in_virtual_time
async def test_the_strategy_of_another_client_is_not_overwritten(world, server, strategy):
    declare(world, persistent=False)
    async with world.operator():
        await strategy(is_own)
        await world.aio.patch(CRDS, CRD, {'spec': {'conversion': FOREIGN}})
        await world.until_logged("has been changed by another client")
    assert (await world.aio.get(CRDS, CRD))['spec']['conversion'] == FOREIGN


@in_virtual_time
async def test_crds_that_are_created_later_are_configured_then(world, server, strategy):
    declare(world, resource='kopflates')
    async with world.operator():
        await world.until_logged("Unresolved resources")
        await world.aio.create(LATE)
        await strategy(has_url('https://localhost:1/root/convert/kopflates.kopf.dev'), 'kopflates.kopf.dev')
        await world.aio.delete(CRDS, 'kopflates.kopf.dev')
        await world.until(lambda: len([line for line in world.log.texts if "Unresolved resources" in line]) == 2)


@in_virtual_time
async def test_builtin_resources_cannot_be_converted(world, server):
    declare(world, resource='pods')
    async with world.operator():
        await world.until_logged("Objects of pods. cannot be converted: it is no custom resource")


@in_virtual_time
async def test_missing_permissions_are_named_and_waited_for(world, server, strategy, monkeypatch):
    monkeypatch.setattr(webhook_registration, 'RETRY_DELAYS', (0.01,))
    world.sandbox.faults.error(403, times=2, method='PATCH')
    declare(world)
    async with world.operator():
        await world.until_logged(
            "{apiGroups: [apiextensions.k8s.io], resources: [customresourcedefinitions], verbs: [get, patch]}"
        )
        await strategy(is_own)


@in_virtual_time
async def test_one_definition_that_is_refused_does_not_concern_others(world, server, strategy, monkeypatch):
    """Neither when the strategies are written, nor when they are restored."""
    monkeypatch.setattr(webhook_registration, 'RETRY_DELAYS', (0.05,))
    await world.aio.create(LATE)
    world.sandbox.faults.error(403, times=None, method='PATCH', name=CRD)
    declare(world, 'one', persistent=False)
    declare(world, 'two', resource='kopflates', persistent=False)
    async with world.operator():
        await strategy(has_url(f'https://localhost:1/root/convert/{LATE_CRD}'), LATE_CRD)
        world.sandbox.faults.clear()
        await strategy(is_own)
        world.sandbox.faults.error(403, times=None, method='PATCH', name=CRD)
    assert is_none((await world.aio.get(CRDS, LATE_CRD))['spec']['conversion'])
    assert any("cannot be cleaned up" in line for line in world.log.texts)


@in_virtual_time
async def test_nothing_is_written_if_nothing_has_changed(world, server, strategy):
    declare(world)
    async with world.operator():
        await strategy(is_own)
        await world.aio.patch(CRDS, CRD, {'metadata': {'labels': {'a': 'b'}}})
        server.configs.put_nowait({'url': 'https://other', 'caBundle': 'Q0E='})
        await strategy(has_url(f'https://other/convert/{CRD}'))
        patches = [
            request
            for request in world.sandbox.requests
            if request.method == 'PATCH' and 'conversion' in request.body.decode()
        ]
        assert len(patches) == 2


@in_virtual_time
async def test_unmanaged_crds_are_left_alone(world, server, strategy):
    world.settings.admission.managed = None
    declare(world)
    async with world.operator():
        async with asyncio.timeout(60):
            while server.fn is None:
                await asyncio.sleep(0)
    await strategy(is_none)


@in_virtual_time
async def test_conversions_without_a_server_are_an_error_at_the_start(world):
    declare(world)
    with pytest.raises(Exception, match=r"@kopf\.on\.convert"):
        await kopf.operator(registry=world.registry, settings=world.settings, standalone=True)


@in_virtual_time
async def test_conversions_need_no_watching(world, server, strategy):
    declare(world)
    async with world.operator():
        await strategy(is_own)
    assert not [request for request in world.sandbox.requests if request.resource == 'kopfexamples']


# Until a conversion is in force.

TWO_VERSIONS = copy.deepcopy(LATE)
TWO_VERSIONS['spec']['versions'].append({**LATE['spec']['versions'][0], 'name': 'v2', 'storage': False})


@pytest.fixture
def lates(world):
    """Create a kind in two versions without a conversion, one object of it, and one of the other kind."""
    world.sandbox.create(TWO_VERSIONS)
    # In the stored version, which needs no conversion: the server is not reachable.
    world.declare(kopf.on.event, 'late', 'v1', 'kopflates', resource='kopf.dev')
    world.declare(kopf.on.event, 'other')
    declare(world, resource='kopflates')
    world.sandbox.create({'apiVersion': 'kopf.dev/v1', 'kind': 'KopfLate', 'metadata': {'name': 'one'}})
    world.sandbox.create('kex', 'two', spec={'field': 'value'})


@pytest.fixture
def refused(world, lates, monkeypatch):
    monkeypatch.setattr(webhook_registration, 'RETRY_DELAYS', (0.05,))
    monkeypatch.setattr(conversion_strategies, 'SETTLING_TIME', 0.01)
    world.sandbox.faults.error(403, times=None, method='PATCH', name=LATE_CRD)


def list_watches(world):
    return [
        request for request in world.sandbox.requests if request.resource == 'kopflates' and request.method == 'GET'
    ]


@in_virtual_time
async def test_objects_are_not_handled_until_their_conversion_is_stored(world, server, strategy, refused):
    async with world.operator():
        await world.until_logged(f"The objects of {LATE_CRD} are not handled until then.")
        await world.until_called('other')
        assert not list_watches(world)
        assert not world.called('late')
        world.sandbox.faults.clear()
        await world.until_called('late')
    await strategy(has_url(f'https://localhost:1/root/convert/{LATE_CRD}'), LATE_CRD)
    assert f"The conversion of {LATE_CRD} is in force: its objects are handled from now on." in world.log.texts


@in_virtual_time
async def test_the_first_conversion_gets_time_to_come_into_force(world, server, lates, monkeypatch):
    monkeypatch.setattr(conversion_strategies, 'SETTLING_TIME', 0.5)
    async with world.operator():
        await world.until_called('late')
    [patch] = [request for request in world.sandbox.requests if request.method == 'PATCH' and request.name == LATE_CRD]
    assert list_watches(world)[0].time - patch.time >= 0.4


@in_virtual_time
async def test_the_first_conversion_gets_this_time_if_the_response_is_lost(world, server, lates, monkeypatch):
    monkeypatch.setattr(conversion_strategies, 'SETTLING_TIME', 30)
    world.settings.networking.error_backoffs = []
    world.sandbox.faults.lose(method='PATCH', name=LATE_CRD)
    async with world.operator():
        await world.until_called('late')
    [patch] = [request for request in world.sandbox.requests if request.method == 'PATCH' and request.name == LATE_CRD]
    assert list_watches(world)[0].time - patch.time >= 29


@pytest.mark.parametrize('before', [FOREIGN, make_placeholder(LATE_CRD)])
@in_virtual_time
async def test_nothing_waits_if_the_api_server_called_a_webhook_before(world, server, lates, before, monkeypatch):
    monkeypatch.setattr(conversion_strategies, 'SETTLING_TIME', 600)
    await world.aio.patch(CRDS, LATE_CRD, {'spec': {'conversion': before}})
    async with world.operator():
        await world.until_called('late')


@pytest.mark.parametrize('code', [400, 403, 422, 500])
@in_virtual_time
async def test_another_webhook_is_enough_if_the_api_server_refuses_the_own_one(world, server, refused, code):
    world.settings.networking.error_backoffs = []
    world.sandbox.faults.clear()
    await world.aio.patch(CRDS, LATE_CRD, {'spec': {'conversion': FOREIGN}})
    world.sandbox.faults.error(code, times=None, method='PATCH', name=LATE_CRD)
    async with world.operator():
        await world.until_called('late')


@in_virtual_time
async def test_a_kind_that_is_created_anew_waits_for_its_conversion_again(world, server, monkeypatch):
    monkeypatch.setattr(conversion_strategies, 'SETTLING_TIME', 5)
    world.declare(kopf.on.event, 'late', 'v1', 'kopflates', resource='kopf.dev')
    declare(world, resource='kopflates')
    await world.aio.create(TWO_VERSIONS)
    async with world.operator():
        await world.until_logged("Its objects are handled when the conversion is in force.")
        await world.aio.delete(CRDS, LATE_CRD)
        await world.until_logged("cannot be served")
        await asyncio.sleep(10)
        world.sandbox.faults.error(403, times=None, method='PATCH', name=LATE_CRD)
        await world.aio.create(TWO_VERSIONS)
        await world.until_logged(f"The objects of {LATE_CRD} are not handled until then.")
        assert not list_watches(world)


@in_virtual_time
async def test_unmanaged_kinds_wait_for_the_strategy_of_another_client(world, server, refused):
    world.settings.admission.managed = None
    async with world.operator():
        await world.until_logged(f"The objects of {LATE_CRD} are not handled: spec.conversion of the CRD has no")
        await world.until_called('other')
        assert not list_watches(world)
        await world.aio.patch(CRDS, LATE_CRD, {'spec': {'conversion': FOREIGN}})
        await world.until_called('late')


@in_virtual_time
async def test_unmanaged_kinds_are_looked_at_periodically_without_the_watch_of_crds(
    world, server, refused, monkeypatch
):
    monkeypatch.setattr(conversion_strategies, 'REVIEW_INTERVAL', 0.05)
    world.settings.admission.managed = None
    world.settings.scanning.disabled = True
    async with world.operator():
        await world.until_logged("are not handled: spec.conversion of the CRD has")
        await world.aio.patch(CRDS, LATE_CRD, {'spec': {'conversion': FOREIGN}})
        await world.until_called('late')
    assert len([text for text in world.log.texts if "are not handled: " in text]) == 1


# When a conversion is lost.


async def lose_conversion(world):
    """Replace the CRD as an administrator does who applies its former file."""
    crd = await world.aio.get(CRDS, LATE_CRD)
    crd['spec']['conversion'] = {'strategy': 'None'}
    await world.aio.replace(crd)


async def create_late(world, name):
    await world.aio.create({'apiVersion': 'kopf.dev/v1', 'kind': 'KopfLate', 'metadata': {'name': name}})


@in_virtual_time
async def test_objects_are_not_handled_while_their_conversion_is_lost(world, server, monkeypatch):
    monkeypatch.setattr(conversion_strategies, 'SETTLING_TIME', 5)
    world.declare(kopf.on.event, 'late', 'v1', 'kopflates', resource='kopf.dev')
    declare(world, resource='kopflates')
    await world.aio.create(TWO_VERSIONS)
    await create_late(world, 'one')
    async with world.operator():
        await world.until_called('late', name='one')
        world.sandbox.faults.error(403, times=None, method='PATCH', name=LATE_CRD)
        await lose_conversion(world)
        await world.until_logged(f"The objects of {LATE_CRD} are not handled until then.")
        await create_late(world, 'two')
        await asyncio.sleep(10)
        assert not world.called('late', 'two')
        world.sandbox.faults.clear()
        await world.until_called('late', name='two')
    assert has_url(f'https://localhost:1/root/convert/{LATE_CRD}')(
        (await world.aio.get(CRDS, LATE_CRD))['spec']['conversion']
    )


@in_virtual_time
async def test_the_time_to_come_into_force_begins_anew_if_a_conversion_is_lost_again(world, server, monkeypatch):
    monkeypatch.setattr(conversion_strategies, 'SETTLING_TIME', 5)
    world.declare(kopf.on.event, 'late', 'v1', 'kopflates', resource='kopf.dev')
    declare(world, resource='kopflates')
    await world.aio.create(TWO_VERSIONS)
    async with world.operator():
        await world.until_logged("Its objects are handled when the conversion is in force.")
        await asyncio.sleep(4)
        await lose_conversion(world)
        await asyncio.sleep(4)
        assert not list_watches(world)
        await world.until_logged("is in force: its objects are handled from now on.")


@in_virtual_time
async def test_unmanaged_kinds_are_not_handled_while_their_conversion_is_lost(world, server):
    world.settings.admission.managed = None
    world.declare(kopf.on.event, 'late', 'v1', 'kopflates', resource='kopf.dev')
    declare(world, resource='kopflates')
    await world.aio.create(TWO_VERSIONS)
    await world.aio.patch(CRDS, LATE_CRD, {'spec': {'conversion': FOREIGN}})
    await create_late(world, 'one')
    async with world.operator():
        await world.until_called('late', name='one')
        await lose_conversion(world)
        await world.until_logged(f"The objects of {LATE_CRD} are not handled: spec.conversion of the CRD has no")
        await create_late(world, 'three')
        await asyncio.sleep(10)
        assert not world.called('late', 'three')
        await world.aio.patch(CRDS, LATE_CRD, {'spec': {'conversion': FOREIGN}})
        await world.until_called('late', name='three')


@in_virtual_time
async def test_unmanaged_kinds_are_not_handled_if_their_conversion_is_lost_again_at_once(world, server):
    world.settings.admission.managed = None
    world.declare(kopf.on.event, 'late', 'v1', 'kopflates', resource='kopf.dev')
    declare(world, resource='kopflates')
    await world.aio.create(TWO_VERSIONS)
    async with world.operator():
        await world.until_logged(f"The objects of {LATE_CRD} are not handled: spec.conversion of the CRD has no")
        await world.aio.patch(CRDS, LATE_CRD, {'spec': {'conversion': FOREIGN}})
        await asyncio.sleep(conversion_strategies.SETTLING_TIME / 2)
        await lose_conversion(world)
        await asyncio.sleep(conversion_strategies.SETTLING_TIME * 2)
        assert not list_watches(world)
        await world.aio.patch(CRDS, LATE_CRD, {'spec': {'conversion': FOREIGN}})
        await world.until_logged("is in force: its objects are handled from now on.")


# Without permissions.


async def review_again(world):
    """Declare handlers: each time, the definitions are reviewed, and the second review begins after the first one."""
    for id in ('second', 'third'):
        count = len(list_reviews(world))
        world.declare(kopf.on.event, id)
        await world.until(lambda count=count: len(list_reviews(world)) > count)


def list_reviews(world):
    return [request for request in world.sandbox.requests if LATE_CRD in str(request)]


async def test_the_permission_to_list_definitions_is_enough_to_read_them(world, server, lates, strategy):
    world.sandbox.faults.error(403, times=None, verb='get', resource=CRDS)
    async with world.operator():
        await strategy(has_url(f'https://localhost:1/root/convert/{LATE_CRD}'), LATE_CRD)
        await world.until_called('late')
    assert not any("cannot be written" in text for text in world.log.texts)


@pytest.mark.parametrize('refusal', [{'resource': CRDS}, {'method': 'PATCH', 'name': LATE_CRD}], ids=['all', 'patch'])
@in_virtual_time
async def test_an_operator_that_must_not_write_the_conversion_ends(world, server, refusal):
    world.declare(kopf.on.event, 'late', 'v1', 'kopflates', resource='kopf.dev')
    declare(world, resource='kopflates')
    await world.aio.create(TWO_VERSIONS)
    world.sandbox.faults.error(403, times=None, **refusal)
    with pytest.raises(
        ConversionRefusedError, match=rf"(?s){LATE_CRD} cannot be handled.* rule .*verbs: \[get, patch\]"
    ):
        await kopf.operator(registry=world.registry, settings=world.settings, standalone=True)
    assert any("It needs the permission {apiGroups: [apiextensions.k8s.io]" in text for text in world.log.texts)
    assert not list_watches(world)


@in_virtual_time
async def test_an_operator_does_not_end_by_a_refusal_that_is_long_ago(world, server, lates):
    world.settings.networking.error_backoffs = []
    world.sandbox.faults.error(403, method='PATCH', name=LATE_CRD)
    world.sandbox.faults.error(500, times=40, method='PATCH', name=LATE_CRD)
    async with world.operator():
        await asyncio.sleep(conversion_strategies.REFUSAL_LIMIT * 2)
        world.sandbox.faults.clear()
        await world.until_called('late')


@in_virtual_time
async def test_an_operator_does_not_end_if_nothing_waits_for_the_conversion(world, server):
    world.declare(kopf.on.event, 'late', 'v1', 'kopflates', resource='kopf.dev')
    declare(world, resource='kopflates')
    await world.aio.create(TWO_VERSIONS)
    await world.aio.patch(CRDS, LATE_CRD, {'spec': {'conversion': make_placeholder(LATE_CRD)}})
    world.sandbox.faults.error(403, times=None, method='PATCH', name=LATE_CRD)
    async with world.operator():
        await asyncio.sleep(600)
        assert list_watches(world)


@in_virtual_time
async def test_placeholders_that_nothing_replaces_are_warned_of(world, server, refused):
    world.settings.admission.managed = None
    await world.aio.patch(CRDS, LATE_CRD, {'spec': {'conversion': make_placeholder(LATE_CRD)}})
    async with world.operator():
        await world.until_logged(f"The API server cannot convert {LATE_CRD}: spec.conversion of the CRD has")
        await world.until_called('late')
        await review_again(world)
    assert len([text for text in world.log.texts if "The API server cannot convert" in text]) == 1


@in_virtual_time
async def test_unmanaged_kinds_are_handled_if_crds_cannot_be_read(world, server, lates):
    world.settings.admission.managed = None
    world.sandbox.faults.error(403, times=None, resource=CRDS)
    async with world.operator():
        await world.until_called('late')
        await review_again(world)
    warning = f"It is not known whether the API server converts {LATE_CRD}"
    assert len([text for text in world.log.texts if warning in text]) == 1


@in_virtual_time
async def test_conversions_that_cannot_be_seen_any_more_are_not_told_as_in_force(world, server, lates):
    world.settings.admission.managed = None
    async with world.operator():
        await world.until_logged(
            f"The objects of {LATE_CRD} are not handled: spec.conversion of the CRD has no webhook"
        )
        world.sandbox.faults.error(403, times=None, resource=CRDS)
        await world.until_called('late')
    assert not any("is in force" in text for text in world.log.texts)


@in_virtual_time
async def test_nothing_is_handled_before_the_required_permissions_are_reviewed(world, server):
    """Although the conversion is in force before that."""
    declare(world)
    world.declare(kopf.on.event, 'event')
    await world.create('one')
    world.settings.scanning.permissions = 'require'
    world.sandbox.faults.delay(0.5, times=None, method='POST', resource='selfsubjectaccessreviews')
    async with world.operator():
        await world.until_called('event')
    requests = world.sandbox.requests
    reviews = [request for request in requests if request.resource == 'selfsubjectaccessreviews']
    lists = [request for request in requests if request.method == 'GET' and request.resource == 'kopfexamples']
    assert lists[0].time - reviews[0].time >= 0.4


@pytest.mark.parametrize(
    'generated', [make_placeholder(CRD), make_service_strategy(CRD, service='app', namespace='default')]
)
@in_virtual_time
async def test_a_generated_strategy_is_replaced_again_and_restored_at_the_exit(world, server, strategy, generated):
    await world.aio.patch(CRDS, CRD, {'spec': {'conversion': generated}})
    declare(world, persistent=False)
    async with world.operator():
        await strategy(is_own)
        # The manifests are applied again.
        [found] = [await world.aio.get(CRDS, CRD)]
        found['spec']['conversion'] = generated
        await world.aio.replace(found)
        await strategy(is_own)
    assert await strategy(lambda conversion: not is_own(conversion)) == generated


@in_virtual_time
async def test_handlers_with_an_index_of_such_a_kind_wait_for_it(world, server, refused):
    seen = []

    @kopf.index('kopf.dev', 'v1', 'kopflates', id='index_of_lates', registry=world.registry)
    def index_of_lates(name, **_):
        return {name: 1}

    @kopf.on.event('kopfexamples', registry=world.registry)
    async def using(index_of_lates, **_):
        seen.append(list(index_of_lates))

    @kopf.on.event('configmaps', registry=world.registry)
    async def not_using(name, **_):
        world.note('map', name)

    await world.aio.create({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'three'}})
    async with world.operator():
        await world.until_called('map')
        assert not seen
        world.sandbox.faults.clear()
        await world.until(lambda: seen)
        await world.until_called('late')
    assert seen == [['one']]


@in_virtual_time
async def test_handlers_with_an_index_of_such_a_kind_wait_while_its_conversion_is_lost(world, server):
    seen = []

    @kopf.index('kopf.dev', 'v1', 'kopflates', id='index_of_lates', registry=world.registry)
    def index_of_lates(name, **_):
        return {name: 1}

    @kopf.on.event('kopfexamples', registry=world.registry)
    async def using(name, index_of_lates, **_):
        seen.append((name, list(index_of_lates)))

    declare(world, resource='kopflates')
    await world.aio.create(TWO_VERSIONS)
    await create_late(world, 'one')
    await world.create('first')
    async with world.operator():
        await asyncio.sleep(10)
        assert seen == [('first', ['one'])]
        world.sandbox.faults.error(403, times=None, method='PATCH', name=LATE_CRD)
        await lose_conversion(world)
        await world.until_logged(f"The objects of {LATE_CRD} are not handled until then.")
        await world.create('second')
        await asyncio.sleep(10)
        assert seen == [('first', ['one'])]
        world.sandbox.faults.clear()
        await asyncio.sleep(60)
    assert seen == [('first', ['one']), ('second', ['one'])]
