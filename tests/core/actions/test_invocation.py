"""Calls of the user's functions: async ones in the loop, sync ones in threads, with the kwargs that they name."""

import asyncio
import contextvars
import functools
import inspect
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from unittest import mock

import pytest

from kopf._core.actions.invocation import CallNotBegun, invoke, is_async_fn, read_arguments

var = contextvars.ContextVar('var')


@pytest.fixture
def executor():
    with ThreadPoolExecutor(1) as executor:
        yield executor


def sync_fn(*args, **kwargs):
    return args, kwargs, threading.current_thread()


async def async_fn(*args, **kwargs):
    return args, kwargs, threading.current_thread()


def passing(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs)

    return wrapper


class SyncCallable:
    def __call__(self, *args, **kwargs):
        return args, kwargs, threading.current_thread()

    def method(self, *args, **kwargs):
        return args, kwargs, threading.current_thread()

    @staticmethod
    def static(*args, **kwargs):
        return args, kwargs, threading.current_thread()


class AsyncCallable:
    async def __call__(self, *args, **kwargs):
        return args, kwargs, threading.current_thread()

    async def method(self, *args, **kwargs):
        return args, kwargs, threading.current_thread()

    @staticmethod
    async def static(*args, **kwargs):
        return args, kwargs, threading.current_thread()


SYNC = {
    'function': sync_fn,
    'lambda': lambda *args, **kwargs: sync_fn(*args, **kwargs),
    'partial': functools.partial(sync_fn),
    'partial of partial': functools.partial(functools.partial(sync_fn)),
    'wrapper': passing(sync_fn),
    'callable': SyncCallable(),
    'method': SyncCallable().method,
    'static method': SyncCallable.static,
    'partial of callable': functools.partial(SyncCallable()),
}
ASYNC = {
    'function': async_fn,
    'partial': functools.partial(async_fn),
    'partial of partial': functools.partial(functools.partial(async_fn)),
    'wrapper': passing(async_fn),
    'wrapper of partial': passing(functools.partial(async_fn)),
    'partial of wrapper': functools.partial(passing(async_fn)),
    'callable': AsyncCallable(),
    'method': AsyncCallable().method,
    'static method': AsyncCallable.static,
    'partial of callable': functools.partial(AsyncCallable()),
}


@pytest.mark.parametrize('fn', SYNC.values(), ids=SYNC)
async def test_sync_functions_are_called_in_threads(fn, executor):
    args, kwargs, thread = await invoke(fn, {'x': 1, 'y': 2}, executor=executor)
    assert (args, kwargs) == ((), {'x': 1, 'y': 2})
    assert thread is not threading.current_thread()
    assert not is_async_fn(fn)


@pytest.mark.parametrize('fn', ASYNC.values(), ids=ASYNC)
async def test_async_functions_are_called_in_the_event_loop(fn, executor):
    args, kwargs, thread = await invoke(fn, {'x': 1, 'y': 2}, executor=executor)
    assert (args, kwargs) == ((), {'x': 1, 'y': 2})
    assert thread is threading.current_thread()
    assert is_async_fn(fn)


async def test_functions_that_return_coroutines_are_awaited(executor):
    args, kwargs, _ = await invoke(lambda **kwargs: async_fn(**kwargs), {'x': 1}, executor=executor)
    assert (args, kwargs) == ((), {'x': 1})


@pytest.mark.parametrize(
    'error',
    [ValueError('boo'), KeyError('x'), SystemExit(3), TimeoutError('of a socket'), CancelledError('of a future')],
)
@pytest.mark.parametrize('kind', ['sync', 'async'])
async def test_errors_are_raised_unchanged(kind, error, executor):
    def sync_failing(**_):
        raise error

    async def async_failing(**_):
        raise error

    with pytest.raises(type(error)) as info:
        await invoke(sync_failing if kind == 'sync' else async_failing, {}, executor=executor)
    assert info.value is error
    assert f'{kind}_failing' in [entry.name for entry in info.traceback]


async def test_stop_iteration_does_not_hang(executor):
    async with asyncio.timeout(60):
        with pytest.raises(RuntimeError, match='StopIteration'):
            await invoke(lambda: next(iter(())), {}, executor=executor)


async def test_context_variables_are_seen_in_threads(executor):
    var.set('outer')
    assert await invoke(var.get, {}, executor=executor) == 'outer'


async def test_context_variables_of_threads_stay_there(executor):
    var.set('outer')
    await invoke(lambda: var.set('inner'), {}, executor=executor)
    assert var.get() == 'outer'


