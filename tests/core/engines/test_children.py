"""Children of objects: what handlers apply, when it is sent to the API, and what is deleted."""

import asyncio
import datetime
import gc
import threading
import weakref

import pytest
from kinds import PARTS, define
from operatorworld import Gate, in_virtual_time

import kopf
from kopf._cogs.clients.api import client_var
from kopf._core.engines import children, contests, pruning
from kopf._core.reactor import child_release

ASSIGNED = {'creationTimestamp', 'managedFields', 'resourceVersion', 'uid'}
"""The metadata that the API server sets."""


def config_map(name='child', *, metadata=None, **data):
    return {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name, **(metadata or {})}, 'data': data}


def copy_of(child):
    """Return what users create as a copy of the child: with its labels, annotations and owners."""
    metadata = {key: value for key, value in child['metadata'].items() if key not in ASSIGNED}
    return {**child, 'metadata': {**metadata, 'name': f'{metadata["name"]}-copy'}}


class Family:
    """Handlers that apply what the test wants, and the requests of the operator for the children."""

    def __init__(self, world):
        self.world = world
        self.wanted = [config_map(key='value')]
        self.applied = []

    def declare(self, id='fn', *, owns=('configmaps',), wanted=None, apply=None, backoff=(0.05, 1), **options):
        """Declare a handler that applies the wanted objects, with these options of `apply`."""

        @kopf.on.reconcile('kopfexamples', id=id, owns=owns, backoff=backoff, registry=self.world.registry, **options)
        async def fn(name, uid, children, **kwargs):
            self.world.note(id, name, children=children, **kwargs)
            objects = self.wanted if wanted is None else wanted
            for obj in objects(name) if callable(objects) else objects:
                self.applied.append(await children.apply(obj, **(apply or {})))
            self.world.note(f'{id} succeeded', name)

    def writes(self):
        """Return the writes to children, as pairs of the method and the name."""
        return [
            (request.method, request.name)
            for request in self.world.sandbox.requests
            if request.method not in ('GET', 'POST') and 'kopfexamples' not in request.path
        ]

    def reads(self):
        """Return the requests for lists and streams of children."""
        return [each for each in self.world.sandbox.requests if each.resource == 'configmaps' and each.method == 'GET']

    async def until_written(self, *writes):
        async with asyncio.timeout(10):
            while self.writes()[-len(writes) :] != [*writes]:
                await asyncio.sleep(0.01)

    async def get(self, name='child', **options):
        return await self.world.aio.wait_for('configmaps', name, lambda body: True, **options)

    async def change(self, patch, name='child'):
        return await self.world.aio.patch('configmaps', name, patch, namespace='default')

    async def names(self):
        return sorted(
            body['metadata']['name']
            for body in await self.world.aio.list('configmaps')
            if body['metadata']['name'] != 'kube-root-ca.crt'
        )


@pytest.fixture
def family(world):
    return Family(world)


async def rest(seconds=0.3):
    """Let happen what must not happen: there is nothing else to wait for."""
    await asyncio.sleep(seconds)


@in_virtual_time
async def test_a_child_belongs_to_its_owner(world, family):
    family.declare()
    async with world.operator():
        owner = await world.create()
        await world.until_called('fn succeeded')
        child = await family.get()
    [reference] = child['metadata']['ownerReferences']
    assert reference == kopf.build_owner_reference(owner)
    assert child['metadata']['namespace'] == 'default' and child['data'] == {'key': 'value'}
    assert child['metadata']['labels']['kopf.dev/owner-uid'] == owner['metadata']['uid']
    [entry] = child['metadata']['managedFields']
    assert (entry['manager'], entry['operation']) == ('kopf-operator', 'Apply')


@in_virtual_time
async def test_the_field_manager_is_named_after_the_operator(world, family):
    world.settings.applying.operator = 'shop'
    family.declare()
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
        child = await family.get()
    assert child['metadata']['managedFields'][0]['manager'] == 'kopf-shop'


@in_virtual_time
async def test_the_own_write_is_seen_at_once_and_causes_no_run(world, family):
    seen = []

    @kopf.on.reconcile('kopfexamples', id='fn', owns=['configmaps'], registry=world.registry)
    async def fn(name, children, **_):
        world.note('fn', name)
        seen.append(len(children['configmaps']))
        body = await children.apply(config_map(key='value'))
        seen.append([child.metadata.name for child in children['configmaps']])
        assert children['configmaps']['child']['data'] == body['data'] == {'key': 'value'}
        assert 'child' in children['configmaps'] and 'other' not in children['configmaps']

    async with world.operator():
        await world.create()
        await world.until_called('fn')
        await rest()
    assert len(world.calls) == 1 and seen == [0, ['child']] and family.writes() == [('PATCH', 'child')]


@in_virtual_time
async def test_nothing_is_sent_if_nothing_has_changed(world, family):
    family.declare()
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
        for number in range(3):
            await world.edit(field=str(number))
            await world.until_called('fn succeeded', times=number + 2)
        await rest()
    assert family.writes() == [('PATCH', 'child')]
    assert [dict(body['data']) for body in family.applied] == [{'key': 'value'}] * 4


@in_virtual_time
async def test_each_child_is_applied_once_after_a_restart(world, family):
    family.declare()
    await world.create()
    for times in 1, 2:
        async with world.operator():
            await world.until_called('fn succeeded', times=times)
            await rest()
    assert family.writes() == [('PATCH', 'child')] * 2


@in_virtual_time
async def test_changed_wishes_are_sent_and_former_fields_removed(world, family):
    family.declare()
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
        family.wanted = [config_map(other='value')]
        await world.edit(field='x')
        await world.until_called('fn succeeded', times=2)
        child = await family.get()
    assert child['data'] == {'other': 'value'}


@pytest.mark.parametrize(
    'patch',
    [
        {'data': {'key': 'edited'}},
        {'data': {'key': None}},
        {'metadata': {'labels': {'kopf.dev/owner-uid': 'x'}}},
        {'data': None},
    ],
    ids=['edited', 'removed', 'label', 'emptied'],
)
@in_virtual_time
async def test_an_edited_child_is_restored_by_one_write(world, family, patch):
    family.declare()
    async with world.operator():
        owner = await world.create()
        await world.until_called('fn succeeded')
        await family.change(patch)
        await family.until_written(('PATCH', 'child'), ('PATCH', 'child'))
        await rest()
        child = await family.get()
    assert child['data'] == {'key': 'value'}
    assert child['metadata']['labels']['kopf.dev/owner-uid'] == owner['metadata']['uid']
    assert len(family.writes()) == 2


@in_virtual_time
async def test_a_deleted_child_is_restored_by_one_write(world, family):
    family.declare()
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
        await world.aio.delete('configmaps', 'child', namespace='default')
        await family.until_written(('PATCH', 'child'), ('PATCH', 'child'))
        await rest()
        child = await family.get()
    assert child['data'] == {'key': 'value'} and len(family.writes()) == 2


@pytest.mark.parametrize('is_watched', [True, False], ids=['by the stream', 'by a list'])
async def test_a_child_that_is_deleted_before_its_response_arrives_is_restored(world, family, monkeypatch, is_watched):
    responses, apply_object = [], children.apply_object

    async def apply_and_lag(*args, **kwargs):
        if not is_watched and not responses:
            # The child is written and deleted before the server answers the next list.
            world.sandbox.faults.delay(0.5, method='GET', resource='configmaps')
            world.sandbox.faults.expire_watches(resource='configmaps')
            count = len(family.reads())
            while len(family.reads()) == count:
                await asyncio.sleep(0.01)
        responses.append(raw := await apply_object(*args, **kwargs))
        if len(responses) > 1:
            return raw
        if is_watched:
            # The stream has brought the deletion when it has brought what comes after it.
            await world.aio.delete('configmaps', 'child', namespace='default')
            await world.aio.create(config_map('mark', metadata={'ownerReferences': raw['metadata']['ownerReferences']}))
            while not world.called('mark'):
                await asyncio.sleep(0.01)
        else:
            asyncio.get_running_loop().call_soon(world.sandbox.delete, 'configmaps', 'child')
        return raw

    @kopf.on.event('configmaps', field='metadata.name', value='mark', registry=world.registry)
    async def mark(name, **_):
        world.note('mark', name)

    monkeypatch.setattr(children, 'apply_object', apply_and_lag)
    family.declare()
    async with world.operator():
        await world.create()
        async with asyncio.timeout(20):
            while len(responses) < 2:
                await asyncio.sleep(0.01)
        assert (await family.get())['metadata']['uid'] == responses[1]['metadata']['uid']


@in_virtual_time
async def test_the_fields_of_others_stay_as_they_are(world, family):
    family.declare()
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
        await family.change({'data': {'theirs': 'x'}})
        await world.until_called('fn succeeded', times=2)
        await rest()
        child = await family.get()
    assert child['data'] == {'key': 'value', 'theirs': 'x'} and len(family.writes()) == 1


@in_virtual_time
async def test_an_edit_while_the_child_is_applied_causes_one_more_run(world, family):
    family.declare()
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
        family.wanted = [config_map(key='second')]
        world.sandbox.faults.delay(0.3, method='PATCH', resource='configmaps')
        await world.edit(field='x')
        await world.until_called('fn', times=2)
        await rest(0.1)
        await family.change({'data': {'theirs': 'x'}})  # before the write, and seen while it is in flight
        await world.until_called('fn', times=3)
        await rest()
    assert len(world.called('fn')) == 3 and len(family.writes()) == 2


