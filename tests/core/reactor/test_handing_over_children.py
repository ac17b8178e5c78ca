"""Several level-triggered handlers of one object: the children of each are its own, unless it does not match."""

import asyncio

import pytest
from kinds import PARTS, define
from operatorworld import in_virtual_time

import kopf


def declare(world, id, child, registry=None, **options):
    """Declare a handler that applies a child of this name, with its own id as the data."""

    @kopf.on.reconcile('kopfexamples', id=id, registry=registry or world.registry, owns=['configmaps'], **options)
    async def fn(name, children, **_):
        world.note(id, name)
        data = {'by': id}
        await children.apply({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': child}, 'data': data})


async def until_applied(world, child, by):
    await world.aio.wait_for('configmaps', child, lambda body: body['data'] == {'by': by}, timeout=10)


MATCHING = [
    ({'labels': {'mode': 'x'}}, {'labels': {'mode': 'y'}}),
    ({'when': lambda labels, **_: labels['mode'] == 'x'}, {'when': lambda labels, **_: labels['mode'] == 'y'}),
    ({'field': 'metadata.labels.mode', 'value': 'x'}, {'field': 'metadata.labels.mode', 'value': 'y'}),
]


@pytest.mark.parametrize('first, second', MATCHING, ids=['labels', 'when', 'field'])
@in_virtual_time
async def test_a_handler_takes_over_the_child_of_one_that_does_not_match_any_more(world, first, second):
    declare(world, 'first', 'child', **first)
    declare(world, 'second', 'child', **second)
    async with world.operator():
        await world.create(labels={'mode': 'x'})
        await until_applied(world, 'child', 'first')
        for mode, id in [('y', 'second'), ('x', 'first')]:
            await world.edit(metadata={'labels': {'mode': mode}})
            await until_applied(world, 'child', id)
    # A handler whose field is gone is called once more, and this function does not look at the field.
    assert 'field' in first or not any('is applied by' in text for text in world.log.texts)


@pytest.mark.parametrize('failing', [False, True], ids=['not matching', 'failing'])
@in_virtual_time
async def test_a_child_that_was_taken_over_is_pruned_when_it_is_not_applied_any_more(world, failing):
    def check(labels, **_):
        if labels['mode'] == 'failing':
            raise ValueError('a mistake')
        return labels['mode'] == 'x'

    @kopf.on.reconcile('kopfexamples', id='second', registry=world.registry, owns=['configmaps'])
    async def second(labels, children, **_):
        if labels['mode'] == 'y':
            metadata = {'name': 'child'}
            await children.apply(
                {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': metadata, 'data': {'by': 'second'}}
            )

    declare(world, 'first', 'child', when=check)
    async with world.operator():
        await world.create(labels={'mode': 'x'})
        await until_applied(world, 'child', 'first')
        await world.edit(metadata={'labels': {'mode': 'y'}})
        await until_applied(world, 'child', 'second')
        await world.edit(metadata={'labels': {'mode': 'failing' if failing else 'z'}})
        await world.aio.wait_gone('configmaps', 'child')


@in_virtual_time
async def test_children_of_a_handler_that_does_not_match_any_more_are_not_pruned_by_others(world):
    declare(world, 'leaving', 'one', labels={'mode': 'x'})
    declare(world, 'staying', 'two')
    async with world.operator():
        await world.create(labels={'mode': 'x'})
        await until_applied(world, 'one', 'leaving')
        await until_applied(world, 'two', 'staying')
        calls = len(world.called('staying'))
        await world.edit(metadata={'labels': {'mode': None}})
        await world.until_called('staying', calls + 1)
        await asyncio.sleep(60)
        assert await world.aio.get('configmaps', 'one')


@in_virtual_time
async def test_children_of_a_handler_whose_filter_fails_are_not_pruned_by_others(world):
    failing = []

    def check(**_):
        if failing:
            raise ValueError('a mistake')
        return True

    declare(world, 'failing', 'one', when=check)
    declare(world, 'staying', 'two')
    async with world.operator():
        await world.create()
        await until_applied(world, 'one', 'failing')
    failing.append(True)
    calls = len(world.called('staying'))
    async with world.operator():
        await world.until_called('staying', calls + 1)
        await asyncio.sleep(60)
        assert await world.aio.get('configmaps', 'one')


@in_virtual_time
async def test_children_of_a_former_handler_are_pruned_beside_handlers_that_do_not_match(world):
    former = kopf.OperatorRegistry()
    declare(world, 'former', 'one', registry=former)
    async with world.operator(registry=former):
        await world.create()
        await until_applied(world, 'one', 'former')
    declare(world, 'present', 'two')
    declare(world, 'other', 'three', labels={'mode': 'x'})
    async with world.operator():
        await until_applied(world, 'two', 'present')
        await world.aio.wait_gone('configmaps', 'one')


@in_virtual_time
async def test_a_handler_is_run_again_for_its_last_state_after_a_run_while_its_filter_has_failed(world):
    def check(labels, **_):
        if labels['mode'] == 'failing':
            raise ValueError('a mistake')
        return True

    @kopf.on.reconcile('kopfexamples', registry=world.registry, when=check, owns=['configmaps'])
    async def fn(name, labels, children, **_):
        world.note('fn', name)
        metadata, data = {'name': 'child'}, {'mode': labels['mode']}
        await children.apply({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': metadata, 'data': data})

    async def until_applied(mode):
        await world.aio.wait_for('configmaps', 'child', lambda body: body['data'] == {'mode': mode}, timeout=10)

    async with world.operator():
        await world.create(labels={'mode': 'x'})
        await until_applied('x')
        await world.edit(metadata={'labels': {'mode': 'failing'}})
        await world.until_logged('failed: ValueError: a mistake')
        await world.aio.patch('configmaps', 'child', {'data': {'mode': 'edited'}}, namespace='default')
        await until_applied('failing')
        await world.edit(metadata={'labels': {'mode': 'x'}})
        await until_applied('x')


@pytest.mark.parametrize('prune', [True, False])
@pytest.mark.parametrize('is_first_late', [False, True])
@in_virtual_time
async def test_children_are_pruned_if_their_handler_leaves_their_kind_to_another_one(world, is_first_late, prune):
    former = kopf.OperatorRegistry()

    @kopf.on.reconcile('kopfexamples', id='first', registry=former, owns=['configmaps', 'secrets'])
    async def first(name, children, **_):
        await children.apply({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'map'}})
        for each in 'left', 'taken':
            await children.apply({'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': each}})
        world.note('former', name)

    async with world.operator(registry=former):
        await world.create()
        await world.until_called('former')
    taken = (await world.aio.get('secrets', 'taken'))['metadata']['uid']

    @kopf.on.reconcile('kopfexamples', id='first', registry=world.registry, owns=['configmaps'], prune=prune)
    async def present(name, retry, children, **_):
        if is_first_late and not retry:
            raise kopf.TemporaryError("later", delay=5)
        await children.apply({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'map'}})
        world.note('first', name)

    @kopf.on.reconcile('kopfexamples', id='second', registry=world.registry, owns=['secrets'])
    async def second(name, children, **_):
        await children.apply({'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': 'taken'}})
        world.note('second', name)

    async with world.operator():
        await world.until_called('first')
        await world.until_called('second')
        await asyncio.sleep(60)
        names = {body['metadata']['name'] for body in await world.aio.list('secrets')}
        assert names == ({'taken'} if prune else {'taken', 'left'})
        assert (await world.aio.get('secrets', 'taken'))['metadata']['uid'] == taken


@in_virtual_time
async def test_children_stay_if_their_handler_leaves_their_kind_to_another_one_and_does_not_match_any_more(world):
    former = kopf.OperatorRegistry()

    @kopf.on.reconcile('kopfexamples', id='leaving', registry=former, owns=['configmaps', 'secrets'])
    async def leaving(name, children, **_):
        await children.apply({'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': 'left'}})
        world.note('former', name)

    async with world.operator(registry=former):
        await world.create()
        await world.until_called('former')
    declare(world, 'leaving', 'one', labels={'mode': 'x'})

    @kopf.on.reconcile('kopfexamples', id='staying', registry=world.registry, owns=['secrets'])
    async def staying(name, spec, children, **_):
        await children.apply({'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': spec['field']}})

    async with world.operator():
        for name in 'first', 'second':
            await world.edit(field=name)
            await world.aio.wait_for('secrets', name, lambda body: True)
        await world.aio.wait_gone('secrets', 'first')  # so, the handler that matches has pruned
        assert await world.aio.get('secrets', 'left')
        await world.edit(metadata={'labels': {'mode': 'x'}})
        await world.aio.wait_gone('secrets', 'left')


