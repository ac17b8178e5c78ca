"""The finalizer that a former version has left is removed if only observing or level-triggered handlers remain."""

import asyncio
import contextlib
import datetime
import json
import logging

import pytest
from kinds import define
from operatorworld import FINALIZER, in_virtual_time

import kopf

OTHER = 'example.com/other'
REMOVING = 'Removing the finalizer, as there are no handlers requiring it.'
DECORATORS = {'event': kopf.on.event, 'index': kopf.index, 'reconcile': kopf.on.reconcile}


def declare(world, kinds, **options):
    for kind in kinds.split():
        world.declare(DECORATORS[kind], kind, **options)


def find(world, text):
    return [line for line in world.log.texts if text in line]


def get_types(world, name='obj'):
    return [kwargs['type'] for kwargs in world.called('event', name)]


def is_by_operator(request):
    return request.method == 'PATCH' and request.content_type == 'application/json-patch+json'


async def get_finalizers(world, name='obj'):
    return (await world.get(name))['metadata'].get('finalizers')


async def until_removed(world, name='obj', **options):
    def is_removed(body):
        return FINALIZER not in (body['metadata'].get('finalizers') or ())

    return await world.aio.wait_for('kopfexamples', name, is_removed, **options)


async def put_back(world, name='obj', **options):
    metadata = {'finalizers': [FINALIZER], 'labels': {'back': 'yes'}}
    await world.aio.patch('kopfexamples', name, {'metadata': metadata}, **options)


async def join_peering(world):
    await world.aio.apply(world.root / 'peering.yaml')
    await world.aio.create({'apiVersion': 'kopf.dev/v1', 'kind': 'KopfPeering', 'metadata': {'name': 'default'}})


@contextlib.asynccontextmanager
async def peering(world):
    """Run the block with an operator of a higher priority, and end that operator after it."""
    record = {'priority': 100, 'lifetime': 600, 'lastseen': datetime.datetime.now(datetime.UTC).isoformat()}
    await world.aio.patch('kopfpeerings', 'default', {'status': {'boss': record}})
    yield
    await world.aio.patch('kopfpeerings', 'default', {'status': {'boss': None}})


async def rest(seconds=30):
    """Let happen what must not happen: there is nothing else to wait for."""
    await asyncio.sleep(seconds)


@pytest.mark.parametrize('kinds', ['event', 'index', 'event index', 'reconcile', 'event index reconcile'])
@in_virtual_time
async def test_it_is_removed_at_once(world, kinds):
    logging.getLogger().setLevel(logging.DEBUG)
    declare(world, kinds)
    await world.create(finalizers=[OTHER, FINALIZER])
    await world.create('foreign', finalizers=[OTHER])
    await world.create('none')
    for name, finalizers in ('ending', [FINALIZER]), ('held', [FINALIZER, OTHER]):
        await world.create(name, finalizers=finalizers)
        await world.delete(name)
    async with world.operator():
        await world.gone('ending')
        for name in 'obj', 'held':
            await until_removed(world, name)
        await rest()
        assert [await get_finalizers(world, name) for name in ('obj', 'held', 'foreign')] == [[OTHER]] * 3
    for name, path in ('obj', '/1'), ('held', '/0'), ('ending', ''):
        [[test, *changes]] = world.patches(name)
        assert test['op'] == 'test' and changes == [{'op': 'remove', 'path': f'/metadata/finalizers{path}'}]
    assert not world.patches('foreign') and not world.patches('none')
    assert len(find(world, REMOVING)) == 3
    if 'event' in kinds:
        assert get_types(world) == get_types(world, 'held') == [None, 'MODIFIED']
        assert get_types(world, 'ending') == [None, 'DELETED']


@pytest.mark.parametrize('kinds', ['event', 'index', 'reconcile'])
@in_virtual_time
async def test_it_is_removed_when_it_is_seen_later(world, kinds):
    declare(world, kinds)
    await world.create('known')
    async with world.operator():
        await world.until_called(kinds)
        await put_back(world, 'known')
        await until_removed(world, 'known')
        await world.create('new', finalizers=[FINALIZER])
        await until_removed(world, 'new')


@in_virtual_time
async def test_filters_do_not_matter(world):
    declare(world, 'event', labels={'a': 'b'})
    await world.create(finalizers=[FINALIZER])
    async with world.operator():
        await until_removed(world)
    assert not world.calls


@in_virtual_time
async def test_the_finalizer_of_the_settings_is_removed(world):
    world.settings.persistence.finalizer = 'example.com/own'
    declare(world, 'event')
    await world.create(finalizers=['example.com/own', FINALIZER])
    async with world.operator():
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: body['metadata']['finalizers'] == [FINALIZER])