@in_virtual_time
async def test_sync_handlers_apply_in_their_threads(world, family):
    threads = []

    @kopf.on.reconcile('kopfexamples', id='fn', owns=['configmaps'], registry=world.registry)
    def fn(name, children, **_):
        threads.append(threading.current_thread())
        body = children.apply(config_map(key='value'), ready=True)
        assert body.metadata.uid and children['configmaps'].get('child') == body
        world.note('fn', name)

    async with world.operator():
        await world.create()
        await world.until_called('fn')
        await rest()
    assert threads != [threading.main_thread()] and len(world.calls) == 1


@in_virtual_time
async def test_handlers_that_do_not_name_the_argument_have_no_children_in_memory(world):
    @kopf.on.reconcile('kopfexamples', id='fn', owns=['configmaps'], registry=world.registry)
    async def fn(name, **kwargs):
        world.note('fn', name, **kwargs)

    async with world.operator():
        await world.create()
        await world.until_called('fn')
    assert 'children' not in world.called('fn')[0]


@in_virtual_time
async def test_an_index_of_this_name_wins(world):
    @kopf.index('configmaps', id='children', registry=world.registry)
    def children(name, **_):
        return {name: 'indexed'}

    @kopf.on.reconcile('kopfexamples', id='fn', owns=['configmaps'], registry=world.registry)
    async def fn(name, children, **_):
        world.note('fn', name, children=children)

    async with world.operator():
        await world.aio.create(config_map('indexed'))
        await world.create()
        await world.until(lambda: any('indexed' in call['children'] for call in world.called('fn')))
    assert not [text for text in world.log.texts if 'has the name of an argument' in text]


@in_virtual_time
async def test_an_index_shows_an_applied_child_at_once(world):
    found = []

    @kopf.index('configmaps', id='by_name', registry=world.registry)
    async def by_name(name, body, **_):
        await asyncio.sleep(0.01)
        return {name: body['data']}

    @kopf.on.reconcile('kopfexamples', id='fn', owns=['configmaps'], registry=world.registry)
    async def fn(name, children, by_name: kopf.Index, **_):
        await children.apply(config_map(key='value'))
        found.append([*by_name.get('child', [])])
        world.note('fn', name)

    async with world.operator():
        world.sandbox.faults.freeze_watches(path='configmaps')
        await world.create()
        await world.until_called('fn')
        await rest()
    assert found == [[{'key': 'value'}]]


# Readiness.


@in_virtual_time
async def test_a_run_ends_until_the_child_is_ready(world, family):
    family.wanted = [config_map('a', x='y'), config_map('b', x='y')]
    family.declare(apply={'ready': lambda body: body['data'].get('done')}, retries=1, backoff=(60, 60))
    async with world.operator():
        await world.create()
        for name in 'a', 'b':
            await world.until_logged(f"waits: configmaps.v1 default/{name} is not ready yet.")
            assert not world.called('fn succeeded')
            await family.change({'data': {'done': 'yes'}}, name)
        await world.until_called('fn succeeded')
    assert [name for _, name in family.writes()] == ['a', 'b'] and len(world.called('fn')) == 3
    assert not [text for text in world.log.texts if 'fail' in text]


@in_virtual_time
async def test_a_run_that_waits_prunes_nothing(world, family):
    family.wanted = [config_map('a'), config_map('b')]
    family.declare()
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
    family.declare(apply={'ready': lambda body: False}, wanted=[config_map('a')])
    async with world.operator(registry=world.registry):
        await world.until_logged('waits')
        await rest()
        assert await family.names() == ['a', 'b']


# Pruning.


@in_virtual_time
async def test_children_that_are_not_applied_any_more_are_deleted(world, family):
    family.wanted = [config_map('a'), config_map('b')]
    family.declare()
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
        family.wanted = [config_map('b')]
        await world.edit(field='x')
        await family.until_written(('DELETE', 'a'))
        await rest()
        assert await family.names() == ['b']
    # Once more after the deletion, as the child was in memory during the second run.
    assert len(world.called('fn')) == 3 and len(family.writes()) == 3


@in_virtual_time
async def test_children_that_the_handler_keeps_stay_without_being_applied(world, family):
    names = ['a', 'b', 'c']

    @kopf.on.reconcile('kopfexamples', id='fn', owns=['configmaps'], registry=world.registry)
    async def fn(name, children, **_):
        for each in names:
            if each in children['configmaps']:
                children.keep(children['configmaps'][each])
            else:
                await children.apply(config_map(each))
        world.note('fn', name)

    await world.create()
    async with world.operator():
        await world.until_called('fn')
    async with world.operator():
        await world.until_called('fn', times=2)
        names.remove('b')
        await world.edit(field='x')
        await family.until_written(('DELETE', 'b'))
        await rest()
        assert await family.names() == ['a', 'c']
    assert family.writes() == [('PATCH', 'a'), ('PATCH', 'b'), ('PATCH', 'c'), ('DELETE', 'b')]


@in_virtual_time
async def test_only_what_can_be_a_child_is_kept(world):
    @kopf.on.reconcile('kopfexamples', id='fn', owns=['configmaps'], registry=world.registry)
    def fn(children, **_):
        children.keep({'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': 'x'}})

    async with world.operator():
        await world.create()
        await world.until_logged("v1 Secret 'x' is not in owns=")


@pytest.mark.parametrize('is_dropped', [False, True])
@in_virtual_time
async def test_a_refused_deletion_does_not_stop_the_pruning_of_other_children(world, family, is_dropped):
    secrets = [{'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': name}} for name in 'abc']
    family.declare(owns=['configmaps', 'secrets'], wanted=lambda name: family.wanted)
    family.wanted = [*map(config_map, 'abc'), *secrets]
    await world.create()
    async with world.operator():
        await world.until_called('fn succeeded')
    if is_dropped:
        world.replace_code()
        family.declare(owns=['configmaps'], wanted=[])
    family.wanted = []
    for path in ['configmaps/a', 'configmaps/b', 'secrets/a']:
        world.sandbox.faults.error(403, times=None, verb='delete', path=f'/api/v1/namespaces/default/{path}')
    async with world.operator():
        await world.until_logged("are not pruned")
        await rest()
        left = [body['metadata']['name'] for body in await world.aio.list('secrets')]
        assert await family.names() == ['a', 'b'] and left == ['a']
        text = next(text for text in world.log.texts if "are not pruned" in text)
        assert all(f"{key}: this error" in text for key in ['default/a', 'default/b', 'secrets.v1 default/a'])
        owner = await world.get()
        assert 'secrets' in str(owner['metadata']['annotations'])


@in_virtual_time
async def test_children_are_pruned_after_a_restart_too(world, family):
    family.wanted = [config_map('a'), config_map('b')]
    family.declare()
    await world.create()
    async with world.operator():
        await world.until_called('fn succeeded')
    family.wanted = [config_map('b')]
    async with world.operator():
        await family.until_written(('PATCH', 'b'), ('DELETE', 'a'))


@in_virtual_time
async def test_a_failed_run_prunes_nothing(world, family):
    family.wanted = [config_map('a'), config_map('b')]
    family.declare()
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
        family.wanted = [config_map('a'), {'kind': 'ConfigMap'}]
        await world.edit(field='x')
        await world.until_logged('failed permanently')
        await rest()
        assert await family.names() == ['a', 'b']


@pytest.mark.parametrize('how', ['annotation', 'option'])
@in_virtual_time
async def test_children_are_kept_if_requested(world, family, how):
    keeping = {'annotations': {'kopf.dev/keep': 'true'}} if how == 'annotation' else None
    family.wanted = [config_map('a', metadata=keeping)]
    family.declare(prune=how != 'option')
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
        family.wanted = []
        await world.edit(field='x')
        await world.until_called('fn succeeded', times=2)
        await rest()
        assert await family.names() == ['a']


@in_virtual_time
async def test_children_of_other_handlers_and_objects_are_not_pruned(world, family):
    family.declare('one', wanted=lambda name: [config_map(f'{name}-one')])
    family.declare('two', wanted=lambda name: [config_map(f'{name}-two')])
    async with world.operator():
        owner = await world.create('a')
        await world.create('b')
        foreign = config_map('foreign', metadata={'ownerReferences': [kopf.build_owner_reference(owner)]})
        await world.aio.create(foreign)
        await world.until(lambda: len(world.called('one succeeded')) >= 2 and len(world.called('two succeeded')) >= 2)
        for name in 'a', 'b':
            await world.edit(name, field='x')
        pairs = [(id, name) for id in ('one', 'two') for name in ('a', 'b')]
        await world.until(lambda: all(world.called(*pair)[-1]['spec']['field'] == 'x' for pair in pairs))
        await rest()
        assert await family.names() == ['a-one', 'a-two', 'b-one', 'b-two', 'foreign']


