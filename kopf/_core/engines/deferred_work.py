"""
Work that startup handlers defer, because it can be finished only while the operator serves.

For example, a CRD that is being deleted is gone only after the operator has released its objects, and the operator
serves no objects until its startup handlers have ended. The operator runs the deferred work in tasks of its own, and
cancels them when it ends. Why not in tasks of the handlers? They would be left behind at the exit, with a warning.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any

Work = Callable[[], Coroutine[Any, Any, None]]


class DeferredWork:
    """The deferred work of one operator. If any fails, the operator ends with the error."""

    def __init__(self) -> None:
        self._works: dict[str, Work] = {}
        self._has_begun = False

    @property
    def is_possible(self) -> bool:
        """Return whether work can be deferred: only until the operator serves."""
        return not self._has_begun

    def add(self, name: str, work: Work) -> None:
        """Defer the work; it replaces other work with the same name, as startup handlers can be retried."""
        self._works[name] = work

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Called when the operator serves: start the work in these tasks."""
        self._has_begun = True
        for name, work in self._works.items():
            tasks.create_task(work(), name=name)


deferred_work_var: ContextVar[DeferredWork] = ContextVar('deferred_work_var')
"""The deferred work of the operator that runs the current code."""
