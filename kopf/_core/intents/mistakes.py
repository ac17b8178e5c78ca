"""
Mistakes in the declarations of users, found by the decorators or when the operator starts.

Functions can name any of the provided arguments, with or without ``**kwargs`` for the others; only other names are
mistakes. If they were not found so early, each object would cause a traceback of a call outside of the user's code; and
some would never be noticed. The messages name the mistake, its location, and the remedy.
"""

import functools
import inspect
import os.path
import re
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from kopf._cogs.helpers.explanations import ExplainedError
from kopf._core.actions.execution import EXTRAS
from kopf._core.actions.invocation import get_parameters, is_marked, read_arguments
from kopf._core.intents import causes, idle_scripts, idle_statements
from kopf._core.intents.callbacks import iter_parts
from kopf._core.intents.handlers import (
    KINDS,
    ChangingHandler,
    ConversionHandler,
    DaemonHandler,
    DeclaredHandler,
    DeleteOptions,
    IndexingHandler,
    ReconcilingHandler,
    ResourceHandler,
    ResumeOptions,
    ScheduleHandler,
    TimerHandler,
    UpdateOptions,
    WatchingHandler,
    WebhookHandler,
)
from kopf._core.intents.registries import OperatorRegistry


class DeclarationError(ExplainedError):
    """Raised when handlers cannot be run as they are declared; the text names them with the reasons."""


def check_handler(name: str, fn: Any) -> None:
    """
    Check that the function can be a handler of any kind.

    Args:
        name: the name of the decorator.
        fn: the function.

    Raises:
        TypeError: if it cannot be called with keyword arguments only, or a call would not run it.
    """
    idle_scripts.note_declaration(fn)
    if _is_simple(fn):
        return
    if not callable(fn):
        raise TypeError(f"@kopf.on.{name} is for functions, and {fn!r} is none.")
    if is_marked(inspect.isgeneratorfunction, fn) or is_marked(inspect.isasyncgenfunction, fn):
        raise TypeError(
            f"@kopf.on.{name}: {describe(fn)} has a yield in it, so that a call of it runs nothing. "
            f"Let it return instead."
        )
    parameters = _get_parameters(fn)
    kinds = {parameter.kind for parameter in parameters.values()}
    if isinstance(fn, type) and inspect.Parameter.VAR_KEYWORD not in kinds:
        raise TypeError(
            f"@kopf.on.{name}: {fn.__qualname__!r} is a class: a call of it makes an object, and runs no method. "
            f"Use a function, or declare the method of an object: kopf.on.{name}(...)(obj.method)"
        )
    if kinds == {inspect.Parameter.VAR_POSITIONAL}:
        raise TypeError(
            f"@kopf.on.{name}: {describe(fn)} takes only *{next(iter(parameters))}, but handlers are called with "
            f"keyword arguments. If it is made by a decorator of yours, let it take **kwargs, and pass them on."
        )
    if next(iter(parameters), None) == 'self' and not inspect.ismethod(fn):
        raise TypeError(
            f"@kopf.on.{name}: {describe(fn)} is a method, and it is not known of which object. "
            f"Use a function, or declare the method of an object: kopf.on.{name}(...)(obj.method)"
        )
    if lonely := [key for key, parameter in parameters.items() if parameter.kind is parameter.POSITIONAL_ONLY]:
        raise TypeError(
            f"@kopf.on.{name}: {describe(fn)} takes {lonely[0]!r} by its position, but handlers "
            f"are called with keyword arguments. Remove the slash from its parameters."
        )


def _is_simple(fn: Any) -> bool:
    """Check whether the function certainly has none of these mistakes, without reading its signature."""
    # Reading the signature takes most of the time of a declaration, and sub-handlers are declared in each attempt of
    # their parents. Attributes, such as `__wrapped__`, can lead to another signature.
    if type(fn) is not types.FunctionType or fn.__dict__:
        return False
    code = fn.__code__
    return (
        not code.co_flags & _YIELDING
        and not code.co_posonlyargcount
        and bool(code.co_argcount or code.co_kwonlyargcount or not code.co_flags & inspect.CO_VARARGS)
        and 'self' not in code.co_varnames
    )