@pytest.mark.parametrize('is_dropped', [False, True])
@in_virtual_time
async def test_copies_of_children_that_the_operator_has_not_applied_are_not_pruned(world, family, is_dropped):
    secret = {'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': 'child'}}
    family.declare(owns=['configmaps', 'secrets'], wanted=lambda name: family.wanted)
    family.wanted = [config_map(), secret]
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
    for plural in 'configmaps', 'secrets':
        await world.aio.create(copy_of(await world.aio.get(plural, 'child')))
    if is_dropped:
        world.replace_code()
        family.declare(owns=['configmaps'], wanted=[])
    family.wanted = []
    async with world.operator():
        for plural in 'configmaps', 'secrets':
            await world.aio.wait_gone(plural, 'child')
        await rest()
    assert await family.names() == ['child-copy']
    assert [body['metadata']['name'] for body in await world.aio.list('secrets')] == ['child-copy']


@in_virtual_time
async def test_copies_of_remote_children_are_not_deleted_with_the_owner(world, family):
    await make_namespace(world)
    family.declare(wanted=[config_map('remote', metadata={'namespace': 'other'})])
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
        await world.aio.create(copy_of(await family.get('remote', namespace='other')))
        await rest()
        await world.delete()
        await world.gone()
        await world.aio.wait_gone('configmaps', 'remote', namespace='other')
        assert await family.get('remote-copy', namespace='other')


@in_virtual_time
async def test_children_of_a_renamed_handler_are_pruned_when_all_handlers_have_succeeded(world, family):
    family.declare('former', wanted=[config_map('a'), config_map('b')])
    await world.create()
    async with world.operator():
        await world.until_called('former succeeded')
    world.replace_code()
    family.declare('first', wanted=[])
    family.declare('second', wanted=[config_map('b')])
    async with world.operator():
        await world.until_logged("default/a is deleted, as it is not applied any more")
        await rest()
        assert await family.names() == ['b']


@in_virtual_time
async def test_a_child_that_others_change_at_the_same_time_is_not_deleted_unseen(world, family):
    family.declare()
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
        family.wanted = []
        world.sandbox.faults.delay(0.3, method='DELETE', resource='configmaps')
        await world.edit(field='x')
        await world.until_called('fn succeeded', times=2)
        await rest(0.1)
        await family.change({'metadata': {'annotations': {'kopf.dev/keep': 'true'}}})
        await world.until_called('fn succeeded', times=3)
        await rest()
        assert await family.names() == ['child']


# Wrong use.


@pytest.mark.parametrize(
    ('obj', 'message'),
    [
        ({'apiVersion': 'v1', 'kind': 'ConfigMap'}, "metadata.name must be a non-empty string"),
        ({'apiVersion': 'v1', 'metadata': {'name': 'x'}}, "kind must be a non-empty string"),
        ({'kind': 'ConfigMap', 'metadata': {'name': 'x'}}, "apiVersion must be a non-empty string"),
        ({'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': 'x'}}, "v1 Secret 'x' is not in owns="),
        ([], "takes an object as a dict, not list"),
        (config_map(key={1}), "only values that JSON can express"),
        (config_map(key={'a': 'b'}), "configmaps.v1 default/child cannot be applied"),
    ],
    ids=['name', 'kind', 'version', 'kind-not-owned', 'list', 'set', 'invalid'],
)
@in_virtual_time
async def test_wrong_objects_are_told_once(world, family, obj, message):
    family.wanted = [obj]
    family.declare()
    async with world.operator():
        await world.create()
        await world.until_logged("failed permanently")
        await rest()
    [text] = [text for text in world.log.texts if "failed permanently" in text]
    assert message in text and len(world.calls) == 1


@in_virtual_time
async def test_two_handlers_that_apply_the_same_child_are_told_of_each_other(world, family):
    family.declare('one', wanted=[config_map(key='one')])
    family.declare('two', wanted=[config_map(key='two')])
    async with world.operator():
        await world.create()
        await world.until_logged("is applied by Reconciler 'one', too: let only one of them apply it")
        await rest()
    assert len(family.writes()) == 1


@in_virtual_time
async def test_two_objects_that_apply_the_same_child_are_told_of_each_other(world, family):
    family.declare()
    async with world.operator():
        await world.create('a')
        await world.until_called('fn succeeded')
        await world.create('b')
        await world.until_logged("is applied by default/a, too")
        await rest()
    assert len(family.writes()) == 1


@in_virtual_time
async def test_a_child_applied_twice_in_one_run_is_sent_once_or_refused(world, family):
    family.wanted = [config_map(key='x'), config_map(key='x')]
    family.declare()
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
        family.wanted = [config_map(key='x'), config_map(key='y')]
        await world.edit(field='x')
        await world.until_logged("is applied twice in one run")
    assert len(family.writes()) == 1


@in_virtual_time
async def test_children_of_an_unknown_kind_are_applied_when_it_is_created(world, family, monkeypatch):
    monkeypatch.setattr(children, 'CONFLICT_DELAY', 10_000)
    part = {'apiVersion': 'example.dev/v1', 'kind': 'Part', 'metadata': {'name': 'part'}, 'spec': {}}
    family.declare(owns=['configmaps', 'example.dev/v1/parts'], wanted=[config_map(key='x'), part])
    async with world.operator():
        await world.until_logged("Unresolved resources cannot be served (try creating their CRDs): Selector(")
        await world.create()
        await world.until_logged("example.dev/v1 Part 'part' is of none of the kinds in owns= of Reconciler 'fn'")
        assert await family.names() == ['child']
        await world.aio.apply(define('parts', 'Part', group='example.dev', schema=PARTS))
        await world.until_called('fn succeeded')
        owner = await world.get()
        found = await world.aio.wait_for('parts', 'part', lambda body: True, namespace='default')
    assert found['metadata']['ownerReferences'][0]['uid'] == owner['metadata']['uid']
    [unresolved] = [text for text in world.log.texts if 'Unresolved' in text]
    assert "'parts'" in unresolved


@pytest.mark.parametrize(
    'message, text',
    [
        (
            'configmaps "child" is forbidden: cannot set blockOwnerDeletion if an ownerReference refers to a resource '
            "you can't set finalizers on: , <nil>",
            "apiGroups: ['kopf.dev'], resources: ['kopfexamples/finalizers'], verbs: ['update'].",
        ),
        (
            'configmaps "child" is forbidden: exceeded quota: few, requested: count/configmaps=1',
            'cannot be applied, as the API server refuses it: configmaps "child" is forbidden: exceeded quota',
        ),
    ],
    ids=['owner', 'quota'],
)
@in_virtual_time
async def test_refusals_by_admission_plugins_are_told_with_what_they_are_about(world, family, message, text):
    world.sandbox.faults.error(403, method='PATCH', resource='configmaps', message=message, times=None)
    family.declare()
    async with world.operator():
        await world.create()
        await world.until_logged(text)
    assert not any("resources: ['configmaps']" in line for line in world.log.texts)


@in_virtual_time
async def test_a_missing_permission_in_another_namespace_is_told_with_the_rule_for_that_one(world, family):
    await make_namespace(world)
    world.sandbox.faults.error(403, method='PATCH', path='namespaces/other/configmaps', message='no', times=None)
    family.declare(wanted=[config_map('remote', metadata={'namespace': 'other'})])
    async with world.operator():
        await world.create()
        await world.until_logged("configmaps.v1 other/remote cannot be applied, as the operator has no permission: no.")
    [text] = [text for text in world.log.texts if 'has no permission' in text][:1]
    assert "Grant it by a Role in the namespace 'other': apiGroups: [''], resources: ['configmaps'], verbs: [" in text
    assert '\n' not in text


@in_virtual_time
async def test_a_missing_permission_is_told_with_the_rule_to_grant(world, family):
    world.sandbox.faults.error(403, method='PATCH', resource='configmaps', message='no', times=None)
    family.declare()
    async with world.operator():
        await world.create()
        await world.until_logged(
            "Grant it by a Role in the namespace 'default': apiGroups: [''], resources: ['configmaps']"
        )


# Immutable fields.

IMMUTABLE = {'immutable': True}


@pytest.mark.parametrize('replace', [True, False], ids=['replaced', 'told'])
@in_virtual_time
async def test_a_change_of_an_immutable_field_is_told_or_the_child_is_replaced(world, family, replace):
    family.wanted = [{**config_map(key='x'), **IMMUTABLE}]
    family.declare(apply={'replace': replace})
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
        first = await family.get()
        family.wanted = [{**config_map(key='y'), **IMMUTABLE}]
        await world.edit(field='x')
        if replace:
            await world.until_called('fn succeeded', times=2)
        else:
            await world.until_logged("use replace=True to delete and recreate it")
        await rest()
        child = await family.get()
    assert (child['metadata']['uid'] != first['metadata']['uid']) is replace
    assert child['data'] == {'key': 'y' if replace else 'x'}


@in_virtual_time
async def test_a_child_is_not_deleted_for_one_that_would_be_invalid(world, family):
    family.wanted = [{**config_map(key='x'), **IMMUTABLE}]
    family.declare(apply={'replace': True})
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
        first = await family.get()
        family.wanted = [{**config_map(**{'wrong key': 'y'}), **IMMUTABLE}]
        await world.edit(field='x')
        await world.until_logged("failed permanently")
        child = await family.get()
    assert child['metadata']['uid'] == first['metadata']['uid']


