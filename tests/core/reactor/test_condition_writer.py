"""Conditions of objects in an operator: what handlers set, what is kept for them, and what it costs."""

import asyncio
import copy
import datetime

import pytest
from kinds import PARTS, define
from operatorworld import in_virtual_time

import kopf

RECONCILE = kopf.on.reconcile
CRD = define('things', 'Thing', group='example.com', schema=PARTS, subresources={'status': {}})
OTHER = {
    'type': 'Other',
    'status': 'Unknown',
    'reason': 'Else',
    'message': 'of another client',
    'lastTransitionTime': '2020-01-01T00:00:00Z',
}


@pytest.fixture
def things(world):
    world.sandbox.create(CRD)
    return Things(world)


class Things:
    """The objects of a kind with the status subresource."""

    def __init__(self, world):
        self.world = world

    def declare(self, does=None, decorator=RECONCILE, id='fn', resource='things', **options):
        @decorator(resource, id=id, registry=self.world.registry, **options)
        async def fn(conditions, name, **kwargs):
            self.world.note(id, name, conditions=conditions, **kwargs)
            what = (does.pop(0) if does else None) if isinstance(does, list) else does
            if isinstance(what, BaseException):
                raise what
            return await what(conditions=conditions, **kwargs) if callable(what) else what

    async def create(self, name='obj', status=None, **spec):
        created = await self.world.aio.create(
            {'apiVersion': 'example.com/v1', 'kind': 'Thing', 'metadata': {'name': name}, 'spec': spec}
        )
        return created if status is None else await self.patch_status(status, name)

    async def patch_status(self, status, name='obj'):
        return await self.world.aio.patch('things', name, {'status': status}, subresource='status')

    async def edit(self, name='obj', **spec):
        return await self.world.aio.patch('things', name, {'spec': spec})

    async def until(self, check, name='obj'):
        """Wait until the conditions, by their types, are as the function wants them."""
        return read(await self.world.aio.wait_for('things', name, lambda body: check(read(body))))

    async def until_ready(self, generation=1):
        return await self.until(
            lambda found: (
                (found.get('Ready', {}).get('status'), found['Ready'].get('observedGeneration')) == ('True', generation)
            )
        )


def read(body):
    return {each['type']: each for each in body.get('status', {}).get('conditions', [])}


def say(found):
    return {type_: (each['status'], each['reason'], each['message']) for type_, each in found.items()}


async def rest(seconds=0.3):
    """Let happen what must not happen: there is nothing else to wait for."""
    await asyncio.sleep(seconds)


READY = {'Ready': ('True', 'Succeeded', '')}


# What handlers set.


@in_virtual_time
async def test_what_a_handler_sets_is_written_beside_the_conditions_of_others(things, world):
    async def fn(conditions, **_):
        assert conditions['Other'].reason == 'Else'
        conditions['Working'] = kopf.Condition(True, 'Fine', "It works.")

    things.declare(fn)
    await things.create(status={'conditions': [OTHER]})
    async with world.operator():
        found = await things.until(lambda found: 'Working' in found)
        await rest()
    assert list(found) == ['Other', 'Working'] and found['Other'] == OTHER
    written = found['Working']
    assert abs(datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(written['lastTransitionTime'])) < (
        datetime.timedelta(seconds=60)
    )
    assert (written['status'], written['reason'], written['message']) == ('True', 'Fine', "It works.")
    assert written['observedGeneration'] == 1
    assert len(world.called('fn')) == 1 and len(world.patches()) == 1


@in_virtual_time
async def test_a_second_pass_writes_nothing(things, world):
    async def fn(conditions, **_):
        conditions['Working'] = kopf.Condition(True, 'Fine')
        conditions.pop('Absent', None)

    things.declare(fn, conditions=True, interval=0.05)
    await things.create()
    async with world.operator():
        await things.until_ready()
        count = len(world.patches())
        await world.until_called('fn', times=5)
    async with world.operator():
        await world.until_called('fn', times=10)
        await rest()
    assert count == len(world.patches()) == 2


