"""Logins that lead to another cluster: its objects are seen, and those of the former one are gone."""

import pytest
from kinds import define
from offlineserver import OfflineServer

import kopf
from kopf._core.engines import conversion_strategies
from kopf._core.reactor import orchestration
from kopf.testing import Sandbox

PEERING = {'apiVersion': 'kopf.dev/v1', 'kind': 'KopfPeering', 'metadata': {'name': 'default'}}
WAYS = {'election': {'leader_election': True}, 'shards': {'shards': 'auto'}}
BOSS = {'boss': {'priority': 100, 'lifetime': 60, 'lastseen': '2100-01-01T00:00:00+00:00'}}


@pytest.fixture(autouse=True)
def settling(monkeypatch):
    """Shorten the delays of the discovery."""
    monkeypatch.setattr(orchestration, 'SETTLING_DELAYS', (0.05, 0.1, 0.1))


@pytest.fixture
async def other(world):
    """Yield another cluster with the same kind."""
    async with Sandbox(crds=[world.root / 'examples' / 'crd.yaml']) as other:
        yield other


@pytest.fixture
def switch(world, other, monkeypatch):
    """Return a function that lets the next login lead to the other cluster, and causes this login."""

    async def switch():
        monkeypatch.setenv('KUBECONFIG', str(other.kubeconfig))
        world.sandbox.faults.expire_tokens()
        await touch(world)

    return switch


async def touch(world):
    """Let the operator make a request to the first cluster, for a new object."""
    await world.create('touch')


async def grow(cluster):
    """Let the versions of the cluster be higher than those of the other one."""
    for number in range(60):
        await cluster.create({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': f'map{number}'}})


def forbid_definitions(world, other):
    """Let the operator not watch the definitions of kinds, so that only another discovery can notice their changes."""
    for sandbox in [world.sandbox, other]:
        sandbox.faults.error(403, times=None, resource='customresourcedefinitions')


def make_object(name, kind='KopfExample', **metadata):
    return {'apiVersion': 'kopf.dev/v1', 'kind': kind, 'metadata': {'name': name, **metadata}}


def declare_daemon(world, resource='kopfexamples'):
    """Declare a daemon that notes when it is stopped."""

    @kopf.daemon(resource, registry=world.registry, id='daemon')
    async def daemon(name, stopped, **_):
        world.note('begun', name)
        await stopped.wait()
        world.note('ended', name)


def get_lists(sandbox):
    """Return the requests of operators for lists of the kind, streamed ones included."""
    return [
        seen
        for seen in sandbox.requests
        if seen.resource == 'kopfexamples'
        and (seen.verb == 'list' or 'sendInitialEvents' in seen.query)
        and seen.user_agent.startswith('kopf/')
    ]


@pytest.mark.parametrize('streamed', [True, False], ids=['streamed', 'chunked'])
async def test_objects_with_lower_versions_are_seen_and_the_former_ones_are_gone(world, other, switch, streamed):
    world.settings.watching.streaming_lists = streamed
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.update, 'update')
    declare_daemon(world)
    await other.create(make_object('lower'))
    await grow(world.aio)
    await world.create('former')
    async with world.operator(namespaces=['default']):
        await world.until_called('begun', name='former')
        await switch()
        await world.until_called('create', name='lower')
        await world.until_called('ended', name='former')
        await other.wait_for('kopfexamples', 'lower', lambda body: 'annotations' in body['metadata'])
        await other.patch('kopfexamples', 'lower', {'spec': {'field': 'later'}})
        await world.until_called('update', name='lower')


async def test_indices_have_only_the_objects_of_the_current_cluster(world, other, switch):
    names = []
    world.declare(kopf.on.create, 'create')

    @kopf.index('kopfexamples', registry=world.registry, id='index')
    def index(name, **_):
        return {name: 1}

    @kopf.on.event('kopfexamples', registry=world.registry)
    def note(index, **_):
        names.append(set(index))
        world.wake()

    await world.create('former')
    await grow(other)
    await other.create(make_object('later'))
    async with world.operator(clusterwide=True):
        await world.until(lambda: {'former'} in names)
        await switch()
        await world.until(lambda: names[-1] == {'later'})


async def test_kinds_are_those_of_the_current_cluster(world, other, switch):
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.create, 'late', resource='kopflates')
    declare_daemon(world, resource='kopfearlies')
    await world.aio.create(define('kopfearlies', 'KopfEarly', group='kopf.dev'))
    await world.aio.create(make_object('early', kind='KopfEarly'))
    await other.create(define('kopflates', 'KopfLate', group='kopf.dev'))
    await other.create(make_object('late', kind='KopfLate'))
    async with world.operator(clusterwide=True):
        await world.until_called('begun', name='early')
        await switch()
        await world.until_called('late', name='late')
        await world.until_called('ended', name='early')


