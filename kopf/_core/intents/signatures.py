"""
Signatures of public functions whose options are declared by typed dicts.

Type checkers and editors read ``**options: Unpack[...]``. But `inspect.signature`, `help` and notebooks would show only
``**options``, so the functions get signatures with all parameters. Why not simply write these parameters in each
function? Two dozens of decorators share them, and a parameter that is forgotten in one of them would go unnoticed.
"""

import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any, TypeVar

FnT = TypeVar('FnT', bound=Callable[..., Any])


def showing_options(shape: type[Any], /, **defaults: Any) -> Callable[[FnT], FnT]:
    """
    Return a decorator that replaces ``**options`` in the signature of a function with the options of the typed dict.

    Args:
        shape: the typed dict.
        defaults: the defaults of the options that are not ``None`` if omitted.
    """

    def decorator(fn: FnT) -> FnT:
        signature = inspect.signature(fn)
        parameters = _get_own_parameters(signature)
        for name, hint in shape.__annotations__.items():
            if name not in parameters:
                parameters[name] = _make_parameter(name, _spell(hint), defaults.get(name))
        fn.__dict__['__signature__'] = signature.replace(parameters=list(parameters.values()))
        return fn

    return decorator


def _get_own_parameters(signature: inspect.Signature) -> dict[str, inspect.Parameter]:
    """Return the parameters except ``**options``, and except ``*args``, which only catch misplaced arguments."""
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {name: each for name, each in signature.parameters.items() if each.kind not in variable}


@functools.cache
def _make_parameter(name: str, hint: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _spell(hint: Any) -> Any:
    return hint.__forward_arg__ if isinstance(hint, typing.ForwardRef) else hint
