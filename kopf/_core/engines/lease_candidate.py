"""
The candidacy of one process for a Lease: it acquires the Lease when no process holds it, and keeps renewing it.

All times are from the process's own monotonic clock, so the clocks of other machines do not matter. Another holder
counts as dead when its record has not changed for as long as the duration in the record says. The process's own term is
counted from before the request was sent, so it always ends before another process can consider this one dead. The work
stops after ``renew_deadline`` already; the rest of the duration is the time for stopping it. An expired term is never
continued: even if the API server still accepts a renewal, the work must stop first, and then the Lease is acquired
again.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from kopf._cogs.clients import errors
from kopf._cogs.helpers.clocks import read_time, read_wall_clock
from kopf._cogs.helpers.explanations import ExplainedError
from kopf._cogs.structs.bodies import is_older_version
from kopf._core.engines.leases import MANAGED_BY, LeaseRecord, LeaseStore, format_time

logger = logging.getLogger(__name__)

SILENCE = 2.5
"""
The number of periods without an event after which a standby reads the Lease: a watch can fail without an error.
"""

RELEASE_PAUSE = 0.2
"""The pause between attempts to release the Lease (in seconds)."""

RELEASE_ATTEMPTS = 3
"""
The number of attempts to release the Lease. The first one conflicts if the response to the last write was lost, and
can take too long if the API server is busy: without a release, the other replicas would wait for the whole duration.
"""


class LeaseSettings(Protocol):
    """The times of a Lease, and where it is: ``settings.leadership`` or ``settings.sharding``."""

    name: str | None
    namespace: str | None
    duration: float
    renew_deadline: float
    retry_period: float


class LeadershipError(ExplainedError):
    """Raised when the operator can never be elected, so that it exits: it must not work without the Lease."""


class Term(NamedTuple):
    """The time for which the Lease is held, by `read_time`; each renewal begins a new one."""

    deadline: float
    """When the work must stop, because the Lease was not renewed in time."""
    expiry: float
    """When another process can acquire the Lease."""


class LeaseCandidate:
    """
    One process that wants to hold a Lease.

    Args:
        store: the Lease.
        settings: the times.
        identity: the identity of this process. No other process may ever have the same one.
        changed: called when the candidate begins or ceases to hold the Lease, or sees that another process holds it.
        recovered: called when a request has succeeded after failures.
    """

    group = 'leadership'
    """The name of the group of settings, for messages."""

    consequence = "so it cannot be elected"
    """What follows if the Lease cannot be used, for messages."""

    beginning, loss = "Elected: this replica", "No longer the leader"
    """The first words of the messages about the beginning and the loss of a term."""

    def __init__(
        self,
        store: LeaseStore,
        settings: LeaseSettings,
        *,
        identity: str,
        changed: Callable[[], None],
        recovered: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._identity = identity
        self._changed = changed
        self._recovered = recovered
        self.term: Term | None = None
        """The current term; ``None`` if this process does not hold the Lease."""
        self.known = False
        """Whether the holder of the Lease is known."""
        self.last_term: Term | None = None
        """The current term, or the last one while its work is being stopped. Other threads read it, too."""
        self._watched = False  # whether the states of the Lease come by a watch; otherwise, they are read periodically
        self._body: Mapping[str, Any] | None = None  # the last known state; None if the Lease does not exist
        self._record = LeaseRecord(None)  # the record in the last state in which the Lease existed
        self._changed_at = 0.0  # when that record was first seen
        self._seen_at = -math.inf  # when any state was received
        self._ready = True  # whether the Lease may be acquired; not while the work of a former term is ending
        self._next_attempt = -math.inf
        self._failure: str | None = None
        self._permitted: set[str] = set()  # the verbs that the API server has permitted at least once
        self._wakeup = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def holder(self) -> str | None:
        """The identity of the holder, according to the last known state."""
        return self._record.holder if self._body is not None else None

    @property
    def is_overdue(self) -> bool:
        """
        True if the deadline has passed, even if no timer has noticed that yet, e.g. after a suspension.

        It can be read from any thread: meanwhile, the event loop can end the term.
        """
        term = self.term
        return term is not None and read_time() >= term.deadline

    @property
    def place(self) -> tuple[str, str]:
        """The namespace and the name of the Lease."""
        return self._store.namespace, self._store.name

    # The observed states of the Lease.

    def note_watch(self, works: bool) -> None:
        """Called when it is known whether the states of the Lease come by a watch."""
        self._watched = works

    def see(self, body: Mapping[str, Any] | None, *, asked_at: float | None = None) -> None:
        """
        Called with each state of the Lease, or with ``None`` if it does not exist.

        Args:
            body: the state.
            asked_at: when the state was requested, by `read_time`. If that was after the known state was received, this
                one is newer even with a lower version: versions go back when a cluster is restored from a backup.
        """
        is_newer = asked_at is not None and asked_at > self._seen_at
        version = None if body is None else body['metadata'].get('resourceVersion')
        known = None if self._body is None else self._body['metadata'].get('resourceVersion')
        if not is_newer and version is not None and is_older_version(version, known):
            return
        was_known, former = self.known, self.holder
        self._body, self._seen_at, self.known = body, read_time(), True
        if body is not None:
            record = LeaseRecord.parse(body.get('spec'))
            # Compare the record, not the version: another client can change the labels of a dead holder's Lease.
            if record != self._record or not was_known:
                self._record, self._changed_at = record, self._seen_at
            if self.term is not None and record.holder != self._identity:
                self._lose(f"the Lease was taken over by {record.holder!r}" if record.holder else "it was released")
        if not was_known or former != self.holder:
            self._tell_holder()
            self._changed()
        self._wakeup.set()

    def _tell_holder(self) -> None:
        if self.holder is None or self.holder == self._identity:
            return
        logger.info("Standing by: the Lease %s is held by %r.", self._store, self.holder)
        labels = (self._body or {}).get('metadata', {}).get('labels') or {}
        if labels.get(MANAGED_BY) != 'kopf':
            logger.warning(
                "The Lease %s is not that of a kopf operator: it has no label %s=kopf. If it is not meant for this "
                "operator, set settings.leadership.name to another name.",
                self._store,
                MANAGED_BY,
            )
        promised = self._record.duration
        if promised is not None and promised > math.ceil(self._settings.duration):
            logger.warning(
                "The holder %r of the Lease %s promises to stop only after %g seconds without a renewal, so this "
                "replica waits for that long instead of settings.leadership.duration, %g seconds.",
                self.holder,
                self._store,
                promised,
                self._settings.duration,
            )

    def _find_release(self) -> float:
        """Return when the Lease can be acquired, by `read_time`; in the past, if no other process holds it."""
        # This holds also for a deleted Lease: its holder works until it notices the deletion, or until its deadline.
        if self._record.holder in (None, self._identity):
            return -math.inf
        return self._changed_at + (self._record.duration or self._settings.duration)

    # The term.

    def _begin_term(self, started: float) -> None:
        began, self.term = (
            self.term is None,
            Term(started + self._settings.renew_deadline, started + self._settings.duration),
        )
        self.last_term = self.term
        self._set_timer()
        if began:
            logger.info("%s, %r, holds the Lease %s.", self.beginning, self._identity, self._store)
            self._changed()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self.term is not None:
            delay = max(0.0, self.term.deadline - read_time())
            self._timer = asyncio.get_running_loop().call_later(delay, self.reconsider)

    def reconsider(self) -> None:
        """End the term if its deadline has passed."""
        if self.is_overdue:
            self._lose(f"the Lease could not be renewed: {self._failure or 'the process was suspended'}")
        else:
            self._set_timer()

    def forfeit(self, reason: str) -> None:
        """End the term at once, if there is one."""
        if self.term is not None:
            self._lose(reason)

    def _lose(self, reason: str) -> None:
        logger.warning("%s: %s. The work of this replica is cancelled.", self.loss, reason)
        self.term, self._ready = None, False
        self._set_timer()
        self._changed()

    def stand(self) -> None:
        """Called when the work of the last term has ended: the Lease may be acquired again."""
        self._ready, self.last_term = True, None
        self._wakeup.set()

    def withdraw(self) -> None:
        """Called when the operator is ending: the current term continues, but no other one begins."""
        self._ready = self.term is not None

    # The requests.

    def hasten(self) -> None:
        """Renew the Lease at once, because the stored values have changed."""
        if self.term is not None:
            self._next_attempt = -math.inf
            self._wakeup.set()

    async def run(self) -> None:
        """
        Acquire and renew the Lease until cancelled.

        Raises:
            LeadershipError: if the operator can never be elected, e.g. without the permission.
        """
        try:
            while True:
                await self._wait()
                if self.term is not None:
                    await self._attempt(self._renew)
                elif self.known and self._ready and read_time() >= self._find_release():
                    await self._attempt(self._acquire)
                else:
                    await self._attempt(self._read)
        finally:
            if self._timer is not None:
                self._timer.cancel()

    async def _wait(self) -> None:
        """Wait until the next request is due."""
        while (delay := self._find_due() - read_time()) > 0:
            self._wakeup.clear()
            try:
                async with asyncio.timeout(delay):
                    await self._wakeup.wait()
            except TimeoutError:
                pass

    def _find_due(self) -> float:
        if self.term is not None or not self.known:
            return self._next_attempt
        # The watch shows each renewal. If it shows none, it can be broken, or the holder is dead.
        silence = self._settings.retry_period * (SILENCE if self._watched else 1)
        due = self._seen_at + silence
        if self._ready:
            due = min(due, self._find_release())
        return max(due, self._next_attempt)

    async def _attempt(self, request: Callable[[], Any]) -> None:
        """Make a request; after a failure, pause before the next one."""
        started = read_time()
        self._next_attempt = started + self._settings.retry_period
        # Use half of the time, so that a hanging connection leaves time for another attempt.
        limit = self._settings.renew_deadline / 2
        if self.term is not None:
            limit = max(0.0, min(limit, self.term.deadline - started))
        try:
            async with asyncio.timeout(limit):
                await request()
        except (errors.APIError, TimeoutError) as error:
            self._note_failure(error, started)
        else:
            was_failing = self._failure is not None
            self._failure = None
            if was_failing:
                logger.info("The Lease %s can be accessed again.", self._store)
                self._recovered()
            if self.term is None:
                self._next_attempt = -math.inf  # a standby waits for events, see `_find_due`

    async def _read(self) -> None:
        started = read_time()
        body = await self._permit('get', self._store.read())
        self.see(body, asked_at=started)
        if body is not None and self.holder != self._identity and 'update' not in self._permitted:
            # Check the permission now: without it, this replica could not take over when the leader dies.
            try:
                await self._permit('update', self._store.replace(body, self._record, is_dry=True))
            except errors.APIConflictError:
                self._permitted.add('update')

    async def _acquire(self) -> None:
        now, former = format_time(read_wall_clock()), self._record
        record = LeaseRecord(
            holder=self._identity,
            duration=math.ceil(self._settings.duration),
            acquired=now,
            renewed=now,
            transitions=former.transitions + (former.holder != self._identity) if self._body is not None else 0,
        )
        await self._write(record)

    async def _renew(self) -> None:
        await self._write(self._record._replace(renewed=format_time(read_wall_clock())))

    async def _write(self, record: LeaseRecord) -> None:
        """Write the record. If the known state is outdated, read the newest one, and make the next attempt at once."""
        started, term, body = read_time(), self.term, self._body
        try:
            if body is None:
                answer = await self._permit('create', self._store.create(record))
            else:
                answer = await self._permit('update', self._store.replace(body, record))
        except (errors.APIConflictError, errors.APINotFoundError) as error:
            if isinstance(error, errors.APINotFoundError) and (body is None or error.code is None):
                raise
            # Another replica was faster; or the last response was lost; or the Lease is gone or was edited.
            asked_at = read_time()
            self.see(await self._permit('get', self._store.read()), asked_at=asked_at)
            self._next_attempt = -math.inf
            return
        # The deadline can have passed meanwhile: then the term has ended, and the work is being stopped.
        if self.term is term:
            self._take(answer)
            if self._ready:
                self._begin_term(started)

    def _take(self, body: Mapping[str, Any]) -> None:
        """Take the state from the response to our own write."""
        self._body, self._record = body, LeaseRecord.parse(body.get('spec'))
        self._changed_at = self._seen_at = read_time()
        self.known = True

    async def _permit(self, verb: str, request: Any) -> Any:
        """Make the request; remember that the API server permits the verb."""
        try:
            answer = await request
        except errors.APIForbiddenError as error:
            if _is_about_namespace(error) or error.is_by_admission:
                raise
            # An API server that has just started can refuse a request that it permits a moment later; so can one whose
            # authorization webhook is away. If the operator ended then, its unsaved successes would be lost.
            if verb in self._permitted:
                raise
            raise LeadershipError(self._explain_refusal(error)) from error
        self._permitted.add(verb)
        return answer

    def _explain_refusal(self, error: errors.APIError) -> str:
        store = self._store
        return (
            f"The Lease {store} is not permitted to the operator, {self.consequence}: {error.message} "
            f"Grant these rules by a Role in the namespace {store.namespace!r}: {self._list_rules()}"
        )

    def _list_rules(self) -> str:
        return (
            f'- {{apiGroups: ["coordination.k8s.io"], resources: ["leases"], verbs: ["create"]}} '
            f'- {{apiGroups: ["coordination.k8s.io"], resources: ["leases"], resourceNames: ["{self._store.name}"], '
            f'verbs: ["get", "list", "watch", "update"]}}'
        )

    def _note_failure(self, error: Exception, started: float) -> None:
        text = str(error) or repr(error)
        if isinstance(error, errors.APINotFoundError) and not self._permitted.intersection({'create', 'update'}):
            place = self._store.namespace
            raise LeadershipError(
                f"The Lease {self._store} cannot be created, {self.consequence}: {text} Create the namespace "
                f"{place!r}, or set settings.{self.group}.namespace."
            ) from error
        if isinstance(error, errors.APIForbiddenError) and _is_about_namespace(error):
            text = f"the namespace {self._store.namespace!r} is being deleted"
        # Log it once until a request succeeds again, as the requests are repeated every few seconds.
        level = logging.WARNING if self._failure is None else logging.DEBUG
        logger.log(level, "The Lease %s cannot be accessed; trying again: %s", self._store, text)
        self._failure = text

    async def release(self) -> None:
        """Let other replicas acquire the Lease at once. Called when all work has ended."""
        self.term, self._ready = None, False
        self._set_timer()
        for left in reversed(range(RELEASE_ATTEMPTS)):
            if self._body is None or self._record.holder != self._identity:
                return
            try:
                async with asyncio.timeout(self._settings.retry_period):
                    await self._write_release(self._body)
            except (TimeoutError, errors.APIServerError, errors.APIConnectionError, errors.APITooManyRequestsError):
                if not left:
                    raise
                # A refusal can come at once, e.g. while the API server restarts.
                await asyncio.sleep(min(RELEASE_PAUSE, self._settings.retry_period))

    async def _write_release(self, body: Mapping[str, Any]) -> None:
        """Clear the holder; if the known state is outdated, read the newest one instead."""
        now = format_time(read_wall_clock())
        record = LeaseRecord(None, 1, acquired=now, renewed=now, transitions=self._record.transitions)
        try:
            self.see(await self._store.replace(body, record))
        except errors.APIConflictError:
            asked_at = read_time()
            self.see(await self._store.read(), asked_at=asked_at)
        else:
            logger.info("The Lease %s is released.", self._store)


def _is_about_namespace(error: errors.APIError) -> bool:
    """Check whether the request was refused because the namespace is being deleted."""
    causes = error.details.get('causes')
    return any(
        isinstance(cause, Mapping) and cause.get('reason') == 'NamespaceTerminating'
        for cause in (causes if isinstance(causes, list) else ())
    )


def check_settings(settings: LeaseSettings, group: str = 'leadership') -> None:
    """
    Check the settings whose values depend on each other.

    Args:
        settings: the settings.
        group: the name of their group, for messages.

    Raises:
        LeadershipError: if they contradict each other.
    """
    duration, deadline, period = settings.duration, settings.renew_deadline, settings.retry_period
    for larger, smaller, texts in [
        (duration, deadline, ('duration', 'renew_deadline')),
        (deadline, period, ('renew_deadline', 'retry_period')),
        (period, 0, ('retry_period', 'zero')),
    ]:
        if larger <= smaller:
            raise LeadershipError(
                f"settings.{group}.{texts[0]} must be above {texts[1]}, but {larger:g} is not above {smaller:g}."
            )
    for field in ('name', 'namespace'):
        value = getattr(settings, field)
        if value is not None and not _is_name(value):
            raise LeadershipError(
                f"settings.{group}.{field} must be lowercase letters, digits, hyphens and dots, not {value!r}."
            )


def _is_name(value: str) -> bool:
    allowed = set('abcdefghijklmnopqrstuvwxyz0123456789-.')
    return bool(value) and len(value) <= 253 and set(value) <= allowed and value[0].isalnum() and value[-1].isalnum()
