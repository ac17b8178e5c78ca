"""The life of objects from outside: what is handled, how often, by how many requests, and what becomes of faults."""

import asyncio
import contextlib
import itertools
import json
import time
import types

import pytest

import kopf
from kopf._cogs.structs.references import Resource
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.registries import HandlerTable
from kopf._core.reactor import processing, throttling
from kopf._core.reactor.indexing_gate import IndexingGate
from kopf._core.reactor.object_records import ObjectRecord
from kopf._core.reactor.processing import Processor
from kopf._core.reactor.workers import WorkerPool

FINALIZER = 'kopf.zalando.org/KopfFinalizerMarker'


class Gate:
    """Something for a handler to wait for."""

    def __init__(self):
        self.event = asyncio.Event()

    async def __call__(self, **_):
        await self.event.wait()

    def open(self):
        self.event.set()


def diffs(kwargs):
    return [(op, '.'.join(field), old, new) for op, field, old, new in kwargs['diff']]


# Changes.


async def test_creation_and_updates(world):
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.update, 'update')
    async with world.operator():
        await world.create(spec={'field': 'v1'})
        await world.handled()
        assert world.ids == ['create']
        await world.edit(field='v2')
        await world.handled(field='v2')
        assert world.ids == ['create', 'update']
        assert diffs(world.called('update')[0]) == [('change', 'spec.field', 'v1', 'v2')]
        assert len(world.patches()) == 2  # one for each change
        await world.aio.patch('kopfexamples', 'obj', {'status': {'a': 'b'}})
        await world.edit(metadata={'finalizers': ['example.com/foreign']})
        await world.settled()
        assert len(world.patches()) == 2
        await world.edit(metadata={'finalizers': []})
    assert world.ids == ['create', 'update', 'create']


async def test_deletion(world):
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.delete, 'delete')
    async with world.operator():
        await world.create(finalizers=['example.com/foreign'])
        body = await world.handled()
        assert body['metadata']['finalizers'] == ['example.com/foreign', FINALIZER]
        assert len(world.patches()) == 2  # the finalizer must be there before anything is done
        await world.delete()
        await world.aio.wait_for(
            'kopfexamples', 'obj', lambda body: body['metadata']['finalizers'] == ['example.com/foreign']
        )
        await world.edit(metadata={'finalizers': []})
        await world.gone()
        assert len(world.patches()) == 3
    assert world.ids == ['create', 'delete']


async def test_objects_that_wait_for_others_to_let_them_go_are_none_of_our_business(world, caplog):
    caplog.set_level('DEBUG', 'kopf.objects')
    world.declare(kopf.on.delete, 'delete')
    async with world.operator():
        await world.create(finalizers=['example.com/foreign'])
        await world.handled()
        await world.delete()
        await world.until_logged("not held by this operator any more")
        await world.edit(field='v2')
        await world.settled()
        assert len(world.patches()) == 3  # it was held, handled, and released
        await world.edit(metadata={'finalizers': []})
        await world.gone()
    assert world.ids == ['delete']


async def test_optional_deletion_does_not_hold(world):
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.delete, 'delete', optional=True)
    async with world.operator():
        await world.create()
        assert 'finalizers' not in (await world.handled())['metadata']
        await world.delete()
        await world.gone()


async def test_finalizers_of_the_past_are_removed(world):
    world.declare(kopf.on.create, 'create')
    await world.create(finalizers=[FINALIZER, 'example.com/foreign'])
    async with world.operator():
        await world.handled()
        await world.aio.wait_for(
            'kopfexamples', 'obj', lambda body: body['metadata']['finalizers'] == ['example.com/foreign']
        )
    await world.edit(metadata={'finalizers': []})


async def test_objects_that_do_not_match_are_left_alone_until_they_do(world):
    world.declare(kopf.on.create, 'create', labels={'x': 'y'})
    world.declare(kopf.on.create, 'fence', when=lambda name, **_: name.startswith('fence'))
    async with world.operator():
        await world.create()
        await world.edit(field='v2')
        await world.settled()
        assert world.patches() == []
        await world.edit(metadata={'labels': {'x': 'y'}})
        await world.handled()
    assert world.called('create', 'obj')[0]['reason'] == 'create'


async def test_downtime(world):
    for decorator, id in [(kopf.on.create, 'create'), (kopf.on.update, 'update'), (kopf.on.resume, 'resume')]:
        world.declare(decorator, id)
    async with world.operator():
        await world.create('old', spec={'field': 'v1'})
        await world.create('edited', spec={'field': 'v1'})
        await world.handled('old')
        await world.handled('edited')
    world.calls.clear()
    await world.edit('edited', field='v2')
    await world.create('new')
    async with world.operator():
        await world.handled('edited', field='v2')
        await world.handled('new')
        await world.until_called('resume', 2)
        world.sandbox.faults.forget_history()
        world.sandbox.faults.drop_watches()  # everything is listed again
        await world.edit('old', field='v2')
        await world.handled('old', field='v2')
    assert sorted((call.name, call.id) for call in world.calls) == [
        ('edited', 'resume'),
        ('edited', 'update'),
        ('new', 'create'),
        ('old', 'resume'),
        ('old', 'update'),
    ]


async def test_fields(world):
    world.declare(kopf.on.field, 'field', field='spec.a.b')
    world.declare(kopf.on.create, 'create', field='spec.x')
    async with world.operator():
        await world.create(spec={'x': 1})
        await world.handled(x=1)
        for a, x in [({'b': 1}, 2), ({'b': {'c': 2}}, 3), ({'b': None}, 4), (None, 5)]:
            await world.edit(a=a, x=x)
            await world.handled(x=x)
    assert [(call['old'], call['new'], diffs(call)) for call in world.called('field')] == [
        (None, 1, [('add', '', None, 1)]),
        (1, {'c': 2}, [('change', '', 1, {'c': 2})]),
        ({'c': 2}, None, [('remove', '', {'c': 2}, None)]),
    ]


@pytest.mark.parametrize(
    'old, new',
    [(1, True), (True, 1), (0, False), (1, 1.0), ([{'a': 0}], [{'a': False}]), ({'a': 1, 'b': 2}, {'a': True, 'b': 2})],
)
async def test_values_that_are_equal_only_in_python_are_changes(world, old, new):
    for decorator, id in [(kopf.on.create, 'create'), (kopf.on.update, 'update'), (kopf.on.field, 'field')]:
        world.declare(decorator, id, **({'field': 'spec.x'} if id == 'field' else {}))
    async with world.operator():
        await world.create(spec={'x': old})
        await world.handled()
        await world.edit(x=new)
        await world.until_called('update')
        body = await world.get()
        assert json.dumps(body['spec']['x']) == json.dumps(new)
    assert [json.dumps([call['old'], call['new']]) for call in world.called('field')] == [
        json.dumps([None, old]),
        json.dumps([old, new]),
    ]


