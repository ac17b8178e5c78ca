"""
The gate that delays handlers until the indices that they can use are complete.

When an operator starts, all handlers wait for all indices. Later, also after a pause, only the handlers that can use an
index wait for it.
"""

import asyncio
import collections
import functools
import logging
from collections.abc import Callable, Collection, Coroutine, Hashable, Iterable

from kopf._cogs.aiokits.loops import end

logger = logging.getLogger(__name__)

REMINDER_INTERVAL = 30.0
"""The interval of log messages about the lists that handlers wait for (in seconds)."""

LIST_PATIENCE = 30.0
"""The time limit for a list that brings no objects; after it, it does not delay all handlers any more (in seconds)."""

EXIT_TIMEOUT = 2.0
"""How long cancelled index functions may take to end (in seconds)."""


class AwaitedList:
    """A list that handlers wait for, and the number of its objects that are being indexed."""

    __slots__ = ('begun', 'indices', 'initial', 'listing', 'objects', 'patience', 'refilling', 'title')

    def __init__(self, title: str, indices: Collection[str], *, refilling: bool) -> None:
        self.title = title
        self.indices = indices
        self.refilling = refilling
        """Whether its indices were complete before: they have only missed the last changes."""
        self.initial = True
        """Whether all handlers wait for the list, not only those that can use its indices."""
        self.listing = False
        """Whether the list is not complete yet."""
        self.objects = 0
        """The number of the listed objects that are being indexed."""
        self.begun = 0
        """The number of the listed objects whose indexing has begun so far."""
        self.patience: asyncio.TimerHandle | None = None
        """The timer of `LIST_PATIENCE`, while all handlers wait for the list."""

    def cancel_patience(self) -> None:
        """Cancel the time limit of the list."""
        if self.patience is not None:
            self.patience.cancel()
            self.patience = None


