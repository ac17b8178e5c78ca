"""
Mistakes in what users declare, found before anything is run: by the decorators, or when the operator starts.

Each would otherwise be found by the first object that comes, as a traceback of a call that is not in the user's code,
again and again; or never. The texts say what is wrong, where it is, and what to write instead.
"""
import functools
import inspect
import os.path
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from kopf._cogs.helpers.explanations import ExplainedError
from kopf._core.actions.invocation import is_marked
from kopf._core.intents.handlers import (
    ActivityHandler,
    ChangingHandler,
    ConversionHandler,
    ResourceHandler,
    SpawningHandler,
    WatchingHandler,
    WebhookHandler,
)
from kopf._core.intents.registries import OperatorRegistry

_BASIC = frozenset({'logger', 'memo', 'param', 'retry', 'started', 'runtime'})
_OBJECT = _BASIC | {
    'resource', 'patch', 'body', 'spec', 'meta', 'status', 'uid', 'name', 'namespace', 'labels', 'annotations'}

PROVIDED: Mapping[type[Any], frozenset[str]] = {
    ActivityHandler: _BASIC | {'settings', 'activity'},
    WatchingHandler: _OBJECT | {'event', 'type'},
    SpawningHandler: _OBJECT | {'stopped'},
    ChangingHandler: _OBJECT | {'reason', 'old', 'new', 'diff'},
    WebhookHandler: _OBJECT | {
        'dryrun', 'headers', 'sslpeer', 'userinfo', 'warnings', 'operation', 'subresource', 'old', 'new', 'diff'},
    ConversionHandler: _OBJECT | {'from_version', 'to_version', 'headers', 'sslpeer'},
    ResourceHandler: _OBJECT,
}
"""What handlers are given, by their classes: the first one that fits. Besides it, all are given the indices."""


class DeclarationError(ExplainedError):
    """The handlers can't be run as they are declared; the text says which ones, and why."""


def check_handler(name: str, fn: Any) -> None:
    """
    Raise `TypeError` if the function can't be a handler, whatever it is called with.

    :param name: the name of the decorator.
    """
    if not callable(fn):
        raise TypeError(f"@kopf.on.{name} is for functions, and {fn!r} is none.")
    if is_marked(inspect.isgeneratorfunction, fn) or is_marked(inspect.isasyncgenfunction, fn):
        raise TypeError(f"@kopf.on.{name}: {describe(fn)} has a yield in it, so that a call of it runs nothing. "
                        f"Let it return instead.")
    parameters = _get_parameters(fn)
    if next(iter(parameters), None) == 'self' and not inspect.ismethod(fn):
        raise TypeError(f"@kopf.on.{name}: {describe(fn)} is a method, and it is not known of which object. "
                        f"Use a function, or declare the method of an object: kopf.on.{name}(...)(obj.method)")
    if lonely := [key for key, parameter in parameters.items() if parameter.kind is parameter.POSITIONAL_ONLY]:
        raise TypeError(f"@kopf.on.{name}: {describe(fn)} takes {lonely[0]!r} by its position, but handlers "
                        f"are called with keyword arguments. Remove the slash from its parameters.")
    _check_openness(f"@kopf.on.{name}: {describe(fn)}", parameters)


def check_callback(name: str, option: str, fn: Any) -> None:
    """Raise `TypeError` if the function can't be used for this option of the decorator."""
    if callable(fn):
        _check_openness(f"@kopf.on.{name}: {describe(fn)} of {option}=", _get_parameters(fn))


