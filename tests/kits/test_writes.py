"""Objects written from handlers: `kopf.apply` and `kopf.seen`, while the streams of the watches bring nothing."""

import asyncio
import types

import pytest
from operatorworld import new_world

import kopf
from kopf._cogs.clients.api import client_var
from kopf._core.reactor.orchestration import write_through_var


@pytest.fixture
def world():
    with new_world() as world:
        yield world


def configmap(name='child', value='1', **metadata):
    return {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name, **metadata}, 'data': {'value': value}}


def declare_index(world):
    @kopf.index('configmaps', registry=world.registry, id='values')
    async def values(name, body, **_):
        await asyncio.sleep(0)
        return {name: body['data'].get('value')}


def read(index, name='child'):
    return list(index.get(name, []))


async def run(world, body, *, decorator=kopf.on.create):
    """Run an operator with a handler until it has succeeded, while the stream of config maps is frozen."""
    outcomes = []

    @decorator('kopfexamples', registry=world.registry, id='fn', when=lambda name, **_: name == 'obj')
    async def fn(**kwargs):
        world.sandbox.faults.freeze_watches(resource='configmaps')
        try:
            outcomes.append(await body(**kwargs))
        except Exception as error:
            outcomes.append(error)
        world.changed.set()

    async with world.operator(namespaces=['default']):
        await world.create()
        await world.until(lambda: outcomes)
        world.sandbox.faults.clear()
        await world.handled() if decorator is kopf.on.create else None
    if isinstance(outcomes[0], Exception):
        raise outcomes[0]
    return outcomes[0]


async def test_indices_have_what_was_applied(world):
    declare_index(world)
    world.settings.applying.operator = 'tester'

    async def work(values, **_):
        first = await kopf.apply(configmap())
        seen = read(values)
        second = await kopf.apply(configmap(value='2'))
        return first, seen, second, read(values)

    first, seen, second, seen_again = await run(world, work)
    assert (seen, seen_again) == (['1'], ['2'])
    assert first['metadata']['namespace'] == 'default'  # that of the object being handled
    assert second['metadata']['uid'] == first['metadata']['uid']
    [entry] = second['metadata']['managedFields']
    assert (entry['manager'], entry['operation']) == ('kopf-tester/apply', 'Apply')


async def test_sync_handlers_apply_objects_without_await(world):
    declare_index(world)
    found = []

    @kopf.on.create('kopfexamples', registry=world.registry, id='fn')
    def fn(values, **_):
        world.sandbox.faults.freeze_watches(resource='configmaps')
        raw = kopf.apply(configmap(), field_manager='me')
        found.append((raw['metadata']['managedFields'][0]['manager'], read(values)))
        kopf.seen({**raw, 'data': {'value': '5'}})  # the same version is no news
        found.append(read(values))

    async with world.operator():
        await world.create()
        await world.handled()
        world.sandbox.faults.clear()
    assert found == [('me', ['1']), ['1']]


async def test_what_other_clients_have_written_is_seen(world):
    declare_index(world)

    async def work(values, **_):
        raw = await world.aio.create(configmap(namespace='default'))
        before = read(values)
        await kopf.seen(raw)
        created = read(values)
        raw = await world.aio.patch('configmaps', 'child', {'data': {'value': '2'}})
        await kopf.seen(raw)
        await kopf.seen({**raw, 'data': {'value': 'never'}, 'metadata': {**raw['metadata'], 'resourceVersion': '1'}})
        changed = read(values)
        await world.aio.delete('configmaps', 'child')
        await kopf.seen(raw, deleted=True)
        return before, created, changed, read(values)

    assert await run(world, work) == ([], ['1'], ['2'], [])


async def test_an_object_that_is_only_marked_for_deletion_stays(world):
    declare_index(world)

    async def work(values, **_):
        raw = await kopf.apply(configmap(finalizers=['example.com/x']))
        await kopf.seen(raw, deleted=True)
        return read(values)

    assert await run(world, work) == ['1']


async def test_level_triggered_handlers_are_called_for_what_is_seen(world):
    def users_of(namespace, **_):
        return [(namespace, 'obj')]

    world.declare(kopf.on.reconcile, 'level', watches={'configmaps': users_of})

    async def work(**_):
        await world.until_called('level')
        count = len(world.called('level'))
        await kopf.apply(configmap())
        await world.until_called('level', count + 1)
        return count

    count = await run(world, work, decorator=kopf.on.daemon)
    reasons = [kwargs['reasons'] for kwargs in world.called('level', 'obj')]
    assert reasons[count] == {'watched'}
    assert len(reasons) == count + 1  # the echo has called nothing


async def test_an_edit_of_another_client_before_a_seen_state_calls_level_triggered_handlers(world):
    world.declare(kopf.on.reconcile, 'level', watches={'configmaps': lambda namespace, **_: [(namespace, 'obj')]})

    async def work(**_):
        await world.until_called('level')
        await kopf.apply(configmap())
        await world.aio.patch('configmaps', 'child', {'data': {'other': 'x'}})
        await kopf.apply(configmap(value='2'))
        world.note('applied', 'obj')

    await run(world, work, decorator=kopf.on.daemon)
    ids = world.ids
    assert 'level' in ids[ids.index('applied') :]


async def test_other_kinds_are_applied_without_being_watched(world):
    async def work(**_):
        labels = {'labels': {'a': 'b'}}
        namespace = {'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': 'other', **labels}}
        await kopf.apply(namespace)
        deployment = {
            'apiVersion': 'apps/v1',
            'kind': 'Deployment',
            'metadata': {'name': 'web'},
            'spec': {
                'selector': {'matchLabels': {'a': 'b'}},
                'template': {'metadata': labels, 'spec': {'containers': [{'name': 'c', 'image': 'i'}]}},
            },
        }
        raw = await kopf.apply(deployment, namespace='other')
        await kopf.seen(raw)
        return raw

    raw = await run(world, work)
    assert raw['metadata']['namespace'] == 'other'


