"""
Calling a function of the user: a coroutine in the event loop, anything else in a thread.

The rest of the framework awaits both alike. A thread inherits the context variables of the calling task, so that
``kopf.info()`` or ``kopf.adopt()`` know their object there too. Whether a function is a coroutine function is found
through partials, wrappers and callable objects; a plain function that returns a coroutine is awaited as well.
"""
import asyncio
import contextlib
import contextvars
import functools
import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Executor
from typing import Any, NamedTuple

from kopf._cogs.aiokits.pulses import rouse


@contextlib.contextmanager
def context(values: Iterable[tuple[contextvars.ContextVar[Any], Any]]) -> Iterator[None]:
    """Set the variables for a while: so functions that need a handler around them are called without an operator."""
    tokens = [(var, var.set(value)) for var, value in values]
    try:
        yield
    finally:
        for var, token in reversed(tokens):
            var.reset(token)


def is_marked(check: Callable[[object], bool], fn: object) -> bool:
    """Tell what a check of `inspect` finds in the code of the function; nothing if there is no code, as in mocks."""
    try:
        return check(fn)
    except TypeError:
        return False


def is_async_fn(fn: object) -> bool:
    """Tell whether calling the function gives a coroutine; partials, wrappers and callable objects are unwrapped."""
    while True:
        if is_marked(inspect.iscoroutinefunction, fn):
            return True
        if isinstance(fn, functools.partial | functools.partialmethod):
            fn = fn.func
        elif hasattr(fn, '__wrapped__'):
            fn = fn.__wrapped__
        else:
            method = inspect.getattr_static(type(fn), '__call__', None)
            return not inspect.isroutine(fn) and inspect.iscoroutinefunction(method)


async def invoke(
        fn: Callable[..., Any],
        /,
        kwargs: dict[str, Any],
        *,
        executor: Executor,
        asynchronous: bool | None = None,
) -> Any:
    """Call the function and return its result; its exceptions come through unchanged."""
    if is_async_fn(fn) if asynchronous is None else asynchronous:
        rouse()
        result = fn(**kwargs)
        if type(result) is types.CoroutineType or inspect.isawaitable(result):
            kwargs.clear()  # or else, those who call would hold them as long as the function waits
            return await result
        return result  # a wrapper may have awaited it already
    context = contextvars.copy_context()
    result = await asyncio.get_running_loop().run_in_executor(executor, context.run, _call, fn, kwargs)
    if type(result) is _Raised:
        try:
            raise result.error
        finally:
            del result  # the traceback refers to this frame: a cycle
    return await result if inspect.iscoroutine(result) else result


class _Raised(NamedTuple):
    error: Exception


def _call(fn: Callable[..., Any], kwargs: Mapping[str, Any]) -> Any:
    try:
        return fn(**kwargs)
    except (TimeoutError, CancelledError) as error:
        # Asyncio takes them for those of its futures: it replaces them by errors without tracebacks, by cancellations.
        return _Raised(error)
    except StopIteration as error:
        # A future can't carry it: the awaiting side would never be woken up.
        raise RuntimeError(f"The function {fn!r} raised StopIteration.") from error
