"""
Activities: groups of handlers that belong to no object, such as startup, login, and cleanup handlers.

The handlers of an activity are run in rounds until each has succeeded or failed permanently. Their progress is kept
only in memory: a restarted operator runs all of them again. Specified in the documentation's "Do something at startup",
"Do something at shutdown", "Answer liveness probes", "Log in to the cluster".
"""

import asyncio
import contextlib
import contextvars
import datetime
import itertools
import logging
import os
import pathlib
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from kopf._cogs.configs import configuration
from kopf._cogs.helpers.explanations import ExplainedError
from kopf._cogs.structs.credentials import (
    AiohttpSession,
    ConnectionInfo,
    FinalLoginError,
    LoginError,
    PassingLoginError,
)
from kopf._cogs.structs.ids import HandlerId
from kopf._core.actions.execution import (
    Execution,
    Handler,
    HandlerRetriesError,
    HandlerTimeoutError,
    Outcome,
    PermanentError,
    describe_error,
    outlive,
    run_handler,
    utcnow,
)
from kopf._core.actions.handler_states import HandlerState
from kopf._core.intents import mistakes
from kopf._core.intents.causes import Activity, ActivityCause
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.handlers import ActivityHandler

Credentials = ConnectionInfo | AiohttpSession

SLOW_CALL_DELAY = 10.0
"""The time (in seconds) after which a warning is logged if a startup or cleanup handler is still running."""


FINAL_BACKOFF = 1.0
"""The delay until a failed handler of an end is called again, unless it has a ``backoff`` (in seconds)."""

FINAL_LIMIT = 10.0
"""The time limit for retries of handlers of an end that have neither ``retries`` nor ``timeout`` (in seconds)."""

_ENDS = {Activity.CLEANUP: "the operator is ending", Activity.YIELDING: "this replica stops leading"}
"""The activities at an end, which must not be put off for long, with what they are called for."""


class ActivityError(ExplainedError):
    """Raised when an activity has failed: at least one of its handlers has failed permanently."""

    def __init__(self, activity: Activity, outcomes: Mapping[HandlerId, Outcome]) -> None:
        self.activity = activity
        self.outcomes = outcomes
        failures = '; '.join(
            f"{key}: {describe_error(outcome.exception)}"
            for key, outcome in outcomes.items()
            if outcome.exception is not None
        )
        super().__init__(f"The activity {activity.value!r} has failed: {failures}")
        self.exit_code = _get_exit_code(outcomes)


async def run_activity(
    activity: Activity,
    handlers: Sequence[ActivityHandler],
    context: OperatorContext,
) -> dict[HandlerId, Outcome]:
    """
    Run the handlers until all are finished; return their final outcomes.

    All handlers with the same id are run, since functions of different modules often have the same name. The keys
    of their outcomes get numbers: ``fn``, ``fn#2``, and so on.
    """
    cause = ActivityCause(
        activity=activity,
        settings=context.settings,
        memo=context.memo,
        indices=context.indices,
        logger=logging.getLogger(f'kopf.activities.{activity.value}'),
    )
    states = {handler: HandlerState(started=utcnow()) for handler in handlers}
    outcomes: dict[HandlerId, Outcome] = {}
    rules, started = make_rules(context, activity), utcnow()
    variables = contextvars.copy_context()  # for all handlers: later ones see what earlier ones have set
    try:
        while not all(state.finished for state in states.values()):
            # One after another: startup handlers often rely on the results of earlier ones.
            for handler, state in states.items():
                if not state.is_due(utcnow()):
                    continue
                with _report_if_slow(handler, cause):
                    outcome = await _run_apart(handler, cause, state, _adapt(rules, handler, context), variables)
                if activity in _ENDS and _is_too_late(handler, outcome, started):
                    cause.logger.error("%s is not called again, as %s.", handler, _ENDS[activity])
                    outcome = outcome._replace(final=True, delay=None)
                states[handler] = state.with_outcome(outcome, utcnow())
                if outcome.final:
                    outcomes[_make_unique(handler.id, outcomes)] = outcome
                del outcome
            # Sleep even if the delay is zero: handlers that are retried at once must not block the event loop.
            await asyncio.sleep(_get_delay(states.values(), utcnow()))
        return outcomes
    finally:
        del outcomes  # see `Outcome.without_exception`


