"""
The gate that delays handlers until the indices that they can use are complete.

When an operator starts, all handlers wait for all indices. Later, also after a pause, only the handlers that can use an
index wait for it. If only the list of a single namespace is missing, only the handlers of objects there wait for long.
"""

import asyncio
import collections
import functools
import logging
from collections.abc import Callable, Collection, Coroutine, Hashable, Iterable

from kopf._cogs.aiokits.loops import end
from kopf._cogs.structs.references import Namespace

logger = logging.getLogger(__name__)

REMINDER_INTERVAL = 30.0
"""The interval of log messages about the lists that handlers wait for (in seconds)."""

LIST_PATIENCE = 30.0
"""The time limit for a list that brings no objects; after it, it does not delay all handlers any more (in seconds)."""

NAMESPACE_PATIENCE = 5.0
"""The same for the list of a namespace that is new; after it, it delays only handlers of objects there (in seconds)."""

EXIT_TIMEOUT = 2.0
"""How long cancelled index functions may take to end (in seconds)."""


class AwaitedList:
    """A list that handlers wait for, and the number of its objects that are being indexed."""

    __slots__ = (
        'begun',
        'indices',
        'initial',
        'listing',
        'namespace',
        'objects',
        'patience',
        'refilling',
        'scope',
        'title',
    )

    def __init__(self, title: str, indices: Collection[str], *, namespace: Namespace, refilling: bool) -> None:
        self.title = title
        self.indices = indices
        self.namespace = namespace
        """The namespace whose handlers wait longer than others; ``None`` if there is none."""
        self.scope: Namespace = None
        """The namespace whose handlers wait for the list; ``None`` for all namespaces."""
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
        """The timer of the time limit, while handlers wait that would not wait after it."""

    @property
    def limit(self) -> float | None:
        """The time limit; after it, fewer handlers wait for the list (in seconds)."""
        if self.initial:
            return LIST_PATIENCE
        if self.namespace == self.scope:
            return None
        # Why longer? After a pause, all lists are requested at once, and handlers of other namespaces may have used the
        # objects of this one. Those of a new namespace are new to them anyway.
        return LIST_PATIENCE if self.refilling else NAMESPACE_PATIENCE

    def cancel_patience(self) -> None:
        """Cancel the time limit of the list."""
        if self.patience is not None:
            self.patience.cancel()
            self.patience = None


class ListCounts:
    """The numbers of incomplete lists by their indices, for the handlers of all namespaces and of single ones."""

    __slots__ = ('_counts',)

    def __init__(self) -> None:
        # Why not keep counters of zero? Checks look only at the keys.
        self._counts: dict[Namespace, collections.Counter[str]] = {}

    def add(self, awaited: AwaitedList) -> None:
        """Count the list."""
        if awaited.indices:
            self._counts.setdefault(awaited.scope, collections.Counter()).update(awaited.indices)

    def remove(self, awaited: AwaitedList) -> bool:
        """Stop counting the list; return whether any of its indices has no other lists."""
        if not awaited.indices:
            return False
        counter = self._counts[awaited.scope]
        counter.subtract(awaited.indices)
        filled = [index for index in awaited.indices if not counter[index]]
        for index in filled:
            del counter[index]
        if not counter:
            del self._counts[awaited.scope]
        return bool(filled)

    def concern(self, arguments: frozenset[str] | None, namespace: Namespace) -> bool:
        """Check whether the lists fill indices among these arguments, for the handlers of the namespace."""
        if not self._counts:
            return False
        scopes = (None,) if namespace is None else (None, namespace)
        counters = [self._counts[scope] for scope in scopes if scope in self._counts]
        return any(arguments is None or not arguments.isdisjoint(counter) for counter in counters)

    def find_indices(self) -> frozenset[str]:
        """Return the names of all indices."""
        return frozenset().union(*self._counts.values())

    def find_namespaces(self) -> Collection[str]:
        """Return the namespaces whose handlers wait, if handlers of other namespaces do not."""
        return () if None in self._counts else [each for each in self._counts if each is not None]


