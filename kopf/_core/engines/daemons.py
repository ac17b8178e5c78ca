"""
Daemons and timers: one handler of one object, from its start to its end.

There can be tens of thousands of them. So a running daemon is one task, without further tasks, queues, or events.
Between the runs of a timer, and before a retry of a daemon, there is no task, only an entry in the coalesced timers.
The stages of stopping are timers of the loop. There is no polling: a daemon that ends requeues its object.

Specified in the documentation's "Run something for each object" and "Run something at intervals".
"""

import asyncio
import functools
import math
import warnings
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from kopf._cogs.aiokits.awaitable_flags import AsyncFlagWaiter, ReasonedFlag, SyncFlagWaiter
from kopf._cogs.aiokits.cancellations import StrayCancellationError, withdraw_cancellation
from kopf._cogs.aiokits.coalesced_timers import CoalescedTimer
from kopf._cogs.aiokits.delays import Delays
from kopf._cogs.clients import patching
from kopf._cogs.clients.errors import (
    APIConflictError,
    APIConnectionError,
    APIFencedError,
    APIForbiddenError,
    APIServerError,
    APITooManyRequestsError,
    APIUnservedError,
)
from kopf._cogs.helpers.explanations import INTERRUPTIONS
from kopf._cogs.structs.credentials import LoginError
from kopf._cogs.structs.patches import Patch
from kopf._core.actions.execution import Outcome, outlive, run_handler, utcnow
from kopf._core.actions.handler_states import HandlerState
from kopf._core.engines.stoppers import DaemonStoppingReason
from kopf._core.intents import filters
from kopf._core.intents.causes import TYPED_GETTERS, DaemonCause
from kopf._core.intents.handlers import DaemonHandler, SpawningHandler, TimerHandler, find_typed
from kopf._core.intents.results import deliver_results

if TYPE_CHECKING:
    from kopf._core.engines.spawning import ObjectDaemons

EXIT_TIMEOUT, EXIT_CANCELLATION_TIMEOUT = 5.0, 1.0
"""How long an exiting operator waits for daemons without limits of their own before and after it cancels them."""

WARNING_DELAY = 5.0
"""After this time (in seconds), a warning is logged about a daemon that does not stop, if it has no time limit."""

HALTED_DELAY = 0.1
"""The interval of checks of an operator that must pause but has not done so yet (in seconds)."""

TIMER_RESOLUTION = 0.001
"""How early an event loop can fire a timer (in seconds): uvloop rounds times to milliseconds."""

FORBIDDEN_PATIENCE = 60.0
"""
How long a patch that the operator is not permitted to send is tried again (in seconds).

The permissions can be away for a moment, e.g. with the webhook that decides on them, or while a role is replaced.
"""

_PASSING_ERRORS = (APIConflictError, APIConnectionError, APIServerError, APITooManyRequestsError, APIUnservedError)


