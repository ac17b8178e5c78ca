"""Level-triggered handlers in an operator: what runs them, when, and what they leave alone."""

import asyncio
import collections
import datetime
import itertools
import json
import random
import sys
import threading
import time

import pytest
from kinds import define
from operatorworld import FINALIZER, in_virtual_time

import kopf
from kopf._core.engines.levels import Leveler
from kopf._core.reactor import level_runs, leveling, orchestration

RECONCILE = kopf.on.reconcile


def reasons(world, id='fn', name=None):
    return [set(call['reasons']) for call in world.called(id, name)]


async def own(world, name, owner, **data):
    """Create an object of the owner."""
    return await world.aio.create(
        {
            'apiVersion': 'v1',
            'kind': 'ConfigMap',
            'metadata': {'name': name, 'namespace': 'default', 'ownerReferences': [kopf.build_owner_reference(owner)]},
            'data': data,
        }
    )


async def change(world, name, **data):
    return await world.aio.patch('configmaps', name, {'data': data}, namespace='default')


async def rest(world, seconds=0.3):
    """Let happen what must not happen: there is nothing else to wait for."""
    await asyncio.sleep(seconds)


@in_virtual_time
async def test_it_is_run_when_an_object_is_created_or_its_essence_is_changed(world):
    world.declare(RECONCILE, 'fn')
    async with world.operator():
        await world.create()
        await world.until_called('fn')
        await world.edit(field='other')
        await world.until_called('fn', times=2)
        await world.aio.patch('kopfexamples', 'obj', {'status': {'x': 'y'}})
        await world.edit(metadata={'labels': {'a': 'b'}})
        await world.until_called('fn', times=3)
        await rest(world)
    assert reasons(world)[1:] == [{'change'}] * 2
    assert [call['spec']['field'] for call in world.called('fn')] == ['value', 'other', 'other']


@in_virtual_time
async def test_it_is_run_for_each_object_when_the_operator_starts(world):
    world.declare(RECONCILE, 'fn')
    await world.create('a')
    await world.create('b')
    for _ in range(2):
        async with world.operator():
            await world.until_called('fn', times=2)
            await rest(world)
        assert sorted(call.name for call in world.calls) == ['a', 'b'] and reasons(world) == [{'start'}] * 2
        world.calls.clear()


@in_virtual_time
async def test_nothing_is_stored_on_the_object(world):
    world.declare(RECONCILE, 'fn', does=[ValueError('x'), None], backoff=(0.01, 1))
    async with world.operator():
        await world.create()
        await world.until_called('fn', times=2)
        await rest(world)
        body = await world.get()
    assert not world.patches() and not {'annotations', 'finalizers'} & body['metadata'].keys()


@in_virtual_time
async def test_it_is_run_when_owned_objects_change_and_told_once_what_their_start_was(world):
    world.declare(RECONCILE, 'fn', owns=['configmaps'])
    owner = await world.create()
    await own(world, 'first', owner)
    async with world.operator():
        await world.until_called('fn')
        await rest(world)
        assert reasons(world) == [{'start'}]
        await own(world, 'second', owner)
        await world.until_called('fn', times=2)
        await change(world, 'second', x='y')
        await world.until_called('fn', times=3)
        await world.aio.delete('configmaps', 'first', namespace='default')
        await world.until_called('fn', times=4)
        await rest(world)
    assert reasons(world) == [{'start'}, {'owned'}, {'owned'}, {'owned'}]


@in_virtual_time
async def test_owners_are_found_by_their_uids(world):
    world.declare(RECONCILE, 'fn', owns=['configmaps'])
    async with world.operator():
        owner = await world.create('a')
        other = await world.create('b')
        await world.until_called('fn', times=2)
        await own(world, 'stranger', {**owner, 'metadata': {**owner['metadata'], 'uid': 'of-a-former-one'}})
        await own(world, 'child', owner)
        await world.until_called('fn', name='a', times=2)
        # The former owner is told, too.
        references = [kopf.build_owner_reference(other)]
        patch = {'metadata': {'ownerReferences': references}}
        await world.aio.patch('configmaps', 'child', patch, namespace='default')
        await world.until_called('fn', name='a', times=3)
        await world.until_called('fn', name='b', times=2)
        await rest(world)
    assert [call.name for call in world.calls].count('a') == 3


