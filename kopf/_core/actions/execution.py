"""
Running one handler once: the call itself, its time limit, and what its errors mean.

Everything that can be handled (a change, an event, a daemon, an activity, …) goes through `run_handler`,
so that errors, retries and logs mean the same everywhere. What it returns is an `Outcome`: data, from which the callers
decide what to store and when to try again. Handling never raises because of the user's code.
"""

import asyncio
import dataclasses
import enum
import logging
import math
import os
import pathlib
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from kopf._cogs.helpers import typedefs
from kopf._cogs.helpers.clocks import utcnow as utcnow
from kopf._cogs.helpers.explanations import ExplainedError, name_error
from kopf._cogs.structs.ids import HandlerId
from kopf._core.actions import invocation

if TYPE_CHECKING:
    from kopf._core.actions.handler_states import HandlerState

Logger = typedefs.Logger
ExcInfo = tuple[type[BaseException], BaseException, TracebackType]

_PACKAGE = str(pathlib.Path(__file__).parents[2]) + os.sep

DEFAULT_RETRY_DELAY = 60
"""For how many seconds a handler is delayed by `TemporaryError` if the error does not say."""


EXTRAS = frozenset({'deleting'})
"""The arguments that are made only for functions that name them: for ``**kwargs`` alone, they would cost too much."""


class ErrorsMode(enum.Enum):
    """
    What an arbitrary exception of a handler means: neither `TemporaryError` nor `PermanentError`.

    Specified in the documentation's "Errors".
    """

    IGNORED = enum.auto()
    """It is logged, and the handler counts as succeeded."""
    TEMPORARY = enum.auto()
    """The handler is tried again after its ``backoff``."""
    PERMANENT = enum.auto()
    """The handler has failed for good."""


class PermanentError(Exception):
    """The handler has failed for good: retries are of no use."""


class TemporaryError(Exception):
    """
    The handler can't succeed yet: try again.

    ``delay`` is the time in seconds until the next attempt; ``0`` or ``None`` means at once.
    """

    def __init__(self, __msg: str | None = None, delay: float | None = DEFAULT_RETRY_DELAY) -> None:
        given: object = delay
        if given is not None and (not isinstance(given, int | float) or math.isnan(given)):
            raise TypeError(f"kopf.TemporaryError: delay= must be a number of seconds, not {delay!r}.")
        super().__init__(__msg)
        self.delay = delay


class HandlerTimeoutError(PermanentError):
    """The handler has not succeeded within its ``timeout``."""


class HandlerRetriesError(PermanentError):
    """The handler has not succeeded within its ``retries``."""


class HandlerChildrenRetry(TemporaryError):
    """The handler's sub-handlers are not finished yet; raised by the framework: it is no failure."""

    def __init__(self, delay: float | None) -> None:
        super().__init__(None, delay=delay)


class Outcome(NamedTuple):
    """What came of one attempt. Not final: another attempt is due after the ``delay`` (in seconds)."""

    final: bool
    delay: float | None = None
    result: object = None
    exception: BaseException | None = None
    uncounted: bool = False
    """Whether there is a limit of attempts, and this one does not count towards it."""

    @property
    def message(self) -> str | None:
        if self.exception is None or isinstance(self.exception, HandlerChildrenRetry):
            return None
        return describe_error(self.exception)

    def without_exception(self) -> 'Outcome':
        """
        Return the rest, for a caller that keeps it in a variable or in an object that its variables refer to.

        The traceback of the exception refers to the frames of all callers, and so to their variables: an exception
        that is in one of them is in a reference cycle, and it stays in memory until the garbage collector comes.
        """
        return self if self.exception is None else self._replace(exception=None)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Handler:
    """A function with an id and the rules for its errors: what all kinds of handlers have in common."""

    id: HandlerId
    fn: Callable[..., Any]
    param: Any = None
    errors: ErrorsMode | None = None
    timeout: float | None = None
    retries: int | None = None
    backoff: float | None = None
    asynchronous: bool = dataclasses.field(init=False)
    names: tuple[str, ...] | None = dataclasses.field(init=False)
    """The arguments that the function takes; ``None`` if it takes any."""
    extras: tuple[str, ...] = dataclasses.field(init=False)
    """Those of them that are made only for functions that name them."""

    kind = 'Handler'
    """How logs call it."""
    quiet: ClassVar[bool] = False
    """Whether its successes are of interest only for debugging."""
    routine: ClassVar[bool] = False
    """Whether its successes are of no interest for users of the cluster: they are logged, and not posted as Events."""

    def __post_init__(self) -> None:
        object.__setattr__(self, 'asynchronous', invocation.is_async_fn(self.fn))
        arguments = invocation.read_arguments(self.fn)
        object.__setattr__(self, 'names', arguments.names)
        object.__setattr__(self, 'extras', tuple(name for name in arguments.explicit if name in EXTRAS))

    def __str__(self) -> str:
        return f"{self.kind} {self.id!r}"


