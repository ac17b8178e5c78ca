"""
Coordination by election: one replica of the operator works; the others are standbys that can take over at once.

A replica that is not elected is paused: it watches, indexes, serves webhooks and probes, but handles nothing. The
leader works from its election until it releases the Lease at its end, or until it could not renew the Lease in time.
Then its work is cancelled, and it writes nothing any more; it is a standby again when all work has ended. If some work
cannot be stopped in time, such as a thread, the process exits, because another replica begins to work. Specified in
the documentation's "Run several replicas".
"""

import asyncio
import enum
import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence, Set
from typing import Any, Protocol

from kopf._cogs.clients.errors import APIError, APIFencedError
from kopf._cogs.helpers.clocks import read_time
from kopf._cogs.structs.bodies import RawEvent
from kopf._cogs.structs.credentials import LoginError
from kopf._cogs.structs.references import Namespace, Resource
from kopf._core.engines.activities import check_outcomes
from kopf._core.engines.lease_candidate import LeaseCandidate, Term, check_settings
from kopf._core.engines.leases import LEASES, LeaseStore, find_namespace
from kopf._core.intents.causes import Activity
from kopf._core.reactor.coordination import Affected, Coordinator, CoordinatorContext, find_lease_name
from kopf._core.reactor.object_records import ObjectRecord
from kopf._core.reactor.sinks import EventSink
from kopf._core.reactor.watches import ResourceWatch

logger = logging.getLogger(__name__)

ENDING_INTERVAL = 0.05
"""How often to check whether the cancelled work has ended (in seconds)."""

LAST_RESPITE = 1.0
"""The minimal time for cancelled work to end (in seconds), even if the term ended while the process was suspended."""

BLOCKED_RESPITE = 3.0
"""How long a blocked event loop is tolerated after the end of its term (in seconds), until the process exits."""


class Follower(Protocol):
    """A coordinator that is active only while this replica leads."""

    def stand_by(self, standing: bool, /) -> None:
        """Called with true when the operator stops leading, with false when it begins to lead."""


class Phase(enum.Enum):
    """The phases of a replica."""

    STANDING_BY = 'standing by'
    PREPARING = 'preparing'
    """The replica is elected, and its handlers of `Activity.LEADING` run."""
    LEADING = 'leading'
    LOSING = 'losing'
    """The replica does not hold the Lease any more, and its work is ending."""
    LEFT = 'left'
    """The operator is ending, and its work has ended."""