async def test_kinds_are_discovered_without_the_permission_to_watch_their_definitions(world, other, switch):
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.create, 'late', resource='kopflates')
    forbid_definitions(world, other)
    await other.create(define('kopflates', 'KopfLate', group='kopf.dev'))
    await other.create(make_object('late', kind='KopfLate'))
    async with world.operator(clusterwide=True):
        await switch()
        await world.until_called('late', name='late')


async def test_namespaces_are_those_of_the_current_cluster(world, other, switch):
    world.declare(kopf.on.create, 'create')
    declare_daemon(world)
    for cluster, namespaces in [(world.aio, ['app-both', 'app-early']), (other, ['app-both', 'app-late'])]:
        for name in namespaces:
            await cluster.create({'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': name}})
    for namespace in ['app-both', 'app-early']:
        await world.create(f'{namespace}-1', namespace=namespace)
    for namespace in ['app-both', 'app-late']:
        await other.create(make_object(f'{namespace}-2', namespace=namespace))
    async with world.operator(namespaces=['default', 'app-*']):
        await world.until_called('begun', name='app-both-1')
        await world.until_called('begun', name='app-early-1')
        await switch()
        for name in ['app-both-2', 'app-late-2']:
            await world.until_called('create', name=name)
        for name in ['app-both-1', 'app-early-1']:
            await world.until_called('ended', name=name)


async def test_patterns_of_namespaces_and_a_peering_are_those_of_the_current_cluster(world, other, switch):
    world.declare(kopf.on.create, 'create')
    for cluster in world.aio, other:
        await cluster.apply(world.root / 'peering.yaml')
        await cluster.create({'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': 'app-1'}})
        for namespace in ['default', 'app-1']:
            await cluster.create({**PEERING, 'metadata': {'name': 'default', 'namespace': namespace}})
    await other.create(make_object('theirs', namespace='app-1'))
    async with world.operator(namespaces=['default', 'app-*'], standalone=False, identity='me'):
        await world.create('ours')
        await world.handled('ours')
        await switch()
        await world.until_called('create', name='theirs')


async def test_the_peering_of_the_current_cluster_is_obeyed(world, other, switch):
    world.declare(kopf.on.create, 'create')
    await other.apply(world.root / 'peering.yaml')
    await other.create({**PEERING, 'status': BOSS})
    forbid_definitions(world, other)
    async with world.operator(namespaces=['default'], standalone=False, identity='me'):
        await switch()
        await world.until_logged("Pausing operations")


async def test_no_work_begins_in_the_other_cluster_before_its_peering_is_read(world, other, switch):
    world.declare(kopf.on.create, 'create')
    for cluster in world.aio, other:
        await cluster.apply(world.root / 'peering.yaml')
    await world.aio.create(PEERING)
    await other.create({**PEERING, 'status': BOSS})
    await other.create(make_object('theirs'))
    other.faults.delay(1, method='GET', resource='kopfpeerings')
    async with world.operator(namespaces=['default'], standalone=False, identity='me'):
        await world.create('ours')
        await world.handled('ours')
        await switch()
        await world.until_logged("Pausing operations")
        await other.wait_for('kopfpeerings', 'default', lambda body: 'me' in body['status'])
        await other.patch('kopfpeerings', 'default', {'status': {'boss': None}})
        assert not world.called('create', name='theirs')
        await world.until_called('create', name='theirs')


@pytest.mark.parametrize('way', ['election', 'shards'])
async def test_no_work_begins_in_the_other_cluster_before_its_leases_permit_it(world, other, switch, way):
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.daemon, 'daemon')
    world.settings.leadership.namespace = world.settings.sharding.namespace = 'default'
    name = 'kopf-operator' if way == 'election' else 'kopf-operator-shards'
    spec = {'holderIdentity': 'rival', 'leaseDurationSeconds': 30, 'renewTime': '2030-01-01T00:00:00.000000Z'}
    lease = {'apiVersion': 'coordination.k8s.io/v1', 'kind': 'Lease', 'metadata': {'name': name}, 'spec': spec}
    await other.create(lease)
    await other.create(make_object('theirs'))
    async with world.operator(namespaces=['default'], **WAYS[way]):
        await world.create('ours')
        await world.handled('ours')
        await switch()
        await world.until_logged("a login has led to another cluster. The work of this replica is cancelled")
        await world.until_logged("All work of this replica has ended")
        await world.until_logged("is held by 'rival'")
        await other.patch('leases', name, {'spec': {'holderIdentity': None}})
        assert not world.called('create', name='theirs') and not world.called('daemon', name='theirs')
        await world.until_called('create', name='theirs')