async def test_a_dry_run_changes_nothing(world):
    declare_index(world)

    async def work(values, **_):
        raw = await kopf.apply(configmap(), dry_run=True)
        return raw['data'], read(values)

    assert await run(world, work) == ({'value': '1'}, [])
    assert await world.aio.list('configmaps', namespace='default') == []


async def test_fields_of_other_managers_are_taken_only_by_force(world):
    async def work(**_):
        await kopf.apply(configmap(), field_manager='one')
        with pytest.raises(kopf.ApplyConflictError, match="'one' owns data.value"):
            await kopf.apply(configmap(value='2'), field_manager='two')
        raw = await kopf.apply(configmap(value='2'), field_manager='two', force=True)
        return raw['data']

    assert await run(world, work) == {'value': '2'}


async def test_startup_handlers_apply_objects_before_anything_is_watched(world):
    declare_index(world)

    @kopf.on.startup(registry=world.registry)
    async def start(**_):
        await kopf.apply(configmap(), namespace='default')
        with pytest.raises(kopf.PermanentError, match='inside of a running operator'):
            kopf.seen(configmap())

    async with world.operator():
        pass
    assert (await world.aio.get('configmaps', 'child'))['data'] == {'value': '1'}


CLUSTER_SCOPED = {'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': 'x', 'namespace': 'ns'}}


@pytest.mark.parametrize(
    'obj, options, message',
    [
        (None, {}, 'takes an object as a dict, not NoneType'),
        ({}, {}, 'apiVersion must be a non-empty string, not None'),
        ({'apiVersion': 'v1', 'kind': 5}, {}, 'kind must be a non-empty string, not 5'),
        (
            {**configmap(), 'metadata': None},
            {},
            'metadata.name must be a non-empty string, not None, in the ConfigMap. It cannot be generated: make it',
        ),
        ({**configmap(), 'metadata': ['x']}, {}, 'metadata must be a dict'),
        ({**configmap(), 'data': {1, 2}}, {}, 'only values that JSON can express: set'),
        (CLUSTER_SCOPED, {}, "'x' is cluster-scoped, so it cannot be in the namespace 'ns'"),
        (configmap(namespace='a'), {'namespace': 'b'}, "has metadata.namespace 'a', but namespace= is 'b'"),
    ],
)
async def test_what_cannot_be_applied_is_explained(world, obj, options, message):
    async def work(**_):
        await kopf.apply(obj, **options)

    with pytest.raises(kopf.PermanentError, match=message):
        await run(world, work)


async def test_an_object_without_a_namespace_is_not_applied_into_any(world):
    @kopf.on.startup(registry=world.registry)
    async def start(**_):
        with pytest.raises(kopf.PermanentError, match="'child' needs a namespace"):
            await kopf.apply(configmap())
        world.note('refused', '')

    async with world.operator():
        pass
    assert world.ids == ['refused']


async def test_a_kind_that_the_cluster_does_not_have_is_waited_for(world):
    async def work(**_):
        await kopf.apply({'apiVersion': 'example.com/v1', 'kind': 'Nope', 'metadata': {'name': 'x'}})

    with pytest.raises(kopf.TemporaryError, match="no kind 'Nope' in example.com/v1"):
        await run(world, work)


async def test_nothing_is_written_outside_of_operators():
    with pytest.raises(kopf.PermanentError, match='kopf.apply.. works only inside of a running operator'):
        await kopf.apply(configmap())
    with pytest.raises(kopf.PermanentError, match='kopf.seen.. works only inside of a running operator'):
        kopf.seen(configmap())


def test_a_thread_that_has_outlived_its_operator_is_told_so():
    loop = asyncio.new_event_loop()
    loop.close()
    write_through = types.SimpleNamespace(loop=loop, settings=kopf.OperatorSettings())
    values = {client_var: types.SimpleNamespace(), write_through_var: write_through}
    tokens = [(var, var.set(value)) for var, value in values.items()]
    try:
        with pytest.raises(kopf.PermanentError, match='a thread whose operator has ended'):
            kopf.apply(configmap())
    finally:
        for var, token in tokens:
            var.reset(token)


def make_pykube_object():
    pykube = pytest.importorskip('pykube')
    return pykube.ConfigMap(None, configmap())


def make_kr8s_object():
    objects = pytest.importorskip('kr8s.objects')
    return objects.ConfigMap(configmap(namespace='default'), api=object())


def make_model(library):
    client = pytest.importorskip(f'{library}.client')
    metadata = client.V1ObjectMeta(name='child')
    return client.V1ConfigMap(api_version='v1', kind='ConfigMap', metadata=metadata, data={'value': '1'})


def make_lightkube_object():
    pytest.importorskip('lightkube')
    from lightkube.models.meta_v1 import ObjectMeta
    from lightkube.resources.core_v1 import ConfigMap

    return ConfigMap(apiVersion='v1', kind='ConfigMap', metadata=ObjectMeta(name='child'), data={'value': '1'})


@pytest.mark.parametrize(
    'make',
    [
        make_pykube_object,
        make_kr8s_object,
        lambda: make_model('kubernetes'),
        lambda: make_model('kubernetes_asyncio'),
        make_lightkube_object,
        lambda: kopf.Body(configmap()),
    ],
)
async def test_objects_of_all_libraries_are_applied(world, make):
    obj = make()

    async def work(**_):
        return await kopf.apply(obj)

    assert (await run(world, work))['data'] == {'value': '1'}
