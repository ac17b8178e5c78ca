"""The steps of an object: which handlers are run for its changes, with which arguments, and by how many patches."""

import asyncio
import itertools
import json

import pytest
from kinds import define
from operatorworld import FINALIZER, LAST_HANDLED, Gate, in_virtual_time

import kopf


def diffs(kwargs):
    return [(op, '.'.join(field), old, new) for op, field, old, new in kwargs['diff']]


@in_virtual_time
async def test_creations_and_updates_are_handled_once_with_one_patch_each(world):
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


@in_virtual_time
async def test_a_deletion_is_handled_once_before_the_finalizer_is_removed(world):
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


@in_virtual_time
async def test_objects_held_only_by_foreign_finalizers_are_not_handled(world, caplog):
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


@in_virtual_time
async def test_optional_deletion_handlers_need_no_finalizer(world):
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.delete, 'delete', optional=True)
    async with world.operator():
        await world.create()
        assert 'finalizers' not in (await world.handled())['metadata']
        await world.delete()
        await world.gone()


@in_virtual_time
async def test_a_finalizer_that_is_not_needed_any_more_is_removed(world):
    world.declare(kopf.on.create, 'create')
    await world.create(finalizers=[FINALIZER, 'example.com/foreign'])
    async with world.operator():
        await world.handled()
        await world.aio.wait_for(
            'kopfexamples', 'obj', lambda body: body['metadata']['finalizers'] == ['example.com/foreign']
        )
    await world.edit(metadata={'finalizers': []})


@in_virtual_time
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


@in_virtual_time
async def test_changes_during_a_downtime_are_handled_after_it(world):
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


@in_virtual_time
async def test_field_handlers_get_the_changes_of_their_field(world):
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
@in_virtual_time
async def test_values_that_are_equal_only_in_python_are_changes(world, old, new):
    for decorator, id in [(kopf.on.create, 'create'), (kopf.on.update, 'update'), (kopf.on.field, 'field')]:
        world.declare(decorator, id, **({'field': 'spec.x'} if id == 'field' else {}))
    async with world.operator():
        await world.create(spec={'x': old})
        await world.handled()
        await world.edit(x=new)
        await world.until_called('field', 2)
        body = await world.get()
        assert json.dumps(body['spec']['x']) == json.dumps(new)
    assert [json.dumps([call['old'], call['new']]) for call in world.called('field')] == [
        json.dumps([None, old]),
        json.dumps([old, new]),
    ]


@in_virtual_time
async def test_an_edit_to_a_value_that_is_equal_in_python_reaches_finished_handlers(world):
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


@in_virtual_time
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


@in_virtual_time
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


@in_virtual_time
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


@in_virtual_time
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


@in_virtual_time
async def test_the_addition_of_a_field_is_still_an_update_after_a_restart(world):
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


@in_virtual_time
async def test_a_field_that_is_added_during_a_downtime_is_a_creation(world):
    await declare_for_field(world, kopf.on.update, kopf.on.field)
    async with world.operator():
        await world.create(spec={'x': 1})
        await world.settled()
    await world.edit(a=1)
    async with world.operator():
        await world.handled(a=1)
    assert [(call.id, call.kwargs['reason']) for call in world.calls if call.name == 'obj'] == [('field', 'create')]


@in_virtual_time
async def test_daemons_do_not_reset_the_known_absence_of_a_field(world):
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


@in_virtual_time
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


@in_virtual_time
async def test_handlers_of_raw_events_get_all_events_and_cause_no_patches(world):
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


@in_virtual_time
async def test_functions_that_are_stacked_for_raw_events_are_called_once_if_any_filter_matches(world):
    fn = world.declare(kopf.on.event, 'event', labels={'first': 'yes'})
    kopf.on.event('kopfexamples', id='event', labels={'second': 'yes'}, registry=world.registry)(fn)
    async with world.operator():
        await world.create(name='none')
        for labels in ({'first': 'yes'}, {'second': 'yes'}, {'first': 'yes', 'second': 'yes'}):
            await world.create(name='-'.join(labels), labels=labels)
            await world.until_called('event', name='-'.join(labels))
    assert [call.name for call in world.calls] == ['first', 'second', 'first-second']


@in_virtual_time
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