class IndexingGate:
    """
    The gate of one operator, and the owner of the tasks that index objects.

    The gate counts the incomplete lists, and their objects that are being indexed. When the operator starts, all
    handlers wait for all of them, as the documentation promises. For lists of later resources and namespaces, for lists
    after a pause, and for lists that fail or hang, only handlers that can use the indices wait: their functions name an
    index, or have ``**kwargs`` and read it. All handlers of a resource wait together.

    A namespace that appears later can be without the permissions of the operator, for ever or until a moment later. So,
    if its list fails or hangs, only handlers of its own objects wait for it, and not those of all other namespaces. Why
    do these wait at all? Usually, the list is complete at once, and nothing is missing in the indices.
    """

    def __init__(self) -> None:
        self.listeners: list[Callable[[], None]] = []
        """The functions to call when the gate opens for some handlers, or for all."""
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails with the error of an indexing task that must end the operator."""
        self._awaited: dict[Hashable, AwaitedList] = {}
        self._initial = 0  # the number of lists that delay all handlers
        self._filling = ListCounts()
        self._incomplete = ListCounts()  # the same without refilling lists
        self._waiters: set[asyncio.Future[None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._reminder: asyncio.TimerHandle | None = None

    @property
    def is_complete(self) -> bool:
        """Return whether all indices are complete."""
        return not self._awaited

    def is_open(self, arguments: frozenset[str] | None, namespace: Namespace = None) -> bool:
        """
        Check whether handlers that can use these arguments may run for objects of the namespace.

        ``None`` means all arguments, and objects that are in no namespace.
        """
        return not self._awaited or not (self._initial or self._filling.concern(arguments, namespace))

    def is_filled(self, arguments: frozenset[str] | None, namespace: Namespace = None) -> bool:
        """
        Check whether the indices among these arguments are complete, as far as `is_open` requires it.

        Unlike `is_open`, this is for webhooks and schedules: they also work while all objects are listed once more.
        """
        return not self._incomplete.concern(arguments, namespace)

    async def wait_filled(self, arguments: frozenset[str] | None, namespace: Namespace = None) -> None:
        """Wait until `is_filled` is true."""
        while not self.is_filled(arguments, namespace):
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
        namespace: Namespace = None,
        refilling: bool = False,
    ) -> None:
        """
        Delay handlers until a list is complete, and its objects are indexed.

        Args:
            key: the key of the list.
            title: the name of the list for log messages.
            indices: the names of the indices that get values from it.
            initial: whether to delay all handlers, or only those that can use these indices.
            namespace: the namespace of the objects, if the list may delay only its handlers when it fails or hangs.
            refilling: whether the list was complete before.
        """
        awaited = self._awaited.get(key)
        if awaited is None:
            awaited = self._awaited[key] = AwaitedList(title, indices, namespace=namespace, refilling=refilling)
            self._count(awaited)
        else:
            self._initial -= awaited.initial
        awaited.listing, awaited.initial, awaited.namespace = True, initial, namespace
        self._initial += initial
        self._be_patient(key, awaited)
        if self._reminder is None:
            self._remind_later()

    def _count(self, awaited: AwaitedList) -> None:
        self._filling.add(awaited)
        if not awaited.refilling:
            self._incomplete.add(awaited)

    def _discount(self, awaited: AwaitedList) -> bool:
        """Stop counting the list; return whether any of its indices has no other lists."""
        is_filled = self._filling.remove(awaited)
        return not awaited.refilling and self._incomplete.remove(awaited) or is_filled

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
        # Why has it no time limit from now on? What is missing at the start is not new to the handlers that use it.
        awaited.cancel_patience()
        self._initial -= 1
        self._notify(not self._initial)
        return True

    def stop_delaying_others(self, key: Hashable) -> bool:
        """Let the list delay only handlers of its namespace; return whether it delayed those of all others before."""
        awaited = self._awaited.get(key)
        if awaited is None or awaited.initial or awaited.namespace == awaited.scope:
            return False
        awaited.cancel_patience()
        is_filled = self._discount(awaited)
        awaited.scope = awaited.namespace
        self._count(awaited)
        self._notify(is_filled)
        return True

    def _be_patient(self, key: Hashable, awaited: AwaitedList) -> None:
        # Why not wait until the request fails? The API server, or a proxy, can hold it for minutes, and then it is
        # repeated.
        awaited.cancel_patience()
        if (limit := awaited.limit) is not None:
            awaited.patience = asyncio.get_running_loop().call_later(
                limit, self._lose_patience, key, awaited, awaited.begun, limit
            )

    def _lose_patience(self, key: Hashable, awaited: AwaitedList, begun: int, limit: float) -> None:
        """Let other handlers run if the list has brought nothing since `_be_patient`."""
        if awaited.begun > begun:
            self._be_patient(key, awaited)  # the list is long, but it keeps bringing objects
        elif self.stop_delaying_others(key):
            logger.warning(
                "Only the handlers of objects in the namespace %r wait for the list of %s from now on, as it has "
                "brought nothing for %g seconds.",
                awaited.namespace,
                awaited.title,
                limit,
            )
        elif self.stop_delaying_all(key):
            logger.warning(
                "Only the handlers that can use the indices %s wait for the list of %s from now on, as it has brought "
                "nothing for %g seconds.",
                join_names(awaited.indices),
                awaited.title,
                limit,
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
        is_filled = self._discount(awaited)
        self._notify(is_filled or not self._awaited or (awaited.initial and not self._initial))

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
            namespaces = self._filling.find_namespaces()
            logger.warning(
                "The handlers that can use the indices %s are not run%s until these are complete; "
                "still waiting for: %s.",
                join_names(self._filling.find_indices()),
                f" in the namespaces {join_names(namespaces)}" if namespaces else "",
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
