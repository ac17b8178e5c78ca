"""Handlers and storages that trigger themselves by their own patches."""

import asyncio
import itertools
import time

import pytest
from operatorworld import FINALIZER, in_virtual_time

import kopf
from kopf._cogs.structs import dicts as kopf_dicts


async def increment(spec, patch, **_):
    if spec['n'] < spec.get('limit', 1000000):
        patch.spec['n'] = spec['n'] + 1


async def increment_by_function(patch, **_):
    patch.fns.append(lambda body: body['spec'].update(n=body['spec']['n'] + 1))


NUMBERS = itertools.count(1000)


async def number_by_function(patch, **_):
    patch.fns.append(lambda body: body['spec'].update(n=next(NUMBERS)))  # different at each call, as a time is


@pytest.mark.parametrize('does', [increment, increment_by_function, number_by_function])
@in_virtual_time
async def test_a_handler_that_triggers_itself_is_reported_and_slowed_down(world, does):
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.update, 'looping', does=does)
    async with world.operator():
        for name in ('obj', 'another'):
            await world.create(name, spec={'n': 0})
            await world.handled(name)
            await world.edit(name, n=1)
        await world.until_called('looping', 24, 'obj')
        started = time.monotonic()
        await world.until_called('looping', 25, 'obj')
        assert time.monotonic() - started > 0.5
        (warning,) = [text for text in world.log.texts if 'triggers' in text or 'in a row' in text]
        assert warning.startswith("Handler 'looping' changes the object by its own patch (spec.n)")
        await world.edit(x=1)  # what others edit is handled at once, and there can be as many steps again
        await world.until_called('looping', 40, 'obj')
        assert time.monotonic() - started < 10
        await world.delete()
        await world.gone()


@in_virtual_time
async def test_a_handler_that_triggers_itself_for_some_steps_is_not_slowed_down(world):
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.update, 'stepping', does=increment)
    async with world.operator():
        await world.create(spec={'n': 0})
        await world.handled()
        for limit in (15, 30, 45):
            await world.edit(n=limit - 14, limit=limit)
            await world.handled(n=limit)
    assert not any('in a row' in text for text in world.log.texts)
    assert world.called('stepping')[-1]['new']['spec'] == {'n': 45, 'limit': 45}


class StampingStorage(kopf.AnnotationsDiffBaseStorage):
    """Writes more than the essence, and takes that for a part of the essence."""

    def store(self, *, body, patch, essence):
        super().store(body=body, patch=patch, essence=essence)
        patch.metadata.annotations['example.com/handled-at'] = str(time.monotonic())


class VersioningStorage(kopf.AnnotationsDiffBaseStorage):
    """Takes for a part of the essence what changes with each patch."""

    def build(self, *, body, extra_fields=None):
        return {**super().build(body=body, extra_fields=extra_fields), 'version': body.metadata['resourceVersion']}


@pytest.mark.parametrize(
    ('storage', 'field'),
    [(StampingStorage, 'metadata.annotations.example.com/handled-at'), (VersioningStorage, 'version')],
)
@in_virtual_time
async def test_a_storage_that_triggers_handlers_is_reported_and_slowed_down(world, storage, field):
    async def patch_status(patch, **_):
        patch.status['constant'] = 1

    world.settings.persistence.diffbase_storage = storage()
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.update, 'update', does=patch_status)
    async with world.operator():
        await world.create()
        await world.until_called('update', 24)
        started = time.monotonic()
        await world.until_called('update', 25)
        assert time.monotonic() - started > 0.5
        (warning,) = [text for text in world.log.texts if 'in a row' in text]
        assert warning.startswith("Handler 'update' is called again because a storage in settings.persistence")
        assert f"({field})" in warning
        await world.edit(x=1)  # what others edit is handled at once
        await world.until(lambda: world.called('update')[-1]['new']['spec'].get('x') == 1)
        assert time.monotonic() - started < 10


def stamp(world, *fields):
    """Let a mutating webhook write something new into this field at each request."""
    server = kopf.WebhookServer()
    world.settings.admission.server, world.settings.admission.managed = server, 'stamps.example.com'

    @kopf.on.mutate('kopfexamples', registry=world.registry, operations=['CREATE', 'UPDATE'])
    async def mutate(patch, **_):
        kopf_dicts.ensure(patch, fields, str(next(NUMBERS)))


