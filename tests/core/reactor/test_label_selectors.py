"""Label selectors of decorators: of the whole watch if all handlers have the same, of each handler otherwise."""

import asyncio

import pytest
from operatorworld import in_virtual_time

import kopf


def get_selectors(world):
    """Return the label selectors that the operator has listed and watched the objects with."""
    return {
        seen.query.get('labelSelector')
        for seen in world.sandbox.requests
        if seen.resource == 'kopfexamples' and seen.verb in ('list', 'watch')
    }


def get_names(world, id):
    return [call.name for call in world.calls if call.id == id]


@in_virtual_time
async def test_the_server_selects_the_objects_if_all_handlers_agree(world):
    world.declare(kopf.on.create, 'create', label_selector='app=x,!hidden')
    world.declare(kopf.on.event, 'event', label_selector='!hidden, app in (x)')
    async with world.operator():
        await world.create('y', labels={'app': 'y'})
        await world.create('x', labels={'app': 'x'})
        await world.handled('x')
        await world.edit('x', metadata={'labels': {'hidden': 'yes'}})
        # It is gone from what the server selects.
        await world.until(lambda: 'DELETED' in {call['type'] for call in world.called('event')})
    assert get_selectors(world) == {'app=x,!hidden'}
    assert get_names(world, 'create') == ['x'] and set(get_names(world, 'event')) == {'x'}
    assert not [text for text in world.log.texts if 'label_selector' in text]


@in_virtual_time
async def test_an_object_that_is_back_while_a_handler_runs_was_gone_for_the_handlers_and_daemons(world):
    gate, lingering = asyncio.Event(), asyncio.Event()

    async def hold(**_):
        await gate.wait()

    async def daemon(stopped, **_):
        await stopped.wait()
        await lingering.wait()

    world.declare(kopf.on.event, 'event', label_selector='app=x', does=hold)
    world.declare(kopf.daemon, 'daemon', label_selector='app=x', does=daemon)
    async with world.operator():
        gate.set()
        await world.create(labels={'app': 'x'})
        await world.until_called('daemon')
        gate.clear()
        await world.edit(field='held')
        await world.until(lambda: world.calls[-1].id == 'event' and world.calls[-1].kwargs['spec'] == {'field': 'held'})
        await world.edit(metadata={'labels': {'app': 'y'}})
        await world.edit(metadata={'labels': {'app': 'x'}})
        await world.edit(field='other')
        await world.create('fence', labels={'app': 'x'})
        await world.until_called('event', name='fence')  # so, all these events have been received
        gate.set()
        await world.until(lambda: world.called('event', 'obj')[-1]['spec'] == {'field': 'other'})
        lingering.set()
        await world.until_called('daemon', times=2, name='obj')
    types = [call['type'] for call in world.called('event', 'obj')]
    assert types.count('DELETED') == 1


@in_virtual_time
async def test_the_selector_is_added_to_that_of_the_settings(world):
    world.settings.watching.label_selectors['kopfexamples'] = 'tier=gold'
    world.declare(kopf.on.create, 'create', label_selector='app=x')
    async with world.operator():
        await world.create('silver', labels={'app': 'x', 'tier': 'silver'})
        await world.create('y', labels={'app': 'y', 'tier': 'gold'})
        await world.create('x', labels={'app': 'x', 'tier': 'gold'})
        await world.handled('x')
    assert get_selectors(world) == {'tier=gold,app=x'}
    assert get_names(world, 'create') == ['x']


@pytest.mark.parametrize('other', [None, 'app=y'])
@in_virtual_time
async def test_each_handler_has_its_own_objects_if_the_selectors_differ(world, other):
    async def daemon(stopped, **_):
        await stopped.wait()
        world.note('stopped', 'x')

    world.declare(kopf.on.create, 'create', label_selector='app=x')
    world.declare(kopf.on.event, 'event', label_selector='app=x')
    world.declare(kopf.index, 'index', label_selector='app=x')
    world.declare(kopf.daemon, 'daemon', label_selector='app=x', does=daemon)
    world.declare(kopf.on.event, 'other', label_selector=other)
    async with world.operator():
        await world.create('y', labels={'app': 'y'})
        await world.until_called('other', name='y')
        await world.create('x', labels={'app': 'x'})
        await world.until_called('daemon')
        await world.handled('x')
        await world.edit('x', metadata={'labels': {'app': 'y'}})
        await world.until_called('stopped')
    assert get_selectors(world) == {None}
    assert {name for id in ('create', 'event', 'index', 'daemon') for name in get_names(world, id)} == {'x'}
    [text] = [text for text in world.log.texts if 'label_selector' in text]
    assert text.startswith("The handlers of {kopfexamples.v1.kopf.dev} do not have the same label_selector=")