@in_virtual_time
async def test_a_child_that_stays_for_its_finalizers_is_replaced_when_it_is_gone(world, family):
    family.wanted = [{**config_map(key='x', metadata={'finalizers': ['example.com/x']}), **IMMUTABLE}]
    family.declare(apply={'replace': True})
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
        family.wanted = [{**config_map(key='y'), **IMMUTABLE}]
        await world.edit(field='x')
        await world.until_logged("is being deleted, to be created anew")
        await family.change({'metadata': {'finalizers': None}})
        await world.until_called('fn succeeded', times=2)
        child = await family.get()
    assert child['data'] == {'key': 'y'}


# Contests.


@in_virtual_time
async def test_a_field_that_another_manager_takes_again_and_again_is_left_to_it(world, family):
    family.wanted = [config_map(key='ours', other='x')]
    family.declare(conditions=True)
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
        for number in range(3):
            assert (await family.get())['data'] == {'key': 'ours', 'other': 'x'}
            await family.change({'data': {'key': f'theirs-{number}'}})
            await family.until_written(*[('PATCH', 'child')] * (number + 2))
        await world.until_logged("data.key of configmaps.v1 default/child is contested by")
        await rest()
        child = await family.get()
        owner = await world.aio.wait_for(
            'kopfexamples',
            'obj',
            lambda body: any(each['type'] == 'Contested' for each in body.get('status', {}).get('conditions', [])),
        )
        await family.change({'data': {'other': 'theirs', 'key': 'again'}})
        await family.until_written(*[('PATCH', 'child')] * 5)
        assert (await family.get())['data'] == {'key': 'again', 'other': 'x'}
    assert child['data'] == {'key': 'theirs-2', 'other': 'x'}
    [condition] = [each for each in owner['status']['conditions'] if each['type'] == 'Contested']
    assert condition['status'] == 'True' and 'kopf-operator' in condition['message']


@in_virtual_time
async def test_a_contested_field_stays_in_the_conditions_while_another_handler_has_none(world, family):
    family.wanted = [config_map(key='ours')]
    family.declare(conditions=True)
    family.declare('other', wanted=[config_map('other', key='value')], conditions=True)
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
        await fight(world, family, lambda number: family.change({'data': {'key': f'theirs-{number}'}}))
        for number in range(2):
            runs = len(world.called('fn succeeded')), len(world.called('other succeeded'))
            await world.edit(field=f'value-{number}')
            await world.until_called('fn succeeded', times=runs[0] + 1)
            await world.until_called('other succeeded', times=runs[1] + 1)
            await rest()
            owner = await world.get()
            [condition] = [each for each in owner['status']['conditions'] if each['type'] == 'Contested']
            assert condition['status'] == 'True' and 'data.key' in condition['message']


@in_virtual_time
async def test_contested_fields_of_a_handler_that_does_not_match_any_more_are_not_in_the_conditions(world, family):
    family.wanted = [config_map(key='ours')]
    family.declare(conditions=True, labels={'mode': 'x'})
    family.declare('other', wanted=[config_map('other', key='value')], conditions=True)
    async with world.operator():
        await world.create(labels={'mode': 'x'})
        await world.until_called('fn succeeded')
        await fight(world, family, lambda number: family.change({'data': {'key': f'theirs-{number}'}}))
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: 'Contested' in str(body['status']))
        await world.edit(metadata={'labels': {'mode': 'y'}})
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: 'Contested' not in str(body['status']))


@in_virtual_time
async def test_what_is_applied_to_a_child_by_other_means_is_added_to_it_or_refused(world, family):
    conflicts = []

    @kopf.on.event('kopfexamples', registry=world.registry, id='event')
    async def event(name, spec, **_):
        if spec['field'] == 'added':
            await kopf.apply(config_map(theirs='x'))
        if spec['field'] == 'changed':
            try:
                await kopf.apply(config_map(key='theirs'))
            except kopf.ApplyConflictError as error:
                conflicts.append(error)
        world.note('event', name, spec=spec)

    family.declare()
    async with world.operator():
        owner = await world.create()
        await world.until_called('fn succeeded')
        for field in 'added', 'changed':
            await world.edit(field=field)
            await world.until(lambda field=field: world.called('event')[-1]['spec']['field'] == field)
        await rest()
        child = await family.get()
    assert child['data'] == {'key': 'value', 'theirs': 'x'}
    assert child['metadata']['ownerReferences'][0]['uid'] == owner['metadata']['uid']
    assert [error.conflicts for error in conflicts] == [{'kopf-operator': ['data.key']}]
    assert family.writes() == [('PATCH', 'child')] * 3  # one of the handler of states, two of that of events


async def fight(world, family, act):
    """Do this to the child whenever it is as the handler wants it, until the operator gives in."""
    runs = 0
    async with asyncio.timeout(30):
        while not [text for text in world.log.texts if 'is contested by' in text]:
            if len(world.called('fn succeeded')) > runs:
                runs = len(world.called('fn succeeded'))
                await act(runs)
            await asyncio.sleep(0.01)
    await rest()
    return [text for text in world.log.texts if 'is contested by' in text]


@in_virtual_time
async def test_a_field_that_another_client_removes_again_and_again_is_left_out(world, family):
    family.wanted = [config_map(key='ours', other='x')]
    family.declare(conditions=True)
    async with world.operator():
        await world.create()
        texts = await fight(world, family, lambda number: family.change({'data': {'key': None}}))
        child = await family.get()
        owner = await world.aio.wait_for('kopfexamples', 'obj', lambda body: 'Contested' in str(body.get('status')))
    assert child['data'] == {'other': 'x'} and len(family.writes()) == 4
    assert texts[0].startswith("data.key of configmaps.v1 default/child is contested by another client that removes it")
    assert 'another client that removes it' in str(owner['status'])


@in_virtual_time
async def test_a_child_that_another_client_deletes_again_and_again_is_not_applied_for_a_while(world, family):
    family.declare(conditions=True)
    async with world.operator():
        await world.create()
        await fight(world, family, lambda number: world.aio.delete('configmaps', 'child', namespace='default'))
        await world.until_logged("configmaps.v1 default/child is not applied for now")
        assert await family.names() == []
    assert len(family.writes()) == contests.MAX_LOSSES_OF_WHOLE


@in_virtual_time
async def test_a_child_that_another_operator_of_the_same_name_applies_is_not_applied_for_a_while(
    world, family, monkeypatch
):
    monkeypatch.setattr(contests, 'MAX_LOSSES_OF_WHOLE', 2)
    clients = []

    @kopf.on.startup(registry=world.registry)
    async def connect(**_):
        clients.append(client_var.get())

    async def apply(number):
        child = await family.get()
        metadata = {key: value for key, value in child['metadata'].items() if key != 'managedFields'}
        theirs = {**child, 'metadata': metadata, 'data': {'key': f'theirs-{number}'}}
        url = '/api/v1/namespaces/default/configmaps/child'
        await clients[0].patch(url, theirs, 'application/apply-patch+yaml', params={'fieldManager': 'kopf-operator'})

    family.declare()
    async with world.operator():
        await world.create()
        texts = await fight(world, family, apply)
        child = await family.get()
    assert "is contested by another client with the name 'kopf-operator'" in texts[0]
    assert child['data'] == {'key': 'value'} and len(family.writes()) == 3 + 2


@in_virtual_time
async def test_a_child_that_was_left_alone_is_applied_again_later(world, family, monkeypatch):
    monkeypatch.setattr(contests, 'MAX_LOSSES_OF_WHOLE', 2)
    monkeypatch.setattr(contests, 'TRUCE', 0.5)
    family.declare()
    async with world.operator():
        await world.create()
        await fight(world, family, lambda number: world.aio.delete('configmaps', 'child', namespace='default'))
        child = await family.get()
        await world.until_called('fn succeeded', times=3)
    assert child['data'] == {'key': 'value'} and len(family.writes()) == 3


@in_virtual_time
async def test_a_field_that_was_left_to_another_manager_is_applied_again_later(world, family, monkeypatch):
    monkeypatch.setattr(contests, 'TRUCE', 0.5)
    family.declare()
    async with world.operator():
        await world.create()
        await fight(world, family, lambda number: family.change({'data': {'key': f'theirs-{number}'}}))
        await family.until_written(*[('PATCH', 'child')] * 5)
        child = await family.get()
    assert child['data'] == {'key': 'value'} and world.called('fn')[-1]['reasons'] == {'again'}


@pytest.mark.parametrize('change', [{'data': {'key': 'theirs'}}, None], ids=['edited', 'deleted'])
@in_virtual_time
async def test_attempts_to_restore_a_child_do_not_count_as_further_losses(world, family, monkeypatch, change):
    monkeypatch.setattr(contests, 'MAX_LOSSES_OF_WHOLE', 3)
    family.declare(conditions=True)
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
        world.sandbox.faults.error(403, times=4, method='PATCH', resource='configmaps')
        monkeypatch.setattr(children, 'REFUSAL_DELAY', 0.05)
        if change is not None:
            await family.change(change)
        else:
            await world.aio.delete('configmaps', 'child', namespace='default')
        await world.until_called('fn succeeded', times=2)
        child = await family.get()
    assert child['data'] == {'key': 'value'} and len(family.writes()) == 6
    assert not [text for text in world.log.texts if 'is contested by' in text]