@in_virtual_time
async def test_children_of_a_renamed_handler_stay_while_a_conflict_hinders_the_one_that_wants_them(world):
    former, is_contested = kopf.OperatorRegistry(), True
    declare(world, 'former', 'wanted', registry=former)
    async with world.operator(registry=former):
        await world.create()
        await until_applied(world, 'wanted', 'former')

    @kopf.on.reconcile('kopfexamples', id='other', registry=world.registry, owns=['configmaps'])
    async def other(name, spec, children, **_):
        for child in 'rival', spec['field']:
            await children.apply(config_map(child, by='other'))

    @kopf.on.reconcile('kopfexamples', id='renamed', registry=world.registry, owns=['configmaps'], backoff=(1, 1))
    async def renamed(name, children, **_):
        for child in (['rival'] if is_contested else []) + ['wanted']:
            await children.apply(config_map(child, by='renamed'))

    async with world.operator():
        await world.until_logged("configmaps.v1 default/rival is applied by Reconciler 'other', too")
        for name in 'first', 'second':
            await world.edit(field=name)
            await until_applied(world, name, 'other')
        await world.aio.wait_gone('configmaps', 'first')  # so, the handler without conflicts has pruned
        assert (await world.aio.get('configmaps', 'wanted'))['data'] == {'by': 'former'}
        is_contested = False
        await until_applied(world, 'wanted', 'renamed')