def check_callback(name: str, option: str, fn: Any, positional: int) -> None:
    """
    Check that the function can be a callback.

    Args:
        name: the name of the decorator.
        option: the name of the option.
        fn: the value of the option, which is not necessarily a callback.
        positional: the number of its positional arguments: 1 for callbacks that get a value, otherwise 0.

    Raises:
        TypeError: if the function cannot be called with these arguments.
    """
    for part in iter_parts(fn) if callable(fn) else ():
        parameters = _get_parameters(part)
        lonely = [
            key for key, each in parameters.items() if each.kind is each.POSITIONAL_ONLY and each.default is each.empty
        ]
        if lonely[positional:]:
            raise TypeError(
                f"@kopf.on.{name}: {describe(part)} of {option}= takes {lonely[positional]!r} by its "
                f"position, but it is called with keyword arguments. Remove the slash from its parameters."
            )
        if positional and not any(each.kind in _POSITIONAL for each in parameters.values()):
            raise TypeError(
                f"@kopf.on.{name}: {describe(part)} of {option}= takes no value: it is called with the "
                f"value first, then with keyword arguments. Add it to the parameters: "
                f"({', '.join(['value', *map(str, parameters.values())])})"
            )


def is_bare(fn: object) -> bool:
    """
    Check whether the value given for a resource is a handler, not a predicate of resources.

    This is the case for decorators without parentheses: ``@kopf.on.create`` instead of ``@kopf.on.create(...)``.
    """
    if not inspect.isfunction(fn):
        return False
    parameters = _get_parameters(fn)
    needed = [
        key
        for key, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind in _POSITIONAL
        and parameter.kind is not parameter.VAR_POSITIONAL
    ]
    if not needed:
        return not any(parameter.kind in _POSITIONAL for parameter in parameters.values())
    return len(needed) != 1 or (needed[0] != 'resource' and _is_argument(needed[0]))


def explain_bare(name: str, fn: object, example: str) -> str:
    """Return a message on a decorator without parentheses, with the correct spelling."""
    return f"@kopf.on.{name} has no parentheses: write @kopf.on.{name}({example}) before {describe(fn)}."


def check_registry(registry: OperatorRegistry) -> None:
    """
    Check that all arguments of all functions are provided.

    Raises:
        DeclarationError: if some are not, so that their functions would fail in each call.
    """
    indices = {handler.id for handler in registry.indexing}
    problems = [text for handler in registry.iter_handlers() for text in find_missing(handler, indices)]
    if problems:
        raise DeclarationError(' '.join(dict.fromkeys(problems)))


def find_missing(handler: DeclaredHandler, indices: Collection[str]) -> Iterator[str]:
    """Yield a message for each function of the handler with an argument that is not provided."""
    provided = list_arguments(type(handler))
    if getattr(handler, 'model', None) is None:
        provided -= _ONLY_OF_MODELS
    if (name := _find_first(handler.fn, 0, provided, indices)) is not None:
        yield (
            f"{handler} ({locate(handler.fn)}) asks for {name!r}, which it is not given. "
            f"{_explain_missing(name, provided, indices)}"
        )
    sources = handler.sources if isinstance(handler, ResourceHandler) else ()
    typed = [source.fn for source in sources if source.model is not None]  # these get objects of classes
    for option, callback, positional in handler.iter_callbacks() if isinstance(handler, ResourceHandler) else ():
        known = _list_arguments_of_callback(option, provided)
        if callback in typed:
            known |= _ONLY_OF_MODELS
        for fn in iter_parts(callback):
            what = f"{option}= of {handler} ({locate(fn)})"
            if (name := _find_first(fn, positional, known, indices)) is not None:
                reason = (
                    "It is called for the watched objects, not for those of the handler."
                    if option == 'watches' and name in provided
                    else _explain_missing(name, known, indices)
                )
                yield f"{what} asks for {name!r}, which it is not given. {reason}"
            elif positional and (name := _find_clash(fn, {*known, *indices})) is not None:
                yield f"{what} takes its value as {name!r}, which is the name of an argument: give it another name."


def _list_arguments_of_callback(option: str, provided: frozenset[str]) -> frozenset[str]:
    """Return the names of the arguments that the callbacks in this option of a handler get."""
    if option == 'initial_delay':
        return provided
    # The functions of ``watches=`` are called for other objects than the handler, as functions of indices are.
    return (list_arguments(IndexingHandler) if option == 'watches' else provided) - _ONLY_OF_HANDLERS


def list_arguments(kind: type[DeclaredHandler]) -> frozenset[str]:
    """Return the names of the arguments that handlers of the kind get; in addition, all handlers get the indices."""
    return frozenset({'param', *causes.ATTEMPT_GETTERS, *kind.cause.ARGUMENTS, *kind.cause.EXTRA_GETTERS})