def is_bare(fn: object) -> bool:
    """
    Tell if the function is a handler, not a predicate of resources, though it is where a resource is expected.

    This is how decorators without parentheses look like: ``@kopf.on.create`` instead of ``@kopf.on.create(...)``.
    """
    if not inspect.isfunction(fn):
        return False
    parameters = _get_parameters(fn)
    needed = [key for key, parameter in parameters.items() if parameter.default is parameter.empty
              and parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    is_open = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return is_open and (len(needed) != 1 or needed[0] in PROVIDED[ResourceHandler] - {'resource'})


def explain_bare(name: str, fn: object, example: str) -> str:
    """Say what is to be written instead of a decorator without parentheses."""
    return f"@kopf.on.{name} has no parentheses: write @kopf.on.{name}({example}) before {describe(fn)}."


def check_registry(registry: OperatorRegistry) -> None:
    """
    Check that all functions are given whatever they ask for.

    :raises DeclarationError: if some are not, so that they would fail whenever they are called.
    """
    indices = {handler.id for handler in registry.indexing}
    problems = [text for handler in [*registry.activities, *registry.iter_resource_handlers()]
                if (text := _find_missing(handler, indices))]
    if problems:
        raise DeclarationError(' '.join(dict.fromkeys(problems)))


def _find_missing(handler: Any, indices: Collection[str]) -> str | None:
    provided = next(names for cls, names in PROVIDED.items() if isinstance(handler, cls))
    missing = [key for key, parameter in _get_parameters(handler.fn).items()
               if parameter.default is parameter.empty and key not in provided and key not in indices
               and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)]
    if not missing:
        return None
    others = sorted({_NAMES[cls] for cls, names in PROVIDED.items() if missing[0] in names and cls in _NAMES})
    remedy = (f"It is given to: {', '.join(others)}." if others else
              f"There is no such argument, and no index of this name. {suggest(missing[0], {*provided, *indices})}"
              f"There are: {', '.join(sorted(provided))}.")
    return f"{handler} ({locate(handler.fn)}) asks for {missing[0]!r}, which it is not given. {remedy}"


_NAMES: Mapping[type[Any], str] = {
    ActivityHandler: '@kopf.on.startup and others of the operator itself',
    WatchingHandler: '@kopf.on.event',
    SpawningHandler: '@kopf.daemon, @kopf.timer',
    ChangingHandler: '@kopf.on.create, update, delete, resume, field',
    WebhookHandler: '@kopf.on.validate, mutate',
    ConversionHandler: '@kopf.on.convert',
}


def find_namesake(handlers: Iterator[Any], new: ResourceHandler) -> ResourceHandler | None:
    """Give another function of the file with the same id, of which only one would be called where both match."""
    def key(handler: Any) -> tuple[Any, ...]:
        reason = getattr(handler, 'reason', None), getattr(handler, 'initial', None)
        values = [getattr(handler, name, None) for name in ('value', 'old', 'new')]
        filters = handler.labels, handler.annotations, handler.when
        return type(handler), handler.id, handler.selector, reason, filters, values

    def file_of(handler: Any) -> str:
        return locate(handler.fn).rpartition(':')[0]

    return next((old for old in handlers
                 if old.fn is not new.fn and key(old) == key(new) and file_of(old) == file_of(new)), None)


def suggest(option: str, allowed: Collection[str]) -> str:
    """Name the option that is meant, if there is one with nearly the same name."""
    import difflib
    found = difflib.get_close_matches(option, allowed)
    best = max(found, key=lambda name: len(os.path.commonprefix([option, name])), default=None)
    return f"Did you mean {best}=? " if best else ''


def describe(fn: object) -> str:
    """Name the function with its place, for messages."""
    name = getattr(fn, '__qualname__', None)
    return f"the function {name!r} ({locate(fn)})" if name else f"{fn!r}"


def locate(fn: Any) -> str:
    """Say in which line of which file the function is."""
    while isinstance(fn, functools.partial) or hasattr(fn, '__wrapped__'):
        fn = fn.func if isinstance(fn, functools.partial) else fn.__wrapped__
    code = getattr(fn, '__code__', None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else 'somewhere'


def _get_parameters(fn: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        # Not of what is wrapped: the wrapper decides what is passed to it.
        return inspect.signature(fn, follow_wrapped=False).parameters
    except (ValueError, TypeError):  # of those that are written in C
        return {'kwargs': inspect.Parameter('kwargs', inspect.Parameter.VAR_KEYWORD)}


def _check_openness(what: str, parameters: Mapping[str, inspect.Parameter]) -> None:
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        texts = [key for key, parameter in parameters.items() if parameter.kind is not parameter.VAR_POSITIONAL]
        raise TypeError(f"{what} must take any keyword arguments, for there are more than it names, and new ones can "
                        f"come. Add **_ to its parameters: ({', '.join([*texts, '**_'])})")