@pytest.mark.parametrize('field', [('metadata', 'annotations', 'stamp'), ('metadata', 'labels', 'x'), ('spec', 'n')])
@pytest.mark.parametrize('others', ['', 'field', 'level', 'event', 'patching field level timer'])
@in_virtual_time
async def test_webhooks_that_write_something_new_at_each_update_are_reported_and_slowed_down(world, field, others):
    async def patch_status(patch, **_):
        patch.status['count'] = next(NUMBERS)

    stamp(world, *field)
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.update, 'update', does=patch_status if 'patching' in others else None)
    if 'field' in others:
        world.declare(kopf.on.field, 'field', field=field)
    if 'level' in others:
        world.declare(kopf.on.reconcile, 'level', does=patch_status)
    if 'event' in others:
        world.declare(kopf.on.event, 'event', does=patch_status)
    if 'timer' in others:
        world.declare(kopf.timer, 'timer', does=patch_status, interval=5)
    async with world.operator():
        await world.create()
        await world.until_logged('each time that the operator has patched it')
        requests, calls = len(world.sandbox.requests), len(world.called('update'))
        await asyncio.sleep(30)
        assert len(world.sandbox.requests) - requests < 400
        assert len(world.called('update')) - calls < 200  # without pauses, thousands
        await world.edit(edited=1)  # what others edit is handled at once
        await world.until(lambda: any(call['spec'].get('edited') for call in world.called('update')), timeout=2)
        await world.delete()
        await world.gone()


@pytest.mark.parametrize('does', [None, kopf.TemporaryError('later', delay=0.01)], ids=['succeeding', 'failing'])
@in_virtual_time
async def test_updates_that_such_webhooks_never_let_end_are_slowed_down_too(world, does):
    stamp(world, 'spec', 'n')
    world.declare(kopf.on.create, 'create')
    for number in range(3):
        world.declare(kopf.on.update, f'update{number}', does=does if number == 2 else None)
    async with world.operator(lifecycle=kopf.lifecycles.one_by_one):
        await world.create()
        await world.until_logged('each time that the operator has patched it')
        requests = len(world.sandbox.requests)
        await asyncio.sleep(30)
        assert len(world.sandbox.requests) - requests < 100


@in_virtual_time
async def test_handlers_of_raw_events_that_change_nothing_send_nothing(world):
    async def mark(patch, **_):
        patch.spec['seen'] = True

    stamp(world, 'spec', 'n')
    world.declare(kopf.on.event, 'marking', does=mark)
    async with world.operator():
        await world.create()
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: body['spec'].get('seen'), timeout=5)
        await asyncio.sleep(5)
        assert len([seen for seen in world.sandbox.requests if seen.verb == 'patch' and seen.name == 'obj']) == 1
        await world.edit(seen=False)
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: body['spec']['seen'], timeout=5)


async def loop_until_paused(world, **fields):
    """Let an update handler trigger itself until there are long pauses."""
    await world.create(**fields)
    await world.until_called('create')
    await world.edit(n=1)
    await world.until_called('looping', 28)
    await asyncio.sleep(1)


@pytest.mark.parametrize(
    'edit, expected', [({'new': '1'}, {'l': '1', 'new': '1'}), ({'l': '2'}, {'l': '2'}), ({'l': None}, {})]
)
@in_virtual_time
async def test_edits_end_pauses_although_a_timer_patches_the_object_in_that_moment(world, edit, expected):
    moments = []

    async def edit_labels():
        moments.append(time.monotonic())
        await world.edit(metadata={'labels': edit})

    async def patch_status(patch, **_):
        patch.status['count'] = next(NUMBERS)

    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.update, 'looping', does=increment)
    world.declare(kopf.timer, 'timer', does=patch_status, interval=0.7)
    async with world.operator():
        await loop_until_paused(world, spec={'n': 0}, labels={'l': '1'})
        world.sandbox.faults.call(edit_labels, verb='patch', name='obj')
        await world.until(lambda: dict(world.called('looping')[-1]['labels']) == expected)
        assert time.monotonic() - moments[0] < 1


@in_virtual_time
async def test_edits_end_pauses_although_they_wait_for_handlers_of_raw_events(world):
    lasting = [0]

    async def observe(**_):
        await asyncio.sleep(lasting[0])

    async def patch_status(patch, **_):
        patch.status['count'] = next(NUMBERS)

    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.update, 'looping', does=increment)
    world.declare(kopf.on.event, 'event', does=observe)
    world.declare(kopf.timer, 'timer', does=patch_status, interval=0.7)
    async with world.operator():
        await loop_until_paused(world, spec={'n': 0})
        lasting[0] = 2
        await world.edit(x=1)
        await world.until(lambda: world.called('looping')[-1]['spec'].get('x') == 1, timeout=10)


@in_virtual_time
async def test_patches_of_timers_are_no_mutations_however_long_updates_take(world):
    async def count(patch, **_):
        patch.spec['count'] = next(NUMBERS)

    async def handle(**_):
        await asyncio.sleep(0.3)

    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.update, 'update', does=handle)
    world.declare(kopf.timer, 'timer', does=count, interval=0.2)
    async with world.operator():
        await world.create()
        await world.until_called('update')
        for _ in range(3):
            calls = len(world.called('update'))
            await asyncio.sleep(10)
            assert len(world.called('update')) - calls > 25
    assert not any('in a row' in text for text in world.log.texts)


