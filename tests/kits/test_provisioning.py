"""The CRDs of operators: `kopf.ensure_crds` in their handlers, on an API."""

import asyncio
import copy
import json
import pathlib

import pytest
import yaml
from offlineserver import OfflineServer
from operatorworld import in_virtual_time, new_world, running_operator

import kopf
from kopf.testing import Sandbox

FILE = pathlib.Path(__file__).resolve().parents[2] / 'examples' / 'crd.yaml'
NAME = 'kopfexamples.kopf.dev'


def make_crd(plural='widgets'):
    kind = plural.removesuffix('s').capitalize()
    return {
        'apiVersion': 'apiextensions.k8s.io/v1',
        'kind': 'CustomResourceDefinition',
        'metadata': {'name': f'{plural}.example.com', 'creationTimestamp': None},
        'spec': {
            'group': 'example.com',
            'scope': 'Namespaced',
            'names': {'plural': plural, 'kind': kind},
            'versions': [
                {
                    'name': 'v1',
                    'served': True,
                    'storage': True,
                    'schema': {
                        'openAPIV3Schema': {
                            'type': 'object',
                            'properties': {
                                'spec': {
                                    'type': 'object',
                                    'nullable': False,
                                    'properties': {'size': {'type': 'integer'}},
                                }
                            },
                        }
                    },
                }
            ],
        },
    }


@pytest.fixture
def sandbox(request, monkeypatch):
    with Sandbox(**getattr(request, 'param', {})) as sandbox:
        monkeypatch.setenv('KUBECONFIG', str(sandbox.kubeconfig))
        yield sandbox


@pytest.fixture
def world():
    with new_world(virtual_time=True) as world:
        yield world


@pytest.fixture
def registry():
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(logger, settings):
        return kopf.login_with_kubeconfig(logger=logger, settings=settings)

    return registry


def running(registry):
    return running_operator(registry=registry, clusterwide=True, standalone=True)


async def ensure(registry, *sources, **options):
    """Run an operator with these CRDs until it serves."""

    @kopf.on.startup(registry=registry, id='ensure')
    async def start():
        await kopf.ensure_crds(*sources, **options)

    async with running(registry):
        pass


def get_writes(sandbox):
    return [
        request
        for request in sandbox.requests
        if request.method != 'GET' and 'customresourcedefinitions' in request.path
    ]


async def test_the_resource_is_served_at_once(sandbox, registry):
    seen = asyncio.Event()

    @kopf.on.startup(registry=registry)
    async def start():
        await kopf.ensure_crds(FILE)
        await sandbox.aio.create({'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample', 'metadata': {'name': 'x'}})

    @kopf.on.create('kopfexamples', registry=registry)
    async def created():
        seen.set()

    async with running(registry):
        await asyncio.wait_for(seen.wait(), 30)


@pytest.mark.parametrize(
    'source',
    [
        FILE,
        str(FILE),
        FILE.read_text(),
        [[FILE]],
        lambda path: path,
        make_crd(),
        {'kind': 'List', 'items': [make_crd()]},
        json.dumps(make_crd()),
    ],
    ids=['path', 'str', 'text', 'nested', 'directory', 'dict', 'list', 'json'],
)
async def test_sources_can_be_of_all_kinds(sandbox, registry, source, tmp_path):
    (tmp_path / 'crd.yml').write_text(f'---\n{FILE.read_text()}\n---\n')
    (tmp_path / 'README.txt').write_text('no CRD')
    await ensure(registry, source(tmp_path) if callable(source) else source)
    names = {crd['metadata']['name'] for crd in sandbox.list('customresourcedefinitions')}
    assert names & {NAME, 'widgets.example.com'}


async def test_texts_are_read_as_by_kubectl(sandbox, registry):
    crd = make_crd()
    words = {'at': '12:30', 'day': '2020-01-01', 'limit': '1e3', 'flag': 'n'}
    fields = {name: {'x-kubernetes-preserve-unknown-fields': True, 'default': f'the {name}'} for name in words}
    crd['spec']['versions'][0]['schema']['openAPIV3Schema']['properties']['spec']['properties'] = fields
    text = yaml.safe_dump(crd)
    for name, word in words.items():
        text = text.replace(f'the {name}', word)
    await ensure(registry, text)
    live = sandbox.get('customresourcedefinitions', 'widgets.example.com')
    stored = live['spec']['versions'][0]['schema']['openAPIV3Schema']['properties']['spec']['properties']
    defaults = {name: schema['default'] for name, schema in stored.items()}
    assert defaults == {'at': '12:30', 'day': '2020-01-01', 'limit': 1000, 'flag': False}