async def test_an_edit_to_a_value_that_is_equal_in_python_reaches_those_who_have_finished(world):
    gate = Gate()
    world.declare(kopf.on.update, 'first')
    world.declare(kopf.on.update, 'second', does=gate)
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        await world.create(spec={'x': 0})
        await world.handled()
        await world.edit(x=1)
        await world.until_called('second')
        await world.edit(x=True)
        gate.open()
        await world.until(lambda: world.called('first')[-1]['new']['spec']['x'] is True)


async def test_results_that_are_equal_only_in_python_are_stored(world):
    results = {1: 1, 2: True, 3: 1.0}

    async def result(spec, **_):
        return results[spec['x']]

    world.declare(kopf.on.event, 'event', does=result)
    async with world.operator():
        await world.create(spec={'x': 1})
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: 'event' in body.get('status', {}))
        await world.edit(x=2)
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: body['status']['event'] is True)


async def declare_for_field(world, *decorators):
    """Declare handlers for the field ``spec.a``, and what `World.settled` needs."""
    for decorator in decorators:
        world.declare(decorator, decorator.__name__, field='spec.a')
    world.declare(kopf.on.create, 'fence', when=lambda name, **_: name.startswith('fence'))


async def test_objects_without_the_field_are_not_written_to_and_get_it_by_an_update(world):
    await declare_for_field(world, kopf.on.update)
    async with world.operator():
        await world.create(spec={'x': {'y': 1}})
        await world.edit(x={'y': 2})
        await world.settled()
        assert world.patches() == []
        await world.edit(a=1, x={'y': 3})
        await world.handled(a=1)
        await world.edit(a=2)
        await world.handled(a=2)
        await world.edit(a=None, x=4)
        await world.handled(x=4)
    assert [(call['reason'], call['old'], call['new'], diffs(call)) for call in world.called('update')] == [
        ('update', None, 1, [('add', '', None, 1)]),
        ('update', 1, 2, [('change', '', 1, 2)]),
        ('update', 2, None, [('remove', '', 2, None)]),
    ]
    assert len(world.patches()) == 3


async def test_the_addition_of_a_field_is_the_creation_for_its_field_handlers(world):
    await declare_for_field(world, kopf.on.field)
    async with world.operator():
        await world.create(spec={'x': 1})
        await world.settled()
        assert world.patches() == []
        await world.edit(a=1)
        await world.handled(a=1)
    assert [(call['reason'], diffs(call)) for call in world.called('field')] == [('create', [('add', '', None, 1)])]
    assert len(world.patches()) == 1


async def test_an_object_that_gets_a_field_by_its_creation_is_updated_only_for_other_fields(world):
    await declare_for_field(world, kopf.on.create, kopf.on.update)
    world.declare(kopf.on.update, 'other', field='spec.b', when=lambda diff, **_: diffs({'diff': diff}))
    async with world.operator():
        await world.create('one', spec={'x': 1})
        await world.create('two', spec={'x': 1})
        await world.settled()
        await world.edit('one', a=1)
        await world.handled('one', a=1)
        await world.edit('two', a=1, b=1)
        await world.handled('two', a=1, b=1)
    assert [(call.name, call.id, call.kwargs['reason']) for call in world.calls if call.name in ('one', 'two')] == [
        ('one', 'create', 'create'),
        ('two', 'create', 'create'),
        ('two', 'other', 'update'),
    ]


async def test_the_addition_of_a_field_is_an_update_for_those_who_finish_it_after_a_restart(world):
    world.declare(kopf.on.update, 'failing', field='spec.a', does=[kopf.TemporaryError("not yet", delay=1)])
    await declare_for_field(world)
    async with world.operator():
        await world.create(spec={'x': 1})
        await world.settled()
        await world.edit(a=1)
        await world.until_called('failing')
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: body['metadata'].get('annotations'))
    async with world.operator():
        await world.handled(a=1)
    assert [(call['reason'], call['retry'], diffs(call)) for call in world.called('failing')] == [
        ('update', 0, [('add', '', None, 1)]),
        ('update', 1, [('add', '', None, 1)]),
    ]


async def test_a_field_that_is_added_while_no_operator_is_there_is_a_creation(world):
    await declare_for_field(world, kopf.on.update, kopf.on.field)
    async with world.operator():
        await world.create(spec={'x': 1})
        await world.settled()
    await world.edit(a=1)
    async with world.operator():
        await world.handled(a=1)
    assert [(call.id, call.kwargs['reason']) for call in world.calls if call.name == 'obj'] == [('field', 'create')]


async def test_daemons_do_not_make_the_absence_of_a_field_forgotten(world):
    await declare_for_field(world, kopf.on.update)
    world.declare(kopf.timer, 'timer', interval=1000)
    async with world.operator():
        await world.create(spec={'x': 1})
        await world.until_called('timer')
        await world.edit(a=1)
        await world.handled(a=1)
        await world.delete()
        await world.gone()
    assert [call['reason'] for call in world.called('update')] == ['update']


async def test_filters_see_the_whole_change_and_are_asked_about_objects_with_the_field_only(world):
    # As an operator of databases does: it fails for objects that have no snapshot.
    def is_restored(new, **_):
        return len(new['spec']['cluster']['restoreSnapshot']['snapshot']) > 0

    world.declare(kopf.on.update, 'restore', field='spec.cluster.restoreSnapshot.snapshot', when=is_restored)
    world.declare(kopf.on.create, 'created', field='spec.cluster', when=lambda new, **_: new['spec']['cluster'])
    world.declare(kopf.on.update, 'fence', when=lambda name, **_: name.startswith('fence'))
    async with world.operator():
        await world.create(spec={'cluster': {'nodes': 1}})
        await world.handled(cluster={'nodes': 1})
        await world.edit(cluster={'restoreSnapshot': {'snapshot': 's1'}})
        await world.handled(cluster={'nodes': 1, 'restoreSnapshot': {'snapshot': 's1'}})
    assert [(call.id, call.kwargs['new']) for call in world.calls] == [('created', {'nodes': 1}), ('restore', 's1')]
    assert not any('Throttling' in text for text in world.log.texts)


async def test_raw_events(world):
    world.declare(kopf.on.event, 'event')
    await world.create('old')
    async with world.operator():
        await world.until_called('event', 1, 'old')
        await world.create()
        await world.until_called('event', 1, 'obj')
        await world.edit(field='v2')
        await world.until_called('event', 2, 'obj')
        await world.delete()
        await world.until_called('event', 3, 'obj')
    assert [call['event']['type'] for call in world.called('event', 'obj')] == ['ADDED', 'MODIFIED', 'DELETED']
    assert [call['event']['type'] for call in world.called('event', 'old')] == [None]
    assert world.patches() == world.patches('old') == []


async def test_functions_that_are_stacked_for_raw_events_are_called_once_if_any_filter_matches(world):
    fn = world.declare(kopf.on.event, 'event', labels={'first': 'yes'})
    kopf.on.event('kopfexamples', id='event', labels={'second': 'yes'}, registry=world.registry)(fn)
    async with world.operator():
        await world.create(name='none')
        for labels in ({'first': 'yes'}, {'second': 'yes'}, {'first': 'yes', 'second': 'yes'}):
            await world.create(name='-'.join(labels), labels=labels)
            await world.until_called('event', name='-'.join(labels))
    assert [call.name for call in world.calls] == ['first', 'second', 'first-second']


