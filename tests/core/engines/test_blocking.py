"""Blocking calls in async handlers: the handler, the line and the remedy are in the log."""

import asyncio
import functools
import logging
import sys
import time

import pytest

import kopf
from kopf._cogs.aiokits import loop_monitors


@pytest.fixture(autouse=True)
def limits(world, monkeypatch):
    monkeypatch.setattr(loop_monitors, 'INTERVAL', 0.05)
    world.settings.execution.blocking_limit = 0.15


def block(seconds=0.7):
    time.sleep(seconds)


def reports(world):
    return [text for text in world.log.texts if 'the event loop for' in text]


async def until_reported(world, count=1):
    await world.until(lambda: len(reports(world)) >= count)


async def test_the_handler_the_line_and_the_remedy_are_reported_once(world):
    async def work(**_):
        block()

    world.declare(kopf.on.create, 'bad', does=work)
    world.declare(kopf.on.create, 'good')
    world.declare(kopf.on.update, 'another', does=work)
    async with world.operator():
        await world.create('one')
        await world.handled('one')
        await world.create('two')
        await world.handled('two')
        await world.edit('two', field='v2')
        await world.handled('two', field='v2')
        await until_reported(world, 2)
    first, second = reports(world)
    assert first.startswith("Handler 'bad' has blocked the event loop for 0.") and "Handler 'another'" in second
    assert f'{__file__}, line ' in first and 'in block: time.sleep(seconds)' in first
    assert 'await asyncio.to_thread(...)' in first and "'def' instead of 'async def'" in first


@pytest.mark.parametrize(
    'decorator, title',
    [
        (kopf.on.event, 'Handler'),
        (kopf.index, 'Indexer'),
        (kopf.daemon, 'Daemon'),
        (functools.partial(kopf.timer, interval=100), 'Timer'),
    ],
    ids=['event', 'index', 'daemon', 'timer'],
)
async def test_handlers_of_all_kinds_are_reported(world, decorator, title):
    async def work(**_):
        block()

    world.declare(decorator, 'bad', does=work)
    async with world.operator():
        await world.create('one')
        await until_reported(world)
    [text] = reports(world)
    assert f"{title} 'bad' has blocked" in text


async def test_blocking_filters_are_reported_with_a_remedy_of_their_own(world):
    def is_good(**_):
        block()
        return True

    world.declare(kopf.on.create, 'filtered', when=is_good)
    async with world.operator():
        await world.create('one')
        await until_reported(world)
    assert "Handler 'filtered' has blocked" in reports(world)[0]
    assert 'such as filters' in reports(world)[0]


async def test_blocking_tasks_are_reported_as_their_handlers(world):
    async def task():
        block()

    async def work(**_):
        await asyncio.create_task(task())

    world.declare(kopf.on.create, 'bad', does=work)
    async with world.operator():
        await world.create('one')
        await until_reported(world)
    who = "Handler 'bad'" if sys.version_info >= (3, 12) else "Something outside of handlers"
    assert reports(world)[0].startswith(f"{who} has blocked")


async def test_sync_handlers_and_waiting_coroutines_are_not_reported(world):
    @kopf.on.create('kopfexamples', registry=world.registry, id='sync')
    def sync(**_):
        block()

    async def work(**_):
        await asyncio.sleep(0.5)
        await asyncio.to_thread(block)

    world.declare(kopf.on.create, 'async', does=work)
    async with world.operator():
        await world.create('one')
        await world.handled('one')
    assert reports(world) == []


async def test_nothing_is_reported_without_a_limit(world):
    async def work(**_):
        block()

    world.declare(kopf.on.create, 'bad', does=work)

    @kopf.on.startup(registry=world.registry)
    def configure(settings, **_):
        settings.execution.blocking_limit = None

    async with world.operator():
        await world.create('one')
        await world.handled('one')
        await asyncio.sleep(0.2)
    assert reports(world) == []


async def test_the_framework_itself_is_not_accused(world):
    class Slow(logging.Handler):
        def emit(self, record):
            if "'create' is invoked" in record.getMessage():
                block()

    slow = Slow()
    logger = logging.getLogger('kopf.objects')
    world.declare(kopf.on.create, 'create')
    logger.addHandler(slow)
    logger.setLevel(logging.DEBUG)
    try:
        async with world.operator():
            await world.create('one')
            await world.handled('one')
            await asyncio.sleep(0.2)
    finally:
        logger.removeHandler(slow)
        logger.setLevel(logging.NOTSET)
    assert [text for text in reports(world) if "'create'" in text and __file__ not in text] == []


# As developers of operators see it.

HANDLERS = '''
import time
import kopf

@kopf.on.startup()
def configure(settings, **_):
    settings.execution.blocking_limit = 0.2

@kopf.on.create('kopfexamples')
async def create_fn(**_):
    time.sleep(1.5)
    return 'done'
'''


def test_blocking_is_reported_in_tests_of_operators_too(kopf_sandbox, tmp_path, world):
    kopf_sandbox.apply(world.root / 'examples' / 'crd.yaml')
    path = tmp_path / 'handlers.py'
    path.write_text(HANDLERS)
    with kopf.testing.KopfRunner(['run', '--standalone', '-A', str(path)]) as runner:
        kopf_sandbox.apply(world.root / 'examples' / 'obj.yaml')
        kopf_sandbox.wait_for('kopfexamples', 'kopf-example-1', lambda body: 'create_fn' in body.get('status', {}))
    blocked = "Handler 'create_fn' has blocked the event loop for "
    [line] = [line for line in runner.output.splitlines() if blocked in line]
    assert f"{path}, line 11, in create_fn: time.sleep(1.5)" in line
