"""
Dependencies of handlers on indices: the arguments that the functions of users can access.

When a resource is discovered, the arguments are found in the signatures and the bytecode of the functions. A function
accesses the arguments that it names, or any argument if it uses its ``**kwargs``. Most functions never use their
``**_``. If ``**_`` counted as access to all indices, all these handlers would wait for indices that they do not need.
"""

import dis
import functools
import inspect
import itertools
import types
from collections.abc import Callable, Iterable
from typing import Any

from kopf._core.actions.invocation import get_parameters
from kopf._core.intents.handlers import ResourceHandler

_REVEALING = frozenset({'locals', 'vars', 'dir', 'eval', 'exec', 'subhandler', 'register', 'execute'})
"""Functions that can access local variables by their names, or pass the arguments on to sub-handlers."""


def find_arguments(handlers: Iterable[ResourceHandler]) -> frozenset[str] | None:
    """Return the arguments that the functions and filters of the handlers can access; ``None`` for any arguments."""
    callbacks = ((handler.fn, *(callback for _, callback, _ in handler.iter_callbacks())) for handler in handlers)
    return find_arguments_of(itertools.chain.from_iterable(callbacks))


def find_arguments_of(functions: Iterable[Callable[..., Any]]) -> frozenset[str] | None:
    """Return the arguments that the functions can access; ``None`` for any arguments."""
    found: set[str] = set()
    for fn in functions:
        parameters = get_parameters(fn)
        # A function with an unknown signature could use any index.
        if parameters is None:
            return None
        if any(each.kind is each.VAR_KEYWORD for each in parameters.values()) and _is_reading_kwargs(fn):
            return None
        found.update(parameters)
    return frozenset(found)


def _is_reading_kwargs(fn: Callable[..., Any]) -> bool:
    """Check whether the function can use its ``**kwargs``; return true if that is unclear."""
    while not isinstance(fn, types.FunctionType):
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif isinstance(fn, types.MethodType):
            fn = fn.__func__
        else:
            return True
    if '__signature__' in fn.__dict__ or not fn.__code__.co_flags & inspect.CO_VARKEYWORDS:
        return True  # other code receives the arguments
    return _is_code_reading_kwargs(fn.__code__)


@functools.lru_cache(maxsize=1000)
def _is_code_reading_kwargs(code: types.CodeType) -> bool:
    name = code.co_varnames[code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)]
    if name in code.co_cellvars or not _REVEALING.isdisjoint(code.co_names):
        return True
    # One instruction can read several variables; then its argument is a tuple of their names.
    return any(
        name in (each.argval if isinstance(each.argval, tuple) else (each.argval,))
        for each in dis.get_instructions(code)
        if 'LOAD_FAST' in each.opname
    )