async def test_nothing_is_written_if_nothing_differs(sandbox, registry):
    sources = [FILE, make_crd(), [make_crd()]]
    await ensure(registry, *sources)
    begun, before = len(get_writes(sandbox)), sandbox.list('customresourcedefinitions')
    await ensure(registry, *sources)
    assert begun == 2 and len(get_writes(sandbox)) == begun
    assert sandbox.list('customresourcedefinitions') == before


async def test_what_differs_is_updated(sandbox, registry):
    old, new = make_crd(), make_crd()
    old['spec']['names']['shortNames'] = ['w']
    old['metadata']['labels'] = {'a': '1', 'b': '1'}
    new['metadata']['labels'] = {'a': '2'}
    new['spec']['versions'].append({**copy.deepcopy(new['spec']['versions'][0]), 'name': 'v2', 'storage': False})
    new['spec']['versions'][0]['schema']['openAPIV3Schema']['properties']['spec']['properties'] = {
        'length': {'type': 'integer', 'default': 0}
    }
    sandbox.create(old)
    strategy = {
        'strategy': 'Webhook',
        'webhook': {'conversionReviewVersions': ['v1'], 'clientConfig': {'url': 'https://localhost/convert'}},
    }
    sandbox.patch('customresourcedefinitions', 'widgets.example.com', {'spec': {'conversion': strategy}})
    await ensure(registry, new)
    live = sandbox.get('customresourcedefinitions', 'widgets.example.com')
    assert [version['name'] for version in live['spec']['versions']] == ['v1', 'v2']
    schema = live['spec']['versions'][0]['schema']['openAPIV3Schema']
    assert schema['properties']['spec']['properties'] == {'length': {'type': 'integer', 'default': 0}}
    assert 'shortNames' not in live['spec']['names']
    assert live['metadata']['labels'] == {'a': '2', 'b': '1'}
    assert live['spec']['conversion'] == strategy  # it is the operator's own
    writes = len(get_writes(sandbox))
    await ensure(registry, new)
    assert len(get_writes(sandbox)) == writes


async def test_a_definition_that_is_being_deleted_is_waited_for(sandbox, registry):
    crd = make_crd()
    sandbox.create(crd)
    sandbox.create(
        {'apiVersion': 'example.com/v1', 'kind': 'Widget', 'metadata': {'name': 'x', 'finalizers': ['example.com/x']}}
    )
    sandbox.delete('customresourcedefinitions', 'widgets.example.com')
    uid = sandbox.get('customresourcedefinitions', 'widgets.example.com')['metadata']['uid']

    path, begun = '/customresourcedefinitions/widgets.example.com', len(sandbox.requests)

    @kopf.on.startup(registry=registry)
    async def start():
        async with asyncio.TaskGroup() as group:
            group.create_task(ensure_it())
            while not (seen := [request for request in sandbox.requests[begun:] if request.path.endswith(path)]):
                await asyncio.sleep(0.01)
            assert [request.method for request in seen] == ['GET']
            await sandbox.aio.patch('widgets', 'x', {'metadata': {'finalizers': None}}, namespace='default')

    async def ensure_it():
        await kopf.ensure_crds(crd)

    async with running(registry):
        assert sandbox.get('customresourcedefinitions', 'widgets.example.com')['metadata']['uid'] != uid


def define_widgets(world, crd, **options):
    """Let the operator bring the CRD, and finish the deletions of its objects."""
    kopf.on.delete('widgets.example.com', id='delete', registry=world.registry)(lambda **_: None)

    @kopf.on.startup(registry=world.registry, id='ensure')
    async def start():
        await kopf.ensure_crds(crd, **options)