async def test_results_of_raw_events_are_stored_unless_they_are_there_already(world):
    world.declare(kopf.on.event, 'event', does=lambda spec, **_: result(spec.get('field')))
    world.declare(kopf.on.event, 'constant', does=lambda **_: result({'a': 1}))

    async def result(value):
        return value

    async with world.operator():
        await world.create()
        await world.until(lambda: len(world.called('event')) == 2)  # with our own patch
        await world.edit(field='v2')
        await world.until(lambda: len(world.called('event')) == 4)
    assert [patch['status'] for patch in world.patches()] == [{'event': 'value', 'constant': {'a': 1}}, {'event': 'v2'}]


async def test_failing_raw_events_concern_nobody_else(world):
    def fail(**_):
        raise ValueError("the filter fails")

    world.declare(kopf.on.event, 'filtered', when=fail)
    world.declare(kopf.on.event, 'failing', does=ValueError("the handler fails"))
    world.declare(kopf.on.event, 'event')
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        await world.create()
        await world.handled()
    assert 'filtered' not in world.ids and {'failing', 'event', 'create'} == set(world.ids)
    assert not any('Throttling' in text for text in world.log.texts)


# Handlers that trigger themselves.


async def increment(spec, patch, **_):
    if spec['n'] < spec.get('limit', 1000000):
        patch.spec['n'] = spec['n'] + 1


async def increment_by_function(patch, **_):
    patch.fns.append(lambda body: body['spec'].update(n=body['spec']['n'] + 1))


@pytest.mark.parametrize('does', [increment, increment_by_function])
async def test_a_handler_that_triggers_itself_is_told_of_and_slowed_down(world, does):
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
async def test_a_storage_that_triggers_handlers_is_told_of_and_slowed_down(world, storage, field):
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
        assert warning.startswith("Handler 'update' is called again because of what the storages")
        assert f"({field})" in warning
        await world.edit(x=1)  # what others edit is handled at once
        await world.until(lambda: world.called('update')[-1]['new']['spec'].get('x') == 1)
        assert time.monotonic() - started < 10


# Handlers of raw events that trigger themselves.


async def count_in_status(status, patch, **_):
    patch.status['count'] = status.get('count', 0) + 1


async def count_by_function(patch, **_):
    def count(body):
        status = body.setdefault('status', {})
        status['count'] = status.get('count', 0) + 1

    patch.fns.append(count)


@pytest.mark.parametrize('managing', [False, True], ids=['alone', 'beside others'])
@pytest.mark.parametrize('does', [count_in_status, count_by_function])
async def test_a_handler_of_raw_events_that_triggers_itself_is_told_of_and_slowed_down(world, does, managing):
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


# Storages of the user that fail for a moment.


class Outage:
    """Makes methods of storages fail while it lasts."""

    def __init__(self, *methods):
        self.methods = set(methods)
        self.lasts = False
        self.failures = 0

    def storage(self, base):
        def make(name):
            def method(storage, *args, **kwargs):
                if self.lasts:
                    self.failures += 1
                    raise ConnectionError("the database is down")
                return getattr(super(cls, storage), name)(*args, **kwargs)

            return method

        cls = type('Database', (base,), {name: make(name) for name in self.methods if hasattr(base, name)})
        return cls()


DIFFBASE = [('diffbase', method) for method in ('build', 'fetch', 'store')]
PROGRESS = [('progress', method) for method in ('clear', 'fetch', 'store', 'purge', 'flush')]


@pytest.mark.parametrize('option, method', DIFFBASE + PROGRESS)
async def test_an_edit_is_handled_once_when_a_failing_storage_is_back(world, option, method):
    outage = Outage(method)
    if option == 'diffbase':
        world.settings.persistence.diffbase_storage = outage.storage(kopf.AnnotationsDiffBaseStorage)
    else:
        world.settings.persistence.progress_storage = outage.storage(kopf.AnnotationsProgressStorage)
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.update, 'update', does={'done': True})
    world.declare(kopf.on.update, 'retried', does=[kopf.TemporaryError("not yet", delay=0.1)])
    async with world.operator():
        await world.create()
        await world.handled()
        outage.lasts = True
        await world.edit(field='v2')
        await world.until_logged(
            f"settings.persistence.{option}_storage (Database) has failed to "
            f"{method}: ConnectionError: the database is down"
        )
        outage.lasts = False
        await world.handled(field='v2')
        assert (await world.get())['status']['update'] == {'done': True}
        await world.edit(field='v3')
        await world.handled(field='v3')
    assert [call['new']['spec']['field'] for call in world.called('update')] == ['v2', 'v3']
    assert not any('makes no sense' in text for text in world.log.texts)


@pytest.mark.parametrize('handled', ['creation', 'deletion'])
async def test_creations_and_deletions_are_handled_once_when_a_failing_storage_is_back(world, handled):
    outage = Outage('store', 'purge', 'flush')
    world.settings.persistence.progress_storage = outage.storage(kopf.AnnotationsProgressStorage)
    world.declare(kopf.on.create, 'create', does='created')
    world.declare(kopf.on.delete, 'delete', does='deleted')
    async with world.operator():
        outage.lasts = handled == 'creation'
        await world.create()
        if outage.lasts:
            await world.until(lambda: outage.failures > 2)
            outage.lasts = False
        await world.handled()
        assert (await world.get())['status']['create'] == 'created'
        outage.lasts = handled == 'deletion'
        await world.delete()
        if outage.lasts:
            await world.until_called('delete')
            await world.until(lambda: outage.failures > 2)
            outage.lasts = False
        await world.gone()
    assert world.ids == ['create', 'delete']


async def test_a_storage_that_cannot_tell_at_a_glance_if_anything_has_changed_loses_no_edit(world):
    outage = Outage('matches')
    world.settings.persistence.diffbase_storage = outage.storage(kopf.AnnotationsDiffBaseStorage)
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.update, 'update')
    async with world.operator():
        await world.create()
        await world.handled()
        outage.lasts = True
        await world.edit(field='v2')
        await world.handled(field='v2')
    assert outage.failures and world.ids == ['create', 'update']


async def test_idle_timers_go_on_when_a_failing_storage_is_back(world):
    outage = Outage('build')
    world.settings.persistence.diffbase_storage = outage.storage(kopf.AnnotationsDiffBaseStorage)
    world.declare(kopf.timer, 'timer', idle=0.2)
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        await world.create()
        await world.until_called('timer')
        outage.lasts = True
        await world.edit(field='v2')
        await world.until_logged("has failed to build")
        outage.lasts = False
        await world.until_called('timer', 2)
    assert world.called('timer')[-1]['spec'] == {'field': 'v2'}
    assert not any('makes no sense' in text for text in world.log.texts)


# What happens while handlers run.


