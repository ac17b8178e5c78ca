"""A filter that fails concerns its handler alone: the others run, nothing is lost, and the log says it once."""

import re

import pytest
from operatorworld import in_virtual_time

import kopf

FINALIZER = 'kopf.zalando.org/KopfFinalizerMarker'


def is_chosen(name, spec, **_):
    return spec['nosuch'] if name == 'obj' else False


def failures(world, kind='handler', option='when='):
    return [
        text
        for text in world.log.texts
        if re.search(
            rf"{re.escape(option)} of {kind} 'bad' \(.*test_failing_filters.py:\d+\) failed: KeyError: 'nosuch'", text
        )
    ]


@in_virtual_time
async def test_other_handlers_run_and_the_failed_one_is_tried_with_the_next_change(world):
    world.declare(kopf.on.create, 'bad', when=is_chosen)
    world.declare(kopf.on.create, 'good')
    async with world.operator():
        await world.create()
        await world.until_called('good', name='obj')
        await world.settled()
        assert world.called('bad') == []
        await world.edit(nosuch=True)
        await world.handled(nosuch=True)
    assert [kwargs['reason'] for kwargs in world.called('bad')] == ['create']
    assert len(world.called('good', 'obj')) == 1
    assert len(failures(world)) == 1
    assert not any('Throttling' in text for text in world.log.texts)


@in_virtual_time
async def test_the_creation_is_not_lost_when_the_operator_is_restarted_with_the_filter_mended(world):
    world.declare(kopf.on.create, 'good')
    world.declare(kopf.on.create, 'bad', when=lambda **_: mended[0] or {}['nosuch'])
    mended = [False]
    async with world.operator():
        await world.create()
        await world.until_called('good')
        await world.until(lambda: failures(world))
    mended[0] = True
    async with world.operator():
        await world.handled()
    assert world.ids == ['good', 'bad']


@in_virtual_time
async def test_an_update_is_not_lost_while_its_filter_fails(world):
    world.declare(kopf.on.update, 'good', field='spec.field')
    world.declare(kopf.on.update, 'bad', field='spec.field', when=is_chosen)
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        await world.create(spec={'field': 'v1', 'nosuch': False})
        await world.handled()
        await world.edit(field='v2', nosuch=None)
        await world.until_called('good')
        await world.settled()
        await world.edit(nosuch=True)
        await world.handled(nosuch=True)
    assert [(kwargs['old'], kwargs['new']) for kwargs in world.called('bad')] == [('v1', 'v2')]
    assert len(world.called('good')) == 1


@in_virtual_time
async def test_updates_do_not_wait_for_the_filters_of_a_creation_any_longer_than_until_the_next_change(world):
    world.declare(kopf.on.create, 'bad', when=is_chosen)
    world.declare(kopf.on.update, 'update')
    async with world.operator():
        await world.create()
        await world.until(lambda: failures(world))
        await world.edit(field='v2')
        await world.handled(field='v2')
        await world.edit(field='v3')
        await world.handled(field='v3')
    assert [(op, field, old, new) for kwargs in world.called('update') for op, field, old, new in kwargs['diff']] == [
        ('change', ('spec', 'field'), 'value', 'v2'),
        ('change', ('spec', 'field'), 'v2', 'v3'),
    ]


@in_virtual_time
async def test_deletions_wait_for_the_handlers_whose_filters_fail(world):
    world.declare(kopf.on.delete, 'bad', when=is_chosen)
    world.declare(kopf.on.delete, 'good')
    async with world.operator():
        await world.create(spec={'nosuch': True})
        await world.handled()
        await world.edit(nosuch=None)
        await world.handled()
        await world.delete()
        await world.until_called('good')
        await world.settled()
        assert FINALIZER in (await world.get())['metadata']['finalizers']
        await world.edit(nosuch=True)
        await world.gone()
    assert world.ids == ['good', 'bad']


@pytest.mark.parametrize(
    'option, filters',
    [
        ("labels={'x': ...}", {'labels': {'x': lambda value, **_: {}['nosuch']}}),
        ("annotations={'x': ...}", {'annotations': {'x': lambda value, **_: {}['nosuch']}}),
        ("value=", {'field': 'spec.field', 'value': lambda value, **_: {}['nosuch']}),
        ("when=", {'when': kopf.all_([lambda **_: True, lambda **_: {}['nosuch']])}),
        ("when=", {'when': lambda body, **_: body['nosuch']}),
    ],
)
@in_virtual_time
async def test_all_filters_are_named(world, option, filters):
    world.declare(kopf.on.create, 'bad', **filters)
    world.declare(kopf.on.create, 'good')
    async with world.operator():
        await world.create(labels={'x': 'y'}, annotations={'x': 'y'})
        await world.until_called('good')
        await world.until(
            lambda: any(
                text.startswith(f"{option} of handler 'bad") and "KeyError: 'nosuch'" in text
                for text in world.log.texts
            )
        )


