"""
Leaving an object alone for a while, when the framework or the API can't handle it now: the others are not concerned.

Some refusals of the API are for good, until something changes: then, a change of the object is a reason to try soon,
and what was refused is explained once, with what can be done about it.
Specified in the documentation's "Timeouts and retries of the API".
"""

import contextlib
import re
import time
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
from kopf._cogs.structs.bodies import Body, BodyEssence, RawEvent
from kopf._cogs.structs.patches import Patch
from kopf._core.actions.loggers import LocalObjectLogger, ObjectLogger
from kopf._core.intents.decisions import Decider, is_edited
from kopf._core.intents.storage_errors import StorageError
from kopf._core.reactor.object_records import ObjectRecord, is_deleted, make_logger

RECOVERY_PAUSE = 1.0
"""How soon after a failure it is tried again because of a change, however often the object changes (in seconds)."""

_MAX_QUOTE = 180
"""How much of the API's words is repeated in an explanation (in characters), so that all of it fits into one line."""

_PASSING = (APIUnauthorizedError, APINotFoundError, APIConflictError, APITooManyRequestsError)


class Throttle:
    """What is known of the failures of an object, from the first one to the next success."""

    __slots__ = ('_delays', '_failed_at', '_known', 'essence', 'hastened', 'is_users_fault', 'refused')

    def __init__(self, delays: Iterable[float]) -> None:
        self._delays = Delays(delays)
        self._known = ''
        self._failed_at = 0.0
        self.hastened = False
        """It is about to be tried again because of a change."""
        self.refused: Patch | None = None
        """What the API has refused for good, if that is the failure."""
        self.essence: BodyEssence | None = None
        """What the object was then."""
        self.is_users_fault = False
        """Whether that is of what the handlers have wanted, not of what the framework stores."""

    def fail(self, error: Exception) -> tuple[float, bool]:
        """Take one more failure; give the delay until the next attempt, and tell if the error is a new one."""
        self._failed_at, self.hastened, self.refused = time.monotonic(), False, None
        is_known, self._known = self._known == repr(error), repr(error)
        return self._delays.next(), not is_known

    def get_pause(self) -> float:
        """For how long (in seconds) not to try again even if the object changes."""
        return max(0.0, self._failed_at + RECOVERY_PAUSE - time.monotonic())


class Throttling:
    """Throttles the objects of one resource."""

    def __init__(self, settings: OperatorSettings, decider: Decider) -> None:
        self._settings = settings
        self._decider = decider

    def fail(self, record: ObjectRecord, error: Exception) -> float:
        """Know that the framework, or the API, can't handle the object now; give the delay to leave it alone."""
        throttle = record.throttle or Throttle(self._settings.queueing.error_delays)
        delay, is_new = throttle.fail(error)
        log, refused = self._make_logger(record), is_refusal(error)
        if refused:
            self._note_refusal(record, throttle, error)
            if is_new:  # before the raw error: what is read first should say what to do
                posted = self._make_logger(record, ObjectLogger)
                posted.error("%s", explain_refusal(error, is_users_fault=throttle.is_users_fault))
        log.error(
            "Throttling for %s seconds due to an unexpected error: %r",
            delay,
            error,
            exc_info=error if is_new and not refused else None,
        )
        record.hold_off(throttle)
        return delay

    def succeed(self, record: ObjectRecord) -> None:
        """Know that the object could be handled after all."""
        if record.throttle is not None:
            record.end_throttling()
            self._make_logger(record).info("Throttling is over. Switching back to normal operations.")

    def hasten(self, record: ObjectRecord, event: RawEvent, *, sift: Callable[[], bool]) -> float | None:
        """
        Let the object be tried again soon if it has changed so that it can be handled now, though it could not before.

        What the API has refused of the handlers' wishes is given up then, as the handlers will have other ones. The
        function ``sift`` compares the event with what our own patches have made; it returns whether it is stale.

        Returns:
            The delay until the next attempt (in seconds); ``None`` to wait as long as it was planned.
        """
        throttle = record.throttle
        if throttle is None or throttle.hastened or not self._find_change(record, throttle, event, sift):
            return None
        throttle.hastened = True
        if throttle.is_users_fault and record.pending_patch is not None:
            self._make_logger(record, ObjectLogger).info(
                "The object has changed: what was refused is given up, and its handlers are run again: %r",
                record.pending_patch,
            )
            record.give_up()
        return throttle.get_pause()

    def _find_change(
        self,
        record: ObjectRecord,
        throttle: Throttle,
        event: RawEvent,
        sift: Callable[[], bool],
    ) -> bool:
        """Return whether the event is a reason to try again; it is not if it is stale, which is noticed here."""
        if is_deleted(event):
            known = record.body is not None and is_deleted({'type': None, 'object': record.body})
            return event['type'] == 'DELETED' or not known
        if throttle.refused is None or throttle.essence is None or sift():
            return False
        try:
            essence = self._decider.essences.of(Body(event['object']))
        except StorageError:
            return False  # it is tried again anyway
        return is_edited(throttle.essence, essence, throttle.refused)

    def _note_refusal(self, record: ObjectRecord, throttle: Throttle, error: Exception) -> None:
        wanted = record.pending_patch if record.pending_patch is not None else Patch()
        throttle.refused, throttle.is_users_fault = wanted, is_fault_of(wanted, error)
        if record.body is not None:
            with contextlib.suppress(StorageError):
                throttle.essence = self._decider.essences.of(Body(record.body))

    def _make_logger(self, record: ObjectRecord, cls: type[ObjectLogger] = LocalObjectLogger) -> ObjectLogger:
        return make_logger(record, self._decider.table.resource, self._settings, cls)


def is_refusal(error: Exception) -> bool:
    """Tell if the same request would be refused again and again."""
    return isinstance(error, APIClientError) and not isinstance(error, _PASSING)


def is_fault_of(wanted: Patch, error: Exception) -> bool:
    """Tell if what the handlers have wanted is refused, or at least can be; otherwise, it is what goes with it."""
    assert isinstance(error, APIClientError)
    if not wanted:
        return False
    if isinstance(error, APIForbiddenError):
        return 'admission' in (error.message or '') or 'denied' in (error.message or '')
    fields = [str(cause.get('field') or '') for cause in _iter_causes(error)]
    is_about_metadata = bool(fields) and all(
        field.startswith(('metadata.annotations', 'metadata.finalizers')) for field in fields
    )
    return not is_about_metadata or bool(wanted.get('metadata')) or bool(wanted.fns)


def explain_refusal(error: Exception, *, is_users_fault: bool) -> str:
    """Say what is refused, and what can be done about it."""
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
    elif re.search(r'ObjectMeta\.(labels|annotations) of type string', what):
        remedy = "Values of labels and annotations must be strings: use str() or json.dumps()"
    elif is_users_fault:
        remedy = "Fix what the handlers put there, or the schema or the policies of the resource"
    else:
        remedy = "Fix the schema or the policies of the resource so that its annotations and finalizers can be changed"
    if len(what) > _MAX_QUOTE:  # it can be the whole object; what is wrong with it is in the end
        what = f"{what[: _MAX_QUOTE // 2]}...{what[-_MAX_QUOTE // 2 :]}"
    return (
        f"The API refuses to patch the object: {what}. {remedy}. It will be tried again less and less often, "
        f"and as soon as the object changes; other objects are not affected."
    )


def _iter_causes(error: APIClientError) -> Iterable[Mapping[str, Any]]:
    causes = error.details.get('causes')
    return [cause for cause in causes if isinstance(cause, Mapping)] if isinstance(causes, list) else []
