"""
Execution of one attempt of one handler: the call of its function, its time limit, and the meaning of its errors.

Handlers of all kinds (of changes, events, daemons, activities, …) are run by `run_handler`, so that errors, retries and
logs are the same everywhere. It never raises because of the user's code, but returns an `Outcome`, from which the
callers decide what to store and when to retry.
"""

import asyncio
import dataclasses
import enum
import logging
import math
import os
import pathlib
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Executor
from contextvars import ContextVar, Token
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from kopf._cogs.aiokits.cancellations import StrayCancellationError, withdraw_cancellation
from kopf._cogs.helpers import typedefs
from kopf._cogs.helpers.clocks import utcnow as utcnow
from kopf._cogs.helpers.explanations import INTERRUPTIONS, ExplainedError, get_text, name_error
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.instruments import NO_INSTRUMENTS, HandlerCall, Instruments, ObjectKey, Unsampled
from kopf._core.actions import invocation
from kopf._core.actions.message_codes import find_error_code

if TYPE_CHECKING:
    from kopf._cogs.structs.meters import Meters
    from kopf._core.actions.handler_states import HandlerState

Logger = typedefs.Logger
ExcInfo = tuple[type[BaseException], BaseException, TracebackType]

_PACKAGE = str(pathlib.Path(__file__).parents[2]) + os.sep

DEFAULT_RETRY_DELAY = 60
"""The delay of a `TemporaryError` that is raised without a delay (in seconds)."""

MAX_ATTEMPTS_AT_ONCE = 20
"""The number of attempts without delays, after which a handler is slowed down unless its attempts take long."""

MIN_INTERVAL = 0.5
"""The shortest interval of the further attempts of such a handler, on average since its first one (in seconds)."""


EXTRAS = frozenset({'children', 'conditions', 'deleting'})
"""The kwargs that are made only for functions that name them: they are too expensive to be made for ``**kwargs``."""


class ErrorsMode(enum.Enum):
    """
    The meaning of arbitrary exceptions of a handler: those that are neither `TemporaryError` nor `PermanentError`.

    Specified in the documentation's "Retry after errors".
    """

    IGNORED = enum.auto()
    """The error is logged, and the handler counts as succeeded."""
    TEMPORARY = enum.auto()
    """The handler is retried after its ``backoff``."""
    PERMANENT = enum.auto()
    """The handler has failed permanently."""


class PermanentError(Exception):
    """Raised by handlers that have failed permanently: they are not retried."""


class TemporaryError(Exception):
    """
    Raised by handlers that cannot succeed yet: they are retried.

    ``delay`` is the time until the next attempt (in seconds); ``0`` or ``None`` means at once.
    """

    delay: float | None = DEFAULT_RETRY_DELAY  # also for subclasses whose constructors do not call this one

    def __init__(self, __msg: str | None = None, delay: float | None = DEFAULT_RETRY_DELAY) -> None:
        given: object = delay
        if given is not None and (not isinstance(given, int | float) or math.isnan(given)):
            raise TypeError(f"kopf.TemporaryError: delay= must be a number of seconds, not {delay!r}.")
        super().__init__(__msg)
        self.delay = delay


class HandlerTimeoutError(PermanentError):
    """Raised when a handler has not succeeded within its ``timeout``."""


class HandlerRetriesError(PermanentError):
    """Raised when a handler has not succeeded within its ``retries``."""


class RunTimeoutError(TemporaryError):
    """One run of the handler has not ended in time; raised by the framework."""

    def __init__(self, __msg: str, delay: float, thread: 'asyncio.Task[Any] | None' = None) -> None:
        super().__init__(__msg, delay=delay)
        self.thread = thread
        """The task that waits for the function in a thread; ``None`` if it has ended. Threads cannot be stopped."""


class HandlerChildrenRetry(TemporaryError):
    """Raised by the framework when the sub-handlers of a handler are not finished yet. This is not a failure."""

    def __init__(self, delay: float | None) -> None:
        super().__init__(None, delay=delay)