@in_virtual_time
async def test_children_of_all_kinds_of_a_handler_stay_in_memory_when_other_clients_change_them(world):
    @kopf.on.reconcile('example.dev', 'v1', kopf.EVERYTHING, id='fn', owns=['configmaps'], registry=world.registry)
    async def fn(name, children, **_):
        world.note('fn', name, found=[child['metadata']['name'] for child in children['configmaps']])
        await children.apply({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': f'{name}-child'}})

    kinds = {'apples': 'Apple', 'pears': 'Pear'}
    for plural, kind in kinds.items():
        await world.aio.create(define(plural, kind))
        await world.aio.create({'apiVersion': 'example.dev/v1', 'kind': kind, 'metadata': {'name': plural}})
    async with world.operator():
        await world.until_called('fn', times=2)
        await rest(world)
        for plural in kinds:
            await change(world, f'{plural}-child', x='y')
        await world.until_called('fn', times=4)
        await rest(world)
    for plural in kinds:
        assert [call['found'] for call in world.called('fn', plural)] == [[], [f'{plural}-child']]
        assert len(world.patches(f'{plural}-child')) == 1
    world.calls.clear()
    async with world.operator():
        await world.until_called('fn', times=2)
    for plural in kinds:
        assert [call['found'] for call in world.called('fn', plural)] == [[f'{plural}-child']]


@in_virtual_time
async def test_children_of_a_kind_that_is_found_late_are_known_and_pruned(world, monkeypatch):
    monkeypatch.setattr(orchestration, 'SETTLING_DELAYS', (0.05, 0.1, 0.2))
    names = ['wanted', 'unwanted']

    @kopf.on.reconcile(kopf.EVERYTHING, id='fn', owns=['configmaps'], labels={'for': 'fn'}, registry=world.registry)
    async def fn(name, children, **_):
        world.note('fn', name, found=sorted(child['metadata']['name'] for child in children['configmaps']))
        for each in names:
            await children.apply({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': f'{name}-{each}'}})

    for group in 'early.dev', 'late.dev':
        await world.aio.create(define('things', 'Thing', group=group))
        name = group.removesuffix('.dev')
        meta = {'name': name, 'labels': {'for': 'fn'}}
        await world.aio.create({'apiVersion': f'{group}/v1', 'kind': 'Thing', 'metadata': meta})
    async with world.operator():
        await world.until_called('fn', times=2)
        await rest(world)
    names.remove('unwanted')
    world.calls.clear()
    world.sandbox.faults.take_down('late.dev')
    async with world.operator():
        await world.until_called('fn', times=1, name='early')
        await rest(world)
        world.sandbox.faults.bring_up('late.dev')
        await world.until_called('fn', times=1, name='late')
        await rest(world)
    assert world.called('fn', 'late')[0]['found'] == ['late-unwanted', 'late-wanted']
    found = await world.aio.list('configmaps')
    assert sorted(each['metadata']['name'] for each in found) == ['early-wanted', 'late-wanted']


@in_virtual_time
async def test_children_are_listed_once_more_for_a_kind_that_is_found_late_and_not_again_and_again(world):
    @kopf.on.reconcile('example.dev', kopf.EVERYTHING, id='fn', owns=['configmaps'], registry=world.registry)
    async def fn(name, children, **_):
        await children.apply({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': f'{name}-child'}})
        world.note('fn', name)

    def count_lists(namespace):
        requests = [each for each in world.sandbox.requests if each.resource == 'configmaps']
        return sum(
            each.namespace == namespace and (each.verb == 'list' or 'sendInitialEvents' in each.query)
            for each in requests
        )

    async def create(plural, kind, namespace='default'):
        meta = {'name': plural, 'namespace': namespace}
        await world.aio.create({'apiVersion': 'example.dev/v1', 'kind': kind, 'metadata': meta})
        await world.until_called('fn', name=plural)

    await world.aio.create(define('apples', 'Apple'))
    async with world.operator(namespaces=['default', 'other-*']):
        await create('apples', 'Apple')
        assert count_lists('default') == 1
        await world.aio.create(define('pears', 'Pear'))
        await create('pears', 'Pear')
        assert count_lists('default') == 2
        for name in 'other-1', 'other-2':
            await world.aio.create({'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': name}})
            world.calls.clear()
            await create('apples', 'Apple', namespace=name)
        assert count_lists('default') == 2 and count_lists('other-1') == count_lists('other-2') == 1


@in_virtual_time
async def test_objects_are_found_by_former_and_present_keys_of_what_they_watch(world):
    def users(namespace, body, **_):
        return [(namespace, body['data']['user'])]

    world.declare(RECONCILE, 'fn', watches={'configmaps': users})
    async with world.operator():
        for name in 'a', 'b', 'c':
            await world.create(name)
        await world.until_called('fn', times=3)
        await world.aio.create(
            {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'cm'}, 'data': {'user': 'a'}}
        )
        await world.until_called('fn', times=4)
        await change(world, 'cm', user='b')
        await world.until_called('fn', times=6)
        await world.aio.delete('configmaps', 'cm', namespace='default')
        await world.until_called('fn', times=7)
        await rest(world)
    assert [call.name for call in world.calls][3:4] == ['a']
    assert {call.name for call in world.calls[4:6]} == {'a', 'b'}
    assert [call.name for call in world.calls][6:] == ['b']
    assert reasons(world)[3:] == [{'watched'}] * 4


@in_virtual_time
async def test_objects_of_all_kinds_with_the_same_name_are_found_until_they_are_deleted(world):
    @kopf.on.reconcile(
        'example.dev',
        'v1',
        kopf.EVERYTHING,
        watches={'configmaps': lambda **_: [('default', 'obj')]},
        id='fn',
        registry=world.registry,
    )
    async def fn(name, resource, **_):
        world.note('fn', resource.plural)

    def called():
        return sorted(call.name for call in world.calls)

    kinds = {'apples': 'Apple', 'pears': 'Pear', 'plums': 'Plum'}
    for plural, kind in kinds.items():
        await world.aio.create(define(plural, kind))
    await world.aio.create({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'cm'}, 'data': {}})
    async with world.operator():
        for kind in kinds.values():
            await world.aio.create({'apiVersion': 'example.dev/v1', 'kind': kind, 'metadata': {'name': 'obj'}})
        await world.until_called('fn', times=3)
        for deleted in ('apples', 'plums', 'pears', None):
            world.calls.clear()
            await change(world, 'cm', change=str(deleted))
            await rest(world)
            assert called() == sorted(kinds)
            if deleted is not None:
                await world.aio.delete(deleted, 'obj', namespace='default')
                del kinds[deleted]
                await rest(world)


@pytest.mark.parametrize('gap', [False, True], ids=['seen', 'in a gap'])
@in_virtual_time
async def test_objects_are_found_by_an_index_even_if_they_are_younger_than_what_they_watch(world, gap):
    @kopf.index('kopfexamples', id='users', registry=world.registry)
    def users(name, namespace, spec, **_):
        return {(namespace, spec['field']): name}

    def find_users(name, namespace, users, **_):
        world.note('find_users', name)
        return [(namespace, user) for user in users.get((namespace, name), [])]

    world.declare(RECONCILE, 'fn', watches={'configmaps': find_users})
    config_map = {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'cm'}, 'data': {}}
    async with world.operator():
        await world.aio.create(config_map)
        await world.until(lambda: world.called('find_users', 'cm'))
        for name, field in ('a', 'cm'), ('b', 'other'), ('c', 'cm'):
            await world.create(name, spec={'field': field})
        await world.until_called('fn', times=3)
        if gap:
            async with world.gap():
                await world.aio.delete('configmaps', 'cm', namespace='default')
        else:
            await world.aio.delete('configmaps', 'cm', namespace='default')
        await world.until_called('fn', times=5)
        await world.aio.create(config_map)
        await world.until_called('fn', times=7)
        await rest(world)
    assert {name: len(world.called('fn', name)) for name in ('a', 'b', 'c')} == {'a': 3, 'b': 1, 'c': 3}


@pytest.mark.parametrize('broken', ['raise', 'exit', 'text', 'number', 'namespaces', 'nameless'])
@in_virtual_time
async def test_the_former_keys_stay_if_the_function_fails(world, broken):
    def users(namespace, body, **_):
        user = body['data']['user']
        if user != 'broken':
            return [(namespace, user)]
        results = {'text': 'a', 'number': [5], 'namespaces': [[['x'], 'a']], 'nameless': [(namespace, None)]}
        return results[broken] if broken in results else sys.exit(3) if broken == 'exit' else 1 / 0

    world.declare(RECONCILE, 'fn', watches={'configmaps': users})
    world.declare(kopf.on.event, 'event', resource='configmaps')
    async with world.operator():
        await world.create('a')
        await world.until_called('fn')
        await world.aio.create(
            {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'cm'}, 'data': {'user': 'a'}}
        )
        await world.until_called('fn', times=2)
        await change(world, 'cm', user='broken')
        await world.until_called('fn', times=3)
        await world.until_called('event', times=2)  # other handlers of the object do not notice
    [text] = [text for text in world.log.texts if 'watches=' in text]
    assert text.startswith("watches= of reconciler 'fn' (") and 'test_leveling.py:' in text
    assert {'raise': "ZeroDivisionError", 'exit': "SystemExit"}.get(
        broken, "must return a list of pairs of a namespace and a name"
    ) in text


@in_virtual_time
async def test_one_run_at_a_time_and_one_more_for_all_that_comes_meanwhile(world):
    going, seen = asyncio.Event(), []

    async def slow(spec, **_):
        seen.append(spec['field'])
        if len(seen) == 1:
            await going.wait()

    world.declare(RECONCILE, 'fn', does=slow, owns=['configmaps'])
    async with world.operator():
        owner = await world.create()
        await world.until_called('fn')
        for number in range(5):
            await world.edit(field=str(number))
            await own(world, f'cm{number}', owner)
        await rest(world)
        assert seen == ['value']
        going.set()
        await world.until_called('fn', times=2)
        await rest(world)
    assert seen == ['value', '4'] and reasons(world)[1] == {'change', 'owned'}


@in_virtual_time
async def test_a_thousand_edits_in_a_second_are_at_most_110_runs(world):
    async def fn(**_):
        await asyncio.sleep(0.01)

    world.declare(RECONCILE, 'fn', does=fn)
    async with world.operator():
        await world.create()
        await world.until_called('fn')
        started = time.monotonic()
        for number in range(1000):
            await asyncio.sleep(started + number / 1000 - time.monotonic())
            await world.edit(field=str(number))
        assert time.monotonic() - started < 1.01
        await world.until(lambda: world.called('fn')[-1]['spec']['field'] == '999')
        await rest(world)
    assert 50 < len(world.called('fn')) <= 110


@in_virtual_time
async def test_errors_are_retried_with_growing_delays_and_others_wait_for_a_change(world):
    moments = []

    async def failing(**_):
        moments.append(time.monotonic())
        raise ValueError('not yet')

    async def refusing(**_):
        raise kopf.PermanentError('never')

    world.declare(RECONCILE, 'fn', does=failing, backoff=(0.1, 0.2))
    world.declare(RECONCILE, 'permanent', does=refusing, backoff=(0.01, 1))
    async with world.operator():
        await world.create()
        await world.until(lambda: len(moments) >= 5)
        assert len(world.called('permanent')) == 1
        await world.edit(field='other')
        await world.until_called('permanent', times=2)
    first, *others = [later - earlier for earlier, later in zip(moments[:4], moments[1:5], strict=True)]
    assert 0.08 < first < 0.18 and all(delay > 0.17 for delay in others)
    assert reasons(world)[1:3] == [{'retry'}, {'retry'}]


@in_virtual_time
async def test_temporary_errors_have_their_own_delay_and_retries_are_limited(world):
    error = kopf.TemporaryError('soon', delay=0.01)
    world.declare(RECONCILE, 'fn', does=[error] * 10, retries=3)
    async with world.operator():
        await world.create()
        await world.until_logged('will exceed 3 retries')
        await rest(world)
        assert [call['retry'] for call in world.called('fn')] == [0, 1, 2]
        await world.edit(field='other')
        await world.until_called('fn', times=6)


@in_virtual_time
async def test_it_is_run_again_when_asked_for_and_at_intervals(world):
    world.declare(RECONCILE, 'again', does=[kopf.Again(after=0.05), kopf.Again(after=0), None])
    world.declare(RECONCILE, 'interval', interval=0.1)
    async with world.operator():
        await world.create()
        await world.until_called('again', times=3)
        await world.until_called('interval', times=3)
        await rest(world)
    assert reasons(world, 'again')[1:] == [{'again'}, {'again'}]
    assert reasons(world, 'interval')[1:3] == [{'interval'}, {'interval'}]


@pytest.mark.parametrize('after', [float('inf'), 1e300])
@in_virtual_time
async def test_times_that_no_clock_knows_do_not_end_the_operator(world, after):
    world.declare(RECONCILE, 'again', does=[kopf.Again(after=after), None])
    world.declare(RECONCILE, 'retried', does=[kopf.TemporaryError('never', delay=after), None])
    world.declare(RECONCILE, 'interval', interval=after, backoff=(1, after))
    async with world.operator():
        await world.create()
        for id in 'again', 'retried', 'interval':
            await world.until_called(id)
        await world.edit(field='other')
        for id in 'again', 'retried', 'interval':
            await world.until_called(id, times=2)


@in_virtual_time
async def test_other_results_have_no_effect_and_that_is_said_once(world):
    world.declare(RECONCILE, 'fn', does=[{'x': 'y'}, 5])
    async with world.operator():
        await world.create()
        await world.until_called('fn')
        await world.edit(field='other')
        await world.until_called('fn', times=2)
        await rest(world)
    assert not world.patches() and [text for text in world.log.texts if 'has no effect' in text] == [
        "Reconciler 'fn' has returned {'x': 'y'}, which has no effect: return kopf.Again(after=...) or nothing."
    ]


@in_virtual_time
async def test_a_run_is_cancelled_when_it_takes_too_long(world):
    async def slow(reasons, **_):
        if 'retry' not in reasons:
            await asyncio.sleep(100)

    world.declare(RECONCILE, 'fn', does=slow, timeout=0.1, backoff=(0.01, 1))
    async with world.operator():
        await world.create()
        await world.until_called('fn', times=2)
        await rest(world)
    assert reasons(world)[1:] == [{'retry'}]
    assert any('the run has timed out after 0.1 seconds' in text for text in world.log.texts)


@in_virtual_time
async def test_a_thread_that_takes_too_long_is_left_and_no_run_is_beside_it(world):
    ending, calls = threading.Event(), []

    @RECONCILE('kopfexamples', registry=world.registry, id='fn', timeout=0.1, backoff=(0.01, 1), concurrency=1)
    def fn(name, **_):
        calls.append(name)
        if calls == ['obj']:
            ending.wait(60)

    async with world.operator():
        await world.create()
        await world.until_logged('its thread is left')
        await world.edit(field='other')
        await world.create('second')  # it gets the only place
        await world.until(lambda: 'second' in calls)
        await rest(world)
        assert calls == ['obj', 'second']
        ending.set()
        async with asyncio.timeout(10):
            while len(calls) < 3:
                await asyncio.sleep(0.01)
        await rest(world)
    assert calls == ['obj', 'second', 'obj']


@pytest.mark.parametrize('returning', ['before the timeout', 'after the timeout'])
@in_virtual_time
async def test_no_run_is_beside_a_left_thread_when_the_object_is_selected_again(world, returning):
    ending, calls = threading.Event(), []
    world.settings.watching.label_selectors['kopfexamples'] = 'app=x'

    @RECONCILE('kopfexamples', registry=world.registry, id='fn', timeout=5, backoff=(0.01, 1))
    def fn(**_):
        calls.append('fn')
        if calls == ['fn']:
            ending.wait(60)

    async with world.operator():
        await world.create(labels={'app': 'x'})
        await world.until(lambda: calls)
        if returning == 'after the timeout':
            await world.until_logged('its thread is left')
        await world.edit(metadata={'labels': {'app': None}})
        await rest(world)
        await world.edit(metadata={'labels': {'app': 'x'}}, field='other')
        await world.until_logged('its thread is left')
        await asyncio.sleep(5)
        assert calls == ['fn']
        ending.set()
        async with asyncio.timeout(10):
            while len(calls) < 2:
                await asyncio.sleep(0.01)
        await rest(world)
    assert calls == ['fn', 'fn']


@pytest.mark.parametrize('late', [False, True], ids=['in time', 'too late'])
@in_virtual_time
async def test_a_thread_with_a_time_limit_that_exits_ends_neither_the_operator_nor_the_retries(world, late):
    ending, calls = threading.Event(), []

    @RECONCILE('kopfexamples', registry=world.registry, id='fn', timeout=0.1 if late else 60, backoff=(0.01, 1))
    def fn(**_):
        calls.append(late)
        if len(calls) == 1:
            if late:
                ending.wait(60)
            sys.exit(1)

    async with world.operator():
        await world.create()
        if late:
            await world.until_logged('its thread is left')
            ending.set()
        async with asyncio.timeout(10):
            while len(calls) < 2:
                await asyncio.sleep(0.01)
        await rest(world)
    assert late or any("try again in 0.01 seconds: SystemExit: 1" in text for text in world.log.texts)


@in_virtual_time
async def test_concurrency_limits_the_runs_and_not_objects_that_wait_for_a_retry(world):
    running, peak = set(), []

    async def fn(name, reasons, **_):
        running.add(name)
        peak.append(len(running))
        await asyncio.sleep(0.02)
        running.discard(name)
        if 'retry' not in reasons:
            raise kopf.TemporaryError('later', delay=0.2)

    world.declare(RECONCILE, 'fn', does=fn, concurrency=2)
    for number in range(6):
        await world.create(f'obj{number}')
    async with world.operator():
        await world.until_called('fn', times=12)
    assert max(peak) == 2
    assert [len(each) for each in (reasons(world)[:6], reasons(world)[6:])] == [6, 6]
    assert reasons(world)[:6] == [{'start'}] * 6  # all the others go while the first ones wait


@in_virtual_time
async def test_objects_with_delayed_handlers_do_not_yield_to_each_other_for_ever(world):
    def find_all(**_):
        return [('default', name) for name in 'abc']

    world.settings.queueing.worker_limit = 1
    world.declare(kopf.on.create, 'create', does=kopf.TemporaryError('later', delay=600))
    world.declare(RECONCILE, 'fn', concurrency=1, watches={'configmaps': find_all})
    async with world.operator():
        for name in 'abc':
            await world.create(name)
            await world.until_called('fn', name=name)
        await world.aio.create({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'common'}, 'data': {}})
        for name in 'abc':
            await world.until_called('fn', name=name, times=2)