class Execution(NamedTuple):
    """The rules of the operator for running handlers: where sync functions run, and the defaults for errors."""

    executor: Executor
    default_errors: ErrorsMode = ErrorsMode.TEMPORARY
    default_backoff: float = 60
    permanent_errors: tuple[type[BaseException], ...] = (PermanentError,)
    find_mistake: 'Callable[[Handler, BaseException], str | None] | None' = None
    """Finds the line of a mistake in the code, if the error is one: it would fail in the same way again and again."""


handler_var: ContextVar[Handler] = ContextVar('handler_var')
"""The handler that is being run."""

cause_var: ContextVar[Any] = ContextVar('cause_var')
"""Why it is being run: for the toolkit's functions that take the current object when none is given."""


_UNPOSTED = {'k8s_skip': True}


def describe_error(error: BaseException) -> str:
    """Return the type of an error and its text; only the text of those that handlers raise to tell something."""
    text = str(error)
    is_told = isinstance(error, PermanentError | TemporaryError | ExplainedError) or type(error) is Exception
    return text if is_told and text and text != 'None' else name_error(error)


class RunnableCause(Protocol):
    """Why a handler is run, with all that its function can be told."""

    @property
    def logger(self) -> Logger:
        """Where the framework reports what comes of the handler."""

    def kwargs_for(self, handler: Handler, state: 'HandlerState', /) -> dict[str, Any]:
        """Return the arguments that the function of the handler takes, for this run only."""


async def run_handler(
    handler: Handler,
    cause: RunnableCause,
    state: 'HandlerState',
    rules: Execution,
    *,
    after: Callable[[], Awaitable[None]] | None = None,
) -> Outcome:
    """
    Run the handler once, and log what comes of it. Handlers of all kinds are run here, and nowhere else.

    While it runs, the handler and the cause are known to the functions of the toolkit that it calls.

    Args:
        handler: the handler.
        cause: why it is run; it makes the arguments of the function.
        state: how often, and since when it has been tried.
        rules: where sync functions run, and what errors mean by default.
        after: what is done after the function, and counts as a part of it.

    Returns:
        What has come of it, errors of the function included.

    Raises:
        asyncio.CancelledError: if the task is cancelled; nothing else comes through as an exception.
    """
    logger, limits = cause.logger, _Limits(handler, state)
    debugging = logger.isEnabledFor(logging.DEBUG)
    with running(handler, cause):
        try:
            if handler.timeout is not None or handler.retries is not None:
                limits.check_before()
            if debugging:
                logger.debug("%s is invoked.", handler)
            # The arguments are not kept here: what they refer to would live for as long as the function waits.
            if limits.timeout is None or not handler.asynchronous:
                result = await invocation.invoke(
                    handler.fn,
                    cause.kwargs_for(handler, state),
                    executor=rules.executor,
                    asynchronous=handler.asynchronous,
                )
            else:
                result = await _call_in_time(handler, cause.kwargs_for(handler, state), limits, rules.executor)
            if after is not None:
                await after()
        except asyncio.CancelledError as error:
            if _is_task_cancelled():
                logger.warning("%s is cancelled. Will escalate.", handler)
                raise
            return _conclude_arbitrary(handler, error, limits, rules, logger)  # of something that it has awaited
        except (Exception, SystemExit) as error:  # an exit is for the operator to decide, not for a handler
            return _conclude_error(handler, error, limits, rules, logger)
    if debugging or not handler.quiet:
        level = logging.DEBUG if handler.quiet else logging.INFO
        if handler.routine:
            logger.log(level, "%s succeeded.", handler, extra=_UNPOSTED)
        else:
            logger.log(level, "%s succeeded.", handler)
    return Outcome(final=True, result=result)


def _conclude_error(
    handler: Handler,
    error: BaseException,
    limits: '_Limits',
    rules: Execution,
    logger: Logger,
) -> Outcome:
    if isinstance(error, HandlerChildrenRetry):
        logger.debug("%s waits for its sub-handlers.", handler)
        return Outcome(final=False, delay=error.delay, exception=error, uncounted=handler.retries is not None)
    if isinstance(error, TemporaryError):
        return _conclude_temporary(handler, error, limits, logger)
    if isinstance(error, rules.permanent_errors):
        text = describe_error(error)
        is_limit = text.startswith(f"{handler} has ")  # our own error, which names the handler already
        logger.error("%s", text if is_limit else f"{handler} failed permanently: {text}")
        return Outcome(final=True, exception=error)
    return _conclude_arbitrary(handler, error, limits, rules, logger)


def _is_task_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


