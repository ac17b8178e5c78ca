"""
Calling a function of the user: a coroutine in the event loop, anything else in a thread.

The rest of the framework awaits both alike. A thread inherits the context variables of the calling task, so that
``kopf.info()`` or ``kopf.adopt()`` know their object there too. Whether a function is a coroutine function is found
through partials, wrappers and callable objects; a plain function that returns a coroutine is awaited as well.

Functions are called with the keyword arguments that they name, and with all of them if they take any (``**kwargs``).
This is read from the signature once, when the function is declared: see `read_arguments`.
"""

import asyncio
import contextlib
import contextvars
import functools
import inspect
import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Executor
from typing import Any, NamedTuple

from kopf._cogs.aiokits.loop_monitors import rouse


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


class Arguments(NamedTuple):
    """The arguments that a function can be called with by their names."""

    names: tuple[str, ...] | None
    """``None`` if it takes any: because of ``**kwargs``, or as it is not known which ones."""
    required: tuple[str, ...] = ()
    """Those without defaults."""
    explicit: tuple[str, ...] = ()
    """Those that are named, also if it takes any others."""


_UNKNOWN_ARGUMENTS = Arguments(None)
_WITHOUT_ARGUMENTS: Collection[Any] = (bool, int, float, str)
"""What is used for checks of values, takes nothing by name, and does not say so in all versions of Python."""


def read_arguments(fn: Callable[..., Any], positional: int = 0) -> Arguments:
    """
    Read from the signature of the function which arguments it takes by their names.

    The signature is that of the function as it is called: a wrapper decides on its own what it passes on, so what it
    wraps does not matter.

    Args:
        fn: the function, or anything else that can be called.
        positional: how many arguments it gets by their positions, before those by their names.
    """
    if type(fn) is types.FunctionType and '__signature__' not in fn.__dict__:
        return _read_code(fn, positional)  # ten times faster, and sub-handlers are declared again and again
    parameters = get_parameters(fn)
    if parameters is None:
        return Arguments(()) if fn in _WITHOUT_ARGUMENTS else _UNKNOWN_ARGUMENTS
    by_position = [
        key for key, each in parameters.items() if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ][:positional]
    named = {
        key: each
        for key, each in parameters.items()
        if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY) and key not in by_position
    }
    is_open = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    required = tuple(key for key, each in named.items() if each.default is each.empty)
    return Arguments(None if is_open else tuple(named), required, tuple(named))


def _read_code(fn: types.FunctionType, positional: int) -> Arguments:
    code, defaults, keyword_defaults = fn.__code__, fn.__defaults__ or (), fn.__kwdefaults__ or {}
    count, first = code.co_argcount, max(positional, code.co_posonlyargcount)
    by_keyword = code.co_varnames[count : count + code.co_kwonlyargcount]
    required = (
        *code.co_varnames[first : count - len(defaults)],
        *(name for name in by_keyword if name not in keyword_defaults),
    )
    is_open = bool(code.co_flags & inspect.CO_VARKEYWORDS)
    names = (*code.co_varnames[first:count], *by_keyword)
    return Arguments(None if is_open else names, required, names)


def get_parameters(fn: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """Return the parameters of the function itself, not of what it wraps; ``None`` if they are not known."""
    while type(fn) in _TRANSPARENT:  # without signatures of their own
        fn = fn.__wrapped__  # type: ignore[attr-defined]
    try:
        return _read_signature(fn).parameters
    except (ValueError, TypeError):  # of those that are written in C, and of some mocks
        return None


_TRANSPARENT = (staticmethod, type(functools.lru_cache(lambda: None)))

if sys.version_info >= (3, 14):
    import annotationlib

    def _read_signature(fn: Callable[..., Any]) -> inspect.Signature:
        # The types can be unknown at run time, e.g. if they are imported only for checks of types.
        return inspect.signature(fn, follow_wrapped=False, annotation_format=annotationlib.Format.STRING)
else:

    def _read_signature(fn: Callable[..., Any]) -> inspect.Signature:
        return inspect.signature(fn, follow_wrapped=False)


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