class Daemon:
    """One handler, a daemon or a timer, of one object."""

    __slots__ = (
        '_timer_handle',
        '_base',
        '_due',
        '_has_thread',
        '_sending',
        'abandoned',
        'handler',
        'owner',
        'state',
        'stopper',
        'task',
    )

    def __init__(self, handler: SpawningHandler, owner: 'ObjectDaemons') -> None:
        self.handler = handler
        self.owner = owner
        # Why not an `asyncio.Event`? Threads wait for the flag, too, and the flag also has the reasons for the stop.
        self.stopper: ReasonedFlag[DaemonStoppingReason] = ReasonedFlag(owner.spawner.background.coalesced_timers)
        self.abandoned = False
        """Whether the daemon has not stopped in time, so that the operator does not wait for it; it can still run."""
        self.state: HandlerState | None = None
        """
        The progress of the current attempts; ``None`` before the first one. It is a failure only while the daemon waits
        for a version of the object that conforms to the class of its kind.
        """
        self.task: asyncio.Task[None] | None = None
        """The task of the function, only while it runs."""
        self._timer_handle: CoalescedTimer | asyncio.TimerHandle | None = None
        self._due = self._base = 0.0
        self._has_thread = isinstance(handler, DaemonHandler) and not handler.asynchronous
        self._sending = False

    @property
    def due_at(self) -> float:
        """When the next attempt is due, by the clock of the loop; infinity if it waits for a change of the object."""
        return self._due

    def __str__(self) -> str:
        return f'{self.handler} of {self.owner.record!r}'

    @property
    def waits_for_edit(self) -> bool:
        """Return whether it is a timer that waits until another client changes the object."""
        return self.task is None and self._due == math.inf and not (self.state is not None and self.state.failure)

    @property
    def is_running(self) -> bool:
        """Return whether the function runs, even if it was signalled to stop, or was abandoned."""
        return self.task is not None and not self.task.done()

    # Running.

    def start(self) -> None:
        """Run the function after its initial delay."""
        self.owner.spawner.background.add(self)
        self._schedule(self._now() + self._get_initial_delay())

    def resume(self, *, edited: bool) -> None:
        """
        Called when there is a new state of the object: run the function now if it waits only for that.

        Args:
            edited: whether another client has changed the object, and not only its status.
        """
        if self.task is not None or self._due != math.inf:
            return
        body, model = self.owner.body, self.handler.model
        if model is not None and self.state is not None and self.state.failure:
            # Why not wait for an edit? The status, or the metadata, can be what does not conform. Why not try each
            # version? Each attempt logs the error, and other clients can write the status every second.
            if body.metadata.get('deletionTimestamp') or model.find_nonconformity(body) == self.state.message:
                return
            self.state = None
        elif not edited:
            return
        # Timers with `idle` check the time of the last change when they are due: see `_schedule`.
        self._schedule(self._now())

    def suspend(self) -> None:
        """Called when the edit that has resumed the timer turns out to be none: unless it runs, it waits again."""
        if self.task is None and self._timer_handle is not None:
            self._timer_handle.cancel()
            self._timer_handle = None
            self._due = math.inf

    def _schedule(self, at: float) -> None:
        """Start the next attempt at this time of the loop, but not before the object has been idle long enough."""
        idle = self.handler.idle if isinstance(self.handler, TimerHandler) else None
        if idle is not None:
            at = max(at, self.owner.changed_at + idle)
        self._due = at
        if at == math.inf:
            return
        loop = asyncio.get_running_loop()
        if at <= loop.time() + TIMER_RESOLUTION:
            self._begin()
        else:
            self._timer_handle = self.owner.spawner.background.coalesced_timers.set(at, self._wake_up)

    def _wake_up(self) -> None:
        self._timer_handle = None
        self._schedule(self._due)  # not `_begin`, as the object can have changed meanwhile, so that it is not idle

    def _begin(self) -> None:
        if self._has_thread:
            self.owner.spawner.background.threads.reserve(self._enter, self.handler)
        else:
            self._enter()

    def _enter(self) -> bool:
        """Start the task of the function; return whether it has started, so that it uses its thread."""
        if self.stopper.is_set():
            return False
        if self.owner.spawner.background.is_halted():
            self._timer_handle = self.owner.spawner.background.coalesced_timers.set(
                self._now() + HALTED_DELAY, self._wake_up
            )
            return False  # normally, the operator pauses before that timer, and stops this daemon
        # Run in the operator's context: the current context belongs to a worker or another daemon, with all its
        # variables.
        self.task = asyncio.get_running_loop().create_task(
            self._run(), context=self.owner.spawner.background.context.copy()
        )
        return True

    async def _run(self) -> None:
        """Run the function once, apply its patch, and schedule the next run, if there is one."""
        at: float | None = None
        try:
            began, patch, seen = self._now(), Patch(body=self.owner.body), self._take_snapshot()
            # Why a counter, not the time of the change? Two changes can have the same time of the loop. Why not
            # `resume`? It ignores daemons that run.
            edits = self.owner.edits
            outcome: Outcome | None = None
            # Check it again, after `_enter`: if the process was suspended since then, another operator can have taken
            # over.
            if is_permitted := not self.owner.spawner.background.is_halted():
                try:
                    # Await it directly: thousands of daemons are suspended here, and each coroutine in between takes
                    # memory.
                    outcome = await self._call(patch)
                    await outlive(self.owner.spawner.rules)
                except asyncio.CancelledError:
                    pass  # apply the patch nevertheless: it has the changes that the function has made so far
            at = await self._apply(outcome, patch, began, seen) if is_permitted else began + HALTED_DELAY
            del outcome  # see `Outcome.without_exception`
            if at == math.inf and self.owner.last_edit > edits:
                at = self._now()  # the timer waits for a change, and the object has changed while the function ran
        except asyncio.CancelledError:
            pass  # not raised, because no other task awaits this one, and it ends here anyway
        except LoginError as error:
            self.owner.spawner.host.fail(error)
        except Exception:
            self.owner.logger.exception("%s has ended because of an unexpected error.", self.handler)
        # Clear it first: `_schedule` can begin the next run at once, and a daemon with a task counts as running.
        self.task = None
        if self._has_thread:
            self.owner.spawner.background.threads.release()
        if at is None or self.stopper.is_set():
            self._finish()
        else:
            self._schedule(at)

    def _take_snapshot(self) -> tuple[str | bytes | None, str | None]:
        """
        Return the text of the object and its version, to detect whether the function mutates the object.

        Only for timers: daemons run for so long that the object normally changes meanwhile.
        """
        return self.owner.packed.text if isinstance(self.handler, TimerHandler) else None, self.owner.version

    def _call(self, patch: Patch) -> Coroutine[Any, Any, Outcome]:
        """Return the coroutine of one run of the function."""
        handler, owner = self.handler, self.owner
        if self.state is None:
            self.state, self._base = HandlerState(started=utcnow()), self._due
        cause = self._make_cause(patch)
        rules = owner.spawner.rules_of_threads if self._has_thread else owner.spawner.rules
        return run_handler(handler, cause, self.state, rules)

    async def _apply(
        self,
        outcome: Outcome | None,
        patch: Patch,
        began: float,
        seen: tuple[str | bytes | None, str | None],
    ) -> float | None:
        """Apply the results and the patch of the function; return the time of the next run, or ``None``."""
        handler, owner, (text, version) = self.handler, self.owner, seen
        # A cancelled function has no result, only a patch.
        if outcome is not None:
            deliver_results({handler.id: outcome}, patch, owner.logger)
            # As for other handlers: values that JSON cannot express
            # would make the API refuse the rest of the patch, too.
            patching.discard_unstorable(patch, owner.logger)
        if text is not None and (explanation := owner.restore(text, version)) is not None:
            owner.spawner.host.report_mutation(owner.record, explanation, [handler.id])
        if patch:
            await self._send(patch)
        return None if outcome is None or self.state is None else self._get_next_run(self.state, outcome, began)

    def _get_next_run(self, state: HandlerState, outcome: Outcome, began: float) -> float | None:
        """Return the time of the next run by the clock of the loop: ``None`` if never, infinity if after a change."""
        handler, now = self.handler, self._now()
        if not outcome.final:
            self.state = state.with_outcome(outcome, utcnow())
            return now + (outcome.delay or 0)
        # The function was not called: wait for a version for which it can be.
        if handler.model is not None and handler.model.is_nonconformity(outcome.exception, self.owner.body):
            self.state = state.with_outcome(outcome, utcnow())
            return math.inf
        # A permanent failure ends a timer, too: its next run would be a retry.
        if outcome.exception is not None or not isinstance(handler, TimerHandler):
            return None
        self.state = None
        if handler.interval is None:
            return None if handler.idle is None else math.inf
        if handler.sharp:
            missed = max(0, (now - self._base) // handler.interval) if handler.interval > 0 else 0
            return self._base + (missed + 1) * handler.interval
        # The interval is counted from the planned time of the run: otherwise, the delays of a busy loop would add up.
        lag = began - self._due
        return now + handler.interval - (lag if lag < handler.interval else 0)

    async def _send(self, patch: Patch) -> None:
        """Apply the patch; if the API is unavailable, retry until it works, or until the daemon is stopped."""
        logger, background = self.owner.logger, self.owner.spawner.background
        delays = Delays(self.owner.spawner.settings.queueing.error_delays)
        began = self._now()
        delay: float | None = None
        self._sending = True
        try:
            while True:
                try:
                    # Why not simply sleep? The wait must end at once when the daemon is stopped.
                    if delay is not None:
                        await AsyncFlagWaiter(self.stopper).wait(delay)
                    return await self.owner.spawner.host.send(self.owner.record, patch)
                except LoginError:
                    raise
                except asyncio.CancelledError as error:
                    if background.is_cancelled() or self.stopper.is_set():
                        raise
                    await withdraw_cancellation(background.is_cancelled)
                    delay = delays.next()
                    logger.error(
                        "The patch of %s can't be applied; trying again in %s seconds: %s",
                        self.handler,
                        delay,
                        StrayCancellationError.of(error),
                    )
                except APIFencedError as error:
                    logger.warning("The patch of %s is dropped: %s", self.handler, error)
                    return None
                except Exception as error:
                    # The patch is not retried if the API refuses it, because it would refuse it again; nor if the
                    # daemon is stopping, because it must not hold its object any longer.
                    if not _is_passing(error, self._now() - began) or self.stopper.is_set():
                        logger.exception("The patch of %s is lost: %r: %r", self.handler, patch, error)
                        return None
                    delay = delays.next()
                    logger.error(
                        "The patch of %s can't be applied; trying again in %s seconds: %r", self.handler, delay, error
                    )
        finally:
            self._sending = False

    def _make_cause(self, patch: Patch) -> DaemonCause:
        owner, spawner = self.owner, self.owner.spawner
        checker = AsyncFlagWaiter if self.handler.asynchronous else SyncFlagWaiter
        return DaemonCause(
            logger=owner.logger,
            memo=spawner.host.get_memo(owner.record),
            indices=spawner.indices,
            resource=spawner.table.resource,
            body=owner.body,
            patch=patch,
            stopped=checker(self.stopper),
            identity=owner.identity,
            deletion=functools.partial(spawner.host.get_deletion, owner.record) if self.handler.extras else None,
        )

    def _get_initial_delay(self) -> float:
        delay = self.handler.initial_delay
        if not callable(delay):
            return delay or 0
        try:
            value: object = delay(**self._make_delay_kwargs(delay))
            if value is None:
                return 0
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise TypeError(f"it has returned {value!r}, which is no number of seconds")
            return value
        except INTERRUPTIONS:
            raise
        except BaseException as error:
            reason = filters.FilterError(delay, error).explain(self.handler)
            extra = {'message_code': 'function-failed'}
            self.owner.logger.error("%s. %s begins at once.", reason, self.handler, extra=extra)
            return 0

    def _make_delay_kwargs(self, delay: Callable[..., float | None]) -> dict[str, Any]:
        """Return the arguments of the function for the initial delay: as objects of the class, like the handler."""
        cause, handler = self._make_cause(Patch(body=self.owner.body)), self.handler
        kwargs = cause.kwargs_of_callback(delay, handler)
        for name in find_typed(delay) if handler.model is not None else ():
            kwargs[name] = TYPED_GETTERS[name](cause, handler)
        return kwargs

    # Stopping.

    def stop(self, reason: DaemonStoppingReason) -> None:
        """Signal the daemon to stop, and start the stages of stopping. It ends at once if its function does not run."""
        known = self.stopper.reason
        # Each further event of a deleted object signals the same reason again.
        if known is not None and reason in known:
            return
        self.stopper.set(reason)
        if self.task is None:
            self._finish()
        # Another reason does not restart the stages. But an exiting operator sets limits even for daemons without
        # limits: otherwise, it would never end.
        elif known is None or (reason is DaemonStoppingReason.OPERATOR_EXITING and self._get_own_limits()[1] is None):
            self._start_stopping()

    def abort(self) -> None:
        """Stop the daemon because of a pause, and cancel its function at once, if that is possible."""
        self.stop(DaemonStoppingReason.OPERATOR_PAUSING)
        if self.task is not None and self.handler.asynchronous:
            self.owner.spawner.background.cancel(self.task)

    def _start_stopping(self) -> None:
        backoff, timeout = self._get_limits()
        if self._get_own_limits()[0] > 0:
            self.stopper.set(DaemonStoppingReason.DAEMON_SIGNALLED)
            self.owner.logger.debug("%s is signalled to exit gracefully.", self.handler)
        # Why a timer even without a back-off? Functions that wait for the flag return before it fires, and are not
        # cancelled.
        self._set_timer(backoff, self._start_waiting if timeout is None else self._cancel)

    def _get_limits(self) -> tuple[float, float | None]:
        """
        Return how long to wait before the cancellation, and how long after it (both in seconds).

        The second one is ``None`` if the daemon is never cancelled.
        """
        backoff, timeout = self._get_own_limits()
        reason = self.stopper.reason
        if timeout is None and reason is not None and DaemonStoppingReason.OPERATOR_EXITING in reason:
            return max(backoff, EXIT_TIMEOUT), EXIT_CANCELLATION_TIMEOUT
        return backoff, timeout

    def _get_own_limits(self) -> tuple[float, float | None]:
        """Return these limits as declared for the handler, without those of an exiting operator."""
        handler = self.handler
        if isinstance(handler, DaemonHandler):
            return handler.cancellation_backoff or 0, handler.cancellation_timeout
        return 0, None

    def _cancel(self) -> None:
        self.stopper.set(DaemonStoppingReason.DAEMON_CANCELLED)
        self.owner.logger.debug("%s is signalled to exit by force.", self.handler)
        if self.task is not None and self.handler.asynchronous and not self._sending:
            self.owner.spawner.background.cancel(self.task)  # if it only sends its last patch, it has ended in time
        self._set_timer(self._get_limits()[1] or 0, self._abandon)

    def _start_waiting(self) -> None:
        delay = self._report_waiting()
        self._set_timer(min(WARNING_DELAY, delay), self._warn)

    def _warn(self) -> None:
        """Log a warning, once, so that users know why their object is not deleted."""
        self.owner.logger.warning(
            "%s still runs, though it was told to stop. The operator waits for it; if its object is being deleted, the "
            "object stays until then. %s",
            self.handler,
            self._get_remedy(),
        )
        self._set_timer(max(0.0, self._get_polling_interval() - WARNING_DELAY), self._remind)

    def _remind(self) -> None:
        delay = self._report_waiting()
        self._set_timer(delay, self._remind)

    def _report_waiting(self) -> float:
        delay = self._get_polling_interval()
        self.owner.logger.debug("%s is still exiting. The next check is in %s seconds.", self.handler, delay)
        return delay

    def _get_polling_interval(self) -> float:
        delay = self.handler.cancellation_polling if isinstance(self.handler, DaemonHandler) else None
        return self.owner.spawner.settings.background.cancellation_polling if delay is None else delay

    def _abandon(self) -> None:
        # Set this first: `discard` and `notify` treat an abandoned daemon as ended, although its task continues.
        self.abandoned = True
        self.stopper.set(DaemonStoppingReason.DAEMON_ABANDONED)
        # Users filter their logs by this text of upstream kopf, so the advice is in a separate message.
        self.owner.logger.warning("%s did not exit in time. Leaving it orphaned.", self.handler)
        self.owner.logger.warning(
            "%s still runs, and the operator does not wait for it any more. %s", self.handler, self._get_remedy()
        )
        self.owner.spawner.background.discard(self)
        self.owner.notify(self)
        warnings.warn(f"{self.handler} did not exit in time. Leaving it orphaned.", ResourceWarning, stacklevel=2)

    def _get_remedy(self) -> str:
        if not isinstance(self.handler, DaemonHandler):
            return "Let its function end sooner."
        if self.handler.asynchronous:
            return "Let its loop end when `stopped` is set, or when asyncio.CancelledError is raised in it."
        return "Let its loop end when `stopped` is set: while not stopped: ...; stopped.wait(10)"

    def _finish(self) -> None:
        if self._timer_handle is not None:
            self._timer_handle.cancel()
            self._timer_handle = None
        if self._has_thread:
            self.owner.spawner.background.threads.cancel(self._enter)
        for_good = not self.stopper.is_set()
        if for_good:
            self.stopper.set(DaemonStoppingReason.DONE)
        self.owner.logger.debug(
            "%s has exited %s and will not be retried or restarted.",
            self.handler,
            "on its own" if for_good else "on request",
        )
        self.owner.spawner.background.discard(self)
        # Called last: it can start the processing of the object, in which this daemon must not exist any more.
        self.owner.remove(self, for_good=for_good)

    def _set_timer(self, delay: float, callback: Any) -> None:
        if self._timer_handle is not None:
            self._timer_handle.cancel()
        self._timer_handle = asyncio.get_running_loop().call_later(delay, callback)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _is_passing(error: Exception, elapsed: float) -> bool:
    """Check whether the request can succeed later; `elapsed` is the time since its first attempt (in seconds)."""
    if isinstance(error, APIForbiddenError):
        return not error.is_by_admission and elapsed < FORBIDDEN_PATIENCE
    return isinstance(error, _PASSING_ERRORS)