class _Limits:
    """The limits of the handler's attempts and time, and how much of them is used up."""

    __slots__ = ('attempts', 'handler', 'retries', 'started', 'timeout')

    def __init__(self, handler: Handler, state: 'HandlerState') -> None:
        self.handler, self.retries, self.timeout = handler, handler.retries, handler.timeout
        self.attempts, self.started = state.retries - state.waits, state.started

    def remaining(self) -> float | None:
        return None if self.timeout is None else self.timeout - (utcnow() - self.started).total_seconds()

    def check_before(self) -> None:
        """Raise if there is no attempt left: with limits lowered, or with the time gone by in a downtime."""
        remaining = self.remaining()
        if remaining is not None and remaining <= 0:
            raise HandlerTimeoutError(f"{self.handler} has timed out after {self.timeout:g} seconds.")
        if self.retries is not None and self.attempts >= self.retries:
            raise HandlerRetriesError(f"{self.handler} has exceeded {self.retries} retries.")

    def exceeds_retries(self) -> bool:
        return self.retries is not None and self.attempts + 1 >= self.retries

    def exceeds_timeout(self, delay: float | None) -> bool:
        remaining = self.remaining()
        return remaining is not None and (delay or 0) >= remaining


async def _call_in_time(handler: Handler, kwargs: dict[str, Any], limits: _Limits, executor: Executor) -> Any:
    deadline = asyncio.timeout(limits.remaining())
    try:
        async with deadline:
            return await invocation.invoke(handler.fn, kwargs, executor=executor, asynchronous=True)
    except TimeoutError as error:
        if deadline.expired():
            raise HandlerTimeoutError(f"{handler} has timed out after {limits.timeout:g} seconds.") from error
        raise


def _conclude_temporary(handler: Handler, error: TemporaryError, limits: _Limits, logger: Logger) -> Outcome:
    text = describe_error(error)
    if limits.exceeds_retries():
        message = f"{handler} failed temporarily but will exceed {limits.retries} retries: {text}"
        logger.error("%s", message)
        return Outcome(final=True, exception=HandlerRetriesError(message))
    if limits.exceeds_timeout(error.delay):
        message = f"{handler} failed temporarily but will time out after {limits.timeout} seconds: {text}"
        logger.error("%s", message)
        return Outcome(final=True, exception=HandlerTimeoutError(message))
    logger.error("%s failed temporarily: %s", handler, text)
    return Outcome(final=False, delay=error.delay, exception=error)


def _conclude_arbitrary(
    handler: Handler,
    error: BaseException,
    limits: _Limits,
    rules: Execution,
    logger: Logger,
) -> Outcome:
    errors = handler.errors or rules.default_errors
    text, exc_info = describe_error(error), _begin_in_users_code(error)
    if errors is ErrorsMode.IGNORED:
        logger.error("%s failed with an exception and will ignore it: %s", handler, text, exc_info=exc_info)
        return Outcome(final=True)
    delay = handler.backoff if handler.backoff is not None else rules.default_backoff
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
        logger.error(
            "%s failed with an exception and will try again in %s seconds: %s", handler, delay, text, exc_info=exc_info
        )
        return Outcome(final=False, delay=delay, exception=error)
    logger.error("%s failed with an exception and %s: %s", handler, ending, text, exc_info=exc_info)
    return Outcome(final=True, exception=error)


def _begin_in_users_code(error: BaseException) -> BaseException | ExcInfo | None:
    """Leave out of the traceback how the framework has come to call the function; all of it if that has failed."""
    trace, last = error.__traceback__, None
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        last, trace = trace, trace.tb_next
    if trace is not None:
        return type(error), error, _leave_out_views(trace)
    is_call = last is not None and last.tb_frame.f_code.co_filename == invocation.__file__
    return None if is_call else error


_VIEWS = (
    __file__,
    *(
        os.path.join(_PACKAGE, *names)
        for names in [
            ('_cogs', 'structs', ''),
            ('_cogs', 'configs', ''),
            ('_core', 'engines', 'posting.py'),
            ('_kits', 'webhooks.py'),
            ('__init__.py',),
        ]
    ),
)
"""Where the framework raises errors about what users do with its values: those of mappings, settings, exceptions."""


def _leave_out_views(trace: TracebackType) -> TracebackType:
    """Leave out how mappings and settings of the framework have come to raise it: for users, they are values."""
    entries = [trace]
    while entries[-1].tb_next is not None:
        entries.append(entries[-1].tb_next)
    if not entries[-1].tb_frame.f_code.co_filename.startswith(_VIEWS):
        return trace
    while len(entries) > 1 and entries[-1].tb_frame.f_code.co_filename.startswith(_PACKAGE):
        entries.pop()
    last = None
    for entry in reversed(entries):
        last = TracebackType(last, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return last or trace


class running:
    """
    Make the handler and its cause known to the toolkit's functions called inside of this context.

    It is a class, as generators would cost more than all the rest here, and there is one for each daemon that runs.
    """

    __slots__ = ('_cause', '_cause_token', '_handler', '_handler_token')

    def __init__(self, handler: Handler, cause: Any) -> None:
        self._handler, self._cause = handler, cause

    def __enter__(self) -> None:
        self._handler_token, self._cause_token = handler_var.set(self._handler), cause_var.set(self._cause)

    def __exit__(self, *_: object) -> None:
        try:
            handler_var.reset(self._handler_token)
            cause_var.reset(self._cause_token)
        except ValueError:  # it was abandoned, and is closed in another context
            pass