# One function that is declared several times.


def config_map(name, **data):
    return {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name}, 'data': data}


@in_virtual_time
async def test_a_function_declared_for_two_fields_applies_its_child_after_changes_of_both(world):
    @kopf.on.reconcile('kopfexamples', field='spec.a', owns=['configmaps'], registry=world.registry)
    @kopf.on.reconcile('kopfexamples', field='spec.b', owns=['configmaps'], registry=world.registry)
    async def fn(name, spec, children, **_):
        await children.apply(config_map('child', a=spec['a'], b=spec['b']))

    async with world.operator():
        await world.create(spec={'a': '1', 'b': '1'})
        await world.aio.wait_for('configmaps', 'child', lambda body: body['data'] == {'a': '1', 'b': '1'})
        for field, data in [('a', {'a': '2', 'b': '1'}), ('b', {'a': '2', 'b': '2'}), ('a', {'a': '3', 'b': '2'})]:
            await world.edit(**{field: data[field]})
            await world.aio.wait_for('configmaps', 'child', lambda body, data=data: body['data'] == data, timeout=10)
        await asyncio.sleep(60)
    assert not any('is applied by' in text for text in world.log.texts)
    writes = [each for each in world.sandbox.requests if each.resource == 'configmaps' and each.method == 'PATCH']
    assert len(writes) == 4