# Kinds that the code does not name any more, and remote children.


@in_virtual_time
async def test_edits_that_come_with_the_remembered_kinds_run_the_handler_again(world):
    @kopf.on.reconcile('kopfexamples', id='fn', owns=['configmaps'], registry=world.registry)
    async def fn(name, annotations, children, **_):
        world.note('fn', name, seen=annotations.get('other'))
        if len(world.called('fn')) == 1:
            # The stream brings it later than the response to the first annotation of the operator.
            world.sandbox.faults.freeze_watches(0.5, resource='kopfexamples')
            await world.edit(metadata={'annotations': {'other': 'edit'}})
        await children.apply(config_map(key='value'))

    async with world.operator():
        await world.create()
        await world.until_called('fn', times=2)
        await rest()
    assert [call['seen'] for call in world.called('fn')] == [None, 'edit']


@in_virtual_time
async def test_the_kinds_are_remembered_on_the_owner_before_the_first_child(world, family):
    family.declare(owns=['configmaps', 'secrets'])
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
        await world.edit(field='x')
        await world.until_called('fn succeeded', times=2)
        await rest()
        owner = await world.get()
    requests = [
        request.name
        for request in world.sandbox.requests
        if request.method == 'PATCH' and request.name in ('obj', 'child')
    ]
    assert requests == ['obj', 'child'] and len(world.called('fn')) == 2
    assert owner['metadata']['annotations'] == {'children.kopf.zalando.org/operator': 'v1/configmaps,v1/secrets'}
    assert 'finalizers' not in owner['metadata']


@in_virtual_time
async def test_children_of_a_dropped_kind_are_pruned(world, family):
    secret = {'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': 'secret'}}
    family.declare(owns=['configmaps', 'secrets'], wanted=[config_map(), secret])
    await world.create()
    async with world.operator():
        await world.until_called('fn succeeded')
    world.replace_code()
    family.declare(owns=['configmaps'], wanted=[config_map()])
    async with world.operator():
        await world.aio.wait_gone('secrets', 'secret', namespace='default')
        owner = await world.aio.wait_for(
            'kopfexamples', 'obj', lambda body: 'secrets' not in str(body['metadata']['annotations'])
        )
        await rest()
        assert await family.names() == ['child']
    assert owner['metadata']['annotations'] == {'children.kopf.zalando.org/operator': 'v1/configmaps'}


PART = {'apiVersion': 'example.dev/v1', 'kind': 'Part', 'metadata': {'name': 'part'}}


@pytest.mark.parametrize('kind', ['example.dev/v1/parts', 'part'])
@in_virtual_time
async def test_children_of_a_kind_that_is_not_found_at_the_start_are_not_pruned(world, family, kind):
    await world.aio.create(define('parts', 'Part'))
    family.declare(owns=['configmaps', kind], wanted=[config_map(), PART])
    await world.create()
    async with world.operator():
        await world.until_called('fn succeeded')
    world.replace_code()

    @kopf.on.reconcile('kopfexamples', id='fn', owns=['configmaps', kind], registry=world.registry)
    async def fn(name, children, **_):
        kept = [children.keep(child) for child in children[kind]]
        await children.apply(config_map())
        world.note('fn', name, kept=len(kept))

    former = len(world.called('fn'))
    world.sandbox.faults.take_down('example.dev')
    async with world.operator():
        await world.until_called('fn', times=former + 1)
        world.sandbox.faults.bring_up('example.dev')
        await world.edit(field='x')  # the operator does not know yet that the group is there again
        await world.until_called('fn', times=former + 2)
        await asyncio.sleep(300)  # it discovers the group
        await world.edit(field='y')
        await world.until_called('fn', times=former + 4)
    assert [call['kept'] for call in world.called('fn')[former:]] == [0, 0, 1, 1]
    assert [body['metadata']['name'] for body in await world.aio.list('parts')] == ['part']


@in_virtual_time
async def test_a_newer_version_of_the_kind_refuses_children_until_it_is_rolled_back(world, family):
    crd = define('parts', 'Part', schema=PARTS)
    [version] = crd['spec']['versions']
    await world.aio.create(crd)
    family.declare(owns=['parts'], wanted=[PART])
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
        versions = [version, {**version, 'name': 'v2', 'storage': False}]
        await world.aio.patch('customresourcedefinitions', 'parts.example.dev', {'spec': {'versions': versions}})
        await asyncio.sleep(30)  # it discovers the version
        await world.edit(field='x')
        await world.until_logged("is watched in the version v2: apply it in that version, or write owns=[")
        times = len(world.called('fn succeeded'))
        await world.aio.patch('customresourcedefinitions', 'parts.example.dev', {'spec': {'versions': [version]}})
        await world.until_called('fn succeeded', times=times + 1)


@pytest.mark.parametrize('missing', ['other.dev/v1/parts', 'example.dev/v1/others', 'others'])
@in_virtual_time
async def test_children_of_a_dropped_kind_are_pruned_although_another_kind_is_missing(world, family, missing):
    await world.aio.create(define('parts', 'Part'))
    family.declare(owns=['example.dev/v1/parts'], wanted=[PART])
    await world.create()
    async with world.operator():
        await world.until_called('fn succeeded')
    world.replace_code()
    family.declare(owns=['configmaps', missing], wanted=[config_map()])
    async with world.operator():
        await world.aio.wait_gone('parts', 'part', namespace='default')


async def make_namespace(world, name='other'):
    await world.aio.create({'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': name}})


@in_virtual_time
async def test_remote_children_are_deleted_before_their_owner(world, family):
    await make_namespace(world)
    remote = config_map('remote', metadata={'namespace': 'other'})
    role = {
        'apiVersion': 'rbac.authorization.k8s.io/v1',
        'kind': 'ClusterRole',
        'metadata': {'name': 'role'},
        'rules': [],
    }
    family.declare(owns=['configmaps', 'clusterroles'], wanted=[remote, role, config_map('near')])
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
        child = await family.get('remote', namespace='other')
        owner = await world.get()
        assert owner['metadata']['finalizers'] == ['kopf.dev/children-operator']
        assert 'ownerReferences' not in child['metadata']
        await world.aio.patch('configmaps', 'remote', {'data': {'x': 'y'}}, namespace='other')
        await world.until_called('fn', times=2)  # its owner is found
        await world.delete()
        await world.gone()
        await world.aio.wait_gone('configmaps', 'remote', namespace='other')
        await world.aio.wait_gone('clusterroles', 'role')


@pytest.mark.parametrize('status', [None, 500])
@in_virtual_time
async def test_remote_children_stay_if_the_deletion_of_their_owner_makes_them_orphans(world, family, status):
    await make_namespace(world)
    place = {'name': 'remote', 'namespace': 'other', 'labels': {'own': 'x'}}
    family.declare(wanted=[config_map('remote', metadata=place), config_map('near')])
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
        if status is not None:
            world.sandbox.faults.error(status, method='PATCH', resource='configmaps')
        await world.aio.delete('kopfexamples', 'obj', propagation='Orphan')
        if status is not None:
            await world.until_logged("can't be made orphans; trying again in")
        await world.gone()
        await rest()
        assert await family.names() == ['near', 'remote']
        metadata = (await family.get('remote', namespace='other'))['metadata']
        assert metadata['labels'] == {'own': 'x'} and not metadata.get('annotations')
        calls = len(world.called('fn succeeded'))
        await world.create()
        await world.until_called('fn succeeded', times=calls + 1)
        assert 'kopf.dev/owner' in (await family.get('remote', namespace='other'))['metadata']['annotations']
        await world.delete()
        await world.gone()
        await world.aio.wait_gone('configmaps', 'remote', namespace='other')


@in_virtual_time
async def test_remote_children_stay_if_they_are_made_orphans_by_a_request_in_a_pause(world, family):
    async def put(record):
        await world.aio.patch('clusterkopfpeerings', 'default', {'status': {'other': record}})

    @kopf.index('kopfexamples', registry=world.registry)
    async def seen(name, **_):
        world.note('seen', name)

    await make_namespace(world)
    await world.aio.apply(world.root / 'peering.yaml')
    await world.aio.create({'apiVersion': 'kopf.dev/v1', 'kind': 'ClusterKopfPeering', 'metadata': {'name': 'default'}})
    family.declare(wanted=lambda name: [config_map(name, metadata={'namespace': 'other'})])
    async with world.operator(standalone=False, clusterwide=True, peering_name='default'):
        await world.create()
        await world.until_called('fn succeeded')
        now = datetime.datetime.now(datetime.UTC).isoformat()
        await put({'priority': 100, 'lifetime': 3600, 'lastseen': now})
        await world.until_logged('Pausing operations')
        await world.aio.delete('kopfexamples', 'obj', propagation='Orphan')
        # After the pause, no state of the owner has the finalizer that shows the request.
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: 'orphan' not in body['metadata']['finalizers'])
        await world.create('later')
        await world.until_called('seen', name='later')  # so, all events of the owner have been received
        assert (await world.get())['metadata']['deletionTimestamp']
        await put(None)
        await world.gone()
        child = await family.get('obj', namespace='other')
    assert 'kopf.dev/owner' not in child['metadata'].get('annotations', {})


class Memo(kopf.Memo):
    """A memo that can be referred to weakly."""


