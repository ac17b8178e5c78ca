"""
The context of an operator: the objects that all its handlers share, regardless of the cause.

It is created when the operator starts, and is passed on as a whole. Objects that need a part of it for every event get
this part when they are created, because repeated look-ups would slow down the processing of events.
"""

import copy
import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any

from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.helpers.explanations import INTERRUPTIONS, show_error
from kopf._cogs.structs.instruments import Instruments
from kopf._core.actions.execution import Execution
from kopf._core.actions.invocation import ThreadCalls
from kopf._core.actions.lifecycles import LifeCycleFn, get_default_lifecycle
from kopf._core.intents.registries import OperatorRegistry

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OperatorContext:
    """The objects that all handlers of one operator share."""

    settings: OperatorSettings
    registry: OperatorRegistry = dataclasses.field(default_factory=OperatorRegistry)
    """The handlers."""
    lifecycle: LifeCycleFn = dataclasses.field(default_factory=get_default_lifecycle)
    """The order of the handlers of an object."""
    memo: Any = None
    """The memo of the operator; it is copied for each object."""
    indices: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The indices by their names; read-only views, always up to date."""
    instruments: Instruments = dataclasses.field(default_factory=Instruments)
    """The instruments that observe the operator, such as metrics."""

    thread_calls: ThreadCalls = dataclasses.field(default_factory=ThreadCalls, init=False)
    """The handlers that are running in threads for objects, for schedules, or for the beginning of a leadership."""

    _complaints: set[type] = dataclasses.field(default_factory=set, init=False)
    """The types of memos for which a failed copy was logged."""

    def copy_memo(self) -> Any:
        """Return the memo for a new object: a copy; or the memo itself, with a warning, if it cannot be copied."""
        try:
            return copy.copy(self.memo)
        # Why not an error? Each object would fail again and again. And a value that cannot be copied, such as a lock,
        # a socket, or an object with one, is usually meant to be shared.
        except INTERRUPTIONS:
            raise
        except BaseException as error:
            if type(self.memo) not in self._complaints:
                self._complaints.add(type(self.memo))
                logger.warning(
                    "All objects share the memo of the operator, as it cannot be copied: %s. "
                    "Define %s.__copy__(), which can return self to share it without this warning.",
                    show_error(error),
                    type(self.memo).__name__,
                )
            return self.memo

    # Why do these functions not run in the executor of other handlers? Those can wait for them, and could use all its
    # threads meanwhile: without a free thread, all of them would wait for ever. Pools without calls have no threads.
    # For the same reason, some pools are elastic: webhook handlers can apply objects for which other ones are called,
    # and index functions can apply objects that are indexed.
    # An executor of the user's gets them all, as documented for it: its threads can have what the functions need.

    @functools.cached_property
    def activity_threads(self) -> Executor:
        """
        The threads of sync handlers that must not wait for those of objects: of logins, and of the operator's end.

        Requests wait for logins, and handlers for requests. At the end, handlers of objects can hang in all threads.
        """
        return _make_threads(None)  # few of them run at a time, but former ones can hang

    @functools.cached_property
    def index_threads(self) -> Executor:
        """The threads of sync index functions: handlers wait for these after they have applied an indexed object."""
        return _make_threads(self.settings.execution.max_workers, is_elastic=True)

    @functools.cached_property
    def response_threads(self) -> Executor:
        """The threads of sync handlers of webhooks: the API server, and so handlers, wait for them."""
        return _make_threads(self.settings.execution.max_workers, is_elastic=True)

    @functools.cached_property
    def probe_threads(self) -> Executor:
        """The threads of sync handlers of probes: if they waited for slow webhooks, the operator would be restarted."""
        return _make_threads(self.settings.execution.max_workers)

    def make_rules(
        self,
        is_halted: Callable[[], bool] | None = None,
        *,
        executor: Executor | None = None,
        is_cancelled: Callable[[], bool] | None = None,
    ) -> Execution:
        """
        Create the rules for running handlers by the settings.

        Args:
            is_halted: checks whether the operator is paused or must pause, for handlers that do not begin then;
                callable from any thread.
            executor: the executor for sync handlers, instead of the default one of the settings.
            is_cancelled: checks whether the owner of the current task has cancelled it; see `Execution.is_cancelled`.
        """
        return Execution(
            find_executor=functools.partial(self._find_executor, executor),
            find_backoff=self._find_backoff,
            instruments=self.instruments,
            is_halted=is_halted,
            # The others are also called while another replica handles the objects, so it need not wait for their end.
            running=None if is_halted is None else self.thread_calls,
            is_cancelled=is_cancelled,
        )

    def _find_executor(self, executor: Executor | None) -> Executor:
        execution = self.settings.execution
        return execution.executor if executor is None or execution.is_executor_replaced else executor

    def _find_backoff(self) -> float:
        return self.settings.execution.default_backoff


def _make_threads(limit: int | None, *, is_elastic: bool = False) -> Executor:
    # Why not at the top? Operators with only async functions do not need it.
    from kopf._cogs.aiokits.thread_pools import DaemonicThreadPool

    return DaemonicThreadPool(max_workers=limit, is_elastic=is_elastic)