async def test_edits_during_a_creation(world):
    gate = Gate()
    world.declare(kopf.on.create, 'create', does=gate)
    world.declare(kopf.on.update, 'update')
    async with world.operator():
        await world.create(spec={'field': 'v1'})
        await world.until_called('create')
        await world.edit(field='v2')
        await world.edit(field='v3', extra='x')
        gate.open()
        await world.handled(field='v3')
    assert world.ids == ['create', 'update']
    assert sorted(diffs(world.called('update')[0])) == [
        ('add', 'spec.extra', None, 'x'),
        ('change', 'spec.field', 'v1', 'v3'),
    ]


async def test_creation_handlers_after_an_edit_know_of_no_old_state(world):
    gate = Gate()
    world.declare(kopf.on.create, 'create', does=gate)
    world.declare(kopf.on.create, 'next')
    world.declare(kopf.on.field, 'field', field='spec.field')
    world.declare(kopf.on.field, 'filtered', field='spec.field', old=kopf.ABSENT)
    async with world.operator():
        await world.create(spec={'field': 'v1'})
        await world.until_called('create')
        await world.edit(field='v2')
        gate.open()
        await world.handled(field='v2')
    creations = [
        kwargs
        for key in ('create', 'next', 'field', 'filtered')
        for kwargs in world.called(key)
        if kwargs['reason'] == 'create'
    ]
    assert [kwargs['old'] for kwargs in creations] == [None] * 4


async def test_edits_during_an_update(world):
    gate = Gate()
    world.declare(kopf.on.update, 'first', does=gate)
    world.declare(kopf.on.update, 'second')
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        await world.create(spec={'field': 'v1'})
        await world.handled()
        await world.edit(field='v2')
        await world.until_called('first')
        await world.edit(field='v3')
        gate.open()
        await world.handled(field='v3')
    assert world.called('first')[-1]['new']['spec'] == {'field': 'v3'}
    assert world.called('second')[-1]['new']['spec'] == {'field': 'v3'}
    assert len(world.called('first')) == 2 and len(world.called('second')) == 1


async def test_created_anew_while_the_predecessor_is_handled(world):
    gate = Gate()
    world.declare(kopf.on.create, 'create', does=[gate, {'number': 2}])
    async with world.operator():
        old = await world.create(spec={'field': 'old'})
        await world.until_called('create', 1)
        await world.delete()
        new = await world.create(spec={'field': 'new'})
        await world.handled(field='new')
        gate.open()
        await world.settled()
        body = await world.get()
    assert [call['uid'] for call in world.called('create', 'obj')] == [old['metadata']['uid'], new['metadata']['uid']]
    assert body['status'] == {'create': {'number': 2}}


async def test_deleted_while_being_handled(world):
    gate = Gate()
    world.declare(kopf.on.create, 'create', does=[gate, None])
    async with world.operator():
        await world.create()
        await world.until_called('create')
        await world.delete()
        gate.open()
        await world.settled()
    assert len(world.called('create', 'obj')) == 1
    assert not any('Throttling' in text for text in world.log.texts)


async def test_deletion_supersedes_a_creation_that_fails(world):
    world.declare(kopf.on.create, 'create', does=kopf.TemporaryError('boo', delay=999))
    world.declare(kopf.on.delete, 'delete')
    async with world.operator():
        await world.create()
        await world.until_called('create')
        await world.delete()
        await world.gone()
    assert world.ids == ['create', 'delete']
    assert "Creation is superseded by deletion: 0 succeeded; 0 failed; 1 left to the moment." in world.log.texts


async def test_records_of_a_superseded_creation_go_with_the_first_record_of_the_deletion(world):
    world.declare(kopf.on.create, 'create', does=kopf.TemporaryError('boo', delay=999))
    world.declare(kopf.on.create, 'other')
    world.declare(kopf.on.delete, 'delete', does=[kopf.TemporaryError('boo', delay=999)])
    async with world.operator():
        await world.create()
        await world.until_called('create')
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: records_of(body) == {'create', 'other'})
        await world.delete()
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: 'delete' in records_of(body))
        assert records_of(await world.get()) == {'delete'}


def records_of(body):
    """The ids of the handlers whose progress is stored in annotations."""
    keys = {key.removeprefix('kopf.zalando.org/') for key in body['metadata'].get('annotations') or ()}
    return keys - {'last-handled-configuration'}


@pytest.mark.parametrize('other', [False, True], ids=['nothing else', 'something else'])
async def test_nothing_is_left_in_the_status_when_the_deletion_is_handled(world, other):
    world.settings.persistence.progress_storage = kopf.StatusProgressStorage()
    world.declare(kopf.on.create, 'create', does=kopf.TemporaryError('boo', delay=999))
    world.declare(kopf.on.delete, 'delete', does=[kopf.TemporaryError('boo', delay=0.01)])
    async with world.operator():
        await world.create(finalizers=['example.com/other'])
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: 'create' in body['status']['kopf']['progress'])
        if other:
            await world.aio.patch('kopfexamples', 'obj', {'status': {'kopf': {'other': 1}}}, subresource='status')
        await world.delete()
        body = await world.aio.wait_for(
            'kopfexamples', 'obj', lambda body: body['metadata']['finalizers'] == ['example.com/other']
        )
    assert body['status'] == ({'kopf': {'other': 1}} if other else {})


# Attempts.


class ForgetfulStorage(kopf.ProgressStorage):
    """Nothing is written, so that no request makes a pause between the attempts."""

    def fetch(self, *, key, body):
        return None

    def store(self, *, key, record, body, patch):
        pass

    def purge(self, *, key, body, patch):
        pass


@pytest.mark.timeout(30)
async def test_an_object_that_does_not_come_to_rest_leaves_time_to_others(world, monkeypatch):
    monkeypatch.setattr(processing, 'MAX_STEPS', 20)
    world.settings.persistence.progress_storage = ForgetfulStorage()
    world.settings.queueing.error_delays = [999]
    world.declare(kopf.on.create, 'create', does=kopf.TemporaryError('boo', delay=0))
    async with world.operator():
        await world.create()
        await world.until_logged("The object does not come to rest in 20 steps.")
    assert len(world.called('create')) <= 20


async def test_retries_are_not_requested_from_the_cluster(world):
    world.declare(
        kopf.on.create, 'create', does=[kopf.TemporaryError('boo', delay=0.1), ValueError('boo'), 'result'], backoff=0.1
    )
    async with world.operator():
        await world.create()
        body = await world.handled()
    calls = world.called('create')
    assert [call['retry'] for call in calls] == [0, 1, 2]
    assert len({call['started'] for call in calls}) == 1
    assert body['status'] == {'create': 'result'}
    assert len(world.patches()) == 3
    assert 'touch-dummy' not in json.dumps(world.patches())


