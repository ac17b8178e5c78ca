"""
Throttling: delays for one object after unexpected errors of the framework or of the API.

The API server refuses some requests until the object or the schema changes, e.g. if a value violates the schema. Such
a refusal is explained once, with a remedy. If the object changes then, it is processed soon, before the delay is over.
Specified in the documentation's "Change time-outs and retries of API requests".
"""

import contextlib
import re
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kopf._cogs.aiokits.delays import Delays
from kopf._cogs.clients.errors import (
    APIClientError,
    APIConflictError,
    APIForbiddenError,
    APINotFoundError,
    APIPayloadTooLargeError,
    APITooManyRequestsError,
    APIUnauthorizedError,
)
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.helpers.explanations import name_error, show_error
from kopf._cogs.structs.bodies import Body, BodyEssence, RawEvent
from kopf._cogs.structs.patches import Patch
from kopf._core.actions.execution import begin_in_users_code, utcnow
from kopf._core.actions.loggers import LocalObjectLogger, ObjectLogger
from kopf._core.intents.causes import Reason
from kopf._core.intents.decisions import Decider
from kopf._core.intents.edits import is_edited
from kopf._core.intents.filters import locate_error
from kopf._core.intents.storage_errors import StorageError
from kopf._core.reactor.object_records import ObjectRecord, is_deleted, make_logger

RECOVERY_PAUSE = 1.0
"""The time after a failure in which changes of the object start no other attempt (in seconds)."""

_MAX_QUOTE = 180
"""The maximum length of the quoted message of the API (in characters), so that the explanation fits into one line."""

_WEBHOOK_DENIAL = re.compile(r'admission webhook "([^"]+)" denied the request')

_APPLYING = Patch.applied_to.__code__
"""The code that calls the functions in ``patch.fns``, so that their errors are recognized."""

_PASSING = (APIUnauthorizedError, APINotFoundError, APIConflictError, APITooManyRequestsError)


class FinalizerIgnoredError(Exception):
    """Raised if the API has accepted a patch of the finalizer without changing the finalizers of the object."""

    def __init__(self, finalizer: str, *, added: bool) -> None:
        action = 'added to' if added else 'removed from'
        super().__init__(
            f"The finalizer {finalizer!r} cannot be {action} the object: the API accepts the patch, and ignores it. "
            f"Is there a webhook or a policy that changes the finalizers of this kind?"
        )


class RestlessError(Exception):
    """Raised if an object requires one step after another, without any change by other clients."""

    def __init__(self, steps: int) -> None:
        super().__init__(f"The object does not come to rest in {steps} steps.")


class Throttle:
    """The consecutive failures of one object, until the next success."""

    __slots__ = (
        '_delays',
        '_failed_at',
        '_known',
        'essence',
        'hastened',
        'is_restless',
        'is_users_fault',
        'refusals_of_deletion',
        'refused',
    )

    def __init__(self, delays: Iterable[float]) -> None:
        self._delays = Delays(delays)
        self._known = ''
        self._failed_at = 0.0
        self.hastened = False
        """Whether an attempt is planned because the object has changed."""
        self.refused: Patch | None = None
        """The changes requested by handlers, if the last patch was refused; see `is_refusal` and `is_in_patch`."""
        self.essence: BodyEssence | None = None
        """The essence of the object when the patch was refused."""
        self.refusals_of_deletion = 0
        """How many patches were refused since the handling of the deletion has begun."""
        self.is_restless = False
        """Whether the object does not come to rest, so that the success of one step does not end the failures."""
        self.is_users_fault = False
        """Whether changes requested by handlers were refused or have failed, not the data of the framework."""

    def fail(self, error: Exception) -> tuple[float, bool]:
        """Count a failure; return the delay until the next attempt (in seconds), and whether the error is new."""
        self._failed_at, self.hastened, self.refused = time.monotonic(), False, None
        self.is_restless = isinstance(error, RestlessError)
        # Why not keep the error? Its traceback would keep the frames of the step, with the object, until the next
        # success.
        text = show_error(error)
        is_known, self._known = self._known == text, text
        return self._delays.next(), not is_known

    @property
    def last_error(self) -> str:
        """The text of the last failure."""
        return self._known

    def get_pause(self) -> float:
        """Return the time (in seconds) until a change of the object can start another attempt."""
        return max(0.0, self._failed_at + RECOVERY_PAUSE - time.monotonic())