@in_virtual_time
async def test_live_triggers_go_before_those_of_the_start(world):
    going, order = asyncio.Event(), []

    async def fn(name, reasons, **_):
        order.append((name, *reasons))
        await going.wait()

    world.declare(RECONCILE, 'fn', does=fn, concurrency=1)
    for number in range(5):
        await world.create(f'obj{number}')
    async with world.operator():
        await world.until(lambda: order)
        await world.create('new')
        await rest(world)
        going.set()
        await world.until(lambda: len(order) == 6)
    assert order[1] == ('new', 'change')


@in_virtual_time
async def test_its_own_patches_do_not_trigger_it_but_other_handlers_and_edits_of_others_do(world):
    async def patching(patch, spec, **_):
        patch.spec['seen'] = spec['field']
        patch.status['seen'] = spec['field']

    world.declare(RECONCILE, 'other')
    world.declare(RECONCILE, 'fn', does=patching)
    async with world.operator():
        await world.create()
        await world.until_called('other', times=2)
        await rest(world)
        assert len(world.called('fn')) == 1
        await world.edit(field='edited')
        await world.until_called('other', times=4)
        await rest(world)
        body = await world.get()
    assert body['spec'] == {'field': 'edited', 'seen': 'edited'} and body['status'] == {'seen': 'edited'}
    assert len(world.called('fn')) == 2 and len(world.patches()) == 2


