"""
The functions that users write: their types, the markers of filters, and the helpers that combine callbacks.

All handlers and filters accept any keyword arguments, so the types only tell what they return. Specified in the
documentation's "Arguments" and "Filtering".
"""
import enum
import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from kopf._core.actions.invocation import is_async_fn

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
    """Markers that stand for any value of a label, an annotation, or a field; or for none."""
    PRESENT = enum.auto()
    ABSENT = enum.auto()


PRESENT = MetaFilterToken.PRESENT
"""Matches if the label, the annotation, or the field is there, whatever its value."""

ABSENT = MetaFilterToken.ABSENT
"""Matches if the label, the annotation, or the field is not there."""

MetaFilter = Mapping[str, str | MetaFilterToken | MetaFilterFn]
ValueFilter = Any

FnT = TypeVar('FnT', bound=Callable[..., bool])


def not_(fn: FnT) -> FnT:
    """Make a callback that passes if the function does not."""
    _check('not_', [fn])

    @functools.wraps(fn)
    def not_fn(*args: Any, **kwargs: Any) -> bool:
        return not fn(*args, **kwargs)
    return not_fn  # type: ignore[return-value]


def all_(fns: Iterable[Callable[..., bool]]) -> Callable[..., bool]:
    """Make a callback that passes if all the functions do; with no functions, it passes."""
    fns = _check('all_', fns)

    def all_fn(*args: Any, **kwargs: Any) -> bool:
        return all(fn(*args, **kwargs) for fn in fns)
    return all_fn


def any_(fns: Iterable[Callable[..., bool]]) -> Callable[..., bool]:
    """Make a callback that passes if at least one of the functions does."""
    fns = _check('any_', fns)

    def any_fn(*args: Any, **kwargs: Any) -> bool:
        return any(fn(*args, **kwargs) for fn in fns)
    return any_fn


def none_(fns: Iterable[Callable[..., bool]]) -> Callable[..., bool]:
    """Make a callback that passes if none of the functions does."""
    fns = _check('none_', fns)

    def none_fn(*args: Any, **kwargs: Any) -> bool:
        return not any(fn(*args, **kwargs) for fn in fns)
    return none_fn


def _check(name: str, fns: Iterable[Callable[..., Any]]) -> Collection[Callable[..., Any]]:
    if not isinstance(fns, Iterable):
        raise TypeError(f"kopf.{name}() takes a list of functions, even for one of them, not {fns!r}.")
    fns = tuple(fns)  # they are needed for every object, and generators give them only once
    for fn in fns:
        if not callable(fn):
            raise TypeError(f"kopf.{name}() is for functions, and {fn!r} is none.")
    if any(is_async_fn(fn) for fn in fns):
        raise TypeError(f"kopf.{name}() can't take async functions: filters are evaluated at once.")
    return fns