@in_virtual_time
async def test_owners_whose_children_were_made_orphans_are_forgotten(world, family):
    await make_namespace(world)
    family.declare(wanted=[config_map('remote', metadata={'namespace': 'other'})])
    async with world.operator(memo=Memo()):
        await world.create()
        await world.until_called('fn succeeded')
        memo = weakref.ref(world.called('fn')[0]['memo'])
        await world.aio.delete('kopfexamples', 'obj', propagation='Orphan')
        await world.gone()
        assert await family.get('remote', namespace='other')
        world.calls.clear()
        # The timers of cancelled time-outs keep the context of the handler, and so the memo, until they are due.
        async with asyncio.timeout(1000):
            while memo() is not None:
                gc.collect()
                await asyncio.sleep(50)


@pytest.mark.parametrize('is_changed', [False, True])
@in_virtual_time
async def test_the_marks_of_an_owner_are_restored_if_another_client_removes_them(world, family, is_changed):
    await make_namespace(world)
    family.declare(wanted=lambda name: [config_map('remote', metadata={'namespace': 'other'}, key=family.value)])
    family.value = 'first'
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
        marked = (await world.get())['metadata']
        family.value = 'second' if is_changed else 'first'
        await world.edit(metadata={'annotations': None, 'finalizers': None}, field='x')
        await world.until_called('fn succeeded', times=2)
        await rest()
        owner = (await world.get())['metadata']
        assert (owner['annotations'], owner['finalizers']) == (marked['annotations'], marked['finalizers'])
        marking = [each for each in world.sandbox.requests if each.method == 'PATCH' and each.name == 'obj']
        await world.edit(field='y')
        await world.until_called('fn succeeded', times=3)
        await rest()
        assert [each for each in world.sandbox.requests if each.method == 'PATCH' and each.name == 'obj'] == marking
        await world.delete()
        await world.gone()
        await world.aio.wait_gone('configmaps', 'remote', namespace='other')


@pytest.mark.parametrize('how', ['replaced', 'annotations', 'finalizers'])
@pytest.mark.parametrize('failing', [False, True])
@in_virtual_time
async def test_the_marks_of_an_owner_are_restored_although_nothing_else_has_changed(world, family, how, failing):
    await make_namespace(world)
    remote, errors = config_map('remote', metadata={'namespace': 'other'}), []

    @kopf.on.reconcile('kopfexamples', id='fn', owns=['configmaps'], registry=world.registry)
    async def fn(name, children, **_):
        world.note('fn', name)
        for error in errors:
            raise error
        await children.apply(remote)

    async with world.operator():
        await world.create()
        await family.get('remote', namespace='other')
        await rest()
        owner, runs = await world.get(), len(world.called('fn'))
        marks = {name: owner['metadata'][name] for name in ('annotations', 'finalizers')}
        if failing:
            errors.append(kopf.PermanentError("wrong"))
        if how == 'replaced':
            names = {name: owner['metadata'][name] for name in ('name', 'namespace', 'resourceVersion')}
            await world.aio.replace(owner | {'metadata': names})
        else:
            await world.edit(metadata={how: None})
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: marks.items() <= body['metadata'].items())
        await rest()
        assert len(world.called('fn')) == runs + 1
        await world.delete()
        await world.gone()
        await world.aio.wait_gone('configmaps', 'remote', namespace='other')


@in_virtual_time
async def test_a_failed_run_that_cannot_restore_the_marks_leaves_it_to_the_next_one(world, family):
    await make_namespace(world)
    family.declare(wanted=lambda name: [config_map('remote', metadata={'namespace': 'other'}), *family.wanted])
    family.wanted = []
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
        marks = (await world.get())['metadata']['annotations']
        family.wanted = [{}]  # it is no object, so the run fails for good
        world.sandbox.faults.error(403, method='PATCH', resource='kopfexamples', times=2)
        await world.edit(metadata={'annotations': None})
        await world.until_logged("are not restored; the next run will try it again")
        family.wanted = []
        await world.edit(field='x')
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: body['metadata'].get('annotations') == marks)


@in_virtual_time
async def test_marks_that_cannot_be_restored_at_once_are_restored_later(world, family):
    await make_namespace(world)
    family.declare(wanted=[config_map('remote', metadata={'namespace': 'other'})])
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
        owner = await world.get()
        marks = {name: owner['metadata'].pop(name) for name in ('annotations', 'finalizers')}
        world.sandbox.faults.error(403, method='PATCH', resource='kopfexamples')
        await world.aio.replace(owner | {'spec': {'field': 'x'}})
        await world.until_logged("annotation for the children of Reconciler 'fn' are not restored")
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: marks.items() <= body['metadata'].items())


@pytest.mark.parametrize('order', [('near', 'far'), ('far', 'near')])
@pytest.mark.parametrize('is_late', [False, True])
@in_virtual_time
async def test_the_marks_of_all_handlers_of_an_owner_are_kept(world, family, order, is_late):
    await make_namespace(world)
    secret = {'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': 'secret', 'namespace': 'other'}}
    remote = config_map('remote', metadata={'namespace': 'other'})
    wanted = {'near': [config_map('near')], 'far': [] if is_late else [remote, secret]}
    for id in order:
        owns = ['configmaps'] if id == 'near' else ['configmaps', 'secrets']
        family.declare(id, owns=owns, wanted=lambda name, id=id: wanted[id])
    async with world.operator():
        await world.create()
        await world.until_called(f'{order[-1]} succeeded')
        wanted['far'] = [remote, secret]
        await rest()
        for field in 'xyz':
            marking = [each for each in world.sandbox.requests if each.method == 'PATCH' and each.name == 'obj']
            await world.edit(field=field)
            await rest()
        # Once all children are applied, the handlers do not overwrite each other's marks.
        assert [each for each in world.sandbox.requests if each.method == 'PATCH' and each.name == 'obj'] == marking
        owner = (await world.get())['metadata']
        assert owner['annotations'] == {'children.kopf.zalando.org/operator': '*/v1/configmaps,*/v1/secrets'}
        assert owner['finalizers'] == ['kopf.dev/children-operator']
        await world.delete()
        await world.gone()
        await world.aio.wait_gone('configmaps', 'remote', namespace='other')
        await world.aio.wait_gone('secrets', 'secret', namespace='other')


@in_virtual_time
async def test_children_that_are_applied_at_the_same_time_are_all_marked(world):
    await make_namespace(world)
    secret = {'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': 'secret', 'namespace': 'other'}}
    remote = config_map('remote', metadata={'namespace': 'other'})

    @kopf.on.reconcile('kopfexamples', id='fn', owns=['configmaps', 'secrets'], registry=world.registry)
    async def fn(name, children, **_):
        await asyncio.gather(*map(children.apply, [remote, secret, config_map('near')]))
        world.note('fn', name)

    async with world.operator():
        await world.create()
        await world.until_called('fn')
        owner = (await world.get())['metadata']
    assert owner['annotations'] == {'children.kopf.zalando.org/operator': '*/v1/configmaps,*/v1/secrets'}


@in_virtual_time
async def test_remote_children_are_deleted_in_any_version_that_is_served(world, family):
    await make_namespace(world)
    crd = define('parts', 'Part')
    [version] = crd['spec']['versions']
    await world.aio.create(crd)
    part = {'apiVersion': 'example.dev/v1', 'kind': 'Part', 'metadata': {'name': 'part', 'namespace': 'other'}}
    family.declare(owns=['example.dev/v1/parts'], wanted=[part])
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
    versions = [{**version, 'served': False}, {**version, 'name': 'v2', 'storage': False}]
    await world.aio.patch('customresourcedefinitions', 'parts.example.dev', {'spec': {'versions': versions}})
    await world.delete()
    world.replace_code()
    family.declare(owns=['example.dev/v2/parts'])
    async with world.operator():
        await world.gone()
    assert not await world.aio.list('parts')


@pytest.mark.parametrize('is_forbidden', [False, True])
@in_virtual_time
async def test_objects_are_released_if_the_kind_of_their_remote_children_is_gone(
    world, family, monkeypatch, is_forbidden
):
    monkeypatch.setattr(pruning, 'CONFIRMATION_DELAY', 0.1)
    await make_namespace(world)
    await world.aio.create(define('parts', 'Part'))
    part = {'apiVersion': 'example.dev/v1', 'kind': 'Part', 'metadata': {'name': 'part', 'namespace': 'other'}}
    family.declare(owns=['example.dev/v1/parts'], wanted=[part])
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
    await world.aio.delete('customresourcedefinitions', 'parts.example.dev')
    await world.aio.wait_gone('customresourcedefinitions', 'parts.example.dev')
    if is_forbidden:
        world.sandbox.faults.error(403, times=None, resource='customresourcedefinitions')
    async with world.operator():
        await world.delete()
        await world.gone()


@in_virtual_time
async def test_children_of_a_kind_that_is_created_anew_are_applied_when_it_is_watched_again(world, family):
    await world.aio.create(define('parts', 'Part'))
    family.declare(owns=['parts'], wanted=[PART])
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
        await world.aio.delete('customresourcedefinitions', 'parts.example.dev')
        await world.until_logged("is of a kind that the API server does not serve now")
        begun = asyncio.get_running_loop().time()
        await world.aio.create(define('parts', 'Part'))
        await world.aio.wait_for('parts', 'part', lambda body: True, namespace='default')
        assert asyncio.get_running_loop().time() - begun < 5
    texts = [text for text in world.log.texts if 'namespace that' in text or 'Traceback' in text or 'page not' in text]
    assert texts == []