@in_virtual_time
async def test_conditions_set_before_an_error_are_written(things, world):
    async def fn(conditions, retry, **_):
        conditions['Connected'] = kopf.Condition(False, 'Refused', "No route.")
        raise kopf.PermanentError("cannot connect")

    things.declare(fn)
    await things.create()
    async with world.operator():
        found = await things.until(lambda found: 'Connected' in found)
    assert say(found) == {'Connected': ('False', 'Refused', "No route.")}


@in_virtual_time
async def test_conditions_are_removed(things, world):
    async def fn(conditions, **_):
        del conditions['Other']

    things.declare(fn)
    await things.create(status={'conditions': [OTHER], 'kept': True})
    async with world.operator():
        body = await world.aio.wait_for('things', 'obj', lambda body: not read(body))
    assert body['status'] == {'conditions': [], 'kept': True}


@in_virtual_time
async def test_conditions_are_written_if_the_patch_is_refused(things, world):
    async def fn(conditions, patch, **_):
        conditions['Working'] = kopf.Condition(True, 'Fine')
        patch['spec'] = 'no object'

    things.declare(fn, conditions=True, backoff=(600, 600))
    await things.create()
    async with world.operator():
        found = await things.until(lambda found: found.get('Reconciling', {}).get('reason') == 'Retrying')
    assert found['Working']['status'] == 'True' and found['Ready']['status'] == 'False'
    assert 'UnprocessableError' in found['Ready']['message']


@pytest.mark.parametrize('error', [None, kopf.PermanentError("no")])
@in_virtual_time
async def test_refused_conditions_are_told_and_written_later(things, world, error):
    async def fn(conditions, **_):
        conditions['Working'] = kopf.Condition(True, 'Fine')
        if error is not None:
            raise error

    things.declare(fn, backoff=(0.01, 1))
    await things.create()
    world.sandbox.faults.error(403, method='PATCH', resource='things')
    async with world.operator():
        await things.until(lambda found: 'Working' in found)
    [told] = [line for line in world.log.texts if line.startswith("The conditions of the object can't be written: ")]
    assert "Grant the verb patch for the resource and for its status" in told
    assert len(world.called('fn')) == 2


@in_virtual_time
async def test_other_changes_at_the_same_time_delay_the_conditions_but_not_for_long(things, world):
    async def fn(conditions, patch, **_):
        conditions['Working'] = kopf.Condition(True, 'Fine')
        await world.aio.patch('things', 'obj', {'metadata': {'finalizers': ['example.com/other']}})

    things.declare(fn)
    await things.create()
    async with world.operator():
        await things.until(lambda found: 'Working' in found)
        await rest()
        assert len(world.called('fn')) == 1
        await world.aio.patch('things', 'obj', {'metadata': {'finalizers': []}})


@in_virtual_time
async def test_two_operators_lose_nothing(things, world):
    """Each sets its own condition at each edit, both at the same time."""

    def make(type_):
        async def fn(conditions, spec, **_):
            conditions[type_] = kopf.Condition(True, f"Value{spec['value']}")

        return fn

    things.declare(make('Mine'))
    other = kopf.OperatorRegistry()
    kopf.on.login(registry=other)(kopf.login_with_kubeconfig)
    kopf.on.reconcile('things', registry=other, id='other')(make('Yours'))
    await things.create(value=0)
    async with world.operator(), world.operator(registry=other):
        for value in range(1, 20):
            await things.edit(value=value)
            if value % 5 == 0:
                await things.until(
                    lambda found, wanted=f'Value{value}': (
                        {found.get(type_, {}).get('reason') for type_ in ('Mine', 'Yours')} == {wanted}
                    )
                )
        await things.until(
            lambda found: (
                {(type_, each['reason']) for type_, each in found.items()}
                == {('Mine', 'Value19'), ('Yours', 'Value19')}
            )
        )


@in_virtual_time
async def test_an_index_of_that_name_wins(things, world):
    @kopf.index('things', registry=world.registry, id='conditions')
    def index(name, **_):
        return name

    things.declare()
    await things.create()
    async with world.operator():
        await world.until_called('fn')
    [call] = world.called('fn')
    assert 'obj' in call['conditions'][None]