@in_virtual_time
async def test_it_is_removed_after_the_patch_of_the_handlers(world):
    world.declare(kopf.on.event, 'event', does=lambda patch, **_: change(patch))

    async def change(patch):
        patch.spec['seen'] = True

    await world.create(finalizers=[FINALIZER, OTHER])
    async with world.operator():
        await until_removed(world)
        await rest()
    assert [type(patch) for patch in world.patches()[:2]] == [dict, list]
    assert (await world.get())['spec']['seen'] is True and await get_finalizers(world) == [OTHER]


@pytest.mark.parametrize('refused', ['a value', 'a function'])
@in_virtual_time
async def test_it_is_removed_although_the_patch_of_the_handlers_is_refused(world, refused):
    world.declare(kopf.on.event, 'event', does=lambda **kwargs: change(**kwargs))

    async def change(patch, type, **_):
        if type is not None:
            return  # the patch is not made anew for the event of the removal
        if refused == 'a value':
            patch.spec['seen'] = True
        else:
            patch.fns.append(lambda body: body['nosuch'])

    def is_of_handler(request):
        return b'seen' in request.body

    world.settings.queueing.error_delays = [10]
    world.sandbox.faults.error(422, times=None, method='PATCH', condition=is_of_handler)
    await world.create(finalizers=[FINALIZER])
    await world.create('held', finalizers=[FINALIZER, OTHER])
    await world.delete()
    async with world.operator():
        await world.gone()
        await until_removed(world, 'held')
        if refused == 'a value':
            world.sandbox.faults.clear()
            await world.aio.wait_for('kopfexamples', 'held', lambda body: body['spec'].get('seen'))


@in_virtual_time
async def test_the_patch_of_the_handlers_is_applied_if_the_finalizer_must_stay(world):
    world.declare(kopf.on.event, 'event', does=lambda patch, **_: change(patch))

    async def change(patch):
        patch.spec['seen'] = True

    def is_removal(request):
        return b'finalizers' in request.body

    world.sandbox.faults.error(403, times=None, method='PATCH', condition=is_removal)
    await world.create(finalizers=[FINALIZER])
    async with world.operator():
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: body['spec'].get('seen'))
        await world.until_logged("cannot be removed")
    assert not find(world, "Throttling")


@in_virtual_time
async def test_handlers_that_change_the_finalizers_in_place_do_not_change_what_is_removed(world):
    async def spoil(event, **_):
        event['object']['metadata']['finalizers'].pop(0)

    world.declare(kopf.on.event, 'event', does=spoil)
    await world.create(finalizers=[OTHER, FINALIZER])
    async with world.operator():
        await until_removed(world)
        assert await get_finalizers(world) == [OTHER]


@in_virtual_time
async def test_odd_finalizers_do_not_keep_events_from_their_handlers(world):
    declare(world, 'event')
    await world.create('known')
    async with world.operator():
        await world.until_called('event')
        odd = {'name': 'odd', 'uid': 'odd', 'resourceVersion': '1000000', 'finalizers': 5}
        line = {'type': 'ADDED', 'object': {'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample', 'metadata': odd}}
        world.sandbox.faults.say(json.dumps(line), resource='kopfexamples')
        await world.until_called('event', name='odd')


# What is not the operator's.


@in_virtual_time
async def test_it_is_left_on_kinds_that_handlers_only_depend_on_or_review(world):
    await world.aio.create(define('things', 'Thing'))
    declare(world, 'reconcile', resource='things', owns=['kopfexamples'], watches={'configmaps': lambda **_: None})
    world.settings.admission.server = kopf.WebhookServer(host='127.0.0.1', insecure=True)
    world.declare(kopf.on.validate, 'validate')
    await world.create(finalizers=[FINALIZER])
    await world.aio.create('configmaps', 'map', finalizers=[FINALIZER])
    await world.aio.create('things', 'thing')
    async with world.operator():
        await world.until_called('reconcile')
        await world.edit(field='x')
        await rest()
    assert not world.patches() and not world.patches('map')