class NotReadyError(TemporaryError):
    """
    Raised when a handler cannot continue until another object is ready. It counts as neither a failure nor an attempt.

    A level-triggered handler runs again when the object changes; other handlers run after the delay (in seconds).
    """

    def __init__(self, __msg: str | None = None, delay: float | None = 10) -> None:
        super().__init__(__msg, delay=delay)


class Outcome(NamedTuple):
    """The outcome of one attempt of a handler."""

    final: bool
    """Whether the handler is finished, with a success or a permanent failure."""
    delay: float | None = None
    """The time until the next attempt (in seconds), if the outcome is not final."""
    result: object = None
    exception: BaseException | None = None
    uncounted: bool = False
    """Whether the handler has a limit of attempts, and this attempt does not count towards it."""
    ignored: bool = False
    """Whether the function has failed, and its errors are ignored."""
    refused: bool = False
    """Whether the function has refused a request on purpose: it has worked, although it has raised an error."""
    carried: str | None = None
    """The text that an instrument has left for the next attempts: see `HandlerCall`."""

    @property
    def verdict(self) -> str:
        """The outcome in one word, as in `HandlerCall`."""
        if not self.final:
            is_waiting = isinstance(self.exception, HandlerChildrenRetry | NotReadyError | invocation.CallNotBegun)
            return 'waiting' if is_waiting else 'retried'
        if self.exception is not None:
            return 'refused' if self.refused else 'failed'
        return 'ignored' if self.ignored else 'succeeded'

    @property
    def has_begun(self) -> bool:
        """Return whether the function was called at all; otherwise, it was no attempt."""
        return not isinstance(self.exception, invocation.CallNotBegun)

    @property
    def is_error(self) -> bool:
        """Return whether the attempt has failed; a retry requested by a `TemporaryError` is no failure."""
        return self.exception is not None and not isinstance(self.exception, TemporaryError | invocation.CallNotBegun)

    @property
    def message(self) -> str | None:
        """The text of the error to be stored in the progress, if there is one."""
        if isinstance(self.exception, HandlerChildrenRetry | invocation.CallNotBegun | None):
            return None
        return describe_error(self.exception)

    def without_exception(self) -> 'Outcome':
        """
        Return the outcome without its exception, for callers that keep it in a variable or in an object.

        The traceback of an exception refers to the frames of all callers, and so to their local variables. An exception
        in one of these variables is in a reference cycle. It would stay in memory, with all that the frames refer to,
        until the garbage collector runs.
        """
        return self if self.exception is None else self._replace(exception=None)


handler_var: ContextVar['Handler'] = ContextVar('handler_var')
"""The current handler."""

cause_var: ContextVar[Any] = ContextVar('cause_var')
"""The cause of the current handler, for functions such as `kopf.adopt` that use the current object by default."""


