"""
Which arguments the functions of users can look at, and so, which indices their handlers have to wait for.

It is read from the signature and the code of the functions when their resource is discovered. A function looks at the
arguments that it names; or at any of them if it does anything with its ``**kwargs``. Most functions never touch their
``**_``: to take that for a use of all indices would let them wait for what they do not need.
"""

import dis
import functools
import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any

from kopf._core.actions.invocation import get_parameters
from kopf._core.intents.handlers import ResourceHandler

_REVEALING = frozenset({'locals', 'vars', 'dir', 'eval', 'exec', 'subhandler', 'register', 'execute'})
"""What a function can see its own kwargs by, or pass them on to sub-handlers, which can name others."""


def find_arguments(handlers: Iterable[ResourceHandler]) -> frozenset[str] | None:
    """Find the arguments that these handlers can look at, in their filters, too; ``None`` if that can be any."""
    found: set[str] = set()
    for handler in handlers:
        for fn in (handler.fn, *(callback for _, callback, _ in handler.iter_callbacks())):
            parameters = get_parameters(fn)
            if parameters is None:
                return None
            if any(each.kind is each.VAR_KEYWORD for each in parameters.values()) and _is_reading_kwargs(fn):
                return None
            found.update(parameters)
    return frozenset(found)


def _is_reading_kwargs(fn: Callable[..., Any]) -> bool:
    """Check whether the function can do anything with its ``**kwargs``; if that is not clear, it can."""
    while not isinstance(fn, types.FunctionType):
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif isinstance(fn, types.MethodType):
            fn = fn.__func__
        else:
            return True
    if '__signature__' in fn.__dict__ or not fn.__code__.co_flags & inspect.CO_VARKEYWORDS:
        return True  # it is not the code that takes them
    return _is_code_reading_kwargs(fn.__code__)


@functools.lru_cache(maxsize=1000)
def _is_code_reading_kwargs(code: types.CodeType) -> bool:
    name = code.co_varnames[code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)]
    if name in code.co_cellvars or not _REVEALING.isdisjoint(code.co_names):
        return True
    # Several variables can be read by one instruction: then, their names come as a tuple.
    return any(
        name in (each.argval if isinstance(each.argval, tuple) else (each.argval,))
        for each in dis.get_instructions(code)
        if 'LOAD_FAST' in each.opname
    )
