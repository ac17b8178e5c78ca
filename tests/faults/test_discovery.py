"""Which resources are served, while kinds come and go, groups are down, and the API itself lags behind."""

import asyncio
import types

import kinds
import pytest
from operatorworld import in_virtual_time

import kopf
from kopf._core.reactor import orchestration, resource_selection, watches


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    """Shorten the delays of clusters."""
    monkeypatch.setattr(orchestration, 'SETTLING_DELAYS', (0.05, 0.1, 0.2, 0.2))


def define(plural, group='other.dev'):
    return kinds.define(plural, plural.removesuffix('s').capitalize(), group=group)


async def create(world, plural, name='obj', group='other.dev'):
    kind = plural.removesuffix('s').capitalize()
    return await world.aio.create({'apiVersion': f'{group}/v1', 'kind': kind, 'metadata': {'name': name}})


# A discovery that lags behind.


@pytest.mark.parametrize(
    'name', [('things',), ('other.dev', 'things'), ('other.dev', 'v1', 'things')], ids=['plural', 'group', 'version']
)
@in_virtual_time
async def test_kinds_that_are_known_late_are_served(world, name):
    world.declare(kopf.on.event, 'thing', *name[1:], resource=name[0])
    world.declare(kopf.on.event, 'neighbour', resource='configmaps')
    async with world.operator():
        await world.aio.create({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'map'}})
        await world.until_called('neighbour', 1, 'map')
        world.sandbox.faults.freeze_discovery()
        await world.aio.create(define('things'))
        await create(world, 'things')
        looked = len(asked_about_things(world))
        async with asyncio.timeout(60):
            while len(asked_about_things(world)) < looked + 3:
                await asyncio.sleep(0.01)
        assert 'thing' not in world.ids
        world.sandbox.faults.freeze_discovery(False)
        await world.until_called('thing', 1, 'obj')


def asked_about_things(world):
    return [seen for seen in world.sandbox.requests if seen.resource == 'things' or seen.path == '/apis']


@in_virtual_time
async def test_kinds_that_are_gone_late_are_not_served(world):
    world.declare(kopf.on.event, 'thing', resource='things')
    world.declare(kopf.on.event, 'neighbour', resource='configmaps')
    await world.aio.create(define('things'))
    await create(world, 'things')
    async with world.operator():
        await world.until_called('thing', 1, 'obj')
        world.sandbox.faults.freeze_discovery()
        await world.aio.delete('customresourcedefinitions', 'things.other.dev')
        await asyncio.sleep(0.5)
        world.sandbox.faults.freeze_discovery(False)
        before = []
        async with asyncio.timeout(60):
            while (now := asked_about_things(world)) != before:  # it is settled when nothing is asked for a second
                before = now
                await asyncio.sleep(1)


@in_virtual_time
async def test_a_failing_discovery_is_repeated(world):
    world.declare(kopf.on.event, 'thing', resource='things')
    async with world.operator():
        world.sandbox.faults.error(500, times=3, path='^/apis$')
        await world.aio.create(define('things'))
        await create(world, 'things')
        await world.until_called('thing', 1, 'obj')
    assert world.sandbox.faults.pending() == []


async def test_an_unexpected_failure_of_the_discovery_does_not_end_the_operator(world, monkeypatch):
    world.declare(kopf.on.event, 'thing', resource='things')

    async def fail(*_):
        monkeypatch.undo()
        raise KeyError('kind')

    async with world.operator():
        monkeypatch.setattr(orchestration, 'discover', fail)
        await world.aio.create(define('things'))
        await create(world, 'things')
        await world.until_called('thing', 1, 'obj')
    assert "The resources could not be discovered; trying again." in world.log.texts


# The start, with nothing known yet.


@pytest.mark.parametrize('path', ['^/apis$', '^/api$'])
@pytest.mark.parametrize('fault', ['error', 'drop'])
@in_virtual_time
async def test_a_bad_moment_at_the_start(world, path, fault):
    world.settings.networking.error_backoffs = [0.05, 0.05]
    world.declare(kopf.on.event, 'example', resource='kopfexamples')
    world.sandbox.faults.add(fault, path=path, times=2)
    async with world.operator():
        await world.create()
        await world.until_called('example')