class ElectionCoordinator(Coordinator):
    """The election of one replica: a coordinator, see `coordination.Coordinator`."""

    def __init__(self, context: CoordinatorContext, followers: Collection[Follower] = ()) -> None:
        """
        Create the coordinator. The candidacy begins later, in `adjust`; until then, the client does not write.

        Args:
            context: the things of the operator; its identity is the first part of that of this replica.
            followers: other coordinators that only the leader takes part in.
        """
        check_settings(context.settings.leadership)
        self._client = context.client
        self._settings = context.settings
        self._identity = make_identity(context.identity)
        self._tasks = context.tasks
        self._controls = context.controls
        self._followers = followers
        self._phase = Phase.STANDING_BY
        self._candidate: LeaseCandidate | None = None
        self._oriented = False  # whether the first election was decided, for or against this replica
        self._ending = False  # whether the operator is ending
        self._prepared = False  # whether the handlers for the beginning of the leadership were called
        self._watch: ResourceWatch | None = None
        self._watching: asyncio.Task[None] | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._candidacy: asyncio.Task[None] | None = None
        self._losing: asyncio.Task[None] | None = None
        self._yielding: asyncio.Task[None] | None = None
        self._own_tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._failure: asyncio.Future[None] = self._loop.create_future()
        self._watchdog: TermWatchdog | None = None
        context.client.fence(self._check_fence)

    @property
    def leases(self) -> Mapping[str, bool]:
        return {find_lease_name(self._settings): self._phase in (Phase.PREPARING, Phase.LEADING)}

    @property
    def groups(self) -> Collection[str]:
        return ()

    @property
    def keeps_warm(self) -> bool:
        return True

    @property
    def paused(self) -> bool:
        return self._phase is not Phase.LEADING

    @property
    def overdue_check(self) -> Callable[[], bool]:
        return self._check_overdue

    def _check_overdue(self) -> bool:
        candidate = self._candidate
        if self._phase is not Phase.LEADING or candidate is None or not candidate.is_overdue:
            return False
        # Why not end the term immediately? This would change objects that the caller is using, such as the queue of
        # workers. And the caller can be in another thread.
        self._loop.call_soon_threadsafe(candidate.reconsider)
        return True

    def _check_fence(self) -> None:
        if self._phase not in (Phase.PREPARING, Phase.LEADING) or self._candidate is None:
            raise APIFencedError("The request is not sent, as this replica of the operator is not the leader.")
        if self._candidate.is_overdue:
            raise APIFencedError("The request is not sent, as the Lease of this replica could not be renewed in time.")

    @property
    def watches(self) -> Sequence[ResourceWatch]:
        watch = self._watch
        return () if watch is None else (watch,)

    def is_open(self, namespace: Namespace) -> bool:
        # Why not open immediately? A leader would list all objects twice: as a standby, and at the beginning of its
        # leadership.
        return self._oriented

    def rediscover(self, resources: Collection[Resource], failed_groups: Collection[str]) -> None:
        pass

    def adjust(self, namespaces: Set[Namespace], affected: Affected = None) -> Affected:
        if self._candidate is None:
            self._start()
        return affected

    def note_listing(self, listing: bool) -> None:
        pass

    def note_ending(self, namespace: Namespace, ending: bool) -> None:
        pass

    def note_other_cluster(self) -> None:
        if self._candidate is not None:
            self._candidate.forfeit("a login has led to another cluster")

    def halt(self, halted: bool) -> None:
        pass

    def _start(self) -> None:
        leadership = self._settings.leadership
        # Why not in the constructor? The namespace of the credentials is only known after the first request.
        store = LeaseStore(
            self._client,
            namespace=leadership.namespace or find_namespace(self._client),
            name=find_lease_name(self._settings),
        )
        self._candidate = LeaseCandidate(
            store, leadership, identity=self._identity, changed=self._note, recovered=self._watch_again
        )
        if not getattr(asyncio.get_running_loop(), 'is_virtual', False):
            self._watchdog = TermWatchdog(self._get_last_term, self._controls.find_running)
        self._tasks.create_task(self._supervise(), name='election')
        self._candidacy = self._create_task(self._candidate.run(), 'candidacy')

    async def _supervise(self) -> None:
        try:
            await self._failure
        finally:
            # The tasks of the operator are cancelled, and no others can be created.
            self._ending = True
            if self._candidate is not None:
                self._candidate.withdraw()
            if self._preparing is not None:
                self._preparing.cancel()

    def _create_task(self, coro: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """
        Create a task whose failure ends the operator.

        Why not in the task group of the operator? Its tasks are cancelled at the beginning of the exit, but the Lease
        must be renewed until all work has ended.
        """
        task = asyncio.create_task(coro, name=name)
        self._own_tasks.add(task)
        task.add_done_callback(self._note_end)
        return task

    def _note_end(self, task: asyncio.Task[None]) -> None:
        self._own_tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._failure.done():
            self._failure.set_exception(error)

    def _get_last_term(self) -> Term | None:
        return None if self._candidate is None else self._candidate.last_term

    # Changes of the leadership.

    def _note(self) -> None:
        """Called when the candidate begins or ends to hold the Lease, or sees that another process holds it."""
        candidate = self._candidate
        if candidate is None:
            return
        is_held = candidate.term is not None
        if is_held and self._phase is Phase.STANDING_BY and not self._ending:
            self._prepare()
        elif not is_held and self._phase in (Phase.PREPARING, Phase.LEADING):
            self._lose()
        elif not is_held and self._phase is Phase.STANDING_BY and candidate.holder not in (None, self._identity):
            self._stand_by()

    def _stand_by(self) -> None:
        if self._watching is None and self._candidate is not None:
            namespace, name = self._candidate.place
            self._watch = ResourceWatch(
                self._client,
                self._settings,
                LEASES,
                namespace,
                LeaseSink(self._candidate, name),
                selective=False,
                name=name,
                instruments=self._client.instruments,
            )
            self._watching = self._create_task(self._watch.persist(), f'observer of the Lease {name!r}')
        if not self._oriented:
            self._oriented = True
            self._report()

    def _report(self) -> None:
        """Report the new decision, unless the operator is ending, so that it begins no further work."""
        if not self._ending:
            self._controls.changed(None)

    def _watch_again(self) -> None:
        """Called when the API is available again: restart the watch, which can be in a back-off of half a minute."""
        if self._phase is Phase.STANDING_BY and self._watching is not None:
            self._stop_watching()
            self._stand_by()

    def _stop_watching(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            self._watch = self._watching = None

    def _prepare(self) -> None:
        self._phase = Phase.PREPARING
        self._stop_watching()  # the leader sees changes of the Lease by conflicts with its renewals
        if self._watchdog is not None:
            self._watchdog.begin()
        self._preparing = self._create_task(self._lead(), 'beginning of the leadership')

    async def _lead(self) -> None:
        self._prepared = True
        check_outcomes(Activity.LEADING, await self._controls.run_activity(Activity.LEADING))
        if self._phase is Phase.PREPARING:
            self._phase, self._oriented = Phase.LEADING, True
            for follower in self._followers:
                follower.stand_by(False)
            self._report()

    def _lose(self) -> None:
        self._phase = Phase.LOSING
        if self._preparing is not None:
            self._preparing.cancel()
        for follower in self._followers:
            follower.stand_by(True)
        self._controls.abort()
        self._report()
        self._losing = self._create_task(self._end_work(), 'end of the leadership')

    async def _end_work(self) -> None:
        """Wait until the cancelled work has ended; end the process if it does not end in time."""
        if self._yielding is None:
            self._yielding = self._create_task(self._yield(), 'yielding')
        await self._outwait(self._find_running)
        self._yielding = None
        if self._watchdog is not None:
            self._watchdog.end()
        self._phase = Phase.STANDING_BY
        if self._candidate is not None:
            logger.info("All work of this replica has ended. It stands by.")
            self._candidate.stand()
            self._note()

    def _find_running(self) -> Collection[str]:
        """Return the names of the work that still runs, with those of the handlers of the leadership itself."""
        # Cancelled tasks do not wait for their threads: those are among the running handlers of the operator.
        own = {'on.leading': self._preparing, 'on.yielding': self._yielding}
        still = [name for name, task in own.items() if task is not None and not task.done()]
        return [*self._controls.find_running(), *still]

    async def _outwait(self, find_running: Callable[[], Collection[str]]) -> None:
        """Wait until no work is running; exit from the process if some work is still running when the term is over."""
        term, now = self._get_last_term(), read_time()
        limit = max(now if term is None else term.expiry, now + LAST_RESPITE)
        while running := find_running():
            if read_time() >= limit:
                end_process(running)
            await asyncio.sleep(ENDING_INTERVAL)

    async def _yield(self, preparing: asyncio.Task[None] | None = None) -> None:
        """
        Call the handlers for the end of the leadership, if those for its beginning were called.

        Args:
            preparing: the cancelled task with the handlers for the beginning, if they have to end before.
        """
        if preparing is not None:
            await asyncio.wait({preparing})
        if self._prepared:
            self._prepared = False
            await self._controls.run_activity(Activity.YIELDING)

    # The end of the operator.

    def end(self) -> None:
        pass  # the tasks are not in the operator's group, so they continue to renew the Lease

    async def leave(self) -> None:
        """Release the Lease when all work has ended; end the process if the Lease expires before."""
        if self._phase in (Phase.PREPARING, Phase.LEADING):
            self._yielding = asyncio.create_task(self._yield(self._preparing), name='yielding')
        yielding = self._yielding
        try:
            if yielding is not None:
                # The Lease is renewed meanwhile, but not for ever: no other replica works as long as a handler hangs.
                await asyncio.wait({yielding}, timeout=self._settings.leadership.duration)
            self._failure.cancel()
            tasks = list(self._own_tasks)
            for task in tasks:
                task.cancel()
            # Handlers that ignore their cancellation are waited for below, with a limit.
            if own := [task for task in tasks if task is not self._preparing]:
                await asyncio.wait(own)
            # The operator exits without waiting for slow threads, but other replicas must not begin while these run.
            if self._phase is not Phase.STANDING_BY and (running := self._find_running()):
                logger.warning("The Lease is released when these have ended: %s.", ', '.join(running))
                await self._outwait(self._find_running)
        finally:
            if yielding is not None:
                yielding.cancel()
        self._phase = Phase.LEFT
        await self._release()
        if self._watchdog is not None:
            self._watchdog.end()
        # Cleanup handlers may write in all replicas, like startup handlers.
        self._client.fence(None)

    async def _release(self) -> None:
        try:
            if self._candidate is not None:
                await self._candidate.release()
        except (APIError, LoginError, TimeoutError) as error:
            logger.warning(
                "The Lease could not be released; the other replicas wait until it expires: %s",
                str(error) or repr(error),
            )


class LeaseSink(EventSink):
    """Passes the states of the Lease to the candidate."""

    def __init__(self, candidate: LeaseCandidate, name: str) -> None:
        self._candidate = candidate
        self._name = name

    def receive(self, record: ObjectRecord, event: RawEvent, *, listed_since: float | None) -> None:
        if record.name == self._name:
            body: Any = event['object']
            self._candidate.note_watch(True)
            self._candidate.see(None if event['type'] == 'DELETED' else body)

    def refused(self, watch: ResourceWatch, error: APIError) -> bool:
        self._candidate.note_watch(False)
        logger.warning(
            "The Lease cannot be watched, so it is read periodically, and this replica takes over later. Grant the "
            "verbs list and watch for leases to the operator's account: %s",
            error,
        )
        return True


class TermWatchdog:
    """
    A thread that ends the process after the end of a term if the event loop is blocked, and so does not stop the work.

    Args:
        get_term: returns the current term, or the last one while its work is ending.
        find_running: returns the names of the work that is running.
    """

    def __init__(self, get_term: Callable[[], Term | None], find_running: Callable[[], Collection[str]]) -> None:
        self._get_term = get_term
        self._find_running = find_running
        self._ended: threading.Event | None = None

    def begin(self) -> None:
        """Begin to watch the terms."""
        self.end()
        self._ended = threading.Event()
        threading.Thread(target=self._run, args=(self._ended,), name='kopf-election', daemon=True).start()

    def end(self) -> None:
        """Stop watching, as there is no work left."""
        if self._ended is not None:
            self._ended.set()

    def _run(self, ended: threading.Event) -> None:
        while not ended.wait(self._find_delay()):
            # Wait once more: after a suspension of the process, the event loop needs some time, too.
            if self._find_delay() <= 0 and not ended.wait(BLOCKED_RESPITE) and self._find_delay() <= 0:
                running = self._find_running()
                if running or not self._is_over():
                    end_process(running or ['the blocked event loop'])

    def _is_over(self) -> bool:
        return self._get_term() is None

    def _find_delay(self) -> float:
        term = self._get_term()
        return BLOCKED_RESPITE if term is None else max(0.0, term.expiry - read_time())


def end_process(running: Collection[str]) -> None:
    """Exit from the process at once, because another replica can begin to work; log the work that still runs."""
    logger.critical(
        "The Lease has expired, and another replica can begin to work. These could not be stopped, so the process is "
        "ended: %s.",
        ', '.join(running),
    )
    logging.shutdown()
    os._exit(1)


def make_identity(name: str | None) -> str:
    """Return the identity of this process: the given name or that of the pod, and a part that no other process has."""
    prefix = name or os.environ.get('POD_NAME') or socket.gethostname()
    # Why not the `random` module? Programs that seed it would get the same identity in all replicas.
    return f'{prefix}_{uuid.uuid4()}'