class running:
    """
    A context in which the handler and its cause are in `handler_var` and `cause_var`.

    Why not a generator with `contextlib.contextmanager`? A class is faster. It also takes less memory, which matters as
    every running daemon has one instance.
    """

    __slots__ = ('_cause', '_cause_token', '_handler', '_handler_token')

    def __init__(self, handler: 'Handler', cause: Any) -> None:
        self._handler, self._cause = handler, cause

    def __enter__(self) -> None:
        self._handler_token, self._cause_token = handler_var.set(self._handler), cause_var.set(self._cause)

    def __exit__(self, *_: object) -> None:
        try:
            handler_var.reset(self._handler_token)
            cause_var.reset(self._cause_token)
        except ValueError:  # the operator has abandoned the task, and the coroutine is closed in another context
            pass

    def get_parent(self) -> 'Handler | None':
        """Return the handler that has called this one, e.g. as a sub-handler."""
        former = self._handler_token.old_value
        return None if former is Token.MISSING else former


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Handler:
    """A function with an id and the rules for its errors: the base of all kinds of handlers."""

    id: HandlerId
    fn: Callable[..., Any]
    param: Any = None
    errors: ErrorsMode | None = None
    timeout: float | None = None
    retries: int | None = None
    backoff: float | None = None
    asynchronous: bool = dataclasses.field(init=False)
    names: tuple[str, ...] | None = dataclasses.field(init=False)
    """The kwargs that the function takes; ``None`` if it takes any."""
    extras: tuple[str, ...] = dataclasses.field(init=False)
    """The kwargs of `EXTRAS` that the function names."""

    kind = 'Handler'
    """The name of the kind in logs."""
    quiet: ClassVar[bool] = False
    """Whether successes are logged only for debugging."""
    routine: ClassVar[bool] = False
    """Whether successes are logged, but not posted as Events, as users of the cluster need not see them."""
    frequent: ClassVar[bool] = False
    """Whether it is called so often that its calls would displace those of others in the timelines of the inspector."""
    concurrent: ClassVar[bool] = False
    """
    Whether it may be called several times at once for one object, independently of the worker of the object.

    Such handlers only answer questions about the object, e.g. whether to admit it; or they belong to no object.
    """
    refuses: ClassVar[bool] = False
    """Whether the function raises permanent errors in order to refuse requests: these are no failures."""
    reconciles: ClassVar[bool] = False
    """Whether it is called in the steps of its object. Its errors are errors of reconciliations in the metrics."""
    context: 'type[running]' = dataclasses.field(default=running, init=False)
    """The context in which it is run. Why not a function? Then, all handlers would pay for what only some need."""

    def __post_init__(self) -> None:
        object.__setattr__(self, 'asynchronous', invocation.is_async_fn(self.fn))
        arguments = invocation.read_arguments(self.fn)
        object.__setattr__(self, 'names', arguments.names)
        object.__setattr__(self, 'extras', tuple(name for name in arguments.explicit if name in EXTRAS))

    def __str__(self) -> str:
        return f"{self.kind} {self.id!r}"


class Execution(NamedTuple):
    """
    The rules for running handlers: the executor for sync functions, the defaults for errors, the instruments.

    They are made once for many handlers, but the settings can be changed at any time. So the executor and the back-off
    are looked up when they are needed.
    """

    find_executor: Callable[[], Executor]
    """Returns the executor for sync functions."""
    default_errors: ErrorsMode = ErrorsMode.TEMPORARY
    find_backoff: Callable[[], float] = lambda: 60
    """Returns the delay (in seconds) after an arbitrary error, for handlers without their own one."""
    permanent_errors: tuple[type[BaseException], ...] = (PermanentError,)
    run_timeout: float | None = None
    """The time limit of each run (in seconds). The handler's own time-out limits all attempts together."""
    find_mistake: 'Callable[[Handler, BaseException], str | None] | None' = None
    """Returns the line of a mistake in the handler's code, if the error is one. Such a handler is not retried."""
    instruments: Instruments = NO_INSTRUMENTS
    """The instruments of the operator."""
    observed: bool = True
    """Whether to tell the instruments, if there are any. Attempts are measured in any case."""
    is_halted: Callable[[], bool] | None = None
    """
    Checks whether the operator is paused or must pause, so that no sync function begins in a thread; callable from any
    thread. ``None`` if the handler is called in a paused operator, too.
    """
    running: 'invocation.ThreadCalls | None' = None
    """Where to note the functions that must end before another replica works, while they run in threads."""
    is_cancelled: Callable[[], bool] | None = None
    """
    Checks whether the owner of the current task has cancelled it; any other cancellation is an error of the function.
    ``None`` if the code around the handler can cancel the task, too.
    """


_UNPOSTED = {'k8s_skip': True}

_MISTAKE = {'message_code': 'handler-mistake'}


def describe_error(error: BaseException) -> str:
    """Return the class and the text of an error; only the text for errors that handlers raise to report something."""
    text = get_text(error)
    is_explained = isinstance(error, PermanentError | TemporaryError | ExplainedError) or type(error) is Exception
    return text if is_explained and text and text != 'None' else name_error(error)


