import dataclasses

import pytest

from kopf._cogs.clients import discovery, errors
from kopf._cogs.structs.references import Resource

VERBS = ['list', 'watch', 'patch']


def aggregated(*groups):
    return {
        'kind': 'APIGroupDiscoveryList',
        'apiVersion': 'apidiscovery.k8s.io/v2',
        'items': [
            {'metadata': {'name': name} if name else {}, 'versions': list(versions)} for name, *versions in groups
        ],
    }


def version(name, *resources, freshness='Current'):
    return {'version': name, 'freshness': freshness, 'resources': list(resources)}


def resource(plural, kind, **kwargs):
    return {
        'resource': plural,
        'responseKind': {'group': '', 'version': '', 'kind': kind},
        'scope': 'Namespaced',
        'singularResource': kind.lower(),
        'verbs': VERBS,
        **kwargs,
    }


PODS = resource(
    'pods',
    'Pod',
    shortNames=['po'],
    categories=['all'],
    subresources=[{'subresource': 'status', 'responseKind': {'kind': 'Pod'}, 'verbs': ['get']}, {'subresource': 'log'}],
)
NODES = resource('nodes', 'Node', scope='Cluster')
POD = Resource(
    '',
    'v1',
    'pods',
    kind='Pod',
    singular='pod',
    shortcuts=frozenset({'po'}),
    categories=frozenset({'all'}),
    subresources=frozenset({'status', 'log'}),
    namespaced=True,
    preferred=True,
    verbs=frozenset(VERBS),
)
NODE = Resource(
    '', 'v1', 'nodes', kind='Node', singular='node', namespaced=False, preferred=True, verbs=frozenset(VERBS)
)


def serve_legacy(server):
    server.add('GET', '/api', {'kind': 'APIVersions', 'versions': ['v1']})
    server.add(
        'GET',
        '/api/v1',
        {
            'kind': 'APIResourceList',
            'resources': [
                {
                    'name': 'pods',
                    'singularName': 'pod',
                    'namespaced': True,
                    'kind': 'Pod',
                    'verbs': VERBS,
                    'shortNames': ['po'],
                    'categories': ['all'],
                },
                {'name': 'pods/status', 'singularName': '', 'namespaced': True, 'kind': 'Pod', 'verbs': ['get']},
                {'name': 'pods/log', 'singularName': '', 'namespaced': True, 'kind': 'Pod', 'verbs': ['get']},
                {'name': 'nodes', 'singularName': '', 'namespaced': False, 'kind': 'Node', 'verbs': VERBS},
            ],
        },
    )
    server.add(
        'GET',
        '/apis',
        {
            'kind': 'APIGroupList',
            'groups': [
                {
                    'name': name,
                    'versions': [{'version': ver} for ver in versions],
                    'preferredVersion': {'version': preferred},
                }
                for name, versions, preferred in [('kopf.dev', ['v1beta1', 'v1'], 'v1'), ('down.dev', ['v1'], 'v1')]
            ],
        },
    )
    for ver in ['v1', 'v1beta1']:
        server.add(
            'GET',
            f'/apis/kopf.dev/{ver}',
            {
                'resources': [
                    {
                        'name': 'kopfexamples',
                        'singularName': 'kex',
                        'namespaced': True,
                        'kind': 'KopfExample',
                        'verbs': VERBS,
                    },
                ]
            },
        )


async def test_aggregated_discovery_in_two_requests(client, server):
    server.add('GET', '/api', aggregated(['', version('v1', PODS, NODES)]))
    server.add('GET', '/apis', aggregated(['apps', version('v1', resource('deployments', 'Deployment'))]))
    found = await discovery.discover(client)
    assert found.failed_groups == frozenset()
    assert {res.plural: res.group for res in found.resources} == {'pods': '', 'nodes': '', 'deployments': 'apps'}
    by_name = {res.plural: res for res in found.resources}
    assert dataclasses.asdict(by_name['pods']) == dataclasses.asdict(POD)
    assert dataclasses.asdict(by_name['nodes']) == dataclasses.asdict(NODE)
    assert sorted(seen.path for seen in server.seen) == ['/api', '/apis']
    assert all('as=APIGroupDiscoveryList' in seen.headers['Accept'] for seen in server.seen)


async def test_preferred_is_the_first_version_that_has_the_resource(client, server):
    server.add('GET', '/api', aggregated())
    new, old = resource('news', 'New'), resource('olds', 'Old')
    server.add('GET', '/apis', aggregated(['x.dev', version('v2', new), version('v1', new, old)]))
    found = await discovery.discover(client)
    assert {(res.plural, res.version, res.preferred) for res in found.resources} == {
        ('news', 'v2', True),
        ('news', 'v1', False),
        ('olds', 'v1', True),
    }


async def test_stale_groups_are_used_if_their_resources_are_known(client, server):
    server.add('GET', '/api', aggregated(['', version('v1', PODS)]))
    server.add(
        'GET',
        '/apis',
        aggregated(
            ['remembered.dev', version('v1', resource('olds', 'Old'), freshness='Stale')],
            ['unknown.dev', version('v1', freshness='Stale')],
            ['empty.dev', version('v1')],
        ),
    )
    found = await discovery.discover(client)
    assert {res.plural for res in found.resources} == {'pods', 'olds'}
    assert found.failed_groups == {'unknown.dev'}


async def test_resources_of_which_only_subresources_exist(client, server):
    server.add('GET', '/api', aggregated())
    server.add(
        'GET',
        '/apis',
        aggregated(
            [
                'x.dev',
                version(
                    'v1', {'resource': 'xs', 'responseKind': {'kind': ''}, 'subresources': [{'subresource': 'status'}]}
                ),
            ]
        ),
    )
    assert await discovery.discover(client) == discovery.Discovery(frozenset(), frozenset())