async def test_handlers_that_have_stopped_matching_are_counted(world):
    world.declare(kopf.on.create, 'once', labels={'done': kopf.ABSENT})
    world.declare(kopf.on.create, 'failed', labels={'done': kopf.ABSENT}, does=kopf.PermanentError("never"))
    world.declare(kopf.on.create, 'waiting', labels={'done': kopf.ABSENT}, does=kopf.TemporaryError("wait", delay=999))
    world.declare(kopf.on.create, 'retried', does=[kopf.TemporaryError("not yet", delay=0.1)])
    async with world.operator():
        await world.create()
        for id, times in [('once', 1), ('failed', 1), ('waiting', 1), ('retried', 2)]:
            await world.until_called(id, times)
        await world.edit(metadata={'labels': {'done': 'yes'}})
        await world.handled()
        await world.until_logged("is processed: ")
    assert [text for text in world.log.texts if 'is processed' in text] == [
        "Creation is processed: 2 succeeded; 1 failed."
    ]


async def test_handlers_of_the_same_id_are_counted_as_one(world):
    world.declare(kopf.on.create, 'same')
    world.declare(kopf.on.create, 'same')
    async with world.operator():
        await world.create()
        await world.handled()
    assert world.ids == ['same']
    assert "Creation is processed: 1 succeeded; 0 failed." in world.log.texts


async def test_permanent_failures(world):
    world.declare(kopf.on.create, 'create', does=kopf.PermanentError('boo'))
    world.declare(kopf.on.create, 'other')
    async with world.operator():
        await world.create()
        await world.handled()
        await world.until_logged('Creation is processed: 1 succeeded; 1 failed.')
    assert sorted(world.ids) == ['create', 'other']


async def test_handlers_that_are_cancelled_by_themselves_are_retried(world):
    async def cancel_something(**_):
        task = asyncio.create_task(asyncio.sleep(99))
        task.cancel()
        await task

    world.declare(kopf.on.create, 'create', does=[cancel_something, None], backoff=0.01)
    async with world.operator():
        await world.create()
        await world.handled()
    assert world.ids == ['create', 'create']


async def test_attempts_go_on_after_a_restart(world):
    world.declare(kopf.on.create, 'create', does=[kopf.TemporaryError('boo', delay=0.2), None])
    async with world.operator():
        await world.create()
        await world.aio.wait_for(
            'kopfexamples', 'obj', lambda body: 'kopf.zalando.org/create' in body['metadata'].get('annotations', {})
        )
    async with world.operator():
        await world.handled()
    assert [call['retry'] for call in world.called('create')] == [0, 1]
    assert len({call['started'] for call in world.called('create')}) == 1


@pytest.mark.parametrize('edited', [True, False], ids=['edited', 'not edited'])
async def test_edits_between_operators_in_the_middle_of_a_creation(world, edited):
    world.declare(kopf.on.create, 'first')
    world.declare(kopf.on.create, 'second', does=[kopf.TemporaryError('boo', delay=0.2), None])
    world.declare(kopf.on.update, 'update')
    async with world.operator():
        await world.create(spec={'field': 'v1'})
        await world.aio.wait_for(
            'kopfexamples',
            'obj',
            lambda body: 'boo' in body['metadata'].get('annotations', {}).get('kopf.zalando.org/second', ''),
        )
    if edited:
        await world.edit(field='v2')
    async with world.operator():
        await world.handled(field='v2' if edited else 'v1')
    assert sorted(world.ids) == ['first', 'second', 'second', *(['update'] if edited else [])]
    assert [call['new']['spec'] for call in world.called('update')] == ([{'field': 'v2'}] if edited else [])


async def test_results(world):
    world.declare(kopf.on.create, 'create', does={'a': 1})
    world.declare(kopf.on.create, 'nothing', does=None)
    world.declare(kopf.on.update, 'update', does=100)
    async with world.operator():
        await world.create()
        assert (await world.handled())['status'] == {'create': {'a': 1}}
        await world.edit(field='v2')
        assert (await world.handled(field='v2'))['status'] == {'create': {'a': 1}, 'update': 100}


# Faults of the API.


@pytest.mark.parametrize('status', [400, 403, 409, 422, 429, 500])
async def test_refused_patches_lose_nothing(world, status):
    async def work(patch, **_):
        patch.spec['added'] = 'by value'
        patch.fns.append(lambda body: body['spec'].update(also='by function'))
        return 'result'

    world.declare(kopf.on.create, 'create', does=work)
    world.declare(kopf.on.update, 'update')
    async with world.operator():
        world.sandbox.faults.error(status, times=2, verb='patch', name='obj')
        await world.create()
        await world.handled(added='by value', also='by function')
        await world.settled()
        body = await world.get()
    assert body['spec'] == {'field': 'value', 'added': 'by value', 'also': 'by function'}
    assert body['status'] == {'create': 'result'}
    assert len(world.called('create', 'obj')) == 1
    assert len(world.called('update', 'obj')) <= 1  # of what the creation has made


async def test_answers_that_are_lost_repeat_nothing(world):
    world.declare(kopf.on.create, 'create', does='result')
    world.declare(kopf.on.update, 'update')
    async with world.operator():
        world.sandbox.faults.drop(times=2, verb='patch', name='obj')
        await world.create()
        assert (await world.handled())['status'] == {'create': 'result'}
    assert world.ids == ['create']


async def test_objects_that_seem_to_be_gone(world):
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        world.sandbox.faults.error(404, times=1, verb='patch', name='obj')
        await world.create()
        await world.until_called('create')
        await world.settled()
        assert not any('Throttling' in text for text in world.log.texts)
        await world.edit(field='v2')
        await world.handled(field='v2')


async def test_throttling(world, caplog):
    world.settings.queueing.error_delays = [0.05, 0.06]
    world.declare(kopf.on.create, 'create', does=None)
    async with world.operator():
        rule = world.sandbox.faults.error(403, times=None, verb='patch', name='obj')
        await world.create()
        await world.until_logged('Throttling for 0.05 seconds due to an unexpected error')
        await world.settled()  # others go on
        await world.until(lambda: sum('Throttling for 0.06 seconds' in text for text in world.log.texts) >= 2)
        world.sandbox.faults.clear()
        await world.edit(field='v2')
        await world.handled(field='v2')
        await world.until_logged('Throttling is over. Switching back to normal operations.')
    assert rule.times is None and len(world.called('create', 'obj')) == 1
    skipped = [record.k8s_skip for record in caplog.records if 'Throttling' in record.getMessage()]
    assert skipped and all(skipped)  # they are not posted as events


class FailingStorage(ForgetfulStorage):
    def store(self, *, key, record, body, patch):
        raise RuntimeError("boo")


async def test_the_same_failure_is_shown_with_its_traceback_once(world, caplog):
    world.settings.queueing.error_delays = [0.01]
    world.settings.persistence.progress_storage = FailingStorage()
    world.declare(kopf.on.create, 'create', does=kopf.TemporaryError('boo', delay=0))

    def shown():
        return [record.exc_info is not None for record in caplog.records if 'Throttling' in record.getMessage()]

    async with world.operator():
        await world.create()
        await world.until(lambda: len(shown()) >= 3)
    assert shown()[:3] == [True, False, False]