@in_virtual_time
async def test_failing_handlers_of_raw_events_affect_no_other_handlers(world):
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


@in_virtual_time
async def test_edits_during_a_creation_are_an_update_after_it(world):
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


@in_virtual_time
async def test_creation_handlers_after_an_edit_get_no_old_state(world):
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


@in_virtual_time
async def test_edits_during_an_update_reach_finished_and_later_handlers(world):
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


@pytest.mark.parametrize('edited', [True, False])
@in_virtual_time
async def test_each_process_resumes_objects_whose_handling_goes_on_since_a_former_process(world, edited):
    """What resuming handlers restore is in the memory of the process; what handlers of changes have done is not."""
    world.declare(kopf.on.resume, 'resume')
    world.declare(kopf.on.resume, 'both')
    world.declare(kopf.on.update, 'both')
    world.declare(kopf.on.update if edited else kopf.on.resume, 'failing', does=kopf.TemporaryError("no", delay=2))
    world.declare(kopf.on.create, 'create')
    await world.create(annotations={LAST_HANDLED: '{"spec":{"field":"value"}}'})
    if edited:
        await world.edit(field='edited')
    for number in range(1, 4):
        async with world.operator():
            await world.until_called('failing', 3 * number)
    assert len(world.called('resume')) == 3
    assert len(world.called('both')) == (1 if edited else 3)


@pytest.mark.parametrize('edited', [True, False])
@in_virtual_time
async def test_subhandlers_of_resuming_handlers_are_called_in_each_process_too(world, edited):
    async def resume(**_):
        kopf.subhandler(id='sub')(run)

    async def run(name, **_):
        world.note('sub', name)

    world.declare(kopf.on.resume, 'resume', does=resume)
    world.declare(kopf.on.update, 'failing', does=kopf.TemporaryError("no", delay=2))
    await world.create(annotations={LAST_HANDLED: '{"spec":{"field":"value"}}'})
    await world.edit(field='edited')
    async with world.operator():
        await world.until_called('failing', 3)
    if edited:
        await world.edit(field='again')
    async with world.operator():
        await world.until_called('failing', 9)
    assert len(world.called('resume')) == len(world.called('sub')) == 2


@in_virtual_time
async def test_resuming_handlers_run_again_if_what_they_have_requested_is_given_up(world):
    async def resume(spec, patch, **_):
        patch.spec['seen'] = spec['field']

    world.settings.queueing.error_delays = [1]
    world.declare(kopf.on.resume, 'resume', does=resume)
    world.declare(kopf.on.update, 'failing', field='spec.field', does=kopf.TemporaryError("no", delay=2))
    await world.create(annotations={LAST_HANDLED: '{"spec":{"field":"value"}}'})
    await world.edit(field='edited')
    async with world.operator():  # it leaves the success of the handler on record
        await world.until_called('failing', 2)
    await world.edit(field='bad')
    world.sandbox.faults.error(422, times=None, method='PATCH', condition=lambda request: b'"bad"' in request.body)
    async with world.operator():
        await world.until_called('resume', 2)
        await world.edit(field='good')
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: body['spec']['seen'] == 'good')


@pytest.mark.parametrize('storage', [kopf.SmartProgressStorage, kopf.StatusProgressStorage])
@in_virtual_time
async def test_an_edited_creation_is_over_also_for_the_handlers_that_were_away_at_its_end(world, storage):
    """A handler is removed in the middle of a creation, and comes back when this is over: an upgrade and a rollback."""
    world.settings.persistence.progress_storage = storage()

    def declare(*ids):
        world.replace_code()
        for id in ids:
            world.declare(kopf.on.create, id)
        world.declare(kopf.on.update, 'update')

    world.declare(kopf.on.create, 'first')
    world.declare(kopf.on.create, 'second', does=kopf.TemporaryError("Not yet.", delay=1))
    async with world.operator():
        await world.create()
        await world.until_called('first')
        await world.edit(field='y')
        await world.until_called('second', 2)
    declare('second')
    async with world.operator():
        await world.handled(field='y')
    assert world.ids.count('update') == 1
    del world.calls[:]
    declare('first', 'second')
    async with world.operator():
        await world.settled()
        await world.edit(field='z')
        await world.handled(field='z')
    assert [call.id for call in world.calls if call.name == 'obj'] == ['update']