async def test_resources_are_discovered_on_servers_without_aggregation(client, server):
    serve_legacy(server)
    found = await discovery.discover(client)
    by_name = {(res.plural, res.version): res for res in found.resources}
    assert set(by_name) == {('pods', 'v1'), ('nodes', 'v1'), ('kopfexamples', 'v1'), ('kopfexamples', 'v1beta1')}
    assert dataclasses.asdict(by_name['pods', 'v1']) == dataclasses.asdict(POD)
    assert dataclasses.asdict(by_name['nodes', 'v1']) == dataclasses.asdict(NODE)
    assert by_name['kopfexamples', 'v1'].preferred
    assert not by_name['kopfexamples', 'v1beta1'].preferred
    assert found.failed_groups == frozenset()  # 404 is not a failure


@pytest.mark.parametrize(
    'groups, expected',
    [
        ({'kopf.dev'}, {'/apis', '/apis/kopf.dev/v1', '/apis/kopf.dev/v1beta1'}),
        ({''}, {'/api', '/apis', '/api/v1'}),
        (set(), {'/apis'}),
    ],
)
async def test_legacy_discovery_of_some_groups(client, server, groups, expected):
    serve_legacy(server)
    await discovery.discover(client, groups)
    assert {seen.path for seen in server.seen} == expected


async def test_legacy_discovery_with_a_group_that_is_down(client, server, sleeps):
    serve_legacy(server)
    server.add('GET', '/apis/down.dev/v1', 503)
    found = await discovery.discover(client)
    assert found.failed_groups == {'down.dev'}
    assert len(found.resources) == 4
    assert sleeps == []


async def test_resources_of_other_groups_are_left_out(client, server):
    serve_legacy(server)
    server.add('GET', '/x', {})
    found = await discovery.discover(client, {''})
    assert {res.plural for res in found.resources} == {'pods', 'nodes'}


@pytest.fixture
def broken(server):
    """Serve a discovery with something else at one path."""

    def broken(path, answer):
        server.add('GET', '/api', aggregated(['', version('v1', PODS)]))
        server.add('GET', '/apis', aggregated(['apps', version('v1', resource('deployments', 'Deployment'))]))
        server._handlers.pop(('GET', path), None)
        server.add('GET', path, answer)

    return broken


@pytest.mark.parametrize('path', ['/api', '/apis'])
async def test_failed_discovery_names_the_missing_permissions(client, broken, path):
    broken(path, 403)
    with pytest.raises(errors.APIForbiddenError):
        await discovery.discover(client)
    with pytest.raises(discovery.DiscoveryError, match="cannot be discovered.* Bind the cluster role"):
        with discovery.explaining_discovery_errors():
            await discovery.discover(client)


@pytest.mark.parametrize('answer', [503, {'kind': 'Status', 'status': 'Failure'}, [], '<html>', {}])
async def test_the_core_group_is_down(client, broken, answer, sleeps):
    broken('/api', answer)
    found = await discovery.discover(client)
    assert found.failed_groups == {''}
    assert {res.plural for res in found.resources} == {'deployments'}


@pytest.mark.parametrize('answer', [503, {'kind': 'Status', 'status': 'Failure'}, [], '<html>', {}])
async def test_no_discovery_is_not_taken_for_an_empty_one(client, broken, answer, sleeps):
    broken('/apis', answer)
    with pytest.raises(discovery.DiscoveryError, match="Check that the server is up"):
        with discovery.explaining_discovery_errors():
            await discovery.discover(client)


@pytest.mark.parametrize(
    'answer',
    [
        '<html>',
        [],
        {'kind': 'Status'},
        {'resources': [{}]},
        {'resources': ['x']},
        {'resources': [{'name': 'x', 'kind': 5}]},
    ],
)
async def test_one_legacy_group_makes_no_sense(client, server, answer):
    serve_legacy(server)
    server.add('GET', '/apis/down.dev/v1', answer)
    found = await discovery.discover(client)
    assert found.failed_groups == {'down.dev'}
    assert len(found.resources) == 4


@pytest.mark.parametrize(
    'nonsense',
    [
        {},
        {'version': 'v1', 'resources': [{}, 'x']},
        'x',
        {'version': 'v1', 'resources': [{'responseKind': {'kind': 'X'}, 'verbs': ['list']}]},
    ],
)
async def test_one_aggregated_group_makes_no_sense(client, broken, nonsense):
    broken('/apis', aggregated(['bad.dev', nonsense], ['apps', version('v1', resource('deployments', 'Deployment'))]))
    found = await discovery.discover(client)
    assert {res.plural for res in found.resources} == {'pods', 'deployments'}
    assert found.failed_groups == {'bad.dev'}


@pytest.mark.parametrize(
    'nonsense',
    [
        {'kind': 'APIGroupList', 'groups': [{'versions': []}]},
        {'kind': 'APIGroupList', 'groups': [None]},
        {'kind': 'APIGroupList', 'groups': [{'name': 'kopf.dev', 'versions': [{}]}]},
        {'kind': 'APIGroupDiscoveryList', 'items': [None]},
        {'kind': 'APIGroupDiscoveryList', 'items': [{'metadata': 'kopf.dev'}]},
    ],
)
async def test_a_malformed_list_of_groups_is_an_error_of_the_api(client, server, nonsense):
    server.add('GET', '/apis', nonsense)
    with pytest.raises(errors.APIServerError, match='malformed'):
        await discovery.discover(client, ['kopf.dev'])
