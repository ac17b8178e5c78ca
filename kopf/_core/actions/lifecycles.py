"""
In which order and in which portions the handlers of one change are run.

A lifecycle is a function that picks, from the handlers that are due, those to be run in this step. What it leaves is
offered again in the next one. The default is to take one at a time, those with fewer attempts first: a handler
that keeps failing does not hold up the others. Specified in the documentation of `kopf.lifecycles`.
"""

import logging
import random
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from kopf._core.actions.execution import Handler
from kopf._core.actions.handler_states import State

logger = logging.getLogger(__name__)

HandlerT = TypeVar('HandlerT', bound=Handler)


LifeCycleFn = Callable[..., Sequence[Any]]
"""It is called with the handlers, and with those of ``state`` and the handlers' kwargs that it names."""


def all_at_once(handlers: Sequence[HandlerT], **_: Any) -> Sequence[HandlerT]:
    """Run all the handlers in one step, in the order of their declaration."""
    return handlers


def one_by_one(handlers: Sequence[HandlerT], **_: Any) -> Sequence[HandlerT]:
    """Run the first handler that is due; the others wait for it."""
    return handlers[:1]


def randomized(handlers: Sequence[HandlerT], **_: Any) -> Sequence[HandlerT]:
    """Run one handler, chosen at random."""
    return [random.choice(handlers)] if handlers else []


def shuffled(handlers: Sequence[HandlerT], **_: Any) -> Sequence[HandlerT]:
    """Run all the handlers in one step, in a random order."""
    return random.sample(handlers, k=len(handlers))


def asap(handlers: Sequence[HandlerT], *, state: State, **_: Any) -> Sequence[HandlerT]:
    """Run one handler: the one with the fewest attempts so far, the earliest declared among equals."""
    return [min(handlers, key=lambda handler: state[handler.id].retries)] if handlers else []


PLAIN_LIFECYCLES: Collection[LifeCycleFn] = (all_at_once, one_by_one, randomized, shuffled, asap)
"""The lifecycles that use only the state: the kwargs about the object need not be made for them."""

_default: LifeCycleFn = asap


def get_default_lifecycle() -> LifeCycleFn:
    """Give the lifecycle used where none is given to the operator or to `kopf.execute`."""
    return _default


def set_default_lifecycle(lifecycle: LifeCycleFn | None) -> None:
    """Use another lifecycle by default; ``None`` restores the original one, `asap`."""
    global _default
    if lifecycle is not None and _default is not asap:
        logger.warning("The default lifecycle is already set to %r, overriding it to %r.", _default, lifecycle)
    _default = asap if lifecycle is None else lifecycle