def _is_argument(name: str) -> bool:
    return any(name in list_arguments(kind) for kind in KINDS)


_LATE_ARGUMENTS = frozenset({'children', 'conditions', 'obj'})
"""The arguments that many operators had indices for before they were added; these operators need no warning."""

_ONLY_OF_MODELS = frozenset({'obj'})
_ONLY_OF_HANDLERS = frozenset({*causes.ATTEMPT_GETTERS, *EXTRAS, *_ONLY_OF_MODELS, 'stopped'})


def _find_first(fn: Any, positional: int, provided: Collection[str], indices: Collection[str]) -> str | None:
    required = read_arguments(fn, positional).required
    return next((name for name in required if name not in provided and name not in indices), None)


def _find_clash(fn: Any, provided: Collection[str]) -> str | None:
    """Return the name of the callback's value if an argument with this name is provided, too."""
    if read_arguments(fn).names is not None:
        return None
    first = next(iter(_get_parameters(fn).values()))
    return first.name if first.kind is first.POSITIONAL_OR_KEYWORD and first.name in provided else None


def _explain_missing(name: str, provided: Collection[str], indices: Collection[str]) -> str:
    if name in _ONLY_OF_MODELS:
        return (
            "The object is in 'body'. Only handlers get 'obj', and only if their resource is named by a class that is "
            "declared with @kopf.kind."
        )
    if name in _ONLY_OF_HANDLERS and name not in provided:
        return "It is given only to the handlers themselves, not to their filters."
    if others := sorted(kind.decorators for kind in KINDS if name in list_arguments(kind)):
        return f"It is given to: {', '.join(others)}."
    return (
        f"There is no such argument, and no index of this name. {suggest(name, {*provided, *indices}, '')}"
        f"There are: {', '.join(sorted(provided))}."
    )


def find_namesake(handlers: Iterator[Any], new: ResourceHandler) -> ResourceHandler | None:
    """Return another function in the same file with the same id: only one of them would be called for an object."""

    def key(handler: Any) -> tuple[Any, ...]:
        reason = getattr(handler, 'reason', None), getattr(handler, 'initial', None)
        values = [getattr(handler, name, None) for name in ('value', 'old', 'new')]
        filters = handler.labels, handler.annotations, handler.when, handler.label_selector
        return type(handler), handler.id, handler.selector, reason, filters, values

    def file_of(handler: Any) -> str:
        return locate(handler.fn).rpartition(':')[0]

    return next(
        (old for old in handlers if old.fn is not new.fn and key(old) == key(new) and file_of(old) == file_of(new)),
        None,
    )


def explain_namesake(new: ResourceHandler, old: ResourceHandler) -> str:
    """Return a message on two handlers with the same id."""
    places = locate(old.fn), locate(new.fn)
    if places[0] == places[1]:  # a decorator inside of a function that is called for each object
        return (
            f"{new} is declared again by the function around it (in {places[1]}). Only one of the declarations will "
            f"have an effect for an object. Declare it outside of functions; or use @kopf.subhandler() in a handler."
        )
    return (
        f"{new} is declared twice for the same: in {places[0]} and in {places[1]}. Only one of the functions will be "
        f"called for an object. Rename one of them, or give it another id=."
    )


def find_doubts(handler: ResourceHandler) -> Iterator[str]:
    """Yield a message for each permitted but suspicious part of the declaration of a handler."""
    place = f"{handler} ({locate(handler.fn)})"
    if isinstance(handler, TimerHandler) and handler.interval == 0 and not handler.idle:
        yield f"{place} has interval=0, so it is run again and again without a pause. Use an interval in seconds."
    if isinstance(handler, TimerHandler) and handler.interval is None and handler.idle is None:
        yield (
            f"{place} has neither interval= nor idle=, so it is run only once for an object. Add interval= (in "
            f"seconds); or use @kopf.on.create and @kopf.on.resume for what is done once."
        )
    if handler.field and (doubt := _doubt_field(handler.field)):
        field = handler.field if '.' in handler.field[0] else '.'.join(handler.field)
        yield f"{place} has field={field!r}, which no object has. {doubt}"
    for doubt in _doubt_metadata(handler):
        yield f"{place} has {doubt}"
    yield from find_idle_statements(handler)
    if isinstance(handler, IndexingHandler) and _is_argument(handler.id) and handler.id not in _LATE_ARGUMENTS:
        yield (
            f"{place} has the name of an argument, so handlers get the index instead of {handler.id!r}. "
            f"Rename the function, or give it another id=."
        )


