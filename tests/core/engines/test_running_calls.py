"""The handlers that run now, as they are told of as an instrument."""

import asyncio
import threading
import types

import kopf
from kopf._cogs.structs.instruments import HandlerCall, Instruments, ObjectKey
from kopf._cogs.structs.references import Resource
from kopf._core.engines.running_calls import RunningCalls

KEY = ObjectKey(Resource('kopf.dev', 'v1', 'kopfexamples'), 'default', 'obj', 'uid')


def make_call(calls, id='fn', *, key=None, stopped=None):
    cause = types.SimpleNamespace(occasion='create', key=key, stopped=stopped)
    return HandlerCall(Instruments([calls]), id=id, kind='Handler', fn=wait, cause=cause, retry=2)


async def wait(calls, event, **options):
    with make_call(calls, **options):
        await event.wait()


def describe(calls, blocker=None):
    return calls.describe(blocker, threading.get_ident())


async def test_handlers_are_described_while_they_run():
    calls, event = RunningCalls(), asyncio.Event()
    task = asyncio.create_task(wait(calls, event, key=KEY))
    await asyncio.sleep(0)
    (facts,) = describe(calls)
    assert facts['object'] == {
        'resource': 'kopfexamples.kopf.dev',
        'namespace': 'default',
        'name': 'obj',
        'uid': 'uid',
    }
    expected = {'handler': 'fn', 'kind': 'Handler', 'reason': 'create', 'retry': 2, 'blocking': False, 'stopping': None}
    assert facts | expected == facts and facts['seconds'] >= 0
    assert facts['place']['file'] == __file__ and facts['place']['code'] == 'await event.wait()'
    assert [place['function'] for place in facts['stack']][0] == 'wait'
    event.set()
    await task
    assert describe(calls) == []


async def test_the_longest_one_is_the_first():
    calls, event = RunningCalls(), asyncio.Event()
    tasks = []
    for id in 'abc':
        tasks.append(asyncio.create_task(wait(calls, event, id=id)))
        await asyncio.sleep(0.002)  # the clock goes on
    assert [facts['handler'] for facts in describe(calls)] == ['a', 'b', 'c']
    event.set()
    await asyncio.gather(*tasks)


async def test_daemons_that_do_not_stop_are_told_with_the_reason():
    calls, event = RunningCalls(), asyncio.Event()
    stopped = types.SimpleNamespace(reason=kopf.DaemonStoppingReason.RESOURCE_DELETED)
    task = asyncio.create_task(wait(calls, event, stopped=stopped))
    await asyncio.sleep(0)
    assert 'RESOURCE_DELETED' in describe(calls)[0]['stopping']
    event.set()
    await task


async def test_the_handler_that_blocks_the_loop_is_marked():
    calls, event = RunningCalls(), asyncio.Event()
    tasks = [asyncio.create_task(wait(calls, event, id=id)) for id in 'ab']
    await asyncio.sleep(0)
    assert {facts['handler']: facts['blocking'] for facts in describe(calls, tasks[1])} == {'a': False, 'b': True}
    event.set()
    await asyncio.gather(*tasks)