@in_virtual_time
async def test_no_discovery_at_the_start_ends_the_operator_with_the_cause(world):
    world.settings.networking.error_backoffs = [0.05, 0.05]
    world.declare(kopf.on.event, 'example', resource='kopfexamples')

    @kopf.on.cleanup(registry=world.registry)
    def cleanup(**_):
        world.note('cleanup', None)

    fault = world.sandbox.faults.error(503, message='no etcd', path='^/apis$', times=10)
    with pytest.raises(Exception, match='cannot be discovered: no etcd. Check that the server is up'):
        await kopf.operator(registry=world.registry, settings=world.settings, standalone=True, clusterwide=True)
    assert fault.times == 7
    assert world.ids == ['cleanup']


@in_virtual_time
async def test_no_core_group_at_the_start(world):
    world.declare(kopf.on.event, 'example', resource='kopfexamples')
    world.declare(kopf.on.event, 'map', resource='configmaps')
    world.sandbox.faults.error(503, path='^/api$', times=3)
    async with world.operator():
        await world.create()
        await world.until_called('example')
        await world.aio.create({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'map'}})
        await world.until_called('map')
    assert any("These API groups cannot be discovered now" in text and "''" in text for text in world.log.texts)


@in_virtual_time
async def test_what_is_no_discovery_takes_nothing_away(world):
    world.declare(kopf.on.event, 'example', resource='kopfexamples')
    async with world.operator():
        await world.create('one')
        await world.until_called('example', 1, 'one')
        before = count_streams(world)
        fault = world.sandbox.faults.error(200, times=2, path='^/apis$')  # as of a proxy that means well
        await world.aio.create(define('things'))
        await world.until_logged('could not be discovered; trying again')
        async with asyncio.timeout(60):
            while fault.times:
                await asyncio.sleep(0.02)
        await world.create('two')
        await world.until_called('example', 1, 'two')
        assert count_streams(world) == before


def count_streams(world):
    return sum(seen.verb == 'watch' and seen.resource == 'kopfexamples' for seen in world.sandbox.requests)


# Kinds that are missing for a moment: of one API server of several, for example.


@pytest.fixture
def missing(monkeypatch):
    """Return the plural names that are missing in what is discovered, with the counter of all discoveries."""
    missing = types.SimpleNamespace(plurals=set(), count=0)
    discover = orchestration.discover

    async def discover_less(*args):
        discovery = await discover(*args)
        missing.count += 1
        return discovery._replace(
            resources=frozenset(resource for resource in discovery.resources if resource.plural not in missing.plurals)
        )

    monkeypatch.setattr(orchestration, 'discover', discover_less)
    return missing


@pytest.fixture
def daemon(world):
    def declare(resource):
        @kopf.daemon(resource, registry=world.registry)
        async def daemon(stopped, name, **_):
            world.note('daemon', name)
            await stopped.wait()
            world.note('stopped', name)

    return declare


async def discovered(missing, times):
    count = missing.count
    async with asyncio.timeout(20):
        while missing.count < count + times:
            await asyncio.sleep(0.01)


@in_virtual_time
async def test_a_kind_whose_crd_is_established_is_served_though_it_is_not_discovered(world, missing, daemon):
    daemon('things')
    world.declare(kopf.on.event, 'thing', resource='things')
    await world.aio.create(define('things'))
    async with world.operator():
        await create(world, 'things')
        await world.until_called('daemon')
        missing.plurals = {'things'}
        await world.aio.create(define('widgets', 'third.dev'))  # the kinds are looked for again
        await world.until_logged("These resources are missing in the discovery now")
        await discovered(missing, 3)
        await create(world, 'things', 'other')
        await world.until_called('thing', 1, 'other')
        missing.plurals = set()
        await discovered(missing, 1)
        assert 'stopped' not in world.ids
        await world.aio.delete('customresourcedefinitions', 'things.other.dev')
        await world.until_called('stopped', 2)
    assert len(world.called('daemon')) == 2