async def test_cancellation_does_not_wait_for_the_thread(executor):
    started, release = threading.Event(), threading.Event()
    task = asyncio.create_task(invoke(lambda: (started.set(), release.wait(100)), {}, executor=executor))
    while not started.is_set():
        await asyncio.sleep(0)
    task.cancel()
    async with asyncio.timeout(60):
        with pytest.raises(asyncio.CancelledError):
            await task
    release.set()


class Callable:
    def __init__(self, spec=None, *, name=None): ...

    def __call__(self, spec, name=None, *, logger): ...

    def method(self, spec, **_): ...

    @staticmethod
    def static(spec, name): ...

    @classmethod
    def of_class(cls, spec, name): ...


def named(spec, name=None, *, logger, memo=None): ...


def valued(value, /, spec): ...


@functools.wraps(named)
def wrapper(body, **kwargs): ...


@functools.wraps(named)
def closed(body): ...


def signed(*args, **kwargs): ...


signed.__signature__ = inspect.signature(named)


@pytest.mark.parametrize(
    'fn, names, required',
    [
        (lambda: None, (), ()),
        (lambda *args: None, (), ()),
        (lambda **_: None, None, ()),
        (lambda spec, **_: None, None, ('spec',)),
        (named, ('spec', 'name', 'logger', 'memo'), ('spec', 'logger')),
        (valued, ('spec',), ('spec',)),
        (signed, ('spec', 'name', 'logger', 'memo'), ('spec', 'logger')),
        (mock.create_autospec(named), ('spec', 'name', 'logger', 'memo'), ('spec', 'logger')),
        (wrapper, None, ('body',)),
        (closed, ('body',), ('body',)),
        (functools.partial(named, 1), ('name', 'logger', 'memo'), ('logger',)),
        (functools.partial(named, logger=1), ('spec', 'name', 'logger', 'memo'), ('spec',)),
        (Callable, ('spec', 'name'), ()),
        (Callable(), ('spec', 'name', 'logger'), ('spec', 'logger')),
        (Callable().method, None, ('spec',)),
        (Callable().of_class, ('spec', 'name'), ('spec', 'name')),
        (Callable.__dict__['static'], ('spec', 'name'), ('spec', 'name')),
        (functools.lru_cache(Callable.static), ('spec', 'name'), ('spec', 'name')),
        (mock.Mock(), None, ()),
        (mock.MagicMock(spec=named), None, ()),
        (mock.AsyncMock(), None, ()),
        (print, ('sep', 'end', 'file', 'flush'), ()),
        (str.isdigit, (), ()),
        (bool, (), ()),
        (int, (), ()),
        (dict, None, ()),  # it is written in C, and does not say what it takes
    ],
)
def test_arguments_are_read_from_signatures(fn, names, required):
    arguments = read_arguments(fn)
    assert (arguments.names, arguments.required) == (names, required)


def test_positional_arguments_are_not_passed_by_name():
    assert read_arguments(named, 1)[:2] == (('name', 'logger', 'memo'), ('logger',))
    assert read_arguments(functools.partial(named), 1)[:2] == (('name', 'logger', 'memo'), ('logger',))
    assert read_arguments(functools.partial(valued), 1)[:2] == (('spec',), ('spec',))
    assert read_arguments(valued, 1)[:2] == (('spec',), ('spec',))
    assert read_arguments(lambda *args, spec: None, 1)[:2] == (('spec',), ('spec',))
    assert read_arguments(lambda value=1, spec=2: None, 1)[:2] == (('spec',), ())


async def test_a_sync_function_begins_when_the_operator_may_go_on_after_all(executor):
    answers, threads = [True, False, False], []

    def is_halted():
        threads.append(threading.current_thread())
        return answers.pop(0)

    _, kwargs, thread = await invoke(sync_fn, {'name': 'obj'}, executor=executor, is_halted=is_halted)
    assert (kwargs, answers) == ({'name': 'obj'}, [])
    assert threads == [thread, threading.current_thread(), thread] and thread is not threading.current_thread()


async def test_a_sync_function_does_not_begin_in_a_pause(executor):
    calls = []
    with pytest.raises(CallNotBegun):
        await invoke(calls.append, {}, executor=executor, is_halted=lambda: True)
    assert not calls


async def test_a_sync_function_that_may_not_begin_can_be_cancelled(executor):
    asked, calls = asyncio.Event(), []
    loop = asyncio.get_running_loop()
    call = invoke(calls.append, {}, executor=executor, is_halted=lambda: loop.call_soon_threadsafe(asked.set) or True)
    task = asyncio.create_task(call)
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not calls
