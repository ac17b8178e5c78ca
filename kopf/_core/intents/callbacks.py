"""
The functions that users write: their types, the markers of filters, and the helpers that combine callbacks.

Such functions can take any of the provided keyword arguments, so the types specify only their results. Specified in
the documentation's "Arguments" and "Filters".
"""

import enum
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar, cast

from kopf._core.actions.invocation import is_async_fn, read_arguments

ActivityFn = Callable[..., Any]
IndexingFn = Callable[..., Any]
WatchingFn = Callable[..., Any]
ChangingFn = Callable[..., Any]
DaemonFn = Callable[..., Any]
TimerFn = Callable[..., Any]
DelayFn = Callable[..., float | None]
WhenFilterFn = Callable[..., bool]
MetaFilterFn = Callable[..., bool]


class MetaFilterToken(enum.Enum):
    """Markers for any value of a label, an annotation, or a field, or for its absence."""

    PRESENT = enum.auto()
    ABSENT = enum.auto()


PRESENT = MetaFilterToken.PRESENT
"""Matches if the label, the annotation, or the field exists, with any value."""

ABSENT = MetaFilterToken.ABSENT
"""Matches if the label, the annotation, or the field does not exist."""

MetaFilter = Mapping[str, str | MetaFilterToken | MetaFilterFn]
ValueFilter = Any

FnT = TypeVar('FnT', bound=Callable[..., bool])


class Combination:
    """
    Several callbacks as one. Each of them is called with only the arguments that it takes.

    Args:
        name: the name of the function that combines them, for messages.
        fns: the callbacks.
        judge: returns the result from an iterator of their results, which calls a callback at each step.

    Raises:
        TypeError: if these are not callbacks, or are async functions.
    """

    def __init__(self, name: str, fns: Iterable[Callable[..., Any]], judge: Callable[[Iterator[Any]], bool]) -> None:
        self.fns = _check(name, fns)
        self._name = name
        self._judge = judge
        self._calls = [[restrict(fn, positional) for fn in self.fns] for positional in (0, 1)]

    def __repr__(self) -> str:
        return f"kopf.{self._name}({', '.join(map(repr, self.fns))})"

    def __call__(self, *args: Any, **kwargs: Any) -> bool:
        return self._judge(fn(*args, **kwargs) for fn in self._calls[bool(args)])


def not_(fn: FnT) -> FnT:
    """Return a callback that passes if the function does not pass."""
    return cast(FnT, Combination('not_', [fn], lambda results: not any(results)))


def all_(fns: Iterable[Callable[..., bool]]) -> Callable[..., bool]:
    """Return a callback that passes if all the functions pass; without functions, it passes."""
    return Combination('all_', fns, all)


def any_(fns: Iterable[Callable[..., bool]]) -> Callable[..., bool]:
    """Return a callback that passes if at least one of the functions passes."""
    return Combination('any_', fns, any)


def none_(fns: Iterable[Callable[..., bool]]) -> Callable[..., bool]:
    """Return a callback that passes if none of the functions pass."""
    return Combination('none_', fns, lambda results: not any(results))


def iter_parts(fn: Any) -> Iterator[Any]:
    """Yield the callback itself, or the callbacks that are combined in it."""
    if isinstance(fn, Combination):
        for part in fn.fns:
            yield from iter_parts(part)
    else:
        yield fn


def read_names(fn: Callable[..., Any], positional: int = 0) -> tuple[str, ...] | None:
    """
    Return the names of the arguments that the callback, or any of its parts, takes.

    Args:
        fn: the callback.
        positional: the number of its leading positional arguments, which are not included.

    Returns:
        The names; ``None`` if the callback takes any arguments.
    """
    if not isinstance(fn, Combination):
        return read_arguments(fn, positional).names
    names = [read_names(part, positional) for part in fn.fns]
    return None if None in names else tuple(dict.fromkeys(name for part in names for name in part or ()))


def restrict(fn: Callable[..., Any], positional: int = 0) -> Callable[..., Any]:
    """Wrap the function so that it ignores the keyword arguments that it does not take."""
    names = read_names(fn, positional)
    if names is None:
        return fn
    return lambda *args, **kwargs: fn(*args, **{name: kwargs[name] for name in names if name in kwargs})


def _check(name: str, fns: Iterable[Callable[..., Any]]) -> Collection[Callable[..., Any]]:
    if not isinstance(fns, Iterable):
        raise TypeError(f"kopf.{name}() takes a list of functions, even if there is only one, not {fns!r}.")
    fns = tuple(fns)  # they are called for every object, but a generator yields them only once
    for fn in fns:
        if not callable(fn):
            raise TypeError(f"kopf.{name}() takes only functions, not {fn!r}.")
    if any(is_async_fn(fn) for fn in fns):
        raise TypeError(f"kopf.{name}() can't take async functions: filters are evaluated at once.")
    return fns
