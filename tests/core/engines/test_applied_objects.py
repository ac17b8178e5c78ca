"""What handlers of changes, daemons and timers apply as children: one request each, without memory."""

import pytest
from kinds import define
from operatorworld import in_virtual_time

import kopf

CHILD = {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'child'}, 'data': {'key': 'value'}}


async def get_child(world):
    return await world.aio.wait_for('configmaps', 'child', lambda body: True)


async def test_coroutines_apply_children_of_their_objects(world):
    async def create(children, **_):
        body = await children.apply(CHILD)
        assert body.metadata.uid

    world.declare(kopf.on.create, 'unused')

    @kopf.on.create('kopfexamples', id='fn', registry=world.registry)
    async def fn(name, children, **_):
        await create(children)
        world.note('fn', name)

    async with world.operator():
        owner = await world.create()
        await world.until_called('fn')
        child = await get_child(world)
    assert child['metadata']['ownerReferences'] == [kopf.build_owner_reference(owner)]
    assert child['metadata']['managedFields'][0]['manager'] == 'kopf-operator'
    assert 'kopf.dev/pruned-by' not in child['metadata']['labels']
    assert 'children' not in world.called('unused')[0]


async def test_functions_in_threads_apply_children_too(world):
    @kopf.timer('kopfexamples', id='fn', interval=1000, registry=world.registry)
    def fn(name, children, **_):
        world.note('fn', name, body=children.apply(CHILD))

    async with world.operator():
        await world.create()
        child = await get_child(world)
        await world.until(lambda: world.called('fn'))
    assert world.called('fn')[0]['body'].metadata.uid == child['metadata']['uid']


async def test_a_handler_waits_until_the_child_is_ready(world):
    states = iter([False, True])

    @kopf.on.create('kopfexamples', id='fn', registry=world.registry, retries=1)
    async def fn(name, children, **_):
        try:
            await children.apply(CHILD, ready=lambda body: next(states))
        except kopf.NotReadyError as error:
            error.delay = 0.01
            raise
        world.note('fn', name)

    async with world.operator():
        await world.create()
        await world.until_logged("waits: configmaps.v1 default/child is not ready yet")
        await world.until_called('fn')


@pytest.mark.parametrize(
    ('obj', 'options', 'message'),
    [
        ({**CHILD, 'metadata': {'name': 'x', 'namespace': 'other'}}, {}, "not in the namespace of its owner"),
        ({**CHILD, 'data': {'x': {}}}, {}, "cannot be applied"),
        (CHILD, {'replace': True}, "only for level-triggered handlers"),
    ],
    ids=['namespace', 'invalid', 'replace'],
)
async def test_wrong_objects_are_told_once(world, obj, options, message):
    @kopf.on.create('kopfexamples', id='fn', registry=world.registry)
    async def fn(name, children, **_):
        world.note('fn', name)
        await children.apply(obj, **options)

    async with world.operator():
        await world.create()
        await world.until_logged(message)
    assert len(world.calls) == 1


NOTE = {'apiVersion': 'example.dev/v1', 'kind': 'Note', 'metadata': {'name': 'child'}}


@pytest.mark.parametrize('obj', [NOTE, {**NOTE, 'apiVersion': 'v1'}], ids=['group', 'kind'])
@in_virtual_time
async def test_a_missing_kind_is_waited_for(world, obj):
    """The CRD can be created a little later than the owner."""

    @kopf.on.create('kopfexamples', id='fn', registry=world.registry)
    async def fn(name, children, retry, **_):
        await children.apply(NOTE if retry == 2 else obj)
        world.note('fn', name)

    async with world.operator():
        await world.create()
        await world.until_logged(f"the cluster has no kind Note in {obj['apiVersion']}")
        await world.aio.create(define('notes', 'Note'))
        await world.aio.wait_for('notes', 'child', lambda body: True, timeout=100)
        await world.until_called('fn')


@in_virtual_time
async def test_a_kind_that_is_gone_is_looked_up_again(world):
    await world.aio.create(define('notes', 'Note'))

    @kopf.timer('kopfexamples', id='fn', interval=10, registry=world.registry)
    async def fn(name, children, **_):
        await children.apply(NOTE)
        world.note('fn', name)

    async with world.operator():
        await world.create()
        await world.until_called('fn')
        await world.aio.delete('customresourcedefinitions', 'notes.example.dev')
        await world.until_logged("is not applied, as the API does not serve notes.v1.example.dev any more")
        await world.aio.create(define('papers', 'Note'))
        await world.aio.wait_for('papers', 'child', lambda body: True, timeout=100)


async def test_an_index_of_this_name_wins(world):
    @kopf.index('kopfexamples', id='children', registry=world.registry)
    def index(name, **_):
        return {name: 'indexed'}

    @kopf.on.create('kopfexamples', id='fn', registry=world.registry)
    async def fn(name, children, **_):
        world.note('fn', name, children=dict(children))

    async with world.operator():
        await world.create()
        await world.until_called('fn')
    assert 'obj' in world.called('fn')[0]['children']