def _find_code(error: BaseException) -> dict[str, str] | None:
    """Return the fields of the log record for an error whose text was written by the framework."""
    code = find_error_code(error)
    return None if code is None else {'message_code': code}


class RunnableCause(Protocol):
    """The reason why a handler is run, with the kwargs for its function."""

    @property
    def logger(self) -> Logger:
        """The logger for the outcomes of the handler."""

    @property
    def key(self) -> ObjectKey | None:
        """The key of the object, if the cause has an object."""

    @property
    def occasion(self) -> str | None:
        """The reason, event, operation or activity, in one word; ``None`` if the kind of the handler is sufficient."""

    def kwargs_for(self, handler: Handler, state: 'HandlerState', /) -> dict[str, Any]:
        """Return the kwargs that the function of the handler takes, made for this attempt only."""


async def run_handler(
    handler: Handler,
    cause: RunnableCause,
    state: 'HandlerState',
    rules: Execution,
    *,
    after: Callable[[], Awaitable[None]] | None = None,
    observed: bool = True,
) -> Outcome:
    """
    Run the handler once, and log the outcome. Handlers of all kinds are run here, and nowhere else.

    While it runs, the handler and its cause are in `handler_var` and `cause_var`.

    Args:
        handler: the handler.
        cause: the reason why it is run; it makes the kwargs of the function.
        state: the progress of the previous attempts.
        rules: the executor for sync functions, the defaults for errors, and the instruments.
        after: a function to be called after that of the handler; its errors count as errors of the handler.
        observed: whether to tell the instruments, as in `Execution`; ``False`` if they are told already.

    Returns:
        The outcome, including any error of the function.

    Raises:
        asyncio.CancelledError: if the task is cancelled; see also `Execution.is_cancelled`. No other exception is
            raised.
    """
    unsampled = meters = None
    began = 0.0
    # The only cost of instruments if there are none. A field of a named tuple takes as long as three variables.
    instruments = rules.instruments
    if instruments.observes_handlers:
        if instruments.handlers and observed and rules.observed:
            unsampled = instruments.find_ignored()
            if unsampled is None:
                return await _run_told(handler, cause, state, rules, after)
        meters = instruments.meters
        if meters is not None:
            began = monotonic()
    logger, limits = cause.logger, _Limits(handler, state)
    debugging = logger.isEnabledFor(logging.DEBUG)
    context = handler.context(handler, cause)
    with context:
        try:
            if handler.timeout is not None or handler.retries is not None:
                limits.check_before()
            if debugging:
                logger.debug("%s is invoked.", handler)
            result = await _call(handler, cause, state, rules, limits)
            if after is not None:
                await after()
        except INTERRUPTIONS:
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and _is_task_cancelled():
                if rules.is_cancelled is None or rules.is_cancelled():
                    logger.warning("%s is cancelled. Will escalate.", handler)
                    if meters is not None:
                        _measure(meters, handler, context, 'cancelled', began)
                    raise
                await withdraw_cancellation(rules.is_cancelled)
                error = StrayCancellationError.of(error)
            # If another task is cancelled, which the function has awaited, this is an error of the function.
            # Why no variable for the outcome? It has the error, whose traceback has this frame: only the garbage
            # collector would free this cycle.
            return _carry(
                _measure_failure(
                    _assess_error(handler, error, limits, rules, logger), meters, began, context, handler, cause
                ),
                unsampled,
                cause,
                state,
            )
    if debugging or not handler.quiet:
        _log_success(handler, logger)
    if meters is not None:
        # This is the usual end of an attempt: it is measured without a call.
        attempts = meters.successes.get(handler.id)
        if attempts is None:
            _measure(meters, handler, context, 'succeeded', began)
        else:
            attempts[0] += 1
            attempts[1] += monotonic() - began
    return Outcome(final=True, result=result, carried=None if unsampled is None else state.carried)


