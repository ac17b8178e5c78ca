"""
Lifecycles: the order in which the handlers of one change are run.

A lifecycle is a function that picks the handlers to run in the next step from those that are due. The default one takes
one handler at a time, with the fewest attempts first, so that a handler that keeps failing does not hold up the others.
Specified in the documentation of `kopf.lifecycles`.
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
"""A function of the handlers that are due. By name, it can take ``state`` and the kwargs of the handlers."""


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
"""The lifecycles that use only the state, so that no kwargs about the object are made for them."""

_default: LifeCycleFn = asap


def get_default_lifecycle() -> LifeCycleFn:
    """Return the lifecycle that is used if none is given to the operator or to `kopf.execute`."""
    return _default


def set_default_lifecycle(lifecycle: LifeCycleFn | None) -> None:
    """Set the default lifecycle; ``None`` restores the original one, `asap`."""
    global _default
    if lifecycle is not None and _default is not asap:
        logger.warning("The default lifecycle is already set to %r, overriding it to %r.", _default, lifecycle)
    _default = asap if lifecycle is None else lifecycle
