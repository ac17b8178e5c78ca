"""
Stray cancellations: those that do not come from the owner of a task.

A function can cancel the task that it runs in, and so can a time-out that a library has left behind. If the task served
several functions, or an object, it would end without any trace. So its owner remembers what it has cancelled itself,
and any other cancellation is turned into an error.
"""

import asyncio
from collections.abc import Callable

from kopf._cogs.helpers.explanations import ExplainedError

_TEXT = (
    "the task was cancelled, but not by the operator: by the function itself, or by a time-out that a library has left "
    "behind"
)


class StrayCancellationError(ExplainedError):
    """The task was cancelled by code that does not own it."""

    @classmethod
    def of(cls, error: asyncio.CancelledError) -> 'StrayCancellationError':
        """Return the error to be reported instead of this one, with its traceback."""
        return cls(_TEXT).with_traceback(error.__traceback__)


async def withdraw_cancellation(is_cancelled: Callable[[], bool]) -> None:
    """
    Let the current task go on after a stray cancellation, also if this is not raised yet.

    Args:
        is_cancelled: checks whether the owner of the task has cancelled it.

    Raises:
        asyncio.CancelledError: if the owner has cancelled the task meanwhile.
    """
    try:
        await asyncio.sleep(0)  # before Python 3.13, `uncancel` does not withdraw what is not raised yet
    except asyncio.CancelledError:
        if is_cancelled():
            raise
    task = asyncio.current_task()
    while task is not None and task.uncancel():
        pass