@in_virtual_time
async def test_a_kind_without_a_crd_is_gone_when_it_is_missing_for_long(world, missing, daemon, monkeypatch):
    monkeypatch.setattr(resource_selection, 'CONFIRMATION_TIME', 60)
    daemon('configmaps')
    async with world.operator():
        await world.aio.create({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'map'}})
        await world.until_called('daemon', 1, 'map')
        missing.plurals = {'configmaps'}
        await world.aio.create(define('widgets', 'third.dev'))  # the kinds are looked for again
        await world.until_logged("These resources are missing in the discovery now")
        assert 'stopped' not in world.ids
        missing.plurals = set()
        await discovered(missing, 1)
        assert 'stopped' not in world.ids
        monkeypatch.setattr(resource_selection, 'CONFIRMATION_TIME', 0.2)
        missing.plurals = {'configmaps'}
        await world.aio.create(define('gadgets', 'third.dev'))
        await world.until_called('stopped', 1, 'map')


# Groups that are down.


@in_virtual_time
async def test_others_are_served_while_a_group_is_down(world):
    world.declare(kopf.on.event, 'by plural', resource='kopfexamples')
    world.declare(kopf.on.event, 'by group', 'kopfexamples', resource='kopf.dev')
    world.declare(kopf.on.event, 'core', resource='configmaps')
    world.declare(kopf.on.event, 'down', 'things', resource='other.dev')
    await world.aio.create(define('things'))
    await create(world, 'things')
    world.sandbox.faults.take_down('other.dev')
    async with world.operator():
        await world.create()
        await world.aio.create({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'map'}})
        await world.until_called('by plural')
        await world.until_called('by group')
        await world.until_called('core', 1, 'map')
        assert 'down' not in world.ids
        world.sandbox.faults.bring_up('other.dev')
        await world.until_called('down')


@pytest.mark.parametrize('crds', [True, False], ids=['with CRDs', 'without CRDs'])
@pytest.mark.parametrize('name', ['things', kopf.EVERYTHING], ids=['plural', 'everything'])
@in_virtual_time
async def test_resources_of_a_group_that_was_down_at_the_start(world, name, crds):
    world.declare(kopf.on.event, 'event', resource=name)
    await world.aio.create(define('things'))
    await create(world, 'things', 'thing')
    world.sandbox.faults.take_down('other.dev')
    if not crds:  # as for kinds of aggregated APIs
        world.sandbox.faults.error(403, times=None, resource='customresourcedefinitions')
    async with world.operator():
        await asyncio.sleep(0.5)
        assert not world.called('event', 'thing')
        world.sandbox.faults.bring_up('other.dev')
        await world.until_called('event', 1, 'thing')


@in_virtual_time
async def test_without_scanning_a_group_that_was_down_at_the_start_is_looked_for_again(world):
    world.settings.scanning.disabled = True
    world.declare(kopf.on.event, 'example')
    world.sandbox.faults.take_down('kopf.dev')
    async with world.operator():
        await world.until_logged("These API groups cannot be discovered now")
        world.sandbox.faults.bring_up('kopf.dev')
        await world.create()
        await world.until_called('example')


@in_virtual_time
async def test_without_scanning_handlers_can_be_declared_later(world):
    world.settings.scanning.disabled = True
    world.declare(kopf.on.event, 'first')
    async with world.operator():
        await world.create('a')
        await world.until_called('first', 1, 'a')
        world.declare(kopf.on.event, 'second')
        await world.until_called('second', 1, 'a')


@in_virtual_time
async def test_kinds_are_noticed_although_the_group_of_their_definitions_was_down_at_the_start(world):
    world.declare(kopf.on.event, 'thing', resource='things')
    world.sandbox.faults.take_down('apiextensions.k8s.io')
    async with world.operator():
        await asyncio.sleep(5)
        world.sandbox.faults.bring_up('apiextensions.k8s.io')
        await asyncio.sleep(60)
        await world.aio.create(define('things'))
        await create(world, 'things')
        await world.until_called('thing', 1, 'obj')


