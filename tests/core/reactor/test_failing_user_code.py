"""Synchronous functions of users that raise what would end the event loop or the worker, or errors without texts."""

import asyncio
import collections

import pytest
from operatorworld import in_virtual_time

import kopf


class UnprintableError(Exception):
    def __str__(self):
        raise RuntimeError('no text')

    __repr__ = __str__


class Panic(BaseException):
    """What no `except Exception` catches, like panics of extensions in Rust (`pyo3_runtime.PanicException`)."""


ERRORS = [SystemExit, asyncio.CancelledError, UnprintableError, Panic]


class Bomb:
    """Raises the error at its first call."""

    def __init__(self, error):
        self.error = error
        self.exploded = False

    def __call__(self):
        if not self.exploded:
            self.exploded = True
            raise self.error()
        return True


def declare_filter(world, bomb):
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.update, 'update', when=lambda **_: bomb())
    return {}


def declare_patch_function(world, bomb):
    async def does(patch, **_):
        patch.fns.append(lambda body: bomb() and None)

    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.update, 'update', does=does)
    return {}


def declare_storage(world, bomb):
    class Storage(kopf.AnnotationsProgressStorage):
        def store(self, **kwargs):
            bomb()
            super().store(**kwargs)

    world.settings.persistence.progress_storage = Storage()
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.update, 'update')
    world.declare(kopf.on.update, 'other')  # with a single handler, there is no progress to store
    return {}


def declare_lifecycle(world, bomb):
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.update, 'update')
    return {'lifecycle': lambda handlers, **_: handlers if bomb() else ()}


def declare_lazy_lifecycle(world, bomb):
    def lifecycle(handlers, **_):
        bomb()
        yield from handlers

    return {**declare_lifecycle(world, bomb), 'lifecycle': lifecycle}


@pytest.mark.parametrize('error', ERRORS)
@pytest.mark.parametrize(
    'declare',
    [declare_filter, declare_patch_function, declare_storage, declare_lifecycle, declare_lazy_lifecycle],
)
@in_virtual_time
async def test_no_change_is_lost_and_the_operator_goes_on(world, declare, error):
    bomb = Bomb(error)
    async with world.operator(**declare(world, bomb)):
        await world.create()
        await world.handled()
        await world.edit(field='x')
        if declare is declare_filter:  # the handler is skipped, and tried again with the next change
            await world.handled(field='x')
            await world.edit(field='y')
        await world.until_called('update')
        await world.handled()
    assert bomb.exploded


@pytest.mark.parametrize('error', ERRORS)
@in_virtual_time
async def test_daemons_begin_at_once_if_their_initial_delay_is_unknown(world, error):
    bomb = Bomb(error)
    world.declare(kopf.timer, 'tick', interval=1, initial_delay=lambda **_: bomb())
    async with world.operator():
        await world.create()
        await world.until_called('tick', times=2)
    assert bomb.exploded


@pytest.mark.parametrize('error', ERRORS)
@in_virtual_time
async def test_instruments_that_fail_are_removed(world, error):
    class Meter(kopf.Instrument):
        def handler_begins(self, call):
            raise error()

    world.declare(kopf.on.create, 'create')
    async with world.operator(instruments=[Meter()]):
        await world.create()
        await world.handled()
    assert any('has failed in handler_begins(), and is removed' in text for text in world.log.texts)


@in_virtual_time
async def test_timers_go_on_after_errors_without_texts(world):
    world.declare(kopf.timer, 'tick', interval=1, backoff=1, does=[UnprintableError()])
    async with world.operator():
        await world.create()
        await world.until_called('tick', times=3)
    assert any('UnprintableError()' in text for text in world.log.texts)


@pytest.mark.parametrize('is_async', [True, False], ids=['async', 'sync'])
@pytest.mark.parametrize(
    ('decorator', 'options'),
    [
        (kopf.on.create, {'backoff': 1}),
        (kopf.daemon, {'backoff': 1}),
        (kopf.timer, {'backoff': 1, 'interval': 1}),
        (kopf.index, {'errors': kopf.ErrorsMode.TEMPORARY, 'backoff': 1}),
        (kopf.on.reconcile, {'backoff': (1, 2)}),
    ],
)
@in_virtual_time
async def test_handlers_are_called_again_after_errors_that_are_no_exceptions(world, decorator, options, is_async):
    def see(name, **_):
        world.note('seen', name)
        if name == 'bad' and len(world.called('seen', 'bad')) == 1:
            raise Panic

    async def see_async(**kwargs):
        see(**kwargs)

    decorator('kopfexamples', registry=world.registry, id='see', **options)(see_async if is_async else see)
    async with world.operator():
        await world.create('bad')
        await world.create('good')
        await world.until_called('seen', times=2, name='bad')
        await world.until_called('seen', name='good')
        await world.delete('bad')
        await world.gone('bad')


@in_virtual_time
async def test_other_activities_go_on_after_errors_that_are_no_exceptions(world):
    calls = []

    @kopf.on.startup(registry=world.registry, backoff=1)
    def begin(**_):
        calls.append('startup')
        if calls == ['startup']:
            raise Panic

    @kopf.on.schedule(registry=world.registry, interval=1, backoff=1)
    def tick(**_):
        calls.append('schedule')
        if calls.count('schedule') == 1:
            raise Panic

    async with world.operator():
        await asyncio.sleep(5)
    assert calls[:4] == ['startup', 'startup', 'schedule', 'schedule']


@in_virtual_time
async def test_faulty_results_do_not_stop_the_other_handlers_of_the_object(world):
    class Faulty(collections.UserDict):
        def __iter__(self):
            raise Panic

    async def fail(**_):
        return Faulty()

    world.declare(kopf.on.event, 'see', does=fail)
    world.declare(kopf.on.create, 'first', does=fail)
    world.declare(kopf.on.create, 'second')
    async with world.operator():
        await world.create()
        await world.handled()
    assert world.ids[:3] == ['see', 'first', 'second']
    for key in ('see', 'first'):
        assert any(f"The result of handler {key!r} is lost" in text for text in world.log.texts)


@pytest.mark.parametrize('decorator', [kopf.timer, kopf.daemon])
@in_virtual_time
async def test_patches_that_do_not_fit_neither_end_timers_nor_repeat_daemons(world, decorator):
    async def replace(patch, **_):
        patch['status'] = 'a string'
        return {'key': 'value'}

    world.declare(decorator, 'see', does=[replace], **({'interval': 1} if decorator is kopf.timer else {'backoff': 1}))
    async with world.operator():
        await world.create()
        await asyncio.sleep(5)
        await world.delete()
        await world.gone()
    assert len(world.called('see')) == (5 if decorator is kopf.timer else 1)
    assert any("The result of" in text and "TypeError" in text for text in world.log.texts)