@in_virtual_time
async def test_values_that_the_object_has_already_are_not_sent_again(world):
    values = {'ready': 3, 'zero': 0, 'empty': '', 'list': [1, {'a': 2}], 'map': {'a': {'b': 1.0}}}

    async def report(patch, spec, **_):
        patch.status.update({**values, 'absent': None})
        patch.metadata.labels['label'] = 'value'
        patch.spec['copy'] = {'of': spec['field']}

    world.declare(RECONCILE, 'fn', does=report, interval=1)
    async with world.operator():
        await world.create()
        await world.until_called('fn', times=5)
        first = len(world.patches())
        await world.edit(field='x')
        await world.until_called('fn', times=10)
        second = len(world.patches())
        await world.aio.patch('kopfexamples', 'obj', {'status': {'ready': True}}, namespace='default')
        await world.until_called('fn', times=15)
        assert (await world.get())['status'] == values
        third = len(world.patches())
    assert [first, second - first, third - second] == [1, 1, 1]


@in_virtual_time
async def test_functions_of_its_own_patch_do_not_trigger_it_even_if_they_write_something_else_each_time(world):
    async def patching(patch, **_):
        patch.fns.append(lambda body: body['spec'].update(seen=str(random.random())))

    world.declare(RECONCILE, 'fn', does=patching)
    async with world.operator():
        await world.create()
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: 'seen' in body['spec'])
        await rest(world)
        assert len(world.called('fn')) == 1
        await world.edit(field='edited')
        await world.until_called('fn', times=2)
        await rest(world)
    assert len(world.called('fn')) == 2


@in_virtual_time
async def test_edits_of_others_during_a_run_with_functions_are_not_taken_for_its_own(world):
    async def patching(patch, spec, **_):
        patch.fns.append(lambda body: body['spec'].update(seen=str(random.random())))
        patch.status['field'] = spec['field']
        if spec['field'] == 'value':
            await world.edit(field='edited')

    world.declare(RECONCILE, 'fn', does=patching)
    async with world.operator():
        await world.create()
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: body.get('status') == {'field': 'edited'})


@in_virtual_time
async def test_edits_of_others_during_a_run_with_a_patch_are_not_taken_for_its_own(world):
    async def patching(patch, spec, **_):
        if spec['field'] == 'value':
            await world.edit(field='edited')
        patch.spec['seen'] = spec['field']

    world.declare(RECONCILE, 'fn', does=patching)
    async with world.operator():
        await world.create()
        await world.until_called('fn', times=2)
        await rest(world)
        assert (await world.get())['spec'] == {'field': 'edited', 'seen': 'edited'}
    assert len(world.called('fn')) == 2


@in_virtual_time
async def test_it_is_run_after_classic_handlers_and_sees_what_they_have_made(world):
    async def creating(patch, **_):
        world.sandbox.faults.freeze_watches()  # the answer to the patch says it, too
        patch.spec['created'] = 'yes'

    world.declare(kopf.on.create, 'create', does=creating)
    world.declare(RECONCILE, 'fn')
    async with world.operator():
        await world.create()
        await world.until_called('fn')
        world.sandbox.faults.clear()
        await world.handled()
        await rest(world)
    assert world.ids == ['create', 'fn'] and world.called('fn')[0]['spec'] == {'field': 'value', 'created': 'yes'}


