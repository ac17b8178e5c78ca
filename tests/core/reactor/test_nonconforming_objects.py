"""An object that does not conform to the class of its kind is left out only as long as it does not conform."""

import asyncio
import dataclasses

import pytest
from operatorworld import FINALIZER, in_virtual_time

import kopf

ERROR = "does not conform to the class Example: "
NOT_AN_INT = "Expected `int`, got `str`"


@dataclasses.dataclass
class Spec:
    n: int = 0

    def __post_init__(self):
        if self.n < 0:
            raise KeyError('a mistake in a validator')


@dataclasses.dataclass
class Status:
    seen: int | None = None


@pytest.fixture
def model(world):
    @kopf.kind('kopf.dev/v1', 'KopfExample', registry=world.registry)
    @dataclasses.dataclass
    class Example:
        spec: Spec
        status: Status | None = None

    Example.__qualname__ = 'Example'
    return Example


def declare_timer(world, model, **options):
    @kopf.timer(model, registry=world.registry, id='fn', **({'interval': 10} | options))
    def fn(name, obj, **_):
        world.note('fn', name, n=obj.spec.n)


def declare_async_daemon(world, model, **options):
    @kopf.daemon(model, registry=world.registry, id='fn', **options)
    async def fn(name, obj, stopped, **_):
        world.note('fn', name, n=obj.spec.n)
        await stopped.wait()


def declare_sync_daemon(world, model, **options):
    @kopf.daemon(model, registry=world.registry, id='fn', **options)
    def fn(name, obj, stopped, **_):
        world.note('fn', name, n=obj.spec.n)
        stopped.wait()


def declare_index(world, model):
    @kopf.index(model, registry=world.registry, id='fn')
    def fn(name, obj, **_):
        world.note('fn', name, n=obj.spec.n)
        return {name: obj.spec.n}


SPAWNING = [declare_timer, declare_async_daemon, declare_sync_daemon]
KINDS = [*SPAWNING, declare_index]


def get_seen(world):
    return list(dict.fromkeys(kwargs['n'] for kwargs in world.called('fn')))


def get_errors(world):
    return [text for text in world.log.texts if ERROR in text]


async def set_status(world, **status):
    await world.aio.patch('kopfexamples', 'obj', {'status': status}, subresource='status')


async def rest(seconds=30):
    """Let happen what must not happen: there is nothing else to wait for."""
    await asyncio.sleep(seconds)


@pytest.mark.parametrize('declare', KINDS)
@in_virtual_time
async def test_functions_are_called_for_the_first_version_that_conforms(world, model, declare):
    declare(world, model)
    async with world.operator():
        await world.create(spec={'n': 'no'})
        await world.until_logged(ERROR)
        await world.edit(n=1)
        await world.until(lambda: get_seen(world) == [1], timeout=1)


@pytest.mark.parametrize('idle', [None, 0])
@in_virtual_time
async def test_a_timer_of_an_object_that_conforms_again_is_called_at_once_and_at_its_intervals(world, model, idle):
    declare_timer(world, model, interval=10, idle=idle)
    async with world.operator():
        await world.create(spec={'n': 1})
        await world.until(lambda: get_seen(world) == [1])
        await world.edit(n='no')
        await rest(100)
        assert get_seen(world) == [1]
        assert len(get_errors(world)) == 1
        await world.edit(n=2)
        await world.until(lambda: get_seen(world) == [1, 2], timeout=1)
        await world.until(lambda: [kwargs['n'] for kwargs in world.called('fn')].count(2) == 3, timeout=21)


@in_virtual_time
async def test_a_daemon_that_runs_is_not_disturbed_by_versions_that_do_not_conform(world, model):
    declare_async_daemon(world, model)
    async with world.operator():
        await world.create(spec={'n': 1})
        await world.until_called('fn')
        await world.edit(n='no')
        await rest()
        await world.edit(n=2)
        await rest()
    assert [kwargs['n'] for kwargs in world.called('fn')] == [1]
    assert not get_errors(world)


@in_virtual_time
async def test_an_object_is_in_the_indices_only_as_long_as_it_conforms(world, model):
    declare_index(world, model)

    @kopf.on.event('kopfexamples', registry=world.registry)
    async def look(fn, spec, **_):
        world.note('look', 'obj', n=spec['n'], index={key: [*values] for key, values in fn.items()})

    async with world.operator():
        await world.create(spec={'n': 1})
        await world.until_called('look')
        for n in 'no', 2:
            await world.edit(n=n)
            await world.until(lambda n=n: world.called('look')[-1]['n'] == n)
    seen = {kwargs['n']: kwargs['index'] for kwargs in world.called('look')}
    assert seen == {1: {'obj': [1]}, 'no': {}, 2: {'obj': [2]}}