@in_virtual_time
async def test_an_operator_waits_for_an_optional_peering_whose_group_is_down_at_the_start(world):
    await world.aio.apply(world.root / 'peering.yaml')
    peer = {'priority': 100, 'lifetime': 10000, 'lastseen': '2100-01-01T00:00:00Z'}
    peering = {'apiVersion': 'kopf.dev/v1', 'kind': 'ClusterKopfPeering', 'metadata': {'name': 'default'}}
    await world.aio.create(peering)
    await world.aio.patch('clusterkopfpeerings', 'default', {'status': {'boss': peer}})
    await world.aio.create({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'map'}})
    world.declare(kopf.on.event, 'map', resource='configmaps')
    world.declare(kopf.on.create, 'created', resource='configmaps')
    world.sandbox.faults.take_down('kopf.dev')
    async with world.operator(standalone=False):
        await asyncio.sleep(10)
        world.sandbox.faults.bring_up('kopf.dev')
        await asyncio.sleep(60)
        assert 'created' not in world.ids
        await world.aio.patch('clusterkopfpeerings', 'default', {'status': {'boss': None}})
        await world.until_called('created', 1, 'map')


@in_virtual_time
async def test_a_group_that_goes_down_and_comes_back(world, monkeypatch):
    monkeypatch.setattr('kopf._core.reactor.watches.MIN_BACKOFF', 0.05)
    world.declare(kopf.on.create, 'thing', resource='things')
    world.declare(kopf.on.event, 'neighbour', resource='configmaps')
    await world.aio.create(define('things'))
    async with world.operator():
        await create(world, 'things', 'before')
        await world.until_called('thing', 1, 'before')
        world.sandbox.faults.take_down('other.dev')
        world.sandbox.faults.end_watches(resource='things')
        await create(world, 'things', 'meanwhile')
        await world.aio.create(define('widgets', 'third.dev'))  # the kinds are looked for again
        await world.aio.create({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'map'}})
        await world.until_called('neighbour', 1, 'map')
        await asyncio.sleep(0.3)
        assert not world.called('thing', 'meanwhile')
        world.sandbox.faults.bring_up('other.dev')
        await world.until_called('thing', 1, 'meanwhile')
    assert len(world.called('thing', 'before')) == 1


# Ambiguous names.


@in_virtual_time
async def test_ambiguous_names_take_nothing_from_others(world):
    world.declare(kopf.on.event, 'ambiguous', resource='things')
    world.declare(kopf.on.event, 'one', 'things', resource='one.dev')
    world.declare(kopf.on.event, 'two', 'things', resource='two.dev')
    world.declare(kopf.on.event, 'neighbour', resource='kopfexamples')
    await world.aio.create(define('things', 'one.dev'))
    async with world.operator():
        await create(world, 'things', 'a', 'one.dev')
        await world.until_called('ambiguous', 1, 'a')
        await world.until_called('one', 1, 'a')
        await world.aio.create(define('things', 'two.dev'))
        await world.until_logged('Ambiguous resources will not be served')
        await create(world, 'things', 'b', 'one.dev')
        await create(world, 'things', 'c', 'two.dev')
        await world.create('d')
        await world.until_called('one', 1, 'b')
        await world.until_called('two', 1, 'c')
        await world.until_called('neighbour', 1, 'd')
        assert not world.called('ambiguous', 'b') and not world.called('ambiguous', 'c')
        await world.aio.delete('customresourcedefinitions', 'things.one.dev')
        await world.until_called('ambiguous', 1, 'c')  # there is only one of them now


# A kind that is indexed, and cannot be listed.


@in_virtual_time
async def test_an_indexed_kind_that_cannot_be_listed_stops_only_the_users_of_its_index(world, monkeypatch):
    monkeypatch.setattr(watches, 'MAX_BACKOFF', 0.5)
    seen = []

    @kopf.index('things', registry=world.registry, id='things')
    def things(name, **_):
        return name

    @kopf.on.event('configmaps', registry=world.registry, id='user')
    async def use(name, things, **_):
        seen.append(sorted(things.get(None, ())))
        world.note('user', name)

    @kopf.on.create('kopfexamples', registry=world.registry, id='other')
    async def handle(name, **_):  # reading the kwargs would be a use of all indices
        world.note('other', name)

    async with world.operator():
        await world.create('before')
        await world.handled('before')
        world.sandbox.faults.error(500, times=None, resource='things', user_agent='kopf/')
        await world.aio.apply(define('things'))
        await create(world, 'things')
        await world.until_logged("The watch-stream for things.v1.other.dev")
        await world.aio.create({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'map'}})
        await world.create('after')
        await world.handled('after')
        assert not world.called('user', 'map')
        world.sandbox.faults.clear()
        await world.until_called('user', 1, 'map')
    assert seen[-1] == ['obj']