@in_virtual_time
async def test_something_else_in_the_place_of_the_conditions_is_told(things, world):
    things.declare(conditions=True, backoff=(600, 600))
    await things.create(status={'conditions': {'Ready': True}})
    async with world.operator():
        await world.until_logged("status.conditions of the object must be a list, but it is {'Ready': True}")
    assert not world.patches()


# What is kept for them.


@in_virtual_time
async def test_an_object_is_reconciled_then_ready(things, world):
    going = asyncio.Event()

    async def fn(**_):
        await going.wait()

    things.declare(fn, conditions=True)
    await things.create()
    async with world.operator():
        found = await things.until(lambda found: 'Reconciling' in found)
        assert say(found) == {'Ready': ('Unknown', 'Progressing', ''), 'Reconciling': ('True', 'Progressing', '')}
        going.set()
        found = await things.until_ready()
        await rest()
    assert say(found) == READY
    assert len(world.called('fn')) == 1 and len(world.patches()) == 2


@in_virtual_time
async def test_errors_are_told_until_they_are_over(things, world):
    going = asyncio.Event()

    async def wait(**_):
        await going.wait()

    things.declare([ValueError("no quota"), wait], conditions=True, backoff=(0.01, 1))
    await things.create()
    async with world.operator():
        found = await things.until(lambda found: found.get('Reconciling', {}).get('reason') == 'Retrying')
        text = "ValueError: no quota"
        assert say(found) == {'Ready': ('False', 'Retrying', text), 'Reconciling': ('True', 'Retrying', text)}
        going.set()
        assert say(await things.until_ready()) == READY


@pytest.mark.parametrize(
    ('error', 'options', 'reason', 'message'),
    [
        (kopf.PermanentError("bad spec"), {}, 'Failed', "PermanentError: bad spec"),
        (ValueError("bad spec"), {'errors': kopf.ErrorsMode.PERMANENT}, 'Failed', "ValueError: bad spec"),
        (ValueError("no quota"), {'retries': 1}, 'RetriesExhausted', "ValueError: no quota"),
    ],
)
@in_virtual_time
async def test_what_only_a_change_can_mend_is_stalled(things, world, error, options, reason, message):
    things.declare([error], conditions=True, **options)
    await things.create()
    async with world.operator():
        found = await things.until(lambda found: 'Stalled' in found)
        assert say(found) == {'Ready': ('False', reason, message), 'Stalled': ('True', reason, message)}
        await things.edit(value=1)
        assert say(await things.until_ready(generation=2)) == READY


@in_virtual_time
async def test_a_handler_can_set_readiness_itself(things, world):
    async def fn(conditions, **_):
        conditions['Ready'] = kopf.Condition(False, 'Pending', "One of two replicas.")

    things.declare(fn, conditions=True, interval=0.05)
    await things.create()
    async with world.operator():
        found = await things.until(lambda found: found.get('Ready', {}).get('reason') == 'Pending')
        await world.until_called('fn', times=3)
    assert say(found) == {'Ready': ('False', 'Pending', "One of two replicas.")}
    assert len(world.patches()) == 2


@in_virtual_time
async def test_a_failed_handler_is_not_ready_even_if_it_says_so(things, world):
    async def fn(conditions, **_):
        conditions['Ready'] = kopf.Condition(True, 'Fine')
        raise kopf.PermanentError("after all")

    things.declare(fn, conditions=True)
    await things.create()
    async with world.operator():
        found = await things.until(lambda found: 'Stalled' in found)
    assert say(found)['Ready'] == ('False', 'Failed', "PermanentError: after all")


@in_virtual_time
async def test_several_handlers_make_an_object_ready_together(things, world):
    going = asyncio.Event()

    async def slow(**_):
        await going.wait()
        raise kopf.PermanentError("no")

    things.declare(conditions=True, id='fast')
    things.declare([slow], conditions=True, id='slow')
    await things.create()
    async with world.operator():
        await world.until_called('slow')
        assert say(read(await world.aio.get('things', 'obj')))['Ready'][0] == 'Unknown'
        going.set()
        found = await things.until(lambda found: 'Stalled' in found)
        assert found['Stalled']['message'] == "slow: PermanentError: no"
        await things.edit(value=1)
        assert say(await things.until_ready(generation=2)) == READY