@pytest.mark.parametrize('way', ['election', 'shards'])
async def test_leases_show_that_another_address_leads_to_the_same_cluster(world, way):
    hosts = iter(['127.0.0.1', 'localhost'])
    world.registry.activities._handlers.clear()

    @kopf.on.login(registry=world.registry)
    def login(**_):
        return kopf.ConnectionInfo(
            server=world.sandbox.url.replace('127.0.0.1', next(hosts)),
            ca_data=world.sandbox.ca,
            token=world.sandbox.issue_token('me', ['system:masters']),
        )

    @kopf.on.create('kopfexamples', registry=world.registry)
    async def create(name, **_):
        world.note('create', name)
        world.sandbox.faults.expire_tokens()  # its success is stored with the next credentials

    world.declare(kopf.on.update, 'update')
    world.settings.leadership.namespace = world.settings.sharding.namespace = 'default'
    async with world.operator(namespaces=['default'], **WAYS[way]):
        await world.create('obj')
        await world.handled('obj')
        await world.edit('obj', field='edited')
        await world.until_called('update', name='obj')
    assert len(world.called('create')) == 1
    assert len(get_lists(world.sandbox)) == 1
    assert not any("The work of this replica is cancelled" in text for text in world.log.texts)


async def test_objects_wait_for_the_conversion_of_the_other_cluster(world, other, switch, monkeypatch):
    monkeypatch.setattr(conversion_strategies, 'SETTLING_TIME', 0.1)
    world.settings.admission.server = OfflineServer()
    world.settings.admission.managed = 'test.kopf.dev'
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.create, 'part', resource='parts.v1.example.dev')

    @kopf.on.convert('parts', registry=world.registry)
    async def convert(**_):
        pass

    crd = define('parts', 'Part')
    [version] = crd['spec']['versions']
    crd['spec']['versions'].append({**version, 'name': 'v2', 'storage': False})
    part = {'apiVersion': 'example.dev/v1', 'kind': 'Part'}
    for cluster, name in [(world.aio, 'ours'), (other, 'theirs')]:
        await cluster.create(crd)
        await cluster.create({**part, 'metadata': {'name': name}})
    other.faults.delay(0.5, times=None, resource='customresourcedefinitions')
    async with world.operator(namespaces=['default']):
        await world.until_called('part', name='ours')
        await switch()
        await world.until_called('part', name='theirs')
    requests = [(seen.method, seen.resource) for seen in other.requests if seen.user_agent.startswith('kopf/')]
    assert requests.index(('PATCH', 'customresourcedefinitions')) < requests.index(('GET', 'parts'))


async def test_a_way_back_leads_to_another_cluster_too(world, other, switch, monkeypatch):
    world.declare(kopf.on.create, 'create')
    async with world.operator(namespaces=['default']):
        await switch()
        await other.create(make_object('there'))
        await world.until_called('create', name='there')
        await other.wait_for('kopfexamples', 'there', lambda body: 'annotations' in body['metadata'])
        await world.create('meanwhile')
        monkeypatch.setenv('KUBECONFIG', str(world.sandbox.kubeconfig))
        other.faults.expire_tokens()
        await other.create(make_object('touch-there'))
        await world.until_called('create', name='meanwhile')


async def test_several_addresses_of_a_cluster_cause_no_lists(world):
    logins = {'127.0.0.1': 0, 'localhost': 0}

    def declare_login(host, skipped):
        @kopf.on.login(registry=world.registry, id=host)
        def login(**_):
            logins[host] += 1
            if logins[host] > 1 and logins[host] % 2 == skipped:
                return None  # after the first login, only one of the addresses is known each time
            return kopf.ConnectionInfo(
                server=world.sandbox.url.replace('127.0.0.1', host),
                ca_data=world.sandbox.ca,
                token=world.sandbox.issue_token('me', ['system:masters']),
            )

    world.registry.activities._handlers.clear()
    for skipped, host in enumerate(logins):
        declare_login(host, skipped)
    world.declare(kopf.on.create, 'create')
    async with world.operator(namespaces=['default']):
        for number in range(3):
            await world.create(f'obj{number}')
            await world.handled(f'obj{number}')
            world.sandbox.faults.expire_tokens()
    assert set(logins.values()) == {3}
    assert len(get_lists(world.sandbox)) == 1