@in_virtual_time
async def test_a_function_declared_for_two_fields_prunes_what_its_other_declaration_has_applied(world):
    @kopf.on.reconcile('kopfexamples', field='spec.a', owns=['configmaps'], registry=world.registry)
    @kopf.on.reconcile('kopfexamples', field='spec.b', owns=['configmaps'], registry=world.registry)
    async def fn(name, spec, children, **_):
        for child in {spec['a'], spec['b']}:
            await children.apply(config_map(child))

    async with world.operator():
        await world.create(spec={'a': 'one', 'b': 'two'})
        for name in 'one', 'two':
            await world.aio.wait_for('configmaps', name, lambda body: True, timeout=10)
        for field in 'a', 'b':
            await world.edit(**{field: 'three'})
            await world.aio.wait_for('configmaps', 'three', lambda body: True, timeout=10)
            await world.aio.wait_gone('configmaps', 'one' if field == 'a' else 'two')
    await world.edit(a='four', b='four')
    async with world.operator():
        await world.aio.wait_gone('configmaps', 'three')


@in_virtual_time
async def test_a_function_declared_for_two_labels_prunes_the_children_of_the_former_label(world):
    @kopf.on.reconcile('kopfexamples', owns=['configmaps'], labels={'tier': 'small'}, registry=world.registry)
    @kopf.on.reconcile('kopfexamples', owns=['configmaps'], labels={'tier': 'big'}, registry=world.registry)
    async def fn(labels, children, **_):
        await children.apply(config_map(labels['tier']))

    async with world.operator():
        await world.create(labels={'tier': 'small'})
        for former, tier in [('small', 'big'), ('big', 'small')]:
            await world.aio.wait_for('configmaps', former, lambda body: True, timeout=10)
            await world.edit(metadata={'labels': {'tier': tier}})
            await world.aio.wait_for('configmaps', tier, lambda body: True, timeout=10)
            await world.aio.wait_gone('configmaps', former)


@in_virtual_time
async def test_a_function_declared_with_two_params_keeps_the_children_of_both(world):
    @kopf.on.reconcile('kopfexamples', id='one', param='one', owns=['configmaps'], registry=world.registry)
    @kopf.on.reconcile('kopfexamples', id='two', param='two', owns=['configmaps'], registry=world.registry)
    async def fn(param, name, children, **_):
        await children.apply(config_map(param))
        world.note(param, name)

    async with world.operator():
        await world.create()
        for value in 'x', 'y':
            calls = {id: len(world.called(id)) for id in ('one', 'two')}
            await world.edit(field=value)
            for id, times in calls.items():
                await world.until_called(id, times + 1)
        await asyncio.sleep(60)
        for id in 'one', 'two':
            assert await world.aio.get('configmaps', id)
    assert not any('is deleted' in text for text in world.log.texts)


# Several objects that apply children with the same names.


def declare_named(world, *, failing=(), order=sorted):
    """Declare a handler that applies the children that are named in the spec of the object."""

    @kopf.on.reconcile('kopfexamples', id='fn', owns=['configmaps'], backoff=(1, 1), registry=world.registry)
    async def fn(name, spec, children, **_):
        world.note('fn', name)
        if name in failing:
            raise kopf.TemporaryError('out of order', delay=1)
        for child in order(spec['children']):
            await children.apply(config_map(child, by=name))
        world.note('succeeded', name)


async def find_owners(world, *names):
    """Return the names of the objects that have applied these children."""
    found = [await world.aio.wait_for('configmaps', name, lambda body: True, timeout=10) for name in names]
    return [body['data']['by'] for body in found]


@pytest.mark.parametrize('is_down', [False, True], ids=['running', 'down'])
@pytest.mark.parametrize('at_once', [True, False], ids=['at once', 'one after the other'])
@in_virtual_time
async def test_two_objects_exchange_their_children(world, at_once, is_down):
    declare_named(world)
    async with world.operator():
        await world.create('blue', spec={'children': ['live']})
        await world.create('green', spec={'children': ['preview']})
        assert await find_owners(world, 'live', 'preview') == ['blue', 'green']
        if not is_down:
            await world.edit('blue', children=['preview'])
            await asyncio.sleep(0 if at_once else 5)
            await world.edit('green', children=['live'])
            await asyncio.sleep(5)
            assert await find_owners(world, 'live', 'preview') == ['green', 'blue']
    if is_down:
        await world.edit('blue', children=['preview'])
        await world.edit('green', children=['live'])
        async with world.operator():
            await asyncio.sleep(35)
            assert await find_owners(world, 'live', 'preview') == ['green', 'blue']


