"""
Schedules: handlers of the operator itself that are run at intervals (``@kopf.on.schedule``).

Each handler has one task while the operator works, so its runs never overlap. While the operator is paused because of
its peers, no run begins. Handlers can be declared at any time, in any thread. Specified in the documentation's
"Run something at intervals".
"""

import asyncio
import logging
from collections.abc import Callable

from kopf._cogs.aiokits.loops import end, make_threadsafe
from kopf._core.actions.execution import Outcome, run_handler, utcnow
from kopf._core.actions.handler_states import HandlerState
from kopf._core.engines.indexing import IndexBarrier
from kopf._core.intents.causes import Activity, ActivityCause
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.dependencies import find_arguments_of
from kopf._core.intents.handlers import ScheduleHandler
from kopf._core.intents.registries import OperatorRegistry

OVERDUE_DELAY = 0.1
"""
The interval of checks (in seconds) for a due run, while the operator must pause but has not paused yet.
"""

EXIT_TIMEOUT = 5.0
"""How long an exiting operator waits for a running handler (in seconds)."""


class Schedules:
    """
    All the schedules of one operator. No run begins before `permit` is called.

    Args:
        registry: the handlers of the operator.
        context: what the operator shares.
        barrier: tells whether the indices are complete that the handlers can use; ``None`` not to wait for them.
    """

    def __init__(
        self,
        registry: OperatorRegistry,
        context: OperatorContext,
        *,
        barrier: IndexBarrier | None = None,
    ) -> None:
        self._barrier = barrier
        self._registry = registry
        self._context = context
        self._cause = ActivityCause(
            activity=Activity.SCHEDULE,
            settings=context.settings,
            memo=context.memo,
            indices=context.indices,
            logger=logging.getLogger(f'kopf.activities.{Activity.SCHEDULE.value}'),
        )
        self._permitted = asyncio.Event()
        self._is_overdue: Callable[[], bool] | None = None
        self._runs: set[asyncio.Task[Outcome]] = set()

    def __len__(self) -> int:
        return len(self._registry.activities.get_schedules())

    def permit(self, permitted: bool) -> None:
        """Permit or forbid new runs. A run that is due meanwhile begins as soon as runs are permitted again."""
        if permitted:
            self._permitted.set()
        else:
            self._permitted.clear()

    def set_overdue_check(self, is_overdue: Callable[[], bool]) -> None:
        """Set the function that checks before each run whether the operator must pause but has not paused yet."""
        self._is_overdue = is_overdue

    def is_overdue(self) -> bool:
        """Check whether the operator must pause but has not paused yet; callable from any thread."""
        return self._is_overdue is not None and self._is_overdue()

    def _is_halted(self) -> bool:
        return not self._permitted.is_set() or self.is_overdue()

    def _is_ready(self, arguments: frozenset[str] | None) -> bool:
        """Check whether a handler may run now: the indices are complete among the arguments that it can use."""
        return not self._is_halted() and (self._barrier is None or self._barrier.is_filled(arguments))

    async def _wait_until_ready(self, arguments: frozenset[str] | None) -> None:
        while not self._is_ready(arguments):
            await self._wait_for_permission()
            if self._barrier is not None:
                await self._barrier.wait_filled(arguments)

    async def _wait_for_permission(self) -> None:
        await self._permitted.wait()
        while self.is_overdue():
            await asyncio.sleep(OVERDUE_DELAY)
            await self._permitted.wait()

    def abort(self) -> None:
        """Cancel the current runs. Called while no new runs are permitted; the cancelled ones are repeated later."""
        for run in self._runs:
            run.cancel()

    def find_running(self) -> list[str]:
        """Return the names of the current runs."""
        return [run.get_name() for run in self._runs]

    async def drain(self) -> None:
        """Wait until the current runs end. Called while no new runs are permitted."""
        while self._runs:
            await asyncio.wait(self._runs)

    async def run(self) -> None:
        """Run the handlers at their intervals, until cancelled. Then, the current runs are cancelled, too."""
        changed = asyncio.Event()
        listener = make_threadsafe(changed.set)
        self._registry.activity_listeners.append(listener)
        try:
            async with asyncio.TaskGroup() as group:
                started = 0
                while True:
                    changed.clear()
                    for handler in self._registry.activities.get_schedules()[started:]:
                        group.create_task(self._repeat(handler), name=f'{handler}')
                        started += 1
                    await changed.wait()
        finally:
            self._registry.activity_listeners.remove(listener)

    async def _repeat(self, handler: ScheduleHandler) -> None:
        """Run one handler at its intervals, with the retries of each run."""
        loop = asyncio.get_running_loop()
        arguments = find_arguments_of([handler.fn])
        due = loop.time() + (handler.initial_delay or 0)
        while True:
            await self._sleep_until(due)
            base = due
            state = HandlerState(started=utcnow())
            while not state.finished:
                if not self._is_ready(arguments):
                    is_new = self._is_halted() or not state.retries
                    await self._wait_until_ready(arguments)
                    # A standby can wait for days: this must not use up the time of the handler. And if its run was
                    # interrupted by a pause, another operator can have repeated it meanwhile: so it begins anew.
                    if is_new:
                        state = HandlerState(started=utcnow())
                outcome = await self._run_once(handler, state)
                if outcome is None:
                    # The whole run is repeated: an attempt that the operator itself has cancelled must not use up the
                    # retries or the time of the handler.
                    state = HandlerState(started=utcnow())
                    continue
                state = state.with_outcome(outcome, utcnow())
                if not state.finished:
                    await asyncio.sleep(outcome.delay or 0)
            # Why does a permanent failure not end the schedule? A failed handler of an object is called again when the
            # object changes. No such event would ever restart a schedule.
            if handler.sharp:
                due = base + ((loop.time() - base) // handler.interval + 1) * handler.interval
            else:
                due = loop.time() + handler.interval

    async def _sleep_until(self, due: float) -> None:
        await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))

    async def _run_once(self, handler: ScheduleHandler, state: HandlerState) -> Outcome | None:
        """Run the handler once; return the outcome, or ``None`` if the run is aborted."""
        # Why not await it directly? `drain` waits for the task, and a cancellation would abandon a thread at once.
        task = asyncio.create_task(self._execute(handler, state), name=f'run of {handler}')
        self._runs.add(task)
        task.add_done_callback(self._runs.discard)
        try:
            # Why shield it? When the operator ends, it cancels this task, but not the run. A sync handler gets time to
            # finish first, and then the run is cancelled below.
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if task.cancelled() and current is not None and not current.cancelling():
                if not self._permitted.is_set():
                    return None  # only the run is aborted, not the schedule
                # The function has cancelled its own task. Without a delay, it would be called again and again at once.
                backoff = self._context.make_rules().find_backoff() if handler.backoff is None else handler.backoff
                return Outcome(final=False, delay=backoff)
            if not handler.asynchronous:  # a thread cannot be cancelled, only waited for
                await asyncio.wait({task}, timeout=EXIT_TIMEOUT)
                if not task.done():
                    self._cause.logger.warning("%s did not end in time. Leaving it running.", handler)
            await end({task}, timeout=EXIT_TIMEOUT, what="The schedules")
            raise

    async def _execute(self, handler: ScheduleHandler, state: HandlerState) -> Outcome:
        return await run_handler(handler, self._cause, state, self._context.make_rules(self._is_halted))