async def outlive(rules: Execution) -> None:
    """
    Let the task go on if the function of a handler has cancelled it, and has not waited for anything since then.

    Why not in `run_handler`? It would take a fifth longer, and it is called for each event, mostly as the last thing in
    its task.
    """
    if rules.is_cancelled is not None and _is_task_cancelled() and not rules.is_cancelled():
        await withdraw_cancellation(rules.is_cancelled)


async def _run_told(
    handler: Handler,
    cause: RunnableCause,
    state: 'HandlerState',
    rules: Execution,
    after: Callable[[], Awaitable[None]] | None,
) -> Outcome:
    """Run the handler once, and tell the instruments when it begins and when it ends."""
    instruments = rules.instruments
    unsampled = None if instruments.sampler is None else instruments.skip_handler(state.carried)
    if unsampled is None or not instruments.skips_handlers:
        call = HandlerCall(
            instruments,
            id=handler.id,
            kind=handler.kind,
            fn=handler.fn,
            frequent=handler.frequent,
            concurrent=handler.concurrent,
            cause=cause,
            retry=state.retries,
            carried=state.carried,
            unsampled=unsampled,
        )
        with call:
            # Why not nest one function in the other? Without instruments, each handler would need one more call.
            outcome = await run_handler(handler, cause, state, rules, after=after, observed=False)
            call.set_outcome(outcome.verdict, delay=outcome.delay, message=outcome.message, exception=outcome.exception)
        return outcome if call.carried is None else outcome._replace(carried=call.carried)
    token = unsampled.begin_handler()
    try:
        outcome = await run_handler(handler, cause, state, rules, after=after, observed=False)
    finally:
        unsampled.end_handler(token)
    return _carry(outcome, unsampled, cause, state)


def _log_success(handler: Handler, logger: Logger) -> None:
    level = logging.DEBUG if handler.quiet else logging.INFO
    if handler.routine:
        logger.log(level, "%s succeeded.", handler, extra=_UNPOSTED)
    else:
        logger.log(level, "%s succeeded.", handler)


def _measure(meters: 'Meters', handler: Handler, context: running, outcome: str, began: float) -> None:
    """Measure the attempt, which has been run in this context."""
    parent = context.get_parent()
    meters.note_attempt(handler.id, None if parent is None else parent.id, outcome, began)


def _measure_failure(
    outcome: Outcome,
    meters: 'Meters | None',
    began: float,
    context: running,
    handler: Handler,
    cause: RunnableCause,
) -> Outcome:
    """Measure the attempt, which has ended with an error; return its outcome."""
    if meters is not None:
        _measure(meters, handler, context, outcome.verdict, began)
        if outcome.is_error and handler.reconciles:
            meters.note_failure(cause.key)
    return outcome


def _carry(outcome: Outcome, unsampled: Unsampled | None, cause: RunnableCause, state: 'HandlerState') -> Outcome:
    """Return the outcome with the trace for the next attempts, if there will be any."""
    if unsampled is None:
        return outcome
    carried = state.carried
    if carried is None and not outcome.final and cause.key is not None:
        carried = unsampled.draw_traceparent()
    return outcome if carried is None else outcome._replace(carried=carried)


def _assess_error(
    handler: Handler,
    error: BaseException,
    limits: '_Limits',
    rules: Execution,
    logger: Logger,
) -> Outcome:
    if isinstance(error, invocation.CallNotBegun):
        logger.debug("%s has not begun, as the operator has paused, or is ending.", handler)
        return Outcome(final=False, delay=invocation.HALTED_DELAY, exception=error)
    if isinstance(error, HandlerChildrenRetry):
        logger.debug("%s waits for its sub-handlers.", handler)
        # Waits are counted separately only if attempts are limited: the count needs a field that upstream's records do
        # not have, and handlers without a limit do not need it.
        return Outcome(final=False, delay=error.delay, exception=error, uncounted=handler.retries is not None)
    if isinstance(error, BaseExceptionGroup) and error.split(NotReadyError)[1] is None:
        error = next(_iter_errors(error))  # of a `asyncio.TaskGroup` in the handler
    if isinstance(error, NotReadyError):
        logger.info("%s waits: %s.", handler, describe_error(error), extra=_UNPOSTED)
        return Outcome(final=False, delay=error.delay, exception=error, uncounted=handler.retries is not None)
    if isinstance(error, TemporaryError):
        return _assess_temporary(handler, error, limits, logger)
    if isinstance(error, rules.permanent_errors):
        text = describe_error(error)
        is_limit = text.startswith(f"{handler} has ")  # errors of `_Limits` name the handler already
        message = text if is_limit else f"{handler} failed permanently: {text}"
        logger.error("%s", message, extra=_find_code(error))
        return Outcome(final=True, exception=error, refused=handler.refuses)
    return _assess_arbitrary(handler, error, limits, rules, logger)