@pytest.mark.parametrize('label', ['2', None])
@in_virtual_time
async def test_edits_end_the_pauses_of_level_triggered_handlers_at_any_moment(world, label):
    seen, moments = [], []

    async def edit():
        moments.append(time.monotonic())
        await world.edit(metadata={'labels': {'l': label}})

    def overwrite(field):
        async def fn(patch, labels, **_):
            seen.append((time.monotonic(), labels.get('l')))
            patch.spec[field] = next(NUMBERS)

        return fn

    world.declare(kopf.on.reconcile, 'r1', does=overwrite('f1'))
    world.declare(kopf.on.reconcile, 'r2', does=overwrite('f2'))
    async with world.operator():
        await world.create(labels={'l': '1'})
        await world.until_logged('again and again')
        await asyncio.sleep(30)
        world.sandbox.faults.call(edit, verb='patch', name='obj')
        await world.until(lambda: seen[-1][1] == label, timeout=300)
        assert seen[-1][0] - moments[0] < 1


async def count_in_status(status, patch, **_):
    patch.status['count'] = status.get('count', 0) + 1


async def count_by_function(patch, **_):
    def count(body):
        status = body.setdefault('status', {})
        status['count'] = status.get('count', 0) + 1

    patch.fns.append(count)


@pytest.mark.parametrize('managing', [False, True], ids=['alone', 'beside others'])
@pytest.mark.parametrize('does', [count_in_status, count_by_function])
@in_virtual_time
async def test_a_handler_of_raw_events_that_triggers_itself_is_reported_and_slowed_down(world, does, managing):
    world.declare(kopf.on.event, 'looping', does=does)
    if managing:
        world.declare(kopf.on.update, 'update')
    async with world.operator():
        await world.create()
        await world.until_logged('in a row')
        calls = len(world.called('looping'))
        started = time.monotonic()
        await world.until_called('looping', calls + 4)
        assert time.monotonic() - started > 0.5
        (warning,) = [text for text in world.log.texts if 'in a row' in text]
        assert warning.startswith("Handler 'looping' of raw events changes the object by its patch (status")
        await world.edit(x=1)  # what others edit is seen at once, and there can be as many steps again
        await world.until_called('looping', calls + 20)
        assert time.monotonic() - started < 10


@in_virtual_time
async def test_a_handler_of_raw_events_that_patches_what_is_not_as_wanted_is_not_slowed_down(world):
    async def follow(spec, patch, **_):
        patch.status['seen'] = spec['n']

    world.declare(kopf.on.event, 'following', does=follow)
    async with world.operator():
        await world.create(spec={'n': 0})
        for n in range(1, 61):
            await world.edit(n=n)
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: body.get('status') == {'seen': 60}, timeout=5)
    assert not any('in a row' in text for text in world.log.texts)


@pytest.mark.parametrize('stamping', [False, True])
@pytest.mark.parametrize('needed', [True, False])
@in_virtual_time
async def test_finalizers_that_webhooks_drop_or_restore_are_reported_and_retried_ever_more_rarely(
    world, needed, stamping
):
    def spoil(body):
        body['metadata']['finalizers'] = [] if needed else [FINALIZER]
        if stamping:
            body['metadata'].setdefault('annotations', {})['stamp'] = str(next(NUMBERS))

    server = kopf.WebhookServer()
    world.settings.admission.server, world.settings.admission.managed = server, 'finalizers.example.com'
    kopf.on.mutate('kopfexamples', registry=world.registry)(lambda patch, **_: patch.fns.append(spoil))
    world.settings.queueing.error_delays = [1, 2, 3, 5, 8, 100]
    world.declare(kopf.on.delete if needed else kopf.on.event, 'handler')
    world.declare(kopf.on.delete, 'other', labels={'never': 'never'})
    world.declare(kopf.on.update, 'update')
    async with world.operator():
        await world.create()
        await asyncio.sleep(20)
        assert 5 <= len(world.patches()) <= 6
        if not needed:
            await world.edit(field='edited')
            await asyncio.sleep(2)
            edited = [call for call in world.called('update') if call['new']['spec'] == {'field': 'edited'}]
            assert len(edited) == 1  # it does not wait for the next attempt
            await asyncio.sleep(20)
            assert len(world.patches()) <= 10
    action = 'added to' if needed else 'removed from'
    assert any(f"The finalizer '{FINALIZER}' cannot be {action} the object" in text for text in world.log.texts)
