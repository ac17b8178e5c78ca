"""
Calling the user's functions: async ones in the event loop, sync ones in threads.

The rest of the framework awaits both alike. A thread inherits the context variables of the calling task, so that
``kopf.info()`` or ``kopf.adopt()`` use the current object there, too. Partials, wrappers and callable objects are
unwrapped to find out whether a function is async; if a sync function returns a coroutine, it is awaited, too.

Functions are called with the kwargs that they name, or with all kwargs if they have ``**kwargs``. Their signatures are
read once, when the functions are declared: see `read_arguments`.
"""

import asyncio
import contextlib
import contextvars
import functools
import inspect
import sys
import threading
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Executor
from typing import Any, NamedTuple

from kopf._cogs.aiokits.cancellations import withdraw_cancellation
from kopf._cogs.aiokits.loop_monitors import rouse

HALTED_DELAY = 0.1
"""How long to wait (in seconds) before a sync function that may not begin is given up."""

OUTWAITING_INTERVAL = 0.1
"""How often to check whether a thread has ended that its task does not wait for any more (in seconds)."""


class CallNotBegun(Exception):
    """Raised when a function was not called, because the operator has paused, or is ending."""


@contextlib.contextmanager
def context(values: Iterable[tuple[contextvars.ContextVar[Any], Any]]) -> Iterator[None]:
    """Set context variables in a block of code, e.g. in unit tests of functions that need a current handler."""
    tokens = [(var, var.set(value)) for var, value in values]
    try:
        yield
    finally:
        for var, token in reversed(tokens):
            var.reset(token)


def is_marked(check: Callable[[object], bool], fn: object) -> bool:
    """Check the function by a predicate of `inspect`; ``False`` if it fails, as it does for some mocks."""
    try:
        return check(fn)
    except TypeError:
        return False


def is_async_fn(fn: object) -> bool:
    """Check whether the function returns a coroutine; partials, wrappers and callable objects are unwrapped."""
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
    """The kwargs that a function accepts."""

    names: tuple[str, ...] | None
    """All names; ``None`` if it accepts any, because of ``**kwargs`` or of an unknown signature."""
    required: tuple[str, ...] = ()
    """The names of kwargs without defaults."""
    explicit: tuple[str, ...] = ()
    """The names in the signature, even if the function accepts any others."""


_UNKNOWN_ARGUMENTS = Arguments(None)
_WITHOUT_ARGUMENTS: Collection[Any] = (bool, int, float, str)
"""Classes that users pass as functions of values. They accept no kwargs, but have no signatures in some Pythons."""


def read_arguments(fn: Callable[..., Any], positional: int = 0) -> Arguments:
    """
    Return which kwargs the function accepts, according to its signature.

    Wrappers are not unwrapped, unlike by `inspect.signature`: the wrapper is called, and it decides which kwargs it
    passes on.

    Args:
        fn: the function, or anything else that can be called.
        positional: the number of positional arguments that it will get before the kwargs.
    """
    if type(fn) is types.FunctionType and '__signature__' not in fn.__dict__:
        return _read_code(fn, positional)  # ten times faster, and sub-handlers are declared in each attempt
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
    """Return the parameters of the function itself, not of the wrapped one; ``None`` if they are unknown."""
    while type(fn) in _TRANSPARENT:  # these have no signatures of their own
        fn = fn.__wrapped__  # type: ignore[attr-defined]
    try:
        return _read_signature(fn).parameters
    except (ValueError, TypeError):  # functions that are written in C, and some mocks
        return None


_TRANSPARENT = (staticmethod, type(functools.lru_cache(lambda: None)))

if sys.version_info >= (3, 14):
    import annotationlib

    def _read_signature(fn: Callable[..., Any]) -> inspect.Signature:
        # As strings, since evaluation fails for types that are imported only under `if TYPE_CHECKING`.
        return inspect.signature(fn, follow_wrapped=False, annotation_format=annotationlib.Format.STRING)
else:

    def _read_signature(fn: Callable[..., Any]) -> inspect.Signature:
        return inspect.signature(fn, follow_wrapped=False)