async def test_edits_hasten_the_next_attempt_but_not_before_a_pause(world, monkeypatch):
    monkeypatch.setattr(throttling, 'RECOVERY_PAUSE', 0.5)
    world.settings.queueing.error_delays = [999]
    world.declare(kopf.on.create, 'create', does={'field': 'x'})
    world.declare(kopf.on.delete, 'delete')
    world.sandbox.faults.error(422, method='PATCH', name='obj', times=1)
    async with world.operator():
        await world.create(finalizers=[world.settings.persistence.finalizer])
        await world.until_logged('Throttling for 999 seconds')
        failed = time.monotonic()
        await world.delete()
        await world.gone()
    assert time.monotonic() - failed > 0.4


async def test_edits_that_have_come_before_the_failure_do_not_hasten_the_next_attempt(world):
    world.settings.queueing.error_delays = [999]

    async def edit(name, **_):
        if name == 'obj':
            await world.edit(field='edited')
            await world.create('later')  # it comes after the edit
            await world.until_called('seen', name='later')

    world.declare(kopf.on.event, 'seen')
    world.declare(kopf.on.create, 'create', does=edit)
    world.sandbox.faults.error(500, method='PATCH', name='obj', times=None)
    async with world.operator():
        await world.create()
        await world.until_logged('Throttling for 999 seconds')
        await world.settled()
    assert sum('Throttling' in text for text in world.log.texts) == 1


async def test_edits_while_throttled(world):
    world.declare(kopf.on.create, 'create', does='result')
    world.declare(kopf.on.update, 'update', does='result')
    async with world.operator():
        await world.create()
        await world.handled()
        world.settings.queueing.error_delays = [0.2]
        world.sandbox.faults.error(500, times=1, verb='patch', name='obj')
        await world.edit(field='v2')
        await world.until_logged('Throttling for 0.2 seconds')
        await world.edit(field='v3')
        body = await world.handled(field='v3')
    assert world.called('update')[-1]['new']['spec'] == {'field': 'v3'}
    assert body['status'] == {'create': 'result', 'update': 'result'}


async def test_deletion_while_throttled(world):
    world.settings.queueing.error_delays = [0.1]
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        world.sandbox.faults.error(500, times=1, verb='patch', name='obj')
        await world.create()
        await world.until_logged('Throttling')
        await world.delete()
        await world.create(spec={'field': 'new'})
        await world.handled(field='new')
    assert len(world.called('create', 'obj')) == 2


async def test_functions_are_applied_to_what_others_have_changed(world):
    async def work(patch, name, **_):
        patch.fns.append(lambda body: body['spec'].setdefault('items', []).append('ours'))
        await world.edit(name, items=['theirs'])

    world.declare(kopf.on.create, 'create', does=work)
    async with world.operator():
        await world.create()
        body = await world.aio.wait_for('kopfexamples', 'obj', lambda body: 'ours' in body['spec'].get('items', ()))
        assert body['spec']['items'] == ['theirs', 'ours']
        await world.handled()
    assert len(world.called('create')) == 1


async def test_finalizers_in_a_contest(world):
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.delete, 'delete')
    async with world.operator():
        world.sandbox.faults.error(422, times=2, verb='patch', name='obj')
        await world.create()
        await world.edit(field='v2')
        await world.edit(field='v3')
        await world.settled()
        await world.edit(field='v4')
        await world.handled(field='v4')
        world.sandbox.faults.error(409, times=1, verb='patch', name='obj')
        await world.delete()
        await world.edit(metadata={'labels': {'x': 'y'}})
        await world.gone()
    assert len(world.called('create', 'obj')) == len(world.called('delete', 'obj')) == 1


# Late events.


async def test_events_that_are_late_mislead_nobody(world):
    gate = Gate()
    world.declare(kopf.on.create, 'create', does=gate)
    world.declare(kopf.on.update, 'update')
    async with world.operator():
        await world.create(spec={'field': 'v1'})
        await world.until_called('create')
        world.sandbox.faults.freeze_watches(resource='kopfexamples')
        await world.edit(field='v2')  # before our patch
        gate.open()
        await world.handled(field='v2')  # known from the answer to the patch
        await world.edit(field='v3')  # after it
        world.sandbox.faults.clear()
        await world.handled(field='v3')
    assert world.ids == ['create', 'update', 'update']


async def test_watches_that_break_at_any_time(world):
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.update, 'update')
    async with world.operator():
        for number in range(3):
            await world.create(f'obj{number}', spec={'field': 'v1'})
        world.sandbox.faults.cut_watches(times=2)
        for number in range(3):
            await world.edit(f'obj{number}', field='v2')
        world.sandbox.faults.expire_watches(times=1)
        for number in range(3):
            await world.edit(f'obj{number}', field='v3')
            await world.handled(f'obj{number}', field='v3')
    assert sorted(call.name for call in world.calls if call.id == 'create') == ['obj0', 'obj1', 'obj2']
    for number in range(3):
        last = [call for call in world.calls if call.name == f'obj{number}'][-1]
        assert last.kwargs['new']['spec'] == {'field': 'v3'}


# Versions that cannot be compared: there are no such ones in the sandbox.


class OpaqueApi:
    """An API with one object, whose versions tell nothing of their order."""

    def __init__(self):
        self.number = 0
        self.version = 'v{}'
        self.raw = {'metadata': {'name': 'obj', 'uid': 'uid', 'resourceVersion': 'v0'}, 'spec': {'field': 'v1'}}

    def change(self, **changes):
        self.number += 1
        version = self.version.format(self.number)
        metadata = {**self.raw['metadata'], **changes.pop('metadata', {}), 'resourceVersion': version}
        self.raw = {**self.raw, **changes, 'metadata': metadata}
        return {'type': 'MODIFIED', 'object': self.raw}

    async def patch(self, path, obj, content_type, *, logger=None):
        return self.change(**obj)['object']


@pytest.fixture
async def opaque(world):
    registry = world.registry
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.update, 'update')
    api, settings = OpaqueApi(), kopf.OperatorSettings()
    settings.persistence.consistency_timeout = 0.2
    table = HandlerTable.build(registry, Resource('kopf.dev', 'v1', 'kopfexamples'), set(registry.iter_selectors()))
    workers = WorkerPool(settings, IndexingGate())
    processor = Processor(
        OperatorContext(settings=settings, lifecycle=kopf.lifecycles.asap, memo=kopf.Memo()),
        client=api,
        table=table,
        workers=workers,
    )
    record = ObjectRecord('uid', None, 'obj', initial=False)

    async def rest():
        await asyncio.sleep(0)
        while record.has_worker:
            await asyncio.sleep(0)

    yield types.SimpleNamespace(
        api=api,
        record=record,
        rest=rest,
        settings=settings,
        receive=lambda event, since=None: processor.receive(record, event, listed_since=since),
    )
    await workers.close()


async def test_opaque_versions_with_an_echo(world, opaque):
    stale = {'type': 'ADDED', 'object': opaque.api.raw}
    opaque.receive(stale)
    await opaque.rest()
    opaque.receive(stale)  # from before our patch, as far as we can know
    opaque.receive({'type': 'MODIFIED', 'object': opaque.api.raw})  # its echo
    opaque.receive(opaque.api.change(spec={'field': 'v2'}))
    await opaque.rest()
    assert world.ids == ['create', 'update']
    await asyncio.sleep(0.3)
    assert world.ids == ['create', 'update']