async def _run_apart(
    handler: ActivityHandler,
    cause: ActivityCause,
    state: HandlerState,
    rules: Execution,
    variables: contextvars.Context,
) -> Outcome:
    """
    Run the handler once, in a task of its own.

    If the function cancels its task, it has failed. In the current task, this could not be told from a cancellation by
    the owner of the activity: the operator would end, or go on without the success of the activity.
    """
    is_cancelled = False

    async def run() -> Outcome:
        own_rules = rules._replace(is_cancelled=lambda: is_cancelled)
        outcome = await run_handler(handler, cause, state, own_rules)
        try:
            await outlive(own_rules)
            return outcome
        finally:
            del outcome  # see `Outcome.without_exception`

    task = asyncio.create_task(run(), name=str(handler), context=variables)
    try:
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError:
                is_cancelled = True
                task.cancel()
        if is_cancelled:
            raise asyncio.CancelledError
        return task.result()
    finally:
        del task  # see `Outcome.without_exception`


def _is_too_late(handler: Handler, outcome: Outcome, started: datetime.datetime) -> bool:
    """Check whether it is too late for another attempt of a handler of an end."""
    if outcome.final or handler.retries is not None or handler.timeout is not None:
        return False
    return (utcnow() - started).total_seconds() + (outcome.delay or 0) > FINAL_LIMIT


_EFFECTS_OF_SLOWNESS = {
    Activity.STARTUP: "Until it ends, no objects are handled.",
    Activity.CLEANUP: "Until it ends, the operator does not end. A second signal, such as Ctrl-C, ends it at once.",
}


@contextlib.contextmanager
def _report_if_slow(handler: ActivityHandler, cause: ActivityCause) -> Iterator[None]:
    """Log a warning if the handler still runs after `SLOW_CALL_DELAY`, and the operator waits for the activity."""
    effect = _EFFECTS_OF_SLOWNESS.get(cause.activity)
    if effect is None:
        yield
        return
    text = f"{handler} ({mistakes.locate(handler.fn)}) still runs after {SLOW_CALL_DELAY:g} seconds. {effect}"
    timer = asyncio.get_running_loop().call_later(SLOW_CALL_DELAY, cause.logger.warning, "%s", text)
    try:
        yield
    finally:
        timer.cancel()


def make_rules(context: OperatorContext, activity: Activity) -> Execution:
    """Return the rules for running the handlers of an activity."""
    is_apart = activity is Activity.AUTHENTICATION or activity in _ENDS
    rules = context.make_rules(executor=context.activity_threads if is_apart else None)
    return rules._replace(
        # Their threads are work of the leader: no other replica may begin before they have ended. All other activities
        # belong to no leadership, and those of its end are awaited.
        running=context.thread_calls if activity is Activity.LEADING else None,
        # A pod is usually killed after 30 seconds, so there would be no second attempt after the usual 60 seconds.
        find_backoff=(lambda: FINAL_BACKOFF) if activity in _ENDS else rules.find_backoff,
        find_mistake=find_mistake if activity is Activity.STARTUP else None,
        permanent_errors=(
            PermanentError,
            LoginError,  # not retried here: `get_credentials` decides whether the whole login is retried
            SystemExit,  # handlers call sys.exit(), e.g. if something is not configured
        ),
    )


def _adapt(rules: Execution, handler: Handler, context: OperatorContext) -> Execution:
    """Return the rules for the handler: functions of the framework, such as default logins, have their own threads."""
    if not (getattr(handler.fn, '__module__', None) or '').startswith('kopf.'):
        return rules
    # An executor of the user's can be full of handlers, which wait for requests, which wait for the login.
    return rules._replace(find_executor=lambda: context.activity_threads)


_MISTAKES = (AttributeError, ImportError, NameError, TypeError)
_PACKAGE = str(pathlib.Path(__file__).parents[2]) + os.sep