@in_virtual_time
async def test_kinds_of_others_get_only_what_the_handler_sets(world, things):
    async def fn(conditions, spec, **_):
        if spec.get('nodeName') == 'set':
            conditions['example.com/Checked'] = kopf.Condition(True, 'Fine')

    things.declare(fn, resource='pods', conditions=True)
    async with world.operator():
        for name in 'unset', 'set':
            spec = {'nodeName': name, 'containers': [{'name': 'main', 'image': 'x'}]}
            await world.aio.create({'apiVersion': 'v1', 'kind': 'Pod', 'metadata': {'name': name}, 'spec': spec})
        found = read(await world.aio.wait_for('pods', 'set', lambda body: 'example.com/Checked' in read(body)))
        await world.until_called('fn', name='unset')
        await rest()
    assert 'Reconciling' not in found and not world.patches('unset') and len(world.patches('set')) == 1


# Generations.


@pytest.mark.parametrize('kept', [True, False])
@in_virtual_time
async def test_the_status_has_its_generation_for_kstatus_if_the_schema_keeps_it(things, world, kept):
    if not kept:
        conditions = {'type': 'array', 'items': {'type': 'object', 'x-kubernetes-preserve-unknown-fields': True}}
        version = copy.deepcopy(CRD['spec']['versions'][0])
        status = {'type': 'object', 'properties': {'conditions': conditions}}
        version['schema']['openAPIV3Schema']['properties']['status'] = status
        await world.aio.patch('customresourcedefinitions', 'things.example.com', {'spec': {'versions': [version]}})
    things.declare(conditions=True, interval=0.05)
    await things.create()
    async with world.operator():
        await things.until_ready()
        await things.edit(value=1)
        await things.until_ready(generation=2)
        await world.until_called('fn', times=5)
    body = await world.aio.get('things', 'obj')
    assert body['status'].get('observedGeneration') == (2 if kept else None)
    assert len(world.patches()) == 4


@in_virtual_time
async def test_an_object_that_others_change_all_the_time_gets_its_conditions_at_the_end(things, world):
    async def fn(spec, conditions, **_):
        conditions[f"Saw{spec['value']}"] = kopf.Condition(True, 'Fine')
        if spec['value'] < 20:  # before the conditions are written, so that their write is refused
            await things.edit(value=spec['value'] + 1)

    things.declare(fn, conditions=True)
    await things.create(value=0)
    async with world.operator():
        found = await things.until_ready(generation=21)
    # Nothing that the handler has set is lost.
    assert {*found} == {'Ready', *(f'Saw{value}' for value in range(21))}
    assert len(world.called('fn')) == 21


@in_virtual_time
async def test_an_edit_during_a_run_is_not_taken_for_handled(things, world):
    async def fn(spec, **_):
        if spec.get('value') == 0:
            await things.edit(value=1)

    things.declare(fn, conditions=True)
    seen = []
    await things.create(value=0)
    async with world.operator():
        await things.until(lambda found: seen.append(found.get('Ready')) or found['Ready']['observedGeneration'] == 2)
        await things.until_ready(generation=2)
    assert not [each for each in seen if each and each['status'] == 'True' and each['observedGeneration'] > 2]


@pytest.mark.parametrize('field', [None, 'spec.value'])
@in_virtual_time
async def test_each_generation_gets_its_conditions(things, world, field):
    """Even if an edit is undone at once, or if it is of another field than that of the handler."""
    gate = asyncio.Event()

    async def fn(conditions, **_):
        await gate.wait()
        conditions['Ready'] = kopf.Condition(True, 'Fine')

    things.declare(fn, field=field)
    await things.create(value=0)
    async with world.operator():
        await world.until_called('fn')
        await things.edit(other=1)
        await things.edit(other=None)
        gate.set()
        await things.until_ready(generation=3)
        await things.edit(other=2)
        await things.until_ready(generation=4)