@in_virtual_time
async def test_a_child_that_a_blocked_object_gives_up_is_taken_over(world):
    declare_named(world, order=list)
    async with world.operator():
        for name, child in [('a', 'one'), ('b', 'two'), ('c', 'three')]:
            await world.create(name, spec={'children': [child]})
        assert await find_owners(world, 'one', 'two', 'three') == ['a', 'b', 'c']
        await world.edit('b', children=['three'])  # which never gets it
        await world.edit('a', children=['two'])
        await asyncio.sleep(5)
        assert await find_owners(world, 'two', 'three') == ['a', 'c']
        assert not any('one' == body['metadata']['name'] for body in await world.aio.list('configmaps'))


@in_virtual_time
async def test_an_object_is_handled_at_once_when_another_one_gives_up_its_child(world):
    declare_named(world)
    async with world.operator():
        await world.create('a', spec={'children': ['one']})
        assert await find_owners(world, 'one') == ['a']
        await world.create('b', spec={'children': ['one']})
        await world.until_logged("is applied by default/a, too")
        await world.edit('a', children=[])
        await world.aio.wait_for('configmaps', 'one', lambda body: body['data'] == {'by': 'b'}, timeout=10)


@in_virtual_time
async def test_a_handler_that_fails_before_it_applies_a_child_keeps_it(world):
    failing = []
    declare_named(world, failing=failing)
    async with world.operator():
        await world.create('a', spec={'children': ['one']})
        assert await find_owners(world, 'one') == ['a']
        failing.append('a')
        await world.edit('a', other='x')
        await world.create('b', spec={'children': ['one']})
        await asyncio.sleep(100)
        assert await find_owners(world, 'one') == ['a']
    assert not world.called('succeeded', 'b')


CONTENDING = {
    'same order': {'a': ['two', 'one'], 'b': ['two', 'one']},
    'crosswise': {'a': ['two', 'one'], 'b': ['one', 'two']},
    'both blocked': {'a': ['one', 'three'], 'b': ['one', 'three']},
}


@pytest.mark.parametrize('wanted', CONTENDING.values(), ids=CONTENDING)
@pytest.mark.parametrize('is_down', [False, True], ids=['running', 'down'])
@in_virtual_time
async def test_objects_that_want_the_same_children_do_not_take_them_from_each_other_again_and_again(
    world, wanted, is_down
):
    declare_named(world, order=list)

    def count_writes():
        requests = world.sandbox.requests
        return len([each for each in requests if each.resource == 'configmaps' and each.method != 'GET'])

    async def want():
        await asyncio.gather(*(world.edit(name, children=children) for name, children in wanted.items()))

    async def check():
        await asyncio.sleep(100)
        owners, calls, writes = await find_owners(world, 'one', 'three'), len(world.calls), count_writes()
        await asyncio.sleep(200)
        assert await find_owners(world, 'one', 'three') == owners
        assert count_writes() == writes and len(world.calls) < calls + 20

    async with world.operator():
        await world.create('a', spec={'children': ['one']})
        await world.create('b', spec={'children': ['two']})
        await world.create('c', spec={'children': ['three']})
        assert await find_owners(world, 'one', 'two', 'three') == ['a', 'b', 'c']
        if not is_down:
            await want()
            await check()
    if is_down:
        await want()
        async with world.operator():
            await check()


# Handlers of several versions of one kind.


@pytest.fixture
def versions(world):
    return Versions(world)