@in_virtual_time
async def test_it_is_left_if_handlers_of_another_version_require_it(world):
    definition = define('things', 'Thing')
    [version] = definition['spec']['versions']
    definition['spec']['versions'].append({**version, 'name': 'v2', 'storage': False})
    await world.aio.create(definition)
    world.declare(kopf.on.event, 'event', resource='things.v1.example.dev')
    world.declare(kopf.on.delete, 'delete', resource='things.v2.example.dev')
    await world.aio.create('things', 'thing')
    async with world.operator():
        await world.aio.wait_for('things', 'thing', lambda body: body['metadata'].get('finalizers'))
        await rest()
        await world.aio.delete('things', 'thing')
        await world.until_called('delete')
        await world.aio.wait_gone('things', 'thing')
    assert len([patch for patch in world.patches('thing') if 'remove' in str(patch)]) == 1


# Other operators with the same finalizer.


@pytest.mark.parametrize('kinds', ['event', 'index', 'reconcile'])
@in_virtual_time
async def test_if_it_comes_back_it_is_left_on_all_objects(world, kinds):
    await world.aio.create({'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': 'second'}})
    declare(world, kinds)
    await world.create(finalizers=[FINALIZER])
    await world.create('same', finalizers=[FINALIZER])
    await world.create('elsewhere', namespace='second', finalizers=[FINALIZER])
    async with world.operator(namespaces=['default', 'second']):
        for name, namespace in ('obj', 'default'), ('same', 'default'), ('elsewhere', 'second'):
            await until_removed(world, name, namespace=namespace)
        await put_back(world)
        await world.until_logged("has come back")
        await put_back(world, 'same')
        await put_back(world, 'elsewhere', namespace='second')
        await world.create('new', finalizers=[FINALIZER])
        await world.edit(field='x')
        await rest()
        assert await get_finalizers(world) == await get_finalizers(world, 'new') == [FINALIZER]
    [text] = find(world, "has come back")
    assert "kopfexamples" in text and FINALIZER in text and "settings.persistence.finalizer" in text
    names = [request.name for request in world.sandbox.requests if is_by_operator(request)]
    assert sorted(names) == ['elsewhere', 'obj', 'same']
    if kinds == 'event':
        assert get_types(world) == [None, 'MODIFIED', 'MODIFIED', 'MODIFIED']


@in_virtual_time
async def test_an_operator_that_requires_it_goes_on_with_its_deletions(world):
    owner = kopf.OperatorRegistry()
    kopf.on.login(registry=owner)(kopf.login_with_kubeconfig)
    world.declare(kopf.on.delete, 'delete', registry=owner, does=[kopf.TemporaryError("later", delay=60)])
    declare(world, 'event index')
    await world.create('ending', finalizers=[FINALIZER])
    await world.delete('ending')
    await world.create(finalizers=[FINALIZER])
    async with world.operator(registry=owner):
        await world.until_called('delete')
        async with world.operator():
            await world.until_logged("has come back")
            await rest()
            assert await get_finalizers(world, 'ending') == await get_finalizers(world) == [FINALIZER]
            await world.gone('ending')
    assert len(world.called('delete')) == 2 and len(find(world, "has come back")) == 1


@pytest.mark.parametrize('kinds', ['event', 'index'])
@pytest.mark.parametrize('pausing', [False, True])
@in_virtual_time
async def test_an_older_state_is_no_sign_of_another_operator(world, kinds, pausing):
    await join_peering(world)
    declare(world, kinds)
    stale = await world.create(finalizers=[FINALIZER])
    async with world.operator(standalone=False, namespaces=['default']):
        await until_removed(world)
        if pausing:
            async with peering(world):
                await world.until_logged('Pausing operations')
                await rest()
        await rest()
        count = len(world.called(kinds))
        world.sandbox.faults.say(json.dumps({'type': 'MODIFIED', 'object': stale}), resource='kopfexamples')
        await world.until_called(kinds, count + 1)
        await rest()
    assert len(world.patches()) == 1 and not find(world, "has come back")


# Failures.


@pytest.mark.parametrize('kinds', ['event', 'index', 'reconcile'])
@in_virtual_time
async def test_without_the_permission_it_is_left_with_one_warning(world, kinds):
    for name in 'second', 'third':
        await world.aio.create({'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': name}})
    declare(world, kinds)
    await world.create(finalizers=[FINALIZER])
    await world.create('elsewhere', namespace='second', finalizers=[FINALIZER])
    for namespace in 'default', 'second':
        world.sandbox.faults.error(403, times=None, method='PATCH', namespace=namespace)
    async with world.operator(clusterwide=True):
        await world.until_called(kinds, 2)
        await rest()
        world.sandbox.faults.clear()
        await world.create('new', finalizers=[FINALIZER])
        await world.edit(field='x')
        await world.create('permitted', namespace='third', finalizers=[FINALIZER])
        await until_removed(world, 'permitted', namespace='third')
        await rest()
        assert await get_finalizers(world) == [FINALIZER]
    [text] = find(world, "cannot be removed")
    assert "kopfexamples" in text and FINALIZER in text and "Grant the verb patch" in text
    assert not find(world, "Throttling")
    patched = [request.name for request in world.sandbox.requests if is_by_operator(request)]
    assert sorted(patched) == ['elsewhere', 'obj', 'permitted']
    if kinds == 'event':
        assert get_types(world) == [None, 'MODIFIED'] and get_types(world, 'new') == ['ADDED']