def find_idle_statements(handler: DeclaredHandler) -> Iterator[str]:
    """Yield a message for each statement in the function of the handler that does nothing."""
    return (f"{handler} ({locate(handler.fn)}) {text}" for text in idle_statements.find_idle_statements(handler.fn))


_NAME = '[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?'
_KEY = re.compile(f'([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?{_NAME}')
_VALUE = re.compile(f'({_NAME})?')


def _doubt_metadata(handler: ResourceHandler) -> Iterator[str]:
    for option, values in (('labels', handler.labels), ('annotations', handler.annotations)):
        for key, value in (values or {}).items():
            # Kubernetes accepts capital letters in the domains of annotations, but not in those of labels.
            if not _KEY.fullmatch(str(key) if option == 'labels' else str(key).lower()):
                yield (
                    f"{option}={{{key!r}: ...}}, which no object has: a key has only letters, digits, '-', '_', and "
                    f"'.', up to 63, after an optional domain with '/'."
                )
            elif option == 'labels' and isinstance(value, str) and not _VALUE.fullmatch(value):
                yield (
                    f"labels={{{key!r}: {value!r}}}, which no object has: a value has only letters, digits, '-', '_', "
                    f"and '.', up to 63. Texts of other characters are in annotations."
                )


def _doubt_field(field: Sequence[str]) -> str | None:
    if '[' in ''.join(field):
        return "Items of lists have no fields: use the field of the whole list."
    if field[0].startswith('$'):
        return "Write the names with dots between them, such as 'spec.field'."
    if '.' in field[0]:
        return f"The names of a list or a tuple have no dots between them: use field={'.'.join(field)!r}."
    if '/' in field[0]:
        return f"Did you mean {'.'.join(field).replace('/', '.')!r}?"
    if field[0] == 'metadata' and field[1:2] in [('annotations',), ('labels',)] and len(field) > 3:
        return f"For names with dots in them, use a tuple: field={(*field[:2], '.'.join(field[2:]))!r}."
    return None


def suggest(option: str, allowed: Collection[str], suffix: str = '=') -> str:
    """Return a hint on the option with the most similar name; an empty string if there is none."""
    import difflib

    found = difflib.get_close_matches(option, allowed)
    best = max(found, key=lambda name: len(os.path.commonprefix([option, name])), default=None)
    return f"Did you mean {best}{suffix}? " if best else ''


def find_takers(option: str) -> str:
    """Return a hint on the decorators that take the option; an empty string if there are none."""
    takers = [decorator for decorator, options in _OPTIONS.items() if option in options.__annotations__]
    return f"{option}= is for {', '.join(takers)}. " if takers else ''


_OPTIONS: Mapping[str, type[Any]] = {
    '@kopf.on.create': ChangingHandler.options,
    '@kopf.on.update': UpdateOptions,
    '@kopf.on.delete': DeleteOptions,
    '@kopf.on.resume': ResumeOptions,
    '@kopf.on.event': WatchingHandler.options,
    '@kopf.on.reconcile': ReconcilingHandler.options,
    '@kopf.timer': TimerHandler.options,
    '@kopf.daemon': DaemonHandler.options,
    '@kopf.on.schedule': ScheduleHandler.options,
    '@kopf.on.validate': WebhookHandler.options,
    '@kopf.on.mutate': WebhookHandler.options,
    '@kopf.on.convert': ConversionHandler.options,
}
"""The options of the decorators, for the hint on an option that another decorator takes."""


def describe(fn: object) -> str:
    """Return the name of the function and its place, for messages."""
    name = getattr(fn, '__qualname__', None)
    return f"the function {name!r} ({locate(fn)})" if name else f"{fn!r}"


def locate(fn: Any) -> str:
    """Return the file and the line of the function."""
    while isinstance(fn, functools.partial) or hasattr(fn, '__wrapped__'):
        fn = fn.func if isinstance(fn, functools.partial) else fn.__wrapped__
    code = getattr(fn, '__code__', None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else 'somewhere'


def _get_parameters(fn: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    parameters = get_parameters(fn)
    return _ANY_PARAMETERS if parameters is None else parameters


_YIELDING = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
_ANY_PARAMETERS = {
    'args': inspect.Parameter('args', inspect.Parameter.VAR_POSITIONAL),
    'kwargs': inspect.Parameter('kwargs', inspect.Parameter.VAR_KEYWORD),
}
_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)