@in_virtual_time
async def test_delayed_retries_of_classic_handlers_do_not_hold_it_back(world):
    world.declare(kopf.on.create, 'create', does=[kopf.TemporaryError('later', delay=60)])
    world.declare(RECONCILE, 'fn')
    async with world.operator():
        await world.create()
        await world.until_called('fn')
        await world.edit(field='other')
        await world.until_called('fn', times=2)
    assert world.ids.count('create') == 1


@in_virtual_time
async def test_its_own_retries_do_not_hold_classic_handlers_back(world):
    world.declare(RECONCILE, 'fn', does=[kopf.TemporaryError('later', delay=60)])
    world.declare(kopf.on.update, 'update')
    async with world.operator():
        await world.create()
        await world.until_called('fn')
        await world.handled()
        await world.edit(field='other')
        await world.until_called('update')


@in_virtual_time
async def test_a_running_call_ends_before_the_deletion_is_handled_and_none_follows(world):
    order = []

    async def fn(**_):
        order.append('begin')
        await world.delete()
        await rest(world)
        order.append('end')
        return kopf.Again(after=0)

    async def deleting(**_):
        order.append('delete')
        await own(world, 'late', await world.get())
        await rest(world)

    world.declare(RECONCILE, 'fn', does=fn, interval=0.05, owns=['configmaps'])
    world.declare(kopf.on.delete, 'delete', does=deleting)
    async with world.operator():
        await world.create()
        await world.gone()
        await rest(world)
    assert order == ['begin', 'end', 'delete']


@in_virtual_time
async def test_it_is_not_run_for_an_object_that_was_deleted_while_another_handler_was_running(world):
    going, began = asyncio.Event(), asyncio.Event()

    async def slow(type, **_):
        if type == 'MODIFIED':
            began.set()
            await going.wait()

    world.declare(kopf.on.event, 'event', does=slow)
    world.declare(kopf.on.update, 'update', field='spec.other')
    world.declare(RECONCILE, 'fn', interval=0.05)
    async with world.operator():
        await world.create()
        await world.until_called('fn')
        await world.edit(field='edited')
        await began.wait()
        await world.delete()
        await world.gone()
        await rest(world)
        count = len(world.called('fn'))
        going.set()
        await rest(world)
        assert len(world.called('fn')) == count


@in_virtual_time
async def test_the_finalizer_is_not_needed(world):
    world.declare(RECONCILE, 'fn', does=kopf.Again(after=0.05))
    async with world.operator():
        await world.create()
        await world.until_called('fn', times=2)
        await world.delete()
        await world.gone()
        count = len(world.calls)
        await rest(world)
    assert len(world.calls) <= count + 1


@in_virtual_time
async def test_the_finalizer_of_a_former_version_is_left_to_the_deletion_handlers(world):
    world.declare(RECONCILE, 'fn')
    world.declare(kopf.on.delete, 'delete', does=[kopf.TemporaryError("later", delay=100)])
    await world.create(finalizers=[FINALIZER])
    async with world.operator():
        await world.until_called('fn')
        await world.delete()
        await rest(world, 50)
        assert (await world.get())['metadata']['finalizers'] == [FINALIZER]
        await rest(world, 100)
        await world.gone()
    assert len(world.called('delete')) == 2


@in_virtual_time
async def test_filters_and_fields_are_as_for_updates(world):
    world.declare(RECONCILE, 'labelled', labels={'a': 'b'}, owns=['configmaps'])
    world.declare(RECONCILE, 'field', field='spec.field')
    async with world.operator():
        owner = await world.create(labels={'a': 'b'})
        await world.until_called('labelled')
        await world.until_called('field')
        await world.edit(other='x')
        await world.until_called('labelled', times=2)
        await world.edit(field='other')
        await world.until_called('field', times=2)
        await world.edit(metadata={'labels': {'a': None}}, field=None)
        await world.until_called('field', times=3)  # the removal of a field is a change
        await own(world, 'child', owner)
        await rest(world)
        assert len(world.called('labelled')) == 3 and len(world.called('field')) == 3
        await world.edit(metadata={'labels': {'a': 'b'}})
        await world.until_called('labelled', times=4)


@in_virtual_time
async def test_nothing_follows_a_run_if_the_object_has_stopped_matching_meanwhile(world):
    going = asyncio.Event()

    async def slow(name, **_):
        await going.wait()
        if name == 'failing':
            raise ValueError
        return kopf.Again(after=0.01)

    world.declare(RECONCILE, 'fn', does=slow, labels={'a': 'b'}, interval=0.05, backoff=(0.01, 0.01))
    async with world.operator():
        for name in 'failing', 'succeeding':
            await world.create(name, labels={'a': 'b'})
        await world.until_called('fn', times=2)
        for name in 'failing', 'succeeding':
            await world.edit(name, metadata={'labels': {'a': None}})
        await rest(world)
        going.set()
        await rest(world)
        assert len(world.called('fn')) == 2


@in_virtual_time
async def test_the_removal_of_a_field_is_handled_once_with_retries_and_without_intervals(world):
    async def failing(spec, reasons, **_):
        if 'field' not in spec and 'retry' not in reasons:
            raise ValueError

    world.declare(RECONCILE, 'fn', does=failing, field='spec.field', interval=0.1, backoff=(0.01, 0.01))
    async with world.operator():
        await world.create()
        await world.until_called('fn')
        await world.edit(field=None, other='x')
        await world.until(lambda: [dict(call['spec']) for call in world.called('fn')].count({'other': 'x'}) == 2)
        count = len(world.calls)
        await rest(world)
        assert len(world.calls) == count
        await world.edit(field='again')
        await world.until_called('fn', times=count + 2)


@in_virtual_time
async def test_a_handler_of_a_field_is_not_run_when_its_other_filters_stop_matching(world):
    world.declare(RECONCILE, 'fn', field='spec.field', labels={'a': 'b'}, interval=0.1)
    async with world.operator():
        await world.create(labels={'a': 'b'})
        await world.until_called('fn')
        await world.edit(metadata={'labels': {'a': None}})
        await rest(world)
    assert all(call['labels'] for call in world.called('fn'))


@in_virtual_time
async def test_an_object_that_is_triggered_all_the_time_does_not_keep_the_only_worker(world):
    async def fn(name, **_):
        if name == 'obj':
            await world.edit(field=str(random.random()))
            await asyncio.sleep(0.02)  # the event comes before the end of the run

    world.settings.queueing.worker_limit = 1
    world.declare(RECONCILE, 'fn', does=fn)
    async with world.operator():
        await world.create()
        await world.until_called('fn', times=3)
        await world.create('other')
        await world.until(lambda: world.called('fn', 'other'), timeout=10)