@in_virtual_time
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


@in_virtual_time
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
    """Return the ids of the handlers whose progress is stored in annotations."""
    keys = {key.removeprefix('kopf.zalando.org/') for key in body['metadata'].get('annotations') or ()}
    return keys - {'last-handled-configuration'}


@pytest.mark.parametrize('other', [False, True], ids=['nothing else', 'something else'])
@in_virtual_time
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


@in_virtual_time
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


@in_virtual_time
async def test_handlers_of_the_same_id_are_counted_as_one(world):
    world.declare(kopf.on.create, 'same')
    world.declare(kopf.on.create, 'same')
    async with world.operator():
        await world.create()
        await world.handled()
    assert world.ids == ['same']
    assert "Creation is processed: 1 succeeded; 0 failed." in world.log.texts


@in_virtual_time
async def test_a_permanent_failure_is_not_retried_and_does_not_stop_other_handlers(world):
    world.declare(kopf.on.create, 'create', does=kopf.PermanentError('boo'))
    world.declare(kopf.on.create, 'other')
    async with world.operator():
        await world.create()
        await world.handled()
        await world.until_logged('Creation is processed: 1 succeeded; 1 failed.')
    assert sorted(world.ids) == ['create', 'other']


@in_virtual_time
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


@in_virtual_time
async def test_results_of_handlers_are_stored_in_the_status(world):
    world.declare(kopf.on.create, 'create', does={'a': 1})
    world.declare(kopf.on.create, 'nothing', does=None)
    world.declare(kopf.on.update, 'update', does=100)
    async with world.operator():
        await world.create()
        assert (await world.handled())['status'] == {'create': {'a': 1}}
        await world.edit(field='v2')
        assert (await world.handled(field='v2'))['status'] == {'create': {'a': 1}, 'update': 100}


class Forgetful(kopf.DiffBaseStorage):
    """Keeps nothing, for operators that may not write to the objects."""

    def fetch(self, **_):
        return None

    def store(self, **_):
        pass


@pytest.mark.parametrize('status', [{}, {'phase': 'ready'}])
@in_virtual_time
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
@in_virtual_time
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


@in_virtual_time
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
@in_virtual_time
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


@in_virtual_time
async def test_fields_changed_in_place_can_also_be_patched(world):
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


async def test_the_status_that_a_creation_has_patched_after_an_edit_is_no_part_of_the_update(world):
    async def edit(**_):
        await world.edit(field='edited')

    async def patch_status(patch, **_):
        patch.status['x'] = 1

    world.declare(kopf.on.create, 'first', does=edit)
    world.declare(kopf.on.create, 'second', does=patch_status)
    world.declare(kopf.on.create, 'third')  # only what is patched in the last step is an update
    world.declare(kopf.on.update, 'update')
    world.declare(kopf.on.update, 'status', field='status.x')
    async with world.operator():
        await world.create()
        await world.until_called('update')
        await world.handled(field='edited')
    assert [[item.field for item in call['diff']] for call in world.called('update')] == [[('spec', 'field')]]
    assert 'status' not in world.ids


class Crash:
    """Drops the patches of the operator from some moment on, as if it was killed."""

    def __init__(self, world):
        self.permitted = None  # the number of patches that are still stored, if they are limited
        world.settings.queueing.error_delays = [1000]  # it must not go on in memory
        world.sandbox.faults.drop(times=None, method='PATCH', resource='things', condition=self.is_dropped)

    def is_dropped(self, request):
        if self.permitted is None or 'kopf' not in request.user_agent:
            return False
        self.permitted -= 1
        return self.permitted < 0


@pytest.fixture
def things(world):
    """Have a kind with the status subresource."""
    world.sandbox.apply(define('things', 'Thing', subresources={'status': {}}))

    async def create():
        return await world.aio.create({**THING, 'spec': {'field': 'v1'}})

    return create


THING = {'apiVersion': 'example.dev/v1', 'kind': 'Thing', 'metadata': {'name': 'obj'}}