class Versions:
    """A kind with two versions, and the handlers of each."""

    def __init__(self, world):
        self.world = world

    async def define(self, *served):
        """Create the kind; serve only these versions, or both."""
        definition = define('widgets', 'Widget', group='example.dev', schema=PARTS, subresources={'status': {}})
        first = definition['spec']['versions'][0]
        definition['spec']['versions'].append({**first, 'name': 'v2', 'storage': False})
        await self.world.aio.create(self._serve(definition, served or ('v1', 'v2')))

    async def serve(self, *served):
        """Serve only these versions from now on."""
        definition = await self.world.aio.get('customresourcedefinitions', 'widgets.example.dev')
        patch = {'spec': {'versions': self._serve(definition, served)['spec']['versions']}}
        await self.world.aio.patch('customresourcedefinitions', 'widgets.example.dev', patch)

    @staticmethod
    def _serve(definition, served):
        versions = [{**each, 'served': each['name'] in served} for each in definition['spec']['versions']]
        return {**definition, 'spec': {**definition['spec'], 'versions': versions}}

    def declare(self, version, id, *children, selector=None, registry=None, **options):
        selector, registry = selector or ('example.dev', version, 'widgets'), registry or self.world.registry

        @kopf.on.reconcile(
            *selector, id=id, registry=registry, owns=['configmaps', 'secrets'], backoff=(1, 1), **options
        )
        async def fn(name, children, **_):
            self.world.note(version, name)
            for child in wanted:
                await children.apply(child)
            self.world.note(f'{version} succeeded', name)

        wanted = list(children)
        return wanted

    async def create(self):
        await self.world.aio.create(self.make())

    async def edit(self, value):
        await self.world.aio.patch('widgets', 'obj', {'spec': {'field': value}})

    @staticmethod
    def make():
        return {'apiVersion': 'example.dev/v1', 'kind': 'Widget', 'metadata': {'name': 'obj'}, 'spec': {'field': 'x'}}

    async def settle(self, *versions):
        """Change the object, and wait until the handlers of these versions, or of both, have succeeded for it."""
        for value in 'y', 'z':
            calls = {each: len(self.world.called(f'{each} succeeded')) for each in versions or ('v1', 'v2')}
            await self.edit(value)
            for version, times in calls.items():
                await self.world.until_called(f'{version} succeeded', times + 1)
        await asyncio.sleep(60)

    async def until_ready(self):
        """Wait until the object is ready in its newest generation."""

        def is_ready(body):
            generation = body['metadata']['generation']
            return any(
                (each['type'], each['status'], each.get('observedGeneration')) == ('Ready', 'True', generation)
                for each in body.get('status', {}).get('conditions', ())
            )

        await self.world.aio.wait_for('widgets', 'obj', is_ready)

    def count_deletions(self):
        return len([each for each in self.world.sandbox.requests if each.method == 'DELETE'])


def secret(name):
    return {'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': name}}


@pytest.mark.parametrize('ids', [('one', 'two'), ('fn', 'fn')], ids=['two ids', 'one id'])
@pytest.mark.parametrize('is_preferred', [False, True], ids=['named', 'preferred'])
@in_virtual_time
async def test_children_of_handlers_of_another_version_are_not_pruned(world, versions, ids, is_preferred):
    await versions.define()
    preferred = ('example.dev', 'widgets') if is_preferred else None
    versions.declare('v1', ids[0], config_map('one'))
    versions.declare('v2', ids[1], config_map('two'), secret('two'), selector=preferred)
    async with world.operator():
        await versions.create()
        await versions.settle()
    async with world.operator():
        await world.until_called('v1 succeeded', len(world.called('v1 succeeded')) + 1)
        await versions.settle()
        for kind, name in [('configmaps', 'one'), ('configmaps', 'two'), ('secrets', 'two')]:
            assert await world.aio.get(kind, name)
    assert not versions.count_deletions()