async def delete_while_the_operator_is_down(world, crd):
    """Delete the CRD, so that its object waits for the operator, and the CRD for the object; return its uid."""
    async with world.operator():
        await world.aio.create({'apiVersion': 'example.com/v1', 'kind': 'Widget', 'metadata': {'name': 'x'}})
        await world.aio.wait_for('widgets', 'x', lambda body: body['metadata'].get('finalizers'))
    await world.aio.delete('customresourcedefinitions', crd['metadata']['name'])
    return (await world.aio.get('customresourcedefinitions', crd['metadata']['name']))['metadata']['uid']


@pytest.mark.parametrize('timeout', [60, 3, None])
@in_virtual_time
async def test_an_operator_starts_if_the_definition_waits_for_it(world, timeout):
    crd = make_crd()
    define_widgets(world, crd, timeout=timeout)
    uid = await delete_while_the_operator_is_down(world, crd)
    async with world.operator():
        assert any("The CRD widgets.example.com is being deleted" in text for text in world.log.texts)
        await world.aio.wait_for(
            'customresourcedefinitions', crd['metadata']['name'], lambda body: body['metadata']['uid'] != uid
        )
        await world.aio.create({'apiVersion': 'example.com/v1', 'kind': 'Widget', 'metadata': {'name': 'y'}})
        await world.aio.wait_for('widgets', 'y', lambda body: body['metadata'].get('finalizers'))


@pytest.mark.parametrize('status', [503, 403])
@in_virtual_time
async def test_a_deferred_definition_is_created_in_spite_of_errors_of_the_api(world, status):
    crd = make_crd()
    define_widgets(world, crd)
    uid = await delete_while_the_operator_is_down(world, crd)
    world.sandbox.faults.error(status, method='POST', resource='customresourcedefinitions')
    async with world.operator():
        await world.until_logged("The CRD widgets.example.com is not created yet")
        await world.aio.wait_for(
            'customresourcedefinitions', crd['metadata']['name'], lambda body: body['metadata']['uid'] != uid
        )


@in_virtual_time
async def test_an_operator_ends_while_a_definition_is_still_being_deleted(world):
    crd = make_crd()
    define_widgets(world, crd)
    await world.aio.create(crd)
    await world.aio.create(
        {'apiVersion': 'example.com/v1', 'kind': 'Widget', 'metadata': {'name': 'x', 'finalizers': ['example.com/x']}}
    )
    await world.aio.delete('customresourcedefinitions', crd['metadata']['name'])
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        await world.settled()
    assert not any("left behind" in text for text in world.log.texts)


async def test_other_handlers_can_use_it(sandbox, registry):
    done = asyncio.Event()

    @kopf.on.schedule(interval=100, registry=registry)
    async def later():
        await kopf.ensure_crds(make_crd())
        done.set()

    async with running(registry):
        await asyncio.wait_for(done.wait(), 30)


@pytest.mark.parametrize(
    'source, message',
    [
        ({'apiVersion': 'v1', 'kind': 'Pod', 'metadata': {'name': 'x'}}, "It is not a CRD: Pod 'x', in a dict."),
        ('a\nb', "It is not a CRD, in a text: 'a b'"),
        ('a: [\n', "The CRDs in a text cannot be read: "),
        ('absent.yaml', "The CRDs cannot be read: .*'absent.yaml'"),
        ([], "has got no CRDs"),
        (5, "takes paths, texts, dicts, classes, and lists of them, not 5"),
        (
            {**make_crd(), 'apiVersion': 'apiextensions.k8s.io/v1beta1'},
            "The apiVersion must be apiextensions.k8s.io/v1",
        ),
        ({**make_crd(), 'spec': {'group': 'example.com'}}, "has no spec.versions"),
        (
            {**make_crd(), 'metadata': {'name': 'wrong.example.com'}},
            "The CRD wrong.example.com is refused by the API: ",
        ),
    ],
)
async def test_sources_that_make_no_sense_end_the_operator(sandbox, registry, source, message):
    with pytest.raises(Exception, match=message):
        await ensure(registry, source)