@pytest.mark.parametrize('declare', KINDS)
@in_virtual_time
async def test_the_same_error_is_logged_once(world, model, declare):
    declare(world, model)
    async with world.operator():
        await world.create(spec={'n': 'no'})
        await world.until_logged(ERROR)
        for seen in range(5):
            await set_status(world, seen=seen)
            await rest(1)
        assert len(get_errors(world)) == 1
        await world.edit(n=1)
        await world.until(lambda: get_seen(world) == [1], timeout=1)


@pytest.mark.parametrize('declare', KINDS)
@in_virtual_time
async def test_another_error_is_logged_too(world, model, declare):
    declare(world, model)
    async with world.operator():
        await world.create(spec={'n': 'no'})
        await world.until_logged(NOT_AN_INT)
        await world.edit(n=1.5)
        await world.until(lambda: len(get_errors(world)) == 2)


@pytest.mark.parametrize('declare', KINDS)
@in_virtual_time
async def test_a_status_that_conforms_again_suffices(world, model, declare):
    async with world.operator(registry=kopf.OperatorRegistry()):
        await world.create(spec={'n': 1})
        await set_status(world, seen='no')
    declare(world, model)
    async with world.operator():
        await world.until_logged(ERROR)
        assert not world.called('fn')
        await set_status(world, seen=1)
        await world.until(lambda: get_seen(world) == [1], timeout=1)


@pytest.mark.parametrize('declare', KINDS)
@in_virtual_time
async def test_an_object_that_does_not_conform_can_be_deleted(world, model, declare):
    declare(world, model)

    @kopf.on.delete(model, registry=world.registry, id='delete')
    async def delete(spec: Spec, **_):
        world.note('delete', 'obj')

    async with world.operator():
        await world.create(spec={'n': 'no'})
        await world.until_logged(ERROR)
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: FINALIZER in body['metadata']['finalizers'])
        await world.delete()
        await world.gone()
    assert any("Handler 'delete' failed permanently: KopfExample 'obj' does not" in text for text in world.log.texts)
    assert not world.calls


@pytest.mark.parametrize('declare', SPAWNING)
@in_virtual_time
async def test_no_daemon_starts_for_an_object_that_conforms_only_when_it_is_being_deleted(world, model, declare):
    declare(world, model)
    async with world.operator():
        await world.create(spec={'n': 'no'}, finalizers=['example.com/other'])
        await world.until_logged(ERROR)
        async with world.gap():  # so that the operator sees both changes at once
            await world.delete()
            await world.edit(n=1)
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: FINALIZER not in body['metadata']['finalizers'])
        assert not world.called('fn')


@pytest.mark.parametrize('declare', KINDS)
@in_virtual_time
async def test_mistakes_in_validators_are_errors_of_the_functions(world, model, declare):
    declare(world, model)
    async with world.operator():
        await world.create(spec={'n': 'no'})
        await world.until_logged(ERROR)
        await world.edit(n=-1)
        await world.until_logged("KeyError: 'a mistake in a validator'")
        await world.edit(n=1)
        await world.until(lambda: get_seen(world) == [1], timeout=70)  # retries are due after a minute


@pytest.mark.parametrize('decorator', [kopf.timer, kopf.daemon, kopf.index])
@in_virtual_time
async def test_functions_that_raise_the_error_themselves_have_failed_for_good(world, model, decorator):
    options = {'interval': 1} if decorator is kopf.timer else {}

    @decorator(model, registry=world.registry, id='fn', **options)
    async def fn(name, obj, **_):
        world.note('fn', name, n=obj.spec.n)
        raise kopf.InvalidObjectError("This is another object.")

    async with world.operator():
        await world.create(spec={'n': 1})
        await world.until_called('fn')
        await world.edit(n=2)
        await rest()
    assert get_seen(world) == [1]


@pytest.mark.parametrize('is_restarted', [False, True])
@in_virtual_time
async def test_level_triggered_handlers_run_when_only_the_status_is_corrected(world, model, is_restarted):
    @kopf.on.reconcile(model, registry=world.registry, id='fn')
    async def fn(name, spec: Spec, **_):
        world.note('fn', name, n=spec.n)

    async with world.operator():
        await world.create(spec={'n': 1})
        await world.until_called('fn')
        await world.aio.patch('kopfexamples', 'obj', {'status': {'seen': 'bad'}})
        await world.edit(n=2)
        await world.until_logged(ERROR)
        if not is_restarted:
            await world.aio.patch('kopfexamples', 'obj', {'status': {'seen': 5}})
            await world.until_called('fn', 2)
    if is_restarted:
        async with world.operator():
            await world.until(lambda: len([text for text in world.log.texts if ERROR in text]) == 2)
            await world.aio.patch('kopfexamples', 'obj', {'status': {'seen': 5}})
            await world.until_called('fn', 2)
            await asyncio.sleep(60)
    assert [call['n'] for call in world.called('fn')] == [1, 2]