async def serve_parts(world, served):
    crd = define('parts', 'Part')
    versions = [{**version, 'served': served} for version in crd['spec']['versions']]
    await world.aio.patch('customresourcedefinitions', 'parts.example.dev', {'spec': {'versions': versions}})


@in_virtual_time
async def test_remote_children_of_a_kind_that_is_not_served_for_a_while_are_deleted_later(world, family):
    await make_namespace(world)
    await world.aio.create(define('parts', 'Part'))
    place = {'name': 'part', 'namespace': 'other'}
    family.declare(owns=['parts', 'configmaps'], wanted=[PART | {'metadata': place}, config_map(metadata=place)])
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
        await serve_parts(world, False)
        await world.delete()
        await world.until_logged("*/example.dev/v1/parts is not served now, but its CRD exists")
        await world.aio.wait_gone('configmaps', 'part', namespace='other')  # it does not wait for the others
        await asyncio.sleep(60)
        assert await world.get()
        await serve_parts(world, True)
        await world.gone()
    assert not await world.aio.list('parts', namespace='other')


@in_virtual_time
async def test_remote_children_of_a_kind_that_is_not_served_for_a_while_are_made_orphans_later(world, family):
    await make_namespace(world)
    await world.aio.create(define('parts', 'Part'))
    family.declare(owns=['parts'], wanted=[PART | {'metadata': {'name': 'part', 'namespace': 'other'}}])
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
        # The operator lists the children to be changed, and cannot change them any more.
        world.sandbox.faults.call(
            lambda: serve_parts(world, False),
            late=True,
            verb='list',
            resource='parts',
            condition=lambda request: 'labelSelector' in request.query,
        )
        await world.aio.delete('kopfexamples', 'obj', propagation='Orphan')
        await world.until_logged("can't be made orphans; trying again in")
        assert await world.get()
        await serve_parts(world, True)
        await world.gone()
        part = await world.aio.get('parts', 'part', namespace='other')
    assert 'kopf.dev/owner' not in part['metadata'].get('annotations', {})


@in_virtual_time
async def test_children_of_a_dropped_kind_that_is_not_served_for_a_while_are_pruned_later(world, family):
    await world.aio.create(define('parts', 'Part'))
    family.declare(owns=['parts'], wanted=[PART])
    await world.create()
    async with world.operator():
        await world.until_called('fn succeeded')
    world.replace_code()
    family.declare(owns=['configmaps'])
    await serve_parts(world, False)
    async with world.operator():
        await world.until_logged("Former children are not pruned: example.dev/v1/parts is not served now")
        await serve_parts(world, True)
        await world.edit(field='x')
        await world.aio.wait_gone('parts', 'part')


@in_virtual_time
async def test_remote_children_are_deleted_even_if_the_server_does_not_know_their_kind_at_first(world, family):
    await make_namespace(world)
    family.declare(wanted=[config_map('remote', metadata={'namespace': 'other'})])
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
        world.sandbox.faults.error(404, verb='list', resource='configmaps')
        await world.delete()
        await world.gone()
        assert not [body for body in await world.aio.list('configmaps') if body['metadata']['name'] == 'remote']


@pytest.mark.parametrize('failing', [True, False])
@in_virtual_time
async def test_remote_children_are_deleted_while_patches_of_other_handlers_are_refused(world, family, failing):
    async def refusing(patch, **_):
        patch.metadata.labels['classic'] = '$$$'

    await make_namespace(world)
    world.settings.queueing.error_delays = [600]
    family.declare(wanted=[config_map('remote', metadata={'namespace': 'other'})])
    world.declare(kopf.on.delete, 'delete', does=refusing)
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
        if failing:
            world.sandbox.faults.error(500, method='DELETE', resource='configmaps')
        await world.delete()
        await world.until_logged('Throttling for 600 seconds')
        await world.aio.wait_gone('configmaps', 'remote', namespace='other')
        await world.aio.wait_for(
            'kopfexamples', 'obj', lambda body: 'kopf.dev/children-operator' not in body['metadata']['finalizers']
        )


@in_virtual_time
async def test_remote_children_are_pruned(world, family):
    await make_namespace(world)
    family.wanted = [config_map('remote', metadata={'namespace': 'other'})]
    family.declare()
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
        family.wanted = []
        await world.edit(field='x')
        await world.aio.wait_gone('configmaps', 'remote', namespace='other')


@pytest.mark.parametrize('status', [500, 409])
@in_virtual_time
async def test_owners_that_were_deleted_while_no_operator_ran_are_released(world, family, status):
    await make_namespace(world)
    family.declare(wanted=[config_map('remote', metadata={'namespace': 'other'})])
    await world.create()
    async with world.operator():
        await world.until_called('fn succeeded')
    await world.delete()
    world.sandbox.faults.error(status, method='DELETE', resource='configmaps')
    async with world.operator():
        await world.until_logged("can't be deleted; trying again in")
        await world.gone()
        await world.aio.wait_gone('configmaps', 'remote', namespace='other')


@pytest.mark.parametrize('verb', ['list', 'delete'])
@in_virtual_time
async def test_a_refusal_does_not_stop_the_deletion_of_other_remote_children(world, family, verb):
    await make_namespace(world)
    place = {'name': 'remote', 'namespace': 'other'}
    secret = {'apiVersion': 'v1', 'kind': 'Secret', 'metadata': place}
    family.declare(owns=['configmaps', 'secrets'], wanted=[config_map('remote', metadata=place), secret])
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
        world.sandbox.faults.error(403, times=1, verb=verb, resource='configmaps')
        await world.delete()
        await world.until_logged("configmaps")
        await world.aio.wait_gone('secrets', 'remote', namespace='other')
        await world.gone()
    [text] = [text for text in world.log.texts if "can't be deleted; trying again in" in text]
    assert 'v1/configmaps' in text if verb == 'list' else 'other/remote' in text
    assert not await world.aio.list('configmaps', namespace='other')


@pytest.mark.parametrize('namespaces', [['default', 'other'], ['default', 'o*']])
@in_virtual_time
async def test_remote_children_are_deleted_without_permissions_for_the_whole_cluster(world, family, namespaces):
    await make_namespace(world)
    world.sandbox.faults.error(403, times=None, verb='list', path='/api/v1/configmaps')
    family.declare(wanted=[config_map('remote', metadata={'namespace': 'other'})])
    await world.create()
    async with world.operator(namespaces=namespaces):
        await world.until_called('fn succeeded')
    await world.delete()
    async with world.operator(namespaces=namespaces):
        await world.gone()
        assert not await world.aio.list('configmaps', namespace='other')


@in_virtual_time
async def test_owners_stay_while_the_namespaces_of_their_children_are_not_known_yet(world, family):
    await make_namespace(world)
    namespaces = ['default', 'o*']
    family.declare(wanted=[config_map('remote', metadata={'namespace': 'other'})])
    await world.create()
    async with world.operator(namespaces=namespaces):
        await world.until_called('fn succeeded')
    await world.delete()
    for path in '/api/v1/configmaps', '/api/v1/namespaces':
        world.sandbox.faults.error(403 if 'configmaps' in path else 500, times=None, verb='list', path=path)
    async with world.operator(namespaces=namespaces):
        await world.until_logged("can't be deleted; trying again in")
        await asyncio.sleep(60)
        assert await world.get()


@in_virtual_time
async def test_owners_stay_while_a_served_namespace_cannot_be_listed(world, family):
    await make_namespace(world)
    family.declare(wanted=[config_map('remote', metadata={'namespace': 'other'})])
    async with world.operator(namespaces=['default', 'other']):
        await world.create()
        await world.until_called('fn succeeded')
        for path in '/api/v1/configmaps', '/api/v1/namespaces/other/configmaps':
            world.sandbox.faults.error(403, times=None, verb='list', path=path)
        await world.delete()
        await world.until_logged("can't be deleted; trying again in")
        await asyncio.sleep(60)
        assert await world.get()


@in_virtual_time
async def test_children_of_a_dropped_kind_are_pruned_without_permissions_for_the_whole_cluster(world, family):
    await make_namespace(world)
    secret = {'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': 'remote', 'namespace': 'other'}}
    family.declare(owns=['configmaps', 'secrets'], wanted=[secret])
    await world.create()
    async with world.operator(namespaces=['default', 'other']):
        await world.until_called('fn succeeded')
    world.replace_code()
    family.declare(owns=['configmaps'], wanted=[])
    world.sandbox.faults.error(403, times=None, verb='list', path='/api/v1/secrets')
    async with world.operator(namespaces=['default', 'other']):
        await world.aio.wait_gone('secrets', 'remote', namespace='other')