@in_virtual_time
async def test_children_of_former_handlers_are_pruned_beside_handlers_of_another_version(world, versions):
    await versions.define()
    first = versions.declare('v1', 'one', config_map('one'), config_map('gone'))
    versions.declare('v2', 'two', config_map('two'))
    async with world.operator():
        await versions.create()
        await versions.settle()
        first.pop()
        await versions.edit('w')
        await world.aio.wait_gone('configmaps', 'gone')
    world.replace_code()
    versions.declare('v1', 'renamed', config_map('renamed'))
    versions.declare('v2', 'two', config_map('two'))
    async with world.operator():
        await world.aio.wait_gone('configmaps', 'one')
        assert await world.aio.get('configmaps', 'two')


@in_virtual_time
async def test_handlers_of_two_versions_that_apply_the_same_child_are_told_of_each_other(world, versions):
    await versions.define()
    first = versions.declare('v1', 'one', config_map('one', by='one'))
    second = versions.declare('v2', 'two')
    async with world.operator():
        await versions.create()
        await versions.settle()
        second[:] = [config_map('one', by='two')]
        await versions.edit('w')
        await world.until_logged("is applied by Reconciler 'one' for widgets.v1.example.dev, too")
        assert first and (await world.aio.get('configmaps', 'one'))['data'] == {'by': 'one'}


@pytest.mark.parametrize('failing', ['v1', 'v2'])
@in_virtual_time
async def test_an_object_is_not_ready_while_a_handler_of_another_version_fails(world, versions, failing):
    await versions.define()
    for version in 'v1', 'v2':
        wanted = versions.declare(version, 'fn', conditions=True)
        if version == failing:
            wanted.append({'apiVersion': 'v1', 'kind': 'ConfigMap'})

    async def find_ready():
        conditions = (await world.aio.get('widgets', 'obj'))['status']['conditions']
        return [each['status'] for each in conditions if each['type'] == 'Ready']

    async with world.operator():
        await versions.create()
        for value in 'y', 'z':
            await asyncio.sleep(10)
            assert await find_ready() == ['False']
            await versions.edit(value)