@pytest.mark.parametrize('setting', [None, 'app=x'])
@in_virtual_time
async def test_watched_resources_are_selected_by_the_settings(world, setting):
    def find_users(name, **_):
        world.note('users', name)
        return [('default', 'config')]

    async def reconcile(**_):
        world.note('reconciled', 'config')

    if setting:
        world.settings.watching.label_selectors['kopfexamples'] = setting
    world.declare(kopf.index, 'index', label_selector='app=x')
    world.declare(kopf.on.reconcile, 'fn', resource='configmaps', watches={'kopfexamples': find_users}, does=reconcile)
    await world.aio.create({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'config'}})
    async with world.operator():
        await world.until_called('reconciled')
        await world.create('y', labels={'app': 'y'})
        await world.create('x', labels={'app': 'x'})
        await world.until_called('users', name='x')
        await world.until_called('reconciled', times=2)
    assert get_selectors(world) == {setting}
    assert set(get_names(world, 'users')) == ({'x'} if setting else {'x', 'y'})
    texts = [text for text in world.log.texts if 'label_selector' in text]
    assert len(texts) == (0 if setting else 1)
    assert all("set settings.watching.label_selectors['kopfexamples'] instead." in text for text in texts)


@in_virtual_time
async def test_a_handler_that_is_declared_later_can_widen_the_selection(world):
    world.declare(kopf.on.event, 'first', label_selector='app=x')
    async with world.operator():
        await world.create('y', labels={'app': 'y'})
        await world.create('x', labels={'app': 'x'})
        await world.until_called('first')
        world.declare(kopf.on.event, 'second')
        await world.until_called('second', name='y')
        await world.edit('y', field='fence')
        await world.until_called('second', name='y', times=2)
    assert get_selectors(world) == {'app=x', None}
    assert set(get_names(world, 'first')) == {'x'}


@in_virtual_time
async def test_deletions_in_a_gap_are_seen_by_handlers_with_a_selector(world):
    world.declare(kopf.on.event, 'event', label_selector='app=x')
    async with world.operator():
        await world.create('x', labels={'app': 'x'})
        await world.until_called('event')
        async with world.gap():
            await world.delete('x')
        await world.until(lambda: 'DELETED' in {call['type'] for call in world.called('event')})


@pytest.mark.parametrize(
    'decorator',
    [
        kopf.on.event,
        kopf.on.create,
        kopf.on.update,
        kopf.on.delete,
        kopf.on.resume,
        kopf.index,
        kopf.daemon,
        kopf.timer,
        lambda resource, **options: kopf.on.field(resource, field='spec', **options),
    ],
)
def test_wrong_selectors_are_refused(decorator):
    registry = kopf.OperatorRegistry()
    decorator('kopfexamples', registry=registry, label_selector=None)
    for wrong in 'a b', '', 'a=b,':
        with pytest.raises(ValueError, match='label_selector='):
            decorator('kopfexamples', registry=registry, label_selector=wrong)(lambda: None)
    with pytest.raises(TypeError, match="For a mapping, use labels="):
        decorator('kopfexamples', registry=registry, label_selector={'a': 'b'})(lambda: None)


@pytest.mark.parametrize('decorator', [kopf.on.validate, kopf.on.mutate, kopf.on.convert])
def test_objects_that_are_not_watched_have_no_selectors(decorator):
    with pytest.raises(TypeError, match="unexpected keyword argument 'label_selector'"):
        decorator('kopfexamples', registry=kopf.OperatorRegistry(), label_selector='a=b')