async def test_opaque_versions_without_an_echo(world, opaque):
    opaque.receive({'type': 'ADDED', 'object': opaque.api.raw})
    await opaque.rest()
    opaque.receive(opaque.api.change(spec={'field': 'v2'}))
    opaque.receive(opaque.api.change(spec={'field': 'v3'}))
    await opaque.rest()
    assert world.ids == ['create']
    await world.until_called('update')
    assert world.called('update')[0]['new']['spec'] == {'field': 'v3'}


async def test_versions_that_have_gone_back(world, opaque):
    """As when the API is restored from a backup: then, all newer versions are lower than that of our last patch."""
    opaque.api.version, opaque.api.number = '{}', 100
    opaque.settings.persistence.consistency_timeout = 0.01
    opaque.receive(opaque.api.change())
    await opaque.rest()
    await asyncio.sleep(0.02)
    opaque.api.number = 50
    opaque.receive({**opaque.api.change(spec={'field': 'v2'}), 'type': None}, time.monotonic())
    await opaque.rest()
    assert world.ids == ['create', 'update']


class Forgetful(kopf.DiffBaseStorage):
    """Keeps nothing, for those who may not write to the objects."""

    def fetch(self, **_):
        return None

    def store(self, **_):
        pass


@pytest.mark.parametrize('status', [{}, {'phase': 'ready'}])
async def test_what_creation_handlers_patch_is_an_update(world, status):
    async def complete(patch, **_):
        patch.spec['added'] = 'value'
        patch.status.update(status)

    world.declare(kopf.on.create, 'create', does=complete)
    world.declare(kopf.on.update, 'update')
    async with world.operator():
        await world.create(spec={'field': 'value'})
        await world.handled(field='value', added='value')
    assert world.ids == ['create', 'update']
    assert world.called('update')[0]['diff'] == (('add', ('spec', 'added'), None, 'value'),)


@pytest.mark.parametrize(
    'storage, kind', [(kopf.StatusDiffBaseStorage(field='status.pruned'), 'configmaps'), (Forgetful(), 'kopfexamples')]
)
async def test_handled_states_that_are_not_kept_are_handled_once(world, storage, kind):
    async def count(**_):
        return len(world.ids)

    world.settings.persistence.diffbase_storage = storage
    world.declare(kopf.on.create, 'create', resource=kind, labels={'mine': 'yes'}, does=count)
    head = (
        {'apiVersion': 'v1', 'kind': 'ConfigMap'}
        if kind == 'configmaps'
        else {'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample'}
    )
    async with world.operator():
        await world.aio.create({**head, 'metadata': {'name': 'obj', 'labels': {'mine': 'yes'}}})
        for times, value in enumerate(['v1', 'v2', 'v1'], start=1):
            await world.until_called('create', times=times)
            await world.aio.patch(kind, 'obj', {'metadata': {'annotations': {'edit': value}}})
        await world.until_called('create', times=4)
        await world.aio.create({**head, 'metadata': {'name': 'next', 'labels': {'mine': 'yes'}}})
        await world.until_called('create', name='next')
    assert [kwargs['annotations'].get('edit') for kwargs in world.called('create', 'obj')] == [None, 'v1', 'v2', 'v1']


async def test_handled_states_that_are_not_kept_are_handled_once_also_without_patches(world):
    world.settings.persistence.diffbase_storage = Forgetful()
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        await world.create()
        await world.until_called('create')
        await world.aio.patch('kopfexamples', 'obj', {'status': {'by': 'others'}})
        await world.create('next')
        await world.until_called('create', name='next')
    assert len(world.called('create', 'obj')) == 1


# Several operators, several resources.


async def test_two_operators_in_one_process(world):
    async with contextlib.AsyncExitStack() as stack:
        for name in ['one', 'two']:
            registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
            settings.posting.enabled = False
            settings.persistence.finalizer = f'{name}.example.com/finalizer'
            settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=f'{name}.example.com')
            settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=f'{name}.example.com')
            kopf.on.login(registry=registry)(kopf.login_with_kubeconfig)
            world.declare(kopf.on.create, f'{name}-create', does=name, registry=registry)
            world.declare(kopf.on.update, f'{name}-update', does=name, registry=registry)
            await stack.enter_async_context(world.operator(registry=registry, settings=settings))
        await world.create(spec={'field': 'v1'})
        await world.until_called('one-create')
        await world.until_called('two-create')
        await world.edit(field='v2')
        await world.until_called('one-update')
        await world.until_called('two-update')
        await world.aio.wait_for(
            'kopfexamples',
            'obj',
            lambda body: (
                body.get('status')
                == {'one-create': 'one', 'two-create': 'two', 'one-update': 'one', 'two-update': 'two'}
            ),
        )
        count = len(world.patches())
        await world.delete()
        await world.gone()
    assert sorted(world.ids) == ['one-create', 'one-update', 'two-create', 'two-update']
    assert len(world.patches()) == count


def define(plural='kopfexamples', group='other.dev', version='v1'):
    kind = 'Kind' + plural.title()
    return {
        'apiVersion': 'apiextensions.k8s.io/v1',
        'kind': 'CustomResourceDefinition',
        'metadata': {'name': f'{plural}.{group}'},
        'spec': {
            'group': group,
            'scope': 'Namespaced',
            'names': {'kind': kind, 'plural': plural, 'singular': plural},
            'versions': [
                {
                    'name': version,
                    'served': True,
                    'storage': True,
                    'schema': {'openAPIV3Schema': {'type': 'object', 'x-kubernetes-preserve-unknown-fields': True}},
                }
            ],
        },
    }


async def test_resources_that_come_and_go(world):
    world.declare(kopf.on.event, 'event', resource='things')
    async with world.operator():
        await world.until_logged('Unresolved resources cannot be served')
        for version in ['v1', 'v2']:
            await world.aio.create(define('things', version=version))
            await world.aio.create(
                {'apiVersion': f'other.dev/{version}', 'kind': 'KindThings', 'metadata': {'name': f'x-{version}'}}
            )
            await world.until(lambda version=version: world.called('event', f'x-{version}'))
            await world.aio.delete('customresourcedefinitions', 'things.other.dev')
            await world.aio.wait_gone('customresourcedefinitions', 'things.other.dev')


async def test_ambiguity_concerns_only_those_who_are_ambiguous(world):
    world.declare(kopf.on.event, 'ambiguous', resource='kopfexamples')
    world.declare(kopf.on.event, 'specific', 'kopfexamples', resource='kopf.dev')
    await world.aio.create(define('kopfexamples'))
    async with world.operator():
        await world.until_logged('Ambiguous resources will not be served')
        await world.create()
        await world.until_called('specific')
        assert 'ambiguous' not in world.ids
        await world.aio.delete('customresourcedefinitions', 'kopfexamples.other.dev')
        await world.until_called('ambiguous')