@pytest.mark.parametrize('by', ['value', 'function', 'both'])
@in_virtual_time
async def test_what_the_handler_changes_itself_is_no_newer_generation(things, world, by):
    async def fn(patch, spec, **_):
        if by != 'function':
            patch.spec['own'] = 'x'
        if by != 'value':
            patch.fns.append(lambda body: body['spec'].update(more='y'))

    things.declare(fn, conditions=True)
    await things.create(value=0)
    async with world.operator():
        await things.until(lambda found: found.get('Ready', {}).get('status') == 'True')
        body = await world.aio.get('things', 'obj')
        await rest()
    assert read(body)['Ready']['observedGeneration'] == body['metadata']['generation'] > 1
    assert len(world.called('fn')) == 1


@in_virtual_time
async def test_an_edit_before_the_own_patch_is_not_taken_for_seen(things, world):
    async def fn(patch, spec, conditions, values, **_):
        conditions['Seen'] = kopf.Condition(True, f"Value{spec['value']}")
        if spec['value'] == 0:
            await things.edit(value=1)
            while list(values[None]) != [1]:  # until the operator knows it
                await asyncio.sleep(0.01)
            patch.spec['own'] = 'x'

    @kopf.index('things', registry=world.registry, id='values')
    def index_fn(spec, **_):
        return spec['value']

    things.declare(fn, conditions=True)
    states = []
    await things.create(value=0)
    async with world.operator():

        def is_done(body):
            states.append(body)
            found = read(body)
            return body['metadata']['generation'] == found.get('Ready', {}).get('observedGeneration') == 3 and (
                found['Ready']['status'] == 'True'
            )

        await world.aio.wait_for('things', 'obj', is_done)
    for body in states:
        ready = read(body).get('Ready')
        if ready and ready['status'] == 'True' and ready['observedGeneration'] == body['metadata']['generation']:
            assert read(body)['Seen']['reason'] == f"Value{body['spec']['value']}"


@in_virtual_time
async def test_without_the_status_subresource_the_generation_tells_nothing(world, things):
    things.declare(conditions=True, resource='kopfexamples')
    await world.create()
    async with world.operator():
        body = await world.aio.wait_for(
            'kopfexamples', 'obj', lambda body: read(body).get('Ready', {}).get('status') == 'True'
        )
        await rest()
        assert 'observedGeneration' not in read(body)['Ready']
        assert len(world.called('fn')) == 1


# Other kinds of handlers.


@pytest.mark.parametrize('decorator', [kopf.on.create, kopf.on.update, kopf.timer, kopf.daemon])
@in_virtual_time
async def test_other_handlers_set_conditions_too(things, world, decorator):
    async def fn(conditions, **_):
        conditions['Working'] = kopf.Condition(True, 'Fine')

    things.declare(fn, decorator=decorator, **({'interval': 600} if decorator is kopf.timer else {}))
    await things.create(status={'conditions': [OTHER]})
    async with world.operator():
        if decorator is kopf.on.update:
            await world.aio.wait_for('things', 'obj', lambda body: 'annotations' in body['metadata'])
            await things.edit(value=1)
        found = await things.until(lambda found: 'Working' in found)
        await rest()
    assert found['Other'] == OTHER and found['Working']['observedGeneration'] == 1 + (decorator is kopf.on.update)
    assert len(world.called('fn')) == 1


@in_virtual_time
async def test_subhandlers_and_their_parent_have_the_same_conditions(things, world):
    async def fn(conditions, **_):
        conditions['Parent'] = kopf.Condition(True, 'Fine')

        @kopf.subhandler(id='sub')
        async def sub(conditions, **_):
            assert conditions['Parent'].status
            conditions['Child'] = kopf.Condition(True, 'Fine')

    things.declare(fn, decorator=kopf.on.create)
    async with world.operator():
        await things.create()
        found = await things.until(lambda found: 'Child' in found)
    assert [*found] == ['Parent', 'Child']