class Throttling:
    """Throttles the objects of one resource."""

    def __init__(self, settings: OperatorSettings, decider: Decider) -> None:
        self._settings = settings
        self._decider = decider

    def fail(self, record: ObjectRecord, error: Exception) -> float:
        """Called when a step fails with an unexpected error; return the delay until the next attempt (in seconds)."""
        throttle = record.throttle or Throttle(self._settings.queueing.error_delays)
        delay, is_new = throttle.fail(error)
        log, refused, in_patch = self._make_logger(record), is_refusal(error), is_in_patch(error)
        # Edits hasten the next attempt: what blocks the patch can depend on the object.
        if refused or in_patch or isinstance(error, FinalizerIgnoredError):
            self._note_refusal(record, throttle, error)
        if refused:
            if is_new:  # log it before the raw error, so that users read the remedy first
                posted = self._make_logger(record, ObjectLogger)
                log_refusal(posted, error, is_users_fault=throttle.is_users_fault, settings=self._settings)
        elif is_new and in_patch:
            log.error(
                "A function in patch.fns has failed (%s): %s. The patch is not applied. It is tried again less and "
                "less often, and as soon as the object changes.",
                locate_error(Patch.applied_to, error),
                name_error(error),
                extra={'message_code': 'function-failed'},
            )
        log.error(
            "Throttling for %s seconds due to an unexpected error: %s",
            delay,
            throttle.last_error,
            exc_info=begin_in_users_code(error) if is_new and not refused else None,
        )
        record.hold_off(throttle)
        return delay

    def succeed(self, record: ObjectRecord) -> None:
        """Called when a step succeeds: end the throttling of the object, if it is throttled."""
        if record.throttle is not None and not (record.throttle.is_restless and record.has_work):
            record.end_throttling()
            self._make_logger(record).info("Throttling is over. Switching back to normal operations.")

    def hasten(self, record: ObjectRecord, event: RawEvent, *, check_stale: Callable[[], bool]) -> float | None:
        """
        Return the delay of an earlier attempt, if the event has a change that can end the failures.

        If so, the refused changes are dropped, because their handlers run again for the new state.

        Args:
            record: the record of the object.
            event: the new event.
            check_stale: checks whether the event is stale; see `echoes`. Called only if needed, as it has side effects.

        Returns:
            The delay until the next attempt (in seconds); ``None`` to keep the planned one.
        """
        throttle = record.throttle
        if throttle is None or throttle.hastened or not self._find_change(record, throttle, event, check_stale):
            return None
        throttle.hastened = True
        if throttle.is_users_fault and record.pending_patch is not None:
            self._make_logger(record, ObjectLogger).info(
                "The object has changed: the refused patch is dropped, and its handlers are run again: %r",
                record.pending_patch,
            )
            record.give_up(utcnow())
        return throttle.get_pause()

    def _find_change(
        self,
        record: ObjectRecord,
        throttle: Throttle,
        event: RawEvent,
        check_stale: Callable[[], bool],
    ) -> bool:
        """Return whether the event is a reason for another attempt; a stale event is no reason."""
        # A deletion is a reason for one attempt only: otherwise, each later event would start another attempt.
        if is_deleted(event):
            known = record.body is not None and is_deleted({'type': None, 'object': record.body})
            return event['type'] == 'DELETED' or not known
        # After other errors, an edit cannot help: an API server that is down would get a request for each edit.
        if throttle.refused is None or throttle.essence is None or check_stale():
            return False
        try:
            essence = self._decider.essences.of(Body(event['object']))
        except StorageError:
            return False  # the planned attempt will handle it
        return is_edited(throttle.essence, essence, throttle.refused)

    def _note_refusal(self, record: ObjectRecord, throttle: Throttle, error: Exception) -> None:
        wanted = record.pending_patch if record.pending_patch is not None else Patch()
        is_users_fault = can_be_users_fault(wanted, error) if isinstance(error, APIClientError) else bool(wanted.fns)
        throttle.refused, throttle.is_users_fault = wanted, is_users_fault
        if record.cycle is not None and record.cycle.state.purpose == Reason.DELETE:
            throttle.refusals_of_deletion += 1
        if record.body is not None:
            with contextlib.suppress(StorageError):
                throttle.essence = self._decider.essences.of(Body(record.body))

    def _make_logger(self, record: ObjectRecord, cls: type[ObjectLogger] = LocalObjectLogger) -> ObjectLogger:
        return make_logger(record, self._decider.table.resource, self._settings, cls)