@pytest.mark.parametrize('option', ['old', 'new'])
@in_virtual_time
async def test_failing_filters_of_transitions_are_logged(world, option):
    def fail(value, **_):
        raise KeyError('nosuch')

    world.declare(kopf.on.field, 'bad', field='spec.field', **{option: fail})
    world.declare(kopf.on.field, 'good', field='spec.field')
    async with world.operator():
        await world.create()
        await world.until_called('good')
        await world.until_logged(f"{option}= of handler 'bad/spec.field'")


@in_virtual_time
async def test_failing_filters_of_event_handlers_skip_only_these_handlers(world):
    world.declare(kopf.on.event, 'bad', when=is_chosen)
    world.declare(kopf.on.event, 'good')
    async with world.operator():
        await world.create()
        await world.until_called('good', name='obj')
        await world.aio.patch('kopfexamples', 'obj', {'status': {'beat': 1}})
        await world.until_called('good', name='obj', times=2)
        assert len(failures(world)) == 1  # no fields that it reads have changed
        await world.edit(field='v2')
        await world.until_called('good', name='obj', times=3)
        assert len(failures(world)) == 2
        await world.edit(nosuch=True)
        await world.until_called('bad')


@pytest.mark.parametrize(
    'decorator, kind, options', [(kopf.daemon, 'daemon', {}), (kopf.timer, 'timer', {'interval': 9})]
)
@in_virtual_time
async def test_failing_filters_of_daemons_and_timers_keep_them_from_starting(world, decorator, kind, options):
    world.declare(decorator, 'bad', when=is_chosen, **options)
    world.declare(decorator, 'good', **options)
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        await world.create()
        await world.until_called('good', name='obj')
        await world.handled()
        await world.settled()
        assert world.called('bad') == []
        assert len(failures(world, kind)) == 1
        await world.edit(nosuch=True)
        await world.until_called('bad')


@in_virtual_time
async def test_a_running_daemon_is_not_stopped_because_its_filter_fails(world):
    async def wait(stopped, **_):
        await stopped.wait()
        world.note('stopped', 'obj')

    world.declare(kopf.daemon, 'bad', when=is_chosen, does=wait)
    world.declare(kopf.on.update, 'update')
    async with world.operator():
        await world.create(spec={'nosuch': True})
        await world.until_called('bad')
        await world.edit(nosuch=None)
        await world.until_called('update')
        await world.until(lambda: failures(world, 'daemon'))
        assert world.called('stopped') == []
        assert FINALIZER in (await world.get())['metadata']['finalizers']
        await world.edit(nosuch=False)
        await world.until_called('stopped')


@in_virtual_time
async def test_failing_filters_of_indices_keep_the_object_out_of_them(world):
    world.declare(kopf.index, 'bad', when=is_chosen, does=lambda spec, **_: result(spec['field']))
    world.declare(kopf.on.event, 'event')

    async def result(value):
        return value

    async with world.operator():
        await world.create(spec={'field': 'v1', 'nosuch': True})
        await world.until(lambda: any(list(kwargs['bad'].get(None, ())) == ['v1'] for kwargs in world.called('event')))
        await world.edit(nosuch=None)
        await world.until(lambda: failures(world, 'indexer'))
        await world.edit(nosuch=True, field='v2')
        await world.until(lambda: any(list(kwargs['bad'].get(None, ())) == ['v2'] for kwargs in world.called('event')))


@in_virtual_time
async def test_failing_filters_of_sub_handlers_are_retried(world):
    async def declare_children(**_):
        async def child(**_):
            world.note('child', 'obj')

        kopf.subhandler(id='bad', when=is_chosen)(child)
        kopf.subhandler(id='good')(child)

    world.declare(kopf.on.create, 'parent', does=declare_children, backoff=0.01)
    async with world.operator():
        await world.create()
        await world.until_logged("Handler 'parent' failed temporarily: when= of handler 'parent/bad'")
        assert len(world.called('child')) == 1
        await world.edit(nosuch=True)
        await world.handled()
        assert len(world.called('child')) == 2