@in_virtual_time
async def test_a_dropped_cluster_scoped_kind_that_may_not_be_listed_is_no_failure(world, family):
    role = {'apiVersion': 'rbac.authorization.k8s.io/v1', 'kind': 'ClusterRole', 'metadata': {'name': 'x'}, 'rules': []}
    family.declare(owns=['configmaps', 'clusterroles'], wanted=[role])
    await world.create()
    async with world.operator():
        await world.until_called('fn succeeded')
    world.replace_code()
    family.declare(owns=['configmaps'], wanted=[])
    world.sandbox.faults.error(403, times=None, path='/v1/clusterroles')
    async with world.operator(namespaces=['default']):
        await world.until_logged("Former children are not pruned")
        calls = len(world.called('fn succeeded'))
        await rest(1000)
        assert len(world.called('fn succeeded')) == calls


@pytest.mark.parametrize('decorator', [kopf.on.event, kopf.on.update, kopf.on.delete, kopf.daemon, kopf.index])
@in_virtual_time
async def test_owners_are_released_if_no_handler_of_the_new_version_applies_children(world, family, decorator):
    await make_namespace(world)
    family.declare(wanted=[config_map('remote', metadata={'namespace': 'other'})])
    await world.create()
    async with world.operator():
        await world.until_called('fn succeeded')
    world.replace_code()
    world.declare(decorator, 'other')
    async with world.operator():
        await rest()
        await world.delete()
        await asyncio.sleep(child_release.FORMER_PAUSE - 1)
        assert await family.get('remote', namespace='other')  # another operator with the same name could have it
        await world.gone()
        await world.aio.wait_gone('configmaps', 'remote', namespace='other')


@in_virtual_time
async def test_a_run_applies_nothing_more_when_its_owner_is_deleted(world, family):
    gate = Gate()

    @kopf.on.reconcile('kopfexamples', id='fn', owns=['configmaps'], registry=world.registry)
    async def fn(name, children, **_):
        await children.apply(config_map('first'))
        world.note('fn', name)
        await gate()
        await children.apply(config_map('second'))

    async with world.operator():
        await world.create()
        await world.until_called('fn')
        await world.delete()
        await world.gone()
        await rest()
        gate.open()
        await world.until_logged("waits: The object is being deleted or handed over, so nothing is applied for it")
        await rest()
    assert ('PATCH', 'second') not in family.writes()


@in_virtual_time
async def test_owners_are_left_to_the_handlers_of_another_version(world, family):
    await make_namespace(world)
    crd, gate = define('things', 'Thing'), Gate()
    [version] = crd['spec']['versions']
    crd['spec']['versions'].append({**version, 'name': 'v2', 'storage': False})
    await world.aio.create(crd)

    @kopf.on.reconcile('example.dev', 'v1', 'things', id='fn', owns=['configmaps'], registry=world.registry)
    async def fn(name, children, **_):
        await children.apply(config_map('remote', metadata={'namespace': 'other'}))
        world.note('fn', name)
        await gate()

    kopf.on.event('example.dev', 'v2', 'things', registry=world.registry)(lambda **_: None)
    async with world.operator():
        await world.aio.create('things', 'obj', spec={})
        await world.until_called('fn')
        await world.aio.delete('things', 'obj')
        await asyncio.sleep(child_release.FORMER_PAUSE * 2)
        assert await family.get('remote', namespace='other')
        gate.open()
        await world.aio.wait_gone('things', 'obj')
        await world.aio.wait_gone('configmaps', 'remote', namespace='other')


@in_virtual_time
async def test_owners_are_left_to_another_operator_that_applies_their_children(world, family):
    await make_namespace(world)
    world.declare(kopf.on.event, 'other')
    await world.create(finalizers=['kopf.dev/children-operator'])
    async with world.operator():
        await world.delete()
        await asyncio.sleep(child_release.FORMER_PAUSE / 2)
        await world.edit(metadata={'finalizers': None})
        await asyncio.sleep(child_release.FORMER_PAUSE * 2)
        assert not [request for request in world.sandbox.requests if request.verb == 'patch']


@in_virtual_time
async def test_an_owner_that_vanishes_while_it_is_being_released_is_forgotten(world, family):
    world.settings.networking.error_backoffs, world.settings.networking.request_timeout = [], 5
    await make_namespace(world)
    family.declare(wanted=[config_map('remote', metadata={'namespace': 'other'})])
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
        deleting = asyncio.Event()
        world.sandbox.faults.delay(
            100,
            times=None,
            method='DELETE',
            resource='configmaps',
            condition=lambda _: deleting.set() or True,  # the request fails by its time-out
        )
        await world.delete()
        await deleting.wait()
        await world.edit(metadata={'finalizers': None})
        await world.gone()
        deleting.clear()
        await rest(1000)
        assert not deleting.is_set()


@in_virtual_time
async def test_the_delays_grow_while_remote_children_cannot_be_deleted(world, family, monkeypatch):
    monkeypatch.setattr(child_release, 'RELEASE_DELAY', 0.01)
    await make_namespace(world)
    family.declare(wanted=[config_map('remote', metadata={'namespace': 'other'})])
    async with world.operator():
        await world.create()
        await world.until_called('fn succeeded')
        world.sandbox.faults.error(403, method='DELETE', resource='configmaps', times=4)
        await world.delete()
        await world.gone()
    texts = [text for text in world.log.texts if "can't be deleted; trying again in" in text]
    assert [text.partition(' seconds')[0].rpartition(' ')[2] for text in texts] == ['0.01', '0.02', '0.04', '0.08']


@in_virtual_time
async def test_children_in_namespaces_that_are_not_served_are_not_created_to_be_forgotten(world, family):
    await make_namespace(world)
    family.declare(wanted=[config_map('remote', metadata={'namespace': 'other'})])
    async with world.operator(namespaces=['default']):
        await world.create()
        await world.until_logged("configmaps.v1 other/remote is in a namespace that the operator does not serve")
        await rest()
    [text] = [text for text in world.log.texts if 'does not serve' in text]
    assert "serve it with --namespace=other, too, or all with --all-namespaces" in text
    assert not family.writes() and 'finalizers' not in (await world.get())['metadata']


@in_virtual_time
async def test_children_in_namespaces_that_match_later_are_applied_then(world, family, monkeypatch):
    monkeypatch.setattr(children, 'CONFLICT_DELAY', 10_000)
    family.declare(wanted=[config_map('remote', metadata={'namespace': 'other'})])
    async with world.operator(namespaces=['default', 'o*']):
        await world.create()
        await world.until_logged("does not serve")
        await make_namespace(world)
        await world.until_called('fn succeeded')
    assert await family.get('remote', namespace='other')


@pytest.mark.parametrize('how', ['drop', 'lose'])
@pytest.mark.parametrize('name', [f'child-{number}' for number in range(6)])
@in_virtual_time
async def test_a_crash_at_any_request_while_pruning_leaves_nothing_over(world, family, name, how):
    family.wanted = [config_map(f'child-{number}', key='x') for number in range(6)]
    family.declare(backoff=(600, 600))
    await world.create()
    async with world.operator():
        await world.until_called('fn succeeded')
    before = {body['metadata']['uid'] for body in await world.aio.list('configmaps')}
    family.wanted = family.wanted[:2]
    # The request is lost before or after it is executed. With this backoff, the operator does nothing more.
    getattr(world.sandbox.faults, how)(
        name=name, resource='configmaps', method='PATCH' if name < 'child-2' else 'DELETE'
    )
    async with world.operator():
        await world.until_logged("The connection is lost before the response")
    async with world.operator():
        async with asyncio.timeout(10):
            while await family.names() != ['child-0', 'child-1']:
                await asyncio.sleep(0.01)
        await rest()
        assert await family.names() == ['child-0', 'child-1']
    assert {body['metadata']['uid'] for body in await world.aio.list('configmaps')} <= before


@in_virtual_time
async def test_a_status_does_not_conflict_with_the_marks_of_children(world):
    @kopf.on.reconcile('things', id='fn', owns=['configmaps'], registry=world.registry)
    async def fn(children, patch, **_):
        await children.apply(config_map(key='value'))
        patch.status['seen'] = True

    await world.aio.create(define('things', 'Thing', schema=PARTS, subresources={'status': {}}))
    async with world.operator():
        await world.aio.create('things', 'obj', spec={})
        await world.aio.wait_for('things', 'obj', lambda body: body.get('status'))
        await rest()
    requests = [each for each in world.sandbox.requests if each.resource == 'things' and each.name == 'obj']
    assert [
        (each.method, each.subresource, each.status) for each in requests if each.user_agent.startswith('kopf')
    ] == [
        ('PATCH', '', 200),
        ('PATCH', 'status', 200),
    ]


@in_virtual_time
async def test_an_owner_that_goes_with_its_namespace_occupies_no_place(world):
    gate = Gate()
    await make_namespace(world)

    @kopf.on.reconcile('kopfexamples', owns=['configmaps'], concurrency=1, registry=world.registry)
    async def fn(name, children, **_):
        world.note('fn', name)
        if name == 'remote':
            await gate()
            await children.apply(config_map('child'))

    async with world.operator(namespaces=['default', 'o*']):
        meta = {'name': 'remote', 'namespace': 'other'}
        await world.aio.create({'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample', 'metadata': meta})
        await world.until_called('fn', name='remote')
        await world.aio.delete('namespaces', 'other')
        await asyncio.sleep(5)
        gate.open()
        await asyncio.sleep(5)
        await make_namespace(world)
        await asyncio.sleep(5)
        await world.create()
        await world.until_called('fn', name='obj')