@in_virtual_time
async def test_relists_run_only_what_has_changed_meanwhile(world):
    world.declare(RECONCILE, 'fn', owns=['configmaps'])
    async with world.operator():
        owner = await world.create('same')
        changed = await world.create('changed')
        await own(world, 'cm-of-same', owner)
        await own(world, 'cm-of-changed', changed)
        await world.until(lambda: {call.name for call in world.calls} == {'same', 'changed'})
        await rest(world)
        world.calls.clear()
        async with world.gap():
            await change(world, 'cm-of-changed', x='y')
        await world.until_called('fn')
        await world.create('fence')
        await world.until_called('fn', name='fence')
        await rest(world)
    assert {call.name for call in world.calls} == {'changed', 'fence'}


@in_virtual_time
async def test_a_handler_declared_later_is_run_for_all_objects_and_others_are_not_run_again(world):
    world.declare(RECONCILE, 'first')
    async with world.operator():
        await world.create()
        await world.until_called('first')
        world.declare(RECONCILE, 'second', owns=['configmaps'])
        await world.until_called('second')
        await own(world, 'child', await world.get())
        await world.until_called('second', times=2)
        await rest(world)
    assert len(world.called('first')) == 1


@in_virtual_time
async def test_a_run_that_goes_on_while_others_take_over_has_its_patch_applied_and_is_not_doubled(world):
    going = asyncio.Event()

    async def slow(patch, **_):
        await going.wait()
        patch.spec['seen'] = 'yes'

    world.declare(RECONCILE, 'first', does=slow)
    async with world.operator():
        await world.create()
        await world.until_called('first')
        world.declare(RECONCILE, 'second')
        await rest(world, 1)
        assert world.ids == ['first']
        going.set()
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: body['spec'].get('seen') == 'yes')
        await world.until_called('second')
        await rest(world)
    assert world.ids.count('first') <= 2


@in_virtual_time
async def test_refused_patches_are_applied_later_and_the_object_is_not_forgotten(world):
    async def patching(patch, spec, **_):
        patch.status['seen'] = spec['field']

    world.declare(RECONCILE, 'fn', does=patching)
    async with world.operator():
        world.sandbox.faults.error(500, method='PATCH', resource='kopfexamples')
        await world.create()
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: body.get('status') == {'seen': 'value'})
        await world.edit(field='other')
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: body.get('status') == {'seen': 'other'})


@in_virtual_time
async def test_refused_patches_are_given_up_so_that_what_happens_meanwhile_still_has_an_effect(world):
    async def patching(patch, reasons, **_):
        patch.metadata.labels['a'] = 'b' if 'owned' in reasons else '$$$'
        patch.spec['owned'] = 'owned' in reasons

    world.settings.queueing.error_delays = [600]
    world.declare(RECONCILE, 'fn', does=patching, owns=['configmaps'], backoff=(600, 600))
    async with world.operator():
        owner = await world.create()
        await world.until_logged("The patch of Reconciler 'fn' is not applied; it will be run again in ")
        assert [text for text in world.log.texts if text.startswith('The API refuses')][0].endswith(
            "It will be tried again less and less often, and as soon as the object changes; "
            "other objects are not affected."
        )
        await own(world, 'child', owner)
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: body['spec'].get('owned'))
        await rest(world)
        assert (await world.get())['metadata']['labels'] == {'a': 'b'}
    assert len(world.called('fn')) == 2


@in_virtual_time
async def test_refused_patches_are_failures_that_are_retried_up_to_the_limit(world):
    async def patching(patch, **_):
        patch.metadata.labels['a'] = '$$$'

    world.declare(RECONCILE, 'fn', does=patching, backoff=(0.01, 1), retries=3)
    async with world.operator():
        await world.create()
        await world.until_logged('waits for the next change')
        await rest(world)
    assert [call['retry'] for call in world.called('fn')] == [0, 1, 2]


@in_virtual_time
async def test_a_refused_patch_for_a_stale_state_does_not_repeat_other_handlers(world):
    is_indexed = asyncio.Event()

    async def creating(**_):
        await world.edit(metadata={'labels': {'app': 'y'}})
        await world.edit(metadata={'labels': {'app': 'x', 'back': 'yes'}})
        await is_indexed.wait()

    async def indexing(labels, **_):
        # The creation is handled while this state is indexed: so it is passed on later than the response to the patch
        # with the success.
        if labels.get('back'):
            is_indexed.set()
        await asyncio.sleep(1)

    async def patching(patch, body, **_):
        if len(world.called('fn')) == 1:
            await own(world, 'child', body)  # another run is requested, so that the object is processed once more
            await rest(world, 0.1)
            world.sandbox.faults.error(500, method='PATCH', resource='kopfexamples', times=1)
        patch.status['seen'] = True

    world.settings.watching.label_selectors['kopfexamples'] = 'app=x'
    world.declare(kopf.on.create, 'create', does=creating)
    world.declare(RECONCILE, 'fn', does=patching, owns=['configmaps'], backoff=(0.01, 1))
    kopf.index('kopfexamples', id='index', registry=world.registry)(indexing)
    async with world.operator():
        await world.create(labels={'app': 'x'})
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: body.get('status', {}).get('seen'))
        await rest(world, 5)
    assert world.ids.count('create') == 1


@in_virtual_time
async def test_what_other_handlers_want_to_patch_is_kept_when_a_patch_of_a_run_is_refused(world):
    async def patching(patch, spec, **_):
        if 'created' not in spec:
            patch.metadata.labels['a'] = '$$$'

    def conflicting(body):
        body['spec']['created'] = 'yes'

    async def creating(patch, **_):
        patch.fns.append(conflicting)
        await world.edit(field='edited')

    world.declare(kopf.on.create, 'create', does=creating)
    world.declare(RECONCILE, 'fn', does=patching, backoff=(0.01, 1))
    async with world.operator():
        await world.create()
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: body['spec'].get('created') == 'yes')


async def refusing(patch, **_):
    patch.metadata.labels['classic'] = '$$$'


async def accepting(patch, spec, **_):
    patch.metadata.labels['level'] = spec['field']


def has_label(key, value):
    return lambda body: (body['metadata'].get('labels') or {}).get(key) == value


@pytest.mark.parametrize('error', [None, 403, 500], ids=['refused', 'forbidden', 'passing'])
@in_virtual_time
async def test_refused_patches_of_classic_handlers_do_not_hold_it_back(world, error):
    world.settings.queueing.error_delays = [600]
    world.settings.networking.error_backoffs = []
    world.declare(kopf.on.create, 'create', does=refusing if error is None else None)
    world.declare(RECONCILE, 'fn', owns=['configmaps'], does=accepting if error is None else None)
    async with world.operator():
        if error is not None:
            world.sandbox.faults.error(error, method='PATCH', resource='kopfexamples')
        owner = await world.create()
        await world.until_logged('Throttling for 600 seconds')
        await world.until_called('fn')
        await own(world, 'child', owner)
        await world.until_called('fn', times=2)
        if error is None:
            await world.aio.wait_for('kopfexamples', 'obj', has_label('level', 'value'))
            await world.edit(status={'x': 'y'}, field='other')
            await world.aio.wait_for('kopfexamples', 'obj', has_label('level', 'other'))


