"""
What an operator does as a whole: starting up, logging in, probing, cleaning up.

The handlers of an activity are run in rounds until each has succeeded or failed for good. Their progress is only
kept in memory: an operator that is restarted starts anew. Specified in the documentation's "Startup", "Shutdown",
"Probes", "Authentication".
"""

import asyncio
import contextlib
import datetime
import itertools
import logging
import os
import pathlib
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from kopf._cogs.configs import configuration
from kopf._cogs.configs.configuration import OperatorSettings
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
    run_handler,
    utcnow,
)
from kopf._core.actions.handler_states import HandlerState
from kopf._core.intents import mistakes
from kopf._core.intents.causes import Activity, ActivityCause
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.handlers import ActivityHandler

Credentials = ConnectionInfo | AiohttpSession

PATIENCE = 10.0
"""How long (in seconds) one call of a startup or cleanup handler can take before a warning says what waits for it."""


class ActivityError(ExplainedError):
    """An activity has failed: at least one of its handlers has failed for good."""

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

    Handlers of the same id are all run: functions of different modules often have the same name.
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
    try:
        while not all(state.finished for state in states.values()):
            for handler, state in states.items():
                if not state.is_due(utcnow()):
                    continue
                with _reported_if_slow(handler, cause):
                    outcome = await run_handler(handler, cause, state, make_rules(context.settings, activity))
                states[handler] = state.with_outcome(outcome, utcnow())
                if outcome.final:
                    outcomes[_make_unique(handler.id, outcomes)] = outcome
                del outcome
            await asyncio.sleep(_get_delay(states.values(), utcnow()))
        return outcomes
    finally:
        del outcomes  # see `Outcome.without_exception`


_EFFECTS_OF_SLOWNESS = {
    Activity.STARTUP: "Until it ends, no objects are handled.",
    Activity.CLEANUP: "Until it ends, the operator does not end. A second signal, such as Ctrl-C, ends it at once.",
}


@contextlib.contextmanager
def _reported_if_slow(handler: ActivityHandler, cause: ActivityCause) -> Iterator[None]:
    effect = _EFFECTS_OF_SLOWNESS.get(cause.activity)
    if effect is None:
        yield
        return
    text = f"{handler} ({mistakes.locate(handler.fn)}) still runs after {PATIENCE:g} seconds. {effect}"
    timer = asyncio.get_running_loop().call_later(PATIENCE, cause.logger.warning, "%s", text)
    try:
        yield
    finally:
        timer.cancel()


def make_rules(settings: OperatorSettings, activity: Activity) -> Execution:
    return Execution(
        find_mistake=find_mistake if activity is Activity.STARTUP else None,
        executor=settings.execution.executor,
        default_backoff=settings.execution.default_backoff,
        permanent_errors=(
            PermanentError,
            LoginError,  # what is to be done about it, is decided by those who need the credentials
            SystemExit,
        ),
    )  # of those who call sys.exit(), e.g. if something is not configured


_MISTAKES = (AttributeError, ImportError, NameError, TypeError)
_PACKAGE = str(pathlib.Path(__file__).parents[2]) + os.sep


def find_mistake(handler: Handler, error: BaseException) -> str | None:
    """
    Return the line of the handler that has failed because of a mistake in the code; ``None`` for all other errors.

    Nothing becomes better by waiting then. It is not so for errors inside of libraries, nor for `None` where something
    was expected: these can depend on what a server has answered. Whoever limits the attempts, wants them.
    """
    if handler.retries is not None or handler.timeout is not None:
        return None
    if not isinstance(error, _MISTAKES) or 'NoneType' in str(error):
        if not _is_refused_setting(error):
            return None
    own, _, first = mistakes.locate(handler.fn).rpartition(':')
    places = [(own, int(first))] if first.isdecimal() else []
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
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1].f_code.co_filename == configuration.__file__


def _get_libraries() -> list[str]:
    import sysconfig  # it takes a while, and mistakes are rare

    return ['<frozen', *(sysconfig.get_path(name) for name in ('stdlib', 'platstdlib', 'purelib', 'platlib'))]


def check_outcomes(activity: Activity, outcomes: Mapping[HandlerId, Outcome]) -> None:
    """Raise `ActivityError` if a handler has failed."""
    if any(outcome.exception is not None for outcome in outcomes.values()):
        raise ActivityError(activity, outcomes)


def get_credentials(outcomes: Mapping[HandlerId, Outcome]) -> dict[HandlerId, Credentials]:
    """
    Collect what the login handlers have got.

    :raises LoginError: if there are no credentials at all, and some handlers have failed.
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
    if failures and not found:
        error = _get_error_type(outcomes)(f"All login handlers have failed. {'; '.join(failures)}")
        error.exit_code = _get_exit_code(outcomes)
        raise error
    return found


def _get_error_type(outcomes: Mapping[HandlerId, Outcome]) -> type[LoginError]:
    """Return whether the login is to be tried again: as soon as one of the handlers can have another result then."""
    failures = [outcome.exception for outcome in outcomes.values() if outcome.exception is not None]
    if all(
        isinstance(error, PermanentError | SystemExit)
        and not isinstance(error, HandlerRetriesError | HandlerTimeoutError)  # these are limits of one login
        for error in failures
    ):
        return FinalLoginError
    return PassingLoginError if any(isinstance(error, PassingLoginError) for error in failures) else LoginError


def _get_exit_code(outcomes: Mapping[HandlerId, Outcome]) -> int:
    """Give what a handler has called ``sys.exit()`` with, if any has; for all other failures, it is 1."""
    failures = [outcome.exception for outcome in outcomes.values() if outcome.exception is not None]
    codes = [(error.code or 0) if isinstance(error, SystemExit) else 1 for error in failures]
    return max((code if isinstance(code, int) else 1 for code in codes), default=1)


def _make_unique(id: HandlerId, taken: Collection[HandlerId]) -> HandlerId:
    candidates = (HandlerId(f'{id}#{number}') for number in itertools.count(2))
    return id if id not in taken else next(each for each in candidates if each not in taken)


def _get_delay(states: Iterable[HandlerState], now: datetime.datetime) -> float:
    delays = [
        0 if state.delayed is None else max(0, (state.delayed - now).total_seconds())
        for state in states
        if not state.finished
    ]
    return min(delays, default=0)