@in_virtual_time
async def test_functions_in_threads_set_conditions_too(things, world):
    @kopf.on.reconcile('things', registry=world.registry)
    def fn(conditions, **_):
        conditions['Working'] = kopf.Condition(True, 'Fine')

    await things.create()
    async with world.operator():
        await things.until(lambda found: 'Working' in found)


@in_virtual_time
async def test_a_timer_that_sets_the_same_again_writes_nothing(things, world):
    async def fn(conditions, **_):
        conditions['Working'] = kopf.Condition(True, 'Fine')

    things.declare(fn, decorator=kopf.timer, interval=0.05)
    await things.create()
    async with world.operator():
        await things.until(lambda found: 'Working' in found)
        count = len(world.patches())
        await world.until_called('fn', times=5)
        assert len(world.patches()) == count


@in_virtual_time
async def test_a_handler_of_conditions_is_not_triggered_by_its_own(things, world):
    async def fn(conditions, status, **_):
        known = conditions.get('Counted')
        conditions['Counted'] = kopf.Condition(True, 'Fine', str(1 if known is None else int(known.message) + 1))

    things.declare(fn, field='status.conditions')
    await things.create(status={'conditions': [OTHER]})
    async with world.operator():
        await things.until(lambda found: 'Counted' in found)
        await rest()
        assert len(world.called('fn')) == 1
        await things.patch_status({'conditions': []})
        await world.until_called('fn', times=2)
        await rest()
    assert len(world.called('fn')) == 2


@in_virtual_time
async def test_conditions_of_a_failed_creation_are_written(things, world):
    async def fn(conditions, **_):
        conditions['Working'] = kopf.Condition(False, 'Broken', "No quota.")
        raise kopf.TemporaryError("no quota", delay=600)

    things.declare(fn, decorator=kopf.on.create)
    async with world.operator():
        await things.create()
        assert say(await things.until(bool)) == {'Working': ('False', 'Broken', "No quota.")}


@pytest.mark.parametrize('value', [None, 1, 'yes', ['Ready']])
def test_the_option_is_true_or_false(value):
    with pytest.raises(TypeError, match=r"@kopf\.on\.reconcile: conditions= must be True or False, not "):
        kopf.on.reconcile('things', conditions=value, registry=kopf.OperatorRegistry())


@pytest.mark.parametrize('order', ['patching other', 'other patching', 'patching defaulting'])
@in_virtual_time
async def test_objects_with_several_handlers_get_ready_although_some_patch_the_spec(world, things, order):
    async def patch_it(spec, patch, **_):
        patch.spec['made'] = f"for-{spec['a']}"

    async def default(patch, **_):
        patch.spec['default'] = 1

    functions = {'patching': patch_it, 'defaulting': default, 'other': None}
    for id in order.split():
        things.declare(functions[id], id=id, conditions=True)
    async with world.operator():
        await things.create(a=1)
        await world.aio.wait_for('things', 'obj', is_ready)
        await things.edit(a=2)
        body = await world.aio.wait_for('things', 'obj', lambda body: body['spec'].get('made') == 'for-2')
        await world.aio.wait_for('things', 'obj', is_ready)
        assert body['metadata']['generation'] > 1


def is_ready(body):
    ready = read(body).get('Ready', {})
    return (ready.get('status'), ready.get('observedGeneration')) == ('True', body['metadata']['generation'])


@in_virtual_time
async def test_readiness_that_a_handler_has_set_is_back_after_the_failure_of_another(world, things):
    async def serve(conditions, **_):
        conditions['Ready'] = kopf.Condition(True, 'Serving', 'All is well.')

    things.declare([kopf.TemporaryError('not yet', delay=5)], id='failing', conditions=True)
    things.declare(serve, id='serving', conditions=True)
    async with world.operator():
        await things.create()
        await things.until(lambda found: found.get('Ready', {}).get('status') == 'False')
        found = await things.until(lambda found: found['Ready']['status'] == 'True')
        assert say(found)['Ready'] == ('True', 'Serving', 'All is well.')