@in_virtual_time
async def test_what_comes_while_it_runs_in_a_throttled_object_is_handled_at_once(world):
    begun = asyncio.Event()

    async def fn(**_):
        begun.set()
        await asyncio.sleep(1)

    world.settings.queueing.error_delays = [600]
    world.declare(kopf.on.create, 'create', does=refusing)
    world.declare(RECONCILE, 'fn', owns=['configmaps'], does=fn)
    async with world.operator():
        owner = await world.create()
        await world.until_logged('Throttling for 600 seconds')
        for number in range(3):
            await asyncio.wait_for(begun.wait(), 20)
            begun.clear()
            await own(world, f'child{number}', owner)
        await world.until_called('fn', times=4)
        await rest(world, 5)
    assert len(world.called('fn')) == 4 and len(world.called('create')) == 1


@in_virtual_time
async def test_another_processor_takes_a_throttled_object_over_while_it_runs(world):
    begun, going = asyncio.Event(), asyncio.Event()

    async def fn(name, body, **_):
        begun.set()
        if name == 'obj' and len(world.called('fn', 'obj')) < 3:
            await going.wait()
            await own(world, f'child{len(world.called("fn", "obj"))}', body)
            await rest(world)  # the event of this child requests the next run

    def count_streams():
        return sum(seen.verb == 'watch' and seen.resource == 'kopfexamples' for seen in world.sandbox.requests)

    world.settings.queueing.error_delays = [600]
    world.settings.queueing.worker_limit = 1
    world.declare(kopf.on.create, 'create', does=refusing)
    world.declare(RECONCILE, 'fn', owns=['configmaps'], does=fn)
    async with world.operator():
        await world.create()
        await asyncio.wait_for(begun.wait(), 20)
        await world.create('other')  # it is queued: the worker of the first object gives way to it between the runs
        streams = count_streams()
        world.declare(kopf.on.event, 'another')
        async with asyncio.timeout(20):
            while count_streams() == streams:
                await asyncio.sleep(0.01)
        going.set()
        await world.until_called('fn', times=3, name='obj')
        await rest(world)
    assert len(world.called('fn', 'obj')) == 3


@in_virtual_time
async def test_classic_handlers_are_tried_again_in_time_while_it_is_run_all_the_time(world):
    world.settings.queueing.error_delays = [2, 600]
    world.declare(kopf.on.create, 'create', does=refusing)
    world.declare(RECONCILE, 'fn', owns=['configmaps'])
    async with world.operator():
        owner = await world.create()
        for number in range(10):
            await own(world, f'child{number}', owner)
            await rest(world, 0.5)
    assert len([text for text in world.log.texts if 'Throttling for' in text]) == 2
    assert len(world.called('fn')) >= 10


@pytest.mark.parametrize('conflicting', [True, False])
@in_virtual_time
async def test_its_refused_patches_do_not_hold_classic_handlers_back(world, conflicting):
    async def failing(patch, **_):
        patch.fns.append(lambda body: body['metadata'].setdefault('labels', {}).update(level='$$$'))
        if conflicting:
            await world.edit(status={'x': 'y'})

    world.declare(RECONCILE, 'fn', does=failing, backoff=(600, 600))
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.update, 'update')
    async with world.operator():
        await world.create()
        await world.until_logged("The patch of Reconciler 'fn' is not applied")
        await world.handled()
        await world.edit(field='other')
        await world.until_called('update')
        await world.handled(field='other')
    assert not [text for text in world.log.texts if 'Throttling' in text]


@in_virtual_time
async def test_functions_of_its_patch_are_applied_to_a_newer_state_if_they_conflict(world):
    async def conflicting(patch, spec, **_):
        patch.fns.append(lambda body: body['metadata'].setdefault('labels', {}).update(level=body['spec']['field']))
        if spec['field'] == 'value':
            await world.edit(field='other')

    world.declare(RECONCILE, 'fn', does=conflicting, backoff=(600, 600))
    async with world.operator():
        await world.create()
        await world.aio.wait_for('kopfexamples', 'obj', has_label('level', 'other'))
    assert not [text for text in world.log.texts if 'is not applied' in text]


@in_virtual_time
async def test_conflicts_of_its_patch_do_not_hold_other_handlers_back(world, monkeypatch):
    async def conflicting(patch, **_):
        patch.fns.append(lambda body: body['spec'].update(seen='yes'))

    monkeypatch.setattr(level_runs, 'CONFLICT_DELAYS', [0.1] * 1000)
    world.declare(RECONCILE, 'fn', does=conflicting, backoff=(600, 600))
    world.declare(kopf.on.event, 'event')
    async with world.operator():
        await world.create()
        await world.until_called('fn')
        world.sandbox.faults.error(409, method='PATCH', resource='kopfexamples', times=None)
        await world.edit(field='other')
        await world.until_called('fn', times=2)
        await world.aio.patch('kopfexamples', 'obj', {'status': {'x': 'y'}})
        await world.until(lambda: world.called('event')[-1]['status'] == {'x': 'y'}, 20)


@pytest.mark.parametrize('conditions', ['text', {'Ready': True}])
@in_virtual_time
async def test_objects_with_something_else_than_a_list_of_conditions_concern_no_others(world, conditions):
    @RECONCILE('things', registry=world.registry, id='fn', conditions=True, owns=['configmaps'])
    async def fn(name, children, **_):
        world.note('fn', name)

    await world.aio.create(define('things', 'Thing', group='other.dev'))
    for name, status in [('bad', {'conditions': conditions}), ('good', {})]:
        thing = {'apiVersion': 'other.dev/v1', 'kind': 'Thing', 'metadata': {'name': name}, 'status': status}
        await world.aio.create(thing)
    async with world.operator():
        await world.until_called('fn', name='bad', times=2)
        await world.until_called('fn', name='good')
    assert [text for text in world.log.texts if 'status.conditions of the object must be a list' in text]
    assert not [text for text in world.log.texts if 'could not be run' in text]


@in_virtual_time
async def test_unexpected_errors_of_a_run_concern_no_other_object_and_are_retried(world, monkeypatch):
    failing = ['bad'] * 2

    async def execute(self, run, *, execute=Leveler.execute):
        if run.raw['metadata']['name'] in failing:
            failing.pop()
            raise ValueError("a bug")
        return await execute(self, run)

    monkeypatch.setattr(Leveler, 'execute', execute)
    world.declare(RECONCILE, 'fn', backoff=(0.01, 1))
    async with world.operator():
        await world.create('bad')
        await world.create('good')
        await world.until_called('fn', name='bad')
        await world.until_called('fn', name='good')
    assert len([text for text in world.log.texts if text.startswith("The run of Reconciler 'fn' has failed;")]) == 2