def find_mistake(handler: Handler, error: BaseException) -> str | None:
    """
    Return the location of the mistake if the handler has failed because of a mistake in its code; otherwise ``None``.

    A retry of such a handler would fail in the same way. Errors raised inside of libraries, and errors about ``None``,
    do not count as mistakes: they can depend on the response of a server. Handlers with ``retries`` or ``timeout`` are
    always retried, as their authors have asked for these attempts.
    """
    if handler.retries is not None or handler.timeout is not None:
        return None
    # "'NoneType' object has no attribute …" usually means that a server has not returned a value yet, so it is retried.
    if not isinstance(error, _MISTAKES) or 'NoneType' in str(error):
        if not _is_refused_setting(error):
            return None
    own, _, first = mistakes.locate(handler.fn).rpartition(':')
    places = [(own, int(first))] if first.isdecimal() else []
    # An error with any frame of a library counts as an error of the library. Otherwise, the mistake is in the innermost
    # frame, which belongs to the user.
    for frame, line in traceback.walk_tb(error.__traceback__):
        path = frame.f_code.co_filename
        if path == own or not path.startswith((_PACKAGE, *_get_libraries())):
            places.append((path, line))
        elif not path.startswith(_PACKAGE):
            return None
    if not places:
        return None
    path, line = places[-1]
    return f'{os.path.relpath(path) if path.startswith(os.getcwd() + os.sep) else path}:{line}'


def _is_refused_setting(error: BaseException) -> bool:
    """Check whether the settings or their storages have raised the error, because of a wrong value in the handler."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and os.path.dirname(frames[-1].f_code.co_filename) == os.path.dirname(configuration.__file__)


def _get_libraries() -> list[str]:
    import sysconfig  # why not at the top? its import is slow, and mistakes are rare

    return ['<frozen', *(sysconfig.get_path(name) for name in ('stdlib', 'platstdlib', 'purelib', 'platlib'))]


def check_outcomes(activity: Activity, outcomes: Mapping[HandlerId, Outcome]) -> None:
    """
    Check that all handlers have succeeded.

    Raises:
        ActivityError: if some of them have failed.
    """
    if any(outcome.exception is not None for outcome in outcomes.values()):
        raise ActivityError(activity, outcomes)


def get_credentials(outcomes: Mapping[HandlerId, Outcome]) -> dict[HandlerId, Credentials]:
    """
    Return the credentials that the login handlers have returned.

    Raises:
        LoginError: if there are no credentials at all, and some handlers have failed.
        FinalLoginError: if a handler has returned anything but credentials or ``None``.
    """
    found: dict[HandlerId, Credentials] = {}
    for key, outcome in outcomes.items():
        if isinstance(outcome.result, ConnectionInfo | AiohttpSession):
            found[key] = outcome.result
        elif outcome.result is not None:
            raise FinalLoginError(
                f"The login handler {key!r} must return a kopf.ConnectionInfo or None, not {outcome.result!r}."
            )
    failures = [
        f"{key}: {describe_error(outcome.exception)}"
        for key, outcome in outcomes.items()
        if outcome.exception is not None
    ]
    # One working login is enough. Others are expected to fail: for example, if there is no kubeconfig.
    if failures and not found:
        error = _get_error_type(outcomes)(f"All login handlers have failed. {'; '.join(failures)}")
        error.exit_code = _get_exit_code(outcomes)
        raise error
    return found


def _get_error_type(outcomes: Mapping[HandlerId, Outcome]) -> type[LoginError]:
    """Return the class of the error: it depends on whether a new login can succeed."""
    failures = [outcome.exception for outcome in outcomes.values() if outcome.exception is not None]
    if all(
        isinstance(error, PermanentError | SystemExit)
        and not isinstance(error, HandlerRetriesError | HandlerTimeoutError)  # a new login has new attempts
        for error in failures
    ):
        return FinalLoginError
    return PassingLoginError if any(isinstance(error, PassingLoginError) for error in failures) else LoginError


def _get_exit_code(outcomes: Mapping[HandlerId, Outcome]) -> int:
    """Return the exit code: that of ``sys.exit()`` if a handler has called it, otherwise 1."""
    failures = [outcome.exception for outcome in outcomes.values() if outcome.exception is not None]
    codes = [(error.code or 0) if isinstance(error, SystemExit) else 1 for error in failures]
    # Return the highest code, so that a handler that exits with zero does not hide the failure of another one.
    return max((code if isinstance(code, int) else 1 for code in codes), default=1)


def _make_unique(id: HandlerId, taken: Collection[HandlerId]) -> HandlerId:
    candidates = (HandlerId(f'{id}#{number}') for number in itertools.count(2))
    return id if id not in taken else next(each for each in candidates if each not in taken)


def _get_delay(states: Iterable[HandlerState], now: datetime.datetime) -> float:
    """Return the time until the next attempt of a handler is due (in seconds)."""
    delays = [
        0 if state.delayed is None else max(0, (state.delayed - now).total_seconds())
        for state in states
        if not state.finished
    ]
    return min(delays, default=0)