async def test_nothing_is_handled_of_resources_that_are_not_served_any_more(world):
    world.declare(kopf.on.create, 'create', does=[kopf.TemporaryError('boo', delay=1), None])
    world.declare(kopf.on.event, 'event', resource='configmaps')
    async with world.operator():
        await world.create()
        await world.until_called('create')
        await world.aio.delete('customresourcedefinitions', 'kopfexamples.kopf.dev')
        await asyncio.sleep(1.5)
    assert world.ids.count('create') == 1


@pytest.mark.parametrize(
    'change, version', [({'subresources': {'status': {}}}, 'v1'), ({'name': 'v2', 'storage': False}, 'v2')]
)
async def test_objects_are_not_resumed_again_when_their_resource_is_defined_differently(world, change, version):
    async def remember(memo, **_):
        memo.seen = True

    world.declare(kopf.on.resume, 'resume', does=remember)
    world.declare(kopf.on.update, 'update', does=['result'] * 100)
    async with world.operator():
        await world.create('old')
        await world.handled('old')
    async with world.operator():
        await world.until_called('resume')
        await world.create('new')
        await world.handled('new')
        name = 'kopfexamples.kopf.dev'
        crd = await world.aio.get('customresourcedefinitions', name)
        versions = crd['spec']['versions']
        changed = {**versions[0], **change}
        await world.aio.patch(
            'customresourcedefinitions',
            name,
            {'spec': {'versions': [*(item for item in versions if item['name'] != changed['name']), changed]}},
        )
        for number in itertools.count():  # until the operator knows, too
            await world.edit('old', field=f'value{number}')
            await world.until_called('update', number + 1, name='old')
            resource = world.called('update', name='old')[-1]['resource']
            if resource.version == version and ('subresources' not in change or 'status' in resource.subresources):
                break
        assert world.called('update', name='old')[-1]['memo'].seen
        await world.aio.wait_for('kopfexamples', 'old', lambda body: body.get('status', {}).get('update') == 'result')
    assert [call.name for call in world.calls if call.id == 'resume'] == ['old']


async def test_another_version_takes_over_what_is_planned(world):
    world.declare(kopf.on.create, 'create', does=[kopf.TemporaryError('boo', delay=3), None])
    async with world.operator():
        await world.create()
        await world.until_called('create')
        name = 'kopfexamples.kopf.dev'
        versions = (await world.aio.get('customresourcedefinitions', name))['spec']['versions']
        await world.aio.patch(
            'customresourcedefinitions',
            name,
            {'spec': {'versions': [*versions, {**versions[0], 'name': 'v2', 'storage': False}]}},
        )
        await world.handled()
        await asyncio.sleep(0.2)
    assert [call['retry'] for call in world.called('create')] == [0, 1]
    assert world.called('create')[-1]['resource'].version == 'v2'


async def switch_version(world, *, old_served):
    name = 'kopfexamples.kopf.dev'
    versions = (await world.aio.get('customresourcedefinitions', name))['spec']['versions']
    await world.aio.patch(
        'customresourcedefinitions',
        name,
        {
            'spec': {
                'versions': [{**versions[0], 'served': old_served}, {**versions[0], 'name': 'v2', 'storage': False}]
            }
        },
    )


@pytest.mark.parametrize('old_served', [True, False], ids=['with the old', 'without the old'])
async def test_another_version_while_handlers_run(world, old_served):
    gate = Gate()
    world.declare(kopf.on.create, 'create', does=[gate, None])
    world.declare(kopf.on.delete, 'delete')
    world.declare(kopf.on.resume, 'resume')
    async with world.operator():
        await world.create('other')
        await world.until_called('create')
        await world.create()
        await world.until_called('create', name='obj')
        await world.handled()
        await switch_version(world, old_served=old_served)
        await asyncio.sleep(0.3)
        gate.open()
        await world.handled('other')
        body = await world.aio.get('kopfexamples', 'other')
        assert body['apiVersion'] == 'kopf.dev/v2' and 'create' not in body.get('status', {})
        await world.delete('other')
        await world.gone('other')
    assert sorted(world.ids) == ['create', 'create', 'delete']


async def test_objects_of_kinds_that_are_deleted_are_let_go(world):
    gate = Gate()
    world.declare(kopf.on.delete, 'delete', does=[gate])
    async with world.operator():
        await world.create()
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: body['metadata'].get('finalizers'))
        await world.aio.delete('customresourcedefinitions', 'kopfexamples.kopf.dev')
        await world.until_called('delete')
        await asyncio.sleep(0.5)  # the operators look at what there is to be served
        gate.open()
        await world.aio.wait_gone('customresourcedefinitions', 'kopfexamples.kopf.dev')
    assert world.ids == ['delete']
    assert not any('Non-patchable' in text for text in world.log.texts)


async def test_kinds_that_are_being_deleted_before_the_operator_starts(world):
    world.declare(kopf.on.delete, 'delete')
    await world.create(finalizers=[FINALIZER])
    await world.aio.delete('customresourcedefinitions', 'kopfexamples.kopf.dev')
    async with world.operator():
        await world.aio.wait_gone('customresourcedefinitions', 'kopfexamples.kopf.dev')
    assert world.ids == ['delete']


@pytest.mark.parametrize(
    'decorator, options, times',
    [
        (kopf.on.create, {}, 1),
        (kopf.on.create, {'backoff': 0.1}, 2),
        (kopf.on.event, {}, 2),
        (kopf.timer, {'interval': 0.1}, 2),
    ],
    ids=['create', 'retried', 'event', 'timer'],
)
async def test_what_handlers_change_in_place_is_undone(world, decorator, options, times):
    async def change(spec, retry, **_):
        if 'items' in spec:  # it is not one of those that are only waited for
            seen.append(list(spec['items']))
            spec['items'].append('mine')
            assert 'backoff' not in options or retry

    seen = []
    world.declare(decorator, 'change', does=change, **options)
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.update, 'update')
    async with world.operator():
        await world.create(spec={'items': ['yours']})
        await world.until(lambda: len(seen) >= times)
        await world.handled()
        await world.settled()
        await world.edit(field='v2')
        await world.handled(items=['yours'], field='v2')
    assert [diffs(call) for call in world.called('update')] == [[('add', 'spec.field', None, 'v2')]]
    assert all(items == ['yours'] for items in seen)
    told = [text for text in world.log.texts if "'change': The object was changed in place: spec.items." in text]
    assert len(told) == 1


async def test_what_is_changed_in_place_can_be_patched(world):
    async def change(spec, patch, **_):
        items = spec['items']
        items.append('mine')
        patch.spec['items'] = items
        patch.fns.append(lambda body: body['metadata'].setdefault('labels', {}).update(changed='yes'))

    world.declare(kopf.on.create, 'create', does=change)
    async with world.operator():
        await world.create(spec={'items': ['yours']})
        body = await world.handled()
    assert body['spec']['items'] == ['yours', 'mine'] and body['metadata']['labels'] == {'changed': 'yes'}