def _iter_errors(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _iter_errors(inner)
    else:
        yield error


def _is_task_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


class _Limits:
    """The limits of attempts and time of a handler, and how much of them is used."""

    __slots__ = ('attempts', 'handler', 'retries', 'started', 'timeout')

    def __init__(self, handler: Handler, state: 'HandlerState') -> None:
        self.handler, self.retries, self.timeout = handler, handler.retries, handler.timeout
        self.attempts, self.started = state.retries - state.waits, state.started

    def remaining(self) -> float | None:
        """Return the remaining time (in seconds); ``None`` if it is not limited."""
        return None if self.timeout is None else self.timeout - (utcnow() - self.started).total_seconds()

    def check_before(self) -> None:
        """
        Check that an attempt is left.

        Normally, an error in the last permitted attempt is final, so no other attempt follows. But the time can run out
        while the operator is down, and a new version of the operator can have lower limits.

        Raises:
            HandlerTimeoutError: if the time is over.
            HandlerRetriesError: if all attempts are used.
        """
        remaining = self.remaining()
        if remaining is not None and remaining <= 0:
            raise HandlerTimeoutError(f"{self.handler} has timed out after {self.timeout:g} seconds.")
        if self.retries is not None and self.attempts >= self.retries:
            raise HandlerRetriesError(f"{self.handler} has exceeded {self.retries} retries.")

    def exceeds_retries(self) -> bool:
        """Check whether the current attempt is the last one."""
        return self.retries is not None and self.attempts + 1 >= self.retries

    def exceeds_timeout(self, delay: float | None) -> bool:
        """Check whether the time is over before the next attempt after this delay."""
        remaining = self.remaining()
        return remaining is not None and (delay or 0) >= remaining

    def slow_down(self, delay: float | None, logger: Logger) -> float | None:
        """
        Return the delay until the next attempt; a longer one if the handler would be called again and again at once.

        Such a handler would take all of the CPU and flood the API. The first `MAX_ATTEMPTS_AT_ONCE` attempts are never
        delayed. Further ones are not delayed if the handler has run for `MIN_INTERVAL` for each of them already.
        """
        excess = self.attempts + 1 - MAX_ATTEMPTS_AT_ONCE
        if excess < 0 or (delay is not None and delay > 0):
            return delay
        # Why not growing pauses? Handlers whose attempts take long would be delayed, too, and the length of the pause
        # would have to be stored.
        pause = (excess + 1) * MIN_INTERVAL - (utcnow() - self.started).total_seconds()
        if pause <= 0:
            return delay
        if excess == 0:
            logger.warning(
                "%s has failed %d times and is called again at once each time. From now on, there are pauses between "
                "the calls. Use a delay: kopf.TemporaryError(..., delay=5), or the option backoff=5.",
                self.handler,
                MAX_ATTEMPTS_AT_ONCE,
            )
        return min(pause, MIN_INTERVAL)


def _call(
    handler: Handler,
    cause: RunnableCause,
    state: 'HandlerState',
    rules: Execution,
    limits: _Limits,
) -> Awaitable[Any]:
    """Call the function of the handler, with a time limit if there is one."""
    # Why no variable for the kwargs? `invoke` clears them, so only the function keeps them in memory. Daemons run for
    # long, and most use only some of their kwargs.
    if rules.run_timeout is not None:
        return _call_briefly(handler, cause.kwargs_for(handler, state), rules, rules.run_timeout)
    if limits.timeout is not None and handler.asynchronous:
        return _call_in_time(handler, cause.kwargs_for(handler, state), limits)
    return _invoke(handler, cause.kwargs_for(handler, state), rules)


def _invoke(handler: Handler, kwargs: dict[str, Any], rules: Execution) -> Awaitable[Any]:
    return invocation.invoke(
        handler.fn,
        kwargs,
        executor=None if handler.asynchronous else rules.find_executor(),
        asynchronous=handler.asynchronous,
        is_halted=rules.is_halted,
        running=rules.running,
        is_cancelled=rules.is_cancelled,
    )


async def _call_in_time(handler: Handler, kwargs: dict[str, Any], limits: _Limits) -> Any:
    deadline = asyncio.timeout(limits.remaining())
    try:
        async with deadline:
            return await invocation.invoke(handler.fn, kwargs, executor=None, asynchronous=True)
    except TimeoutError as error:
        # Before the deadline, it is an error of the user's code, such as a time-out of a request.
        if deadline.expired():
            raise HandlerTimeoutError(f"{handler} has timed out after {limits.timeout:g} seconds.") from error
        raise


async def _call_briefly(handler: Handler, kwargs: dict[str, Any], rules: Execution, timeout: float) -> Any:
    """Call the function with a time limit; after it, cancel an async function, or leave a sync one in its thread."""
    # The call of a sync function is awaited by another task, which no other code cancels.
    call = _invoke(handler, kwargs, rules if handler.asynchronous else rules._replace(is_cancelled=None))
    text, delay = f"the run has timed out after {timeout:g} seconds", rules.find_backoff()
    if handler.asynchronous:
        deadline = asyncio.timeout(timeout)
        try:
            async with deadline:
                return await call
        except TimeoutError as error:
            if deadline.expired():
                raise RunTimeoutError(text, delay) from error
            raise
    # Why not `asyncio.wait_for`? It would cancel the task but not the thread. The next run could begin while the
    # thread still runs, because its end would be unknown.
    task = asyncio.create_task(_catch_exit(call))
    loop = asyncio.get_running_loop()
    ending = loop.time() + timeout
    try:
        while True:
            try:
                await asyncio.wait({task}, timeout=max(0, ending - loop.time()))
                break
            except asyncio.CancelledError:
                if rules.is_cancelled is None or rules.is_cancelled():
                    raise
                await withdraw_cancellation(rules.is_cancelled)  # it is not of the function, which has no task
    except asyncio.CancelledError:
        task.cancel()
        task.add_done_callback(_retrieve)
        raise
    if task.done():
        result, leaving = task.result()
        if leaving is None:
            return result
        try:
            raise leaving
        finally:
            del leaving  # its traceback refers to this frame: with the variable, that would be a reference cycle
    task.add_done_callback(_retrieve)
    raise RunTimeoutError(f"{text}, and its thread is left", delay, task)


async def _catch_exit(call: Awaitable[Any]) -> tuple[Any, SystemExit | None]:
    """Await the call; return `SystemExit` instead of raising it, as asyncio ends the event loop if a task raises it."""
    try:
        return await call, None
    except SystemExit as error:
        return None, error


def _retrieve(task: 'asyncio.Task[Any]') -> None:
    """Retrieve the exception of an abandoned run: asyncio would log it as never retrieved otherwise."""
    if not task.cancelled():
        task.exception()


def _assess_temporary(handler: Handler, error: TemporaryError, limits: _Limits, logger: Logger) -> Outcome:
    text = describe_error(error)
    if limits.exceeds_retries():
        message = f"{handler} failed temporarily but will exceed {limits.retries} retries: {text}"
        logger.error("%s", message, extra=_find_code(error))
        return Outcome(final=True, exception=HandlerRetriesError(message))
    # Why not wait for the time-out? The next attempt is known to come too late, and the object would wait in vain.
    if limits.exceeds_timeout(error.delay):
        message = f"{handler} failed temporarily but will time out after {limits.timeout} seconds: {text}"
        logger.error("%s", message, extra=_find_code(error))
        return Outcome(final=True, exception=HandlerTimeoutError(message))
    logger.error("%s failed temporarily: %s", handler, text, extra=_find_code(error))
    return Outcome(final=False, delay=limits.slow_down(error.delay, logger), exception=error)


def _assess_arbitrary(
    handler: Handler,
    error: BaseException,
    limits: _Limits,
    rules: Execution,
    logger: Logger,
) -> Outcome:
    errors = handler.errors or rules.default_errors
    text, exc_info, extra = describe_error(error), begin_in_users_code(error), _find_code(error)
    if errors is ErrorsMode.IGNORED:
        message = "%s failed with an exception and will ignore it: %s"
        logger.error(message, handler, text, exc_info=exc_info, extra=extra)
        return Outcome(final=True, ignored=True)
    delay = handler.backoff if handler.backoff is not None else rules.find_backoff()
    # If the handler declares an errors mode, even mistakes are retried: the user has decided about errors.
    mistake = None if rules.find_mistake is None or handler.errors else rules.find_mistake(handler, error)
    if errors is ErrorsMode.PERMANENT:
        ending = "will stop now"
    elif mistake is not None:
        ending = f"will stop now (it is a mistake in {mistake})"
    elif limits.exceeds_retries():
        ending = f"will stop now (it would exceed {limits.retries} retries on the next attempt)"
    elif limits.exceeds_timeout(delay):
        ending = f"will stop now (it would time out in {limits.timeout} seconds on the next attempt)"
    else:
        message = "%s failed with an exception and will try again in %s seconds: %s"
        logger.error(message, handler, delay, text, exc_info=exc_info, extra=extra)
        return Outcome(final=False, delay=limits.slow_down(delay, logger), exception=error)
    if mistake is not None and errors is not ErrorsMode.PERMANENT:
        extra = _MISTAKE
    logger.error("%s failed with an exception and %s: %s", handler, ending, text, exc_info=exc_info, extra=extra)
    return Outcome(final=True, exception=error)


def begin_in_users_code(error: BaseException) -> BaseException | ExcInfo | None:
    """
    Return the error with a traceback that begins in the user's code, for logs.

    If the framework has failed to call the function, e.g. because of wrong arguments, there is no traceback.
    """
    trace, last = error.__traceback__, None
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        last, trace = trace, trace.tb_next
    if trace is not None:
        return type(error), error, _leave_out_misuse(trace)
    is_call = last is not None and last.tb_frame.f_code.co_filename == invocation.__file__
    return None if is_call else error


_MISUSE_MODULES = (
    __file__,
    *(
        os.path.join(_PACKAGE, *names)
        for names in [
            ('_cogs', 'structs', ''),
            ('_cogs', 'configs', ''),
            ('_cogs', 'clients', 'sessions.py'),
            ('_core', 'engines', 'admission.py'),
            ('_core', 'engines', 'indexing.py'),
            ('_core', 'engines', 'planning.py'),
            ('_core', 'engines', 'posting.py'),
            ('_kits', 'hierarchies.py'),
            ('_kits', 'webhooks.py'),
            ('__init__.py',),
        ]
    ),
)
"""The modules that raise errors about a wrong use of values: mappings, settings, exceptions; and those of the API."""


def _leave_out_misuse(trace: TracebackType) -> TracebackType:
    """Return the traceback without its last frames in `_MISUSE_MODULES`, so that it ends in the user's code."""
    entries = [trace]
    while entries[-1].tb_next is not None:
        entries.append(entries[-1].tb_next)
    if not entries[-1].tb_frame.f_code.co_filename.startswith(_MISUSE_MODULES):
        return trace
    while len(entries) > 1 and entries[-1].tb_frame.f_code.co_filename.startswith(_PACKAGE):
        entries.pop()
    last = None
    for entry in reversed(entries):
        last = TracebackType(last, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return last or trace
