"""What handlers of changes, daemons and timers apply as children: one request each, without memory."""

import pytest

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
        ({**CHILD, 'kind': 'Unknown'}, {}, "the cluster has no kind Unknown in v1"),
        ({**CHILD, 'apiVersion': 'x.y/v1'}, {}, "the cluster has no kind ConfigMap in x.y/v1"),
        ({**CHILD, 'metadata': {'name': 'x', 'namespace': 'other'}}, {}, "not in the namespace of its owner"),
        ({**CHILD, 'data': {'x': {}}}, {}, "cannot be applied"),
        (CHILD, {'replace': True}, "only for level-triggered handlers"),
    ],
    ids=['kind', 'group', 'namespace', 'invalid', 'replace'],
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