@pytest.mark.parametrize('status', [403, 422])
@pytest.mark.parametrize('storing', ['create', 'delete', 'event', 'create, delete, event'])
@in_virtual_time
async def test_what_is_refused_does_not_keep_objects_from_being_deleted(world, things, storing, status):
    """The operator may not patch the status, in which handlers store their results."""

    async def note(meta, patch, **_):
        if 'deletionTimestamp' in meta:
            patch.status['noted'] = 'deletion'

    world.settings.queueing.error_delays = [0.5]
    world.declare(kopf.on.create, 'create', resource='things', does='result' if 'create' in storing else None)
    world.declare(kopf.on.delete, 'delete', resource='things', does='result' if 'delete' in storing else None)
    if 'event' in storing:
        kopf.on.event('things', registry=world.registry)(note)
    world.sandbox.faults.error(status, times=None, method='PATCH', path='/things/[^/]+/status')
    async with world.operator():
        await things()
        await world.until_called('create')
        await asyncio.sleep(5)
        await world.aio.delete('things', 'obj')
        await world.aio.wait_gone('things', 'obj')
    assert world.ids == ['create', 'delete']


@pytest.mark.parametrize('status', [403, 422])
@pytest.mark.parametrize('refused', [b'report', b'finalizers'], ids=['report', 'finalizer'])
@in_virtual_time
async def test_what_is_refused_only_once_is_stored_in_objects_that_others_keep(world, refused, status):
    """Another controller keeps the object, and waits for the report of the deletion handler."""

    async def delete(patch, **_):
        patch.metadata.annotations['report'] = 'done'

    world.settings.queueing.error_delays = [0.5]
    world.declare(kopf.on.delete, 'delete', does=delete)
    async with world.operator():
        await world.create(finalizers=['other/finalizer'])
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: len(body['metadata']['finalizers']) == 2)
        world.sandbox.faults.error(status, times=1, method='PATCH', condition=lambda request: refused in request.body)
        await world.delete()
        found = await world.aio.wait_for('kopfexamples', 'obj', lambda body: len(body['metadata']['finalizers']) == 1)
    assert found['metadata']['annotations']['report'] == 'done'


@in_virtual_time
async def test_the_deletion_gets_the_result_of_a_creation_that_was_refused_once(world):
    """The permission is granted meanwhile."""

    async def delete(status, **_):
        if 'create' not in status:
            raise kopf.TemporaryError("not yet", delay=1)

    world.settings.queueing.error_delays = [100]
    world.declare(kopf.on.delete, 'delete', does=delete)
    world.declare(kopf.on.create, 'create', does='identity')
    world.sandbox.faults.error(403, times=1, method='PATCH', condition=lambda request: b'identity' in request.body)
    async with world.operator():
        await world.create()
        await world.until_logged('Throttling for 100 seconds')
        await world.delete()
        await world.gone()


@pytest.mark.parametrize('permitted', range(3))
@in_virtual_time
async def test_no_handlers_of_an_edited_creation_are_lost_by_a_crash_between_two_requests(world, things, permitted):
    world.settings.persistence.progress_storage = kopf.StatusProgressStorage()
    crash = Crash(world)

    async def edit(**_):
        await world.aio.patch('things', 'obj', {'spec': {'field': 'v2'}})

    async def end(**_):
        crash.permitted = permitted

    world.declare(kopf.on.create, 'a', does=[edit], resource='things')
    world.declare(kopf.on.create, 'b', does=[end], resource='things')
    world.declare(kopf.on.create, 'c', resource='things')
    async with world.operator():
        await things()
        await world.until_called('b')
        await asyncio.sleep(1)
    world.sandbox.faults.clear()
    async with world.operator():
        await world.until_called('c')
    assert len(world.called('a')) == 1


@pytest.mark.parametrize('permitted', [1, 2])
@in_virtual_time
async def test_updates_are_not_repeated_by_a_crash_while_their_state_is_stored_twice(world, things, permitted):
    world.settings.persistence.diffbase_storage = kopf.MultiDiffBaseStorage(
        [kopf.StatusDiffBaseStorage(), kopf.AnnotationsDiffBaseStorage()]
    )
    crash = Crash(world)

    async def end(**_):
        crash.permitted = permitted

    world.declare(kopf.on.update, 'a', resource='things')
    world.declare(kopf.on.update, 'b', does=[end], resource='things')
    async with world.operator():
        await things()
        await world.aio.wait_for('things', 'obj', lambda obj: LAST_HANDLED in obj['metadata'].get('annotations', {}))
        await asyncio.sleep(1)
        await world.aio.patch('things', 'obj', {'spec': {'field': 'v2'}})
        await world.until_called('b')
        await asyncio.sleep(1)
    world.sandbox.faults.clear()
    async with world.operator():
        await asyncio.sleep(5)
        obj = await world.aio.get('things', 'obj')
        assert [*obj['metadata']['annotations']] == [LAST_HANDLED]  # without records
    assert world.ids == ['a', 'b']