def is_refusal(error: Exception) -> bool:
    """Check whether the API server would refuse the same request again."""
    return isinstance(error, APIClientError) and not isinstance(error, _PASSING)


def is_in_patch(error: Exception) -> bool:
    """Check whether a function in ``patch.fns`` has failed: it would most likely fail again for the same state."""
    return any(frame.f_code is _APPLYING for frame, _ in traceback.walk_tb(error.__traceback__))


def can_be_users_fault(wanted: Patch, error: Exception) -> bool:
    """Check whether the error can be about the changes requested by handlers, not only about the framework's data."""
    assert isinstance(error, APIClientError)
    if not wanted:
        return False
    if isinstance(error, APIForbiddenError):
        return error.is_by_admission
    fields = [str(cause.get('field') or '') for cause in _iter_causes(error)]
    # If the error names no fields, the changes of the handlers can be the cause, so these handlers run again for the
    # new state.
    is_about_metadata = bool(fields) and all(
        field.startswith(('metadata.annotations', 'metadata.finalizers')) for field in fields
    )
    return not is_about_metadata or bool(wanted.get('metadata')) or bool(wanted.fns)


def log_refusal(logger: ObjectLogger, error: Exception, *, is_users_fault: bool, settings: OperatorSettings) -> None:
    """Log why a patch of the object is refused, with a remedy."""
    if is_by_own_webhook(error, settings.admission.managed):
        logger.error(
            "A webhook of this operator refuses the operator's own patch of the object: %s. Let its handler pass "
            "objects if what it checks has not changed (compare old and new). If another handler has put a wrong value "
            "there, fix that. It will be tried again less and less often, and as soon as the object changes; other "
            "objects are not affected.",
            _shorten(str(error)),
        )
    else:
        text = explain_refusal(error, is_users_fault=is_users_fault)
        logger.error("%s", text, extra={'message_code': 'patch-refused'})


def is_by_own_webhook(error: Exception, managed: str | None) -> bool:
    """
    Check whether the request was denied by a webhook in the configurations that this operator manages.

    Args:
        error: the error of the request.
        managed: the name of the configurations, which ends the name of each of their webhooks.
    """
    if not managed or not isinstance(error, APIClientError):
        return False
    match = _WEBHOOK_DENIAL.search(error.message or '')
    return match is not None and match[1].endswith(f'.{managed}')


def explain_refusal(error: Exception, *, is_users_fault: bool) -> str:
    """Return a message that explains the refusal, with a remedy."""
    assert isinstance(error, APIClientError)
    causes = list(_iter_causes(error))
    what = (
        '; '.join(
            dict.fromkeys(
                f"{cause.get('field') or 'the object'}: {cause.get('message') or cause.get('reason')}"
                for cause in causes
            )
        )
        or error.message
        or ''
    )
    if isinstance(error, APIForbiddenError) and not is_users_fault:
        remedy = "Grant the verb patch for the resource and for its status to the operator's account"
    elif isinstance(error, APIPayloadTooLargeError):
        remedy = "Store less in the object: results of handlers, status, annotations"
    elif any(
        'TooLong' in str(cause.get('reason')) and cause.get('field') == 'metadata.annotations' for cause in causes
    ):
        remedy = (
            "Remove some of its annotations, or store the state of handling elsewhere: "
            "settings.persistence.progress_storage, settings.persistence.diffbase_storage"
        )
    # Why compare the text? The API server cannot decode such objects, and returns neither a field nor a reason.
    elif re.search(r'ObjectMeta\.(labels|annotations) of type string', what):
        remedy = "Values of labels and annotations must be strings: use str() or json.dumps()"
    elif is_users_fault:
        remedy = "Fix what the handlers put there, or the schema or the policies of the resource"
    else:
        remedy = "Fix the schema or the policies of the resource so that its annotations and finalizers can be changed"
    return (
        f"The API refuses to patch the object: {_shorten(what)}. {remedy}. It will be tried again less and less often, "
        f"and as soon as the object changes; other objects are not affected."
    )


def _shorten(text: str) -> str:
    """Return the text; a long one without its middle: it can contain the whole object, and the reason is at its end."""
    return text if len(text) <= _MAX_QUOTE else f"{text[: _MAX_QUOTE // 2]}...{text[-_MAX_QUOTE // 2 :]}"


def _iter_causes(error: APIClientError) -> Iterable[Mapping[str, Any]]:
    causes = error.details.get('causes')
    return [cause for cause in causes if isinstance(cause, Mapping)] if isinstance(causes, list) else []