@pytest.mark.parametrize('kinds', ['event', 'index', 'reconcile'])
@pytest.mark.parametrize(
    'status, message, logged',
    [
        pytest.param(500, '', 'Throttling for 0.05 seconds', id='by the server'),
        pytest.param(400, 'no way', 'The API refuses to patch the object', id='for good'),
        pytest.param(403, 'admission webhook "x" denied the request', 'The API refuses to patch', id='by a webhook'),
    ],
)
@in_virtual_time
async def test_after_other_errors_it_is_tried_again(world, kinds, status, message, logged):
    declare(world, kinds)
    await world.create(finalizers=[FINALIZER])
    await world.delete()
    world.sandbox.faults.error(status, times=3, message=message, method='PATCH')
    async with world.operator():
        await world.gone()
    assert find(world, logged) and not find(world, "cannot be removed")


@pytest.mark.parametrize('kinds', ['event', 'index'])
@in_virtual_time
async def test_if_the_object_changes_meanwhile_its_newer_state_counts(world, kinds):
    declare(world, kinds)
    await world.create(finalizers=[FINALIZER])
    edits = {'spec': {'field': 'new'}, 'metadata': {'finalizers': [OTHER, 'example.com/third', FINALIZER]}}
    world.sandbox.faults.call(lambda: world.aio.patch('kopfexamples', 'obj', edits), method='PATCH', name='obj')
    async with world.operator():
        await until_removed(world)
        assert await get_finalizers(world) == [OTHER, 'example.com/third']
        await rest()
    assert not find(world, "has come back") and not find(world, "Throttling")


@in_virtual_time
async def test_an_object_that_goes_meanwhile_is_forgotten(world):
    async def remove():
        await world.aio.patch('kopfexamples', 'obj', {'metadata': {'finalizers': None}})
        await world.delete()

    declare(world, 'event')
    await world.create(finalizers=[FINALIZER])
    world.sandbox.faults.call(remove, method='PATCH', name='obj')
    async with world.operator():
        await world.until(lambda: 'DELETED' in get_types(world))
        await world.create(finalizers=[FINALIZER])
        await until_removed(world)
    assert not find(world, "Throttling")


@pytest.mark.parametrize('kinds', ['event', 'index'])
@pytest.mark.parametrize('finalizers', [None, [OTHER]])
@in_virtual_time
async def test_another_client_can_remove_it_first(world, kinds, finalizers):
    declare(world, kinds)
    await world.create(finalizers=[FINALIZER, OTHER])
    await world.delete()
    async with world.operator():
        await world.until_called(kinds)
        await world.aio.patch('kopfexamples', 'obj', {'metadata': {'finalizers': finalizers}})
        await rest()
    assert len([patch for patch in world.patches() if isinstance(patch, list)]) == 0


# Operators that must not write now.


@pytest.mark.parametrize('kinds', ['event', 'index', 'reconcile'])
@in_virtual_time
async def test_paused_operators_leave_it_until_they_go_on(world, kinds):
    await join_peering(world)
    declare(world, kinds)
    await world.create(finalizers=[FINALIZER])
    async with contextlib.AsyncExitStack() as stack:
        async with peering(world):
            await stack.enter_async_context(world.operator(standalone=False, namespaces=['default']))
            await world.until_logged('Pausing operations')
            await world.create('new', finalizers=[FINALIZER])
            await rest()
            assert not world.patches() and not world.patches('new')
        await until_removed(world)
        await until_removed(world, 'new')


@in_virtual_time
async def test_a_pause_that_begins_during_the_handlers_leaves_it(world):
    async def wait(**_):
        await going.wait()

    going = asyncio.Event()
    await join_peering(world)
    world.declare(kopf.on.event, 'event', does=wait)
    await world.create(finalizers=[FINALIZER])
    async with world.operator(standalone=False, namespaces=['default']):
        await world.until_called('event')
        async with peering(world):
            await world.until_logged('Pausing operations')
            going.set()
            await rest()
            assert not world.patches()
        await until_removed(world)