class IndexingGate:
    """
    The gate of one operator, and the owner of the tasks that index objects.

    The gate counts the incomplete lists, and their objects that are being indexed. When the operator starts, all
    handlers wait for all of them, as the documentation promises. For lists of later resources and namespaces, for lists
    after a pause, and for lists that fail or hang, only handlers that can use the indices wait: their functions name an
    index, or have ``**kwargs`` and read it. All handlers of a resource wait together.
    """

    def __init__(self) -> None:
        self.listeners: list[Callable[[], None]] = []
        """The functions to call when the gate opens for some handlers, or for all."""
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails with the error of an indexing task that must end the operator."""
        self._awaited: dict[Hashable, AwaitedList] = {}
        self._initial = 0  # the number of lists that delay all handlers
        self._filling: collections.Counter[str] = collections.Counter()  # the number of lists by index
        self._incomplete: collections.Counter[str] = collections.Counter()  # the same without refilling lists
        self._waiters: set[asyncio.Future[None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._reminder: asyncio.TimerHandle | None = None

    @property
    def is_complete(self) -> bool:
        """Return whether all indices are complete."""
        return not self._awaited

    def is_open(self, arguments: frozenset[str] | None) -> bool:
        """Check whether handlers that can use these arguments may run; ``None`` means all arguments."""
        if not self._awaited:
            return True
        if self._initial or arguments is None:
            return False
        return arguments.isdisjoint(self._filling)

    def is_filled(self, arguments: frozenset[str] | None) -> bool:
        """
        Check whether the indices among these arguments are complete; ``None`` means all arguments.

        Unlike `is_open`, this is for webhooks and schedules: they also work while all objects are listed once more.
        """
        return not self._incomplete or (arguments is not None and arguments.isdisjoint(self._incomplete))

    async def wait_filled(self, arguments: frozenset[str] | None) -> None:
        """Wait until the indices among these arguments are complete; ``None`` means all arguments."""
        while not self.is_filled(arguments):
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)

    def expect(
        self,
        key: Hashable,
        title: str,
        indices: Collection[str] = (),
        *,
        initial: bool = True,
        refilling: bool = False,
    ) -> None:
        """
        Delay handlers until a list is complete, and its objects are indexed.

        Args:
            key: the key of the list.
            title: the name of the list for log messages.
            indices: the names of the indices that get values from it.
            initial: whether to delay all handlers, or only those that can use these indices.
            refilling: whether the list was complete before.
        """
        awaited = self._awaited.get(key)
        if awaited is None:
            awaited = self._awaited[key] = AwaitedList(title, indices, refilling=refilling)
            self._filling.update(awaited.indices)
            if not refilling:
                self._incomplete.update(awaited.indices)
        else:
            self._initial -= awaited.initial
        awaited.listing, awaited.initial = True, initial
        self._initial += initial
        awaited.cancel_patience()
        if initial:
            self._be_patient(key, awaited)
        if self._reminder is None:
            self._remind_later()

    def dismiss(self, key: Hashable) -> None:
        """Stop waiting for the list, but not for its listed objects: the list is complete, or cannot be completed."""
        if (awaited := self._awaited.get(key)) is not None and awaited.listing:
            awaited.listing = False
            awaited.cancel_patience()
            self._check(key, awaited)

    def is_delaying_all(self, key: Hashable) -> bool:
        """Check whether all handlers wait for the list, not only those that can use its indices."""
        awaited = self._awaited.get(key)
        return awaited is not None and awaited.initial

    def stop_delaying_all(self, key: Hashable) -> bool:
        """Let the list delay only handlers that can use its indices; return whether it delayed all handlers before."""
        awaited = self._awaited.get(key)
        if awaited is None or not awaited.initial:
            return False
        awaited.initial = False
        awaited.cancel_patience()
        self._initial -= 1
        self._notify(not self._initial)
        return True

    def _be_patient(self, key: Hashable, awaited: AwaitedList) -> None:
        # Why not wait until the request fails? The API server, or a proxy, can hold it for minutes, and then it is
        # repeated.
        awaited.patience = asyncio.get_running_loop().call_later(
            LIST_PATIENCE, self._lose_patience, key, awaited, awaited.begun
        )

    def _lose_patience(self, key: Hashable, awaited: AwaitedList, begun: int) -> None:
        """Let handlers that cannot use the indices run if the list has brought nothing since `_be_patient`."""
        if awaited.begun > begun:
            self._be_patient(key, awaited)  # the list is long, but it keeps bringing objects
        elif self.stop_delaying_all(key):
            logger.warning(
                "Only the handlers that can use the indices %s wait for the list of %s from now on, as it has brought "
                "nothing for %g seconds.",
                join_names(awaited.indices),
                awaited.title,
                LIST_PATIENCE,
            )

    def start(self, work: Coroutine[None, None, None], key: Hashable = None) -> None:
        """Start a task that indexes an object; the gate also waits for the task if it waits for the list of the key."""
        if self._closed:
            # Close the coroutine: otherwise, Python would warn that it was never awaited.
            work.close()
            return
        task = asyncio.create_task(work)
        # Keep a reference: the event loop has only weak references to its tasks.
        self._tasks.add(task)
        if (awaited := self._awaited.get(key)) is None:
            task.add_done_callback(self._end)
        else:
            # Why a counter? To check a flag for each object whenever a task ends would be quadratic.
            awaited.objects += 1
            awaited.begun += 1
            task.add_done_callback(functools.partial(self._end_counted, key, awaited))

    def _end_counted(self, key: Hashable, awaited: AwaitedList, task: asyncio.Task[None]) -> None:
        self._end(task)
        awaited.objects -= 1
        self._check(key, awaited)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self.failure.done():
            self.failure.set_exception(error)

    def _check(self, key: Hashable, awaited: AwaitedList) -> None:
        """Open the gate for the handlers that have waited for this list, unless they also wait for another one."""
        if awaited.listing or awaited.objects:
            return
        del self._awaited[key]
        self._initial -= awaited.initial
        self._filling.subtract(awaited.indices)
        filled = [index for index in awaited.indices if not self._filling[index]]
        if not awaited.refilling:
            self._incomplete.subtract(awaited.indices)
        # Why not keep counters of zero? `is_open` checks only the keys.
        for index in filled:
            del self._filling[index]
        self._incomplete = +self._incomplete
        self._notify(bool(filled) or not self._awaited or (awaited.initial and not self._initial))

    def _notify(self, is_opening: bool) -> None:
        if not self._awaited:
            self._cancel_reminder()
        if is_opening and not self._closed:
            for listener in self.listeners:
                listener()
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def is_cancelled(self) -> bool:
        """Check whether the indexing tasks are cancelled."""
        return self._closed

    async def close(self) -> None:
        """Cancel all indexing tasks. Those that do not end in time are logged and abandoned."""
        self._closed = True
        self._cancel_reminder()
        for awaited in self._awaited.values():
            awaited.cancel_patience()
        self.failure.cancel()
        await end(list(self._tasks), timeout=EXIT_TIMEOUT, what="The functions of indices")

    def _remind_later(self) -> None:
        self._reminder = asyncio.get_running_loop().call_later(REMINDER_INTERVAL, self._remind)

    def _remind(self) -> None:
        titles = sorted(awaited.title for awaited in self._awaited.values() if awaited.listing)
        count = sum(awaited.objects for awaited in self._awaited.values())
        lists = f"the lists of {', '.join(titles)}" if titles else ''
        objects = f"{count} objects being indexed" if count else ''
        waiting = ' and '.join(filter(None, [lists, objects]))
        if self._initial:
            logger.warning("No handlers are run until all indices are complete; still waiting for: %s.", waiting)
        else:
            logger.warning(
                "The handlers that can use the indices %s are not run until these are complete; still waiting for: %s.",
                join_names(self._filling),
                waiting,
            )
        self._remind_later()

    def _cancel_reminder(self) -> None:
        if self._reminder is not None:
            self._reminder.cancel()
            self._reminder = None


def join_names(names: Iterable[str]) -> str:
    """Return the names of indices for a log message."""
    return ', '.join(map(repr, sorted(names))) or 'of the operator'
