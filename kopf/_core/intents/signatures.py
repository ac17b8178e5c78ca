"""
Signatures of public functions whose options are declared by typed dicts.

Type checkers and editors read ``**options: Unpack[...]``. But `inspect.signature`, `help` and notebooks would show only
``**options``, so the functions get signatures with all parameters. Why not simply write these parameters in each
function? Two dozens of decorators share them, and a parameter that is forgotten in one of them would go unnoticed.
"""

import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from kopf._core.intents.options import TEXTS

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


def describing_options(shape: type[Any], /, **defaults: Any) -> Callable[[FnT], FnT]:
    """
    Return a decorator that shows the options as `showing_options` does, and describes them in the docstring.

    Args:
        shape: the typed dict.
        defaults: the defaults of the options that are not ``None`` if omitted.
    """
    show = showing_options(shape, **defaults)

    def decorator(fn: FnT) -> FnT:
        signature: inspect.Signature = show(fn).__dict__['__signature__']
        parameters = signature.parameters.values()
        names = [each.name for each in parameters]
        if fn.__doc__ is not None:  # with the option -OO of Python, there are no docstrings
            fn.__doc__ = add_descriptions(fn.__doc__, names)
        return fn

    return decorator


def add_descriptions(doc: str, names: Iterable[str]) -> str:
    """Return the docstring with the descriptions of all these options, except for those that it describes itself."""
    text = inspect.cleandoc(doc) if '\n' in doc else doc  # few decorators have more than one line; it takes long
    head, _, rest = text.partition('\n\nArgs:\n')
    own, gap, others = rest.partition('\n\n')
    if not own:  # other sections follow the first paragraphs
        head, gap, others = head.partition('\n\nRaises:')
    known = _OWN.findall(own) if own else []
    lines = [own] if own else []
    lines += [f'    {name}: {TEXTS[name]}' for name in names if name not in known]
    return '\n'.join([f'{head}\n\nArgs:', *lines]) + gap + others


_OWN = re.compile(r'^    (\w+): ', re.MULTILINE)


def list_descriptions(doc: str) -> dict[str, str]:
    """Return the descriptions of the options in a docstring, each in one line."""
    _, _, rest = inspect.cleandoc(doc).partition('\n\nArgs:\n')
    section, _, _ = rest.partition('\n\n')
    entries = re.split(r'^    (\w+): ', section, flags=re.MULTILINE)[1:]
    return {name: ' '.join(text.split()) for name, text in zip(entries[::2], entries[1::2], strict=True)}


def _get_own_parameters(signature: inspect.Signature) -> dict[str, inspect.Parameter]:
    """Return the parameters except ``**options``, and except ``*args``, which only catch misplaced arguments."""
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {name: each for name, each in signature.parameters.items() if each.kind not in variable}


@functools.cache
def _make_parameter(name: str, hint: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _spell(hint: Any) -> Any:
    return hint.__forward_arg__ if isinstance(hint, typing.ForwardRef) else hint