DEFAULTED = {
    'type': 'object',
    'properties': {
        'spec': {
            'type': 'object',
            'properties': {
                'field': {'type': 'string'},
                'parts': {'type': 'object', 'properties': {'size': {'type': 'integer', 'default': 1}}},
                'time': {'type': 'integer'},
            },
        }
    },
}


def reset_parts(body):
    body['spec']['parts'] = {}  # the API server adds the default


TIMES = itertools.count()


def tick(body):
    body['spec']['time'] = next(TIMES)  # different at each call


@pytest.mark.parametrize('fn', [reset_parts, tick])
@in_virtual_time
async def test_what_the_api_makes_of_functions_is_no_edit_by_another_client(world, fn):
    await world.aio.create(define('things', 'Thing', schema=DEFAULTED))

    async def change(patch, **_):
        if len(world.called('first')) < 50:  # otherwise, a failing test would never end
            patch.fns.append(fn)

    world.declare(kopf.on.update, 'first', does=change, resource='things')
    world.declare(kopf.on.update, 'second', resource='things')
    world.declare(kopf.on.create, 'create', resource='things')
    async with world.operator():
        await world.aio.create({**THING, 'spec': {'field': 'v1'}})
        await world.until_called('create')
        await asyncio.sleep(1)
        await world.aio.patch('things', 'obj', {'spec': {'field': 'v2'}})
        await asyncio.sleep(1)
    assert world.ids == ['create', 'first', 'second']


def put_values(patch):
    patch.spec['unknown'] = 'x'  # the API server drops it


def put_functions(patch):
    patch.fns.append(reset_parts)


@pytest.mark.parametrize('change', [put_values, put_functions])
@in_virtual_time
async def test_what_the_api_makes_of_own_patches_does_not_disturb_idle_timers(world, change):
    await world.aio.create(define('things', 'Thing', schema=DEFAULTED))

    @kopf.timer('things', id='timer', interval=10, idle=60, registry=world.registry)
    async def timer(name, patch, **_):
        world.note('timer', name)
        change(patch)

    async with world.operator():
        await world.aio.create({**THING, 'spec': {'field': 'v1'}})
        await asyncio.sleep(60 + 5 * 10 + 5)
        assert len(world.called('timer')) == 6
        await world.aio.patch('things', 'obj', {'spec': {'field': 'v2'}})
        await asyncio.sleep(55)
    assert len(world.called('timer')) == 6


@pytest.mark.parametrize('holding', [None, 'deletion', 'daemon'])
@pytest.mark.parametrize('change', ['create', 'update'])
@in_virtual_time
async def test_an_object_that_stops_matching_for_a_while_keeps_its_progress(world, change, holding):
    labels = {'app': 'x'}
    world.declare(getattr(kopf.on, change), 'first', labels=labels)
    world.declare(getattr(kopf.on, change), 'second', labels=labels, does=[kopf.TemporaryError('later', delay=30)])
    if change == 'update':
        world.declare(kopf.on.create, 'created', labels=labels)
    if holding == 'deletion':
        world.declare(kopf.on.delete, 'deleted', labels=labels)
    if holding == 'daemon':

        @kopf.daemon('kopfexamples', registry=world.registry)
        async def daemon(stopped, **_):
            await stopped.wait()

    async with world.operator():
        await world.create(spec={'field': 'v1'}, labels=labels)
        if change == 'update':
            await world.until_called('created')
            await world.handled()
            await world.edit(field='v2')
        await world.until_called('second')
        await world.edit(metadata={'labels': {'app': 'y'}})
        await asyncio.sleep(5)
        await world.edit(metadata={'labels': labels})
        await world.until_called('second', 2)
        await world.handled()
    assert len(world.called('first')) == 1
    assert [call['retry'] for call in world.called('second')] == [0, 1]
