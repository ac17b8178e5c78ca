"""
The conditions that the framework sets for level-triggered handlers with ``conditions=True``, as kstatus expects them.

``Ready`` always exists. ``Reconciling`` and ``Stalled`` exist only while they are true. So an object at rest has only
``Ready``, and another run with the same result changes nothing. All functions are pure.
"""

import enum
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from kopf._cogs.structs.conditions import Condition, parse_entry
from kopf._cogs.structs.references import Resource
from kopf._core.actions.execution import (
    ErrorsMode,
    Handler,
    HandlerRetriesError,
    NotReadyError,
    Outcome,
    PermanentError,
    RunTimeoutError,
)

READY: Final = 'Ready'
RECONCILING: Final = 'Reconciling'
STALLED: Final = 'Stalled'

MAX_TEXT: Final = 1024
"""The longest text of an error in a condition (in characters): it is sent to all watches of the object."""


class State(enum.Enum):
    """The state of an object for one handler, after its last run."""

    READY = enum.auto()
    RETRYING = enum.auto()
    STALLED = enum.auto()


class Verdict(NamedTuple):
    """The result of the last run of one handler for an object."""

    state: State
    generation: int | None
    """The generation that the run has seen; ``None`` if changes of the status increment it, too."""
    reason: str = ''
    message: str = ''
    is_explicit: bool = False
    """Whether the handler has set or removed ``Ready`` itself."""
    ready: Condition | None = None
    """What it has set it to."""


def is_own_kind(resource: Resource) -> bool:
    """Check whether the kind can belong to the operator: built-in kinds belong to Kubernetes."""
    return '.' in resource.group and not resource.group.endswith('.k8s.io')


def begin(entries: Sequence[Any], generation: int | None) -> dict[str, Condition | None]:
    """
    Return the conditions to write before a run; none if ``Ready`` has this generation already.

    So a retry, or a run that an interval or another object has triggered, writes nothing when it begins.
    """
    ready = _find(entries, READY)
    if ready is not None and (generation is None or ready.observed_generation == generation):
        return {}
    return {
        # Some clients do not compare the generations. Without this write, they would take the ``Ready`` of the former
        # generation for that of the new one.
        READY: Condition(None, 'Progressing'),
        RECONCILING: Condition(True, 'Progressing'),
        STALLED: None,
    }


def judge(handler: Handler, outcome: Outcome, generation: int | None, changed: Mapping[str, Any]) -> Verdict:
    """
    Return the verdict on a run.

    Args:
        handler: the handler.
        outcome: the outcome of the run.
        generation: the generation that the run has seen.
        changed: the conditions that the handler has set or removed itself.
    """
    error = outcome.exception
    if error is None and outcome.final:
        return Verdict(State.READY, generation, is_explicit=READY in changed, ready=changed.get(READY))
    if isinstance(error, NotReadyError):
        return Verdict(State.RETRYING, generation, 'Waiting', str(error))
    message = '' if error is None else describe(error)
    if not outcome.final:
        reason = 'TimedOut' if isinstance(error, RunTimeoutError) else 'Retrying'
        return Verdict(State.RETRYING, generation, reason, message)
    is_limit = isinstance(error, HandlerRetriesError) or (
        handler.retries is not None
        and handler.errors is not ErrorsMode.PERMANENT
        and not isinstance(error, PermanentError)
    )
    return Verdict(State.STALLED, generation, 'RetriesExhausted' if is_limit else 'Failed', message)


def describe(error: BaseException) -> str:
    """Return the class and the text of the error for users; replace characters that cannot be stored."""
    text = str(error)
    whole = f"{type(error).__name__}: {text}" if text and text != 'None' else type(error).__name__
    whole = whole.encode(errors='replace').decode()
    return whole if len(whole) <= MAX_TEXT else f"{whole[: MAX_TEXT - 1]}…"


def derive_conditions(
    verdicts: Mapping[str, Verdict | None],
    generation: int | None,
    changed: Mapping[str, Condition | None],
) -> dict[str, Condition | None]:
    """
    Return the conditions to write after a run, except for those that the handler has set itself.

    Args:
        verdicts: the verdicts of all handlers that keep the conditions of the object, by their ids; ``None`` for those
            that have not been run yet.
        generation: the generation that the run has seen.
        changed: the conditions that the handler has set or removed itself.
    """
    known = {id: each for id, each in verdicts.items() if each is not None and each.generation == generation}
    bad = {id: each for id, each in known.items() if each.state is not State.READY}
    stalled = {id: each for id, each in bad.items() if each.state is State.STALLED}
    if bad:
        wrong = _explain(stalled or bad, with_ids=len(verdicts) > 1)
        changes = {
            READY: Condition(False, wrong.reason, wrong.message),
            RECONCILING: None if stalled else wrong,
            STALLED: wrong if stalled else None,
        }
        own = changed.get(READY)
        # A failed handler may explain why the object is not ready, but it must not claim that the object is ready.
        kept = {type_ for type_ in changed if type_ != READY or own is None or not own.status}
    elif len(known) < len(verdicts):
        return {}  # keep the conditions until the other handlers have run, too
    else:
        changes = {READY: Condition(True, 'Succeeded'), RECONCILING: None, STALLED: None}
        kept = {*changed}
        explicit = [each.ready for each in known.values() if each.is_explicit]
        ready = min(filter(None, explicit), key=lambda each: each.status is True, default=None)
        if ready is not None:
            changes[READY] = ready  # again, as the failure of another handler can have replaced it meanwhile
        elif explicit:
            kept.add(READY)
    return {type_: change for type_, change in changes.items() if type_ not in kept}


def _explain(verdicts: Mapping[str, Verdict], *, with_ids: bool) -> Condition:
    texts = [f"{id}: {each.message}" if with_ids else each.message for id, each in verdicts.items()]
    return Condition(True, next(iter(verdicts.values())).reason, '; '.join(texts)[:MAX_TEXT])


def _find(entries: Sequence[Any], type_: str) -> Condition | None:
    found = (each for each in entries if isinstance(each, Mapping) and each.get('type') == type_)
    entry = next(found, None)
    return None if entry is None else parse_entry(entry)