@pytest.mark.parametrize('ids', [('fn', 'fn'), ('one', 'two')])
@in_virtual_time
async def test_children_are_pruned_beside_a_handler_for_a_version_that_is_not_served(world, ids):
    await world.aio.create(define('widgets', 'Widget'))
    wanted = ['kept', 'dropped']
    for id, version in zip(ids, ['v1', 'v1beta1'], strict=True):

        @kopf.on.reconcile('example.dev', version, 'widgets', id=id, registry=world.registry, owns=['configmaps'])
        async def fn(name, children, **_):
            for child in wanted:
                await children.apply({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': child}})
            world.note('fn', name)

    async with world.operator():
        await world.aio.create({'apiVersion': 'example.dev/v1', 'kind': 'Widget', 'metadata': {'name': 'obj'}})
        await world.until_called('fn')
        wanted.remove('dropped')
        await world.aio.patch('widgets', 'obj', {'spec': {'field': 'x'}})
        await world.aio.wait_gone('configmaps', 'dropped')
        assert await world.aio.get('configmaps', 'kept')


@pytest.mark.parametrize('ids', [('fn', 'fn'), ('one', 'two')])
@in_virtual_time
async def test_an_object_is_ready_and_pruned_beside_a_handler_of_another_version_that_selects_other_objects(
    world, versions, ids
):
    await versions.define()
    wanted = versions.declare('v1', ids[0], config_map('kept'), config_map('dropped'), conditions=True)
    versions.declare('v2', ids[1], conditions=True, label_selector='mode=x')
    async with world.operator():
        await versions.create()
        await world.until_called('v1 succeeded')
        wanted.pop()
        await versions.edit('y')
        await world.aio.wait_gone('configmaps', 'dropped')
        await versions.until_ready()
        assert await world.aio.get('configmaps', 'kept')


@pytest.mark.parametrize('ids', [('fn', 'fn'), ('one', 'two')])
@in_virtual_time
async def test_children_are_not_pruned_until_the_objects_of_another_version_are_listed(world, versions, ids):
    former = kopf.OperatorRegistry()
    await versions.define()
    versions.declare('v1', ids[0], config_map('one'), registry=former)
    versions.declare('v2', ids[1], config_map('two'), registry=former)
    versions.declare('v2', 'former', config_map('taken'), registry=former)
    async with world.operator(registry=former):
        await versions.create()
        await versions.settle()
    calls = len(world.called('v1 succeeded'))
    versions.declare('v1', ids[0], config_map('one'))
    versions.declare('v2', ids[1], config_map('two'), config_map('taken'))
    world.sandbox.faults.delay(100, path='/apis/example.dev/v2/widgets')
    async with world.operator():
        await world.until_called('v1 succeeded', calls + 1)
        await asyncio.sleep(60)
        await versions.settle()
    assert not versions.count_deletions()


@pytest.mark.parametrize('ids', [('fn', 'fn'), ('one', 'two')])
@pytest.mark.parametrize('is_recreated', [False, True], ids=['updated', 'created anew'])
@in_virtual_time
async def test_an_object_is_ready_and_pruned_when_the_version_of_another_handler_is_not_served_any_more(
    world, versions, ids, is_recreated
):
    await versions.define()
    wanted = versions.declare('v1', ids[0], config_map('kept'), config_map('dropped'), conditions=True)
    versions.declare('v2', ids[1], conditions=True)
    async with world.operator():
        await versions.create()
        await versions.settle()
        if is_recreated:
            await world.aio.delete('customresourcedefinitions', 'widgets.example.dev')
            await world.aio.wait_gone('customresourcedefinitions', 'widgets.example.dev')
            await world.until_logged('Unresolved resources cannot be served')
            await asyncio.sleep(60)  # the operator ends both watches
            await versions.define('v1')
            await versions.create()
        else:
            await versions.serve('v1')
            await world.until_logged('Unresolved resources cannot be served')
        await versions.settle('v1')
        wanted.pop()
        await versions.edit('w')
        await world.aio.wait_gone('configmaps', 'dropped')
        await versions.until_ready()
        assert await world.aio.get('configmaps', 'kept')


@in_virtual_time
async def test_an_object_is_ready_and_pruned_after_the_handler_of_other_objects_had_its_version_for_a_while(
    world, versions
):
    await versions.define()
    wanted = versions.declare('v1', 'fn', config_map('kept'), config_map('dropped'), conditions=True)
    selective = {'conditions': True, 'label_selector': 'mode=x'}
    versions.declare('v2', 'fn', selector=('example.dev', 'widgets'), **selective)
    versions.declare('v2', 'other', **selective)
    async with world.operator():
        await versions.create()
        await versions.settle('v1')
        await versions.serve('v1')
        await world.until_logged('do not have the same label_selector=')  # both have the same watch
        await versions.settle('v1')
        await versions.serve('v1', 'v2')
        await versions.settle('v1')
        wanted.pop()
        await versions.edit('w')
        await world.aio.wait_gone('configmaps', 'dropped')
        await versions.until_ready()


@in_virtual_time
async def test_an_edit_during_a_run_while_the_filter_fails_is_handled_after_it(world):
    failing, began, leave = [], asyncio.Event(), asyncio.Event()

    def check(**_):
        if failing:
            raise ValueError('a mistake')
        return True

    @kopf.on.reconcile('kopfexamples', registry=world.registry, when=check)
    async def fn(name, spec, patch, **_):
        world.note('fn', name, field=spec['field'])
        began.set()
        await leave.wait()
        patch.status['seen'] = spec['field']

    async with world.operator():
        await world.create(spec={'field': 'old'})
        await began.wait()
        failing.append(True)
        await world.edit(field='new')
        await world.until_logged('failed: ValueError: a mistake')
        failing.clear()
        leave.set()
        await world.until_called('fn', 2)
    assert [call['field'] for call in world.called('fn')] == ['old', 'new']