async def invoke(
    fn: Callable[..., Any],
    /,
    kwargs: dict[str, Any],
    *,
    executor: Executor | None,
    asynchronous: bool | None = None,
    is_halted: Callable[[], bool] | None = None,
    running: 'ThreadCalls | None' = None,
    is_cancelled: Callable[[], bool] | None = None,
) -> Any:
    """
    Call the function, in a thread if it is sync, and return its result.

    Args:
        fn: the function.
        kwargs: its kwargs. They are cleared while the function waits.
        executor: the executor for sync functions; ``None``: the default one of the event loop.
        asynchronous: whether the function is async, if the caller has found it out before.
        is_halted: checks, in the thread, whether the operator is paused or must pause, so that the function may not
            begin.
        running: where to note the function while it runs in a thread.
        is_cancelled: checks whether the owner of the current task has cancelled it. Any other cancellation is ignored
            if the function runs in a thread, as it is not of this function.

    Raises:
        CallNotBegun: if the function may not begin.
    """
    if is_async_fn(fn) if asynchronous is None else asynchronous:
        # From here on, the user's code can block the event loop.
        rouse()
        result = fn(**kwargs)
        if type(result) is types.CoroutineType or inspect.isawaitable(result):
            kwargs.clear()  # otherwise, the callers' frames would keep the values in memory while the function waits
            return await result
        return result  # a wrapper can return the result itself
    # As `asyncio.to_thread` does it, but in the executor of the settings.
    context, run_in_executor = contextvars.copy_context(), asyncio.get_running_loop().run_in_executor
    # Why not check only before? The function can wait for a thread for long, and the operator can pause meanwhile, or
    # the whole process can be frozen.
    call = functools.partial(run_in_executor, executor, context.run, _call, fn, kwargs, is_halted, running)
    while (result := await (call() if is_cancelled is None else _await_owned(call(), is_cancelled))) is _HALTED:
        # After a suspension, the operator first finds out whether it must pause.
        await asyncio.sleep(HALTED_DELAY)
        # Why not wait for the end of the pause? The operator that takes over waits until no handlers are running here.
        if is_halted is not None and is_halted():
            raise CallNotBegun
    if type(result) is _Raised:
        try:
            raise result.error
        finally:
            del result  # the error's traceback refers to this frame: with the variable, that would be a reference cycle
    return await result if inspect.iscoroutine(result) else result


async def _await_owned(future: asyncio.Future[Any], is_cancelled: Callable[[], bool]) -> Any:
    """Await the call in a thread, whatever cancels the task, except for its owner."""
    try:
        while True:
            try:
                return await asyncio.shield(future)
            except asyncio.CancelledError:
                if future.cancelled() or is_cancelled():
                    raise
                await withdraw_cancellation(is_cancelled)
    finally:
        future.cancel()  # if it waits for a thread, it must not begin after a cancellation by the owner
        del future  # it has the error, whose traceback refers to this frame: that would be a reference cycle


class _Raised(NamedTuple):
    """An error returned from a thread, as asyncio would not raise it unchanged."""

    error: Exception


_HALTED = object()
"""Returned from a thread that has not called the function, as the operator must pause."""


class _RunningCall(NamedTuple):
    """A call of a function in a thread."""

    fn: Callable[..., Any]
    kwargs: Mapping[str, Any]

    def __str__(self) -> str:
        title = getattr(self.fn, '__qualname__', repr(self.fn))
        name, namespace = self.kwargs.get('name'), self.kwargs.get('namespace')
        return f'{title}()' if name is None else f'{title}() of {name if namespace is None else f"{namespace}/{name}"}'


class ThreadCalls:
    """
    The handlers of one operator that are running in threads and must end before another replica works.

    They are those of objects, of schedules, and of the beginning of a leadership.

    Cancelled tasks do not wait for their threads, so this is the only way to know whether the threads have ended. Why
    not all calls in the executor? Several operators of a process can share it, and so can index functions, probes and
    webhooks, which are also called while another replica handles the objects. And the executor can be replaced.

    Args:
        outer: the calls to which these belong, too, if they are only those of some sub-handlers.
    """

    def __init__(self, outer: 'ThreadCalls | None' = None) -> None:
        self._calls: dict[int, _RunningCall] = {}  # by the identifiers of the threads
        self._outer = outer

    @contextlib.contextmanager
    def noting(self, fn: Callable[..., Any], kwargs: Mapping[str, Any]) -> Iterator[None]:
        """Note that the function runs in the current thread."""
        thread = threading.get_ident()
        self._calls[thread] = _RunningCall(fn, kwargs)
        try:
            if self._outer is None:
                yield
            else:
                with self._outer.noting(fn, kwargs):
                    yield
        finally:
            del self._calls[thread]

    async def outwait(self, is_cancelled: Callable[[], bool]) -> None:
        """
        Wait until all calls have ended, also if stray cancellations hit the task.

        Args:
            is_cancelled: checks whether the owner of the current task has cancelled it.

        Raises:
            asyncio.CancelledError: if the owner cancels the task.
        """
        # Why not an event? Each call would have to set it, but nearly none is waited for.
        while self._calls:
            try:
                await asyncio.sleep(OUTWAITING_INTERVAL)
            except asyncio.CancelledError:
                if is_cancelled():
                    raise

    def find(self) -> list[str]:
        """Return the names of the functions, with those of their objects."""
        return [str(call) for call in list(self._calls.values())]


def _call(
    fn: Callable[..., Any],
    kwargs: Mapping[str, Any],
    is_halted: Callable[[], bool] | None,
    running: ThreadCalls | None,
) -> Any:
    if is_halted is not None and is_halted():
        return _HALTED
    try:
        if running is None:
            return fn(**kwargs)
        with running.noting(fn, kwargs):
            return fn(**kwargs)
    except (TimeoutError, CancelledError) as error:
        # Asyncio would treat these as errors of its own futures, and replace them with a cancellation, or with an error
        # without the traceback.
        return _Raised(error)
    except StopIteration as error:
        # Futures do not accept this error, so the awaiting task would never be woken up.
        raise RuntimeError(f"The function {fn!r} raised StopIteration.") from error