@in_virtual_time
async def test_objects_changed_in_place_stay_as_they_are_and_that_is_said(world):
    async def changing(body, **_):
        body['spec']['list'].append('x')

    world.declare(RECONCILE, 'fn', does=changing)
    async with world.operator():
        await world.create(spec={'list': []})
        await world.until_logged('was changed in place: spec.list')
        await world.edit(field='x')
        await world.until_called('fn', times=2)
    assert world.called('fn')[1]['spec']['list'] in ([], ['x'])  # as it is seen after this run


async def test_nothing_is_run_during_a_pause_and_everything_after_it(world):
    async def put(record):
        await world.aio.patch('kopfpeerings', 'default', {'status': {'other': record}})

    world.sandbox.apply(world.root / 'peering.yaml')
    await world.aio.create({'apiVersion': 'kopf.dev/v1', 'kind': 'KopfPeering', 'metadata': {'name': 'default'}})
    world.declare(RECONCILE, 'fn', owns=['configmaps'])
    async with world.operator(standalone=False, namespaces=['default'], identity='me'):
        owner = await world.create()
        await world.until_called('fn')
        now = datetime.datetime.now(datetime.UTC).isoformat()
        await put({'priority': 100, 'lifetime': 60, 'lastseen': now})
        await world.until_logged('Pausing operations')
        await own(world, 'child', owner)
        await world.edit(field='paused')
        await world.create('new')
        await rest(world)
        assert len(world.calls) == 1
        await put(None)
        await world.until_called('fn', times=3)
        await rest(world)
    assert reasons(world)[1:] == [{'start'}, {'start'}]


@in_virtual_time
async def test_restored_backups_are_changes(world):
    world.declare(RECONCILE, 'fn')
    async with world.operator():
        await world.create()
        await world.until_called('fn')
        snapshot = await world.aio.snapshot()
        for number in range(5):
            await world.edit(field=str(number))
        await world.until(lambda: world.called('fn')[-1]['spec']['field'] == '4')
        async with world.gap():
            await world.aio.restore(snapshot)
        await world.until(lambda: world.called('fn')[-1]['spec']['field'] == 'value')


@pytest.mark.parametrize('seed', range(3))
@in_virtual_time
async def test_random_changes_errors_and_restarts_end_with_a_run_that_has_seen_all(world, seed):
    rng, running, seen = random.Random(seed), collections.Counter(), {}

    async def fn(name, uid, spec, **_):
        assert not running[name]
        running[name] += 1
        children = await world.aio.list('configmaps', namespace='default')
        state = spec['field'], sorted(each['data']['v'] for each in children if uid in json.dumps(each))
        await asyncio.sleep(rng.random() / 50)
        running[name] -= 1
        seen[name] = None
        if rng.random() < 0.2:
            raise ValueError
        seen[name] = state

    world.declare(RECONCILE, 'fn', does=fn, owns=['configmaps'], concurrency=2, backoff=(0.01, 0.05))
    owners = [await world.create(f'obj{number}') for number in range(3)]
    values = {}
    for owner in owners:
        await own(world, f'cm-{owner["metadata"]["name"]}', owner, v='0')
        values[owner['metadata']['name']] = ['value', '0']
    for _ in range(3):
        async with world.operator():
            for number in range(20):
                name = rng.choice(owners)['metadata']['name']
                value = f'{number}-{rng.random()}'
                if rng.random() < 0.5:
                    values[name][0] = value
                    await world.edit(name, field=value)
                else:
                    values[name][1] = value
                    await change(world, f'cm-{name}', v=value)
                await asyncio.sleep(rng.random() / 50)
            expected = {name: (field, [child]) for name, (field, child) in values.items()}
            async with asyncio.timeout(20):
                while seen != expected:
                    await asyncio.sleep(0.01)
            count = len(world.calls)
            await rest(world)
            assert len(world.calls) == count or seen == expected


def get_loop_warnings(world):
    return [text for text in world.log.texts if 'is run again and again' in text]


@in_virtual_time
async def test_handlers_that_overwrite_each_other_are_slowed_down_until_another_client_edits_the_object(world):
    async def set_one(patch, **_):
        patch.spec['x'] = 1

    async def set_two(patch, **_):
        patch.spec['x'] = 2

    world.declare(RECONCILE, 'one', does=set_one)
    world.declare(RECONCILE, 'two', does=set_two)
    async with world.operator():
        await world.create()
        await world.until_logged('is run again and again')
        fought = len(world.calls)
        await asyncio.sleep(2)
        paused = len(world.calls)
        assert paused - fought <= 8
        await world.edit(field='other')  # in the middle of a long pause
        async with asyncio.timeout(1):
            await world.until(lambda: any(call.kwargs['spec']['field'] == 'other' for call in world.calls[paused:]))
    [warning] = get_loop_warnings(world)[:1]
    assert "by Reconciler 'one' (spec.x)" in warning or "by Reconciler 'two' (spec.x)" in warning
    assert len(get_loop_warnings(world)) <= 2  # once for each handler


@in_virtual_time
async def test_a_handler_that_watches_what_it_patches_is_slowed_down(world):
    numbers = itertools.count()

    def itself(namespace, name, **_):
        return [(namespace, name)]

    async def change_itself(patch, **_):
        patch.status['number'] = next(numbers)

    world.declare(RECONCILE, 'fn', watches={'kopfexamples': itself}, does=change_itself)
    async with world.operator():
        await world.create()
        await world.until_logged("is run again and again because of patches by Reconciler 'fn'")
        fought = len(world.calls)
        await asyncio.sleep(2)
        assert len(world.calls) - fought <= 8
    assert len(get_loop_warnings(world)) == 1


@in_virtual_time
async def test_bursts_of_changes_of_others_are_no_loops(world):
    def aggregate(namespace, name, **_):
        return [(namespace, 'sum')] if name != 'sum' else []

    async def count(name, patch, **_):
        patch.status['runs'] = sum(call.name == name for call in world.calls)

    world.declare(RECONCILE, 'fn', watches={'kopfexamples': aggregate}, does=count)
    async with world.operator():
        await world.create('sum', spec={'field': 'x'})
        for number in range(30):
            await world.create(f'obj-{number}')
        await world.until(lambda: all(world.called('fn', f'obj-{number}') for number in range(30)))
        await rest(world)
    warnings = get_loop_warnings(world)
    assert not warnings


@in_virtual_time
async def test_a_list_that_does_not_come_is_not_waited_for_for_ever(world, monkeypatch):
    monkeypatch.setattr(leveling, 'LIST_PATIENCE', 0.5)
    world.declare(RECONCILE, 'fn', owns=['configmaps'])
    world.sandbox.faults.delay(60, times=None, resource='configmaps')
    await world.create()
    async with world.operator():
        await world.until_called('fn')
        world.sandbox.faults.clear()
    await world.until_logged(
        "'fn' do not wait for the list of configmaps.v1 any more, as it has brought nothing for 0.5 seconds."
    )