@pytest.mark.parametrize('sandbox', [{'rbac': True}], indirect=True)
async def test_the_missing_permission_is_named(sandbox, registry, monkeypatch):
    monkeypatch.setenv('KUBECONFIG', str(sandbox.kubeconfig_for('alice')))
    with pytest.raises(
        Exception,
        match=r"widgets\.example\.com cannot be applied: .*needs the permission "
        r"\{apiGroups: \[apiextensions\.k8s\.io\], .*verbs: \[get, create, patch\]\}",
    ):
        await ensure(registry, make_crd())


async def test_names_that_are_taken_are_told_of(sandbox, registry):
    sandbox.create(make_crd())
    crd = make_crd('gadgets')
    crd['spec']['names']['kind'] = 'Widget'
    with pytest.raises(Exception, match=r"The names of the CRD gadgets\.example\.com are not accepted: "):
        await ensure(registry, crd)


async def test_the_time_is_limited(sandbox, registry):
    crd = make_crd()
    sandbox.create(crd)
    sandbox.create(
        {'apiVersion': 'example.com/v1', 'kind': 'Widget', 'metadata': {'name': 'x', 'finalizers': ['example.com/x']}}
    )
    sandbox.delete('customresourcedefinitions', 'widgets.example.com')

    failure = asyncio.get_running_loop().create_future()

    @kopf.on.schedule(interval=100, registry=registry)
    async def later():
        try:
            await kopf.ensure_crds(crd, timeout=0.3)
        except TimeoutError as error:
            failure.set_result(str(error))

    async with running(registry):
        text = await asyncio.wait_for(failure, 30)
    assert text.startswith("Not all CRDs are served after 0.3 seconds. widgets.example.com: its predecessor is being")


async def test_functions_in_threads_are_told_to_be_asynchronous(sandbox, registry):
    kopf.on.startup(registry=registry)(lambda: kopf.ensure_crds(make_crd()))
    with pytest.raises(Exception, match="Declare the handler with 'async def'"):
        async with running(registry):
            pass


async def test_outside_of_operators_nothing_can_be_provisioned():
    with pytest.raises(kopf.PermanentError, match="only inside of a running operator"):
        await kopf.ensure_crds(make_crd())


async def test_a_crd_that_is_deleted_before_it_is_patched_is_created_anew(sandbox, registry):
    crd = make_crd()
    await sandbox.aio.create(crd | {'metadata': {**crd['metadata'], 'labels': {'other': 'one'}}})
    crd['metadata']['labels'] = {'wanted': 'one'}
    sandbox.faults.error(404, method='PATCH', resource='customresourcedefinitions')
    await ensure(registry, crd)
    live = await sandbox.aio.get('customresourcedefinitions', 'widgets.example.com')
    assert live['metadata']['labels']['wanted'] == 'one'


def make_versions():
    crd = make_crd()
    [version] = crd['spec']['versions']
    crd['spec']['versions'] = [version, {**version, 'name': 'v2', 'storage': False}]
    return crd


@pytest.fixture
def converting(registry):
    """Let the operator convert the kind, but leave the strategy to others."""
    kopf.on.convert('widgets', registry=registry)(lambda **_: None)

    @kopf.on.startup(registry=registry)
    async def configure(settings, **_):
        settings.admission.server = OfflineServer()

    return registry


async def test_new_versions_come_together_with_their_conversion(sandbox, converting):
    """Otherwise, the API server would drop fields until the operator has written its address."""
    sandbox.apply(make_crd())
    await ensure(converting, make_versions())
    patch, *_ = [
        request for request in get_writes(sandbox) if request.method == 'PATCH' and 'versions' in str(request.body)
    ]
    assert json.loads(patch.body)['spec']['conversion']['strategy'] == 'Webhook'


async def test_the_address_of_an_operator_is_not_replaced_by_a_placeholder(sandbox, converting):
    strategy = {
        'strategy': 'Webhook',
        'webhook': {'conversionReviewVersions': ['v1'], 'clientConfig': {'url': 'https://localhost/convert'}},
    }
    crd = make_versions()
    crd['spec']['conversion'] = strategy
    sandbox.apply(crd)
    await ensure(converting, make_versions())
    assert sandbox.get('customresourcedefinitions', 'widgets.example.com')['spec']['conversion'] == strategy
